// SPDX-License-Identifier: Apache-2.0
// The tree as a state machine of a raft group, with its store on a thread of its own (the meta thread).
//
// Worker 0 turns what the host asks for (apply, snapshot, restore) into jobs; the executor runs them in order
// on the meta thread and brings them back, then meta_fsm_config.done sees what came of each. Nothing on
// worker 0 waits for the store. Everything in struct meta_fsm is worker 0's but what stands under "meta
// thread"; a job belongs to whoever has it.
#pragma once
#include "metastore/tree.h"
#include "node/base/exec.h"
#include <stdatomic.h>

// What one job has to tell the subscribers of all workers. Shared by them; the last one frees it.
struct feed {
    _Atomic uint32_t shared_refs;
    uint64_t index;    // Everything up to here has been told with it.
    uint64_t numbers;  // metastore_numbers, then.
    bool is_load;    // The whole tree.
    bool is_reset;   // Before that: forget what was told.
    struct buf changes;
};
void feed_drop(struct feed *f);

enum meta_job_kind {
    META_JOB_APPLY,
    META_JOB_COMMIT,
    META_JOB_LOAD,     // Tells the whole tree; publishes the store if it is not yet.
    META_JOB_EVENTS,   // Lists pending trigger events.
    META_JOB_FRESH,    // Empties the store: a new generation.
    META_JOB_RESTORE,  // One chunk of a snapshot for the incoming generation.
    META_JOB_RESTORE_END,
    META_JOB_CLOSE,  // Closes a generation that nobody reads any more.
};

struct generation {
    struct kv *kv;
    uint32_t readers;  // Worker 0: snapshots of it.
    bool is_replaced;  // Worker 0: close it once nobody reads.
};

struct meta_job {
    struct job job;
    struct meta_fsm *f;
    enum meta_job_kind kind;
    // In.
    struct buf entries;  // APPLY: {u64 index, u64 term, u16 kind, u32 length, payload}...; RESTORE: a chunk.
    uint64_t last;       // APPLY: last index.
    bool wants_freeze;   // Leave the store synced and a reader of it in `frozen`.
    bool is_first, is_aborted;  // RESTORE..: starts a new incoming generation; RESTORE_END: throws it away.
    bool wants_load;            // RESTORE_END, FRESH: tell the whole tree, with a reset.
    uint64_t after;             // EVENTS: behind this sequence.
    struct generation *generation;  // CLOSE. Out of RESTORE_END, FRESH: the one that was replaced.
    // Out.
    struct feed *feed;   // Given to `done`; NULL: nothing to tell.
    struct buf results;  // struct tree_result of commands from this process.
    struct buf events;   // As tree_events.
    bool has_events;     // New ones came up.
    struct fsm_snapshot *frozen;
    uint64_t index, clock_ms, nodes, bytes;  // State after the job.
    bool has_uncommitted;
};

struct meta_fsm_config {
    const char *dir;  // Stays the caller's, until meta_fsm_close.
    uint64_t map_bytes;
    struct exec *exec;
    uint32_t node_id;  // Results of commands from (node_id, session) are handed out.
    uint64_t session;
    // Worker 0: a job came back. May take job->feed, ->results and ->events (sets them empty).
    void (*done)(void *ctx, struct meta_job *job);
    void (*role)(void *ctx, const struct consensus_status *status);
    void *ctx;
};

struct meta_fsm {
    struct meta_fsm_config config;
    uint32_t in_flight;           // Jobs.
    uint64_t handed;              // Index up to which entries were handed over, or restored.
    bool wants_freeze;            // A snapshot was asked for: every job leaves a frozen state behind.
    struct fsm_snapshot *frozen;  // As of the newest job done; NULL: none.
    uint64_t bytes;
    struct tree_snapshot_check *check;  // A restore is under way.
    bool restore_is_known;              // It was decided
    bool restore_is_needed;             // whether the snapshot brings anything new.
    bool is_loaded;                     // Subscribers were told a tree: a restore tells them the new one.

    // Meta thread (before the threads start: main).
    struct tree tree;
    struct generation *generation;
    bool is_published;
    struct generation *incoming;
    struct kv_txn *incoming_txn;
    struct kv_copy_reader incoming_reader;
    uint64_t incoming_bytes;
};

extern const struct fsm_ops meta_fsm_ops;  // ctx is the struct meta_fsm.

// Opens the store (blocks). *is_damaged: there was one, and it cannot be trusted; a new empty generation was
// begun, not published. *is_new: nothing is in the store (blank, or damaged).
MUST_USE enum rc meta_fsm_open(struct meta_fsm *f, const struct meta_fsm_config *config, bool *is_damaged,
                               bool *is_new);
void meta_fsm_close(struct meta_fsm *f);                            // No job may be under way.
void meta_fsm_submit(struct meta_fsm *f, enum meta_job_kind kind);  // COMMIT, FRESH.
void meta_fsm_load(struct meta_fsm *f);  // Publishes and tells the whole tree; from now on feeds count.
void meta_fsm_list_events(struct meta_fsm *f, uint64_t after);
