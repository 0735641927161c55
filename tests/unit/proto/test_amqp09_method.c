// SPDX-License-Identifier: Apache-2.0
// links: proto/amqp09 node/base
// Methods (data-plane §1.6) and frames (§1.4): wire bytes, every method both ways, hostile bytes.
#include "proto/amqp09/frame.h"
#include "proto/amqp09/method.h"
#include "proto/amqp09/table.h"
#include <check.h>
#include <stdlib.h>

// ---- helpers ------------------------------------------------------------------------------------

static uint64_t counter;
static struct buf table_bytes;

#define SAMPLE_U8 (uint8_t)(++counter)
#define SAMPLE_U16 (uint16_t)(0x100 + ++counter)
#define SAMPLE_U32 (uint32_t)(0x10000 + ++counter)
#define SAMPLE_U64 (0x100000000ull + ++counter)
#define SAMPLE_SHORT span_str("short")
#define SAMPLE_LONG span_str("long")
#define SAMPLE_TABLE buf_span(&table_bytes)
#define SAMPLE_BIT (++counter % 3 == 0)
#define SAME_U8(a, b) ((a) == (b))
#define SAME_U16(a, b) ((a) == (b))
#define SAME_U32(a, b) ((a) == (b))
#define SAME_U64(a, b) ((a) == (b))
#define SAME_BIT(a, b) ((a) == (b))
#define SAME_SHORT(a, b) span_equal(a, b)
#define SAME_LONG(a, b) span_equal(a, b)
#define SAME_TABLE(a, b) span_equal(a, b)

#define FIELD_FILL(S, kind, field) x->field = SAMPLE_##kind;
#define FIELD_SAME(S, kind, field) is_same &= SAME_##kind(x->field, y->field);
#define MAKE(FIELDS, name, c, m, sender, content)                                                            \
    static void fill_##name(struct amqp_##name *x)                                                           \
    {                                                                                                        \
        (void)x;                                                                                             \
        AMQP_##FIELDS(FIELD_FILL, _)                                                                         \
    }                                                                                                        \
    static bool same_##name(const struct amqp_##name *x, const struct amqp_##name *y)                        \
    {                                                                                                        \
        bool is_same = true;                                                                                 \
        (void)x;                                                                                             \
        (void)y;                                                                                             \
        AMQP_##FIELDS(FIELD_SAME, _) return is_same;                                                         \
    }
AMQP_METHODS(MAKE)

static const uint32_t ids[] = {
#define ID(FIELDS, name, c, m, sender, content) AMQP_##FIELDS##_ID,
    AMQP_METHODS(ID)};
enum { IDS = sizeof(ids) / sizeof(ids[0]) };

static struct amqp_method sample(uint32_t id)
{
    struct amqp_method m = {.id = id};
    switch (id) {
#define FILL(FIELDS, name, c, mi, sender, content)                                                           \
    case AMQP_##FIELDS##_ID:                                                                                 \
        fill_##name(&m.name);                                                                                \
        break;
        AMQP_METHODS(FILL)
    }
    return m;
}

static bool same(const struct amqp_method *a, const struct amqp_method *b)
{
    switch (a->id) {
#define SAME(FIELDS, name, c, mi, sender, content)                                                           \
    case AMQP_##FIELDS##_ID:                                                                                 \
        return b->id == a->id && same_##name(&a->name, &b->name);
        AMQP_METHODS(SAME)
    }
    return false;
}

static void setup(void)
{
    counter = 0;
    buf_init(&table_bytes);
    table_put_text(&table_bytes, "key", "value");
    table_put_bool(&table_bytes, "flag", true);
}

static void teardown(void)
{
    buf_deinit(&table_bytes);
}

// ---- tests --------------------------------------------------------------------------------------

START_TEST(publish_has_the_bytes_of_the_specification)
{
    static const uint8_t frame[] = {1, 0, 7, 0, 0, 0, 12, 0, 60, 0, 40, 0, 0, 1, 'x', 2, 'r', 'k', 1, 0xCE};
    struct buf b;
    buf_init(&b);
    amqp_send_basic_publish(&b, 7,
                            &(struct amqp_basic_publish){
                                .exchange = span_str("x"), .routing_key = span_str("rk"), .mandatory = true});
    ck_assert_uint_eq(b.len, sizeof(frame));
    ck_assert_mem_eq(b.ptr, frame, sizeof(frame));
    buf_deinit(&b);
}
END_TEST

