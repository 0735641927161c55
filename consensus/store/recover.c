// SPDX-License-Identifier: Apache-2.0
// Start-up: puts the logs together from the newest checkpoint, the tables of the sealed segments, and the
// WAL.
//
// Rules (README.md, "Precedence"): the checkpoint `n` knows every group as of the retirement of WAL file n,
// and which is the last index in segments (`dense_last`); the WAL from n + 1 on overrides segments. Entry
// runs of retired files > n do not count (their file is still there), snapshots always do; the highest
// snapshot of a group is the current one. A committed run is right whatever else claims the same index;
// otherwise the later origin is. What then is missing of dense log or live set makes the group amnesiac (law
// 2), never shorter in silence.
#include "consensus/store/core.h"
#include "node/base/reader.h"
#include <inttypes.h>
#include <stdio.h>

struct config_at {
    uint64_t index;
    struct config config;
};

// What is being put together of one group.
struct finding {
    struct glog *log;
    bool exists;  // In the checkpoint, or records after it and no tombstone behind them.
    bool is_amnesiac;
    bool has_live;           // Of the checkpoint's line.
    uint64_t line_snapshot;  // The checkpoint's snapshot index.
    struct buf line_config;  // Encoded.
    uint64_t line_config_index;
    uint64_t dense_last;
    struct term_run *terms;  // Of the window's entries.
    uint32_t terms_count;
    uint32_t terms_cap;
    struct config_at *configs;  // In the window, ascending.
    uint32_t configs_count;
    uint64_t window_bytes;
};

struct found_run {
    struct run_disk disk;
    struct segment *segment;
};

struct recovery {
    struct store *store;
    struct map groups;  // u64 -> struct finding.
    uint64_t checkpoint_seq;
    bool has_checkpoint;
    bool is_corrupt;         // Damage that cannot be pinned to groups.
    struct buf runs;         // struct found_run.
    struct buf segments;     // struct segment *.
    struct buf seqs;         // u64: segment numbers found.
    struct buf checkpoints;  // u64.
    struct buf junk;         // Names to remove, NUL-terminated.
    // WAL replay.
    uint64_t file_seq;
    uint32_t *chunks;  // Per worker: chunk of file_seq.
    bool *has_chunk;
    struct buf files;  // u64: WAL files met.
};

// ---- findings -----------------------------------------------------------------------------------

static struct finding *finding_of(struct recovery *r, uint64_t group)
{
    struct finding *f = map_get(&r->groups, group);
    if (f == NULL) {
        f = mem_zalloc(sizeof(*f));
        f->log = glog_create(store_worker_of(r->store, group), group);
        f->log->segment_floor = 0;
        buf_init(&f->line_config);
        map_put(&r->groups, group, f);
    }
    return f;
}

static void window_clear(struct finding *f, uint64_t from)
{
    struct glog *g = f->log;
    glog_cut(g, from);
    while (f->terms_count > 0 && f->terms[f->terms_count - 1].first >= from) {
        f->terms_count--;
    }
    while (f->configs_count > 0 && f->configs[f->configs_count - 1].index >= from) {
        f->configs_count--;
    }
    if (f->dense_last >= from) {
        f->dense_last = from - 1;
    }
}

// Numbers of segments must stay above every floor ever given out, also when the segments themselves are gone.
static void raise_floor(struct recovery *r, struct glog *g, uint64_t floor)
{
    g->segment_floor = floor;
    if (atomic_load(&r->store->shared_next_segment) < floor) {
        atomic_store(&r->store->shared_next_segment, floor);
    }
}

static void on_line(void *ctx, const struct checkpoint_line *l)
{
    struct finding *f = finding_of(ctx, l->group);
    f->exists = true;
    f->is_amnesiac = l->is_amnesiac;
    f->log->hard_state = l->hard_state;
    raise_floor(ctx, f->log, l->segment_floor);
    f->line_snapshot = l->snapshot_index;
    f->dense_last = l->dense_last;
    f->has_live = l->has_live;
    f->line_config_index = l->config.index;
    if (l->config.count > 0) {
        config_encode(&l->config, &f->line_config);
    }
}

// ---- the directory ------------------------------------------------------------------------------

static bool parse_name(const char *name, const char *prefix, uint64_t *seq, bool *is_temporary)
{
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0) {
        return false;
    }
    const char *digits = name + n;
    uint64_t v = 0;
    for (int i = 0; i < 16; i++) {
        char c = digits[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) {
            return false;
        }
        v = v << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *seq = v;
    *is_temporary = strcmp(digits + 16, ".tmp") == 0;
    return *is_temporary || digits[16] == '\0';
}

