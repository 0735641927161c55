// SPDX-License-Identifier: Apache-2.0
// Sealed segments: format, writer, reading of their tables. README.md has the format in words.
//
// A segment is written once under a temporary name by the cold thread, sealed (data synced, renamed,
// directory synced) and never changed. In memory there is one `struct segment` per file and one `struct run`
// per run that is still live; offset arrays stay on disk.
#pragma once
#include "consensus/consensus.h"
#include "consensus/wal/disk.h"
#include "node/base/list.h"
#include "proto/record.h"
#include <stdatomic.h>

struct store;

enum {
    SEGMENT_HEADER_BYTES = 4096,
    SEGMENT_VERSION = 1,
    SEGMENT_VERSION_FAR = 2,  // With a run that counts from a base of its own: only when there is one.
    SEGMENT_PATH_MAX = 64,
};
#define SEGMENT_MAGIC 0x31474553574eu  // Little endian "NWSEG1".
#define SEGMENT_TRAILER_MAGIC 0x444e45474553574eu

enum segment_kind {
    SEGMENT_RETIRED = 1,  // Live content of the WAL file `origin`, and snapshots. Its entries count only once
                          // the checkpoint says that the file is retired.
    SEGMENT_SNAPSHOTS = 2,  // Snapshots taken on request.
    SEGMENT_INSTALLED = 3,  // A snapshot received from a leader, with its live entries.
    SEGMENT_COMPACTED = 4,  // What was left of other segments. Its runs keep the origin they had there.
};

struct segment_header_disk {
    uint64_t magic;
    uint32_t version;
    uint32_t kind;
    uint64_t seq;
    uint64_t origin;  // WAL file the content came from; 0 for the other kinds.
    uint32_t base_shift;  // Version 2: run_disk.base is in units of 1 << base_shift bytes. Version 1: 0.
    uint32_t crc;         // Over everything before it.
};
static_assert(sizeof(struct segment_header_disk) == 40, "segment header layout");

enum run_flag {
    RUN_SNAPSHOT = 1,  // Chunks of a snapshot: first/term are its index and term, count its chunks, index_pos
                       // is the file position of chunk 0.
    RUN_COMMITTED =
        2,  // All indexes lie at or below the snapshot of their group: no other version can be right.
    RUN_CONFIG = 4,  // One entry that is a RECORD_CONFIG.
};

// One run: entries of one group, of one term, ascending. Dense: `count` offsets. Sparse (count < span + 1;
// only committed ones): `count` distances from `first`, then `count` offsets. Offsets are u32: file positions
// from `base` on, / 8.
struct run_disk {
    uint64_t group;
    uint64_t origin;
    uint64_t first;
    uint64_t term;
    uint64_t index_pos;  // File position of the arrays.
    uint64_t bytes;      // Of the records.
    uint32_t span;       // Last index - first.
    uint32_t count;
    uint32_t flags;
    uint32_t base;  // In the header's units; 0 in version 1.
};
static_assert(sizeof(struct run_disk) == 64, "run layout");

struct segment_trailer_disk {
    uint64_t magic;
    uint64_t seq;
    uint64_t runs_pos;
    uint64_t file_bytes;  // Of the whole file.
    uint32_t runs_count;
    uint32_t runs_crc;
    uint32_t kind;
    uint32_t crc;  // Over everything before it.
};
static_assert(sizeof(struct segment_trailer_disk) == 48, "trailer layout");

struct segment {
    struct list link;  // In a worker's list of doomed ones.
    struct list all;   // In store.segments while it has users. Under the store's mutex, like the next four.
    uint32_t home;     // The worker that compacts it; goes round if several workers' groups lie in it.
    bool is_taken;     // A compaction is at work on it.
    bool is_evidence;  // The start does not remove it, users or not.
    bool is_kept;      // Holds a record that does not check: stays as it is.
    uint64_t seen_live, seen_at;  // Live bytes when a compaction last looked, and since when they are that many.
    uint64_t seq;
    uint64_t origin;
    uint64_t bytes;  // File size.
    uint64_t data_bytes;  // Of all records that runs and snapshots name.
    uint32_t kind;
    uint32_t base_shift;  // Unit of its runs' bases.
    _Atomic uint32_t shared_refs;  // Runs, snapshots and reads that use it; 0: the file may go. acq_rel: the
                                   // last one to let go sees what all others did.
    _Atomic uint64_t shared_live_bytes;  // Relaxed; of runs and snapshots, for choosing what to compact.
    uint64_t doomed_after;               // Delete once this submission has come back.
};

enum {
    RUN_INDEX_POS_BITS = 42,
    RUN_BASE_BITS = 22,
    SEGMENT_BASE_SHIFT = 22,
};
// A run's entries begin less than this behind its base: so their offsets fit into 32 bits, and its bytes too.
#define SEGMENT_REACH ((uint64_t)16 << 30)
// No segment's records are more: positions of arrays have 44 bits, bases as well.
#define SEGMENT_BYTES_MAX ((uint64_t)12 << 40)

