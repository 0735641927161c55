// SPDX-License-Identifier: Apache-2.0
// Replicas of this node that lost their memory: their queues' records are to say so (law 2).
//
// Only the node concerned is sure to know: its leader may be idle, or new. So it writes the mark into the
// record, under the record's version; the leader does the rest (membership_step.c): takes the replica out of
// the configuration if the others stay a majority without it, then has it made anew under another id. What
// this node has of it stays until then: if a majority lost its memory, an operator may need it.
#include "node/broker/membership.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include <stdlib.h>

enum { AGAIN_MS = 1000 };  // Without a majority of the store.

struct telling {
    struct broker *broker;
    struct queue *queue;  // NULL: gone meanwhile.
    struct list link;     // In membership's `lost`, or `tellings` while it is being written.
    bool is_written;
};

void broker_queue_lost(struct broker *b, void *owner)
{
    struct queue *q = owner;
    if (!q->telling) {
        struct telling *t = mem_zalloc(sizeof(*t));
        *t = (struct telling){.broker = b, .queue = q};
        q->telling = t;
        list_add_tail(&b->membership->lost, &t->link);
    }
}

enum broker_queue_without broker_queue_without(const struct broker_queue *q, uint32_t node_id,
                                               bool (*is_here)(void *ctx, uint32_t node_id), void *ctx)
{
    bool is_member = false;
    uint32_t voters = 0, here = 0, coming = 0, coming_here = 0;
    for (uint32_t i = 0; i < q->target->members_count; i++) {
        const struct member *m = &q->target->members[i];
        is_member = is_member || m->node_id == node_id;
        if ((q->non_voters | q->vacant) >> i & 1) {
            continue;
        }
        const bool is_coming = (q->joining | q->filling) >> i & 1;
        const bool counts = !(q->lost >> i & 1) && m->node_id != node_id && is_here(ctx, m->node_id);
        *(is_coming ? &coming : &voters) += 1;
        *(is_coming ? &coming_here : &here) += counts;
    }
    if (!is_member || here * 2 > voters) {
        return QUEUE_LIVES;
    }
    return (here + coming_here) * 2 > voters + coming ? QUEUE_LIVES_SOON : QUEUE_DIES;
}

bool broker_group_lives_without(const struct consensus_status *s, uint32_t node_id, uint32_t own_id,
                                bool (*is_here)(void *ctx, uint32_t node_id), void *ctx)
{
    bool is_member = false;
    uint32_t voters = 0, here = 0;
    for (uint32_t i = 0; i < s->config->count; i++) {
        const struct member *m = &s->config->members[i];
        if (!m->is_voter) {
            continue;
        }
        is_member = is_member || m->node_id == node_id;
        voters++;
        const bool has_lost = s->regressed_at >> i & 1 || (s->is_amnesiac && m->node_id == own_id);
        here += !has_lost && m->node_id != node_id && is_here(ctx, m->node_id);
    }
    return !is_member || here * 2 > voters;
}

static void telling_free(struct telling *t)
{
    list_remove(&t->link);
    if (t->queue) {
        t->queue->telling = NULL;
    }
    free(t);
}

static void on_told(void *ctx, const struct meta_result *r)
{
    struct telling *t = ctx;
    struct membership *m = t->broker->membership;
    m->tellings_count--;
    if (!t->queue || r->rc == RC_OK || r->rc == RC_NOT_FOUND) {
        telling_free(t);
        return;
    }
    t->is_written = false;
    list_remove(&t->link);
    list_add_tail(&m->lost, &t->link);
    m->lost_at = r->rc == RC_CONFLICT ? 0 : membership_now(t->broker) + AGAIN_MS * NS_PER_MS;
}

static void tell(struct broker *b, struct telling *t)
{
    struct queue *q = t->queue;
    const int at = queue_place_of_node(q, b->config.node_id);
    if (at < 0 || queue_member_is_lost(q, (uint32_t)at)) {
        telling_free(t);
        return;
    }
    log_warning("queue '%.*s': this node's replica has lost its memory and takes part in nothing; it is to "
                "be made anew",
                (int)q->pub.name.len, (const char *)q->pub.name.ptr);
    t->is_written = true;
    list_remove(&t->link);
    list_add_tail(&b->membership->tellings, &t->link);
    b->membership->tellings_count++;
    struct meta_command m;
    queue_lost_command(q, (uint32_t)at, &m);
    metastore_submit(b->config.metastore, b->config.worker, &m, STORE_MS, on_told, t);
    meta_command_deinit(&m);
}

uint64_t lost_turn(struct broker *b, uint64_t now)
{
    struct membership *m = b->membership;
    if (list_is_empty(&m->lost) || b->is_resetting || !b->is_loaded || m->tellings_count == CHANGES_AT_ONCE) {
        return UINT64_MAX;  // `loaded` or an answer wakes the worker.
    }
    while (now >= m->lost_at && m->tellings_count < CHANGES_AT_ONCE && !list_is_empty(&m->lost)) {
        tell(b, list_entry(m->lost.next, struct telling, link));
    }
    return list_is_empty(&m->lost) || m->tellings_count == CHANGES_AT_ONCE ? UINT64_MAX : m->lost_at;
}

void lost_queue_gone(struct queue *q)
{
    struct telling *t = q->telling;
    if (t && t->is_written) {
        t->queue = NULL;
        q->telling = NULL;
    } else if (t) {
        telling_free(t);
    }
}

void lost_init(struct broker *b)
{
    list_init(&b->membership->lost);
    list_init(&b->membership->tellings);
}

// The queues are gone; the process is about to end.
void lost_deinit(struct broker *b)
{
    list_splice(&b->membership->tellings, &b->membership->lost);
    for (struct list *l; (l = list_pop(&b->membership->tellings));) {
        free(list_entry(l, struct telling, link));
    }
}
