// SPDX-License-Identifier: Apache-2.0
// One channel: contents being assembled, confirms, consumers, unsettled deliveries, the sessions with its
// queues.
//
// Frames are taken in order. While an answer is pending (a declare, a consume, ...) later frames wait in
// `waiting`; other channels go on. A channel that failed is kept, empty, until the client's close-ok, and
// ignores everything else.
//
// Callbacks of sessions and of the broker write frames and change the channel's state, but never parse input
// and never close sessions: that is put off to amqp09_turn_begin.
//
// Owner thread: the connection's worker. Memory belongs to the connection.
#pragma once
#include "node/amqp09/confirms.h"
#include "node/amqp09/connection.h"
#include "node/amqp09/unacked.h"
#include "node/base/limits.h"
#include "proto/amqp09/content.h"

enum {
    // Frames waiting behind a pending answer, per channel: above it the connection is not read.
    CHANNEL_WAITING_BYTES = 1 << 20,
    // Half-arrived bodies of one connection; above it (and above one message of full size) it is closed with
    // 506.
    CONNECTION_PARTIAL_BYTES = 128 << 20,
    // Messages and bytes of one transaction; above it the channel is closed with 406.
    CHANNEL_TX_BYTES = 64 << 20,
    // Sessions of one channel: above it those without anything pending are closed before a new one is opened.
    CHANNEL_QUEUES_MAX = 1024,
    // Routes remembered per channel: the size of its direct-mapped table, doubled on collisions.
    CHANNEL_ROUTES_LEAST = 8,
    CHANNEL_ROUTES_MOST = 256,
    CHANNEL_ROUTE_KEY_BYTES = 128,
};

enum channel_state {
    CHANNEL_OPEN,
    CHANNEL_CLOSING,  // We sent close; everything is ignored until close-ok.
    CHANNEL_GONE,     // Out of the connection; freed at the next turn.
};

enum content_state {
    CONTENT_NONE,    // A method is expected.
    CONTENT_HEADER,  // basic.publish has come.
    CONTENT_BODY,    // Its header has come, body bytes are missing.
};

struct consumer {
    struct channel *channel;
    struct channel_queue *queue;
    uint32_t id;            // Unique in the channel, never reused.
    struct span tag;        // Owned.
    struct span arguments;  // Owned.
    uint32_t prefetch;
    bool is_no_ack, is_exclusive;
    bool is_told;  // consume-ok was sent (or suppressed by nowait).
    bool is_nowait;
};

// A queue this channel has to do with. Lives while it has a session, consumers or unsettled deliveries.
struct channel_queue {
    struct list link;        // channel.queues
    struct list dying_link;  // amqp09.dying: the session is to be closed.
    struct amqp09 *service;
    struct channel *channel;        // NULL once the channel is gone or has dropped the queue.
    struct queue_session *session;  // NULL once closed.
    bool is_ended;                  // The session ended from the other side.
    uint64_t group;
    struct span name;             // Owned.
    uint64_t *ring;               // Publish number by session sequence; 0: nobody waits for it.
    uint32_t ring_cap;            // Power of two or 0.
    uint64_t settled, published;  // Session sequences with an outcome / handed in.
    uint32_t unacked_count, consumers_count;
    uint32_t reply_count;  // gets and purges under way
    bool is_full;          // Counted in connection.throttles.
    bool is_paused;        // Deliveries are paused.
    bool has_silent_loss;  // The queue took a consumer away and the client could not be told.
};

// An answer the channel waits for. Outlives the channel (then `channel` is NULL) until the answer comes.
struct operation {
    struct channel *channel;
    bool is_external;  // The broker or the queue service will answer; else the session's callbacks do.
    uint32_t method;   // Offending method for errors.
    bool is_nowait;
    uint64_t token;                                                     // get, purge
    uint32_t consumer;                                                  // consume, cancel
    void (*done)(struct operation *op, const struct broker_result *r);  // Answer of the broker.
    // Copies of what the answer needs.
    char name[256];  // Queue or tag.
    uint8_t name_len;
    bool if_unused, if_empty, is_no_ack, is_exclusive;
    uint32_t count;
    struct buf arguments;
    struct buf more;                                                   // consumer tag
    void (*then)(struct operation *op, const struct broker_queue *q);  // channel_with_queue
    void (*counted)(struct operation *op, const struct queue_info *info);
};

struct route {
    uint64_t hash;
    uint64_t version;                      // broker_version it was made with.
    uint64_t generation;                   // channel.routes_generation it was made with; 0: empty.
    uint8_t key[CHANNEL_ROUTE_KEY_BYTES];  // Exchange, then routing key.
    uint16_t exchange_len, key_len;
    struct channel_queue **queues;  // Owned array; entries belong to the channel.
    uint32_t queues_count, queues_cap;
};

struct transaction;  // channel_tx.c

struct channel {
    struct list link;             // connection.channel_list, or amqp09.graves
    struct list ready_link;       // amqp09.ready
    struct list held_link;        // connection.held
    struct list dirty_link;       // amqp09.dirty
    struct list unroutable_link;  // amqp09.unroutable
    struct connection *connection;
    uint64_t serial;  // Unique in the worker: numbers are reused, serials are not.
    uint16_t number;
    enum channel_state state;

