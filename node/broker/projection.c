// SPDX-License-Identifier: Apache-2.0
// The broker's projection: what the metadata store tells in order becomes structs to route over.
//
// A change names a path; its shape says what it is about. Structs are made on the first put and freed on the deletion.
// A binding and its destination may arrive and go in either order within one command, so a binding holds pointers that
// are set when both are there and cleared when the destination goes. Queues: projection_queue.c.
#include "node/broker/internal.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "proto/broker.pb-c.h"
#include <stdlib.h>

struct exchange *vhost_exchange(struct broker_vhost *v, struct span name)
{
    return name.len == 0 ? v->default_exchange : map_get_bytes(&v->exchanges, name);
}

struct queue *vhost_queue(struct broker_vhost *v, struct span name)
{
    return map_get_bytes(&v->queues, name);
}

struct span copy_span(struct span s)
{
    return span_of(mem_strndup(s.ptr, s.len), s.len);
}

void free_span(struct span s)
{
    free((void *)(uintptr_t)s.ptr);
}

void binding_set_add(struct binding_set *s, struct binding *b)
{
    if (s->count == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 2;
        s->items = mem_realloc(s->items, s->cap * sizeof(struct binding *));
    }
    s->items[s->count++] = b;
}

bool binding_set_remove(struct binding_set *s, struct binding *b)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->items[i] == b) {
            s->items[i] = s->items[--s->count];
            break;
        }
    }
    return s->count == 0;
}

// ---- bindings ----------------------------------------------------------------------------------------------------

// Key of a binding in its source's by_leaf.
static void binding_id(struct buf *to, bool is_to_queue, struct span destination, struct span leaf)
{
    buf_u8(to, is_to_queue);
    buf_str16(to, destination);
    buf_span_bytes(to, leaf);
}

static void binding_resolve(struct binding *b)
{
    if (b->is_to_queue) {
        b->to_queue = vhost_queue(b->source->vhost, b->destination);
    } else {
        b->to_exchange = vhost_exchange(b->source->vhost, b->destination);
    }
    struct list *to = b->to_queue      ? &b->to_queue->incoming
                      : b->to_exchange ? &b->to_exchange->incoming
                                       : &b->source->vhost->waiting;
    list_remove(&b->in_destination);
    list_add_tail(to, &b->in_destination);
}

static void binding_index(struct binding *b)
{
    struct exchange *x = b->source;
    if (x->pub.type == EXCHANGE_DIRECT) {
        struct binding_set *set = map_get_bytes(&x->by_key, b->key);
        if (!set) {
            set = mem_zalloc(sizeof(*set));
            map_put_bytes(&x->by_key, b->key, set);
        }
        binding_set_add(set, b);
    } else if (x->pub.type == EXCHANGE_TOPIC) {
        if (!x->topic) {
            x->topic = topic_create();
        }
        topic_add(x->topic, b);
    }
}

static void binding_unindex(struct binding *b)
{
    struct exchange *x = b->source;
    if (x->pub.type == EXCHANGE_DIRECT) {
        struct binding_set *set = map_get_bytes(&x->by_key, b->key);
        if (set && binding_set_remove(set, b)) {
            map_remove_bytes(&x->by_key, b->key);
            free(set->items);
            free(set);
        }
    } else if (x->pub.type == EXCHANGE_TOPIC && x->topic) {
        topic_remove(x->topic, b);
    }
}

static void binding_free(struct binding *b)
{
    binding_unindex(b);
    list_remove(&b->in_source);
    list_remove(&b->in_destination);
    free_span(b->destination);
    free_span(b->key);
    free_span(b->arguments);
    free(b->leaf);
    free(b);
}

static void on_binding(struct broker_vhost *v, const struct meta_path *p, const struct meta_change *c)
{
    struct exchange *x = vhost_exchange(v, p->names[3]);
    if (!x) {
        return;  // The source went first, and took its bindings along.
    }
    bool is_to_queue = span_equal(p->names[5], span_str("queue"));
    struct buf id = {0};
    binding_id(&id, is_to_queue, p->names[6], p->names[7]);
    struct binding *old = map_get_bytes(&x->by_leaf, buf_span(&id));
    if (c->is_deleted) {
        if (old) {
            map_remove_bytes(&x->by_leaf, buf_span(&id));
            binding_free(old);
        }
    } else if (!old) {
        Warren__BindingRecord *r = warren__binding_record__unpack(NULL, c->payload.len, c->payload.ptr);
        if (r) {
            struct binding *b = mem_zalloc(sizeof(*b));
            b->source = x;
            b->is_to_queue = is_to_queue;
            b->leaf = mem_strndup(p->names[7].ptr, p->names[7].len);
            b->destination = copy_span(p->names[6]);
            b->key = copy_span(span_of(r->key.data, r->key.len));
            b->arguments = copy_span(span_of(r->arguments.data, r->arguments.len));
            list_init(&b->in_destination);
            list_add_tail(&x->bindings, &b->in_source);
            x->had_binding = true;
            map_put_bytes(&x->by_leaf, buf_span(&id), b);
            b->told = v->broker->generation;
            binding_index(b);
            binding_resolve(b);
            warren__binding_record__free_unpacked(r, NULL);
        }
    } else {
        old->told = v->broker->generation;
    }
    buf_deinit(&id);
}

