// SPDX-License-Identifier: Apache-2.0
// Readers, buffers, checksums, random numbers.
// links: node/base
#include "node/base/buf.h"
#include "node/base/crc32c.h"
#include "node/base/env.h"
#include "node/base/reader.h"
#include <check.h>
#include <stdlib.h>

START_TEST(reader_never_reads_past_the_end_and_stays_bad)
{
    const uint8_t bytes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    for (size_t len = 0; len < 9; len++) {
        struct reader r = reader_of(span_of(bytes, len));
        uint64_t v = reader_u64be(&r);
        if (len < 8) {
            ck_assert_uint_eq(v, 0);
            ck_assert(r.is_bad);
            ck_assert_uint_eq(reader_u8(&r), 0);
            ck_assert_uint_eq(reader_left(&r), 0);
            ck_assert_int_eq(reader_end(&r), RC_MALFORMED);
        } else {
            ck_assert_uint_eq(v, 0x0102030405060708u);
            ck_assert_int_eq(reader_end(&r), RC_OK);
        }
    }
}
END_TEST

START_TEST(reader_takes_network_and_host_order)
{
    const uint8_t bytes[] = {0x12, 0x34, 0x12, 0x34, 0x56, 0x78, 0x34, 0x12, 0x78, 0x56, 0x34, 0x12};
    struct reader r = reader_of(span_of(bytes, sizeof(bytes)));
    ck_assert_uint_eq(reader_u16be(&r), 0x1234);
    ck_assert_uint_eq(reader_u32be(&r), 0x12345678);
    ck_assert_uint_eq(reader_u16(&r), 0x1234);
    ck_assert_uint_eq(reader_u32(&r), 0x12345678);
    ck_assert_int_eq(reader_end(&r), RC_OK);
}
END_TEST

START_TEST(a_string_longer_than_what_is_left_is_refused)
{
    const uint8_t bytes[] = {3, 'a', 'b'};
    struct reader r = reader_of(span_of(bytes, 3));
    ck_assert_uint_eq(reader_str8(&r).len, 0);
    ck_assert(r.is_bad);
}
END_TEST

START_TEST(reader_end_is_malformed_if_bytes_are_left)
{
    struct reader r = reader_of(span_str("ab"));
    reader_u8(&r);
    ck_assert_int_eq(reader_end(&r), RC_MALFORMED);
}
END_TEST

START_TEST(what_a_buffer_writes_a_reader_reads)
{
    struct buf b = {0};
    buf_u8(&b, 7);
    buf_u16be(&b, 0x0102);
    buf_u32(&b, 0xdeadbeef);
    buf_u64be(&b, UINT64_MAX - 1);
    buf_str8(&b, span_str("short"));
    buf_str32be(&b, span_str("long"));
    struct reader r = reader_of(buf_span(&b));
    ck_assert_uint_eq(reader_u8(&r), 7);
    ck_assert_uint_eq(reader_u16be(&r), 0x0102);
    ck_assert_uint_eq(reader_u32(&r), 0xdeadbeef);
    ck_assert_uint_eq(reader_u64be(&r), UINT64_MAX - 1);
    ck_assert(span_equal(reader_str8(&r), span_str("short")));
    ck_assert(span_equal(reader_str32be(&r), span_str("long")));
    ck_assert_int_eq(reader_end(&r), RC_OK);
    buf_deinit(&b);
}
END_TEST

START_TEST(a_buffer_keeps_its_content_when_it_grows_and_is_consumed)
{
    struct buf b = {0};
    for (uint32_t i = 0; i < 10000; i++) {
        buf_u32(&b, i);
    }
    buf_consume(&b, 4 * 9990);
    ck_assert_uint_eq(b.len, 40);
    struct reader r = reader_of(buf_span(&b));
    ck_assert_uint_eq(reader_u32(&r), 9990);
    buf_printf(&b, "%s-%d", "x", 42);
    ck_assert(memcmp(b.ptr + 40, "x-42", 4) == 0);
    buf_deinit(&b);
}
END_TEST

// RFC 3720 B.4.
START_TEST(crc32c_gives_the_values_of_the_rfc)
{
    uint8_t b[32] = {0};
    ck_assert_uint_eq(crc32c(0, b, 32), 0x8a9136aa);
    memset(b, 0xff, 32);
    ck_assert_uint_eq(crc32c(0, b, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) {
        b[i] = (uint8_t)i;
    }
    ck_assert_uint_eq(crc32c(0, b, 32), 0x46dd794e);
    ck_assert_uint_eq(crc32c(0, "123456789", 9), 0xe3069283);
}
END_TEST

// The definition (RFC 3720 §12.1): a division bit by bit.
static uint32_t divide(uint32_t rest, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < 8 * n; i++) {
        const uint32_t bit = (rest ^ (uint32_t)(p[i / 8] >> i % 8)) & 1;
        rest = rest >> 1 ^ (bit ? 0x82f63b78u : 0);
    }
    return rest;
}

