// SPDX-License-Identifier: Apache-2.0
// links: node/amqp09 proto/amqp09 node/base
// Publishes and deliveries per second through the AMQP 0-9-1 layer alone: no sockets, and a queue that only
// counts and confirms at the end of each turn. Bodies are therefore not copied on publishing, but once on
// delivery.
//
//   bench_amqp09 [messages in millions] [body bytes]
#include "node/base/log.h"
#include "tests/unit/node/amqp09_stub.h"
#include <time.h>

enum { READ_BYTES = 256 << 10 };

struct sink {
    bool is_closed;
};

static void nothing(void *ctx)
{
    (void)ctx;
}
static void nothing_reading(void *ctx, bool is_on)
{
    (void)ctx;
    (void)is_on;
}
static void note_close(void *ctx, bool is_abrupt)
{
    (void)is_abrupt;
    ((struct sink *)ctx)->is_closed = true;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void drain(struct connection *c)
{
    connection_output_taken(c, connection_output(c).len);
}

static void open_connection(struct connection *c)
{
    struct buf in = {0};
    buf_bytes(&in, amqp_header_091, AMQP_HEADER_BYTES);
    amqp_send_connection_start_ok(&in, 0,
                                  &(struct amqp_connection_start_ok){.mechanism = span_str("PLAIN"),
                                                                     .response = span_of("\0u\0secret", 9)});
    amqp_send_connection_tune_ok(&in, 0,
                                 &(struct amqp_connection_tune_ok){.channel_max = 10, .frame_max = 131072});
    amqp_send_connection_open(&in, 0, &(struct amqp_connection_open){.virtual_host = span_str("/")});
    amqp_send_channel_open(&in, 1, &(struct amqp_channel_open){});
    amqp_send_confirm_select(&in, 1, &(struct amqp_confirm_select){});
    connection_input(c, buf_span(&in));
    drain(c);
    buf_deinit(&in);
}

static void publish_all(struct amqp09 *s, struct connection *c, uint64_t count, size_t body_len)
{
    struct buf in = {0};
    uint8_t *body = mem_zalloc(body_len + 1);
    struct content_properties p = {.flags = PROPERTY_DELIVERY_MODE, .delivery_mode = 2};
    struct buf raw = {0};
    content_properties_put(&raw, &p);
    uint64_t batch = 0;
    while (in.len < READ_BYTES) {
        amqp_send_basic_publish(&in, 1, &(struct amqp_basic_publish){.routing_key = span_str("q")});
        content_frames_put(&in, 1, 131072, buf_span(&raw), span_of(body, body_len));
        batch++;
    }
    double start = seconds();
    uint64_t done = 0;
    while (done < count) {
        // Reads cut frames anywhere.
        size_t cut = (size_t)(done * 7919 % in.len);
        amqp09_turn_begin(s);
        connection_input(c, span_of(in.ptr, cut));
        connection_input(c, span_of(in.ptr + cut, in.len - cut));
        done += batch;
        stub_settle("q", stub_session("q")->published);
        amqp09_turn_end(s);
        drain(c);
    }
    double took = seconds() - start;
    printf("publish with confirms, %zu bytes: %.0f messages/s of CPU (%.2f us each)\n", body_len,
           (double)done / took, took * 1e6 / (double)done);
    free(body);
    buf_deinit(&raw);
    buf_deinit(&in);
}

static void deliver_all(struct amqp09 *s, struct connection *c, uint64_t count, size_t body_len)
{
    enum { BATCH = 512 };
    struct buf in = {0};
    char *body = mem_zalloc(body_len + 1);
    memset(body, 'b', body_len);
    amqp_send_basic_consume(
        &in, 1, &(struct amqp_basic_consume){.queue = span_str("q"), .consumer_tag = span_str("ct")});
    connection_input(c, buf_span(&in));
    struct queue_session *q = stub_session("q");
    q->cb->consume_done(q->ctx, q, 1, RC_OK);
    drain(c);
    struct queue_message m = stub_message(0, body);
    double start = seconds();
    uint64_t done = 0;
    while (done < count) {
        amqp09_turn_begin(s);
        for (int i = 0; i < BATCH; i++) {
            m.number = ++done;
            q->cb->deliver(q->ctx, q, 1, &m);
        }
        in.len = 0;
        for (uint64_t tag = done - BATCH + 1; tag <= done; tag++) {
            amqp_send_basic_ack(&in, 1, &(struct amqp_basic_ack){.delivery_tag = tag});
        }
        amqp09_turn_end(s);
        drain(c);
        connection_input(c, buf_span(&in));
    }
    double took = seconds() - start;
    printf("deliver and ack one by one, %zu bytes: %.0f messages/s of CPU (%.2f us each)\n", body_len,
           (double)done / took, took * 1e6 / (double)done);
    free(body);
    buf_deinit(&in);
}

int main(int argc, char **argv)
{
    uint64_t count = (uint64_t)((argc > 1 ? atof(argv[1]) : 1.0) * 1e6);
    size_t body_len = argc > 2 ? (size_t)atol(argv[2]) : 1000;
    log_set_level(LOG_CRITICAL);
    stub_init();
    stub_queue_add("q");
    stub.service.is_quiet = true;
    struct amqp09_config config = {.broker = &stub,
                                   .queues = &stub.service,
                                   .clock = &stub_clock,
                                   .cluster_name = "c",
                                   .version = "4.3.6",
                                   .channel_max = 10,
                                   .frame_max = 131072};
    struct amqp09 *s = amqp09_create(&config);
    struct sink sink = {0};
    struct connection_io io = {
        .want_flush = nothing, .set_reading = nothing_reading, .close = note_close, .ctx = &sink};
    struct connection *c = connection_create(s, &io, &(struct connection_peer){.is_loopback = true});
    open_connection(c);
    publish_all(s, c, count, body_len);
    deliver_all(s, c, count, body_len);
    if (sink.is_closed || !connection_is_open(c)) {
        printf("the connection failed\n");
        return 1;
    }
    connection_destroy(c);
    amqp09_destroy(s);
    stub_deinit();
    return 0;
}
