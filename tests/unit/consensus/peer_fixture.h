// SPDX-License-Identifier: Apache-2.0
// Nodes with real loopback sockets on one loop, for test_peer_links.c and test_peer_hostile.c. Conditions are awaited
// with a deadline; upcalls are recorded in struct node.
#pragma once
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

// Not every file uses every helper.
#pragma GCC diagnostic ignored "-Wunused-function"

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
    uint32_t levels[NODES + 1];  // As of the last reset.
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
    struct node *n = ctx;
    n->resets[id][lane]++;
    n->levels[id] = peer_net_net(n->net)->level(peer_net_net(n->net), id);
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
        .feature_level = (uint32_t)i + 70,
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

static bool is_1_dead(void)
{
    return nodes[0].verdict[2] == NODE_DEAD;
}
