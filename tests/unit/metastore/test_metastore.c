// SPDX-License-Identifier: Apache-2.0
// links: metastore node/base proto consensus consensus/raft consensus/solo gen
// The metadata store as its callers see it: commands, fences, triggers.
#include "tests/unit/metastore/metastore_nodes.h"

START_TEST(a_command_is_answered_after_its_worker_has_seen_the_change)
{
    for (uint32_t id = 1; id <= NODES; id++) {  // Led here, and elsewhere.
        for (uint32_t worker = 0; worker < WORKERS; worker++) {
            struct answer a;
            char path[16];
            snprintf(path, sizeof(path), "q%u%u", id, worker);
            put(&a, id, worker, path, META_IF_ABSENT);
            pump();
            ck_assert(a.is_there);
            ck_assert_int_eq(a.result.rc, RC_OK);
            ck_assert_uint_ge(a.seen, a.result.index);
            ck_assert_ptr_nonnull(strstr(w.node[id].told[worker], path));
        }
    }
    for (uint32_t id = 1; id <= NODES; id++) {
        ck_assert_str_eq(w.node[id].told[0], "loaded +q10 +q11 +q20 +q21 +q30 +q31 ");
        ck_assert_str_eq(w.node[id].told[1], w.node[id].told[0]);
        ck_assert(metastore_is_current(w.node[id].m, 1));
    }
}
END_TEST

// Decision 16: what a node hears of from another's beat makes an unroutable publish wait for it.
START_TEST(a_projection_is_behind_what_another_nodes_beat_says)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    pump();
    const uint64_t seen = metastore_seen(w.node[2].m, 1);
    ck_assert(w.node[2].host.group.is_eager);
    metastore_commit_heard(w.node[2].m, seen);
    ck_assert(metastore_is_current(w.node[2].m, 1));
    metastore_commit_heard(w.node[2].m, seen + 1);
    ck_assert(!metastore_is_current(w.node[2].m, 0));
    ck_assert(!metastore_is_current(w.node[2].m, 1));
    metastore_commit_heard(w.node[2].m, seen);  // An older beat.
    ck_assert(!metastore_is_current(w.node[2].m, 1));
    put(&a, 1, 0, "r", META_IF_ABSENT);
    pump();
    ck_assert(metastore_is_current(w.node[2].m, 1));
}
END_TEST

START_TEST(a_failed_condition_comes_back_with_the_operation)
{
    struct answer a;
    put(&a, 2, 1, "q", META_IF_ABSENT);
    pump();
    put(&a, 3, 0, "q", META_IF_ABSENT);
    pump();
    ck_assert_int_eq(a.result.rc, RC_EXISTS);
    ck_assert_uint_eq(a.result.failed_op, 0);
}
END_TEST

START_TEST(an_invalid_command_is_refused_without_the_log)
{
    const uint64_t last = w.last;
    struct answer a = {.node = &w.node[2], .worker = 0};
    struct meta_command c;
    meta_command_init(&c);
    const struct meta_path root = {0};
    meta_put(&c, &root, span_str(""), META_IF_ANY, 0);
    metastore_submit(w.node[2].m, 0, &c, 1000, on_done, &a);
    ck_assert(!a.is_there);
    pump();
    ck_assert_int_eq(a.result.rc, RC_INVALID);
    ck_assert_uint_eq(w.last, last);
}
END_TEST

START_TEST(a_command_whose_frame_was_lost_is_sent_again_and_applied_once)
{
    struct answer a;
    w.loses_frames = true;
    put(&a, 2, 0, "q", META_IF_ABSENT);
    pump();
    w.loses_frames = false;
    ck_assert(!a.is_there);
    w.node[2].host.watcher->lane_reset(w.node[2].host.watcher->ctx, 1, LANE_CONTROL);
    pump();
    ck_assert(a.is_there);
    ck_assert_int_eq(a.result.rc, RC_OK);
}
END_TEST

