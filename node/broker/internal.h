// SPDX-License-Identifier: Apache-2.0
// The projection's structs, shared by the files of node/broker only.
//
// Owner thread: the broker's worker. Everything hangs off struct broker and is changed only by projection.c,
// from changes that the metadata store tells in order.
#pragma once
#define PCRE2_CODE_UNIT_WIDTH 8
#include "node/base/map.h"
#include "node/broker/broker.h"
#include <pcre2.h>

struct binding {
    struct list in_source;       // Of source->bindings, in order of arrival.
    struct list in_destination;  // Of the destination's `incoming`; empty while the destination is unknown.
    struct exchange *source;
    struct exchange *to_exchange;  // One of the two, or neither while the destination is not (yet) known.
    struct queue *to_queue;
    bool is_to_queue;
    uint64_t told;               // Generation of the projection that last told of it.
    char *leaf;                  // Name in the store.
    struct span destination, key, arguments;  // Owned copies.
};

struct topic_node;

struct exchange {
    struct broker_exchange pub;  // First.
    struct broker_vhost *vhost;
    struct list bindings;   // struct binding.in_source
    struct list incoming;   // struct binding.in_destination of exchange-to-exchange bindings
    struct map by_leaf;     // "kind/destination/leaf" -> binding
    struct map by_key;      // direct: key -> struct binding_set
    struct topic_node *topic;
    struct span alternate;  // Inside pub.arguments; len 0 and ptr NULL: none.
    uint64_t visited;       // Route number that has been here.
    uint64_t told;
    bool had_binding;       // Was a source once: an auto-delete exchange goes only then.
};

struct binding_set {
    struct binding **items;
    uint32_t count, cap;
};

struct queue {
    struct broker_queue pub;  // First.
    struct broker_vhost *vhost;
    struct list incoming;
    uint64_t visited;
    uint64_t version;                   // Of the record.
    uint32_t told;                      // As in the other structs, cut.
    uint8_t founders_count;
    bool has_founders;                  // Nodes of the founding members are not those of pub.target: they stand behind it.
    struct change *change;              // Its members are not as they should be and this worker leads it
                                        // (membership.c); else NULL.
    struct telling *telling;            // Its replica here is lost, and the record does not say so yet; else NULL
                                        // (membership_lost.c).
    uint64_t tail[];                    // The first pub.target, pub.name and pub.arguments.
};
static_assert(sizeof(struct queue) <= 112, "an idle queue costs one small struct (engine-notes 7.9)");

struct permission {
    char *patterns[3];  // Configure, write, read.
    pcre2_code *code[3];
    uint64_t told;
};

struct broker_vhost {
    struct broker *broker;
    char *name;
    char *default_queue_type;  // NULL: the node's.
    struct map exchanges, queues, permissions;
    struct list waiting;  // struct binding.in_destination: destination not there (yet).
    uint64_t told;
    struct exchange *default_exchange;  // Not stored; there in every vhost.
};

struct user {
    uint8_t *hash;
    size_t hash_len;
    bool is_impersonator, is_administrator;
    uint64_t told;
};

struct node {
    struct broker_node pub;
    char *name;
    uint64_t told;
};

struct broker {
    struct broker_config config;
    struct meta_subscriber subscriber;
    struct map vhosts, users, nodes;
    struct map draining;  // Name of a node in maintenance mode -> generation that told of it (uint64_t)
    struct map replicas_by_node, leads_by_node;  // node id -> queues with a member, a first member there (a
                                                 // number in the pointer)
    uint64_t version;
    uint64_t generation;  // Raised by each reset.
    bool is_loaded, is_closing;
    bool has_unread;  // broker_has_unread.
    bool is_resetting;  // Everything is being told again.
    struct membership *membership;
    uint64_t route_number;
    const struct broker_queue **route;  // Result of the last broker_route.
    uint32_t route_count, route_cap;
    pcre2_match_data *match;
};

// projection.c
struct exchange *vhost_exchange(struct broker_vhost *v, struct span name);
struct queue *vhost_queue(struct broker_vhost *v, struct span name);
struct span copy_span(struct span s);
void free_span(struct span s);
void resolve_waiting(struct broker_vhost *v, struct span name, bool is_queue);  // A destination came.
void forget_destination(struct list *incoming);

// projection_queue.c
uint32_t node_replica_count(struct broker *b, uint32_t node_id);
uint32_t node_lead_count(struct broker *b, uint32_t node_id);
void queue_told(struct broker_vhost *v, struct span name, const struct meta_change *c);
void queue_remove(struct broker_vhost *v, struct queue *q);  // Its replica here and its data go, too.
// The group's members when it was made: where every replica begins, whenever it is made.
void queue_founding(const struct queue *q, struct queue_target *out);

// membership.c
void membership_init(struct broker *b);
void membership_deinit(struct broker *b);
void membership_note(struct broker *b, struct queue *q);     // Look at its members soon, if it is led here.
void membership_queue_gone(struct broker *b, struct queue *q);
void membership_nodes_changed(struct broker *b);            // Look at all that are led here.

// nodes.c
void nodes_init(struct broker *b);
void nodes_deinit(struct broker *b);
void nodes_sweep(struct broker *b);
void nodes_change(struct broker *b, struct span name, const struct meta_change *c);
void nodes_maintenance_change(struct broker *b, struct span name, const struct meta_change *c);
// Puts a node's record, with ids if they are not 0; with `known` in its place, and its node id is retired.
void node_record_put(struct meta_command *c, struct span name, struct span store_id, struct span address,
                     uint32_t node_id, uint64_t replica_id, const struct broker_node *known);

// topic.c
struct topic_node *topic_create(void);
void topic_destroy(struct topic_node *t);
void topic_add(struct topic_node *t, struct binding *b);
void topic_remove(struct topic_node *t, struct binding *b);
void topic_match(struct topic_node *t, struct span key, void (*each)(void *ctx, struct binding *b), void *ctx);

// headers.c
bool headers_match(struct span arguments, struct span headers);
// NULL, or why the binding arguments are refused (406).
const char *headers_check(struct span arguments, char *text, size_t text_size);

void binding_set_add(struct binding_set *s, struct binding *b);
bool binding_set_remove(struct binding_set *s, struct binding *b);  // True if it is empty afterwards.

// paths.c
struct meta_path path_node(struct span name);
struct meta_path path_maintenance(struct span name);
struct meta_path path_user(struct span name);
struct meta_path path_vhost(struct span vhost);
struct meta_path path_permission(struct span vhost, struct span user);
struct meta_path path_exchange(struct span vhost, struct span name);
struct meta_path path_queue(struct span vhost, struct span name);
struct meta_path path_binding(struct span vhost, struct span source, bool to_queue, struct span destination,
                              struct span leaf);
enum { LEAF_BYTES = 64 };
// The binding's name among those of the same source and destination: hex of SHA-256 over key and sorted arguments.
void binding_leaf(struct span key, struct span arguments, char leaf[LEAF_BYTES + 1]);

const char *exchange_type_name(enum exchange_type t);
bool exchange_type_parse(struct span name, enum exchange_type *out);
const char *queue_type_name(enum queue_type t);
bool queue_type_parse(struct span name, enum queue_type *out);
void queue_settings_from(struct span arguments, struct queue_settings *out);
