// SPDX-License-Identifier: Apache-2.0
// links: node/base node/queue proto gen
// Sessions and replicas over a lane that is slow or full: they wait for it, and begin nothing anew (queue_lane.h; decision 10).
#include "queue_world.h"

enum { LEADER = 1, FAR = 4, SESSIONS = 8, LANE_BYTES_MAX = 2 << 20 };

struct party {
    struct queue_session *s;
    uint32_t delivered, settled;
    size_t bytes;
    bool is_ok;
};

// ---- fixture -------------------------------------------------------------------------------------------------------

static struct world *w;
static struct party near, far[SESSIONS];

static void on_deliver(void *ctx, struct queue_session *s, uint32_t consumer, const struct queue_message *m)
{
    struct party *p = ctx;
    p->delivered++;
    p->bytes += m->body.len;
    queue_session_taken(s, consumer, m->body.len);
}
static void on_consume_done(void *ctx, struct queue_session *s, uint32_t consumer, enum rc rc)
{
    ((struct party *)ctx)->is_ok = rc == RC_OK;
}
static void on_settled(void *ctx, struct queue_session *s, uint64_t through, const uint64_t *rejected, uint32_t count)
{
    ((struct party *)ctx)->settled = (uint32_t)through;
}

static void setup(void)
{
    w = world_create(1, settings_plain());
    near = (struct party){0};
    memset(far, 0, sizeof(far));
}
static void teardown(void)
{
    world_destroy(w);
}

// ---- helpers -------------------------------------------------------------------------------------------------------

static void join(struct party *p, uint32_t node)
{
    static const struct queue_callbacks cb = {
        .deliver = on_deliver, .consume_done = on_consume_done, .settled = on_settled};
    const struct queue_target t = world_target();
    p->s = queue_session_open(w->hosts[node].q, &t, &cb, p);
}
static void consume(struct party *p, uint32_t prefetch)
{
    const struct queue_consume c = {.consumer = 1, .prefetch = prefetch, .tag = span_str("t")};
    queue_session_consume(p->s, &c);
    for (int n = 0; n < 100 && !p->is_ok; n++) {
        world_round(w);
    }
    ck_assert(p->is_ok);
}
static void publish(struct party *p, size_t bytes)
{
    struct buf body = {0};
    memset(buf_extend(&body, bytes), 'x', bytes);
    struct span key = span_str("k");
    const struct queue_publish m = {
        .routing_keys = &key, .routing_keys_count = 1, .body = buf_span(&body), .expiry_ms = -1};
    (void)queue_session_publish(p->s, &m);
    buf_deinit(&body);
}
static struct queue_lane *lane(uint32_t from, uint32_t to)
{
    return queue_lane_to(&w->hosts[from].q->lanes, to, 0);
}
static uint64_t attaches(uint32_t node)
{
    struct queue_metrics m;
    queue_service_metrics(w->hosts[node].q, &m);
    return m.attaches;
}
static uint64_t stuck(uint32_t node)
{
    struct queue_metrics m;
    queue_service_metrics(w->hosts[node].q, &m);
    return m.lanes_stuck;
}
static uint32_t delivered(void)
{
    uint32_t n = 0;
    for (int i = 0; i < SESSIONS; i++) {
        n += far[i].delivered;
    }
    return n;
}
static uint32_t settled(void)
{
    uint32_t n = 0;
    for (int i = 0; i < SESSIONS; i++) {
        n += far[i].settled;
    }
    return n;
}
// Until `count` says `wanted`. Returns the most bytes that lay in the lane meanwhile.
static size_t until(uint32_t (*count)(void), uint32_t wanted, const struct queue_lane *l, int rounds_max)
{
    size_t most = 0;
    for (int n = 0; n < rounds_max && count() < wanted; n++) {
        world_round(w);
        const size_t bytes = l->waiting_bytes + l->run_bytes;
        most = bytes > most ? bytes : most;
    }
    ck_assert_uint_eq(count(), wanted);
    return most;
}

// ---- tests ---------------------------------------------------------------------------------------------------------

// An attach would have the leader send the delivery once more from its beginning, which takes too long again: for ever.
START_TEST(a_session_whose_answer_comes_behind_a_delivery_of_three_seconds_does_not_attach_anew)
{
    join(&near, LEADER);
    join(&far[0], FAR);
    consume(&far[0], 1);
    ck_assert_uint_eq(attaches(FAR), 1);
    w->frame_rounds[LEADER][FAR] = 100;  // 128 KiB in 100 ms.
    publish(&near, 4 << 20);
    rounds(w, 50);
    ck_assert_uint_gt(lane(LEADER, FAR)->run_bytes, 0);
    publish(&far[0], 10);
    const uint64_t before = w->now;
    (void)until(settled, 1, lane(LEADER, FAR), 6000);
    ck_assert_uint_gt(w->now - before, QUEUE_ANSWER_TIMEOUT_NS);
    ck_assert_uint_eq(far[0].bytes, 4 << 20);
    ck_assert_uint_eq(attaches(FAR), 1);
}
END_TEST

