// SPDX-License-Identifier: Apache-2.0
// Routing (data-plane §1.10, §2): from an exchange and keys to the queues, each once, over exchange-to-exchange
// bindings and alternate exchanges, cycle safe.
//
// A route has a number; exchanges and queues carry the number of the last route that met them, so the visited set costs
// one comparison. Exchanges still to be looked at wait in a worklist, not on the stack.
#include "node/broker/internal.h"
#include "node/base/mem.h"
#include <stdlib.h>

struct walk {
    struct broker *broker;
    struct exchange **todo;
    uint32_t todo_count, todo_cap;
    struct exchange *inline_todo[16];
    bool has_matched;  // The exchange being looked at had a binding that fits.
};

static void add_queue(struct broker *b, struct queue *q)
{
    if (q->visited == b->route_number) {
        return;
    }
    q->visited = b->route_number;
    if (b->route_count == b->route_cap) {
        b->route_cap = b->route_cap ? b->route_cap * 2 : BROKER_ROUTE_INLINE;
        b->route = mem_realloc(b->route, b->route_cap * sizeof(*b->route));
    }
    b->route[b->route_count++] = &q->pub;
}

static void add_exchange(struct walk *w, struct exchange *x)
{
    if (x->visited == w->broker->route_number) {
        return;
    }
    x->visited = w->broker->route_number;
    if (w->todo_count == w->todo_cap) {
        uint32_t cap = w->todo_cap * 2;
        struct exchange **bigger = mem_alloc(cap * sizeof(*bigger));
        memcpy(bigger, w->todo, w->todo_count * sizeof(*bigger));
        if (w->todo != w->inline_todo) {
            free(w->todo);
        }
        w->todo = bigger;
        w->todo_cap = cap;
    }
    w->todo[w->todo_count++] = x;
}

static void follow(void *ctx, struct binding *b)
{
    struct walk *w = ctx;
    w->has_matched = true;
    if (b->to_queue) {
        add_queue(w->broker, b->to_queue);
    } else if (b->to_exchange) {
        add_exchange(w, b->to_exchange);
    }
}

static void route_default(struct walk *w, struct exchange *x, const struct span *keys, uint32_t keys_count)
{
    for (uint32_t i = 0; i < keys_count; i++) {
        struct queue *q = vhost_queue(x->vhost, keys[i]);
        if (q) {
            w->has_matched = true;
            add_queue(w->broker, q);
        }
    }
}

static void route_exchange(struct walk *w, struct exchange *x, const struct span *keys, uint32_t keys_count,
                           struct span headers)
{
    w->has_matched = false;
    switch (x->pub.type) {
    case EXCHANGE_DIRECT:
        if (x->pub.name.len == 0) {
            route_default(w, x, keys, keys_count);
            break;
        }
        for (uint32_t i = 0; i < keys_count; i++) {
            struct binding_set *set = map_get_bytes(&x->by_key, keys[i]);
            for (uint32_t k = 0; set && k < set->count; k++) {
                follow(w, set->items[k]);
            }
        }
        break;
    case EXCHANGE_FANOUT:
        list_each(item, &x->bindings) {
            follow(w, list_entry(item, struct binding, in_source));
        }
        break;
    case EXCHANGE_TOPIC:
        for (uint32_t i = 0; i < keys_count && x->topic; i++) {
            topic_match(x->topic, keys[i], follow, w);
        }
        break;
    case EXCHANGE_HEADERS:
        list_each(item, &x->bindings) {
            struct binding *b = list_entry(item, struct binding, in_source);
            if (headers_match(b->arguments, headers)) {
                follow(w, b);
            }
        }
        break;
    }
    if (!w->has_matched && x->alternate.ptr) {
        struct exchange *alternate = vhost_exchange(x->vhost, x->alternate);
        if (alternate) {
            add_exchange(w, alternate);
        }
    }
}

void broker_route(struct broker *b, struct broker_vhost *v, const struct broker_exchange *x, const struct span *keys,
                  uint32_t keys_count, struct span headers, struct broker_route *out)
{
    (void)v;
    struct walk w = {.broker = b, .todo_cap = 16};
    w.todo = w.inline_todo;
    b->route_number++;
    b->route_count = 0;
    add_exchange(&w, container_of(x, struct exchange, pub));
    while (w.todo_count > 0) {
        struct exchange *next = w.todo[--w.todo_count];
        route_exchange(&w, next, keys, keys_count, headers);
    }
    if (w.todo != w.inline_todo) {
        free(w.todo);
    }
    *out = (struct broker_route){.count = b->route_count, .queues = b->route};
}
