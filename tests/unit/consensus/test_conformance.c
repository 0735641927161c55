// SPDX-License-Identifier: Apache-2.0
// links: consensus consensus/raft consensus/solo node/base
// One script of proposals, crashes and restarts for every engine (decision 13). It branches on traits only: who elects
// the leader, and whether commit means synced. Beside raft (one and three replicas) and solo it runs an engine of this
// file whose epochs are granted from outside.
#include "tests/unit/consensus/raft_cluster.h"

// ---- an engine whose leader is chosen outside --------------------------------------------------------------------
//
// The one granted an epoch appends a no-op and sends its log; the others take what fits and cut what conflicts.
// Commit is a majority that has the entry, synced or not: the weaker contract (streams).

struct replica {
    uint64_t id, epoch, leader, last, durable, commit, applied, snapshot, snapshot_term, log_epoch, term_first;
    uint64_t terms[4096];  // By index; the script is short.
    uint64_t match[LIMIT_MEMBERS], next[LIMIT_MEMBERS];
    struct config config;
};

static struct replica *granted_create(const struct replica_start *start)
{
    struct replica *r = mem_zalloc(sizeof(*r));
    r->id = start->replica_id;
    r->epoch = start->hard_state.term;
    r->last = r->durable = start->last;
    r->commit = r->applied = r->snapshot = start->snapshot_index;
    r->snapshot_term = start->snapshot_term;
    r->log_epoch = 1;
    config_copy(&r->config, &start->config);
    for (uint32_t i = 0; i < start->runs_count; i++) {
        for (uint64_t at = start->runs[i].first; at <= start->last; at++) {
            r->terms[at] = start->runs[i].term;
        }
    }
    r->terms[r->snapshot] = r->snapshot_term;
    return r;
}
static void granted_destroy(struct replica *r)
{
    free(r);
}
static bool granted_leads(const struct replica *r)
{
    return r->leader == r->id;
}
static void granted_commit(struct replica *r, struct consensus_out *out)
{
    uint32_t have[4096] = {0};
    for (uint64_t at = r->commit + 1; at <= r->last; at++) {
        for (uint32_t i = 0; i < r->config.count; i++) {
            have[at] += r->config.members[i].replica_id == r->id || r->match[i] >= at;
        }
        if (have[at] > r->config.count / 2 && at >= r->term_first) {
            r->commit = at;
            out->commit_changed = true;
        }
    }
}
static enum rc granted_propose(struct replica *r, uint32_t count, uint64_t *first, uint64_t *term,
                               struct consensus_out *out)
{
    consensus_out_reset(out);
    if (!granted_leads(r)) {
        return RC_NOT_LEADER;
    }
    *first = r->last + 1;
    *term = r->epoch;
    for (uint32_t k = 0; k < count; k++) {
        r->terms[++r->last] = r->epoch;
    }
    granted_commit(r, out);
    out->wants_send = true;
    return RC_OK;
}
static void granted_epoch(struct replica *r, uint64_t epoch, uint64_t leader, const struct config *c, uint64_t now_ns,
                          struct consensus_out *out)
{
    consensus_out_reset(out);
    if (epoch <= r->epoch) {
        return;
    }
    r->epoch = epoch;
    r->leader = leader;
    config_copy(&r->config, c);
    out->has_hard_state = out->role_changed = true;
    out->hard_state = (struct hard_state){.term = epoch, .vote = leader};
    if (granted_leads(r)) {
        for (uint32_t i = 0; i < LIMIT_MEMBERS; i++) {
            r->match[i] = 0;
            r->next[i] = r->last + 1;
        }
        out->has_noop = out->wants_send = true;
        out->append_index = r->term_first = ++r->last;
        out->append_term = r->terms[r->last] = epoch;
        granted_commit(r, out);
    }
}
static void granted_append(struct replica *r, const struct consensus_msg *m, struct consensus_out *out)
{
    bool fits = m->index <= r->last && (m->index <= r->commit || r->terms[m->index] == m->index_term);
    struct consensus_msg *reply = &out->msgs[out->msgs_count].msg;
    out->msgs[out->msgs_count++].gate = GATE_AFTER_WAL;
    *reply = (struct consensus_msg){.type = MSG_APPEND_REPLY,
                                    .group = 1,
                                    .from = r->id,
                                    .to = m->from,
                                    .term = r->epoch};
    reply->is_rejected = !fits;
    reply->hint_index = m->index == 0 ? 0 : m->index - 1 < r->last ? m->index - 1 : r->last;
    if (!fits) {
        return;
    }
    uint64_t end = m->index + m->count;
    for (uint64_t at = m->index + 1; at <= end; at++) {
        uint64_t term = 0;
        for (uint32_t k = 0; k < m->runs_count && m->runs[k].first <= at; k++) {
            term = m->runs[k].term;
        }
        if (at <= r->last && r->terms[at] == term) {
            continue;
        }
        if (at <= r->last) {
            out->truncate_from = at;
            r->durable = r->durable < at ? r->durable : at - 1;
            r->log_epoch++;
        }
        out->accept_from = at;
        out->accept_to = r->last = end;
        for (uint64_t i = at, run = 0; i <= end; i++) {
            run += run + 1 < m->runs_count && m->runs[run + 1].first <= i;
            r->terms[i] = m->runs[run].term;
        }
        break;
    }
    reply->index = reply->acked = end;
    uint64_t commit = m->commit < end ? m->commit : end;
    out->commit_changed = commit > r->commit;
    r->commit = commit > r->commit ? commit : r->commit;
}
static void granted_step(struct replica *r, const struct consensus_msg *m, uint64_t now_ns, struct consensus_out *out)
{
    consensus_out_reset(out);
    if (m->term != r->epoch) {
        return;
    }
    if (m->type == MSG_APPEND) {
        granted_append(r, m, out);
    }
    for (uint32_t i = 0; m->type == MSG_APPEND_REPLY && i < r->config.count; i++) {
        if (r->config.members[i].replica_id == m->from) {
            r->match[i] = m->is_rejected || m->acked < r->match[i] ? r->match[i] : m->acked;
            r->next[i] = m->is_rejected ? m->hint_index + 1 : r->next[i] > m->acked ? r->next[i] : m->acked + 1;
        }
    }
    if (granted_leads(r)) {
        granted_commit(r, out);
        out->wants_send = true;
    }
}
static void granted_config_appended(struct replica *r, const struct config *c)
{
}
static void granted_durable(struct replica *r, uint64_t epoch, uint64_t index, uint64_t now_ns,
                            struct consensus_out *out)
{
    consensus_out_reset(out);
    if (epoch == r->log_epoch && index > r->durable) {
        r->durable = index < r->last ? index : r->last;
    }
}
static void granted_hard_state_durable(struct replica *r, struct hard_state hs, uint64_t now_ns,
                                       struct consensus_out *out)
{
    consensus_out_reset(out);
}
static void granted_applied(struct replica *r, uint64_t index, uint64_t now_ns, struct consensus_out *out)
{
    consensus_out_reset(out);
    r->applied = index;
}
static uint64_t granted_deadline(const struct replica *r)
{
    return UINT64_MAX;
}
static void granted_next_send(struct replica *r, uint32_t i, struct consensus_send *out)
{
    out->kind = SEND_NOTHING;
    if (!granted_leads(r) || r->config.members[i].replica_id == r->id ||
        (r->next[i] > r->last && r->match[i] == UINT64_MAX)) {
        return;
    }
    static uint64_t told[LIMIT_MEMBERS][2];  // Commit and next last announced, so that an idle group is silent.
    if (r->next[i] > r->last && told[i][0] == r->commit && told[i][1] == r->next[i]) {
        return;
    }
    told[i][0] = r->commit;
    told[i][1] = r->last + 1;
    out->kind = SEND_APPEND;
    out->to = &r->config.members[i];
    out->last = r->last;
    uint64_t prev = r->next[i] - 1;
    out->msg = (struct consensus_msg){.type = MSG_APPEND,
                                      .group = 1,
                                      .from = r->id,
                                      .to = out->to->replica_id,
                                      .term = r->epoch,
                                      .index = prev,
                                      .index_term = r->terms[prev],
                                      .commit = r->commit};
}
static void granted_sent(struct replica *r, uint32_t i, uint64_t last_index_sent, uint64_t now_ns)
{
    r->next[i] = last_index_sent + 1;
}
static enum rc granted_read_barrier(struct replica *r, uint64_t id, uint64_t now_ns, struct consensus_out *out)
{
    consensus_out_reset(out);
    if (!granted_leads(r)) {
        return RC_NOT_LEADER;
    }
    out->reads[out->reads_count].id = id;
    out->reads[out->reads_count++].index = r->commit;
    return RC_OK;
}
static enum rc granted_transfer(struct replica *r, uint64_t replica_id, uint64_t now_ns, struct consensus_out *out)
{
    consensus_out_reset(out);
    return granted_leads(r) ? RC_UNSUPPORTED : RC_NOT_LEADER;
}
static enum rc granted_change(struct replica *r, const struct member_change *c, uint64_t now_ns,
                              struct consensus_out *out)
{
    consensus_out_reset(out);
    return granted_leads(r) ? RC_UNSUPPORTED : RC_NOT_LEADER;
}
static void granted_snapshot_taken(struct replica *r, uint64_t index, uint64_t term)
{
    r->snapshot = index;
    r->snapshot_term = term;
}
static void granted_step_down(struct replica *r, uint64_t now_ns, struct consensus_out *out)
{
    consensus_out_reset(out);
}
static void granted_status(const struct replica *r, struct consensus_status *out)
{
    *out = (struct consensus_status){.role = granted_leads(r) ? ROLE_LEADER : ROLE_FOLLOWER,
                                     .term = r->epoch,
                                     .leader = r->leader,
                                     .first = r->snapshot + 1,
                                     .last = r->last,
                                     .durable = r->durable,
                                     .commit = r->commit,
                                     .applied = r->applied,
                                     .snapshot = r->snapshot,
                                     .log_epoch = r->log_epoch,
                                     .config = &r->config,
                                     .is_ready = granted_leads(r) && r->applied >= r->term_first};
}
static uint64_t granted_term_at(const struct replica *r, uint64_t index)
{
    return index < r->snapshot || index > r->last ? 0 : r->terms[index];
}
static void granted_check(const struct replica *r)
{
    ck_assert_uint_le(r->commit, r->last);
    ck_assert_uint_le(r->durable, r->last);
}
static const struct consensus_ops granted_ops = {
    .name = "granted",
    .traits = {.elects_itself = false, .commit_is_synced = false, .unit_is_chunk = false},
    .create = granted_create, .destroy = granted_destroy, .propose = granted_propose, .step = granted_step,
    .config_appended = granted_config_appended, .durable = granted_durable,
    .hard_state_durable = granted_hard_state_durable, .applied = granted_applied, .deadline = granted_deadline,
    .next_send = granted_next_send, .sent = granted_sent, .read_barrier = granted_read_barrier,
    .transfer = granted_transfer, .change_members = granted_change, .snapshot_taken = granted_snapshot_taken,
    .epoch_granted = granted_epoch, .step_down = granted_step_down, .status = granted_status,
    .term_at = granted_term_at, .check = granted_check,
};

