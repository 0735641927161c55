// SPDX-License-Identifier: Apache-2.0
// The connections of one worker. Work that callbacks put off is done at the start of a turn, in this order:
// close the sessions of released channels, free them, let channels go on whose answer has come, parse what
// paused connections have left. Confirms are told at the end, so that one frame covers a turn's publishes.
#include "node/amqp09/service.h"
#include "node/amqp09/reply.h"
#include <stdlib.h>

struct amqp09 *amqp09_create(const struct amqp09_config *config)
{
    struct amqp09 *s = mem_zalloc(sizeof(*s));
    s->config = *config;
    if (s->config.max_message_size == 0) {
        s->config.max_message_size = LIMIT_MESSAGE_BYTES_DEFAULT;
    }
    if (s->config.max_message_size > LIMIT_MESSAGE_BYTES_MAX) {
        s->config.max_message_size = LIMIT_MESSAGE_BYTES_MAX;
    }
    if (s->config.handshake_timeout_ms == 0) {
        s->config.handshake_timeout_ms = 10000;
    }
    if (s->config.partial_bytes_max == 0) {
        s->config.partial_bytes_max = LIMIT_PARTIAL_NODE_BYTES;
    }
    rng_seed(&s->rng, config->rng_seed);
    list_init(&s->connections);
    list_init(&s->ready);
    list_init(&s->resumed);
    list_init(&s->dying);
    list_init(&s->graves);
    list_init(&s->unroutable);
    list_init(&s->dirty);
    list_init(&s->partials);
    return s;
}

static void bury(struct amqp09 *s)
{
    list_each(item, &s->dying)
    {
        channel_queue_close_now(list_entry(item, struct channel_queue, dying_link));
    }
    list_each(grave, &s->graves)
    {
        channel_free(list_entry(grave, struct channel, link));
    }
}

void amqp09_destroy(struct amqp09 *s)
{
    assert(list_is_empty(&s->connections));
    bury(s);
    buf_deinit(&s->scratch);
    buf_deinit(&s->scratch_more);
    free(s->keys);
    free(s->bcc);
    free(s);
}

// Takes the items there are now; those added meanwhile wait for the next turn.
static void take(struct list *to, struct list *from)
{
    list_init(to);
    list_splice(to, from);
}

void amqp09_turn_begin(struct amqp09 *s)
{
    bury(s);
    struct list now;
    struct list *item;
    take(&now, &s->ready);
    while ((item = list_pop(&now))) {
        channel_go_on(list_entry(item, struct channel, ready_link));
    }
    take(&now, &s->resumed);
    while ((item = list_pop(&now))) {
        connection_resume(list_entry(item, struct connection, resume_link));
    }
}

uint64_t amqp09_turn_end(struct amqp09 *s)
{
    struct list now;
    struct list *item;
    const bool has_waited = !list_is_empty(&s->unroutable);
    take(&now, &s->unroutable);
    while ((item = list_pop(&now))) {
        channel_publish_retry(list_entry(item, struct channel, unroutable_link));
    }
    while ((item = list_pop(&s->dirty))) {
        channel_confirms_flush(list_entry(item, struct channel, dirty_link));
    }
    if (!list_is_empty(&s->ready) || !list_is_empty(&s->resumed) || !list_is_empty(&s->dying) ||
        !list_is_empty(&s->graves)) {
        return 0;
    }
    if (list_is_empty(&s->unroutable)) {
        return has_waited ? 0 : UINT64_MAX;  // What was published then is sent in the next turn.
    }
    return amqp09_later(s, UNROUTABLE_RETRY_MS);
}

void amqp09_set_alarms(struct amqp09 *s, uint32_t alarms)
{
    s->alarms = alarms;
    list_each(item, &s->connections)
    {
        connection_set_blocked(list_entry(item, struct connection, link), alarms);
    }
}

void amqp09_make_name(struct amqp09 *s, const char *prefix, char *to)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    size_t n = strlen(prefix);
    assert(n + 23 <= 64);
    memcpy(to, prefix, n);
    uint64_t bits = 0;
    for (int i = 0; i < 22; i++) {
        bits = i % 10 == 0 ? rng_next(&s->rng) : bits >> 6;
        to[n++] = digits[bits & 63];
    }
    to[n] = 0;
}

void amqp09_partial_changed(struct amqp09 *s, struct connection *c, int64_t change)
{
    c->partial_bytes += (uint64_t)change;
    s->partial_bytes += (uint64_t)change;
    if (c->partial_bytes == 0) {
        list_remove(&c->partial_link);
        connection_set_pause(c, PAUSE_PARTIAL, false);
    } else if (list_is_empty(&c->partial_link)) {
        list_add_tail(&s->partials, &c->partial_link);
    }
    bool is_over = s->partial_bytes > s->config.partial_bytes_max;
    if (is_over && change > 0 && s->partials.next != &c->partial_link) {
        connection_set_pause(c, PAUSE_PARTIAL, true);
    } else if (change < 0) {
        // The oldest may always go on: it makes room for the others.
        bool is_first = true;
        list_each(item, &s->partials)
        {
            if (is_first || !is_over) {
                connection_set_pause(list_entry(item, struct connection, partial_link), PAUSE_PARTIAL, false);
            }
            is_first = false;
        }
    }
}

static void note_headers_exchange(void *ctx, const struct broker_exchange *x)
{
    *(bool *)ctx |= x->type == EXCHANGE_HEADERS;
}

bool amqp09_routes_by_headers(struct amqp09 *s, struct broker_vhost *v)
{
    uint64_t version = broker_version(s->config.broker);
    if (s->headers_vhost != v || s->headers_version != version) {
        s->headers_vhost = v;
        s->headers_version = version;
        s->has_headers_exchange = false;
        broker_exchange_each(v, note_headers_exchange, &s->has_headers_exchange);
    }
    return s->has_headers_exchange;
}

// ---- closing from outside -----------------------------------------------------------------------

static void force(struct connection *c, const char *reason)
{
    connection_fail(c, REPLY_CONNECTION_FORCED, 0, "%s", reason);
}

uint32_t amqp09_close_connections(struct amqp09 *s, uint64_t id, const char *reason)
{
    uint32_t n = 0;
    list_each(item, &s->connections)
    {
        struct connection *c = list_entry(item, struct connection, link);
        if (id == 0 || c->id == id) {
            force(c, reason);
            n++;
        }
    }
    return n;
}

uint32_t amqp09_close_user(struct amqp09 *s, struct span user, const char *reason)
{
    uint32_t n = 0;
    list_each(item, &s->connections)
    {
        struct connection *c = list_entry(item, struct connection, link);
        if (c->state >= CONNECTION_TUNING && span_equal(c->user_name, user)) {
            force(c, reason);
            n++;
        }
    }
    return n;
}

uint32_t amqp09_connections_count(const struct amqp09 *s)
{
    return s->connections_count;
}
