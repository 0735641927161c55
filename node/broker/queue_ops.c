// SPDX-License-Identifier: Apache-2.0
// queue.declare and queue.delete (data-plane §1.10, §3).
//
// A quorum queue is one record: the store gives the group id and the replica ids in the same command that
// creates it, so a queue either exists with its members or not at all. The declaring node is the first member
// and campaigns at once.
// Classic, stream, exclusive and auto-delete queues are refused with 540 until they come, naming what is missing.
#include "node/broker/op.h"
#include "node/base/mem.h"
#include "proto/broker.pb-c.h"
#include <stdio.h>
#include <stdlib.h>

enum argument_kind { ARG_COUNT, ARG_COUNT_POSITIVE, ARG_INTEGER, ARG_STRING, ARG_BOOL, ARG_ANY };
enum argument_state { ARG_WORKS, ARG_MISSING, ARG_OTHER_TYPE };

// data-plane §3.2, in its order, which is also that of the equivalence check.
static const struct argument {
    const char *name;
    enum argument_kind kind;
    enum argument_state state;
} queue_arguments[] = {
    {"x-expires", ARG_COUNT_POSITIVE, ARG_MISSING},
    {"x-message-ttl", ARG_COUNT, ARG_MISSING},
    {"x-dead-letter-exchange", ARG_STRING, ARG_MISSING},
    {"x-dead-letter-routing-key", ARG_STRING, ARG_MISSING},
    {"x-dead-letter-strategy", ARG_STRING, ARG_MISSING},
    {"x-max-length", ARG_COUNT, ARG_WORKS},
    {"x-max-length-bytes", ARG_COUNT, ARG_WORKS},
    {"x-overflow", ARG_STRING, ARG_WORKS},
    {"x-max-priority", ARG_ANY, ARG_OTHER_TYPE},
    {"x-queue-mode", ARG_ANY, ARG_OTHER_TYPE},
    {"x-queue-master-locator", ARG_ANY, ARG_OTHER_TYPE},
    {"x-queue-version", ARG_ANY, ARG_OTHER_TYPE},
    {"x-single-active-consumer", ARG_BOOL, ARG_WORKS},
    {"x-queue-leader-locator", ARG_STRING, ARG_WORKS},
    {"x-quorum-initial-group-size", ARG_COUNT_POSITIVE, ARG_WORKS},
    {"x-delivery-limit", ARG_INTEGER, ARG_WORKS},
    {"x-max-in-memory-length", ARG_COUNT, ARG_WORKS},
    {"x-max-in-memory-bytes", ARG_COUNT, ARG_WORKS},
    {"x-consumer-timeout", ARG_COUNT, ARG_MISSING},
    {"x-consumer-disconnected-timeout", ARG_COUNT, ARG_MISSING},
    {"x-delayed-retry-type", ARG_STRING, ARG_MISSING},
    {"x-delayed-retry-min", ARG_COUNT, ARG_MISSING},
    {"x-delayed-retry-max", ARG_COUNT, ARG_MISSING},
    {"x-max-age", ARG_ANY, ARG_OTHER_TYPE},
    {"x-stream-max-segment-size-bytes", ARG_ANY, ARG_OTHER_TYPE},
    {"x-stream-filter-size-bytes", ARG_ANY, ARG_OTHER_TYPE},
    {"x-initial-cluster-size", ARG_ANY, ARG_OTHER_TYPE},
};
enum { ARGUMENTS_COUNT = sizeof(queue_arguments) / sizeof(queue_arguments[0]) };

static bool refuse_value(struct op *op, const char *name, const char *format, const char *detail)
{
    char reason[160];
    snprintf(reason, sizeof(reason), format, detail);
    op_refuse(op, RC_INVALID, 406, "invalid arg '%s' for queue '%.*s' in vhost '%s': %s", name,
              SPAN_ARGS(op->name), op->vhost, reason);
    return false;
}

