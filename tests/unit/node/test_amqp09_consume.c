// SPDX-License-Identifier: Apache-2.0
// links: node/amqp09 proto/amqp09 node/base
// Consuming and settling on a channel (data-plane §1.11, §1.12; case PR): orders of frames, codes, deliveries
// and their tags.
#include "tests/unit/node/amqp09_channel_fixture.h"
#include "tests/unit/suite.h"

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

// A consumer without a word and without messages would wait for ever: what cannot be told closes the channel, unless the
// queue was deleted.
START_TEST(a_consumer_whose_session_ended_closes_the_channel_of_those_who_do_not_ask)
{
    begin(_i);
    client_stop(t);
    struct amqp09_config config = client_config();
    t->chop = (size_t)_i;
    client_start(t, &config, true);
    client_login(t, "u", false);
    client_tune_and_open(t, 2047, 131072, 60);
    client_channel(t, 1);
    consume(false);
    struct queue_session *s = stub_session("q");
    s->cb->consumer_lost(s->ctx, s, 1);
    s->cb->ended(s->ctx, s, false);
    expect_channel_close(t, 1, 406, "PRECONDITION_FAILED - session with queue 'q' in vhost '/' ended");
    client_channel(t, 2);
    SEND(t, 2, basic_consume, .queue = span_str("q"), .consumer_tag = span_str("ct"));
    s = stub_session("q");
    s->cb->consume_done(s->ctx, s, 1, RC_OK);
    EXPECT(t, 2, BASIC_CONSUME_OK);
    s->cb->consumer_lost(s->ctx, s, 1);
    s->cb->ended(s->ctx, s, true);
    expect_nothing(t);
    end();
}
END_TEST

START_TEST(who_cancels_while_it_does_not_read_gets_what_it_asks_for_later)
{
    begin(0);
    consume(false);
    static char body[100001];
    memset(body, 'z', sizeof(body) - 1);
    struct queue_session *s = stub_session("q");
    SEND(t, 1, basic_cancel, .consumer_tag = span_str("ct"));
    uint64_t n = 0;
    while (!s->is_paused && n < 100) {
        stub_deliver("q", 1, ++n, body);
    }
    ck_assert(s->is_paused);
    s->cb->cancel_done(s->ctx, s, 1);
    for (uint64_t i = 0; i < n; i++) {
        expect_deliver(body, false);
    }
    EXPECT(t, 1, BASIC_CANCEL_OK);
    ck_assert(t->is_reading);
    ck_assert(!s->is_paused);
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
                            &(struct amqp_basic_deliver){.consumer_tag = span_str("ct"),
                                                         .delivery_tag = tag,
                                                         .routing_key = span_str("q")});
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

int main(void)
{
    TCase *c = tcase_create("channel");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_set_timeout(c, 60);
#define ADD(test) tcase_add_loop_test(c, test, 0, 2)
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
    ADD(a_consumer_whose_session_ended_closes_the_channel_of_those_who_do_not_ask);
    ADD(a_lost_consumer_is_told_to_those_who_ask);
    ADD(what_came_back_carries_its_counts_sorted_into_the_headers);
    ADD(bodies_are_split_to_the_frame_max_agreed_and_headers_never_exceed_it);
    ADD(a_client_that_does_not_read_gets_no_more_deliveries);
    ADD(who_cancels_while_it_does_not_read_gets_what_it_asks_for_later);
    ADD(a_large_body_is_shared_until_the_socket_has_taken_it);
    ADD(a_connection_that_ends_lets_go_of_large_bodies);
    ADD(get_answers_message_and_count_or_empty);
    ADD(settles_become_ranges_with_their_kind);
    ADD(unknown_tags_are_406);
    ADD(no_ack_deliveries_take_tags_but_cannot_be_acked);
    ADD(recover_requeues_everything);
    return suite_run("amqp09_consume", c);
}
