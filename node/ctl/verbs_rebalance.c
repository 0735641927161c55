// SPDX-License-Identifier: Apache-2.0
// rebalance: leaders spread evenly over the nodes that have replicas (operator-plane §5.7).
//
// Every node tells which groups it leads, in pages. The plan is made on these and the records: while one node leads at
// least two queues more than another member of a queue it leads, that queue is to move there. The transfers
// go out a bounded number at a time; each is Raft's own, which refuses a target that is not level. Then the
// nodes are asked again; what did not move is planned anew, a few rounds at most (law 4). The metadata
// group's leader runs it, so there is one run at a time.
#include "node/base/mem.h"
#include "node/ctl/internal.h"
#include <stdio.h>
#include <stdlib.h>

enum { PAGE = 20000, NODE_TIMEOUT_MS = 5000, MOVES_AT_ONCE = 64, ROUNDS = 4, SETTLE_MS = 300, PASSES = 64 };

// ---- what a node leads -------------------------------------------------------------------------------------------

struct leaders {
    struct ctl_request *request;
    struct ctl *ctl;
    uint32_t worker;
    uint64_t after;
    uint64_t *groups;
    uint32_t count, cap;
};

static int by_id(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void leaders_answer(void *arg)
{
    struct leaders *l = arg;
    if (l->count > 0) {
        qsort(l->groups, l->count, sizeof(*l->groups), by_id);
    }
    json_t *groups = json_array();
    for (uint32_t i = 0; i < l->count && i < PAGE; i++) {
        json_array_append_new(groups, json_integer((json_int_t)l->groups[i]));
    }
    ctl_object(l->request, json_pack("{s:o, s:b}", "groups", groups, "more", l->count > PAGE));
    free(l->groups);
    free(l);
}

static void add_led(void *ctx, void *owner)
{
    struct leaders *l = ctx;
    const struct broker_queue *q = owner;
    if (q->target->group <= l->after) {
        return;
    }
    if (l->count == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 256;
        l->groups = mem_realloc(l->groups, l->cap * sizeof(*l->groups));
    }
    l->groups[l->count++] = q->target->group;
}

// From worker to worker.
static void gather(void *arg)
{
    struct leaders *l = arg;
    const struct ctl_config *c = &l->ctl->config;
    queue_leading_each(c->queues(c->ctx, l->worker), UINT32_MAX, add_led, l);
    l->worker++;
    c->post(c->ctx, l->worker < c->workers ? l->worker : 0, l->worker < c->workers ? gather : leaders_answer, l);
}

void verb_local_leaders(struct ctl_request *r)
{
    struct leaders *l = mem_zalloc(sizeof(*l));
    *l = (struct leaders){.request = r, .ctl = r->ctl, .after = strtoull(request_arg(r, 0), NULL, 10)};
    r->ctl->config.post(r->ctl->config.ctx, 0, gather, l);
}

// ---- the run -----------------------------------------------------------------------------------------------------

struct item {
    struct queue_target target;
    uint32_t leader, to;  // Nodes; `to` 0: stays.
};

struct node_count {
    uint32_t node_id, leads;
    bool is_usable;  // Up and not in maintenance.
};

struct rebalance {
    struct ctl_request *request;
    struct ctl *ctl;
    struct item *items;
    uint32_t items_count;
    struct map by_group;
    struct node_count *nodes;
    uint32_t nodes_count;
    uint32_t waiting;  // Nodes being asked.
    uint32_t next, in_flight, moved, round;
    bool is_pumping;
    struct ctl_timer timer;
};

struct page {
    struct rebalance *all;
    uint32_t node_id;
    uint64_t after;
};

static void ask_leaders(struct rebalance *b);
static void pump(struct rebalance *b);

static struct node_count *node_of(struct rebalance *b, uint32_t node_id)
{
    for (uint32_t i = 0; i < b->nodes_count; i++) {
        if (b->nodes[i].node_id == node_id) {
            return &b->nodes[i];
        }
    }
    return NULL;
}

static void end(struct rebalance *b)
{
    json_t *rows = json_array(), *value = json_array();
    for (uint32_t i = 0; i < b->nodes_count; i++) {
        if (b->nodes[i].leads > 0) {
            const char *name = node_name_of(b->ctl, b->nodes[i].node_id);
            json_array_append_new(rows, json_pack("[s, i]", name, (int)b->nodes[i].leads));
            json_array_append_new(value, json_pack("{s:s, s:i}", "Node name", name, "Number of quorum queues",
                                                   (int)b->nodes[i].leads));
        }
    }
    b->ctl->is_rebalancing = false;
    char banner[100];
    snprintf(banner, sizeof(banner), "Re-balancing leaders of %s queues...", request_arg(b->request, 0));
    json_t *columns = json_pack("[s, s]", "Node name", "Number of quorum queues");
    ctl_answer(b->request, json_pack("{s:i, s:s, s:o, s:o, s:{s:s, s:o, s:s}}", "exit", EXIT_OK, "banner",
                                     banner, "columns", columns, "rows", rows, "object", "node",
                                     b->ctl->config.node_name, "value", value, "result", "ok"));
    map_deinit(&b->by_group);
    free(b->items);
    free(b->nodes);
    free(b);
}

// The member that a queue should be led from instead; 0: none.
static uint32_t better(struct rebalance *b, const struct item *it)
{
    const struct node_count *from = node_of(b, it->leader);
    struct node_count *best = NULL;
    for (uint32_t i = 0; i < it->target.members_count; i++) {
        const struct member *m = &it->target.members[i];
        struct node_count *n = node_of(b, m->node_id);
        if (m->is_voter && n && n->is_usable && (!best || n->leads < best->leads)) {
            best = n;
        }
    }
    return from && best && best->leads + 1 < from->leads ? best->node_id : 0;
}

// Every item's place as it should be: `to` is where it moves.
static uint32_t plan(struct rebalance *b)
{
    uint32_t *start = mem_alloc((b->items_count + 1) * sizeof(*start));
    for (uint32_t i = 0; i < b->items_count; i++) {
        start[i] = b->items[i].leader;
        b->items[i].to = 0;
    }
    bool is_changed = true;
    for (int pass = 0; is_changed && pass < PASSES; pass++) {
        is_changed = false;
        for (uint32_t i = 0; i < b->items_count; i++) {
            struct item *it = &b->items[i];
            const uint32_t to = it->leader ? better(b, it) : 0;
            if (to != 0) {
                node_of(b, it->leader)->leads--;
                node_of(b, to)->leads++;
                it->leader = to;
                is_changed = true;
            }
        }
    }
    uint32_t moves = 0;
    for (uint32_t i = 0; i < b->items_count; i++) {
        struct item *it = &b->items[i];
        it->to = it->leader != start[i] ? it->leader : 0;
        it->leader = start[i];
        moves += it->to != 0;
    }
    free(start);
    return moves;
}

static void settled(void *arg)
{
    ask_leaders(arg);
}

static void on_moved(void *ctx, json_t *answer)
{
    struct rebalance *b = ctx;
    json_decref(answer);  // What did not move is seen when the nodes are asked again.
    b->in_flight--;
    pump(b);
}

static void pump(struct rebalance *b)
{
    if (b->is_pumping) {
        return;
    }
    b->is_pumping = true;
    struct ctl *c = b->ctl;
    while (b->next < b->items_count && b->in_flight < MOVES_AT_ONCE) {
        const struct item *it = &b->items[b->next++];
        if (it->to == 0) {
            continue;
        }
        char group[32], to[16];
        snprintf(group, sizeof(group), "%llu", (unsigned long long)it->target.group);
        snprintf(to, sizeof(to), "%u", it->to);
        json_t *request = json_pack("{s:s, s:[s, s], s:{}}", "verb", "local_transfer", "args", group, to, "options");
        b->in_flight++;
        if (it->leader == c->config.node_id) {
            ctl_run(c, request, on_moved, b);
            json_decref(request);
        } else {
            ctl_ask(c, it->leader, request, NODE_TIMEOUT_MS, on_moved, b);
        }
    }
    b->is_pumping = false;
    if (b->next == b->items_count && b->in_flight == 0) {
        ctl_after(c, SETTLE_MS, settled, b, &b->timer);
    }
}

static void all_told(struct rebalance *b)
{
    for (uint32_t i = 0; i < b->items_count; i++) {
        struct node_count *n = node_of(b, b->items[i].leader);
        if (n) {
            n->leads++;
        }
    }
    struct node_count *counts = mem_alloc((b->nodes_count + 1) * sizeof(*counts));
    memcpy(counts, b->nodes, b->nodes_count * sizeof(*counts));
    const bool is_over = b->round++ >= ROUNDS || plan(b) == 0;
    memcpy(b->nodes, counts, b->nodes_count * sizeof(*counts));  // As they are, not as they should be.
    free(counts);
    if (is_over) {
        end(b);
        return;
    }
    b->next = 0;
    pump(b);
}

static void ask_page(struct rebalance *b, uint32_t node_id, uint64_t after);

static void on_page(void *ctx, json_t *answer)
{
    struct page *p = ctx;
    struct rebalance *b = p->all;
    json_t *o = json_object_get(answer, "object"), *groups = json_object_get(o, "groups");
    uint64_t last = p->after;
    for (size_t i = 0; i < json_array_size(groups); i++) {
        last = (uint64_t)json_integer_value(json_array_get(groups, i));
        const uintptr_t at = (uintptr_t)map_get(&b->by_group, last);
        if (at > 0) {
            b->items[at - 1].leader = p->node_id;
        }
    }
    if (json_is_true(json_object_get(o, "more"))) {
        ask_page(b, p->node_id, last);
    }
    json_decref(answer);
    free(p);
    if (--b->waiting == 0) {
        all_told(b);
    }
}

static void ask_page(struct rebalance *b, uint32_t node_id, uint64_t after)
{
    struct page *p = mem_zalloc(sizeof(*p));
    *p = (struct page){b, node_id, after};
    char text[32];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)after);
    json_t *request = json_pack("{s:s, s:[s], s:{}}", "verb", "local_leaders", "args", text, "options");
    b->waiting++;
    if (node_id == b->ctl->config.node_id) {
        ctl_run(b->ctl, request, on_page, p);
        json_decref(request);
    } else {
        ctl_ask(b->ctl, node_id, request, NODE_TIMEOUT_MS, on_page, p);
    }
}

