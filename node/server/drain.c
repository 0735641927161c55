// SPDX-License-Identifier: Apache-2.0
// An orderly stop (SIGTERM) and maintenance mode (maintenance.c) on a worker: clients of other nodes should
// not notice, clients of this node are told.
//
// The worker closes its listening sockets and hands the lead of its groups to followers that are alive and
// not in maintenance mode themselves, so many at a time, while everything else goes on: who publishes through
// this node is served by the new leaders. When all is handed over, or after a bound, connections are closed
// with 320 and have a second to answer. At a stop, what is left then ends like in a crash, which loses
// nothing that was confirmed. Law 4: each step has an end.
#include "node/server/node.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include <stdlib.h>
#include <time.h>

enum {
    LEADERS_MS = 2000,
    MAINTENANCE_LEADERS_MS = 10000,
    KEPT_AGAIN_MS = 1000,  // Leads that came back in maintenance mode.
    CONNECTIONS_MS = 1000,
    AGAIN_MS = 5,
    TRANSFERS_PER_ROUND = 256,  // So that followers elect while we go on; a transfer takes a few round trips.
};
#define NS_PER_MS 1000000ull

struct handover {
    struct host *host;
    struct broker *broker;
    uint32_t node_id;
    bool is_maintenance;
    uint32_t left;   // Groups that could have another leader.
    uint32_t asked;
};

// The voters in turn, so that not one node gets everything. Not one that is behind: proposals stop while it catches up, which may
// take longer than a transfer, and the next one would stop them again. One in maintenance mode is better than none, but only
// for a node that stops. 0: there is nobody. `is_later`: there will be, when it has caught up.
static uint32_t choose_leader(const struct handover *h, uint64_t group, const struct consensus_status *s, bool *is_later)
{
    uint32_t second = 0;
    *is_later = false;
    for (uint32_t i = 0; i < s->config->count; i++) {
        const uint32_t at = (uint32_t)((group + i) % s->config->count);
        const struct member *m = &s->config->members[at];
        if (!m->is_voter || m->node_id == h->node_id || !host_node_is_alive(h->host, m->node_id)) {
            continue;
        }
        const struct broker_node *n = broker_node_by_id(h->broker, m->node_id);
        const bool is_draining = !n || n->is_draining;
        if (is_draining && h->is_maintenance) {
            continue;
        }
        if (!(s->level_at >> at & 1)) {
            *is_later = true;
        } else if (!is_draining) {
            return m->node_id;
        } else {
            second = m->node_id;
        }
    }
    return second;
}

static void hand_over(void *ctx, struct group *g)
{
    struct handover *h = ctx;
    struct consensus_status s;
    group_status(g, &s);
    if (s.role != ROLE_LEADER) {
        return;
    }
    bool is_later;
    const uint32_t to = choose_leader(h, group_id(g), &s, &is_later);
    h->left += to != 0 || is_later;
    if (to != 0 && h->asked < TRANSFERS_PER_ROUND) {
        h->asked++;
        // Busy: on its way. Other refusals: asked again in a moment.
        (void)!group_transfer(g, to);
    }
}

static uint32_t hand_over_all(struct node_worker *w)
{
    struct handover h = {.host = w->host,
                         .broker = w->broker,
                         .node_id = w->node->identity.node_id,
                         .is_maintenance = w->drain.is_maintenance};
    host_group_each(w->host, hand_over, &h);
    return h.left;
}

static void close_connections(struct node_worker *w, uint64_t now)
{
    w->drain.phase = DRAIN_CONNECTIONS;
    w->drain.until = now + CONNECTIONS_MS * NS_PER_MS;
    const uint32_t n = amqp09_close_connections(
        w->amqp, 0, w->drain.is_maintenance ? "Node was put into maintenance mode" : "broker shutdown");
    if (n > 0) {
        log_notice("worker %u: closing %u connections", w->number, n);
    }
}

struct worker_done {
    struct node *node;
    uint32_t left;
};

