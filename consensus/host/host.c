// SPDX-License-Identifier: Apache-2.0
// The host's loop turn, and what holds its parts together.
//
// Problem: one worker runs up to a hundred thousand replicas; most are idle, some are very busy. Idea: inputs
// (frames, WAL completions, proposals) step an engine at once but only collect what follows from it; groups
// with something to do stand on the ready list; host_turn works the list off, then everything that was
// collected leaves together: one WAL submission, one frame per peer, lane and kind.
//
// Order of a turn: timers -> liveness walks -> retries -> ready groups (role, apply, send) until none is ready or the
// turn's share is used -> frames -> WAL submission with its notes -> net flush -> answers to read barriers.
//
// Invariants: a group is on the ready list iff it has a flag of work and is not gone; on the dirty list iff
// it laid down something (or holds gated messages) since the last submission. No upcall to a state machine or
// client happens inside a call of theirs.
#include "consensus/host/host_core.h"
#include <assert.h>
#include <stdlib.h>

enum { TURN_ROUNDS = 64 };  // Times the ready list is gone through in one turn; what is left waits for the next.

// ---- small services ----------------------------------------------------------------------------------------------

uint64_t host_now(const struct host *h)
{
    if (!h->is_now_known) {
        // The cache is not part of what const promises.
        struct host *m = (struct host *)h;
        m->now = clock_mono_ns(h->config.clock);
        m->wall_ms = clock_wall_ms(h->config.clock);
        m->is_now_known = true;
    }
    return h->now;
}

int64_t host_wall_ms(const struct host *h)
{
    (void)host_now(h);
    return h->wall_ms;
}

struct peer *host_peer(struct host *h, uint32_t node)
{
    assert(node != 0);
    struct peer *p = map_get(&h->peer_map, node);
    if (p == NULL) {
        p = mem_zalloc(sizeof(*p));
        p->node = node;
        p->slot = map_count(&h->peer_map) % HOST_FEED_SLOTS;  // Ids are never reused: over the years there are many.
        p->verdict = NODE_DEAD;
        list_add_tail(&h->peers, &p->link);
        list_init(&p->blocked);
        list_init(&p->by_leader);
        list_init(&p->walk_led);
        list_init(&p->marker);
        map_put(&h->peer_map, node, p);
    }
    return p;
}

static uint64_t retry_key(struct host *h, uint64_t group, uint32_t node, bool is_snapshot)
{
    return (group * HOST_FEED_SLOTS + host_peer(h, node)->slot) * 2 + is_snapshot;
}

// A node that has just started knows none of its groups yet: they must not all be asked for at once.
void host_retry_add(struct group *g, uint32_t node, uint64_t replica, bool is_snapshot)
{
    struct host *h = g->host;
    const uint64_t key = retry_key(h, g->id, node, is_snapshot);
    struct retry *there = map_get(&h->retry_map, key);
    if (there) {
        // Of one that was on that node before, maybe: nobody waits for that any more.
        there->replica = there->node == node ? replica : there->replica;
        return;
    }
    struct retry *r = mem_zalloc(sizeof(*r));
    *r = (struct retry){.group = g->id, .node = node, .replica = replica, .is_snapshot = is_snapshot};
    r->due = host_now(h) + HOST_RETRY_NS;
    if (!list_is_empty(&h->retries)) {
        const uint64_t last = list_entry(h->retries.prev, struct retry, link)->due + HOST_RETRY_STEP_NS;
        r->due = last > r->due ? last : r->due;
    }
    map_put(&h->retry_map, key, r);
    list_add_tail(&h->retries, &r->link);
}

void host_free_later(struct host *h, void *ptr)
{
    struct garbage *x = mem_alloc(sizeof(*x));
    *x = (struct garbage){.ptr = ptr, .next = h->garbage};
    h->garbage = x;
}

void host_release_later(struct host *h, struct block *b)
{
    if (b != NULL) {
        struct garbage *x = mem_alloc(sizeof(*x));
        *x = (struct garbage){.block = b, .next = h->garbage};
        h->garbage = x;
    }
}

void group_ready(struct group *g, uint16_t flags)
{
    if (g->flags & (GROUP_REMOVED | GROUP_FAILED)) {
        return;
    }
    g->flags |= flags;
    if (list_is_empty(&g->ready)) {
        list_add_tail(&g->host->ready, &g->ready);
    }
}

