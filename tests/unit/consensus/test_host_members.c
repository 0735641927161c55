// SPDX-License-Identifier: Apache-2.0
// Replicas that come, are behind, and go: taking another's place, slow learners, what deleted groups leave.
// links: node/base proto gen consensus consensus/raft consensus/solo consensus/wal consensus/store consensus/host tests/sim
#include "tests/unit/consensus/host_fixture.h"
#include "consensus/host/host_core.h"
#include <malloc.h>

// What it was sent in the name of the one before is of no use to it, and that transfer's end tells it nothing.
START_TEST(a_replica_that_takes_the_place_of_another_gets_the_snapshot)
{
    start();
    struct sim_node *n = &s->nodes[2];
    sim_node_drop_group(n, 0);  // It forgot everything; the others do not know.
    for (int i = 0; i < 6000; i++) {
        ck_assert_int_eq(propose(1, 0, 1000), RC_OK);
        if (i % 100 == 99) {
            run_ms(10);
        }
    }
    run_ms(300);
    ck_assert_uint_gt(status(1, 0).snapshot, 0);
    struct member_change change = {.kind = MEMBER_REMOVE, .member = s->groups[0].initial.members[2]};
    ck_assert_int_eq(group_change_members(s->nodes[0].groups[0], &change), RC_OK);
    sim_node_wake(&s->nodes[0], 0);
    run_ms(100);
    n->replicas[0] = 31;
    sim_node_add_group(n, 0, NULL);
    change = (struct member_change){.kind = MEMBER_ADD_LEARNER, .member = {.replica_id = 31, .node_id = 3}};
    ck_assert_int_eq(group_change_members(s->nodes[0].groups[0], &change), RC_OK);
    sim_node_wake(&s->nodes[0], 0);
    run_ms(30000);
    ck_assert_uint_eq(machine(3, 0)->entries, 6000);
    ck_assert_uint_eq(machine(3, 0)->chain, machine(1, 0)->chain);
}
END_TEST

// Node 1 lives and says nothing; 3 holds it for its leader. 2 comes back and asks 3, which asks node 1 in turn.
START_TEST(a_leader_that_is_gone_from_a_living_node_does_not_keep_the_others_from_electing)
{
    start();
    ck_assert_int_eq(propose(1, 0, 100), RC_OK);
    run_ms(300);
    sim_node_drop_group(&s->nodes[0], 0);
    run_ms(100);
    crash(2);
    run_ms(100);
    restart(2);
    run_ms(5000);
    const uint32_t next = status(2, 0).role == ROLE_LEADER ? 2 : 3;
    ck_assert_int_eq(status(next, 0).role, ROLE_LEADER);
    ck_assert_int_eq(propose(next, 0, 100), RC_OK);
    run_ms(1000);
    ck_assert_uint_eq(machine(2, 0)->entries, 2);
    ck_assert_uint_eq(machine(3, 0)->entries, 2);
}
END_TEST

static void cold_goes_on(struct sim_node *n)
{
    n->cold.is_busy = false;
    struct list *first = list_pop(&n->cold.jobs);
    if (first) {
        n->cold.base.submit(&n->cold.base, list_entry(first, struct job, link));
    }
}

// A learner on a node whose cold thread stands still takes what it is sent and never has it on disk.
START_TEST(a_slow_learner_holds_the_leaders_log_up_to_a_bound)
{
    start();
    struct sim_node *n = &s->nodes[2];
    sim_node_drop_group(n, 0);
    for (int i = 0; i < 3000; i++) {
        ck_assert_int_eq(propose(1, 0, 10000), RC_OK);
        run_ms(i % 100 == 99 ? 20 : 0);
    }
    run_ms(300);
    struct member_change change = {.kind = MEMBER_REMOVE, .member = s->groups[0].initial.members[2]};
    ck_assert_int_eq(group_change_members(s->nodes[0].groups[0], &change), RC_OK);
    sim_node_wake(&s->nodes[0], 0);
    run_ms(100);
    n->replicas[0] = 31;
    sim_node_add_group(n, 0, NULL);
    n->cold.is_busy = true;
    change = (struct member_change){.kind = MEMBER_ADD_LEARNER, .member = {.replica_id = 31, .node_id = 3}};
    ck_assert_int_eq(group_change_members(s->nodes[0].groups[0], &change), RC_OK);
    sim_node_wake(&s->nodes[0], 0);
    run_ms(100);
    const uint64_t sent = status(1, 0).snapshot;
    struct glog *log = store_glog_find(s->nodes[0].store->workers, 100);
    uint64_t grown = 0, entries;
    const uint64_t bound = (32 << 20) + 2 * glog_bytes_in_segments(log, &entries);
    ck_assert_uint_lt(bound, 70 << 20);
    for (int i = 0; i < 8000; i++) {
        ck_assert_int_eq(propose(1, 0, 10000), RC_OK);
        run_ms(i % 100 == 99 ? 20 : 0);
        grown = glog_bytes_since_snapshot(log) > grown ? glog_bytes_since_snapshot(log) : grown;
        ck_assert(i > 1000 || status(1, 0).snapshot == sent);  // It is held for a while,
    }
    ck_assert_uint_gt(status(1, 0).snapshot, sent);  // but not for 80 MB.
    ck_assert_uint_lt(grown, bound + (4 << 20));  // Until the next log file is retired.
    cold_goes_on(n);
    run_ms(70000);
    ck_assert_uint_eq(machine(3, 0)->entries, 11000);
    ck_assert_uint_eq(machine(3, 0)->chain, machine(1, 0)->chain);
}
END_TEST

