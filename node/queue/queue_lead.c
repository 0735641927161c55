// SPDX-License-Identifier: Apache-2.0
// The lead of a queue's replica: taking and giving it up, and what a leader proposes by itself.
//
// Once ready, a leader sees to it that nothing stands still in its queue: newer settings are put into the log, nodes that
// are gone are declared down (decision 8), a checkout that stopped at its bound goes on, publishes that were held go in
// when there is room. Each of these is proposed once and looked at again when that index is applied.
#include "node/base/log.h"
#include "node/base/slab.h"
#include "node/queue/queue_parts.h"
#include <stdlib.h>

enum { HELD_BLOCK = 64 << 10 };

void queue_replica_mark(struct queue_replica *r)
{
    assert(r->leading);
    r->service->wants_turn = true;
    if (list_is_empty(&r->leading->dirty)) {
        list_add_tail(&r->service->dirty_leads, &r->leading->dirty);
    }
}

uint32_t queue_replica_leader_hint(const struct queue_replica *r)
{
    if (r->leading) {
        return r->service->config.node_id;
    }
    struct consensus_status status;
    group_status(r->handle, &status);
    return status.leader_node;
}

// ---- proposing -----------------------------------------------------------------------------------------------------

enum rc queue_replica_propose(struct queue_replica *r, struct span payload, bool is_reserved, uint64_t *index)
{
    struct queue_command_wire fixed;
    assert(payload.len >= sizeof(fixed));
    memcpy(&fixed, payload.ptr, sizeof(fixed));
    assert(r->leading);
    int64_t *stamp = &r->leading->stamp_ms;
    const int64_t wall = host_wall_ms(r->service->config.host), applied = queue_replica_state_stamp(r);
    *stamp = wall > *stamp ? wall : *stamp;
    *stamp = applied > *stamp ? applied : *stamp;
    fixed.stamp_ms = *stamp;
    struct glog_part parts[2] = {{.ptr = &fixed, .len = sizeof(fixed)},
                                 {.ptr = payload.ptr + sizeof(fixed), .len = payload.len - sizeof(fixed)}};
    uint64_t term;
    enum rc rc = group_propose(r->handle, parts, payload.len > sizeof(fixed) ? 2 : 1, is_reserved, index, &term);
    if (rc == RC_OK) {
        r->service->metrics.commands_proposed++;
    } else {
        r->service->metrics.commands_refused++;
    }
    return rc;
}

// A command of the leader itself: head, then `body`.
static enum rc propose_own(struct queue_replica *r, enum queue_command_kind kind, struct span body, uint64_t *index)
{
    struct buf *scratch = &r->service->scratch;
    scratch->len = 0;
    queue_command_head(scratch, kind, 0, (struct queue_session_id){0}, 0, 0);
    buf_span_bytes(scratch, body);
    enum rc rc = queue_replica_propose(r, buf_span(scratch), true, index);
    if (rc != RC_OK) {
        queue_replica_mark(r);  // Again in the next turn, if we still lead.
    }
    return rc;
}

// ---- a turn of the leader ------------------------------------------------------------------------------------------

static void configure(struct queue_replica *r)
{
    struct queue_leading *l = r->leading;
    if (l->configure_index > r->applied || !r->wanted) {
        return;
    }
    struct buf body = {0};
    queue_command_configure(&body, r->wanted);
    if (propose_own(r, QUEUE_COMMAND_CONFIGURE, buf_span(&body), &l->configure_index) != RC_OK) {
        l->configure_index = 0;
    }
    buf_deinit(&body);
}

static void go_on(struct queue_replica *r)
{
    struct queue_leading *l = r->leading;
    if (queue_replica_state(r)->has_more && l->continue_index <= r->applied) {
        if (propose_own(r, QUEUE_COMMAND_CONTINUE, (struct span){0}, &l->continue_index) != RC_OK) {
            l->continue_index = 0;
        }
    }
}

