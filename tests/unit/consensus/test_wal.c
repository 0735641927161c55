// SPDX-License-Identifier: Apache-2.0
// Writing the log: batches, files, order of completions, failures.
// links: node/base proto consensus/wal tests/sim
#include "tests/unit/consensus/wal_fixture.h"
#include "node/base/limits.h"

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, 64 << 10, 8);
    open_wal(&fx);
}
static void teardown(void)
{
    fixture_deinit(&fx);
}

START_TEST(what_waits_goes_into_one_batch_with_one_sync)
{
    uint64_t before = sim_disk_counters(fx.disk)->syncs;
    for (uint64_t i = 1; i <= 50; i++) {
        submit(&fx, 1 + i % 3, i, 100);
    }
    ck_assert_uint_eq(wal_pending_bytes(fx.wal), 50 * record_size(100));
    ck_assert(wal_compose(fx.wal));
    ck_assert_uint_eq(fx.done_count, 0);
    ck_assert_int_eq(drive_once(&fx), RC_OK);
    ck_assert_uint_eq(fx.done_count, 50);
    ck_assert_uint_eq(sim_disk_counters(fx.disk)->syncs, before + 1);
    ck_assert_uint_eq(wal_pending_bytes(fx.wal), 0);
    ck_assert(!wal_compose(fx.wal));
}
END_TEST

START_TEST(submissions_complete_in_order_empty_ones_among_them)
{
    submit_empty(&fx, 1);
    submit(&fx, 1, 2, 10);
    submit_empty(&fx, 3);
    submit(&fx, 1, 4, 10);
    submit_empty(&fx, 5);
    ck_assert(wal_compose(fx.wal));
    ck_assert_uint_eq(fx.done_count, 1);  // Only the one with nothing before it.
    submit(&fx, 1, 6, 10);
    ck_assert_int_eq(drive_once(&fx), RC_OK);
    ck_assert_uint_eq(fx.done_count, 5);
    drive(&fx);
    ck_assert_uint_eq(fx.done_count, 6);
    for (uint64_t i = 0; i < 6; i++) {
        ck_assert_uint_eq(fx.done_order[i], i + 1);
    }
}
END_TEST

START_TEST(an_empty_submission_alone_completes_without_a_write)
{
    uint64_t before = sim_disk_counters(fx.disk)->writes;
    struct sent *s = submit_empty(&fx, 1);
    ck_assert(!wal_compose(fx.wal));
    ck_assert(s->is_done);
    ck_assert_int_eq(s->submission.result, RC_OK);
    ck_assert_uint_eq(sim_disk_counters(fx.disk)->writes, before);
}
END_TEST

START_TEST(a_range_is_found_where_the_log_says_it_went)
{
    for (uint64_t i = 1; i <= 300; i++) {
        submit(&fx, i % 7, i, (uint32_t)(i * 5 % 900));
        if (i % 4 == 0) {
            drive(&fx);
        }
    }
    drive(&fx);
    ck_assert_uint_gt(wal_file_count(fx.wal), 2);
    for (uint32_t i = 0; i < fx.sent_count; i++) {
        const struct sent *s = fx.sent[i];
        assert_record_at(&fx, s->range.file_seq, s->range.file_offset, s->group, s->index, s->payload_len);
    }
}
END_TEST

START_TEST(batches_start_at_multiples_of_align)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 64 << 10, 512);
    open_wal(&fx);
    for (uint64_t i = 1; i <= 100; i++) {
        struct sent *s = write_one(&fx, 1, i, (uint32_t)i);
        ck_assert_uint_eq((s->range.file_offset - WAL_BATCH_HEADER_BYTES) % 512, 0);
    }
}
END_TEST

START_TEST(a_batch_stays_below_four_mebibytes)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 32 << 20, 4096);
    open_wal(&fx);
    for (uint64_t i = 1; i <= 9; i++) {
        submit(&fx, 1, i, 1 << 20);
    }
    uint32_t batches = 0;
    while (wal_compose(fx.wal)) {
        ck_assert_uint_le(fx.wal->batch.head.total_len, LIMIT_WAL_BATCH_BYTES);
        ck_assert_int_eq(drive_once(&fx), RC_OK);
        batches++;
    }
    ck_assert_uint_eq(batches, 3);  // 3 + 3 + 3 records of a little over 1 MiB.
    ck_assert_uint_eq(fx.done_count, 9);
}
END_TEST