static bool check_value(struct op *op, const struct argument *a, const struct table_value *v)
{
    int64_t n = 0;
    char number[32];
    switch (a->kind) {
    case ARG_STRING:
        return v->type == TABLE_STRING || refuse_value(op, a->name, "{unacceptable_type,%s}", table_type_name(v->type));
    case ARG_BOOL:
        return v->type == TABLE_BOOL || refuse_value(op, a->name, "{unacceptable_type,%s}", table_type_name(v->type));
    case ARG_COUNT:
    case ARG_COUNT_POSITIVE:
    case ARG_INTEGER:
        if (!table_value_integer(v, &n)) {
            return refuse_value(op, a->name, "\"expected integer, got %s\"", table_type_name(v->type));
        }
        snprintf(number, sizeof(number), "%lld", (long long)n);
        if (n < 0 && a->kind != ARG_INTEGER) {
            return refuse_value(op, a->name, "{value_negative,%s}", number);
        }
        return n != 0 || a->kind != ARG_COUNT_POSITIVE || refuse_value(op, a->name, "{value_zero,%s}", number);
    case ARG_ANY:
        break;
    }
    return true;
}

static bool check_arguments(struct op *op)
{
    for (int i = 0; i < ARGUMENTS_COUNT; i++) {
        const struct argument *a = &queue_arguments[i];
        struct table_value v;
        if (!table_find(op->arguments, a->name, &v)) {
            continue;
        }
        if (a->state == ARG_OTHER_TYPE) {
            op_refuse(op, RC_INVALID, 406,
                      "invalid arg '%s' for queue '%.*s' in vhost '%s' of queue type rabbit_quorum_queue",
                      a->name, SPAN_ARGS(op->name), op->vhost);
            return false;
        }
        if (!check_value(op, a, &v)) {
            return false;
        }
        if (a->state == ARG_MISSING) {
            op_fail(op, RC_UNSUPPORTED, 540, true,
                    "queue argument '%s' is not supported by this version of Warren (queue '%.*s')", a->name,
                    SPAN_ARGS(op->name));
            return false;
        }
    }
    struct span overflow;
    if (table_find_string(op->arguments, "x-overflow", &overflow) && !span_equal(overflow, span_str("drop-head")) &&
        !span_equal(overflow, span_str("reject-publish")) && !span_equal(overflow, span_str("reject-publish-dlx"))) {
        return refuse_value(op, "x-overflow", "%s", "invalid_overflow");
    }
    struct span locator;
    static const char *const locators[] = {"client-local", "balanced", "random", "least-leaders", "min-masters"};
    if (table_find_string(op->arguments, "x-queue-leader-locator", &locator)) {
        bool is_known = false;
        for (int i = 0; i < 5; i++) {
            is_known = is_known || span_equal(locator, span_str(locators[i]));
        }
        return is_known || refuse_value(op, "x-queue-leader-locator", "%s", "invalid_queue_locator_arg");
    }
    return true;
}

// The type asked for, or the vhost's, or the node's; exclusive and the like fall back to classic (data-plane §1.10).
static bool resolve_type(struct op *op, struct broker_vhost *v, enum queue_type *out)
{
    struct table_value asked;
    if (table_find(op->arguments, "x-queue-type", &asked)) {
        if (asked.type != TABLE_STRING) {
            return refuse_value(op, "x-queue-type", "{unacceptable_type,%s}", table_type_name(asked.type));
        }
        if (asked.bytes.len > 0 && !span_equal(asked.bytes, span_str("undefined"))) {
            char name[128];
            snprintf(name, sizeof(name), "%.*s", (int)asked.bytes.len, (const char *)asked.bytes.ptr);
            return queue_type_parse(asked.bytes, out) ||
                   refuse_value(op, "x-queue-type", "\"unsupported queue type '%s'\"", name);
        }
    }
    const char *name = v->default_queue_type ? v->default_queue_type : op->broker->config.default_queue_type;
    if (!queue_type_parse(span_str(name), out)) {
        *out = QUEUE_CLASSIC;
    }
    if (!op->is_durable || op->is_exclusive || op->is_auto_delete) {
        *out = QUEUE_CLASSIC;
    }
    return true;
}

