// SPDX-License-Identifier: Apache-2.0
// Members of queues whose node went or lost its disk, and replicas that lost their memory: their places are filled, and
// nothing that a majority needs is let go (node/broker/README.md has the table).
// links: node/broker proto/amqp09 gen node/base
#include "tests/unit/node/membership_fixture.h"
#include "tests/unit/suite.h"

// ---- helpers --------------------------------------------------------------------------------------------------

static void forget_node(uint32_t name)
{
    tell(path_node(span_str(names[name])), span_str(""), true, 1);
}

// ---- nodes go ---------------------------------------------------------------------------------------------

START_TEST(a_member_whose_node_lost_its_disk_is_made_anew_on_the_node_that_took_its_place)
{
    begin(3);
    tell_node(C, 33, C);  // c@x is node 33 now.
    pass(1000);
    MEMBERS(A, B, 33);
    ck_assert_uint_eq(queue()->target->members[2].replica_id, 5000);
    ck_assert_uint_eq(config_voters(&world.config), 3);
}
END_TEST

START_TEST(it_waits_for_that_node_and_takes_no_other)
{
    tell_node(D, D, 0);
    begin(3);
    world.is_down[33] = true;
    tell_node(C, 33, C);
    pass(1000);
    ck_assert_uint_eq(world.config.count, 2);  // The lost replica votes no more.
    ck_assert_uint_eq(queue()->target->members_count, 3);  // Its place stays.
    world.is_down[33] = false;
    membership_nodes_changed(b);
    pass(1000);
    MEMBERS(A, B, 33);
}
END_TEST

START_TEST(a_forgotten_nodes_place_goes_to_another_node)
{
    tell_node(D, D, 0);
    begin(3);
    forget_node(C);
    pass(1000);
    MEMBERS(A, B, D);
    ck_assert_uint_eq(config_voters(&world.config), 3);
}
END_TEST

START_TEST(without_another_node_the_place_waits_for_one_that_joins)
{
    begin(3);
    forget_node(C);
    pass(1000);
    ck_assert_uint_eq(world.config.count, 2);
    tell_node(D, D, 0);
    pass(1000);
    MEMBERS(A, B, D);
}
END_TEST

START_TEST(a_request_takes_the_place_that_waits)
{
    begin(3);
    forget_node(C);
    pass(1000);
    world.is_down[D] = true;
    tell_node(D, D, 0);
    pass(1000);
    world.is_down[D] = false;
    ask_for(false, D, MEMBER_PROMOTABLE);
    pass(1000);
    MEMBERS(A, B, D);
}
END_TEST

START_TEST(a_forgotten_member_stays_while_the_others_that_are_up_are_no_majority)
{
    begin(3);
    world.is_down[B] = true;
    forget_node(C);
    pass(1000);
    ck_assert_uint_eq(world.config.count, 3);
    world.is_down[B] = false;
    membership_nodes_changed(b);
    pass(1000);
    ck_assert_uint_eq(world.config.count, 2);
}
END_TEST

// ---- replicas that lost their memory (law 2) --------------------------------------------------------------

// As if member `i` had written it.
static void tell_lost(uint32_t i)
{
    struct meta_command m;
    queue_lost_command((const struct queue *)(const void *)queue(), i, &m);
    version++;
    struct buf payload = {0};
    buf_span_bytes(&payload, buf_span(&world.payload));
    tell(path_queue(span_str("/"), span_str("q")), buf_span(&payload), false, version);
    buf_deinit(&payload);
}

START_TEST(a_replica_that_lost_its_memory_is_made_anew_on_its_node_under_another_id)
{
    begin(3);
    tell_lost(2);
    ck_assert_uint_eq(queue()->lost, 1 << 2);
    pass(300);
    MEMBERS(A, B, C);
    ck_assert_uint_eq(queue()->lost, 0);
    ck_assert_uint_ge(queue()->target->members[2].replica_id, 5000);
    ck_assert(config_find(&world.config, queue()->target->members[2].replica_id)->is_voter);
    ck_assert_ptr_null(config_find(&world.config, GROUP + 3));
    ck_assert_uint_ge(world.proofs, 1);
}
END_TEST

