// SPDX-License-Identifier: Apache-2.0
// The cold half of a compaction: copies runs and snapshots, record by record, each verified, into the new
// segment. It goes on in slices, each synced, so that cold reads have their turn between them and the WAL's
// syncs are not held up.
#include "consensus/store/compact.h"
#include <inttypes.h>

static uint64_t written(const struct compaction *c)
{
    return c->writer.flushed + c->writer.out.len;
}

static struct cold_file source_of(const struct compaction *c, const struct compact_item *item)
{
    return (struct cold_file){.seq = c->victims[item->victim].segment->seq, .is_segment = true};
}

// One entry of a run.
static enum rc copy_one(struct compaction *c, struct compact_item *item, uint64_t index)
{
    struct cold *cold = &c->worker->cold;
    uint64_t position = 0;
    enum rc rc = cold_run_position(cold, &item->run, index, &position);
    if (rc != RC_OK) {
        item->damage = rc == RC_NOT_FOUND ? RC_CORRUPT : rc;  // What is live in a run's span is in the run.
        return RC_OK;
    }
    return copy_entry(&c->writer, cold, source_of(c, item), position, item->group, index,
                      index <= item->committed, &item->damage);
}

// RC_MORE: the slice is full.
static enum rc copy_run(struct compaction *c, struct compact_item *item, uint64_t stop)
{
    struct segment_writer *w = &c->writer;
    const struct live_range *ranges = (const struct live_range *)(const void *)c->ranges.ptr + item->ranges_at;
    if (c->next_range == 0 && c->next_at == 0) {
        item->runs_at = segment_runs_count(w);
        w->origin = item->origin;
    }
    for (; c->next_range < item->ranges_count; c->next_range++) {
        const struct live_range *r = &ranges[c->next_range];
        c->next_at = c->next_at == 0 ? r->first : c->next_at;
        for (; c->next_at <= r->last; c->next_at++) {
            if (written(c) >= stop) {
                return RC_MORE;
            }
            TRY(copy_one(c, item, c->next_at));
            if (item->damage != RC_OK) {
                segment_forget_runs(w, item->runs_at);
                return RC_OK;
            }
        }
        c->next_at = 0;
    }
    segment_end_run(w);
    item->runs_count = segment_runs_count(w) - item->runs_at;
    return RC_OK;
}

// The chunks stay back to back: nothing else is written between two slices.
static enum rc copy_snapshot(struct compaction *c, struct compact_item *item, uint64_t stop)
{
    while (c->next_at < item->bytes) {
        if (written(c) >= stop) {
            return RC_MORE;
        }
        struct record_disk r;
        struct span record;
        item->damage = cold_record(&c->worker->cold, source_of(c, item), item->position + c->next_at,
                                   item->group, item->index, &r, &record);
        if (item->damage == RC_OK && (r.kind != RECORD_SNAPSHOT || record.len > item->bytes - c->next_at)) {
            item->damage = RC_CORRUPT;
        }
        if (item->damage != RC_OK) {
            return RC_OK;
        }
        uint64_t position = 0;
        TRY(segment_write_raw(&c->writer, record, &position));
        item->new_position = c->next_at == 0 ? position : item->new_position;
        assert(position == item->new_position + c->next_at);
        c->next_at += record.len;
    }
    c->writer.origin = item->origin;
    segment_add_snapshot(&c->writer, item->group, item->index, item->term, item->new_position, item->bytes,
                         item->chunks);
    return RC_OK;
}

static enum rc copy_items(struct compaction *c)
{
    const uint64_t before = written(c), stop = before + copy_slice_bytes(c->worker->store);
    struct compact_item *items = (struct compact_item *)(void *)c->items.ptr;
    enum rc rc = RC_OK;
    for (; c->next_item < c->items_count; c->next_item++) {
        struct compact_item *item = &items[c->next_item];
        rc = item->is_snapshot ? copy_snapshot(c, item, stop) : copy_run(c, item, stop);
        if (rc != RC_OK) {
            break;
        }
        c->next_range = 0;
        c->next_at = 0;
    }
    c->slice_bytes = written(c) - before;
    if (rc == RC_MORE) {
        TRY(segment_sync(&c->writer));
        return RC_MORE;
    }
    if (rc == RC_OK && c->writer.file != NULL) {
        rc = segment_seal(&c->writer, &c->file_bytes);
    }
    return rc;
}

void compaction_copy_slice(struct job *job)
{
    struct compaction *c = container_of(job, struct compaction, job);
    struct disk *d = c->worker->store->config.disk;
    if (!c->has_writer) {
        c->has_writer = true;
        segment_writer_init(&c->writer, d, c->segment_seq, 0, SEGMENT_COMPACTED,
                            c->worker->store->config.segment_reach);
    }
    c->rc = copy_items(c);
    if (c->rc != RC_OK && c->rc != RC_MORE) {
        if (c->rc != RC_NO_SPACE) {
            log_critical("store: writing segment %" PRIu64 " failed: %s", c->segment_seq, rc_text(c->rc));
            disk_fail(d);
        }
        segment_writer_deinit(&c->writer);
        c->has_writer = false;
    }
    cold_end(&c->worker->cold);
}
