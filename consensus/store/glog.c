// SPDX-License-Identifier: Apache-2.0
// Problem: a group's log is spread over memory, WAL files and segments, and most groups' logs are empty.
// Idea: a window of 8-byte references for what is not in segments yet, a table of runs for what is, nothing
// for what is neither.
//
// Invariants (glog_check): the window, if not empty, ends at `last`; runs are ascending, disjoint and lie
// before the window's references; every reference counts in its chunk, every run in its segment; an index at
// or below the snapshot exists only if it is in the snapshot's live set.
#include "consensus/store/core.h"
#include "node/base/slab.h"

struct glog *glog_create(struct store_worker *w, uint64_t group)
{
    assert(map_get(&w->groups, group) == NULL);
    struct glog *g = slab_zalloc(sizeof(*g));
    g->worker = w;
    g->group = group;
    g->segment_floor = atomic_load(&w->store->shared_next_segment);
    g->large_until = store_large_until(w, group);  // The end of an earlier life may still be on its way.
    g->epoch = ++w->epochs;
    map_put(&w->groups, group, g);
    return g;
}

// In front of `runs`: an idle group's are in one place with their sums, and cost nothing before there are any.
struct runs_head {
    uint64_t bytes;  // Of the live entries (run_live_bytes),
    uint64_t live;   // and their number.
    uint64_t cap;    // Places in `runs`.
};

static struct runs_head *runs_head(const struct glog *g)
{
    assert(g->runs != NULL);
    return (struct runs_head *)(void *)g->runs - 1;
}

static void runs_grow(struct glog *g)
{
    struct runs_head *h = g->runs == NULL ? NULL : runs_head(g);
    const bool is_new = h == NULL;
    const uint64_t cap = is_new ? 2 : h->cap + h->cap / 2 + 1;
    h = mem_realloc(h, sizeof(*h) + cap * sizeof(*g->runs));
    if (is_new) {
        *h = (struct runs_head){0};
        g->worker->groups_in_segments++;
    }
    h->cap = cap;
    g->runs = (struct run *)(void *)(h + 1);
}

static void live_add(struct glog *g, const struct run *r)
{
    segment_live_add(r->segment, run_live_bytes(r));
    runs_head(g)->bytes += run_live_bytes(r);
    runs_head(g)->live += r->live;
}

static void live_sub(struct glog *g, const struct run *r)
{
    segment_live_sub(g->worker, r->segment, run_live_bytes(r));
    assert(runs_head(g)->bytes >= run_live_bytes(r));
    runs_head(g)->bytes -= run_live_bytes(r);
    runs_head(g)->live -= r->live;
}

static void run_drop(struct glog *g, struct run *r)
{
    live_sub(g, r);
    segment_release(g->worker, r->segment);
}

static void drop_runs(struct glog *g, uint32_t from)
{
    for (uint32_t i = from; i < g->runs_count; i++) {
        run_drop(g, &g->runs[i]);
    }
    g->runs_count = from;
    if (from == 0 && g->runs != NULL) {
        g->worker->groups_in_segments--;
        free(runs_head(g));
        g->runs = NULL;
    }
}

static void free_snapshot(struct glog *g)
{
    if (g->snapshot != NULL) {
        segment_live_sub(g->worker, g->snapshot->segment, g->snapshot->bytes);
        segment_release(g->worker, g->snapshot->segment);
        snapshot_free(g->snapshot);
        g->snapshot = NULL;
    }
}

void glog_free(struct glog *g)
{
    glog_cut(g, 1);
    free_snapshot(g);
    map_remove(&g->worker->snapshot_wanted, g->group);
    map_remove(&g->worker->groups, g->group);
    glog_snapshot_write_abort(g);
    slab_free(g, sizeof(*g));
}

struct glog *store_glog_create(struct store_worker *w, uint64_t group)
{
    return glog_create(w, group);
}

struct glog *store_glog_create_lost(struct store_worker *w, uint64_t group)
{
    struct glog *g = glog_create(w, group);
    g->is_amnesiac = true;
    return g;
}

