// SPDX-License-Identifier: Apache-2.0
// Shared by metastore.c (life, jobs, changes) and requests.c (submissions, fences, frames) only.
#pragma once
#include "metastore/change.h"
#include "metastore/meta_fsm.h"
#include "metastore/metastore.h"
#include "node/base/log.h"
#include "node/base/map.h"
#include "node/base/mem.h"
#include <stdlib.h>

enum { TIMEOUT_MAX_MS = 10000, MS = 1000000 };  // Decision 18.

enum request_kind { REQUEST_COMMAND, REQUEST_FENCE, REQUEST_PROOF };

struct request {
    struct list link;  // metastore.ended, then worker.waiting.
    struct metastore *m;
    enum request_kind kind;
    uint32_t worker;
    uint32_t timeout_ms;
    meta_done_fn *done;
    void *ctx;
    struct meta_result result;
    // Worker 0.
    struct buf bytes;  // COMMAND: the encoded request.
    uint64_t counter;  // Key in metastore.requests.
    uint64_t deadline;
    uint64_t resend_at;
    uint64_t wait_index;  // Fence: passed at the leader; done when this is applied here. 0: not yet.
    enum rc last_refusal;
};

struct worker {
    struct meta_subscriber subscriber;
    bool has_subscriber;
    bool is_loaded;
    uint64_t seen, numbers;
    struct list waiting;     // Answered requests whose index is not seen yet.
    struct list deliveries;  // What is told to the subscriber, oldest first.
};

// A frame's raw bytes, kept until the net has surely taken them.
struct sent {
    struct list link;
    uint64_t turn;
    struct buf bytes;
};

struct inline_exec {
    struct exec exec;
    struct list done;
};

struct metastore {
    struct metastore_config config;
    char *dir;  // config.dir.
    struct meta_fsm fsm;
    struct inline_exec inline_exec;
    struct worker *workers;  // Each entry is its worker's.
    _Atomic bool shared_is_damaged;
    _Atomic uint64_t shared_commit;  // Highest commit index known; relaxed, it only delays.
    uint64_t session;

    // Worker 0.
    struct host *host;
    struct group *group;
    struct host_watcher watcher;
    struct map requests;  // Counter -> struct request.
    uint64_t counter;
    uint64_t due;       // Earliest deadline or resend of them.
    struct list ended;  // Requests with a result, not told yet: never from inside a walk of the table.
    struct list sent;
    uint64_t turn;
    bool is_kicked;     // Leader or links changed: try everything again.
    bool is_loaded;     // Workers have been told a tree, or it is under way.
    uint64_t proof_at;  // When to try to prove the store (UINT64_MAX: under way or done).
    uint64_t proof_log_at;
    uint64_t applied, clock_ms, nodes, bytes;  // As of the newest job done.
    uint64_t uncommitted_since;                // 0: nothing is uncommitted.
    bool is_leader;
    uint64_t term;
    uint32_t leader_node;
    uint64_t stamp_base_ms, stamp_base_ns;
    void (*on_trigger)(void *ctx, const struct meta_trigger_event *e);
    void *on_trigger_ctx;
    uint64_t events_told;  // While leading.
};

static inline uint64_t metastore_now(const struct metastore *m)
{
    return clock_mono_ns(m->config.clock);
}

// requests.c, worker 0.
void request_start(void *arg);
struct request *request_create(struct metastore *m, uint32_t worker, enum request_kind kind,
                               uint32_t timeout_ms, meta_done_fn *done, void *ctx);
void request_free(struct request *r);
void requests_turn(struct metastore *m, uint64_t at);  // Deadlines and resends.
void requests_applied(struct metastore *m,
                      const struct buf *results);  // A job's results, and m->applied has risen.
void requests_answer(struct metastore *m);         // Tells what has ended.
void requests_on_frame(void *ctx, uint32_t node, enum net_lane lane, const struct frame *f);
void requests_stamps_begin(struct metastore *m);     // It leads now.

// metastore.c, worker 0.
void metastore_proof_done(struct metastore *m, enum rc rc);
void metastore_post(struct metastore *m, uint32_t worker, void (*fn)(void *), void *arg);
