// SPDX-License-Identifier: Apache-2.0
// What the files of node/ctl share.
#pragma once
#include "node/ctl/ctl.h"
#include <uv.h>

struct ctl {
    struct ctl_config config;
    struct broker *broker;  // NULL until attached.
    struct queue_service *queues;
    struct metastore *metastore;
    struct map remote;      // request id -> struct remote_call
    uint64_t next_request;
    uint64_t started_ns;
    struct ctl_socket *socket;
    struct list timers;     // struct ctl_timer.
    bool is_rebalancing;
};

// Runs fn once on worker 0, after `ms` and never from inside the call. The timer is the caller's until then.
struct ctl_timer {
    struct list link;
    uint64_t due;
    void (*fn)(void *arg);
    void *arg;
};
void ctl_after(struct ctl *c, uint32_t ms, void (*fn)(void *arg), void *arg, struct ctl_timer *t);

// One running request. Freed by ctl_answer.
struct ctl_request {
    struct ctl *ctl;
    json_t *request;  // Owned.
    ctl_done_fn *done;
    void *ctx;
    // For verbs that gather from several sources:
    json_t *rows;
    json_t *banner;  // NULL: the answer has its own, or none.
    uint32_t waiting;
    bool is_collecting;
    uint64_t deadline_ns;
};

const char *request_arg(struct ctl_request *r, size_t i);  // NULL if absent.
const char *request_option(struct ctl_request *r, const char *name, const char *otherwise);
struct broker_vhost *request_vhost(struct ctl_request *r);  // NULL: answered.

void request_banner(struct ctl_request *r, const char *banner);  // Printed before what the request ends with.

// Each ends the request. Exit codes: operator-plane §1.2.
void ctl_answer(struct ctl_request *r, json_t *answer);  // Takes.
void ctl_ok(struct ctl_request *r, const char *message);  // message may be NULL.
void ctl_error(struct ctl_request *r, int exit_code, const char *format, ...) __attribute__((format(printf, 3, 4)));
void ctl_object(struct ctl_request *r, json_t *object);  // Takes.
// A list: banner, columns (a JSON array of names) and rows (arrays of values). Takes both.
void ctl_list(struct ctl_request *r, const char *banner, json_t *columns, json_t *rows);
// The chosen columns of args, or the default ones ("a b c"); NULL if one is unknown (answered). `known` likewise.
json_t *request_columns(struct ctl_request *r, const char *otherwise, const char *known);
// Picks the columns' values out of an object into an array (null where absent).
json_t *row_of(json_t *columns, json_t *object);

enum {
    EXIT_OK = 0,
    EXIT_USAGE = 64,
    EXIT_DATAERR = 65,
    EXIT_NOUSER = 67,
    EXIT_UNAVAILABLE = 69,
    EXIT_SOFTWARE = 70,
    EXIT_TEMPFAIL = 75
};

typedef void verb_fn(struct ctl_request *r);
// Verbs by file.
verb_fn verb_status, verb_cluster_status, verb_ping, verb_await_startup, verb_await_online_nodes,
    verb_join_cluster, verb_forget_cluster_node, verb_stop;
verb_fn verb_alarms, verb_check_alarms, verb_check_local_alarms, verb_set_disk_free_limit,
    verb_set_vm_memory_high_watermark;
verb_fn verb_list_queues, verb_list_exchanges, verb_list_bindings, verb_list_connections, verb_list_consumers,
    verb_list_users, verb_list_vhosts, verb_list_permissions, verb_list_user_permissions, verb_list_channels;
verb_fn verb_drain, verb_revive, verb_check_critical, verb_await_quorum_plus_one;
verb_fn verb_quorum_status, verb_transfer_leadership, verb_delete_queue, verb_purge_queue;
verb_fn verb_add_member, verb_delete_member, verb_grow, verb_shrink, verb_rebalance, verb_local_change,
    verb_local_leaders;
verb_fn verb_add_user, verb_change_password, verb_delete_user, verb_set_permissions, verb_authenticate_user;
verb_fn verb_local_connections, verb_local_channels, verb_local_member, verb_local_transfer,
    verb_local_consumers;  // Asked by other nodes.

// Asks another node; `done` gets its answer or an {"exit": 69, "error": ...} after a time-out. Takes `request`.
void ctl_ask(struct ctl *c, uint32_t node_id, json_t *request, uint32_t timeout_ms, ctl_done_fn *done, void *ctx);
void ctl_remote_attach(struct ctl *c);
const char *node_name_of(struct ctl *c, uint32_t node_id);  // "?" if unknown; valid until the end of the turn.

// ctl_member.c: one change of one queue's members, wherever its leader is; answered within timeout_ms, on
// worker 0. Codes and texts of broker_member_change; RC_NO_QUORUM also when no leader was found.
typedef void ctl_member_fn(void *ctx, enum rc rc, const char *text);
void ctl_member_change(struct ctl *ctl, struct span vhost, const struct broker_queue *q,
                       const struct broker_member_change *what, uint32_t timeout_ms, ctl_member_fn *done,
                       void *ctx);

// verbs_member.c: the quorum queues that --vhost-pattern and --queue-pattern name; false: one does not
// compile (answered).
bool request_queues(struct ctl_request *r,
                    void (*each)(void *ctx, struct span vhost, const struct broker_queue *q), void *ctx);

// ctl_local.c: looks at the replica of a group on this node, whichever worker owns it, and with `transfer_to`
// asks it to hand leadership to that node. `done` is called on worker 0, later.
struct ctl_replica {
    uint64_t group;
    bool is_here;
    bool is_asleep;  // Its machine is not restored yet: `info` is empty.
    struct queue_info info;
    struct consensus_status status;
    enum rc rc;  // Of the transfer: RC_EXISTS if it leads already.
};
typedef void ctl_look_fn(void *ctx, const struct ctl_replica *r);
void ctl_look(struct ctl *c, uint64_t group, uint32_t transfer_to, ctl_look_fn *done, void *ctx);
// For what the replica holds, where nobody else tells: one that is asleep is to wake, and is looked at again until it
// has, for CTL_WAKE_MS at most.
enum { CTL_WAKE_MS = 1000 };
void ctl_look_awake(struct ctl *c, uint64_t group, ctl_look_fn *done, void *ctx);

// ctl_socket.c: worker 0 side and admin thread side of one exchange.
MUST_USE enum rc ctl_socket_start(struct ctl *c);
void ctl_socket_stop(struct ctl *c);
// verbs_alarm.c: for status and cluster_status.
json_t *alarms_json(struct ctl *c);  // New reference.
void alarms_status(struct ctl *c, json_t *status);
json_t *json_span(struct span s);  // Non-UTF-8 bytes become base64.
json_t *json_text(const char *text);   // What was cut off inside a character loses the rest of it; other bytes that are not UTF-8 become '?'.
// AMQP arguments as an array of [key, type, value], as RabbitMQ's JSON has them.
json_t *json_table(struct span table);
