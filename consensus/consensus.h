// SPDX-License-Identifier: Apache-2.0
// Pluggable consensus: what an engine is, what a state machine is, and the plain values both speak in.
//
// An engine is a pure step function per replica of a group: it takes one input, changes its own state and fills
// a `consensus_out`. It does no I/O, never allocates on the data path, never calls out, reads no clock; it never
// sees payloads, only indexes and terms. The host (consensus/host) executes what `out` says: it writes to the
// log, sends messages and applies entries. Engines: raft (raft/), solo (solo/), later follow. Traits tell the
// conformance suite (tests/unit/consensus/test_conformance.c) what to expect (decision 13).
//
// Thread: a group belongs to one worker; everything here is called on that thread.
#pragma once
#include "node/base/buf.h"
#include "node/base/env.h"
#include "node/base/limits.h"
#include "node/base/rc.h"
#include "node/base/span.h"

// ---- members ---------------------------------------------------------------------------------------------------

struct member {
    uint64_t replica_id;  // Names this replica for ever; never reused (P19).
    uint32_t node_id;     // Where it lives.
    bool is_voter;        // Else a learner: gets the log, may vote if asked (engine-notes §1.3), does not count.
};

struct config {
    uint64_t index;  // Entry that brought it in; 0 for the initial one.
    uint32_t count;  // 1..LIMIT_MEMBERS.
    struct member members[LIMIT_MEMBERS];
};

// Payload of a RECORD_CONFIG entry and of the member table elsewhere. Version 1:
// u8 version, u8 count, count x {u64 replica, u32 node, u8 is_voter}. (A second voter set has its place behind it.)
void config_encode(const struct config *c, struct buf *to);
// `index` is left 0. RC_MALFORMED; RC_UNSUPPORTED: a later version's.
MUST_USE enum rc config_decode(struct span bytes, struct config *out);
const struct member *config_find(const struct config *c, uint64_t replica_id);  // NULL if absent.
const struct member *config_find_node(const struct config *c, uint32_t node_id);
uint32_t config_voters(const struct config *c);
// Copies `index` and the `count` members. Engines keep a configuration only as long as its members, so one
// borrowed from a status is copied with this, never by assignment of the struct.
static inline void config_copy(struct config *to, const struct config *from)
{
    to->index = from->index;
    to->count = from->count;
    memcpy(to->members, from->members, from->count * sizeof(from->members[0]));
}

enum member_change_kind { MEMBER_ADD_LEARNER, MEMBER_PROMOTE, MEMBER_REMOVE };
struct member_change {
    enum member_change_kind kind;
    struct member member;  // PROMOTE and REMOVE look at replica_id only.
};

// ---- messages between replicas ---------------------------------------------------------------------------------

enum consensus_msg_type {
    MSG_PREVOTE = 1,   // term = the term the candidate would take (its own + 1); changes nothing at the voter (P4).
    MSG_PREVOTE_REPLY,  // term = voter's own term.
    MSG_VOTE,
    MSG_VOTE_REPLY,
    MSG_APPEND,        // Also without entries: heartbeat, probe, commit announcement, read round.
    MSG_APPEND_REPLY,
    MSG_TIMEOUT_NOW,   // Leadership transfer.
    MSG_SNAPSHOT_DONE,  // From a follower: snapshot `index` is installed and durable.
};

enum { CONSENSUS_TERM_RUNS = 8 };  // A batch with more changes of term is cut there.
struct term_run {
    uint64_t first;  // First index of the run.
    uint64_t term;
};

struct consensus_msg {
    enum consensus_msg_type type;
    uint64_t group;
    uint64_t from;  // Replica ids.
    uint64_t to;
    uint64_t term;        // Sender's term (PREVOTE: would-be term).
    uint64_t index;       // VOTE/PREVOTE: last index. APPEND: previous index. APPEND_REPLY: see acked. DONE:
                          // snapshot's.
    uint64_t index_term;  // Term of `index`.
    uint64_t commit;      // APPEND: leader's commit index.
    uint64_t acked;       // APPEND_REPLY: min(durable, matched in this term) (P21); `index` = matched,
                          // durable or not, or the refused previous index; `commit` = the follower's.
    uint64_t hint_index;  // APPEND_REPLY rejected: where the logs may agree,
    uint64_t hint_term;   // and the follower's term there (engine-notes §1.6).
    uint64_t read_round;  // APPEND carries the newest round; the reply echoes it (P13). 0 none.
    uint32_t count;       // APPEND: entries that follow, from index + 1.
    uint32_t fsm_version;  // VOTE/PREVOTE: highest state machine version the candidate can run.
    uint8_t runs_count;    // APPEND: terms of the entries.
    bool is_rejected;      // Replies.
    bool is_transfer;      // VOTE: overrides the sticky leader.
    struct term_run runs[CONSENSUS_TERM_RUNS];
};

