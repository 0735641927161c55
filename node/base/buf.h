// SPDX-License-Identifier: Apache-2.0
// A growable byte buffer: the one writer. Output queues, encoded commands and envelopes are all `struct buf`.
//
// Thread: belongs to one thread at a time. Growing doubles; memory is kept until buf_deinit or buf_shrink.
// Running out of memory aborts the process (the admission points, not this, bound memory).
#pragma once
#include "node/base/rc.h"
#include "node/base/span.h"
#include <assert.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "on-disk and wire formats are written in host order");

struct buf {
    uint8_t *ptr;  // Owned.
    size_t len;    // Bytes used.
    size_t cap;    // Bytes allocated.
};

void buf_init(struct buf *b);
void buf_deinit(struct buf *b);
// Makes room for `n` more bytes. Afterwards ptr + len may be written for n bytes.
void buf_grow(struct buf *b, size_t n);
// Gives memory back if more than `keep` bytes are allocated and the buffer is empty.
void buf_shrink(struct buf *b, size_t keep);
// Drops the first `n` bytes (n <= len) by moving the rest to the front.
void buf_consume(struct buf *b, size_t n);
// printf into the buffer, without the NUL.
void buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline void buf_reserve(struct buf *b, size_t n)
{
    if (b->cap - b->len < n) {
        buf_grow(b, n);
    }
}
static inline struct span buf_span(const struct buf *b)
{
    return span_of(b->ptr, b->len);
}
// Appends `n` uninitialised bytes and returns where they start. Valid until the next append.
static inline uint8_t *buf_extend(struct buf *b, size_t n)
{
    buf_reserve(b, n);
    uint8_t *p = b->ptr + b->len;
    b->len += n;
    return p;
}
static inline void buf_bytes(struct buf *b, const void *p, size_t n)
{
    if (n > 0) {
        memcpy(buf_extend(b, n), p, n);
    }
}
static inline void buf_span_bytes(struct buf *b, struct span s)
{
    buf_bytes(b, s.ptr, s.len);
}
static inline void buf_u8(struct buf *b, uint8_t v)
{
    *buf_extend(b, 1) = v;
}
static inline void buf_u16be(struct buf *b, uint16_t v)
{
    v = __builtin_bswap16(v);
    memcpy(buf_extend(b, 2), &v, 2);
}
static inline void buf_u32be(struct buf *b, uint32_t v)
{
    v = __builtin_bswap32(v);
    memcpy(buf_extend(b, 4), &v, 4);
}
static inline void buf_u64be(struct buf *b, uint64_t v)
{
    v = __builtin_bswap64(v);
    memcpy(buf_extend(b, 8), &v, 8);
}
static inline void buf_u16(struct buf *b, uint16_t v)
{
    memcpy(buf_extend(b, 2), &v, 2);
}
static inline void buf_u32(struct buf *b, uint32_t v)
{
    memcpy(buf_extend(b, 4), &v, 4);
}
static inline void buf_u64(struct buf *b, uint64_t v)
{
    memcpy(buf_extend(b, 8), &v, 8);
}
// Short string of AMQP: at most 255 bytes (asserted).
static inline void buf_str8(struct buf *b, struct span s)
{
    assert(s.len <= UINT8_MAX);
    buf_u8(b, (uint8_t)s.len);
    buf_span_bytes(b, s);
}
static inline void buf_str32be(struct buf *b, struct span s)
{
    assert(s.len <= UINT32_MAX);
    buf_u32be(b, (uint32_t)s.len);
    buf_span_bytes(b, s);
}
static inline void buf_str16(struct buf *b, struct span s)
{
    assert(s.len <= UINT16_MAX);
    buf_u16(b, (uint16_t)s.len);
    buf_span_bytes(b, s);
}
static inline void buf_str32(struct buf *b, struct span s)
{
    assert(s.len <= UINT32_MAX);
    buf_u32(b, (uint32_t)s.len);
    buf_span_bytes(b, s);
}
// Overwrites four bytes written earlier (a length known only at the end).
static inline void buf_patch_u32be(struct buf *b, size_t at, uint32_t v)
{
    assert(at + 4 <= b->len);
    v = __builtin_bswap32(v);
    memcpy(b->ptr + at, &v, 4);
}
static inline void buf_patch_u32(struct buf *b, size_t at, uint32_t v)
{
    assert(at + 4 <= b->len);
    memcpy(b->ptr + at, &v, 4);
}
