// SPDX-License-Identifier: Apache-2.0
// Read barriers: "everything committed before this call is applied here", proven by a majority.
//
// The engine proves leadership by a round (Raft §6.4, P13) and names an index; the barrier is answered when
// that index is applied. Barriers of a group stand in its list; one that is finished moves to the host's list
// and is answered at the end of the turn, never inside a call. What was true when it was finished may be over by
// then (the group is removed, its machine is filled anew), so what the answer says is looked at once more.
#include "consensus/host/host_core.h"
#include <assert.h>
#include <stdlib.h>

static void finish(struct group *g, struct read *r, enum rc rc)
{
    struct host *h = g->host;
    r->rc = rc;
    group_ref(g);
    list_remove(&r->link);
    list_add_tail(&h->reads_done, &r->link);
}

void group_read_barrier(struct group *g, uint64_t timeout_ns, group_read_fn *done, void *ctx)
{
    struct host *h = g->host;
    struct read *r = mem_zalloc(sizeof(*r));
    r->group = g;
    r->id = ++h->read_id;
    r->done = done;
    r->ctx = ctx;
    r->deadline = host_now(h) + timeout_ns;
    list_init(&r->link);
    if (group_is_gone(g) || (g->flags & GROUP_INSTALLING)) {
        finish(g, r, RC_NOT_LEADER);
        return;
    }
    list_add_tail(&group_work(g)->reads, &r->link);
    struct consensus_out out;
    consensus_out_reset(&out);
    const enum rc rc = g->ops->read_barrier(g->replica, r->id, host_now(h), &out);
    if (rc != RC_OK && rc != RC_PENDING) {
        finish(g, r, rc);
    } else {
        host_wake(g, true);
    }
    group_execute(g, &out, span_of(NULL, 0), 0);
    group_ready(g, GROUP_SEND);
}

void host_read_proven(struct group *g, uint64_t id, uint64_t index)
{
    struct consensus_status st;
    g->ops->status(g->replica, &st);
    if (!group_has_reads(g)) {
        return;
    }
    list_each(l, &g->work->reads) {
        struct read *r = list_entry(l, struct read, link);
        if (r->id == id) {
            r->index = index > 0 ? index : 1;
            if (st.applied >= index) {
                finish(g, r, RC_OK);
            }
            return;
        }
    }
}

void host_read_applied(struct group *g, uint64_t applied)
{
    if (!group_has_reads(g)) {
        return;
    }
    list_each(l, &g->work->reads) {
        struct read *r = list_entry(l, struct read, link);
        if (r->index > 0 && r->index <= applied) {
            finish(g, r, RC_OK);
        }
    }
}

void host_read_fail(struct group *g, enum rc rc)
{
    if (!group_has_reads(g)) {
        return;
    }
    list_each(l, &g->work->reads) {
        struct read *r = list_entry(l, struct read, link);
        if (r->index == 0 || rc != RC_NOT_LEADER) {  // A proven one only waits for the state machine.
            finish(g, r, rc);
        }
    }
}

void host_read_expire(struct group *g)
{
    if (!group_has_reads(g)) {
        return;
    }
    const uint64_t now = host_now(g->host);
    list_each(l, &g->work->reads) {
        struct read *r = list_entry(l, struct read, link);
        if (r->deadline <= now) {
            finish(g, r, RC_TIMEOUT);
        }
    }
}

uint64_t host_read_deadline(const struct group *g)
{
    uint64_t due = UINT64_MAX;
    if (!group_has_reads(g)) {
        return due;
    }
    list_each(l, &g->work->reads) {
        const struct read *r = list_entry(l, struct read, link);
        due = r->deadline < due ? r->deadline : due;
    }
    return due;
}

// What the machine holds now, which may not be what it held when the barrier was finished.
static enum rc answer_now(const struct read *r)
{
    const struct group *g = r->group;
    if (g->flags & GROUP_REMOVED) {
        return RC_SHUTDOWN;
    }
    if (r->rc != RC_OK) {
        return r->rc;
    }
    if (g->flags & GROUP_FAILED) {
        return RC_CORRUPT;
    }
    return g->flags & (GROUP_INSTALLING | GROUP_LOST) ? RC_NOT_LEADER : RC_OK;
}

void host_read_answer(struct host *h)
{
    struct list now;
    list_init(&now);
    list_splice(&now, &h->reads_done);
    struct list *l;
    while ((l = list_pop(&now)) != NULL) {
        struct read *r = list_entry(l, struct read, link);
        r->done(r->ctx, answer_now(r));
        group_unref(r->group);
        free(r);
    }
}
