// SPDX-License-Identifier: Apache-2.0
// Problem: what is still needed of a retired WAL file must be found by (group, index) without costing memory
// per entry and without a file per group. Idea: one file per retirement for all groups, records sorted by
// group and index; a table of runs that is kept in memory, and the offset of each entry in arrays that are
// read on demand.
//
// A crash at any point leaves either nothing, a temporary file (deleted at start; its source still exists),
// or the sealed file. The sums of single records cover offsets too: a wrong offset leads to a record of
// another name.
//
// A snapshot that another node sends comes with all that is live, in one file so that it is there as a whole or
// not at all, however large. So a run that begins beyond `reach` counts its offsets from a base of its own, and no
// run goes on for longer than that.
#include "consensus/store/segment.h"
#include "node/base/log.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { FLUSH_BYTES = 1 << 20, BASE_SHIFT_SMALL = 12 };

void segment_path(uint64_t seq, bool is_sealed, char out[SEGMENT_PATH_MAX])
{
    int n = snprintf(out, SEGMENT_PATH_MAX, "seg/seg-%016llx%s", (unsigned long long)seq,
                     is_sealed ? "" : ".tmp");
    assert(n > 0 && n < SEGMENT_PATH_MAX);
}

void segment_writer_init(struct segment_writer *w, struct disk *disk, uint64_t seq, uint64_t origin,
                         uint32_t kind, uint64_t reach)
{
    assert(reach <= SEGMENT_REACH);
    *w = (struct segment_writer){.disk = disk, .seq = seq, .origin = origin, .kind = kind};
    w->reach = reach != 0 ? reach : SEGMENT_REACH;
    w->base_shift = w->reach == SEGMENT_REACH ? SEGMENT_BASE_SHIFT : BASE_SHIFT_SMALL;
    buf_init(&w->out);
    buf_init(&w->arrays);
    buf_init(&w->runs);
    buf_init(&w->deltas);
    buf_init(&w->offsets);
}

void segment_writer_deinit(struct segment_writer *w)
{
    if (w->file != NULL) {
        w->disk->close(w->file);
        char path[SEGMENT_PATH_MAX];
        segment_path(w->seq, false, path);
        (void)w->disk->unlink(w->disk, path);  // If it stays, the next start removes it.
    }
    buf_deinit(&w->out);
    buf_deinit(&w->arrays);
    buf_deinit(&w->runs);
    buf_deinit(&w->deltas);
    buf_deinit(&w->offsets);
    *w = (struct segment_writer){0};
}

static enum rc writer_put(struct segment_writer *w, const struct iovec *iov, int count, uint64_t position)
{
    enum rc rc = w->disk->writev(w->file, iov, count, position);
    if (rc == RC_NO_SPACE && w->more_room != NULL) {
        uint64_t end = position;
        for (int i = 0; i < count; i++) {
            end += iov[i].iov_len;
        }
        if (w->more_room(w->more_room_ctx, end)) {
            rc = w->disk->writev(w->file, iov, count, position);
        }
    }
    return rc;
}

static enum rc writer_flush(struct segment_writer *w)
{
    if (w->out.len > 0) {
        struct iovec iov = {.iov_base = w->out.ptr, .iov_len = w->out.len};
        TRY(writer_put(w, &iov, 1, w->flushed));
        w->flushed += w->out.len;
        w->out.len = 0;
    }
    return RC_OK;
}

enum rc segment_sync(struct segment_writer *w)
{
    TRY(writer_flush(w));
    return w->disk->sync(w->file);
}

static struct segment_header_disk header_of(const struct segment_writer *w)
{
    struct segment_header_disk h = {
        .magic = SEGMENT_MAGIC,
        .version = w->is_far ? SEGMENT_VERSION_FAR : SEGMENT_VERSION,
        .kind = w->kind,
        .seq = w->seq,
        .origin = w->kind == SEGMENT_COMPACTED ? 0 : w->origin,
        .base_shift = w->is_far ? w->base_shift : 0,
    };
    h.crc = crc32c(0, &h, offsetof(struct segment_header_disk, crc));
    return h;
}

