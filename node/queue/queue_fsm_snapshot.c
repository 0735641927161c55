// SPDX-License-Identifier: Apache-2.0
// Snapshot and restore of the queue's state machine (engine-notes §2.6).
//
// A frozen state is the ready list's chunks by reference and everything else encoded at once ("the rest"): settings,
// sessions, consumers, unsettled and returned messages, big sizes. Chunks of a snapshot: u8 tag; PART: bytes
// of the rest, to be joined; READY: u32 priority, u32 count, references. Ready chunks of a priority come in
// order, the rest last.
// The digest is the sum over what a snapshot would hold, with references in list order, so it knows nothing of memory.
#include "node/base/crc32c.h"
#include "node/queue/queue_fsm_parts.h"
#include <stdlib.h>

enum { TAG_PART = 1, TAG_READY = 2, PART_BYTES = LIMIT_SNAPSHOT_CHUNK_BYTES - 64, REST_VERSION = 1 };

struct queue_snapshot {
    struct buf runs;      // struct queue_run.
    size_t runs_at;
    struct buf rest;
    size_t rest_at;
    struct buf others;    // queue_ref of returned and unsettled, for the live set.
};

static void encode_settings(const struct queue_fsm *f, struct buf *to)
{
    buf_u8(to, REST_VERSION);
    queue_command_configure(to, &f->settings);
    buf_u64(to, (uint64_t)f->stamp_ms);
    buf_u8(to, f->is_rejecting);
    buf_u8(to, f->has_more);
    buf_u32(to, f->nodes_count);
    for (uint32_t i = 0; i < f->nodes_count; i++) {
        buf_u32(to, f->nodes[i].node);
        buf_u32(to, f->nodes[i].worker);
        buf_u64(to, f->nodes[i].incarnation);
        buf_u64(to, f->nodes[i].highest);
    }
    buf_u32(to, f->returns.count);
    for (uint32_t i = 0; i < f->returns.count; i++) {
        const struct queue_returned *m = queue_returns_at(&f->returns, i);
        buf_u64(to, m->ref);
        buf_u32(to, m->acquired);
        buf_u32(to, m->failed);
    }
    buf_u32(to, f->big ? map_count(f->big) : 0);
    uint32_t pos = 0;
    uint64_t index;
    void *size;
    while (f->big && (size = map_next(f->big, &pos, &index, NULL)) != NULL) {
        buf_u64(to, index);
        buf_u64(to, (uint64_t)(uintptr_t)size);
    }
}

static void encode_session(const struct queue_fsm_session *s, struct buf *to)
{
    buf_u32(to, s->id.node);
    buf_u64(to, s->id.incarnation);
    buf_u64(to, s->id.counter);
    buf_u64(to, s->seq[QUEUE_STREAM_PUBLISH]);
    buf_u64(to, s->seq[QUEUE_STREAM_CONTROL]);
    buf_u64(to, s->known);
    buf_u8(to, s->query_kind);
    buf_u64(to, s->query_seq);
    buf_u64(to, s->query_number);
    buf_u64(to, s->query_ready);
    buf_u32(to, s->rejected_count);
    buf_bytes(to, s->rejected, s->rejected_count * sizeof(*s->rejected));
}

static void encode_consumer(const struct queue_fsm_consumer *c, struct buf *to)
{
    buf_u32(to, c->session->id.node);
    buf_u64(to, c->session->id.incarnation);
    buf_u64(to, c->session->id.counter);
    buf_u32(to, c->id);
    buf_u32(to, c->prefetch);
    buf_u32(to, c->credit);
    buf_u32(to, (uint32_t)c->priority);
    buf_u8(to, (uint8_t)(c->is_no_ack | c->is_exclusive << 1 | c->is_cancelled << 2));
    buf_str8(to, span_of(c->tag, c->tag_len));
    buf_u64(to, c->next_number);
    buf_u32(to, c->held);
    for (uint32_t i = c->start; i < c->len; i++) {
        const struct queue_unsettled *u = &c->unsettled[i];
        if (u->ref != 0) {
            buf_u64(to, u->number);
            buf_u64(to, u->ref);
            buf_u32(to, u->acquired);
            buf_u32(to, u->failed);
        }
    }
}

