// SPDX-License-Identifier: Apache-2.0
// Lookups and listings over the projection: what sessions and administration read. Nothing here changes anything.
#include "node/broker/internal.h"

struct broker_vhost *broker_vhost_find(struct broker *b, struct span name)
{
    return map_get_bytes(&b->vhosts, name);
}

const struct broker_exchange *broker_exchange_find(struct broker_vhost *v, struct span name)
{
    struct exchange *x = vhost_exchange(v, name);
    return x ? &x->pub : NULL;
}

const struct broker_queue *broker_queue_find(struct broker_vhost *v, struct span name)
{
    struct queue *q = vhost_queue(v, name);
    return q ? &q->pub : NULL;
}

void broker_vhost_each(struct broker *b, void (*each)(void *ctx, struct broker_vhost *v, struct span name), void *ctx)
{
    uint32_t pos = 0;
    struct span name;
    for (struct broker_vhost *v; (v = map_next(&b->vhosts, &pos, NULL, &name));) {
        each(ctx, v, name);
    }
}

void broker_exchange_each(struct broker_vhost *v, void (*each)(void *ctx, const struct broker_exchange *x), void *ctx)
{
    each(ctx, &v->default_exchange->pub);
    uint32_t pos = 0;
    for (struct exchange *x; (x = map_next(&v->exchanges, &pos, NULL, NULL));) {
        each(ctx, &x->pub);
    }
}

void broker_queue_each(struct broker_vhost *v, void (*each)(void *ctx, const struct broker_queue *q), void *ctx)
{
    uint32_t pos = 0;
    for (struct queue *q; (q = map_next(&v->queues, &pos, NULL, NULL));) {
        each(ctx, &q->pub);
    }
}

void broker_binding_each(struct broker_vhost *v, void (*each)(void *ctx, const struct broker_binding *x), void *ctx)
{
    uint32_t pos = 0;
    for (struct queue *q; (q = map_next(&v->queues, &pos, NULL, NULL));) {
        struct broker_binding implicit = {.source = span_str(""),
                                          .destination = q->pub.name,
                                          .key = q->pub.name,
                                          .to_queue = true};
        each(ctx, &implicit);
    }
    pos = 0;
    for (struct exchange *x; (x = map_next(&v->exchanges, &pos, NULL, NULL));) {
        list_each(item, &x->bindings) {
            struct binding *b = list_entry(item, struct binding, in_source);
            struct broker_binding out = {.source = x->pub.name,
                                         .destination = b->destination,
                                         .key = b->key,
                                         .arguments = b->arguments,
                                         .to_queue = b->is_to_queue};
            each(ctx, &out);
        }
    }
}

void broker_user_each(struct broker *b, void (*each)(void *ctx, struct span name, bool is_administrator), void *ctx)
{
    uint32_t pos = 0;
    struct span name;
    for (struct user *u; (u = map_next(&b->users, &pos, NULL, &name));) {
        each(ctx, name, u->is_administrator);
    }
}

void broker_permission_each(struct broker_vhost *v,
                            void (*each)(void *ctx, struct span user, const char *const patterns[3]),
                            void *ctx)
{
    uint32_t pos = 0;
    struct span user;
    for (struct permission *p; (p = map_next(&v->permissions, &pos, NULL, &user));) {
        const char *patterns[3] = {p->patterns[0], p->patterns[1], p->patterns[2]};
        each(ctx, user, patterns);
    }
}

uint64_t broker_version(const struct broker *b)
{
    return b->version;
}

bool broker_has_unread(const struct broker *b)
{
    return b->has_unread;
}

bool broker_is_loaded(const struct broker *b)
{
    return b->is_loaded;
}