static enum rc writer_begin(struct segment_writer *w)
{
    char path[SEGMENT_PATH_MAX];
    segment_path(w->seq, false, path);
    TRY(w->disk->open(w->disk, path, DISK_READ | DISK_WRITE | DISK_CREATE, &w->file));
    TRY(w->disk->truncate(w->file, 0));
    const struct segment_header_disk h = header_of(w);
    memset(buf_extend(&w->out, SEGMENT_HEADER_BYTES), 0, SEGMENT_HEADER_BYTES);
    memcpy(w->out.ptr, &h, sizeof(h));
    return RC_OK;
}

enum rc segment_write_raw(struct segment_writer *w, struct span bytes, uint64_t *position)
{
    assert(bytes.len % RECORD_ALIGN == 0);
    if (w->file == NULL) {
        TRY(writer_begin(w));
    }
    *position = w->flushed + w->out.len;
    assert(*position % RECORD_ALIGN == 0);
    if (*position + bytes.len > SEGMENT_BYTES_MAX) {
        return RC_NO_SPACE;
    }
    if (bytes.len >= FLUSH_BYTES) {  // Not twice in memory.
        TRY(writer_flush(w));
        struct iovec iov = {.iov_base = (void *)bytes.ptr, .iov_len = bytes.len};
        TRY(writer_put(w, &iov, 1, w->flushed));
        w->flushed += bytes.len;
        return RC_OK;
    }
    buf_span_bytes(&w->out, bytes);
    return w->out.len >= FLUSH_BYTES ? writer_flush(w) : RC_OK;
}

enum rc segment_patch(struct segment_writer *w, uint64_t position, struct span bytes)
{
    TRY(writer_flush(w));
    assert(position + bytes.len <= w->flushed);
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes.ptr, .iov_len = bytes.len};
    return w->disk->writev(w->file, &iov, 1, position);
}

void segment_end_run(struct segment_writer *w)
{
    if (!w->has_run) {
        return;
    }
    w->has_run = false;
    assert(w->run.count == w->offsets.len / 4);
    w->run.index_pos = w->arrays.len;
    if (w->run.count != w->run.span + 1) {
        assert(w->run.flags & RUN_COMMITTED);
        buf_span_bytes(&w->arrays, buf_span(&w->deltas));
    }
    buf_span_bytes(&w->arrays, buf_span(&w->offsets));
    buf_bytes(&w->runs, &w->run, sizeof(w->run));
    w->deltas.len = w->offsets.len = 0;
}

void segment_forget_runs(struct segment_writer *w, uint32_t from)
{
    assert(from <= segment_runs_count(w));
    w->has_run = false;
    w->deltas.len = w->offsets.len = 0;
    w->runs.len = from * sizeof(struct run_disk);
}

static bool continues_run(const struct segment_writer *w, const struct record_disk *r, uint32_t flags)
{
    if (!w->has_run || w->run.group != r->group || w->run.term != r->term || w->run.flags != flags ||
        flags & RUN_CONFIG) {
        return false;
    }
    uint64_t last = w->run.first + w->run.span;
    assert(r->index > last);
    return r->index == last + 1 || (flags & RUN_COMMITTED && r->index - w->run.first < UINT32_MAX);
}

static uint64_t run_base(const struct segment_writer *w)
{
    return (uint64_t)w->run.base << w->base_shift;
}

enum rc segment_write_entry(struct segment_writer *w, const struct record_disk *r, struct span record,
                            bool is_committed)
{
    uint64_t position = 0;
    TRY(segment_write_raw(w, record, &position));
    segment_note_entry(w, r, position, record.len, is_committed);
    return RC_OK;
}

