// SPDX-License-Identifier: Apache-2.0
// Moving snapshots: reading one for a member that is behind, receiving one, loading one into the state
// machine.
//
// What is sent is records: the live entries in order, then all RECORD_SNAPSHOT chunks (header chunks first).
// The receiver writes them as they come into a segment under construction; the last piece checks that nothing
// is missing, seals the segment, and only then the log is replaced (P11), through glog_cut like any other cut
// (P12).
#include "consensus/store/read.h"

enum {
    LIVE_PER_PIECE = 1024,  // Live entries looked up for one piece.
    HOLD_RETIREMENTS =
        8,  // Retirements for which a snapshot that is being sent is kept, since its last piece.
    LOAD_BYTES = 1 << 20,
};
#define POSITION_CHUNKS                                                                                      \
    ((uint64_t)1 << 63)  // Position: a live index, or this flag and an offset in the chunks.

// ---- a walk over a snapshot's chunks ------------------------------------------------------------

struct chunks {
    struct segment *segment;  // Held.
    uint64_t group;
    uint64_t index;
    uint64_t position;  // Of chunk 0.
    uint64_t bytes;
    uint64_t at;  // Offset of the next record.
};

static void chunks_begin(struct chunks *c, const struct glog *g, uint64_t at)
{
    const struct snapshot *s = g->snapshot;
    *c = (struct chunks){.segment = s->segment,
                         .group = g->group,
                         .index = s->index,
                         .position = s->position,
                         .bytes = s->bytes,
                         .at = at};
    segment_hold(s->segment);
}

static void chunks_end(struct store_worker *w, struct chunks *c)
{
    if (c->segment != NULL) {
        segment_release(w, c->segment);
        c->segment = NULL;
    }
}

static enum rc chunk_at(const struct chunks *c, struct cold *cold, uint64_t at, struct span *record)
{
    struct record_disk r;
    const enum rc rc = cold_record(cold, (struct cold_file){.seq = c->segment->seq, .is_segment = true},
                                   c->position + at, c->group, c->index, &r, record);
    return rc == RC_OK && r.kind != RECORD_SNAPSHOT ? RC_CORRUPT : rc;
}

// Cold thread: where a transfer goes on is the receiver's word. RC_OK: a record begins there, or one before it is damaged.
static enum rc chunks_check(const struct chunks *c, struct cold *cold)
{
    uint64_t at = 0;
    struct span record;
    while (at < c->at && chunk_at(c, cold, at, &record) == RC_OK) {
        at += record.len;
    }
    cold_end(cold);
    return at <= c->at ? RC_OK : RC_INVALID;
}

// Cold thread: appends whole records until `to` holds `bytes_max` (at least one) or there are no more.
static enum rc chunks_read(struct chunks *c, struct cold *cold, size_t bytes_max, struct buf *to)
{
    enum rc rc = RC_OK;
    while (c->at < c->bytes) {
        struct span record;
        rc = chunk_at(c, cold, c->at, &record);
        if (rc != RC_OK || (to->len > 0 && to->len + record.len > bytes_max)) {
            break;
        }
        buf_span_bytes(to, record);
        c->at += record.len;
    }
    cold_end(cold);
    return rc;
}

// ---- sending ------------------------------------------------------------------------------------

struct sending {
    struct plan plan;
    struct store_worker *worker;
    uint64_t group;
    struct glog_snapshot_read *request;
    bool has_entries;
    struct read_plan entries;
    struct chunks chunks;
    enum rc early;  // Not RC_OK: nothing to do but to say so.
};

enum rc glog_snapshot_info(struct glog *g, struct glog_snapshot_info *out)
{
    if (g->snapshot == NULL) {
        return RC_NOT_FOUND;
    }
    out->index = g->snapshot->index;
    out->term = g->snapshot->term;
    snapshot_config(g->snapshot, &out->config);
    return RC_OK;
}

static void sending_free(struct store_worker *w, struct plan *p)
{
    struct sending *s = container_of(p, struct sending, plan);
    if (s->has_entries) {
        read_plan_end(&s->entries);
    }
    chunks_end(w, &s->chunks);
    free(s);
}

