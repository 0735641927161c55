// SPDX-License-Identifier: Apache-2.0
// Slabs: blocks of one size lie side by side, are zeroed whatever was in them, and are used again.
// links: node/base
#include "node/base/slab.h"
#include <check.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 5000 };  // Several pages of any size.

static uint8_t *blocks[MANY];

static bool is_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] != 0) {
            return false;
        }
    }
    return true;
}

static void take_all(size_t bytes)
{
    for (int i = 0; i < MANY; i++) {
        blocks[i] = slab_zalloc(bytes);
        ck_assert(is_zero(blocks[i], bytes));
        ck_assert_uint_eq((uintptr_t)blocks[i] % 8, 0);
        memset(blocks[i], i & 0xff, bytes);
    }
}

static void check_all(size_t bytes)
{
    int damaged = 0;
    for (int i = 0; i < MANY; i++) {
        for (size_t k = 0; k < bytes; k++) {
            damaged += blocks[i][k] != (i & 0xff);
        }
    }
    ck_assert_int_eq(damaged, 0);
}

START_TEST(blocks_are_zeroed_and_do_not_overlap)
{
    static const size_t sizes[] = {1, 7, 8, 9, 88, 152, 280, SLAB_BYTES_MAX - 1, SLAB_BYTES_MAX, SLAB_BYTES_MAX + 1};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        take_all(sizes[s]);
        check_all(sizes[s]);
        for (int i = 0; i < MANY; i += 2) {
            slab_free(blocks[i], sizes[s]);
        }
        for (int i = 0; i < MANY; i += 2) {
            blocks[i] = slab_zalloc(sizes[s]);
            ck_assert(is_zero(blocks[i], sizes[s]));
            memset(blocks[i], i & 0xff, sizes[s]);
        }
        check_all(sizes[s]);
        for (int i = MANY; i > 0; i--) {
            slab_free(blocks[i - 1], sizes[s]);
        }
    }
    slab_free(NULL, 8);
}
END_TEST

#if !defined(__SANITIZE_ADDRESS__)
static int by_address(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t) * (uint8_t *const *)a, y = (uintptr_t) * (uint8_t *const *)b;
    return x < y ? -1 : x > y;
}

START_TEST(a_block_costs_its_size_rounded_up_to_eight_bytes)
{
    take_all(100);
    qsort(blocks, MANY, sizeof(blocks[0]), by_address);
    int apart = 0;
    for (int i = 1; i < MANY; i++) {
        apart += blocks[i] - blocks[i - 1] != 104;
    }
    ck_assert_int_le(apart, MANY * 104 / 65000 + 1);  // From one page to the next.
    for (int i = 0; i < MANY; i++) {
        slab_free(blocks[i], 100);
    }
}
END_TEST

START_TEST(what_was_given_back_is_used_again_before_a_new_page_is)
{
    take_all(200);
    uint8_t *was = blocks[MANY / 2];
    slab_free(was, 200);
    ck_assert_ptr_eq(slab_zalloc(200), was);
    for (int i = 0; i < MANY; i++) {
        slab_free(blocks[i], 200);
    }
}
END_TEST
#endif

static void *free_half(void *arg)
{
    (void)arg;
    for (int i = 0; i < MANY / 2; i++) {
        slab_free(blocks[i], 64);
        void *other = slab_zalloc(64);
        slab_free(other, 64);
    }
    return NULL;
}

START_TEST(another_thread_may_free_a_block)
{
    take_all(64);
    pthread_t t;
    ck_assert_int_eq(pthread_create(&t, NULL, free_half, NULL), 0);
    for (int i = MANY / 2; i < MANY; i++) {
        slab_free(blocks[i], 64);
    }
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    take_all(64);
    check_all(64);
    for (int i = 0; i < MANY; i++) {
        slab_free(blocks[i], 64);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("slab");
    TCase *t = tcase_create("slab");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, blocks_are_zeroed_and_do_not_overlap);
#if !defined(__SANITIZE_ADDRESS__)
    tcase_add_test(t, a_block_costs_its_size_rounded_up_to_eight_bytes);
    tcase_add_test(t, what_was_given_back_is_used_again_before_a_new_page_is);
#endif
    tcase_add_test(t, another_thread_may_free_a_block);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
