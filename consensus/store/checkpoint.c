// SPDX-License-Identifier: Apache-2.0
// The checkpoint `seg/groups-<seq>`: what is known of every group as of the retirement of WAL file `seq`, so
// that nothing in older WAL files matters any more. Replaced as a whole at each retirement; a group that is
// not in it did not exist then.
//
// The file is a stream cut into pages of 4 KiB, each {crc over the rest, used bytes, bytes}. Stream: header
// {magic, version, seq, count}, then `count` lines of {fixed part, encoded config of the snapshot}.
#include "consensus/store/core.h"
#include "node/base/reader.h"
#include <stdio.h>

enum { PAGE_BYTES = 4096, PAGE_HEAD = 8, CHECKPOINT_VERSION = 2, FLAG_HAS_LIVE = 1, FLAG_AMNESIAC = 2 };
#define CHECKPOINT_MAGIC 0x3153505552475f57u
#define CHECKPOINT_BYTES_MAX ((size_t)4 << 30)

void checkpoint_name(uint64_t seq, char *out, size_t size)
{
    int n = snprintf(out, size, "groups-%016llx", (unsigned long long)seq);
    assert(n > 0 && (size_t)n < size);
}

void checkpoint_add(struct buf *to, const struct glog *g, uint64_t dense_last)
{
    const struct snapshot *s = g->snapshot;
    struct config config = {0};
    if (s != NULL) {
        snapshot_config(s, &config);
    }
    buf_u64(to, g->group);
    buf_u64(to, g->replica_id);
    buf_u64(to, g->hard_state.term);
    buf_u64(to, g->hard_state.vote);
    buf_u64(to, s == NULL ? 0 : s->index);
    buf_u64(to, s == NULL ? 0 : s->term);
    buf_u64(to, dense_last);
    buf_u64(to, g->segment_floor);
    buf_u8(to, (uint8_t)((s != NULL && s->live_count > 0 ? FLAG_HAS_LIVE : 0) |
                         (g->is_amnesiac ? FLAG_AMNESIAC : 0)));
    buf_u64(to, config.index);
    const size_t at = to->len;  // Of the configuration's str16.
    buf_u16(to, 0);
    if (config.count > 0) {
        config_encode(&config, to);
    }
    const uint16_t len = (uint16_t)(to->len - at - sizeof(len));
    memcpy(to->ptr + at, &len, sizeof(len));
}

enum rc checkpoint_write(struct disk *d, uint64_t seq, struct span lines, uint32_t count)
{
    struct buf stream, file;
    buf_init(&stream);
    buf_init(&file);
    buf_u64(&stream, CHECKPOINT_MAGIC);
    buf_u32(&stream, CHECKPOINT_VERSION);
    buf_u64(&stream, seq);
    buf_u32(&stream, count);
    buf_span_bytes(&stream, lines);
    for (size_t at = 0; at < stream.len; at += PAGE_BYTES - PAGE_HEAD) {
        size_t n = stream.len - at < PAGE_BYTES - PAGE_HEAD ? stream.len - at : PAGE_BYTES - PAGE_HEAD;
        uint8_t *page = buf_extend(&file, PAGE_BYTES);
        uint32_t used = (uint32_t)n;
        memcpy(page + 4, &used, 4);
        memcpy(page + PAGE_HEAD, stream.ptr + at, n);
        memset(page + PAGE_HEAD + n, 0, PAGE_BYTES - PAGE_HEAD - n);
        uint32_t crc = crc32c(0, page + 4, PAGE_BYTES - 4);
        memcpy(page, &crc, 4);
    }
    char name[SEGMENT_PATH_MAX];
    checkpoint_name(seq, name, sizeof(name));
    enum rc rc = disk_replace(d, "seg", name, buf_span(&file));
    buf_deinit(&stream);
    buf_deinit(&file);
    return rc;
}

enum rc checkpoint_write_full(struct store *s, uint64_t seq, struct span lines, uint32_t count)
{
    enum rc rc = checkpoint_write(s->config.disk, seq, lines, count);
    if (rc == RC_NO_SPACE && reserve_release(s)) {
        rc = checkpoint_write(s->config.disk, seq, lines, count);
    }
    if (rc == RC_NO_SPACE && reserve_release_last(s, lines.len)) {
        rc = checkpoint_write(s->config.disk, seq, lines, count);
    }
    if (rc == RC_NO_SPACE) {
        reserve_restore_last(s);
    }
    return rc;
}

