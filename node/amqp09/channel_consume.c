// SPDX-License-Identifier: Apache-2.0
// qos, consume, cancel, get, and deliveries (data-plane §1.12, §1.17).
//
// A delivery goes from the session into the output in one copy. Only a message that came back before has its
// header table rewritten, with x-acquired-count and x-delivery-count. consume-ok is always written before the
// first delivery.
#include "node/amqp09/reply.h"
#include "node/amqp09/service.h"
#include "proto/amqp09/table.h"
#include <stdlib.h>

// ---- qos ----------------------------------------------------------------------------------------

void channel_qos(struct channel *ch, const struct amqp_basic_qos *m)
{
    if (m->prefetch_size != 0) {
        channel_fail(ch, REPLY_NOT_IMPLEMENTED, AMQP_BASIC_QOS_ID, "prefetch_size!=0 (%u)", m->prefetch_size);
        return;
    }
    // global=true means the same as false (data-plane §1.12): per consumer, for consumers to come.
    ch->prefetch = m->prefetch_count;
    amqp_send_basic_qos_ok(channel_out(ch), ch->number, &(struct amqp_basic_qos_ok){});
    channel_out_done(ch);
}

// ---- consumers ----------------------------------------------------------------------------------

struct consumer *channel_consumer(struct channel *ch, uint32_t id)
{
    if (!ch->consumer_last || ch->consumer_last->id != id) {
        ch->consumer_last = map_get(&ch->consumers, id);
    }
    return ch->consumer_last;
}

static void consumer_free(struct consumer *k)
{
    free((void *)k->tag.ptr);
    free((void *)k->arguments.ptr);
    free(k);
}

static void consumer_remove(struct channel *ch, struct consumer *k)
{
    struct channel_queue *cq = k->queue;
    ch->consumer_last = NULL;
    (void)map_remove_bytes(&ch->consumers_by_tag, k->tag);
    (void)map_remove(&ch->consumers, k->id);
    consumer_free(k);
    assert(cq->consumers_count > 0);
    cq->consumers_count--;
    channel_queue_unref(cq);
}

void channel_consumers_free(struct channel *ch)
{
    uint32_t pos = 0;
    struct consumer *k;
    while ((k = map_next(&ch->consumers, &pos, NULL, NULL))) {
        (void)map_remove_bytes(&ch->consumers_by_tag, k->tag);
        (void)map_remove(&ch->consumers, k->id);
        consumer_free(k);
    }
    ch->consumer_last = NULL;
}

static struct consumer *consumer_create(struct channel *ch, struct channel_queue *cq,
                                        const struct operation *op)
{
    struct consumer *k = mem_zalloc(sizeof(*k));
    k->channel = ch;
    k->queue = cq;
    k->id = ++ch->consumer_ids;
    k->tag = span_of(mem_strndup(op->more.ptr, op->more.len), op->more.len);
    k->arguments = span_of(mem_strndup(op->arguments.ptr, op->arguments.len), op->arguments.len);
    k->prefetch = ch->prefetch;
    k->is_no_ack = op->is_no_ack;
    k->is_exclusive = op->is_exclusive;
    k->is_nowait = op->is_nowait;
    map_put(&ch->consumers, k->id, k);
    map_put_bytes(&ch->consumers_by_tag, k->tag, k);
    cq->consumers_count++;
    return k;
}

static void tell_consume_ok(struct channel *ch, struct consumer *k)
{
    if (k->is_told) {
        return;
    }
    k->is_told = true;
    if (!k->is_nowait) {
        amqp_send_basic_consume_ok(channel_out(ch), ch->number,
                                   &(struct amqp_basic_consume_ok){.consumer_tag = k->tag});
        channel_out_done(ch);
    }
}

// ---- consume ------------------------------------------------------------------------------------

