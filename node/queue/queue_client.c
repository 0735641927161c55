// SPDX-License-Identifier: Apache-2.0
// Queue sessions, client side: what the channel hands in, kept until applied, and sent (queue.h; README).
//
// Publishes and control commands are two sequences of pending commands, encoded once when handed in. A turn
// moves joined settles, credits and questions into the control sequence and sends both from where this attach
// left off: to a leader on this worker by a call that copies straight into the log, else as items on a lane.
// Nothing leaves the pending list before it was applied, so a new attach only sets the marks back, to what the leader has.
//
// Answers: queue_client_in.c. Where the leader is: queue_link.c.
#include "node/queue/queue_parts.h"
#include "proto/record.h"
#include <stdlib.h>

enum { PUBLISH_BLOCK = 32 << 10, CONTROL_BLOCK = 2 << 10, COMMANDS_ITEM_BYTES = 128 << 10 };

static uint64_t new_counter(struct queue_service *q)
{
    return (uint64_t)q->config.worker << 48 | q->next_counter++;
}

struct queue_session *queue_session_open(struct queue_service *q, const struct queue_target *t,
                                         const struct queue_callbacks *cb, void *ctx)
{
    assert(t->members_count > 0 && t->members_count <= LIMIT_VOTERS);
    struct queue_session *s = mem_zalloc(sizeof(*s));
    s->service = q;
    s->cb = *cb;
    s->ctx = ctx;
    s->id = (struct queue_session_id){.incarnation = q->config.incarnation,
                                      .counter = new_counter(q),
                                      .node = q->config.node_id};
    queue_pending_init(&s->pending[QUEUE_STREAM_PUBLISH], PUBLISH_BLOCK, 1);
    queue_pending_init(&s->pending[QUEUE_STREAM_CONTROL], CONTROL_BLOCK, 1);
    map_init_u64(&s->consumers);
    list_init(&s->queries);
    list_init(&s->dirty);
    map_put(&q->sessions, s->id.counter, s);
    s->link = queue_link_get(q, t);
    list_add_tail(&s->link->sessions, &s->in_link);
    queue_link_seek(s->link, 0);
    q->metrics.sessions++;
    return s;
}

void *queue_session_ctx(struct queue_session *s)
{
    return s->ctx;
}

void queue_session_mark(struct queue_session *s)
{
    s->service->wants_turn = true;
    if (list_is_empty(&s->dirty)) {
        list_add_tail(&s->service->dirty_sessions, &s->dirty);
    }
}

void queue_session_close(struct queue_session *s)
{
    assert(!s->is_closing);
    s->is_closing = true;
    queue_session_mark(s);
}

void queue_session_destroy(struct queue_session *s)
{
    if (s->server) {
        queue_server_detach_local(s->server);
    }
    map_remove(&s->service->sessions, s->id.counter);
    list_remove(&s->dirty);
    list_remove(&s->in_link);
    queue_link_put(s->link);
    uint32_t pos = 0;
    struct queue_client_consumer *c;
    while ((c = map_next(&s->consumers, &pos, NULL, NULL)) != NULL) {
        free(c->sizes);
        free(c);
    }
    map_deinit(&s->consumers);
    list_each (l, &s->queries) {
        free(list_entry(l, struct queue_query, link));
    }
    queue_pending_deinit(&s->pending[QUEUE_STREAM_PUBLISH]);
    queue_pending_deinit(&s->pending[QUEUE_STREAM_CONTROL]);
    free(s->settles);
    s->service->metrics.sessions--;
    free(s);
}

// ---- handing in ----------------------------------------------------------------------------------------------------

bool queue_session_is_full(const struct queue_session *s)
{
    const struct queue_pending *p = &s->pending[QUEUE_STREAM_PUBLISH];
    return p->count >= LIMIT_FOR_PUBLISH(LIMIT_SESSION_COMMANDS) || p->bytes >= LIMIT_FOR_PUBLISH(LIMIT_SESSION_BYTES);
}