static bool check_type(struct op *op, enum queue_type type)
{
    const char *missing = op->is_exclusive     ? "exclusive queues are"
                          : op->is_auto_delete ? "auto-delete queues are"
                          : !op->is_durable    ? "transient queues are"
                                               : NULL;
    if (type == QUEUE_QUORUM) {
        const char *bad = !op->is_durable      ? "non-durable"
                          : op->is_exclusive   ? "exclusive-owner"
                          : op->is_auto_delete ? "auto-delete"
                                               : NULL;
        if (bad) {
            op_refuse(op, RC_INVALID, 406, "invalid property '%s' for queue '%.*s' in vhost '%s'", bad,
                      SPAN_ARGS(op->name), op->vhost);
            return false;
        }
        if (op->name.len == 0) {
            op_refuse(op, RC_INVALID, 406, "Cannot declare a server-named queue for type rabbit_quorum_queue");
            return false;
        }
        return true;
    }
    op_fail(op, RC_UNSUPPORTED, 540, true,
            "%s not supported by this version of Warren; declare a durable queue with x-queue-type=quorum",
            missing                 ? missing
            : type == QUEUE_CLASSIC ? "queue type 'classic' is"
                                    : "queue type 'stream' is");
    return false;
}

static bool queue_equivalent(struct op *op, const struct broker_queue *q)
{
    static const char format[] =
        "inequivalent arg '%s' for queue '%.*s' in vhost '%s': received '%s' but current is '%s'";
    if (op->is_exclusive) {
        op_refuse(op, RC_CONFLICT, 405,
                  "cannot obtain exclusive access to locked queue '%.*s' in vhost '%s'. It could be "
                  "originally declared on another connection or the exclusive property value does not match "
                  "that of the original declaration.",
                  SPAN_ARGS(op->name), op->vhost);
        return false;
    }
    if (op->is_durable != q->is_durable) {
        op_refuse(op, RC_CONFLICT, 406, format, "durable", SPAN_ARGS(op->name), op->vhost,
                  op->is_durable ? "true" : "false", q->is_durable ? "true" : "false");
        return false;
    }
    if (op->is_auto_delete) {
        op_refuse(op, RC_CONFLICT, 406, format, "auto_delete", SPAN_ARGS(op->name), op->vhost, "true", "false");
        return false;
    }
    enum queue_type type;
    if (!resolve_type(op, op_vhost(op), &type)) {
        return false;
    }
    if (type != q->type) {
        op_refuse(op, RC_CONFLICT, 406, format, "x-queue-type", SPAN_ARGS(op->name), op->vhost,
                  queue_type_name(type), queue_type_name(q->type));
        return false;
    }
    for (int i = 0; i < ARGUMENTS_COUNT; i++) {
        if (queue_arguments[i].state == ARG_OTHER_TYPE) {
            continue;
        }
        struct buf text = {0};
        bool differs = argument_differs(op->arguments, q->arguments, queue_arguments[i].name, &text);
        if (differs) {
            op_refuse(op, RC_CONFLICT, 406, "inequivalent arg '%s' for queue '%.*s' in vhost '%s': %.*s",
                      queue_arguments[i].name, SPAN_ARGS(op->name), op->vhost, (int)text.len,
                      (const char *)text.ptr);
        }
        buf_deinit(&text);
        if (differs) {
            return false;
        }
    }
    return true;
}

// ---- choosing members --------------------------------------------------------------------------------------------

struct candidate {
    uint32_t node_id;
    bool is_local, is_alive, is_draining;
    uint32_t replicas, leads;  // Leads: queues whose first member it is, the one that campaigns at once.
};

static int candidate_order(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->is_local != y->is_local) {
        return y->is_local - x->is_local;
    }
    if (x->is_alive != y->is_alive) {
        return y->is_alive - x->is_alive;
    }
    if (x->is_draining != y->is_draining) {
        return x->is_draining - y->is_draining;
    }
    if (x->replicas != y->replicas) {
        return x->replicas < y->replicas ? -1 : 1;
    }
    return (x->node_id > y->node_id) - (x->node_id < y->node_id);
}

