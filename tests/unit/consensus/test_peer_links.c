// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus/peer gen
// Links between nodes over real loopback sockets, all nodes on one loop. Conditions are awaited with a deadline.
#include "consensus/peer/handshake.h"
#include "consensus/peer/join.h"
#include "consensus/peer/peer_net.h"
#include "node/base/limits.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- fixture -----------------------------------------------------------------------------------------------------

enum { NODES = 3 };

struct node {
    struct peer_net *net;
    struct peer_hello self;
    struct net_upcalls upcalls;
    uint16_t port;
    bool is_closed;
    enum node_verdict verdict[NODES + 1];  // By node id.
    uint64_t incarnation[NODES + 1];
    uint32_t deaths[NODES + 1];
    uint32_t resets[NODES + 1][LANE_COUNT];
    uint32_t writables;
    uint64_t frames;
    uint64_t bytes;
    struct rng expect;         // Sizes and bytes that must come next.
    bool is_expecting;
    bool is_slow;
    uint32_t bad_frames;
    char joiner[PEER_NAME_MAX + 1];
    struct buf join;           // Envelope of the last JOIN or JOIN_REPLY.
    uint64_t beats_seen;
};

static uv_loop_t loop;
static struct node nodes[NODES];
static struct rng rng;
static uint8_t pattern[FRAME_TOTAL_MAX + 251];

static const size_t sizes[] = {0, 1, 15, 16, 17, 255, 4096, 16384 - 16, 65535, 65536, 262144, 1 << 20};

// The raw length of the next frame of a stream: named sizes first of all, then anything, small ones more often.
static size_t next_size(struct rng *r, uint64_t n)
{
    if (n < sizeof(sizes) / sizeof(sizes[0])) {
        return sizes[n];
    }
    if (n == sizeof(sizes) / sizeof(sizes[0])) {
        return FRAME_TOTAL_MAX - FRAME_HEADER_BYTES - 8 - 4;  // With envelope and sum: exactly the maximum.
    }
    uint64_t limit = 1ull << (4 + rng_below(r, 16));
    return rng_below(r, limit);
}

static void on_frame(void *ctx, uint32_t id, enum net_lane lane, const struct frame *f)
{
    struct node *n = ctx;
    (void)id;
    n->frames++;
    n->bytes += f->raw.len;
    if (n->is_expecting) {
        size_t size = next_size(&n->expect, n->frames - 1);
        uint64_t number = 0;
        memcpy(&number, f->envelope.ptr, 8);
        bool is_good = lane == LANE_LOG && f->envelope.len == 8 && number == n->frames - 1 && f->raw.len == size &&
                       memcmp(f->raw.ptr, pattern + number % 251, size) == 0;
        n->bad_frames += !is_good;
    }
}

static void on_reset(void *ctx, uint32_t id, enum net_lane lane)
{
    ((struct node *)ctx)->resets[id][lane]++;
}

static void on_writable(void *ctx, uint32_t id, enum net_lane lane)
{
    (void)id;
    (void)lane;
    ((struct node *)ctx)->writables++;
}

static void on_state(void *ctx, uint32_t id, enum node_verdict v, uint64_t incarnation)
{
    struct node *n = ctx;
    n->verdict[id] = v;
    n->incarnation[id] = incarnation;
    n->deaths[id] += v == NODE_DEAD;
}

static void on_join(void *ctx, const char *name, const struct frame *f)
{
    struct node *n = ctx;
    snprintf(n->joiner, sizeof(n->joiner), "%s", name);
    n->join.len = 0;
    buf_span_bytes(&n->join, f->envelope);
}

static void on_beat_fill(void *ctx, struct peer_beat *b)
{
    (void)ctx;
    b->meta_commit = 77;
}

static void on_beat_seen(void *ctx, uint32_t id, const struct peer_beat *b)
{
    (void)id;
    ((struct node *)ctx)->beats_seen += b->meta_commit == 77;
}

