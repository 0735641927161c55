// SPDX-License-Identifier: Apache-2.0
// Lists of what exists (operator-plane §1.3). What other nodes know (connections, consumers) is asked there and joined;
// a node that does not answer is left out and named in a warning.
#include "node/base/mem.h"
#include "node/ctl/internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INFO_TIMEOUT_MS = 1000, INFO_WINDOW = 64, NODE_TIMEOUT_MS = 5000 };

static char *banner_for(struct ctl_request *r, const char *what)
{
    static char text[400];
    snprintf(text, sizeof(text), "Listing %s for vhost %s ...", what, request_option(r, "vhost", "/"));
    return text;
}

// ---- queues ------------------------------------------------------------------------------------------------------

// Counts come from each queue's leader, a bounded number at a time; without an answer in time from what the local
// replica knows, so that a minority still lists.
struct queue_rows {
    struct ctl_request *request;
    json_t *columns;
    json_t *objects;   // One a queue, in order: while it is asked an object, then its row. Null: not yet, or
                       // it was deleted.
    struct queue_target *targets;
    struct span *names;  // Owned copies.
    size_t count, next, done, in_flight;
    bool is_pumping;
};
struct queue_row {
    struct queue_rows *all;
    size_t at;
    enum rc rc;  // What the leader said.
    struct queue_info info;
};

static const char queue_columns[] =
    "name durable auto_delete arguments policy pid owner_pid exclusive messages_ready "
    "messages_unacknowledged messages message_bytes message_bytes_ready message_bytes_unacknowledged "
    "consumers state type leader members online vhost operator_policy effective_policy_definition "
    "exclusive_consumer_pid exclusive_consumer_tag messages_ready_ram messages_unacknowledged_ram "
    "messages_ram messages_persistent message_bytes_ram message_bytes_persistent head_message_timestamp "
    "disk_reads disk_writes consumer_utilisation consumer_capacity memory";

// Columns of RabbitMQ's that say nothing of a quorum queue, there neither.
static void put_empty_columns(json_t *o)
{
    static const char *const empty[] = {"operator_policy",
                                        "exclusive_consumer_pid",
                                        "exclusive_consumer_tag",
                                        "messages_ready_ram",
                                        "messages_unacknowledged_ram",
                                        "messages_persistent",
                                        "message_bytes_persistent",
                                        "head_message_timestamp",
                                        "disk_reads",
                                        "disk_writes",
                                        "consumer_utilisation",
                                        "consumer_capacity"};
    for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++) {
        json_object_set_new(o, empty[i], json_string(""));
    }
    json_object_set_new(o, "effective_policy_definition", json_object());
    json_object_set_new(o, "messages_ram", json_integer(0));
    json_object_set_new(o, "message_bytes_ram", json_integer(0));
    json_object_set_new(o, "memory", json_integer(0));
}

// Objects are made a few at a time: a hundred thousand at once would keep the worker from its sockets for a second.
static void add_queue(void *ctx, const struct broker_queue *q)
{
    struct queue_rows *a = ctx;
    json_array_append_new(a->objects, json_null());
    a->names = mem_realloc(a->names, (a->count + 1) * sizeof(*a->names));
    a->names[a->count] = span_of(mem_strndup(q->name.ptr, q->name.len), q->name.len);
    a->targets = mem_realloc(a->targets, (a->count + 1) * sizeof(*a->targets));
    queue_target_copy(&a->targets[a->count++], q->target);
}

static json_t *queue_object(struct queue_rows *a, const struct broker_queue *q)
{
    json_t *o = json_pack("{s:o, s:b, s:b, s:o, s:s, s:b, s:s, s:s, s:s, s:s}", "name", json_span(q->name),
                          "durable", q->is_durable, "auto_delete", 0, "arguments", json_table(q->arguments),
                          "policy", "", "exclusive", 0, "owner_pid", "", "vhost",
                          request_option(a->request, "vhost", "/"), "state", "running", "type",
                          q->type == QUEUE_QUORUM    ? "quorum"
                          : q->type == QUEUE_CLASSIC ? "classic"
                                                     : "stream");
    put_empty_columns(o);
    return o;
}

