// SPDX-License-Identifier: Apache-2.0
// What the connections of one worker share: configuration with defaults filled in, work put off to the turn,
// scratch memory. Owner thread: the worker's.
#pragma once
#include "node/amqp09/amqp09.h"
#include "node/amqp09/channel.h"
#include "node/amqp09/connection.h"

enum {
    // An unroutable publish waits at most this long for a projection that is behind (decision 16).
    UNROUTABLE_WAIT_MS = 100,
    UNROUTABLE_RETRY_MS = 5,
};

struct amqp09 {
    struct amqp09_config config;  // Zeros replaced by defaults.
    struct rng rng;
    struct list connections;  // connection.link
    uint32_t connections_count;
    uint64_t ids;  // Connections and channels numbered so far.
    uint32_t alarms;

    // Put off, because it must not happen inside a callback of a queue session or of the broker.
    struct list ready;       // channel.ready_link: an answer came, waiting frames go on.
    struct list resumed;     // connection.resume_link
    struct list dying;       // channel_queue.dying_link: sessions to be closed.
    struct list graves;      // channel.link: released channels.
    struct list unroutable;  // channel.unroutable_link: publishes waiting for the projection.
    struct list dirty;       // channel.dirty_link: confirms to be told at the end of the turn.

    struct list partials;  // connection.partial_link, oldest first.
    uint64_t partial_bytes;

    // Does any exchange of the vhost look at headers? As of one version of the projection.
    struct broker_vhost *headers_vhost;
    uint64_t headers_version;
    bool has_headers_exchange;

    struct buf scratch;       // Rewritten header tables.
    struct buf scratch_more;  // Rewritten properties.
    struct span *keys;        // Routing keys of the publish at hand.
    bool *bcc;
    uint32_t keys_cap;
};

static inline uint64_t amqp09_now(const struct amqp09 *s)
{
    return clock_mono_ns(s->config.clock);
}
static inline uint64_t amqp09_later(const struct amqp09 *s, uint64_t ms)
{
    return amqp09_now(s) + ms * 1000000u;
}
// Prefix and 22 characters of base64url: names made by the server. `to` takes 64 bytes.
void amqp09_make_name(struct amqp09 *s, const char *prefix, char *to);
// A connection's half-arrived bodies grew or shrank. Above the worker's bound all but the oldest such
// connection pause.
void amqp09_partial_changed(struct amqp09 *s, struct connection *c, int64_t change);
// True if routing in this vhost may depend on a message's headers.
bool amqp09_routes_by_headers(struct amqp09 *s, struct broker_vhost *v);
