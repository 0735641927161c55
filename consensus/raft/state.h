// SPDX-License-Identifier: Apache-2.0
// The raft engine's state and what its files offer each other. Private to consensus/raft.
//
// Owner thread: the group's worker. Notation: P1..P21 are engine-notes §0.
#pragma once
#include "consensus/raft/raft.h"
#include <assert.h>

enum { RAFT_MARKS = 6, RAFT_READS_MAX = 1024, RAFT_PROMOTE_LAG = 1024 };

#define RAFT_MS UINT64_C(1000000)
#define RAFT_RANK_NS (50 * RAFT_MS)           // Between the first campaigns of two ranks.
#define RAFT_JITTER_NS (3 * RAFT_MS)          // On top of it.
#define RAFT_FAST_RETRY_NS (10 * RAFT_MS)     // First retry: a voter may have heard of the death a moment after us.
#define RAFT_RETRY_MIN_NS (150 * RAFT_MS)     // Later retries: 150..300 ms,
#define RAFT_RETRY_DOUBLINGS 3                // twice that from the fourth on, up to 1.2..2.4 s.
#define RAFT_ELECTION_NS (300 * RAFT_MS)      // One election timeout: transfers end after it.
#define RAFT_STAND_BACK_NS (1000 * RAFT_MS)   // After a voluntary step-down the others go first.
#define RAFT_RESEND_NS (200 * RAFT_MS)        // An unanswered message to a live peer is repeated after this,
#define RAFT_RESEND_DOUBLINGS 4               // doubling up to 16 times this.
#define RAFT_STUCK_NS (5000 * RAFT_MS)        // Age of the oldest proposal at which a leader gives up (decision 7).
#define RAFT_ROUND_NS (1000 * RAFT_MS)        // A learner that reaches in this time where the log ended is level.
#define RAFT_MARK_NS (RAFT_STUCK_NS / RAFT_MARKS)

// hint_index of a refusal by a replica that lost what it had promised: it must not be counted (law 2).
#define RAFT_HINT_AMNESIAC UINT64_MAX
#define RAFT_NEVER UINT64_MAX

enum peer_state {
    PEER_PROBE,      // Where its log agrees is not known: one message at a time.
    PEER_REPLICATE,  // Known: optimistic pipelining; `next` runs ahead of `match`.
    PEER_SNAPSHOT,   // Needs a snapshot: no entries meanwhile.
};

struct mark {
    uint64_t index;
    uint64_t at;
};

struct peer {
    uint64_t match;        // Acknowledged as durable and matched in this term; never falls.
    uint64_t next;         // Next index to send; > match.
    uint64_t commit_told;  // Commit index it can have taken from what was sent since the last probe.
    uint64_t commit_known; // Commit index it confirmed.
    uint64_t round_sent;   // Newest read round sent,
    uint64_t round_acked;  // and confirmed.
    uint64_t probe_round;  // Round of the first message after the link was reset, and
    uint64_t probe_match;  // `match` then: refusing that much on such a message proves amnesia.
    uint64_t retry_at;     // When to repeat if there is no answer; RAFT_NEVER: nothing unanswered.
    struct mark round;     // Learner: where the log ended when it was to be promoted and was not level; index 0: never.
    uint8_t state;         // enum peer_state.
    uint8_t retries;       // In a row.
    bool is_paused;        // PROBE: the message is out, SNAPSHOT: the transfer has begun.
    bool is_loaded;        // PROBE: may carry entries (a new leader's first message).
    bool is_regressed;     // Lost what it acknowledged: gets nothing, counts for nothing.
    bool is_poked;         // Owed one empty append (it asked for a pre-vote although we lead).
    bool is_offered;       // next_send said: a snapshot.
    bool is_outdated;      // The commit index or the round have changed since next_send.
};

struct pending_read {
    uint64_t id;
    uint64_t index;  // Commit index when asked.
    uint64_t round;  // Confirms it; 0: the term's no-op is not committed yet (P13).
};

// What only a leader needs; allocated while it leads.
struct lead {
    uint64_t now;         // Newest time any call told.
    uint64_t term_first;  // Index of this term's no-op.
    uint64_t round;       // Newest read round; numbers only grow within the term (P13).
    uint64_t transfer_to;  // Replica id; 0 none.
    uint64_t transfer_deadline;
    uint64_t retire_last;  // Last target tried after our own removal.
    bool is_round_sent;    // Some message carried `round`: a new read needs a new one.
    bool is_transfer_sent;
    uint32_t marks_count;  // Proposals with the time they were seen, oldest first: how old is the oldest uncommitted?
    struct mark mark;         // The oldest,
    struct mark *more_marks;  // and the others: only while something is not committed long after it was proposed.
    struct pending_read *reads;  // Oldest first; grows to RAFT_READS_MAX.
    uint32_t reads_count;
    uint32_t reads_cap;
    uint32_t peers_count;  // = config->count.
    uint32_t self;         // Our position in the configuration; peers_count: we are not in it.
    struct peer peers[];   // In its order, without us (raft_peer).
};
static_assert(sizeof(struct lead) <= 128, "an idle leader costs one small struct");

