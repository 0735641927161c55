// SPDX-License-Identifier: Apache-2.0
// Channels: simulated clients of queues, and the checks at their edge.
//
// Checked: a confirm names a message that is committed and on a majority's disks; nothing is delivered that was not
// published, or was rejected; content arrives as it was sent; a delivery is a repeat only with a higher
// acquired count, never while another channel holds the message, never after an acknowledgement that counts;
// first deliveries to one consumer keep each publisher's order; delivery numbers have no holes; a session
// ends only if its node died or was declared down.
#include "tests/sim/sim_queue.h"
#include <assert.h>
#include <stdlib.h>

enum { BODY_HEAD = 16, HELD_MAX = 200, MESSAGES_MAX = 1500 };  // Per channel; per queue.

static uint8_t filler[1 << 20];

static struct message *message_of(struct book *b, uint32_t id)
{
    return id >= 1 && id <= b->count ? &b->messages[id - 1] : NULL;
}

// ---- publishing -------------------------------------------------------------------------------------------

static void encode_header(uint32_t id, uint8_t out[6])
{
    const uint16_t flags = 0x1000;  // delivery-mode.
    memcpy(out, &flags, 2);
    memcpy(out + 2, &id, 4);
}

static void publish(struct channel *c)
{
    struct sim *s = c->node->sim;
    struct book *b = c->book;
    const uint32_t id = b->count + 1;
    uint32_t extra = (uint32_t)sim_range(s, 0, sim_chance(s, 20) ? 6000 : 200);
    if (sim_chance(s, queue_state(s)->big_one_in)) {
        extra = (uint32_t)sim_range(s, 100 << 10, 500 << 10);
    }
    if (b->count == b->cap) {
        b->cap = b->cap ? b->cap * 2 : 256;
        b->messages = mem_realloc(b->messages, b->cap * sizeof(*b->messages));
    }
    const uint32_t number = (uint32_t)(c->published.len / 4) + 1;
    b->messages[b->count++] = (struct message){.publisher = c->number, .number = number, .size = BODY_HEAD + extra};
    uint8_t head[BODY_HEAD], header[6];
    const uint32_t words[4] = {b->slot, id, c->number, number};
    memcpy(head, words, sizeof(words));
    encode_header(id, header);
    const struct span key = span_of((const uint8_t *)"key", 1 + id % 3);
    const struct queue_publish p = {
        .exchange = span_of((const uint8_t *)"ex", 2),
        .routing_keys = &key,
        .routing_keys_count = 1,
        .header = span_of(header, sizeof(header)),
        .body = span_of(head, sizeof(head)),
        .body_more = span_of(filler + id % 256, extra),
        .expiry_ms = -1,
        .is_persistent = true,
    };
    const uint64_t seq = queue_session_publish(c->session, &p);
    buf_u32(&c->published, id);
    s->counters.proposals++;
    if (seq != number) {
        sim_violation(s, "channel %u: publish %u was given sequence %llu", c->number, number, (unsigned long long)seq);
    }
}

static void on_settled(void *ctx, struct queue_session *q, uint64_t through, const uint64_t *rejected,
                       uint32_t rejected_count)
{
    struct channel *c = ctx;
    struct sim *s = c->node->sim;
    const struct sim_group *g = &s->groups[c->book->slot];
    uint32_t at = 0;
    uint64_t index = 0, term = 0;
    (void)q;
    if (through > c->published.len / 4 || through <= c->settled) {
        sim_violation(s, "channel %u: told of publishes up to %llu behind %llu, there are %llu", c->number,
                      (unsigned long long)through, (unsigned long long)c->settled,
                      (unsigned long long)c->published.len / 4);
        return;
    }
    while (c->settled < through) {
        uint32_t id;
        memcpy(&id, c->published.ptr + c->settled * 4, 4);
        c->settled++;
        struct message *m = message_of(c->book, id);
        const bool is_rejected = at < rejected_count && rejected[at] == c->settled;
        at += is_rejected;
        if (m->index == 0) {
            sim_violation(
                s,
                "channel %u: publish %llu (message %u of queue %llu) has an outcome and was never committed",
                c->number, (unsigned long long)c->settled, id, (unsigned long long)g->id);
            return;
        }
        m->is_rejected = is_rejected;
        m->is_confirmed = !is_rejected;
        if (is_rejected && m->deliveries > 0) {
            sim_violation(s, "queue %llu: message %u was delivered and is rejected", (unsigned long long)g->id, id);
        }
        if (m->index > index) {
            index = m->index;
            term = m->term;
        }
        s->counters.acks++;
    }
    if (at < rejected_count) {
        sim_violation(s, "channel %u: a publish is rejected that was settled before or is unknown", c->number);
    }
    sim_check_acked(s, g->id, index, term);
}

