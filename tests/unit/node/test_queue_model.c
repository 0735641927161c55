// SPDX-License-Identifier: Apache-2.0
// links: node/base node/queue proto gen
// The queue's state machine against a plain model, at random; snapshots of every state on the way.
//
// The model knows each message's fate by the rules alone: ready, held by one consumer, or gone. After every command the
// machine must hold exactly what the model holds, and a machine restored from its snapshot must be the same
// and stay so.
#include "queue_kit.h"

// Check writes to a file at each of its assertions: these are for the loops.
#define REQUIRE(x) ((x) ? (void)0 : ck_abort_msg("%s", #x))

enum { SESSIONS = 4, CONSUMERS = 3, MESSAGES_MAX = 4000 };
enum fate { NEVER, READY, HELD, GONE };

struct model {
    enum fate fate[MESSAGES_MAX];  // By log index.
    uint32_t acquired[MESSAGES_MAX], failed[MESSAGES_MAX];
};

static struct kit k;
static struct model m;
static struct queue_session_id ids[SESSIONS];
static uint64_t counters[2], incarnations[2];  // Of the two client nodes.

// What the machine holds, by index: fate and counts.
static void gather(struct queue_fsm *f, enum fate *fate, uint32_t *acquired, uint32_t *failed)
{
    struct buf runs = {0};
    queue_ready_freeze(&f->ready, &runs);
    struct queue_run run;
    for (size_t at = 0; at < runs.len; at += sizeof(run)) {
        memcpy(&run, runs.ptr + at, sizeof(run));
        for (uint32_t i = run.from; i < run.to; i++) {
            uint64_t index = queue_ref_index(run.chunk->items[i]);
            REQUIRE(fate[index] == (NEVER));
            fate[index] = READY;
        }
    }
    queue_runs_release(&runs);
    for (uint32_t i = 0; i < f->returns.count; i++) {
        const struct queue_returned *r = queue_returns_at(&f->returns, i);
        uint64_t index = queue_ref_index(r->ref);
        REQUIRE(fate[index] == (NEVER));
        fate[index] = READY;
        acquired[index] = r->acquired;
        failed[index] = r->failed;
    }
    if (!f->busy) {
        return;
    }
    list_each (l, &f->busy->consumers) {
        struct queue_fsm_consumer *c = list_entry(l, struct queue_fsm_consumer, in_queue);
        for (const struct queue_unsettled *u = queue_fsm_next(c, 0); u; u = queue_fsm_next(c, u->number)) {
            uint64_t index = queue_ref_index(u->ref);
            REQUIRE(fate[index] == (NEVER));
            fate[index] = HELD;
            acquired[index] = u->acquired;
            failed[index] = u->failed;
        }
    }
}

static void compare(void)
{
    static enum fate fate[MESSAGES_MAX];
    static uint32_t acquired[MESSAGES_MAX], failed[MESSAGES_MAX];
    memset(fate, 0, sizeof(fate));
    memset(acquired, 0, sizeof(acquired));
    memset(failed, 0, sizeof(failed));
    gather(&k.fsm, fate, acquired, failed);
    for (uint64_t i = 0; i <= k.index; i++) {
        bool is_here = m.fate[i] == READY || m.fate[i] == HELD;
        REQUIRE((fate[i] != NEVER) == is_here);
        if (is_here) {
            REQUIRE(acquired[i] == (m.acquired[i]));
            REQUIRE(failed[i] == (m.failed[i]));
            m.fate[i] = fate[i];  // Whether it was handed out already is the machine's choice.
        }
    }
}