static void quiet(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

static void node_start_with(int i, const char *secret, uint64_t incarnation, bool is_blank)
{
    struct node *n = &nodes[i];
    uint16_t port = n->port;
    struct buf join = n->join;
    *n = (struct node){.port = port, .join = join};
    for (int k = 0; k <= NODES; k++) {
        n->verdict[k] = NODE_SUSPECT;
    }
    n->self = (struct peer_hello){
        .protocol_min = PEER_PROTOCOL_MIN,
        .protocol_max = PEER_PROTOCOL_MAX,
        .store_id = {(uint8_t)(i + 1)},
        .cluster_id = {is_blank ? 0 : 9},
        .node_id = is_blank ? 0 : (uint32_t)i + 1,
        .incarnation = incarnation,
        .is_blank = is_blank,
        .list_hash = 5,
    };
    snprintf(n->self.name, sizeof(n->self.name), "n%d@localhost", i + 1);
    n->upcalls = (struct net_upcalls){
        .frame = on_frame, .reset = on_reset, .writable = on_writable, .node_state = on_state, .ctx = n};
    char listen_at[64];
    snprintf(listen_at, sizeof(listen_at), "127.0.0.1:%u", port);
    snprintf(n->self.address, sizeof(n->self.address), "127.0.0.1:%u", port ? port : 1);
    struct peer_net_config c = {
        .loop = &loop,
        .clock = env_system_clock(),
        .random = env_system_random,
        .listen = listen_at,
        .secret = span_str(secret),
        .self = n->self,
        .upcalls = &n->upcalls,
        .hooks = {.join_frame = on_join, .beat_fill = on_beat_fill, .beat_seen = on_beat_seen, .ctx = n},
    };
    ck_assert_int_eq(peer_net_create(&c, &n->net), RC_OK);
    n->port = peer_net_port(n->net);
    snprintf(n->self.address, sizeof(n->self.address), "127.0.0.1:%u", n->port);
    peer_net_set_self(n->net, &n->self);
}

static void node_start(int i)
{
    node_start_with(i, "secret", 1, false);
}

// `a` learns where `b` is.
static void introduce(int a, int b)
{
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", nodes[b].port);
    ck_assert_int_eq(peer_net_add(nodes[a].net, nodes[b].self.name, address, 0, NULL), RC_OK);
}

static void introduce_all(int count)
{
    for (int a = 0; a < count; a++) {
        for (int b = 0; b < count; b++) {
            if (a != b) {
                introduce(a, b);
            }
        }
    }
}

static void on_guard(uv_timer_t *t)
{
    *(bool *)t->data = true;
}

// Runs the loop until `done` or `ms` have passed. True if done.
static bool run_until(bool (*done)(void), uint64_t ms)
{
    static uv_timer_t guard;
    bool is_late = false;
    uv_timer_init(&loop, &guard);
    guard.data = &is_late;
    uv_timer_start(&guard, on_guard, ms, 0);
    while (!done() && !is_late) {
        uv_run(&loop, UV_RUN_ONCE);
    }
    uv_timer_stop(&guard);
    uv_close((uv_handle_t *)&guard, NULL);
    uv_run(&loop, UV_RUN_NOWAIT);
    return done();
}

static bool never(void)
{
    return false;
}

static void on_closed(void *ctx)
{
    struct node *n = ctx;
    n->is_closed = true;
    n->net = NULL;
}

static struct node *closing;
static bool is_closing_done(void)
{
    return closing->is_closed;
}

// The ports close at once; the rest of the close runs with the loop.
static void node_kill(int i)
{
    peer_net_close(nodes[i].net, on_closed, &nodes[i]);
}

static void node_stop(int i)
{
    if (nodes[i].net) {
        closing = &nodes[i];
        node_kill(i);
        ck_assert(run_until(is_closing_done, 2000));
    }
}

static void setup(void)
{
    log_set_sink(quiet, NULL);
    uv_loop_init(&loop);
    memset(nodes, 0, sizeof(nodes));
    rng_seed(&rng, 42);
    for (size_t i = 0; i < sizeof(pattern); i++) {
        pattern[i] = (uint8_t)(i % 251);
    }
}

static void teardown(void)
{
    for (int i = 0; i < NODES; i++) {
        node_stop(i);
        buf_deinit(&nodes[i].join);
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);  // Nothing is left open.
}

// ---- helpers -----------------------------------------------------------------------------------------------------

static bool is_pair_up(int a, int b)
{
    struct net *net = nodes[a].net ? peer_net_net(nodes[a].net) : NULL;
    bool is_up = net && nodes[a].verdict[b + 1] == NODE_ALIVE;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        is_up = is_up && net->is_connected(net, (uint32_t)b + 1, (enum net_lane)lane);
    }
    return is_up;
}
static bool is_01_up(void)
{
    return is_pair_up(0, 1) && is_pair_up(1, 0);
}
static bool is_0_up(void)
{
    return is_pair_up(0, 1);
}
static bool is_mesh_up(void)
{
    return is_01_up() && is_pair_up(0, 2) && is_pair_up(2, 0) && is_pair_up(1, 2) && is_pair_up(2, 1);
}

static void pair_start(void)
{
    node_start(0);
    node_start(1);
    introduce_all(2);
    ck_assert(run_until(is_01_up, 3000));
}

static enum rc send_raw(int from, int to, enum net_lane lane, uint64_t number, size_t size, bool raw_crc)
{
    struct net *net = peer_net_net(nodes[from].net);
    struct iovec raw[2] = {
        {.iov_base = pattern + number % 251, .iov_len = size / 3},
        {.iov_base = pattern + number % 251 + size / 3, .iov_len = size - size / 3},
    };
    return net->send(net, (uint32_t)to + 1, lane, FRAME_APPEND, span_of(&number, 8), raw, 2, raw_crc);
}

static uint64_t goal;
static bool is_goal_reached(void)
{
    return nodes[1].frames >= goal;
}

static struct peer_net_metrics metrics_of(int i)
{
    struct peer_net_metrics m;
    peer_net_metrics(nodes[i].net, &m);
    return m;
}

static const char *refusal_text;
static void find_refusal(void *ctx, const struct peer_info *p)
{
    (void)ctx;
    refusal_text = p->refusal ? p->refusal : refusal_text;
}
static const char *refusal_of(int i)
{
    refusal_text = NULL;
    peer_net_each(nodes[i].net, find_refusal, NULL);
    return refusal_text;
}

