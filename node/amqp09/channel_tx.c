// SPDX-License-Identifier: Apache-2.0
// Transactions (data-plane §1.11): publishes and settles are kept until commit.
//
// Publishes are routed when they come; commit hands them to the sessions, then settles, then waits until
// every queue has said what became of them. It is not atomic across queues, as in RabbitMQ: one refused
// publish makes the commit fail with 406, the others stay. Rollback forgets the publishes and makes the
// settled deliveries unsettled again.
#include "node/amqp09/reply.h"
#include "node/amqp09/service.h"
#include <stdlib.h>

struct transaction {
    struct buf messages;  // Encoded publishes, in order.
    uint64_t messages_count;
    struct unacked_entry *settles;
    enum queue_settle *hows;
    uint32_t settles_count, settles_cap;
    uint64_t open;     // Outcomes the commit under way waits for.
    bool is_rejected;  // One of them was a refusal.
};

void channel_tx_free(struct channel *ch)
{
    struct transaction *tx = ch->tx;
    if (!tx) {
        return;
    }
    buf_deinit(&tx->messages);
    free(tx->settles);
    free(tx->hows);
    free(tx);
    ch->tx = NULL;
}

void channel_tx_counts(const struct channel *ch, uint64_t *publishes, uint64_t *acks)
{
    *publishes = ch->tx ? ch->tx->messages_count : 0;
    *acks = ch->tx ? ch->tx->settles_count : 0;
}

void channel_tx_select(struct channel *ch)
{
    if (ch->confirms.is_on) {
        channel_fail(ch, REPLY_PRECONDITION_FAILED, AMQP_TX_SELECT_ID,
                     "cannot switch from confirm to tx mode");
        return;
    }
    if (!ch->tx) {
        ch->tx = mem_zalloc(sizeof(*ch->tx));
    }
    amqp_send_tx_select_ok(channel_out(ch), ch->number, &(struct amqp_tx_select_ok){});
    channel_out_done(ch);
}

static bool is_transactional(struct channel *ch, uint32_t method)
{
    if (!ch->tx) {
        channel_fail(ch, REPLY_PRECONDITION_FAILED, method, "channel is not transactional");
    }
    return ch->tx != NULL;
}

// ---- keeping ------------------------------------------------------------------------------------

void channel_tx_publish(struct channel *ch, const struct queue_publish *p, struct channel_queue **queues,
                        uint32_t count)
{
    struct buf *b = &ch->tx->messages;
    if (b->len + p->header.len + p->body.len >
        CHANNEL_TX_BYTES + channel_service(ch)->config.max_message_size) {
        channel_fail(ch, REPLY_PRECONDITION_FAILED, AMQP_BASIC_PUBLISH_ID,
                     "transaction of more than %u octets", CHANNEL_TX_BYTES);
        return;
    }
    ch->tx->messages_count++;
    buf_u32(b, count);
    for (uint32_t i = 0; i < count; i++) {
        buf_u64(b, queues[i]->group);
    }
    buf_str32(b, p->exchange);
    buf_u32(b, p->routing_keys_count);
    for (uint32_t i = 0; i < p->routing_keys_count; i++) {
        buf_u8(b, p->bcc && p->bcc[i]);
        buf_str32(b, p->routing_keys[i]);
    }
    buf_str32(b, p->header);
    buf_str32(b, p->body);
    buf_u64(b, (uint64_t)p->expiry_ms);
    buf_u8(b, p->priority);
    buf_u8(b, p->has_priority);
    buf_u8(b, p->is_persistent);
}

void channel_tx_settle(struct channel *ch, const struct unacked_entry *e, enum queue_settle how)
{
    struct transaction *tx = ch->tx;
    if (tx->settles_count == tx->settles_cap) {
        tx->settles_cap = tx->settles_cap == 0 ? 16 : tx->settles_cap * 2;
        tx->settles = mem_realloc(tx->settles, tx->settles_cap * sizeof(*tx->settles));
        tx->hows = mem_realloc(tx->hows, tx->settles_cap * sizeof(*tx->hows));
    }
    tx->settles[tx->settles_count] = *e;
    tx->hows[tx->settles_count++] = how;
}

// ---- commit -------------------------------------------------------------------------------------

