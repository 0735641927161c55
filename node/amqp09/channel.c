// SPDX-License-Identifier: Apache-2.0
// Channel life: frames in order, methods to their files, answers that take time, errors.
//
// A method that needs an answer from elsewhere starts an operation. Until operation_end every further frame
// of the channel is copied to `waiting`, bounded by pausing the connection; at the turn after the answer the
// frames go on where they stopped. An operation whose channel goes away is orphaned and freed by its answer.
#include "node/amqp09/reply.h"
#include "node/amqp09/service.h"
#include "node/base/log.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

// ---- life ---------------------------------------------------------------------------------------

struct channel *channel_create(struct connection *c, uint16_t number)
{
    struct channel *ch = mem_zalloc(sizeof(*ch));
    ch->connection = c;
    ch->number = number;
    ch->serial = ++c->service->ids;
    ch->routes_generation = 1;
    list_init(&ch->link);
    list_init(&ch->ready_link);
    list_init(&ch->held_link);
    list_init(&ch->dirty_link);
    list_init(&ch->unroutable_link);
    list_init(&ch->queues);
    map_init_u64(&ch->queues_by_group);
    map_init_bytes(&ch->consumers_by_tag);
    map_init_u64(&ch->consumers);
    confirms_init(&ch->confirms);
    unacked_init(&ch->unacked);
    map_put(&c->channels, number, ch);
    list_add_tail(&c->channel_list, &ch->link);
    c->channel_last = ch;
    return ch;
}

static void operation_free(struct operation *op)
{
    buf_deinit(&op->arguments);
    buf_deinit(&op->more);
    free(op);
}

// Gives back everything but the struct: on release, and on an error while close-ok is awaited.
static void end_everything(struct channel *ch)
{
    struct operation *op = ch->pending;
    ch->pending = NULL;
    if (op) {
        op->channel = NULL;
        if (!op->is_external) {
            operation_free(op);
        }
    }
    channel_content_drop(ch);
    channel_consumers_free(ch);
    channel_tx_free(ch);
    channel_queues_release(ch);
    channel_routes_free(ch);
    confirms_deinit(&ch->confirms);
    unacked_deinit(&ch->unacked);
    buf_deinit(&ch->held);
    buf_deinit(&ch->body);
    buf_deinit(&ch->waiting);
    ch->waiting_pos = 0;
    if (ch->is_waiting_throttled) {
        ch->is_waiting_throttled = false;
        connection_throttle(ch->connection, -1);
    }
    ch->unroutable_until = 0;
    list_remove(&ch->ready_link);
    list_remove(&ch->held_link);
    list_remove(&ch->dirty_link);
    list_remove(&ch->unroutable_link);
}

void channel_release(struct channel *ch)
{
    assert(ch->state != CHANNEL_GONE);
    end_everything(ch);
    ch->state = CHANNEL_GONE;
    connection_forget_channel(ch->connection, ch);
    list_add_tail(&ch->connection->service->graves, &ch->link);
}

void channel_free(struct channel *ch)
{
    assert(ch->state == CHANNEL_GONE);
    list_remove(&ch->link);
    map_deinit(&ch->queues_by_group);
    map_deinit(&ch->consumers_by_tag);
    map_deinit(&ch->consumers);
    free(ch);
}

bool channel_is_open(const struct channel *ch)
{
    return ch->state == CHANNEL_OPEN;
}

struct amqp09 *channel_service(const struct channel *ch)
{
    return ch->connection->service;
}

struct buf *channel_out(struct channel *ch)
{
    return connection_out(ch->connection);
}

void channel_out_done(struct channel *ch)
{
    connection_out_done(ch->connection);
}

// ---- errors -------------------------------------------------------------------------------------

// Whether the client closes the channel in frames that wait behind the operation that fails.
static bool is_close_waiting(const struct channel *ch)
{
    struct reader r = reader_of(span_of(ch->waiting.ptr + ch->waiting_pos, ch->waiting.len - ch->waiting_pos));
    while (reader_left(&r) > 0) {
        uint8_t type = reader_u8(&r);
        struct reader payload = reader_of(reader_str32(&r));
        uint16_t class_id = reader_u16be(&payload), method_id = reader_u16be(&payload);
        if (type == AMQP_FRAME_METHOD && AMQP_METHOD_ID(class_id, method_id) == AMQP_CHANNEL_CLOSE_ID) {
            return true;
        }
    }
    return false;
}

