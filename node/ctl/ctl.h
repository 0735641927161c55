// SPDX-License-Identifier: Apache-2.0
// Administration: requests of warrenctl, from the node's Unix socket or from another node.
//
// A request is one line of JSON {"verb", "args": [...], "options": {...}, "node": NAME or absent}; the answer
// is one line {"exit": N, ...} (see ctl/README.md). The socket is served by the admin thread (ctl_socket.c);
// requests run on worker 0 (ctl_run.c), which asks other workers and nodes where it must. File permissions
// guard the socket (0600).
#pragma once
#include "node/alarm/alarms.h"
#include "node/amqp09/amqp09.h"
#include "node/broker/broker.h"
#include <jansson.h>
#include <uv.h>

struct ctl;
struct monitor;

struct ctl_config {
    const char *node_name;
    const char *cluster_name;
    const char *data_dir;
    const char *socket_path;
    uint32_t node_id, workers;
    struct host *host;            // Worker 0's; NULL until the node has an identity: ctl_attach.
    uv_loop_t *loop;              // Worker 0's.
    const struct alarms *alarms;  // Worker 0's.
    struct monitor *monitor;
    void (*admin_started)(void *ctx, uv_loop_t *loop);  // First thing on the admin thread.
    // Runs fn on a worker.
    void (*post)(void *ctx, uint32_t worker, void (*fn)(void *arg), void *arg);
    // A worker's AMQP connections (NULL: not yet), to be called on that worker.
    struct amqp09 *(*amqp)(void *ctx, uint32_t worker);
    // Which worker owns a group; what a worker has (to be used on that worker).
    uint32_t (*worker_of)(void *ctx, uint64_t group);
    struct queue_service *(*queues)(void *ctx, uint32_t worker);
    struct host *(*host_of)(void *ctx, uint32_t worker);
    struct broker *(*broker_of)(void *ctx, uint32_t worker);
    void (*stop)(void *ctx);                // Ends the process in good order.
    // What the node waits for before it is up; NULL or "" when it is up.
    const char *(*waiting_for)(void *ctx);
    // Starts joining the cluster of another node ("NAME" or "NAME=host:port"). `done` once; RC_PENDING: the
    // process starts itself again, which is to be asked again.
    void (*join)(void *ctx, const char *node, void (*done)(void *arg, enum rc rc, const char *text), void *arg);
    // Removes a node that is down from the cluster. `done` once.
    void (*forget)(void *ctx, const char *node, void (*done)(void *arg, enum rc rc, const char *text), void *arg);
    // Maintenance mode on or off. `done` once; RC_OK may come with a text that says what could not be done.
    void (*maintenance)(void *ctx, bool is_on, void (*done)(void *arg, enum rc rc, const char *text), void *arg);
    bool (*is_draining)(void *ctx);
    // Listeners as JSON: [{"protocol","interface","port","purpose"}]. New reference.
    json_t *(*listeners)(void *ctx);
    void *ctx;
};

MUST_USE enum rc ctl_start(const struct ctl_config *config, struct ctl **out);
void ctl_stop(struct ctl *c);
// Worker 0: the node is a member now.
void ctl_attach(struct ctl *c, struct host *host, struct broker *broker, struct queue_service *queues,
                struct metastore *metastore, uint32_t node_id);

// Worker 0, each turn: time-outs of what other nodes were asked. Returns when it wants to run again.
uint64_t ctl_turn(struct ctl *c);

// Runs a request on worker 0. `done` gets the answer (a new reference) once, on worker 0.
typedef void ctl_done_fn(void *ctx, json_t *answer);
void ctl_run(struct ctl *c, json_t *request, ctl_done_fn *done, void *ctx);
