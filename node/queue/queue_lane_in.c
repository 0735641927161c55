// SPDX-License-Identifier: Apache-2.0
// Lanes (queue_lane.h), the way in: items and parts of runs as they come from other nodes, and what is told about them.
//
// A run comes in parts, in order, and is gathered until a whole item is there. Each part is counted whatever becomes of it, as
// the sender waits for room in the sockets and not for us to like it.
#include "node/base/crc32c.h"
#include "node/base/mem.h"
#include "node/queue/queue_lane_parts.h"
#include "node/queue/queue_parts.h"
#include <stdlib.h>

enum { ARRIVING_BYTES_MAX = LIMIT_MESSAGE_BYTES_MAX + LIMIT_SESSION_BYTES + (2 << 20) };

struct arriving {
    uint32_t node, worker;  // Whose; streams count per worker of the sender.
    uint64_t stream, offset;
    uint64_t offset_seen;   // When somebody last asked whether it moves.
    struct buf bytes;       // Items.
    uint32_t sum;           // CRC32C of bytes, if sum_len is their length (else it is not known),
    size_t sum_len;         // taken as they came.
};

struct inflow {  // Parts of runs from one worker of another node.
    uint32_t node, worker;
    uint64_t epoch, taken;  // The connection, and the sender's number there.
    bool owes_answer;
};

void queue_lanes_in_init(struct queue_lanes *l)
{
    map_init_u64(&l->arriving);
    map_init_u64(&l->inflows);
    l->owes_answer = false;
    pb_arena_init(&l->arena);
}

static void arriving_free(struct arriving *a)
{
    buf_deinit(&a->bytes);
    free(a);
}

void queue_lanes_in_deinit(struct queue_lanes *l)
{
    uint32_t pos = 0;
    struct arriving *a;
    while ((a = map_next(&l->arriving, &pos, NULL, NULL)) != NULL) {
        arriving_free(a);
    }
    map_deinit(&l->arriving);
    pos = 0;
    struct inflow *in;
    while ((in = map_next(&l->inflows, &pos, NULL, NULL)) != NULL) {
        free(in);
    }
    map_deinit(&l->inflows);
    pb_arena_deinit(&l->arena);
}

void queue_lanes_answer(struct queue_lanes *l)
{
    l->owes_answer = false;
    uint32_t pos = 0;
    struct inflow *in;
    while ((in = map_next(&l->inflows, &pos, NULL, NULL)) != NULL) {
        if (!in->owes_answer) {
            continue;
        }
        Cluster__SessionFrame e = CLUSTER__SESSION_FRAME__INIT;
        e.stream = in->epoch << 32;
        e.sent = in->taken;
        e.worker = in->worker;
        enum rc rc = queue_lane_send(l, in->node, FRAME_SESSION_TAKEN, &e, span_of(NULL, 0));
        in->owes_answer = rc == RC_FULL;  // Without a connection it is said when there is one (queue_lanes_reset).
        l->owes_answer = l->owes_answer || in->owes_answer;
    }
}

static uint64_t arriving_key(uint32_t node, uint32_t worker, uint64_t stream)
{
    return hash_u64(((uint64_t)node << 8 | worker) << 36 ^ stream);
}

