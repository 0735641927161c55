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
    ctl_look_fn *done;
    void *ctx;
};

static void answer(void *arg)
{
    struct look *l = arg;
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
    if (r->is_here && r->status.leader_node == 0) {
        group_wake(host_group_find(c->host_of(c->ctx, worker), r->group));  // Nobody else can tell what it holds.
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
    c->config.post(c->config.ctx, c->config.worker_of(c->config.ctx, group), look, l);
}
