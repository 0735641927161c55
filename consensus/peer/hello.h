// SPDX-License-Identifier: Apache-2.0
// What nodes tell each other: hello, proof, beat (proto/cluster_peer.proto) as plain structs, to and from
// frames' envelopes.
//
// Pure. Decoders take hostile bytes: every length is checked, nothing is kept of what they borrow from.
#pragma once
#include "consensus/peer/formation.h"
#include "consensus/peer/liveness.h"
#include "node/base/buf.h"

enum {
    PEER_MAGIC = 0x504e5257,  // "WRNP"
    PEER_PROTOCOL_MIN = 1,    // Versions of the protocol between nodes that this build speaks.
    PEER_PROTOCOL_MAX = 1,
    PEER_NAME_MAX = 255,     // Bytes of a node name.
    PEER_ADDRESS_MAX = 300,  // Bytes of "host:port".
    PEER_NONCE_BYTES = 32,
    PEER_MAC_BYTES = 32,
    PEER_FSMS_MAX = 16,       // State machines a hello names.
    PEER_FSM_NAME_MAX = 31,
    PEER_TEXT_MAX = 767,      // Bytes of a refusal's text.
    PEER_GREETING_MAX = 4096  // Bytes of one frame, and all that is buffered, before the proof.
};

// As proto/cluster_peer.proto's Refusal.
enum peer_refusal {
    REFUSED_NONE,
    REFUSED_SECRET,
    REFUSED_VERSION,
    REFUSED_CLUSTER,
    REFUSED_IDENTITY,
    REFUSED_STALE,
    REFUSED_IN_USE,
    REFUSED_SELF,
    REFUSED_NAME,
    REFUSED_LANE,
    REFUSED_FULL,
    REFUSED_DENIED,
    REFUSED_COUNT
};

struct peer_fsm_version {
    char name[PEER_FSM_NAME_MAX + 1];
    uint32_t version;
};

struct peer_hello {
    uint32_t protocol_min, protocol_max;
    uint8_t cluster_id[CLUSTER_ID_BYTES];  // Zeros while blank.
    uint8_t store_id[STORE_ID_BYTES];
    uint32_t node_id;      // 0 while blank.
    uint64_t incarnation;  // > 0
    uint64_t list_hash;
    uint32_t feature_level;
    uint32_t lane;  // enum net_lane.
    bool is_blank;
    char name[PEER_NAME_MAX + 1];
    char address[PEER_ADDRESS_MAX + 1];
    uint32_t fsms_len;
    struct peer_fsm_version fsms[PEER_FSMS_MAX];
    uint8_t nonce[PEER_NONCE_BYTES];  // Zeros in an update.
};

struct peer_proof {
    bool has_mac;
    uint8_t mac[PEER_MAC_BYTES];
    enum peer_refusal refusal;
    char text[PEER_TEXT_MAX + 1];
};

struct peer_beat {
    uint64_t incarnation, number, echo;
    uint64_t worker_progress;  // Sum of the workers' loop turns.
    uint64_t wal_age_ms;       // Age of the oldest write not yet synced.
    uint64_t meta_commit;      // Metadata group's commit index.
    uint64_t alarms;           // The sender's own resource alarms, bits (node/alarm).
};

// Append an envelope. A challenge is a hello in a wrapping of its own.
void peer_hello_encode(struct buf *to, const struct peer_hello *h, bool is_challenge);
void peer_proof_encode(struct buf *to, const struct peer_proof *p);
void peer_beat_encode(struct buf *to, const struct peer_beat *b);
// RC_MALFORMED. A hello that decodes has a name, an incarnation, a known lane, and a store id of the right size.
MUST_USE enum rc peer_hello_decode(struct span envelope, bool is_challenge, struct peer_hello *out);
MUST_USE enum rc peer_proof_decode(struct span envelope, struct peer_proof *out);
MUST_USE enum rc peer_beat_decode(struct span envelope, struct peer_beat *out);