static void sending_run(struct job *job)
{
    struct glog_snapshot_read *r = container_of(job, struct glog_snapshot_read, job);
    struct sending *s = r->plan;
    struct cold *cold = &s->worker->cold;
    r->rc = s->early;
    if (r->rc != RC_OK) {
        return;
    }
    if (s->has_entries) {
        r->rc = read_plan_execute(&s->entries, r->bytes_max, &r->bytes);
        if (r->rc == RC_OK) {
            assert(s->entries.read_count > 0);
            r->position = s->entries.items[s->entries.read_count - 1].index + 1;
        }
        return;
    }
    const bool is_inside = s->chunks.at <= s->chunks.bytes;
    r->rc = is_inside ? chunks_read(&s->chunks, cold, r->bytes_max, &r->bytes) : RC_INVALID;
    if (r->rc == RC_CORRUPT && r->bytes.len == 0 && chunks_check(&s->chunks, cold) != RC_OK) {
        r->rc = RC_INVALID;  // Not this disk's fault.
    }
    r->position = POSITION_CHUNKS | s->chunks.at;
    r->is_last = r->rc == RC_OK && s->chunks.at == s->chunks.bytes;
}

static void sending_done(struct job *job)
{
    struct glog_snapshot_read *r = container_of(job, struct glog_snapshot_read, job);
    struct sending *s = r->plan;
    struct store_worker *w = s->worker;
    struct glog *g = map_get(&w->groups, s->group);
    if (r->rc == RC_OK && (g == NULL || glog_snapshot_index(g) != r->index)) {
        r->rc = RC_STALE;
    }
    if (r->rc != RC_OK) {
        store_read_failed(w, s->group, r->rc, "its snapshot or an entry that is live, read to be sent");
        r->bytes.len = 0;
        r->is_last = false;
    } else if (r->is_last) {
        g->hold = 0;
    }
    r->plan = NULL;
    plan_end(w, &s->plan);
    r->done(r);
}

// Plans the next live entries from index `from` on. False: there are none.
static bool plan_live(struct sending *s, struct glog *g, uint64_t from)
{
    const struct snapshot *snap = g->snapshot;
    uint64_t indexes[LIVE_PER_PIECE];
    uint32_t n = 0;
    for (uint32_t i = snapshot_live_find(snap, from); i < snap->live_count && n < LIVE_PER_PIECE; i++) {
        uint64_t k = snap->live[i].first > from ? snap->live[i].first : from;
        for (; k <= snap->live[i].last && n < LIVE_PER_PIECE; k++) {
            indexes[n++] = k;
        }
    }
    if (n > 0) {
        s->has_entries = true;
        read_plan_begin(&s->entries, g, indexes, n);
    }
    return n > 0;
}

void glog_snapshot_read_start(struct glog *g, struct glog_snapshot_read *r)
{
    struct sending *s = mem_zalloc(sizeof(*s));
    s->worker = g->worker;
    s->group = g->group;
    s->request = r;
    plan_begin(g->worker, &s->plan, sending_free);
    r->plan = s;
    r->rc = RC_PENDING;
    r->is_last = false;
    buf_init(&r->bytes);
    if (g->snapshot == NULL) {
        s->early = RC_NOT_FOUND;
    } else if (g->snapshot->index != r->index) {
        s->early = RC_STALE;
    } else {
        g->hold = HOLD_RETIREMENTS;
        if (r->position & POSITION_CHUNKS || !plan_live(s, g, r->position)) {
            chunks_begin(&s->chunks, g, r->position & POSITION_CHUNKS ? r->position & ~POSITION_CHUNKS : 0);
        }
    }
    r->job.run = sending_run;
    r->job.done = sending_done;
    exec_submit(g->worker->exec, &r->job);
}

// ---- receiving ----------------------------------------------------------------------------------

// One transfer into one group. Owner: the worker for `is_dropped`, the cold thread for the rest until the
// last piece.
struct receive {
    struct plan plan;
    struct job drop;
    struct store_worker *worker;
    uint64_t group;
    uint64_t index;
    uint64_t term;
    bool is_dropped;
    struct segment_writer writer;
    uint64_t last_entry;  // Highest live entry so far.
    uint64_t entries;
    uint32_t next_chunk;
    uint64_t state_bytes;
    bool has_header;
    struct buf header_bytes;
    struct snapshot_header header;
    uint64_t position;  // Of chunk 0.
    uint64_t bytes;
    uint64_t segment_seq;
    uint64_t segment_bytes;
};

