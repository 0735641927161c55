// SPDX-License-Identifier: Apache-2.0
// Items: what the two sides of a queue session say to each other, in session frames or between workers.
//
// Packed, little endian: `struct queue_item_wire`, then the body its type names. "Up" goes from the session's client
// side to a replica, "down" the other way. Pure; any thread. Version: QUEUE_WIRE_VERSION, in the frame's envelope.
#pragma once
#include "node/queue/queue_command.h"

enum { QUEUE_WIRE_VERSION = 1 };

enum queue_item_type {
    // Up.
    QUEUE_ITEM_ATTACH = 1,    // u8 was_open, u32 count, count x queue_cursor_wire.
    QUEUE_ITEM_COMMANDS = 2,  // {u32 length, payload}...
    QUEUE_ITEM_TAKEN = 3,     // u32 consumer, u64 bytes since attach or resume.
    QUEUE_ITEM_RESUME = 4,    // queue_cursor_wire: a gap; send again what is above it.
    QUEUE_ITEM_PAUSE = 5,     // u8 is_paused.
    QUEUE_ITEM_INFO = 6,      // The session's counter is the asker's token.
    QUEUE_ITEM_UP_LAST = 15,
    // Down.
    QUEUE_ITEM_ATTACHED = 16,    // State of the session: queue_applied_wire, ranges; then a query as QUEUE_ITEM_QUERY.
    QUEUE_ITEM_NOT_LEADER = 17,  // u32 node that leads, 0 unknown.
    QUEUE_ITEM_REFUSED = 18,     // The session's counter is used up: open with a new one.
    QUEUE_ITEM_ENDED = 19,       // u8 is_deleted.
    QUEUE_ITEM_APPLIED = 20,     // queue_applied_wire, rejected_count x queue_seq_range.
    QUEUE_ITEM_QUERY = 21,       // queue_query_wire.
    QUEUE_ITEM_DELIVER = 22,     // {queue_delivery_wire, exchange, key, header, body}...
    QUEUE_ITEM_EXPECT = 23,      // u32 stream, u64 seq: go on from there.
    QUEUE_ITEM_INFO_REPLY = 24,  // u32 rc, u32 hint node, 5 x u64.
};

struct queue_item_wire {
    uint32_t len;  // Whole item.
    uint8_t type;
    uint8_t reserved[3];
    uint64_t group;
    uint64_t incarnation;  // Session.
    uint64_t counter;
    uint32_t node;
    uint32_t attach;  // Number of the attach this belongs to.
};
static_assert(sizeof(struct queue_item_wire) == 40, "head of an item");

struct queue_cursor_wire {
    uint64_t last;     // Highest delivery number received.
    uint64_t waiting;  // Bytes delivered that the client's socket has not taken.
    uint32_t consumer;
    uint32_t reserved;
};
struct queue_applied_wire {
    uint64_t publish, control;  // Last applied.
    uint32_t rejected_count;
    // ATTACHED: so many publishes above `publish` the leader has taken already; they are not sent to it again. 0 from an older
    // program, and else.
    uint32_t publish_ahead;
};
struct queue_query_wire {
    uint64_t seq, number, ready;
    uint32_t kind;
    uint32_t is_unreadable;  // GET: `number` exists and cannot be read. 0 from an older program.
};
struct queue_delivery_wire {
    uint64_t before;  // Number sent before this one to the same consumer.
    uint64_t number;
    uint32_t consumer;
    uint32_t acquired, failed;
    uint16_t exchange_len, key_len;
    uint32_t header_len, body_len;
};
static_assert(sizeof(struct queue_cursor_wire) == 24 && sizeof(struct queue_applied_wire) == 24, "packed");
static_assert(sizeof(struct queue_query_wire) == 32 && sizeof(struct queue_delivery_wire) == 40, "packed");

struct queue_item {
    enum queue_item_type type;
    uint32_t attach;
    uint64_t group;
    struct queue_session_id session;
    struct span body;  // Borrowed.
};

// Starts an item behind `to`; the caller appends the body, then ends it with the returned place.
size_t queue_item_begin(struct buf *to, enum queue_item_type type, uint64_t group,
                        struct queue_session_id session, uint32_t attach);
void queue_item_end(struct buf *to, size_t at);
// The next item of `r`. RC_MORE at a clean end or if the bytes end inside the item (`r` is where it was), RC_MALFORMED.
MUST_USE enum rc queue_item_next(struct reader *r, struct queue_item *out);
// One delivery out of a DELIVER body. RC_MORE at the end.
MUST_USE enum rc queue_delivery_next(struct reader *r, struct queue_delivery_wire *out, struct queue_message *m);
