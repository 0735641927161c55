// SPDX-License-Identifier: Apache-2.0
// Letting nodes in (decision 6): what a member does with a JOIN. Worker 0. formation_admit decides; this file
// looks and acts.
//
// A new name gets a record, with ids that are given by the store in the same command. A known name with its
// own store id is told its ids again: it crashed before it had written them down. A known name with another
// store id is a member that lost its disk (law 2): the leader of the metadata group commits a record in the
// place of the old one, with new ids, which retires the old node id for ever. The metadata group and the
// queues follow the records: the new replicas come as learners, those of the retired id leave (member.c; the
// queues' reconciliation).
//
// Nothing here makes anybody vote: a blank node is no member of any group before a committed configuration
// names its ids.
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/server/node.h"
#include <stdio.h>
#include <stdlib.h>

// One request whose record is being committed.
struct admitting {
    struct node *node;
    struct join_request request;
    bool is_replacing;
};

static void send_reply(struct node *n, const char *to, const struct join_reply *r)
{
    struct buf envelope = {0};
    join_reply_encode(&envelope, r);
    // If it cannot be sent, the node asks again.
    (void)!peer_net_send_named(n->peers, to, FRAME_JOIN_REPLY, buf_span(&envelope));
    buf_deinit(&envelope);
}

// `ask`: who decides instead, or NULL.
static void refuse(struct node *n, const struct join_request *q, enum join_result result, const char *text,
                   const struct broker_node *ask)
{
    struct join_reply r = {.token = q->token, .result = result};
    snprintf(r.text, sizeof(r.text), "%s", text);
    if (ask) {
        snprintf(r.ask, sizeof(r.ask), "%.*s", (int)ask->name.len, (const char *)ask->name.ptr);
        snprintf(r.ask_address, sizeof(r.ask_address), "%.*s", (int)ask->address.len, (const char *)ask->address.ptr);
    }
    send_reply(n, q->name, &r);
}

struct node_table {
    struct join_reply *reply;
};

static void add_node(void *ctx, const struct broker_node *b)
{
    struct node_table *t = ctx;
    if (t->reply->nodes_len == JOIN_NODES_MAX) {
        return;
    }
    struct join_node *j = &t->reply->nodes[t->reply->nodes_len++];
    *j = (struct join_node){.node_id = b->node_id};
    memcpy(j->store_id, b->store_id.ptr, b->store_id.len < STORE_ID_BYTES ? b->store_id.len : STORE_ID_BYTES);
    snprintf(j->name, sizeof(j->name), "%.*s", (int)b->name.len, (const char *)b->name.ptr);
    snprintf(j->address, sizeof(j->address), "%.*s", (int)b->address.len, (const char *)b->address.ptr);
}

static void accept_node(struct node *n, const struct join_request *q, const struct broker_node *known)
{
    struct consensus_status s;
    group_status(metastore_group(n->metastore), &s);
    struct join_reply r = {.token = q->token,
                           .result = JOIN_OK,
                           .node_id = known->node_id,
                           .replica_id = known->replica_id};
    memcpy(r.cluster_id, n->identity.cluster_id, sizeof(r.cluster_id));
    for (uint32_t i = 0; i < s.config->count; i++) {
        const struct member *m = &s.config->members[i];
        if (m->replica_id != known->replica_id) {
            r.members[r.members_len++] = (struct join_meta_member){m->replica_id, m->node_id, m->is_voter};
        }
    }
    r.nodes = calloc(JOIN_NODES_MAX, sizeof(*r.nodes));
    struct node_table t = {&r};
    broker_node_each(n->workers[0].broker, add_node, &t);
    send_reply(n, q->name, &r);
    free(r.nodes);
}

static bool is_its_store(const struct broker_node *known, const struct join_request *q)
{
    return known->store_id.len == STORE_ID_BYTES && memcmp(known->store_id.ptr, q->store_id, STORE_ID_BYTES) == 0;
}

static void on_recorded(void *ctx, const struct broker_result *result)
{
    struct admitting *a = ctx;
    struct node *n = a->node;
    n->is_replacing = n->is_replacing && !a->is_replacing;
    n->admitting--;
    const struct broker_node *known = broker_node_find(n->workers[0].broker, span_str(a->request.name));
    if (result->rc == RC_OK && known && !is_its_store(known, &a->request)) {
        refuse(n, &a->request, JOIN_RETRY, "another node of this name was faster", NULL);
    } else if (result->rc == RC_OK && known) {
        accept_node(n, &a->request, known);
    } else {
        refuse(n, &a->request, JOIN_RETRY,
               result->rc == RC_OK ? "the node record is not here yet" : result->text, NULL);
    }
    free(a);
}

struct voters {
    struct node *node;
    uint32_t lost;  // Node id of the member that lost its disk.
    char missing[200];
};

static bool is_here(struct voters *v, uint32_t node_id)
{
    return node_id != v->lost &&
           (node_id == v->node->identity.node_id || host_node_is_alive(v->node->workers[0].host, node_id));
}

