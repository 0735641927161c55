// SPDX-License-Identifier: Apache-2.0
// links: node/base consensus/peer
// The failure detector of one peer (decision 7). Times and verdicts are the decision's.
#include "consensus/peer/liveness.h"
#include <check.h>
#include <stdlib.h>

#define MS 1000000ull

// ---- fixture -----------------------------------------------------------------------------------------------------

static const uint8_t store_a[STORE_ID_BYTES] = {1};
static const uint8_t store_b[STORE_ID_BYTES] = {2};
static struct liveness l;
static struct liveness_out out;
static uint64_t t;  // Now.

static void setup(void)
{
    liveness_init(&l);
    t = 5000 * MS;
}

// Greeted both ways with incarnation 7, no beat yet.
static void greet(void)
{
    ck_assert_int_eq(liveness_hello(&l, t, 7, store_a, &out), RC_OK);
    liveness_opened(&l, t, true, &out);
    liveness_opened(&l, t, false, &out);
}

// We send one, it echoes it with its beat `number`.
static void exchange(uint64_t number)
{
    uint64_t mine = liveness_next_beat(&l);
    liveness_beat(&l, t, l.incarnation, number, mine, &out);
}

static void broken(const char *what, int seq)
{
    ck_abort_msg("%s after the inputs %o (octal, last one first)", what, seq);
}

static void make_alive(void)
{
    greet();
    exchange(1);
    ck_assert_int_eq(l.verdict, NODE_ALIVE);
}

#define expect_verdict(v, inc)                                                                                         \
    do {                                                                                                               \
        ck_assert_uint_eq(out.changes_len, 1);                                                                         \
        ck_assert_int_eq(out.changes[0].verdict, (v));                                                                 \
        ck_assert_uint_eq(out.changes[0].incarnation, (inc));                                                          \
    } while (0)
#define expect_nothing() ck_assert_uint_eq(out.changes_len, 0)

static void tick(void)
{
    liveness_tick(&l, t, &out);
}

// ---- tests -------------------------------------------------------------------------------------------------------

START_TEST(a_peer_never_heard_is_suspect_and_has_no_deadline)
{
    ck_assert_int_eq(l.verdict, NODE_SUSPECT);
    ck_assert_uint_eq(liveness_deadline(&l), UINT64_MAX);
}
END_TEST

START_TEST(a_peer_is_alive_once_greeted_both_ways_and_echoing_us)
{
    greet();
    ck_assert_int_eq(l.verdict, NODE_SUSPECT);
    exchange(1);
    expect_verdict(NODE_ALIVE, 7);
}
END_TEST

START_TEST(a_peer_greeted_one_way_only_is_not_alive)
{
    ck_assert_int_eq(liveness_hello(&l, t, 7, store_a, &out), RC_OK);
    liveness_opened(&l, t, false, &out);
    exchange(1);
    expect_nothing();
    ck_assert_int_eq(l.verdict, NODE_SUSPECT);
}
END_TEST

START_TEST(a_peer_that_does_not_hear_us_is_not_alive)
{
    greet();
    (void)liveness_next_beat(&l);
    for (uint64_t i = 1; i < 50; i++, t += 100 * MS) {
        liveness_beat(&l, t, 7, i, 0, &out);
        expect_nothing();
    }
}
END_TEST

START_TEST(an_echo_of_a_beat_never_sent_proves_nothing)
{
    greet();
    (void)liveness_next_beat(&l);
    liveness_beat(&l, t, 7, 1, 2, &out);
    expect_nothing();
}
END_TEST

START_TEST(beats_before_life_are_answered_at_once_and_then_no_more)
{
    greet();
    liveness_beat(&l, t, 7, 1, 0, &out);
    ck_assert(out.is_beat_due);
    exchange(2);
    ck_assert(out.is_beat_due);  // It may still wait for ours.
    exchange(3);
    ck_assert(!out.is_beat_due);
}
END_TEST

START_TEST(closed_and_refused_within_20_ms_is_dead_at_once)
{
    make_alive();
    t += 50 * MS;
    liveness_closed(&l, t, true, &out);
    expect_nothing();
    liveness_refused(&l, t + 21 * MS, t + 20 * MS, &out);
    expect_verdict(NODE_DEAD, 7);
}
END_TEST

START_TEST(refused_by_a_redial_begun_later_is_not_dead_but_suspect_at_150_ms)
{
    make_alive();
    liveness_closed(&l, t, true, &out);
    liveness_refused(&l, t + 22 * MS, t + 20 * MS + 1, &out);
    expect_nothing();
    ck_assert_uint_eq(liveness_deadline(&l), t + 150 * MS);
    t += 150 * MS - 1;
    tick();
    expect_nothing();
    t++;
    tick();
    expect_verdict(NODE_SUSPECT, 7);
}
END_TEST

