// SPDX-License-Identifier: Apache-2.0
// The simulated disk (sim_disk.h).
//
// Content lives in pages of 4 KiB made at the first write, so that a preallocated file costs nothing. An unsynced write
// remembers the bytes before and after it; a sync forgets the list. At a crash all of them are undone, newest
// first, and those that survive are done again in order: a later write may so survive an earlier one, as on real media.
// A file lives as long as a name, a handle or an undone change of a directory refers to it.
#include "tests/sim/sim_disk.h"
#include "node/base/list.h"
#include "node/base/mem.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

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

struct entry {
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
    struct entry *entries;
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

struct disk_file {
    struct inode *inode;
    uint64_t epoch;
};

static struct sim_disk *sim(struct disk *d)
{
    return container_of(d, struct sim_disk, base);
}

// ---- inodes ----------------------------------------------------------------------------------------------------

static void change_free(struct change *c)
{
    list_remove(&c->link);
    free(c->bytes);
    free(c);
}

static void inode_unref(struct inode *i)
{
    if (i == NULL || --i->refs > 0) {
        return;
    }
    while (!list_is_empty(&i->changes)) {
        change_free(list_entry(i->changes.next, struct change, link));
    }
    for (uint64_t p = 0; p < i->pages_cap; p++) {
        free(i->pages[p]);
    }
    free(i->pages);
    i->disk->used -= i->allocated;
    free(i);
}

static struct inode *inode_ref(struct inode *i)
{
    i->refs++;
    return i;
}

static struct inode *inode_create(struct sim_disk *s)
{
    struct inode *i = mem_zalloc(sizeof(*i));
    list_init(&i->changes);
    i->disk = s;
    return i;
}

static void content_read(const struct inode *i, uint64_t offset, uint8_t *to, uint64_t len)
{
    while (len > 0) {
        uint64_t page = offset / PAGE, at = offset % PAGE;
        uint64_t n = len < PAGE - at ? len : PAGE - at;
        if (page < i->pages_cap && i->pages[page] != NULL) {
            memcpy(to, i->pages[page] + at, n);
        } else {
            memset(to, 0, n);
        }
        offset += n;
        to += n;
        len -= n;
    }
}

static void content_write(struct inode *i, uint64_t offset, const uint8_t *from, uint64_t len)
{
    uint64_t pages = (offset + len + PAGE - 1) / PAGE;
    if (pages > i->pages_cap) {
        uint64_t cap = pages + pages / 2;
        i->pages = mem_realloc(i->pages, cap * sizeof(*i->pages));
        memset(i->pages + i->pages_cap, 0, (cap - i->pages_cap) * sizeof(*i->pages));
        i->pages_cap = cap;
    }
    while (len > 0) {
        uint64_t page = offset / PAGE, at = offset % PAGE;
        uint64_t n = len < PAGE - at ? len : PAGE - at;
        if (i->pages[page] == NULL) {
            i->pages[page] = mem_zalloc(PAGE);
        }
        memcpy(i->pages[page] + at, from, n);
        offset += n;
        from += n;
        len -= n;
    }
}

// Bytes behind the size read as zeros when the file grows again.
static void content_set_size(struct inode *i, uint64_t size)
{
    for (uint64_t p = (size + PAGE - 1) / PAGE; p < i->pages_cap; p++) {
        free(i->pages[p]);
        i->pages[p] = NULL;
    }
    if (size % PAGE != 0 && size / PAGE < i->pages_cap && i->pages[size / PAGE] != NULL) {
        memset(i->pages[size / PAGE] + size % PAGE, 0, PAGE - size % PAGE);
    }
    i->size = size;
}

static void inode_sync(struct inode *i)
{
    while (!list_is_empty(&i->changes)) {
        change_free(list_entry(i->changes.next, struct change, link));
    }
}

// ---- names -----------------------------------------------------------------------------------------------------

static struct entry *entry_find(const struct sim_disk *s, const char *path)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (strcmp(s->entries[i].path, path) == 0) {
            return &s->entries[i];
        }
    }
    return NULL;
}

