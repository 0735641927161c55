// SPDX-License-Identifier: Apache-2.0
// Ready list (queue_ready.h).
//
// A small queue must be small: the first chunks of a bucket have 16 and 128 places, only a bucket that holds hundreds
// uses full ones. A chunk is left to its snapshots when its last place was taken; places at and above tail_at are the
// only ones ever written, and no snapshot reads those.
#include "node/queue/queue_ready.h"
#include "node/base/mem.h"
#include <stdlib.h>

void queue_ready_init(struct queue_ready *r)
{
    *r = (struct queue_ready){0};
}

static struct queue_bucket *bucket_of(struct queue_ready *r, uint32_t priority)
{
    assert(priority < QUEUE_PRIORITIES);
    if (priority == QUEUE_PRIORITY_ABSENT) {
        return &r->normal;
    }
    if (!r->others) {
        r->others = mem_zalloc(QUEUE_PRIORITIES * sizeof(*r->others));
    }
    return &r->others[priority];
}

static void chunk_release(struct queue_chunk *c)
{
    assert(c->refs > 0);
    if (--c->refs == 0) {
        free(c);
    }
}

static void bucket_grow(struct queue_bucket *b)
{
    uint32_t cap = b->count < 16 ? 16 : b->count < QUEUE_CHUNK_REFS / 2 ? 128 : QUEUE_CHUNK_REFS;
    struct queue_chunk *c = mem_alloc(sizeof(*c) + cap * sizeof(c->items[0]));
    c->next = NULL;
    c->refs = 1;
    c->cap = cap;
    if (b->tail) {
        b->tail->next = c;
    } else {
        b->head = c;
        b->head_at = 0;
    }
    b->tail = c;
    b->tail_at = 0;
}

void queue_ready_push(struct queue_ready *r, uint32_t priority, queue_ref ref)
{
    assert(ref != 0);
    struct queue_bucket *b = bucket_of(r, priority);
    if (!b->tail || b->tail_at == b->tail->cap) {
        bucket_grow(b);
    }
    b->tail->items[b->tail_at++] = ref;
    b->count++;
    r->bitmap |= 1u << priority;
}

static void bucket_drop_head(struct queue_bucket *b)
{
    struct queue_chunk *c = b->head;
    b->head = c->next;
    b->head_at = 0;
    if (!b->head) {
        b->tail = NULL;
        b->tail_at = 0;
    }
    chunk_release(c);
}

queue_ref queue_ready_pop(struct queue_ready *r)
{
    if (r->bitmap == 0) {
        return 0;
    }
    uint32_t priority = 31u - (uint32_t)__builtin_clz(r->bitmap);
    struct queue_bucket *b = bucket_of(r, priority);
    assert(b->count > 0);
    queue_ref ref = b->head->items[b->head_at++];
    b->count--;
    if (b->count == 0) {
        r->bitmap &= ~(1u << priority);
        bucket_drop_head(b);
        assert(!b->head);
        if (r->bitmap == 0) {
            free(r->others);
            r->others = NULL;
        }
    } else if (b->head_at == b->head->cap) {
        bucket_drop_head(b);
    }
    return ref;
}

static const struct queue_bucket *highest(const struct queue_ready *r)
{
    uint32_t priority = 31u - (uint32_t)__builtin_clz(r->bitmap);
    return priority == QUEUE_PRIORITY_ABSENT ? &r->normal : &r->others[priority];
}

queue_ref queue_ready_peek(const struct queue_ready *r)
{
    if (r->bitmap == 0) {
        return 0;
    }
    const struct queue_bucket *b = highest(r);
    return b->head->items[b->head_at];
}

uint32_t queue_ready_look(const struct queue_ready *r, uint64_t skip, queue_ref *out, uint32_t n)
{
    uint32_t count = 0;
    if (r->bitmap == 0) {
        return 0;
    }
    const struct queue_bucket *b = highest(r);
    uint32_t at = b->head_at;
    for (const struct queue_chunk *c = b->head; c && count < n; c = c->next, at = 0) {
        const uint32_t end = c == b->tail ? b->tail_at : c->cap;
        if (skip >= end - at) {
            skip -= end - at;
            continue;
        }
        at += (uint32_t)skip;
        skip = 0;
        while (at < end && count < n) {
            out[count++] = c->items[at++];
        }
    }
    return count;
}

static void bucket_clear(struct queue_bucket *b)
{
    for (struct queue_chunk *c = b->head, *next; c; c = next) {
        next = c->next;
        chunk_release(c);
    }
    *b = (struct queue_bucket){0};
}

void queue_ready_clear(struct queue_ready *r)
{
    bucket_clear(&r->normal);
    for (uint32_t i = 0; r->others && i < QUEUE_PRIORITIES; i++) {
        bucket_clear(&r->others[i]);
    }
    free(r->others);
    *r = (struct queue_ready){0};
}

static void bucket_freeze(const struct queue_bucket *b, uint32_t priority, struct buf *runs)
{
    for (struct queue_chunk *c = b->head; c; c = c->next) {
        struct queue_run run = {
            .chunk = c,
            .from = c == b->head ? b->head_at : 0,
            .to = c == b->tail ? b->tail_at : c->cap,
            .priority = priority,
        };
        c->refs++;
        buf_bytes(runs, &run, sizeof(run));
    }
}

void queue_ready_freeze(struct queue_ready *r, struct buf *runs)
{
    for (uint32_t i = 0; i < QUEUE_PRIORITIES; i++) {
        if (r->bitmap & 1u << i) {
            bucket_freeze(bucket_of(r, i), i, runs);
        }
    }
}

void queue_runs_release(struct buf *runs)
{
    struct queue_run run;
    for (size_t at = 0; at < runs->len; at += sizeof(run)) {
        memcpy(&run, runs->ptr + at, sizeof(run));
        chunk_release(run.chunk);
    }
    buf_deinit(runs);
}

void queue_returns_push(struct queue_returns *r, struct queue_returned m)
{
    if (r->count == r->cap) {
        uint32_t cap = r->cap ? r->cap * 2 : 8;
        struct queue_returned *items = mem_alloc(cap * sizeof(*items));
        for (uint32_t i = 0; i < r->count; i++) {
            items[i] = *queue_returns_at(r, i);
        }
        free(r->items);
        r->items = items;
        r->head = 0;
        r->cap = cap;
    }
    r->items[(r->head + r->count++) & (r->cap - 1)] = m;
}

const struct queue_returned *queue_returns_at(const struct queue_returns *r, uint32_t i)
{
    assert(i < r->count);
    return &r->items[(r->head + i) & (r->cap - 1)];
}

bool queue_returns_pop(struct queue_returns *r, struct queue_returned *out)
{
    if (r->count == 0) {
        return false;
    }
    *out = r->items[r->head];
    r->head = (r->head + 1) & (r->cap - 1);
    if (--r->count == 0) {
        queue_returns_clear(r);
    }
    return true;
}

void queue_returns_clear(struct queue_returns *r)
{
    free(r->items);
    *r = (struct queue_returns){0};
}
