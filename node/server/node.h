// SPDX-License-Identifier: Apache-2.0
// A whole node: its threads and what lives on each. Files of node/server only.
//
// Life: node_create (identity, recovery; blocking) -> node_start (threads) -> worker 0 forms or joins a
// cluster, or is a member already -> the workers' parts are made -> the metadata group starts -> its content
// is loaded and proven fresh by a fence -> listeners open. node_stop ends it in reverse. See server/README.md.
#pragma once
#include "consensus/host/host.h"
#include "consensus/peer/identity.h"
#include "consensus/peer/join.h"
#include "consensus/peer/net_share.h"
#include "consensus/peer/peer_net.h"
#include "node/alarm/alarms.h"
#include "node/alarm/measure.h"
#include "node/alarm/monitor.h"
#include "node/amqp09/amqp09.h"
#include "node/amqp09/listener.h"
#include "node/broker/broker.h"
#include "node/ctl/ctl.h"
#include "node/server/config.h"
#include "node/server/executor.h"
#include "node/server/worker.h"
#include <stdatomic.h>

enum { WORKERS_MAX = FRAME_WORKERS_MAX, WAITING_BYTES = PEER_TEXT_MAX + 1 };

struct node;

// An orderly stop or maintenance mode on one worker (drain.c).
enum drain_phase { DRAIN_NONE, DRAIN_LEADERS, DRAIN_CONNECTIONS, DRAIN_KEPT, DRAIN_DONE };
struct drain {
    enum drain_phase phase;
    bool is_maintenance;      // Ends in DRAIN_KEPT, from where revive leads back to DRAIN_NONE; else in DRAIN_DONE.
    uint32_t left;            // Groups that another could lead and that were not handed over in time.
    uint64_t next_at, until;  // Monotonic ns: looked at again; the phase ends whatever is left.
};

// Maintenance mode of this node (maintenance.c). Worker 0's.
struct maintenance {
    bool is_on;              // As asked; not kept over a restart.
    bool is_recording;       // The command that tells the others is under way.
    uint64_t record_at_ns;   // Earliest time of the next one.
    uint32_t working, left;  // Workers that are not there yet; groups they could not hand over.
    void (*done)(void *arg, enum rc rc, const char *text);  // NULL: nobody waits.
    void *arg;
};

// What belongs to one worker; its thread owns it once the worker runs.
struct node_worker {
    struct node *node;
    uint32_t number;
    struct worker *worker;
    struct host *host;              // These are NULL until the node is a member.
    struct queue_service *queues;
    struct broker *broker;
    struct amqp09 *amqp;
    struct amqp09_listener *listeners[CONFIG_LISTENERS_MAX];
    uint32_t listeners_count;
    _Atomic(struct queue_service *) shared_queues;  // The same, for the other workers (release, acquire).
    _Atomic bool shared_is_fenced;  // The projection has been proven fresh once: listeners are open. Worker 0 looks.
    bool is_fencing;
    _Atomic uint64_t shared_turns;  // Loop turns, for the beat (relaxed).
    struct drain drain;             // Of an orderly stop.
    struct store_group lost;        // What node_memory says of a replica that lost everything.
};

// A copy of what recovery found, kept until the group is taken over.
struct recovered {
    struct store_group group;
    struct term_run *runs;
    bool is_taken;  // A group was made with it and owns its log; written by the group's worker.
};

// OPENING: a member, whose disk has no room for the metadata store yet.
enum membership { MEMBERSHIP_NONE, MEMBERSHIP_JOINING, MEMBERSHIP_OPENING, MEMBERSHIP_MEMBER };

struct node {
    struct node_config config;
    struct disk *disk;
    struct identity identity;       // Worker 0's once started.
    struct store *store;
    struct wal_thread *wal;
    struct executor *cold, *removal, *meta;
    struct metastore *metastore;
    struct peer_net *peers;         // Worker 0.
    struct net_share *share;        // All workers' way to `peers`.
    struct ctl *ctl;
    struct monitor *monitor;        // Admin thread's; asked on worker 0.
    _Atomic uint32_t shared_alarms;  // alarms.all, for the other workers (relaxed; a post follows each change).
    struct node_worker workers[WORKERS_MAX];
    uint32_t workers_count;
    struct map recovered;           // group -> struct recovered; read-only once started, but for is_taken.

