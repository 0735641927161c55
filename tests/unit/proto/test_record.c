// SPDX-License-Identifier: Apache-2.0
// The record (proto/record.h, engine-notes §7.7): layout, checks, every prefix and every flipped bit.
// links: node/base proto
#include "node/base/block.h"
#include "proto/record.h"
#include <check.h>
#include <stdlib.h>

enum { LEN = 21, SIZE = 64 };  // 40 + 21 = 61, padded to 64.

static uint8_t bytes[SIZE];

// Laid down byte by byte from the table in engine-notes §7.7.
static void setup(void)
{
    memset(bytes, 0, sizeof(bytes));
    bytes[4] = LEN;    // len
    bytes[8] = 0x11;   // group
    bytes[15] = 0x22;
    bytes[16] = 0x33;  // index
    bytes[24] = 0x44;  // term
    bytes[32] = RECORD_ENTRY;
    bytes[36] = 0x55;  // aux
    for (int i = 0; i < LEN; i++) {
        bytes[40 + i] = (uint8_t)(i + 1);
    }
    uint32_t crc = crc32c(0, bytes + 4, 36 + LEN);
    memcpy(bytes, &crc, 4);
}

START_TEST(the_checksum_is_crc32c)
{
    ck_assert_uint_eq(crc32c(0, "123456789", 9), 0xe3069283u);  // Check value of CRC-32C.
    uint8_t zeros[32] = {0};
    ck_assert_uint_eq(crc32c(0, zeros, 32), 0x8a9136aau);  // RFC 3720 §B.4.
}
END_TEST

START_TEST(fields_are_where_the_format_says)
{
    struct record_disk r;
    uint64_t size;
    ck_assert_int_eq(record_check(span_of(bytes, SIZE), &r, &size), RC_OK);
    ck_assert_uint_eq(size, SIZE);
    ck_assert_uint_eq(r.len, LEN);
    ck_assert_uint_eq(r.group, 0x2200000000000011u);
    ck_assert_uint_eq(r.index, 0x33);
    ck_assert_uint_eq(r.term, 0x44);
    ck_assert_uint_eq(r.kind, RECORD_ENTRY);
    ck_assert_uint_eq(r.flags, 0);
    ck_assert_uint_eq(r.aux, 0x55);
}
END_TEST

// As followers do: a large record is summed as it comes, and checked against that.
START_TEST(a_large_record_summed_as_it_came_is_refused_for_every_flipped_bit)
{
    for (uint32_t len = (1 << 20) + 77; len <= (1 << 20) + 84; len++) {  // Every length of padding.
        const size_t size = record_size(len);
        uint8_t *sent = calloc(1, size);
        struct record_disk d = {.len = len, .group = 1, .index = 2, .term = 3, .kind = RECORD_ENTRY}, r;
        for (uint32_t i = 0; i < len; i++) {
            sent[RECORD_HEADER_BYTES + i] = (uint8_t)(i * 31 >> 2);
        }
        memcpy(sent, &d, sizeof(d));
        d.crc = crc32c(0, sent + 4, RECORD_HEADER_BYTES - 4 + len);
        memcpy(sent, &d.crc, 4);
        static const size_t flips[] = {
            SIZE_MAX, 0, 1, 3, 8, 15, 16, 24, 34, 39, 40, 41, 5000, 1 << 19, (1 << 20) + 40 + 76};
        for (size_t k = 0; k < sizeof(flips) / sizeof(flips[0]); k++) {
            for (uint8_t bit = 1; bit != 0; bit = (uint8_t)(bit << (flips[k] < 48 ? 1 : 5))) {
                struct block *b = block_create(size);
                sent[flips[k] == SIZE_MAX ? 0 : flips[k]] ^= flips[k] == SIZE_MAX ? 0 : bit;
                uint32_t sum = 0;
                for (size_t at = 0; at < size; at += 256 << 10) {
                    const size_t n = size - at < 256 << 10 ? size - at : 256 << 10;
                    sum = crc32c_copy(sum, b->ptr + at, sent + at, n);
                }
                block_set_sum(b, 0, size, sum);
                uint64_t found;
                ck_assert_int_eq(record_check(span_of(b->ptr, size), &r, &found),
                                 flips[k] == SIZE_MAX ? RC_OK : RC_CORRUPT);
                ck_assert_uint_eq(found, size);
                sent[flips[k] == SIZE_MAX ? 0 : flips[k]] ^= flips[k] == SIZE_MAX ? 0 : bit;
                block_release(b);
            }
        }
        free(sent);
    }
}
END_TEST

START_TEST(sizes_are_multiples_of_eight)
{
    ck_assert_uint_eq(record_size(0), 40);
    ck_assert_uint_eq(record_size(1), 48);
    ck_assert_uint_eq(record_size(8), 48);
    ck_assert_uint_eq(record_size(9), 56);
    ck_assert_uint_eq(record_size(UINT32_MAX), 0x100000028u);  // Does not wrap.
}
END_TEST

START_TEST(every_prefix_asks_for_more)
{
    for (size_t n = 0; n < SIZE; n++) {
        // A copy of exactly n bytes, so that a sanitizer sees any read beyond.
        uint8_t *copy = malloc(n + 1);
        memcpy(copy, bytes, n);
        struct record_disk r;
        uint64_t size;
        uint8_t to[SIZE];
        ck_assert_int_eq(record_peek(span_of(copy, n), &r, &size), RC_MORE);
        ck_assert_int_eq(record_check(span_of(copy, n), &r, &size), RC_MORE);
        ck_assert_int_eq(record_copy_checked(to, span_of(copy, n), &size), RC_MORE);
        free(copy);
    }
}
END_TEST