// ---- fixture -----------------------------------------------------------------------------------------------------

static const struct run {
    const char *engine;
    const struct consensus_ops *ops;  // NULL: from the registry.
    uint32_t replicas;
} runs[] = {{"raft", NULL, 1},
            {"raft", NULL, 3},
            {"solo", NULL, 1},
            {"granted", &granted_ops, 3},
            {"granted", &granted_ops, 1}};
enum { RUNS = sizeof(runs) / sizeof(runs[0]) };

static struct cluster c;

static void open_cluster(int number)
{
    const struct run *run = &runs[number];
    cl_init(&c, run->replicas, run->replicas, 7);
    c.ops = run->ops != NULL ? run->ops : consensus_engine(run->engine);
    ck_assert_ptr_nonnull(c.ops);
    for (uint32_t i = 1; i <= c.count; i++) {
        c.nodes[i].is_sync = true;
        cl_start(&c, i, false);
    }
}

// ---- helpers -----------------------------------------------------------------------------------------------------

static uint32_t leader_of(uint64_t *term)
{
    uint32_t leader = 0;
    for (uint32_t i = 1; i <= c.count; i++) {
        struct consensus_status st;
        if (c.nodes[i].r != NULL) {
            cl_status(&c, i, &st);
            if (st.role == ROLE_LEADER && st.is_ready && st.term >= *term) {
                *term = st.term;
                leader = i;
            }
        }
    }
    return leader;
}

