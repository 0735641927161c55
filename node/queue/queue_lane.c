// SPDX-License-Identifier: Apache-2.0
// Lanes (queue_lane.h).
//
// The net borrows what it is given until the end of the turn, so a batch that was handed over is never touched again:
// it lies in `used` until the net was flushed for certain. The same holds for the bytes of a run; what is
// said behind a run is gathered apart and becomes the next piece when the run's bytes are gone.
#include "node/queue/queue_lane.h"
#include "node/base/crc32c.h"
#include "node/base/mem.h"
#include "proto/cluster_queue.pb-c.h"
#include <stdlib.h>

enum {
    BATCH_BYTES = LIMIT_FRAME_BYTES - 1024,  // Room for frame head and envelope.
    FRAGMENT_BYTES = 128 << 10,
    RUN_QUEUED_MAX = 1 << 20,   // Parts of runs are sent while the net holds less than this.
    FREE_BATCHES = 32,
    ARRIVING_BYTES_MAX = LIMIT_MESSAGE_BYTES_MAX + LIMIT_SESSION_BYTES + (2 << 20),
};

struct batch {
    struct list link;
    struct buf bytes;
    struct block *shared;  // Released with it; NULL: none.
};

struct run {
    struct list link;
    uint64_t id, offset;  // offset: of `at` in the run as a whole.
    uint64_t group;
    struct queue_session_id session;
    bool is_up;
    struct batch *bytes;  // Being sent; not touched.
    size_t at;
    struct span tail;     // What is left of its shared part, which lies in bytes->shared and follows `bytes`.
    struct buf behind;
};

struct arriving {
    uint32_t node, worker;  // Whose; streams count per worker of the sender.
    uint64_t stream, offset;
    struct buf bytes;       // Items.
    uint32_t sum;           // CRC32C of bytes, if sum_len is their length (else it is not known),
    size_t sum_len;         // taken as they came.
};

struct letter {  // To another worker.
    struct queue_service *to;
    void (*receive)(struct queue_service *q, struct span items);
    struct buf bytes;
};

void queue_lanes_init(struct queue_lanes *l)
{
    map_init_u64(&l->by_key);
    map_init_u64(&l->arriving);
    list_init(&l->used);
    list_init(&l->used_before);
    list_init(&l->free);
    l->free_count = 0;
    pb_arena_init(&l->arena);
}

static struct batch *batch_take(struct queue_lanes *l)
{
    struct list *item = list_pop(&l->free);
    if (!item) {
        return mem_zalloc(sizeof(struct batch));
    }
    l->free_count--;
    return list_entry(item, struct batch, link);
}

static void batch_free(struct batch *b)
{
    block_release(b->shared);
    buf_deinit(&b->bytes);
    free(b);
}

static void batch_give(struct queue_lanes *l, struct batch *b)
{
    block_release(b->shared);
    b->shared = NULL;
    if (l->free_count >= FREE_BATCHES || b->bytes.cap > 2 * LIMIT_FRAME_BYTES) {
        batch_free(b);
        return;
    }
    b->bytes.len = 0;
    list_add_tail(&l->free, &b->link);
    l->free_count++;
}

static void run_free(struct queue_lanes *l, struct run *r)
{
    list_remove(&r->link);
    list_add_tail(&l->used, &r->bytes->link);
    buf_deinit(&r->behind);
    free(r);
}

static void lane_drop(struct queue_lane *lane)
{
    while (!list_is_empty(&lane->sealed)) {
        batch_give(lane->lanes, list_entry(list_pop(&lane->sealed), struct batch, link));
    }
    list_each (l, &lane->runs) {
        run_free(lane->lanes, list_entry(l, struct run, link));
    }
    lane->out.len = 0;
    lane->waiting_bytes = 0;
    lane->is_blocked = false;
}

static void arriving_free(struct arriving *a)
{
    buf_deinit(&a->bytes);
    free(a);
}

