// SPDX-License-Identifier: Apache-2.0
// Hash maps whose iteration order is the order of insertion, so that no behaviour depends on hash values
// (engine-notes §6.2). Two key kinds: u64, and bytes (copied into the map, or borrowed from the value).
//
// Owner thread: that of the embedding struct. Values are borrowed pointers; never NULL.
// Deleting leaves a hole in the order that is closed at the next growth. Cost per entry about 26 bytes, 18 if the values
// begin with their keys; with bytes keys 34 and a copied key.
#pragma once
#include "node/base/span.h"

struct map_slot;

struct map {
    struct map_slot *entries;  // Dense, in insertion order, with holes.
    uint32_t *index;           // Open addressing: position + 1 in entries, 0 free, UINT32_MAX deleted.
    uint32_t entries_len;      // Used places of entries, holes included.
    uint32_t entries_cap;
    uint32_t index_cap;        // Power of two or 0.
    uint32_t index_dirty;      // Deleted marks in index.
    uint32_t count;            // Live entries.
    bool has_bytes;            // Keys are bytes, else u64.
    bool has_keyed;            // Values begin with their key.
    bool is_borrowing;         // Bytes are not copied.
};

void map_init_u64(struct map *m);
// Values whose first member is their u64 key, which stays as it is while they are in the map.
void map_init_keyed(struct map *m);
void map_init_bytes(struct map *m);
// Bytes that stay where they are until their entry is removed or the map deinitialized.
void map_init_borrowed(struct map *m);
void map_deinit(struct map *m);  // Frees the keys, not the values.

void *map_get(const struct map *m, uint64_t key);
void map_put(struct map *m, uint64_t key, void *value);  // Replaces; keeps the place in the order.
void *map_remove(struct map *m, uint64_t key);           // Returns the value or NULL.

void *map_get_bytes(const struct map *m, struct span key);
void map_put_bytes(struct map *m, struct span key, void *value);
void *map_remove_bytes(struct map *m, struct span key);

// Iteration: start with pos = 0; returns the next value or NULL at the end. Entries may be removed while
// iterating, never added (the map may close its holes then).
// `key_out` / `bytes_out` may be NULL.
void *map_next(const struct map *m, uint32_t *pos, uint64_t *key_out, struct span *bytes_out);

static inline uint32_t map_count(const struct map *m)
{
    return m->count;
}

uint64_t hash_u64(uint64_t x);          // A good mixer; the same on every node and in every run.
uint64_t hash_bytes(struct span key);   // 64-bit hash, unseeded: never for untrusted keys in unbounded sets.
