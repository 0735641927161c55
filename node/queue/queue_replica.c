// SPDX-License-Identifier: Apache-2.0
// Queue sessions, leader's side: attaches, commands, proposals (README's right-hand column).
//
// Only a leader whose first entry of the term is applied answers sessions: from then on the state is all that was ever
// committed, and the marks in it (last applied, rejected, last query, unsettled) are the whole truth about a session. What
// stands in queue_server and queue_leading is volatile and dropped with the lead.
//
// Order: a command is proposed only if it is the next of its sequence. Publishes that find the group full wait in one list
// for all sessions of other nodes, up to a bound; control commands use the reserve and wait for nobody (decision 10).
// A session on this worker keeps its own commands, so nothing of it is held here.
#include "node/queue/queue_parts.h"
#include <stdlib.h>

static enum rc propose_open(struct queue_replica *r, struct queue_session_id id)
{
    uint64_t index;
    struct buf *scratch = &r->service->scratch;
    scratch->len = 0;
    queue_command_head(scratch, QUEUE_COMMAND_OPEN, 0, id, 0, 0);
    return queue_replica_propose(r, buf_span(scratch), true, &index);
}

// ---- answers -------------------------------------------------------------------------------------------------------

void queue_send_not_leader(struct queue_lane *lane, uint64_t group, struct queue_session_id id, uint32_t attach, uint32_t hint)
{
    size_t at = queue_lane_begin(lane, QUEUE_ITEM_NOT_LEADER, group, id, attach);
    buf_u32(&lane->out, hint);
    queue_lane_end(lane, at);
}

void queue_send_ended(struct queue_lane *lane, uint64_t group, struct queue_session_id id, uint32_t attach, bool is_deleted)
{
    size_t at = queue_lane_begin(lane, QUEUE_ITEM_ENDED, group, id, attach);
    buf_u8(&lane->out, is_deleted);
    queue_lane_end(lane, at);
}

static struct queue_query_wire query_wire(const struct queue_fsm_session *s)
{
    return (struct queue_query_wire){.seq = s->query_seq, .number = s->query_number, .ready = s->query_ready, .kind = s->query_kind};
}

static void send_state(struct queue_server *v, enum queue_item_type type)
{
    const struct queue_fsm_session *s = v->fsm;
    struct queue_lane *lane = v->lane;
    size_t at = queue_lane_begin(lane, type, v->replica->group, v->id, v->attach);
    struct queue_applied_wire w = {
        .publish = s->seq[QUEUE_STREAM_PUBLISH], .control = s->seq[QUEUE_STREAM_CONTROL], .rejected_count = s->rejected_count};
    if (type == QUEUE_ITEM_ATTACHED && v->accepted[QUEUE_STREAM_PUBLISH] > w.publish) {
        // They are in the log, or held: what becomes of them this leader tells, or that it leads no more.
        const uint64_t ahead = v->accepted[QUEUE_STREAM_PUBLISH] - w.publish;
        w.publish_ahead = ahead < UINT32_MAX ? (uint32_t)ahead : UINT32_MAX;
    }
    buf_bytes(&lane->out, &w, sizeof(w));
    buf_bytes(&lane->out, s->rejected, s->rejected_count * sizeof(*s->rejected));
    if (type == QUEUE_ITEM_ATTACHED && s->query_kind != 0) {
        struct queue_query_wire query = query_wire(s);
        buf_bytes(&lane->out, &query, sizeof(query));
    }
    queue_lane_end(lane, at);
}

static void answer_query(struct queue_server *v, bool is_unreadable)
{
    v->send_query = false;
    struct queue_query_wire w = query_wire(v->fsm);
    w.is_unreadable = is_unreadable;
    if (v->local) {
        queue_client_query(v->local, v->attach, &w);
        return;
    }
    size_t at = queue_lane_begin(v->lane, QUEUE_ITEM_QUERY, v->replica->group, v->id, v->attach);
    buf_bytes(&v->lane->out, &w, sizeof(w));
    queue_lane_end(v->lane, at);
}

void queue_server_unreadable(struct queue_server *v, uint64_t number)
{
    if (v->fsm->query_kind == QUEUE_COMMAND_GET && v->fsm->query_number == number) {
        answer_query(v, true);
    }
}

