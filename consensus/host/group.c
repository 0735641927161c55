// SPDX-License-Identifier: Apache-2.0
// A replica under the host: adding and removing it, proposing, and executing what its engine puts out.
//
// group_execute is the one place where an engine's output takes effect, in the order consensus.h demands: hard state,
// truncation, entries, then messages (held back where gated), then news of role, commit, reads and sending.
//
// Invariants: an engine is never stepped while its output is being executed, except that config_appended is told in
// between; a gated message waits in the group until the next submission takes it along; bounds are checked before the
// engine gives out an index, so that an index given out is always filled.
#include "consensus/host/host_core.h"
#include "node/base/slab.h"
#include <assert.h>
#include <stdlib.h>

// ---- what is under way, and references -----------------------------------------------------------------------------

struct group_work *group_work(struct group *g)
{
    if (g->work) {
        return g->work;
    }
    struct host *h = g->host;
    struct list *l = list_pop(&h->work_pool);
    struct group_work *w = l ? list_entry(l, struct group_work, dirty) : mem_alloc(sizeof(*w));
    h->work_pool_count -= l != NULL;
    *w = (struct group_work){.group = g, .proposed_first = UINT64_MAX, .ack_slot = UINT32_MAX};
    list_init(&w->dirty);
    list_init(&w->news);
    list_init(&w->reads);
    list_init(&w->wake);
    g->work = w;
    return w;
}

static void work_free(struct group *g)
{
    struct host *h = g->host;
    struct group_work *w = g->work;
    g->work = NULL;
    if (h->work_pool_count < HOST_WORK_POOL) {
        list_add_head(&h->work_pool, &w->dirty);
        h->work_pool_count++;
    } else {
        free(w);
    }
}

void group_rest(struct group *g)
{
    const struct group_work *w = g->work;
    if (!w || (g->flags & (GROUP_WROTE | GROUP_WROTE_HARD_STATE))) {
        return;
    }
    const bool is_listed = !list_is_empty(&w->dirty) || !list_is_empty(&w->news) || !list_is_empty(&w->reads) ||
                           !list_is_empty(&w->wake);
    const bool is_sending = w->notes > 0 || w->gated_first || w->blocked || w->feeding != 0;
    if (!is_listed && !is_sending && w->uncommitted == 0 && !w->config_applied) {
        work_free(g);
    }
}

void group_ref(struct group *g)
{
    g->refs++;
}

void group_unref(struct group *g)
{
    assert(g->refs > 0);
    if (--g->refs == 0) {
        assert(g->flags & GROUP_REMOVED);
        assert(list_is_empty(&g->ready));
        if (g->work) {
            assert(list_is_empty(&g->work->dirty));
            free(g->work->config_applied);
            work_free(g);
        }
        slab_free(g, sizeof(*g));
    }
}

static void count_campaign(struct group *g, bool is_campaigning)
{
    const bool was = (g->flags & GROUP_CAMPAIGNS) != 0;
    if (is_campaigning != was) {
        g->flags ^= GROUP_CAMPAIGNS;
        g->host->campaigns += is_campaigning ? 1 : UINT32_MAX;
    }
}

void group_count_campaign(struct group *g)
{
    struct consensus_status st;
    g->ops->status(g->replica, &st);
    const bool is_campaigning = st.role == ROLE_PRE_CANDIDATE || st.role == ROLE_CANDIDATE;
    count_campaign(g, is_campaigning);
    g->tries = is_campaigning ? g->tries : 0;
}

void group_campaign_waits(struct group *g)
{
    count_campaign(g, false);
}

// ---- executing an output -------------------------------------------------------------------------------------------

static void hold_back(struct group *g, uint32_t node, const struct consensus_msg *m)
{
    struct host *h = g->host;
    struct gated *x = h->gated_pool;
    if (x) {
        h->gated_pool = x->next;
    } else {
        x = mem_alloc(sizeof(*x));
    }
    x->next = NULL;
    x->node = node;
    x->msg = *m;
    // Several answers of one kind to one replica: the newest says it all.
    struct group_work *w = group_work(g);
    struct gated *last = w->gated_last;
    if (last && m->type == MSG_APPEND_REPLY && last->msg.type == m->type && last->msg.to == m->to &&
        last->msg.term == m->term && !m->is_rejected && !last->msg.is_rejected) {
        last->msg = *m;
        x->next = h->gated_pool;
        h->gated_pool = x;
        return;
    }
    if (last) {
        last->next = x;
    } else {
        w->gated_first = x;
    }
    w->gated_last = x;
}

