// SPDX-License-Identifier: Apache-2.0
// Checks of what a WAL file holds (format.h, README.md).
//
// A batch carries two layers of sums. The batch's own covers its header, the file's salt and the first 16
// bytes of every record {crc, len, group}; the record's covers the rest. So composing a batch costs a few
// bytes per record instead of a second pass over the bodies (decision 11), the salt still makes every byte of
// an earlier use of the file invalid, and where a body is damaged we still know whose it was: decision 11
// asks for {crc, length}, the group is added.
#include "consensus/wal/format.h"

enum { FRAMED_BYTES = 16 };  // Part of each record under the batch checksum.
static_assert(offsetof(struct record_disk, index) == FRAMED_BYTES, "crc, len and group come first");

uint32_t wal_header_crc(const struct wal_header_disk *h)
{
    return crc32c(0, h, offsetof(struct wal_header_disk, crc));
}

bool wal_header_check(const struct wal_header_disk *h, bool *is_foreign)
{
    *is_foreign = false;
    if (h->magic != WAL_FILE_MAGIC || h->crc != wal_header_crc(h)) {
        return false;
    }
    if (h->version < WAL_VERSION_MIN || h->version > WAL_VERSION) {
        *is_foreign = true;
        return false;
    }
    return h->align >= RECORD_ALIGN && h->align <= WAL_ALIGN_MAX && (h->align & (h->align - 1)) == 0 &&
           h->file_bytes >= WAL_HEADER_BYTES && h->prev_seq < h->seq && h->prev_last < h->first_batch &&
           h->synced_through < h->first_batch;
}

uint32_t wal_batch_crc_begin(uint64_t salt, const struct wal_batch_disk *h)
{
    uint32_t crc = crc32c(0, &salt, sizeof(salt));
    crc = crc32c(crc, h, offsetof(struct wal_batch_disk, count));
    return crc32c(crc, &h->batch, sizeof(h->batch) + sizeof(h->synced_through));
}

uint32_t wal_batch_crc_records(uint32_t crc, const uint8_t *ptr, uint64_t len, uint32_t *count)
{
    while (len > 0) {
        assert(len >= RECORD_HEADER_BYTES);
        uint32_t payload;
        memcpy(&payload, ptr + offsetof(struct record_disk, len), sizeof(payload));
        uint64_t size = record_size(payload);
        assert(size <= len);
        crc = crc32c(crc, ptr, FRAMED_BYTES);
        ptr += size;
        len -= size;
        *count += 1;
    }
    return crc;
}

uint32_t wal_batch_crc_end(uint32_t crc, uint32_t count)
{
    return crc32c(crc, &count, sizeof(count));
}

// True if `count` records end exactly at `len`; continues the sum over them.
static bool frame_check(const uint8_t *ptr, uint64_t len, uint32_t count, uint32_t *crc)
{
    for (uint32_t i = 0; i < count; i++) {
        if (len < RECORD_HEADER_BYTES) {
            return false;
        }
        uint32_t payload;
        memcpy(&payload, ptr + offsetof(struct record_disk, len), sizeof(payload));
        uint64_t size = record_size(payload);
        if (size > len) {
            return false;
        }
        *crc = crc32c(*crc, ptr, FRAMED_BYTES);
        ptr += size;
        len -= size;
    }
    return len == 0;
}

// The frames are known to be intact.
static enum wal_batch_state bodies_check(const uint8_t *ptr, uint64_t len)
{
    enum wal_batch_state state = WAL_BATCH_INTACT;
    while (len > 0) {
        struct record_disk r;
        uint64_t size;
        if (record_check(span_of(ptr, len), &r, &size) != RC_OK) {
            memcpy(&r, ptr, sizeof(r));
            if (r.group == 0) {
                return WAL_BATCH_BROKEN;  // Nobody's, so it is a region's, and whose that was stood in it.
            }
            state = WAL_BATCH_BODY;
            size = record_size(r.len);
        }
        ptr += size;
        len -= size;
    }
    return state;
}

enum wal_batch_state wal_batch_check(uint64_t salt, struct span bytes, bool is_deep, struct wal_batch_disk *out)
{
    if (bytes.len < WAL_BATCH_HEADER_BYTES) {
        return WAL_BATCH_BROKEN;
    }
    memcpy(out, bytes.ptr, sizeof(*out));
    if (out->magic != WAL_BATCH_MAGIC || out->total_len < WAL_BATCH_HEADER_BYTES || out->total_len > bytes.len) {
        return WAL_BATCH_BROKEN;
    }
    const uint8_t *records = bytes.ptr + WAL_BATCH_HEADER_BYTES;
    uint64_t len = out->total_len - WAL_BATCH_HEADER_BYTES;
    uint32_t crc = wal_batch_crc_begin(salt, out);
    if (!frame_check(records, len, out->count, &crc) || wal_batch_crc_end(crc, out->count) != out->crc ||
        out->synced_through >= out->batch) {
        return WAL_BATCH_BROKEN;
    }
    return is_deep ? bodies_check(records, len) : WAL_BATCH_INTACT;
}

bool wal_batch_region(struct span batch, struct wal_region_disk *out)
{
    struct record_disk r = {0};
    uint64_t size = 0;
    const uint8_t *ptr = batch.ptr + WAL_BATCH_HEADER_BYTES;
    for (uint64_t left = batch.len - WAL_BATCH_HEADER_BYTES; left > 0; left -= size) {
        ptr += size;
        memcpy(&r, ptr, sizeof(r));
        size = record_size(r.len);
        assert(size <= left);
    }
    if (size == 0 || r.group != 0 || r.kind != RECORD_REGION || r.len != 16) {
        return false;
    }
    *out = (struct wal_region_disk){.offset = r.index, .bytes = r.term, .count = r.aux, .record_bytes = (uint32_t)size};
    memcpy(&out->frames, ptr + RECORD_HEADER_BYTES, sizeof(out->frames));
    memcpy(&out->group, ptr + RECORD_HEADER_BYTES + 8, sizeof(out->group));
    return true;
}

enum wal_batch_state wal_region_check(const struct wal_region_disk *region, struct span bytes)
{
    uint32_t crc = 0;
    if (bytes.len != region->bytes || !frame_check(bytes.ptr, bytes.len, region->count, &crc) ||
        crc != region->frames) {
        return WAL_BATCH_BROKEN;
    }
    return bodies_check(bytes.ptr, bytes.len);
}
