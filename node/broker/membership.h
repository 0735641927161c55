// SPDX-License-Identifier: Apache-2.0
// What membership.c (who is looked at, and when) and membership_step.c (what is done then) share. Thread: the
// broker's worker.
#pragma once
#include "node/broker/internal.h"

enum {
    CHANGES_AT_ONCE = 64,
    SOON_MS = 5,         // A configuration entry commits in about that time.
    LATER_MS = 200,      // A learner is catching up,
    EAGER_MS = 100,      // and was let in longer ago than this: most are level at once.
    ANNOUNCED_MS = 10000,  // A member that was announced and cannot be let in is taken back after this (law 4).
    STORE_MS = 10000,
    PROOF_MS = 2000,
    SCAN_BATCH = 256,    // Led queues looked at in one turn.
    SCAN_DELAY_MS = 50,  // Several nodes come and go together.
};
#define NS_PER_MS UINT64_C(1000000)

struct request {
    struct broker_member_change what;
    uint64_t deadline;
    bool is_done_before;  // It was so when the request came.
    bool has_started;
    broker_done_fn *done;  // NULL: no request.
    void *ctx;
};

enum place { PLACE_WAITING, PLACE_SOON, PLACE_LATER, PLACE_ASKING, PLACES };

struct change {
    struct broker *broker;
    struct queue *queue;  // NULL: gone; freed when what it asked for comes back.
    struct list link;     // In membership's list of its place.
    enum place place;
    uint64_t due;         // SOON, LATER.
    uint64_t seen_version, seen_at;       // The record as it is, and since when this node knows it.
    uint64_t proven_version, proven_term;  // What the configuration of this term lacks, and this record has, is gone.
    bool wants_more;                      // Members are to be added up to the target.
    bool is_waiting;                      // This step met a learner that is catching up.
    struct request request;
};

struct membership {
    struct list lists[PLACES];  // WAITING to be let in; SOON and LATER by `due`; ASKING: a record's write or
                                // a proof is under way.
    uint32_t active;            // In SOON or ASKING: at most CHANGES_AT_ONCE.
    uint32_t scan_left;       // Led queues still to be looked at.
    uint64_t scan_at;         // When to begin; UINT64_MAX: no scan is wanted.
    uint64_t fill_at;         // From then on a scan also adds members up to the target.
    bool is_filling;          // This scan does.
    struct host_watcher watcher;
    struct list lost;         // struct telling: to be written into the record, from lost_at on.
    struct list tellings;     // struct telling: being written; at most CHANGES_AT_ONCE.
    uint32_t tellings_count;
    uint64_t lost_at;
};

enum step { STEP_NOTHING, STEP_SOON, STEP_LATER, STEP_ASKED };

static inline uint64_t membership_now(const struct broker *b)
{
    return host_now(b->config.host);
}

// membership.c
void change_move(struct change *c, enum place to, uint64_t delay_ms);
// What was asked for is here. False: the queue has gone meanwhile, and `c` with it.
MUST_USE bool change_come_back(struct change *c);
// Ends the request, if any.
__attribute__((format(printf, 3, 4))) void change_answer(struct change *c, enum rc rc, const char *format, ...);

// membership_step.c
enum step change_step(struct change *c);
bool node_is_gone(struct broker *b, uint32_t node_id);
bool queue_member_is_joining(const struct queue *q, uint32_t i);
bool queue_member_is_filling(const struct queue *q, uint32_t i);
bool queue_member_wants_vote(const struct queue *q, uint32_t i);
bool queue_member_is_lost(const struct queue *q, uint32_t i);
int queue_place_of_node(const struct queue *q, uint32_t node_id);  // -1: not a member.
// The record as it is, but that member `at` has lost its memory: a command under the condition of the record's version.
void queue_lost_command(const struct queue *q, uint32_t at, struct meta_command *m);

// membership_lost.c
void lost_init(struct broker *b);
void lost_deinit(struct broker *b);
void lost_queue_gone(struct queue *q);
uint64_t lost_turn(struct broker *b, uint64_t now);  // Returns when it wants to run again.
