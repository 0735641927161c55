// SPDX-License-Identifier: Apache-2.0
// The host: runs the replicas of one worker. It owns the groups of its shards, executes what their engines put out
// (log writes, messages, applies), batches everything per loop turn, and is the same code in the simulator.
//
// No threads, no sockets, no clock of its own: the driver (node/server/worker.c; tests/sim) calls in, in any order,
// and ends each turn with host_turn. Thread: the worker's. See host/README.md for the order of things in a turn.
#pragma once
#include "consensus/consensus.h"
#include "consensus/host/net.h"
#include "consensus/store/store.h"

struct host;
struct group;

struct host_config {
    uint32_t node_id;
    uint32_t worker;
    const struct clock *clock;
    uint64_t rng_seed;
    struct store *store;
    struct net *net;
    struct exec *cold;
    struct exec *removal;  // Where the store removes files; NULL: where cold jobs run.
    void (*wal_submit)(void *ctx, struct wal_submission *s);
    void *wal_submit_ctx;
    // Which worker of this node owns a group, and how to hand a frame (or the part of one that concerns that
    // worker) over to it: the bytes are to be copied and passed there to the host's frame upcall. Both NULL
    // with one worker.
    uint32_t (*worker_of)(void *ctx, uint64_t group);
    void (*pass_on)(void *ctx, uint32_t worker, uint32_t node, enum net_lane lane, uint16_t type, struct span envelope,
                    struct span raw);
    // A message for a group this worker should have but has not: look it up (P19). May be NULL.
    void (*unknown_group)(void *ctx, uint64_t group, uint32_t from_node);
    // All of a closed WAL file's live content of this worker is in segments.
    void (*wal_retired)(void *ctx, uint64_t file_seq);
    void *ctx;
};

struct host *host_create(const struct host_config *config);
void host_destroy(struct host *h);

// ---- groups ----------------------------------------------------------------------------------------------------

struct group_spec {
    uint64_t group;
    const char *engine;          // Name in the registry.
    uint64_t replica_id;         // Ours.
    struct config initial;       // Of a brand-new group; ignored if the log knows a later one.
    const struct store_group *recovered;  // NULL for a brand-new group. Read during the call only. Without a log, and
                                          // amnesiac: what there was is lost.
    const struct fsm_ops *fsm;
    void *fsm_ctx;
    bool campaign_at_once;       // Brand-new group: this member is the one that starts.
    bool may_sleep;              // What was found on disk stays there until something needs the machine: until then
                                 // apply and restore_* are not called (host_sleep.c).
};
// Compares whose log the disk holds (store_group.replica_id): that of a replica of a lower id is deleted and ours
// begins empty; RC_STALE, with nothing done: it is a later one's, so who asks is behind.
MUST_USE enum rc host_group_add(struct host *h, const struct group_spec *spec, struct group **out);
// Stops the replica and, if `is_deleted`, deletes its log (tombstone).
void host_group_remove(struct group *g, bool is_deleted);
struct group *host_group_find(struct host *h, uint64_t group);
void host_group_each(struct host *h, void (*each)(void *ctx, struct group *g), void *ctx);
uint64_t group_id(const struct group *g);
void *group_fsm(const struct group *g);
// The machine has not been restored since the start: its state is not that of any index.
bool group_is_asleep(const struct group *g);
// Somebody waits for the machine: it is restored soon, before those for whom nobody waits. Nothing if it is awake.
void group_wake(struct group *g);
void group_status(const struct group *g, struct consensus_status *out);
struct host *group_host(const struct group *g);

// Proposes one command (leader only). The parts are copied. *index_out/*term_out name the entry: it has been
// committed when apply sees that index with that term, and never will be if apply sees the index with another.
// RC_NOT_LEADER, RC_BUSY (transfer), RC_FULL (bounds; is_reserved commands have a fifth of them for themselves).
MUST_USE enum rc group_propose(struct group *g, const struct glog_part *parts, uint32_t parts_count, bool is_reserved,
                               uint64_t *index_out, uint64_t *term_out);
// True while publishes should not be proposed to this group (a later group_propose may answer RC_FULL).
bool group_is_full(const struct group *g);

// Calls done once the state machine has applied everything committed when the call was made, proven by a majority:
// RC_OK; RC_NOT_LEADER, RC_TIMEOUT; RC_SHUTDOWN if the group was removed meanwhile, RC_CORRUPT if its replica stopped.
// With RC_OK that is so while `done` runs, whatever came between.
typedef void group_read_fn(void *ctx, enum rc rc);
void group_read_barrier(struct group *g, uint64_t timeout_ns, group_read_fn *done, void *ctx);
MUST_USE enum rc group_transfer(struct group *g, uint32_t node_id);
MUST_USE enum rc group_change_members(struct group *g, const struct member_change *c);
// What this group commits its leader tells at once, not within 5 ms with what follows: a message more for each commit.
void group_tell_at_once(struct group *g);
// For machines on another thread: applied up to `index` (see fsm_ops.apply).
void group_applied(struct group *g, uint64_t index);

// Entry payloads for the state machine's effects. As glog_get / glog_read_start.
MUST_USE enum rc group_entry(struct group *g, uint64_t index, struct entry *out);
void group_entry_read(struct group *g, struct glog_read *r);

// ---- the driver's calls ----------------------------------------------------------------------------------------

const struct net_upcalls *host_net_upcalls(struct host *h);  // For the net.
// Frames of types the host does not know go to the handler registered here (session frames, metastore frames, ...).
typedef void host_frame_fn(void *ctx, uint32_t node, enum net_lane lane, const struct frame *f);
void host_on_frames(struct host *h, uint16_t type_first, uint16_t type_last, host_frame_fn *fn, void *ctx);
// Others who want to know of nodes and lanes (several may register; at start-up).
struct host_watcher {
    void (*node_state)(void *ctx, uint32_t node, enum node_verdict verdict, uint64_t incarnation);
    void (*lane_reset)(void *ctx, uint32_t node, enum net_lane lane);
    void (*lane_writable)(void *ctx, uint32_t node, enum net_lane lane);
    void *ctx;
    struct list link;
};
void host_watch(struct host *h, struct host_watcher *w);
struct net *host_net(const struct host *h);  // For frames of other layers (metastore, sessions). host_turn flushes it.
bool host_node_is_alive(const struct host *h, uint32_t node_id);

void host_wal_done(struct host *h, struct wal_submission *s);
void host_wal_file_closed(struct host *h, uint64_t file_seq);
// There may be room again on a disk that was full (store_worker_room).
void host_room(struct host *h);

// Ends a loop turn: runs ready groups, flushes the WAL submission and the net, fires due timers. Returns the monotonic
// time at which it wants to be called again at the latest (UINT64_MAX: only when something arrives).
uint64_t host_turn(struct host *h);
uint64_t host_now(const struct host *h);  // Cached monotonic ns of this turn.
int64_t host_wall_ms(const struct host *h);

// The write-ahead log failed: nothing leaves this host any more, the process is to end (P6).
bool host_is_failed(const struct host *h);

// The own disk or worker stalls: stop leading (decision 7 decides when).
void host_step_down_all(struct host *h);

struct host_metrics {
    uint64_t groups, asleep, leaders, proposals, applied, elections, appends_sent, entries_sent, cold_reads, malformed;
    uint64_t uncommitted_bytes, memtable_bytes;
};
void host_metrics(const struct host *h, struct host_metrics *out);
