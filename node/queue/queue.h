// SPDX-License-Identifier: Apache-2.0
// Queue sessions as a channel sees them: the one path to a queue, wherever its leader is (decision 1).
//
// A `struct queue_session` joins one channel and one queue. What the channel hands in is kept until it has been applied
// by the queue's state machine, and sent again after a new leader, a reset link or a hint; repeats are answered, never
// applied twice. The session hides elections: calls only ever wait. State diagram and failure table: queue/README.md.
//
// Thread: the worker of the channel's connection. No call back happens from inside a call.
#pragma once
#include "consensus/host/host.h"

struct queue_service;  // One per worker: its sessions, and the replicas' side of other nodes' and workers' sessions.
struct queue_session;

// What the router knows of a queue (from the projection); copied where it is kept.
struct queue_target {
    uint64_t group;        // Of the queue's consensus group. Names the queue for ever, unlike its name.
    uint32_t members_count;
    struct member members[LIMIT_VOTERS];
};
// The broker keeps a target only as long as its members: one that is borrowed is copied with this, never by assignment.
static inline void queue_target_copy(struct queue_target *to, const struct queue_target *from)
{
    to->group = from->group;
    to->members_count = from->members_count;
    memcpy(to->members, from->members, from->members_count * sizeof(from->members[0]));
}

struct queue_message {
    uint64_t number;        // Delivery number, consecutive per consumer, from 1.
    uint32_t acquired_count;  // Times it came back before: redelivered if > 0 (x-acquired-count).
    uint32_t delivery_count;  // Failed deliveries before (x-delivery-count).
    struct span exchange, routing_key;  // As first published (the first routing key).
    struct span header;     // Raw content header payload behind class/weight/size: property flags and properties.
    struct span body;
    // All spans are borrowed for the call.
};

enum queue_settle {
    QUEUE_ACK,       // Done.
    QUEUE_RELEASE,   // basic.nack requeue: back, acquired-count + 1.
    QUEUE_RETURN,    // basic.reject requeue: back, acquired and delivery-count + 1.
    QUEUE_DISCARD,   // nack/reject without requeue: dropped (dead-lettered later).
};

struct queue_callbacks {
    // Every publish up to sequence `through` has an outcome; those listed in `rejected` (ascending) were not accepted.
    void (*settled)(void *ctx, struct queue_session *s, uint64_t through, const uint64_t *rejected,
                    uint32_t rejected_count);
    void (*deliver)(void *ctx, struct queue_session *s, uint32_t consumer, const struct queue_message *m);
    // Answers to consume / cancel / get / purge. get: message or NULL for empty; ready = what is left.
    // RC_CORRUPT: the message it took cannot be read; it goes back when the session is closed.
    void (*consume_done)(void *ctx, struct queue_session *s, uint32_t consumer, enum rc rc);
    void (*cancel_done)(void *ctx, struct queue_session *s, uint32_t consumer);
    void (*get_done)(void *ctx, struct queue_session *s, uint64_t token, enum rc rc,
                     const struct queue_message *m, uint64_t ready);
    void (*purge_done)(void *ctx, struct queue_session *s, uint64_t token, uint64_t count);
    // The queue took the consumer away (queue deleted, ...): basic.cancel to the client. Before `ended`, for
    // each consumer.
    void (*consumer_lost)(void *ctx, struct queue_session *s, uint32_t consumer);
    // The session ended from the other side (queue deleted: is_deleted; or our node was declared down). All publishes
    // not yet settled are in doubt: a deleted queue counts as confirmed, else the channel is to be closed.
    void (*ended)(void *ctx, struct queue_session *s, bool is_deleted);
    // There is room again after queue_session_is_full said true.
    void (*writable)(void *ctx, struct queue_session *s);
};

struct queue_session *queue_session_open(struct queue_service *q, const struct queue_target *t,
                                         const struct queue_callbacks *cb, void *ctx);
