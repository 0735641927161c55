// SPDX-License-Identifier: Apache-2.0
// The log store of a node: group logs over memtable, WAL files and segments. store/README.md has the formats, the
// life of an entry, and who may touch what on which thread.
//
// One `struct store` a node; one `struct store_worker` a worker, which owns that worker's arena chunks and group logs
// (`struct glog`). The life of an entry: laid down in an arena chunk (with its sum) -> handed to the WAL in the turn's
// submission -> durable -> may be evicted from memory (then read by file and offset) -> when its WAL file is retired
// copied to a segment if it is live (above the snapshot, or in the live set) -> dropped when neither.
#pragma once
#include "consensus/consensus.h"
#include "consensus/wal/wal.h"
#include "node/base/exec.h"
#include "node/base/map.h"

struct store;
struct store_worker;
struct glog;

// ---- opening ---------------------------------------------------------------------------------------------------

struct store_config {
    struct disk *disk;
    uint32_t workers;
    uint32_t (*worker_of)(void *ctx, uint64_t group);  // Which worker owns a group (shard table).
    void *worker_of_ctx;
    uint64_t memtable_bytes;   // Of the node; split evenly over the workers.
    uint64_t wal_file_bytes;
    uint32_t wal_align;
    uint32_t wal_reserve_files;  // See wal_config.
    uint64_t reserve_bytes;      // Size of the file `wal/reserve` (reserve.c); 0: none is kept.
    uint64_t last_bytes;         // Size of the file `wal/reserve-last`, for what is small and frees much; 0: none is kept.
    uint32_t wal_slice_bytes;  // Above this a record is written to the WAL in slices (wal.h, is_large); 0: the default.
    uint64_t random;
    uint8_t cluster_id[16];    // For the WAL (wal_config); zeros until known.
    bool must_exist;           // There has been a store here before: see wal_config.
    uint64_t removal_piece;    // For tests and the simulator: what is cut of a file at once; 0: the default.
    uint32_t harvest_groups;   // For tests and the simulator: groups of one harvest; 0: the default.
    uint64_t segment_reach;    // For tests and the simulator: SEGMENT_REACH, made small; 0: as it is.
    uint64_t compact_bytes_per_s;  // What merging segments may write, per worker; 0: the default.
    // Handed on to the WAL (wal_config.on_file_closed, on_done), for drivers without wal_thread. May be NULL with it.
    void (*on_wal_file_closed)(void *ctx, uint64_t file_seq);
    void (*on_wal_done)(void *ctx, struct wal_submission *s);
    void *wal_ctx;
};

// What recovery found of one group; passed for each group known to checkpoint, segments or WAL.
struct store_group {
    uint64_t group;
    struct glog *log;  // Owned by the store_worker of this group; give it to the host.
    struct hard_state hard_state;
    uint64_t snapshot_index, snapshot_term;
    struct config snapshot_config;  // count = 0 without a snapshot.
    uint64_t first, last;           // Dense part: snapshot_index + 1 .. last.
    const struct term_run *runs;
    uint32_t runs_count;
    struct config config, config_before;  // As replica_start wants them; count = 0 if no config entry was met.
    uint64_t replica_id;  // Whose log it is; 0: nothing says so (no hard state yet, or written by an older version).
    bool is_amnesiac;
    bool is_hiding;       // Amnesiac, and what is damaged may be what a later replica of the group wrote here.
};
typedef void store_group_fn(void *ctx, const struct store_group *g);

// Reads checkpoint, segments, WAL (blocking; before the threads start). Groups with a tombstone are not reported.
// RC_UNSUPPORTED: a later version has written something here; it is all still there.
MUST_USE enum rc store_open(const struct store_config *config, store_group_fn *each, void *each_ctx,
                            struct wal_report *report, struct store **out);
