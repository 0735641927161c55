// SPDX-License-Identifier: Apache-2.0
// Machines that sleep after a start: what wakes them, what does not, and that nothing is lost by it.
// links: node/base proto gen consensus consensus/raft consensus/solo consensus/wal consensus/store consensus/host tests/sim
#include "consensus/host/host_core.h"
#include "tests/unit/consensus/host_fixture.h"

static struct group *group(uint32_t node, uint32_t slot)
{
    return s->nodes[node - 1].groups[slot];
}
static bool is_asleep(uint32_t node, uint32_t slot)
{
    return group_is_asleep(group(node, slot));
}
static void start_sleepy(void)
{
    s->may_sleep = true;
    start();
}
static void propose_some(uint32_t node, uint32_t slot, int count)
{
    for (int i = 0; i < count; i++) {
        ck_assert_int_eq(propose(node, slot, 100), RC_OK);
    }
    run_ms(50);
}
// Until group 0 has a snapshot everywhere: other groups fill the log files.
static void snapshot_everywhere(void)
{
    propose_some(1, 0, 400);
    for (int round = 0; round < 400 && status(1, 0).snapshot * status(2, 0).snapshot * status(3, 0).snapshot == 0; round++) {
        for (int i = 0; i < 20; i++) {
            ck_assert_int_eq(propose(2, 1, 1000), RC_OK);
        }
        run_ms(10);
    }
    for (uint32_t node = 1; node <= 3; node++) {
        ck_assert_uint_gt(status(node, 0).snapshot, 0);
    }
}

START_TEST(an_idle_follower_stays_asleep_after_its_start)
{
    start_sleepy();
    propose_some(1, 0, 10);
    crash(3);
    run_ms(100);
    restart(3);
    run_ms(5000);
    ck_assert(is_asleep(3, 0));
    ck_assert_uint_eq(metrics(3).asleep, 3);
    ck_assert_uint_eq(machine(3, 0)->applies, 0);
    ck_assert_uint_eq(status(3, 0).leader_node, 1);
    ck_assert_uint_eq(status(3, 0).commit, status(1, 0).commit);
}
END_TEST

START_TEST(a_snapshot_is_not_read_before_somebody_needs_it)
{
    start_sleepy();
    snapshot_everywhere();
    crash(3);
    run_ms(100);
    restart(3);
    run_ms(5000);
    ck_assert(is_asleep(3, 0));
    ck_assert_uint_eq(machine(3, 0)->index, 0);
    group_wake(group(3, 0));
    sim_node_wake(&s->nodes[2], 0);
    run_ms(100);
    ck_assert(!is_asleep(3, 0));
    ck_assert_uint_eq(machine(3, 0)->entries, 400);
    ck_assert_uint_eq(machine(3, 0)->chain, machine(1, 0)->chain);
}
END_TEST

START_TEST(a_command_wakes_a_follower_and_a_no_op_does_not)
{
    start_sleepy();
    propose_some(1, 0, 10);
    crash(3);
    run_ms(100);
    restart(3);
    run_ms(2000);
    ck_assert_int_eq(group_transfer(group(1, 0), 2), RC_OK);
    sim_node_wake(&s->nodes[0], 0);
    run_ms(500);
    ck_assert_uint_eq(leader(0), 2);
    ck_assert_uint_eq(status(3, 0).last, status(2, 0).last);  // It has the no-op.
    ck_assert(is_asleep(3, 0));
    propose_some(2, 0, 1);
    ck_assert(!is_asleep(3, 0));
    ck_assert_uint_eq(machine(3, 0)->entries, 11);
    ck_assert_uint_eq(machine(3, 0)->chain, machine(2, 0)->chain);
}
END_TEST

