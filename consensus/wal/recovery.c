// SPDX-License-Identifier: Apache-2.0
// The reading half of the write-ahead log: what survived, and whether that is all that was promised.
//
// Problem: the end of a log after a crash looks much like damage in its middle, and mistaking the second for the first
// loses acknowledged data in silence (P8). Idea: batches and file headers say which batches were durable when they
// were written. Meeting a bad batch b (README.md, "Torn or damaged"):
//
//     | something intact and later says synced-through >= b | nothing does                              |
//     | frame of b intact: the groups of its bad records    | b and all behind it were never            |
//     | are corrupt, the rest goes on                       | acknowledged: cut there, even what is     |
//     | else: every group may be, replay ends               | intact behind it                          |
//
// Order of work: headers of all files -> the chain of files that count -> each file read once, scanned,
// replayed. The last one is cut first; its batches that nothing vouches for may never have been synced (they
// can come from the page cache of a process that died), so they are written again into a new file and synced
// before they are replayed. The new file is made in any case and is one synced batch: from then on something
// vouches for all that came before.
//
// Without room for a new file the log goes on in the last one, or, where that cannot be, without a file until there is
// room; what nothing vouches for is written again to where it stands, and synced (recovery_full.c). A new log is not begun
// then: if there were none of its files, the next start, of a member by then, would take it for lost.
//
// A start that is interrupted anywhere leaves the chain as it was or the new file in place of the old last one.
#include "consensus/wal/recovery.h"
#include "node/base/limits.h"
#include "node/base/log.h"
#include <inttypes.h>
#include <stdlib.h>

// ---- files -----------------------------------------------------------------------------------------------------

// "<prefix><16 hex digits>" and nothing else.
static bool name_parse(const char *name, const char *prefix, uint64_t *out)
{
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0 || strlen(name + n) != 16) {
        return false;
    }
    uint64_t v = 0;
    for (const char *p = name + n; *p != '\0'; p++) {
        bool is_digit = *p >= '0' && *p <= '9';
        if (!is_digit && !(*p >= 'a' && *p <= 'f')) {
            return false;
        }
        v = v << 4 | (uint64_t)(is_digit ? *p - '0' : *p - 'a' + 10);
    }
    *out = v;
    return true;
}

static void on_name(void *ctx, const char *name)
{
    struct recovery *r = ctx;
    uint64_t seq;
    if (name_parse(name, "wal-", &seq)) {
        GROW(r->files, r->files_count, r->files_cap);
        r->files[r->files_count++] = (struct scan_file){.seq = seq};
    } else if (name_parse(name, "free-", &seq)) {
        GROW(r->free_files, r->free_count, r->free_cap);
        r->free_files[r->free_count++] = seq;
    }
}

static enum rc header_read(struct recovery *r, struct scan_file *f)
{
    struct disk *d = r->config->disk;
    char path[WAL_PATH_MAX];
    wal_file_path(r->w->dir, f->seq, path, sizeof(path));
    struct disk_file *file = NULL;
    TRY(d->open(d, path, DISK_READ, &file));
    size_t got = 0;
    enum rc rc = d->size(file, &f->bytes);
    if (rc == RC_OK) {
        rc = d->read(file, 0, &f->header, sizeof(f->header), &got);
    }
    d->close(file);
    TRY(rc);
    bool is_foreign = false;
    f->is_header_ok = got == sizeof(f->header) && wal_header_check(&f->header, &is_foreign) && f->header.seq == f->seq;
    if (is_foreign) {
        log_error("wal: %s has format version %u, this program knows %d to %d", path, f->header.version,
                  WAL_VERSION_MIN, WAL_VERSION);
        return RC_UNSUPPORTED;
    }
    static const uint8_t unknown[16];
    if (f->is_header_ok && memcmp(f->header.cluster_id, unknown, 16) != 0 &&
        memcmp(r->config->cluster_id, unknown, 16) != 0 &&
        memcmp(f->header.cluster_id, r->config->cluster_id, 16) != 0) {
        log_error("wal: %s belongs to another cluster", path);
        return RC_CONFLICT;
    }
    return RC_OK;
}

