// SPDX-License-Identifier: Apache-2.0
// Entries that go to a peer in pieces, one at a time: whose turn it is when several groups have one, who reads from disk
// meanwhile, and when a turn ends.
// links: node/base proto gen consensus consensus/raft consensus/solo consensus/wal consensus/store consensus/host tests/sim
#include "tests/unit/consensus/host_fixture.h"
#include "consensus/host/host_core.h"

enum { LARGE = 3 << 20 };

// Node 1 leads `groups` groups, keeps little in memory, and none of its log files is retired: the logs are whole, and with less
// than HOST_SNAPSHOT_MIN_BYTES in each nobody needs a snapshot.
static void start_groups(uint32_t groups)
{
    for (uint32_t i = 0; i < groups; i++) {
        s->groups[i].id = 100 + i;
        if (i >= 3) {
            map_init_u64(&s->groups[i].leaders);
        }
        s->groups[i].initial.count = 3;
        for (uint32_t k = 0; k < 3; k++) {
            s->groups[i].initial.members[k] = (struct member){.replica_id = i * 10 + k + 1, .node_id = k + 1, .is_voter = true};
        }
    }
    s->groups_count = groups;
    s->memtable_bytes = 256 << 10;
    s->wal_file_bytes = 256 << 20;
    start();
}

// `n` large entries for a group, which then lie on node 1's disk and no longer in its memory.
static void propose_cold(uint32_t slot, uint32_t n)
{
    const uint64_t before = machine(1, slot)->entries;
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_int_eq(propose(1, slot, LARGE), RC_OK);
        run_ms(500);
    }
    ck_assert_int_eq(propose(1, slot, 10), RC_OK);
    run_ms(100);
    ck_assert_uint_eq(machine(1, slot)->entries, before + n + 1);
}

static struct peer *peer_of(uint32_t node)
{
    struct host *h = s->nodes[0].host;
    list_each (l, &h->peers) {
        struct peer *p = list_entry(l, struct peer, link);
        if (p->node == node) {
            return p;
        }
    }
    ck_abort_msg("no such peer");
}

// What is read for one while another's is being sent cannot go and is dropped: it must not be read over and over meanwhile.
START_TEST(groups_that_lack_large_entries_on_one_node_have_each_read_from_disk_about_once)
{
    enum { GROUPS = 8 };
    start_groups(GROUPS);
    crash(3);
    for (uint32_t slot = 0; slot < GROUPS; slot++) {
        propose_cold(slot, 1);
    }
    const uint64_t before = metrics(1).cold_reads;
    restart(3);
    run_ms(20000);
    for (uint32_t slot = 0; slot < GROUPS; slot++) {
        ck_assert_uint_eq(machine(3, slot)->entries, 2);
        ck_assert_uint_eq(machine(3, slot)->bytes, LARGE + 10);
    }
    const uint64_t reads = metrics(1).cold_reads - before;
    // Once to find out that it is large, once when it is its turn, and what is behind it.
    ck_assert_uint_ge(reads, GROUPS);
    ck_assert_uint_le(reads, 3 * GROUPS);
}
END_TEST

// A turn is one entry: who has many of them on disk does not keep the others waiting for all of them.
START_TEST(groups_with_many_large_entries_on_disk_send_them_by_turns)
{
    enum { GROUPS = 4, EACH = 4 };
    start_groups(GROUPS);
    crash(3);
    for (uint32_t slot = 0; slot < GROUPS; slot++) {
        propose_cold(slot, EACH);
        ck_assert_uint_eq(status(1, slot).snapshot, 0);
    }
    restart(3);
    uint64_t most = 0;
    for (int i = 0; i < 200000 && most < EACH; i++) {
        sim_run_until(s, s->now + 100 * SIM_US);
        for (uint32_t slot = 0; slot < GROUPS; slot++) {
            most = machine(3, slot)->entries > most ? machine(3, slot)->entries : most;
        }
    }
    ck_assert_uint_ge(most, EACH);
    for (uint32_t slot = 0; slot < GROUPS; slot++) {
        ck_assert_uint_ge(machine(3, slot)->entries, EACH - 2);
    }
    run_ms(20000);
    for (uint32_t slot = 0; slot < GROUPS; slot++) {
        ck_assert_uint_eq(machine(3, slot)->entries, EACH + 1);
    }
}
END_TEST

