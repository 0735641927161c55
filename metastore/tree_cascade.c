// SPDX-License-Identifier: Apache-2.0
// Deleting a node and all that goes with it.
//
// What goes: everything below it; every node kept while one of those exists, or while it has children and it
// lost the last one; parents that were only made on the way and have no children left. And again for each of
// these. Idea: an explicit worklist (`items`), filled and worked off in the order of discovery, which depends
// on the rows only. A node is looked at once; its rows go at once, both directions of its watches with them;
// it stays in the list so that paths below it can still be spelled. Surviving parents are counted down in
// memory and written once at the end: a parent that loses n children costs one write, not n. Then all
// removals are told, youngest id first: children before parents, and what was kept while something existed
// usually before it. Invariants: whatever is in the list will be removed. A child count reaches 0 once, and
// its watchers are looked up then only.
#include "metastore/tree_internal.h"
#include "node/base/map.h"
#include "node/base/mem.h"
#include <stdlib.h>

struct item {
    uint64_t id;
    uint64_t parent;
    uint64_t version;
    size_t path_at;  // Encoded path in `paths`.
    size_t path_len;
    size_t payload_at;
    size_t payload_len;
    bool has_payload;
};

struct cascade {
    struct tree *t;
    struct item *items;
    uint32_t count;
    uint32_t cap;
    struct map index;      // Id -> position + 1.
    struct map survivors;  // Parent id -> struct survivor.
    struct buf paths;
    struct buf payloads;
};

struct survivor {
    uint64_t id;
    uint32_t children_left;
    uint32_t lost;
    bool is_auto;
};

static bool is_listed(const struct cascade *c, uint64_t id)
{
    return map_get(&c->index, id) != NULL;
}

static struct item *list(struct cascade *c, uint64_t id, uint64_t parent)
{
    if (c->count == c->cap) {
        c->cap = c->cap ? c->cap * 2 : 16;
        c->items = mem_realloc(c->items, c->cap * sizeof(*c->items));
    }
    struct item *it = &c->items[c->count++];
    *it = (struct item){.id = id, .parent = parent, .path_at = c->paths.len};
    map_put(&c->index, id, (void *)(uintptr_t)c->count);
    return it;
}

static struct item *listed(const struct cascade *c, uint64_t id)
{
    const uintptr_t n = (uintptr_t)map_get(&c->index, id);
    return n ? &c->items[n - 1] : NULL;
}

// Path of a child of a listed node.
static void spell_below(struct cascade *c, size_t parent_at, size_t parent_len, struct span name)
{
    buf_reserve(&c->paths, parent_len + 1 + name.len);
    const uint8_t *from = c->paths.ptr + parent_at;
    buf_u8(&c->paths, (uint8_t)(from[0] + 1));
    buf_bytes(&c->paths, from + 1, parent_len - 1);
    buf_str8(&c->paths, name);
}

// Path of any node, also if some of its ancestors have gone already (they are listed then).
static void spell(struct cascade *c, uint64_t id)
{
    uint64_t chain[META_PATH_DEPTH];
    uint32_t n = 0;
    uint64_t at = id;
    const struct item *base = NULL;
    while (at != 0 && c->t->rc == RC_OK) {
        if (at != id && (base = listed(c, at)) != NULL) {
            break;
        }
        assert(n < META_PATH_DEPTH);
        chain[n++] = at;
        struct span name;
        const bool is_there = node_locate(c->t, at, &at, &name);
        assert(is_there || c->t->rc != RC_OK);
    }
    if (base) {
        buf_reserve(&c->paths, base->path_len);
        buf_u8(&c->paths, (uint8_t)(c->paths.ptr[base->path_at] + n));
        buf_bytes(&c->paths, c->paths.ptr + base->path_at + 1, base->path_len - 1);
    } else {
        buf_u8(&c->paths, (uint8_t)n);
    }
    while (n > 0) {
        uint64_t parent;
        struct span name = {0};
        (void)node_locate(c->t, chain[--n], &parent, &name);
        buf_str8(&c->paths, name);
    }
}

static void doom(struct cascade *c, uint64_t id)
{
    if (is_listed(c, id)) {
        return;
    }
    uint64_t parent;
    struct span name;
    const bool is_there = node_locate(c->t, id, &parent, &name);
    if (!is_there) {
        assert(c->t->rc != RC_OK);
        return;
    }
    struct item *it = list(c, id, parent);
    spell(c, id);
    it->path_len = c->paths.len - it->path_at;
}

// Everyone who watches `id` in one of these ways goes.
static void doom_watchers(struct cascade *c, uint64_t id, uint8_t kinds)
{
    struct tree_key from = key_id(id);
    struct span key;
    struct span body;
    bool is_after = false;
    while (row_next(c->t, KV_KWREV, key_span(&from), is_after, &key, &body) && key_read_u64(key.ptr) == id) {
        assert(key.len == 16 && body.len == 1);
        const uint64_t watcher = key_read_u64(key.ptr + 8);
        const bool matches = (body.ptr[0] & kinds) != 0;
        from = key_pair(id, watcher);
        is_after = true;
        if (matches) {
            doom(c, watcher);
        }
    }
}

