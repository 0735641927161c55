// SPDX-License-Identifier: Apache-2.0
// Three hosts in one process: proposing, batching, liveness, large entries, catching up, barriers.
// links: node/base proto gen consensus consensus/raft consensus/solo consensus/wal consensus/store consensus/host tests/sim
#include "consensus/host/host_core.h"
#include "tests/unit/consensus/host_fixture.h"

START_TEST(each_group_has_one_leader_that_all_members_know)
{
    start();
    for (uint32_t slot = 0; slot < 3; slot++) {
        ck_assert_uint_eq(leader(slot), slot + 1);
        ck_assert(status(slot + 1, slot).is_ready);
        for (uint32_t node = 1; node <= 3; node++) {
            ck_assert_uint_eq(status(node, slot).leader_node, slot + 1);
        }
    }
    ck_assert_uint_eq(metrics(1).leaders, 1);
    ck_assert_uint_eq(metrics(1).groups, 3);
}
END_TEST

START_TEST(what_is_proposed_is_applied_once_by_every_member)
{
    start();
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(propose(1, 0, 100), RC_OK);
    }
    run_ms(50);
    for (uint32_t node = 1; node <= 3; node++) {
        ck_assert_uint_eq(machine(node, 0)->entries, 100);
        ck_assert_uint_eq(machine(node, 0)->bytes, 100 * 100);
    }
}
END_TEST

START_TEST(proposals_of_one_turn_share_a_frame_and_a_sync)
{
    start();
    const uint64_t frames = metrics(1).appends_sent;
    const uint64_t syncs = sim_disk_counters(s->nodes[1].disk)->syncs;
    for (int i = 0; i < 200; i++) {
        ck_assert_int_eq(propose(1, 0, 100), RC_OK);
    }
    run_ms(4);  // 28 kB of records: one frame to each of two peers, written and acknowledged.
    ck_assert_uint_eq(machine(1, 0)->entries, 200);
    ck_assert_uint_eq(metrics(1).appends_sent - frames, 2);
    ck_assert_uint_eq(sim_disk_counters(s->nodes[1].disk)->syncs - syncs, 1);
}
END_TEST

START_TEST(followers_hear_of_the_last_commit_within_milliseconds)
{
    start();
    ck_assert_int_eq(propose(1, 0, 10), RC_OK);
    // Delay to the follower, its sync, delay back, 5 ms of patience, delay again.
    run_ms(1 + 1 + 5 + 1);
    ck_assert_uint_eq(machine(2, 0)->entries, 1);
    ck_assert_uint_eq(machine(3, 0)->entries, 1);
}
END_TEST

START_TEST(a_group_whose_commits_are_told_at_once_does_not_wait_for_what_follows)
{
    start();
    group_tell_at_once(s->nodes[0].groups[0]);
    ck_assert_int_eq(propose(1, 0, 10), RC_OK);
    ck_assert_int_eq(propose(2, 1, 10), RC_OK);
    run_ms(3);  // Delay, sync, delay back, delay again.
    ck_assert_uint_eq(machine(2, 0)->entries, 1);
    ck_assert_uint_eq(machine(3, 0)->entries, 1);
    ck_assert_uint_eq(machine(3, 1)->entries, 0);  // An ordinary one.
}
END_TEST

START_TEST(idle_groups_cause_no_events)
{
    start();
    run_ms(15000);  // Ten seconds after the last write the memtable is given back.
    const uint64_t before = s->counters.events;
    run_ms(60000);
    ck_assert_uint_eq(s->counters.events, before);
}
END_TEST

START_TEST(a_follower_refuses_proposals)
{
    start();
    ck_assert_int_eq(propose(2, 0, 10), RC_NOT_LEADER);
}
END_TEST

START_TEST(an_entry_larger_than_a_frame_travels_in_fragments)
{
    start();
    ck_assert_int_eq(propose(1, 0, 3 << 20), RC_OK);
    ck_assert_int_eq(propose(1, 0, 10), RC_OK);
    run_ms(200);
    for (uint32_t node = 1; node <= 3; node++) {
        ck_assert_uint_eq(machine(node, 0)->entries, 2);
        ck_assert_uint_eq(machine(node, 0)->bytes, (3 << 20) + 10);
    }
}
END_TEST

