// SPDX-License-Identifier: Apache-2.0
// The record: the one form of a log entry in memory, between nodes, in the WAL and in segments
// (engine-notes §7.7). 40 bytes of header and the payload, padded with zeros to a multiple of 8.
//
// Little endian. crc is CRC32C over everything behind it, header and payload, without the padding; it is always
// present and always checked (P18). A record never changes once written; index and term name it.
#pragma once
#include "node/base/crc32c.h"
#include "node/base/rc.h"
#include "node/base/span.h"
#include <assert.h>

enum record_kind {
    RECORD_ENTRY = 1,       // A state machine command.
    RECORD_CONFIG = 2,      // Members of the group (consensus.h: config encoding). Has an index like an entry.
    RECORD_NOOP = 3,        // A leader's first entry in its term. Has an index like an entry.
    RECORD_HARD_STATE = 4,  // term = current term, index = the log's floor (segments of a lower number are void; 0 once),
                          // payload = vote (u64 replica id, 0 none) and whose log it is (u64 replica id; not there in
                          // WAL files of version 1).
    RECORD_TRUNCATE = 5,    // The log ends before `index`: everything at and above it is gone.
    RECORD_SNAPSHOT = 6,    // index/term = the snapshot's; aux = chunk number; see store/README.md.
    RECORD_TOMBSTONE = 7,   // The group was deleted; its id is never used again.
    RECORD_MARK = 8,        // No meaning but to be there (an idle WAL's mark batch).
    RECORD_REGION = 9,      // Within the WAL only: the records of a region of the file stand here (wal/README.md).
};

struct record_disk {
    uint32_t crc;    // CRC32C over bytes [4, 40 + len).
    uint32_t len;    // Payload bytes.
    uint64_t group;  // Group id, never reused.
    uint64_t index;  // Log index; 0 where the kind has none.
    uint64_t term;
    uint16_t kind;   // enum record_kind.
    uint16_t flags;  // Reserved for the kind; 0 today.
    uint32_t aux;    // Kind-specific.
};
static_assert(sizeof(struct record_disk) == 40, "record header is 40 bytes");
static_assert(offsetof(struct record_disk, kind) == 32, "record header layout");

enum { RECORD_HEADER_BYTES = 40, RECORD_ALIGN = 8, RECORD_PAYLOAD_MAX = (512 << 20) + (1 << 20) };

static inline uint64_t record_size(uint32_t payload_len)
{
    return (RECORD_HEADER_BYTES + (uint64_t)payload_len + RECORD_ALIGN - 1) & ~(uint64_t)(RECORD_ALIGN - 1);
}
// True for records that take a place in the log of their group.
static inline bool record_has_index(uint16_t kind)
{
    return kind == RECORD_ENTRY || kind == RECORD_CONFIG || kind == RECORD_NOOP;
}

// Looks at the record at the start of `bytes` without checking its sum: RC_OK and its whole size (padding
// included), RC_MORE if the bytes end first, RC_MALFORMED if the header makes no sense.
MUST_USE enum rc record_peek(struct span bytes, struct record_disk *out, uint64_t *size_out);
// The same, and checks the sum: RC_CORRUPT if it differs.
MUST_USE enum rc record_check(struct span bytes, struct record_disk *out, uint64_t *size_out);
// Copies one whole record to `to` (record_size bytes) checking the sum in the same pass.
MUST_USE enum rc record_copy_checked(uint8_t *to, struct span bytes, uint64_t *size_out);
