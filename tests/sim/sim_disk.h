// SPDX-License-Identifier: Apache-2.0
// A disk in memory that forgets what was not synced (disk.h). For the simulator and unit tests; deterministic: chance
// comes from the rng that is passed to sim_disk_crash.
//
// Model: a file has its present content and a list of writes (and size changes) since its last sync; each directory a
// list of creations, renames and removals since its last sync_dir. A crash keeps, drops or tears (in sectors of 512
// bytes) each write on its own, and keeps the first few of each directory's changes, undoing the rest.
// Threads: one.
#pragma once
#include "consensus/wal/disk.h"
#include "node/base/env.h"

struct sim_disk;

struct sim_disk_counters {
    uint64_t writes, syncs, dir_syncs, crashes;
    uint64_t kept_writes, lost_writes, torn_writes;  // Of unsynced writes, at crashes.
    uint64_t lost_dir_changes;
};

struct sim_disk *sim_disk_create(void);
void sim_disk_destroy(struct sim_disk *s);
struct disk *sim_disk_base(struct sim_disk *s);

// Power fails: settles what survives. Handles opened before are dead (closing them is allowed, all else answers RC_IO).
// The disk is usable again at once: `failed`, a pending crash or sync failure are gone.
void sim_disk_crash(struct sim_disk *s, struct rng *rng);
// The process died but the machine did not: everything written stays, synced or not. Handles are dead.
void sim_disk_kill(struct sim_disk *s);

// After `ops` more changing operations (writes, syncs, names, sizes) every operation does nothing and answers RC_IO,
// until sim_disk_crash: for crashes in the middle of a step. The driver looks at sim_disk_is_dead after each step and
// must let nothing out of the step in which it became true. UINT64_MAX: never.
void sim_disk_crash_after(struct sim_disk *s, uint64_t ops);
bool sim_disk_is_dead(const struct sim_disk *s);
bool sim_disk_is_faulty(const struct sim_disk *s);  // A crash or a failing sync is armed, or has struck.
uint64_t sim_disk_ops(const struct sim_disk *s);  // Changing operations so far.
// The sync after `syncs` more ones fails: RC_IO, disk.failed. What it should have synced stays unsynced.
void sim_disk_fail_sync_after(struct sim_disk *s, uint64_t syncs);
// Files may hold so many bytes together; allocate and writes above answer RC_NO_SPACE. Default: no bound.
void sim_disk_set_budget(struct sim_disk *s, uint64_t bytes);
uint64_t sim_disk_used(const struct sim_disk *s);
uint64_t sim_disk_room(const struct sim_disk *s);
// Each read has a chance of 1 : `one_in` that one of its bits is wrong (0: never).
void sim_disk_set_read_flips(struct sim_disk *s, struct rng *rng, uint64_t one_in);

// ---- for tests -------------------------------------------------------------------------------------------------

// Another disk with the same content, everything synced.
struct sim_disk *sim_disk_clone(const struct sim_disk *s);
// Changes the content on the medium, as if it had always been so. The file must exist.
void sim_disk_flip_bit(struct sim_disk *s, const char *path, uint64_t offset, unsigned bit);
void sim_disk_cut(struct sim_disk *s, const char *path, uint64_t bytes, bool is_zero_filled);
void sim_disk_poke(struct sim_disk *s, const char *path, uint64_t offset, const void *bytes, uint64_t len);
bool sim_disk_exists(const struct sim_disk *s, const char *path);
const struct sim_disk_counters *sim_disk_counters(const struct sim_disk *s);
