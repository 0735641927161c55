// SPDX-License-Identifier: Apache-2.0
// The raft engine's entrance: the table of functions, the frame around every step, status and invariants.
//
// Every call that takes an input runs between raft_begin and raft_end: begin resets the output and remembers what was,
// end settles what follows from any change (configuration, barriers, transfer) and says what differs. No step calls
// out, reads a clock or allocates for data; elections, membership changes and bursts of barriers do allocate.
#include "consensus/raft/state.h"
#include "node/base/mem.h"
#include "node/base/slab.h"
#include <stdlib.h>

// ---- helpers -----------------------------------------------------------------------------------------------------

uint64_t raft_random(struct replica *r, uint64_t below)
{
    // splitmix64 (Steele, Lea, Flood): eight bytes of state a group.
    r->random += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = r->random;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    return z % below;
}

int raft_member_at(const struct replica *r, uint64_t replica_id)
{
    for (uint32_t i = 0; i < r->config->count; i++) {
        if (r->config->members[i].replica_id == replica_id) {
            return (int)i;
        }
    }
    return -1;
}

bool raft_node_is_alive(const struct replica *r, uint32_t member)
{
    assert(member < r->config->count);
    return r->config->members[member].node_id == r->node_id || (r->dead_mask >> member & 1) == 0;
}

struct consensus_msg *raft_message(const struct replica *r, struct consensus_out *out, enum consensus_msg_type type,
                                   uint64_t to)
{
    assert(out->msgs_count < CONSENSUS_OUT_MSGS);
    // What a message says of us is true on disk, but for a term or vote still on its way there (P3).
    bool is_settled = r->hard.term == r->persisted.term && r->hard.vote == r->persisted.vote;
    out->msgs[out->msgs_count].gate = is_settled ? GATE_NOW : GATE_AFTER_WAL;
    struct consensus_msg *m = &out->msgs[out->msgs_count++].msg;
    *m = (struct consensus_msg){.type = type, .group = r->group, .from = r->id, .to = to, .term = r->hard.term};
    return m;
}

// The leader as far as anybody may rely on it.
static uint64_t leader_known(const struct replica *r)
{
    return r->is_suspected ? 0 : r->leader;
}

struct step_start raft_begin(const struct replica *r, struct consensus_out *out)
{
    consensus_out_reset(out);
    return (struct step_start){
        .term = r->hard.term, .leader = leader_known(r), .commit = r->commit, .role = r->role};
}

static bool peers_want(const struct replica *r)
{
    for (uint32_t i = 0; i < r->lead->peers_count; i++) {
        if (raft_peer_wants(r, i)) {
            return true;
        }
    }
    return false;
}

void raft_end(struct replica *r, const struct step_start *was, uint64_t now_ns, struct consensus_out *out)
{
    raft_config_settle(r);
    if (r->role == ROLE_LEADER) {
        raft_mark(r, now_ns);
        raft_transfer_step(r, out);
        raft_reads_step(r, out);
        out->wants_send = peers_want(r);
    } else if (r->deadline == RAFT_NEVER && !raft_leader_is_live(r)) {
        // Whatever made us leaderless, somebody has to ask.
        raft_arm(r, now_ns);
    }
    if (out->has_hard_state) {
        out->hard_state = r->hard;
    }
    out->role_changed = was->role != r->role || was->term != r->hard.term || was->leader != leader_known(r);
    out->commit_changed = r->commit > was->commit;
    assert(r->commit >= was->commit);
    assert(r->hard.term >= was->term);
}

// ---- life --------------------------------------------------------------------------------------------------------

static size_t replica_size(uint32_t members)
{
    return sizeof(struct replica) + raft_config_size(members);
}

