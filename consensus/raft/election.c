// SPDX-License-Identifier: Apache-2.0
// Elections: when to campaign, pre-vote, vote, and who is believed to lead.
//
// Groups have no heartbeats: whether a leader lives is the node-level failure detector's word (decision 7). While it is
// taken for alive there is no timer and votes against it are refused (sticky leader). When its node dies, or the leader
// is unknown, each voter waits rank x 50 ms and a little jitter, then asks for pre-votes, which change nothing at
// the voter (P4), then raises its term and asks for votes. Liveness is only a hint: safety rests on one vote a term,
// recorded with the term in one durable record (P3), and on the comparison of logs.
//
// The volatile hard state decides at once; what it allowed leaves gated behind its write, and the own vote counts only
// when hard_state_durable has told of it.
#include "consensus/raft/state.h"

bool raft_leader_is_live(const struct replica *r)
{
    if (r->role == ROLE_LEADER) {
        return true;
    }
    if (r->leader == 0 || r->is_suspected) {
        return false;
    }
    // One that our configuration does not name is about to hand over (or we are behind): nobody would tell us
    // of its death.
    int at = raft_member_at(r, r->leader);
    return at >= 0 && raft_node_is_alive(r, (uint32_t)at);
}

bool raft_quorum_is_alive(const struct replica *r)
{
    uint32_t alive = 0;
    uint32_t voters = 0;
    for (uint32_t i = 0; i < r->config->count; i++) {
        if (r->config->members[i].is_voter) {
            voters++;
            alive += raft_node_is_alive(r, i);
        }
    }
    return alive > voters / 2;
}

static bool is_voter_in(const struct config *c, uint64_t replica_id)
{
    const struct member *m = config_find(c, replica_id);
    return m != NULL && m->is_voter;
}

// One that an uncommitted entry removes or demotes still has to: it may be the only one with the newest log (Ongaro's
// thesis §4.2.2). Its own vote does not count then.
bool raft_may_campaign(const struct replica *r)
{
    bool is_voter = is_voter_in(r->config, r->id) || (r->config_before != NULL && is_voter_in(r->config_before, r->id));
    return is_voter && !r->is_amnesiac && !r->is_installing && raft_quorum_is_alive(r);
}

static void grant_self(struct replica *r)
{
    int at = raft_member_at(r, r->id);
    r->granted_mask |= (uint16_t)(at < 0 ? 0 : 1u << at);
}

// Voters before us that could campaign too: alive, and not the leader that was just given up.
static uint64_t rank_of(const struct replica *r)
{
    uint64_t rank = 0;
    for (uint32_t i = 0; i < r->config->count; i++) {
        const struct member *m = &r->config->members[i];
        if (m->replica_id == r->id) {
            break;
        }
        rank += m->is_voter && raft_node_is_alive(r, i) && !(r->is_suspected && m->replica_id == r->leader);
    }
    return rank;
}

void raft_arm(struct replica *r, uint64_t now_ns)
{
    if (r->hand_over != HAND_OVER_NONE) {
        return;
    }
    if (r->role == ROLE_LEADER || raft_leader_is_live(r) || !raft_may_campaign(r)) {
        r->deadline = RAFT_NEVER;
        return;
    }
    uint64_t at = now_ns + rank_of(r) * RAFT_RANK_NS + raft_random(r, RAFT_JITTER_NS);
    r->deadline = min_u64(r->deadline, at);
}

void raft_arm_retry(struct replica *r, uint64_t now_ns)
{
    if (r->hand_over != HAND_OVER_NONE) {
        return;
    }
    if (r->role == ROLE_LEADER || !raft_may_campaign(r)) {
        r->deadline = RAFT_NEVER;
        return;
    }
    // A vote passes through two disks, the candidate's and the voter's. Retries widen until slow ones have their time.
    const unsigned doublings = r->campaigns > 2 ? r->campaigns - 2u : 0;
    const uint64_t least = RAFT_RETRY_MIN_NS << (doublings < RAFT_RETRY_DOUBLINGS ? doublings : RAFT_RETRY_DOUBLINGS);
    r->deadline = now_ns + least + raft_random(r, least);
}

// A vote of ours, for ourselves or another, is on its way to our disk.
static bool is_vote_in_flight(const struct replica *r)
{
    return r->hard.vote != 0 && (r->persisted.term != r->hard.term || r->persisted.vote != r->hard.vote);
}

