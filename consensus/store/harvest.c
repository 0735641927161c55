// SPDX-License-Identifier: Apache-2.0
// Retirement of WAL files and snapshots: one harvest at a time per worker.
//
// Problem: WAL files must come free although some entries in them are needed for long. Idea: what a closed
// file still holds of use is written to one sealed segment together with the snapshots that make the rest
// useless.
//
// clang-format off
//   plan (worker)     for each group with entries in the file: a frozen snapshot if it is worth it, and where
//                     the entries lie
//   write (cold)      snapshot chunks and entries -> segment, sealed
//   publish (worker)  snapshots become current (log cut only now, P11); entries are found in the segment now
//   leave             leave.c
// clang-format on
//
// With many groups all this goes in parts, each a harvest and a segment of its own; the file leaves after the last.
//
// Between plan and publication the log may be truncated (harvest_group.cut), replaced by an installed snapshot
// (the same, cut at 1), or deleted (not found; or found again without is_harvested).
#include "consensus/store/core.h"
#include <inttypes.h>
#include <stdio.h>

enum {
    GROUPS_MAX = 4096,  // Of one harvest: 1 to 4 ms to plan, as much to publish.
    FILES_A_STEP = 4,   // Closed files that wait, for each slice more that is written at once,
    HASTE_MAX = 4,      // up to so many.
};

struct harvest_item {
    uint32_t delta;   // Index - base of its group.
    uint32_t offset;  // In the WAL file, / 8.
};

struct harvest_group {
    uint64_t group;
    uint64_t base;       // Index of the first item.
    uint64_t committed;  // At or below: no version but this one.
    uint32_t items_at;
    uint32_t items_count;
    bool has_snapshot;
    bool is_asked;  // It was: if nothing comes of this harvest it is taken by the next.
    struct store_snapshot_source source;
    struct buf live;    // struct live_range; of the snapshot.
    uint64_t bytes_before;  // glog.bytes_since when it was frozen.
    uint64_t cut;           // Lowest index truncated since this was planned. Owner thread: the worker's.
    // Results.
    enum rc damage;     // Not RC_OK: an entry in the file does not check. Nothing of the group is published.
    uint64_t position;  // Of the snapshot.
    uint64_t bytes;
    uint32_t chunks;
    uint32_t runs_at;  // In the writer's runs.
    uint32_t runs_count;
};

struct harvest {
    struct plan plan;
    struct job job;
    struct store_worker *worker;
    uint64_t file_seq;  // 0: only snapshots.
    bool is_part;       // Not of all groups: the file needs another.
    uint64_t segment_seq;
    struct buf groups;  // struct harvest_group.
    struct buf items;   // struct harvest_item.
    uint64_t spread;    // In how many bytes of the file they lie, or fewer by one record a group.
    uint64_t begin, end;  // Positions of the first and the last of them.
    uint64_t fetched;     // Up to here the file has been read ahead as a whole.
    uint32_t haste;       // So many slices at once.
    // Writing goes on in slices, so that cold reads get their turn between them.
    struct segment_writer writer;
    bool has_writer;
    uint32_t next_group;
    uint32_t next_item;  // Of that group's items.
    uint64_t segment_bytes;
    bool has_room;  // There was none, but the reserve was given up.
    enum rc rc;     // RC_MORE: another slice.
};

static uint32_t groups_count(const struct harvest *h)
{
    return (uint32_t)(h->groups.len / sizeof(struct harvest_group));
}
static struct harvest_group *group_at(const struct harvest *h, uint32_t i)
{
    return (struct harvest_group *)(void *)h->groups.ptr + i;
}

static void harvest_free(struct store_worker *w, struct plan *p)
{
    struct harvest *h = container_of(p, struct harvest, plan);
    for (uint32_t i = 0; i < groups_count(h); i++) {
        struct harvest_group *hg = group_at(h, i);
        if (hg->has_snapshot) {
            hg->source.ops->snapshot_end(hg->source.handle);
        }
        buf_deinit(&hg->live);
    }
    buf_deinit(&h->groups);
    buf_deinit(&h->items);
    if (h->has_writer) {
        segment_writer_deinit(&h->writer);
    }
    w->harvest = NULL;
    free(h);
}

// ---- planning -----------------------------------------------------------------------------------

