// SPDX-License-Identifier: Apache-2.0
// Inside of the store: what its files share. store.h is the contract; README.md tells the files in reading
// order.
#pragma once
#include "consensus/store/arena.h"
#include "consensus/store/cold.h"
#include "consensus/store/segment.h"
#include "consensus/store/store.h"
#include "node/base/log.h"
#include <pthread.h>
#include <stdlib.h>

// RECORD_TRUNCATE with this flag: a snapshot up to index - 1 was installed; the log before it is void as a
// whole.
#define RECORD_FLAG_INSTALLED 1u
// RECORD_HARD_STATE with this flag: damage was found, the replica has lost its memory.
#define RECORD_FLAG_LOST 1u
// RECORD_SNAPSHOT with this flag: part of the header (config, live set), not of the machine's state.
#define RECORD_FLAG_HEADER 1u

// ---- a published snapshot -----------------------------------------------------------------------

// Index, place and live set are one value: immutable once published, replaced as a whole. Owner: its glog.
struct snapshot {
    uint64_t index;
    uint64_t term;
    struct segment *segment;  // Counted in shared_refs.
    uint64_t position;        // Of chunk 0 in the segment.
    uint64_t bytes;           // Of all chunks.
    uint32_t chunks;
    uint32_t live_count;      // Ranges.
    struct live_range live[];  // Behind them the configuration, packed: u8 length, bytes (snapshot.c).
};
static_assert(sizeof(struct snapshot) == 48, "with an idle group's packed configuration it fits into 64 bytes");
void snapshot_free(struct snapshot *s);  // After its segment was let go.
// `live`: struct live_range one after another. snapshot_place comes next.
struct snapshot *snapshot_create(uint64_t index, uint64_t term, const struct config *config,
                                 struct span live);
void snapshot_config(const struct snapshot *s, struct config *out);  // count 0 without one.
bool snapshot_is_live(const struct snapshot *s, uint64_t index);
// Number of live indexes in first..last.
uint64_t snapshot_live_between(const struct snapshot *s, uint64_t first, uint64_t last);
// Says where the chunks lie: counts a reference to the segment, and their bytes.
void snapshot_place(struct snapshot *s, struct segment *segment, uint64_t position, uint64_t bytes, uint32_t chunks);
// First live range with last >= index; live_count if none.
uint32_t snapshot_live_find(const struct snapshot *s, uint64_t index);

// The header of a snapshot's chunk stream (README.md): encode behind `to`; decode.
struct snapshot_header {
    uint32_t fsm_version;
    uint64_t state_bytes;  // Payload bytes of the state's chunks.
    uint32_t chunks;       // Header chunks included.
    struct config config;
    struct buf live;  // struct live_range; owned.
};
void snapshot_header_encode(const struct snapshot_header *h, struct buf *to);
MUST_USE enum rc snapshot_header_decode(struct span bytes, struct snapshot_header *out);

// Puts a whole record (sum, padding) behind `to`.
void record_put(struct buf *to, uint64_t group, uint64_t index, uint64_t term, uint16_t kind, uint16_t flags,
                uint32_t aux, struct span payload);

// ---- a group's log ------------------------------------------------------------------------------

struct receive;  // snapshot_transfer.c
struct compaction;  // compact.h
struct checkpoint_job;  // leave.c

// References to what of a log is not yet in segments: a ring over window_first .. window_first +
// window_count - 1, whose end is `last`. Indexes at or below the snapshot that are not live are REF_NONE in it.
struct window {
    struct list active;  // In worker->active.
    struct glog *log;
    uint32_t head;  // Place of window_first.
    uint32_t cap;   // Power of two.
    uint64_t refs[];
};

// Owner thread: the worker's.
struct glog {
    uint64_t group;  // First: the key in worker->groups.
    struct store_worker *worker;
    struct hard_state hard_state;
    uint64_t replica_id;        // Whose log it is; 0: not known.
    struct snapshot *snapshot;  // NULL without one.
    uint64_t last;              // Last index; the snapshot's if the log is empty behind it.
    uint64_t window_first;
    struct window *window;  // NULL while it is empty.
    uint32_t window_count;
    uint32_t runs_count;
    uint32_t epoch;              // New at every cut; what was planned before one is looked at again.
    uint8_t hold;                // Retirements for which the snapshot stays because it is being sent.
    bool is_snapshot_wanted : 1; // In worker->snapshot_wanted.
    bool is_harvested : 1;       // Is in the harvest in progress,
    bool is_snapshot_coming : 1; // with a snapshot.
    bool is_amnesiac : 1;        // Damage was found; stays until the group is deleted.
    struct run *runs;            // Ascending and disjoint; NULL while there is none. Behind a struct runs_head.
    uint64_t bytes_since;        // Appended since the current snapshot's state was frozen, or since the start.
    uint64_t segment_floor;      // Segments of a lower number are of an earlier life of the group: void.
    uint64_t large_until;        // Last turn in which something of it went by the large lane and has not come
                                 // back; 0: none.
};
static_assert(sizeof(struct glog) <= 120, "an idle group's log costs at most 120 bytes");