// Ends the session: what its consumers hold goes back with a failure (channel closed) in the queue's own time.
void queue_session_close(struct queue_session *s);
void *queue_session_ctx(struct queue_session *s);

struct queue_publish {
    struct span exchange;
    const struct span *routing_keys;  // First is the published one; bcc[i] marks those hidden from consumers.
    const bool *bcc;                  // May be NULL.
    uint32_t routing_keys_count;
    struct span header;               // Property flags and properties, raw.
    struct span body;                 // May come in two pieces:
    struct span body_more;            // ... continued.
    int64_t expiry_ms;                // Per-message TTL, -1 none.
    uint8_t priority;                 // 0..255; has_priority false: absent.
    bool has_priority;
    bool is_persistent;
    bool is_body_disposable;          // The bytes of `body` may be destroyed: they are not read after this call.
};
// So much room in front of a large body that is given away (in a block with has_room, and RECORD_ALIGN behind
// it) lets it stay where it is on its way into the log.
size_t queue_publish_room(size_t exchange_len, size_t key_len, size_t properties_len);
// Copies, but for such a body. Returns the publish's sequence number in this session (1, 2, ...). Never
// refuses: look at is_full before reading more from the client.
uint64_t queue_session_publish(struct queue_session *s, const struct queue_publish *p);
bool queue_session_is_full(const struct queue_session *s);

struct queue_consume {
    uint32_t consumer;      // Chosen by the channel, unique in the session, not reused while it holds messages.
    uint32_t prefetch;      // 0: unlimited (decision 9).
    bool is_no_ack;
    bool is_exclusive;
    int32_t priority;
    struct span tag;        // For listings.
};
void queue_session_consume(struct queue_session *s, const struct queue_consume *c);
void queue_session_cancel(struct queue_session *s, uint32_t consumer);
void queue_session_get(struct queue_session *s, uint64_t token, bool is_no_ack);  // Unsettled gets are consumer 0.
void queue_session_purge(struct queue_session *s, uint64_t token);
// Settles deliveries first..last of a consumer. Calls in one loop turn are joined into one command.
void queue_session_settle(struct queue_session *s, uint32_t consumer, uint64_t first, uint64_t last,
                          enum queue_settle how);
// The client's socket took `bytes` of this consumer's deliveries (flow control, decision 9). Bodies count; frames and
// headers may be counted with them. Must be called for every delivery sooner or later; not for gets.
void queue_session_taken(struct queue_session *s, uint32_t consumer, uint64_t bytes);
// The client's socket is stuck / fine again: no deliveries meanwhile (beyond what is on its way).
void queue_session_pause(struct queue_session *s, bool is_paused);

// Counts for declare-ok and listings: asks the leader, answers on this worker within `timeout_ms` (0s with the error).
struct queue_info {
    uint64_t ready, unacked, consumers, ready_bytes, unacked_bytes;
    uint32_t leader_node;  // Who answered; 0: nobody did.
};
typedef void queue_info_fn(void *ctx, enum rc rc, const struct queue_info *info);
void queue_info_get(struct queue_service *q, const struct queue_target *t, uint32_t timeout_ms,
                    queue_info_fn *done, void *ctx);

// ---- service -----------------------------------------------------------------------------------------------------

