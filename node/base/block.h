// SPDX-License-Identifier: Apache-2.0
// Large pieces of memory with several owners: the body of one large message, which a log chunk, a queue
// session, links to peers and clients' outputs all need for a while. Sharing keeps it in memory once instead
// of once for each.
//
// A span that is large (BLOCK_BYTES_MIN) may lie in a block: block_of finds it by address, so spans travel as
// ever and only who wants to keep the bytes asks. Blocks belong to the thread that created them: holding,
// releasing and finding happen there.
// Other threads may read the bytes while an owner on that thread keeps them. What is left when the thread has
// ended may be released by whoever tears its owners down.
#pragma once
#include "node/base/buf.h"

enum { BLOCK_BYTES_MIN = 1 << 20 };  // Smaller bodies are copied: cheaper than looking for them.

struct block {
    uint8_t *ptr;
    size_t cap;
    uint32_t refs;
    // The only owner needs the bytes no more once they were copied: who copies may give the pages back
    // (block_discard), and says so.
    bool is_disposable, is_discarded;
    // Beside what of it is given away nothing in it is needed either: a head may be written in front, padding behind.
    bool has_room;
    // The CRC32C of the bytes [sum_from, sum_end), taken when they came: who checks them need not read them
    // again. Who changes bytes within says so (block_set_sum). sum_from == sum_end: not known.
    size_t sum_from, sum_end;
    uint32_t sum;
    size_t swept;        // Given back already, while it waits to be freed.
    struct block *next;  // Of this thread's blocks.
};

struct block *block_create(size_t bytes);      // One reference, the caller's.
struct block *block_adopt(struct buf *b);      // Takes the buffer's memory and leaves it empty.
struct block *block_hold(struct block *b);     // Returns `b`.
// NULL: nothing. The last one frees the memory, or leaves that to block_sweep.
void block_release(struct block *b);
// Frees about `bytes` of what was released on this thread; true: there is more. Freeing 16 MiB at once takes
// milliseconds: a thread that calls this in each turn (from its first call on) does it by and by. SIZE_MAX at its end.
bool block_sweep(size_t bytes);
// The block in which the bytes at `ptr` lie; NULL if in none.
struct block *block_find(const void *ptr);
static inline struct block *block_of(struct span s)
{
    return s.len >= BLOCK_BYTES_MIN ? block_find(s.ptr) : NULL;
}
// The bytes of `b` from `from` up to `end` have the sum `sum`; nothing is known of the others.
void block_set_sum(struct block *b, size_t from, size_t end, uint32_t sum);
// Something was written in front of what is summed: it counts from `from` on. Reads what was added.
void block_sum_extend(struct block *b, size_t from);
// The CRC32C of `s`, if it is the end of what was summed in its block. Reads at most what was summed before it.
MUST_USE bool block_sum(struct span s, uint32_t *sum);
// Are there `before` bytes in front of `s` and `behind` bytes after it that its disposable block lets be overwritten?
bool block_has_room(struct span s, size_t before, size_t behind);
// True if `s` may be destroyed by copying it: it lies in a disposable block with one owner.
bool block_is_disposable(struct span s);
// Copies `s` to `to`, giving its pages back on the way: it is in memory once all the time, and undefined afterwards.
void block_move(void *to, struct span s);
// Gives the whole pages within `s` back to the system; the bytes there are undefined afterwards.
void block_discard(struct span s);
