// SPDX-License-Identifier: Apache-2.0
// Members of quorum queues: the record in the metadata store and the configuration in the group's own log converge.
//
// Two things must agree, and each can change while the node that changes them dies: the queue's record (which
// node is to have a replica, under which id: that alone starts and ends replicas, law 3) and the group's Raft
// configuration (who votes and who is sent the log: the truth). One owner moves both, the group's leader, on
// the worker that has the group. It never remembers what it was about to do: it compares the two and does the
// next step, so a new leader goes on where the former one stopped. The table of half-way states is in README.md.
//
// A `struct change` exists only for a queue that has something to do, and at most CHANGES_AT_ONCE of them do
// something at a time. Ways in: a request (broker_member_change), a record that changed, a lead that began,
// and scans of all led queues after nodes came or went. No queue has a timer; the lists are ordered by time
// because their delays are constant.
//
// What the configuration lacks is taken out of the record only after a read barrier that began behind the
// record's version: a leader that was deposed without knowing could otherwise take out a member its successor
// has let in.
#include "node/broker/membership.h"
#include "node/base/mem.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

// ---- answers -----------------------------------------------------------------------------------------------------

struct answer {
    broker_done_fn *done;
    void *ctx;
    struct broker_result result;
};

static void deliver(void *arg)
{
    struct answer *a = arg;
    a->done(a->ctx, &a->result);
    free(a);
}

static void answer(struct broker *b, broker_done_fn *done, void *ctx, enum rc rc, const char *format, va_list args)
{
    struct answer *a = mem_zalloc(sizeof(*a));
    *a = (struct answer){.done = done, .ctx = ctx, .result = {.rc = rc}};
    vsnprintf(a->result.text, sizeof(a->result.text), format, args);
    b->config.post(b->config.ctx, b->config.worker, deliver, a);
}

void change_answer(struct change *c, enum rc rc, const char *format, ...)
{
    if (!c->request.done) {
        return;
    }
    va_list args;
    va_start(args, format);
    answer(c->broker, c->request.done, c->request.ctx, rc, format, args);
    va_end(args);
    c->request = (struct request){0};
}

__attribute__((format(printf, 5, 6))) static void refuse(struct broker *b, broker_done_fn *done, void *ctx,
                                                         enum rc rc, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    answer(b, done, ctx, rc, format, args);
    va_end(args);
}

// ---- the lists ---------------------------------------------------------------------------------------------------

static bool is_active(enum place p)
{
    return p == PLACE_SOON || p == PLACE_ASKING;
}

void change_move(struct change *c, enum place to, uint64_t delay_ms)
{
    struct membership *m = c->broker->membership;
    m->active = m->active - is_active(c->place) + is_active(to);
    c->place = to;
    c->due = membership_now(c->broker) + delay_ms * NS_PER_MS;
    list_remove(&c->link);
    if (delay_ms == 0 && to != PLACE_WAITING) {
        list_add_head(&m->lists[to], &c->link);
    } else {
        list_add_tail(&m->lists[to], &c->link);
    }
}

static struct change *change_of(struct broker *b, struct queue *q)
{
    if (!q->change) {
        struct change *c = mem_zalloc(sizeof(*c));
        c->broker = b;
        c->queue = q;
        q->change = c;
        list_init(&c->link);
        change_move(c, PLACE_WAITING, 0);
    }
    return q->change;
}

static void change_free(struct change *c)
{
    assert(!c->request.done);
    c->broker->membership->active -= is_active(c->place);
    list_remove(&c->link);
    if (c->queue) {
        c->queue->change = NULL;
    }
    free(c);
}

// What was asked for came back. False: the queue went meanwhile, and `c` with it.
bool change_come_back(struct change *c)
{
    assert(c->place == PLACE_ASKING);
    if (!c->queue) {
        change_free(c);
        return false;
    }
    change_move(c, PLACE_SOON, 0);
    return true;
}

void membership_queue_gone(struct broker *b, struct queue *q)
{
    struct change *c = q->change;
    lost_queue_gone(q);
    if (!c) {
        return;
    }
    assert(c->broker == b);
    change_answer(c, RC_NOT_FOUND, "the queue was deleted");
    if (c->place == PLACE_ASKING) {
        q->change = NULL;
        c->queue = NULL;
    } else {
        change_free(c);
    }
}

static void run(struct change *c)
{
    switch (change_step(c)) {
    case STEP_NOTHING:
        change_free(c);
        break;
    case STEP_LATER:
        if (!c->request.done) {
            change_move(c, PLACE_LATER, LATER_MS);
            break;
        }
        __attribute__((fallthrough));  // Somebody waits.
    case STEP_SOON:
        change_move(c, PLACE_SOON, SOON_MS);
        break;
    case STEP_ASKED:
        break;
    }
}

// ---- scans -------------------------------------------------------------------------------------------------------

// Nothing is to be done to its members.
static bool is_settled(struct broker *b, const struct queue *q, const struct consensus_status *s)
{
    const struct config *config = s->config;
    if (q->pub.lost || q->pub.filling || s->regressed > 0) {
        return false;
    }
    for (uint32_t i = 0; i < q->pub.target->members_count; i++) {
        const struct member *m = &q->pub.target->members[i];
        const struct member *in = config_find(config, m->replica_id);
        if (!in || queue_member_is_joining(q, i) || node_is_gone(b, m->node_id) ||
            in->is_voter != queue_member_wants_vote(q, i)) {
            return false;
        }
    }
    return true;
}

static void look(struct broker *b, struct queue *q)
{
    struct membership *m = b->membership;
    struct group *g = queue_replica_group(b->config.queues, q->pub.target->group);
    struct consensus_status s;
    if (!g) {
        return;
    }
    group_status(g, &s);
    const bool is_small = m->is_filling && q->pub.target->members_count < b->config.reconcile_target;
    if (!is_settled(b, q, &s) || is_small) {
        struct change *c = change_of(b, q);
        c->wants_more = c->wants_more || m->is_filling;
    }
}

