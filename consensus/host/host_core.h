// SPDX-License-Identifier: Apache-2.0
// What the files of consensus/host share: struct host, group and peer, and the calls between the files. Not included
// from outside. Thread: the worker's.
#pragma once
#include "consensus/host/host.h"
#include "node/base/block.h"
#include "node/base/list.h"
#include "node/base/log.h"
#include "node/base/map.h"
#include "proto/cluster_log.pb-c.h"
#include "proto/pb_arena.h"

enum {
    HOST_FRAME_IOV = 512,             // Ranges of one append frame.
    HOST_APPEND_COST = 64,            // What an append without entries counts for in the window.
    HOST_FRAME_ENVELOPE = 128 << 10,  // An append envelope is sent when it gets this long.
    HOST_APPLY_BATCH = 64,            // Entries passed to the state machine at once,
    HOST_APPLY_TURN = 1024,           // and to one group before the others have their turn.
    HOST_APPLY_AHEAD = 4096,          // Entries a machine on another thread may have that it has not applied.
    HOST_COLD_ENTRIES = 512,          // Entries of one cold read.
    HOST_COLD_BYTES = 1 << 20,
    HOST_FRAGMENTS = 4,               // Fragments to one peer without echo: small frames pass in between.
    HOST_WALK_BATCH = 256,            // Groups told of a node's liveness per turn (P15).
    HOST_TIMER_BATCH = 512,           // Deadlines that had come, per turn: a storm must not keep the loop
                                      // from its sockets.
    HOST_READY_BATCH = 2048,          // Ready groups run per turn, for the same reason.
    HOST_CAMPAIGNS_MAX = 2048,        // Groups that ask for votes at a time; the others wait for them,
    HOST_CAMPAIGN_TRIES = 3,          // each until it has asked so often in vain,
    HOST_WORK_POOL = 1024,            // Free group_works kept.
    HOST_HANDLERS = 16,
    HOST_FEED_SLOTS = 64,             // Bits of group.feeding; with more peers several share one.
    HOST_SNAPSHOT_PIECE = 512 << 10,
    HOST_SNAPSHOT_SENDS = 8,          // Transfers at a time; the others wait for the next retry.
    HOST_SNAPSHOT_MIN_BYTES = 16 << 20,
    HOST_HOLD_BYTES = 32 << 20,       // For a transfer the log may grow by this and twice what the group has in segments.
    HOST_FEEDS_MAX = LIMIT_PEER_IN_FLIGHT_BYTES / LIMIT_FRAME_BYTES,  // Cold reads for one peer at a time.
    // Dead bytes in segments that are worth a snapshot: this much in a group, less in each if many groups have some.
    HOST_DEAD_BYTES = 2 << 20,
    HOST_DEAD_ALL_BYTES = 32 << 20,
    HOST_DEAD_MIN_BYTES = 64 << 10,
    // A machine sleeps as long as so much lies behind its snapshot at most: what a group that is awake may leave lying, too.
    HOST_ASLEEP_ENTRIES = 256,
    HOST_ASLEEP_BYTES = HOST_DEAD_MIN_BYTES,
    HOST_RESTORES_MAX = 32,           // Machines woken at a time: the cold thread has other readers.
};
#define HOST_CAMPAIGN_NS 20000ull              // this long for each that waits already.
#define HOST_NEWS_NS (5 * 1000000ull)          // A commit that no append carried is announced after this.
#define HOST_RETRY_NS (250 * 1000000ull)       // After "unknown group", and for snapshots that could not start.
#define HOST_RETRY_STEP_NS 20000ull            // Between two of them.
#define HOST_IDLE_NS (10000 * 1000000ull)       // A worker that has written nothing for so long is idle.
#define HOST_PIECE_NS (2000 * 1000000ull)      // A snapshot piece without answer is sent again.
#define HOST_RECEIVE_NS (15000 * 1000000ull)   // A receiver that hears nothing more gives up.
#define HOST_TRANSFER_NS (60000 * 1000000ull)  // A transfer without any progress is given up.

// A message waiting for the WAL.
struct gated {
    struct gated *next;
    uint32_t node;
    struct consensus_msg msg;
};

enum note_kind { NOTE_GROUP, NOTE_RECEIPT };

