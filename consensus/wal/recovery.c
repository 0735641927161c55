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
// Order of work: headers of all files -> the chain of files that count -> each file read once, scanned, replayed. The last
// one is cut first; its batches that nothing vouches for may never have been synced (they can come from the page
// cache of a process that died), so they are written again into a new file and synced before they are replayed. The
// new file is made in any case and is one synced batch: from then on something vouches for all that came before.
//
// A start that is interrupted anywhere leaves the chain as it was or the new file in place of the old last one.
#include "consensus/wal/internal.h"
#include "node/base/limits.h"
#include "node/base/log.h"
#include <inttypes.h>
#include <stdlib.h>

enum { WINDOW_BYTES = 1 << 20 };  // One read; more where a batch is larger.

struct scan_batch {
    uint64_t offset;          // Of the batch in its file.
    struct wal_batch_disk head;
    bool has_bad_body;        // Proven durable, but some record's sum differs.
};

struct scan_file {
    uint64_t seq;             // From the name.
    uint64_t bytes;           // Size found.
    bool is_header_ok;
    bool is_chained;          // Part of the log.
    bool has_gap_before;      // The file it continues is missing.
    bool is_empty;            // Nothing but marks: nobody knows of it who would retire it.
    struct wal_header_disk header;
};

enum scan_end {
    SCAN_END,      // Everything up to the limit, or the end of what was written.
    SCAN_CUT,      // Ended at an unsynced tail.
    SCAN_CORRUPT,  // Ended at damage that leaves nothing to trust.
};

struct recovery {
    struct wal *w;
    const struct wal_config *config;
    uint64_t first_seq;
    wal_replay_fn *replay;
    void *replay_ctx;
    void (*on_corrupt_group)(void *ctx, uint64_t group);
    struct wal_report *report;

    struct scan_file *files;
    uint32_t files_count, files_cap;
    uint64_t *free_files;
    uint32_t free_count, free_cap;
    enum rc list_rc;

    // The file being read, seen through a window: the tail of a file is mostly unused, and touching that much memory
    // costs more than reading it.
    struct disk_file *file;
    uint64_t file_bytes;
    uint8_t *bytes;           // [bytes_from, bytes_from + bytes_len) of the file.
    uint64_t bytes_from, bytes_len, bytes_cap;
    enum rc read_rc;          // First failed read.
    struct scan_batch *batches;  // Of that file.
    uint32_t batches_count, batches_cap;

    uint64_t proof;           // Highest synced-through of the chain's headers and the batches met.
    uint64_t batch_seen;      // Highest batch number met anywhere.
};

#define GROW(array, count, cap)                                                                    \
    do {                                                                                           \
        if ((count) == (cap)) {                                                                    \
            (cap) = (cap) == 0 ? 16 : (cap) * 2;                                                   \
            (array) = mem_realloc((array), (cap) * sizeof(*(array)));                              \
        }                                                                                          \
    } while (0)

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

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
        log_error("wal: %s has format version %u, this program knows %d", path, f->header.version, WAL_VERSION);
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
        r->proof = max_u64(r->proof, f->header.synced_through);
        r->batch_seen = max_u64(r->batch_seen, f->header.first_batch);
        if (f->header.prev_seq < r->first_seq) {
            return;
        }
        while (i > 0 && r->files[i - 1].seq > f->header.prev_seq) {
            i--;
        }
        f->has_gap_before = i == 0 || r->files[i - 1].seq != f->header.prev_seq;
    }
}

static enum rc file_load(struct recovery *r, const struct scan_file *f)
{
    struct disk *d = r->config->disk;
    char path[WAL_PATH_MAX];
    wal_file_path(r->w->dir, f->seq, path, sizeof(path));
    if (r->file != NULL) {
        d->close(r->file);
        r->file = NULL;
    }
    r->file_bytes = f->bytes;
    r->bytes_from = 0;
    r->bytes_len = 0;
    return d->open(d, path, DISK_READ, &r->file);
}

// Bytes [pos, pos + need) of the file, or NULL if it ends before or cannot be read. Valid until the next call.
static const uint8_t *window(struct recovery *r, uint64_t pos, uint64_t need)
{
    if (pos >= r->bytes_from && pos + need <= r->bytes_from + r->bytes_len) {
        return r->bytes + (pos - r->bytes_from);
    }
    if (pos > r->file_bytes || need > r->file_bytes - pos || r->read_rc != RC_OK) {
        return NULL;
    }
    uint64_t want = need > WINDOW_BYTES ? need : WINDOW_BYTES;
    want = want < r->file_bytes - pos ? want : r->file_bytes - pos;
    if (r->bytes_cap < want) {
        free(r->bytes);
        r->bytes = mem_alloc(want);
        r->bytes_cap = want;
    }
    size_t got = 0;
    r->read_rc = r->config->disk->read(r->file, pos, r->bytes, want, &got);
    r->bytes_from = pos;
    r->bytes_len = r->read_rc == RC_OK ? got : 0;
    return need <= r->bytes_len ? r->bytes : NULL;
}