static void finish_queues(struct queue_rows *a)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < a->count; i++) {
        json_t *row = json_array_get(a->objects, i);
        if (!json_is_null(row)) {
            json_array_append(rows, row);
        }
        free((void *)(uintptr_t)a->names[i].ptr);
    }
    free(a->names);
    json_decref(a->objects);
    free(a->targets);
    ctl_list(a->request, banner_for(a->request, "queues"), a->columns, rows);
    free(a);
}

static void put_members(struct ctl *c, const struct queue_target *t, uint32_t leader_node, json_t *o)
{
    json_t *members = json_array(), *online = json_array();
    for (uint32_t i = 0; i < t->members_count; i++) {
        uint32_t node = t->members[i].node_id;
        const char *name = node_name_of(c, node);
        if (!broker_node_by_id(c->broker, node)) {
            continue;  // A place that waits for another node.
        }
        json_array_append_new(members, json_string(name));
        if (node == c->config.node_id || host_node_is_alive(c->config.host, node)) {
            json_array_append_new(online, json_string(name));
        }
    }
    json_object_set_new(o, "members", members);
    json_object_set_new(o, "online", online);
    json_object_set_new(o, "leader", json_string(leader_node ? node_name_of(c, leader_node) : ""));
    json_object_set_new(o, "pid", json_string(leader_node ? node_name_of(c, leader_node) : ""));
}

static void pump_queues(struct queue_rows *a);

static void on_queue_looked(void *ctx, const struct ctl_replica *p)
{
    struct queue_row *row = ctx;
    struct queue_rows *a = row->all;
    json_t *o = json_array_get(a->objects, row->at);
    const struct queue_info *n = row->rc != RC_OK && p->is_here ? &p->info : &row->info;
    const uint32_t leader = row->rc == RC_OK ? row->info.leader_node : p->is_here ? p->status.leader_node : 0;
    json_object_set_new(o, "messages_ready", json_integer((json_int_t)n->ready));
    json_object_set_new(o, "messages_unacknowledged", json_integer((json_int_t)n->unacked));
    json_object_set_new(o, "messages", json_integer((json_int_t)(n->ready + n->unacked)));
    json_object_set_new(o, "consumers", json_integer((json_int_t)n->consumers));
    json_object_set_new(o, "message_bytes_ready", json_integer((json_int_t)n->ready_bytes));
    json_object_set_new(o, "message_bytes_unacknowledged", json_integer((json_int_t)n->unacked_bytes));
    json_object_set_new(o, "message_bytes", json_integer((json_int_t)(n->ready_bytes + n->unacked_bytes)));
    put_members(a->request->ctl, &a->targets[row->at], leader, o);
    if (row->rc != RC_OK) {
        json_object_set_new(o, "state", json_string(leader ? "running" : "minority"));
    }
    json_array_set_new(a->objects, row->at, row_of(a->columns, o));
    a->done++;
    a->in_flight--;
    free(row);
    pump_queues(a);
}

static void on_queue_info(void *ctx, enum rc rc, const struct queue_info *info)
{
    struct queue_row *row = ctx;
    row->rc = rc;
    row->info = rc == RC_OK ? *info : (struct queue_info){0};
    struct ctl *c = row->all->request->ctl;
    const uint64_t group = row->all->targets[row->at].group;
    if (rc == RC_OK) {
        ctl_look(c, group, 0, on_queue_looked, row);
    } else {
        ctl_look_awake(c, group, on_queue_looked, row);  // What is here is what is shown.
    }
}

static void pump_queues(struct queue_rows *a)
{
    if (a->is_pumping) {
        return;
    }
    a->is_pumping = true;
    struct broker_vhost *v =
        broker_vhost_find(a->request->ctl->broker, span_str(request_option(a->request, "vhost", "/")));
    while (a->next < a->count && a->in_flight < INFO_WINDOW) {
        const size_t at = a->next++;
        const struct broker_queue *q = v ? broker_queue_find(v, a->names[at]) : NULL;
        if (!q) {
            a->done++;
            continue;
        }
        json_array_set_new(a->objects, at, queue_object(a, q));
        struct queue_row *row = mem_alloc(sizeof(*row));
        *row = (struct queue_row){.all = a, .at = at};
        a->in_flight++;
        queue_info_get(a->request->ctl->queues, &a->targets[row->at], INFO_TIMEOUT_MS, on_queue_info, row);
    }
    a->is_pumping = false;
    if (a->done == a->count) {
        finish_queues(a);
    }
}