// Whether freezing and encoding the state now frees enough: what becomes dead must outweigh what is written.
// A backlog of which nothing dies gets one too now and then, for a start must read the log from the snapshot
// on.
static bool is_worth_it(const struct glog *g, const struct harvest_group *hg)
{
    const struct store_snapshot_source *src = &hg->source;
    uint64_t since = glog_bytes_since_snapshot(g), before = glog_snapshot_index(g);
    uint64_t entries = src->index - before, live_entries = 0, live_all = 0;
    const struct live_range *live = (const struct live_range *)(const void *)hg->live.ptr;
    for (size_t i = 0; i < hg->live.len / sizeof(*live); i++) {
        live_all += live[i].last - live[i].first + 1;
        if (live[i].last > before) {
            live_entries += live[i].last - (live[i].first > before ? live[i].first - 1 : before);
        }
    }
    uint64_t estimate = src->size_estimate;
    if (estimate == 0) {
        estimate = 128 + live_all * 8;
    }
    uint64_t dead = since / entries * (entries - live_entries) + since % entries;
    return dead > estimate || since / 4 > estimate;
}

// Freezes the group's state for a snapshot if that is asked for or worth it.
static void plan_snapshot(struct store_worker *w, struct glog *g, struct harvest_group *hg, bool is_asked)
{
    if (!is_asked) {
        if (g->hold > 0) {
            g->hold--;
            return;
        }
        uint64_t last_size = g->snapshot == NULL ? 0 : g->snapshot->bytes;
        if (glog_bytes_since_snapshot(g) <= last_size || map_get(&w->receives, g->group) != NULL) {
            return;
        }
    }
    hg->source = (struct store_snapshot_source){0};
    if (w->hooks.snapshot_begin == NULL || !w->hooks.snapshot_begin(w->hooks.ctx, g->group, &hg->source)) {
        return;
    }
    assert(hg->source.index <= g->last || hg->source.index <= glog_snapshot_index(g));
    hg->has_snapshot = hg->source.index > glog_snapshot_index(g);
    if (hg->has_snapshot) {
        hg->source.ops->snapshot_live(hg->source.handle, &hg->live);
        hg->bytes_before = g->bytes_since;
        hg->has_snapshot = is_asked || is_worth_it(g, hg);
    }
    if (!hg->has_snapshot) {
        hg->source.ops->snapshot_end(hg->source.handle);
        hg->live.len = 0;
    }
}

struct scan {
    struct harvest *h;
    struct harvest_group *hg;
    const struct glog *g;
    uint32_t chunk;             // Of `piece`.
    const struct piece *piece;  // Last one used: neighbours share it.
};

// Adds one entry. False: it lies behind the file.
static bool scan_entry(struct scan *s, uint64_t index)
{
    uint64_t ref = glog_window_ref(s->g, index), position = 0;
    if (ref == REF_NONE) {
        return true;
    }
    uint32_t offset = (uint32_t)ref;
    const struct piece *p = s->piece;
    if (p != NULL && s->chunk == ref >> 32 && offset >= p->start && offset - p->start < p->len) {
        position = p->file_offset + (offset - p->start);
    } else {
        p = arena_piece(&s->g->worker->arena, ref, &position);
        if (p == NULL) {
            return false;
        }
        s->piece = p;
        s->chunk = (uint32_t)(ref >> 32);
    }
    if (p->file_seq > s->h->file_seq) {
        return false;
    }
    assert(p->file_seq == s->h->file_seq);  // Older files have been retired.
    if (s->hg->items_count == 0) {
        s->hg->base = index;
        s->hg->items_at = (uint32_t)(s->h->items.len / sizeof(struct harvest_item));
    }
    assert(index - s->hg->base <= UINT32_MAX);
    struct harvest_item item = {.delta = (uint32_t)(index - s->hg->base), .offset = (uint32_t)(position / 8)};
    buf_bytes(&s->h->items, &item, sizeof(item));
    s->hg->items_count++;
    return true;
}

// Lists the group's live entries in the file: of those at or below the coming snapshot the ones in its live
// set.
static void plan_entries(struct harvest *h, struct harvest_group *hg, const struct glog *g)
{
    struct scan s = {.h = h, .hg = hg, .g = g};
    uint64_t end = g->window_first + g->window_count, from = g->window_first;
    if (hg->has_snapshot) {
        const struct live_range *live = (const struct live_range *)(const void *)hg->live.ptr;
        for (size_t k = 0; k < hg->live.len / sizeof(*live); k++) {
            for (uint64_t i = live[k].first > from ? live[k].first : from; i <= live[k].last && i < end;
                 i++) {
                if (!scan_entry(&s, i)) {
                    return;
                }
            }
        }
        from = hg->source.index + 1 > from ? hg->source.index + 1 : from;
    }
    for (uint64_t i = from; i < end; i++) {
        if (!scan_entry(&s, i)) {
            return;
        }
    }
}