// Finds the files that make up the log, from the newest back through `prev_seq`. Files between two members of the chain
// are left over from an interrupted start: what counted in them was copied.
static void chain_find(struct recovery *r)
{
    uint32_t i = r->files_count;
    while (i > 0) {
        struct scan_file *f = &r->files[--i];
        f->is_chained = true;
        if (!f->is_header_ok) {
            continue;  // Its predecessor is unknown: take the file before it. Replay ends here in any case.
        }
        r->proof = wal_max(r->proof, f->header.synced_through);
        r->batch_seen = wal_max(r->batch_seen, f->header.first_batch);
        if (f->header.prev_seq < r->first_seq) {
            return;
        }
        while (i > 0 && r->files[i - 1].seq > f->header.prev_seq) {
            i--;
        }
        f->has_gap_before = i == 0 || r->files[i - 1].seq != f->header.prev_seq;
    }
}

// ---- the new file ----------------------------------------------------------------------------------------------

// From which batch of the last file on the content is copied to the new file: all of it if it is little and sound,
// else what nothing vouches for.
static uint32_t rewrite_from(const struct recovery *r)
{
    uint64_t bytes = 0;
    uint32_t unproven = r->batches_count;
    bool is_sound = true;
    for (uint32_t i = r->batches_count; i > 0; i--) {
        const struct scan_batch *b = &r->batches[i - 1];
        bytes += b->head.total_len + b->region.bytes;
        is_sound = is_sound && !b->has_bad_body;
        if (b->head.batch > r->proof) {
            assert(!b->has_bad_body);
            unproven = i - 1;
        }
    }
    uint64_t little = r->w->config.file_bytes / WAL_MERGE_FRACTION;
    return is_sound && bytes <= little && bytes <= LIMIT_WAL_BATCH_BYTES ? 0 : unproven;
}

// What the header of the next file says of the log before it, if it begins with a copy of batches[from..] of `last`
// (NULL: an empty log).
static void place_set(struct recovery *r, const struct scan_file *last, uint32_t from)
{
    struct wal *w = r->w;
    if (last != NULL && from == 0 && last->is_header_ok) {
        w->prev_seq = last->header.prev_seq;  // It takes the place of the last file.
        w->prev_last = last->header.prev_last;
    } else if (last != NULL) {
        w->prev_seq = last->seq;
        w->prev_last = from > 0 && from <= r->batches_count ? r->batches[from - 1].head.batch : r->batch_seen;
    }
    w->batch_synced = wal_max(r->proof, w->prev_last);
    r->batch_seen = wal_max(r->batch_seen, w->batch_synced);
    w->batch_next = r->batch_seen == 0 ? 1 : r->batch_seen + WAL_BATCH_GAP;
}

// Begins the new file with a copy of batches[from..], so that it is one synced batch. RC_NO_SPACE: nothing happened.
static enum rc new_file(struct recovery *r, const struct scan_file *last, uint32_t from, struct wal_submission *s,
                        bool asks_others)
{
    struct wal *w = r->w;
    place_set(r, last, from);
    void (*on_done)(void *, struct wal_submission *) = w->config.on_done;
    w->config.on_done = NULL;
    wal_submit(w, s);
    wal_compose_whole(w);
    enum rc rc = asks_others ? wal_write_small(w) : wal_write_own(w);
    if (rc == RC_NO_SPACE) {
        wal_abandon(w);
    } else {
        wal_complete(w, rc);
    }
    w->config.on_done = on_done;
    return rc;
}

// Copies `len` bytes of the last file at `at` to `to`, as one range.
static enum rc range_copy(struct recovery *r, uint64_t at, uint64_t len, struct wal_submission *s, uint8_t **to)
{
    if (len == 0) {
        return RC_OK;
    }
    const uint8_t *ptr = recovery_window(r, at, len);
    if (ptr == NULL) {
        return r->read_rc != RC_OK ? r->read_rc : RC_IO;
    }
    memcpy(*to, ptr, len);
    s->ranges[s->ranges_count++] = (struct wal_range){.ptr = *to, .len = (uint32_t)len};
    *to += len;
    return RC_OK;
}

