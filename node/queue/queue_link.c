// SPDX-License-Identifier: Apache-2.0
// Where is the leader? One link per group and worker, shared by all sessions and questions there.
//
// Sources, best first: a replica on this worker (it leads, or knows who does, until that one denies it); what
// an answer hinted at or the last successful attach showed; else the members one after another, those with a
// link to them first. Each failed try doubles the wait up to a tenth of a second, so an unreachable queue
// costs little; hearing of a leader from the local replica ends the wait at once. Several tries run for all
// sessions of the group together.
#include "node/queue/queue_parts.h"
#include <stdlib.h>

struct queue_link *queue_link_get(struct queue_service *q, const struct queue_target *t)
{
    struct queue_link *l = map_get(&q->links, t->group);
    if (!l) {
        l = mem_zalloc(sizeof(*l));
        l->service = q;
        l->group = t->group;
        list_init(&l->sessions);
        list_init(&l->seeking);
        map_put(&q->links, t->group, l);
    }
    queue_target_copy(&l->target, t);  // The newest copy of the record.
    l->users++;
    return l;
}

void queue_link_put(struct queue_link *l)
{
    assert(l->users > 0);
    if (--l->users == 0) {
        assert(list_is_empty(&l->sessions));
        list_remove(&l->seeking);
        map_remove(&l->service->links, l->group);
        free(l);
    }
}

void queue_link_seek(struct queue_link *l, uint64_t at)
{
    l->service->wants_turn = true;
    if (list_is_empty(&l->seeking)) {
        list_add_tail(&l->service->seeking, &l->seeking);
        l->retry_at = at;
    } else if (at < l->retry_at) {
        l->retry_at = at;
    }
}

static void back_off(struct queue_link *l)
{
    l->retry_ns = l->retry_ns == 0 ? QUEUE_RETRY_MIN_NS : l->retry_ns * 2;
    if (l->retry_ns > QUEUE_RETRY_MAX_NS) {
        l->retry_ns = QUEUE_RETRY_MAX_NS;
    }
}

// Fills `out` for a node; false if there is no sense in trying it.
static bool place_of(struct queue_link *l, uint32_t node, struct queue_place *out)
{
    struct queue_service *q = l->service;
    uint32_t worker = 0;
    if (node == q->config.node_id) {
        worker = q->config.worker_of(q->config.post_ctx, l->group);
        if (worker == q->config.worker) {
            return false;  // Our own replica does not lead: queue_link_place looked.
        }
    } else {
        const struct queue_node *n = map_get(&q->nodes, node);
        if (n && n->is_known && n->verdict == NODE_DEAD) {
            return false;
        }
        if (!q->config.net->is_connected(q->config.net, node, LANE_SESSION)) {
            return false;
        }
    }
    *out = (struct queue_place){.lane = queue_lane_to(&q->lanes, node, worker), .node = node};
    return true;
}

bool queue_link_place(struct queue_link *l, struct queue_place *out)
{
    struct queue_service *q = l->service;
    struct queue_replica *r = map_get(&q->replicas, l->group);
    if (r) {
        if (queue_replica_serves(r)) {
            *out = (struct queue_place){.local = r, .node = q->config.node_id};
            return true;
        }
        struct consensus_status status;
        group_status(r->handle, &status);
        if (status.role == ROLE_LEADER) {
            return false;  // Ready soon.
        }
        // One that lags behind, or left and was not told, may be wrong for long: once denied, the others are asked too.
        if (status.leader_node != 0 && l->retry_ns <= 1 && place_of(l, status.leader_node, out)) {
            return true;
        }
    }
    if (l->leader_node != 0 && place_of(l, l->leader_node, out)) {
        return true;
    }
    for (uint32_t i = 0; i < l->target.members_count; i++) {
        uint32_t node = l->target.members[l->next_member++ % l->target.members_count].node_id;
        if (place_of(l, node, out)) {
            return true;
        }
    }
    return false;
}

bool queue_link_turn(struct queue_link *l, uint64_t now)
{
    bool is_asked = false;
    list_each (item, &l->sessions) {
        is_asked = is_asked || list_entry(item, struct queue_session, in_link)->state == SESSION_SEEKING;
    }
    if (!is_asked) {
        return true;
    }
    struct queue_place place;
    if (!queue_link_place(l, &place)) {
        back_off(l);
        l->retry_at = now + l->retry_ns;
        return false;
    }
    list_each (item, &l->sessions) {
        struct queue_session *s = list_entry(item, struct queue_session, in_link);
        bool is_untouched = s->is_closing && s->attach == 0 && s->pending[QUEUE_STREAM_PUBLISH].count == 0;
        if (s->state == SESSION_SEEKING && !is_untouched) {
            queue_session_attach(s, &place);
        }
    }
    return true;
}

static void all_seek(struct queue_link *l, uint32_t node, bool only_there)
{
    list_each (item, &l->sessions) {
        struct queue_session *s = list_entry(item, struct queue_session, in_link);
        if ((s->place.node == node) == only_there) {
            queue_session_seek(s);
        }
    }
}

void queue_link_failed(struct queue_link *l, uint32_t node, uint32_t hint)
{
    uint64_t at = queue_service_now(l->service);
    bool is_news = hint != 0 && hint != node && hint != l->leader_node;
    if (l->leader_node == node || l->leader_node == 0) {
        l->leader_node = hint;  // The node itself: leader, not ready yet.
    }
    if (hint != node) {  // One that names itself leads, and is not ready for one of them: the others stay.
        all_seek(l, node, true);
    }
    if (!is_news || l->retry_ns > 0) {
        back_off(l);
        at += l->retry_ns;
    } else {
        l->retry_ns = 1;  // A hint is followed at once, but only one in a row.
    }
    queue_link_seek(l, at);
}

void queue_link_leader(struct queue_service *q, uint64_t group, uint32_t leader_node)
{
    struct queue_link *l = map_get(&q->links, group);
    if (!l || leader_node == 0) {
        return;
    }
    l->leader_node = leader_node;
    l->retry_ns = 0;
    all_seek(l, leader_node, false);
    queue_link_seek(l, 0);
}

void queue_link_node_lost(struct queue_service *q, uint32_t node, bool is_down)
{
    uint32_t pos = 0;
    struct queue_link *l;
    while ((l = map_next(&q->links, &pos, NULL, NULL)) != NULL) {
        bool is_there = l->leader_node == node;
        list_each (item, &l->sessions) {
            is_there = is_there || list_entry(item, struct queue_session, in_link)->place.node == node;
        }
        if (is_there) {
            if (is_down && l->leader_node == node) {
                l->leader_node = 0;
            }
            all_seek(l, node, true);
            queue_link_seek(l, 0);
        }
    }
}

void queue_members_changed(struct queue_service *q, const struct queue_target *t)
{
    struct queue_link *l = map_get(&q->links, t->group);
    if (l) {
        queue_target_copy(&l->target, t);
    }
}

void queue_link_deleted(struct queue_service *q, uint64_t group)
{
    struct queue_link *l = map_get(&q->links, group);
    if (!l) {
        return;
    }
    list_each (item, &l->sessions) {
        queue_client_ended(list_entry(item, struct queue_session, in_link), true);
    }
}