START_TEST(small_entries_of_other_groups_pass_between_fragments)
{
    s->groups[1].initial = s->groups[0].initial;  // Both led by node 1.
    s->groups[1].initial.members[0].replica_id = 11;
    s->groups[1].initial.members[1].replica_id = 12;
    s->groups[1].initial.members[2].replica_id = 13;
    s->memtable_bytes = 128 << 20;
    start();
    ck_assert_int_eq(propose(1, 0, 12 << 20), RC_OK);
    run_ms(2);
    ck_assert_int_eq(propose(1, 1, 10), RC_OK);
    for (int i = 0; i < 2000 && machine(1, 1)->entries == 0; i++) {
        run_ms(1);
    }
    ck_assert_uint_eq(machine(1, 1)->entries, 1);
    ck_assert_uint_eq(machine(1, 0)->entries, 0);  // The large one is still on its way.
    run_ms(1000);
    ck_assert_uint_eq(machine(3, 0)->entries, 1);
}
END_TEST

START_TEST(a_dead_leader_is_replaced_and_catches_up_when_it_is_back)
{
    start();
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(propose(1, 0, 100), RC_OK);
    }
    run_ms(20);
    crash(1);
    run_ms(2000);
    const uint32_t next = leader(0);
    ck_assert_uint_ne(next, 0);
    ck_assert_uint_ne(next, 1);
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(propose(next, 0, 100), RC_OK);
    }
    run_ms(50);
    ck_assert_uint_eq(machine(next, 0)->entries, 20);
    restart(1);
    run_ms(2000);
    ck_assert_uint_eq(machine(1, 0)->entries, 20);
    ck_assert_uint_eq(machine(1, 0)->chain, machine(next, 0)->chain);
}
END_TEST

START_TEST(nothing_is_committed_without_a_majority)
{
    start();
    crash(2);
    crash(3);
    (void)propose(1, 0, 100);  // May be refused already.
    run_ms(3000);
    ck_assert_uint_eq(machine(1, 0)->entries, 0);
}
END_TEST

START_TEST(a_leader_that_hears_no_majority_steps_down)
{
    start();
    sim_net_cut(s, 1, 2, true);
    sim_net_cut(s, 1, 3, true);  // One-way: it hears them, they don't hear it.
    run_ms(4000);
    ck_assert_int_ne(status(1, 0).role, ROLE_LEADER);
    ck_assert_uint_ne(leader(0), 0);
    sim_net_heal(s);
    run_ms(2000);
    ck_assert_uint_ne(status(1, 0).leader_node, 0);
}
END_TEST