// Takes a reference to `inode`.
static void entry_add(struct sim_disk *s, const char *path, struct inode *inode)
{
    if (s->count == s->cap) {
        s->cap = s->cap == 0 ? 16 : s->cap * 2;
        s->entries = mem_realloc(s->entries, s->cap * sizeof(*s->entries));
    }
    s->entries[s->count++] = (struct entry){.path = mem_strndup(path, strlen(path)), .inode = inode_ref(inode)};
}

static void entry_remove(struct sim_disk *s, struct entry *e)
{
    free(e->path);
    inode_unref(e->inode);
    *e = s->entries[--s->count];
}

static bool is_in_dir(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    if (strcmp(dir, ".") == 0) {
        return strchr(path, '/') == NULL;
    }
    return strncmp(path, dir, n) == 0 && path[n] == '/' && strchr(path + n + 1, '/') == NULL;
}

static bool dir_exists(const struct sim_disk *s, const char *dir)
{
    for (uint32_t i = 0; i < s->dirs_count; i++) {
        if (strcmp(s->dirs[i], dir) == 0) {
            return true;
        }
    }
    return strcmp(dir, ".") == 0;
}

static bool parent_exists(const struct sim_disk *s, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) {
        return true;
    }
    char *dir = mem_strndup(path, (size_t)(slash - path));
    bool exists = dir_exists(s, dir);
    free(dir);
    return exists;
}

static void dir_change_add(struct sim_disk *s, enum dir_op op, const char *path, const char *to, struct inode *inode,
                           struct inode *replaced)
{
    struct dir_change *c = mem_zalloc(sizeof(*c));
    c->op = op;
    c->path = mem_strndup(path, strlen(path));
    c->to = to == NULL ? NULL : mem_strndup(to, strlen(to));
    c->inode = inode_ref(inode);
    c->replaced = replaced == NULL ? NULL : inode_ref(replaced);
    list_add_tail(&s->dir_changes, &c->link);
}

static void dir_change_free(struct dir_change *c)
{
    list_remove(&c->link);
    inode_unref(c->inode);
    inode_unref(c->replaced);
    free(c->path);
    free(c->to);
    free(c);
}

static const char *dir_change_name(const struct dir_change *c)
{
    return c->to != NULL ? c->to : c->path;
}

static void dir_change_undo(struct sim_disk *s, struct dir_change *c)
{
    switch (c->op) {
    case DIR_CREATE:
        entry_remove(s, entry_find(s, c->path));
        break;
    case DIR_UNLINK:
        entry_add(s, c->path, c->inode);
        break;
    case DIR_RENAME:
        entry_remove(s, entry_find(s, c->to));
        entry_add(s, c->path, c->inode);
        if (c->replaced != NULL) {
            entry_add(s, c->to, c->replaced);
        }
        break;
    }
}

// ---- the table -------------------------------------------------------------------------------------------------

// Counts a changing operation. False: the disk is dead or has failed and the operation must not happen.
static bool op_allowed(struct sim_disk *s)
{
    if (s->is_dead || s->base.failed) {
        return false;
    }
    if (s->ops >= s->crash_at) {
        s->is_dead = true;
        s->base.failed = true;
        return false;
    }
    s->ops++;
    return true;
}

static bool file_alive(const struct disk_file *f)
{
    return f->epoch == f->inode->disk->epoch && !f->inode->disk->is_dead;
}

static enum rc sim_open(struct disk *d, const char *path, int flags, struct disk_file **out)
{
    struct sim_disk *s = sim(d);
    if (s->is_dead || ((flags & DISK_WRITE) && d->failed)) {
        return RC_IO;
    }
    struct entry *e = entry_find(s, path);
    struct inode *inode = e == NULL ? NULL : e->inode;
    if (inode == NULL) {
        if (!(flags & DISK_CREATE) || !parent_exists(s, path)) {
            return RC_NO_FILE;
        }
        if (!op_allowed(s)) {
            return RC_IO;
        }
        inode = inode_create(s);
        entry_add(s, path, inode);
        dir_change_add(s, DIR_CREATE, path, NULL, inode, NULL);
    }
    struct disk_file *f = mem_zalloc(sizeof(*f));
    f->inode = inode_ref(inode);
    f->epoch = s->epoch;
    *out = f;
    return RC_OK;
}