// ---- tests: up and down ------------------------------------------------------------------------------------------

START_TEST(two_nodes_greet_on_all_lanes_and_call_each_other_alive)
{
    pair_start();
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        ck_assert_uint_eq(nodes[0].resets[2][lane], 1);
    }
    ck_assert_uint_eq(nodes[0].incarnation[2], 1);
    ck_assert_uint_eq(metrics_of(0).links_open, 2 * LANE_COUNT);
}
END_TEST

START_TEST(three_nodes_make_a_full_mesh_and_beat)
{
    for (int i = 0; i < NODES; i++) {
        node_start(i);
    }
    introduce_all(NODES);
    ck_assert(run_until(is_mesh_up, 3000));
    run_until(never, 550);
    ck_assert_uint_ge(nodes[0].beats_seen, 2 * 4);  // Two peers, one beat each 100 ms, with slack for a slow machine.
    ck_assert_uint_le(nodes[0].beats_seen, 2 * 14);
}
END_TEST

static bool is_1_dead(void)
{
    return nodes[0].verdict[2] == NODE_DEAD;
}

START_TEST(a_node_that_closes_and_refuses_is_dead_within_50_ms)
{
    pair_start();
    uint64_t from = clock_mono_ns(env_system_clock());
    node_kill(1);
    ck_assert(run_until(is_1_dead, 1000));
    ck_assert_uint_lt((clock_mono_ns(env_system_clock()) - from) / 1000000, 50);
    struct net *net = peer_net_net(nodes[0].net);
    ck_assert(!net->is_connected(net, 2, LANE_LOG));
    ck_assert_int_eq(send_raw(0, 1, LANE_LOG, 0, 10, false), RC_NOT_CONNECTED);
}
END_TEST

START_TEST(a_restarted_node_is_alive_again_under_its_new_incarnation_and_lanes_are_reset)
{
    pair_start();
    node_stop(1);
    ck_assert(run_until(is_1_dead, 1000));
    node_start_with(1, "secret", 2, false);
    introduce(1, 0);
    ck_assert(run_until(is_01_up, 3000));
    ck_assert_uint_eq(nodes[0].incarnation[2], 2);
    ck_assert_uint_eq(nodes[0].deaths[2], 1);
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        ck_assert_uint_eq(nodes[0].resets[2][lane], 2);
    }
}
END_TEST

// Node 1 in a process of its own, with a loop of its own.
static void run_child(int port_to)
{
    uv_loop_init(&loop);  // The parent's loop is left alone: it would share its epoll set.
    nodes[1].port = 0;
    node_start(1);
    introduce(1, 0);
    ssize_t n = write(port_to, &nodes[1].port, sizeof(nodes[1].port));
    if (n == sizeof(nodes[1].port)) {
        uv_run(&loop, UV_RUN_DEFAULT);
    }
    _exit(1);
}

START_TEST(a_process_killed_under_load_is_dead_within_50_ms)
{
    node_start(0);
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        run_child(ends[1]);
    }
    ck_assert_int_eq(read(ends[0], &nodes[1].port, sizeof(nodes[1].port)), sizeof(nodes[1].port));
    snprintf(nodes[1].self.name, sizeof(nodes[1].self.name), "n2@localhost");
    introduce(0, 1);
    ck_assert(run_until(is_0_up, 3000));
    struct net *net = peer_net_net(nodes[0].net);
    for (uint64_t i = 0; i < 200; i++) {
        (void)!send_raw(0, 1, LANE_LOG, i, 100000, false);  // Full lanes are part of it.
        net->flush(net);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);  // The kernel has closed its files.
    uint64_t from = clock_mono_ns(env_system_clock());
    ck_assert(run_until(is_1_dead, 1000));
    ck_assert_uint_lt((clock_mono_ns(env_system_clock()) - from) / 1000000, 50);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

START_TEST(a_removed_peer_is_disconnected_and_forgotten)
{
    pair_start();
    peer_net_remove(nodes[1].net, nodes[0].self.name);
    peer_net_remove(nodes[0].net, nodes[1].self.name);
    run_until(never, 50);
    struct net *net = peer_net_net(nodes[0].net);
    ck_assert(!net->is_connected(net, 2, LANE_CONTROL));
    ck_assert_int_eq(send_raw(0, 1, LANE_CONTROL, 0, 1, false), RC_NOT_CONNECTED);
}
END_TEST

START_TEST(a_name_is_looked_up_without_blocking)
{
    node_start(0);
    node_start(1);
    char address[64];
    snprintf(address, sizeof(address), "localhost:%u", nodes[1].port);
    ck_assert_int_eq(peer_net_add(nodes[0].net, nodes[1].self.name, address, 0, NULL), RC_OK);
    introduce(1, 0);
    ck_assert(run_until(is_01_up, 5000));
}
END_TEST