    // Worker 0:
    enum membership membership;
    uint32_t attached;              // Workers that have made their parts.
    bool is_founder;
    struct config meta_config;      // Initial one, to start the metadata group with.
    char via[PEER_NAME_MAX + 1];    // Whom we asked to let us in.
    uint64_t join_token, join_at_ns;  // Next time to ask.
    uint64_t open_at_ns;            // Opening: next try.
    char ask[PEER_NAME_MAX + 1];    // Who decides on us, as another member said; empty: nobody in particular.
    char joined_to[PEER_NAME_MAX + 1];  // Target of join_cluster; empty: none.
    char joined_address[PEER_ADDRESS_MAX + 1];
    bool is_lost;                   // A member whose disk vouches for nothing (lost.c): asks to be replaced.
    uint8_t lost_cluster_id[CLUSTER_ID_BYTES];
    bool is_healing;                // Blank after that, by the note: joins whoever of the cluster is there.
    bool is_rejoining;              // Blank by the note of rejoin.c: joins `joined_to` and nobody else.
    bool is_probing;                // Alone in its cluster: waits for a greeting of `joined_to`.
    void (*join_done)(void *arg, enum rc rc, const char *text);
    void *join_arg;
    uint64_t join_deadline_ns;
    struct forgetting *forgetting;  // NULL: nobody is being forgotten.
    uint64_t reconcile_at_ns;
    struct alarms alarms;           // Of all nodes.
    uint32_t monitor_bits;          // What the monitor says of this one.
    bool is_short;                  // The log or the store lacks the room it keeps in reserve.
    uint64_t room_at_ns;            // What waits for room is tried again.
    uint64_t alarms_at_ns;          // Other nodes' are looked at again; 0: at once.
    uint64_t stepped_down_at_ns;    // Last time this node gave up leading for a stall of its own; 0: never.
    bool is_log_suspect;            // Damage was met at recovery, or the mark of a failed disk.
    bool is_memory_lost;            // It concerns every replica, also those of which nothing was found.
    bool is_store_suspect;          // The mark of a failed disk was found (node.c).
    bool is_founding;               // The founding command is under way.
    struct maintenance maintenance;
    uint32_t admitting;             // Records of nodes that are let in, under way.
    bool is_replacing;              // A member that lost its disk is being given new ids.
    char waiting[WAITING_BYTES];    // What the node waits for; empty: it is up.
    char waiting_logged[WAITING_BYTES];
    void (*stop_requested)(void);   // Main thread's.
    bool (*pause)(void);            // Main thread, in node_create: waits a moment for room. True: told to end.
    _Atomic bool shared_restart;    // After having stopped the process starts itself again. Read by main, acquire.
    _Atomic bool shared_has_failed;  // node_fail. Read by main, acquire.
    _Atomic uint32_t shared_draining;  // Workers that have not finished drain.c's work.
};

// Waits where there is no room on the disk. RC_SHUTDOWN: `pause` said so.
MUST_USE enum rc node_create(struct node *n, struct buf *error);
MUST_USE enum rc node_start(struct node *n, struct buf *error);
void node_stop(struct node *n);
// Any thread. This node cannot go on, as the log says: it stops, and the process ends with an error.
void node_fail(struct node *n);
// The node id is known: opens the metadata store. Worker 0, before the workers' parts are made.
MUST_USE enum rc node_open_metastore(struct node *n);

// node_worker.c
uint64_t node_worker_turn(void *ctx);
void node_worker_attach(struct node_worker *w);  // The node is a member: makes its parts. That worker.
void node_worker_listen(struct node_worker *w);  // Opens its AMQP listeners. That worker.
void node_worker_close(struct node_worker *w);               // Closes listeners and handles. That worker.
uint32_t node_worker_of(void *ctx, uint64_t group);
void node_post(void *ctx, uint32_t worker, void (*fn)(void *arg), void *arg);
const struct store_group *node_recovered(void *ctx, uint64_t group);

