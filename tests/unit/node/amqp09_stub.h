// SPDX-License-Identifier: Apache-2.0
// A broker and queues in the tests' hands: every call from the connection code is written to a log, every
// answer is given by the test when it likes. Included by one C file per program, for it defines the functions
// of broker.h and queue.h.
#pragma once
#include "node/amqp09/channel.h"
#include "node/amqp09/connection.h"
#include "node/amqp09/service.h"
#include "node/base/block.h"
#include "proto/amqp09/table.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { STUB_QUEUES = 1100, STUB_SESSIONS = 1200, STUB_OPS = 64 };  // More queues than a channel keeps sessions with.

struct stub_queue {
    struct broker_queue pub;
    struct queue_target target;
    char name[64];
    bool exists;
};

struct queue_session {
    struct queue_service *service;
    const struct queue_callbacks *cb;
    void *ctx;
    struct stub_queue *queue;
    uint64_t published, settled;
    bool is_full, is_paused, is_closed;
    uint64_t taken;
};

struct queue_service {
    struct queue_session *sessions[STUB_SESSIONS];
    uint32_t sessions_count;
    uint64_t published;
    bool is_quiet;  // No log (fuzz, bench).
    struct queue_info info;
    uint32_t full_after;  // Publishes not settled at which a session is full; 0: never.
};

struct stub_op {
    broker_done_fn *done;
    queue_info_fn *info_done;
    void *ctx;
};

struct broker {
    struct stub_queue queues[STUB_QUEUES];
    struct queue_service service;
    uint64_t version;
    uint64_t routed;  // Calls of broker_route.
    bool has_vhost, has_headers_exchange, is_refusing;
    struct broker_exchange exchanges[4];  // "", "x", "internal", "nowhere"
    struct stub_op ops[STUB_OPS];
    uint32_t ops_head, ops_count;
    uint32_t queues_count;
    const struct broker_queue *route[STUB_QUEUES];
    struct buf log;
    uint64_t now_ns;
    bool is_current;
};

struct broker_vhost {
    struct broker *broker;
};

// One of each per program: the interfaces carry no other context.
static struct broker stub;
static struct broker_vhost stub_vhost = {&stub};

static void stub_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void stub_log(const char *format, ...)
{
    if (stub.service.is_quiet) {
        return;
    }
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    buf_bytes(&stub.log, line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1);
}

#define STUB_SPAN(s) (int)(s).len, (const char *)(s).ptr

static uint64_t stub_mono(void *ctx)
{
    (void)ctx;
    return stub.now_ns;
}
static int64_t stub_wall(void *ctx)
{
    (void)ctx;
    return 1700000000000;
}
static const struct clock stub_clock = {.mono_ns = stub_mono, .wall_ms = stub_wall};

static struct stub_queue *stub_queue_add(const char *name)
{
    for (uint32_t i = 0; i < STUB_QUEUES; i++) {
        struct stub_queue *q = &stub.queues[i];
        if (q->name[0] == 0 || (!q->exists && strcmp(q->name, name) == 0)) {
            bool is_again = q->name[0] != 0;
            stub.queues_count += !is_again;
            snprintf(q->name, sizeof(q->name), "%s", name);
            q->target = (struct queue_target){.group = 100 + i + (is_again ? STUB_QUEUES : 0)};
            q->pub = (struct broker_queue){.name = span_str(q->name), .is_durable = true, .target = &q->target};
            q->exists = true;
            stub.version++;
            return q;
        }
    }
    return NULL;
}

static void stub_init(void)
{
    memset(&stub, 0, sizeof(stub));
    stub.version = 1;
    stub.has_vhost = true;
    stub.is_current = true;
    stub.now_ns = 1000000000;
    stub.exchanges[0] = (struct broker_exchange){.name = span_str(""), .type = EXCHANGE_DIRECT};
    stub.exchanges[1] = (struct broker_exchange){.name = span_str("x"), .type = EXCHANGE_FANOUT};
    stub.exchanges[2] =
        (struct broker_exchange){.name = span_str("internal"), .type = EXCHANGE_DIRECT, .is_internal = true};
    stub.exchanges[3] = (struct broker_exchange){.name = span_str("nowhere"), .type = EXCHANGE_DIRECT};
}

static void stub_deinit(void)
{
    for (uint32_t i = 0; i < stub.service.sessions_count; i++) {
        free(stub.service.sessions[i]);
    }
    buf_deinit(&stub.log);
}

