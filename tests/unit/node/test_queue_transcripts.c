// SPDX-License-Identifier: Apache-2.0
// links: node/base node/queue proto gen
// Queue sessions, told step by step: one session or two, one thing that goes wrong, what everybody sees (decision 1,
// node/queue/README.md). The same under a workload and random faults: test_queue_sessions.c.
#include "queue_world.h"

struct answers {
    uint32_t gets, purges, lost, ended, settled, delivered, infos;
    uint64_t token, ready, purged, number;
    uint32_t acquired, failed;
    bool was_empty, is_deleted, is_refusing;  // Refusing: closes its session instead of taking a message.
    enum rc rc;
    struct queue_info info;
};
static void a_get(void *ctx, struct queue_session *s, uint64_t token, enum rc rc,
                  const struct queue_message *m, uint64_t ready)
{
    struct answers *a = ctx;
    a->gets++;
    a->token = token;
    a->rc = rc;
    a->ready = ready;
    a->was_empty = m == NULL;
    a->number = m ? m->number : 0;
    a->acquired = m ? m->acquired_count : 0;
    if (m && a->is_refusing) {
        queue_session_close(s);
    }
}
static void a_purge(void *ctx, struct queue_session *s, uint64_t token, uint64_t count)
{
    ((struct answers *)ctx)->purges++;
    ((struct answers *)ctx)->purged = count;
}
static void a_lost(void *ctx, struct queue_session *s, uint32_t consumer)
{
    ck_assert_uint_eq(((struct answers *)ctx)->ended, 0);
    ((struct answers *)ctx)->lost++;
}
static void a_ended(void *ctx, struct queue_session *s, bool is_deleted)
{
    ((struct answers *)ctx)->ended++;
    ((struct answers *)ctx)->is_deleted = is_deleted;
}
static void a_settled(void *ctx, struct queue_session *s, uint64_t through, const uint64_t *rejected, uint32_t count)
{
    ((struct answers *)ctx)->settled = (uint32_t)through;
}
static void a_deliver(void *ctx, struct queue_session *s, uint32_t consumer, const struct queue_message *m)
{
    struct answers *a = ctx;
    a->delivered++;
    a->number = m->number;
    a->acquired = m->acquired_count;
    a->failed = m->delivery_count;
    if (a->is_refusing) {
        queue_session_close(s);
    }
}
static void a_info(void *ctx, enum rc rc, const struct queue_info *info)
{
    struct answers *a = ctx;
    a->infos++;
    a->rc = rc;
    a->info = *info;
}
static struct queue_session *open_on(struct world *w, uint32_t node, struct answers *a)
{
    static const struct queue_callbacks cb = {.settled = a_settled,
                                              .deliver = a_deliver,
                                              .get_done = a_get,
                                              .purge_done = a_purge,
                                              .consumer_lost = a_lost,
                                              .ended = a_ended};
    struct queue_target t = world_target();
    return queue_session_open(w->hosts[node].q, &t, &cb, a);
}
static void publish(struct queue_session *s, const char *body)
{
    struct span key = span_str("k");
    struct queue_publish m = {.routing_keys = &key, .routing_keys_count = 1, .body = span_str(body), .expiry_ms = -1};
    (void)queue_session_publish(s, &m);
}
static void consume(struct queue_session *s, uint32_t prefetch)
{
    struct queue_consume c = {.consumer = 1, .prefetch = prefetch, .tag = span_str("t")};
    queue_session_consume(s, &c);
}

