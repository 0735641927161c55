// SPDX-License-Identifier: Apache-2.0
// Inside of recovery, shared by recovery.c (files, the chain, the new file) and recovery_scan.c (what one file holds).
// Runs once, before the threads start.
#pragma once
#include "consensus/wal/internal.h"

struct scan_batch {
    uint64_t offset;          // Of the batch in its file.
    struct wal_batch_disk head;
    bool has_bad_body;        // Proven durable, but some record's sum differs.
    bool has_bad_region;      // Proven durable, but the frames of its region are not as they were.
    // Where its records stand from now on, those of its region apart.
    uint64_t seq, records_at;
    uint64_t region_seq, region_at;
    struct wal_region_disk region;  // bytes = 0: it ends none.
};

// Bytes of the batch's own records, without that of its region.
static inline uint64_t scan_batch_records(const struct scan_batch *b)
{
    return b->head.total_len - WAL_BATCH_HEADER_BYTES - (b->region.bytes > 0 ? b->region.record_bytes : 0);
}

struct scan_file {
    uint64_t seq;             // From the name.
    uint64_t bytes;           // Size found.
    bool is_header_ok;
    bool is_chained;          // Part of the log.
    bool has_gap_before;      // The file it continues is missing.
    bool is_empty;            // Nothing but marks: nobody knows of it who would retire it.
    struct wal_header_disk header;
};

enum scan_end {
    SCAN_END,      // Everything up to the limit, or the end of what was written.
    SCAN_CUT,      // Ended at an unsynced tail.
    SCAN_CORRUPT,  // Ended at damage that leaves nothing to trust.
};

struct recovery {
    struct wal *w;
    const struct wal_config *config;
    uint64_t first_seq;
    wal_replay_fn *replay;
    void *replay_ctx;
    void (*on_corrupt_group)(void *ctx, uint64_t group);
    struct wal_report *report;

    struct scan_file *files;
    uint32_t files_count, files_cap;
    uint64_t *free_files;
    uint32_t free_count, free_cap;
    enum rc list_rc;

    // The file being read, seen through a window: the tail of a file is mostly unused, and touching that much memory
    // costs more than reading it.
    struct disk_file *file;
    uint64_t file_bytes;
    uint8_t *bytes;           // [bytes_from, bytes_from + bytes_len) of the file.
    uint64_t bytes_from, bytes_len, bytes_cap;
    enum rc read_rc;          // First failed read.
    struct scan_batch *batches;  // Of that file.
    uint32_t batches_count, batches_cap;

    uint64_t proof;           // Highest synced-through of the chain's headers and the batches met.
    uint64_t batch_seen;      // Highest batch number met anywhere.
};

#define GROW(array, count, cap)                                                                    \
    do {                                                                                           \
        if ((count) == (cap)) {                                                                    \
            (cap) = (cap) == 0 ? 16 : (cap) * 2;                                                   \
            (array) = mem_realloc((array), (cap) * sizeof(*(array)));                              \
        }                                                                                          \
    } while (0)

static inline uint64_t wal_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

// Opens the file for the window.
MUST_USE enum rc recovery_file_load(struct recovery *r, const struct scan_file *f);
// Bytes [pos, pos + need) of the file, or NULL if it ends before or cannot be read. Valid until the next call.
const uint8_t *recovery_window(struct recovery *r, uint64_t pos, uint64_t need);
// Fills r->batches with what counts in the loaded file, up to batch `limit`. `is_direct`: replays each as it is met,
// because it stays where it is.
MUST_USE enum rc recovery_file_scan(struct recovery *r, const struct scan_file *f, uint64_t limit, bool is_direct,
                                    enum scan_end *end);
// recovery_full.c: a start without room. The last file that counts is loaded and scanned.
// Writes what nothing vouches for in it again, to where it stands, and syncs it.
MUST_USE enum rc recovery_tail_secure(struct recovery *r, const struct scan_file *last);
// Makes it the current file of the log, behind what counts in it. False: it cannot be.
MUST_USE bool recovery_file_adopt(struct recovery *r, const struct scan_file *last);
// The log has no current file: its next batch begins one, when there is room. NULL: what its header will say of the log
// before it stands already.
void recovery_without_file(struct recovery *r, const struct scan_file *last);
// Replays the records of one batch of the loaded file, and of the region that ends with it.
MUST_USE enum rc recovery_batch_replay(struct recovery *r, const struct scan_batch *b);
