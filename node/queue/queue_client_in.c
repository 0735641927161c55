// SPDX-License-Identifier: Apache-2.0
// Queue sessions, client side: answers and deliveries from the leader (README's failure table).
//
// Every answer names the attach it belongs to; those of an earlier one are dropped, since the new attach tells the same
// and more. Call backs may use the session in any way, closing included: a session is freed in a turn only.
#include "node/queue/queue_parts.h"
#include <stdlib.h>

enum { RESUME_AGAIN_NS = 100000000 };

static bool is_current(const struct queue_session *s, uint32_t attach)
{
    return attach == s->attach && (s->state == SESSION_ATTACHING || s->state == SESSION_ATTACHED);
}

// ---- applied -------------------------------------------------------------------------------------------------------

static void publishes_applied(struct queue_session *s, uint64_t through,
                              const struct queue_seq_range *rejected, uint32_t count)
{
    struct queue_pending *p = &s->pending[QUEUE_STREAM_PUBLISH];
    uint64_t before = s->applied[QUEUE_STREAM_PUBLISH];
    if (through > queue_pending_last(p)) {
        s->service->metrics.bad_items++;
        return;
    }
    if (through <= before) {
        return;
    }
    while (p->count > 0 && p->first <= through) {
        queue_pending_pop(p);
    }
    s->applied[QUEUE_STREAM_PUBLISH] = through;
    if (s->sent[QUEUE_STREAM_PUBLISH] < through) {
        s->sent[QUEUE_STREAM_PUBLISH] = through;
    }
    struct buf list = {0};
    for (uint32_t i = 0; i < count; i++) {
        for (uint64_t seq = rejected[i].first; seq <= rejected[i].last && seq <= through; seq++) {
            if (seq > before) {
                buf_u64(&list, seq);
            }
        }
    }
    uint32_t n = (uint32_t)(list.len / sizeof(uint64_t));
    s->service->metrics.rejected += n;
    if (!s->is_closing && s->cb.settled) {
        s->cb.settled(s->ctx, s, through, (const uint64_t *)(const void *)list.ptr, n);
    }
    buf_deinit(&list);
    bool is_roomy = p->count <= LIMIT_SESSION_COMMANDS / 2 && p->bytes <= LIMIT_SESSION_BYTES / 2;
    if (s->was_full && is_roomy) {
        s->was_full = false;
        if (!s->is_closing && s->cb.writable) {
            s->cb.writable(s->ctx, s);
        }
    }
    if (s->is_closing || !list_is_empty(&s->queries)) {
        queue_session_mark(s);
    }
}

static void cancel_done(struct queue_session *s, uint32_t id)
{
    struct queue_client_consumer *c = map_remove(&s->consumers, id);
    if (!c) {
        return;
    }
    // What the queue set aside for it and the client has not seen goes back: nothing is delivered behind cancel-ok.
    queue_session_settle(s, id, c->last + 1, UINT64_MAX, QUEUE_RELEASE);
    if (s->recent == c) {
        s->recent = NULL;
    }
    free(c->sizes);
    free(c);
    if (!s->is_closing && s->cb.cancel_done) {
        s->cb.cancel_done(s->ctx, s, id);
    }
}

static void consume_done(struct queue_session *s, uint32_t id)
{
    struct queue_client_consumer *c = map_get(&s->consumers, id);
    if (c) {
        c->is_ready = true;
        if (!s->is_closing && s->cb.consume_done) {
            s->cb.consume_done(s->ctx, s, id, RC_OK);
        }
    }
}

static void controls_applied(struct queue_session *s, uint64_t through)
{
    struct queue_pending *p = &s->pending[QUEUE_STREAM_CONTROL];
    if (through > queue_pending_last(p)) {
        s->service->metrics.bad_items++;
        return;
    }
    while (p->count > 0 && p->first <= through) {
        struct queue_pending_item item = *queue_pending_at(p, p->first);
        s->applied[QUEUE_STREAM_CONTROL] = p->first;
        queue_pending_pop(p);
        if (item.kind == QUEUE_COMMAND_CHECKOUT) {
            consume_done(s, item.aux);
        } else if (item.kind == QUEUE_COMMAND_CANCEL) {
            cancel_done(s, item.aux);
        }
    }
    if (s->sent[QUEUE_STREAM_CONTROL] < s->applied[QUEUE_STREAM_CONTROL]) {
        s->sent[QUEUE_STREAM_CONTROL] = s->applied[QUEUE_STREAM_CONTROL];
    }
    if (!list_is_empty(&s->queries)) {
        const struct queue_query *y = list_entry(s->queries.next, struct queue_query, link);
        // The answer comes with or before the seq. It did not: an attach tells it.
        s->needs_query = y->seq != 0 && y->seq <= s->applied[QUEUE_STREAM_CONTROL] && !y->is_answered;
        if (s->needs_query) {
            queue_service_arm_check(s->service);
        }
    }
    if (s->is_closing) {
        queue_session_mark(s);
    }
}