void verb_list_queues(struct ctl_request *r)
{
    struct broker_vhost *v = request_vhost(r);
    json_t *columns = v ? request_columns(r, "name messages", queue_columns) : NULL;
    if (!columns) {
        return;
    }
    struct queue_rows *a = mem_zalloc(sizeof(*a));
    *a = (struct queue_rows){.request = r, .columns = columns, .objects = json_array()};
    broker_queue_each(v, add_queue, a);
    pump_queues(a);
}

// ---- exchanges, bindings, users ------------------------------------------------------------------------------------

struct rows {
    json_t *columns, *rows;
};

static void add_row(struct rows *t, json_t *object)
{
    json_array_append_new(t->rows, row_of(t->columns, object));
    json_decref(object);
}

static void add_exchange(void *ctx, const struct broker_exchange *x)
{
    static const char *const types[] = {"direct", "fanout", "topic", "headers"};
    add_row(ctx, json_pack("{s:o, s:s, s:b, s:b, s:b, s:o, s:s}", "name", json_span(x->name), "type",
                           types[x->type], "durable", x->is_durable, "auto_delete", x->is_auto_delete,
                           "internal", x->is_internal, "arguments", json_table(x->arguments), "policy", ""));
}

void verb_list_exchanges(struct ctl_request *r)
{
    struct broker_vhost *v = request_vhost(r);
    struct rows t = {
        v ? request_columns(r, "name type", "name type durable auto_delete internal arguments policy") : NULL,
        NULL};
    if (!t.columns) {
        return;
    }
    t.rows = json_array();
    broker_exchange_each(v, add_exchange, &t);
    ctl_list(r, banner_for(r, "exchanges"), t.columns, t.rows);
}

static void add_binding(void *ctx, const struct broker_binding *b)
{
    add_row(ctx, json_pack("{s:o, s:s, s:o, s:s, s:o, s:o}", "source_name", json_span(b->source),
                           "source_kind", "exchange", "destination_name", json_span(b->destination),
                           "destination_kind", b->to_queue ? "queue" : "exchange", "routing_key",
                           json_span(b->key), "arguments", json_table(b->arguments)));
}

void verb_list_bindings(struct ctl_request *r)
{
    static const char all[] = "source_name source_kind destination_name destination_kind routing_key arguments";
    struct broker_vhost *v = request_vhost(r);
    struct rows t = {v ? request_columns(r, all, all) : NULL, NULL};
    if (!t.columns) {
        return;
    }
    t.rows = json_array();
    broker_binding_each(v, add_binding, &t);
    ctl_list(r, banner_for(r, "bindings"), t.columns, t.rows);
}

static void add_user(void *ctx, struct span name, bool is_administrator)
{
    add_row(ctx, json_pack("{s:o, s:o}", "user", json_span(name), "tags",
                           is_administrator ? json_pack("[s]", "administrator") : json_array()));
}

void verb_list_users(struct ctl_request *r)
{
    struct rows t = {json_pack("[s, s]", "user", "tags"), json_array()};
    broker_user_each(r->ctl->broker, add_user, &t);
    ctl_list(r, "Listing users ...", t.columns, t.rows);
}

static void add_vhost(void *ctx, struct broker_vhost *v, struct span name)
{
    (void)v;
    add_row(ctx, json_pack("{s:o, s:s, s:[], s:b, s:b}", "name", json_span(name), "description",
                           span_equal(name, span_str("/")) ? "Default virtual host" : "", "tags",
                           "protected_from_deletion", 0, "tracing", 0));
}

void verb_list_vhosts(struct ctl_request *r)
{
    struct rows t = {request_columns(r, "name", "name description tags protected_from_deletion tracing"), NULL};
    if (!t.columns) {
        return;
    }
    t.rows = json_array();
    broker_vhost_each(r->ctl->broker, add_vhost, &t);
    ctl_list(r, "Listing vhosts ...", t.columns, t.rows);
}

static void add_permission(void *ctx, struct span user, const char *const patterns[3])
{
    add_row(ctx, json_pack("{s:o, s:s, s:s, s:s}", "user", json_span(user), "configure", patterns[0], "write",
                           patterns[1], "read", patterns[2]));
}

