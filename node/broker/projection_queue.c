// SPDX-License-Identifier: Apache-2.0
// Queues of the projection. On the worker that owns a queue's group, the queue's record also starts and ends the local
// replica: that is the only way replicas come and go (law 3).
#include "node/broker/internal.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/base/slab.h"
#include "proto/broker.pb-c.h"
#include <stdlib.h>

uint32_t node_replica_count(struct broker *b, uint32_t node_id)
{
    return (uint32_t)(uintptr_t)map_get(&b->replicas_by_node, node_id);
}

uint32_t node_lead_count(struct broker *b, uint32_t node_id)
{
    return (uint32_t)(uintptr_t)map_get(&b->leads_by_node, node_id);
}

static void count(struct map *m, uint32_t node_id, int by)
{
    const uint32_t n = (uint32_t)(uintptr_t)map_get(m, node_id) + (uint32_t)by;
    if (n == 0) {
        map_remove(m, node_id);
    } else {
        map_put(m, node_id, (void *)(uintptr_t)n);
    }
}

static void count_replicas(struct broker *b, const struct queue_target *t, int by)
{
    for (uint32_t i = 0; i < t->members_count; i++) {
        count(&b->replicas_by_node, t->members[i].node_id, by);
    }
    if (t->members_count > 0) {
        count(&b->leads_by_node, t->members[0].node_id, by);
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

static size_t target_size(uint32_t members, uint32_t founders)
{
    return offsetof(struct queue_target, members) + members * sizeof(struct member) + founders * sizeof(uint32_t);
}

static const uint32_t *founders_of(const struct queue *q)
{
    return (const uint32_t *)(const void *)&q->pub.target->members[q->pub.target->members_count];
}

void queue_founding(const struct queue *q, struct queue_target *out)
{
    *out = (struct queue_target){.group = q->pub.target->group, .members_count = q->founders_count};
    for (uint32_t i = 0; i < q->founders_count; i++) {
        const uint32_t node = q->has_founders ? founders_of(q)[i] : q->pub.target->members[i].node_id;
        out->members[i] = (struct member){.replica_id = out->group + 1 + i, .node_id = node, .is_voter = true};
    }
}

// The replica that the record names on this node; 0: none.
static uint64_t own_replica(const struct broker *b, const struct queue_target *t)
{
    for (uint32_t i = 0; i < t->members_count; i++) {
        if (t->members[i].node_id == b->config.node_id) {
            return t->members[i].replica_id;
        }
    }
    return 0;
}

static bool is_owned_here(const struct broker *b, const struct queue *q)
{
    const struct broker_config *c = &b->config;
    return q->pub.type == QUEUE_QUORUM && c->worker_of(c->ctx, q->pub.target->group) == c->worker;
}

// What an earlier replica left here is not taken over (host_group_add). What a later one left is not touched: LMDB
// fell back in a crash, so the record is behind the disk, and the one that names the later replica is on its way.
static void start_replica(struct broker *b, struct queue *q, bool is_new)
{
    const struct broker_config *c = &b->config;
    const uint64_t group = q->pub.target->group, replica = own_replica(b, q->pub.target);
    if (replica == 0 || !is_owned_here(b, q)) {
        return;
    }
    struct queue_replica_spec spec = {
        .owner = q,
        .replica_id = replica,
        .recovered = c->recovered ? c->recovered(c->ctx, group, replica) : NULL,
        .campaign_at_once = is_new && replica == group + 1,
    };
    queue_settings_from(q->pub.arguments, &spec.settings);
    spec.settings.metadata_version = 1;  // The arguments of a queue never change.
    queue_founding(q, &spec.target);
    enum rc rc = queue_replica_add(c->queues, &spec);
    if (rc == RC_STALE) {
        log_notice("group %llu: a later replica than %llu is here; its record is waited for", (unsigned long long)group,
                   (unsigned long long)replica);
    } else if (rc != RC_OK) {
        log_error("cannot start the replica of queue '%.*s' (group %llu): %s", (int)q->pub.name.len,
                  (const char *)q->pub.name.ptr, (unsigned long long)group, rc_text(rc));
        b->has_unread = true;
    }
}

static bool is_in_tail(const struct queue *q)
{
    return (const void *)q->pub.target == (const void *)q->tail;
}

static uint32_t founders_behind(const Warren__QueueRecord *r)
{
    return r->n_members > 0 ? (uint32_t)r->n_member_nodes : 0;
}

static size_t record_target_size(const Warren__QueueRecord *r)
{
    return target_size((uint32_t)(r->n_members > 0 ? r->n_members : r->n_member_nodes), founders_behind(r));
}

// Today's members, into record_target_size() bytes: those the record lists, or the founding ones.
static void decode_members(const Warren__QueueRecord *r, uint64_t group, struct queue *q, struct queue_target *t)
{
    q->founders_count = (uint8_t)r->n_member_nodes;
    q->has_founders = r->n_members > 0;
    q->pub.joining = q->pub.filling = q->pub.non_voters = q->pub.lost = q->pub.vacant = 0;
    q->pub.target = t;
    t->group = group;
    if (r->n_members == 0) {
        t->members_count = q->founders_count;
        for (uint32_t i = 0; i < t->members_count; i++) {
            t->members[i] = (struct member){.replica_id = t->group + 1 + i,
                                            .node_id = r->member_nodes[i],
                                            .is_voter = true};
        }
        return;
    }
    t->members_count = (uint32_t)r->n_members;
    for (uint32_t i = 0; i < t->members_count; i++) {
        const Warren__QueueMember *m = r->members[i];
        t->members[i] = (struct member){.replica_id = m->replica_id ? m->replica_id : r->announced_id,
                                        .node_id = m->node_id,
                                        .is_voter = !m->is_joining && !m->is_non_voter};
        q->pub.joining |= (uint8_t)(m->is_joining << i);
        q->pub.filling |= (uint8_t)(m->is_filling << i);
        q->pub.non_voters |= (uint8_t)(m->is_non_voter << i);
        q->pub.lost |= (uint8_t)(m->is_lost << i);
        q->pub.vacant |= (uint8_t)(m->is_vacant << i);
    }
    if (q->founders_count > 0) {
        memcpy((uint32_t *)(uintptr_t)founders_of(q), r->member_nodes, q->founders_count * sizeof(uint32_t));
    }
}

static Warren__QueueRecord *unpack_queue(const struct meta_change *c, enum queue_type *type)
{
    Warren__QueueRecord *r = c->payload.len < 8
                                 ? NULL
                                 : warren__queue_record__unpack(NULL, c->payload.len - 8, c->payload.ptr + 8);
    if (r && (!queue_type_parse(span_str(r->type), type) || r->n_member_nodes > LIMIT_VOTERS ||
              r->n_members > LIMIT_VOTERS)) {
        warren__queue_record__free_unpacked(r, NULL);
        r = NULL;
    }
    return r;
}

static size_t queue_size(size_t target, size_t name, size_t arguments)
{
    return sizeof(struct queue) + target + name + arguments;
}

// One block for all that an unchanging record says. NULL: it does not decode.
static struct queue *queue_make(struct span name, const struct meta_change *c)
{
    enum queue_type type;
    Warren__QueueRecord *r = unpack_queue(c, &type);
    if (!r) {
        return NULL;
    }
    const size_t target = record_target_size(r), arguments = r->arguments.len;
    struct queue *q = slab_zalloc(queue_size(target, name.len, arguments));
    uint64_t group;
    memcpy(&group, c->payload.ptr, 8);
    decode_members(r, group, q, (struct queue_target *)(void *)q->tail);
    uint8_t *at = (uint8_t *)q->tail + target;
    memcpy(at, name.ptr, name.len);
    q->pub.name = span_of(at, name.len);
    if (arguments > 0) {
        memcpy(at + name.len, r->arguments.data, arguments);
    }
    q->pub.arguments = span_of(at + name.len, arguments);
    q->pub.type = type;
    q->pub.is_durable = r->durable;
    q->version = c->version;
    struct queue_settings settings;
    queue_settings_from(q->pub.arguments, &settings);
    q->pub.is_single_active = settings.is_single_active;
    list_init(&q->incoming);
    warren__queue_record__free_unpacked(r, NULL);
    return q;
}

static size_t first_target_size(const struct queue *q)
{
    return (size_t)(q->pub.name.ptr - (const uint8_t *)q->tail);
}

static void target_free(const struct queue *q)
{
    if (!is_in_tail(q)) {
        free((void *)(uintptr_t)q->pub.target);
    }
}

// The same queue's record: its members may have changed.
static void members_told(struct broker *b, struct queue *q, const struct meta_change *c)
{
    q->told = (uint32_t)b->generation;
    enum queue_type type;
    Warren__QueueRecord *r = c->version == q->version ? NULL : unpack_queue(c, &type);
    if (!r) {
        return;
    }
    const uint64_t before = own_replica(b, q->pub.target);
    count_replicas(b, q->pub.target, -1);
    const uint64_t group = q->pub.target->group;
    target_free(q);
    decode_members(r, group, q, mem_alloc(record_target_size(r)));
    q->version = c->version;
    count_replicas(b, q->pub.target, 1);
    warren__queue_record__free_unpacked(r, NULL);
    const uint64_t now = own_replica(b, q->pub.target);
    queue_members_changed(b->config.queues, q->pub.target);
    if (before != now && is_owned_here(b, q)) {
        if (before != 0) {
            queue_replica_leave(b->config.queues, q->pub.target->group);
        }
        start_replica(b, q, false);
    }
    membership_note(b, q);
}

static void queue_free(struct queue *q)
{
    forget_destination(&q->incoming);
    target_free(q);
    slab_free(q, queue_size(first_target_size(q), q->pub.name.len, q->pub.arguments.len));
}

void queue_remove(struct broker_vhost *v, struct queue *q)
{
    struct broker *b = v->broker;
    membership_queue_gone(b, q);
    map_remove_bytes(&v->queues, q->pub.name);
    count_replicas(b, q->pub.target, -1);
    if (!b->is_closing) {
        // Also without a replica here: sessions of this worker learn that the queue is gone.
        queue_replica_remove(b->config.queues, q->pub.target->group, true);
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
    if (q && c->payload.len >= 8 && memcmp(c->payload.ptr, &q->pub.target->group, 8) == 0) {
        members_told(b, q, c);
        return;
    }
    if (q) {
        queue_remove(v, q);  // Another queue of the same name, made while this node was behind.
    }
    q = queue_make(name, c);
    if (!q) {
        log_error("the record of queue '%.*s' does not decode; the queue is left alone", (int)name.len,
                  (const char *)name.ptr);
        b->has_unread = true;
        return;
    }
    q->told = (uint32_t)b->generation;
    q->vhost = v;
    map_put_bytes(&v->queues, q->pub.name, q);
    count_replicas(b, q->pub.target, 1);
    resolve_waiting(v, name, true);
    start_replica(b, q, b->is_loaded);
}
