// SPDX-License-Identifier: Apache-2.0
// Bytes of metadata commands. The functions that build a command (meta_put and so on) are declared in
// metastore.h.
//
// Entry payload, version 1, little endian: u8 version, u64 stamp_ms (set by the leader), then the request as
// its origin made it: {u32 node, u64 session, u64 counter} (deduplication reference, node 0: none), u32
// operations, operations. An operation: u8 kind, then by kind (path = u8 depth, depth x {u8 length, name}):
//   put          u8 condition, u64 version, path, u32 length, payload; then its modifiers:
//     keep         u8 on_children, path
//     ids          u32 payload offset, u32 count
//   delete, require   u8 condition, u64 version, path
//   set trigger  u32 id, u8 events, path
//   ack event    u64 seq
//
// Everything that arrives from elsewhere is checked whole by command_validate before it is proposed (law 5).
#pragma once
#include "metastore/metastore.h"
#include "node/base/reader.h"

enum { COMMAND_VERSION = 1, COMMAND_HEAD_BYTES = 9 };

enum command_kind {
    COMMAND_PUT = 1,
    COMMAND_KEEP = 2,  // Modifiers of the put before them.
    COMMAND_IDS = 3,
    COMMAND_DELETE = 4,
    COMMAND_REQUIRE = 5,
    COMMAND_SET_TRIGGER = 6,
    COMMAND_ACK_EVENT = 7,
};

struct command_ref {
    uint32_t node;     // Origin; 0: no deduplication.
    uint64_t session;  // Of the origin's process.
    uint64_t counter;
};

struct command {
    uint64_t stamp_ms;
    struct command_ref ref;
    uint32_t ops_count;
    struct span ops;
};

struct command_op {
    enum command_kind kind;
    enum meta_if condition;
    uint64_t version;
    struct meta_path path;
    struct span payload;
    struct span modifiers;  // Of a put.
    uint32_t trigger_id;
    uint8_t events;
    uint64_t event_seq;
};

struct command_modifier {
    enum command_kind kind;  // COMMAND_KEEP or COMMAND_IDS.
    bool is_on_children;
    struct meta_path path;
    uint32_t offset;
    uint32_t count;
};

// Appends the request of `c`.
void command_encode_request(struct buf *to, const struct command_ref *ref, const struct meta_command *c);
void command_encode_head(uint8_t to[COMMAND_HEAD_BYTES], uint64_t stamp_ms);
// A request alone / an entry's payload. Decodes the outer part only.
MUST_USE enum rc command_decode_request(struct span request, struct command *out);
MUST_USE enum rc command_decode(struct span payload, struct command *out);
// The next operation, its modifiers included. RC_MORE at the end; RC_MALFORMED, RC_INVALID.
MUST_USE enum rc command_next(struct reader *ops, struct command_op *out);
MUST_USE enum rc command_next_modifier(struct reader *modifiers, struct command_modifier *out);
// Everything that can be said without the tree. RC_OK, RC_MALFORMED, RC_INVALID, RC_TOO_LARGE.
MUST_USE enum rc command_validate(struct span request);
bool command_only_frees(
    struct span request);  // Only deletes and acknowledgements: allowed when the map is nearly full.

void path_encode(struct buf *to, const struct meta_path *p);
MUST_USE enum rc path_decode(struct reader *r, struct meta_path *out);