// ---- deliveries -------------------------------------------------------------------------------------------

static bool check_content(const struct channel *c, const struct queue_message *m, uint32_t *id)
{
    uint32_t words[4];
    uint8_t header[6];
    if (m->body.len < sizeof(words)) {
        return false;
    }
    memcpy(words, m->body.ptr, sizeof(words));
    *id = words[1];
    const struct message *known = message_of(c->book, *id);
    if (words[0] != c->book->slot || !known || known->publisher != words[2] || known->number != words[3] ||
        known->size != m->body.len) {
        return false;
    }
    encode_header(*id, header);
    return m->exchange.len == 2 && m->routing_key.len == 1 + *id % 3 && m->header.len == sizeof(header) &&
           memcmp(m->header.ptr, header, sizeof(header)) == 0 &&
           memcmp(m->body.ptr + BODY_HEAD, filler + *id % 256, m->body.len - BODY_HEAD) == 0;
}

static void check_delivery(struct channel *c, struct sim_consumer *k, uint32_t id, const struct queue_message *m)
{
    struct sim *s = c->node->sim;
    struct message *x = message_of(c->book, id);
    const char *wrong = NULL;
    if (x->index == 0) {
        wrong = "was never committed";
    } else if (x->is_rejected) {
        wrong = "was rejected";
    } else if (x->deliveries > 0 && m->acquired_count <= x->acquired) {
        wrong = "comes again and does not say so";
    } else if (x->owner && !x->owner->is_broken && !x->owner->is_closed) {
        wrong = "is held by another channel";
    } else if (x->settler && !x->settler->is_broken) {
        wrong = "comes again after it was acknowledged";
    } else if (m->delivery_count > m->acquired_count) {
        wrong = "failed more often than it was taken";
    } else if (m->number != k->last + 1 || !k->is_ready) {
        wrong = "has a delivery number out of order";
    } else if (m->acquired_count == 0) {
        const uintptr_t before = (uintptr_t)map_get(&k->fifo, x->publisher);
        if (before >= x->number) {
            wrong = "overtook an earlier one of its publisher";
        }
        map_put(&k->fifo, x->publisher, (void *)(uintptr_t)x->number);
    }
    if (wrong) {
        sim_violation(s,
                      "channel %u on node %u, consumer %u, queue %llu: message %u (entry %llu) %s (number "
                      "%llu behind %llu, acquired %u, before %u, deliveries %u, owner %u, settler %u)",
                      c->number, c->node->id, k->id, (unsigned long long)s->groups[c->book->slot].id, id,
                      (unsigned long long)x->index, wrong, (unsigned long long)m->number, (unsigned long long)k->last,
                      m->acquired_count, x->acquired, x->deliveries, x->owner ? x->owner->number : 0,
                      x->settler ? x->settler->number : 0);
    }
    x->deliveries++;
    x->acquired = m->acquired_count;
    x->owner = NULL;
    x->settler = NULL;
}

static void take(struct channel *c, struct sim_consumer *k, const struct queue_message *m)
{
    struct sim *s = c->node->sim;
    uint32_t id = 0;
    if (!c->session) {
        sim_violation(s, "channel %u: a delivery after it was closed", c->number);
        return;
    }
    if (!check_content(c, m, &id)) {
        sim_violation(s, "channel %u, queue %llu: a delivery (number %llu) that nobody published", c->number,
                      (unsigned long long)s->groups[c->book->slot].id, (unsigned long long)m->number);
        return;
    }
    if (!c->is_broken) {
        check_delivery(c, k, id, m);
    }
    k->last = m->number;
    struct message *x = message_of(c->book, id);
    if (c->is_broken) {
        // On its way when its node was declared down: the message has gone back, what this channel says of it is void.
    } else if (k->is_no_ack) {
        x->settler = c;
    } else {
        x->owner = c;
        const struct held h = {.consumer = k->id, .number = m->number, .message = id};
        buf_bytes(&c->held, &h, sizeof(h));
    }
    s->counters.reads++;
}

