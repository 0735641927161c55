// SPDX-License-Identifier: Apache-2.0
// kv in memory: a persistent treap per table.
//
// Problem: the same semantics as LMDB (a writer that can be aborted, readers frozen at a commit) without
// files, for tests and the simulator, and without costs that grow with the store. Idea: immutable trees. The
// writer copies the nodes on its path unless it is their only holder; commit publishes new roots, abort drops
// them, a reader just holds the old roots. Priorities are a hash of the key, so that shape depends on content
// only. Invariants: a node reachable from a root that somebody else holds is never changed. `refs` counts the
// parents and roots that point at a node; a node with refs 1 below a shared parent is shared too, which is
// why copying starts at the root. Not here: durability, limits. Recursion is as deep as the treap, O(log
// rows).
#include "metastore/kv.h"
#include "node/base/map.h"
#include "node/base/mem.h"
#include <stdatomic.h>
#include <stdlib.h>

struct mem_node {
    _Atomic uint32_t shared_refs;  // Released by readers on other threads: acquire/release on the last drop.
    uint32_t key_len;
    uint32_t value_len;
    uint64_t priority;
    struct mem_node *left;
    struct mem_node *right;
    uint8_t bytes[];  // Key, value.
};

struct roots {
    struct mem_node *root[KV_TABLES];
    uint64_t bytes;  // Of all rows.
};

struct kv_mem {
    struct kv kv;
    struct roots committed;
    struct mem_txn *writer;  // At most one.
};

struct mem_txn {
    struct kv_txn txn;
    struct roots roots;
};

static struct span node_key(const struct mem_node *n)
{
    return span_of(n->bytes, n->key_len);
}

static struct span node_value(const struct mem_node *n)
{
    return span_of(n->bytes + n->key_len, n->value_len);
}

static uint64_t node_bytes(const struct mem_node *n)
{
    return sizeof(*n) + n->key_len + n->value_len;
}

static struct mem_node *node_hold(struct mem_node *n)
{
    if (n) {
        atomic_fetch_add_explicit(&n->shared_refs, 1, memory_order_relaxed);
    }
    return n;
}

static void node_drop(struct mem_node *n)
{
    while (n && atomic_fetch_sub_explicit(&n->shared_refs, 1, memory_order_acq_rel) == 1) {
        node_drop(n->left);
        struct mem_node *right = n->right;
        free(n);
        n = right;
    }
}

static struct mem_node *node_create(struct span key, struct span value)
{
    struct mem_node *n = mem_alloc(sizeof(*n) + key.len + value.len);
    atomic_init(&n->shared_refs, 1);
    n->key_len = (uint32_t)key.len;
    n->value_len = (uint32_t)value.len;
    n->priority = hash_bytes(key);
    n->left = n->right = NULL;
    memcpy(n->bytes, key.ptr, key.len);
    if (value.len > 0) {
        memcpy(n->bytes + key.len, value.ptr, value.len);
    }
    return n;
}

// Makes *slot a node that only we hold.
static struct mem_node *node_own(struct mem_node **slot)
{
    struct mem_node *n = *slot;
    if (atomic_load_explicit(&n->shared_refs, memory_order_acquire) == 1) {
        return n;
    }
    struct mem_node *copy = node_create(node_key(n), node_value(n));
    copy->left = node_hold(n->left);
    copy->right = node_hold(n->right);
    node_drop(n);
    *slot = copy;
    return copy;
}

static const struct mem_node *tree_find(const struct mem_node *n, struct span key)
{
    while (n) {
        const int c = span_compare(key, node_key(n));
        if (c == 0) {
            return n;
        }
        n = c < 0 ? n->left : n->right;
    }
    return NULL;
}

static void rotate(struct mem_node **slot, bool left_up)
{
    struct mem_node *n = *slot;
    struct mem_node *up = left_up ? n->left : n->right;
    if (left_up) {
        n->left = up->right;
        up->right = n;
    } else {
        n->right = up->left;
        up->left = n;
    }
    *slot = up;
}

static void tree_put(struct mem_node **slot, struct span key, struct span value, uint64_t *bytes)
{
    if (!*slot) {
        *slot = node_create(key, value);
        *bytes += node_bytes(*slot);
        return;
    }
    struct mem_node *n = node_own(slot);
    const int c = span_compare(key, node_key(n));
    if (c == 0) {
        struct mem_node *fresh = node_create(key, value);
        fresh->left = n->left;
        fresh->right = n->right;
        *bytes += node_bytes(fresh) - node_bytes(n);
        free(n);  // Owned, and its children moved on.
        *slot = fresh;
    } else if (c < 0) {
        tree_put(&n->left, key, value, bytes);
        if (n->left->priority > n->priority) {
            rotate(slot, true);
        }
    } else {
        tree_put(&n->right, key, value, bytes);
        if (n->right->priority > n->priority) {
            rotate(slot, false);
        }
    }
}

// Joins two trees, all keys of `a` before those of `b`; takes both.
static struct mem_node *tree_join(struct mem_node *a, struct mem_node *b)
{
    if (!a || !b) {
        return a ? a : b;
    }
    if (a->priority >= b->priority) {
        a = node_own(&a);
        a->right = tree_join(a->right, b);
        return a;
    }
    b = node_own(&b);
    b->left = tree_join(a, b->left);
    return b;
}

