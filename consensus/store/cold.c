// SPDX-License-Identifier: Apache-2.0
// Problem: a cold backlog must drain at the disk's speed although it is read in small jobs, entry by entry,
// and a single read far away must stay cheap. Idea: one read-ahead buffer that outlives the job; each read
// that goes on where the last one ended doubles the amount read, a jump starts small again.
//
// The buffer may hold what was in a file before it was written further: a record that does not check is read
// once more from the file before it is called corrupt. File numbers are never reused, so a buffer is never of
// another file.
#include "consensus/store/cold.h"
#include "node/base/crc32c.h"
#include <stdlib.h>

void cold_init(struct cold *c, struct disk *disk)
{
    *c = (struct cold){.disk = disk, .ahead = COLD_AHEAD_MIN};
}

void cold_deinit(struct cold *c)
{
    cold_end(c);
    free(c->buf);
    for (int i = 0; i < COLD_PAGES; i++) {
        free(c->pages[i].ptr);
    }
    *c = (struct cold){0};
}

void cold_end(struct cold *c)
{
    if (c->file != NULL) {
        c->disk->close(c->file);
        c->file = NULL;
    }
    if (c->buf_cap > COLD_AHEAD_MAX) {
        free(c->buf);
        c->buf = NULL;
        c->buf_cap = c->buf_len = 0;
    }
}

static enum rc file_open(struct cold *c, struct cold_file f)
{
    if (c->file != NULL && c->open.seq == f.seq && c->open.is_segment == f.is_segment) {
        return RC_OK;
    }
    if (c->file != NULL) {
        c->disk->close(c->file);
        c->file = NULL;
    }
    char path[SEGMENT_PATH_MAX];
    if (f.is_segment) {
        segment_path(f.seq, true, path);
    } else {
        wal_file_path("wal", f.seq, path, sizeof(path));
    }
    TRY(c->disk->open(c->disk, path, DISK_READ, &c->file));
    c->open = f;
    return RC_OK;
}

// Reads at least `need` bytes at `position` into the buffer if the file has them, `ahead` if that is more.
static enum rc fill(struct cold *c, struct cold_file f, uint64_t position, size_t need)
{
    TRY(file_open(c, f));
    size_t want = c->ahead > need ? c->ahead : need;
    if (c->buf_cap < want) {
        size_t cap = want > COLD_AHEAD_MAX ? want : want * 2 > COLD_AHEAD_MAX ? COLD_AHEAD_MAX : want * 2;
        free(c->buf);
        c->buf = mem_alloc(cap);
        c->buf_cap = cap;
    }
    c->buf_len = 0;
    TRY(c->disk->read(c->file, position, c->buf, want, &c->buf_len));
    c->buf_pos = position;
    c->buf_file = f;
    return RC_OK;
}

static bool is_buffered(const struct cold *c, struct cold_file f, uint64_t position, size_t len)
{
    return c->buf_len > 0 && c->buf_file.seq == f.seq && c->buf_file.is_segment == f.is_segment &&
           position >= c->buf_pos && position - c->buf_pos + len <= c->buf_len;
}

// Chooses how much to read: twice as much as before if we go on about where the buffer ends.
static void choose_ahead(struct cold *c, struct cold_file f, uint64_t position)
{
    bool goes_on = c->buf_len > 0 && c->buf_file.seq == f.seq && c->buf_file.is_segment == f.is_segment &&
                   position >= c->buf_pos && position - c->buf_pos <= c->buf_len + c->ahead;
    if (!goes_on) {
        c->ahead = COLD_AHEAD_MIN;
    } else if (c->ahead < COLD_AHEAD_MAX) {
        c->ahead *= 2;
    }
}

static enum rc check(struct cold *c, struct cold_file f, uint64_t position, uint64_t group, uint64_t index,
                     struct record_disk *r, struct span *out)
{
    if (!is_buffered(c, f, position, RECORD_HEADER_BYTES)) {
        choose_ahead(c, f, position);
        TRY(fill(c, f, position, RECORD_HEADER_BYTES));
    }
    size_t at = position - c->buf_pos;
    uint64_t size = 0;
    enum rc rc = record_peek(span_of(c->buf + at, c->buf_len - at), r, &size);
    if (rc == RC_MORE && c->buf_len - at >= RECORD_HEADER_BYTES) {
        choose_ahead(c, f, position);
        TRY(fill(c, f, position, record_size(r->len)));
        at = 0;
        rc = record_peek(span_of(c->buf, c->buf_len), r, &size);
    }
    if (rc != RC_OK) {
        return RC_CORRUPT;
    }
    *out = span_of(c->buf + at, size);
    TRY(record_check(*out, r, &size));
    return r->group == group && (index == 0 || r->index == index) ? RC_OK : RC_CORRUPT;
}

enum rc cold_record(struct cold *c, struct cold_file f, uint64_t position, uint64_t group, uint64_t index,
                    struct record_disk *r, struct span *out)
{
    bool was_buffered = is_buffered(c, f, position, RECORD_HEADER_BYTES);
    enum rc rc = check(c, f, position, group, index, r, out);
    if (rc == RC_CORRUPT && was_buffered) {
        c->buf_len = 0;
        rc = check(c, f, position, group, index, r, out);
    }
    if (rc != RC_OK) {
        c->buf_len = 0;
    }
    return rc;
}

// Size of the record at `position`, which is in the buffer, if it is a large one; else 0.
static uint64_t large_size(const struct cold *c, uint64_t position)
{
    struct record_disk r;
    uint64_t n = 0;
    const size_t at = position - c->buf_pos;
    const enum rc rc = record_peek(span_of(c->buf + at, c->buf_len - at), &r, &n);
    n = rc == RC_MORE && c->buf_len - at >= RECORD_HEADER_BYTES ? record_size(r.len) : 0;
    return n > COLD_LARGE_BYTES ? n : 0;
}

