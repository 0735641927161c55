// SPDX-License-Identifier: Apache-2.0
// Large pieces of memory with several owners: the body of one large message, which a log chunk, a queue session, links to
// peers and clients' outputs all need for a while. Sharing keeps it in memory once instead of once for each.
//
// A span that is large (BLOCK_BYTES_MIN) may lie in a block: block_of finds it by address, so spans travel as ever and only
// who wants to keep the bytes asks. Blocks belong to the thread that created them: holding, releasing and finding happen there.
// Other threads may read the bytes while an owner on that thread keeps them. What is left when the thread has ended may be
// released by whoever tears its owners down.
#pragma once
#include "node/base/buf.h"

enum { BLOCK_BYTES_MIN = 1 << 20 };  // Smaller bodies are copied: cheaper than looking for them.

struct block {
    uint8_t *ptr;
    size_t cap;
    uint32_t refs;
    // The only owner needs the bytes no more once they were copied: who copies may give the pages back (block_discard), and
    // says so.
    bool is_disposable, is_discarded;
    struct block *next;  // Of this thread's blocks.
};

struct block *block_create(size_t bytes);      // One reference, the caller's.
struct block *block_adopt(struct buf *b);      // Takes the buffer's memory and leaves it empty.
struct block *block_hold(struct block *b);     // Returns `b`.
void block_release(struct block *b);           // NULL: nothing. The last one frees the memory.
// The block in which the bytes at `ptr` lie; NULL if in none.
struct block *block_find(const void *ptr);
static inline struct block *block_of(struct span s)
{
    return s.len >= BLOCK_BYTES_MIN ? block_find(s.ptr) : NULL;
}
// True if `s` may be destroyed by copying it: it lies in a disposable block with one owner.
bool block_is_disposable(struct span s);
// Copies `s` to `to`, giving its pages back on the way: it is in memory once all the time, and undefined afterwards.
void block_move(void *to, struct span s);
// Gives the whole pages within `s` back to the system; the bytes there are undefined afterwards.
void block_discard(struct span s);