struct glog *store_glog_find(struct store_worker *w, uint64_t group)
{
    return map_get(&w->groups, group);
}

void glog_delete(struct glog *g)
{
    // All segments up to now are of this life of the group; should it come back, under another replica id,
    // they are void.
    glog_put_control(g, RECORD_TOMBSTONE, 0, atomic_load(&g->worker->store->shared_next_segment), 0,
                     (struct span){0});
    glog_free(g);
}

uint64_t glog_first(const struct glog *g)
{
    return glog_snapshot_index(g) + 1;
}

uint64_t glog_last(const struct glog *g)
{
    return g->last;
}

uint64_t glog_bytes_since_snapshot(const struct glog *g)
{
    return g->bytes_since;
}

uint64_t glog_bytes_in_segments(const struct glog *g, uint64_t *entries_out)
{
    *entries_out = g->runs == NULL ? 0 : runs_head(g)->live;
    return g->runs == NULL ? 0 : runs_head(g)->bytes;
}

uint64_t glog_bytes_behind(const struct glog *g)
{
    uint64_t bytes = g->bytes_since;
    for (uint32_t i = glog_runs_find(g, glog_snapshot_index(g) + 1); i < g->runs_count; i++) {
        bytes += (uint64_t)g->runs[i].bytes * 8;
    }
    return bytes;
}

uint64_t glog_snapshot_live(const struct glog *g)
{
    return g->snapshot == NULL ? 0 : snapshot_live_between(g->snapshot, 1, g->snapshot->index);
}

void glog_set_replica(struct glog *g, uint64_t replica_id)
{
    assert(replica_id != 0);
    g->replica_id = replica_id;
}

uint64_t glog_replica(const struct glog *g)
{
    return g->replica_id;
}

bool glog_is_lost(const struct glog *g)
{
    return g->is_amnesiac;
}

static void put_hard_state(struct glog *g, uint16_t flags)
{
    uint8_t payload[16];
    memcpy(payload, &g->hard_state.vote, 8);
    memcpy(payload + 8, &g->replica_id, 8);
    glog_put_control(g, RECORD_HARD_STATE, flags, g->segment_floor, g->hard_state.term, span_of(payload, sizeof(payload)));
}

// ---- damage -------------------------------------------------------------------------------------

void glog_damaged(struct glog *g, enum rc rc, const char *what)
{
    struct store_worker *w = g->worker;
    if (disk_has_failed(w->store->config.disk) || w->store->is_closing || g->is_amnesiac) {
        return;  // A disk that has failed as a whole reads nothing: that says nothing of the group.
    }
    log_error("store: group %llu has lost its memory: %s: %s", (unsigned long long)g->group, what, rc_text(rc));
    g->is_amnesiac = true;
    put_hard_state(g, RECORD_FLAG_LOST);
    if (w->hooks.damaged != NULL) {
        w->hooks.damaged(w->hooks.ctx, g->group, rc);
    }
}

void store_read_failed(struct store_worker *w, uint64_t group, enum rc rc, const char *what)
{
    struct glog *g = rc_is_damage(rc) ? map_get(&w->groups, group) : NULL;
    if (g != NULL) {
        glog_damaged(g, rc, what);
    }
}

// ---- the window ---------------------------------------------------------------------------------

static uint64_t *slot(struct glog *g, uint64_t index)
{
    struct window *w = g->window;
    return &w->refs[(w->head + (uint32_t)(index - g->window_first)) & (w->cap - 1)];
}

static void window_free(struct window *w)
{
    list_remove(&w->active);
    slab_free(w, sizeof(*w) + w->cap * sizeof(w->refs[0]));
}

