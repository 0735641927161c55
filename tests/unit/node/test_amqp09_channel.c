// SPDX-License-Identifier: Apache-2.0
// links: node/amqp09 proto/amqp09 node/base
// Topology, life of channels, transactions (data-plane §1.9, §1.13; case PR): orders of frames, codes.
#include "tests/unit/node/amqp09_channel_fixture.h"
#include "tests/unit/suite.h"

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

START_TEST(a_transaction_reaches_more_queues_than_a_channel_keeps_sessions_with)
{
    begin(0);
    SEND(t, 1, tx_select, );
    EXPECT(t, 1, TX_SELECT_OK);
    enum { COUNT = CHANNEL_QUEUES_MAX + 10 };
    stub.service.is_quiet = true;
    char name[COUNT][16];
    for (int i = 0; i < COUNT; i++) {
        snprintf(name[i], sizeof(name[i]), "many%d", i);
        stub_queue_add(name[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        publish(t, 1, "", name[i], "a");
    }
    turn(t);
    SEND(t, 1, tx_commit, );
    ck_assert_uint_eq(stub.service.published, COUNT);
    for (int i = 0; i < COUNT; i++) {
        stub_settle(name[i], 1);
    }
    EXPECT(t, 1, TX_COMMIT_OK);
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

int main(void)
{
    TCase *c = tcase_create("channel");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_set_timeout(c, 60);
#define ADD(test) tcase_add_loop_test(c, test, 0, 2)
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
    ADD(a_transaction_reaches_more_queues_than_a_channel_keeps_sessions_with);
    ADD(a_commit_into_a_queue_that_is_gone_is_506);
    return suite_run("amqp09_channel", c);
}