void raft_become_follower(struct replica *r, uint64_t term, uint64_t leader, struct consensus_out *out)
{
    assert(term >= r->hard.term);
    if (r->role == ROLE_LEADER) {
        out->reads_failed = r->lead->reads_count > 0;
        raft_lead_free(r);
        r->deadline = RAFT_NEVER;
        r->matched = r->commit;
    }
    if (leader != 0 && r->hand_over != HAND_OVER_NONE) {
        r->hand_over = HAND_OVER_NONE;
        r->deadline = RAFT_NEVER;
    } else if (term > r->hard.term && r->hand_over != HAND_OVER_NONE) {
        r->hand_over = HAND_OVER_TELL;
    }
    if (term > r->hard.term) {
        // One record: a new term always begins without a vote (P3).
        r->hard = (struct hard_state){.term = term, .vote = 0};
        out->has_hard_state = true;
        r->matched = r->commit;
        r->acked = 0;
        r->round_seen = 0;
    }
    r->role = ROLE_FOLLOWER;
    r->granted_mask = 0;
    r->leader = leader;
    r->is_suspected = false;
    if (leader != 0) {
        r->campaigns = 0;
    }
}

static void ask_voters(struct replica *r, enum consensus_msg_type type, bool is_transfer, struct consensus_out *out)
{
    for (uint32_t i = 0; i < r->config->count; i++) {
        const struct member *to = &r->config->members[i];
        if (!to->is_voter || to->replica_id == r->id) {
            continue;
        }
        struct consensus_msg *m = raft_message(r, out, type, to->replica_id);
        m->term = r->hard.term + (type == MSG_PREVOTE);
        m->index = r->last;
        m->index_term = raft_term_at(r, r->last);
        m->fsm_version = r->fsm_version;
        m->is_transfer = is_transfer;
        if (type == MSG_VOTE) {
            out->msgs[out->msgs_count - 1].gate = GATE_AFTER_WAL;
        }
    }
}

// Asks for votes in a new term. Single voters get here at once, others after a majority of pre-votes or on a transfer.
static void candidate_start(struct replica *r, bool is_transfer, uint64_t now_ns, struct consensus_out *out)
{
    assert(!r->is_amnesiac);
    raft_become_follower(r, r->hard.term + 1, 0, out);
    r->role = ROLE_CANDIDATE;
    r->hard.vote = r->id;
    out->has_hard_state = true;
    ask_voters(r, MSG_VOTE, is_transfer, out);
    raft_arm_retry(r, now_ns);
}

static bool has_majority(const struct replica *r)
{
    uint32_t granted = 0;
    for (uint32_t i = 0; i < r->config->count; i++) {
        // By the configuration of now: votes of the removed do not count (P19).
        granted += r->config->members[i].is_voter && (r->granted_mask >> i & 1) != 0;
    }
    return granted > config_voters(r->config) / 2;
}

void raft_own_vote(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    if (r->role != ROLE_LEADER && r->deadline != RAFT_NEVER && r->persisted.vote != 0 && !is_vote_in_flight(r)) {
        raft_arm_retry(r, now_ns);  // Only now it leaves: whoever it elects has its time from here.
    }
    if (r->role == ROLE_CANDIDATE && r->persisted.term == r->hard.term && r->persisted.vote == r->id) {
        grant_self(r);
        raft_check_votes(r, now_ns, out);
    }
}

void raft_check_votes(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    if (r->role == ROLE_PRE_CANDIDATE && has_majority(r)) {
        candidate_start(r, false, now_ns, out);
    } else if (r->role == ROLE_CANDIDATE && r->persisted.term == r->hard.term && has_majority(r)) {
        raft_become_leader(r, now_ns, out);
    }
}

void raft_campaign(struct replica *r, bool is_transfer, uint64_t now_ns, struct consensus_out *out)
{
    assert(r->role != ROLE_LEADER);
    if (!raft_may_campaign(r)) {
        r->deadline = RAFT_NEVER;
        return;
    }
    if (is_transfer) {
        candidate_start(r, true, now_ns, out);
        return;
    }
    r->role = ROLE_PRE_CANDIDATE;
    r->granted_mask = 0;
    grant_self(r);
    ask_voters(r, MSG_PREVOTE, false, out);
    raft_arm_retry(r, now_ns);
    if (r->campaigns == 0) {
        r->deadline = now_ns + RAFT_FAST_RETRY_NS + raft_random(r, RAFT_FAST_RETRY_NS);
    }
    r->campaigns = r->campaigns < UINT8_MAX ? (uint8_t)(r->campaigns + 1) : UINT8_MAX;
    raft_check_votes(r, now_ns, out);
}

// Raft §5.4.1.
static bool is_up_to_date(const struct replica *r, const struct consensus_msg *m)
{
    uint64_t term = raft_term_at(r, r->last);
    return m->index_term > term || (m->index_term == term && m->index >= r->last);
}

