// SPDX-License-Identifier: Apache-2.0
// Problem: an idle queue is a dozen small structs. From malloc each costs a header and rounding, and buffers that
// lived for a moment beside them leave holes that nothing fits into: a third of a node's memory with 100,000 queues.
//
// Idea: pages of 64 KiB with blocks of one size each. A page is found from a block by its address, knows how many of its
// blocks are used, and goes back when none is; one empty page a size is kept, so that a struct that comes and goes
// does not bring a page each time.
//
// One mutex for all: held for a few instructions, and never on the message path.
//
// Under AddressSanitizer every block comes from malloc, so that it is watched.
#include "node/base/slab.h"
#include "node/base/list.h"
#include "node/base/mem.h"
#include <assert.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    GRAIN = 8,
    PAGE_ALIGN = 64 << 10,
    PAGE_BYTES = PAGE_ALIGN - 16,  // malloc's own header fits between two that are side by side.
    CLASSES = SLAB_BYTES_MAX / GRAIN,
};

struct page {
    struct list link;    // class.partial, unless it is full.
    void **free_first;   // Blocks that were given back; each begins with a pointer to the next.
    uint32_t used;       // Blocks in use.
    uint32_t fresh;      // Bytes from the page's start that were ever used.
    uint32_t bytes;      // Of a block.
};

struct class {
    struct list partial;  // struct page with room.
    struct page *empty;   // Kept; not in `partial`.
    bool is_known;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct class classes[CLASSES];  // Under mutex.

#if defined(__SANITIZE_ADDRESS__)
static bool is_small(size_t bytes)
{
    (void)bytes;
    return false;
}
#else
static bool is_small(size_t bytes)
{
    return bytes > 0 && bytes <= SLAB_BYTES_MAX;
}
#endif

static struct class *class_of(size_t bytes)
{
    struct class *c = &classes[(bytes - 1) / GRAIN];
    if (!c->is_known) {
        list_init(&c->partial);
        c->is_known = true;
    }
    return c;
}

static bool page_is_full(const struct page *p)
{
    return !p->free_first && p->fresh + p->bytes > PAGE_BYTES;
}

static struct page *page_with_room(struct class *c, size_t bytes)
{
    if (!list_is_empty(&c->partial)) {
        return list_entry(c->partial.next, struct page, link);
    }
    struct page *p = c->empty;
    c->empty = NULL;
    if (!p) {
        p = mem_alloc_aligned(PAGE_BYTES, PAGE_ALIGN);
        *p = (struct page){.bytes = (uint32_t)((bytes + GRAIN - 1) / GRAIN * GRAIN), .fresh = sizeof(*p)};
    }
    list_add_head(&c->partial, &p->link);
    return p;
}

void *slab_zalloc(size_t bytes)
{
    if (!is_small(bytes)) {
        return mem_zalloc(bytes);
    }
    pthread_mutex_lock(&mutex);
    struct page *p = page_with_room(class_of(bytes), bytes);
    void *block = p->free_first;
    if (block) {
        p->free_first = *p->free_first;
    } else {
        block = (uint8_t *)p + p->fresh;
        p->fresh += p->bytes;
    }
    p->used++;
    if (page_is_full(p)) {
        list_remove(&p->link);
    }
    pthread_mutex_unlock(&mutex);
    return memset(block, 0, bytes);
}

void slab_free(void *ptr, size_t bytes)
{
    if (!ptr || !is_small(bytes)) {
        free(ptr);
        return;
    }
    struct page *p = (struct page *)((uintptr_t)ptr & ~(uintptr_t)(PAGE_ALIGN - 1)), *gone = NULL;
    pthread_mutex_lock(&mutex);
    assert(p->used > 0);
    assert((bytes + GRAIN - 1) / GRAIN * GRAIN == p->bytes);
    struct class *c = class_of(bytes);
    if (page_is_full(p)) {
        list_add_head(&c->partial, &p->link);
    }
    void **block = ptr;
    *block = p->free_first;
    p->free_first = block;
    if (--p->used == 0) {
        list_remove(&p->link);
        gone = c->empty;
        c->empty = p;
    }
    pthread_mutex_unlock(&mutex);
    free(gone);
}
