// SPDX-License-Identifier: Apache-2.0
// The queue's state machine: commands in, state and effects out (queue_fsm.h).
//
// Every session command is first held against the session's last applied seq: the next one is applied, an older one
// only answered, one too far ahead only named as a gap. So whatever the leader's side proposed twice or in
// vain, the state moves once. After each command come checkout and limits, in this order: what is delivered no longer counts,
// and who has credit gets a message before it is dropped for being one too many.
//
// Not here: reading messages, sending, time. The stamp of the command is the only clock.
#include "node/queue/queue_fsm_parts.h"
#include <stdlib.h>

void queue_effects_init(struct queue_effects *fx)
{
    *fx = (struct queue_effects){.round = 1};
}

void queue_effects_reset(struct queue_effects *fx)
{
    fx->count = 0;
    fx->round++;
}

void queue_effects_deinit(struct queue_effects *fx)
{
    free(fx->items);
    *fx = (struct queue_effects){0};
}

struct queue_effect *queue_effect_push(struct queue_effects *fx, enum queue_effect_kind kind)
{
    if (!fx) {
        return NULL;
    }
    if (fx->count == fx->cap) {
        fx->cap = fx->cap ? fx->cap * 2 : 64;
        fx->items = mem_realloc(fx->items, fx->cap * sizeof(*fx->items));
    }
    struct queue_effect *e = &fx->items[fx->count++];
    *e = (struct queue_effect){.kind = kind};
    return e;
}

static void effect_session(struct queue_effects *fx, enum queue_effect_kind kind, struct queue_fsm_session *s,
                           uint64_t value)
{
    struct queue_effect *e = queue_effect_push(fx, kind);
    if (e) {
        e->session = s;
        e->user = s->user;
        e->id = s->id;
        e->value = value;
    }
}

static void effect_id(struct queue_effects *fx, enum queue_effect_kind kind, struct queue_session_id id)
{
    struct queue_effect *e = queue_effect_push(fx, kind);
    if (e) {
        e->id = id;
    }
}

void queue_effect_applied(struct queue_effects *fx, struct queue_fsm_session *s)
{
    if (fx && s->mark != fx->round) {
        s->mark = fx->round;
        effect_session(fx, QUEUE_EFFECT_APPLIED, s, 0);
    }
}

void queue_fsm_init(struct queue_fsm *f, const struct queue_settings *settings)
{
    *f = (struct queue_fsm){.settings = *settings};
    queue_ready_init(&f->ready);
}

void queue_fsm_deinit(struct queue_fsm *f)
{
    while (f->busy) {
        struct queue_fsm_session *s = list_entry(f->busy->sessions.next, struct queue_fsm_session, link);
        queue_session_remove(f, s, false, NULL);
    }
    queue_ready_clear(&f->ready);
    queue_returns_clear(&f->returns);
    if (f->big) {
        map_deinit(f->big);
        free(f->big);
    }
    free(f->nodes);
    *f = (struct queue_fsm){0};
}

// ---- messages ----------------------------------------------------------------------------------------------------

uint64_t queue_fsm_size(const struct queue_fsm *f, queue_ref ref)
{
    uint32_t size = queue_ref_size(ref);
    if (size < QUEUE_REF_SIZE_MAX) {
        return size;
    }
    void *known = f->big ? map_get(f->big, queue_ref_index(ref)) : NULL;
    return known ? (uint64_t)(uintptr_t)known : size;
}

void queue_fsm_drop(struct queue_fsm *f, queue_ref ref)
{
    if (queue_ref_size(ref) == QUEUE_REF_SIZE_MAX && f->big) {
        map_remove(f->big, queue_ref_index(ref));
        if (map_count(f->big) == 0) {
            map_deinit(f->big);
            free(f->big);
            f->big = NULL;
        }
    }
}

