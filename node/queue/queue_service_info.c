// SPDX-License-Identifier: Apache-2.0
// Questions for a queue's counts (queue_info_get): asked of the leader, wherever it is, again and again until
// it answers or the asker's time is over. A question has no session; its token takes the place of a session's counter.
#include "node/queue/queue_parts.h"
#include <stdlib.h>

enum { ASK_AGAIN_NS = 50000000 };

void queue_info_get(struct queue_service *q, const struct queue_target *t, uint32_t timeout_ms,
                    queue_info_fn *done, void *ctx)
{
    struct queue_question *y = mem_zalloc(sizeof(*y));
    y->target = queue_link_get(q, t);
    y->token = (uint64_t)q->config.worker << 48 | q->next_token++;
    y->deadline = queue_service_now(q) + (uint64_t)timeout_ms * 1000000;
    y->done = done;
    y->ctx = ctx;
    list_add_tail(&q->questions, &y->link);
    q->wants_turn = true;
}

static void answer(struct queue_question *y, enum rc rc, const struct queue_info *info)
{
    list_remove(&y->link);
    queue_link_put(y->target);
    queue_info_fn *done = y->done;
    void *ctx = y->ctx;
    free(y);
    done(ctx, rc, info);
}

static void ask(struct queue_service *q, struct queue_question *y, uint64_t now)
{
    struct queue_info info = {0};
    if (now >= y->deadline) {
        answer(y, RC_TIMEOUT, &info);
        return;
    }
    struct queue_place place;
    y->ask_at = now + ASK_AGAIN_NS;
    if (map_get(&q->deleted, y->target->group)) {
        answer(y, RC_NOT_FOUND, &info);
    } else if (!queue_link_place(y->target, &place)) {
        y->ask_at = now + QUEUE_RETRY_MIN_NS;
    } else if (place.local) {
        queue_replica_info(q, y->target->group, &info, NULL);
        info.leader_node = q->config.node_id;
        answer(y, RC_OK, &info);
    } else {
        struct queue_session_id id = {.incarnation = q->config.incarnation,
                                      .counter = y->token,
                                      .node = q->config.node_id};
        y->asked_node = place.node;
        queue_lane_end(place.lane, queue_lane_begin(place.lane, QUEUE_ITEM_INFO, y->target->group, id, 0));
    }
}

void queue_questions_turn(struct queue_service *q, uint64_t now)
{
    struct list round;
    list_init(&round);
    list_splice(&round, &q->questions);
    while (!list_is_empty(&round)) {
        struct queue_question *y = list_entry(list_pop(&round), struct queue_question, link);
        list_add_tail(&q->questions, &y->link);
        if (y->ask_at <= now || y->deadline <= now) {
            ask(q, y, now);
        }
    }
}

uint64_t queue_questions_next(const struct queue_service *q)
{
    uint64_t at = UINT64_MAX;
    list_each (l, &q->questions) {
        const struct queue_question *y = list_entry(l, struct queue_question, link);
        uint64_t next = y->ask_at < y->deadline ? y->ask_at : y->deadline;
        at = next < at ? next : at;
    }
    return at;
}

void queue_question_item(struct queue_service *q, const struct queue_item *item)
{
    list_each (l, &q->questions) {
        struct queue_question *y = list_entry(l, struct queue_question, link);
        if (y->token != item->session.counter || item->session.incarnation != q->config.incarnation) {
            continue;
        }
        struct reader r = reader_of(item->body);
        enum rc rc = (enum rc)reader_u32(&r);
        uint32_t hint = reader_u32(&r);
        struct queue_info info = {.ready = reader_u64(&r)};
        info.unacked = reader_u64(&r);
        info.consumers = reader_u64(&r);
        info.ready_bytes = reader_u64(&r);
        info.unacked_bytes = reader_u64(&r);
        if (r.is_bad) {
            q->metrics.bad_items++;
        } else if (rc == RC_OK) {
            info.leader_node = y->asked_node;  // Asked of one at a time; a late answer of another is as good.
            answer(y, RC_OK, &info);
        } else {
            y->target->leader_node = hint;
            y->ask_at = queue_service_now(q) + QUEUE_RETRY_MIN_NS;
        }
        return;
    }
}

void queue_questions_abort(struct queue_service *q)
{
    struct queue_info info = {0};
    while (!list_is_empty(&q->questions)) {
        answer(list_entry(q->questions.next, struct queue_question, link), RC_SHUTDOWN, &info);
    }
}
