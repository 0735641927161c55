// SPDX-License-Identifier: Apache-2.0
// What one WAL file holds: reads it through a window, tells a torn tail from damage, replays batches and regions.
// recovery.c has the idea.
#include "consensus/wal/recovery.h"
#include "node/base/limits.h"
#include "node/base/log.h"
#include <inttypes.h>
#include <stdlib.h>

enum { WINDOW_BYTES = 1 << 20 };  // One read; more where a batch is larger.

enum rc recovery_file_load(struct recovery *r, const struct scan_file *f)
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
const uint8_t *recovery_window(struct recovery *r, uint64_t pos, uint64_t need)
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
    const uint8_t *ptr = recovery_window(r, pos, WAL_BATCH_HEADER_BYTES);
    if (ptr == NULL) {
        return WAL_BATCH_BROKEN;
    }
    memcpy(head, ptr, sizeof(*head));
    if (head->magic != WAL_BATCH_MAGIC || head->total_len < WAL_BATCH_HEADER_BYTES) {
        return WAL_BATCH_BROKEN;
    }
    ptr = recovery_window(r, pos, head->total_len);
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
    const uint8_t *ptr = recovery_window(r, pos, WAL_BATCH_HEADER_BYTES + RECORD_HEADER_BYTES);
    if (ptr != NULL) {
        struct wal_batch_disk head;
        struct record_disk record;
        memcpy(&head, ptr, sizeof(head));
        memcpy(&record, ptr + sizeof(head), sizeof(record));
        bytes = wal_max(bytes, head.total_len);
        bytes = wal_max(bytes, record_size(record.len));
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
    for (uint64_t at = pos + align; (ptr = recovery_window(r, at, WAL_BATCH_HEADER_BYTES)) != NULL;) {
        if (r->bytes_from != from) {
            from = r->bytes_from;
            if (from > end_max && is_zero(r->bytes, r->bytes_len)) {
                break;  // Never written: a file used for the first time. Reading all of it would cost a start
                        // its speed.
            }
        }
        memcpy(&head, ptr, sizeof(head));
        bool is_worth = head.magic == WAL_BATCH_MAGIC && head.batch > bad &&
                        batch_at(r, f, at, &head) != WAL_BATCH_BROKEN;  // Its frame vouches, whatever became of a body.
        if (!is_worth) {
            at += align;
            continue;
        }
        proof = wal_max(proof, head.synced_through);
        r->batch_seen = wal_max(r->batch_seen, head.batch);
        at = wal_round_up(at + head.total_len, align);
    }
    return proof;
}

static void dropped_count(struct recovery *r, const struct scan_file *f, uint64_t pos, uint64_t batch)
{
    struct wal_batch_disk head = {0};
    const uint8_t *ptr;
    for (; (ptr = recovery_window(r, pos, sizeof(head))) != NULL;
         pos += wal_round_up(head.total_len, f->header.align)) {
        memcpy(&head, ptr, sizeof(head));
        if (head.magic != WAL_BATCH_MAGIC || head.batch != batch++ || head.total_len < WAL_BATCH_HEADER_BYTES) {
            return;
        }
        uint64_t left = r->file_bytes - pos;
        r->report->dropped_tail_bytes += head.total_len < left ? head.total_len : left;
    }
}

