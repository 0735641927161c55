// SPDX-License-Identifier: Apache-2.0
// Sending through another thread, receiving for others (net_share.h).
//
// Out: a worker encodes its frames into one buffer per node and lane; its flush posts them as one parcel to worker 0,
// which queues the bytes as they are and frees the parcel once the real net was flushed. In: worker 0 writes what its
// upcalls bring into one buffer of events per worker and posts that at the start of the turn that follows.
//
// What the others' nets answer (connected? how much is queued?) is published by worker 0 at the end of each
// of its turns, per node and lane. A connection has a number (epoch), which rises with each reset upcall. A
// worker's net is connected if the published epoch is the one it was told of; bytes for an older epoch are
// dropped on worker 0, so nothing said before a reset appears behind it.
//
// Back-pressure: queued = bytes in worker 0's output + bytes in parcels on their way + own bytes of this
// turn. One lane may exceed its bound by what the workers send within one turn of worker 0, never more. A net
// that said RC_FULL set `shared_wants_room`; stores and loads of the two are sequentially consistent, so
// either the worker sees the room or worker 0 sees the wish.
#include "consensus/peer/net_share.h"
#include "node/base/crc32c.h"
#include "node/base/limits.h"
#include "node/base/list.h"
#include "node/base/map.h"
#include "node/base/mem.h"
#include <stdatomic.h>
#include <stdlib.h>

struct share_lane {
    uint64_t epoch;                    // Worker 0's: counts resets.
    _Atomic uint64_t shared_open;      // The epoch while connected, else 0. Worker 0 writes.
    _Atomic uint64_t shared_queued;    // Bytes in the real net's output. Worker 0 writes.
    _Atomic uint64_t shared_transit;   // Bytes in parcels that worker 0 has not opened. Senders add, worker 0
                                       // subtracts.
    _Atomic bool shared_wants_room;    // Someone was told RC_FULL.
};

struct share_node {
    uint32_t node;
    _Atomic uint32_t shared_level;  // Of the node, as of its last reset. Worker 0 writes.
    struct share_lane lanes[LANE_COUNT];
};

struct part {
    struct share_node *to;
    enum net_lane lane;
    uint64_t epoch;
    struct buf bytes;
};

// What one worker sent in one turn.
struct parcel {
    struct list link;  // On worker 0 until the flush.
    struct net_share *share;
    uint32_t count;
    struct part parts[];
};

struct port_lane {
    uint64_t epoch;  // Of the last reset this worker was told of; 0: none.
    struct buf out;
};

struct port_node {
    struct share_node *shared;
    struct port_lane lanes[LANE_COUNT];
    struct list dirty;
};

// A worker's net. Owned by that worker, but for `events`.
struct port {
    struct net net;
    struct net_share *share;
    uint32_t worker;
    const struct net_upcalls *upcalls;
    struct map nodes;     // Node id -> struct port_node.
    struct list dirty;
    uint32_t dirty_parts;
    struct buf events;    // Worker 0's: what is to be posted to this worker.
};

enum event_kind { EVENT_FRAME, EVENT_RESET, EVENT_WRITABLE, EVENT_NODE_STATE };

struct event {
    uint32_t size;  // With what follows, a multiple of 8.
    uint8_t kind, lane, worker, verdict;
    uint16_t type, flags;
    uint32_t node;
    uint32_t envelope_len, raw_len;
    uint64_t number;  // Epoch or incarnation.
    struct share_node *shared;
};

struct letter {
    struct port *port;
    struct buf events;
};

struct net_share {
    struct net_share_config config;
    struct net_upcalls upcalls;
    struct map nodes;      // Worker 0's: node id -> struct share_node. Never freed while workers run.
    struct list parcels;   // Worker 0's: opened, not flushed.
    struct port *ports;    // By worker; 0 is used for its upcalls only.
};

// ---- sending (a worker other than 0) -----------------------------------------------------------------------------

static struct port *port_of(struct net *n)
{
    return container_of(n, struct port, net);
}

