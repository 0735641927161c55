// SPDX-License-Identifier: Apache-2.0
// Problem: record bodies must lie in memory until they are durable, and for a while longer for consumers and
// followers, within a budget; and a turn's records must reach the WAL without a copy or an allocation for
// each. Idea: all groups of a worker append into one chunk after another, so that a turn is one or few
// contiguous ranges. Memory is given back by chunk, oldest first, and only once the WAL has told where the
// bytes lie on disk.
//
// Invariants
// - pinned: the current chunk of each lane and every chunk not wholly durable. A pinned chunk has memory and stays.
// - a chunk that is not pinned and has no references is freed at once, unless it is a recovered file being
// filled.
// - memory given back stays readable until the turn after (graves): spans are borrowed until the end of the
// turn, and the net reads ranges when the turn's submission has left: also what was given back within this turn stays.
#include "consensus/store/arena.h"
#include "node/base/limits.h"
#include <stdlib.h>

enum { CHUNK_BYTES_MIN = 16 << 10 };

static uint32_t clamp_u32(uint64_t v, uint32_t low, uint32_t high)
{
    return v < low ? low : v > high ? high : (uint32_t)v;
}

void arena_init(struct arena *a, uint64_t budget, uint64_t wal_file_bytes)
{
    assert(budget > 0);
    *a = (struct arena){.budget = budget};
    // A small budget needs small chunks, or one chunk would be all of it; a small WAL file needs short
    // ranges, because a range is never split over two files.
    a->chunk_bytes = clamp_u32((budget / 16) & ~(uint64_t)7, CHUNK_BYTES_MIN, LIMIT_CHUNK_BYTES);
    a->range_bytes = clamp_u32(wal_file_bytes / 16, 4 << 10, LIMIT_CHUNK_BYTES);
    list_init(&a->memory);
}

static void memory_free(struct arena *a, uint8_t *mem, struct block *block, uint32_t cap)
{
    if (block != NULL) {
        block_release(block);
    } else if (cap == a->chunk_bytes && a->pool_count < ARENA_POOL) {
        a->pool[a->pool_count++] = mem;
    } else {
        free(mem);
    }
}

// The first `count` of them.
static void graves_clear(struct arena *a, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        a->graves_bytes -= a->graves[i].cap;
        memory_free(a, a->graves[i].mem, a->graves[i].block, a->graves[i].cap);
    }
    a->graves_count -= count;
    if (a->graves_count > 0) {
        memmove(a->graves, a->graves + count, a->graves_count * sizeof(*a->graves));
    }
}

static void pool_free(struct arena *a)
{
    while (a->pool_count > 0) {
        free(a->pool[--a->pool_count]);
    }
}

void arena_deinit(struct arena *a)
{
    graves_clear(a, a->graves_count);
    for (uint32_t i = 0; i < a->table_len; i++) {
        if (a->table[i] != NULL) {
            if (a->table[i]->block != NULL) {
                block_release(a->table[i]->block);
            } else {
                free(a->table[i]->mem);
            }
            free(a->table[i]->pieces);
            free(a->table[i]);
        }
    }
    pool_free(a);
    free(a->table);
    free(a->lanes[LANE_ORDINARY].pending);
    free(a->lanes[LANE_LARGE].pending);
    free(a->graves);
    *a = (struct arena){0};
    list_init(&a->memory);
}

// ---- chunks -------------------------------------------------------------------------------------

struct chunk *arena_chunk(const struct arena *a, uint64_t ref)
{
    uint32_t at = (uint32_t)(ref >> 32) - a->table_base;
    assert(at < a->table_len);
    assert(a->table[at] != NULL);
    return a->table[at];
}

static struct chunk *chunk_create(struct arena *a)
{
    if (a->table_len == a->table_cap && a->table_gone >= a->table_cap / 2 && a->table_gone > 0) {
        a->table_len -= a->table_gone;
        memmove(a->table, a->table + a->table_gone, a->table_len * sizeof(struct chunk *));
        a->table_base += a->table_gone;
        a->table_gone = 0;
    }
    if (a->table_len == a->table_cap) {
        a->table_cap = a->table_cap == 0 ? 16 : a->table_cap * 2;
        a->table = mem_realloc(a->table, a->table_cap * sizeof(struct chunk *));
    }
    struct chunk *c = mem_zalloc(sizeof(*c));
    c->id = a->table_base + a->table_len;
    list_init(&c->link);
    a->table[a->table_len++] = c;
    return c;
}

// Takes the memory from a chunk; it is freed at the end of the next turn.
static void chunk_bury(struct arena *a, struct chunk *c)
{
    assert(c->mem != NULL);
    assert(!c->is_pinned);
    if (a->graves_count == a->graves_cap) {
        a->graves_cap = a->graves_cap == 0 ? 16 : a->graves_cap * 2;
        a->graves = mem_realloc(a->graves, a->graves_cap * sizeof(*a->graves));
    }
    a->graves[a->graves_count++] = (struct grave){.mem = c->mem, .block = c->block, .cap = c->cap};
    a->graves_bytes += c->cap;
    a->bytes -= c->cap;
    c->mem = NULL;
    c->block = NULL;
    list_remove(&c->link);
}