void verb_list_permissions(struct ctl_request *r)
{
    struct broker_vhost *v = request_vhost(r);
    if (!v) {
        return;
    }
    struct rows t = {json_pack("[s, s, s, s]", "user", "configure", "write", "read"), json_array()};
    broker_permission_each(v, add_permission, &t);
    ctl_list(r, banner_for(r, "permissions"), t.columns, t.rows);
}

struct user_permissions {
    struct rows rows;
    struct span user, vhost;
};

static void add_user_permission(void *ctx, struct span user, const char *const patterns[3])
{
    struct user_permissions *p = ctx;
    if (span_equal(user, p->user)) {
        add_row(&p->rows, json_pack("{s:o, s:s, s:s, s:s}", "vhost", json_span(p->vhost), "configure",
                                    patterns[0], "write", patterns[1], "read", patterns[2]));
    }
}

static void add_vhost_permissions(void *ctx, struct broker_vhost *v, struct span name)
{
    struct user_permissions *p = ctx;
    p->vhost = name;
    broker_permission_each(v, add_user_permission, p);
}

void verb_list_user_permissions(struct ctl_request *r)
{
    const char *user = request_arg(r, 0);
    if (!broker_user_exists(r->ctl->broker, span_str(user))) {
        ctl_error(r, EXIT_NOUSER, "User '%s' does not exist", user);
        return;
    }
    struct user_permissions p = {
        .rows = {json_pack("[s, s, s, s]", "vhost", "configure", "write", "read"), json_array()},
        .user = span_str(user)};
    broker_vhost_each(r->ctl->broker, add_vhost_permissions, &p);
    static char banner[300];
    snprintf(banner, sizeof(banner), "Listing permissions for user \"%s\" ...", user);
    ctl_list(r, banner, p.rows.columns, p.rows.rows);
}

// ---- what every node knows a part of -------------------------------------------------------------------------------

struct gather {
    struct ctl_request *request;
    json_t *columns;
    json_t *rows;
    const char *banner;
    const char *verb;      // What the nodes are asked.
    uint32_t waiting;
    bool is_asking;
};

static void gather_done(struct gather *g)
{
    if (g->waiting > 0 || g->is_asking) {
        return;
    }
    ctl_list(g->request, g->banner, g->columns, g->rows);
    free(g);
}

static void on_gathered(void *ctx, json_t *answer)
{
    struct gather *g = ctx;
    json_t *objects = json_object_get(json_object_get(answer, "object"), "items");
    for (size_t i = 0; i < json_array_size(objects); i++) {
        json_array_append_new(g->rows, row_of(g->columns, json_array_get(objects, i)));
    }
    json_decref(answer);
    g->waiting--;
    gather_done(g);
}

static void ask_node(void *ctx, const struct broker_node *n)
{
    struct gather *g = ctx;
    struct ctl *c = g->request->ctl;
    json_t *request = json_pack("{s:s, s:[], s:{s:s}}", "verb", g->verb, "args", "options", "vhost",
                                request_option(g->request, "vhost", "/"));
    g->waiting++;
    if (n->node_id == c->config.node_id) {
        ctl_run(c, request, on_gathered, g);
        json_decref(request);
    } else {
        ctl_ask(c, n->node_id, request, NODE_TIMEOUT_MS, on_gathered, g);
    }
}

static void gather(struct ctl_request *r, json_t *columns, const char *banner, const char *verb)
{
    struct gather *g = mem_zalloc(sizeof(*g));
    *g = (struct gather){.request = r,
                         .columns = columns,
                         .rows = json_array(),
                         .banner = banner,
                         .verb = verb,
                         .is_asking = true};
    broker_node_each(r->ctl->broker, ask_node, g);
    g->is_asking = false;
    gather_done(g);
}

static const char connection_columns[] =
    "pid name port host peer_port peer_host ssl ssl_protocol ssl_key_exchange ssl_cipher ssl_hash "
    "peer_cert_subject peer_cert_issuer peer_cert_validity state channels protocol auth_mechanism user vhost "
    "timeout frame_max channel_max client_properties recv_oct recv_cnt send_oct send_cnt send_pend connected_at node";

void verb_list_connections(struct ctl_request *r)
{
    json_t *columns = request_columns(r, "user peer_host peer_port state", connection_columns);
    if (columns) {
        gather(r, columns, "Listing connections ...", "local_connections");
    }
}