START_TEST(every_flipped_bit_outside_the_padding_is_found)
{
    for (size_t at = 0; at < SIZE; at++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            bytes[at] ^= (uint8_t)(1u << bit);
            struct record_disk r;
            uint64_t size;
            uint8_t to[SIZE];
            enum rc rc = record_check(span_of(bytes, SIZE), &r, &size);
            enum rc rc_copy = record_copy_checked(to, span_of(bytes, SIZE), &size);
            ck_assert_int_eq(rc, rc_copy);
            if (at >= 40 + LEN) {
                ck_assert_int_eq(rc, RC_OK);
            } else {
                ck_assert(rc == RC_CORRUPT || rc == RC_MORE || rc == RC_MALFORMED);
            }
            bytes[at] ^= (uint8_t)(1u << bit);
        }
    }
}
END_TEST

START_TEST(a_zero_checksum_is_a_checksum_like_any_other)
{
    memset(bytes, 0, 4);
    struct record_disk r;
    uint64_t size;
    ck_assert_int_eq(record_check(span_of(bytes, SIZE), &r, &size), RC_CORRUPT);
}
END_TEST

START_TEST(senseless_headers_are_refused)
{
    struct record_disk r;
    uint64_t size;
    bytes[32] = 0;
    ck_assert_int_eq(record_peek(span_of(bytes, SIZE), &r, &size), RC_MALFORMED);
    bytes[32] = RECORD_REGION + 1;
    ck_assert_int_eq(record_peek(span_of(bytes, SIZE), &r, &size), RC_MALFORMED);
    bytes[32] = RECORD_REGION;
    ck_assert_int_eq(record_peek(span_of(bytes, SIZE), &r, &size), RC_OK);
    uint32_t len = RECORD_PAYLOAD_MAX;
    memcpy(bytes + 4, &len, 4);
    ck_assert_int_eq(record_peek(span_of(bytes, SIZE), &r, &size), RC_MORE);
    len++;
    memcpy(bytes + 4, &len, 4);
    ck_assert_int_eq(record_peek(span_of(bytes, SIZE), &r, &size), RC_MALFORMED);
}
END_TEST

START_TEST(a_copy_is_exact_with_padding_of_zeros)
{
    bytes[62] = 9;  // Whatever the sender left in the padding.
    uint8_t to[SIZE];
    memset(to, 0xee, sizeof(to));
    uint64_t size;
    ck_assert_int_eq(record_copy_checked(to, span_of(bytes, SIZE), &size), RC_OK);
    ck_assert_uint_eq(size, SIZE);
    ck_assert(memcmp(to, bytes, 40 + LEN) == 0);
    ck_assert_uint_eq(to[61] | to[62] | to[63], 0);
}
END_TEST

START_TEST(long_records_are_checked_over_their_whole_length)
{
    enum { LONG = 100003 };
    uint64_t size = record_size(LONG);
    uint8_t *from = calloc(1, size);
    uint8_t *to = malloc(size);
    struct record_disk r = {.len = LONG, .group = 1, .index = 1, .term = 1, .kind = RECORD_NOOP};
    memcpy(from, &r, sizeof(r));
    for (uint32_t i = 0; i < LONG; i++) {
        from[40 + i] = (uint8_t)(i * 31 >> 3);
    }
    r.crc = crc32c(0, from + 4, 36 + LONG);
    memcpy(from, &r.crc, 4);
    uint64_t found;
    ck_assert_int_eq(record_copy_checked(to, span_of(from, size), &found), RC_OK);
    ck_assert(memcmp(from, to, size) == 0);
    for (uint32_t at = 0; at < LONG; at += 997) {
        from[40 + at] ^= 1;
        ck_assert_int_eq(record_check(span_of(from, size), &r, &found), RC_CORRUPT);
        ck_assert_int_eq(record_copy_checked(to, span_of(from, size), &found), RC_CORRUPT);
        from[40 + at] ^= 1;
    }
    free(from);
    free(to);
}
END_TEST

START_TEST(kinds_with_an_index_are_entries_configs_and_noops)
{
    for (uint16_t kind = 0; kind < 20; kind++) {
        bool has = kind == RECORD_ENTRY || kind == RECORD_CONFIG || kind == RECORD_NOOP;
        ck_assert_int_eq(record_has_index(kind), has);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("record");
    TCase *t = tcase_create("record");
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_test(t, the_checksum_is_crc32c);
    tcase_add_test(t, fields_are_where_the_format_says);
    tcase_add_test(t, sizes_are_multiples_of_eight);
    tcase_add_test(t, a_large_record_summed_as_it_came_is_refused_for_every_flipped_bit);
    tcase_add_test(t, every_prefix_asks_for_more);
    tcase_add_test(t, every_flipped_bit_outside_the_padding_is_found);
    tcase_add_test(t, a_zero_checksum_is_a_checksum_like_any_other);
    tcase_add_test(t, senseless_headers_are_refused);
    tcase_add_test(t, a_copy_is_exact_with_padding_of_zeros);
    tcase_add_test(t, long_records_are_checked_over_their_whole_length);
    tcase_add_test(t, kinds_with_an_index_are_entries_configs_and_noops);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