// A large body that the channel gives away stays where it is: the command is written in front of it. False:
// not such a one.
static bool publish_in_place(struct queue_session *s, const struct queue_publish *p, size_t size, uint64_t seq)
{
    const size_t front = size - p->body.len;
    if (!p->is_body_disposable || p->body_more.len > 0 ||
        !block_has_room(p->body, front + RECORD_HEADER_BYTES, RECORD_ALIGN)) {
        return false;
    }
    struct block *block = block_of(p->body);
    const size_t at = (size_t)(p->body.ptr - block->ptr) - front;
    queue_pending_push_block(&s->pending[QUEUE_STREAM_PUBLISH], block, block->ptr + at, (uint32_t)size,
                             QUEUE_COMMAND_ENQUEUE, 0);
    queue_enqueue_write(block->ptr + at, size, s->id, seq, s->applied[QUEUE_STREAM_PUBLISH], p);
    block_sum_extend(block, at);
    block->is_disposable = block->has_room = false;
    return true;
}

uint64_t queue_session_publish(struct queue_session *s, const struct queue_publish *p)
{
    struct queue_pending *pending = &s->pending[QUEUE_STREAM_PUBLISH];
    s->service->metrics.published++;
    if (s->state == SESSION_ENDED) {
        return pending->first++;  // The channel has been told that this session is no more.
    }
    size_t size = queue_enqueue_size(p);
    assert(size <= UINT32_MAX);
    uint64_t seq = queue_pending_last(pending) + 1;
    if (!publish_in_place(s, p, size, seq)) {
        uint8_t *to = queue_pending_push(pending, (uint32_t)size, QUEUE_COMMAND_ENQUEUE, 0);
        queue_enqueue_write(to, size, s->id, seq, s->applied[QUEUE_STREAM_PUBLISH], p);
    }
    if (queue_session_is_full(s)) {
        s->was_full = true;
    }
    queue_session_mark(s);
    return seq;
}

// Encodes a control command at the end of its sequence. `body` follows the fixed part.
static uint64_t push_control(struct queue_session *s, enum queue_command_kind kind, uint16_t flags,
                             uint32_t aux, struct span body)
{
    struct queue_pending *pending = &s->pending[QUEUE_STREAM_CONTROL];
    uint64_t seq = queue_pending_last(pending) + 1;
    struct buf *scratch = &s->service->scratch;
    scratch->len = 0;
    queue_command_head(scratch, kind, flags, s->id, seq, s->applied[QUEUE_STREAM_PUBLISH]);
    uint8_t *to = queue_pending_push(pending, (uint32_t)(scratch->len + body.len), (uint8_t)kind, aux);
    memcpy(to, scratch->ptr, scratch->len);
    if (body.len > 0) {
        memcpy(to + scratch->len, body.ptr, body.len);
    }
    queue_session_mark(s);
    return seq;
}

static struct queue_client_consumer *consumer_add(struct queue_session *s, uint32_t id)
{
    struct queue_client_consumer *c = mem_zalloc(sizeof(*c));
    c->id = id;
    map_put(&s->consumers, (uint64_t)id, c);
    return c;
}

void queue_session_consume(struct queue_session *s, const struct queue_consume *c)
{
    assert(c->consumer > 0);
    assert(!map_get(&s->consumers, c->consumer));
    if (s->state == SESSION_ENDED) {
        return;
    }
    struct queue_client_consumer *consumer = consumer_add(s, c->consumer);
    consumer->is_no_ack = c->is_no_ack;
    consumer->has_credit = c->is_no_ack || c->prefetch == 0;
    struct buf body = {0};
    queue_command_checkout(&body, c);
    uint16_t flags = (uint16_t)((c->is_no_ack ? QUEUE_FLAG_NO_ACK : 0) | (c->is_exclusive ? QUEUE_FLAG_EXCLUSIVE : 0));
    push_control(s, QUEUE_COMMAND_CHECKOUT, flags, c->consumer, buf_span(&body));
    buf_deinit(&body);
}

