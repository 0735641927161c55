// SPDX-License-Identifier: Apache-2.0
// links: node/base node/queue proto gen
// The queue's state machine, rule by rule (data-plane §1.12, §1.13, §4; decisions 1, 8, 9).
#include "queue_kit.h"
#include <malloc.h>

// ---- fixture -------------------------------------------------------------------------------------------------------

static struct kit k;
static struct queue_session_id a, b;

static void set_up_with(struct queue_settings s)
{
    kit_init(&k, s);
    a = kit_id(1, 10, 1);
    b = kit_id(2, 20, 1);
    kit_open(&k, a);
    kit_open(&k, b);
}
static void set_up(void)
{
    set_up_with(kit_settings());
}
static void tear_down(void)
{
    kit_deinit(&k);
}
static uint64_t index_held(struct queue_session_id id, uint32_t consumer, uint32_t n)
{
    return queue_ref_index(kit_held(&k, id, consumer, n)->ref);
}

// ---- order ---------------------------------------------------------------------------------------------------------

START_TEST(priorities_are_taken_strictly_descending_and_equal_ones_in_order_of_arrival)
{
    // As measured on RabbitMQ 4.3.6 (data-plane §11).
    static const int sent[] = {1, 9, 3, 5, 2, 10, 0, 7, 4, 6, 8, 12, 200, 5, 5};
    static const int expected[] = {12, 11, 5, 1, 10, 7, 9, 3, 13, 14, 8, 2, 4, 0, 6};  // Places in `sent`.
    uint64_t index[15];
    for (int i = 0; i < 15; i++) {
        index[i] = kit_publish(&k, a, sent[i], "m");
    }
    kit_consume(&k, b, 1, 100, 0);
    for (uint32_t i = 0; i < 15; i++) {
        ck_assert_uint_eq(index_held(b, 1, i), index[expected[i]]);
    }
}
END_TEST

START_TEST(absent_priority_is_four_and_those_above_31_are_equal)
{
    uint64_t m3 = kit_publish(&k, a, 3, "m"), none = kit_publish(&k, a, -1, "m"), m4 = kit_publish(&k, a, 4, "m");
    uint64_t m200 = kit_publish(&k, a, 200, "m"), m40 = kit_publish(&k, a, 40, "m"), m5 = kit_publish(&k, a, 5, "m");
    uint64_t expected[] = {m200, m40, m5, none, m4, m3};
    kit_consume(&k, b, 1, 100, 0);
    for (uint32_t i = 0; i < 6; i++) {
        ck_assert_uint_eq(index_held(b, 1, i), expected[i]);
    }
}
END_TEST

START_TEST(returned_messages_go_before_every_priority_in_order_of_return)
{
    uint64_t m1 = kit_publish(&k, a, 1, "m"), m2 = kit_publish(&k, a, 1, "m");
    kit_consume(&k, b, 1, 2, 0);
    uint64_t high = kit_publish(&k, a, 31, "m");
    kit_control(&k, QUEUE_COMMAND_CANCEL, b, &(uint32_t){1}, 4);
    kit_settle(&k, b, 1, 2, 2, QUEUE_RELEASE);
    kit_settle(&k, b, 1, 1, 1, QUEUE_RELEASE);
    kit_consume(&k, a, 1, 3, 0);
    ck_assert_uint_eq(index_held(a, 1, 0), m2);
    ck_assert_uint_eq(index_held(a, 1, 1), m1);
    ck_assert_uint_eq(index_held(a, 1, 2), high);
}
END_TEST

// ---- settling ------------------------------------------------------------------------------------------------------

START_TEST(release_raises_the_acquired_count_only_and_return_both)
{
    kit_publish(&k, a, -1, "m");
    kit_consume(&k, b, 1, 1, 0);
    ck_assert_uint_eq(kit_held(&k, b, 1, 0)->acquired, 0);
    kit_settle(&k, b, 1, 1, 1, QUEUE_RELEASE);
    ck_assert_uint_eq(kit_held(&k, b, 1, 0)->number, 2);
    ck_assert_uint_eq(kit_held(&k, b, 1, 0)->acquired, 1);
    ck_assert_uint_eq(kit_held(&k, b, 1, 0)->failed, 0);
    kit_settle(&k, b, 1, 2, 2, QUEUE_RETURN);
    ck_assert_uint_eq(kit_held(&k, b, 1, 0)->acquired, 2);
    ck_assert_uint_eq(kit_held(&k, b, 1, 0)->failed, 1);
}
END_TEST