void checkpoint_remove(struct disk *d, uint64_t seq)
{
    char name[SEGMENT_PATH_MAX], path[SEGMENT_PATH_MAX + 8];
    checkpoint_name(seq, name, sizeof(name));
    snprintf(path, sizeof(path), "seg/%s", name);
    if (d->unlink(d, path) != RC_OK) {
        log_warning("store: cannot remove %s", path);
    }
}

// Version 1 does not say whose a log is.
static enum rc line_read(struct reader *r, uint32_t version, struct checkpoint_line *l)
{
    l->group = reader_u64(r);
    l->replica_id = version == 1 ? 0 : reader_u64(r);
    l->hard_state.term = reader_u64(r);
    l->hard_state.vote = reader_u64(r);
    l->snapshot_index = reader_u64(r);
    l->snapshot_term = reader_u64(r);
    l->dense_last = reader_u64(r);
    l->segment_floor = reader_u64(r);
    uint8_t flags = reader_u8(r);
    l->has_live = flags & FLAG_HAS_LIVE;
    l->is_amnesiac = flags & FLAG_AMNESIAC;
    uint64_t config_index = reader_u64(r);
    struct span config = reader_str16(r);
    l->config.count = 0;
    enum rc rc = r->is_bad ? RC_CORRUPT : config.len == 0 ? RC_OK : config_decode(config, &l->config);
    l->config.index = config_index;
    return rc == RC_OK || rc == RC_UNSUPPORTED ? rc : RC_CORRUPT;
}

// Takes the pages apart in place. False if one is damaged; *len is what precedes it.
static bool pages_join(uint8_t *bytes, size_t *len)
{
    size_t out = 0, at = 0;
    for (; at + PAGE_BYTES <= *len; at += PAGE_BYTES) {
        uint32_t crc, used;
        memcpy(&crc, bytes + at, 4);
        memcpy(&used, bytes + at + 4, 4);
        if (crc32c(0, bytes + at + 4, PAGE_BYTES - 4) != crc || used > PAGE_BYTES - PAGE_HEAD) {
            break;
        }
        memmove(bytes + out, bytes + at + PAGE_HEAD, used);
        out += used;
    }
    bool is_whole = at == *len;
    *len = out;
    return is_whole;
}

enum rc checkpoint_read(struct disk *d, uint64_t seq,
                        void (*each)(void *ctx, const struct checkpoint_line *l), void *ctx)
{
    char name[SEGMENT_PATH_MAX], path[SEGMENT_PATH_MAX + 8];
    checkpoint_name(seq, name, sizeof(name));
    snprintf(path, sizeof(path), "seg/%s", name);
    uint8_t *bytes = NULL;
    size_t len = 0;
    TRY(disk_read_all(d, path, CHECKPOINT_BYTES_MAX, &bytes, &len));
    bool is_whole = pages_join(bytes, &len);
    struct reader r = reader_of(span_of(bytes, len));
    uint64_t magic = reader_u64(&r);
    uint32_t version = reader_u32(&r);
    uint64_t own_seq = reader_u64(&r);
    uint32_t count = reader_u32(&r);
    enum rc rc = RC_OK;
    if (r.is_bad || magic != CHECKPOINT_MAGIC || own_seq != seq) {
        rc = RC_CORRUPT;
    } else if (version == 0 || version > CHECKPOINT_VERSION) {
        log_error("store: %s has format version %u, this program knows 1 to %d", path, version, CHECKPOINT_VERSION);
        rc = RC_UNSUPPORTED;
    }
    for (uint32_t i = 0; i < count && rc == RC_OK; i++) {
        struct checkpoint_line l;
        rc = line_read(&r, version, &l);
        if (rc == RC_OK) {
            each(ctx, &l);
        }
    }
    if (rc == RC_OK && (!is_whole || reader_end(&r) != RC_OK)) {
        rc = RC_CORRUPT;
    }
    free(bytes);
    return rc;
}
