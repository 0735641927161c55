// SPDX-License-Identifier: Apache-2.0
// Verbs about one queue: quorum_status, transfer_leadership, delete_queue, purge_queue (operator-plane §1.5).
#include "node/base/mem.h"
#include "node/ctl/internal.h"
#include <stdio.h>
#include <stdlib.h>

enum { NODE_TIMEOUT_MS = 2000 };

static const struct broker_queue *request_queue(struct ctl_request *r)
{
    struct broker_vhost *v = request_vhost(r);
    if (!v) {
        return NULL;
    }
    const struct broker_queue *q = broker_queue_find(v, span_str(request_arg(r, 0)));
    if (!q) {
        ctl_error(r, EXIT_DATAERR, "queue '%s' was not found in virtual host '%s'", request_arg(r, 0),
                  request_option(r, "vhost", "/"));
    }
    return q;
}

// ---- quorum_status -----------------------------------------------------------------------------------------------

static const char *const member_columns[] = {
    "Node Name",    "Raft State",   "Membership",     "Last Log Index", "Last Written",
    "Last Applied", "Commit Index", "Snapshot Index", "Term",           "Machine Version"};
enum { MEMBER_COLUMNS = sizeof(member_columns) / sizeof(member_columns[0]) };

struct members {
    struct ctl_request *request;
    json_t *rows[LIMIT_VOTERS];  // In the order of the members.
    uint32_t count, waiting;
    bool is_asking;
};
struct member_ask {
    struct members *all;
    uint32_t at;
    char node[256];
    const char *membership;  // For a member that does not say how it sees itself.
};

static void members_done(struct members *m)
{
    if (m->waiting > 0 || m->is_asking) {
        return;
    }
    json_t *columns = json_array();
    for (int i = 0; i < MEMBER_COLUMNS; i++) {
        json_array_append_new(columns, json_string(member_columns[i]));
    }
    json_t *rows = json_array();
    for (uint32_t i = 0; i < m->count; i++) {
        json_array_append_new(rows, m->rows[i]);
    }
    char banner[600];
    snprintf(banner, sizeof(banner), "Status of quorum queue %s on node %s ...", request_arg(m->request, 0),
             m->request->ctl->config.node_name);
    ctl_list(m->request, banner, columns, rows);
    free(m);
}

static void on_member(void *ctx, json_t *answer)
{
    struct member_ask *a = ctx;
    struct members *m = a->all;
    json_t *row = json_object_get(json_object_get(answer, "object"), "row");
    if (row) {
        m->rows[a->at] = json_incref(row);
        if (strcmp(json_string_value(json_array_get(row, 2)), "") == 0) {
            json_array_set_new(row, 2, json_string(a->membership));
        }
    } else {
        m->rows[a->at] = json_pack("[s, s]", a->node, "noproc");
        for (int i = 2; i < MEMBER_COLUMNS; i++) {
            json_array_append_new(m->rows[a->at], json_string(""));
        }
    }
    json_decref(answer);
    free(a);
    m->waiting--;
    members_done(m);
}

void verb_quorum_status(struct ctl_request *r)
{
    struct ctl *c = r->ctl;
    const struct broker_queue *q = request_queue(r);
    if (!q) {
        return;
    }
    struct members *m = mem_zalloc(sizeof(*m));
    *m = (struct members){.request = r, .is_asking = true};
    char group[32];
    snprintf(group, sizeof(group), "%llu", (unsigned long long)q->target->group);
    struct queue_target t;
    queue_target_copy(&t, q->target);
    const uint8_t non_voters = q->non_voters;
    for (uint32_t i = 0; i < t.members_count; i++) {
        if (!broker_node_by_id(c->broker, t.members[i].node_id)) {
            continue;  // A place that waits for another node.
        }
        struct member_ask *a = mem_zalloc(sizeof(*a));
        *a = (struct member_ask){.all = m,
                                 .at = m->count++,
                                 .membership = non_voters >> i & 1 ? "non_voter" : "promotable"};
        snprintf(a->node, sizeof(a->node), "%s", node_name_of(c, t.members[i].node_id));
        json_t *request = json_pack("{s:s, s:[s], s:{}}", "verb", "local_member", "args", group, "options");
        m->waiting++;
        if (t.members[i].node_id == c->config.node_id) {
            ctl_run(c, request, on_member, a);
            json_decref(request);
        } else {
            ctl_ask(c, t.members[i].node_id, request, NODE_TIMEOUT_MS, on_member, a);
        }
    }
    m->is_asking = false;
    members_done(m);
}

static void on_local_member(void *ctx, const struct ctl_replica *p)
{
    struct ctl_request *r = ctx;
    struct ctl *c = r->ctl;
    static const char *const roles[] = {"follower", "pre_vote", "candidate", "leader"};
    if (!p->is_here) {
        ctl_error(r, EXIT_UNAVAILABLE, "no replica of group %llu here", (unsigned long long)p->group);
        return;
    }
    const struct consensus_status *s = &p->status;
    const struct member *self = config_find_node(s->config, c->config.node_id);
    ctl_object(r, json_pack("{s:[s, s, s, I, I, I, I, I, I, i]}", "row", c->config.node_name, roles[s->role],
                            self && self->is_voter ? "voter" : "", (json_int_t)s->last,
                            (json_int_t)s->durable, (json_int_t)s->applied, (json_int_t)s->commit,
                            (json_int_t)s->snapshot, (json_int_t)s->term, 1));
}

void verb_local_member(struct ctl_request *r)
{
    ctl_look(r->ctl, strtoull(request_arg(r, 0), NULL, 10), 0, on_local_member, r);
}