void queue_session_cancel(struct queue_session *s, uint32_t consumer)
{
    struct queue_client_consumer *c = map_get(&s->consumers, consumer);
    if (!c || c->is_cancelling || s->state == SESSION_ENDED) {
        return;
    }
    c->is_cancelling = true;
    push_control(s, QUEUE_COMMAND_CANCEL, 0, consumer, span_of(&consumer, sizeof(consumer)));
}

static void query_add(struct queue_session *s, uint8_t kind, uint64_t token, bool is_no_ack)
{
    if (s->state == SESSION_ENDED) {
        return;
    }
    struct queue_query *y = mem_zalloc(sizeof(*y));
    y->kind = kind;
    y->token = token;
    y->is_no_ack = is_no_ack;
    y->after = queue_pending_last(&s->pending[QUEUE_STREAM_PUBLISH]);
    list_add_tail(&s->queries, &y->link);
    queue_session_mark(s);
}

void queue_session_get(struct queue_session *s, uint64_t token, bool is_no_ack)
{
    query_add(s, QUEUE_COMMAND_GET, token, is_no_ack);
}

void queue_session_purge(struct queue_session *s, uint64_t token)
{
    query_add(s, QUEUE_COMMAND_PURGE, token, false);
}

void queue_session_settle(struct queue_session *s, uint32_t consumer, uint64_t first, uint64_t last,
                          enum queue_settle how)
{
    assert(first <= last);
    if (s->state == SESSION_ENDED) {
        return;
    }
    s->service->metrics.settled++;
    // Neighbours join; looking at the last few is enough for acknowledgements that alternate between consumers.
    for (uint32_t i = s->settles_count, tries = 4; i > 0 && tries > 0; i--, tries--) {
        struct queue_settle_wire *w = &s->settles[i - 1];
        if (w->consumer == consumer) {
            if (w->how == how && w->last + 1 == first) {
                w->last = last;
                return;
            }
            break;  // Order among one consumer's settles is kept.
        }
    }
    if (s->settles_count == s->settles_cap) {
        s->settles_cap = s->settles_cap ? s->settles_cap * 2 : 8;
        s->settles = mem_realloc(s->settles, s->settles_cap * sizeof(*s->settles));
    }
    s->settles[s->settles_count++] =
        (struct queue_settle_wire){.first = first, .last = last, .consumer = consumer, .how = (uint32_t)how};
    queue_session_mark(s);
}

void queue_session_taken(struct queue_session *s, uint32_t consumer, uint64_t bytes)
{
    struct queue_client_consumer *c =
        s->recent && s->recent->id == consumer ? s->recent : map_get(&s->consumers, consumer);
    if (!c || consumer == 0) {
        return;
    }
    c->carry += bytes;
    while (c->sizes_count > 0 && c->sizes[c->sizes_head] <= c->carry) {
        uint32_t size = c->sizes[c->sizes_head];
        c->sizes_head = (c->sizes_head + 1) & (c->sizes_cap - 1);
        c->sizes_count--;
        c->carry -= size;
        c->waiting -= size;
        c->taken += size;
        c->uncredited++;
    }
    if (c->sizes_count == 0) {
        c->carry = 0;  // Frames counted with the bodies.
    }
    if (c->taken - c->told >= QUEUE_TAKEN_STEP_BYTES || (c->has_credit && c->uncredited >= QUEUE_CREDIT_STEP)) {
        queue_session_mark(s);
    }
}

void queue_session_pause(struct queue_session *s, bool is_paused)
{
    if (s->is_paused != is_paused) {
        s->is_paused = is_paused;
        s->is_pause_dirty = true;
        queue_session_mark(s);
    }
}

// ---- a turn --------------------------------------------------------------------------------------------------------

