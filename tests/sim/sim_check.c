// SPDX-License-Identifier: Apache-2.0
// The omniscient observer: the laws, checked after every event.
//
// What is durable is known from the bytes that went through each node's WAL (a shadow log per node and group), not from
// what engines claim; what is committed is the first history any machine applied. Checked: one leader a term;
// a new leader has all that is committed; terms and commit indexes never fall; nothing is applied beyond
// min(commit, durable); no engine claims more durable than is on its disk; every machine applies the same
// history; what a leader commits is durable on a majority of the voters of its configuration at that moment,
// and nothing else is applied or told to a client; a restart finds everything that was durable, or says that
// it does not: then that replica never leads, votes or counts again (law 2).
#include "consensus/host/host_core.h"
#include "consensus/store/core.h"
#include "tests/sim/sim.h"
#include <assert.h>
#include <stdlib.h>

// ---- shadow logs ------------------------------------------------------------------------------------------

static uint64_t buf_u64_at(const struct buf *b, uint64_t at)
{
    uint64_t v;
    memcpy(&v, b->ptr + at * 8, 8);
    return v;
}

static uint64_t shadow_term(const struct sim_shadow *x, uint64_t index)
{
    if (index <= x->terms_base || index > x->last) {
        return 0;
    }
    uint64_t t;
    memcpy(&t, x->terms.ptr + (index - x->terms_base - 1) * 8, 8);
    return t;
}

static void shadow_cut(struct sim_shadow *x, uint64_t from)
{
    while (x->configs.len > 0 && buf_u64_at(&x->configs, x->configs.len / 8 - 1) >= from) {
        x->configs.len -= 8;
    }
    if (from <= x->last) {
        x->last = from - 1;
        if (x->last < x->terms_base) {
            x->terms_base = x->last;
        }
        x->terms.len = (size_t)(x->last - x->terms_base) * 8;
    }
}

static void shadow_reset(struct sim_shadow *x, uint64_t index)
{
    x->configs_from = index;
    x->configs.len = 0;
    x->snapshot = index > x->snapshot ? index : x->snapshot;
    x->terms_base = x->last = index;
    x->terms.len = 0;
}

// P5: what is committed is never cut off.
static void check_cut(struct sim_node *n, uint32_t slot, uint64_t from)
{
    const struct sim_group *g = &n->sim->groups[slot];
    if (from <= g->committed && from <= n->shadows[slot].last &&
        shadow_term(&n->shadows[slot], from) == buf_u64_at(&g->terms, from - 1)) {
        sim_violation(n->sim, "node %u group %llu: cuts its log at %llu, which is committed", n->id,
                      (unsigned long long)g->id, (unsigned long long)from);
    }
}

static void shadow_lost(struct sim_node *n, uint32_t slot)
{
    struct sim_shadow *x = &n->shadows[slot];
    if (!x->is_lost) {
        x->is_lost = true;
        n->sim->counters.amnesiacs++;
        n->sim->lost_at = n->sim->now;
        sim_log(n->sim, "node %u: group %llu: replica %llu has lost its memory", n->id,
                (unsigned long long)n->sim->groups[slot].id, (unsigned long long)x->replica);
    }
}

void sim_check_begun(struct sim_node *n, uint32_t slot)
{
    struct sim_shadow *x = &n->shadows[slot];
    sim_log(n->sim, "node %u: group %llu: replica %llu is deleted, replica %llu begins", n->id,
            (unsigned long long)n->sim->groups[slot].id, (unsigned long long)x->replica,
            (unsigned long long)n->replicas[slot]);
    buf_deinit(&x->terms);
    buf_deinit(&x->configs);
    *x = (struct sim_shadow){.replica = n->replicas[slot]};
}