void group_mark_dirty(struct group *g)
{
    struct group_work *w = group_work(g);
    if (list_is_empty(&w->dirty)) {
        list_add_tail(&g->host->dirty, &w->dirty);
    }
}

// ---- notes -------------------------------------------------------------------------------------------------------

static struct note *note_take(struct host *h)
{
    struct list *l = list_pop(&h->note_pool);
    struct note *n = l ? list_entry(l, struct note, base.link) : mem_alloc(sizeof(*n));
    *n = (struct note){0};
    list_init(&n->base.link);
    return n;
}

static void gated_free(struct host *h, struct gated *first)
{
    while (first) {
        struct gated *next = first->next;
        first->next = h->gated_pool;
        h->gated_pool = first;
        first = next;
    }
}

// One note for each group that laid something down or holds messages back; for groups behind a large record in `large`.
static void notes_collect(struct host *h, struct list *notes, struct list *large)
{
    struct list *l;
    while ((l = list_pop(&h->dirty)) != NULL) {
        struct group_work *w = list_entry(l, struct group_work, dirty);
        struct group *g = w->group;
        struct consensus_status st;
        g->ops->status(g->replica, &st);
        struct note *n = note_take(h);
        n->kind = NOTE_GROUP;
        n->group = g;
        n->epoch = st.log_epoch;
        n->last = st.last;
        n->has_hard_state = (g->flags & GROUP_WROTE_HARD_STATE) != 0;
        n->hard_state = w->hard_state;
        n->gated = w->gated_first;
        w->gated_first = w->gated_last = NULL;
        g->flags &= (uint16_t)~(GROUP_WROTE_HARD_STATE | GROUP_WROTE);
        w->notes++;
        group_ref(g);
        n->base.group = g->id;
        list_add_tail(!group_is_gone(g) && glog_is_large(g->log) ? large : notes, &n->base.link);
    }
    list_each(i, &h->peers) {
        struct peer *p = list_entry(i, struct peer, link);
        for (uint32_t k = 0; k < p->inflow_count; k++) {
            struct inflow *in = &p->inflow[k];
            if (in->received != in->received_noted) {
                struct note *n = note_take(h);
                n->kind = NOTE_RECEIPT;
                n->peer = p;
                n->worker = k;
                n->received = in->received_noted = in->received;
                list_add_tail(notes, &n->base.link);
            }
        }
    }
}

// Everything the group had handed over with this note is durable.
static void note_group_done(struct host *h, struct note *n)
{
    struct group *g = n->group;
    assert(g->work && g->work->notes > 0);
    g->work->notes--;
    if (!group_is_gone(g)) {
        // Answers first: what the engine says after them is newer.
        for (struct gated *m = n->gated; m; m = m->next) {
            host_frame_message(h, g, m->node, &m->msg);
        }
        struct consensus_out out;
        if (n->has_hard_state) {
            consensus_out_reset(&out);
            g->ops->hard_state_durable(g->replica, n->hard_state, host_now(h), &out);
            group_execute(g, &out, span_of(NULL, 0), 0);
        }
        if (!group_is_gone(g)) {
            consensus_out_reset(&out);
            g->ops->durable(g->replica, n->epoch, n->last, host_now(h), &out);
            group_execute(g, &out, span_of(NULL, 0), 0);
            group_ready(g, GROUP_APPLY);
        }
    }
    gated_free(h, n->gated);
    group_rest(g);
    group_unref(g);
}

void host_wal_done(struct host *h, struct wal_submission *s)
{
    struct list notes;
    list_init(&notes);
    const enum rc rc = store_worker_wal_done(h->store, s, &notes);
    if (rc != RC_OK && !h->is_failed) {
        // P6: nothing may be acknowledged any more; the driver ends the process.
        log_critical("worker %u: write-ahead log failed: %s", h->config.worker, rc_text(rc));
        h->is_failed = true;
    }
    struct list *l;
    while ((l = list_pop(&notes)) != NULL) {
        struct note *n = list_entry(l, struct note, base.link);
        if (n->kind == NOTE_RECEIPT) {
            if (!h->is_failed) {
                n->peer->inflow[n->worker].receipt = n->received;
                n->peer->inflow[n->worker].owes_receipt = true;
            }
        } else if (h->is_failed) {
            gated_free(h, n->gated);
            n->group->work->notes--;
            group_unref(n->group);
        } else {
            note_group_done(h, n);
        }
        list_add_tail(&h->note_pool, &n->base.link);
    }
}