// The new one takes the old one's place in the worker's list.
static void window_resize(struct glog *g, uint32_t cap)
{
    assert(g->window_count <= cap);
    struct window *old = g->window, *w = slab_zalloc(sizeof(*w) + cap * sizeof(w->refs[0]));
    w->log = g;
    w->cap = cap;
    for (uint32_t i = 0; i < g->window_count; i++) {
        w->refs[i] = old->refs[(old->head + i) & (old->cap - 1)];
    }
    list_add_tail(old == NULL ? &g->worker->active : &old->active, &w->active);
    if (old != NULL) {
        window_free(old);
    }
    g->window = w;
}

// Gives memory back once only an eighth of it is used: a backlog that went to segments costs nothing here.
static void window_shrink(struct glog *g)
{
    if (g->window_count == 0) {
        window_free(g->window);
        g->window = NULL;
        return;
    }
    uint32_t cap = g->window->cap;
    if (cap <= 64 || g->window_count > cap / 8) {
        return;
    }
    while (cap > 64 && g->window_count <= cap / 4) {
        cap /= 2;
    }
    window_resize(g, cap);
}

void glog_window_push(struct glog *g, uint64_t ref)
{
    if (g->window == NULL) {
        window_resize(g, 2);  // An idle queue has two or three.
    } else if (g->window_count == g->window->cap) {
        window_resize(g, g->window->cap * 2);
    }
    struct window *w = g->window;
    w->refs[(w->head + g->window_count) & (w->cap - 1)] = ref;
    g->window_count++;
    if (ref != REF_NONE) {
        arena_ref_add(&g->worker->arena, ref);
    }
}

void glog_window_trim(struct glog *g)
{
    struct window *w = g->window;
    while (g->window_count > 0 && w->refs[w->head] == REF_NONE) {
        w->head = (w->head + 1) & (w->cap - 1);
        g->window_first++;
        g->window_count--;
    }
    if (w != NULL) {
        window_shrink(g);
    }
}

void glog_window_drop(struct glog *g, uint64_t first, uint64_t last)
{
    if (g->window_count == 0) {
        return;
    }
    uint64_t end = g->window_first + g->window_count;
    first = first < g->window_first ? g->window_first : first;
    for (uint64_t i = first; i <= last && i < end; i++) {
        uint64_t *s = slot(g, i);
        if (*s != REF_NONE) {
            arena_ref_drop(&g->worker->arena, *s);
            *s = REF_NONE;
        }
    }
    glog_window_trim(g);
}

// ---- runs ---------------------------------------------------------------------------------------

