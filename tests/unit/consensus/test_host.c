// SPDX-License-Identifier: Apache-2.0
// Three hosts in one process: proposing, batching, liveness, large entries, catching up, snapshots, barriers.
// The world is the simulator's without its faults; the invariants of sim_check.c hold after every event here too.
// links: node/base proto gen consensus consensus/raft consensus/solo consensus/wal consensus/store consensus/host tests/sim
#include "consensus/store/core.h"
#include "tests/sim/sim.h"
#include <check.h>
#include <stdlib.h>

// ---- fixture ----------------------------------------------------------------------------------------------

static struct sim *s;

// A machine that only counts; its history is compared by the world.
struct counter {
    struct sim_node *node;
    uint64_t group, index, chain, entries, bytes;
    uint64_t applies;  // Calls.
};
struct fsm_snapshot {
    struct counter state;
};

static uint32_t counter_apply(void *ctx, const struct entry *entries, uint32_t n)
{
    struct counter *c = ctx;
    c->applies++;
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_uint_eq(entries[i].index, c->index + 1);
        c->index = entries[i].index;
        c->entries += entries[i].kind == RECORD_ENTRY;
        c->bytes += entries[i].kind == RECORD_ENTRY ? entries[i].payload.len : 0;
        c->chain = hash_u64(c->chain ^ hash_bytes(entries[i].payload) ^ entries[i].term);
        sim_check_applied(c->node, c->group, c->index, entries[i].term, c->chain);
    }
    return n;
}
static void counter_role(void *ctx, const struct consensus_status *status)
{
}
static struct fsm_snapshot *counter_snapshot_begin(void *ctx)
{
    struct fsm_snapshot *f = malloc(sizeof(*f));
    f->state = *(struct counter *)ctx;
    return f;
}
static bool counter_snapshot_chunk(struct fsm_snapshot *f, struct buf *to)
{
    buf_bytes(to, &f->state, sizeof(f->state));
    return false;
}
static void counter_snapshot_live(struct fsm_snapshot *f, struct buf *out)
{
}
static void counter_snapshot_end(struct fsm_snapshot *f)
{
    free(f);
}
static void counter_restore_begin(void *ctx)
{
}
static enum rc counter_restore_chunk(void *ctx, struct span chunk)
{
    struct counter *c = ctx;
    struct sim_node *node = c->node;
    ck_assert_uint_eq(chunk.len, sizeof(*c));
    memcpy(c, chunk.ptr, sizeof(*c));
    c->node = node;
    return RC_OK;
}
static enum rc counter_restore_end(void *ctx, uint64_t index)
{
    ck_assert_uint_eq(((struct counter *)ctx)->index, index);
    return RC_OK;
}
static uint64_t counter_size(void *ctx)
{
    return sizeof(struct counter);
}
static const struct fsm_ops counter_fsm = {
    .version = 1,
    .apply = counter_apply,
    .role = counter_role,
    .snapshot_begin = counter_snapshot_begin,
    .snapshot_chunk = counter_snapshot_chunk,
    .snapshot_live = counter_snapshot_live,
    .snapshot_end = counter_snapshot_end,
    .restore_begin = counter_restore_begin,
    .restore_chunk = counter_restore_chunk,
    .restore_end = counter_restore_end,
    .size_estimate = counter_size,
};
static void *counter_create(struct sim *world, struct sim_node *n, uint64_t group)
{
    struct counter *c = calloc(1, sizeof(*c));
    c->node = n;
    c->group = group;
    return c;
}
static const struct sim_app counter_app = {
    .name = "counter", .machine_create = counter_create, .machine_destroy = free, .fsm = &counter_fsm};

static void setup(void)
{
    s = calloc(1, sizeof(*s));
    sim_init(s, 4711, &counter_app);
    // No chance but small delays: three nodes, three groups led by turns.
    for (uint32_t i = 3; i < s->nodes_count; i++) {
        sim_disk_destroy(s->nodes[i].disk);
    }
    s->nodes_count = 3;
    for (uint32_t i = 0; i < s->groups_count; i++) {
        map_deinit(&s->groups[i].leaders);
    }
    memset(s->groups, 0, sizeof(s->groups));
    s->groups_count = 3;
    for (uint32_t i = 0; i < 3; i++) {
        s->groups[i].id = 100 + i;
        map_init_u64(&s->groups[i].leaders);
        s->groups[i].initial.count = 3;
        for (uint32_t k = 0; k < 3; k++) {
            s->groups[i].initial.members[k] =
                (struct member){.replica_id = i * 10 + k + 1, .node_id = (i + k) % 3 + 1, .is_voter = true};
        }
    }
    s->faults = (struct sim_faults){
        .net_delay_min = 50 * SIM_US, .disk_delay_min = SIM_MS, .cold_delay_min = 100 * SIM_US};
    s->wal_file_bytes = 1 << 20;
    s->wal_slice_bytes = 0;
    s->memtable_bytes = 4 << 20;
}
static void teardown(void)
{
    ck_assert_msg(!s->is_violated, "%s", s->violation);
    sim_deinit(s);
    free(s);
}

