// SPDX-License-Identifier: Apache-2.0
// Insertion-ordered hash maps (map.h): a dense array in order, and an open-addressing index of positions.
#include "node/base/map.h"
#include "node/base/mem.h"
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>

// A map of u64 keys has only the first two members of each, one whose values begin with their keys only the first.
struct map_slot {
    void *value;     // NULL: a hole.
    uint64_t key;    // The key; of bytes: 32 bits of their hash, above 32 of their length.
    uint8_t *bytes;  // A bytes key: an owned copy unless the map borrows.
};

enum { INDEX_FREE = 0 };
#define INDEX_DELETED UINT32_MAX

uint64_t hash_u64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t hash_bytes(struct span key)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ key.len;
    size_t i = 0;
    for (; i + 8 <= key.len; i += 8) {
        uint64_t w;
        memcpy(&w, key.ptr + i, 8);
        h = hash_u64(h ^ w);
    }
    uint64_t w = 0;
    if (i < key.len) {
        memcpy(&w, key.ptr + i, key.len - i);
    }
    return hash_u64(h ^ w);
}

static size_t slot_size(const struct map *m)
{
    return m->has_bytes  ? sizeof(struct map_slot)
           : m->has_keyed ? offsetof(struct map_slot, key)
                          : offsetof(struct map_slot, bytes);
}

static struct map_slot *slot_at(const struct map *m, uint32_t i)
{
    return (struct map_slot *)(void *)((char *)m->entries + i * slot_size(m));
}

static uint64_t slot_key(const struct map *m, const struct map_slot *s)
{
    uint64_t key;
    memcpy(&key, m->has_keyed ? s->value : (const void *)&s->key, sizeof(key));
    return key;
}

static uint64_t bytes_key(struct span bytes)
{
    return hash_bytes(bytes) << 32 | (uint32_t)bytes.len;
}

static size_t slot_len(const struct map_slot *s)
{
    return (uint32_t)s->key;
}

static void init(struct map *m, bool has_bytes, bool is_borrowing)
{
    *m = (struct map){.has_bytes = has_bytes, .is_borrowing = is_borrowing};
}

void map_init_u64(struct map *m)
{
    init(m, false, false);
}

void map_init_keyed(struct map *m)
{
    init(m, false, false);
    m->has_keyed = true;
}

void map_init_bytes(struct map *m)
{
    init(m, true, false);
}

void map_init_borrowed(struct map *m)
{
    init(m, true, true);
}

void map_deinit(struct map *m)
{
    for (uint32_t i = 0; m->has_bytes && !m->is_borrowing && i < m->entries_len; i++) {
        free(slot_at(m, i)->bytes);
    }
    free(m->entries);
    free(m->index);
    *m = (struct map){.has_bytes = m->has_bytes, .has_keyed = m->has_keyed, .is_borrowing = m->is_borrowing};
}

static void index_insert(struct map *m, uint32_t hash, uint32_t pos)
{
    uint32_t mask = m->index_cap - 1;
    uint32_t i = hash & mask;
    while (m->index[i] != INDEX_FREE) {
        i = (i + 1) & mask;
    }
    m->index[i] = pos + 1;
}

static uint32_t key_hash(const struct map *m, uint64_t key)
{
    return (uint32_t)(m->has_bytes ? key >> 32 : hash_u64(key));
}

// Closes the holes and rebuilds the index with room for one more entry.
static void rebuild(struct map *m)
{
    uint32_t live = 0;
    for (uint32_t i = 0; i < m->entries_len; i++) {
        if (slot_at(m, i)->value) {
            memmove(slot_at(m, live++), slot_at(m, i), slot_size(m));
        }
    }
    assert(live == m->count);
    m->entries_len = live;
    if (live + 1 > m->entries_cap / 4 * 3 || m->entries_cap == 0) {
        m->entries_cap = m->entries_cap ? m->entries_cap * 2 : 8;
        m->entries = mem_realloc(m->entries, m->entries_cap * slot_size(m));
    }
    uint32_t cap = 16;
    while (cap < m->entries_cap * 2) {
        cap *= 2;
    }
    free(m->index);
    m->index = mem_zalloc(cap * sizeof(*m->index));
    m->index_cap = cap;
    m->index_dirty = 0;
    for (uint32_t i = 0; i < m->entries_len; i++) {
        index_insert(m, key_hash(m, slot_key(m, slot_at(m, i))), i);
    }
}

