// SPDX-License-Identifier: Apache-2.0
// The quorum queue's state machine: pure, total, deterministic (law 5). Input: committed commands in order. Output: the
// next state, and effects for the leader's replica. No clock, no log, no allocation per message beyond list growth.
//
// Rules: data-plane §1.13, §4. Thread: the worker of the group; fields are read-only for others.
#pragma once
#include "node/base/list.h"
#include "node/base/map.h"
#include "node/queue/queue_command.h"
#include "node/queue/queue_ready.h"

enum { QUEUE_FSM_VERSION = 1 };

struct queue_unsettled {
    uint64_t number;  // Delivery number; ascending in the array.
    queue_ref ref;    // 0: settled (a hole until the array is closed up).
    uint32_t acquired, failed;
};

struct queue_fsm_consumer {
    struct queue_fsm_session *session;
    uint32_t id;           // 0: holds what basic.get took.
    uint32_t prefetch;     // 0: by credit.
    uint32_t credit;       // Only with prefetch 0: messages it may still get.
    int32_t priority;
    bool is_no_ack, is_exclusive;
    bool is_cancelled;     // Gets nothing more; lives until it holds nothing.
    uint8_t tag_len;
    uint64_t next_number;
    struct queue_unsettled *unsettled;  // [start, len): ascending numbers, with holes; [start] is none.
    uint32_t start, len, cap;
    uint32_t held;         // Live ones.
    struct queue_class *class_;
    struct list waiting;   // In class_->waiting while it may get a message.
    struct list in_session, in_queue;  // Order of attachment.
    uint64_t mark;         // Not state: effects of this round already tell of it.
    void *user;            // Not state: the replica's.
    char tag[];
};

struct queue_class {  // Consumers of one priority.
    struct list link;     // Descending priority.
    struct list waiting;  // Round robin.
    int32_t priority;
    uint32_t members;
};

struct queue_seq_range {
    uint64_t first, last;
};

struct queue_fsm_session {
    struct queue_session_id id;
    struct queue_fsm_session *same_key;  // Next with the same hash.
    struct list link;                    // Order of opening.
    uint64_t seq[QUEUE_STREAMS];         // Last applied.
    uint64_t known;
    struct queue_seq_range *rejected;    // Publishes not accepted, above `known`.
    uint32_t rejected_count, rejected_cap;
    uint8_t query_kind;                  // Last get or purge, to answer it again: 0, GET, PURGE.
    uint64_t query_seq;
    uint64_t query_number;               // GET: delivery number of consumer 0, 0 = empty. PURGE: messages.
    uint64_t query_ready;                // GET: ready behind it.
    struct list consumers;
    struct queue_fsm_consumer *recent;   // Not state.
    uint64_t mark;                       // Not state.
    void *user;                          // Not state: the replica's.
};

// What the state remembers of a client node's worker: opens with a counter not above `highest` are repeats.
struct queue_fsm_node {
    uint32_t node;
    uint32_t worker;
    uint64_t incarnation;
    uint64_t highest;
};

struct queue_busy {  // Only while there are sessions.
    struct map by_key;
    struct list sessions;
    struct list consumers;
    struct list classes;
    struct queue_fsm_consumer *active;  // Single active consumer.
    bool is_quiescing;                  // The active one gets nothing more; the next takes over when it holds nothing.
    uint32_t sessions_count, consumers_count;
    struct queue_fsm_session *recent;   // Not state.
};

struct queue_fsm {
    struct queue_settings settings;
    struct queue_ready ready;
    struct queue_returns returns;
    uint64_t ready_count, ready_bytes;  // Returned ones included.
    uint64_t unacked_count, unacked_bytes;
    struct map *big;                    // Index -> size of messages of 1 MiB and more; NULL if none.
    struct queue_busy *busy;
    struct queue_fsm_node *nodes;
    int64_t stamp_ms;
    uint32_t nodes_count;
    bool is_rejecting;                  // Over the limit under reject-publish, until at 80 %.
    bool has_more;                      // Checkout stopped at its bound: wants another command.
    uint32_t ignored;                   // Not state: commands that did not decode.
};
static_assert(sizeof(struct queue_fsm) <= 224, "an idle queue is small (engine-notes §7.9)");

