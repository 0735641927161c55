// SPDX-License-Identifier: Apache-2.0
// Frames by which a blank node asks a member to take it in: FRAME_JOIN and FRAME_JOIN_REPLY (proto/cluster_peer.proto).
// Who answers, and the node record it creates, is node/server's business; these are the structs and their coding.
//
// Pure. Thread: any.
#pragma once
#include "consensus/peer/hello.h"

// Results on the wire; numbers never change.
enum join_result {
    JOIN_OK = 0,
    JOIN_RETRY = 1,       // No leader or no majority now, or another change is under way: ask again.
    JOIN_NAME_TAKEN = 2,  // The name is a living member's (text).
    JOIN_REFUSED = 3,     // For good (text).
};

enum { JOIN_META_MEMBERS_MAX = 64, JOIN_NODES_MAX = 256 };

struct join_request {
    uint64_t token;  // Repeated in the answer.
    bool has_data;   // A disk that vouches for nothing is still there; it is wiped after JOIN_OK.
    uint8_t store_id[STORE_ID_BYTES];
    char name[PEER_NAME_MAX + 1];
    char address[PEER_ADDRESS_MAX + 1];
};

struct join_node {
    uint32_t node_id;
    uint8_t store_id[STORE_ID_BYTES];
    char name[PEER_NAME_MAX + 1];
    char address[PEER_ADDRESS_MAX + 1];
};

struct join_meta_member {
    uint64_t replica_id;
    uint32_t node_id;
    bool is_voter;
};

struct join_reply {
    uint64_t token;
    enum join_result result;
    char text[PEER_TEXT_MAX + 1];
    uint8_t cluster_id[CLUSTER_ID_BYTES];
    uint32_t node_id;     // The joining node's.
    uint64_t replica_id;  // Its replica in the metadata group.
    uint32_t members_len;
    struct join_meta_member members[JOIN_META_MEMBERS_MAX];
    uint32_t nodes_len;
    char ask[PEER_NAME_MAX + 1];  // JOIN_RETRY: whom to ask instead; empty: the same again.
    char ask_address[PEER_ADDRESS_MAX + 1];
    struct join_node *nodes;  // JOIN_NODES_MAX at most. Owned after decoding: join_reply_deinit.
};

// Append an envelope.
void join_request_encode(struct buf *to, const struct join_request *r);
void join_reply_encode(struct buf *to, const struct join_reply *r);
// RC_MALFORMED.
MUST_USE enum rc join_request_decode(struct span envelope, struct join_request *out);
// As above; on RC_OK call join_reply_deinit when done. An OK reply has a node id, a replica id and members.
MUST_USE enum rc join_reply_decode(struct span envelope, struct join_reply *out);
void join_reply_deinit(struct join_reply *r);