void sim_check_added(struct sim_node *n, uint32_t slot)
{
    const struct sim_shadow *x = &n->shadows[slot];
    struct consensus_status st;
    if (x->replica == n->replicas[slot] || n->groups[slot] == NULL) {
        return;
    }
    group_status(n->groups[slot], &st);
    if (st.term > 0 || st.last > 0 || st.is_amnesiac) {
        sim_violation(n->sim, "node %u group %llu: replica %llu begins with what replica %llu has left here", n->id,
                      (unsigned long long)n->sim->groups[slot].id, (unsigned long long)n->replicas[slot],
                      (unsigned long long)x->replica);
    }
}

static void shadow_record(struct sim_node *n, const struct record_disk *d, struct span payload)
{
    const uint32_t slot = sim_group_slot(n->sim, d->group);
    if (slot == UINT32_MAX) {
        return;
    }
    struct sim_shadow *x = &n->shadows[slot];
    uint64_t vote = 0;
    if (d->kind == RECORD_HARD_STATE) {
        memcpy(&vote, payload.ptr, payload.len < 8 ? payload.len : 8);
    }
    if (d->kind == RECORD_TOMBSTONE) {
        sim_check_begun(n, slot);
#ifdef RECORD_FLAG_LOST
    } else if (d->kind == RECORD_HARD_STATE && (d->flags & RECORD_FLAG_LOST) && n->is_flipped) {
        shadow_lost(n, slot);
#endif
    } else if (x->is_lost) {
        if (vote != 0) {
            sim_violation(n->sim, "node %u group %llu: a replica that lost its memory votes", n->id,
                          (unsigned long long)d->group);
        }
    } else if (d->kind == RECORD_HARD_STATE) {
        x->hard = (struct hard_state){.term = d->term, .vote = vote};
    } else if (d->kind == RECORD_TRUNCATE) {
        if (d->flags & RECORD_FLAG_INSTALLED) {
            n->sim->counters.snapshots_installed++;
            shadow_reset(x, d->index - 1);
        } else {
            check_cut(n, slot, d->index);
            shadow_cut(x, d->index);
        }
    } else if (record_has_index(d->kind)) {
        if (d->index != x->last + 1) {
            sim_violation(n->sim, "node %u group %llu: record %llu written behind %llu", n->id,
                          (unsigned long long)d->group, (unsigned long long)d->index, (unsigned long long)x->last);
            return;
        }
        x->last = d->index;
        buf_u64(&x->terms, d->term);
        if (d->kind == RECORD_CONFIG) {
            buf_u64(&x->configs, d->index);
        }
    }
}

static void each_record(struct sim_node *n, const struct wal_submission *w,
                        void (*fn)(struct sim_node *n, const struct record_disk *d, struct span payload))
{
    for (uint32_t i = 0; i < w->ranges_count; i++) {
        struct span left = span_of(w->ranges[i].ptr, w->ranges[i].len);
        while (left.len > 0) {
            struct record_disk d;
            uint64_t size;
            if (record_peek(left, &d, &size) != RC_OK) {
                sim_violation(n->sim, "node %u: a submission holds what is no record", n->id);
                return;
            }
            fn(n, &d, span_of(left.ptr + RECORD_HEADER_BYTES, d.len));
            left = span_of(left.ptr + size, left.len - (size_t)size);
        }
    }
}

struct cut {
    uint32_t slot;
    uint64_t from;
    const struct wal_submission *submission;
};

static const struct wal_submission *submitted_now;

static void note_cut(struct sim_node *n, const struct record_disk *d, struct span payload)
{
    (void)payload;
    const uint32_t slot = sim_group_slot(n->sim, d->group);
    if (d->kind == RECORD_TRUNCATE && slot != UINT32_MAX) {
        const struct cut c = {.slot = slot, .from = d->index, .submission = submitted_now};
        buf_bytes(&n->pending_cuts, &c, sizeof(c));
    } else if (d->kind == RECORD_TOMBSTONE && slot != UINT32_MAX) {
        for (size_t at = 0; at < n->pending_cuts.len; at += sizeof(struct cut)) {  // Of a log that is deleted now.
            struct cut *c = (struct cut *)(void *)(n->pending_cuts.ptr + at);
            c->from = c->slot == slot ? UINT64_MAX : c->from;
        }
    }
}