START_TEST(who_sleeps_votes_acknowledges_and_leads)
{
    start_sleepy();
    propose_some(1, 0, 10);
    crash(3);
    run_ms(100);
    restart(3);
    run_ms(2000);
    crash(1);  // With a majority of which one sleeps.
    run_ms(2000);
    ck_assert_uint_ne(leader(0), 0);
    if (leader(0) != 3) {
        ck_assert(is_asleep(3, 0));
        ck_assert_int_eq(group_transfer(group(2, 0), 3), RC_OK);
        sim_node_wake(&s->nodes[1], 0);
        run_ms(1000);
    }
    ck_assert_uint_eq(leader(0), 3);
    ck_assert(!is_asleep(3, 0));
    ck_assert(status(3, 0).is_ready);
    ck_assert_uint_eq(machine(3, 0)->entries, 10);
    propose_some(3, 0, 5);
    ck_assert_uint_eq(machine(2, 0)->entries, 15);
    ck_assert_uint_eq(machine(2, 0)->chain, machine(3, 0)->chain);
}
END_TEST

START_TEST(all_nodes_at_once_come_back_with_everything)
{
    start_sleepy();
    snapshot_everywhere();
    propose_some(1, 0, 7);
    for (uint32_t node = 1; node <= 3; node++) {
        crash(node);
    }
    run_ms(100);
    for (uint32_t node = 1; node <= 3; node++) {
        restart(node);
    }
    run_ms(5000);
    const uint32_t next = leader(0);
    ck_assert_uint_ne(next, 0);
    ck_assert_uint_eq(machine(next, 0)->entries, 407);
    uint32_t asleep = 0;
    for (uint32_t node = 1; node <= 3; node++) {
        asleep += is_asleep(node, 0);
    }
    ck_assert_uint_eq(asleep, 2);
    propose_some(next, 0, 1);
    for (uint32_t node = 1; node <= 3; node++) {
        ck_assert_uint_eq(machine(node, 0)->entries, 408);
        ck_assert_uint_eq(machine(node, 0)->chain, machine(next, 0)->chain);
    }
}
END_TEST

START_TEST(what_is_put_off_is_bounded)
{
    start_sleepy();
    propose_some(1, 0, 400);  // More than may lie behind a snapshot that is not there.
    crash(3);
    run_ms(100);
    restart(3);
    run_ms(2000);
    ck_assert(!is_asleep(3, 0));
    ck_assert_uint_eq(machine(3, 0)->entries, 400);
}
END_TEST

START_TEST(elections_alone_wake_it_before_its_log_grows_without_end)
{
    start_sleepy();
    propose_some(1, 0, 10);
    crash(3);
    run_ms(100);
    restart(3);
    run_ms(2000);
    for (int i = 0; i < 300 && is_asleep(3, 0); i++) {
        const uint32_t from = leader(0);
        ck_assert_int_eq(group_transfer(group(from, 0), 3 - from), RC_OK);
        sim_node_wake(&s->nodes[from - 1], 0);
        run_ms(100);
        ck_assert_uint_eq(leader(0), 3 - from);
    }
    run_ms(100);
    ck_assert(!is_asleep(3, 0));
    ck_assert_uint_lt(status(3, 0).last, 300);
    ck_assert_uint_eq(machine(3, 0)->chain, machine(1, 0)->chain);
}
END_TEST

START_TEST(a_sleeper_that_fell_behind_takes_a_snapshot)
{
    start_sleepy();
    propose_some(1, 0, 10);
    crash(3);
    run_ms(100);
    restart(3);
    run_ms(1000);
    ck_assert(is_asleep(3, 0));
    for (uint32_t from = 1; from <= 2; from++) {
        sim_net_cut(s, from, 3, true);
        sim_net_cut(s, 3, from, true);
    }
    uint64_t accepted = 0;
    for (int i = 0; i < 40000 && accepted < 8000; i++) {
        accepted += propose(1, 0, 1000) == RC_OK;
        if (i % 100 == 99) {
            run_ms(10);
        }
    }
    run_ms(500);
    ck_assert_uint_gt(status(1, 0).snapshot, status(3, 0).last);
    ck_assert(is_asleep(3, 0));
    sim_net_heal(s);
    run_ms(20000);
    ck_assert(!is_asleep(3, 0));
    ck_assert_uint_eq(machine(3, 0)->entries, 8010);
    ck_assert_uint_eq(machine(3, 0)->chain, machine(1, 0)->chain);
}
END_TEST

