// SPDX-License-Identifier: Apache-2.0
// Growth of struct buf: doubling from 256 bytes; an allocation that fails ends the process, because every
// caller's size is already bounded at an admission point (limits.h).
#include "node/base/buf.h"
#include "node/base/mem.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void buf_init(struct buf *b)
{
    *b = (struct buf){0};
}

void buf_deinit(struct buf *b)
{
    free(b->ptr);
    *b = (struct buf){0};
}

void buf_grow(struct buf *b, size_t n)
{
    assert(b->len <= b->cap);
    size_t cap = b->cap ? b->cap : 256;
    while (cap - b->len < n) {
        cap *= 2;
    }
    b->ptr = mem_realloc(b->ptr, cap);
    b->cap = cap;
    assert(b->cap - b->len >= n);
}

void buf_shrink(struct buf *b, size_t keep)
{
    if (b->len == 0 && b->cap > keep) {
        free(b->ptr);
        *b = (struct buf){0};
    }
}

void buf_consume(struct buf *b, size_t n)
{
    assert(n <= b->len);
    if (n < b->len) {
        memmove(b->ptr, b->ptr + n, b->len - n);
    }
    b->len -= n;
}

void buf_printf(struct buf *b, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    assert(n >= 0);
    buf_reserve(b, (size_t)n + 1);
    vsnprintf((char *)b->ptr + b->len, (size_t)n + 1, format, again);
    va_end(again);
    b->len += (size_t)n;
}
