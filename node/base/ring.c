// SPDX-License-Identifier: Apache-2.0
// Set-up of rings (ring.h); the data path is inline.
#include "node/base/ring.h"
#include "node/base/mem.h"
#include <assert.h>
#include <stdlib.h>

void ring_init(struct ring *r, uint32_t capacity)
{
    assert(capacity > 0 && capacity <= 1u << 30);
    uint32_t size = 1;
    while (size < capacity) {
        size *= 2;
    }
    r->slots = mem_zalloc(size * sizeof(*r->slots));
    r->mask = size - 1;
    atomic_init(&r->shared_tail, 0);
    atomic_init(&r->shared_head, 0);
    r->head_seen = 0;
    r->tail_seen = 0;
}

void ring_deinit(struct ring *r)
{
    free(r->slots);
    r->slots = NULL;
}
