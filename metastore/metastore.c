// SPDX-License-Identifier: Apache-2.0
// The metadata store as the rest of the node sees it (metastore.h): submissions, fences, changes to every
// worker.
//
// Who is where. Worker 0 has the raft group, the table of requests that are under way, and the state
// machine's front (meta_fsm.c); the meta thread has the tree. Another worker's request travels to worker 0 by
// post and its answer comes back the same way, behind the changes it depends on.
//
// A command's way to the leader and back, and a fence's: requests.c.
//
// Subscribers are told a tree only if it is known to be no accident: a store that is new or was damaged is
// proven by a fence first (law 3, CR-05). A change is told to all workers before any request is answered
// whose index covers it.
#include "metastore/metastore_internal.h"

#define COMMIT_NS (50ull * MS)  // Decision 12.
#define PROOF_RETRY_NS (200ull * MS)
#define PROOF_LOG_NS (10000ull * MS)

void metastore_post(struct metastore *m, uint32_t worker, void (*fn)(void *), void *arg)
{
    if (worker == 0) {
        fn(arg);  // Posts go out from worker 0 only, but for submissions, which ask for another one.
    } else {
        m->config.post(m->config.post_ctx, worker, fn, arg);
    }
}

// ---- changes to the workers -------------------------------------------------------------------------------

enum { DELIVER_CHANGES = 1000 };  // Told in one go: a whole tree must not keep a worker from its sockets.

struct delivery {
    struct list link;
    struct metastore *m;
    struct feed *feed;
    uint32_t worker;
    size_t at;  // Bytes of the changes that were told.
};

static void delivery_free(struct delivery *d)
{
    list_remove(&d->link);
    feed_drop(d->feed);
    free(d);
}

// Tells at most *budget changes. True: all have been told.
static bool tell_changes(const struct meta_subscriber *s, struct delivery *d, uint32_t *budget)
{
    const struct buf *changes = &d->feed->changes;
    struct reader r = reader_of(span_of(changes->ptr + d->at, changes->len - d->at));
    struct meta_path path;
    struct meta_change change;
    while (*budget > 0 && change_next(&r, &change, &path) == RC_OK) {
        if (s->change) {
            s->change(s->ctx, &change);
        }
        (*budget)--;
    }
    d->at = changes->len - reader_left(&r);
    return d->at == changes->len;
}

static void delivery_done(struct worker *w, struct delivery *d)
{
    const struct feed *f = d->feed;
    if (w->has_subscriber) {
        const struct meta_subscriber *s = &w->subscriber;
        w->seen = f->index > w->seen ? f->index : w->seen;
        if (f->is_load && s->loaded) {
            s->loaded(s->ctx, f->index);
        } else if (!f->is_load && s->batch_end) {
            s->batch_end(s->ctx, f->index);
        }
    }
    w->is_loaded |= f->is_load;
    w->seen = f->index > w->seen ? f->index : w->seen;
    w->numbers = f->numbers > w->numbers ? f->numbers : w->numbers;
    delivery_free(d);
    list_each(l, &w->waiting)
    {
        struct request *r = list_entry(l, struct request, link);
        if (r->result.index <= w->seen) {
            list_remove(&r->link);
            r->done(r->ctx, &r->result);
            request_free(r);
        }
    }
}

// Works the worker's deliveries off, in order; goes on at its next turn if there are many changes.
static void deliver_more(void *arg)
{
    struct delivery *first = arg;
    struct metastore *m = first->m;
    const uint32_t worker = first->worker;
    struct worker *w = &m->workers[worker];
    uint32_t budget = m->config.post ? DELIVER_CHANGES : UINT32_MAX;
    while (!list_is_empty(&w->deliveries)) {
        struct delivery *d = list_entry(w->deliveries.next, struct delivery, link);
        const struct meta_subscriber *s = &w->subscriber;
        if (w->has_subscriber && d->at == 0 && d->feed->is_reset && w->is_loaded && s->reset) {
            s->reset(s->ctx);
        }
        if (w->has_subscriber && !tell_changes(s, d, &budget)) {
            m->config.post(m->config.post_ctx, worker, deliver_more, d);
            return;
        }
        delivery_done(w, d);
    }
}

static void deliver(void *arg)
{
    struct delivery *d = arg;
    struct list *all = &d->m->workers[d->worker].deliveries;
    const bool is_first = list_is_empty(all);
    list_add_tail(all, &d->link);
    if (is_first) {
        deliver_more(d);
    }
}

