// SPDX-License-Identifier: Apache-2.0
// Bounded single-producer single-consumer ring of pointers: the only way data passes between threads.
//
// The producer pushes any number and then wakes the consumer once (the wake-up belongs to the driver: uv_async
// for loops, an eventfd for plain threads). Head and tail lie on cache lines of their own.
// Ordering: ring_push releases what the pointer points to, ring_pop acquires it.
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ring {
    void **slots;   // `mask + 1` places.
    uint32_t mask;
    _Alignas(64) _Atomic uint32_t shared_tail;  // Next place to write; producer writes, release.
    uint32_t head_seen;                         // Producer's copy of head.
    _Alignas(64) _Atomic uint32_t shared_head;  // Next place to read; consumer writes, release.
    uint32_t tail_seen;                         // Consumer's copy of tail.
};

void ring_init(struct ring *r, uint32_t capacity);  // Rounded up to a power of two.
void ring_deinit(struct ring *r);

// Producer only. False if the ring is full: the caller keeps the item and applies back-pressure.
static inline bool ring_push(struct ring *r, void *item)
{
    uint32_t tail = atomic_load_explicit(&r->shared_tail, memory_order_relaxed);
    if (tail - r->head_seen > r->mask) {
        r->head_seen = atomic_load_explicit(&r->shared_head, memory_order_acquire);
        if (tail - r->head_seen > r->mask) {
            return false;
        }
    }
    r->slots[tail & r->mask] = item;
    atomic_store_explicit(&r->shared_tail, tail + 1, memory_order_release);
    return true;
}

// Consumer only. NULL if empty.
static inline void *ring_pop(struct ring *r)
{
    uint32_t head = atomic_load_explicit(&r->shared_head, memory_order_relaxed);
    if (head == r->tail_seen) {
        r->tail_seen = atomic_load_explicit(&r->shared_tail, memory_order_acquire);
        if (head == r->tail_seen) {
            return NULL;
        }
    }
    void *item = r->slots[head & r->mask];
    atomic_store_explicit(&r->shared_head, head + 1, memory_order_release);
    return item;
}

// Any thread; a hint.
static inline uint32_t ring_count(struct ring *r)
{
    return atomic_load_explicit(&r->shared_tail, memory_order_acquire) -
           atomic_load_explicit(&r->shared_head, memory_order_acquire);
}