static void fail_argument(struct channel *ch, const char *name, struct span queue, const char *reason)
{
    struct span vhost = ch->connection->vhost_name;
    channel_fail(ch, REPLY_PRECONDITION_FAILED, AMQP_BASIC_CONSUME_ID,
                 "invalid arg '%s' for queue '%.*s' in vhost '%.*s'%s", name, (int)queue.len,
                 (const char *)queue.ptr, (int)vhost.len, (const char *)vhost.ptr, reason);
}

// False: the channel has failed.
static bool read_arguments(struct channel *ch, struct span arguments, struct span queue, int32_t *priority)
{
    static const char *const of_streams[] = {"x-stream-offset", "x-stream-filter",
                                             "x-stream-match-unfiltered"};
    struct table_value v;
    for (size_t i = 0; i < sizeof(of_streams) / sizeof(of_streams[0]); i++) {
        if (table_find(arguments, of_streams[i], &v)) {
            fail_argument(ch, of_streams[i], queue, " of queue type rabbit_quorum_queue");
            return false;
        }
    }
    if (table_find(arguments, "x-consumer-timeout", &v)) {
        channel_fail(ch, REPLY_NOT_IMPLEMENTED, AMQP_BASIC_CONSUME_ID,
                     "consumer argument 'x-consumer-timeout' is not supported by this version of Warren");
        return false;
    }
    int64_t n = 0;
    if (table_find(arguments, "x-priority", &v)) {
        if (!table_value_integer(&v, &n)) {
            struct buf reason;
            buf_init(&reason);
            buf_printf(&reason, ": \"expected integer, got %s\"%c", table_type_name(v.type), 0);
            fail_argument(ch, "x-priority", queue, (const char *)reason.ptr);
            buf_deinit(&reason);
            return false;
        }
        n = n > INT32_MAX ? INT32_MAX : n < INT32_MIN ? INT32_MIN : n;
    }
    *priority = (int32_t)n;
    return true;
}

static void consume_found(struct operation *op, const struct broker_queue *q)
{
    struct channel *ch = op->channel;
    struct channel_queue *cq = channel_queue_open(ch, q);
    int32_t priority;
    if (!read_arguments(ch, buf_span(&op->arguments), q->name, &priority)) {
        return;  // The operation went with the channel.
    }
    struct consumer *k = consumer_create(ch, cq, op);
    op->consumer = k->id;
    cq->reply_count++;
    queue_session_consume(cq->session, &(struct queue_consume){.consumer = k->id,
                                                               .prefetch = k->prefetch,
                                                               .is_no_ack = k->is_no_ack,
                                                               .is_exclusive = k->is_exclusive,
                                                               .priority = priority,
                                                               .tag = k->tag});
    if (ch->connection->is_out_full && !cq->is_paused) {
        cq->is_paused = true;
        queue_session_pause(cq->session, true);
    }
}

static bool is_reply_to(struct span queue)
{
    return span_starts_with(queue, "amq.rabbitmq.reply-to");
}

void channel_consume(struct channel *ch, const struct amqp_basic_consume *m)
{
    const uint32_t method = AMQP_BASIC_CONSUME_ID;
    struct span queue;
    char generated[64];
    if (!channel_queue_name(ch, m->queue, method, &queue)) {
        return;
    }
    if (is_reply_to(queue)) {
        channel_fail(ch, REPLY_NOT_IMPLEMENTED, method,
                     "direct reply-to is not supported by this version of Warren");
        return;
    }
    if (!channel_require(ch, ACCESS_READ, "queue", queue, method)) {
        return;
    }
    struct span tag = m->consumer_tag;
    if (tag.len == 0) {
        amqp09_make_name(channel_service(ch), "amq.ctag-", generated);
        tag = span_str(generated);
    }
    if (map_get_bytes(&ch->consumers_by_tag, tag)) {
        channel_fail(ch, REPLY_NOT_ALLOWED, method, "attempt to reuse consumer tag '%.*s'", (int)tag.len,
                     (const char *)tag.ptr);
        return;
    }
    struct operation *op = operation_start(ch, method);
    op->is_nowait = m->nowait;
    op->is_no_ack = m->no_ack;
    op->is_exclusive = m->exclusive;
    op->name_len = (uint8_t)queue.len;
    memcpy(op->name, queue.ptr, queue.len);
    buf_span_bytes(&op->arguments, m->arguments);
    buf_span_bytes(&op->more, tag);
    channel_with_queue(ch, op, consume_found);
}