static inline uint64_t glog_snapshot_index(const struct glog *g)
{
    return g->snapshot == NULL ? 0 : g->snapshot->index;
}
static inline uint64_t glog_window_ref(const struct glog *g, uint64_t index)
{
    assert(index >= g->window_first);
    assert(index - g->window_first < g->window_count);
    const struct window *w = g->window;
    return w->refs[(w->head + (uint32_t)(index - g->window_first)) & (w->cap - 1)];
}
// An arena_keep_fn over a store_worker: the group's machine has not been given this record yet.
bool store_worker_keeps(void *ctx, const uint8_t *record);

enum glog_where { WHERE_NOWHERE, WHERE_CHUNK, WHERE_RUN };
// Where `index` is: *ref or *run is set.
enum glog_where glog_find(const struct glog *g, uint64_t index, uint64_t *ref, const struct run **run);

struct glog *glog_create(struct store_worker *w, uint64_t group);
void glog_free(struct glog *g);  // Without a trace on disk.
void glog_window_push(struct glog *g, uint64_t ref);
// Sets window references to REF_NONE (dropping the chunk's count) and gives up the empty front.
void glog_window_drop(struct glog *g, uint64_t first, uint64_t last);
void glog_window_trim(struct glog *g);
void glog_add_run(struct glog *g, const struct run *run);  // Takes run->segment's reference.
uint32_t glog_runs_find(const struct glog *g, uint64_t index);  // First run whose last >= index; runs_count if none.
// Puts `count` runs (whose references it takes) in the place of run number `at`.
void glog_replace_run(struct glog *g, uint32_t at, const struct run *runs, uint32_t count);
// Entries of a run that still count: the live ones at or below the snapshot, and all above it.
uint64_t glog_live_in(const struct glog *g, const struct run *r);
// A record that the group needs does not check (`rc`): from now on its replica has lost its memory (law 2),
// over restarts too.
// Tells hooks.damaged, once.
void glog_damaged(struct glog *g, enum rc rc, const char *what);
// The same for a result of a read: RC_CORRUPT, RC_IO and RC_NO_FILE are damage. The group may be gone.
void store_read_failed(struct store_worker *w, uint64_t group, enum rc rc, const char *what);
// The one way in which anything leaves the log's end (P12): drops all indexes >= from, also live ones, from
// every structure. The caller sets `last`.
void glog_cut(struct glog *g, uint64_t from);
// Makes `s` current (takes it): the dense log begins behind it, indexes at or below it that are not live are
// dropped. `bytes_before`: value of bytes_since when its state was frozen.
void glog_publish_snapshot(struct glog *g, struct snapshot *s, uint64_t bytes_before);
void glog_put_control(struct glog *g, uint16_t kind, uint16_t flags, uint64_t index, uint64_t term,
                      struct span payload);

// ---- a worker -----------------------------------------------------------------------------------

// Work that is out with the executor, listed so that closing the store can free it. First member of each
// kind.
struct plan {
    struct list link;  // In worker->plans.
    void (*free)(struct store_worker *w, struct plan *p);
};
void plan_begin(struct store_worker *w, struct plan *p,
                void (*free_fn)(struct store_worker *w, struct plan *p));
void plan_end(struct store_worker *w, struct plan *p);  // Unlists and frees it.

struct submission {
    struct wal_submission base;
    struct list all;  // In worker->submissions.
    struct list out;  // In worker->out while the WAL has it.
    struct list notes;
    uint64_t number;
    struct arena_range *ranges;  // Same count as base.ranges.
    uint32_t cap;
};

struct closed_file {
    struct list link;
    uint64_t seq;
    uint64_t after;  // Plan once this submission has come back: then it is known what lies in the file.
};

enum {
    // Large records not yet applied may take the memtable above its budget by this much (a group without a
    // majority applies nothing). They hold up the retirement of their WAL file only while no later file waits.
    KEPT_BYTES_MAX = 256 << 20,
};

