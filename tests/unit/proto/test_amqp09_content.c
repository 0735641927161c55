// SPDX-License-Identifier: Apache-2.0
// links: proto/amqp09 node/base
// Content headers (data-plane §1.7): all properties, hostile bytes, rewriting, frames.
#include "proto/amqp09/content.h"
#include "proto/amqp09/frame.h"
#include "proto/amqp09/table.h"
#include <check.h>
#include <stdlib.h>

// ---- helpers ------------------------------------------------------------------------------------

static const uint8_t everything[] = {
    0xFF, 0xFC, 1, 'a',                                 // content-type
    1,    'b',                                          // content-encoding
    0,    0,    0, 8,   1, 'k', 'S', 0,  0, 0, 1, 'v',  // headers
    2,                                                  // delivery-mode
    9,                                                  // priority
    1,    'c',                                          // correlation-id
    1,    'd',                                          // reply-to
    1,    '5',                                          // expiration
    1,    'e',                                          // message-id
    0,    0,    0, 0,   0, 0,   0,   77,                // timestamp
    1,    'f',                                          // type
    1,    'g',                                          // user-id
    1,    'h',                                          // app-id
    1,    'i',                                          // cluster-id
};

static struct span all(void)
{
    return span_of(everything, sizeof(everything));
}

static bool is_text(struct span s, const char *text)
{
    return span_equal(s, span_str(text));
}

// ---- tests --------------------------------------------------------------------------------------

START_TEST(all_properties_are_read_in_their_order)
{
    struct content_properties p;
    ck_assert_int_eq(content_properties_read(all(), &p), RC_OK);
    ck_assert(is_text(p.content_type, "a") && is_text(p.content_encoding, "b"));
    ck_assert_uint_eq(p.headers.len, 8);
    ck_assert_uint_eq(p.delivery_mode, 2);
    ck_assert_uint_eq(p.priority, 9);
    ck_assert(is_text(p.correlation_id, "c") && is_text(p.reply_to, "d") && is_text(p.expiration, "5"));
    ck_assert(is_text(p.message_id, "e"));
    ck_assert_uint_eq(p.timestamp, 77);
    ck_assert(is_text(p.type, "f") && is_text(p.user_id, "g") && is_text(p.app_id, "h") &&
              is_text(p.cluster_id, "i"));
}
END_TEST

START_TEST(properties_come_back_as_they_were_written)
{
    struct content_properties p;
    ck_assert_int_eq(content_properties_read(all(), &p), RC_OK);
    struct buf b;
    buf_init(&b);
    content_properties_put(&b, &p);
    ck_assert(span_equal(buf_span(&b), all()));
    buf_deinit(&b);
}
END_TEST

START_TEST(single_properties_are_found_behind_the_others)
{
    struct span s;
    uint8_t n;
    ck_assert(content_find_headers(all(), &s) && s.len == 8);
    ck_assert(content_find_delivery_mode(all(), &n) && n == 2);
    ck_assert(content_find_priority(all(), &n) && n == 9);
    ck_assert(content_find_reply_to(all(), &s) && is_text(s, "d"));
    ck_assert(content_find_expiration(all(), &s) && is_text(s, "5"));
    ck_assert(content_find_user_id(all(), &s) && is_text(s, "g"));
    static const uint8_t none[] = {0, 0};
    ck_assert(!content_find_headers(span_of(none, 2), &s));
    ck_assert(!content_find_user_id(span_of(none, 2), &s));
    ck_assert(!content_find_priority(span_of(none, 0), &n));
}
END_TEST

START_TEST(prefixes_and_trailing_bytes_are_malformed)
{
    struct content_properties p;
    for (size_t n = 0; n < sizeof(everything); n++) {
        uint8_t *exact = malloc(n + 1);
        memcpy(exact, everything, n);
        ck_assert_int_eq(content_properties_read(span_of(exact, n), &p), RC_MALFORMED);
        struct span s;
        (void)content_find_user_id(span_of(exact, n), &s);
        free(exact);
    }
    uint8_t longer[sizeof(everything) + 1] = {0};
    memcpy(longer, everything, sizeof(everything));
    ck_assert_int_eq(content_properties_read(span_of(longer, sizeof(longer)), &p), RC_MALFORMED);
}
END_TEST