static void execute_messages(struct group *g, struct consensus_out *out)
{
    struct host *h = g->host;
    struct consensus_status st;
    if (out->msgs_count == 0) {
        return;
    }
    g->ops->status(g->replica, &st);
    for (uint32_t i = 0; i < out->msgs_count; i++) {
        const struct consensus_msg *m = &out->msgs[i].msg;
        const struct member *to = config_find(st.config, m->to);
        // Who asked gets an answer even if our configuration does not know it (yet, or any more).
        uint32_t node = to ? to->node_id : m->to == h->current_from ? h->current_node : 0;
        if (node == 0 || node == h->config.node_id) {
            continue;
        }
        // Nothing on its way to the disk: what is gated may leave at once.
        const bool is_clean = !(g->flags & (GROUP_WROTE | GROUP_WROTE_HARD_STATE)) &&
                              (!g->work || (g->work->notes == 0 && !g->work->gated_first));
        if (out->msgs[i].gate == GATE_AFTER_WAL && !is_clean) {
            hold_back(g, node, m);
            group_mark_dirty(g);
        } else {
            host_frame_message(h, g, node, m);
        }
    }
}

// Lays down the entries first..last out of `records`, which start at index `at`.
static void execute_accept(struct group *g, uint64_t first, uint64_t last, struct span records, uint64_t at)
{
    assert(first >= at && last >= first);
    assert(records.ptr != NULL);
    for (uint64_t index = at; index <= last; index++) {
        struct record_disk r;
        uint64_t size;
        enum rc rc = record_peek(records, &r, &size);
        assert(rc == RC_OK);  // Checked before the step.
        assert(r.index == index);
        if (index >= first) {
            const struct span whole = span_of(records.ptr, (size_t)size);
            if (r.kind == RECORD_CONFIG) {
                group_config_before(g);
            }
            rc = glog_append_record(g->log, whole);
            assert(rc == RC_OK);
            if (r.kind == RECORD_CONFIG) {
                struct config c;
                rc = config_decode(span_of(records.ptr + RECORD_HEADER_BYTES, r.len), &c);
                assert(rc == RC_OK);
                c.index = index;
                g->ops->config_appended(g->replica, &c);
                group_tell_members(g, &c);
            }
            if (g->flags & GROUP_ASLEEP) {
                host_wake_at_accept(g, r.kind);
            }
        }
        records = span_of(records.ptr + size, records.len - (size_t)size);
    }
    g->flags |= GROUP_WROTE;
    group_mark_dirty(g);
}

static void execute_writes(struct group *g, struct consensus_out *out, struct span records, uint64_t first)
{
    if (out->has_hard_state) {
        glog_write_hard_state(g->log, out->hard_state);
        group_work(g)->hard_state = out->hard_state;
        g->flags |= GROUP_WROTE_HARD_STATE;
        group_mark_dirty(g);
    }
    if (out->truncate_from > 0) {
        glog_truncate(g->log, out->truncate_from);
        g->flags |= GROUP_WROTE;
        group_mark_dirty(g);
    }
    if (out->accept_from > 0) {
        execute_accept(g, out->accept_from, out->accept_to, records, first);
    }
    if (out->has_noop) {
        const enum rc rc = glog_append(g->log, out->append_index, out->append_term, RECORD_NOOP, 0, NULL, 0, true);
        assert(rc == RC_OK);
    }
    if (out->has_config) {
        struct buf *b = &g->host->scratch;
        b->len = 0;
        config_encode(&out->config, b);
        const struct glog_part part = {b->ptr, b->len};
        const enum rc rc =
            glog_append(g->log, out->append_index, out->append_term, RECORD_CONFIG, 0, &part, 1, true);
        assert(rc == RC_OK);
        group_tell_members(g, &out->config);
    }
    if (out->has_noop || out->has_config) {
        g->flags |= GROUP_WROTE;
        group_mark_dirty(g);
    }
}

