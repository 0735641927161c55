// SPDX-License-Identifier: Apache-2.0
// exchange.declare, exchange.delete, bind and unbind (data-plane §1.10): checks in RabbitMQ's order, one command each.
#include "node/broker/op.h"
#include "proto/broker.pb-c.h"
#include <stdio.h>

// ---- declare -----------------------------------------------------------------------------------------------------

// "received X but current is Y" of one argument (data-plane §1.10, equivalence).
static void print_argument(struct span arguments, const char *key, bool has_other, struct buf *to)
{
    struct table_value v;
    if (!table_find(arguments, key, &v)) {
        buf_printf(to, "none");
    } else if (has_other) {
        table_value_print(&v, to);
    } else {
        buf_printf(to, "the value ");
        table_value_print(&v, to);
        buf_printf(to, " of type '%s'", table_type_name(v.type));
    }
}

bool argument_differs(struct span received, struct span current, const char *key, struct buf *text)
{
    struct table_value a, b;
    bool has_a = table_find(received, key, &a), has_b = table_find(current, key, &b);
    if ((!has_a && !has_b) || (has_a && has_b && table_value_equivalent(&a, &b))) {
        return false;
    }
    buf_printf(text, "received ");
    print_argument(received, key, has_b, text);
    buf_printf(text, " but current is ");
    print_argument(current, key, has_a, text);
    return true;
}

static bool refuse_property(struct op *op, const char *key, const char *received, const char *current)
{
    op_refuse(op, RC_CONFLICT, 406,
              "inequivalent arg '%s' for exchange '%.*s' in vhost '%s': received '%s' but current is '%s'",
              key, SPAN_ARGS(op->name), op->vhost, received, current);
    return false;
}

static const char *bool_text(bool b)
{
    return b ? "true" : "false";
}

static bool exchange_equivalent(struct op *op, const struct broker_exchange *x)
{
    if (!span_equal(op->type, span_str(exchange_type_name(x->type)))) {
        char type[64];
        snprintf(type, sizeof(type), "%.*s", SPAN_ARGS(op->type));
        return refuse_property(op, "type", type, exchange_type_name(x->type));
    }
    if (op->is_durable != x->is_durable) {
        return refuse_property(op, "durable", bool_text(op->is_durable), bool_text(x->is_durable));
    }
    if (op->is_auto_delete != x->is_auto_delete) {
        return refuse_property(op, "auto_delete", bool_text(op->is_auto_delete), bool_text(x->is_auto_delete));
    }
    if (op->is_internal != x->is_internal) {
        return refuse_property(op, "internal", bool_text(op->is_internal), bool_text(x->is_internal));
    }
    struct buf text = {0};
    bool differs = argument_differs(op->arguments, x->arguments, "alternate-exchange", &text);
    if (differs) {
        op_refuse(op, RC_CONFLICT, 406, "inequivalent arg 'alternate-exchange' for exchange '%.*s' in vhost '%s': %.*s",
                  SPAN_ARGS(op->name), op->vhost, (int)text.len, (const char *)text.ptr);
    }
    buf_deinit(&text);
    return !differs;
}

static void exchange_declare_again(struct op *op);

static void exchange_committed(struct op *op, const struct meta_result *r)
{
    if (r->rc == RC_OK) {
        op_ok(op);
    } else if (r->rc == RC_EXISTS && !op->is_exclusive) {
        op->is_exclusive = true;  // Somebody was faster: compare with theirs, once.
        exchange_declare_again(op);
    } else {
        op_fail(op, r->rc, 541, true, "cannot declare exchange '%.*s': %s", SPAN_ARGS(op->name), rc_text(r->rc));
    }
}

