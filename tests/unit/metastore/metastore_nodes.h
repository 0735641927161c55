// SPDX-License-Identifier: Apache-2.0
// A stand-in for the host under three metadata stores: one log that is always the same everywhere, a leader
// who is whoever the test says, frames that arrive when the test says. Real raft under it: tests/sim.
// Included by one C file per program, for it defines the functions of host.h.
#pragma once
#include "meta_fixture.h"
#include "metastore/metastore.h"
#include "node/base/log.h"
#include "proto/frame.h"

#pragma GCC diagnostic ignored "-Wunused-function"  // Not every test file needs all of it.

enum { NODES = 3, WORKERS = 2, LOG_MAX = 4000 };

struct call {
    void (*fn)(void *arg);
    void *arg;
};

struct frame_copy {
    uint32_t from, to;
    uint16_t type;
    struct buf envelope, raw;
};

struct barrier {
    uint64_t index, deadline;
    group_read_fn *done;
    void *ctx;
};

struct group {
    struct host *host;
    const struct fsm_ops *fsm;
    void *ctx;
    uint64_t handed, applied;
    bool is_eager;
    struct config config;
};

struct host {
    struct net net;
    uint32_t node;  // 1..NODES
    struct group group;
    bool has_group;
    host_frame_fn *on_frame;
    void *on_frame_ctx;
    struct host_watcher *watcher;
    struct barrier barriers[64];
    uint32_t barriers_count;
};

struct answer {
    bool is_there;
    struct meta_result result;
    uint64_t seen;  // By the worker when it was answered.
    uint32_t worker;
    struct node *node;
};

struct node {
    struct host host;
    struct metastore *m;
    bool is_up;
    struct call posted[4096];
    uint32_t posted_count;
    char told[WORKERS][8192];  // What the subscriber heard.
    char events[1024];
};

static struct {
    struct node node[NODES + 1];
    struct buf log[LOG_MAX];  // From 1.
    uint16_t kind[LOG_MAX];
    uint64_t last;
    uint64_t term;
    uint32_t leader;  // 0: none.
    bool has_quorum;
    uint64_t now_ns;
    struct frame_copy frames[1024];
    uint32_t frames_count;
    bool loses_frames;
    uint64_t wall_ahead_ms;  // Of the monotonic clock.
    uint64_t frames_sent;
} w;

// ---- the stand-in -----------------------------------------------------------------------------------------

static uint64_t fake_mono(void *ctx)
{
    (void)ctx;
    return w.now_ns;
}

static int64_t fake_wall(void *ctx)
{
    (void)ctx;
    return (int64_t)(w.now_ns / 1000000 + w.wall_ahead_ms);
}

static const struct clock fake_clock = {.mono_ns = fake_mono, .wall_ms = fake_wall};

static uint64_t committed(void)
{
    return w.last;
}

static void log_append_entry(uint16_t kind, const struct glog_part *parts, uint32_t n)
{
    ck_assert_uint_lt(w.last + 1, LOG_MAX);
    w.last++;
    w.kind[w.last] = kind;
    w.log[w.last].len = 0;
    for (uint32_t i = 0; i < n; i++) {
        buf_bytes(&w.log[w.last], parts[i].ptr, parts[i].len);
    }
}

static enum rc fake_send(struct net *net, uint32_t node, enum net_lane lane, enum frame_type type,
                         struct span envelope, const struct iovec *raw, int raw_count, bool raw_crc)
{
    struct host *h = container_of(net, struct host, net);
    ck_assert_int_eq(lane, LANE_CONTROL);
    ck_assert_int_eq(raw_crc, raw_count > 0);
    w.frames_sent++;
    if (w.loses_frames || !w.node[node].is_up) {
        return RC_OK;
    }
    ck_assert_uint_lt(w.frames_count, 1024);
    struct frame_copy *f = &w.frames[w.frames_count++];
    *f = (struct frame_copy){.from = h->node, .to = node, .type = (uint16_t)type};
    buf_span_bytes(&f->envelope, envelope);
    for (int i = 0; i < raw_count; i++) {
        buf_bytes(&f->raw, raw[i].iov_base, raw[i].iov_len);
    }
    return RC_OK;
}

struct net *host_net(const struct host *h)
{
    return (struct net *)&h->net;
}

bool host_node_is_alive(const struct host *h, uint32_t node_id)
{
    return node_id == h->node || (w.node[node_id].is_up && w.has_quorum);
}

void host_on_frames(struct host *h, uint16_t first, uint16_t last, host_frame_fn *fn, void *ctx)
{
    ck_assert_uint_eq(first, FRAME_META);
    ck_assert_uint_eq(last, FRAME_META_REPLY);
    h->on_frame = fn;
    h->on_frame_ctx = ctx;
}

void host_watch(struct host *h, struct host_watcher *watcher)
{
    h->watcher = watcher;
}

enum rc host_group_add(struct host *h, const struct group_spec *spec, struct group **out)
{
    h->group = (struct group){.host = h, .fsm = spec->fsm, .ctx = spec->fsm_ctx, .config = spec->initial};
    h->has_group = true;
    *out = &h->group;
    return RC_OK;
}

