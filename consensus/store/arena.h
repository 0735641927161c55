// SPDX-License-Identifier: Apache-2.0
// The memtable of one worker: arena chunks into which all its groups lay down records one after another.
//
// A record is named by {chunk id, offset}. A chunk with memory is read directly; one whose memory was given
// back still knows in which WAL file each piece of it lies. A chunk goes away when no record in it is
// referred to any more. Owner thread: the worker's. No I/O.
#pragma once
#include "consensus/wal/wal.h"
#include "node/base/block.h"
#include "node/base/list.h"
#include <stdbool.h>
#include <stdint.h>

// Where a record is: chunk id in the upper half, offset in the lower.
#define REF_NONE UINT64_MAX
static inline uint64_t ref_of(uint32_t chunk, uint32_t offset)
{
    return (uint64_t)chunk << 32 | offset;
}

// A durable stretch of a chunk, which lies in one piece in one WAL file.
struct piece {
    uint64_t file_seq;
    uint64_t file_offset;
    uint32_t start;  // In the chunk. Pieces are ascending.
    uint32_t len;
};

struct chunk {
    struct list link;  // In arena.memory while it has memory.
    uint8_t *mem;      // NULL: evicted, or recovered and never in memory.
    struct block *block;  // What `mem` lies in if it is one large record: others may keep it longer than we do.
    uint32_t id;
    uint32_t cap;  // Bytes of mem.
    uint32_t used;
    uint32_t durable;  // Bytes known durable: a prefix in the ordinary lane, whose submissions complete in order.
    uint32_t refs;     // Records referred to from windows.
    uint32_t pieces_count;
    uint32_t pieces_cap;
    bool is_spared;  // It was to leave memory a turn ago (arena_turn).
    bool is_pinned;  // Is the current chunk of a lane, or not wholly durable: must keep its memory and stay.
    uint8_t lane;    // enum arena_lane_id
    struct piece *pieces;
};

// Bytes laid down and not yet handed to the WAL; contiguous in one chunk.
struct arena_range {
    struct chunk *chunk;
    uint64_t group;  // In the large lane: whose it is. Else 0.
    uint32_t start;
    uint32_t len;
};

// Two ways to the WAL (wal.h): what must stay behind a large record goes the way of the large ones.
enum arena_lane_id { LANE_ORDINARY, LANE_LARGE, LANES };

struct arena_lane {
    struct chunk *current;  // NULL before the first record.
    struct arena_range *pending;
    uint32_t pending_count;
    uint32_t pending_cap;
    uint64_t pinned_bytes;    // Memory that cannot be given back now.
    uint64_t unsynced_bytes;  // Laid down and not durable.
};

enum {
    ARENA_POOL = 4
};  // Chunks of normal size kept for reuse: the steady state of a full memtable needs no malloc.

struct arena {
    struct chunk **table;  // By id - table_base; NULL where the chunk is gone.
    uint32_t table_base;
    uint32_t table_len;
    uint32_t table_cap;
    uint32_t table_gone;    // NULLs at the front.
    struct list memory;     // struct chunk with memory, oldest first.
    struct arena_lane lanes[LANES];
    uint64_t budget;
    bool is_sparing;       // Something leaves memory in the next turn: there should be one.
    bool is_idle;          // Nothing is written: what is durable needs no memory,
    bool is_trimmed;       // and what it left behind was given back to the system.
    uint64_t bytes;        // Memory of chunks.
    uint32_t chunk_bytes;
    uint32_t range_bytes;  // Longest range handed to the WAL unless it is one record.
    uint8_t *pool[ARENA_POOL];
    uint32_t pool_count;
    // Memory given back in this turn, or since the last: spans handed out earlier in the turn may still point to it.
    struct grave {
        uint8_t *mem;
        struct block *block;
        uint32_t cap;
    } * graves;
    uint32_t graves_count;
    uint32_t graves_cap;
    uint32_t graves_before;  // So many are of the turn before: they go at the end of this one.
    uint64_t graves_bytes;
};

void arena_init(struct arena *a, uint64_t budget, uint64_t wal_file_bytes);
void arena_deinit(struct arena *a);
// Room for one record of `size` bytes (multiple of 8), as the newest of this lane. `*ref` names it. The
// chunk does not count a reference yet: arena_ref_add.
// `group` is whose it is in the large lane, else 0.
uint8_t *arena_alloc(struct arena *a, enum arena_lane_id lane, uint64_t group, uint32_t size, uint64_t *ref);
// The same for a record that lies in `block` as a whole: shares it instead of copying. The record stays as it is.
void arena_share(struct arena *a, enum arena_lane_id lane, uint64_t group, struct span record, struct block *block,
                 uint64_t *ref);
// Takes the last allocation back (its sum turned out wrong).
void arena_undo(struct arena *a, uint32_t size, uint64_t ref);
// Nothing more comes this way for now: its current chunk need not stay.
void arena_lane_end(struct arena *a, enum arena_lane_id lane);
// A chunk without memory that stands for a whole recovered WAL file: offsets in it are offsets in the file.
// It stays, references or not, until arena_file_filled.
uint32_t arena_add_file(struct arena *a, uint64_t file_seq);
void arena_file_filled(struct arena *a, uint32_t id);

struct chunk *arena_chunk(const struct arena *a, uint64_t ref);  // Never NULL for a valid reference.
static inline void arena_ref_add(struct arena *a, uint64_t ref)
{
    arena_chunk(a, ref)->refs++;
}
void arena_ref_drop(struct arena *a, uint64_t ref);
// The record in memory, or NULL.
static inline const uint8_t *arena_ptr(const struct arena *a, uint64_t ref)
{
    const struct chunk *c = arena_chunk(a, ref);
    return c->mem == NULL ? NULL : c->mem + (uint32_t)ref;
}
// Where the record is on disk; NULL while it is not durable. *offset_out is its offset in the file.
const struct piece *arena_piece(const struct arena *a, uint64_t ref, uint64_t *offset_out);

// A range came back from the WAL.
void arena_range_durable(struct arena *a, const struct arena_range *r, uint64_t file_seq,
                         uint64_t file_offset);
// Is the large record at `record` still to be applied? Then it is not worth reading from disk again in a moment.
typedef bool arena_keep_fn(void *ctx, const uint8_t *record);
// End of a turn: frees what was given back in the turn before, gives back what is over budget (large records a turn later: the
// machine that was given one in this turn has it delivered before the next ends); once while idle, all that the allocator holds
// free (mem_trim).
void arena_turn(struct arena *a, arena_keep_fn *keep, void *ctx);
// Does a large record that `keep` wants lie in WAL file `file_seq`?
bool arena_keeps_file(const struct arena *a, uint64_t file_seq, arena_keep_fn *keep, void *ctx);
// Each lane may pin the budget: one large record under way must not stop the small ones.
static inline bool arena_is_over_budget(const struct arena *a, enum arena_lane_id lane)
{
    return a->lanes[lane].pinned_bytes >= a->budget;
}
static inline bool arena_has_pending(const struct arena *a)
{
    return a->lanes[LANE_ORDINARY].pending_count > 0 || a->lanes[LANE_LARGE].pending_count > 0;
}
static inline uint64_t arena_memory(const struct arena *a)
{
    return a->bytes + a->graves_bytes + (uint64_t)a->pool_count * a->chunk_bytes;
}
