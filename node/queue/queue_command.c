// SPDX-License-Identifier: Apache-2.0
// Log payloads of the queue (queue_command.h).
//
// The decoder is given bytes that other nodes wrote: every read is bounded, every length is checked against what is
// there, and a payload must be used up exactly. An enqueue is checked by its lengths alone, so that apply
// costs the same for any body. Messages are taken apart only when they are delivered.
#include "node/queue/queue_command.h"
#include "node/base/block.h"
#include "proto/record.h"

enum queue_stream queue_command_stream(uint8_t kind)
{
    return kind == QUEUE_COMMAND_ENQUEUE ? QUEUE_STREAM_PUBLISH : QUEUE_STREAM_CONTROL;
}

static enum rc decode_enqueue(struct reader *r, struct queue_command *out)
{
    const uint8_t *p = reader_take(r, sizeof(out->enqueue.fixed));
    if (!p) {
        return RC_MALFORMED;
    }
    struct queue_enqueue_wire *e = &out->enqueue.fixed;
    memcpy(e, p, sizeof(*e));
    uint64_t rest = (uint64_t)e->exchange_len + e->keys_len + e->header_len + e->annotations_len + e->body_len;
    uint64_t size = (uint64_t)e->header_len + e->body_len;
    if (rest != reader_left(r) || e->keys_count == 0 || size > UINT32_MAX) {
        return RC_MALFORMED;
    }
    out->enqueue.size = size > 0 ? (uint32_t)size : 1;
    return RC_OK;
}

static enum rc decode_checkout(struct reader *r, struct queue_command *out)
{
    out->checkout.consumer = reader_u32(r);
    out->checkout.prefetch = reader_u32(r);
    out->checkout.priority = (int32_t)reader_u32(r);
    out->checkout.tag = reader_str16(r);
    TRY(reader_end(r));
    return out->checkout.consumer > 0 && out->checkout.tag.len <= UINT8_MAX ? RC_OK : RC_MALFORMED;
}

static enum rc decode_settle(struct reader *r, struct queue_command *out)
{
    out->settle.count = reader_u32(r);
    if (r->is_bad || reader_left(r) != (uint64_t)out->settle.count * sizeof(struct queue_settle_wire)) {
        return RC_MALFORMED;
    }
    out->settle.ranges = reader_span(r, reader_left(r));
    return RC_OK;
}

static enum rc decode_configure(struct reader *r, struct queue_settings *s)
{
    s->max_length = (int64_t)reader_u64(r);
    s->max_length_bytes = (int64_t)reader_u64(r);
    s->delivery_limit = (int64_t)reader_u64(r);
    s->metadata_version = reader_u64(r);
    uint8_t reject = reader_u8(r), single = reader_u8(r);
    s->is_reject_publish = reject == 1;
    s->is_single_active = single == 1;
    return reject <= 1 && single <= 1 ? reader_end(r) : RC_MALFORMED;
}

static enum rc decode_by_kind(struct reader *r, struct queue_command *out)
{
    switch (out->fixed.kind) {
    case QUEUE_COMMAND_ENQUEUE:
        return decode_enqueue(r, out);
    case QUEUE_COMMAND_CHECKOUT:
        return decode_checkout(r, out);
    case QUEUE_COMMAND_CREDIT:
        out->credit.consumer = reader_u32(r);
        out->credit.add = reader_u32(r);
        return reader_end(r);
    case QUEUE_COMMAND_SETTLE:
        return decode_settle(r, out);
    case QUEUE_COMMAND_CANCEL:
        out->cancel_consumer = reader_u32(r);
        return reader_end(r);
    case QUEUE_COMMAND_CONFIGURE:
        return decode_configure(r, &out->configure);
    case QUEUE_COMMAND_NODE_DOWN:
        out->node_down.node = reader_u32(r);
        out->node_down.incarnation = reader_u64(r);
        return reader_end(r);
    case QUEUE_COMMAND_OPEN:
    case QUEUE_COMMAND_END:
    case QUEUE_COMMAND_GET:
    case QUEUE_COMMAND_PURGE:
    case QUEUE_COMMAND_CONTINUE:
        return reader_end(r);
    default:
        return RC_MALFORMED;
    }
}

enum rc queue_command_decode(struct span payload, struct queue_command *out)
{
    struct reader r = reader_of(payload);
    const uint8_t *p = reader_take(&r, sizeof(out->fixed));
    if (!p) {
        return RC_MALFORMED;
    }
    memcpy(&out->fixed, p, sizeof(out->fixed));
    if (out->fixed.version != QUEUE_COMMAND_VERSION) {
        return RC_MALFORMED;
    }
    out->session = (struct queue_session_id){
        .incarnation = out->fixed.incarnation, .counter = out->fixed.counter, .node = out->fixed.node};
    return decode_by_kind(&r, out);
}

