// SPDX-License-Identifier: Apache-2.0
// links: node/base consensus/peer
// Who founds and who joins (decision 6), and that never two clusters come out of one list.
#include "consensus/peer/formation.h"
#include <check.h>
#include <stdlib.h>

// ---- fixture -----------------------------------------------------------------------------------------------------

enum { N = 3 };
static const char *const names[N] = {"n1@h", "n2@h", "n3@h"};
static struct formation_self self;
static struct formation_peer peers[N];
static struct formation_decision d;

// As seen by n1: everybody reachable, blank, with the same list.
static void setup(void)
{
    uint64_t hash = formation_list_hash(names, N);
    self = (struct formation_self){.name = names[0], .is_blank = true, .list_hash = hash};
    for (int i = 0; i < N; i++) {
        peers[i] = (struct formation_peer){
            .name = names[i], .is_reachable = true, .is_known = true, .is_blank = true, .list_hash = hash};
    }
}

static void make_member(int i, uint8_t cluster)
{
    peers[i].is_blank = false;
    peers[i].cluster_id[0] = cluster;
}

static enum formation_state decide(void)
{
    formation_decide(&self, peers, N, &d);
    return d.state;
}

// ---- tests: one decision -----------------------------------------------------------------------------------------

START_TEST(the_first_by_name_founds_when_all_are_there_and_blank)
{
    ck_assert_int_eq(decide(), FORMATION_FOUND);
}
END_TEST

START_TEST(the_order_of_the_list_does_not_matter)
{
    struct formation_peer swap = peers[0];
    peers[0] = peers[2];
    peers[2] = swap;
    ck_assert_int_eq(decide(), FORMATION_FOUND);
    const char *const other[4] = {"n3@h", "n1@h", "n2@h", "n1@h"};
    ck_assert_uint_eq(formation_list_hash(other, 4), formation_list_hash(names, N));
    ck_assert_uint_ne(formation_list_hash(names, 2), formation_list_hash(names, N));
    ck_assert_uint_eq(formation_list_hash(names, 0), 0);
}
END_TEST

START_TEST(the_others_wait_for_the_first)
{
    self.name = names[1];
    ck_assert_int_eq(decide(), FORMATION_WAIT);
    ck_assert_ptr_nonnull(strstr(d.reason, "n1@h"));
}
END_TEST

START_TEST(one_that_is_away_is_waited_for_by_name)
{
    peers[2].is_reachable = false;
    ck_assert_int_eq(decide(), FORMATION_WAIT);
    ck_assert_str_eq(d.reason, "waiting for n3@h");
    peers[1].is_reachable = false;
    ck_assert_int_eq(decide(), FORMATION_WAIT);
    ck_assert_str_eq(d.reason, "waiting for n2@h, n3@h");
}
END_TEST

START_TEST(one_seen_blank_once_and_away_now_is_waited_for)
{
    peers[1].is_reachable = false;
    peers[1].is_known = true;
    ck_assert_int_eq(decide(), FORMATION_WAIT);
}
END_TEST

START_TEST(another_list_is_no_consent)
{
    peers[1].list_hash++;
    ck_assert_int_eq(decide(), FORMATION_WAIT);
    ck_assert_ptr_nonnull(strstr(d.reason, "n2@h has another list"));
}
END_TEST

START_TEST(one_member_means_join_even_if_another_is_away)
{
    make_member(2, 9);
    peers[1].is_reachable = false;
    ck_assert_int_eq(decide(), FORMATION_JOIN);
    ck_assert_str_eq(d.via, "n3@h");
}
END_TEST

START_TEST(a_member_that_went_away_is_waited_for_and_forbids_founding)
{
    make_member(2, 9);
    peers[2].is_reachable = false;
    ck_assert_int_eq(decide(), FORMATION_WAIT);
    ck_assert_ptr_nonnull(strstr(d.reason, "n3@h is a member of a cluster"));
}
END_TEST

START_TEST(a_member_that_refuses_is_named_with_its_reason)
{
    make_member(1, 9);
    peers[1].is_reachable = false;
    peers[1].refusal = "known under another store id";
    ck_assert_int_eq(decide(), FORMATION_WAIT);
    ck_assert_ptr_nonnull(strstr(d.reason, "known under another store id"));
}
END_TEST