bool queue_fsm_pop_head(struct queue_fsm *f, struct queue_returned *out)
{
    if (!queue_returns_pop(&f->returns, out)) {
        *out = (struct queue_returned){.ref = queue_ready_pop(&f->ready)};
        if (out->ref == 0) {
            return false;
        }
    }
    assert(f->ready_count > 0);
    f->ready_count--;
    f->ready_bytes -= queue_fsm_size(f, out->ref);
    return true;
}

void queue_fsm_return(struct queue_fsm *f, const struct queue_unsettled *u, bool is_acquired, bool is_failed)
{
    struct queue_returned m = {.ref = u->ref, .acquired = u->acquired + is_acquired, .failed = u->failed + is_failed};
    if (is_failed && f->settings.delivery_limit >= 0 && m.failed > (uint64_t)f->settings.delivery_limit) {
        queue_fsm_drop(f, m.ref);  // Poison (data-plane §4.4).
        return;
    }
    queue_returns_push(&f->returns, m);
    f->ready_count++;
    f->ready_bytes += queue_fsm_size(f, m.ref);
}

static bool is_over(const struct queue_fsm *f)
{
    const struct queue_settings *s = &f->settings;
    return (s->max_length >= 0 && f->ready_count > (uint64_t)s->max_length) ||
           (s->max_length_bytes >= 0 && f->ready_bytes > (uint64_t)s->max_length_bytes);
}

static bool is_low(const struct queue_fsm *f)
{
    const struct queue_settings *s = &f->settings;
    return (s->max_length < 0 ||
            f->ready_count <= (uint64_t)s->max_length / 5 * 4 + (uint64_t)s->max_length % 5 * 4 / 5) &&
           (s->max_length_bytes < 0 || f->ready_bytes <= (uint64_t)s->max_length_bytes / 5 * 4 +
                                                             (uint64_t)s->max_length_bytes % 5 * 4 / 5);
}

// data-plane §4.2.
static void enforce_limits(struct queue_fsm *f)
{
    if (f->settings.is_reject_publish) {
        f->is_rejecting = f->is_rejecting ? !is_low(f) : is_over(f);
        return;
    }
    f->is_rejecting = false;
    struct queue_returned m;
    while (!f->has_more && is_over(f) && queue_fsm_pop_head(f, &m)) {
        queue_fsm_drop(f, m.ref);
    }
}

static void apply_enqueue(struct queue_fsm *f, uint64_t index, const struct queue_command *c,
                          struct queue_fsm_session *s, struct queue_effects *fx)
{
    if (f->is_rejecting) {
        queue_session_reject(s, c->fixed.seq);
        effect_session(fx, QUEUE_EFFECT_REJECTED, s, c->fixed.seq);
        return;
    }
    uint32_t size = c->enqueue.size;
    if (size >= QUEUE_REF_SIZE_MAX) {
        if (!f->big) {
            f->big = mem_alloc(sizeof(*f->big));
            map_init_u64(f->big);
        }
        map_put(f->big, index, (void *)(uintptr_t)size);
    }
    uint32_t priority = QUEUE_PRIORITY_ABSENT;
    if (c->fixed.flags & QUEUE_FLAG_HAS_PRIORITY) {
        priority = c->enqueue.fixed.priority < QUEUE_PRIORITIES ? c->enqueue.fixed.priority : QUEUE_PRIORITIES - 1;
    }
    queue_ready_push(&f->ready, priority, queue_ref_make(index, size));
    f->ready_count++;
    f->ready_bytes += size;
}

// ---- session commands ----------------------------------------------------------------------------------------------

static void apply_settle(struct queue_fsm *f, const struct queue_command *c, struct queue_fsm_session *s,
                         struct queue_effects *fx)
{
    for (uint32_t i = 0; i < c->settle.count; i++) {
        struct queue_settle_wire w;
        memcpy(&w, c->settle.ranges.ptr + i * sizeof(w), sizeof(w));
        struct queue_fsm_consumer *consumer = queue_fsm_consumer_find(s, w.consumer);
        if (consumer && w.how <= QUEUE_DISCARD) {
            queue_consumer_settle(f, consumer, &w, fx);
        }
    }
}