static void receive_free(struct store_worker *w, struct plan *p)
{
    (void)w;
    struct receive *r = container_of(p, struct receive, plan);
    segment_writer_deinit(&r->writer);
    buf_deinit(&r->header_bytes);
    buf_deinit(&r->header.live);
    free(r);
}

static struct receive *receive_create(struct glog *g, const struct glog_snapshot_info *info)
{
    struct store_worker *w = g->worker;
    struct receive *r = mem_zalloc(sizeof(*r));
    r->worker = w;
    r->group = g->group;
    r->index = info->index;
    r->term = info->term;
    r->segment_seq = store_next_segment(w->store);
    segment_writer_init(&r->writer, w->store->config.disk, r->segment_seq, 0, SEGMENT_INSTALLED,
                        w->store->config.segment_reach);
    r->writer.more_room = reserve_for_segment;
    r->writer.more_room_ctx = w->store;
    buf_init(&r->header_bytes);
    buf_init(&r->header.live);
    plan_begin(w, &r->plan, receive_free);
    return r;
}

static void drop_run(struct job *job)
{
    struct receive *r = container_of(job, struct receive, drop);
    segment_writer_deinit(&r->writer);
    if (store_is_short(r->worker->store)) {
        reserve_restore_last(r->worker->store);
    }
}

static void drop_done(struct job *job)
{
    struct receive *r = container_of(job, struct receive, drop);
    plan_end(r->worker, &r->plan);
}

static void receive_drop(struct store_worker *w, struct receive *r)
{
    assert(!r->is_dropped);
    r->is_dropped = true;
    if (w->store->is_closing) {
        return;  // Its plan is freed with the others.
    }
    r->drop = (struct job){.run = drop_run, .done = drop_done};
    exec_submit(w->exec, &r->drop);
}

static enum rc receive_header(struct receive *r, const struct record_disk *rec, struct span record)
{
    if (!(rec->flags & RECORD_FLAG_HEADER)) {
        if (!r->has_header) {
            if (snapshot_header_decode(buf_span(&r->header_bytes), &r->header) != RC_OK) {
                return RC_MALFORMED;
            }
            r->has_header = true;
        }
        r->state_bytes += rec->len;
        return RC_OK;
    }
    if (r->has_header) {
        return RC_MALFORMED;
    }
    buf_bytes(&r->header_bytes, record.ptr + RECORD_HEADER_BYTES, rec->len);
    return RC_OK;
}

static enum rc receive_record(struct receive *r, const struct record_disk *rec, struct span record)
{
    if (rec->group != r->group) {
        return RC_MALFORMED;
    }
    if (record_has_index(rec->kind)) {
        if (r->next_chunk > 0 || rec->index <= r->last_entry || rec->index > r->index) {
            return RC_MALFORMED;
        }
        r->last_entry = rec->index;
        r->entries++;
        return segment_write_entry(&r->writer, rec, record, true);
    }
    if (rec->kind != RECORD_SNAPSHOT || rec->index != r->index || rec->term != r->term ||
        rec->aux != r->next_chunk) {
        return RC_MALFORMED;
    }
    TRY(receive_header(r, rec, record));
    if (r->next_chunk++ == 0) {
        segment_end_run(&r->writer);
    }
    uint64_t at = 0;
    TRY(segment_write_raw(&r->writer, record, &at));
    r->position = r->bytes == 0 ? at : r->position;
    r->bytes += record.len;
    assert(at + record.len == r->position + r->bytes);
    return RC_OK;
}

