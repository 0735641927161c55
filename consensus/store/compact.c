// SPDX-License-Identifier: Apache-2.0
// Merging segments: one compaction at a time per worker.
//
// Problem: an entry that lives long keeps its segment, with all the dead around it; and every retirement and
// every request for snapshots leaves a file. Idea: what is still needed of segments that are half dead, or
// small and many, is copied to one new segment, and nothing refers to the old ones any more.
//
// clang-format off
//   pick (worker)     segments whose live bytes have not changed for a second: a backlog that is being drained dies by itself
//   tables (cold)     their run tables say which groups lie in them
//   plan (worker)     for each run and snapshot that the groups still have there: which entries are live
//   copy (cold)       records, each verified -> new segment, in slices, sealed
//   publish (worker)  runs and snapshots are found in the new segment; the old ones go when their last reader has
// clang-format on
//
// Precedence at the next start (README.md): a copied run keeps its origin and covers no index that its source
// did not, and a run becomes two where the snapshot cuts it: what lies at or below is *committed*. So
// wherever source and copy are both found (the sources are deleted after the copy is sealed, and that need
// not be durable), they say the same. Segments of WAL files that no checkpoint covers yet are left alone, so
// that a copy always counts.
//
// Between plan and publication the log may be cut, a newer snapshot become current, the group be deleted or
// come back: a run is replaced only if it is still there, as far as it still reaches; what was dead when it
// was planned still is.
//
// Small segments are merged when `fan_in` of about one size are there: every byte is copied once per size
// class, and the number of files stays near fan_in x classes + live bytes / size of a WAL file.
#include "consensus/store/compact.h"
#include <inttypes.h>

enum {
    FAN_IN = 8,
    CLASS_SHIFT = 3,  // Sizes of a class: up to 8 times as much.
    CLASSES = 8,
};
#define SETTLED_NS (1000 * 1000000ull)
#define NO_SPACE_NS (5000 * 1000000ull)  // Until another try when the disk was full.
#define RATE_DEFAULT ((uint64_t)64 << 20)
#define RATE_PARTS 64  // At worst this part of the budget is used.
#define LATENCY_SLACK_NS (2 * 1000000ull)

void compaction_init(struct store_worker *w)
{
    w->compacting.fan_in = FAN_IN;
}

void compaction_due(struct store *s)
{
    for (uint32_t i = 0; i < s->config.workers; i++) {
        atomic_store_explicit(&s->workers[i].compacting.shared_is_due, true, memory_order_relaxed);
    }
}

static uint64_t rate_max(const struct store_worker *w)
{
    const uint64_t configured = w->store->config.compact_bytes_per_s;
    return configured != 0 ? configured : RATE_DEFAULT;
}

// ---- picking ------------------------------------------------------------------------------------

struct pick {
    struct segment *class_members[CLASSES][COMPACT_VICTIMS_MAX];
    uint32_t class_count[CLASSES];
    uint64_t target;     // Live bytes of one output.
    bool has_unsettled;  // Look again in a while.
};

static void take(struct compaction *c, struct segment *s)
{
    s->is_taken = true;
    segment_hold(s);
    c->live += atomic_load_explicit(&s->shared_live_bytes, memory_order_relaxed);
    c->victims[c->victims_count++] = (struct victim){.segment = s};
}

static bool fits(const struct compaction *c, const struct pick *p, uint64_t live)
{
    return c->victims_count < COMPACT_VICTIMS_MAX && (c->victims_count == 0 || c->live + live <= p->target);
}

// Takes it if it is half dead, else sorts it into its class.
static void look_at(struct compaction *c, struct pick *p, struct segment *s, uint64_t now_ns)
{
    const uint64_t live = atomic_load_explicit(&s->shared_live_bytes, memory_order_relaxed);
    if (live == 0) {
        return;  // About to go.
    }
    // By the bytes of records: tables do not shrink by copying, and nothing is copied for ever.
    const bool is_half_dead = s->data_bytes >= p->target / 64 && live < s->data_bytes / 2;
    uint32_t class = 0;
    while (class < CLASSES && live < p->target >> (CLASS_SHIFT * class + 1)) {
        class++;
    }
    if (!is_half_dead && class == 0) {
        return;
    }
    if (live != s->seen_live) {
        s->seen_live = live;
        s->seen_at = now_ns;
    }
    if (now_ns < s->seen_at + SETTLED_NS) {
        p->has_unsettled = true;
    } else if (is_half_dead) {
        if (fits(c, p, live)) {
            take(c, s);
        }
    } else if (p->class_count[class - 1] < COMPACT_VICTIMS_MAX) {
        p->class_members[class - 1][p->class_count[class - 1]++] = s;
    }
}

