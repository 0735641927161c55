// SPDX-License-Identifier: Apache-2.0
// The simulated disk when the power fails, and media that change by themselves (sim_disk.h).
//
// At a crash all unsynced writes are undone, newest first, and those that survive are done again in order: a later
// write may so survive an earlier one, as on real media.
#include "node/base/mem.h"
#include "tests/sim/sim_disk_parts.h"
#include <assert.h>
#include <stdlib.h>

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
        inode_write(i, c->offset, c->bytes + c->len, c->len);
        s->counters.kept_writes++;
        return;
    }
    // Torn: each sector for itself, in no order.
    s->counters.torn_writes++;
    for (uint64_t done = 0; done < c->len;) {
        uint64_t n = SECTOR - (c->offset + done) % SECTOR;
        n = n < c->len - done ? n : c->len - done;
        if (rng_below(rng, 2) == 0) {
            inode_write(i, c->offset + done, c->bytes + c->len + done, n);
        }
        done += n;
    }
}

static void inode_crash(struct sim_disk *s, struct inode *i, struct rng *rng)
{
    for (struct list *item = i->changes.prev; item != &i->changes; item = item->prev) {
        struct change *c = list_entry(item, struct change, link);
        if (!c->is_size) {
            inode_write(i, c->offset, c->bytes, c->len);
        }
        inode_set_size(i, c->size_before);
        if (c->is_size && c->len > 0) {
            inode_write(i, c->offset, c->bytes, c->len);
        }
    }
    list_each(item, &i->changes) {
        struct change *c = list_entry(item, struct change, link);
        if (!c->is_size) {
            write_survive(s, i, c, rng);
        } else if (rng_below(rng, 2) == 0) {
            inode_set_size(i, c->size_after);
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
            n += path_is_in(dir_change_name(list_entry(item, struct dir_change, link)), dir);
        }
        uint64_t undone = n == 0 ? 0 : rng_below(rng, n + 1);
        s->counters.lost_dir_changes += undone;
        for (struct list *item = s->dir_changes.prev; item != &s->dir_changes;) {
            struct dir_change *c = list_entry(item, struct dir_change, link);
            item = item->prev;
            if (!path_is_in(dir_change_name(c), dir)) {
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

// ---- for tests -------------------------------------------------------------------------------------------------

struct sim_disk *sim_disk_clone(const struct sim_disk *s)
{
    struct sim_disk *copy = sim_disk_create();
    for (uint32_t i = 0; i < s->dirs_count; i++) {
        enum rc rc = copy->base.make_dir(&copy->base, s->dirs[i]);
        assert(rc == RC_OK);
    }
    for (uint32_t i = 0; i < s->count; i++) {
        const struct inode *from = s->entries[i].inode;
        struct inode *to = inode_create(copy);
        for (uint64_t p = 0; p < from->pages_cap; p++) {
            if (from->pages[p] != NULL) {
                inode_write(to, p * PAGE, from->pages[p], PAGE);
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
    struct sim_entry *e = entry_find(s, path);
    assert(e != NULL);
    return e->inode;
}

void sim_disk_flip_bit(struct sim_disk *s, const char *path, uint64_t offset, unsigned bit)
{
    struct inode *i = must_find(s, path);
    assert(offset < i->size && bit < 8);
    uint8_t byte;
    inode_read(i, offset, &byte, 1);
    byte ^= (uint8_t)(1u << bit);
    inode_write(i, offset, &byte, 1);
}

void sim_disk_cut(struct sim_disk *s, const char *path, uint64_t bytes, bool is_zero_filled)
{
    struct inode *i = must_find(s, path);
    uint64_t size = i->size;
    inode_set_size(i, bytes);
    if (is_zero_filled && bytes < size) {
        inode_set_size(i, size);
    }
}

void sim_disk_poke(struct sim_disk *s, const char *path, uint64_t offset, const void *bytes, uint64_t len)
{
    struct inode *i = must_find(s, path);
    assert(offset + len <= i->size);
    inode_write(i, offset, bytes, len);
}

bool sim_disk_exists(const struct sim_disk *s, const char *path)
{
    return entry_find(s, path) != NULL;
}
