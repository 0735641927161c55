// SPDX-License-Identifier: Apache-2.0
// Frames between nodes (engine-notes §7.8): a 16-byte header, a protobuf envelope, a raw area.
//
// Little endian. The header's crc covers the rest of the header and the envelope; the raw area of log frames is
// whole records with a sum of their own, that of session frames is covered by FLAG_RAW_CRC's trailing sum.
#pragma once
#include "node/base/buf.h"
#include "node/base/rc.h"
#include "node/base/span.h"
#include <assert.h>

enum frame_type {
    // Control lane.
    FRAME_HELLO = 1,      // Handshake (consensus/peer).
    FRAME_CHALLENGE = 2,
    FRAME_PROOF = 3,
    FRAME_BEAT = 4,
    FRAME_VOTES = 5,      // Pre-votes, votes, their answers, timeout-now: many groups in one frame.
    FRAME_JOIN = 6,
    FRAME_JOIN_REPLY = 7,
    FRAME_META = 8,       // Metastore command forwarded to the leader, and its answer.
    FRAME_META_REPLY = 9,
    FRAME_ADMIN = 10,     // warrenctl on another node's behalf.
    FRAME_ADMIN_REPLY = 11,
    // Log lanes.
    FRAME_APPEND = 32,    // AppendBatch; raw = records.
    FRAME_ACK = 33,
    FRAME_FRAGMENT = 34,  // Part of an entry above LIMIT_FRAME_BYTES.
    FRAME_UNKNOWN_GROUP = 35,
    // Bulk lane.
    FRAME_SNAPSHOT = 48,
    FRAME_SNAPSHOT_ACK = 49,
    // Session lane (node/queue).
    FRAME_SESSION_FIRST = 64,  // Items, or a part of a run of them.
    FRAME_SESSION_TAKEN = 65,  // Says up to where parts were taken.
    FRAME_SESSION_NEW = 66,    // The connection is a new one: what was said before may be lost.
    FRAME_SESSION_LAST = 95,
};

enum { FRAME_HEADER_BYTES = 16, FRAME_TOTAL_MAX = 2 << 20, FRAME_ENVELOPE_MAX = 1 << 20 };

struct frame_header_wire {
    uint32_t total_len;     // Header, envelope and raw area.
    uint16_t type;          // enum frame_type.
    uint16_t flags;         // FRAME_RAW_CRC; worker << FRAME_WORKER_SHIFT.
    uint32_t envelope_len;
    uint32_t crc;           // CRC32C of the 12 bytes before it and the envelope.
};
static_assert(sizeof(struct frame_header_wire) == FRAME_HEADER_BYTES, "frame header is 16 bytes");

enum frame_flag {
    FRAME_RAW_CRC = 1,  // The raw area ends with a CRC32C of the bytes before it.
};
// The top byte of the flags: which worker of the sending node says it. Counters and streams are per sending worker, and
// the receiving node hands the frame to its own worker of that number (modulo how many it has).
enum { FRAME_WORKER_SHIFT = 8, FRAME_WORKERS_MAX = 16 };

struct frame {
    uint16_t type;
    uint16_t flags;
    uint8_t worker;  // Of the sender; below FRAME_WORKERS_MAX.
    struct span envelope;
    struct span raw;  // Without the trailing sum; already verified if FRAME_RAW_CRC.
};

// Decodes the frame at the start of `bytes`. RC_MORE if more bytes are needed (`*size_out` = total size once at
// least a header is there, else 0), RC_TOO_LARGE, RC_MALFORMED, RC_CORRUPT. `out` borrows from `bytes`.
MUST_USE enum rc frame_decode(struct span bytes, struct frame *out, size_t *size_out);

// Appends a header and the envelope; the caller appends `raw_len` more bytes (the sum included, if flagged).
void frame_encode_head(struct buf *to, enum frame_type type, uint16_t flags, struct span envelope, size_t raw_len);
