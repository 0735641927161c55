// SPDX-License-Identifier: Apache-2.0
// The simulated disk (sim_disk.h): the table of operations, and the faults that are armed. Files and names are in
// sim_disk_medium.c, what becomes of them when the power fails in sim_disk_crash.c.
//
// Each changing operation is counted, so that a crash can be put between any two of them. Once it has struck, nothing
// happens any more and every operation answers RC_IO, as after the first failure of a real disk.
#include "node/base/mem.h"
#include "tests/sim/sim_disk_parts.h"
#include <assert.h>
#include <stdlib.h>

struct disk_file {
    struct inode *inode;
    uint64_t epoch;
};

static struct sim_disk *sim(struct disk *d)
{
    return container_of(d, struct sim_disk, base);
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
    struct sim_entry *e = entry_find(s, path);
    struct inode *inode = e == NULL ? NULL : e->inode;
    if (inode == NULL) {
        if (!(flags & DISK_CREATE) || !path_has_parent(s, path)) {
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
        inode_read(i, size, c->bytes, c->len);
    }
    list_add_tail(&i->changes, &c->link);
    inode_set_size(i, size);
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
    inode_read(i, offset, c->bytes, c->len);
    uint8_t *to = c->bytes + c->len;
    for (int k = 0; k < count; k++) {
        if (iov[k].iov_len > 0) {
            memcpy(to, iov[k].iov_base, iov[k].iov_len);
            to += iov[k].iov_len;
        }
    }
    inode_write(i, offset, c->bytes + c->len, c->len);
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
    inode_read(i, offset, to, *got);
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

static enum rc sim_rename(struct disk *d, const char *from, const char *to)
{
    struct sim_disk *s = sim(d);
    assert(path_is_beside(from, to));  // Which of two directories is synced first is more than this model knows.
    if (!op_allowed(s)) {
        return RC_IO;
    }
    struct sim_entry *e = entry_find(s, from);
    if (e == NULL || !path_has_parent(s, to)) {
        return RC_NO_FILE;
    }
    struct inode *inode = inode_ref(e->inode);
    struct sim_entry *there = entry_find(s, to);
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
    struct sim_entry *e = entry_find(s, path);
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
    if (!path_has_parent(s, path)) {
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
        if (path_is_in(dir_change_name(c), path)) {
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
        if (path_is_in(s->entries[i].path, path)) {
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

uint64_t sim_disk_room(const struct sim_disk *s)
{
    return s->budget > s->used ? s->budget - s->used : 0;
}

void sim_disk_set_read_flips(struct sim_disk *s, struct rng *rng, uint64_t one_in)
{
    s->flip_rng = rng;
    s->flip_one_in = one_in;
}

const struct sim_disk_counters *sim_disk_counters(const struct sim_disk *s)
{
    return &s->counters;
}