static void tell_done(void *arg)
{
    struct worker_done *d = arg;
    maintenance_worker_done(d->node, d->left);
    free(d);
}

static void tell_worker_0(struct node_worker *w, uint32_t left)
{
    struct worker_done *d = mem_alloc(sizeof(*d));
    *d = (struct worker_done){w->node, left};
    node_post(w->node, 0, tell_done, d);
}

static void close_listeners(struct node_worker *w)
{
    for (uint32_t i = 0; i < w->listeners_count; i++) {
        amqp09_listener_close(w->listeners[i]);
    }
    w->listeners_count = 0;
}

static void finish(struct node_worker *w)
{
    if (w->drain.is_maintenance) {
        close_listeners(w);
        w->drain.phase = DRAIN_KEPT;
        tell_worker_0(w, w->drain.left);
        return;
    }
    w->drain.phase = DRAIN_DONE;
    atomic_fetch_sub_explicit(&w->node->shared_draining, 1, memory_order_release);
}

static void turn_leaders(struct node_worker *w, uint64_t now)
{
    struct drain *d = &w->drain;
    d->left = hand_over_all(w);
    if (d->left == 0 || now >= d->until) {
        if (d->left > 0) {
            log_warning("worker %u: %u groups were not handed over in time", w->number, d->left);
        }
        close_connections(w, now);
    }
}

uint64_t drain_turn(struct node_worker *w, uint64_t now)
{
    struct drain *d = &w->drain;
    if (d->phase == DRAIN_NONE || d->phase == DRAIN_DONE) {
        return UINT64_MAX;
    }
    if (now < d->next_at) {
        return d->next_at;
    }
    d->next_at = now + AGAIN_MS * NS_PER_MS;
    if (d->phase == DRAIN_LEADERS) {
        turn_leaders(w, now);
    } else if (d->phase == DRAIN_CONNECTIONS && (amqp09_connections_count(w->amqp) == 0 || now >= d->until)) {
        finish(w);
    } else if (d->phase == DRAIN_KEPT) {
        d->next_at = now + (hand_over_all(w) > TRANSFERS_PER_ROUND ? AGAIN_MS : KEPT_AGAIN_MS) * NS_PER_MS;
    }
    return d->phase == DRAIN_DONE ? UINT64_MAX : d->next_at;
}

void drain_begin(struct node_worker *w, bool is_maintenance)
{
    for (uint32_t i = 0; i < w->listeners_count; i++) {
        amqp09_listener_stop(w->listeners[i]);
    }
    w->drain = (struct drain){.phase = DRAIN_LEADERS,
                              .is_maintenance = is_maintenance,
                              .until = clock_mono_ns(env_system_clock()) +
                                       (is_maintenance ? MAINTENANCE_LEADERS_MS : LEADERS_MS) * NS_PER_MS};
}

void drain_end(struct node_worker *w)
{
    if (w->drain.is_maintenance && w->drain.phase != DRAIN_NONE) {
        w->drain = (struct drain){.phase = DRAIN_NONE};
        close_listeners(w);
        if (atomic_load_explicit(&w->shared_is_fenced, memory_order_relaxed)) {
            node_worker_listen(w);  // Else the turn does when the node is up.
        }
    }
    tell_worker_0(w, 0);
}

static void begin(void *arg)
{
    struct node_worker *w = arg;
    if (!w->host) {
        finish(w);
        return;
    }
    drain_begin(w, false);
}

void node_drain(struct node *n, bool (*is_hurried)(void))
{
    atomic_store_explicit(&n->shared_draining, n->workers_count, memory_order_release);
    for (uint32_t i = 0; i < n->workers_count; i++) {
        worker_post(n->workers[i].worker, begin, &n->workers[i]);
    }
    const uint64_t until = clock_mono_ns(env_system_clock()) + (LEADERS_MS + CONNECTIONS_MS + 500) * NS_PER_MS;
    while (atomic_load_explicit(&n->shared_draining, memory_order_acquire) > 0 &&
           clock_mono_ns(env_system_clock()) < until && !is_hurried()) {
    }
}
