// SPDX-License-Identifier: Apache-2.0
// Commands for tests of the queue's state machine, and a machine to apply them to.
#pragma once
#include "node/queue/queue_fsm.h"
#include <check.h>
#include <stdlib.h>

static struct queue_settings kit_settings(void)
{
    return (struct queue_settings){.max_length = -1, .max_length_bytes = -1, .delivery_limit = 20};
}

struct kit {
    struct queue_fsm fsm;
    struct queue_effects fx;
    uint64_t index;
    struct buf cmd;
};

static void kit_init(struct kit *k, struct queue_settings s)
{
    memset(k, 0, sizeof(*k));
    queue_fsm_init(&k->fsm, &s);
    queue_effects_init(&k->fx);
    k->index = 1;
}

static void kit_deinit(struct kit *k)
{
    queue_fsm_deinit(&k->fsm);
    queue_effects_deinit(&k->fx);
    buf_deinit(&k->cmd);
}

static struct queue_session_id kit_id(uint32_t node, uint64_t incarnation, uint64_t counter)
{
    return (struct queue_session_id){.incarnation = incarnation, .counter = counter, .node = node};
}

// Applies what is in k->cmd; returns its index.
static inline uint64_t kit_apply(struct kit *k)
{
    uint64_t index = ++k->index;
    queue_effects_reset(&k->fx);
    queue_fsm_apply(&k->fsm, index, buf_span(&k->cmd), &k->fx);
    queue_fsm_check(&k->fsm);
    return index;
}

static inline void kit_head(struct kit *k, enum queue_command_kind kind, struct queue_session_id id, uint64_t seq)
{
    k->cmd.len = 0;
    queue_command_head(&k->cmd, kind, 0, id, seq, 0);
}

static inline void kit_open(struct kit *k, struct queue_session_id id)
{
    kit_head(k, QUEUE_COMMAND_OPEN, id, 0);
    kit_apply(k);
}

static inline uint64_t kit_seq(struct kit *k, struct queue_session_id id, enum queue_stream stream)
{
    struct queue_fsm_session *s = queue_fsm_session_find(&k->fsm, id);
    return s ? s->seq[stream] + 1 : 1;
}

static inline void kit_publish_command(struct kit *k, struct queue_session_id id, uint64_t seq, int priority,
                                       struct span body)
{
    struct span key = span_str("key");
    struct queue_publish p = {.routing_keys = &key,
                              .routing_keys_count = 1,
                              .header = {0},
                              .body = body,
                              .expiry_ms = -1};
    p.has_priority = priority >= 0;
    p.priority = (uint8_t)(priority >= 0 ? priority : 0);
    k->cmd.len = 0;
    size_t size = queue_enqueue_size(&p);
    queue_enqueue_write(buf_extend(&k->cmd, size), size, id, seq, 0, &p);
}

static inline uint64_t kit_publish(struct kit *k, struct queue_session_id id, int priority, const char *body)
{
    kit_publish_command(k, id, kit_seq(k, id, QUEUE_STREAM_PUBLISH), priority, span_str(body));
    return kit_apply(k);
}

static inline void kit_control(struct kit *k, enum queue_command_kind kind, struct queue_session_id id,
                               const void *body, size_t n)
{
    kit_head(k, kind, id, kit_seq(k, id, QUEUE_STREAM_CONTROL));
    buf_bytes(&k->cmd, body, n);
    kit_apply(k);
}

static inline void kit_consume(struct kit *k, struct queue_session_id id, uint32_t consumer,
                               uint32_t prefetch, int32_t priority)
{
    kit_head(k, QUEUE_COMMAND_CHECKOUT, id, kit_seq(k, id, QUEUE_STREAM_CONTROL));
    struct queue_consume c = {.consumer = consumer, .prefetch = prefetch, .priority = priority, .tag = span_str("tag")};
    queue_command_checkout(&k->cmd, &c);
    kit_apply(k);
}

static inline void kit_settle(struct kit *k, struct queue_session_id id, uint32_t consumer, uint64_t first,
                              uint64_t last, enum queue_settle how)
{
    kit_head(k, QUEUE_COMMAND_SETTLE, id, kit_seq(k, id, QUEUE_STREAM_CONTROL));
    struct queue_settle_wire w = {.first = first, .last = last, .consumer = consumer, .how = (uint32_t)how};
    buf_u32(&k->cmd, 1);
    buf_bytes(&k->cmd, &w, sizeof(w));
    kit_apply(k);
}

static inline void kit_node_down(struct kit *k, uint32_t node, uint64_t incarnation)
{
    kit_head(k, QUEUE_COMMAND_NODE_DOWN, kit_id(0, 0, 0), 0);
    buf_u32(&k->cmd, node);
    buf_u64(&k->cmd, incarnation);
    kit_apply(k);
}

static inline void kit_configure(struct kit *k, struct queue_settings s)
{
    kit_head(k, QUEUE_COMMAND_CONFIGURE, kit_id(0, 0, 0), 0);
    queue_command_configure(&k->cmd, &s);
    kit_apply(k);
}

static inline struct queue_fsm_consumer *kit_consumer(struct kit *k, struct queue_session_id id, uint32_t consumer)
{
    struct queue_fsm_session *s = queue_fsm_session_find(&k->fsm, id);
    return s ? queue_fsm_consumer_find(s, consumer) : NULL;
}

// The n-th (from 0) message a consumer holds; asserts that there is one.
static inline const struct queue_unsettled *kit_held(struct kit *k, struct queue_session_id id,
                                                     uint32_t consumer, uint32_t n)
{
    struct queue_fsm_consumer *c = kit_consumer(k, id, consumer);
    ck_assert_ptr_nonnull(c);
    const struct queue_unsettled *u = queue_fsm_next(c, 0);
    while (u && n-- > 0) {
        u = queue_fsm_next(c, u->number);
    }
    ck_assert_ptr_nonnull(u);
    return u;
}

static inline const struct queue_effect *kit_effect(struct kit *k, enum queue_effect_kind kind)
{
    for (uint32_t i = 0; i < k->fx.count; i++) {
        if (k->fx.items[i].kind == kind) {
            return &k->fx.items[i];
        }
    }
    return NULL;
}
