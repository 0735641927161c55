// SPDX-License-Identifier: Apache-2.0
// Shared by the tree_*.c files only: rows and their sums, keys, node rows. README.md has the tables.
#pragma once
#include "metastore/change.h"
#include "metastore/tree.h"

// ---- rows (tree_rows.c) -----------------------------------------------------------------------------------
// Every row's value ends with a CRC32C over {table, key, body}. Writes keep meta.rows and meta.digest, and the
// undo log.

bool row_get(struct tree *t, enum kv_table table, struct span key, struct span *body);
// `body` must not lie in the store nor in t->raw.
void row_put(struct tree *t, enum kv_table table, struct span key, struct span body);
void row_remove(struct tree *t, enum kv_table table, struct span key);  // Absent: a bug.
bool row_next(struct tree *t, enum kv_table table, struct span from, bool is_after, struct span *key,
              struct span *body);
bool row_has(struct tree *t, enum kv_table table, struct span key);

void rows_log_start(struct tree *t);
void rows_undo(struct tree *t);  // Puts every row back as it was at rows_log_start. The caller restores meta.

// RC_CORRUPT if the sum differs; else the body.
MUST_USE enum rc row_check(enum kv_table table, struct span key, struct span value, struct span *body);
uint64_t row_hash(enum kv_table table, struct span key, struct span body);
struct span meta_row_key(void);
void meta_row_encode(const struct tree_meta *m, struct buf *to);
MUST_USE enum rc meta_row_decode(struct span body, struct tree_meta *out);
void tree_begin(struct tree *t);  // A write transaction is open afterwards, unless t->rc says why not.

// ---- keys -------------------------------------------------------------------------------------------------

struct tree_key {
    uint8_t bytes[8 + META_NAME_MAX];
    size_t len;
};
static inline struct span key_span(const struct tree_key *k)
{
    return span_of(k->bytes, k->len);
}
static inline void key_u64(uint8_t to[8], uint64_t v)
{
    v = __builtin_bswap64(v);
    memcpy(to, &v, 8);
}
static inline uint64_t key_read_u64(const uint8_t *from)
{
    uint64_t v;
    memcpy(&v, from, 8);
    return __builtin_bswap64(v);
}
static inline struct tree_key key_node(uint64_t parent, struct span name)
{
    assert(name.len <= META_NAME_MAX);
    struct tree_key k;
    key_u64(k.bytes, parent);
    if (name.len > 0) {
        memcpy(k.bytes + 8, name.ptr, name.len);
    }
    k.len = 8 + name.len;
    return k;
}
static inline struct tree_key key_id(uint64_t id)
{
    return key_node(id, (struct span){0});
}
static inline struct tree_key key_pair(uint64_t first, uint64_t second)
{
    struct tree_key k;
    key_u64(k.bytes, first);
    key_u64(k.bytes + 8, second);
    k.len = 16;
    return k;
}

// ---- nodes (tree_nodes.c) ---------------------------------------------------------------------------------

enum node_flag { NODE_HAS_PAYLOAD = 1, NODE_IS_AUTO = 2 };  // AUTO: lives while it has children.

struct node_row {
    uint64_t id;
    uint64_t version;  // Of the payload; 0 without one.
    uint64_t child_version;
    uint32_t child_count;
    uint8_t flags;
    struct span payload;  // Borrowed from the store.
};

bool node_get(struct tree *t, uint64_t parent, struct span name, struct node_row *out);
// Writes the row with `payload` (may lie in the store).
void node_put(struct tree *t, uint64_t parent, struct span name, const struct node_row *n,
              struct span payload);
// Parent and name (borrowed) of a node. False: no such node.
bool node_locate(struct tree *t, uint64_t id, uint64_t *parent, struct span *name);
bool node_get_id(struct tree *t, uint64_t id, struct node_row *out);
// Adds to the child count and child list version of a node (0, the root: nothing).
void node_children_changed(struct tree *t, uint64_t id, int64_t count_delta, uint64_t version_delta);

struct node_place {
    uint32_t found;       // How many names of the path exist.
    uint64_t parent;      // Of the last name; only if found >= depth - 1.
    uint64_t deepest;     // Id of the last existing one (0: the root).
    struct node_row row;  // Of the whole path, if found == depth.
};
void node_find(struct tree *t, const struct meta_path *p, struct node_place *out);
// Encoded path of a node (u8 depth, names) behind `to`.
void node_path(struct tree *t, uint64_t id, struct buf *to);

enum watch_kind { WATCH_EXISTS = 1, WATCH_CHILDREN = 2 };
// Adds a kind to what `watcher` watches of `watched`: both directions.
void watch_add(struct tree *t, uint64_t watcher, uint64_t watched, uint8_t kind);
void watch_clear(struct tree *t, uint64_t watcher);  // Removes all that `watcher` watches, both directions.

// ---- commands ---------------------------------------------------------------------------------------------

void tree_change(struct tree *t, const struct meta_change *c, bool is_update);  // Output and triggers.
// Removes the node and everything that goes with it (tree_cascade.c). Returns how many nodes went.
uint32_t tree_cascade(struct tree *t, uint64_t id);
void triggers_load(struct tree *t);
void triggers_free(struct tree *t);
void triggers_fire(struct tree *t, const struct meta_change *c, enum meta_event event);