// What stands outside such an engine: the longest log of the newest epoch leads next.
static void grant(void)
{
    uint32_t best = 0;
    struct consensus_status top = {0};
    uint64_t top_term = 0;
    uint64_t epoch = 0;
    for (uint32_t i = 1; i <= c.count; i++) {
        if (c.nodes[i].r == NULL) {
            continue;
        }
        struct consensus_status st;
        cl_status(&c, i, &st);
        uint64_t term = c.ops->term_at(c.nodes[i].r, st.last);
        if (best == 0 || term > top_term || (term == top_term && st.last > top.last)) {
            best = i;
            top = st;
            top_term = term;
        }
        epoch = st.term > epoch ? st.term : epoch;
    }
    for (uint32_t i = 1; i <= c.count; i++) {
        struct consensus_out out;
        if (c.nodes[i].r != NULL) {
            c.ops->epoch_granted(c.nodes[i].r, epoch + 1, c.nodes[best].replica_id, &c.initial, c.now, &out);
            cl_out(&c, i, &out, NULL);
        }
    }
}

// Until somebody leads in a term above `above` and may serve.
static uint32_t lead(uint64_t above)
{
    if (!c.ops->traits.elects_itself) {
        grant();
    }
    for (int guard = 0; guard < 100; guard++) {
        ck_assert(cl_settle(&c));
        uint64_t term = above + 1;
        uint32_t leader = leader_of(&term);
        if (leader != 0) {
            return leader;
        }
        (void)cl_tick(&c);
    }
    ck_abort_msg("nobody leads");
    return 0;
}