START_TEST(a_delivery_limit_of_20_means_21_failed_deliveries)
{
    kit_publish(&k, a, -1, "m");
    kit_consume(&k, b, 1, 1, 0);
    for (uint64_t n = 1; n <= 21; n++) {
        ck_assert_uint_eq(kit_held(&k, b, 1, 0)->number, n);
        kit_settle(&k, b, 1, n, n, QUEUE_RETURN);
    }
    ck_assert_uint_eq(k.fsm.ready_count, 0);
    ck_assert_uint_eq(k.fsm.unacked_count, 0);
}
END_TEST

START_TEST(releases_never_reach_the_delivery_limit)
{
    kit_publish(&k, a, -1, "m");
    kit_consume(&k, b, 1, 1, 0);
    for (uint64_t n = 1; n <= 100; n++) {
        kit_settle(&k, b, 1, n, n, QUEUE_RELEASE);
    }
    ck_assert_uint_eq(kit_held(&k, b, 1, 0)->acquired, 100);
}
END_TEST

START_TEST(ack_and_discard_take_the_message_away_and_a_late_settle_finds_nothing)
{
    kit_publish(&k, a, -1, "m");
    kit_publish(&k, a, -1, "m");
    kit_consume(&k, b, 1, 10, 0);
    kit_settle(&k, b, 1, 1, 1, QUEUE_ACK);
    kit_settle(&k, b, 1, 2, 2, QUEUE_DISCARD);
    kit_settle(&k, b, 1, 1, 2, QUEUE_RETURN);
    kit_settle(&k, b, 7, 1, 2, QUEUE_RETURN);
    ck_assert_uint_eq(k.fsm.ready_count + k.fsm.unacked_count, 0);
    ck_assert_uint_eq(k.fsm.unacked_bytes, 0);
}
END_TEST

START_TEST(a_range_settles_what_is_left_in_it)
{
    for (int i = 0; i < 100; i++) {
        kit_publish(&k, a, -1, "m");
    }
    kit_consume(&k, b, 1, 100, 0);
    kit_settle(&k, b, 1, 40, 60, QUEUE_ACK);
    kit_settle(&k, b, 1, 30, 70, QUEUE_ACK);
    kit_settle(&k, b, 1, 90, UINT64_MAX, QUEUE_ACK);
    ck_assert_uint_eq(k.fsm.unacked_count, 29 + 19);
    ck_assert_uint_eq(kit_held(&k, b, 1, 29)->number, 71);
}
END_TEST

START_TEST(one_message_never_settled_does_not_make_the_list_grow)
{
    kit_consume(&k, b, 1, 10, 0);
    for (uint64_t n = 1; n <= 20000; n++) {
        kit_publish(&k, a, -1, "m");
        if (n > 1) {
            kit_settle(&k, b, 1, n, n, QUEUE_ACK);
        }
    }
    ck_assert_uint_eq(kit_consumer(&k, b, 1)->held, 1);
    ck_assert_uint_le(kit_consumer(&k, b, 1)->cap, 16);
}
END_TEST

// ---- limits --------------------------------------------------------------------------------------------------------

START_TEST(drop_head_drops_the_oldest_once_there_is_one_too_many)
{
    struct queue_settings s = kit_settings();
    s.max_length = 3;
    s.metadata_version = 1;
    kit_configure(&k, s);
    uint64_t first = kit_publish(&k, a, -1, "m"), second = kit_publish(&k, a, -1, "m");
    kit_publish(&k, a, -1, "m");
    ck_assert_uint_eq(k.fsm.ready_count, 3);
    kit_publish(&k, a, -1, "m");
    ck_assert_uint_eq(k.fsm.ready_count, 3);
    kit_consume(&k, b, 1, 1, 0);
    ck_assert_uint_ne(index_held(b, 1, 0), first);
    ck_assert_uint_eq(index_held(b, 1, 0), second);
}
END_TEST

