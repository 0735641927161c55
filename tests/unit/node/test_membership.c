// SPDX-License-Identifier: Apache-2.0
// Members of queues that are asked for: record and configuration converge, whatever half-way state they are found in
// (node/broker/README.md has the table; the names of these tests are its rows).
// links: node/broker proto/amqp09 gen node/base
#include "tests/unit/node/membership_fixture.h"
#include "tests/unit/suite.h"

// ---- adding --------------------------------------------------------------------------------------------------------

START_TEST(a_member_is_announced_then_let_in_as_a_learner_then_promoted)
{
    begin(1);
    world.is_level = false;
    ask_for(false, B, MEMBER_PROMOTABLE);
    turn(1);
    ck_assert(world.has_write);
    ck_assert_uint_eq(world.config.count, 1);  // First the record: the replica can start.
    store_answers();
    ck_assert_uint_eq(queue()->joining, 2);
    ck_assert_uint_eq(queue()->target->members[1].replica_id, 5000);  // A new id.
    pass(30);
    MEMBERS(A, B);
    ck_assert_uint_eq(config_voters(&world.config), 1);
    ck_assert_int_eq(answered, RC_OK);  // A promotable member is in when it is a learner.
    pass(1000);
    ck_assert_uint_eq(config_voters(&world.config), 1);  // Not level.
    world.is_level = true;
    pass(1000);
    ck_assert_uint_eq(config_voters(&world.config), 2);
    ck_assert_uint_eq(answers, 1);
    const uint32_t writes = world.writes;
    pass(1000);
    ck_assert_uint_eq(world.writes, writes);  // Then all is quiet.
}
END_TEST

START_TEST(a_voter_is_answered_for_when_it_votes)
{
    begin(1);
    world.is_level = false;
    ask_for(false, B, MEMBER_VOTER);
    pass(500);
    ck_assert_uint_eq(answers, 0);
    world.is_level = true;
    pass(500);
    ck_assert_int_eq(answered, RC_OK);
    ck_assert_uint_eq(config_voters(&world.config), 2);
}
END_TEST

START_TEST(a_non_voter_stays_a_learner)
{
    begin(1);
    ask_for(false, B, MEMBER_NON_VOTER);
    pass(2000);
    MEMBERS(A, B);
    ck_assert_int_eq(answered, RC_OK);
    ck_assert_uint_eq(config_voters(&world.config), 1);
    broker_queue_led(b, world.owner);  // Also with the next leader.
    pass(500);
    ck_assert_uint_eq(config_voters(&world.config), 1);
}
END_TEST

START_TEST(a_node_that_has_a_replica_needs_none)
{
    begin(3);
    ask_for(false, B, MEMBER_PROMOTABLE);
    pass(50);
    ck_assert_int_eq(answered, RC_EXISTS);
    ck_assert_uint_eq(world.writes, 0);
    MEMBERS(A, B, C);
}
END_TEST

START_TEST(a_node_that_is_down_or_unknown_is_refused)
{
    begin(1);
    world.is_down[B] = true;
    ask_for(false, B, MEMBER_PROMOTABLE);
    pass(50);
    ck_assert_int_eq(answered, RC_NOT_CONNECTED);
    ask_for(false, 77, MEMBER_PROMOTABLE);
    pass(50);
    ck_assert_int_eq(answered, RC_NOT_FOUND);
    ck_assert_uint_eq(world.writes, 0);
}
END_TEST

START_TEST(an_announcement_whose_node_stays_down_is_taken_back)
{
    begin(1);
    ask_for(false, B, MEMBER_PROMOTABLE);
    turn(1);
    world.is_down[B] = true;
    store_answers();
    pass(5000);
    ck_assert_uint_eq(queue()->joining, 2);
    pass(6000);
    MEMBERS(A);
    ck_assert_uint_eq(world.proofs, 1);
    ck_assert_uint_eq(answers, 1);
    ck_assert_int_eq(answered, RC_TIMEOUT);
}
END_TEST