// Those in memory have no need of a read, and still must not push in: what was read for the one whose turn it is would be dropped.
START_TEST(large_entries_in_memory_wait_for_the_turn_of_those_on_disk)
{
    enum { GROUPS = 5, FRESH = GROUPS - 1, EACH = 3 };
    start_groups(GROUPS);
    crash(3);
    for (uint32_t slot = 0; slot < FRESH; slot++) {
        propose_cold(slot, EACH);
    }
    const uint64_t before = metrics(1).cold_reads;
    restart(3);
    uint32_t fresh = 0;
    bool is_done = false;
    for (int i = 0; i < 20000 && !is_done; i++) {
        run_ms(1);
        is_done = true;
        for (uint32_t slot = 0; slot < FRESH; slot++) {
            is_done = is_done && machine(3, slot)->entries == EACH + 1;
        }
        if (!is_done && machine(3, FRESH)->entries == fresh && machine(1, FRESH)->entries == fresh) {
            ck_assert_int_eq(propose(1, FRESH, LARGE), RC_OK);
            fresh++;
        }
    }
    ck_assert(is_done);
    ck_assert_uint_gt(fresh, 2);
    const uint64_t reads = metrics(1).cold_reads - before;
    run_ms(5000);
    ck_assert_uint_eq(machine(3, FRESH)->entries, fresh);
    ck_assert_uint_le(reads, FRESH * (EACH + 1) + GROUPS);  // Each entry once, and a first one to find out that it is large.
}
END_TEST

// It stopped between its turn and its entry, with something left to send.
START_TEST(a_group_that_fails_while_it_is_its_turn_does_not_keep_it)
{
    enum { GROUPS = 4 };
    start_groups(GROUPS);
    crash(3);
    for (uint32_t slot = 0; slot < GROUPS; slot++) {
        propose_cold(slot, 1);
    }
    restart(3);
    struct sim_node *n = &s->nodes[0];
    struct group *g = NULL;
    for (int i = 0; i < 200000 && g == NULL; i++) {
        sim_run_until(s, s->now + 20 * SIM_US);
        const struct peer *p = peer_of(3);
        if (p->large_group != 0 && p->fragment.group == NULL) {
            g = host_group_find(n->host, p->large_group);
        }
    }
    ck_assert_ptr_nonnull(g);
    const uint64_t failed = g->id;
    group_ready(g, GROUP_SEND);
    group_fail(g, RC_MALFORMED, "the test says so");
    run_ms(30000);
    for (uint32_t slot = 0; slot < GROUPS; slot++) {
        ck_assert(s->groups[slot].id == failed || machine(3, slot)->entries == 2);
    }
}
END_TEST

// It may stay away for days, and a record may be 128 MiB.
START_TEST(an_entry_on_its_way_to_a_node_that_is_down_is_not_kept_in_memory)
{
    start_groups(1);
    struct peer *p = peer_of(3);
    ck_assert_int_eq(propose(1, 0, LARGE), RC_OK);
    for (int i = 0; i < 100000 && p->fragment.group == NULL; i++) {
        sim_run_until(s, s->now + 20 * SIM_US);
    }
    crash(3);
    ck_assert_ptr_nonnull(p->fragment.group);
    run_ms(10000);
    ck_assert_ptr_null(p->fragment.group);
    restart(3);
    run_ms(5000);
    ck_assert_uint_eq(machine(3, 0)->bytes, LARGE);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("host large");
    TCase *t = tcase_create("large");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, groups_that_lack_large_entries_on_one_node_have_each_read_from_disk_about_once);
    tcase_add_test(t, groups_with_many_large_entries_on_disk_send_them_by_turns);
    tcase_add_test(t, large_entries_in_memory_wait_for_the_turn_of_those_on_disk);
    tcase_add_test(t, a_group_that_fails_while_it_is_its_turn_does_not_keep_it);
    tcase_add_test(t, an_entry_on_its_way_to_a_node_that_is_down_is_not_kept_in_memory);
    suite_add_tcase(suite, t);
    SRunner *r = srunner_create(suite);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
