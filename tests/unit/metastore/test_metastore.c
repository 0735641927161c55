// SPDX-License-Identifier: Apache-2.0
// links: metastore node/base proto consensus consensus/raft consensus/solo gen
// The metadata store over a host that is a stand-in: three nodes, one log that is always the same everywhere,
// a leader who is whoever the test says, frames that arrive when the test says. Real raft under it:
// tests/sim.
#include "meta_fixture.h"
#include "metastore/metastore.h"
#include "node/base/log.h"
#include "proto/frame.h"
#include <fcntl.h>

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
    return (int64_t)(w.now_ns / 1000000);
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
    const struct metastore_config config = {
        .dir = dir,
        .map_bytes = 1 << 28,
        .node_id = id,
        .workers = WORKERS,
        .post = fake_post,
        .post_ctx = n,
        .clock = &fake_clock,
    };
    ck_assert_int_eq(metastore_open(&config, &n->m), RC_OK);
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

static void lead(uint32_t id)
{
    w.leader = id;
    w.term++;
    if (id != 0) {
        log_append_entry(RECORD_NOOP, NULL, 0);
    }
    for (uint32_t i = 1; i <= NODES; i++) {
        struct node *n = &w.node[i];
        if (n->is_up) {
            struct consensus_status st;
            group_status(&n->host.group, &st);
            n->host.group.fsm->role(n->host.group.ctx, &st);
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

// ---- tests ------------------------------------------------------------------------------------------------

START_TEST(a_command_is_answered_after_its_worker_has_seen_the_change)
{
    for (uint32_t id = 1; id <= NODES; id++) {  // Led here, and elsewhere.
        for (uint32_t worker = 0; worker < WORKERS; worker++) {
            struct answer a;
            char path[16];
            snprintf(path, sizeof(path), "q%u%u", id, worker);
            put(&a, id, worker, path, META_IF_ABSENT);
            pump();
            ck_assert(a.is_there);
            ck_assert_int_eq(a.result.rc, RC_OK);
            ck_assert_uint_ge(a.seen, a.result.index);
            ck_assert_ptr_nonnull(strstr(w.node[id].told[worker], path));
        }
    }
    for (uint32_t id = 1; id <= NODES; id++) {
        ck_assert_str_eq(w.node[id].told[0], "loaded +q10 +q11 +q20 +q21 +q30 +q31 ");
        ck_assert_str_eq(w.node[id].told[1], w.node[id].told[0]);
        ck_assert(metastore_is_current(w.node[id].m, 1));
    }
}
END_TEST

START_TEST(a_failed_condition_comes_back_with_the_operation)
{
    struct answer a;
    put(&a, 2, 1, "q", META_IF_ABSENT);
    pump();
    put(&a, 3, 0, "q", META_IF_ABSENT);
    pump();
    ck_assert_int_eq(a.result.rc, RC_EXISTS);
    ck_assert_uint_eq(a.result.failed_op, 0);
}
END_TEST

START_TEST(an_invalid_command_is_refused_without_the_log)
{
    const uint64_t last = w.last;
    struct answer a = {.node = &w.node[2], .worker = 0};
    struct meta_command c;
    meta_command_init(&c);
    const struct meta_path root = {0};
    meta_put(&c, &root, span_str(""), META_IF_ANY, 0);
    metastore_submit(w.node[2].m, 0, &c, 1000, on_done, &a);
    ck_assert(!a.is_there);
    pump();
    ck_assert_int_eq(a.result.rc, RC_INVALID);
    ck_assert_uint_eq(w.last, last);
}
END_TEST

START_TEST(a_command_whose_frame_was_lost_is_sent_again_and_applied_once)
{
    struct answer a;
    w.loses_frames = true;
    put(&a, 2, 0, "q", META_IF_ABSENT);
    pump();
    w.loses_frames = false;
    ck_assert(!a.is_there);
    w.node[2].host.watcher->lane_reset(w.node[2].host.watcher->ctx, 1, LANE_CONTROL);
    pump();
    ck_assert(a.is_there);
    ck_assert_int_eq(a.result.rc, RC_OK);
}
END_TEST

START_TEST(a_command_that_reaches_two_leaders_is_applied_once)
{
    struct answer a;
    put(&a, 2, 0, "q", META_IF_ABSENT);
    frames_pump();  // Node 1 has it in the log; nobody applied it yet.
    lead(3);
    (void)metastore_turn(w.node[2].m);  // Sends it to node 3.
    pump();
    ck_assert(a.is_there);
    ck_assert_int_eq(a.result.rc, RC_OK);  // Not RC_EXISTS.
    for (uint32_t id = 1; id <= NODES; id++) {
        ck_assert_str_eq(w.node[id].told[0], "loaded +q ");
    }
}
END_TEST

START_TEST(a_command_waits_for_a_leader)
{
    lead(0);
    struct answer a;
    put(&a, 2, 1, "q", META_IF_ABSENT);
    pass_ms(3000);
    ck_assert(!a.is_there);
    lead(2);
    pass_ms(50);
    ck_assert_int_eq(a.is_there, true);
    ck_assert_int_eq(a.result.rc, RC_OK);
}
END_TEST

// Decision 18.
START_TEST(without_a_majority_a_command_is_refused_after_its_timeout)
{
    w.has_quorum = false;
    struct answer leader;
    struct answer follower;
    put(&leader, 1, 0, "q", META_IF_ABSENT);
    put(&follower, 2, 1, "q", META_IF_ABSENT);
    pass_ms(9900);
    ck_assert(!leader.is_there);
    ck_assert(!follower.is_there);
    pass_ms(200);
    ck_assert(leader.is_there);
    ck_assert(follower.is_there);
    ck_assert_int_eq(leader.result.rc, RC_NO_QUORUM);
    ck_assert_int_eq(follower.result.rc, RC_NO_QUORUM);
    ck_assert_str_eq(w.node[1].told[0], "loaded ");
}
END_TEST

START_TEST(a_fence_waits_until_the_local_projection_has_what_the_leader_had)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    // Node 1 alone goes on: applied there, not at node 3.
    for (int i = 0; i < 3; i++) {
        node_pump(&w.node[1]);
    }
    ck_assert(a.is_there);
    struct answer f;
    fence(&f, 3, 1, 1000);
    for (int i = 0; i < 5; i++) {
        for (uint32_t k = 0; k < w.node[3].posted_count; k++) {
            w.node[3].posted[k].fn(w.node[3].posted[k].arg);
        }
        w.node[3].posted_count = 0;
        (void)metastore_turn(w.node[3].m);  // Its host hands over nothing.
        frames_pump();
        node_pump(&w.node[1]);
    }
    ck_assert(!f.is_there);
    pump();
    ck_assert(f.is_there);
    ck_assert_int_eq(f.result.rc, RC_OK);
    ck_assert_uint_ge(f.seen, a.result.index);
    ck_assert_ptr_nonnull(strstr(w.node[3].told[1], "+q"));
}
END_TEST

// CL-14.
START_TEST(a_leader_without_a_majority_passes_no_fence)
{
    w.has_quorum = false;
    struct answer f;
    fence(&f, 1, 0, 1000);
    pass_ms(950);
    ck_assert(!f.is_there);
    pass_ms(100);
    ck_assert(f.is_there);
    ck_assert_int_ne(f.result.rc, RC_OK);
}
END_TEST

// CL-08.
START_TEST(a_minority_is_told_nothing_and_forgets_nothing)
{
    struct answer a;
    put(&a, 1, 0, "vhosts/v", META_IF_ABSENT);
    pump();
    w.has_quorum = false;
    lead(0);
    pass_ms(30000);
    ck_assert_str_eq(w.node[2].told[0], "loaded +vhosts/v ");
    ck_assert_str_eq(w.node[2].told[1], "loaded +vhosts/v ");
}
END_TEST

// ---- starting ---------------------------------------------------------------------------------------------

START_TEST(a_new_store_is_told_only_once_a_majority_proves_what_exists)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    pump();
    node_stop(3);
    w.has_quorum = false;
    const struct store_group recovered = {.group = META_GROUP_ID};
    node_start(3, NULL, &recovered);
    pass_ms(20000);
    ck_assert_str_eq(w.node[3].told[0], "");
    w.has_quorum = true;
    pass_ms(3000);
    ck_assert_str_eq(w.node[3].told[0], "+q loaded ");
}
END_TEST

static char *dir;

static void restart_on_disk(uint32_t id)
{
    const struct store_group recovered = {.group = META_GROUP_ID};
    node_start(id, dir, &recovered);
}

static void node_3_with_disk(void)
{
    dir = temp_dir();
    node_stop(3);
    node_start(3, dir, NULL);
    pass_ms(500);
    struct answer a;
    put(&a, 3, 0, "q", META_IF_ABSENT);
    pump();
    put(&a, 1, 0, "r", META_IF_ABSENT);
    pump();
    pass_ms(100);  // The open transaction is committed.
    ck_assert_str_eq(w.node[3].told[0], "loaded +q +r ");
}

START_TEST(a_restarted_node_serves_what_it_has_without_a_majority)
{
    node_3_with_disk();
    node_stop(3);
    w.has_quorum = false;
    lead(0);
    restart_on_disk(3);
    ck_assert(!metastore_is_damaged(w.node[3].m));
    pump();
    ck_assert_str_eq(w.node[3].told[1],
                     "+q +r loaded ");  // And the replay of the same entries said nothing more.
    node_stop(3);
    temp_remove(dir);
}
END_TEST

static void damage(void)
{
    char path[512];
    for (int generation = 1; generation < 10; generation++) {
        snprintf(path, sizeof(path), "%s/gen-%d/data.mdb", dir, generation);
        const int fd = open(path, O_RDWR);
        if (fd >= 0) {
            uint8_t block[4096];
            for (off_t at = 2 * 4096; pread(fd, block, sizeof(block), at) > 0; at += 4096) {
                for (size_t i = 0; i < sizeof(block); i++) {
                    block[i] ^= 0x55;
                }
                ck_assert_int_eq(pwrite(fd, block, sizeof(block), at), (ssize_t)sizeof(block));
            }
            close(fd);
        }
    }
}

// CR-05.
START_TEST(a_damaged_store_serves_nothing_until_it_is_rebuilt_and_proven)
{
    node_3_with_disk();
    node_stop(3);
    damage();
    w.has_quorum = false;
    restart_on_disk(3);
    ck_assert(metastore_is_damaged(w.node[3].m));
    struct answer a;
    fence(&a, 3, 0, 1000);
    pass_ms(5000);
    ck_assert_int_eq(a.result.rc, RC_CORRUPT);
    ck_assert_str_eq(w.node[3].told[0], "");  // Not "loaded" with nothing in it.
    ck_assert(metastore_is_damaged(w.node[3].m));
    // Once more, in the middle of it: still not taken for whole.
    node_stop(3);
    restart_on_disk(3);
    pass_ms(1000);
    ck_assert_str_eq(w.node[3].told[0], "");
    w.has_quorum = true;
    pass_ms(11000);
    ck_assert(!metastore_is_damaged(w.node[3].m));
    ck_assert_str_eq(w.node[3].told[0], "+q +r loaded ");
    node_stop(3);
    restart_on_disk(3);
    ck_assert(!metastore_is_damaged(w.node[3].m));
    pump();
    ck_assert_str_eq(w.node[3].told[0], "+q +r loaded ");
    node_stop(3);
    temp_remove(dir);
}
END_TEST

START_TEST(a_store_of_a_former_life_is_not_taken_over_by_a_new_replica)
{
    node_3_with_disk();
    node_stop(3);
    // The log is gone, the store is not: in the new log, index 2 means something else.
    for (uint32_t i = 1; i < NODES; i++) {
        node_stop(i);
    }
    for (uint64_t i = 1; i <= w.last; i++) {
        w.log[i].len = 0;
    }
    w.last = 0;
    w.frames_count = 0;
    node_start(1, NULL, NULL);
    node_start(2, NULL, NULL);
    node_start(3, dir, NULL);
    lead(1);
    pass_ms(500);
    struct answer a;
    put(&a, 3, 0, "fresh", META_IF_ABSENT);
    pump();
    ck_assert_int_eq(a.result.rc, RC_OK);
    ck_assert_str_eq(w.node[3].told[0], "loaded +fresh ");
    node_stop(3);
    temp_remove(dir);
}
END_TEST

// ---- snapshots --------------------------------------------------------------------------------------------

struct image {
    struct buf chunks[64];
    uint32_t count;
    uint64_t index;
};

// As the host: asks until there is one, with entries coming in between.
static struct image take(uint32_t id, bool is_busy)
{
    struct group *g = &w.node[id].host.group;
    struct image image = {0};
    for (int ask = 0; ask < 5; ask++) {
        struct fsm_snapshot *s = g->fsm->snapshot_begin(g->ctx);
        if (s) {
            image.index = g->applied;
            for (bool is_more = true; is_more; image.count++) {
                ck_assert_uint_lt(image.count, 64);
                is_more = g->fsm->snapshot_chunk(s, &image.chunks[image.count]);
            }
            g->fsm->snapshot_end(s);
            return image;
        }
        if (is_busy) {
            struct answer a;
            char path[16];
            snprintf(path, sizeof(path), "busy%d", ask);
            put(&a, id, 0, path, META_IF_ANY);
            pump();
            ck_assert(a.is_there);
        } else {
            pump();
        }
    }
    ck_abort_msg("no snapshot");
}

static enum rc give(uint32_t id, struct image *image)
{
    struct group *g = &w.node[id].host.group;
    g->handed = g->applied = image->index;
    g->fsm->restore_begin(g->ctx);
    enum rc rc = RC_OK;
    for (uint32_t i = 0; i < image->count && rc == RC_OK; i++) {
        rc = g->fsm->restore_chunk(g->ctx, buf_span(&image->chunks[i]));
    }
    return rc == RC_OK ? g->fsm->restore_end(g->ctx, image->index) : rc;
}

static void image_free(struct image *image)
{
    for (uint32_t i = 0; i < image->count; i++) {
        buf_deinit(&image->chunks[i]);
    }
}

START_TEST(a_snapshot_can_be_taken_at_the_second_ask_also_while_entries_come_in)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    pump();
    for (int busy = 0; busy < 2; busy++) {
        struct image image = take(1, busy);
        ck_assert_uint_eq(image.index, w.last);
        struct tree_snapshot_check check;
        tree_snapshot_check_init(&check);
        for (uint32_t i = 0; i < image.count; i++) {
            ck_assert_int_eq(tree_snapshot_check_chunk(&check, buf_span(&image.chunks[i])), RC_OK);
        }
        ck_assert_int_eq(tree_snapshot_check_end(&check), RC_OK);
        ck_assert_uint_ge(check.meta.applied_index, image.index);
        tree_snapshot_check_deinit(&check);
        image_free(&image);
    }
}
END_TEST

