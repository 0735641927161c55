// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus/peer gen
// Throughput of one log lane over loopback: two nets, each on a loop and thread of its own; the sender offers
// batches of frames per turn as a worker does and is held back by the lane's bound. Prints MB/s and the
// processor time of each side.
#include "consensus/peer/peer_net.h"
#include "node/base/limits.h"
#include "node/base/mem.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

struct side {
    uv_loop_t loop;
    struct peer_net *net;
    struct peer_hello self;
    struct net_upcalls upcalls;
    uint64_t bytes, frames, goal;
    size_t frame_bytes;
    uint8_t *payload;
    uv_prepare_t prepare;
    bool is_up, is_done;
    double cpu_s;
    uint64_t begun_ns, ended_ns;
    uint16_t peer_port;
};

static double cpu_now(void)
{
    struct rusage u;
    getrusage(RUSAGE_THREAD, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void on_frame(void *ctx, uint32_t node, enum net_lane lane, const struct frame *f)
{
    (void)node;
    (void)lane;
    struct side *s = ctx;
    s->bytes += f->raw.len;
    s->frames++;
    if (s->bytes >= s->goal && !s->is_done) {
        s->is_done = true;
        struct net *net = peer_net_net(s->net);
        if (net->send(net, 1, LANE_LOG, FRAME_ACK, span_of("done", 4), NULL, 0, false) == RC_OK) {
            net->flush(net);
        }
        s->cpu_s = cpu_now();
        uv_stop(&s->loop);
    }
}

static void on_ack(void *ctx, uint32_t node, enum net_lane lane, const struct frame *f)
{
    (void)node;
    (void)lane;
    (void)f;
    struct side *s = ctx;
    s->is_done = true;
    s->ended_ns = clock_mono_ns(env_system_clock());
    s->cpu_s = cpu_now() - s->cpu_s;
    uv_stop(&s->loop);
}

static void offer(struct side *s)
{
    struct net *net = peer_net_net(s->net);
    while (s->bytes < s->goal) {
        struct iovec raw = {.iov_base = s->payload, .iov_len = s->frame_bytes};
        if (net->send(net, 2, LANE_LOG, FRAME_APPEND, span_of("envelope", 8), &raw, 1, false) != RC_OK) {
            break;
        }
        s->bytes += s->frame_bytes;
        if (net->queued(net, 2, LANE_LOG) >= 512 << 10) {
            net->flush(net);
            if (net->queued(net, 2, LANE_LOG) > 0) {
                break;  // The socket is full: the turn ends.
            }
        }
    }
    net->flush(net);
}

static void on_prepare(uv_prepare_t *p)
{
    struct side *s = p->data;
    struct net *net = peer_net_net(s->net);
    if (s->is_up && net->queued(net, 2, LANE_LOG) == 0) {
        offer(s);
    }
}

static void on_reset(void *ctx, uint32_t node, enum net_lane lane)
{
    (void)node;
    struct side *s = ctx;
    if (lane == LANE_LOG && s->goal && s->payload) {
        s->is_up = true;
        s->begun_ns = clock_mono_ns(env_system_clock());
        s->cpu_s = cpu_now();
    }
}

static void on_writable(void *ctx, uint32_t node, enum net_lane lane)
{
    (void)ctx;
    (void)node;
    (void)lane;
}

static void on_state(void *ctx, uint32_t node, enum node_verdict v, uint64_t incarnation)
{
    (void)ctx;
    (void)node;
    (void)v;
    (void)incarnation;
}

static void side_open(struct side *s, int id)
{
    uv_loop_init(&s->loop);
    s->self = (struct peer_hello){.protocol_min = 1, .protocol_max = 1, .node_id = (uint32_t)id, .incarnation = 1,
                                  .cluster_id = {1}, .store_id = {(uint8_t)id}};
    snprintf(s->self.name, sizeof(s->self.name), "n%d@bench", id);
    s->upcalls = (struct net_upcalls){.frame = id == 1 ? on_ack : on_frame, .reset = on_reset, .writable = on_writable,
                                      .node_state = on_state, .ctx = s};
    struct peer_net_config c = {.loop = &s->loop, .clock = env_system_clock(), .random = env_system_random,
                                .listen = "127.0.0.1:0", .secret = span_str("bench"), .self = s->self,
                                .upcalls = &s->upcalls};
    if (peer_net_create(&c, &s->net) != RC_OK) {
        exit(1);
    }
}

static void side_run(struct side *s, const char *peer)
{
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", s->peer_port);
    if (peer_net_add(s->net, peer, address, 0, NULL) != RC_OK) {
        exit(1);
    }
    uv_run(&s->loop, UV_RUN_DEFAULT);
}

static void *receiver(void *ctx)
{
    side_run(ctx, "n1@bench");
    uv_run(&((struct side *)ctx)->loop, UV_RUN_NOWAIT);
    return NULL;
}

static void run(size_t frame_bytes, uint64_t total)
{
    struct side *a = mem_zalloc(sizeof(*a));
    struct side *b = mem_zalloc(sizeof(*b));
    side_open(a, 1);
    side_open(b, 2);
    a->peer_port = peer_net_port(b->net);
    b->peer_port = peer_net_port(a->net);
    a->goal = b->goal = total / frame_bytes * frame_bytes;
    a->frame_bytes = frame_bytes;
    a->payload = mem_zalloc(frame_bytes);
    uv_prepare_init(&a->loop, &a->prepare);
    a->prepare.data = a;
    uv_prepare_start(&a->prepare, on_prepare);
    pthread_t t;
    if (pthread_create(&t, NULL, receiver, b) != 0) {
        exit(1);
    }
    side_run(a, "n2@bench");
    pthread_join(t, NULL);
    double s = (double)(a->ended_ns - a->begun_ns) / 1e9;
    printf("frames of %8zu bytes: %7.0f MB/s, %9.0f frames/s; processor: sender %3.0f %%, receiver %3.0f %%\n",
           frame_bytes, (double)a->goal / 1e6 / s, (double)a->goal / (double)frame_bytes / s, 100 * a->cpu_s / s,
           100 * b->cpu_s / s);
    // The process ends soon: loops and nets are left to it.
}

int main(void)
{
    run(256, 512ull << 20);
    run(1024, 1ull << 30);
    run(16 << 10, 2ull << 30);
    run(256 << 10, 2ull << 30);
    run(1 << 20, 2ull << 30);
    return 0;
}
