// SPDX-License-Identifier: Apache-2.0
// The broker of one worker: what exists (vhosts, exchanges, queues, bindings, users, permissions), as
// projected from the metadata store, routing over it, and the operations that change it. Protocol sessions
// know queues and exchanges only through this header.
//
// Lookups return records of the worker's own projection: borrowed until the end of the loop turn, no lock, no LMDB.
// Operations are asynchronous: `done` is called once on the same worker, never from inside the call, with a
// `broker_result` that already has RabbitMQ's reply code and text (data-plane §1.10), so sessions only pass it on.
// Records and paths: broker/README.md (RabbitMQ's layout, operator-plane §4.2). Thread: the worker's.
#pragma once
#include "metastore/metastore.h"
#include "node/queue/queue.h"
#include "proto/amqp09/table.h"

struct broker;

struct broker_config {
    uint32_t worker;
    uint32_t node_id;
    const char *node_name;
    struct metastore *metastore;
    struct queue_service *queues;
    struct host *host;
    const char *default_queue_type;  // "quorum", "classic", "stream"
    uint32_t quorum_initial_size;    // 3
    bool is_leader_balanced;         // queue_leader_locator = balanced; else client-local.
    // quorum_queue.continuous_membership_reconciliation.*: members are added up to a target (0: none).
    bool is_reconciling;
    uint32_t reconcile_target;
    uint64_t reconcile_interval_ms, reconcile_trigger_ms;
    // Which worker owns a group; runs fn on a worker at its next turn (never inside the call).
    uint32_t (*worker_of)(void *ctx, uint64_t group);
    void (*post)(void *ctx, uint32_t worker, void (*fn)(void *arg), void *arg);
    // What the store recovered of a group at start-up, for the replica that the group's record names here; NULL:
    // nothing, and nothing was lost. Read at once.
    const struct store_group *(*recovered)(void *ctx, uint64_t group, uint64_t replica_id);
    // A node record appeared, changed or went (is_known false). Worker 0 only.
    void (*node_changed)(void *ctx, struct span name, uint32_t node_id, struct span store_id,
                         struct span address, bool is_known);
    void *ctx;
};
struct broker *broker_create(const struct broker_config *config);
void broker_destroy(struct broker *b);
const struct meta_subscriber *broker_subscriber(struct broker *b);  // To be given to metastore_subscribe.
// Writes what a new cluster starts with, in one command (decision 6): the founding node, vhost "/", its predeclared
// exchanges, the default user with its permissions. RC_EXISTS: it has been written before.
struct broker_founding {
    struct span node_name, store_id, address;
    uint32_t node_id;
    uint64_t replica_id;
    struct span user, password;
};
void broker_found(struct broker *b, const struct broker_founding *f, meta_done_fn *done, void *ctx);

// ---- what exists -------------------------------------------------------------------------------------------------

enum exchange_type { EXCHANGE_DIRECT, EXCHANGE_FANOUT, EXCHANGE_TOPIC, EXCHANGE_HEADERS };
enum queue_type { QUEUE_QUORUM, QUEUE_CLASSIC, QUEUE_STREAM };

struct broker_result;
typedef void broker_done_fn(void *ctx, const struct broker_result *r);

struct broker_vhost;
struct broker_exchange {
    struct span name;  // "" is the default exchange.
    enum exchange_type type;
    bool is_durable, is_auto_delete, is_internal;
    struct span arguments;  // Field table, encoded, without its length.
};
struct broker_queue {
    struct span name;
    enum queue_type type : 8;
    bool is_durable : 1, is_single_active : 1;
    uint8_t joining, non_voters;  // Members by position (bits): announced, not known to be in the group; not
                                  // to be promoted.
    uint8_t filling;              // Likewise: announced or in the group, not known to vote yet.
    uint8_t lost;                 // Likewise: lost their memory, to be made anew.
    uint8_t vacant;               // Likewise: places of forgotten nodes, no member of the group any more.
    struct span arguments;
    const struct queue_target *target;  // Cut behind its last member; another one after a change of members.
};