START_TEST(an_untouched_queue_keeps_no_machine)
{
    struct world *w = world_create(1, settings_plain());
    rounds(w, 40);
    const struct fsm_ops *ops = queue_replica_fsm_ops();
    for (uint32_t node = 1; node <= MEMBERS; node++) {
        struct queue_replica *r = world_replica(w, node), *from = world_replica(w, node % MEMBERS + 1);
        ck_assert_ptr_null(r->wanted);  // The settings are in the state.
        ck_assert_ptr_null(r->fsm);
        ck_assert_uint_eq(r->plain_version, 2);
        ck_assert_int_eq(queue_replica_state_stamp(r), queue_replica_state_stamp(from));
        ck_assert_int_gt(queue_replica_state_stamp(r), 0);
        if (node == w->leader) {
            continue;
        }
        // Its snapshot says all of it.
        const int64_t stamp = queue_replica_state_stamp(r);
        struct buf chunk = {0};
        struct fsm_snapshot *snapshot = ops->snapshot_begin(from);
        ck_assert(!ops->snapshot_chunk(snapshot, &chunk));
        ops->snapshot_end(snapshot);
        ck_assert_ptr_null(from->fsm);
        r->plain_stamp_ms = 0;
        r->plain_version = 0;
        ops->restore_begin(r);
        ck_assert_int_eq(ops->restore_chunk(r, buf_span(&chunk)), RC_OK);
        ck_assert_int_eq(ops->restore_end(r, r->applied), RC_OK);
        buf_deinit(&chunk);
        ck_assert_ptr_null(r->fsm);
        ck_assert_uint_eq(r->plain_version, 2);
        ck_assert_int_eq(queue_replica_state_stamp(r), stamp);
    }
    struct answers a = {0};
    struct queue_session *s = open_on(w, 4, &a);
    publish(s, "m");
    rounds(w, 40);
    const uint64_t digest = queue_fsm_digest(world_replica(w, 1)->fsm);
    for (uint32_t node = 1; node <= MEMBERS; node++) {
        ck_assert_uint_eq(queue_replica_state(world_replica(w, node))->ready_count, 1);
        ck_assert_uint_eq(queue_fsm_digest(world_replica(w, node)->fsm), digest);
    }
    queue_session_close(s);
    world_destroy(w);
    struct queue_settings settings = settings_plain();
    settings.max_length = 3;
    w = world_create(1, settings);
    rounds(w, 40);
    ck_assert_int_eq(queue_replica_state(world_replica(w, 1))->settings.max_length, 3);
    world_destroy(w);
}
END_TEST

START_TEST(get_and_purge_come_after_the_publishes_before_them_from_any_node)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0};
    struct queue_session *s = open_on(w, (uint32_t)_i, &a);
    for (int i = 0; i < 5; i++) {
        publish(s, "m");
    }
    queue_session_get(s, 11, false);
    queue_session_get(s, 12, true);
    rounds(w, 40);
    ck_assert_uint_eq(a.gets, 2);
    ck_assert_uint_eq(a.token, 12);
    ck_assert_uint_eq(a.number, 2);
    ck_assert_uint_eq(a.ready, 3);
    ck_assert_uint_eq(queue_replica_state(world_replica(w, 1))->unacked_count, 1);  // The no-ack one settled itself.
    queue_session_settle(s, 0, 1, 1, QUEUE_RELEASE);
    queue_session_purge(s, 13);
    rounds(w, 40);
    ck_assert_uint_eq(a.purges, 1);
    ck_assert_uint_eq(a.purged, 4);
    queue_session_get(s, 14, false);
    rounds(w, 40);
    ck_assert(a.was_empty);
    queue_session_close(s);
    world_destroy(w);
}
END_TEST

START_TEST(a_get_whose_answer_is_lost_with_its_leader_is_answered_by_the_next)
{
    for (uint64_t at = 1; at < 40; at++) {
        for (int fault = FAULT_LOSE; fault <= FAULT_STALE_LEADER; fault++) {
            struct world *w = world_create(at, settings_plain());
            struct answers a = {0};
            struct queue_session *s = open_on(w, 4, &a);
            publish(s, "m");
            queue_session_get(s, 1, false);
            queue_session_get(s, 2, false);
            w->fault_at = at;
            w->fault = (enum fault)fault;
            for (int i = 0; i < 3500 && a.gets < 2; i++) {
                rounds(w, 1);
                if (i == 100) {
                    world_old_leaders_learn(w);
                }
            }
            ck_assert_uint_eq(a.gets, 2);
            ck_assert(a.was_empty);
            ck_assert_uint_eq(queue_replica_state(world_replica(w, w->leader))->unacked_count, 1);
            queue_session_close(s);
            world_destroy(w);
        }
    }
}
END_TEST

