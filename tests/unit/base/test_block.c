// SPDX-License-Identifier: Apache-2.0
// Shared blocks: found by address, freed with the last owner, given back to the system while they are copied.
// links: node/base
#include "node/base/block.h"
#include "node/base/crc32c.h"
#include <check.h>
#include <stdlib.h>
#include <sys/mman.h>

START_TEST(a_large_span_finds_the_block_it_lies_in_until_the_last_owner_lets_go)
{
    struct block *a = block_create(BLOCK_BYTES_MIN + 100), *b = block_create(BLOCK_BYTES_MIN);
    ck_assert_ptr_eq(block_of(span_of(a->ptr + 100, BLOCK_BYTES_MIN)), a);
    ck_assert_ptr_eq(block_of(span_of(b->ptr, BLOCK_BYTES_MIN)), b);
    ck_assert_ptr_null(block_of(span_of(a->ptr, BLOCK_BYTES_MIN - 1)));  // Not worth it.
    const uint8_t *at = a->ptr;
    ck_assert_ptr_eq(block_hold(a), a);
    block_release(a);
    ck_assert_ptr_eq(block_find(at), a);
    block_release(a);
    ck_assert_ptr_null(block_find(at));
    ck_assert_ptr_eq(block_find(b->ptr), b);
    block_release(b);
    block_release(NULL);
}
END_TEST

START_TEST(a_buffer_becomes_a_block_without_a_copy)
{
    struct buf buf = {0};
    memset(buf_extend(&buf, BLOCK_BYTES_MIN), 7, BLOCK_BYTES_MIN);
    const uint8_t *ptr = buf.ptr;
    struct block *b = block_adopt(&buf);
    ck_assert_ptr_eq(b->ptr, ptr);
    ck_assert_ptr_null(buf.ptr);
    ck_assert_uint_eq(b->ptr[BLOCK_BYTES_MIN - 1], 7);
    block_release(b);
}
END_TEST

START_TEST(only_a_single_owner_may_let_its_bytes_be_destroyed)
{
    struct block *b = block_create(BLOCK_BYTES_MIN);
    struct span s = span_of(b->ptr, BLOCK_BYTES_MIN);
    ck_assert(!block_is_disposable(s));
    b->is_disposable = true;
    ck_assert(block_is_disposable(s));
    block_hold(b);
    ck_assert(!block_is_disposable(s));
    block_release(b);
    block_release(b);
}
END_TEST

START_TEST(discarding_gives_back_whole_pages_and_nothing_beside_them)
{
    const size_t page = 4096, bytes = 64 * page;
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(p, MAP_FAILED);
    memset(p, 1, bytes);
    block_discard(span_of(p + 10, 62 * page));
    ck_assert_uint_eq(p[page - 1], 1);       // The page in which it begins.
    ck_assert_uint_eq(p[62 * page], 1);      // The page in which it ends.
    unsigned char resident[64];
    ck_assert_int_eq(mincore(p, bytes, resident), 0);
    ck_assert_uint_eq(resident[0] & 1, 1);
    ck_assert_uint_eq(resident[1] & 1, 0);
    ck_assert_uint_eq(resident[61] & 1, 0);
    block_discard(span_of(p + 10, 100));     // Not a page.
    ck_assert_uint_eq(p[0], 1);
    munmap(p, bytes);
}
END_TEST

START_TEST(the_sum_of_what_came_is_known_for_every_end_of_it_and_for_nothing_else)
{
    const size_t len = (1 << 20) + 3000, from = 100, end = from + len - 500;
    struct block *b = block_create(len);
    for (size_t i = 0; i < len; i++) {
        b->ptr[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    uint32_t sum;
    ck_assert(!block_sum(span_of(b->ptr + from, end - from), &sum));  // Nothing is known yet.
    block_set_sum(b, from, end, crc32c(0, b->ptr + from, end - from));
    for (size_t at = from; at < from + 2000; at += at < from + 70 ? 1 : 271) {
        ck_assert(block_sum(span_of(b->ptr + at, end - at), &sum));
        ck_assert_uint_eq(sum, crc32c(0, b->ptr + at, end - at));
    }
    ck_assert(!block_sum(span_of(b->ptr + from, end - from - 1), &sum));
    ck_assert(!block_sum(span_of(b->ptr + from, end - from + 1), &sum));
    ck_assert(!block_sum(span_of(b->ptr + from - 1, end - from + 1), &sum));
    memset(b->ptr, 'h', from);
    block_sum_extend(b, 40);
    ck_assert(block_sum(span_of(b->ptr + 40, end - 40), &sum));
    ck_assert_uint_eq(sum, crc32c(0, b->ptr + 40, end - 40));
    ck_assert(!block_sum(span_of(b->ptr + 39, end - 39), &sum));
    block_release(b);
}
END_TEST

START_TEST(room_around_a_span_is_there_only_if_its_single_owner_gives_it)
{
    struct block *b = block_create(BLOCK_BYTES_MIN + 100);
    const struct span s = span_of(b->ptr + 60, BLOCK_BYTES_MIN);
    b->is_disposable = true;
    ck_assert(!block_has_room(s, 1, 0));
    b->has_room = true;
    ck_assert(block_has_room(s, 60, 40));
    ck_assert(!block_has_room(s, 61, 0));
    ck_assert(!block_has_room(s, 0, 41));
    block_hold(b);
    ck_assert(!block_has_room(s, 0, 0));
    block_release(b);
    b->is_disposable = false;
    ck_assert(!block_has_room(s, 0, 0));
    block_release(b);
}
END_TEST

START_TEST(a_thread_that_sweeps_frees_large_blocks_by_and_by)
{
    ck_assert(!block_sweep(1 << 20));
    struct block *b = block_create(5 << 20), *other = block_create(3 << 20);
    uint8_t *at = (uint8_t *)(((uintptr_t)b->ptr + 4095) & ~(uintptr_t)4095);
    memset(b->ptr, 1, b->cap);
    memset(other->ptr, 1, other->cap);
    block_release(b);
    ck_assert_ptr_null(block_find(at));  // Nobody finds it any more.
    unsigned char resident[2];
    ck_assert(block_sweep(1 << 20));
    ck_assert_int_eq(mincore(at, 4096, resident), 0);
    ck_assert_uint_eq(resident[0] & 1, 0);
    ck_assert_int_eq(mincore(at + (2 << 20), 4096, resident), 0);
    ck_assert_uint_eq(resident[0] & 1, 1);  // Its turn comes.
    block_release(other);
    int turns = 0;
    while (block_sweep(1 << 20)) {
        turns++;
    }
    ck_assert_int_ge(turns, 5);
    ck_assert_int_le(turns, 8);
    b = block_create(5 << 20);
    block_release(b);
    ck_assert(!block_sweep(SIZE_MAX));
    block_release(block_create(5 << 20));  // From here on at once.
    ck_assert(!block_sweep(SIZE_MAX));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("block");
    TCase *t = tcase_create("block");
    tcase_add_test(t, a_large_span_finds_the_block_it_lies_in_until_the_last_owner_lets_go);
    tcase_add_test(t, a_buffer_becomes_a_block_without_a_copy);
    tcase_add_test(t, only_a_single_owner_may_let_its_bytes_be_destroyed);
    tcase_add_test(t, discarding_gives_back_whole_pages_and_nothing_beside_them);
    tcase_add_test(t, the_sum_of_what_came_is_known_for_every_end_of_it_and_for_nothing_else);
    tcase_add_test(t, room_around_a_span_is_there_only_if_its_single_owner_gives_it);
    tcase_add_test(t, a_thread_that_sweeps_frees_large_blocks_by_and_by);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