// ---- scanning --------------------------------------------------------------------------------------------------

static enum wal_batch_state batch_at(struct recovery *r, const struct scan_file *f, uint64_t pos,
                                     struct wal_batch_disk *head)
{
    const uint8_t *ptr = window(r, pos, WAL_BATCH_HEADER_BYTES);
    if (ptr == NULL) {
        return WAL_BATCH_BROKEN;
    }
    memcpy(head, ptr, sizeof(*head));
    if (head->magic != WAL_BATCH_MAGIC || head->total_len < WAL_BATCH_HEADER_BYTES) {
        return WAL_BATCH_BROKEN;
    }
    ptr = window(r, pos, head->total_len);
    return ptr == NULL ? WAL_BATCH_BROKEN : wal_batch_check(f->header.salt, span_of(ptr, head->total_len), true, head);
}

static bool is_zero(const uint8_t *ptr, uint64_t len)
{
    return len == 0 || (ptr[0] == 0 && memcmp(ptr, ptr + 1, len - 1) == 0);
}

// Where the batch at `pos` may end at the latest: it holds at most 4 MiB or one record, whose length stands in both
// headers (damage of one leaves the other).
static uint64_t batch_end_max(struct recovery *r, uint64_t pos)
{
    uint64_t bytes = LIMIT_WAL_BATCH_BYTES;
    const uint8_t *ptr = window(r, pos, WAL_BATCH_HEADER_BYTES + RECORD_HEADER_BYTES);
    if (ptr != NULL) {
        struct wal_batch_disk head;
        struct record_disk record;
        memcpy(&head, ptr, sizeof(head));
        memcpy(&record, ptr + sizeof(head), sizeof(record));
        bytes = max_u64(bytes, head.total_len);
        bytes = max_u64(bytes, record_size(record.len));
    }
    return pos + bytes + WAL_BATCH_HEADER_BYTES + WAL_ALIGN_MAX;
}

// Highest synced-through of the intact batches behind `pos` whose numbers are above `bad`.
static uint64_t proof_behind(struct recovery *r, const struct scan_file *f, uint64_t pos, uint64_t bad)
{
    uint64_t proof = 0;
    struct wal_batch_disk head;
    uint64_t align = f->header.align;
    const uint8_t *ptr;
    uint64_t end_max = batch_end_max(r, pos);
    uint64_t from = UINT64_MAX;  // Of the window last looked at.
    for (uint64_t at = pos + align; (ptr = window(r, at, WAL_BATCH_HEADER_BYTES)) != NULL;) {
        if (r->bytes_from != from) {
            from = r->bytes_from;
            if (from > end_max && is_zero(r->bytes, r->bytes_len)) {
                break;  // Never written: a file used for the first time. Reading all of it would cost a start its speed.
            }
        }
        memcpy(&head, ptr, sizeof(head));
        bool is_worth = head.magic == WAL_BATCH_MAGIC && head.batch > bad && batch_at(r, f, at, &head) == WAL_BATCH_INTACT;
        if (!is_worth) {
            at += align;
            continue;
        }
        proof = max_u64(proof, head.synced_through);
        r->batch_seen = max_u64(r->batch_seen, head.batch);
        at = wal_round_up(at + head.total_len, align);
    }
    return proof;
}

static void dropped_count(struct recovery *r, const struct scan_file *f, uint64_t pos, uint64_t batch)
{
    struct wal_batch_disk head = {0};
    const uint8_t *ptr;
    for (; (ptr = window(r, pos, sizeof(head))) != NULL; pos += wal_round_up(head.total_len, f->header.align)) {
        memcpy(&head, ptr, sizeof(head));
        if (head.magic != WAL_BATCH_MAGIC || head.batch != batch++ || head.total_len < WAL_BATCH_HEADER_BYTES) {
            return;
        }
        uint64_t left = r->file_bytes - pos;
        r->report->dropped_tail_bytes += head.total_len < left ? head.total_len : left;
    }
}