START_TEST(an_installed_snapshot_resets_the_projections_and_answers_waiting_commands)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    pump();
    dir = temp_dir();
    node_stop(3);
    node_start(3, dir, NULL);
    pass_ms(500);
    ck_assert_str_eq(w.node[3].told[0], "+q loaded ");
    // Node 3's command and others are applied elsewhere, while node 3's host hands over nothing.
    put(&a, 3, 1, "mine", META_IF_ABSENT);
    for (uint32_t k = 0; k < w.node[3].posted_count; k++) {
        w.node[3].posted[k].fn(w.node[3].posted[k].arg);
    }
    w.node[3].posted_count = 0;
    w.node[3].is_up = false;
    w.node[1].is_up = true;
    frames_pump();
    struct answer b;
    put(&b, 1, 0, "r", META_IF_ABSENT);
    pump();
    ck_assert(b.is_there);
    struct image image = take(1, false);
    w.node[3].is_up = true;
    ck_assert_int_eq(give(3, &image), RC_OK);
    pump();
    ck_assert_str_eq(w.node[3].told[0], "+q loaded reset +mine +q +r loaded ");
    ck_assert(a.is_there);  // Asked again, and answered out of the dedup table.
    ck_assert_int_eq(a.result.rc, RC_OK);
    // The installed generation is the one that is found again.
    node_stop(3);
    restart_on_disk(3);
    pump();
    ck_assert_str_eq(w.node[3].told[0], "+mine +q +r loaded ");
    node_stop(3);
    image_free(&image);
    temp_remove(dir);
}
END_TEST

