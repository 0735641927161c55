// SPDX-License-Identifier: Apache-2.0
// links: node/amqp09 proto/amqp09 node/base
// Any bytes against the AMQP 0-9-1 port. The first byte chooses where they start: at the protocol header,
// after the handshake, on an open channel, or with frames built from them so that they get deep. The second
// chooses how the input is cut. Queues and broker answer by what the bytes say, in any order.
//
// LLVMFuzzerTestOneInput for libFuzzer (-DFUZZ_ENGINE); otherwise main runs it over random bytes:
//   fuzz_amqp09 [rounds] [seed]
#include "node/base/log.h"
#include "tests/unit/node/amqp09_stub.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { START_HEADER, START_HANDSHAKE, START_CHANNEL, START_FRAMES, STARTS };

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
    *(bool *)ctx = true;
}

static void put_handshake(struct buf *in)
{
    struct buf properties = {0};
    size_t at = table_begin_table(&properties, "capabilities");
    table_put_bool(&properties, "consumer_cancel_notify", true);
    table_put_bool(&properties, "connection.blocked", true);
    table_end(&properties, at);
    buf_bytes(in, amqp_header_091, AMQP_HEADER_BYTES);
    amqp_send_connection_start_ok(
        in, 0,
        &(struct amqp_connection_start_ok){.client_properties = buf_span(&properties),
                                           .mechanism = span_str("PLAIN"),
                                           .response = span_of("\0u\0secret", 9)});
    amqp_send_connection_tune_ok(
        in, 0, &(struct amqp_connection_tune_ok){.channel_max = 5, .frame_max = 8192, .heartbeat = 10});
    amqp_send_connection_open(in, 0, &(struct amqp_connection_open){.virtual_host = span_str("/")});
    buf_deinit(&properties);
}

static const uint32_t methods[] = {
#define METHOD_NUMBER(FIELDS, name, class_id, method_id, sender, content) AMQP_##FIELDS##_ID,
    AMQP_METHODS(METHOD_NUMBER)
#undef METHOD_NUMBER
};
enum { METHODS = sizeof(methods) / sizeof(methods[0]) };

// Short strings that mean something to the stub.
static struct span some_name(uint8_t n)
{
    static const char *const names[] = {
        "", "q", "r", "x", "internal", "nowhere", "missing", "ct", "amq.rabbitmq.reply-to"};
    return span_str(names[n % (sizeof(names) / sizeof(names[0]))]);
}

static void put_content(struct buf *in, uint16_t channel, struct reader *r)
{
    uint8_t kind = reader_u8(r);
    struct span properties = span_of(stub_no_properties, 2);
    struct span body = reader_span(r, kind % 16 < reader_left(r) ? kind % 16 : reader_left(r));
    if (kind & 128) {
        properties = reader_span(r, 12 < reader_left(r) ? 12 : reader_left(r));
    }
    size_t start = in->len;
    content_frames_put(in, channel, kind & 64 ? 23 : 8192,
                       properties.len >= 2 && (kind & 64) == 0 ? properties : span_of(stub_no_properties, 2),
                       body);
    if (kind & 32) {
        in->len = start + (in->len - start) / 2;  // Cut off: what follows is no frame.
    }
}

// One plausible frame out of the next bytes.
static void put_frame(struct buf *in, struct reader *r)
{
    uint16_t channel = reader_u8(r) % 4;
    uint8_t choice = reader_u8(r);
    uint8_t a = reader_u8(r), b = reader_u8(r), c = reader_u8(r);
    switch (choice % 12) {
    case 0:
        amqp_send_channel_open(in, channel, &(struct amqp_channel_open){});
        break;
    case 1:
    case 2:
        amqp_send_basic_publish(in, channel,
                                &(struct amqp_basic_publish){.exchange = some_name(a),
                                                             .routing_key = some_name(b),
                                                             .mandatory = c & 1});
        put_content(in, channel, r);
        break;
    case 3:
        amqp_send_basic_consume(in, channel,
                                &(struct amqp_basic_consume){
                                    .queue = some_name(a), .consumer_tag = some_name(b), .no_ack = c & 1});
        break;
    case 4:
        amqp_send_basic_ack(in, channel, &(struct amqp_basic_ack){.delivery_tag = a % 8, .multiple = b & 1});
        break;
    case 5:
        amqp_send_basic_nack(
            in, channel,
            &(struct amqp_basic_nack){.delivery_tag = a % 8, .multiple = b & 1, .requeue = c & 1});
        break;
    case 6:
        amqp_send_basic_get(in, channel, &(struct amqp_basic_get){.queue = some_name(a), .no_ack = b & 1});
        break;
    case 7:
        amqp_send_queue_declare(
            in, channel,
            &(struct amqp_queue_declare){.queue = some_name(a), .passive = b & 1, .durable = true});
        break;
    case 8:
        amqp_send_channel_close_ok(in, channel, &(struct amqp_channel_close_ok){});
        break;
    case 9:
        (a & 1 ? (void)amqp_send_confirm_select(in, channel, &(struct amqp_confirm_select){})
               : (void)amqp_send_tx_select(in, channel, &(struct amqp_tx_select){}));
        break;
    case 10:
        (a & 1 ? (void)amqp_send_tx_commit(in, channel, &(struct amqp_tx_commit){})
               : (void)amqp_send_tx_rollback(in, channel, &(struct amqp_tx_rollback){}));
        break;
    default: {  // Any method with raw arguments.
        size_t at = amqp_frame_begin(in, AMQP_FRAME_METHOD, channel);
        buf_u32be(in, methods[a % METHODS]);
        buf_span_bytes(in, reader_span(r, b % 24 < reader_left(r) ? b % 24 : reader_left(r)));
        amqp_frame_end(in, at);
        break;
    }
    }
}