// Many groups that are behind on one node: what is read for them from disk at a time is a window's worth.
START_TEST(groups_that_are_behind_on_one_node_are_fed_from_disk_a_window_at_a_time)
{
    enum { GROUPS = 60, FEEDS = LIMIT_PEER_IN_FLIGHT_BYTES / LIMIT_FRAME_BYTES };
    for (uint32_t i = 3; i < GROUPS; i++) {
        s->groups[i].id = 100 + i;
        map_init_u64(&s->groups[i].leaders);
        s->groups[i].initial.count = 3;
        for (uint32_t k = 0; k < 3; k++) {
            s->groups[i].initial.members[k] =
                (struct member){.replica_id = i * 10 + k + 1, .node_id = k + 1, .is_voter = true};
        }
    }
    for (uint32_t k = 0; k < 3; k++) {
        for (uint32_t i = 0; i < 3; i++) {
            s->groups[i].initial.members[k].node_id = k + 1;  // Node 1 leads them all.
        }
    }
    s->groups_count = GROUPS;
    s->memtable_bytes = 256 << 10;
    s->wal_file_bytes = 64 << 20;  // No file is retired: the logs are whole, and nobody needs a snapshot.
    start();
    crash(3);
    for (int i = 0; i < 30; i++) {
        for (uint32_t slot = 0; slot < GROUPS; slot++) {
            ck_assert_int_eq(propose(1, slot, 1000), RC_OK);
        }
        run_ms(10);
    }
    run_ms(300);
    struct sim_node *n = &s->nodes[0];
    n->cold.is_busy = true;  // They pile up.
    restart(3);
    run_ms(1000);
    uint32_t waiting = 0;
    list_each (l, &n->cold.jobs) {
        waiting++;
    }
    ck_assert_uint_eq(waiting, FEEDS);
    cold_goes_on(n);
    run_ms(5000);
    for (uint32_t slot = 0; slot < GROUPS; slot++) {
        ck_assert_uint_eq(machine(3, slot)->entries, 30);
    }
}
END_TEST

// The new replica's id is known (the queue's record says it), the end of the one before it did not reach the disk.
START_TEST(a_replica_does_not_take_over_what_another_left_on_its_node)
{
    start();
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(propose(1, 0, 100), RC_OK);
    }
    run_ms(300);
    ck_assert_uint_gt(status(3, 0).term, 0);
    crash(3);
    s->nodes[2].replicas[0] = 31;
    restart(3);
    ck_assert_uint_eq(status(3, 0).term, 0);
    ck_assert_uint_eq(status(3, 0).last, 0);
    ck_assert_uint_eq(glog_replica(store_glog_find(s->nodes[2].store->workers, 100)), 31);
    struct member_change change = {.kind = MEMBER_REMOVE, .member = s->groups[0].initial.members[2]};
    ck_assert_int_eq(group_change_members(s->nodes[0].groups[0], &change), RC_OK);
    sim_node_wake(&s->nodes[0], 0);
    run_ms(100);
    change = (struct member_change){.kind = MEMBER_ADD_LEARNER, .member = {.replica_id = 31, .node_id = 3}};
    ck_assert_int_eq(group_change_members(s->nodes[0].groups[0], &change), RC_OK);
    sim_node_wake(&s->nodes[0], 0);
    run_ms(1000);
    ck_assert_uint_eq(machine(3, 0)->entries, 10);
    crash(3);
    restart(3);
    ck_assert_uint_gt(status(3, 0).last, 10);  // That is its own: it stays.
}
END_TEST

// A node whose metadata fell back in a crash names the replica of before; what the later one promised must stay.
START_TEST(a_record_that_is_behind_gets_nothing_and_deletes_nothing)
{
    start();
    ck_assert_int_eq(propose(1, 0, 100), RC_OK);
    run_ms(300);
    struct sim_node *n = &s->nodes[2];
    const uint64_t last = status(3, 0).last;
    host_group_remove(n->groups[0], false);
    n->groups[0] = NULL;
    struct group *g = NULL;
    const struct group_spec spec = {
        .group = 100, .engine = "raft", .replica_id = 2, .initial = s->groups[0].initial, .fsm = &counter_fsm};
    ck_assert_int_eq(host_group_add(n->host, &spec, &g), RC_STALE);
    ck_assert_ptr_null(g);
    ck_assert_ptr_null(host_group_find(n->host, 100));
    struct glog *log = store_glog_find(n->store->workers, 100);
    ck_assert_ptr_nonnull(log);
    ck_assert_uint_eq(glog_last(log), last);
    ck_assert_uint_eq(glog_replica(log), 3);
}
END_TEST