// The index of the nth publish in the log.
static uint64_t index_of_publish(struct world *w, uint32_t nth)
{
    for (uint64_t i = 0; i < w->last; i++) {
        if (w->log[i].kind == RECORD_ENTRY && w->log[i].payload.ptr[1] == QUEUE_COMMAND_ENQUEUE && --nth == 0) {
            return w->log[i].index;
        }
    }
    ck_abort_msg("not published");
}

START_TEST(a_get_of_a_message_that_cannot_be_read_is_answered_and_the_next_gets_the_next)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0};
    struct queue_session *s = open_on(w, (uint32_t)_i, &a);
    for (int i = 0; i < 3; i++) {
        publish(s, "m");
    }
    rounds(w, 40);
    w->unreadable = index_of_publish(w, 2);
    queue_session_get(s, 1, false);
    queue_session_get(s, 2, true);
    rounds(w, 40);
    ck_assert_uint_eq(a.gets, 2);
    ck_assert_uint_eq(a.token, 2);
    ck_assert_int_eq(a.rc, RC_CORRUPT);
    ck_assert_uint_eq(queue_replica_state(world_replica(w, 1))->unacked_count, 2);  // It is not lost.
    queue_session_get(s, 3, false);
    rounds(w, 40);
    ck_assert_uint_eq(a.gets, 3);
    ck_assert_int_eq(a.rc, RC_OK);
    ck_assert_uint_eq(a.number, 3);
    queue_session_close(s);
    world_destroy(w);
}
END_TEST

START_TEST(a_message_that_cannot_be_read_does_not_hold_up_those_behind_it)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0};
    struct queue_session *s = open_on(w, (uint32_t)_i, &a);
    for (int i = 0; i < 3; i++) {
        publish(s, "m");
    }
    rounds(w, 40);
    w->unreadable = index_of_publish(w, 2);
    consume(s, 10);
    rounds(w, 40);
    ck_assert_uint_eq(a.delivered, 2);
    ck_assert_uint_eq(a.number, 3);
    ck_assert_uint_eq(w->hosts[_i].q->metrics.gaps, 0);
    queue_session_close(s);
    world_destroy(w);
}
END_TEST

START_TEST(a_no_ack_message_that_the_channel_could_not_send_goes_back)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0}, b = {.is_refusing = true};
    struct queue_session *p = open_on(w, 2, &a), *s = open_on(w, 4, &b);
    publish(p, "m");
    rounds(w, 40);
    if (_i == 0) {
        queue_session_get(s, 1, true);
    } else {
        struct queue_consume c = {.consumer = 1, .is_no_ack = true, .tag = span_str("t")};
        queue_session_consume(s, &c);
    }
    rounds(w, 60);
    ck_assert_uint_eq(b.gets + b.delivered, 1);
    ck_assert_uint_eq(queue_replica_state(world_replica(w, 1))->ready_count, 1);
    queue_session_close(p);
    world_destroy(w);
}
END_TEST

static uint32_t commands_in_log(struct world *w, enum queue_command_kind kind)
{
    uint32_t n = 0;
    for (uint64_t i = 0; i < w->last; i++) {
        n += w->log[i].kind == RECORD_ENTRY && w->log[i].payload.ptr[1] == kind;
    }
    return n;
}

START_TEST(commands_proposed_twice_because_a_connection_was_renewed_are_applied_once)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0};
    struct queue_session *s = open_on(w, 4, &a);
    publish(s, "m");
    rounds(w, 30);
    ck_assert_uint_eq(a.settled, 1);
    w->slow_percent = 100;
    for (int i = 0; i < 10; i++) {
        publish(s, "m");
    }
    rounds(w, 10);
    for (int n = 0; n < 3; n++) {
        world_reset_wire(w, 1, 4);
        rounds(w, 30);
    }
    ck_assert_uint_eq(commands_in_log(w, QUEUE_COMMAND_ENQUEUE), 1 + 4 * 10);
    w->slow_percent = 0;
    rounds(w, 30);
    ck_assert_uint_eq(a.settled, 11);
    ck_assert_uint_eq(queue_replica_state(world_replica(w, 1))->ready_count, 11);

    w->slow_percent = 100;
    queue_session_get(s, 1, false);
    rounds(w, 10);
    world_reset_wire(w, 1, 4);
    rounds(w, 30);
    ck_assert_uint_eq(commands_in_log(w, QUEUE_COMMAND_GET), 2);
    w->slow_percent = 0;
    rounds(w, 30);
    ck_assert_uint_eq(a.gets, 1);
    ck_assert_uint_eq(a.ready, 10);
    ck_assert_uint_eq(queue_replica_state(world_replica(w, 1))->unacked_count, 1);
    queue_session_close(s);
    world_destroy(w);
}
END_TEST

