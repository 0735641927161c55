// SPDX-License-Identifier: Apache-2.0
// Queues of the projection. On the worker that owns a queue's group, the queue's record also starts and ends the local
// replica: that is the only way replicas come and go (law 3).
#include "node/broker/internal.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "proto/broker.pb-c.h"
#include <stdlib.h>

uint32_t node_replica_count(struct broker *b, uint32_t node_id)
{
    return (uint32_t)(uintptr_t)map_get(&b->replicas_by_node, node_id);
}

static void count_replicas(struct broker *b, const struct queue_target *t, int by)
{
    for (uint32_t i = 0; i < t->members_count; i++) {
        uint32_t n = node_replica_count(b, t->members[i].node_id) + (uint32_t)by;
        if (n == 0) {
            map_remove(&b->replicas_by_node, t->members[i].node_id);
        } else {
            map_put(&b->replicas_by_node, t->members[i].node_id, (void *)(uintptr_t)n);
        }
    }
}

void queue_settings_from(struct span arguments, struct queue_settings *out)
{
    *out = (struct queue_settings){.max_length = -1, .max_length_bytes = -1, .delivery_limit = 20};
    struct table_value v;
    if (table_find(arguments, "x-max-length", &v)) {
        table_value_integer(&v, &out->max_length);
    }
    if (table_find(arguments, "x-max-length-bytes", &v)) {
        table_value_integer(&v, &out->max_length_bytes);
    }
    if (table_find(arguments, "x-delivery-limit", &v)) {
        table_value_integer(&v, &out->delivery_limit);
    }
    struct span overflow;
    if (table_find_string(arguments, "x-overflow", &overflow)) {
        out->is_reject_publish = span_equal(overflow, span_str("reject-publish"));
    }
    table_find_bool(arguments, "x-single-active-consumer", &out->is_single_active);
}

static void start_replica(struct broker *b, struct queue *q, bool is_new)
{
    const struct broker_config *c = &b->config;
    const struct queue_target *t = &q->pub.target;
    if (q->pub.type != QUEUE_QUORUM || c->worker_of(c->ctx, t->group) != c->worker) {
        return;
    }
    for (uint32_t i = 0; i < t->members_count; i++) {
        if (t->members[i].node_id != c->node_id) {
            continue;
        }
        struct queue_replica_spec spec = {
            .target = *t,
            .replica_id = t->members[i].replica_id,
            .recovered = c->recovered ? c->recovered(c->ctx, t->group) : NULL,
            .settings = q->pub.settings,
            .campaign_at_once = is_new && i == 0,
        };
        enum rc rc = queue_replica_add(c->queues, &spec);
        if (rc != RC_OK) {
            log_error("cannot start the replica of queue '%.*s' (group %llu): %s", (int)q->pub.name.len,
                      (const char *)q->pub.name.ptr, (unsigned long long)t->group, rc_text(rc));
            b->has_unread = true;
        }
    }
}

static bool decode_queue(const struct meta_change *c, struct queue *q)
{
    if (c->payload.len < 8) {
        return false;
    }
    uint64_t first_id;
    memcpy(&first_id, c->payload.ptr, 8);
    Warren__QueueRecord *r = warren__queue_record__unpack(NULL, c->payload.len - 8, c->payload.ptr + 8);
    bool ok = r && queue_type_parse(span_str(r->type), &q->pub.type) && r->n_member_nodes <= LIMIT_VOTERS;
    if (ok) {
        q->pub.is_durable = r->durable;
        q->pub.arguments = copy_span(span_of(r->arguments.data, r->arguments.len));
        q->pub.target.group = first_id;
        q->pub.target.members_count = (uint32_t)r->n_member_nodes;
        for (uint32_t i = 0; i < r->n_member_nodes; i++) {
            q->pub.target.members[i] =
                (struct member){.replica_id = first_id + 1 + i, .node_id = r->member_nodes[i], .is_voter = true};
        }
        queue_settings_from(q->pub.arguments, &q->pub.settings);
        q->pub.settings.metadata_version = c->version;
    }
    if (r) {
        warren__queue_record__free_unpacked(r, NULL);
    }
    return ok;
}

static void queue_free(struct queue *q)
{
    forget_destination(&q->incoming);
    free_span(q->pub.name);
    free_span(q->pub.arguments);
    free(q);
}

void queue_remove(struct broker_vhost *v, struct queue *q)
{
    struct broker *b = v->broker;
    map_remove_bytes(&v->queues, q->pub.name);
    count_replicas(b, &q->pub.target, -1);
    if (!b->is_closing) {
        // Also without a replica here: sessions of this worker learn that the queue is gone.
        queue_replica_remove(b->config.queues, q->pub.target.group, true);
    }
    queue_free(q);
}

void queue_told(struct broker_vhost *v, struct span name, const struct meta_change *c)
{
    struct broker *b = v->broker;
    struct queue *q = vhost_queue(v, name);
    if (c->is_deleted) {
        if (q) {
            queue_remove(v, q);
        }
        return;
    }
    if (q && c->payload.len >= 8 && memcmp(c->payload.ptr, &q->pub.target.group, 8) == 0) {
        q->told = b->generation;
        return;  // Records of queues do not change yet.
    }
    if (q) {
        queue_remove(v, q);  // Another queue of the same name, made while this node was behind.
    }
    q = mem_zalloc(sizeof(*q));
    q->told = b->generation;
    q->vhost = v;
    q->pub.name = copy_span(name);
    list_init(&q->incoming);
    if (!decode_queue(c, q)) {
        log_error("the record of queue '%.*s' does not decode; the queue is left alone", (int)name.len, (const char *)name.ptr);
        b->has_unread = true;
        queue_free(q);
        return;
    }
    map_put_bytes(&v->queues, name, q);
    count_replicas(b, &q->pub.target, 1);
    resolve_waiting(v, name, true);
    start_replica(b, q, b->is_loaded);
}