static uint32_t nothing_apply(void *ctx, const struct entry *entries, uint32_t n)
{
    return n;
}
static const struct fsm_ops nothing_fsm = {.version = 1, .apply = nothing_apply, .role = counter_role};

// One round of groups of one member that are made, used and deleted. Returns the bytes allocated then.
static size_t churn(uint64_t first, uint32_t count)
{
    struct sim_node *n = &s->nodes[0];
    for (uint64_t id = first; id < first + count; id++) {
        const struct group_spec spec = {
            .group = id,
            .engine = "raft",
            .replica_id = id + 1,
            .initial = {.count = 1, .members = {{.replica_id = id + 1, .node_id = 1, .is_voter = true}}},
            .fsm = &nothing_fsm,
            .campaign_at_once = true,
        };
        struct group *g;
        ck_assert_int_eq(host_group_add(n->host, &spec, &g), RC_OK);
    }
    sim_node_wake(n, 0);
    run_ms(50);
    for (uint64_t id = first; id < first + count; id++) {
        struct group *g = host_group_find(n->host, id);
        struct consensus_status st;
        group_status(g, &st);
        ck_assert(st.is_ready);
        host_group_remove(g, true);
    }
    sim_node_wake(n, 0);
    run_ms(50);
    return mallinfo2().uordblks;
}

START_TEST(groups_that_were_deleted_leave_nothing_in_memory)
{
    enum { ROUND = 1000 };
    s->wal_file_bytes = 64 << 10;  // The simulated disk is in memory too: its files are used again soon.
    s->memtable_bytes = 256 << 10;
    start();
    size_t most = 0, least = SIZE_MAX;  // Of rounds 5 to 9, when all has its size, and of the last five.
    for (uint64_t i = 0; i < 25; i++) {
        const size_t bytes = churn((1 << 20) + i * 2 * ROUND, ROUND);
        most = i >= 5 && i < 10 && bytes > most ? bytes : most;
        least = i >= 20 && bytes < least ? bytes : least;
    }
    ck_assert_uint_lt(least, most + 8 * ROUND);  // 15,000 groups later.
}
END_TEST

// Groups with a majority of live nodes, none of whose replicas but ours is there: they campaign for ever.
static void add_hopeless(uint32_t node, uint64_t first, uint32_t count)
{
    struct sim_node *n = &s->nodes[node - 1];
    const uint32_t other = 5 - node;
    for (uint64_t id = first; id < first + count; id++) {
        const struct group_spec spec = {
            .group = id,
            .engine = "raft",
            .replica_id = id * 10,
            .initial = {.count = 3,
                        .members = {{.replica_id = id * 10, .node_id = node, .is_voter = true},
                                    {.replica_id = id * 10 + 1, .node_id = 1, .is_voter = true},
                                    {.replica_id = id * 10 + 2, .node_id = other, .is_voter = true}}},
            .fsm = &nothing_fsm,
        };
        struct group *g;
        ck_assert_int_eq(host_group_add(n->host, &spec, &g), RC_OK);
    }
    sim_node_wake(n, 0);
}

START_TEST(groups_that_cannot_be_elected_do_not_keep_others_from_it)
{
    start();
    add_hopeless(2, 10000, HOST_CAMPAIGNS_MAX + 10);
    add_hopeless(3, 20000, HOST_CAMPAIGNS_MAX + 10);
    run_ms(3000);
    crash(1);
    run_ms(10000);
    ck_assert_uint_ne(leader(0), 0);
    ck_assert_int_eq(propose(leader(0), 0, 100), RC_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("host members");
    TCase *t = tcase_create("members");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_replica_that_takes_the_place_of_another_gets_the_snapshot);
    tcase_add_test(t, a_leader_that_is_gone_from_a_living_node_does_not_keep_the_others_from_electing);
    tcase_add_test(t, a_slow_learner_holds_the_leaders_log_up_to_a_bound);
    tcase_add_test(t, groups_that_are_behind_on_one_node_are_fed_from_disk_a_window_at_a_time);
    tcase_add_test(t, a_replica_does_not_take_over_what_another_left_on_its_node);
    tcase_add_test(t, a_record_that_is_behind_gets_nothing_and_deletes_nothing);
    tcase_add_test(t, groups_that_were_deleted_leave_nothing_in_memory);
    tcase_add_test(t, groups_that_cannot_be_elected_do_not_keep_others_from_it);
    suite_add_tcase(suite, t);
    SRunner *r = srunner_create(suite);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
