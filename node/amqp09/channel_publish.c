// SPDX-License-Identifier: Apache-2.0
// basic.publish: from three kinds of frames to the sessions of the queues (data-plane §1.11).
//
// A message whose frames lie in one piece of input is never copied here: method, properties and body are
// spans into the input until the sessions copy them. Only what is cut off by the end of the input is held
// (channel_hold), and bodies of several frames are gathered.
//
// Two publishes wait: one to an exchange that does not exist, until that is proven (decision 16), and an
// unroutable one while the projection is known to be behind, for at most 100 ms. Both hold the whole message
// and the frames behind it. One to a queue's name that is not there waits for the end of the turn in any case: what
// says that the queue is there may have come with it and not be read yet.
#include "node/amqp09/reply.h"
#include "node/amqp09/service.h"
#include "node/base/block.h"
#include "node/base/crc32c.h"
#include "proto/amqp09/table.h"
#include "proto/record.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { PUBLISH = AMQP_BASIC_PUBLISH_ID };
static const int64_t EXPIRATION_MAX_MS = 315360000000;
enum { BODY_KEEP_BYTES = 64 << 10 };

// What is known of the message at hand beside its frames.
struct message {
    struct content_properties properties;
    struct span raw;      // Properties as they will be stored.
    struct span headers;  // Header table as published.
    uint32_t keys_count;  // In service->keys / bcc.
    int64_t expiry_ms;
    bool is_rewritten;  // properties differ from what was published
    uint16_t error;  // 0 or the reply code of the first rule broken
    char error_text[400];
};

// ---- assembling ---------------------------------------------------------------------------------

// What of the body was gathered.
static struct span body_span(const struct channel *ch)
{
    const size_t len = ch->body.len - ch->body_room;
    return len > 0 ? span_of(ch->body.ptr + ch->body_room, len) : span_of(NULL, 0);
}

static void body_release(struct channel *ch)
{
    const size_t len = ch->body.len - ch->body_room;
    if (len > 0) {
        amqp09_partial_changed(channel_service(ch), ch->connection, -(int64_t)len);
    }
    ch->body.len = 0;
    ch->body_room = 0;
    buf_shrink(&ch->body, BODY_KEEP_BYTES);
}

// A large body is gathered where it will stay: the command and the record around it are written in front of
// it, and it is summed while its bytes are at hand.
static void body_gather(struct channel *ch, struct span payload)
{
    if (ch->body_size < BLOCK_BYTES_MIN) {
        buf_span_bytes(&ch->body, payload);
        return;
    }
    if (ch->body.len == 0) {
        ch->body_room = queue_publish_room(ch->publish.exchange.len, ch->publish.routing_key.len, ch->properties.len);
        ch->body_sum = 0;
        buf_extend(&ch->body, ch->body_room);
    }
    ch->body_sum = crc32c_copy(ch->body_sum, buf_extend(&ch->body, payload.len), payload.ptr, payload.len);
}

// The gathered body as a block that the last queue may have, where *body lies then; NULL: it is small. The caller's.
static struct block *body_give(struct channel *ch, struct span *body)
{
    if (ch->body_room == 0 || body->ptr != body_span(ch).ptr) {
        return NULL;
    }
    const size_t room = ch->body_room;
    amqp09_partial_changed(channel_service(ch), ch->connection, -(int64_t)body->len);
    ch->body_room = 0;
    buf_reserve(&ch->body, RECORD_ALIGN);
    struct block *b = block_adopt(&ch->body);
    b->has_room = true;
    block_set_sum(b, room, room + body->len, ch->body_sum);
    *body = span_of(b->ptr + room, body->len);
    return b;
}

void channel_content_drop(struct channel *ch)
{
    body_release(ch);
    ch->content = CONTENT_NONE;
    ch->is_method_held = ch->is_held = false;
    ch->held.len = 0;
    list_remove(&ch->held_link);
}

void channel_hold(struct channel *ch)
{
    list_remove(&ch->held_link);
    if (ch->content == CONTENT_NONE || ch->is_held) {
        return;
    }
    struct buf *b = &ch->held;
    struct amqp_basic_publish *m = &ch->publish;
    size_t properties_len = ch->content == CONTENT_BODY ? ch->properties.len : 0;
    if (!ch->is_method_held) {
        b->len = 0;
        buf_span_bytes(b, m->exchange);
        buf_span_bytes(b, m->routing_key);
    }
    if (properties_len > 0) {
        buf_span_bytes(b, ch->properties);
    }
    struct reader r = reader_of(buf_span(b));
    m->exchange = reader_span(&r, m->exchange.len);
    m->routing_key = reader_span(&r, m->routing_key.len);
    ch->properties = reader_span(&r, properties_len);
    ch->is_method_held = true;
    ch->is_held = ch->content == CONTENT_BODY;
}