static struct replica *raft_create(const struct replica_start *start)
{
    assert(start->replica_id != 0);
    assert(start->config.count >= 1);
    assert(start->commit <= start->last);
    struct replica *r = slab_zalloc(replica_size(start->config.count));
    r->group = start->group;
    r->id = start->replica_id;
    r->node_id = start->node_id;
    r->hard = r->persisted = start->hard_state;
    raft_log_init(r, start);
    r->commit = r->matched = max_u64(start->commit, start->snapshot_index);
    r->applied = start->snapshot_index;
    r->founders = (uint8_t)start->config.count;
    r->config = (struct config *)(void *)r->first_config;
    config_copy(r->config, &start->config);
    if (start->config_before.count > 0 && start->config.index > r->commit) {
        r->config_before = raft_config_dup(&start->config_before);
    }
    r->is_amnesiac = start->is_amnesiac;
    r->fsm_version = start->fsm_version;
    r->random = start->rng_seed ^ (start->replica_id * UINT64_C(0xd6e8feb86659fd93)) ^ start->group;
    r->deadline = RAFT_NEVER;
    raft_arm(r, start->now_ns);
    if (start->campaign_at_once && raft_may_campaign(r)) {
        r->deadline = start->now_ns;
    }
    return r;
}

static void raft_destroy(struct replica *r)
{
    if (r->lead != NULL) {
        raft_lead_free(r);
    }
    raft_log_free(r);
    raft_config_free(r, r->config_before);
    raft_config_free(r, r->config);
    slab_free(r, replica_size(r->founders));
}

// ---- inputs ------------------------------------------------------------------------------------------------------

static enum rc raft_propose(struct replica *r, uint32_t count, uint64_t *first_out, uint64_t *term_out,
                            struct consensus_out *out)
{
    assert(count > 0);
    struct step_start was = raft_begin(r, out);
    if (r->role != ROLE_LEADER) {
        return RC_NOT_LEADER;
    }
    if (r->lead->transfer_to != 0) {
        return RC_BUSY;
    }
    *first_out = r->last + 1;
    *term_out = r->hard.term;
    raft_log_extend(r, count, r->hard.term);
    out->wants_send = peers_want(r);
    assert(was.term == r->hard.term);
    return RC_OK;
}

static void timeout_now(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out)
{
    if (m->term == r->hard.term && r->role != ROLE_LEADER) {
        raft_campaign(r, true, now_ns, out);
    } else if (m->term < r->hard.term) {
        raft_message(r, out, MSG_PREVOTE_REPLY, m->from)->is_rejected = true;  // One that left, and has not heard of the term.
    }
}

static void raft_step(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    if (m->to == r->id && m->from != r->id && m->from != 0 && m->group == r->group) {
        switch (m->type) {
        case MSG_PREVOTE:
            raft_prevote(r, m, out);
            break;
        case MSG_PREVOTE_REPLY:
            raft_prevote_reply(r, m, now_ns, out);
            break;
        case MSG_VOTE:
            raft_vote(r, m, now_ns, out);
            break;
        case MSG_VOTE_REPLY:
            raft_vote_reply(r, m, now_ns, out);
            break;
        case MSG_APPEND:
            raft_append(r, m, now_ns, out);
            break;
        case MSG_APPEND_REPLY:
            raft_append_reply(r, m, out);
            break;
        case MSG_TIMEOUT_NOW:
            timeout_now(r, m, now_ns, out);
            break;
        case MSG_SNAPSHOT_DONE:
            raft_snapshot_done(r, m);
            break;
        }
    }
    raft_end(r, &was, now_ns, out);
}

static void raft_config_appended(struct replica *r, const struct config *c)
{
    assert(c->index <= r->last);
    if (c->index > r->config->index) {
        assert(r->role != ROLE_LEADER);  // A leader's own are in force since change_members.
        raft_config_set(r, c);
    }
}

static void raft_durable(struct replica *r, uint64_t epoch, uint64_t index, uint64_t now_ns, struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    if (epoch == r->log_epoch && index > r->durable) {
        r->durable = min_u64(index, r->last);
        if (r->role == ROLE_LEADER) {
            raft_advance(r);
        } else if (r->leader != 0 && !r->is_amnesiac && min_u64(r->durable, r->matched) > r->acked) {
            raft_acknowledge(r, out);
        }
    }
    raft_end(r, &was, now_ns, out);
}

static void raft_hard_state_durable(struct replica *r, struct hard_state hs, uint64_t now_ns, struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    assert(hs.term <= r->hard.term);
    bool is_newer = hs.term > r->persisted.term || (hs.term == r->persisted.term && r->persisted.vote == 0);
    if (is_newer) {
        r->persisted = hs;
    }
    raft_own_vote(r, now_ns, out);
    raft_end(r, &was, now_ns, out);
}