void host_wal_file_closed(struct host *h, uint64_t file_seq)
{
    store_worker_file_closed(h->store, file_seq);
}

void host_room(struct host *h)
{
    store_worker_room(h->store);
}

// ---- the turn ----------------------------------------------------------------------------------------------------

// A group that campaigns has messages on their way to all members and waits for a sync of the disk. If a
// hundred thousand did so at once, answers would take seconds, time-outs would repeat what is still queued,
// and beats would be stuck behind votes: nothing would come to an end. So those above a number wait for the
// others, in order. Who has asked in vain a few times waits again when others do: it may never be elected (the others
// have lost their memory, say), and must not keep those from it that would be. True: `g` is put off.
static bool is_put_off(struct host *h, struct group *g)
{
    if (g->leader_node == h->config.node_id) {
        return false;
    }
    if (g->flags & GROUP_CAMPAIGNS) {
        g->tries = g->tries < HOST_CAMPAIGN_TRIES ? (uint8_t)(g->tries + 1) : g->tries;
        if (g->tries < HOST_CAMPAIGN_TRIES || h->campaign_next <= h->now) {
            return false;
        }
        group_campaign_waits(g);
    } else if (h->campaigns < HOST_CAMPAIGNS_MAX) {
        return false;
    }
    const uint64_t at = h->campaign_next > h->now ? h->campaign_next : h->now + HOST_NEWS_NS;
    h->campaign_next = at + HOST_CAMPAIGN_NS;
    host_timer_set(g, at);
    return true;
}

static void timers_run(struct host *h)
{
    struct group *g;
    for (int n = 0; n < HOST_TIMER_BATCH && (g = host_timer_due(h, h->now)) != NULL; n++) {
        host_read_expire(g);
        if (is_put_off(h, g)) {
            continue;
        }
        if (g->ops->deadline(g->replica) <= h->now && !(g->flags & (GROUP_INSTALLING | GROUP_LOADING))) {
            struct consensus_out out;
            consensus_out_reset(&out);
            g->ops->timeout(g->replica, h->now, &out);
            group_execute(g, &out, span_of(NULL, 0), 0);
            group_count_campaign(g);  // It may have waited in between, which is no change of role.
        }
        group_timer_update(g);
        if (g->deadline <= h->now) {
            host_timer_set(g, h->now + 1000000);  // Held back: looked at again in a millisecond.
        }
    }
}

// Commits that nothing carried, groups that were unknown elsewhere: their time has come.
static void delayed_run(struct host *h)
{
    while (!list_is_empty(&h->news)) {
        struct group_work *w = list_entry(h->news.next, struct group_work, news);
        if (w->news_due > h->now) {
            break;
        }
        list_remove(&w->news);
        group_ready(w->group, GROUP_SEND | GROUP_NEWS);
    }
    while (!list_is_empty(&h->retries)) {
        struct retry *r = list_entry(h->retries.next, struct retry, link);
        if (r->due > h->now) {
            break;
        }
        list_remove(&r->link);
        map_remove(&h->retry_map, retry_key(h, r->group, r->node, r->is_snapshot));
        struct group *g = map_get(&h->map, r->group);
        if (g && !group_is_gone(g)) {
            struct consensus_out out;
            consensus_out_reset(&out);
            if (r->is_snapshot) {
                g->ops->snapshot_ended(g->replica, r->replica, false, 0, h->now, &out);
            } else {
                g->ops->link_reset(g->replica, r->node, h->now, &out);
            }
            group_execute(g, &out, span_of(NULL, 0), 0);
            group_ready(g, GROUP_SEND);
        }
        free(r);
    }
}