void channel_fail(struct channel *ch, uint16_t code, uint32_t method, const char *format, ...)
{
    if (!channel_is_open(ch)) {
        return;
    }
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (reply_is_hard(code)) {
        connection_fail(ch->connection, code, method, "%s", text);
        return;
    }
    log_info("connection %s, channel %u: closing: %u %s: %s", ch->connection->name, ch->number, code,
             reply_name(code), text);
    channel_confirms_flush(ch);
    char reply[512];
    snprintf(reply, sizeof(reply), "%s - %s", reply_name(code), text);
    amqp_send_channel_close(channel_out(ch), ch->number,
                            &(struct amqp_channel_close){.reply_code = code,
                                                         .reply_text = span_of(reply, strnlen(reply, 255)),
                                                         .class_id = (uint16_t)(method >> 16),
                                                         .method_id = (uint16_t)method});
    ch->state = CHANNEL_CLOSING;
    channel_out_done(ch);
    bool is_close_owed = ch->waiting.len > 0 && is_close_waiting(ch);
    end_everything(ch);
    if (is_close_owed) {
        ch->is_close_owed = true;
        list_add_tail(&channel_service(ch)->ready, &ch->ready_link);
    }
}

void channel_fail_result(struct channel *ch, uint32_t method, const struct broker_result *r)
{
    uint16_t code = r->code ? r->code : REPLY_INTERNAL_ERROR;
    const char *text = r->text[0] ? r->text : rc_text(r->rc);
    if (r->is_connection_error) {
        connection_fail(ch->connection, code, method, "%s", text);
    } else {
        channel_fail(ch, code, method, "%s", text);
    }
}

// ---- operations ---------------------------------------------------------------------------------

struct operation *operation_start(struct channel *ch, uint32_t method)
{
    assert(!ch->pending);
    struct operation *op = mem_zalloc(sizeof(*op));
    op->channel = ch;
    op->method = method;
    ch->pending = op;
    return op;
}

void operation_end(struct operation *op)
{
    struct channel *ch = op->channel;
    if (ch) {
        assert(ch->pending == op);
        ch->pending = NULL;
        if ((ch->waiting.len > 0 || ch->content != CONTENT_NONE) && list_is_empty(&ch->ready_link)) {
            list_add_tail(&channel_service(ch)->ready, &ch->ready_link);
        }
    }
    operation_free(op);
}

void operation_answered(void *ctx, const struct broker_result *r)
{
    struct operation *op = ctx;
    op->is_external = false;
    if (op->channel) {
        op->done(op, r);
    } else {
        operation_free(op);
    }
}

static void counted(void *ctx, enum rc rc, const struct queue_info *info)
{
    struct operation *op = ctx;
    op->is_external = false;
    static const struct queue_info none;
    if (op->channel) {
        op->counted(op, rc == RC_OK ? info : &none);
    } else {
        operation_free(op);
    }
}

void operation_count(struct operation *op, const struct broker_queue *q)
{
    enum { TIMEOUT_MS = 1000 };
    op->is_external = true;
    queue_info_get(channel_service(op->channel)->config.queues, q->target, TIMEOUT_MS, counted, op);
}

struct operation *channel_operation(struct channel *ch, uint32_t method)
{
    return ch->pending && ch->pending->method == method ? ch->pending : NULL;
}

// ---- helpers for the methods' files -------------------------------------------------------------

bool channel_require(struct channel *ch, enum broker_access access, const char *kind, struct span name,
                     uint32_t method)
{
    static const char *const names[] = {
        [ACCESS_CONFIGURE] = "configure", [ACCESS_WRITE] = "write", [ACCESS_READ] = "read"};
    struct connection *c = ch->connection;
    struct broker_vhost *v = connection_vhost(c);
    if (!v) {
        connection_fail(c, REPLY_CONNECTION_FORCED, method, "vhost '%.*s' is gone", (int)c->vhost_name.len,
                        (const char *)c->vhost_name.ptr);
        return false;
    }
    if (broker_allowed(c->service->config.broker, c->user_name, v, access, name)) {
        return true;
    }
    channel_fail(ch, REPLY_ACCESS_REFUSED, method,
                 "%s access to %s '%.*s' in vhost '%.*s' refused for user '%s'", names[access], kind,
                 (int)name.len, (const char *)name.ptr, (int)c->vhost_name.len,
                 (const char *)c->vhost_name.ptr, c->user.name);
    return false;
}

bool channel_queue_name(struct channel *ch, struct span given, uint32_t method, struct span *out)
{
    if (given.len > 0) {
        *out = given;
        return true;
    }
    if (!ch->has_queue) {
        channel_fail(ch, REPLY_NOT_FOUND, method, "no previously declared queue");
        return false;
    }
    *out = span_of(ch->queue, ch->queue_len);
    return true;
}

struct span channel_strip(struct span name, char *to)
{
    struct reader r = reader_of(name);
    size_t n = 0;
    while (reader_left(&r) > 0) {
        char c = (char)reader_u8(&r);
        if (c != '\r' && c != '\n') {
            assert(n < 256);
            to[n++] = c;
        }
    }
    return span_of(to, n);
}