void queue_client_applied(struct queue_session *s, uint32_t attach, const uint64_t seq[QUEUE_STREAMS],
                          const struct queue_seq_range *rejected, uint32_t rejected_count)
{
    if (!is_current(s, attach) || s->state != SESSION_ATTACHED) {
        return;
    }
    s->asked_at = queue_service_now(s->service);
    controls_applied(s, seq[QUEUE_STREAM_CONTROL]);
    publishes_applied(s, seq[QUEUE_STREAM_PUBLISH], rejected, rejected_count);
}

// ---- attached or not -----------------------------------------------------------------------------------------------

void queue_client_attached(struct queue_session *s, uint32_t attach, const uint64_t seq[QUEUE_STREAMS], uint32_t ahead,
                           const struct queue_seq_range *rejected, uint32_t rejected_count)
{
    if (!is_current(s, attach) || s->state != SESSION_ATTACHING) {
        return;
    }
    s->state = SESSION_ATTACHED;
    s->was_open = true;
    s->is_pause_dirty = s->is_paused;
    s->link->leader_node = s->place.node;
    s->link->retry_ns = 0;
    const uint64_t sent = s->sent[QUEUE_STREAM_PUBLISH];
    for (int i = 0; i < QUEUE_STREAMS; i++) {
        s->sent[i] = s->applied[i];
    }
    // What the leader has need not be sent, were it only to find out that its disk is slow. It cannot have what we have not sent.
    const uint64_t has = seq[QUEUE_STREAM_PUBLISH] + ahead;
    s->sent[QUEUE_STREAM_PUBLISH] = has <= sent && has > s->sent[QUEUE_STREAM_PUBLISH] ? has : s->sent[QUEUE_STREAM_PUBLISH];
    s->service->metrics.commands_resent += sent - s->sent[QUEUE_STREAM_PUBLISH];
    queue_client_applied(s, attach, seq, rejected, rejected_count);
    queue_session_mark(s);
}

void queue_client_not_leader(struct queue_session *s, uint32_t attach, uint32_t from_node, uint32_t hint)
{
    if (is_current(s, attach)) {
        queue_link_failed(s->link, from_node, hint);
        queue_session_seek(s);
    }
}

void queue_client_refused(struct queue_session *s, uint32_t attach)
{
    if (!is_current(s, attach) || s->was_open) {
        return;
    }
    // Nothing was sent under the old counter, for that needs ATTACHED first. What is pending names the
    // session: rewrite it.
    struct queue_service *q = s->service;
    queue_session_seek(s);
    map_remove(&q->sessions, s->id.counter);
    s->id.counter = (uint64_t)q->config.worker << 48 | q->next_counter++;
    map_put(&q->sessions, s->id.counter, s);
    for (int i = 0; i < QUEUE_STREAMS; i++) {
        struct queue_pending *p = &s->pending[i];
        for (uint64_t seq = p->first; seq <= queue_pending_last(p); seq++) {
            const struct queue_pending_item *item = queue_pending_at(p, seq);
            assert(!item->block || item->block->refs == 1);  // Never the log's bytes: nothing was sent yet.
            memcpy(item->ptr + offsetof(struct queue_command_wire, counter), &s->id.counter, sizeof(s->id.counter));
            if (item->block) {
                block_set_sum(item->block, 0, 0, 0);  // It is of the bytes before.
            }
        }
    }
    queue_link_seek(s->link, 0);
}

void queue_client_ended(struct queue_session *s, bool is_deleted)
{
    if (s->state == SESSION_ENDED) {
        return;
    }
    queue_session_seek(s);
    s->state = SESSION_ENDED;
    if (s->is_closing) {
        queue_session_mark(s);
        return;
    }
    uint32_t pos = 0;
    struct queue_client_consumer *c;
    while (!s->is_closing && (c = map_next(&s->consumers, &pos, NULL, NULL)) != NULL) {
        if (c->id != 0 && s->cb.consumer_lost) {
            s->cb.consumer_lost(s->ctx, s, c->id);
        }
    }
    if (!s->is_closing && s->cb.ended) {
        s->cb.ended(s->ctx, s, is_deleted);
    }
}

