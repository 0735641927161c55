// SPDX-License-Identifier: Apache-2.0
// Deadlines of groups: a binary heap that holds only groups with one, so that an idle group costs nothing.
//
// A group's place in the heap stands in the group (heap_pos), so a deadline can change or go away in O(log n).
// Equal deadlines come in the order of group ids: no behaviour depends on addresses.
#include "consensus/host/host_core.h"
#include <assert.h>

static bool is_before(const struct group *a, const struct group *b)
{
    return a->deadline != b->deadline ? a->deadline < b->deadline : a->id < b->id;
}

static void put(struct host *h, uint32_t pos, struct group *g)
{
    h->heap[pos] = g;
    g->heap_pos = pos;
}

static void sift_up(struct host *h, uint32_t pos)
{
    struct group *g = h->heap[pos];
    while (pos > 0 && is_before(g, h->heap[(pos - 1) / 2])) {
        put(h, pos, h->heap[(pos - 1) / 2]);
        pos = (pos - 1) / 2;
    }
    put(h, pos, g);
}

static void sift_down(struct host *h, uint32_t pos)
{
    struct group *g = h->heap[pos];
    for (;;) {
        uint32_t child = pos * 2 + 1;
        if (child >= h->heap_len) {
            break;
        }
        if (child + 1 < h->heap_len && is_before(h->heap[child + 1], h->heap[child])) {
            child++;
        }
        if (!is_before(h->heap[child], g)) {
            break;
        }
        put(h, pos, h->heap[child]);
        pos = child;
    }
    put(h, pos, g);
}

static void take_out(struct host *h, struct group *g)
{
    const uint32_t pos = g->heap_pos;
    assert(pos < h->heap_len && h->heap[pos] == g);
    struct group *last = h->heap[--h->heap_len];
    if (last != g) {
        put(h, pos, last);
        sift_up(h, pos);
        sift_down(h, last->heap_pos);
    }
}

void host_timer_set(struct group *g, uint64_t deadline)
{
    struct host *h = g->host;
    if (deadline == g->deadline) {
        return;
    }
    const bool was_in = g->deadline != UINT64_MAX;
    if (deadline == UINT64_MAX) {
        take_out(h, g);
        g->deadline = UINT64_MAX;
        return;
    }
    g->deadline = deadline;
    if (!was_in) {
        if (h->heap_len == h->heap_cap) {
            h->heap_cap = h->heap_cap ? h->heap_cap * 2 : 64;
            h->heap = mem_realloc(h->heap, h->heap_cap * sizeof(struct group *));
        }
        put(h, h->heap_len++, g);
    }
    sift_up(h, g->heap_pos);
    sift_down(h, g->heap_pos);
}

struct group *host_timer_first(struct host *h)
{
    return h->heap_len > 0 ? h->heap[0] : NULL;
}