// ---- methods ------------------------------------------------------------------------------------

static void closed_by_client(struct channel *ch)
{
    channel_confirms_flush(ch);
    amqp_send_channel_close_ok(channel_out(ch), ch->number, &(struct amqp_channel_close_ok){});
    channel_out_done(ch);
    channel_release(ch);
}

static void confirm_select(struct channel *ch, const struct amqp_confirm_select *m)
{
    if (ch->tx) {
        channel_fail(ch, REPLY_PRECONDITION_FAILED, AMQP_CONFIRM_SELECT_ID,
                     "cannot switch from tx to confirm mode");
        return;
    }
    ch->confirms.is_on = true;
    if (!m->nowait) {
        amqp_send_confirm_select_ok(channel_out(ch), ch->number, &(struct amqp_confirm_select_ok){});
        channel_out_done(ch);
    }
}

static void flow(struct channel *ch, bool is_active)
{
    if (!is_active) {
        channel_fail(ch, REPLY_NOT_IMPLEMENTED, AMQP_CHANNEL_FLOW_ID, "active=false");
        return;
    }
    amqp_send_channel_flow_ok(channel_out(ch), ch->number, &(struct amqp_channel_flow_ok){.active = true});
    channel_out_done(ch);
}

static void access_request(struct channel *ch)
{
    amqp_send_access_request_ok(channel_out(ch), ch->number, &(struct amqp_access_request_ok){.ticket = 1});
    channel_out_done(ch);
}

static void method(struct channel *ch, const struct amqp_method *m)
{
    switch (m->id) {
    case AMQP_BASIC_PUBLISH_ID:
        channel_publish_method(ch, &m->basic_publish);
        return;
    case AMQP_BASIC_ACK_ID:
        channel_ack(ch, &m->basic_ack);
        return;
    case AMQP_BASIC_NACK_ID:
        channel_nack(ch, &m->basic_nack);
        return;
    case AMQP_BASIC_REJECT_ID:
        channel_reject(ch, &m->basic_reject);
        return;
    case AMQP_BASIC_GET_ID:
        channel_get(ch, &m->basic_get);
        return;
    case AMQP_BASIC_QOS_ID:
        channel_qos(ch, &m->basic_qos);
        return;
    case AMQP_BASIC_CONSUME_ID:
        channel_consume(ch, &m->basic_consume);
        return;
    case AMQP_BASIC_CANCEL_ID:
        channel_cancel(ch, &m->basic_cancel);
        return;
    case AMQP_BASIC_RECOVER_ID:
        channel_recover(ch, m->basic_recover.requeue, m->id);
        return;
    case AMQP_BASIC_RECOVER_ASYNC_ID:
        channel_recover(ch, m->basic_recover_async.requeue, m->id);
        return;
    case AMQP_QUEUE_DECLARE_ID:
        channel_queue_declare(ch, &m->queue_declare);
        return;
    case AMQP_QUEUE_BIND_ID:
        channel_queue_bind(ch, &m->queue_bind, m->id);
        return;
    case AMQP_QUEUE_UNBIND_ID:
        channel_queue_bind(ch,
                           &(struct amqp_queue_bind){.queue = m->queue_unbind.queue,
                                                     .exchange = m->queue_unbind.exchange,
                                                     .routing_key = m->queue_unbind.routing_key,
                                                     .arguments = m->queue_unbind.arguments},
                           m->id);
        return;
    case AMQP_QUEUE_PURGE_ID:
        channel_queue_purge(ch, &m->queue_purge);
        return;
    case AMQP_QUEUE_DELETE_ID:
        channel_queue_delete(ch, &m->queue_delete);
        return;
    case AMQP_EXCHANGE_DECLARE_ID:
        channel_exchange_declare(ch, &m->exchange_declare);
        return;
    case AMQP_EXCHANGE_DELETE_ID:
        channel_exchange_delete(ch, &m->exchange_delete);
        return;
    case AMQP_EXCHANGE_BIND_ID:
        channel_exchange_bind(ch, &m->exchange_bind, m->id);
        return;
    case AMQP_EXCHANGE_UNBIND_ID:
        channel_exchange_bind(ch,
                              &(struct amqp_exchange_bind){.destination = m->exchange_unbind.destination,
                                                           .source = m->exchange_unbind.source,
                                                           .routing_key = m->exchange_unbind.routing_key,
                                                           .nowait = m->exchange_unbind.nowait,
                                                           .arguments = m->exchange_unbind.arguments},
                              m->id);
        return;
    case AMQP_CONFIRM_SELECT_ID:
        confirm_select(ch, &m->confirm_select);
        return;
    case AMQP_TX_SELECT_ID:
        channel_tx_select(ch);
        return;
    case AMQP_TX_COMMIT_ID:
        channel_tx_commit(ch);
        return;
    case AMQP_TX_ROLLBACK_ID:
        channel_tx_rollback(ch);
        return;
    case AMQP_CHANNEL_FLOW_ID:
        flow(ch, m->channel_flow.active);
        return;
    case AMQP_CHANNEL_CLOSE_ID:
        closed_by_client(ch);
        return;
    case AMQP_ACCESS_REQUEST_ID:
        access_request(ch);
        return;
    case AMQP_CHANNEL_OPEN_ID:
        channel_fail(ch, REPLY_CHANNEL_ERROR, m->id, "second 'channel.open' seen");
        return;
    case AMQP_CHANNEL_CLOSE_OK_ID:  // Late, of a channel that both sides closed at once.
    case AMQP_CHANNEL_FLOW_OK_ID:
    case AMQP_BASIC_CANCEL_OK_ID:  // Some clients answer the server's basic.cancel.
        return;
    default:
        channel_fail(ch, REPLY_COMMAND_INVALID, m->id, "unimplemented method");
        return;
    }
}

