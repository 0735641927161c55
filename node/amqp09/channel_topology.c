// SPDX-License-Identifier: Apache-2.0
// Declaring, deleting, binding, purging (data-plane §1.10).
//
// The rules are the broker's; its answer carries reply code and text. Here names are completed ("the last
// declared queue"), answers become frames, and counts are asked of the queue's leader.
#include "node/amqp09/reply.h"
#include "node/amqp09/service.h"

static void set_name(struct operation *op, struct span name)
{
    assert(name.len < sizeof(op->name));
    op->name_len = (uint8_t)name.len;
    if (name.len > 0) {
        memcpy(op->name, name.ptr, name.len);
    }
}

static struct span name_of(const struct operation *op)
{
    return span_of(op->name, op->name_len);
}

// The broker, the vhost and the user of an operation; false: the vhost is gone (the connection has failed).
static struct broker_vhost *vhost_of(struct channel *ch, uint32_t method)
{
    struct broker_vhost *v = connection_vhost(ch->connection);
    if (!v) {
        connection_fail(ch->connection, REPLY_CONNECTION_FORCED, method, "vhost '%.*s' is gone",
                        (int)ch->connection->vhost_name.len, (const char *)ch->connection->vhost_name.ptr);
    }
    return v;
}

// Fails the channel if the broker said no; the operation went with it.
static bool is_refused(struct operation *op, const struct broker_result *r)
{
    if (r->rc == RC_OK) {
        return false;
    }
    channel_fail_result(op->channel, op->method, r);
    return true;
}

// ---- finding a queue ----------------------------------------------------------------------------

static void queue_fenced(struct operation *op, const struct broker_result *r)
{
    struct channel *ch = op->channel;
    (void)r;  // Whatever it says, the projection is now as fresh as it gets.
    struct broker_vhost *v = vhost_of(ch, op->method);
    if (!v) {
        return;
    }
    const struct broker_queue *q = broker_queue_find(v, name_of(op));
    if (q) {
        op->then(op, q);
        return;
    }
    struct span vhost = ch->connection->vhost_name;
    channel_fail(ch, REPLY_NOT_FOUND, op->method, "no queue '%.*s' in vhost '%.*s'", op->name_len, op->name,
                 (int)vhost.len, (const char *)vhost.ptr);
}

void channel_with_queue(struct channel *ch, struct operation *op,
                        void (*then)(struct operation *op, const struct broker_queue *q))
{
    struct broker_vhost *v = vhost_of(ch, op->method);
    if (!v) {
        return;
    }
    channel_queues_trim(ch);
    const struct broker_queue *q = broker_queue_find(v, name_of(op));
    if (q) {
        then(op, q);
        return;
    }
    op->then = then;
    op->done = queue_fenced;
    op->is_external = true;
    struct broker_queue_declare d = {.name = name_of(op), .is_passive = true, .is_durable = true};
    broker_queue_declare(channel_service(ch)->config.broker, v, span_of(NULL, 0), &d, operation_answered, op);
}

// ---- exchanges ----------------------------------------------------------------------------------

static void exchange_declared(struct operation *op, const struct broker_result *r)
{
    struct channel *ch = op->channel;
    if (is_refused(op, r)) {
        return;
    }
    if (!op->is_nowait) {
        amqp_send_exchange_declare_ok(channel_out(ch), ch->number, &(struct amqp_exchange_declare_ok){});
        channel_out_done(ch);
    }
    operation_end(op);
}

void channel_exchange_declare(struct channel *ch, const struct amqp_exchange_declare *m)
{
    char stripped[256];
    struct broker_vhost *v = vhost_of(ch, AMQP_EXCHANGE_DECLARE_ID);
    if (!v) {
        return;
    }
    struct operation *op = operation_start(ch, AMQP_EXCHANGE_DECLARE_ID);
    op->is_nowait = m->nowait;
    op->done = exchange_declared;
    op->is_external = true;
    struct broker_exchange_declare d = {
        .name = channel_strip(m->exchange, stripped),
        .type = m->type,
        .is_passive = m->passive,
        .is_durable = m->durable,
        .is_auto_delete = m->auto_delete,
        .is_internal = m->internal,
        .arguments = m->arguments,
    };
    broker_exchange_declare(channel_service(ch)->config.broker, v, ch->connection->user_name, &d,
                            operation_answered, op);
}

static void exchange_deleted(struct operation *op, const struct broker_result *r)
{
    struct channel *ch = op->channel;
    if (is_refused(op, r)) {
        return;
    }
    if (!op->is_nowait) {
        amqp_send_exchange_delete_ok(channel_out(ch), ch->number, &(struct amqp_exchange_delete_ok){});
        channel_out_done(ch);
    }
    operation_end(op);
}

