// SPDX-License-Identifier: Apache-2.0
// Liveness of nodes, told to the groups it concerns (engine-notes §7.5, P15).
//
// A verdict or a reset link concerns up to every group of the worker. Each peer has one walk at a time:
// "down" goes first over the groups led from that node, then over all; "up" and "reset" over all. A walk
// tells HOST_WALK_BATCH groups a turn.
// What is due next waits as three bits, in the order down, up, reset, so that a group always hears the last
// verdict last, and a node that died and came back has been dead in between.
//
// A group that joins while a walk is under way was told at its adding; being told twice does no harm.
#include "consensus/host/host_core.h"
#include <assert.h>

static struct list *leader_list(struct host *h, uint32_t node)
{
    return node ? &host_peer(h, node)->by_leader : &h->no_leader;
}

void host_liveness_list(struct group *g, uint32_t leader_node)
{
    if (!list_is_empty(&g->by_leader)) {
        if (g->leader_node == leader_node) {
            return;
        }
        list_remove(&g->by_leader);
    }
    g->leader_node = leader_node;
    list_add_tail(leader_list(g->host, leader_node), &g->by_leader);
}

// Takes the group out of all lists here; markers stay where they are.
void host_liveness_unlist(struct group *g)
{
    list_remove(&g->by_leader);
}

void host_liveness_verdict(struct host *h, struct peer *p, enum node_verdict verdict, uint64_t incarnation)
{
    const bool was_alive = p->is_known && p->verdict == NODE_ALIVE;
    const bool is_new = p->is_known && incarnation > p->incarnation;
    p->is_known = true;
    p->verdict = verdict;
    if (incarnation > p->incarnation) {
        p->incarnation = incarnation;
        for (uint32_t k = 0; k < p->inflow_count; k++) {
            struct inflow *in = &p->inflow[k];
            in->received = in->received_noted = in->receipt = 0;  // Its counting started anew.
            in->owes_receipt = false;
        }
    }
    if (verdict != NODE_ALIVE || (is_new && was_alive)) {
        p->walk_down = true;
        p->walk_up = false;
        host_snapshot_link(h, p->node, true);
    }
    if (verdict == NODE_ALIVE) {
        p->walk_up = true;
    }
    h->is_walking = true;
}

void host_liveness_reset(struct host *h, struct peer *p)
{
    p->walk_reset = true;
    h->is_walking = true;
}

// ---- walking -------------------------------------------------------------------------------------------------------

static void walk_start(struct host *h, struct peer *p)
{
    assert(p->walk == WALK_NONE);
    if (p->walk_down) {
        p->walk_down = false;
        p->walk = WALK_DOWN;
        list_splice(&p->walk_led, &p->by_leader);
    } else if (p->walk_up) {
        p->walk_up = false;
        p->walk = WALK_UP;
    } else if (p->walk_reset) {
        p->walk_reset = false;
        p->walk = WALK_RESET;
    }
    if (p->walk != WALK_NONE) {
        list_remove(&p->marker);
        list_add_head(&h->groups, &p->marker);
    }
}

static void tell(struct host *h, struct peer *p, struct group *g)
{
    struct consensus_status st;
    if (group_is_gone(g)) {
        return;
    }
    g->ops->status(g->replica, &st);
    if (config_find_node(st.config, p->node) == NULL) {
        return;
    }
    struct consensus_out out;
    consensus_out_reset(&out);
    if (p->walk == WALK_RESET) {
        g->ops->link_reset(g->replica, p->node, host_now(h), &out);
    } else {
        g->ops->node_alive(g->replica, p->node, p->walk == WALK_UP, host_now(h), &out);
    }
    group_execute(g, &out, span_of(NULL, 0), 0);
    if (p->walk == WALK_DOWN) {
        host_send_down(g, p);
    }
}

static bool is_marker(struct host *h, const struct list *l)
{
    list_each(i, &h->peers) {
        if (l == &list_entry(i, struct peer, link)->marker) {
            return true;
        }
    }
    return false;
}

// One step of the peer's walk; false when it has come to its end.
static bool walk_step(struct host *h, struct peer *p)
{
    if (!list_is_empty(&p->walk_led)) {
        struct group *g = list_entry(list_pop(&p->walk_led), struct group, by_leader);
        list_add_tail(&p->by_leader, &g->by_leader);
        tell(h, p, g);
        return true;
    }
    struct list *at = p->marker.next;
    if (at == &h->groups) {
        list_remove(&p->marker);
        return false;
    }
    list_remove(&p->marker);
    list_add_head(at, &p->marker);  // Behind it.
    if (!is_marker(h, at)) {
        tell(h, p, list_entry(at, struct group, all));
    }
    return true;
}

bool host_liveness_turn(struct host *h)
{
    if (!h->is_walking) {
        return false;
    }
    uint32_t budget = HOST_WALK_BATCH;
    h->is_walking = false;
    list_each(i, &h->peers) {
        struct peer *p = list_entry(i, struct peer, link);
        while (budget > 0 && (p->walk != WALK_NONE || p->walk_down || p->walk_up || p->walk_reset)) {
            if (p->walk == WALK_NONE) {
                walk_start(h, p);
            } else if (walk_step(h, p)) {
                budget--;
            } else {
                p->walk = WALK_NONE;
            }
        }
        h->is_walking = h->is_walking || p->walk != WALK_NONE || p->walk_down || p->walk_up || p->walk_reset;
    }
    return h->is_walking;
}
