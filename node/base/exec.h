// SPDX-License-Identifier: Apache-2.0
// Work handed to another thread and back: cold reads, segment writing, snapshot encoding, LMDB.
//
// A job's `run` is called on the executor's thread and may block on the disk; then `done` is called on the thread
// that submitted it. The submitter owns the struct (embedded) from done on. Executors run jobs of one submitter in
// order. In the simulator both calls are events of the scheduler. Driver: node/server/thread.c.
#pragma once
#include "node/base/list.h"

struct job {
    struct list link;                // For the executor.
    void (*run)(struct job *job);    // Executor's thread.
    void (*done)(struct job *job);   // Submitter's thread.
    void *submitter;                 // For the executor: where `done` must be called.
};

struct exec {
    // Never fails and never blocks: bounded by the submitters' own limits.
    void (*submit)(struct exec *exec, struct job *job);
};

static inline void exec_submit(struct exec *e, struct job *j)
{
    e->submit(e, j);
}