void queue_lanes_deinit(struct queue_lanes *l)
{
    uint32_t pos = 0;
    struct queue_lane *lane;
    while ((lane = map_next(&l->by_key, &pos, NULL, NULL)) != NULL) {
        lane_drop(lane);
        buf_deinit(&lane->out);
        free(lane);
    }
    map_deinit(&l->by_key);
    pos = 0;
    struct arriving *a;
    while ((a = map_next(&l->arriving, &pos, NULL, NULL)) != NULL) {
        arriving_free(a);
    }
    map_deinit(&l->arriving);
    list_splice(&l->free, &l->used);
    list_splice(&l->free, &l->used_before);
    while (!list_is_empty(&l->free)) {
        batch_free(list_entry(list_pop(&l->free), struct batch, link));
    }
    pb_arena_deinit(&l->arena);
}

struct queue_lane *queue_lane_to(struct queue_lanes *l, uint32_t node, uint32_t worker)
{
    if (node != l->node) {
        worker = 0;  // The other side knows its workers.
    }
    uint64_t key = (uint64_t)node << 16 | worker;
    struct queue_lane *lane = map_get(&l->by_key, key);
    if (!lane) {
        lane = mem_zalloc(sizeof(*lane));
        lane->lanes = l;
        lane->node = node;
        lane->worker = worker;
        lane->next_run = 1;
        list_init(&lane->sealed);
        list_init(&lane->runs);
        map_put(&l->by_key, key, lane);
    }
    return lane;
}

// ---- out -----------------------------------------------------------------------------------------------------------

size_t queue_lane_begin(struct queue_lane *lane, enum queue_item_type type, uint64_t group,
                        struct queue_session_id session, uint32_t attach)
{
    return queue_item_begin(&lane->out, type, group, session, attach);
}

static void seal(struct queue_lane *lane)
{
    if (lane->out.len == 0) {
        return;
    }
    struct batch *b = batch_take(lane->lanes);
    struct buf empty = b->bytes;
    b->bytes = lane->out;
    lane->out = empty;
    list_add_tail(&lane->sealed, &b->link);
}

static struct run *run_of(struct queue_lane *lane, const struct queue_item_wire *w)
{
    bool is_up = w->type <= QUEUE_ITEM_UP_LAST;
    list_each (l, &lane->runs) {
        struct run *r = list_entry(l, struct run, link);
        if (r->session.counter == w->counter && r->session.node == w->node && r->group == w->group &&
            r->is_up == is_up) {
            return r;
        }
    }
    return NULL;
}

bool queue_lane_is_sending(struct queue_lane *lane, uint64_t group, struct queue_session_id session)
{
    const struct queue_item_wire up = {.type = QUEUE_ITEM_COMMANDS,
                                       .group = group,
                                       .counter = session.counter,
                                       .node = session.node};
    return run_of(lane, &up) != NULL;
}

static struct run *run_start(struct queue_lane *lane, const struct queue_item_wire *w, struct span bytes)
{
    struct run *r = mem_zalloc(sizeof(*r));
    r->id = lane->next_run++;
    r->group = w->group;
    r->session = (struct queue_session_id){.incarnation = w->incarnation, .counter = w->counter, .node = w->node};
    r->is_up = w->type <= QUEUE_ITEM_UP_LAST;
    r->bytes = batch_take(lane->lanes);
    buf_span_bytes(&r->bytes->bytes, bytes);
    list_add_tail(&lane->runs, &r->link);
    return r;
}

void queue_lane_end(struct queue_lane *lane, size_t at)
{
    queue_item_end(&lane->out, at);
    size_t n = lane->out.len - at;
    lane->waiting_bytes += n;
    bool is_large = n > BATCH_BYTES && lane->node != lane->lanes->node;
    if (is_large || !list_is_empty(&lane->runs)) {
        struct queue_item_wire w;
        memcpy(&w, lane->out.ptr + at, sizeof(w));
        struct run *r = run_of(lane, &w);
        if (r || is_large) {
            struct span bytes = span_of(lane->out.ptr + at, n);
            if (r) {
                buf_span_bytes(&r->behind, bytes);
            } else {
                run_start(lane, &w, bytes);
            }
            lane->out.len = at;
            if (is_large) {
                buf_shrink(&lane->out, 2 * LIMIT_FRAME_BYTES);
            }
            return;
        }
    }
    if (lane->out.len > BATCH_BYTES && at > 0 && lane->node != lane->lanes->node) {
        // The item does not fit behind the others: it starts the next batch.
        struct buf rest = {0};
        struct batch *b = batch_take(lane->lanes);
        rest = b->bytes;
        rest.len = 0;
        buf_bytes(&rest, lane->out.ptr + at, n);
        lane->out.len = at;
        b->bytes = lane->out;
        lane->out = rest;
        list_add_tail(&lane->sealed, &b->link);
    }
}