enum rc queue_message_decode(struct span payload, struct queue_message *out)
{
    struct queue_command c;
    TRY(queue_command_decode(payload, &c));
    if (c.fixed.kind != QUEUE_COMMAND_ENQUEUE) {
        return RC_MALFORMED;
    }
    const struct queue_enqueue_wire *e = &c.enqueue.fixed;
    struct reader r = reader_of(payload);
    (void)reader_take(&r, QUEUE_ENQUEUE_FIXED);  // Was there: decoded above.
    out->exchange = reader_span(&r, e->exchange_len);
    struct reader keys = reader_of(reader_span(&r, e->keys_len));
    out->routing_key = reader_span(&keys, reader_u16(&keys) & QUEUE_KEY_MAX);
    out->header = reader_span(&r, e->header_len);
    (void)reader_take(&r, e->annotations_len);
    out->body = reader_span(&r, e->body_len);
    return keys.is_bad ? RC_MALFORMED : reader_end(&r);
}

static size_t keys_size(const struct queue_publish *p)
{
    size_t n = 0;
    for (uint32_t i = 0; i < p->routing_keys_count; i++) {
        assert(p->routing_keys[i].len <= QUEUE_KEY_MAX);
        n += 2 + p->routing_keys[i].len;
    }
    return n;
}

size_t queue_enqueue_size(const struct queue_publish *p)
{
    return QUEUE_ENQUEUE_FIXED + p->exchange.len + keys_size(p) + p->header.len + p->body.len + p->body_more.len;
}

size_t queue_publish_room(size_t exchange_len, size_t key_len, size_t properties_len)
{
    // Further keys (CC, BCC) are part of the properties, where each takes more than here.
    return RECORD_HEADER_BYTES + QUEUE_ENQUEUE_FIXED + exchange_len + 2 + key_len + 2 * properties_len;
}

static uint8_t *put(uint8_t *to, const void *from, size_t n)
{
    if (n > 0) {
        memcpy(to, from, n);
    }
    return to + n;
}

void queue_enqueue_write(uint8_t *to, size_t size, struct queue_session_id id, uint64_t seq, uint64_t known,
                         const struct queue_publish *p)
{
    assert(p->routing_keys_count > 0 && p->routing_keys_count <= UINT16_MAX);
    assert(p->exchange.len <= UINT16_MAX);
    struct queue_command_wire fixed = {
        .version = QUEUE_COMMAND_VERSION,
        .kind = QUEUE_COMMAND_ENQUEUE,
        .flags = (uint16_t)((p->is_persistent ? QUEUE_FLAG_PERSISTENT : 0) |
                            (p->has_priority ? QUEUE_FLAG_HAS_PRIORITY : 0)),
        .node = id.node,
        .incarnation = id.incarnation,
        .counter = id.counter,
        .seq = seq,
        .known = known,
    };
    struct queue_enqueue_wire e = {
        .expiry_ms = p->expiry_ms,
        .priority = p->priority,
        .exchange_len = (uint16_t)p->exchange.len,
        .keys_count = (uint16_t)p->routing_keys_count,
        .keys_len = (uint32_t)keys_size(p),
        .header_len = (uint32_t)p->header.len,
        .body_len = (uint32_t)(p->body.len + p->body_more.len),
    };
    uint8_t *at = put(to, &fixed, sizeof(fixed));
    at = put(at, &e, sizeof(e));
    at = put(at, p->exchange.ptr, p->exchange.len);
    for (uint32_t i = 0; i < p->routing_keys_count; i++) {
        uint16_t len = (uint16_t)(p->routing_keys[i].len | (p->bcc && p->bcc[i] ? QUEUE_KEY_BCC : 0));
        at = put(at, &len, sizeof(len));
        at = put(at, p->routing_keys[i].ptr, p->routing_keys[i].len);
    }
    at = put(at, p->header.ptr, p->header.len);
    if (at == p->body.ptr) {
        at += p->body.len;  // Made in front of it.
    } else if (p->is_body_disposable && p->body.len >= BLOCK_BYTES_MIN) {
        block_move(at, p->body);
        at += p->body.len;
    } else {
        at = put(at, p->body.ptr, p->body.len);
    }
    at = put(at, p->body_more.ptr, p->body_more.len);
    assert(at == to + size);
}

void queue_command_head(struct buf *to, enum queue_command_kind kind, uint16_t flags,
                        struct queue_session_id id, uint64_t seq, uint64_t known)
{
    struct queue_command_wire fixed = {
        .version = QUEUE_COMMAND_VERSION,
        .kind = (uint8_t)kind,
        .flags = flags,
        .node = id.node,
        .incarnation = id.incarnation,
        .counter = id.counter,
        .seq = seq,
        .known = known,
    };
    buf_bytes(to, &fixed, sizeof(fixed));
}

void queue_command_checkout(struct buf *to, const struct queue_consume *c)
{
    struct span tag = c->tag;
    if (tag.len > UINT8_MAX) {
        tag.len = UINT8_MAX;  // For listings only.
    }
    buf_u32(to, c->consumer);
    buf_u32(to, c->is_no_ack ? 0 : c->prefetch);
    buf_u32(to, (uint32_t)c->priority);
    buf_str16(to, tag);
}

void queue_command_configure(struct buf *to, const struct queue_settings *s)
{
    buf_u64(to, (uint64_t)s->max_length);
    buf_u64(to, (uint64_t)s->max_length_bytes);
    buf_u64(to, (uint64_t)s->delivery_limit);
    buf_u64(to, s->metadata_version);
    buf_u8(to, s->is_reject_publish);
    buf_u8(to, s->is_single_active);
}
