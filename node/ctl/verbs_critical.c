// SPDX-License-Identifier: Apache-2.0
// Would stopping this node cost a group its majority (operator-plane §5.5)? check_if_node_is_quorum_critical asks once,
// await_online_quorum_plus_one until the answer is no.
//
// Each worker looks at its groups in turn: critical is one with a voter here of whose n voters no more than
// n/2 + 1 are up. A cluster of one node and a node in maintenance mode pass. Asked of the node concerned: its
// own view counts.
#include "node/ctl/internal.h"
#include "node/base/mem.h"
#include <stdio.h>
#include <stdlib.h>

enum { NAMED_MAX = 20, AGAIN_MS = 200 };

struct critical {
    struct ctl_request *request;
    uint32_t worker;       // Whose groups are looked at.
    uint32_t count;        // Critical so far.
    uint64_t groups[NAMED_MAX];
    bool is_waiting;       // await_online_quorum_plus_one
    uint64_t deadline_ns;
    uv_timer_t timer;
};

static void look_at_group(void *ctx, struct group *g)
{
    struct critical *c = ctx;
    const uint32_t self = c->request->ctl->config.node_id;
    struct consensus_status s;
    group_status(g, &s);
    const struct member *own = config_find_node(s.config, self);
    if (!own || !own->is_voter) {
        return;
    }
    uint32_t up = 0;
    for (uint32_t i = 0; i < s.config->count; i++) {
        const struct member *m = &s.config->members[i];
        up += m->is_voter && (m->node_id == self || host_node_is_alive(group_host(g), m->node_id));
    }
    if (up <= config_voters(s.config) / 2 + 1) {
        if (c->count < NAMED_MAX) {
            c->groups[c->count] = group_id(g);
        }
        c->count++;
    }
}

struct namer {
    const struct critical *critical;
    const char *vhost;
    struct buf *out;
};

static void name_queue(void *ctx, const struct broker_queue *q)
{
    struct namer *n = ctx;
    for (uint32_t i = 0; i < n->critical->count && i < NAMED_MAX; i++) {
        if (n->critical->groups[i] == q->target->group) {
            buf_printf(n->out, "\n%.*s in virtual host '%s'", (int)q->name.len, (const char *)q->name.ptr, n->vhost);
        }
    }
}

static void name_vhost(void *ctx, struct broker_vhost *v, struct span name)
{
    struct namer *n = ctx;
    char vhost[META_NAME_MAX + 1];
    snprintf(vhost, sizeof(vhost), "%.*s", (int)name.len, (const char *)name.ptr);
    n->vhost = vhost;
    broker_queue_each(v, name_queue, n);
}

static void fail(struct critical *c)
{
    struct ctl_request *r = c->request;
    struct buf names = {0};
    for (uint32_t i = 0; i < c->count && i < NAMED_MAX; i++) {
        if (c->groups[i] == META_GROUP_ID) {
            buf_printf(&names, "\nmetadata store");
        }
    }
    struct namer n = {.critical = c, .out = &names};
    broker_vhost_each(r->ctl->broker, name_vhost, &n);
    if (c->count > NAMED_MAX) {
        buf_printf(&names, "\nand %u more", c->count - NAMED_MAX);
    }
    ctl_error(r, EXIT_UNAVAILABLE, "%sNode %s reported local queues with minimum online quorum:%.*s",
              c->is_waiting ? "Error: timed out. " : "", r->ctl->config.node_name, (int)names.len,
              (const char *)names.ptr);
    buf_deinit(&names);
}

static void timer_closed(uv_handle_t *h)
{
    free(h->data);
}

static void end(struct critical *c)
{
    if (c->is_waiting) {
        uv_close((uv_handle_t *)&c->timer, timer_closed);
    } else {
        free(c);
    }
}

static void begin(struct critical *c);

static void on_timer(uv_timer_t *t)
{
    begin(t->data);
}

static void finish(void *arg)
{
    struct critical *c = arg;
    struct ctl_request *r = c->request;
    if (c->count == 0) {
        char text[400];
        snprintf(text, sizeof(text), "Node %s reported no queues with minimum quorum", r->ctl->config.node_name);
        ctl_ok(r, text);
    } else if (c->is_waiting && clock_mono_ns(env_system_clock()) < c->deadline_ns) {
        uv_timer_start(&c->timer, on_timer, AGAIN_MS, 0);
        return;
    } else {
        fail(c);
    }
    end(c);
}

static void look(void *arg)
{
    struct critical *c = arg;
    const struct ctl_config *config = &c->request->ctl->config;
    host_group_each(config->host_of(config->ctx, c->worker), look_at_group, c);
    const bool is_last = ++c->worker == config->workers;
    config->post(config->ctx, is_last ? 0 : c->worker, is_last ? finish : look, c);
}

static void count_node(void *ctx, const struct broker_node *n)
{
    (void)n;
    ++*(uint32_t *)ctx;
}

static void begin(struct critical *c)
{
    struct ctl *ctl = c->request->ctl;
    uint32_t nodes = 0;
    broker_node_each(ctl->broker, count_node, &nodes);
    c->worker = c->count = 0;
    const bool passes = nodes < 2 || ctl->config.is_draining(ctl->config.ctx);
    ctl->config.post(ctl->config.ctx, 0, passes ? finish : look, c);
}

void verb_check_critical(struct ctl_request *r)
{
    struct critical *c = mem_zalloc(sizeof(*c));
    c->request = r;
    begin(c);
}

void verb_await_quorum_plus_one(struct ctl_request *r)
{
    struct critical *c = mem_zalloc(sizeof(*c));
    *c = (struct critical){.request = r, .is_waiting = true};
    c->deadline_ns = clock_mono_ns(env_system_clock()) + (uint64_t)(atof(request_option(r, "timeout", "120")) * 1e9);
    uv_timer_init(r->ctl->config.loop, &c->timer);
    c->timer.data = c;
    begin(c);
}