void sim_check_submitted(struct sim_node *n, struct wal_submission *w)
{
    submitted_now = w;
    each_record(n, w, note_cut);
}

// What has become of the group that is watched, for the story of a violation.
static void tell_shadow(struct sim_node *n, const struct sim_shadow *was, uint32_t slot)
{
    const struct sim_shadow *x = &n->shadows[slot];
    const unsigned long long id = n->sim->groups[slot].id;
    if (x->hard.term != was->hard.term || x->hard.vote != was->hard.vote) {
        sim_log(n->sim, "node %u: group %llu: on disk is term %llu, vote for %llu", n->id, id,
                (unsigned long long)x->hard.term, (unsigned long long)x->hard.vote);
    }
    if (x->last < was->last || x->terms_base != was->terms_base ||
        shadow_term(x, x->last) != shadow_term(x, was->last)) {
        sim_log(n->sim, "node %u: group %llu: on disk up to %llu (term %llu), was %llu, snapshot %llu", n->id, id,
                (unsigned long long)x->last, (unsigned long long)shadow_term(x, x->last), (unsigned long long)was->last,
                (unsigned long long)x->snapshot);
    }
}

void sim_check_durable(struct sim_node *n, struct wal_submission *w)
{
    const uint32_t watched = n->sim->watched ? sim_group_slot(n->sim, n->sim->watched) : UINT32_MAX;
    const struct sim_shadow was = watched == UINT32_MAX ? (struct sim_shadow){0} : n->shadows[watched];
    each_record(n, w, shadow_record);
    if (watched != UINT32_MAX) {
        tell_shadow(n, &was, watched);
    }
    size_t kept = 0;
    for (size_t at = 0; at < n->pending_cuts.len; at += sizeof(struct cut)) {
        struct cut c;
        memcpy(&c, n->pending_cuts.ptr + at, sizeof(c));
        if (c.submission != w) {
            memcpy(n->pending_cuts.ptr + kept, &c, sizeof(c));
            kept += sizeof(c);
        }
    }
    n->pending_cuts.len = kept;
}

void sim_check_crashed(struct sim_node *n)
{
    // Truncations on their way may or may not have reached the disk: only what is below them must be found again.
    for (size_t at = 0; at < n->pending_cuts.len; at += sizeof(struct cut)) {
        struct cut c;
        memcpy(&c, n->pending_cuts.ptr + at, sizeof(c));
        if (!n->shadows[c.slot].is_lost) {
            shadow_cut(&n->shadows[c.slot], c.from);
        }
    }
    n->pending_cuts.len = 0;
    // A snapshot installed before the group's first record (its term) was durable: nothing was said yet that
    // rests on it, and without any record the group may be gone.
    for (uint32_t i = 0; i < n->sim->groups_count; i++) {
        struct sim_shadow *x = &n->shadows[i];
        if (!x->is_lost && x->hard.term == 0 && x->last <= x->snapshot) {
            x->snapshot = 0;
            shadow_reset(x, 0);
        }
    }
}

static uint64_t recovered_term(const struct store_group *g, uint64_t index)
{
    uint64_t term = 0;
    for (uint32_t i = 0; i < g->runs_count && g->runs[i].first <= index; i++) {
        term = g->runs[i].term;
    }
    return term;
}

void sim_check_not_found(struct sim_node *n, uint32_t slot, bool is_told)
{
    struct sim_shadow *x = &n->shadows[slot];
    if (is_told) {
        shadow_lost(n, slot);
    } else if (x->last > 0 || x->hard.term > 0 || x->is_lost) {
        sim_violation(n->sim, "node %u group %llu: not found, %llu entries were durable%s", n->id,
                      (unsigned long long)n->sim->groups[slot].id, (unsigned long long)x->last,
                      x->is_lost ? " before it was damaged" : "");
    }
}

