// SPDX-License-Identifier: Apache-2.0
// A first-in first-out of encoded commands with consecutive seqs: what a session keeps until it is applied,
// what a leader holds while its group is full. Bytes lie in blocks that are freed as the front moves; no
// allocation per command.
// Thread: one.
#pragma once
#include "node/base/block.h"
#include "node/base/span.h"
#include <stdint.h>

struct queue_pending_block;
struct queue_pending_item {
    uint8_t *ptr;
    uint32_t len;
    uint8_t kind;   // enum queue_command_kind.
    uint32_t aux;   // The owner's.
    struct block *block;  // Of a large command: holds its bytes, in place of the blocks below.
};

struct queue_pending {
    struct queue_pending_item *items;  // Ring.
    uint32_t head, count, cap;
    uint64_t first;       // Seq of the front; the seq of an item is first + its place.
    uint64_t bytes;
    struct queue_pending_block *block_first, *block_last;
    uint32_t block_bytes;
};

void queue_pending_init(struct queue_pending *p, uint32_t block_bytes, uint64_t first);
void queue_pending_deinit(struct queue_pending *p);
// Room for a command of `len` bytes at the end; the caller writes it at once.
uint8_t *queue_pending_push(struct queue_pending *p, uint32_t len, uint8_t kind, uint32_t aux);
// A command at the end whose bytes lie in `block` already (large ones only); holds it. `ptr` .. + `len` must
// be all of it that anybody needs: the log may write a record's head in front and padding behind.
void queue_pending_push_block(struct queue_pending *p, struct block *block, uint8_t *ptr, uint32_t len,
                              uint8_t kind, uint32_t aux);
const struct queue_pending_item *queue_pending_at(const struct queue_pending *p, uint64_t seq);  // NULL: not there.
// The same bytes of a large command are in memory elsewhere, in a block: keeps those in place of its own.
void queue_pending_share(struct queue_pending *p, uint64_t seq, struct span bytes);
void queue_pending_pop(struct queue_pending *p);
static inline uint64_t queue_pending_last(const struct queue_pending *p)  // Seq of the newest; first - 1 if empty.
{
    return p->first + p->count - 1;
}
