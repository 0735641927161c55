// SPDX-License-Identifier: Apache-2.0
// links: node/base node/queue proto gen
// Queue sessions against a leader, wires and a log that fail at every step (decision 1; node/queue/README.md).
//
// One workload, many faults: publishers on a member, on the leader's node and on a node without a replica; consumers that
// acknowledge, release and return. Whatever happens: each publish is applied once and settled once, deliveries come in
// number order without repeats, each message reaches a client first exactly once, nothing is left behind.
#include "node/base/crc32c.h"
#include "proto/record.h"
#include "queue_world.h"

// ---- the workload --------------------------------------------------------------------------------------------------

enum { PUBLISHERS = 3, CONSUMERS = 3, MESSAGES = 24 };

struct publisher {
    uint32_t id;
    struct queue_session *s;
    uint32_t published, settled, rejected;
    bool is_closed, has_ended;
};
struct consumer {
    uint32_t id;
    struct queue_session *s;
    bool is_no_ack, is_ok, is_cancelled, is_closed, has_ended;
    uint64_t last;
    uint32_t fresh[PUBLISHERS];  // Highest message of each publisher that came for the first time, + 1.
    uint32_t to_settle;
    struct {
        uint64_t number;
        bool is_first;
    } open[64];
    uint32_t open_count;
};
struct work {
    struct world *w;
    struct publisher publishers[PUBLISHERS];
    struct consumer consumers[CONSUMERS];
    uint32_t first_seen[PUBLISHERS][MESSAGES], seen[PUBLISHERS][MESSAGES];
    bool is_rejected[PUBLISHERS][MESSAGES];
    uint32_t body_bytes;  // Padding.
};
static struct work *the_work;

static void on_settled(void *ctx, struct queue_session *s, uint64_t through, const uint64_t *rejected, uint32_t count)
{
    struct publisher *p = ctx;
    ck_assert_uint_gt(through, p->settled);
    ck_assert_uint_le(through, p->published);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_gt(rejected[i], p->settled);
        ck_assert_uint_le(rejected[i], through);
        the_work->is_rejected[p->id][rejected[i] - 1] = true;
        p->rejected++;
    }
    p->settled = (uint32_t)through;
}
static void on_publisher_ended(void *ctx, struct queue_session *s, bool is_deleted)
{
    ((struct publisher *)ctx)->has_ended = true;
}
static void on_deliver(void *ctx, struct queue_session *s, uint32_t consumer, const struct queue_message *m)
{
    struct consumer *c = ctx;
    ck_assert(c->is_ok);
    ck_assert(!c->is_cancelled);
    ck_assert_uint_gt(m->number, c->last);
    c->last = m->number;
    uint32_t body[2];
    ck_assert_uint_ge(m->body.len, sizeof(body));
    memcpy(body, m->body.ptr, sizeof(body));
    ck_assert_uint_lt(body[0], PUBLISHERS);
    ck_assert_uint_lt(body[1], MESSAGES);
    ck_assert(span_equal(m->routing_key, span_str("k")));
    const uint8_t *padding = m->body.ptr + sizeof(body);
    ck_assert_uint_eq(m->body.len, sizeof(body) + the_work->body_bytes);
    ck_assert(the_work->body_bytes == 0 || (padding[0] == body[1] + 1 && memcmp(padding, padding + 1, the_work->body_bytes - 1) == 0));
    the_work->seen[body[0]][body[1]]++;
    bool is_first = m->acquired_count == 0;
    if (is_first) {
        the_work->first_seen[body[0]][body[1]]++;
        ck_assert_uint_ge(body[1], c->fresh[body[0]]);  // In order per publisher.
        c->fresh[body[0]] = body[1] + 1;
    }
    queue_session_taken(s, consumer, m->body.len);
    if (!c->is_no_ack) {
        ck_assert_uint_lt(c->open_count, 64);
        c->open[c->open_count].number = m->number;
        c->open[c->open_count++].is_first = is_first;
    }
}
static void on_consume_done(void *ctx, struct queue_session *s, uint32_t consumer, enum rc rc)
{
    ck_assert(!((struct consumer *)ctx)->is_ok);
    ((struct consumer *)ctx)->is_ok = true;
}
static void on_cancel_done(void *ctx, struct queue_session *s, uint32_t consumer)
{
    ((struct consumer *)ctx)->is_cancelled = true;
}
static void on_consumer_ended(void *ctx, struct queue_session *s, bool is_deleted)
{
    ((struct consumer *)ctx)->has_ended = true;
}