START_TEST(addresses_that_are_none_are_refused)
{
    node_start(0);
    static const char *const bad[] = {"", "host", "host:", ":1", "host:0", "host:65536", "host:1x", "host:-1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_msg(peer_net_add(nodes[0].net, "x@y", bad[i], 0, NULL) == RC_INVALID, "%s", bad[i]);
    }
    ck_assert_int_eq(peer_net_add(nodes[0].net, nodes[0].self.name, "127.0.0.1:1", 0, NULL), RC_INVALID);
}
END_TEST

// ---- tests: frames -----------------------------------------------------------------------------------------------

static void send_stream(uint64_t count, bool raw_crc)
{
    struct rng sender;
    rng_seed(&sender, 7);
    nodes[1].expect = sender;
    nodes[1].is_expecting = true;
    struct net *net = peer_net_net(nodes[0].net);
    for (uint64_t i = 0; i < count;) {
        size_t size = next_size(&sender, i);
        while (send_raw(0, 1, LANE_LOG, i, size, raw_crc) != RC_OK) {
            net->flush(net);
            uv_run(&loop, UV_RUN_ONCE);
        }
        i++;
        if (i % 37 == 0) {
            net->flush(net);
            uv_run(&loop, UV_RUN_NOWAIT);
        }
    }
    net->flush(net);
    goal = count;
    ck_assert(run_until(is_goal_reached, 20000));
    ck_assert_uint_eq(nodes[1].bad_frames, 0);
    ck_assert_uint_eq(nodes[1].frames, count);
    ck_assert_uint_eq(nodes[0].resets[2][LANE_LOG], 1);
}

START_TEST(frames_of_all_sizes_arrive_whole_and_in_order)
{
    pair_start();
    send_stream(20000, true);
}
END_TEST

START_TEST(many_borrowed_ranges_in_one_turn_are_written)
{
    pair_start();
    struct net *net = peer_net_net(nodes[0].net);
    for (uint64_t i = 0; i < 5000; i++) {  // More than a writev takes vectors.
        ck_assert_int_eq(send_raw(0, 1, LANE_SESSION, i, 300, i % 2), RC_OK);
    }
    net->flush(net);
    goal = 5000;
    ck_assert(run_until(is_goal_reached, 5000));
    ck_assert_uint_eq(nodes[1].bytes, 5000 * 300);
}
END_TEST

START_TEST(borrowed_bytes_may_change_after_the_flush)
{
    pair_start();
    struct net *net = peer_net_net(nodes[0].net);
    uint8_t *mine = mem_alloc(1 << 20);
    nodes[1].is_expecting = false;
    uint64_t sent = 0;
    struct iovec raw = {.iov_base = mine, .iov_len = 1 << 20};
    for (;; sent++) {  // Until the socket takes no more: the rest must be our copy.
        memset(mine, (int)sent, 1 << 20);
        if (net->send(net, 2, LANE_LOG, FRAME_APPEND, span_of(&sent, 8), &raw, 1, true) != RC_OK) {
            break;
        }
        net->flush(net);
    }
    ck_assert_uint_gt(net->queued(net, 2, LANE_LOG), 0);
    free(mine);
    goal = sent;
    ck_assert(run_until(is_goal_reached, 10000));  // The sums prove the bytes: a wrong one closes the link.
    ck_assert_uint_eq(metrics_of(1).malformed, 0);
}
END_TEST

static bool is_writable_again(void)
{
    return nodes[0].writables > 0;
}

START_TEST(a_full_lane_refuses_and_says_when_there_is_room)
{
    pair_start();
    struct net *net = peer_net_net(nodes[0].net);
    enum rc rc = RC_OK;
    uint64_t sent = 0;
    while (rc == RC_OK) {
        rc = send_raw(0, 1, LANE_BULK, sent, 1 << 20, false);
        sent += rc == RC_OK;
        ck_assert_uint_le(net->queued(net, 2, LANE_BULK), LIMIT_LANE_OUTPUT_BYTES);
        ck_assert_uint_lt(sent, 1000);
    }
    ck_assert_int_eq(rc, RC_FULL);
    net->flush(net);
    ck_assert_uint_eq(nodes[0].writables, 0);  // Never from within a call.
    ck_assert(run_until(is_writable_again, 5000));
    ck_assert_int_eq(send_raw(0, 1, LANE_BULK, 0, 1 << 20, false), RC_OK);
    net->flush(net);
    goal = sent + 1;
    ck_assert(run_until(is_goal_reached, 10000));
}
END_TEST

static bool are_buffers_small(void)
{
    return metrics_of(1).buffer_bytes <= 2 * LANE_COUNT * (16 << 10);
}

START_TEST(buffers_shrink_when_the_lane_is_quiet)
{
    pair_start();
    send_stream(200, false);
    ck_assert_uint_gt(metrics_of(1).buffer_bytes, 1 << 20);
    ck_assert(run_until(are_buffers_small, 4000));
}
END_TEST

// ---- tests: who is let in ----------------------------------------------------------------------------------------

