// SPDX-License-Identifier: Apache-2.0
// One worker's queue sessions and replicas, held together: turns, frames, nodes, clocks (queue.h).
//
// A turn: links look for leaders, replicas and sessions that asked for it do their proposals and sends, clocks are
// looked at, lanes are flushed. Replicas and sessions take turns at going first, so that neither the publishes held for
// other nodes nor those of this worker starve the others of a full group. What is still in the lists after
// that waits for room and is polled. Applies happen in host_turn; what they caused leaves in the next turn,
// all at once, which queue_service_next asks for.
#include "node/base/log.h"
#include "node/queue/queue_parts.h"
#include <stdlib.h>

enum { TURN_ROUNDS = 3 };

uint64_t queue_service_now(const struct queue_service *q)
{
    return host_now(q->config.host);
}

void queue_service_arm_check(struct queue_service *q)
{
    if (q->check_at == UINT64_MAX) {
        q->check_at = queue_service_now(q) + QUEUE_CHECK_NS;
    }
}

struct queue_node *queue_service_node(struct queue_service *q, uint32_t node)
{
    struct queue_node *n = map_get(&q->nodes, node);
    if (!n) {
        n = mem_zalloc(sizeof(*n));
        n->node = node;
        n->verdict = NODE_SUSPECT;
        n->since = queue_service_now(q);
        map_put(&q->nodes, node, n);
    }
    return n;
}

// ---- arriving ------------------------------------------------------------------------------------------------------

static void forward(struct queue_service *q, uint32_t worker, const struct queue_item *item)
{
    struct queue_lane *lane = queue_lane_to(&q->lanes, q->config.node_id, worker);
    size_t at = queue_lane_begin(lane, item->type, item->group, item->session, item->attach);
    buf_span_bytes(&lane->out, item->body);
    queue_lane_end(lane, at);
    q->wants_turn = true;
}

static void receive(struct queue_service *q, struct span items)
{
    struct reader r = reader_of(items);
    struct queue_item item;
    while (queue_item_next(&r, &item) == RC_OK) {
        bool is_up = item.type <= QUEUE_ITEM_UP_LAST;
        uint32_t worker = is_up ? q->config.worker_of(q->config.post_ctx, item.group)
                                : queue_session_id_worker(item.session);
        if (worker != q->config.worker) {
            if (worker < q->config.workers) {
                forward(q, worker, &item);
            } else {
                q->metrics.bad_items++;
            }
        } else if (is_up) {
            queue_replica_item(q, &item);
        } else if (item.type == QUEUE_ITEM_INFO_REPLY) {
            queue_question_item(q, &item);
        } else {
            queue_client_item(q, &item);
        }
    }
    q->wants_turn = true;
}

static void on_frame(void *ctx, uint32_t node, enum net_lane lane, const struct frame *f)
{
    (void)lane;
    struct queue_service *q = ctx;
    queue_lanes_frame(&q->lanes, q, node, f);
}

static void each_leading(struct queue_service *q, uint32_t node, bool is_reset)
{
    list_each (l, &q->leading) {
        struct queue_leading *leading = list_entry(l, struct queue_leading, in_service);
        if (is_reset) {
            queue_replica_lane_reset(leading->replica, node);
        } else if (queue_replica_state(leading->replica)->busy) {  // Idle queues know no node; they look when
                                                                   // a session opens.
            leading->nodes_at = 0;
            queue_replica_mark(leading->replica);
        }
    }
}

static void on_node_state(void *ctx, uint32_t node, enum node_verdict verdict, uint64_t incarnation)
{
    struct queue_service *q = ctx;
    struct queue_node *n = queue_service_node(q, node);
    if (!n->is_known || n->verdict == NODE_ALIVE || verdict == NODE_ALIVE) {
        n->since = queue_service_now(q);  // Suspect then dead counts from the first doubt.
    }
    n->is_known = true;
    n->verdict = verdict;
    n->incarnation = incarnation;
    if (verdict == NODE_ALIVE) {
        list_each (l, &q->seeking) {
            list_entry(l, struct queue_link, seeking)->retry_at = 0;
        }
    } else {
        queue_link_node_lost(q, node, true);
    }
    if (verdict == NODE_DEAD) {
        queue_lanes_node_gone(&q->lanes, node);
    }
    each_leading(q, node, false);
    q->wants_turn = true;
}

