// SPDX-License-Identifier: Apache-2.0
// Requests on worker 0: the table of verbs, the forms of an answer, and asking other nodes (FRAME_ADMIN).
#include "node/base/mem.h"
#include "node/ctl/internal.h"
#include "proto/cluster_admin.pb-c.h"
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { REMOTE_TIMEOUT_MS = 5000, REMOTE_ANSWER_MAX = 1 << 20 };

struct verb {
    const char *name;
    verb_fn *run;
    int args_min, args_max;
    bool needs_member;  // Else it works while the node waits for its cluster.
};

static const struct verb verbs[] = {
    {"status", verb_status, 0, 0, false},
    {"cluster_status", verb_cluster_status, 0, 0, true},
    {"ping", verb_ping, 0, 0, false},
    {"drain", verb_drain, 0, 0, true},
    {"revive", verb_revive, 0, 0, true},
    {"check_if_node_is_quorum_critical", verb_check_critical, 0, 0, true},
    {"await_online_quorum_plus_one", verb_await_quorum_plus_one, 0, 0, true},
    {"await_startup", verb_await_startup, 0, 0, false},
    {"await_online_nodes", verb_await_online_nodes, 1, 1, false},
    {"join_cluster", verb_join_cluster, 1, 1, false},
    {"forget_cluster_node", verb_forget_cluster_node, 1, 1, true},
    {"stop", verb_stop, 0, 1, false},
    {"alarms", verb_alarms, 0, 0, false},
    {"check_alarms", verb_check_alarms, 0, 0, false},
    {"check_local_alarms", verb_check_local_alarms, 0, 0, false},
    {"set_disk_free_limit", verb_set_disk_free_limit, 1, 2, false},
    {"set_vm_memory_high_watermark", verb_set_vm_memory_high_watermark, 1, 2, false},
    {"list_queues", verb_list_queues, 0, 64, true},
    {"list_exchanges", verb_list_exchanges, 0, 64, true},
    {"list_bindings", verb_list_bindings, 0, 64, true},
    {"list_connections", verb_list_connections, 0, 64, true},
    {"list_channels", verb_list_channels, 0, 64, true},
    {"list_consumers", verb_list_consumers, 0, 64, true},
    {"list_users", verb_list_users, 0, 0, true},
    {"list_vhosts", verb_list_vhosts, 0, 64, true},
    {"list_permissions", verb_list_permissions, 0, 0, true},
    {"list_user_permissions", verb_list_user_permissions, 1, 1, true},
    {"quorum_status", verb_quorum_status, 1, 1, true},
    {"transfer_leadership", verb_transfer_leadership, 2, 2, true},
    {"add_member", verb_add_member, 2, 2, true},
    {"delete_member", verb_delete_member, 2, 2, true},
    {"grow", verb_grow, 2, 2, true},
    {"shrink", verb_shrink, 1, 1, true},
    {"rebalance", verb_rebalance, 1, 1, true},
    {"delete_queue", verb_delete_queue, 1, 1, true},
    {"purge_queue", verb_purge_queue, 1, 1, true},
    {"add_user", verb_add_user, 2, 2, true},
    {"change_password", verb_change_password, 2, 2, true},
    {"authenticate_user", verb_authenticate_user, 2, 2, true},
    {"delete_user", verb_delete_user, 1, 1, true},
    {"set_permissions", verb_set_permissions, 4, 4, true},
    {"local_connections", verb_local_connections, 0, 0, true},
    {"local_channels", verb_local_channels, 0, 0, true},
    {"local_consumers", verb_local_consumers, 0, 0, true},
    {"local_member", verb_local_member, 1, 1, true},
    {"local_transfer", verb_local_transfer, 2, 2, true},
    {"local_change", verb_local_change, 5, 5, true},
    {"local_leaders", verb_local_leaders, 1, 1, true},
};

// ---- answers -----------------------------------------------------------------------------------------------------

