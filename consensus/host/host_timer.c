// SPDX-License-Identifier: Apache-2.0
// Deadlines of groups: a heap that holds only groups with one, so that an idle group costs nothing.
//
// Problem: in an election of a hundred thousand groups every step of every engine moves its group's deadline,
// nearly always to a later time. Idea: the heap has the time beside the group (four children in one cache
// line, and no group is touched to compare), and a deadline that moves to a later time, or goes away, leaves
// the heap as it is: the entry is put right when its time has come. So host_timer_next may be early by a turn
// that finds nothing due.
//
// A group's place in the heap stands in the group (heap_pos). Equal times come in the order of group ids: no behaviour
// depends on addresses.
#include "consensus/host/host_core.h"
#include <assert.h>

enum { CHILDREN = 4 };

static bool is_before(const struct host_timer *a, const struct host_timer *b)
{
    return a->at != b->at ? a->at < b->at : a->group->id < b->group->id;
}

static void put(struct host *h, uint32_t pos, struct host_timer t)
{
    h->heap[pos] = t;
    t.group->heap_pos = pos;
}

static void sift_up(struct host *h, uint32_t pos)
{
    const struct host_timer t = h->heap[pos];
    while (pos > 0 && is_before(&t, &h->heap[(pos - 1) / CHILDREN])) {
        put(h, pos, h->heap[(pos - 1) / CHILDREN]);
        pos = (pos - 1) / CHILDREN;
    }
    put(h, pos, t);
}

static void sift_down(struct host *h, uint32_t pos)
{
    const struct host_timer t = h->heap[pos];
    for (;;) {
        uint32_t first = pos * CHILDREN + 1;
        uint32_t best = first;
        for (uint32_t i = first + 1; i < first + CHILDREN && i < h->heap_len; i++) {
            best = is_before(&h->heap[i], &h->heap[best]) ? i : best;
        }
        if (first >= h->heap_len || !is_before(&h->heap[best], &t)) {
            break;
        }
        put(h, pos, h->heap[best]);
        pos = best;
    }
    put(h, pos, t);
}

void host_timer_remove(struct group *g)
{
    struct host *h = g->host;
    const uint32_t pos = g->heap_pos;
    g->deadline = UINT64_MAX;
    if (pos == HOST_TIMER_NONE) {
        return;
    }
    assert(pos < h->heap_len && h->heap[pos].group == g);
    g->heap_pos = HOST_TIMER_NONE;
    const struct host_timer last = h->heap[--h->heap_len];
    if (last.group != g) {
        put(h, pos, last);
        sift_up(h, pos);
        sift_down(h, last.group->heap_pos);
    }
}

void host_timer_set(struct group *g, uint64_t deadline)
{
    struct host *h = g->host;
    g->deadline = deadline;
    if (g->heap_pos != HOST_TIMER_NONE) {
        if (deadline < h->heap[g->heap_pos].at) {
            h->heap[g->heap_pos].at = deadline;
            sift_up(h, g->heap_pos);
        }
        return;
    }
    if (deadline == UINT64_MAX) {
        return;
    }
    if (h->heap_len == h->heap_cap) {
        h->heap_cap = h->heap_cap ? h->heap_cap * 2 : 64;
        h->heap = mem_realloc(h->heap, h->heap_cap * sizeof(h->heap[0]));
    }
    put(h, h->heap_len++, (struct host_timer){.at = deadline, .group = g});
    sift_up(h, g->heap_pos);
}

struct group *host_timer_due(struct host *h, uint64_t now)
{
    while (h->heap_len > 0 && h->heap[0].at <= now) {
        struct group *g = h->heap[0].group;
        if (g->deadline <= now) {
            return g;
        }
        if (g->deadline == UINT64_MAX) {
            host_timer_remove(g);
        } else {
            h->heap[0].at = g->deadline;
            sift_down(h, 0);
        }
    }
    return NULL;
}

uint64_t host_timer_next(const struct host *h)
{
    return h->heap_len > 0 ? h->heap[0].at : UINT64_MAX;
}
