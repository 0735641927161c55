// SPDX-License-Identifier: Apache-2.0
// Unsettled deliveries. Positions count up for ever and are masked into the ring; `queue` NULL marks a hole.
// When the ring is full, holes are squeezed out if they are at least half of it, else it doubles: either way
// the cost per delivery stays constant.
#include "node/amqp09/unacked.h"
#include "node/base/mem.h"
#include <assert.h>
#include <stdlib.h>

void unacked_init(struct unacked *u)
{
    *u = (struct unacked){.next_tag = 1};
}

void unacked_deinit(struct unacked *u)
{
    free(u->ring);
    unacked_init(u);
}

static struct unacked_entry *at(const struct unacked *u, uint64_t pos)
{
    return &u->ring[pos & (u->cap - 1)];
}

static void rebuild(struct unacked *u, uint32_t cap)
{
    struct unacked_entry *ring = mem_alloc(cap * sizeof(*ring));
    uint32_t n = 0;
    for (uint64_t p = u->head; p < u->tail; p++) {
        if (at(u, p)->queue) {
            ring[n++] = *at(u, p);
        }
    }
    assert(n == u->count);
    free(u->ring);
    u->ring = ring;
    u->cap = cap;
    u->head = 0;
    u->tail = n;
}

uint64_t unacked_add(struct unacked *u, struct channel_queue *queue, uint32_t consumer, uint64_t number)
{
    assert(queue);
    if (u->tail - u->head == u->cap) {
        rebuild(u, u->cap == 0 ? 16 : u->count > u->cap / 2 ? u->cap * 2 : u->cap);
    }
    uint64_t tag = u->next_tag++;
    *at(u, u->tail++) =
        (struct unacked_entry){.tag = tag, .number = number, .queue = queue, .consumer = consumer};
    u->count++;
    return tag;
}

// Position of the entry with that tag, open or not; u->tail if there is none.
static uint64_t find(const struct unacked *u, uint64_t tag)
{
    if (u->head == u->tail || tag < at(u, u->head)->tag || tag > at(u, u->tail - 1)->tag) {
        return u->tail;
    }
    uint64_t guess = u->head + (tag - at(u, u->head)->tag);
    if (guess < u->tail && at(u, guess)->tag == tag) {
        return guess;
    }
    uint64_t low = u->head, high = u->tail;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (at(u, middle)->tag < tag) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < u->tail && at(u, low)->tag == tag ? low : u->tail;
}

static void drop_holes_in_front(struct unacked *u)
{
    while (u->head < u->tail && !at(u, u->head)->queue) {
        u->head++;
    }
}

static void take_at(struct unacked *u, uint64_t pos, struct unacked_entry *out)
{
    *out = *at(u, pos);
    at(u, pos)->queue = NULL;
    u->count--;
    drop_holes_in_front(u);
}

bool unacked_has(const struct unacked *u, uint64_t tag)
{
    uint64_t pos = find(u, tag);
    return pos < u->tail && at(u, pos)->queue;
}

bool unacked_take(struct unacked *u, uint64_t tag, struct unacked_entry *out)
{
    uint64_t pos = find(u, tag);
    if (pos == u->tail || !at(u, pos)->queue) {
        return false;
    }
    take_at(u, pos, out);
    return true;
}

bool unacked_take_first(struct unacked *u, uint64_t tag, struct unacked_entry *out)
{
    drop_holes_in_front(u);
    if (u->head == u->tail || at(u, u->head)->tag > tag) {
        return false;
    }
    take_at(u, u->head, out);
    return true;
}

static int entry_compare(const void *a, const void *b)
{
    const struct unacked_entry *x = a, *y = b;
    return (x->tag > y->tag) - (x->tag < y->tag);
}

void unacked_put_back(struct unacked *u, const struct unacked_entry *entries, uint32_t count)
{
    uint32_t cap = u->cap == 0 ? 16 : u->cap;
    while (cap < u->count + count) {
        cap *= 2;
    }
    rebuild(u, cap);
    for (uint32_t i = 0; i < count; i++) {
        u->ring[u->tail++] = entries[i];
        u->count++;
    }
    qsort(u->ring, u->count, sizeof(*u->ring), entry_compare);
}

const struct unacked_entry *unacked_next(const struct unacked *u, uint64_t *pos)
{
    // Positions handed out are relative to the front, plus one.
    for (uint64_t p = u->head + *pos; p < u->tail; p++) {
        if (at(u, p)->queue) {
            *pos = p - u->head + 1;
            return at(u, p);
        }
    }
    return NULL;
}
