// SPDX-License-Identifier: Apache-2.0
// WAL files and the pool of free ones.
//
// A file is called free-<n> while it belongs to nobody and wal-<seq> while it is part of the log. It gets its log name
// only after header and first batch are on disk: whoever finds a file called wal-<seq> may rely on its header, and a
// header that does not check is damage, never an interrupted start. Free files are overwritten in place: their blocks
// are written already, so that a sync has no metadata to carry (engine-notes §5.3). Before that the rename that freed
// the file must be durable, else a crash could bring back the old name over the new content.
#include "consensus/wal/internal.h"
#include "node/base/log.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void wal_file_path(const char *dir, uint64_t seq, char *out, size_t out_size)
{
    int n = snprintf(out, out_size, "%s/wal-%016" PRIx64, dir, seq);
    assert(n > 0 && (size_t)n < out_size);
}

void wal_free_path(const struct wal *w, uint64_t seq, char out[WAL_PATH_MAX])
{
    int n = snprintf(out, WAL_PATH_MAX, "%s/free-%016" PRIx64, w->dir, seq);
    assert(n > 0 && n < WAL_PATH_MAX);
}

struct wal_file *wal_file_add(struct wal *w, uint64_t seq, uint64_t bytes)
{
    assert(list_is_empty(&w->files) || list_entry(w->files.prev, struct wal_file, link)->seq < seq);
    struct wal_file *f = mem_zalloc(sizeof(*f));
    f->seq = seq;
    f->bytes = bytes;
    list_add_tail(&w->files, &f->link);
    w->files_count++;
    return f;
}

void wal_file_prepare(struct wal *w, uint64_t salt)
{
    struct wal_header_disk h = {
        .magic = WAL_FILE_MAGIC,
        .version = WAL_VERSION,
        .align = w->config.align,
        .seq = w->seq + 1,
        .salt = salt,
        .file_bytes = w->batch.file_bytes,
        .prev_seq = w->prev_seq,
        .prev_last = w->prev_last,
        .first_batch = w->batch.head.batch,
        .synced_through = w->batch_synced,
    };
    memcpy(h.cluster_id, w->config.cluster_id, sizeof(h.cluster_id));
    h.crc = wal_header_crc(&h);
    bool is_foreign;
    assert(wal_header_check(&h, &is_foreign));
    memset(w->header_page, 0, sizeof(w->header_page));
    memcpy(w->header_page, &h, sizeof(h));
}

static void file_remove(struct wal *w, uint64_t free_seq)
{
    char path[WAL_PATH_MAX];
    wal_free_path(w, free_seq, path);
    if (w->config.disk->unlink(w->config.disk, path) != RC_OK) {
        log_warning("wal: %s could not be removed", path);
    }
}

// Makes a free file of that number. Without room nothing is left of it.
static enum rc file_make(struct wal *w, uint64_t free_seq, uint64_t bytes, struct disk_file **out)
{
    struct disk *d = w->config.disk;
    char path[WAL_PATH_MAX];
    wal_free_path(w, free_seq, path);
    TRY(d->open(d, path, DISK_READ | DISK_WRITE | DISK_CREATE, out));
    enum rc rc = d->allocate(*out, bytes);
    if (rc != RC_OK) {
        d->close(*out);
        *out = NULL;
        file_remove(w, free_seq);
    }
    return rc;
}

// A file for `bytes`: from the pool if one fits, else a new one. *free_seq is its present number.
static enum rc file_take(struct wal *w, uint64_t bytes, uint64_t *free_seq, struct disk_file **out)
{
    struct disk *d = w->config.disk;
    *free_seq = w->seq + 1;
    if (bytes == w->config.file_bytes && w->pool_count > 0) {
        if (w->pool_is_dirty) {
            TRY(d->sync_dir(d, w->dir));
            w->pool_is_dirty = false;
        }
        *free_seq = w->pool[--w->pool_count];  // There as a rule: nothing is made then.
    }
    return file_make(w, *free_seq, bytes, out);
}

// Back into the pool, or gone: the next try begins like this one.
static void file_give_back(struct wal *w, uint64_t free_seq)
{
    if (free_seq != w->seq + 1) {
        w->pool[w->pool_count++] = free_seq;
    } else {
        file_remove(w, free_seq);
    }
}

enum rc wal_file_begin(struct wal *w, struct disk_file **out)
{
    struct disk *d = w->config.disk;
    const struct wal_batch *b = &w->batch;
    char path[WAL_PATH_MAX];
    char name[WAL_PATH_MAX];
    uint64_t free_seq = 0;
    struct disk_file *f = NULL;
    TRY(file_take(w, b->file_bytes, &free_seq, &f));
    wal_free_path(w, free_seq, path);
    wal_file_path(w->dir, w->seq + 1, name, sizeof(name));
    enum rc rc = wal_batch_write(w, f);
    if (rc == RC_OK) {
        rc = d->sync(f);
    }
    if (rc == RC_OK) {
        rc = d->rename(d, path, name);
    }
    if (rc == RC_NO_SPACE) {  // Nobody relies on the file yet, not even on its name.
        d->close(f);
        file_give_back(w, free_seq);
        return rc;
    }
    if (rc == RC_OK) {
        rc = d->sync_dir(d, w->dir);
    }
    if (rc != RC_OK) {
        d->close(f);
        return rc == RC_NO_SPACE ? RC_IO : rc;
    }
    w->pool_is_dirty = false;
    *out = f;
    return RC_OK;
}