static void on_name(void *ctx, const char *name)
{
    struct recovery *r = ctx;
    uint64_t seq = 0;
    bool is_temporary = false;
    bool is_segment = parse_name(name, "seg-", &seq, &is_temporary);
    if (!is_segment && !parse_name(name, "groups-", &seq, &is_temporary)) {
        return;  // Not ours (CR-11).
    }
    if (is_temporary) {
        buf_printf(&r->junk, "seg/%s", name);
        buf_u8(&r->junk, 0);
    } else if (is_segment) {
        buf_u64(&r->seqs, seq);
    } else {
        buf_u64(&r->checkpoints, seq);
    }
}

static void remove_junk(struct recovery *r)
{
    struct disk *d = r->store->config.disk;
    for (size_t at = 0; at < r->junk.len;) {
        const char *path = (const char *)r->junk.ptr + at;
        if (d->unlink(d, path) != RC_OK) {
            log_warning("store: cannot remove %s", path);
        }
        at += strlen(path) + 1;
    }
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, 8);
    memcpy(&y, b, 8);
    return (x > y) - (x < y);
}

static uint64_t u64_at(const struct buf *b, size_t i)
{
    uint64_t v;
    memcpy(&v, b->ptr + i * 8, 8);
    return v;
}

static enum rc load_checkpoint(struct recovery *r)
{
    size_t n = r->checkpoints.len / 8;
    if (n == 0) {
        return RC_OK;
    }
    if (n > 0) {
        qsort(r->checkpoints.ptr, n, 8, compare_u64);
    }
    r->has_checkpoint = true;
    r->checkpoint_seq = u64_at(&r->checkpoints, n - 1);
    enum rc rc = checkpoint_read(r->store->config.disk, r->checkpoint_seq, on_line, r);
    if (rc == RC_CORRUPT || rc == RC_NO_FILE) {
        // Older ones cannot replace it: the WAL files behind them are gone.
        log_error("store: checkpoint %" PRIu64 " is damaged: every group on this node has lost its memory",
                  r->checkpoint_seq);
        r->is_corrupt = true;
        rc = RC_OK;
    }
    return rc;
}

static enum rc load_segments(struct recovery *r)
{
    struct disk *d = r->store->config.disk;
    size_t n = r->seqs.len / 8;
    if (n > 0) {
        qsort(r->seqs.ptr, n, 8, compare_u64);
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t seq = u64_at(&r->seqs, i);
        struct segment *s = NULL;
        struct run_disk *runs = NULL;
        uint32_t count = 0;
        if (atomic_load(&r->store->shared_next_segment) <= seq) {
            atomic_store(&r->store->shared_next_segment, seq + 1);
        }
        enum rc rc = segment_load(d, seq, &s, &runs, &count);
        if (rc == RC_CORRUPT) {
            // Who needs it will miss it (and is amnesiac then); it is left for whoever looks into the matter.
            log_error("store: segment %" PRIu64 " is damaged", seq);
            continue;
        }
        TRY(rc);
        segment_hold(s);  // Until all groups have been put together (clean_up).
        buf_bytes(&r->segments, &s, sizeof(s));
        for (uint32_t k = 0; k < count; k++) {
            struct found_run f = {.disk = runs[k], .segment = s};
            buf_bytes(&r->runs, &f, sizeof(f));
        }
        free(runs);
    }
    return RC_OK;
}

// ---- WAL replay ---------------------------------------------------------------------------------

static uint64_t replay_ref(struct recovery *r, struct store_worker *w, uint64_t file_seq,
                           uint64_t file_offset)
{
    if (file_seq != r->file_seq) {
        for (uint32_t i = 0; i < r->store->config.workers; i++) {
            if (r->has_chunk[i]) {
                arena_file_filled(&r->store->workers[i].arena, r->chunks[i]);
                r->has_chunk[i] = false;
            }
        }
        r->file_seq = file_seq;
        if (file_seq != 0) {
            buf_u64(&r->files, file_seq);
        }
    }
    if (w == NULL) {
        return REF_NONE;
    }
    if (!r->has_chunk[w->index]) {
        r->has_chunk[w->index] = true;
        r->chunks[w->index] = arena_add_file(&w->arena, file_seq);
    }
    assert(file_offset < UINT32_MAX);
    return ref_of(r->chunks[w->index], (uint32_t)file_offset);
}