// Something happens on the other side: an answer, a delivery, an outcome, a lost consumer, the end of a
// session.
static void happen(uint8_t what, uint8_t which)
{
    struct queue_service *q = &stub.service;
    if (what % 8 == 0 && stub.ops_count > 0) {
        stub_answer(which & 1 ? RC_OK : RC_NOT_FOUND, which & 1 ? 0 : 404, which & 2, "text");
        return;
    }
    if (q->sessions_count == 0) {
        return;
    }
    struct queue_session *s = q->sessions[which % q->sessions_count];
    if (s->is_closed) {
        return;
    }
    uint32_t consumer = 1 + which / 16 % 3;
    struct queue_message m = stub_message(which, "delivered");
    m.acquired_count = which % 3;
    switch (what % 8) {
    case 1:
        s->settled = s->published;
        s->cb->settled(s->ctx, s, s->published, &s->settled, which & 1);
        break;
    case 2:
        s->cb->deliver(s->ctx, s, consumer, &m);
        break;
    case 3:
        s->cb->consume_done(s->ctx, s, consumer, which & 1 ? RC_OK : RC_DENIED);
        break;
    case 4:
        s->cb->cancel_done(s->ctx, s, consumer);
        break;
    case 5:
        s->cb->get_done(s->ctx, s, 1 + which % 4, RC_OK, which & 1 ? &m : NULL, 3);
        break;
    case 6:
        s->cb->consumer_lost(s->ctx, s, consumer);
        break;
    default:
        s->cb->ended(s->ctx, s, which & 1);
        break;
    }
}

static void run(struct amqp09 *s, struct connection *c, const bool *is_closed, uint8_t start, uint8_t cut,
                struct span data)
{
    struct buf in = {0};
    struct reader r = reader_of(data);
    if (start != START_HEADER) {
        put_handshake(&in);
    }
    if (start >= START_CHANNEL) {
        amqp_send_channel_open(&in, 1, &(struct amqp_channel_open){});
    }
    while (!*is_closed) {
        if (start == START_FRAMES) {
            put_frame(&in, &r);
        } else {
            size_t n = (size_t)cut + 1 < reader_left(&r) ? (size_t)cut + 1 : reader_left(&r);
            buf_span_bytes(&in, reader_span(&r, n));
        }
        uint8_t *exact = malloc(in.len + 1);
        size_t half = in.len * (cut % 5) / 4;
        if (in.len > 0) {
            memcpy(exact, in.ptr, in.len);
        }
        connection_input(c, span_of(exact, half));
        if (!*is_closed) {
            connection_input(c, span_of(exact + half, in.len - half));
        }
        free(exact);
        in.len = 0;
        amqp09_turn_begin(s);
        if (start == START_FRAMES) {
            happen(reader_u8(&r), reader_u8(&r));
        }
        amqp09_turn_end(s);
        connection_output_taken(c, connection_output(c).len);
        stub.now_ns += 100000000;
        connection_tick(c);
        if (reader_left(&r) == 0) {
            break;
        }
        assert(c->rest.len <= 131072 + 8);
    }
    buf_deinit(&in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    log_set_level(LOG_CRITICAL);
    stub_init();
    stub.service.is_quiet = true;
    stub_queue_add("q");
    stub_queue_add("r");
    struct amqp09_config config = {.broker = &stub,
                                   .queues = &stub.service,
                                   .clock = &stub_clock,
                                   .cluster_name = "c",
                                   .version = "4.3.6",
                                   .channel_max = 5,
                                   .frame_max = 8192,
                                   .max_message_size = 100000,
                                   .is_current = stub_is_current};
    struct amqp09 *s = amqp09_create(&config);
    bool is_closed = false;
    struct connection_io io = {
        .want_flush = nothing, .set_reading = nothing_reading, .close = note_close, .ctx = &is_closed};
    struct connection *c = connection_create(s, &io, &(struct connection_peer){.is_loopback = true});
    run(s, c, &is_closed, data[0] % STARTS, data[1], span_of(data + 2, size - 2));
    connection_destroy(c);
    amqp09_turn_begin(s);
    while (stub.ops_count > 0) {
        stub_ok();
    }
    amqp09_destroy(s);
    stub_deinit();
    return 0;
}

#ifndef FUZZ_ENGINE
int main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (uint64_t i = 0; i < rounds; i++) {
        struct rng rng;
        rng_seed(&rng, seed + i);
        uint8_t data[2048];
        size_t size = 2 + rng_below(&rng, sizeof(data) - 2);
        for (size_t k = 0; k < size; k++) {
            data[k] = (uint8_t)rng_next(&rng);
        }
        LLVMFuzzerTestOneInput(data, size);
    }
    printf("%llu rounds\n", (unsigned long long)rounds);
    return 0;
}
#endif
