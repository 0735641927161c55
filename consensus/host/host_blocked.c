// SPDX-License-Identifier: Apache-2.0
// Groups that find no room at a peer, or whose next entry goes in fragments while another's does, are remembered there and
// asked again when there is some, and by turns.
#include "consensus/host/host_core.h"
#include <stdlib.h>

struct blocked *host_blocked_find(const struct group *g, const struct peer *p)
{
    struct blocked *b = g->work ? g->work->blocked : NULL;
    while (b && b->peer != p) {
        b = b->next;
    }
    return b;
}

void host_block(struct group *g, struct peer *p, uint64_t index, bool is_large)
{
    struct group_work *w = group_work(g);
    struct blocked *b = host_blocked_find(g, p);
    if (b == NULL) {
        b = mem_zalloc(sizeof(*b));
        b->group = g;
        b->peer = p;
        b->next = w->blocked;
        w->blocked = b;
        list_add_tail(&p->blocked, &b->link);
    }
    const uint64_t large = is_large || b->large == index ? index : 0;
    p->large_count += (uint32_t)(large != 0) - (uint32_t)(b->large != 0);
    b->large = large;
}

void host_unblock(struct blocked *b)
{
    struct blocked **at = &b->group->work->blocked;
    while (*at != b) {
        at = &(*at)->next;
    }
    *at = b->next;
    b->peer->large_count -= b->large != 0;
    list_remove(&b->link);
    free(b);
}

// May the next one read what it sends in pieces? One at a time: what is read while another is being sent would be dropped, and
// read again, and so on.
static bool is_large_turn(struct host *h, const struct peer *p)
{
    if (p->fragment.group != NULL) {
        return false;
    }
    const struct group *g = p->large_group != 0 ? map_get(&h->map, p->large_group) : NULL;
    if (g == NULL || group_is_gone(g)) {
        return true;
    }
    const bool is_reading = g->work != NULL && (g->work->feeding & 1ull << p->slot);
    return !is_reading && !(g->flags & GROUP_SEND);
}

bool host_is_others_turn(struct host *h, const struct group *g, const struct peer *p)
{
    return p->fragment.group != NULL || (p->large_group != g->id && !is_large_turn(h, p));
}

bool host_blocked_large_due(struct host *h, struct peer *p)
{
    return p->large_count > 0 && is_large_turn(h, p) && p->feeds < HOST_FEEDS_MAX && host_frame_room(h, p);
}

void host_blocked_retry(struct host *h, struct peer *p)
{
    // Bounded: whoever finds no room again is put back behind the end of this walk.
    struct list now;
    list_init(&now);
    list_splice(&now, &p->blocked);
    bool is_turn = host_blocked_large_due(h, p);
    while (!list_is_empty(&now)) {
        struct blocked *b = list_entry(now.next, struct blocked, link);
        struct group *g = b->group;
        if (b->large != 0 && !is_turn) {
            list_remove(&b->link);
            list_add_tail(&p->blocked, &b->link);
            continue;
        }
        if (b->large != 0) {
            is_turn = false;
            p->large_group = g->id;
        }
        host_unblock(b);
        group_ready(g, GROUP_SEND);
    }
}
