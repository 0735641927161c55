// SPDX-License-Identifier: Apache-2.0
// Verbs that change who is a member of queues: add_member, delete_member, grow, shrink (operator-plane §1.5).
// Texts and exit codes as RabbitMQ 4.3.6 has them where it has them.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "node/base/mem.h"
#include "node/ctl/internal.h"
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHANGE_TIMEOUT_MS = 9500, CHANGES_AT_ONCE = 64 };  // A refusal is out after 10 s (decision 18).

// ---- one queue ---------------------------------------------------------------------------------------------------

static bool parse_how(struct ctl_request *r, enum broker_member_how *out)
{
    const char *how = request_option(r, "membership", "promotable");
    *out = strcmp(how, "voter") == 0       ? MEMBER_VOTER
           : strcmp(how, "non_voter") == 0 ? MEMBER_NON_VOTER
                                           : MEMBER_PROMOTABLE;
    if (*out == MEMBER_PROMOTABLE && strcmp(how, "promotable") != 0) {
        ctl_error(r, EXIT_USAGE, "Error (argument validation): \"voter status '%s' is not recognised.\"", how);
        return false;
    }
    return true;
}

static const struct broker_node *request_node(struct ctl_request *r, size_t i, bool must_run)
{
    const char *name = request_arg(r, i);
    const struct broker_node *n = broker_node_find(r->ctl->broker, span_str(name));
    if (!n) {
        ctl_error(r, EXIT_USAGE, "Error: node %s is not a member of the cluster", name);
    } else if (must_run && !host_node_is_alive(r->ctl->config.host, n->node_id)) {
        ctl_error(r, EXIT_USAGE, "Error: node %s is not running", name);
        n = NULL;
    }
    return n;
}

static void on_changed(void *ctx, enum rc rc, const char *text)
{
    struct ctl_request *r = ctx;
    if (rc == RC_OK || rc == RC_EXISTS) {
        ctl_ok(r, NULL);
    } else {
        ctl_error(r,
                  rc == RC_NO_QUORUM || rc == RC_TIMEOUT ? EXIT_TEMPFAIL
                  : rc == RC_NOT_FOUND                   ? EXIT_DATAERR
                                                         : EXIT_UNAVAILABLE,
                  "%s", text);
    }
}

static void change_one(struct ctl_request *r, bool is_removal)
{
    struct broker_vhost *v = request_vhost(r);
    if (!v) {
        return;  // It was answered, and is gone.
    }
    const struct broker_queue *q = broker_queue_find(v, span_str(request_arg(r, 0)));
    struct broker_member_change what = {.is_removal = is_removal};
    char banner[700];
    snprintf(banner, sizeof(banner),
             is_removal ? "Removing a replica of queue %s on node %s..."
                        : "Adding a member for queue %s on node %s...",
             request_arg(r, 0), request_arg(r, 1));
    request_banner(r, banner);
    if (!is_removal && !parse_how(r, &what.how)) {
        return;
    }
    if (!q) {
        ctl_error(r, EXIT_DATAERR, "queue '%s' was not found in virtual host '%s'", request_arg(r, 0),
                  request_option(r, "vhost", "/"));
        return;
    }
    if (q->type != QUEUE_QUORUM) {
        ctl_error(r, EXIT_UNAVAILABLE, "Cannot %s members %s a %s queue", is_removal ? "delete" : "add",
                  is_removal ? "from" : "to", q->type == QUEUE_CLASSIC ? "classic" : "stream");
        return;
    }
    if (is_removal && !broker_node_find(r->ctl->broker, span_str(request_arg(r, 1)))) {
        ctl_ok(r, NULL);  // It has none, whoever that is.
        return;
    }
    const struct broker_node *n = request_node(r, 1, !is_removal);
    if (n) {
        what.node_id = n->node_id;
        ctl_member_change(r->ctl, span_str(request_option(r, "vhost", "/")), q, &what, CHANGE_TIMEOUT_MS,
                          on_changed, r);
    }
}