static void sim_close(struct disk_file *f)
{
    inode_unref(f->inode);
    free(f);
}

static enum rc charge(struct inode *i, uint64_t size)
{
    if (size <= i->allocated) {
        return RC_OK;
    }
    if (i->disk->used + (size - i->allocated) > i->disk->budget) {
        return RC_NO_SPACE;
    }
    i->disk->used += size - i->allocated;
    i->allocated = size;
    return RC_OK;
}

static void change_size(struct inode *i, uint64_t size)
{
    struct change *c = mem_zalloc(sizeof(*c));
    c->is_size = true;
    c->size_before = i->size;
    c->size_after = size;
    if (size < i->size) {  // What is cut off comes back if the change is lost.
        c->offset = size;
        c->len = i->size - size;
        c->bytes = mem_alloc(c->len);
        content_read(i, size, c->bytes, c->len);
    }
    list_add_tail(&i->changes, &c->link);
    content_set_size(i, size);
}

static enum rc sim_allocate(struct disk_file *f, uint64_t bytes)
{
    struct inode *i = f->inode;
    if (!file_alive(f) || !op_allowed(i->disk)) {
        return RC_IO;
    }
    TRY(charge(i, bytes));
    if (bytes > i->size) {
        change_size(i, bytes);
    }
    return RC_OK;
}

static enum rc sim_writev(struct disk_file *f, const struct iovec *iov, int count, uint64_t offset)
{
    struct inode *i = f->inode;
    if (!file_alive(f) || !op_allowed(i->disk)) {
        return RC_IO;
    }
    struct change *c = mem_zalloc(sizeof(*c));
    for (int k = 0; k < count; k++) {
        c->len += iov[k].iov_len;
    }
    c->offset = offset;
    c->size_before = i->size;
    c->size_after = offset + c->len > i->size ? offset + c->len : i->size;
    enum rc rc = charge(i, c->size_after);
    if (rc != RC_OK) {
        free(c);
        return rc;
    }
    c->bytes = mem_alloc(2 * c->len + 1);
    content_read(i, offset, c->bytes, c->len);
    uint8_t *to = c->bytes + c->len;
    for (int k = 0; k < count; k++) {
        if (iov[k].iov_len > 0) {
            memcpy(to, iov[k].iov_base, iov[k].iov_len);
            to += iov[k].iov_len;
        }
    }
    content_write(i, offset, c->bytes + c->len, c->len);
    i->size = c->size_after;
    list_add_tail(&i->changes, &c->link);
    i->disk->counters.writes++;
    return RC_OK;
}

static enum rc sim_sync(struct disk_file *f)
{
    struct sim_disk *s = f->inode->disk;
    if (!file_alive(f) || !op_allowed(s)) {
        return RC_IO;
    }
    if (s->counters.syncs++ >= s->fail_sync_at) {
        s->base.failed = true;
        return RC_IO;
    }
    inode_sync(f->inode);
    return RC_OK;
}

static enum rc sim_read(struct disk_file *f, uint64_t offset, void *to, size_t len, size_t *got)
{
    *got = 0;
    if (!file_alive(f)) {
        return RC_IO;
    }
    struct inode *i = f->inode;
    if (offset >= i->size) {
        return RC_OK;
    }
    *got = len < i->size - offset ? len : i->size - offset;
    content_read(i, offset, to, *got);
    struct sim_disk *s = i->disk;
    if (s->flip_one_in > 0 && *got > 0 && rng_below(s->flip_rng, s->flip_one_in) == 0) {
        uint64_t at = rng_below(s->flip_rng, *got);
        ((uint8_t *)to)[at] ^= (uint8_t)(1u << rng_below(s->flip_rng, 8));
    }
    return RC_OK;
}

static enum rc sim_size(struct disk_file *f, uint64_t *out)
{
    *out = f->inode->size;
    return file_alive(f) ? RC_OK : RC_IO;
}

