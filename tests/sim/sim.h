// SPDX-License-Identifier: Apache-2.0
// A cluster in one process: N nodes with the real host, engines, store and WAL over a simulated clock, net and disk.
//
// Everything that happens is an event at a virtual time; events of equal time happen in the order in which
// they were made.
// All chance comes from one seeded generator, so a seed names a run (swarm: each seed draws its own fault rates). After
// every event the node it touched is compared with what an omniscient observer knows (sim_check.c); the first
// violation ends the run.
//
// What the groups do is an application (struct sim_app): sim_list.c is the built-in one; others bring their own state
// machines, clients and checks, and use the same world.
#pragma once
#include "consensus/host/host.h"
#include "node/base/map.h"
#include "tests/sim/sim_disk.h"
#include <stdio.h>

// A node whose disk was wiped comes back as another one, so a run can see more nodes than its cluster has.
enum { SIM_NODES_MAX = 8, SIM_GROUPS_MAX = 64 };

#define SIM_US 1000ull
#define SIM_MS 1000000ull
#define SIM_S 1000000000ull

struct sim;
struct sim_node;

// ---- faults: drawn per seed -----------------------------------------------------------------------------------------

struct sim_faults {
    uint64_t net_delay_min, net_delay_spread;  // ns
    uint64_t net_slow_one_in;                  // One frame in so many takes 100 times as long; 0 never.
    uint64_t lane_reset_one_in;                // One frame in so many breaks its lane; 0 never.
    uint64_t disk_delay_min, disk_delay_spread;
    uint64_t disk_slow_one_in;                 // One sync in so many takes up to 300 ms more; 0 never.
    uint64_t cold_delay_min, cold_delay_spread;
    uint64_t crash_every, partition_every;     // Mean times between; 0 never.
    uint64_t crash_all_one_in;                 // One crash in so many hits all nodes at once; 0 never.
    uint64_t sync_fail_one_in;                 // One crash in so many is a failing sync; 0 never.
    uint64_t pause_every;                      // A node stands still for a while.
    uint64_t transfer_every, member_change_every, step_down_every;
    uint32_t victim;                           // The one node that loses data (or who came in its place); 0 none.
    uint64_t wipe_every;                       // The victim's disk is lost with all on it; 0 never.
    uint64_t flip_every;                       // A bit of what it has synced is wrong from now on.
    uint64_t full_every;                       // No room on a node's disk for a while.
};

// ---- counters ---------------------------------------------------------------------------------------------

struct sim_counters {
    uint64_t events, commits, elections, crashes, torn_writes, partitions, violations;
    uint64_t proposals, acks, reads, frames, snapshots_taken, snapshots_installed, wal_files, cold_reads;
    uint64_t member_changes, wipes, flips, amnesiacs, full_disks;
    uint64_t slept, woken_last;  // Machines that were not restored at a start; those that only the end has woken.
    // Longest: from the last fault until every group had a leader that committed, until everything had come to rest.
    uint64_t led_ns, settle_ns;
};

// ---- the application --------------------------------------------------------------------------------------

// One replica's machine: the world keeps it while the replica lives.
struct sim_app {
    const char *name;
    // Says what each group is for (sim_group.kind), after the swarm was drawn. May be NULL.
    void (*init)(struct sim *s);
    // A node's host is there, its groups are not yet. May be NULL.
    void (*node_init)(struct sim *s, struct sim_node *n);
    // Adds the replica itself (host_group_add happens inside) and returns true. May be NULL.
    bool (*group_add)(struct sim_node *n, uint32_t slot, const struct store_group *recovered);
    // The replica leaves its node: removes it (host_group_remove, deleted) and returns true; false: only a
    // restart can. NULL: the world does it.
    bool (*group_drop)(struct sim_node *n, uint32_t slot);
    // Other members were committed (sim_group.members). May be NULL.
    void (*members_changed)(struct sim *s, uint32_t slot);
    // Machine of `group` on `node` (a new, empty one), with its fsm_ops; for those not added by group_add.
    void *(*machine_create)(struct sim *s, struct sim_node *n, uint64_t group);
    void (*machine_destroy)(void *machine);
    const struct fsm_ops *fsm;
    // A node has come up (all its groups are added) / is about to vanish / its host has gone. May be NULL.
    void (*node_up)(struct sim *s, struct sim_node *n);
    void (*node_down)(struct sim *s, struct sim_node *n);
    void (*node_gone)(struct sim *s, struct sim_node *n);
    void (*start)(struct sim *s);   // Clients: schedule their events. `s->is_calm` ends the load.
    // Before and after each host_turn of a node: when it wants a turn at the latest. May be NULL.
    uint64_t (*turn)(struct sim *s, struct sim_node *n);
    uint64_t (*after_turn)(struct sim *s, struct sim_node *n);
    bool (*is_settled)(struct sim *s);  // Last phase (all healed, no load): has everything come to rest as it should?
    void (*finish)(struct sim *s);      // Last checks.
    void (*deinit)(struct sim *s);      // All nodes have gone. May be NULL.
};
extern const struct sim_app sim_list_app;
extern const struct fsm_ops sim_list_fsm;  // Its machine.