static void broadcast(struct metastore *m, struct feed *f)
{
    atomic_fetch_add_explicit(&f->shared_refs, m->config.workers, memory_order_relaxed);
    for (uint32_t i = 0; i < m->config.workers; i++) {
        struct delivery *d = mem_alloc(sizeof(*d));
        *d = (struct delivery){.m = m, .feed = f, .worker = i};
        metastore_post(m, i, deliver, d);
    }
}

// ---- jobs come back ---------------------------------------------------------------------------------------

static void tell_events(struct metastore *m, const struct buf *events)
{
    struct reader r = reader_of(buf_span(events));
    while (reader_left(&r) > 0) {
        struct meta_path path;
        struct meta_trigger_event e = {
            .seq = reader_u64(&r), .trigger_id = reader_u32(&r), .event = (enum meta_event)reader_u8(&r)};
        const enum rc rc = path_decode(&r, &path);
        assert(rc == RC_OK);
        e.path = &path;
        e.payload = reader_str32(&r);
        assert(!r.is_bad);
        if (m->is_leader && e.seq > m->events_told) {
            m->events_told = e.seq;
            m->on_trigger(m->on_trigger_ctx, &e);
        }
    }
}

static void report_applied(struct metastore *m, uint64_t index)
{
    struct consensus_status st;
    group_status(m->group, &st);
    if (index > st.applied) {  // Else a snapshot was installed meanwhile.
        group_applied(m->group, index);
    }
}

static void on_job(void *ctx, struct meta_job *j)
{
    struct metastore *m = ctx;
    m->applied = j->index;
    m->clock_ms = j->clock_ms > m->clock_ms ? j->clock_ms : m->clock_ms;
    m->nodes = j->nodes;
    m->bytes = j->bytes;
    if (!j->has_uncommitted) {
        m->uncommitted_since = 0;
    } else if (m->uncommitted_since == 0) {
        m->uncommitted_since = metastore_now(m);
    }
    if (j->feed && (m->is_loaded || j->feed->is_load)) {
        broadcast(m, j->feed);
    }
    if (j->feed && j->feed->is_load) {
        m->is_loaded = true;
        atomic_store_explicit(&m->shared_is_damaged, false, memory_order_release);
    }
    if (j->kind == META_JOB_RESTORE_END && !j->is_aborted) {
        m->is_kicked = true;  // Results of commands before the snapshot are in its dedup table: ask again.
    }
    requests_applied(m, &j->results);
    if (j->kind == META_JOB_APPLY && m->group) {
        report_applied(m, j->last);
    }
    if (j->kind == META_JOB_EVENTS) {
        tell_events(m, &j->events);
    } else if (j->has_events && m->is_leader && m->on_trigger) {
        meta_fsm_list_events(&m->fsm, m->events_told);
    }
    requests_answer(m);
}

static void on_role(void *ctx, const struct consensus_status *st)
{
    struct metastore *m = ctx;
    const bool is_leader = st->role == ROLE_LEADER;
    if (is_leader && !m->is_leader) {
        requests_stamps_begin(m);
        m->events_told = 0;
        if (m->on_trigger) {
            meta_fsm_list_events(&m->fsm, 0);
        }
    }
    if (is_leader != m->is_leader || st->term != m->term || st->leader_node != m->leader_node) {
        m->is_kicked = true;  // In the next turn: this is called from within the host.
    }
    m->is_leader = is_leader;
    m->term = st->term;
    m->leader_node = st->leader_node;
}

static void on_lane_reset(void *ctx, uint32_t node, enum net_lane lane)
{
    struct metastore *m = ctx;
    (void)node;
    if (lane == LANE_CONTROL) {
        m->is_kicked = true;
    }
}

// ---- the proof --------------------------------------------------------------------------------------------

void metastore_proof_done(struct metastore *m, enum rc rc)
{
    if (rc == RC_OK) {
        meta_fsm_load(&m->fsm);
        return;
    }
    const uint64_t at = metastore_now(m);
    m->proof_at = at + PROOF_RETRY_NS;
    if (at >= m->proof_log_at) {
        m->proof_log_at = at + PROOF_LOG_NS;
        log_notice("metadata store: waiting for a majority that knows what exists (%s)", rc_text(rc));
    }
}

static void proof_turn(struct metastore *m, uint64_t at)
{
    if (m->group && at >= m->proof_at) {
        m->proof_at = UINT64_MAX;
        request_start(request_create(m, 0, REQUEST_PROOF, TIMEOUT_MAX_MS, NULL, NULL));
    }
}

// ---- turns ------------------------------------------------------------------------------------------------

static void inline_submit(struct exec *exec, struct job *job)
{
    struct inline_exec *e = container_of(exec, struct inline_exec, exec);
    job->run(job);
    list_add_tail(&e->done, &job->link);
}

