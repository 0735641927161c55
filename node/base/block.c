// SPDX-License-Identifier: Apache-2.0
// Shared blocks (block.h).
//
// There are few of them, one or two for each large message under way, so finding one is a walk over a list.
// It hangs on the thread because what is shared lies under many structs that do not know each other (logs,
// sessions, connections) but always belong to one worker.
#include "node/base/block.h"
#include "node/base/crc32c.h"
#include "node/base/mem.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static _Thread_local struct block *blocks;
static _Thread_local struct block *dead;      // Released, not freed yet; only while is_sweeping.
static _Thread_local size_t dead_bytes;
static _Thread_local bool is_sweeping;

enum {
    SWEEP_BYTES_MIN = 2 << 20,  // Smaller blocks are freed at once.
    SWEEP_TURNS = 32,           // In each at least this share of what waits is freed.
};

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
    if (is_sweeping && b->cap >= SWEEP_BYTES_MIN) {
        b->next = dead;
        dead = b;
        dead_bytes += b->cap;
        return;
    }
    free(b->ptr);
    free(b);
}

bool block_sweep(size_t bytes)
{
    is_sweeping = bytes < SIZE_MAX;
    // Much of it goes faster, or it would count as memory for long where turns are.
    bytes = bytes < dead_bytes / SWEEP_TURNS ? dead_bytes / SWEEP_TURNS : bytes;
    while (dead != NULL && bytes > 0) {
        struct block *b = dead;
        const size_t left = b->cap - b->swept;
        if (bytes < left) {
            block_discard(span_of(b->ptr + b->swept, bytes));
            b->swept += bytes;
            dead_bytes -= bytes;
            break;
        }
        bytes -= left;
        dead_bytes -= left;
        dead = b->next;
        free(b->ptr);
        free(b);
    }
    return dead != NULL;
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

void block_set_sum(struct block *b, size_t from, size_t end, uint32_t sum)
{
    assert(from <= end);
    assert(end <= b->cap);
    b->sum_from = from;
    b->sum_end = end;
    b->sum = sum;
}

void block_sum_extend(struct block *b, size_t from)
{
    assert(from <= b->sum_from);
    if (b->sum_from < b->sum_end) {
        const uint32_t before = crc32c(0, b->ptr + from, b->sum_from - from);
        b->sum = crc32c_combine(before, b->sum, b->sum_end - b->sum_from);
        b->sum_from = from;
    }
}

bool block_sum(struct span s, uint32_t *sum)
{
    const struct block *b = block_of(s);
    if (b == NULL) {
        return false;
    }
    const size_t at = (size_t)(s.ptr - b->ptr);
    if (at < b->sum_from || at + s.len != b->sum_end) {
        return false;
    }
    const uint32_t before = crc32c(0, b->ptr + b->sum_from, at - b->sum_from);
    *sum = crc32c_combine(before, b->sum, s.len);
    return true;
}

bool block_has_room(struct span s, size_t before, size_t behind)
{
    const struct block *b = block_of(s);
    if (b == NULL || !b->has_room || !block_is_disposable(s)) {
        return false;
    }
    const size_t at = (size_t)(s.ptr - b->ptr);
    return at >= before && b->cap - at - s.len >= behind;
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