START_TEST(crc32c_of_each_length_is_the_rest_of_the_division)
{
    enum { N = 30000, SHORT = 2100 };
    uint8_t *b = malloc(N), *copy = malloc(N);
    struct rng rng;
    rng_seed(&rng, 3);
    for (int i = 0; i < N; i++) {
        b[i] = (uint8_t)rng_next(&rng);
    }
    for (uint32_t start = 0; start < 2; start++) {  // A sum that begins and one that goes on.
        uint32_t rest = ~start;
        for (size_t len = 0; len < N; len++) {
            if (len < SHORT || len % 97 == 0) {
                ck_assert_uint_eq(crc32c(start, b, len), ~rest);
                memset(copy, 0, len);
                ck_assert_uint_eq(crc32c_copy(start, copy, b, len), ~rest);
                ck_assert_int_eq(memcmp(copy, b, len), 0);
            }
            rest = divide(rest, b + len, 1);
        }
    }
    free(b);
    free(copy);
}
END_TEST

// The long path of the sum (several streams at once) must agree with the sum of parts, at any length and alignment.
START_TEST(crc32c_of_a_whole_is_that_of_its_parts_and_copying_copies)
{
    enum { N = 20000 };
    uint8_t *b = malloc(N), *copy = malloc(N);
    struct rng rng;
    rng_seed(&rng, 1);
    for (int i = 0; i < N; i++) {
        b[i] = (uint8_t)rng_next(&rng);
    }
    for (int k = 0; k < 400; k++) {
        size_t from = rng_below(&rng, 64), len = rng_below(&rng, N - 64), cut = rng_below(&rng, len + 1);
        uint32_t whole = crc32c(0, b + from, len);
        uint32_t parts = 0;
        for (size_t at = 0; at < cut; at += 7) {
            parts = crc32c(parts, b + from + at, cut - at < 7 ? cut - at : 7);
        }
        parts = crc32c(parts, b + from + cut, len - cut);
        ck_assert_uint_eq(whole, parts);
        memset(copy, 0, len);
        ck_assert_uint_eq(crc32c_copy(0, copy, b + from, len), whole);
        ck_assert_int_eq(memcmp(copy, b + from, len), 0);
    }
    free(b);
    free(copy);
}
END_TEST

START_TEST(crc32c_of_a_whole_is_combined_from_the_sums_of_two_parts_of_any_length)
{
    enum { N = 300000 };
    uint8_t *b = malloc(N);
    struct rng rng;
    rng_seed(&rng, 7);
    for (int i = 0; i < N; i++) {
        b[i] = (uint8_t)rng_next(&rng);
    }
    for (int k = 0; k < 600; k++) {
        size_t len = k < 300 ? (size_t)k / 10 : rng_below(&rng, N), cut = rng_below(&rng, len + 1);
        uint32_t whole = crc32c(0, b, len), first = crc32c(0, b, cut), second = crc32c(0, b + cut, len - cut);
        ck_assert_uint_eq(crc32c_combine(first, second, len - cut), whole);
        ck_assert_uint_eq(crc32c_combine(first, whole, len - cut), second);  // And back.
        if (len > cut) {
            ck_assert_uint_ne(crc32c_combine(first ^ 1, second, len - cut), whole);
            ck_assert_uint_ne(crc32c_combine(first, second ^ 1, len - cut), whole);
        }
    }
    // Lengths beyond 32 bits: 5 GiB of the same GiB, put together by halves and by pieces.
    uint32_t gib = crc32c(0, b, 1 << 18);
    for (uint64_t n = 1 << 18; n < 1 << 30; n *= 2) {
        gib = crc32c_combine(gib, gib, n);
    }
    const uint64_t n = 1 << 30;
    uint32_t two = crc32c_combine(gib, gib, n), four = crc32c_combine(two, two, 2 * n);
    ck_assert_uint_eq(crc32c_combine(gib, four, 4 * n), crc32c_combine(four, gib, n));
    free(b);
}
END_TEST

START_TEST(the_same_seed_gives_the_same_numbers_and_below_stays_below)
{
    struct rng a, b;
    rng_seed(&a, 42);
    rng_seed(&b, 42);
    for (int i = 0; i < 1000; i++) {
        ck_assert_uint_eq(rng_next(&a), rng_next(&b));
        ck_assert_uint_lt(rng_below(&a, 10), 10);
        rng_below(&b, 10);
    }
    struct rng other;
    rng_seed(&other, 43);
    ck_assert_uint_ne(rng_next(&other), rng_next(&a));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("bytes");
    TCase *t = tcase_create("bytes");
    tcase_add_test(t, reader_never_reads_past_the_end_and_stays_bad);
    tcase_add_test(t, reader_takes_network_and_host_order);
    tcase_add_test(t, a_string_longer_than_what_is_left_is_refused);
    tcase_add_test(t, reader_end_is_malformed_if_bytes_are_left);
    tcase_add_test(t, what_a_buffer_writes_a_reader_reads);
    tcase_add_test(t, a_buffer_keeps_its_content_when_it_grows_and_is_consumed);
    tcase_add_test(t, crc32c_gives_the_values_of_the_rfc);
    tcase_add_test(t, crc32c_of_each_length_is_the_rest_of_the_division);
    tcase_add_test(t, crc32c_of_a_whole_is_that_of_its_parts_and_copying_copies);
    tcase_add_test(t, crc32c_of_a_whole_is_combined_from_the_sums_of_two_parts_of_any_length);
    tcase_add_test(t, the_same_seed_gives_the_same_numbers_and_below_stays_below);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