void segment_note_entry(struct segment_writer *w, const struct record_disk *r, uint64_t position,
                        uint64_t len, bool is_committed)
{
    uint32_t flags = (is_committed ? RUN_COMMITTED : 0) | (r->kind == RECORD_CONFIG ? RUN_CONFIG : 0);
    if (!continues_run(w, r, flags) || position - run_base(w) >= w->reach) {
        segment_end_run(w);
        w->has_run = true;
        w->run = (struct run_disk){
            .group = r->group, .origin = w->origin, .first = r->index, .term = r->term, .flags = flags};
        w->run.base = position < w->reach ? 0 : (uint32_t)(position >> w->base_shift);
        w->is_far |= w->run.base != 0;
    }
    const uint64_t offset = (position - run_base(w)) / 8;
    assert(offset <= UINT32_MAX);
    w->run.span = (uint32_t)(r->index - w->run.first);
    w->run.count++;
    w->run.bytes += len;
    buf_u32(&w->deltas, w->run.span);
    buf_u32(&w->offsets, (uint32_t)offset);
}

void segment_add_snapshot(struct segment_writer *w, uint64_t group, uint64_t index, uint64_t term,
                          uint64_t position, uint64_t bytes, uint32_t chunks)
{
    segment_end_run(w);
    struct run_disk r = {.group = group,
                         .origin = w->origin,
                         .first = index,
                         .term = term,
                         .index_pos = position,
                         .bytes = bytes,
                         .count = chunks,
                         .flags = RUN_SNAPSHOT};
    buf_bytes(&w->runs, &r, sizeof(r));
}

uint64_t segment_data_bytes(const struct run_disk *runs, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        bytes += runs[i].bytes;
    }
    return bytes;
}

enum rc segment_seal(struct segment_writer *w, uint64_t *file_bytes)
{
    assert(w->file != NULL);
    segment_end_run(w);
    uint64_t arrays_pos = w->flushed + w->out.len;
    while (w->arrays.len % 8 != 0) {
        buf_u8(&w->arrays, 0);
    }
    struct run_disk *runs = (struct run_disk *)(void *)w->runs.ptr;
    uint32_t runs_count = segment_runs_count(w);
    for (uint32_t i = 0; i < runs_count; i++) {
        if (!(runs[i].flags & RUN_SNAPSHOT)) {
            runs[i].index_pos += arrays_pos;
        }
    }
    uint64_t runs_pos = arrays_pos + w->arrays.len;
    struct segment_trailer_disk t = {
        .magic = SEGMENT_TRAILER_MAGIC,
        .seq = w->seq,
        .runs_pos = runs_pos,
        .file_bytes = runs_pos + w->runs.len + sizeof(t),
        .runs_count = runs_count,
        .runs_crc = crc32c(0, w->runs.ptr, w->runs.len),
        .kind = w->kind,
    };
    t.crc = crc32c(0, &t, offsetof(struct segment_trailer_disk, crc));
    if (w->is_far) {
        const struct segment_header_disk h = header_of(w);
        TRY(segment_patch(w, 0, span_of(&h, sizeof(h))));
    }
    TRY(writer_flush(w));
    struct iovec iov[3] = {
        {.iov_base = w->arrays.ptr, .iov_len = w->arrays.len},
        {.iov_base = w->runs.ptr, .iov_len = w->runs.len},
        {.iov_base = &t, .iov_len = sizeof(t)},
    };
    int skip = w->arrays.len == 0 ? 1 : 0;
    TRY(writer_put(w, iov + skip, 3 - skip, arrays_pos));
    TRY(w->disk->sync(w->file));
    w->disk->close(w->file);
    w->file = NULL;
    char from[SEGMENT_PATH_MAX], to[SEGMENT_PATH_MAX];
    segment_path(w->seq, false, from);
    segment_path(w->seq, true, to);
    enum rc rc = w->disk->rename(w->disk, from, to);
    if (rc != RC_OK) {
        (void)w->disk->unlink(w->disk, from);  // If it stays, the next start removes it.
        return rc;
    }
    rc = w->disk->sync_dir(w->disk, "seg");
    if (rc != RC_OK) {
        return RC_IO;  // Want of room is no excuse here: the file has its name.
    }
    *file_bytes = t.file_bytes;
    return RC_OK;
}