void channel_exchange_delete(struct channel *ch, const struct amqp_exchange_delete *m)
{
    char stripped[256];
    struct broker_vhost *v = vhost_of(ch, AMQP_EXCHANGE_DELETE_ID);
    if (!v) {
        return;
    }
    struct operation *op = operation_start(ch, AMQP_EXCHANGE_DELETE_ID);
    op->is_nowait = m->nowait;
    op->done = exchange_deleted;
    op->is_external = true;
    broker_exchange_delete(channel_service(ch)->config.broker, v, ch->connection->user_name,
                           channel_strip(m->exchange, stripped), m->if_unused, operation_answered, op);
}

// ---- bindings -----------------------------------------------------------------------------------

static void bound(struct operation *op, const struct broker_result *r)
{
    struct channel *ch = op->channel;
    if (is_refused(op, r)) {
        return;
    }
    if (!op->is_nowait) {
        struct buf *out = channel_out(ch);
        switch (op->method) {
        case AMQP_QUEUE_BIND_ID:
            amqp_send_queue_bind_ok(out, ch->number, &(struct amqp_queue_bind_ok){});
            break;
        case AMQP_QUEUE_UNBIND_ID:
            amqp_send_queue_unbind_ok(out, ch->number, &(struct amqp_queue_unbind_ok){});
            break;
        case AMQP_EXCHANGE_BIND_ID:
            amqp_send_exchange_bind_ok(out, ch->number, &(struct amqp_exchange_bind_ok){});
            break;
        default:
            amqp_send_exchange_unbind_ok(out, ch->number, &(struct amqp_exchange_unbind_ok){});
            break;
        }
        channel_out_done(ch);
    }
    operation_end(op);
}

static void bind_start(struct channel *ch, const struct broker_bind *d, bool is_nowait, uint32_t method)
{
    struct broker_vhost *v = vhost_of(ch, method);
    if (!v) {
        return;
    }
    struct operation *op = operation_start(ch, method);
    op->is_nowait = is_nowait;
    op->done = bound;
    op->is_external = true;
    broker_bind(channel_service(ch)->config.broker, v, ch->connection->user_name, d, operation_answered, op);
}

void channel_exchange_bind(struct channel *ch, const struct amqp_exchange_bind *m, uint32_t method)
{
    char source[256], destination[256];
    struct broker_bind d = {
        .source = channel_strip(m->source, source),
        .destination = channel_strip(m->destination, destination),
        .key = m->routing_key,
        .arguments = m->arguments,
        .to_queue = false,
        .is_unbind = method == AMQP_EXCHANGE_UNBIND_ID,
    };
    bind_start(ch, &d, m->nowait, method);
}

void channel_queue_bind(struct channel *ch, const struct amqp_queue_bind *m, uint32_t method)
{
    char source[256], destination[256];
    struct span queue;
    if (!channel_queue_name(ch, channel_strip(m->queue, destination), method, &queue)) {
        return;
    }
    struct broker_bind d = {
        .source = channel_strip(m->exchange, source),
        .destination = queue,
        .key = m->queue.len == 0 && m->routing_key.len == 0 ? queue : m->routing_key,
        .arguments = m->arguments,
        .to_queue = true,
        .is_unbind = method == AMQP_QUEUE_UNBIND_ID,
    };
    bind_start(ch, &d, m->nowait, method);
}

// ---- queue.declare ------------------------------------------------------------------------------

static void declare_ok(struct operation *op, uint64_t messages, uint64_t consumers)
{
    struct channel *ch = op->channel;
    if (!op->is_nowait) {
        amqp_send_queue_declare_ok(
            channel_out(ch), ch->number,
            &(struct amqp_queue_declare_ok){
                .queue = name_of(op),
                .message_count = messages > UINT32_MAX ? UINT32_MAX : (uint32_t)messages,
                .consumer_count = consumers > UINT32_MAX ? UINT32_MAX : (uint32_t)consumers,
            });
        channel_out_done(ch);
    }
    operation_end(op);
}

static void declare_counted(struct operation *op, const struct queue_info *info)
{
    declare_ok(op, info->ready, info->consumers);
}

static void queue_declared(struct operation *op, const struct broker_result *r)
{
    struct channel *ch = op->channel;
    if (is_refused(op, r)) {
        return;
    }
    memcpy(ch->queue, op->name, op->name_len);
    ch->queue_len = op->name_len;
    ch->has_queue = true;
    struct broker_vhost *v = connection_vhost(ch->connection);
    const struct broker_queue *q = v ? broker_queue_find(v, name_of(op)) : NULL;
    bool was_there = op->count > 0;
    if (!was_there || op->is_nowait || !q) {
        declare_ok(op, 0, 0);  // Just made: nothing can be in it.
        return;
    }
    op->counted = declare_counted;
    operation_count(op, q);
}

