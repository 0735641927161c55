// SPDX-License-Identifier: Apache-2.0
// Rows: the tree's only way to its store.
//
// Problem: LMDB checks nothing of what it reads, a command must have all its effects or none, and replicas
// must be comparable. Idea: one function writes, one removes. Both know the old row, so they can keep a
// checksum per row, a digest over all rows (a sum of row hashes: order does not matter, so it is kept up by
// difference), a count, and an undo log for the running command. Invariants: meta.rows and meta.digest
// describe all tables but KV_META, at every moment between two row writes. tree.rc holds the first failure of
// the store; from then on reads find nothing and writes do nothing, and nothing is committed any more.
#include "metastore/tree_internal.h"
#include "node/base/crc32c.h"
#include "node/base/map.h"

enum { SUM_BYTES = 4 };

static void fail(struct tree *t, enum rc rc)
{
    assert(rc != RC_OK);
    if (t->rc == RC_OK) {
        t->rc = rc;
    }
}

static uint32_t row_sum(enum kv_table table, struct span key, struct span body)
{
    const uint8_t name = (uint8_t)table;
    uint32_t crc = crc32c(0, &name, 1);
    crc = crc32c(crc, key.ptr, key.len);
    return body.len > 0 ? crc32c(crc, body.ptr, body.len) : crc;
}

enum rc row_check(enum kv_table table, struct span key, struct span value, struct span *body)
{
    if (value.len < SUM_BYTES) {
        return RC_CORRUPT;
    }
    *body = span_of(value.ptr, value.len - SUM_BYTES);
    uint32_t sum;
    memcpy(&sum, value.ptr + body->len, SUM_BYTES);
    return sum == row_sum(table, key, *body) ? RC_OK : RC_CORRUPT;
}

uint64_t row_hash(enum kv_table table, struct span key, struct span body)
{
    return hash_u64(hash_bytes(key) + hash_u64(hash_bytes(body) + (uint64_t)table));
}

void tree_begin(struct tree *t)
{
    if (!t->txn && t->rc == RC_OK) {
        const enum rc rc = kv_begin(t->kv, true, &t->txn);
        if (rc != RC_OK) {
            fail(t, rc);
        }
    }
}

static bool checked(struct tree *t, enum rc rc, enum kv_table table, struct span key, struct span value,
                    struct span *body)
{
    if (rc == RC_NOT_FOUND) {
        return false;
    }
    if (rc == RC_OK) {
        rc = row_check(table, key, value, body);
    }
    if (rc != RC_OK) {
        fail(t, rc);
        return false;
    }
    return true;
}

bool row_get(struct tree *t, enum kv_table table, struct span key, struct span *body)
{
    tree_begin(t);
    if (t->rc != RC_OK) {
        return false;
    }
    struct span value = {0};
    const enum rc rc = kv_get(t->txn, table, key, &value);
    return checked(t, rc, table, key, value, body);
}

bool row_has(struct tree *t, enum kv_table table, struct span key)
{
    struct span body;
    return row_get(t, table, key, &body);
}

bool row_next(struct tree *t, enum kv_table table, struct span from, bool is_after, struct span *key,
              struct span *body)
{
    tree_begin(t);
    if (t->rc != RC_OK) {
        return false;
    }
    struct span value = {0};
    const enum rc rc = kv_next(t->txn, table, from, is_after, key, &value);
    return checked(t, rc, table, rc == RC_OK ? *key : from, value, body);
}

// ---- writing ----------------------------------------------------------------------------------------------

static void log_old(struct tree *t, enum kv_table table, struct span key, bool is_there, struct span body)
{
    if (!t->is_logging) {
        return;
    }
    const size_t at = t->undo.len;
    buf_bytes(&t->undo_at, &at, sizeof(at));
    buf_u8(&t->undo, (uint8_t)table);
    buf_u8(&t->undo, is_there);
    buf_str16(&t->undo, key);
    buf_str32(&t->undo, is_there ? body : (struct span){0});
}

static void write_row(struct tree *t, enum kv_table table, struct span key, struct span body)
{
    const uint32_t sum = row_sum(table, key, body);
    t->raw.len = 0;
    buf_span_bytes(&t->raw, body);
    buf_u32(&t->raw, sum);
    const enum rc rc = kv_put(t->txn, table, key, buf_span(&t->raw));
    if (rc != RC_OK) {
        fail(t, rc);
    }
    t->dirty_bytes += key.len + t->raw.len;
}

