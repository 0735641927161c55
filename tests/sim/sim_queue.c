// SPDX-License-Identifier: Apache-2.0
// Queues in the simulator: a queue service per node, the real state machine in each group, and the books of
// what must hold.
//
// At the end of a run every queue is drained: each confirmed message must have been taken by somebody who
// acknowledged or discarded it; then all channels close, and nothing may be left: no message, no session, and
// one state on all replicas.
#include "tests/sim/sim_apps.h"
#include "tests/sim/sim_queue.h"
#include <assert.h>
#include <stdlib.h>

static uint32_t worker_of(void *ctx, uint64_t group)
{
    (void)ctx;
    (void)group;
    return 0;
}

struct queue_service *sim_queue_service(const struct sim_node *n)
{
    return sim_parts(n)->queues;
}

static struct queue_target target_of(const struct sim_group *g, const struct config *c)
{
    struct queue_target t = {.group = g->id};
    for (uint32_t i = 0; i < c->count && t.members_count < LIMIT_VOTERS; i++) {
        t.members[t.members_count++] = c->members[i];
    }
    return t;
}

struct queue_target sim_queue_target(const struct sim *s, uint32_t slot)
{
    const struct sim_group *g = &s->groups[slot];
    return target_of(g, g->members.count > 0 ? &g->members : &g->initial);
}

void sim_queue_init_node(struct sim *s, struct sim_node *n)
{
    const struct queue_service_config config = {
        .host = n->host,
        .net = &n->net.base,
        .node_id = n->id,
        .incarnation = n->incarnation,
        .workers = 1,
        .worker_of = worker_of,
        .consumer_disconnected_timeout_ms = (uint32_t)queue_state(s)->down_timeout_ms,
    };
    sim_parts(n)->queues = queue_service_create(&config);
}

static uint64_t digest(const struct sim_observer *o, uint64_t *index)
{
    struct queue_replica *r = o->ctx;
    (void)index;
    struct queue_fsm *f = queue_replica_machine(r);
    queue_fsm_check(f);
    return queue_fsm_digest(f);
}

void sim_queue_add(struct sim_node *n, uint32_t slot, const struct store_group *recovered)
{
    struct sim *s = n->sim;
    const struct sim_group *g = &s->groups[slot];
    const struct queue_replica_spec spec = {
        .target = target_of(g, &g->initial),
        .replica_id = n->replicas[slot],
        .recovered = recovered,
        .settings = queue_state(s)->books[slot]->settings,
        .campaign_at_once =
            recovered == NULL && g->initial.members[0].replica_id == n->replicas[slot] && n->incarnation == 1,
    };
    sim_observe_begin(n, &sim_parts(n)->observers, digest, sim_queue_committed);
    const enum rc rc = queue_replica_add(sim_parts(n)->queues, &spec);
    sim_observe_end();
    if (rc != RC_OK) {
        sim_violation(s, "node %u queue %llu: not added: %s", n->id, (unsigned long long)g->id, rc_text(rc));
    }
    n->groups[slot] = host_group_find(n->host, g->id);
}

void sim_queue_leave(struct sim_node *n, uint32_t slot)
{
    const uint64_t group = n->sim->groups[slot].id;
    queue_replica_leave(sim_parts(n)->queues, group);
    sim_observe_forget(&sim_parts(n)->observers, group);
}

static void members_told(struct sim *s, void *arg, uint64_t slot)
{
    struct sim_node *n = arg;
    const struct queue_target t = sim_queue_target(s, (uint32_t)slot);
    queue_members_changed(sim_parts(n)->queues, &t);
    sim_node_wake(n, 0);
}

// As the projection does on each node, each in its time.
void sim_queue_members_changed(struct sim *s, uint32_t slot)
{
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        if (s->nodes[i].is_up) {
            sim_node_at(&s->nodes[i], sim_range(s, SIM_US, 50 * SIM_MS), members_told, &s->nodes[i], slot, NULL);
        }
    }
}

