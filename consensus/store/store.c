// SPDX-License-Identifier: Apache-2.0
// The workers' side of the store: turns, submissions, bookkeeping of what may be deleted.
//
// A submission's number is its turn's place in the worker's own order. "Everything laid down so far is durable" is
// always told by such a number, once both lanes have come so far: retirement and deletion wait for it,
// because what they act on (truncations, deletions) may itself not be durable yet, and a crash would bring
// back a log whose segments are gone.
#include "consensus/store/core.h"

enum { RECOVERED_FILES_KEPT = 2 };

uint64_t store_next_segment(struct store *s)
{
    return atomic_fetch_add_explicit(&s->shared_next_segment, 1, memory_order_relaxed);
}

struct store_worker *store_worker_of(struct store *s, uint64_t group)
{
    uint32_t i = s->config.workers == 1 || s->config.worker_of == NULL
                     ? (uint32_t)(group % s->config.workers)
                     : s->config.worker_of(s->config.worker_of_ctx, group);
    assert(i < s->config.workers);
    return &s->workers[i];
}

struct wal *store_wal(struct store *s)
{
    return s->wal;
}

static void file_closed(struct store_worker *w, uint64_t seq)
{
    struct closed_file *f = mem_zalloc(sizeof(*f));
    f->seq = seq;
    f->after = w->submitted;
    list_add_tail(&w->closed, &f->link);
    w->closed_seq = seq;
}

struct store_worker *store_worker_bind(struct store *s, uint32_t worker, struct exec *cold,
                                       const struct store_hooks *hooks)
{
    assert(worker < s->config.workers);
    struct store_worker *w = &s->workers[worker];
    assert(w->exec == NULL);
    w->exec = cold;
    w->hooks = *hooks;
    w->hooks.removal = hooks->removal != NULL ? hooks->removal : cold;
    // Left from before the start: the last few may wait until a new file is closed (their groups may be able
    // to take snapshots by then); a node that is restarted over and over must not gather them.
    for (uint32_t i = 0; i + RECOVERED_FILES_KEPT < s->recovered_count; i++) {
        file_closed(w, s->recovered_files[i]);
    }
    return w;
}

// ---- plans --------------------------------------------------------------------------------------

void plan_begin(struct store_worker *w, struct plan *p,
                void (*free_fn)(struct store_worker *w, struct plan *p))
{
    p->free = free_fn;
    list_add_tail(&w->plans, &p->link);
}

void plan_end(struct store_worker *w, struct plan *p)
{
    list_remove(&p->link);
    p->free(w, p);
}

// ---- segments without users ---------------------------------------------------------------------

struct segment *segment_create(struct store_worker *w, const struct segment_writer *written, uint64_t bytes)
{
    struct segment *s = mem_zalloc(sizeof(*s));
    list_init(&s->link);
    s->seq = written->seq;
    s->kind = written->kind;
    s->origin = written->kind == SEGMENT_RETIRED ? written->origin : 0;
    s->base_shift = written->base_shift;
    s->bytes = bytes;
    s->data_bytes = segment_data_bytes((const struct run_disk *)(const void *)written->runs.ptr,
                                       segment_runs_count(written));
    segment_hold(s);
    segment_list(w->store, s, w->index);
    return s;
}

void segment_list(struct store *s, struct segment *segment, uint32_t home)
{
    pthread_mutex_lock(&s->mutex);
    segment->home = home;
    list_add_tail(&s->segments, &segment->all);
    s->segments_count++;
    pthread_mutex_unlock(&s->mutex);
    atomic_store_explicit(&s->workers[home].compacting.shared_is_due, true, memory_order_relaxed);
}

void segment_live_add(struct segment *s, uint64_t bytes)
{
    atomic_fetch_add_explicit(&s->shared_live_bytes, bytes, memory_order_relaxed);
}