static void ask_leaders(struct rebalance *b)
{
    for (uint32_t i = 0; i < b->items_count; i++) {
        b->items[i].leader = 0;
    }
    for (uint32_t i = 0; i < b->nodes_count; i++) {
        b->nodes[i].leads = 0;
    }
    b->waiting = 1;
    for (uint32_t i = 0; i < b->nodes_count; i++) {
        ask_page(b, b->nodes[i].node_id, 0);
    }
    if (--b->waiting == 0) {
        all_told(b);
    }
}

static void add_item(void *ctx, struct span vhost, const struct broker_queue *q)
{
    (void)vhost;
    struct rebalance *b = ctx;
    if ((b->items_count & (b->items_count - 1)) == 0) {
        b->items = mem_realloc(b->items, (b->items_count ? b->items_count * 2 : 1) * sizeof(*b->items));
    }
    b->items[b->items_count++] = (struct item){0};
    queue_target_copy(&b->items[b->items_count - 1].target, q->target);
    map_put(&b->by_group, q->target->group, (void *)(uintptr_t)b->items_count);
}

static void add_node(void *ctx, const struct broker_node *n)
{
    struct rebalance *b = ctx;
    const bool is_up = host_node_is_alive(b->ctl->config.host, n->node_id);
    if (is_up) {
        b->nodes = mem_realloc(b->nodes, (b->nodes_count + 1) * sizeof(*b->nodes));
        b->nodes[b->nodes_count++] = (struct node_count){.node_id = n->node_id, .is_usable = !n->is_draining};
    }
}