// What a WAL submission stands for; comes back with it.
struct note {
    struct store_note base;
    enum note_kind kind;
    struct group *group;  // NOTE_GROUP; holds a reference.
    uint64_t epoch;       // Log epoch and last index when it was handed over (P1).
    uint64_t last;
    bool has_hard_state;
    struct hard_state hard_state;
    struct gated *gated;  // In order.
    struct peer *peer;    // NOTE_RECEIPT: bytes received from this worker of it up to here are dealt with.
    uint64_t received;
    uint32_t worker;
};

// A group that could send to a peer had it room.
struct blocked {
    struct list link;  // In peer.blocked.
    struct group *group;
    struct peer *peer;
    struct blocked *next;  // Of the group.
    uint64_t large;        // Index of an entry that goes in pieces: not sent, nor read for it, before it is its turn.
};

enum group_flag {
    GROUP_APPLY = 1,      // Committed entries may be applied.
    GROUP_SEND = 2,       // Ask next_send.
    GROUP_NEWS = 4,       // Announcements may not wait any longer.
    GROUP_ROLE = 8,       // Tell the state machine of the role.
    GROUP_LOADING = 16,   // The snapshot is being loaded into the state machine: nothing is applied.
    GROUP_INSTALLING = 32,  // A snapshot is replacing the log: nothing but that goes on.
    GROUP_COLD = 64,      // A cold read for applying is under way.
    GROUP_CAMPAIGNS = 16384,  // Counted in host.campaigns.
    GROUP_REMOVED = 128,  // Only waits for its references.
    GROUP_FAILED = 256,   // State could not be restored: it takes part no more.
    GROUP_WROTE_HARD_STATE = 512,
    GROUP_WROTE = 1024,   // Something was laid down since the last flush.
    GROUP_RECEIVING = 2048,  // A snapshot is coming in.
    GROUP_EAGER = 8192,    // What was committed is told at once.
    GROUP_LOST = 4096,     // Damage was found in its log or snapshot: nothing is applied any more (law 2).
    GROUP_ASLEEP = 32768,  // Its machine was not restored since the start: nothing is applied (host_sleep.c).
};

// What a group needs only while something of it is under way. Made by group_work, given back by group_rest.
struct group_work {
    struct group *group;
    struct list dirty;        // host.dirty: wants a note in the next submission.
    struct list news;         // host.news, by news_due.
    struct list reads;        // struct read: outstanding barriers.
    struct list wake;         // host.wakes or host.wakes_asked: it is asleep, and to be woken.
    struct blocked *blocked;
    uint64_t uncommitted;     // Bytes proposed here and not applied yet,
    uint64_t proposed_first;  // from this index on. UINT64_MAX: none.
    uint64_t news_due;
    uint64_t feeding;         // Peers (by slot) for which a cold read is under way.
    struct config *config_applied;  // Only while the newest config entry is not applied: the one before it.
    struct gated *gated_first, *gated_last;
    struct hard_state hard_state;  // To be noted (GROUP_WROTE_HARD_STATE).
    uint32_t notes;           // Notes on their way.
    bool is_asked;            // In host.wakes_asked.
    uint32_t ack_slot;        // Place of its latest ack in peer.acks, to join several.
};

struct group {
    uint64_t id;  // First: the key in host.map.
    uint64_t replica_id;
    struct host *host;
    const struct consensus_ops *ops;
    struct replica *replica;
    struct glog *log;
    const struct fsm_ops *fsm;
    void *fsm_ctx;

    struct list all;        // host.groups, in order of adding.
    struct list ready;      // host.ready.
    struct list by_leader;  // peer.by_leader of the leader's node (host.no_leader without one).

    struct group_work *work;  // NULL while it rests.
    uint64_t handed;          // Entries up to here were given to the state machine.
    uint64_t deadline;        // UINT64_MAX: none. Its entry in the timer heap may be earlier, or still there.
    uint32_t heap_pos;        // HOST_TIMER_NONE: not in the timer heap.
    uint32_t leader_node;     // Whose by_leader list it is on.
    uint32_t refs;            // Notes and jobs that point here.
    uint16_t flags;
    uint8_t tries;            // Campaigns that came to nothing since it last followed or led; stays at its maximum.
};
static_assert(sizeof(struct group) <= 152, "an idle group is one small struct (engine-notes 7.9)");

