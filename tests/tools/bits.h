// SPDX-License-Identifier: Apache-2.0
// A set of small numbers that grows with what is put in: which messages were confirmed, which were seen.
#pragma once
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct bits {
    uint64_t *words;
    uint64_t cap;  // Words.
};

static inline bool bits_has(const struct bits *b, uint64_t at)
{
    return at / 64 < b->cap && (b->words[at / 64] >> (at % 64) & 1) != 0;
}

// Returns what it was.
static inline bool bits_set(struct bits *b, uint64_t at)
{
    if (at / 64 >= b->cap) {
        uint64_t cap = b->cap == 0 ? 8 : b->cap;
        while (cap <= at / 64) {
            cap *= 2;
        }
        b->words = realloc(b->words, cap * sizeof(uint64_t));
        assert(b->words != NULL);
        memset(b->words + b->cap, 0, (cap - b->cap) * sizeof(uint64_t));
        b->cap = cap;
    }
    const uint64_t bit = (uint64_t)1 << (at % 64);
    const bool was = (b->words[at / 64] & bit) != 0;
    b->words[at / 64] |= bit;
    return was;
}
