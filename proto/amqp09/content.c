// SPDX-License-Identifier: Apache-2.0
// Content headers. A publish is read once into `struct content_properties`; a delivery goes out with the raw
// bytes it came in with. Only a message that came back before gets its header table rewritten, sorted by key
// as RabbitMQ does it.
#include "proto/amqp09/content.h"
#include "proto/amqp09/frame.h"
#include "proto/amqp09/table.h"

enum rc content_header_read(struct span payload, struct content_header *out)
{
    struct reader r = reader_of(payload);
    out->class_id = reader_u16be(&r);
    out->weight = reader_u16be(&r);
    out->body_size = reader_u64be(&r);
    out->properties = reader_span(&r, reader_left(&r));
    return !r.is_bad && out->properties.len >= 2 ? RC_OK : RC_MALFORMED;
}

enum rc content_properties_read_checked(struct span raw, struct content_properties *p)
{
    struct reader r = reader_of(raw);
    memset(p, 0, sizeof(*p));
    p->flags = (uint16_t)(reader_u16be(&r) & ~PROPERTY_UNUSED);
    if (p->flags & PROPERTY_CONTENT_TYPE) {
        p->content_type = reader_str8(&r);
    }
    if (p->flags & PROPERTY_CONTENT_ENCODING) {
        p->content_encoding = reader_str8(&r);
    }
    if (p->flags & PROPERTY_HEADERS) {
        p->headers = reader_str32be(&r);
    }
    if (p->flags & PROPERTY_DELIVERY_MODE) {
        p->delivery_mode = reader_u8(&r);
    }
    if (p->flags & PROPERTY_PRIORITY) {
        p->priority = reader_u8(&r);
    }
    if (p->flags & PROPERTY_CORRELATION_ID) {
        p->correlation_id = reader_str8(&r);
    }
    if (p->flags & PROPERTY_REPLY_TO) {
        p->reply_to = reader_str8(&r);
    }
    if (p->flags & PROPERTY_EXPIRATION) {
        p->expiration = reader_str8(&r);
    }
    if (p->flags & PROPERTY_MESSAGE_ID) {
        p->message_id = reader_str8(&r);
    }
    if (p->flags & PROPERTY_TIMESTAMP) {
        p->timestamp = reader_u64be(&r);
    }
    if (p->flags & PROPERTY_TYPE) {
        p->type = reader_str8(&r);
    }
    if (p->flags & PROPERTY_USER_ID) {
        p->user_id = reader_str8(&r);
    }
    if (p->flags & PROPERTY_APP_ID) {
        p->app_id = reader_str8(&r);
    }
    if (p->flags & PROPERTY_CLUSTER_ID) {
        p->cluster_id = reader_str8(&r);
    }
    return reader_end(&r);
}

enum rc content_properties_read(struct span raw, struct content_properties *p)
{
    TRY(content_properties_read_checked(raw, p));
    return p->headers.len > 0 ? table_check(p->headers) : RC_OK;
}

void content_properties_put(struct buf *b, const struct content_properties *p)
{
    assert((p->flags & PROPERTY_UNUSED) == 0);
    buf_u16be(b, p->flags);
    if (p->flags & PROPERTY_CONTENT_TYPE) {
        buf_str8(b, p->content_type);
    }
    if (p->flags & PROPERTY_CONTENT_ENCODING) {
        buf_str8(b, p->content_encoding);
    }
    if (p->flags & PROPERTY_HEADERS) {
        buf_str32be(b, p->headers);
    }
    if (p->flags & PROPERTY_DELIVERY_MODE) {
        buf_u8(b, p->delivery_mode);
    }
    if (p->flags & PROPERTY_PRIORITY) {
        buf_u8(b, p->priority);
    }
    if (p->flags & PROPERTY_CORRELATION_ID) {
        buf_str8(b, p->correlation_id);
    }
    if (p->flags & PROPERTY_REPLY_TO) {
        buf_str8(b, p->reply_to);
    }
    if (p->flags & PROPERTY_EXPIRATION) {
        buf_str8(b, p->expiration);
    }
    if (p->flags & PROPERTY_MESSAGE_ID) {
        buf_str8(b, p->message_id);
    }
    if (p->flags & PROPERTY_TIMESTAMP) {
        buf_u64be(b, p->timestamp);
    }
    if (p->flags & PROPERTY_TYPE) {
        buf_str8(b, p->type);
    }
    if (p->flags & PROPERTY_USER_ID) {
        buf_str8(b, p->user_id);
    }
    if (p->flags & PROPERTY_APP_ID) {
        buf_str8(b, p->app_id);
    }
    if (p->flags & PROPERTY_CLUSTER_ID) {
        buf_str8(b, p->cluster_id);
    }
}

// ---- single properties --------------------------------------------------------------------------