START_TEST(a_session_whose_answer_does_not_come_and_to_which_nothing_comes_either_attaches_anew)
{
    join(&far[0], FAR);
    consume(&far[0], 1);
    w->frame_rounds[LEADER][FAR] = UINT32_MAX;
    publish(&far[0], 10);
    rounds(w, 2100);
    ck_assert_uint_gt(attaches(FAR), 1);
}
END_TEST

START_TEST(large_deliveries_of_many_sessions_lie_in_a_slow_lane_one_at_a_time_and_not_all_at_once)
{
    join(&near, LEADER);
    for (int i = 0; i < SESSIONS; i++) {
        join(&far[i], FAR);
        consume(&far[i], 1);
    }
    w->frame_rounds[LEADER][FAR] = 10;
    for (int i = 0; i < SESSIONS; i++) {
        publish(&near, LANE_BYTES_MAX);
    }
    const size_t most = until(delivered, SESSIONS, lane(LEADER, FAR), 6000);
    ck_assert_uint_ge(most, LANE_BYTES_MAX);
    ck_assert_uint_lt(most, 2 * LANE_BYTES_MAX + 4096);
}
END_TEST

START_TEST(deliveries_wait_for_a_lane_that_is_full)
{
    enum { BYTES = 16 << 10, COUNT = 400 };
    join(&near, LEADER);
    for (int i = 0; i < SESSIONS; i++) {
        join(&far[i], FAR);
        consume(&far[i], 1000);
    }
    w->lane_full_rounds = 1000;
    for (int i = 0; i < COUNT; i++) {
        for (int n = 0; n < 100 && queue_session_is_full(near.s); n++) {
            world_round(w);
        }
        publish(&near, BYTES);
    }
    const struct queue_lane *l = lane(LEADER, FAR);
    size_t most = l->waiting_bytes;
    for (int n = 0; n < 500; n++) {
        world_round(w);
        most = l->waiting_bytes > most ? l->waiting_bytes : most;
    }
    ck_assert_uint_gt(most, 0);
    ck_assert_uint_lt(most, LANE_BYTES_MAX + LIMIT_FRAME_BYTES);
    (void)until(delivered, COUNT, l, 6000);
}
END_TEST

START_TEST(large_publishes_of_many_sessions_lie_in_a_slow_lane_one_at_a_time_and_not_all_at_once)
{
    for (int i = 0; i < SESSIONS; i++) {
        join(&far[i], FAR);
    }
    rounds(w, 50);
    w->frame_rounds[FAR][LEADER] = 10;
    for (int i = 0; i < SESSIONS; i++) {
        publish(&far[i], LANE_BYTES_MAX);
    }
    const size_t most = until(settled, SESSIONS, lane(FAR, LEADER), 6000);
    ck_assert_uint_ge(most, LANE_BYTES_MAX);
    ck_assert_uint_lt(most, 2 * LANE_BYTES_MAX + 4096);
    ck_assert_uint_eq(attaches(FAR), SESSIONS);
}
END_TEST

// Law 4: what waits for an answer that never comes does so for a bounded time.
START_TEST(what_is_under_way_to_a_live_node_that_takes_no_parts_begins_anew_after_half_a_minute)
{
    join(&near, LEADER);
    join(&far[0], FAR);
    join(&far[1], FAR);
    consume(&far[0], 1);
    w->is_mute[FAR] = true;
    publish(&near, LANE_BYTES_MAX);
    rounds(w, QUEUE_TAKEN_TIMEOUT_NS / 1000000 - 1000);
    ck_assert_uint_eq(far[0].delivered, 0);
    ck_assert_uint_eq(stuck(LEADER), 0);
    publish(&far[1], 10);  // Others are not held up.
    rounds(w, 50);
    ck_assert_uint_eq(far[1].settled, 1);
    w->is_mute[FAR] = false;
    rounds(w, 2000);
    ck_assert_uint_eq(stuck(LEADER), 1);
    ck_assert_uint_eq(far[0].delivered, 1);
    ck_assert_uint_eq(far[0].bytes, LANE_BYTES_MAX);
    ck_assert_uint_eq(lane(LEADER, FAR)->run_bytes, 0);
}
END_TEST

