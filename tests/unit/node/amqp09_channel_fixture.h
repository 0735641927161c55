// SPDX-License-Identifier: Apache-2.0
// An open connection with channel 1 over the stub, and what the tests of channels say and expect.
// Every test runs with its input whole and byte by byte.
#pragma once
#include "tests/unit/node/amqp09_client.h"
#include "tests/unit/node/amqp09_stub.h"
#include <check.h>

#pragma GCC diagnostic ignored "-Wunused-function"  // Not every test file needs all of it.

static struct test_client client;
static struct test_client *const t = &client;

static void setup(void)
{
    stub_init();
    stub_queue_add("q");
}

// An open connection with channel 1.
static void begin_as(int chop, const char *user, const struct amqp09_config *config)
{
    t->chop = (size_t)chop;
    client_start(t, config, true);
    client_open(t, user);
    client_channel(t, 1);
}

static void begin(int chop)
{
    struct amqp09_config config = client_config();
    begin_as(chop, "u", &config);
}

static void end(void)
{
    client_stop(t);
    stub_deinit();
}

static void confirm_select(void)
{
    SEND(t, 1, confirm_select, );
    EXPECT(t, 1, CONFIRM_SELECT_OK);
}

static void expect_ack(uint64_t tag, bool is_multiple)
{
    struct amqp_method m = EXPECT(t, 1, BASIC_ACK);
    ck_assert_uint_eq(m.basic_ack.delivery_tag, tag);
    ck_assert_int_eq(m.basic_ack.multiple, is_multiple);
}

static void expect_nack(uint64_t tag, bool is_multiple)
{
    struct amqp_method m = EXPECT(t, 1, BASIC_NACK);
    ck_assert_uint_eq(m.basic_nack.delivery_tag, tag);
    ck_assert_int_eq(m.basic_nack.multiple, is_multiple);
    ck_assert(m.basic_nack.requeue);
}

static void publish_mandatory(const char *exchange, const char *key, const char *body)
{
    put_publish(t, 1,
                &(struct amqp_basic_publish){
                    .exchange = span_str(exchange), .routing_key = span_str(key), .mandatory = true},
                span_of(stub_no_properties, 2), span_str(body));
    client_flush(t);
}

static void publish_properties(const struct content_properties *p)
{
    struct buf raw = {0};
    content_properties_put(&raw, p);
    put_publish(t, 1, &(struct amqp_basic_publish){.routing_key = span_str("q")}, buf_span(&raw),
                span_str("b"));
    client_flush(t);
    buf_deinit(&raw);
}

// Single frames of a content, without properties.
static void put_header(uint16_t channel, uint64_t body_size)
{
    size_t at = amqp_frame_begin(&t->in, AMQP_FRAME_HEADER, channel);
    buf_u32be(&t->in, CONTENT_CLASS_BASIC << 16);
    buf_u64be(&t->in, body_size);
    buf_u16be(&t->in, 0);
    amqp_frame_end(&t->in, at);
}

static void put_body(uint16_t channel, const char *bytes)
{
    size_t at = amqp_frame_begin(&t->in, AMQP_FRAME_BODY, channel);
    buf_span_bytes(&t->in, span_str(bytes));
    amqp_frame_end(&t->in, at);
}

// A consumer "ct" on q, started.
static void consume(bool is_no_ack)
{
    SEND(t, 1, basic_consume, .queue = span_str("q"), .consumer_tag = span_str("ct"), .no_ack = is_no_ack);
    struct queue_session *s = stub_session("q");
    s->cb->consume_done(s->ctx, s, 1, RC_OK);
    EXPECT(t, 1, BASIC_CONSUME_OK);
    stub.log.len = 0;
}

static uint64_t expect_deliver(const char *body, bool is_redelivered)
{
    struct amqp_method m = EXPECT(t, 1, BASIC_DELIVER);
    uint64_t tag = m.basic_deliver.delivery_tag;
    EXPECT_TEXT(m.basic_deliver.consumer_tag, "ct");
    EXPECT_TEXT(m.basic_deliver.routing_key, "q");
    ck_assert_int_eq(m.basic_deliver.redelivered, is_redelivered);
    expect_content(t, 1, span_of(stub_no_properties, 2), span_str(body));
    return tag;
}

static void deliver_five(void)
{
    consume(false);
    for (uint64_t n = 1; n <= 5; n++) {
        stub_deliver("q", 1, n, "m");
        ck_assert_uint_eq(expect_deliver("m", false), n);
    }
}