// Replays the records of one batch; `to_seq`/`to_offset` say where its first record lies from now on.
static enum rc batch_replay(struct recovery *r, const struct scan_batch *b, uint64_t to_seq, uint64_t to_offset)
{
    const uint8_t *ptr = window(r, b->offset, b->head.total_len);
    if (ptr == NULL) {
        return r->read_rc != RC_OK ? r->read_rc : RC_IO;  // It was there a moment ago.
    }
    ptr += WAL_BATCH_HEADER_BYTES;
    uint64_t left = b->head.total_len - WAL_BATCH_HEADER_BYTES;
    r->report->batches++;
    while (left > 0) {
        struct wal_recovered rec = {.file_seq = to_seq, .file_offset = to_offset};
        memcpy(&rec.record, ptr, sizeof(rec.record));
        uint64_t size = record_size(rec.record.len);
        if (b->has_bad_body && record_check(span_of(ptr, left), &rec.record, &size) != RC_OK) {
            // Length and group stand under the batch's checksum.
            memcpy(&rec.record, ptr, sizeof(rec.record));
            size = record_size(rec.record.len);
            log_error("wal: damaged record of group %" PRIu64 " in synced batch %" PRIu64, rec.record.group, b->head.batch);
            if (r->on_corrupt_group != NULL) {
                r->on_corrupt_group(r->replay_ctx, rec.record.group);
            }
        } else {
            rec.payload = span_of(ptr + RECORD_HEADER_BYTES, rec.record.len);
            r->report->records++;
            r->report->bytes += size;
            TRY(r->replay(r->replay_ctx, &rec));
        }
        ptr += size;
        left -= size;
        to_offset += size;
    }
    return RC_OK;
}

// Fills r->batches with what counts in the loaded file, up to batch `limit`. `is_direct`: replays each as it is met,
// because it stays where it is.
static enum rc file_scan(struct recovery *r, const struct scan_file *f, uint64_t limit, bool is_direct, enum scan_end *end)
{
    uint64_t pos = WAL_HEADER_BYTES;
    r->batches_count = 0;
    *end = SCAN_END;
    for (uint64_t batch = f->header.first_batch; batch <= limit; batch++) {
        struct wal_batch_disk head;
        enum wal_batch_state state = batch_at(r, f, pos, &head);
        if (state != WAL_BATCH_BROKEN && head.batch != batch) {
            state = WAL_BATCH_BROKEN;
        }
        if (state != WAL_BATCH_INTACT) {
            r->proof = max_u64(r->proof, proof_behind(r, f, pos, batch));
            if (r->proof < batch) {
                dropped_count(r, f, pos, batch);
                *end = SCAN_CUT;
                return r->read_rc;
            }
            r->report->is_corrupt = true;
            if (state == WAL_BATCH_BROKEN) {
                *end = SCAN_CORRUPT;
                return r->read_rc;
            }
            if (batch_at(r, f, pos, &head) != WAL_BATCH_BODY) {  // The look ahead moved the window.
                return RC_IO;
            }
        }
        r->proof = max_u64(r->proof, head.synced_through);
        r->batch_seen = max_u64(r->batch_seen, batch);
        GROW(r->batches, r->batches_count, r->batches_cap);
        struct scan_batch *b = &r->batches[r->batches_count++];
        *b = (struct scan_batch){.offset = pos, .head = head, .has_bad_body = state == WAL_BATCH_BODY};
        if (is_direct) {
            TRY(batch_replay(r, b, f->seq, pos + WAL_BATCH_HEADER_BYTES));
        }
        pos = wal_round_up(pos + head.total_len, f->header.align);
    }
    return r->read_rc;
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
        bytes += b->head.total_len;
        is_sound = is_sound && !b->has_bad_body;
        if (b->head.batch > r->proof) {
            assert(!b->has_bad_body);
            unproven = i - 1;
        }
    }
    uint64_t little = r->w->config.file_bytes / WAL_MERGE_FRACTION;
    return is_sound && bytes <= little && bytes <= LIMIT_WAL_BATCH_BYTES ? 0 : unproven;
}

// Begins the new file with a copy of batches[from..], so that it is one synced batch. `last` may be NULL (empty log).
static enum rc new_file(struct recovery *r, const struct scan_file *last, uint32_t from, struct wal_submission *s)
{
    struct wal *w = r->w;
    if (last != NULL && from == 0 && last->is_header_ok) {
        w->prev_seq = last->header.prev_seq;  // It takes the place of the last file.
        w->prev_last = last->header.prev_last;
    } else if (last != NULL) {
        w->prev_seq = last->seq;
        w->prev_last = from > 0 && from <= r->batches_count ? r->batches[from - 1].head.batch : r->batch_seen;
    }
    w->batch_synced = max_u64(r->proof, w->prev_last);
    r->batch_seen = max_u64(r->batch_seen, w->batch_synced);
    w->batch_next = r->batch_seen == 0 ? 1 : r->batch_seen + WAL_BATCH_GAP;
    void (*on_done)(void *, struct wal_submission *) = w->config.on_done;
    w->config.on_done = NULL;
    wal_submit(w, s);
    wal_compose_whole(w);
    enum rc rc = wal_write(w);
    wal_complete(w, rc);
    w->config.on_done = on_done;
    return rc;
}

