// SPDX-License-Identifier: Apache-2.0
// Reading the whole tree: telling it to subscribers, verifying it, checking snapshot streams.
//
// KV_NODE's order is by parent id, and ids grow downwards, so one scan meets parents before their children;
// the path is spelled once per parent. Verification reads every row of every table and must arrive at exactly
// the count and digest that the meta row promises: a lost, stale, doubled or changed row shows (CR-05).
#include "metastore/tree_internal.h"

void tree_walk(struct tree *t, struct buf *changes)
{
    struct tree_key from = {.len = 0};
    struct buf path;
    buf_init(&path);
    uint64_t spelled = UINT64_MAX;  // Whose path is in `path`.
    struct span key;
    struct span body;
    while (row_next(t, KV_NODE, key_span(&from), from.len > 0, &key, &body)) {
        const uint64_t parent = key_read_u64(key.ptr);
        from = key_node(parent, span_of(key.ptr + 8, key.len - 8));
        struct reader r = reader_of(body);
        (void)reader_u64(&r);  // Id.
        const uint64_t version = reader_u64(&r);
        (void)reader_u64(&r);  // Child version.
        (void)reader_u32(&r);  // Child count.
        if (!(reader_u8(&r) & NODE_HAS_PAYLOAD)) {
            continue;
        }
        if (parent != spelled) {
            path.len = 0;
            node_path(t, parent, &path);
            spelled = parent;
        }
        struct meta_path p;
        struct reader in = reader_of(buf_span(&path));
        const enum rc rc = path_decode(&in, &p);
        assert(rc == RC_OK && p.depth < META_PATH_DEPTH);
        p.names[p.depth++] = span_of(from.bytes + 8, from.len - 8);
        change_encode(changes, &(struct meta_change){
                                   .index = t->meta.applied_index,
                                   .path = &p,
                                   .is_created = true,
                                   .payload = reader_span(&r, reader_left(&r)),
                                   .version = version,
                               });
    }
    buf_deinit(&path);
}

// ---- verifying --------------------------------------------------------------------------------------------

struct scan {
    uint64_t rows;
    uint64_t digest;
    uint64_t per_table[KV_TABLES];
};

static enum rc scan_table(struct kv_txn *txn, enum kv_table table, struct scan *s)
{
    uint8_t last[KV_KEY_MAX];
    size_t last_len = 0;
    for (;;) {
        struct span key;
        struct span value;
        struct span body;
        const enum rc rc = kv_next(txn, table, span_of(last, last_len), last_len > 0, &key, &value);
        if (rc == RC_NOT_FOUND) {
            return RC_OK;
        }
        TRY(rc);
        // Keys ascend strictly: this also ends the scan of a store whose pages form a ring.
        if (key.len == 0 || key.len > KV_KEY_MAX || span_compare(key, span_of(last, last_len)) <= 0) {
            return RC_CORRUPT;
        }
        TRY(row_check(table, key, value, &body));
        memcpy(last, key.ptr, key.len);
        last_len = key.len;
        s->per_table[table]++;
        if (table != KV_META) {
            s->rows++;
            s->digest += row_hash(table, key, body);
        }
    }
}

enum rc tree_verify(struct tree *t)
{
    assert(!t->txn);
    struct kv_txn *txn;
    TRY(kv_begin(t->kv, false, &txn));
    struct scan s = {0};
    enum rc rc = RC_OK;
    for (int i = 0; i < KV_TABLES && rc == RC_OK; i++) {
        rc = scan_table(txn, (enum kv_table)i, &s);
    }
    kv_abort(txn);
    TRY(rc);
    const bool is_whole = s.rows == t->meta.rows && s.digest == t->meta.digest &&
                          s.per_table[KV_NODE] == t->meta.nodes && s.per_table[KV_BY_ID] == t->meta.nodes &&
                          s.per_table[KV_KW] == s.per_table[KV_KWREV] &&
                          s.per_table[KV_META] == (t->meta.applied_index > 0 ? 1u : s.per_table[KV_META]);
    return is_whole ? RC_OK : RC_CORRUPT;
}

// ---- structure (tests) ------------------------------------------------------------------------------------

