// SPDX-License-Identifier: Apache-2.0
// Shared blocks (block.h).
//
// There are few of them, one or two for each large message under way, so finding one is a walk over a list. It hangs on the
// thread because what is shared lies under many structs that do not know each other (logs, sessions, connections) but
// always belong to one worker.
#include "node/base/block.h"
#include "node/base/mem.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static _Thread_local struct block *blocks;

static struct block *add(uint8_t *ptr, size_t cap)
{
    struct block *b = mem_alloc(sizeof(*b));
    *b = (struct block){.ptr = ptr, .cap = cap, .refs = 1, .next = blocks};
    blocks = b;
    return b;
}

struct block *block_create(size_t bytes)
{
    return add(mem_alloc(bytes), bytes);
}

struct block *block_adopt(struct buf *b)
{
    assert(b->ptr != NULL);
    struct block *block = add(b->ptr, b->cap);
    buf_init(b);
    return block;
}

struct block *block_hold(struct block *b)
{
    assert(b->refs > 0);
    b->refs++;
    return b;
}

void block_release(struct block *b)
{
    if (b == NULL) {
        return;
    }
    assert(b->refs > 0);
    if (--b->refs > 0) {
        return;
    }
    for (struct block **at = &blocks; *at != NULL; at = &(*at)->next) {
        if (*at == b) {
            *at = b->next;
            break;
        }
    }
    free(b->ptr);
    free(b);
}

struct block *block_find(const void *ptr)
{
    const uint8_t *p = ptr;
    for (struct block *b = blocks; b != NULL; b = b->next) {
        if (p >= b->ptr && p < b->ptr + b->cap) {
            return b;
        }
    }
    return NULL;
}

bool block_is_disposable(struct span s)
{
    const struct block *b = block_of(s);
    return b != NULL && b->is_disposable && b->refs == 1;
}

void block_move(void *to, struct span s)
{
    for (size_t at = 0; at < s.len; at += BLOCK_BYTES_MIN) {
        const size_t n = s.len - at < BLOCK_BYTES_MIN ? s.len - at : BLOCK_BYTES_MIN;
        memcpy((uint8_t *)to + at, s.ptr + at, n);
        block_discard(span_of(s.ptr + at, n));
    }
}

void block_discard(struct span s)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t)s.ptr + page - 1) & ~(page - 1);
    const uintptr_t end = ((uintptr_t)s.ptr + s.len) & ~(page - 1);
    if (first < end) {
        // Only a hint: without it the memory stays until the block is freed.
        (void)madvise((void *)first, end - first, MADV_DONTNEED);
    }
}