static void work_start(struct work *k, struct world *w)
{
    static const struct queue_callbacks publisher = {.settled = on_settled, .ended = on_publisher_ended};
    static const struct queue_callbacks consumer = {
        .deliver = on_deliver, .consume_done = on_consume_done, .cancel_done = on_cancel_done, .ended = on_consumer_ended};
    static const uint32_t publisher_node[] = {1, 2, 4}, consumer_node[] = {3, 4, 1};
    struct queue_target t = world_target();
    the_work = k;
    k->w = w;
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        k->publishers[i] = (struct publisher){.id = i};
        k->publishers[i].s = queue_session_open(w->hosts[publisher_node[i]].q, &t, &publisher, &k->publishers[i]);
    }
    for (uint32_t i = 0; i < CONSUMERS; i++) {
        k->consumers[i] = (struct consumer){.id = i, .is_no_ack = i == 2};
        k->consumers[i].s = queue_session_open(w->hosts[consumer_node[i]].q, &t, &consumer, &k->consumers[i]);
        struct queue_consume c = {.consumer = 1, .prefetch = i == 0 ? 5 : 3, .is_no_ack = i == 2, .tag = span_str("t")};
        queue_session_consume(k->consumers[i].s, &c);
    }
}
static void publish_next(struct work *k, struct publisher *p)
{
    if (p->is_closed || p->has_ended || p->published == MESSAGES || queue_session_is_full(p->s)) {
        return;
    }
    struct buf body = {0};
    buf_u32(&body, p->id);
    buf_u32(&body, p->published);
    memset(buf_extend(&body, k->body_bytes), (int)p->published + 1, k->body_bytes);
    struct span key = span_str("k");
    struct queue_publish m = {.routing_keys = &key, .routing_keys_count = 1, .body = buf_span(&body), .expiry_ms = -1, .is_body_disposable = true};
    ck_assert_uint_eq(queue_session_publish(p->s, &m), ++p->published);
    buf_deinit(&body);
}
// First deliveries are now and then released or returned; what came back is acknowledged.
static void settle_some(struct consumer *c, struct rng *rng)
{
    if (c->is_closed || c->has_ended) {
        return;
    }
    uint32_t n = (uint32_t)rng_below(rng, c->open_count + 1);
    for (uint32_t i = 0; i < n; i++) {
        enum queue_settle how = QUEUE_ACK;
        if (c->open[i].is_first && rng_below(rng, 8) == 0) {
            how = rng_below(rng, 2) ? QUEUE_RELEASE : QUEUE_RETURN;
        }
        queue_session_settle(c->s, 1, c->open[i].number, c->open[i].number, how);
    }
    memmove(c->open, c->open + n, (c->open_count - n) * sizeof(c->open[0]));
    c->open_count -= n;
}
static bool work_is_done(struct work *k)
{
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        if (k->publishers[i].settled < MESSAGES) {
            return false;
        }
    }
    for (uint32_t i = 0; i < CONSUMERS; i++) {
        if (k->consumers[i].open_count > 0) {
            return false;
        }
    }
    struct queue_replica *r = world_replica(k->w, k->w->leader);
    return r && queue_replica_state(r)->ready_count == 0 && queue_replica_state(r)->unacked_count == 0 && r->applied == k->w->last;
}
static void work_round(struct work *k)
{
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        publish_next(k, &k->publishers[i]);
        publish_next(k, &k->publishers[i]);
    }
    for (uint32_t i = 0; i < CONSUMERS; i++) {
        settle_some(&k->consumers[i], &k->w->rng);
    }
    if (rng_below(&k->w->rng, 20) == 0) {
        world_old_leaders_learn(k->w);
    }
    world_round(k->w);
}
static void work_finish(struct work *k)
{
    for (int n = 0; n < 6000 && !work_is_done(k); n++) {
        if (n == 1000) {
            k->w->wild_percent = 0;  // The storm is over; connections are renewed.
            world_old_leaders_learn(k->w);
            for (uint32_t a = 1; a <= NODES; a++) {
                for (uint32_t b = 1; b <= NODES; b++) {
                    world_reset_wire(k->w, a, b);
                }
            }
        }
        work_round(k);
    }
    ck_assert(work_is_done(k));
    for (uint32_t p = 0; p < PUBLISHERS; p++) {
        for (uint32_t m = 0; m < MESSAGES; m++) {
            ck_assert_uint_eq(k->first_seen[p][m], k->is_rejected[p][m] ? 0 : 1);
        }
    }
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        queue_session_close(k->publishers[i].s);
    }
    for (uint32_t i = 0; i < CONSUMERS; i++) {
        queue_session_close(k->consumers[i].s);
    }
    world_old_leaders_learn(k->w);
    struct queue_replica *r = NULL;
    for (int n = 0; n < 6000; n++) {
        world_round(k->w);
        if (n % 50 == 0) {
            world_old_leaders_learn(k->w);
        }
        r = world_replica(k->w, k->w->leader);
        bool is_gone = !queue_replica_state(r)->busy && r->applied == k->w->last;
        for (uint32_t node = 1; node <= NODES; node++) {
            is_gone = is_gone && map_count(&k->w->hosts[node].q->sessions) == 0;
        }
        if (is_gone) {
            break;
        }
    }
    ck_assert_ptr_null(queue_replica_state(r)->busy);
    for (uint32_t node = 1; node <= NODES; node++) {
        ck_assert_uint_eq(map_count(&k->w->hosts[node].q->sessions), 0);
    }
    uint64_t digest = queue_fsm_digest(r->fsm);
    for (uint32_t node = 1; node <= MEMBERS; node++) {
        world_apply(k->w, node);
        queue_fsm_check(world_replica(k->w, node)->fsm);
        ck_assert_uint_eq(queue_fsm_digest(world_replica(k->w, node)->fsm), digest);
    }
}
// Runs the workload; returns the number of events.
static uint32_t in_place, summed;  // world.in_place and .summed of all runs.