START_TEST(refused_without_a_close_says_nothing)
{
    make_alive();
    liveness_refused(&l, t, t, &out);
    expect_nothing();
    liveness_init(&l);
    liveness_refused(&l, t, t, &out);
    expect_nothing();
}
END_TEST

START_TEST(refused_just_before_the_other_lane_is_seen_closed_counts)
{
    make_alive();
    liveness_closed(&l, t, true, &out);
    liveness_closed(&l, t + MS, false, &out);
    liveness_refused(&l, t + 2 * MS, t, &out);
    expect_verdict(NODE_DEAD, 7);
}
END_TEST

START_TEST(a_suspect_that_closes_and_refuses_is_dead)
{
    make_alive();
    t += 1000 * MS;
    tick();
    expect_verdict(NODE_SUSPECT, 7);
    t += 3000 * MS;
    liveness_closed(&l, t, true, &out);
    liveness_refused(&l, t, t, &out);
    expect_verdict(NODE_DEAD, 7);
}
END_TEST

START_TEST(a_reset_link_that_is_back_in_time_changes_nothing)
{
    make_alive();
    liveness_closed(&l, t, true, &out);
    t += 100 * MS;
    ck_assert_int_eq(liveness_hello(&l, t, 7, store_a, &out), RC_OK);
    liveness_opened(&l, t, true, &out);
    exchange(2);
    expect_nothing();
    ck_assert(!l.is_closed);
    t += 100 * MS;
    tick();
    expect_nothing();
}
END_TEST

START_TEST(an_echo_from_before_the_reset_does_not_heal_it)
{
    make_alive();
    uint64_t old = liveness_next_beat(&l);
    liveness_closed(&l, t, true, &out);
    t += 10 * MS;
    liveness_opened(&l, t, true, &out);
    liveness_beat(&l, t, 7, 2, old, &out);
    t += 140 * MS;
    tick();
    expect_verdict(NODE_SUSPECT, 7);
}
END_TEST

START_TEST(silence_of_1000_ms_is_suspect)
{
    make_alive();
    ck_assert_uint_eq(liveness_deadline(&l), t + 1000 * MS);
    t += 1000 * MS - 1;
    tick();
    expect_nothing();
    t++;
    tick();
    expect_verdict(NODE_SUSPECT, 7);
    exchange(2);
    expect_verdict(NODE_ALIVE, 7);
}
END_TEST

START_TEST(beats_whose_echo_stands_still_for_1000_ms_are_suspect)
{
    make_alive();
    uint64_t from = t;
    uint64_t heard = l.echo;
    for (uint64_t i = 2; t < from + 900 * MS; i++) {
        t += 100 * MS;
        (void)liveness_next_beat(&l);
        liveness_beat(&l, t, 7, i, heard, &out);
        tick();
        expect_nothing();
    }
    t = from + 1000 * MS;
    liveness_beat(&l, t, 7, 100, heard, &out);
    tick();
    expect_verdict(NODE_SUSPECT, 7);
}
END_TEST

START_TEST(a_higher_incarnation_is_dead_then_alive)
{
    make_alive();
    liveness_closed(&l, t, false, &out);
    ck_assert_int_eq(liveness_hello(&l, t, 8, store_a, &out), RC_OK);
    expect_verdict(NODE_DEAD, 7);
    liveness_opened(&l, t, true, &out);
    liveness_opened(&l, t, false, &out);
    exchange(1);  // Counts from 1 again.
    expect_verdict(NODE_ALIVE, 8);
}
END_TEST

START_TEST(another_store_id_is_dead_whatever_the_incarnation)
{
    make_alive();
    liveness_closed(&l, t, false, &out);
    ck_assert_int_eq(liveness_hello(&l, t, 1, store_b, &out), RC_OK);
    expect_verdict(NODE_DEAD, 7);
}
END_TEST

START_TEST(a_restart_after_death_is_not_told_twice)
{
    make_alive();
    liveness_closed(&l, t, true, &out);
    liveness_closed(&l, t, false, &out);
    liveness_refused(&l, t, t, &out);
    expect_verdict(NODE_DEAD, 7);
    ck_assert_int_eq(liveness_hello(&l, t, 8, store_a, &out), RC_OK);
    expect_nothing();
}
END_TEST

START_TEST(a_lower_incarnation_is_stale)
{
    make_alive();
    ck_assert_int_eq(liveness_hello(&l, t, 6, store_a, &out), RC_STALE);
    ck_assert_int_eq(l.verdict, NODE_ALIVE);
    ck_assert_uint_eq(l.incarnation, 7);
}
END_TEST