// Of one that lost its memory while it led, until it hears of a leader.
enum hand_over {
    HAND_OVER_NONE,
    HAND_OVER_ASK,   // Still in the term it led: asks one voter after another to campaign.
    HAND_OVER_TELL,  // Somebody began a later term: tells one voter after another of it, who may still wait for us.
};

struct replica {
    uint64_t group;
    uint64_t id;
    struct hard_state hard;       // Decides at once (volatile),
    struct hard_state persisted;  // speaks only when on disk (engine-notes §1.2).
    uint64_t leader;              // Of hard.term; 0 unknown.
    uint64_t last;                // Log: snapshot_index + 1 .. last.
    uint64_t durable;             // <= last.
    uint64_t commit;              // <= last; never falls.
    uint64_t applied;             // <= commit.
    uint64_t snapshot_index;      // <= applied.
    uint64_t snapshot_term;
    uint64_t log_epoch;           // Raised by each truncation (P1).
    uint64_t matched;             // Follower: equal to the log of this term's leader up to here (P21); >= commit.
    uint64_t acked;               // Follower: last acknowledged in this term.
    uint64_t round_seen;          // Follower: newest read round of this term.
    uint64_t deadline;            // Not leader: when to campaign.
    uint64_t random;              // State of the jitter.
    struct term_run *runs;        // Terms of the log, ascending by index and term; NULL while there is none.
    struct config *config;         // In force, cut behind its last member.
    struct config *config_before;  // Until `config` is committed; else NULL.
    struct lead *lead;             // Leader only.
    uint32_t runs_count;           // In room for the next power of two.
    uint32_t node_id;
    uint32_t fsm_version;
    uint16_t dead_mask;     // Members whose node is not alive, by position in `config`.
    uint16_t granted_mask;  // Candidate: who voted for us.
    uint8_t role;           // enum consensus_role.
    uint8_t campaigns;      // Since a leader was last known.
    bool is_amnesiac;
    bool is_installing;     // A snapshot is being received.
    bool is_suspected;      // Leader's node was not alive since its last message, or has it no more, or it leads no more.
    uint8_t hand_over;      // enum hand_over.
    uint8_t founders;       // Members there is room for in first_config.
    uint64_t first_config[];  // struct config, cut: the one it began with. Unused after a change of members.
};
static_assert(sizeof(struct replica) <= 208, "an idle group costs one small struct");
static_assert(LIMIT_MEMBERS <= 16, "members are kept in 16-bit masks");

// ---- raft.c: before and after each step --------------------------------------------------------------------------

struct step_start {
    uint64_t term, leader, commit;
    uint8_t role;
};
struct step_start raft_begin(const struct replica *r, struct consensus_out *out);
void raft_end(struct replica *r, const struct step_start *was, uint64_t now_ns, struct consensus_out *out);
struct consensus_msg *raft_message(const struct replica *r, struct consensus_out *out, enum consensus_msg_type type,
                                   uint64_t to);
uint64_t raft_random(struct replica *r, uint64_t below);
// Position of a replica in the configuration, or -1.
int raft_member_at(const struct replica *r, uint64_t replica_id);
bool raft_node_is_alive(const struct replica *r, uint32_t member);
static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

// ---- log.c: terms of the log -------------------------------------------------------------------------------------

void raft_log_init(struct replica *r, const struct replica_start *start);
void raft_log_free(struct replica *r);
uint64_t raft_term_at(const struct replica *r, uint64_t index);
// Appends `count` entries of `term` at last + 1.
void raft_log_extend(struct replica *r, uint64_t count, uint64_t term);
// Drops entries >= from: raises the epoch, rolls the configuration back.
void raft_log_truncate(struct replica *r, uint64_t from);
// The log now starts behind `index`; entries above it stay.
void raft_log_cut(struct replica *r, uint64_t index, uint64_t term);
// The log is now exactly what ends at the snapshot.
void raft_log_reset(struct replica *r, uint64_t index, uint64_t term);
// Largest index <= `index` whose term is <= `term`; at least the snapshot's.
uint64_t raft_log_below_term(const struct replica *r, uint64_t index, uint64_t term);