// data-plane §4.2 and rabbit_fifo: who has credit is served before the limit is looked at.
START_TEST(a_message_given_back_to_a_full_queue_goes_to_who_waits_for_one_and_is_not_dropped)
{
    struct queue_settings s = kit_settings();
    s.max_length = 2;
    s.metadata_version = 1;
    kit_configure(&k, s);
    kit_consume(&k, b, 1, 1, 0);
    const uint64_t first = kit_publish(&k, a, -1, "m");
    kit_publish(&k, a, -1, "m");
    kit_publish(&k, a, -1, "m");
    ck_assert_uint_eq(k.fsm.ready_count, 2);
    kit_settle(&k, b, 1, 1, 1, QUEUE_RELEASE);
    ck_assert_uint_eq(k.fsm.ready_count, 2);
    ck_assert_uint_eq(k.fsm.unacked_count, 1);
    ck_assert_uint_eq(index_held(b, 1, 0), first);
}
END_TEST

START_TEST(a_queue_of_length_zero_passes_messages_on_to_consumers_that_wait)
{
    struct queue_settings s = kit_settings();
    s.max_length = 0;
    s.metadata_version = 1;
    kit_configure(&k, s);
    kit_consume(&k, b, 1, 1, 0);
    const uint64_t first = kit_publish(&k, a, -1, "m");
    ck_assert_uint_eq(k.fsm.unacked_count, 1);
    ck_assert_uint_eq(index_held(b, 1, 0), first);
    kit_publish(&k, a, -1, "m");
    ck_assert_uint_eq(k.fsm.ready_count, 0);
}
END_TEST

START_TEST(drop_head_eats_returned_messages_first_and_then_the_highest_priority)
{
    struct queue_settings s = kit_settings();
    uint64_t low = kit_publish(&k, a, 1, "m");
    kit_consume(&k, b, 1, 1, 0);
    kit_publish(&k, a, 1, "m");
    kit_publish(&k, a, 9, "m");
    kit_control(&k, QUEUE_COMMAND_CANCEL, b, &(uint32_t){1}, 4);
    kit_settle(&k, b, 1, 1, 1, QUEUE_RELEASE);
    (void)low;
    ck_assert_uint_eq(k.fsm.returns.count, 1);
    s.max_length = 2;
    s.metadata_version = 1;
    kit_configure(&k, s);
    ck_assert_uint_eq(k.fsm.returns.count, 0);
    s.max_length = 1;
    s.metadata_version = 2;
    kit_configure(&k, s);
    ck_assert_uint_eq(k.fsm.ready.bitmap, 1u << 1);  // The one of priority 9 went.
}
END_TEST

START_TEST(the_byte_limit_is_strict_and_unacked_bytes_do_not_count)
{
    struct queue_settings s = kit_settings();
    s.max_length_bytes = 10;
    s.metadata_version = 1;
    kit_configure(&k, s);
    kit_publish(&k, a, -1, "12345");
    kit_publish(&k, a, -1, "12345");
    ck_assert_uint_eq(k.fsm.ready_count, 2);
    kit_publish(&k, a, -1, "1");
    ck_assert_uint_eq(k.fsm.ready_count, 2);
    ck_assert_uint_eq(k.fsm.ready_bytes, 6);
    kit_consume(&k, b, 1, 2, 0);
    kit_publish(&k, a, -1, "1234567890");
    ck_assert_uint_eq(k.fsm.ready_count, 1);
    ck_assert_uint_eq(k.fsm.unacked_count, 2);
}
END_TEST