// The lane if it is connected as far as this worker was told.
static struct port_lane *lane_open(struct net *n, uint32_t node, enum net_lane lane, struct port_node **out)
{
    struct port_node *p = map_get(&port_of(n)->nodes, node);
    if (!p) {
        return NULL;
    }
    struct port_lane *l = &p->lanes[lane];
    *out = p;
    uint64_t open = atomic_load_explicit(&p->shared->lanes[lane].shared_open, memory_order_acquire);
    return open != 0 && open == l->epoch ? l : NULL;
}

static size_t lane_queued(const struct port_node *p, enum net_lane lane)
{
    struct share_lane *s = &p->shared->lanes[lane];
    return atomic_load(&s->shared_queued) + atomic_load(&s->shared_transit) + p->lanes[lane].out.len;
}

static enum rc port_send(struct net *n, uint32_t node, enum net_lane lane, enum frame_type type, struct span envelope,
                         const struct iovec *raw, int raw_count, bool raw_crc)
{
    struct port *port = port_of(n);
    struct port_node *p;
    struct port_lane *l = lane_open(n, node, lane, &p);
    if (!l) {
        return RC_NOT_CONNECTED;
    }
    size_t raw_len = raw_crc ? 4 : 0;
    for (int i = 0; i < raw_count; i++) {
        raw_len += raw[i].iov_len;
    }
    const size_t size = FRAME_HEADER_BYTES + envelope.len + raw_len;
    if (lane_queued(p, lane) + size > LIMIT_LANE_OUTPUT_BYTES) {
        atomic_store(&p->shared->lanes[lane].shared_wants_room, true);
        if (lane_queued(p, lane) + size > LIMIT_LANE_OUTPUT_BYTES) {
            return RC_FULL;
        }
    }
    if (l->out.len == 0) {
        port->dirty_parts++;
    }
    buf_reserve(&l->out, size);
    frame_encode_head(&l->out, type,
                      (uint16_t)((raw_crc ? FRAME_RAW_CRC : 0) | port->worker << FRAME_WORKER_SHIFT),
                      envelope, raw_len);
    uint32_t sum = 0;
    for (int i = 0; i < raw_count; i++) {
        sum = raw_crc ? crc32c(sum, raw[i].iov_base, raw[i].iov_len) : 0;
        buf_bytes(&l->out, raw[i].iov_base, raw[i].iov_len);
    }
    if (raw_crc) {
        buf_u32(&l->out, sum);
    }
    if (list_is_empty(&p->dirty)) {
        list_add_tail(&port->dirty, &p->dirty);
    }
    return RC_OK;
}

static void parcel_free(struct parcel *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        buf_deinit(&p->parts[i].bytes);
    }
    free(p);
}

// Worker 0: into the real net's output, unless the lane was reset since.
static void parcel_open(void *arg)
{
    struct parcel *p = arg;
    struct net_share *s = p->share;
    for (uint32_t i = 0; i < p->count; i++) {
        struct part *part = &p->parts[i];
        struct share_lane *l = &part->to->lanes[part->lane];
        if (part->epoch == l->epoch) {
            // Not connected any more: lost, as on a link; a reset follows.
            (void)!s->config.net->send_encoded(s->config.net, part->to->node, part->lane, buf_span(&part->bytes));
        }
        atomic_fetch_sub(&l->shared_transit, part->bytes.len);
    }
    list_add_tail(&s->parcels, &p->link);
}