static enum rc sim_truncate(struct disk_file *f, uint64_t bytes)
{
    struct inode *i = f->inode;
    if (!file_alive(f) || !op_allowed(i->disk)) {
        return RC_IO;
    }
    TRY(charge(i, bytes));
    if (bytes != i->size) {
        change_size(i, bytes);
    }
    i->disk->used -= i->allocated - bytes;
    i->allocated = bytes;
    return RC_OK;
}

static bool is_same_dir(const char *a, const char *b)
{
    const char *x = strrchr(a, '/');
    const char *y = strrchr(b, '/');
    size_t n = x == NULL ? 0 : (size_t)(x - a);
    size_t m = y == NULL ? 0 : (size_t)(y - b);
    return n == m && memcmp(a, b, n) == 0;
}

static enum rc sim_rename(struct disk *d, const char *from, const char *to)
{
    struct sim_disk *s = sim(d);
    assert(is_same_dir(from, to));  // Which of two directories is synced first is more than this model knows.
    if (!op_allowed(s)) {
        return RC_IO;
    }
    struct entry *e = entry_find(s, from);
    if (e == NULL || !parent_exists(s, to)) {
        return RC_NO_FILE;
    }
    struct inode *inode = inode_ref(e->inode);
    struct entry *there = entry_find(s, to);
    dir_change_add(s, DIR_RENAME, from, to, inode, there == NULL ? NULL : there->inode);
    if (there != NULL) {
        entry_remove(s, there);
    }
    entry_remove(s, entry_find(s, from));
    entry_add(s, to, inode);
    inode_unref(inode);
    return RC_OK;
}

static enum rc sim_unlink(struct disk *d, const char *path)
{
    struct sim_disk *s = sim(d);
    if (!op_allowed(s)) {
        return RC_IO;
    }
    struct entry *e = entry_find(s, path);
    if (e == NULL) {
        return RC_NO_FILE;
    }
    dir_change_add(s, DIR_UNLINK, path, NULL, e->inode, NULL);
    entry_remove(s, e);
    return RC_OK;
}

// Directories are made at start-up only and taken for durable at once.
static enum rc sim_make_dir(struct disk *d, const char *path)
{
    struct sim_disk *s = sim(d);
    if (!op_allowed(s)) {
        return RC_IO;
    }
    if (dir_exists(s, path)) {
        return RC_OK;
    }
    if (!parent_exists(s, path)) {
        return RC_NO_FILE;
    }
    if (s->dirs_count == s->dirs_cap) {
        s->dirs_cap = s->dirs_cap == 0 ? 8 : s->dirs_cap * 2;
        s->dirs = mem_realloc(s->dirs, s->dirs_cap * sizeof(*s->dirs));
    }
    s->dirs[s->dirs_count++] = mem_strndup(path, strlen(path));
    return RC_OK;
}

static enum rc sim_sync_dir(struct disk *d, const char *path)
{
    struct sim_disk *s = sim(d);
    if (!op_allowed(s)) {
        return RC_IO;
    }
    if (!dir_exists(s, path)) {
        return RC_NO_FILE;
    }
    s->counters.dir_syncs++;
    list_each(item, &s->dir_changes) {
        struct dir_change *c = list_entry(item, struct dir_change, link);
        if (is_in_dir(dir_change_name(c), path)) {
            dir_change_free(c);
        }
    }
    return RC_OK;
}

static int name_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum rc sim_list(struct disk *d, const char *path, void (*each)(void *ctx, const char *name), void *ctx)
{
    struct sim_disk *s = sim(d);
    if (s->is_dead) {
        return RC_IO;
    }
    if (!dir_exists(s, path)) {
        return RC_NO_FILE;
    }
    // Copies: `each` may change the directory.
    char **names = mem_alloc((s->count + 1) * sizeof(*names));
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        if (is_in_dir(s->entries[i].path, path)) {
            const char *slash = strrchr(s->entries[i].path, '/');
            const char *name = slash == NULL ? s->entries[i].path : slash + 1;
            names[count++] = mem_strndup(name, strlen(name));
        }
    }
    if (count > 0) {
        qsort(names, count, sizeof(*names), name_compare);
    }
    for (uint32_t i = 0; i < count; i++) {
        each(ctx, names[i]);
        free(names[i]);
    }
    free(names);
    return RC_OK;
}