static void raft_applied(struct replica *r, uint64_t index, uint64_t now_ns, struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    assert(index <= r->commit);
    r->applied = max_u64(r->applied, index);
    raft_end(r, &was, now_ns, out);
}

static uint64_t raft_deadline(const struct replica *r)
{
    return r->role == ROLE_LEADER ? raft_lead_deadline(r) : r->deadline;
}

static void raft_timeout(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    if (r->role == ROLE_LEADER) {
        raft_lead_timeout(r, now_ns, out);
    } else {
        raft_election_timeout(r, now_ns, out);
    }
    raft_end(r, &was, now_ns, out);
}

static void raft_node_alive(struct replica *r, uint32_t node_id, bool is_alive, uint64_t now_ns,
                            struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    for (uint32_t i = 0; i < r->config->count; i++) {
        if (r->config->members[i].node_id != node_id || node_id == r->node_id) {
            continue;
        }
        r->dead_mask = (uint16_t)((r->dead_mask & ~(1u << i)) | ((is_alive ? 0u : 1u) << i));
        if (r->role == ROLE_LEADER) {
            raft_peer_probe(r, i);
            raft_peer(r, i)->is_paused = !is_alive;
            raft_peer(r, i)->retries = 0;
        }
    }
    if (r->role != ROLE_LEADER) {
        raft_election_alive(r, node_id, is_alive, now_ns);
    } else if (!raft_quorum_is_alive(r)) {
        raft_become_follower(r, r->hard.term, 0, out);  // Check-quorum, computed (P14).
    }
    raft_end(r, &was, now_ns, out);
}

static void raft_link_reset(struct replica *r, uint32_t node_id, uint64_t now_ns, struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    for (uint32_t i = 0; r->role == ROLE_LEADER && i < r->config->count; i++) {
        if (i == r->lead->self || r->config->members[i].node_id != node_id || node_id == r->node_id) {
            continue;
        }
        if (raft_peer(r, i)->state != PEER_SNAPSHOT) {  // Else snapshot_ended comes in any case.
            raft_peer_probe(r, i);
        }
    }
    raft_end(r, &was, now_ns, out);
}

// A leader that is not there any more leads no more; a restarted one does so in another term.
static void raft_replica_unknown(struct replica *r, uint64_t replica_id, uint64_t now_ns, struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    if (r->role != ROLE_LEADER && r->leader == replica_id) {
        r->is_suspected = true;
    }
    raft_end(r, &was, now_ns, out);
}

// ---- snapshots ---------------------------------------------------------------------------------------------------

static void raft_snapshot_ended(struct replica *r, uint64_t replica_id, bool is_ok, uint64_t index, uint64_t now_ns,
                                struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    int at = raft_member_at(r, replica_id);
    if (replica_id == r->id) {
        r->is_installing = false;
    } else if (r->role == ROLE_LEADER && at >= 0 && raft_peer(r, (uint32_t)at)->state == PEER_SNAPSHOT) {
        struct peer *p = raft_peer(r, (uint32_t)at);
        if (is_ok) {
            // The probe at its end proves it: what is installed is acknowledged there.
            raft_peer_probe(r, (uint32_t)at);
            p->next = max_u64(p->next, min_u64(index, r->commit) + 1);
        } else {
            raft_peer_probe(r, (uint32_t)at);
            p->is_paused = true;
            p->retries = p->retries < UINT8_MAX ? (uint8_t)(p->retries + 1) : p->retries;
            p->retry_at =
                now_ns +
                (RAFT_RESEND_NS << (p->retries < RAFT_RESEND_DOUBLINGS ? p->retries : RAFT_RESEND_DOUBLINGS));
        }
    }
    raft_end(r, &was, now_ns, out);
}

static void raft_snapshot_started(struct replica *r, uint64_t now_ns)
{
    (void)now_ns;
    if (r->role == ROLE_LEADER) {
        return;
    }
    r->is_installing = true;
    r->hand_over = HAND_OVER_NONE;
    r->role = ROLE_FOLLOWER;  // Whoever receives a state does not ask for the lead, nor goes on asking.
    r->deadline = RAFT_NEVER;
}