static void replay_config(struct finding *f, uint64_t index, struct span payload)
{
    f->configs = mem_realloc(f->configs, (f->configs_count + 1) * sizeof(*f->configs));
    struct config_at *c = &f->configs[f->configs_count];
    c->index = index;
    if (config_decode(payload, &c->config) != RC_OK) {
        f->is_amnesiac = true;  // The sum was right: written by a version that we are not.
        return;
    }
    c->config.index = index;
    f->configs_count++;
}

static void replay_entry(struct finding *f, const struct wal_recovered *e, uint64_t ref)
{
    struct glog *g = f->log;
    uint64_t index = e->record.index, end = g->window_first + g->window_count;
    window_clear(f, index);  // What was there is overridden, truncate record or not.
    if (g->window_count > 0 && index > end) {
        glog_cut(
            g, 1);  // Does not join: only a snapshot between makes this right, which is looked at in the end.
    }
    if (g->window_count == 0) {
        g->window_first = index;
        f->terms_count = f->configs_count = 0;
    }
    glog_window_push(g, ref);
    g->last = index;
    f->window_bytes += record_size(e->record.len);
    if (f->terms_count == 0 || f->terms[f->terms_count - 1].term != e->record.term) {
        if (f->terms_count == f->terms_cap) {
            f->terms_cap = f->terms_cap == 0 ? 2 : f->terms_cap * 2;
            f->terms = mem_realloc(f->terms, f->terms_cap * sizeof(*f->terms));
        }
        f->terms[f->terms_count++] = (struct term_run){.first = index, .term = e->record.term};
    }
    if (e->record.kind == RECORD_CONFIG) {
        replay_config(f, index, e->payload);
    }
}

// Highest term wins; within it a vote beats no vote; two votes in one term cannot be (engine-notes §7.7).
static void replay_hard_state(struct finding *f, const struct wal_recovered *e)
{
    struct hard_state *hs = &f->log->hard_state;
    struct reader r = reader_of(e->payload);
    uint64_t vote = reader_u64(&r);
    if (reader_end(&r) != RC_OK) {
        f->is_amnesiac = true;
        return;
    }
    if (e->record.term > hs->term) {
        *hs = (struct hard_state){.term = e->record.term, .vote = vote};
    } else if (e->record.term == hs->term && vote != 0) {
        if (hs->vote != 0 && hs->vote != vote) {
            log_error("store: group %" PRIu64 " voted twice in term %" PRIu64, f->log->group, hs->term);
            f->is_amnesiac = true;
        }
        hs->vote = vote;
    }
}

static void replay_reset(struct finding *f)
{
    window_clear(f, 1);
    f->log->last = 0;
    f->window_bytes = 0;
}

static enum rc on_record(void *ctx, const struct wal_recovered *e)
{
    struct recovery *r = ctx;
    if (e->record.kind == RECORD_MARK || e->record.group == 0) {
        (void)replay_ref(r, NULL, e->file_seq, 0);
        return RC_OK;
    }
    struct finding *f = finding_of(r, e->record.group);
    uint64_t ref = replay_ref(r, f->log->worker, e->file_seq, e->file_offset);
    f->exists = e->record.kind != RECORD_TOMBSTONE;
    switch (e->record.kind) {
    case RECORD_ENTRY:
    case RECORD_CONFIG:
    case RECORD_NOOP:
        replay_entry(f, e, ref);
        break;
    case RECORD_HARD_STATE:
        replay_hard_state(f, e);
        break;
    case RECORD_TRUNCATE:
        if (e->record.flags & RECORD_FLAG_INSTALLED) {
            replay_reset(f);
        } else {
            window_clear(f, e->record.index);
        }
        break;
    case RECORD_TOMBSTONE:
        replay_reset(f);
        f->log->hard_state = (struct hard_state){0};
        raise_floor(r, f->log, e->record.index);
        f->line_snapshot = 0;
        f->is_amnesiac = false;
        break;
    default:
        log_warning("store: record of unknown kind %u in WAL file %" PRIu64, e->record.kind, e->file_seq);
        break;
    }
    return RC_OK;
}

static void on_corrupt_group(void *ctx, uint64_t group)
{
    finding_of(ctx, group)->is_amnesiac = true;
}

// ---- putting a group together -------------------------------------------------------------------

