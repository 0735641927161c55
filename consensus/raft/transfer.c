// SPDX-License-Identifier: Apache-2.0
// Handing over the lead, and proving that one still has it: transfer, stepping down, read barriers.
//
// A transfer stops proposals, waits until the target's disk is level, tells it to campaign past the sticky leader, and
// ends after one election timeout whatever happened (law 4). A leader that the committed configuration no longer names
// keeps leading only to hand over: it transfers again and again until somebody of a higher term takes it off.
//
// A read barrier remembers the commit index and waits until a majority has confirmed a round of appends that was
// numbered after the question was asked. Numbers belong to the engine, grow within a term and are never shared with an
// older question (P13); before the term's no-op is committed a barrier has no round at all.
#include "consensus/raft/state.h"
#include "node/base/mem.h"

// The live voter whose disk holds most; -1 if there is none.
int raft_best_successor(const struct replica *r, uint64_t except)
{
    int best = -1;
    for (uint32_t i = 0; i < r->config->count; i++) {
        const struct member *m = &r->config->members[i];
        if (m->replica_id == r->id || m->replica_id == except || !m->is_voter || !raft_node_is_alive(r, i)) {
            continue;
        }
        const struct peer *p = raft_peer(r, i);
        if (p->is_regressed || p->state == PEER_SNAPSHOT) {
            continue;
        }
        if (best < 0 || p->match > raft_peer(r, (uint32_t)best)->match) {
            best = (int)i;
        }
    }
    return best;
}

enum rc raft_transfer(struct replica *r, uint64_t replica_id, uint64_t now_ns)
{
    if (r->role != ROLE_LEADER) {
        return RC_NOT_LEADER;
    }
    int at = raft_member_at(r, replica_id);
    if (at < 0) {
        return RC_NOT_FOUND;
    }
    if (replica_id == r->id || !r->config->members[at].is_voter || raft_peer(r, (uint32_t)at)->is_regressed) {
        return RC_INVALID;
    }
    if (r->lead->transfer_to != 0 || raft_peer(r, (uint32_t)at)->state == PEER_SNAPSHOT) {
        return RC_BUSY;
    }
    if (!raft_node_is_alive(r, (uint32_t)at)) {
        return RC_NOT_CONNECTED;
    }
    r->lead->transfer_to = replica_id;
    r->lead->transfer_deadline = now_ns + RAFT_ELECTION_NS;
    r->lead->is_transfer_sent = false;
    return RC_OK;
}

void raft_transfer_step(struct replica *r, struct consensus_out *out)
{
    struct lead *lead = r->lead;
    bool is_removed = config_find(r->config, r->id) == NULL && r->config->index <= r->commit;
    if (lead->transfer_to == 0 && is_removed) {
        int at = raft_best_successor(r, lead->retire_last);
        at = at < 0 ? raft_best_successor(r, 0) : at;
        if (at >= 0) {
            lead->retire_last = r->config->members[at].replica_id;
            lead->transfer_to = lead->retire_last;
            lead->transfer_deadline = lead->now + RAFT_ELECTION_NS;
            lead->is_transfer_sent = false;
        }
    }
    if (lead->transfer_to == 0 || lead->is_transfer_sent) {
        return;
    }
    int at = raft_member_at(r, lead->transfer_to);
    if (at < 0) {
        lead->transfer_to = 0;
    } else if (raft_peer(r, (uint32_t)at)->match == r->last && out->msgs_count < CONSENSUS_OUT_MSGS) {
        raft_message(r, out, MSG_TIMEOUT_NOW, lead->transfer_to);
        lead->is_transfer_sent = true;
    }
}

// One that lost its memory while it led cannot campaign itself, and the others, for whom it lives, would wait
// for ever: what it said to one may have been lost, or that one cannot win because a third still holds to us.
// Nobody but us led our term, so asking disturbs nobody; in a later one only the term is told, in the form of
// a refused pre-vote.
void raft_hand_over(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    assert(r->hand_over != HAND_OVER_NONE);
    assert(r->is_amnesiac);
    const uint32_t count = r->config->count;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t at = (r->campaigns + i) % count;
        const struct member *m = &r->config->members[at];
        if (m->replica_id != r->id && m->is_voter && raft_node_is_alive(r, at)) {
            const bool is_asking = r->hand_over == HAND_OVER_ASK;
            raft_message(r, out, is_asking ? MSG_TIMEOUT_NOW : MSG_PREVOTE_REPLY, m->replica_id)
                ->is_rejected = !is_asking;
            r->campaigns = (uint8_t)(at + 1);
            break;
        }
    }
    r->deadline = now_ns + RAFT_ELECTION_NS;
}