    // Content
    enum content_state content;
    struct amqp_basic_publish publish;  // Points into the input, or into `held` once is_held.
    struct span properties;             // Raw; likewise.
    uint64_t body_size;
    bool is_method_held, is_held;  // Exchange and key / also the properties lie in `held`.
    struct buf held;               // Exchange, routing key, properties.
    struct buf body;               // Body bytes so far, unless the body came in one frame,
    size_t body_room;              // behind so much room for what the queue writes in front of a large one,
    uint32_t body_sum;             // and its CRC32C then.
    uint64_t unroutable_until;     // A complete publish waits for the projection until then; 0: none.

    // Waiting
    struct operation *pending;
    struct buf waiting;  // Frames: type, u32 length (native), payload.
    size_t waiting_pos;
    bool is_waiting_throttled;  // Counted in connection.throttles.
    bool is_close_owed;         // The client's close waited when an error closed the channel: close-ok at the turn.

    // Publishing
    struct confirms confirms;
    struct transaction *tx;  // NULL: not transactional.
    struct route *routes;    // routes_cap and one for what is not remembered; NULL until the first publish.
    uint32_t routes_cap;
    uint64_t routes_generation;  // From 1; raised when a queue goes.
    struct list queues;          // channel_queue.link
    struct map queues_by_group;

    // Consuming
    struct map consumers_by_tag;
    struct map consumers;            // id -> struct consumer
    struct consumer *consumer_last;  // Cache; may be NULL.
    uint32_t consumer_ids;
    uint32_t prefetch;  // For consumers created from now on; 0: unlimited.
    struct unacked unacked;
    uint64_t tokens;  // gets and purges numbered so far
    char queue[256];  // Last declared queue, for empty names.
    uint8_t queue_len;
    bool has_queue;
};

// ---- channel.c ----------------------------------------------------------------------------------