START_TEST(a_follower_far_behind_is_fed_from_disk_or_snapshot)
{
    start();
    crash(3);
    run_ms(100);
    // Several times what fits into memory.
    uint64_t accepted = 0;
    for (int i = 0; i < 40000 && accepted < 12000; i++) {
        accepted += propose(1, 0, 1000) == RC_OK;
        if (i % 100 == 99) {
            run_ms(10);
        }
    }
    run_ms(500);
    ck_assert_uint_eq(accepted, 12000);
    ck_assert_uint_eq(machine(1, 0)->entries, 12000);
    restart(3);
    run_ms(20000);
    ck_assert_uint_eq(machine(3, 0)->entries, 12000);
    ck_assert_uint_eq(machine(3, 0)->chain, machine(1, 0)->chain);
    ck_assert_uint_gt(status(1, 0).snapshot, 0);  // WAL files were retired.
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

// Its bound for a snapshot of its own accord is not met: 600 kB that died are little for the leader's disk.
START_TEST(a_member_without_room_for_the_snapshot_gets_a_smaller_one_when_the_queue_is_drained)
{
    static struct fsm_ops live_fsm;
    static struct sim_app app;
    live_fsm = counter_fsm;
    live_fsm.snapshot_live = live_of;
    live_fsm.live_count = live_count;
    app = counter_app;
    app.fsm = &live_fsm;
    s->app = &app;
    start();
    ck_assert_int_eq(propose(1, 0, 1), RC_OK);
    run_ms(200);
    crash(3);
    run_ms(100);
    for (int i = 0; i < 600; i++) {
        ck_assert_int_eq(propose(1, 0, 1000), RC_OK);
        run_ms(5);
    }
    glog_snapshot_request(s->nodes[0].groups[0]->log);
    sim_node_wake(&s->nodes[0], 0);
    run_ms(500);
    const uint64_t snapshot = status(1, 0).snapshot;
    ck_assert_uint_ge(snapshot, 600);
    restart(3);
    s->nodes[2].is_full = true;
    sim_disk_set_budget(s->nodes[2].disk, sim_disk_used(s->nodes[2].disk) + (300 << 10));
    run_ms(3000);
    ck_assert_uint_lt(machine(3, 0)->index, 600);
    ck_assert_uint_eq(status(1, 0).snapshot, snapshot);
    ck_assert_int_eq(propose(1, 0, 1), RC_OK);
    run_ms(5000);
    ck_assert_uint_eq(machine(3, 0)->index, machine(1, 0)->index);
    ck_assert_uint_eq(machine(3, 0)->chain, machine(1, 0)->chain);
}
END_TEST

// Looks for the file of a transfer that is coming, which has not got its name yet.
static bool has_unfinished_segment(uint32_t node)
{
    for (uint32_t seq = 1; seq < 100; seq++) {
        char path[64];
        snprintf(path, sizeof(path), "seg/seg-%016x.tmp", seq);
        if (sim_disk_exists(s->nodes[node - 1].disk, path)) {
            return true;
        }
    }
    return false;
}

START_TEST(what_came_of_a_snapshot_goes_when_its_group_fails)
{
    static struct fsm_ops live_fsm;
    static struct sim_app app;
    live_fsm = counter_fsm;
    live_fsm.snapshot_live = live_of;
    live_fsm.live_count = live_count;
    app = counter_app;
    app.fsm = &live_fsm;
    s->app = &app;
    start();
    crash(3);
    run_ms(100);
    for (int i = 0; i < 3000; i++) {
        ck_assert_int_eq(propose(1, 0, 1000), RC_OK);
        run_ms(1);
    }
    glog_snapshot_request(s->nodes[0].groups[0]->log);
    sim_node_wake(&s->nodes[0], 0);
    run_ms(1000);
    ck_assert_uint_gt(status(1, 0).snapshot, 1500);
    restart(3);
    struct group *g = NULL;
    bool is_coming = false;
    for (int i = 0; i < 200000 && !is_coming; i++) {
        sim_run_until(s, s->now + 20 * SIM_US);
        g = s->nodes[2].groups[0];
        is_coming = g && (g->flags & GROUP_RECEIVING) && has_unfinished_segment(3);
    }
    ck_assert(is_coming);
    sim_run_until(s, s->now + (uint64_t)_i * 200 * SIM_US);  // While a piece is written, or between two.
    ck_assert((g->flags & (GROUP_RECEIVING | GROUP_INSTALLING)) == GROUP_RECEIVING);
    group_fail(g, RC_MALFORMED, "the test says so");
    run_ms(20000);
    ck_assert(!has_unfinished_segment(3));
}
END_TEST

// Node ids are never used again, so in a cluster whose nodes come and go the numbers of nodes known grow.
START_TEST(nodes_that_came_and_went_cost_a_host_nothing_but_a_name)
{
    start();
    crash(3);
    const struct net_upcalls *u = host_net_upcalls(s->nodes[0].host);
    for (uint32_t id = 1000; id < 1300; id++) {
        u->node_state(u->ctx, id, NODE_DEAD, 1);
    }
    run_ms(100);
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(propose(1, 0, 100), RC_OK);
    }
    restart(3);
    run_ms(3000);
    ck_assert_uint_eq(machine(3, 0)->entries, 10);
}
END_TEST

START_TEST(the_bound_of_uncommitted_bytes_keeps_a_fifth_for_reserved_commands)
{
    s->memtable_bytes = 256 << 20;
    start();
    s->faults.disk_delay_min = 10 * SIM_S;  // Nothing becomes durable from here on.
    uint64_t bytes = 0;
    uint64_t index, term;
    static uint8_t big[100 << 10];
    const struct glog_part part = {big, sizeof(big)};
    while (group_propose(s->nodes[0].groups[0], &part, 1, false, &index, &term) == RC_OK) {
        bytes += sizeof(big);
        ck_assert_uint_le(bytes, LIMIT_GROUP_UNCOMMITTED_BYTES);
    }
    ck_assert(group_is_full(s->nodes[0].groups[0]));
    ck_assert_uint_ge(bytes, LIMIT_FOR_PUBLISH(LIMIT_GROUP_UNCOMMITTED_BYTES) - 2 * sizeof(big));
    ck_assert_int_eq(group_propose(s->nodes[0].groups[0], &part, 1, true, &index, &term), RC_OK);
}
END_TEST