// Chooses victims. False: none. O(segments), at most once a second.
static bool pick_victims(struct store_worker *w, struct compaction *c, uint64_t now_ns, bool *has_unsettled)
{
    struct store *store = w->store;
    struct pick p = {.target = store->config.wal_file_bytes};
    pthread_mutex_lock(&store->mutex);
    list_each(item, &store->segments)
    {
        struct segment *s = list_entry(item, struct segment, all);
        if (s->home == w->index && !s->is_taken && !s->is_kept && s->origin <= store->checkpoint_seq) {
            look_at(c, &p, s, now_ns);
        }
    }
    for (uint32_t k = CLASSES; k-- > 0 && c->victims_count == 0;) {
        for (uint32_t i = 0; i < p.class_count[k] && p.class_count[k] >= w->compacting.fan_in; i++) {
            struct segment *s = p.class_members[k][i];
            if (fits(c, &p, s->seen_live)) {
                take(c, s);
            }
        }
    }
    pthread_mutex_unlock(&store->mutex);
    *has_unsettled = p.has_unsettled;
    return c->victims_count > 0;
}

// ---- life ---------------------------------------------------------------------------------------

static void victims_release(struct compaction *c)
{
    struct store_worker *w = c->worker;
    struct store *store = w->store;
    for (uint32_t i = 0; i < c->victims_count; i++) {
        struct victim *v = &c->victims[i];
        pthread_mutex_lock(&store->mutex);
        v->segment->is_taken = false;
        v->segment->is_kept |= v->is_damaged;
        // What is left is another worker's (there were more or fewer of them once), a late reader's, or was
        // added later.
        v->segment->home = (v->segment->home + 1) % store->config.workers;
        const uint32_t home = v->segment->home;
        pthread_mutex_unlock(&store->mutex);
        atomic_store_explicit(&store->workers[home].compacting.shared_is_due, true, memory_order_relaxed);
        segment_release(w, v->segment);
        free(v->runs);
    }
    c->victims_count = 0;
}

static void compaction_free(struct store_worker *w, struct plan *p)
{
    struct compaction *c = container_of(p, struct compaction, plan);
    victims_release(c);
    if (c->has_writer) {
        segment_writer_deinit(&c->writer);
    }
    buf_deinit(&c->items);
    buf_deinit(&c->ranges);
    w->compacting.job = NULL;
    free(c);
}

// ---- planning -----------------------------------------------------------------------------------

static void range_add(struct compaction *c, struct compact_item *item, uint64_t first, uint64_t last)
{
    const struct live_range r = {.first = first, .last = last};
    buf_bytes(&c->ranges, &r, sizeof(r));
    item->ranges_count++;
}

static void plan_run(struct compaction *c, uint32_t victim, const struct run_disk *d, const struct glog *g,
                     const struct run *r)
{
    struct compact_item item = {.group = g->group, .victim = victim, .run = *r, .origin = d->origin, .index = r->first};
    item.committed = glog_snapshot_index(g);
    item.ranges_at = (uint32_t)(c->ranges.len / sizeof(struct live_range));
    const struct snapshot *s = g->snapshot;
    const uint64_t last = run_last(r);
    for (uint32_t i = s == NULL ? 0 : snapshot_live_find(s, r->first); s != NULL && i < s->live_count; i++) {
        if (s->live[i].first > last) {
            break;
        }
        range_add(c, &item, s->live[i].first > r->first ? s->live[i].first : r->first,
                  s->live[i].last < last ? s->live[i].last : last);
    }
    if (last > item.committed) {
        range_add(c, &item, r->first > item.committed ? r->first : item.committed + 1, last);
    }
    if (item.ranges_count > 0) {
        buf_bytes(&c->items, &item, sizeof(item));
    }
}

static void plan_disk_run(struct compaction *c, uint32_t victim, const struct run_disk *d)
{
    const struct segment *segment = c->victims[victim].segment;
    const struct glog *g = map_get(&c->worker->groups, d->group);
    if (g == NULL) {
        return;
    }
    if (d->flags & RUN_SNAPSHOT) {
        const struct snapshot *s = g->snapshot;
        if (s != NULL && s->segment == segment && s->index == d->first && s->position == d->index_pos) {
            const struct compact_item item = {.group = g->group,
                                              .victim = victim,
                                              .is_snapshot = true,
                                              .origin = d->origin,
                                              .index = s->index,
                                              .term = s->term,
                                              .position = s->position,
                                              .bytes = s->bytes,
                                              .chunks = s->chunks};
            buf_bytes(&c->items, &item, sizeof(item));
        }
        return;
    }
    for (uint32_t i = glog_runs_find(g, d->first); i < g->runs_count && g->runs[i].first <= d->first + d->span; i++) {
        if (g->runs[i].segment == segment && g->runs[i].first >= d->first) {
            plan_run(c, victim, d, g, &g->runs[i]);
        }
    }
}

