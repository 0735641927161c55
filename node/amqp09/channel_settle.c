// SPDX-License-Identifier: Apache-2.0
// ack, nack, reject, recover (data-plane §1.13).
//
// Settles of neighbouring deliveries of one consumer go to its session as a range; the session joins the
// calls of a turn into one command.
#include "node/amqp09/reply.h"
#include "node/amqp09/service.h"

// A range being gathered.
struct run {
    struct channel_queue *queue;  // NULL: none.
    uint32_t consumer;
    uint64_t first, last;
    enum queue_settle how;
};

static void run_end(struct run *r)
{
    struct channel_queue *cq = r->queue;
    if (!cq) {
        return;
    }
    if (cq->session && !cq->is_ended) {
        queue_session_settle(cq->session, r->consumer, r->first, r->last, r->how);
    }
    uint64_t n = r->last - r->first + 1;
    assert(cq->unacked_count >= n);
    cq->unacked_count -= (uint32_t)n;
    r->queue = NULL;
    channel_queue_unref(cq);
}

static void run_add(struct run *r, const struct unacked_entry *e)
{
    if (r->queue == e->queue && r->consumer == e->consumer && e->number == r->last + 1) {
        r->last = e->number;
        return;
    }
    run_end(r);
    r->queue = e->queue;
    r->consumer = e->consumer;
    r->first = r->last = e->number;
}

static void settle(struct channel *ch, struct run *r, const struct unacked_entry *e)
{
    if (ch->tx) {
        channel_tx_settle(ch, e, r->how);
    } else {
        run_add(r, e);
    }
}

static void settle_tags(struct channel *ch, uint64_t tag, bool is_multiple, enum queue_settle how,
                        uint32_t method)
{
    struct unacked_entry e;
    struct run r = {.how = how};
    if (tag == 0 && is_multiple) {
        tag = UINT64_MAX;  // All; none is fine too.
    } else if (!unacked_has(&ch->unacked, tag)) {
        channel_fail(ch, REPLY_PRECONDITION_FAILED, method, "unknown delivery tag %llu",
                     (unsigned long long)tag);
        return;
    }
    if (!is_multiple) {
        bool is_open = unacked_take(&ch->unacked, tag, &e);
        assert(is_open);
        settle(ch, &r, &e);
    }
    while (is_multiple && unacked_take_first(&ch->unacked, tag, &e)) {
        settle(ch, &r, &e);
    }
    run_end(&r);
}

void channel_settle_entries(struct channel *ch, const struct unacked_entry *entries,
                            const enum queue_settle *how, uint32_t count)
{
    struct run r = {0};
    (void)ch;
    for (uint32_t i = 0; i < count; i++) {
        if (r.how != how[i]) {
            run_end(&r);
            r.how = how[i];
        }
        run_add(&r, &entries[i]);
    }
    run_end(&r);
}

void channel_ack(struct channel *ch, const struct amqp_basic_ack *m)
{
    settle_tags(ch, m->delivery_tag, m->multiple, QUEUE_ACK, AMQP_BASIC_ACK_ID);
}

void channel_nack(struct channel *ch, const struct amqp_basic_nack *m)
{
    settle_tags(ch, m->delivery_tag, m->multiple, m->requeue ? QUEUE_RELEASE : QUEUE_DISCARD,
                AMQP_BASIC_NACK_ID);
}

void channel_reject(struct channel *ch, const struct amqp_basic_reject *m)
{
    settle_tags(ch, m->delivery_tag, false, m->requeue ? QUEUE_RETURN : QUEUE_DISCARD, AMQP_BASIC_REJECT_ID);
}

void channel_recover(struct channel *ch, bool is_requeue, uint32_t method)
{
    if (!is_requeue) {
        channel_fail(ch, REPLY_NOT_IMPLEMENTED, method, "requeue=false");
        return;
    }
    struct unacked_entry e;
    struct run r = {.how = QUEUE_RELEASE};
    while (unacked_take_first(&ch->unacked, UINT64_MAX, &e)) {
        run_add(&r, &e);
    }
    run_end(&r);
    if (method == AMQP_BASIC_RECOVER_ID) {
        amqp_send_basic_recover_ok(channel_out(ch), ch->number, &(struct amqp_basic_recover_ok){});
        channel_out_done(ch);
    }
}