static void group_run(struct group *g)
{
    const uint16_t flags = g->flags;
    g->flags &= (uint16_t)~(GROUP_APPLY | GROUP_SEND | GROUP_NEWS | GROUP_ROLE);
    if (flags & GROUP_ROLE) {
        struct consensus_status st;
        g->ops->status(g->replica, &st);
        g->fsm->role(g->fsm_ctx, &st);
    }
    if ((flags & GROUP_APPLY) && !group_is_gone(g)) {
        host_apply_group(g);
    }
    if ((flags & GROUP_SEND) && !group_is_gone(g)) {
        host_send_group(g, (flags & GROUP_NEWS) != 0);
    }
    group_rest(g);
}

// Peers with room again: the entry that goes in pieces, groups that waited.
static void peers_run(struct host *h)
{
    list_each(i, &h->peers) {
        struct peer *p = list_entry(i, struct peer, link);
        if (p->fragment.group) {
            host_fragment_run(h, p);
        }
        if (p->is_woken || host_blocked_large_due(h, p)) {
            p->is_woken = false;
            host_blocked_retry(h, p);
        }
    }
}

static void ready_run(struct host *h)
{
    peers_run(h);
    int budget = HOST_READY_BATCH;
    for (int round = 0; round < TURN_ROUNDS && budget > 0 && !list_is_empty(&h->ready); round++) {
        struct list now;
        list_init(&now);
        list_splice(&now, &h->ready);
        struct list *l;
        while (budget-- > 0 && (l = list_pop(&now)) != NULL) {
            struct group *g = list_entry(l, struct group, ready);
            group_ref(g);  // A state machine may remove its own group.
            group_run(g);
            group_unref(g);
        }
        list_splice(&now, &h->ready);  // What the turn has no time for goes first in the next one.
        list_splice(&h->ready, &now);
        peers_run(h);
    }
}

static void garbage_free(struct host *h)
{
    while (h->garbage) {
        struct garbage *x = h->garbage;
        h->garbage = x->next;
        free(x->ptr);
        block_release(x->block);
        free(x);
    }
}

// When the host wants to run again, if nothing comes in before.
static uint64_t next_due(struct host *h, bool is_more, uint64_t snapshots_due)
{
    if (is_more || host_has_wakes(h) || !list_is_empty(&h->ready) || !list_is_empty(&h->reads_done) || !list_is_empty(&h->dirty)) {
        return h->now;
    }
    uint64_t due = snapshots_due;
    const uint64_t idle_at = h->wrote_at + HOST_IDLE_NS;
    due = idle_at > h->now && idle_at < due ? idle_at : due;
    const uint64_t timer = host_timer_next(h);
    due = timer < due ? timer : due;
    if (!list_is_empty(&h->news)) {
        const uint64_t t = list_entry(h->news.next, struct group_work, news)->news_due;
        due = t < due ? t : due;
    }
    if (!list_is_empty(&h->retries)) {
        const uint64_t t = list_entry(h->retries.next, struct retry, link)->due;
        due = t < due ? t : due;
    }
    return due > h->now ? due : h->now;
}

// What was kept for use again. Where a storm left much of it, each piece holds a page of memory.
static void pools_free(struct host *h)
{
    while (!list_is_empty(&h->note_pool)) {
        free(list_entry(list_pop(&h->note_pool), struct note, base.link));
    }
    while (!list_is_empty(&h->work_pool)) {
        free(list_entry(list_pop(&h->work_pool), struct group_work, dirty));
    }
    h->work_pool_count = 0;
    while (h->gated_pool) {
        struct gated *m = h->gated_pool;
        h->gated_pool = m->next;
        free(m);
    }
}

uint64_t host_turn(struct host *h)
{
    h->is_now_known = false;
    (void)host_now(h);
    if (h->is_failed) {
        return UINT64_MAX;
    }
    timers_run(h);
    bool is_more = host_liveness_turn(h);
    delayed_run(h);
    const uint64_t snapshots_due = host_snapshot_turn(h);
    ready_run(h);
    host_wakes_run(h);
    host_read_answer(h);

    list_each(i, &h->peers) {
        host_frame_flush(h, list_entry(i, struct peer, link));
    }
    struct list notes, large_notes;
    list_init(&notes);
    list_init(&large_notes);
    notes_collect(h, &notes, &large_notes);
    h->wrote_at = list_is_empty(&notes) && list_is_empty(&large_notes) ? h->wrote_at : h->now;
    const bool is_idle = h->now >= h->wrote_at + HOST_IDLE_NS;
    if (is_idle) {
        pools_free(h);
    }
    store_worker_idle(h->store, is_idle);
    store_worker_flush(h->store, &notes, &large_notes);
    assert(list_is_empty(&notes) && list_is_empty(&large_notes));
    h->config.net->flush(h->config.net);
    garbage_free(h);

    const uint64_t tidy_due = store_worker_tidy(h->store, h->now);
    const uint64_t due = next_due(h, is_more, snapshots_due < tidy_due ? snapshots_due : tidy_due);
    h->is_now_known = false;
    return due;
}