static void fail_consume(struct channel *ch, const struct channel_queue *cq, enum rc rc)
{
    const uint32_t method = AMQP_BASIC_CONSUME_ID;
    struct span vhost = ch->connection->vhost_name;
    if (rc == RC_DENIED || rc == RC_CONFLICT || rc == RC_EXISTS || rc == RC_BUSY) {
        channel_fail(ch, REPLY_ACCESS_REFUSED, method, "queue '%.*s' in vhost '%.*s' in exclusive use",
                     (int)cq->name.len, (const char *)cq->name.ptr, (int)vhost.len, (const char *)vhost.ptr);
    } else if (rc == RC_NOT_FOUND) {
        channel_fail(ch, REPLY_NOT_FOUND, method, "no queue '%.*s' in vhost '%.*s'", (int)cq->name.len,
                     (const char *)cq->name.ptr, (int)vhost.len, (const char *)vhost.ptr);
    } else {
        channel_fail(ch, REPLY_INTERNAL_ERROR, method, "consume on queue '%.*s' in vhost '%.*s': %s",
                     (int)cq->name.len, (const char *)cq->name.ptr, (int)vhost.len, (const char *)vhost.ptr,
                     rc_text(rc));
    }
}

void channel_consume_done(struct channel_queue *cq, uint32_t consumer, enum rc rc)
{
    struct channel *ch = cq->channel;
    struct operation *op = channel_operation(ch, AMQP_BASIC_CONSUME_ID);
    struct consumer *k = channel_consumer(ch, consumer);
    if (!op || op->consumer != consumer || !k) {
        return;
    }
    cq->reply_count--;
    if (rc != RC_OK) {
        fail_consume(ch, cq, rc);
        return;
    }
    tell_consume_ok(ch, k);
    operation_end(op);
}

// ---- cancel -------------------------------------------------------------------------------------

static void tell_cancel_ok(struct channel *ch, struct span tag, bool is_nowait)
{
    if (!is_nowait) {
        amqp_send_basic_cancel_ok(channel_out(ch), ch->number,
                                  &(struct amqp_basic_cancel_ok){.consumer_tag = tag});
        channel_out_done(ch);
    }
}

void channel_cancel(struct channel *ch, const struct amqp_basic_cancel *m)
{
    struct consumer *k = map_get_bytes(&ch->consumers_by_tag, m->consumer_tag);
    if (!k || !k->queue->session || k->queue->is_ended) {
        if (k) {
            consumer_remove(ch, k);
        }
        tell_cancel_ok(ch, m->consumer_tag, m->nowait);
        return;
    }
    struct operation *op = operation_start(ch, AMQP_BASIC_CANCEL_ID);
    op->is_nowait = m->nowait;
    op->consumer = k->id;
    k->queue->reply_count++;
    queue_session_cancel(k->queue->session, k->id);
}

static void cancelled(struct channel *ch, struct operation *op, struct consumer *k)
{
    k->queue->reply_count--;
    tell_cancel_ok(ch, k->tag, op->is_nowait);
    consumer_remove(ch, k);
    operation_end(op);
}

void channel_cancel_done(struct channel_queue *cq, uint32_t consumer)
{
    struct channel *ch = cq->channel;
    struct operation *op = channel_operation(ch, AMQP_BASIC_CANCEL_ID);
    struct consumer *k = channel_consumer(ch, consumer);
    if (op && op->consumer == consumer && k) {
        cancelled(ch, op, k);
    }
}