START_TEST(consecutive_bits_share_an_octet_lowest_first)
{
    struct buf b;
    buf_init(&b);
    struct amqp_method m = {.id = AMQP_QUEUE_DECLARE_ID,
                            .queue_declare = {.queue = span_str("q"), .durable = true, .nowait = true}};
    amqp_method_put(&b, &m);
    // class 50, method 10, ticket, "q", bits durable (1) and nowait (4), empty table.
    static const uint8_t bytes[] = {0, 50, 0, 10, 0, 0, 1, 'q', 0x12, 0, 0, 0, 0};
    ck_assert_uint_eq(b.len, sizeof(bytes));
    ck_assert_mem_eq(b.ptr, bytes, sizeof(bytes));
    buf_deinit(&b);
}
END_TEST

START_TEST(every_method_comes_back_as_it_was_written)
{
    ck_assert_int_eq(IDS, 69);  // 14 + 6 + 2 + 8 + 10 + 21 + 2 + 6 in the table of §1.6.
    for (int i = 0; i < IDS; i++) {
        struct amqp_method m = sample(ids[i]), back;
        struct buf b;
        buf_init(&b);
        amqp_method_put(&b, &m);
        ck_assert_int_eq(amqp_method_read(buf_span(&b), &back), RC_OK);
        ck_assert_msg(same(&m, &back), "%s", amqp_method_name(ids[i]));
        buf_deinit(&b);
    }
}
END_TEST

START_TEST(every_prefix_of_every_method_is_refused)
{
    for (int i = 0; i < IDS; i++) {
        struct amqp_method m = sample(ids[i]), back;
        struct buf b;
        buf_init(&b);
        amqp_method_put(&b, &m);
        for (size_t n = 0; n < b.len; n++) {
            uint8_t *exact = malloc(n + 1);
            memcpy(exact, b.ptr, n);
            ck_assert_int_eq(amqp_method_read(span_of(exact, n), &back), n < 4 ? RC_NOT_FOUND : RC_MALFORMED);
            free(exact);
        }
        buf_u8(&b, 0);
        ck_assert_int_eq(amqp_method_read(buf_span(&b), &back), RC_MALFORMED);
        buf_deinit(&b);
    }
}
END_TEST

