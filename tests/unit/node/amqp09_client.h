// SPDX-License-Identifier: Apache-2.0
// The client side of a connection under test: sends frames, expects frames.
// Included by one C file per program, as amqp09_stub.h.
#pragma once
#include "tests/unit/node/amqp09_stub.h"
#include <check.h>

struct test_client {
    struct amqp09 *service;
    struct connection *connection;
    struct buf in;     // Frames to be sent.
    struct buf frame;  // The frame expected last; spans of `expect` point here.
    bool is_reading, wants_flush, is_closed, is_abrupt;
    size_t chop;  // Bytes per connection_input; 0: all at once.
    uint32_t frame_max;
};

static void io_flush(void *ctx)
{
    ((struct test_client *)ctx)->wants_flush = true;
}
static void io_reading(void *ctx, bool is_on)
{
    ((struct test_client *)ctx)->is_reading = is_on;
}
static void io_close(void *ctx, bool is_abrupt)
{
    struct test_client *t = ctx;
    t->is_closed = true;
    t->is_abrupt = is_abrupt;
}

static struct amqp09_config client_config(void)
{
    return (struct amqp09_config){
        .broker = &stub,
        .queues = &stub.service,
        .clock = &stub_clock,
        .rng_seed = 1,
        .node_name = "n",
        .cluster_name = "c",
        .version = "4.3.6",
        .channel_max = 2047,
        .frame_max = 131072,
        .heartbeat_s = 60,
        .anonymous_user = "guest",
        .anonymous_pass = "secret",
        .is_current = stub_is_current,
    };
}

static inline void client_start(struct test_client *t, const struct amqp09_config *config, bool is_loopback)
{
    *t = (struct test_client){.is_reading = true, .frame_max = 131072, .chop = t->chop};
    t->service = amqp09_create(config);
    struct connection_io io = {
        .want_flush = io_flush, .set_reading = io_reading, .close = io_close, .ctx = t};
    struct connection_peer peer = {.host = "127.0.0.1",
                                   .peer_host = "127.0.0.1",
                                   .port = 5672,
                                   .peer_port = 40000,
                                   .is_loopback = is_loopback};
    t->connection = connection_create(t->service, &io, &peer);
}

static inline void client_stop(struct test_client *t)
{
    connection_destroy(t->connection);
    amqp09_destroy(t->service);
    buf_deinit(&t->in);
    buf_deinit(&t->frame);
}

static inline void client_bytes(struct test_client *t, const void *bytes, size_t n)
{
    size_t step = t->chop > 0 ? t->chop : n;
    for (size_t at = 0; at < n; at += step) {
        size_t part = n - at < step ? n - at : step;
        uint8_t *exact = malloc(part);  // Gone after the call, as the shared read buffer would be.
        memcpy(exact, (const uint8_t *)bytes + at, part);
        connection_input(t->connection, span_of(exact, part));
        free(exact);
    }
}

static inline void client_flush(struct test_client *t)
{
    client_bytes(t, t->in.ptr, t->in.len);
    t->in.len = 0;
}

// A turn of the worker.
static inline void turn(struct test_client *t)
{
    for (int i = 0; i < 4; i++) {
        amqp09_turn_begin(t->service);
        if (amqp09_turn_end(t->service) != 0) {
            break;
        }
    }
}

// Sends one method and what was put into t->in before it.
#define SEND(t, channel, name, ...)                                                                          \
    do {                                                                                                     \
        amqp_send_##name(&(t)->in, channel, &(struct amqp_##name){__VA_ARGS__});                             \
        client_flush(t);                                                                                     \
    } while (0)

// The next frame the server wrote; fails the test if there is none.
static struct amqp_frame next_frame(struct test_client *t)
{
    struct span out = connection_output(t->connection);
    struct amqp_frame f = {0};
    struct amqp_frame_fault fault;
    size_t used = 0;
    enum rc rc = amqp_frame_read(out, UINT32_MAX, &f, &used, &fault);
    ck_assert_msg(rc == RC_OK, "a frame was expected: %s (%zu bytes)", rc_text(rc), out.len);
    ck_assert_uint_le(used, t->frame_max);
    t->frame.len = 0;
    buf_span_bytes(&t->frame, f.payload);
    f.payload = buf_span(&t->frame);
    connection_output_taken(t->connection, used);
    return f;
}

static struct amqp_method next_method(struct test_client *t, uint16_t channel)
{
    struct amqp_frame f = next_frame(t);
    struct amqp_method m;
    ck_assert_uint_eq(f.type, AMQP_FRAME_METHOD);
    ck_assert_uint_eq(f.channel, channel);
    ck_assert_int_eq(amqp_method_read(f.payload, &m), RC_OK);
    return m;
}

#define EXPECT(t, channel, NAME)                                                                             \
    ({                                                                                                       \
        struct amqp_method expected_ = next_method(t, channel);                                              \
        ck_assert_msg(expected_.id == AMQP_##NAME##_ID, "expected " #NAME ", got %s",                        \
                      amqp_method_name(expected_.id));                                                       \
        expected_;                                                                                           \
    })