static struct sim_consumer *consumer_of(struct channel *c, uint32_t id)
{
    for (uint32_t i = 0; i < SIM_CONSUMERS; i++) {
        if (c->consumers[i].id == id) {
            return &c->consumers[i];
        }
    }
    return NULL;
}

static void on_deliver(void *ctx, struct queue_session *q, uint32_t consumer, const struct queue_message *m)
{
    struct channel *c = ctx;
    struct sim_consumer *k = consumer_of(c, consumer);
    (void)q;
    if (!k || consumer == 0) {
        sim_violation(c->node->sim, "channel %u: a delivery to consumer %u, which is not there", c->number, consumer);
        return;
    }
    k->untaken += m->body.len;
    take(c, k, m);
}

static void on_consume_done(void *ctx, struct queue_session *q, uint32_t consumer, enum rc rc)
{
    struct channel *c = ctx;
    struct sim_consumer *k = consumer_of(c, consumer);
    (void)q;
    if (!k || k->is_ready || rc != RC_OK) {
        sim_violation(c->node->sim, "channel %u: consume of %u answered out of turn (%s)", c->number,
                      consumer, rc_text(rc));
        return;
    }
    k->is_ready = true;
}

static void on_cancel_done(void *ctx, struct queue_session *q, uint32_t consumer)
{
    struct channel *c = ctx;
    struct sim_consumer *k = consumer_of(c, consumer);
    (void)q;
    if (!k || !k->is_cancelled) {
        sim_violation(c->node->sim, "channel %u: cancel of %u answered out of turn", c->number, consumer);
        return;
    }
    map_deinit(&k->fifo);
    *k = (struct sim_consumer){.id = UINT32_MAX};
}

static void on_get_done(void *ctx, struct queue_session *q, uint64_t token, enum rc rc,
                        const struct queue_message *m, uint64_t ready)
{
    struct channel *c = ctx;
    (void)q;
    (void)ready;
    if (token != c->tokens_answered + 1 || rc != RC_OK) {
        sim_violation(c->node->sim, "channel %u: get %llu answered behind %llu (%s)", c->number,
                      (unsigned long long)token, (unsigned long long)c->tokens_answered, rc_text(rc));
    }
    c->tokens_answered = token;
    if (m) {
        c->consumers[0].is_no_ack = token % 4 == 0;
        take(c, &c->consumers[0], m);
        c->consumers[0].is_no_ack = false;
    }
}

static void on_purge_done(void *ctx, struct queue_session *q, uint64_t token, uint64_t count)
{
    struct channel *c = ctx;
    (void)q;
    (void)count;
    if (token != c->tokens_answered + 1) {
        sim_violation(c->node->sim, "channel %u: purge %llu answered behind %llu", c->number, (unsigned long long)token,
                      (unsigned long long)c->tokens_answered);
    }
    c->tokens_answered = token;
}

static void on_consumer_lost(void *ctx, struct queue_session *q, uint32_t consumer)
{
    (void)ctx;
    (void)q;
    (void)consumer;
}

static void on_ended(void *ctx, struct queue_session *q, bool is_deleted)
{
    struct channel *c = ctx;
    (void)q;
    sim_log(c->node->sim, "channel %u: ended", c->number);
    if (is_deleted || c->is_ended || !c->is_broken) {
        sim_violation(c->node->sim,
                      "channel %u on node %u: its session ended, its node was not declared down%s", c->number,
                      c->node->id, is_deleted ? " (deleted)" : "");
    }
    c->is_ended = true;
}

static void on_writable(void *ctx, struct queue_session *q)
{
    (void)ctx;
    (void)q;
}

// ---- what was committed -----------------------------------------------------------------------------------

static void node_declared_down(struct sim *s, uint32_t slot, uint32_t node, uint64_t incarnation)
{
    struct queue_state *x = queue_state(s);
    for (uint32_t i = 0; i < x->channels_count; i++) {
        struct channel *c = x->channels[i];
        if (c->book->slot == slot && c->node->id == node && c->incarnation <= incarnation && c->is_open) {
            c->is_broken = true;
        }
    }
}

