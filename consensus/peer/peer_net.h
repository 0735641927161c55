// SPDX-License-Identifier: Apache-2.0
// The real `struct net`: links to other nodes on one libuv loop, with handshake, failure detector and redialling.
//
// Each node dials every other, once per lane, and sends on what it dialled; it receives on what it accepted.
// So there is no tie to break when both dial, and a cut of one direction is seen. Peers are addressed by name
// until they have a node id (blank nodes); `struct net` addresses by node id. Everything runs on the loop's
// thread; upcalls and hooks are called from the loop, never from within net.send or net.flush, and may call
// anything here.
#pragma once
#include "consensus/host/net.h"
#include "consensus/peer/hello.h"
#include "node/base/env.h"
#include <uv.h>

struct peer_net;

enum { PEER_NET_PEERS_MAX = 256 };

struct peer_net_hooks {  // Each may be NULL.
    // Something of a peer changed (greeted, verdict, refusal, its hello): see peer_net_each, peer_net_form.
    void (*changed)(void *ctx);
    // A JOIN or JOIN_REPLY frame of the peer `name`.
    void (*join_frame)(void *ctx, const char *name, const struct frame *f);
    // A node that proved the secret greets: may it? Called after our own checks; `text` has PEER_TEXT_MAX + 1 bytes.
    enum peer_refusal (*admit)(void *ctx, const struct peer_hello *h, char *text);
    // Fills the last four fields of our next beat.
    void (*beat_fill)(void *ctx, struct peer_beat *b);
    // A beat of a node with an id arrived.
    void (*beat_seen)(void *ctx, uint32_t node_id, const struct peer_beat *b);
    void *ctx;
};

struct peer_net_config {
    uv_loop_t *loop;                           // Its thread owns the net.
    const struct clock *clock;
    void (*random)(void *to, uint64_t bytes);  // For nonces: env_system_random.
    const char *listen;                        // "host:port", host may be empty (all); port 0: any free one.
    struct span secret;                        // Copied. Not empty.
    struct peer_hello self;                    // Name, ids, address, list hash, versions; lane and nonce are set here.
    const struct net_upcalls *upcalls;         // Borrowed; may be NULL until peer_net_set_upcalls.
    struct peer_net_hooks hooks;
};

// Opens the port; dials nothing before peer_net_add. RC_INVALID (address), RC_BUSY (port taken), RC_SYSTEM.
MUST_USE enum rc peer_net_create(const struct peer_net_config *config, struct peer_net **out);
// Closes everything, then frees the net and calls `done` from the loop. No upcalls after this call.
void peer_net_close(struct peer_net *n, void (*done)(void *ctx), void *ctx);
// From the next turn of the loop on they are told of the nodes that are alive and of the lanes that are open, too.
void peer_net_set_upcalls(struct peer_net *n, const struct net_upcalls *upcalls);
struct net *peer_net_net(struct peer_net *n);
uint16_t peer_net_port(const struct peer_net *n);

// Adds a peer or updates the one of that name. `node_id` 0 and `store_id` NULL: not known. A known store id is the only
// one a member of that name may greet with; a blank node with another one may (it asks to be taken in), and
// has no node id.
// Another store id than the one known before: the links of the former end, its node id is dead.
// `address` NULL keeps the one known. RC_FULL, RC_INVALID (address), RC_CONFLICT (the id is another peer's).
MUST_USE enum rc peer_net_add(struct peer_net *n, const char *name, const char *address, uint32_t node_id,
                              const uint8_t *store_id);
// Closes its links and forgets it. If it dials again it is a stranger: hooks.admit decides.
void peer_net_remove(struct peer_net *n, const char *name);
// Our identity changed (founded, joined, other versions): told to every peer on its lanes.
void peer_net_set_self(struct peer_net *n, const struct peer_hello *self);

// One small frame on the control lane by name, written at once (join exchange). RC_NOT_CONNECTED, RC_FULL.
MUST_USE enum rc peer_net_send_named(struct peer_net *n, const char *name, enum frame_type type, struct span envelope);

struct peer_info {
    const char *name;
    const char *address;
    uint32_t node_id;               // 0 unknown.
    enum node_verdict verdict;
    const struct peer_hello *hello; // Last believed; NULL before.
    const char *refusal;            // Why one refuses the other, or NULL.
    enum peer_refusal refusal_kind; // The same; REFUSED_NONE.
    struct peer_beat beat;          // Last one heard; zeros before.
    uint64_t heard_ns;              // When, monotonic.
};
void peer_net_each(struct peer_net *n, void (*each)(void *ctx, const struct peer_info *p), void *ctx);
// formation_decide with what the net knows of the `names` on the configured list. out->via is borrowed until the peer
// is removed.
void peer_net_form(struct peer_net *n, const char *const *names, uint32_t names_len, struct formation_decision *out);

struct peer_net_metrics {
    uint64_t frames_in, bytes_in, bytes_out;
    uint64_t malformed;      // Links closed for bytes that do not decode.
    uint64_t refused;        // Handshakes that failed, either way.
    uint64_t dials, stalls;  // Dials begun; lanes reopened for want of progress.
    uint64_t links_open;     // Now: greeted, both directions.
    uint64_t links_greeting; // Now: accepted, not yet proven.
    uint64_t buffer_bytes;   // Now: receive buffers and unsent output.
};
void peer_net_metrics(const struct peer_net *n, struct peer_net_metrics *out);
