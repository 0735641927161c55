// SPDX-License-Identifier: Apache-2.0
// Requests to the metadata store: commands and fences, from any worker to the leader and back (metastore.h).
//
// A command's way. The request carries a reference (node, session of this process, counter). Worker 0
// proposes it if this node leads, else sends it to the leader, and again after a new leader, a reset lane, a
// refusal or some silence: the tree answers a repeat with the first result (TREE_DEDUP_MS). The result does
// not come back from the leader: this node applies the command like everybody else, recognises its reference,
// and then its projections are at the command's index, too. What comes back in FRAME_META_REPLY is only why
// the leader would not take it.
//
// A fence's way. A read barrier at the leader (CL-14: one that was deposed cannot pass it), then wait until
// its index is applied here. A deadline ends both; then nothing is known of a command (decision 18).
//
// Invariants: `done` runs once per request, on its worker, never inside metastore_submit or _fence, and not
// before that worker's subscription has seen the index. While the table is walked nothing is told (callbacks
// may submit).
#include "metastore/metastore_internal.h"
#include "proto/cluster_meta.pb-c.h"

#define RESEND_SILENCE_NS (2000ull * MS)  // No result of a command that the leader took, or no answer at all.
#define RESEND_SOON_NS (20ull * MS)       // No leader known, or it would not take it now.

// ---- answers ----------------------------------------------------------------------------------------------

void request_free(struct request *r)
{
    buf_deinit(&r->bytes);
    free(r);
}

// The request's worker.
static void answer_or_wait(struct request *r)
{
    struct worker *w = &r->m->workers[r->worker];
    if (r->result.index > w->seen) {
        list_add_tail(&w->waiting, &r->link);
        return;
    }
    r->done(r->ctx, &r->result);
    request_free(r);
}

static void answer_posted(void *arg)
{
    answer_or_wait(arg);
}

// Worker 0. Ends a request that is in the table; requests_answer tells it.
static void request_end(struct request *r, enum rc rc, uint32_t failed_op, uint64_t index)
{
    struct metastore *m = r->m;
    map_remove(&m->requests, r->counter);
    r->result = (struct meta_result){.rc = rc, .failed_op = failed_op, .index = index};
    list_add_tail(&m->ended, &r->link);
}

void requests_answer(struct metastore *m)
{
    struct list ended;
    list_init(&ended);
    list_splice(&ended, &m->ended);
    struct list *l;
    while ((l = list_pop(&ended)) != NULL) {
        struct request *r = list_entry(l, struct request, link);
        if (r->kind == REQUEST_PROOF) {
            const enum rc rc = r->result.rc;
            request_free(r);
            metastore_proof_done(m, rc);
        } else {
            metastore_post(m, r->worker, answer_posted, r);
        }
    }
}

// Fences that only waited for this index.
static void fences_applied(struct metastore *m)
{
    uint32_t pos = 0;
    struct request *r;
    while ((r = map_next(&m->requests, &pos, NULL, NULL)) != NULL) {
        if (r->wait_index != 0 && r->wait_index <= m->applied) {
            request_end(r, RC_OK, 0, r->wait_index);
        }
    }
}

void requests_applied(struct metastore *m, const struct buf *results)
{
    for (size_t at = 0; at < results->len; at += sizeof(struct tree_result)) {
        struct tree_result result;
        memcpy(&result, results->ptr + at, sizeof(result));
        struct request *r = map_get(&m->requests, result.ref.counter);
        if (r) {
            request_end(r, result.rc, result.failed_op, result.index);
        }
    }
    fences_applied(m);
}

// ---- sending ----------------------------------------------------------------------------------------------

// The stamps go on from what is applied, by this node's monotonic clock: a wall clock that jumps moves nothing (CL-23).
void requests_stamps_begin(struct metastore *m)
{
    const int64_t wall = clock_wall_ms(m->config.clock);
    m->stamp_base_ms = m->clock_ms > 0 ? m->clock_ms : wall > 0 ? (uint64_t)wall : 1;
    m->stamp_base_ns = metastore_now(m);
}

static uint64_t stamp_ms(struct metastore *m)
{
    // The engine may lead, and take a command of another node, before the store is told so.
    if (m->stamp_base_ms == 0) {
        requests_stamps_begin(m);
    }
    return m->stamp_base_ms + (metastore_now(m) - m->stamp_base_ns) / MS;
}