// ---- nodes ------------------------------------------------------------------------------------------------

struct sim_exec {
    struct exec base;
    struct sim_node *node;
    struct list jobs;
    bool is_busy;
};

struct sim_net {
    struct net base;
    struct sim_node *node;
};

// What is known to be on a node's disk of one group: from the bytes handed to its WAL, not from what engines say. Of a
// replica that lost its memory it stays as it was: what was said then rests on it, and nothing may be said any more.
struct sim_shadow {
    uint64_t replica;      // Whose it is.
    bool is_lost;
    struct hard_state hard;
    uint64_t snapshot;   // Entries up to here are covered by it.
    uint64_t last;       // Durable log ends here.
    uint64_t terms_base;  // terms[i] is that of terms_base + 1 + i.
    struct buf terms;    // u64 each.
    uint64_t configs_from;  // Above this index `configs` holds those of all configuration entries (u64, ascending).
    struct buf configs;
};

struct sim_seen {
    uint64_t term, commit, last, durable, applied, snapshot;
    uint8_t role;
};

struct sim_node {
    struct sim *sim;
    uint32_t id;           // 1..
    bool is_up;
    bool is_gone;          // Its disk was wiped: it never comes back under this name.
    bool is_flipped;       // There may be a wrong bit on its disk.
    bool is_full;          // No room on its disk.
    bool is_damaged;       // What it holds of anything may be wrong: an operator will wipe it.
    bool is_paused;        // Nothing of it runs; its disk and link stay.
    uint64_t paused_until;
    uint64_t incarnation;
    struct sim_disk *disk;
    struct rng rng;
    struct sim_exec cold, removal;
    struct sim_net net;
    struct store *store;
    struct host *host;
    uint64_t turn_due;     // When its next turn is scheduled; UINT64_MAX none.
    bool is_wal_busy;      // A batch is being written.
    uint32_t wal_tries;    // In vain, for want of room.
    bool is_composed;
    struct list wal_done;  // Completions on their way to the worker.
    struct buf pending_cuts;  // sim_check.c: truncations handed to the WAL and not yet durable.
    void *machines[SIM_GROUPS_MAX];
    struct group *groups[SIM_GROUPS_MAX];
    uint64_t replicas[SIM_GROUPS_MAX];     // Which replica of the group lives here; 0 none. (What the
                                           // metastore would know.)
    uint64_t former[SIM_GROUPS_MAX];       // Who lived here before that one; 0 nobody.
    bool is_fresh[SIM_GROUPS_MAX];         // That one was never a member yet.
    uint64_t vouched_seq, vouched_offset;  // A later batch says that what is before it in this WAL file was synced.
    struct sim_shadow shadows[SIM_GROUPS_MAX];
    uint64_t commit_seen[SIM_GROUPS_MAX];  // In this life.
    uint64_t term_seen[SIM_GROUPS_MAX];
    bool is_leader_seen[SIM_GROUPS_MAX];
    struct sim_seen seen[SIM_GROUPS_MAX];  // When the replica was last checked.
    bool was_corrupt;
    void *app;             // For the application.
};

