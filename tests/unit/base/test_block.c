// SPDX-License-Identifier: Apache-2.0
// Shared blocks: found by address, freed with the last owner, given back to the system while they are copied.
// links: node/base
#include "node/base/block.h"
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

int main(void)
{
    Suite *s = suite_create("block");
    TCase *t = tcase_create("block");
    tcase_add_test(t, a_large_span_finds_the_block_it_lies_in_until_the_last_owner_lets_go);
    tcase_add_test(t, a_buffer_becomes_a_block_without_a_copy);
    tcase_add_test(t, only_a_single_owner_may_let_its_bytes_be_destroyed);
    tcase_add_test(t, discarding_gives_back_whole_pages_and_nothing_beside_them);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