void store_close(struct store *s);
// Before store_open, on a disk with little room: gives the reserve away, which the start makes up again if it can.
void store_make_room(struct disk *d);
// The same for a start that has found no room: the reserve or, without one, the last one. False: there is none.
bool store_make_last_room(struct disk *d);
// Any thread: the disk was full, or is nearly so; nothing more should be published.
bool store_is_short(const struct store *s);
struct wal *store_wal(struct store *s);

struct store_snapshot_source {
    const struct fsm_ops *ops;
    struct fsm_snapshot *handle;  // Ended (ops->snapshot_end) by the store on the worker thread.
    uint64_t index, term;
    struct config config;  // In force at `index`.
    uint64_t size_estimate;  // ops->size_estimate of the machine; 0: not known.
};

// Binds worker `i`: its cold executor, how to hand a submission to the WAL, and the hooks of retirement.
struct store_hooks {
    void (*submit)(void *ctx, struct wal_submission *s);  // To the WAL driver; completion by store_worker_wal_done.
    // A frozen state of the group as of its applied index for a snapshot, with index, term, config and snapshot handle;
    // false: not now (nothing applied since the last, or installing).
    bool (*snapshot_begin)(void *ctx, uint64_t group, struct store_snapshot_source *out);
    // The group's snapshot at index/term is durable and published; the dense log now starts behind it.
    void (*snapshot_taken)(void *ctx, uint64_t group, uint64_t index, uint64_t term);
    // Up to where the group's machine has been given its entries: a large record behind it stays in memory
    // (bounded). NULL: not known, nothing is kept for it.
    uint64_t (*applied)(void *ctx, uint64_t group);
    // A record that the group needs does not check, whoever read it: its replica has lost its memory and must
    // neither vote nor acknowledge from now on (law 2). Told once; recorded: the next start finds it
    // amnesiac. NULL: nobody asks.
    void (*damaged)(void *ctx, uint64_t group, enum rc rc);
    // Everything of WAL file `seq` that counts lives in sealed segments now. Called once by the last worker.
    void (*wal_retired)(void *ctx, uint64_t seq);
    // Segments nobody refers to any more are removed there: to remove a large file can take a disk a tenth of a second, for
    // which reads need not wait. NULL: on the cold executor.
    struct exec *removal;
    void *ctx;
};
struct store_worker *store_worker_bind(struct store *s, uint32_t worker, struct exec *cold,
                                       const struct store_hooks *hooks);

// ---- turns -----------------------------------------------------------------------------------------------------

// Begins what the caller hands over as a note.
struct store_note {
    struct list link;
    uint64_t group;  // In large_notes.
};
// Hands everything laid down since the last call to the WAL: one submission, and one for each group that has
// a large record under way. The notes ride with them and come back with them: those of groups with
// glog_is_large must be in `large_notes` (struct store_note). Call at the end of each loop turn. Both (may be
// NULL) are lists owned by the caller's layer that are moved into the submissions.
void store_worker_flush(struct store_worker *w, struct list *notes, struct list *large_notes);
// A submission came back from the WAL: records where its bytes are, moves its notes to `notes_out`. Returns its result.
enum rc store_worker_wal_done(struct store_worker *w, struct wal_submission *s, struct list *notes_out);
// A WAL file was closed: starts retirement of this worker's share of it (jobs on the cold executor).
void store_worker_file_closed(struct store_worker *w, uint64_t file_seq);
// Merges half-dead and small segments: in slices, each synced, within a budget of bytes per second that
// shrinks while the WAL's syncs suffer; and removes files in pieces, with rests while the WAL is busy. Call once a turn
// behind store_worker_flush. Returns when it wants both to be called again; UINT64_MAX: only when something else happens.
uint64_t store_worker_tidy(struct store_worker *w, uint64_t now_ns);
// There may be room again on a disk that was full: tries what waits for it. Call now and then while the disk
// is short of room.
void store_worker_room(struct store_worker *w);
// Number of the next submission: what is laid down now will be durable when submission `n` has come back.
uint64_t store_worker_submission(const struct store_worker *w);