struct ack {
    uint64_t group, from, to, term, index, index_term, acked, hint_index, hint_term, read_round, commit;
    bool is_rejected;
};

// An entry too large for one frame, on its way to one peer.
struct fragment_send {
    struct group *group;  // NULL: none. Holds a reference.
    struct consensus_msg msg;
    uint64_t offset, total;
    struct block *block;  // Holds the record (a large one, or one that came from disk); NULL: looked up in
                          // memory each time.
    const uint8_t *ptr;   // The record in it.
    uint64_t marks[HOST_FRAGMENTS];  // peer.sent after the latest fragments (ring).
    uint64_t count;       // Fragments of it sent.
    bool is_reading;
};
struct fragment_receive {
    uint64_t group, from, term, index;  // group 0: none.
    struct buf bytes;
    uint32_t sum;                       // CRC32C of bytes.
};

// What one worker of a peer sends us.
struct inflow {
    uint64_t received, received_noted, receipt;  // AppendBatch.sent to echo.
    bool owes_receipt;                           // `receipt` is to be sent.
    struct fragment_receive assembly;
};

enum walk_kind { WALK_NONE, WALK_DOWN, WALK_UP, WALK_RESET };

struct peer {
    uint32_t node;
    uint32_t slot;     // Bit of group.feeding; peers may share one, then they are fed by turns.
    struct list link;  // host.peers, in that order.
    enum node_verdict verdict;
    bool is_known;     // A verdict was given.
    uint64_t incarnation;

    // Append frame under construction.
    struct buf append;
    struct iovec iov[HOST_FRAME_IOV];
    int iov_count;
    size_t raw_bytes;
    // The window: bytes sent, and echoed by the peer.
    uint64_t sent, echoed;
    bool is_woken;         // There is room again.
    uint32_t feeds;        // Cold reads for it that are under way: at most HOST_FEEDS_MAX.
    struct list blocked;   // struct blocked.
    uint32_t large_count;  // Those of them that wait for their turn to send an entry in pieces.
    uint64_t large_group;  // Whose turn it was last.
    struct fragment_send fragment;

    struct inflow inflow[FRAME_WORKERS_MAX];  // By its worker.
    uint32_t inflow_count;                    // Used ones; the rest has heard nothing.

    struct buf votes;      // VoteBatch under construction.
    struct ack *acks;
    uint32_t acks_count, acks_cap;

    // Liveness (host_liveness.c).
    struct list by_leader;  // Groups led from there.
    enum walk_kind walk;
    bool walk_down, walk_up, walk_reset;  // To do next.
    bool walk_all;            // Second part: all groups, from `marker` on.
    struct list walk_led;     // First part: groups led from there.
    struct list marker;       // In host.groups.
};

struct read {
    struct list link;  // group.reads, then host.reads_done.
    struct group *group;  // Held, once in host.reads_done: it may be removed before the answer.
    uint64_t id;
    uint64_t deadline;
    uint64_t index;  // 0: not proven yet. Else answered when this is applied.
    enum rc rc;
    group_read_fn *done;
    void *ctx;
};

struct retry {
    struct list link;  // host.retries, by due; and in host.retry_map.
    uint64_t due;
    uint64_t group;
    uint32_t node;
    uint64_t replica;
    bool is_snapshot;
};

struct garbage {
    struct garbage *next;
    void *ptr;            // Or NULL, and
    struct block *block;
};

struct handler {
    uint16_t first, last;
    host_frame_fn *fn;
    void *ctx;
};

struct host_timer {
    uint64_t at;
    struct group *group;
};
#define HOST_TIMER_NONE UINT32_MAX

struct host {
    struct host_config config;
    struct store_worker *store;
    struct rng rng;
    struct net_upcalls upcalls;
    uint64_t now;
    int64_t wall_ms;
    bool is_now_known;
    bool is_failed;  // The WAL failed: nothing leaves any more.

    struct map map;  // struct group by its id.
    struct list groups;
    struct list ready;
    struct list dirty;
    struct list news;
    struct list no_leader;
    struct list retries;
    struct map retry_map;  // Group, peer and kind (host.c) -> struct retry.
    struct list reads_done;
    struct list snap_sends;     // struct snap_send.
    struct list snap_receives;  // struct snap_receive.
    uint32_t snap_sends_count;
    struct list wakes_asked;    // Groups whose machine is to be woken because somebody waits for it (group_work.wake),
    struct list wakes;          // and the others.
    uint32_t restores;          // Under way: snapshots of machines that slept, first cold reads of those without one. What
                                // others replay may take long, and is not counted.