static void doom_children(struct cascade *c, uint32_t position)
{
    const struct item parent = c->items[position];
    struct tree_key from = key_id(parent.id);
    struct span key;
    struct span body;
    bool is_after = false;
    while (row_next(c->t, KV_NODE, key_span(&from), is_after, &key, &body) &&
           key_read_u64(key.ptr) == parent.id) {
        from = key_node(parent.id, span_of(key.ptr + 8, key.len - 8));
        is_after = true;
        struct reader r = reader_of(body);
        const uint64_t id = reader_u64(&r);
        if (!is_listed(c, id)) {
            struct item *it = list(c, id, parent.id);
            spell_below(c, parent.path_at, parent.path_len, span_of(from.bytes + 8, from.len - 8));
            it->path_len = c->paths.len - it->path_at;
        }
    }
}

// The parent of a removed node, unless it goes too.
static void parent_lost_child(struct cascade *c, uint64_t parent)
{
    if (parent == 0 || is_listed(c, parent)) {
        return;
    }
    struct survivor *s = map_get(&c->survivors, parent);
    if (!s) {
        struct node_row n;
        if (!node_get_id(c->t, parent, &n)) {
            assert(c->t->rc != RC_OK);
            return;
        }
        s = mem_alloc(sizeof(*s));
        *s = (struct survivor){
            .id = parent, .children_left = n.child_count, .is_auto = n.flags & NODE_IS_AUTO};
        map_put(&c->survivors, parent, s);
    }
    assert(s->children_left > 0);
    s->children_left--;
    s->lost++;
    if (s->children_left == 0) {
        if (s->is_auto) {
            doom(c, parent);
        }
        doom_watchers(c, parent, WATCH_CHILDREN);
    }
}

// Name: the last one of an encoded path.
static struct span last_name(struct span path)
{
    struct reader r = reader_of(path);
    struct meta_path p;
    const enum rc rc = path_decode(&r, &p);
    assert(rc == RC_OK && p.depth >= 1);
    return p.names[p.depth - 1];
}

static void remove_item(struct cascade *c, uint32_t position)
{
    struct tree *t = c->t;
    struct item *it = &c->items[position];
    const uint64_t id = it->id;
    const uint64_t parent = it->parent;
    const struct tree_key node =
        key_node(parent, last_name(span_of(c->paths.ptr + it->path_at, it->path_len)));
    const struct tree_key by_id = key_id(id);
    struct node_row n;
    if (!node_get(t, parent, span_of(node.bytes + 8, node.len - 8), &n)) {
        assert(t->rc != RC_OK);
        return;
    }
    assert(n.id == id);
    it->version = n.version;
    it->has_payload = n.flags & NODE_HAS_PAYLOAD;
    it->payload_at = c->payloads.len;
    it->payload_len = n.payload.len;
    buf_span_bytes(&c->payloads, n.payload);
    if (n.child_count > 0) {
        doom_children(c, position);
    }
    doom_watchers(c, id, WATCH_EXISTS | WATCH_CHILDREN);
    watch_clear(t, id);
    row_remove(t, KV_NODE, key_span(&node));
    row_remove(t, KV_BY_ID, key_span(&by_id));
    t->meta.nodes--;
    parent_lost_child(c, parent);
}

static int by_id_descending(const void *a, const void *b)
{
    const uint64_t x = ((const struct item *)a)->id;
    const uint64_t y = ((const struct item *)b)->id;
    return (x < y) - (x > y);
}

static void tell(struct cascade *c)
{
    qsort(c->items, c->count, sizeof(*c->items), by_id_descending);
    for (uint32_t i = 0; i < c->count; i++) {
        const struct item *it = &c->items[i];
        if (!it->has_payload) {
            continue;
        }
        struct meta_path path;
        struct reader r = reader_of(span_of(c->paths.ptr + it->path_at, it->path_len));
        const enum rc rc = path_decode(&r, &path);
        assert(rc == RC_OK);
        tree_change(c->t,
                    &(struct meta_change){
                        .path = &path,
                        .is_deleted = true,
                        .payload = span_of(c->payloads.ptr + it->payload_at, it->payload_len),
                        .version = it->version,
                    },
                    false);
    }
}

uint32_t tree_cascade(struct tree *t, uint64_t id)
{
    assert(id != 0);
    struct cascade c = {.t = t};
    map_init_u64(&c.index);
    map_init_u64(&c.survivors);
    doom(&c, id);
    for (uint32_t i = 0; i < c.count && t->rc == RC_OK; i++) {
        remove_item(&c, i);
    }
    struct survivor *s;
    for (uint32_t pos = 0; (s = map_next(&c.survivors, &pos, NULL, NULL)) != NULL;) {
        if (t->rc == RC_OK && !is_listed(&c, s->id)) {
            node_children_changed(t, s->id, -(int64_t)s->lost, s->lost);
        }
        free(s);
    }
    if (t->rc == RC_OK) {
        tell(&c);
    }
    const uint32_t removed = c.count;
    map_deinit(&c.index);
    map_deinit(&c.survivors);
    buf_deinit(&c.paths);
    buf_deinit(&c.payloads);
    free(c.items);
    return removed;
}
