// SPDX-License-Identifier: Apache-2.0
// A compaction: what its halves share. compact.c chooses, plans and publishes on the worker; compact_copy.c
// copies on the cold thread. Private to them.
#pragma once
#include "consensus/store/core.h"

enum { COMPACT_VICTIMS_MAX = 64 };

struct victim {
    struct segment *segment;  // Held.
    struct run_disk *runs;    // Its table; freed once planned.
    uint32_t runs_count;
    enum rc rc;        // Of reading the table.
    bool is_damaged;   // Something in it does not check: it stays.
};

// A run of a group's log, or a group's snapshot, that is moved.
struct compact_item {
    uint64_t group;
    uint32_t victim;
    bool is_snapshot;
    uint64_t origin;
    uint64_t index;      // First of the run, or the snapshot's.
    struct run run;      // As it was planned; its segment is held by the victim.
    uint64_t committed;  // At or below: no version but this one.
    uint32_t ranges_at, ranges_count;  // Indexes to copy.
    uint64_t term;                     // Of the snapshot, from here on.
    uint64_t position, bytes;
    uint32_t chunks;
    // Results.
    enum rc damage;  // Not RC_OK: a record does not check.
    uint64_t new_position;
    uint32_t runs_at, runs_count;  // In the writer's runs.
};

struct compaction {
    struct plan plan;
    struct job job;
    struct store_worker *worker;
    struct victim victims[COMPACT_VICTIMS_MAX];
    uint32_t victims_count;
    uint64_t live;  // Bytes, about.
    uint64_t segment_seq;
    struct buf items;   // struct compact_item, by group and index.
    struct buf ranges;  // struct live_range.
    uint32_t items_count;
    // Copying: where it goes on. The cold thread's while a slice runs.
    struct segment_writer writer;
    bool has_writer;
    uint32_t next_item;
    uint32_t next_range;  // Of the item.
    uint64_t next_at;     // Index in the range, or offset in the snapshot's chunks.
    uint64_t file_bytes;  // Of the sealed output; 0: there is none.
    uint64_t slice_bytes;
    enum rc rc;  // RC_MORE: another slice.
    // Pace. The worker's.
    bool is_paused;        // Between slices.
    bool is_out_of_space;  // Given up, for now.
    uint64_t slice_at;     // When the last slice was started.
    uint64_t resume_at;    // 0: to be computed.
};

void compaction_copy_slice(struct job *job);  // Cold thread.