static void exchange_create_submit(struct op *op)
{
    char type[64];
    snprintf(type, sizeof(type), "%.*s", SPAN_ARGS(op->type));
    Warren__ExchangeRecord r = WARREN__EXCHANGE_RECORD__INIT;
    r.type = type;
    r.durable = op->is_durable;
    r.auto_delete = op->is_auto_delete;
    r.internal = op->is_internal;
    r.arguments.data = (uint8_t *)(uintptr_t)op->arguments.ptr;
    r.arguments.len = op->arguments.len;
    struct buf payload = {0};
    warren__exchange_record__pack(&r, buf_extend(&payload, warren__exchange_record__get_packed_size(&r)));
    struct meta_path vhost = path_vhost(span_str(op->vhost));
    struct meta_path path = path_exchange(span_str(op->vhost), op->name);
    struct meta_command c;
    meta_command_init(&c);
    meta_require(&c, &vhost, META_IF_PRESENT, 0);
    meta_put(&c, &path, buf_span(&payload), META_IF_ABSENT, 0);
    buf_deinit(&payload);
    op->committed = exchange_committed;
    op_submit(op, &c);
}

static void exchange_declare_again(struct op *op)
{
    struct broker_vhost *v = op_vhost(op);
    struct exchange *x = v ? vhost_exchange(v, op->name) : NULL;
    enum exchange_type type;
    if (!op->is_passive && !exchange_type_parse(op->type, &type)) {
        op_refuse(op, RC_UNSUPPORTED, 406, "%s exchange type '%.*s'",
                  op->type.len > 0 ? "unknown" : "invalid", SPAN_ARGS(op->type));
        return;
    }
    if (op->name.len == 0) {
        op_refuse(op, RC_DENIED, 403, "operation not permitted on the default exchange");
        return;
    }
    if (op->is_passive) {
        if (!op_allowed_to_look(op, "exchange", op->name)) {
            return;
        }
        if (x) {
            op_ok(op);
        } else if (!op_fence_first(op)) {
            op_refuse(op, RC_NOT_FOUND, 404, "no exchange '%.*s' in vhost '%s'", SPAN_ARGS(op->name), op->vhost);
        }
        return;
    }
    if (!op_allowed(op, ACCESS_CONFIGURE, "exchange", op->name)) {
        return;
    }
    if (x) {
        if (exchange_equivalent(op, &x->pub)) {
            op_ok(op);
        }
        return;
    }
    struct table_value alternate;
    if (table_find(op->arguments, "alternate-exchange", &alternate)) {
        if (alternate.type != TABLE_STRING) {
            op_refuse(op, RC_INVALID, 406,
                      "invalid type '%s' for arg 'alternate-exchange' in exchange '%.*s' in vhost '%s'",
                      table_type_name(alternate.type), SPAN_ARGS(op->name), op->vhost);
            return;
        }
        if (!op_allowed(op, ACCESS_READ, "exchange", op->name) ||
            !op_allowed(op, ACCESS_WRITE, "exchange", alternate.bytes)) {
            return;
        }
    }
    if (span_starts_with(op->name, "amq.") && op->user.len > 0) {
        op_refuse(op, RC_DENIED, 403, "exchange name '%.*s' contains reserved prefix 'amq.*'", SPAN_ARGS(op->name));
        return;
    }
    exchange_create_submit(op);
}

void broker_exchange_declare(struct broker *b, struct broker_vhost *v, struct span user,
                             const struct broker_exchange_declare *d, broker_done_fn *done, void *ctx)
{
    struct op *op = op_create(b, v, user, done, ctx);
    op->name = op_copy_name(op, d->name);
    op->type = op_copy(op, d->type);
    op->arguments = op_copy(op, d->arguments);
    op->is_passive = d->is_passive;
    op->is_durable = d->is_durable;
    op->is_auto_delete = d->is_auto_delete;
    op->is_internal = d->is_internal;
    op->again = exchange_declare_again;
    exchange_declare_again(op);
}

// ---- auto-delete -------------------------------------------------------------------------------------------------

static void idle_committed(struct op *op, const struct meta_result *r)
{
    if (r->rc == RC_OK) {
        op_ok_without_idle(op);
    } else {
        op_ok(op);  // Somebody was faster, or has bound it again.
    }
}

