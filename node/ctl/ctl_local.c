// SPDX-License-Identifier: Apache-2.0
// What only another worker of this node knows: its replicas. A question is carried to the worker that owns
// the group and back; the asker goes on on worker 0.
#include "node/base/mem.h"
#include "node/ctl/internal.h"
#include <stdlib.h>

struct look {
    struct ctl *ctl;
    struct ctl_replica replica;
    struct config config;
    uint32_t transfer_to;  // 0: only look.
    bool must_wake;
    uint32_t waited_ms;
    struct ctl_timer timer;
    ctl_look_fn *done;
    void *ctx;
};

enum { AGAIN_MS = 20 };

static void look(void *arg);

static void look_again(void *arg)
{
    struct look *l = arg;
    struct ctl_config *c = &l->ctl->config;
    c->post(c->ctx, c->worker_of(c->ctx, l->replica.group), look, l);
}

static void answer(void *arg)
{
    struct look *l = arg;
    if (l->must_wake && l->replica.is_asleep && l->waited_ms < CTL_WAKE_MS) {
        l->waited_ms += AGAIN_MS;
        ctl_after(l->ctl, AGAIN_MS, look_again, l, &l->timer);
        return;
    }
    l->done(l->ctx, &l->replica);
    free(l);
}

static void transfer(struct look *l, struct host *host)
{
    struct ctl_replica *r = &l->replica;
    struct group *g = host_group_find(host, r->group);
    r->rc = RC_NOT_FOUND;
    if (g) {
        bool is_done = r->status.role == ROLE_LEADER && l->transfer_to == l->ctl->config.node_id;
        r->rc = is_done ? RC_EXISTS : group_transfer(g, l->transfer_to);
    }
}

// On the worker that owns the group.
static void look(void *arg)
{
    struct look *l = arg;
    struct ctl_config *c = &l->ctl->config;
    uint32_t worker = c->worker_of(c->ctx, l->replica.group);
    struct ctl_replica *r = &l->replica;
    r->is_here = queue_replica_info(c->queues(c->ctx, worker), r->group, &r->info, &r->status);
    if (r->is_here && r->status.config) {
        config_copy(&l->config, r->status.config);  // Borrowed from the replica while on its thread.
        r->status.config = &l->config;
    }
    struct group *g = r->is_here ? host_group_find(c->host_of(c->ctx, worker), r->group) : NULL;
    r->is_asleep = g && group_is_asleep(g);
    if (r->is_asleep && l->must_wake) {
        group_wake(g);
    }
    if (l->transfer_to != 0) {
        transfer(l, c->host_of(c->ctx, worker));
    }
    c->post(c->ctx, 0, answer, l);
}

void ctl_look(struct ctl *c, uint64_t group, uint32_t transfer_to, ctl_look_fn *done, void *ctx)
{
    struct look *l = mem_zalloc(sizeof(*l));
    *l = (struct look){.ctl = c, .replica = {.group = group}, .transfer_to = transfer_to, .done = done, .ctx = ctx};
    look_again(l);
}

void ctl_look_awake(struct ctl *c, uint64_t group, ctl_look_fn *done, void *ctx)
{
    struct look *l = mem_zalloc(sizeof(*l));
    *l = (struct look){.ctl = c, .replica = {.group = group}, .must_wake = true, .done = done, .ctx = ctx};
    look_again(l);
}