// ---- output of a step ------------------------------------------------------------------------------------------

enum consensus_role { ROLE_FOLLOWER, ROLE_PRE_CANDIDATE, ROLE_CANDIDATE, ROLE_LEADER };

enum msg_gate {
    GATE_NOW,        // May leave at once.
    GATE_AFTER_WAL,  // Leaves once everything this group has handed to the WAL up to now is durable (P3).
};

struct hard_state {
    uint64_t term;
    uint64_t vote;  // Replica id; 0 none.
};

enum { CONSENSUS_OUT_MSGS = LIMIT_MEMBERS, CONSENSUS_OUT_READS = 16 };

struct consensus_out {
    // To be written, in this order, before anything gated leaves.
    bool has_hard_state;
    struct hard_state hard_state;
    uint64_t truncate_from;  // 0 none; else drop entries >= it (the log epoch has been raised).
    uint64_t accept_from;    // Follower: append entries accept_from..accept_to of the input message;
    uint64_t accept_to;      // accept_from = 0: none.
    bool has_noop;           // Leader: append a RECORD_NOOP at append_index/append_term.
    bool has_config;         // Leader: append a RECORD_CONFIG with `config` at append_index/append_term.
    uint64_t append_index;
    uint64_t append_term;
    struct config config;

    uint32_t msgs_count;
    struct {
        struct consensus_msg msg;
        enum msg_gate gate;
    } msgs[CONSENSUS_OUT_MSGS];

    bool role_changed;    // Role, term or known leader differ from before the step.
    bool commit_changed;  // status.commit has risen.
    bool wants_send;      // A peer may be sent something: ask next_send.
    uint32_t reads_count;  // Read barriers now satisfied: apply up to read.index, then answer.
    struct {
        uint64_t id;
        uint64_t index;
    } reads[CONSENSUS_OUT_READS];
    bool reads_failed;  // All outstanding barriers failed (no longer leader).
};
static inline void consensus_out_reset(struct consensus_out *o)
{
    // Only what is read without a guard; the arrays stay as they are.
    o->has_hard_state = o->has_noop = o->has_config = false;
    o->truncate_from = o->accept_from = o->accept_to = o->append_index = o->append_term = 0;
    o->msgs_count = o->reads_count = 0;
    o->role_changed = o->commit_changed = o->wants_send = o->reads_failed = false;
}

// What the leader may send to one peer next (pull: the host asks when it has room).
enum send_kind { SEND_NOTHING, SEND_APPEND, SEND_SNAPSHOT };
struct consensus_send {
    enum send_kind kind;
    const struct member *to;
    struct consensus_msg msg;  // APPEND: complete but for count and runs, which the host fills: entries from
                               // msg.index + 1 as many as fit, up to last. SNAPSHOT: the peer needs one.
    uint64_t last;             // Highest index that may be sent now (0 entries allowed: a probe or commit news).
    bool may_wait;             // Nothing but a commit index the peer has not heard of: may be put off (<= 5 ms) until
                               // entries carry it.
};

struct consensus_status {
    enum consensus_role role;
    uint64_t term;
    uint64_t leader;     // Replica id; 0 unknown.
    uint32_t leader_node;  // 0 unknown.
    uint64_t first;      // First index of the dense log (snapshot index + 1).
    uint64_t last;
    uint64_t durable;    // Own disk.
    uint64_t commit;
    uint64_t applied;
    uint64_t snapshot;
    uint64_t log_epoch;
    bool is_ready;       // Leader whose term's no-op is committed and applied: may change members, serve reads.
    const struct config *config;  // In force (effective when appended, P9). Borrowed from the replica until
                                  // its next step; only members[0..count-1] exist: config_copy to keep it.
    bool is_amnesiac;    // This replica lost what it had promised: it takes part in nothing and is to be
                         // replaced (law 2).
    uint32_t regressed_at;  // `regressed` by position in `config`: bit i.
    uint32_t regressed;  // Leader: peers found to have lost what they acknowledged; they count for nothing (law 2).
    uint32_t level_at;   // Leader: bit i: position i of `config` holds what is committed, or was sent all there is. A transfer
                         // to another stops proposals until it has caught up, for which there may be no time.
};

