// SPDX-License-Identifier: Apache-2.0
// Members of queues: record and configuration converge, whatever half-way state they are found in
// (node/broker/README.md has the table; the names of these tests are its rows).
// links: node/broker proto/amqp09 gen node/base
#include "node/broker/membership.h"
#include "tests/unit/node/broker_world.h"

// ---- fixture -----------------------------------------------------------------------------------------------------

enum { A = 1, B = 2, C = 3, D = 4, GROUP = 100 };  // Nodes; replicas of the founding members are GROUP + 1, 2, 3.

static struct broker *b;
static const struct meta_subscriber *sub;
static struct broker_config settings;
static uint64_t index_now, version;
static enum rc answered;
static uint32_t answers;

static void tell(struct meta_path p, struct span payload, bool is_deleted, uint64_t record_version)
{
    struct meta_change c = {.index = ++index_now,
                            .path = &p,
                            .is_deleted = is_deleted,
                            .payload = payload,
                            .version = record_version};
    sub->change(sub->ctx, &c);
}

static const char *const names[] = {"", "a@x", "b@x", "c@x", "d@x", "e@x"};

static void tell_node(uint32_t name, uint32_t node_id, uint32_t former)
{
    Warren__NodeRecord r = WARREN__NODE_RECORD__INIT;
    r.address = "127.0.0.1:25672";
    r.node_id = node_id;
    r.replica_id = node_id + 1000;
    r.former_ids = &former;
    r.n_former_ids = former != 0;
    struct buf payload = {0};
    buf_u64(&payload, 0);
    warren__node_record__pack(&r, buf_extend(&payload, warren__node_record__get_packed_size(&r)));
    tell(path_node(span_str(names[name])), buf_span(&payload), false, 1);
    buf_deinit(&payload);
}

static void forget_node(uint32_t name)
{
    tell(path_node(span_str(names[name])), span_str(""), true, 1);
}

static void tell_queue(uint32_t founders)
{
    uint32_t nodes[] = {A, B, C};
    Warren__QueueRecord r = WARREN__QUEUE_RECORD__INIT;
    r.type = "quorum";
    r.durable = true;
    r.member_nodes = nodes;
    r.n_member_nodes = founders;
    struct buf payload = {0};
    buf_u64(&payload, GROUP);
    warren__queue_record__pack(&r, buf_extend(&payload, warren__queue_record__get_packed_size(&r)));
    tell(path_queue(span_str("/"), span_str("q")), buf_span(&payload), false, version);
    buf_deinit(&payload);
    world.config = (struct config){.index = 10, .count = founders};
    for (uint32_t i = 0; i < founders; i++) {
        world.config.members[i] = (struct member){.replica_id = GROUP + 1 + i, .node_id = nodes[i], .is_voter = true};
    }
}

static const struct broker_queue *queue(void)
{
    return broker_queue_find(broker_vhost_find(b, span_str("/")), span_str("q"));
}

static void setup(void)
{
    world = (struct world){.now_ns = 1000000000,
                           .has_group = true,
                           .is_leader = true,
                           .is_level = true,
                           .term = 5,
                           .next_id = 5000};
    index_now = 0;
    version = 1;
    answers = 0;
    settings = (struct broker_config){.node_id = A,
                                      .worker_of = world_worker_of,
                                      .post = world_post,
                                      .host = (struct host *)(void *)&world,
                                      .default_queue_type = "quorum",
                                      .reconcile_trigger_ms = 1000,
                                      .reconcile_interval_ms = 60000};
    b = broker_create(&settings);
    sub = broker_subscriber(b);
    for (uint32_t i = A; i <= C; i++) {
        tell_node(i, i, 0);
    }
    tell(path_vhost(span_str("/")), span_str(""), false, 1);
}

static void begin(uint32_t founders)
{
    tell_queue(founders);
    sub->loaded(sub->ctx, index_now);
}