static void inline_turn(struct metastore *m)
{
    struct list *l;
    while ((l = list_pop(&m->inline_exec.done)) != NULL) {
        struct job *job = list_entry(l, struct job, link);
        job->done(job);
    }
}

uint64_t metastore_turn(struct metastore *m)
{
    const uint64_t at = metastore_now(m);
    m->turn++;
    inline_turn(m);
    if (m->group) {
        struct consensus_status st;
        group_status(m->group, &st);
        metastore_commit_heard(m, st.commit);
    }
    list_each(i, &m->sent)
    {
        struct sent *s = list_entry(i, struct sent, link);
        if (s->turn + 2 <= m->turn) {  // A whole turn, with its flush, lies between.
            list_remove(&s->link);
            buf_deinit(&s->bytes);
            free(s);
        }
    }
    proof_turn(m, at);
    requests_turn(m, at);
    if (m->uncommitted_since != 0 && at >= m->uncommitted_since + COMMIT_NS) {
        m->uncommitted_since = at;  // Once per period; the job's return says how it stands.
        meta_fsm_submit(&m->fsm, META_JOB_COMMIT);
    }
    requests_answer(m);
    inline_turn(m);
    uint64_t due = m->due;
    if (m->uncommitted_since != 0 && m->uncommitted_since + COMMIT_NS < due) {
        due = m->uncommitted_since + COMMIT_NS;
    }
    if (m->group && m->proof_at < due) {
        due = m->proof_at;
    }
    return list_is_empty(&m->ended) && list_is_empty(&m->inline_exec.done) ? due : at;
}

// ---- life -------------------------------------------------------------------------------------------------

enum rc metastore_open(const struct metastore_config *config, struct metastore **out)
{
    assert(config->workers >= 1 && config->node_id > 0);
    assert(config->workers == 1 || config->post);
    struct metastore *m = mem_zalloc(sizeof(*m));
    m->config = *config;
    m->config.dir = m->dir = config->dir ? mem_strndup(config->dir, strlen(config->dir)) : NULL;
    m->config.map_bytes = config->map_bytes ? config->map_bytes : 16ull << 30;
    m->inline_exec.exec.submit = inline_submit;
    list_init(&m->inline_exec.done);
    list_init(&m->ended);
    list_init(&m->sent);
    map_init_u64(&m->requests);
    m->due = m->proof_at = UINT64_MAX;
    // Another one than any earlier process's on this node.
    m->session =
        hash_u64((uint64_t)clock_wall_ms(config->clock) + hash_u64(metastore_now(m) + config->node_id));
    const struct meta_fsm_config fsm = {
        .dir = m->dir,
        .map_bytes = m->config.map_bytes,
        .exec = config->meta ? config->meta : &m->inline_exec.exec,
        .node_id = config->node_id,
        .session = m->session,
        .done = on_job,
        .role = on_role,
        .ctx = m,
    };
    bool is_damaged;
    bool is_new;
    const enum rc rc = meta_fsm_open(&m->fsm, &fsm, &is_damaged, &is_new);
    if (rc != RC_OK) {
        map_deinit(&m->requests);
        free(m->dir);
        free(m);
        return rc;
    }
    atomic_init(&m->shared_is_damaged, is_damaged);
    atomic_init(&m->shared_commit, 0);
    if (is_damaged) {
        log_error("metadata store: the store on disk is damaged; it is rebuilt from the log and serves "
                  "nothing before");
    }
    m->proof_at = is_new ? 0 : UINT64_MAX;
    m->applied = m->fsm.tree.meta.applied_index;
    m->clock_ms = m->fsm.tree.meta.clock_ms;
    m->nodes = m->fsm.tree.meta.nodes;
    m->bytes = m->fsm.bytes;
    m->workers = mem_zalloc(config->workers * sizeof(*m->workers));
    for (uint32_t i = 0; i < config->workers; i++) {
        list_init(&m->workers[i].waiting);
        list_init(&m->workers[i].deliveries);
    }
    *out = m;
    return RC_OK;
}

void metastore_flush(struct metastore *m)
{
    meta_fsm_submit(&m->fsm, META_JOB_COMMIT);
}