void queue_client_expect(struct queue_session *s, uint32_t attach, uint32_t stream, uint64_t seq)
{
    if (!is_current(s, attach) || s->state != SESSION_ATTACHED || stream >= QUEUE_STREAMS) {
        return;
    }
    if (seq > s->applied[stream] && seq <= s->sent[stream]) {
        s->service->metrics.commands_resent += s->sent[stream] - seq + 1;
        s->sent[stream] = seq - 1;
        queue_session_mark(s);
    }
}

// ---- gets, purges, deliveries --------------------------------------------------------------------------------------

static void query_done(struct queue_session *s, struct queue_query *y, enum rc rc, const struct queue_message *m)
{
    struct queue_query done = *y;
    list_remove(&y->link);
    free(y);
    if (done.kind == QUEUE_COMMAND_PURGE) {
        if (!s->is_closing && s->cb.purge_done) {
            s->cb.purge_done(s->ctx, s, done.token, done.number);
        }
    } else {
        s->service->metrics.gets++;
        if (!s->is_closing && s->cb.get_done) {
            s->cb.get_done(s->ctx, s, done.token, rc, m, done.ready);
        }
        if (m && done.is_no_ack && !s->is_closing) {
            queue_session_settle(s, 0, m->number, m->number, QUEUE_ACK);
        }
    }
    if (!list_is_empty(&s->queries)) {
        queue_session_mark(s);
    }
}

void queue_client_query(struct queue_session *s, uint32_t attach, const struct queue_query_wire *w)
{
    if (!is_current(s, attach) || list_is_empty(&s->queries)) {
        return;
    }
    struct queue_query *y = list_entry(s->queries.next, struct queue_query, link);
    if (y->seq != w->seq || y->kind != w->kind || (y->is_answered && !w->is_unreadable)) {
        return;
    }
    s->asked_at = queue_service_now(s->service);
    y->is_answered = true;
    y->number = w->number;
    y->ready = w->ready;
    s->needs_query = false;
    if (y->kind == QUEUE_COMMAND_PURGE || y->number == 0) {
        query_done(s, y, RC_OK, NULL);
    } else if (w->is_unreadable) {
        query_done(s, y, RC_CORRUPT, NULL);  // Not settled: it goes back with the channel.
    }
}

static void size_push(struct queue_client_consumer *c, uint32_t size)
{
    if (c->sizes_count == c->sizes_cap) {
        uint32_t cap = c->sizes_cap ? c->sizes_cap * 2 : 16;
        uint32_t *sizes = mem_alloc(cap * sizeof(*sizes));
        for (uint32_t i = 0; i < c->sizes_count; i++) {
            sizes[i] = c->sizes[(c->sizes_head + i) & (c->sizes_cap - 1)];
        }
        free(c->sizes);
        c->sizes = sizes;
        c->sizes_head = 0;
        c->sizes_cap = cap;
    }
    c->sizes[(c->sizes_head + c->sizes_count++) & (c->sizes_cap - 1)] = size;
    c->waiting += size;
}

static void got(struct queue_session *s, struct queue_client_consumer *c, const struct queue_message *m)
{
    struct queue_query *y = list_is_empty(&s->queries) ? NULL : list_entry(s->queries.next, struct queue_query, link);
    if (y && y->is_answered && y->number == m->number) {
        c->last = m->number;
        query_done(s, y, RC_OK, m);
    }
}

void queue_client_deliver(struct queue_session *s, uint32_t attach, uint32_t consumer, uint64_t before,
                          const struct queue_message *m)
{
    if (!is_current(s, attach) || s->state != SESSION_ATTACHED || s->is_closing) {
        return;
    }
    struct queue_client_consumer *c =
        s->recent && s->recent->id == consumer ? s->recent : map_get(&s->consumers, consumer);
    if (!c || !c->is_ready) {
        return;
    }
    s->recent = c;
    if (m->number <= c->last) {
        s->service->metrics.deliveries_repeated++;
        return;
    }
    uint64_t now = queue_service_now(s->service);
    if (before > c->last) {
        s->service->metrics.gaps++;
        if (!c->wants_resume && (c->resumed_at == 0 || now - c->resumed_at >= RESUME_AGAIN_NS)) {
            c->wants_resume = true;
            queue_session_mark(s);
        }
        return;
    }
    s->asked_at = now;
    c->resumed_at = 0;
    s->service->metrics.delivered++;
    s->service->metrics.redelivered += m->acquired_count > 0;
    if (consumer == 0) {
        got(s, c, m);
        return;
    }
    c->last = m->number;
    bool is_no_ack = c->is_no_ack;
    size_push(c, (uint32_t)m->body.len);
    s->cb.deliver(s->ctx, s, consumer, m);
    if (is_no_ack && !s->is_closing) {  // Closed meanwhile: the channel could not send it, so it goes back.
        queue_session_settle(s, consumer, m->number, m->number, QUEUE_ACK);
    }
}