START_TEST(a_wrong_secret_is_refused_and_named_on_both_sides)
{
    node_start(0);
    node_start_with(1, "Secret", 1, false);
    introduce_all(2);
    run_until(never, 400);
    ck_assert_int_eq(nodes[0].verdict[2], NODE_SUSPECT);
    ck_assert_uint_eq(metrics_of(0).links_open, 0);
    ck_assert_uint_eq(metrics_of(1).links_open, 0);
    ck_assert_ptr_nonnull(strstr(refusal_of(0), "secret"));
    ck_assert_ptr_nonnull(strstr(refusal_of(1), "secret"));
    ck_assert_uint_le(metrics_of(0).dials, 6);  // It does not hammer.
}
END_TEST

START_TEST(a_known_name_with_another_store_id_is_refused_with_the_cure)
{
    node_start(0);
    node_start(1);
    char address[64];
    uint8_t store[STORE_ID_BYTES] = {0xee};
    snprintf(address, sizeof(address), "127.0.0.1:%u", nodes[1].port);
    ck_assert_int_eq(peer_net_add(nodes[0].net, nodes[1].self.name, address, 2, store), RC_OK);
    introduce(1, 0);
    run_until(never, 300);
    ck_assert_uint_eq(nodes[0].deaths[2], 0);
    ck_assert_int_eq(nodes[0].verdict[2], NODE_SUSPECT);
    ck_assert_ptr_nonnull(strstr(refusal_of(0), "forget_cluster_node"));
    ck_assert_ptr_nonnull(strstr(refusal_of(1), "forget_cluster_node"));
    ck_assert_ptr_nonnull(strstr(refusal_of(1), "join_cluster"));
}
END_TEST

// CR-20. The copy knows the others' addresses, as its disk does.
START_TEST(a_copy_of_a_running_node_is_refused)
{
    pair_start();
    node_start(2);
    struct peer_hello copy = nodes[1].self;
    copy.incarnation++;
    node_stop(2);
    nodes[2].port = 0;
    char listen_at[64] = "127.0.0.1:0";
    struct peer_net_config c = {
        .loop = &loop,
        .clock = env_system_clock(),
        .random = env_system_random,
        .listen = listen_at,
        .secret = span_str("secret"),
        .self = copy,
    };
    ck_assert_int_eq(peer_net_create(&c, &nodes[2].net), RC_OK);
    nodes[2].is_closed = false;
    nodes[2].self = copy;
    introduce(2, 0);
    run_until(never, 400);
    ck_assert_ptr_nonnull(strstr(refusal_of(2), "another process is alive"));
    ck_assert_uint_eq(nodes[0].deaths[2], 0);
    ck_assert(is_01_up());
}
END_TEST

START_TEST(members_of_different_clusters_refuse_each_other)
{
    node_start(0);
    node_start(1);
    nodes[1].self.cluster_id[0] = 8;
    peer_net_set_self(nodes[1].net, &nodes[1].self);
    introduce_all(2);
    run_until(never, 300);
    ck_assert_uint_eq(metrics_of(0).links_open, 0);
    ck_assert_ptr_nonnull(strstr(refusal_of(0), "different clusters"));
    ck_assert_ptr_nonnull(strstr(refusal_of(1), "different clusters"));
}
END_TEST

// ---- tests: blank nodes ------------------------------------------------------------------------------------------

static const char *const names[NODES] = {"n1@localhost", "n2@localhost", "n3@localhost"};
static struct formation_decision form(int i)
{
    struct formation_decision d;
    peer_net_form(nodes[i].net, names, NODES, &d);
    return d;
}
static bool is_founding(void)
{
    return form(0).state == FORMATION_FOUND;
}
static bool is_joining(void)
{
    return form(1).state == FORMATION_JOIN && form(2).state == FORMATION_JOIN;
}
static bool has_join(void)
{
    return nodes[0].join.len > 0;
}
static bool has_reply(void)
{
    return nodes[1].join.len > 0;
}

static void become_member(int i)
{
    nodes[i].self.is_blank = false;
    nodes[i].self.cluster_id[0] = 9;
    nodes[i].self.node_id = (uint32_t)i + 1;
    peer_net_set_self(nodes[i].net, &nodes[i].self);
}

START_TEST(three_blank_nodes_form_a_cluster_and_learn_each_others_ids)
{
    node_start_with(0, "secret", 1, true);
    node_start_with(1, "secret", 1, true);
    introduce(0, 1);
    introduce(1, 0);
    run_until(never, 200);
    ck_assert_int_eq(form(0).state, FORMATION_WAIT);
    ck_assert_str_eq(form(0).reason, "waiting for n3@localhost");
    node_start_with(2, "secret", 1, true);
    introduce_all(NODES);
    ck_assert(run_until(is_founding, 3000));
    ck_assert_int_eq(form(1).state, FORMATION_WAIT);
    become_member(0);
    ck_assert(run_until(is_joining, 3000));
    ck_assert_str_eq(form(2).via, "n1@localhost");

    struct join_request q = {.token = 3, .store_id = {2}};
    snprintf(q.name, sizeof(q.name), "%s", names[1]);
    struct buf b;
    buf_init(&b);
    join_request_encode(&b, &q);
    ck_assert_int_eq(peer_net_send_named(nodes[1].net, names[0], FRAME_JOIN, buf_span(&b)), RC_OK);
    ck_assert(run_until(has_join, 2000));
    ck_assert_str_eq(nodes[0].joiner, names[1]);
    ck_assert(span_equal(buf_span(&nodes[0].join), buf_span(&b)));
    ck_assert_int_eq(peer_net_send_named(nodes[0].net, names[1], FRAME_JOIN_REPLY, buf_span(&b)), RC_OK);
    ck_assert(run_until(has_reply, 2000));
    buf_deinit(&b);

    become_member(1);
    become_member(2);
    ck_assert(run_until(is_mesh_up, 3000));
    ck_assert_uint_eq(nodes[1].resets[3][LANE_LOG], 1);
}
END_TEST