// `key` is in the tree.
static void tree_remove(struct mem_node **slot, struct span key, uint64_t *bytes)
{
    struct mem_node *n = node_own(slot);
    const int c = span_compare(key, node_key(n));
    if (c == 0) {
        *bytes -= node_bytes(n);
        *slot = tree_join(n->left, n->right);
        free(n);
    } else {
        tree_remove(c < 0 ? &n->left : &n->right, key, bytes);
    }
}

static const struct mem_node *tree_next(const struct mem_node *n, struct span from, bool is_after)
{
    const struct mem_node *best = NULL;
    while (n) {
        const int c = span_compare(node_key(n), from);
        if (c > 0 || (c == 0 && !is_after)) {
            best = n;
            n = n->left;
        } else {
            n = n->right;
        }
    }
    return best;
}

// ---- the seam ---------------------------------------------------------------------------------------------

static void roots_copy(struct roots *to, const struct roots *from)
{
    to->bytes = from->bytes;
    for (int i = 0; i < KV_TABLES; i++) {
        to->root[i] = node_hold(from->root[i]);
    }
}

static void roots_drop(struct roots *r)
{
    for (int i = 0; i < KV_TABLES; i++) {
        node_drop(r->root[i]);
        r->root[i] = NULL;
    }
}

static enum rc mem_begin(struct kv *kv, bool is_write, struct kv_txn **out)
{
    struct kv_mem *m = container_of(kv, struct kv_mem, kv);
    struct mem_txn *t = mem_zalloc(sizeof(*t));
    t->txn = (struct kv_txn){.kv = kv, .is_write = is_write};
    roots_copy(&t->roots, &m->committed);
    if (is_write) {
        assert(!m->writer);
        m->writer = t;
    }
    *out = &t->txn;
    return RC_OK;
}

static enum rc mem_get(struct kv_txn *txn, enum kv_table table, struct span key, struct span *value)
{
    struct mem_txn *t = container_of(txn, struct mem_txn, txn);
    const struct mem_node *n = tree_find(t->roots.root[table], key);
    if (!n) {
        return RC_NOT_FOUND;
    }
    *value = node_value(n);
    return RC_OK;
}

static enum rc mem_put(struct kv_txn *txn, enum kv_table table, struct span key, struct span value)
{
    struct mem_txn *t = container_of(txn, struct mem_txn, txn);
    assert(txn->is_write);
    assert(key.len > 0 && key.len <= KV_KEY_MAX);
    tree_put(&t->roots.root[table], key, value, &t->roots.bytes);
    return RC_OK;
}

static enum rc mem_remove(struct kv_txn *txn, enum kv_table table, struct span key)
{
    struct mem_txn *t = container_of(txn, struct mem_txn, txn);
    assert(txn->is_write);
    if (!tree_find(t->roots.root[table], key)) {
        return RC_NOT_FOUND;
    }
    tree_remove(&t->roots.root[table], key, &t->roots.bytes);
    return RC_OK;
}

static enum rc mem_next(struct kv_txn *txn, enum kv_table table, struct span from, bool is_after,
                        struct span *key, struct span *value)
{
    struct mem_txn *t = container_of(txn, struct mem_txn, txn);
    const struct mem_node *n = tree_next(t->roots.root[table], from, is_after);
    if (!n) {
        return RC_NOT_FOUND;
    }
    *key = node_key(n);
    *value = node_value(n);
    return RC_OK;
}

static void mem_end(struct mem_txn *t)
{
    struct kv_mem *m = container_of(t->txn.kv, struct kv_mem, kv);
    if (t->txn.is_write) {
        assert(m->writer == t);
        m->writer = NULL;
    }
    roots_drop(&t->roots);
    free(t);
}

static enum rc mem_commit(struct kv_txn *txn)
{
    struct mem_txn *t = container_of(txn, struct mem_txn, txn);
    struct kv_mem *m = container_of(txn->kv, struct kv_mem, kv);
    assert(txn->is_write);
    const struct roots old = m->committed;
    m->committed = t->roots;
    t->roots = old;
    mem_end(t);
    return RC_OK;
}

static void mem_abort(struct kv_txn *txn)
{
    mem_end(container_of(txn, struct mem_txn, txn));
}

static enum rc mem_sync(struct kv *kv)
{
    (void)kv;  // Nothing survives the process.
    return RC_OK;
}

static uint64_t mem_size(struct kv_txn *txn)
{
    return container_of(txn, struct mem_txn, txn)->roots.bytes;
}

static void mem_close(struct kv *kv)
{
    struct kv_mem *m = container_of(kv, struct kv_mem, kv);
    if (m->writer) {
        mem_end(m->writer);
    }
    roots_drop(&m->committed);
    free(m);
}

struct kv *kv_mem_create(void)
{
    static const struct kv_ops ops = {
        .begin = mem_begin,
        .get = mem_get,
        .put = mem_put,
        .remove = mem_remove,
        .next = mem_next,
        .commit = mem_commit,
        .abort = mem_abort,
        .sync = mem_sync,
        .size = mem_size,
        .publish = mem_sync,
        .close = mem_close,
    };
    struct kv_mem *m = mem_zalloc(sizeof(*m));
    m->kv.ops = &ops;
    return &m->kv;
}