// Copies the records of batches[from..] out of the window: one range a batch. The caller frees ranges and *copy_out.
static enum rc tail_copy(struct recovery *r, uint32_t from, struct wal_submission *s, uint8_t **copy_out)
{
    for (uint32_t i = from; i < r->batches_count; i++) {
        s->bytes += r->batches[i].head.total_len - WAL_BATCH_HEADER_BYTES;
    }
    uint8_t *to = *copy_out = mem_alloc(s->bytes + 1);
    s->ranges = mem_zalloc((r->batches_count + 1) * sizeof(*s->ranges));
    for (uint32_t i = from; i < r->batches_count; i++) {
        const struct scan_batch *b = &r->batches[i];
        uint32_t len = b->head.total_len - WAL_BATCH_HEADER_BYTES;
        const uint8_t *ptr = window(r, b->offset, b->head.total_len);
        if (ptr == NULL) {
            return r->read_rc != RC_OK ? r->read_rc : RC_IO;
        }
        if (len > 0) {
            memcpy(to, ptr + WAL_BATCH_HEADER_BYTES, len);
            s->ranges[s->ranges_count++] = (struct wal_range){.ptr = to, .len = len};
            to += len;
        }
    }
    return RC_OK;
}

// The last file that counts is loaded and scanned: secure its tail, then replay it.
static enum rc last_replay(struct recovery *r, struct scan_file *last)
{
    uint32_t from = rewrite_from(r);
    struct wal_submission s = {0};
    uint8_t *copy = NULL;
    enum rc rc = tail_copy(r, from, &s, &copy);
    if (rc == RC_OK) {
        rc = new_file(r, last, from, &s);
    }
    if (rc == RC_OK && from == 0) {
        last->is_chained = false;
    }
    uint32_t range = 0;
    for (uint32_t i = 0; rc == RC_OK && i < r->batches_count; i++) {
        const struct scan_batch *b = &r->batches[i];
        uint64_t offset = b->offset + WAL_BATCH_HEADER_BYTES;
        uint64_t seq = last->seq;
        if (i >= from && b->head.total_len > WAL_BATCH_HEADER_BYTES) {
            seq = s.ranges[range].file_seq;
            offset = s.ranges[range].file_offset;
            assert(seq == r->w->seq);
            range++;
        }
        rc = batch_replay(r, b, seq, offset);
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
    w->seq = max_u64(w->seq, r->first_seq);
    w->prev_seq = r->first_seq;
    log_critical("wal: the log is gone (no file from %016" PRIx64 " on): what was acknowledged may be missing", r->first_seq);
}

// Reads and replays the chain; makes the new file.
static enum rc chain_replay(struct recovery *r)
{
    struct scan_file *last = NULL;
    if (r->files_count == 0 && (r->config->must_exist || r->first_seq > 1)) {
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
        TRY(file_load(r, f));
        TRY(file_scan(r, f, limit, is_direct, &end));
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
                TRY(batch_replay(r, &r->batches[k], f->seq, r->batches[k].offset + WAL_BATCH_HEADER_BYTES));
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
    return new_file(r, last, last == NULL ? 0 : UINT32_MAX, &nothing);
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

// Old files below first_seq are not part of the log; taken out of the list into the pool.
static void files_below_first(struct recovery *r, uint32_t *skip)
{
    *skip = 0;
    while (*skip < r->files_count && r->files[*skip].seq < r->first_seq) {
        *skip += 1;
    }
}

static void pool_fill(struct recovery *r)
{
    struct wal *w = r->w;
    struct disk *d = r->config->disk;
    w->pool_is_dirty = true;
    for (uint32_t i = 0; i < r->free_count; i++) {
        uint64_t seq = r->free_files[i];
        w->seq = max_u64(w->seq, seq);
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
    files_below_first(r, &old);
    struct scan_file *all = r->files;
    uint32_t all_count = r->files_count;
    for (uint32_t i = 0; i < old; i++) {
        r->batch_seen = max_u64(r->batch_seen, all[i].is_header_ok ? all[i].header.first_batch : 0);
    }
    r->files = all + old;
    r->files_count -= old;
    chain_find(r);
    enum rc rc = chain_replay(r);
    r->files = all;
    r->files_count = all_count;
    TRY(rc);
    // The list of files is in order of age and the new one is already in it.
    struct wal_file *current = list_entry(list_pop(&w->files), struct wal_file, link);
    assert(list_is_empty(&w->files));
    w->files_count = 0;
    for (uint32_t i = 0; i < all_count; i++) {
        if (i >= old && all[i].is_chained) {
            wal_file_add(w, all[i].seq, all[i].bytes)->is_empty = all[i].is_empty;
        } else {
            wal_file_discard(w, all[i].seq, all[i].bytes);
        }
    }
    list_add_tail(&w->files, &current->link);
    w->files_count++;
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
