// SPDX-License-Identifier: Apache-2.0
// Framing between nodes (frame.h).
#include "proto/frame.h"
#include "node/base/crc32c.h"

enum rc frame_decode(struct span bytes, struct frame *out, size_t *size_out)
{
    *size_out = 0;
    if (bytes.len < FRAME_HEADER_BYTES) {
        return RC_MORE;
    }
    struct frame_header_wire h;
    memcpy(&h, bytes.ptr, sizeof(h));
    if (h.total_len > FRAME_TOTAL_MAX || h.envelope_len > FRAME_ENVELOPE_MAX) {
        return RC_TOO_LARGE;
    }
    if (h.total_len < FRAME_HEADER_BYTES || h.envelope_len > h.total_len - FRAME_HEADER_BYTES) {
        return RC_MALFORMED;
    }
    *size_out = h.total_len;
    if (bytes.len < h.total_len) {
        return RC_MORE;
    }
    uint32_t crc = crc32c(0, bytes.ptr, FRAME_HEADER_BYTES - 4);
    crc = crc32c(crc, bytes.ptr + FRAME_HEADER_BYTES, h.envelope_len);
    if (crc != h.crc) {
        return RC_CORRUPT;
    }
    *out = (struct frame){
        .type = h.type,
        .flags = h.flags,
        .worker = (h.flags >> FRAME_WORKER_SHIFT) % FRAME_WORKERS_MAX,
        .envelope = span_of(bytes.ptr + FRAME_HEADER_BYTES, h.envelope_len),
        .raw = span_of(bytes.ptr + FRAME_HEADER_BYTES + h.envelope_len,
                       h.total_len - FRAME_HEADER_BYTES - h.envelope_len),
    };
    if (h.flags & FRAME_RAW_CRC) {
        if (out->raw.len < 4) {
            return RC_MALFORMED;
        }
        out->raw.len -= 4;
        uint32_t sum;
        memcpy(&sum, out->raw.ptr + out->raw.len, 4);
        if (sum != crc32c(0, out->raw.ptr, out->raw.len)) {
            return RC_CORRUPT;
        }
    }
    return RC_OK;
}

void frame_encode_head(struct buf *to, enum frame_type type, uint16_t flags, struct span envelope, size_t raw_len)
{
    assert(envelope.len <= FRAME_ENVELOPE_MAX);
    assert(FRAME_HEADER_BYTES + envelope.len + raw_len <= FRAME_TOTAL_MAX);
    struct frame_header_wire h = {
        .total_len = (uint32_t)(FRAME_HEADER_BYTES + envelope.len + raw_len),
        .type = (uint16_t)type,
        .flags = flags,
        .envelope_len = (uint32_t)envelope.len,
    };
    h.crc = crc32c(0, &h, FRAME_HEADER_BYTES - 4);
    h.crc = crc32c(h.crc, envelope.ptr, envelope.len);
    buf_bytes(to, &h, sizeof(h));
    buf_span_bytes(to, envelope);
}