START_TEST(it_stays_in_the_configuration_while_the_others_are_no_majority_without_it)
{
    begin(3);
    tell_lost(2);
    tell_lost(1);  // Of three one is left that remembers: an operator must decide.
    pass(300);
    ck_assert_uint_eq(world.changes, 0);
    ck_assert_ptr_nonnull(config_find(&world.config, GROUP + 2));
    ck_assert_ptr_nonnull(config_find(&world.config, GROUP + 3));
    ck_assert_uint_eq(queue()->lost, 6);
}
END_TEST

START_TEST(its_place_waits_for_its_node_and_goes_to_no_other)
{
    begin(3);
    tell_node(D, D, 0);
    tell_lost(2);
    world.is_down[C] = true;
    pass(300);
    ck_assert_uint_eq(world.config.count, 2);
    ck_assert_uint_eq(queue()->target->members[2].replica_id, GROUP + 3);
    world.is_down[C] = false;
    tell_node(D, D, 0);  // Something looks again.
    pass(300);
    MEMBERS(A, B, C);
}
END_TEST

START_TEST(a_node_writes_into_the_record_that_its_replica_lost_its_memory)
{
    begin(3);
    world.is_leader = false;
    broker_queue_lost(b, world.owner);
    turn(5);
    ck_assert(world.has_write);
    broker_queue_lost(b, world.owner);  // Told again meanwhile.
    version++;                          // Somebody else wrote: this one finds another version.
    store_answers();
    ck_assert_uint_eq(queue()->lost, 0);
    version--;
    pass(50);  // Tried again.
    ck_assert_uint_eq(queue()->lost, 1);
    const uint32_t writes = world.writes;
    broker_queue_lost(b, world.owner);
    pass(100);
    ck_assert_uint_eq(world.writes, writes);  // Said once.
}
END_TEST

START_TEST(without_a_majority_of_the_store_it_is_written_later)
{
    begin(3);
    world.is_leader = false;
    world.is_store_lost = true;
    broker_queue_lost(b, world.owner);
    pass(50);
    ck_assert_uint_eq(world.writes, 1);
    world.is_store_lost = false;
    pass(1100);
    ck_assert_uint_eq(queue()->lost, 1);
}
END_TEST

START_TEST(a_leader_writes_that_a_member_lacks_what_it_acknowledged)
{
    begin(3);
    world.regressed_at = 1 << 1;
    tell_node(B, B, 0);  // Something looks.
    for (int i = 0; i < 100 && queue()->lost == 0; i++) {
        pass(5);
    }
    ck_assert_uint_eq(queue()->lost, 1 << 1);
    world.regressed_at = 0;
    pass(300);
    MEMBERS(A, B, C);
    ck_assert_ptr_null(config_find(&world.config, GROUP + 2));
}
END_TEST

START_TEST(a_queue_may_be_deleted_while_its_loss_is_being_written)
{
    begin(3);
    broker_queue_lost(b, world.owner);
    turn(5);
    ck_assert(world.has_write);
    tell(path_queue(span_str("/"), span_str("q")), span_str(""), true, version);
    world.has_group = false;
    struct meta_result r = {.rc = RC_NOT_FOUND};
    world.has_write = false;
    world.write_done(world.write_ctx, &r);
    pass(50);
}
END_TEST

START_TEST(nothing_is_concluded_from_what_is_missing_while_everything_is_told_again)
{
    begin(3);
    sub->reset(sub->ctx);
    forget_node(C);  // Not told yet, as it were.
    pass(1000);
    ck_assert_uint_eq(world.config.count, 3);
}
END_TEST

// ---- what a doubtful disk still holds ---------------------------------------------------------------------------------

static bool is_up(void *ctx, uint32_t node_id)
{
    (void)ctx;
    return !world.is_down[node_id];
}

static bool lives_without(uint32_t node_id)
{
    return broker_queue_without(queue(), node_id, is_up, NULL) == QUEUE_LIVES;
}

static bool will_live_without(uint32_t node_id)
{
    return broker_queue_without(queue(), node_id, is_up, NULL) == QUEUE_LIVES_SOON;
}

START_TEST(a_queue_lives_without_a_member_while_the_others_are_a_majority)
{
    begin(3);
    ck_assert(lives_without(B));
    ck_assert(lives_without(D));
    world.is_down[C] = true;
    ck_assert(!lives_without(B));
    ck_assert(lives_without(D));  // It holds nothing of the queue.
}
END_TEST

