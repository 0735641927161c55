// SPDX-License-Identifier: Apache-2.0
// The nodes of the cluster: their records (name, ids, store id, address), and which of them are in maintenance mode.
//
// A record is made by a joining node's command, which gives it ids that were never given before; it is
// replaced when the node lost its disk (law 2) and deleted when the node is forgotten. A node in maintenance
// mode has a record of its own beside it, which goes with it (operator-plane §5.6).
#include "node/broker/internal.h"
#include "node/base/mem.h"
#include "proto/broker.pb-c.h"
#include <stdlib.h>

// ---- projection --------------------------------------------------------------------------------------------------

static struct span dup_span(struct span s)
{
    return span_of(mem_strndup(s.ptr, s.len), s.len);
}

static void drop_span(struct span s)
{
    free((void *)(uintptr_t)s.ptr);
}

static void node_free(struct node *n)
{
    drop_span(n->pub.store_id);
    drop_span(n->pub.address);
    free((void *)(uintptr_t)n->pub.former_ids);
    free(n->name);
    free(n);
}

static void tell_node(struct broker *b, const struct node *n, bool is_known)
{
    if (b->config.worker == 0 && b->config.node_changed) {
        b->config.node_changed(b->config.ctx, n->pub.name, n->pub.node_id, n->pub.store_id, n->pub.address, is_known);
    }
}

void nodes_change(struct broker *b, struct span name, const struct meta_change *c)
{
    struct node *n = map_remove_bytes(&b->nodes, name);
    if (n && c->is_deleted) {
        tell_node(b, n, false);
    }
    if (n) {
        node_free(n);
    }
    if (c->is_deleted || c->payload.len < 8) {
        return;
    }
    uint64_t first_id;
    memcpy(&first_id, c->payload.ptr, 8);
    Warren__NodeRecord *r = warren__node_record__unpack(NULL, c->payload.len - 8, c->payload.ptr + 8);
    if (r) {
        n = mem_zalloc(sizeof(*n));
        n->name = mem_strndup(name.ptr, name.len);
        n->pub = (struct broker_node){
            .name = span_of(n->name, name.len),
            .store_id = dup_span(span_of(r->store_id.data, r->store_id.len)),
            .address = dup_span(span_str(r->address)),
            .node_id = r->node_id ? r->node_id : (uint32_t)first_id,
            .replica_id = r->replica_id ? r->replica_id : first_id + 1,
            .version = c->version,
            .former_ids_count = (uint32_t)r->n_former_ids,
        };
        if (r->n_former_ids > 0) {
            n->pub.former_ids = (uint32_t *)mem_strndup(r->former_ids, r->n_former_ids * sizeof(uint32_t));
        }
        n->pub.is_draining = map_get_bytes(&b->draining, name) != NULL;
        n->told = b->generation;
        map_put_bytes(&b->nodes, name, n);
        tell_node(b, n, true);
        warren__node_record__free_unpacked(r, NULL);
    }
}

void nodes_maintenance_change(struct broker *b, struct span name, const struct meta_change *c)
{
    struct node *n = map_get_bytes(&b->nodes, name);
    uint64_t *told = map_get_bytes(&b->draining, name);
    if (c->is_deleted) {
        map_remove_bytes(&b->draining, name);
        free(told);
    } else {
        if (!told) {
            told = mem_alloc(sizeof(*told));
            map_put_bytes(&b->draining, name, told);
        }
        *told = b->generation;
    }
    if (n) {
        n->pub.is_draining = !c->is_deleted;
    }
}

// Drops what a reset did not tell again.
void nodes_sweep(struct broker *b)
{
    uint32_t pos = 0;
    struct span name;
    for (struct node *n; (n = map_next(&b->nodes, &pos, NULL, &name));) {
        if (n->told != b->generation) {
            map_remove_bytes(&b->nodes, name);
            tell_node(b, n, false);
            node_free(n);
        }
    }
    pos = 0;
    for (uint64_t *told; (told = map_next(&b->draining, &pos, NULL, &name));) {
        if (*told != b->generation) {
            struct node *n = map_get_bytes(&b->nodes, name);
            if (n) {
                n->pub.is_draining = false;
            }
            map_remove_bytes(&b->draining, name);
            free(told);
        }
    }
}

void nodes_init(struct broker *b)
{
    map_init_bytes(&b->nodes);
    map_init_bytes(&b->draining);
}

void nodes_deinit(struct broker *b)
{
    uint32_t pos = 0;
    for (struct node *n; (n = map_next(&b->nodes, &pos, NULL, NULL));) {
        node_free(n);
    }
    pos = 0;
    for (uint64_t *told; (told = map_next(&b->draining, &pos, NULL, NULL));) {
        free(told);
    }
    map_deinit(&b->nodes);
    map_deinit(&b->draining);
}

// ---- lookups -----------------------------------------------------------------------------------------------------

void broker_node_each(struct broker *b, void (*each)(void *ctx, const struct broker_node *n), void *ctx)
{
    uint32_t pos = 0;
    for (struct node *n; (n = map_next(&b->nodes, &pos, NULL, NULL));) {
        each(ctx, &n->pub);
    }
}

const struct broker_node *broker_node_find(struct broker *b, struct span name)
{
    struct node *n = map_get_bytes(&b->nodes, name);
    return n ? &n->pub : NULL;
}

const struct broker_node *broker_node_by_id(struct broker *b, uint32_t node_id)
{
    uint32_t pos = 0;
    for (struct node *n; (n = map_next(&b->nodes, &pos, NULL, NULL));) {
        if (n->pub.node_id == node_id) {
            return &n->pub;
        }
    }
    return NULL;
}

const struct broker_node *broker_node_successor(struct broker *b, uint32_t retired_id)
{
    uint32_t pos = 0;
    for (struct node *n; (n = map_next(&b->nodes, &pos, NULL, NULL));) {
        for (uint32_t i = 0; i < n->pub.former_ids_count; i++) {
            if (n->pub.former_ids[i] == retired_id) {
                return &n->pub;
            }
        }
    }
    return NULL;
}
