// SPDX-License-Identifier: Apache-2.0
// The writing half of the write-ahead log. README.md has the format; recovery.c the reading half.
//
// Problem: many groups want their records durable, and a sync costs far more than the bytes. Idea: one log for all
// groups and one batch in the air. Whatever is submitted while a batch is written and synced waits in a list and is the
// next batch; no timer, no threshold.
//
// Invariants
// - One batch is composed, written and completed at a time, so at composition everything before it is durable:
//   `batch_synced` of every batch is the number of the one before it (except across a recovery).
// - A range lies whole in one batch, a batch whole in one file. A batch starts at a multiple of `align`.
// - Submissions complete in order, each when its last range is durable; an empty one when those before it
// are. Those that
//   name a group have an order of their own: region.c.
// - After the first failed write or sync nothing is written again and everything completes with that error
// (P6). Want of room is
//   no failure as long as nothing was synced: the batch stays composed and is written again, to the same place.
//
// Deliberately not here: threads, retries, and any knowledge of what a record means.
#include "consensus/wal/internal.h"
#include "node/base/limits.h"
#include "node/base/log.h"
#include "node/base/map.h"
#include <stdlib.h>

static const uint8_t zeros[WAL_ALIGN_MAX];

struct wal *wal_create(const struct wal_config *config)
{
    assert(config->align >= RECORD_ALIGN && config->align <= WAL_ALIGN_MAX);
    assert((config->align & (config->align - 1)) == 0);
    assert(config->file_bytes > WAL_HEADER_BYTES);
    assert(config->reserve_files <= WAL_RESERVE_MAX);
    struct wal *w = mem_zalloc(sizeof(*w));
    w->config = *config;
    w->dir = mem_strndup(config->dir, strlen(config->dir));
    w->config.dir = w->dir;
    w->config.file_bytes = wal_round_up(config->file_bytes, WAL_ALIGN_MAX);
    rng_seed(&w->rng, config->random);
    list_init(&w->waiting);
    list_init(&w->composed);
    list_init(&w->named);
    list_init(&w->files);
    w->batch_next = 1;
    if (w->config.slice_bytes == 0) {
        w->config.slice_bytes = LIMIT_WAL_SLICE_BYTES;
    }
    return w;
}

void wal_close(struct wal *w)
{
    if (w == NULL) {
        return;
    }
    assert(!w->batch.is_composed);
    if (w->file != NULL) {
        w->config.disk->close(w->file);
    }
    while (!list_is_empty(&w->files)) {
        free(list_entry(list_pop(&w->files), struct wal_file, link));
    }
    free(w->batch.iov);
    free(w->batch.slice_iov);
    free(w->dir);
    free(w);
}

void wal_set_callbacks(struct wal *w, void (*on_file_closed)(void *ctx, uint64_t file_seq),
                       void (*on_done)(void *ctx, struct wal_submission *s), void *ctx)
{
    assert(list_is_empty(&w->waiting) && list_is_empty(&w->composed));
    assert(list_is_empty(&w->named) && w->region.of == NULL);
    w->config.on_file_closed = on_file_closed;
    w->config.on_done = on_done;
    w->config.ctx = ctx;
}

void wal_submit(struct wal *w, struct wal_submission *s)
{
    assert(s->ranges_count > 0 || s->bytes == 0);
    if (s->group != 0) {
        s->after = w->submitted;
        list_add_tail(&w->named, &s->link);
    } else {
        list_add_tail(&w->waiting, &s->link);
        w->submitted++;
    }
    w->pending_bytes += s->bytes;
}

void wal_submission_done(struct wal *w, struct list *item, enum rc rc)
{
    struct wal_submission *s = list_entry(item, struct wal_submission, link);
    assert(w->pending_bytes >= s->bytes);
    w->pending_bytes -= s->bytes;
    s->result = rc;
    if (w->config.on_done != NULL) {
        w->config.on_done(w->config.ctx, s);
    }
}

static void fail_all(struct wal *w, enum rc rc)
{
    w->cursor = 0;
    if (w->region.of != NULL) {
        list_add_tail(&w->composed, &w->region.of->link);
        w->region.of = NULL;
    }
    struct list *const lists[] = {&w->composed, &w->waiting, &w->named};
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++) {
        while (!list_is_empty(lists[i])) {
            wal_submission_done(w, list_pop(lists[i]), rc);
        }
    }
}

// ---- composing -------------------------------------------------------------------------------------------------

static void iov_add(struct wal_batch *b, const void *ptr, uint64_t len)
{
    wal_iov_add(&b->iov, &b->iov_count, &b->iov_cap, ptr, len);
}