struct broker_vhost *broker_vhost_find(struct broker *b, struct span name);
const struct broker_exchange *broker_exchange_find(struct broker_vhost *v, struct span name);
const struct broker_queue *broker_queue_find(struct broker_vhost *v, struct span name);
void broker_vhost_each(struct broker *b, void (*each)(void *ctx, struct broker_vhost *v, struct span name), void *ctx);
void broker_exchange_each(struct broker_vhost *v, void (*each)(void *ctx, const struct broker_exchange *x), void *ctx);
void broker_queue_each(struct broker_vhost *v, void (*each)(void *ctx, const struct broker_queue *q), void *ctx);
struct broker_binding {
    struct span source, destination, key, arguments;
    bool to_queue;  // Else to an exchange.
};
void broker_binding_each(struct broker_vhost *v, void (*each)(void *ctx, const struct broker_binding *x), void *ctx);
// Rises with every change of the projection: a session may cache a route or permission with it.
uint64_t broker_version(const struct broker *b);
bool broker_is_loaded(const struct broker *b);  // The metastore's content is here: listeners may open.
// The record of a queue could not be read, or its replica here not started: a group that no queue names may
// be that one's.
bool broker_has_unread(const struct broker *b);

// The nodes of the cluster.
struct broker_node {
    struct span name, store_id, address;
    uint32_t node_id;
    uint64_t replica_id;  // In the metadata group.
    uint64_t version;     // Of the record.
    bool is_draining;     // In maintenance mode: it gets no leads (operator-plane §5.6).
    const uint32_t *former_ids;  // Node ids this name had before its disk was lost, oldest first: retired for ever.
    uint32_t former_ids_count;
};
void broker_node_each(struct broker *b, void (*each)(void *ctx, const struct broker_node *n), void *ctx);
const struct broker_node *broker_node_find(struct broker *b, struct span name);
const struct broker_node *broker_node_by_id(struct broker *b, uint32_t node_id);
// The node that took the place of a retired node id (same name, new disk, new ids), or NULL: the id is in
// use, was forgotten, or is unknown. A queue with a member on the retired id gets a new replica, with a new
// replica id, on this node.
const struct broker_node *broker_node_successor(struct broker *b, uint32_t retired_id);
// Command that makes a joining node known; the store gives it node and replica ids (node_id = low 32 bits of
// the first id).
void broker_node_put(struct broker *b, struct span name, struct span store_id, struct span address,
                     broker_done_fn *done, void *ctx);
// The node of this name came back with another disk (law 2): one command gives it new ids and retires the old
// ones, if its record still has that version (else RC_CONFLICT; RC_NOT_FOUND without one).
void broker_node_replace(struct broker *b, const struct broker_node *known, struct span store_id,
                         struct span address, broker_done_fn *done, void *ctx);
// Marks a node as in maintenance mode, or not.
void broker_node_maintenance(struct broker *b, struct span name, bool is_draining, broker_done_fn *done, void *ctx);
// Forgets a node: deletes its record (RC_NOT_FOUND without one). Its ids are never given again.
void broker_node_delete(struct broker *b, struct span name, broker_done_fn *done, void *ctx);

// ---- users -------------------------------------------------------------------------------------------------------

// Checks a password against the salted hash (operator-plane §6.1). Copied fields into *out.
struct broker_user {
    char name[256];
    bool is_impersonator;
};
MUST_USE bool broker_authenticate(struct broker *b, struct span user, struct span password, struct broker_user *out);
void broker_user_each(struct broker *b, void (*each)(void *ctx, struct span name, bool is_administrator), void *ctx);
void broker_permission_each(struct broker_vhost *v,
                            void (*each)(void *ctx, struct span user, const char *const patterns[3]),
                            void *ctx);
bool broker_user_exists(struct broker *b, struct span user);
bool broker_may_enter(struct broker *b, struct span user, struct broker_vhost *v);  // Has permissions there.
enum broker_access { ACCESS_CONFIGURE, ACCESS_WRITE, ACCESS_READ };
// PCRE2 patterns, compiled once and cached per (user, vhost). `name` of the default exchange is "amq.default".
MUST_USE bool broker_allowed(struct broker *b, struct span user, struct broker_vhost *v,
                             enum broker_access access, struct span name);

// ---- routing -----------------------------------------------------------------------------------------------------

enum { BROKER_ROUTE_INLINE = 16 };
struct broker_route {
    uint32_t count;
    const struct broker_queue **queues;  // Each once. Borrowed until the next broker_route on this worker.
};
// All of an exchange graph, cycle safe, alternate exchange included. `headers` is the message's header table
// (may be empty).
void broker_route(struct broker *b, struct broker_vhost *v, const struct broker_exchange *x, const struct span *keys,
                  uint32_t keys_count, struct span headers, struct broker_route *out);

// ---- operations --------------------------------------------------------------------------------------------------