static struct consensus_status status_of(uint32_t i)
{
    struct consensus_status st;
    cl_status(&c, i, &st);
    return st;
}

static void disks(bool is_sync)
{
    for (uint32_t i = 1; i <= c.count; i++) {
        c.nodes[i].is_sync = is_sync;
        if (is_sync && c.nodes[i].r != NULL) {
            cl_disk(&c, i, UINT32_MAX);
        }
    }
}

static void everybody_has(uint64_t index)
{
    for (uint32_t i = 1; i <= c.count; i++) {
        struct consensus_status st = status_of(i);
        ck_assert_uint_eq(st.last, index);
        ck_assert_uint_eq(st.commit, index);
        ck_assert_uint_eq(st.applied, index);
        for (uint64_t at = st.first; at <= index; at++) {
            ck_assert_uint_eq(c.ops->term_at(c.nodes[i].r, at), c.nodes[i].mem.at[at].term);
        }
        ck_assert_uint_eq(c.ops->term_at(c.nodes[i].r, index + 1), 0);
    }
    cl_check_matching(&c);
}

// ---- tests -------------------------------------------------------------------------------------------------------

START_TEST(proposals_get_consecutive_indexes_and_are_committed_everywhere)
{
    open_cluster(_i);
    uint32_t leader = lead(0);
    struct consensus_status st = status_of(leader);
    uint64_t last = st.last;
    for (uint32_t k = 1; k <= 20; k++) {
        ck_assert_int_eq(cl_propose(&c, leader, k), RC_OK);  // cl_append checks the indexes.
        last += k;
    }
    ck_assert(cl_settle(&c));
    everybody_has(last);
    for (uint32_t i = 1; i <= c.count; i++) {
        ck_assert_int_eq(cl_propose(&c, i, 1), i == leader ? RC_OK : RC_NOT_LEADER);
    }
    cl_deinit(&c);
}
END_TEST