// A run that still has live entries, in its glog's table.
struct run {
    struct segment *segment;  // Counted in shared_refs.
    uint64_t first;
    uint64_t term;
    uint64_t index_pos : RUN_INDEX_POS_BITS;  // / 4.
    uint64_t base : RUN_BASE_BITS;            // In the segment's units.
    uint32_t span;
    uint32_t count;  // Entries on disk.
    uint32_t live;   // Entries of them that are still needed.
    uint32_t bytes;  // / 8: of `count` records.
};
static_assert(sizeof(struct run) == 48, "a run costs 48 bytes");
// What a run adds to its segment's live bytes; an average, because exact sizes would need the offset array.
static inline uint64_t run_live_bytes(const struct run *r)
{
    return (uint64_t)r->bytes * 8 * r->live / r->count;
}
static inline uint64_t run_last(const struct run *r)
{
    return r->first + r->span;
}
// What first..last of a run on disk are in its glog's table, all of them live; the whole of it if it is sparse. The
// reference to `s` is the caller's to take.
struct run run_of(const struct run_disk *d, struct segment *s, uint64_t first, uint64_t last);

void segment_path(uint64_t seq, bool is_sealed, char out[SEGMENT_PATH_MAX]);

// ---- writing (cold thread) ----------------------------------------------------------------------

struct segment_writer {
    struct disk *disk;
    struct disk_file *file;  // NULL until the first byte.
    uint64_t seq;
    uint64_t origin;  // Of the file, and of the runs written now.
    uint32_t kind;
    uint64_t reach;       // SEGMENT_REACH, or less in a test.
    uint32_t base_shift;
    bool is_far;          // Some run has a base.
    // Called when a write finds no room for the file's first `bytes`; true: there is some now. NULL: nobody knows of any.
    bool (*more_room)(void *ctx, uint64_t bytes);
    void *more_room_ctx;
    uint64_t flushed;   // File position of out.ptr[0].
    struct buf out;     // Not yet written.
    struct buf arrays;  // Index arrays; positions in `runs` are relative until sealed.
    struct buf runs;    // struct run_disk.
    // The open run.
    bool has_run;
    struct run_disk run;
    struct buf deltas;
    struct buf offsets;
};
// `reach`: at most SEGMENT_REACH; 0: that.
void segment_writer_init(struct segment_writer *w, struct disk *disk, uint64_t seq, uint64_t origin,
                         uint32_t kind, uint64_t reach);
void segment_writer_deinit(struct segment_writer *w);  // Removes the temporary file if it was not sealed.
// Appends one verified record (whole, padded). Entries of a group come in ascending order.
MUST_USE enum rc segment_write_entry(struct segment_writer *w, const struct record_disk *r,
                                     struct span record, bool is_committed);
// The same for a record whose bytes were appended by segment_write_raw, `len` of them from `position` on.
void segment_note_entry(struct segment_writer *w, const struct record_disk *r, uint64_t position,
                        uint64_t len, bool is_committed);
// Takes back the runs from number `from` on, the open one included (a record did not check): their bytes stay, unnamed.
void segment_forget_runs(struct segment_writer *w, uint32_t from);
// Appends bytes that belong to no run (snapshot chunks); returns their file position. RC_NO_SPACE also beyond
// SEGMENT_BYTES_MAX.
MUST_USE enum rc segment_write_raw(struct segment_writer *w, struct span bytes, uint64_t *position);
// Overwrites bytes written earlier.
MUST_USE enum rc segment_patch(struct segment_writer *w, uint64_t position, struct span bytes);
void segment_add_snapshot(struct segment_writer *w, uint64_t group, uint64_t index, uint64_t term,
                          uint64_t position, uint64_t bytes, uint32_t chunks);
void segment_end_run(struct segment_writer *w);
static inline uint32_t segment_runs_count(const struct segment_writer *w)
{
    return (uint32_t)(w->runs.len / sizeof(struct run_disk));
}
uint64_t segment_data_bytes(const struct run_disk *runs, uint32_t count);
MUST_USE enum rc segment_sync(struct segment_writer *w);  // What was written so far, not yet sealed.
// Writes tables and trailer, syncs, renames, syncs the directory. Afterwards the positions in `runs` are
// absolute.
MUST_USE enum rc segment_seal(struct segment_writer *w, uint64_t *file_bytes);

// ---- opening (start-up) -------------------------------------------------------------------------

// Reads header, trailer and run table of a sealed segment. RC_CORRUPT if they are not whole.
MUST_USE enum rc segment_load(struct disk *d, uint64_t seq, struct segment **out, struct run_disk **runs,
                              uint32_t *runs_count);