// ---- the engine ------------------------------------------------------------------------------------------------

struct engine_traits {
    bool elects_itself;      // Else epochs are granted from outside.
    bool commit_is_synced;   // Commit means fsynced on a majority.
    bool unit_is_chunk;      // Else an entry.
};

// State recovered from the log, to start a replica with.
struct replica_start {
    uint64_t group;
    uint64_t replica_id;
    uint32_t node_id;
    struct hard_state hard_state;
    uint64_t snapshot_index, snapshot_term;  // 0, 0 without one.
    uint64_t last;                           // Last index; = snapshot_index if the log is empty behind it. All durable.
    uint64_t commit;                         // Known committed (>= snapshot_index); 0 is always right.
    const struct term_run *runs;             // Terms of snapshot_index + 1 .. last, ascending.
    uint32_t runs_count;
    struct config config;                    // In force: newest in log or snapshot, else the initial one.
    struct config config_before;             // The one before it, to roll back to; count = 0 if none.
    bool is_amnesiac;                        // Lost what it had promised: must not vote nor acknowledge (law 2).
    uint32_t fsm_version;                    // Highest version this node can run.
    uint64_t rng_seed;
    uint64_t now_ns;
    bool campaign_at_once;                   // First member of a brand-new group.
};

struct replica;  // Opaque; each engine has its own struct behind it.

struct consensus_ops {
    const char *name;
    struct engine_traits traits;

    struct replica *(*create)(const struct replica_start *start);
    void (*destroy)(struct replica *r);

    // Leader: takes `count` entries; they get indexes *first_out.. and *term_out. RC_NOT_LEADER; RC_BUSY
    // during a transfer.
    enum rc (*propose)(struct replica *r, uint32_t count, uint64_t *first_out, uint64_t *term_out,
                       struct consensus_out *out);
    // A message from another replica. The caller has checked that the message's payload is whole.
    void (*step)(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out);
    // A config entry among accepted or recovered ones, told right after it was appended.
    void (*config_appended)(struct replica *r, const struct config *c);
    // Entries up to `index`, written under `epoch`, are on this node's disk. A stale epoch is ignored (P1).
    void (*durable)(struct replica *r, uint64_t epoch, uint64_t index, uint64_t now_ns, struct consensus_out *out);
    // This hard state is on disk: own vote counts from now on.
    void (*hard_state_durable)(struct replica *r, struct hard_state hs, uint64_t now_ns, struct consensus_out *out);
    // The state machine has applied up to `index`.
    void (*applied)(struct replica *r, uint64_t index, uint64_t now_ns, struct consensus_out *out);
    // deadline() is due. UINT64_MAX: no timer is wanted.
    uint64_t (*deadline)(const struct replica *r);
    void (*timeout)(struct replica *r, uint64_t now_ns, struct consensus_out *out);
    // Liveness of a node changed (hint, decision 7). `rank_delay_ns` is drawn by the engine itself. Until
    // told otherwise a replica takes every node for alive: after create, tell it of those that are not.
    void (*node_alive)(struct replica *r, uint32_t node_id, bool is_alive, uint64_t now_ns, struct consensus_out *out);
    // The link to a node was reset: what was in flight may be lost.
    void (*link_reset)(struct replica *r, uint32_t node_id, uint64_t now_ns, struct consensus_out *out);
    // The node of `replica_id` said that it has no such replica (any more, or not yet). May be NULL.
    void (*replica_unknown)(struct replica *r, uint64_t replica_id, uint64_t now_ns, struct consensus_out *out);
    // Leader: the snapshot transfer to `replica_id` ended (ok: it said that all up to `index` is
    // installed). Follower, with its own id and !is_ok: the installation told by snapshot_started was given up.
    void (*snapshot_ended)(struct replica *r, uint64_t replica_id, bool is_ok, uint64_t index, uint64_t now_ns,
                           struct consensus_out *out);

    // Leader: next thing for peer number `i` of the config (0..count-1). After sending call sent(). For a
    // snapshot: sent() when the transfer has begun, snapshot_ended() in any case when it is over. Between next_send() and
    // sent() steps may lie, answers among them, as long as it leads in that term (a large entry goes in pieces).
    void (*next_send)(struct replica *r, uint32_t i, struct consensus_send *out);
    void (*sent)(struct replica *r, uint32_t i, uint64_t last_index_sent, uint64_t now_ns);