static enum rc check_node(struct tree *t, const struct tree_key *k, const struct node_row *n)
{
    uint64_t parent;
    struct span name;
    if (!node_locate(t, n->id, &parent, &name) || parent != key_read_u64(k->bytes) ||
        !span_equal(name, span_of(k->bytes + 8, k->len - 8)) || n->id >= t->meta.next_id || n->id <= parent) {
        return RC_BUG;
    }
    if ((n->flags & NODE_IS_AUTO) && (n->child_count == 0 || (n->flags & NODE_HAS_PAYLOAD))) {
        return RC_BUG;
    }
    uint32_t children = 0;
    struct tree_key from = key_id(n->id);
    struct span key;
    struct span body;
    for (bool is_after = false; row_next(t, KV_NODE, key_span(&from), is_after, &key, &body);
         is_after = true) {
        if (key_read_u64(key.ptr) != n->id) {
            break;
        }
        from = key_node(n->id, span_of(key.ptr + 8, key.len - 8));
        children++;
    }
    return children == n->child_count ? RC_OK : RC_BUG;
}

static enum rc check_watches(struct tree *t, enum kv_table table, enum kv_table other)
{
    struct tree_key from = {.len = 0};
    struct span key;
    struct span body;
    while (row_next(t, table, key_span(&from), from.len > 0, &key, &body)) {
        from = key_pair(key_read_u64(key.ptr), key_read_u64(key.ptr + 8));
        const uint8_t kinds = body.ptr[0];
        const uint64_t first = key_read_u64(from.bytes);
        const uint64_t second = key_read_u64(from.bytes + 8);
        const struct tree_key back = key_pair(second, first);
        struct span mirror;
        if (!row_get(t, other, key_span(&back), &mirror) || mirror.len != 1 || mirror.ptr[0] != kinds) {
            return RC_BUG;
        }
        struct node_row watched;
        if (!node_get_id(t, first, &watched) || !node_get_id(t, second, &watched)) {
            return RC_BUG;
        }
        if (table == KV_KW && (kinds & WATCH_CHILDREN) && first != second && watched.child_count == 0) {
            return RC_BUG;
        }
    }
    return RC_OK;
}

enum rc tree_check(struct tree *t)
{
    struct tree_key from = {.len = 0};
    struct span key;
    struct span body;
    uint64_t nodes = 0;
    while (row_next(t, KV_NODE, key_span(&from), from.len > 0, &key, &body)) {
        from = key_node(key_read_u64(key.ptr), span_of(key.ptr + 8, key.len - 8));
        struct node_row n;
        if (!node_get(t, key_read_u64(from.bytes), span_of(from.bytes + 8, from.len - 8), &n)) {
            return RC_BUG;
        }
        TRY(check_node(t, &from, &n));
        nodes++;
    }
    TRY(check_watches(t, KV_KW, KV_KWREV));
    TRY(check_watches(t, KV_KWREV, KV_KW));
    return nodes == t->meta.nodes && t->rc == RC_OK ? RC_OK : RC_BUG;
}

// ---- snapshot streams -------------------------------------------------------------------------------------

static enum rc check_row(void *ctx, enum kv_table table, struct span key, struct span value)
{
    struct tree_snapshot_check *c = ctx;
    struct span body;
    TRY(row_check(table, key, value, &body));
    if (table != KV_META) {
        c->rows++;
        c->digest += row_hash(table, key, body);
        return RC_OK;
    }
    if (c->has_meta || !span_equal(key, meta_row_key())) {
        return RC_MALFORMED;
    }
    c->has_meta = true;
    return meta_row_decode(body, &c->meta);
}

void tree_snapshot_check_init(struct tree_snapshot_check *c)
{
    *c = (struct tree_snapshot_check){0};
    kv_copy_reader_init(&c->reader, check_row, c);
}

void tree_snapshot_check_deinit(struct tree_snapshot_check *c)
{
    kv_copy_reader_deinit(&c->reader);
}

enum rc tree_snapshot_check_chunk(struct tree_snapshot_check *c, struct span chunk)
{
    return kv_copy_reader_chunk(&c->reader, chunk);
}

enum rc tree_snapshot_check_end(struct tree_snapshot_check *c)
{
    return c->reader.is_done && c->has_meta && c->rows == c->meta.rows && c->digest == c->meta.digest
               ? RC_OK
               : RC_CORRUPT;
}
