// SPDX-License-Identifier: Apache-2.0
// An arena for protobuf-c: unpacked envelopes live in it until the next reset, so decoding a frame allocates nothing
// in steady state. Free is a no-op. Thread: that of the embedding struct.
#pragma once
#include <protobuf-c/protobuf-c.h>
#include <stdint.h>

enum {
    PB_ARENA_CHUNK = 64 << 10,
    // What one envelope may unpack to: beyond it unpacking fails. An envelope of FRAME_ENVELOPE_MAX made of tiny
    // messages grows about thirty times.
    PB_ARENA_MAX = 40 << 20,
};

struct pb_chunk;

struct pb_arena {
    ProtobufCAllocator allocator;  // Pass to ..._unpack.
    struct pb_chunk *chunks;       // Newest first; the first one allocated stays for ever.
    size_t total;                  // Bytes of all chunks.
};

void pb_arena_init(struct pb_arena *a);
void pb_arena_deinit(struct pb_arena *a);
// Everything unpacked before is gone. Keeps one chunk.
void pb_arena_reset(struct pb_arena *a);