START_TEST(a_large_publish_to_a_live_node_that_takes_no_parts_begins_anew_after_half_a_minute)
{
    join(&far[0], FAR);
    rounds(w, 50);
    w->is_mute[LEADER] = true;
    publish(&far[0], LANE_BYTES_MAX);
    rounds(w, QUEUE_TAKEN_TIMEOUT_NS / 1000000 - 1000);
    ck_assert_uint_eq(stuck(FAR), 0);
    ck_assert_uint_eq(far[0].settled, 0);
    w->is_mute[LEADER] = false;
    rounds(w, 2000);
    ck_assert_uint_eq(stuck(FAR), 1);
    ck_assert_uint_eq(far[0].settled, 1);
    ck_assert_uint_eq(queue_replica_state(world_replica(w, LEADER))->ready_count, 1);
}
END_TEST

static struct queue_metrics metrics(uint32_t node)
{
    struct queue_metrics m;
    queue_service_metrics(w->hosts[node].q, &m);
    return m;
}
// A session asks again after two seconds, for an answer may be lost; what it asks about is 128 MiB, perhaps.
START_TEST(what_a_leader_has_taken_and_cannot_commit_for_long_is_not_sent_again)
{
    join(&far[0], FAR);
    rounds(w, 50);
    w->slow_percent = 100;
    publish(&far[0], LANE_BYTES_MAX);
    publish(&far[0], 10);
    rounds(w, 500);
    const uint64_t last = w->last, before = attaches(FAR);
    rounds(w, 6000);
    ck_assert_uint_gt(attaches(FAR), before);
    ck_assert_uint_eq(metrics(FAR).commands_resent, 0);
    ck_assert_uint_eq(metrics(LEADER).commands_repeated, 0);
    ck_assert_uint_eq(w->last, last);
    publish(&far[0], 10);  // Others go on behind them.
    w->slow_percent = 0;
    rounds(w, 100);
    ck_assert_uint_eq(far[0].settled, 3);
    ck_assert_uint_eq(queue_replica_state(world_replica(w, LEADER))->ready_count, 3);
}
END_TEST

// A leader forgets with the connection what it has taken.
START_TEST(what_was_not_answered_when_the_connection_broke_is_sent_again_and_counts_once)
{
    join(&far[0], FAR);
    rounds(w, 50);
    w->slow_percent = 100;
    publish(&far[0], LANE_BYTES_MAX);
    rounds(w, 500);
    w->frame_rounds[FAR][LEADER] = UINT32_MAX;
    publish(&far[0], LANE_BYTES_MAX);
    rounds(w, 50);
    world_reset_wire(w, FAR, LEADER);
    world_reset_wire(w, LEADER, FAR);
    w->frame_rounds[FAR][LEADER] = 0;
    rounds(w, 3000);
    ck_assert_uint_eq(metrics(FAR).commands_resent, 2);
    ck_assert_uint_eq(metrics(LEADER).commands_repeated, 0);
    w->slow_percent = 0;
    rounds(w, 100);
    ck_assert_uint_eq(far[0].settled, 2);
    ck_assert_uint_eq(queue_replica_state(world_replica(w, LEADER))->ready_count, 2);
}
END_TEST

START_TEST(a_session_beside_its_leader_proposes_nothing_twice_however_long_the_disk_takes)
{
    join(&near, LEADER);
    rounds(w, 50);
    w->slow_percent = 100;
    publish(&near, LANE_BYTES_MAX);
    publish(&near, 10);
    rounds(w, 10);
    const uint64_t last = w->last;
    rounds(w, 6000);
    ck_assert_uint_eq(w->last, last);
    w->slow_percent = 0;
    rounds(w, 100);
    ck_assert_uint_eq(near.settled, 2);
    ck_assert_uint_eq(queue_replica_state(world_replica(w, LEADER))->ready_count, 2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("queue_slow_lane");
    TCase *t = tcase_create("queue_slow_lane");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_session_whose_answer_comes_behind_a_delivery_of_three_seconds_does_not_attach_anew);
    tcase_add_test(t, a_session_whose_answer_does_not_come_and_to_which_nothing_comes_either_attaches_anew);
    tcase_add_test(t, large_deliveries_of_many_sessions_lie_in_a_slow_lane_one_at_a_time_and_not_all_at_once);
    tcase_add_test(t, deliveries_wait_for_a_lane_that_is_full);
    tcase_add_test(t, large_publishes_of_many_sessions_lie_in_a_slow_lane_one_at_a_time_and_not_all_at_once);
    tcase_add_test(t, what_is_under_way_to_a_live_node_that_takes_no_parts_begins_anew_after_half_a_minute);
    tcase_add_test(t, a_large_publish_to_a_live_node_that_takes_no_parts_begins_anew_after_half_a_minute);
    tcase_add_test(t, what_a_leader_has_taken_and_cannot_commit_for_long_is_not_sent_again);
    tcase_add_test(t, what_was_not_answered_when_the_connection_broke_is_sent_again_and_counts_once);
    tcase_add_test(t, a_session_beside_its_leader_proposes_nothing_twice_however_long_the_disk_takes);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
