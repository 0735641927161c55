// SPDX-License-Identifier: Apache-2.0
// Large submissions: written in slices, so that small ones need not wait for them (decision 4).
//
// Problem: one batch is in the air at a time, and a record of 16 MiB as one batch holds up every group of the node for
// as long as its bytes take to be written and synced. Splitting it over batches would scatter what is read later as one
// piece. Idea: the record gets a *region*, room at the end of the current file. Each batch takes a slice of it along, in the
// same sync; regions grow down from the file's end, batches up from its beginning. With the last slice goes a record
// of kind RECORD_REGION, last of its batch: at this place in the log the region's records stand. Without it a region is
// nothing, so a crash half way leaves nothing to clean up.
//
// Invariants
// - One region is open at a time. It is opened once all ordinary submissions ahead of its first member are durable, so order
//   within a group holds: everything of a group that has a large record under way is submitted as large.
// - A file is not left while a region in it is open: positions of a group's entries ascend by file.
// - Small submissions that wait behind a large one share a region, as long as that makes it no longer than a slice.
#include "consensus/wal/internal.h"
#include "node/base/limits.h"
#include <stdlib.h>

// Length and number of members of the region that would be opened now.
static uint64_t region_extent(const struct wal *w, uint32_t *members)
{
    uint64_t bytes = 0;
    *members = 0;
    for (const struct list *l = w->large.next; l != &w->large; l = l->next) {
        const struct wal_submission *s = list_entry((struct list *)(uintptr_t)l, struct wal_submission, link);
        if (s->after > w->taken || (*members > 0 && bytes + s->bytes > w->config.slice_bytes)) {
            break;
        }
        bytes += s->bytes;
        *members += 1;
    }
    return bytes;
}

uint64_t wal_region_reserve(const struct wal *w)
{
    if (!w->region.is_open) {
        return 0;
    }
    // Behind the padding of the batch before.
    return wal_round_up(WAL_BATCH_HEADER_BYTES + sizeof(w->region.record), w->config.align) + w->config.align;
}

uint64_t wal_region_due(const struct wal *w)
{
    uint32_t members;
    if (w->region.is_open || list_is_empty(&w->large)) {
        return 0;
    }
    const uint64_t bytes = region_extent(w, &members);
    if (members == 0) {
        return 0;
    }
    // Besides the bytes: their alignment, the batch with the record, and room for the batches that go between the slices. If
    // these fill that room first, the rest of the region is written at once.
    const uint64_t between = bytes / 4 > 2 * (uint64_t)w->config.slice_bytes ? bytes / 4 : 2 * (uint64_t)w->config.slice_bytes;
    return wal_round_up(bytes, WAL_ALIGN_MAX) + 4 * (uint64_t)WAL_ALIGN_MAX + (bytes > w->config.slice_bytes ? between : 0);
}

void wal_region_open(struct wal *w)
{
    struct wal_region *r = &w->region;
    struct wal_batch *b = &w->batch;
    uint32_t members;
    assert(!r->is_open && list_is_empty(&r->members));
    r->bytes = region_extent(w, &members);
    r->offset = (b->limit - r->bytes) & ~(uint64_t)(WAL_ALIGN_MAX - 1);
    b->limit = r->offset;
    r->is_open = true;
    r->taken = 0;
    uint64_t at = r->offset;
    for (uint32_t i = 0; i < members; i++) {
        struct list *item = list_pop(&w->large);
        struct wal_submission *s = list_entry(item, struct wal_submission, link);
        for (uint32_t k = 0; k < s->ranges_count; k++) {
            s->ranges[k].file_seq = b->is_roll ? w->seq + 1 : w->seq;
            s->ranges[k].file_offset = at;
            at += s->ranges[k].len;
        }
        list_add_tail(&r->members, item);
    }
    assert(at == r->offset + r->bytes);
    r->at = r->members.next;
    r->at_range = 0;
    r->at_byte = 0;
}

// ---- the record ------------------------------------------------------------------------------------------------