static void execute_role(struct group *g)
{
    struct host *h = g->host;
    struct consensus_status st;
    g->ops->status(g->replica, &st);
    host_liveness_list(g, st.leader_node);
    group_count_campaign(g);
    if (st.role == ROLE_LEADER) {
        h->metrics.elections += (!g->work || g->work->proposed_first == UINT64_MAX) && st.config->count > 1;
        host_wake(g, false);
    } else if (g->work) {
        g->work->uncommitted = 0;
        g->work->proposed_first = UINT64_MAX;
        list_remove(&g->work->news);
    }
    if (g->flags & GROUP_RECEIVING) {
        host_snapshot_role(g, st.leader);
    }
    group_ready(g, GROUP_ROLE);
}

void group_execute(struct group *g, struct consensus_out *out, struct span records, uint64_t first)
{
    execute_writes(g, out, records, first);
    execute_messages(g, out);
    if (out->role_changed) {
        execute_role(g);
    }
    for (uint32_t i = 0; i < out->reads_count; i++) {
        host_read_proven(g, out->reads[i].id, out->reads[i].index);
    }
    if (out->reads_failed) {
        host_read_fail(g, RC_NOT_LEADER);
    }
    if (out->commit_changed) {
        group_ready(g, GROUP_APPLY);
    }
    if (out->wants_send) {
        group_ready(g, GROUP_SEND);
    }
    group_timer_update(g);
}

void group_timer_update(struct group *g)
{
    struct consensus_status st;
    if (g->flags & GROUP_FAILED) {
        g->ops->status(g->replica, &st);
    }
    if ((g->flags & GROUP_REMOVED) || ((g->flags & GROUP_FAILED) && !st.is_amnesiac)) {
        host_timer_remove(g);
        return;
    }
    uint64_t due = g->ops->deadline(g->replica);
    if (group_has_reads(g)) {
        const uint64_t read = host_read_deadline(g);
        due = read < due ? read : due;
    }
    host_timer_set(g, due);
}

// The engine learns who of `c` is alive as far as this node knows.
void group_tell_members(struct group *g, const struct config *c)
{
    struct host *h = g->host;
    for (uint32_t i = 0; i < c->count; i++) {
        const uint32_t node = c->members[i].node_id;
        if (node == h->config.node_id) {
            continue;
        }
        (void)host_peer(h, node);
        struct consensus_out out;
        consensus_out_reset(&out);
        g->ops->node_alive(g->replica, node, host_node_is_alive(h, node), host_now(h), &out);
        group_execute(g, &out, span_of(NULL, 0), 0);
    }
}

// The replica cannot go on (its state is damaged): it stops taking part, the node goes on. If it leads, the others take it
// for alive as long as its node is, and one word to one of them may be lost: its engine, which has no part in anything any
// more, goes on asking them to campaign, as one that lost its memory does. They heed that in this term only.
void group_fail(struct group *g, enum rc rc, const char *what)
{
    log_error("group %llu: %s: %s; the replica stops", (unsigned long long)g->id, what, rc_text(rc));
    struct consensus_status st;
    g->ops->status(g->replica, &st);
    const bool did_lead = st.role == ROLE_LEADER && st.config->count > 1;
    if (did_lead) {
        struct consensus_out out;
        consensus_out_reset(&out);
        g->ops->lost_memory(g->replica, host_now(g->host), &out);
        group_execute(g, &out, span_of(NULL, 0), 0);
    }
    host_read_fail(g, RC_CORRUPT);
    count_campaign(g, false);
    g->flags |= GROUP_FAILED;
    host_sleep_ends(g);
    group_timer_update(g);
    host_send_group_gone(g);
    if (!list_is_empty(&g->ready)) {
        list_remove(&g->ready);
    }
    if (did_lead) {
        g->ops->status(g->replica, &st);
        st.is_amnesiac = false;  // What is on disk is whole: nobody is to replace it.
        g->fsm->role(g->fsm_ctx, &st);
    }
}

