// SPDX-License-Identifier: Apache-2.0
// The ready list of a queue: 32 first-in first-out buckets of 8-byte references, and the messages that came back.
//
// References lie in chunks whose filled places never change: a snapshot holds the chunks by count and reads them on
// another thread while the list goes on (engine-notes §2.5, §2.6). Counts are changed on the worker only.
// Thread: the worker of the queue's group; queue_run contents: any.
#pragma once
#include "node/base/buf.h"

enum { QUEUE_PRIORITIES = 32, QUEUE_PRIORITY_ABSENT = 4, QUEUE_CHUNK_REFS = 512 };
enum { QUEUE_REF_SIZE_BITS = 20, QUEUE_REF_SIZE_MAX = (1 << QUEUE_REF_SIZE_BITS) - 1 };

// 44-bit log index, 20-bit size. QUEUE_REF_SIZE_MAX: the size stands in the side table. Never 0: indexes start at 1.
typedef uint64_t queue_ref;
static inline queue_ref queue_ref_make(uint64_t index, uint64_t size)
{
    assert(index > 0 && index >> 44 == 0);
    return index << QUEUE_REF_SIZE_BITS | (size < QUEUE_REF_SIZE_MAX ? size : QUEUE_REF_SIZE_MAX);
}
static inline uint64_t queue_ref_index(queue_ref r)
{
    return r >> QUEUE_REF_SIZE_BITS;
}
static inline uint32_t queue_ref_size(queue_ref r)
{
    return (uint32_t)(r & QUEUE_REF_SIZE_MAX);
}

struct queue_chunk {
    struct queue_chunk *next;
    uint32_t refs;  // The list and each snapshot that needs it.
    uint32_t cap;   // Places.
    queue_ref items[];
};

struct queue_bucket {
    struct queue_chunk *head, *tail;  // NULL while empty.
    uint32_t head_at, tail_at;        // Next to take in head; next to fill in tail.
    uint64_t count;
};

struct queue_ready {
    struct queue_bucket normal;    // QUEUE_PRIORITY_ABSENT.
    struct queue_bucket *others;   // QUEUE_PRIORITIES of them, from the first use of another priority on.
    uint32_t bitmap;               // Buckets that are not empty.
};

void queue_ready_init(struct queue_ready *r);
void queue_ready_clear(struct queue_ready *r);  // Drops everything and frees the memory.
void queue_ready_push(struct queue_ready *r, uint32_t priority, queue_ref ref);
queue_ref queue_ready_pop(struct queue_ready *r);  // Highest priority first; 0 if empty.
queue_ref queue_ready_peek(const struct queue_ready *r);
// What pop would give after `skip` others, at most n of them and only of the highest priority there is; how many.
uint32_t queue_ready_look(const struct queue_ready *r, uint64_t skip, queue_ref *out, uint32_t n);

// Filled places of one chunk, held.
struct queue_run {
    struct queue_chunk *chunk;
    uint32_t from, to;
    uint32_t priority;
};
void queue_ready_freeze(struct queue_ready *r, struct buf *runs);  // Appends struct queue_run.
void queue_runs_release(struct buf *runs);

// Messages that came back, in order of return; served before every priority.
struct queue_returned {
    queue_ref ref;
    uint32_t acquired, failed;
};
struct queue_returns {
    struct queue_returned *items;  // Ring.
    uint32_t head, count, cap;     // cap: 0 or a power of two.
};
void queue_returns_push(struct queue_returns *r, struct queue_returned m);
bool queue_returns_pop(struct queue_returns *r, struct queue_returned *out);
const struct queue_returned *queue_returns_at(const struct queue_returns *r, uint32_t i);
void queue_returns_clear(struct queue_returns *r);