static int compare_runs(const void *a, const void *b)
{
    const struct found_run *x = a, *y = b;
    if (x->disk.group != y->disk.group) {
        return x->disk.group < y->disk.group ? -1 : 1;
    }
    // Within a group by precedence, best first: snapshots, committed runs, later origin, later segment.
    uint32_t px = x->disk.flags & RUN_SNAPSHOT ? 2 : x->disk.flags & RUN_COMMITTED ? 1 : 0;
    uint32_t py = y->disk.flags & RUN_SNAPSHOT ? 2 : y->disk.flags & RUN_COMMITTED ? 1 : 0;
    if (px != py) {
        return px > py ? -1 : 1;
    }
    if (px == 2 && x->disk.first != y->disk.first) {
        return x->disk.first > y->disk.first ? -1 : 1;
    }
    if (px == 0 && x->disk.origin != y->disk.origin) {
        return x->disk.origin > y->disk.origin ? -1 : 1;
    }
    if (x->segment->seq != y->segment->seq) {
        return x->segment->seq > y->segment->seq ? -1 : 1;
    }
    return x->disk.first < y->disk.first ? -1 : x->disk.first > y->disk.first;
}

static enum rc read_header(struct store_worker *w, uint64_t group, const struct found_run *f,
                           struct snapshot_header *out)
{
    struct buf bytes;
    buf_init(&bytes);
    uint64_t position = f->disk.index_pos;
    enum rc rc = RC_OK;
    for (uint32_t i = 0; i < f->disk.count; i++) {
        struct record_disk rec;
        struct span record;
        rc = cold_record(&w->cold, (struct cold_file){.seq = f->segment->seq, .is_segment = true}, position,
                         group, f->disk.first, &rec, &record);
        if (rc != RC_OK || !(rec.flags & RECORD_FLAG_HEADER)) {
            break;
        }
        buf_bytes(&bytes, record.ptr + RECORD_HEADER_BYTES, rec.len);
        position += record.len;
    }
    if (rc == RC_OK) {
        rc = snapshot_header_decode(buf_span(&bytes), out);
    }
    buf_deinit(&bytes);
    return rc;
}

// Makes the group's newest snapshot current (without cutting anything yet).
static void take_snapshot(struct finding *f, const struct found_run *run)
{
    struct glog *g = f->log;
    struct snapshot_header h = {0};
    enum rc rc = RC_OK;
    if (run->disk.first == f->line_snapshot && !f->has_live && f->line_config.len > 0) {
        rc = config_decode(buf_span(&f->line_config), &h.config);
        h.config.index = f->line_config_index;
    } else {
        rc = read_header(g->worker, g->group, run, &h);
    }
    if (rc != RC_OK) {
        log_error("store: snapshot %" PRIu64 " of group %" PRIu64 " is damaged", run->disk.first, g->group);
        f->is_amnesiac = true;
        return;
    }
    struct snapshot *s = snapshot_create(run->disk.first, run->disk.term, &h.config, buf_span(&h.live));
    s->segment = run->segment;
    segment_hold(s->segment);
    s->position = run->disk.index_pos;
    s->bytes = run->disk.bytes;
    s->chunks = run->disk.count;
    g->snapshot = s;
    buf_deinit(&h.live);
}

// Adds what of first..last of a run is not yet covered by better ones.
static void add_pieces(struct glog *g, const struct found_run *f, uint64_t first, uint64_t last)
{
    const struct run_disk *d = &f->disk;
    bool is_sparse = d->count != d->span + 1;
    uint64_t at = first;
    while (at <= last) {
        uint64_t end = last;
        bool is_covered = false;
        for (uint32_t i = 0; i < g->runs_count; i++) {
            const struct run *r = &g->runs[i];
            if (r->first <= at && run_last(r) >= at) {
                is_covered = true;
                at = run_last(r) + 1;
                break;
            }
            if (r->first > at && r->first <= end) {
                end = r->first - 1;
            }
        }
        if (is_covered) {
            continue;
        }
        if (is_sparse && (at != d->first || end != d->first + d->span)) {
            return;  // Overlapped by a better one that has all of it (a later installed snapshot).
        }
        struct run r = {.segment = f->segment, .first = at, .term = d->term, .span = (uint32_t)(end - at)};
        r.count = is_sparse ? d->count : r.span + 1;
        r.index_pos = (uint32_t)(d->index_pos / 4 + (is_sparse ? 0 : at - d->first));
        r.bytes = (uint32_t)(d->bytes / 8 * r.count / d->count);
        r.live = r.count;
        segment_hold(r.segment);
        glog_add_run(g, &r);
        at = end + 1;
    }
}