// Merging of segments (compact.c). Owner thread: the worker's, but for `shared_is_due`.
struct compacting {
    struct compaction *job;       // In progress, or NULL.
    _Atomic bool shared_is_due;   // Relaxed: some segment lost live bytes or is new; have a look.
    uint32_t fan_in;              // Small segments of about one size that are merged.
    uint64_t look_at;             // Not before.
    uint64_t rate;                // Bytes per second now.
    uint64_t watched, watched_at; // A submission on its way to the WAL, and since when.
    uint64_t finished;            // Compactions that replaced something.
    uint64_t copied_bytes;        // By them, tables included.
    uint64_t latency_quiet, latency_busy;  // Of the WAL, averaged, without and with a slice being written.
};

// Removal of segments without users (remove.c). Owner thread: the worker's.
struct removing {
    struct removal *job;   // In progress, or NULL.
    uint64_t piece_at;     // When the last piece began; 0: not known.
    uint64_t idle_until;   // The next does not begin before,
    uint64_t rest_until;   // nor before this while the log is written to. 0: not known yet.
    uint64_t submitted;    // As of the beginning of the rest.
};

// Owner thread: the worker's, but for `cold` (jobs).
struct store_worker {
    struct store *store;
    uint32_t index;
    struct exec *exec;
    struct store_hooks hooks;
    struct arena arena;
    struct map groups;        // struct glog by its group.
    uint32_t groups_in_segments;  // Those with runs.
    uint32_t epochs;          // Last one given to a glog.
    struct list active;       // struct window.active
    struct list submissions;  // All of them.
    struct list free_submissions;
    struct list plans;
    struct list out[LANES];    // struct submission on its way, in order of turns.
    uint32_t large_bytes;      // A record above this goes by the large lane.
    uint64_t submitted;        // Number of the last turn that handed something to the WAL.
    uint64_t completed;        // Everything of the turns up to this one has come back.
    bool has_failed;     // A submission failed: nothing is planned, published or deleted any more.
    struct cold cold;
    // Retirement.
    struct list closed;          // struct closed_file, ascending.
    uint64_t closed_seq;         // Highest told.
    struct harvest *harvest;     // In progress, or NULL.
    bool is_harvest_blocked;     // The disk was full: tried again when the next file is closed, or by
                                 // store_worker_room.
    struct checkpoint_job *stuck_checkpoint;  // The disk was full: tried again likewise. NULL: none.
    struct map snapshot_wanted;  // u64 -> struct glog.
    struct map receives;         // u64 -> struct receive: the snapshot that a group is receiving.
    struct compacting compacting;
    struct removing removing;
    struct list leaving;  // struct leaving (leave.c): files whose content is elsewhere, on their way out.
    struct list doomed;   // struct segment without users: deleted once everything before is durable.
};

// By which lane a record of `size` bytes goes now: what is behind a large one must not pass it.
static inline bool glog_goes_large(const struct glog *g, uint64_t size)
{
    return size > g->worker->large_bytes || g->large_until != 0;
}

// Lets go of a segment. The last one to do so has the file deleted.
void segment_release(struct store_worker *w, struct segment *s);
// The segment that was sealed with `written` (`bytes` long; 0: nothing was written), with the caller's reference.
struct segment *segment_create(struct store_worker *w, const struct segment_writer *written, uint64_t bytes);
// Lists it in the store. Recovery.
void segment_list(struct store *s, struct segment *segment, uint32_t home);
// Live bytes of a segment changed by this much.
void segment_live_add(struct segment *s, uint64_t bytes);
void segment_live_sub(struct store_worker *w, struct segment *s, uint64_t bytes);
static inline void segment_hold(struct segment *s)
{
    atomic_fetch_add_explicit(&s->shared_refs, 1, memory_order_relaxed);
}

// ---- the node -----------------------------------------------------------------------------------

// A WAL file on its way out: each worker adds its lines of the checkpoint; the last one writes it.
struct round {
    struct list link;
    uint64_t seq;
    uint32_t workers_done;
    struct buf lines;
    uint32_t lines_count;
};

struct store {
    struct store_config config;
    struct wal *wal;
    struct store_worker *workers;
    _Atomic uint64_t shared_next_segment;  // Relaxed: only the number matters.
    bool is_closing;
    // Around whole disk operations: of the cold threads and the WAL's, never a worker's.
    pthread_mutex_t reserve_mutex;
    _Atomic bool shared_is_short;  // One of the reserves is not there (reserve.c). Relaxed; changed under reserve_mutex.
    bool has_reserve, has_last;    // Under reserve_mutex.
    uint64_t *recovered_files;  // WAL files met at recovery, ascending: retired by and by.
    uint32_t recovered_count;
    // Once per WAL file and worker, and per segment made, looked at or deleted; never on the data path.
    pthread_mutex_t mutex;
    struct list rounds;        // Under mutex.
    struct list segments;      // struct segment.all, under mutex.
    uint32_t segments_count;   // Under mutex.
    uint64_t checkpoint_seq;   // Under mutex: the newest.
    uint64_t retired_through;  // Under mutex: the highest WAL file whose retirement was told.
};