enum rc cold_large_size(struct cold *c, struct cold_file f, uint64_t position, uint64_t *size)
{
    const bool was_buffered = is_buffered(c, f, position, RECORD_HEADER_BYTES);
    if (!was_buffered) {
        choose_ahead(c, f, position);
        TRY(fill(c, f, position, RECORD_HEADER_BYTES));
    }
    *size = large_size(c, position);
    if (*size > 0 && was_buffered) {
        // What was read ahead may be of the file's life before (a recycled WAL file). Else: reading it as a
        // whole looks twice.
        TRY(fill(c, f, position, RECORD_HEADER_BYTES));
        *size = large_size(c, position);
    }
    return RC_OK;
}

enum rc cold_stream(struct cold *c, struct cold_file f, uint64_t position, uint64_t group, uint64_t index,
                    struct record_disk *r, cold_piece_fn *piece, void *ctx)
{
    uint64_t size = RECORD_HEADER_BYTES, used = 0;
    uint32_t crc = 0;
    for (uint64_t at = 0; at < size;) {
        const uint64_t n = at == 0 || size - at > COLD_AHEAD_MAX ? COLD_AHEAD_MAX : size - at;
        TRY(fill(c, f, position + at, n));
        if (at == 0) {
            uint64_t ignored;
            const enum rc rc = record_peek(span_of(c->buf, c->buf_len), r, &ignored);
            if (rc != RC_MORE || r->group != group || r->index != index || record_size(r->len) <= COLD_LARGE_BYTES) {
                return RC_CORRUPT;
            }
            size = record_size(r->len);
            used = RECORD_HEADER_BYTES + (uint64_t)r->len;
        }
        if (c->buf_len < n) {
            return RC_CORRUPT;  // The file ends in it.
        }
        const uint64_t skip = at == 0 ? 4 : 0;  // The sum does not cover itself nor the padding.
        const uint64_t summed = at + n < used ? n : used > at ? used - at : 0;
        if (summed > skip) {
            crc = crc32c(crc, c->buf + skip, summed - skip);
        }
        TRY(piece(ctx, span_of(c->buf, n)));
        at += n;
    }
    c->buf_len = 0;
    return crc == r->crc ? RC_OK : RC_CORRUPT;
}

void cold_prefetch(struct cold *c, struct cold_file f, uint64_t position, uint64_t len)
{
    uint8_t last;
    size_t got;
    if (c->disk->will_read != NULL && file_open(c, f) == RC_OK) {
        c->disk->will_read(c->file, position, len);
        (void)c->disk->read(c->file, position + len - 1, &last, 1, &got);
    }
}

bool cold_take(struct cold *c, struct span record, struct buf *to)
{
    if (to->len > 0 || record.ptr != c->buf || record.len <= COLD_AHEAD_MAX) {
        return false;
    }
    buf_deinit(to);
    *to = (struct buf){.ptr = c->buf, .len = record.len, .cap = c->buf_cap};
    c->buf = NULL;
    c->buf_cap = c->buf_len = 0;
    return true;
}

// ---- offset arrays ------------------------------------------------------------------------------

static enum rc page_read(struct cold *c, uint64_t seq, uint64_t number, const struct cold_page **out)
{
    struct cold_page *p = &c->pages[(seq * 31 + number) % COLD_PAGES];
    if (p->seq != seq || p->page != number) {
        TRY(file_open(c, (struct cold_file){.seq = seq, .is_segment = true}));
        if (p->ptr == NULL) {
            p->ptr = mem_alloc(COLD_PAGE_BYTES);
        }
        p->seq = 0;
        size_t got = 0;
        TRY(c->disk->read(c->file, number * COLD_PAGE_BYTES, p->ptr, COLD_PAGE_BYTES, &got));
        p->seq = seq;
        p->page = number;
        p->len = (uint32_t)got;
    }
    *out = p;
    return RC_OK;
}

static enum rc read_u32(struct cold *c, uint64_t seq, uint64_t position, uint32_t *out)
{
    const struct cold_page *p;
    TRY(page_read(c, seq, position / COLD_PAGE_BYTES, &p));
    uint32_t at = (uint32_t)(position % COLD_PAGE_BYTES);
    if (at + 4 > p->len) {
        return RC_CORRUPT;
    }
    memcpy(out, p->ptr + at, 4);
    return RC_OK;
}

enum rc cold_run_position(struct cold *c, const struct run *run, uint64_t index, uint64_t *position)
{
    assert(index >= run->first && index <= run_last(run));
    uint64_t seq = run->segment->seq;
    uint64_t arrays = (uint64_t)run->index_pos * 4;
    uint32_t delta = (uint32_t)(index - run->first);
    uint32_t at = delta;
    if (run->count != run->span + 1) {
        uint32_t low = 0, high = run->count;  // Sparse: the first distance >= delta.
        while (low < high) {
            uint32_t mid = low + (high - low) / 2, v = 0;
            TRY(read_u32(c, seq, arrays + (uint64_t)mid * 4, &v));
            if (v < delta) {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        uint32_t v = 0;
        if (low < run->count) {
            TRY(read_u32(c, seq, arrays + (uint64_t)low * 4, &v));
        }
        if (low == run->count || v != delta) {
            return RC_NOT_FOUND;
        }
        at = low;
        arrays += (uint64_t)run->count * 4;
    }
    uint32_t offset = 0;
    TRY(read_u32(c, seq, arrays + (uint64_t)at * 4, &offset));
    *position = ((uint64_t)run->base << run->segment->base_shift) + (uint64_t)offset * 8;
    return RC_OK;
}