void segment_live_sub(struct store_worker *w, struct segment *s, uint64_t bytes)
{
    uint64_t before = atomic_fetch_sub_explicit(&s->shared_live_bytes, bytes, memory_order_relaxed);
    assert(before >= bytes);
    atomic_store_explicit(&w->compacting.shared_is_due, true, memory_order_relaxed);
}

void segment_release(struct store_worker *w, struct segment *s)
{
    uint32_t before = atomic_fetch_sub_explicit(&s->shared_refs, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before > 1) {
        return;
    }
    struct store *store = w->store;
    pthread_mutex_lock(&store->mutex);
    list_remove(&s->all);
    store->segments_count--;
    pthread_mutex_unlock(&store->mutex);
    if (store->is_closing) {
        free(s);
        return;
    }
    // What made it useless may be in the arena or about to be laid down in this turn.
    s->doomed_after = w->submitted + 1;
    list_add_tail(&w->doomed, &s->link);
}

// ---- turns --------------------------------------------------------------------------------------

static struct submission *submission_take(struct store_worker *w, uint32_t ranges)
{
    struct list *item = list_pop(&w->free_submissions);
    struct submission *s;
    if (item != NULL) {
        s = container_of(list_entry(item, struct wal_submission, link), struct submission, base);
    } else {
        s = mem_zalloc(sizeof(*s));
        list_init(&s->base.link);
        list_init(&s->out);
        list_init(&s->notes);
        list_add_tail(&w->submissions, &s->all);
    }
    if (s->cap < ranges) {
        s->cap = ranges < 8 ? 8 : ranges * 2;
        s->ranges = mem_realloc(s->ranges, s->cap * sizeof(*s->ranges));
        s->base.ranges = mem_realloc(s->base.ranges, s->cap * sizeof(*s->base.ranges));
    }
    return s;
}

static void submission_free(struct submission *s)
{
    list_remove(&s->all);
    free(s->ranges);
    free(s->base.ranges);
    free(s);
}

// Begins a submission of this turn with room for `ranges`.
static struct submission *submission_begin(struct store_worker *w, uint64_t group, uint32_t ranges)
{
    struct submission *s = submission_take(w, ranges);
    s->base.bytes = 0;
    s->base.result = RC_PENDING;
    s->base.owner = w;
    s->base.group = group;
    s->base.ranges_count = 0;
    s->number = w->submitted;
    list_add_tail(&w->out[group == 0 ? LANE_ORDINARY : LANE_LARGE], &s->out);
    return s;
}

static void submission_add(struct submission *s, const struct arena_range *r)
{
    s->ranges[s->base.ranges_count] = *r;
    s->base.ranges[s->base.ranges_count] = (struct wal_range){.ptr = r->chunk->mem + r->start, .len = r->len};
    s->base.ranges_count++;
    s->base.bytes += r->len;
}

static void submit(struct store_worker *w, struct list *notes)
{
    struct arena_lane *a = &w->arena.lanes[LANE_ORDINARY];
    if (a->pending_count == 0 && (notes == NULL || list_is_empty(notes))) {
        return;
    }
    struct submission *s = submission_begin(w, 0, a->pending_count);
    if (notes != NULL) {
        list_splice(&s->notes, notes);
    }
    for (uint32_t i = 0; i < a->pending_count; i++) {
        submission_add(s, &a->pending[i]);
    }
    a->pending_count = 0;
    w->hooks.submit(w->hooks.ctx, &s->base);
}

// This turn's submission of a group: the newest of the large ones on their way that bears its name and the
// turn's number.
static struct submission *submission_of(struct store_worker *w, uint64_t group, uint32_t ranges)
{
    for (struct list *l = w->out[LANE_LARGE].prev; l != &w->out[LANE_LARGE]; l = l->prev) {
        struct submission *s = list_entry(l, struct submission, out);
        if (s->number != w->submitted) {
            break;
        }
        if (s->base.group == group) {
            return s;
        }
    }
    return submission_begin(w, group, ranges);
}