static void look_at_led(void *ctx, void *owner)
{
    look(ctx, owner);
}

static void scan_turn(struct broker *b, uint64_t now)
{
    struct membership *m = b->membership;
    if (b->is_resetting || !b->is_loaded) {
        return;
    }
    if (m->scan_left == 0 && now >= (m->scan_at < m->fill_at ? m->scan_at : m->fill_at)) {
        m->is_filling = now >= m->fill_at;
        m->scan_at = UINT64_MAX;
        m->scan_left = queue_leading_count(b->config.queues);
        if (m->is_filling) {
            m->fill_at = now + b->config.reconcile_interval_ms * NS_PER_MS;
        }
    }
    if (m->scan_left > 0) {
        const uint32_t n = queue_leading_each(
            b->config.queues, m->scan_left < SCAN_BATCH ? m->scan_left : SCAN_BATCH, look_at_led, b);
        m->scan_left -= n > 0 && n <= m->scan_left ? n : m->scan_left;
    }
}

void membership_note(struct broker *b, struct queue *q)
{
    if (!b->config.host || !queue_replica_group(b->config.queues, q->pub.target->group)) {
        return;
    }
    if (q->change) {
        if (q->change->place == PLACE_LATER) {
            change_move(q->change, PLACE_WAITING, 0);
        }
    } else if (queue_replica_leads(b->config.queues, q->pub.target->group)) {
        look(b, q);
    }
}

void membership_nodes_changed(struct broker *b)
{
    if (!b->config.host) {
        return;
    }
    struct membership *m = b->membership;
    const uint64_t now = membership_now(b), at = now + SCAN_DELAY_MS * NS_PER_MS;
    m->scan_at = at < m->scan_at ? at : m->scan_at;
    const uint64_t fill = now + b->config.reconcile_trigger_ms * NS_PER_MS;
    if (b->config.is_reconciling && fill < m->fill_at) {
        m->fill_at = fill;
    }
}

static void on_node_state(void *ctx, uint32_t node, enum node_verdict verdict, uint64_t incarnation)
{
    (void)node;
    (void)verdict;
    (void)incarnation;
    membership_nodes_changed(ctx);
}

// ---- what others call --------------------------------------------------------------------------------------------

void broker_queue_led(struct broker *b, void *owner)
{
    look(b, owner);
}

void broker_member_change(struct broker *b, const struct broker_member_change *what, uint32_t timeout_ms,
                          broker_done_fn *done, void *ctx)
{
    struct queue *q = queue_replica_owner(b->config.queues, what->group);
    if (!q) {
        refuse(b, done, ctx, RC_NOT_LEADER, "this node has no replica of the queue");
        return;
    }
    struct change *c = change_of(b, q);
    if (c->request.done) {
        refuse(b, done, ctx, RC_BUSY, "the members of the queue are being changed");
        return;
    }
    c->request = (struct request){.what = *what,
                                  .deadline = membership_now(b) + timeout_ms * NS_PER_MS,
                                  .done = done,
                                  .ctx = ctx};
    membership_note(b, q);
}

// Those that wait get places; those that are due do their step.
uint64_t broker_turn(struct broker *b)
{
    struct membership *m = b->membership;
    if (!b->config.host) {
        return UINT64_MAX;
    }
    const uint64_t now = membership_now(b);
    struct list *waiting = &m->lists[PLACE_WAITING], *soon = &m->lists[PLACE_SOON], *later = &m->lists[PLACE_LATER];
    scan_turn(b, now);
    while (!list_is_empty(later) && list_entry(later->next, struct change, link)->due <= now) {
        change_move(list_entry(later->next, struct change, link), PLACE_WAITING, 0);
    }
    while (m->active < CHANGES_AT_ONCE && !list_is_empty(waiting)) {
        change_move(list_entry(waiting->next, struct change, link), PLACE_SOON, 0);
    }
    while (!list_is_empty(soon) && list_entry(soon->next, struct change, link)->due <= now) {
        run(list_entry(soon->next, struct change, link));
    }
    uint64_t next = m->scan_left > 0 ? 0 : m->scan_at < m->fill_at ? m->scan_at : m->fill_at;
    if (b->is_resetting || !b->is_loaded) {
        next = UINT64_MAX;
    }
    const uint64_t lost = lost_turn(b, now);
    next = lost < next ? lost : next;
    const struct list *due[] = {soon, later};
    for (size_t i = 0; i < 2; i++) {
        if (!list_is_empty(due[i])) {
            const uint64_t at = list_entry(due[i]->next, struct change, link)->due;
            next = at < next ? at : next;
        }
    }
    return next;
}

void membership_init(struct broker *b)
{
    struct membership *m = mem_zalloc(sizeof(*m));
    b->membership = m;
    for (int i = 0; i < PLACES; i++) {
        list_init(&m->lists[i]);
    }
    m->scan_at = UINT64_MAX;
    m->fill_at = UINT64_MAX;
    lost_init(b);
    if (b->config.host) {
        m->watcher = (struct host_watcher){.node_state = on_node_state, .ctx = b};
        host_watch(b->config.host, &m->watcher);
    }
}

// The queues are gone, and their changes with them, but for those that asked for something: the process is
// about to end.
void membership_deinit(struct broker *b)
{
    struct membership *m = b->membership;
    for (struct list *l; (l = list_pop(&m->lists[PLACE_ASKING]));) {
        free(list_entry(l, struct change, link));
    }
    lost_deinit(b);
    if (b->config.host) {
        list_remove(&m->watcher.link);
    }
    free(m);
}