// The newest snapshot that came from another node, if one is there: all that was live at its index is in its
// segment. A harvest that was planned before it came may have written some of that again; such a run, added
// first, would keep out the received one, which cannot be added in part.
static const struct found_run *received_of(const struct glog *g, const struct found_run *runs, uint32_t count)
{
    for (uint32_t i = 0; i < count && runs[i].disk.flags & RUN_SNAPSHOT; i++) {
        if (runs[i].segment->kind == SEGMENT_INSTALLED && runs[i].segment->seq >= g->segment_floor) {
            return &runs[i];  // Sorted by index, highest first.
        }
    }
    return NULL;
}

static void take_runs(struct recovery *r, struct finding *f, const struct found_run *runs, uint32_t count)
{
    struct glog *g = f->log;
    const struct found_run *received = received_of(g, runs, count);
    uint64_t snapshot = glog_snapshot_index(g);
    uint64_t window_first = g->window_count > 0 ? g->window_first : UINT64_MAX;
    uint64_t dense_last = f->dense_last > snapshot ? f->dense_last : snapshot;
    for (uint32_t i = 0; i < count; i++) {
        const struct run_disk *d = &runs[i].disk;
        if (d->flags & RUN_SNAPSHOT || runs[i].segment->seq < g->segment_floor) {
            continue;
        }
        uint64_t first = d->first, last = d->first + d->span;
        if (runs[i].segment->kind == SEGMENT_RETIRED && d->origin > r->checkpoint_seq) {
            continue;
        }
        if (d->flags & RUN_COMMITTED) {
            if (g->snapshot == NULL || first > snapshot) {
                continue;  // Its snapshot is lost; that is told elsewhere.
            }
            if (snapshot_live_between(g->snapshot, first, last) == 0) {
                continue;
            }
            if (received != NULL && last <= received->disk.first && runs[i].segment != received->segment) {
                continue;
            }
            add_pieces(g, &runs[i], first, last);
            glog_window_drop(g, first, last < snapshot ? last : snapshot);
            continue;
        }
        last = last < dense_last ? last : dense_last;
        last = last < window_first ? last : window_first - 1;
        if (first <= last) {
            add_pieces(g, &runs[i], first, last);
        }
    }
}

// The end of what is there without a gap behind the snapshot.
static uint64_t dense_end(const struct glog *g)
{
    uint64_t next = glog_snapshot_index(g) + 1;
    for (uint32_t i = 0; i < g->runs_count; i++) {
        if (run_last(&g->runs[i]) >= next && g->runs[i].first <= next) {
            next = run_last(&g->runs[i]) + 1;
        }
    }
    if (g->window_count > 0 && g->window_first <= next && g->window_first + g->window_count > next) {
        next = g->window_first + g->window_count;
    }
    return next - 1;
}

static uint64_t live_present(const struct glog *g)
{
    const struct snapshot *s = g->snapshot;
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->runs_count; i++) {
        uint64_t in_span = snapshot_live_between(s, g->runs[i].first, run_last(&g->runs[i]));
        n += in_span < g->runs[i].count ? in_span : g->runs[i].count;
    }
    for (uint64_t k = 0; k < g->window_count && g->window_first + k <= s->index; k++) {
        n += glog_window_ref(g, g->window_first + k) != REF_NONE;
    }
    return n;
}

static uint64_t window_term(const struct finding *f, uint64_t index)
{
    uint64_t term = 0;
    for (uint32_t i = 0; i < f->terms_count && f->terms[i].first <= index; i++) {
        term = f->terms[i].term;
    }
    return term;
}

