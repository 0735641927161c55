// SPDX-License-Identifier: Apache-2.0
// A session that was open attaches, and this leader's state does not know it. Has it ended?
//
// Problem: who was deposed and has not heard of it lacks what was committed since, the session's opening
// perhaps; its word would end a living session (law 3: absence is not deletion). Idea: before it says so a
// leader proves by a read barrier asked for after the attach that it leads and has applied all that was
// committed by then. Meanwhile the client is sent away and comes again; the proof waits for it.
//
// A doubt belongs to the service, for its barrier may be answered after the replica, or the service, has gone.
#include "node/queue/queue_parts.h"
#include <stdlib.h>

#define DOUBT_NS (2 * UINT64_C(1000000000))

struct queue_doubt {
    struct list link;  // service->doubts.
    struct queue_service *service;  // NULL: it has gone.
    uint64_t group;
    uint64_t term;     // In which it was asked.
    struct queue_session_id id;
    bool is_done, is_proven;
};

static void doubt_free(struct queue_doubt *d)
{
    list_remove(&d->link);
    free(d);
}

static void proven(void *ctx, enum rc rc)
{
    struct queue_doubt *d = ctx;
    const struct queue_replica *r = d->service ? map_get(&d->service->replicas, d->group) : NULL;
    d->is_done = true;
    d->is_proven = rc == RC_OK;
    if (!r || !r->leading || r->term != d->term) {
        doubt_free(d);
    }
}

static struct queue_doubt *doubt_find(struct queue_replica *r, struct queue_session_id id)
{
    list_each (l, &r->service->doubts) {
        struct queue_doubt *d = list_entry(l, struct queue_doubt, link);
        if (d->group == r->group && queue_session_id_equal(d->id, id)) {
            return d;
        }
    }
    return NULL;
}

bool queue_doubt_is_ended(struct queue_replica *r, struct queue_session_id id)
{
    assert(r->leading);
    struct queue_doubt *d = doubt_find(r, id);
    if (d && d->is_done) {
        const bool is_ended = d->is_proven && d->term == r->term;
        doubt_free(d);
        d = NULL;
        if (is_ended) {
            return true;
        }
    }
    if (!d) {
        d = mem_zalloc(sizeof(*d));
        d->service = r->service;
        d->group = r->group;
        d->term = r->term;
        d->id = id;
        list_add_tail(&r->service->doubts, &d->link);
        group_read_barrier(r->handle, DOUBT_NS, proven, d);
    }
    return false;
}

void queue_doubts_lead_stop(const struct queue_replica *r)
{
    list_each (l, &r->service->doubts) {
        struct queue_doubt *d = list_entry(l, struct queue_doubt, link);
        if (d->group == r->group && d->is_done) {
            doubt_free(d);
        }
    }
}

void queue_doubts_abandon(struct queue_service *q)
{
    struct list *l;
    while ((l = list_pop(&q->doubts)) != NULL) {
        struct queue_doubt *d = list_entry(l, struct queue_doubt, link);
        d->service = NULL;
        if (d->is_done) {
            free(d);
        }
    }
}
