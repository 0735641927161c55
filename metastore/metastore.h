// SPDX-License-Identifier: Apache-2.0
// The metadata store: a Khepri-like tree on LMDB, replicated by one raft group over all nodes (engine-notes
// §4, decisions 12, 16, 18). This header is what node/ uses; the tree itself is tree.h, its state machine
// meta_fsm.h.
//
// Paths are sequences of names, written "vhosts/%2F/queues/q" in text; in calls they are `struct meta_path`
// so that names may hold any byte, and may be empty. Payloads are opaque to the store (node/broker encodes
// its records with protobuf).
//
// Threads: commands are submitted from any worker and answered on that worker. LMDB lives on the meta thread;
// changes come to each worker in order, with the index of the command, through its subscription.
#pragma once
#include "consensus/host/host.h"

enum {
    // Bytes of a whole command: with a payload of META_PAYLOAD_MAX it passes as one frame.
    META_COMMAND_MAX = 3 << 19,
    META_PATH_DEPTH = 12,
    META_NAME_MAX = 255,
    META_PAYLOAD_MAX = 1 << 20,
    META_NUMBER_FIRST = 1024
};
#define META_GROUP_ID 1u  // The metadata group's id.

struct meta_path {
    uint32_t depth;
    struct span names[META_PATH_DEPTH];  // Borrowed.
};

// ---- commands: a batch of operations, all or nothing ------------------------------------------------------

struct meta_command {
    struct buf bytes;    // Encoded so far.
    uint32_t ops_count;  // Puts, deletes, requires, triggers; what belongs to a put does not count. failed_op
                         // counts like this.
    bool is_invalid;  // Something did not fit (name, depth, payload): the submission is answered RC_INVALID.
};
void meta_command_init(struct meta_command *c);
void meta_command_deinit(struct meta_command *c);

enum meta_if {
    META_IF_ANY,
    META_IF_ABSENT,       // Fails with RC_EXISTS.
    META_IF_PRESENT,      // Fails with RC_NOT_FOUND.
    META_IF_VERSION,      // Payload version equals `version`, else RC_CONFLICT (RC_NOT_FOUND if absent).
    META_IF_NO_CHILDREN,  // RC_CONFLICT.
};
// "Present" means: has a payload. Parents that were only made on the way count as absent, as subscribers
// never hear of them.

// Writes a payload; missing parents are made (without payload, kept while they have children).
void meta_put(struct meta_command *c, const struct meta_path *p, struct span payload, enum meta_if condition,
              uint64_t version);
// The node of the latest meta_put lives only while `watched` exists (or, if on_children, has children). Fails
// with RC_NOT_FOUND if it does not exist when the put is applied, RC_CONFLICT if it has no children (unless
// it is the node itself). A put of an existing node without any meta_keep_while leaves its conditions as they
// are, else they are replaced.
void meta_keep_while(struct meta_command *c, const struct meta_path *watched, bool on_children);
// Deletes a node with everything below it, and what was kept while any of those. Absent is fine under
// META_IF_ANY.
void meta_delete(struct meta_command *c, const struct meta_path *p, enum meta_if condition, uint64_t version);
// Only checks.
void meta_require(struct meta_command *c, const struct meta_path *p, enum meta_if condition,
                  uint64_t version);
// A number never given before, written as 8 bytes (little endian) at `payload_offset` of the latest
// meta_put's payload and `count` - 1 further ones behind it as consecutive numbers are implied (first..first
// + count - 1). For group and replica ids. Numbers start at META_NUMBER_FIRST; those below are for what
// exists before the tree (the metadata group, its replicas).
void meta_allocate_ids(struct meta_command *c, uint32_t payload_offset, uint32_t count);

// Triggers (engine-notes §4.1): changes at or below `prefix` whose kind is in `events` are kept as pending
// events until they are acknowledged. The trigger set before the command decides. Setting an id again
// replaces it; events = 0 removes it.
enum meta_event { META_EVENT_CREATED = 1, META_EVENT_UPDATED = 2, META_EVENT_DELETED = 4 };
void meta_set_trigger(struct meta_command *c, uint32_t trigger_id, const struct meta_path *prefix,
                      uint8_t events);
void meta_ack_event(struct meta_command *c, uint64_t event_seq);  // Absent is fine.

struct meta_result {
    // RC_OK; a condition's code; RC_NO_QUORUM, RC_TIMEOUT (decision 18; nothing is known of the command);
    // RC_INVALID, RC_TOO_LARGE; RC_NO_SPACE (LMDB at 90 % of its map); RC_CORRUPT (metastore_is_damaged).
    enum rc rc;
    uint32_t failed_op;  // Which operation's condition failed.
    uint64_t index;      // Command's index: the local projections are at it when the callback runs.
};
typedef void meta_done_fn(void *ctx, const struct meta_result *r);