// ---- transfer_leadership -----------------------------------------------------------------------------------------

static void on_transferred(void *ctx, json_t *answer)
{
    ctl_answer(ctx, answer);
}

struct transfer {
    struct ctl_request *request;
    struct queue_target target;
    uint32_t node;
};

static void on_leader_known(void *ctx, const struct ctl_replica *p)
{
    struct transfer *t = ctx;
    struct ctl_request *r = t->request;
    struct ctl *c = r->ctl;
    uint32_t leader = p->is_here ? p->status.leader_node : 0;
    // Without a replica of our own any member knows who leads; the first one that is up passes it on.
    for (uint32_t i = 0; leader == 0 && i < t->target.members_count; i++) {
        uint32_t node = t->target.members[i].node_id;
        leader = host_node_is_alive(c->config.host, node) ? node : 0;
    }
    char group[32], node_id[32];
    snprintf(group, sizeof(group), "%llu", (unsigned long long)t->target.group);
    snprintf(node_id, sizeof(node_id), "%u", t->node);
    free(t);
    json_t *request = json_pack("{s:s, s:[s, s], s:{}}", "verb", "local_transfer", "args", group, node_id, "options");
    if (leader == c->config.node_id) {
        ctl_run(c, request, on_transferred, r);
        json_decref(request);
    } else if (leader != 0) {
        ctl_ask(c, leader, request, NODE_TIMEOUT_MS, on_transferred, r);
    } else {
        json_decref(request);
        ctl_error(r, EXIT_UNAVAILABLE, "Error: queue '%s' has no leader now", request_arg(r, 0));
    }
}

void verb_transfer_leadership(struct ctl_request *r)
{
    const struct broker_queue *q = request_queue(r);
    if (!q) {
        return;
    }
    const char *to = request_arg(r, 1);
    const struct broker_node *n = broker_node_find(r->ctl->broker, span_str(to));
    bool is_member = false;
    for (uint32_t i = 0; n && i < q->target->members_count; i++) {
        is_member = is_member || q->target->members[i].node_id == n->node_id;
    }
    if (!is_member) {
        ctl_error(r, EXIT_DATAERR, "Error: node '%s' has no replica of queue '%s'", to, request_arg(r, 0));
        return;
    }
    struct transfer *t = mem_zalloc(sizeof(*t));
    *t = (struct transfer){.request = r, .node = n->node_id};
    queue_target_copy(&t->target, q->target);
    ctl_look(r->ctl, q->target->group, 0, on_leader_known, t);
}

static void on_local_transfer(void *ctx, const struct ctl_replica *p)
{
    if (p->rc == RC_OK || p->rc == RC_EXISTS) {
        ctl_ok(ctx, p->rc == RC_EXISTS ? "the node leads the queue already" : NULL);
    } else {
        ctl_error(ctx, EXIT_UNAVAILABLE, "Error: leadership was not transferred: %s", rc_text(p->rc));
    }
}

void verb_local_transfer(struct ctl_request *r)
{
    uint64_t id = strtoull(request_arg(r, 0), NULL, 10);
    uint32_t node = (uint32_t)strtoul(request_arg(r, 1), NULL, 10);
    if (node == 0) {
        ctl_error(r, EXIT_USAGE, "no node");
        return;
    }
    ctl_look(r->ctl, id, node, on_local_transfer, r);
}

// ---- delete, purge -----------------------------------------------------------------------------------------------

struct removal {
    struct ctl_request *request;
    uint64_t ready;
};

static void on_deleted(void *ctx, const struct broker_result *result)
{
    struct removal *d = ctx;
    if (result->rc == RC_OK) {
        char text[100];
        snprintf(text, sizeof(text), "Queue was successfully deleted with %llu ready messages",
                 (unsigned long long)d->ready);
        ctl_ok(d->request, text);
    } else {
        ctl_error(d->request, result->code == 541 ? EXIT_TEMPFAIL : EXIT_USAGE, "Error: %s", result->text);
    }
    free(d);
}

static void on_counted(void *ctx, enum rc rc, const struct queue_info *info)
{
    struct removal *d = ctx;
    struct broker_vhost *v = request_vhost(d->request);
    if (!v) {
        free(d);
        return;
    }
    d->ready = rc == RC_OK ? info->ready : 0;
    broker_queue_delete(d->request->ctl->broker, v, span_str(""), span_str(request_arg(d->request, 0)), false,
                        false, on_deleted, d);
}

void verb_delete_queue(struct ctl_request *r)
{
    const struct broker_queue *q = request_queue(r);
    if (q) {
        struct removal *d = mem_zalloc(sizeof(*d));
        d->request = r;
        queue_info_get(r->ctl->queues, q->target, NODE_TIMEOUT_MS, on_counted, d);
    }
}

static void on_purged(void *ctx, struct queue_session *s, uint64_t token, uint64_t count)
{
    (void)token;
    (void)count;
    ctl_ok(ctx, NULL);
    queue_session_close(s);
}

static void on_purge_ended(void *ctx, struct queue_session *s, bool is_deleted)
{
    (void)s;
    (void)is_deleted;
    ctl_error(ctx, EXIT_UNAVAILABLE, "Error: the queue went away");
}

void verb_purge_queue(struct ctl_request *r)
{
    static const struct queue_callbacks callbacks = {.purge_done = on_purged, .ended = on_purge_ended};
    const struct broker_queue *q = request_queue(r);
    if (q) {
        struct queue_session *s = queue_session_open(r->ctl->queues, q->target, &callbacks, r);
        queue_session_purge(s, 1);
    }
}