static int barrier_calls;
static enum rc barrier_rc;
static void barrier_done(void *ctx, enum rc rc)
{
    barrier_calls++;
    barrier_rc = rc;
}

START_TEST(a_read_barrier_passes_at_the_leader)
{
    start();
    barrier_calls = 0;
    group_read_barrier(s->nodes[0].groups[0], SIM_S, barrier_done, NULL);
    ck_assert_int_eq(barrier_calls, 0);  // Never from inside the call.
    sim_node_wake(&s->nodes[0], 0);
    run_ms(10);
    ck_assert_int_eq(barrier_calls, 1);
    ck_assert_int_eq(barrier_rc, RC_OK);
}
END_TEST

START_TEST(a_read_barrier_of_a_cut_off_leader_times_out_or_fails)
{
    start();
    sim_net_cut(s, 2, 1, true);
    sim_net_cut(s, 3, 1, true);
    barrier_calls = 0;
    group_read_barrier(s->nodes[0].groups[0], 300 * SIM_MS, barrier_done, NULL);
    sim_node_wake(&s->nodes[0], 0);
    run_ms(400);
    ck_assert_int_eq(barrier_calls, 1);
    ck_assert_int_eq(barrier_rc, RC_TIMEOUT);
}
END_TEST

START_TEST(a_read_barrier_at_a_follower_is_refused)
{
    start();
    barrier_calls = 0;
    group_read_barrier(s->nodes[1].groups[0], SIM_S, barrier_done, NULL);
    sim_node_wake(&s->nodes[1], 0);
    run_ms(10);
    ck_assert_int_eq(barrier_calls, 1);
    ck_assert_int_eq(barrier_rc, RC_NOT_LEADER);
}
END_TEST

// Runs until the barrier is finished, and before it is answered.
static void barrier_finishes(void)
{
    barrier_calls = 0;
    group_read_barrier(s->nodes[0].groups[0], SIM_S, barrier_done, NULL);
    sim_node_wake(&s->nodes[0], 0);
    while (list_is_empty(&s->nodes[0].host->reads_done)) {
        ck_assert_int_eq(barrier_calls, 0);
        ck_assert(sim_step(s));
    }
}

START_TEST(a_read_barrier_does_not_pass_when_its_group_was_removed_before_the_answer)
{
    start();
    barrier_finishes();
    sim_node_drop_group(&s->nodes[0], 0);
    run_ms(10);
    ck_assert_int_eq(barrier_calls, 1);
    ck_assert_int_eq(barrier_rc, RC_SHUTDOWN);
}
END_TEST

START_TEST(a_read_barrier_does_not_pass_when_its_replica_stopped_before_the_answer)
{
    start();
    barrier_finishes();
    group_fail(s->nodes[0].groups[0], RC_CORRUPT, "for a test");
    run_ms(10);
    ck_assert_int_eq(barrier_calls, 1);
    ck_assert_int_eq(barrier_rc, RC_CORRUPT);
}
END_TEST

START_TEST(a_read_barrier_does_not_pass_when_its_machine_is_filled_anew_before_the_answer)
{
    start();
    barrier_finishes();
    s->nodes[0].groups[0]->flags |= GROUP_INSTALLING;
    host_read_answer(s->nodes[0].host);
    ck_assert_int_eq(barrier_calls, 1);
    ck_assert_int_eq(barrier_rc, RC_NOT_LEADER);
}
END_TEST

START_TEST(the_lead_is_transferred_on_request)
{
    start();
    ck_assert_int_eq(group_transfer(s->nodes[0].groups[0], 3), RC_OK);
    sim_node_wake(&s->nodes[0], 0);
    run_ms(200);
    ck_assert_uint_eq(leader(0), 3);
}
END_TEST