static void hold_later(struct channel *ch)
{
    if (list_is_empty(&ch->held_link)) {
        list_add_tail(&ch->connection->held, &ch->held_link);
    }
}

void channel_publish_method(struct channel *ch, const struct amqp_basic_publish *m)
{
    ch->publish = *m;
    ch->content = CONTENT_HEADER;
    ch->is_method_held = ch->is_held = false;
    hold_later(ch);
}

static void complete(struct channel *ch, struct span body, bool is_last_try);

void channel_publish_header(struct channel *ch, struct span payload)
{
    struct connection *c = ch->connection;
    struct content_header h;
    connection_note_publish(c);
    if (content_header_read(payload, &h) != RC_OK) {
        channel_fail(ch, REPLY_FRAME_ERROR, PUBLISH, "cannot decode content header of %zu octets",
                     payload.len);
        return;
    }
    if (h.class_id != CONTENT_CLASS_BASIC) {
        channel_fail(ch, REPLY_UNEXPECTED_FRAME, PUBLISH,
                     "expected content header for class 60, got one for class %u instead", h.class_id);
        return;
    }
    if (h.weight != 0) {
        channel_fail(ch, REPLY_UNEXPECTED_FRAME, PUBLISH,
                     "expected content header for class 60, got non content header frame instead");
        return;
    }
    if (h.body_size > LIMIT_MESSAGE_BYTES_MAX) {
        channel_fail(ch, REPLY_FRAME_ERROR, PUBLISH, "content body size %llu exceeds maximum allowed size %u",
                     (unsigned long long)h.body_size, LIMIT_MESSAGE_BYTES_MAX);
        return;
    }
    if (ch->publish.immediate) {
        channel_fail(ch, REPLY_NOT_IMPLEMENTED, PUBLISH, "immediate=true");
        return;
    }
    uint64_t max = channel_service(ch)->config.max_message_size;
    if (h.body_size > max) {
        channel_fail(ch, REPLY_PRECONDITION_FAILED, PUBLISH,
                     "message size %llu is larger than %smax size %llu", (unsigned long long)h.body_size,
                     max == LIMIT_MESSAGE_BYTES_MAX ? "" : "configured ", (unsigned long long)max);
        return;
    }
    ch->properties = h.properties;
    ch->body_size = h.body_size;
    ch->content = CONTENT_BODY;
    if (h.body_size == 0) {
        complete(ch, span_of(NULL, 0), false);
    } else {
        hold_later(ch);
    }
}

void channel_publish_body(struct channel *ch, struct span payload)
{
    connection_note_publish(ch->connection);
    const size_t got = ch->body.len - ch->body_room;
    if (payload.len > ch->body_size - got) {
        channel_fail(ch, REPLY_FRAME_ERROR, PUBLISH, "content body frame exceeds remaining content size");
        return;
    }
    if (payload.len == ch->body_size) {
        complete(ch, payload, false);
        return;
    }
    struct connection *c = ch->connection;
    uint64_t bound = channel_service(ch)->config.max_message_size;
    bound = bound > CONNECTION_PARTIAL_BYTES ? bound : CONNECTION_PARTIAL_BYTES;
    if (c->partial_bytes + payload.len > bound) {
        channel_fail(ch, REPLY_RESOURCE_ERROR, PUBLISH,
                     "more than %llu octets of unfinished messages on one connection",
                     (unsigned long long)bound);
        return;
    }
    body_gather(ch, payload);
    amqp09_partial_changed(channel_service(ch), c, (int64_t)payload.len);
    if (got + payload.len == ch->body_size) {
        complete(ch, body_span(ch), false);
    }
}

// ---- looking at the message ---------------------------------------------------------------------