// One that was ended before it knew that it was open gets another number and begins anew.
static void session_opened(struct sim *s, uint32_t slot, struct queue_session_id id)
{
    struct queue_state *x = queue_state(s);
    for (uint32_t i = 0; i < x->channels_count; i++) {
        struct channel *c = x->channels[i];
        if (c->book->slot == slot && c->session && queue_session_id_equal(c->session->id, id)) {
            c->is_open = true;
            c->is_broken = c->is_broken && c->session->was_open;
        }
    }
}

void sim_queue_committed(struct sim *s, uint32_t slot, const struct entry *e)
{
    struct book *b = queue_state(s)->books[slot];
    struct queue_command c;
    if (e->kind != RECORD_ENTRY) {
        return;
    }
    if (queue_command_decode(e->payload, &c) != RC_OK) {
        sim_violation(s, "queue %llu: entry %llu is no command", (unsigned long long)e->group,
                      (unsigned long long)e->index);
        return;
    }
    if (c.fixed.kind == QUEUE_COMMAND_ENQUEUE) {
        struct queue_message m;
        uint32_t words[4] = {0};
        if (queue_message_decode(e->payload, &m) == RC_OK && m.body.len >= sizeof(words)) {
            memcpy(words, m.body.ptr, sizeof(words));
        }
        struct message *x = message_of(b, words[1]);
        if (words[0] != slot || !x) {
            sim_violation(s, "queue %llu: entry %llu holds a message nobody published", (unsigned long long)e->group,
                          (unsigned long long)e->index);
        } else if (x->index == 0) {  // Else it is in the log twice.
            x->index = e->index;
            x->term = e->term;
        }
    } else if (c.fixed.kind == QUEUE_COMMAND_OPEN) {
        session_opened(s, slot, c.session);
    } else if (c.fixed.kind == QUEUE_COMMAND_NODE_DOWN) {
        sim_log(s, "queue %llu: node %u (incarnation %llu) is declared down", (unsigned long long)e->group,
                c.node_down.node, (unsigned long long)c.node_down.incarnation);
        node_declared_down(s, slot, c.node_down.node, c.node_down.incarnation);
    } else if (c.fixed.kind == QUEUE_COMMAND_PURGE) {
        for (uint32_t i = 0; i < b->count; i++) {
            b->messages[i].is_purged = b->messages[i].is_purged || b->messages[i].index != 0;
        }
    }
}

// ---- a channel's life -------------------------------------------------------------------------------------

static void settle_some(struct channel *c)
{
    struct sim *s = c->node->sim;
    struct held *held = (struct held *)(void *)c->held.ptr;
    size_t count = c->held.len / sizeof(*held), kept = 0;
    for (size_t i = 0; i < count; i++) {
        const struct held h = held[i];
        if (!s->is_calm && sim_chance(s, 3)) {
            held[kept++] = h;
            continue;
        }
        enum queue_settle how = QUEUE_ACK;
        if (!s->is_calm && sim_chance(s, 5)) {
            how = (enum queue_settle)rng_below(&s->rng, 4);
        }
        struct message *m = message_of(c->book, h.message);
        if (m->owner == c && !c->is_broken) {
            m->owner = NULL;
            m->settler = how == QUEUE_ACK || how == QUEUE_DISCARD ? c : NULL;
        }
        queue_session_settle(c->session, h.consumer, h.number, h.number, how);
    }
    c->held.len = kept * sizeof(*held);
}

static void say_taken(struct channel *c, bool is_all)
{
    for (uint32_t i = 1; i < SIM_CONSUMERS; i++) {
        struct sim_consumer *k = &c->consumers[i];
        if (k->untaken > 0 && (is_all || sim_chance(c->node->sim, 2))) {
            queue_session_taken(c->session, k->id, k->untaken);
            k->untaken = 0;
        }
    }
}

static void consume(struct channel *c, uint32_t prefetch, bool is_no_ack)
{
    for (uint32_t i = 1; i < SIM_CONSUMERS; i++) {
        struct sim_consumer *k = &c->consumers[i];
        if (k->id == UINT32_MAX) {
            *k = (struct sim_consumer){.id = ++c->next_consumer, .is_no_ack = is_no_ack};
            map_init_u64(&k->fifo);
            const struct queue_consume q = {.consumer = k->id,
                                            .prefetch = prefetch,
                                            .is_no_ack = is_no_ack,
                                            .priority = sim_chance(c->node->sim, 4) ? 5 : 0,
                                            .tag = span_of((const uint8_t *)"tag", 3)};
            queue_session_consume(c->session, &q);
            return;
        }
    }
}