// A machine restored from a snapshot of k; also checks the live set.
static void restore(struct queue_fsm *to)
{
    struct queue_snapshot *s = queue_fsm_freeze(&k.fsm);
    struct buf live = {0}, chunk = {0};
    queue_snapshot_live(s, &live);
    uint64_t at = 0;
    static bool is_live[MESSAGES_MAX];
    memset(is_live, 0, sizeof(is_live));
    for (size_t i = 0; i < live.len / sizeof(struct live_range); i++) {
        struct live_range r;
        memcpy(&r, live.ptr + i * sizeof(r), sizeof(r));
        REQUIRE(r.first > (at + (i > 0)));  // Ascending, and neighbours are joined.
        REQUIRE(r.first <= (r.last));
        for (uint64_t x = r.first; x <= r.last; x++) {
            is_live[x] = true;
        }
        at = r.last;
    }
    for (uint64_t i = 0; i <= k.index; i++) {
        REQUIRE(is_live[i] == (m.fate[i] == READY || m.fate[i] == HELD));
    }
    struct queue_restore r;
    struct queue_settings none = {.max_length = -1, .max_length_bytes = -1};
    queue_fsm_init(to, &none);
    queue_restore_begin(&r, to);
    bool is_more;
    do {
        chunk.len = 0;
        is_more = queue_snapshot_chunk(s, &chunk);
        REQUIRE(chunk.len <= (LIMIT_SNAPSHOT_CHUNK_BYTES));
        REQUIRE(queue_restore_chunk(&r, buf_span(&chunk)) == (RC_OK));
    } while (is_more);
    REQUIRE(queue_restore_end(&r) == (RC_OK));
    queue_snapshot_free(s);
    buf_deinit(&live);
    buf_deinit(&chunk);
    queue_fsm_check(to);
    REQUIRE(queue_fsm_digest(to) == (queue_fsm_digest(&k.fsm)));
    REQUIRE(to->ready_bytes == (k.fsm.ready_bytes));
    REQUIRE(to->unacked_bytes == (k.fsm.unacked_bytes));
}

static void come_back(uint64_t index, bool is_failed)
{
    m.acquired[index]++;
    m.failed[index] += is_failed;
    m.fate[index] = is_failed && m.failed[index] > 3 ? GONE : READY;  // delivery_limit 3 here.
}

static void session_gone(uint32_t i, bool is_failed)
{
    struct queue_fsm_session *s = queue_fsm_session_find(&k.fsm, ids[i]);
    list_each (l, &s->consumers) {
        struct queue_fsm_consumer *c = list_entry(l, struct queue_fsm_consumer, in_session);
        for (const struct queue_unsettled *u = queue_fsm_next(c, 0); u; u = queue_fsm_next(c, u->number)) {
            come_back(queue_ref_index(u->ref), is_failed);
        }
    }
}

static void settle_random(struct rng *rng, uint32_t i, uint32_t consumer)
{
    struct queue_fsm_consumer *c = kit_consumer(&k, ids[i], consumer);
    if (!c) {
        return;
    }
    uint64_t first = 1 + rng_below(rng, c->next_number), last = first + rng_below(rng, 4);
    enum queue_settle how = (enum queue_settle)rng_below(rng, 4);
    for (const struct queue_unsettled *u = queue_fsm_next(c, first - 1); u && u->number <= last;
         u = queue_fsm_next(c, u->number)) {
        uint64_t index = queue_ref_index(u->ref);
        if (how == QUEUE_RELEASE || how == QUEUE_RETURN) {
            come_back(index, how == QUEUE_RETURN);
        } else {
            m.fate[index] = GONE;
        }
    }
    kit_settle(&k, ids[i], consumer, first, last, how);
}

static void reopen(uint32_t i)
{
    ids[i] = kit_id(1 + i % 2, incarnations[i % 2], ++counters[i % 2]);
    kit_open(&k, ids[i]);
    ck_assert_ptr_nonnull(queue_fsm_session_find(&k.fsm, ids[i]));
}

