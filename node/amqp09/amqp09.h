// SPDX-License-Identifier: Apache-2.0
// AMQP 0-9-1 on one worker: what its connections share, and what the rest of the node may ask about them.
//
// Thread: the worker's, for everything. Other threads post to the worker.
#pragma once
#include "node/base/buf.h"
#include "node/base/env.h"
#include "node/base/span.h"

struct amqp09;
struct broker;
struct queue_service;
struct connection;

struct amqp09_config {
    struct broker *broker;
    struct queue_service *queues;
    const struct clock *clock;
    uint64_t rng_seed;      // For generated names.
    const char *node_name;  // For listings. Strings are borrowed for the life of the service.
    const char *cluster_name;
    const char *version;                          // As told to clients: "4.3.x", they parse it.
    uint64_t max_message_size;                    // Bytes of body; 0: LIMIT_MESSAGE_BYTES_DEFAULT.
    uint16_t channel_max;                         // 0: no limit.
    uint32_t frame_max;                           // 0: no limit, else >= 8192.
    uint16_t heartbeat_s;                         // Suggested to clients.
    uint32_t handshake_timeout_ms;                // 0: 10,000.
    uint32_t connections_max;                     // Of this worker; 0: no limit.
    uint64_t partial_bytes_max;                   // Bodies still arriving, all connections of this worker; 0:
                                                  // LIMIT_PARTIAL_NODE_BYTES.
    bool is_guest_remote;                         // `guest` may come from other than loopback addresses.
    const char *anonymous_user, *anonymous_pass;  // Mechanism ANONYMOUS; NULL: not offered.
    // Has this worker's projection seen all that is known to be committed (decision 16)? NULL: always.
    bool (*is_current)(void *ctx);
    void *ctx;
};
struct amqp09 *amqp09_create(const struct amqp09_config *config);
// All connections must have been destroyed.
void amqp09_destroy(struct amqp09 *s);

// Start of a loop turn's work, before queue_service_turn: frames that waited for an answer or for room go on,
// sessions of closed channels are closed.
void amqp09_turn_begin(struct amqp09 *s);
// End of a turn, after host_turn and before outputs are written: confirms gathered in the turn become frames.
// Returns the monotonic ns at which amqp09_turn_begin wants to run at the latest (0: at once, UINT64_MAX: no
// wish).
uint64_t amqp09_turn_end(struct amqp09 *s);

// Resource alarms (data-plane §1.14): publishing connections are told and not read. 0: none.
enum { AMQP09_ALARM_MEMORY = 1, AMQP09_ALARM_DISK = 2 };
void amqp09_set_alarms(struct amqp09 *s, uint32_t alarms);

// ---- listings: names of columns as in RabbitMQ (operator-plane §2.4) ----------------------------

struct amqp09_connection_info {
    uint64_t id;       // Of this worker.
    struct span name;  // "peer:port -> host:port"
    struct span user, vhost;
    struct span peer_host, host;
    uint16_t peer_port, port;
    const char *state;     // starting, tuning, opening, running, flow, blocked, closing, closed
    const char *protocol;  // "AMQP 0-9-1"
    struct span auth_mechanism;
    uint32_t channels, channel_max, frame_max, timeout;
    uint64_t recv_oct, recv_cnt, send_oct, send_cnt, send_pend;
    int64_t connected_at;           // ms since 1970
    struct span client_properties;  // Field table, content.
    struct span connection_name;    // Given by the client; empty if none.
};
typedef void amqp09_connection_fn(void *ctx, const struct amqp09_connection_info *info);
void amqp09_connections_each(struct amqp09 *s, amqp09_connection_fn *each, void *ctx);

struct amqp09_channel_info {
    uint64_t connection_id;
    struct span connection_name;  // "peer:port -> host:port"; the channel's name is that and " (number)".
    struct span user, vhost;
    uint16_t number;
    bool is_transactional, is_confirm;
    uint32_t consumer_count, prefetch_count;
    uint64_t messages_unacknowledged, messages_unconfirmed, messages_uncommitted, acks_uncommitted;
    const char *state;  // running, flow, closing
};
typedef void amqp09_channel_fn(void *ctx, const struct amqp09_channel_info *info);
void amqp09_channels_each(struct amqp09 *s, amqp09_channel_fn *each, void *ctx);

struct amqp09_consumer_info {
    const struct amqp09_channel_info *channel;
    struct span queue_name, consumer_tag;
    bool is_ack_required, is_exclusive;
    uint32_t prefetch_count;
    struct span arguments;  // Field table, content.
};
typedef void amqp09_consumer_fn(void *ctx, const struct amqp09_consumer_info *info);
void amqp09_consumers_each(struct amqp09 *s, amqp09_consumer_fn *each, void *ctx);

uint32_t amqp09_connections_count(const struct amqp09 *s);
// Closes with 320 CONNECTION_FORCED. `id` 0: all. Returns how many.
uint32_t amqp09_close_connections(struct amqp09 *s, uint64_t id, const char *reason);
// The same for the connections of one user (deleted or changed).
uint32_t amqp09_close_user(struct amqp09 *s, struct span user, const char *reason);