START_TEST(a_new_leader_goes_on_with_what_the_former_one_announced)
{
    begin(1);
    ask_for(false, B, MEMBER_PROMOTABLE);
    turn(1);
    world.is_leader = false;
    store_answers();
    pass(50);
    ck_assert_int_eq(answered, RC_NOT_LEADER);
    ck_assert_uint_eq(world.config.count, 1);
    world.is_leader = true;
    world.term++;
    broker_queue_led(b, world.owner);
    pass(500);
    MEMBERS(A, B);
    ck_assert_uint_eq(config_voters(&world.config), 2);
}
END_TEST

START_TEST(the_record_follows_a_member_that_the_former_leader_let_in)
{
    begin(1);
    ask_for(false, B, MEMBER_PROMOTABLE);
    turn(1);
    store_answers();
    world.is_leader = false;
    world.config = (struct config){.index = 20, .count = 2, .members = {{GROUP + 1, A, true}, {5000, B, true}}};
    pass(50);
    world.is_leader = true;
    broker_queue_led(b, world.owner);
    pass(50);
    MEMBERS(A, B);
}
END_TEST

START_TEST(one_change_at_a_time)
{
    begin(1);
    world.is_slow = true;  // The configuration's entry does not commit.
    ask_for(false, B, MEMBER_PROMOTABLE);
    pass(500);
    ck_assert_uint_eq(world.changes, 0);
    world.is_slow = false;
    pass(500);
    MEMBERS(A, B);
    ask_for(false, C, MEMBER_PROMOTABLE);
    ask_for(true, B, MEMBER_PROMOTABLE);
    turn(1);
    ck_assert_int_eq(answered, RC_BUSY);
}
END_TEST

// ---- removing ---------------------------------------------------------------------------------------------

START_TEST(a_removal_leaves_the_configuration_first_and_the_record_follows_when_it_is_proven)
{
    begin(3);
    world.is_slow = false;
    ask_for(true, C, MEMBER_PROMOTABLE);
    turn(1);
    ck_assert_uint_eq(world.config.count, 2);
    ck_assert(!world.has_write);
    world.is_slow = true;
    pass(200);
    ck_assert_uint_eq(world.proofs, 0);  // Not before it is committed.
    world.is_slow = false;
    world.proof_rc = RC_NOT_LEADER;  // A leader that was deposed without knowing changes nothing.
    pass(200);
    ck_assert_uint_gt(world.proofs, 0);
    ck_assert_uint_eq(queue()->target->members_count, 3);
    world.proof_rc = RC_OK;
    pass(200);
    MEMBERS(A, B);
    ck_assert_int_eq(answered, RC_OK);
    ask_for(true, C, MEMBER_PROMOTABLE);
    pass(50);
    ck_assert_int_eq(answered, RC_EXISTS);  // It has none.
}
END_TEST

START_TEST(what_a_former_leader_removed_leaves_the_record_too)
{
    begin(3);
    world.config.count = 2;  // C is out.
    world.config.index = 30;
    broker_queue_led(b, world.owner);
    pass(100);
    MEMBERS(A, B);
    ck_assert_uint_eq(world.proofs, 1);
}
END_TEST

START_TEST(the_last_member_stays)
{
    begin(1);
    ask_for(true, A, MEMBER_PROMOTABLE);
    pass(50);
    ck_assert_int_eq(answered, RC_INVALID);
    MEMBERS(A);
}
END_TEST

START_TEST(the_last_voter_stays_beside_a_learner)
{
    begin(1);
    ask_for(false, B, MEMBER_NON_VOTER);
    pass(100);
    ask_for(true, A, MEMBER_PROMOTABLE);
    pass(50);
    ck_assert_int_eq(answered, RC_INVALID);
    MEMBERS(A, B);
}
END_TEST