static void start(struct ctl_request *r)
{
    struct ctl *c = r->ctl;
    if (c->is_rebalancing) {
        ctl_error(r, EXIT_UNAVAILABLE, "rebalance_in_progress");
        return;
    }
    struct rebalance *b = mem_zalloc(sizeof(*b));
    b->request = r;
    b->ctl = c;
    map_init_u64(&b->by_group);
    const bool is_quorum = strcmp(request_arg(r, 0), "all") == 0 || strcmp(request_arg(r, 0), "quorum") == 0;
    if (is_quorum && !request_queues(r, add_item, b)) {
        map_deinit(&b->by_group);
        free(b->items);
        free(b);
        return;
    }
    c->is_rebalancing = true;
    broker_node_each(c->broker, add_node, b);
    ask_leaders(b);
}

static void on_forwarded(void *ctx, json_t *answer)
{
    ctl_answer(ctx, answer);
}

void verb_rebalance(struct ctl_request *r)
{
    struct ctl *c = r->ctl;
    const char *type = request_arg(r, 0);
    if (strcmp(type, "all") != 0 && strcmp(type, "quorum") != 0 && strcmp(type, "stream") != 0) {
        ctl_error(r, EXIT_UNAVAILABLE, "type %s is not supported. Try one of all, quorum, stream.", type);
        return;
    }
    struct consensus_status s;
    group_status(metastore_group(c->metastore), &s);
    const bool is_forwarded = strcmp(request_option(r, "forwarded", "false"), "true") == 0;
    if (s.leader_node == 0) {
        ctl_error(r, EXIT_TEMPFAIL, "the metadata group has no leader: too few nodes are up");
    } else if (s.leader_node == c->config.node_id || is_forwarded) {
        start(r);
    } else {
        json_t *request = json_deep_copy(r->request);
        json_object_del(request, "node");
        json_object_set_new(json_object_get(request, "options"), "forwarded", json_string("true"));
        ctl_ask(c, s.leader_node, request, 120000, on_forwarded, r);
    }
}