static void apply_get(struct queue_fsm *f, struct queue_fsm_session *s, struct queue_effects *fx)
{
    s->query_number = 0;
    // A queue with a single active consumer gives nothing to others (the channel refuses before; law 5).
    if (f->ready_count > 0 && !f->settings.is_single_active) {
        struct queue_fsm_consumer *c = queue_fsm_consumer_find(s, 0);
        if (!c) {
            c = queue_consumer_add(f, s, 0, 0, (struct span){0});
        }
        s->query_number = queue_consumer_take(f, c, fx);
    }
    s->query_ready = f->ready_count;
}

static void apply_purge(struct queue_fsm *f, struct queue_fsm_session *s)
{
    s->query_number = f->ready_count;
    s->query_ready = 0;
    struct queue_returned m;
    if (!f->big) {
        queue_ready_clear(&f->ready);
        queue_returns_clear(&f->returns);
        f->ready_count = f->ready_bytes = 0;
    }
    while (f->ready_count > 0 && queue_fsm_pop_head(f, &m)) {
        queue_fsm_drop(f, m.ref);
    }
}

static void answer_query(struct queue_fsm_session *s, uint64_t seq, struct queue_effects *fx)
{
    if (s->query_kind != 0 && s->query_seq == seq) {
        effect_session(fx, QUEUE_EFFECT_QUERY, s, seq);
    }
}

static void apply_control(struct queue_fsm *f, const struct queue_command *c, struct queue_fsm_session *s,
                          struct queue_effects *fx)
{
    struct queue_fsm_consumer *consumer;
    switch (c->fixed.kind) {
    case QUEUE_COMMAND_CHECKOUT:
        queue_consumer_attach(f, s, c, fx);
        return;
    case QUEUE_COMMAND_CREDIT:
        consumer = queue_fsm_consumer_find(s, c->credit.consumer);
        if (consumer && consumer->prefetch == 0) {
            uint64_t credit = (uint64_t)consumer->credit + c->credit.add;
            consumer->credit = credit > UINT32_MAX ? UINT32_MAX : (uint32_t)credit;
            queue_consumer_refresh(f, consumer);
        }
        return;
    case QUEUE_COMMAND_SETTLE:
        apply_settle(f, c, s, fx);
        return;
    case QUEUE_COMMAND_CANCEL:
        consumer = queue_fsm_consumer_find(s, c->cancel_consumer);
        if (consumer) {
            queue_consumer_cancel(f, consumer, fx);
        }
        return;
    case QUEUE_COMMAND_GET:
    case QUEUE_COMMAND_PURGE:
        s->query_kind = c->fixed.kind;
        s->query_seq = c->fixed.seq;
        if (c->fixed.kind == QUEUE_COMMAND_GET) {
            apply_get(f, s, fx);
        } else {
            apply_purge(f, s);
        }
        answer_query(s, c->fixed.seq, fx);
        return;
    default:
        assert(c->fixed.kind == QUEUE_COMMAND_END);
        queue_session_remove(f, s, true, fx);
    }
}

static void apply_session_command(struct queue_fsm *f, uint64_t index, const struct queue_command *c,
                                  struct queue_effects *fx)
{
    if (c->fixed.kind == QUEUE_COMMAND_OPEN) {
        queue_session_open_apply(f, c->session, fx);
        return;
    }
    struct queue_fsm_session *s = queue_fsm_session_find(f, c->session);
    if (!s) {
        effect_id(fx, QUEUE_EFFECT_UNKNOWN, c->session);
        return;
    }
    queue_session_known(s, c->fixed.known);
    enum queue_stream stream = queue_command_stream(c->fixed.kind);
    if (c->fixed.seq <= s->seq[stream]) {
        queue_effect_applied(fx, s);
        answer_query(s, c->fixed.seq, fx);
        return;
    }
    if (c->fixed.seq != s->seq[stream] + 1) {
        effect_session(fx, QUEUE_EFFECT_GAP, s, stream);
        return;
    }
    s->seq[stream]++;
    queue_effect_applied(fx, s);
    if (stream == QUEUE_STREAM_PUBLISH) {
        apply_enqueue(f, index, c, s, fx);
    } else {
        apply_control(f, c, s, fx);
    }
}

