// SPDX-License-Identifier: Apache-2.0
// Machines that sleep: restored when something needs them, not at the start.
//
// Problem: a node with a hundred thousand queues that hold a few messages each would read every snapshot and log at its
// start and keep every machine in memory, though nobody uses them. Idea: to vote, follow, append and acknowledge an engine
// needs its log's metadata only. So a group found on disk sleeps: nothing is applied, its snapshot is the state.
//
// It is woken when it is no longer idle: it leads, or anything but a no-op is appended (elections leave no-ops), or it is
// asked (group_wake, group_propose, a read barrier). Waking is loading the snapshot, as at a start, and then applying. Who
// waits to be woken stands in one of two lists, those first for whom somebody waits; HOST_RESTORES_MAX at a time.
//
// What is put off is bounded: a group sleeps only with HOST_ASLEEP_ENTRIES and HOST_ASLEEP_BYTES behind its snapshot, for as
// long as it sleeps its log cannot be cut; and none with HOST_DEAD_BYTES in segments and anything behind its snapshot, which
// may have killed them. Not those whose configuration lies behind the snapshot (the one before it
// would have to be kept), nor a replica that has lost its memory.
//
// Invariants: an asleep group is not LOADING, and has not been given an entry since its start. One that leads is in a
// list, until it is woken or fails. A failed restore ends as at a start: the replica has lost its memory or stops.
#include "consensus/host/host_core.h"
#include <assert.h>

// A few bytes behind the snapshot, a purge say, may have killed a backlog: only a machine can let go of that.
static bool may_hide_dead(const struct replica_start *start, const struct glog *log)
{
    uint64_t entries;
    return start->last > start->snapshot_index && glog_bytes_in_segments(log, &entries) >= HOST_DEAD_BYTES;
}

bool host_may_sleep(const struct group_spec *spec, const struct replica_start *start, const struct glog *log)
{
    return spec->may_sleep && spec->recovered && !start->is_amnesiac && start->config.count > 1 &&
           start->config.index <= start->snapshot_index && start->last > 0 &&
           start->last - start->snapshot_index <= HOST_ASLEEP_ENTRIES && glog_bytes_behind(log) <= HOST_ASLEEP_BYTES &&
           !may_hide_dead(start, log);
}

void host_sleep(struct group *g)
{
    assert(!(g->flags & (GROUP_ASLEEP | GROUP_LOADING)));
    g->flags |= GROUP_ASLEEP;
    g->host->metrics.asleep++;
}

void host_sleep_ends(struct group *g)
{
    if (g->flags & GROUP_ASLEEP) {
        g->flags &= (uint16_t)~GROUP_ASLEEP;
        g->host->metrics.asleep--;
        if (g->work) {
            list_remove(&g->work->wake);
        }
    }
}

void host_wake(struct group *g, bool is_asked)
{
    if (!(g->flags & GROUP_ASLEEP) || group_is_gone(g) || (g->flags & GROUP_LOST)) {
        return;
    }
    struct host *h = g->host;
    struct group_work *w = group_work(g);
    if (list_is_empty(&w->wake) || (is_asked && !w->is_asked)) {
        w->is_asked = is_asked;
        list_remove(&w->wake);
        list_add_tail(is_asked ? &h->wakes_asked : &h->wakes, &w->wake);
    }
}

void host_wake_at_accept(struct group *g, uint16_t kind)
{
    struct consensus_status st;
    assert(g->flags & GROUP_ASLEEP);
    g->ops->status(g->replica, &st);
    if (kind != RECORD_NOOP || st.last - g->handed > HOST_ASLEEP_ENTRIES) {
        host_wake(g, false);
    }
}

bool host_has_wakes(const struct host *h)
{
    return h->restores < HOST_RESTORES_MAX && (!list_is_empty(&h->wakes_asked) || !list_is_empty(&h->wakes));
}

void host_wakes_run(struct host *h)
{
    // One without a snapshot only now gets its cold read, so it counts here.
    for (uint32_t n = h->restores; n < HOST_RESTORES_MAX; n++) {
        struct list *l = list_pop(&h->wakes_asked);
        l = l ? l : list_pop(&h->wakes);
        if (!l) {
            break;
        }
        struct group *g = list_entry(l, struct group_work, wake)->group;
        assert(g->flags & GROUP_ASLEEP);
        if (g->flags & (GROUP_INSTALLING | GROUP_LOST)) {
            continue;  // Another snapshot is on its way; or there is nothing that could be restored.
        }
        if (g->handed > 0) {
            host_snapshot_load(g);
        } else {
            host_sleep_ends(g);
            group_ready(g, GROUP_APPLY);
        }
    }
}

bool group_is_asleep(const struct group *g)
{
    return (g->flags & GROUP_ASLEEP) != 0;
}

void group_wake(struct group *g)
{
    host_wake(g, true);
}
