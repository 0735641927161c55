// SPDX-License-Identifier: Apache-2.0
// Commands about nodes: made known, replaced, forgotten, in maintenance mode (nodes.c projects what comes of them).
#include "node/broker/op.h"
#include "node/base/mem.h"
#include "proto/broker.pb-c.h"
#include <stdlib.h>

void node_record_put(struct meta_command *c, struct span name, struct span store_id, struct span address,
                     uint32_t node_id, uint64_t replica_id, const struct broker_node *known)
{
    char *text = mem_strndup(address.ptr, address.len);
    Warren__NodeRecord r = WARREN__NODE_RECORD__INIT;
    r.store_id.data = (uint8_t *)(uintptr_t)store_id.ptr;
    r.store_id.len = store_id.len;
    r.address = text;
    r.node_id = node_id;
    r.replica_id = replica_id;
    if (known) {
        r.former_ids = mem_alloc((known->former_ids_count + 1) * sizeof(*r.former_ids));
        for (uint32_t i = 0; i < known->former_ids_count; i++) {
            r.former_ids[r.n_former_ids++] = known->former_ids[i];
        }
        r.former_ids[r.n_former_ids++] = known->node_id;
    }
    struct buf payload = {0};
    buf_u64(&payload, 0);  // Place for the ids given by the store, if the record names none.
    warren__node_record__pack(&r, buf_extend(&payload, warren__node_record__get_packed_size(&r)));
    struct meta_path path = path_node(name);
    meta_put(c, &path, buf_span(&payload), known ? META_IF_VERSION : META_IF_ABSENT, known ? known->version : 0);
    buf_deinit(&payload);
    free(r.former_ids);
    free(text);
}

static void node_committed(struct op *op, const struct meta_result *r)
{
    if (r->rc == RC_OK || r->rc == RC_EXISTS) {
        op_ok(op);
    } else {
        op_fail(op, r->rc, 541, true, "the node was not made known: %s", rc_text(r->rc));
    }
}

void broker_node_put(struct broker *b, struct span name, struct span store_id, struct span address,
                     broker_done_fn *done, void *ctx)
{
    struct op *op = op_create(b, NULL, span_str(""), done, ctx);
    op->name = op_copy(op, name);
    op->committed = node_committed;
    struct meta_command c;
    meta_command_init(&c);
    node_record_put(&c, op->name, store_id, address, 0, 0, NULL);
    meta_allocate_ids(&c, 0, 2);
    op_submit(op, &c);
}

static void node_replaced(struct op *op, const struct meta_result *r)
{
    if (r->rc == RC_OK) {
        op_ok(op);
    } else {
        op_fail(op, r->rc, 541, true, "the node was not given a new identity: %s", rc_text(r->rc));
    }
}

void broker_node_replace(struct broker *b, const struct broker_node *known, struct span store_id,
                         struct span address, broker_done_fn *done, void *ctx)
{
    struct op *op = op_create(b, NULL, span_str(""), done, ctx);
    op->name = op_copy(op, known->name);
    op->committed = node_replaced;
    struct meta_command c;
    meta_command_init(&c);
    node_record_put(&c, op->name, store_id, address, 0, 0, known);
    meta_allocate_ids(&c, 0, 2);
    op_submit(op, &c);
}

static void node_deleted(struct op *op, const struct meta_result *r)
{
    if (r->rc == RC_OK) {
        op_ok(op);
    } else if (r->rc == RC_NOT_FOUND) {
        op_refuse(op, r->rc, 404, "'%.*s' is not a node of this cluster", SPAN_ARGS(op->name));
    } else {
        op_fail(op, r->rc, 541, true, "the node was not forgotten: %s", rc_text(r->rc));
    }
}

void broker_node_delete(struct broker *b, struct span name, broker_done_fn *done, void *ctx)
{
    op_delete(b, name, path_node, node_deleted, done, ctx);
}

static void maintenance_committed(struct op *op, const struct meta_result *r)
{
    if (r->rc == RC_OK || r->rc == RC_NOT_FOUND) {  // Not found: the node was forgotten.
        op_ok(op);
    } else {
        op_fail(op, r->rc, 541, true, "the node's maintenance mode was not recorded: %s", rc_text(r->rc));
    }
}

void broker_node_maintenance(struct broker *b, struct span name, bool is_draining, broker_done_fn *done, void *ctx)
{
    struct op *op = op_create(b, NULL, span_str(""), done, ctx);
    op->name = op_copy(op, name);
    op->committed = maintenance_committed;
    struct meta_path node = path_node(op->name), path = path_maintenance(op->name);
    struct meta_command c;
    meta_command_init(&c);
    if (is_draining) {
        Warren__MaintenanceRecord r = WARREN__MAINTENANCE_RECORD__INIT;
        r.is_draining = true;
        struct buf payload = {0};
        warren__maintenance_record__pack(&r, buf_extend(&payload, warren__maintenance_record__get_packed_size(&r)));
        meta_put(&c, &path, buf_span(&payload), META_IF_ANY, 0);
        meta_keep_while(&c, &node, false);
        buf_deinit(&payload);
    } else {
        meta_delete(&c, &path, META_IF_ANY, 0);
    }
    op_submit(op, &c);
}