// ---- tests: hostile bytes ----------------------------------------------------------------------------------------

static int connect_to(uint16_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

static size_t resident_pages(void)
{
    size_t total = 0;
    size_t resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert_int_eq(fscanf(f, "%zu %zu", &total, &resident), 2);
    fclose(f);
    return resident;
}

// Plain noise, a good header with noise behind it, a frame that claims to be huge, a cut-off hello.
static size_t make_noise(uint8_t *to, size_t max, uint64_t kind)
{
    size_t n = 1 + rng_below(&rng, max);
    for (size_t i = 0; i < n; i++) {
        to[i] = (uint8_t)rng_next(&rng);
    }
    struct frame_header_wire h = {.total_len = (uint32_t)n, .type = FRAME_HELLO};
    struct buf b;
    buf_init(&b);
    switch (kind % 4) {
    case 1:
        frame_encode_head(&b, FRAME_HELLO, 0, span_of(to, n < 2000 ? n : 2000), 0);
        break;
    case 2:
        h.total_len = (uint32_t)rng_next(&rng);
        h.envelope_len = (uint32_t)rng_below(&rng, 1 << 20);
        buf_bytes(&b, &h, sizeof(h));
        break;
    case 3: {
        struct buf e;
        buf_init(&e);
        peer_hello_encode(&e, &nodes[1].self, false);
        frame_encode_head(&b, FRAME_HELLO, 0, buf_span(&e), 0);
        b.len = rng_below(&rng, b.len);
        buf_deinit(&e);
        break;
    }
    default:
        break;
    }
    if (b.len > 0) {
        n = b.len < max ? b.len : max;
        memcpy(to, b.ptr, n);
    }
    buf_deinit(&b);
    return n;
}

START_TEST(ten_thousand_connections_with_random_bytes_do_no_harm)
{
    pair_start();
    size_t before = resident_pages();
    int open_fds[64];
    for (int i = 0; i < 64; i++) {
        open_fds[i] = -1;
    }
    uint8_t noise[8192];
    for (uint64_t i = 0; i < 10000; i++) {
        int *slot = &open_fds[i % 64];
        if (*slot >= 0) {
            close(*slot);
        }
        *slot = connect_to(nodes[0].port);
        size_t n = make_noise(noise, sizeof(noise), i);
        ssize_t sent = send(*slot, noise, n, MSG_NOSIGNAL);
        ck_assert(sent > 0 || errno == EPIPE || errno == ECONNRESET);
        if (i % 16 == 0) {
            uv_run(&loop, UV_RUN_NOWAIT);
            struct peer_net_metrics m = metrics_of(0);
            ck_assert_uint_le(m.links_greeting, 256);
            ck_assert_uint_le(m.buffer_bytes, 2 << 20);
        }
    }
    for (int i = 0; i < 64; i++) {
        close(open_fds[i]);
    }
    run_until(never, 300);
    ck_assert_uint_gt(metrics_of(0).malformed, 2000);
    ck_assert_uint_eq(metrics_of(0).links_greeting, 0);
    ck_assert(is_01_up());
    ck_assert_uint_eq(nodes[0].deaths[2], 0);
    ck_assert_uint_eq(nodes[0].resets[2][LANE_CONTROL], 1);
#if !defined(__SANITIZE_ADDRESS__)
    ck_assert_uint_lt(resident_pages(), before + 2048);  // 8 MiB.
#else
    (void)before;
#endif
}
END_TEST

// A peer made by hand: knows the secret, then does what it likes. Dials node 0 as n2.
static int fake_dial(enum net_lane lane)
{
    struct peer_hello h = nodes[0].self;
    snprintf(h.name, sizeof(h.name), "n2@localhost");
    h.node_id = 2;
    h.store_id[0] = 2;
    h.lane = lane;
    snprintf(h.address, sizeof(h.address), "127.0.0.1:9");
    int fd = connect_to(nodes[0].port);
    ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    struct handshake hs;
    struct buf to;
    struct buf in;
    buf_init(&to);
    buf_init(&in);
    handshake_dial(&hs, span_str("secret"), &h, "n1@localhost", &to);
    for (int i = 0; hs.state != HANDSHAKE_DONE; i++) {
        ck_assert_int_lt(i, 100000);
        if (to.len > 0) {
            ck_assert_int_eq(send(fd, to.ptr, to.len, MSG_NOSIGNAL), (ssize_t)to.len);
            to.len = 0;
        }
        uv_run(&loop, UV_RUN_NOWAIT);
        ssize_t n = recv(fd, buf_extend(&in, 4096), 4096, 0);
        in.len -= 4096 - (n > 0 ? (size_t)n : 0);
        struct frame f;
        size_t size;
        if (frame_decode(buf_span(&in), &f, &size) == RC_OK) {
            enum rc rc = handshake_step(&hs, &f, &to);
            ck_assert(rc == RC_OK || rc == RC_PENDING);
            buf_consume(&in, size);
        }
    }
    handshake_deinit(&hs);
    buf_deinit(&to);
    buf_deinit(&in);
    return fd;
}

static uint64_t malformed_goal;
static bool is_malformed_counted(void)
{
    return metrics_of(0).malformed >= malformed_goal;
}

START_TEST(garbage_from_a_proven_peer_closes_that_link_and_no_other)
{
    node_start(0);
    nodes[1].self = nodes[0].self;  // For make_noise.
    int control = fake_dial(LANE_CONTROL);
    for (uint64_t i = 0; i < 400; i++) {
        int fd = fake_dial(LANE_LOG);
        uint8_t noise[8192];
        size_t n = make_noise(noise, sizeof(noise), i);
        if (i % 5 == 0) {
            struct frame_header_wire h = {.total_len = FRAME_TOTAL_MAX + 1, .type = FRAME_APPEND};
            memcpy(noise, &h, sizeof(h));
            n = sizeof(h);
        } else if (n < FRAME_HEADER_BYTES) {
            n = FRAME_HEADER_BYTES;
        }
        memset(noise + 12, 0xa5, 4);  // Whatever it is, its sum is wrong.
        ck_assert_int_eq(send(fd, noise, n, MSG_NOSIGNAL), (ssize_t)n);
        malformed_goal = metrics_of(0).malformed + 1;
        struct frame_header_wire sent;
        memcpy(&sent, noise, sizeof(sent));
        if (sent.total_len <= FRAME_TOTAL_MAX && sent.total_len > n) {
            // It waits for the rest, as it must; give it that.
            uv_run(&loop, UV_RUN_NOWAIT);
            ck_assert_uint_le(metrics_of(0).buffer_bytes, FRAME_TOTAL_MAX + (64 << 10));
        } else {
            ck_assert(run_until(is_malformed_counted, 2000));
        }
        close(fd);
    }
    ck_assert_uint_gt(metrics_of(0).malformed, 300);
    ck_assert_uint_eq(metrics_of(0).links_open - (metrics_of(0).links_open > 1), 1);  // Control, and the last at most.
    ck_assert_uint_eq(nodes[0].frames, 0);
    close(control);
}
END_TEST

// n2 as an acceptor by hand that greets and then never reads again.
struct fake_acceptor {
    int listener;
    int fds[LANE_COUNT];
    struct handshake hs[LANE_COUNT];
    uint32_t len;
    uint32_t log_lanes;  // How often lane LOG was greeted.
};
static struct fake_acceptor fake;

static void fake_pump(void)
{
    int fd = accept4(fake.listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd >= 0 && fake.len < LANE_COUNT) {
        struct peer_hello h = nodes[0].self;
        snprintf(h.name, sizeof(h.name), "n2@localhost");
        h.node_id = 2;
        h.store_id[0] = 2;
        fake.fds[fake.len] = fd;
        handshake_listen(&fake.hs[fake.len++], span_str("secret"), &h);
    } else if (fd >= 0) {
        fake.log_lanes++;  // Dialled again.
        close(fd);
    }
    for (uint32_t i = 0; i < fake.len; i++) {
        uint8_t bytes[4096];
        struct handshake *hs = &fake.hs[i];
        ssize_t n = hs->state == HANDSHAKE_DONE ? -1 : recv(fake.fds[i], bytes, sizeof(bytes), 0);
        struct frame f;
        size_t size;
        if (n <= 0 || frame_decode(span_of(bytes, (size_t)n), &f, &size) != RC_OK) {
            continue;
        }
        struct buf to;
        buf_init(&to);
        if (handshake_step(hs, &f, &to) == RC_OK) {
            handshake_accept(hs, &to);
        }
        ck_assert_int_eq(send(fake.fds[i], to.ptr, to.len, MSG_NOSIGNAL), (ssize_t)to.len);
        buf_deinit(&to);
    }
}

static void on_beat_timer(uv_timer_t *t)
{
    (void)t;
}

static bool are_fake_lanes_up(void)
{
    fake_pump();
    struct net *net = peer_net_net(nodes[0].net);
    return net->is_connected(net, 2, LANE_BULK) && net->is_connected(net, 2, LANE_LOG);
}
static bool is_reopened(void)
{
    fake_pump();
    return metrics_of(0).stalls > 0 && fake.log_lanes > 0;
}

static uv_timer_t pump_timer;

// Node 0 and the fake, greeted on all lanes.
static void fake_start(void)
{
    node_start(0);
    memset(&fake, 0, sizeof(fake));
    fake.listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    ck_assert_int_eq(bind(fake.listener, (struct sockaddr *)&a, sizeof(a)), 0);
    ck_assert_int_eq(listen(fake.listener, 16), 0);
    ck_assert_int_eq(getsockname(fake.listener, (struct sockaddr *)&a, &len), 0);
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(a.sin_port));
    ck_assert_int_eq(peer_net_add(nodes[0].net, "n2@localhost", address, 2, NULL), RC_OK);
    // Keeps the loop turning while the fake is pumped by the conditions.
    uv_timer_init(&loop, &pump_timer);
    uv_timer_start(&pump_timer, on_beat_timer, 1, 1);
    ck_assert(run_until(are_fake_lanes_up, 3000));
}

