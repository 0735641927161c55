// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus consensus/raft consensus/solo consensus/store consensus/wal gen tests/sim
// What a retirement asks of the disk: a log file in which many groups lie mixed is read in order once, and log files that pile
// up are gone through in larger slices.
#include "tests/unit/consensus/store_retire_fixture.h"

enum { HINTS_MAX = 256, SLICE = FILE_BYTES / 16 };

static struct {
    struct disk real;
    struct disk_file *wal;         // Opened to be read.
    uint64_t offset[HINTS_MAX], len[HINTS_MAX];
    uint32_t count;
    uint64_t lowest, highest, before;  // Of what was read for other purposes than to wait for a hint; how many hints there were.
} seen;

static enum rc seen_open(struct disk *d, const char *path, int flags, struct disk_file **out)
{
    const enum rc rc = seen.real.open(d, path, flags, out);
    if (rc == RC_OK && flags == DISK_READ && strncmp(path, "wal/", 4) == 0) {
        seen.wal = *out;
    }
    return rc;
}
static void seen_close(struct disk_file *f)
{
    seen.wal = f == seen.wal ? NULL : seen.wal;
    seen.real.close(f);
}
static enum rc seen_read(struct disk_file *f, uint64_t offset, void *to, size_t len, size_t *got)
{
    if (f == seen.wal && len > 1) {
        seen.before = seen.lowest == UINT64_MAX ? seen.count : seen.before;
        seen.lowest = offset < seen.lowest ? offset : seen.lowest;
        seen.highest = offset > seen.highest ? offset : seen.highest;
    }
    return seen.real.read(f, offset, to, len, got);
}
static void seen_will_read(struct disk_file *f, uint64_t offset, uint64_t len)
{
    ck_assert_ptr_eq(f, seen.wal);
    ck_assert_uint_lt(seen.count, HINTS_MAX);
    seen.offset[seen.count] = offset;
    seen.len[seen.count++] = len;
}

static void watch(void)
{
    struct disk *d = sim_disk_base(fx.disk);
    memset(&seen, 0, sizeof(seen));
    seen.real = *d;
    seen.lowest = UINT64_MAX;
    d->open = seen_open;
    d->close = seen_close;
    d->read = seen_read;
    d->will_read = seen_will_read;
    for (uint64_t g = 1; g <= GROUPS_MAX; g++) {
        fx.models[g].snapshots_refused = true;
    }
}

// So many bytes of each group in turn, until `files` files are closed and retirement has to begin.
static void fill(uint64_t groups, uint32_t files)
{
    while (fx.closed_count < files) {
        for (uint64_t g = 1; g <= groups; g++) {
            append(&fx, g, 1, 100);
        }
        flush(&fx);
        while (pump_wal(&fx)) {
        }
        tell_done(&fx);
    }
}

START_TEST(a_file_in_which_groups_lie_mixed_is_read_in_order_before_it_is_gathered)
{
    watch();
    fill(6, 1);
    settle(&fx);
    ck_assert_uint_eq(fx.retired_count, 1);
    ck_assert_uint_ge(seen.count, 2);
    ck_assert_uint_eq(seen.before, seen.count);  // All of it before the first entry.
    ck_assert_uint_eq(seen.offset[0], seen.lowest);
    for (uint32_t i = 1; i < seen.count; i++) {
        ck_assert_uint_eq(seen.offset[i], seen.offset[i - 1] + seen.len[i - 1]);
    }
    for (uint32_t i = 0; i < seen.count; i++) {
        ck_assert_uint_le(seen.len[i], SLICE);
        ck_assert_uint_gt(seen.len[i], 0);
    }
    ck_assert_uint_ge(seen.offset[seen.count - 1] + seen.len[seen.count - 1], seen.highest);
    check_all(&fx);
    crash_and_check(&fx, NULL);
}
END_TEST

START_TEST(a_file_of_one_group_is_read_as_it_is_gathered)
{
    watch();
    fill(1, 1);
    settle(&fx);
    ck_assert_uint_eq(fx.retired_count, 1);
    ck_assert_uint_ne(seen.lowest, UINT64_MAX);
    ck_assert_uint_eq(seen.count, 0);
    check_all(&fx);
}
END_TEST

START_TEST(files_that_pile_up_are_retired_in_larger_slices)
{
    watch();
    fill(6, 17);
    settle(&fx);
    ck_assert_uint_eq(fx.retired_count, 17);
    uint64_t largest = 0, last = 0;
    for (uint32_t i = 0; i < seen.count; i++) {
        largest = seen.len[i] > largest ? seen.len[i] : largest;
        last = i > 0 && seen.offset[i] < seen.offset[i - 1] ? 0 : last;  // Of the last file.
        last = seen.len[i] > last ? seen.len[i] : last;
    }
    ck_assert_uint_eq(largest, 4 * SLICE);
    ck_assert_uint_eq(last, SLICE);
    check_all(&fx);
    crash_and_check(&fx, NULL);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("store, mixed files");
    TCase *t = tcase_create("store");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_file_in_which_groups_lie_mixed_is_read_in_order_before_it_is_gathered);
    tcase_add_test(t, a_file_of_one_group_is_read_as_it_is_gathered);
    tcase_add_test(t, files_that_pile_up_are_retired_in_larger_slices);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
