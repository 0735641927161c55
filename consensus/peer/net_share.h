// SPDX-License-Identifier: Apache-2.0
// One net for all workers of a node: worker 0 has the real one (peer_net), each other worker a `struct net` of its own
// that hands what it sends to worker 0, once a turn; upcalls reach every worker in the order in which they happened.
//
// Frames go to the worker whose number the sender's worker has (modulo our workers), because counters and streams are
// kept per pair of workers; what else is for another worker is passed on by the host. Threads: see each function.
#pragma once
#include "consensus/host/net.h"

struct net_share;

struct net_share_config {
    struct net *net;    // The real one; worker 0's. Must have send_encoded if there are several workers.
    uint32_t workers;   // At most FRAME_WORKERS_MAX.
    // Runs fn(arg) on a worker, in the order of the calls of one thread. Called by any worker. May be NULL with one.
    void (*post)(void *ctx, uint32_t worker, void (*fn)(void *arg), void *arg);
    void *post_ctx;
};

struct net_share *net_share_create(const struct net_share_config *config);
// When no worker runs any more.
void net_share_destroy(struct net_share *s);

// The net of a worker. Any thread; used on that worker only.
struct net *net_share_net(struct net_share *s, uint32_t worker);
// Whom a worker's upcalls go to; called on that worker before anything is posted to it that came from the net.
void net_share_listen(struct net_share *s, uint32_t worker, const struct net_upcalls *upcalls);
// For the real net. Worker 0.
const struct net_upcalls *net_share_upcalls(struct net_share *s);

// Hands a frame to the upcalls of another worker (host_config.pass_on). Copies. Any worker.
void net_share_pass_on(struct net_share *s, uint32_t worker, uint32_t node, enum net_lane lane, uint16_t type,
                       struct span envelope, struct span raw);

// Worker 0, start of each turn: posts what upcalls brought for the others.
void net_share_begin(struct net_share *s);
// Worker 0, end of each turn: flushes the real net, then publishes what the other workers' nets answer from.
void net_share_flush(struct net_share *s);