static bool has_entries_in(const struct glog *g, uint64_t file_seq)
{
    uint64_t position;
    const struct piece *p =
        g->window_count == 0 ? NULL : arena_piece(&g->worker->arena, g->window->refs[g->window->head], &position);
    return p != NULL && p->file_seq <= file_seq;
}

// Where the group's entries lie. Large ones may lie behind those that follow them.
static void note_extent(struct harvest *h, const struct harvest_group *hg)
{
    const struct harvest_item *items = (const struct harvest_item *)(const void *)h->items.ptr + hg->items_at;
    uint64_t begin = UINT64_MAX, end = 0;
    for (uint32_t i = 0; i < hg->items_count; i++) {
        const uint64_t at = (uint64_t)items[i].offset * 8;
        begin = at < begin ? at : begin;
        end = at > end ? at : end;
    }
    if (hg->items_count > 0) {
        h->spread += end - begin;
        h->begin = begin < h->begin ? begin : h->begin;
        h->end = end > h->end ? end : h->end;
    }
}

static void plan_group(struct store_worker *w, struct harvest *h, struct glog *g, bool is_asked)
{
    assert(!g->is_harvested);
    struct harvest_group hg = {.group = g->group, .is_asked = is_asked, .cut = UINT64_MAX};
    buf_init(&hg.live);
    bool is_in_file = has_entries_in(g, h->file_seq);
    plan_snapshot(w, g, &hg, is_asked);
    hg.committed = hg.has_snapshot ? hg.source.index : glog_snapshot_index(g);
    if (is_in_file) {
        plan_entries(h, &hg, g);
        note_extent(h, &hg);
    }
    if (!hg.has_snapshot && hg.items_count == 0) {
        buf_deinit(&hg.live);
        return;
    }
    g->is_harvested = true;
    g->is_snapshot_coming = hg.has_snapshot;
    buf_bytes(&h->groups, &hg, sizeof(hg));
}

static int compare_groups(const void *a, const void *b)
{
    const struct harvest_group *x = a, *y = b;
    return (x->group > y->group) - (x->group < y->group);
}

void harvest_cut(struct store_worker *w, uint64_t group, uint64_t from)
{
    const struct harvest_group key = {.group = group};
    struct harvest *h = w->harvest;
    assert(h != NULL);
    struct harvest_group *hg = bsearch(&key, h->groups.ptr, groups_count(h), sizeof(key), compare_groups);
    assert(hg != NULL);
    hg->cut = from < hg->cut ? from : hg->cut;
}

static void harvest_run(struct job *job);
static void harvest_done(struct job *job);
static void pop_closed(struct store_worker *w);

// Many small syncs disturb the WAL's less than one of a whole file. But when closed files pile up the disk has more than
// enough to do, each sync takes the longer, and what is not retired costs room, and time at the next start.
static uint32_t haste(const struct store_worker *w)
{
    uint32_t waiting = 0;
    list_each(item, &w->closed)
    {
        waiting++;
    }
    return waiting < 2 * FILES_A_STEP ? 1 : waiting / FILES_A_STEP < HASTE_MAX ? waiting / FILES_A_STEP : HASTE_MAX;
}

// Plans for a closed file, or with file_seq = 0 only for the snapshots asked for.
static void harvest_start(struct store_worker *w, uint64_t file_seq)
{
    assert(w->harvest == NULL);
    struct harvest *h = mem_zalloc(sizeof(*h));
    h->worker = w;
    h->file_seq = file_seq;
    h->begin = UINT64_MAX;
    h->haste = haste(w);
    buf_init(&h->groups);
    buf_init(&h->items);
    plan_begin(w, &h->plan, harvest_free);
    w->harvest = h;
    uint32_t pos = 0;
    struct glog *g;
    const uint32_t max = w->store->config.harvest_groups != 0 ? w->store->config.harvest_groups : GROUPS_MAX;
    const uint32_t asked_max = file_seq == 0 ? max : (max + 1) / 2;  // Requests do not hold up the file.
    while (groups_count(h) < asked_max && (g = map_next(&w->snapshot_wanted, &pos, NULL, NULL)) != NULL) {
        map_remove(&w->snapshot_wanted, g->group);
        g->is_snapshot_wanted = false;
        plan_group(w, h, g, true);
    }
    if (file_seq != 0) {
        list_each(item, &w->active)
        {
            g = list_entry(item, struct window, active)->log;
            if (!g->is_harvested && has_entries_in(g, file_seq)) {
                if (groups_count(h) >= max) {
                    h->is_part = true;
                    break;
                }
                plan_group(w, h, g, false);
            }
        }
    }
    if (groups_count(h) == 0) {
        plan_end(w, &h->plan);
        if (file_seq != 0) {
            pop_closed(w);
            leave_begin(w, file_seq);
        }
        return;
    }
    qsort(h->groups.ptr, groups_count(h), sizeof(struct harvest_group), compare_groups);
    h->segment_seq = store_next_segment(w->store);
    h->job = (struct job){.run = harvest_run, .done = harvest_done};
    exec_submit(w->exec, &h->job);
}