START_TEST(it_does_not_live_without_one_of_the_two_that_remember)
{
    begin(3);
    tell_lost(2);  // Not replaced yet: c is up, and knows nothing.
    ck_assert(!lives_without(B));
    ck_assert(!lives_without(A));
    ck_assert(lives_without(C));
    pass(300);
    ck_assert(lives_without(B));
}
END_TEST

// A cluster is made smaller by forgetting: each majority is one of those that are left.
START_TEST(a_place_that_a_forgotten_node_left_is_no_voter_that_is_missing)
{
    tell_node(D, D, 0);
    tell_node(E, E, 0);
    begin(5);
    forget_node(E);
    pass(1000);
    forget_node(D);
    pass(1000);
    ck_assert_uint_eq(queue()->target->members_count, 5);  // The places stay.
    ck_assert_uint_eq(world.config.count, 3);
    ck_assert(lives_without(B));
    world.is_down[C] = true;
    ck_assert(!lives_without(B));
    const uint32_t writes = world.writes;
    broker_queue_led(b, world.owner);
    pass(1000);
    ck_assert_uint_eq(world.writes, writes);
    world.is_down[C] = false;
    tell_node(D, 33, 0);  // A new d@x.
    pass(1000);
    ck_assert_uint_eq(config_voters(&world.config), 4);
    ck_assert_uint_eq(queue()->vacant & (queue()->vacant - 1), 0);  // One is filled, and counts again.
    ck_assert_uint_ne(queue()->vacant, 0);
}
END_TEST

START_TEST(members_that_do_not_vote_are_no_majority)
{
    tell_node(D, D, 0);
    begin(2);
    ask_for(false, C, MEMBER_NON_VOTER);
    pass(1000);
    ask_for(false, D, MEMBER_NON_VOTER);
    pass(1000);
    ck_assert_uint_eq(queue()->target->members_count, 4);
    ck_assert(!lives_without(B));  // Of the two voters one is left.
    ck_assert(lives_without(C));
}
END_TEST

// ---- what is being filled ---------------------------------------------------------------------------------------------

START_TEST(a_member_that_is_being_filled_is_no_majority)
{
    begin(2);
    world.is_level = false;
    ask_for(false, C, MEMBER_PROMOTABLE);
    pass(1000);
    MEMBERS(A, B, C);
    ck_assert_uint_eq(config_voters(&world.config), 2);  // c is let in and knows nothing yet.
    ck_assert(!lives_without(B));
    ck_assert(!lives_without(A));
    ck_assert(lives_without(C));
    ck_assert(will_live_without(B));
    world.is_down[C] = true;
    ck_assert(!will_live_without(B));  // It cannot be filled.
    world.is_down[C] = false;
    world.is_level = true;
    pass(1000);
    ck_assert_uint_eq(config_voters(&world.config), 3);
    ck_assert(lives_without(B));
    const uint32_t writes = world.writes;
    broker_queue_led(b, world.owner);
    pass(1000);
    ck_assert_uint_eq(world.writes, writes);
}
END_TEST

START_TEST(a_member_that_is_made_anew_is_no_majority_until_it_votes)
{
    begin(3);
    world.is_level = false;
    tell_lost(2);
    pass(300);
    MEMBERS(A, B, C);
    ck_assert_uint_eq(queue()->lost, 0);
    ck_assert(!lives_without(B));
    world.is_level = true;
    pass(1000);
    ck_assert(lives_without(B));
}
END_TEST

START_TEST(the_next_leader_says_that_a_member_votes_now)
{
    begin(2);
    world.is_level = false;
    ask_for(false, C, MEMBER_PROMOTABLE);
    pass(1000);
    world.is_leader = false;
    pass(1000);
    world.config.members[2].is_voter = true;  // By a leader that died before it wrote so.
    world.config.index++;
    const uint32_t writes = world.writes;
    pass(1000);
    ck_assert_uint_eq(world.writes, writes);
    ck_assert(!lives_without(B));
    world.is_leader = true;
    world.term++;
    broker_queue_led(b, world.owner);
    pass(1000);
    ck_assert_uint_eq(world.writes, writes + 1);
    ck_assert(lives_without(B));
}
END_TEST