// Damage was found in what the group has on disk: it neither votes nor acknowledges from now on, as after a
// start that finds it, and its leader can tell (law 2). What cannot be read is not applied, so nothing is any more.
void group_lost(struct group *g)
{
    if (group_is_gone(g) || (g->flags & GROUP_LOST)) {
        return;
    }
    g->flags |= GROUP_LOST;
    struct consensus_out out;
    consensus_out_reset(&out);
    g->ops->lost_memory(g->replica, host_now(g->host), &out);
    group_execute(g, &out, span_of(NULL, 0), 0);
    group_ready(g, GROUP_ROLE);
}

// ---- adding and removing -------------------------------------------------------------------------------------------

static struct replica_start start_of(struct host *h, const struct group_spec *spec, const struct store_group *r)
{
    struct replica_start s = {
        .group = spec->group,
        .replica_id = spec->replica_id,
        .node_id = h->config.node_id,
        .config = spec->initial,
        .fsm_version = spec->fsm->version,
        .rng_seed = rng_next(&h->rng),
        .now_ns = host_now(h),
        .campaign_at_once = spec->campaign_at_once,
    };
    if (r) {
        s.hard_state = r->hard_state;
        s.snapshot_index = s.commit = r->snapshot_index;
        s.snapshot_term = r->snapshot_term;
        s.last = r->last;
        s.runs = r->runs;
        s.runs_count = r->runs_count;
        s.is_amnesiac = r->is_amnesiac;
        if (r->config.count > 0) {
            s.config = r->config;
            s.config_before = r->config_before;
            if (s.config_before.count == 0 && r->config.index > 0) {
                s.config_before = r->snapshot_config.count > 0 ? r->snapshot_config : spec->initial;
            }
        }
    }
    return s;
}

// The configuration at the applied index (= the snapshot's), if the engine's is a later one.
static void keep_applied_config(struct group *g, const struct group_spec *spec, const struct store_group *r,
                                const struct replica_start *s)
{
    if (s->config.index > s->snapshot_index) {
        struct group_work *w = group_work(g);
        w->config_applied = mem_alloc(sizeof(struct config));
        *w->config_applied = r && r->snapshot_config.count > 0 ? r->snapshot_config : spec->initial;
    }
}

// What the disk holds of the group is this replica's, or of one that was here before, whose end (the tombstone) did not
// reach the disk: then it ends now, and ours begins empty (law 2). Where damage may hide what ours wrote, ours
// has lost its memory. Ids rise: what a later one has promised is not touched, for whoever names ours is behind.
static enum rc take_over(struct host *h, const struct group_spec *spec, const struct store_group **recovered)
{
    const struct store_group *r = spec->recovered;
    struct glog *log = r && r->log ? r->log : store_glog_find(h->store, spec->group);
    const uint64_t owner = log ? glog_replica(log) : 0;
    *recovered = r;
    if (owner > spec->replica_id) {
        return RC_STALE;
    }
    if (owner != 0 && owner < spec->replica_id && !(r && r->is_hiding)) {
        log_notice("group %llu: what replica %llu has left here goes, replica %llu begins",
                   (unsigned long long)spec->group, (unsigned long long)owner, (unsigned long long)spec->replica_id);
        glog_delete(log);
        *recovered = NULL;
    }
    return RC_OK;
}

enum rc host_group_add(struct host *h, const struct group_spec *spec, struct group **out)
{
    assert(spec->fsm && spec->fsm->apply);
    assert(spec->replica_id != 0);
    *out = NULL;
    if (map_get(&h->map, spec->group)) {
        return RC_EXISTS;
    }
    const struct consensus_ops *ops = consensus_engine(spec->engine);
    if (ops == NULL) {
        return RC_UNSUPPORTED;
    }
    const struct store_group *recovered;
    TRY(take_over(h, spec, &recovered));
    const struct replica_start start = start_of(h, spec, recovered);
    if (start.config.count == 0) {
        return RC_INVALID;
    }
    struct group *g = slab_zalloc(sizeof(*g));
    g->id = spec->group;
    g->replica_id = spec->replica_id;
    g->host = h;
    g->ops = ops;
    g->fsm = spec->fsm;
    g->fsm_ctx = spec->fsm_ctx;
    g->refs = 1;
    g->deadline = UINT64_MAX;
    g->heap_pos = HOST_TIMER_NONE;
    g->handed = start.snapshot_index;
    list_init(&g->ready);
    list_init(&g->by_leader);
    g->log = recovered ? recovered->log : NULL;
    if (g->log == NULL) {
        g->log = store_glog_find(h->store, spec->group);
    }
    if (g->log == NULL) {
        g->log = start.is_amnesiac ? store_glog_create_lost(h->store, spec->group)
                                   : store_glog_create(h->store, spec->group);
    }
    glog_set_replica(g->log, spec->replica_id);
    g->replica = ops->create(&start);
    keep_applied_config(g, spec, recovered, &start);
    list_add_tail(&h->groups, &g->all);
    map_put(&h->map, g->id, g);

