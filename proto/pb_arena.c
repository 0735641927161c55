// SPDX-License-Identifier: Apache-2.0
// Bump allocation behind protobuf-c's allocator (pb_arena.h).
//
// Chunks form a stack; only the top one is filled. Requests larger than a chunk get one of their size. A reset frees
// all but one chunk of the usual size, so a large envelope does not leave its memory behind.
#include "proto/pb_arena.h"
#include "node/base/mem.h"
#include <assert.h>
#include <stdlib.h>

struct pb_chunk {
    struct pb_chunk *below;
    size_t size;  // Of data.
    size_t used;
    _Alignas(16) uint8_t data[];
};

static void *arena_alloc(void *ctx, size_t size)
{
    struct pb_arena *a = ctx;
    size = (size + 15) & ~(size_t)15;
    struct pb_chunk *c = a->chunks;
    if (c == NULL || c->size - c->used < size) {
        const size_t bytes = size > PB_ARENA_CHUNK ? size : PB_ARENA_CHUNK;
        if (size > PB_ARENA_MAX || a->total + bytes > PB_ARENA_MAX) {
            return NULL;
        }
        c = mem_alloc(sizeof(*c) + bytes);
        c->below = a->chunks;
        c->size = bytes;
        c->used = 0;
        a->chunks = c;
        a->total += bytes;
    }
    void *p = c->data + c->used;
    c->used += size;
    return p;
}

static void arena_free(void *ctx, void *p)
{
    (void)ctx;  // Memory goes back at the reset.
    (void)p;
}

void pb_arena_init(struct pb_arena *a)
{
    a->allocator = (ProtobufCAllocator){.alloc = arena_alloc, .free = arena_free, .allocator_data = a};
    a->chunks = NULL;
    a->total = 0;
}

void pb_arena_reset(struct pb_arena *a)
{
    while (a->chunks && (a->chunks->below || a->chunks->size > PB_ARENA_CHUNK)) {
        struct pb_chunk *c = a->chunks;
        a->chunks = c->below;
        assert(a->total >= c->size);
        a->total -= c->size;
        free(c);
    }
    if (a->chunks) {
        a->chunks->used = 0;
    }
}

void pb_arena_deinit(struct pb_arena *a)
{
    pb_arena_reset(a);
    free(a->chunks);
    a->chunks = NULL;
    a->total = 0;
}