static void answer_attached(struct queue_server *v)
{
    assert(v->fsm);
    const struct queue_fsm_session *s = v->fsm;
    v->send_applied = v->send_query = false;
    if (!v->local) {
        send_state(v, QUEUE_ITEM_ATTACHED);
        return;
    }
    if (s->query_kind != 0) {
        struct queue_query_wire w = query_wire(s);
        queue_client_query(v->local, v->attach, &w);
    }
    v->local->server = v;
    queue_client_attached(v->local, v->attach, s->seq, 0, s->rejected, s->rejected_count);
}

static void answer_applied(struct queue_server *v)
{
    v->send_applied = false;
    if (v->local) {
        queue_client_applied(v->local, v->attach, v->fsm->seq, v->fsm->rejected, v->fsm->rejected_count);
    } else {
        send_state(v, QUEUE_ITEM_APPLIED);
    }
}

void queue_server_expect(struct queue_server *v, enum queue_stream stream)
{
    if (v->local || v->is_expecting[stream]) {
        return;
    }
    v->is_expecting[stream] = true;
    size_t at = queue_lane_begin(v->lane, QUEUE_ITEM_EXPECT, v->replica->group, v->id, v->attach);
    buf_u32(&v->lane->out, stream);
    buf_u64(&v->lane->out, v->accepted[stream] + 1);
    queue_lane_end(v->lane, at);
}

// ---- servers -------------------------------------------------------------------------------------------------------

static void server_mark(struct queue_server *v)
{
    if (list_is_empty(&v->dirty)) {
        list_add_tail(&v->replica->leading->serving->dirty_servers, &v->dirty);
    }
}

static void consumer_free(struct queue_server_consumer *c)
{
    queue_deliver_forget(c);
    list_remove(&c->link);
    list_remove(&c->dirty);
    if (c->fsm) {
        c->fsm->user = NULL;
    }
    free(c);
}

void queue_server_free(struct queue_server *v)
{
    list_each (l, &v->consumers) {
        consumer_free(list_entry(l, struct queue_server_consumer, link));
    }
    if (v->fsm) {
        v->fsm->user = NULL;
    }
    if (v->local) {
        v->local->server = NULL;
    }
    list_remove(&v->link);
    list_remove(&v->opening);
    list_remove(&v->dirty);
    list_remove(&v->stopped);
    struct queue_replica *r = v->replica;
    free(v);
    if (r->leading && list_is_empty(&r->leading->serving->servers)) {
        queue_replica_mark(r);  // Which gives back what only servers need.
    }
}

static struct queue_server *server_add(struct queue_replica *r, struct queue_session_id id, struct queue_fsm_session *s)
{
    struct queue_server *v = mem_zalloc(sizeof(*v));
    v->replica = r;
    v->id = id;
    v->fsm = s;
    list_init(&v->consumers);
    list_init(&v->dirty);
    list_init(&v->stopped);
    list_init(&v->opening);
    struct queue_serving *serving = queue_replica_serving(r);
    list_add_tail(&serving->servers, &v->link);
    if (s) {
        s->user = v;
        memcpy(v->accepted, s->seq, sizeof(v->accepted));
    } else {
        list_add_tail(&serving->opening, &v->opening);
    }
    return v;
}

static struct queue_server *server_find(struct queue_replica *r, struct queue_session_id id)
{
    struct queue_fsm_session *s = queue_fsm_session_find(queue_replica_state(r), id);
    if (s) {
        return s->user;
    }
    const struct queue_serving *serving = r->leading->serving;
    if (!serving) {
        return NULL;
    }
    list_each (l, &serving->opening) {
        struct queue_server *v = list_entry(l, struct queue_server, opening);
        if (queue_session_id_equal(v->id, id)) {
            return v;
        }
    }
    return NULL;
}

struct queue_server_consumer *queue_server_consumer_find(struct queue_server *v, uint32_t consumer)
{
    struct queue_fsm_consumer *c = v->fsm ? queue_fsm_consumer_find(v->fsm, consumer) : NULL;
    return c ? c->user : NULL;
}

static struct queue_server_consumer *consumer_add(struct queue_server *v, struct queue_fsm_consumer *c, uint64_t cursor)
{
    struct queue_server_consumer *n = mem_zalloc(sizeof(*n));
    n->server = v;
    n->fsm = c;
    n->cursor = n->before = cursor;
    list_init(&n->dirty);
    list_add_tail(&v->consumers, &n->link);
    c->user = n;
    return n;
}