// ---- crashes ---------------------------------------------------------------------------------------------------

static void write_survive(struct sim_disk *s, struct inode *i, struct change *c, struct rng *rng)
{
    uint64_t fate = rng_below(rng, 3);
    if (fate == 0) {
        s->counters.lost_writes++;
        return;
    }
    if (c->size_after > i->size) {
        i->size = c->size_after;
    }
    if (fate == 1) {
        content_write(i, c->offset, c->bytes + c->len, c->len);
        s->counters.kept_writes++;
        return;
    }
    // Torn: each sector for itself, in no order.
    s->counters.torn_writes++;
    for (uint64_t done = 0; done < c->len;) {
        uint64_t n = SECTOR - (c->offset + done) % SECTOR;
        n = n < c->len - done ? n : c->len - done;
        if (rng_below(rng, 2) == 0) {
            content_write(i, c->offset + done, c->bytes + c->len + done, n);
        }
        done += n;
    }
}

static void inode_crash(struct sim_disk *s, struct inode *i, struct rng *rng)
{
    for (struct list *item = i->changes.prev; item != &i->changes; item = item->prev) {
        struct change *c = list_entry(item, struct change, link);
        if (!c->is_size) {
            content_write(i, c->offset, c->bytes, c->len);
        }
        content_set_size(i, c->size_before);
        if (c->is_size && c->len > 0) {
            content_write(i, c->offset, c->bytes, c->len);
        }
    }
    list_each(item, &i->changes) {
        struct change *c = list_entry(item, struct change, link);
        if (!c->is_size) {
            write_survive(s, i, c, rng);
        } else if (rng_below(rng, 2) == 0) {
            content_set_size(i, c->size_after);
        }
        change_free(c);
    }
}

// Of each directory's changes a first part survives.
static void names_crash(struct sim_disk *s, struct rng *rng)
{
    for (uint32_t k = 0; k <= s->dirs_count; k++) {
        const char *dir = k == 0 ? "." : s->dirs[k - 1];
        uint64_t n = 0;
        list_each(item, &s->dir_changes) {
            n += is_in_dir(dir_change_name(list_entry(item, struct dir_change, link)), dir);
        }
        uint64_t undone = n == 0 ? 0 : rng_below(rng, n + 1);
        s->counters.lost_dir_changes += undone;
        for (struct list *item = s->dir_changes.prev; item != &s->dir_changes;) {
            struct dir_change *c = list_entry(item, struct dir_change, link);
            item = item->prev;
            if (!is_in_dir(dir_change_name(c), dir)) {
                continue;
            }
            if (undone > 0) {
                dir_change_undo(s, c);
                undone--;
            }
            dir_change_free(c);
        }
    }
    assert(list_is_empty(&s->dir_changes));
}

static void restart(struct sim_disk *s)
{
    s->counters.crashes++;
    s->epoch++;
    s->is_dead = false;
    s->base.failed = false;
    s->crash_at = UINT64_MAX;
    s->fail_sync_at = UINT64_MAX;
}

void sim_disk_crash(struct sim_disk *s, struct rng *rng)
{
    names_crash(s, rng);
    for (uint32_t i = 0; i < s->count; i++) {
        inode_crash(s, s->entries[i].inode, rng);
    }
    restart(s);
}

void sim_disk_kill(struct sim_disk *s)
{
    restart(s);
}

// ---- set-up ----------------------------------------------------------------------------------------------------

struct sim_disk *sim_disk_create(void)
{
    struct sim_disk *s = mem_zalloc(sizeof(*s));
    s->base = (struct disk){
        .open = sim_open,
        .close = sim_close,
        .allocate = sim_allocate,
        .writev = sim_writev,
        .sync = sim_sync,
        .read = sim_read,
        .size = sim_size,
        .truncate = sim_truncate,
        .rename = sim_rename,
        .unlink = sim_unlink,
        .make_dir = sim_make_dir,
        .sync_dir = sim_sync_dir,
        .list = sim_list,
    };
    list_init(&s->dir_changes);
    s->budget = UINT64_MAX;
    s->crash_at = UINT64_MAX;
    s->fail_sync_at = UINT64_MAX;
    return s;
}