static void count_voters(struct voters *v, const struct config *c, struct admission_view *out)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (!c->members[i].is_voter) {
            continue;
        }
        const uint32_t id = c->members[i].node_id;
        const struct broker_node *b = broker_node_by_id(v->node->workers[0].broker, id);
        out->voters++;
        if (is_here(v, id)) {
            out->voters_up++;
        } else if (id != v->lost && b) {
            const size_t used = strlen(v->missing);
            snprintf(v->missing + used, sizeof(v->missing) - used, "%s%.*s", used ? ", " : "",
                     (int)b->name.len, (const char *)b->name.ptr);
        }
    }
    out->missing = v->missing;
}

// Queues that a disk is to be given up for although their other members are short of a majority.
struct at_risk {
    struct voters *voters;
    uint32_t count;
    char first[200];
};

static bool is_queue_node_here(void *ctx, uint32_t node_id)
{
    return is_here(ctx, node_id);
}

static void look_at_queue(void *ctx, const struct broker_queue *q)
{
    struct at_risk *r = ctx;
    if (broker_queue_without(q, r->voters->lost, is_queue_node_here, r->voters) != QUEUE_LIVES && r->count++ == 0) {
        snprintf(r->first, sizeof(r->first), "%.*s", (int)q->name.len, (const char *)q->name.ptr);
    }
}

static void look_at_vhost(void *ctx, struct broker_vhost *v, struct span name)
{
    (void)name;
    broker_queue_each(v, look_at_queue, ctx);
}

// The node still has the disk, however doubtful: it may hold what a queue without a majority of its other
// members lacks.
static bool is_needed(struct node *n, const struct join_request *q, struct voters *v)
{
    if (!q->has_data) {
        return false;
    }
    struct at_risk r = {.voters = v};
    broker_vhost_each(n->workers[0].broker, look_at_vhost, &r);
    if (r.count > 0) {
        char text[PEER_TEXT_MAX + 1];
        snprintf(text, sizeof(text),
                 "%u queues need a majority of their other members first, for example '%s'", r.count,
                 r.first);
        refuse(n, q, JOIN_RETRY, text, NULL);
    }
    return r.count > 0;
}

static void make_record(struct node *n, const struct join_request *q, const struct broker_node *known)
{
    struct broker *b = n->workers[0].broker;
    struct admitting *a = mem_zalloc(sizeof(*a));
    *a = (struct admitting){.node = n, .request = *q, .is_replacing = known != NULL};
    n->admitting++;
    if (known) {
        log_notice("node %s has lost its disk: it gets a new identity, node id %u is retired", q->name, known->node_id);
        n->is_replacing = true;
        broker_node_replace(b, known, span_of(a->request.store_id, STORE_ID_BYTES),
                            span_str(a->request.address), on_recorded, a);
    } else {
        broker_node_put(b, span_str(a->request.name), span_of(a->request.store_id, STORE_ID_BYTES),
                        span_str(a->request.address), on_recorded, a);
    }
}

static void answer(struct node *n, const struct join_request *q)
{
    struct broker *b = n->workers[0].broker;
    const struct broker_node *known = broker_node_find(b, span_str(q->name));
    struct consensus_status s;
    group_status(metastore_group(n->metastore), &s);
    const struct broker_node *leader = s.leader_node ? broker_node_by_id(b, s.leader_node) : NULL;
    char leader_name[PEER_NAME_MAX + 1] = "";
    if (leader) {
        snprintf(leader_name, sizeof(leader_name), "%.*s", (int)leader->name.len, (const char *)leader->name.ptr);
    }
    struct voters voters = {.node = n, .lost = known ? known->node_id : 0};
    struct admission_view v = {
        .is_known = known != NULL,
        .is_same_store = known && is_its_store(known, q),
        .is_former_alive = known && host_node_is_alive(n->workers[0].host, known->node_id),
        .is_leading = s.role == ROLE_LEADER && s.is_ready,
        .leader = leader_name,
        .is_changing = n->is_replacing,
    };
    count_voters(&voters, s.config, &v);
    char reason[FORMATION_REASON_BYTES];
    switch (formation_admit(&v, reason)) {
    case ADMISSION_KNOWN:
        accept_node(n, q, known);
        break;
    case ADMISSION_NEW:
        make_record(n, q, NULL);
        break;
    case ADMISSION_REPLACE:
        if (!is_needed(n, q, &voters)) {
            make_record(n, q, known);
        }
        break;
    case ADMISSION_ASK:
        refuse(n, q, JOIN_RETRY, reason, s.leader_node != n->identity.node_id ? leader : NULL);
        break;
    case ADMISSION_WAIT:
        refuse(n, q, JOIN_RETRY, reason, NULL);
        break;
    }
}

void admission_asked(struct node *n, const struct frame *f)
{
    struct join_request q;
    if (join_request_decode(f->envelope, &q) != RC_OK) {
        return;
    }
    struct broker *b = n->workers[0].broker;
    // Nobody is let in before the founding record is there: it stands for the cluster.
    if (n->membership != MEMBERSHIP_MEMBER || !broker_is_loaded(b) || !metastore_group(n->metastore) ||
        !broker_node_find(b, span_str(n->config.node_name))) {
        refuse(n, &q, JOIN_RETRY, "this node is not up yet itself", NULL);
        return;
    }
    // Who is let in by a node that gives up its data next is in a cluster that lost its majority (law 2).
    if (n->is_probing || atomic_load_explicit(&n->shared_restart, memory_order_relaxed)) {
        refuse(n, &q, JOIN_RETRY, "this node is about to join another cluster itself", NULL);
        return;
    }
    answer(n, &q);
}