// Connections are one-way. The leader says that it lost the session over its new one, which may break as well before that is
// out; and a consumer that waits has nothing to ask.
START_TEST(an_idle_consumer_gets_messages_after_connections_that_broke_one_after_the_other)
{
    for (int breaks = 1; breaks <= 3; breaks++) {
        for (int rounds_between = 0; rounds_between < 3; rounds_between++) {
            struct world *w = world_create((uint64_t)breaks, settings_plain());
            struct answers a = {0}, p = {0};
            struct queue_session *s = open_on(w, 4, &a);
            struct queue_session *publisher = open_on(w, 2, &p);
            consume(s, 10);
            publish(publisher, "m");
            rounds(w, 30);
            ck_assert_uint_eq(a.delivered, 1);
            for (int i = 0; i < breaks; i++) {
                rounds(w, i == 0 ? 0 : rounds_between);
                world_reset_wire(w, 1, 4);
            }
            rounds(w, 30);
            publish(publisher, "m");
            rounds(w, 30);
            ck_assert_uint_eq(p.settled, 2);
            ck_assert_uint_eq(a.delivered, 2);
            queue_session_close(s);
            queue_session_close(publisher);
            world_destroy(w);
        }
    }
}
END_TEST

START_TEST(a_command_of_an_earlier_attach_applied_under_a_new_one_stops_nothing)
{
    for (int i = 0; i < 400; i++) {
        struct world *w = world_create((uint64_t)i, settings_plain());
        struct answers a = {0};
        struct queue_session *s = open_on(w, 4, &a);
        publish(s, "m");
        rounds(w, 30);
        w->slow_percent = 100;
        publish(s, "m");
        rounds(w, 10);
        world_reset_wire(w, i % 2 == 0 ? 1 : 4, i % 2 == 0 ? 4 : 1);
        rounds(w, i / 2 % 20);
        w->slow_percent = 0;  // Somewhere between the new attach and what is sent again.
        rounds(w, 10);
        publish(s, "m");
        rounds(w, 30);
        ck_assert_uint_eq(a.settled, 3);
        queue_session_close(s);
        world_destroy(w);
    }
}
END_TEST

START_TEST(a_session_whose_open_is_applied_after_its_node_has_died_does_not_stay)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0};
    rounds(w, 5);
    w->slow_percent = 100;
    (void)open_on(w, 4, &a);
    rounds(w, 10);
    ck_assert_uint_eq(commands_in_log(w, QUEUE_COMMAND_OPEN), 1);
    world_kill(w, 4);
    world_verdict(w, 4, NODE_DEAD, 1);
    world_verdict(w, 4, NODE_ALIVE, 2);
    rounds(w, 10);
    w->slow_percent = 0;
    rounds(w, 30);
    ck_assert_ptr_null(queue_replica_state(world_replica(w, 1))->busy);
    w->is_down[4] = false;
    world_destroy(w);
}
END_TEST