static void raft_snapshot_taken(struct replica *r, uint64_t index, uint64_t term)
{
    assert(index <= r->commit);
    if (index <= r->snapshot_index) {
        return;  // A later one was installed meanwhile.
    }
    assert(raft_term_at(r, index) == term);
    raft_log_cut(r, index, term);
}

static void raft_snapshot_installed(struct replica *r, uint64_t index, uint64_t term, const struct config *c,
                                    uint64_t now_ns, struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    assert(r->role != ROLE_LEADER);
    assert(index >= r->commit);
    assert(raft_term_at(r, index) != term);  // Else acknowledged entries behind it would be lost.
    raft_log_reset(r, index, term);
    r->commit = r->applied = r->matched = index;
    raft_config_set(r, c);
    raft_config_free(r, r->config_before);
    r->config_before = NULL;
    r->is_installing = false;
    if (r->leader != 0 && !r->is_amnesiac) {
        struct consensus_msg *m = raft_message(r, out, MSG_SNAPSHOT_DONE, r->leader);
        m->index = index;
        m->index_term = term;
        r->acked = index;
    }
    raft_end(r, &was, now_ns, out);
}

// ---- requests ----------------------------------------------------------------------------------------------------

static enum rc read_barrier(struct replica *r, uint64_t id, uint64_t now_ns, struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    enum rc rc = raft_read_barrier(r, id);
    raft_end(r, &was, now_ns, out);
    return rc;
}

static enum rc transfer(struct replica *r, uint64_t replica_id, uint64_t now_ns, struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    enum rc rc = raft_transfer(r, replica_id, now_ns);
    raft_end(r, &was, now_ns, out);
    return rc;
}

static enum rc change_members(struct replica *r, const struct member_change *c, uint64_t now_ns,
                              struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    enum rc rc = raft_change_members(r, c, now_ns, out);
    if (rc == RC_OK) {
        raft_advance(r);  // A smaller majority may be met already.
    }
    raft_end(r, &was, now_ns, out);
    return rc;
}

static void step_down(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    raft_step_down(r, now_ns, out);
    raft_end(r, &was, now_ns, out);
}

static void lost_memory(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    struct step_start was = raft_begin(r, out);
    // Or led until a moment ago: whom it asked when it stepped down may not have heard it.
    const bool did_lead = r->role == ROLE_LEADER || (r->leader == 0 && r->hard.vote == r->id);
    r->is_amnesiac = true;  // First: it does not campaign any more.
    raft_step_down(r, now_ns, out);
    if (did_lead) {
        r->hand_over = HAND_OVER_ASK;
        r->deadline = now_ns + RAFT_ELECTION_NS;
    }
    raft_end(r, &was, now_ns, out);
}

// ---- views -------------------------------------------------------------------------------------------------------

static bool is_level(const struct replica *r, uint32_t at)
{
    if (at == r->lead->self) {
        return false;
    }
    const struct peer *p = raft_peer(r, at);
    return !p->is_regressed && (p->match >= r->commit || (p->state == PEER_REPLICATE && p->next > r->last));
}

static void raft_status(const struct replica *r, struct consensus_status *out)
{
    const struct member *leader = config_find(r->config, leader_known(r));
    *out = (struct consensus_status){
        .role = (enum consensus_role)r->role,
        .term = r->hard.term,
        .leader = leader_known(r),
        .leader_node = r->role == ROLE_LEADER ? r->node_id : leader == NULL ? 0 : leader->node_id,
        .first = r->snapshot_index + 1,
        .last = r->last,
        .durable = r->durable,
        .commit = r->commit,
        .applied = r->applied,
        .snapshot = r->snapshot_index,
        .log_epoch = r->log_epoch,
        .is_ready = r->role == ROLE_LEADER && r->applied >= r->lead->term_first,
        .is_amnesiac = r->is_amnesiac,
        .config = r->config,
    };
    for (uint32_t i = 0; r->role == ROLE_LEADER && i < r->lead->peers_count; i++) {
        const bool is_regressed = i != r->lead->self && raft_peer(r, i)->is_regressed;
        out->regressed += is_regressed;
        out->regressed_at |= (uint32_t)is_regressed << i;
        out->level_at |= (uint32_t)is_level(r, i) << i;
    }
}

