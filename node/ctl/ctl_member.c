// SPDX-License-Identifier: Apache-2.0
// Changing the members of one queue, from whichever node was asked: the leader does it
// (broker_member_change), so it is looked for and asked again until it has answered or the time is over
// (decision 18). Runs on worker 0.
//
// Only answers that another try could change are asked again: no leader here, busy, on its way. Asking twice
// does no harm, since what is asked for is a state ("the node has a replica"), not a step.
#include "node/base/mem.h"
#include "node/ctl/internal.h"
#include <stdio.h>
#include <stdlib.h>

enum { AGAIN_MS = 20, ASK_GRACE_MS = 500 };
#define NS_PER_MS UINT64_C(1000000)

// Result codes between nodes, by name: numbers may differ between versions.
static const struct {
    enum rc rc;
    const char *name;
} codes[] = {{RC_OK, "ok"},
             {RC_EXISTS, "exists"},
             {RC_NOT_LEADER, "not_leader"},
             {RC_BUSY, "busy"},
             {RC_INVALID, "invalid"},
             {RC_NOT_FOUND, "not_found"},
             {RC_TIMEOUT, "timeout"},
             {RC_NOT_CONNECTED, "not_connected"},
             {RC_TOO_LARGE, "too_large"},
             {RC_NO_QUORUM, "no_quorum"}};
enum { CODES = sizeof(codes) / sizeof(codes[0]) };

static const char *code_name(enum rc rc)
{
    for (int i = 0; i < CODES; i++) {
        if (codes[i].rc == rc) {
            return codes[i].name;
        }
    }
    return "timeout";
}

static enum rc code_parse(const char *name)
{
    for (int i = 0; name && i < CODES; i++) {
        if (strcmp(codes[i].name, name) == 0) {
            return codes[i].rc;
        }
    }
    return RC_TIMEOUT;
}

// ---- the asking side ---------------------------------------------------------------------------------------------

struct call {
    struct ctl *ctl;
    char *vhost, *queue;
    struct broker_member_change what;
    uint64_t deadline_ns;
    uint32_t leader, next_member;
    char text[256];
    enum rc rc;  // Of the latest try.
    ctl_member_fn *done;
    void *ctx;
    struct ctl_timer timer;
};

static void finish(struct call *c, enum rc rc, const char *text)
{
    c->done(c->ctx, rc, text);
    free(c->vhost);
    free(c->queue);
    free(c);
}

static void attempt(void *arg);

static void again(struct call *c)
{
    const uint64_t now = host_now(c->ctl->config.host);
    if (now + AGAIN_MS * NS_PER_MS >= c->deadline_ns) {
        const bool has_leader = c->rc != RC_NOT_LEADER;
        finish(c, has_leader ? c->rc : RC_NO_QUORUM,
               has_leader ? c->text : "the queue has no leader: too few of its members are up");
        return;
    }
    ctl_after(c->ctl, AGAIN_MS, attempt, c, &c->timer);
}

static void on_answer(void *ctx, json_t *answer)
{
    struct call *c = ctx;
    json_t *o = json_object_get(answer, "object");
    const char *result = json_string_value(json_object_get(o, "result")),
               *text = json_string_value(json_object_get(o, "text"));
    c->rc = result ? code_parse(result) : RC_NOT_LEADER;
    c->leader = (uint32_t)json_integer_value(json_object_get(o, "leader"));
    snprintf(c->text, sizeof(c->text), "%s", text ? text : "");
    json_decref(answer);
    if (c->rc == RC_NOT_LEADER || c->rc == RC_BUSY) {
        again(c);
    } else {
        finish(c, c->rc, c->text);
    }
}

static void ask(struct call *c, uint32_t node)
{
    struct ctl *ctl = c->ctl;
    const uint64_t now = host_now(ctl->config.host),
                   left = c->deadline_ns > now ? (c->deadline_ns - now) / NS_PER_MS : 0;
    char group[32], kind[16], target[16], how[16], timeout[32];
    snprintf(group, sizeof(group), "%llu", (unsigned long long)c->what.group);
    snprintf(kind, sizeof(kind), "%s", c->what.is_removal ? "remove" : "add");
    snprintf(target, sizeof(target), "%u", c->what.node_id);
    snprintf(how, sizeof(how), "%d", (int)c->what.how);
    snprintf(timeout, sizeof(timeout), "%llu", (unsigned long long)left);
    json_t *request = json_pack("{s:s, s:[s, s, s, s, s], s:{}}", "verb", "local_change", "args", group, kind,
                                target, how, timeout, "options");
    if (node == ctl->config.node_id) {
        ctl_run(ctl, request, on_answer, c);
        json_decref(request);
    } else {
        ctl_ask(ctl, node, request, (uint32_t)left + ASK_GRACE_MS, on_answer, c);
    }
}