START_TEST(a_dead_nodes_messages_return_at_once_and_a_silent_ones_after_the_time_out)
{
    bool is_dead = _i == 0;
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0}, b = {0};
    struct queue_session *s = open_on(w, 4, &a);
    consume(s, 10);
    rounds(w, 20);
    struct queue_session *other = open_on(w, 2, &b);
    publish(other, "m");
    rounds(w, 20);
    ck_assert_uint_eq(a.delivered, 1);
    consume(other, 10);
    rounds(w, 20);
    ck_assert_uint_eq(b.delivered, 0);
    world_kill(w, 4);
    world_verdict(w, 4, is_dead ? NODE_DEAD : NODE_SUSPECT, 1);
    rounds(w, 30);
    ck_assert_uint_eq(b.delivered, is_dead ? 1 : 0);
    if (!is_dead) {
        w->now += 59ull * 1000000000;
        rounds(w, 30);
        ck_assert_uint_eq(b.delivered, 0);
        world_elect(w, 3, 0, true);  // The next leader counts from its own doubt: it heard at the same time.
        rounds(w, 30);
        ck_assert_uint_eq(b.delivered, 0);
        w->now += 2ull * 1000000000;
        rounds(w, 60);
    }
    ck_assert_uint_eq(b.delivered, 1);
    ck_assert_uint_eq(b.acquired, 1);
    ck_assert_uint_eq(b.failed, 0);
    queue_session_close(other);
    w->is_down[4] = false;
    world_destroy(w);
}
END_TEST

// A leader in doubt says for one session that it is not ready. Were the others to attach anew with it, each time, all that is being
// read from disk for their consumers would be dropped and asked for again, every two milliseconds: the disk would be busy with that
// alone, and the leader never apply what would end its doubt.
START_TEST(a_session_in_doubt_does_not_make_the_others_of_its_queue_attach_anew)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0}, b = {0};
    struct queue_session *s = open_on(w, 4, &a), *other = open_on(w, 4, &b);
    consume(s, 10);
    rounds(w, 30);
    w->frame_rounds[1][4] = UINT32_MAX;  // That it has ended is not heard.
    queue_session_close(other);
    rounds(w, 30);
    w->frame_rounds[1][4] = 0;
    w->is_unproven = true;
    world_reset_wire(w, 1, 4);
    world_reset_wire(w, 4, 1);
    const uint64_t before = w->hosts[4].q->metrics.attaches;
    rounds(w, 1000);
    const uint64_t attaches = w->hosts[4].q->metrics.attaches - before;
    ck_assert_uint_ge(attaches, 2 + 5);    // It comes again, for all that,
    ck_assert_uint_le(attaches, 2 + 20);   // twice as late each time, at last every 100 ms.
    publish(s, "m");
    rounds(w, 30);
    ck_assert_uint_eq(a.delivered, 1);
    w->is_unproven = false;
    rounds(w, 300);
    const uint64_t then = w->hosts[4].q->metrics.attaches;
    rounds(w, 300);
    ck_assert_uint_eq(w->hosts[4].q->metrics.attaches, then);  // It knows that it has ended.
    queue_session_close(s);
    rounds(w, 30);
    world_destroy(w);
}
END_TEST

START_TEST(a_node_declared_down_that_lives_on_loses_its_consumers_and_opens_new_sessions)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0}, c = {0};
    struct queue_session *s = open_on(w, 4, &a);
    consume(s, 10);
    publish(s, "m");
    rounds(w, 30);
    ck_assert_uint_eq(a.delivered, 1);
    w->is_down[4] = true;
    world_verdict(w, 4, NODE_SUSPECT, 1);
    w->now += 61ull * 1000000000;
    rounds(w, 30);
    ck_assert_ptr_null(queue_replica_state(world_replica(w, 1))->busy);
    w->is_down[4] = false;
    for (uint32_t n = 1; n <= MEMBERS; n++) {
        world_reset_wire(w, n, 4);
        world_reset_wire(w, 4, n);
    }
    world_verdict(w, 4, NODE_ALIVE, 1);
    queue_session_settle(s, 1, 1, 1, QUEUE_ACK);  // Too late: the message has gone back.
    publish(s, "in doubt");
    rounds(w, 50);
    ck_assert_uint_eq(a.ended, 1);
    ck_assert_uint_eq(a.lost, 1);
    ck_assert(!a.is_deleted);
    ck_assert_uint_eq(queue_replica_state(world_replica(w, 1))->ready_count, 1);
    struct queue_session *again = open_on(w, 4, &c);
    consume(again, 10);
    rounds(w, 30);
    ck_assert_uint_eq(c.delivered, 1);
    ck_assert_uint_eq(c.acquired, 1);
    queue_session_close(s);
    queue_session_close(again);
    world_destroy(w);
}
END_TEST