struct broker_result {
    enum rc rc;            // RC_OK or the kind of failure.
    uint16_t code;         // AMQP reply code (0 if RC_OK).
    bool is_connection_error;  // Else a channel error.
    char text[256];        // Explanation part of the reply text.
};

// Every operation checks, in RabbitMQ's order: names, permissions (user), existence, equivalence. `user` may
// be empty for the system itself. Strings are copied. Not found is proven by a fence first (decision 16).
struct broker_exchange_declare {
    struct span name, type;
    bool is_passive, is_durable, is_auto_delete, is_internal;
    struct span arguments;
};
void broker_exchange_declare(struct broker *b, struct broker_vhost *v, struct span user,
                             const struct broker_exchange_declare *d, broker_done_fn *done, void *ctx);
void broker_exchange_delete(struct broker *b, struct broker_vhost *v, struct span user, struct span name,
                            bool if_unused, broker_done_fn *done, void *ctx);
struct broker_queue_declare {
    struct span name;
    bool is_passive, is_durable, is_exclusive, is_auto_delete;
    struct span arguments;
};
// On success the queue is in the projection and its group has been asked to start.
void broker_queue_declare(struct broker *b, struct broker_vhost *v, struct span user,
                          const struct broker_queue_declare *d, broker_done_fn *done, void *ctx);
void broker_queue_delete(struct broker *b, struct broker_vhost *v, struct span user, struct span name,
                         bool if_unused, bool if_empty, broker_done_fn *done, void *ctx);
struct broker_bind {
    struct span source, destination, key, arguments;
    bool to_queue;
    bool is_unbind;
};
// Members of a quorum queue (README.md, "Members of a queue"). Asked on the worker that owns the group, on
// the node that leads it; answered once, within `timeout_ms`. RC_OK: so it is now. RC_EXISTS: it was so.
// RC_NOT_LEADER: ask the leader (if this node led and was to leave, it hands over first). RC_BUSY: another
// request concerns this queue. RC_INVALID: the last member.
// RC_NOT_CONNECTED: the node is not up. RC_NO_QUORUM, RC_TIMEOUT: not done, as far as this node knows. RC_NOT_FOUND,
// RC_TOO_LARGE. All with a text.
enum broker_member_how { MEMBER_PROMOTABLE, MEMBER_VOTER, MEMBER_NON_VOTER };
struct broker_member_change {
    uint64_t group;
    bool is_removal;
    uint32_t node_id;
    enum broker_member_how how;  // When adding. MEMBER_VOTER: answered once it votes.
};
void broker_member_change(struct broker *b, const struct broker_member_change *c, uint32_t timeout_ms,
                          broker_done_fn *done, void *ctx);
// From queue_service_config.led. `owner` is a queue of this broker.
void broker_queue_led(struct broker *b, void *owner);
// From queue_service_config.lost, likewise: the record is to say so, that the leader replaces this node's replica.
void broker_queue_lost(struct broker *b, void *owner);
// Does a majority of the queue's voters remember what it promised, on nodes that `is_here` says are there, without what
// `node_id` holds? It lives as well if that node has no member. A member that is joining, being filled, not to be promoted or
// lost is none, nor is a vacant place one to be counted. It lives soon if it lived with those that are being filled: they
// may vote already, and the record says so later.
enum broker_queue_without { QUEUE_DIES, QUEUE_LIVES_SOON, QUEUE_LIVES };
enum broker_queue_without broker_queue_without(const struct broker_queue *q, uint32_t node_id,
                                               bool (*is_here)(void *ctx, uint32_t node_id), void *ctx);
// The same of a group on this node, `own_id`, by what its status `s` says; true as well if that node has no voter in it.
struct consensus_status;
bool broker_group_lives_without(const struct consensus_status *s, uint32_t node_id, uint32_t own_id,
                                bool (*is_here)(void *ctx, uint32_t node_id), void *ctx);
// Every turn of the worker, before host_turn. Returns when it wants to run again.
uint64_t broker_turn(struct broker *b);

void broker_bind(struct broker *b, struct broker_vhost *v, struct span user, const struct broker_bind *d,
                 broker_done_fn *done, void *ctx);

void broker_user_put(struct broker *b, struct span name, struct span password, bool must_exist,
                     bool must_be_new, broker_done_fn *done, void *ctx);
void broker_user_delete(struct broker *b, struct span name, broker_done_fn *done, void *ctx);
void broker_permissions_put(struct broker *b, struct span user, struct span vhost, struct span configure,
                            struct span write, struct span read, broker_done_fn *done, void *ctx);