void channel_queue_declare(struct channel *ch, const struct amqp_queue_declare *m)
{
    const uint32_t method = AMQP_QUEUE_DECLARE_ID;
    char stripped[256];
    struct broker_vhost *v = vhost_of(ch, method);
    if (!v) {
        return;
    }
    struct span name = channel_strip(m->queue, stripped);
    struct operation *op = operation_start(ch, method);
    set_name(op, name);
    op->is_nowait = m->nowait;
    op->count = m->passive || broker_queue_find(v, name) != NULL;
    op->done = queue_declared;
    op->is_external = true;
    struct broker_queue_declare d = {
        .name = name_of(op),
        .is_passive = m->passive,
        .is_durable = m->durable,
        .is_exclusive = m->exclusive,
        .is_auto_delete = m->auto_delete,
        .arguments = m->arguments,
    };
    broker_queue_declare(channel_service(ch)->config.broker, v, ch->connection->user_name, &d,
                         operation_answered, op);
}

// ---- queue.delete -------------------------------------------------------------------------------

static void queue_deleted(struct operation *op, const struct broker_result *r)
{
    struct channel *ch = op->channel;
    if (is_refused(op, r)) {
        return;
    }
    if (!op->is_nowait) {
        amqp_send_queue_delete_ok(channel_out(ch), ch->number,
                                  &(struct amqp_queue_delete_ok){.message_count = op->count});
        channel_out_done(ch);
    }
    operation_end(op);
}

static void delete_counted(struct operation *op, const struct queue_info *info)
{
    struct channel *ch = op->channel;
    struct broker_vhost *v = vhost_of(ch, op->method);
    if (!v) {
        return;
    }
    op->count = info->ready > UINT32_MAX ? UINT32_MAX : (uint32_t)info->ready;
    op->done = queue_deleted;
    op->is_external = true;
    broker_queue_delete(channel_service(ch)->config.broker, v, ch->connection->user_name, name_of(op),
                        op->if_unused, op->if_empty, operation_answered, op);
}

void channel_queue_delete(struct channel *ch, const struct amqp_queue_delete *m)
{
    const uint32_t method = AMQP_QUEUE_DELETE_ID;
    struct span name;
    struct broker_vhost *v = vhost_of(ch, method);
    if (!v || !channel_queue_name(ch, m->queue, method, &name)) {
        return;
    }
    struct operation *op = operation_start(ch, method);
    set_name(op, name);
    op->is_nowait = m->nowait;
    op->if_unused = m->if_unused;
    op->if_empty = m->if_empty;
    op->counted = delete_counted;
    const struct broker_queue *q = broker_queue_find(v, name);
    if (q && !m->nowait) {
        operation_count(op, q);  // delete-ok tells how many were ready.
    } else {
        delete_counted(op, &(struct queue_info){0});
    }
}

// ---- queue.purge --------------------------------------------------------------------------------

static void purge_found(struct operation *op, const struct broker_queue *q)
{
    struct channel *ch = op->channel;
    struct channel_queue *cq = channel_queue_open(ch, q);
    op->token = ++ch->tokens;
    cq->reply_count++;
    queue_session_purge(cq->session, op->token);
}

void channel_queue_purge(struct channel *ch, const struct amqp_queue_purge *m)
{
    const uint32_t method = AMQP_QUEUE_PURGE_ID;
    struct span name;
    if (!channel_queue_name(ch, m->queue, method, &name) ||
        !channel_require(ch, ACCESS_READ, "queue", name, method)) {
        return;
    }
    struct operation *op = operation_start(ch, method);
    set_name(op, name);
    op->is_nowait = m->nowait;
    channel_with_queue(ch, op, purge_found);
}

void channel_purge_done(struct channel_queue *cq, uint64_t token, uint64_t count)
{
    struct channel *ch = cq->channel;
    struct operation *op = channel_operation(ch, AMQP_QUEUE_PURGE_ID);
    if (!op || op->token != token) {
        return;
    }
    cq->reply_count--;
    if (!op->is_nowait) {
        amqp_send_queue_purge_ok(channel_out(ch), ch->number,
                                 &(struct amqp_queue_purge_ok){
                                     .message_count = count > UINT32_MAX ? UINT32_MAX : (uint32_t)count});
        channel_out_done(ch);
    }
    operation_end(op);
}
