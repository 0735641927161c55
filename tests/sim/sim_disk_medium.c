// SPDX-License-Identifier: Apache-2.0
// The simulated disk's files, names and what of both is not synced yet (sim_disk_parts.h).
#include "node/base/mem.h"
#include "tests/sim/sim_disk_parts.h"
#include <stdlib.h>

// ---- inodes ----------------------------------------------------------------------------------------------------

void change_free(struct change *c)
{
    list_remove(&c->link);
    free(c->bytes);
    free(c);
}

void inode_unref(struct inode *i)
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

struct inode *inode_ref(struct inode *i)
{
    i->refs++;
    return i;
}

struct inode *inode_create(struct sim_disk *s)
{
    struct inode *i = mem_zalloc(sizeof(*i));
    list_init(&i->changes);
    i->disk = s;
    return i;
}

void inode_read(const struct inode *i, uint64_t offset, uint8_t *to, uint64_t len)
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

void inode_write(struct inode *i, uint64_t offset, const uint8_t *from, uint64_t len)
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
void inode_set_size(struct inode *i, uint64_t size)
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

void inode_sync(struct inode *i)
{
    while (!list_is_empty(&i->changes)) {
        change_free(list_entry(i->changes.next, struct change, link));
    }
}

// ---- names -----------------------------------------------------------------------------------------------------

struct sim_entry *entry_find(const struct sim_disk *s, const char *path)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (strcmp(s->entries[i].path, path) == 0) {
            return &s->entries[i];
        }
    }
    return NULL;
}

// Takes a reference to `inode`.
void entry_add(struct sim_disk *s, const char *path, struct inode *inode)
{
    if (s->count == s->cap) {
        s->cap = s->cap == 0 ? 16 : s->cap * 2;
        s->entries = mem_realloc(s->entries, s->cap * sizeof(*s->entries));
    }
    s->entries[s->count++] = (struct sim_entry){.path = mem_strndup(path, strlen(path)), .inode = inode_ref(inode)};
}

void entry_remove(struct sim_disk *s, struct sim_entry *e)
{
    free(e->path);
    inode_unref(e->inode);
    *e = s->entries[--s->count];
}

bool path_is_in(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    if (strcmp(dir, ".") == 0) {
        return strchr(path, '/') == NULL;
    }
    return strncmp(path, dir, n) == 0 && path[n] == '/' && strchr(path + n + 1, '/') == NULL;
}

bool dir_exists(const struct sim_disk *s, const char *dir)
{
    for (uint32_t i = 0; i < s->dirs_count; i++) {
        if (strcmp(s->dirs[i], dir) == 0) {
            return true;
        }
    }
    return strcmp(dir, ".") == 0;
}

bool path_has_parent(const struct sim_disk *s, const char *path)
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

bool path_is_beside(const char *a, const char *b)
{
    const char *x = strrchr(a, '/');
    const char *y = strrchr(b, '/');
    size_t n = x == NULL ? 0 : (size_t)(x - a);
    size_t m = y == NULL ? 0 : (size_t)(y - b);
    return n == m && memcmp(a, b, n) == 0;
}

void dir_change_add(struct sim_disk *s, enum dir_op op, const char *path, const char *to, struct inode *inode,
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

void dir_change_free(struct dir_change *c)
{
    list_remove(&c->link);
    inode_unref(c->inode);
    inode_unref(c->replaced);
    free(c->path);
    free(c->to);
    free(c);
}

const char *dir_change_name(const struct dir_change *c)
{
    return c->to != NULL ? c->to : c->path;
}

void dir_change_undo(struct sim_disk *s, struct dir_change *c)
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