START_TEST(members_of_different_clusters_are_not_joined)
{
    make_member(1, 9);
    make_member(2, 8);
    ck_assert_int_eq(decide(), FORMATION_WAIT);
    ck_assert_ptr_nonnull(strstr(d.reason, "different clusters"));
}
END_TEST

START_TEST(without_a_list_or_with_only_itself_on_it_a_node_founds_alone)
{
    formation_decide(&self, NULL, 0, &d);
    ck_assert_int_eq(d.state, FORMATION_FOUND);
    formation_decide(&self, peers, 1, &d);
    ck_assert_int_eq(d.state, FORMATION_FOUND);
}
END_TEST

START_TEST(a_node_that_is_not_on_its_own_list_does_not_found_but_may_join)
{
    self.name = "n0@h";
    ck_assert_int_eq(decide(), FORMATION_WAIT);
    make_member(1, 9);
    ck_assert_int_eq(decide(), FORMATION_JOIN);
}
END_TEST

START_TEST(a_member_decides_nothing)
{
    self.is_blank = false;
    ck_assert_int_eq(decide(), FORMATION_MEMBER);
}
END_TEST

START_TEST(sixty_four_long_names_do_not_overrun_the_reason)
{
    struct formation_peer many[FORMATION_PEERS_MAX];
    char long_names[FORMATION_PEERS_MAX][64];
    for (int i = 0; i < FORMATION_PEERS_MAX; i++) {
        memset(long_names[i], 'x', 63);
        long_names[i][63] = 0;
        many[i] = (struct formation_peer){.name = long_names[i]};
    }
    formation_decide(&self, many, FORMATION_PEERS_MAX, &d);
    ck_assert_int_eq(d.state, FORMATION_WAIT);
    ck_assert_uint_lt(strlen(d.reason), FORMATION_REASON_BYTES);
}
END_TEST

// ---- tests: admission --------------------------------------------------------------------------------------------

static enum admission admit(bool is_leading, uint32_t voters, uint32_t up, char *reason)
{
    struct admission_view v = {.is_known = true,
                               .is_leading = is_leading,
                               .leader = is_leading ? NULL : "b@x",
                               .voters = voters,
                               .voters_up = up,
                               .missing = "c@x"};
    return formation_admit(&v, reason);
}

START_TEST(a_lost_member_is_replaced_by_the_leader_with_a_majority_and_by_nobody_else)
{
    char reason[FORMATION_REASON_BYTES];
    ck_assert_int_eq(admit(true, 3, 2, reason), ADMISSION_REPLACE);
    ck_assert_int_eq(admit(true, 3, 1, reason), ADMISSION_WAIT);
    ck_assert_ptr_nonnull(strstr(reason, "c@x missing"));
    // Half is no majority: one of two cannot replace the other.
    ck_assert_int_eq(admit(true, 2, 1, reason), ADMISSION_WAIT);
    ck_assert_int_eq(admit(true, 5, 3, reason), ADMISSION_REPLACE);
    ck_assert_int_eq(admit(false, 3, 3, reason), ADMISSION_ASK);
    struct admission_view v = {.is_known = true, .voters = 3, .voters_up = 2, .missing = ""};
    ck_assert_int_eq(formation_admit(&v, reason), ADMISSION_WAIT);  // No leader.
    v.is_leading = v.is_former_alive = true;
    ck_assert_int_eq(formation_admit(&v, reason), ADMISSION_WAIT);
    ck_assert_ptr_nonnull(strstr(reason, "is alive"));
}
END_TEST

START_TEST(whoever_has_a_record_of_its_own_or_none_is_let_in)
{
    char reason[FORMATION_REASON_BYTES];
    struct admission_view v = {.is_known = true, .is_same_store = true, .voters = 3, .missing = ""};
    ck_assert_int_eq(formation_admit(&v, reason), ADMISSION_KNOWN);
    v.is_known = v.is_same_store = false;
    ck_assert_int_eq(formation_admit(&v, reason), ADMISSION_NEW);
}
END_TEST

// ---- tests: whole histories --------------------------------------------------------------------------------------
// A small world: three nodes with one list, each with a disk, running or not. Events: start, stop, wipe (stop and lose
// the disk), one step of formation on a running node, which acts on its decision at once, and what a cluster with a
// majority of its voters does: confirm something (on any such majority), fill a member, promote a learner,
// take a voter whose disk is lost out. New identities are learners without anything. Explored breadth first,
// every state.