static void one_command(struct rng *rng)
{
    uint32_t i = (uint32_t)rng_below(rng, SESSIONS), consumer = 1 + (uint32_t)rng_below(rng, CONSUMERS);
    switch (rng_below(rng, 14)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: {
        uint64_t index = kit_publish(&k, ids[i], (int)rng_below(rng, 8) - 1, "body");
        m.fate[index] = READY;
        break;
    }
    case 5:
        if (!kit_consumer(&k, ids[i], consumer)) {
            kit_consume(&k, ids[i], consumer, (uint32_t)rng_below(rng, 4), (int32_t)rng_below(rng, 2));
        }
        break;
    case 6:
        kit_control(&k, QUEUE_COMMAND_CANCEL, ids[i], &consumer, sizeof(consumer));
        break;
    case 7:
        kit_control(&k, QUEUE_COMMAND_GET, ids[i], NULL, 0);
        break;
    case 8:
        if (rng_below(rng, 20) == 0) {
            session_gone(i, true);
            kit_control(&k, QUEUE_COMMAND_END, ids[i], NULL, 0);
            reopen(i);
        }
        break;
    case 9:
        if (rng_below(rng, 60) == 0) {
            for (uint32_t x = i % 2; x < SESSIONS; x += 2) {
                session_gone(x, false);
            }
            kit_node_down(&k, ids[i].node, ids[i].incarnation);
            incarnations[i % 2]++;
            for (uint32_t x = i % 2; x < SESSIONS; x += 2) {
                ck_assert_ptr_null(queue_fsm_session_find(&k.fsm, ids[x]));
                reopen(x);
            }
        }
        break;
    case 10: {
        uint32_t credit[2] = {consumer, (uint32_t)rng_below(rng, 5)};
        kit_control(&k, QUEUE_COMMAND_CREDIT, ids[i], credit, sizeof(credit));
        break;
    }
    case 11:
        if (rng_below(rng, 100) == 0) {
            for (uint64_t x = 0; x <= k.index; x++) {
                if (m.fate[x] == READY) {
                    m.fate[x] = GONE;
                }
            }
            kit_control(&k, QUEUE_COMMAND_PURGE, ids[i], NULL, 0);
        }
        break;
    default:
        settle_random(rng, i, rng_below(rng, 8) == 0 ? 0 : consumer);
        break;
    }
}

START_TEST(the_machine_holds_what_the_model_holds_and_restores_to_the_same)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct rng rng;
        rng_seed(&rng, seed + 100u * (uint64_t)_i);
        struct queue_settings s = kit_settings();
        s.delivery_limit = 3;
        s.is_single_active = _i == 1;
        kit_init(&k, s);
        memset(&m, 0, sizeof(m));
        memset(counters, 0, sizeof(counters));
        incarnations[0] = incarnations[1] = 5;
        for (uint32_t i = 0; i < SESSIONS; i++) {
            reopen(i);
        }
        while (k.index < MESSAGES_MAX - 20) {
            one_command(&rng);
            compare();
            if (rng_below(&rng, 40) == 0) {
                struct queue_fsm copy;
                restore(&copy);
                // The copy goes on in the original's place, so that it must stay the same.
                queue_fsm_deinit(&k.fsm);
                k.fsm = copy;
            }
        }
        kit_deinit(&k);
    }
}
END_TEST

START_TEST(a_snapshot_does_not_see_what_comes_after_it)
{
    struct kit x;
    kit_init(&x, kit_settings());
    struct queue_session_id id = kit_id(1, 1, 1);
    kit_open(&x, id);
    for (int i = 0; i < 1200; i++) {
        kit_publish(&x, id, -1, "m");
    }
    uint64_t digest = queue_fsm_digest(&x.fsm);
    struct queue_snapshot *s = queue_fsm_freeze(&x.fsm);
    for (int i = 0; i < 700; i++) {
        kit_control(&x, QUEUE_COMMAND_GET, id, NULL, 0);
        kit_publish(&x, id, -1, "later");
    }
    struct queue_fsm copy;
    struct queue_settings none = kit_settings();
    queue_fsm_init(&copy, &none);
    struct queue_restore r;
    queue_restore_begin(&r, &copy);
    struct buf chunk = {0};
    bool is_more;
    do {
        chunk.len = 0;
        is_more = queue_snapshot_chunk(s, &chunk);
        ck_assert_int_eq(queue_restore_chunk(&r, buf_span(&chunk)), RC_OK);
    } while (is_more);
    ck_assert_int_eq(queue_restore_end(&r), RC_OK);
    ck_assert_uint_eq(queue_fsm_digest(&copy), digest);
    ck_assert_uint_eq(copy.ready_count, 1200);
    queue_snapshot_free(s);
    queue_fsm_deinit(&copy);
    buf_deinit(&chunk);
    kit_deinit(&x);
}
END_TEST

