// SPDX-License-Identifier: Apache-2.0
// Identity file (identity.h).
//
// Layout, little endian: magic u32, version u16, reserved u16, store id 16, cluster id 16, node id u32, replica id u64,
// incarnation u64, name (u16 length and bytes), crc32c u32 of everything before. The file is replaced as a whole (new
// file, sync, rename, directory sync), so it is the old or the new one after a crash, never a mixture. It has a spare: peers
// must tell this start from the one before, also on a disk without room.
#include "consensus/peer/identity.h"
#include "node/base/buf.h"
#include "node/base/crc32c.h"
#include "node/base/log.h"
#include "node/base/reader.h"
#include <stdlib.h>

enum {
    IDENTITY_MAGIC = 0x44494e57,  // "WNID"
    IDENTITY_VERSION = 1,
    IDENTITY_FILE_MAX = 4096,  // Far above what a file of this version can be.
    IDENTITY_FIXED_BYTES = 8 + STORE_ID_BYTES + CLUSTER_ID_BYTES + 4 + 8 + 8,
};

static enum rc identity_write(struct disk *disk, const struct identity *id)
{
    assert(id->incarnation > 0);
    struct buf b;
    buf_init(&b);
    buf_u32(&b, IDENTITY_MAGIC);
    buf_u16(&b, IDENTITY_VERSION);
    buf_u16(&b, 0);
    buf_bytes(&b, id->store_id, STORE_ID_BYTES);
    buf_bytes(&b, id->cluster_id, CLUSTER_ID_BYTES);
    buf_u32(&b, id->node_id);
    buf_u64(&b, id->replica_id);
    buf_u64(&b, id->incarnation);
    buf_str16(&b, span_str(id->name));
    buf_u32(&b, crc32c(0, b.ptr, b.len));
    enum rc rc = disk_replace_kept(disk, ".", "identity", buf_span(&b));
    buf_deinit(&b);
    return rc;
}

static enum rc identity_decode(struct span bytes, struct identity *out)
{
    if (bytes.len < IDENTITY_FIXED_BYTES + 2 + 4) {
        return RC_CORRUPT;
    }
    uint32_t sum;
    memcpy(&sum, bytes.ptr + bytes.len - 4, 4);
    if (sum != crc32c(0, bytes.ptr, bytes.len - 4)) {
        return RC_CORRUPT;
    }
    struct reader r = reader_of(span_of(bytes.ptr, bytes.len - 4));
    if (reader_u32(&r) != IDENTITY_MAGIC) {
        return RC_CORRUPT;
    }
    if (reader_u16(&r) != IDENTITY_VERSION) {
        return RC_UNSUPPORTED;
    }
    (void)reader_u16(&r);
    *out = (struct identity){.node_id = 0};
    memcpy(out->store_id, reader_take(&r, STORE_ID_BYTES), STORE_ID_BYTES);
    memcpy(out->cluster_id, reader_take(&r, CLUSTER_ID_BYTES), CLUSTER_ID_BYTES);
    out->node_id = reader_u32(&r);
    out->replica_id = reader_u64(&r);
    out->incarnation = reader_u64(&r);
    struct span name = reader_str16(&r);
    if (reader_end(&r) != RC_OK || name.len == 0 || name.len > IDENTITY_NAME_MAX || out->incarnation == 0) {
        return RC_CORRUPT;
    }
    memcpy(out->name, name.ptr, name.len);
    return RC_OK;
}

static void count_file(void *ctx, const char *name)
{
    (void)name;
    (*(uint32_t *)ctx)++;
}

// Fails if the directory holds logs although it has no identity file.
static enum rc check_blank(struct disk *disk)
{
    static const char *const dirs[] = {"wal", "seg", "meta"};
    uint32_t files = 0;
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        enum rc rc = disk->list(disk, dirs[i], count_file, &files);
        if (rc != RC_OK && rc != RC_NO_FILE) {
            return rc;
        }
    }
    if (files > 0) {
        log_error("the data directory holds logs but no identity file: it is damaged, not blank");
        return RC_CORRUPT;
    }
    return RC_OK;
}

enum rc identity_open(struct disk *disk, const char *name, void (*random)(void *to, uint64_t bytes),
                      struct identity *out)
{
    size_t name_len = strlen(name);
    assert(name_len > 0);
    if (name_len > IDENTITY_NAME_MAX) {
        return RC_TOO_LARGE;
    }
    uint8_t *bytes = NULL;
    size_t len = 0;
    enum rc rc = disk_read_all(disk, "identity", IDENTITY_FILE_MAX, &bytes, &len);
    if (rc == RC_NO_FILE) {
        TRY(check_blank(disk));
        *out = (struct identity){.incarnation = 0};
        random(out->store_id, STORE_ID_BYTES);
        memcpy(out->name, name, name_len);
    } else if (rc == RC_OK) {
        rc = identity_decode(span_of(bytes, len), out);
        free(bytes);
        TRY(rc);
        if (strcmp(out->name, name) != 0) {
            log_error("the data directory belongs to node %s, not to %s", out->name, name);
            return RC_CONFLICT;
        }
    } else {
        return rc == RC_TOO_LARGE ? RC_CORRUPT : rc;
    }
    out->incarnation++;
    return identity_write(disk, out);
}

enum rc identity_make(struct disk *disk, const char *name, const uint8_t *store_id, uint64_t incarnation)
{
    assert(strlen(name) <= IDENTITY_NAME_MAX);
    TRY(check_blank(disk));
    struct identity id = {.incarnation = incarnation};
    memcpy(id.store_id, store_id, STORE_ID_BYTES);
    memcpy(id.name, name, strlen(name));
    return identity_write(disk, &id);
}

enum rc identity_set_member(struct disk *disk, struct identity *id, const uint8_t *cluster_id, uint32_t node_id,
                            uint64_t replica_id)
{
    assert(identity_is_blank(id));
    assert(node_id > 0);
    assert(replica_id > 0);
    struct identity next = *id;
    memcpy(next.cluster_id, cluster_id, CLUSTER_ID_BYTES);
    next.node_id = node_id;
    next.replica_id = replica_id;
    TRY(identity_write(disk, &next));
    *id = next;
    return RC_OK;
}