static uint32_t position_of(const struct queue_busy *b, const struct queue_fsm_consumer *c)
{
    uint32_t n = 0;
    list_each (l, &b->consumers) {
        if (l == &c->in_queue) {
            return n;
        }
        n++;
    }
    assert(false);
    return 0;
}

static void encode_busy(const struct queue_busy *b, struct buf *to)
{
    buf_u32(to, b ? b->sessions_count : 0);
    if (!b) {
        return;
    }
    list_each (l, &b->sessions) {
        encode_session(list_entry(l, struct queue_fsm_session, link), to);
    }
    buf_u32(to, b->consumers_count);
    // The places in the list of attachment stand in `mark` while the waiting lists are written.
    list_each (l, &b->consumers) {
        encode_consumer(list_entry(l, struct queue_fsm_consumer, in_queue), to);
    }
    buf_u32(to, b->active ? 1 + position_of(b, b->active) : 0);
    buf_u8(to, b->is_quiescing);
    uint64_t place = 0;
    list_each (l, &b->consumers) {
        list_entry(l, struct queue_fsm_consumer, in_queue)->mark = place++;
    }
    list_each (l, &b->classes) {
        struct queue_class *k = list_entry(l, struct queue_class, link);
        list_each (w, &k->waiting) {
            buf_u32(to, (uint32_t)list_entry(w, struct queue_fsm_consumer, waiting)->mark);
        }
    }
    list_each (l, &b->consumers) {
        list_entry(l, struct queue_fsm_consumer, in_queue)->mark = 0;
    }
}

static void collect_refs(const struct queue_fsm *f, struct buf *to)
{
    for (uint32_t i = 0; i < f->returns.count; i++) {
        buf_u64(to, queue_returns_at(&f->returns, i)->ref);
    }
    if (!f->busy) {
        return;
    }
    list_each (l, &f->busy->consumers) {
        struct queue_fsm_consumer *c = list_entry(l, struct queue_fsm_consumer, in_queue);
        for (uint32_t i = c->start; i < c->len; i++) {
            if (c->unsettled[i].ref != 0) {
                buf_u64(to, c->unsettled[i].ref);
            }
        }
    }
}

struct queue_snapshot *queue_fsm_freeze(struct queue_fsm *f)
{
    struct queue_snapshot *s = mem_zalloc(sizeof(*s));
    queue_ready_freeze(&f->ready, &s->runs);
    encode_settings(f, &s->rest);
    encode_busy(f->busy, &s->rest);
    collect_refs(f, &s->others);
    return s;
}

static bool write_runs(struct queue_snapshot *s, struct buf *to)
{
    struct queue_run run;
    memcpy(&run, s->runs.ptr + s->runs_at, sizeof(run));
    uint32_t priority = run.priority;
    buf_u8(to, TAG_READY);
    buf_u32(to, priority);
    size_t count_at = to->len;
    buf_u32(to, 0);
    uint32_t count = 0;
    size_t room = PART_BYTES / sizeof(queue_ref);
    while (s->runs_at < s->runs.len) {
        memcpy(&run, s->runs.ptr + s->runs_at, sizeof(run));
        if (run.priority != priority || count + (run.to - run.from) > room) {
            break;
        }
        buf_bytes(to, run.chunk->items + run.from, (run.to - run.from) * sizeof(queue_ref));
        count += run.to - run.from;
        s->runs_at += sizeof(run);
    }
    buf_patch_u32(to, count_at, count);
    return true;
}

bool queue_snapshot_chunk(struct queue_snapshot *s, struct buf *to)
{
    if (s->runs_at < s->runs.len) {
        return write_runs(s, to);
    }
    size_t n = s->rest.len - s->rest_at;
    if (n > PART_BYTES) {
        n = PART_BYTES;
    }
    buf_u8(to, TAG_PART);
    buf_bytes(to, s->rest.ptr + s->rest_at, n);
    s->rest_at += n;
    return s->rest_at < s->rest.len;
}

void queue_snapshot_free(struct queue_snapshot *s)
{
    queue_runs_release(&s->runs);
    buf_deinit(&s->rest);
    buf_deinit(&s->others);
    free(s);
}