// ---- from the wire -------------------------------------------------------------------------------------------------

// APPLIED and ATTACHED: seqs and rejected ranges. The ranges are copied out: they need not be aligned.
static bool read_applied(struct queue_service *q, struct reader *r, uint64_t seq[QUEUE_STREAMS], uint32_t *ahead,
                         const struct queue_seq_range **ranges, uint32_t *count)
{
    const uint8_t *p = reader_take(r, sizeof(struct queue_applied_wire));
    if (!p) {
        return false;
    }
    struct queue_applied_wire w;
    memcpy(&w, p, sizeof(w));
    struct span bytes = reader_span(r, (size_t)w.rejected_count * sizeof(struct queue_seq_range));
    if (r->is_bad) {
        return false;
    }
    seq[QUEUE_STREAM_PUBLISH] = w.publish;
    seq[QUEUE_STREAM_CONTROL] = w.control;
    *ahead = w.publish_ahead;
    q->ranges.len = 0;
    buf_span_bytes(&q->ranges, bytes);
    *ranges = (const void *)q->ranges.ptr;
    *count = w.rejected_count;
    return true;
}

static bool read_query(struct queue_session *s, uint32_t attach, struct reader *r)
{
    const uint8_t *p = reader_take(r, sizeof(struct queue_query_wire));
    if (!p) {
        return false;
    }
    struct queue_query_wire w;
    memcpy(&w, p, sizeof(w));
    queue_client_query(s, attach, &w);
    return true;
}

static bool item_attached(struct queue_session *s, const struct queue_item *item, struct reader *r)
{
    uint64_t seq[QUEUE_STREAMS];
    const struct queue_seq_range *ranges;
    uint32_t count, ahead;
    if (!read_applied(s->service, r, seq, &ahead, &ranges, &count)) {
        return false;
    }
    // The query's answer is taken before the seq that covers it.
    if (is_current(s, item->attach) && s->state == SESSION_ATTACHING && reader_left(r) > 0 &&
        !read_query(s, item->attach, r)) {
        return false;
    }
    queue_client_attached(s, item->attach, seq, ahead, ranges, count);
    return true;
}

static bool item_applied(struct queue_session *s, const struct queue_item *item, struct reader *r)
{
    uint64_t seq[QUEUE_STREAMS];
    const struct queue_seq_range *ranges;
    uint32_t count, ahead;
    if (!read_applied(s->service, r, seq, &ahead, &ranges, &count)) {
        return false;
    }
    queue_client_applied(s, item->attach, seq, ranges, count);
    return true;
}

static bool item_deliver(struct queue_session *s, const struct queue_item *item, struct reader *r)
{
    struct queue_delivery_wire w;
    struct queue_message m;
    enum rc rc;
    while ((rc = queue_delivery_next(r, &w, &m)) == RC_OK) {
        queue_client_deliver(s, item->attach, w.consumer, w.before, &m);
    }
    return rc == RC_MORE;
}

void queue_client_item(struct queue_service *q, const struct queue_item *item)
{
    struct queue_session *s = map_get(&q->sessions, item->session.counter);
    if (!s || !queue_session_id_equal(s->id, item->session) || s->link->group != item->group) {
        return;  // Of a session that is gone.
    }
    struct reader r = reader_of(item->body);
    bool is_good = true;
    switch (item->type) {
    case QUEUE_ITEM_ATTACHED:
        is_good = item_attached(s, item, &r);
        break;
    case QUEUE_ITEM_NOT_LEADER:
        queue_client_not_leader(s, item->attach, s->place.node, reader_u32(&r));
        break;
    case QUEUE_ITEM_REFUSED:
        queue_client_refused(s, item->attach);
        break;
    case QUEUE_ITEM_ENDED:
        queue_client_ended(s, reader_u8(&r) != 0);
        break;
    case QUEUE_ITEM_APPLIED:
        is_good = item_applied(s, item, &r);
        break;
    case QUEUE_ITEM_QUERY:
        is_good = read_query(s, item->attach, &r);
        break;
    case QUEUE_ITEM_DELIVER:
        is_good = item_deliver(s, item, &r);
        break;
    case QUEUE_ITEM_EXPECT: {
        uint32_t stream = reader_u32(&r);
        queue_client_expect(s, item->attach, stream, reader_u64(&r));
        break;
    }
    default:
        is_good = false;
    }
    if (!is_good || r.is_bad) {
        q->metrics.bad_items++;
    }
}