void row_put(struct tree *t, enum kv_table table, struct span key, struct span body)
{
    assert(table != KV_META);
    struct span old;
    const bool is_there = row_get(t, table, key, &old);
    if (t->rc != RC_OK) {
        return;
    }
    log_old(t, table, key, is_there, old);
    if (is_there) {
        t->meta.digest -= row_hash(table, key, old);
    } else {
        t->meta.rows++;
    }
    t->meta.digest += row_hash(table, key, body);
    write_row(t, table, key, body);
}

void row_remove(struct tree *t, enum kv_table table, struct span key)
{
    assert(table != KV_META);
    struct span old;
    const bool is_there = row_get(t, table, key, &old);
    if (t->rc != RC_OK) {
        return;
    }
    assert(is_there);
    log_old(t, table, key, true, old);
    t->meta.digest -= row_hash(table, key, old);
    t->meta.rows--;
    const enum rc rc = kv_remove(t->txn, table, key);
    if (rc != RC_OK) {
        fail(t, rc);
    }
    t->dirty_bytes += key.len;
}

void rows_log_start(struct tree *t)
{
    t->undo.len = 0;
    t->undo_at.len = 0;
    t->is_logging = true;
}

void rows_undo(struct tree *t)
{
    assert(t->is_logging);
    t->is_logging = false;
    for (size_t n = t->undo_at.len / sizeof(size_t); n > 0 && t->rc == RC_OK; n--) {
        size_t at;
        memcpy(&at, t->undo_at.ptr + (n - 1) * sizeof(size_t), sizeof(at));
        struct reader r = reader_of(span_of(t->undo.ptr + at, t->undo.len - at));
        const enum kv_table table = (enum kv_table)reader_u8(&r);
        const bool is_there = reader_u8(&r);
        const struct span key = reader_str16(&r);
        const struct span body = reader_str32(&r);
        assert(!r.is_bad);
        if (is_there) {
            write_row(t, table, key, body);
        } else {
            const enum rc rc = kv_remove(t->txn, table, key);
            if (rc != RC_OK) {
                fail(t, rc);
            }
        }
    }
}

// ---- the meta row -----------------------------------------------------------------------------------------

struct span meta_row_key(void)
{
    return span_str("state");
}

void meta_row_encode(const struct tree_meta *m, struct buf *to)
{
    buf_u8(to, TREE_SCHEMA);
    buf_u64(to, m->applied_index);
    buf_u64(to, m->applied_term);
    buf_u64(to, m->next_id);
    buf_u64(to, m->next_event);
    buf_u64(to, m->next_number);
    buf_u64(to, m->clock_ms);
    buf_u64(to, m->nodes);
    buf_u64(to, m->rows);
    buf_u64(to, m->digest);
    buf_u64(to, m->config_index);
    buf_str16(to, span_of(m->config, m->config_len));
}

enum rc meta_row_decode(struct span body, struct tree_meta *m)
{
    struct reader r = reader_of(body);
    *m = (struct tree_meta){0};
    if (reader_u8(&r) != TREE_SCHEMA) {
        return RC_CORRUPT;
    }
    m->applied_index = reader_u64(&r);
    m->applied_term = reader_u64(&r);
    m->next_id = reader_u64(&r);
    m->next_event = reader_u64(&r);
    m->next_number = reader_u64(&r);
    m->clock_ms = reader_u64(&r);
    m->nodes = reader_u64(&r);
    m->rows = reader_u64(&r);
    m->digest = reader_u64(&r);
    m->config_index = reader_u64(&r);
    const struct span config = reader_str16(&r);
    if (reader_end(&r) != RC_OK || config.len > TREE_CONFIG_MAX || m->next_id < 1 || m->next_event < 1 ||
        m->next_number < META_NUMBER_FIRST) {
        return RC_CORRUPT;
    }
    m->config_len = (uint32_t)config.len;
    if (config.len > 0) {
        memcpy(m->config, config.ptr, config.len);
    }
    return RC_OK;
}

enum rc tree_commit(struct tree *t)
{
    if (t->rc != RC_OK) {
        return t->rc;
    }
    if (!t->txn) {
        return RC_OK;
    }
    t->body.len = 0;
    meta_row_encode(&t->meta, &t->body);
    write_row(t, KV_META, meta_row_key(), buf_span(&t->body));
    if (t->rc == RC_OK) {
        const enum rc rc = kv_commit(t->txn);
        t->txn = NULL;
        if (rc != RC_OK) {
            fail(t, rc);
        }
        t->dirty_bytes = 0;
    }
    return t->rc;
}