void queue_lane_end_shared(struct queue_lane *lane, size_t at, struct block *block, struct span tail)
{
    struct queue_item_wire w;
    memcpy(&w, lane->out.ptr + at, sizeof(w));
    if (lane->node == lane->lanes->node || tail.len < BATCH_BYTES || run_of(lane, &w)) {
        buf_span_bytes(&lane->out, tail);  // To another worker, or behind something of the same session.
        queue_lane_end(lane, at);
        return;
    }
    size_t n = lane->out.len - at;
    w.len = (uint32_t)(n + tail.len);
    memcpy(lane->out.ptr + at, &w, sizeof(w));
    struct run *r = run_start(lane, &w, span_of(lane->out.ptr + at, n));
    r->bytes->shared = block_hold(block);
    r->tail = tail;
    lane->out.len = at;
    lane->waiting_bytes += w.len;
}

// The next bytes of a run, at most FRAGMENT_BYTES, and what is left of it without them.
static struct span run_next(const struct run *r, size_t *left)
{
    struct span s = r->at < r->bytes->bytes.len
                        ? span_of(r->bytes->bytes.ptr + r->at, r->bytes->bytes.len - r->at)
                        : r->tail;
    s.len = s.len < FRAGMENT_BYTES ? s.len : FRAGMENT_BYTES;
    *left = r->bytes->bytes.len - r->at + r->tail.len + r->behind.len - s.len;
    return s;
}

static enum rc send_frame(struct queue_lane *lane, uint64_t run, uint64_t offset, bool is_last, struct span raw)
{
    Cluster__SessionFrame e = CLUSTER__SESSION_FRAME__INIT;
    e.version = QUEUE_WIRE_VERSION;
    e.stream = run;
    e.offset = offset;
    e.is_last = is_last;
    uint8_t envelope[64];
    size_t n = cluster__session_frame__get_packed_size(&e);
    assert(n <= sizeof(envelope));
    cluster__session_frame__pack(&e, envelope);
    struct iovec iov = {.iov_base = (void *)raw.ptr, .iov_len = raw.len};
    struct net *net = lane->lanes->net;
    return net->send(net, lane->node, LANE_SESSION, FRAME_SESSION_FIRST, span_of(envelope, n), &iov, 1, true);
}

static void letter_open(void *arg)
{
    struct letter *letter = arg;
    letter->receive(letter->to, buf_span(&letter->bytes));
    buf_deinit(&letter->bytes);
    free(letter);
}

static void flush_to_worker(struct queue_lane *lane)
{
    struct queue_lanes *l = lane->lanes;
    struct queue_service *to = lane->out.len > 0 && l->peer ? l->peer(l->post_ctx, lane->worker) : NULL;
    if (to) {
        struct letter *letter = mem_alloc(sizeof(*letter));
        *letter = (struct letter){.to = to, .receive = l->receive, .bytes = lane->out};
        buf_init(&lane->out);
        l->post(l->post_ctx, lane->worker, letter_open, letter);
    }
    lane->out.len = 0;
    lane->waiting_bytes = 0;
}