// ---- the world --------------------------------------------------------------------------------------------

struct sim_event {
    uint64_t at;
    uint64_t seq;
    void (*fn)(struct sim *s, void *arg, uint64_t n);
    void *arg;
    uint64_t n;
    uint32_t node;         // 0: of the world. Else dropped if the node has a newer incarnation or is down,
    uint64_t incarnation;  // put off while it is paused.
    void (*drop)(void *arg);  // Frees what arg holds if the event is dropped. May be NULL.
};

struct sim_key {
    uint64_t order;  // at, and in the low bits seq: one number to compare.
    uint32_t slot;
};

enum sim_group_kind { SIM_LIST, SIM_QUEUE, SIM_META };

struct sim_group {
    uint64_t id;
    enum sim_group_kind kind;
    struct config initial;
    struct config members;  // As last committed, as far as sim_member.c has seen.
    uint64_t next_replica;  // Ids for members that join.
    // Committed history, by index from 1: term and chain hash (index i at i - 1).
    struct buf terms, chain;
    uint64_t committed;
    uint64_t proven;        // Highest index that a leader committed, found on a majority's disks at that moment,
    uint64_t proven_term;   // with the term it had.
    uint64_t leader_term;   // Highest in which somebody led.
    struct map leaders;     // Term -> node * 2^32 + incarnation (as a pointer).
    struct map digests;     // Index -> digest of the state there (sim_observe.c).
};

struct sim {
    uint64_t seed;
    struct rng rng;
    struct clock clock;
    uint64_t now;
    uint64_t seq;
    struct sim_key *heap;
    struct sim_event *events;
    uint32_t *free_slots;
    uint32_t heap_len, heap_cap, free_count;
    struct sim_faults faults;
    struct sim_counters counters;
    uint64_t trace;        // Hash of all events.
    const struct sim_app *app;
    void *app_state;       // Of sim_list.c.
    void *queue_state;     // Of sim_queue.c, NULL without queues.
    void *meta_state;      // Of sim_meta.c.
    uint32_t nodes_count;
    struct sim_node nodes[SIM_NODES_MAX];
    uint32_t groups_count;
    struct sim_group groups[SIM_GROUPS_MAX];
    bool is_calm;          // Last phase: no faults, no load.
    uint64_t lost_at;   // When a replica lost its memory last.
    bool may_restart;      // Who crashes comes back after a while.
    bool may_sleep;        // Lists, too, may be restored late (queues always may).
    bool is_violated;
    char violation[512];
    struct sim_links *links;
    bool is_verbose;
    uint64_t watched;      // Group of which more is told; 0 none.
    uint64_t wal_file_bytes, memtable_bytes;
    uint32_t wal_slice_bytes;
    uint64_t segment_reach;
    uint32_t harvest_groups;
    uint64_t removal_piece;
};

// One run. Returns true if nothing was violated; the counters are added to `total`.
// Verbose: tells what happens on stderr; more of the group `watched` (0 none).
bool sim_run(uint64_t seed, const struct sim_app *app, bool is_verbose, uint64_t watched, struct sim_counters *total,
             uint64_t *trace, char *violation, size_t violation_size);

void sim_counters_add(struct sim_counters *to, const struct sim_counters *from);

// In parts, for tests that want their own faults: init draws the swarm (change s->faults and the groups
// afterwards), start brings all nodes up.
void sim_init(struct sim *s, uint64_t seed, const struct sim_app *app);
void sim_start(struct sim *s);
bool sim_step(struct sim *s);                     // Next event. False: none left, or violated.
void sim_run_until(struct sim *s, uint64_t at);   // Virtual time.
void sim_deinit(struct sim *s);

void sim_at(struct sim *s, uint64_t delay, void (*fn)(struct sim *s, void *arg, uint64_t n), void *arg, uint64_t n);
void sim_at_owned(struct sim *s, uint64_t delay, void (*fn)(struct sim *s, void *arg, uint64_t n), void *arg,
                  uint64_t n, void (*drop)(void *arg));
void sim_node_at(struct sim_node *n, uint64_t delay, void (*fn)(struct sim *s, void *arg, uint64_t n), void *arg,
                 uint64_t number, void (*drop)(void *arg));