START_TEST(a_large_state_is_cut_into_chunks_within_the_limit)
{
    struct kit x;
    kit_init(&x, kit_settings());
    struct queue_session_id id = kit_id(1, 1, 1);
    kit_open(&x, id);
    for (uint64_t i = 1; i <= 300000; i++) {
        queue_ready_push(&x.fsm.ready, (uint32_t)(i % 3), queue_ref_make(i, 10));
        x.fsm.ready_count++;
        x.fsm.ready_bytes += 10;
    }
    x.index = 400000;
    kit_consume(&x, id, 1, 100000, 0);
    while (x.fsm.has_more) {
        kit_head(&x, QUEUE_COMMAND_CONTINUE, kit_id(0, 0, 0), 0);
        kit_apply(&x);
    }
    ck_assert_uint_eq(x.fsm.unacked_count, 100000);
    struct queue_snapshot *s = queue_fsm_freeze(&x.fsm);
    struct queue_fsm copy;
    struct queue_settings none = kit_settings();
    queue_fsm_init(&copy, &none);
    struct queue_restore r;
    queue_restore_begin(&r, &copy);
    struct buf chunk = {0};
    int chunks = 0;
    bool is_more;
    do {
        chunk.len = 0;
        chunks++;
        is_more = queue_snapshot_chunk(s, &chunk);
        ck_assert_uint_le(chunk.len, LIMIT_SNAPSHOT_CHUNK_BYTES);
        ck_assert_int_eq(queue_restore_chunk(&r, buf_span(&chunk)), RC_OK);
    } while (is_more);
    ck_assert_int_ge(chunks, 4);
    ck_assert_int_eq(queue_restore_end(&r), RC_OK);
    ck_assert_uint_eq(queue_fsm_digest(&copy), queue_fsm_digest(&x.fsm));
    queue_snapshot_free(s);
    queue_fsm_deinit(&copy);
    buf_deinit(&chunk);
    kit_deinit(&x);
}
END_TEST

START_TEST(hostile_snapshots_are_refused_or_restored_never_a_crash)
{
    struct kit x;
    kit_init(&x, kit_settings());
    struct queue_session_id id = kit_id(1, 1, 1);
    kit_open(&x, id);
    kit_consume(&x, id, 1, 3, 2);
    for (int i = 0; i < 6; i++) {
        kit_publish(&x, id, i, "m");
    }
    kit_settle(&x, id, 1, 1, 2, QUEUE_RELEASE);
    kit_control(&x, QUEUE_COMMAND_GET, id, NULL, 0);
    struct queue_snapshot *s = queue_fsm_freeze(&x.fsm);
    struct buf chunks[16] = {{0}};
    int n = 0;
    while (queue_snapshot_chunk(s, &chunks[n++])) {
    }
    queue_snapshot_free(s);
    for (int c = 0; c < n; c++) {
        for (size_t bit = 0; bit < chunks[c].len * 8; bit++) {
            chunks[c].ptr[bit / 8] ^= (uint8_t)(1u << (bit % 8));
            struct queue_fsm copy;
            struct queue_settings none = kit_settings();
            queue_fsm_init(&copy, &none);
            struct queue_restore r;
            queue_restore_begin(&r, &copy);
            enum rc rc = RC_OK;
            for (int i = 0; i < n && rc == RC_OK; i++) {
                rc = queue_restore_chunk(&r, buf_span(&chunks[i]));
            }
            enum rc end = queue_restore_end(&r);
            REQUIRE(rc == RC_OK || rc == RC_MALFORMED);
            REQUIRE(end == RC_OK || end == RC_MALFORMED);
            queue_fsm_deinit(&copy);
            chunks[c].ptr[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        }
        for (size_t len = 0; len < chunks[c].len; len++) {
            struct queue_fsm copy;
            struct queue_settings none = kit_settings();
            queue_fsm_init(&copy, &none);
            struct queue_restore r;
            queue_restore_begin(&r, &copy);
            enum rc rc = queue_restore_chunk(&r, span_of(chunks[c].ptr, len));
            enum rc end = queue_restore_end(&r);
            REQUIRE(rc != RC_OK || end != RC_OK);
            queue_fsm_deinit(&copy);
        }
    }
    for (int c = 0; c < n; c++) {
        buf_deinit(&chunks[c]);
    }
    kit_deinit(&x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("queue_model");
    TCase *t = tcase_create("queue_model");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, the_machine_holds_what_the_model_holds_and_restores_to_the_same, 0, 2);
    tcase_add_test(t, a_snapshot_does_not_see_what_comes_after_it);
    tcase_add_test(t, a_large_state_is_cut_into_chunks_within_the_limit);
    tcase_add_test(t, hostile_snapshots_are_refused_or_restored_never_a_crash);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