// Sends one part of a run. False if the run is over or the lane took nothing.
static bool run_send(struct queue_lane *lane, struct run *r)
{
    if (r->at == r->bytes->bytes.len && r->tail.len == 0) {
        list_add_tail(&lane->lanes->used, &r->bytes->link);
        r->bytes = batch_take(lane->lanes);
        struct buf spare = r->bytes->bytes;
        r->bytes->bytes = r->behind;
        r->behind = spare;
        r->behind.len = 0;
        r->at = 0;
    }
    size_t left;
    struct span s = run_next(r, &left);
    size_t n = s.len;
    bool is_last = left == 0;
    enum rc rc = send_frame(lane, r->id, r->offset, is_last, s);
    if (rc != RC_OK) {
        if (rc == RC_FULL) {
            lane->is_blocked = true;
        } else {
            lane_drop(lane);
        }
        return false;
    }
    if (r->at < r->bytes->bytes.len) {
        r->at += n;
    } else {
        r->tail = span_of(r->tail.ptr + n, r->tail.len - n);
    }
    r->offset += n;
    lane->waiting_bytes -= n;
    if (is_last) {
        run_free(lane->lanes, r);
    } else {
        list_remove(&r->link);
        list_add_tail(&lane->runs, &r->link);  // The next run's turn.
    }
    return true;
}

void queue_lane_flush(struct queue_lane *lane)
{
    struct queue_lanes *l = lane->lanes;
    if (lane->node == l->node) {
        flush_to_worker(lane);
        return;
    }
    seal(lane);
    while (!list_is_empty(&lane->sealed)) {
        struct batch *b = list_entry(lane->sealed.next, struct batch, link);
        enum rc rc = send_frame(lane, 0, 0, false, buf_span(&b->bytes));
        if (rc == RC_FULL) {
            lane->is_blocked = true;
            return;
        }
        if (rc != RC_OK) {
            lane_drop(lane);  // No link: whoever waits for an answer notices.
            return;
        }
        lane->waiting_bytes -= b->bytes.len;
        list_remove(&b->link);
        list_add_tail(&l->used, &b->link);
    }
    lane->is_blocked = false;
    while (!list_is_empty(&lane->runs) && l->net->queued(l->net, lane->node, LANE_SESSION) < RUN_QUEUED_MAX) {
        if (!run_send(lane, list_entry(lane->runs.next, struct run, link))) {
            break;
        }
    }
}

void queue_lanes_flush(struct queue_lanes *l)
{
    uint32_t pos = 0;
    struct queue_lane *lane;
    while ((lane = map_next(&l->by_key, &pos, NULL, NULL)) != NULL) {
        if (lane->waiting_bytes > 0) {
            queue_lane_flush(lane);
        }
    }
}

void queue_lanes_recycle(struct queue_lanes *l)
{
    while (!list_is_empty(&l->used_before)) {
        batch_give(l, list_entry(list_pop(&l->used_before), struct batch, link));
    }
    list_splice(&l->used_before, &l->used);
}

bool queue_lanes_have_work(const struct queue_lanes *l)
{
    uint32_t pos = 0;
    const struct queue_lane *lane;
    while ((lane = map_next(&l->by_key, &pos, NULL, NULL)) != NULL) {
        if (lane->waiting_bytes > 0) {
            return true;
        }
    }
    return false;
}

// ---- in ------------------------------------------------------------------------------------------------------------

static uint64_t arriving_key(uint32_t node, uint32_t worker, uint64_t stream)
{
    return hash_u64(((uint64_t)node << 8 | worker) << 36 ^ stream);
}

// Whole items at the front of `bytes` are received; returns how much they take.
static size_t receive_whole(struct queue_lanes *l, struct queue_service *q, struct span bytes, enum rc *rc)
{
    struct reader r = reader_of(bytes);
    struct queue_item item;
    while ((*rc = queue_item_next(&r, &item)) == RC_OK) {
    }
    if (r.pos > 0) {
        l->receive(q, span_of(bytes.ptr, r.pos));
    }
    return r.pos;
}

// Drops the runs from a worker of `node` that belong to an earlier connection than `epoch`.
static void forget_arriving(struct queue_lanes *l, uint32_t node, uint32_t worker, uint64_t epoch)
{
    uint32_t pos = 0;
    struct arriving *a;
    uint64_t key;
    while ((a = map_next(&l->arriving, &pos, &key, NULL)) != NULL) {
        if (a->node == node && a->worker == worker && a->stream >> 32 < epoch) {
            map_remove(&l->arriving, key);
            arriving_free(a);
        }
    }
}

