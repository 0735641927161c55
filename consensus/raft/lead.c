// SPDX-License-Identifier: Apache-2.0
// The leader's side of replication: progress of each peer, what to send next, commit, and when to try again.
//
// Sending is pulled: the host asks next_send for a peer when it has room and tells what it took with sent(). A peer is
// probed (one message, no entries, until it is known where the logs agree; a new leader's first message carries its
// entries at once), replicated to (optimistic pipelining: next runs ahead of match), or waits for a snapshot.
// Nothing relies on delivery: what a live peer does not answer is repeated after 200 ms, doubling; what a peer whose
// node is not alive misses is made good when it is alive again. An idle group whose peers are level and know the commit
// index has no deadline.
//
// Commit counts disks: our own durable index, the peers' acknowledged ones, voters of the configuration in force
// only (P19), and only through an entry of the current term (P2).
#include "consensus/raft/state.h"
#include "node/base/mem.h"
#include "node/base/slab.h"
#include <stdlib.h>

static bool is_self(const struct replica *r, uint32_t i)
{
    return r->config->members[i].replica_id == r->id;
}

struct lead *raft_lead_alloc(const struct replica *r, const struct config *c)
{
    struct lead shape = {.peers_count = c->count, .self = c->count};
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->members[i].replica_id == r->id) {
            shape.self = i;
        }
    }
    struct lead *lead = slab_zalloc(raft_lead_size(&shape));
    lead->peers_count = shape.peers_count;
    lead->self = shape.self;
    return lead;
}

void raft_become_leader(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    assert(r->role == ROLE_CANDIDATE);
    assert(r->persisted.term == r->hard.term);
    assert(r->persisted.vote == r->id);
    struct lead *lead = r->lead = raft_lead_alloc(r, r->config);
    lead->now = now_ns;
    lead->round = 1;
    lead->term_first = r->last + 1;
    for (uint32_t i = 0; i < lead->peers_count; i++) {
        if (i != lead->self) {
            *raft_peer(r, i) = (struct peer){.next = r->last + 1, .retry_at = RAFT_NEVER, .is_loaded = true};
        }
    }
    r->role = ROLE_LEADER;
    r->leader = r->id;
    r->is_suspected = false;
    r->campaigns = 0;
    r->deadline = RAFT_NEVER;
    out->has_noop = true;
    out->append_index = r->last + 1;
    out->append_term = r->hard.term;
    raft_log_extend(r, 1, r->hard.term);
    raft_mark(r, now_ns);
}

void raft_lead_free(struct replica *r)
{
    free(r->lead->reads);
    free(r->lead->more_marks);
    slab_free(r->lead, raft_lead_size(r->lead));
    r->lead = NULL;
}

// ---- commit ------------------------------------------------------------------------------------------------------

// A message that is being sent in pieces does not say what has come up since.
static void messages_outdated(struct lead *lead)
{
    const uint32_t others = lead->peers_count - (lead->self < lead->peers_count);
    for (uint32_t i = 0; i < others; i++) {
        lead->peers[i].is_outdated = true;
    }
}

void raft_advance(struct replica *r)
{
    assert(r->role == ROLE_LEADER);
    uint64_t disks[LIMIT_MEMBERS];
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->config->count; i++) {
        if (!r->config->members[i].is_voter) {
            continue;
        }
        const struct peer *p = is_self(r, i) ? NULL : raft_peer(r, i);
        uint64_t disk = !p ? r->durable : p->is_regressed ? 0 : p->match;
        uint32_t at = count++;
        for (; at > 0 && disks[at - 1] < disk; at--) {
            disks[at] = disks[at - 1];
        }
        disks[at] = disk;
    }
    assert(count > 0);  // No configuration is without a voter.
    // The (n/2)-th largest of n, counted from 0, is on a majority: of 3 the second, of 4 and 5 the third.
    uint64_t majority = disks[count / 2];
    if (majority > r->commit && majority >= r->lead->term_first) {
        assert(majority <= r->last);
        r->commit = majority;
        messages_outdated(r->lead);
    }
}

static struct mark *mark_at(struct lead *lead, uint32_t i)
{
    assert(i < RAFT_MARKS);
    return i == 0 ? &lead->mark : &lead->more_marks[i - 1];
}