// reserve.c: on the cold thread and at the start.
bool reserve_release(struct store *s);  // The disk is full. True: there is room now that there was not.
void reserve_restore(struct store *s);
void reserve_find(struct store *s);   // Before a start: what there is may be used by it,
void reserve_start(struct store *s);  // and after it is made up again.
// The same with the last reserve, for a file of `bytes` in all; and after it was in vain: back at once.
bool reserve_release_last(struct store *s, uint64_t bytes);
void reserve_restore_last(struct store *s);
bool reserve_for_wal(void *store, uint64_t bytes);  // A wal_config.more_room. The WAL's thread.
// A segment_writer's more_room over a store.
bool reserve_for_segment(void *store, uint64_t bytes);
// leave.c
void leave_begin(struct store_worker *w, uint64_t seq);  // What was in this WAL file of the worker is published.
uint64_t compact_turn(struct store_worker *w, uint64_t now_ns);  // compact.c; both: when next, as store_worker_tidy.
uint64_t removal_turn(struct store_worker *w, uint64_t now_ns);  // remove.c.
void removal_pump(struct store_worker *w);               // Behind every flush.
void leave_pump(struct store_worker *w);                 // From harvest_pump.
void checkpoint_again(struct store_worker *w);           // Writes the one for which there was no room.
// harvest.c
// The group is in the harvest in progress, and from `from` on it is not as it was planned any more.
void harvest_cut(struct store_worker *w, uint64_t group, uint64_t from);

// store.c
uint64_t store_next_segment(struct store *s);
// For a new log: the last turn in which something of this group went by the large lane and has not come back; 0: none.
uint64_t store_large_until(const struct store_worker *w, uint64_t group);
struct store_worker *store_worker_of(struct store *s, uint64_t group);

// harvest.c
void harvest_pump(
    struct store_worker *w);  // Starts what is due: at the end of a turn and when something came back.

// compact.c
void compaction_init(struct store_worker *w);
void compaction_due(struct store *s);  // Every worker has a look when it next can.

// copy.c: on the cold thread.
// Copies one verified record from a file to a segment under construction. A large one goes in pieces: the
// cold thread must not hold another message of any size in memory. *read_rc: what is wrong with the source,
// if anything; then nothing was written that counts. Returns what is wrong with the target.
MUST_USE enum rc copy_entry(struct segment_writer *to, struct cold *cold, struct cold_file from, uint64_t position,
                            uint64_t group, uint64_t index, bool is_committed, enum rc *read_rc);
uint64_t copy_slice_bytes(const struct store *s);  // Written between two syncs.
static inline bool rc_is_damage(enum rc rc)
{
    return rc == RC_CORRUPT || rc == RC_IO || rc == RC_NO_FILE;
}

// checkpoint.c
struct checkpoint_line {
    uint64_t group;
    uint64_t replica_id;  // 0: not known (version 1).
    struct hard_state hard_state;
    uint64_t snapshot_index;  // 0 none.
    uint64_t snapshot_term;
    uint64_t dense_last;  // Last index that is in segments; what runs claim beyond it was truncated.
    uint64_t segment_floor;
    bool has_live;  // The snapshot has a live set (else its header need not be read).
    bool is_amnesiac;
    struct config config;  // The snapshot's; count 0 without one.
};
void checkpoint_add(struct buf *lines, const struct glog *g, uint64_t dense_last);
MUST_USE enum rc checkpoint_write(struct disk *d, uint64_t seq, struct span lines, uint32_t count);
// The same on a disk that may be full: with the room of the reserves.
MUST_USE enum rc checkpoint_write_full(struct store *s, uint64_t seq, struct span lines, uint32_t count);
void checkpoint_remove(struct disk *d, uint64_t seq);
// Calls each() for every line. RC_NO_FILE: there is none. RC_CORRUPT: not whole; lines before the damage were
// told.
MUST_USE enum rc checkpoint_read(struct disk *d, uint64_t seq,
                                 void (*each)(void *ctx, const struct checkpoint_line *l), void *ctx);
void checkpoint_name(uint64_t seq, char *out, size_t size);
