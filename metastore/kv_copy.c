// SPDX-License-Identifier: Apache-2.0
// Copy-out of a kv store as a stream of rows cut into chunks (snapshots of the metadata group).
//
// Chunk, version 1: u8 version, u32 number (from 0), then the next piece of the stream. The stream is rows of
// {u8 table, u16 key length, key, u32 value length, value} in table and key order, and at the end {0xff, u64
// rows}. A row may be cut anywhere by the end of a chunk, so that chunk and row sizes do not depend on each
// other. The reader accepts only rows in ascending order of tables, consecutive chunk numbers, and an end
// mark that counts right. What the rows say is checked by the tree (checksums of rows, digest of all).
#include "metastore/kv.h"
#include "node/base/reader.h"

enum { COPY_VERSION = 1, COPY_HEAD_BYTES = 5, COPY_END = 0xff };

void kv_copy_init(struct kv_copy *c, struct kv_txn *txn)
{
    *c = (struct kv_copy){.txn = txn};
}

void kv_copy_deinit(struct kv_copy *c)
{
    buf_deinit(&c->key);
    buf_deinit(&c->pending);
}

// Encodes the next row, or the end mark, behind `pending`.
static enum rc copy_row(struct kv_copy *c)
{
    if (c->table == KV_TABLES) {
        buf_u8(&c->pending, COPY_END);
        buf_u64(&c->pending, c->rows);
        c->is_done = true;
        return RC_OK;
    }
    struct span key;
    struct span value;
    enum rc rc = kv_next(c->txn, (enum kv_table)c->table, buf_span(&c->key), c->is_started, &key, &value);
    if (rc == RC_NOT_FOUND) {
        c->table++;
        c->is_started = false;
        c->key.len = 0;
        return RC_OK;
    }
    TRY(rc);
    buf_u8(&c->pending, (uint8_t)c->table);
    buf_str16(&c->pending, key);
    buf_str32(&c->pending, value);
    c->key.len = 0;
    buf_span_bytes(&c->key, key);
    c->is_started = true;
    c->rows++;
    return RC_OK;
}

enum rc kv_copy_chunk(struct kv_copy *c, size_t bytes_max, struct buf *to, bool *is_last)
{
    assert(bytes_max >= 64);
    const size_t room = bytes_max - COPY_HEAD_BYTES;
    while (!c->is_done && c->pending.len < room) {
        TRY(copy_row(c));
    }
    const size_t n = c->pending.len < room ? c->pending.len : room;
    buf_u8(to, COPY_VERSION);
    buf_u32(to, c->seq++);
    buf_bytes(to, c->pending.ptr, n);
    buf_consume(&c->pending, n);
    *is_last = c->is_done && c->pending.len == 0;
    return RC_OK;
}

void kv_copy_reader_init(struct kv_copy_reader *r,
                         enum rc (*row)(void *, enum kv_table, struct span, struct span), void *ctx)
{
    *r = (struct kv_copy_reader){.row = row, .ctx = ctx};
}

void kv_copy_reader_deinit(struct kv_copy_reader *r)
{
    buf_deinit(&r->partial);
}

// Takes whole rows off the start of `bytes`; *used is what they took.
static enum rc read_rows(struct kv_copy_reader *r, struct span bytes, size_t *used)
{
    struct reader in = reader_of(bytes);
    *used = 0;
    while (in.pos < in.len) {
        if (r->is_done) {
            return RC_MALFORMED;  // Something behind the end mark.
        }
        const uint8_t table = reader_u8(&in);
        if (table == COPY_END) {
            const uint64_t rows = reader_u64(&in);
            if (in.is_bad) {
                return RC_OK;
            }
            if (rows != r->rows) {
                return RC_MALFORMED;
            }
            r->is_done = true;
        } else {
            if (table >= KV_TABLES) {
                return RC_MALFORMED;
            }
            const struct span key = reader_str16(&in);
            const struct span value = reader_str32(&in);
            if (in.is_bad) {
                return RC_OK;  // Goes on in the next chunk.
            }
            if (key.len == 0 || key.len > KV_KEY_MAX) {
                return RC_MALFORMED;
            }
            TRY(r->row(r->ctx, (enum kv_table)table, key, value));
            r->rows++;
        }
        *used = in.pos;
    }
    return RC_OK;
}

enum rc kv_copy_reader_chunk(struct kv_copy_reader *r, struct span chunk)
{
    struct reader in = reader_of(chunk);
    const uint8_t version = reader_u8(&in);
    const uint32_t seq = reader_u32(&in);
    if (in.is_bad || version != COPY_VERSION || seq != r->seq) {
        return RC_MALFORMED;
    }
    r->seq++;
    buf_span_bytes(&r->partial, reader_span(&in, reader_left(&in)));
    size_t used;
    TRY(read_rows(r, buf_span(&r->partial), &used));
    buf_consume(&r->partial, used);
    return RC_OK;
}