// Copies the records of batches[from..] out of the window: a range for a batch's own and one for its
// region's, which stand behind them from then on. The caller frees ranges and *copy_out.
static enum rc tail_copy(struct recovery *r, uint32_t from, struct wal_submission *s, uint8_t **copy_out)
{
    for (uint32_t i = from; i < r->batches_count; i++) {
        s->bytes += scan_batch_records(&r->batches[i]) + r->batches[i].region.bytes;
    }
    uint8_t *to = *copy_out = mem_alloc(s->bytes + 1);
    s->ranges = mem_zalloc((2 * (size_t)r->batches_count + 1) * sizeof(*s->ranges));
    for (uint32_t i = from; i < r->batches_count; i++) {
        const struct scan_batch *b = &r->batches[i];
        TRY(range_copy(r, b->offset + WAL_BATCH_HEADER_BYTES, scan_batch_records(b), s, &to));
        TRY(range_copy(r, b->region.offset, b->region.bytes, s, &to));
    }
    return RC_OK;
}

// Where the copies of batches[from..] went.
static void tail_moved(struct recovery *r, uint32_t from, const struct wal_submission *s)
{
    const struct wal_range *range = s->ranges;
    for (uint32_t i = from; i < r->batches_count; i++) {
        struct scan_batch *b = &r->batches[i];
        if (scan_batch_records(b) > 0) {
            b->seq = range->file_seq;
            b->records_at = range->file_offset;
            range++;
        }
        if (b->region.bytes > 0) {
            b->region_seq = range->file_seq;
            b->region_at = range->file_offset;
            range++;
        }
    }
    assert(range == s->ranges + s->ranges_count);
}

// No room for a new file: goes on in the last one. What others keep in reserve is for what comes then, as long as the
// log has a file.
static enum rc last_kept(struct recovery *r, const struct scan_file *last, uint32_t from, struct wal_submission *s,
                         bool *is_copied)
{
    TRY(recovery_tail_secure(r, last));
    if (recovery_file_adopt(r, last)) {
        return RC_OK;
    }
    enum rc rc = new_file(r, last, from, s, true);
    *is_copied = rc == RC_OK;
    if (rc == RC_NO_SPACE) {
        recovery_without_file(r, last);
        rc = RC_OK;
    }
    return rc;
}

// The last file that counts is loaded and scanned: secure its tail, then replay it.
static enum rc last_replay(struct recovery *r, struct scan_file *last)
{
    uint32_t from = rewrite_from(r);
    struct wal_submission s = {0};
    uint8_t *copy = NULL;
    bool is_copied = true;
    enum rc rc = tail_copy(r, from, &s, &copy);
    if (rc == RC_OK) {
        rc = new_file(r, last, from, &s, false);
    }
    if (rc == RC_NO_SPACE) {
        is_copied = false;
        rc = last_kept(r, last, from, &s, &is_copied);
    }
    if (rc == RC_OK && is_copied && from == 0) {
        last->is_chained = false;
    }
    if (rc == RC_OK && is_copied) {
        tail_moved(r, from, &s);
    }
    for (uint32_t i = 0; rc == RC_OK && i < r->batches_count; i++) {
        rc = recovery_batch_replay(r, &r->batches[i]);
    }
    free(s.ranges);
    free(copy);
    return rc;
}

// ---- all of it -------------------------------------------------------------------------------------------------

static struct scan_file *chain_next(struct recovery *r, uint32_t i)
{
    for (i++; i < r->files_count; i++) {
        if (r->files[i].is_chained) {
            return &r->files[i];
        }
    }
    return NULL;
}

