// SPDX-License-Identifier: Apache-2.0
// links: proto/amqp09 node/base
// Field tables (data-plane §1.8): every letter, hostile bytes, comparing, rewriting.
#include "proto/amqp09/table.h"
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// ---- helpers ------------------------------------------------------------------------------------

// One entry "k" of each letter, written by hand from the specification.
static const uint8_t every_letter[] =
    {
        1,    'a',  't',  1,    1,    'b',  'b',  0x80,               // -128
        1,    'c',  'B',  0xFF,                                       // 255
        1,    'd',  's',  0x80, 0x00,                                 // -32768
        1,    'e',  'u',  0xFF, 0xFF,                                 // 65535
        1,    'f',  'I',  0x80, 0,    0,    0,                        // -2147483648
        1,    'g',  'i',  0xFF, 0xFF, 0xFF, 0xFF,                     // 4294967295
        1,    'h',  'l',  0x80, 0,    0,    0,    0,    0,   0,   0,  // INT64_MIN
        1,    'i',  'L',  0,    0,    0,    0,    0,    0,   0,   7,  // alias of l
        1,    'j',  'f',  0x7F, 0x80, 0,    0,                        // +inf
        1,    'k',  'd',  0x80, 0,    0,    0,    0,    0,   0,   0,  // -0.0
        1,    'l',  'D',  255,  0xFF, 0xFF, 0xFF, 0xFF, 1,   'm', 'S', 0,   0,   0,    3,
        'a',  0,    0xFF,  // Not validated as UTF-8.
        1,    'n',  'A',  0,    0,    0,    3,    't',  0,   'V', 1,   'o', 'T', 0xFF, 0xFF,
        0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1,    'p',  'F', 0,   0,   0,   4,   1,    'x',
        'b',  5,    1,    'q',  'V',  1,    'r',  'x',  0,   0,   0,   2,   1,   2,
};

static struct table_value found(struct span table, const char *key)
{
    struct table_value v;
    ck_assert_msg(table_find(table, key, &v), "key %s", key);
    return v;
}

static struct span all(void)
{
    return span_of(every_letter, sizeof(every_letter));
}

static struct table_value integer(enum table_type type, int64_t i)
{
    return (struct table_value){.type = type, .i = i};
}

static struct table_value text(enum table_type type, const char *s)
{
    return (struct table_value){.type = type, .bytes = span_str(s)};
}

// A table of `depth` tables within each other, by hand from the inside.
static void nest(struct buf *b, uint32_t depth)
{
    struct buf inner;
    buf_init(b);
    for (uint32_t i = 1; i < depth; i++) {
        buf_init(&inner);
        buf_bytes(&inner,
                  "\1t"
                  "F",
                  3);
        buf_str32be(&inner, buf_span(b));
        buf_deinit(b);
        *b = inner;
    }
}

// ---- tests --------------------------------------------------------------------------------------

START_TEST(every_letter_reads_as_the_specification_says)
{
    struct span t = all();
    ck_assert_int_eq(table_check(t), RC_OK);
    ck_assert_uint_eq(table_count(t), 18);
    ck_assert(found(t, "a").b);
    ck_assert_int_eq(found(t, "b").i, -128);
    ck_assert_uint_eq(found(t, "c").u, 255);
    ck_assert_int_eq(found(t, "d").i, -32768);
    ck_assert_uint_eq(found(t, "e").u, 65535);
    ck_assert_int_eq(found(t, "f").i, INT32_MIN);
    ck_assert_uint_eq(found(t, "g").u, UINT32_MAX);
    ck_assert_int_eq(found(t, "h").i, INT64_MIN);
    ck_assert_int_eq(found(t, "i").i, 7);
    ck_assert_int_eq(found(t, "i").type, TABLE_I64);
    ck_assert(isinf(found(t, "j").f32));
    ck_assert(signbit(found(t, "k").f64));
    ck_assert_uint_eq(found(t, "l").decimal.scale, 255);
    ck_assert_uint_eq(found(t, "l").decimal.digits, UINT32_MAX);
    ck_assert_uint_eq(found(t, "m").bytes.len, 3);
    ck_assert_uint_eq(found(t, "o").u, UINT64_MAX);
    ck_assert_int_eq(found(found(t, "p").bytes, "x").i, 5);
    ck_assert_int_eq(found(t, "q").type, TABLE_VOID);
    ck_assert_uint_eq(found(t, "r").bytes.len, 2);
}
END_TEST