// A destination came: bindings that waited for it find it now.
void resolve_waiting(struct broker_vhost *v, struct span name, bool is_queue)
{
    list_each(item, &v->waiting) {
        struct binding *b = list_entry(item, struct binding, in_destination);
        if (b->is_to_queue == is_queue && span_equal(b->destination, name)) {
            binding_resolve(b);
        }
    }
}

void forget_destination(struct list *incoming)
{
    for (struct list *item; (item = list_pop(incoming));) {
        struct binding *b = list_entry(item, struct binding, in_destination);
        b->to_queue = NULL;
        b->to_exchange = NULL;
        list_add_tail(&b->source->vhost->waiting, item);
    }
}

// ---- exchanges ---------------------------------------------------------------------------------------------------

static struct exchange *exchange_create(struct broker_vhost *v, struct span name, enum exchange_type type)
{
    struct exchange *x = mem_zalloc(sizeof(*x));
    x->vhost = v;
    x->pub.name = copy_span(name);
    x->pub.type = type;
    x->pub.is_durable = true;
    list_init(&x->bindings);
    list_init(&x->incoming);
    map_init_bytes(&x->by_leaf);
    map_init_bytes(&x->by_key);
    return x;
}

static void exchange_free(struct exchange *x)
{
    for (struct list *item; (item = x->bindings.next) != &x->bindings;) {
        binding_free(list_entry(item, struct binding, in_source));
    }
    forget_destination(&x->incoming);
    map_deinit(&x->by_leaf);
    map_deinit(&x->by_key);
    topic_destroy(x->topic);
    free_span(x->pub.name);
    free_span(x->pub.arguments);
    free(x);
}

static void on_exchange(struct broker_vhost *v, struct span name, const struct meta_change *c)
{
    struct exchange *x = vhost_exchange(v, name);
    if (c->is_deleted) {
        if (x) {
            map_remove_bytes(&v->exchanges, name);
            exchange_free(x);
        }
        return;
    }
    Warren__ExchangeRecord *r = warren__exchange_record__unpack(NULL, c->payload.len, c->payload.ptr);
    enum exchange_type type;
    bool is_known_type = r && exchange_type_parse(span_str(r->type), &type);
    if (is_known_type && x &&
        (x->pub.type != type || x->pub.is_durable != r->durable || x->pub.is_auto_delete != r->auto_delete ||
         x->pub.is_internal != r->internal ||
         !span_equal(x->pub.arguments, span_of(r->arguments.data, r->arguments.len)))) {
        map_remove_bytes(&v->exchanges, name);  // Made anew while this node was behind: its bindings are told after it.
        exchange_free(x);
        x = NULL;
    }
    if (x) {
        x->told = v->broker->generation;
    }
    if (is_known_type && !x) {
        x = exchange_create(v, name, type);
        x->pub.is_durable = r->durable;
        x->pub.is_auto_delete = r->auto_delete;
        x->pub.is_internal = r->internal;
        x->pub.arguments = copy_span(span_of(r->arguments.data, r->arguments.len));
        struct span alternate;
        if (table_find_string(x->pub.arguments, "alternate-exchange", &alternate)) {
            x->alternate = alternate;
        }
        x->told = v->broker->generation;
        map_put_bytes(&v->exchanges, name, x);
        resolve_waiting(v, name, false);
    }
    if (r) {
        warren__exchange_record__free_unpacked(r, NULL);
    }
}

// ---- vhosts, users, permissions, nodes -----------------------------------------------------------------------------

static void permission_free(struct permission *p)
{
    for (int i = 0; i < 3; i++) {
        free(p->patterns[i]);
        pcre2_code_free(p->code[i]);
    }
    free(p);
}