// Starts an empty batch that will hold at least `need` bytes of records, in the current file if they fit
// beside `region` bytes for a region.
static void batch_begin(struct wal *w, uint64_t need, uint64_t region)
{
    struct wal_batch *b = &w->batch;
    assert(!b->is_composed);
    uint64_t bytes = WAL_BATCH_HEADER_BYTES + need + region;
    b->is_roll = w->file == NULL || bytes > w->limit - w->offset;
    b->offset = b->is_roll ? WAL_HEADER_BYTES : w->offset;
    b->file_bytes = w->file_bytes;
    b->limit = w->limit;
    if (b->is_roll) {
        assert(w->region.of == NULL);
        uint64_t own = wal_round_up(WAL_HEADER_BYTES + bytes, WAL_ALIGN_MAX);
        b->file_bytes = own > w->config.file_bytes ? own : w->config.file_bytes;
        b->limit = b->file_bytes;
    }
    b->iov_count = 0;
    b->slice_count = 0;
    b->slice_bytes = 0;
    b->ends_region = false;
    iov_add(b, w->header_page, WAL_HEADER_BYTES);
    iov_add(b, &b->head, WAL_BATCH_HEADER_BYTES);
    b->head = (struct wal_batch_disk){
        .magic = WAL_BATCH_MAGIC,
        .total_len = WAL_BATCH_HEADER_BYTES,
        .batch = w->batch_next,
        .synced_through = w->batch_synced,
    };
}

// Adds one range. False if the batch is full.
static bool batch_add(struct wal *w, struct wal_range *r, uint64_t bytes_max)
{
    struct wal_batch *b = &w->batch;
    assert(r->len >= RECORD_HEADER_BYTES && r->len % RECORD_ALIGN == 0);
    uint64_t total = (uint64_t)b->head.total_len + r->len;
    if (b->head.total_len > WAL_BATCH_HEADER_BYTES && total > bytes_max) {
        return false;
    }
    if (total > b->limit - b->offset - wal_region_reserve(w) || total > UINT32_MAX) {
        return false;
    }
    r->file_seq = b->is_roll ? w->seq + 1 : w->seq;
    r->file_offset = b->offset + b->head.total_len;
    struct iovec *last = &b->iov[b->iov_count - 1];
    if (b->iov_count > 2 && (const uint8_t *)last->iov_base + last->iov_len == r->ptr) {
        last->iov_len += r->len;
    } else {
        iov_add(b, r->ptr, r->len);
    }
    b->head.total_len = (uint32_t)total;
    return true;
}

// Takes ranges of waiting submissions until the batch is full; submissions that are wholly in it move to `composed`.
static void batch_gather(struct wal *w, uint64_t bytes_max)
{
    while (!list_is_empty(&w->waiting)) {
        struct wal_submission *s = list_entry(w->waiting.next, struct wal_submission, link);
        for (; w->cursor < s->ranges_count; w->cursor++) {
            if (!batch_add(w, &s->ranges[w->cursor], bytes_max)) {
                return;
            }
        }
        list_remove(&s->link);
        list_add_tail(&w->composed, &s->link);
        w->cursor = 0;
        w->taken++;
    }
}

static void batch_finish(struct wal *w)
{
    struct wal_batch *b = &w->batch;
    uint64_t salt = w->salt;
    if (b->is_roll) {
        salt = rng_next(&w->rng) ^ hash_u64(w->seq + 1);  // Differs even if every start gets the same seed.
        wal_file_prepare(w, salt);
        w->salt = salt;
    }
    uint32_t count = 0;
    uint32_t crc = wal_batch_crc_begin(salt, &b->head);
    for (int i = 2; i < b->iov_count; i++) {
        crc = wal_batch_crc_records(crc, b->iov[i].iov_base, b->iov[i].iov_len, &count);
    }
    b->head.count = count;
    b->head.crc = wal_batch_crc_end(crc, count);
    b->padded_bytes = wal_round_up(b->head.total_len, w->config.align);
    if (b->padded_bytes > b->head.total_len) {
        iov_add(b, zeros, b->padded_bytes - b->head.total_len);
    }
    assert(b->offset + b->padded_bytes <= b->limit);
    b->is_composed = true;
}

// Empty submissions with nothing before them are durable as they are.
static void complete_leading_empty(struct wal *w)
{
    while (!list_is_empty(&w->waiting) && list_entry(w->waiting.next, struct wal_submission, link)->ranges_count == 0) {
        w->taken++;
        wal_submission_done(w, list_pop(&w->waiting), RC_OK);
    }
}