uint32_t glog_runs_find(const struct glog *g, uint64_t index)
{
    uint32_t low = 0, high = g->runs_count;  // First run whose last >= index.
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (run_last(&g->runs[mid]) < index) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

void glog_add_run(struct glog *g, const struct run *run)
{
    uint32_t at = glog_runs_find(g, run->first);
    assert(at == g->runs_count || run_last(run) < g->runs[at].first);
    if (g->runs == NULL || g->runs_count == runs_head(g)->cap) {
        runs_grow(g);
    }
    memmove(g->runs + at + 1, g->runs + at, (g->runs_count - at) * sizeof(*g->runs));
    g->runs[at] = *run;
    g->runs_count++;
    live_add(g, run);
}

void glog_replace_run(struct glog *g, uint32_t at, const struct run *runs, uint32_t count)
{
    assert(at < g->runs_count);
    struct run old = g->runs[at];
    g->runs_count--;
    memmove(g->runs + at, g->runs + at + 1, (g->runs_count - at) * sizeof(*g->runs));
    for (uint32_t i = 0; i < count; i++) {
        assert(runs[i].first >= old.first && run_last(&runs[i]) <= run_last(&old));
        glog_add_run(g, &runs[i]);
    }
    run_drop(g, &old);
    drop_runs(g, g->runs_count);  // Frees the table if it is empty.
}

uint64_t glog_live_in(const struct glog *g, const struct run *r)
{
    uint64_t last = run_last(r), snapshot = glog_snapshot_index(g);
    uint64_t live = g->snapshot == NULL ? 0 : snapshot_live_between(g->snapshot, r->first, last);
    if (last > snapshot) {
        live += last - (r->first > snapshot ? r->first - 1 : snapshot);
    }
    return live;
}

enum glog_where glog_find(const struct glog *g, uint64_t index, uint64_t *ref, const struct run **run)
{
    if (index == 0 || index > g->last) {
        return WHERE_NOWHERE;
    }
    if (index <= glog_snapshot_index(g) && !snapshot_is_live(g->snapshot, index)) {
        return WHERE_NOWHERE;
    }
    if (g->window_count > 0 && index >= g->window_first) {
        *ref = glog_window_ref(g, index);
        if (*ref != REF_NONE) {
            return WHERE_CHUNK;
        }
    }
    uint32_t at = glog_runs_find(g, index);
    if (at == g->runs_count || index < g->runs[at].first) {
        return WHERE_NOWHERE;
    }
    *run = &g->runs[at];
    return WHERE_RUN;
}

// ---- cutting ------------------------------------------------------------------------------------

void glog_cut(struct glog *g, uint64_t from)
{
    assert(from >= 1);
    if (g->window_count > 0) {
        uint64_t end = g->window_first + g->window_count;
        uint64_t keep = from > g->window_first ? from - g->window_first : 0;
        for (uint64_t i = g->window_first + keep; i < end; i++) {
            uint64_t ref = *slot(g, i);
            if (ref != REF_NONE) {
                arena_ref_drop(&g->worker->arena, ref);
            }
        }
        if (keep < g->window_count) {
            g->window_count = (uint32_t)keep;
            glog_window_trim(g);
        }
    }
    uint32_t at = glog_runs_find(g, from);
    if (at < g->runs_count && g->runs[at].first < from) {
        struct run *r = &g->runs[at];
        assert(r->count == r->span + 1);  // Only dense runs reach above the snapshot.
        uint32_t left = (uint32_t)(from - r->first);
        live_sub(g, r);
        r->bytes = (uint32_t)((uint64_t)r->bytes * left / r->count);
        r->count = left;
        r->span = left - 1;
        r->live = (uint32_t)glog_live_in(g, r);
        live_add(g, r);
        at++;
    }
    drop_runs(g, at);
    g->epoch = ++g->worker->epochs;
    if (g->is_harvested) {
        harvest_cut(g->worker, g->group, from);
    }
}

void glog_truncate(struct glog *g, uint64_t from)
{
    assert(from > glog_snapshot_index(g));
    if (from > g->last) {
        return;
    }
    glog_cut(g, from);
    g->last = from - 1;
    glog_put_control(g, RECORD_TRUNCATE, 0, from, 0, (struct span){0});
}

// Runs at or below the snapshot stay only with live entries in them.
static void filter_runs(struct glog *g)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < g->runs_count; i++) {
        struct run *r = &g->runs[i];
        uint64_t live = glog_live_in(g, r);
        if (live == 0) {
            run_drop(g, r);
            continue;
        }
        // A new live set is part of the one before, so what is in the span and live is in the run.
        live_sub(g, r);
        r->live = live < r->count ? (uint32_t)live : r->count;
        live_add(g, r);
        g->runs[kept++] = *r;
    }
    g->runs_count = kept;
    drop_runs(g, kept);
}

// Drops the window's references at or below the snapshot that are not live.
static void filter_window(struct glog *g)
{
    const struct snapshot *s = g->snapshot;
    if (g->window_count == 0 || g->window_first > s->index) {
        return;
    }
    uint64_t end = g->window_first + g->window_count;
    uint64_t stop = s->index + 1 < end ? s->index + 1 : end;
    uint32_t range = snapshot_live_find(s, g->window_first);
    for (uint64_t i = g->window_first; i < stop; i++) {
        while (range < s->live_count && s->live[range].last < i) {
            range++;
        }
        bool is_live = range < s->live_count && s->live[range].first <= i;
        uint64_t *ref = slot(g, i);
        if (!is_live && *ref != REF_NONE) {
            arena_ref_drop(&g->worker->arena, *ref);
            *ref = REF_NONE;
        }
    }
    glog_window_trim(g);
}

