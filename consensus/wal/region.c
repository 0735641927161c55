// SPDX-License-Identifier: Apache-2.0
// Large submissions: written in slices, so that small ones need not wait for them (decision 4).
//
// Problem: one batch is in the air at a time, and a record of 16 MiB as one batch holds up every group of the node for
// as long as its bytes take to be written and synced. Splitting it over batches would scatter what is read later as one
// piece. Idea: the record gets a *region*, room at the end of the current file. Each batch takes a slice of
// it along, in the same sync; regions grow down from the file's end, batches up from its beginning. With the
// last slice goes a record of kind RECORD_REGION, last of its batch: at this place in the log the region's
// records stand. Without it a region is nothing, so a crash half way leaves nothing to clean up.
//
// Invariants
// - One region is open at a time, and it is opened once all ordinary submissions ahead of its own are durable.
// - What is of a group goes in order: nothing that names a group is composed while something ahead of it that
// names the same
//   group is not. What is short goes into the batches like ordinary ones.
// - A file is not left while a region in it is open: positions of a group's entries ascend by file.
#include "consensus/wal/internal.h"
#include "node/base/limits.h"
#include <stdlib.h>

// ---- what goes next --------------------------------------------------------------------------------------------

struct wal_submission *wal_named_next(const struct wal *w, uint64_t bytes_max, bool is_large)
{
    uint64_t blocked[WAL_BLOCKED_MAX];
    uint32_t blocked_count = 0;
    if (w->region.of != NULL) {
        blocked[blocked_count++] = w->region.of->group;
    }
    for (struct list *l = w->named.next; l != &w->named; l = l->next) {
        struct wal_submission *s = list_entry(l, struct wal_submission, link);
        bool is_blocked = false;
        for (uint32_t i = 0; i < blocked_count && !is_blocked; i++) {
            is_blocked = blocked[i] == s->group;
        }
        if (is_blocked) {
            continue;
        }
        if (s->after <= w->taken && (s->bytes > w->config.slice_bytes) == is_large &&
            (is_large || s->bytes <= bytes_max)) {
            return s;
        }
        if (blocked_count == WAL_BLOCKED_MAX) {
            return NULL;
        }
        blocked[blocked_count++] = s->group;
    }
    return NULL;
}

struct wal_submission *wal_named_take(struct wal *w, uint64_t bytes_max, bool is_large)
{
    struct wal_submission *s = wal_named_next(w, bytes_max, is_large);
    if (s != NULL) {
        list_remove(&s->link);
    }
    return s;
}

// ---- opening ---------------------------------------------------------------------------------------------------

uint64_t wal_region_reserve(const struct wal *w)
{
    if (w->region.of == NULL) {
        return 0;
    }
    // Behind the padding of the batch before.
    return wal_round_up(WAL_BATCH_HEADER_BYTES + sizeof(w->region.record), w->config.align) + w->config.align;
}

uint64_t wal_region_room(const struct wal *w, uint64_t bytes)
{
    // Besides the bytes: their alignment, the batch with the record, and room for the batches that go between
    // the slices. If these fill that room first, the rest of the region is written at once.
    const uint64_t slices = 2 * (uint64_t)w->config.slice_bytes;
    return wal_round_up(bytes, WAL_ALIGN_MAX) + 4 * (uint64_t)WAL_ALIGN_MAX + (bytes / 4 > slices ? bytes / 4 : slices);
}

void wal_region_open(struct wal *w, struct wal_submission *s)
{
    struct wal_region *r = &w->region;
    struct wal_batch *b = &w->batch;
    assert(r->of == NULL && s->bytes > 0);
    r->of = s;
    r->offset = (b->limit - s->bytes) & ~(uint64_t)(WAL_ALIGN_MAX - 1);
    b->limit = r->offset;
    r->taken = 0;
    r->at_range = 0;
    r->at_byte = 0;
    uint64_t at = r->offset;
    for (uint32_t k = 0; k < s->ranges_count; k++) {
        s->ranges[k].file_seq = b->is_roll ? w->seq + 1 : w->seq;
        s->ranges[k].file_offset = at;
        at += s->ranges[k].len;
    }
    assert(at == r->offset + s->bytes);
}

// ---- slices ----------------------------------------------------------------------------------------------------

// The sum over the frames of the region's records keeps their lengths readable where a body is damaged, as a batch's
// sum does for its own. It has no salt: the batch that holds it has.
static void record_make(struct wal *w)
{
    struct wal_region *r = &w->region;
    uint32_t count = 0;
    uint32_t frames = 0;
    for (uint32_t i = 0; i < r->of->ranges_count; i++) {
        frames = wal_batch_crc_records(frames, r->of->ranges[i].ptr, r->of->ranges[i].len, &count);
    }
    struct record_disk head = {
        .len = 16, .index = r->offset, .term = r->of->bytes, .kind = RECORD_REGION, .aux = count};
    memset(r->record, 0, sizeof(r->record));
    memcpy(r->record, &head, sizeof(head));
    memcpy(r->record + RECORD_HEADER_BYTES, &frames, sizeof(frames));
    memcpy(r->record + RECORD_HEADER_BYTES + 8, &r->of->group, sizeof(r->of->group));
    head.crc = crc32c(0, r->record + 4, RECORD_HEADER_BYTES - 4 + head.len);
    memcpy(r->record, &head.crc, sizeof(head.crc));
    struct wal_batch *b = &w->batch;
    wal_iov_add(&b->iov, &b->iov_count, &b->iov_cap, r->record, sizeof(r->record));
    b->head.total_len += (uint32_t)sizeof(r->record);
    b->ends_region = true;
}

void wal_region_slice(struct wal *w, uint64_t bytes_max)
{
    struct wal_region *r = &w->region;
    struct wal_batch *b = &w->batch;
    const uint64_t rest = r->of->bytes - r->taken;
    b->slice_offset = r->offset + r->taken;
    b->slice_bytes = rest < bytes_max ? rest : bytes_max;
    for (uint64_t to_go = b->slice_bytes; to_go > 0;) {
        const struct wal_range *range = &r->of->ranges[r->at_range];
        const uint64_t left = range->len - r->at_byte;
        const uint64_t n = left < to_go ? left : to_go;
        wal_iov_add(&b->slice_iov, &b->slice_count, &b->slice_cap, range->ptr + r->at_byte, n);
        to_go -= n;
        r->at_byte += (uint32_t)n;
        if (r->at_byte == range->len) {
            r->at_byte = 0;
            r->at_range++;
        }
    }
    r->taken += b->slice_bytes;
    if (r->taken == r->of->bytes) {
        record_make(w);
    }
}

void wal_region_complete(struct wal *w, struct list *done)
{
    struct wal_region *r = &w->region;
    if (w->batch.ends_region) {
        assert(r->of != NULL && r->taken == r->of->bytes);
        list_add_tail(done, &r->of->link);
        r->of = NULL;
    }
}