static void port_flush(struct net *n)
{
    struct port *port = port_of(n);
    if (list_is_empty(&port->dirty)) {
        return;
    }
    struct parcel *parcel = mem_alloc(sizeof(*parcel) + port->dirty_parts * sizeof(parcel->parts[0]));
    parcel->share = port->share;
    parcel->count = 0;
    list_init(&parcel->link);
    struct list *item;
    while ((item = list_pop(&port->dirty)) != NULL) {
        struct port_node *p = list_entry(item, struct port_node, dirty);
        for (int i = 0; i < LANE_COUNT; i++) {
            struct port_lane *l = &p->lanes[i];
            if (l->out.len == 0) {
                continue;
            }
            assert(parcel->count < port->dirty_parts);
            parcel->parts[parcel->count++] =
                (struct part){.to = p->shared, .lane = (enum net_lane)i, .epoch = l->epoch, .bytes = l->out};
            atomic_fetch_add(&p->shared->lanes[i].shared_transit, l->out.len);
            buf_init(&l->out);
        }
    }
    port->dirty_parts = 0;
    port->share->config.post(port->share->config.post_ctx, 0, parcel_open, parcel);
}

static size_t port_queued(struct net *n, uint32_t node, enum net_lane lane)
{
    struct port_node *p;
    return lane_open(n, node, lane, &p) ? lane_queued(p, lane) : 0;
}

static bool port_is_connected(struct net *n, uint32_t node, enum net_lane lane)
{
    struct port_node *p;
    return lane_open(n, node, lane, &p) != NULL;
}

// Of a node that this worker was told of.
static uint32_t port_level(struct net *n, uint32_t node)
{
    const struct port_node *p = map_get(&port_of(n)->nodes, node);
    return p ? atomic_load_explicit(&p->shared->shared_level, memory_order_relaxed) : 0;
}

// ---- hearing (a worker other than 0) -----------------------------------------------------------------------------

static struct port_node *port_node(struct port *port, struct share_node *shared)
{
    struct port_node *p = map_get(&port->nodes, shared->node);
    if (!p) {
        p = mem_zalloc(sizeof(*p));
        p->shared = shared;
        list_init(&p->dirty);
        map_put(&port->nodes, shared->node, p);
    }
    return p;
}

static void port_reset(struct port *port, const struct event *e)
{
    struct port_lane *l = &port_node(port, e->shared)->lanes[e->lane];
    if (l->out.len > 0) {
        l->out.len = 0;
        port->dirty_parts--;
    }
    l->epoch = e->number;
    port->upcalls->reset(port->upcalls->ctx, e->node, (enum net_lane)e->lane);
}

static void letter_open(void *arg)
{
    struct letter *letter = arg;
    struct port *port = letter->port;
    const struct net_upcalls *u = port->upcalls;
    assert(u != NULL);
    for (size_t at = 0; at < letter->events.len;) {
        struct event e;
        memcpy(&e, letter->events.ptr + at, sizeof(e));
        const uint8_t *bytes = letter->events.ptr + at + sizeof(e);
        const struct frame f = {.type = e.type,
                                .flags = e.flags,
                                .worker = e.worker,
                                .envelope = span_of(bytes, e.envelope_len),
                                .raw = span_of(bytes + e.envelope_len, e.raw_len)};
        switch ((enum event_kind)e.kind) {
        case EVENT_FRAME:
            u->frame(u->ctx, e.node, (enum net_lane)e.lane, &f);
            break;
        case EVENT_RESET:
            port_reset(port, &e);
            break;
        case EVENT_WRITABLE:
            u->writable(u->ctx, e.node, (enum net_lane)e.lane);
            break;
        case EVENT_NODE_STATE:
            u->node_state(u->ctx, e.node, (enum node_verdict)e.verdict, e.number);
            break;
        }
        at += e.size;
    }
    buf_deinit(&letter->events);
    free(letter);
}

// ---- the real net's upcalls (worker 0) ---------------------------------------------------------------------------

static void event_add(struct buf *to, struct event *e, struct span envelope, struct span raw)
{
    e->envelope_len = (uint32_t)envelope.len;
    e->raw_len = (uint32_t)raw.len;
    const size_t size = sizeof(*e) + envelope.len + raw.len;
    e->size = (uint32_t)((size + 7) & ~(size_t)7);
    buf_reserve(to, e->size);
    buf_bytes(to, e, sizeof(*e));
    buf_span_bytes(to, envelope);
    buf_span_bytes(to, raw);
    memset(buf_extend(to, e->size - size), 0, e->size - size);
}