START_TEST(a_leader_that_cannot_wake_hands_over)
{
    start_sleepy();
    snapshot_everywhere();
    crash(3);
    run_ms(100);
    restart(3);
    run_ms(2000);
    ck_assert(is_asleep(3, 0));
    restore_refused_by = 3;
    ck_assert_int_eq(group_transfer(group(1, 0), 3), RC_OK);
    sim_node_wake(&s->nodes[0], 0);
    run_ms(2000);
    restore_refused_by = 0;
    ck_assert(!machine(3, 0)->leads);  // It was told.
    const uint32_t next = leader(0);
    ck_assert(next == 1 || next == 2);
    ck_assert_uint_gt(status(next, 0).term, status(3, 0).term - 1);
    propose_some(next, 0, 1);
    ck_assert_uint_eq(machine(1, 0)->entries, 401);
    ck_assert_uint_eq(machine(2, 0)->entries, 401);
}
END_TEST

START_TEST(a_leader_that_cannot_wake_hands_over_although_its_word_is_lost)
{
    start_sleepy();
    snapshot_everywhere();
    crash(3);
    run_ms(100);
    restart(3);
    run_ms(2000);
    ck_assert(is_asleep(3, 0));
    restore_refused_by = 3;
    ck_assert_int_eq(group_transfer(group(1, 0), 3), RC_OK);
    sim_node_wake(&s->nodes[0], 0);
    for (int i = 0; i < 100000 && (status(1, 0).leader_node != 3 || status(2, 0).leader_node != 3); i++) {
        sim_run_until(s, s->now + SIM_US);
    }
    ck_assert_uint_eq(leader(0), 3);
    for (uint32_t to = 1; to <= 2; to++) {
        sim_net_cut(s, 3, to, true);
    }
    run_ms(5);
    ck_assert_uint_ne(leader(0), 3);
    sim_net_heal(s);
    run_ms(20000);
    restore_refused_by = 0;
    ck_assert_uint_ne(leader(0), 0);
}
END_TEST

// Forty machines that replay for long, and one for which somebody waits.
START_TEST(who_is_asked_for_does_not_wait_for_those_that_replay_for_long)
{
    enum { BUSY = 40, ENTRIES = 4000 };
    for (uint32_t i = 3; i < BUSY; i++) {
        s->groups[i].id = 100 + i;
        map_init_u64(&s->groups[i].leaders);
        s->groups[i].initial.count = 3;
        for (uint32_t k = 0; k < 3; k++) {
            s->groups[i].initial.members[k] =
                (struct member){.replica_id = i * 10 + k + 1, .node_id = (i + k) % 3 + 1, .is_voter = true};
        }
    }
    s->groups_count = BUSY;
    s->wal_file_bytes = 64 << 20;  // No file is closed, so nobody has a snapshot.
    start_sleepy();
    propose_some(1, 0, 10);
    for (int n = 0; n < ENTRIES; n += 100) {
        for (uint32_t slot = 1; slot < BUSY; slot++) {
            const uint32_t node = slot % 3 + 1;
            for (int i = 0; i < 100; i++) {
                ck_assert_int_eq(propose(node, slot, 8), RC_OK);
            }
        }
        run_ms(20);
    }
    run_ms(1000);
    crash(3);
    run_ms(100);
    restart(3);
    ck_assert(is_asleep(3, 0));
    ck_assert(!is_asleep(3, BUSY - 1));
    s->faults.cold_delay_min = 5 * SIM_MS;
    uint32_t begun = 0;
    for (int i = 0; i < 10000 && begun < BUSY - 1; i++) {
        sim_run_until(s, s->now + 100 * SIM_US);
        begun = 0;
        for (uint32_t slot = 1; slot < BUSY; slot++) {
            begun += machine(3, slot)->entries > 0;
        }
    }
    const uint64_t before = metrics(3).cold_reads;
    group_wake(group(3, 0));
    sim_node_wake(&s->nodes[2], 0);
    for (int i = 0; i < 10000 && machine(3, 0)->entries == 0; i++) {
        sim_run_until(s, s->now + 100 * SIM_US);
    }
    ck_assert_uint_eq(machine(3, 0)->entries, 10);
    ck_assert_uint_lt(metrics(3).cold_reads - before, 2 * BUSY);  // Of eight for each.
    run_ms(2000);
    for (uint32_t slot = 1; slot < BUSY; slot++) {
        ck_assert_uint_eq(machine(3, slot)->entries, ENTRIES);
    }
}
END_TEST