static void on_permission(struct broker_vhost *v, struct span user, const struct meta_change *c)
{
    struct permission *old = map_remove_bytes(&v->permissions, user);
    if (old) {
        permission_free(old);
    }
    if (c->is_deleted) {
        return;
    }
    Warren__PermissionRecord *r = warren__permission_record__unpack(NULL, c->payload.len, c->payload.ptr);
    if (r) {
        struct permission *p = mem_zalloc(sizeof(*p));
        p->patterns[0] = mem_strndup(r->configure, strlen(r->configure));
        p->patterns[1] = mem_strndup(r->write, strlen(r->write));
        p->patterns[2] = mem_strndup(r->read, strlen(r->read));
        p->told = v->broker->generation;
        map_put_bytes(&v->permissions, user, p);
        warren__permission_record__free_unpacked(r, NULL);
    }
}

static void vhost_free(struct broker_vhost *v)
{
    uint32_t pos = 0;
    for (struct queue *q; (q = map_next(&v->queues, &pos, NULL, NULL));) {
        queue_remove(v, q);
    }
    pos = 0;
    for (struct exchange *x; (x = map_next(&v->exchanges, &pos, NULL, NULL));) {
        exchange_free(x);
    }
    pos = 0;
    for (struct permission *p; (p = map_next(&v->permissions, &pos, NULL, NULL));) {
        permission_free(p);
    }
    exchange_free(v->default_exchange);
    map_deinit(&v->queues);
    map_deinit(&v->exchanges);
    map_deinit(&v->permissions);
    free(v->name);
    free(v->default_queue_type);
    free(v);
}

static void on_vhost(struct broker *b, struct span name, const struct meta_change *c)
{
    struct broker_vhost *v = map_get_bytes(&b->vhosts, name);
    if (c->is_deleted) {
        if (v) {
            map_remove_bytes(&b->vhosts, name);
            vhost_free(v);
        }
        return;
    }
    if (!v) {
        v = mem_zalloc(sizeof(*v));
        v->broker = b;
        v->name = mem_strndup(name.ptr, name.len);
        map_init_bytes(&v->exchanges);
        map_init_borrowed(&v->queues);
        map_init_bytes(&v->permissions);
        list_init(&v->waiting);
        v->default_exchange = exchange_create(v, span_str(""), EXCHANGE_DIRECT);
        map_put_bytes(&b->vhosts, name, v);
    }
    v->told = b->generation;
    Warren__VhostRecord *r = warren__vhost_record__unpack(NULL, c->payload.len, c->payload.ptr);
    free(v->default_queue_type);
    v->default_queue_type = NULL;
    if (r && r->default_queue_type[0] != '\0') {
        v->default_queue_type = mem_strndup(r->default_queue_type, strlen(r->default_queue_type));
    }
    if (r) {
        warren__vhost_record__free_unpacked(r, NULL);
    }
}

static void user_free(struct user *u)
{
    free(u->hash);
    free(u);
}

static void on_user(struct broker *b, struct span name, const struct meta_change *c)
{
    struct user *old = map_remove_bytes(&b->users, name);
    if (old) {
        user_free(old);
    }
    if (c->is_deleted) {
        return;
    }
    Warren__UserRecord *r = warren__user_record__unpack(NULL, c->payload.len, c->payload.ptr);
    if (r) {
        struct user *u = mem_zalloc(sizeof(*u));
        u->hash = (uint8_t *)mem_strndup(r->password_hash.data, r->password_hash.len);
        u->hash_len = r->password_hash.len;
        for (size_t i = 0; i < r->n_tags; i++) {
            u->is_impersonator = u->is_impersonator || strcmp(r->tags[i], "impersonator") == 0;
            u->is_administrator = u->is_administrator || strcmp(r->tags[i], "administrator") == 0;
        }
        u->told = b->generation;
        map_put_bytes(&b->users, name, u);
        warren__user_record__free_unpacked(r, NULL);
    }
}

// ---- the subscription --------------------------------------------------------------------------------------------

