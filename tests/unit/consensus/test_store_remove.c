// SPDX-License-Identifier: Apache-2.0
// How segments that nobody needs any more leave the disk: in pieces, beside a log that is written to.
// links: node/base proto consensus consensus/raft consensus/solo consensus/store consensus/wal gen tests/sim
#include "tests/unit/consensus/store_fixture.h"

enum { FILE_BYTES = 64 << 10, PIECE = 3000 };
static const uint64_t MS = 1000000;

static struct fixture fx;

static void setup(void)
{
    fixture_removal_piece = PIECE;
    fixture_init(&fx, 1, 256 << 10, FILE_BYTES);
    fx.now = 1000 * MS;
}
static void teardown(void)
{
    fixture_deinit(&fx);
}

// Bytes of the file under this name; 0: there is none.
static uint64_t size_of(uint64_t seq, bool is_sealed)
{
    char path[SEGMENT_PATH_MAX];
    segment_path(seq, is_sealed, path);
    if (!sim_disk_exists(fx.disk, path)) {
        return 0;
    }
    struct disk *d = sim_disk_base(fx.disk);
    struct disk_file *f = NULL;
    uint64_t bytes = 0;
    ck_assert_int_eq(d->open(d, path, DISK_READ, &f), RC_OK);
    ck_assert_int_eq(d->size(f, &bytes), RC_OK);
    d->close(f);
    return bytes;
}

// 40 more entries of group 1 lie in a segment, and it needs none of them. Returns its number: only the filler's snapshot
// is still in use there, until the next file is full.
static uint64_t dying_segment(void)
{
    const uint64_t before = fx.models[1].last;
    fx.models[1].snapshots_refused = true;
    append_many(&fx, 1, 1, 300, 40);
    roll_file(&fx);
    ck_assert_uint_eq(log_of(&fx, 1)->runs_count, 1);
    const uint64_t seq = log_of(&fx, 1)->runs[0].segment->seq;
    ck_assert_uint_gt(size_of(seq, true), 4 * PIECE);
    fx.models[1].snapshots_refused = false;
    settle_messages(&fx, 1, before + 1, before + 40);
    fx.models[1].committed = before + 40;
    glog_snapshot_request(log_of(&fx, 1));
    settle(&fx);
    ck_assert_uint_eq(log_of(&fx, 1)->runs_count, 0);
    return seq;
}

// Its removal begins.
static uint64_t dead_segment(void)
{
    const uint64_t seq = dying_segment();
    roll_file(&fx);
    return seq;
}

// The log is written to.
static void write_some(void)
{
    append(&fx, 2, 1, 10);
    flush(&fx);
    while (pump_wal(&fx)) {
    }
    tell_done(&fx);
}

static void run_jobs(void)
{
    while (step_job(&fx, 0)) {
    }
}

START_TEST(a_large_file_goes_piece_by_piece_and_while_the_log_is_busy_with_rests_many_times_as_long)
{
    const uint64_t seq = dying_segment();
    const uint64_t all = size_of(seq, true);
    roll_file(&fx);
    ck_assert_uint_eq(size_of(seq, true), 0);
    ck_assert_uint_eq(size_of(seq, false), all);  // It has another name, and is whole.
    (void)removal_turn(fx.workers[0], fx.now);
    run_jobs();
    uint64_t left = all - PIECE;
    ck_assert_uint_eq(size_of(seq, false), left);
    fx.now += 3 * MS;
    while (left > 0) {
        // The piece took 3 ms. The next comes not before as much, and as long as the log is written to 16 times as much.
        const uint64_t from = fx.now;
        ck_assert_uint_eq(removal_turn(fx.workers[0], fx.now), from + 3 * MS);
        write_some();
        fx.now += 3 * MS;
        ck_assert_uint_eq(removal_turn(fx.workers[0], fx.now), from + 48 * MS);
        write_some();
        fx.now = from + 48 * MS - 1;
        ck_assert_uint_eq(removal_turn(fx.workers[0], fx.now), from + 48 * MS);
        ck_assert_uint_eq(size_of(seq, false), left);
        fx.now += 1;
        (void)removal_turn(fx.workers[0], fx.now);
        fx.now += 3 * MS;
        run_jobs();
        left = left > PIECE ? left - PIECE : 0;
        ck_assert_uint_eq(size_of(seq, false), left);
    }
    ck_assert_uint_eq(removal_turn(fx.workers[0], fx.now + 5000 * MS), UINT64_MAX);
    check_all(&fx);
}
END_TEST