START_TEST(a_snapshot_that_says_nothing_new_changes_nothing)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    pump();
    struct image image = take(1, false);
    put(&a, 1, 0, "r", META_IF_ABSENT);
    pump();
    struct group *g = &w.node[1].host.group;
    const uint64_t handed = g->handed;
    ck_assert_int_eq(give(1, &image), RC_OK);
    pump();
    ck_assert_uint_ge(g->applied, handed);
    ck_assert_str_eq(w.node[1].told[0], "loaded +q +r ");
    image_free(&image);
}
END_TEST

START_TEST(a_damaged_snapshot_is_refused_and_the_old_state_stays)
{
    struct answer a;
    put(&a, 1, 0, "q", META_IF_ABSENT);
    pump();
    struct image image = take(1, false);
    node_stop(3);
    node_start(3, NULL, NULL);
    image.chunks[0].ptr[image.chunks[0].len / 2] ^= 1;
    const uint64_t handed = w.node[3].host.group.handed;
    ck_assert_int_ne(give(3, &image), RC_OK);
    w.node[3].host.group.handed = w.node[3].host.group.applied = handed;
    pass_ms(500);
    ck_assert_str_eq(w.node[3].told[0], "+q loaded ");  // By replay.
    image_free(&image);
}
END_TEST

// ---- triggers ---------------------------------------------------------------------------------------------