void verb_add_member(struct ctl_request *r)
{
    change_one(r, false);
}

void verb_delete_member(struct ctl_request *r)
{
    change_one(r, true);
}

// ---- patterns ----------------------------------------------------------------------------------------------------

// NULL: it does not compile (answered).
static pcre2_code *request_pattern(struct ctl_request *r, const char *option)
{
    const char *text = request_option(r, option, ".*");
    int error;
    PCRE2_SIZE at;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, 0, &error, &at, NULL);
    if (!code) {
        ctl_error(r, EXIT_DATAERR, "the pattern '%s' of --%s is not a regular expression", text, option);
    }
    return code;
}

static bool matches(const pcre2_code *code, struct span s)
{
    pcre2_match_data *m = pcre2_match_data_create(1, NULL);
    const int n = pcre2_match(code, s.ptr ? s.ptr : (PCRE2_SPTR) "", s.len, 0, 0, m, NULL);
    pcre2_match_data_free(m);
    return n >= 0;
}

struct pick {
    pcre2_code *vhost, *queue;
    struct span vhost_name;
    void (*each)(void *ctx, struct span vhost, const struct broker_queue *q);
    void *ctx;
};

static void pick_queue(void *ctx, const struct broker_queue *q)
{
    struct pick *p = ctx;
    if (q->type == QUEUE_QUORUM && matches(p->queue, q->name)) {
        p->each(p->ctx, p->vhost_name, q);
    }
}

static void pick_vhost(void *ctx, struct broker_vhost *v, struct span name)
{
    struct pick *p = ctx;
    if (matches(p->vhost, name)) {
        p->vhost_name = name;
        broker_queue_each(v, pick_queue, p);
    }
}

bool request_queues(struct ctl_request *r,
                    void (*each)(void *ctx, struct span vhost, const struct broker_queue *q), void *ctx)
{
    struct pick p = {.vhost = request_pattern(r, "vhost-pattern"), .each = each, .ctx = ctx};
    p.queue = p.vhost ? request_pattern(r, "queue-pattern") : NULL;
    if (p.queue) {
        broker_vhost_each(r->ctl->broker, pick_vhost, &p);
    }
    const bool ok = p.queue != NULL;
    pcre2_code_free(p.vhost);
    pcre2_code_free(p.queue);
    return ok;
}

// ---- many queues -------------------------------------------------------------------------------------------------

struct sweep_item {
    char *vhost, *name;
    uint32_t size;
};

struct sweep {
    struct ctl_request *request;
    struct broker_member_change what;
    bool only_even, only_errors;
    struct sweep_item *items;
    json_t **rows;  // By item.
    uint32_t count, next, in_flight, done;
    bool is_pumping;
};

struct sweep_call {
    struct sweep *sweep;
    uint32_t at;
};

static void sweep_add(void *ctx, struct span vhost, const struct broker_queue *q)
{
    struct sweep *s = ctx;
    uint32_t size = 0;
    bool is_member = false;
    for (uint32_t i = 0; i < q->target->members_count; i++) {
        is_member = is_member || q->target->members[i].node_id == s->what.node_id;
        size += broker_node_by_id(s->request->ctl->broker, q->target->members[i].node_id) != NULL;
    }
    if (is_member != s->what.is_removal || (s->only_even && size % 2 != 0)) {
        return;
    }
    s->items = mem_realloc(s->items, (s->count + 1) * sizeof(*s->items));
    s->items[s->count++] = (struct sweep_item){
        .vhost = mem_strndup(vhost.ptr, vhost.len), .name = mem_strndup(q->name.ptr, q->name.len), .size = size};
}