void sim_queue_node_down(struct sim_node *n)
{
    sim_channels_node_down(n);
    queue_service_destroy(sim_parts(n)->queues);
    sim_parts(n)->queues = NULL;
}

static void draw_settings(struct sim *s, struct queue_settings *q)
{
    *q = (struct queue_settings){.max_length = -1, .max_length_bytes = -1, .delivery_limit = -1, .metadata_version = 1};
    if (sim_chance(s, 5)) {
        q->max_length = (int64_t)sim_range(s, 1, 40);
        q->is_reject_publish = true;
    }
    q->is_single_active = sim_chance(s, 6);
}

void sim_queue_start(struct sim *s)
{
    struct queue_state *x = mem_zalloc(sizeof(*x));
    s->queue_state = x;
    x->channels_target = (uint32_t)sim_range(s, 2, 9);
    x->interval = sim_range(s, SIM_MS, 15 * SIM_MS);
    x->down_timeout_ms = sim_chance(s, 2) ? 60000 : sim_range(s, 100, 3000);
    x->big_one_in = sim_chance(s, 4) ? sim_range(s, 50, 300) : 0;
    x->purge_one_in = sim_chance(s, 4) ? 200 : 0;
    for (uint32_t i = 0; i < s->groups_count; i++) {
        if (s->groups[i].kind == SIM_QUEUE) {
            x->books[i] = mem_zalloc(sizeof(*x->books[i]));
            x->books[i]->slot = i;
            draw_settings(s, &x->books[i]->settings);
        }
    }
}

// ---- the end ----------------------------------------------------------------------------------------------

static struct queue_replica *leader_of(struct sim *s, uint32_t slot)
{
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        struct sim_node *n = &s->nodes[i];
        struct queue_replica *r = n->is_up ? map_get(&sim_parts(n)->queues->replicas, s->groups[slot].id) : NULL;
        if (r && r->leading) {
            return r;
        }
    }
    return NULL;
}

static bool is_drained(struct sim *s, struct book *b)
{
    const struct queue_replica *r = leader_of(s, b->slot);
    if (!r || queue_replica_state(r)->ready_count > 0 || queue_replica_state(r)->unacked_count > 0) {
        return false;
    }
    for (uint32_t i = 0; i < b->count; i++) {
        const struct message *m = &b->messages[i];
        if (m->is_confirmed && !m->is_rejected && !m->is_purged && !m->settler) {
            return false;
        }
    }
    return true;
}

// Who holds messages and does not settle them: what the two sides think.
static void tell_holders(struct sim *s, const struct queue_replica *r)
{
    list_each (l, &queue_replica_state(r)->busy->consumers) {
        const struct queue_fsm_consumer *c = list_entry(l, struct queue_fsm_consumer, in_queue);
        if (c->held == 0) {
            continue;
        }
        const struct queue_session_id id = c->session->id;
        const struct queue_server_consumer *at = c->user;
        const struct sim_node *n = &s->nodes[id.node - 1];
        const struct queue_session *q = n->is_up ? map_get(&sim_parts(n)->queues->sessions, id.counter) : NULL;
        const struct queue_client_consumer *k = q ? map_get(&q->consumers, c->id) : NULL;
        sim_log(s,
                "  consumer %u of session %llu of node %u (%llu) holds %u up to %llu, cancelled %d; server "
                "%d cursor %llu sent %llu",
                c->id, (unsigned long long)id.counter, id.node, (unsigned long long)id.incarnation, c->held,
                (unsigned long long)c->next_number - 1, c->is_cancelled, at != NULL,
                at ? (unsigned long long)at->cursor : 0, at ? (unsigned long long)(at->sent - at->taken) : 0);
        const struct channel *o = q ? q->ctx : NULL;
        sim_log(s, "  channel %u: ended %d broken %d, holds %u", o ? o->number : 0, o ? o->is_ended : 0,
                o ? o->is_broken : 0, o ? (unsigned)(o->held.len / sizeof(struct held)) : 0);
        sim_log(s,
                "  client: state %d closing %d, consumer %d, last %llu, ready %d, cancelling %d, pending %u",
                q ? (int)q->state : -1, q ? q->is_closing : 0, k != NULL, k ? (unsigned long long)k->last : 0,
                k ? k->is_ready : 0, k ? k->is_cancelling : 0, q ? q->pending[1].count : 0);
    }
}