void request_banner(struct ctl_request *r, const char *banner)
{
    json_decref(r->banner);
    r->banner = json_string(banner);
}

void ctl_answer(struct ctl_request *r, json_t *answer)
{
    if (!answer) {  // jansson makes nothing of what is not UTF-8.
        answer = json_pack("{s:i, s:s}", "exit", EXIT_SOFTWARE, "error", "the answer holds text that is not UTF-8");
    }
    if (r->banner) {
        json_object_set_new(answer, "banner", r->banner);
    }
    r->done(r->ctx, answer);
    json_decref(r->request);
    json_decref(r->rows);
    free(r);
}

void ctl_ok(struct ctl_request *r, const char *message)
{
    json_t *a = json_pack("{s:i, s:s, s:s}", "exit", EXIT_OK, "result", "ok", "node", r->ctl->config.node_name);
    if (message) {
        json_object_set_new(a, "message", json_text(message));
    }
    ctl_answer(r, a);
}

void ctl_error(struct ctl_request *r, int exit_code, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    ctl_answer(r, json_pack("{s:i, s:o}", "exit", exit_code, "error", json_text(text)));
}

void ctl_object(struct ctl_request *r, json_t *object)
{
    ctl_answer(r, json_pack("{s:i, s:o}", "exit", EXIT_OK, "object", object));
}

void ctl_list(struct ctl_request *r, const char *banner, json_t *columns, json_t *rows)
{
    ctl_answer(r, json_pack("{s:i, s:s, s:o, s:o}", "exit", EXIT_OK, "banner", banner, "columns", columns,
                            "rows", rows));
}

const char *request_arg(struct ctl_request *r, size_t i)
{
    return json_string_value(json_array_get(json_object_get(r->request, "args"), i));
}

const char *request_option(struct ctl_request *r, const char *name, const char *otherwise)
{
    const char *v = json_string_value(json_object_get(json_object_get(r->request, "options"), name));
    return v ? v : otherwise;
}

struct broker_vhost *request_vhost(struct ctl_request *r)
{
    const char *name = request_option(r, "vhost", "/");
    struct broker_vhost *v = broker_vhost_find(r->ctl->broker, span_str(name));
    if (!v) {
        ctl_error(r, EXIT_DATAERR, "Virtual host '%s' does not exist", name);
    }
    return v;
}

static bool is_word_of(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = words; (p = strstr(p, word)) != NULL; p += n) {
        bool starts = p == words || p[-1] == ' ', ends = p[n] == ' ' || p[n] == '\0';
        if (starts && ends && n > 0) {
            return true;
        }
    }
    return false;
}

json_t *request_columns(struct ctl_request *r, const char *otherwise, const char *known)
{
    json_t *columns = json_array();
    json_t *args = json_object_get(r->request, "args");
    for (size_t i = 0; i < json_array_size(args); i++) {
        const char *name = json_string_value(json_array_get(args, i));
        if (!name || !is_word_of(known, name)) {
            json_decref(columns);
            ctl_error(r, EXIT_USAGE, "bad_info_key: '%s' is not a column; known are: %s", name ? name : "", known);
            return NULL;
        }
        json_array_append_new(columns, json_string(name));
    }
    for (const char *p = otherwise; json_array_size(args) == 0 && *p;) {
        size_t n = strcspn(p, " ");
        json_array_append_new(columns, json_stringn(p, n));
        p += n + (p[n] == ' ');
    }
    return columns;
}

json_t *row_of(json_t *columns, json_t *object)
{
    json_t *row = json_array();
    for (size_t i = 0; i < json_array_size(columns); i++) {
        json_t *v = json_object_get(object, json_string_value(json_array_get(columns, i)));
        json_array_append_new(row, v ? json_incref(v) : json_string(""));
    }
    return row;
}

