// SPDX-License-Identifier: Apache-2.0
// Maps, lists, rings.
// links: node/base
#include "node/base/env.h"
#include "node/base/list.h"
#include "node/base/map.h"
#include "node/base/ring.h"
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *number(uintptr_t n)
{
    return (void *)n;
}

START_TEST(iteration_is_the_order_of_insertion_whatever_was_removed)
{
    struct map m;
    map_init_u64(&m);
    for (uint64_t i = 1; i <= 1000; i++) {
        map_put(&m, i * 7919, number(i));
    }
    for (uint64_t i = 1; i <= 1000; i += 3) {
        ck_assert_ptr_eq(map_remove(&m, i * 7919), number(i));
    }
    for (uint64_t i = 2000; i <= 3000; i++) {
        map_put(&m, i, number(i));
    }
    uint32_t pos = 0;
    uintptr_t last = 0, count = 0;
    for (void *v; (v = map_next(&m, &pos, NULL, NULL));) {
        ck_assert_uint_gt((uintptr_t)v, last);
        last = (uintptr_t)v;
        count++;
    }
    ck_assert_uint_eq(count, map_count(&m));
    map_deinit(&m);
}
END_TEST

START_TEST(a_map_agrees_with_an_array_under_random_use)
{
    enum { KEYS = 300 };
    uintptr_t model[KEYS] = {0};
    struct map m, b;
    map_init_u64(&m);
    map_init_bytes(&b);
    struct rng rng;
    rng_seed(&rng, 5);
    for (uintptr_t step = 1; step < 50000; step++) {
        uint64_t k = rng_below(&rng, KEYS);
        char text[32];
        struct span key = span_of(text, (size_t)snprintf(text, sizeof(text), "key-%llu", (unsigned long long)k));
        if (rng_below(&rng, 3) > 0) {
            model[k] = step;
            map_put(&m, k, number(step));
            map_put_bytes(&b, key, number(step));
        } else {
            ck_assert_ptr_eq(map_remove(&m, k), number(model[k]));
            ck_assert_ptr_eq(map_remove_bytes(&b, key), number(model[k]));
            model[k] = 0;
        }
        uint64_t look = rng_below(&rng, KEYS);
        ck_assert_ptr_eq(map_get(&m, look), number(model[look]));
    }
    uint32_t count = 0;
    for (int k = 0; k < KEYS; k++) {
        count += model[k] != 0;
    }
    ck_assert_uint_eq(map_count(&m), count);
    ck_assert_uint_eq(map_count(&b), count);
    map_deinit(&m);
    map_deinit(&b);
}
END_TEST

START_TEST(a_borrowing_map_has_the_keys_of_its_values)
{
    struct named {
        char name[16];
    } items[500], twin = {.name = "name-7"};
    struct map m;
    map_init_borrowed(&m);
    for (uint32_t i = 0; i < 500; i++) {
        snprintf(items[i].name, sizeof(items[i].name), "name-%u", i);
        map_put_bytes(&m, span_str(items[i].name), &items[i]);
    }
    for (uint32_t i = 0; i < 500; i += 2) {
        ck_assert_ptr_eq(map_remove_bytes(&m, span_str(items[i].name)), &items[i]);
        memset(items[i].name, 0, sizeof(items[i].name));  // No longer the map's.
    }
    map_put_bytes(&m, span_str(twin.name), &twin);  // Replaces the value, so its key, too.
    memset(items[7].name, 0, sizeof(items[7].name));
    ck_assert_uint_eq(map_count(&m), 250);
    for (uint32_t i = 1; i < 500; i += 2) {
        ck_assert_ptr_eq(map_get_bytes(&m, span_str(i == 7 ? twin.name : items[i].name)), i == 7 ? &twin : &items[i]);
    }
    uint32_t pos = 0;
    struct span key;
    for (struct named *v; (v = map_next(&m, &pos, NULL, &key));) {
        ck_assert_ptr_eq(key.ptr, v->name);
    }
    map_deinit(&m);
}
END_TEST

START_TEST(entries_may_be_removed_while_iterating)
{
    struct map m;
    map_init_u64(&m);
    for (uint64_t i = 1; i <= 100; i++) {
        map_put(&m, i, number(i));
    }
    uint32_t pos = 0, seen = 0;
    uint64_t key;
    while (map_next(&m, &pos, &key, NULL)) {
        map_remove(&m, key);
        seen++;
    }
    ck_assert_uint_eq(seen, 100);
    ck_assert_uint_eq(map_count(&m), 0);
    map_deinit(&m);
}
END_TEST

struct item {
    struct list link;
    int n;
};

START_TEST(a_list_keeps_order_and_survives_removal_while_walking)
{
    struct list l, other;
    struct item items[5];
    list_init(&l);
    list_init(&other);
    for (int i = 0; i < 5; i++) {
        items[i].n = i;
        list_add_tail(&l, &items[i].link);
    }
    list_each(at, &l) {
        struct item *it = list_entry(at, struct item, link);
        if (it->n % 2) {
            list_remove(at);
            list_add_tail(&other, at);
        }
    }
    list_splice(&l, &other);
    int order[] = {0, 2, 4, 1, 3};
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(list_entry(list_pop(&l), struct item, link)->n, order[i]);
    }
    ck_assert_ptr_null(list_pop(&l));
    ck_assert(list_is_empty(&other));
}
END_TEST

enum { RING_ITEMS = 200000 };

static void *produce(void *arg)
{
    struct ring *r = arg;
    for (uintptr_t i = 1; i <= RING_ITEMS;) {
        if (ring_push(r, number(i))) {
            i++;
        }
    }
    return NULL;
}

START_TEST(a_ring_passes_everything_in_order_between_threads)
{
    struct ring r;
    ring_init(&r, 64);
    pthread_t t;
    ck_assert_int_eq(pthread_create(&t, NULL, produce, &r), 0);
    for (uintptr_t want = 1; want <= RING_ITEMS;) {
        void *v = ring_pop(&r);
        if (v) {
            ck_assert_uint_eq((uintptr_t)v, want);
            want++;
        }
    }
    pthread_join(t, NULL);
    ck_assert_ptr_null(ring_pop(&r));
    ring_deinit(&r);
}
END_TEST

START_TEST(a_full_ring_refuses_and_loses_nothing)
{
    struct ring r;
    ring_init(&r, 4);
    for (uintptr_t i = 1; i <= 4; i++) {
        ck_assert(ring_push(&r, number(i)));
    }
    ck_assert(!ring_push(&r, number(5)));
    ck_assert_uint_eq(ring_count(&r), 4);
    ck_assert_ptr_eq(ring_pop(&r), number(1));
    ck_assert(ring_push(&r, number(5)));
    for (uintptr_t i = 2; i <= 5; i++) {
        ck_assert_ptr_eq(ring_pop(&r), number(i));
    }
    ring_deinit(&r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("map");
    TCase *t = tcase_create("map");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, iteration_is_the_order_of_insertion_whatever_was_removed);
    tcase_add_test(t, a_map_agrees_with_an_array_under_random_use);
    tcase_add_test(t, a_borrowing_map_has_the_keys_of_its_values);
    tcase_add_test(t, entries_may_be_removed_while_iterating);
    tcase_add_test(t, a_list_keeps_order_and_survives_removal_while_walking);
    tcase_add_test(t, a_ring_passes_everything_in_order_between_threads);
    tcase_add_test(t, a_full_ring_refuses_and_loses_nothing);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