// So are those that name a group of which nothing is ahead.
static void complete_empty_named(struct wal *w)
{
    for (struct wal_submission *s = wal_named_next(w, 0, false); s != NULL; s = wal_named_next(w, 0, false)) {
        list_remove(&s->link);
        wal_submission_done(w, &s->link, RC_OK);
    }
}

// Short submissions that name a group go into the batch like ordinary ones, each whole.
static void batch_gather_named(struct wal *w, uint64_t bytes_max)
{
    const struct wal_batch *b = &w->batch;
    for (;;) {
        const uint64_t room = b->limit - b->offset - wal_region_reserve(w);
        const uint64_t end = b->head.total_len == WAL_BATCH_HEADER_BYTES || bytes_max > room ? room : bytes_max;
        struct wal_submission *s = end > b->head.total_len ? wal_named_take(w, end - b->head.total_len, false) : NULL;
        if (s == NULL) {
            return;
        }
        for (uint32_t i = 0; i < s->ranges_count; i++) {
            const bool is_added = batch_add(w, &s->ranges[i], UINT64_MAX);
            assert(is_added);
        }
        list_add_tail(&w->composed, &s->link);
    }
}

bool wal_compose(struct wal *w)
{
    assert(!w->batch.is_composed);
    assert(list_is_empty(&w->composed));
    if (w->has_failed || disk_has_failed(w->config.disk)) {
        w->has_failed = true;
        fail_all(w, RC_IO);
        return false;
    }
    if (w->cursor == 0) {
        complete_leading_empty(w);
    }
    complete_empty_named(w);
    const struct wal_submission *named = wal_named_next(w, UINT64_MAX, false);
    struct wal_submission *large = w->region.of == NULL ? wal_named_take(w, 0, true) : NULL;
    const bool has_ordinary = !list_is_empty(&w->waiting);
    if (!has_ordinary && named == NULL && large == NULL && w->region.of == NULL) {
        return false;
    }
    uint64_t need = named != NULL ? named->bytes : 0;
    if (has_ordinary) {
        need = list_entry(w->waiting.next, struct wal_submission, link)->ranges[w->cursor].len;
    }
    // A file is not left while a region in it is open: the region's end comes first.
    const uint64_t least = WAL_BATCH_HEADER_BYTES + wal_region_reserve(w);
    const bool is_short_of_room = w->region.of != NULL && least + need > w->limit - w->offset;
    const bool is_last_room = is_short_of_room && (has_ordinary || least > w->limit - w->offset);
    batch_begin(w, is_short_of_room ? 0 : need, large != NULL ? wal_region_room(w, large->bytes) : 0);
    if (large != NULL) {
        wal_region_open(w, large);
    }
    if (!is_last_room) {
        const uint64_t bytes_max = w->region.of != NULL ? w->config.slice_bytes : LIMIT_WAL_BATCH_BYTES;
        batch_gather_named(w, bytes_max / 2);  // First those that waited: ordinary ones could fill every batch.
        batch_gather(w, bytes_max);
        batch_gather_named(w, bytes_max);
    }
    if (w->region.of != NULL) {
        wal_region_slice(w, is_last_room ? UINT64_MAX : w->config.slice_bytes);
    }
    batch_finish(w);
    return true;
}

bool wal_compose_mark(struct wal *w)
{
    if (!w->needs_mark || w->has_failed || disk_has_failed(w->config.disk) || !list_is_empty(&w->waiting) || w->region.of != NULL ||
        !list_is_empty(&w->named)) {
        return false;
    }
    batch_begin(w, 0, 0);
    batch_finish(w);
    return true;
}

void wal_compose_whole(struct wal *w)
{
    assert(w->file == NULL);
    batch_begin(w, w->pending_bytes, 0);
    batch_gather(w, UINT32_MAX);
    assert(list_is_empty(&w->waiting));
    batch_finish(w);
}

// ---- writing ---------------------------------------------------------------------------------------------------

enum rc wal_batch_write(struct wal *w, struct disk_file *f)
{
    struct disk *d = w->config.disk;
    const struct wal_batch *b = &w->batch;
    if (b->slice_count > 0) {
        TRY(d->writev(f, b->slice_iov, b->slice_count, b->slice_offset));
    }
    return b->is_roll ? d->writev(f, b->iov, b->iov_count, 0) : d->writev(f, b->iov + 1, b->iov_count - 1, b->offset);
}

