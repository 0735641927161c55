// SPDX-License-Identifier: Apache-2.0
// Snapshots of the own machine: when one is worth taking, its frozen state for the store, and loading the current one
// (at the start, and after one was received).
//
// Invariants: none is begun while the group receives, installs or loads one, nor while a member needs the current one
// (host_snapshot_is_held). While one is loaded nothing is applied.
#include "consensus/host/host_core.h"
#include <assert.h>
#include <stdlib.h>

// ---- taking -----------------------------------------------------------------------------------------------

bool host_snapshot_begin(struct group *g, struct store_snapshot_source *out)
{
    if (g->flags & (GROUP_ASLEEP | GROUP_LOADING | GROUP_INSTALLING | GROUP_RECEIVING | GROUP_REMOVED | GROUP_FAILED |
                    GROUP_LOST)) {
        return false;
    }
    if (g->fsm->snapshot_begin == NULL || host_snapshot_is_held(g)) {
        return false;
    }
    struct consensus_status st;
    const struct config *c = group_config_applied(g, &st);
    // A machine on another thread may have entries it has not applied: then the state is that of no index we know.
    if (st.applied != g->handed || st.applied <= st.snapshot) {
        return false;
    }
    struct fsm_snapshot *handle = g->fsm->snapshot_begin(g->fsm_ctx);
    if (handle == NULL) {
        return false;
    }
    *out = (struct store_snapshot_source){
        .ops = g->fsm,
        .handle = handle,
        .index = st.applied,
        .term = g->ops->term_at(g->replica, st.applied),
        .size_estimate = g->fsm->size_estimate ? g->fsm->size_estimate(g->fsm_ctx) : 0,
    };
    config_copy(&out->config, c);
    assert(out->term > 0);
    assert(out->config.index <= out->index);
    return true;
}

// A backlog that was retired to segments and has been consumed since: a snapshot lets go of it. The log may
// have hardly grown, and no log file may be retired for long, so this is looked at whenever something was
// applied. With each snapshot a quarter of what is there dies, so a drain takes few of them; what is left at
// the end is small for every group and for all of them.
static bool has_dead(struct group *g)
{
    uint64_t entries = 0;
    const uint64_t stored = glog_bytes_in_segments(g->log, &entries);
    if (stored < HOST_DEAD_MIN_BYTES || g->fsm->live_count == NULL || g->fsm->size_estimate == NULL) {
        return false;
    }
    const uint64_t live = g->fsm->live_count(g->fsm_ctx);  // Some of them may not be in segments yet.
    const uint64_t dead = entries > live ? stored / entries * (entries - live) : 0;
    uint64_t bound = HOST_DEAD_ALL_BYTES / (store_worker_groups_in_segments(g->host->store) + 1);
    bound = bound > HOST_DEAD_MIN_BYTES ? bound : HOST_DEAD_MIN_BYTES;
    bound = bound < HOST_DEAD_BYTES ? bound : HOST_DEAD_BYTES;
    return dead >= bound && dead >= stored / 4 && dead >= g->fsm->size_estimate(g->fsm_ctx);
}

// Is a snapshot worth its writing? The log since the last one must be several times the size of the state.
void host_snapshot_consider(struct group *g)
{
    if (g->flags & (GROUP_ASLEEP | GROUP_LOADING | GROUP_INSTALLING | GROUP_RECEIVING | GROUP_LOST) ||
        glog_snapshot_is_coming(g->log) || host_snapshot_is_held(g)) {
        return;
    }
    const uint64_t bytes = glog_bytes_since_snapshot(g->log);
    const bool is_long = bytes >= HOST_SNAPSHOT_MIN_BYTES && g->fsm->size_estimate != NULL &&
                         bytes >= 4 * g->fsm->size_estimate(g->fsm_ctx);
    if (is_long || has_dead(g)) {
        glog_snapshot_request(g->log);
    }
}

// A member could not take the current one: there is less room on its disk than that needs. As the queue is drained
// less and less is live, and with nothing live it fits nearly always, so what is no longer live is let go of however
// little it is: has_dead's bounds are about our own disk.
void host_snapshot_too_large(struct group *g)
{
    if (g->flags & (GROUP_ASLEEP | GROUP_LOADING | GROUP_INSTALLING | GROUP_RECEIVING | GROUP_LOST) ||
        g->fsm->live_count == NULL || glog_snapshot_is_coming(g->log) || host_snapshot_is_held(g)) {
        return;
    }
    const uint64_t sent = glog_snapshot_live(g->log), live = g->fsm->live_count(g->fsm_ctx);
    if (live < sent - sent / 4) {
        glog_snapshot_request(g->log);
    }
}

// ---- loading ----------------------------------------------------------------------------------------------

struct snap_load {
    struct glog_snapshot_load load;
    struct group *group;  // Holds a reference.
    uint64_t index;
    enum rc rc;
    bool is_waking;  // Counted in host.restores.
};

static void load_each(struct glog_snapshot_load *l, struct span chunk)
{
    struct snap_load *s = container_of(l, struct snap_load, load);
    if (!group_is_gone(s->group) && s->rc == RC_OK) {
        s->rc = s->group->fsm->restore_chunk(s->group->fsm_ctx, chunk);
    }
}

static void load_done(struct glog_snapshot_load *l, enum rc rc)
{
    struct snap_load *s = container_of(l, struct snap_load, load);
    struct group *g = s->group;
    g->host->restores -= s->is_waking;
    if (!group_is_gone(g)) {
        rc = rc == RC_OK ? s->rc : rc;
        if (rc == RC_OK) {
            rc = g->fsm->restore_end(g->fsm_ctx, s->index);
        }
        g->flags &= (uint16_t)~GROUP_LOADING;
        if (rc != RC_OK && !(g->flags & GROUP_LOST)) {
            group_fail(g, rc, "the snapshot cannot be restored");
        } else if (rc == RC_OK) {
            group_ready(g, GROUP_APPLY | GROUP_ROLE | GROUP_SEND);
            group_timer_update(g);
        }
    }
    group_unref(g);
    free(s);
}

void host_snapshot_load(struct group *g)
{
    assert(!(g->flags & GROUP_LOADING));
    struct snap_load *s = mem_zalloc(sizeof(*s));
    s->group = g;
    s->index = g->handed;
    s->rc = RC_OK;
    s->load = (struct glog_snapshot_load){.each = load_each, .done = load_done, .owner = s};
    buf_init(&s->load.bytes);
    group_ref(g);
    s->is_waking = (g->flags & GROUP_ASLEEP) != 0;
    g->host->restores += s->is_waking;
    host_sleep_ends(g);
    g->flags |= GROUP_LOADING;
    g->fsm->restore_begin(g->fsm_ctx);
    glog_snapshot_load_start(g->log, &s->load);
}
