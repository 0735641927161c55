// SPDX-License-Identifier: Apache-2.0
// Bytes of a WAL file (README.md has the layout): the header, the batch header, and their checksums. Pure.
#pragma once
#include "node/base/span.h"
#include "proto/record.h"

enum {
    WAL_HEADER_BYTES = 4096,
    WAL_BATCH_HEADER_BYTES = 32,
    WAL_VERSION = 2,      // 2: hard states name their replica (proto/record.h).
    WAL_VERSION_MIN = 1,  // Still read.
    WAL_ALIGN_MAX = 4096,
};

#define WAL_FILE_MAGIC 0x4c41572d4e525257u  // "WRRN-WAL" read as little endian.
#define WAL_BATCH_MAGIC 0x48435442u         // "BTCH"

struct wal_header_disk {
    uint64_t magic;           // WAL_FILE_MAGIC
    uint32_t version;         // WAL_VERSION; WAL_VERSION_MIN.. when read
    uint32_t align;           // Batches start at multiples of this, 8..4096, a power of two.
    uint8_t cluster_id[16];   // Zeros: not known when the file was begun.
    uint64_t seq;             // Number of this file, as in its name.
    uint64_t salt;            // New at each use of the file; part of every batch checksum.
    uint64_t file_bytes;      // Preallocated size.
    uint64_t prev_seq;        // The file that comes before this one in the log, 0: none.
    uint64_t prev_last;       // Last batch of that file that counts; what lies behind it was dropped or copied.
    uint64_t first_batch;     // Batch sequence of the first batch here.
    uint64_t synced_through;  // Highest batch known durable when the file was begun.
    uint32_t reserved;        // 0
    uint32_t crc;             // CRC32C of the 92 bytes before.
};
static_assert(sizeof(struct wal_header_disk) == 96, "WAL file header layout");
static_assert(offsetof(struct wal_header_disk, crc) == 92, "WAL file header layout");

struct wal_batch_disk {
    uint32_t magic;           // WAL_BATCH_MAGIC
    uint32_t total_len;       // Header and records, without the padding to `align`.
    uint32_t count;           // Records; 0 in a mark batch.
    uint32_t crc;             // Of salt, the other fields, and the first 16 bytes of each record (README.md).
    uint64_t batch;           // Consecutive within a file; one that was cut may be used again, in its place.
    uint64_t synced_through;  // Highest batch known durable when this one was composed.
};
static_assert(sizeof(struct wal_batch_disk) == WAL_BATCH_HEADER_BYTES, "WAL batch header layout");

uint32_t wal_header_crc(const struct wal_header_disk *h);
// True if magic, version, checksum and limits hold. A version we do not know is not a damaged header: *is_foreign.
bool wal_header_check(const struct wal_header_disk *h, bool *is_foreign);

// The batch checksum: begin with the header (without `count`), then every record in order, then their number.
uint32_t wal_batch_crc_begin(uint64_t salt, const struct wal_batch_disk *h);
// Goes through whole records at `ptr`. Asserts that they end at `len`. Adds their number to *count.
uint32_t wal_batch_crc_records(uint32_t crc, const uint8_t *ptr, uint64_t len, uint32_t *count);
uint32_t wal_batch_crc_end(uint32_t crc, uint32_t count);

enum wal_batch_state {
    WAL_BATCH_INTACT,
    WAL_BATCH_BODY,    // The frame is intact, so lengths and groups can be trusted, but a record's sum differs.
    WAL_BATCH_BROKEN,  // Nothing here can be trusted.
};
// Looks at the batch at the start of `bytes` (which may be longer). `is_deep` also checks each record.
enum wal_batch_state wal_batch_check(uint64_t salt, struct span bytes, bool is_deep, struct wal_batch_disk *out);

// What a batch's last record says if it is a RECORD_REGION.
struct wal_region_disk {
    uint64_t offset;        // In the file of the batch.
    uint64_t bytes;         // Whole records, back to back.
    uint32_t count;         // Of records.
    uint32_t frames;        // CRC32C over the first 16 bytes of each.
    uint32_t record_bytes;  // Of the region's record itself.
    uint64_t group;         // Whose they are.
};
// False: this batch (not broken) ends no region.
bool wal_batch_region(struct span batch, struct wal_region_disk *out);
// As for a batch: BODY if only records differ, BROKEN if frames do.
enum wal_batch_state wal_region_check(const struct wal_region_disk *region, struct span bytes);

// Bytes of a batch with its padding.
static inline uint64_t wal_round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}