START_TEST(reject_publish_keeps_the_one_that_went_over_and_accepts_again_at_80_percent)
{
    struct queue_settings s = kit_settings();
    s.max_length = 10;
    s.is_reject_publish = true;
    s.metadata_version = 1;
    kit_configure(&k, s);
    for (int i = 0; i < 11; i++) {
        kit_publish(&k, a, -1, "m");
        ck_assert_ptr_null(kit_effect(&k, QUEUE_EFFECT_REJECTED));
    }
    ck_assert_uint_eq(k.fsm.ready_count, 11);
    kit_publish(&k, a, -1, "m");
    ck_assert_uint_eq(kit_effect(&k, QUEUE_EFFECT_REJECTED)->value, 12);
    ck_assert_uint_eq(k.fsm.ready_count, 11);
    for (int i = 0; i < 2; i++) {
        kit_control(&k, QUEUE_COMMAND_GET, b, NULL, 0);  // 10, 9 left.
        kit_publish(&k, a, -1, "m");
        ck_assert_ptr_nonnull(kit_effect(&k, QUEUE_EFFECT_REJECTED));
    }
    kit_control(&k, QUEUE_COMMAND_GET, b, NULL, 0);  // 8 left.
    kit_publish(&k, a, -1, "m");
    ck_assert_ptr_null(kit_effect(&k, QUEUE_EFFECT_REJECTED));
    struct queue_fsm_session *session = queue_fsm_session_find(&k.fsm, a);
    ck_assert_uint_eq(session->rejected_count, 1);
    ck_assert_uint_eq(session->rejected[0].first, 12);
    ck_assert_uint_eq(session->rejected[0].last, 14);
}
END_TEST

START_TEST(rejections_are_remembered_until_the_sender_knows)
{
    struct queue_settings s = kit_settings();
    s.max_length = 0;
    s.is_reject_publish = true;
    s.metadata_version = 1;
    kit_configure(&k, s);
    for (int i = 0; i < 5; i++) {
        kit_publish(&k, a, -1, "m");
    }
    struct queue_fsm_session *session = queue_fsm_session_find(&k.fsm, a);
    ck_assert_uint_eq(session->rejected[0].first, 2);
    ck_assert_uint_eq(session->rejected[0].last, 5);
    k.cmd.len = 0;
    queue_command_head(&k.cmd, QUEUE_COMMAND_CANCEL, 0, a, 1, 3);
    buf_u32(&k.cmd, 9);
    kit_apply(&k);
    ck_assert_uint_eq(session->rejected[0].first, 4);
    k.cmd.len = 0;
    queue_command_head(&k.cmd, QUEUE_COMMAND_CANCEL, 0, a, 2, 5);
    buf_u32(&k.cmd, 9);
    kit_apply(&k);
    ck_assert_uint_eq(session->rejected_count, 0);
}
END_TEST

START_TEST(an_older_configuration_never_overrides)
{
    struct queue_settings s = kit_settings();
    s.max_length = 3;
    s.metadata_version = 5;
    kit_configure(&k, s);
    s.max_length = 9;
    s.metadata_version = 4;
    kit_configure(&k, s);
    ck_assert_int_eq(k.fsm.settings.max_length, 3);
}
END_TEST

// ---- consumers -----------------------------------------------------------------------------------------------------

START_TEST(prefetch_bounds_what_is_unsettled_and_a_settle_makes_room)
{
    kit_consume(&k, b, 1, 3, 0);
    for (int i = 0; i < 5; i++) {
        kit_publish(&k, a, -1, "m");
    }
    ck_assert_uint_eq(k.fsm.unacked_count, 3);
    kit_settle(&k, b, 1, 2, 2, QUEUE_ACK);
    ck_assert_uint_eq(k.fsm.unacked_count, 3);
    ck_assert_uint_eq(kit_held(&k, b, 1, 2)->number, 4);
    ck_assert_ptr_nonnull(kit_effect(&k, QUEUE_EFFECT_DELIVER));
}
END_TEST

START_TEST(equal_consumers_take_turns)
{
    kit_consume(&k, a, 1, 10, 0);
    kit_consume(&k, b, 1, 10, 0);
    uint64_t m[4];
    for (int i = 0; i < 4; i++) {
        m[i] = kit_publish(&k, a, -1, "m");
    }
    ck_assert_uint_eq(index_held(a, 1, 0), m[0]);
    ck_assert_uint_eq(index_held(b, 1, 0), m[1]);
    ck_assert_uint_eq(index_held(a, 1, 1), m[2]);
    ck_assert_uint_eq(index_held(b, 1, 1), m[3]);
}
END_TEST

START_TEST(a_higher_priority_consumer_gets_all_while_it_has_room)
{
    kit_consume(&k, a, 1, 2, 0);
    kit_consume(&k, b, 1, 2, 5);
    uint64_t m[4];
    for (int i = 0; i < 4; i++) {
        m[i] = kit_publish(&k, a, -1, "m");
    }
    ck_assert_uint_eq(index_held(b, 1, 0), m[0]);
    ck_assert_uint_eq(index_held(b, 1, 1), m[1]);
    ck_assert_uint_eq(index_held(a, 1, 0), m[2]);
    ck_assert_uint_eq(index_held(a, 1, 1), m[3]);
}
END_TEST