static void set_cursor(struct queue_server_consumer *c, const struct queue_cursor_wire *w)
{
    queue_deliver_forget(c);
    c->cursor = c->before = w->last;
    c->sent = w->waiting;
    c->taken = 0;
    queue_deliver_mark(c);
}

// What the client has of each consumer. Those it does not name are of no interest to it.
static void set_cursors(struct queue_server *v, const struct queue_cursor_wire *cursors, uint32_t count)
{
    if (!v->fsm) {
        return;
    }
    list_each (l, &v->fsm->consumers) {
        struct queue_fsm_consumer *c = list_entry(l, struct queue_fsm_consumer, in_session);
        struct queue_server_consumer *mine = c->user ? c->user : consumer_add(v, c, UINT64_MAX);
        struct queue_cursor_wire w = {.last = UINT64_MAX};
        for (uint32_t i = 0; i < count; i++) {
            struct queue_cursor_wire at;
            memcpy(&at, (const uint8_t *)cursors + i * sizeof(at), sizeof(at));
            if (at.consumer == c->id) {
                w = at;
            }
        }
        set_cursor(mine, &w);
    }
}

void queue_replica_attach(struct queue_replica *r, struct queue_session *local, struct queue_lane *lane, struct queue_session_id id,
                          uint32_t attach, bool was_open, const struct queue_cursor_wire *cursors, uint32_t count)
{
    assert(r->leading);
    struct queue_server *v = server_find(r, id);
    if (v && attach < v->attach) {
        return;  // A repeat of an earlier one.
    }
    if (!v) {
        struct queue_fsm_session *s = queue_fsm_session_find(queue_replica_state(r), id);
        const bool is_ended = !s && was_open && queue_doubt_is_ended(r, id);
        if (is_ended) {
            if (local) {
                queue_client_ended(local, false);
            } else {
                queue_send_ended(lane, r->group, id, attach, false);
            }
            return;
        }
        if (!s && (was_open || propose_open(r, id) != RC_OK)) {
            if (local) {
                queue_client_not_leader(local, attach, r->service->config.node_id, queue_replica_leader_hint(r));
            } else {
                queue_send_not_leader(lane, r->group, id, attach, queue_replica_leader_hint(r));
            }
            return;
        }
        v = server_add(r, id, s);
    }
    v->attach = attach;
    v->local = local;
    v->lane = lane;
    v->is_paused = false;
    list_remove(&v->stopped);
    memset(v->is_stopped, 0, sizeof(v->is_stopped));
    memset(v->is_expecting, 0, sizeof(v->is_expecting));
    if (local) {
        local->server = v;
    }
    const struct queue_node *n = lane ? map_get(&r->service->nodes, lane->node) : NULL;
    if (n && n->is_known && n->verdict != NODE_ALIVE) {
        r->leading->nodes_at = 0;
        queue_replica_mark(r);
    }
    if (v->fsm) {
        set_cursors(v, cursors, count);
        answer_attached(v);
        queue_replica_mark(r);
    }
}

void queue_server_detach_local(struct queue_server *v)
{
    queue_server_free(v);
}

// ---- commands ------------------------------------------------------------------------------------------------------

static enum rc hold(struct queue_server *v, struct span payload)
{
    struct queue_serving *l = v->replica->leading->serving;
    if (v->local || l->held.bytes + payload.len > QUEUE_HELD_BYTES) {
        return RC_FULL;
    }
    memcpy(queue_pending_push(&l->held, (uint32_t)payload.len, QUEUE_COMMAND_ENQUEUE, 0), payload.ptr, payload.len);
    v->replica->service->metrics.held_bytes += payload.len;
    queue_replica_mark(v->replica);
    return RC_OK;
}

// *index is left alone if it is held.
static enum rc offer_publish(struct queue_server *v, struct span payload, uint64_t *index)
{
    struct queue_replica *r = v->replica;
    bool must_wait = r->leading->serving->held.count > 0 && (!v->local || r->service->is_held_first);
    if (must_wait || group_is_full(r->handle)) {
        return hold(v, payload);
    }
    enum rc rc = queue_replica_propose(r, payload, false, index);
    return rc == RC_FULL || rc == RC_BUSY ? hold(v, payload) : rc;
}