// ---- frames -------------------------------------------------------------------------------------

static void process(struct channel *ch, uint8_t type, struct span payload)
{
    struct amqp_method m;
    switch (ch->content) {
    case CONTENT_NONE:
        if (type != AMQP_FRAME_METHOD) {
            channel_fail(ch, REPLY_UNEXPECTED_FRAME, 0,
                         "expected method frame, got non method frame instead");
        } else if (connection_read_method(ch->connection, payload, &m)) {
            method(ch, &m);
        }
        break;
    case CONTENT_HEADER:
        if (type != AMQP_FRAME_HEADER) {
            channel_fail(ch, REPLY_UNEXPECTED_FRAME, AMQP_BASIC_PUBLISH_ID,
                         "expected content header for class 60, got non content header frame instead");
        } else {
            channel_publish_header(ch, payload);
        }
        break;
    case CONTENT_BODY:
        if (type != AMQP_FRAME_BODY) {
            channel_fail(ch, REPLY_UNEXPECTED_FRAME, AMQP_BASIC_PUBLISH_ID,
                         "expected content body, got non content body frame instead");
        } else {
            channel_publish_body(ch, payload);
        }
        break;
    }
}

// Everything but the end of the closing handshake is ignored (PR-21).
static void frame_while_closing(struct channel *ch, uint8_t type, struct span payload)
{
    struct reader r = reader_of(payload);
    uint16_t class_id = reader_u16be(&r), method_id = reader_u16be(&r);
    uint32_t id = type == AMQP_FRAME_METHOD && !r.is_bad ? AMQP_METHOD_ID(class_id, method_id) : 0;
    if (id == AMQP_CHANNEL_CLOSE_ID) {
        closed_by_client(ch);
    } else if (id == AMQP_CHANNEL_CLOSE_OK_ID) {
        channel_release(ch);
    }
}

static bool must_wait(const struct channel *ch)
{
    return ch->pending || ch->unroutable_until > 0;
}

void channel_frame(struct channel *ch, uint8_t type, struct span payload)
{
    assert(ch->state != CHANNEL_GONE);
    if (ch->state == CHANNEL_CLOSING) {
        frame_while_closing(ch, type, payload);
        return;
    }
    if (!must_wait(ch) && ch->waiting.len == 0) {
        process(ch, type, payload);
        return;
    }
    buf_u8(&ch->waiting, type);
    buf_str32(&ch->waiting, payload);
    if (!ch->is_waiting_throttled && ch->waiting.len - ch->waiting_pos > CHANNEL_WAITING_BYTES) {
        ch->is_waiting_throttled = true;
        connection_throttle(ch->connection, 1);
    }
}

void channel_go_on(struct channel *ch)
{
    list_remove(&ch->ready_link);
    if (ch->state == CHANNEL_CLOSING && ch->is_close_owed) {
        closed_by_client(ch);  // Both sides closed at once.
        return;
    }
    while (channel_is_open(ch) && !must_wait(ch) && ch->waiting_pos < ch->waiting.len) {
        struct reader r =
            reader_of(span_of(ch->waiting.ptr + ch->waiting_pos, ch->waiting.len - ch->waiting_pos));
        uint8_t type = reader_u8(&r);
        struct span payload = reader_str32(&r);
        assert(!r.is_bad);
        ch->waiting_pos += r.pos;
        process(ch, type, payload);
    }
    if (ch->state == CHANNEL_GONE || !channel_is_open(ch)) {
        return;
    }
    channel_hold(ch);
    if (ch->waiting_pos == ch->waiting.len) {
        ch->waiting.len = ch->waiting_pos = 0;
        buf_shrink(&ch->waiting, 0);
        if (ch->is_waiting_throttled) {
            ch->is_waiting_throttled = false;
            connection_throttle(ch->connection, -1);
        }
    }
}