static void tell_drained(struct sim *s, const struct book *b)
{
    const struct queue_replica *r = leader_of(s, b->slot);
    sim_log(s, "queue %llu: leader %d, ready %llu, unacked %llu", (unsigned long long)s->groups[b->slot].id, r != NULL,
            r ? (unsigned long long)queue_replica_state(r)->ready_count : 0,
            r ? (unsigned long long)queue_replica_state(r)->unacked_count : 0);
    if (r && queue_replica_state(r)->busy) {
        tell_holders(s, r);
    }
}

// Nothing is left in the queue, but a confirmed message was never taken: it is lost. (Waiting would not bring it.)
static void check_lost(struct sim *s, const struct book *b)
{
    const struct queue_replica *r = leader_of(s, b->slot);
    const struct sim_group *g = &s->groups[b->slot];
    if (!r || queue_replica_state(r)->ready_count > 0 || queue_replica_state(r)->unacked_count > 0 ||
        r->applied < g->committed) {
        return;
    }
    for (uint32_t i = 0; i < b->count; i++) {
        const struct message *m = &b->messages[i];
        if (m->is_confirmed && !m->is_rejected && !m->is_purged && !m->settler) {
            sim_violation(s,
                          "queue %llu: message %u (entry %llu) was confirmed and is lost (delivered %u "
                          "times, never settled)",
                          (unsigned long long)g->id, i + 1, (unsigned long long)m->index, m->deliveries);
            return;
        }
    }
}

static void keep_drainer(struct sim *s, struct book *b)
{
    if (!b->drainer || !b->drainer->session || b->drainer->is_ended) {
        struct sim_node *n = &s->nodes[rng_below(&s->rng, s->nodes_count)];
        if (n->is_up && !n->is_paused) {
            b->drainer = sim_channel_open(s, n, b);
            sim_channel_drain(b->drainer);
        }
    }
}

static bool all_level(struct sim *s)
{
    const struct queue_state *x = queue_state(s);
    for (uint32_t i = 0; i < x->channels_count; i++) {
        if (!sim_channel_is_level(x->channels[i])) {
            sim_log(s, "channel %u waits for confirms", x->channels[i]->number);
            return false;
        }
    }
    return true;
}

// A session that does not go away: what its two sides think.
static void tell_left(struct sim *s, uint32_t slot, const struct queue_fsm_session *f)
{
    const struct sim_node *n = &s->nodes[f->id.node - 1];
    const struct queue_session *q = n->is_up ? map_get(&sim_parts(n)->queues->sessions, f->id.counter) : NULL;
    sim_log(s, "queue %llu: session %llu of node %u (%llu) is left, applied %llu and %llu",
            (unsigned long long)s->groups[slot].id, (unsigned long long)f->id.counter, f->id.node,
            (unsigned long long)f->id.incarnation, (unsigned long long)f->seq[0],
            (unsigned long long)f->seq[1]);
    if (q && queue_session_id_equal(q->id, f->id)) {
        sim_log(s,
                "  its client: state %d, attach %u, place %u, closing %d, end sent %d, pending %u and %u, "
                "sent %llu and %llu, applied %llu and %llu, needs query %d, dirty %d, service wants turn at "
                "%llu, check at %llu",
                q->state, q->attach, q->place.node, q->is_closing, q->is_end_sent, q->pending[0].count,
                q->pending[1].count, (unsigned long long)q->sent[0], (unsigned long long)q->sent[1],
                (unsigned long long)q->applied[0], (unsigned long long)q->applied[1], q->needs_query,
                !list_is_empty(&q->dirty), (unsigned long long)queue_service_next(q->service),
                (unsigned long long)q->service->check_at);
    } else {
        sim_log(s, "  its client: none");
    }
}