struct metastore;
// Takes the command's bytes (the command is empty afterwards and may be used again). `done` is called once,
// on the same worker, after this worker's subscription has seen the command's changes. Retried across leaders
// with a deduplication reference, for at most timeout_ms (10,000 at most).
void metastore_submit(struct metastore *m, uint32_t worker, struct meta_command *c, uint32_t timeout_ms,
                      meta_done_fn *done, void *ctx);
// Consistent read: done when the local projections contain everything committed before the call (decision
// 16).
void metastore_fence(struct metastore *m, uint32_t worker, uint32_t timeout_ms, meta_done_fn *done,
                     void *ctx);
// Any thread: another node knows that this much is committed (its beat says so).
void metastore_commit_heard(struct metastore *m, uint64_t commit);
// Has this worker's projection seen everything that is known to be committed (from beats and appends)?
bool metastore_is_current(struct metastore *m, uint32_t worker);
uint64_t metastore_seen(struct metastore *m,
                        uint32_t worker);  // Index up to which this worker has seen changes.
// On that worker. Numbers below this one were given (meta_allocate_ids) in what this worker has seen: what has one of them and is
// not here is gone for good. 0 before `loaded`.
uint64_t metastore_numbers(struct metastore *m, uint32_t worker);

// ---- changes ----------------------------------------------------------------------------------------------

struct meta_change {
    uint64_t index;
    const struct meta_path *path;
    bool is_deleted;  // Else created or updated.
    bool is_created;
    struct span payload;  // Of a put; of a deletion the last payload.
    uint64_t version;     // Payload version, from 1.
};
// Called on the worker for every change of a node with a payload, in order; at start-up first once for every
// node there is (as created), parents before children, then `loaded`. After a snapshot install everything is
// told again between `reset` and `loaded`.
struct meta_subscriber {
    void (*change)(void *ctx, const struct meta_change *c);
    void (*reset)(void *ctx);
    void (*loaded)(void *ctx, uint64_t index);
    // Everything of one batch of commands has been told; projections are consistent as of index.
    void (*batch_end)(void *ctx, uint64_t index);
    void *ctx;
};

struct metastore_config {
    const char *dir;     // Absolute path of the LMDB directory, copied; NULL: in memory (tests, simulator).
    uint64_t map_bytes;  // Address space for LMDB (16 GiB).
    uint32_t node_id;
    uint32_t workers;
    struct exec *meta;  // Runs LMDB work; worker 0's port of the meta thread. NULL: run in the caller, and
                        // deliver in metastore_turn (simulator, tests: no threads).
    void (*post)(void *ctx, uint32_t worker, void (*fn)(void *arg),
                 void *arg);  // Runs fn on a worker; called on workers only.
                              // May be NULL with one worker.
    void *post_ctx;
    const struct clock *clock;
};
// Blocks (reads the whole store once). RC_IO, RC_NO_SPACE, RC_BUSY; damage is not an error, see
// metastore_is_damaged.
MUST_USE enum rc metastore_open(const struct metastore_config *config, struct metastore **out);
// Worker 0, before the meta thread is stopped: its last job ends the open LMDB transaction on that thread.
void metastore_flush(struct metastore *m);
void metastore_close(struct metastore *m);  // After the meta thread has ended and all jobs are back.
void metastore_subscribe(struct metastore *m, uint32_t worker, const struct meta_subscriber *s);
// Starts this node's replica of the metadata group on worker 0's host.
MUST_USE enum rc metastore_start(struct metastore *m, struct host *h, uint64_t replica_id,
                                 const struct config *initial, const struct store_group *recovered,
                                 bool campaign_at_once);
struct group *metastore_group(struct metastore *m);  // Worker 0 only.
// Worker 0, every loop turn before host_turn: resends, timeouts, LMDB commits. Returns the monotonic time at
// which it wants to be called again at the latest (UINT64_MAX: only when something arrives).
uint64_t metastore_turn(struct metastore *m);
// LMDB was found damaged at start and is not yet rebuilt from the group's log and snapshots: nothing is
// served (`loaded` has not been called, fences and commands are answered RC_CORRUPT) until a majority proved
// that the rebuilt state is complete. Any thread.
bool metastore_is_damaged(const struct metastore *m);
// The disk has no room for the metadata's growth: nothing more should be made. Any thread.
bool metastore_is_short(void);
// Before the meta thread is stopped: it waits for room no more.
void metastore_stop_waiting(void);

// Worker 0, on the leader's node only: a pending trigger event. At least once (again after each change of
// leader), until a command with meta_ack_event(seq) is applied.
struct meta_trigger_event {
    uint64_t seq;
    uint32_t trigger_id;
    enum meta_event event;
    const struct meta_path *path;
    struct span payload;  // Of a deletion the last payload.
};
void metastore_on_trigger(struct metastore *m, void (*fn)(void *ctx, const struct meta_trigger_event *e),
                          void *ctx);

struct metastore_status {
    uint64_t applied, nodes, bytes, bytes_max;  // `bytes`: used pages of LMDB.
    uint32_t requests;                          // Commands and fences not answered yet.
    bool is_loaded;
};
void metastore_status(const struct metastore *m, struct metastore_status *out);  // Worker 0 only.