START_TEST(writing_what_was_read_gives_the_same_bytes_but_for_the_alias)
{
    struct buf b;
    buf_init(&b);
    struct table_reader t = table_reader_of(all());
    struct span key;
    struct table_value v;
    while (table_next(&t, &key, &v)) {
        table_put(&b, key, &v);
    }
    uint8_t expected[sizeof(every_letter)];
    memcpy(expected, every_letter, sizeof(expected));
    for (size_t i = 0; i + 2 < sizeof(expected); i++) {
        if (expected[i] == 1 && expected[i + 1] == 'i' && expected[i + 2] == 'L') {
            expected[i + 2] = 'l';
        }
    }
    ck_assert_uint_eq(b.len, sizeof(expected));
    ck_assert_mem_eq(b.ptr, expected, sizeof(expected));
    buf_deinit(&b);
}
END_TEST

START_TEST(a_nan_keeps_its_bits)
{
    static const uint8_t bytes[] = {1, 'n', 'd', 0x7F, 0xF0, 0, 0, 0, 0, 0, 1, 1, 'm', 'f', 0xFF, 0x80, 0, 1};
    struct buf b;
    buf_init(&b);
    struct table_reader t = table_reader_of(span_of(bytes, sizeof(bytes)));
    struct span key;
    struct table_value v;
    while (table_next(&t, &key, &v)) {
        table_put(&b, key, &v);
    }
    ck_assert_uint_eq(b.len, sizeof(bytes));
    ck_assert_mem_eq(b.ptr, bytes, sizeof(bytes));
    buf_deinit(&b);
}
END_TEST

START_TEST(prefixes_are_malformed_except_between_entries)
{
    for (size_t n = 0; n < sizeof(every_letter); n++) {
        uint8_t *exact = malloc(n + 1);  // So that the address sanitiser sees any overrun.
        memcpy(exact, every_letter, n);
        enum rc rc = table_check(span_of(exact, n));
        // Between entries: the reader has used all bytes and the next would start.
        struct table_reader t = table_reader_of(all());
        struct table_value v;
        bool is_border = n == 0;
        while (table_next(&t, NULL, &v)) {
            is_border |= t.r.pos == n;
        }
        ck_assert_int_eq(rc, is_border ? RC_OK : RC_MALFORMED);
        free(exact);
    }
}
END_TEST