// The observer of this node's replica if that is a member (one that has left need not have heard of what came later).
static struct sim_observer *member_observer(struct sim *s, uint32_t slot, uint32_t node)
{
    struct sim_node *n = &s->nodes[node], *leader;
    struct group *g = sim_leader(s, slot, &leader);
    struct consensus_status st;
    if (!g || !n->is_up) {
        return NULL;
    }
    group_status(g, &st);
    const struct member *m = config_find_node(st.config, n->id);
    return m && m->replica_id == n->replicas[slot]
               ? sim_observe_find(&sim_parts(n)->observers, s->groups[slot].id)
               : NULL;
}

static bool is_at_rest(struct sim *s, uint32_t slot)
{
    const struct queue_replica *leader = leader_of(s, slot);
    if (!leader || queue_replica_state(leader)->busy) {
        if (!leader) {
            sim_log(s, "queue %llu: nobody leads", (unsigned long long)s->groups[slot].id);
            return false;
        }
        list_each (l, &queue_replica_state(leader)->busy->sessions) {
            const struct queue_fsm_session *q = list_entry(l, struct queue_fsm_session, link);
            tell_left(s, slot, q);
        }
        return false;
    }
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        const struct sim_observer *o = member_observer(s, slot, i);
        if (o && o->index != s->groups[slot].committed) {
            sim_log(s, "queue %llu: node %u has applied %llu", (unsigned long long)s->groups[slot].id, i + 1,
                    (unsigned long long)o->index);
            return false;
        }
    }
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        struct sim_observer *o = member_observer(s, slot, i);
        if (o) {
            sim_observe_digest(o);
        }
    }
    return true;
}

bool sim_queue_is_settled(struct sim *s)
{
    struct queue_state *x = queue_state(s);
    bool is_all = true;
    if (!x->is_closing) {
        for (uint32_t i = 0; i < s->groups_count; i++) {
            if (x->books[i]) {
                keep_drainer(s, x->books[i]);
            }
        }
        is_all = all_level(s);
        for (uint32_t i = 0; i < s->groups_count && is_all; i++) {
            if (x->books[i] && !is_drained(s, x->books[i])) {
                tell_drained(s, x->books[i]);
                check_lost(s, x->books[i]);
                is_all = false;
            }
        }
        if (!is_all) {
            return false;
        }
        x->is_closing = true;
        for (uint32_t i = 0; i < x->channels_count; i++) {
            sim_channel_close(x->channels[i]);
        }
    }
    for (uint32_t i = 0; i < s->groups_count; i++) {
        is_all = is_all && (!x->books[i] || is_at_rest(s, i));
    }
    return is_all;
}

void sim_queue_finish(struct sim *s)
{
    struct queue_state *x = queue_state(s);
    for (uint32_t i = 0; i < x->channels_count; i++) {
        const struct channel *c = x->channels[i];
        if (c->is_ended && !c->is_broken) {
            sim_violation(s, "channel %u on node %u was ended, its node was never declared down", c->number,
                          c->node->id);
        }
    }
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        struct queue_metrics m;
        if (!s->nodes[i].is_up) {
            continue;
        }
        queue_service_metrics(sim_parts(&s->nodes[i])->queues, &m);
        if (m.bad_items > 0 || m.commands_ignored > 0) {
            sim_violation(s, "node %u: %llu bad items, %llu commands ignored", i + 1, (unsigned long long)m.bad_items,
                          (unsigned long long)m.commands_ignored);
        }
    }
}