static void marks_drop(struct lead *lead, uint32_t count)
{
    lead->marks_count -= count;
    for (uint32_t i = 0; i < lead->marks_count; i++) {
        *mark_at(lead, i) = *mark_at(lead, i + count);
    }
    if (lead->marks_count == 0) {
        free(lead->more_marks);
        lead->more_marks = NULL;
    }
}

// Remembers that something proposed by now is not committed (at most one mark per RAFT_MARK_NS), and forgets what is.
void raft_mark(struct replica *r, uint64_t now_ns)
{
    struct lead *lead = r->lead;
    lead->now = max_u64(lead->now, now_ns);
    uint32_t done = 0;
    while (done < lead->marks_count && mark_at(lead, done)->index <= r->commit) {
        done++;
    }
    if (done > 0) {
        marks_drop(lead, done);
    }
    uint32_t n = lead->marks_count;
    const struct mark *newest = n == 0 ? NULL : mark_at(lead, n - 1);
    bool is_time = !newest || (newest->index < r->last && now_ns >= newest->at + RAFT_MARK_NS);
    if (r->last > r->commit && is_time && n < RAFT_MARKS) {
        if (n > 0 && !lead->more_marks) {
            lead->more_marks = mem_alloc((RAFT_MARKS - 1) * sizeof(struct mark));
        }
        *mark_at(lead, n) = (struct mark){.index = r->last, .at = now_ns};
        lead->marks_count = n + 1;
    }
}

// ---- peers -------------------------------------------------------------------------------------------------------

void raft_next_round(struct lead *lead)
{
    lead->round++;
    lead->is_round_sent = false;
    messages_outdated(lead);
}

// What is on its way to it may be lost: find out where it stands.
void raft_peer_probe(struct replica *r, uint32_t i)
{
    struct lead *lead = r->lead;
    struct peer *p = raft_peer(r, i);
    raft_next_round(lead);
    p->probe_round = lead->round;
    p->probe_match = p->match;
    p->state = PEER_PROBE;
    // Of whom nothing is known yet nothing says that it lacks what was cut from the log: it says so if it does.
    p->next = (p->match > 0 ? p->match : r->snapshot_index) + 1;
    p->commit_told = 0;
    p->round_sent = 0;
    p->is_paused = p->is_loaded = p->is_poked = false;
    p->retry_at = RAFT_NEVER;
}

// The newest round somebody waits for; 0 none.
static uint64_t round_wanted(const struct lead *lead)
{
    return lead->reads_count == 0 ? 0 : lead->reads[lead->reads_count - 1].round;
}

bool raft_peer_wants(const struct replica *r, uint32_t i)
{
    const struct peer *p = is_self(r, i) ? NULL : raft_peer(r, i);
    if (!p || p->is_regressed) {
        return false;
    }
    if (p->is_poked || p->round_sent < round_wanted(r->lead)) {
        return true;
    }
    if (p->state != PEER_REPLICATE) {
        return !p->is_paused;
    }
    return p->next <= r->last || min_u64(r->commit, p->next - 1) > p->commit_told;
}

static bool needs_snapshot(const struct replica *r, const struct peer *p)
{
    return p->next <= r->snapshot_index;
}

void raft_next_send(struct replica *r, uint32_t i, struct consensus_send *out)
{
    assert(i < r->config->count);
    out->kind = SEND_NOTHING;
    if (r->role != ROLE_LEADER || !raft_peer_wants(r, i)) {
        return;
    }
    struct peer *p = raft_peer(r, i);
    out->to = &r->config->members[i];
    bool is_behind = needs_snapshot(r, p);
    bool is_waiting = p->state == PEER_SNAPSHOT;
    p->is_offered = is_behind && !is_waiting && !p->is_paused;
    p->is_outdated = false;
    out->kind = p->is_offered ? SEND_SNAPSHOT : SEND_APPEND;
    // While the entries it lacks are not there to send, a message before the first index carries rounds and the term.
    uint64_t previous = is_behind || is_waiting ? 0 : p->next - 1;
    out->last = previous;
    if (previous != 0 || p->next == 1) {
        bool may_carry = p->state == PEER_REPLICATE || (p->state == PEER_PROBE && p->is_loaded && !p->is_paused);
        out->last = may_carry && !is_behind && !is_waiting ? r->last : previous;
    }
    // Only a commit index to tell: the host may wait for entries that carry it.
    out->may_wait = p->state == PEER_REPLICATE && out->last == previous && !p->is_poked && !is_behind &&
                    p->round_sent >= round_wanted(r->lead);
    out->msg = (struct consensus_msg){
        .type = MSG_APPEND,
        .group = r->group,
        .from = r->id,
        .to = out->to->replica_id,
        .term = r->hard.term,
        .index = previous,
        .index_term = previous == 0 ? 0 : raft_term_at(r, previous),
        .commit = r->commit,
        .read_round = r->lead->round,
    };
    r->lead->is_round_sent = r->lead->is_round_sent || out->kind == SEND_APPEND;
}