static void push_settles(struct queue_session *s)
{
    uint32_t at = 0;
    while (at < s->settles_count) {
        uint32_t n = s->settles_count - at < QUEUE_SETTLE_RANGES ? s->settles_count - at : QUEUE_SETTLE_RANGES;
        struct queue_pending *pending = &s->pending[QUEUE_STREAM_CONTROL];
        struct buf *scratch = &s->service->scratch;
        scratch->len = 0;
        queue_command_head(scratch, QUEUE_COMMAND_SETTLE, 0, s->id, queue_pending_last(pending) + 1,
                           s->applied[QUEUE_STREAM_PUBLISH]);
        buf_u32(scratch, n);
        buf_bytes(scratch, s->settles + at, n * sizeof(*s->settles));
        memcpy(queue_pending_push(pending, (uint32_t)scratch->len, QUEUE_COMMAND_SETTLE, 0), scratch->ptr,
               scratch->len);
        at += n;
    }
    s->settles_count = 0;
}

static void send_taken(struct queue_session *s, struct queue_client_consumer *c)
{
    c->told = c->taken;
    if (s->server) {
        queue_server_taken(s->server, c->id, c->taken);
        return;
    }
    struct queue_lane *lane = s->place.lane;
    size_t at = queue_lane_begin(lane, QUEUE_ITEM_TAKEN, s->link->group, s->id, s->attach);
    buf_u32(&lane->out, c->id);
    buf_u64(&lane->out, c->taken);
    queue_lane_end(lane, at);
}

static void send_resume(struct queue_session *s, struct queue_client_consumer *c)
{
    c->wants_resume = false;
    c->resumed_at = queue_service_now(s->service);
    c->taken = c->told = 0;
    struct queue_cursor_wire w = {.last = c->last, .waiting = c->waiting, .consumer = c->id};
    if (s->server) {
        queue_server_resume(s->server, &w);
        return;
    }
    struct queue_lane *lane = s->place.lane;
    size_t at = queue_lane_begin(lane, QUEUE_ITEM_RESUME, s->link->group, s->id, s->attach);
    buf_bytes(&lane->out, &w, sizeof(w));
    queue_lane_end(lane, at);
}

static void send_pause(struct queue_session *s)
{
    s->is_pause_dirty = false;
    if (s->server) {
        queue_server_pause(s->server, s->is_paused);
        return;
    }
    struct queue_lane *lane = s->place.lane;
    size_t at = queue_lane_begin(lane, QUEUE_ITEM_PAUSE, s->link->group, s->id, s->attach);
    buf_u8(&lane->out, s->is_paused);
    queue_lane_end(lane, at);
}

static void flow_control(struct queue_session *s)
{
    uint32_t pos = 0;
    struct queue_client_consumer *c;
    while ((c = map_next(&s->consumers, &pos, NULL, NULL)) != NULL) {
        if (c->wants_resume) {
            send_resume(s, c);
        }
        if (c->taken - c->told >= QUEUE_TAKEN_STEP_BYTES) {
            send_taken(s, c);
        }
        if (c->has_credit && c->uncredited >= QUEUE_CREDIT_STEP && !c->is_cancelling) {
            uint32_t body[2] = {c->id, c->uncredited};
            c->uncredited = 0;
            push_control(s, QUEUE_COMMAND_CREDIT, 0, c->id, span_of(body, sizeof(body)));
        }
    }
    if (s->is_pause_dirty) {
        send_pause(s);
    }
}

// The first question is handed in once the publishes before it are applied, one at a time, so that the state needs to
// remember one answer only.
static void push_query(struct queue_session *s)
{
    if (list_is_empty(&s->queries)) {
        return;
    }
    struct queue_query *y = list_entry(s->queries.next, struct queue_query, link);
    if (y->seq == 0 && y->after <= s->applied[QUEUE_STREAM_PUBLISH]) {
        if (y->kind == QUEUE_COMMAND_GET && !map_get(&s->consumers, 0)) {
            consumer_add(s, 0)->is_ready = true;
        }
        y->seq = push_control(s, y->kind, y->is_no_ack ? QUEUE_FLAG_NO_ACK : 0, 0, (struct span){0});
    }
}

static void push_end(struct queue_session *s)
{
    if (s->is_closing && !s->is_end_sent && s->pending[QUEUE_STREAM_PUBLISH].count == 0 &&
        s->pending[QUEUE_STREAM_CONTROL].count == 0) {
        s->is_end_sent = true;
        push_control(s, QUEUE_COMMAND_END, 0, 0, (struct span){0});
    }
}