enum rc queue_server_command(struct queue_server *v, struct span payload)
{
    struct queue_replica *r = v->replica;
    assert(r->leading);
    struct queue_command c;
    // Only what apply will understand may take a seq (law 5).
    if (queue_command_decode(payload, &c) != RC_OK || !queue_command_has_session(c.fixed.kind) ||
        c.fixed.kind == QUEUE_COMMAND_OPEN || !queue_session_id_equal(c.session, v->id)) {
        return RC_MALFORMED;
    }
    if (!v->fsm) {
        return RC_GAP;
    }
    enum queue_stream stream = queue_command_stream(c.fixed.kind);
    if (c.fixed.seq <= v->accepted[stream]) {
        r->service->metrics.commands_repeated++;
        return RC_STALE;
    }
    if (c.fixed.seq != v->accepted[stream] + 1) {
        return RC_GAP;
    }
    uint64_t index = 0;
    enum rc rc = stream == QUEUE_STREAM_PUBLISH ? offer_publish(v, payload, &index) : queue_replica_propose(r, payload, true, &index);
    if (rc == RC_OK) {
        v->accepted[stream]++;
        v->proposed_index = index;
        v->is_expecting[stream] = false;
    }
    return rc;
}

static void server_stop(struct queue_server *v, enum queue_stream stream)
{
    v->is_stopped[stream] = true;
    v->is_expecting[stream] = false;
    if (list_is_empty(&v->stopped)) {
        list_add_tail(&v->replica->leading->serving->stopped, &v->stopped);
    }
    queue_replica_mark(v->replica);
}

static void server_commands(struct queue_server *v, struct span body)
{
    struct reader r = reader_of(body);
    while (reader_left(&r) > 0) {
        struct span payload = reader_str32(&r);
        if (payload.len < sizeof(struct queue_command_wire)) {
            v->replica->service->metrics.bad_items++;
            return;
        }
        struct block *block = block_of(payload);
        if (block && reader_left(&r) > 0) {
            block->has_room = false;  // More commands behind it.
        }
        enum queue_stream stream = queue_command_stream(payload.ptr[offsetof(struct queue_command_wire, kind)]);
        if (v->is_stopped[stream]) {
            continue;  // Asked for again when there is room.
        }
        enum rc rc = queue_server_command(v, payload);
        if (rc == RC_FULL || rc == RC_BUSY) {
            server_stop(v, stream);
        } else if (rc == RC_GAP) {
            queue_server_expect(v, stream);
        } else if (rc == RC_MALFORMED) {
            v->replica->service->metrics.bad_items++;
        } else if (rc != RC_OK && rc != RC_STALE) {
            return;  // No longer leader: the role call tells all sessions.
        }
    }
}

void queue_server_taken(struct queue_server *v, uint32_t consumer, uint64_t taken)
{
    struct queue_server_consumer *c = queue_server_consumer_find(v, consumer);
    if (c && taken > c->taken) {
        c->taken = taken < c->sent ? taken : c->sent;
        queue_deliver_mark(c);
        queue_replica_mark(v->replica);
    }
}

void queue_server_resume(struct queue_server *v, const struct queue_cursor_wire *w)
{
    struct queue_server_consumer *c = queue_server_consumer_find(v, w->consumer);
    if (c) {
        set_cursor(c, w);
        queue_replica_mark(v->replica);
    }
}

void queue_server_pause(struct queue_server *v, bool is_paused)
{
    v->is_paused = is_paused;
    if (is_paused) {
        return;
    }
    list_each (l, &v->consumers) {
        queue_deliver_mark(list_entry(l, struct queue_server_consumer, link));
    }
    queue_replica_mark(v->replica);
}

// ---- from the wire -------------------------------------------------------------------------------------------------

static void item_attach(struct queue_replica *r, struct queue_lane *lane, const struct queue_item *item)
{
    struct reader in = reader_of(item->body);
    bool was_open = reader_u8(&in) != 0;
    uint32_t count = reader_u32(&in);
    struct span cursors = reader_span(&in, (size_t)count * sizeof(struct queue_cursor_wire));
    if (reader_end(&in) != RC_OK) {
        r->service->metrics.bad_items++;
        return;
    }
    if (!queue_replica_serves(r)) {
        queue_send_not_leader(lane, r->group, item->session, item->attach, queue_replica_leader_hint(r));
        return;
    }
    queue_replica_attach(r, NULL, lane, item->session, item->attach, was_open, (const void *)cursors.ptr, count);
}