static void on_info(void *ctx, enum rc rc, const struct queue_info *info)
{
    struct channel *c = ctx;
    (void)rc;
    (void)info;
    c->infos--;
}

static void consume_some(struct channel *c)
{
    static const uint32_t prefetches[] = {0, 1, 2, 7, 50};
    struct sim *s = c->node->sim;
    if (sim_chance(s, 6) || c->next_consumer == 0) {
        consume(c, prefetches[rng_below(&s->rng, 5)], sim_chance(s, 6));
    }
    const uint32_t i = 1 + (uint32_t)rng_below(&s->rng, SIM_CONSUMERS - 1);
    if (sim_chance(s, 40) && c->consumers[i].id != UINT32_MAX && !c->consumers[i].is_cancelled) {
        c->consumers[i].is_cancelled = true;
        queue_session_cancel(c->session, c->consumers[i].id);
    }
    if (sim_chance(s, 25)) {
        c->is_paused = !c->is_paused;
        queue_session_pause(c->session, c->is_paused);
    }
}

static void act(struct channel *c)
{
    struct sim *s = c->node->sim;
    struct queue_state *x = queue_state(s);
    if (c->is_publisher && c->book->count < MESSAGES_MAX && !queue_session_is_full(c->session)) {
        const uint64_t burst = sim_chance(s, 8) ? sim_range(s, 1, 30) : sim_range(s, 0, 3);
        for (uint64_t i = 0; i < burst; i++) {
            publish(c);
        }
    }
    if (c->is_consumer) {
        consume_some(c);
    }
    if (c->is_getter && sim_chance(s, 2) && c->tokens - c->tokens_answered < 3) {
        c->tokens++;
        if (sim_chance(s, x->purge_one_in)) {
            queue_session_purge(c->session, c->tokens);
        } else {
            queue_session_get(c->session, c->tokens, c->tokens % 4 == 0);
        }
    }
    if (sim_chance(s, 50)) {
        const struct queue_target t = sim_queue_target(s, c->book->slot);
        c->infos++;
        queue_info_get(sim_queue_service(c->node), &t, 1000, on_info, c);
    }
    if (sim_chance(s, 4)) {
        settle_some(c);
    }
    say_taken(c, false);
}

// Slow consumers give way to the one that drains.
static void cancel_all(struct channel *c)
{
    for (uint32_t i = 1; i < SIM_CONSUMERS && c != c->book->drainer; i++) {
        if (c->consumers[i].id != UINT32_MAX && !c->consumers[i].is_cancelled) {
            c->consumers[i].is_cancelled = true;
            queue_session_cancel(c->session, c->consumers[i].id);
        }
    }
}

static void tick(struct sim *s, void *arg, uint64_t number)
{
    struct channel *c = arg;
    (void)number;
    if (!c->session) {
        return;
    }
    if (c->is_ended) {
        sim_channel_close(c);  // A client would get its channel closed.
        return;
    }
    if (s->is_calm) {
        if (c->is_paused) {
            c->is_paused = false;
            queue_session_pause(c->session, false);
        }
        settle_some(c);
        say_taken(c, true);
        cancel_all(c);
    } else if (c->held.len / sizeof(struct held) > HELD_MAX) {
        settle_some(c);
        say_taken(c, true);
    } else {
        act(c);
        if (sim_chance(s, 150)) {
            sim_channel_close(c);
        }
    }
    sim_node_wake(c->node, sim_range(s, 0, 50 * SIM_US));
    if (c->session) {
        sim_node_at(c->node, sim_range(s, 1, 2 * c->interval), tick, c, 0, NULL);
    }
}