START_TEST(once_the_log_rests_the_next_piece_goes_at_once)
{
    const uint64_t seq = dead_segment();
    const uint64_t all = size_of(seq, false);
    const uint64_t from = fx.now;
    uint64_t pieces = 0;
    for (uint64_t due; (due = removal_turn(fx.workers[0], fx.now)) != UINT64_MAX || !list_is_empty(&fx.execs[0].waiting);) {
        if (due != UINT64_MAX) {
            fx.now = due;
            continue;
        }
        fx.now += 3 * MS;
        run_jobs();
        pieces++;
    }
    ck_assert_uint_eq(size_of(seq, false), 0);
    ck_assert_uint_eq(pieces, (all + PIECE - 1) / PIECE);
    ck_assert_uint_le(fx.now - from, pieces * 6 * MS);
}
END_TEST

START_TEST(on_a_disk_that_is_short_of_room_the_rests_are_short_though_the_log_is_busy)
{
    const uint64_t seq = dead_segment();
    (void)removal_turn(fx.workers[0], fx.now);
    run_jobs();
    fx.now += 3 * MS;
    atomic_store(&fx.store->shared_is_short, true);
    ck_assert_uint_eq(removal_turn(fx.workers[0], fx.now), fx.now + 3 * MS);
    write_some();
    fx.now += 3 * MS;
    const uint64_t before = size_of(seq, false);
    (void)removal_turn(fx.workers[0], fx.now);
    run_jobs();
    ck_assert_uint_eq(size_of(seq, false), before - PIECE);
    atomic_store(&fx.store->shared_is_short, false);
}
END_TEST

// How much waits, times 1 GiB -> how long the next piece waits after one of 3 ms, while the log is busy.
START_TEST(the_more_waits_to_be_removed_the_shorter_are_the_rests)
{
    static const uint64_t rests[] = {48, 3, 0};
    const uint64_t seq = dead_segment();
    (void)removal_turn(fx.workers[0], fx.now);
    run_jobs();
    struct segment waiting = {.bytes = ((uint64_t)_i << 30) + 1, .doomed_after = UINT64_MAX};
    list_init(&waiting.link);
    list_add_tail(&fx.workers[0]->doomed, &waiting.link);
    fx.now += 3 * MS;
    const uint64_t from = fx.now;
    const uint64_t before = size_of(seq, false);
    for (uint64_t due; (due = removal_turn(fx.workers[0], fx.now)) != UINT64_MAX;) {
        write_some();
        fx.now = due;
    }
    ck_assert_uint_eq(fx.now - from, rests[_i] * MS);
    run_jobs();
    ck_assert_uint_eq(size_of(seq, false), before - PIECE);
    list_remove(&waiting.link);
}
END_TEST

START_TEST(what_dies_while_a_file_is_cut_is_removed_after_it)
{
    const uint64_t first = dead_segment();
    (void)removal_turn(fx.workers[0], fx.now);
    run_jobs();
    const uint64_t second = dead_segment();
    ck_assert_uint_ne(first, second);
    ck_assert_uint_gt(size_of(first, false), 0);
    ck_assert_uint_gt(size_of(second, true), 4 * PIECE);  // It waits.
    compact(&fx);
    ck_assert_uint_eq(size_of(first, false) + size_of(second, true) + size_of(second, false), 0);
    check_all(&fx);
}
END_TEST

// Whatever of a removal is on disk: the next start finds no damage, and none of the file.
START_TEST(a_crash_at_any_disk_operation_of_a_removal_leaves_nothing_that_looks_damaged)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        bool is_over = false;
        for (uint64_t ops = 1; !is_over; ops++) {
            fixture_deinit(&fx);
            fixture_init(&fx, 1, 256 << 10, FILE_BYTES);
            const uint64_t seq = dying_segment();
            sim_disk_crash_after(fx.disk, ops);
            roll_file(&fx);
            compact(&fx);
            is_over = !sim_disk_is_dead(fx.disk);
            struct rng rng;
            rng_seed(&rng, seed * 1000 + ops);
            crash_and_check(&fx, seed == 0 ? NULL : &rng);
            ck_assert(!fx.report.is_corrupt);
            compact(&fx);
            ck_assert_uint_eq(size_of(seq, true) + size_of(seq, false), 0);
            check_all(&fx);
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("store, removal of segments");
    TCase *t = tcase_create("store");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, a_large_file_goes_piece_by_piece_and_while_the_log_is_busy_with_rests_many_times_as_long);
    tcase_add_test(t, once_the_log_rests_the_next_piece_goes_at_once);
    tcase_add_test(t, on_a_disk_that_is_short_of_room_the_rests_are_short_though_the_log_is_busy);
    tcase_add_loop_test(t, the_more_waits_to_be_removed_the_shorter_are_the_rests, 0, 3);
    tcase_add_test(t, what_dies_while_a_file_is_cut_is_removed_after_it);
    tcase_add_test(t, a_crash_at_any_disk_operation_of_a_removal_leaves_nothing_that_looks_damaged);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
