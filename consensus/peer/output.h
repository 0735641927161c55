// SPDX-License-Identifier: Apache-2.0
// Output of one lane: frames gathered in a loop turn, written with one writev from where their bytes lie.
//
// Owner thread: the lane's. Headers, envelopes and sums are copied here; raw ranges are borrowed until output_flush,
// which copies only what the socket did not take. No allocation once the buffers have grown.
#pragma once
#include "node/base/buf.h"
#include "node/base/transport.h"
#include "proto/frame.h"

struct output {
    struct buf heads;      // Copied bytes of the frames since the last flush.
    struct iovec *pieces;  // In order. iov_base NULL: the next iov_len bytes of `heads`.
    int pieces_len;
    int pieces_cap;
    size_t pieces_bytes;   // Sum of their lengths.
    struct buf rest;       // Not taken by the socket in earlier flushes; goes out first.
    size_t rest_pos;       // Start of it.
    uint64_t taken;        // Bytes given to the socket in all.
};

void output_init(struct output *o);
void output_deinit(struct output *o);
// Adds a frame. Its total size must be within FRAME_TOTAL_MAX (asserted).
void output_frame(struct output *o, enum frame_type type, struct span envelope, const struct iovec *raw, int raw_count,
                  bool raw_crc);
// Adds frames that are encoded already; borrowed like raw ranges.
void output_encoded(struct output *o, struct span frames);
// Writes all it can. RC_OK: nothing is left; RC_PENDING: the rest is copied, the socket is full; RC_NOT_CONNECTED: the
// connection failed (output_clear is due).
MUST_USE enum rc output_flush(struct output *o, struct transport *t);
// Drops everything: the lane is gone.
void output_clear(struct output *o);

static inline size_t output_bytes(const struct output *o)
{
    return o->rest.len - o->rest_pos + o->pieces_bytes;
}