void wal_file_discard(struct wal *w, uint64_t seq, uint64_t bytes)
{
    struct disk *d = w->config.disk;
    char name[WAL_PATH_MAX];
    char path[WAL_PATH_MAX];
    wal_file_path(w->dir, seq, name, sizeof(name));
    wal_free_path(w, seq, path);
    bool is_kept = bytes == w->config.file_bytes && w->pool_count < WAL_POOL_MAX;
    enum rc rc = is_kept ? d->rename(d, name, path) : d->unlink(d, name);
    if (rc != RC_OK) {
        // The file stays under its log name; the next start finds that it is below `first_seq` or superseded.
        log_warning("wal: %s could not be freed: %s", name, rc_text(rc));
        return;
    }
    w->pool_is_dirty = true;
    if (is_kept) {
        w->pool[w->pool_count++] = seq;
    }
}

// A number that no free file has nor ever will get by retirement: those of the log's files are from its oldest on.
static bool free_number(const struct wal *w, uint64_t *out)
{
    const uint64_t oldest =
        list_is_empty(&w->files) ? w->seq + 1 : list_entry(w->files.next, struct wal_file, link)->seq;
    for (uint64_t n = oldest; n-- > 0;) {
        bool is_taken = false;
        for (uint32_t i = 0; i < w->pool_count; i++) {
            is_taken = is_taken || w->pool[i] == n;
        }
        if (!is_taken) {
            *out = n;
            return true;
        }
    }
    return false;
}

bool wal_is_short(const struct wal *w)
{
    return w->pool_count < w->config.reserve_files;
}

void wal_set_frugal(struct wal *w, bool is_frugal)
{
    __atomic_store_n(&w->shared_is_frugal, is_frugal, __ATOMIC_RELAXED);
}

bool wal_top_up(struct wal *w)
{
    uint64_t number;
    while (wal_is_short(w) && !__atomic_load_n(&w->shared_is_frugal, __ATOMIC_RELAXED) && free_number(w, &number)) {
        struct disk_file *f = NULL;
        const enum rc rc = file_make(w, number, w->config.file_bytes, &f);
        if (rc != RC_OK) {
            return false;
        }
        w->config.disk->close(f);
        w->pool[w->pool_count++] = number;
        w->fill_free = number;  // Whatever file had that number before.
        w->fill_free_at = 0;
    }
    return !wal_is_short(w);
}

// A slice of `f` in [*at, to). If it is synced at once, a batch that comes has no more than one slice before it.
static enum rc fill_slice(struct wal *w, struct disk_file *f, uint64_t *at, uint64_t to, bool is_synced)
{
    struct disk *d = w->config.disk;
    TRY(d->fill(f, *at, to, WAL_FILL_BYTES, at));
    return is_synced && *at != UINT64_MAX ? d->sync(f) : RC_OK;
}

// The next slice of a free file. Opened for each: between two of them the file may have become part of the log.
static enum rc fill_free(struct wal *w, bool is_synced)
{
    struct disk *d = w->config.disk;
    char path[WAL_PATH_MAX];
    struct disk_file *f = NULL;
    wal_free_path(w, w->fill_free, path);
    enum rc rc = d->open(d, path, DISK_READ | DISK_WRITE, &f);
    if (rc == RC_OK) {
        rc = fill_slice(w, f, &w->fill_free_at, w->config.file_bytes, is_synced);
        d->close(f);
    }
    return rc;
}

enum rc wal_fill(struct wal *w, bool is_idle, bool *more)
{
    struct disk *d = w->config.disk;
    assert(!w->batch.is_composed);
    *more = false;
    if (d->fill == NULL || __atomic_load_n(&w->shared_is_frugal, __ATOMIC_RELAXED)) {
        return RC_OK;
    }
    if (w->pool_count > 0 && w->fill_free != w->pool[w->pool_count - 1]) {
        w->fill_free = w->pool[w->pool_count - 1];
        w->fill_free_at = 0;
    }
    enum rc rc = RC_OK;
    if (w->file_bytes != w->config.file_bytes) {
        w->fill_at = UINT64_MAX;  // Of a size of its own for a large record: it is not used again.
    }
    if (is_idle && w->file != NULL && w->fill_at != UINT64_MAX) {
        // Only where no batch and no region lies, whatever the file system takes for a hole.
        w->fill_at = w->fill_at > w->offset ? w->fill_at : w->offset;
        rc = fill_slice(w, w->file, &w->fill_at, w->limit, true);
        w->fill_at = rc == RC_OK ? w->fill_at : UINT64_MAX;
    } else if (w->pool_count > 0 && w->fill_free_at != UINT64_MAX) {
        rc = fill_free(w, is_idle);
        w->fill_free_at = rc == RC_OK ? w->fill_free_at : UINT64_MAX;
    }
    *more = (w->file != NULL && w->fill_at != UINT64_MAX) || (w->pool_count > 0 && w->fill_free_at != UINT64_MAX);
    return disk_has_failed(d) ? rc : RC_OK;  // Else it was a help only, and is given up.
}

void wal_trim(struct wal *w)
{
    while (w->pool_count > w->config.reserve_files) {
        file_remove(w, w->pool[--w->pool_count]);
    }
}

void wal_retire(struct wal *w, uint64_t seq)
{
    list_each(item, &w->files) {
        struct wal_file *f = list_entry(item, struct wal_file, link);
        if (f->seq == seq) {
            assert(w->file == NULL || seq != w->seq);  // The current file is never retired.
            f->is_retired = true;
        }
        f->is_retired = f->is_retired || (f->is_empty && f->seq < seq);
    }
    // In order of age, and none before the checkpoint covers it: a hole anywhere must be recognisable as damage.
    while (!list_is_empty(&w->files)) {
        struct wal_file *f = list_entry(w->files.next, struct wal_file, link);
        if (!f->is_retired) {
            return;
        }
        wal_file_discard(w, f->seq, f->bytes);
        list_remove(&f->link);
        w->files_count--;
        free(f);
    }
}
