// SPDX-License-Identifier: Apache-2.0
// The one way to decode bytes: a cursor that cannot overrun. A failed read sets `is_bad`, returns zero and
// leaves every later read failing too, so a decoder may read a whole struct and check once at the end.
//
// Thread: any; a reader belongs to one thread at a time. No allocation.
#pragma once
#include "node/base/rc.h"
#include "node/base/span.h"

struct reader {
    const uint8_t *ptr;  // Start of the bytes.
    size_t len;          // Bytes in all.
    size_t pos;          // Next byte to read; <= len.
    bool is_bad;         // A read went past the end.
};

static inline struct reader reader_of(struct span s)
{
    // Nothing lies somewhere too: C knows no offset from NULL, not even zero.
    const uint8_t *ptr = s.ptr ? s.ptr : (const uint8_t *)"";
    return (struct reader){.ptr = ptr, .len = s.len, .pos = 0, .is_bad = false};
}

static inline size_t reader_left(const struct reader *r)
{
    return r->is_bad ? 0 : r->len - r->pos;
}

// Takes the next `n` bytes, or NULL (and the reader is bad).
static inline const uint8_t *reader_take(struct reader *r, size_t n)
{
    if (r->is_bad || n > r->len - r->pos) {
        r->is_bad = true;
        return NULL;
    }
    const uint8_t *p = r->ptr + r->pos;
    r->pos += n;
    return p;
}

static inline struct span reader_span(struct reader *r, size_t n)
{
    const uint8_t *p = reader_take(r, n);
    return (struct span){.ptr = p, .len = p ? n : 0};
}

static inline uint8_t reader_u8(struct reader *r)
{
    const uint8_t *p = reader_take(r, 1);
    return p ? p[0] : 0;
}

// Big endian (AMQP, stream protocol).
static inline uint16_t reader_u16be(struct reader *r)
{
    const uint8_t *p = reader_take(r, 2);
    uint16_t v = 0;
    if (p) {
        memcpy(&v, p, 2);
        v = __builtin_bswap16(v);
    }
    return v;
}
static inline uint32_t reader_u32be(struct reader *r)
{
    const uint8_t *p = reader_take(r, 4);
    uint32_t v = 0;
    if (p) {
        memcpy(&v, p, 4);
        v = __builtin_bswap32(v);
    }
    return v;
}
static inline uint64_t reader_u64be(struct reader *r)
{
    const uint8_t *p = reader_take(r, 8);
    uint64_t v = 0;
    if (p) {
        memcpy(&v, p, 8);
        v = __builtin_bswap64(v);
    }
    return v;
}

// Little endian (our own disk and wire formats; the hosts we run on are little endian, checked in writer.h).
static inline uint16_t reader_u16(struct reader *r)
{
    const uint8_t *p = reader_take(r, 2);
    uint16_t v = 0;
    if (p) {
        memcpy(&v, p, 2);
    }
    return v;
}
static inline uint32_t reader_u32(struct reader *r)
{
    const uint8_t *p = reader_take(r, 4);
    uint32_t v = 0;
    if (p) {
        memcpy(&v, p, 4);
    }
    return v;
}
static inline uint64_t reader_u64(struct reader *r)
{
    const uint8_t *p = reader_take(r, 8);
    uint64_t v = 0;
    if (p) {
        memcpy(&v, p, 8);
    }
    return v;
}

// One-byte length and that many bytes / four-byte length and that many bytes (AMQP short and long string).
static inline struct span reader_str8(struct reader *r)
{
    return reader_span(r, reader_u8(r));
}
static inline struct span reader_str32be(struct reader *r)
{
    return reader_span(r, reader_u32be(r));
}
// Our own formats: u16 / u32 little endian length and bytes.
static inline struct span reader_str16(struct reader *r)
{
    return reader_span(r, reader_u16(r));
}
static inline struct span reader_str32(struct reader *r)
{
    return reader_span(r, reader_u32(r));
}

// RC_OK if nothing failed and every byte was used, else RC_MALFORMED.
static inline enum rc reader_end(const struct reader *r)
{
    return !r->is_bad && r->pos == r->len ? RC_OK : RC_MALFORMED;
}