// ---- upcalls of the net --------------------------------------------------------------------------------------------

static void on_frame(void *ctx, uint32_t node, enum net_lane lane, const struct frame *f)
{
    host_receive(ctx, node, lane, f);
}

static void on_reset(void *ctx, uint32_t node, enum net_lane lane)
{
    struct host *h = ctx;
    struct peer *p = host_peer(h, node);
    if (lane == LANE_LOG) {
        host_frame_forget(p);
        host_liveness_reset(h, p);
    } else if (lane == LANE_BULK) {
        host_snapshot_link(h, node, false);
    }
    list_each(i, &h->watchers) {
        struct host_watcher *w = list_entry(i, struct host_watcher, link);
        if (w->lane_reset) {
            w->lane_reset(w->ctx, node, lane);
        }
    }
}

static void on_writable(void *ctx, uint32_t node, enum net_lane lane)
{
    struct host *h = ctx;
    if (lane == LANE_LOG) {
        host_peer(h, node)->is_woken = true;
    }
    list_each(i, &h->watchers) {
        struct host_watcher *w = list_entry(i, struct host_watcher, link);
        if (w->lane_writable) {
            w->lane_writable(w->ctx, node, lane);
        }
    }
}

static void on_node_state(void *ctx, uint32_t node, enum node_verdict verdict, uint64_t incarnation)
{
    struct host *h = ctx;
    host_liveness_verdict(h, host_peer(h, node), verdict, incarnation);
    list_each(i, &h->watchers) {
        struct host_watcher *w = list_entry(i, struct host_watcher, link);
        if (w->node_state) {
            w->node_state(w->ctx, node, verdict, incarnation);
        }
    }
}

const struct net_upcalls *host_net_upcalls(struct host *h)
{
    return &h->upcalls;
}

void host_on_frames(struct host *h, uint16_t type_first, uint16_t type_last, host_frame_fn *fn, void *ctx)
{
    assert(h->handlers_count < HOST_HANDLERS);
    assert(type_first <= type_last);
    h->handlers[h->handlers_count++] = (struct handler){.first = type_first, .last = type_last, .fn = fn, .ctx = ctx};
}

void host_watch(struct host *h, struct host_watcher *w)
{
    list_add_tail(&h->watchers, &w->link);
}

bool host_node_is_alive(const struct host *h, uint32_t node_id)
{
    if (node_id == h->config.node_id) {
        return true;
    }
    const struct peer *p = map_get(&h->peer_map, node_id);
    return p && p->is_known && p->verdict == NODE_ALIVE;
}

struct net *host_net(const struct host *h)
{
    return h->config.net;
}

bool host_is_failed(const struct host *h)
{
    return h->is_failed;
}

// ---- hooks of the store --------------------------------------------------------------------------------------------

static void hook_submit(void *ctx, struct wal_submission *s)
{
    struct host *h = ctx;
    h->config.wal_submit(h->config.wal_submit_ctx, s);
}

static bool hook_snapshot_begin(void *ctx, uint64_t group, struct store_snapshot_source *out)
{
    struct group *g = host_group_find(ctx, group);
    return g && host_snapshot_begin(g, out);
}

static uint64_t hook_applied(void *ctx, uint64_t group)
{
    struct group *g = host_group_find(ctx, group);
    return g != NULL ? g->handed : UINT64_MAX;
}

static void hook_snapshot_taken(void *ctx, uint64_t group, uint64_t index, uint64_t term)
{
    struct group *g = host_group_find(ctx, group);
    if (g && !group_is_gone(g)) {
        g->ops->snapshot_taken(g->replica, index, term);
    }
}