enum { FOUNDINGS_MAX = 3, WIPES_MAX = 2 };  // Each wipe allows one more founding at most.

struct node_state {
    uint8_t running;
    uint8_t cluster;  // On disk: 0 blank, else the number of the founding.
    uint8_t store;    // Changes with each wipe (0, 1, 2; at most two wipes).
    uint8_t has;      // On disk: what was confirmed.
};
struct world {
    struct node_state node[N];
    uint8_t known_store[FOUNDINGS_MAX + 1][N];  // Per cluster: store the name is known under, +1; 0 not a member.
    uint8_t is_voter[FOUNDINGS_MAX + 1][N];     // That identity votes.
    uint8_t ghosts[FOUNDINGS_MAX + 1];          // Voters of retired identities, not taken out yet.
    uint8_t foundings;
    uint8_t wipes;
    uint8_t confirmed;                          // In this cluster; 0: nothing yet.
};

static bool is_member_up(const struct world *w, int c, int i)
{
    return w->node[i].running && w->node[i].cluster == c && w->known_store[c][i] == w->node[i].store + 1;
}

static uint8_t voters_up(const struct world *w, int c, uint8_t *voters)
{
    uint8_t up = 0;
    *voters = w->ghosts[c];
    for (int i = 0; i < N; i++) {
        *voters = (uint8_t)(*voters + w->is_voter[c][i]);
        up = (uint8_t)(up + (w->is_voter[c][i] && is_member_up(w, c, i)));
    }
    return up;
}

static bool cluster_has_majority(const struct world *w, int c)
{
    uint8_t voters, up = voters_up(w, c, &voters);
    return up * 2 > voters;
}

// What node `me` knows. The world shows the truth at once; what lags is covered by the decisions' own rule.
static void look(const struct world *w, int me, struct formation_self *s, struct formation_peer *p)
{
    uint64_t hash = formation_list_hash(names, N);
    *s = (struct formation_self){.name = names[me], .is_blank = w->node[me].cluster == 0, .list_hash = hash};
    for (int i = 0; i < N; i++) {
        const struct node_state *n = &w->node[i];
        p[i] = (struct formation_peer){.name = names[i], .list_hash = hash};
        p[i].is_known = p[i].is_reachable = n->running;
        p[i].is_blank = n->cluster == 0;
        p[i].cluster_id[0] = n->cluster;
    }
}

// The invariants: all that ever were members of running clusters belong to one, unless every disk of the
// former is gone; and any majority of voters that is there holds between them what was confirmed.
static void check_world(const struct world *w)
{
    uint8_t seen = 0;
    for (int i = 0; i < N; i++) {
        uint8_t c = w->node[i].cluster;
        ck_assert_msg(c == 0 || seen == 0 || c == seen, "two clusters exist");
        seen = c ? c : seen;
    }
    const uint8_t c = w->confirmed;
    bool is_held = c == 0 || !cluster_has_majority(w, c);
    for (int i = 0; i < N; i++) {
        is_held = is_held || (w->is_voter[c][i] && is_member_up(w, c, i) && w->node[i].has);
    }
    ck_assert_msg(is_held, "a majority without what was confirmed");
}

static int number_of(const char *name)
{
    int i = 0;
    while (strcmp(name, names[i]) != 0) {
        i++;
    }
    return i;
}

// Any voter may take itself for the leader: only the rule of formation_admit stands between it and a replacement.
static bool step_join(struct world *w, int me, int via)
{
    const uint8_t c = w->node[via].cluster;
    ck_assert_uint_ne(c, 0);
    uint8_t voters, up = voters_up(w, c, &voters);
    struct admission_view v = {.is_known = w->known_store[c][me] != 0,
                               .is_same_store = w->known_store[c][me] == w->node[me].store + 1,
                               .is_leading = w->is_voter[c][via] && is_member_up(w, c, via),
                               .voters = voters, .voters_up = up, .missing = ""};
    char reason[FORMATION_REASON_BYTES];
    switch (formation_admit(&v, reason)) {
    case ADMISSION_NEW:
        if (!cluster_has_majority(w, c)) {
            return false;  // The record is not committed.
        }
        break;
    case ADMISSION_REPLACE:
        w->ghosts[c] = (uint8_t)(w->ghosts[c] + w->is_voter[c][me]);
        w->is_voter[c][me] = 0;
        break;
    case ADMISSION_KNOWN:
        break;
    case ADMISSION_ASK:
    case ADMISSION_WAIT:
        return false;
    }
    w->known_store[c][me] = (uint8_t)(w->node[me].store + 1);
    w->node[me].cluster = c;
    return true;
}

