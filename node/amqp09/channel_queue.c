// SPDX-License-Identifier: Apache-2.0
// The queues a channel has to do with: their sessions, and what the sessions call back.
//
// A channel_queue lives as long as its channel wants it, or, once its session ended from the other side, as
// long as deliveries or consumers refer to it: what was delivered stays ackable (data-plane §1.12), the acks
// then go nowhere. Sessions are closed only in amqp09_turn_begin, never inside a callback.
#include "node/amqp09/reply.h"
#include "node/amqp09/service.h"
#include <stdlib.h>

enum { RING_LEAST = 16 };
const uint64_t CHANNEL_TX_NUMBER = UINT64_MAX;

static void make_dying(struct channel_queue *cq)
{
    if (list_is_empty(&cq->dying_link)) {
        list_add_tail(&cq->service->dying, &cq->dying_link);
    }
}

static void end_throttle(struct channel_queue *cq)
{
    if (cq->is_full) {
        cq->is_full = false;
        connection_throttle(cq->channel->connection, -1);
    }
}

static void queue_free(struct channel_queue *cq)
{
    assert(!cq->session);
    list_remove(&cq->link);
    list_remove(&cq->dying_link);
    free((void *)cq->name.ptr);
    free(cq->ring);
    free(cq);
}

static bool is_referred_to(const struct channel_queue *cq)
{
    return cq->unacked_count > 0 || cq->consumers_count > 0 || cq->reply_count > 0;
}

void channel_queue_unref(struct channel_queue *cq)
{
    // With the session still to be closed, channel_queue_close_now comes back here.
    if (cq->is_ended && !cq->session && !is_referred_to(cq)) {
        queue_free(cq);
    }
}

void channel_queue_close_now(struct channel_queue *cq)
{
    list_remove(&cq->dying_link);
    if (cq->session) {
        queue_session_close(cq->session);
        cq->session = NULL;
    }
    if (!cq->channel) {
        queue_free(cq);
    } else {
        channel_queue_unref(cq);
    }
}

// The channel does not know the queue any more; the session is closed at the turn.
static void detach(struct channel_queue *cq)
{
    struct channel *ch = cq->channel;
    end_throttle(cq);
    if (!cq->is_ended) {
        (void)map_remove(&ch->queues_by_group, cq->group);  // Its value is cq.
    }
    list_remove(&cq->link);
    cq->channel = NULL;
    cq->unacked_count = cq->consumers_count = cq->reply_count = 0;
    make_dying(cq);
}

void channel_queues_release(struct channel *ch)
{
    list_each(item, &ch->queues)
    {
        detach(list_entry(item, struct channel_queue, link));
    }
    ch->routes_generation++;
}

void channel_queues_trim(struct channel *ch)
{
    uint64_t kept, acks;
    channel_tx_counts(ch, &kept, &acks);
    if (map_count(&ch->queues_by_group) < CHANNEL_QUEUES_MAX || kept > 0) {
        return;  // A commit publishes into the sessions there were.
    }
    list_each(item, &ch->queues)
    {
        struct channel_queue *cq = list_entry(item, struct channel_queue, link);
        if (!cq->is_ended && !is_referred_to(cq) && cq->settled == cq->published) {
            detach(cq);
        }
    }
    ch->routes_generation++;
}

void channel_queues_pause(struct channel *ch, bool is_paused)
{
    list_each(item, &ch->queues)
    {
        struct channel_queue *cq = list_entry(item, struct channel_queue, link);
        // It goes on whoever is left: a later consumer or a basic.get would wait for ever.
        const bool is_wanted = !is_paused || cq->consumers_count > 0;
        if (cq->session && !cq->is_ended && is_wanted && cq->is_paused != is_paused) {
            cq->is_paused = is_paused;
            queue_session_pause(cq->session, is_paused);
        }
    }
}

// ---- callbacks ----------------------------------------------------------------------------------

static void settle_publishes(struct channel_queue *cq, uint64_t through, const uint64_t *rejected,
                             uint32_t rejected_count)
{
    struct channel *ch = cq->channel;
    assert(through <= cq->published);
    uint32_t next_rejected = 0;
    while (cq->settled < through) {
        uint64_t seq = ++cq->settled;
        while (next_rejected < rejected_count && rejected[next_rejected] < seq) {
            next_rejected++;
        }
        bool is_rejected = next_rejected < rejected_count && rejected[next_rejected] == seq;
        uint64_t number = cq->ring[seq & (cq->ring_cap - 1)];
        if (number == CHANNEL_TX_NUMBER) {
            channel_tx_settled(ch, is_rejected);
            if (!channel_is_open(ch)) {
                return;
            }
        } else if (number > 0) {
            confirms_settle(&ch->confirms, number, is_rejected);
        }
    }
    channel_confirms_dirty(ch);
}

static void settled(void *ctx, struct queue_session *s, uint64_t through, const uint64_t *rejected,
                    uint32_t rejected_count)
{
    struct channel_queue *cq = ctx;
    (void)s;
    if (cq->channel) {
        settle_publishes(cq, through, rejected, rejected_count);
    }
}

static void deliver(void *ctx, struct queue_session *s, uint32_t consumer, const struct queue_message *m)
{
    struct channel_queue *cq = ctx;
    (void)s;
    if (cq->channel) {
        channel_deliver(cq, consumer, m);
    }
}

static void consume_done(void *ctx, struct queue_session *s, uint32_t consumer, enum rc rc)
{
    struct channel_queue *cq = ctx;
    (void)s;
    if (cq->channel) {
        channel_consume_done(cq, consumer, rc);
    }
}