static uint64_t run(uint64_t seed, enum fault fault, uint64_t at, uint32_t wild, uint32_t cold, struct queue_settings settings, uint32_t body)
{
    struct world *w = world_create(seed, settings);
    w->fault = fault;
    w->fault_at = at;
    w->wild_percent = wild;
    w->cold_percent = cold;
    w->slow_percent = seed % 4 == 0 ? 90 : 0;
    struct work *k = mem_zalloc(sizeof(*k));
    k->body_bytes = body;
    work_start(k, w);
    work_finish(k);
    uint64_t events = w->events;
    in_place += w->in_place;
    summed += w->summed;
    world_destroy(w);
    free(k);
    return events;
}

// ---- tests ---------------------------------------------------------------------------------------------------------

START_TEST(without_faults_all_is_settled_and_delivered_once)
{
    ck_assert_uint_gt(run(1, FAULT_NONE, 0, 0, 0, settings_plain(), 0), 50);
}
END_TEST

START_TEST(any_one_fault_at_any_event_changes_nothing_for_clients)
{
    uint64_t events = run(1, FAULT_NONE, 0, 0, 0, settings_plain(), 0);
    for (uint64_t at = 1; at <= events; at++) {
        run(1, (enum fault)(_i + 1), at, 0, 0, settings_plain(), 0);
    }
}
END_TEST

START_TEST(many_faults_at_random_change_nothing_for_clients)
{
    for (uint64_t seed = 1; seed <= 150; seed++) {
        run((uint64_t)_i * 1000 + seed, FAULT_NONE, 0, 1 + (uint32_t)(seed % 8), seed % 3 == 0 ? 50 : 0, settings_plain(), 0);
    }
}
END_TEST

START_TEST(cold_messages_keep_their_order)
{
    for (uint64_t seed = 1; seed <= 30; seed++) {
        run(seed, FAULT_NONE, 0, seed % 2 ? 0 : 3, 90, settings_plain(), 0);
    }
}
END_TEST

START_TEST(rejected_publishes_are_reported_once_whatever_is_lost)
{
    struct queue_settings s = settings_plain();
    s.max_length = 2;
    s.is_reject_publish = true;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        run(seed, FAULT_NONE, 0, (uint32_t)(seed % 8), 0, s, 0);
    }
}
END_TEST

START_TEST(messages_above_a_frame_travel_in_parts_beside_others)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        run(seed, FAULT_NONE, 0, seed < 3 ? 0 : 1, 20, settings_plain(), (uint32_t)(200 << 10) * (uint32_t)seed);
    }
}
END_TEST