static uint64_t resend_at(const struct peer *p, uint64_t now_ns)
{
    uint32_t doublings = p->retries < RAFT_RESEND_DOUBLINGS ? p->retries : RAFT_RESEND_DOUBLINGS;
    return now_ns + (RAFT_RESEND_NS << doublings);
}

// Does a live peer owe us an answer?
static bool is_unanswered(const struct replica *r, uint32_t i)
{
    const struct peer *p = is_self(r, i) ? NULL : raft_peer(r, i);
    if (!p || p->retry_at == RAFT_NEVER || p->is_regressed || !raft_node_is_alive(r, i)) {
        return false;
    }
    if (p->state != PEER_REPLICATE) {
        return true;
    }
    return p->next > p->match + 1 || p->commit_known < p->commit_told ||
           (p->round_acked < round_wanted(r->lead) && p->round_sent >= round_wanted(r->lead));
}

void raft_sent(struct replica *r, uint32_t i, uint64_t last_index_sent, uint64_t now_ns)
{
    if (r->role != ROLE_LEADER || i >= r->config->count || is_self(r, i)) {
        return;
    }
    struct peer *p = raft_peer(r, i);
    raft_mark(r, now_ns);
    bool was_waiting = is_unanswered(r, i);
    // Else it is the last piece of an entry, and the log was cut behind that meanwhile: nothing has begun.
    if (p->is_offered && needs_snapshot(r, p) && p->state != PEER_SNAPSHOT && !p->is_paused) {
        p->is_offered = false;
        p->state = PEER_SNAPSHOT;
        p->is_paused = true;
        p->is_loaded = false;
        p->retry_at = RAFT_NEVER;  // snapshot_ended tells how it went.
        p->is_poked = true;        // A message without entries introduces us: to whom to report, in which term.
        return;
    }
    p->is_poked = false;
    p->round_sent = p->is_outdated ? p->round_sent : r->lead->round;
    if (p->state == PEER_SNAPSHOT || (needs_snapshot(r, p) && p->state == PEER_PROBE)) {
        return;
    }
    if (p->state == PEER_PROBE) {
        p->is_paused = true;
        p->is_loaded = false;
    } else {
        // What goes in pieces is sent late: the answer to an earlier copy of it may have said more meanwhile.
        assert(last_index_sent <= r->last);
        p->next = max_u64(p->next, last_index_sent + 1);
        if (!p->is_outdated) {
            p->commit_told = max_u64(p->commit_told, min_u64(r->commit, last_index_sent));
        }
    }
    if (!was_waiting) {
        p->retry_at = resend_at(p, now_ns);  // Else the answer to an earlier message is due first.
    }
}

static void peer_regressed(struct peer *p)
{
    p->is_regressed = true;
    p->retry_at = RAFT_NEVER;
    p->state = PEER_PROBE;
    p->is_paused = true;
}

static void reply_rejected(struct replica *r, struct peer *p, const struct consensus_msg *m)
{
    if (m->hint_index == RAFT_HINT_AMNESIAC) {
        peer_regressed(p);
        return;
    }
    if (m->index <= p->match) {
        // What it has on disk it cannot refuse; unless this answers a message from after the link was reset, it is
        // merely late.
        if (p->probe_round != 0 && m->read_round >= p->probe_round && m->index <= p->probe_match && m->index > 0) {
            peer_regressed(p);
        }
        return;
    }
    if (p->state == PEER_SNAPSHOT || (p->state == PEER_PROBE && m->index != p->next - 1)) {
        return;  // Answers something older.
    }
    uint64_t next = raft_log_below_term(r, m->hint_index, m->hint_term) + 1;
    if (m->hint_index < r->snapshot_index) {
        next = m->hint_index + 1;
    }
    p->next = max_u64(p->match + 1, min_u64(next, m->index));
    p->state = PEER_PROBE;
    p->is_paused = p->is_loaded = false;
    p->commit_told = 0;
}

