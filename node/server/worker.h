// SPDX-License-Identifier: Apache-2.0
// A worker: one libuv loop that owns client connections, group shards and (worker 0) the links to other nodes.
//
// The turn (node/README.md) runs once per loop iteration, before the loop waits. Others reach a worker only through its
// mailbox: worker_post from any thread.
#pragma once
#include "node/base/exec.h"
#include "node/base/rc.h"
#include <stdint.h>
#include <uv.h>

struct worker;

struct worker_config {
    uint32_t number;
    const char *name;  // Thread name.
    // The turn: everything this worker does besides socket callbacks. Returns the monotonic ns at which it wants to run
    // again at the latest (UINT64_MAX: when something arrives; 0: at once).
    uint64_t (*turn)(void *ctx);
    // First and last thing on the worker's thread.
    void (*started)(void *ctx);
    void (*stopping)(void *ctx);
    void *ctx;
};

MUST_USE enum rc worker_create(const struct worker_config *config, struct worker **out);
MUST_USE enum rc worker_start(struct worker *w);  // Starts the thread.
// Asks the loop to end: `stopping` runs on the worker's thread and closes its handles. Then join.
void worker_stop(struct worker *w);
void worker_join(struct worker *w);
void worker_destroy(struct worker *w);

uv_loop_t *worker_loop(struct worker *w);
// Runs fn(arg) on the worker before its next turn. Any thread; order is kept per calling thread.
void worker_post(struct worker *w, void (*fn)(void *arg), void *arg);
// Calls job->done on the worker. Any thread (executors).
void worker_give_back(struct worker *w, struct job *job);
// Makes the worker run a turn soon. Any thread.
void worker_wake(struct worker *w);