json_t *json_span(struct span s)
{
    json_t *text = json_stringn((const char *)(s.ptr ? s.ptr : (const uint8_t *)""), s.len);
    if (text) {
        return text;
    }
    char *base64 = mem_alloc(s.len * 4 / 3 + 8);
    int n = EVP_EncodeBlock((unsigned char *)base64, s.ptr, (int)s.len);
    text = json_stringn(base64, (size_t)n);
    free(base64);
    return text;
}

json_t *json_text(const char *text)
{
    size_t n = strlen(text);
    json_t *t = json_stringn(text, n);
    for (int cut = 0; !t && cut < 3 && n > 0 && (text[n - 1] & 0x80); cut++) {
        t = json_stringn(text, --n);
    }
    if (t) {
        return t;
    }
    char *plain = mem_strndup(text, strlen(text));
    for (char *p = plain; *p; p++) {
        *p = *p & 0x80 ? '?' : *p;
    }
    t = json_string(plain);
    free(plain);
    return t;
}

static json_t *json_value(const struct table_value *v)
{
    int64_t n;
    if (table_value_integer(v, &n)) {
        return json_integer(n);
    }
    switch (v->type) {
    case TABLE_BOOL:
        return json_boolean(v->b);
    case TABLE_STRING:
    case TABLE_BINARY:
        return json_span(v->bytes);
    case TABLE_F64:
        return json_real(v->f64);
    case TABLE_TABLE:
        return json_table(v->bytes);
    case TABLE_ARRAY: {  // An object of type and value: of several of one type RabbitMQ's, too, keeps the last.
        json_t *o = json_object();
        struct table_reader items = array_reader_of(v->bytes);
        struct table_value item;
        while (table_next(&items, NULL, &item)) {
            json_object_set_new(o, table_type_name(item.type), json_value(&item));
        }
        return o;
    }
    case TABLE_TIMESTAMP:
        return json_integer((json_int_t)v->u);
    default: {
        struct buf b = {0};
        table_value_print(v, &b);
        json_t *text = json_span(buf_span(&b));
        buf_deinit(&b);
        return text;
    }
    }
}

json_t *json_table(struct span table)
{
    json_t *entries = json_array();
    struct table_reader t = table_reader_of(table);
    struct span key;
    struct table_value v;
    while (table_next(&t, &key, &v)) {
        json_array_append_new(entries, json_pack("[o, s, o]", json_span(key), table_type_name(v.type), json_value(&v)));
    }
    return entries;
}

// ---- running -----------------------------------------------------------------------------------------------------

static void forwarded(void *ctx, json_t *answer)
{
    ctl_answer(ctx, answer);
}

// A request for another node goes there. True if it was taken over.
static bool forward(struct ctl_request *r)
{
    struct ctl *c = r->ctl;
    const char *node = json_string_value(json_object_get(r->request, "node"));
    if (!node || strcmp(node, c->config.node_name) == 0) {
        return false;
    }
    const struct broker_node *n = c->broker ? broker_node_find(c->broker, span_str(node)) : NULL;
    if (!n) {
        ctl_error(r, EXIT_UNAVAILABLE, "node '%s' is not known to %s: it is not a member of this cluster",
                  node, c->config.node_name);
        return true;
    }
    uint32_t node_id = n->node_id;
    json_t *request = json_deep_copy(r->request);
    ctl_ask(c, node_id, request, REMOTE_TIMEOUT_MS * 24, forwarded, r);
    return true;
}

// Verbs rely on it that what they were given as an argument is a text.
static bool has_texts_only(json_t *args)
{
    for (size_t i = 0; i < json_array_size(args); i++) {
        if (!json_is_string(json_array_get(args, i))) {
            return false;
        }
    }
    return true;
}