// drain.c: hands leadership over and says good-bye to clients. Main thread; bounded to a few seconds, sooner if
// `is_hurried` says so.
void node_drain(struct node *n, bool (*is_hurried)(void));
uint64_t drain_turn(struct node_worker *w, uint64_t now_ns);  // That worker, each turn.
// Maintenance mode on / off on this worker; maintenance_worker_done is told on worker 0.
void drain_begin(struct node_worker *w, bool is_maintenance);
void drain_end(struct node_worker *w);

// maintenance.c (worker 0)
// rabbitmq-upgrade drain / revive. `done` once: RC_OK (with a text: what could not be done), RC_BUSY.
void maintenance_set(void *ctx, bool is_on, void (*done)(void *arg, enum rc rc, const char *text), void *arg);
bool maintenance_is_on(void *ctx);
void maintenance_worker_done(struct node *n, uint32_t left);
uint64_t maintenance_turn(struct node *n, uint64_t now_ns);

// member.c (worker 0)
void member_peers_start(struct node *n);
uint64_t member_turn(struct node *n, uint64_t now_ns);  // Returns when it wants to run again.
void member_node_changed(void *ctx, struct span name, uint32_t node_id, struct span store_id,
                         struct span address, bool is_known);
void node_wait_for(struct node *n, const char *format, ...) __attribute__((format(printf, 2, 3)));

void member_ask(struct node *n, const char *via);  // Sends a JOIN there, if it is time to.

// lost.c: a member whose disk vouches for nothing.
// Start-up, behind the recovery: sets is_lost if the node is to be replaced. Not if that was done for a
// failing disk in the last ten minutes: told in the log, and it goes on as it is. Disk errors of writing the note.
MUST_USE enum rc lost_check(struct node *n);
// Worker 0, instead of forming: asks a member to be replaced, the one that decides if known.
void lost_ask(struct node *n);
// Worker 0: it was (JOIN_OK). Leaves the note and starts the process anew, which wipes the data.
void lost_granted(struct node *n, const struct join_reply *r);

// admission.c (worker 0): a JOIN frame arrived.
void admission_asked(struct node *n, const struct frame *f);

// alarm.c (worker 0)
void alarm_create(struct node *n);              // Before the threads start.
void alarm_attach(struct node_worker *w);       // That worker's connections exist now.
void alarm_beat(void *ctx, uint32_t node_id, const struct peer_beat *b);
uint64_t alarm_turn(struct node *n, uint64_t now_ns);  // Returns when it wants to run again.

// rejoin.c (worker 0, but for the first two)
MUST_USE enum rc rejoin_prepare(struct node *n);  // Start-up, before the identity is opened: reads the note, wipes.
MUST_USE enum rc rejoin_check(struct node *n);    // Start-up, after it.
void rejoin_joined(struct node *n);               // The identity of a member has been written.
bool rejoin_is_refused(struct node *n);           // Blank: the target does not talk to this node; says why.
uint64_t rejoin_turn(struct node *n, uint64_t now_ns);
// join_cluster NAME[=HOST:PORT]. `done` once: RC_OK (with a text if there was nothing to do), RC_PENDING: the
// process starts itself again and is to be asked again; RC_INVALID, RC_CONFLICT, RC_BUSY, RC_NOT_CONNECTED,
// RC_DENIED, RC_TIMEOUT.
void member_join(void *ctx, const char *target, void (*done)(void *arg, enum rc rc, const char *text), void *arg);
void member_join_end(struct node *n, enum rc rc, const char *text);
// forget_cluster_node. RC_OK, RC_NOT_FOUND, RC_CONFLICT, RC_BUSY, RC_NO_QUORUM, RC_TIMEOUT.
void member_forget(void *ctx, const char *name, void (*done)(void *arg, enum rc rc, const char *text), void *arg);
uint64_t forget_turn(struct node *n, uint64_t now_ns);
