// SPDX-License-Identifier: Apache-2.0
// The write-ahead log of a node: one sequence of batches for all groups, one fdatasync per batch (group commit by
// back-pressure: what arrives while a batch is being synced is the next one). Format: wal/README.md, engine-notes §7.7.
//
// The core is a state machine without threads. One driver (wal_thread.c; in the simulator the scheduler) does
//     while (wal_compose(w)) { rc = wal_write(w); wal_complete(w, rc); }
// wal_write is the part that blocks. In which order submissions complete: see struct wal_submission.
// All calls but wal_open come from the driver's thread.
#pragma once
#include "consensus/wal/disk.h"
#include "node/base/list.h"
#include "proto/record.h"

struct wal;

// A run of whole records lying contiguously in memory, in the order in which they are to be written.
struct wal_range {
    const uint8_t *ptr;  // Borrowed until the submission completes.
    uint32_t len;        // Multiple of RECORD_ALIGN.
    // Filled by the WAL: where the range went (whole: a range is never split over two files).
    uint64_t file_seq;
    uint64_t file_offset;
};

// Two kinds. Ordinary submissions (group 0) complete in order. One that names a group holds nothing of
// others; if it is longer than a slice it is written in slices between the batches of the others. Those of
// one group complete in order, and none before the ordinary ones submitted ahead of it, but all others pass
// it. So what must stay behind a large record, which is anything of its group, has to be submitted under the
// group's name, too, until that one has come back.
struct wal_submission {
    struct list link;          // For whoever holds it.
    struct wal_range *ranges;  // Owned by the submitter. May be empty: completes in order all the same.
    uint32_t ranges_count;
    uint16_t worker;           // For the thread: whose it is.
    uint64_t group;
    uint64_t after;            // For the WAL, with a group: so many ordinary ones come before it.
    uint64_t bytes;            // Sum of the ranges.
    enum rc result;            // RC_OK: everything is durable. Else the disk failed: nothing may be acknowledged.
    void *owner;               // For the submitter.
};

struct wal_config {
    struct disk *disk;
    const char *dir;         // "wal"
    uint8_t cluster_id[16];  // Zeros until known; checked only if both sides are not zero.
    uint64_t file_bytes;     // LIMIT_WAL_FILE_BYTES
    uint32_t reserve_files;  // Free files kept ready (0 or 1): room for what must be logged on a full disk.
                             // See wal_top_up.
    uint32_t align;          // Batches are padded to this (4096; 8 = none).
    uint32_t slice_bytes;    // Of a large submission in one batch; 0: LIMIT_WAL_SLICE_BYTES.
    uint64_t random;         // Seed for salts.
    bool must_exist;         // There has been a log here: without any file everything is lost, not new (law 2).
    // A file was closed (full); it may be retired. Driver's thread.
    void (*on_file_closed)(void *ctx, uint64_t file_seq);
    // A submission is durable or failed. Driver's thread.
    void (*on_done)(void *ctx, struct wal_submission *s);
    void *ctx;
    // Not even a small file finds room for the batch that waits (wal_write_small): true: there is some now, for `bytes`.
    // Driver's thread. NULL: nobody knows of any.
    bool (*more_room)(void *ctx, uint64_t bytes);
    void *more_room_ctx;
};

// One record met at recovery, in order of writing. `file_seq`/`file_offset` say where it will be read from later
// (the kept tail has been written again and synced before it is reported).
struct wal_recovered {
    struct record_disk record;
    struct span payload;  // Borrowed for the call.
    uint64_t file_seq;
    uint64_t file_offset;
};
typedef enum rc wal_replay_fn(void *ctx, const struct wal_recovered *r);

struct wal_report {
    uint64_t batches, records, bytes;
    uint64_t dropped_tail_bytes;  // Unsynced tail that was cut: normal after a crash.
    bool is_corrupt;              // Synced data is damaged: every group is amnesiac (law 2) unless ...
    bool corrupt_groups_known;    // ... the groups touched are known: listed through on_corrupt_group.
};

// Recovers what is in the directory, replays files with seq >= `first_seq` (older ones are put into the recycle pool or
// removed), and makes the log ready for writing. Files with unknown names are left alone (CR-11).
// on_corrupt_group is called (with replay_ctx) before anything behind the damaged record is replayed: later records of
// that group leave a hole. Files met here are not announced by on_file_closed: whoever keeps the records retires them
// (those without records leave with the next younger one). A new file is begun and synced, except on a disk without room:
// there the log goes on in the last one or, where it cannot, has none until there is room. RC_NO_SPACE comes only of a new
// log without room for its first file, and of file systems that want room to write in place; the same may be tried again.
// RC_IO, RC_NO_SPACE, RC_CONFLICT (another cluster's log), RC_UNSUPPORTED (a later version), what replay returned.
// Damage is told in the report, not as an error.
MUST_USE enum rc wal_open(const struct wal_config *config, uint64_t first_seq, wal_replay_fn *replay,
                          void *replay_ctx, void (*on_corrupt_group)(void *ctx, uint64_t group),
                          struct wal_report *report, struct wal **out);
