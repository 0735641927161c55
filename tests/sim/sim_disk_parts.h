// SPDX-License-Identifier: Apache-2.0
// What the simulated disk is made of; for sim_disk*.c only.
//
// Content lives in pages of 4 KiB made at the first write, so that a preallocated file costs nothing. An unsynced write
// remembers the bytes before and after it; a sync forgets the list. A file lives as long as a name, a handle or a
// change of a directory that may be undone refers to it.
#pragma once
#include "node/base/list.h"
#include "tests/sim/sim_disk.h"

enum { PAGE = 4096, SECTOR = 512 };

struct change {
    struct list link;
    bool is_size;      // Only the size changed.
    uint64_t offset;
    uint64_t len;
    uint64_t size_before, size_after;
    uint8_t *bytes;    // len bytes before, len bytes after.
};

struct inode {
    uint8_t **pages;   // NULL: zeros.
    uint64_t pages_cap;
    uint64_t size;
    uint64_t allocated;   // For the budget.
    struct list changes;  // struct change, oldest first: not synced.
    uint32_t refs;
    struct sim_disk *disk;
};

struct sim_entry {
    char *path;
    struct inode *inode;
};

enum dir_op { DIR_CREATE, DIR_RENAME, DIR_UNLINK };

struct dir_change {
    struct list link;
    enum dir_op op;
    char *path;               // The name that changed; for a rename the old one.
    char *to;                 // Rename only.
    struct inode *inode;      // Holds a reference.
    struct inode *replaced;   // Rename only: what `to` was before, or NULL. Holds a reference.
};

struct sim_disk {
    struct disk base;
    struct sim_entry *entries;
    uint32_t count, cap;
    char **dirs;
    uint32_t dirs_count, dirs_cap;
    struct list dir_changes;  // struct dir_change, oldest first.
    uint64_t epoch;           // Handles of an earlier one are dead.
    uint64_t ops;
    uint64_t crash_at;        // Value of ops at which everything stops.
    uint64_t fail_sync_at;    // Value of counters.syncs.
    uint64_t budget, used;
    struct rng *flip_rng;
    uint64_t flip_one_in;
    bool is_dead;
    struct sim_disk_counters counters;
};

// ---- files -----------------------------------------------------------------------------------------------------

struct inode *inode_create(struct sim_disk *s);  // Without a reference: the first name takes one.
struct inode *inode_ref(struct inode *i);
void inode_unref(struct inode *i);  // NULL is fine.
// Content as it is now. Reading beyond the end finds zeros; writing does not move the size.
void inode_read(const struct inode *i, uint64_t offset, uint8_t *to, uint64_t len);
void inode_write(struct inode *i, uint64_t offset, const uint8_t *from, uint64_t len);
void inode_set_size(struct inode *i, uint64_t size);
void change_free(struct change *c);
void inode_sync(struct inode *i);  // Nothing of it can be lost any more.

// ---- names -----------------------------------------------------------------------------------------------------

struct sim_entry *entry_find(const struct sim_disk *s, const char *path);
void entry_add(struct sim_disk *s, const char *path, struct inode *inode);  // Takes a reference of its own.
void entry_remove(struct sim_disk *s, struct sim_entry *e);
bool path_is_in(const char *path, const char *dir);
bool path_is_beside(const char *a, const char *b);  // In one directory.
bool path_has_parent(const struct sim_disk *s, const char *path);
bool dir_exists(const struct sim_disk *s, const char *dir);

// `to` and `replaced`: renames only, else NULL.
void dir_change_add(struct sim_disk *s, enum dir_op op, const char *path, const char *to, struct inode *inode,
                    struct inode *replaced);
void dir_change_free(struct dir_change *c);
const char *dir_change_name(const struct dir_change *c);  // The name that it made or took away.
void dir_change_undo(struct sim_disk *s, struct dir_change *c);