static void apply_configure(struct queue_fsm *f, const struct queue_settings *s)
{
    if (s->metadata_version <= f->settings.metadata_version) {
        return;  // An older one never overrides.
    }
    f->settings = *s;
    if (!f->busy) {
        return;
    }
    f->busy->active = NULL;
    f->busy->is_quiescing = false;
    if (s->is_single_active) {
        queue_consumer_choose_active(f);
    }
    list_each (l, &f->busy->consumers) {
        queue_consumer_refresh(f, list_entry(l, struct queue_fsm_consumer, in_queue));
    }
}

void queue_fsm_apply(struct queue_fsm *f, uint64_t index, struct span payload, struct queue_effects *fx)
{
    struct queue_command c;
    if (queue_command_decode(payload, &c) != RC_OK) {
        f->ignored++;
        return;
    }
    if (c.fixed.stamp_ms > f->stamp_ms) {
        f->stamp_ms = c.fixed.stamp_ms;
    }
    if (queue_command_has_session(c.fixed.kind)) {
        apply_session_command(f, index, &c, fx);
    } else if (c.fixed.kind == QUEUE_COMMAND_CONFIGURE) {
        apply_configure(f, &c.configure);
    } else if (c.fixed.kind == QUEUE_COMMAND_NODE_DOWN) {
        queue_node_down_apply(f, c.node_down.node, c.node_down.incarnation, fx);
    }
    queue_fsm_checkout(f, fx);
    enforce_limits(f);
}

// ---- invariant -----------------------------------------------------------------------------------------------------

static void check_consumer(const struct queue_fsm *f, const struct queue_fsm_consumer *c, uint64_t *held,
                           uint64_t *bytes)
{
    uint64_t before = 0;
    uint32_t live = 0;
    for (uint32_t i = c->start; i < c->len; i++) {
        assert(c->unsettled[i].number > before);
        before = c->unsettled[i].number;
        if (c->unsettled[i].ref != 0) {
            live++;
            *bytes += queue_fsm_size(f, c->unsettled[i].ref);
        }
    }
    assert(live == c->held);
    assert(before < c->next_number);
    assert(c->prefetch == 0 || c->id == 0 || list_is_empty(&c->waiting) || c->held < c->prefetch);
    *held += live;
}

void queue_fsm_check(const struct queue_fsm *f)
{
    uint64_t held = 0, bytes = 0, count = f->ready.normal.count + f->returns.count;
    for (uint32_t i = 0; f->ready.others && i < QUEUE_PRIORITIES; i++) {
        count += f->ready.others[i].count;
    }
    assert(count == f->ready_count);
    assert(f->ready_count > 0 || f->ready_bytes == 0);
    uint32_t sessions = 0, consumers = 0;
    if (f->busy) {
        list_each (l, &f->busy->sessions) {
            sessions++;
        }
        list_each (l, &f->busy->consumers) {
            consumers++;
            check_consumer(f, list_entry(l, struct queue_fsm_consumer, in_queue), &held, &bytes);
        }
        assert(sessions == f->busy->sessions_count && sessions > 0);
        assert(consumers == f->busy->consumers_count);
    }
    assert(held == f->unacked_count);
    assert(bytes == f->unacked_bytes);
    assert(!f->has_more || f->ready_count > 0);
}