// What was said between a node and us may be lost: our sessions there attach again.
static void attach_again(struct queue_service *q, uint32_t node)
{
    queue_link_node_lost(q, node, false);
    list_each (l, &q->seeking) {
        list_entry(l, struct queue_link, seeking)->retry_at = 0;
    }
    q->wants_turn = true;
}

static void on_lane_reset(void *ctx, uint32_t node, enum net_lane lane)
{
    struct queue_service *q = ctx;
    if (lane == LANE_SESSION) {
        queue_lanes_reset(&q->lanes, node);
        each_leading(q, node, true);
        attach_again(q, node);
    }
}

static void on_lane_writable(void *ctx, uint32_t node, enum net_lane lane)
{
    struct queue_service *q = ctx;
    if (lane == LANE_SESSION) {
        queue_lane_to(&q->lanes, node, 0)->is_blocked = false;
        q->wants_turn = true;
    }
}

// ---- life ----------------------------------------------------------------------------------------------------------

struct queue_service *queue_service_create(const struct queue_service_config *config)
{
    assert(config->host && config->net && config->worker_of);
    assert(config->worker < config->workers && config->workers <= UINT16_MAX);
    struct queue_service *q = mem_zalloc(sizeof(*q));
    q->config = *config;
    q->lanes = (struct queue_lanes){
        .net = config->net,
        .node = config->node_id,
        .worker = config->worker,
        .post = config->post,
        .post_ctx = config->post_ctx,
        .peer = config->peer,
        .receive = receive,
        .renewed = attach_again,
    };
    queue_lanes_init(&q->lanes);
    map_init_u64(&q->sessions);
    map_init_u64(&q->links);
    map_init_keyed(&q->replicas);
    map_init_u64(&q->restores);
    map_init_u64(&q->nodes);
    map_init_u64(&q->deleted);
    list_init(&q->dirty_sessions);
    list_init(&q->seeking);
    list_init(&q->questions);
    list_init(&q->dirty_leads);
    list_init(&q->leading);
    list_init(&q->doubts);
    queue_effects_init(&q->effects);
    q->next_counter = q->next_token = 1;
    q->check_at = q->nodes_at = UINT64_MAX;
    host_on_frames(config->host, FRAME_SESSION_FIRST, FRAME_SESSION_LAST, on_frame, q);
    q->watcher = (struct host_watcher){
        .node_state = on_node_state, .lane_reset = on_lane_reset, .lane_writable = on_lane_writable, .ctx = q};
    host_watch(config->host, &q->watcher);
    return q;
}

void queue_service_destroy(struct queue_service *q)
{
    queue_questions_abort(q);
    queue_doubts_abandon(q);
    uint32_t pos = 0;
    struct queue_session *s;
    while ((s = map_next(&q->sessions, &pos, NULL, NULL)) != NULL) {
        queue_session_destroy(s);
    }
    pos = 0;
    struct queue_replica *r;
    while ((r = map_next(&q->replicas, &pos, NULL, NULL)) != NULL) {
        queue_replica_remove(q, r->group, false);
    }
    pos = 0;
    struct queue_node *n;
    while ((n = map_next(&q->nodes, &pos, NULL, NULL)) != NULL) {
        free(n);
    }
    assert(map_count(&q->links) == 0);
    map_deinit(&q->sessions);
    map_deinit(&q->links);
    map_deinit(&q->replicas);
    map_deinit(&q->restores);
    map_deinit(&q->nodes);
    map_deinit(&q->deleted);
    queue_effects_deinit(&q->effects);
    buf_deinit(&q->scratch);
    buf_deinit(&q->ranges);
    queue_lanes_deinit(&q->lanes);
    free(q);
}

void queue_service_metrics(const struct queue_service *q, struct queue_metrics *out)
{
    *out = q->metrics;
    out->bad_items += q->lanes.bad_frames;
}

// ---- turns ---------------------------------------------------------------------------------------------------------

static void turn_links(struct queue_service *q, uint64_t now)
{
    struct list due;
    list_init(&due);
    list_each (item, &q->seeking) {
        if (list_entry(item, struct queue_link, seeking)->retry_at <= now) {
            list_remove(item);
            list_add_tail(&due, item);
        }
    }
    struct list *item;
    while ((item = list_pop(&due)) != NULL) {
        struct queue_link *l = list_entry(item, struct queue_link, seeking);
        if (!queue_link_turn(l, now) && list_is_empty(&l->seeking)) {
            list_add_tail(&q->seeking, &l->seeking);
        }
    }
}

