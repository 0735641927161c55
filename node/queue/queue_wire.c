// SPDX-License-Identifier: Apache-2.0
// Items on the wire (queue_wire.h).
#include "node/queue/queue_wire.h"

size_t queue_item_begin(struct buf *to, enum queue_item_type type, uint64_t group,
                        struct queue_session_id session, uint32_t attach)
{
    size_t at = to->len;
    struct queue_item_wire w = {
        .type = (uint8_t)type,
        .group = group,
        .incarnation = session.incarnation,
        .counter = session.counter,
        .node = session.node,
        .attach = attach,
    };
    buf_bytes(to, &w, sizeof(w));
    return at;
}

void queue_item_end(struct buf *to, size_t at)
{
    assert(to->len - at <= UINT32_MAX);
    buf_patch_u32(to, at, (uint32_t)(to->len - at));
}

enum rc queue_item_next(struct reader *r, struct queue_item *out)
{
    struct reader at = *r;
    const uint8_t *p = reader_take(&at, sizeof(struct queue_item_wire));
    if (!p) {
        return RC_MORE;
    }
    struct queue_item_wire w;
    memcpy(&w, p, sizeof(w));
    if (w.len < sizeof(w)) {
        return RC_MALFORMED;
    }
    struct span body = reader_span(&at, w.len - sizeof(w));
    if (at.is_bad) {
        return RC_MORE;
    }
    *out = (struct queue_item){
        .type = w.type,
        .attach = w.attach,
        .group = w.group,
        .session = {.incarnation = w.incarnation, .counter = w.counter, .node = w.node},
        .body = body,
    };
    *r = at;
    return RC_OK;
}

enum rc queue_delivery_next(struct reader *r, struct queue_delivery_wire *out, struct queue_message *m)
{
    if (reader_left(r) == 0) {
        return RC_MORE;
    }
    const uint8_t *p = reader_take(r, sizeof(*out));
    if (!p) {
        return RC_MALFORMED;
    }
    memcpy(out, p, sizeof(*out));
    *m = (struct queue_message){
        .number = out->number,
        .acquired_count = out->acquired,
        .delivery_count = out->failed,
        .exchange = reader_span(r, out->exchange_len),
        .routing_key = reader_span(r, out->key_len),
        .header = reader_span(r, out->header_len),
        .body = reader_span(r, out->body_len),
    };
    return r->is_bad ? RC_MALFORMED : RC_OK;
}