static void corrupt_all(struct recovery *r, uint64_t seq)
{
    r->report->is_corrupt = true;
    r->report->corrupt_groups_known = false;
    log_critical("wal: synced data in file %016" PRIx64 " is damaged and it cannot be told whose it was", seq);
}

// Everything behind the cut was never acknowledged.
static void drop_behind(struct recovery *r, uint32_t i)
{
    for (i++; i < r->files_count; i++) {
        if (r->files[i].is_chained) {
            r->files[i].is_chained = false;
            r->report->dropped_tail_bytes += r->files[i].bytes;
        }
    }
}

// No file is there although one must be: a checkpoint follows a closed file, which had a successor, and a log is never
// without a current file. The new file continues one that does not exist, so that every later start sees it too.
static void lost_whole(struct recovery *r)
{
    struct wal *w = r->w;
    r->report->is_corrupt = true;
    r->report->corrupt_groups_known = false;
    w->seq = wal_max(w->seq, r->first_seq);
    w->prev_seq = r->first_seq;
    log_critical("wal: the log is gone (no file from %016" PRIx64
                 " on): what was acknowledged may be missing",
                 r->first_seq);
}

// Reads and replays the chain; makes the new file.
static enum rc chain_replay(struct recovery *r)
{
    struct scan_file *last = NULL;
    const bool is_none = r->files_count == 0;
    const bool is_new = is_none && !r->config->must_exist && r->first_seq <= 1;
    if (is_none && !is_new) {
        lost_whole(r);
    }
    for (uint32_t i = 0; i < r->files_count; i++) {
        struct scan_file *f = &r->files[i];
        if (!f->is_chained) {
            continue;
        }
        last = f;
        if (!f->is_header_ok || f->has_gap_before) {
            corrupt_all(r, f->seq);
            break;
        }
        struct scan_file *next = chain_next(r, i);
        bool is_linked = next != NULL && next->is_header_ok && next->header.prev_seq == f->seq;
        uint64_t limit = is_linked ? next->header.prev_last : UINT64_MAX;
        bool is_direct = r->proof >= limit;  // Whatever is bad here is damage: nothing will be cut or moved.
        enum scan_end end;
        TRY(recovery_file_load(r, f));
        TRY(recovery_file_scan(r, f, limit, is_direct, &end));
        if (end == SCAN_CUT && next != NULL && !next->is_header_ok) {
            end = SCAN_END;  // Nobody says where this file ends; the next one's header is the damage.
        }
        if (end == SCAN_CUT) {
            drop_behind(r, i);
            return last_replay(r, f);
        }
        f->is_empty = end == SCAN_END;
        for (uint32_t k = 0; k < r->batches_count; k++) {
            f->is_empty = f->is_empty && r->batches[k].head.count == 0;
            if (!is_direct) {
                TRY(recovery_batch_replay(r, &r->batches[k]));
            }
        }
        if (end == SCAN_CORRUPT) {
            corrupt_all(r, f->seq);
            break;
        }
    }
    // An empty log, or one that is damaged: nothing is copied, the new file goes behind the newest there is.
    r->batches_count = 0;
    if (last != NULL) {
        last = &r->files[r->files_count - 1];
    }
    struct wal_submission nothing = {0};
    const enum rc rc = new_file(r, last, last == NULL ? 0 : UINT32_MAX, &nothing, true);
    if (rc != RC_NO_SPACE || is_new) {
        return rc;
    }
    recovery_without_file(r, NULL);
    return RC_OK;
}

static enum rc directory_read(struct recovery *r)
{
    struct disk *d = r->config->disk;
    char parent[WAL_PATH_MAX] = ".";
    const char *slash = strrchr(r->w->dir, '/');
    if (slash != NULL && slash != r->w->dir) {
        memcpy(parent, r->w->dir, (size_t)(slash - r->w->dir));
        parent[slash - r->w->dir] = '\0';
    }
    TRY(d->make_dir(d, r->w->dir));
    TRY(d->sync_dir(d, parent));
    TRY(d->list(d, r->w->dir, on_name, r));
    for (uint32_t i = 0; i < r->files_count; i++) {
        TRY(header_read(r, &r->files[i]));
    }
    return RC_OK;
}

