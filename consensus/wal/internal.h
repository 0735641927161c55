// SPDX-License-Identifier: Apache-2.0
// Inside of the WAL core, shared by wal.c (writing), files.c (files and pool), recovery.c and wal_thread.c.
// Owner thread of everything here: the driver's.
#pragma once
#include "consensus/wal/format.h"
#include "consensus/wal/wal.h"
#include "node/base/env.h"

enum {
    WAL_RESERVE_MAX = 1,
    WAL_POOL_MAX = 3,          // Retired files kept for reuse; more are removed. A reserve of 192 MiB at the
                               // default size.
    WAL_START_ROOM_BYTES = 8 << 10,  // A file that a start begins has room for so much more, however full the disk is.
    WAL_MERGE_FRACTION = 16,   // At start a last file less full than 1/16 is copied into the new one, so that a node
                               // that is restarted over and over does not leave a file behind each time.
    WAL_FILL_BYTES = 256 << 10,  // Zeros written at a time (wal_fill).
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
    uint64_t limit;           // Where batches end in that file.
    uint64_t padded_bytes;
    struct wal_batch_disk head;
    struct iovec *iov;
    int iov_count;
    int iov_cap;
    // The slice of a region that is written with it, and synced by the same sync.
    uint64_t slice_offset;
    uint64_t slice_bytes;
    struct iovec *slice_iov;
    int slice_count;
    int slice_cap;
    bool ends_region;         // It holds the region's record.
};

// The region being written (region.c): room at the end of the file for the records of a large submission.
struct wal_region {
    struct wal_submission *of;  // NULL: none is open.
    uint64_t offset;            // In the current file.
    uint64_t taken;             // Bytes composed into slices so far.
    uint32_t at_range;          // Range and byte where the next slice begins.
    uint32_t at_byte;
    uint8_t record[RECORD_HEADER_BYTES + 16];
};

enum { WAL_BLOCKED_MAX = 64 };  // Groups passed over in one look at the waiting ones; what is behind more waits.

struct wal {
    struct wal_config config;  // `dir` is our own copy.
    char *dir;
    struct rng rng;
    // Submissions.
    struct list waiting;      // In order; the first one from range `cursor` on.
    uint32_t cursor;
    struct list composed;     // Wholly in the batch that is being written, or before it.
    uint64_t pending_bytes;   // Of all lists.
    struct list named;        // Submissions that name a group and are not composed, in order.
    uint64_t submitted;       // Ordinary ones so far, and those of them composed.
    uint64_t taken;
    struct wal_region region;
    struct wal_batch batch;
    // Files.
    struct list files;        // struct wal_file, oldest first; the current one is the last.
    uint32_t files_count;
    struct disk_file *file;   // The current one, NULL before the first was begun.
    uint64_t seq;             // Its number; without one the highest number ever seen.
    uint64_t file_bytes;
    uint64_t offset;          // Where the next batch goes.
    uint64_t limit;           // Where batches end: the lowest region of the file, or its end.
    uint64_t salt;
    uint64_t prev_seq;        // For the next file header.
    uint64_t prev_last;
    uint64_t pool[WAL_POOL_MAX];  // Numbers of free files.
    uint32_t pool_count;
    bool shared_is_frugal;    // wal_set_frugal; relaxed.
    uint64_t fill_at;         // In the current file; UINT64_MAX: nothing is left. See wal_fill.
    uint64_t fill_free;       // The same of a free file, the one with this number.
    uint64_t fill_free_at;
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

// wal_write_small without asking others for their room.
MUST_USE enum rc wal_write_own(struct wal *w);
// Forgets the composed batch and all submissions, as a crash would.
void wal_abandon(struct wal *w);

// Adds to a list of vectors that grows.
static inline void wal_iov_add(struct iovec **iov, int *count, int *cap, const void *ptr, uint64_t len)
{
    if (*count == *cap) {
        *cap = *cap == 0 ? 64 : *cap * 2;
        *iov = mem_realloc(*iov, (size_t)*cap * sizeof(**iov));
    }
    (*iov)[(*count)++] = (struct iovec){.iov_base = (void *)(uintptr_t)ptr, .iov_len = len};
}
// Tells the submitter, with result `rc`.
void wal_submission_done(struct wal *w, struct list *item, enum rc rc);
// Writes the composed batch to `f`, with the file header if it rolls, and its slice. Not synced.
MUST_USE enum rc wal_batch_write(struct wal *w, struct disk_file *f);

// region.c
// Takes the submission out of `named` that may go next if it is at most `bytes_max` long (or, is_large,
// longer); NULL: none.
struct wal_submission *wal_named_take(struct wal *w, uint64_t bytes_max, bool is_large);
// The same without taking it.
struct wal_submission *wal_named_next(const struct wal *w, uint64_t bytes_max, bool is_large);
// Room that a region for so many bytes wants in a file, beside what batches need.
uint64_t wal_region_room(const struct wal *w, uint64_t bytes);
// Room that batches must leave for the record of the open region.
uint64_t wal_region_reserve(const struct wal *w);
// Opens the region at the end of the file of the batch being composed.
void wal_region_open(struct wal *w, struct wal_submission *s);
// Takes the next slice, at most `bytes_max`, into the batch; with the last one the region's record too.
void wal_region_slice(struct wal *w, uint64_t bytes_max);
// The batch is durable: if the region ends with it, moves its submission to `done`.
void wal_region_complete(struct wal *w, struct list *done);

// files.c
void wal_free_path(const struct wal *w, uint64_t seq, char out[WAL_PATH_MAX]);
struct wal_file *wal_file_add(struct wal *w, uint64_t seq, uint64_t bytes);
// Fills header_page for the file that the composed batch begins.
void wal_file_prepare(struct wal *w, uint64_t salt);
// Begins the new file with the composed batch: header, batch, sync, rename to its name, directory sync.
MUST_USE enum rc wal_file_begin(struct wal *w, struct disk_file **out);
// A file nobody needs any more goes to the pool or is removed. Failing to do so is harmless and only logged.
void wal_file_discard(struct wal *w, uint64_t seq, uint64_t bytes);