START_TEST(commit_waits_for_disks_where_the_contract_says_so)
{
    open_cluster(_i);
    uint32_t leader = lead(0);
    uint64_t before = status_of(leader).commit;
    disks(false);
    ck_assert_int_eq(cl_propose(&c, leader, 3), RC_OK);
    ck_assert(cl_settle(&c));
    ck_assert_uint_eq(status_of(leader).durable, before);
    if (c.ops->traits.commit_is_synced) {
        ck_assert_uint_eq(status_of(leader).commit, before);
    }
    disks(true);
    ck_assert(cl_settle(&c));
    everybody_has(before + 3);
    cl_deinit(&c);
}
END_TEST

START_TEST(what_is_committed_survives_every_crash)
{
    open_cluster(_i);
    uint32_t leader = lead(0);
    for (int round = 0; round < 8; round++) {
        uint64_t term = status_of(leader).term;
        ck_assert_int_eq(cl_propose(&c, leader, 5), RC_OK);
        ck_assert(cl_settle(&c));
        uint64_t committed = c.committed.last;
        disks(false);
        ck_assert_int_eq(cl_propose(&c, leader, 3), RC_OK);  // In the middle of these the power goes.
        ck_assert(cl_settle(&c));
        for (uint32_t i = 1; i <= c.count; i++) {
            // Where commit does not mean synced, what was committed in memory may only be lost by losing memory.
            uint32_t kept = c.ops->traits.commit_is_synced ? (uint32_t)round % 3 : c.nodes[i].wal_count;
            cl_crash(&c, i, kept);
        }
        while (c.packets_count > 0) {
            cl_packet_free(cl_packet_take(&c, 0));
        }
        for (uint32_t i = 1; i <= c.count; i++) {
            c.nodes[i].is_sync = true;
            cl_start(&c, i, false);
            struct consensus_status st = status_of(i);
            ck_assert_uint_eq(st.last, c.nodes[i].disk.last);
            ck_assert_uint_eq(st.durable, st.last);
            ck_assert_uint_ge(st.term, term);
        }
        leader = lead(term);
        ck_assert_uint_gt(status_of(leader).term, term);
        ck_assert_uint_gt(status_of(leader).commit, committed);  // All of it and the new term's no-op.
        everybody_has(status_of(leader).last);
    }
    cl_deinit(&c);
}
END_TEST

START_TEST(a_stale_disk_completion_changes_nothing)
{
    open_cluster(_i);
    uint32_t leader = lead(0);
    disks(false);
    ck_assert_int_eq(cl_propose(&c, leader, 4), RC_OK);
    struct consensus_status st = status_of(leader);
    struct consensus_out out;
    c.ops->durable(c.nodes[leader].r, st.log_epoch - 1, st.last, c.now, &out);
    cl_out(&c, leader, &out, NULL);
    ck_assert_uint_eq(status_of(leader).durable, st.durable);
    disks(true);
    ck_assert_uint_eq(status_of(leader).durable, st.last);
    cl_deinit(&c);
}
END_TEST

