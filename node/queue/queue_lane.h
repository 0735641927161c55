// SPDX-License-Identifier: Apache-2.0
// Lanes: items out to other nodes and to other workers of this node, and in again.
//
// Per destination the items of a turn are gathered into batches of at most LIMIT_FRAME_BYTES. An item above
// that becomes a run of its own, sent in parts between the batches; what the same session says later goes
// behind it in the same run, so its order is kept and others do not wait. A full lane keeps its batches; a
// closed one drops them (a reset follows).
//
// Parts go ahead of what the other side took of them by RUN_AHEAD_BYTES at most: the sockets between two nodes hold
// megabytes, and what is small must not wait behind them. The other side answers once a turn with the newest number it
// was told; after a reset of its connection it says it again. A node of an older program gives no answers: nothing waits
// for them (NET_LEVEL_SESSION_TAKEN). One that should and does not is noticed by queue_lanes_stuck.
//
// Connections are one-way, and only who sends is told of a new one. What is lost with the old one, and with those between
// that broke at once, nobody may ask for: a consumer that waits. So the first frame of each says that it is new.
// Thread: the worker's.
#pragma once
#include "consensus/host/net.h"
#include "node/base/block.h"
#include "node/base/list.h"
#include "node/base/map.h"
#include "node/queue/queue_wire.h"
#include "proto/pb_arena.h"

struct queue_lanes {
    struct net *net;
    uint32_t node, worker;  // Own.
    void (*post)(void *ctx, uint32_t worker, void (*fn)(void *arg), void *arg);
    void *post_ctx;
    struct queue_service *(*peer)(void *ctx, uint32_t worker);
    void (*receive)(struct queue_service *q, struct span items);  // On the worker of `q`.
    // The other node's connection to us is a new one: what it said before may be lost. On each worker; may be NULL.
    void (*renewed)(struct queue_service *q, uint32_t node);
    struct map by_key;      // node << 16 | worker (0 for other nodes) -> struct queue_lane.
    struct list used;       // Batches that the net may still read, of this turn
    struct list used_before;  // and of the one before; then they are free.
    struct list free;
    uint32_t free_count;
    struct pb_arena arena;
    struct map arriving;    // hash of (node, stream) -> struct arriving: runs that are coming in.
    struct map inflows;     // node << 16 | worker of the sender -> struct inflow: what was taken of runs.
    bool owes_answer;       // An inflow does.
    uint64_t bad_frames;
};

struct queue_lane {
    struct queue_lanes *lanes;
    uint32_t node, worker;
    struct buf out;          // Items of the batch being filled.
    struct list sealed;      // Full batches.
    struct list runs;        // Large items on their way.
    uint64_t next_run;       // Top half counts our connections to the node.
    uint64_t run_sent, run_taken;  // Bytes of parts on this connection; what the other side says of them.
    uint64_t stuck_since;    // Runs wait for the other side to take something; 0: not, or it just did.
    uint8_t stuck_times;     // Named by queue_lanes_stuck since the other side took something.
    size_t waiting_bytes;    // In out and sealed.
    size_t run_bytes;        // In runs.
    bool is_blocked;         // The net said RC_FULL.
    bool is_new;             // The other side does not know yet that our connection is a new one.
};

void queue_lanes_init(struct queue_lanes *l);  // After the caller filled the first fields.
void queue_lanes_deinit(struct queue_lanes *l);
struct queue_lane *queue_lane_to(struct queue_lanes *l, uint32_t node, uint32_t worker);
// May an item of about that many bytes be added? What waits in batches and in runs is bounded apart, so that what is
// small is not held up by the large items of others; only what would begin a run, or go behind its session's own, waits
// for the runs. A lane that takes nothing is asked again when it is writable, and from time to time.
bool queue_lane_takes(struct queue_lane *lane, size_t bytes, enum queue_item_type type, uint64_t group,
                      struct queue_session_id session);
// An item: begin, append its body to lane->out, end.
size_t queue_lane_begin(struct queue_lane *lane, enum queue_item_type type, uint64_t group,
                        struct queue_session_id session, uint32_t attach);
void queue_lane_end(struct queue_lane *lane, size_t at);
// The same for an item that goes on with `tail`, which lies in `block`: shared until it was sent.
void queue_lane_end_shared(struct queue_lane *lane, size_t at, struct block *block, struct span tail);
// Something large of the session's client side is still on its way into the net.
bool queue_lane_is_sending(struct queue_lane *lane, uint64_t group, struct queue_session_id session);
void queue_lane_flush(struct queue_lane *lane);
void queue_lanes_flush(struct queue_lanes *l);
// Start of a turn: what was handed to the net before the last one has been written or copied. (Not in the last one: a
// driver may run two turns before it flushes the net.)
void queue_lanes_recycle(struct queue_lanes *l);
// A node whose lane has waited for QUEUE_TAKEN_TIMEOUT_NS for the other side to take a part, connected or not; 0: none. The
// caller resets it, and whoever had something in it sends that anew. Each time in vain the next wait is twice as long, up to
// QUEUE_TAKEN_DOUBLINGS times: a line slower than that time allows for would else carry the beginning of it for ever.
// To be asked each turn (law 4).
uint32_t queue_lanes_stuck(struct queue_lanes *l, uint64_t now);
bool queue_lanes_have_work(const struct queue_lanes *l);  // Something waits that no upcall will announce.
// A session frame from another node: calls receive() with whole items.
void queue_lanes_frame(struct queue_lanes *l, struct queue_service *q, uint32_t from_node, const struct frame *f);
// More of something large for the session's client side has come since this was asked last: what is said behind it, such
// as an answer, is still on its way.
bool queue_lanes_receives(struct queue_lanes *l, uint64_t group, struct queue_session_id session);
// Our connection to the node is a new one: what waited for the old one is dropped (its sessions attach again).
void queue_lanes_reset(struct queue_lanes *l, uint32_t node);
void queue_lanes_node_gone(struct queue_lanes *l, uint32_t node);  // Parts it began will never be whole.
