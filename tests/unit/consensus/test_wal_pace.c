// SPDX-License-Identifier: Apache-2.0
// When the WAL thread begins its next batch (pace.h).
// links: node/base proto consensus/wal
#include "consensus/wal/pace.h"
#include <check.h>
#include <stdlib.h>

enum { US = 1000, MS = 1000000 };

static struct wal_pace p;
static uint64_t now;

static void setup(void)
{
    p = (struct wal_pace){0};
    now = (uint64_t)1000 * MS;
}

// So many records of so many bytes come, wait as they are told to, and are synced. Returns the wait.
static uint64_t batch(int records, uint64_t bytes, uint64_t sync_ns)
{
    for (int i = 0; i < records; i++) {
        wal_pace_submitted(&p, bytes);
    }
    const uint64_t wait = wal_pace_wait(&p, now);
    now += wait;
    wal_pace_written(&p, now, now + sync_ns, (uint32_t)records);
    now += sync_ns;
    return wait;
}

static uint64_t batches(int count, int records, uint64_t bytes, uint64_t sync_ns)
{
    uint64_t last = 0;
    for (int i = 0; i < count; i++) {
        last = batch(records, bytes, sync_ns);
    }
    return last;
}

START_TEST(a_client_that_waits_for_each_confirm_waits_for_the_disk_alone)
{
    for (int i = 0; i < 100; i++) {
        ck_assert_uint_eq(batch(1 + i % 2, 1100, 300 * US), 0);  // A publish; now and then an acknowledgement.
        now += 50 * US;
    }
}
END_TEST

START_TEST(where_several_share_a_batch_the_disk_is_busy_a_quarter_of_the_time)
{
    ck_assert_uint_eq(batches(50, 3, 1100, 200 * US), 600 * US);
}
END_TEST

START_TEST(nobody_waits_longer_than_a_millisecond_from_batch_to_batch_and_none_for_a_slow_disk)
{
    ck_assert_uint_eq(batches(50, 3, 1100, 800 * US), PACE_MOST_NS - 800 * US);
    ck_assert_uint_eq(batches(50, 3, 1100, 5 * MS), 0);
}
END_TEST

START_TEST(what_fills_a_batch_does_not_wait)
{
    (void)batches(50, 3, 1100, 200 * US);
    ck_assert_uint_eq(batch(3, 30000, 200 * US), 0);
    ck_assert_uint_eq(batch(1, 1 << 20, 200 * US), 0);
}
END_TEST

START_TEST(after_a_pause_the_first_does_not_wait)
{
    (void)batches(50, 3, 1100, 200 * US);
    now += MS;
    ck_assert_uint_eq(batch(1, 1100, 200 * US), 0);
}
END_TEST

START_TEST(a_crowd_that_is_gone_is_forgotten_within_a_few_batches)
{
    (void)batches(50, 3, 1100, 200 * US);
    ck_assert_uint_gt(batch(1, 1100, 200 * US), 0);
    (void)batches(20, 1, 1100, 200 * US);
    ck_assert_uint_eq(batch(1, 1100, 200 * US), 0);
}
END_TEST

START_TEST(what_holds_nothing_is_no_crowd_and_does_not_wait)
{
    for (int i = 0; i < 50; i++) {
        wal_pace_submitted(&p, 0);
        wal_pace_submitted(&p, 0);
        ck_assert_uint_eq(batch(1, 1100, 200 * US), 0);
    }
    (void)batches(50, 3, 1100, 200 * US);
    wal_pace_submitted(&p, 0);
    ck_assert_uint_eq(wal_pace_wait(&p, now), 0);
}
END_TEST

START_TEST(marks_and_slices_say_nothing_about_the_crowd)
{
    (void)batches(50, 3, 1100, 200 * US);
    for (int i = 0; i < 50; i++) {
        wal_pace_written(&p, now, now + 10 * MS, 1);
        now += 10 * MS;
    }
    ck_assert_uint_eq(batch(3, 1100, 200 * US), 0);  // It came late enough.
    ck_assert_uint_gt(batch(3, 1100, 200 * US), 300 * US);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("wal_pace");
    TCase *t = tcase_create("pace");
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_test(t, a_client_that_waits_for_each_confirm_waits_for_the_disk_alone);
    tcase_add_test(t, where_several_share_a_batch_the_disk_is_busy_a_quarter_of_the_time);
    tcase_add_test(t, nobody_waits_longer_than_a_millisecond_from_batch_to_batch_and_none_for_a_slow_disk);
    tcase_add_test(t, what_fills_a_batch_does_not_wait);
    tcase_add_test(t, after_a_pause_the_first_does_not_wait);
    tcase_add_test(t, a_crowd_that_is_gone_is_forgotten_within_a_few_batches);
    tcase_add_test(t, what_holds_nothing_is_no_crowd_and_does_not_wait);
    tcase_add_test(t, marks_and_slices_say_nothing_about_the_crowd);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