static bool stub_is_current(void *ctx)
{
    (void)ctx;
    return stub.is_current;
}

// ---- broker.h -----------------------------------------------------------------------------------

uint64_t broker_version(const struct broker *b)
{
    return b->version;
}
struct broker_vhost *broker_vhost_find(struct broker *b, struct span name)
{
    return b->has_vhost && span_equal(name, span_str("/")) ? &stub_vhost : NULL;
}
const struct broker_exchange *broker_exchange_find(struct broker_vhost *v, struct span name)
{
    for (int i = 0; i < 4; i++) {
        if (span_equal(v->broker->exchanges[i].name, name)) {
            return &v->broker->exchanges[i];
        }
    }
    return NULL;
}
const struct broker_queue *broker_queue_find(struct broker_vhost *v, struct span name)
{
    for (uint32_t i = 0; i < v->broker->queues_count; i++) {
        struct stub_queue *q = &v->broker->queues[i];
        if (q->exists && span_equal(q->pub.name, name)) {
            return &q->pub;
        }
    }
    return NULL;
}
void broker_exchange_each(struct broker_vhost *v, void (*each)(void *ctx, const struct broker_exchange *x),
                          void *ctx)
{
    struct broker_exchange x = {.name = span_str("h"), .type = EXCHANGE_HEADERS};
    if (v->broker->has_headers_exchange) {
        each(ctx, &x);
    }
}
bool broker_authenticate(struct broker *b, struct span user, struct span password, struct broker_user *out)
{
    (void)b;
    snprintf(out->name, sizeof(out->name), "%.*s", STUB_SPAN(user));
    out->is_impersonator = span_equal(user, span_str("actor"));
    return span_equal(password, span_str("secret"));
}
bool broker_user_exists(struct broker *b, struct span user)
{
    (void)user;
    return !b->is_refusing;
}
bool broker_may_enter(struct broker *b, struct span user, struct broker_vhost *v)
{
    (void)v;
    return !b->is_refusing && !span_equal(user, span_str("outsider"));
}
bool broker_allowed(struct broker *b, struct span user, struct broker_vhost *v, enum broker_access access,
                    struct span name)
{
    (void)b;
    (void)v;
    (void)access;
    (void)name;
    return !span_equal(user, span_str("weak"));
}
// Default exchange: the queue of that name. "x": all queues. Each once.
void broker_route(struct broker *b, struct broker_vhost *v, const struct broker_exchange *x,
                  const struct span *keys, uint32_t keys_count, struct span headers, struct broker_route *out)
{
    (void)v;
    (void)headers;
    b->routed++;
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->queues_count; i++) {
        bool is_hit = x->name.len > 0 && span_equal(x->name, span_str("x"));
        for (uint32_t k = 0; x->name.len == 0 && k < keys_count; k++) {
            is_hit = is_hit || span_equal(keys[k], b->queues[i].pub.name);
        }
        if (b->queues[i].exists && is_hit) {
            b->route[n++] = &b->queues[i].pub;
        }
    }
    out->count = n;
    out->queues = b->route;
}

static void stub_op_add(broker_done_fn *done, queue_info_fn *info_done, void *ctx)
{
    assert(stub.ops_count < STUB_OPS);
    stub.ops[(stub.ops_head + stub.ops_count++) % STUB_OPS] =
        (struct stub_op){.done = done, .info_done = info_done, .ctx = ctx};
}

// Answers the oldest operation under way.
static void stub_answer(enum rc rc, uint16_t code, bool is_connection_error, const char *text)
{
    assert(stub.ops_count > 0);
    struct stub_op op = stub.ops[stub.ops_head];
    stub.ops_head = (stub.ops_head + 1) % STUB_OPS;
    stub.ops_count--;
    if (op.info_done) {
        op.info_done(op.ctx, rc, rc == RC_OK ? &stub.service.info : NULL);
        return;
    }
    struct broker_result r = {.rc = rc, .code = code, .is_connection_error = is_connection_error};
    snprintf(r.text, sizeof(r.text), "%s", text);
    op.done(op.ctx, &r);
}
static inline void stub_ok(void)
{
    stub_answer(RC_OK, 0, false, "");
}

