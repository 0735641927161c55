// SPDX-License-Identifier: Apache-2.0
// Commands in the log of a quorum queue: payload version 1 (decision 2). Little endian.
//
// Every payload starts with `struct queue_command_wire`; the kind says what follows. `stamp_ms` is written by
// the leader when it proposes (QUEUE_COMMAND_STAMP_AT), everything else by the session that sent it. Pure; any thread.
#pragma once
#include "node/base/buf.h"
#include "node/base/reader.h"
#include "node/queue/queue.h"

enum { QUEUE_COMMAND_VERSION = 1 };

enum queue_command_kind {
    QUEUE_COMMAND_ENQUEUE = 1,   // Publish sequence; all other session commands: control sequence.
    QUEUE_COMMAND_OPEN = 2,      // seq 0.
    QUEUE_COMMAND_END = 3,       // Channel closed: held messages return with a failure.
    QUEUE_COMMAND_CHECKOUT = 4,  // Attaches a consumer.
    QUEUE_COMMAND_CREDIT = 5,
    QUEUE_COMMAND_SETTLE = 6,
    QUEUE_COMMAND_CANCEL = 7,
    QUEUE_COMMAND_GET = 8,
    QUEUE_COMMAND_PURGE = 9,
    // By the leader, without session.
    QUEUE_COMMAND_CONFIGURE = 10,
    QUEUE_COMMAND_NODE_DOWN = 11,
    QUEUE_COMMAND_CONTINUE = 12,  // Nothing but another round of checkout.
};

struct queue_session_id {
    uint64_t incarnation;  // Of the node.
    uint64_t counter;      // Never reused in an incarnation; top 16 bits: the worker.
    uint32_t node;
};
static inline bool queue_session_id_equal(struct queue_session_id a, struct queue_session_id b)
{
    return a.counter == b.counter && a.incarnation == b.incarnation && a.node == b.node;
}
static inline uint32_t queue_session_id_worker(struct queue_session_id id)
{
    return (uint32_t)(id.counter >> 48);
}

enum queue_stream { QUEUE_STREAM_PUBLISH, QUEUE_STREAM_CONTROL, QUEUE_STREAMS };

struct queue_command_wire {
    uint8_t version;
    uint8_t kind;         // enum queue_command_kind.
    uint16_t flags;       // enum queue_command_flag.
    uint32_t node;        // Session.
    uint64_t incarnation;
    uint64_t counter;
    uint64_t seq;         // In the kind's sequence.
    uint64_t known;       // Publishes up to this seq are settled at the sender: their rejections may be forgotten.
    int64_t stamp_ms;     // Leader's wall clock, never falling within a group.
};
static_assert(sizeof(struct queue_command_wire) == 48, "fixed part");
enum { QUEUE_COMMAND_STAMP_AT = 40 };
static_assert(offsetof(struct queue_command_wire, stamp_ms) == QUEUE_COMMAND_STAMP_AT, "place of the stamp");

enum queue_command_flag {
    QUEUE_FLAG_PERSISTENT = 1,
    QUEUE_FLAG_HAS_PRIORITY = 2,
    QUEUE_FLAG_NO_ACK = 4,     // CHECKOUT, GET: for listings; the sender settles by itself.
    QUEUE_FLAG_EXCLUSIVE = 8,  // CHECKOUT.
};

// Behind the fixed part of ENQUEUE; then exchange, keys, header, annotations, body.
// A key: u16 length, its top bit set if BCC; bytes.
struct queue_enqueue_wire {
    int64_t expiry_ms;  // Per-message TTL, -1 none.
    int64_t due_ms;     // Deliver not before; 0 at once.
    uint8_t priority;
    uint8_t reserved;
    uint16_t exchange_len;
    uint16_t keys_count;
    uint16_t reserved2;
    uint32_t keys_len;
    uint32_t header_len;
    uint32_t annotations_len;
    uint32_t body_len;
};
static_assert(sizeof(struct queue_enqueue_wire) == 40, "fixed part of an enqueue");
enum { QUEUE_ENQUEUE_FIXED = 88, QUEUE_KEY_BCC = 0x8000, QUEUE_KEY_MAX = 0x7fff };

struct queue_settle_wire {
    uint64_t first, last;  // Delivery numbers of the consumer.
    uint32_t consumer;
    uint32_t how;          // enum queue_settle.
};
static_assert(sizeof(struct queue_settle_wire) == 24, "one range");

// A decoded command. Spans borrow from the payload.
struct queue_command {
    struct queue_command_wire fixed;
    struct queue_session_id session;
    union {
        struct {
            struct queue_enqueue_wire fixed;
            uint32_t size;  // header + body, at least 1: what limits count.
        } enqueue;
        struct {
            uint32_t consumer, prefetch;
            int32_t priority;
            struct span tag;
        } checkout;
        struct {
            uint32_t consumer, add;
        } credit;
        struct {
            struct span ranges;  // Whole queue_settle_wire, not aligned.
            uint32_t count;
        } settle;
        uint32_t cancel_consumer;
        struct queue_settings configure;
        struct {
            uint32_t node;
            uint64_t incarnation;
        } node_down;
    };
};

enum queue_stream queue_command_stream(uint8_t kind);
static inline bool queue_command_has_session(uint8_t kind)
{
    return kind >= QUEUE_COMMAND_ENQUEUE && kind <= QUEUE_COMMAND_PURGE;
}
// RC_MALFORMED if the bytes are not exactly one command of a known kind and version. Of an enqueue only fixed parts and
// lengths are looked at.
MUST_USE enum rc queue_command_decode(struct span payload, struct queue_command *out);
// The parts of an enqueue a consumer sees. RC_MALFORMED.
MUST_USE enum rc queue_message_decode(struct span payload, struct queue_message *out);

// Bytes of an enqueue; then writes it to `to` (that many bytes).
size_t queue_enqueue_size(const struct queue_publish *p);
void queue_enqueue_write(uint8_t *to, size_t size, struct queue_session_id id, uint64_t seq, uint64_t known,
                         const struct queue_publish *p);
// Appends the fixed part of a command; the caller appends what the kind wants.
void queue_command_head(struct buf *to, enum queue_command_kind kind, uint16_t flags,
                        struct queue_session_id id, uint64_t seq, uint64_t known);
void queue_command_checkout(struct buf *to, const struct queue_consume *c);  // Behind the head.
void queue_command_configure(struct buf *to, const struct queue_settings *s);
