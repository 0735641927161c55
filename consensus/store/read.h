// SPDX-License-Identifier: Apache-2.0
// Reading entries by index from disk: planned on the worker (where is what), executed on the cold thread.
#pragma once
#include "consensus/store/core.h"

enum read_kind { READ_WAL, READ_RUN, READ_MEMORY, READ_NOWHERE };
struct read_item {
    uint64_t index;
    uint64_t seq;  // WAL file.
    uint64_t at;   // Position in the file, in `memory`, or number of the run.
    enum read_kind kind;
};

struct read_plan {
    struct store_worker *worker;
    uint64_t group;
    uint32_t epoch;  // The log's when it was planned.
    uint32_t items_count;
    struct read_item *items;
    struct buf runs;      // struct run, copies; each holds its segment.
    struct buf memory;    // Records that are not on disk yet.
    uint32_t read_count;  // Result: items read.
};

// Worker. Stops behind the first index that is nowhere.
void read_plan_begin(struct read_plan *p, struct glog *g, const uint64_t *indexes, uint32_t count);
void read_plan_end(struct read_plan *p);
// Cold thread: appends records to `to` until it holds `bytes_max` (at least one).
MUST_USE enum rc read_plan_execute(struct read_plan *p, size_t bytes_max, struct buf *to);