// Is all there that the header promises?
static enum rc receive_complete(struct receive *r)
{
    if (!r->has_header) {
        TRY(snapshot_header_decode(buf_span(&r->header_bytes), &r->header));
        r->has_header = true;
    }
    const struct live_range *live = (const struct live_range *)(const void *)r->header.live.ptr;
    uint64_t entries = 0;
    for (size_t i = 0; i < r->header.live.len / sizeof(*live); i++) {
        entries += live[i].last - live[i].first + 1;
        if (live[i].last > r->index) {
            return RC_MALFORMED;
        }
    }
    if (r->header.chunks != r->next_chunk || r->header.state_bytes != r->state_bytes ||
        entries != r->entries) {
        return RC_MALFORMED;
    }
    segment_add_snapshot(&r->writer, r->group, r->index, r->term, r->position, r->bytes, r->next_chunk);
    return segment_seal(&r->writer, &r->segment_bytes);
}

static enum rc receive_piece(struct receive *r, struct span bytes, bool is_last)
{
    while (bytes.len > 0) {
        struct record_disk rec;
        uint64_t size = 0;
        if (record_check(bytes, &rec, &size) != RC_OK) {
            return RC_MALFORMED;
        }
        TRY(receive_record(r, &rec, span_of(bytes.ptr, size)));
        bytes = span_of(bytes.ptr + size, bytes.len - size);
    }
    return is_last ? receive_complete(r) : RC_OK;
}

struct write_piece {
    struct plan plan;
    struct store_worker *worker;
    uint64_t group;
    struct receive *receive;  // NULL: `early` says why. Outlives the piece (its drop comes behind it).
    enum rc early;
};

static void piece_free(struct store_worker *w, struct plan *p)
{
    (void)w;
    free(container_of(p, struct write_piece, plan));
}

static void write_run(struct job *job)
{
    struct glog_snapshot_write *w = container_of(job, struct glog_snapshot_write, job);
    const struct write_piece *p = w->plan;
    w->rc = p->receive == NULL ? p->early : receive_piece(p->receive, buf_span(&w->bytes), w->is_last);
}

// The received snapshot replaces everything.
static void install(struct glog *g, struct receive *r)
{
    struct store_worker *w = g->worker;
    struct segment *s = segment_create(w, &r->writer, r->segment_bytes);
    glog_cut(g, 1);
    g->last = r->index;
    const struct run_disk *runs = (const struct run_disk *)(const void *)r->writer.runs.ptr;
    for (uint32_t i = 0; i < segment_runs_count(&r->writer); i++) {
        const struct run_disk *d = &runs[i];
        if (d->flags & RUN_SNAPSHOT) {
            continue;
        }
        const struct run run = run_of(d, s, d->first, d->first + d->span);
        segment_hold(s);
        glog_add_run(g, &run);
    }
    struct snapshot *snap = snapshot_create(r->index, r->term, &r->header.config, buf_span(&r->header.live));
    snapshot_place(snap, s, r->position, r->bytes, r->next_chunk);
    glog_publish_snapshot(g, snap, g->bytes_since);
    glog_put_control(g, RECORD_TRUNCATE, RECORD_FLAG_INSTALLED, r->index + 1, r->term, (struct span){0});
    segment_release(w, s);
}

// A sealed segment that is not wanted after all. Not by its writer: where the transfer was dropped that is the cold
// thread's, which may be giving it up.
static void discard_sealed(struct store_worker *w, const struct receive *r)
{
    const struct segment_writer sealed = {.seq = r->segment_seq, .kind = SEGMENT_INSTALLED};
    segment_release(w, segment_create(w, &sealed, r->segment_bytes));
}

static void write_done(struct job *job)
{
    struct glog_snapshot_write *req = container_of(job, struct glog_snapshot_write, job);
    struct write_piece *p = req->plan;
    struct store_worker *w = p->worker;
    struct receive *r = p->receive;
    struct glog *g = map_get(&w->groups, p->group);
    if (r != NULL && (r->is_dropped || g == NULL || map_get(&w->receives, p->group) != r)) {
        if (req->rc == RC_OK && req->is_last) {
            discard_sealed(w, r);
        }
        req->rc = RC_BUSY;  // Broken off, or another transfer took its place.
    } else if (r != NULL && req->rc != RC_OK) {
        glog_snapshot_write_abort(g);
    } else if (r != NULL && req->is_last) {
        map_remove(&w->receives, p->group);
        if (r->index > glog_snapshot_index(g)) {
            install(g, r);
        } else {
            discard_sealed(w, r);
            req->rc = RC_STALE;
        }
        plan_end(w, &r->plan);
    }
    buf_deinit(&req->bytes);
    req->plan = NULL;
    plan_end(w, &p->plan);
    req->done(req);
}

