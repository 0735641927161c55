// SPDX-License-Identifier: Apache-2.0
// Inside of warren-ledger: what its files share. One thread, one poll loop.
//
// A *stream* is what one publishing channel has sent: numbers 0, 1, 2… A broker that keeps its word delivers
// every confirmed number to every queue it went to, nothing else, in order, and a number twice only with the
// redelivered flag. The ledger holds what was said and done for all streams of a run; clients come and go.
#pragma once
#include "node/base/buf.h"
#include "proto/amqp09/content.h"
#include "proto/amqp09/frame.h"
#include "proto/amqp09/method.h"
#include "tests/tools/bits.h"

enum {
    NODES_MAX = 8,
    QUEUES_MAX = 32,
    CLIENTS_MAX = 512,
    FRAME_MAX = 131072,
    HEAD_BYTES = 48,  // Of a body: see body_put.
    BODY_BYTES_MAX = 1 << 20,
    READ_BYTES = 256 << 10,
    OUTPUT_BYTES = 256 << 10,  // A publisher adds nothing while more than this waits for its socket.
    UNACKED_MAX = 2048,
    VIOLATIONS_TOLD = 40,  // Lines of each run that say what was wrong; all are counted.
    TO_ALL_QUEUES = -1,
};

struct queue_plan {
    char name[64];
    double rate;             // Messages per second of each of its publishers.
    uint64_t size;           // Bodies up to so many bytes.
    unsigned large_of_1000;  // So many of 1,000 have 300 to 700 kB.
    int prefetch;            // 0: no consumers.
    int hold;        // Consumers keep so many unacknowledged and acknowledge out of order; 0: in order.
    bool is_paused;  // Its consumers are away.
};
struct node_plan {
    char name[32];
    char host[64];
    int port;
};

struct stream {
    int queue;                      // Or TO_ALL_QUEUES.
    uint64_t next;                  // Number of the next message.
    uint64_t first_open;            // Lowest number neither confirmed nor refused.
    struct bits closed, confirmed;  // Confirmed or refused; confirmed.
    struct bits seen[QUEUES_MAX];   // By queue: delivered,
    struct bits first[QUEUES_MAX];  // and so without the redelivered flag.
    uint64_t *highest;              // By consumer and queue: number + 1 of the last unflagged delivery.
};

struct ledger {
    struct queue_plan queues[QUEUES_MAX];
    struct node_plan nodes[NODES_MAX];
    int queues_count, nodes_count, consumers_count;
    uint64_t nonce;           // Of this run: messages of others are strangers.
    struct stream **streams;  // By id.
    size_t streams_count, streams_cap;
    uint64_t published, confirmed, nacked, consumed, redelivered;
    uint64_t missing;  // Confirmed and not yet seen, counted per queue.
    uint64_t invented, duplicates, disordered, corrupt, returned;
    unsigned told;
    double max_delivery_s;  // Oldest message at its first delivery.
};
extern struct ledger ledger;

uint64_t now_ns(void);
double run_s(void);             // Since the start.
uint64_t draw(uint64_t below);  // Seeded.
void say(const char *event, const char *format, ...) __attribute__((format(printf, 2, 3)));

uint32_t stream_open(int queue);  // Returns its id.
// Appends a body and counts it as published. The number is stream's next one.
void body_put(struct buf *out, uint32_t stream, uint64_t size);
void ledger_confirmed(uint32_t stream, uint64_t tag, bool is_multiple, bool is_ack);
void ledger_delivered(int queue, int consumer, bool is_redelivered, struct span body);
void ledger_returned(struct span body, unsigned code);
void ledger_report(const char *event);

// ---- clients
// -------------------------------------------------------------------------------------------------

enum role { ROLE_PUBLISHER, ROLE_CONSUMER, ROLE_PROBER };
enum state {
    STATE_OFF,
    STATE_WAITING,
    STATE_CONNECTING,
    STATE_STARTING,
    STATE_TUNING,
    STATE_OPENING,
    STATE_CHANNEL,
    STATE_READY,
    STATE_CLOSING
};
enum stage { STAGE_NONE, STAGE_PUBLISHED, STAGE_CONFIRMED, STAGE_ASKED, STAGE_DONE };

struct probe {  // Of one queue, by one prober.
    enum stage stage;
    uint64_t number;  // In the prober's stream for the queue.
    double confirm_s, get_s;
};

struct client {
    enum role role;
    int node, queue, consumer;  // consumer: its place in stream.highest.
    char name[80];
    int fd;
    enum state state;
    bool is_wanted, is_blocked;
    struct buf in, out;
    size_t in_at, out_at;
    uint64_t since_ns, heard_ns, said_ns;  // Of the state; of the socket.
    // Content that is coming in.
    uint32_t content;  // Method before it; 0: none.
    uint64_t tag, body_left;
    bool is_redelivered;
    unsigned return_code;
    int content_queue;
    struct buf body;
    // Publisher. Progress of publishers and consumers: when the last confirm or delivery came.
    uint32_t stream;
    double tokens;
    uint64_t filled_ns, progress_ns, marked;  // marked: messages from this number on count as progress.
    // Consumer: tags not acknowledged.
    uint64_t unacked[UNACKED_MAX];
    int unacked_count;
    // Prober: one stream for all queues; gets are answered in the order they were asked.
    struct probe probes[QUEUES_MAX];
    int asked[QUEUES_MAX], asked_count;
    uint64_t tags_queue[QUEUES_MAX * 64];  // By delivery tag of the channel: whose queue.
    uint64_t tags_count;
    uint32_t queue_streams[QUEUES_MAX];
};
extern struct client clients[CLIENTS_MAX];
extern int clients_count;
extern bool is_stopping;

void client_step(struct client *c, uint64_t now);  // Timers; connects again.
void client_read(struct client *c);
void client_write(struct client *c);
void client_fail(struct client *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void client_drop(struct client *c, bool is_reset);  // Without a word to the other side.
void client_close(struct client *c);                // In good order.
void client_connected(struct client *c);            // connect(2) is over, well or not.

// What the roles do: roles.c.
void role_begin(struct client *c);  // The channel is open.
void role_step(struct client *c, uint64_t now);
void role_method(struct client *c, const struct amqp_method *m);
void role_content(struct client *c);  // c->body is whole.

void probe_begin(unsigned id);
bool probe_is_on(void);
void probe_step(uint64_t now);