static bool step_formation(struct world *w, int me)
{
    struct formation_self s;
    struct formation_peer p[N];
    struct formation_decision out;
    look(w, me, &s, p);
    formation_decide(&s, p, N, &out);
    if (out.state == FORMATION_FOUND) {
        ck_assert_int_lt(w->foundings, FOUNDINGS_MAX);
        uint8_t c = ++w->foundings;
        w->node[me].cluster = c;
        w->known_store[c][me] = (uint8_t)(w->node[me].store + 1);
        w->is_voter[c][me] = 1;
        return true;
    }
    return out.state == FORMATION_JOIN && step_join(w, me, number_of(out.via));
}

enum { WORLDS_MAX = 1000000 };
static struct world *worlds;
static uint32_t worlds_len;
static uint32_t *table;  // Open addressing over worlds, +1.
enum { TABLE = 1 << 22 };

static void add_world(const struct world *w)
{
    check_world(w);
    uint64_t h = 1469598103934665603ull;
    for (size_t i = 0; i < sizeof(*w); i++) {
        h = (h ^ ((const uint8_t *)w)[i]) * 1099511628211ull;
    }
    uint32_t at = (uint32_t)(h >> 20) % TABLE;
    while (table[at]) {
        if (memcmp(&worlds[table[at] - 1], w, sizeof(*w)) == 0) {
            return;
        }
        at = (at + 1) % TABLE;
    }
    ck_assert_uint_lt(worlds_len, WORLDS_MAX);
    worlds[worlds_len++] = *w;
    table[at] = worlds_len;
}

// What a cluster whose voters have a majority may do, in every way: number `what` of them. False if there is none such.
enum { STEPS = 1 << N };
static bool step_cluster(struct world *w, int c, int i, int what)
{
    if (!cluster_has_majority(w, c)) {
        return false;
    }
    uint8_t voters;
    (void)voters_up(w, c, &voters);
    if (i == N) {  // A confirm by the voters in the mask.
        int count = 0;
        for (int k = 0; k < N; k++) {
            const bool is_in = (what >> k & 1) != 0;
            if (is_in && (!w->is_voter[c][k] || !is_member_up(w, c, k))) {
                return false;
            }
            count += is_in;
            w->node[k].has = is_in || w->node[k].has;
        }
        w->confirmed = (uint8_t)c;
        return count * 2 > voters;
    }
    if (what == 0 && i == 0 && w->ghosts[c] > 0) {
        w->ghosts[c]--;
        return true;
    }
    if (what == 1 && is_member_up(w, c, i)) {
        w->node[i].has = w->confirmed == c;  // The leader has it, and sends it.
        return true;
    }
    if (what == 2 && is_member_up(w, c, i) && !w->is_voter[c][i]) {
        w->node[i].has = w->confirmed == c;  // Promoted when level.
        w->is_voter[c][i] = 1;
        return true;
    }
    return false;
}

// Explores all; returns how many states had a cluster founded a second time.
static uint32_t explore(void)
{
    uint32_t refounded = 0;
    for (uint32_t at = 0; at < worlds_len; at++) {
        for (int i = 0; i < N; i++) {
            struct world w = worlds[at];
            refounded += i == 0 && w.foundings > 1;
            if (w.node[i].running && step_formation(&w, i)) {
                add_world(&w);
            }
            w = worlds[at];
            w.node[i].running = !w.node[i].running;
            add_world(&w);
            for (int what = 0; what < STEPS; what++) {
                w = worlds[at];
                if (w.foundings > 0 && step_cluster(&w, w.foundings, i, what)) {
                    add_world(&w);
                }
                w = worlds[at];
                if (w.foundings > 0 && i == 0 && step_cluster(&w, w.foundings, N, what)) {
                    add_world(&w);
                }
            }
            if (worlds[at].wipes < WIPES_MAX) {
                w = worlds[at];
                w.node[i] = (struct node_state){.running = 0, .store = (uint8_t)(w.node[i].store + 1)};
                w.wipes++;
                add_world(&w);
            }
        }
    }
    return refounded;
}