void op_ok_without_idle(struct op *op)
{
    struct broker_vhost *v = op_vhost(op);
    uint32_t pos = 0;
    for (struct exchange *x; v && (x = map_next(&v->exchanges, &pos, NULL, NULL));) {
        if (x->pub.is_auto_delete && x->had_binding && list_is_empty(&x->bindings)) {
            struct meta_path path = path_exchange(span_str(op->vhost), x->pub.name);
            struct meta_command c;
            meta_command_init(&c);
            meta_delete(&c, &path, META_IF_NO_CHILDREN, 0);
            op->committed = idle_committed;
            op_submit(op, &c);
            return;
        }
    }
    op_ok(op);
}

// ---- delete ------------------------------------------------------------------------------------------------------

static void exchange_deleted(struct op *op, const struct meta_result *r)
{
    if (r->rc == RC_OK || r->rc == RC_NOT_FOUND) {
        op_ok_without_idle(op);
    } else if (r->rc == RC_CONFLICT) {
        op_refuse(op, RC_CONFLICT, 406, "exchange '%.*s' in vhost '%s' in use", SPAN_ARGS(op->name), op->vhost);
    } else {
        op_fail(op, r->rc, 541, true, "cannot delete exchange '%.*s': %s", SPAN_ARGS(op->name), rc_text(r->rc));
    }
}

void broker_exchange_delete(struct broker *b, struct broker_vhost *v, struct span user, struct span name,
                            bool if_unused, broker_done_fn *done, void *ctx)
{
    struct op *op = op_create(b, v, user, done, ctx);
    op->name = op_copy_name(op, name);
    if (op->name.len == 0) {
        op_refuse(op, RC_DENIED, 403, "operation not permitted on the default exchange");
        return;
    }
    if (span_starts_with(op->name, "amq.")) {
        op_refuse(op, RC_DENIED, 403, "deletion of system exchange '%.*s' in vhost '%s' not allowed",
                  SPAN_ARGS(op->name), op->vhost);
        return;
    }
    if (!op_allowed(op, ACCESS_CONFIGURE, "exchange", op->name)) {
        return;
    }
    struct meta_path path = path_exchange(span_str(op->vhost), op->name);
    struct meta_command c;
    meta_command_init(&c);
    meta_delete(&c, &path, if_unused ? META_IF_NO_CHILDREN : META_IF_ANY, 0);
    op->committed = exchange_deleted;
    op_submit(op, &c);
}

// ---- bind, unbind ------------------------------------------------------------------------------------------------

static void bind_committed(struct op *op, const struct meta_result *r)
{
    if (op->is_unbind && (r->rc == RC_OK || r->rc == RC_NOT_FOUND)) {
        op_ok_without_idle(op);
    } else if (r->rc == RC_OK || r->rc == RC_EXISTS) {
        op_ok(op);
    } else if (r->rc == RC_NOT_FOUND) {
        bool is_source = r->failed_op == 0;
        op_refuse(op, RC_NOT_FOUND, 404, "no %s '%.*s' in vhost '%s'",
                  is_source || !op->to_queue ? "exchange" : "queue",
                  SPAN_ARGS(is_source ? op->source : op->destination), op->vhost);
    } else {
        op_fail(op, r->rc, 541, true, "cannot bind: %s", rc_text(r->rc));
    }
}

