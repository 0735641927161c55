// SPDX-License-Identifier: Apache-2.0
// One replica that leads from its first step: what it proposes is committed when its own disk has it.
//
// The log, its records and its recovery are those of every engine, so a group may change engine by its metadata alone.
// Each start takes a new term (hard state first, no-op with it), so that entries of two lives are told apart, and what
// was recovered is committed at once: the only disk that could say otherwise is this one. Membership is fixed.
// Damage that makes the replica amnesiac leaves it readable but without a leader: whether to go on is an
// operator's word.
#include "consensus/solo/solo.h"
#include "node/base/mem.h"
#include <stdlib.h>

struct replica {
    uint64_t group;
    uint64_t id;
    uint32_t node_id;
    uint64_t term;
    uint64_t deadline;
    bool is_leader;       // The hard state of `term` is durable.
    bool is_pending;      // It is on its way.
    bool is_amnesiac;
    uint64_t term_first;  // Index of this life's no-op; 0 before.
    uint64_t last, durable, commit, applied, snapshot;
    uint64_t snapshot_term;
    uint64_t log_epoch;
    struct term_run *runs;  // Ascending; one per start since the last snapshot.
    uint32_t runs_count, runs_cap;
    struct config *config;
};

#define SOLO_NEVER UINT64_MAX

static void run_push(struct replica *r, uint64_t first, uint64_t term)
{
    if (r->runs_count == r->runs_cap) {
        r->runs_cap = r->runs_cap == 0 ? 2 : r->runs_cap * 2;
        r->runs = mem_realloc(r->runs, r->runs_cap * sizeof(r->runs[0]));
    }
    r->runs[r->runs_count++] = (struct term_run){.first = first, .term = term};
}

static struct replica *solo_create(const struct replica_start *start)
{
    assert(start->replica_id != 0);
    assert(start->config.count == 1);
    assert(start->last >= start->snapshot_index);
    struct replica *r = mem_zalloc(sizeof(*r));
    r->group = start->group;
    r->id = start->replica_id;
    r->node_id = start->node_id;
    r->term = start->hard_state.term;
    r->is_amnesiac = start->is_amnesiac;
    r->deadline = r->is_amnesiac ? SOLO_NEVER : start->now_ns;
    r->last = r->durable = r->commit = start->last;
    r->applied = r->snapshot = start->snapshot_index;
    r->snapshot_term = start->snapshot_term;
    r->log_epoch = 1;
    for (uint32_t i = 0; i < start->runs_count; i++) {
        run_push(r, start->runs[i].first, start->runs[i].term);
    }
    r->config = mem_alloc(offsetof(struct config, members) + sizeof(struct member));
    config_copy(r->config, &start->config);
    return r;
}

static void solo_destroy(struct replica *r)
{
    free(r->runs);
    free(r->config);
    free(r);
}

static enum rc solo_propose(struct replica *r, uint32_t count, uint64_t *first_out, uint64_t *term_out,
                            struct consensus_out *out)
{
    assert(count > 0);
    consensus_out_reset(out);
    if (!r->is_leader) {
        return RC_NOT_LEADER;
    }
    *first_out = r->last + 1;
    *term_out = r->term;
    if (r->runs_count == 0) {
        run_push(r, r->last + 1, r->term);  // A snapshot took the run away.
    }
    r->last += count;
    return RC_OK;
}

// Nobody else has anything to say to it.
static void solo_step(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out)
{
    (void)r, (void)m, (void)now_ns;
    consensus_out_reset(out);
}

static void solo_config_appended(struct replica *r, const struct config *c)
{
    (void)r, (void)c;
}

static void solo_durable(struct replica *r, uint64_t epoch, uint64_t index, uint64_t now_ns, struct consensus_out *out)
{
    (void)now_ns;
    consensus_out_reset(out);
    if (epoch != r->log_epoch || index <= r->durable) {
        return;
    }
    assert(index <= r->last);
    r->durable = index;
    if (r->is_leader && index > r->commit) {
        r->commit = index;
        out->commit_changed = true;
    }
}

