// SPDX-License-Identifier: Apache-2.0
// Unpacking envelopes into an arena: no allocation in steady state, a bound, nothing kept of a large one.
// links: node/base proto gen
#include "node/base/buf.h"
#include "proto/cluster_log.pb-c.h"
#include "proto/pb_arena.h"
#include <check.h>
#include <stdlib.h>

static struct pb_arena arena;

static void setup(void)
{
    pb_arena_init(&arena);
}
static void teardown(void)
{
    pb_arena_deinit(&arena);
}

// An AckBatch of `n` items, packed as the host packs it: field 1, item by item.
static void pack(struct buf *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        Cluster__Ack a = CLUSTER__ACK__INIT;
        a.group = i + 1;
        const size_t size = cluster__ack__get_packed_size(&a);
        ck_assert_uint_lt(size, 128);
        buf_u8(to, 1 << 3 | 2);
        buf_u8(to, (uint8_t)size);
        cluster__ack__pack(&a, buf_extend(to, size));
    }
}

START_TEST(a_batch_unpacks_into_the_arena)
{
    struct buf b;
    buf_init(&b);
    pack(&b, 100);
    Cluster__AckBatch *m = cluster__ack_batch__unpack(&arena.allocator, b.len, b.ptr);
    ck_assert_ptr_nonnull(m);
    ck_assert_uint_eq(m->n_items, 100);
    ck_assert_uint_eq(m->items[99]->group, 100);
    buf_deinit(&b);
}
END_TEST

START_TEST(after_a_reset_the_same_chunk_is_used_again)
{
    struct buf b;
    buf_init(&b);
    pack(&b, 10);
    (void)cluster__ack_batch__unpack(&arena.allocator, b.len, b.ptr);
    struct pb_chunk *first = arena.chunks;
    for (int i = 0; i < 1000; i++) {
        pb_arena_reset(&arena);
        ck_assert_ptr_nonnull(cluster__ack_batch__unpack(&arena.allocator, b.len, b.ptr));
        ck_assert_ptr_eq(arena.chunks, first);
        ck_assert_uint_eq(arena.total, PB_ARENA_CHUNK);
    }
    buf_deinit(&b);
}
END_TEST

START_TEST(a_large_envelope_leaves_no_memory_behind)
{
    struct buf b;
    buf_init(&b);
    pack(&b, 20000);
    ck_assert_ptr_nonnull(cluster__ack_batch__unpack(&arena.allocator, b.len, b.ptr));
    ck_assert_uint_gt(arena.total, 10 * PB_ARENA_CHUNK);
    pb_arena_reset(&arena);
    ck_assert_uint_le(arena.total, PB_ARENA_CHUNK);
    buf_deinit(&b);
}
END_TEST

START_TEST(beyond_the_bound_unpacking_fails)
{
    // Empty items: two bytes each on the wire, a whole struct each in memory.
    struct buf b;
    buf_init(&b);
    for (uint32_t i = 0; i < (1u << 20); i++) {
        buf_u8(&b, 1 << 3 | 2);
        buf_u8(&b, 0);
    }
    ck_assert_ptr_null(cluster__ack_batch__unpack(&arena.allocator, b.len, b.ptr));
    ck_assert_uint_le(arena.total, PB_ARENA_MAX);
    buf_deinit(&b);
}
END_TEST

START_TEST(every_prefix_and_bit_flip_is_survived)
{
    struct buf b;
    buf_init(&b);
    pack(&b, 5);
    for (size_t n = 0; n <= b.len; n++) {
        pb_arena_reset(&arena);
        (void)cluster__ack_batch__unpack(&arena.allocator, n, b.ptr);
    }
    for (size_t bit = 0; bit < b.len * 8; bit++) {
        b.ptr[bit / 8] ^= (uint8_t)(1u << bit % 8);
        pb_arena_reset(&arena);
        (void)cluster__ack_batch__unpack(&arena.allocator, b.len, b.ptr);
        b.ptr[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    buf_deinit(&b);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pb_arena");
    TCase *t = tcase_create("pb_arena");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_batch_unpacks_into_the_arena);
    tcase_add_test(t, after_a_reset_the_same_chunk_is_used_again);
    tcase_add_test(t, a_large_envelope_leaves_no_memory_behind);
    tcase_add_test(t, beyond_the_bound_unpacking_fails);
    tcase_add_test(t, every_prefix_and_bit_flip_is_survived);
    suite_add_tcase(suite, t);
    SRunner *r = srunner_create(suite);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