START_TEST(deleting_the_queue_ends_sessions_everywhere)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a[5] = {{0}};
    struct queue_session *s[5];
    for (uint32_t n = 1; n <= NODES; n++) {
        s[n] = open_on(w, n, &a[n]);
        consume(s[n], 1);
    }
    rounds(w, 30);
    for (uint32_t n = 1; n <= MEMBERS; n++) {
        queue_replica_remove(w->hosts[n].q, GROUP, true);
        w->hosts[n].group.is_leader = false;
    }
    rounds(w, 400);
    for (uint32_t n = 1; n <= NODES; n++) {
        ck_assert_uint_eq(a[n].ended, 1);
        ck_assert_uint_eq(a[n].lost, 1);
        ck_assert(a[n].is_deleted);
        queue_session_close(s[n]);
    }
    // One that comes late is told as well.
    struct answers late = {0};
    struct queue_session *l = open_on(w, 4, &late);
    publish(l, "m");
    rounds(w, 100);
    ck_assert_uint_eq(late.ended, 1);
    ck_assert(late.is_deleted);
    queue_session_close(l);
    rounds(w, 2);
    world_destroy(w);
}
END_TEST

START_TEST(a_channel_that_closes_right_after_publishing_loses_nothing)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0};
    struct queue_session *s = open_on(w, (uint32_t)_i, &a);
    for (int i = 0; i < 100; i++) {
        publish(s, "m");
    }
    queue_session_close(s);
    rounds(w, 60);
    ck_assert_uint_eq(queue_replica_state(world_replica(w, 1))->ready_count, 100);
    ck_assert_ptr_null(queue_replica_state(world_replica(w, 1))->busy);
    ck_assert_uint_eq(a.settled, 0);  // Nobody listens any more.
    ck_assert_uint_eq(map_count(&w->hosts[_i].q->sessions), 0);
    world_destroy(w);
}
END_TEST

START_TEST(a_remote_consumer_that_takes_nothing_gets_a_window_and_one_message)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0}, b = {0};
    struct queue_session *p = open_on(w, 2, &a), *s = open_on(w, (uint32_t)_i, &b);
    char *body = mem_zalloc((100 << 10) + 1);
    memset(body, 'x', 100 << 10);
    consume(s, 0);
    for (int i = 0; i < 40; i++) {
        publish(p, body);
        rounds(w, 3);
    }
    rounds(w, 50);
    ck_assert_uint_eq(a.settled, 40);
    ck_assert_uint_eq(b.delivered, (1 << 20) / (100 << 10) + 1);
    queue_session_taken(s, 1, 300 << 10);
    rounds(w, 20);
    ck_assert_uint_eq(b.delivered, (1 << 20) / (100 << 10) + 1 + 3);
    queue_session_pause(s, true);
    rounds(w, 20);
    queue_session_taken(s, 1, 10 << 20);
    rounds(w, 20);
    ck_assert_uint_eq(b.delivered, (1 << 20) / (100 << 10) + 1 + 3);
    queue_session_pause(s, false);
    rounds(w, 20);
    ck_assert_uint_gt(b.delivered, (1 << 20) / (100 << 10) + 1 + 3);
    free(body);
    queue_session_close(p);
    queue_session_close(s);
    world_destroy(w);
}
END_TEST

START_TEST(the_next_of_a_cold_backlog_is_read_while_the_last_read_is_sent)
{
    struct world *w = world_create(1, settings_plain());
    w->cold_percent = 100;
    struct answers a = {0}, b = {0};
    struct queue_session *p = open_on(w, 1, &a), *s = open_on(w, 1, &b);
    for (int i = 0; i < 1000; i++) {
        publish(p, "m");
        if (i % 50 == 0) {
            rounds(w, 3);
        }
    }
    rounds(w, 50);
    ck_assert_uint_eq(a.settled, 1000);
    consume(s, 1000);
    rounds(w, 100);
    ck_assert_uint_eq(b.delivered, 1000);
    ck_assert_uint_eq(b.number, 1000);
    ck_assert_uint_eq(w->reads_most, 2);
    ck_assert_uint_eq(w->reads_count, 0);
    queue_session_close(p);
    queue_session_close(s);
    world_destroy(w);
}
END_TEST

