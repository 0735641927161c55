// SPDX-License-Identifier: Apache-2.0
// The tree: the metadata group's state, on a kv store. Pure: its inputs are log entries, its outputs changes
// and results.
//
// A node has an id (never reused; 0 is the root, which always is), payload, payload version, child list
// version, child count. Nodes made only as parents live while they have children. keep_while: a node lives
// only while others exist (or have children); what is lost with a node goes in the same command, and every
// node that went is told (README.md: rows, cascade).
//
// Applying is total and deterministic (law 5): same entries, same rows, on every back end. The store's
// failures do not count as answers: they stick in tree.rc, and the process must end then (P6). Thread: one at
// a time (meta thread; before the threads start: main). Not reentrant.
#pragma once
#include "metastore/command.h"
#include "metastore/kv.h"

enum { TREE_SCHEMA = 1, TREE_DEDUP_MS = 60000, TREE_CONFIG_MAX = 1024 };

// The meta row, kept in memory and written at each commit.
struct tree_meta {
    uint64_t applied_index;
    uint64_t applied_term;
    uint64_t next_id;      // Of nodes; from 1.
    uint64_t next_event;   // Of trigger events; from 1.
    uint64_t next_number;  // meta_allocate_ids; from META_NUMBER_FIRST.
    uint64_t clock_ms;     // Newest stamp; never falls.
    uint64_t nodes;
    uint64_t rows;          // In all tables but KV_META.
    uint64_t digest;        // Sum of the hashes of those rows.
    uint64_t config_index;  // 0: none in the log so far.
    uint32_t config_len;
    uint8_t config[TREE_CONFIG_MAX];  // As encoded in the entry.
};

struct tree_trigger {
    uint32_t id;
    uint8_t events;
    struct buf path;  // Encoded.
};

struct tree {
    struct kv *kv;       // Borrowed.
    struct kv_txn *txn;  // The open write transaction, or NULL.
    struct tree_meta meta;
    uint64_t dirty_bytes;  // Written in the open transaction.
    enum rc rc;            // First failure of the store; sticks.
    bool is_logging;       // Rows written now can be undone.
    struct buf undo;       // Old rows of the running command,
    struct buf undo_at;    // and where each begins (size_t).
    struct buf raw;        // Scratch: a row with its sum.
    struct buf body;       // Scratch: a row before that.
    struct buf payload;    // Scratch: a put's payload.
    struct buf *changes;   // Output of the running command.
    struct tree_trigger *triggers;
    uint32_t triggers_count;
    bool triggers_changed;  // By the running command.
};

struct tree_result {
    bool is_command;  // Else the entry had no effect but to be counted.
    bool is_repeat;   // The dedup table knew it: nothing was changed, this is the first result.
    struct command_ref ref;
    enum rc rc;
    uint32_t failed_op;
    uint64_t index;    // Of the command that was executed.
    uint32_t removed;  // Nodes that went, with payload or without.
    bool has_events;   // Trigger events were added.
};

// Takes over what the store holds; an empty store is an empty tree at index 0. RC_CORRUPT: the meta row is
// damaged or unknown.
MUST_USE enum rc tree_open(struct tree *t, struct kv *kv);
void tree_close(struct tree *t);  // Drops what is not committed. The kv stays open.
// Reads everything once: sums, order, counts, digest. RC_OK, RC_CORRUPT.
MUST_USE enum rc tree_verify(struct tree *t);

// Applies one entry; index <= applied is skipped (replay), else it must be higher. Changes (change.h) are
// appended to `changes`.
void tree_apply(struct tree *t, uint64_t index, uint64_t term, uint16_t kind, struct span payload,
                struct buf *changes, struct tree_result *out);
MUST_USE enum rc
tree_commit(struct tree *t);  // Writes the meta row and ends the transaction, if one is open.

// Every node with a payload as a created one, parents before children, appended to `changes`.
void tree_walk(struct tree *t, struct buf *changes);

struct tree_node_info {
    uint64_t id, version, child_version;
    uint32_t child_count;
    bool has_payload;
    struct span payload;  // Borrowed until the next call.
};
bool tree_get(struct tree *t, const struct meta_path *p, struct tree_node_info *out);

// Pending trigger events behind `after`, in order: encoded {u64 seq, u32 trigger, u8 event, path, u32 length,
// payload}.
void tree_events(struct tree *t, uint64_t after, struct buf *to);

// One number for the whole state: equal on replicas at the same index.
uint64_t tree_digest(const struct tree *t);
// For tests: every index row has its counterpart, counts are right. RC_OK or RC_BUG.
MUST_USE enum rc tree_check(struct tree *t);

// Checks a snapshot stream without storing it: sums, meta row, digest. (Any thread.)
struct tree_snapshot_check {
    struct kv_copy_reader reader;
    struct tree_meta meta;
    bool has_meta;
    uint64_t rows;
    uint64_t digest;
};
void tree_snapshot_check_init(struct tree_snapshot_check *c);
void tree_snapshot_check_deinit(struct tree_snapshot_check *c);
MUST_USE enum rc tree_snapshot_check_chunk(struct tree_snapshot_check *c, struct span chunk);
MUST_USE enum rc tree_snapshot_check_end(struct tree_snapshot_check *c);