START_TEST(a_command_that_reaches_two_leaders_is_applied_once)
{
    struct answer a;
    put(&a, 2, 0, "q", META_IF_ABSENT);
    frames_pump();  // Node 1 has it in the log; nobody applied it yet.
    lead(3);
    (void)metastore_turn(w.node[2].m);  // Sends it to node 3.
    pump();
    ck_assert(a.is_there);
    ck_assert_int_eq(a.result.rc, RC_OK);  // Not RC_EXISTS.
    for (uint32_t id = 1; id <= NODES; id++) {
        ck_assert_str_eq(w.node[id].told[0], "loaded +q ");
    }
}
END_TEST

// What is remembered of commands expires by stamps: were the first by another clock, the next would make it forget all.
START_TEST(a_command_that_reaches_a_leader_before_its_store_knows_is_stamped_by_the_same_clock_and_remembered)
{
    w.wall_ahead_ms = 1800000000000;
    w.leader = 3;
    w.term++;
    log_append_entry(RECORD_NOOP, NULL, 0);
    tell_role(1);
    tell_role(2);
    struct answer a, b;
    put(&a, 2, 0, "q", META_IF_ABSENT);
    frames_pump();
    struct command c;
    ck_assert_int_eq(w.kind[w.last], RECORD_ENTRY);
    ck_assert_int_eq(command_decode(buf_span(&w.log[w.last]), &c), RC_OK);
    ck_assert_uint_ge(c.stamp_ms, w.wall_ahead_ms);
    tell_role(3);
    put(&b, 3, 0, "r", META_IF_ABSENT);
    w.node[2].host.watcher->lane_reset(w.node[2].host.watcher->ctx, 3, LANE_CONTROL);
    (void)metastore_turn(w.node[2].m);  // Sends the first again, behind the other.
    pump();
    ck_assert(a.is_there && b.is_there);
    ck_assert_int_eq(a.result.rc, RC_OK);
    for (uint32_t id = 1; id <= NODES; id++) {
        ck_assert_str_eq(w.node[id].told[0], "loaded +q +r ");
    }
}
END_TEST

START_TEST(a_command_waits_for_a_leader)
{
    lead(0);
    struct answer a;
    put(&a, 2, 1, "q", META_IF_ABSENT);
    pass_ms(3000);
    ck_assert(!a.is_there);
    lead(2);
    pass_ms(50);
    ck_assert_int_eq(a.is_there, true);
    ck_assert_int_eq(a.result.rc, RC_OK);
}
END_TEST

// Decision 18.
START_TEST(without_a_majority_a_command_is_refused_after_its_timeout)
{
    w.has_quorum = false;
    struct answer leader;
    struct answer follower;
    put(&leader, 1, 0, "q", META_IF_ABSENT);
    put(&follower, 2, 1, "q", META_IF_ABSENT);
    pass_ms(9900);
    ck_assert(!leader.is_there);
    ck_assert(!follower.is_there);
    pass_ms(200);
    ck_assert(leader.is_there);
    ck_assert(follower.is_there);
    ck_assert_int_eq(leader.result.rc, RC_NO_QUORUM);
    ck_assert_int_eq(follower.result.rc, RC_NO_QUORUM);
    ck_assert_str_eq(w.node[1].told[0], "loaded ");
}
END_TEST

START_TEST(a_fence_waits_until_the_local_projection_has_what_the_leader_had)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    // Node 1 alone goes on: applied there, not at node 3.
    for (int i = 0; i < 3; i++) {
        node_pump(&w.node[1]);
    }
    ck_assert(a.is_there);
    struct answer f;
    fence(&f, 3, 1, 1000);
    for (int i = 0; i < 5; i++) {
        for (uint32_t k = 0; k < w.node[3].posted_count; k++) {
            w.node[3].posted[k].fn(w.node[3].posted[k].arg);
        }
        w.node[3].posted_count = 0;
        (void)metastore_turn(w.node[3].m);  // Its host hands over nothing.
        frames_pump();
        node_pump(&w.node[1]);
    }
    ck_assert(!f.is_there);
    pump();
    ck_assert(f.is_there);
    ck_assert_int_eq(f.result.rc, RC_OK);
    ck_assert_uint_ge(f.seen, a.result.index);
    ck_assert_ptr_nonnull(strstr(w.node[3].told[1], "+q"));
}
END_TEST