static void propose_held(struct queue_replica *r)
{
    struct queue_serving *l = r->leading->serving;
    if (!l) {
        return;
    }
    while (l->held.count > 0 && !group_is_full(r->handle)) {
        const struct queue_pending_item *item = queue_pending_at(&l->held, l->held.first);
        uint64_t index;
        if (queue_replica_propose(r, span_of(item->ptr, item->len), false, &index) != RC_OK) {
            break;
        }
        r->service->metrics.held_bytes -= item->len;
        queue_pending_pop(&l->held);
    }
    if (l->held.count > 0) {
        queue_replica_mark(r);
        return;
    }
    // Room again: those whose commands were dropped go on.
    if (!list_is_empty(&l->stopped) && group_is_full(r->handle)) {
        queue_replica_mark(r);
        return;
    }
    struct list *item;
    while ((item = list_pop(&l->stopped)) != NULL) {
        struct queue_server *v = list_entry(item, struct queue_server, stopped);
        for (int i = 0; i < QUEUE_STREAMS; i++) {
            if (v->is_stopped[i]) {
                v->is_stopped[i] = false;
                queue_server_expect(v, (enum queue_stream)i);
            }
        }
    }
}

// When is this (node, incarnation) down: 0 now, a time, or UINT64_MAX: not at all as things are (decisions 7, 8).
static uint64_t node_down_at(struct queue_service *q, uint32_t node, uint64_t incarnation)
{
    if (node == q->config.node_id) {
        return incarnation < q->config.incarnation ? 0 : UINT64_MAX;
    }
    struct queue_node *n = queue_service_node(q, node);
    if (n->is_known && n->incarnation > incarnation) {
        return 0;
    }
    bool is_alive = n->is_known ? n->verdict == NODE_ALIVE : host_node_is_alive(q->config.host, node);
    if (is_alive) {
        return UINT64_MAX;
    }
    if (n->is_known && n->verdict == NODE_DEAD && n->incarnation == incarnation) {
        return 0;
    }
    return n->since + (uint64_t)q->config.consumer_disconnected_timeout_ms * 1000000;
}

// Its node may have gone while the open was on its way: whoever looked at the nodes then saw no session of it.
void queue_replica_session_opened(struct queue_replica *r, struct queue_session_id id)
{
    if (node_down_at(r->service, id.node, id.incarnation) != UINT64_MAX) {
        r->leading->nodes_at = 0;
        queue_replica_mark(r);
    }
}

static void look_at_nodes(struct queue_replica *r, uint64_t now)
{
    struct queue_leading *l = r->leading;
    if (now < l->nodes_at || l->down_index > r->applied) {
        return;
    }
    l->nodes_at = UINT64_MAX;
    const struct queue_busy *busy = queue_replica_state(r)->busy;
    if (!busy) {
        return;
    }
    uint32_t seen_node = 0;
    uint64_t seen_incarnation = 0;
    list_each (item, &busy->sessions) {
        const struct queue_session_id id = list_entry(item, struct queue_fsm_session, link)->id;
        if (id.node == seen_node && id.incarnation == seen_incarnation) {
            continue;
        }
        seen_node = id.node;
        seen_incarnation = id.incarnation;
        uint64_t at = node_down_at(r->service, id.node, id.incarnation);
        if (at > now) {
            l->nodes_at = at < l->nodes_at ? at : l->nodes_at;
            continue;
        }
        l->nodes_at = 0;  // Look again when this one is applied.
        struct buf body = {0};
        buf_u32(&body, id.node);
        buf_u64(&body, id.incarnation);
        if (propose_own(r, QUEUE_COMMAND_NODE_DOWN, buf_span(&body), &l->down_index) == RC_OK) {
            r->service->metrics.node_downs++;
            log_info("queue group %llu: node %u (incarnation %llu) is down, its consumers' messages return",
                     (unsigned long long)r->group, id.node, (unsigned long long)id.incarnation);
        } else {
            l->down_index = 0;
        }
        buf_deinit(&body);
        break;
    }
}

struct queue_serving *queue_replica_serving(struct queue_replica *r)
{
    struct queue_leading *l = r->leading;
    if (!l->serving) {
        l->serving = mem_zalloc(sizeof(*l->serving));
        list_init(&l->serving->servers);
        list_init(&l->serving->opening);
        list_init(&l->serving->dirty_servers);
        list_init(&l->serving->dirty_consumers);
        list_init(&l->serving->stopped);
        queue_pending_init(&l->serving->held, HELD_BLOCK, 1);
    }
    return l->serving;
}

static void give_back_serving(struct queue_replica *r)
{
    struct queue_serving *s = r->leading->serving;
    if (s && list_is_empty(&s->servers) && s->held.count == 0) {
        r->leading->serving = NULL;
        queue_pending_deinit(&s->held);
        free(s);
    }
}