static void assemble(struct recovery *r, struct finding *f, const struct found_run *runs, uint32_t count)
{
    struct glog *g = f->log;
    uint32_t i = 0;
    while (i < count && runs[i].disk.flags & RUN_SNAPSHOT && runs[i].segment->seq < g->segment_floor) {
        i++;
    }
    if (i < count && runs[i].disk.flags & RUN_SNAPSHOT) {
        take_snapshot(f, &runs[i]);
    }
    uint64_t snapshot = glog_snapshot_index(g);
    if (snapshot < f->line_snapshot) {
        log_error("store: snapshot %" PRIu64 " of group %" PRIu64 " is missing", f->line_snapshot, g->group);
        f->is_amnesiac = true;
    }
    // A tail that does not belong to the snapshot's history (an install whose mark did not reach the disk).
    if (snapshot > 0 && g->window_count > 0 && g->window_first <= snapshot && g->last > snapshot &&
        window_term(f, snapshot) != g->snapshot->term) {
        window_clear(f, snapshot + 1);
    }
    take_runs(r, f, runs, count);
    uint64_t wanted = g->window_count > 0 ? g->window_first + g->window_count - 1 : 0;
    wanted = wanted > f->dense_last ? wanted : f->dense_last;
    wanted = wanted > snapshot ? wanted : snapshot;
    g->last = wanted;
    if (g->snapshot != NULL) {
        struct snapshot *s = g->snapshot;
        g->snapshot = NULL;
        glog_publish_snapshot(g, s, 0);
        if (live_present(g) < s->live_entries) {
            log_error("store: group %" PRIu64 " lacks live entries below its snapshot", g->group);
            f->is_amnesiac = true;
        }
        // The window ends at `last` or is empty.
        while (g->window_count > 0 && g->window_first + g->window_count <= g->last) {
            glog_window_push(g, REF_NONE);
        }
    }
    uint64_t end = dense_end(g);
    if (end < wanted) {
        log_error("store: log of group %" PRIu64 " breaks off at %" PRIu64 ", had %" PRIu64, g->group, end,
                  wanted);
        f->is_amnesiac = true;
        window_clear(f, end + 1);
        g->last = end;
    }
    g->harvest_cut = UINT64_MAX;
}

// ---- reporting ----------------------------------------------------------------------------------

static void gather_terms(const struct finding *f, struct buf *out)
{
    const struct glog *g = f->log;
    uint64_t snapshot = glog_snapshot_index(g), term = 0, next = snapshot + 1;
    for (uint32_t i = 0; i < g->runs_count; i++) {
        const struct run *r = &g->runs[i];
        if (run_last(r) > snapshot && r->term != term) {
            struct term_run t = {.first = r->first > snapshot ? r->first : snapshot + 1, .term = r->term};
            buf_bytes(out, &t, sizeof(t));
            term = r->term;
        }
        next = run_last(r) >= next ? run_last(r) + 1 : next;
    }
    for (uint32_t i = 0; i < f->terms_count; i++) {
        uint64_t last = i + 1 < f->terms_count ? f->terms[i + 1].first - 1 : g->last;
        if (last >= next && f->terms[i].term != term && g->window_count > 0) {
            struct term_run t = {.first = f->terms[i].first > next ? f->terms[i].first : next,
                                 .term = f->terms[i].term};
            buf_bytes(out, &t, sizeof(t));
            term = t.term;
        }
    }
}

// The two newest configs behind the snapshot; those in segments have runs of their own.
static void gather_configs(struct finding *f, const struct found_run *runs, uint32_t count,
                           struct store_group *out)
{
    struct glog *g = f->log;
    uint64_t snapshot = glog_snapshot_index(g), best[2] = {0, 0};
    for (uint32_t i = 0; i < count; i++) {
        uint64_t index = runs[i].disk.first, ref = 0;
        const struct run *run = NULL;
        if (!(runs[i].disk.flags & RUN_CONFIG) || index <= snapshot ||
            runs[i].segment->seq < g->segment_floor || glog_find(g, index, &ref, &run) != WHERE_RUN ||
            run->segment != runs[i].segment || index == best[0] || index <= best[1]) {
            continue;
        }
        best[1] = index > best[0] ? best[0] : index;
        best[0] = index > best[0] ? index : best[0];
    }
    struct config found[4];  // Ascending.
    uint32_t n = 0;
    if (g->snapshot != NULL && g->snapshot->config_len > 0) {
        snapshot_config(g->snapshot, &found[n++]);
    }
    for (int i = 1; i >= 0; i--) {
        if (best[i] == 0) {
            continue;
        }
        uint64_t ref = 0, position = 0;
        const struct run *run = NULL;
        struct record_disk rec;
        struct span record;
        enum glog_where where = glog_find(g, best[i], &ref, &run);
        if (where != WHERE_RUN || cold_run_position(&g->worker->cold, run, best[i], &position) != RC_OK ||
            cold_record(&g->worker->cold, (struct cold_file){.seq = run->segment->seq, .is_segment = true},
                        position, g->group, best[i], &rec, &record) != RC_OK ||
            config_decode(span_of(record.ptr + RECORD_HEADER_BYTES, rec.len), &found[n]) != RC_OK) {
            log_error("store: configuration %" PRIu64 " of group %" PRIu64 " is damaged", best[i], g->group);
            f->is_amnesiac = true;
            continue;
        }
        found[n++].index = best[i];
    }
    uint32_t from = f->configs_count > 2 ? f->configs_count - 2 : 0;
    for (uint32_t i = from; i < f->configs_count; i++) {
        if (f->configs[i].index > snapshot) {
            if (n == 4) {
                memmove(&found[0], &found[1], sizeof(found) - sizeof(found[0]));
                n--;
            }
            found[n++] = f->configs[i].config;
        }
    }
    out->config.count = out->config_before.count = 0;
    if (n > 0) {
        out->config = found[n - 1];
        // What the snapshot holds is committed: nothing to roll back to.
        if (n > 1 && out->config.index > snapshot) {
            out->config_before = found[n - 2];
        }
    }
}