START_TEST(pending_events_are_told_on_the_leader_and_again_on_the_next_until_acknowledged)
{
    for (uint32_t i = 1; i <= NODES; i++) {
        metastore_on_trigger(w.node[i].m, on_event, &w.node[i]);
    }
    struct answer a = {.node = &w.node[2]};
    struct meta_command c;
    meta_command_init(&c);
    const struct meta_path q = path_text("q");
    meta_set_trigger(&c, 1, &q, META_EVENT_CREATED);
    metastore_submit(w.node[2].m, 0, &c, 1000, on_done, &a);
    pump();
    put(&a, 2, 0, "q/1", META_IF_ANY);
    pump();
    put(&a, 2, 0, "q/2", META_IF_ANY);
    pump();
    ck_assert_str_eq(w.node[1].events, "1:q/1 2:q/2 ");
    ck_assert_str_eq(w.node[2].events, "");
    a = (struct answer){.node = &w.node[1]};
    meta_ack_event(&c, 1);
    metastore_submit(w.node[1].m, 0, &c, 1000, on_done, &a);
    pump();
    lead(2);
    pump();
    ck_assert_str_eq(w.node[2].events, "2:q/2 ");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("metastore");
    TCase *t = tcase_create("metastore");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_command_is_answered_after_its_worker_has_seen_the_change);
    tcase_add_test(t, a_failed_condition_comes_back_with_the_operation);
    tcase_add_test(t, an_invalid_command_is_refused_without_the_log);
    tcase_add_test(t, a_command_whose_frame_was_lost_is_sent_again_and_applied_once);
    tcase_add_test(t, a_command_that_reaches_two_leaders_is_applied_once);
    tcase_add_test(t, a_command_waits_for_a_leader);
    tcase_add_test(t, without_a_majority_a_command_is_refused_after_its_timeout);
    tcase_add_test(t, a_fence_waits_until_the_local_projection_has_what_the_leader_had);
    tcase_add_test(t, a_leader_without_a_majority_passes_no_fence);
    tcase_add_test(t, a_minority_is_told_nothing_and_forgets_nothing);
    tcase_add_test(t, a_new_store_is_told_only_once_a_majority_proves_what_exists);
    tcase_add_test(t, a_restarted_node_serves_what_it_has_without_a_majority);
    tcase_add_test(t, a_damaged_store_serves_nothing_until_it_is_rebuilt_and_proven);
    tcase_add_test(t, a_store_of_a_former_life_is_not_taken_over_by_a_new_replica);
    tcase_add_test(t, a_snapshot_can_be_taken_at_the_second_ask_also_while_entries_come_in);
    tcase_add_test(t, an_installed_snapshot_resets_the_projections_and_answers_waiting_commands);
    tcase_add_test(t, a_snapshot_that_says_nothing_new_changes_nothing);
    tcase_add_test(t, a_damaged_snapshot_is_refused_and_the_old_state_stays);
    tcase_add_test(t, pending_events_are_told_on_the_leader_and_again_on_the_next_until_acknowledged);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