// Each worker adds its own connections (or channels) on its own thread, one after another.
struct local_connections {
    struct ctl_request *request;
    json_t *items;
    uint32_t worker;
    bool is_of_channels;
};

static void print_pid(char *to, size_t size, const struct local_connections *l, uint64_t id)
{
    snprintf(to, size, "<%s.%u.%llu>", l->request->ctl->config.node_name, l->worker, (unsigned long long)id);
}

static void add_channel(void *ctx, const struct amqp09_channel_info *i)
{
    struct local_connections *l = ctx;
    char connection[300], pid[320], name[400];
    print_pid(connection, sizeof(connection), l, i->connection_id);
    snprintf(pid, sizeof(pid), "%.*s.%u>", (int)strlen(connection) - 1, connection, i->number);
    snprintf(name, sizeof(name), "%.*s (%u)", (int)i->connection_name.len,
             (const char *)i->connection_name.ptr, i->number);
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:I, s:o, s:o, s:b, s:b, s:s}", "pid", pid, "connection", connection,
                  "name", name, "number", (json_int_t)i->number, "user", json_span(i->user), "vhost",
                  json_span(i->vhost), "transactional", i->is_transactional, "confirm", i->is_confirm, "node",
                  l->request->ctl->config.node_name);
    json_object_set_new(o, "consumer_count", json_integer(i->consumer_count));
    json_object_set_new(o, "messages_unacknowledged", json_integer((json_int_t)i->messages_unacknowledged));
    json_object_set_new(o, "messages_uncommitted", json_integer((json_int_t)i->messages_uncommitted));
    json_object_set_new(o, "acks_uncommitted", json_integer((json_int_t)i->acks_uncommitted));
    json_object_set_new(o, "messages_unconfirmed", json_integer((json_int_t)i->messages_unconfirmed));
    json_object_set_new(o, "prefetch_count", json_integer(i->prefetch_count));
    json_array_append_new(l->items, o);
}

static void add_connection(void *ctx, const struct amqp09_connection_info *i)
{
    struct local_connections *l = ctx;
    char pid[300];
    print_pid(pid, sizeof(pid), l, i->id);
    json_t *o =
        json_pack("{s:s, s:o, s:I, s:o, s:I, s:o, s:b, s:s, s:I, s:s, s:o, s:o, s:o, s:I, s:I, s:I}", "pid",
                  pid, "name", json_span(i->name), "port", (json_int_t)i->port, "host", json_span(i->host),
                  "peer_port", (json_int_t)i->peer_port, "peer_host", json_span(i->peer_host), "ssl", 0,
                  "state", i->state, "channels", (json_int_t)i->channels, "protocol", i->protocol,
                  "auth_mechanism", json_span(i->auth_mechanism), "user", json_span(i->user), "vhost",
                  json_span(i->vhost), "timeout", (json_int_t)i->timeout, "frame_max",
                  (json_int_t)i->frame_max, "channel_max", (json_int_t)i->channel_max);
    json_object_set_new(o, "client_properties", json_table(i->client_properties));
    static const char *const of_tls[] = {"ssl_protocol",      "ssl_key_exchange", "ssl_cipher",        "ssl_hash",
                                         "peer_cert_subject", "peer_cert_issuer", "peer_cert_validity"};
    for (size_t n = 0; n < sizeof(of_tls) / sizeof(of_tls[0]); n++) {
        json_object_set_new(o, of_tls[n], json_string(""));
    }
    json_object_set_new(o, "recv_oct", json_integer((json_int_t)i->recv_oct));
    json_object_set_new(o, "recv_cnt", json_integer((json_int_t)i->recv_cnt));
    json_object_set_new(o, "send_oct", json_integer((json_int_t)i->send_oct));
    json_object_set_new(o, "send_cnt", json_integer((json_int_t)i->send_cnt));
    json_object_set_new(o, "send_pend", json_integer((json_int_t)i->send_pend));
    json_object_set_new(o, "connected_at", json_integer(i->connected_at));
    json_object_set_new(o, "node", json_string(l->request->ctl->config.node_name));
    json_array_append_new(l->items, o);
}

static void local_connections_answer(void *arg)
{
    struct local_connections *l = arg;
    ctl_object(l->request, json_pack("{s:o}", "items", l->items));
    free(l);
}