struct channel *sim_channel_open(struct sim *s, struct sim_node *n, struct book *b)
{
    static const struct queue_callbacks callbacks = {
        .settled = on_settled,
        .deliver = on_deliver,
        .consume_done = on_consume_done,
        .cancel_done = on_cancel_done,
        .get_done = on_get_done,
        .purge_done = on_purge_done,
        .consumer_lost = on_consumer_lost,
        .ended = on_ended,
        .writable = on_writable,
    };
    struct queue_state *x = queue_state(s);
    struct channel *c = mem_zalloc(sizeof(*c));
    if (x->channels_count == x->channels_cap) {
        x->channels_cap = x->channels_cap ? x->channels_cap * 2 : 32;
        x->channels = mem_realloc(x->channels, x->channels_cap * sizeof(struct channel *));
    }
    x->channels[x->channels_count++] = c;
    c->node = n;
    c->incarnation = n->incarnation;
    c->book = b;
    c->number = x->channels_count;
    c->interval = x->interval;
    for (uint32_t i = 1; i < SIM_CONSUMERS; i++) {
        c->consumers[i].id = UINT32_MAX;
    }
    c->consumers[0].is_ready = true;
    map_init_u64(&c->consumers[0].fifo);
    const struct queue_target t = sim_queue_target(s, b->slot);
    c->session = queue_session_open(sim_queue_service(n), &t, &callbacks, c);
    sim_log(s, "channel %u: opened on node %u for queue %llu", c->number, n->id,
            (unsigned long long)s->groups[b->slot].id);
    sim_node_at(n, sim_range(s, 1, SIM_MS), tick, c, 0, NULL);
    return c;
}

void sim_channel_drain(struct channel *c)
{
    consume(c, 100, false);
    sim_node_wake(c->node, 0);
}

void sim_channel_close(struct channel *c)
{
    if (!c->session || !c->node->is_up) {
        return;
    }
    sim_log(c->node->sim, "channel %u: closed", c->number);
    queue_session_close(c->session);
    c->session = NULL;
    c->is_closed = true;
    sim_node_wake(c->node, 0);
}

bool sim_channel_is_level(const struct channel *c)
{
    return !c->session || c->is_ended || (c->settled == c->published.len / 4 && c->tokens == c->tokens_answered);
}

void sim_channels_node_down(struct sim_node *n)
{
    struct queue_state *x = queue_state(n->sim);
    for (uint32_t i = 0; i < x->channels_count; i++) {
        struct channel *c = x->channels[i];
        if (c->node == n && c->incarnation == n->incarnation) {
            c->session = NULL;
            c->is_broken = true;
        }
    }
}

static void spawn(struct sim *s, void *arg, uint64_t number)
{
    struct queue_state *x = queue_state(s);
    (void)arg;
    (void)number;
    if (s->is_calm) {
        return;
    }
    uint32_t live = 0;
    for (uint32_t i = 0; i < x->channels_count; i++) {
        live += x->channels[i]->session != NULL;
    }
    struct sim_node *n = &s->nodes[rng_below(&s->rng, s->nodes_count)];
    struct book *b = x->books[rng_below(&s->rng, s->groups_count)];
    if (live < x->channels_target && n->is_up && !n->is_paused && b) {
        struct channel *c = sim_channel_open(s, n, b);
        const uint64_t kind = rng_below(&s->rng, 5);
        c->is_publisher = kind <= 2;
        c->is_consumer = kind >= 2;
        c->is_getter = sim_chance(s, 4);
    }
    sim_at(s, sim_range(s, 1, live < x->channels_target ? 20 * SIM_MS : 200 * SIM_MS), spawn, NULL, 0);
}

void sim_channels_start(struct sim *s)
{
    for (uint32_t i = 0; i < sizeof(filler); i++) {
        filler[i] = (uint8_t)(i * 31 + (i >> 8));
    }
    sim_at(s, 0, spawn, NULL, 0);
}

void sim_channels_free(struct sim *s)
{
    struct queue_state *x = queue_state(s);
    for (uint32_t i = 0; i < x->channels_count; i++) {
        struct channel *c = x->channels[i];
        for (uint32_t k = 0; k < SIM_CONSUMERS; k++) {
            if (c->consumers[k].id != UINT32_MAX) {
                map_deinit(&c->consumers[k].fifo);
            }
        }
        buf_deinit(&c->published);
        buf_deinit(&c->held);
        free(c);
    }
    free(x->channels);
    for (uint32_t i = 0; i < SIM_GROUPS_MAX; i++) {
        if (x->books[i]) {
            free(x->books[i]->messages);
            free(x->books[i]);
        }
    }
    free(x);
    s->queue_state = NULL;
}