enum queue_effect_kind {
    QUEUE_EFFECT_APPLIED,   // session->seq moved, or a repeat wants the answer again. Once per round and session.
    QUEUE_EFFECT_OPENED,
    QUEUE_EFFECT_REFUSED,   // Open of a counter that is not new. id.
    QUEUE_EFFECT_REJECTED,  // Publish `value` was not accepted.
    QUEUE_EFFECT_QUERY,     // session->query_* is the answer to `value`.
    QUEUE_EFFECT_GAP,       // A seq is missing in stream `value`.
    QUEUE_EFFECT_DELIVER,   // The consumer has new unsettled messages. Once per round and consumer.
    QUEUE_EFFECT_GONE,      // The consumer is about to be freed; user pointers die.
    QUEUE_EFFECT_ENDED,     // The session is gone (freed): `user` and id are left.
    QUEUE_EFFECT_UNKNOWN,   // Command of a session that is not there: it has ended. id.
};
struct queue_effect {
    enum queue_effect_kind kind;
    struct queue_fsm_session *session;    // Valid until its ENDED.
    struct queue_fsm_consumer *consumer;  // DELIVER; valid until its GONE. With GONE and ENDED only `user` is.
    void *user;
    struct queue_session_id id;
    uint64_t value;
};
// Owned by the caller; one round = what is pushed between two resets.
struct queue_effects {
    struct queue_effect *items;
    uint32_t count, cap;
    uint64_t round;
};
void queue_effects_init(struct queue_effects *fx);
void queue_effects_reset(struct queue_effects *fx);  // Starts the next round.
void queue_effects_deinit(struct queue_effects *fx);

void queue_fsm_init(struct queue_fsm *f, const struct queue_settings *settings);
void queue_fsm_deinit(struct queue_fsm *f);
// Applies one command. `fx` may be NULL (followers). Order of effects is order of cause.
// GONE and ENDED carry the `user` pointers of what was freed.
void queue_fsm_apply(struct queue_fsm *f, uint64_t index, struct span payload, struct queue_effects *fx);

struct queue_fsm_session *queue_fsm_session_find(const struct queue_fsm *f, struct queue_session_id id);
struct queue_fsm_consumer *queue_fsm_consumer_find(struct queue_fsm_session *s, uint32_t consumer);
// The first unsettled delivery with a number above `number`; NULL if none.
const struct queue_unsettled *queue_fsm_next(const struct queue_fsm_consumer *c, uint64_t number);
uint64_t queue_fsm_size(const struct queue_fsm *f, queue_ref ref);  // Of a message in this queue, in bytes.
void queue_fsm_check(const struct queue_fsm *f);                    // Asserts the full invariant.

// ---- snapshots (queue_fsm_snapshot.c) ----------------------------------------------------------------------------

struct queue_snapshot;
struct queue_snapshot *queue_fsm_freeze(struct queue_fsm *f);                  // Worker.
bool queue_snapshot_chunk(struct queue_snapshot *s, struct buf *to);           // Any one thread.
void queue_snapshot_live(struct queue_snapshot *s, struct buf *out);           // Worker: struct live_range, ascending.
void queue_snapshot_free(struct queue_snapshot *s);                            // Worker.
uint64_t queue_fsm_size_estimate(const struct queue_fsm *f);
struct queue_restore {
    struct queue_fsm *fsm;  // Emptied at begin.
    struct buf rest;
    bool has_rest;
};
void queue_restore_begin(struct queue_restore *r, struct queue_fsm *f);
MUST_USE enum rc queue_restore_chunk(struct queue_restore *r, struct span chunk);
MUST_USE enum rc queue_restore_end(struct queue_restore *r);  // Whatever it returns, the restore is over.
uint64_t queue_fsm_digest(struct queue_fsm *f);  // Equal states have equal digests. For tests.