// Whether the worker writes nothing for the time being: then entries on disk leave memory even below the
// budget, and 100,000 idle queues do not share 32 MiB of what was said at their declaration.
void store_worker_idle(struct store_worker *w, bool is_idle);
uint64_t store_worker_memory(const struct store_worker *w);       // Bytes of chunks now.
// Over budget and nothing can be evicted: take no proposals.
bool store_worker_is_over_budget(const struct store_worker *w);
uint64_t store_worker_unsynced_bytes(const struct store_worker *w);  // Without what goes by the large lane.
uint32_t store_worker_groups_in_segments(const struct store_worker *w);  // Groups with entries in segments.

// ---- a group's log -----------------------------------------------------------------------------------------------

struct glog *store_glog_create(struct store_worker *w, uint64_t group);  // For a brand-new group.
struct glog *store_glog_find(struct store_worker *w, uint64_t group);
// The log of a replica whose past on this node is lost as a whole: empty, and amnesiac at later starts too (law 2).
struct glog *store_glog_create_lost(struct store_worker *w, uint64_t group);
void glog_delete(struct glog *g);  // Writes a tombstone; frees the log; its data is dead.

struct glog_part {
    const void *ptr;
    size_t len;
};
// Lays down one record at `index` = last + 1 (asserted), copying the parts with the sum in one pass
// (destroying those that are disposable: base/block.h). A large last part in a disposable block with room
// around it is not copied: the record is made around it, the log shares the block, and the part's bytes stay.
// RC_FULL: over budget (never for is_reserved).
MUST_USE enum rc glog_append(struct glog *g, uint64_t index, uint64_t term, enum record_kind kind, uint32_t aux,
                             const struct glog_part *parts, uint32_t parts_count, bool is_reserved);
// Lays down a whole record received from the leader (must be last + 1). RC_CORRUPT: sum differs, nothing was appended.
// A large one that lies in a block of its own is shared, not copied.
MUST_USE enum rc glog_append_record(struct glog *g, struct span record);
// A large record of the group, or something behind one, is on its way to the disk or was laid down in this
// turn: small records of other groups pass it, its own do not.
bool glog_is_large(const struct glog *g);
// What a record of `bytes` would have to be refused for, unless reserved.
bool glog_is_over_budget(const struct glog *g, uint64_t bytes);
void glog_write_hard_state(struct glog *g, struct hard_state hs);
// Whose log this is from now on: recorded with every hard state, so that after a crash no other replica of the group
// takes it for its own (law 2). A replica promises nothing before its first hard state.
void glog_set_replica(struct glog *g, uint64_t replica_id);
uint64_t glog_replica(const struct glog *g);  // 0: not known.
// Drops entries >= from (from > snapshot index); writes a truncate record.
void glog_truncate(struct glog *g, uint64_t from);
uint64_t glog_first(const struct glog *g);  // snapshot index + 1.
uint64_t glog_last(const struct glog *g);

// The entry at `index`: RC_OK if in memory (borrowed until the end of the turn), RC_COLD, RC_NOT_FOUND.
MUST_USE enum rc glog_get(struct glog *g, uint64_t index, struct entry *out);
// Contiguous records from..to as memory ranges, for sending: fills up to `iov_max` ranges and stops before `bytes_max`
// (but always takes one record). Returns the number of entries; 0 and RC_COLD if `from` is not in memory.
MUST_USE enum rc glog_ranges(struct glog *g, uint64_t from, uint64_t to, size_t bytes_max, struct iovec *iov,
                             int iov_max, int *iov_count, uint32_t *entries, struct term_run *runs,
                             uint8_t runs_max, uint8_t *runs_count);

// Reads entries from disk on the cold thread, verified. The records lie back to back in `bytes`.
struct glog_read {
    struct job job;
    uint64_t group;
    const uint64_t *indexes;  // Ascending; owned by the caller until done.
    uint32_t indexes_count;
    size_t bytes_max;         // Stops after this many (at least one).
    // Result:
    enum rc rc;               // RC_OK (read_count may be short because of bytes_max); else RC_CORRUPT, RC_IO or
                              // RC_NOT_FOUND for indexes[read_count]; the records before it are in `bytes`.
    struct buf bytes;         // Owned by the reader of the result.
    uint32_t read_count;
    void (*done)(struct glog_read *r);  // Worker thread.
    void *owner;
    void *plan;               // For the store.
};
void glog_read_start(struct glog *g, struct glog_read *r);

