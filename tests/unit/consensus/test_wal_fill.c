// SPDX-License-Identifier: Apache-2.0
// Zeros ahead of the log: what is filled when, and what happens where it cannot be.
// links: node/base proto consensus/wal tests/sim
#include "tests/unit/consensus/wal_fixture.h"

static struct fixture fx;
static struct disk_file *filled;  // By the last call.
static uint32_t calls;
static uint32_t slices_left;      // Calls until a file has nothing left.
static enum rc answer;
static uint32_t syncs;
static enum rc (*real_sync)(struct disk_file *f);

static enum rc sync_test(struct disk_file *f)
{
    syncs++;
    return real_sync(f);
}

static enum rc fill_test(struct disk_file *f, uint64_t from, uint64_t to, uint64_t bytes, uint64_t *next)
{
    filled = f;
    calls++;
    if (fx.wal->file == f) {
        ck_assert_uint_ge(from, fx.wal->offset);  // Never where a batch lies, whatever the file system says of holes.
        ck_assert_uint_eq(to, fx.wal->limit);
    }
    ck_assert_uint_eq(bytes, WAL_FILL_BYTES);
    *next = --slices_left == 0 ? UINT64_MAX : from + bytes;
    return answer;
}

static void setup(void)
{
    fixture_init(&fx, 1 << 20, 8);
    fx.config.reserve_files = 1;
    fx.config.disk->fill = fill_test;
    real_sync = fx.config.disk->sync;
    fx.config.disk->sync = sync_test;
    answer = RC_OK;
    filled = NULL;
    calls = 0;
    slices_left = 1000;
    open_wal(&fx);
    ck_assert(wal_top_up(fx.wal));
    syncs = 0;
}
static void teardown(void)
{
    fixture_deinit(&fx);
}

static bool fill(bool is_idle)
{
    bool more;
    ck_assert_int_eq(wal_fill(fx.wal, is_idle, &more), RC_OK);
    return more;
}

START_TEST(an_idle_log_fills_its_current_file_first_and_then_the_free_one)
{
    slices_left = 2;
    ck_assert(fill(true));
    ck_assert_ptr_eq(filled, fx.wal->file);
    ck_assert(fill(true));
    ck_assert_ptr_eq(filled, fx.wal->file);
    slices_left = 2;
    ck_assert(fill(true));
    ck_assert_ptr_ne(filled, fx.wal->file);
    ck_assert(!fill(true));
    ck_assert_uint_eq(calls, 4);
    ck_assert(!fill(true));
    ck_assert_uint_eq(calls, 4);
    ck_assert_uint_eq(syncs, 2);  // Each slice, but not the answers that nothing is left.
}
END_TEST

START_TEST(beside_a_load_only_the_free_file_is_filled_whose_zeros_no_batch_has_to_sync)
{
    slices_left = 3;
    for (int i = 0; i < 10; i++) {
        ck_assert(fill(false));  // The current file is left.
        ck_assert_ptr_ne(filled, fx.wal->file);
    }
    ck_assert_uint_eq(calls, 3);
    ck_assert_uint_eq(syncs, 0);
}
END_TEST

START_TEST(each_file_that_comes_next_is_looked_at_and_each_that_is_begun)
{
    slices_left = 1;
    ck_assert(fill(true));
    slices_left = 1;
    ck_assert(!fill(true));
    write_one(&fx, 1, 1, 600 << 10);
    write_one(&fx, 1, 2, 600 << 10);  // Begins the free one.
    ck_assert(wal_top_up(fx.wal));
    slices_left = 1;
    ck_assert(fill(true));
    ck_assert_ptr_eq(filled, fx.wal->file);
    slices_left = 1;
    ck_assert(!fill(true));
    ck_assert_ptr_ne(filled, fx.wal->file);
    wal_retire(fx.wal, fx.closed[0]);  // Into the pool.
    slices_left = 1;
    ck_assert(!fill(true));
    ck_assert_uint_eq(calls, 5);
}
END_TEST

START_TEST(a_file_made_for_one_large_record_is_not_filled_for_it_is_not_used_again)
{
    write_one(&fx, 1, 1, 3 << 20);
    ck_assert_uint_gt(fx.wal->file_bytes, fx.config.file_bytes);
    slices_left = 1;
    ck_assert(!fill(true));
    ck_assert_ptr_ne(filled, fx.wal->file);
    ck_assert_uint_eq(calls, 1);  // The free one.
}
END_TEST

START_TEST(while_the_store_is_short_of_room_nothing_is_filled)
{
    wal_set_frugal(fx.wal, true);
    ck_assert(!fill(true));
    ck_assert(!fill(false));
    ck_assert_uint_eq(calls, 0);
    wal_set_frugal(fx.wal, false);
    ck_assert(fill(true));
    ck_assert_uint_eq(calls, 1);
}
END_TEST

START_TEST(a_file_that_cannot_be_filled_is_given_up_and_nothing_has_failed)
{
    answer = RC_NO_SPACE;
    ck_assert(fill(true));
    ck_assert(!fill(true));
    ck_assert(!fill(true));
    ck_assert_uint_eq(calls, 2);
    write_one(&fx, 1, 1, 100);
    close_wal(&fx);
    open_wal(&fx);
    ck_assert_uint_eq(fx.seen_count, 1);
}
END_TEST

START_TEST(a_free_file_that_is_gone_is_given_up)
{
    char path[WAL_PATH_MAX];
    wal_free_path(fx.wal, fx.wal->pool[0], path);
    ck_assert_int_eq(fx.config.disk->unlink(fx.config.disk, path), RC_OK);
    ck_assert(fill(false));
    ck_assert_uint_eq(calls, 0);
    ck_assert_uint_eq(fx.wal->fill_free_at, UINT64_MAX);
}
END_TEST

START_TEST(a_disk_that_fails_under_it_has_failed)
{
    bool more;
    answer = RC_IO;
    disk_fail(fx.config.disk);
    ck_assert_int_eq(wal_fill(fx.wal, true, &more), RC_IO);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("wal_fill");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, an_idle_log_fills_its_current_file_first_and_then_the_free_one);
    tcase_add_test(t, beside_a_load_only_the_free_file_is_filled_whose_zeros_no_batch_has_to_sync);
    tcase_add_test(t, each_file_that_comes_next_is_looked_at_and_each_that_is_begun);
    tcase_add_test(t, a_file_made_for_one_large_record_is_not_filled_for_it_is_not_used_again);
    tcase_add_test(t, while_the_store_is_short_of_room_nothing_is_filled);
    tcase_add_test(t, a_file_that_cannot_be_filled_is_given_up_and_nothing_has_failed);
    tcase_add_test(t, a_free_file_that_is_gone_is_given_up);
    tcase_add_test(t, a_disk_that_fails_under_it_has_failed);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