// Reads the next kept publish; its groups are left to be read from *groups. Keys go to the service's scratch.
static void read_kept(struct amqp09 *s, struct reader *r, struct queue_publish *p, struct reader *groups,
                      uint32_t *groups_count)
{
    *p = (struct queue_publish){0};
    *groups_count = reader_u32(r);
    *groups = reader_of(reader_span(r, *groups_count * sizeof(uint64_t)));
    p->exchange = reader_str32(r);
    p->routing_keys_count = reader_u32(r);
    assert(p->routing_keys_count <= s->keys_cap);  // They were there when the publish came.
    for (uint32_t i = 0; i < p->routing_keys_count; i++) {
        s->bcc[i] = reader_u8(r) != 0;
        s->keys[i] = reader_str32(r);
    }
    p->routing_keys = s->keys;
    p->bcc = s->bcc;
    p->header = reader_str32(r);
    p->body = reader_str32(r);
    p->expiry_ms = (int64_t)reader_u64(r);
    p->priority = reader_u8(r);
    p->has_priority = reader_u8(r) != 0;
    p->is_persistent = reader_u8(r) != 0;
    assert(!r->is_bad);
}

// False: a queue is gone (the connection has failed).
static bool publish_kept(struct channel *ch)
{
    struct transaction *tx = ch->tx;
    struct reader r = reader_of(buf_span(&tx->messages)), groups;
    struct queue_publish p;
    uint32_t groups_count;
    while (reader_left(&r) > 0) {
        read_kept(channel_service(ch), &r, &p, &groups, &groups_count);
        for (uint32_t i = 0; i < groups_count; i++) {
            struct channel_queue *cq = map_get(&ch->queues_by_group, reader_u64(&groups));
            if (!cq) {
                channel_fail(ch, REPLY_RESOURCE_ERROR, AMQP_TX_COMMIT_ID,
                             "a queue of the transaction is gone");
                return false;
            }
            uint64_t seq = queue_session_publish(cq->session, &p);
            tx->open++;
            channel_queue_published(cq, seq, CHANNEL_TX_NUMBER);
        }
    }
    return true;
}

static void forget(struct transaction *tx)
{
    tx->messages.len = 0;
    buf_shrink(&tx->messages, 0);
    tx->messages_count = 0;
    tx->settles_count = 0;
}

static void committed(struct channel *ch, struct operation *op)
{
    struct transaction *tx = ch->tx;
    bool is_rejected = tx->is_rejected;
    tx->is_rejected = false;
    if (is_rejected) {
        channel_fail(ch, REPLY_PRECONDITION_FAILED, AMQP_TX_COMMIT_ID, "partial tx completion");
        return;
    }
    amqp_send_tx_commit_ok(channel_out(ch), ch->number, &(struct amqp_tx_commit_ok){});
    channel_out_done(ch);
    operation_end(op);
}

void channel_tx_commit(struct channel *ch)
{
    struct transaction *tx = ch->tx;
    if (!is_transactional(ch, AMQP_TX_COMMIT_ID) || !publish_kept(ch)) {
        return;
    }
    channel_settle_entries(ch, tx->settles, tx->hows, tx->settles_count);
    forget(tx);
    struct operation *op = operation_start(ch, AMQP_TX_COMMIT_ID);
    if (tx->open == 0) {
        committed(ch, op);
    }
}

void channel_tx_settled(struct channel *ch, bool is_rejected)
{
    struct transaction *tx = ch->tx;
    assert(tx && tx->open > 0);
    tx->open--;
    tx->is_rejected = tx->is_rejected || is_rejected;
    struct operation *op = channel_operation(ch, AMQP_TX_COMMIT_ID);
    if (tx->open == 0 && op) {
        committed(ch, op);
    }
}

void channel_tx_rollback(struct channel *ch)
{
    struct transaction *tx = ch->tx;
    if (!is_transactional(ch, AMQP_TX_ROLLBACK_ID)) {
        return;
    }
    if (tx->settles_count > 0) {
        unacked_put_back(&ch->unacked, tx->settles, tx->settles_count);
    }
    forget(tx);
    amqp_send_tx_rollback_ok(channel_out(ch), ch->number, &(struct amqp_tx_rollback_ok){});
    channel_out_done(ch);
}