void metastore_close(struct metastore *m)
{
    m->group = NULL;  // Its host may be gone: jobs that come back now tell it nothing.
    inline_turn(m);
    uint32_t pos = 0;
    struct request *r;
    while ((r = map_next(&m->requests, &pos, NULL, NULL)) != NULL) {
        request_free(r);  // The process ends: nobody is left to be told.
    }
    struct list *l;
    while ((l = list_pop(&m->ended)) != NULL) {
        request_free(list_entry(l, struct request, link));
    }
    for (uint32_t i = 0; i < m->config.workers; i++) {
        while ((l = list_pop(&m->workers[i].waiting)) != NULL) {
            request_free(list_entry(l, struct request, link));
        }
        while (!list_is_empty(&m->workers[i].deliveries)) {
            delivery_free(list_entry(m->workers[i].deliveries.next, struct delivery, link));
        }
    }
    while ((l = list_pop(&m->sent)) != NULL) {
        struct sent *s = list_entry(l, struct sent, link);
        buf_deinit(&s->bytes);
        free(s);
    }
    map_deinit(&m->requests);
    meta_fsm_close(&m->fsm);
    free(m->workers);
    free(m->dir);
    free(m);
}

void metastore_subscribe(struct metastore *m, uint32_t worker, const struct meta_subscriber *s)
{
    assert(worker < m->config.workers && !m->workers[worker].has_subscriber);
    m->workers[worker].subscriber = *s;
    m->workers[worker].has_subscriber = true;
}

void metastore_on_trigger(struct metastore *m, void (*fn)(void *ctx, const struct meta_trigger_event *e),
                          void *ctx)
{
    m->on_trigger = fn;
    m->on_trigger_ctx = ctx;
    if (m->is_leader) {
        meta_fsm_list_events(&m->fsm, m->events_told);
    }
}

enum rc metastore_start(struct metastore *m, struct host *h, uint64_t replica_id,
                        const struct config *initial, const struct store_group *recovered,
                        bool campaign_at_once)
{
    assert(!m->group);
    m->host = h;
    host_on_frames(h, FRAME_META, FRAME_META_REPLY, requests_on_frame, m);
    m->watcher = (struct host_watcher){.lane_reset = on_lane_reset, .ctx = m};
    host_watch(h, &m->watcher);
    const uint64_t behind = recovered ? recovered->snapshot_index : 0;
    if (!recovered && m->applied > 0) {
        // A replica without a past beside a store with one: of a former life of this node, and not to be
        // mixed with the new one.
        log_warning("metadata store: what is here belongs to no log of this node; it begins anew");
        meta_fsm_submit(&m->fsm, META_JOB_FRESH);
        m->proof_at = 0;
    } else if (m->proof_at == UINT64_MAX && m->applied >= behind) {
        meta_fsm_load(&m->fsm);
    } else if (m->proof_at == UINT64_MAX) {
        m->proof_at = 0;  // The snapshot that is being loaded is newer: told when it is known to be whole.
    }
    const struct group_spec spec = {
        .group = META_GROUP_ID,
        .engine = "raft",
        .replica_id = replica_id,
        .initial = *initial,
        .recovered = recovered,
        .fsm = &meta_fsm_ops,
        .fsm_ctx = &m->fsm,
        .campaign_at_once = campaign_at_once,
    };
    TRY(host_group_add(h, &spec, &m->group));
    // Who was told that something exists may use it through another node at once (decision 16).
    group_tell_at_once(m->group);
    return RC_OK;
}

struct group *metastore_group(struct metastore *m)
{
    return m->group;
}

void metastore_status(const struct metastore *m, struct metastore_status *out)
{
    *out = (struct metastore_status){
        .applied = m->applied,
        .nodes = m->nodes,
        .bytes = m->bytes,
        .bytes_max = m->config.map_bytes,
        .requests = map_count(&m->requests),
        .is_loaded = m->is_loaded,
    };
}

// ---- what is known ----------------------------------------------------------------------------------------

void metastore_commit_heard(struct metastore *m, uint64_t commit)
{
    uint64_t known = atomic_load_explicit(&m->shared_commit, memory_order_relaxed);
    while (commit > known && !atomic_compare_exchange_weak_explicit(&m->shared_commit, &known, commit,
                                                                    memory_order_relaxed, memory_order_relaxed)) {
    }
}

bool metastore_is_current(struct metastore *m, uint32_t worker)
{
    const struct worker *w = &m->workers[worker];
    return w->is_loaded && w->seen >= atomic_load_explicit(&m->shared_commit, memory_order_relaxed);
}

uint64_t metastore_seen(struct metastore *m, uint32_t worker)
{
    return m->workers[worker].seen;
}

uint64_t metastore_numbers(struct metastore *m, uint32_t worker)
{
    return m->workers[worker].numbers;
}

bool metastore_is_damaged(const struct metastore *m)
{
    return atomic_load_explicit(&m->shared_is_damaged, memory_order_acquire);
}

bool metastore_is_short(void)
{
    return kv_lmdb_is_short();
}

void metastore_stop_waiting(void)
{
    kv_lmdb_stop_waiting();
}