// On the leader's node. RC_NO_SPACE: the map is nearly full, only what frees is taken (decided here, never in
// apply).
static enum rc propose(struct metastore *m, struct span request)
{
    if (m->bytes > m->config.map_bytes / 10 * 9 && !command_only_frees(request)) {
        return RC_NO_SPACE;
    }
    uint8_t head[COMMAND_HEAD_BYTES];
    command_encode_head(head, stamp_ms(m));
    const struct glog_part parts[] = {{head, sizeof(head)}, {request.ptr, request.len}};
    uint64_t index;
    uint64_t term;
    return group_propose(m->group, parts, 2, true, &index, &term);
}

struct barrier {
    struct metastore *m;
    uint64_t counter;  // Of a request here, or
    uint32_t node;     // 0: here. Else who asked,
    uint64_t session;  // and its request.
};

static void reply(struct metastore *m, uint32_t node, uint64_t session, uint64_t request, enum rc rc,
                  uint64_t index, bool is_fence)
{
    Cluster__MetaReply msg = CLUSTER__META_REPLY__INIT;
    msg.session = session;
    msg.request = request;
    msg.rc = rc;
    msg.index = index;
    msg.is_fence = is_fence;
    uint8_t bytes[64];
    const size_t size = cluster__meta_reply__get_packed_size(&msg);
    assert(size <= sizeof(bytes));
    cluster__meta_reply__pack(&msg, bytes);
    struct net *net = host_net(m->host);
    // If it is lost, the asker asks again.
    (void)net->send(net, node, LANE_CONTROL, FRAME_META_REPLY, span_of(bytes, size), NULL, 0, false);
}

// A fence passed (index), or did not (rc).
static void fence_answered(struct metastore *m, uint64_t counter, enum rc rc, uint64_t index)
{
    struct request *r = map_get(&m->requests, counter);
    if (!r || r->kind == REQUEST_COMMAND || r->wait_index != 0) {
        return;
    }
    if (rc != RC_OK) {
        r->last_refusal = rc;
        r->resend_at = metastore_now(m) + RESEND_SOON_NS;
        m->due = r->resend_at < m->due ? r->resend_at : m->due;
        return;
    }
    if (index <= m->applied) {
        request_end(r, RC_OK, 0, index);
    } else {
        r->wait_index = index;
    }
}

static void barrier_done(void *ctx, enum rc rc)
{
    struct barrier *b = ctx;
    struct metastore *m = b->m;
    struct consensus_status st = {0};
    if (rc == RC_OK) {
        group_status(m->group, &st);
    }
    if (rc != RC_SHUTDOWN) {
        if (b->node == 0) {
            fence_answered(m, b->counter, rc, st.applied);
        } else {
            reply(m, b->node, b->session, b->counter, rc, st.applied, true);
        }
    }
    free(b);
    requests_answer(m);
}

static void barrier_start(struct metastore *m, uint64_t counter, uint32_t node, uint64_t session,
                          uint64_t timeout_ns)
{
    struct barrier *b = mem_alloc(sizeof(*b));
    *b = (struct barrier){.m = m, .counter = counter, .node = node, .session = session};
    group_read_barrier(m->group, timeout_ns, barrier_done, b);
}

static enum rc send_to(struct metastore *m, struct request *r, uint32_t node, uint64_t at)
{
    Cluster__MetaRequest msg = CLUSTER__META_REQUEST__INIT;
    msg.kind = r->kind == REQUEST_COMMAND ? CLUSTER__META_REQUEST__KIND__COMMAND
                                          : CLUSTER__META_REQUEST__KIND__FENCE;
    msg.session = m->session;
    msg.request = r->counter;
    msg.timeout_ms = (uint32_t)((r->deadline - at) / MS) + 1;
    uint8_t bytes[64];
    const size_t size = cluster__meta_request__get_packed_size(&msg);
    assert(size <= sizeof(bytes));
    cluster__meta_request__pack(&msg, bytes);
    struct net *net = host_net(m->host);
    if (r->kind != REQUEST_COMMAND) {
        return net->send(net, node, LANE_CONTROL, FRAME_META, span_of(bytes, size), NULL, 0, false);
    }
    // The net borrows the range until its flush, the request may end before: the net gets a copy of its own.
    struct sent *s = mem_zalloc(sizeof(*s));
    s->turn = m->turn;
    buf_span_bytes(&s->bytes, buf_span(&r->bytes));
    list_add_tail(&m->sent, &s->link);
    const struct iovec raw = {.iov_base = s->bytes.ptr, .iov_len = s->bytes.len};
    return net->send(net, node, LANE_CONTROL, FRAME_META, span_of(bytes, size), &raw, 1, true);
}