void sim_node_wake(struct sim_node *n, uint64_t delay);  // A turn soon.
uint64_t sim_chance(struct sim *s, uint64_t one_in);     // True once in so many; never for 0.
uint64_t sim_range(struct sim *s, uint64_t min, uint64_t spread);
void sim_trace(struct sim *s, uint64_t a, uint64_t b);   // Goes into the hash.
void sim_violation(struct sim *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define sim_log(s, ...)                                                                            \
    do {                                                                                           \
        if ((s)->is_verbose) {                                                                     \
            fprintf(stderr, "%12.6f ", (double)(s)->now / 1e9);                                    \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
        }                                                                                          \
    } while (0)

// sim_node.c
void sim_node_start(struct sim_node *n);
void sim_node_crash(struct sim_node *n, bool is_power);  // Power: unsynced writes are lost, torn or kept.
void sim_node_free(struct sim_node *n);
void sim_node_add_group(struct sim_node *n, uint32_t slot, const struct store_group *recovered);
// The replica leaves this node; its log is deleted.
void sim_node_drop_group(struct sim_node *n, uint32_t slot);
struct sim_node *sim_node_create(struct sim *s);  // One more, with an empty disk. Not started.
bool sim_node_flip(struct sim_node *n);  // A bit of what is synced and vouched for turns. False: there is none.
struct sim_group *sim_group_of(struct sim *s, uint64_t id);
uint32_t sim_group_slot(const struct sim *s, uint64_t id);

// sim_fault.c
void sim_faults_draw(struct sim *s);
void sim_faults_start(struct sim *s);
struct sim_node *sim_any_node(struct sim *s);  // That is not gone.
void sim_restart_soon(struct sim_node *n);
void sim_wipe_soon(struct sim_node *n);
struct group *sim_leader(struct sim *s, uint32_t slot, struct sim_node **on);  // Of the highest term.

// sim_member.c: what the metadata store would have done: groups get their members back, and others.
void sim_members_start(struct sim *s);
bool sim_members_are_whole(struct sim *s, uint32_t but_node);  // No member has lost its memory, except on one node.
bool sim_members_are_settled(struct sim *s);

// sim_net.c
void sim_net_create(struct sim *s);
void sim_net_destroy(struct sim *s);
void sim_net_bind(struct sim_node *n);
void sim_net_node_up(struct sim_node *n);
void sim_net_node_down(struct sim_node *n, bool is_refused);  // Refused: its host answers that nobody listens.
void sim_net_cut(struct sim *s, uint32_t from, uint32_t to, bool is_cut);  // One way.
bool sim_net_is_cut(const struct sim *s, uint32_t from, uint32_t to);
void sim_net_heal(struct sim *s);

// sim_peek.c
bool sim_peek_changed(const struct replica *r, struct sim_seen *seen);

// sim_check.c
void sim_check_node(struct sim_node *n);                      // After each event that touched it.
void sim_check_submitted(struct sim_node *n, struct wal_submission *w);
void sim_check_durable(struct sim_node *n, struct wal_submission *w);
void sim_check_crashed(struct sim_node *n);                   // Before its memory goes.
// What a start found of a group, or that it found nothing.
void sim_check_recovered(struct sim_node *n, const struct store_group *g);
void sim_check_not_found(struct sim_node *n, uint32_t slot, bool is_told);  // Told: the store says that it is damaged.
void sim_check_wiped(struct sim_node *n);
void sim_check_added(struct sim_node *n, uint32_t slot);  // A replica of another id than what is on disk has nothing.
void sim_check_begun(struct sim_node *n, uint32_t slot);  // Nothing is left of the replica before; another one begins.
// The machine of a replica applies: the history of the group must be the same everywhere. `chain` is the machine's own
// running hash after this entry.
void sim_check_applied(struct sim_node *n, uint64_t group, uint64_t index, uint64_t term, uint64_t chain);
// Somebody outside is told that this entry is safe.
void sim_check_acked(struct sim *s, uint64_t group, uint64_t index, uint64_t term);
void sim_check_deinit(struct sim *s);
