// SPDX-License-Identifier: Apache-2.0
// links: node/amqp09 proto/amqp09 node/base
// Channels (data-plane §1.9-§1.13, §1.17; cases PR, CF): orders of frames, codes, what reaches the queues.
// Every test runs with its input whole and byte by byte.
#include "node/base/crc32c.h"
#include "tests/unit/node/amqp09_client.h"
#include "tests/unit/node/amqp09_stub.h"
#include <check.h>

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

// ---- publishing ---------------------------------------------------------------------------------

START_TEST(a_message_reaches_the_queue_with_all_it_carries)
{
    begin(_i);
    publish_properties(&(struct content_properties){.flags = PROPERTY_DELIVERY_MODE | PROPERTY_PRIORITY |
                                                             PROPERTY_EXPIRATION,
                                                    .delivery_mode = 2,
                                                    .priority = 7,
                                                    .expiration = span_str("60000")});
    expect_log("publish q x= key=q body=b ttl=60000 priority=7 persistent\n");
    publish(t, 1, "", "q", "");
    expect_log("publish q x= key=q body=\n");
    expect_nothing(t);
    end();
}
END_TEST

START_TEST(bodies_of_many_frames_arrive_whole_and_interleaved_with_other_channels)
{
    begin(_i);
    client_channel(t, 2);
    amqp_send_basic_publish(&t->in, 1, &(struct amqp_basic_publish){.routing_key = span_str("q")});
    put_header(1, 6);
    put_body(1, "abc");
    client_flush(t);
    publish(t, 2, "", "q", "other");
    put_body(1, "def");
    client_flush(t);
    expect_log("publish q x= key=q body=other\npublish q x= key=q body=abcdef\n");
    ck_assert_uint_eq(t->service->partial_bytes, 0);
    end();
}
END_TEST

START_TEST(a_large_body_of_many_frames_is_handed_over_with_room_around_it_and_its_sum)
{
    begin(0);
    const size_t len = (1 << 20) + 321;
    uint8_t *body = malloc(len);
    for (size_t i = 0; i < len; i++) {
        body[i] = (uint8_t)(i * 31 >> 3);
    }
    for (int round = 0; round < 2; round++) {
        amqp_send_basic_publish(&t->in, 1, &(struct amqp_basic_publish){.routing_key = span_str("q")});
        put_header(1, len);
        for (size_t at = 0; at < len; at += 100000) {
            size_t frame = amqp_frame_begin(&t->in, AMQP_FRAME_BODY, 1);
            buf_bytes(&t->in, body + at, len - at < 100000 ? len - at : 100000);
            amqp_frame_end(&t->in, frame);
            client_flush(t);
            ck_assert_uint_eq(t->service->partial_bytes, at + 100000 < len ? at + 100000 : 0);
        }
        // The last queue may have its memory.
        ck_assert(stub_large.is_given);
        ck_assert(stub_large.has_room);
        ck_assert(stub_large.is_summed);
        ck_assert_uint_eq(stub_large.sum, crc32c(0, body, len));
    }
    publish(t, 1, "", "q", "small again");
    ck_assert(!stub_large.has_room);
    free(body);
    end();
}
END_TEST

START_TEST(unroutable_is_acked_and_returned_first_if_mandatory)
{
    begin(_i);
    confirm_select();
    publish(t, 1, "nowhere", "k", "a");  // CF-03
    publish_mandatory("nowhere", "k", "b");
    struct amqp_method m = EXPECT(t, 1, BASIC_RETURN);
    ck_assert_uint_eq(m.basic_return.reply_code, 312);
    EXPECT_TEXT(m.basic_return.reply_text, "NO_ROUTE");
    EXPECT_TEXT(m.basic_return.exchange, "nowhere");
    EXPECT_TEXT(m.basic_return.routing_key, "k");
    expect_content(t, 1, span_of(stub_no_properties, 2), span_str("b"));
    expect_nothing(t);
    turn(t);
    expect_ack(2, true);
    expect_nothing(t);
    end();
}
END_TEST

START_TEST(a_header_taken_but_too_large_to_be_returned_closes_the_channel)
{
    struct amqp09_config config = client_config();
    t->chop = (size_t)_i;
    client_start(t, &config, true);
    client_login(t, "u", true);
    client_tune_and_open(t, 2047, 8192, 60);
    client_channel(t, 1);
    struct buf headers = {0}, raw = {0};
    static char value[8192];
    // 12 fixed + 2 flags + 4 length + 2 key + 5 head + value = 8192: eight more than we send.
    memset(value, 'v', 8192 - 25);
    table_put_text(&headers, "k", value);
    content_properties_put(&raw, &(struct content_properties){.flags = PROPERTY_HEADERS,
                                                               .headers = buf_span(&headers)});
    amqp_send_basic_publish(
        &t->in, 1, &(struct amqp_basic_publish){.exchange = span_str("nowhere"), .mandatory = true});
    content_frames_put(&t->in, 1, 0, buf_span(&raw), span_of(NULL, 0));
    client_flush(t);
    struct amqp_method m = EXPECT(t, 1, CHANNEL_CLOSE);
    ck_assert_uint_eq(m.channel_close.reply_code, 311);
    buf_deinit(&headers);
    buf_deinit(&raw);
    end();
}
END_TEST

START_TEST(confirms_of_a_turn_are_one_frame)
{
    begin(_i);
    confirm_select();
    for (int i = 0; i < 5; i++) {
        publish(t, 1, "", "q", "m");
    }
    turn(t);
    expect_nothing(t);
    stub_settle("q", 3);
    stub_settle("q", 4);
    turn(t);
    expect_ack(4, true);
    stub_settle("q", 5);
    turn(t);
    expect_ack(5, false);
    expect_nothing(t);
    end();
}
END_TEST

START_TEST(a_message_to_several_queues_is_confirmed_when_all_have_it)
{
    stub_queue_add("r");
    begin(_i);
    confirm_select();
    publish(t, 1, "x", "", "1");
    publish(t, 1, "", "r", "2");
    stub_settle("r", 2);  // Both of r's; q has not said anything about 1.
    turn(t);
    expect_ack(2, false);
    stub_settle("q", 1);
    turn(t);
    expect_ack(1, false);
    expect_nothing(t);
    end();
}
END_TEST

START_TEST(a_refusal_by_any_queue_is_one_nack)
{
    stub_queue_add("r");
    begin(_i);
    confirm_select();
    for (int i = 0; i < 3; i++) {
        publish(t, 1, "x", "", "m");
    }
    stub_reject("q", 3, 2);
    stub_reject("r", 3, 2);
    turn(t);
    expect_ack(1, false);
    expect_nack(2, true);  // Everything up to 2 is settled then.
    expect_ack(3, false);
    expect_nothing(t);
    end();
}
END_TEST

START_TEST(a_deleted_queue_counts_as_confirmed)
{
    begin(_i);
    confirm_select();
    publish(t, 1, "", "q", "m");
    struct queue_session *s = stub_session("q");
    s->cb->ended(s->ctx, s, true);
    turn(t);
    expect_ack(1, false);
    expect_nothing(t);
    ck_assert(s->is_closed);
    end();
}
END_TEST

START_TEST(a_session_that_ended_with_publishes_in_doubt_closes_the_channel)
{
    begin(_i);
    confirm_select();
    publish(t, 1, "", "q", "m");
    struct queue_session *s = stub_session("q");
    s->cb->ended(s->ctx, s, false);
    expect_channel_close(t, 1, 406, "PRECONDITION_FAILED - session with queue 'q' in vhost '/' ended");
    turn(t);
    ck_assert(s->is_closed);
    end();
}
END_TEST

