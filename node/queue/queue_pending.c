// SPDX-License-Identifier: Apache-2.0
// Pending commands (queue_pending.h). A command is whole in one block; one larger than a block gets its own,
// and a large one a shared block with room for a record's head, which may become the log's. The last
// block stays for the next command, so a session that works one at a time allocates nothing.
#include "node/queue/queue_pending.h"
#include "node/base/mem.h"
#include "proto/record.h"
#include <assert.h>
#include <stdlib.h>

struct queue_pending_block {
    struct queue_pending_block *next;
    uint32_t used, cap;
    uint32_t commands;  // Not yet popped.
    uint8_t bytes[];
};

void queue_pending_init(struct queue_pending *p, uint32_t block_bytes, uint64_t first)
{
    *p = (struct queue_pending){.block_bytes = block_bytes, .first = first};
}

void queue_pending_deinit(struct queue_pending *p)
{
    for (struct queue_pending_block *b = p->block_first, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    for (uint32_t i = 0; i < p->count; i++) {
        block_release(p->items[(p->head + i) & (p->cap - 1)].block);
    }
    free(p->items);
    *p = (struct queue_pending){0};
}

static uint8_t *block_room(struct queue_pending *p, uint32_t len)
{
    struct queue_pending_block *b = p->block_last;
    if (b && b->commands == 0 && len <= b->cap) {
        b->used = 0;
    }
    if (!b || b->cap - b->used < len) {
        uint32_t cap = len > p->block_bytes ? len : p->block_bytes;
        b = mem_alloc(sizeof(*b) + cap);
        *b = (struct queue_pending_block){.cap = cap};
        if (p->block_last && p->block_last->commands == 0) {
            assert(p->block_first == p->block_last);
            free(p->block_last);
            p->block_first = b;
        } else if (p->block_last) {
            p->block_last->next = b;
        } else {
            p->block_first = b;
        }
        p->block_last = b;
    }
    uint8_t *at = b->bytes + b->used;
    b->used += len;
    b->commands++;
    return at;
}

static struct queue_pending_item *item_add(struct queue_pending *p)
{
    if (p->count == p->cap) {
        uint32_t cap = p->cap ? p->cap * 2 : 8;
        struct queue_pending_item *items = mem_alloc(cap * sizeof(*items));
        for (uint32_t i = 0; i < p->count; i++) {
            items[i] = p->items[(p->head + i) & (p->cap - 1)];
        }
        free(p->items);
        p->items = items;
        p->head = 0;
        p->cap = cap;
    }
    return &p->items[(p->head + p->count++) & (p->cap - 1)];
}

uint8_t *queue_pending_push(struct queue_pending *p, uint32_t len, uint8_t kind, uint32_t aux)
{
    struct queue_pending_item *item = item_add(p);
    struct block *block =
        len >= BLOCK_BYTES_MIN ? block_create((size_t)len + RECORD_HEADER_BYTES + RECORD_ALIGN) : NULL;
    uint8_t *at = block ? block->ptr + RECORD_HEADER_BYTES : block_room(p, len);
    *item = (struct queue_pending_item){.ptr = at, .len = len, .kind = kind, .aux = aux, .block = block};
    p->bytes += len;
    return at;
}

void queue_pending_push_block(struct queue_pending *p, struct block *block, uint8_t *ptr, uint32_t len,
                              uint8_t kind, uint32_t aux)
{
    assert(len >= BLOCK_BYTES_MIN);
    assert(ptr >= block->ptr && ptr + len <= block->ptr + block->cap);
    *item_add(p) = (struct queue_pending_item){.ptr = ptr,
                                               .len = len,
                                               .kind = kind,
                                               .aux = aux,
                                               .block = block_hold(block)};
    p->bytes += len;
}

const struct queue_pending_item *queue_pending_at(const struct queue_pending *p, uint64_t seq)
{
    if (seq < p->first || seq - p->first >= p->count) {
        return NULL;
    }
    return &p->items[(p->head + (uint32_t)(seq - p->first)) & (p->cap - 1)];
}

void queue_pending_share(struct queue_pending *p, uint64_t seq, struct span bytes)
{
    assert(seq >= p->first && seq - p->first < p->count);
    struct queue_pending_item *item = &p->items[(p->head + (uint32_t)(seq - p->first)) & (p->cap - 1)];
    struct block *block = block_of(bytes);
    assert(item->block && block);
    assert(bytes.len == item->len);
    block_hold(block);
    block_release(item->block);
    item->block = block;
    item->ptr = (uint8_t *)bytes.ptr;
}

void queue_pending_pop(struct queue_pending *p)
{
    assert(p->count > 0);
    struct block *block = p->items[p->head].block;
    p->bytes -= p->items[p->head].len;
    p->head = (p->head + 1) & (p->cap - 1);
    p->count--;
    p->first++;
    if (block) {
        block_release(block);
        return;
    }
    struct queue_pending_block *b = p->block_first;
    assert(b->commands > 0);
    b->commands--;
    if (b->commands == 0 && (b->next || b->cap > p->block_bytes)) {
        p->block_first = b->next;
        if (!b->next) {
            p->block_last = NULL;
        }
        free(b);
    }
}