static void turn_replicas(struct queue_service *q, uint64_t now)
{
    struct list round;
    list_init(&round);
    list_splice(&round, &q->dirty_leads);
    struct list *item;
    while ((item = list_pop(&round)) != NULL) {
        queue_replica_turn(list_entry(item, struct queue_leading, dirty)->replica, now);
    }
}

static void turn_sessions(struct queue_service *q)
{
    struct list round;
    list_init(&round);
    list_splice(&round, &q->dirty_sessions);
    struct list *item;
    while ((item = list_pop(&round)) != NULL) {
        queue_session_turn(list_entry(item, struct queue_session, dirty));
    }
}

static void check_clocks(struct queue_service *q, uint64_t now)
{
    if (now < q->check_at) {
        return;
    }
    bool is_any = false;
    uint32_t pos = 0;
    struct queue_session *s;
    while ((s = map_next(&q->sessions, &pos, NULL, NULL)) != NULL) {
        queue_session_check(s, now);
        is_any = is_any || queue_session_waits(s);
    }
    q->check_at = is_any ? now + QUEUE_CHECK_NS : UINT64_MAX;
}

// The lane begins anew as if its connection had: sessions attach again on either side, and send what is owed.
static void check_lanes(struct queue_service *q, uint64_t now)
{
    const uint32_t node = queue_lanes_stuck(&q->lanes, now);
    if (node != 0) {
        log_warning("node %u has taken no part of a large message for %llu s or more; what is under way to it is sent anew",
                    node, QUEUE_TAKEN_TIMEOUT_NS / 1000000000);
        q->metrics.lanes_stuck++;
        on_lane_reset(q, node, LANE_SESSION);
    }
}

static void check_nodes(struct queue_service *q, uint64_t now)
{
    if (now < q->nodes_at) {
        return;
    }
    q->nodes_at = UINT64_MAX;
    list_each (l, &q->leading) {
        struct queue_leading *leading = list_entry(l, struct queue_leading, in_service);
        if (leading->nodes_at <= now) {
            queue_replica_mark(leading->replica);
        } else if (leading->nodes_at < q->nodes_at) {
            q->nodes_at = leading->nodes_at;
        }
    }
}

uint64_t queue_service_turn(struct queue_service *q)
{
    uint64_t now = queue_service_now(q), proposed = q->metrics.commands_proposed;
    queue_lanes_recycle(&q->lanes);
    check_lanes(q, now);
    check_clocks(q, now);
    check_nodes(q, now);
    q->is_held_first = !q->is_held_first;
    for (int i = 0; i < TURN_ROUNDS; i++) {
        q->wants_turn = false;
        turn_links(q, now);
        if (q->is_held_first) {
            turn_replicas(q, now);
        }
        turn_sessions(q);
        turn_replicas(q, now);
        queue_questions_turn(q, now);
        if (!q->wants_turn) {
            break;
        }
    }
    queue_lanes_flush(&q->lanes);
    q->wants_turn = false;  // What is left waits for room.
    // Proposals want a host_turn, which may have been before this one.
    return q->metrics.commands_proposed != proposed ? 0 : queue_service_next(q);
}

static void sooner(uint64_t *at, uint64_t other)
{
    if (other < *at) {
        *at = other;
    }
}

uint64_t queue_service_next(const struct queue_service *q)
{
    if (q->wants_turn) {
        return 0;
    }
    uint64_t at = UINT64_MAX, now = queue_service_now(q);
    if (!list_is_empty(&q->dirty_sessions) || !list_is_empty(&q->dirty_leads) || queue_lanes_have_work(&q->lanes)) {
        at = now + QUEUE_POLL_NS;
    }
    list_each (l, &q->seeking) {
        uint64_t retry_at = list_entry(l, struct queue_link, seeking)->retry_at;
        sooner(&at, retry_at > now ? retry_at : now + QUEUE_POLL_NS);
    }
    sooner(&at, q->check_at);
    sooner(&at, q->nodes_at);
    sooner(&at, queue_questions_next(q));
    return at;
}