void group_tell_at_once(struct group *g)
{
    g->is_eager = true;
}

static bool leads(const struct host *h)
{
    return w.leader == h->node;
}

void group_status(const struct group *g, struct consensus_status *out)
{
    *out = (struct consensus_status){
        .role = leads(g->host) ? ROLE_LEADER : ROLE_FOLLOWER,
        .term = w.term,
        .leader = w.leader,
        .leader_node = w.leader,
        .last = w.last,
        .commit = committed(),
        .applied = g->applied,
        .config = &g->config,
    };
}

enum rc group_propose(struct group *g, const struct glog_part *parts, uint32_t count, bool is_reserved,
                      uint64_t *index, uint64_t *term)
{
    (void)is_reserved;
    if (!leads(g->host)) {
        return RC_NOT_LEADER;
    }
    if (w.has_quorum) {
        log_append_entry(RECORD_ENTRY, parts, count);
    }
    *index = w.last;
    *term = w.term;
    return RC_OK;
}

void group_read_barrier(struct group *g, uint64_t timeout_ns, group_read_fn *done, void *ctx)
{
    struct host *h = g->host;
    ck_assert_uint_lt(h->barriers_count, 64);
    h->barriers[h->barriers_count++] =
        (struct barrier){.index = committed(), .deadline = w.now_ns + timeout_ns, .done = done, .ctx = ctx};
}

void group_applied(struct group *g, uint64_t index)
{
    ck_assert_uint_le(index, g->handed);
    ck_assert_uint_gt(index, g->applied);
    g->applied = index;
}

// ---- nodes ------------------------------------------------------------------------------------------------

static void fake_post(void *ctx, uint32_t worker, void (*fn)(void *), void *arg)
{
    struct node *n = ctx;
    ck_assert_uint_lt(worker, WORKERS);
    ck_assert_uint_lt(n->posted_count, 4096);
    n->posted[n->posted_count++] = (struct call){fn, arg};
}

struct ear {
    struct node *node;
    uint32_t worker;
};
static struct ear ears[NODES + 1][WORKERS];

static void tell(const struct ear *e, const char *what)
{
    char *to = e->node->told[e->worker];
    ck_assert_uint_lt(strlen(to) + strlen(what) + 2, sizeof(e->node->told[0]));
    strcat(to, what);
}

static void on_change(void *ctx, const struct meta_change *c)
{
    char path[256];
    char text[300];
    path_to_text(c->path, path, sizeof(path));
    snprintf(text, sizeof(text), "%c%s ", c->is_deleted ? '-' : c->is_created ? '+' : '=', path);
    tell(ctx, text);
}

static void on_reset(void *ctx)
{
    tell(ctx, "reset ");
}

static void on_loaded(void *ctx, uint64_t index)
{
    (void)index;
    tell(ctx, "loaded ");
}

static void on_event(void *ctx, const struct meta_trigger_event *e)
{
    struct node *n = ctx;
    char path[256];
    path_to_text(e->path, path, sizeof(path));
    const size_t at = strlen(n->events);
    snprintf(n->events + at, sizeof(n->events) - at, "%u:%s ", (unsigned)e->seq, path);
}

static void node_start(uint32_t id, const char *dir, const struct store_group *recovered)
{
    struct node *n = &w.node[id];
    *n = (struct node){.is_up = true};
    n->host.node = id;
    n->host.net.send = fake_send;
    char *given = dir ? mem_strndup(dir, strlen(dir)) : NULL;
    const struct metastore_config config = {
        .dir = given,
        .map_bytes = 1 << 28,
        .node_id = id,
        .workers = WORKERS,
        .post = fake_post,
        .post_ctx = n,
        .clock = &fake_clock,
    };
    ck_assert_int_eq(metastore_open(&config, &n->m), RC_OK);
    if (given) {
        memset(given, '-', strlen(given));  // The caller's again.
        free(given);
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        ears[id][i] = (struct ear){n, i};
        const struct meta_subscriber s = {
            .change = on_change, .reset = on_reset, .loaded = on_loaded, .ctx = &ears[id][i]};
        metastore_subscribe(n->m, i, &s);
    }
    struct config members = {.count = NODES};
    for (uint32_t i = 0; i < NODES; i++) {
        members.members[i] = (struct member){.replica_id = i + 1, .node_id = i + 1, .is_voter = true};
    }
    ck_assert_int_eq(metastore_start(n->m, &n->host, id, &members, recovered, false), RC_OK);
}

static void node_stop(uint32_t id)
{
    struct node *n = &w.node[id];
    for (uint32_t i = 0; i < n->posted_count; i++) {
        n->posted[i].fn(n->posted[i].arg);
    }
    for (uint32_t i = 0; i < n->host.barriers_count; i++) {
        n->host.barriers[i].done(n->host.barriers[i].ctx, RC_SHUTDOWN);
    }
    metastore_close(n->m);
    n->is_up = false;
}