START_TEST(a_record_of_more_than_four_mebibytes_is_a_batch_of_its_own)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 32 << 20, 4096);
    open_wal(&fx);
    submit(&fx, 1, 1, 100);
    submit(&fx, 1, 2, 6 << 20);
    submit(&fx, 1, 3, 100);
    for (uint32_t n = 1; n <= 3; n++) {
        ck_assert(wal_compose(fx.wal));
        ck_assert_uint_eq(fx.wal->batch.head.count, 1);
        ck_assert_int_eq(drive_once(&fx), RC_OK);
        ck_assert_uint_eq(fx.done_count, n);
    }
}
END_TEST

START_TEST(a_submission_over_several_batches_completes_with_its_last_one)
{
    enum { RANGES = 10 };
    static struct wal_range ranges[RANGES];
    struct sent *s = sent_add(&fx, 1);
    uint64_t size = record_size(20000);
    uint8_t *bytes = mem_alloc(RANGES * 2 * size);
    for (uint64_t i = 0; i < RANGES; i++) {
        record_make(bytes + i * 2 * size, 1, i + 1, 20000);  // Not contiguous.
        ranges[i] = (struct wal_range){.ptr = bytes + i * 2 * size, .len = (uint32_t)size};
    }
    s->range.ptr = bytes;
    s->submission.ranges = ranges;
    s->submission.ranges_count = RANGES;
    s->submission.bytes = RANGES * size;
    wal_submit(fx.wal, &s->submission);
    uint32_t batches = 0;
    while (wal_compose(fx.wal)) {
        ck_assert(!s->is_done);
        ck_assert_int_eq(drive_once(&fx), RC_OK);
        batches++;
    }
    ck_assert_uint_ge(batches, 4);  // Three records of 20 kB in a file of 64 KiB.
    ck_assert(s->is_done);
    close_wal(&fx);
    open_wal(&fx);
    assert_seen(&fx, 1, RANGES);
    assert_seen_readable(&fx);
}
END_TEST

START_TEST(a_record_that_does_not_fit_closes_the_file_early)
{
    write_one(&fx, 1, 1, 40000);
    uint64_t first = wal_current_seq(fx.wal);
    struct sent *s = write_one(&fx, 1, 2, 40000);
    ck_assert_uint_eq(s->range.file_seq, first + 1);
    ck_assert_uint_eq(fx.closed_count, 1);
    ck_assert_uint_eq(fx.closed[0], first);
    ck_assert_uint_eq(wal_current_seq(fx.wal), first + 1);
}
END_TEST

START_TEST(a_record_larger_than_a_file_gets_a_file_of_its_size)
{
    write_one(&fx, 1, 1, 100);
    struct sent *s = write_one(&fx, 1, 2, 200000);
    ck_assert_uint_eq(s->range.file_seq, 2);
    struct sent *after = write_one(&fx, 1, 3, 100);
    ck_assert_uint_eq(after->range.file_seq, s->range.file_seq + (after->range.file_offset == 4096 + 32));
    write_one(&fx, 1, 4, 50000);
    sim_disk_kill(fx.disk);
    close_wal(&fx);
    open_wal(&fx);
    assert_seen(&fx, 1, 4);
    assert_seen_readable(&fx);
    ck_assert(!fx.report.is_corrupt);
}
END_TEST

START_TEST(after_a_failed_sync_everything_completes_with_the_error)
{
    write_one(&fx, 1, 1, 10);
    sim_disk_fail_sync_after(fx.disk, 0);
    struct sent *a = submit(&fx, 1, 2, 10);
    ck_assert(wal_compose(fx.wal));
    struct sent *b = submit(&fx, 1, 3, 10);
    ck_assert_int_eq(drive_once(&fx), RC_IO);
    ck_assert(fx.config.disk->failed);
    ck_assert(a->is_done && b->is_done);
    ck_assert_int_eq(a->submission.result, RC_IO);
    ck_assert_int_eq(b->submission.result, RC_IO);
    uint64_t writes = sim_disk_counters(fx.disk)->writes;
    struct sent *c = submit(&fx, 1, 4, 10);
    struct sent *d = submit_empty(&fx, 5);
    ck_assert(!wal_compose(fx.wal));
    ck_assert_int_eq(c->submission.result, RC_IO);
    ck_assert_int_eq(d->submission.result, RC_IO);
    ck_assert(!wal_compose_mark(fx.wal));
    ck_assert_uint_eq(sim_disk_counters(fx.disk)->writes, writes);
}
END_TEST

START_TEST(a_disk_that_failed_elsewhere_is_not_written_to)
{
    fx.config.disk->failed = true;
    struct sent *a = submit(&fx, 1, 1, 10);
    ck_assert(!wal_compose(fx.wal));
    ck_assert_int_eq(a->submission.result, RC_IO);
}
END_TEST

