// SPDX-License-Identifier: Apache-2.0
// An orderly stop (SIGTERM): clients of other nodes should not notice it, clients of this node are told.
//
// Each worker closes its listening sockets and hands the lead of its groups to followers that are alive, so many at a
// time, while everything else goes on: who publishes through this node is served by the new leaders. When all is handed
// over, or after two seconds, connections are closed with 320 and have a second to answer. What is left then ends like in
// a crash, which loses nothing that was confirmed. Law 4: each step has an end.
#include "node/server/node.h"
#include "node/base/log.h"
#include <time.h>

enum {
    LEADERS_MS = 2000,
    CONNECTIONS_MS = 1000,
    AGAIN_MS = 5,
    TRANSFERS_PER_ROUND = 256,  // So that followers elect while we go on; a transfer takes a few round trips.
};
#define NS_PER_MS 1000000ull

struct handover {
    struct host *host;
    uint32_t node_id;
    uint32_t left;   // Groups that could have another leader.
    uint32_t asked;
};

// The voters in turn, so that not one node gets everything.
static void hand_over(void *ctx, struct group *g)
{
    struct handover *h = ctx;
    struct consensus_status s;
    group_status(g, &s);
    if (s.role != ROLE_LEADER) {
        return;
    }
    for (uint32_t i = 0; i < s.config->count; i++) {
        const struct member *m = &s.config->members[(group_id(g) + i) % s.config->count];
        if (!m->is_voter || m->node_id == h->node_id || !host_node_is_alive(h->host, m->node_id)) {
            continue;
        }
        h->left++;
        if (h->asked < TRANSFERS_PER_ROUND) {
            h->asked++;
            // Busy: on its way. Other refusals: asked again in a moment.
            (void)!group_transfer(g, m->node_id);
        }
        return;
    }
}

static void close_connections(struct node_worker *w, uint64_t now)
{
    w->drain.phase = DRAIN_CONNECTIONS;
    w->drain.until = now + CONNECTIONS_MS * NS_PER_MS;
    const uint32_t n = amqp09_close_connections(w->amqp, 0, "broker shutdown");
    if (n > 0) {
        log_notice("worker %u: closing %u connections", w->number, n);
    }
}

static void finish(struct node_worker *w)
{
    w->drain.phase = DRAIN_DONE;
    atomic_fetch_sub_explicit(&w->node->shared_draining, 1, memory_order_release);
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
        struct handover h = {.host = w->host, .node_id = w->node->identity.node_id};
        host_group_each(w->host, hand_over, &h);
        if (h.left == 0 || now >= d->until) {
            if (h.left > 0) {
                log_warning("worker %u: %u groups were not handed over in time", w->number, h.left);
            }
            close_connections(w, now);
        }
    } else if (amqp09_connections_count(w->amqp) == 0 || now >= d->until) {
        finish(w);
        return UINT64_MAX;
    }
    return d->next_at;
}

static void begin(void *arg)
{
    struct node_worker *w = arg;
    if (!w->host) {
        finish(w);
        return;
    }
    for (uint32_t i = 0; i < w->listeners_count; i++) {
        amqp09_listener_stop(w->listeners[i]);
    }
    w->drain = (struct drain){.phase = DRAIN_LEADERS,
                              .until = clock_mono_ns(env_system_clock()) + LEADERS_MS * NS_PER_MS};
}

void node_drain(struct node *n, bool (*is_hurried)(void))
{
    atomic_store_explicit(&n->shared_draining, n->workers_count, memory_order_release);
    for (uint32_t i = 0; i < n->workers_count; i++) {
        worker_post(n->workers[i].worker, begin, &n->workers[i]);
    }
    const uint64_t until = clock_mono_ns(env_system_clock()) + (LEADERS_MS + CONNECTIONS_MS + 500) * NS_PER_MS;
    while (atomic_load_explicit(&n->shared_draining, memory_order_acquire) > 0 && clock_mono_ns(env_system_clock()) < until &&
           !is_hurried()) {
    }
}