static void hook_damaged(void *ctx, uint64_t group, enum rc rc)
{
    (void)rc;  // The store has told of it.
    struct group *g = host_group_find(ctx, group);
    if (g != NULL) {
        group_lost(g);
    }
}

static void hook_wal_retired(void *ctx, uint64_t seq)
{
    struct host *h = ctx;
    if (h->config.wal_retired) {
        h->config.wal_retired(h->config.ctx, seq);
    }
}

// ---- life ----------------------------------------------------------------------------------------------------------

struct host *host_create(const struct host_config *config)
{
    assert(config->node_id != 0);
    assert(config->clock && config->store && config->net && config->cold && config->wal_submit);
    struct host *h = mem_zalloc(sizeof(*h));
    h->config = *config;
    rng_seed(&h->rng, config->rng_seed);
    h->upcalls = (struct net_upcalls){
        .frame = on_frame, .reset = on_reset, .writable = on_writable, .node_state = on_node_state, .ctx = h};
    struct list *lists[] = {&h->groups,     &h->ready,      &h->dirty,         &h->news,  &h->no_leader, &h->retries,
                            &h->reads_done, &h->snap_sends, &h->snap_receives, &h->peers, &h->note_pool, &h->work_pool,
                            &h->watchers,   &h->wakes,     &h->wakes_asked};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        list_init(lists[i]);
    }
    map_init_keyed(&h->map);
    map_init_u64(&h->peer_map);
    map_init_u64(&h->retry_map);
    pb_arena_init(&h->arena);
    buf_init(&h->scratch);
    const struct store_hooks hooks = {
        .submit = hook_submit,
        .snapshot_begin = hook_snapshot_begin,
        .snapshot_taken = hook_snapshot_taken,
        .applied = hook_applied,
        .wal_retired = hook_wal_retired,
        .damaged = hook_damaged,
        .removal = config->removal,
        .ctx = h,
    };
    h->store = store_worker_bind(config->store, config->worker, config->cold, &hooks);
    return h;
}

static void peer_destroy(struct host *h, struct peer *p)
{
    buf_deinit(&p->append);
    buf_deinit(&p->votes);
    block_release(p->fragment.block);
    for (uint32_t k = 0; k < FRAME_WORKERS_MAX; k++) {
        buf_deinit(&p->inflow[k].assembly.bytes);
    }
    free(p->acks);
    list_remove(&p->link);
    map_remove(&h->peer_map, p->node);
    free(p);
}

void host_destroy(struct host *h)
{
    while (!list_is_empty(&h->groups)) {
        struct list *l = h->groups.next;
        bool is_marker = false;
        list_each(i, &h->peers) {
            is_marker = is_marker || l == &list_entry(i, struct peer, link)->marker;
        }
        if (is_marker) {
            list_remove(l);
            continue;
        }
        host_group_remove(list_entry(l, struct group, all), false);
    }
    host_snapshot_destroy(h);
    while (!list_is_empty(&h->retries)) {
        free(list_entry(list_pop(&h->retries), struct retry, link));
    }
    host_read_answer(h);
    while (!list_is_empty(&h->peers)) {
        peer_destroy(h, list_entry(h->peers.next, struct peer, link));
    }
    pools_free(h);
    garbage_free(h);
    pb_arena_deinit(&h->arena);
    buf_deinit(&h->scratch);
    map_deinit(&h->map);
    map_deinit(&h->peer_map);
    map_deinit(&h->retry_map);
    free(h->heap);
    free(h);
}

void host_metrics(const struct host *h, struct host_metrics *out)
{
    *out = h->metrics;
    out->groups = map_count(&h->map);
    out->leaders = 0;
    out->uncommitted_bytes = 0;
    list_each(i, &h->peers) {
        const struct peer *p = list_entry(i, struct peer, link);
        if (p->node == h->config.node_id) {
            list_each(j, &p->by_leader) {
                out->leaders++;
                const struct group *g = list_entry(j, struct group, by_leader);
                out->uncommitted_bytes += g->work ? g->work->uncommitted : 0;
            }
        }
    }
    out->memtable_bytes = store_worker_memory(h->store);
}