// ---- live set ------------------------------------------------------------------------------------------------------

static void add_index(struct buf *out, uint64_t index)
{
    if (out->len >= sizeof(struct live_range)) {
        struct live_range last;
        memcpy(&last, out->ptr + out->len - sizeof(last), sizeof(last));
        if (last.last + 1 == index) {
            memcpy(out->ptr + out->len - sizeof(last.last), &index, sizeof(index));
            return;
        }
    }
    struct live_range r = {.first = index, .last = index};
    buf_bytes(out, &r, sizeof(r));
}

static int by_first(const void *a, const void *b)
{
    const struct live_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

void queue_snapshot_live(struct queue_snapshot *s, struct buf *out)
{
    struct buf ranges = {0};
    struct queue_run run;
    for (size_t at = 0; at < s->runs.len; at += sizeof(run)) {
        memcpy(&run, s->runs.ptr + at, sizeof(run));
        for (uint32_t i = run.from; i < run.to; i++) {
            add_index(&ranges, queue_ref_index(run.chunk->items[i]));
        }
    }
    for (size_t at = 0; at < s->others.len; at += sizeof(queue_ref)) {
        queue_ref ref;
        memcpy(&ref, s->others.ptr + at, sizeof(ref));
        add_index(&ranges, queue_ref_index(ref));
    }
    size_t count = ranges.len / sizeof(struct live_range);
    if (count > 0) {
        qsort(ranges.ptr, count, sizeof(struct live_range), by_first);
    }
    // Neighbours from different lists join.
    size_t start = out->len;
    for (size_t i = 0; i < count; i++) {
        struct live_range r, last;
        memcpy(&r, ranges.ptr + i * sizeof(r), sizeof(r));
        if (out->len > start) {
            memcpy(&last, out->ptr + out->len - sizeof(last), sizeof(last));
            assert(last.last < r.first);  // A message is in one place.
            if (last.last + 1 == r.first) {
                last.last = r.last;
                memcpy(out->ptr + out->len - sizeof(last), &last, sizeof(last));
                continue;
            }
        }
        buf_bytes(out, &r, sizeof(r));
    }
    buf_deinit(&ranges);
}

uint64_t queue_fsm_size_estimate(const struct queue_fsm *f)
{
    uint64_t n = 128 + f->ready_count * 8 + (uint64_t)f->returns.count * 16 + f->unacked_count * 24 +
                 f->nodes_count * 24ull;
    if (f->busy) {
        n += f->busy->sessions_count * 80ull + f->busy->consumers_count * 80ull;
    }
    return n;
}

uint64_t queue_fsm_digest(struct queue_fsm *f)
{
    struct queue_snapshot *s = queue_fsm_freeze(f);
    uint32_t rest = crc32c(0, s->rest.ptr, s->rest.len), ready = 0;
    struct queue_run run;
    for (size_t at = 0; at < s->runs.len; at += sizeof(run)) {
        memcpy(&run, s->runs.ptr + at, sizeof(run));
        for (uint32_t i = run.from; i < run.to; i++) {
            ready = crc32c(ready, &run.priority, sizeof(run.priority));
            ready = crc32c(ready, &run.chunk->items[i], sizeof(queue_ref));
        }
    }
    queue_snapshot_free(s);
    return (uint64_t)ready << 32 | rest;
}

// ---- restore -------------------------------------------------------------------------------------------------------

void queue_restore_begin(struct queue_restore *r, struct queue_fsm *f)
{
    struct queue_settings settings = f->settings;
    *r = (struct queue_restore){.fsm = f};
    queue_fsm_deinit(f);
    queue_fsm_init(f, &settings);
}

static enum rc restore_ready(struct queue_restore *r, struct reader *in)
{
    uint32_t priority = reader_u32(in), count = reader_u32(in);
    if (in->is_bad || priority >= QUEUE_PRIORITIES || reader_left(in) != (uint64_t)count * sizeof(queue_ref)) {
        return RC_MALFORMED;
    }
    for (uint32_t i = 0; i < count; i++) {
        queue_ref ref = reader_u64(in);
        if (queue_ref_index(ref) == 0) {
            return RC_MALFORMED;
        }
        queue_ready_push(&r->fsm->ready, priority, ref);
        r->fsm->ready_count++;
    }
    return RC_OK;
}

enum rc queue_restore_chunk(struct queue_restore *r, struct span chunk)
{
    struct reader in = reader_of(chunk);
    switch (reader_u8(&in)) {
    case TAG_READY:
        return restore_ready(r, &in);
    case TAG_PART:
        r->has_rest = true;
        buf_span_bytes(&r->rest, reader_span(&in, reader_left(&in)));
        return RC_OK;
    default:
        return RC_MALFORMED;
    }
}

static enum rc restore_settings(struct queue_fsm *f, struct reader *in)
{
    if (reader_u8(in) != REST_VERSION) {
        return RC_MALFORMED;
    }
    struct queue_settings *s = &f->settings;
    s->max_length = (int64_t)reader_u64(in);
    s->max_length_bytes = (int64_t)reader_u64(in);
    s->delivery_limit = (int64_t)reader_u64(in);
    s->metadata_version = reader_u64(in);
    s->is_reject_publish = reader_u8(in) != 0;
    s->is_single_active = reader_u8(in) != 0;
    f->stamp_ms = (int64_t)reader_u64(in);
    f->is_rejecting = reader_u8(in) != 0;
    f->has_more = reader_u8(in) != 0;
    for (uint32_t n = reader_u32(in); n > 0 && !in->is_bad; n--) {
        uint32_t node = reader_u32(in), worker = reader_u32(in);
        struct queue_fsm_node *record = queue_node_record(f, node, worker);
        record->incarnation = reader_u64(in);
        record->highest = reader_u64(in);
    }
    for (uint32_t n = reader_u32(in); n > 0 && !in->is_bad; n--) {
        struct queue_returned m = {.ref = reader_u64(in)};
        m.acquired = reader_u32(in);
        m.failed = reader_u32(in);
        if (in->is_bad || queue_ref_index(m.ref) == 0) {
            return RC_MALFORMED;
        }
        queue_returns_push(&f->returns, m);
        f->ready_count++;
    }
    for (uint32_t n = reader_u32(in); n > 0 && !in->is_bad; n--) {
        uint64_t index = reader_u64(in), size = reader_u64(in);
        if (in->is_bad || size == 0) {
            return RC_MALFORMED;
        }
        if (!f->big) {
            f->big = mem_alloc(sizeof(*f->big));
            map_init_u64(f->big);
        }
        map_put(f->big, index, (void *)(uintptr_t)size);
    }
    return in->is_bad ? RC_MALFORMED : RC_OK;
}

static struct queue_session_id read_id(struct reader *in)
{
    struct queue_session_id id = {.node = reader_u32(in)};
    id.incarnation = reader_u64(in);
    id.counter = reader_u64(in);
    return id;
}

static enum rc restore_session(struct queue_fsm *f, struct reader *in)
{
    struct queue_session_id id = read_id(in);
    if (in->is_bad || queue_fsm_session_find(f, id)) {
        return RC_MALFORMED;
    }
    struct queue_fsm_session *s = queue_session_add(f, id);
    s->seq[QUEUE_STREAM_PUBLISH] = reader_u64(in);
    s->seq[QUEUE_STREAM_CONTROL] = reader_u64(in);
    s->known = reader_u64(in);
    s->query_kind = reader_u8(in);
    s->query_seq = reader_u64(in);
    s->query_number = reader_u64(in);
    s->query_ready = reader_u64(in);
    uint32_t count = reader_u32(in);
    struct span ranges = reader_span(in, (size_t)count * sizeof(struct queue_seq_range));
    if (in->is_bad) {
        return RC_MALFORMED;
    }
    if (count > 0) {
        s->rejected = mem_alloc(ranges.len);
        memcpy(s->rejected, ranges.ptr, ranges.len);
        s->rejected_count = s->rejected_cap = count;
    }
    return RC_OK;
}

static enum rc restore_consumer(struct queue_fsm *f, struct reader *in)
{
    struct queue_fsm_session *s = queue_fsm_session_find(f, read_id(in));
    uint32_t id = reader_u32(in), prefetch = reader_u32(in), credit = reader_u32(in);
    int32_t priority = (int32_t)reader_u32(in);
    uint8_t flags = reader_u8(in);
    struct span tag = reader_str8(in);
    if (in->is_bad || !s || queue_fsm_consumer_find(s, id)) {
        return RC_MALFORMED;
    }
    struct queue_fsm_consumer *c = queue_consumer_add(f, s, id, priority, tag);
    c->prefetch = prefetch;
    c->credit = credit;
    c->is_no_ack = flags & 1;
    c->is_exclusive = (flags & 2) != 0;
    c->is_cancelled = (flags & 4) != 0;
    c->next_number = reader_u64(in);
    uint64_t before = 0;
    for (uint32_t n = reader_u32(in); n > 0 && !in->is_bad; n--) {
        struct queue_unsettled u = {.number = reader_u64(in)};
        u.ref = reader_u64(in);
        u.acquired = reader_u32(in);
        u.failed = reader_u32(in);
        if (in->is_bad || queue_ref_index(u.ref) == 0 || u.number <= before || u.number >= c->next_number) {
            return RC_MALFORMED;
        }
        before = u.number;
        queue_consumer_push(c, u);
        f->unacked_count++;
        f->unacked_bytes += queue_fsm_size(f, u.ref);
    }
    return in->is_bad ? RC_MALFORMED : RC_OK;
}

static enum rc restore_busy(struct queue_fsm *f, struct reader *in)
{
    uint32_t sessions = reader_u32(in);
    for (uint32_t i = 0; i < sessions; i++) {
        TRY(restore_session(f, in));
    }
    if (!f->busy) {
        return reader_end(in);
    }
    uint32_t consumers = reader_u32(in);
    for (uint32_t i = 0; i < consumers; i++) {
        TRY(restore_consumer(f, in));
    }
    uint32_t active = reader_u32(in);
    f->busy->is_quiescing = reader_u8(in) != 0;
    if (in->is_bad || active > f->busy->consumers_count) {
        return RC_MALFORMED;
    }
    struct queue_fsm_consumer **places = mem_alloc((consumers + 1ull) * sizeof(struct queue_fsm_consumer *));
    uint32_t n = 0;
    list_each (l, &f->busy->consumers) {
        places[n++] = list_entry(l, struct queue_fsm_consumer, in_queue);
    }
    f->busy->active = active > 0 ? places[active - 1] : NULL;
    enum rc rc = RC_OK;
    while (rc == RC_OK && reader_left(in) > 0) {
        uint32_t at = reader_u32(in);
        if (in->is_bad || at >= n || !list_is_empty(&places[at]->waiting)) {
            rc = RC_MALFORMED;
        } else {
            list_add_tail(&places[at]->class_->waiting, &places[at]->waiting);
        }
    }
    free(places);
    return rc == RC_OK ? reader_end(in) : rc;
}

// Sizes are known only now that the side table is there.
static void count_ready_bytes(struct queue_fsm *f)
{
    struct buf runs = {0};
    queue_ready_freeze(&f->ready, &runs);
    f->ready_bytes = 0;
    struct queue_run run;
    for (size_t at = 0; at < runs.len; at += sizeof(run)) {
        memcpy(&run, runs.ptr + at, sizeof(run));
        for (uint32_t i = run.from; i < run.to; i++) {
            f->ready_bytes += queue_fsm_size(f, run.chunk->items[i]);
        }
    }
    queue_runs_release(&runs);
    for (uint32_t i = 0; i < f->returns.count; i++) {
        f->ready_bytes += queue_fsm_size(f, queue_returns_at(&f->returns, i)->ref);
    }
}

enum rc queue_restore_end(struct queue_restore *r)
{
    struct reader in = reader_of(buf_span(&r->rest));
    enum rc rc = r->has_rest ? restore_settings(r->fsm, &in) : RC_MALFORMED;
    if (rc == RC_OK) {
        rc = restore_busy(r->fsm, &in);
    }
    count_ready_bytes(r->fsm);
    buf_deinit(&r->rest);
    return rc;
}