void queue_replica_turn(struct queue_replica *r, uint64_t now)
{
    assert(r->leading);
    list_remove(&r->leading->dirty);
    configure(r);
    look_at_nodes(r, now);
    propose_held(r);
    go_on(r);
    queue_replica_flush(r);
    give_back_serving(r);
    if (r->leading->nodes_at > now && r->leading->nodes_at < r->service->nodes_at) {
        r->service->nodes_at = r->leading->nodes_at;
    }
}

// ---- the lead ------------------------------------------------------------------------------------------------------

void queue_replica_lead_start(struct queue_replica *r)
{
    assert(!r->leading);
    struct queue_leading *l = slab_zalloc(sizeof(*l));
    list_init(&l->dirty);
    list_add_tail(&r->service->leading, &l->in_service);
    l->replica = r;
    r->leading = l;
    r->service->metrics.leading++;
    queue_replica_mark(r);
    queue_link_leader(r->service, r->group, r->service->config.node_id);
    if (r->service->config.led) {
        r->service->config.led(r->service->config.led_ctx, r->owner);
    }
}

// Drops all that is volatile. Sessions are told where to go.
void queue_replica_lead_stop(struct queue_replica *r, uint32_t hint, bool is_deleted)
{
    struct queue_leading *l = r->leading;
    if (!l) {
        return;
    }
    r->leading = NULL;  // Sessions that look for the leader now do not come back here.
    queue_doubts_lead_stop(r);
    struct queue_serving *serving = l->serving;
    while (serving && !list_is_empty(&serving->servers)) {
        struct list *item = serving->servers.next;
        struct queue_server *v = list_entry(item, struct queue_server, link);
        struct queue_session *local = v->local;
        struct queue_lane *lane = v->lane;
        struct queue_session_id id = v->id;
        uint32_t attach = v->attach;
        queue_server_free(v);
        if (local && is_deleted) {
            queue_client_ended(local, true);
        } else if (local) {
            queue_client_not_leader(local, attach, r->service->config.node_id, hint);
        } else if (is_deleted) {
            queue_send_ended(lane, r->group, id, attach, true);
        } else {
            queue_send_not_leader(lane, r->group, id, attach, hint);
        }
    }
    if (serving) {
        r->service->metrics.held_bytes -= serving->held.bytes;
        queue_pending_deinit(&serving->held);
        free(serving);
    }
    list_remove(&l->in_service);
    list_remove(&l->dirty);
    r->service->metrics.leading--;
    slab_free(l, sizeof(*l));
}

bool queue_replica_poll_ready(struct queue_replica *r)
{
    if (!r->leading && r->is_leader && r->handle) {
        struct consensus_status status;
        group_status(r->handle, &status);
        if (status.role == ROLE_LEADER && status.is_ready && status.term == r->term) {
            queue_replica_lead_start(r);
        }
    }
    return r->leading != NULL;
}

bool queue_replica_serves(struct queue_replica *r)
{
    if (r->leading || queue_replica_poll_ready(r)) {
        return true;
    }
    if (r->is_leader && r->handle) {
        group_wake(r->handle);
    }
    return false;
}

void queue_replica_role(struct queue_replica *r, const struct consensus_status *status)
{
    bool is_leader = status->role == ROLE_LEADER;
    if (r->leading && (!is_leader || status->term != r->term)) {
        queue_replica_lead_stop(r, status->leader_node, false);
    }
    r->is_leader = is_leader;
    r->term = status->term;
    if (!r->handle) {
        return;  // Still being added.
    }
    if (is_leader) {
        queue_replica_poll_ready(r);  // Else the first entry of the term makes it ready when it is applied.
    } else {
        queue_link_leader(r->service, r->group, status->leader_node);
    }
}

// The connection to `node` is a new one: its sessions must attach again to hear what was lost.
void queue_replica_lane_reset(struct queue_replica *r, uint32_t node)
{
    if (!r->leading->serving) {
        return;
    }
    list_each (item, &r->leading->serving->servers) {
        struct queue_server *v = list_entry(item, struct queue_server, link);
        if (v->lane && v->lane->node == node) {
            queue_send_not_leader(v->lane, r->group, v->id, v->attach, r->service->config.node_id);
            queue_server_free(v);
        }
    }
}