static void tell_role(uint32_t id)
{
    struct group *g = &w.node[id].host.group;
    struct consensus_status st;
    group_status(g, &st);
    g->fsm->role(g->ctx, &st);
}

static void lead(uint32_t id)
{
    w.leader = id;
    w.term++;
    if (id != 0) {
        log_append_entry(RECORD_NOOP, NULL, 0);
    }
    for (uint32_t i = 1; i <= NODES; i++) {
        if (w.node[i].is_up) {
            tell_role(i);
        }
    }
}

static void host_pump(struct host *h)
{
    struct group *g = &h->group;
    while (g->handed < committed()) {
        struct entry batch[16];
        uint32_t n = 0;
        while (n < 16 && g->handed + n < committed()) {
            const uint64_t i = g->handed + n + 1;
            batch[n++] = (struct entry){.group = META_GROUP_ID,
                                        .index = i,
                                        .term = 1,
                                        .kind = w.kind[i],
                                        .payload = buf_span(&w.log[i])};
        }
        g->handed += n;
        const uint32_t applied = g->fsm->apply(g->ctx, batch, n);
        if (applied > 0) {
            g->applied = g->handed - n + applied;
        }
    }
    for (uint32_t i = 0; i < h->barriers_count;) {
        struct barrier b = h->barriers[i];
        enum rc rc = RC_PENDING;
        if (!leads(h)) {
            rc = RC_NOT_LEADER;
        } else if (w.now_ns >= b.deadline) {
            rc = RC_TIMEOUT;
        } else if (w.has_quorum && g->applied >= b.index) {
            rc = RC_OK;
        }
        if (rc == RC_PENDING) {
            i++;
            continue;
        }
        h->barriers[i] = h->barriers[--h->barriers_count];
        b.done(b.ctx, rc);
    }
}

static void node_pump(struct node *n)
{
    for (uint32_t i = 0; i < n->posted_count; i++) {
        n->posted[i].fn(n->posted[i].arg);
    }
    n->posted_count = 0;
    (void)metastore_turn(n->m);
    host_pump(&n->host);
    (void)metastore_turn(n->m);
}

static void frames_pump(void)
{
    const uint32_t count = w.frames_count;
    struct frame_copy *copies = mem_alloc((count + 1) * sizeof(*copies));
    memcpy(copies, w.frames, count * sizeof(*copies));
    w.frames_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct frame_copy *f = &copies[i];
        struct host *h = &w.node[f->to].host;
        const struct frame frame = {
            .type = f->type, .envelope = buf_span(&f->envelope), .raw = buf_span(&f->raw)};
        if (w.node[f->to].is_up) {
            h->on_frame(h->on_frame_ctx, f->from, LANE_CONTROL, &frame);
        }
        buf_deinit(&f->envelope);
        buf_deinit(&f->raw);
    }
    free(copies);
}

// Some turns of everybody.
static void pump(void)
{
    for (int round = 0; round < 12; round++) {
        for (uint32_t i = 1; i <= NODES; i++) {
            if (w.node[i].is_up) {
                node_pump(&w.node[i]);
            }
        }
        frames_pump();
    }
}

static void pass_ms(uint64_t ms)
{
    for (uint64_t i = 0; i < ms; i += 10) {
        w.now_ns += 10 * 1000000ull;
        pump();
    }
}

static void on_done(void *ctx, const struct meta_result *r)
{
    struct answer *a = ctx;
    ck_assert(!a->is_there);
    a->is_there = true;
    a->result = *r;
    a->seen = metastore_seen(a->node->m, a->worker);
}

static void put(struct answer *a, uint32_t id, uint32_t worker, const char *path, enum meta_if condition)
{
    struct meta_command c;
    meta_command_init(&c);
    const struct meta_path p = path_text(path);
    meta_put(&c, &p, span_str("1"), condition, 0);
    *a = (struct answer){.node = &w.node[id], .worker = worker};
    metastore_submit(w.node[id].m, worker, &c, 10000, on_done, a);
    ck_assert(!a->is_there);  // Never from inside the call.
}

static void fence(struct answer *a, uint32_t id, uint32_t worker, uint32_t timeout_ms)
{
    *a = (struct answer){.node = &w.node[id], .worker = worker};
    metastore_fence(w.node[id].m, worker, timeout_ms, on_done, a);
    ck_assert(!a->is_there);
}

static void setup(void)
{
    log_set_level(LOG_CRITICAL);
    memset(&w, 0, sizeof(w));
    w.now_ns = 1000000000;
    w.has_quorum = true;
    for (uint32_t i = 1; i <= NODES; i++) {
        node_start(i, NULL, NULL);
    }
    lead(1);
    pump();
}

static void teardown(void)
{
    for (uint32_t i = 1; i <= NODES; i++) {
        if (w.node[i].is_up) {
            node_stop(i);
        }
    }
    for (uint64_t i = 1; i <= w.last; i++) {
        buf_deinit(&w.log[i]);
    }
    for (uint32_t i = 0; i < w.frames_count; i++) {
        buf_deinit(&w.frames[i].envelope);
        buf_deinit(&w.frames[i].raw);
    }
}