// CR-20: a copy of a running node's disk is started elsewhere.
START_TEST(a_second_process_with_a_living_nodes_identity_is_refused_until_that_is_silent)
{
    make_alive();
    ck_assert_int_eq(liveness_hello(&l, t + 999 * MS, 8, store_a, &out), RC_BUSY);
    expect_nothing();
    ck_assert_int_eq(liveness_hello(&l, t + 1000 * MS, 8, store_a, &out), RC_OK);
    expect_verdict(NODE_DEAD, 7);
}
END_TEST

START_TEST(beats_of_another_incarnation_and_repeats_are_ignored)
{
    make_alive();
    uint64_t heard_at = l.heard_at;
    t += 500 * MS;
    liveness_beat(&l, t, 6, 9, 1, &out);
    liveness_beat(&l, t, 7, 1, 1, &out);
    ck_assert_uint_eq(l.heard_at, heard_at);
}
END_TEST

// Every sequence of 7 inputs: what must hold whatever happens.
static void apply(int input, uint64_t *number)
{
    switch (input) {
    case 0: liveness_opened(&l, t, true, &out); break;
    case 1: liveness_opened(&l, t, false, &out); break;
    case 2: liveness_closed(&l, t, true, &out); break;
    case 3: liveness_closed(&l, t, false, &out); break;
    case 4: liveness_refused(&l, t, t, &out); break;
    case 5: exchange(++*number); break;
    case 6: t += 160 * MS; tick(); break;
    default: t += 1000 * MS; tick(); break;
    }
}

START_TEST(every_sequence_of_inputs_keeps_the_invariants)
{
    const int depth = 7;
    for (int seq = 0; seq < 1 << (3 * depth); seq++) {
        setup();
        if (liveness_hello(&l, t, 7, store_a, &out) != RC_OK) {
            broken("refused", seq);
        }
        uint64_t number = 0;
        enum node_verdict told = NODE_SUSPECT;
        for (int i = 0; i < depth; i++) {
            int input = (seq >> (3 * i)) & 7;
            apply(input, &number);
            for (int k = 0; k < out.changes_len; k++) {
                if (out.changes[k].verdict == told) {
                    broken("a verdict is told twice", seq);
                }
                told = out.changes[k].verdict;
                if (told == NODE_ALIVE && (!l.is_in_open || !l.is_out_open || input != 5)) {
                    broken("alive without a whole beat", seq);
                }
                if (told == NODE_DEAD && (l.is_out_open || input != 4)) {
                    broken("dead without a refusal", seq);
                }
            }
            if (told != l.verdict || (l.verdict == NODE_ALIVE && liveness_deadline(&l) == UINT64_MAX)) {
                broken("verdict and deadline disagree with what was told", seq);
            }
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("liveness");
    TCase *c = tcase_create("liveness");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, a_peer_never_heard_is_suspect_and_has_no_deadline);
    tcase_add_test(c, a_peer_is_alive_once_greeted_both_ways_and_echoing_us);
    tcase_add_test(c, a_peer_greeted_one_way_only_is_not_alive);
    tcase_add_test(c, a_peer_that_does_not_hear_us_is_not_alive);
    tcase_add_test(c, an_echo_of_a_beat_never_sent_proves_nothing);
    tcase_add_test(c, beats_before_life_are_answered_at_once_and_then_no_more);
    tcase_add_test(c, closed_and_refused_within_20_ms_is_dead_at_once);
    tcase_add_test(c, refused_by_a_redial_begun_later_is_not_dead_but_suspect_at_150_ms);
    tcase_add_test(c, refused_without_a_close_says_nothing);
    tcase_add_test(c, refused_just_before_the_other_lane_is_seen_closed_counts);
    tcase_add_test(c, a_suspect_that_closes_and_refuses_is_dead);
    tcase_add_test(c, a_reset_link_that_is_back_in_time_changes_nothing);
    tcase_add_test(c, an_echo_from_before_the_reset_does_not_heal_it);
    tcase_add_test(c, silence_of_1000_ms_is_suspect);
    tcase_add_test(c, beats_whose_echo_stands_still_for_1000_ms_are_suspect);
    tcase_add_test(c, a_higher_incarnation_is_dead_then_alive);
    tcase_add_test(c, another_store_id_is_dead_whatever_the_incarnation);
    tcase_add_test(c, a_restart_after_death_is_not_told_twice);
    tcase_add_test(c, a_lower_incarnation_is_stale);
    tcase_add_test(c, a_second_process_with_a_living_nodes_identity_is_refused_until_that_is_silent);
    tcase_add_test(c, beats_of_another_incarnation_and_repeats_are_ignored);
    tcase_add_test(c, every_sequence_of_inputs_keeps_the_invariants);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
