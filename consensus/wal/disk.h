// SPDX-License-Identifier: Apache-2.0
// The disk seam: blocking file operations, called only on threads that may block (WAL, cold, meta) and at start-up.
//
// Paths are relative to the data directory the disk was opened on ("wal/...", "seg/..."). The real one is
// disk_posix.c; the simulator's (tests/sim/sim_disk.h) keeps unsynced writes apart and loses or tears them at a crash.
// Write and sync errors are final: after the first one the disk refuses everything (P6), see disk.failed.
#pragma once
#include "node/base/rc.h"
#include "node/base/span.h"
#include <sys/uio.h>

struct disk_file;

enum disk_open_flag {
    DISK_READ = 1,
    DISK_WRITE = 2,
    DISK_CREATE = 4,  // With WRITE: makes the file if it is absent; an existing one keeps its content.
};

struct disk {
    enum rc (*open)(struct disk *d, const char *path, int flags, struct disk_file **out);  // RC_NO_FILE, RC_IO
    void (*close)(struct disk_file *f);
    // Makes the file at least `bytes` long, on disk (fallocate; size known to the file system). RC_NO_SPACE:
    // its size is what it was, and no room was taken. RC_IO.
    enum rc (*allocate)(struct disk_file *f, uint64_t bytes);
    // Writes all or fails. Unsynced until sync. RC_NO_SPACE: parts may have been written; writing the same
    // again is safe.
    enum rc (*writev)(struct disk_file *f, const struct iovec *iov, int count, uint64_t offset);
    // fdatasync, or fsync where that is needed. RC_NO_SPACE: what was written since the last sync of this
    // file is lost, like after RC_IO, but only of this file: a new one may be thrown away; to one that
    // somebody relies on it is the end (P6).
    enum rc (*sync)(struct disk_file *f);
    // Reads up to len bytes; *got < len only at the end of the file.
    enum rc (*read)(struct disk_file *f, uint64_t offset, void *to, size_t len, size_t *got);
    // These bytes will be read soon: a hint, which costs next to nothing if they are in memory. May be NULL (simulated disks).
    void (*will_read)(struct disk_file *f, uint64_t offset, uint64_t len);
    // Writes zeros, at most `bytes` of them, to the first place in [from, to) where room is allocated and nothing was
    // written yet: a later write there, and its sync, has no metadata to carry. Begun, not synced. *next is where to go on,
    // UINT64_MAX once nothing is left, or where the file system writes nothing in place. RC_IO. May be NULL (simulated
    // disks).
    enum rc (*fill)(struct disk_file *f, uint64_t from, uint64_t to, uint64_t bytes, uint64_t *next);
    enum rc (*size)(struct disk_file *f, uint64_t *out);
    enum rc (*truncate)(struct disk_file *f, uint64_t bytes);
    enum rc (*rename)(struct disk *d, const char *from, const char *to);
    enum rc (*unlink)(struct disk *d, const char *path);
    enum rc (*make_dir)(struct disk *d, const char *path);  // Fine if it is there.
    enum rc (*sync_dir)(struct disk *d, const char *path);
    // Regular files of a directory, names only, sorted by byte order; foreign entries (directories, FIFOs) are skipped.
    enum rc (*list)(struct disk *d, const char *path, void (*each)(void *ctx, const char *name), void *ctx);
    // Leaves the file store.failed behind, best effort, although the disk has failed. May be NULL (simulated disks).
    void (*mark_failed)(struct disk *d, const char *reason);
    // Whole small file, atomically: temporary name, sync, rename, directory sync. (Helper over the above:
    // disk_replace.)
    // A write or sync failed: nothing may be written any more, nothing be acknowledged. Several threads share it:
    // disk_has_failed, disk_fail.
    bool failed;
};

static inline bool disk_has_failed(const struct disk *d)
{
    return __atomic_load_n(&d->failed, __ATOMIC_ACQUIRE);
}

static inline void disk_fail(struct disk *d)
{
    __atomic_store_n(&d->failed, true, __ATOMIC_RELEASE);
}

// Real disk on directory `root` (created if absent, locked against a second process: RC_BUSY).
MUST_USE enum rc disk_posix_open(const char *root, struct disk **out);
void disk_posix_close(struct disk *d);

// Writes `content` to `path` atomically and durably / reads a whole file (caller frees *out_ptr).
MUST_USE enum rc disk_replace(struct disk *d, const char *dir, const char *name, struct span content);
// The same for a small file that must be replaceable on a disk without room: "<name>.spare" has its blocks already and
// takes its place. The next spare has the room of what was replaced, unless somebody else was quicker: then there is none.
MUST_USE enum rc disk_replace_kept(struct disk *d, const char *dir, const char *name, struct span content);
MUST_USE enum rc disk_read_all(struct disk *d, const char *path, size_t max, uint8_t **out_ptr, size_t *out_len);