static int compare_items(const void *a, const void *b)
{
    const struct compact_item *x = a, *y = b;
    if (x->group != y->group) {
        return x->group < y->group ? -1 : 1;
    }
    if (x->is_snapshot != y->is_snapshot) {
        return x->is_snapshot ? -1 : 1;
    }
    return (x->index > y->index) - (x->index < y->index);
}

static void tables_run(struct job *job);
static void tables_done(struct job *job);
static void copy_done(struct job *job);

static void compaction_start(struct store_worker *w, uint64_t now_ns)
{
    struct compacting *k = &w->compacting;
    if (now_ns < k->look_at) {
        return;
    }
    struct compaction *c = mem_zalloc(sizeof(*c));
    bool has_unsettled = false;
    atomic_store_explicit(&k->shared_is_due, false, memory_order_relaxed);
    k->look_at = now_ns + SETTLED_NS;
    const bool has_victims = pick_victims(w, c, now_ns, &has_unsettled);
    if (has_unsettled) {
        atomic_store_explicit(&k->shared_is_due, true, memory_order_relaxed);
    }
    if (!has_victims) {
        free(c);
        return;
    }
    c->worker = w;
    buf_init(&c->items);
    buf_init(&c->ranges);
    plan_begin(w, &c->plan, compaction_free);
    k->job = c;
    k->rate = k->rate == 0 ? rate_max(w) : k->rate;
    c->job = (struct job){.run = tables_run, .done = tables_done};
    exec_submit(w->exec, &c->job);
}

static void tables_run(struct job *job)
{
    struct compaction *c = container_of(job, struct compaction, job);
    for (uint32_t i = 0; i < c->victims_count; i++) {
        struct victim *v = &c->victims[i];
        struct segment *s = NULL;
        v->rc = segment_load(c->worker->store->config.disk, v->segment->seq, &s, &v->runs, &v->runs_count);
        if (v->rc == RC_OK) {
            free(s);
        }
    }
}

static void tables_done(struct job *job)
{
    struct compaction *c = container_of(job, struct compaction, job);
    struct store_worker *w = c->worker;
    for (uint32_t i = 0; i < c->victims_count; i++) {
        struct victim *v = &c->victims[i];
        if (v->rc != RC_OK) {
            // The records may still be whole, and are read one by one: the damage shows when one of them is not.
            log_error("store: the tables of segment %" PRIu64 " are damaged: %s", v->segment->seq, rc_text(v->rc));
            v->is_damaged = true;
            continue;
        }
        for (uint32_t k = 0; k < v->runs_count; k++) {
            plan_disk_run(c, i, &v->runs[k]);
        }
        free(v->runs);
        v->runs = NULL;
    }
    c->items_count = (uint32_t)(c->items.len / sizeof(struct compact_item));
    if (c->items_count == 0 || w->has_failed) {
        plan_end(w, &c->plan);
        return;
    }
    qsort(c->items.ptr, c->items_count, sizeof(struct compact_item), compare_items);
    c->segment_seq = store_next_segment(w->store);  // In the turn of the plan: above every floor of the groups in it.
    c->job = (struct job){.run = compaction_copy_slice, .done = copy_done};
    c->is_paused = true;
    c->resume_at = 0;
}

// ---- publishing ---------------------------------------------------------------------------------

static void publish_run(struct store_worker *w, const struct compaction *c, const struct compact_item *item,
                        struct segment *s)
{
    struct glog *g = map_get(&w->groups, item->group);
    const uint32_t at = g == NULL ? 0 : glog_runs_find(g, item->index);
    if (g == NULL || at == g->runs_count || g->runs[at].first != item->index ||
        g->runs[at].segment != c->victims[item->victim].segment) {
        return;
    }
    const struct run_disk *disk = (const struct run_disk *)(const void *)c->writer.runs.ptr + item->runs_at;
    const uint64_t end = run_last(&g->runs[at]);
    struct run *runs = mem_alloc(item->runs_count * sizeof(*runs));
    uint32_t count = 0;
    for (uint32_t i = 0; i < item->runs_count && disk[i].first <= end; i++) {
        const struct run_disk *d = &disk[i];
        uint64_t last = d->first + d->span;  // What is cut lies above the snapshot: it is dense.
        last = last < end ? last : end;
        struct run r = run_of(d, s, d->first, last);
        const uint64_t live = glog_live_in(g, &r);
        r.live = live < r.count ? (uint32_t)live : r.count;
        if (r.live > 0) {
            segment_hold(s);
            runs[count++] = r;
        }
    }
    glog_replace_run(g, at, runs, count);
    free(runs);
}