START_TEST(prefetch_0_is_2000_topped_up_by_credit_and_checkout_moves_512_at_a_time)
{
    for (int i = 0; i < 2500; i++) {
        kit_publish(&k, a, -1, "m");
    }
    kit_consume(&k, b, 1, 0, 0);
    for (uint32_t n = 1; n <= 3; n++) {
        ck_assert_uint_eq(k.fsm.unacked_count, n * 512);
        ck_assert(k.fsm.has_more);
        kit_head(&k, QUEUE_COMMAND_CONTINUE, kit_id(0, 0, 0), 0);
        kit_apply(&k);
    }
    ck_assert_uint_eq(k.fsm.unacked_count, 2000);
    ck_assert(!k.fsm.has_more);
    kit_settle(&k, b, 1, 1, 100, QUEUE_ACK);  // Settling is not taking.
    ck_assert_uint_eq(k.fsm.unacked_count, 1900);
    uint32_t credit[2] = {1, 300};
    kit_control(&k, QUEUE_COMMAND_CREDIT, b, credit, sizeof(credit));
    ck_assert_uint_eq(k.fsm.unacked_count, 2200);
}
END_TEST

START_TEST(cancel_leaves_what_is_unsettled_settleable)
{
    kit_publish(&k, a, -1, "m");
    kit_consume(&k, b, 1, 5, 0);
    kit_control(&k, QUEUE_COMMAND_CANCEL, b, &(uint32_t){1}, 4);
    kit_publish(&k, a, -1, "m");
    ck_assert_uint_eq(k.fsm.ready_count, 1);
    ck_assert_uint_eq(k.fsm.unacked_count, 1);
    kit_settle(&k, b, 1, 1, 1, QUEUE_ACK);
    ck_assert_uint_eq(k.fsm.unacked_count, 0);
    ck_assert_ptr_null(kit_consumer(&k, b, 1));
    ck_assert_ptr_nonnull(kit_effect(&k, QUEUE_EFFECT_GONE));
}
END_TEST

START_TEST(single_active_consumer_the_next_takes_over_when_it_is_cancelled)
{
    struct queue_settings s = kit_settings();
    s.is_single_active = true;
    s.metadata_version = 1;
    kit_configure(&k, s);
    kit_consume(&k, a, 1, 1, 0);
    kit_consume(&k, b, 1, 10, 0);
    kit_publish(&k, a, -1, "m");
    kit_publish(&k, a, -1, "m");
    ck_assert_uint_eq(kit_consumer(&k, a, 1)->held, 1);
    ck_assert_uint_eq(kit_consumer(&k, b, 1)->held, 0);
    kit_control(&k, QUEUE_COMMAND_CANCEL, a, &(uint32_t){1}, 4);
    ck_assert_uint_eq(kit_consumer(&k, b, 1)->held, 1);
}
END_TEST

START_TEST(single_active_consumer_a_higher_priority_takes_over_once_the_active_one_holds_nothing)
{
    struct queue_settings s = kit_settings();
    s.is_single_active = true;
    s.metadata_version = 1;
    kit_configure(&k, s);
    kit_consume(&k, a, 1, 10, 0);
    kit_publish(&k, a, -1, "m");
    kit_consume(&k, b, 1, 10, 3);
    kit_publish(&k, a, -1, "m");
    ck_assert_uint_eq(kit_consumer(&k, a, 1)->held, 1);
    ck_assert_uint_eq(kit_consumer(&k, b, 1)->held, 0);
    kit_settle(&k, a, 1, 1, 1, QUEUE_ACK);
    ck_assert_uint_eq(kit_consumer(&k, b, 1)->held, 1);
    kit_publish(&k, a, -1, "m");
    ck_assert_uint_eq(kit_consumer(&k, b, 1)->held, 2);
}
END_TEST

// ---- get, purge ----------------------------------------------------------------------------------------------------