void ctl_run(struct ctl *c, json_t *request, ctl_done_fn *done, void *ctx)
{
    struct ctl_request *r = mem_zalloc(sizeof(*r));
    *r = (struct ctl_request){.ctl = c, .request = json_incref(request), .done = done, .ctx = ctx};
    if (!has_texts_only(json_object_get(request, "args"))) {
        ctl_error(r, EXIT_USAGE, "Error (argument validation): an argument is not a text");
        return;
    }
    const char *name = json_string_value(json_object_get(request, "verb"));
    if (forward(r)) {
        return;
    }
    for (size_t i = 0; name && i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        const struct verb *v = &verbs[i];
        if (strcmp(v->name, name) != 0) {
            continue;
        }
        int args = (int)json_array_size(json_object_get(request, "args"));
        const char *waiting = c->config.waiting_for(c->config.ctx);
        if (args < v->args_min || args > v->args_max) {
            ctl_error(r, EXIT_USAGE, "Error (argument validation): '%s' takes %d to %d arguments, not %d",
                      name, v->args_min, v->args_max, args);
        } else if (v->needs_member && (!c->broker || !broker_is_loaded(c->broker))) {
            ctl_error(r, EXIT_UNAVAILABLE, "node %s is not up yet: %s", c->config.node_name,
                      waiting && *waiting ? waiting : "it is starting");
        } else {
            v->run(r);
        }
        return;
    }
    ctl_error(r, EXIT_USAGE, "Command '%s' not found", name ? name : "");
}

// ---- other nodes -------------------------------------------------------------------------------------------------

struct remote_call {
    struct ctl *ctl;
    uint64_t id;
    ctl_done_fn *done;
    void *ctx;
    uint64_t deadline_ns;
};

static void send_json(struct ctl *c, uint32_t node_id, enum frame_type type, uint64_t id, json_t *value)
{
    Warren__AdminHeader h = WARREN__ADMIN_HEADER__INIT;
    h.request = id;
    uint8_t envelope[64];
    size_t n = warren__admin_header__pack(&h, envelope);
    char *text = json_dumps(value, JSON_COMPACT);
    size_t len = text ? strlen(text) : 0;
    if (len > REMOTE_ANSWER_MAX) {
        free(text);
        text = strdup("{\"exit\":70,\"error\":\"the answer is too large to be sent between nodes\"}");
        len = strlen(text);
    }
    struct iovec raw = {.iov_base = text, .iov_len = len};
    struct net *net = host_net(c->config.host);
    // A frame that cannot be sent is a request without an answer: the asking side times out.
    (void)net->send(net, node_id, LANE_CONTROL, type, span_of(envelope, n), &raw, 1, true);
    net->flush(net);  // `text` is borrowed until then.
    free(text);
}

void ctl_ask(struct ctl *c, uint32_t node_id, json_t *request, uint32_t timeout_ms, ctl_done_fn *done, void *ctx)
{
    struct remote_call *call = mem_zalloc(sizeof(*call));
    *call = (struct remote_call){.ctl = c, .id = ++c->next_request, .done = done, .ctx = ctx};
    call->deadline_ns = host_now(c->config.host) + (uint64_t)timeout_ms * 1000000u;
    map_put(&c->remote, call->id, call);
    if (host_node_is_alive(c->config.host, node_id)) {
        send_json(c, node_id, FRAME_ADMIN, call->id, request);
    } else {
        call->deadline_ns = 0;  // Answered at the next tick: never from inside the call.
    }
    json_decref(request);
}

static void finish_call(struct remote_call *call, json_t *answer)
{
    map_remove(&call->ctl->remote, call->id);
    call->done(call->ctx, answer);
    free(call);
}

struct answer_to {
    struct ctl *ctl;
    uint32_t node;
    uint64_t id;
};

static void answer_node(void *ctx, json_t *answer)
{
    struct answer_to *to = ctx;
    send_json(to->ctl, to->node, FRAME_ADMIN_REPLY, to->id, answer);
    json_decref(answer);
    free(to);
}