static void solo_hard_state_durable(struct replica *r, struct hard_state hs, uint64_t now_ns, struct consensus_out *out)
{
    (void)now_ns;
    consensus_out_reset(out);
    if (hs.term != r->term || !r->is_pending) {
        return;
    }
    r->is_pending = false;
    r->is_leader = true;
    r->term_first = ++r->last;
    run_push(r, r->last, r->term);
    out->role_changed = out->has_noop = true;
    out->append_index = r->last;
    out->append_term = r->term;
}

static void solo_applied(struct replica *r, uint64_t index, uint64_t now_ns, struct consensus_out *out)
{
    (void)now_ns;
    consensus_out_reset(out);
    assert(index <= r->commit);
    r->applied = index > r->applied ? index : r->applied;
}

static uint64_t solo_deadline(const struct replica *r)
{
    return r->deadline;
}

static void solo_timeout(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    consensus_out_reset(out);
    if (now_ns < r->deadline) {
        return;
    }
    assert(!r->is_leader);
    r->deadline = SOLO_NEVER;
    r->is_pending = true;
    r->term++;
    out->role_changed = true;
    out->has_hard_state = true;
    out->hard_state = (struct hard_state){.term = r->term, .vote = r->id};
}

static void solo_node_alive(struct replica *r, uint32_t node_id, bool is_alive, uint64_t now_ns,
                            struct consensus_out *out)
{
    (void)r, (void)node_id, (void)is_alive, (void)now_ns;
    consensus_out_reset(out);
}

static void solo_link_reset(struct replica *r, uint32_t node_id, uint64_t now_ns, struct consensus_out *out)
{
    (void)r, (void)node_id, (void)now_ns;
    consensus_out_reset(out);
}

static void solo_snapshot_ended(struct replica *r, uint64_t replica_id, bool is_ok, uint64_t index, uint64_t now_ns,
                                struct consensus_out *out)
{
    (void)r, (void)replica_id, (void)is_ok, (void)index, (void)now_ns;
    consensus_out_reset(out);
}

static void solo_next_send(struct replica *r, uint32_t i, struct consensus_send *out)
{
    (void)r, (void)i;
    out->kind = SEND_NOTHING;
}

static void solo_sent(struct replica *r, uint32_t i, uint64_t last_index_sent, uint64_t now_ns)
{
    (void)r, (void)i, (void)last_index_sent, (void)now_ns;
}

// The only replica needs no one's confirmation.
static enum rc solo_read_barrier(struct replica *r, uint64_t id, uint64_t now_ns, struct consensus_out *out)
{
    (void)now_ns;
    consensus_out_reset(out);
    if (!r->is_leader) {
        return RC_NOT_LEADER;
    }
    out->reads[0].id = id;
    out->reads[0].index = r->commit;
    out->reads_count = 1;
    return RC_OK;
}

static enum rc solo_transfer(struct replica *r, uint64_t replica_id, uint64_t now_ns, struct consensus_out *out)
{
    (void)replica_id, (void)now_ns;
    consensus_out_reset(out);
    return r->is_leader ? RC_UNSUPPORTED : RC_NOT_LEADER;
}

static enum rc solo_change_members(struct replica *r, const struct member_change *c, uint64_t now_ns,
                                   struct consensus_out *out)
{
    (void)c, (void)now_ns;
    consensus_out_reset(out);
    return r->is_leader ? RC_UNSUPPORTED : RC_NOT_LEADER;
}

static void solo_snapshot_started(struct replica *r, uint64_t now_ns)
{
    (void)r, (void)now_ns;
}

static void solo_snapshot_taken(struct replica *r, uint64_t index, uint64_t term)
{
    assert(index <= r->applied);
    if (index <= r->snapshot) {
        return;
    }
    uint32_t dropped = 0;
    while (dropped < r->runs_count &&
           (dropped + 1 == r->runs_count ? r->last : r->runs[dropped + 1].first - 1) <= index) {
        dropped++;
    }
    r->runs_count -= dropped;
    memmove(r->runs, r->runs + dropped, r->runs_count * sizeof(r->runs[0]));
    if (r->runs_count > 0 && r->runs[0].first <= index) {
        r->runs[0].first = index + 1;
    }
    r->snapshot = index;
    r->snapshot_term = term;
}

