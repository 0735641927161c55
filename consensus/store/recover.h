// SPDX-License-Identifier: Apache-2.0
// What the files of recovery share: everything found of each group, and the steps in their order. Private to
// recover*.c.
//
// Thread: the one that opens the store; nothing else runs yet.
#pragma once
#include "consensus/store/core.h"

struct config_at {
    uint64_t index;
    struct config config;
};

// What is being put together of one group.
struct finding {
    struct glog *log;
    bool exists;  // In the checkpoint, or records after it and no tombstone behind them.
    bool is_amnesiac;
    bool is_hiding;          // A damaged record may be a later replica's.
    bool has_live;           // Of the checkpoint's line.
    uint64_t line_snapshot;  // The checkpoint's snapshot index.
    uint64_t installed;      // Of the last snapshot that was received, by its mark in the log.
    struct buf line_config;  // Encoded.
    uint64_t line_config_index;
    uint64_t dense_last;
    struct term_run *terms;  // Of the window's entries.
    uint32_t terms_count;
    uint32_t terms_cap;
    struct config_at *configs;  // In the window, ascending.
    uint32_t configs_count;
    uint64_t window_bytes;
};

struct found_run {
    struct run_disk disk;
    struct segment *segment;
};

struct recovery {
    struct store *store;
    struct map groups;  // u64 -> struct finding.
    uint64_t checkpoint_seq;
    bool has_checkpoint;
    bool is_corrupt;         // Damage that cannot be pinned to groups.
    bool is_later;           // Something was written by a later version: no damage, but nothing we could go on from.
    struct buf runs;         // struct found_run.
    struct buf segments;     // struct segment *.
    struct buf seqs;         // u64: segment numbers found.
    struct buf checkpoints;  // u64.
    struct buf junk;         // Names to remove, NUL-terminated.
    // WAL replay.
    uint64_t file_seq;
    uint32_t *chunks;  // Per worker: chunk of file_seq.
    bool *has_chunk;
    struct buf files;  // u64: WAL files met.
};

// ---- recover_read.c: what is on disk
// ----------------------------------------------------------------------------

// Lists the directory of segments and checkpoints, and removes what was never finished. Errors of the disk.
MUST_USE enum rc recover_names(struct recovery *r);
// Reads the newest checkpoint. Damage is noted in `is_corrupt`, not returned.
MUST_USE enum rc recover_checkpoint(struct recovery *r);
// Reads the tables of all segments. A damaged one is left out: who needs it will miss it.
MUST_USE enum rc recover_segments(struct recovery *r);
// For wal_open: one record of the WAL (wal_replay_fn), a group with a damaged record; then once, after the
// last.
enum rc recover_record(void *ctx, const struct wal_recovered *e);
void recover_corrupt_group(void *ctx, uint64_t group);
void recover_replay_end(struct recovery *r);
// Drops what is known of indexes >= from, from every part of the finding.
void finding_cut(struct finding *f, uint64_t from);
uint64_t recover_u64_at(const struct buf *b, size_t i);  // The i-th of a buf of u64.
int recover_compare_u64(const void *a, const void *b);   // For qsort.

// ---- recover_assemble.c: putting the groups together
// --------------------------------------------------------------

// Builds every group's log out of what was found and tells `each` of it. What is missing makes the group
// amnesiac.
void recover_assemble(struct recovery *r, store_group_fn *each, void *each_ctx);
