// SPDX-License-Identifier: Apache-2.0
// Inside of the WAL core, shared by wal.c (writing), files.c (files and pool), recovery.c and wal_thread.c.
// Owner thread of everything here: the driver's.
#pragma once
#include "consensus/wal/format.h"
#include "consensus/wal/wal.h"
#include "node/base/env.h"

enum {
    WAL_POOL_MAX = 3,          // Retired files kept for reuse; more are removed. A reserve of 192 MiB at the default size.
    WAL_MERGE_FRACTION = 16,   // At start a last file less full than 1/16 is copied into the new one, so that a node
                               // that is restarted over and over does not leave a file behind each time.
    WAL_PATH_MAX = 512,
};
// Distance of the first batch number after a recovery from the highest one seen, so that no number is used twice even
// if the torn tail held some that can no longer be read.
#define WAL_BATCH_GAP 1024u

struct wal_file {
    struct list link;
    uint64_t seq;
    uint64_t bytes;    // Preallocated size.
    bool is_retired;   // wal_retire was called; leaves once it is the oldest.
    bool is_empty;     // Found without records: retired with the next younger one.
};

// The batch being composed and written. iov[0] is the file header (used only when a file is begun), iov[1] the batch
// header, then the ranges, then the padding.
struct wal_batch {
    bool is_composed;
    bool is_roll;             // The batch begins a new file.
    uint64_t file_bytes;      // Size of that new file.
    uint64_t offset;          // In its file.
    uint64_t padded_bytes;
    struct wal_batch_disk head;
    struct iovec *iov;
    int iov_count;
    int iov_cap;
};

struct wal {
    struct wal_config config;  // `dir` is our own copy.
    char *dir;
    struct rng rng;
    // Submissions.
    struct list waiting;      // In order; the first one from range `cursor` on.
    uint32_t cursor;
    struct list composed;     // Wholly in the batch that is being written, or before it.
    uint64_t pending_bytes;   // Of both lists.
    struct wal_batch batch;
    // Files.
    struct list files;        // struct wal_file, oldest first; the current one is the last.
    uint32_t files_count;
    struct disk_file *file;   // The current one, NULL before the first was begun.
    uint64_t seq;             // Its number; without one the highest number ever seen.
    uint64_t file_bytes;
    uint64_t offset;          // Where the next batch goes.
    uint64_t salt;
    uint64_t prev_seq;        // For the next file header.
    uint64_t prev_last;
    uint64_t pool[WAL_POOL_MAX];  // Numbers of free files.
    uint32_t pool_count;
    bool pool_is_dirty;       // The pool's renames are not known durable: sync the directory before reusing a file.
    // Batches.
    uint64_t batch_next;      // Number of the next batch.
    uint64_t batch_synced;    // Highest number known durable.
    bool needs_mark;          // The last batch holds records and no later one vouches for it.
    bool has_failed;
    uint8_t header_page[WAL_HEADER_BYTES];
};

struct wal *wal_create(const struct wal_config *config);
// For the thread: callbacks may be changed while nothing is waiting.
void wal_set_callbacks(struct wal *w, void (*on_file_closed)(void *ctx, uint64_t file_seq),
                       void (*on_done)(void *ctx, struct wal_submission *s), void *ctx);
// Composes everything waiting, whatever its size, into one batch that begins a new file (recovery). May be empty.
void wal_compose_whole(struct wal *w);

// files.c
void wal_free_path(const struct wal *w, uint64_t seq, char out[WAL_PATH_MAX]);
struct wal_file *wal_file_add(struct wal *w, uint64_t seq, uint64_t bytes);
// Fills header_page for the file that the composed batch begins.
void wal_file_prepare(struct wal *w, uint64_t salt);
// Begins the new file with the composed batch: header, batch, sync, rename to its name, directory sync.
MUST_USE enum rc wal_file_begin(struct wal *w, struct disk_file **out);
// A file nobody needs any more goes to the pool or is removed. Failing to do so is harmless and only logged.
void wal_file_discard(struct wal *w, uint64_t seq, uint64_t bytes);
