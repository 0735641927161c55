// SPDX-License-Identifier: Apache-2.0
// Lanes (queue_lane.h), the way out.
//
// The net borrows what it is given until the end of the turn, so a batch that was handed over is never touched again:
// it lies in `used` until the net was flushed for certain. The same holds for the bytes of a run; what is
// said behind a run is gathered apart and becomes the next piece when the run's bytes are gone.
#include "node/queue/queue_lane_parts.h"
#include "node/base/mem.h"
#include "node/queue/queue_parts.h"
#include <stdlib.h>

enum {
    BATCH_BYTES = LIMIT_FRAME_BYTES - 1024,  // Room for frame head and envelope.
    FRAGMENT_BYTES = 128 << 10,
    WAITING_BYTES_MAX = 2 << 20,  // A lane that has this much waiting takes no more.
    RUN_AHEAD_BYTES = 512 << 10,  // Parts sent before the other side said that it took them.
    FREE_BATCHES = 32,
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

struct letter {  // To another worker.
    struct queue_service *to;
    void (*receive)(struct queue_service *q, struct span items);
    struct buf bytes;
};

void queue_lanes_init(struct queue_lanes *l)
{
    map_init_u64(&l->by_key);
    queue_lanes_in_init(l);
    list_init(&l->used);
    list_init(&l->used_before);
    list_init(&l->free);
    l->free_count = 0;
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
    lane->waiting_bytes = lane->run_bytes = 0;
    lane->is_blocked = false;
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
    queue_lanes_in_deinit(l);
    list_splice(&l->free, &l->used);
    list_splice(&l->free, &l->used_before);
    while (!list_is_empty(&l->free)) {
        batch_free(list_entry(list_pop(&l->free), struct batch, link));
    }
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

bool queue_lane_takes(struct queue_lane *lane, size_t bytes, enum queue_item_type type, uint64_t group,
                      struct queue_session_id session)
{
    if (lane->is_blocked || lane->waiting_bytes >= WAITING_BYTES_MAX) {
        return false;
    }
    if (lane->run_bytes < WAITING_BYTES_MAX) {
        return true;
    }
    const struct queue_item_wire w = {
        .type = (uint8_t)type, .group = group, .counter = session.counter, .node = session.node};
    return bytes <= BATCH_BYTES / 2 && run_of(lane, &w) == NULL;
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
            lane->waiting_bytes -= n;
            lane->run_bytes += n;
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
    lane->run_bytes += w.len;
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

enum rc queue_lane_send(struct queue_lanes *l, uint32_t node, enum frame_type type, Cluster__SessionFrame *e, struct span raw)
{
    e->version = QUEUE_WIRE_VERSION;
    uint8_t envelope[64];
    size_t n = cluster__session_frame__get_packed_size(e);
    assert(n <= sizeof(envelope));
    cluster__session_frame__pack(e, envelope);
    struct iovec iov = {.iov_base = (void *)raw.ptr, .iov_len = raw.len};
    return l->net->send(l->net, node, LANE_SESSION, type, span_of(envelope, n), &iov, 1, true);
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
    Cluster__SessionFrame e = CLUSTER__SESSION_FRAME__INIT;
    e.stream = r->id;
    e.offset = r->offset;
    e.is_last = is_last;
    e.sent = lane->run_sent + n;
    enum rc rc = queue_lane_send(lane->lanes, lane->node, FRAME_SESSION_FIRST, &e, s);
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
    lane->run_sent += n;
    lane->run_bytes -= n;
    if (is_last) {
        run_free(lane->lanes, r);
    } else {
        list_remove(&r->link);
        list_add_tail(&lane->runs, &r->link);  // The next run's turn.
    }
    return true;
}

// Do its runs wait for the other side to take what was sent of them?
static bool is_ahead(const struct queue_lane *lane)
{
    struct net *net = lane->lanes->net;
    return lane->run_sent - lane->run_taken >= RUN_AHEAD_BYTES &&
           (!net->level || net->level(net, lane->node) >= NET_LEVEL_SESSION_TAKEN);
}

// False: the lane takes nothing.
static bool say_new(struct queue_lane *lane)
{
    struct net *net = lane->lanes->net;
    enum rc rc = RC_OK;
    if (!net->level || net->level(net, lane->node) >= NET_LEVEL_SESSION_NEW) {
        Cluster__SessionFrame e = CLUSTER__SESSION_FRAME__INIT;
        rc = queue_lane_send(lane->lanes, lane->node, FRAME_SESSION_NEW, &e, span_of(NULL, 0));
    }
    lane->is_new = rc == RC_FULL;  // Without a connection it is said when there is one.
    lane->is_blocked = rc == RC_FULL;
    if (rc != RC_OK && rc != RC_FULL) {
        lane_drop(lane);
    }
    return rc == RC_OK;
}

void queue_lane_flush(struct queue_lane *lane)
{
    struct queue_lanes *l = lane->lanes;
    if (lane->node == l->node) {
        flush_to_worker(lane);
        return;
    }
    if (lane->is_new && !say_new(lane)) {
        return;
    }
    seal(lane);
    while (!list_is_empty(&lane->sealed)) {
        struct batch *b = list_entry(lane->sealed.next, struct batch, link);
        Cluster__SessionFrame e = CLUSTER__SESSION_FRAME__INIT;
        enum rc rc = queue_lane_send(l, lane->node, FRAME_SESSION_FIRST, &e, buf_span(&b->bytes));
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
    while (!list_is_empty(&lane->runs) && !is_ahead(lane)) {
        if (!run_send(lane, list_entry(lane->runs.next, struct run, link))) {
            break;
        }
    }
}

void queue_lanes_flush(struct queue_lanes *l)
{
    if (l->owes_answer) {
        queue_lanes_answer(l);
    }
    uint32_t pos = 0;
    struct queue_lane *lane;
    while ((lane = map_next(&l->by_key, &pos, NULL, NULL)) != NULL) {
        if (lane->is_new || lane->waiting_bytes + lane->run_bytes > 0) {
            queue_lane_flush(lane);
        }
    }
}

uint32_t queue_lanes_stuck(struct queue_lanes *l, uint64_t now)
{
    uint32_t pos = 0;
    struct queue_lane *lane, *found = NULL;
    while ((lane = map_next(&l->by_key, &pos, NULL, NULL)) != NULL) {
        if (list_is_empty(&lane->runs) || !is_ahead(lane)) {
            lane->stuck_since = 0;
        } else if (lane->stuck_since == 0) {
            lane->stuck_since = now;
        } else if (now - lane->stuck_since >= QUEUE_TAKEN_TIMEOUT_NS << lane->stuck_times) {
            found = lane;
        }
    }
    if (found && found->stuck_times < QUEUE_TAKEN_DOUBLINGS) {
        found->stuck_times++;
    }
    return found ? found->node : 0;
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
        if (lane->is_new || lane->waiting_bytes + lane->run_bytes > 0) {
            return true;
        }
    }
    return false;
}

void queue_lanes_reset(struct queue_lanes *l, uint32_t node)
{
    struct queue_lane *lane = node != l->node ? map_get(&l->by_key, (uint64_t)node << 16) : NULL;
    if (lane) {
        lane_drop(lane);
        lane->next_run = ((lane->next_run >> 32) + 1) << 32 | 1;
        lane->run_sent = lane->run_taken = lane->stuck_since = 0;
    }
    if (l->worker == 0 && node != l->node) {  // Workers share the connection; one says it.
        queue_lane_to(l, node, 0)->is_new = true;
    }
    queue_lanes_in_reset(l, node);
}