static void fake_drop_links(void)
{
    for (uint32_t i = 0; i < fake.len; i++) {
        handshake_deinit(&fake.hs[i]);
        close(fake.fds[i]);
    }
    fake.len = 0;
}

static void fake_stop(void)
{
    uv_close((uv_handle_t *)&pump_timer, NULL);
    uv_run(&loop, UV_RUN_NOWAIT);
}

// As a dying process may: its port still takes a connection, is gone the moment after.
static bool is_redial_dropped(void)
{
    int fd = accept4(fake.listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0) {
        return fake.log_lanes > 0;
    }
    close(fake.listener);
    close(fd);
    fake.listener = -1;
    fake.log_lanes++;
    return true;
}

START_TEST(a_port_that_takes_one_more_connection_before_it_refuses_is_dead_too)
{
    fake_start();
    fake_drop_links();
    ck_assert(run_until(is_redial_dropped, 1000));
    ck_assert(run_until(is_1_dead, 200));
    fake_stop();
}
END_TEST

START_TEST(a_lane_whose_output_stands_still_for_2_s_is_reopened)
{
    fake_start();
    uint64_t from = clock_mono_ns(env_system_clock());
    struct net *net = peer_net_net(nodes[0].net);
    while (net->queued(net, 2, LANE_LOG) < (4 << 20)) {  // More than both kernels' buffers.
        ck_assert_int_eq(send_raw(0, 1, LANE_LOG, 0, 1 << 20, false), RC_OK);
        net->flush(net);
    }
    ck_assert(run_until(is_reopened, 6000));
    uint64_t ms = (clock_mono_ns(env_system_clock()) - from) / 1000000;
    ck_assert_uint_ge(ms, 1900);
    ck_assert_uint_le(ms, 4000);
    fake_drop_links();
    close(fake.listener);
    fake_stop();
}
END_TEST