// Which of the chosen leads first: the local one, or (balanced) the one that is first in the fewest queues;
// none in maintenance mode while there is another.
static uint32_t choose_leader(struct op *op, const struct candidate *all, uint32_t n)
{
    struct span locator;
    const bool is_asked = table_find_string(op->arguments, "x-queue-leader-locator", &locator);
    const bool is_balanced =
        is_asked ? !span_equal(locator, span_str("client-local")) : op->broker->config.is_leader_balanced;
    uint32_t first = 0;
    for (uint32_t i = 1; i < n; i++) {
        const bool is_usable = all[i].is_alive && !all[i].is_draining;
        if (is_usable && (all[first].is_draining || (is_balanced && all[i].leads < all[first].leads))) {
            first = i;
        }
    }
    return first;
}

// The local node first, then running nodes with the fewest replicas (data-plane §4.8).
static uint32_t choose_members(struct op *op, uint32_t *nodes)
{
    struct broker *b = op->broker;
    uint32_t count = 0, pos = 0;
    struct candidate *all = mem_alloc((map_count(&b->nodes) + 1) * sizeof(*all));
    for (struct node *n; (n = map_next(&b->nodes, &pos, NULL, NULL));) {
        uint32_t id = n->pub.node_id;
        bool is_local = id == b->config.node_id;
        all[count++] = (struct candidate){.node_id = id,
                                          .is_local = is_local,
                                          .is_alive = is_local || host_node_is_alive(b->config.host, id),
                                          .is_draining = n->pub.is_draining,
                                          .replicas = node_replica_count(b, id),
                                          .leads = node_lead_count(b, id)};
    }
    qsort(all, count, sizeof(*all), candidate_order);
    int64_t size = b->config.quorum_initial_size;
    struct table_value v;
    if (table_find(op->arguments, "x-quorum-initial-group-size", &v)) {
        table_value_integer(&v, &size);
    }
    uint32_t n = size > LIMIT_VOTERS ? LIMIT_VOTERS : (uint32_t)size;
    n = n > count ? count : n;
    const uint32_t first = choose_leader(op, all, n);
    for (uint32_t i = 0; i < n; i++) {
        nodes[i] = all[(i + first) % n].node_id;
    }
    free(all);
    return n;
}

// ---- declare -----------------------------------------------------------------------------------------------------

static void queue_declare_again(struct op *op);

static void queue_committed(struct op *op, const struct meta_result *r)
{
    if (r->rc == RC_OK) {
        op_ok(op);
    } else if (r->rc == RC_EXISTS && !op->if_empty) {
        op->if_empty = true;  // Somebody was faster: compare with theirs, once.
        queue_declare_again(op);
    } else {
        op_fail(op, r->rc, 541, true, "Cannot declare quorum queue '%.*s' in vhost '%s': %s",
                SPAN_ARGS(op->name), op->vhost, rc_text(r->rc));
    }
}

static void queue_create_submit(struct op *op)
{
    uint32_t nodes[LIMIT_VOTERS];
    Warren__QueueRecord r = WARREN__QUEUE_RECORD__INIT;
    r.type = "quorum";
    r.durable = true;
    r.arguments.data = (uint8_t *)(uintptr_t)op->arguments.ptr;
    r.arguments.len = op->arguments.len;
    r.n_member_nodes = choose_members(op, nodes);
    r.member_nodes = nodes;
    if (r.n_member_nodes == 0) {
        op_fail(op, RC_NO_QUORUM, 541, true,
                "Cannot declare quorum queue '%.*s': this node does not know its cluster yet",
                SPAN_ARGS(op->name));
        return;
    }
    struct buf payload = {0};
    buf_u64(&payload, 0);
    warren__queue_record__pack(&r, buf_extend(&payload, warren__queue_record__get_packed_size(&r)));
    struct meta_path vhost = path_vhost(span_str(op->vhost));
    struct meta_path path = path_queue(span_str(op->vhost), op->name);
    struct meta_command c;
    meta_command_init(&c);
    meta_require(&c, &vhost, META_IF_PRESENT, 0);
    meta_put(&c, &path, buf_span(&payload), META_IF_ABSENT, 0);
    meta_allocate_ids(&c, 0, 1 + (uint32_t)r.n_member_nodes);
    buf_deinit(&payload);
    op->committed = queue_committed;
    op_submit(op, &c);
}