static void on_change(void *ctx, const struct meta_change *c)
{
    struct broker *b = ctx;
    const struct meta_path *p = c->path;
    b->version++;
    if (p->depth == 2 && span_equal(p->names[0], span_str("users"))) {
        on_user(b, p->names[1], c);
    } else if (p->depth == 2 && span_equal(p->names[0], span_str("nodes"))) {
        nodes_change(b, p->names[1], c);
        membership_nodes_changed(b);
    } else if (p->depth == 2 && span_equal(p->names[0], span_str("node_maintenance"))) {
        nodes_maintenance_change(b, p->names[1], c);
    } else if (p->depth >= 2 && span_equal(p->names[0], span_str("vhosts"))) {
        struct broker_vhost *v = map_get_bytes(&b->vhosts, p->names[1]);
        if (p->depth == 2) {
            on_vhost(b, p->names[1], c);
        } else if (!v || p->depth < 4) {
            return;
        } else if (p->depth == 4 && span_equal(p->names[2], span_str("queues"))) {
            queue_told(v, p->names[3], c);
        } else if (p->depth == 4 && span_equal(p->names[2], span_str("exchanges"))) {
            on_exchange(v, p->names[3], c);
        } else if (p->depth == 8 && span_equal(p->names[2], span_str("exchanges"))) {
            on_binding(v, p, c);
        } else if (p->depth == 4 && span_equal(p->names[2], span_str("user_permissions"))) {
            on_permission(v, p->names[3], c);
        }
    }
}

// Drops what a reset did not tell again.
static void sweep_vhost(struct broker_vhost *v)
{
    uint64_t now = v->broker->generation;
    uint32_t pos = 0;
    struct span name;
    for (struct exchange *x; (x = map_next(&v->exchanges, &pos, NULL, &name));) {
        if (x->told != now) {
            map_remove_bytes(&v->exchanges, x->pub.name);
            exchange_free(x);
            continue;
        }
        uint32_t at = 0;
        struct span id;
        for (struct binding *b; (b = map_next(&x->by_leaf, &at, NULL, &id));) {
            if (b->told != now) {
                map_remove_bytes(&x->by_leaf, id);
                binding_free(b);
            }
        }
    }
    pos = 0;
    for (struct queue *q; (q = map_next(&v->queues, &pos, NULL, NULL));) {
        if (q->told != (uint32_t)now) {
            queue_remove(v, q);
        }
    }
    pos = 0;
    for (struct permission *p; (p = map_next(&v->permissions, &pos, NULL, &name));) {
        if (p->told != now) {
            map_remove_bytes(&v->permissions, name);
            permission_free(p);
        }
    }
}

static void sweep(struct broker *b)
{
    uint32_t pos = 0;
    struct span name;
    for (struct broker_vhost *v; (v = map_next(&b->vhosts, &pos, NULL, &name));) {
        if (v->told == b->generation) {
            sweep_vhost(v);
        } else {
            map_remove_bytes(&b->vhosts, name);
            vhost_free(v);
        }
    }
    pos = 0;
    for (struct user *u; (u = map_next(&b->users, &pos, NULL, &name));) {
        if (u->told != b->generation) {
            map_remove_bytes(&b->users, name);
            user_free(u);
        }
    }
    nodes_sweep(b);
}

static void on_loaded(void *ctx, uint64_t index)
{
    struct broker *b = ctx;
    (void)index;
    if (b->generation > 0) {
        sweep(b);
    }
    b->is_loaded = true;
    b->is_resetting = false;
    b->version++;
    membership_nodes_changed(b);
}

// A snapshot replaced the tree and everything is told again. What exists stays in use meanwhile, so that queues go on
// undisturbed; what has not been told again by `loaded` goes then.
static void on_reset(void *ctx)
{
    struct broker *b = ctx;
    b->is_resetting = true;
    b->generation++;
    b->version++;
}

const struct meta_subscriber *broker_subscriber(struct broker *b)
{
    return &b->subscriber;
}

struct broker *broker_create(const struct broker_config *config)
{
    struct broker *b = mem_zalloc(sizeof(*b));
    b->config = *config;
    b->subscriber = (struct meta_subscriber){.change = on_change, .reset = on_reset, .loaded = on_loaded, .ctx = b};
    map_init_bytes(&b->vhosts);
    map_init_bytes(&b->users);
    nodes_init(b);
    map_init_u64(&b->replicas_by_node);
    map_init_u64(&b->leads_by_node);
    b->match = pcre2_match_data_create(1, NULL);
    membership_init(b);
    return b;
}

void broker_destroy(struct broker *b)
{
    uint32_t pos = 0;
    b->is_closing = true;  // The node stops; nothing is deleted.
    for (struct broker_vhost *v; (v = map_next(&b->vhosts, &pos, NULL, NULL));) {
        vhost_free(v);
    }
    pos = 0;
    for (struct user *u; (u = map_next(&b->users, &pos, NULL, NULL));) {
        user_free(u);
    }
    nodes_deinit(b);
    membership_deinit(b);
    map_deinit(&b->vhosts);
    map_deinit(&b->users);
    map_deinit(&b->replicas_by_node);
    map_deinit(&b->leads_by_node);
    pcre2_match_data_free(b->match);
    free(b->route);
    free(b);
}