START_TEST(a_mark_is_written_once_after_records_and_not_after_a_mark)
{
    ck_assert(!wal_compose_mark(fx.wal));  // Opening ended with a batch that needs nobody to vouch for it.
    write_one(&fx, 1, 1, 10);
    write_mark(&fx);
    ck_assert(!wal_compose_mark(fx.wal));
    write_one(&fx, 1, 2, 10);
    write_mark(&fx);
}
END_TEST

START_TEST(retired_files_are_used_again_and_their_content_is_not_replayed)
{
    // Fill and retire files until one name has been used several times over.
    for (uint64_t i = 1; i <= 40; i++) {
        write_one(&fx, 1, i, 20000);
        while (fx.closed_count > 0) {
            wal_retire(fx.wal, fx.closed[--fx.closed_count]);
        }
    }
    ck_assert_uint_le(wal_file_count(fx.wal), 2);
    ck_assert_uint_gt(fx.wal->pool_count, 0);
    uint64_t current = wal_current_seq(fx.wal);
    uint64_t first = 0;
    for (uint32_t i = 0; i < fx.sent_count && first == 0; i++) {
        first = fx.sent[i]->range.file_seq == current ? fx.sent[i]->index : 0;
    }
    // The current file lies on one that was full of well-formed batches; only the salt tells them apart.
    sim_disk_kill(fx.disk);
    close_wal(&fx);
    ck_assert_int_eq(try_open(&fx, current), RC_OK);
    assert_seen(&fx, first, 40);
    ck_assert(!fx.report.is_corrupt);
    ck_assert_uint_eq(fx.report.dropped_tail_bytes, 0);
}
END_TEST

START_TEST(files_are_given_back_in_order_of_age_only)
{
    for (uint64_t i = 1; i <= 4; i++) {
        write_one(&fx, 1, i, 40000);
    }
    uint64_t newest = wal_current_seq(fx.wal);
    ck_assert_uint_eq(wal_file_count(fx.wal), newest);
    char path[64];
    wal_retire(fx.wal, 2);
    path_of(2, path);
    ck_assert(sim_disk_exists(fx.disk, path));
    wal_retire(fx.wal, 1);
    ck_assert(!sim_disk_exists(fx.disk, path));
    ck_assert_uint_eq(wal_file_count(fx.wal), newest - 2);
}
END_TEST

START_TEST(the_pool_is_bounded_and_odd_sizes_are_not_kept)
{
    for (uint64_t i = 1; i <= 10; i++) {
        write_one(&fx, 1, i, i == 5 ? 300000 : 40000);
    }
    uint64_t current = wal_current_seq(fx.wal);
    for (uint64_t seq = 1; seq < current; seq++) {
        wal_retire(fx.wal, seq);
    }
    ck_assert_uint_eq(wal_file_count(fx.wal), 1);
    ck_assert_uint_eq(fx.wal->pool_count, WAL_POOL_MAX);
    ck_assert_uint_eq(fx.disk->count, 1 + WAL_POOL_MAX);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("wal");
    TCase *t = tcase_create("writing");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, what_waits_goes_into_one_batch_with_one_sync);
    tcase_add_test(t, submissions_complete_in_order_empty_ones_among_them);
    tcase_add_test(t, an_empty_submission_alone_completes_without_a_write);
    tcase_add_test(t, a_range_is_found_where_the_log_says_it_went);
    tcase_add_test(t, batches_start_at_multiples_of_align);
    tcase_add_test(t, a_batch_stays_below_four_mebibytes);
    tcase_add_test(t, a_record_of_more_than_four_mebibytes_is_a_batch_of_its_own);
    tcase_add_test(t, a_submission_over_several_batches_completes_with_its_last_one);
    tcase_add_test(t, a_record_that_does_not_fit_closes_the_file_early);
    tcase_add_test(t, a_record_larger_than_a_file_gets_a_file_of_its_size);
    tcase_add_test(t, after_a_failed_sync_everything_completes_with_the_error);
    tcase_add_test(t, a_disk_that_failed_elsewhere_is_not_written_to);
    tcase_add_test(t, a_mark_is_written_once_after_records_and_not_after_a_mark);
    tcase_add_test(t, retired_files_are_used_again_and_their_content_is_not_replayed);
    tcase_add_test(t, files_are_given_back_in_order_of_age_only);
    tcase_add_test(t, the_pool_is_bounded_and_odd_sizes_are_not_kept);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