// ---- helpers ----------------------------------------------------------------------------------------------

static void run_ms(uint64_t ms)
{
    sim_run_until(s, s->now + ms * SIM_MS);
    ck_assert_msg(!s->is_violated, "%s", s->violation);
}
static struct consensus_status status(uint32_t node, uint32_t slot)
{
    struct consensus_status st;
    group_status(s->nodes[node - 1].groups[slot], &st);
    return st;
}
static uint32_t leader(uint32_t slot)
{
    for (uint32_t i = 1; i <= 3; i++) {
        if (s->nodes[i - 1].is_up && status(i, slot).role == ROLE_LEADER) {
            return i;
        }
    }
    return 0;
}
// All nodes up, group i led by node i + 1.
static void start(void)
{
    sim_start(s);
    for (int tries = 0; tries < 100; tries++) {
        bool is_done = true;
        run_ms(500);
        for (uint32_t slot = 0; slot < s->groups_count; slot++) {
            const uint32_t wanted = s->groups[slot].initial.members[0].node_id;
            const uint32_t is = leader(slot);
            if (is != 0 && is != wanted) {
                // Refused while an earlier one is under way.
                if (group_transfer(s->nodes[is - 1].groups[slot], wanted) == RC_OK) {
                    sim_node_wake(&s->nodes[is - 1], 0);
                }
            }
            is_done = is_done && is == wanted && status(wanted, slot).is_ready;
        }
        if (is_done) {
            return;
        }
    }
    ck_abort_msg("the groups did not get the leaders wanted");
}
static enum rc propose(uint32_t node, uint32_t slot, size_t bytes)
{
    uint8_t *payload = calloc(1, bytes + 1);
    for (size_t i = 0; i < bytes; i += 997) {
        payload[i] = (uint8_t)(i / 997);
    }
    const struct glog_part part = {payload, bytes};
    uint64_t index, term;
    const enum rc rc = group_propose(s->nodes[node - 1].groups[slot], &part, 1, false, &index, &term);
    free(payload);
    sim_node_wake(&s->nodes[node - 1], 0);
    return rc;
}
static struct counter *machine(uint32_t node, uint32_t slot)
{
    return s->nodes[node - 1].machines[slot];
}
static void crash(uint32_t node)
{
    sim_node_crash(&s->nodes[node - 1], true);
}
static void restart(uint32_t node)
{
    sim_node_start(&s->nodes[node - 1]);
}
static struct host_metrics metrics(uint32_t node)
{
    struct host_metrics m;
    host_metrics(s->nodes[node - 1].host, &m);
    return m;
}

// ---- tests ------------------------------------------------------------------------------------------------

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
    ck_assert_uint_gt(waiting, 0);
    ck_assert_uint_le(waiting, FEEDS);
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
    tcase_add_test(t, a_replica_that_takes_the_place_of_another_gets_the_snapshot);
    tcase_add_test(t, a_slow_learner_holds_the_leaders_log_up_to_a_bound);
    tcase_add_test(t, groups_that_are_behind_on_one_node_are_fed_from_disk_a_window_at_a_time);
    tcase_add_test(t, a_replica_does_not_take_over_what_another_left_on_its_node);
    tcase_add_test(t, a_record_that_is_behind_gets_nothing_and_deletes_nothing);
    tcase_add_test(t, nodes_that_came_and_went_cost_a_host_nothing_but_a_name);
    tcase_add_test(t, the_bound_of_uncommitted_bytes_keeps_a_fifth_for_reserved_commands);
    tcase_add_test(t, a_read_barrier_passes_at_the_leader);
    tcase_add_test(t, a_read_barrier_of_a_cut_off_leader_times_out_or_fails);
    tcase_add_test(t, a_read_barrier_at_a_follower_is_refused);
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
