// SPDX-License-Identifier: Apache-2.0
// Queues in the simulator: what sim_queue.c (nodes, books) and sim_queue_client.c (channels) share.
#pragma once
#include "node/queue/queue_parts.h"
#include "tests/sim/sim_observe.h"

enum { SIM_CONSUMERS = 4 };  // 0 is for gets.

struct channel;

// What is known of one message. Ids count from 1 per queue.
struct message {
    uint64_t index, term;     // Its entry, once committed.
    uint32_t publisher, number;  // Channel, and which of its publishes.
    uint32_t size;
    bool is_confirmed, is_rejected;
    bool is_purged;           // A purge was committed behind it: it may be gone.
    uint32_t deliveries;
    uint32_t acquired;        // As of the last delivery.
    struct channel *owner;    // Holds it unsettled.
    struct channel *settler;  // Has acknowledged or discarded it.
};

struct book {
    uint32_t slot;
    struct message *messages;
    uint32_t count, cap;
    struct queue_settings settings;
    struct channel *drainer;
};

struct held {
    uint32_t consumer;
    uint64_t number;
    uint32_t message;
};

struct sim_consumer {
    uint32_t id;            // 0: unused (but for the first: gets).
    bool is_no_ack, is_ready, is_cancelled;
    uint64_t last;          // Delivery number.
    uint64_t untaken;       // Bytes not yet said to be taken.
    struct map fifo;        // Publisher -> number of its latest first delivery.
};

struct channel {
    struct sim_node *node;
    uint64_t incarnation;
    struct book *book;
    uint32_t number;
    struct queue_session *session;  // NULL: closed or dead.
    bool is_publisher, is_consumer, is_getter;
    bool is_broken;         // Its node died, or was declared down: what it held has gone back, what it said
                            // may be lost.
    bool is_open;           // Its session's open was committed.
    bool is_closed, is_ended;
    bool is_paused;
    uint64_t interval;
    struct buf published;   // u32 message ids, by sequence from 1.
    uint64_t settled;       // Sequence up to which there are outcomes.
    struct sim_consumer consumers[SIM_CONSUMERS];
    uint32_t next_consumer;
    struct buf held;        // struct held.
    uint64_t tokens, tokens_answered;
    uint32_t infos;         // Questions not answered.
};

struct queue_state {
    struct book *books[SIM_GROUPS_MAX];
    struct channel **channels;
    uint32_t channels_count, channels_cap;
    uint32_t channels_target;
    uint64_t interval;
    uint64_t down_timeout_ms;
    uint64_t big_one_in, purge_one_in;
    bool is_closing;        // Last phase: everything is drained.
};

static inline struct queue_state *queue_state(const struct sim *s)
{
    return s->queue_state;
}
struct queue_service *sim_queue_service(const struct sim_node *n);
struct queue_target sim_queue_target(const struct sim *s, uint32_t slot);

// sim_queue_client.c
void sim_channels_start(struct sim *s);
struct channel *sim_channel_open(struct sim *s, struct sim_node *n, struct book *b);
void sim_channel_drain(struct channel *c);   // From now on it only consumes.
void sim_channel_close(struct channel *c);
void sim_channels_node_down(struct sim_node *n);
bool sim_channel_is_level(const struct channel *c);  // Everything it published has an outcome.
void sim_channels_free(struct sim *s);
void sim_queue_committed(struct sim *s, uint32_t slot, const struct entry *e);

// sim_queue.c
void sim_queue_init_node(struct sim *s, struct sim_node *n);
void sim_queue_add(struct sim_node *n, uint32_t slot, const struct store_group *recovered);
void sim_queue_leave(struct sim_node *n, uint32_t slot);
void sim_queue_members_changed(struct sim *s, uint32_t slot);
void sim_queue_node_down(struct sim_node *n);
void sim_queue_start(struct sim *s);
bool sim_queue_is_settled(struct sim *s);
void sim_queue_finish(struct sim *s);