static void bind_submit(struct op *op)
{
    char leaf[LEAF_BYTES + 1];
    binding_leaf(op->key, op->arguments, leaf);
    struct span vhost = span_str(op->vhost);
    struct meta_path source = path_exchange(vhost, op->source);
    struct meta_path destination =
        op->to_queue ? path_queue(vhost, op->destination) : path_exchange(vhost, op->destination);
    struct meta_path path = path_binding(vhost, op->source, op->to_queue, op->destination, span_str(leaf));
    struct meta_command c;
    meta_command_init(&c);
    if (op->is_unbind) {
        meta_delete(&c, &path, META_IF_ANY, 0);
    } else {
        Warren__BindingRecord r = WARREN__BINDING_RECORD__INIT;
        r.key.data = (uint8_t *)(uintptr_t)op->key.ptr;
        r.key.len = op->key.len;
        r.arguments.data = (uint8_t *)(uintptr_t)op->arguments.ptr;
        r.arguments.len = op->arguments.len;
        struct buf payload = {0};
        warren__binding_record__pack(&r, buf_extend(&payload, warren__binding_record__get_packed_size(&r)));
        meta_require(&c, &source, META_IF_PRESENT, 0);
        meta_require(&c, &destination, META_IF_PRESENT, 0);
        meta_put(&c, &path, buf_span(&payload), META_IF_ABSENT, 0);
        meta_keep_while(&c, &destination, false);
        buf_deinit(&payload);
    }
    op->committed = bind_committed;
    op_submit(op, &c);
}

static uint32_t hash_words(struct span key)
{
    uint32_t n = 0;
    for (size_t i = 0; i < key.len; i++) {
        bool starts = i == 0 || key.ptr[i - 1] == '.', ends = i + 1 == key.len || key.ptr[i + 1] == '.';
        n += key.ptr[i] == '#' && starts && ends;
    }
    return n;
}

static bool has_binding(struct exchange *x, struct op *op)
{
    list_each(item, &x->bindings) {
        struct binding *b = list_entry(item, struct binding, in_source);
        if (b->is_to_queue == op->to_queue && span_equal(b->destination, op->destination) &&
            span_equal(b->key, op->key) && span_equal(b->arguments, op->arguments)) {
            return true;
        }
    }
    return false;
}

static void bind_again(struct op *op)
{
    struct broker_vhost *v = op_vhost(op);
    struct exchange *source = v ? vhost_exchange(v, op->source) : NULL;
    bool has_destination =
        v && (op->to_queue ? vhost_queue(v, op->destination) != NULL : vhost_exchange(v, op->destination) != NULL);
    if (!source || !has_destination) {
        if (op_fence_first(op)) {
            return;
        }
        if (op->is_unbind) {
            op_ok(op);  // What is not there is unbound.
            return;
        }
        op_refuse(op, RC_NOT_FOUND, 404, "no %s '%.*s' in vhost '%s'", !source || !op->to_queue ? "exchange" : "queue",
                  SPAN_ARGS(!source ? op->source : op->destination), op->vhost);
        return;
    }
    if (!op->is_unbind) {
        char why[256];
        if (source->pub.type == EXCHANGE_TOPIC && hash_words(op->key) > 2) {
            op_refuse(op, RC_INVALID, 406, "Topic binding key '%.*s' uses %u '#' wildcards, at most 2 are allowed",
                      SPAN_ARGS(op->key), hash_words(op->key));
            return;
        }
        if (source->pub.type == EXCHANGE_HEADERS && headers_check(op->arguments, why, sizeof(why))) {
            op_refuse(op, RC_INVALID, 406, "%s", why);
            return;
        }
        if (has_binding(source, op)) {
            op_ok(op);
            return;
        }
    }
    bind_submit(op);
}

void broker_bind(struct broker *b, struct broker_vhost *v, struct span user, const struct broker_bind *d,
                 broker_done_fn *done, void *ctx)
{
    struct op *op = op_create(b, v, user, done, ctx);
    op->source = op_copy_name(op, d->source);
    op->destination = op_copy_name(op, d->destination);
    op->key = op_copy(op, d->key);
    op->arguments = op_copy(op, d->arguments);
    op->to_queue = d->to_queue;
    op->is_unbind = d->is_unbind;
    op->again = bind_again;
    if (!op_allowed(op, ACCESS_WRITE, op->to_queue ? "queue" : "exchange", op->destination)) {
        return;
    }
    if (op->source.len == 0 || (!op->to_queue && op->destination.len == 0)) {
        op_refuse(op, RC_DENIED, 403, "operation not permitted on the default exchange");
        return;
    }
    if (op_allowed(op, ACCESS_READ, "exchange", op->source)) {
        bind_again(op);
    }
}