START_TEST(get_takes_the_head_and_says_what_is_left_and_a_repeat_says_it_again)
{
    uint64_t m = kit_publish(&k, a, -1, "m");
    kit_publish(&k, a, -1, "m");
    kit_control(&k, QUEUE_COMMAND_GET, b, NULL, 0);
    const struct queue_effect *e = kit_effect(&k, QUEUE_EFFECT_QUERY);
    ck_assert_ptr_nonnull(e);
    ck_assert_uint_eq(e->session->query_number, 1);
    ck_assert_uint_eq(e->session->query_ready, 1);
    ck_assert_uint_eq(index_held(b, 0, 0), m);
    kit_head(&k, QUEUE_COMMAND_GET, b, 1);
    kit_apply(&k);
    e = kit_effect(&k, QUEUE_EFFECT_QUERY);
    ck_assert_ptr_nonnull(e);
    ck_assert_uint_eq(e->session->query_number, 1);
    ck_assert_uint_eq(k.fsm.ready_count, 1);
    kit_settle(&k, b, 0, 1, 1, QUEUE_ACK);
    kit_control(&k, QUEUE_COMMAND_GET, b, NULL, 0);
    kit_control(&k, QUEUE_COMMAND_GET, b, NULL, 0);
    ck_assert_uint_eq(kit_effect(&k, QUEUE_EFFECT_QUERY)->session->query_number, 0);
}
END_TEST

START_TEST(purge_takes_ready_messages_only_and_counts_them)
{
    kit_consume(&k, b, 1, 2, 0);
    for (int i = 0; i < 7; i++) {
        kit_publish(&k, a, i, "m");
    }
    kit_control(&k, QUEUE_COMMAND_PURGE, b, NULL, 0);
    ck_assert_uint_eq(kit_effect(&k, QUEUE_EFFECT_QUERY)->session->query_number, 5);
    ck_assert_uint_eq(k.fsm.ready_count, 0);
    ck_assert_uint_eq(k.fsm.ready_bytes, 0);
    ck_assert_uint_eq(k.fsm.unacked_count, 2);
}
END_TEST

// ---- sessions ------------------------------------------------------------------------------------------------------

START_TEST(a_repeated_publish_is_answered_and_not_applied)
{
    kit_publish_command(&k, a, 1, -1, span_str("m"));
    kit_apply(&k);
    kit_apply(&k);
    ck_assert_ptr_nonnull(kit_effect(&k, QUEUE_EFFECT_APPLIED));
    ck_assert_uint_eq(k.fsm.ready_count, 1);
}
END_TEST

START_TEST(a_gap_is_named_and_nothing_is_applied)
{
    kit_publish_command(&k, a, 2, -1, span_str("m"));
    kit_apply(&k);
    ck_assert_ptr_nonnull(kit_effect(&k, QUEUE_EFFECT_GAP));
    ck_assert_uint_eq(k.fsm.ready_count, 0);
    ck_assert_uint_eq(queue_fsm_session_find(&k.fsm, a)->seq[QUEUE_STREAM_PUBLISH], 0);
}
END_TEST

START_TEST(the_two_sequences_of_a_session_do_not_wait_for_each_other)
{
    kit_consume(&k, a, 1, 5, 0);  // Control 1, with no publish before.
    kit_publish(&k, a, -1, "m");  // Publish 1.
    kit_settle(&k, a, 1, 1, 1, QUEUE_ACK);
    ck_assert_uint_eq(queue_fsm_session_find(&k.fsm, a)->seq[QUEUE_STREAM_CONTROL], 2);
    ck_assert_uint_eq(queue_fsm_session_find(&k.fsm, a)->seq[QUEUE_STREAM_PUBLISH], 1);
}
END_TEST

START_TEST(a_command_of_a_session_that_ended_is_unknown_and_its_open_is_refused)
{
    kit_control(&k, QUEUE_COMMAND_END, a, NULL, 0);
    ck_assert_ptr_nonnull(kit_effect(&k, QUEUE_EFFECT_ENDED));
    kit_publish_command(&k, a, 1, -1, span_str("m"));
    kit_apply(&k);
    ck_assert_ptr_nonnull(kit_effect(&k, QUEUE_EFFECT_UNKNOWN));
    kit_open(&k, a);
    ck_assert_ptr_nonnull(kit_effect(&k, QUEUE_EFFECT_REFUSED));
    kit_open(&k, kit_id(1, 10, 2));
    ck_assert_ptr_nonnull(kit_effect(&k, QUEUE_EFFECT_OPENED));
    kit_open(&k, kit_id(1, 9, 99));  // An incarnation of the past.
    ck_assert_ptr_nonnull(kit_effect(&k, QUEUE_EFFECT_REFUSED));
    kit_open(&k, kit_id(1, 11, 1));
    ck_assert_ptr_nonnull(kit_effect(&k, QUEUE_EFFECT_OPENED));
    ck_assert_uint_eq(k.fsm.ready_count, 0);
}
END_TEST