static void sweep_end(struct sweep *s)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->rows[i]) {
            json_array_append_new(rows, s->rows[i]);
        }
        free(s->items[i].vhost);
        free(s->items[i].name);
    }
    char banner[400];
    if (s->what.is_removal) {
        snprintf(banner, sizeof(banner), "Shrinking queues on %s...", request_arg(s->request, 0));
    } else {
        snprintf(banner, sizeof(banner), "Growing %s queues on %s...", request_arg(s->request, 1),
                 request_arg(s->request, 0));
    }
    ctl_list(s->request, banner, json_pack("[s, s, s, s]", "vhost", "name", "size", "result"), rows);
    free(s->items);
    free(s->rows);
    free(s);
}

static void sweep_pump(struct sweep *s);

static void on_swept(void *ctx, enum rc rc, const char *text)
{
    struct sweep_call *c = ctx;
    struct sweep *s = c->sweep;
    const struct sweep_item *item = &s->items[c->at];
    const bool ok = rc == RC_OK || rc == RC_EXISTS;
    const int by = ok ? s->what.is_removal ? -1 : 1 : 0;
    char result[300];
    snprintf(result, sizeof(result), ok ? "ok" : "error: %s",
             rc == RC_INVALID ? "the last node cannot be removed" : text);
    if (!ok || !s->only_errors) {
        s->rows[c->at] = json_pack("[o, o, i, o]", json_span(span_str(item->vhost)),
                                   json_span(span_str(item->name)), (int)item->size + by, json_text(result));
    }
    free(c);
    s->in_flight--;
    s->done++;
    sweep_pump(s);
}

static void sweep_pump(struct sweep *s)
{
    if (s->is_pumping) {
        return;
    }
    s->is_pumping = true;
    struct ctl *c = s->request->ctl;
    while (s->next < s->count && s->in_flight < CHANGES_AT_ONCE) {
        struct sweep_call *call = mem_zalloc(sizeof(*call));
        *call = (struct sweep_call){s, s->next++};
        const struct sweep_item *item = &s->items[call->at];
        struct broker_vhost *v = broker_vhost_find(c->broker, span_str(item->vhost));
        const struct broker_queue *q = v ? broker_queue_find(v, span_str(item->name)) : NULL;
        s->in_flight++;
        if (q) {
            ctl_member_change(c, span_str(item->vhost), q, &s->what, CHANGE_TIMEOUT_MS, on_swept, call);
        } else {
            on_swept(call, RC_NOT_FOUND, "the queue was deleted");
        }
    }
    s->is_pumping = false;
    if (s->done == s->count) {
        sweep_end(s);
    }
}

static void sweep_start(struct sweep *s)
{
    struct ctl_request *r = s->request;
    s->only_errors = strcmp(request_option(r, "errors-only", "false"), "true") == 0;
    if (!request_queues(r, sweep_add, s)) {
        free(s);
        return;
    }
    s->rows = mem_zalloc((s->count + 1) * sizeof(json_t *));
    sweep_pump(s);
}

void verb_grow(struct ctl_request *r)
{
    const char *strategy = request_arg(r, 1);
    struct broker_member_change what = {0};
    if (strcmp(strategy, "all") != 0 && strcmp(strategy, "even") != 0) {
        ctl_error(r, EXIT_USAGE, "Error (argument validation): \"strategy '%s' is not recognised.\"", strategy);
        return;
    }
    if (!parse_how(r, &what.how)) {
        return;
    }
    const struct broker_node *n = request_node(r, 0, true);
    if (n) {
        what.node_id = n->node_id;
        struct sweep *s = mem_zalloc(sizeof(*s));
        *s = (struct sweep){.request = r, .what = what, .only_even = strcmp(strategy, "even") == 0};
        sweep_start(s);
    }
}

void verb_shrink(struct ctl_request *r)
{
    const struct broker_node *n = request_node(r, 0, false);
    if (n) {
        struct sweep *s = mem_zalloc(sizeof(*s));
        *s = (struct sweep){.request = r, .what = {.is_removal = true, .node_id = n->node_id}};
        sweep_start(s);
    }
}