static inline void expect_nothing(struct test_client *t)
{
    struct span out = connection_output(t->connection);
    if (out.len > 0) {
        struct amqp_frame f = next_frame(t);
        struct amqp_method m = {0};
        (void)!amqp_method_read(f.payload, &m);
        ck_abort_msg("nothing was expected, got a frame of type %u: %s", f.type, amqp_method_name(m.id));
    }
}

static inline void expect_content(struct test_client *t, uint16_t channel, struct span properties,
                                  struct span body)
{
    struct amqp_frame f = next_frame(t);
    struct content_header h;
    ck_assert_uint_eq(f.type, AMQP_FRAME_HEADER);
    ck_assert_uint_eq(f.channel, channel);
    ck_assert_int_eq(content_header_read(f.payload, &h), RC_OK);
    ck_assert_uint_eq(h.body_size, body.len);
    ck_assert(span_equal(h.properties, properties));
    size_t got = 0;
    while (got < body.len) {
        f = next_frame(t);
        ck_assert_uint_eq(f.type, AMQP_FRAME_BODY);
        ck_assert_mem_eq(f.payload.ptr, body.ptr + got, f.payload.len);
        got += f.payload.len;
    }
}

static inline bool span_is(struct span s, const char *text)
{
    return span_equal(s, span_str(text));
}

#define EXPECT_TEXT(s, text) ck_assert_msg(span_is(s, text), "got '%.*s'", STUB_SPAN(s))

// channel.close or connection.close with that code and text; the client then answers close-ok.
static inline void expect_channel_close(struct test_client *t, uint16_t channel, uint16_t code,
                                        const char *text)
{
    struct amqp_method m = EXPECT(t, channel, CHANNEL_CLOSE);
    ck_assert_uint_eq(m.channel_close.reply_code, code);
    EXPECT_TEXT(m.channel_close.reply_text, text);
}
static inline void expect_connection_close(struct test_client *t, uint16_t code, const char *text)
{
    struct amqp_method m = EXPECT(t, 0, CONNECTION_CLOSE);
    ck_assert_uint_eq(m.connection_close.reply_code, code);
    EXPECT_TEXT(m.connection_close.reply_text, text);
    SEND(t, 0, connection_close_ok, );
    ck_assert(t->is_closed);
    ck_assert(!t->is_abrupt);
}

static inline void expect_log(const char *lines)
{
    struct span got = buf_span(&stub.log);
    ck_assert_msg(span_is(got, lines), "expected\n%sgot\n%.*s", lines, STUB_SPAN(got));
    stub.log.len = 0;
}

// ---- greeting -----------------------------------------------------------------------------------

static inline struct span plain(struct buf *b, const char *user, const char *password)
{
    b->len = 0;
    buf_u8(b, 0);
    buf_span_bytes(b, span_str(user));
    buf_u8(b, 0);
    buf_span_bytes(b, span_str(password));
    return buf_span(b);
}

static inline void client_login(struct test_client *t, const char *user, bool has_capabilities)
{
    struct buf response = {0}, properties = {0};
    if (has_capabilities) {
        size_t at = table_begin_table(&properties, "capabilities");
        table_put_bool(&properties, "authentication_failure_close", true);
        table_put_bool(&properties, "consumer_cancel_notify", true);
        table_put_bool(&properties, "connection.blocked", true);
        table_end(&properties, at);
        table_put_text(&properties, "connection_name", "mine");
    }
    client_bytes(t, amqp_header_091, AMQP_HEADER_BYTES);
    EXPECT(t, 0, CONNECTION_START);
    SEND(t, 0, connection_start_ok, .client_properties = buf_span(&properties),
         .mechanism = span_str("PLAIN"), .response = plain(&response, user, "secret"),
         .locale = span_str("en_US"));
    buf_deinit(&response);
    buf_deinit(&properties);
}

static inline void client_tune_and_open(struct test_client *t, uint16_t channel_max, uint32_t frame_max,
                                        uint16_t heartbeat)
{
    EXPECT(t, 0, CONNECTION_TUNE);
    t->frame_max = frame_max;
    SEND(t, 0, connection_tune_ok, .channel_max = channel_max, .frame_max = frame_max,
         .heartbeat = heartbeat);
    SEND(t, 0, connection_open, .virtual_host = span_str("/"));
    EXPECT(t, 0, CONNECTION_OPEN_OK);
}

static inline void client_open(struct test_client *t, const char *user)
{
    client_login(t, user, true);
    client_tune_and_open(t, 2047, 131072, 60);
}

static inline void client_channel(struct test_client *t, uint16_t channel)
{
    SEND(t, channel, channel_open, );
    EXPECT(t, channel, CHANNEL_OPEN_OK);
}

// basic.publish with its content, not yet sent.
static inline void put_publish(struct test_client *t, uint16_t channel, const struct amqp_basic_publish *m,
                               struct span properties, struct span body)
{
    amqp_send_basic_publish(&t->in, channel, m);
    content_frames_put(&t->in, channel, t->frame_max, properties, body);
}
static inline void publish(struct test_client *t, uint16_t channel, const char *exchange, const char *key,
                           const char *body)
{
    put_publish(t, channel,
                &(struct amqp_basic_publish){.exchange = span_str(exchange), .routing_key = span_str(key)},
                span_of(stub_no_properties, 2), span_str(body));
    client_flush(t);
}
