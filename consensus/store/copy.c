// SPDX-License-Identifier: Apache-2.0
// Copying records from a WAL file or a segment to a segment under construction: what harvests and compactions share.
//
// A record is verified before it is written, or with a large one before it is named by a run. What is wrong with the
// source (damage: the group it belongs to has lost its memory) and with the target (the disk) is told apart.
#include "consensus/store/core.h"

uint64_t copy_slice_bytes(const struct store *s)
{
    // Many small syncs disturb the WAL's less than one of a whole file.
    uint64_t bytes = s->config.wal_file_bytes / 16;
    return bytes < 4 << 20 ? bytes : 4 << 20;
}

struct copy {
    struct segment_writer *writer;
    uint64_t position;  // Of the first piece.
    uint64_t len;
    enum rc rc;  // Of the writer.
};

static enum rc copy_piece(void *ctx, struct span piece)
{
    struct copy *c = ctx;
    uint64_t position = 0;
    c->rc = segment_write_raw(c->writer, piece, &position);
    if (c->rc != RC_OK) {
        return c->rc;
    }
    c->position = c->len == 0 ? position : c->position;
    c->len += piece.len;
    return RC_OK;
}

enum rc copy_entry(struct segment_writer *to, struct cold *cold, struct cold_file from, uint64_t position,
                   uint64_t group, uint64_t index, bool is_committed, enum rc *read_rc)
{
    struct record_disk r;
    uint64_t large = 0;
    *read_rc = cold_large_size(cold, from, position, &large);
    if (*read_rc != RC_OK) {
        return RC_OK;
    }
    if (large > 0) {
        struct copy copy = {.writer = to, .rc = RC_OK};
        *read_rc = cold_stream(cold, from, position, group, index, &r, copy_piece, &copy);
        if (copy.rc != RC_OK) {
            *read_rc = RC_OK;
            return copy.rc;
        }
        if (*read_rc == RC_OK) {
            segment_note_entry(to, &r, copy.position, copy.len, is_committed);
        }
        return RC_OK;
    }
    struct span record;
    *read_rc = cold_record(cold, from, position, group, index, &r, &record);
    return *read_rc == RC_OK ? segment_write_entry(to, &r, record, is_committed) : RC_OK;
}