void broker_exchange_declare(struct broker *b, struct broker_vhost *v, struct span user,
                             const struct broker_exchange_declare *d, broker_done_fn *done, void *ctx)
{
    (void)b;
    (void)v;
    (void)user;
    stub_log("exchange.declare %.*s type=%.*s%s\n", STUB_SPAN(d->name), STUB_SPAN(d->type),
             d->is_passive ? " passive" : "");
    stub_op_add(done, NULL, ctx);
}
void broker_exchange_delete(struct broker *b, struct broker_vhost *v, struct span user, struct span name,
                            bool if_unused, broker_done_fn *done, void *ctx)
{
    (void)b;
    (void)v;
    (void)user;
    stub_log("exchange.delete %.*s%s\n", STUB_SPAN(name), if_unused ? " if-unused" : "");
    stub_op_add(done, NULL, ctx);
}
void broker_queue_declare(struct broker *b, struct broker_vhost *v, struct span user,
                          const struct broker_queue_declare *d, broker_done_fn *done, void *ctx)
{
    (void)b;
    (void)v;
    (void)user;
    stub_log("queue.declare %.*s%s\n", STUB_SPAN(d->name), d->is_passive ? " passive" : "");
    stub_op_add(done, NULL, ctx);
}
void broker_queue_delete(struct broker *b, struct broker_vhost *v, struct span user, struct span name,
                         bool if_unused, bool if_empty, broker_done_fn *done, void *ctx)
{
    (void)b;
    (void)v;
    (void)user;
    stub_log("queue.delete %.*s%s%s\n", STUB_SPAN(name), if_unused ? " if-unused" : "",
             if_empty ? " if-empty" : "");
    stub_op_add(done, NULL, ctx);
}
void broker_bind(struct broker *b, struct broker_vhost *v, struct span user, const struct broker_bind *d,
                 broker_done_fn *done, void *ctx)
{
    (void)b;
    (void)v;
    (void)user;
    stub_log("%s %s %.*s -> %.*s key=%.*s\n", d->is_unbind ? "unbind" : "bind",
             d->to_queue ? "queue" : "exchange", STUB_SPAN(d->source), STUB_SPAN(d->destination),
             STUB_SPAN(d->key));
    stub_op_add(done, NULL, ctx);
}

// ---- queue.h ------------------------------------------------------------------------------------