// From 1 MiB on bodies are shared between log, sessions and lanes, and their sources destroyed.
START_TEST(large_messages_survive_every_fault_though_their_memory_is_shared)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        for (enum fault f = FAULT_NONE; f < FAULTS; f++) {
            run(seed, f, 40, 1, 12, settings_plain(), (1 << 20) + (uint32_t)seed * 100000);
        }
    }
    ck_assert_uint_gt(summed, 0);
    ck_assert_uint_gt(in_place, summed);  // Those of sessions beside the leader too.
}
END_TEST

static void on_counted(void *ctx, struct queue_session *s, uint64_t through, const uint64_t *rejected, uint32_t count)
{
    *(uint64_t *)ctx = through;
}

// The command in front of the body names the session: with another counter in it a sum taken before is of other bytes, and a
// record with that sum is a damaged one for every follower and at the next start.
START_TEST(a_large_publish_of_a_session_that_takes_a_new_counter_has_its_true_sum_in_the_log)
{
    enum { LARGE = 3 << 20, COUNT = 4 };
    static const struct queue_callbacks callbacks = {.settled = on_counted};
    struct world *w = world_create(7, settings_plain());
    struct queue_target t = world_target();
    rounds(w, 5);
    uint64_t settled = 0;
    struct queue_session *s = queue_session_open(w->hosts[1].q, &t, &callbacks, &settled);
    for (int i = 0; i < COUNT; i++) {
        const struct span key = span_str("k");
        const size_t room = queue_publish_room(0, key.len, 0);
        struct block *b = block_create(room + LARGE + RECORD_ALIGN);
        memset(b->ptr, i + 1, b->cap);
        b->has_room = b->is_disposable = true;
        block_set_sum(b, room, room + LARGE, crc32c(0, b->ptr + room, LARGE));
        queue_session_publish(s, &(struct queue_publish){.routing_keys = &key,
                                                         .routing_keys_count = 1,
                                                         .body = span_of(b->ptr + room, LARGE),
                                                         .expiry_ms = -1,
                                                         .is_body_disposable = true});
        block_release(b);
    }
    (void)queue_service_turn(w->hosts[1].q);
    ck_assert_int_eq(s->state, SESSION_ATTACHING);
    queue_client_refused(s, s->attach);
    for (int n = 0; n < 1000 && settled < COUNT; n++) {
        world_round(w);  // Its log holds the sums against the bytes.
    }
    ck_assert_uint_eq(settled, COUNT);
    ck_assert_uint_gt(w->in_place, 0);
    queue_session_close(s);
    rounds(w, 100);
    world_destroy(w);
}
END_TEST

START_TEST(replaying_all_frames_of_a_node_after_its_sessions_ended_changes_nothing)
{
    struct list recorded;
    list_init(&recorded);
    struct world *w = world_create(3, settings_plain());
    w->recorded = &recorded;
    struct work *k = mem_zalloc(sizeof(*k));
    work_start(k, w);
    work_finish(k);
    w->recorded = NULL;
    struct queue_replica *r = world_replica(w, 1);
    ck_assert_ptr_nonnull(r->leading);
    ck_assert(!list_is_empty(&recorded));
    list_each (l, &recorded) {
        struct wire_frame *f = list_entry(l, struct wire_frame, link);
        frame_arrive(w, 4, 1, f);
        rounds(w, 3);
        ck_assert_ptr_null(queue_replica_state(r)->busy);
        ck_assert_uint_eq(queue_replica_state(r)->ready_count, 0);
        wire_frame_drop(f);
    }
    ck_assert_ptr_null(r->leading->serving);
    world_destroy(w);
    free(k);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("queue_sessions");
    TCase *t = tcase_create("queue_sessions");
    tcase_set_timeout(t, 240);
    tcase_add_test(t, without_faults_all_is_settled_and_delivered_once);
    tcase_add_loop_test(t, any_one_fault_at_any_event_changes_nothing_for_clients, 0, FAULTS - 1);
    tcase_add_loop_test(t, many_faults_at_random_change_nothing_for_clients, 0, 2);
    tcase_add_test(t, cold_messages_keep_their_order);
    tcase_add_test(t, rejected_publishes_are_reported_once_whatever_is_lost);
    tcase_add_test(t, messages_above_a_frame_travel_in_parts_beside_others);
    tcase_add_test(t, large_messages_survive_every_fault_though_their_memory_is_shared);
    tcase_add_test(t, a_large_publish_of_a_session_that_takes_a_new_counter_has_its_true_sum_in_the_log);
    tcase_add_test(t, replaying_all_frames_of_a_node_after_its_sessions_ended_changes_nothing);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
