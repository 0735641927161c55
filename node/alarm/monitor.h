// SPDX-License-Identifier: Apache-2.0
// Watches this process's memory and the room on its disk, and says when an alarm begins or ends.
//
// Lives on the admin thread's loop: asking the file system may wait for it. Limits are changed and answers
// given by posts.
#pragma once
#include "node/alarm/limits.h"
#include <stdatomic.h>
#include <uv.h>

struct monitor;

struct monitor_config {
    const char *path;  // Of the data; borrowed.
    struct alarm_limits limits;
    uint64_t memory_total;
    void (*post)(void *ctx, uint32_t worker, void (*fn)(void *arg), void *arg);
    // Worker 0: the alarms of this node are now these.
    void (*changed)(void *ctx, uint32_t bits);
    void *ctx;
};

// As seen last.
struct monitor_view {
    struct alarm_limits limits;
    uint64_t memory_total, memory_limit, memory_used;
    uint64_t disk_limit, disk_free;  // UINT64_MAX: not known.
};

// Before the threads start. What `config` borrows outlives it. Never NULL.
struct monitor *monitor_create(const struct monitor_config *config);
// The first thing on the admin thread, with its loop, before it runs. The timers end with the loop.
void monitor_begin(struct monitor *m, uv_loop_t *loop);
// Worker 0. New limits: looked at once, told through `changed` if that changes an alarm, then `done` on
// worker 0. One call at a time from worker 0; any number may be under way.
void monitor_set_limits(struct monitor *m, const struct alarm_limits *limits, void (*done)(void *arg), void *arg);
// Worker 0: what was seen last; borrowed, changes with later posts.
const struct monitor_view *monitor_view(const struct monitor *m);
// After the admin thread and worker 0 have ended.
void monitor_destroy(struct monitor *m);