START_TEST(one_and_two_of_three_wiped_in_every_order_never_make_two_clusters_nor_lose_what_was_confirmed)
{
    worlds = calloc(WORLDS_MAX, sizeof(*worlds));
    table = calloc(TABLE, sizeof(*table));
    struct world w = {.foundings = 0};
    add_world(&w);
    (void)explore();
    ck_assert_uint_gt(worlds_len, 1000);
    bool is_whole_seen = false, is_healed_seen = false;
    for (uint32_t i = 0; i < worlds_len; i++) {
        is_whole_seen = is_whole_seen ||
                        (worlds[i].node[0].cluster && worlds[i].node[1].cluster && worlds[i].node[2].cluster);
        is_healed_seen =
            is_healed_seen || (worlds[i].wipes > 0 && worlds[i].foundings == 1 && worlds[i].confirmed &&
                               worlds[i].ghosts[1] == 0 && worlds[i].known_store[1][2] > 1 &&
                               worlds[i].is_voter[1][2] && worlds[i].node[2].has);
        // A full cluster of three with at most two disks lost has a disk left, so nothing may be founded beside it.
        if (worlds[i].foundings > 1) {
            uint32_t joined = 0;
            for (int k = 0; k < N; k++) {
                joined += worlds[i].known_store[1][k] != 0;
            }
            ck_assert_msg(joined <= WIPES_MAX, "founded again although a member of the first cluster is left");
        }
    }
    ck_assert(is_whole_seen);
    ck_assert(is_healed_seen);
    free(worlds);
    free(table);
}
END_TEST

// From every reachable state without wipes: start all, and a few steps of each make one whole cluster.
START_TEST(whatever_the_order_of_starts_all_three_end_in_one_cluster)
{
    static const int orders[6][N] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int o = 0; o < 6; o++) {
        struct world w = {.foundings = 0};
        for (int k = 0; k < N; k++) {
            w.node[orders[o][k]].running = 1;
            for (int i = 0; i < N; i++) {
                if (w.node[i].running) {
                    bool did = step_formation(&w, i);
                    ck_assert_msg(!did || k == N - 1, "order %d: somebody acted before all were there", o);
                }
            }
        }
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < N; i++) {
                (void)step_formation(&w, i);
                (void)step_cluster(&w, 1, i, 2);
            }
        }
        for (int i = 0; i < N; i++) {
            ck_assert_uint_eq(w.node[i].cluster, 1);
        }
        ck_assert_uint_eq(w.foundings, 1);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("formation");
    TCase *c = tcase_create("formation");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, the_first_by_name_founds_when_all_are_there_and_blank);
    tcase_add_test(c, the_order_of_the_list_does_not_matter);
    tcase_add_test(c, the_others_wait_for_the_first);
    tcase_add_test(c, one_that_is_away_is_waited_for_by_name);
    tcase_add_test(c, one_seen_blank_once_and_away_now_is_waited_for);
    tcase_add_test(c, another_list_is_no_consent);
    tcase_add_test(c, one_member_means_join_even_if_another_is_away);
    tcase_add_test(c, a_member_that_went_away_is_waited_for_and_forbids_founding);
    tcase_add_test(c, a_member_that_refuses_is_named_with_its_reason);
    tcase_add_test(c, members_of_different_clusters_are_not_joined);
    tcase_add_test(c, without_a_list_or_with_only_itself_on_it_a_node_founds_alone);
    tcase_add_test(c, a_node_that_is_not_on_its_own_list_does_not_found_but_may_join);
    tcase_add_test(c, a_member_decides_nothing);
    tcase_add_test(c, sixty_four_long_names_do_not_overrun_the_reason);
    tcase_add_test(c, a_lost_member_is_replaced_by_the_leader_with_a_majority_and_by_nobody_else);
    tcase_add_test(c, whoever_has_a_record_of_its_own_or_none_is_let_in);
    tcase_add_test(c, one_and_two_of_three_wiped_in_every_order_never_make_two_clusters_nor_lose_what_was_confirmed);
    tcase_add_test(c, whatever_the_order_of_starts_all_three_end_in_one_cluster);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