static bool are_no_greetings(void)
{
    return metrics_of(0).links_greeting == 0;
}

START_TEST(silent_connections_are_bounded_and_closed_in_time)
{
    node_start(0);
    int fds[400];
    for (int i = 0; i < 400; i++) {
        fds[i] = connect_to(nodes[0].port);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    ck_assert_uint_le(metrics_of(0).links_greeting, 256);
    ck_assert_uint_gt(metrics_of(0).links_greeting, 200);
    ck_assert(run_until(are_no_greetings, 5000));
    for (int i = 0; i < 400; i++) {
        close(fds[i]);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("peer links");
    TCase *c = tcase_create("links");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, two_nodes_greet_on_all_lanes_and_call_each_other_alive);
    tcase_add_test(c, three_nodes_make_a_full_mesh_and_beat);
    tcase_add_test(c, a_node_that_closes_and_refuses_is_dead_within_50_ms);
    tcase_add_test(c, a_restarted_node_is_alive_again_under_its_new_incarnation_and_lanes_are_reset);
    tcase_add_test(c, a_process_killed_under_load_is_dead_within_50_ms);
    tcase_add_test(c, a_removed_peer_is_disconnected_and_forgotten);
    tcase_add_test(c, a_name_is_looked_up_without_blocking);
    tcase_add_test(c, addresses_that_are_none_are_refused);
    tcase_add_test(c, frames_of_all_sizes_arrive_whole_and_in_order);
    tcase_add_test(c, many_borrowed_ranges_in_one_turn_are_written);
    tcase_add_test(c, borrowed_bytes_may_change_after_the_flush);
    tcase_add_test(c, a_full_lane_refuses_and_says_when_there_is_room);
    tcase_add_test(c, buffers_shrink_when_the_lane_is_quiet);
    tcase_add_test(c, a_wrong_secret_is_refused_and_named_on_both_sides);
    tcase_add_test(c, a_known_name_with_another_store_id_is_refused_with_the_cure);
    tcase_add_test(c, a_copy_of_a_running_node_is_refused);
    tcase_add_test(c, members_of_different_clusters_refuse_each_other);
    tcase_add_test(c, three_blank_nodes_form_a_cluster_and_learn_each_others_ids);
    tcase_add_test(c, ten_thousand_connections_with_random_bytes_do_no_harm);
    tcase_add_test(c, garbage_from_a_proven_peer_closes_that_link_and_no_other);
    tcase_add_test(c, a_port_that_takes_one_more_connection_before_it_refuses_is_dead_too);
    tcase_add_test(c, a_lane_whose_output_stands_still_for_2_s_is_reopened);
    tcase_add_test(c, silent_connections_are_bounded_and_closed_in_time);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
