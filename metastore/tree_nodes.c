// SPDX-License-Identifier: Apache-2.0
// Node rows, paths and watches: what the commands are made of (tables in README.md).
//
// KV_NODE {parent id, name} -> node row: one range lists the children, a path costs one read a name. KV_BY_ID
// goes up again. A watch is two rows, KV_KW {watcher, watched} and KV_KWREV {watched, watcher}; only
// watch_add and watch_clear touch them, always both, so that neither direction can outlive the other.
#include "metastore/tree_internal.h"

static bool node_decode(struct span body, struct node_row *out)
{
    struct reader r = reader_of(body);
    out->id = reader_u64(&r);
    out->version = reader_u64(&r);
    out->child_version = reader_u64(&r);
    out->child_count = reader_u32(&r);
    out->flags = reader_u8(&r);
    out->payload = reader_span(&r, reader_left(&r));
    return !r.is_bad;
}

bool node_get(struct tree *t, uint64_t parent, struct span name, struct node_row *out)
{
    const struct tree_key k = key_node(parent, name);
    struct span body;
    if (!row_get(t, KV_NODE, key_span(&k), &body)) {
        return false;
    }
    const bool is_whole = node_decode(body, out);
    assert(is_whole);  // The row's sum was right.
    return true;
}

void node_put(struct tree *t, uint64_t parent, struct span name, const struct node_row *n,
              struct span payload)
{
    assert(n->id > parent);  // Ids grow downwards: walks and cascades rely on it.
    assert((n->version > 0) == ((n->flags & NODE_HAS_PAYLOAD) != 0));
    const struct tree_key k = key_node(parent, name);
    t->body.len = 0;
    buf_u64(&t->body, n->id);
    buf_u64(&t->body, n->version);
    buf_u64(&t->body, n->child_version);
    buf_u32(&t->body, n->child_count);
    buf_u8(&t->body, n->flags);
    buf_span_bytes(&t->body, payload);
    row_put(t, KV_NODE, key_span(&k), buf_span(&t->body));
}

bool node_locate(struct tree *t, uint64_t id, uint64_t *parent, struct span *name)
{
    const struct tree_key k = key_id(id);
    struct span body;
    if (!row_get(t, KV_BY_ID, key_span(&k), &body)) {
        return false;
    }
    struct reader r = reader_of(body);
    *parent = reader_u64(&r);
    *name = reader_span(&r, reader_left(&r));
    assert(!r.is_bad);
    return true;
}

bool node_get_id(struct tree *t, uint64_t id, struct node_row *out)
{
    uint64_t parent;
    struct span name;
    return node_locate(t, id, &parent, &name) && node_get(t, parent, name, out);
}

void node_children_changed(struct tree *t, uint64_t id, int64_t count_delta, uint64_t version_delta)
{
    if (id == 0) {
        return;
    }
    uint64_t parent;
    struct span name;
    struct node_row n;
    if (!node_locate(t, id, &parent, &name) || !node_get(t, parent, name, &n)) {
        assert(t->rc != RC_OK);
        return;
    }
    const int64_t count = (int64_t)n.child_count + count_delta;
    assert(count >= 0 && count <= UINT32_MAX);
    n.child_count = (uint32_t)count;
    n.child_version += version_delta;
    const struct tree_key k = key_node(parent, name);  // The name lies in a row that the write may move.
    node_put(t, parent, span_of(k.bytes + 8, k.len - 8), &n, n.payload);
}

void node_find(struct tree *t, const struct meta_path *p, struct node_place *out)
{
    assert(p->depth >= 1);
    *out = (struct node_place){0};
    while (out->found < p->depth && node_get(t, out->deepest, p->names[out->found], &out->row)) {
        out->parent = out->deepest;
        out->deepest = out->row.id;
        out->found++;
    }
    if (out->found + 1 == p->depth) {
        out->parent = out->deepest;
    }
}

void node_path(struct tree *t, uint64_t id, struct buf *to)
{
    uint64_t ids[META_PATH_DEPTH];
    uint32_t depth = 0;
    for (uint64_t at = id; at != 0 && t->rc == RC_OK; depth++) {
        assert(depth < META_PATH_DEPTH);
        ids[depth] = at;
        struct span name;
        const bool is_there = node_locate(t, at, &at, &name);
        assert(is_there || t->rc != RC_OK);
    }
    buf_u8(to, (uint8_t)depth);
    while (depth > 0) {
        uint64_t parent;
        struct span name = {0};
        (void)node_locate(t, ids[--depth], &parent, &name);  // Found just now, or t->rc tells.
        buf_str8(to, name);
    }
}

// ---- watches ----------------------------------------------------------------------------------------------

void watch_add(struct tree *t, uint64_t watcher, uint64_t watched, uint8_t kind)
{
    const struct tree_key forward = key_pair(watcher, watched);
    const struct tree_key back = key_pair(watched, watcher);
    struct span body;
    if (row_get(t, KV_KW, key_span(&forward), &body)) {
        assert(body.len == 1);
        kind |= body.ptr[0];
    }
    const struct span value = span_of(&kind, 1);
    row_put(t, KV_KW, key_span(&forward), value);
    row_put(t, KV_KWREV, key_span(&back), value);
}

void watch_clear(struct tree *t, uint64_t watcher)
{
    for (;;) {
        const struct tree_key from = key_id(watcher);
        struct span key;
        struct span body;
        if (!row_next(t, KV_KW, key_span(&from), false, &key, &body) || key_read_u64(key.ptr) != watcher) {
            return;
        }
        const uint64_t watched = key_read_u64(key.ptr + 8);
        const struct tree_key forward = key_pair(watcher, watched);
        const struct tree_key back = key_pair(watched, watcher);
        row_remove(t, KV_KW, key_span(&forward));
        row_remove(t, KV_KWREV, key_span(&back));
    }
}