// The queue took the consumer away. False: the client has not asked to be told of such things.
static bool consumer_lost(struct channel *ch, struct consumer *k)
{
    struct operation *op = channel_operation(ch, AMQP_BASIC_CANCEL_ID);
    if (op && op->consumer == k->id) {
        cancelled(ch, op, k);
        return true;
    }
    op = channel_operation(ch, AMQP_BASIC_CONSUME_ID);
    if (op && op->consumer == k->id) {
        k->queue->reply_count--;
        tell_consume_ok(ch, k);
        operation_end(op);
    }
    bool can_tell = ch->connection->has_cancel_notify;
    if (can_tell) {
        amqp_send_basic_cancel(channel_out(ch), ch->number,
                               &(struct amqp_basic_cancel){.consumer_tag = k->tag, .nowait = true});
        channel_out_done(ch);
    }
    consumer_remove(ch, k);
    return can_tell;
}

void channel_consumer_lost(struct channel_queue *cq, uint32_t consumer)
{
    struct channel *ch = cq->channel;
    struct consumer *k = channel_consumer(ch, consumer);
    // Without the capability the consumer just goes silent (data-plane §1.12), unless `ended` finds that the queue lives on.
    if (k && !consumer_lost(ch, k)) {
        cq->has_silent_loss = true;
    }
}

bool channel_consumers_lost(struct channel *ch, struct channel_queue *cq)
{
    bool can_tell = true;
    uint32_t pos = 0;
    struct consumer *k;
    // `cq` itself stays: its session is still to be closed at the turn.
    while ((k = map_next(&ch->consumers, &pos, NULL, NULL))) {
        if (k->queue == cq) {
            can_tell = consumer_lost(ch, k) && can_tell;
        }
    }
    return can_tell;
}

// ---- deliveries ---------------------------------------------------------------------------------

// Properties as they go to the client: with the counts of a message that came back.
static struct span delivered_properties(struct amqp09 *s, const struct queue_message *m)
{
    if (m->acquired_count == 0 && m->delivery_count == 0) {
        return m->header;
    }
    static const char *const counts[] = {"x-acquired-count", "x-delivery-count"};
    struct span headers = {0};
    (void)content_find_headers(m->header, &headers);  // None: an empty table.
    struct buf *table = &s->scratch, *more = &s->scratch_more;
    table->len = more->len = 0;
    table_put_sorted(more, headers, counts, 2);
    if (m->acquired_count > 0) {
        table_put_i64(more, counts[0], m->acquired_count);
    }
    if (m->delivery_count > 0) {
        table_put_i64(more, counts[1], m->delivery_count);
    }
    table_put_sorted(table, buf_span(more), NULL, 0);
    more->len = 0;
    content_put_with_headers(more, m->header, buf_span(table));
    return buf_span(more);
}

// False: the header is larger than the client's frames; the channel has failed and the message goes back
// (PR-39).
static bool fits(struct channel *ch, struct span properties, uint32_t method)
{
    uint32_t frame_max = ch->connection->frame_max;
    if (content_header_fits(properties.len, frame_max)) {
        return true;
    }
    channel_fail(ch, REPLY_CONTENT_TOO_LARGE, method,
                 "content header of %zu octets does not fit into frame_max %u",
                 properties.len + CONTENT_HEADER_FIXED_BYTES, frame_max);
    return false;
}

static uint64_t give_tag(struct channel *ch, struct channel_queue *cq, uint32_t consumer, uint64_t number,
                         bool is_no_ack)
{
    if (is_no_ack) {
        return unacked_skip(&ch->unacked);
    }
    cq->unacked_count++;
    return unacked_add(&ch->unacked, cq, consumer, number);
}