    struct consensus_status st;
    ops->status(g->replica, &st);
    host_liveness_list(g, st.leader_node);
    struct config members;
    config_copy(&members, st.config);
    group_tell_members(g, &members);
    if (host_may_sleep(spec, &start, g->log)) {
        host_sleep(g);
    } else if (start.snapshot_index > 0) {
        host_snapshot_load(g);
    }
    group_timer_update(g);
    group_ready(g, GROUP_APPLY | GROUP_SEND | GROUP_ROLE);
    *out = g;
    return RC_OK;
}

// Nothing more goes out for the group.
static void work_cancel(struct group *g)
{
    struct host *h = g->host;
    struct group_work *w = g->work;
    list_remove(&w->dirty);
    list_remove(&w->news);
    list_remove(&w->wake);
    while (w->gated_first) {
        struct gated *m = w->gated_first;
        w->gated_first = m->next;
        m->next = h->gated_pool;
        h->gated_pool = m;
    }
    w->gated_last = NULL;
}

void host_group_remove(struct group *g, bool is_deleted)
{
    struct host *h = g->host;
    assert(!(g->flags & GROUP_REMOVED));
    host_read_fail(g, RC_SHUTDOWN);
    g->flags |= GROUP_REMOVED;
    host_sleep_ends(g);
    count_campaign(g, false);
    host_timer_remove(g);
    host_send_group_gone(g);
    host_snapshot_group_gone(g);
    host_liveness_unlist(g);
    list_remove(&g->all);
    list_remove(&g->ready);
    map_remove(&h->map, g->id);
    if (g->work) {
        work_cancel(g);
    }
    g->ops->destroy(g->replica);
    g->replica = NULL;
    if (is_deleted) {
        glog_delete(g->log);
    }
    g->log = NULL;
    group_unref(g);
}

// ---- looking -------------------------------------------------------------------------------------------------------

struct group *host_group_find(struct host *h, uint64_t group)
{
    return map_get(&h->map, group);
}

void host_group_each(struct host *h, void (*each)(void *ctx, struct group *g), void *ctx)
{
    uint32_t pos = 0;
    struct group *g;
    while ((g = map_next(&h->map, &pos, NULL, NULL)) != NULL) {
        each(ctx, g);
    }
}

uint64_t group_id(const struct group *g)
{
    return g->id;
}

void *group_fsm(const struct group *g)
{
    return g->fsm_ctx;
}

struct host *group_host(const struct group *g)
{
    return g->host;
}

void group_status(const struct group *g, struct consensus_status *out)
{
    assert(g->replica);
    g->ops->status(g->replica, out);
}

enum rc group_entry(struct group *g, uint64_t index, struct entry *out)
{
    return glog_get(g->log, index, out);
}

void group_entry_read(struct group *g, struct glog_read *r)
{
    g->host->metrics.cold_reads++;
    glog_read_start(g->log, r);
}

// ---- proposing -----------------------------------------------------------------------------------------------------