static void report(struct recovery *r, struct finding *f, const struct found_run *runs, uint32_t count,
                   store_group_fn *each, void *each_ctx)
{
    struct glog *g = f->log;
    struct buf terms;
    buf_init(&terms);
    struct store_group out = {
        .group = g->group,
        .log = g,
        .hard_state = g->hard_state,
        .first = glog_first(g),
        .last = g->last,
    };
    if (g->snapshot != NULL) {
        out.snapshot_index = g->snapshot->index;
        out.snapshot_term = g->snapshot->term;
        snapshot_config(g->snapshot, &out.snapshot_config);
    }
    gather_terms(f, &terms);
    out.runs = (const struct term_run *)(const void *)terms.ptr;
    out.runs_count = (uint32_t)(terms.len / sizeof(struct term_run));
    gather_configs(f, runs, count, &out);
    g->is_amnesiac = f->is_amnesiac || r->is_corrupt;
    out.is_amnesiac = g->is_amnesiac;
    g->bytes_appended = g->last > out.snapshot_index ? f->window_bytes : 0;
    each(each_ctx, &out);
    buf_deinit(&terms);
}

static void assemble_all(struct recovery *r, store_group_fn *each, void *each_ctx)
{
    struct found_run *runs = (struct found_run *)(void *)r->runs.ptr;
    uint32_t total = (uint32_t)(r->runs.len / sizeof(*runs));
    if (total > 0) {
        qsort(runs, total, sizeof(*runs), compare_runs);
    }
    uint32_t pos = 0;
    uint64_t group = 0;
    struct finding *f;
    while ((f = map_next(&r->groups, &pos, &group, NULL)) != NULL) {
        uint32_t low = 0, high = total;
        while (low < high) {
            uint32_t mid = low + (high - low) / 2;
            if (runs[mid].disk.group < group) {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        uint32_t count = 0;
        while (low + count < total && runs[low + count].disk.group == group) {
            count++;
        }
        if (f->exists || f->is_amnesiac) {
            assemble(r, f, runs + low, count);
            report(r, f, runs + low, count, each, each_ctx);
        } else {
            glog_free(f->log);
        }
    }
    for (uint32_t i = 0; i < r->store->config.workers; i++) {
        cold_end(&r->store->workers[i].cold);
    }
}

// Removes what nobody refers to: superseded segments, older checkpoints. Not after damage: evidence.
static void clean_up(struct recovery *r)
{
    struct disk *d = r->store->config.disk;
    char path[SEGMENT_PATH_MAX], name[SEGMENT_PATH_MAX - 8];
    for (size_t i = 0; i < r->segments.len / sizeof(struct segment *); i++) {
        struct segment *s;
        memcpy(&s, r->segments.ptr + i * sizeof(s), sizeof(s));
        if (atomic_fetch_sub(&s->shared_refs, 1) > 1) {
            continue;
        }
        segment_path(s->seq, true, path);
        if (!r->is_corrupt && d->unlink(d, path) != RC_OK) {
            log_warning("store: cannot remove %s", path);
        }
        free(s);
    }
    for (size_t i = 0; i + 1 < r->checkpoints.len / 8 && !r->is_corrupt; i++) {
        checkpoint_name(u64_at(&r->checkpoints, i), name, sizeof(name));
        snprintf(path, sizeof(path), "seg/%s", name);
        if (d->unlink(d, path) != RC_OK) {
            log_warning("store: cannot remove %s", path);
        }
    }
}

// ---- opening ------------------------------------------------------------------------------------

static struct store *store_create(const struct store_config *config)
{
    struct store *s = mem_zalloc(sizeof(*s));
    s->config = *config;
    s->workers = mem_zalloc(config->workers * sizeof(*s->workers));
    s->shared_next_segment = 1;
    pthread_mutex_init(&s->mutex, NULL);
    list_init(&s->rounds);
    for (uint32_t i = 0; i < config->workers; i++) {
        struct store_worker *w = &s->workers[i];
        w->store = s;
        w->index = i;
        arena_init(&w->arena, config->memtable_bytes / config->workers, config->wal_file_bytes);
        map_init_u64(&w->groups);
        map_init_u64(&w->snapshot_wanted);
        list_init(&w->active);
        list_init(&w->submissions);
        list_init(&w->free_submissions);
        list_init(&w->plans);
        list_init(&w->closed);
        list_init(&w->leaving);
        list_init(&w->doomed);
        cold_init(&w->cold, config->disk);
    }
    return s;
}

static enum rc open_wal(struct recovery *r, struct wal_report *report_out)
{
    struct store *s = r->store;
    const struct store_config *c = &s->config;
    struct wal_config wc = {
        .disk = c->disk,
        .dir = "wal",
        .file_bytes = c->wal_file_bytes,
        .align = c->wal_align,
        .random = c->random,
        .must_exist = c->must_exist,
        .on_file_closed = c->on_wal_file_closed,
        .on_done = c->on_wal_done,
        .ctx = c->wal_ctx,
    };
    memcpy(wc.cluster_id, c->cluster_id, sizeof(wc.cluster_id));
    TRY(wal_open(&wc, r->has_checkpoint ? r->checkpoint_seq + 1 : 1, on_record, r, on_corrupt_group,
                 report_out, &s->wal));
    (void)replay_ref(r, NULL, 0, 0);  // Lets go of the last file's chunks.
    if (report_out->is_corrupt && !report_out->corrupt_groups_known) {
        r->is_corrupt = true;
    }
    if (r->is_corrupt) {
        report_out->is_corrupt = true;
        report_out->corrupt_groups_known = false;
    }
    // They are retired by and by, as further files are closed.
    size_t n = r->files.len / 8;
    if (n > 0) {
        qsort(r->files.ptr, n, 8, compare_u64);
    }
    s->recovered_files = mem_alloc((n + 1) * sizeof(uint64_t));
    s->recovered_count = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        s->recovered_files[i] = u64_at(&r->files, i);
    }
    s->retired_through = s->checkpoint_seq = r->checkpoint_seq;
    return RC_OK;
}

static void recovery_deinit(struct recovery *r)
{
    uint32_t pos = 0;
    struct finding *f;
    while ((f = map_next(&r->groups, &pos, NULL, NULL)) != NULL) {
        buf_deinit(&f->line_config);
        free(f->terms);
        free(f->configs);
        free(f);
    }
    map_deinit(&r->groups);
    buf_deinit(&r->runs);
    buf_deinit(&r->segments);
    buf_deinit(&r->seqs);
    buf_deinit(&r->checkpoints);
    buf_deinit(&r->junk);
    buf_deinit(&r->files);
    free(r->chunks);
    free(r->has_chunk);
}

static enum rc recover(struct recovery *r, store_group_fn *each, void *each_ctx,
                       struct wal_report *report_out)
{
    struct disk *d = r->store->config.disk;
    TRY(d->make_dir(d, "seg"));
    TRY(d->list(d, "seg", on_name, r));
    remove_junk(r);
    TRY(load_checkpoint(r));
    TRY(load_segments(r));
    TRY(open_wal(r, report_out));
    assemble_all(r, each, each_ctx);
    clean_up(r);
    return RC_OK;
}

enum rc store_open(const struct store_config *config, store_group_fn *each, void *each_ctx,
                   struct wal_report *report_out, struct store **out)
{
    assert(config->workers > 0);
    struct store *s = store_create(config);
    struct recovery r = {.store = s};
    map_init_u64(&r.groups);
    buf_init(&r.runs);
    buf_init(&r.segments);
    buf_init(&r.seqs);
    buf_init(&r.checkpoints);
    buf_init(&r.junk);
    buf_init(&r.files);
    r.chunks = mem_zalloc(config->workers * sizeof(*r.chunks));
    r.has_chunk = mem_zalloc(config->workers * sizeof(*r.has_chunk));
    *report_out = (struct wal_report){0};
    enum rc rc = recover(&r, each, each_ctx, report_out);
    if (rc != RC_OK) {
        store_close(s);
        s = NULL;
        for (size_t i = 0; i < r.segments.len / sizeof(struct segment *); i++) {
            struct segment *segment;
            memcpy(&segment, r.segments.ptr + i * sizeof(segment), sizeof(segment));
            free(segment);  // All users are gone, the count of the recovery is the last one.
        }
    }
    recovery_deinit(&r);
    *out = s;
    return rc;
}
