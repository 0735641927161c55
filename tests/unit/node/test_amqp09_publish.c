// SPDX-License-Identifier: Apache-2.0
// links: node/amqp09 proto/amqp09 node/base
// Publishing on a channel (data-plane §1.9, §1.10, §1.17; cases PR, CF): orders of frames, codes, what
// reaches the queues.
#include "node/base/crc32c.h"
#include "tests/unit/node/amqp09_channel_fixture.h"
#include "tests/unit/suite.h"

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

// Declare-ok at another node, publish here: the news of the queue may be in the same round of input.
START_TEST(a_publish_to_a_queue_that_is_not_there_waits_for_what_came_with_it)
{
    begin(_i);
    publish_mandatory("", "new", "a");
    publish(t, 1, "", "q", "b");
    expect_log("");
    stub_queue_add("new");
    turn(t);
    expect_nothing(t);
    expect_log("publish new x= key=new body=a\npublish q x= key=q body=b\n");
    publish_mandatory("", "missing", "c");
    turn(t);
    EXPECT(t, 1, BASIC_RETURN);
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
    ADD(a_publish_to_a_queue_that_is_not_there_waits_for_what_came_with_it);
    ADD(an_unroutable_publish_waits_at_most_100_ms);
    ADD(cc_and_bcc_are_routing_keys_and_bcc_is_not_stored);
    ADD(routes_are_remembered_until_the_projection_changes);
    ADD(routes_are_computed_when_headers_may_decide);
    ADD(a_full_session_stops_the_reading_until_it_is_writable);
    ADD(content_frames_out_of_order_are_505_or_501);
    ADD(input_left_by_a_pause_is_parsed_before_more_is_read);
    ADD(a_large_body_of_many_frames_is_handed_over_with_room_around_it_and_its_sum);
    ADD(unfinished_bodies_are_bounded_and_the_oldest_goes_on);
    return suite_run("amqp09_publish", c);
}