static void receive_part(struct queue_lanes *l, struct queue_service *q, uint32_t from, uint32_t worker,
                         const Cluster__SessionFrame *e, struct span raw)
{
    uint64_t key = arriving_key(from, worker, e->stream);
    struct arriving *a = map_get(&l->arriving, key);
    if (!a && e->offset == 0) {
        forget_arriving(l, from, worker, e->stream >> 32);  // Cut off by a reset.
    }
    if (!a && e->offset == 0) {
        a = mem_zalloc(sizeof(*a));
        a->node = from;
        a->worker = worker;
        a->stream = e->stream;
        map_put(&l->arriving, key, a);
    }
    // A part that does not follow: its run was cut by a reset, or the frame is a repeat.
    if (!a || a->node != from || a->worker != worker || a->stream != e->stream || e->offset != a->offset ||
        a->bytes.len + raw.len > ARRIVING_BYTES_MAX) {
        l->bad_frames++;
        return;
    }
    a->offset += raw.len;
    if (a->sum_len == a->bytes.len) {
        a->sum = crc32c_copy(a->sum, buf_extend(&a->bytes, raw.len), raw.ptr, raw.len);
        a->sum_len += raw.len;
    } else {
        buf_span_bytes(&a->bytes, raw);
    }
    enum rc rc = RC_MORE;
    struct queue_item_wire w = {0};
    if (a->bytes.len >= sizeof(w)) {
        memcpy(&w, a->bytes.ptr, sizeof(w));
    }
    if (a->bytes.len >= sizeof(w) && a->bytes.len >= w.len) {  // Not before a whole item is there.
        struct span all = buf_span(&a->bytes);
        if (all.len >= BLOCK_BYTES_MIN) {
            // Whoever wants a large body from here on keeps this memory, or moves it into its own.
            struct block *b = block_adopt(&a->bytes);
            b->is_disposable = true;
            b->has_room = all.len == w.len;  // Its own head is in front of it, and nothing behind.
            if (a->sum_len == all.len) {
                block_set_sum(b, 0, all.len, a->sum);
            }
            size_t used = receive_whole(l, q, all, &rc);
            buf_bytes(&a->bytes, all.ptr + used, all.len - used);
            a->sum = 0;
            a->sum_len = 0;
            block_release(b);
        } else {
            buf_consume(&a->bytes, receive_whole(l, q, all, &rc));
            buf_shrink(&a->bytes, 2 * LIMIT_FRAME_BYTES);
            a->sum = 0;
            a->sum_len = 0;
        }
    }
    if (e->is_last || rc == RC_MALFORMED) {
        map_remove(&l->arriving, key);
        arriving_free(a);
    }
}

void queue_lanes_frame(struct queue_lanes *l, struct queue_service *q, uint32_t from_node, const struct frame *f)
{
    pb_arena_reset(&l->arena);
    Cluster__SessionFrame *e = cluster__session_frame__unpack(&l->arena.allocator, f->envelope.len, f->envelope.ptr);
    if (!e || e->version != QUEUE_WIRE_VERSION || f->type != FRAME_SESSION_FIRST) {
        l->bad_frames++;
        return;
    }
    if (e->stream != 0) {
        receive_part(l, q, from_node, f->worker, e, f->raw);
        return;
    }
    enum rc rc;
    if (receive_whole(l, q, f->raw, &rc) != f->raw.len) {
        l->bad_frames++;
    }
}

void queue_lanes_reset(struct queue_lanes *l, uint32_t node)
{
    struct queue_lane *lane = node != l->node ? map_get(&l->by_key, (uint64_t)node << 16) : NULL;
    if (lane) {
        lane_drop(lane);
        lane->next_run = ((lane->next_run >> 32) + 1) << 32 | 1;
    }
}

void queue_lanes_node_gone(struct queue_lanes *l, uint32_t node)
{
    for (uint32_t worker = 0; worker < FRAME_WORKERS_MAX; worker++) {
        forget_arriving(l, node, worker, UINT64_MAX);
    }
}