static void teardown(void)
{
    broker_destroy(b);
    buf_deinit(&world.payload);
}

// ---- time passes ---------------------------------------------------------------------------------------------------

// The store answers: the write under way took effect if nothing else was written since it began.
static void store_answers(void)
{
    if (!world.has_write) {
        return;
    }
    world.has_write = false;
    world.writes++;
    struct meta_result r = {.rc = world.is_store_lost                ? RC_NO_QUORUM
                                  : world.payload_version == version ? RC_OK
                                                                     : RC_CONFLICT};
    if (r.rc == RC_OK) {
        if (world.ids_offset) {
            memcpy(world.payload.ptr + world.ids_offset, &world.next_id, 8);
            world.next_id++;
        }
        version++;
        tell(path_queue(span_str("/"), span_str("q")), buf_span(&world.payload), false, version);
    }
    world.write_done(world.write_ctx, &r);
}

static void proof_comes(void)
{
    group_read_fn *done = world.proof_done;
    if (done) {
        world.proof_done = NULL;
        done(world.proof_ctx, world.proof_rc);
    }
}

static void turn(uint64_t ms)
{
    world.now_ns += ms * 1000000;
    broker_turn(b);
    for (uint32_t i = 0; i < world.posts_count; i++) {
        world.posts[i].fn(world.posts[i].arg);
    }
    world.posts_count = 0;
}

static void pass(uint64_t ms)
{
    for (uint64_t t = 0; t < ms; t += 5) {
        turn(5);
        store_answers();
        proof_comes();
    }
}

static void on_done(void *ctx, const struct broker_result *r)
{
    (void)ctx;
    answers++;
    answered = r->rc;
}

static void ask_for(bool is_removal, uint32_t node, enum broker_member_how how)
{
    struct broker_member_change c = {.group = GROUP, .is_removal = is_removal, .node_id = node, .how = how};
    broker_member_change(b, &c, 9000, on_done, NULL);
}

static void assert_members(uint32_t count, const uint32_t *nodes)
{
    const struct broker_queue *q = queue();
    ck_assert_uint_eq(q->target.members_count, count);
    ck_assert_uint_eq(q->joining, 0);
    ck_assert_uint_eq(world.config.count, count);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_eq(q->target.members[i].node_id, nodes[i]);
        ck_assert_ptr_nonnull(config_find(&world.config, q->target.members[i].replica_id));
    }
}
#define MEMBERS(...) assert_members(sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})

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
    ck_assert_uint_eq(queue()->target.members[1].replica_id, 5000);  // A new id.
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
    ck_assert_uint_eq(queue()->target.members_count, 3);
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

// ---- nodes go ---------------------------------------------------------------------------------------------

START_TEST(a_member_whose_node_lost_its_disk_is_made_anew_on_the_node_that_took_its_place)
{
    begin(3);
    tell_node(C, 33, C);  // c@x is node 33 now.
    pass(1000);
    MEMBERS(A, B, 33);
    ck_assert_uint_eq(queue()->target.members[2].replica_id, 5000);
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
    ck_assert_uint_eq(queue()->target.members_count, 3);  // Its place stays.
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
    ck_assert_uint_ge(queue()->target.members[2].replica_id, 5000);
    ck_assert(config_find(&world.config, queue()->target.members[2].replica_id)->is_voter);
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
    ck_assert_uint_eq(queue()->target.members[2].replica_id, GROUP + 3);
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
    Suite *s = suite_create("membership");
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
    tcase_add_test(
        t, a_node_that_the_record_names_no_more_deletes_its_replica_and_makes_another_when_it_is_named_again);
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
    tcase_add_test(t, members_are_added_up_to_the_target_where_it_is_wanted);
    tcase_add_test(t, without_a_majority_of_the_store_a_request_is_refused);
    tcase_add_test(t, a_request_ends_in_time_whatever_is_missing);
    tcase_add_test(t, a_queue_may_be_deleted_at_every_moment);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
