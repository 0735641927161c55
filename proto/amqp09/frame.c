// SPDX-License-Identifier: Apache-2.0
// Frames are judged as early as possible: the size from the seven bytes of the head, so that nobody waits for
// (or buffers) a payload that will be refused; the end octet once the payload is there. Types are not judged
// here: which types are allowed depends on the connection's state.
#include "proto/amqp09/frame.h"

const uint8_t amqp_header_091[AMQP_HEADER_BYTES] = {'A', 'M', 'Q', 'P', 0, 0, 9, 1};
const uint8_t amqp_header_sasl[AMQP_HEADER_BYTES] = {'A', 'M', 'Q', 'P', 3, 1, 0, 0};

enum rc amqp_frame_read(struct span in, uint32_t payload_max, struct amqp_frame *out, size_t *used,
                        struct amqp_frame_fault *fault)
{
    if (in.len < AMQP_FRAME_HEAD_BYTES) {
        *used = AMQP_FRAME_HEAD_BYTES;
        return RC_MORE;
    }
    struct reader r = reader_of(in);
    uint8_t type = reader_u8(&r);
    uint16_t channel = reader_u16be(&r);
    uint32_t size = reader_u32be(&r);
    if (size > payload_max) {
        *fault = (struct amqp_frame_fault){.type = type, .size = size};
        return RC_TOO_LARGE;
    }
    size_t total = (size_t)size + AMQP_FRAME_EMPTY_BYTES;
    if (in.len < total) {
        *used = total;
        return RC_MORE;
    }
    struct span payload = reader_span(&r, size);
    uint8_t end = reader_u8(&r);
    assert(!r.is_bad);
    if (end != AMQP_FRAME_END) {
        *fault = (struct amqp_frame_fault){.type = type, .size = size, .end = end, .payload = payload};
        return RC_MALFORMED;
    }
    *out = (struct amqp_frame){.type = type, .channel = channel, .payload = payload};
    *used = total;
    return RC_OK;
}

size_t amqp_frame_begin(struct buf *b, uint8_t type, uint16_t channel)
{
    size_t at = b->len;
    buf_u8(b, type);
    buf_u16be(b, channel);
    buf_u32be(b, 0);
    return at;
}

void amqp_frame_end(struct buf *b, size_t at)
{
    assert(b->len >= at + AMQP_FRAME_HEAD_BYTES);
    buf_patch_u32be(b, at + 3, (uint32_t)(b->len - at - AMQP_FRAME_HEAD_BYTES));
    buf_u8(b, AMQP_FRAME_END);
}

void amqp_frame_heartbeat(struct buf *b)
{
    amqp_frame_end(b, amqp_frame_begin(b, AMQP_FRAME_HEARTBEAT, 0));
}

enum amqp_protocol amqp_protocol_of(const uint8_t h[AMQP_HEADER_BYTES])
{
    static const uint8_t header_09[AMQP_HEADER_BYTES] = {'A', 'M', 'Q', 'P', 1, 1, 0, 9};
    if (memcmp(h, amqp_header_091, AMQP_HEADER_BYTES) == 0 || memcmp(h, header_09, AMQP_HEADER_BYTES) == 0) {
        return AMQP_PROTOCOL_0_9_1;
    }
    if (memcmp(h, amqp_header_sasl, AMQP_HEADER_BYTES) == 0) {
        return AMQP_PROTOCOL_1_0_SASL;
    }
    if (memcmp(h, "AMQP\0\0", 6) == 0 && h[6] >= 9) {
        return AMQP_PROTOCOL_ANSWER_091;
    }
    return AMQP_PROTOCOL_ANSWER_SASL;
}
