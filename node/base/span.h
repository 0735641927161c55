// SPDX-License-Identifier: Apache-2.0
// A borrowed range of bytes. Whoever receives one may read it only as long as the lender says.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct span {
    const uint8_t *ptr;  // May be NULL if len is 0.
    size_t len;          // Bytes.
};

static inline struct span span_of(const void *ptr, size_t len)
{
    return (struct span){.ptr = ptr, .len = len};
}

// `text` must be NUL-terminated; the NUL is not part of the span.
static inline struct span span_str(const char *text)
{
    return (struct span){.ptr = (const uint8_t *)text, .len = strlen(text)};
}

static inline bool span_equal(struct span a, struct span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

// Byte order, shorter first on a common prefix. Returns <0, 0, >0.
static inline int span_compare(struct span a, struct span b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n == 0 ? 0 : memcmp(a.ptr, b.ptr, n);
    return c != 0 ? c : (a.len > b.len) - (a.len < b.len);
}

static inline bool span_starts_with(struct span s, const char *prefix)
{
    size_t n = strlen(prefix);
    return s.len >= n && memcmp(s.ptr, prefix, n) == 0;
}