void raft_step_down(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    if (r->role == ROLE_LEADER) {
        int at = raft_best_successor(r, 0);
        if (at >= 0) {
            // The others take us for alive and would wait: one of them is asked by name.
            raft_message(r, out, MSG_TIMEOUT_NOW, r->config->members[at].replica_id);
        }
        raft_become_follower(r, r->hard.term, 0, out);
    } else if (r->role != ROLE_FOLLOWER) {
        r->role = ROLE_FOLLOWER;
        r->granted_mask = 0;
    } else if (r->deadline == RAFT_NEVER) {
        return;
    }
    r->deadline = raft_may_campaign(r) ? now_ns + RAFT_STAND_BACK_NS + raft_random(r, RAFT_ELECTION_NS) : RAFT_NEVER;
}

// ---- reads -------------------------------------------------------------------------------------------------------

// A round no message has carried yet, shared by all who ask before one does.
static uint64_t fresh_round(struct lead *lead)
{
    if (lead->is_round_sent) {
        raft_next_round(lead);
    }
    return lead->round;
}

enum rc raft_read_barrier(struct replica *r, uint64_t id)
{
    if (r->role != ROLE_LEADER) {
        return RC_NOT_LEADER;
    }
    struct lead *lead = r->lead;
    if (lead->reads_count == RAFT_READS_MAX) {
        return RC_FULL;
    }
    if (lead->reads_count == lead->reads_cap) {
        lead->reads_cap = lead->reads_cap == 0 ? 8 : lead->reads_cap * 2;
        lead->reads = mem_realloc(lead->reads, lead->reads_cap * sizeof(lead->reads[0]));
    }
    struct pending_read *read = &lead->reads[lead->reads_count++];
    *read = (struct pending_read){.id = id, .index = r->commit, .round = 0};
    if (r->commit >= lead->term_first) {
        read->round = fresh_round(lead);
    }
    return RC_OK;
}

// The newest round a majority of voters has confirmed; a leader confirms itself.
static uint64_t confirmed_round(const struct replica *r)
{
    uint64_t rounds[LIMIT_MEMBERS];
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->config->count; i++) {
        if (!r->config->members[i].is_voter) {
            continue;
        }
        const struct peer *p = i == r->lead->self ? NULL : raft_peer(r, i);
        uint64_t round = !p ? r->lead->round : p->is_regressed ? 0 : p->round_acked;
        uint32_t at = count++;
        for (; at > 0 && rounds[at - 1] < round; at--) {
            rounds[at] = rounds[at - 1];
        }
        rounds[at] = round;
    }
    assert(count > 0);  // No configuration is without a voter.
    return rounds[count / 2];
}

bool raft_reads_ready(const struct replica *r)
{
    const struct lead *lead = r->lead;
    return lead->reads_count > 0 && lead->reads[0].round != 0 && lead->reads[0].round <= confirmed_round(r);
}

void raft_reads_step(struct replica *r, struct consensus_out *out)
{
    struct lead *lead = r->lead;
    if (lead->reads_count == 0 || r->commit < lead->term_first) {
        return;
    }
    for (uint32_t i = lead->reads_count; i > 0 && lead->reads[i - 1].round == 0; i--) {
        lead->reads[i - 1].index = r->commit;  // Asked before the no-op was committed: what counts is known only now.
        lead->reads[i - 1].round = fresh_round(lead);
    }
    uint64_t confirmed = confirmed_round(r);
    uint32_t done = 0;
    while (done < lead->reads_count && lead->reads[done].round <= confirmed && out->reads_count < CONSENSUS_OUT_READS) {
        out->reads[out->reads_count].id = lead->reads[done].id;
        out->reads[out->reads_count++].index = lead->reads[done].index;
        done++;
    }
    lead->reads_count -= done;
    memmove(lead->reads, lead->reads + done, lead->reads_count * sizeof(lead->reads[0]));
}