// There is no leader to get one from.
static void solo_snapshot_installed(struct replica *r, uint64_t index, uint64_t term, const struct config *c,
                                    uint64_t now_ns, struct consensus_out *out)
{
    (void)r, (void)index, (void)term, (void)c, (void)now_ns;
    consensus_out_reset(out);
    assert(!"a solo group has no other replica to send a snapshot");
}

// Nobody could take over; proposals simply wait for the disk.
static void solo_step_down(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    (void)r, (void)now_ns;
    consensus_out_reset(out);
}

static void solo_lost_memory(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    (void)now_ns;
    consensus_out_reset(out);
    out->role_changed = r->is_leader || r->is_pending;
    r->is_amnesiac = true;
    r->is_leader = r->is_pending = false;
    r->deadline = SOLO_NEVER;
}

static void solo_status(const struct replica *r, struct consensus_status *out)
{
    *out = (struct consensus_status){
        .role = r->is_leader ? ROLE_LEADER : r->is_pending ? ROLE_CANDIDATE : ROLE_FOLLOWER,
        .term = r->term,
        .leader = r->is_leader ? r->id : 0,
        .leader_node = r->is_leader ? r->node_id : 0,
        .first = r->snapshot + 1,
        .last = r->last,
        .durable = r->durable,
        .commit = r->commit,
        .applied = r->applied,
        .snapshot = r->snapshot,
        .log_epoch = r->log_epoch,
        .is_ready = r->is_leader && r->applied >= r->term_first,
        .is_amnesiac = r->is_amnesiac,
        .config = r->config,
    };
}

static uint64_t solo_term_at(const struct replica *r, uint64_t index)
{
    if (index == r->snapshot) {
        return r->snapshot_term;
    }
    if (index < r->snapshot || index > r->last) {
        return 0;
    }
    for (uint32_t i = r->runs_count; i > 0; i--) {
        if (r->runs[i - 1].first <= index) {
            return r->runs[i - 1].term;
        }
    }
    return 0;
}

static void solo_check(const struct replica *r)
{
    assert(r->snapshot <= r->applied);
    assert(r->applied <= r->commit);
    assert(r->commit <= r->durable);  // Nothing is committed that this one disk has not.
    assert(r->durable <= r->last);
    assert(!r->is_leader || !r->is_pending);
    assert(!r->is_leader || !r->is_amnesiac);
    assert(!r->is_leader || solo_term_at(r, r->last) == r->term || r->last == r->snapshot);
    for (uint32_t i = 1; i < r->runs_count; i++) {
        assert(r->runs[i].first > r->runs[i - 1].first);
        assert(r->runs[i].term > r->runs[i - 1].term);
    }
}

const struct consensus_ops solo_ops = {
    .name = "solo",
    .traits = {.elects_itself = true, .commit_is_synced = true, .unit_is_chunk = false},
    .create = solo_create,
    .destroy = solo_destroy,
    .propose = solo_propose,
    .step = solo_step,
    .config_appended = solo_config_appended,
    .durable = solo_durable,
    .hard_state_durable = solo_hard_state_durable,
    .applied = solo_applied,
    .deadline = solo_deadline,
    .timeout = solo_timeout,
    .node_alive = solo_node_alive,
    .link_reset = solo_link_reset,
    .snapshot_ended = solo_snapshot_ended,
    .next_send = solo_next_send,
    .sent = solo_sent,
    .read_barrier = solo_read_barrier,
    .transfer = solo_transfer,
    .change_members = solo_change_members,
    .snapshot_started = solo_snapshot_started,
    .snapshot_taken = solo_snapshot_taken,
    .snapshot_installed = solo_snapshot_installed,
    .epoch_granted = NULL,
    .step_down = solo_step_down,
    .status = solo_status,
    .term_at = solo_term_at,
    .check = solo_check,
    .lost_memory = solo_lost_memory,
};