    struct list peers;
    struct map peer_map;
    bool is_walking;  // Some peer has a walk to do.

    struct host_timer *heap;  // host_timer.c
    uint32_t heap_len, heap_cap;
    uint32_t campaigns;       // Groups with GROUP_CAMPAIGNS.
    uint64_t wrote_at;        // When anything was last handed to the WAL.
    uint64_t campaign_next;   // When the next one that has to wait may ask again.

    struct list note_pool;
    struct gated *gated_pool;
    struct list work_pool;      // struct group_work.dirty
    uint32_t work_pool_count;
    struct garbage *garbage;  // Freed after the net was flushed.
    struct pb_arena arena;
    struct buf scratch;
    struct handler handlers[HOST_HANDLERS];
    uint32_t handlers_count;
    struct list watchers;
    uint64_t read_id;
    uint32_t current_node;  // Node of the message being stepped: where answers go whatever the configuration says.
    uint64_t current_from;
    struct host_metrics metrics;
};

// host.c
struct peer *host_peer(struct host *h, uint32_t node);  // Made on first use.
void host_retry_add(struct group *g, uint32_t node, uint64_t replica, bool is_snapshot);  // If it is not there yet.
void host_free_later(struct host *h, void *ptr);        // Frees memory the net may still read, after the flush.
void host_release_later(struct host *h, struct block *b);  // The same for a block.
void group_ready(struct group *g, uint16_t flags);
void group_mark_dirty(struct group *g);
void group_ref(struct group *g);
void group_unref(struct group *g);  // May free it.
struct group_work *group_work(struct group *g);  // Made if there is none.
// Gives it back if nothing is under way. Only where no caller holds it: at the end of what a turn or a note does for a group.
void group_rest(struct group *g);
static inline bool group_has_reads(const struct group *g)
{
    return g->work && !list_is_empty(&g->work->reads);
}
static inline bool group_is_gone(const struct group *g)
{
    return (g->flags & (GROUP_REMOVED | GROUP_FAILED)) != 0;
}

// group.c
// Executes what a step has put out. `records`/`first` are the entries of the input message, if it was an append.
void group_execute(struct group *g, struct consensus_out *out, struct span records, uint64_t first);
void group_timer_update(struct group *g);
void group_count_campaign(struct group *g);    // It campaigns, or does not any more.
void group_campaign_waits(struct group *g);    // It campaigns and makes room for another.
void group_tell_members(struct group *g, const struct config *c);
void group_fail(struct group *g, enum rc rc, const char *what);
void group_lost(struct group *g);

// host_timer.c
void host_timer_set(struct group *g, uint64_t deadline);
void host_timer_remove(struct group *g);                       // Before it is freed.
// One whose deadline has come; stays until it is set anew.
struct group *host_timer_due(struct host *h, uint64_t now);
uint64_t host_timer_next(const struct host *h);                // Never later than the earliest deadline.

// host_frame.c: what is gathered for a peer.
bool host_frame_room(struct host *h, struct peer *p);  // May an append frame be started?
Cluster__AppendHeader host_frame_header(const struct consensus_msg *m, uint64_t *runs, uint64_t bytes);  // `runs` must outlive it.
// An append without entries, or one whose `bytes` bytes of entries are the ranges already in p->iov.
void host_frame_append(struct host *h, struct peer *p, const struct consensus_msg *m, uint64_t bytes);
void host_frame_append_flush(struct host *h, struct peer *p);
void host_frame_message(struct host *h, struct group *g, uint32_t node, const struct consensus_msg *m);
void host_frame_unknown(struct host *h, uint32_t node, uint64_t group, uint64_t replica);
void host_frame_flush(struct host *h, struct peer *p);   // Everything gathered for it.
void host_frame_forget(struct peer *p);  // The lane was reset: forget what was on its way.
void host_frame_lost(struct host *h, struct peer *p);    // A frame was not taken: as if the link had lost it.
// Appends `m` as field 1 of a batch.
void host_pack_item(struct buf *to, const ProtobufCMessage *m);

