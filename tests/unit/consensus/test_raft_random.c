// SPDX-License-Identifier: Apache-2.0
// links: consensus consensus/raft consensus/solo node/base
// The raft engine under random trouble: loss, delay, duplication, reordering, crashes that lose what was not synced,
// partitions, a failure detector that errs, membership changes, snapshots, transfers, read barriers. The checker in
// raft_cluster.h watches every step; at the end all is healed and the group must come to rest, level and led.
#include "tests/unit/consensus/raft_cluster.h"

// ---- fixture -----------------------------------------------------------------------------------------------------

#define MS UINT64_C(1000000)

struct storm {
    struct cluster c;
    struct rng rng;
    bool cut[CL_NODES + 1][CL_NODES + 1];  // from, to.
    bool is_stalled[CL_NODES + 1];  // Its disk completes nothing for a while.
    uint32_t loss_percent;
    uint64_t delay_max;
    uint64_t next_id;
    uint64_t read_id;
};
static struct storm s;

static uint64_t below(uint64_t n)
{
    return rng_below(&s.rng, n);
}

static void on_packet(struct cluster *c, struct cl_packet *p)
{
    if (s.cut[p->from_node][p->to_node] || below(100) < s.loss_percent) {
        p->due = UINT64_MAX;
        return;
    }
    p->due = c->now + 1 + below(s.delay_max);
}

static void deliver_due(void)
{
    for (uint32_t guard = 0; guard < 200; guard++) {
        uint32_t ready[64];
        uint32_t count = 0;
        for (uint32_t k = 0; k < s.c.packets_count && count < 64; k++) {
            if (s.c.packets[k]->due <= s.c.now) {
                ready[count++] = k;
            }
        }
        if (count == 0) {
            return;
        }
        uint32_t k = ready[below(count)];
        if (s.loss_percent > 0 && below(20) == 0) {
            struct cl_packet *again = cl_packet_dup(s.c.packets[k]);
            again->due = s.c.now + below(50 * MS);
            s.c.packets = mem_realloc(s.c.packets, (s.c.packets_count + 1) * sizeof(*s.c.packets));
            s.c.packets_cap = s.c.packets_count + 1;
            s.c.packets[s.c.packets_count++] = again;
        }
        cl_deliver(&s.c, cl_packet_take(&s.c, k));
    }
}

static int leader_now(void)
{
    int leader = 0;
    uint64_t term = 0;
    for (uint32_t i = 1; i <= s.c.count; i++) {
        if (s.c.nodes[i].r != NULL) {
            struct consensus_status st;
            cl_status(&s.c, i, &st);
            if (st.role == ROLE_LEADER && st.term > term) {
                term = st.term;
                leader = (int)i;
            }
        }
    }
    return leader;
}

static void restart(uint32_t i)
{
    cl_start(&s.c, i, false);
    for (uint32_t j = 1; j <= s.c.count; j++) {
        if (j != i) {
            cl_alive(&s.c, j, i, true);
            cl_link_reset(&s.c, j, i);
            cl_alive(&s.c, i, j, s.c.nodes[j].r != NULL);
        }
    }
}

static void change_members(uint32_t leader)
{
    struct cl_node *n = &s.c.nodes[leader];
    struct consensus_status st;
    cl_status(&s.c, leader, &st);
    struct member_change change = {0};
    uint32_t node = 1 + (uint32_t)below(s.c.count);
    const struct member *m = config_find_node(st.config, node);
    if (m == NULL) {
        if (node == leader) {
            return;
        }
        if (s.c.nodes[node].r != NULL) {
            cl_crash(&s.c, node, 0);  // Was removed earlier: its old identity ends here.
        }
        change.kind = MEMBER_ADD_LEARNER;
        change.member = (struct member){.replica_id = ++s.next_id, .node_id = node};
    } else {
        change.kind = m->is_voter ? MEMBER_REMOVE : MEMBER_PROMOTE;
        change.member = *m;
        if (m->is_voter && config_voters(st.config) <= 2) {
            return;
        }
    }
    struct consensus_out out;
    enum rc rc = raft_ops.change_members(n->r, &change, s.c.now, &out);
    if (rc == RC_OK && change.kind == MEMBER_ADD_LEARNER) {
        struct cl_node *fresh = &s.c.nodes[node];
        cl_wal_drop(fresh);
        fresh->mem.last = fresh->disk.last = fresh->snapshot = fresh->applied = fresh->commit_seen = 0;
        fresh->disk_hard = (struct hard_state){0};
        fresh->replica_id = change.member.replica_id;
        fresh->is_member = true;
        cl_out(&s.c, leader, &out, NULL);
        cl_start(&s.c, node, false);
        return;
    }
    cl_out(&s.c, leader, &out, NULL);
}