    enum rc (*read_barrier)(struct replica *r, uint64_t id, uint64_t now_ns, struct consensus_out *out);
    enum rc (*transfer)(struct replica *r, uint64_t replica_id, uint64_t now_ns, struct consensus_out *out);
    enum rc (*change_members)(struct replica *r, const struct member_change *c, uint64_t now_ns,
                              struct consensus_out *out);
    // Follower: a snapshot from the leader is being received: no candidacy, no new entries until it is
    // installed or given up.
    void (*snapshot_started)(struct replica *r, uint64_t now_ns);
    // A new local snapshot: the log before it may go. / A snapshot from the leader replaced everything.
    // Never for a log that holds the entry (term_at(index) == term): behind it may be entries this replica
    // acknowledged.
    // Such a snapshot is not taken; once durable >= index it is answered as installed.
    void (*snapshot_taken)(struct replica *r, uint64_t index, uint64_t term);
    void (*snapshot_installed)(struct replica *r, uint64_t index, uint64_t term, const struct config *c,
                               uint64_t now_ns, struct consensus_out *out);
    // For engines whose leader is chosen outside; else NULL.
    void (*epoch_granted)(struct replica *r, uint64_t epoch, uint64_t leader, const struct config *c, uint64_t now_ns,
                          struct consensus_out *out);
    // Leave the lead if we have it, and do not campaign until asked or timed out (stalled disk, drain).
    void (*step_down)(struct replica *r, uint64_t now_ns, struct consensus_out *out);

    void (*status)(const struct replica *r, struct consensus_status *out);
    uint64_t (*term_at)(const struct replica *r, uint64_t index);  // 0 if unknown (compacted or beyond the end).
    void (*check)(const struct replica *r);                        // Asserts the full invariant.
    // Damage was found in what this replica has on disk: from now on it is what `is_amnesiac` makes of it at
    // a start. A leader asks a successor to take over.
    void (*lost_memory)(struct replica *r, uint64_t now_ns, struct consensus_out *out);
};

// The registry. NULL if there is no engine of this name.
const struct consensus_ops *consensus_engine(const char *name);

// ---- the state machine -----------------------------------------------------------------------------------------

struct entry {
    uint64_t group;
    uint64_t index;
    uint64_t term;
    uint16_t kind;        // RECORD_ENTRY, RECORD_CONFIG or RECORD_NOOP.
    uint16_t flags;
    uint32_t aux;
    struct span payload;  // Borrowed for the call.
};

// Entries below a snapshot that the state still refers to, as ascending closed ranges.
struct live_range {
    uint64_t first;
    uint64_t last;
};

struct fsm_snapshot;  // A frozen state; the state machine's own struct.

// Total and deterministic (law 5): apply cannot fail, reads no clock, no log, no projection. `ctx` is the machine.
struct fsm_ops {
    uint32_t version;
    // Committed entries in order, each exactly once per start (again after a restart, from the snapshot on). Returns
    // how many were applied now. Fewer than n: the rest is applied later and told by host_group_applied
    // (a machine on another thread copies what it keeps).
    uint32_t (*apply)(void *ctx, const struct entry *entries, uint32_t n);
    // Role, term or leader of the own group changed. Not part of the replicated state: only for effects.
    void (*role)(void *ctx, const struct consensus_status *status);
    // Freezes the state as of the last applied entry. Cheap (worker thread). NULL: not possible now, ask again later.
    struct fsm_snapshot *(*snapshot_begin)(void *ctx);
    // Encodes the next chunk (<= LIMIT_SNAPSHOT_CHUNK_BYTES) behind `to`; true while there is more. Cold thread.
    bool (*snapshot_chunk)(struct fsm_snapshot *s, struct buf *to);
    // Ascending live ranges of the frozen state, appended to `out` as struct live_range. Worker thread.
    void (*snapshot_live)(struct fsm_snapshot *s, struct buf *out);
    void (*snapshot_end)(struct fsm_snapshot *s);  // Worker thread.
    // Replaces the state. Chunks come in order; after restore_end the state is that of (index).
    void (*restore_begin)(void *ctx);
    enum rc (*restore_chunk)(void *ctx, struct span chunk);
    enum rc (*restore_end)(void *ctx, uint64_t index);
    // Estimated bytes of a snapshot now (decides when one is worth it).
    uint64_t (*size_estimate)(void *ctx);
    // How many entries the state refers to now: the size of the live set, or an upper bound. NULL: not known;
    // then only the log's growth decides when a snapshot is worth it.
    uint64_t (*live_count)(void *ctx);
};