START_TEST(the_log_goes_on_behind_a_snapshot)
{
    open_cluster(_i);
    uint32_t leader = lead(0);
    uint64_t term = status_of(leader).term;
    ck_assert_int_eq(cl_propose(&c, leader, 30), RC_OK);
    ck_assert(cl_settle(&c));
    uint64_t at = status_of(leader).applied;
    for (uint32_t i = 1; i <= c.count; i++) {
        cl_snapshot(&c, i);
        ck_assert_uint_eq(status_of(i).first, at + 1);
        ck_assert_uint_eq(c.ops->term_at(c.nodes[i].r, at), term);
    }
    ck_assert_int_eq(cl_propose(&c, leader, 5), RC_OK);
    ck_assert(cl_settle(&c));
    for (uint32_t i = 1; i <= c.count; i++) {
        cl_crash(&c, i, 0);
    }
    for (uint32_t i = 1; i <= c.count; i++) {
        cl_start(&c, i, false);
        ck_assert_uint_eq(status_of(i).snapshot, at);
        ck_assert_uint_ge(status_of(i).commit, at);
    }
    leader = lead(term);
    everybody_has(at + 6);
    cl_deinit(&c);
}
END_TEST

START_TEST(a_read_barrier_sees_what_was_committed_before_it)
{
    open_cluster(_i);
    uint32_t leader = lead(0);
    ck_assert_int_eq(cl_propose(&c, leader, 9), RC_OK);
    ck_assert(cl_settle(&c));
    for (uint32_t i = 1; i <= c.count; i++) {
        struct consensus_out out;
        enum rc rc = c.ops->read_barrier(c.nodes[i].r, 40 + i, c.now, &out);
        cl_out(&c, i, &out, NULL);
        ck_assert_int_eq(rc, i == leader ? RC_OK : RC_NOT_LEADER);
    }
    ck_assert(cl_settle(&c));
    ck_assert_uint_eq(c.nodes[leader].reads_done, 1);
    ck_assert_uint_eq(c.nodes[leader].read_index, c.committed.last);
    cl_deinit(&c);
}
END_TEST

START_TEST(an_idle_group_wants_no_timer)
{
    open_cluster(_i);
    uint32_t leader = lead(0);
    ck_assert_int_eq(cl_propose(&c, leader, 2), RC_OK);
    ck_assert(cl_settle(&c));
    for (uint32_t i = 1; i <= c.count; i++) {
        ck_assert_uint_eq(c.ops->deadline(c.nodes[i].r), UINT64_MAX);
    }
    cl_deinit(&c);
}
END_TEST

START_TEST(who_grants_epochs_is_as_the_traits_say)
{
    open_cluster(_i);
    ck_assert_int_eq(c.ops->traits.elects_itself, c.ops->epoch_granted == NULL);
    struct consensus_out out;
    for (uint32_t i = 1; i <= c.count; i++) {
        ck_assert_int_eq(c.ops->transfer(c.nodes[i].r, 1, c.now, &out), RC_NOT_LEADER);
        struct member_change change = {.kind = MEMBER_REMOVE, .member = {.replica_id = 1}};
        ck_assert_int_eq(c.ops->change_members(c.nodes[i].r, &change, c.now, &out), RC_NOT_LEADER);
    }
    cl_deinit(&c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine conformance");
    TCase *tc = tcase_create("every engine");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, proposals_get_consecutive_indexes_and_are_committed_everywhere, 0, RUNS);
    tcase_add_loop_test(tc, commit_waits_for_disks_where_the_contract_says_so, 0, RUNS);
    tcase_add_loop_test(tc, what_is_committed_survives_every_crash, 0, RUNS);
    tcase_add_loop_test(tc, a_stale_disk_completion_changes_nothing, 0, RUNS);
    tcase_add_loop_test(tc, the_log_goes_on_behind_a_snapshot, 0, RUNS);
    tcase_add_loop_test(tc, a_read_barrier_sees_what_was_committed_before_it, 0, RUNS);
    tcase_add_loop_test(tc, an_idle_group_wants_no_timer, 0, RUNS);
    tcase_add_loop_test(tc, who_grants_epochs_is_as_the_traits_say, 0, RUNS);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
