// SPDX-License-Identifier: Apache-2.0
// Frames between nodes (proto/frame.h, engine-notes §7.8): round trip, every prefix, every flipped bit, limits.
// links: node/base proto
#include "node/base/crc32c.h"
#include "proto/frame.h"
#include <check.h>
#include <stdlib.h>

static struct buf b;

static void setup(void)
{
    buf_init(&b);
}
static void teardown(void)
{
    buf_deinit(&b);
}

static void encode(uint16_t flags, const char *envelope, const char *raw)
{
    size_t raw_len = strlen(raw);
    frame_encode_head(&b, FRAME_APPEND, flags, span_str(envelope), raw_len + (flags & FRAME_RAW_CRC ? 4 : 0));
    buf_bytes(&b, raw, raw_len);
    if (flags & FRAME_RAW_CRC) {
        buf_u32(&b, crc32c(0, raw, raw_len));
    }
}

static void assert_decodes(uint16_t flags, const char *envelope, const char *raw)
{
    struct frame f;
    size_t size;
    ck_assert_int_eq(frame_decode(buf_span(&b), &f, &size), RC_OK);
    ck_assert_uint_eq(size, b.len);
    ck_assert_uint_eq(f.type, FRAME_APPEND);
    ck_assert_uint_eq(f.flags, flags);
    ck_assert(span_equal(f.envelope, span_str(envelope)));
    ck_assert(span_equal(f.raw, span_str(raw)));
}

START_TEST(the_header_is_laid_out_as_the_format_says)
{
    encode(0, "env", "raw bytes");
    ck_assert_uint_eq(b.len, 16 + 3 + 9);
    static const uint8_t expected[12] = {28, 0, 0, 0, FRAME_APPEND, 0, 0, 0, 3, 0, 0, 0};
    ck_assert(memcmp(b.ptr, expected, 12) == 0);
    uint32_t crc = crc32c(crc32c(0, b.ptr, 12), "env", 3), found;
    memcpy(&found, b.ptr + 12, 4);
    ck_assert_uint_eq(found, crc);
}
END_TEST

START_TEST(frames_come_back_as_they_were_encoded)
{
    static const char *const envelopes[] = {"", "e", "envelope"};
    static const char *const raws[] = {"", "r", "some raw bytes"};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 3; k++) {
            for (uint16_t flags = 0; flags <= FRAME_RAW_CRC; flags++) {
                b.len = 0;
                encode(flags, envelopes[i], raws[k]);
                assert_decodes(flags, envelopes[i], raws[k]);
            }
        }
    }
}
END_TEST

START_TEST(bytes_behind_a_frame_do_not_matter)
{
    encode(FRAME_RAW_CRC, "env", "raw");
    size_t len = b.len;
    buf_bytes(&b, "next frame", 10);
    struct frame f;
    size_t size;
    ck_assert_int_eq(frame_decode(buf_span(&b), &f, &size), RC_OK);
    ck_assert_uint_eq(size, len);
}
END_TEST

START_TEST(every_prefix_asks_for_more_and_says_how_much)
{
    encode(FRAME_RAW_CRC, "envelope", "raw bytes");
    for (size_t n = 0; n < b.len; n++) {
        uint8_t *copy = malloc(n + 1);
        memcpy(copy, b.ptr, n);
        struct frame f;
        size_t size = 1;
        ck_assert_int_eq(frame_decode(span_of(copy, n), &f, &size), RC_MORE);
        ck_assert_uint_eq(size, n < FRAME_HEADER_BYTES ? 0 : b.len);
        free(copy);
    }
}
END_TEST

START_TEST(every_flipped_bit_under_a_sum_is_found)
{
    encode(FRAME_RAW_CRC, "envelope", "raw bytes");
    for (size_t at = 0; at < b.len; at++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            b.ptr[at] ^= (uint8_t)(1u << bit);
            struct frame f;
            size_t size;
            ck_assert_int_ne(frame_decode(buf_span(&b), &f, &size), RC_OK);
            b.ptr[at] ^= (uint8_t)(1u << bit);
        }
    }
    assert_decodes(FRAME_RAW_CRC, "envelope", "raw bytes");
}
END_TEST

START_TEST(the_raw_area_without_the_flag_has_sums_of_its_own)
{
    encode(0, "env", "raw");
    b.ptr[b.len - 1] ^= 1;
    struct frame f;
    size_t size;
    ck_assert_int_eq(frame_decode(buf_span(&b), &f, &size), RC_OK);  // Records inside are checked by their reader.
}
END_TEST

// Writes a header with a correct sum whose lengths are as given.
static void header(uint32_t total_len, uint32_t envelope_len, uint16_t flags)
{
    struct frame_header_wire h = {.total_len = total_len,
                                  .type = FRAME_ACK,
                                  .flags = flags,
                                  .envelope_len = envelope_len};
    h.crc = crc32c(0, &h, 12);
    b.len = 0;
    buf_bytes(&b, &h, sizeof(h));
}

START_TEST(lengths_beyond_the_limits_are_refused_before_anything_is_read)
{
    struct frame f;
    size_t size;
    header(FRAME_TOTAL_MAX, 0, 0);
    ck_assert_int_eq(frame_decode(buf_span(&b), &f, &size), RC_MORE);
    ck_assert_uint_eq(size, FRAME_TOTAL_MAX);
    header(FRAME_TOTAL_MAX + 1, 0, 0);
    ck_assert_int_eq(frame_decode(buf_span(&b), &f, &size), RC_TOO_LARGE);
    header(FRAME_TOTAL_MAX, FRAME_ENVELOPE_MAX + 1, 0);
    ck_assert_int_eq(frame_decode(buf_span(&b), &f, &size), RC_TOO_LARGE);
    header(UINT32_MAX, UINT32_MAX, 0);
    ck_assert_int_eq(frame_decode(buf_span(&b), &f, &size), RC_TOO_LARGE);
}
END_TEST

START_TEST(lengths_that_contradict_each_other_are_malformed)
{
    struct frame f;
    size_t size;
    header(FRAME_HEADER_BYTES, 0, 0);
    ck_assert_int_eq(frame_decode(buf_span(&b), &f, &size), RC_OK);
    header(FRAME_HEADER_BYTES - 1, 0, 0);
    ck_assert_int_eq(frame_decode(buf_span(&b), &f, &size), RC_MALFORMED);
    header(0, 0, 0);
    ck_assert_int_eq(frame_decode(buf_span(&b), &f, &size), RC_MALFORMED);
    header(FRAME_HEADER_BYTES + 4, 5, 0);
    ck_assert_int_eq(frame_decode(buf_span(&b), &f, &size), RC_MALFORMED);
    header(FRAME_HEADER_BYTES + 3, 0, FRAME_RAW_CRC);  // No room for the sum it announces.
    buf_bytes(&b, "abc", 3);
    ck_assert_int_eq(frame_decode(buf_span(&b), &f, &size), RC_MALFORMED);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("frame");
    TCase *t = tcase_create("frame");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, the_header_is_laid_out_as_the_format_says);
    tcase_add_test(t, frames_come_back_as_they_were_encoded);
    tcase_add_test(t, bytes_behind_a_frame_do_not_matter);
    tcase_add_test(t, every_prefix_asks_for_more_and_says_how_much);
    tcase_add_test(t, every_flipped_bit_under_a_sum_is_found);
    tcase_add_test(t, the_raw_area_without_the_flag_has_sums_of_its_own);
    tcase_add_test(t, lengths_beyond_the_limits_are_refused_before_anything_is_read);
    tcase_add_test(t, lengths_that_contradict_each_other_are_malformed);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