void glog_publish_snapshot(struct glog *g, struct snapshot *s, uint64_t bytes_before)
{
    assert(s->index > glog_snapshot_index(g));
    free_snapshot(g);
    g->snapshot = s;
    g->bytes_since -= bytes_before < g->bytes_since ? bytes_before : g->bytes_since;
    if (g->last < s->index) {
        g->last = s->index;
    }
    filter_window(g);
    filter_runs(g);
}

// ---- laying down --------------------------------------------------------------------------------

static uint64_t append_ref(struct glog *g, uint64_t index, uint64_t ref, uint32_t size)
{
    assert(index == g->last + 1);
    if (g->window_count == 0) {
        g->window_first = index;
    }
    glog_window_push(g, ref);
    g->last = index;
    g->bytes_since += size;
    return index;
}

// By which lane the group's next record goes, if it has `size` bytes.
static enum arena_lane_id lane_take(struct glog *g, uint64_t size)
{
    if (!glog_goes_large(g, size)) {
        return LANE_ORDINARY;
    }
    g->large_until = g->worker->submitted + 1;
    return LANE_LARGE;
}

static uint8_t *lay(struct glog *g, uint32_t size, uint64_t *ref)
{
    const enum arena_lane_id lane = lane_take(g, size);
    return arena_alloc(&g->worker->arena, lane, lane == LANE_LARGE ? g->group : 0, size, ref);
}

bool glog_is_large(const struct glog *g)
{
    return glog_goes_large(g, 0);
}

bool glog_is_over_budget(const struct glog *g, uint64_t bytes)
{
    return arena_is_over_budget(&g->worker->arena, glog_goes_large(g, bytes) ? LANE_LARGE : LANE_ORDINARY);
}

void glog_put_control(struct glog *g, uint16_t kind, uint16_t flags, uint64_t index, uint64_t term,
                      struct span payload)
{
    uint64_t ref = 0;
    uint32_t size = (uint32_t)record_size((uint32_t)payload.len);
    uint8_t *to = lay(g, size, &ref);
    struct record_disk r = {.len = (uint32_t)payload.len,
                            .group = g->group,
                            .index = index,
                            .term = term,
                            .kind = kind,
                            .flags = flags};
    memcpy(to, &r, sizeof(r));
    if (payload.len > 0) {
        memcpy(to + RECORD_HEADER_BYTES, payload.ptr, payload.len);
    }
    memset(to + RECORD_HEADER_BYTES + payload.len, 0, size - RECORD_HEADER_BYTES - payload.len);
    r.crc = crc32c(0, to + 4, RECORD_HEADER_BYTES - 4 + payload.len);
    memcpy(to, &r.crc, 4);
}

void glog_write_hard_state(struct glog *g, struct hard_state hs)
{
    assert(hs.term >= g->hard_state.term);
    g->hard_state = hs;
    put_hard_state(g, 0);
}

// Never pin much more than the record. Buffers grow by doubling; what is not used of them is not in memory.
static bool is_worth_sharing(const struct block *b, uint64_t size)
{
    return size + BLOCK_BYTES_MIN / 16 >= b->cap / 2;
}

// Copies a part of a payload with its sum. The pages of a source that nobody needs any more are given back on
// the way, so that a large message is not in memory twice.
static uint32_t part_copy(uint32_t crc, uint8_t *to, struct span from)
{
    if (!block_is_disposable(from)) {
        return crc32c_copy(crc, to, from.ptr, from.len);
    }
    for (size_t at = 0; at < from.len; at += BLOCK_BYTES_MIN) {
        const size_t n = from.len - at < BLOCK_BYTES_MIN ? from.len - at : BLOCK_BYTES_MIN;
        crc = crc32c_copy(crc, to + at, from.ptr + at, n);
        block_discard(span_of(from.ptr + at, n));
    }
    block_of(from)->is_discarded = true;
    return crc;
}