// host_blocked.c: groups without room at a peer, and turns to send in pieces.
struct blocked *host_blocked_find(const struct group *g, const struct peer *p);
// `index` is what it has to send next. is_large: it waits for its turn to send in pieces. Else for room.
void host_block(struct group *g, struct peer *p, uint64_t index, bool is_large);
void host_unblock(struct blocked *b);
bool host_is_others_turn(struct host *h, const struct group *g, const struct peer *p);
bool host_blocked_large_due(struct host *h, struct peer *p);  // One that waits for its turn may have it.
void host_blocked_retry(struct host *h, struct peer *p);      // There may be room.

// host_fragment.c
void host_fragment_start(struct group *g, struct peer *p, const struct consensus_msg *m, uint64_t total, struct block *block,
                         const uint8_t *ptr);
void host_fragment_run(struct host *h, struct peer *p);  // Goes on with what is on its way in pieces, if anything.
void host_fragment_end(struct peer *p);

// host_send.c
void host_send_group(struct group *g, bool is_news_due);
void host_send_fed(struct group *g, struct peer *p, uint64_t replica, struct glog_read *r);
void host_send_down(struct group *g, struct peer *p);  // After the engine was told that the node is down.
void host_send_group_gone(struct group *g);
uint32_t host_position_of(const struct config *c, uint64_t replica);

// host_recv.c
void host_receive(struct host *h, uint32_t node, enum net_lane lane, const struct frame *f);

// host_apply.c
void host_apply_group(struct group *g);
void host_apply_done(struct group *g, uint64_t index);  // The machine has applied up to index.
const struct config *group_config_applied(struct group *g, struct consensus_status *st);
void host_config_forget(struct group *g);     // The engine's configuration is the applied one.
void group_config_before(struct group *g);    // A config entry is about to be appended: keep the one applied.
void host_cold_start(struct group *g, uint32_t node, uint64_t replica, uint64_t first, uint64_t last, size_t bytes_max);

// host_snapshot.c
bool host_snapshot_send(struct group *g, uint32_t node, uint64_t replica);  // False: not now, tried again later.
bool host_snapshot_is_sending(const struct group *g, uint64_t replica);
// A snapshot now would take away from a member what it is being sent, or is reading behind it.
bool host_snapshot_is_held(const struct group *g);
void host_snapshot_on_piece(struct host *h, uint32_t node, const struct frame *f);
void host_snapshot_on_ack(struct host *h, uint32_t node, const struct frame *f);
uint64_t host_snapshot_turn(struct host *h);
void host_snapshot_link(struct host *h, uint32_t node, bool is_dead);
void host_snapshot_role(struct group *g, uint64_t leader);
void host_snapshot_group_gone(struct group *g);
void host_snapshot_destroy(struct host *h);

// host_snapshot_local.c
bool host_snapshot_begin(struct group *g, struct store_snapshot_source *out);
void host_snapshot_consider(struct group *g);
void host_snapshot_too_large(struct group *g);
void host_snapshot_load(struct group *g);

// host_sleep.c
bool host_may_sleep(const struct group_spec *spec, const struct replica_start *start, const struct glog *log);
void host_sleep(struct group *g);                  // At its adding.
void host_wake(struct group *g, bool is_asked);    // Soon. Nothing if it is awake, or will never be.
void host_wake_at_accept(struct group *g, uint16_t kind);  // It is asleep, and an entry of this kind was appended.
void host_sleep_ends(struct group *g);             // Its machine is restored now, or not needed any more.
void host_wakes_run(struct host *h);               // As many as may be.
bool host_has_wakes(const struct host *h);         // host_wakes_run has something to do.

// host_read.c
void host_read_proven(struct group *g, uint64_t id, uint64_t index);
void host_read_fail(struct group *g, enum rc rc);
void host_read_applied(struct group *g, uint64_t applied);
void host_read_expire(struct group *g);
uint64_t host_read_deadline(const struct group *g);
void host_read_answer(struct host *h);

// host_liveness.c
void host_liveness_verdict(struct host *h, struct peer *p, enum node_verdict verdict, uint64_t incarnation);
void host_liveness_reset(struct host *h, struct peer *p);
bool host_liveness_turn(struct host *h);  // True while there is more to do.
void host_liveness_list(struct group *g, uint32_t leader_node);
void host_liveness_unlist(struct group *g);
