// SPDX-License-Identifier: Apache-2.0
// Reading records from WAL files and segments, verified, with read-ahead. One per worker; used only inside
// jobs, which the executor runs in order, so it belongs to the cold thread of the moment.
#pragma once
#include "consensus/store/segment.h"
#include "consensus/wal/wal.h"
#include "node/base/buf.h"

enum {
    COLD_AHEAD_MIN = 16 << 10,
    COLD_AHEAD_MAX = 1 << 20,
    COLD_LARGE_BYTES = 4 << 20,  // Records above this are copied in pieces.
    COLD_PAGES = 64,  // Pages of offset arrays kept: 1 MiB a worker.
    COLD_PAGE_BYTES = 16 << 10,
};

// Names a file: a WAL file, or a segment if `is_segment`.
struct cold_file {
    uint64_t seq;
    bool is_segment;
};

struct cold_page {
    uint64_t seq;   // Segment; 0 free.
    uint64_t page;  // Number in the file.
    uint32_t len;   // Valid bytes.
    uint8_t *ptr;
};

struct cold {
    struct disk *disk;
    struct cold_file open;   // Of `file`.
    struct disk_file *file;  // Only within a job.
    uint8_t *buf;            // Read-ahead.
    size_t buf_cap;
    size_t buf_len;
    uint64_t buf_pos;  // File position of buf[0].
    struct cold_file buf_file;
    size_t ahead;  // Next read.
    struct cold_page pages[COLD_PAGES];
};

void cold_init(struct cold *c, struct disk *disk);
void cold_deinit(struct cold *c);
// Ends a job: closes the file, gives back an oversized buffer.
void cold_end(struct cold *c);
// The record at `position`, its sum checked, and that it is (group, index) if `index` is not 0. Borrowed
// until the next call. RC_CORRUPT, RC_IO, RC_NO_FILE.
MUST_USE enum rc cold_record(struct cold *c, struct cold_file f, uint64_t position, uint64_t group,
                             uint64_t index, struct record_disk *r, struct span *out);
// The size of the record at `position` if it is so large that it should not be read as a whole, else 0.
MUST_USE enum rc cold_large_size(struct cold *c, struct cold_file f, uint64_t position, uint64_t *size);
// A record piece by piece, checked at the end: RC_CORRUPT comes after the pieces. `piece` returning an error ends it.
typedef enum rc cold_piece_fn(void *ctx, struct span piece);
MUST_USE enum rc cold_stream(struct cold *c, struct cold_file f, uint64_t position, uint64_t group, uint64_t index,
                             struct record_disk *r, cold_piece_fn *piece, void *ctx);
// Has [position, position + len) brought into the system's cache, in order, and waits until its end is there. For what is then
// read from here and there. A hint: what cannot be read shows when it is.
void cold_prefetch(struct cold *c, struct cold_file f, uint64_t position, uint64_t len);
// Moves the record just read to the empty `to` without copying it, if it is a large one. False: it has to be copied.
bool cold_take(struct cold *c, struct span record, struct buf *to);
// File position of `index` in a run. RC_NOT_FOUND: the run has a hole there.
MUST_USE enum rc cold_run_position(struct cold *c, const struct run *run, uint64_t index, uint64_t *position);
