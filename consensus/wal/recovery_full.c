// SPDX-License-Identifier: Apache-2.0
// A start on a disk that has no room, not even for a small file with a copy of the tail (recovery.c).
//
// Problem: the new file of a start is what vouches for the tail, and where the log goes on. Idea: neither needs room. The
// tail's bytes are written again to where they stand, in blocks that the file has, and synced; what was cut is free space
// of that file, and the log goes on there as the process before would have. The next batch there vouches for the tail.
//
// Why it is safe to go on where a torn batch lies: one batch is in the air at a time, so nothing intact of this file's
// salt lies behind the first that does not count (else that one would be proven, and be damage). The next batch gets its
// number and place; until it is synced either is torn, and cut again.
//
// A last file that is damaged, of another version or alignment, or not whole is not gone on in: then the log has no file
// until there is room. Its next batch waits for that like any that begins a file (wal_thread.c).
#include "consensus/wal/recovery.h"
#include "node/base/log.h"

static enum rc write_again(struct recovery *r, struct disk_file *f, uint64_t at, uint64_t len)
{
    if (len == 0) {
        return RC_OK;
    }
    const uint8_t *ptr = recovery_window(r, at, len);
    if (ptr == NULL) {
        return r->read_rc != RC_OK ? r->read_rc : RC_IO;
    }
    const struct iovec iov = {.iov_base = (void *)(uintptr_t)ptr, .iov_len = len};
    return r->config->disk->writev(f, &iov, 1, at);
}

static enum rc file_open(struct recovery *r, const struct scan_file *f, struct disk_file **out)
{
    char path[WAL_PATH_MAX];
    wal_file_path(r->w->dir, f->seq, path, sizeof(path));
    return r->config->disk->open(r->config->disk, path, DISK_READ | DISK_WRITE, out);
}

enum rc recovery_tail_secure(struct recovery *r, const struct scan_file *last)
{
    struct disk *d = r->config->disk;
    struct disk_file *f = NULL;
    TRY(file_open(r, last, &f));
    enum rc rc = RC_OK;
    bool is_any = false;
    for (uint32_t i = 0; i < r->batches_count && rc == RC_OK; i++) {
        const struct scan_batch *b = &r->batches[i];
        if (b->head.batch <= r->proof) {
            continue;
        }
        is_any = true;
        // They can be in the page cache of a process that died, called written though they are not.
        rc = write_again(r, f, b->region.offset, b->region.bytes);
        if (rc == RC_OK) {
            rc = write_again(r, f, b->offset, b->head.total_len);
        }
    }
    if (rc == RC_OK && is_any && d->sync(f) != RC_OK) {
        disk_fail(d);
        rc = RC_IO;  // For want of room too: somebody may rely on what lay in the pages that were lost.
    }
    d->close(f);
    return rc;
}

bool recovery_file_adopt(struct recovery *r, const struct scan_file *last)
{
    struct wal *w = r->w;
    struct disk *d = r->config->disk;
    const struct wal_header_disk *h = &last->header;
    bool is_fit = last == &r->files[r->files_count - 1] && h->version == WAL_VERSION && h->align == w->config.align &&
                  last->bytes >= h->file_bytes && h->file_bytes >= WAL_HEADER_BYTES;
    // The next file gets the next number: none of a free one.
    for (uint32_t i = 0; i < w->pool_count; i++) {
        is_fit = is_fit && w->pool[i] < last->seq;
    }
    uint64_t offset = WAL_HEADER_BYTES;
    uint64_t limit = h->file_bytes;
    for (uint32_t i = 0; i < r->batches_count; i++) {
        const struct scan_batch *b = &r->batches[i];
        is_fit = is_fit && !b->has_bad_body && !b->has_bad_region;
        offset = wal_round_up(b->offset + b->head.total_len, h->align);
        limit = b->region.bytes > 0 && b->region.offset < limit ? b->region.offset : limit;
    }
    // So that a free file that was removed does not come back under that number either.
    if (!is_fit || offset > limit || d->sync_dir(d, w->dir) != RC_OK || file_open(r, last, &w->file) != RC_OK) {
        return false;
    }
    w->seq = last->seq;
    w->file_bytes = h->file_bytes;
    w->offset = offset;
    w->limit = limit;
    w->salt = h->salt;
    w->prev_seq = last->seq;
    w->prev_last = r->batches_count > 0 ? r->batches[r->batches_count - 1].head.batch : h->first_batch - 1;
    w->batch_synced = wal_max(r->proof, w->prev_last);
    w->batch_next = w->prev_last + 1;
    w->needs_mark = r->batches_count > 0;
    log_warning("wal: the disk has no room for a file: going on in the last one, which has %llu kB left",
                (unsigned long long)(limit - offset) >> 10);
    return true;
}

void recovery_without_file(struct recovery *r, const struct scan_file *last)
{
    struct wal *w = r->w;
    if (last != NULL) {
        w->prev_seq = last->seq;
        w->prev_last = r->batches_count > 0 ? r->batches[r->batches_count - 1].head.batch : last->header.first_batch - 1;
        w->batch_synced = wal_max(r->proof, w->prev_last);
        w->batch_next = wal_max(r->batch_seen, w->batch_synced) + WAL_BATCH_GAP;
    }
    w->needs_mark = true;
    log_warning("wal: the disk has no room for a file: the log waits for it");
}