START_TEST(flipped_bits_in_any_method_do_no_harm)
{
    for (int i = 0; i < IDS; i++) {
        struct amqp_method m = sample(ids[i]), back;
        struct buf b;
        buf_init(&b);
        amqp_method_put(&b, &m);
        for (size_t bit = 0; bit < b.len * 8; bit++) {
            b.ptr[bit / 8] ^= (uint8_t)(1u << bit % 8);
            enum rc rc = amqp_method_read(buf_span(&b), &back);
            ck_assert(rc == RC_OK || rc == RC_MALFORMED || rc == RC_NOT_FOUND || rc == RC_INVALID);
            b.ptr[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        buf_deinit(&b);
    }
}
END_TEST

START_TEST(short_strings_must_be_utf8)
{
    struct buf b;
    buf_init(&b);
    struct amqp_method m = {.id = AMQP_BASIC_CANCEL_ID,
                            .basic_cancel = {.consumer_tag = span_str("\xC3\x28")}},
                       back;
    amqp_method_put(&b, &m);
    ck_assert_int_eq(amqp_method_read(buf_span(&b), &back), RC_INVALID);
    buf_deinit(&b);
}
END_TEST

START_TEST(utf8_follows_rfc_3629)
{
    ck_assert(utf8_is_valid(span_str("")));
    ck_assert(utf8_is_valid(
        span_str("abc\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF")));
    static const char *const bad[] = {"\x80",
                                      "\xC0\x80",
                                      "\xC1\xBF",
                                      "\xC2",
                                      "\xE0\x9F\xBF",
                                      "\xED\xA0\x80",
                                      "\xE0\xA0",
                                      "\xF0\x8F\xBF\xBF",
                                      "\xF4\x90\x80\x80",
                                      "\xF5\x80\x80\x80",
                                      "\xFF",
                                      "\xC2\xC2"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_msg(!utf8_is_valid(span_str(bad[i])), "%zu", i);
    }
}
END_TEST

START_TEST(methods_know_who_may_send_them)
{
    ck_assert(amqp_method_is_from_client(AMQP_BASIC_PUBLISH_ID));
    ck_assert(amqp_method_is_from_client(AMQP_BASIC_ACK_ID));
    ck_assert(!amqp_method_is_from_client(AMQP_BASIC_DELIVER_ID));
    ck_assert(!amqp_method_is_from_client(AMQP_BASIC_CREDIT_ID));
    ck_assert(amqp_method_has_content(AMQP_BASIC_PUBLISH_ID));
    ck_assert(!amqp_method_has_content(AMQP_BASIC_GET_ID));
    ck_assert_str_eq(amqp_method_name(AMQP_CONNECTION_START_OK_ID), "connection.start-ok");
    ck_assert_ptr_null(amqp_method_name(AMQP_METHOD_ID(60, 41)));
    ck_assert_int_eq(AMQP_EXCHANGE_UNBIND_OK_ID, AMQP_METHOD_ID(40, 51));
}
END_TEST

START_TEST(frames_ask_for_what_is_missing)
{
    static const uint8_t frame[] = {8, 0, 0, 0, 0, 0, 2, 1, 2, 0xCE};
    struct amqp_frame f;
    struct amqp_frame_fault fault;
    size_t used;
    for (size_t n = 0; n < sizeof(frame); n++) {
        uint8_t *exact = malloc(n + 1);
        memcpy(exact, frame, n);
        ck_assert_int_eq(amqp_frame_read(span_of(exact, n), 100, &f, &used, &fault), RC_MORE);
        ck_assert_uint_eq(used, n < 7 ? 7 : sizeof(frame));
        free(exact);
    }
    ck_assert_int_eq(amqp_frame_read(span_of(frame, sizeof(frame)), 100, &f, &used, &fault), RC_OK);
    ck_assert_uint_eq(used, sizeof(frame));
    ck_assert_uint_eq(f.type, 8);
    ck_assert_uint_eq(f.payload.len, 2);
}
END_TEST

START_TEST(a_frame_above_the_limit_is_refused_from_its_head)
{
    static const uint8_t head[] = {3, 0, 1, 0, 0, 0, 101};
    struct amqp_frame f;
    struct amqp_frame_fault fault;
    size_t used;
    ck_assert_int_eq(amqp_frame_read(span_of(head, sizeof(head)), 100, &f, &used, &fault), RC_TOO_LARGE);
    ck_assert_uint_eq(fault.size, 101);
    ck_assert_uint_eq(fault.type, 3);
    ck_assert_int_eq(amqp_frame_read(span_of(head, sizeof(head)), 101, &f, &used, &fault), RC_MORE);
}
END_TEST

START_TEST(a_wrong_end_octet_is_reported)
{
    static const uint8_t frame[] = {8, 0, 0, 0, 0, 0, 0, 0xCD};
    struct amqp_frame f;
    struct amqp_frame_fault fault;
    size_t used;
    ck_assert_int_eq(amqp_frame_read(span_of(frame, sizeof(frame)), 100, &f, &used, &fault), RC_MALFORMED);
    ck_assert_uint_eq(fault.end, 0xCD);
}
END_TEST

START_TEST(protocol_headers_are_judged_by_the_table)
{
    static const struct {
        const char *bytes;
        enum amqp_protocol expected;
    } rows[] = {
        {"AMQP\0\0\x09\x01", AMQP_PROTOCOL_0_9_1},
        {"AMQP\x01\x01\x00\x09", AMQP_PROTOCOL_0_9_1},
        {"AMQP\x03\x01\0\0", AMQP_PROTOCOL_1_0_SASL},
        {"AMQP\x00\x01\0\0", AMQP_PROTOCOL_ANSWER_SASL},
        {"AMQP\x02\x01\0\0", AMQP_PROTOCOL_ANSWER_SASL},
        {"AMQP\0\0\x09\x02", AMQP_PROTOCOL_ANSWER_091},
        {"AMQP\0\0\x0A\x00", AMQP_PROTOCOL_ANSWER_091},
        {"AMQP\x01\x01\x08\x00", AMQP_PROTOCOL_ANSWER_SASL},
        {"GET / HT", AMQP_PROTOCOL_ANSWER_SASL},
        {"\x16\x03\x01\x02\0\x01\0\x01", AMQP_PROTOCOL_ANSWER_SASL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ck_assert_msg(amqp_protocol_of((const uint8_t *)rows[i].bytes) == rows[i].expected, "row %zu", i);
    }
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("method");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, publish_has_the_bytes_of_the_specification);
    tcase_add_test(t, consecutive_bits_share_an_octet_lowest_first);
    tcase_add_test(t, every_method_comes_back_as_it_was_written);
    tcase_add_test(t, every_prefix_of_every_method_is_refused);
    tcase_add_test(t, flipped_bits_in_any_method_do_no_harm);
    tcase_add_test(t, short_strings_must_be_utf8);
    tcase_add_test(t, utf8_follows_rfc_3629);
    tcase_add_test(t, methods_know_who_may_send_them);
    tcase_add_test(t, frames_ask_for_what_is_missing);
    tcase_add_test(t, a_frame_above_the_limit_is_refused_from_its_head);
    tcase_add_test(t, a_wrong_end_octet_is_reported);
    tcase_add_test(t, protocol_headers_are_judged_by_the_table);
    Suite *s = suite_create("amqp09_method");
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