static bool is_final(enum rc rc)
{
    return rc_category(rc) == RC_CATEGORY_CLIENT || rc == RC_NO_SPACE;
}

// Tries to get the request to the leader; sets when to try again.
static void request_try(struct metastore *m, struct request *r, uint64_t at)
{
    struct consensus_status st;
    group_status(m->group, &st);
    enum rc rc = RC_NOT_LEADER;
    if (st.role == ROLE_LEADER) {
        if (r->kind == REQUEST_COMMAND) {
            rc = propose(m, buf_span(&r->bytes));
        } else {
            barrier_start(m, r->counter, 0, 0, r->deadline - at);
            rc = RC_OK;
        }
    } else if (st.leader_node != 0 && st.leader_node != m->config.node_id) {
        rc = send_to(m, r, st.leader_node, at);
    }
    if (is_final(rc)) {
        request_end(r, rc, 0, 0);
        return;
    }
    r->last_refusal = rc;
    r->resend_at = at + (rc == RC_OK ? RESEND_SILENCE_NS : RESEND_SOON_NS);
    const uint64_t next = r->resend_at < r->deadline ? r->resend_at : r->deadline;
    m->due = next < m->due ? next : m->due;
}

static bool has_majority(const struct metastore *m)
{
    struct consensus_status st;
    group_status(m->group, &st);
    uint32_t voters = 0;
    uint32_t alive = 0;
    for (uint32_t i = 0; i < st.config->count; i++) {
        const struct member *member = &st.config->members[i];
        if (member->is_voter) {
            voters++;
            alive += member->node_id == m->config.node_id || host_node_is_alive(m->host, member->node_id);
        }
    }
    return alive > voters / 2;
}

static enum rc timeout_rc(const struct metastore *m, const struct request *r)
{
    if (metastore_is_damaged(m)) {
        return RC_CORRUPT;
    }
    if (!m->group || !has_majority(m)) {
        return RC_NO_QUORUM;
    }
    return r->last_refusal == RC_NO_QUORUM ? RC_NO_QUORUM : RC_TIMEOUT;
}

void requests_turn(struct metastore *m, uint64_t at)
{
    if (!m->is_kicked && at < m->due) {
        return;
    }
    const bool is_kicked = m->is_kicked;
    m->is_kicked = false;
    m->due = UINT64_MAX;
    uint32_t pos = 0;
    struct request *r;
    while ((r = map_next(&m->requests, &pos, NULL, NULL)) != NULL) {
        if (at >= r->deadline) {
            request_end(r, timeout_rc(m, r), 0, 0);
        } else if (m->group && r->wait_index == 0 && (is_kicked || at >= r->resend_at)) {
            request_try(m, r, at);
        } else {
            const bool waits = !m->group || r->wait_index != 0 || r->deadline < r->resend_at;
            const uint64_t next = waits ? r->deadline : r->resend_at;
            m->due = next < m->due ? next : m->due;
        }
    }
}

// ---- frames -----------------------------------------------------------------------------------------------

static void on_request(struct metastore *m, uint32_t node, const struct frame *f)
{
    Cluster__MetaRequest *msg = cluster__meta_request__unpack(NULL, f->envelope.len, f->envelope.ptr);
    if (!msg) {
        return;  // The sender asks again until its deadline; a peer of another version is refused at the
                 // handshake.
    }
    if (msg->kind == CLUSTER__META_REQUEST__KIND__FENCE) {
        const uint32_t timeout = msg->timeout_ms < TIMEOUT_MAX_MS ? msg->timeout_ms : TIMEOUT_MAX_MS;
        barrier_start(m, msg->request, node, msg->session, (uint64_t)timeout * MS);
    } else {
        // It comes from another process: everything is checked again before it can get into the log (law 5).
        enum rc rc = command_validate(f->raw);
        if (rc == RC_OK) {
            rc = propose(m, f->raw);
        }
        reply(m, node, msg->session, msg->request, rc, 0, false);
    }
    cluster__meta_request__free_unpacked(msg, NULL);
}