void sim_check_wiped(struct sim_node *n)
{
    for (uint32_t i = 0; i < n->sim->groups_count; i++) {
        n->shadows[i].is_lost = true;
    }
    n->pending_cuts.len = 0;
}

void sim_check_recovered(struct sim_node *n, const struct store_group *g)
{
    struct sim *s = n->sim;
    const uint32_t slot = sim_group_slot(s, g->group);
    if (slot == UINT32_MAX) {
        return;
    }
    struct sim_shadow *x = &n->shadows[slot];
    const unsigned long long id = g->group;
    if (x->replica != n->replicas[slot]) {
        return;  // Of a replica that is not here any more.
    }
    if (x->is_lost && !g->is_amnesiac) {
        sim_violation(s, "node %u group %llu: it lost its memory, and does not know any more that it did", n->id, id);
    }
    if (g->is_amnesiac && !n->is_flipped) {
        sim_violation(s, "node %u group %llu: amnesiac after a crash that only tore unsynced writes", n->id, id);
    }
    if (g->is_amnesiac) {
        shadow_lost(n, slot);
        return;
    }
    if (g->hard_state.term < x->hard.term ||
        (g->hard_state.term == x->hard.term && x->hard.vote != 0 && g->hard_state.vote != x->hard.vote)) {
        sim_violation(s, "node %u group %llu: hard state %llu/%llu found, %llu/%llu was durable", n->id, id,
                      (unsigned long long)g->hard_state.term, (unsigned long long)g->hard_state.vote,
                      (unsigned long long)x->hard.term, (unsigned long long)x->hard.vote);
    }
    // Where the newest snapshot is damaged an older one and all of the log after it will do; what comes of them is compared.
    const bool is_all = n->is_flipped && g->first == g->snapshot_index + 1 && g->last >= x->snapshot;
    if (g->snapshot_index < x->snapshot && !is_all) {
        sim_violation(s, "node %u group %llu: snapshot %llu found, %llu was durable", n->id, id,
                      (unsigned long long)g->snapshot_index, (unsigned long long)x->snapshot);
    }
    if (g->snapshot_index > x->terms_base && g->snapshot_index <= x->last &&
        g->snapshot_term != shadow_term(x, g->snapshot_index)) {
        // A received snapshot whose mark was not durable yet: the log that contradicts it is of another history, all of it.
        check_cut(n, slot, g->snapshot_index);
        shadow_reset(x, g->snapshot_index);
    }
    if (g->last < x->last) {
        sim_violation(s, "node %u group %llu: log ends at %llu, %llu was durable", n->id, id,
                      (unsigned long long)g->last, (unsigned long long)x->last);
    }
    uint64_t from = x->terms_base > g->snapshot_index ? x->terms_base : g->snapshot_index;
    for (uint64_t i = from + 1; i <= x->last && !s->is_violated; i++) {
        if (recovered_term(g, i) != shadow_term(x, i)) {
            sim_violation(s, "node %u group %llu: entry %llu found with term %llu, durable was %llu", n->id, id,
                          (unsigned long long)i, (unsigned long long)recovered_term(g, i),
                          (unsigned long long)shadow_term(x, i));
        }
    }
    // Recovery has made durable what it reports.
    x->hard = g->hard_state;
    x->snapshot = g->snapshot_index;
    x->terms_base = g->snapshot_index;
    x->last = x->configs_from = g->last;
    x->configs.len = 0;
    x->terms.len = 0;
    for (uint64_t i = g->snapshot_index + 1; i <= g->last; i++) {
        buf_u64(&x->terms, recovered_term(g, i));
    }
}

// ---- claims of engines ------------------------------------------------------------------------------------