START_TEST(messages_for_unknown_groups_and_other_replicas_change_nothing)
{
    s->groups[0].initial.members[2].node_id = 3;
    start();
    const struct consensus_status before = status(3, 0);
    host_group_remove(s->nodes[2].groups[0], false);
    s->nodes[2].groups[0] = NULL;
    ck_assert_ptr_null(host_group_find(s->nodes[2].host, 100));
    ck_assert_int_eq(propose(1, 0, 10), RC_OK);
    run_ms(1000);
    ck_assert_uint_eq(machine(1, 0)->entries, 1);  // Two of three suffice.
    ck_assert_uint_eq(status(1, 0).term, before.term);
}
END_TEST

START_TEST(frames_that_do_not_decode_are_dropped)
{
    start();
    struct host *h = s->nodes[0].host;
    const struct net_upcalls *up = host_net_upcalls(h);
    const uint16_t types[] = {FRAME_APPEND,        FRAME_ACK,      FRAME_VOTES,       FRAME_FRAGMENT,
                              FRAME_UNKNOWN_GROUP, FRAME_SNAPSHOT, FRAME_SNAPSHOT_ACK};
    struct rng rng;
    rng_seed(&rng, 1);
    for (int round = 0; round < 2000; round++) {
        uint8_t bytes[64];
        for (size_t i = 0; i < sizeof(bytes); i++) {
            bytes[i] = (uint8_t)(rng_below(&rng, 4) ? rng_below(&rng, 32) : rng_next(&rng));
        }
        const size_t envelope = rng_below(&rng, sizeof(bytes));
        const struct frame f = {.type = types[round % 7],
                                .envelope = span_of(bytes, envelope),
                                .raw = span_of(bytes + envelope, sizeof(bytes) - envelope)};
        up->frame(up->ctx, 2, LANE_LOG, &f);
    }
    ck_assert_uint_gt(metrics(1).malformed, 0);
    ck_assert_int_eq(propose(1, 0, 10), RC_OK);
    run_ms(5000);
    ck_assert_uint_eq(machine(2, 0)->entries, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("host");
    TCase *t = tcase_create("host");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, each_group_has_one_leader_that_all_members_know);
    tcase_add_test(t, what_is_proposed_is_applied_once_by_every_member);
    tcase_add_test(t, proposals_of_one_turn_share_a_frame_and_a_sync);
    tcase_add_test(t, followers_hear_of_the_last_commit_within_milliseconds);
    tcase_add_test(t, a_group_whose_commits_are_told_at_once_does_not_wait_for_what_follows);
    tcase_add_test(t, idle_groups_cause_no_events);
    tcase_add_test(t, a_follower_refuses_proposals);
    tcase_add_test(t, an_entry_larger_than_a_frame_travels_in_fragments);
    tcase_add_test(t, small_entries_of_other_groups_pass_between_fragments);
    tcase_add_test(t, a_dead_leader_is_replaced_and_catches_up_when_it_is_back);
    tcase_add_test(t, nothing_is_committed_without_a_majority);
    tcase_add_test(t, a_leader_that_hears_no_majority_steps_down);
    tcase_add_test(t, a_follower_far_behind_is_fed_from_disk_or_snapshot);
    tcase_add_test(t, a_member_without_room_for_the_snapshot_gets_a_smaller_one_when_the_queue_is_drained);
    tcase_add_loop_test(t, what_came_of_a_snapshot_goes_when_its_group_fails, 0, 6);
    tcase_add_test(t, nodes_that_came_and_went_cost_a_host_nothing_but_a_name);
    tcase_add_test(t, the_bound_of_uncommitted_bytes_keeps_a_fifth_for_reserved_commands);
    tcase_add_test(t, a_read_barrier_passes_at_the_leader);
    tcase_add_test(t, a_read_barrier_of_a_cut_off_leader_times_out_or_fails);
    tcase_add_test(t, a_read_barrier_at_a_follower_is_refused);
    tcase_add_test(t, a_read_barrier_does_not_pass_when_its_group_was_removed_before_the_answer);
    tcase_add_test(t, a_read_barrier_does_not_pass_when_its_replica_stopped_before_the_answer);
    tcase_add_test(t, a_read_barrier_does_not_pass_when_its_machine_is_filled_anew_before_the_answer);
    tcase_add_test(t, the_lead_is_transferred_on_request);
    tcase_add_test(t, messages_for_unknown_groups_and_other_replicas_change_nothing);
    tcase_add_test(t, frames_that_do_not_decode_are_dropped);
    suite_add_tcase(suite, t);
    SRunner *r = srunner_create(suite);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