// CL-14.
START_TEST(a_leader_without_a_majority_passes_no_fence)
{
    w.has_quorum = false;
    struct answer f;
    fence(&f, 1, 0, 1000);
    pass_ms(950);
    ck_assert(!f.is_there);
    pass_ms(100);
    ck_assert(f.is_there);
    ck_assert_int_ne(f.result.rc, RC_OK);
}
END_TEST

// CL-08.
START_TEST(a_minority_is_told_nothing_and_forgets_nothing)
{
    struct answer a;
    put(&a, 1, 0, "vhosts/v", META_IF_ABSENT);
    pump();
    w.has_quorum = false;
    lead(0);
    pass_ms(30000);
    ck_assert_str_eq(w.node[2].told[0], "loaded +vhosts/v ");
    ck_assert_str_eq(w.node[2].told[1], "loaded +vhosts/v ");
}
END_TEST

// ---- triggers ---------------------------------------------------------------------------------------------

START_TEST(pending_events_are_told_on_the_leader_and_again_on_the_next_until_acknowledged)
{
    for (uint32_t i = 1; i <= NODES; i++) {
        metastore_on_trigger(w.node[i].m, on_event, &w.node[i]);
    }
    struct answer a = {.node = &w.node[2]};
    struct meta_command c;
    meta_command_init(&c);
    const struct meta_path q = path_text("q");
    meta_set_trigger(&c, 1, &q, META_EVENT_CREATED);
    metastore_submit(w.node[2].m, 0, &c, 1000, on_done, &a);
    pump();
    put(&a, 2, 0, "q/1", META_IF_ANY);
    pump();
    put(&a, 2, 0, "q/2", META_IF_ANY);
    pump();
    ck_assert_str_eq(w.node[1].events, "1:q/1 2:q/2 ");
    ck_assert_str_eq(w.node[2].events, "");
    a = (struct answer){.node = &w.node[1]};
    meta_ack_event(&c, 1);
    metastore_submit(w.node[1].m, 0, &c, 1000, on_done, &a);
    pump();
    lead(2);
    pump();
    ck_assert_str_eq(w.node[2].events, "2:q/2 ");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("metastore");
    TCase *t = tcase_create("metastore");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_command_is_answered_after_its_worker_has_seen_the_change);
    tcase_add_test(t, a_projection_is_behind_what_another_nodes_beat_says);
    tcase_add_test(t, a_failed_condition_comes_back_with_the_operation);
    tcase_add_test(t, an_invalid_command_is_refused_without_the_log);
    tcase_add_test(t, a_command_whose_frame_was_lost_is_sent_again_and_applied_once);
    tcase_add_test(t, a_command_that_reaches_two_leaders_is_applied_once);
    tcase_add_test(t, a_command_that_reaches_a_leader_before_its_store_knows_is_stamped_by_the_same_clock_and_remembered);
    tcase_add_test(t, a_command_waits_for_a_leader);
    tcase_add_test(t, without_a_majority_a_command_is_refused_after_its_timeout);
    tcase_add_test(t, a_fence_waits_until_the_local_projection_has_what_the_leader_had);
    tcase_add_test(t, a_leader_without_a_majority_passes_no_fence);
    tcase_add_test(t, a_minority_is_told_nothing_and_forgets_nothing);
    tcase_add_test(t, pending_events_are_told_on_the_leader_and_again_on_the_next_until_acknowledged);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