void wal_close(struct wal *w);

void wal_submit(struct wal *w, struct wal_submission *s);
// Gathers waiting submissions into one batch (<= LIMIT_WAL_BATCH_BYTES unless it is one record) and the next slice of a
// large one, rolling to a new file where needed. False: nothing to write.
MUST_USE bool wal_compose(struct wal *w);
// pwritev + fdatasync of the composed batch. RC_NO_SPACE: nothing was promised and the batch stays composed:
// the same call is to be made again later, whatever else (wal_submit, wal_retire) happens between. Any other
// error goes to wal_complete.
MUST_USE enum rc wal_write(struct wal *w);
// The same for a batch that begins a file, where a whole one has found no room for a while: half of one will do, and so
// on, for what a full disk is emptied with (settles, snapshots of what is left) is little.
MUST_USE enum rc wal_write_small(struct wal *w);
void wal_complete(struct wal *w, enum rc rc);
// Writes an empty mark batch if the last batch is not yet vouched for by a later one (§7.7): call when idle.
MUST_USE bool wal_compose_mark(struct wal *w);
// Everything that counts in file `seq` lives elsewhere now: the file goes to the pool or is removed. That opening is to
// begin behind it (first_seq) is durable already, else the next start takes the file for lost.
void wal_retire(struct wal *w, uint64_t seq);

// Makes the free files up that are to be in reserve. False: there is no room for them (or another error; told
// in the log).
bool wal_top_up(struct wal *w);
bool wal_is_short(const struct wal *w);  // Fewer than are to be in reserve.
// Removes free files beyond the reserve, whose room others need.
void wal_trim(struct wal *w);
// A sync of blocks that were written before carries no metadata, which is worth a third of its time and most of what
// three nodes on one disk wait for each other. So what a new file has ahead of the log is filled with zeros, a slice
// with each call: the free file that is taken next and, if nothing else is going on (is_idle; the slice is synced then),
// first the current one. No batch may be composed. *more: there is something left. RC_IO: the disk has failed (P6).
MUST_USE enum rc wal_fill(struct wal *w, bool is_idle, bool *more);
// Any thread. While it is frugal no free file is made beyond the one that the log needs now: what room there is is for
// those who free more with it.
void wal_set_frugal(struct wal *w, bool is_frugal);

uint64_t wal_current_seq(const struct wal *w);
uint32_t wal_file_count(const struct wal *w);  // Without the pool.
uint64_t wal_pending_bytes(const struct wal *w);
// Opens file `seq` for reading (cold thread). The name is a pure function of seq.
void wal_file_path(const char *dir, uint64_t seq, char *out, size_t out_size);

// ---- the thread (wal_thread.c) ---------------------------------------------------------------------------------
// One producer ring per worker; completions come back through one ring per worker and a wake-up of that worker.
struct wal_thread;
struct wal_thread_config {
    uint32_t workers;                          // Producers, 0..workers-1.
    void (*wake)(void *ctx, uint32_t worker);  // Any thread: completions wait for this worker.
    void *wake_ctx;
    void (*on_file_closed)(void *ctx, uint64_t file_seq);  // WAL thread.
};
MUST_USE enum rc wal_thread_start(const struct wal_thread_config *config, struct wal *w, struct wal_thread **out);
void wal_thread_stop(struct wal_thread *t);  // Completes what was submitted, then joins.
void wal_thread_submit(struct wal_thread *t, uint32_t worker, struct wal_submission *s);  // That worker's thread.
struct wal_submission *wal_thread_poll(struct wal_thread *t, uint32_t worker);            // NULL: none done.
void wal_thread_retire(struct wal_thread *t, uint64_t seq);                               // Cold thread.
uint64_t wal_thread_age_ns(struct wal_thread *t);  // Any thread: age of the oldest batch not yet synced, 0 if none.
uint32_t wal_thread_file_count(struct wal_thread *t);  // Any thread.
// Any thread. The disk has no room for the file in reserve (nothing more should be published), or even for
// the next file of the log (is_stuck: everything waits, and goes on by itself). Workers are woken when this changes.
bool wal_thread_is_short(struct wal_thread *t);
bool wal_thread_is_stuck(struct wal_thread *t);
// Any thread, now and then while the disk is short of room: gives away what the pool has beyond the reserve,
// and tries to fill the reserve.
void wal_thread_make_room(struct wal_thread *t);