// P3: a majority has promised, on disk, to help nobody else in this term. (What has gone on to a later term, has.)
static void check_votes(struct sim_node *n, uint32_t slot, const struct consensus_status *st)
{
    struct sim *s = n->sim;
    uint32_t voters = 0, promised = 0;
    const uint64_t me = n->replicas[slot];
    for (uint32_t i = 0; i < st->config->count; i++) {
        const struct member *m = &st->config->members[i];
        const struct sim_shadow *x = &s->nodes[m->node_id - 1].shadows[slot];
        voters += m->is_voter;
        // (A replica that was deleted meanwhile has taken what it promised along.)
        promised += m->is_voter && (x->replica != m->replica_id || x->hard.term > st->term ||
                                    (x->hard.term == st->term && x->hard.vote == me));
    }
    if (promised < voters / 2 + 1) {
        sim_violation(s, "node %u leads group %llu in term %llu with the durable votes of %u of %u", n->id,
                      (unsigned long long)s->groups[slot].id, (unsigned long long)st->term, promised, voters);
    }
}

static void check_leader(struct sim_node *n, uint32_t slot, const struct consensus_status *st)
{
    struct sim *s = n->sim;
    struct sim_group *g = &s->groups[slot];
    const uintptr_t me = (uintptr_t)n->id << 32 | (uint32_t)n->incarnation;
    void *known = map_get(&g->leaders, st->term);
    if (known == NULL) {
        map_put(&g->leaders, st->term, (void *)me);
        s->counters.elections++;
        sim_log(s, "node %u: leads group %llu in term %llu (last %llu, commit %llu)", n->id, (unsigned long long)g->id,
                (unsigned long long)st->term, (unsigned long long)st->last, (unsigned long long)st->commit);
        check_votes(n, slot, st);
        const struct member *m = config_find(st->config, n->replicas[slot]);
        if (st->config->index <= st->commit && (!m || !m->is_voter)) {
            sim_violation(s, "node %u leads group %llu in term %llu and is no voter of it", n->id,
                          (unsigned long long)g->id,
                          (unsigned long long)st->term);  // P19.
        }
        // One that won long ago and stood still meanwhile need not know what later leaders committed.
        const bool is_newest = st->term > g->leader_term;
        g->leader_term = is_newest ? st->term : g->leader_term;
        if (is_newest && st->last < g->committed) {
            sim_violation(s, "node %u leads group %llu in term %llu with log end %llu, committed is %llu", n->id,
                          (unsigned long long)g->id, (unsigned long long)st->term, (unsigned long long)st->last,
                          (unsigned long long)g->committed);
        }
    } else if (known != (void *)me) {
        sim_violation(s, "two leaders of group %llu in term %llu: node %u and node %u", (unsigned long long)g->id,
                      (unsigned long long)st->term, n->id, (uint32_t)((uintptr_t)known >> 32));
    }
}

// P9: what is in force is what the log says, from the moment its entry is there until it is cut off.
static bool is_config_there(const struct sim_shadow *x, uint64_t durable, uint64_t index)
{
    if (index > durable || index <= x->configs_from || index <= x->snapshot || index > x->last) {
        return true;  // Not known.
    }
    for (size_t i = x->configs.len / 8; i > 0; i--) {
        if (buf_u64_at(&x->configs, i - 1) == index) {
            return true;
        }
    }
    return false;
}

static bool is_on_disk(const struct sim_node *n, uint32_t slot, const struct member *m, uint64_t index, uint64_t term)
{
    const struct sim_shadow *x = &n->shadows[slot];
    return x->replica == m->replica_id && (index <= x->snapshot || shadow_term(x, index) == term);
}