static void chunk_free(struct arena *a, struct chunk *c)
{
    assert(c->refs == 0);
    if (c->mem != NULL) {
        chunk_bury(a, c);
    }
    uint32_t at = c->id - a->table_base;
    a->table[at] = NULL;
    while (a->table_gone < a->table_len && a->table[a->table_gone] == NULL) {
        a->table_gone++;
    }
    free(c->pieces);
    free(c);
}

static void chunk_settle(struct arena *a, struct chunk *c)
{
    if (c->is_pinned && c != a->lanes[c->lane].current && c->durable == c->used) {
        c->is_pinned = false;
        a->lanes[c->lane].pinned_bytes -= c->cap;
    }
    if (!c->is_pinned && c->refs == 0) {
        chunk_free(a, c);
    }
}

static struct chunk *chunk_start(struct arena *a, enum arena_lane_id lane, uint8_t *mem, struct block *block,
                                 uint32_t cap)
{
    struct chunk *c = chunk_create(a);
    c->mem = mem;
    c->block = block;
    c->cap = cap;
    c->is_pinned = true;
    c->lane = (uint8_t)lane;
    a->bytes += cap;
    a->lanes[lane].pinned_bytes += cap;
    list_add_tail(&a->memory, &c->link);
    return c;
}

static struct chunk *chunk_begin(struct arena *a, enum arena_lane_id lane, uint32_t cap)
{
    const bool is_normal = cap == a->chunk_bytes;
    if (!is_normal && cap >= BLOCK_BYTES_MIN) {
        struct block *b = block_create(cap);
        return chunk_start(a, lane, b->ptr, b, cap);
    }
    uint8_t *mem = is_normal && a->pool_count > 0 ? a->pool[--a->pool_count] : mem_alloc(cap);
    return chunk_start(a, lane, mem, NULL, cap);
}

uint32_t arena_add_file(struct arena *a, uint64_t file_seq)
{
    struct chunk *c = chunk_create(a);
    c->pieces = mem_alloc(sizeof(*c->pieces));
    c->pieces[0] = (struct piece){.file_seq = file_seq, .file_offset = 0, .start = 0, .len = UINT32_MAX};
    c->pieces_count = c->pieces_cap = 1;
    c->used = c->durable = UINT32_MAX;
    c->is_pinned = true;
    return c->id;
}

void arena_file_filled(struct arena *a, uint32_t id)
{
    struct chunk *c = arena_chunk(a, ref_of(id, 0));
    assert(c->mem == NULL);
    chunk_settle(a, c);
}

void arena_ref_drop(struct arena *a, uint64_t ref)
{
    struct chunk *c = arena_chunk(a, ref);
    assert(c->refs > 0);
    if (--c->refs == 0 && !c->is_pinned) {
        chunk_free(a, c);
    }
}

// ---- laying down --------------------------------------------------------------------------------

static void pending_add(struct arena *a, struct chunk *c, uint64_t group, uint32_t start, uint32_t len)
{
    struct arena_lane *l = &a->lanes[c->lane];
    l->unsynced_bytes += len;
    if (l->pending_count > 0) {
        struct arena_range *last = &l->pending[l->pending_count - 1];
        if (last->chunk == c && last->group == group && last->start + last->len == start &&
            last->len + len <= a->range_bytes) {
            last->len += len;
            return;
        }
    }
    if (l->pending_count == l->pending_cap) {
        l->pending_cap = l->pending_cap == 0 ? 16 : l->pending_cap * 2;
        l->pending = mem_realloc(l->pending, l->pending_cap * sizeof(*l->pending));
    }
    l->pending[l->pending_count++] = (struct arena_range){.chunk = c, .group = group, .start = start, .len = len};
}

uint8_t *arena_alloc(struct arena *a, enum arena_lane_id lane, uint64_t group, uint32_t size, uint64_t *ref)
{
    assert(size > 0);
    assert(size % RECORD_ALIGN == 0);
    struct chunk *c = a->lanes[lane].current;
    if (c == NULL || size > c->cap - c->used) {
        if (size > a->chunk_bytes / 4) {
            c = chunk_begin(a, lane, size);  // Of its own, so that the rest of the current one is not lost.
        } else {
            a->lanes[lane].current = chunk_begin(a, lane, a->chunk_bytes);
            if (c != NULL) {
                chunk_settle(a, c);
            }
            c = a->lanes[lane].current;
        }
    }
    uint32_t offset = c->used;
    c->used += size;
    pending_add(a, c, group, offset, size);
    *ref = ref_of(c->id, offset);
    return c->mem + offset;
}