static void check_log(const struct replica *r)
{
    assert(r->snapshot_index <= r->applied);
    assert(r->applied <= r->commit);
    assert(r->commit <= r->last);
    assert(r->durable <= r->last);
    assert(r->durable >= r->snapshot_index);
    assert((r->runs_count == 0) == (r->last == r->snapshot_index));
    assert((r->runs_count == 0) == (r->runs == NULL));
    uint64_t first = r->snapshot_index + 1;
    uint64_t term = 1;
    for (uint32_t i = 0; i < r->runs_count; i++) {
        assert(i == 0 ? r->runs[i].first == first : r->runs[i].first > first);
        assert(r->runs[i].first <= r->last);
        assert(r->runs[i].term >= term);
        first = r->runs[i].first;
        term = r->runs[i].term + 1;
    }
    assert(raft_term_at(r, r->last) <= r->hard.term || r->hard.term == 0);
    assert(r->role == ROLE_LEADER || r->matched >= r->commit);
    assert(r->matched <= r->last);
}

static void check_lead(const struct replica *r)
{
    const struct lead *lead = r->lead;
    assert(lead != NULL);
    assert(r->leader == r->id);
    assert(r->persisted.term == r->hard.term);
    assert(raft_term_at(r, r->last) == r->hard.term);
    assert(lead->term_first <= r->last);
    assert(lead->peers_count == r->config->count);
    for (uint32_t i = 0; i < lead->peers_count; i++) {
        assert((i == lead->self) == (r->config->members[i].replica_id == r->id));
        if (i == lead->self) {
            continue;
        }
        const struct peer *p = raft_peer(r, i);
        assert(p->match <= r->last);
        assert(p->next > p->match);
        assert(p->next <= r->last + 1);
        assert(p->round_sent <= lead->round);
        assert(p->round_acked <= lead->round);
    }
    for (uint32_t i = 0; i < lead->reads_count; i++) {
        assert(lead->reads[i].round <= lead->round);
        assert(i == 0 || lead->reads[i].round >= lead->reads[i - 1].round || lead->reads[i].round == 0);
    }
}

static void raft_check(const struct replica *r)
{
    check_log(r);
    assert(r->persisted.term <= r->hard.term);
    assert(r->persisted.term < r->hard.term || r->persisted.vote == 0 || r->persisted.vote == r->hard.vote);
    assert(r->config->count >= 1);
    assert(r->config->index <= r->last);
    assert(r->config_before == NULL || r->config->index > r->commit);
    assert((r->lead != NULL) == (r->role == ROLE_LEADER));
    assert(r->role == ROLE_FOLLOWER || !r->is_amnesiac);
    assert(r->role != ROLE_CANDIDATE || r->hard.vote == r->id);
    if (r->role == ROLE_LEADER) {
        check_lead(r);
    } else {
        assert(r->deadline == RAFT_NEVER || !r->is_installing);
    }
}

const struct consensus_ops raft_ops = {
    .name = "raft",
    .traits = {.elects_itself = true, .commit_is_synced = true, .unit_is_chunk = false},
    .create = raft_create,
    .destroy = raft_destroy,
    .propose = raft_propose,
    .step = raft_step,
    .config_appended = raft_config_appended,
    .durable = raft_durable,
    .hard_state_durable = raft_hard_state_durable,
    .applied = raft_applied,
    .deadline = raft_deadline,
    .timeout = raft_timeout,
    .node_alive = raft_node_alive,
    .link_reset = raft_link_reset,
    .replica_unknown = raft_replica_unknown,
    .snapshot_ended = raft_snapshot_ended,
    .next_send = raft_next_send,
    .sent = raft_sent,
    .read_barrier = read_barrier,
    .transfer = transfer,
    .change_members = change_members,
    .snapshot_started = raft_snapshot_started,
    .snapshot_taken = raft_snapshot_taken,
    .snapshot_installed = raft_snapshot_installed,
    .epoch_granted = NULL,
    .step_down = step_down,
    .status = raft_status,
    .term_at = raft_term_at,
    .check = raft_check,
    .lost_memory = lost_memory,
};