struct queue_service_config {
    struct host *host;
    struct net *net;  // The worker's; used for LANE_SESSION only.
    uint32_t node_id;
    uint64_t incarnation;
    uint32_t worker, workers;
    // Which worker of this node owns a group; and a way to run something on another worker.
    uint32_t (*worker_of)(void *ctx, uint64_t group);
    void (*post)(void *ctx, uint32_t worker, void (*fn)(void *arg), void *arg);
    void *post_ctx;
    // Looks a service up on another worker (start-up order is the driver's business).
    struct queue_service *(*peer)(void *ctx, uint32_t worker);
    uint32_t consumer_disconnected_timeout_ms;
    // A replica of this worker leads now and is ready. May be NULL. Called from inside calls: only to be noted.
    void (*led)(void *ctx, void *owner);
    // A replica of this worker has lost what it had promised. Likewise; also told again.
    void (*lost)(void *ctx, void *owner);
    void *led_ctx;
};
struct queue_service *queue_service_create(const struct queue_service_config *config);
void queue_service_destroy(struct queue_service *q);
// In the loop turn before host_turn: proposes what was handed in, sends session frames. And best once more between
// host_turn and the net's flush: answers and deliveries that the applies caused leave here. Returns when it
// wants to run again; 0: at once, because it proposed something that a host_turn must see.
uint64_t queue_service_turn(struct queue_service *q);
// When queue_service_turn must run again because of what came since it last did, applies in host_turn included (0: at
// once). A driver that runs one turn only takes the minimum of this and what host_turn returned.
uint64_t queue_service_next(const struct queue_service *q);

struct queue_metrics {  // Since start; read by others through the driver's published copy.
    uint64_t published, rejected, delivered, redelivered, settled, gets;  // Client side of this worker.
    uint64_t sessions, attaches, commands_resent, deliveries_repeated, gaps;
    uint64_t replicas, leading, commands_proposed, commands_refused, commands_repeated, held_bytes;
    uint64_t cold_reads, node_downs, bad_items, commands_ignored;
    uint64_t lanes_stuck;  // Lanes begun anew because a live node took no parts.
};
void queue_service_metrics(const struct queue_service *q, struct queue_metrics *out);

// The replicas' side: makes the state machine of a queue group on this worker (on projection of the queue record).
struct queue_settings {
    int64_t max_length, max_length_bytes;  // -1 none.
    int64_t delivery_limit;                // -1 unlimited; default 20.
    uint64_t metadata_version;             // Of the record these came from: an older one never overrides.
    bool is_reject_publish, is_single_active;
};
struct queue_replica_spec {
    struct queue_target target;            // With the founding members, whoever is a member today.
    void *owner;                           // For queue_service_config.led and queue_replica_owner.
    uint64_t replica_id;
    const struct store_group *recovered;   // NULL: brand-new.
    struct queue_settings settings;
    bool campaign_at_once;
};
MUST_USE enum rc queue_replica_add(struct queue_service *q, const struct queue_replica_spec *spec);
void queue_replica_settings(struct queue_service *q, uint64_t group, const struct queue_settings *settings);
void queue_replica_remove(struct queue_service *q, uint64_t group, bool is_deleted);
// The queue's record names no replica of this node any more: it ends and its data goes. Sessions go on at the others.
void queue_replica_leave(struct queue_service *q, uint64_t group);
// The queue has other members now: sessions of this worker look for the leader among these.
void queue_members_changed(struct queue_service *q, const struct queue_target *t);
// The local replica's group and owner; NULL without one.
struct group *queue_replica_group(struct queue_service *q, uint64_t group);
void *queue_replica_owner(struct queue_service *q, uint64_t group);
bool queue_replica_leads(struct queue_service *q, uint64_t group);  // Leader, and ready for sessions and changes.
// Tells of at most `max` led replicas; the next call goes on where this one stopped, round and round. Returns how many.
uint32_t queue_leading_each(struct queue_service *q, uint32_t max, void (*each)(void *ctx, void *owner), void *ctx);
uint32_t queue_leading_count(const struct queue_service *q);
// What the local replica knows, for listings: false if there is none. Consumers are told one by one.
struct queue_consumer_info {
    uint32_t node_id;
    struct span tag;
    uint32_t prefetch;
    bool is_no_ack, is_active;
    int32_t priority;
    struct span channel;   // A stable printable id.
};
bool queue_replica_info(struct queue_service *q, uint64_t group, struct queue_info *info,
                        struct consensus_status *status);
void queue_replica_consumers(struct queue_service *q, uint64_t group,
                             void (*each)(void *ctx, const struct queue_consumer_info *c), void *ctx);
