// SPDX-License-Identifier: Apache-2.0
// From (exchange, routing key) to sessions, remembered.
//
// A remembered route also means: the user may write to the exchange, and it is not internal. All of that
// hangs on the projection's version, so one comparison tells whether it still holds. Routes that may depend
// on headers (any headers exchange in the vhost, CC or BCC) are computed each time.
#include "node/amqp09/reply.h"
#include "node/amqp09/service.h"
#include <stdlib.h>

static void route_clear(struct route *r)
{
    free(r->queues);
    *r = (struct route){0};
}

void channel_routes_free(struct channel *ch)
{
    for (uint32_t i = 0; ch->routes && i <= ch->routes_cap; i++) {
        route_clear(&ch->routes[i]);
    }
    free(ch->routes);
    ch->routes = NULL;
    ch->routes_cap = 0;
}

static void routes_resize(struct channel *ch, uint32_t cap)
{
    channel_routes_free(ch);
    ch->routes = mem_zalloc((cap + 1) * sizeof(*ch->routes));
    ch->routes_cap = cap;
}

static bool is_valid(const struct channel *ch, const struct route *r, uint64_t version)
{
    return r->generation == ch->routes_generation && r->version == version;
}

static bool is_of(const struct route *r, uint64_t hash, struct span exchange, struct span key)
{
    return r->hash == hash && r->exchange_len == exchange.len && r->key_len == key.len &&
           (exchange.len == 0 || memcmp(r->key, exchange.ptr, exchange.len) == 0) &&
           (key.len == 0 || memcmp(r->key + exchange.len, key.ptr, key.len) == 0);
}

enum route_result channel_route_check(struct channel *ch, struct span exchange)
{
    struct connection *c = ch->connection;
    const uint32_t method = AMQP_BASIC_PUBLISH_ID;
    struct span shown = exchange.len > 0 ? exchange : span_str("amq.default");
    if (!channel_require(ch, ACCESS_WRITE, "exchange", shown, method)) {
        return ROUTE_FAILED;
    }
    const struct broker_exchange *x = broker_exchange_find(connection_vhost(c), exchange);
    if (!x) {
        return ROUTE_NO_EXCHANGE;
    }
    if (x->is_internal) {
        channel_fail(ch, REPLY_ACCESS_REFUSED, method,
                     "cannot publish to internal exchange '%.*s' in vhost '%.*s'", (int)exchange.len,
                     (const char *)exchange.ptr, (int)c->vhost_name.len, (const char *)c->vhost_name.ptr);
        return ROUTE_FAILED;
    }
    return ROUTE_OK;
}

static void compute(struct channel *ch, const struct route_request *r, struct route *to)
{
    struct amqp09 *s = channel_service(ch);
    struct broker_vhost *v = connection_vhost(ch->connection);
    struct broker_route found = {0};
    broker_route(s->config.broker, v, broker_exchange_find(v, r->exchange), r->keys, r->keys_count,
                 r->headers, &found);
    if (found.count > to->queues_cap) {
        to->queues_cap = found.count;
        to->queues = mem_realloc(to->queues, found.count * sizeof(*to->queues));
    }
    for (uint32_t i = 0; i < found.count; i++) {
        to->queues[i] = channel_queue_open(ch, found.queues[i]);
    }
    to->queues_count = found.count;
}

static void remember(const struct channel *ch, struct route *to, uint64_t hash, uint64_t version,
                     struct span exchange, struct span key)
{
    to->hash = hash;
    to->version = version;
    to->generation = ch->routes_generation;
    to->exchange_len = (uint16_t)exchange.len;
    to->key_len = (uint16_t)key.len;
    if (exchange.len > 0) {
        memcpy(to->key, exchange.ptr, exchange.len);
    }
    if (key.len > 0) {
        memcpy(to->key + exchange.len, key.ptr, key.len);
    }
}

enum route_result channel_route(struct channel *ch, const struct route_request *r,
                                struct channel_queue ***queues, uint32_t *count)
{
    assert(r->keys_count > 0);
    struct amqp09 *s = channel_service(ch);
    uint64_t version = broker_version(s->config.broker);
    struct span key = r->keys[0];
    bool can_remember = r->keys_count == 1 && r->exchange.len + key.len <= CHANNEL_ROUTE_KEY_BYTES;
    uint64_t hash = 0;
    if (!ch->routes) {
        routes_resize(ch, CHANNEL_ROUTES_LEAST);
    }
    if (can_remember && r->headers.len > 0) {
        struct broker_vhost *v = connection_vhost(ch->connection);
        can_remember = v && !amqp09_routes_by_headers(s, v);
    }
    struct route *route = &ch->routes[ch->routes_cap];
    if (can_remember) {
        hash = hash_bytes(r->exchange) * 31 + hash_bytes(key);
        route = &ch->routes[hash & (ch->routes_cap - 1)];
        if (is_valid(ch, route, version)) {
            if (is_of(route, hash, r->exchange, key)) {
                *queues = route->queues;
                *count = route->queues_count;
                return ROUTE_OK;
            }
            if (ch->routes_cap < CHANNEL_ROUTES_MOST) {
                routes_resize(ch, ch->routes_cap * 2);
                route = &ch->routes[hash & (ch->routes_cap - 1)];
            }
        }
    }
    enum route_result checked = channel_route_check(ch, r->exchange);
    if (checked != ROUTE_OK) {
        return checked;
    }
    channel_queues_trim(ch);
    route->generation = 0;
    compute(ch, r, route);
    if (can_remember) {
        remember(ch, route, hash, version, r->exchange, key);
    }
    *queues = route->queues;
    *count = route->queues_count;
    return ROUTE_OK;
}
