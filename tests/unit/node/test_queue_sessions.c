// SPDX-License-Identifier: Apache-2.0
// links: node/base node/queue proto gen
// Queue sessions against a leader, wires and a log that fail at every step (decision 1; node/queue/README.md).
//
// One workload, many faults: publishers on a member, on the leader's node and on a node without a replica; consumers that
// acknowledge, release and return. Whatever happens: each publish is applied once and settled once, deliveries come in
// number order without repeats, each message reaches a client first exactly once, nothing is left behind.
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
static struct queue_settings settings_plain(void)
{
    return (struct queue_settings){.max_length = -1, .max_length_bytes = -1, .delivery_limit = 20, .metadata_version = 1};
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

// ---- transcripts ---------------------------------------------------------------------------------------------------

static void rounds(struct world *w, int n)
{
    while (n-- > 0) {
        world_round(w);
    }
}

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
        struct world_frame *f = list_entry(l, struct world_frame, link);
        frame_arrive(w, 4, 1, f);
        rounds(w, 3);
        ck_assert_ptr_null(queue_replica_state(r)->busy);
        ck_assert_uint_eq(queue_replica_state(r)->ready_count, 0);
        frame_drop(f);
    }
    ck_assert(list_is_empty(&r->leading->servers));
    world_destroy(w);
    free(k);
}
END_TEST

struct answers {
    uint32_t gets, purges, lost, ended, settled, delivered, infos;
    uint64_t token, ready, purged, number;
    uint32_t acquired, failed;
    bool was_empty, is_deleted;
    enum rc rc;
    struct queue_info info;
};
static void a_get(void *ctx, struct queue_session *s, uint64_t token, enum rc rc, const struct queue_message *m, uint64_t ready)
{
    struct answers *a = ctx;
    a->gets++;
    a->token = token;
    a->ready = ready;
    a->was_empty = m == NULL;
    a->number = m ? m->number : 0;
    a->acquired = m ? m->acquired_count : 0;
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
    static const struct queue_callbacks cb = {.settled = a_settled, .deliver = a_deliver, .get_done = a_get, .purge_done = a_purge, .consumer_lost = a_lost, .ended = a_ended};
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
    tcase_add_test(t, replaying_all_frames_of_a_node_after_its_sessions_ended_changes_nothing);
    tcase_add_loop_test(t, get_and_purge_come_after_the_publishes_before_them_from_any_node, 1, NODES + 1);
    tcase_add_test(t, a_get_whose_answer_is_lost_with_its_leader_is_answered_by_the_next);
    tcase_add_test(t, commands_proposed_twice_because_a_connection_was_renewed_are_applied_once);
    tcase_add_test(t, a_command_of_an_earlier_attach_applied_under_a_new_one_stops_nothing);
    tcase_add_test(t, a_session_whose_open_is_applied_after_its_node_has_died_does_not_stay);
    tcase_add_loop_test(t, a_dead_nodes_messages_return_at_once_and_a_silent_ones_after_the_time_out, 0, 2);
    tcase_add_test(t, a_node_declared_down_that_lives_on_loses_its_consumers_and_opens_new_sessions);
    tcase_add_test(t, deleting_the_queue_ends_sessions_everywhere);
    tcase_add_loop_test(t, a_channel_that_closes_right_after_publishing_loses_nothing, 1, NODES + 1);
    tcase_add_loop_test(t, a_remote_consumer_that_takes_nothing_gets_a_window_and_one_message, 1, NODES + 1);
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