// One submission a group. There are few such groups at any time.
static void submit_large(struct store_worker *w, struct list *notes)
{
    struct arena_lane *a = &w->arena.lanes[LANE_LARGE];
    for (uint32_t i = 0; i < a->pending_count; i++) {
        submission_add(submission_of(w, a->pending[i].group, a->pending_count), &a->pending[i]);
    }
    a->pending_count = 0;
    struct list *l;
    while (notes != NULL && (l = list_pop(notes)) != NULL) {
        struct submission *s = submission_of(w, list_entry(l, struct store_note, link)->group, 0);
        list_add_tail(&s->notes, l);
    }
    // From the first of this turn on. Handing one in does not move it in this list.
    struct list *first = &w->out[LANE_LARGE];
    while (first->prev != &w->out[LANE_LARGE] &&
           list_entry(first->prev, struct submission, out)->number == w->submitted) {
        first = first->prev;
    }
    for (l = first; l != &w->out[LANE_LARGE]; l = l->next) {
        struct submission *s = list_entry(l, struct submission, out);
        struct glog *g = map_get(&w->groups, s->base.group);
        if (g != NULL) {
            g->large_until = s->number;
        }
        w->hooks.submit(w->hooks.ctx, &s->base);
    }
}

uint64_t store_large_until(const struct store_worker *w, uint64_t group)
{
    const struct arena_lane *a = &w->arena.lanes[LANE_LARGE];
    for (uint32_t i = 0; i < a->pending_count; i++) {
        if (a->pending[i].group == group) {
            return w->submitted + 1;
        }
    }
    for (const struct list *l = w->out[LANE_LARGE].prev; l != &w->out[LANE_LARGE]; l = l->prev) {
        const struct submission *s = list_entry((struct list *)(uintptr_t)l, struct submission, out);
        if (s->base.group == group) {
            return s->number;
        }
    }
    return 0;
}

bool store_worker_keeps(void *ctx, const uint8_t *record)
{
    const struct store_worker *w = ctx;
    struct record_disk r;
    memcpy(&r, record, sizeof(r));
    return w->hooks.applied != NULL && record_has_index(r.kind) && w->arena.bytes < w->arena.budget + KEPT_BYTES_MAX &&
           r.index > w->hooks.applied(w->hooks.ctx, r.group);
}

uint64_t store_worker_tidy(struct store_worker *w, uint64_t now_ns)
{
    const uint64_t compact = compact_turn(w, now_ns);
    const uint64_t removal = removal_turn(w, now_ns);
    return w->arena.is_sparing ? now_ns : compact < removal ? compact : removal;
}

static bool has_any(const struct list *l)
{
    return l != NULL && !list_is_empty(l);
}

void store_worker_flush(struct store_worker *w, struct list *notes, struct list *large_notes)
{
    assert(w->exec != NULL);  // Bound.
    if (arena_has_pending(&w->arena) || has_any(notes) || has_any(large_notes)) {
        w->submitted++;
        submit(w, notes);
        submit_large(w, large_notes);
    }
    arena_turn(&w->arena, store_worker_keeps, w);
    if (!w->has_failed) {
        harvest_pump(w);
        removal_pump(w);
    }
}

enum rc store_worker_wal_done(struct store_worker *w, struct wal_submission *base, struct list *notes_out)
{
    struct submission *s = container_of(base, struct submission, base);
    assert(s->base.owner == w);
    const enum arena_lane_id lane = base->group != 0 ? LANE_LARGE : LANE_ORDINARY;
    assert(lane == LANE_LARGE || w->out[lane].next == &s->out);  // In order.
    list_remove(&s->out);
    struct glog *g = lane == LANE_LARGE ? map_get(&w->groups, base->group) : NULL;
    if (g != NULL && g->large_until == s->number) {
        g->large_until = 0;
    }
    w->completed = w->submitted;
    for (int i = 0; i < LANES; i++) {
        if (!list_is_empty(&w->out[i])) {
            const uint64_t first = list_entry(w->out[i].next, struct submission, out)->number;
            w->completed = first - 1 < w->completed ? first - 1 : w->completed;
        }
    }
    enum rc rc = base->result;
    if (rc == RC_OK) {
        for (uint32_t i = 0; i < base->ranges_count; i++) {
            arena_range_durable(&w->arena, &s->ranges[i], base->ranges[i].file_seq,
                                base->ranges[i].file_offset);
        }
    } else {
        w->has_failed = true;
    }
    if (lane == LANE_LARGE && list_is_empty(&w->out[LANE_LARGE]) && w->arena.lanes[LANE_LARGE].pending_count == 0) {
        arena_lane_end(&w->arena, LANE_LARGE);
    }
    list_splice(notes_out, &s->notes);
    list_init(&base->link);
    list_add_head(&w->free_submissions, &base->link);
    return rc;
}