bool glog_snapshot_is_coming(const struct glog *g)
{
    return g->is_snapshot_wanted || g->is_snapshot_coming;
}

void glog_snapshot_request(struct glog *g)
{
    if (!g->is_snapshot_wanted) {
        g->is_snapshot_wanted = true;
        map_put(&g->worker->snapshot_wanted, g->group, g);
    }
}

// ---- writing (cold thread) ----------------------------------------------------------------------

// The header's chunk records, numbered from 0. Returns how many.
static uint32_t header_records(const struct harvest_group *hg, const struct snapshot_header *h,
                               struct buf *out)
{
    struct buf bytes;
    buf_init(&bytes);
    snapshot_header_encode(h, &bytes);
    uint32_t chunks = 0;
    for (size_t at = 0; at < bytes.len; at += LIMIT_SNAPSHOT_CHUNK_BYTES) {
        size_t n = bytes.len - at < LIMIT_SNAPSHOT_CHUNK_BYTES ? bytes.len - at : LIMIT_SNAPSHOT_CHUNK_BYTES;
        record_put(out, hg->group, hg->source.index, hg->source.term, RECORD_SNAPSHOT, RECORD_FLAG_HEADER,
                   chunks++, span_of(bytes.ptr + at, n));
    }
    buf_deinit(&bytes);
    return chunks;
}

// Header first; its totals are known only in the end, so unless the state is one chunk it is written over.
static enum rc write_snapshot(struct segment_writer *w, struct harvest_group *hg, struct buf *chunk,
                              struct buf *records)
{
    const struct store_snapshot_source *src = &hg->source;
    struct snapshot_header h = {.fsm_version = src->ops->version, .config = src->config, .live = hg->live};
    chunk->len = records->len = 0;
    bool has_more = src->ops->snapshot_chunk(src->handle, chunk);
    h.state_bytes = chunk->len;
    h.chunks = header_records(hg, &h, records) + (chunk->len > 0);
    records->len = 0;
    hg->chunks = header_records(hg, &h, records);
    TRY(segment_write_raw(w, buf_span(records), &hg->position));
    uint64_t at = 0;
    bool was_one = !has_more;
    for (;;) {
        if (chunk->len > 0) {
            records->len = 0;
            record_put(records, hg->group, src->index, src->term, RECORD_SNAPSHOT, 0, hg->chunks++,
                       buf_span(chunk));
            TRY(segment_write_raw(w, buf_span(records), &at));
        }
        if (!has_more) {
            break;
        }
        chunk->len = 0;
        has_more = src->ops->snapshot_chunk(src->handle, chunk);
        h.state_bytes += chunk->len;
    }
    hg->bytes = w->flushed + w->out.len - hg->position;
    if (!was_one) {
        h.chunks = hg->chunks;
        records->len = 0;
        (void)header_records(hg, &h, records);
        TRY(segment_patch(w, hg->position, buf_span(records)));
    }
    segment_add_snapshot(w, hg->group, src->index, src->term, hg->position, hg->bytes, hg->chunks);
    return RC_OK;
}

// Copies one entry. Damage is the group's (law 2), not the disk's: the others go on.
static enum rc write_entry(struct harvest *h, struct harvest_group *hg, const struct harvest_item *item)
{
    const struct cold_file f = {.seq = h->file_seq};
    const uint64_t index = hg->base + item->delta;
    enum rc rc = copy_entry(&h->writer, &h->worker->cold, f, (uint64_t)item->offset * 8, hg->group, index,
                            index <= hg->committed, &hg->damage);
    return rc == RC_OK ? hg->damage : rc;
}

