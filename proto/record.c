// SPDX-License-Identifier: Apache-2.0
// Decoding of records (record.h). Encoding happens where the bytes are laid down (consensus/store/memtable.c).
#include "proto/record.h"
#include "node/base/block.h"

enum rc record_peek(struct span bytes, struct record_disk *out, uint64_t *size_out)
{
    if (bytes.len < RECORD_HEADER_BYTES) {
        return RC_MORE;
    }
    memcpy(out, bytes.ptr, sizeof(*out));
    if (out->len > RECORD_PAYLOAD_MAX || out->kind < RECORD_ENTRY || out->kind > RECORD_REGION) {
        return RC_MALFORMED;
    }
    *size_out = record_size(out->len);
    return *size_out <= bytes.len ? RC_OK : RC_MORE;
}

enum rc record_check(struct span bytes, struct record_disk *out, uint64_t *size_out)
{
    TRY(record_peek(bytes, out, size_out));
    const uint64_t used = RECORD_HEADER_BYTES + (uint64_t)out->len;
    uint32_t sum;
    if (block_sum(span_of(bytes.ptr + 4, *size_out - 4), &sum)) {
        // A large one, summed as it came, with its padding: the sum it claims is carried over the same.
        return crc32c(out->crc, bytes.ptr + used, *size_out - used) == sum ? RC_OK : RC_CORRUPT;
    }
    return crc32c(0, bytes.ptr + 4, used - 4) == out->crc ? RC_OK : RC_CORRUPT;
}

enum rc record_copy_checked(uint8_t *to, struct span bytes, uint64_t *size_out)
{
    struct record_disk r;
    TRY(record_peek(bytes, &r, size_out));
    uint64_t used = RECORD_HEADER_BYTES + (uint64_t)r.len;
    memcpy(to, bytes.ptr, 4);
    uint32_t crc = crc32c_copy(0, to + 4, bytes.ptr + 4, used - 4);
    memset(to + used, 0, *size_out - used);
    return crc == r.crc ? RC_OK : RC_CORRUPT;
}