void channel_deliver(struct channel_queue *cq, uint32_t consumer, const struct queue_message *m)
{
    struct channel *ch = cq->channel;
    struct consumer *k = channel_consumer(ch, consumer);
    if (!k) {
        // Cancelled or lost meanwhile: what still comes goes back.
        if (cq->session && !cq->is_ended) {
            queue_session_settle(cq->session, consumer, m->number, m->number, QUEUE_RELEASE);
        }
        return;
    }
    struct span properties = delivered_properties(channel_service(ch), m);
    if (!fits(ch, properties, AMQP_BASIC_DELIVER_ID)) {
        return;
    }
    tell_consume_ok(ch, k);
    struct buf *out = channel_out(ch);
    uint64_t tag = give_tag(ch, cq, consumer, m->number, k->is_no_ack);
    amqp_send_basic_deliver(out, ch->number,
                            &(struct amqp_basic_deliver){.consumer_tag = k->tag,
                                                         .delivery_tag = tag,
                                                         .redelivered = m->acquired_count > 0,
                                                         .exchange = m->exchange,
                                                         .routing_key = m->routing_key});
    connection_content(ch->connection, ch->number, properties, m->body);
    connection_mark_delivery(ch->connection, ch, consumer, m->body.len);
    channel_out_done(ch);
}

// ---- get ----------------------------------------------------------------------------------------

static void get_found(struct operation *op, const struct broker_queue *q)
{
    struct channel *ch = op->channel;
    if (q->is_single_active) {
        struct span vhost = ch->connection->vhost_name;
        channel_fail(ch, REPLY_RESOURCE_LOCKED, op->method,
                     "cannot obtain access to locked queue '%.*s' in vhost '%.*s'. basic.get operations are "
                     "not supported by <<\"quorum\">> queues with single active consumer",
                     (int)q->name.len, (const char *)q->name.ptr, (int)vhost.len, (const char *)vhost.ptr);
        return;
    }
    struct channel_queue *cq = channel_queue_open(ch, q);
    op->token = ++ch->tokens;
    cq->reply_count++;
    queue_session_get(cq->session, op->token, op->is_no_ack);
}

void channel_get(struct channel *ch, const struct amqp_basic_get *m)
{
    const uint32_t method = AMQP_BASIC_GET_ID;
    struct span queue;
    if (!channel_queue_name(ch, m->queue, method, &queue)) {
        return;
    }
    if (is_reply_to(queue)) {
        channel_fail(ch, REPLY_NOT_IMPLEMENTED, method, "basic.get on a direct reply-to queue");
        return;
    }
    if (!channel_require(ch, ACCESS_READ, "queue", queue, method)) {
        return;
    }
    struct operation *op = operation_start(ch, method);
    op->is_no_ack = m->no_ack;
    op->name_len = (uint8_t)queue.len;
    memcpy(op->name, queue.ptr, queue.len);
    channel_with_queue(ch, op, get_found);
}

void channel_get_done(struct channel_queue *cq, uint64_t token, enum rc rc, const struct queue_message *m,
                      uint64_t ready)
{
    struct channel *ch = cq->channel;
    struct operation *op = channel_operation(ch, AMQP_BASIC_GET_ID);
    if (!op || op->token != token) {
        return;
    }
    cq->reply_count--;
    if (rc != RC_OK) {
        struct span vhost = ch->connection->vhost_name;
        channel_fail(ch, REPLY_PRECONDITION_FAILED, op->method,
                     "basic.get on queue '%.*s' in vhost '%.*s': %s", (int)cq->name.len,
                     (const char *)cq->name.ptr, (int)vhost.len, (const char *)vhost.ptr, rc_text(rc));
        return;
    }
    struct buf *out = channel_out(ch);
    if (!m) {
        amqp_send_basic_get_empty(out, ch->number, &(struct amqp_basic_get_empty){});
    } else {
        struct span properties = delivered_properties(channel_service(ch), m);
        if (!fits(ch, properties, AMQP_BASIC_GET_ID)) {
            return;
        }
        uint64_t tag = give_tag(ch, cq, 0, m->number, op->is_no_ack);
        amqp_send_basic_get_ok(
            out, ch->number,
            &(struct amqp_basic_get_ok){.delivery_tag = tag,
                                        .redelivered = m->acquired_count > 0,
                                        .exchange = m->exchange,
                                        .routing_key = m->routing_key,
                                        .message_count = ready > UINT32_MAX ? UINT32_MAX : (uint32_t)ready});
        connection_content(ch->connection, ch->number, properties, m->body);
    }
    channel_out_done(ch);
    operation_end(op);
}