static void on_reply(struct metastore *m, const struct frame *f)
{
    Cluster__MetaReply *msg = cluster__meta_reply__unpack(NULL, f->envelope.len, f->envelope.ptr);
    if (!msg) {
        return;
    }
    struct request *r =
        msg->session == m->session && msg->rc < RC_COUNT ? map_get(&m->requests, msg->request) : NULL;
    const enum rc rc = (enum rc)msg->rc;
    if (r && msg->is_fence) {
        fence_answered(m, msg->request, rc, msg->index);
    } else if (r && r->kind == REQUEST_COMMAND && rc != RC_OK) {
        if (is_final(rc)) {
            request_end(r, rc, 0, 0);
        } else {
            r->last_refusal = rc;
            r->resend_at = metastore_now(m) + RESEND_SOON_NS;
            m->due = r->resend_at < m->due ? r->resend_at : m->due;
        }
    }
    cluster__meta_reply__free_unpacked(msg, NULL);
}

void requests_on_frame(void *ctx, uint32_t node, enum net_lane lane, const struct frame *f)
{
    struct metastore *m = ctx;
    (void)lane;
    if (!m->group) {
        return;
    }
    if (f->type == FRAME_META) {
        on_request(m, node, f);
    } else if (f->type == FRAME_META_REPLY) {
        on_reply(m, f);
    }
    requests_answer(m);
}

// ---- submitting -------------------------------------------------------------------------------------------

// Worker 0.
void request_start(void *arg)
{
    struct request *r = arg;
    struct metastore *m = r->m;
    const uint64_t at = metastore_now(m);
    r->deadline = at + (uint64_t)r->timeout_ms * MS;
    if (r->result.rc != RC_OK) {  // Refused before it began.
        list_add_tail(&m->ended, &r->link);
        m->due = at;
        return;
    }
    r->counter = ++m->counter;
    if (r->kind == REQUEST_COMMAND) {
        memcpy(r->bytes.ptr + 12, &r->counter, sizeof(r->counter));  // Behind node and session.
    }
    map_put(&m->requests, r->counter, r);
    r->resend_at = at;
    if (m->group) {
        request_try(m, r, at);
    } else {
        m->due = r->deadline < m->due ? r->deadline : m->due;
    }
}

struct request *request_create(struct metastore *m, uint32_t worker, enum request_kind kind,
                               uint32_t timeout_ms, meta_done_fn *done, void *ctx)
{
    struct request *r = mem_zalloc(sizeof(*r));
    list_init(&r->link);
    r->m = m;
    r->kind = kind;
    r->worker = worker;
    r->timeout_ms = timeout_ms < TIMEOUT_MAX_MS ? timeout_ms : TIMEOUT_MAX_MS;
    r->done = done;
    r->ctx = ctx;
    r->last_refusal = RC_OK;
    return r;
}

static void request_hand_over(struct metastore *m, struct request *r)
{
    if (r->worker == 0) {
        request_start(r);
    } else {
        m->config.post(m->config.post_ctx, 0, request_start, r);
    }
}

void metastore_submit(struct metastore *m, uint32_t worker, struct meta_command *c, uint32_t timeout_ms,
                      meta_done_fn *done, void *ctx)
{
    assert(worker < m->config.workers);
    struct request *r = request_create(m, worker, REQUEST_COMMAND, timeout_ms, done, ctx);
    const struct command_ref ref = {.node = m->config.node_id, .session = m->session, .counter = 0};
    command_encode_request(&r->bytes, &ref, c);
    r->result.rc = c->is_invalid ? RC_INVALID : command_validate(buf_span(&r->bytes));
    meta_command_deinit(c);
    request_hand_over(m, r);
}

void metastore_fence(struct metastore *m, uint32_t worker, uint32_t timeout_ms, meta_done_fn *done, void *ctx)
{
    assert(worker < m->config.workers);
    request_hand_over(m, request_create(m, worker, REQUEST_FENCE, timeout_ms, done, ctx));
}
