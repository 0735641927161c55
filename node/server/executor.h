// SPDX-License-Identifier: Apache-2.0
// A thread that may block: runs jobs in the order in which they came and gives them back to their submitter. The cold
// thread and the meta thread (decision 5) are executors.
#pragma once
#include "node/base/exec.h"
#include "node/base/rc.h"
#include <stdint.h>

struct executor;

struct executor_config {
    const char *name;    // Thread name, at most 15 bytes.
    uint32_t submitters;  // Workers 0..submitters-1.
    // Gives a finished job back: its `done` must be called on that worker. Executor's thread.
    void (*give_back)(void *ctx, uint32_t submitter, struct job *job);
    void *ctx;
};

MUST_USE enum rc executor_start(const struct executor_config *config, struct executor **out);
// Runs what was submitted, then joins. Call when no submitter is active any more.
void executor_stop(struct executor *e);
// The seam as one submitter sees it.
struct exec *executor_port(struct executor *e, uint32_t submitter);