struct queue_session *queue_session_open(struct queue_service *q, const struct queue_target *t,
                                         const struct queue_callbacks *cb, void *ctx)
{
    struct queue_session *s = mem_zalloc(sizeof(*s));
    s->service = q;
    s->cb = cb;
    s->ctx = ctx;
    for (uint32_t i = 0; i < stub.queues_count; i++) {
        if (stub.queues[i].exists && stub.queues[i].pub.target->group == t->group) {
            s->queue = &stub.queues[i];
        }
    }
    // The list is for the tests; a program that runs for long forgets the closed ones.
    for (uint32_t i = 0; i < q->sessions_count; i++) {
        if (q->is_quiet && q->sessions[i]->is_closed) {
            free(q->sessions[i]);
            q->sessions[i] = s;
            return s;
        }
    }
    assert(q->sessions_count < STUB_SESSIONS);
    q->sessions[q->sessions_count++] = s;
    return s;
}
void queue_session_close(struct queue_session *s)
{
    assert(!s->is_closed);
    s->is_closed = true;
    stub_log("close %s\n", s->queue->name);
}
void *queue_session_ctx(struct queue_session *s)
{
    return s->ctx;
}
// Of the last publish: what the queue needs to leave a large body where it is.
static struct {
    bool is_given, has_room, is_summed;
    uint32_t sum;
} stub_large;
size_t queue_publish_room(size_t exchange_len, size_t key_len, size_t properties_len)
{
    return 100 + exchange_len + key_len + properties_len;
}
uint64_t queue_session_publish(struct queue_session *s, const struct queue_publish *p)
{
    assert(!s->is_closed);
    stub_large.is_given = p->is_body_disposable;
    stub_large.has_room = block_has_room(p->body, 100 + p->exchange.len + p->routing_keys[0].len + p->header.len, 8);
    stub_large.is_summed = block_sum(p->body, &stub_large.sum);
    s->published++;
    s->service->published++;
    if (!s->service->is_quiet) {
        uint8_t mode = 0;
        (void)content_find_delivery_mode(p->header, &mode);
        stub_log("publish %s x=%.*s", s->queue->name, STUB_SPAN(p->exchange));
        for (uint32_t i = 0; i < p->routing_keys_count; i++) {
            stub_log(" %s=%.*s", p->bcc && p->bcc[i] ? "bcc" : "key", STUB_SPAN(p->routing_keys[i]));
        }
        stub_log(" body=%.*s", p->body.len < 32 ? (int)p->body.len : 32, (const char *)p->body.ptr);
        if (p->body.len > 32) {
            stub_log("...%zu", p->body.len);
        }
        if (p->expiry_ms >= 0) {
            stub_log(" ttl=%lld", (long long)p->expiry_ms);
        }
        if (p->has_priority) {
            stub_log(" priority=%u", p->priority);
        }
        stub_log("%s\n", p->is_persistent ? " persistent" : "");
    }
    if (s->service->full_after > 0 && s->published - s->settled >= s->service->full_after) {
        s->is_full = true;
    }
    return s->published;
}
bool queue_session_is_full(const struct queue_session *s)
{
    return s->is_full;
}
void queue_session_consume(struct queue_session *s, const struct queue_consume *c)
{
    assert(!s->is_closed);
    stub_log("consume %s id=%u prefetch=%u%s priority=%d tag=%.*s\n", s->queue->name, c->consumer,
             c->prefetch, c->is_no_ack ? " no-ack" : "", c->priority, STUB_SPAN(c->tag));
}
void queue_session_cancel(struct queue_session *s, uint32_t consumer)
{
    stub_log("cancel %s id=%u\n", s->queue->name, consumer);
}
void queue_session_get(struct queue_session *s, uint64_t token, bool is_no_ack)
{
    stub_log("get %s token=%llu%s\n", s->queue->name, (unsigned long long)token, is_no_ack ? " no-ack" : "");
}
void queue_session_purge(struct queue_session *s, uint64_t token)
{
    stub_log("purge %s token=%llu\n", s->queue->name, (unsigned long long)token);
}
void queue_session_settle(struct queue_session *s, uint32_t consumer, uint64_t first, uint64_t last,
                          enum queue_settle how)
{
    static const char *const names[] = {[QUEUE_ACK] = "ack",
                                        [QUEUE_RELEASE] = "release",
                                        [QUEUE_RETURN] = "return",
                                        [QUEUE_DISCARD] = "discard"};
    assert(!s->is_closed);
    stub_log("%s %s c=%u %llu-%llu\n", names[how], s->queue->name, consumer, (unsigned long long)first,
             (unsigned long long)last);
}
void queue_session_taken(struct queue_session *s, uint32_t consumer, uint64_t bytes)
{
    (void)consumer;
    s->taken += bytes;
}
void queue_session_pause(struct queue_session *s, bool is_paused)
{
    s->is_paused = is_paused;
}
void queue_info_get(struct queue_service *q, const struct queue_target *t, uint32_t timeout_ms,
                    queue_info_fn *done, void *ctx)
{
    (void)q;
    (void)t;
    (void)timeout_ms;
    stub_log("info\n");
    stub_op_add(NULL, done, ctx);
}
uint64_t queue_service_next(const struct queue_service *q)
{
    (void)q;
    return UINT64_MAX;
}

// ---- the queues' side, driven by the test -------------------------------------------------------

// The latest open session with a queue.
static struct queue_session *stub_session(const char *queue)
{
    for (uint32_t i = stub.service.sessions_count; i > 0; i--) {
        struct queue_session *s = stub.service.sessions[i - 1];
        if (!s->is_closed && strcmp(s->queue->name, queue) == 0) {
            return s;
        }
    }
    return NULL;
}
static inline void stub_settle(const char *queue, uint64_t through)
{
    struct queue_session *s = stub_session(queue);
    s->settled = through;
    s->cb->settled(s->ctx, s, through, NULL, 0);
}
static inline void stub_reject(const char *queue, uint64_t through, uint64_t rejected)
{
    struct queue_session *s = stub_session(queue);
    s->settled = through;
    s->cb->settled(s->ctx, s, through, &rejected, 1);
}
static const uint8_t stub_no_properties[2];
static inline struct queue_message stub_message(uint64_t number, const char *body)
{
    return (struct queue_message){.number = number,
                                  .exchange = span_str(""),
                                  .routing_key = span_str("q"),
                                  .header = span_of(stub_no_properties, 2),
                                  .body = span_str(body)};
}
static inline void stub_deliver(const char *queue, uint32_t consumer, uint64_t number, const char *body)
{
    struct queue_session *s = stub_session(queue);
    struct queue_message m = stub_message(number, body);
    s->cb->deliver(s->ctx, s, consumer, &m);
}
