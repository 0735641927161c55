// SPDX-License-Identifier: Apache-2.0
// Start-up, second half: a group's log out of what was found of it.
//
// Rules (README.md, "Precedence"): the checkpoint `n` knows every group as of the retirement of WAL file n,
// and which is the last index in segments (`dense_last`); the WAL from n + 1 on overrides segments. Entry
// runs of retired files > n do not count (their file is still there), snapshots always do; the highest
// snapshot of a group is the current one. A committed run is right whatever else claims the same index;
// otherwise the later origin is. What then is missing of dense log or live set makes the group amnesiac (law
// 2), never shorter in silence.
#include "consensus/store/recover.h"
#include <inttypes.h>

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
static void take_snapshot(struct recovery *r, struct finding *f, const struct found_run *run)
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
    if (rc == RC_UNSUPPORTED) {
        log_error("store: snapshot %" PRIu64 " of group %" PRIu64 " was written by a later version", run->disk.first,
                  g->group);
        r->is_later = true;
        return;
    }
    if (rc != RC_OK) {
        log_error("store: snapshot %" PRIu64 " of group %" PRIu64 " is damaged", run->disk.first, g->group);
        f->is_amnesiac = true;
        return;
    }
    struct snapshot *s = snapshot_create(run->disk.first, run->disk.term, &h.config, buf_span(&h.live));
    snapshot_place(s, run->segment, run->disk.index_pos, run->disk.bytes, run->disk.count);
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
        const struct run r = run_of(d, f->segment, at, end);
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
        if (d->origin > r->checkpoint_seq) {
            continue;  // Of a retired file that is still there. 0 in snapshots that were asked for or received.
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

// The log goes on behind its snapshot in another history: a snapshot was received, and the mark that makes the log before
// void did not reach the disk.
static bool has_foreign_tail(const struct recovery *r, const struct finding *f, const struct found_run *runs,
                             uint32_t count)
{
    const struct glog *g = f->log;
    const struct snapshot *s = g->snapshot;
    if (s == NULL) {
        return false;
    }
    if (g->window_count > 0 && g->window_first <= s->index) {
        return g->last >= s->index && window_term(f, s->index) != s->term;
    }
    // Not by where it lies: it may have been merged, but then the segment it came in stays until the mark is durable.
    const struct found_run *received = received_of(g, runs, count);
    if (received == NULL || received->disk.first != s->index || s->index <= f->line_snapshot) {
        return false;
    }
    // The checkpoint does not know of it, and without the mark nothing was dropped for it: of the runs that reach it the
    // later origin is right.
    for (uint32_t i = 0; i < count && s->index <= f->dense_last; i++) {
        const struct run_disk *d = &runs[i].disk;
        if (!(d->flags & (RUN_SNAPSHOT | RUN_COMMITTED)) && runs[i].segment->seq >= g->segment_floor &&
            d->origin <= r->checkpoint_seq && d->first <= s->index && s->index - d->first <= d->span) {
            return d->term != s->term;
        }
    }
    return false;
}

// What was found of the group stays on disk: it is evidence, or what makes it useless is not durable yet.
static void keep_files(const struct found_run *runs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        runs[i].segment->is_evidence = true;
    }
}

static void assemble(struct recovery *r, struct finding *f, const struct found_run *runs, uint32_t count)
{
    struct glog *g = f->log;
    uint32_t i = 0;
    while (i < count && runs[i].disk.flags & RUN_SNAPSHOT && runs[i].segment->seq < g->segment_floor) {
        i++;
    }
    if (i < count && runs[i].disk.flags & RUN_SNAPSHOT) {
        take_snapshot(r, f, &runs[i]);
    }
    uint64_t snapshot = glog_snapshot_index(g);
    const uint64_t known = f->line_snapshot > f->installed ? f->line_snapshot : f->installed;
    if (snapshot < known) {
        log_error("store: snapshot %" PRIu64 " of group %" PRIu64 " is missing", known, g->group);
        f->is_amnesiac = true;
    }
    if (has_foreign_tail(r, f, runs, count)) {
        keep_files(runs, count);
        finding_cut(f, snapshot + 1);
        // Before anything is written behind the snapshot: the next start would find that behind the other history.
        glog_put_control(g, RECORD_TRUNCATE, RECORD_FLAG_INSTALLED, snapshot + 1, g->snapshot->term, (struct span){0});
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
        if (live_present(g) < snapshot_live_between(s, 1, s->index)) {
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
        finding_cut(f, end + 1);
        g->last = end;
    }
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

// One that lies in a segment.
static enum rc read_config(struct glog *g, uint64_t index, struct config *out)
{
    uint64_t ref = 0, position = 0;
    const struct run *run = NULL;
    struct record_disk rec;
    struct span record;
    if (glog_find(g, index, &ref, &run) != WHERE_RUN) {
        return RC_CORRUPT;
    }
    TRY(cold_run_position(&g->worker->cold, run, index, &position));
    TRY(cold_record(&g->worker->cold, (struct cold_file){.seq = run->segment->seq, .is_segment = true}, position,
                    g->group, index, &rec, &record));
    return config_decode(span_of(record.ptr + RECORD_HEADER_BYTES, rec.len), out);
}

// The two newest configs behind the snapshot; those in segments have runs of their own.
static void gather_configs(struct recovery *r, struct finding *f, const struct found_run *runs, uint32_t count,
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
    if (g->snapshot != NULL) {
        snapshot_config(g->snapshot, &found[0]);
        n += found[0].count > 0;
    }
    for (int i = 1; i >= 0; i--) {
        if (best[i] == 0) {
            continue;
        }
        enum rc rc = read_config(g, best[i], &found[n]);
        if (rc == RC_OK) {
            found[n++].index = best[i];
            continue;
        }
        log_error("store: configuration %" PRIu64 " of group %" PRIu64 " %s", best[i], g->group,
                  rc == RC_UNSUPPORTED ? "was written by a later version" : "is damaged");
        r->is_later |= rc == RC_UNSUPPORTED;
        f->is_amnesiac |= rc != RC_UNSUPPORTED;
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
    gather_configs(r, f, runs, count, &out);
    g->is_amnesiac = f->is_amnesiac || r->is_corrupt;
    if (g->is_amnesiac) {
        keep_files(runs, count);
    }
    out.is_amnesiac = g->is_amnesiac;
    out.is_hiding = f->is_hiding || r->is_corrupt;
    out.replica_id = g->replica_id;
    g->bytes_since = g->last > out.snapshot_index ? f->window_bytes : 0;
    each(each_ctx, &out);
    buf_deinit(&terms);
}

void recover_assemble(struct recovery *r, store_group_fn *each, void *each_ctx)
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