// For a record of `bytes`; 0: an ordinary one.
static bool is_over(struct group *g, uint64_t bytes, bool is_reserved)
{
    struct host *h = g->host;
    const uint64_t uncommitted_max =
        is_reserved ? LIMIT_GROUP_UNCOMMITTED_BYTES : LIMIT_FOR_PUBLISH(LIMIT_GROUP_UNCOMMITTED_BYTES);
    const uint64_t pending_max = is_reserved ? LIMIT_WAL_PENDING_BYTES : LIMIT_FOR_PUBLISH(LIMIT_WAL_PENDING_BYTES);
    const uint64_t uncommitted = g->work ? g->work->uncommitted : 0;
    if (uncommitted >= uncommitted_max || store_worker_unsynced_bytes(h->store) >= pending_max) {
        return true;
    }
    return !is_reserved && glog_is_over_budget(g->log, bytes);
}

bool group_is_full(const struct group *g)
{
    return is_over((struct group *)g, 0, false);
}

enum rc group_propose(struct group *g, const struct glog_part *parts, uint32_t parts_count, bool is_reserved,
                      uint64_t *index_out, uint64_t *term_out)
{
    if (group_is_gone(g) || g->host->is_failed) {
        return RC_SHUTDOWN;
    }
    if (g->flags & GROUP_INSTALLING) {
        return RC_NOT_LEADER;
    }
    size_t len = 0;
    for (uint32_t i = 0; i < parts_count; i++) {
        len += parts[i].len;
    }
    if (is_over(g, record_size((uint32_t)len), is_reserved)) {
        return RC_FULL;
    }
    struct consensus_out out;
    consensus_out_reset(&out);
    TRY(g->ops->propose(g->replica, 1, index_out, term_out, &out));
    host_wake(g, true);
    // Room was checked above: from here on nothing can refuse (an index given out is always filled).
    const enum rc rc = glog_append(g->log, *index_out, *term_out, RECORD_ENTRY, 0, parts, parts_count, true);
    assert(rc == RC_OK);
    struct group_work *w = group_work(g);
    w->uncommitted += record_size((uint32_t)len);
    if (w->proposed_first == UINT64_MAX) {
        w->proposed_first = *index_out;
    }
    g->host->metrics.proposals++;
    g->flags |= GROUP_WROTE;
    group_mark_dirty(g);
    group_execute(g, &out, span_of(NULL, 0), 0);
    group_ready(g, GROUP_SEND);
    return RC_OK;
}

enum rc group_transfer(struct group *g, uint32_t node_id)
{
    if (group_is_gone(g)) {
        return RC_SHUTDOWN;
    }
    struct consensus_status st;
    g->ops->status(g->replica, &st);
    const struct member *m = config_find_node(st.config, node_id);
    if (m == NULL) {
        return RC_NOT_FOUND;
    }
    if (!host_node_is_alive(g->host, node_id)) {
        return RC_NOT_CONNECTED;
    }
    struct consensus_out out;
    consensus_out_reset(&out);
    const enum rc rc = g->ops->transfer(g->replica, m->replica_id, host_now(g->host), &out);
    group_execute(g, &out, span_of(NULL, 0), 0);
    return rc;
}

enum rc group_change_members(struct group *g, const struct member_change *c)
{
    if (group_is_gone(g)) {
        return RC_SHUTDOWN;
    }
    struct consensus_out out;
    consensus_out_reset(&out);
    group_config_before(g);
    const enum rc rc = g->ops->change_members(g->replica, c, host_now(g->host), &out);
    group_execute(g, &out, span_of(NULL, 0), 0);
    return rc;
}

void group_tell_at_once(struct group *g)
{
    g->flags |= GROUP_EAGER;
}

void group_applied(struct group *g, uint64_t index)
{
    if (group_is_gone(g)) {
        return;
    }
    assert(index <= g->handed);
    host_apply_done(g, index);
    group_ready(g, GROUP_APPLY);
}

void host_step_down_all(struct host *h)
{
    uint32_t pos = 0;
    struct group *g;
    while ((g = map_next(&h->map, &pos, NULL, NULL)) != NULL) {
        struct consensus_status st;
        g->ops->status(g->replica, &st);
        if (st.role == ROLE_LEADER && st.config->count > 1 && !group_is_gone(g)) {
            struct consensus_out out;
            consensus_out_reset(&out);
            g->ops->step_down(g->replica, host_now(h), &out);
            group_execute(g, &out, span_of(NULL, 0), 0);
        }
    }
}