void glog_snapshot_write_start(struct glog *g, struct glog_snapshot_write *w)
{
    struct write_piece *p = mem_zalloc(sizeof(*p));
    p->worker = g->worker;
    p->group = g->group;
    plan_begin(g->worker, &p->plan, piece_free);
    struct receive *r = map_get(&g->worker->receives, g->group);
    if (r != NULL && (r->index != w->info.index || r->term != w->info.term)) {
        glog_snapshot_write_abort(g);  // Another transfer has begun.
        r = NULL;
    }
    if (w->info.index <= glog_snapshot_index(g)) {
        p->early = RC_STALE;
    } else {
        if (r == NULL) {
            r = receive_create(g, &w->info);
            map_put(&g->worker->receives, g->group, r);
        }
        p->receive = r;
    }
    w->plan = p;
    w->rc = RC_PENDING;
    w->job.run = write_run;
    w->job.done = write_done;
    exec_submit(g->worker->exec, &w->job);
}

void glog_snapshot_write_abort(struct glog *g)
{
    struct receive *r = map_remove(&g->worker->receives, g->group);
    if (r != NULL) {
        receive_drop(g->worker, r);
    }
}

// ---- loading ------------------------------------------------------------------------------------

struct loading {
    struct plan plan;
    struct store_worker *worker;
    struct chunks chunks;
    uint32_t next_chunk;
    bool is_missing;
};

static void loading_free(struct store_worker *w, struct plan *p)
{
    struct loading *l = container_of(p, struct loading, plan);
    chunks_end(w, &l->chunks);
    free(l);
}

static void load_run(struct job *job)
{
    struct glog_snapshot_load *l = container_of(job, struct glog_snapshot_load, job);
    struct loading *s = l->plan;
    l->bytes.len = 0;
    l->rc = s->is_missing ? RC_NOT_FOUND : chunks_read(&s->chunks, &s->worker->cold, LOAD_BYTES, &l->bytes);
}

static enum rc load_deliver(struct glog_snapshot_load *l, struct loading *s)
{
    struct span bytes = buf_span(&l->bytes);
    while (bytes.len > 0) {
        struct record_disk r;
        uint64_t size = 0;
        TRY(record_peek(bytes, &r, &size));  // Verified by the cold thread.
        if (r.aux != s->next_chunk++) {
            return RC_CORRUPT;
        }
        if (!(r.flags & RECORD_FLAG_HEADER)) {
            l->each(l, span_of(bytes.ptr + RECORD_HEADER_BYTES, r.len));
        }
        bytes = span_of(bytes.ptr + size, bytes.len - size);
    }
    return RC_OK;
}

static void load_done(struct job *job)
{
    struct glog_snapshot_load *l = container_of(job, struct glog_snapshot_load, job);
    struct loading *s = l->plan;
    struct store_worker *w = s->worker;
    enum rc rc = l->rc == RC_OK ? load_deliver(l, s) : l->rc;
    l->position = s->chunks.at;
    if (rc == RC_OK && s->chunks.at < s->chunks.bytes) {
        exec_submit(w->exec, &l->job);
        return;
    }
    l->rc = rc;
    l->plan = NULL;
    buf_deinit(&l->bytes);
    store_read_failed(w, s->chunks.group, rc, "its snapshot, read to be loaded");
    plan_end(w, &s->plan);
    l->done(l, rc);
}

void glog_snapshot_load_start(struct glog *g, struct glog_snapshot_load *l)
{
    struct loading *s = mem_zalloc(sizeof(*s));
    s->worker = g->worker;
    s->is_missing = g->snapshot == NULL;
    if (g->snapshot != NULL) {
        chunks_begin(&s->chunks, g, 0);
    }
    plan_begin(g->worker, &s->plan, loading_free);
    buf_init(&l->bytes);
    l->plan = s;
    l->rc = RC_PENDING;
    l->position = 0;
    l->job.run = load_run;
    l->job.done = load_done;
    exec_submit(g->worker->exec, &l->job);
}