START_TEST(a_member_that_is_not_to_vote_is_written_twice_and_then_no_more)
{
    begin(2);
    ask_for(false, C, MEMBER_NON_VOTER);
    pass(1000);
    MEMBERS(A, B, C);
    ck_assert_uint_eq(world.writes, 2);  // Announced, let in.
    broker_queue_led(b, world.owner);
    tell_node(D, D, 0);  // Something looks.
    pass(5000);
    ck_assert_uint_eq(world.writes, 2);
    ck_assert_uint_eq(config_voters(&world.config), 2);
}
END_TEST

START_TEST(founding_members_vote_from_the_start)
{
    begin(3);
    ck_assert(lives_without(B));
    broker_queue_led(b, world.owner);
    pass(1000);
    ck_assert_uint_eq(world.writes, 0);
}
END_TEST

// ---- what a configuration here says --------------------------------------------------------------------------------

static bool group_lives_without(uint32_t node_id)
{
    struct consensus_status s;
    group_status((struct group *)(void *)&world, &s);
    return broker_group_lives_without(&s, node_id, A, is_up, NULL);
}

START_TEST(a_group_lives_without_a_voter_while_the_others_are_a_majority)
{
    begin(3);
    ck_assert(group_lives_without(B));
    ck_assert(group_lives_without(D));
    world.is_down[C] = true;
    ck_assert(!group_lives_without(B));
    ck_assert(group_lives_without(D));  // It holds nothing of the group.
    world.config.members[2].is_voter = false;
    ck_assert(group_lives_without(C));
    world.is_down[C] = false;
    ck_assert(!group_lives_without(B));  // c is up, and does not vote yet.
}
END_TEST

START_TEST(a_group_does_not_count_a_voter_that_lost_what_it_acknowledged)
{
    begin(3);
    world.regressed_at = 1 << 2;
    ck_assert(!group_lives_without(B));
    ck_assert(group_lives_without(C));
}
END_TEST

START_TEST(a_group_does_not_count_the_replica_here_if_it_lost_its_memory)
{
    begin(3);
    world.is_amnesiac = true;
    ck_assert(!group_lives_without(B));
    ck_assert(group_lives_without(A));
}
END_TEST

// ---- records that are behind the disk ------------------------------------------------------------------------------

// The record with another replica at place `i`, as it stands in the store already.
static void tell_other_replica(uint32_t i, uint64_t replica_id)
{
    uint32_t nodes[] = {A, B, C};
    Warren__QueueMember members[3], *list[3];
    Warren__QueueRecord r = WARREN__QUEUE_RECORD__INIT;
    r.type = "quorum";
    r.durable = true;
    r.member_nodes = nodes;
    r.n_member_nodes = r.n_members = 3;
    r.members = list;
    for (uint32_t k = 0; k < 3; k++) {
        warren__queue_member__init(&members[k]);
        members[k].node_id = nodes[k];
        members[k].replica_id = k == i ? replica_id : GROUP + 1 + k;
        list[k] = &members[k];
    }
    struct buf payload = {0};
    buf_u64(&payload, GROUP);
    warren__queue_record__pack(&r, buf_extend(&payload, warren__queue_record__get_packed_size(&r)));
    tell(path_queue(span_str("/"), span_str("q")), buf_span(&payload), false, ++version);
    buf_deinit(&payload);
}

START_TEST(a_record_that_names_an_earlier_replica_than_the_one_here_is_waited_out)
{
    world.has_group = world.is_leader = false;
    world.add_rc = RC_STALE;
    begin(3);
    ck_assert_uint_eq(world.started, 1);
    ck_assert_uint_eq(world.started_id, GROUP + 1);
    ck_assert(!broker_has_unread(b));  // Groups that no record names may still be told from this one.
    ck_assert_uint_eq(world.deleted, 0);
    pass(1000);
    ck_assert_uint_eq(world.writes, 0);
    ck_assert_uint_eq(queue()->lost, 0);  // The replica here has lost nothing.
    world.add_rc = RC_OK;
    tell_other_replica(0, 5000);
    ck_assert_uint_eq(world.started, 2);
    ck_assert_uint_eq(world.started_id, 5000);
    ck_assert_uint_eq(world.deleted, 0);
}
END_TEST