void store_worker_file_closed(struct store_worker *w, uint64_t file_seq)
{
    const struct store *s = w->store;
    for (uint32_t i = 0; i < s->recovered_count; i++) {
        if (s->recovered_files[i] > w->closed_seq && s->recovered_files[i] < file_seq) {
            file_closed(w, s->recovered_files[i]);
        }
    }
    if (file_seq > w->closed_seq) {
        file_closed(w, file_seq);
    }
    w->is_harvest_blocked = false;
}

uint64_t store_worker_submission(const struct store_worker *w)
{
    return w->submitted + 1;
}

void store_worker_idle(struct store_worker *w, bool is_idle)
{
    if (is_idle && !w->arena.is_idle) {
        arena_lane_end(&w->arena, LANE_ORDINARY);  // Also the chunk that is being filled need not stay.
        struct list *item;
        while ((item = list_pop(&w->free_submissions)) != NULL) {
            submission_free(container_of(list_entry(item, struct wal_submission, link), struct submission, base));
        }
    }
    w->arena.is_idle = is_idle;
}

uint64_t store_worker_memory(const struct store_worker *w)
{
    return arena_memory(&w->arena);
}

bool store_worker_is_over_budget(const struct store_worker *w)
{
    return arena_is_over_budget(&w->arena, LANE_ORDINARY);
}

uint64_t store_worker_unsynced_bytes(const struct store_worker *w)
{
    return w->arena.lanes[LANE_ORDINARY].unsynced_bytes;
}

uint32_t store_worker_groups_in_segments(const struct store_worker *w)
{
    return w->groups_in_segments;
}

// ---- closing ------------------------------------------------------------------------------------

static void worker_close(struct store_worker *w)
{
    uint32_t pos = 0;
    struct glog *g;
    while ((g = map_next(&w->groups, &pos, NULL, NULL)) != NULL) {
        glog_free(g);
    }
    while (!list_is_empty(&w->plans)) {
        plan_end(w, list_entry(w->plans.next, struct plan, link));
    }
    while (!list_is_empty(&w->doomed)) {
        free(list_entry(list_pop(&w->doomed), struct segment, link));
    }
    while (!list_is_empty(&w->closed)) {
        free(list_entry(list_pop(&w->closed), struct closed_file, link));
    }
    list_each(item, &w->submissions)
    {
        submission_free(list_entry(item, struct submission, all));
    }
    map_deinit(&w->groups);
    map_deinit(&w->snapshot_wanted);
    map_deinit(&w->receives);
    arena_deinit(&w->arena);
    cold_deinit(&w->cold);
}

void store_close(struct store *s)
{
    if (s == NULL) {
        return;
    }
    s->is_closing = true;
    wal_close(s->wal);
    for (uint32_t i = 0; i < s->config.workers; i++) {
        worker_close(&s->workers[i]);
    }
    while (!list_is_empty(&s->rounds)) {
        struct round *r = list_entry(list_pop(&s->rounds), struct round, link);
        buf_deinit(&r->lines);
        free(r);
    }
    pthread_mutex_destroy(&s->mutex);
    pthread_mutex_destroy(&s->reserve_mutex);
    free(s->workers);
    free(s->recovered_files);
    free(s);
}