START_TEST(a_closed_channel_returns_its_messages_with_a_failure_in_delivery_order)
{
    uint64_t m[3];
    for (int i = 0; i < 3; i++) {
        m[i] = kit_publish(&k, a, -1, "m");
    }
    kit_consume(&k, b, 1, 10, 0);
    kit_control(&k, QUEUE_COMMAND_END, b, NULL, 0);
    kit_consume(&k, a, 1, 10, 0);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(index_held(a, 1, i), m[i]);
        ck_assert_uint_eq(kit_held(&k, a, 1, i)->acquired, 1);
        ck_assert_uint_eq(kit_held(&k, a, 1, i)->failed, 1);
    }
}
END_TEST

START_TEST(node_down_returns_without_a_failure_and_spares_later_incarnations)
{
    struct queue_session_id again = kit_id(2, 21, 1);
    kit_open(&k, again);
    kit_publish(&k, a, -1, "m");
    kit_publish(&k, a, -1, "m");
    kit_consume(&k, b, 1, 1, 0);
    kit_consume(&k, again, 1, 1, 0);
    kit_consume(&k, a, 1, 10, 0);
    kit_node_down(&k, 2, 20);
    ck_assert_ptr_null(queue_fsm_session_find(&k.fsm, b));
    ck_assert_uint_eq(kit_consumer(&k, again, 1)->held, 1);
    ck_assert_uint_eq(kit_held(&k, a, 1, 0)->acquired, 1);
    ck_assert_uint_eq(kit_held(&k, a, 1, 0)->failed, 0);
}
END_TEST

// ---- size ----------------------------------------------------------------------------------------------------------

START_TEST(sizes_from_one_mebibyte_on_stand_in_the_side_table)
{
    static const size_t sizes[] = {QUEUE_REF_SIZE_MAX - 1, QUEUE_REF_SIZE_MAX, 5 << 20};
    uint64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        uint8_t *body = mem_zalloc(sizes[i]);
        kit_publish_command(&k, a, (uint64_t)i + 1, -1, span_of(body, sizes[i]));
        kit_apply(&k);
        free(body);
        sum += sizes[i];
        ck_assert_uint_eq(k.fsm.ready_bytes, sum);
    }
    ck_assert_uint_eq(map_count(k.fsm.big), 2);
    kit_consume(&k, b, 1, 10, 0);
    ck_assert_uint_eq(k.fsm.unacked_bytes, sum);
    kit_settle(&k, b, 1, 1, 3, QUEUE_ACK);
    ck_assert_ptr_null(k.fsm.big);
    ck_assert_uint_eq(k.fsm.unacked_bytes, 0);
}
END_TEST

START_TEST(a_million_ready_messages_cost_eight_bytes_each)
{
    struct queue_ready r;
    queue_ready_init(&r);
    size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;  // 0 under a sanitizer.
    for (uint64_t i = 1; i <= 1000000; i++) {
        queue_ready_push(&r, QUEUE_PRIORITY_ABSENT, queue_ref_make(i, 1000));
    }
    size_t used = mallinfo2().uordblks + mallinfo2().hblkhd - before;
    ck_assert_uint_le(used, 8200000);
    for (uint64_t i = 1; i <= 1000000; i++) {
        if (queue_ref_index(queue_ready_pop(&r)) != i) {
            ck_abort_msg("out of order at %llu", (unsigned long long)i);
        }
    }
    ck_assert_uint_eq(queue_ready_pop(&r), 0);
    queue_ready_clear(&r);
}
END_TEST