static void live_of(struct fsm_snapshot *f, struct buf *out)
{
    const struct live_range r = {.first = f->state.drained + 1, .last = f->state.index};
    if (r.first <= r.last) {
        buf_bytes(out, &r, sizeof(r));
    }
}
static uint64_t live_count(void *ctx)
{
    const struct counter *c = ctx;
    return c->index - c->drained;
}
static void propose_all(uint32_t node, uint32_t slot, int count)
{
    for (int i = 0; i < count;) {
        i += propose(node, slot, 1000) == RC_OK;
        if (i % 50 == 0) {
            run_ms(10);
        }
    }
    run_ms(500);
}

// The last entry kills all the others, and the node dies before its snapshot is written. Nothing more comes.
START_TEST(a_backlog_that_died_just_before_the_crash_is_let_go_of_after_the_start)
{
    static struct fsm_ops live_fsm;
    static struct sim_app app;
    live_fsm = counter_fsm;
    live_fsm.snapshot_live = live_of;
    live_fsm.live_count = live_count;
    app = counter_app;
    app.fsm = &live_fsm;
    s->app = &app;
    start_sleepy();
    propose_all(1, 0, 8000);
    propose_all(2, 1, 4000);  // All of it is in segments.
    glog_snapshot_request(group(3, 0)->log);
    sim_node_wake(&s->nodes[2], 0);
    run_ms(1000);
    ck_assert_uint_eq(status(3, 0).snapshot, status(3, 0).last);
    s->faults.cold_delay_min = 10 * SIM_S;
    ck_assert_int_eq(propose(1, 0, 1), RC_OK);
    run_ms(200);
    crash(3);
    s->faults.cold_delay_min = 100 * SIM_US;
    run_ms(100);
    restart(3);
    uint64_t entries;
    ck_assert_uint_gt(glog_bytes_in_segments(group(3, 0)->log, &entries), 8000 * 1000);
    run_ms(5000);
    ck_assert_uint_lt(glog_bytes_in_segments(group(3, 0)->log, &entries), 1 << 10);
}
END_TEST

START_TEST(a_group_removed_while_it_sleeps_leaves_nothing)
{
    start_sleepy();
    propose_some(1, 0, 10);
    crash(3);
    run_ms(100);
    restart(3);
    run_ms(1000);
    ck_assert(is_asleep(3, 0));
    const uint64_t asleep = metrics(3).asleep;
    group_wake(group(3, 0));
    sim_node_drop_group(&s->nodes[2], 0);
    run_ms(1000);
    ck_assert_uint_eq(metrics(3).asleep, asleep - 1);
    ck_assert_ptr_null(host_group_find(s->nodes[2].host, 100));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("host_sleep");
    TCase *t = tcase_create("host_sleep");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, an_idle_follower_stays_asleep_after_its_start);
    tcase_add_test(t, a_snapshot_is_not_read_before_somebody_needs_it);
    tcase_add_test(t, a_command_wakes_a_follower_and_a_no_op_does_not);
    tcase_add_test(t, who_sleeps_votes_acknowledges_and_leads);
    tcase_add_test(t, all_nodes_at_once_come_back_with_everything);
    tcase_add_test(t, what_is_put_off_is_bounded);
    tcase_add_test(t, elections_alone_wake_it_before_its_log_grows_without_end);
    tcase_add_test(t, a_sleeper_that_fell_behind_takes_a_snapshot);
    tcase_add_test(t, a_leader_that_cannot_wake_hands_over);
    tcase_add_test(t, a_leader_that_cannot_wake_hands_over_although_its_word_is_lost);
    tcase_add_test(t, who_is_asked_for_does_not_wait_for_those_that_replay_for_long);
    tcase_add_test(t, a_backlog_that_died_just_before_the_crash_is_let_go_of_after_the_start);
    tcase_add_test(t, a_group_removed_while_it_sleeps_leaves_nothing);
    suite_add_tcase(suite, t);
    SRunner *r = srunner_create(suite);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