static void cancel_done(void *ctx, struct queue_session *s, uint32_t consumer)
{
    struct channel_queue *cq = ctx;
    (void)s;
    if (cq->channel) {
        channel_cancel_done(cq, consumer);
    }
}

static void get_done(void *ctx, struct queue_session *s, uint64_t token, enum rc rc,
                     const struct queue_message *m, uint64_t ready)
{
    struct channel_queue *cq = ctx;
    (void)s;
    if (cq->channel) {
        channel_get_done(cq, token, rc, m, ready);
    }
}

static void purge_done(void *ctx, struct queue_session *s, uint64_t token, uint64_t count)
{
    struct channel_queue *cq = ctx;
    (void)s;
    if (cq->channel) {
        channel_purge_done(cq, token, count);
    }
}

static void consumer_lost(void *ctx, struct queue_session *s, uint32_t consumer)
{
    struct channel_queue *cq = ctx;
    (void)s;
    if (cq->channel) {
        channel_consumer_lost(cq, consumer);
    }
}

// What the channel was waiting for from this queue will not come.
static void end_operation(struct channel_queue *cq, bool is_deleted)
{
    struct channel *ch = cq->channel;
    struct operation *op = ch->pending;
    if (!op || op->is_external || cq->reply_count == 0) {
        return;
    }
    struct span vhost = ch->connection->vhost_name;
    if (is_deleted) {
        channel_fail(ch, REPLY_NOT_FOUND, op->method, "no queue '%.*s' in vhost '%.*s'", (int)cq->name.len,
                     (const char *)cq->name.ptr, (int)vhost.len, (const char *)vhost.ptr);
    } else {
        channel_fail(ch, REPLY_PRECONDITION_FAILED, op->method,
                     "session with queue '%.*s' in vhost '%.*s' ended", (int)cq->name.len,
                     (const char *)cq->name.ptr, (int)vhost.len, (const char *)vhost.ptr);
    }
}

static void ended(void *ctx, struct queue_session *s, bool is_deleted)
{
    struct channel_queue *cq = ctx;
    struct channel *ch = cq->channel;
    (void)s;
    if (!ch || cq->is_ended) {
        return;
    }
    (void)map_remove(&ch->queues_by_group, cq->group);  // Its value is cq.
    cq->is_ended = true;
    ch->routes_generation++;
    end_throttle(cq);
    make_dying(cq);
    bool is_in_doubt = cq->settled < cq->published && !is_deleted;
    if (!is_in_doubt && cq->settled < cq->published) {
        settle_publishes(cq, cq->published, NULL, 0);  // Deleted counts as confirmed (data-plane §1.11).
    }
    if (channel_is_open(ch)) {
        end_operation(cq, is_deleted);
    }
    if (!channel_is_open(ch)) {
        return;
    }
    const bool is_told = channel_consumers_lost(ch, cq) && !cq->has_silent_loss;
    if (is_in_doubt || (!is_told && !is_deleted)) {
        struct span vhost = ch->connection->vhost_name;
        channel_fail(ch, REPLY_PRECONDITION_FAILED, 0, "session with queue '%.*s' in vhost '%.*s' ended",
                     (int)cq->name.len, (const char *)cq->name.ptr, (int)vhost.len, (const char *)vhost.ptr);
    }
}

static void writable(void *ctx, struct queue_session *s)
{
    struct channel_queue *cq = ctx;
    (void)s;
    if (cq->channel) {
        end_throttle(cq);
    }
}

static const struct queue_callbacks callbacks = {
    .settled = settled,
    .deliver = deliver,
    .consume_done = consume_done,
    .cancel_done = cancel_done,
    .get_done = get_done,
    .purge_done = purge_done,
    .consumer_lost = consumer_lost,
    .ended = ended,
    .writable = writable,
};

// ---- use ----------------------------------------------------------------------------------------

struct channel_queue *channel_queue_open(struct channel *ch, const struct broker_queue *q)
{
    struct channel_queue *cq = map_get(&ch->queues_by_group, q->target->group);
    if (cq) {
        return cq;
    }
    cq = mem_zalloc(sizeof(*cq));
    cq->service = channel_service(ch);
    cq->channel = ch;
    cq->group = q->target->group;
    cq->name = span_of(mem_strndup(q->name.ptr, q->name.len), q->name.len);
    list_init(&cq->dying_link);
    list_add_tail(&ch->queues, &cq->link);
    map_put(&ch->queues_by_group, cq->group, cq);
    cq->session = queue_session_open(cq->service->config.queues, q->target, &callbacks, cq);
    assert(cq->session);
    return cq;
}

static void ring_grow(struct channel_queue *cq)
{
    uint32_t cap = cq->ring_cap == 0 ? RING_LEAST : cq->ring_cap * 2;
    uint64_t *ring = mem_alloc(cap * sizeof(*ring));
    for (uint64_t seq = cq->settled + 1; seq <= cq->published; seq++) {
        ring[seq & (cap - 1)] = cq->ring[seq & (cq->ring_cap - 1)];
    }
    free(cq->ring);
    cq->ring = ring;
    cq->ring_cap = cap;
}

void channel_queue_published(struct channel_queue *cq, uint64_t session_seq, uint64_t publish_number)
{
    assert(session_seq == cq->published + 1);
    if (cq->published - cq->settled == cq->ring_cap) {
        ring_grow(cq);
    }
    cq->published = session_seq;
    cq->ring[session_seq & (cq->ring_cap - 1)] = publish_number;
    if (!cq->is_full && queue_session_is_full(cq->session)) {
        cq->is_full = true;
        connection_throttle(cq->channel->connection, 1);
    }
}