static void local_connections_step(void *arg)
{
    struct local_connections *l = arg;
    struct ctl *c = l->request->ctl;
    struct amqp09 *amqp = c->config.amqp(c->config.ctx, l->worker);
    if (amqp && l->is_of_channels) {
        amqp09_channels_each(amqp, add_channel, l);
    } else if (amqp) {
        amqp09_connections_each(amqp, add_connection, l);
    }
    l->worker++;
    if (l->worker < c->config.workers) {
        c->config.post(c->config.ctx, l->worker, local_connections_step, l);
    } else {
        c->config.post(c->config.ctx, 0, local_connections_answer, l);
    }
}

void verb_local_connections(struct ctl_request *r)
{
    struct local_connections *l = mem_zalloc(sizeof(*l));
    *l = (struct local_connections){.request = r, .items = json_array()};
    local_connections_step(l);
}

void verb_local_channels(struct ctl_request *r)
{
    struct local_connections *l = mem_zalloc(sizeof(*l));
    *l = (struct local_connections){.request = r, .items = json_array(), .is_of_channels = true};
    local_connections_step(l);
}

void verb_list_channels(struct ctl_request *r)
{
    json_t *columns = request_columns(r, "pid user consumer_count messages_unacknowledged",
                                      "pid connection name number user vhost transactional confirm "
                                      "consumer_count messages_unacknowledged messages_uncommitted "
                                      "acks_uncommitted messages_unconfirmed prefetch_count node");
    if (columns) {
        gather(r, columns, "Listing channels ...", "local_channels");
    }
}

void verb_list_consumers(struct ctl_request *r)
{
    static const char all[] = "queue_name channel_pid consumer_tag ack_required prefetch_count active arguments";
    json_t *columns = request_columns(r, all, all);
    if (columns) {
        gather(r, columns, banner_for(r, "consumers"), "local_consumers");
    }
}

// A node tells the consumers of the queues it leads; each worker adds those of its own, one after another.
struct consumers {
    struct ctl_request *request;
    json_t *items;
    struct span queue;
    uint32_t worker;
};

static void add_consumer(void *ctx, const struct queue_consumer_info *i)
{
    struct consumers *s = ctx;
    json_t *arguments = json_array();  // The queue keeps the one it needs.
    if (i->priority != 0) {
        json_array_append_new(arguments, json_pack("[s, s, I]", "x-priority", "signedint", (json_int_t)i->priority));
    }
    json_array_append_new(s->items,
                          json_pack("{s:o, s:o, s:o, s:b, s:I, s:b, s:o}", "queue_name", json_span(s->queue),
                                    "channel_pid", json_span(i->channel), "consumer_tag", json_span(i->tag),
                                    "ack_required", !i->is_no_ack, "prefetch_count", (json_int_t)i->prefetch,
                                    "active", i->is_active, "arguments", arguments));
}

static void add_queue_consumers(void *ctx, const struct broker_queue *q)
{
    struct consumers *s = ctx;
    struct ctl_config *c = &s->request->ctl->config;
    struct queue_service *service = c->queues(c->ctx, s->worker);
    struct queue_info info;
    struct consensus_status status;
    if (queue_replica_info(service, q->target->group, &info, &status) && status.role == ROLE_LEADER) {
        s->queue = q->name;
        queue_replica_consumers(service, q->target->group, add_consumer, s);
    }
}

static void consumers_answer(void *arg)
{
    struct consumers *s = arg;
    ctl_object(s->request, json_pack("{s:o}", "items", s->items));
    free(s);
}

static void consumers_step(void *arg)
{
    struct consumers *s = arg;
    struct ctl_config *c = &s->request->ctl->config;
    struct broker_vhost *v = broker_vhost_find(c->broker_of(c->ctx, s->worker),
                                               span_str(request_option(s->request, "vhost", "/")));
    if (v) {
        broker_queue_each(v, add_queue_consumers, s);
    }
    s->worker++;
    const bool is_last = s->worker == c->workers;
    c->post(c->ctx, is_last ? 0 : s->worker, is_last ? consumers_answer : consumers_step, s);
}

void verb_local_consumers(struct ctl_request *r)
{
    if (request_vhost(r)) {
        struct consumers *s = mem_zalloc(sizeof(*s));
        *s = (struct consumers){.request = r, .items = json_array()};
        consumers_step(s);
    }
}
