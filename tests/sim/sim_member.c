// SPDX-License-Identifier: Apache-2.0
// Members of groups: what the metadata store would do, and what operators do.
//
// Healing: a member that lost its memory (its disk wiped or damaged) is replaced. Somebody new joins as a
// learner, is promoted when level, and the lost one leaves; on a node that comes back under its old name the
// lost replica must leave first. A group with too few voters gets one more, one with too many gives one up.
// One step at a time, asked of whoever leads; whatever becomes of it is looked at afresh the next time.
// Churn: members come and go for no reason, the leader among them. One that has left is often not told for long: its
// replica stays and must do no harm (P19).
//
// Replica ids are never used twice. A replica whose joining came to nothing keeps its id until it was a member once.
#include "tests/sim/sim.h"
#include <assert.h>

static bool is_intact(struct sim *s, uint32_t slot, const struct member *m)
{
    const struct sim_node *n = &s->nodes[m->node_id - 1];
    return !n->is_gone && !n->is_damaged && n->replicas[slot] == m->replica_id && !n->shadows[slot].is_lost;
}

struct count {
    uint32_t voters, intact_voters, learners;
    const struct member *lost, *learner;
};

static struct count count_members(struct sim *s, uint32_t slot, const struct config *c)
{
    struct count k = {0};
    for (uint32_t i = 0; i < c->count; i++) {
        const struct member *m = &c->members[i];
        const bool is_whole = is_intact(s, slot, m);
        k.voters += m->is_voter;
        k.intact_voters += m->is_voter && is_whole;
        k.learners += !m->is_voter;
        k.lost = is_whole ? k.lost : m;
        k.learner = m->is_voter ? k.learner : m;
    }
    return k;
}

// A replica on a node that has no member of `c`; it must be able to start now.
static bool draw_joiner(struct sim *s, uint32_t slot, const struct config *c, struct member *out)
{
    const uint32_t start = (uint32_t)rng_below(&s->rng, s->nodes_count);
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        struct sim_node *n = &s->nodes[(start + i) % s->nodes_count];
        if (!n->is_up || n->is_paused || n->is_full || n->is_damaged || config_find_node(c, n->id)) {
            continue;
        }
        if (n->replicas[slot] != 0 && n->is_fresh[slot] && !n->shadows[slot].is_lost) {
            *out = (struct member){.replica_id = n->replicas[slot], .node_id = n->id};
            return true;
        }
        const uint64_t former = n->replicas[slot];
        if (former != 0) {
            sim_node_drop_group(n, slot);  // It left long ago, or its memory did.
            n->former[slot] = former;
        }
        n->replicas[slot] = s->groups[slot].next_replica++;
        n->is_fresh[slot] = true;
        if (n->is_up) {
            sim_node_add_group(n, slot, NULL);
            sim_node_wake(n, 0);
        }
        if (n->is_up && former != 0 && !s->is_calm && s->faults.crash_every > 0 && sim_chance(s, 8)) {
            sim_node_crash(n, sim_chance(s, 2));  // It is known who lives here now; the disk does not say so yet.
        }
        *out = (struct member){.replica_id = n->replicas[slot], .node_id = n->id};
        return n->is_up;
    }
    return false;
}

static struct member_change remove_of(const struct member *m)
{
    return (struct member_change){.kind = MEMBER_REMOVE, .member = *m};
}

// What this group needs next; replica id 0: nothing.
static struct member_change draw_change(struct sim *s, uint32_t slot, const struct config *c, bool is_churn)
{
    const struct sim_group *g = &s->groups[slot];
    const struct count k = count_members(s, slot, c);
    struct member_change change = {0};
    if (k.learner && !is_intact(s, slot, k.learner)) {
        return remove_of(k.learner);
    }
    if (k.learner) {
        change = (struct member_change){.kind = MEMBER_PROMOTE, .member = *k.learner};
    } else if (k.lost && k.intact_voters >= g->initial.count) {
        change = remove_of(k.lost);
    } else if (k.intact_voters < g->initial.count && draw_joiner(s, slot, c, &change.member)) {
        change.kind = MEMBER_ADD_LEARNER;
    } else if (k.lost && k.voters > 1) {
        change = remove_of(k.lost);  // No other node is there to take its place before.
    } else if (k.voters > g->initial.count) {
        change = remove_of(&c->members[rng_below(&s->rng, c->count)]);
    } else if (is_churn && k.voters == g->initial.count) {
        // With no node to spare a group shrinks first: never where data get lost, for two of two must not lose one.
        const bool is_grown = k.voters < LIMIT_VOTERS && draw_joiner(s, slot, c, &change.member);
        if (is_grown) {
            change.kind = MEMBER_ADD_LEARNER;
        } else if (s->faults.victim == 0 && k.voters > 2) {
            change = remove_of(&c->members[rng_below(&s->rng, c->count)]);
        }
    }
    return change;
}