static void trouble(void)
{
    uint32_t i = 1 + (uint32_t)below(s.c.count);
    uint32_t j = 1 + (uint32_t)below(s.c.count);
    struct cl_node *n = &s.c.nodes[i];
    struct consensus_out out;
    int leader = leader_now();
    switch (below(22)) {
    case 0:
        if (n->r != NULL) {
            cl_crash(&s.c, i, (uint32_t)below(n->wal_count + 1u));
            for (uint32_t k = 1; k <= s.c.count; k++) {
                if (below(4) != 0) {
                    cl_alive(&s.c, k, i, false);
                }
            }
        }
        break;
    case 1:
    case 2:
    case 15:
    case 16:
    case 17:
        if (n->r == NULL && n->is_member) {
            restart(i);
        }
        break;
    case 3:
        s.cut[i][j] = true;  // One way only.
        break;
    case 4:
        for (uint32_t k = 1; k <= s.c.count; k++) {
            s.cut[i][k] = s.cut[k][i] = true;
            cl_alive(&s.c, k, i, false);
            cl_alive(&s.c, i, k, false);
        }
        break;
    case 5:
    case 6:
    case 18:
    case 19:
    case 20:
    case 21:
        memset(s.cut, 0, sizeof(s.cut));
        for (uint32_t a = 1; a <= s.c.count; a++) {
            for (uint32_t b = 1; b <= s.c.count; b++) {
                cl_alive(&s.c, a, b, s.c.nodes[b].r != NULL);
            }
        }
        break;
    case 7:
        cl_alive(&s.c, i, j, below(2) == 0);  // The detector may err.
        cl_link_reset(&s.c, j, i);
        break;
    case 8:
        if (leader != 0) {
            change_members((uint32_t)leader);
        }
        break;
    case 9:
        if (n->r != NULL) {
            cl_snapshot(&s.c, i);
        }
        break;
    case 10:
        if (leader != 0 && s.c.nodes[j].is_member) {
            (void)!raft_ops.transfer(s.c.nodes[leader].r, s.c.nodes[j].replica_id, s.c.now, &out);
            cl_out(&s.c, (uint32_t)leader, &out, NULL);
        }
        break;
    case 12:
    case 13:
        s.is_stalled[i] = !s.is_stalled[i];
        break;
    case 14:  // The leader is cut off and, sooner or later, given up, with what it alone has.
        for (uint32_t k = 1; leader != 0 && k <= s.c.count; k++) {
            s.cut[leader][k] = s.cut[k][leader] = true;
            if (k != (uint32_t)leader) {
                cl_alive(&s.c, k, (uint32_t)leader, false);
            }
        }
        break;
    case 11:
        if (n->r != NULL && below(4) == 0) {
            raft_ops.step_down(n->r, s.c.now, &out);
            cl_out(&s.c, i, &out, NULL);
        }
        break;
    }
}

static void work(void)
{
    for (uint32_t i = 1; i <= s.c.count; i++) {
        struct cl_node *n = &s.c.nodes[i];
        if (n->r == NULL) {
            continue;
        }
        struct consensus_status st;
        cl_status(&s.c, i, &st);
        if (st.role == ROLE_LEADER && below(3) == 0) {
            (void)!cl_propose(&s.c, i, 1 + (uint32_t)below(5));
        }
        if (st.role == ROLE_LEADER && below(5) == 0) {
            struct consensus_out out;
            s.read_id++;
            s.c.reads[s.read_id % 256].id = s.read_id;
            s.c.reads[s.read_id % 256].floor = s.c.committed.last;
            (void)!raft_ops.read_barrier(n->r, s.read_id, s.c.now, &out);
            cl_out(&s.c, i, &out, NULL);
        }
    }
}

static void turn(void)
{
    s.c.now += below(4 * MS);
    for (uint32_t i = 1; i <= s.c.count; i++) {
        (void)cl_timeout(&s.c, i);
        cl_send(&s.c, i, 1 + (uint32_t)below(8));
    }
    deliver_due();
    for (uint32_t i = 1; i <= s.c.count; i++) {
        if (s.c.nodes[i].r != NULL && !s.is_stalled[i] && below(3) != 0) {
            cl_disk(&s.c, i, 1 + (uint32_t)below(20));
        }
    }
}

// After trouble the group must come to rest: one leader, all members level, nobody wants a timer.
static bool is_at_rest(void)
{
    int leader = leader_now();
    if (leader == 0) {
        return false;
    }
    struct consensus_status st;
    cl_status(&s.c, (uint32_t)leader, &st);
    if (st.commit != st.last || st.applied != st.last || raft_ops.deadline(s.c.nodes[leader].r) != UINT64_MAX) {
        return false;
    }
    for (uint32_t k = 0; k < st.config->count; k++) {
        uint32_t i = cl_node_of(&s.c, st.config->members[k].replica_id);
        if (i == 0) {
            return false;
        }
        struct consensus_status other;
        cl_status(&s.c, i, &other);
        if (other.commit != st.last || other.leader != st.leader || other.config->index != st.config->index ||
            raft_ops.deadline(s.c.nodes[i].r) != UINT64_MAX) {
            return false;
        }
    }
    return true;
}