static void publish_snapshot(struct store_worker *w, const struct compaction *c, const struct compact_item *item,
                             struct segment *s)
{
    struct glog *g = map_get(&w->groups, item->group);
    struct segment *from = c->victims[item->victim].segment;
    if (g == NULL || g->snapshot == NULL || g->snapshot->segment != from || g->snapshot->index != item->index ||
        g->snapshot->position != item->position) {
        return;
    }
    struct snapshot *snap = g->snapshot;  // The value is the same; only where it lies is not.
    snap->segment = NULL;
    snapshot_place(snap, s, item->new_position, item->bytes, item->chunks);
    segment_live_sub(w, from, item->bytes);
    segment_release(w, from);
}

static void publish(struct compaction *c)
{
    struct store_worker *w = c->worker;
    struct segment *s = c->file_bytes == 0 ? NULL : segment_create(w, &c->writer, c->file_bytes);
    struct compact_item *items = (struct compact_item *)(void *)c->items.ptr;
    for (uint32_t i = 0; i < c->items_count; i++) {
        struct compact_item *item = &items[i];
        if (item->damage != RC_OK) {
            c->victims[item->victim].is_damaged = true;
            store_read_failed(w, item->group, item->damage,
                              item->is_snapshot ? "its snapshot, read to be copied" : "an entry, read to be copied");
        } else if (item->is_snapshot) {
            publish_snapshot(w, c, item, s);
        } else {
            publish_run(w, c, item, s);
        }
    }
    if (s != NULL) {
        log_debug("store: %u segments became segment %" PRIu64 " of %" PRIu64 " bytes", c->victims_count,
                  s->seq, s->bytes);
        segment_release(w, s);
    }
}

static void copy_done(struct job *job)
{
    struct compaction *c = container_of(job, struct compaction, job);
    struct store_worker *w = c->worker;
    if (c->rc == RC_MORE) {
        c->is_paused = true;
        c->resume_at = 0;
        return;
    }
    if (c->rc == RC_OK) {
        publish(c);
        w->compacting.finished++;
        w->compacting.copied_bytes += c->file_bytes;
    } else if (c->rc == RC_NO_SPACE) {
        c->is_out_of_space = true;  // compact_turn knows the time.
        return;
    }
    plan_end(w, &c->plan);
}

// ---- pace ---------------------------------------------------------------------------------------

static uint64_t average(uint64_t before, uint64_t now)
{
    return before == 0 ? now : (before * 7 + now) / 8;
}

// How long the WAL takes, with and without us.
static void watch_wal(struct store_worker *w, uint64_t now_ns)
{
    struct compacting *k = &w->compacting;
    if (k->watched != 0 && w->completed >= k->watched) {
        const uint64_t took = now_ns - k->watched_at;
        uint64_t *latency = k->job != NULL && !k->job->is_paused ? &k->latency_busy : &k->latency_quiet;
        *latency = average(*latency, took);
        k->watched = 0;
    }
    if (k->watched == 0 && w->submitted > w->completed) {
        k->watched = w->submitted;
        k->watched_at = now_ns;
    }
}

// When the next slice may be written: bytes by rate, and the rate by what the last slice did to the WAL.
static uint64_t next_slice(struct store_worker *w, const struct compaction *c)
{
    struct compacting *k = &w->compacting;
    const uint64_t max = rate_max(w);
    if (k->latency_busy > 2 * k->latency_quiet + LATENCY_SLACK_NS) {
        k->rate = k->rate / 2 > max / RATE_PARTS ? k->rate / 2 : max / RATE_PARTS;
    } else {
        k->rate = k->rate + k->rate / 4 < max ? k->rate + k->rate / 4 : max;
    }
    k->latency_busy = 0;
    k->rate = k->rate == 0 ? 1 : k->rate;
    return c->slice_at + (uint64_t)((double)c->slice_bytes * 1e9 / (double)k->rate);
}

uint64_t compact_turn(struct store_worker *w, uint64_t now_ns)
{
    struct compacting *k = &w->compacting;
    struct compaction *c = k->job;
    if (w->has_failed) {
        return UINT64_MAX;
    }
    if (c == NULL) {
        if (!atomic_load_explicit(&k->shared_is_due, memory_order_relaxed)) {
            return UINT64_MAX;
        }
        compaction_start(w, now_ns);
        return k->job == NULL && atomic_load_explicit(&k->shared_is_due, memory_order_relaxed) ? k->look_at
                                                                                               : UINT64_MAX;
    }
    watch_wal(w, now_ns);
    if (c->is_out_of_space) {
        plan_end(w, &c->plan);
        k->look_at = now_ns + NO_SPACE_NS;
        return k->look_at;
    }
    if (!c->is_paused) {
        return UINT64_MAX;
    }
    if (c->resume_at == 0) {
        c->resume_at = next_slice(w, c);
    }
    if (now_ns < c->resume_at) {
        return c->resume_at;
    }
    c->is_paused = false;
    c->slice_at = now_ns;
    exec_submit(w->exec, &c->job);
    return UINT64_MAX;
}