static void on_frame(void *ctx, uint32_t node, enum net_lane lane, const struct frame *f)
{
    struct ctl *c = ctx;
    (void)lane;
    Warren__AdminHeader *h = warren__admin_header__unpack(NULL, f->envelope.len, f->envelope.ptr);
    json_t *value = h ? json_loadb((const char *)f->raw.ptr, f->raw.len, 0, NULL) : NULL;
    if (value && f->type == FRAME_ADMIN) {
        struct answer_to *to = mem_alloc(sizeof(*to));
        *to = (struct answer_to){c, node, h->request};
        json_object_del(value, "node");
        ctl_run(c, value, answer_node, to);
    } else if (value && f->type == FRAME_ADMIN_REPLY) {
        struct remote_call *call = map_get(&c->remote, h->request);
        if (call) {
            finish_call(call, value);  // Takes; it may go to the admin thread at once.
            value = NULL;
        }
    }
    json_decref(value);
    if (h) {
        warren__admin_header__free_unpacked(h, NULL);
    }
}

void ctl_remote_attach(struct ctl *c)
{
    host_on_frames(c->config.host, FRAME_ADMIN, FRAME_ADMIN_REPLY, on_frame, c);
}

void ctl_after(struct ctl *c, uint32_t ms, void (*fn)(void *arg), void *arg, struct ctl_timer *t)
{
    *t = (struct ctl_timer){.due = host_now(c->config.host) + ms * UINT64_C(1000000), .fn = fn, .arg = arg};
    list_add_tail(&c->timers, &t->link);
}

static uint64_t turn_timers(struct ctl *c, uint64_t now)
{
    struct list due;
    list_init(&due);
    uint64_t next = UINT64_MAX;
    list_each (l, &c->timers) {
        struct ctl_timer *t = list_entry(l, struct ctl_timer, link);
        if (t->due <= now) {
            list_remove(l);
            list_add_tail(&due, l);
        } else {
            next = t->due < next ? t->due : next;
        }
    }
    const bool is_any = !list_is_empty(&due);
    for (struct list *l; (l = list_pop(&due));) {
        struct ctl_timer *t = list_entry(l, struct ctl_timer, link);
        t->fn(t->arg);
    }
    return is_any ? now : next;
}

uint64_t ctl_turn(struct ctl *c)
{
    if (!c->config.host || (map_count(&c->remote) == 0 && list_is_empty(&c->timers))) {
        return UINT64_MAX;
    }
    uint64_t now = host_now(c->config.host), next = turn_timers(c, now);
    uint32_t pos = 0;
    for (struct remote_call *call; (call = map_next(&c->remote, &pos, NULL, NULL));) {
        if (call->deadline_ns <= now) {
            finish_call(call, json_pack("{s:i, s:s}", "exit", EXIT_UNAVAILABLE, "error",
                                        "the node did not answer: it is down or unreachable"));
        } else if (call->deadline_ns < next) {
            next = call->deadline_ns;
        }
    }
    return next;
}

const char *node_name_of(struct ctl *c, uint32_t node_id)
{
    const struct broker_node *n = broker_node_by_id(c->broker, node_id);
    return n ? (const char *)n->name.ptr : "?";
}

// ---- life --------------------------------------------------------------------------------------------------------

enum rc ctl_start(const struct ctl_config *config, struct ctl **out)
{
    struct ctl *c = mem_zalloc(sizeof(*c));
    c->config = *config;
    c->started_ns = clock_mono_ns(env_system_clock());
    map_init_u64(&c->remote);
    list_init(&c->timers);
    enum rc rc = ctl_socket_start(c);
    if (rc != RC_OK) {
        free(c);
        return rc;
    }
    *out = c;
    return RC_OK;
}

void ctl_attach(struct ctl *c, struct host *host, struct broker *broker, struct queue_service *queues,
                struct metastore *metastore, uint32_t node_id)
{
    c->config.host = host;
    c->config.node_id = node_id;
    c->broker = broker;
    c->queues = queues;
    c->metastore = metastore;
    ctl_remote_attach(c);
}

void ctl_stop(struct ctl *c)
{
    ctl_socket_stop(c);
    map_deinit(&c->remote);
    free(c);
}