static bool is_up(struct ctl *ctl, uint32_t node)
{
    return node == ctl->config.node_id || host_node_is_alive(ctl->config.host, node);
}

// The leader if anybody knows it, else the members by turns.
static void attempt(void *arg)
{
    struct call *c = arg;
    struct broker_vhost *v = broker_vhost_find(c->ctl->broker, span_str(c->vhost));
    const struct broker_queue *q = v ? broker_queue_find(v, span_str(c->queue)) : NULL;
    if (!q || q->target->group != c->what.group) {
        finish(c, RC_NOT_FOUND, "the queue was deleted");
        return;
    }
    if (c->leader != 0 && is_up(c->ctl, c->leader)) {
        ask(c, c->leader);
        return;
    }
    for (uint32_t i = 0; i < q->target->members_count; i++) {
        const uint32_t node = q->target->members[c->next_member++ % q->target->members_count].node_id;
        if (is_up(c->ctl, node)) {
            ask(c, node);
            return;
        }
    }
    c->rc = RC_NOT_LEADER;
    again(c);
}

void ctl_member_change(struct ctl *ctl, struct span vhost, const struct broker_queue *q,
                       const struct broker_member_change *what, uint32_t timeout_ms, ctl_member_fn *done,
                       void *ctx)
{
    struct call *c = mem_zalloc(sizeof(*c));
    *c = (struct call){.ctl = ctl,
                       .vhost = mem_strndup(vhost.ptr, vhost.len),
                       .queue = mem_strndup(q->name.ptr, q->name.len),
                       .what = *what,
                       .deadline_ns = host_now(ctl->config.host) + timeout_ms * NS_PER_MS,
                       .rc = RC_NOT_LEADER,
                       .done = done,
                       .ctx = ctx};
    c->what.group = q->target->group;
    ctl_after(ctl, 0, attempt, c, &c->timer);
}

// ---- the leader's side -------------------------------------------------------------------------------------------

struct local_change {
    struct ctl_request *request;
    struct ctl *ctl;
    struct broker_member_change what;
    uint32_t worker, timeout_ms, leader;
    enum rc rc;
    char text[256];
};

static void local_answer(void *arg)
{
    struct local_change *l = arg;
    ctl_object(l->request, json_pack("{s:s, s:o, s:I}", "result", code_name(l->rc), "text", json_text(l->text), "leader",
                                     (json_int_t)l->leader));
    free(l);
}

static void on_changed(void *ctx, const struct broker_result *result)
{
    struct local_change *l = ctx;
    const struct ctl_config *c = &l->ctl->config;
    struct queue_info info;
    struct consensus_status status;
    if (queue_replica_info(c->queues(c->ctx, l->worker), l->what.group, &info, &status)) {
        l->leader = status.leader_node;
    }
    l->rc = result->rc;
    snprintf(l->text, sizeof(l->text), "%s", result->text);
    c->post(c->ctx, 0, local_answer, l);
}

static void change_there(void *arg)
{
    struct local_change *l = arg;
    const struct ctl_config *c = &l->ctl->config;
    broker_member_change(c->broker_of(c->ctx, l->worker), &l->what, l->timeout_ms, on_changed, l);
}

void verb_local_change(struct ctl_request *r)
{
    const struct ctl_config *c = &r->ctl->config;
    struct local_change *l = mem_zalloc(sizeof(*l));
    l->request = r;
    l->ctl = r->ctl;
    l->what.group = strtoull(request_arg(r, 0), NULL, 10);
    l->what.is_removal = strcmp(request_arg(r, 1), "remove") == 0;
    l->what.node_id = (uint32_t)strtoul(request_arg(r, 2), NULL, 10);
    l->what.how = (enum broker_member_how)(strtoul(request_arg(r, 3), NULL, 10) % 3);
    l->timeout_ms = (uint32_t)strtoul(request_arg(r, 4), NULL, 10);
    l->worker = c->worker_of(c->ctx, l->what.group);
    c->post(c->ctx, l->worker, change_there, l);
}