static void item_info(struct queue_replica *r, struct queue_lane *lane, const struct queue_item *item)
{
    struct queue_info info = {0};
    enum rc rc = r && queue_replica_serves(r) ? RC_OK : RC_NOT_LEADER;
    if (rc == RC_OK) {
        queue_replica_info(r->service, r->group, &info, NULL);
    }
    size_t at = queue_lane_begin(lane, QUEUE_ITEM_INFO_REPLY, item->group, item->session, item->attach);
    buf_u32(&lane->out, rc);
    buf_u32(&lane->out, r ? queue_replica_leader_hint(r) : 0);
    buf_u64(&lane->out, info.ready);
    buf_u64(&lane->out, info.unacked);
    buf_u64(&lane->out, info.consumers);
    buf_u64(&lane->out, info.ready_bytes);
    buf_u64(&lane->out, info.unacked_bytes);
    queue_lane_end(lane, at);
}

static void item_to_server(struct queue_server *v, const struct queue_item *item)
{
    struct reader in = reader_of(item->body);
    switch (item->type) {
    case QUEUE_ITEM_COMMANDS:
        server_commands(v, item->body);
        return;
    case QUEUE_ITEM_TAKEN: {
        uint32_t consumer = reader_u32(&in);
        uint64_t taken = reader_u64(&in);
        if (!in.is_bad) {
            queue_server_taken(v, consumer, taken);
        }
        return;
    }
    case QUEUE_ITEM_RESUME: {
        struct queue_cursor_wire w;
        const uint8_t *p = reader_take(&in, sizeof(w));
        if (p) {
            memcpy(&w, p, sizeof(w));
            queue_server_resume(v, &w);
        }
        return;
    }
    case QUEUE_ITEM_PAUSE:
        queue_server_pause(v, reader_u8(&in) != 0);
        return;
    default:
        v->replica->service->metrics.bad_items++;
    }
}

void queue_replica_item(struct queue_service *q, const struct queue_item *item)
{
    struct queue_replica *r = map_get(&q->replicas, item->group);
    struct queue_lane *lane = queue_lane_to(&q->lanes, item->session.node, queue_session_id_worker(item->session));
    if (item->type == QUEUE_ITEM_INFO) {
        item_info(r, lane, item);
        return;
    }
    if (!r) {
        if (map_get(&q->deleted, item->group)) {
            queue_send_ended(lane, item->group, item->session, item->attach, true);
        } else if (item->type == QUEUE_ITEM_ATTACH || item->type == QUEUE_ITEM_COMMANDS) {
            queue_send_not_leader(lane, item->group, item->session, item->attach, 0);
        }
        return;
    }
    if (item->type == QUEUE_ITEM_ATTACH) {
        item_attach(r, lane, item);
        return;
    }
    struct queue_server *v = r->leading ? server_find(r, item->session) : NULL;
    if (v && !v->local && v->attach == item->attach) {
        item_to_server(v, item);
    } else if (!v && item->type == QUEUE_ITEM_COMMANDS) {
        queue_send_not_leader(lane, item->group, item->session, item->attach, queue_replica_leader_hint(r));
    }
}

// ---- effects -------------------------------------------------------------------------------------------------------

static void effect_opened(struct queue_replica *r, const struct queue_effect *e)
{
    struct queue_server *v = e->session->user;
    queue_replica_session_opened(r, e->id);
    if (v) {
        return;  // Was open already.
    }
    if (!r->leading->serving) {
        return;
    }
    list_each (l, &r->leading->serving->opening) {
        struct queue_server *at = list_entry(l, struct queue_server, opening);
        if (queue_session_id_equal(at->id, e->id)) {
            v = at;
        }
    }
    if (v) {
        list_remove(&v->opening);
        v->fsm = e->session;
        v->fsm->user = v;
        memcpy(v->accepted, v->fsm->seq, sizeof(v->accepted));
        answer_attached(v);
    }
}

static void effect_refused(struct queue_replica *r, struct queue_session_id id)
{
    struct queue_server *v = server_find(r, id);
    if (!v) {
        return;
    }
    if (v->local) {
        struct queue_session *s = v->local;
        uint32_t attach = v->attach;
        queue_server_free(v);
        queue_client_refused(s, attach);
        return;
    }
    size_t at = queue_lane_begin(v->lane, QUEUE_ITEM_REFUSED, r->group, v->id, v->attach);
    queue_lane_end(v->lane, at);
    queue_server_free(v);
}