struct channel *channel_create(struct connection *c, uint16_t number);
// Ends everything the channel has and takes it out of the connection. Sessions are closed and the memory is
// freed at the turn, so this may be called from anywhere.
void channel_release(struct channel *ch);
void channel_free(struct channel *ch);  // Called by amqp09_turn_begin, of released channels.
// One frame of this channel other than channel.open, in order.
void channel_frame(struct channel *ch, uint8_t type, struct span payload);
// Copies what still points into the input, which is about to go.
void channel_hold(struct channel *ch);
// channel.close with "NAME - text", or the connection's for a hard code.
void channel_fail(struct channel *ch, uint16_t code, uint32_t method, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
// As the broker says it.
void channel_fail_result(struct channel *ch, uint32_t method, const struct broker_result *r);
bool channel_is_open(const struct channel *ch);
struct amqp09 *channel_service(const struct channel *ch);
struct buf *channel_out(struct channel *ch);  // Finish with channel_out_done.
void channel_out_done(struct channel *ch);

// The channel waits for an answer from now on.
struct operation *operation_start(struct channel *ch, uint32_t method);
// The answer has been dealt with: frees `op`; waiting frames go on at the next turn.
void operation_end(struct operation *op);
// broker_done_fn for operations: calls op->done if the channel still wants it.
void operation_answered(void *ctx, const struct broker_result *r);
// Asks for a queue's counts; calls op->counted if the channel still wants them (zeros if they are not to be
// had).
void operation_count(struct operation *op, const struct broker_queue *q);
struct operation *channel_operation(struct channel *ch,
                                    uint32_t method);  // The pending one if it is of that method, else NULL.
void channel_go_on(struct channel *ch);                // Called by amqp09_turn_begin.

// Read or write access to something in the vhost; false: the channel has failed with 403. `kind` is "queue"
// or "exchange".
MUST_USE bool channel_require(struct channel *ch, enum broker_access access, const char *kind,
                              struct span name, uint32_t method);
// The name given, or the last declared queue if it is empty. False: failed with 404.
MUST_USE bool channel_queue_name(struct channel *ch, struct span given, uint32_t method, struct span *out);
// Strips CR and LF into `to` (256 bytes).
struct span channel_strip(struct span name, char *to);

// ---- channel_queue.c ----------------------------------------------------------------------------

// The session with a queue, opened if need be.
struct channel_queue *channel_queue_open(struct channel *ch, const struct broker_queue *q);
// `publish_number` 0: nobody waits for the outcome; CHANNEL_TX_NUMBER: the transaction does.
extern const uint64_t CHANNEL_TX_NUMBER;
void channel_queue_published(struct channel_queue *cq, uint64_t session_seq, uint64_t publish_number);
// Closes sessions nothing is pending in if there are too many.
void channel_queues_trim(struct channel *ch);
// Fewer references: frees an ended queue nobody refers to any more.
void channel_queue_unref(struct channel_queue *cq);
// Detaches everything from the channel; sessions are closed at the turn.
void channel_queues_release(struct channel *ch);
void channel_queue_close_now(struct channel_queue *cq);  // Called by amqp09_turn_begin.
void channel_queues_pause(struct channel *ch, bool is_paused);

// ---- channel_publish.c --------------------------------------------------------------------------

void channel_publish_method(struct channel *ch, const struct amqp_basic_publish *m);
void channel_publish_header(struct channel *ch, struct span payload);
void channel_publish_body(struct channel *ch, struct span payload);
// Tries an unroutable publish again (projection may have caught up). Called by amqp09_turn_begin.
void channel_publish_retry(struct channel *ch);
void channel_content_drop(struct channel *ch);
void channel_return(struct channel *ch, struct span exchange, struct span key, struct span properties,
                    struct span body);
void channel_confirms_dirty(struct channel *ch);
void channel_confirms_flush(struct channel *ch);  // Called by amqp09_turn_end.

// ---- channel_route.c ----------------------------------------------------------------------------

struct route_request {
    struct span exchange;
    const struct span *keys;
    uint32_t keys_count;
    struct span headers;
};
enum route_result { ROUTE_OK, ROUTE_FAILED, ROUTE_NO_EXCHANGE };
// The queues of a publish, after checking that the exchange may be published to. The array is valid until the
// next call. ROUTE_FAILED: the channel has failed.
enum route_result channel_route_check(struct channel *ch, struct span exchange);
enum route_result channel_route(struct channel *ch, const struct route_request *r,
                                struct channel_queue ***queues, uint32_t *count);
void channel_routes_free(struct channel *ch);

// ---- channel_consume.c --------------------------------------------------------------------------

void channel_qos(struct channel *ch, const struct amqp_basic_qos *m);
void channel_consume(struct channel *ch, const struct amqp_basic_consume *m);
void channel_cancel(struct channel *ch, const struct amqp_basic_cancel *m);
void channel_get(struct channel *ch, const struct amqp_basic_get *m);
void channel_consume_done(struct channel_queue *cq, uint32_t consumer, enum rc rc);
void channel_cancel_done(struct channel_queue *cq, uint32_t consumer);
void channel_get_done(struct channel_queue *cq, uint64_t token, enum rc rc, const struct queue_message *m,
                      uint64_t ready);
void channel_consumer_lost(struct channel_queue *cq, uint32_t consumer);
void channel_deliver(struct channel_queue *cq, uint32_t consumer, const struct queue_message *m);
void channel_consumers_free(struct channel *ch);
struct consumer *channel_consumer(struct channel *ch, uint32_t id);
// Ends all consumers of a queue whose session ended. False: the client cannot be told (no
// consumer_cancel_notify).
bool channel_consumers_lost(struct channel *ch, struct channel_queue *cq);

// ---- channel_settle.c ---------------------------------------------------------------------------

void channel_ack(struct channel *ch, const struct amqp_basic_ack *m);
void channel_nack(struct channel *ch, const struct amqp_basic_nack *m);
void channel_reject(struct channel *ch, const struct amqp_basic_reject *m);
void channel_recover(struct channel *ch, bool is_requeue, uint32_t method);

// ---- channel_topology.c -------------------------------------------------------------------------

void channel_exchange_declare(struct channel *ch, const struct amqp_exchange_declare *m);
void channel_exchange_delete(struct channel *ch, const struct amqp_exchange_delete *m);
void channel_exchange_bind(struct channel *ch, const struct amqp_exchange_bind *m, uint32_t method);
void channel_queue_declare(struct channel *ch, const struct amqp_queue_declare *m);
void channel_queue_bind(struct channel *ch, const struct amqp_queue_bind *m, uint32_t method);
void channel_queue_delete(struct channel *ch, const struct amqp_queue_delete *m);
void channel_queue_purge(struct channel *ch, const struct amqp_queue_purge *m);
void channel_purge_done(struct channel_queue *cq, uint64_t token, uint64_t count);
// Calls `then` once the queue is known to exist (after a fence if need be); fails the channel with 404 else.
// `then` gets the operation with its name filled in and must end it.
void channel_with_queue(struct channel *ch, struct operation *op,
                        void (*then)(struct operation *op, const struct broker_queue *q));

// ---- channel_tx.c -------------------------------------------------------------------------------

void channel_tx_select(struct channel *ch);
void channel_tx_commit(struct channel *ch);
void channel_tx_rollback(struct channel *ch);
void channel_tx_free(struct channel *ch);
// Buffers a routed publish / a settle until commit.
void channel_tx_publish(struct channel *ch, const struct queue_publish *p, struct channel_queue **queues,
                        uint32_t count);
void channel_tx_settle(struct channel *ch, const struct unacked_entry *e, enum queue_settle how);
// Settles outside any transaction.
void channel_settle_entries(struct channel *ch, const struct unacked_entry *entries,
                            const enum queue_settle *how, uint32_t count);
// A publish of the commit under way has its outcome.
void channel_tx_settled(struct channel *ch, bool is_rejected);
void channel_tx_counts(const struct channel *ch, uint64_t *publishes, uint64_t *acks);