static void heal(void)
{
    memset(s.cut, 0, sizeof(s.cut));
    memset(s.is_stalled, 0, sizeof(s.is_stalled));
    s.loss_percent = 0;
    s.delay_max = 3 * MS;
    for (uint32_t i = 1; i <= s.c.count; i++) {
        if (s.c.nodes[i].r == NULL && s.c.nodes[i].is_member) {
            restart(i);
        }
    }
    for (uint32_t a = 1; a <= s.c.count; a++) {
        for (uint32_t b = 1; b <= s.c.count; b++) {
            cl_alive(&s.c, a, b, s.c.nodes[b].r != NULL);
        }
    }
}

static void report(uint32_t turns)
{
    for (uint32_t i = 1; i <= s.c.count; i++) {
        if (s.c.nodes[i].r == NULL) {
            continue;
        }
        struct consensus_status st;
        cl_status(&s.c, i, &st);
        const struct member *self = config_find(st.config, s.c.nodes[i].replica_id);
        fprintf(stderr, "node %u id %llu role %d term %llu leader %llu last %llu durable %llu commit %llu applied %llu"
                " config %llu (%u members) %s deadline %+lld ms regressed %u\n",
                i, (unsigned long long)s.c.nodes[i].replica_id, (int)st.role, (unsigned long long)st.term,
                (unsigned long long)st.leader, (unsigned long long)st.last, (unsigned long long)st.durable,
                (unsigned long long)st.commit, (unsigned long long)st.applied, (unsigned long long)st.config->index,
                st.config->count, self == NULL ? "out" : self->is_voter ? "voter" : "learner",
                raft_ops.deadline(s.c.nodes[i].r) == UINT64_MAX
                    ? 999999LL
                    : (long long)(raft_ops.deadline(s.c.nodes[i].r) - s.c.now) / (long long)MS,
                st.regressed);
    }
    ck_abort_msg("seed %llu: no rest after %u healthy turns", (unsigned long long)s.c.seed, turns);
}

static uint64_t run_seed(uint64_t seed, uint32_t nodes, uint32_t voters, uint32_t turns)
{
    s = (struct storm){.next_id = 100};
    rng_seed(&s.rng, seed);
    cl_init(&s.c, nodes, voters, seed);
    s.c.on_packet = on_packet;
    s.loss_percent = (uint32_t)below(15);
    s.delay_max = 1 * MS + below(40 * MS);
    for (uint32_t i = 1; i <= voters; i++) {
        cl_start(&s.c, i, i == 1);
    }
    for (uint32_t t = 0; t < turns; t++) {
        turn();
        work();
        if (below(10) == 0) {
            trouble();
        }
        if (t % 256 == 0) {
            cl_check_matching(&s.c);
        }
    }
    heal();
    uint32_t calm = 0;
    while (!is_at_rest()) {
        turn();
        if (++calm == 8000) {
            report(calm);
        }
    }
    cl_check_matching(&s.c);
    uint64_t committed = s.c.committed.last;
    cl_deinit(&s.c);
    return committed;
}

static void run_seeds(uint32_t nodes, uint32_t voters, uint32_t seeds)
{
    const char *one = getenv("RAFT_SEED");
    uint64_t committed = 0, elections = 0, truncations = 0, snapshots = 0;
    for (uint64_t seed = one ? strtoull(one, NULL, 10) : 1; seed <= (one ? strtoull(one, NULL, 10) : seeds); seed++) {
        committed += run_seed(seed, nodes, voters, 1500);
        elections += s.c.elections;
        truncations += s.c.truncations;
        snapshots += s.c.snapshots;
    }
    printf("%u nodes: %llu committed, %llu elections, %llu truncations, %llu snapshots\n", nodes,
           (unsigned long long)committed, (unsigned long long)elections, (unsigned long long)truncations,
           (unsigned long long)snapshots);
    // The trouble must have been real, or the test proves nothing.
    ck_assert_uint_gt(committed, one ? 0 : 1000);
    ck_assert_uint_gt(elections, one ? 0 : seeds);
    ck_assert(one || truncations > 0);
    ck_assert(one || snapshots > 0);
}

// ---- tests -------------------------------------------------------------------------------------------------------

START_TEST(three_replicas_keep_every_promise_under_random_trouble)
{
    run_seeds(4, 3, 200);
}
END_TEST

START_TEST(five_replicas_keep_every_promise_under_random_trouble)
{
    run_seeds(6, 5, 100);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("raft random");
    TCase *tc = tcase_create("storm");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, three_replicas_keep_every_promise_under_random_trouble);
    tcase_add_test(tc, five_replicas_keep_every_promise_under_random_trouble);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