// Goes on with a group's entries. RC_MORE: the slice is full.
static enum rc write_entries(struct harvest *h, struct harvest_group *hg, uint64_t stop)
{
    struct segment_writer *w = &h->writer;
    const struct harvest_item *items = (const struct harvest_item *)(const void *)h->items.ptr + hg->items_at;
    if (h->next_item == 0) {
        hg->runs_at = segment_runs_count(w);
    }
    for (; h->next_item < hg->items_count; h->next_item++) {
        if (w->flushed + w->out.len >= stop) {
            return RC_MORE;
        }
        enum rc rc = write_entry(h, hg, &items[h->next_item]);
        if (hg->damage != RC_OK) {
            segment_forget_runs(w, hg->runs_at);
            h->next_item = 0;
            return RC_OK;
        }
        TRY(rc);
    }
    segment_end_run(w);
    hg->runs_count = segment_runs_count(w) - hg->runs_at;
    return RC_OK;
}

static enum rc write_slice(struct harvest *h)
{
    struct segment_writer *w = &h->writer;
    uint64_t stop = w->flushed + w->out.len + copy_slice_bytes(h->worker->store) * h->haste;
    struct buf chunk, records;
    buf_init(&chunk);
    buf_init(&records);
    enum rc rc = RC_OK;
    for (; h->next_group < groups_count(h) && rc == RC_OK; h->next_group += rc == RC_OK) {
        struct harvest_group *hg = group_at(h, h->next_group);
        if (hg->has_snapshot && h->next_item == 0 && hg->chunks == 0) {
            rc = write_snapshot(w, hg, &chunk, &records);
        }
        if (rc == RC_OK) {
            rc = write_entries(h, hg, stop);
        }
        if (rc == RC_OK) {
            h->next_item = 0;
        }
    }
    buf_deinit(&chunk);
    buf_deinit(&records);
    if (rc == RC_MORE) {
        TRY(segment_sync(w));
    }
    if (rc == RC_OK && disk_has_failed(h->worker->store->config.disk)) {
        return RC_IO;  // What could not be read then is no damage.
    }
    // Nothing at all was written if all of it is damaged.
    return rc == RC_OK && w->file != NULL ? segment_seal(w, &h->segment_bytes) : rc;
}

// Entries of many groups lie mixed in the file, and are gathered group by group: each group goes through the whole file, and
// so much would be read from here and there that to read all of it once, in order, takes less.
static bool is_mixed(const struct harvest *h)
{
    const uint64_t extent = h->end > h->begin ? h->end - h->begin : 0;
    return h->spread > 2 * extent && h->items.len / sizeof(struct harvest_item) * COLD_AHEAD_MIN > extent / 2;
}

// True: there is more to fetch, in another slice.
static bool fetch_slice(struct harvest *h)
{
    const uint64_t at = h->fetched > h->begin ? h->fetched : h->begin, slice = copy_slice_bytes(h->worker->store) * h->haste;
    const uint64_t end = at + slice < h->end ? at + slice : h->end;
    if (!is_mixed(h) || at >= h->end) {
        return false;
    }
    cold_prefetch(&h->worker->cold, (struct cold_file){.seq = h->file_seq}, at, end - at);
    h->fetched = end;
    return true;
}

static void harvest_run(struct job *job)
{
    struct harvest *h = container_of(job, struct harvest, job);
    struct disk *d = h->worker->store->config.disk;
    if (fetch_slice(h)) {
        cold_end(&h->worker->cold);
        h->rc = RC_MORE;
        return;
    }
    if (!h->has_writer) {
        h->has_writer = true;
        segment_writer_init(&h->writer, d, h->segment_seq, h->file_seq,
                            h->file_seq != 0 ? SEGMENT_RETIRED : SEGMENT_SNAPSHOTS,
                            h->worker->store->config.segment_reach);
        if (h->spread <= h->worker->store->config.last_bytes / 2) {
            h->writer.more_room = reserve_for_segment;
            h->writer.more_room_ctx = h->worker->store;
        }
    }
    h->rc = write_slice(h);
    if (h->rc != RC_OK && h->rc != RC_MORE) {
        if (h->rc != RC_NO_SPACE) {
            log_critical("store: retiring WAL file %" PRIu64 " failed: %s", h->file_seq, rc_text(h->rc));
            disk_fail(d);
        }
        segment_writer_deinit(&h->writer);
        h->has_writer = false;
        h->has_room = h->rc == RC_NO_SPACE && reserve_release(h->worker->store);
        if (!h->has_room) {
            reserve_restore_last(h->worker->store);
        }
    }
    cold_end(&h->worker->cold);
}