static void queue_declare_again(struct op *op)
{
    struct broker_vhost *v = op_vhost(op);
    struct queue *q = v ? vhost_queue(v, op->name) : NULL;
    if (!q && !v) {
        op_refuse(op, RC_NOT_FOUND, 404, "no vhost '%s'", op->vhost);
        return;
    }
    if (op->is_passive) {
        if (!op_allowed_to_look(op, "queue", op->name)) {
            return;
        }
        if (q) {
            op_ok(op);
        } else if (!op_fence_first(op)) {
            op_refuse(op, RC_NOT_FOUND, 404, "no queue '%.*s' in vhost '%s'", SPAN_ARGS(op->name), op->vhost);
        }
        return;
    }
    if (!q && span_starts_with(op->name, "amq.")) {
        op_refuse(op, RC_DENIED, 403, "queue name '%.*s' contains reserved prefix 'amq.*'", SPAN_ARGS(op->name));
        return;
    }
    if (!op_allowed(op, ACCESS_CONFIGURE, "queue", op->name)) {
        return;
    }
    if (q) {
        if (queue_equivalent(op, &q->pub)) {
            op_ok(op);
        }
        return;
    }
    enum queue_type type;
    if (!resolve_type(op, v, &type) || !check_type(op, type) || !check_arguments(op)) {
        return;
    }
    queue_create_submit(op);
}

void broker_queue_declare(struct broker *b, struct broker_vhost *v, struct span user,
                          const struct broker_queue_declare *d, broker_done_fn *done, void *ctx)
{
    struct op *op = op_create(b, v, user, done, ctx);
    op->name = op_copy_name(op, d->name);
    op->arguments = op_copy(op, d->arguments);
    op->is_passive = d->is_passive;
    op->is_durable = d->is_durable;
    op->is_exclusive = d->is_exclusive;
    op->is_auto_delete = d->is_auto_delete;
    op->again = queue_declare_again;
    queue_declare_again(op);
}

// ---- delete ------------------------------------------------------------------------------------------------------

// Auto-delete exchanges that lose their last binding with this queue go too.
static void queue_deleted(struct op *op, const struct meta_result *r)
{
    if (r->rc != RC_OK && r->rc != RC_NOT_FOUND) {
        op_fail(op, r->rc, 541, true, "cannot delete queue '%.*s': %s", SPAN_ARGS(op->name), rc_text(r->rc));
        return;
    }
    op_ok_without_idle(op);
}

void broker_queue_delete(struct broker *b, struct broker_vhost *v, struct span user, struct span name,
                         bool if_unused, bool if_empty, broker_done_fn *done, void *ctx)
{
    struct op *op = op_create(b, v, user, done, ctx);
    op->name = op_copy_name(op, name);
    struct queue *q = vhost_queue(v, op->name);
    if (q && q->pub.type == QUEUE_QUORUM && (if_unused || if_empty)) {
        op_fail(op, RC_UNSUPPORTED, 540, true,
                "cannot delete queue '%.*s' in vhost '%s'. queue.delete operations with %s flag set are not "
                "supported by quorum queues",
                SPAN_ARGS(op->name), op->vhost, if_unused ? "if-unused" : "if-empty");
        return;
    }
    if (!op_allowed(op, ACCESS_CONFIGURE, "queue", op->name)) {
        return;
    }
    struct meta_path path = path_queue(span_str(op->vhost), op->name);
    struct meta_command c;
    meta_command_init(&c);
    meta_delete(&c, &path, META_IF_ANY, 0);
    op->committed = queue_deleted;
    op_submit(op, &c);
}