// Places the reader at `property` (one of the flags), having skipped those before it.
static bool seek(struct reader *r, uint16_t property)
{
    uint16_t flags = reader_u16be(r);
    if (r->is_bad || !(flags & property)) {
        return false;
    }
    for (uint16_t f = PROPERTY_CONTENT_TYPE; f != property; f >>= 1) {
        if (!(flags & f)) {
            continue;
        }
        switch (f) {
        case PROPERTY_HEADERS:
            (void)reader_str32be(r);  // Skipped; a fault shows in r.
            break;
        case PROPERTY_DELIVERY_MODE:
        case PROPERTY_PRIORITY:
            (void)reader_u8(r);
            break;
        case PROPERTY_TIMESTAMP:
            (void)reader_u64be(r);
            break;
        default:
            (void)reader_str8(r);
            break;
        }
    }
    return !r->is_bad;
}

static bool find_str8(struct span raw, uint16_t property, struct span *out)
{
    struct reader r = reader_of(raw);
    if (!seek(&r, property)) {
        return false;
    }
    *out = reader_str8(&r);
    return !r.is_bad;
}

static bool find_u8(struct span raw, uint16_t property, uint8_t *out)
{
    struct reader r = reader_of(raw);
    if (!seek(&r, property)) {
        return false;
    }
    *out = reader_u8(&r);
    return !r.is_bad;
}

bool content_find_headers(struct span raw, struct span *headers)
{
    struct reader r = reader_of(raw);
    if (!seek(&r, PROPERTY_HEADERS)) {
        return false;
    }
    *headers = reader_str32be(&r);
    return !r.is_bad;
}

bool content_find_delivery_mode(struct span raw, uint8_t *mode)
{
    return find_u8(raw, PROPERTY_DELIVERY_MODE, mode);
}

bool content_find_priority(struct span raw, uint8_t *priority)
{
    return find_u8(raw, PROPERTY_PRIORITY, priority);
}

bool content_find_reply_to(struct span raw, struct span *reply_to)
{
    return find_str8(raw, PROPERTY_REPLY_TO, reply_to);
}

bool content_find_expiration(struct span raw, struct span *expiration)
{
    return find_str8(raw, PROPERTY_EXPIRATION, expiration);
}

bool content_find_user_id(struct span raw, struct span *user_id)
{
    return find_str8(raw, PROPERTY_USER_ID, user_id);
}

// ---- headers ------------------------------------------------------------------------------------

void content_put_with_headers(struct buf *b, struct span raw, struct span headers)
{
    struct content_properties p;
    if (content_properties_read_checked(raw, &p) != RC_OK) {
        buf_span_bytes(
            b, raw);  // Stored bytes were checked; if they are damaged all the same they go out unchanged.
        return;
    }
    p.headers = headers;
    p.flags = (uint16_t)(headers.len > 0 ? p.flags | PROPERTY_HEADERS : p.flags & ~PROPERTY_HEADERS);
    content_properties_put(b, &p);
}

bool content_headers_are_sorted(struct span headers)
{
    struct table_reader t = table_reader_of(headers);
    struct table_value v;
    struct span key, before = {0};
    bool is_first = true;
    while (table_next(&t, &key, &v)) {
        if (!is_first && span_compare(before, key) >= 0) {
            return false;
        }
        if (key.ptr[key.len] == TABLE_I64_ALIAS) {  // The letter follows the key. RabbitMQ sends 'l'.
            return false;
        }
        before = key;
        is_first = false;
    }
    return true;
}

// ---- frames -------------------------------------------------------------------------------------

size_t content_frames_size(size_t properties_len, size_t body_len, uint32_t frame_max)
{
    size_t body_max = frame_max == 0 ? SIZE_MAX : frame_max - AMQP_FRAME_EMPTY_BYTES;
    size_t frames = body_len / body_max + (body_len % body_max != 0);
    return AMQP_FRAME_EMPTY_BYTES + CONTENT_HEADER_FIXED_BYTES + properties_len + body_len +
           frames * AMQP_FRAME_EMPTY_BYTES;
}

void content_header_put(struct buf *b, uint16_t channel, struct span properties, uint64_t body_len)
{
    size_t at = amqp_frame_begin(b, AMQP_FRAME_HEADER, channel);
    buf_u16be(b, CONTENT_CLASS_BASIC);
    buf_u16be(b, 0);
    buf_u64be(b, body_len);
    buf_span_bytes(b, properties);
    amqp_frame_end(b, at);
}

void content_frames_put(struct buf *b, uint16_t channel, uint32_t frame_max, struct span properties,
                        struct span body)
{
    assert(content_header_fits(properties.len, frame_max));
    buf_reserve(b, content_frames_size(properties.len, body.len, frame_max));
    content_header_put(b, channel, properties, body.len);

    struct reader r = reader_of(body);
    size_t body_max = content_body_max(frame_max), at;
    while (reader_left(&r) > 0) {
        size_t n = reader_left(&r) < body_max ? reader_left(&r) : body_max;
        at = amqp_frame_begin(b, AMQP_FRAME_BODY, channel);
        buf_span_bytes(b, reader_span(&r, n));
        amqp_frame_end(b, at);
    }
}