START_TEST(a_removal_that_would_leave_no_majority_is_refused)
{
    begin(3);
    world.is_down[C] = true;
    ask_for(true, B, MEMBER_PROMOTABLE);  // A and C would be left, and C is down.
    pass(50);
    ck_assert_int_eq(answered, RC_NO_QUORUM);
    MEMBERS(A, B, C);
    ask_for(true, C, MEMBER_PROMOTABLE);  // The one that is down may go.
    pass(100);
    ck_assert_int_eq(answered, RC_OK);
    MEMBERS(A, B);
}
END_TEST

START_TEST(a_leader_that_is_to_leave_hands_over_first)
{
    begin(3);
    ask_for(true, A, MEMBER_PROMOTABLE);
    pass(50);
    ck_assert_int_eq(answered, RC_NOT_LEADER);
    ck_assert_uint_eq(world.transfers, 1);
    MEMBERS(A, B, C);
}
END_TEST

// A transfer stops proposals until its target has caught up.
START_TEST(a_leader_that_is_to_leave_hands_over_to_one_that_is_not_behind)
{
    for (uint32_t behind = 1; behind <= 2; behind++) {
        begin(3);
        world.behind_at = 1 << 1 | 1 << 2;
        ask_for(true, A, MEMBER_PROMOTABLE);
        pass(50);
        ck_assert_int_eq(answered, RC_NOT_LEADER);
        ck_assert_uint_eq(world.transfers, 0);
        world.behind_at = 1u << behind;
        ask_for(true, A, MEMBER_PROMOTABLE);
        pass(50);
        ck_assert_int_eq(answered, RC_NOT_LEADER);
        ck_assert_uint_eq(world.transfers, 1);
        ck_assert_uint_eq(world.transferred_to, behind == 1 ? C : B);
        teardown();
        setup();
    }
}
END_TEST

START_TEST(a_node_that_the_record_names_no_more_deletes_its_replica_and_makes_another_when_it_is_named_again)
{
    begin(3);
    ck_assert_uint_eq(world.started, 1);
    world.is_leader = false;
    world.config =
        (struct config){.index = 20,
                        .count = 3,
                        .members = {{GROUP + 1, A, true}, {GROUP + 2, B, true}, {GROUP + 3, C, true}}};
    Warren__QueueMember others[2] = {WARREN__QUEUE_MEMBER__INIT, WARREN__QUEUE_MEMBER__INIT};
    others[0].replica_id = GROUP + 2;
    others[0].node_id = B;
    others[1].replica_id = 7000;
    others[1].node_id = A;
    Warren__QueueMember *members[] = {&others[0], &others[1]};
    uint32_t founders[] = {A, B, C};
    Warren__QueueRecord r = WARREN__QUEUE_RECORD__INIT;
    r.type = "quorum";
    r.member_nodes = founders;
    r.n_member_nodes = 3;
    r.members = members;
    for (r.n_members = 1; r.n_members <= 2; r.n_members++) {
        struct buf payload = {0};
        buf_u64(&payload, GROUP);
        warren__queue_record__pack(&r, buf_extend(&payload, warren__queue_record__get_packed_size(&r)));
        tell(path_queue(span_str("/"), span_str("q")), buf_span(&payload), false, ++version);
        buf_deinit(&payload);
        ck_assert_uint_eq(world.left, 1);
        ck_assert_uint_eq(world.started, r.n_members);
    }
    ck_assert_uint_eq(world.started_id, 7000);
    ck_assert_uint_eq(world.started_from.members_count, 3);  // It begins where all began.
    ck_assert_uint_eq(world.started_from.members[0].replica_id, GROUP + 1);
    ck_assert_uint_eq(world.deleted, 0);
}
END_TEST

// ---- the target -------------------------------------------------------------------------------------------