static void step(struct sim *s, uint32_t slot, bool is_churn)
{
    struct sim_node *n = NULL;
    struct group *g = sim_leader(s, slot, &n);
    if (!g) {
        return;
    }
    struct consensus_status st;
    struct config c;
    group_status(g, &st);
    config_copy(&c, st.config);
    if (c.index > st.commit) {
        return;
    }
    struct sim_group *x = &s->groups[slot];
    if (c.index < x->members.index) {
        return;  // One that was removed and has not heard that others lead: the record knows more.
    }
    if (c.index > x->members.index) {
        config_copy(&x->members, &c);
        if (s->app->members_changed) {
            s->app->members_changed(s, slot);
        }
    }
    const uint64_t incarnation = n->incarnation;
    const struct member_change change = draw_change(s, slot, &c, is_churn);
    if (change.member.replica_id == 0 || !n->is_up || n->incarnation != incarnation) {
        return;
    }
    struct sim_node *still = NULL;
    if (sim_leader(s, slot, &still) != g || still != n) {
        return;  // Making room for the one who joins took the leader away: it had led as a member no longer.
    }
    const enum rc rc = group_change_members(g, &change);
    static const char *const names[] = {"learner joins", "is promoted", "leaves"};
    if (rc != RC_BUSY || s->is_verbose) {
        sim_log(s, "node %u: group %llu: replica %llu of node %u %s: %s", n->id, (unsigned long long)s->groups[slot].id,
                (unsigned long long)change.member.replica_id, change.member.node_id, names[change.kind], rc_text(rc));
    }
    if (rc == RC_OK && !st.is_ready) {
        sim_violation(s, "node %u group %llu: a change of members before its leader has committed in term %llu", n->id,
                      (unsigned long long)s->groups[slot].id, (unsigned long long)st.term);  // P10.
    }
    if (rc == RC_OK) {
        s->counters.member_changes++;
        if (change.kind == MEMBER_ADD_LEARNER) {
            s->nodes[change.member.node_id - 1].is_fresh[slot] = false;
        }
    }
    sim_node_wake(n, 0);
    sim_check_node(n);
}

// Somebody who is no member any more is told at last.
static void clean_up(struct sim *s, uint32_t slot)
{
    struct sim_node *leader = NULL;
    struct group *g = sim_leader(s, slot, &leader);
    struct sim_node *n = sim_any_node(s);
    struct consensus_status st;
    if (!g || !n->is_up || n->is_paused || n->replicas[slot] == 0 || n->is_fresh[slot] ||
        s->groups[slot].kind == SIM_META) {
        return;
    }
    group_status(g, &st);
    if (st.is_ready && st.config->index <= st.commit && !config_find_node(st.config, n->id)) {
        sim_log(s, "node %u: group %llu: replica %llu is told that it left", n->id,
                (unsigned long long)s->groups[slot].id, (unsigned long long)n->replicas[slot]);
        sim_node_drop_group(n, slot);
    }
}

static void tick(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    const bool may_churn = !s->is_calm && s->faults.member_change_every > 0;
    for (uint32_t i = 0; i < s->groups_count && s->is_calm; i++) {
        step(s, i, false);
        clean_up(s, i);
    }
    if (!s->is_calm) {
        const uint32_t slot = (uint32_t)rng_below(&s->rng, s->groups_count);
        step(s, slot, may_churn && s->groups[slot].kind != SIM_META);
        if (sim_chance(s, 4)) {
            clean_up(s, slot);
        }
    }
    const uint64_t every = may_churn ? s->faults.member_change_every : 100 * SIM_MS;
    sim_at(s, s->is_calm ? 20 * SIM_MS : sim_range(s, 1, 2 * every), tick, NULL, 0);
}

void sim_members_start(struct sim *s)
{
    if (s->faults.member_change_every > 0 || s->faults.victim != 0) {
        sim_at(s, 0, tick, NULL, 0);
    }
}

bool sim_members_are_whole(struct sim *s, uint32_t but_node)
{
    for (uint32_t i = 0; i < s->groups_count; i++) {
        struct sim_node *n = NULL;
        struct group *g = sim_leader(s, i, &n);
        struct consensus_status st;
        if (!g) {
            return false;
        }
        group_status(g, &st);
        uint32_t voters = 0;
        bool is_whole = st.is_ready && st.config->index <= st.commit;
        for (uint32_t k = 0; k < st.config->count; k++) {
            const struct member *m = &st.config->members[k];
            voters += m->is_voter;
            is_whole = is_whole && (m->node_id == but_node || is_intact(s, i, m));
        }
        if (!is_whole || voters < 3) {
            return false;
        }
    }
    return true;
}

bool sim_members_are_settled(struct sim *s)
{
    if (s->faults.member_change_every == 0 && s->faults.victim == 0) {
        return true;
    }
    for (uint32_t i = 0; i < s->groups_count; i++) {
        struct sim_node *n = NULL;
        struct group *g = sim_leader(s, i, &n);
        struct consensus_status st;
        if (!g) {
            sim_log(s, "group %llu: nobody leads", (unsigned long long)s->groups[i].id);
            return false;
        }
        group_status(g, &st);
        const struct count k = count_members(s, i, st.config);
        if (k.lost || k.learners > 0 || k.voters != s->groups[i].initial.count || st.config->index > st.commit) {
            sim_log(s, "group %llu: %u of %u voters are whole, %u learners", (unsigned long long)s->groups[i].id,
                    k.intact_voters, k.voters, k.learners);
            return false;
        }
    }
    return true;
}