struct run run_of(const struct run_disk *d, struct segment *s, uint64_t first, uint64_t last)
{
    const bool is_dense = d->count == d->span + 1;
    assert(first >= d->first);
    assert(last <= d->first + d->span);
    assert(is_dense || (first == d->first && last == d->first + d->span));
    const uint64_t index_pos = d->index_pos / 4 + (first - d->first);
    const uint64_t index_pos_max = ((uint64_t)1 << RUN_INDEX_POS_BITS) - 1, base_max = (1u << RUN_BASE_BITS) - 1;
    assert(index_pos <= index_pos_max);
    assert(d->base <= base_max);
    struct run r = {.segment = s, .first = first, .term = d->term, .span = (uint32_t)(last - first)};
    r.index_pos = index_pos & index_pos_max;
    r.base = d->base & base_max;
    r.count = r.live = is_dense ? r.span + 1 : d->count;
    r.bytes = (uint32_t)(d->bytes / 8 * r.count / d->count);
    return r;
}

// ---- opening ------------------------------------------------------------------------------------

static enum rc read_exact(struct disk *d, struct disk_file *f, uint64_t at, void *to, size_t len)
{
    size_t got = 0;
    TRY(d->read(f, at, to, len, &got));
    return got == len ? RC_OK : RC_CORRUPT;
}

static enum rc load_tables(struct disk *d, struct disk_file *f, uint64_t seq, struct segment **out,
                           struct run_disk **runs_out, uint32_t *runs_count)
{
    uint64_t size = 0;
    TRY(d->size(f, &size));
    struct segment_header_disk h;
    struct segment_trailer_disk t;
    if (size < SEGMENT_HEADER_BYTES + sizeof(t)) {
        return RC_CORRUPT;
    }
    TRY(read_exact(d, f, 0, &h, sizeof(h)));
    if (h.magic != SEGMENT_MAGIC || h.crc != crc32c(0, &h, offsetof(struct segment_header_disk, crc)) ||
        h.seq != seq) {
        return RC_CORRUPT;
    }
    const bool is_far = h.version == SEGMENT_VERSION_FAR;
    if (h.version != SEGMENT_VERSION && !is_far) {  // All behind the header may look otherwise then.
        log_error("store: segment %" PRIu64 " has format version %u, this program knows %d", seq, h.version,
                  SEGMENT_VERSION_FAR);
        return RC_UNSUPPORTED;
    }
    TRY(read_exact(d, f, size - sizeof(t), &t, sizeof(t)));
    if (t.magic != SEGMENT_TRAILER_MAGIC || t.crc != crc32c(0, &t, offsetof(struct segment_trailer_disk, crc)) ||
        t.seq != seq || t.kind != h.kind || (is_far && h.base_shift > SEGMENT_BASE_SHIFT) || t.file_bytes != size ||
        t.runs_pos + (uint64_t)t.runs_count * sizeof(struct run_disk) + sizeof(t) != size) {
        return RC_CORRUPT;
    }
    size_t bytes = t.runs_count * sizeof(struct run_disk);
    struct run_disk *runs = mem_alloc(bytes == 0 ? 1 : bytes);
    enum rc rc = read_exact(d, f, t.runs_pos, runs, bytes);
    if (rc == RC_OK && crc32c(0, runs, bytes) != t.runs_crc) {
        rc = RC_CORRUPT;
    }
    if (rc != RC_OK) {
        free(runs);
        return rc;
    }
    struct segment *s = mem_zalloc(sizeof(*s));
    list_init(&s->link);
    s->seq = seq;
    s->origin = h.origin;
    s->kind = h.kind;
    s->base_shift = is_far ? h.base_shift : 0;
    s->bytes = size;
    s->data_bytes = segment_data_bytes(runs, t.runs_count);
    *out = s;
    *runs_out = runs;
    *runs_count = t.runs_count;
    return RC_OK;
}

enum rc segment_load(struct disk *d, uint64_t seq, struct segment **out, struct run_disk **runs,
                     uint32_t *runs_count)
{
    char path[SEGMENT_PATH_MAX];
    segment_path(seq, true, path);
    struct disk_file *f = NULL;
    TRY(d->open(d, path, DISK_READ, &f));
    enum rc rc = load_tables(d, f, seq, out, runs, runs_count);
    d->close(f);
    // What cannot be read is lost to its groups, not to the node (engine-notes 1.9). One that cannot be opened may only
    // want a descriptor or a right.
    return rc == RC_IO ? RC_CORRUPT : rc;
}