// While a leader lives nobody else is helped; the leader itself is (it may have stepped down and come back).
// Whoever has an entry of a later term than ours proves that our leader is none any more: somebody was elected since.
static bool is_held_by_leader(const struct replica *r, const struct consensus_msg *m)
{
    return !m->is_transfer && raft_leader_is_live(r) && m->from != r->leader && m->index_term <= r->hard.term;
}

// P4: neither term nor vote nor log change here, whatever the answer.
void raft_prevote(struct replica *r, const struct consensus_msg *m, struct consensus_out *out)
{
    bool is_granted = !r->is_amnesiac && m->term > r->hard.term && !is_held_by_leader(r, m) && is_up_to_date(r, m);
    struct consensus_msg *reply = raft_message(r, out, MSG_PREVOTE_REPLY, m->from);
    reply->is_rejected = !is_granted;
    int at = raft_member_at(r, m->from);
    if (r->role == ROLE_LEADER && at >= 0 && m->from != r->id) {
        raft_peer(r, (uint32_t)at)->is_poked = true;  // It does not know that we lead: say so.
    } else if (m->term > r->hard.term && !r->is_amnesiac && is_held_by_leader(r, m)) {
        raft_message(r, out, MSG_PREVOTE, r->leader);  // Does it still lead? Asks for nothing, for the term is its own.
    } else if (m->term > r->hard.term && m->from == r->leader && !is_granted) {
        r->is_suspected = true;  // Who leads does not ask. What we have it lacks, so somebody else must.
    }
}

void raft_prevote_reply(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out)
{
    if (m->is_rejected && m->term > r->hard.term) {
        raft_become_follower(r, m->term, 0, out);  // The reply does what the request must not: tell of a newer term.
        raft_arm_retry(r, now_ns);
        return;
    }
    int at = raft_member_at(r, m->from);
    if (r->role != ROLE_PRE_CANDIDATE || m->is_rejected || at < 0 || m->term > r->hard.term) {
        return;
    }
    r->granted_mask |= (uint16_t)(1u << at);
    raft_check_votes(r, now_ns, out);
}

void raft_vote(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out)
{
    bool is_granted = false;
    if (m->term >= r->hard.term && !is_held_by_leader(r, m)) {
        bool was_waiting = r->role != ROLE_LEADER && r->deadline != RAFT_NEVER;
        if (m->term > r->hard.term) {
            raft_become_follower(r, m->term, 0, out);
        }
        is_granted = !r->is_amnesiac && (r->hard.vote == 0 || r->hard.vote == m->from) && r->role != ROLE_LEADER &&
                     is_up_to_date(r, m);
        if (is_granted) {
            out->has_hard_state = out->has_hard_state || r->hard.vote == 0;
            r->hard.vote = m->from;
            r->role = ROLE_FOLLOWER;
            raft_arm_retry(r, now_ns);  // Its turn; ours comes if nothing is heard of it.
        } else if (!was_waiting) {
            raft_arm(r, now_ns);
        }
    }
    struct consensus_msg *reply = raft_message(r, out, MSG_VOTE_REPLY, m->from);
    reply->is_rejected = !is_granted;
    out->msgs[out->msgs_count - 1].gate = GATE_AFTER_WAL;
}

void raft_vote_reply(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out)
{
    if (m->term > r->hard.term) {
        raft_become_follower(r, m->term, 0, out);
        raft_arm_retry(r, now_ns);
        return;
    }
    int at = raft_member_at(r, m->from);
    if (r->role != ROLE_CANDIDATE || m->is_rejected || at < 0 || m->term != r->hard.term) {
        return;
    }
    r->granted_mask |= (uint16_t)(1u << at);
    raft_check_votes(r, now_ns, out);
}

void raft_election_timeout(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    if (now_ns < r->deadline) {
        return;
    }
    if (raft_leader_is_live(r)) {
        r->deadline = RAFT_NEVER;
        return;
    }
    if (r->hand_over != HAND_OVER_NONE) {
        raft_hand_over(r, now_ns, out);
        return;
    }
    if (is_vote_in_flight(r)) {
        raft_arm_retry(r, now_ns);  // Nobody can have been elected by it yet; a newer term would only void it.
        return;
    }
    raft_campaign(r, false, now_ns, out);
}

void raft_election_alive(struct replica *r, uint32_t node_id, bool is_alive, uint64_t now_ns)
{
    int leader_at = raft_member_at(r, r->leader);
    if (!is_alive && leader_at >= 0 && r->config->members[leader_at].node_id == node_id) {
        // Even if the node is back in a moment: it may be a restarted one, which leads nothing any more. Only a message
        // of this term from it restores it.
        r->is_suspected = true;
    }
    r->campaigns = 0;  // What was in vain before says nothing of now.
    if (!is_alive || r->deadline == RAFT_NEVER) {
        raft_arm(r, now_ns);
    }
}