static void event_to_all(struct net_share *s, struct event *e)
{
    for (uint32_t i = 1; i < s->config.workers; i++) {
        event_add(&s->ports[i].events, e, span_of(NULL, 0), span_of(NULL, 0));
    }
}

static struct share_node *share_node(struct net_share *s, uint32_t node)
{
    struct share_node *n = map_get(&s->nodes, node);
    if (!n) {
        n = mem_zalloc(sizeof(*n));
        n->node = node;
        map_put(&s->nodes, node, n);
    }
    return n;
}

static const struct net_upcalls *own(struct net_share *s)
{
    return s->ports[0].upcalls;
}

static void on_frame(void *ctx, uint32_t node, enum net_lane lane, const struct frame *f)
{
    struct net_share *s = ctx;
    const uint32_t worker = f->worker % s->config.workers;
    if (worker == 0) {
        own(s)->frame(own(s)->ctx, node, lane, f);
        return;
    }
    struct event e = {.kind = EVENT_FRAME,
                      .lane = (uint8_t)lane,
                      .worker = f->worker,
                      .type = f->type,
                      .flags = f->flags,
                      .node = node};
    event_add(&s->ports[worker].events, &e, f->envelope, f->raw);
}

static void on_reset(void *ctx, uint32_t node, enum net_lane lane)
{
    struct net_share *s = ctx;
    struct share_node *n = share_node(s, node);
    struct share_lane *l = &n->lanes[lane];
    const struct net *real = s->config.net;
    const uint32_t level = real->level ? real->level(s->config.net, node) : NET_LEVEL_OWN;
    atomic_store_explicit(&n->shared_level, level, memory_order_relaxed);
    l->epoch++;
    atomic_store_explicit(&l->shared_open, l->epoch, memory_order_release);
    struct event e = {.kind = EVENT_RESET, .lane = (uint8_t)lane, .node = node, .number = l->epoch, .shared = n};
    event_to_all(s, &e);
    own(s)->reset(own(s)->ctx, node, lane);
}

static void on_writable(void *ctx, uint32_t node, enum net_lane lane)
{
    struct net_share *s = ctx;
    own(s)->writable(own(s)->ctx, node, lane);
}

static void on_node_state(void *ctx, uint32_t node, enum node_verdict verdict, uint64_t incarnation)
{
    struct net_share *s = ctx;
    struct event e = {.kind = EVENT_NODE_STATE, .verdict = (uint8_t)verdict, .node = node, .number = incarnation};
    event_to_all(s, &e);
    own(s)->node_state(own(s)->ctx, node, verdict, incarnation);
}

static void letters_post(struct net_share *s)
{
    for (uint32_t i = 1; i < s->config.workers; i++) {
        struct port *p = &s->ports[i];
        if (p->events.len == 0) {
            continue;
        }
        struct letter *letter = mem_alloc(sizeof(*letter));
        *letter = (struct letter){.port = p, .events = p->events};
        buf_init(&p->events);
        s->config.post(s->config.post_ctx, i, letter_open, letter);
    }
}

void net_share_begin(struct net_share *s)
{
    letters_post(s);
}

static void publish(struct net_share *s)
{
    struct net *real = s->config.net;
    uint32_t pos = 0;
    for (struct share_node *n; (n = map_next(&s->nodes, &pos, NULL, NULL)) != NULL;) {
        for (int i = 0; i < LANE_COUNT; i++) {
            struct share_lane *l = &n->lanes[i];
            const enum net_lane lane = (enum net_lane)i;
            atomic_store_explicit(&l->shared_open, real->is_connected(real, n->node, lane) ? l->epoch : 0,
                                  memory_order_release);
            const uint64_t queued = real->queued(real, n->node, lane);
            atomic_store(&l->shared_queued, queued);
            if (atomic_load(&l->shared_wants_room) &&
                queued + atomic_load(&l->shared_transit) <= LIMIT_LANE_OUTPUT_BYTES / 2) {
                atomic_store(&l->shared_wants_room, false);
                struct event e = {.kind = EVENT_WRITABLE, .lane = (uint8_t)i, .node = n->node};
                event_to_all(s, &e);
            }
        }
    }
}