START_TEST(large_messages_of_a_cold_backlog_are_read_one_at_a_time_when_it_is_their_turn)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0}, b = {0};
    struct queue_session *p = open_on(w, 1, &a), *s = open_on(w, 1, &b);
    char *body = mem_zalloc((300 << 10) + 1);
    memset(body, 'x', 300 << 10);
    for (int i = 0; i < 6; i++) {
        publish(p, i < 3 ? body : "m");
        rounds(w, 10);
    }
    w->cold_percent = 100;
    consume(s, 2);
    rounds(w, 20);
    ck_assert_uint_eq(b.delivered, 2);
    ck_assert_uint_eq(w->reads_most, 1);
    ck_assert_uint_eq(w->read_indexes, 2);  // Not the third, which is not its turn.
    queue_session_settle(s, 1, 1, 2, QUEUE_ACK);
    rounds(w, 20);
    ck_assert_uint_eq(b.delivered, 4);
    ck_assert_uint_eq(w->reads_most, 2);  // The small ones behind the third, while that is sent.
    ck_assert_uint_eq(w->read_indexes, 6);
    free(body);
    queue_session_close(p);
    queue_session_close(s);
    world_destroy(w);
}
END_TEST

// Who works on its message for long would hold what was read for it, and those who drain would get the smaller reads.
START_TEST(where_many_hold_reads_a_lone_consumer_that_works_on_its_message_holds_none)
{
    struct world *w = world_create(1, settings_plain());
    w->cold_percent = 100;
    struct answers a = {0}, b = {0};
    struct queue_session *p = open_on(w, 1, &a), *s = open_on(w, 1, &b);
    for (int i = 0; i < 100; i++) {
        publish(p, "m");
        rounds(w, 3);
    }
    rounds(w, 50);
    ck_assert_uint_eq(a.settled, 100);
    const uint32_t others = QUEUE_COLD_ALL_BYTES / QUEUE_COLD_BYTES;
    w->hosts[w->leader].q->cold_count += others;
    consume(s, 1);
    rounds(w, 50);
    ck_assert_uint_eq(b.delivered, 1);
    ck_assert_uint_eq(w->read_indexes, 1);
    ck_assert_uint_eq(w->hosts[w->leader].q->cold_count, others);
    w->hosts[w->leader].q->cold_count -= others;
    queue_session_close(p);
    queue_session_close(s);
    world_destroy(w);
}
END_TEST

START_TEST(settles_pass_a_full_group_and_a_full_session_says_so)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0};
    struct queue_session *s = open_on(w, (uint32_t)_i, &a);
    consume(s, 10);
    publish(s, "m");
    rounds(w, 30);
    ck_assert_uint_eq(a.delivered, 1);
    w->full_rounds = 100;
    uint32_t n = 0;
    while (!queue_session_is_full(s)) {
        publish(s, "m");
        n++;
    }
    ck_assert_uint_le(n, LIMIT_SESSION_COMMANDS);
    rounds(w, 20);
    queue_session_settle(s, 1, 1, 1, QUEUE_ACK);
    rounds(w, 20);
    ck_assert_uint_eq(queue_replica_state(world_replica(w, 1))->unacked_count, 0);
    ck_assert_uint_eq(a.settled, 1);
    rounds(w, 100);
    ck_assert_uint_eq(a.settled, n + 1);
    ck_assert(!queue_session_is_full(s));
    queue_session_close(s);
    world_destroy(w);
}
END_TEST