START_TEST(a_queue_without_sessions_holds_no_memory_beyond_its_struct)
{
    ck_assert_uint_le(sizeof(struct queue_fsm), 224);
    kit_publish(&k, a, 9, "m");
    kit_consume(&k, b, 1, 1, 0);
    kit_settle(&k, b, 1, 1, 1, QUEUE_ACK);
    kit_control(&k, QUEUE_COMMAND_END, b, NULL, 0);
    kit_control(&k, QUEUE_COMMAND_END, a, NULL, 0);
    ck_assert_ptr_null(k.fsm.busy);
    ck_assert_ptr_null(k.fsm.ready.others);
    ck_assert_ptr_null(k.fsm.ready.normal.head);
    ck_assert_ptr_null(k.fsm.returns.items);
}
END_TEST

static TCase *all_tests(void)
{
    TCase *t = tcase_create("queue_fsm");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, priorities_are_taken_strictly_descending_and_equal_ones_in_order_of_arrival);
    tcase_add_test(t, absent_priority_is_four_and_those_above_31_are_equal);
    tcase_add_test(t, returned_messages_go_before_every_priority_in_order_of_return);
    tcase_add_test(t, release_raises_the_acquired_count_only_and_return_both);
    tcase_add_test(t, a_delivery_limit_of_20_means_21_failed_deliveries);
    tcase_add_test(t, releases_never_reach_the_delivery_limit);
    tcase_add_test(t, ack_and_discard_take_the_message_away_and_a_late_settle_finds_nothing);
    tcase_add_test(t, a_range_settles_what_is_left_in_it);
    tcase_add_test(t, one_message_never_settled_does_not_make_the_list_grow);
    tcase_add_test(t, drop_head_drops_the_oldest_once_there_is_one_too_many);
    tcase_add_test(t, a_message_given_back_to_a_full_queue_goes_to_who_waits_for_one_and_is_not_dropped);
    tcase_add_test(t, a_queue_of_length_zero_passes_messages_on_to_consumers_that_wait);
    tcase_add_test(t, drop_head_eats_returned_messages_first_and_then_the_highest_priority);
    tcase_add_test(t, the_byte_limit_is_strict_and_unacked_bytes_do_not_count);
    tcase_add_test(t, reject_publish_keeps_the_one_that_went_over_and_accepts_again_at_80_percent);
    tcase_add_test(t, rejections_are_remembered_until_the_sender_knows);
    tcase_add_test(t, an_older_configuration_never_overrides);
    tcase_add_test(t, prefetch_bounds_what_is_unsettled_and_a_settle_makes_room);
    tcase_add_test(t, equal_consumers_take_turns);
    tcase_add_test(t, a_higher_priority_consumer_gets_all_while_it_has_room);
    tcase_add_test(t, prefetch_0_is_2000_topped_up_by_credit_and_checkout_moves_512_at_a_time);
    tcase_add_test(t, cancel_leaves_what_is_unsettled_settleable);
    tcase_add_test(t, single_active_consumer_the_next_takes_over_when_it_is_cancelled);
    tcase_add_test(t, single_active_consumer_a_higher_priority_takes_over_once_the_active_one_holds_nothing);
    tcase_add_test(t, get_takes_the_head_and_says_what_is_left_and_a_repeat_says_it_again);
    tcase_add_test(t, purge_takes_ready_messages_only_and_counts_them);
    tcase_add_test(t, a_repeated_publish_is_answered_and_not_applied);
    tcase_add_test(t, a_gap_is_named_and_nothing_is_applied);
    tcase_add_test(t, the_two_sequences_of_a_session_do_not_wait_for_each_other);
    tcase_add_test(t, a_command_of_a_session_that_ended_is_unknown_and_its_open_is_refused);
    tcase_add_test(t, a_closed_channel_returns_its_messages_with_a_failure_in_delivery_order);
    tcase_add_test(t, node_down_returns_without_a_failure_and_spares_later_incarnations);
    tcase_add_test(t, sizes_from_one_mebibyte_on_stand_in_the_side_table);
    tcase_add_test(t, a_million_ready_messages_cost_eight_bytes_each);
    tcase_add_test(t, a_queue_without_sessions_holds_no_memory_beyond_its_struct);
    return t;
}

int main(void)
{
    Suite *s = suite_create("queue_fsm");
    suite_add_tcase(s, all_tests());
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