static bool slot_matches(const struct map *m, const struct map_slot *s, uint64_t key, struct span bytes)
{
    return slot_key(m, s) == key &&
           (!m->has_bytes || bytes.len == 0 || memcmp(s->bytes, bytes.ptr, bytes.len) == 0);
}

// Returns the place in the index of the key, or UINT32_MAX.
static uint32_t find(const struct map *m, uint64_t key, struct span bytes)
{
    if (m->count == 0) {
        return UINT32_MAX;
    }
    uint32_t mask = m->index_cap - 1;
    uint32_t i = key_hash(m, key) & mask;
    for (; m->index[i] != INDEX_FREE; i = (i + 1) & mask) {
        if (m->index[i] != INDEX_DELETED && slot_matches(m, slot_at(m, m->index[i] - 1), key, bytes)) {
            return i;
        }
    }
    return UINT32_MAX;
}

static void *get(const struct map *m, uint64_t key, struct span bytes)
{
    uint32_t i = find(m, key, bytes);
    return i == UINT32_MAX ? NULL : slot_at(m, m->index[i] - 1)->value;
}

static void put(struct map *m, uint64_t key, struct span bytes, void *value)
{
    assert(value);
    uint32_t i = find(m, key, bytes);
    if (i != UINT32_MAX) {
        struct map_slot *old = slot_at(m, m->index[i] - 1);
        old->value = value;
        if (m->is_borrowing) {
            old->bytes = (uint8_t *)(uintptr_t)bytes.ptr;  // The new value's.
        }
        return;
    }
    if (m->entries_len == m->entries_cap || (m->entries_len + m->index_dirty + 1) * 4 > m->index_cap * 3) {
        rebuild(m);
    }
    struct map_slot *s = slot_at(m, m->entries_len);
    s->value = value;
    if (m->has_keyed) {
        assert(slot_key(m, s) == key);
    } else {
        s->key = key;
    }
    if (m->has_bytes) {
        s->bytes = m->is_borrowing ? (uint8_t *)(uintptr_t)bytes.ptr : (uint8_t *)mem_strndup(bytes.ptr, bytes.len);
    }
    index_insert(m, key_hash(m, key), m->entries_len);
    m->entries_len++;
    m->count++;
}

static void *take_out(struct map *m, uint64_t key, struct span bytes)
{
    uint32_t i = find(m, key, bytes);
    if (i == UINT32_MAX) {
        return NULL;
    }
    struct map_slot *s = slot_at(m, m->index[i] - 1);
    void *value = s->value;
    s->value = NULL;
    if (m->has_bytes) {
        if (!m->is_borrowing) {
            free(s->bytes);
        }
        s->bytes = NULL;
    }
    m->index[i] = INDEX_DELETED;
    m->index_dirty++;
    m->count--;
    return value;
}

void *map_get(const struct map *m, uint64_t key)
{
    assert(!m->has_bytes);
    return get(m, key, (struct span){0});
}

void map_put(struct map *m, uint64_t key, void *value)
{
    assert(!m->has_bytes);
    put(m, key, (struct span){0}, value);
}

void *map_remove(struct map *m, uint64_t key)
{
    assert(!m->has_bytes);
    return take_out(m, key, (struct span){0});
}

void *map_get_bytes(const struct map *m, struct span key)
{
    assert(m->has_bytes);
    return get(m, bytes_key(key), key);
}

void map_put_bytes(struct map *m, struct span key, void *value)
{
    assert(m->has_bytes);
    put(m, bytes_key(key), key, value);
}

void *map_remove_bytes(struct map *m, struct span key)
{
    assert(m->has_bytes);
    return take_out(m, bytes_key(key), key);
}

void *map_next(const struct map *m, uint32_t *pos, uint64_t *key_out, struct span *bytes_out)
{
    while (*pos < m->entries_len) {
        const struct map_slot *s = slot_at(m, (*pos)++);
        if (s->value) {
            if (key_out) {
                *key_out = slot_key(m, s);
            }
            if (bytes_out) {
                *bytes_out = span_of(s->bytes, slot_len(s));
            }
            return s->value;
        }
    }
    return NULL;
}