// Sends what is pending above sent[stream] as COMMANDS items. False: the lane is full, go on later.
static bool send_lane(struct queue_session *s, enum queue_stream stream)
{
    struct queue_lane *lane = s->place.lane;
    const struct queue_pending_item *item;
    while ((item = queue_pending_at(&s->pending[stream], s->sent[stream] + 1)) != NULL) {
        if (!queue_lane_takes(lane, item->len, QUEUE_ITEM_COMMANDS, s->link->group, s->id)) {
            return false;
        }
        size_t at = queue_lane_begin(lane, QUEUE_ITEM_COMMANDS, s->link->group, s->id, s->attach);
        if (item->block) {
            buf_u32(&lane->out, item->len);
            queue_lane_end_shared(lane, at, item->block, span_of(item->ptr, item->len));
            s->sent[stream]++;
            continue;
        }
        do {
            buf_u32(&lane->out, item->len);
            buf_bytes(&lane->out, item->ptr, item->len);
            s->sent[stream]++;
            item = queue_pending_at(&s->pending[stream], s->sent[stream] + 1);
        } while (item && !item->block && lane->out.len - at + item->len < COMMANDS_ITEM_BYTES);
        queue_lane_end(lane, at);
    }
    return true;
}

// Hands a command to a leader on this worker. A large one is in memory once: the log shares its block, or, if
// it cannot, its bytes are given up while the log takes them, and the log's are kept in their place.
static enum rc command_local(struct queue_session *s, enum queue_stream stream, const struct queue_pending_item *item)
{
    if (!item->block) {
        return queue_server_command(s->server, span_of(item->ptr, item->len));
    }
    item->block->is_disposable = item->block->has_room = true;
    enum rc rc = queue_server_command(s->server, span_of(item->ptr, item->len));
    item->block->is_disposable = item->block->has_room = false;
    if (item->block->is_discarded) {
        struct entry e;
        assert(rc == RC_OK);
        rc = group_entry(s->server->replica->handle, s->server->proposed_index, &e);
        assert(rc == RC_OK);  // Not durable yet, so in memory.
        queue_pending_share(&s->pending[stream], s->sent[stream] + 1, e.payload);
    }
    return rc;
}

// The same to a leader on this worker. False: its group is full, or it leads no more.
static bool send_local(struct queue_session *s, enum queue_stream stream)
{
    const struct queue_pending_item *item;
    while ((item = queue_pending_at(&s->pending[stream], s->sent[stream] + 1)) != NULL) {
        enum rc rc = command_local(s, stream, item);
        if (rc == RC_FULL || rc == RC_BUSY) {
            return false;
        }
        if (rc == RC_GAP) {
            s->sent[stream] = s->server->accepted[stream];
            continue;
        }
        if (rc != RC_OK && rc != RC_STALE) {
            queue_link_failed(s->link, s->place.node, 0);
            return true;
        }
        s->sent[stream]++;
    }
    return true;
}

static bool send_pending(struct queue_session *s)
{
    if (s->server) {
        bool is_done = send_local(s, QUEUE_STREAM_CONTROL);
        return s->state != SESSION_ATTACHED || (send_local(s, QUEUE_STREAM_PUBLISH) && is_done);
    }
    return send_lane(s, QUEUE_STREAM_CONTROL) && send_lane(s, QUEUE_STREAM_PUBLISH);
}