struct names {
    uint64_t groups[WAL_REGION_GROUPS_MAX];
    uint32_t count;
    bool is_overfull;
};

static void name_add(struct names *n, uint64_t group)
{
    for (uint32_t i = 0; i < n->count; i++) {
        if (n->groups[i] == group) {
            return;
        }
    }
    if (n->count == WAL_REGION_GROUPS_MAX) {
        n->is_overfull = true;
        return;
    }
    n->groups[n->count++] = group;
}

static void names_add(struct names *n, const struct wal_range *r)
{
    for (uint64_t at = 0; at < r->len;) {
        struct record_disk head;
        memcpy(&head, r->ptr + at, sizeof(head));
        name_add(n, head.group);
        at += record_size(head.len);
    }
}

// The sum over the frames of the region's records keeps lengths and groups readable where a body is damaged, as a batch's
// sum does for its own. Its salt is not the file's but the region's place: the batch that holds it has the salt.
static void record_make(struct wal *w)
{
    struct wal_region *r = &w->region;
    struct names names = {.count = 0};
    uint32_t count = 0;
    uint32_t frames = 0;
    list_each(item, &r->members) {
        const struct wal_submission *s = list_entry(item, struct wal_submission, link);
        for (uint32_t i = 0; i < s->ranges_count; i++) {
            frames = wal_batch_crc_records(frames, s->ranges[i].ptr, s->ranges[i].len, &count);
            names_add(&names, &s->ranges[i]);
        }
    }
    if (names.is_overfull) {
        names.count = 0;  // Damage would be everybody's.
    }
    struct record_disk head = {
        .len = 8 + 8 * names.count,
        .index = r->offset,
        .term = r->bytes,
        .kind = RECORD_REGION,
        .aux = count,
    };
    uint8_t *to = r->record + RECORD_HEADER_BYTES;
    memcpy(to, &frames, sizeof(frames));
    memcpy(to + 4, &names.count, sizeof(names.count));
    memcpy(to + 8, names.groups, names.count * sizeof(*names.groups));
    memcpy(r->record, &head, sizeof(head));
    head.crc = crc32c(0, r->record + 4, RECORD_HEADER_BYTES - 4 + head.len);
    memcpy(r->record, &head.crc, sizeof(head.crc));
    struct wal_batch *b = &w->batch;
    wal_iov_add(&b->iov, &b->iov_count, &b->iov_cap, r->record, record_size(head.len));
    b->head.total_len += (uint32_t)record_size(head.len);
    b->ends_region = true;
}

// ---- slices ----------------------------------------------------------------------------------------------------

void wal_region_slice(struct wal *w, uint64_t bytes_max)
{
    struct wal_region *r = &w->region;
    struct wal_batch *b = &w->batch;
    const uint64_t left = r->bytes - r->taken < bytes_max ? r->bytes - r->taken : bytes_max;
    b->slice_offset = r->offset + r->taken;
    b->slice_bytes = left;
    for (uint64_t to_go = left; to_go > 0;) {
        const struct wal_submission *s = list_entry(r->at, struct wal_submission, link);
        if (r->at_range == s->ranges_count) {
            r->at = r->at->next;
            r->at_range = 0;
            continue;
        }
        const struct wal_range *range = &s->ranges[r->at_range];
        const uint64_t rest = range->len - r->at_byte;
        const uint64_t n = rest < to_go ? rest : to_go;
        wal_iov_add(&b->slice_iov, &b->slice_count, &b->slice_cap, range->ptr + r->at_byte, n);
        to_go -= n;
        r->at_byte += (uint32_t)n;
        if (r->at_byte == range->len) {
            r->at_byte = 0;
            r->at_range++;
        }
    }
    r->taken += left;
    if (r->taken == r->bytes) {
        record_make(w);
    }
}

void wal_region_complete(struct wal *w, struct list *done)
{
    struct wal_region *r = &w->region;
    if (w->batch.ends_region) {
        assert(r->is_open && r->taken == r->bytes);
        r->is_open = false;
        list_splice(done, &r->members);
    }
}