START_TEST(counts_are_asked_of_the_leader_and_time_out_without_one)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0}, q = {0};
    struct queue_session *s = open_on(w, 2, &a);
    publish(s, "12345");
    publish(s, "1");
    consume(s, 1);
    rounds(w, 30);
    struct queue_target t = world_target();
    for (uint32_t n = 1; n <= NODES; n++) {
        queue_info_get(w->hosts[n].q, &t, 250, a_info, &q);
        rounds(w, 200);
        ck_assert_uint_eq(q.infos, n);
        ck_assert_int_eq(q.rc, RC_OK);
        ck_assert_uint_eq(q.info.ready, 1);
        ck_assert_uint_eq(q.info.unacked, 1);
        ck_assert_uint_eq(q.info.consumers, 1);
    }
    for (uint32_t n = 1; n <= MEMBERS; n++) {
        world_role(w, n, false, w->term, 0);
    }
    queue_info_get(w->hosts[4].q, &t, 250, a_info, &q);
    rounds(w, 249);
    ck_assert_uint_eq(q.infos, NODES);
    rounds(w, 5);
    ck_assert_uint_eq(q.infos, NODES + 1);
    ck_assert_int_eq(q.rc, RC_TIMEOUT);
    queue_session_close(s);
    world_destroy(w);
}
END_TEST

START_TEST(an_idle_service_wants_no_turn)
{
    struct world *w = world_create(1, settings_plain());
    struct answers a = {0};
    struct queue_session *s = open_on(w, 4, &a);
    consume(s, 10);
    publish(s, "m");
    rounds(w, 400);
    for (uint32_t n = 1; n <= NODES; n++) {
        ck_assert_uint_eq(queue_service_turn(w->hosts[n].q), UINT64_MAX);
    }
    queue_session_close(s);
    world_destroy(w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("queue_transcripts");
    TCase *t = tcase_create("queue_transcripts");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, a_get_of_a_message_that_cannot_be_read_is_answered_and_the_next_gets_the_next, 1, NODES + 1);
    tcase_add_loop_test(t, a_message_that_cannot_be_read_does_not_hold_up_those_behind_it, 1, NODES + 1);
    tcase_add_loop_test(t, a_no_ack_message_that_the_channel_could_not_send_goes_back, 0, 2);
    tcase_add_loop_test(t, get_and_purge_come_after_the_publishes_before_them_from_any_node, 1, NODES + 1);
    tcase_add_test(t, a_get_whose_answer_is_lost_with_its_leader_is_answered_by_the_next);
    tcase_add_test(t, commands_proposed_twice_because_a_connection_was_renewed_are_applied_once);
    tcase_add_test(t, an_idle_consumer_gets_messages_after_connections_that_broke_one_after_the_other);
    tcase_add_test(t, a_command_of_an_earlier_attach_applied_under_a_new_one_stops_nothing);
    tcase_add_test(t, a_session_whose_open_is_applied_after_its_node_has_died_does_not_stay);
    tcase_add_loop_test(t, a_dead_nodes_messages_return_at_once_and_a_silent_ones_after_the_time_out, 0, 2);
    tcase_add_test(t, a_session_in_doubt_does_not_make_the_others_of_its_queue_attach_anew);
    tcase_add_test(t, a_node_declared_down_that_lives_on_loses_its_consumers_and_opens_new_sessions);
    tcase_add_test(t, deleting_the_queue_ends_sessions_everywhere);
    tcase_add_loop_test(t, a_channel_that_closes_right_after_publishing_loses_nothing, 1, NODES + 1);
    tcase_add_loop_test(t, a_remote_consumer_that_takes_nothing_gets_a_window_and_one_message, 1, NODES + 1);
    tcase_add_test(t, the_next_of_a_cold_backlog_is_read_while_the_last_read_is_sent);
    tcase_add_test(t, large_messages_of_a_cold_backlog_are_read_one_at_a_time_when_it_is_their_turn);
    tcase_add_test(t, where_many_hold_reads_a_lone_consumer_that_works_on_its_message_holds_none);
    tcase_add_loop_test(t, settles_pass_a_full_group_and_a_full_session_says_so, 1, NODES + 1);
    tcase_add_test(t, counts_are_asked_of_the_leader_and_time_out_without_one);
    tcase_add_test(t, an_idle_service_wants_no_turn);
    tcase_add_test(t, an_untouched_queue_keeps_no_machine);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