START_TEST(members_are_added_up_to_the_target_where_it_is_wanted)
{
    begin(1);
    membership_nodes_changed(b);
    pass(3000);
    MEMBERS(A);
    b->config.is_reconciling = true;
    b->config.reconcile_target = 3;
    world.is_down[C] = true;
    membership_nodes_changed(b);
    pass(3000);
    MEMBERS(A, B);
    world.is_down[C] = false;
    membership_nodes_changed(b);
    pass(3000);
    MEMBERS(A, B, C);
    const uint32_t writes = world.writes;
    pass(3000);
    ck_assert_uint_eq(world.writes, writes);
}
END_TEST

// ---- ends -------------------------------------------------------------------------------------------------

START_TEST(without_a_majority_of_the_store_a_request_is_refused)
{
    begin(1);
    world.is_store_lost = true;
    ask_for(false, B, MEMBER_PROMOTABLE);
    pass(50);
    ck_assert_int_eq(answered, RC_NO_QUORUM);
    MEMBERS(A);
}
END_TEST

START_TEST(a_request_ends_in_time_whatever_is_missing)
{
    begin(3);
    world.is_slow = true;
    ask_for(true, C, MEMBER_PROMOTABLE);
    pass(8500);
    ck_assert_uint_eq(answers, 0);
    pass(1000);
    ck_assert_uint_eq(answers, 1);
    ck_assert_int_eq(answered, RC_TIMEOUT);
}
END_TEST

START_TEST(a_queue_may_be_deleted_at_every_moment)
{
    for (int moment = 0; moment < 4; moment++) {
        if (moment > 0) {
            setup();
        }
        begin(3);
        ask_for(moment >= 2, moment >= 2 ? C : D, MEMBER_PROMOTABLE);
        if (moment == 0) {
            tell_node(D, D, 0);
            turn(1);
            ck_assert(world.has_write);
        } else if (moment == 3) {
            turn(1);
            turn(10);
            ck_assert_ptr_nonnull(world.proof_done);
        }
        tell(path_queue(span_str("/"), span_str("q")), span_str(""), true, version);
        world.has_group = false;
        pass(20);
        ck_assert_int_eq(answered, RC_NOT_FOUND);
        ck_assert_uint_eq(answers, 1);
        if (moment < 3) {
            teardown();
        }
    }
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("membership");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_member_is_announced_then_let_in_as_a_learner_then_promoted);
    tcase_add_test(t, a_voter_is_answered_for_when_it_votes);
    tcase_add_test(t, a_non_voter_stays_a_learner);
    tcase_add_test(t, a_node_that_has_a_replica_needs_none);
    tcase_add_test(t, a_node_that_is_down_or_unknown_is_refused);
    tcase_add_test(t, an_announcement_whose_node_stays_down_is_taken_back);
    tcase_add_test(t, a_new_leader_goes_on_with_what_the_former_one_announced);
    tcase_add_test(t, the_record_follows_a_member_that_the_former_leader_let_in);
    tcase_add_test(t, one_change_at_a_time);
    tcase_add_test(t, a_removal_leaves_the_configuration_first_and_the_record_follows_when_it_is_proven);
    tcase_add_test(t, what_a_former_leader_removed_leaves_the_record_too);
    tcase_add_test(t, the_last_member_stays);
    tcase_add_test(t, the_last_voter_stays_beside_a_learner);
    tcase_add_test(t, a_removal_that_would_leave_no_majority_is_refused);
    tcase_add_test(t, a_leader_that_is_to_leave_hands_over_first);
    tcase_add_test(t, a_leader_that_is_to_leave_hands_over_to_one_that_is_not_behind);
    tcase_add_test(
        t, a_node_that_the_record_names_no_more_deletes_its_replica_and_makes_another_when_it_is_named_again);
    tcase_add_test(t, members_are_added_up_to_the_target_where_it_is_wanted);
    tcase_add_test(t, without_a_majority_of_the_store_a_request_is_refused);
    tcase_add_test(t, a_request_ends_in_time_whatever_is_missing);
    tcase_add_test(t, a_queue_may_be_deleted_at_every_moment);
    return suite_run("membership", t);
}