// Law 1: what a leader commits is on the disks of a majority of the voters it has at that moment (P9). What
// it commits is of its own term (P2).
static void check_commit(struct sim_node *n, uint32_t slot, const struct consensus_status *st)
{
    struct sim *s = n->sim;
    struct sim_group *g = &s->groups[slot];
    if (st->commit <= g->proven) {
        return;
    }
    uint32_t voters = 0, safe = 0;
    for (uint32_t i = 0; i < st->config->count; i++) {
        const struct member *m = &st->config->members[i];
        voters += m->is_voter;
        safe += m->is_voter && is_on_disk(&s->nodes[m->node_id - 1], slot, m, st->commit, st->term);
    }
    if (safe < voters / 2 + 1) {
        sim_violation(s,
                      "node %u group %llu: entry %llu of term %llu is committed, on disk at %u of %u voters",
                      n->id, (unsigned long long)g->id, (unsigned long long)st->commit,
                      (unsigned long long)st->term, safe, voters);
    }
    if (s->watched == g->id) {
        sim_log(s, "node %u: group %llu: commits up to %llu in term %llu, on disk at %u of %u voters", n->id,
                (unsigned long long)g->id, (unsigned long long)st->commit, (unsigned long long)st->term, safe, voters);
    }
    g->proven = st->commit;
    g->proven_term = st->term;
}

void sim_check_node(struct sim_node *n)
{
    struct sim *s = n->sim;
    if (!n->is_up) {
        return;
    }
    for (uint32_t i = 0; i < s->groups_count; i++) {
        if (n->groups[i] == NULL ||
            (s->groups[i].initial.count > 1 && !sim_peek_changed(n->groups[i]->replica, &n->seen[i]))) {
            continue;
        }
        struct consensus_status st;
        group_status(n->groups[i], &st);
        struct sim_shadow *x = &n->shadows[i];
        if (x->is_lost || x->replica != n->replicas[i]) {
            if (x->is_lost && x->replica == n->replicas[i] && st.role != ROLE_FOLLOWER) {
                sim_violation(s, "node %u group %llu: a replica that lost its memory wants to lead", n->id,
                              (unsigned long long)s->groups[i].id);
            }
            continue;  // Or one that is to begin when its predecessor is deleted: nothing of it is on disk yet.
        }
        if (st.snapshot > x->snapshot) {
            x->snapshot = st.snapshot;
            s->counters.snapshots_taken++;
            sim_log(s, "node %u: group %llu has snapshot %llu", n->id, (unsigned long long)s->groups[i].id,
                    (unsigned long long)st.snapshot);
        }
        const uint64_t on_disk = x->last > x->snapshot ? x->last : x->snapshot;
        const uint64_t safe = st.commit < st.durable ? st.commit : st.durable;
        // A leader's commit index moves to entries of its own term only (Raft figure 8, P2).
        const bool is_counted = st.role == ROLE_LEADER && n->is_leader_seen[i] && st.term == n->term_seen[i] &&
                                st.commit > n->commit_seen[i] && st.commit <= x->last;
        const bool is_old = is_counted && shadow_term(x, st.commit) != 0 && shadow_term(x, st.commit) != st.term;
        const char *wrong = st.term < n->term_seen[i]       ? "the term fell"
                            : st.commit < n->commit_seen[i] ? "the commit index fell"
                            : st.commit > st.last           ? "the commit index is beyond the log"
                            : is_old               ? "an entry of an older term is committed by counting"
                            : st.applied > safe    ? "applied beyond what is committed and durable"
                            : st.durable > on_disk ? "claims to be durable what is not on disk"
                            : !is_config_there(x, st.durable, st.config->index)
                                ? "its configuration is of an entry that was cut off"
                                : NULL;
        if (wrong) {
            sim_violation(
                s,
                "node %u group %llu: %s (term %llu, last %llu, durable %llu, on disk %llu, commit %llu, "
                "applied %llu, snapshot %llu)",
                n->id, (unsigned long long)s->groups[i].id, wrong, (unsigned long long)st.term,
                (unsigned long long)st.last, (unsigned long long)st.durable, (unsigned long long)on_disk,
                (unsigned long long)st.commit, (unsigned long long)st.applied,
                (unsigned long long)st.snapshot);
        }
        if (s->watched == s->groups[i].id &&
            (st.term != n->term_seen[i] || (st.role == ROLE_LEADER) != n->is_leader_seen[i])) {
            static const char *const roles[] = {"follower", "asks for pre-votes", "candidate", "leader"};
            sim_log(s, "node %u: group %llu: %s in term %llu, last %llu, durable %llu, commit %llu", n->id,
                    (unsigned long long)s->groups[i].id, roles[st.role], (unsigned long long)st.term,
                    (unsigned long long)st.last, (unsigned long long)st.durable,
                    (unsigned long long)st.commit);
        }
        n->term_seen[i] = st.term;
        n->commit_seen[i] = st.commit;
        n->is_leader_seen[i] = st.role == ROLE_LEADER;
        if (st.role == ROLE_LEADER) {
            check_leader(n, i, &st);
            check_commit(n, i, &st);
        }
    }
}