START_TEST(publish_rules_have_their_codes)
{
    struct buf cc_table = {0};
    table_put_text(&cc_table, "CC", "not an array");
    const struct {
        struct content_properties p;
        const char *text;
    } rows[] = {
        {{.flags = PROPERTY_EXPIRATION, .expiration = span_str("abc")},
         "PRECONDITION_FAILED - invalid expiration 'abc': no_integer"},
        {{.flags = PROPERTY_EXPIRATION, .expiration = span_str("-1")},
         "PRECONDITION_FAILED - invalid expiration '-1': {value_negative,-1}"},
        {{.flags = PROPERTY_EXPIRATION, .expiration = span_str("")},
         "PRECONDITION_FAILED - invalid expiration '': no_integer"},
        {{.flags = PROPERTY_EXPIRATION, .expiration = span_str("315360000001")},
         "PRECONDITION_FAILED - invalid expiration '315360000001': {value_too_large,315360000001}"},
        {{.flags = PROPERTY_EXPIRATION, .expiration = span_str("1.5")},
         "PRECONDITION_FAILED - invalid expiration '1.5': {leftover_string,\".5\"}"},
        {{.flags = PROPERTY_USER_ID, .user_id = span_str("v")},
         "PRECONDITION_FAILED - user_id property set to 'v' but authenticated user was 'u'"},
        {{.flags = PROPERTY_HEADERS, .headers = buf_span(&cc_table)},
         "PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,\"CC\",longstr}"},
        {{.flags = PROPERTY_REPLY_TO, .reply_to = span_str("amq.rabbitmq.reply-to")},
         "PRECONDITION_FAILED - fast reply consumer does not exist"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        begin(_i);
        publish_properties(&rows[i].p);
        expect_channel_close(t, 1, 406, rows[i].text);
        expect_log("");
        client_stop(t);
    }
    buf_deinit(&cc_table);
    stub_deinit();
}
END_TEST

START_TEST(what_cannot_be_a_key_in_cc_is_passed_over)
{
    struct buf headers = {0};
    size_t at = table_begin_array(&headers, "CC");
    array_put(&headers, &(struct table_value){.type = TABLE_I32, .i = 1});
    array_put_string(&headers, span_str("r"));
    table_end(&headers, at);
    stub_queue_add("r");
    begin(_i);
    publish_properties(
        &(struct content_properties){.flags = PROPERTY_HEADERS, .headers = buf_span(&headers)});
    expect_nothing(t);
    expect_log("publish q x= key=q key=r body=b\npublish r x= key=q key=r body=b\n");
    buf_deinit(&headers);
    end();
}
END_TEST

START_TEST(an_expiration_is_read_as_a_number_with_a_sign)
{
    begin(_i);
    publish_properties(
        &(struct content_properties){.flags = PROPERTY_EXPIRATION, .expiration = span_str("+0060")});
    publish_properties(
        &(struct content_properties){.flags = PROPERTY_EXPIRATION, .expiration = span_str("-0")});
    expect_nothing(t);
    expect_log("publish q x= key=q body=b ttl=60\npublish q x= key=q body=b ttl=0\n");
    end();
}
END_TEST

START_TEST(own_user_id_and_impersonators_and_the_largest_expiration_pass)
{
    begin(_i);
    publish_properties(&(struct content_properties){.flags = PROPERTY_USER_ID | PROPERTY_EXPIRATION,
                                                    .user_id = span_str("u"),
                                                    .expiration = span_str("315360000000")});
    client_stop(t);
    struct amqp09_config config = client_config();
    begin_as(_i, "actor", &config);
    expect_log("publish q x= key=q body=b ttl=315360000000\nclose q\n");
    publish_properties(
        &(struct content_properties){.flags = PROPERTY_USER_ID, .user_id = span_str("someone")});
    expect_nothing(t);
    expect_log("publish q x= key=q body=b\n");
    end();
}
END_TEST

START_TEST(immediate_is_540_and_too_large_406)
{
    begin(_i);
    put_publish(t, 1, &(struct amqp_basic_publish){.immediate = true}, span_of(stub_no_properties, 2),
                span_str("b"));
    client_flush(t);
    expect_connection_close(t, 540, "NOT_IMPLEMENTED - immediate=true");
    client_stop(t);
    struct amqp09_config config = client_config();
    config.max_message_size = 3;
    begin_as(_i, "u", &config);
    publish(t, 1, "", "q", "abc");
    expect_log("publish q x= key=q body=abc\n");
    publish(t, 1, "", "q", "abcd");
    expect_channel_close(t, 1, 406,
                         "PRECONDITION_FAILED - message size 4 is larger than configured max size 3");
    end();
}
END_TEST

START_TEST(publishing_needs_permission_and_a_public_exchange)
{
    struct amqp09_config config = client_config();
    begin_as(_i, "weak", &config);
    publish(t, 1, "", "q", "a");
    expect_channel_close(
        t, 1, 403,
        "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'weak'");
    client_stop(t);
    begin(_i);
    publish(t, 1, "internal", "q", "a");
    expect_channel_close(t, 1, 403,
                         "ACCESS_REFUSED - cannot publish to internal exchange 'internal' in vhost '/'");
    end();
}
END_TEST

START_TEST(a_missing_exchange_is_proven_before_404_and_later_frames_wait)
{
    begin(_i);
    publish(t, 1, "gone", "k", "a");
    publish(t, 1, "", "q", "b");
    expect_log("exchange.declare gone type= passive\n");
    expect_nothing(t);
    stub_answer(RC_NOT_FOUND, 404, false, "no exchange 'gone' in vhost '/'");
    expect_channel_close(t, 1, 404, "NOT_FOUND - no exchange 'gone' in vhost '/'");
    turn(t);
    expect_log("");  // What came behind it is not published.
    end();
}
END_TEST

START_TEST(an_exchange_that_turns_up_during_the_proof_is_used)
{
    begin(_i);
    publish(t, 1, "late", "k", "a");
    publish(t, 1, "", "q", "b");
    stub.log.len = 0;
    stub.exchanges[1].name = span_str("late");
    stub.exchanges[1].type = EXCHANGE_DIRECT;
    stub.version++;
    stub_ok();
    turn(t);
    expect_log("publish q x= key=q body=b\n");  // "late" routes nowhere, but it is there.
    expect_nothing(t);
    end();
}
END_TEST

START_TEST(an_unroutable_publish_waits_for_a_projection_that_is_behind)
{
    begin(_i);
    stub.is_current = false;
    publish_mandatory("", "new", "a");
    publish(t, 1, "", "q", "b");
    turn(t);
    expect_nothing(t);
    expect_log("");
    stub_queue_add("new");
    stub.is_current = true;
    turn(t);
    expect_nothing(t);
    expect_log("publish new x= key=new body=a\npublish q x= key=q body=b\n");
    end();
}
END_TEST

START_TEST(an_unroutable_publish_waits_at_most_100_ms)
{
    begin(_i);
    stub.is_current = false;
    publish_mandatory("", "new", "a");
    stub.now_ns += 99000000;
    turn(t);
    expect_nothing(t);
    stub.now_ns += 1000000;
    turn(t);
    EXPECT(t, 1, BASIC_RETURN);
    end();
}
END_TEST

START_TEST(cc_and_bcc_are_routing_keys_and_bcc_is_not_stored)
{
    stub_queue_add("r");
    stub_queue_add("s");
    begin(_i);
    struct buf headers = {0};
    size_t at = table_begin_array(&headers, "CC");
    array_put_string(&headers, span_str("r"));
    table_end(&headers, at);
    at = table_begin_array(&headers, "BCC");
    array_put_string(&headers, span_str("s"));
    table_end(&headers, at);
    publish_properties(
        &(struct content_properties){.flags = PROPERTY_HEADERS, .headers = buf_span(&headers)});
    expect_log("publish q x= key=q key=r bcc=s body=b\npublish r x= key=q key=r bcc=s body=b\npublish s x= "
               "key=q key=r bcc=s body=b\n");
    struct table_value v;
    ck_assert(!table_find(buf_span(&t->service->scratch), "BCC", &v));
    ck_assert(table_find(buf_span(&t->service->scratch), "CC", &v));
    buf_deinit(&headers);
    end();
}
END_TEST

START_TEST(routes_are_remembered_until_the_projection_changes)
{
    begin(_i);
    for (int i = 0; i < 10; i++) {
        publish(t, 1, "", "q", "m");
        publish(t, 1, "x", "k", "m");
    }
    ck_assert_uint_eq(stub.routed, 2);
    stub_queue_add("r");
    publish(t, 1, "x", "k", "m");
    ck_assert_uint_eq(stub.routed, 3);
    ck_assert_uint_eq(stub_session("r")->published, 1);
    end();
}
END_TEST

START_TEST(routes_are_computed_when_headers_may_decide)
{
    begin(_i);
    struct buf headers = {0};
    table_put_text(&headers, "k", "v");
    struct content_properties p = {.flags = PROPERTY_HEADERS, .headers = buf_span(&headers)};
    publish_properties(&p);
    publish_properties(&p);
    ck_assert_uint_eq(stub.routed, 1);
    stub.has_headers_exchange = true;
    stub.version++;
    publish_properties(&p);
    publish_properties(&p);
    ck_assert_uint_eq(stub.routed, 3);
    buf_deinit(&headers);
    end();
}
END_TEST

START_TEST(a_full_session_stops_the_reading_until_it_is_writable)
{
    begin(_i);
    stub.service.full_after = 3;
    for (int i = 0; i < 3; i++) {
        put_publish(t, 1, &(struct amqp_basic_publish){.routing_key = span_str("q")},
                    span_of(stub_no_properties, 2), span_str("m"));
    }
    put_publish(t, 1, &(struct amqp_basic_publish){.routing_key = span_str("q")},
                span_of(stub_no_properties, 2), span_str("held"));
    client_flush(t);
    struct queue_session *s = stub_session("q");
    ck_assert_uint_eq(s->published, 3);
    ck_assert(!t->is_reading);
    s->is_full = false;
    s->cb->writable(s->ctx, s);
    ck_assert_uint_eq(s->published, 3);  // Not inside the callback.
    ck_assert(!t->is_reading);           // First what was read before.
    stub.service.full_after = 0;
    turn(t);
    ck_assert_uint_eq(s->published, 4);
    ck_assert(t->is_reading);
    end();
}
END_TEST

START_TEST(input_left_by_a_pause_is_parsed_before_more_is_read)
{
    begin(0);
    struct buf one = {0};
    amqp_send_basic_publish(&one, 1, &(struct amqp_basic_publish){.routing_key = span_str("q")});
    content_frames_put(&one, 1, 0, span_of(stub_no_properties, 2), span_str("m"));
    struct buf read = {0};  // What one read of the socket brings: more than the session takes at once.
    for (int i = 0; i < 100; i++) {
        buf_span_bytes(&read, buf_span(&one));
    }
    stub.service.full_after = 3;
    struct queue_session *s = NULL;
    for (int rounds = 0; rounds < 200; rounds++) {
        if (t->is_reading) {
            connection_input(t->connection, buf_span(&read));
        }
        ck_assert_uint_le(t->connection->rest.len, read.len);
        s = stub_session("q");
        stub.service.full_after = (uint32_t)s->published + 3;
        s->is_full = false;
        s->cb->writable(s->ctx, s);
        turn(t);
    }
    ck_assert_uint_gt(s->published, 300);
    buf_deinit(&one);
    buf_deinit(&read);
    end();
}
END_TEST

START_TEST(content_frames_out_of_order_are_505_or_501)
{
    begin(_i);
    amqp_send_basic_publish(&t->in, 1, &(struct amqp_basic_publish){.routing_key = span_str("q")});
    SEND(t, 1, basic_qos, .prefetch_count = 1);
    expect_connection_close(
        t, 505,
        "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead");
    client_stop(t);

    begin(_i);
    put_body(1, "");
    client_flush(t);
    expect_connection_close(t, 505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead");
    client_stop(t);

    begin(_i);  // Two bytes of body where one was announced.
    amqp_send_basic_publish(&t->in, 1, &(struct amqp_basic_publish){.routing_key = span_str("q")});
    put_header(1, 1);
    put_body(1, "ab");
    client_flush(t);
    struct amqp_method m = EXPECT(t, 0, CONNECTION_CLOSE);
    ck_assert_uint_eq(m.connection_close.reply_code, 501);
    end();
}
END_TEST

// ---- consuming ----------------------------------------------------------------------------------

START_TEST(qos_is_per_consumer_and_for_those_to_come)
{
    begin(_i);
    SEND(t, 1, basic_qos, .prefetch_count = 5, .global = true);
    EXPECT(t, 1, BASIC_QOS_OK);
    struct buf arguments = {0};
    table_put_i32(&arguments, "x-priority", -3);
    SEND(t, 1, basic_consume, .queue = span_str("q"), .consumer_tag = span_str("a"),
         .arguments = buf_span(&arguments));
    expect_log("consume q id=1 prefetch=5 priority=-3 tag=a\n");
    buf_deinit(&arguments);
    client_channel(t, 2);
    SEND(t, 2, basic_qos, .prefetch_size = 1);
    expect_connection_close(t, 540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)");
    end();
}
END_TEST

START_TEST(consume_ok_comes_before_the_first_delivery)
{
    begin(_i);
    SEND(t, 1, basic_consume, .queue = span_str("q"), .consumer_tag = span_str("ct"));
    expect_nothing(t);
    stub_deliver("q", 1, 1, "early");
    EXPECT(t, 1, BASIC_CONSUME_OK);
    ck_assert_uint_eq(expect_deliver("early", false), 1);
    struct queue_session *s = stub_session("q");
    s->cb->consume_done(s->ctx, s, 1, RC_OK);
    expect_nothing(t);
    end();
}
END_TEST

START_TEST(a_tag_is_made_up_for_an_empty_one)
{
    begin(_i);
    SEND(t, 1, basic_consume, .queue = span_str("q"));
    struct queue_session *s = stub_session("q");
    s->cb->consume_done(s->ctx, s, 1, RC_OK);
    struct amqp_method m = EXPECT(t, 1, BASIC_CONSUME_OK);
    ck_assert(span_starts_with(m.basic_consume_ok.consumer_tag, "amq.ctag-"));
    ck_assert_uint_eq(m.basic_consume_ok.consumer_tag.len, 9 + 22);
    end();
}
END_TEST

START_TEST(reusing_a_tag_on_a_channel_is_530)
{
    begin(_i);
    consume(false);
    client_channel(t, 2);
    SEND(t, 2, basic_consume, .queue = span_str("q"),
         .consumer_tag = span_str("ct"));  // Another channel: fine.
    SEND(t, 1, basic_consume, .queue = span_str("q"), .consumer_tag = span_str("ct"));
    expect_connection_close(t, 530, "NOT_ALLOWED - attempt to reuse consumer tag 'ct'");
    end();
}
END_TEST

START_TEST(a_missing_queue_is_proven_before_404)
{
    begin(_i);
    SEND(t, 1, basic_consume, .queue = span_str("none"), .consumer_tag = span_str("ct"));
    expect_log("queue.declare none passive\n");
    stub_answer(RC_NOT_FOUND, 404, false, "");
    struct amqp_method m = EXPECT(t, 1, CHANNEL_CLOSE);
    ck_assert_uint_eq(m.channel_close.reply_code, 404);
    EXPECT_TEXT(m.channel_close.reply_text, "NOT_FOUND - no queue 'none' in vhost '/'");
    ck_assert_uint_eq(m.channel_close.class_id, 60);
    ck_assert_uint_eq(m.channel_close.method_id, 20);
    end();
}
END_TEST

START_TEST(consumer_arguments_are_checked)
{
    static const struct {
        const char *key, *text;
        uint16_t code;
    } rows[] = {
        {"x-priority",
         "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost '/': "
         "\"expected integer, got longstr\"",
         406},
        {"x-stream-offset",
         "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q' in vhost '/' of queue type "
         "rabbit_quorum_queue",
         406},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        begin(_i);
        struct buf arguments = {0};
        table_put_text(&arguments, rows[i].key, "v");
        SEND(t, 1, basic_consume, .queue = span_str("q"), .consumer_tag = span_str("ct"),
             .arguments = buf_span(&arguments));
        buf_deinit(&arguments);
        expect_channel_close(t, 1, rows[i].code, rows[i].text);
        client_stop(t);
    }
    stub_deinit();
}
END_TEST

START_TEST(an_exclusive_consumer_shuts_others_out)
{
    begin(_i);
    SEND(t, 1, basic_consume, .queue = span_str("q"), .consumer_tag = span_str("ct"), .exclusive = true);
    struct queue_session *s = stub_session("q");
    s->cb->consume_done(s->ctx, s, 1, RC_DENIED);
    expect_channel_close(t, 1, 403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use");
    end();
}
END_TEST

START_TEST(frames_behind_a_pending_consume_wait_and_other_channels_go_on)
{
    begin(_i);
    client_channel(t, 2);
    SEND(t, 1, basic_consume, .queue = span_str("q"), .consumer_tag = span_str("ct"));
    SEND(t, 1, basic_qos, .prefetch_count = 1);
    SEND(t, 2, basic_qos, .prefetch_count = 1);
    EXPECT(t, 2, BASIC_QOS_OK);
    turn(t);
    expect_nothing(t);
    struct queue_session *s = stub_session("q");
    s->cb->consume_done(s->ctx, s, 1, RC_OK);
    turn(t);
    EXPECT(t, 1, BASIC_CONSUME_OK);
    EXPECT(t, 1, BASIC_QOS_OK);
    end();
}
END_TEST

START_TEST(too_much_waiting_stops_the_reading_and_nothing_is_lost)
{
    begin(0);
    SEND(t, 1, basic_consume, .queue = span_str("q"), .consumer_tag = span_str("ct"));
    stub.log.len = 0;
    static char body[100000];
    memset(body, 'x', sizeof(body) - 1);
    for (int i = 0; i < 40; i++) {
        publish(t, 1, "", "q", body);
    }
    ck_assert(!t->is_reading);
    ck_assert_uint_le(t->connection->service->partial_bytes, 0);
    struct queue_session *s = stub_session("q");
    s->cb->consume_done(s->ctx, s, 1, RC_OK);
    turn(t);
    ck_assert(t->is_reading);
    ck_assert_uint_eq(s->published, 40);
    end();
}
END_TEST

START_TEST(cancel_is_answered_by_the_queue_and_unknown_tags_at_once)
{
    begin(_i);
    SEND(t, 1, basic_cancel, .consumer_tag = span_str("unknown"));
    struct amqp_method m = EXPECT(t, 1, BASIC_CANCEL_OK);
    EXPECT_TEXT(m.basic_cancel_ok.consumer_tag, "unknown");
    consume(false);
    SEND(t, 1, basic_cancel, .consumer_tag = span_str("ct"));
    expect_log("cancel q id=1\n");
    stub_deliver("q", 1, 1, "late");
    uint64_t tag = expect_deliver("late", false);
    struct queue_session *s = stub_session("q");
    s->cb->cancel_done(s->ctx, s, 1);
    EXPECT(t, 1, BASIC_CANCEL_OK);
    SEND(t, 1, basic_ack, .delivery_tag = tag);  // Stays ackable.
    expect_log("ack q c=1 1-1\n");
    end();
}
END_TEST

START_TEST(a_lost_consumer_is_told_to_those_who_ask)
{
    begin(_i);
    consume(false);
    struct queue_session *s = stub_session("q");
    s->cb->consumer_lost(s->ctx, s, 1);
    struct amqp_method m = EXPECT(t, 1, BASIC_CANCEL);
    EXPECT_TEXT(m.basic_cancel.consumer_tag, "ct");
    ck_assert(m.basic_cancel.nowait);
    client_stop(t);

    struct amqp09_config config = client_config();
    t->chop = (size_t)_i;
    client_start(t, &config, true);
    client_login(t, "u", false);
    client_tune_and_open(t, 2047, 131072, 60);
    client_channel(t, 1);
    consume(false);
    s = stub_session("q");
    s->cb->consumer_lost(s->ctx, s, 1);
    expect_nothing(t);
    end();
}
END_TEST

START_TEST(what_came_back_carries_its_counts_sorted_into_the_headers)
{
    begin(_i);
    consume(false);
    struct buf headers = {0}, raw = {0}, expected = {0};
    table_put_text(&headers, "a", "1");
    table_put_text(&headers, "z", "2");
    content_properties_put(&raw, &(struct content_properties){.flags = PROPERTY_HEADERS | PROPERTY_APP_ID,
                                                              .headers = buf_span(&headers),
                                                              .app_id = span_str("me")});
    struct queue_session *s = stub_session("q");
    struct queue_message m = stub_message(1, "body");
    m.header = buf_span(&raw);
    m.acquired_count = 3;
    m.delivery_count = 2;
    s->cb->deliver(s->ctx, s, 1, &m);
    struct amqp_method d = EXPECT(t, 1, BASIC_DELIVER);
    ck_assert(d.basic_deliver.redelivered);
    headers.len = 0;
    table_put_text(&headers, "a", "1");
    table_put_i64(&headers, "x-acquired-count", 3);
    table_put_i64(&headers, "x-delivery-count", 2);
    table_put_text(&headers, "z", "2");
    content_properties_put(&expected,
                           &(struct content_properties){.flags = PROPERTY_HEADERS | PROPERTY_APP_ID,
                                                        .headers = buf_span(&headers),
                                                        .app_id = span_str("me")});
    expect_content(t, 1, buf_span(&expected), span_str("body"));
    buf_deinit(&headers);
    buf_deinit(&raw);
    buf_deinit(&expected);
    end();
}
END_TEST

START_TEST(bodies_are_split_to_the_frame_max_agreed_and_headers_never_exceed_it)
{
    struct amqp09_config config = client_config();
    t->chop = (size_t)_i;
    client_start(t, &config, true);
    client_login(t, "u", true);
    client_tune_and_open(t, 2047, 8192, 60);  // next_frame checks every frame against it.
    client_channel(t, 1);
    consume(false);
    static char body[20001];
    memset(body, 'y', sizeof(body) - 1);
    stub_deliver("q", 1, 1, body);
    expect_deliver(body, false);
    struct buf headers = {0}, raw = {0};
    static char value[9000];
    memset(value, 'v', sizeof(value) - 1);
    table_put_text(&headers, "k", value);
    content_properties_put(
        &raw, &(struct content_properties){.flags = PROPERTY_HEADERS, .headers = buf_span(&headers)});
    struct queue_session *s = stub_session("q");
    struct queue_message m = stub_message(2, "b");
    m.header = buf_span(&raw);
    s->cb->deliver(s->ctx, s, 1, &m);  // PR-39
    struct amqp_method c = EXPECT(t, 1, CHANNEL_CLOSE);
    ck_assert_uint_eq(c.channel_close.reply_code, 311);
    expect_nothing(t);
    turn(t);
    ck_assert(s->is_closed);  // Everything it held goes back.
    buf_deinit(&headers);
    buf_deinit(&raw);
    end();
}
END_TEST

START_TEST(a_client_that_does_not_read_gets_no_more_deliveries)
{
    begin(0);
    consume(true);
    static char body[100001];
    memset(body, 'z', sizeof(body) - 1);
    struct queue_session *s = stub_session("q");
    uint64_t n = 0;
    while (!s->is_paused && n < 100) {
        stub_deliver("q", 1, ++n, body);
    }
    ck_assert_uint_le(n, 11);
    ck_assert(!t->is_reading);
    ck_assert_uint_eq(s->taken, 0);
    for (uint64_t i = 0; i < n; i++) {
        expect_deliver(body, false);
    }
    ck_assert(!s->is_paused);
    ck_assert(t->is_reading);
    ck_assert_uint_eq(s->taken, n * 100000);
    end();
}
END_TEST

static void put_expected(struct buf *to, uint64_t tag, struct span body)
{
    amqp_send_basic_deliver(to, 1,
                            &(struct amqp_basic_deliver){.consumer_tag = span_str("ct"), .delivery_tag = tag, .routing_key = span_str("q")});
    content_frames_put(to, 1, t->frame_max, span_of(stub_no_properties, 2), body);
}

START_TEST(a_large_body_is_shared_until_the_socket_has_taken_it)
{
    begin(0);
    consume(true);
    const size_t len = (2 << 20) + 12345;
    struct block *block = block_create(len);
    for (size_t i = 0; i < len; i++) {
        block->ptr[i] = (uint8_t)(i * 31 >> 3);
    }
    struct span body = span_of(block->ptr, len);
    struct buf expected = {0}, got = {0};
    struct queue_session *s = stub_session("q");
    put_expected(&expected, 1, span_str("before"));
    put_expected(&expected, 2, body);
    put_expected(&expected, 3, body);
    put_expected(&expected, 4, span_str("behind"));
    stub_deliver("q", 1, 1, "before");
    for (uint64_t n = 2; n <= 3; n++) {
        struct queue_message m = {
            .number = n, .routing_key = span_str("q"), .header = span_of(stub_no_properties, 2), .body = body};
        s->cb->deliver(s->ctx, s, 1, &m);
    }
    stub_deliver("q", 1, 4, "behind");
    ck_assert_uint_eq(connection_output_waiting(t->connection), expected.len);
    ck_assert(s->is_paused);
    ck_assert_uint_lt(t->connection->out.cap, 1 << 20);  // Not copied.
    block_release(block);                                // The output's owners keep it.
    ck_assert_ptr_nonnull(block_find(body.ptr));
    uint32_t size = 1;
    while (connection_output_waiting(t->connection) > 0) {
        struct iovec parts[3];
        int count = connection_output_parts(t->connection, parts, 3);
        size_t take = 0;
        size = size * 1103515245 + 12345;
        for (int i = 0; i < count && take < size % 300000; i++) {
            size_t left = size % 300000 - take;
            size_t n = parts[i].iov_len < left ? parts[i].iov_len : left;
            buf_bytes(&got, parts[i].iov_base, n);
            take += n;
        }
        connection_output_taken(t->connection, take);
    }
    ck_assert_uint_eq(got.len, expected.len);
    ck_assert_int_eq(memcmp(got.ptr, expected.ptr, got.len), 0);
    ck_assert_ptr_null(block_find(body.ptr));
    ck_assert(!s->is_paused);
    ck_assert_uint_eq(s->taken, 2 * len + 12);
    buf_deinit(&expected);
    buf_deinit(&got);
    end();
}
END_TEST

START_TEST(a_connection_that_ends_lets_go_of_large_bodies)
{
    begin(0);
    consume(true);
    struct block *block = block_create(1 << 20);
    memset(block->ptr, 1, block->cap);
    struct queue_session *s = stub_session("q");
    struct queue_message m = {.number = 1,
                              .routing_key = span_str("q"),
                              .header = span_of(stub_no_properties, 2),
                              .body = span_of(block->ptr, block->cap)};
    s->cb->deliver(s->ctx, s, 1, &m);
    ck_assert_uint_gt(block->refs, 1);
    end();
    ck_assert_uint_eq(block->refs, 1);
    block_release(block);
}
END_TEST

START_TEST(get_answers_message_and_count_or_empty)
{
    begin(_i);
    SEND(t, 1, basic_get, .queue = span_str("q"));
    expect_log("get q token=1\n");
    struct queue_session *s = stub_session("q");
    struct queue_message m = stub_message(9, "got");
    s->cb->get_done(s->ctx, s, 1, RC_OK, &m, 41);
    struct amqp_method g = EXPECT(t, 1, BASIC_GET_OK);
    ck_assert_uint_eq(g.basic_get_ok.delivery_tag, 1);
    ck_assert_uint_eq(g.basic_get_ok.message_count, 41);
    expect_content(t, 1, span_of(stub_no_properties, 2), span_str("got"));
    SEND(t, 1, basic_ack, .delivery_tag = 1);
    SEND(t, 1, basic_get, .queue = span_str("q"), .no_ack = true);
    expect_log("ack q c=0 9-9\nget q token=2 no-ack\n");
    s->cb->get_done(s->ctx, s, 2, RC_OK, NULL, 0);
    EXPECT(t, 1, BASIC_GET_EMPTY);
    end();
}
END_TEST

// ---- settling -----------------------------------------------------------------------------------

static void deliver_five(void)
{
    consume(false);
    for (uint64_t n = 1; n <= 5; n++) {
        stub_deliver("q", 1, n, "m");
        ck_assert_uint_eq(expect_deliver("m", false), n);
    }
}

START_TEST(settles_become_ranges_with_their_kind)
{
    begin(_i);
    deliver_five();
    SEND(t, 1, basic_ack, .delivery_tag = 3, .multiple = true);
    SEND(t, 1, basic_reject, .delivery_tag = 5, .requeue = true);
    SEND(t, 1, basic_nack, .requeue = true, .multiple = true);
    expect_log("ack q c=1 1-3\nreturn q c=1 5-5\nrelease q c=1 4-4\n");
    SEND(t, 1, basic_ack, .delivery_tag = 0, .multiple = true);  // None left is fine.
    expect_nothing(t);
    stub_deliver("q", 1, 6, "m");
    stub_deliver("q", 1, 7, "m");
    SEND(t, 1, basic_nack, .delivery_tag = 6);
    SEND(t, 1, basic_reject, .delivery_tag = 7);
    expect_log("discard q c=1 6-6\ndiscard q c=1 7-7\n");
    end();
}
END_TEST

START_TEST(unknown_tags_are_406)
{
    static const struct {
        uint64_t tag;
        bool is_multiple;
    } rows[] = {{6, false}, {6, true}, {2, false}, {2, true}, {0, false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        begin(_i);
        deliver_five();
        SEND(t, 1, basic_ack, .delivery_tag = 2);  // From now on 2 is unknown, also with multiple.
        SEND(t, 1, basic_ack, .delivery_tag = rows[i].tag, .multiple = rows[i].is_multiple);
        char text[80];
        snprintf(text, sizeof(text), "PRECONDITION_FAILED - unknown delivery tag %llu",
                 (unsigned long long)rows[i].tag);
        expect_channel_close(t, 1, 406, text);
        client_stop(t);
    }
    stub_deinit();
}
END_TEST

START_TEST(no_ack_deliveries_take_tags_but_cannot_be_acked)
{
    begin(_i);
    consume(true);
    stub_deliver("q", 1, 1, "m");
    ck_assert_uint_eq(expect_deliver("m", false), 1);
    stub_deliver("q", 1, 2, "m");
    ck_assert_uint_eq(expect_deliver("m", false), 2);
    SEND(t, 1, basic_ack, .delivery_tag = 1);
    expect_channel_close(t, 1, 406, "PRECONDITION_FAILED - unknown delivery tag 1");
    end();
}
END_TEST

START_TEST(recover_requeues_everything)
{
    begin(_i);
    deliver_five();
    SEND(t, 1, basic_recover, .requeue = true);
    EXPECT(t, 1, BASIC_RECOVER_OK);
    expect_log("release q c=1 1-5\n");
    SEND(t, 1, basic_recover_async, .requeue = true);
    expect_nothing(t);
    SEND(t, 1, basic_recover, .requeue = false);
    expect_connection_close(t, 540, "NOT_IMPLEMENTED - requeue=false");
    end();
}
END_TEST

// ---- topology -----------------------------------------------------------------------------------

START_TEST(declare_names_the_queue_for_later_and_tells_counts)
{
    begin(_i);
    SEND(t, 1, queue_declare, .queue = span_str("q"), .durable = true);
    stub_ok();
    stub.service.info = (struct queue_info){.ready = 5, .unacked = 9, .consumers = 2};
    stub_ok();
    struct amqp_method m = EXPECT(t, 1, QUEUE_DECLARE_OK);
    EXPECT_TEXT(m.queue_declare_ok.queue, "q");
    ck_assert_uint_eq(m.queue_declare_ok.message_count, 5);
    ck_assert_uint_eq(m.queue_declare_ok.consumer_count, 2);
    SEND(t, 1, queue_bind, .exchange = span_str("x"));
    stub_ok();
    EXPECT(t, 1, QUEUE_BIND_OK);
    SEND(t, 1, queue_purge, );
    struct queue_session *s = stub_session("q");
    s->cb->purge_done(s->ctx, s, 1, 5);
    ck_assert_uint_eq(EXPECT(t, 1, QUEUE_PURGE_OK).queue_purge_ok.message_count, 5);
    expect_log("queue.declare q\ninfo\nbind queue x -> q key=q\npurge q token=1\n");
    end();
}
END_TEST

START_TEST(a_new_queue_is_empty_without_asking)
{
    begin(_i);
    SEND(t, 1, queue_declare, .queue = span_str("a\r\nb"), .durable = true);
    expect_log("queue.declare ab\n");
    stub_ok();
    struct amqp_method m = EXPECT(t, 1, QUEUE_DECLARE_OK);
    EXPECT_TEXT(m.queue_declare_ok.queue, "ab");
    end();
}
END_TEST

START_TEST(an_empty_name_without_a_declared_queue_is_404)
{
    begin(_i);
    SEND(t, 1, queue_purge, );
    expect_channel_close(t, 1, 404, "NOT_FOUND - no previously declared queue");
    end();
}
END_TEST

START_TEST(the_brokers_refusals_are_passed_on)
{
    begin(_i);
    SEND(t, 1, exchange_declare, .exchange = span_str("e"), .type = span_str("direct"));
    stub_answer(RC_CONFLICT, 406, false, "inequivalent arg 'type'");
    struct amqp_method m = EXPECT(t, 1, CHANNEL_CLOSE);
    ck_assert_uint_eq(m.channel_close.reply_code, 406);
    EXPECT_TEXT(m.channel_close.reply_text, "PRECONDITION_FAILED - inequivalent arg 'type'");
    ck_assert_uint_eq(m.channel_close.class_id, 40);
    ck_assert_uint_eq(m.channel_close.method_id, 10);
    client_channel(t, 2);
    SEND(t, 2, queue_declare, .queue = span_str("c"), .exclusive = true);
    stub_answer(RC_UNSUPPORTED, 540, true, "exclusive queues");
    expect_connection_close(t, 540, "NOT_IMPLEMENTED - exclusive queues");
    end();
}
END_TEST

START_TEST(every_topology_method_has_its_answer)
{
    begin(_i);
    SEND(t, 1, exchange_declare, .exchange = span_str("e"), .type = span_str("topic"));
    stub_ok();
    EXPECT(t, 1, EXCHANGE_DECLARE_OK);
    SEND(t, 1, exchange_bind, .source = span_str("x"), .destination = span_str("e"),
         .routing_key = span_str("k"));
    turn(t);
    stub_ok();
    EXPECT(t, 1, EXCHANGE_BIND_OK);
    SEND(t, 1, exchange_unbind, .source = span_str("x"), .destination = span_str("e"),
         .routing_key = span_str("k"));
    stub_ok();
    EXPECT(t, 1, EXCHANGE_UNBIND_OK);
    SEND(t, 1, queue_unbind, .queue = span_str("q"), .exchange = span_str("x"), .routing_key = span_str("k"));
    stub_ok();
    EXPECT(t, 1, QUEUE_UNBIND_OK);
    SEND(t, 1, exchange_delete, .exchange = span_str("e"), .if_unused = true);
    stub_ok();
    EXPECT(t, 1, EXCHANGE_DELETE_OK);
    SEND(t, 1, queue_delete, .queue = span_str("q"));
    stub.service.info = (struct queue_info){.ready = 3};
    stub_ok();
    stub_ok();
    ck_assert_uint_eq(EXPECT(t, 1, QUEUE_DELETE_OK).queue_delete_ok.message_count, 3);
    SEND(t, 1, queue_delete, .queue = span_str("missing"));
    stub_ok();
    ck_assert_uint_eq(EXPECT(t, 1, QUEUE_DELETE_OK).queue_delete_ok.message_count, 0);
    expect_log("exchange.declare e type=topic\nbind exchange x -> e key=k\nunbind exchange x -> e key=k\n"
               "unbind queue x -> q key=k\nexchange.delete e if-unused\ninfo\nqueue.delete q\nqueue.delete "
               "missing\n");
    end();
}
END_TEST

START_TEST(nowait_suppresses_the_answers)
{
    begin(_i);
    SEND(t, 1, exchange_declare, .exchange = span_str("e"), .type = span_str("topic"), .nowait = true);
    stub_ok();
    SEND(t, 1, queue_bind, .queue = span_str("q"), .exchange = span_str("e"), .nowait = true);
    stub_ok();
    SEND(t, 1, queue_declare, .queue = span_str("q"), .nowait = true);
    stub_ok();
    SEND(t, 1, basic_consume, .queue = span_str("q"), .consumer_tag = span_str("ct"), .nowait = true);
    struct queue_session *s = stub_session("q");
    s->cb->consume_done(s->ctx, s, 1, RC_OK);
    SEND(t, 1, confirm_select, .nowait = true);
    turn(t);
    expect_nothing(t);
    end();
}
END_TEST

// ---- channel life -------------------------------------------------------------------------------

START_TEST(after_a_channel_error_late_frames_are_ignored_and_the_number_can_be_used_again)
{
    begin(_i);  // PR-21
    SEND(t, 1, basic_ack, .delivery_tag = 99);
    expect_channel_close(t, 1, 406, "PRECONDITION_FAILED - unknown delivery tag 99");
    for (uint64_t i = 0; i < 10; i++) {
        SEND(t, 1, basic_ack, .delivery_tag = i);
    }
    publish(t, 1, "", "q", "late");
    SEND(t, 1, channel_close_ok, );
    expect_nothing(t);
    expect_log("");
    client_channel(t, 1);
    publish(t, 1, "", "q", "new");
    expect_log("publish q x= key=q body=new\n");
    end();
}
END_TEST

START_TEST(a_client_close_crossing_ours_is_answered)
{
    begin(_i);
    SEND(t, 1, basic_ack, .delivery_tag = 99);
    EXPECT(t, 1, CHANNEL_CLOSE);
    SEND(t, 1, channel_close, .reply_code = 200);
    EXPECT(t, 1, CHANNEL_CLOSE_OK);
    SEND(t, 1, channel_close_ok, );
    expect_nothing(t);
    client_channel(t, 1);
    end();
}
END_TEST

START_TEST(a_client_close_that_waited_behind_a_failing_operation_is_answered)
{
    begin(_i);
    SEND(t, 1, queue_declare, .queue = span_str("other"), .passive = true);
    SEND(t, 1, basic_qos, );
    SEND(t, 1, channel_close, .reply_code = 200);
    stub_answer(RC_NOT_FOUND, 404, false, "no queue");
    struct amqp_method m = EXPECT(t, 1, CHANNEL_CLOSE);
    ck_assert_uint_eq(m.channel_close.reply_code, 404);
    turn(t);
    EXPECT(t, 1, CHANNEL_CLOSE_OK);
    SEND(t, 1, channel_close_ok, );
    expect_nothing(t);
    client_channel(t, 1);
    end();
}
END_TEST

START_TEST(closing_a_channel_ends_its_sessions_after_telling_known_confirms)
{
    begin(_i);
    confirm_select();
    deliver_five();
    publish(t, 1, "", "q", "m");
    stub_settle("q", 1);
    SEND(t, 1, channel_close, .reply_code = 200);
    expect_ack(1, false);
    EXPECT(t, 1, CHANNEL_CLOSE_OK);
    struct queue_session *s = stub_session("q");
    stub.log.len = 0;
    s->cb->deliver(s->ctx, s, 1, &(struct queue_message){.number = 6});  // Still on its way: ignored.
    expect_nothing(t);
    turn(t);
    expect_log("close q\n");
    end();
}
END_TEST

START_TEST(an_answer_after_the_channel_is_gone_is_dropped)
{
    begin(_i);
    SEND(t, 1, exchange_declare, .exchange = span_str("e"), .type = span_str("direct"));
    SEND(t, 0, connection_close, .reply_code = 200);
    EXPECT(t, 0, CONNECTION_CLOSE_OK);
    turn(t);
    stub_ok();
    expect_nothing(t);
    end();
}
END_TEST

START_TEST(flow_access_and_foreign_methods)
{
    begin(_i);
    SEND(t, 1, channel_flow, .active = true);
    ck_assert(EXPECT(t, 1, CHANNEL_FLOW_OK).channel_flow_ok.active);
    SEND(t, 1, access_request, .realm = span_str("/data"));
    ck_assert_uint_eq(EXPECT(t, 1, ACCESS_REQUEST_OK).access_request_ok.ticket, 1);
    SEND(t, 1, channel_flow, .active = false);
    expect_connection_close(t, 540, "NOT_IMPLEMENTED - active=false");
    client_stop(t);
    begin(_i);
    SEND(t, 1, basic_deliver, .consumer_tag = span_str("x"));
    expect_connection_close(t, 503, "COMMAND_INVALID - unimplemented method");
    end();
}
END_TEST

// ---- transactions -------------------------------------------------------------------------------

START_TEST(a_commit_publishes_then_settles_then_waits_for_the_queues)
{
    begin(_i);
    deliver_five();
    SEND(t, 1, tx_select, );
    EXPECT(t, 1, TX_SELECT_OK);
    publish(t, 1, "", "q", "a");
    SEND(t, 1, basic_ack, .delivery_tag = 2, .multiple = true);
    publish(t, 1, "", "q", "b");
    expect_log("");
    SEND(t, 1, tx_commit, );
    expect_log("publish q x= key=q body=a\npublish q x= key=q body=b\nack q c=1 1-2\n");
    expect_nothing(t);
    stub_settle("q", 1);
    expect_nothing(t);
    stub_settle("q", 2);
    EXPECT(t, 1, TX_COMMIT_OK);
    SEND(t, 1, tx_commit, );
    EXPECT(t, 1, TX_COMMIT_OK);  // Nothing to wait for.
    end();
}
END_TEST

START_TEST(a_rollback_forgets_publishes_and_unsettles)
{
    begin(_i);
    deliver_five();
    SEND(t, 1, tx_select, );
    EXPECT(t, 1, TX_SELECT_OK);
    publish(t, 1, "", "q", "a");
    SEND(t, 1, basic_ack, .delivery_tag = 3);
    SEND(t, 1, basic_nack, .delivery_tag = 1, .requeue = true);
    SEND(t, 1, tx_rollback, );
    EXPECT(t, 1, TX_ROLLBACK_OK);
    SEND(t, 1, basic_ack, .delivery_tag = 5, .multiple = true);
    SEND(t, 1, tx_commit, );
    EXPECT(t, 1, TX_COMMIT_OK);
    expect_log("ack q c=1 1-5\n");
    end();
}
END_TEST

START_TEST(transactions_have_their_errors)
{
    begin(_i);
    SEND(t, 1, tx_commit, );
    expect_channel_close(t, 1, 406, "PRECONDITION_FAILED - channel is not transactional");
    client_channel(t, 2);
    SEND(t, 2, confirm_select, );
    EXPECT(t, 2, CONFIRM_SELECT_OK);
    SEND(t, 2, tx_select, );
    expect_channel_close(t, 2, 406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode");
    client_channel(t, 3);
    SEND(t, 3, tx_select, );
    EXPECT(t, 3, TX_SELECT_OK);
    SEND(t, 3, confirm_select, );
    expect_channel_close(t, 3, 406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode");
    client_channel(t, 4);
    SEND(t, 4, tx_select, );
    EXPECT(t, 4, TX_SELECT_OK);
    publish(t, 4, "", "q", "refused");
    SEND(t, 4, tx_commit, );
    stub_reject("q", 1, 1);
    expect_channel_close(t, 4, 406, "PRECONDITION_FAILED - partial tx completion");
    end();
}
END_TEST

START_TEST(a_commit_into_a_queue_that_is_gone_is_506)
{
    begin(_i);
    SEND(t, 1, tx_select, );
    EXPECT(t, 1, TX_SELECT_OK);
    publish(t, 1, "", "q", "a");
    struct queue_session *s = stub_session("q");
    s->cb->ended(s->ctx, s, true);
    SEND(t, 1, tx_commit, );
    struct amqp_method m = EXPECT(t, 0, CONNECTION_CLOSE);
    ck_assert_uint_eq(m.connection_close.reply_code, 506);
    end();
}
END_TEST

// ---- partial bodies -----------------------------------------------------------------------------

START_TEST(unfinished_bodies_are_bounded_and_the_oldest_goes_on)
{
    struct amqp09_config config = client_config();
    config.partial_bytes_max = 1000;
    begin_as(_i, "u", &config);
    static struct test_client other_client;
    struct test_client *o = &other_client;
    *o = (struct test_client){.is_reading = true, .frame_max = 131072, .service = t->service};
    struct connection_io io = {
        .want_flush = io_flush, .set_reading = io_reading, .close = io_close, .ctx = o};
    o->connection = connection_create(t->service, &io, &(struct connection_peer){.is_loopback = true});
    client_open(o, "u");
    client_channel(o, 1);
    static char body[901];
    memset(body, 'b', 900);
    struct test_client *both[] = {t, o};
    struct buf whole = {0};
    for (int i = 0; i < 2; i++) {  // Each sends a body of 900 in frames of 300, but for the last frame.
        struct test_client *k = both[i];
        k->frame_max = 308;
        put_publish(k, 1, &(struct amqp_basic_publish){.routing_key = span_str("q")},
                    span_of(stub_no_properties, 2), span_str(body));
        whole.len = 0;
        buf_span_bytes(&whole, buf_span(&k->in));
        k->in.len -= 308;
        client_flush(k);
        k->frame_max = 131072;
    }
    ck_assert(t->is_reading);
    ck_assert(!o->is_reading);
    client_bytes(t, whole.ptr + whole.len - 308, 308);
    ck_assert(o->is_reading);
    client_bytes(o, whole.ptr + whole.len - 308, 308);
    turn(t);
    ck_assert_uint_eq(t->service->partial_bytes, 0);
    ck_assert_uint_eq(stub.service.published, 2);
    buf_deinit(&whole);
    connection_destroy(o->connection);
    buf_deinit(&o->in);
    buf_deinit(&o->frame);
    end();
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("channel");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_set_timeout(c, 60);
#define ADD(test) tcase_add_loop_test(c, test, 0, 2)
    ADD(a_message_reaches_the_queue_with_all_it_carries);
    ADD(bodies_of_many_frames_arrive_whole_and_interleaved_with_other_channels);
    ADD(unroutable_is_acked_and_returned_first_if_mandatory);
    ADD(a_header_taken_but_too_large_to_be_returned_closes_the_channel);
    ADD(confirms_of_a_turn_are_one_frame);
    ADD(a_message_to_several_queues_is_confirmed_when_all_have_it);
    ADD(a_refusal_by_any_queue_is_one_nack);
    ADD(a_deleted_queue_counts_as_confirmed);
    ADD(a_session_that_ended_with_publishes_in_doubt_closes_the_channel);
    ADD(publish_rules_have_their_codes);
    ADD(what_cannot_be_a_key_in_cc_is_passed_over);
    ADD(an_expiration_is_read_as_a_number_with_a_sign);
    ADD(own_user_id_and_impersonators_and_the_largest_expiration_pass);
    ADD(immediate_is_540_and_too_large_406);
    ADD(publishing_needs_permission_and_a_public_exchange);
    ADD(a_missing_exchange_is_proven_before_404_and_later_frames_wait);
    ADD(an_exchange_that_turns_up_during_the_proof_is_used);
    ADD(an_unroutable_publish_waits_for_a_projection_that_is_behind);
    ADD(an_unroutable_publish_waits_at_most_100_ms);
    ADD(cc_and_bcc_are_routing_keys_and_bcc_is_not_stored);
    ADD(routes_are_remembered_until_the_projection_changes);
    ADD(routes_are_computed_when_headers_may_decide);
    ADD(a_full_session_stops_the_reading_until_it_is_writable);
    ADD(content_frames_out_of_order_are_505_or_501);
    ADD(qos_is_per_consumer_and_for_those_to_come);
    ADD(consume_ok_comes_before_the_first_delivery);
    ADD(a_tag_is_made_up_for_an_empty_one);
    ADD(reusing_a_tag_on_a_channel_is_530);
    ADD(a_missing_queue_is_proven_before_404);
    ADD(consumer_arguments_are_checked);
    ADD(an_exclusive_consumer_shuts_others_out);
    ADD(frames_behind_a_pending_consume_wait_and_other_channels_go_on);
    ADD(too_much_waiting_stops_the_reading_and_nothing_is_lost);
    ADD(cancel_is_answered_by_the_queue_and_unknown_tags_at_once);
    ADD(a_lost_consumer_is_told_to_those_who_ask);
    ADD(what_came_back_carries_its_counts_sorted_into_the_headers);
    ADD(bodies_are_split_to_the_frame_max_agreed_and_headers_never_exceed_it);
    ADD(a_client_that_does_not_read_gets_no_more_deliveries);
    ADD(input_left_by_a_pause_is_parsed_before_more_is_read);
    ADD(a_large_body_of_many_frames_is_handed_over_with_room_around_it_and_its_sum);
    ADD(a_large_body_is_shared_until_the_socket_has_taken_it);
    ADD(a_connection_that_ends_lets_go_of_large_bodies);
    ADD(get_answers_message_and_count_or_empty);
    ADD(settles_become_ranges_with_their_kind);
    ADD(unknown_tags_are_406);
    ADD(no_ack_deliveries_take_tags_but_cannot_be_acked);
    ADD(recover_requeues_everything);
    ADD(declare_names_the_queue_for_later_and_tells_counts);
    ADD(a_new_queue_is_empty_without_asking);
    ADD(an_empty_name_without_a_declared_queue_is_404);
    ADD(the_brokers_refusals_are_passed_on);
    ADD(every_topology_method_has_its_answer);
    ADD(nowait_suppresses_the_answers);
    ADD(after_a_channel_error_late_frames_are_ignored_and_the_number_can_be_used_again);
    ADD(a_client_close_crossing_ours_is_answered);
    ADD(a_client_close_that_waited_behind_a_failing_operation_is_answered);
    ADD(closing_a_channel_ends_its_sessions_after_telling_known_confirms);
    ADD(an_answer_after_the_channel_is_gone_is_dropped);
    ADD(flow_access_and_foreign_methods);
    ADD(a_commit_publishes_then_settles_then_waits_for_the_queues);
    ADD(a_rollback_forgets_publishes_and_unsettles);
    ADD(transactions_have_their_errors);
    ADD(a_commit_into_a_queue_that_is_gone_is_506);
    ADD(unfinished_bodies_are_bounded_and_the_oldest_goes_on);
    Suite *s = suite_create("amqp09_channel");
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