// A large last part that its owner gives away with the room around it becomes the record where it lies: what
// stands before the part is written in front of it, and the log shares the block. Its sum, if it was taken
// when it came, is carried over.
// False: not such a part.
static bool append_in_place(struct glog *g, struct record_disk *r, const struct glog_part *parts,
                            uint32_t parts_count, uint64_t *ref)
{
    if (parts_count == 0 || parts[parts_count - 1].len < BLOCK_BYTES_MIN) {
        return false;
    }
    const struct span last = span_of(parts[parts_count - 1].ptr, parts[parts_count - 1].len);
    const uint32_t size = (uint32_t)record_size(r->len);
    const size_t front = RECORD_HEADER_BYTES + r->len - last.len;
    const size_t padding = size - RECORD_HEADER_BYTES - r->len;
    if (!block_has_room(last, front, padding) || !is_worth_sharing(block_of(last), size)) {
        return false;
    }
    struct block *block = block_of(last);
    uint32_t last_sum;
    if (!block_sum(last, &last_sum)) {
        last_sum = crc32c(0, last.ptr, last.len);
    }
    uint8_t *to = block->ptr + (last.ptr - block->ptr) - front;
    uint8_t *at = to + RECORD_HEADER_BYTES;
    r->crc = crc32c(0, (const uint8_t *)r + 4, RECORD_HEADER_BYTES - 4);
    for (uint32_t i = 0; i + 1 < parts_count; i++) {
        memmove(at, parts[i].ptr, parts[i].len);  // It may lie there already.
        r->crc = crc32c(r->crc, at, parts[i].len);
        at += parts[i].len;
    }
    assert(at == last.ptr);
    r->crc = crc32c_combine(r->crc, last_sum, last.len);
    memcpy(to, r, sizeof(*r));
    memset(at + last.len, 0, padding);
    const size_t from = (size_t)(last.ptr - block->ptr);
    block_set_sum(block, from, from + last.len, last_sum);
    block->is_disposable = block->has_room = false;  // It is the log's now.
    const enum arena_lane_id lane = lane_take(g, size);
    arena_share(&g->worker->arena, lane, lane == LANE_LARGE ? g->group : 0, span_of(to, size), block, ref);
    return true;
}

enum rc glog_append(struct glog *g, uint64_t index, uint64_t term, enum record_kind kind, uint32_t aux,
                    const struct glog_part *parts, uint32_t parts_count, bool is_reserved)
{
    assert(index == g->last + 1);
    assert(record_has_index((uint16_t)kind));
    uint64_t len = 0;
    for (uint32_t i = 0; i < parts_count; i++) {
        len += parts[i].len;
    }
    assert(len <= RECORD_PAYLOAD_MAX);
    uint32_t size = (uint32_t)record_size((uint32_t)len);
    if (!is_reserved && glog_is_over_budget(g, size)) {
        return RC_FULL;
    }
    uint64_t ref = 0;
    struct record_disk r = {.len = (uint32_t)len,
                            .group = g->group,
                            .index = index,
                            .term = term,
                            .kind = (uint16_t)kind,
                            .aux = aux};
    if (append_in_place(g, &r, parts, parts_count, &ref)) {
        append_ref(g, index, ref, size);
        return RC_OK;
    }
    uint8_t *to = lay(g, size, &ref);
    uint32_t crc = crc32c(0, (const uint8_t *)&r + 4, RECORD_HEADER_BYTES - 4);
    uint8_t *at = to + RECORD_HEADER_BYTES;
    for (uint32_t i = 0; i < parts_count; i++) {
        crc = part_copy(crc, at, span_of(parts[i].ptr, parts[i].len));
        at += parts[i].len;
    }
    r.crc = crc;
    memcpy(to, &r, sizeof(r));
    memset(at, 0, (size_t)(to + size - at));
    append_ref(g, index, ref, size);
    return RC_OK;
}