// ---- snapshots -------------------------------------------------------------------------------------------------

// Takes a snapshot now (through hooks.snapshot_begin), in a sealed segment; several requests share one file and sync.
void glog_snapshot_request(struct glog *g);
// One is requested or being written.
bool glog_snapshot_is_coming(const struct glog *g);
// Bytes of entries appended since the last snapshot (decides whether a snapshot is worth it).
uint64_t glog_bytes_since_snapshot(const struct glog *g);
// Of the entries behind the snapshot, wherever they are: no less than that. For a log just found at a start.
uint64_t glog_bytes_behind(const struct glog *g);
// The group's entries in segments that the current snapshot leaves: their bytes, about, and their number.
uint64_t glog_bytes_in_segments(const struct glog *g, uint64_t *entries_out);
// How many entries go with the current snapshot to a member that needs it; 0 without one. O(its live ranges).
uint64_t glog_snapshot_live(const struct glog *g);
// Damage was found here, at the start or later: the replica has lost its memory.
bool glog_is_lost(const struct glog *g);

// Sending the current snapshot (with its live entries) to a member that is behind: frames' worth of bytes at a time,
// made on the cold thread. `position` is opaque and starts at 0; `is_last` ends it. Pieces are self-contained: live
// entries as records, then snapshot chunks as records.
struct glog_snapshot_info {
    uint64_t index, term;
    struct config config;
};
MUST_USE enum rc glog_snapshot_info(struct glog *g, struct glog_snapshot_info *out);  // RC_NOT_FOUND without one.
struct glog_snapshot_read {
    struct job job;
    uint64_t index;       // Must be the current snapshot's, else RC_STALE.
    uint64_t position;    // In: where to go on. Out: the next.
    size_t bytes_max;
    enum rc rc;           // RC_OK; RC_STALE, RC_NOT_FOUND, RC_CORRUPT, RC_IO.
    bool is_last;
    struct buf bytes;     // Owned by the reader of the result.
    void (*done)(struct glog_snapshot_read *r);
    void *owner;
    void *plan;           // For the store.
};
void glog_snapshot_read_start(struct glog *g, struct glog_snapshot_read *r);

// Receiving: pieces are written to a segment under construction on the cold thread; the last one seals it, then
// `installed` is called on the worker: the log is empty behind `index` and the old content is dead.
struct glog_snapshot_write {
    struct job job;
    struct glog_snapshot_info info;
    uint64_t position;  // Of the sender, echoed for flow control.
    struct buf bytes;   // Taken.
    bool is_last;
    enum rc rc;         // RC_OK; RC_STALE (we have this snapshot or a newer one), RC_BUSY (broken off), RC_MALFORMED,
                        // disk errors.
    // Worker thread; after the last one with RC_OK the snapshot is current.
    void (*done)(struct glog_snapshot_write *w);
    void *owner;
    void *plan;         // For the store.
};
void glog_snapshot_write_start(struct glog *g, struct glog_snapshot_write *w);
void glog_snapshot_write_abort(struct glog *g);

// Loads the current snapshot's chunks one after another (start-up and after an install): calls each() on the worker
// thread for every chunk in order, then done().
struct glog_snapshot_load {
    struct job job;
    void (*each)(struct glog_snapshot_load *l, struct span chunk);
    void (*done)(struct glog_snapshot_load *l, enum rc rc);
    void *owner;
    struct buf bytes;    // For the store.
    uint64_t position;
    enum rc rc;
    void *plan;          // For the store.
};
void glog_snapshot_load_start(struct glog *g, struct glog_snapshot_load *l);