// Old files below first_seq are not part of the log. They go into the pool first of all: the new file may need their room.
static enum rc files_below_first(struct recovery *r, uint32_t *skip)
{
    struct disk *d = r->config->disk;
    *skip = 0;
    while (*skip < r->files_count && r->files[*skip].seq < r->first_seq) {
        const struct scan_file *f = &r->files[*skip];
        r->batch_seen = wal_max(r->batch_seen, f->is_header_ok ? f->header.first_batch : 0);
        wal_file_discard(r->w, f->seq, f->bytes);
        *skip += 1;
    }
    return *skip > 0 ? d->sync_dir(d, r->w->dir) : RC_OK;
}

static void pool_fill(struct recovery *r)
{
    struct wal *w = r->w;
    struct disk *d = r->config->disk;
    w->pool_is_dirty = true;
    for (uint32_t i = 0; i < r->free_count; i++) {
        uint64_t seq = r->free_files[i];
        w->seq = wal_max(w->seq, seq);
        char path[WAL_PATH_MAX];
        wal_free_path(w, seq, path);
        struct disk_file *f = NULL;
        uint64_t bytes = 0;
        bool is_fit = w->pool_count < WAL_POOL_MAX && d->open(d, path, DISK_READ, &f) == RC_OK;
        if (is_fit) {
            is_fit = d->size(f, &bytes) == RC_OK && bytes == w->config.file_bytes;
            d->close(f);
        }
        if (is_fit) {
            w->pool[w->pool_count++] = seq;
        } else if (d->unlink(d, path) != RC_OK) {
            log_warning("wal: %s could not be removed", path);
        }
    }
}

static enum rc recover(struct recovery *r)
{
    struct wal *w = r->w;
    TRY(directory_read(r));
    if (r->files_count > 0) {
        w->seq = r->files[r->files_count - 1].seq;
    }
    pool_fill(r);
    uint32_t old;
    TRY(files_below_first(r, &old));
    struct scan_file *all = r->files;
    uint32_t all_count = r->files_count;
    r->files = all + old;
    r->files_count -= old;
    chain_find(r);
    enum rc rc = chain_replay(r);
    r->files = all;
    r->files_count = all_count;
    TRY(rc);
    // The list of files is in order of age and the new one, if any, is already in it.
    struct list *current = list_pop(&w->files);
    assert(list_is_empty(&w->files));
    w->files_count = 0;
    for (uint32_t i = old; i < all_count; i++) {
        if (all[i].is_chained) {
            wal_file_add(w, all[i].seq, all[i].bytes)->is_empty = all[i].is_empty;
        } else {
            wal_file_discard(w, all[i].seq, all[i].bytes);
        }
    }
    if (current != NULL) {
        list_add_tail(&w->files, current);
        w->files_count++;
    }
    return RC_OK;
}

enum rc wal_open(const struct wal_config *config, uint64_t first_seq, wal_replay_fn *replay, void *replay_ctx,
                 void (*on_corrupt_group)(void *ctx, uint64_t group), struct wal_report *report, struct wal **out)
{
    *report = (struct wal_report){.corrupt_groups_known = true};
    struct wal *w = wal_create(config);
    struct recovery r = {
        .w = w,
        .config = config,
        .first_seq = first_seq,
        .replay = replay,
        .replay_ctx = replay_ctx,
        .on_corrupt_group = on_corrupt_group,
        .report = report,
    };
    enum rc rc = recover(&r);
    if (!report->is_corrupt) {
        report->corrupt_groups_known = false;
    }
    free(r.files);
    free(r.free_files);
    free(r.bytes);
    free(r.batches);
    if (r.file != NULL) {
        config->disk->close(r.file);
    }
    if (rc != RC_OK) {
        wal_close(w);
        return rc;
    }
    *out = w;
    return RC_OK;
}