void net_share_flush(struct net_share *s)
{
    s->config.net->flush(s->config.net);
    while (!list_is_empty(&s->parcels)) {
        parcel_free(list_entry(list_pop(&s->parcels), struct parcel, link));
    }
    if (s->config.workers > 1) {
        publish(s);
        letters_post(s);
    }
}

// ---- between workers ---------------------------------------------------------------------------------------------

void net_share_pass_on(struct net_share *s, uint32_t worker, uint32_t node, enum net_lane lane, uint16_t type,
                       struct span envelope, struct span raw)
{
    if (worker >= s->config.workers) {
        return;  // Named by another node, which should know better.
    }
    struct letter *letter = mem_alloc(sizeof(*letter));
    *letter = (struct letter){.port = &s->ports[worker]};
    struct event e = {.kind = EVENT_FRAME, .lane = (uint8_t)lane, .type = type, .node = node};
    event_add(&letter->events, &e, envelope, raw);
    s->config.post(s->config.post_ctx, worker, letter_open, letter);
}

// ---- life --------------------------------------------------------------------------------------------------------

struct net_share *net_share_create(const struct net_share_config *config)
{
    assert(config->net != NULL);
    assert(config->workers >= 1 && config->workers <= FRAME_WORKERS_MAX);
    assert(config->workers == 1 || (config->post != NULL && config->net->send_encoded != NULL));
    struct net_share *s = mem_zalloc(sizeof(*s));
    s->config = *config;
    s->upcalls = (struct net_upcalls){
        .frame = on_frame, .reset = on_reset, .writable = on_writable, .node_state = on_node_state, .ctx = s};
    map_init_u64(&s->nodes);
    list_init(&s->parcels);
    s->ports = mem_zalloc(config->workers * sizeof(*s->ports));
    for (uint32_t i = 0; i < config->workers; i++) {
        struct port *p = &s->ports[i];
        p->net = (struct net){.send = port_send,
                              .flush = port_flush,
                              .queued = port_queued,
                              .is_connected = port_is_connected,
                              .level = port_level};
        p->share = s;
        p->worker = i;
        map_init_u64(&p->nodes);
        list_init(&p->dirty);
    }
    return s;
}

void net_share_destroy(struct net_share *s)
{
    while (!list_is_empty(&s->parcels)) {
        parcel_free(list_entry(list_pop(&s->parcels), struct parcel, link));
    }
    for (uint32_t i = 0; i < s->config.workers; i++) {
        struct port *p = &s->ports[i];
        uint32_t pos = 0;
        for (struct port_node *n; (n = map_next(&p->nodes, &pos, NULL, NULL)) != NULL;) {
            for (int k = 0; k < LANE_COUNT; k++) {
                buf_deinit(&n->lanes[k].out);
            }
            free(n);
        }
        map_deinit(&p->nodes);
        buf_deinit(&p->events);
    }
    uint32_t pos = 0;
    for (struct share_node *n; (n = map_next(&s->nodes, &pos, NULL, NULL)) != NULL;) {
        free(n);
    }
    map_deinit(&s->nodes);
    free(s->ports);
    free(s);
}

struct net *net_share_net(struct net_share *s, uint32_t worker)
{
    assert(worker < s->config.workers);
    return worker == 0 ? s->config.net : &s->ports[worker].net;
}

void net_share_listen(struct net_share *s, uint32_t worker, const struct net_upcalls *upcalls)
{
    assert(worker < s->config.workers);
    s->ports[worker].upcalls = upcalls;
}

const struct net_upcalls *net_share_upcalls(struct net_share *s)
{
    return &s->upcalls;
}