// Replays `len` bytes of records at `ptr`, which stand at `at` of file `seq`.
static enum rc records_replay(struct recovery *r, const struct scan_batch *b, const uint8_t *ptr, uint64_t len,
                              uint64_t seq, uint64_t at)
{
    while (len > 0) {
        struct wal_recovered rec = {.file_seq = seq, .file_offset = at};
        memcpy(&rec.record, ptr, sizeof(rec.record));
        uint64_t size = record_size(rec.record.len);
        if (b->has_bad_body && record_check(span_of(ptr, len), &rec.record, &size) != RC_OK) {
            // Length and group stand under the batch's checksum.
            memcpy(&rec.record, ptr, sizeof(rec.record));
            size = record_size(rec.record.len);
            log_error("wal: damaged record of group %" PRIu64 " in synced batch %" PRIu64, rec.record.group,
                      b->head.batch);
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
        len -= size;
        at += size;
    }
    return RC_OK;
}

static enum rc read_failure(const struct recovery *r)
{
    return r->read_rc != RC_OK ? r->read_rc : RC_IO;  // It was there a moment ago.
}

enum rc recovery_batch_replay(struct recovery *r, const struct scan_batch *b)
{
    const uint8_t *ptr = recovery_window(r, b->offset, b->head.total_len);
    if (ptr == NULL) {
        return read_failure(r);
    }
    r->report->batches++;
    TRY(records_replay(r, b, ptr + WAL_BATCH_HEADER_BYTES, scan_batch_records(b), b->seq, b->records_at));
    if (b->region.bytes == 0) {
        return RC_OK;
    }
    if (b->has_bad_region) {
        // Its records cannot be told apart, but whose they were is known.
        log_error("wal: damaged region of group %" PRIu64 " in synced batch %" PRIu64, b->region.group, b->head.batch);
        if (r->on_corrupt_group != NULL) {
            r->on_corrupt_group(r->replay_ctx, b->region.group);
        }
        return RC_OK;
    }
    ptr = recovery_window(r, b->region.offset, b->region.bytes);
    if (ptr == NULL) {
        return read_failure(r);
    }
    return records_replay(r, b, ptr, b->region.bytes, b->region_seq, b->region_at);
}

// The batch at `pos` as batch_at sees it, and the region that ends with it.
static enum wal_batch_state batch_with_region(struct recovery *r, const struct scan_file *f, uint64_t pos,
                                              struct scan_batch *b)
{
    *b = (struct scan_batch){.offset = pos,
                             .seq = f->seq,
                             .records_at = pos + WAL_BATCH_HEADER_BYTES,
                             .region_seq = f->seq};
    enum wal_batch_state state = batch_at(r, f, pos, &b->head);
    const uint8_t *ptr = state == WAL_BATCH_BROKEN ? NULL : recovery_window(r, pos, b->head.total_len);
    if (ptr == NULL || !wal_batch_region(span_of(ptr, b->head.total_len), &b->region)) {
        return state;
    }
    b->region_at = b->region.offset;
    ptr = b->region.bytes == 0 ? NULL : recovery_window(r, b->region.offset, b->region.bytes);
    const enum wal_batch_state region =
        ptr == NULL ? WAL_BATCH_BROKEN : wal_region_check(&b->region, span_of(ptr, b->region.bytes));
    if (region == WAL_BATCH_BROKEN) {
        b->has_bad_region = true;
        return b->region.bytes > 0 ? WAL_BATCH_BODY : WAL_BATCH_BROKEN;
    }
    return region == WAL_BATCH_BODY ? region : state;
}

enum rc recovery_file_scan(struct recovery *r, const struct scan_file *f, uint64_t limit, bool is_direct,
                           enum scan_end *end)
{
    uint64_t pos = WAL_HEADER_BYTES;
    r->batches_count = 0;
    *end = SCAN_END;
    r->proof = wal_max(r->proof, f->header.first_batch);  // The file got its name only when that one was synced.
    for (uint64_t batch = f->header.first_batch; batch <= limit; batch++) {
        struct scan_batch b;
        enum wal_batch_state state = batch_with_region(r, f, pos, &b);
        if (state != WAL_BATCH_BROKEN && b.head.batch != batch) {
            state = WAL_BATCH_BROKEN;
        }
        if (state != WAL_BATCH_INTACT) {
            r->proof = wal_max(r->proof, proof_behind(r, f, pos, batch));
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
            b.has_bad_body = true;
        }
        r->proof = wal_max(r->proof, b.head.synced_through);
        r->batch_seen = wal_max(r->batch_seen, batch);
        GROW(r->batches, r->batches_count, r->batches_cap);
        r->batches[r->batches_count++] = b;
        if (is_direct) {
            TRY(recovery_batch_replay(r, &b));
        }
        pos = wal_round_up(pos + b.head.total_len, f->header.align);
    }
    return r->read_rc;
}