enum rc glog_append_record(struct glog *g, struct span record)
{
    struct record_disk r;
    uint64_t size = 0;
    if (record_peek(record, &r, &size) != RC_OK || r.group != g->group || !record_has_index(r.kind)) {
        return RC_CORRUPT;
    }
    assert(r.index == g->last + 1);
    uint64_t ref = 0;
    struct block *block = size <= record.len ? block_of(span_of(record.ptr, size)) : NULL;
    if (block != NULL && is_worth_sharing(block, size)) {
        TRY(record_check(record, &r, &size));
        const enum arena_lane_id lane = lane_take(g, size);
        arena_share(&g->worker->arena, lane, lane == LANE_LARGE ? g->group : 0, span_of(record.ptr, size), block, &ref);
        append_ref(g, r.index, ref, (uint32_t)size);
        return RC_OK;
    }
    const uint64_t large_before = g->large_until;
    uint8_t *to = lay(g, (uint32_t)size, &ref);
    if (record_copy_checked(to, record, &size) != RC_OK) {
        arena_undo(&g->worker->arena, (uint32_t)size, ref);
        g->large_until = large_before;
        return RC_CORRUPT;
    }
    append_ref(g, r.index, ref, (uint32_t)size);
    return RC_OK;
}

// ---- reading from memory ------------------------------------------------------------------------

enum rc glog_get(struct glog *g, uint64_t index, struct entry *out)
{
    uint64_t ref = 0;
    const struct run *run = NULL;
    enum glog_where where = glog_find(g, index, &ref, &run);
    if (where == WHERE_NOWHERE) {
        return RC_NOT_FOUND;
    }
    const uint8_t *p = where == WHERE_CHUNK ? arena_ptr(&g->worker->arena, ref) : NULL;
    if (p == NULL) {
        return RC_COLD;
    }
    struct record_disk r;
    memcpy(&r, p, sizeof(r));
    assert(r.index == index);
    assert(r.group == g->group);
    *out = (struct entry){.group = g->group,
                          .index = index,
                          .term = r.term,
                          .kind = r.kind,
                          .flags = r.flags,
                          .aux = r.aux,
                          .payload = span_of(p + RECORD_HEADER_BYTES, r.len)};
    return RC_OK;
}

enum rc glog_ranges(struct glog *g, uint64_t from, uint64_t to, size_t bytes_max, struct iovec *iov,
                    int iov_max, int *iov_count, uint32_t *entries, struct term_run *runs, uint8_t runs_max,
                    uint8_t *runs_count)
{
    assert(iov_max > 0 && runs_max > 0);
    *iov_count = 0;
    *entries = 0;
    *runs_count = 0;
    if (from <= glog_snapshot_index(g) || from > g->last) {
        return RC_NOT_FOUND;
    }
    to = to < g->last ? to : g->last;
    size_t bytes = 0;
    for (uint64_t i = from; i <= to; i++) {
        if (g->window_count == 0 || i < g->window_first) {
            break;
        }
        const uint8_t *p = arena_ptr(&g->worker->arena, glog_window_ref(g, i));
        if (p == NULL) {
            break;
        }
        struct record_disk r;
        memcpy(&r, p, sizeof(r));
        assert(r.index == i);
        uint64_t size = record_size(r.len);
        if (*entries > 0 && bytes + size > bytes_max) {
            return RC_OK;
        }
        bool is_new_run = *runs_count == 0 || runs[*runs_count - 1].term != r.term;
        struct iovec *last = *iov_count == 0 ? NULL : &iov[*iov_count - 1];
        bool is_adjacent = last != NULL && (const uint8_t *)last->iov_base + last->iov_len == p;
        if ((is_new_run && *runs_count == runs_max) || (!is_adjacent && *iov_count == iov_max)) {
            return RC_OK;
        }
        if (is_new_run) {
            runs[(*runs_count)++] = (struct term_run){.first = i, .term = r.term};
        }
        if (is_adjacent) {
            last->iov_len += size;
        } else {
            iov[(*iov_count)++] = (struct iovec){.iov_base = (void *)(uintptr_t)p, .iov_len = size};
        }
        bytes += size;
        (*entries)++;
    }
    return *entries > 0 ? RC_OK : RC_COLD;
}