enum rc wal_write(struct wal *w)
{
    struct disk *d = w->config.disk;
    struct wal_batch *b = &w->batch;
    assert(b->is_composed);
    enum rc rc;
    if (b->is_roll) {
        struct disk_file *f = NULL;
        rc = wal_file_begin(w, &f);
        if (rc == RC_OK) {
            if (w->file != NULL) {
                d->close(w->file);
            }
            w->file = f;
            w->fill_at = 0;
        }
    } else {
        rc = wal_batch_write(w, w->file);
        if (rc == RC_OK && d->sync(w->file) != RC_OK) {
            rc = RC_IO;  // For want of room too: batches before this one may lie in the pages that were lost.
        }
    }
    return rc;
}

static void resize(struct wal *w, uint64_t file_bytes)
{
    struct wal_header_disk h;
    w->batch.limit = w->batch.file_bytes = file_bytes;
    memcpy(&h, w->header_page, sizeof(h));
    wal_file_prepare(w, h.salt);
}

static enum rc write_small(struct wal *w, bool asks_others)
{
    struct wal_batch *b = &w->batch;
    enum rc rc = wal_write(w);
    if (rc != RC_NO_SPACE) {
        return rc;
    }
    // A region has its place at the end of the whole file; a batch in a file that exists only wants its own room.
    const bool is_fixed = !b->is_roll || w->region.of != NULL;
    const uint64_t whole = b->file_bytes;
    const uint64_t least = !b->is_roll ? b->padded_bytes + b->slice_bytes
                           : is_fixed  ? whole
                                       : wal_round_up(b->offset + b->padded_bytes + WAL_START_ROOM_BYTES, WAL_ALIGN_MAX);
    while (rc == RC_NO_SPACE && !is_fixed && b->file_bytes / 2 >= least) {
        resize(w, wal_round_up(b->file_bytes / 2, WAL_ALIGN_MAX));
        rc = wal_write(w);
    }
    // What it gives may be less than it was to be: asked until it has no more.
    while (rc == RC_NO_SPACE && asks_others && w->config.more_room != NULL &&
           w->config.more_room(w->config.more_room_ctx, least)) {
        if (!is_fixed) {
            resize(w, least);
        }
        rc = wal_write(w);
    }
    if (is_fixed) {
        return rc;
    }
    if (rc == RC_NO_SPACE) {
        resize(w, whole);
    } else if (rc == RC_OK) {
        log_warning("wal: the disk has room for a file of %llu kB only", (unsigned long long)b->file_bytes >> 10);
    }
    return rc;
}

enum rc wal_write_small(struct wal *w)
{
    return write_small(w, true);
}

enum rc wal_write_own(struct wal *w)
{
    return write_small(w, false);
}

void wal_complete(struct wal *w, enum rc rc)
{
    struct wal_batch *b = &w->batch;
    assert(b->is_composed);
    b->is_composed = false;
    if (rc != RC_OK) {
        disk_fail(w->config.disk);
        w->has_failed = true;
        fail_all(w, rc);
        return;
    }
    uint64_t closed = 0;
    if (b->is_roll) {
        closed = list_is_empty(&w->files) || w->file_bytes == 0 ? 0 : w->seq;
        w->seq++;
        w->file_bytes = b->file_bytes;
        wal_file_add(w, w->seq, b->file_bytes);
    }
    w->offset = b->offset + b->padded_bytes;
    w->limit = b->limit;
    w->batch_synced = b->head.batch;
    w->batch_next = b->head.batch + 1;
    w->prev_seq = w->seq;
    w->prev_last = b->head.batch;
    w->needs_mark = b->head.count > 0;
    // Only those of this batch: a callback may submit more.
    struct list done;
    list_init(&done);
    list_splice(&done, &w->composed);
    wal_region_complete(w, &done);
    while (!list_is_empty(&done)) {
        wal_submission_done(w, list_pop(&done), RC_OK);
    }
    if (closed != 0 && w->config.on_file_closed != NULL) {
        w->config.on_file_closed(w->config.ctx, closed);
    }
}

void wal_abandon(struct wal *w)
{
    w->batch.is_composed = false;
    list_init(&w->composed);
    list_init(&w->waiting);
    list_init(&w->named);
    w->region.of = NULL;
    w->cursor = 0;
    w->pending_bytes = 0;
    w->taken = w->submitted;
}

uint64_t wal_current_seq(const struct wal *w)
{
    return w->file != NULL ? w->seq : w->seq + 1;
}

uint32_t wal_file_count(const struct wal *w)
{
    return w->files_count;
}

uint64_t wal_pending_bytes(const struct wal *w)
{
    return w->pending_bytes;
}