// ---- election.c --------------------------------------------------------------------------------------------------

bool raft_leader_is_live(const struct replica *r);
bool raft_quorum_is_alive(const struct replica *r);
bool raft_may_campaign(const struct replica *r);
// Starts the wait for an own campaign by rank, if none is running and one is wanted.
void raft_arm(struct replica *r, uint64_t now_ns);
void raft_arm_retry(struct replica *r, uint64_t now_ns);
void raft_become_follower(struct replica *r, uint64_t term, uint64_t leader, struct consensus_out *out);
void raft_campaign(struct replica *r, bool is_transfer, uint64_t now_ns, struct consensus_out *out);
void raft_prevote(struct replica *r, const struct consensus_msg *m, struct consensus_out *out);
void raft_prevote_reply(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out);
void raft_vote(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out);
void raft_vote_reply(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out);
void raft_own_vote(struct replica *r, uint64_t now_ns, struct consensus_out *out);  // Counts it once it is durable.
void raft_check_votes(struct replica *r, uint64_t now_ns, struct consensus_out *out);
void raft_election_timeout(struct replica *r, uint64_t now_ns, struct consensus_out *out);
void raft_election_alive(struct replica *r, uint32_t node_id, bool is_alive, uint64_t now_ns);

// ---- follow.c ----------------------------------------------------------------------------------------------------

void raft_append(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out);
// Acknowledges to the known leader.
void raft_acknowledge(struct replica *r, struct consensus_out *out);

// ---- lead.c ------------------------------------------------------------------------------------------------------

void raft_become_leader(struct replica *r, uint64_t now_ns, struct consensus_out *out);
void raft_lead_free(struct replica *r);
// For the configuration `c`. The caller sets what it knows of the peers.
struct lead *raft_lead_alloc(const struct replica *r, const struct config *c);
static inline size_t raft_lead_size(const struct lead *lead)
{
    const uint32_t others = lead->peers_count - (lead->self < lead->peers_count);
    return sizeof(struct lead) + others * sizeof(struct peer);
}
// The peer that is member `i` of the configuration; never ourselves.
static inline struct peer *raft_peer(const struct replica *r, uint32_t i)
{
    struct lead *lead = r->lead;
    assert(i < lead->peers_count);
    assert(i != lead->self);
    return &lead->peers[i - (i > lead->self)];
}
void raft_append_reply(struct replica *r, const struct consensus_msg *m, struct consensus_out *out);
void raft_snapshot_done(struct replica *r, const struct consensus_msg *m);
void raft_advance(struct replica *r);
void raft_next_round(struct lead *lead);
bool raft_peer_wants(const struct replica *r, uint32_t i);
void raft_peer_probe(struct replica *r, uint32_t i);
void raft_next_send(struct replica *r, uint32_t i, struct consensus_send *out);
void raft_sent(struct replica *r, uint32_t i, uint64_t last_index_sent, uint64_t now_ns);
uint64_t raft_lead_deadline(const struct replica *r);
void raft_lead_timeout(struct replica *r, uint64_t now_ns, struct consensus_out *out);
void raft_mark(struct replica *r, uint64_t now_ns);

// ---- member.c ----------------------------------------------------------------------------------------------------

// Puts `c` in force. The one in force before is kept for a roll-back unless it never can be wanted.
void raft_config_set(struct replica *r, const struct config *c);
void raft_config_roll_back(struct replica *r);
void raft_config_settle(struct replica *r);  // Frees what can no longer be rolled back to.
enum rc raft_change_members(struct replica *r, const struct member_change *c, uint64_t now_ns, struct consensus_out *out);
struct config *raft_config_dup(const struct config *c);
void raft_config_free(struct replica *r, struct config *c);
static inline size_t raft_config_size(uint32_t members)
{
    return offsetof(struct config, members) + members * sizeof(struct member);
}

// ---- transfer.c: hand-over of the lead, and read barriers ----------------------------------------------------------

enum rc raft_transfer(struct replica *r, uint64_t replica_id, uint64_t now_ns);
void raft_transfer_step(struct replica *r, struct consensus_out *out);  // Sends TIMEOUT_NOW once the target is level.
void raft_step_down(struct replica *r, uint64_t now_ns, struct consensus_out *out);
void raft_hand_over(struct replica *r, uint64_t now_ns, struct consensus_out *out);  // Speaks to the next one.
int raft_best_successor(const struct replica *r, uint64_t except);
enum rc raft_read_barrier(struct replica *r, uint64_t id);
void raft_reads_step(struct replica *r, struct consensus_out *out);
bool raft_reads_ready(const struct replica *r);
