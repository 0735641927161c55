// SPDX-License-Identifier: Apache-2.0
// The follower's side of replication: what an append from the leader does to our log, and what we acknowledge.
//
// Rules: truncate only at an index where an entry of ours provably has another term than the leader's, never below
// commit, never because an append was empty or short (P5). Acknowledge min(durable, matched): matched is how
// far our log was compared with this term's leader, so an old suffix that merely happens to be on disk is not
// claimed (P21). What is committed equals every later leader's log, so `matched` starts each term at commit.
//
// An append whose entries are new is answered when they are durable, once per batch of the disk; every other append is
// answered at once. Answers carry our term, so that a deposed leader learns of it (P14).
#include "consensus/raft/state.h"

static struct consensus_msg *reply_to(const struct replica *r, const struct consensus_msg *m, struct consensus_out *out)
{
    struct consensus_msg *reply = raft_message(r, out, MSG_APPEND_REPLY, m->from);
    reply->index = r->matched;
    reply->acked = r->is_amnesiac ? 0 : min_u64(r->durable, r->matched);
    reply->commit = r->commit;
    reply->read_round = r->round_seen;
    return reply;
}

void raft_acknowledge(struct replica *r, struct consensus_out *out)
{
    assert(r->leader != 0);
    struct consensus_msg *reply = reply_to(r, &(struct consensus_msg){.from = r->leader}, out);
    r->acked = reply->acked;
}

static void reject(struct replica *r, const struct consensus_msg *m, uint64_t hint_index, struct consensus_out *out)
{
    struct consensus_msg *reply = reply_to(r, m, out);
    reply->is_rejected = true;
    reply->index = m->index;
    reply->read_round = m->read_round;  // Of this very message: tells a late refusal from a fresh one.
    reply->hint_index = hint_index;
    reply->hint_term = hint_index == RAFT_HINT_AMNESIAC ? 0 : raft_term_at(r, hint_index);
}

// Terms that no leader would send: the message is dropped.
static bool runs_are_sound(const struct consensus_msg *m)
{
    if (m->index_term > m->term || m->runs_count > CONSENSUS_TERM_RUNS || m->index > UINT64_MAX / 2) {
        return false;
    }
    if (m->count == 0) {
        return true;
    }
    if (m->runs_count == 0 || m->runs[0].first != m->index + 1 || m->runs[0].term < m->index_term) {
        return false;
    }
    for (uint32_t i = 1; i < m->runs_count; i++) {
        if (m->runs[i].first <= m->runs[i - 1].first || m->runs[i].term <= m->runs[i - 1].term) {
            return false;
        }
    }
    const struct term_run *last = &m->runs[m->runs_count - 1];
    return m->runs[0].term > 0 && last->term <= m->term && last->first <= m->index + m->count;
}

static uint64_t run_end(const struct consensus_msg *m, uint32_t run)
{
    return run + 1 < m->runs_count ? m->runs[run + 1].first - 1 : m->index + m->count;
}

// First index of the message's entries that our log does not hold with the same term; index + count + 1 if it
// holds all.
static uint64_t first_new(const struct replica *r, const struct consensus_msg *m)
{
    for (uint32_t run = 0; run < m->runs_count; run++) {
        uint64_t end = run_end(m, run);
        // What is committed is the leader's as well: not compared (it may be compacted).
        uint64_t at = max_u64(m->runs[run].first, r->commit + 1);
        while (at <= end) {
            if (at > r->last || raft_term_at(r, at) != m->runs[run].term) {
                return at;
            }
            // Both are of one term from `at` on: jump to where ours, or the message's, ends.
            uint64_t same = raft_log_below_term(r, end, m->runs[run].term);
            assert(same >= at);
            at = same + 1;
        }
    }
    return m->index + m->count + 1;
}

static void accept_entries(struct replica *r, const struct consensus_msg *m, struct consensus_out *out)
{
    uint64_t end = m->index + m->count;
    uint64_t from = m->count == 0 ? end + 1 : first_new(r, m);
    if (from <= end) {
        assert(from > r->commit);
        if (from <= r->last) {
            out->truncate_from = from;
            raft_log_truncate(r, from);
        }
        assert(from == r->last + 1);
        out->accept_from = from;
        out->accept_to = end;
        for (uint32_t run = 0; run < m->runs_count; run++) {
            uint64_t run_last = run_end(m, run);
            if (run_last > r->last) {
                raft_log_extend(r, run_last - r->last, m->runs[run].term);
            }
        }
    }
    assert(r->last >= end || end <= r->commit);
    r->matched = max_u64(r->matched, min_u64(end, r->last));
    r->commit = max_u64(r->commit, min_u64(m->commit, r->matched));
}

// The leader of our term spoke: whatever we were, we follow it.
static void follow(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out)
{
    if (m->term > r->hard.term || r->role != ROLE_FOLLOWER || r->leader != m->from || r->is_suspected) {
        raft_become_follower(r, m->term, m->from, out);  // Keeps the vote of an equal term.
    }
    if (raft_leader_is_live(r)) {
        r->deadline = RAFT_NEVER;
    } else {
        raft_arm_retry(r, now_ns);  // The detector doubts its node; while it speaks we wait.
    }
}

void raft_append(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out)
{
    if (m->term < r->hard.term) {
        reject(r, m, r->commit, out);
        return;
    }
    if (!runs_are_sound(m) || (r->role == ROLE_LEADER && m->term == r->hard.term)) {
        return;  // Not from a leader of ours: two in one term cannot be.
    }
    follow(r, m, now_ns, out);
    if (r->is_amnesiac) {
        reject(r, m, RAFT_HINT_AMNESIAC, out);
        return;
    }
    if (r->is_installing && (m->count > 0 || m->index > r->matched)) {
        // The log is about to be replaced; the leader repeats itself. A probe behind our end is answered: it
        // is of a leader that may not know yet that we need its snapshot (the one that sent ours may be gone).
        if (m->count == 0 && m->index > r->last) {
            reject(r, m, r->last, out);
        }
        return;
    }
    if (m->index > r->last) {
        reject(r, m, r->last, out);
        return;
    }
    if (m->index > r->commit && raft_term_at(r, m->index) != m->index_term) {
        uint64_t hint = raft_log_below_term(r, m->index - 1, m->index_term);
        reject(r, m, max_u64(hint, r->commit), out);
        return;
    }
    r->round_seen = max_u64(r->round_seen, m->read_round);
    accept_entries(r, m, out);
    if (out->accept_from == 0) {
        raft_acknowledge(r, out);
    }
}