// ---- history ----------------------------------------------------------------------------------------------

// Somebody is told that this entry is safe: then a leader has committed it or something behind it, on a
// majority's disks.
void sim_check_acked(struct sim *s, uint64_t group, uint64_t index, uint64_t term)
{
    const struct sim_group *g = sim_group_of(s, group);
    if (index > g->proven || term > g->proven_term) {
        sim_violation(s,
                      "group %llu: entry %llu of term %llu is taken for committed, leaders committed up to "
                      "%llu of term %llu",
                      (unsigned long long)group, (unsigned long long)index, (unsigned long long)term,
                      (unsigned long long)g->proven, (unsigned long long)g->proven_term);
    } else if (index <= g->committed && buf_u64_at(&g->terms, index - 1) != term) {
        sim_violation(s, "group %llu: entry %llu of term %llu is taken for committed, it is one of term %llu",
                      (unsigned long long)group, (unsigned long long)index, (unsigned long long)term,
                      (unsigned long long)buf_u64_at(&g->terms, index - 1));
    }
}

void sim_check_applied(struct sim_node *n, uint64_t group, uint64_t index, uint64_t term, uint64_t chain)
{
    struct sim *s = n->sim;
    struct sim_group *g = sim_group_of(s, group);
    if (index == g->committed + 1) {
        g->committed = index;
        buf_u64(&g->terms, term);
        buf_u64(&g->chain, chain);
        s->counters.commits++;
        if (index > g->proven) {
            sim_violation(s, "node %u group %llu: applies %llu, leaders committed up to %llu", n->id,
                          (unsigned long long)group, (unsigned long long)index,
                          (unsigned long long)g->proven);
        }
    } else if (index > g->committed) {
        sim_violation(s, "node %u group %llu: applies %llu, nobody has applied %llu", n->id, (unsigned long long)group,
                      (unsigned long long)index, (unsigned long long)g->committed + 1);
    } else if (buf_u64_at(&g->terms, index - 1) != term || buf_u64_at(&g->chain, index - 1) != chain) {
        sim_violation(s, "node %u group %llu: applies another history at %llu (term %llu, elsewhere %llu)", n->id,
                      (unsigned long long)group, (unsigned long long)index, (unsigned long long)term,
                      (unsigned long long)buf_u64_at(&g->terms, index - 1));
    }
}

void sim_check_deinit(struct sim *s)
{
    for (uint32_t i = 0; i < s->groups_count; i++) {
        buf_deinit(&s->groups[i].terms);
        buf_deinit(&s->groups[i].chain);
        map_deinit(&s->groups[i].leaders);
        map_deinit(&s->groups[i].digests);
    }
    for (uint32_t k = 0; k < s->nodes_count; k++) {
        buf_deinit(&s->nodes[k].pending_cuts);
        for (uint32_t i = 0; i < s->groups_count; i++) {
            buf_deinit(&s->nodes[k].shadows[i].terms);
            buf_deinit(&s->nodes[k].shadows[i].configs);
        }
    }
}