static void reply_accepted(struct replica *r, struct peer *p, const struct consensus_msg *m)
{
    p->match = max_u64(p->match, m->acked);
    p->commit_known = max_u64(p->commit_known, min_u64(m->commit, r->commit));
    bool has_snapshot = p->match >= r->snapshot_index;
    if (p->state == PEER_PROBE || (p->state == PEER_SNAPSHOT && has_snapshot)) {
        if (p->state == PEER_SNAPSHOT || p->is_paused) {
            p->state = PEER_REPLICATE;
            p->is_paused = p->is_loaded = false;
            p->next = max_u64(p->match, min_u64(m->index, r->last)) + 1;
        }
    }
    p->next = max_u64(p->next, p->match + 1);
}

void raft_append_reply(struct replica *r, const struct consensus_msg *m, struct consensus_out *out)
{
    if (m->term > r->hard.term) {
        raft_become_follower(r, m->term, 0, out);
        return;
    }
    int at = raft_member_at(r, m->from);
    if (r->role != ROLE_LEADER || m->term != r->hard.term || at < 0) {
        return;
    }
    struct lead *lead = r->lead;
    struct peer *p = raft_peer(r, (uint32_t)at);
    if (p->is_regressed || m->acked > r->last || m->read_round > lead->round) {
        return;
    }
    p->round_acked = max_u64(p->round_acked, m->read_round);
    p->retries = 0;
    if (p->state != PEER_SNAPSHOT) {
        p->retry_at = RAFT_NEVER;
    }
    if (m->is_rejected) {
        reply_rejected(r, p, m);
    } else {
        reply_accepted(r, p, m);
        raft_advance(r);
    }
    if (p->retry_at == RAFT_NEVER) {
        p->retry_at = resend_at(p, lead->now);
    }
}

void raft_snapshot_done(struct replica *r, const struct consensus_msg *m)
{
    int at = raft_member_at(r, m->from);
    if (r->role != ROLE_LEADER || m->term != r->hard.term || at < 0 || m->index > r->commit) {
        return;
    }
    struct peer *p = raft_peer(r, (uint32_t)at);
    if (p->is_regressed) {
        return;
    }
    p->match = max_u64(p->match, m->index);
    if (p->state == PEER_SNAPSHOT) {
        raft_peer_probe(r, (uint32_t)at);
    }
    p->next = max_u64(p->next, p->match + 1);
    raft_advance(r);
}

// ---- time --------------------------------------------------------------------------------------------------------

uint64_t raft_lead_deadline(const struct replica *r)
{
    const struct lead *lead = r->lead;
    uint64_t at = RAFT_NEVER;
    if (raft_reads_ready(r)) {
        return lead->now;  // More answers than one step could carry.
    }
    if (lead->transfer_to != 0) {
        at = lead->transfer_deadline;
    }
    if (lead->marks_count > 0 && lead->mark.index > r->commit && config_voters(r->config) > 1) {
        at = min_u64(at, lead->mark.at + RAFT_STUCK_NS);
    }
    for (uint32_t i = 0; i < lead->peers_count; i++) {
        if (is_unanswered(r, i)) {
            at = min_u64(at, raft_peer(r, i)->retry_at);
        }
    }
    return at;
}

void raft_lead_timeout(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    struct lead *lead = r->lead;
    raft_mark(r, now_ns);
    if (lead->marks_count > 0 && now_ns >= lead->mark.at + RAFT_STUCK_NS && config_voters(r->config) > 1) {
        raft_step_down(r, now_ns, out);
        return;
    }
    if (lead->transfer_to != 0 && now_ns >= lead->transfer_deadline) {
        lead->transfer_to = 0;
    }
    for (uint32_t i = 0; i < lead->peers_count; i++) {
        if (is_unanswered(r, i) && now_ns >= raft_peer(r, i)->retry_at) {
            struct peer *p = raft_peer(r, i);
            uint8_t retries = p->retries;
            raft_peer_probe(r, i);
            p->retries = retries < UINT8_MAX ? (uint8_t)(retries + 1) : retries;
        }
    }
}
