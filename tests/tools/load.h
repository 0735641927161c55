// SPDX-License-Identifier: Apache-2.0
// Inside of warren-load: what its files share. One thread, one poll loop, any number of connections.
#pragma once
#include "node/base/buf.h"
#include "proto/amqp09/content.h"
#include "proto/amqp09/frame.h"
#include "proto/amqp09/method.h"
#include "tests/tools/bits.h"

enum {
    CONNECTIONS_MAX = 256,
    FRAME_MAX = 131072,
    READ_BYTES = 256 << 10,
    BODY_HEAD_BYTES = 24,      // Time of publishing, producer, number: each a big-endian u64.
    OUTPUT_BYTES = 256 << 10,  // A producer adds nothing while more than this waits for its socket.
    PATTERN_BYTES = 64 << 10,  // Bodies repeat it, from a place that depends on their number.
    HISTOGRAM_BUCKETS = 64 * 64,
};

struct options {
    const char *queue, *user, *password;
    int queues;         // QUEUE-0, QUEUE-1, ...; 1: QUEUE alone. A producer's messages take them in turn.
    char **names;       // Of each.
    int publish_ports[16], publish_ports_count, consume_ports[16], consume_ports_count;
    int producers, consumers, prefetch, ack_every;
    uint64_t size;    // Bytes of a body, at least BODY_HEAD_BYTES.
    uint64_t window;  // Open confirms per producer; 0: no confirms asked for.
    double rate;      // Messages per second and producer; 0: as fast as the window allows.
    uint64_t count;   // Messages per producer; 0: until `seconds` are over.
    double seconds, drain_s;
    uint64_t hold;                 // First deliveries of each consumer that are never acknowledged.
    bool is_deaf_producer;         // Never reads its socket once it publishes.
    uint64_t deaf_consumer_after;  // Deliveries after which a consumer reads no more; UINT64_MAX: never.
    bool has_declare;
    uint64_t declare;              // Number of queues to be declared in place of publishing; 0: none.
    bool is_passive;
    bool is_backlog;       // Nothing is consumed before everything is confirmed and a line came on standard input.
    bool is_every_second;  // Prints a line every second.
};

struct histogram {
    uint64_t count[HISTOGRAM_BUCKETS];  // Logarithmic in microseconds, 64 steps per doubling.
    uint64_t max_us, total;
};
void histogram_add(struct histogram *h, uint64_t ns);
double histogram_quantile_ms(const struct histogram *h, double q);

struct totals {
    uint64_t published, confirmed, nacked, consumed, redelivered, duplicates, corrupt, disordered, held;
    uint64_t failed;  // Connections that ended.
    char error[256];  // Why the first of them did.
    struct histogram confirm, delivery;
};

struct connection {
    const struct options *options;
    struct totals *totals;
    int fd, port;
    bool is_producer, is_failed, is_deaf;
    bool is_closed;                   // In good order: what was acknowledged before has arrived.
    struct buf in, out;
    size_t in_at, out_at;  // Bytes of each that are done with.
    // Producer or declarer.
    uint64_t number;      // Which of them.
    uint64_t id, next;    // Number of the next message or queue.
    uint64_t first_open;  // Lowest number without a confirm.
    uint64_t *sent_at;    // Ring of publish times; cap = sent_cap.
    uint64_t sent_cap;
    struct bits confirmed, seen;  // `seen` is filled in by the consumers.
    uint64_t *highest_seen;       // Of each queue: number + 1 of the last first-time delivery.
    // Consumer.
    uint64_t deliveries, tag, unacked, body_left, body_at;
    bool is_redelivered, is_first_body, is_body_bad;
    uint8_t head[BODY_HEAD_BYTES];
    struct connection *producers;  // Whose bodies these are; producers_count of them.
    int producers_count;
};

// Is queue `queue` the business of the `number`th of `of` connections? Each queue has one of them at least.
static inline bool options_is_share(const struct options *o, int queue, int number, int of)
{
    return of <= o->queues ? queue % of == number : number % o->queues == queue;
}
// Which of its kind it is.
static inline int connection_number(const struct connection *c)
{
    const int producers = c->options->producers, number = (int)c->number;
    return number < producers ? number : number - producers;
}

uint64_t now_ns(void);
void connection_fail(struct connection *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Connects, logs in, opens channel 1 and declares the queue; blocking. The socket is non-blocking afterwards.
void connection_open(struct connection *c);
void connection_read(struct connection *c);   // What the socket has; handles every whole frame.
void connection_write(struct connection *c);  // As much output as the socket takes.
void connection_close(struct connection *c);  // Asks for it.
void connection_deinit(struct connection *c);

void producer_start(struct connection *c);  // confirm.select and the pattern.
void producer_publish(struct connection *c, uint64_t begun_ns, uint64_t now);
bool producer_is_done(const struct connection *c);
void producer_on_method(struct connection *c, const struct amqp_method *m);

void declarer_start(struct connection *c);
void declarer_send(struct connection *c, uint64_t now);
bool declarer_is_done(const struct connection *c);
void declarer_on_method(struct connection *c, const struct amqp_method *m);

void consumer_start(struct connection *c);
void consumer_on_frame(struct connection *c, const struct amqp_frame *f);

// What happened when (load_watch.c), with --every-second: a line for each second, for each pause of more than a second
// between deliveries, and for each queue that waited so long while the others had far more than their share.
void watch_start(const struct options *o, const struct totals *t, uint64_t now);
void watch_step(uint64_t now);
void watch_delivery(uint64_t queue, uint64_t now);
uint64_t watch_last_delivery(void);