static void set_error(struct message *m, uint16_t code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void set_error(struct message *m, uint16_t code, const char *format, ...)
{
    if (m->error != 0) {
        return;  // The first rule broken decides.
    }
    va_list args;
    va_start(args, format);
    vsnprintf(m->error_text, sizeof(m->error_text), format, args);
    va_end(args);
    m->error = code;
}

// A decimal number with or without a sign, 0..EXPIRATION_MAX_MS, and nothing behind it. The message goes on
// with the number alone: no sign, no leading zeros.
static void read_expiration(struct message *m)
{
    struct span e = m->properties.expiration;
    size_t at = e.len > 0 && (e.ptr[0] == '+' || e.ptr[0] == '-'), first = at;
    bool is_negative = at > 0 && e.ptr[0] == '-';
    int64_t value = 0;
    while (at < e.len && e.ptr[at] >= '0' && e.ptr[at] <= '9') {
        value = value <= EXPIRATION_MAX_MS ? value * 10 + (e.ptr[at] - '0') : value;
        at++;
    }
    size_t digits = at - first;
    while (first + 1 < at && e.ptr[first] == '0') {
        first++;
    }
    char reason[300];
    struct span number = span_of(e.ptr + first, at - first);
    if (digits == 0) {
        snprintf(reason, sizeof(reason), "no_integer");
    } else if (at < e.len) {
        snprintf(reason, sizeof(reason), "{leftover_string,\"%.*s\"}", (int)(e.len - at),
                 (const char *)e.ptr + at);
    } else if (is_negative && value > 0) {
        snprintf(reason, sizeof(reason), "{value_negative,-%.*s}", (int)number.len, (const char *)number.ptr);
    } else if (value > EXPIRATION_MAX_MS) {
        snprintf(reason, sizeof(reason), "{value_too_large,%.*s}", (int)number.len, (const char *)number.ptr);
    } else {
        m->expiry_ms = value;
        m->properties.expiration = number;
        m->is_rewritten = number.len != e.len;
        return;
    }
    set_error(m, REPLY_PRECONDITION_FAILED, "invalid expiration '%.*s': %s", (int)e.len, (const char *)e.ptr,
              reason);
}

static void add_key(struct amqp09 *s, struct message *m, struct span key, bool is_bcc)
{
    if (m->keys_count == s->keys_cap) {
        s->keys_cap = s->keys_cap == 0 ? 16 : s->keys_cap * 2;
        s->keys = mem_realloc(s->keys, s->keys_cap * sizeof(*s->keys));
        s->bcc = mem_realloc(s->bcc, s->keys_cap * sizeof(*s->bcc));
    }
    s->keys[m->keys_count] = key;
    s->bcc[m->keys_count] = is_bcc;
    m->keys_count++;
}

// CC and BCC: arrays of strings, more routing keys.
static void read_keys(struct amqp09 *s, struct message *m, const char *header, bool is_bcc)
{
    struct table_value v, item;
    if (!table_find(m->headers, header, &v)) {
        return;
    }
    if (v.type != TABLE_ARRAY) {
        set_error(m, REPLY_PRECONDITION_FAILED,
                  "invalid message: {unacceptable_type_in_header,\"%s\",%s}", header,
                  table_type_name(v.type));
        return;
    }
    struct table_reader items = array_reader_of(v.bytes);
    while (table_next(&items, NULL, &item)) {
        if (item.type == TABLE_STRING && item.bytes.len <= UINT8_MAX) {  // What cannot be a key is passed over.
            add_key(s, m, item.bytes, is_bcc);
        }
    }
}

// Keys sorted, BCC gone, unused flag bits clear: what is stored and delivered (data-plane §1.7, §1.8, §11).
static void normalise(struct amqp09 *s, struct message *m, struct span raw, bool has_bcc)
{
    struct reader r = reader_of(raw);
    bool has_unused_bits = reader_u16be(&r) & PROPERTY_UNUSED;
    m->raw = raw;
    if (!has_unused_bits && !has_bcc && !m->is_rewritten && content_headers_are_sorted(m->headers)) {
        return;
    }
    static const char *const hidden[] = {"BCC"};
    s->scratch.len = s->scratch_more.len = 0;
    table_put_sorted(&s->scratch, m->headers, hidden, 1);
    struct content_properties p = m->properties;
    p.headers = buf_span(&s->scratch);
    content_properties_put(&s->scratch_more, &p);
    m->raw = buf_span(&s->scratch_more);
}

// False: the properties do not decode (the connection has failed). Broken rules are left in m->error.
static bool look(struct channel *ch, struct message *m)
{
    struct amqp09 *s = channel_service(ch);
    const struct connection *c = ch->connection;
    m->error = 0;
    m->expiry_ms = -1;
    m->is_rewritten = false;
    m->keys_count = 0;
    if (content_properties_read(ch->properties, &m->properties) != RC_OK) {
        channel_fail(ch, REPLY_FRAME_ERROR, PUBLISH, "cannot decode content properties");
        return false;
    }
    const struct content_properties *p = &m->properties;
    m->headers = p->headers;
    if ((p->flags & PROPERTY_REPLY_TO) && span_equal(p->reply_to, span_str("amq.rabbitmq.reply-to"))) {
        set_error(m, REPLY_PRECONDITION_FAILED, "fast reply consumer does not exist");
    }
    if (p->flags & PROPERTY_EXPIRATION) {
        read_expiration(m);
    }
    add_key(s, m, ch->publish.routing_key, false);
    bool has_bcc = false;
    if (m->headers.len > 0) {
        struct table_value v;
        read_keys(s, m, "CC", false);
        read_keys(s, m, "BCC", true);
        has_bcc = table_find(m->headers, "BCC", &v);
    }
    if ((p->flags & PROPERTY_USER_ID) && !c->user.is_impersonator && !span_equal(p->user_id, c->user_name)) {
        set_error(m, REPLY_PRECONDITION_FAILED,
                  "user_id property set to '%.*s' but authenticated user was '%s'", (int)p->user_id.len,
                  (const char *)p->user_id.ptr, c->user.name);
    }
    normalise(s, m, ch->properties, has_bcc);
    return true;
}

// ---- waiting ------------------------------------------------------------------------------------

// Keeps the whole message beyond the input it lies in.
static void keep(struct channel *ch, struct span body)
{
    if (body.len > 0 && body.ptr != body_span(ch).ptr) {
        assert(ch->body.len == 0);
        buf_span_bytes(&ch->body, body);
        amqp09_partial_changed(channel_service(ch), ch->connection, (int64_t)body.len);
    }
    channel_hold(ch);
}

static void exchange_fenced(struct operation *op, const struct broker_result *r)
{
    struct channel *ch = op->channel;
    (void)r;  // Whatever it says, the projection is now as fresh as it gets.
    operation_end(op);
    complete(ch, body_span(ch), true);
}

static void fence_exchange(struct channel *ch, struct span body)
{
    struct amqp09 *s = channel_service(ch);
    keep(ch, body);
    struct operation *op = operation_start(ch, PUBLISH);
    op->done = exchange_fenced;
    op->is_external = true;
    struct broker_exchange_declare d = {.name = ch->publish.exchange, .is_passive = true};
    broker_exchange_declare(s->config.broker, connection_vhost(ch->connection), span_of(NULL, 0), &d,
                            operation_answered, op);
}

static void wait_for_projection(struct channel *ch, struct span body)
{
    struct amqp09 *s = channel_service(ch);
    keep(ch, body);
    if (ch->unroutable_until == 0) {
        ch->unroutable_until = amqp09_later(s, UNROUTABLE_WAIT_MS);
    }
    list_add_tail(&s->unroutable, &ch->unroutable_link);
}

void channel_publish_retry(struct channel *ch)
{
    struct amqp09 *s = channel_service(ch);
    bool is_over = amqp09_now(s) >= ch->unroutable_until || s->config.is_current(s->config.ctx);
    if (!is_over) {
        list_add_tail(&s->unroutable, &ch->unroutable_link);
        return;
    }
    ch->unroutable_until = 0;
    complete(ch, body_span(ch), true);
    if (channel_is_open(ch) && !ch->pending && ch->waiting.len > 0 && list_is_empty(&ch->ready_link)) {
        list_add_tail(&s->ready, &ch->ready_link);
    }
}

// ---- publishing ---------------------------------------------------------------------------------

void channel_return(struct channel *ch, struct span exchange, struct span key, struct span properties,
                    struct span body)
{
    uint32_t frame_max = ch->connection->frame_max;
    if (!content_header_fits(properties.len, frame_max)) {  // We take payloads a little larger than we send.
        channel_fail(ch, REPLY_CONTENT_TOO_LARGE, AMQP_BASIC_RETURN_ID,
                     "content header of %zu octets does not fit into frame_max %u",
                     properties.len + CONTENT_HEADER_FIXED_BYTES, frame_max);
        return;
    }
    struct buf *out = channel_out(ch);
    amqp_send_basic_return(out, ch->number,
                           &(struct amqp_basic_return){.reply_code = REPLY_NO_ROUTE,
                                                       .reply_text = span_str("NO_ROUTE"),
                                                       .exchange = exchange,
                                                       .routing_key = key});
    content_frames_put(out, ch->number, frame_max, properties, body);
    channel_out_done(ch);
}

void channel_confirms_dirty(struct channel *ch)
{
    if (confirms_has_news(&ch->confirms) && list_is_empty(&ch->dirty_link)) {
        list_add_tail(&channel_service(ch)->dirty, &ch->dirty_link);
    }
}

void channel_confirms_flush(struct channel *ch)
{
    list_remove(&ch->dirty_link);
    if (confirms_has_news(&ch->confirms)) {
        confirms_flush(&ch->confirms, channel_out(ch), ch->number);
        channel_out_done(ch);
    }
}

static void publish(struct channel *ch, const struct message *m, struct span body,
                    struct channel_queue **queues, uint32_t count)
{
    struct amqp09 *s = channel_service(ch);
    struct queue_publish p = {
        .exchange = ch->publish.exchange,
        .routing_keys = s->keys,
        .bcc = m->keys_count > 1 ? s->bcc : NULL,
        .routing_keys_count = m->keys_count,
        .header = m->raw,
        .body = body,
        .expiry_ms = m->expiry_ms,
        .priority = m->properties.priority,
        .has_priority = m->properties.flags & PROPERTY_PRIORITY,
        .is_persistent = m->properties.delivery_mode == 2,
    };
    if (ch->tx) {
        channel_tx_publish(ch, &p, queues, count);
        return;
    }
    uint64_t number = ch->confirms.is_on ? confirms_add(&ch->confirms, count) : 0;
    struct block *block = count > 0 ? body_give(ch, &p.body) : NULL;
    for (uint32_t i = 0; i < count; i++) {
        // The last queue may have the memory of a body that was gathered here.
        p.is_body_disposable = i == count - 1 && body.len > 0 && (block != NULL || body.ptr == ch->body.ptr);
        if (block != NULL) {
            block->is_disposable = i == count - 1;
        }
        uint64_t seq = queue_session_publish(queues[i]->session, &p);
        channel_queue_published(queues[i], seq, number);
    }
    block_release(block);
    if (count == 0) {
        channel_confirms_dirty(ch);
    }
}

// The content is complete: checks, routes, publishes. The message is done with afterwards, unless it has to
// wait.
static void complete(struct channel *ch, struct span body, bool is_last_try)
{
    struct amqp09 *s = channel_service(ch);
    const struct connection *c = ch->connection;
    struct message m;
    if (!look(ch, &m)) {
        return;
    }
    struct channel_queue **queues = NULL;
    uint32_t count = 0;
    struct route_request request = {
        .exchange = ch->publish.exchange, .keys = s->keys, .keys_count = m.keys_count, .headers = m.headers};
    enum route_result result =
        m.error ? channel_route_check(ch, request.exchange) : channel_route(ch, &request, &queues, &count);
    if (result == ROUTE_NO_EXCHANGE && !is_last_try) {
        fence_exchange(ch, body);
        return;
    }
    if (result == ROUTE_NO_EXCHANGE) {
        channel_fail(ch, REPLY_NOT_FOUND, PUBLISH, "no exchange '%.*s' in vhost '%.*s'",
                     (int)request.exchange.len, (const char *)request.exchange.ptr, (int)c->vhost_name.len,
                     (const char *)c->vhost_name.ptr);
    } else if (result == ROUTE_OK && m.error) {
        channel_fail(ch, m.error, PUBLISH, "%s", m.error_text);
    }
    if (!channel_is_open(ch)) {
        return;
    }
    if (count == 0 && !is_last_try && s->config.is_current &&
        (request.exchange.len == 0 || !s->config.is_current(s->config.ctx))) {
        wait_for_projection(ch, body);
        return;
    }
    if (count == 0 && ch->publish.mandatory) {
        channel_return(ch, request.exchange, ch->publish.routing_key, m.raw, body);
        if (!channel_is_open(ch)) {
            return;
        }
    }
    publish(ch, &m, body, queues, count);
    channel_content_drop(ch);
}