// ---- publishing ---------------------------------------------------------------------------------

// `cut`: lowest index that is not as it was planned any more.
static void publish_runs(struct glog *g, const struct run_disk *runs, uint32_t count, uint64_t cut, struct segment *s)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct run_disk *d = &runs[i];
        if (d->first >= cut) {
            return;
        }
        uint64_t last = d->first + d->span;
        last = last < cut ? last : cut - 1;  // What is cut is dense.
        const struct run r = run_of(d, s, d->first, last);
        segment_hold(s);
        glog_window_drop(g, d->first, last);
        glog_add_run(g, &r);
    }
}

// The file goes; what was in it of this group is lost, and with it the replica's memory.
static void publish_damage(struct glog *g, const struct harvest *h, const struct harvest_group *hg)
{
    while (has_entries_in(g, h->file_seq)) {
        glog_window_drop(g, g->window_first, g->window_first);
    }
    glog_damaged(g, hg->damage, "an entry in the log file that is retired");
}

// Returns true if the group's snapshot became current.
static bool publish_group(struct store_worker *w, const struct harvest *h, struct harvest_group *hg,
                          struct segment *s)
{
    struct glog *g = map_get(&w->groups, hg->group);
    if (g == NULL || !g->is_harvested) {
        return false;
    }
    g->is_harvested = g->is_snapshot_coming = false;
    if (hg->damage != RC_OK) {
        publish_damage(g, h, hg);
        return false;
    }
    const struct run_disk *runs = (const struct run_disk *)(const void *)h->writer.runs.ptr;
    publish_runs(g, runs + hg->runs_at, hg->runs_count, hg->cut, s);
    bool is_current =
        hg->has_snapshot && hg->source.index > glog_snapshot_index(g) && hg->source.index < hg->cut;
    if (is_current) {
        struct snapshot *snap =
            snapshot_create(hg->source.index, hg->source.term, &hg->source.config, buf_span(&hg->live));
        snapshot_place(snap, s, hg->position, hg->bytes, hg->chunks);
        glog_publish_snapshot(g, snap, hg->bytes_before);
    }
    return is_current;
}

static void pop_closed(struct store_worker *w)
{
    free(list_entry(list_pop(&w->closed), struct closed_file, link));
}

static void publish(struct store_worker *w, const struct harvest *h)
{
    struct segment *s = segment_create(w, &h->writer, h->segment_bytes);
    for (uint32_t i = 0; i < groups_count(h); i++) {
        struct harvest_group *hg = group_at(h, i);
        if (publish_group(w, h, hg, s) && w->hooks.snapshot_taken != NULL) {
            w->hooks.snapshot_taken(w->hooks.ctx, hg->group, hg->source.index, hg->source.term);
        }
    }
    segment_release(w, s);
}

static void harvest_done(struct job *job)
{
    struct harvest *h = container_of(job, struct harvest, job);
    struct store_worker *w = h->worker;
    if (h->rc == RC_MORE) {
        exec_submit(w->exec, &h->job);
        return;
    }
    if (h->rc != RC_OK) {
        for (uint32_t i = 0; i < groups_count(h); i++) {
            struct glog *g = map_get(&w->groups, group_at(h, i)->group);
            if (g != NULL && g->is_harvested) {
                g->is_harvested = g->is_snapshot_coming = false;
                if (group_at(h, i)->is_asked) {
                    glog_snapshot_request(g);
                }
            }
        }
        w->is_harvest_blocked = !h->has_room;
        plan_end(w, &h->plan);
        return;
    }
    publish(w, h);
    const uint64_t seq = h->is_part ? 0 : h->file_seq;
    plan_end(w, &h->plan);
    if (seq != 0) {
        pop_closed(w);
        leave_begin(w, seq);
    }
}

void harvest_pump(struct store_worker *w)
{
    leave_pump(w);
    if (w->harvest != NULL || w->is_harvest_blocked) {
        return;
    }
    struct closed_file *f =
        list_is_empty(&w->closed) ? NULL : list_entry(w->closed.next, struct closed_file, link);
    // A large record that is about to be applied is not sent to a segment under its reader's hands.
    const bool waits =
        f != NULL && w->closed.prev == &f->link && arena_keeps_file(&w->arena, f->seq, store_worker_keeps, w);
    if (f != NULL && f->after <= w->completed && !waits) {
        harvest_start(w, f->seq);
    } else if (map_count(&w->snapshot_wanted) > 0) {
        harvest_start(w, 0);
    }
}