void sim_disk_destroy(struct sim_disk *s)
{
    while (!list_is_empty(&s->dir_changes)) {
        dir_change_free(list_entry(s->dir_changes.next, struct dir_change, link));
    }
    while (s->count > 0) {
        entry_remove(s, &s->entries[s->count - 1]);
    }
    for (uint32_t i = 0; i < s->dirs_count; i++) {
        free(s->dirs[i]);
    }
    free(s->dirs);
    free(s->entries);
    free(s);
}

struct disk *sim_disk_base(struct sim_disk *s)
{
    return &s->base;
}

void sim_disk_crash_after(struct sim_disk *s, uint64_t ops)
{
    s->crash_at = ops == UINT64_MAX ? ops : s->ops + ops;
}

bool sim_disk_is_dead(const struct sim_disk *s)
{
    return s->is_dead;
}

bool sim_disk_is_faulty(const struct sim_disk *s)
{
    return s->is_dead || s->crash_at != UINT64_MAX || s->fail_sync_at != UINT64_MAX;
}

uint64_t sim_disk_ops(const struct sim_disk *s)
{
    return s->ops;
}

void sim_disk_fail_sync_after(struct sim_disk *s, uint64_t syncs)
{
    s->fail_sync_at = s->counters.syncs + syncs;
}

void sim_disk_set_budget(struct sim_disk *s, uint64_t bytes)
{
    s->budget = bytes;
}

uint64_t sim_disk_used(const struct sim_disk *s)
{
    return s->used;
}

void sim_disk_set_read_flips(struct sim_disk *s, struct rng *rng, uint64_t one_in)
{
    s->flip_rng = rng;
    s->flip_one_in = one_in;
}

// ---- for tests -------------------------------------------------------------------------------------------------

struct sim_disk *sim_disk_clone(const struct sim_disk *s)
{
    struct sim_disk *copy = sim_disk_create();
    for (uint32_t i = 0; i < s->dirs_count; i++) {
        enum rc rc = sim_make_dir(&copy->base, s->dirs[i]);
        assert(rc == RC_OK);
    }
    for (uint32_t i = 0; i < s->count; i++) {
        const struct inode *from = s->entries[i].inode;
        struct inode *to = inode_create(copy);
        for (uint64_t p = 0; p < from->pages_cap; p++) {
            if (from->pages[p] != NULL) {
                content_write(to, p * PAGE, from->pages[p], PAGE);
            }
        }
        to->size = from->size;
        to->allocated = from->allocated;
        copy->used += to->allocated;
        entry_add(copy, s->entries[i].path, to);
    }
    return copy;
}

static struct inode *must_find(const struct sim_disk *s, const char *path)
{
    struct entry *e = entry_find(s, path);
    assert(e != NULL);
    return e->inode;
}

void sim_disk_flip_bit(struct sim_disk *s, const char *path, uint64_t offset, unsigned bit)
{
    struct inode *i = must_find(s, path);
    assert(offset < i->size && bit < 8);
    uint8_t byte;
    content_read(i, offset, &byte, 1);
    byte ^= (uint8_t)(1u << bit);
    content_write(i, offset, &byte, 1);
}

void sim_disk_cut(struct sim_disk *s, const char *path, uint64_t bytes, bool is_zero_filled)
{
    struct inode *i = must_find(s, path);
    uint64_t size = i->size;
    content_set_size(i, bytes);
    if (is_zero_filled && bytes < size) {
        content_set_size(i, size);
    }
}

void sim_disk_poke(struct sim_disk *s, const char *path, uint64_t offset, const void *bytes, uint64_t len)
{
    struct inode *i = must_find(s, path);
    assert(offset + len <= i->size);
    content_write(i, offset, bytes, len);
}

bool sim_disk_exists(const struct sim_disk *s, const char *path)
{
    return entry_find(s, path) != NULL;
}

const struct sim_disk_counters *sim_disk_counters(const struct sim_disk *s)
{
    return &s->counters;
}