void queue_session_turn(struct queue_session *s)
{
    list_remove(&s->dirty);
    // Nothing can be in any log if no attach was ever sent.
    bool is_untouched = s->attach == 0 && s->pending[QUEUE_STREAM_PUBLISH].count == 0;
    if (s->is_closing && (s->state == SESSION_ENDED || is_untouched)) {
        queue_session_destroy(s);
        return;
    }
    if (s->state != SESSION_ATTACHED) {
        return;
    }
    if (s->sent[QUEUE_STREAM_PUBLISH] == s->applied[QUEUE_STREAM_PUBLISH] &&
        s->sent[QUEUE_STREAM_CONTROL] == s->applied[QUEUE_STREAM_CONTROL]) {
        s->asked_at = queue_service_now(s->service);  // Nobody owes us anything yet.
    }
    push_settles(s);
    flow_control(s);
    if (!s->is_closing) {
        push_query(s);
    }
    push_end(s);
    if (!send_pending(s) && s->state == SESSION_ATTACHED) {
        list_add_tail(&s->service->dirty_sessions, &s->dirty);  // Polled.
    }
    if (queue_session_waits(s)) {
        queue_service_arm_check(s->service);
    }
}

// ---- attaching -----------------------------------------------------------------------------------------------------

bool queue_session_waits(const struct queue_session *s)
{
    return s->state == SESSION_ATTACHING ||
           (s->state == SESSION_ATTACHED &&
            (s->pending[QUEUE_STREAM_PUBLISH].count > 0 || s->pending[QUEUE_STREAM_CONTROL].count > 0 ||
             !list_is_empty(&s->queries)));
}

void queue_session_seek(struct queue_session *s)
{
    if (s->state == SESSION_ENDED || s->state == SESSION_SEEKING) {
        return;
    }
    if (s->server) {
        queue_server_detach_local(s->server);
        s->server = NULL;
    }
    s->state = SESSION_SEEKING;
    s->place = (struct queue_place){0};
}

void queue_session_attach(struct queue_session *s, const struct queue_place *place)
{
    assert(s->state == SESSION_SEEKING);
    struct queue_service *q = s->service;
    s->attach++;
    s->state = SESSION_ATTACHING;
    s->place = *place;
    s->asked_at = queue_service_now(q);
    s->needs_query = false;
    q->metrics.attaches++;
    struct buf *scratch = &q->scratch;
    scratch->len = 0;
    uint32_t pos = 0, count = 0;
    struct queue_client_consumer *c;
    while ((c = map_next(&s->consumers, &pos, NULL, NULL)) != NULL) {
        c->taken = c->told = 0;
        c->wants_resume = false;
        c->resumed_at = 0;
        struct queue_cursor_wire w = {.last = c->last, .waiting = c->waiting, .consumer = c->id};
        buf_bytes(scratch, &w, sizeof(w));
        count++;
    }
    queue_service_arm_check(q);
    if (place->local) {
        queue_replica_attach(place->local, s, NULL, s->id, s->attach, s->was_open, (const void *)scratch->ptr, count);
        return;
    }
    size_t at = queue_lane_begin(place->lane, QUEUE_ITEM_ATTACH, s->link->group, s->id, s->attach);
    buf_u8(&place->lane->out, s->was_open);
    buf_u32(&place->lane->out, count);
    buf_span_bytes(&place->lane->out, buf_span(scratch));
    queue_lane_end(place->lane, at);
}

void queue_session_check(struct queue_session *s, uint64_t now)
{
    if (!queue_session_waits(s)) {
        return;
    }
    if (s->place.lane && queue_lane_is_sending(s->place.lane, s->link->group, s->id)) {
        s->asked_at = now;  // Nobody can have answered it yet; a net that stands still is another's business.
    }
    if (s->server) {
        s->asked_at = now;  // On this worker nothing gets lost. To attach anew would lay down once more what is in the log.
    }
    if (queue_lanes_receives(&s->service->lanes, s->link->group, s->id)) {
        s->asked_at = now;  // The answer comes behind a large delivery. To attach anew would send that once more, for ever.
    }
    if (s->state == SESSION_ATTACHING && now - s->asked_at >= QUEUE_ATTACH_TIMEOUT_NS) {
        queue_link_failed(s->link, s->place.node, 0);
    } else if (s->state == SESSION_ATTACHED && (s->needs_query || now - s->asked_at >= QUEUE_ANSWER_TIMEOUT_NS)) {
        // Answers were lost, or the leader is stuck: ask it again; if it is gone the attach will find out.
        queue_session_seek(s);
        queue_link_seek(s->link, 0);
    }
}