START_TEST(flipped_bits_are_read_without_harm)
{
    for (size_t bit = 0; bit < sizeof(every_letter) * 8; bit++) {
        uint8_t *exact = malloc(sizeof(every_letter));
        memcpy(exact, every_letter, sizeof(every_letter));
        exact[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct span t = span_of(exact, sizeof(every_letter));
        enum rc rc = table_check(t);
        ck_assert(rc == RC_OK || rc == RC_MALFORMED);
        struct table_value v;
        struct buf b;
        buf_init(&b);
        (void)table_find(t, "zz", &v);
        table_put_sorted(&b, t, NULL, 0);
        if (rc == RC_OK) {
            ck_assert_int_eq(table_check(buf_span(&b)), RC_OK);
        }
        buf_deinit(&b);
        free(exact);
    }
}
END_TEST

START_TEST(unknown_letters_are_malformed)
{
    const char *known = "tbBsuIilLfdDSxATFV";
    for (int letter = 0; letter < 256; letter++) {
        uint8_t bytes[] = {1, 'k', (uint8_t)letter, 0, 0, 0, 0, 0, 0, 0, 0};
        bool is_known = letter != 0 && strchr(known, letter) != NULL;
        struct table_reader t = table_reader_of(span_of(bytes, sizeof(bytes)));
        struct table_value v;
        ck_assert_msg(table_next(&t, NULL, &v) == is_known, "letter %d", letter);
    }
}
END_TEST

START_TEST(nesting_is_accepted_up_to_its_limit)
{
    struct buf b;
    nest(&b, TABLE_DEPTH_MAX);
    ck_assert_int_eq(table_check(buf_span(&b)), RC_OK);
    buf_deinit(&b);
    nest(&b, TABLE_DEPTH_MAX + 1);
    ck_assert_int_eq(table_check(buf_span(&b)), RC_MALFORMED);
    buf_deinit(&b);
}
END_TEST

START_TEST(looking_up_takes_the_first_of_equal_keys)
{
    struct buf b;
    buf_init(&b);
    table_put_text(&b, "k", "first");
    table_put_text(&b, "k", "second");
    struct span s;
    ck_assert(table_find_string(buf_span(&b), "k", &s));
    ck_assert(span_equal(s, span_str("first")));
    ck_assert(!table_find_string(buf_span(&b), "K", &s));
    bool is_set;
    ck_assert(!table_find_bool(buf_span(&b), "k", &is_set));
    buf_deinit(&b);
}
END_TEST

START_TEST(integers_of_any_width_are_equivalent_by_value)
{
    struct table_value byte = integer(TABLE_I8, 5), wide = integer(TABLE_I64, 5),
                       u32 = {.type = TABLE_U32, .u = 5};
    struct table_value other = integer(TABLE_I64, 6), number = {.type = TABLE_F64, .f64 = 5.0};
    ck_assert(table_value_equivalent(&byte, &wide));
    ck_assert(table_value_equivalent(&wide, &u32));
    ck_assert(!table_value_equivalent(&byte, &other));
    ck_assert(!table_value_equivalent(&byte, &number));
    struct table_value single = {.type = TABLE_F32, .f32 = 5.0f};
    ck_assert(table_value_equivalent(&single, &number));
    struct table_value seconds = {.type = TABLE_TIMESTAMP, .u = 5};
    ck_assert(!table_value_equivalent(&seconds, &wide));
}
END_TEST

START_TEST(a_string_equals_a_binary_only_in_headers_exchanges)
{
    struct table_value s = text(TABLE_STRING, "v"), x = text(TABLE_BINARY, "v"), w = text(TABLE_BINARY, "w");
    ck_assert(!table_value_equivalent(&s, &x));
    ck_assert(table_value_matches(&s, &x));
    ck_assert(!table_value_matches(&s, &w));
    struct table_value yes = {.type = TABLE_BOOL, .b = true}, yes_text = text(TABLE_STRING, "true");
    ck_assert(!table_value_matches(&yes, &yes_text));
}
END_TEST

START_TEST(tables_and_arrays_compare_entry_by_entry)
{
    struct buf a, b;
    buf_init(&a);
    buf_init(&b);
    table_put_i32(&a, "n", 1);
    table_put_text(&a, "s", "t");
    table_put_i64(&b, "n", 1);
    table_put_text(&b, "s", "t");
    struct table_value va = {.type = TABLE_TABLE, .bytes = buf_span(&a)};
    struct table_value vb = {.type = TABLE_TABLE, .bytes = buf_span(&b)};
    ck_assert(table_value_equivalent(&va, &vb));
    table_put_bool(&b, "more", true);
    vb.bytes = buf_span(&b);
    ck_assert(!table_value_equivalent(&va, &vb));
    struct table_value array = {.type = TABLE_ARRAY, .bytes = {0}};
    ck_assert(!table_value_equivalent(&va, &array));
    buf_deinit(&a);
    buf_deinit(&b);
}
END_TEST

START_TEST(sorting_orders_keys_drops_repeats_and_leaves_out)
{
    struct buf b, sorted;
    buf_init(&b);
    buf_init(&sorted);
    table_put_text(&b, "b", "1");
    table_put_text(&b, "BCC", "hidden");
    table_put_text(&b, "a", "2");
    table_put_text(&b, "b", "3");
    const char *const without[] = {"BCC"};
    table_put_sorted(&sorted, buf_span(&b), without, 1);
    struct buf expected;
    buf_init(&expected);
    table_put_text(&expected, "a", "2");
    table_put_text(&expected, "b", "1");
    ck_assert(span_equal(buf_span(&sorted), buf_span(&expected)));
    buf_deinit(&b);
    buf_deinit(&sorted);
    buf_deinit(&expected);
}
END_TEST

START_TEST(sorting_takes_tables_of_any_size)
{
    struct buf b, sorted;
    buf_init(&b);
    buf_init(&sorted);
    char key[16];
    for (int i = 999; i >= 0; i--) {
        snprintf(key, sizeof(key), "%04d", i);
        table_put_i32(&b, key, i);
    }
    table_put_sorted(&sorted, buf_span(&b), NULL, 0);
    struct table_reader t = table_reader_of(buf_span(&sorted));
    struct table_value v;
    for (int i = 0; i < 1000; i++) {
        ck_assert(table_next(&t, NULL, &v));
        ck_assert_int_eq(v.i, i);
    }
    buf_deinit(&b);
    buf_deinit(&sorted);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("table");
    tcase_add_test(t, every_letter_reads_as_the_specification_says);
    tcase_add_test(t, writing_what_was_read_gives_the_same_bytes_but_for_the_alias);
    tcase_add_test(t, a_nan_keeps_its_bits);
    tcase_add_test(t, prefixes_are_malformed_except_between_entries);
    tcase_add_test(t, flipped_bits_are_read_without_harm);
    tcase_add_test(t, unknown_letters_are_malformed);
    tcase_add_test(t, nesting_is_accepted_up_to_its_limit);
    tcase_add_test(t, looking_up_takes_the_first_of_equal_keys);
    tcase_add_test(t, integers_of_any_width_are_equivalent_by_value);
    tcase_add_test(t, a_string_equals_a_binary_only_in_headers_exchanges);
    tcase_add_test(t, tables_and_arrays_compare_entry_by_entry);
    tcase_add_test(t, sorting_orders_keys_drops_repeats_and_leaves_out);
    tcase_add_test(t, sorting_takes_tables_of_any_size);
    Suite *s = suite_create("amqp09_table");
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