void arena_share(struct arena *a, enum arena_lane_id lane, uint64_t group, struct span record, struct block *block,
                 uint64_t *ref)
{
    assert(record.len % RECORD_ALIGN == 0);
    assert(record.ptr >= block->ptr && record.ptr + record.len <= block->ptr + block->cap);
    struct chunk *c = chunk_start(a, lane, (uint8_t *)record.ptr, block_hold(block), (uint32_t)record.len);
    c->used = c->cap;
    pending_add(a, c, group, 0, c->used);
    *ref = ref_of(c->id, 0);
}

void arena_undo(struct arena *a, uint32_t size, uint64_t ref)
{
    struct chunk *c = arena_chunk(a, ref);
    assert(c->used == (uint32_t)ref + size);
    struct arena_lane *l = &a->lanes[c->lane];
    assert(l->pending_count > 0);
    struct arena_range *last = &l->pending[l->pending_count - 1];
    assert(last->chunk == c);
    c->used -= size;
    last->len -= size;
    l->unsynced_bytes -= size;
    if (last->len == 0) {
        l->pending_count--;
    }
    chunk_settle(a, c);
}

void arena_lane_end(struct arena *a, enum arena_lane_id lane)
{
    struct chunk *c = a->lanes[lane].current;
    a->lanes[lane].current = NULL;
    if (c != NULL) {
        chunk_settle(a, c);
    }
}

// ---- durability and eviction --------------------------------------------------------------------

void arena_range_durable(struct arena *a, const struct arena_range *r, uint64_t file_seq,
                         uint64_t file_offset)
{
    struct chunk *c = r->chunk;
    assert(c->lane == LANE_LARGE || c->durable == r->start);
    if (c->pieces_count == c->pieces_cap) {
        c->pieces_cap = c->pieces_cap == 0 ? 4 : c->pieces_cap * 2;
        c->pieces = mem_realloc(c->pieces, c->pieces_cap * sizeof(*c->pieces));
    }
    uint32_t at = c->pieces_count++;
    for (; at > 0 && c->pieces[at - 1].start > r->start; at--) {
        c->pieces[at] = c->pieces[at - 1];
    }
    c->pieces[at] = (struct piece){.file_seq = file_seq, .file_offset = file_offset, .start = r->start, .len = r->len};
    c->durable += r->len;
    a->lanes[c->lane].unsynced_bytes -= r->len;
    chunk_settle(a, c);
}

const struct piece *arena_piece(const struct arena *a, uint64_t ref, uint64_t *offset_out)
{
    const struct chunk *c = arena_chunk(a, ref);
    uint32_t offset = (uint32_t)ref;
    if (c->pieces_count == 0) {
        return NULL;
    }
    uint32_t low = 0, high = c->pieces_count;  // The last piece with start <= offset.
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (c->pieces[mid].start <= offset) {
            low = mid;
        } else {
            high = mid;
        }
    }
    const struct piece *p = &c->pieces[low];
    if (offset < p->start || offset - p->start >= p->len) {
        return NULL;
    }
    *offset_out = p->file_offset + (offset - p->start);
    return p;
}

void arena_turn(struct arena *a, arena_keep_fn *keep, void *ctx)
{
    graves_clear(a, a->graves_before);
    const uint64_t budget = a->is_idle ? 0 : a->budget;
    a->is_sparing = false;
    for (struct list *l = a->memory.next; l != &a->memory && a->bytes > budget;) {
        struct chunk *c = list_entry(l, struct chunk, link);
        l = l->next;
        if (c->is_pinned) {
            continue;
        }
        // What others hold in memory anyway, or is about to be applied, is not worth reading from disk meanwhile.
        const bool is_held = c->block != NULL && (c->block->refs > 1 || keep(ctx, c->mem));
        if (!is_held && c->block != NULL && !c->is_spared) {
            c->is_spared = a->is_sparing = true;
        } else if (!is_held) {
            chunk_bury(a, c);
        } else {
            c->is_spared = false;
        }
    }
    a->graves_before = a->graves_count;
    if (!a->is_idle) {
        a->is_trimmed = false;
    } else if (!a->is_trimmed && a->graves_count == 0) {
        pool_free(a);
        mem_trim();
        a->is_trimmed = true;
    }
}

bool arena_keeps_file(const struct arena *a, uint64_t file_seq, arena_keep_fn *keep, void *ctx)
{
    for (const struct list *l = a->memory.next; l != &a->memory; l = l->next) {
        const struct chunk *c = list_entry((struct list *)(uintptr_t)l, struct chunk, link);
        if (c->block != NULL && c->pieces_count > 0 && c->pieces[0].file_seq == file_seq && keep(ctx, c->mem)) {
            return true;
        }
    }
    return false;
}
