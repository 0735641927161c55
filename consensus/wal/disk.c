// SPDX-License-Identifier: Apache-2.0
// Whole small files over the disk seam (disk.h): replaced atomically, read at once.
#include "consensus/wal/disk.h"
#include "node/base/mem.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { PATH_BYTES = 512 };

static enum rc write_whole(struct disk *d, const char *path, struct span content)
{
    struct disk_file *f = NULL;
    TRY(d->open(d, path, DISK_WRITE | DISK_CREATE, &f));
    struct iovec iov = {.iov_base = (void *)(uintptr_t)content.ptr, .iov_len = content.len};
    enum rc rc = d->truncate(f, 0);  // Left over from an earlier attempt.
    if (rc == RC_OK && content.len > 0) {
        rc = d->writev(f, &iov, 1, 0);
    }
    if (rc == RC_OK) {
        rc = d->sync(f);
    }
    d->close(f);
    return rc;
}

struct names {
    char path[PATH_BYTES];
    char aside[PATH_BYTES];  // What is written first.
};

static struct names names_of(const char *dir, const char *name, const char *ending)
{
    struct names p;
    bool is_root = strcmp(dir, ".") == 0;
    int n = snprintf(p.path, sizeof(p.path), "%s%s%s", is_root ? "" : dir, is_root ? "" : "/", name);
    assert(n > 0 && (size_t)n < sizeof(p.path));
    n = snprintf(p.aside, sizeof(p.aside), "%s%s%s%s", is_root ? "" : dir, is_root ? "" : "/", name, ending);
    assert(n > 0 && (size_t)n < sizeof(p.aside));
    return p;
}

// Data before name, name before the answer (engine-notes §5.3). Without room nothing is left of it.
static enum rc put_in_place(struct disk *d, const char *dir, const struct names *p, enum rc rc)
{
    if (rc == RC_OK) {
        rc = d->rename(d, p->aside, p->path);
    }
    if (rc == RC_NO_SPACE) {
        (void)d->unlink(d, p->aside);  // What there was room for is somebody else's. If it stays, the next try writes over it.
    }
    TRY(rc);
    return d->sync_dir(d, dir);
}

enum rc disk_replace(struct disk *d, const char *dir, const char *name, struct span content)
{
    const struct names p = names_of(dir, name, ".tmp");
    return put_in_place(d, dir, &p, write_whole(d, p.aside, content));
}

// Writes into blocks that are there; so it is cut to its size last.
static enum rc spare_write(struct disk *d, const char *path, struct span content)
{
    struct disk_file *f = NULL;
    TRY(d->open(d, path, DISK_READ | DISK_WRITE, &f));
    struct iovec iov = {.iov_base = (void *)(uintptr_t)content.ptr, .iov_len = content.len};
    enum rc rc = d->writev(f, &iov, 1, 0);
    if (rc == RC_OK) {
        rc = d->truncate(f, content.len);
    }
    if (rc == RC_OK) {
        rc = d->sync(f);
    }
    d->close(f);
    return rc;
}

static void spare_make(struct disk *d, const char *path, uint64_t bytes)
{
    struct disk_file *f = NULL;
    if (d->open(d, path, DISK_READ | DISK_WRITE | DISK_CREATE, &f) != RC_OK) {
        return;
    }
    const enum rc rc = d->allocate(f, bytes);
    d->close(f);
    if (rc != RC_OK) {
        (void)d->unlink(d, path);  // If it stays, the next use of it meets the full disk and removes it.
    }
}

enum rc disk_replace_kept(struct disk *d, const char *dir, const char *name, struct span content)
{
    const struct names p = names_of(dir, name, ".spare");
    enum rc rc = put_in_place(d, dir, &p, spare_write(d, p.aside, content));
    if (rc == RC_NO_FILE || rc == RC_NO_SPACE) {
        rc = disk_replace(d, dir, name, content);
    }
    if (rc == RC_OK) {
        spare_make(d, p.aside, content.len);
    }
    return rc;
}

enum rc disk_read_all(struct disk *d, const char *path, size_t max, uint8_t **out_ptr, size_t *out_len)
{
    struct disk_file *f = NULL;
    TRY(d->open(d, path, DISK_READ, &f));
    uint64_t size = 0;
    uint8_t *bytes = NULL;
    size_t len = 0;
    enum rc rc = d->size(f, &size);
    if (rc == RC_OK && size > max) {
        rc = RC_TOO_LARGE;
    }
    if (rc == RC_OK) {
        bytes = mem_alloc(size + 1);
        while (rc == RC_OK && len < size) {
            size_t got = 0;
            rc = d->read(f, len, bytes + len, size - len, &got);
            if (got == 0) {
                break;
            }
            len += got;
        }
    }
    d->close(f);
    if (rc != RC_OK) {
        free(bytes);
        return rc;
    }
    *out_ptr = bytes;
    *out_len = len;
    return RC_OK;
}