START_TEST(a_replica_that_does_not_start_for_another_reason_keeps_every_group_that_no_record_names)
{
    world.has_group = world.is_leader = false;
    world.add_rc = RC_IO;
    begin(3);
    ck_assert(broker_has_unread(b));
}
END_TEST

START_TEST(a_learner_that_the_record_has_let_go_of_is_not_in_the_way_of_the_next_on_its_node)
{
    begin(1);
    ask_for(false, B, MEMBER_PROMOTABLE);
    turn(1);
    world.is_down[B] = true;
    store_answers();
    pass(9900);
    while (!world.has_write) {
        turn(5);
        proof_comes();
    }
    // Under way, proven. The lead is handed over, b is up again, and the next leader lets it in.
    world.is_leader = false;
    world.is_down[B] = false;
    world.config.members[world.config.count++] = (struct member){.replica_id = 5000, .node_id = B};
    world.config.index += 10;
    store_answers();
    world.is_leader = true;
    world.term++;
    broker_queue_led(b, world.owner);
    pass(1000);
    ck_assert_uint_eq(queue()->target->members_count, 1);
    world.is_level = true;
    ask_for(false, B, MEMBER_PROMOTABLE);
    pass(1000);
    uint32_t on_b = 0;
    for (uint32_t i = 0; i < world.config.count; i++) {
        on_b += world.config.members[i].node_id == B;
    }
    ck_assert_uint_eq(on_b, 1);  // The engine refuses a second on one node (RC_EXISTS).
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("membership_lost");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_learner_that_the_record_has_let_go_of_is_not_in_the_way_of_the_next_on_its_node);
    tcase_add_test(t, a_member_whose_node_lost_its_disk_is_made_anew_on_the_node_that_took_its_place);
    tcase_add_test(t, it_waits_for_that_node_and_takes_no_other);
    tcase_add_test(t, a_forgotten_nodes_place_goes_to_another_node);
    tcase_add_test(t, without_another_node_the_place_waits_for_one_that_joins);
    tcase_add_test(t, a_request_takes_the_place_that_waits);
    tcase_add_test(t, a_forgotten_member_stays_while_the_others_that_are_up_are_no_majority);
    tcase_add_test(t, a_replica_that_lost_its_memory_is_made_anew_on_its_node_under_another_id);
    tcase_add_test(t, it_stays_in_the_configuration_while_the_others_are_no_majority_without_it);
    tcase_add_test(t, its_place_waits_for_its_node_and_goes_to_no_other);
    tcase_add_test(t, a_node_writes_into_the_record_that_its_replica_lost_its_memory);
    tcase_add_test(t, without_a_majority_of_the_store_it_is_written_later);
    tcase_add_test(t, a_leader_writes_that_a_member_lacks_what_it_acknowledged);
    tcase_add_test(t, a_queue_may_be_deleted_while_its_loss_is_being_written);
    tcase_add_test(t, nothing_is_concluded_from_what_is_missing_while_everything_is_told_again);
    tcase_add_test(t, a_queue_lives_without_a_member_while_the_others_are_a_majority);
    tcase_add_test(t, it_does_not_live_without_one_of_the_two_that_remember);
    tcase_add_test(t, a_place_that_a_forgotten_node_left_is_no_voter_that_is_missing);
    tcase_add_test(t, members_that_do_not_vote_are_no_majority);
    tcase_add_test(t, a_member_that_is_being_filled_is_no_majority);
    tcase_add_test(t, a_member_that_is_made_anew_is_no_majority_until_it_votes);
    tcase_add_test(t, the_next_leader_says_that_a_member_votes_now);
    tcase_add_test(t, a_member_that_is_not_to_vote_is_written_twice_and_then_no_more);
    tcase_add_test(t, founding_members_vote_from_the_start);
    tcase_add_test(t, a_group_lives_without_a_voter_while_the_others_are_a_majority);
    tcase_add_test(t, a_group_does_not_count_a_voter_that_lost_what_it_acknowledged);
    tcase_add_test(t, a_group_does_not_count_the_replica_here_if_it_lost_its_memory);
    tcase_add_test(t, a_record_that_names_an_earlier_replica_than_the_one_here_is_waited_out);
    tcase_add_test(t, a_replica_that_does_not_start_for_another_reason_keeps_every_group_that_no_record_names);
    return suite_run("membership_lost", t);
}