START_TEST(flipped_bits_do_no_harm)
{
    for (size_t bit = 0; bit < sizeof(everything) * 8; bit++) {
        uint8_t *exact = malloc(sizeof(everything));
        memcpy(exact, everything, sizeof(everything));
        exact[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct span raw = span_of(exact, sizeof(everything)), s;
        struct content_properties p;
        struct buf b;
        buf_init(&b);
        enum rc rc = content_properties_read(raw, &p);
        ck_assert(rc == RC_OK || rc == RC_MALFORMED);
        (void)content_find_user_id(raw, &s);
        content_put_with_headers(&b, raw, span_str(""));
        buf_deinit(&b);
        free(exact);
    }
}
END_TEST

START_TEST(unused_flag_bits_are_ignored_and_not_written)
{
    static const uint8_t raw[] = {0x10, 0x03, 1};
    struct content_properties p;
    ck_assert_int_eq(content_properties_read(span_of(raw, 3), &p), RC_OK);
    ck_assert_uint_eq(p.flags, PROPERTY_DELIVERY_MODE);
    struct buf b;
    buf_init(&b);
    content_properties_put(&b, &p);
    ck_assert_uint_eq(b.ptr[1], 0);
    buf_deinit(&b);
}
END_TEST

START_TEST(a_header_table_that_does_not_decode_is_malformed)
{
    static const uint8_t raw[] = {0x20, 0, 0, 0, 0, 3, 1, 'k', 'Q'};
    struct content_properties p;
    ck_assert_int_eq(content_properties_read(span_of(raw, sizeof(raw)), &p), RC_MALFORMED);
}
END_TEST

START_TEST(headers_are_replaced_added_and_removed_alone)
{
    struct buf table, b;
    buf_init(&table);
    buf_init(&b);
    table_put_i64(&table, "x-acquired-count", 1);
    content_put_with_headers(&b, all(), buf_span(&table));
    struct content_properties p, q;
    ck_assert_int_eq(content_properties_read(buf_span(&b), &p), RC_OK);
    ck_assert(span_equal(p.headers, buf_span(&table)));
    ck_assert(is_text(p.cluster_id, "i"));
    ck_assert_uint_eq(p.flags, 0xFFFC);

    b.len = 0;
    content_put_with_headers(&b, all(), span_of(NULL, 0));
    ck_assert_int_eq(content_properties_read(buf_span(&b), &q), RC_OK);
    ck_assert_uint_eq(q.flags, 0xFFFC & ~PROPERTY_HEADERS);

    static const uint8_t bare[] = {0, 0};
    b.len = 0;
    content_put_with_headers(&b, span_of(bare, 2), buf_span(&table));
    ck_assert_int_eq(content_properties_read(buf_span(&b), &q), RC_OK);
    ck_assert_uint_eq(q.flags, PROPERTY_HEADERS);
    buf_deinit(&table);
    buf_deinit(&b);
}
END_TEST

START_TEST(sorted_means_strictly_ascending)
{
    struct buf b;
    buf_init(&b);
    ck_assert(content_headers_are_sorted(buf_span(&b)));
    table_put_text(&b, "a", "");
    table_put_text(&b, "b", "");
    ck_assert(content_headers_are_sorted(buf_span(&b)));
    table_put_text(&b, "b", "");
    ck_assert(!content_headers_are_sorted(buf_span(&b)));
    buf_deinit(&b);
}
END_TEST

START_TEST(bodies_are_split_to_frame_max)
{
    enum { FRAME_MAX = 64, BODY = 56 * 2 + 1 };
    static const uint8_t bare[] = {0, 0};
    uint8_t body[BODY];
    for (int i = 0; i < BODY; i++) {
        body[i] = (uint8_t)i;
    }
    static const size_t lengths[] = {0, 1, 55, 56, 57, 112, 113};
    for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
        struct buf b;
        buf_init(&b);
        content_frames_put(&b, 3, FRAME_MAX, span_of(bare, 2), span_of(body, lengths[k]));
        ck_assert_uint_eq(b.len, content_frames_size(2, lengths[k], FRAME_MAX));
        struct span rest = buf_span(&b);
        struct amqp_frame f;
        struct amqp_frame_fault fault;
        size_t used, got = 0, frames = 0;
        while (rest.len > 0) {
            ck_assert_int_eq(amqp_frame_read(rest, FRAME_MAX - 8, &f, &used, &fault), RC_OK);
            ck_assert_uint_eq(f.channel, 3);
            ck_assert_uint_eq(f.type, frames == 0 ? AMQP_FRAME_HEADER : AMQP_FRAME_BODY);
            if (frames == 0) {
                struct content_header h;
                ck_assert_int_eq(content_header_read(f.payload, &h), RC_OK);
                ck_assert_uint_eq(h.body_size, lengths[k]);
                ck_assert_uint_eq(h.class_id, 60);
            } else {
                ck_assert_mem_eq(f.payload.ptr, body + got, f.payload.len);
                got += f.payload.len;
            }
            frames++;
            rest = span_of(rest.ptr + used, rest.len - used);
        }
        ck_assert_uint_eq(got, lengths[k]);
        ck_assert_uint_eq(frames, 1 + (lengths[k] + 55) / 56);  // An empty body has no body frame.
        buf_deinit(&b);
    }
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("content");
    tcase_add_test(t, all_properties_are_read_in_their_order);
    tcase_add_test(t, properties_come_back_as_they_were_written);
    tcase_add_test(t, single_properties_are_found_behind_the_others);
    tcase_add_test(t, prefixes_and_trailing_bytes_are_malformed);
    tcase_add_test(t, flipped_bits_do_no_harm);
    tcase_add_test(t, unused_flag_bits_are_ignored_and_not_written);
    tcase_add_test(t, a_header_table_that_does_not_decode_is_malformed);
    tcase_add_test(t, headers_are_replaced_added_and_removed_alone);
    tcase_add_test(t, sorted_means_strictly_ascending);
    tcase_add_test(t, bodies_are_split_to_frame_max);
    Suite *s = suite_create("amqp09_content");
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