bool queue_lanes_receives(struct queue_lanes *l, uint64_t group, struct queue_session_id session)
{
    bool moves = false;
    uint32_t pos = 0;
    struct arriving *a;
    while ((a = map_next(&l->arriving, &pos, NULL, NULL)) != NULL) {
        struct queue_item_wire w;
        if (a->bytes.len < sizeof(w)) {
            continue;
        }
        memcpy(&w, a->bytes.ptr, sizeof(w));
        if (w.type > QUEUE_ITEM_UP_LAST && w.group == group && w.counter == session.counter && w.node == session.node) {
            moves = moves || a->offset != a->offset_seen;
            a->offset_seen = a->offset;
        }
    }
    return moves;
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

static struct inflow *inflow_of(struct queue_lanes *l, uint32_t node, uint32_t worker)
{
    uint64_t key = (uint64_t)node << 16 | worker;
    struct inflow *in = map_get(&l->inflows, key);
    if (!in) {
        in = mem_zalloc(sizeof(*in));
        in->node = node;
        in->worker = worker;
        map_put(&l->inflows, key, in);
    }
    return in;
}

// Parts were taken, even those that go nowhere: they are out of the sockets.
static void receive_sent(struct queue_lanes *l, uint32_t from, uint32_t worker, const Cluster__SessionFrame *e)
{
    struct inflow *in = inflow_of(l, from, worker);
    in->epoch = e->stream >> 32;
    in->taken = e->sent;
    in->owes_answer = true;
    l->owes_answer = true;
}

struct taken {  // To another worker: an answer that is for one of its lanes.
    struct queue_service *to;
    uint32_t node;
    uint64_t epoch, sent;
};

static void receive_taken(struct queue_lanes *l, uint32_t from, uint64_t epoch, uint64_t sent)
{
    struct queue_lane *lane = map_get(&l->by_key, (uint64_t)from << 16);
    // One for an earlier connection, or an earlier life of ours, says nothing.
    if (lane && epoch == lane->next_run >> 32 && sent > lane->run_taken && sent <= lane->run_sent) {
        lane->run_taken = sent;
        lane->stuck_since = 0;
        lane->stuck_times = 0;
    }
}

static void taken_open(void *arg)
{
    struct taken *t = arg;
    receive_taken(&t->to->lanes, t->node, t->epoch, t->sent);
    free(t);
}

static void pass_taken(struct queue_lanes *l, uint32_t from, const Cluster__SessionFrame *e)
{
    struct queue_service *to = e->worker < FRAME_WORKERS_MAX && l->peer ? l->peer(l->post_ctx, e->worker) : NULL;
    if (!to) {
        l->bad_frames++;
        return;
    }
    struct taken *t = mem_alloc(sizeof(*t));
    *t = (struct taken){.to = to, .node = from, .epoch = e->stream >> 32, .sent = e->sent};
    l->post(l->post_ctx, e->worker, taken_open, t);
}

struct renewed {  // To another worker.
    struct queue_service *to;
    uint32_t node;
};

static void renewed_open(void *arg)
{
    struct renewed *r = arg;
    r->to->lanes.renewed(r->to, r->node);
    free(r);
}

// One worker is told; what it means is for all.
static void receive_new(struct queue_lanes *l, struct queue_service *q, uint32_t from)
{
    if (!l->renewed) {
        return;
    }
    l->renewed(q, from);
    for (uint32_t worker = 0; l->peer && worker < FRAME_WORKERS_MAX; worker++) {
        struct queue_service *to = worker == l->worker ? NULL : l->peer(l->post_ctx, worker);
        if (to) {
            struct renewed *r = mem_alloc(sizeof(*r));
            *r = (struct renewed){.to = to, .node = from};
            l->post(l->post_ctx, worker, renewed_open, r);
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
    if (!e || e->version != QUEUE_WIRE_VERSION ||
        (f->type != FRAME_SESSION_FIRST && f->type != FRAME_SESSION_TAKEN && f->type != FRAME_SESSION_NEW)) {
        l->bad_frames++;
        return;
    }
    if (f->type == FRAME_SESSION_NEW) {
        receive_new(l, q, from_node);
        return;
    }
    if (f->type == FRAME_SESSION_TAKEN) {
        if (e->worker == l->worker) {
            receive_taken(l, from_node, e->stream >> 32, e->sent);
        } else {
            pass_taken(l, from_node, e);
        }
        return;
    }
    if (e->stream != 0) {
        receive_sent(l, from_node, f->worker, e);
        receive_part(l, q, from_node, f->worker, e, f->raw);
        return;
    }
    enum rc rc;
    if (receive_whole(l, q, f->raw, &rc) != f->raw.len) {
        l->bad_frames++;
    }
}

void queue_lanes_in_reset(struct queue_lanes *l, uint32_t node)
{
    uint32_t pos = 0;
    struct inflow *in;
    while ((in = map_next(&l->inflows, &pos, NULL, NULL)) != NULL) {
        if (in->node == node) {
            in->owes_answer = true;  // The one before may have been lost with the connection.
            l->owes_answer = true;
        }
    }
}

void queue_lanes_node_gone(struct queue_lanes *l, uint32_t node)
{
    for (uint32_t worker = 0; worker < FRAME_WORKERS_MAX; worker++) {
        forget_arriving(l, node, worker, UINT64_MAX);
    }
}