static void effect_ended(struct queue_server *v, bool is_deleted)
{
    if (v->fsm && v->fsm->user == v) {
        v->fsm->user = NULL;
    }
    v->fsm = NULL;
    if (v->local) {
        struct queue_session *s = v->local;
        queue_server_free(v);
        queue_client_ended(s, is_deleted);
        return;
    }
    queue_send_ended(v->lane, v->replica->group, v->id, v->attach, is_deleted);
    queue_server_free(v);
}

static void effect_unknown(struct queue_replica *r, struct queue_session_id id)
{
    // Its attachment, if any, went with the session; the node is told anyway, in case that was lost.
    if (id.node == r->service->config.node_id && queue_session_id_worker(id) == r->service->config.worker) {
        struct queue_session *s = map_get(&r->service->sessions, id.counter);
        if (s && queue_session_id_equal(s->id, id) && s->link->group == r->group) {
            queue_client_ended(s, false);
        }
        return;
    }
    queue_send_ended(queue_lane_to(&r->service->lanes, id.node, queue_session_id_worker(id)), r->group, id, 0, false);
}

static void effect_deliver(const struct queue_effect *e)
{
    struct queue_server *v = e->session->user;
    struct queue_server_consumer *c = e->consumer->user;
    if (!v) {
        return;  // Nobody attached: an attach will say where to go on.
    }
    if (!c) {
        c = consumer_add(v, e->consumer, 0);  // New in this attach.
    }
    queue_deliver_mark(c);
}

static void effect_gone(struct queue_server_consumer *c)
{
    c->fsm = NULL;
    consumer_free(c);
}

// What an earlier attachment had proposed may be applied under this one, which began with less. The session is looked up:
// when the effect of its last command is looked at it is gone already (effects come after the state).
static void applied_is_accepted(struct queue_server *v)
{
    const struct queue_fsm_session *s = queue_fsm_session_find(queue_replica_state(v->replica), v->id);
    for (int i = 0; s && i < QUEUE_STREAMS; i++) {
        if (v->accepted[i] < s->seq[i]) {
            v->accepted[i] = s->seq[i];
        }
    }
}

void queue_replica_effects(struct queue_replica *r, struct queue_effects *fx)
{
    for (uint32_t i = 0; i < fx->count && r->leading; i++) {
        const struct queue_effect *e = &fx->items[i];
        struct queue_server *v = e->user;
        switch (e->kind) {
        case QUEUE_EFFECT_OPENED:
            effect_opened(r, e);
            break;
        case QUEUE_EFFECT_REFUSED:
            effect_refused(r, e->id);
            break;
        case QUEUE_EFFECT_APPLIED:
        case QUEUE_EFFECT_REJECTED:
            if (v) {
                applied_is_accepted(v);
                v->send_applied = true;
                server_mark(v);
            }
            break;
        case QUEUE_EFFECT_QUERY:
            if (v) {
                v->send_query = true;
                server_mark(v);
            }
            break;
        case QUEUE_EFFECT_GAP:
            if (v) {
                queue_server_expect(v, (enum queue_stream)e->value);
            }
            break;
        case QUEUE_EFFECT_DELIVER:
            effect_deliver(e);
            break;
        case QUEUE_EFFECT_GONE:
            if (e->user) {
                effect_gone(e->user);
            }
            break;
        case QUEUE_EFFECT_ENDED:
            if (v) {
                v->fsm = NULL;  // Freed.
                effect_ended(v, false);
            }
            break;
        case QUEUE_EFFECT_UNKNOWN:
            effect_unknown(r, e->id);
            break;
        }
    }
}

void queue_replica_flush(struct queue_replica *r)
{
    struct queue_serving *l = r->leading ? r->leading->serving : NULL;
    if (!l) {
        return;
    }
    struct list round;
    list_init(&round);
    list_splice(&round, &l->dirty_servers);
    struct list *item;
    while ((item = list_pop(&round)) != NULL) {
        struct queue_server *v = list_entry(item, struct queue_server, dirty);
        if (v->fsm && v->send_query) {
            answer_query(v, false);
        }
        if (v->fsm && v->send_applied) {
            answer_applied(v);
        }
    }
    list_splice(&round, &l->dirty_consumers);
    while ((item = list_pop(&round)) != NULL) {
        queue_deliver_pump(list_entry(item, struct queue_server_consumer, dirty));
    }
    if (!list_is_empty(&l->dirty_consumers)) {
        queue_replica_mark(r);  // Waits for its lane.
    }
}
