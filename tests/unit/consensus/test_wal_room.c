// SPDX-License-Identifier: Apache-2.0
// The log on a full disk: nothing is promised, nothing fails, and it goes on when there is room. The file in reserve.
// links: node/base proto consensus/wal tests/sim
#include "tests/unit/consensus/wal_fixture.h"

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, 64 << 10, 8);
}
static void teardown(void)
{
    fixture_deinit(&fx);
}

static void begin(uint32_t reserve)
{
    fx.config.reserve_files = reserve;
    open_wal(&fx);
    ck_assert(wal_top_up(fx.wal));
}

static void no_room(void)
{
    sim_disk_set_budget(fx.disk, sim_disk_used(fx.disk));
}

static void room(void)
{
    sim_disk_set_budget(fx.disk, UINT64_MAX);
}

static void reopen(bool is_power)
{
    struct rng rng;
    rng_seed(&rng, 3);
    if (is_power) {
        sim_disk_crash(fx.disk, &rng);
    } else {
        sim_disk_kill(fx.disk);
    }
    close_wal(&fx);
    open_wal(&fx);
}

static void expect_seen(uint64_t last)
{
    ck_assert_uint_eq(fx.seen_count, last);
    for (uint64_t i = 0; i < last; i++) {
        ck_assert_uint_eq(fx.seen[i].index, i + 1);
    }
}

START_TEST(without_room_for_a_new_file_all_waits_and_goes_on_when_there_is_room)
{
    begin(0);
    write_one(&fx, 1, 1, 40000);
    no_room();
    struct sent *a = submit(&fx, 1, 2, 40000);
    struct sent *b = submit(&fx, 1, 3, 100);
    drive(&fx);
    drive(&fx);
    ck_assert(!a->is_done && !b->is_done);
    ck_assert(!fx.config.disk->failed);
    struct sent *c = submit(&fx, 1, 4, 100);  // Also while it waits.
    drive(&fx);
    ck_assert(!c->is_done);
    room();
    drive(&fx);
    ck_assert(a->is_done && b->is_done && c->is_done);
    ck_assert_int_eq(a->submission.result, RC_OK);
    reopen(true);
    expect_seen(4);
}
END_TEST

START_TEST(a_try_in_vain_takes_no_room_from_others)
{
    begin(0);
    write_one(&fx, 1, 1, 40000);
    sim_disk_set_budget(fx.disk, sim_disk_used(fx.disk) + 1000);
    const uint64_t used = sim_disk_used(fx.disk);
    submit(&fx, 1, 2, 40000);
    drive(&fx);
    ck_assert_int_eq(fx.config.disk->sync_dir(fx.config.disk, "wal"), RC_OK);
    ck_assert_uint_eq(sim_disk_used(fx.disk), used);
}
END_TEST

// Loop: the power fails, or only the process ends.
START_TEST(what_waits_for_room_when_the_node_ends_was_not_promised_and_what_was_is_there)
{
    begin(0);
    write_one(&fx, 1, 1, 40000);
    no_room();
    struct sent *a = submit(&fx, 1, 2, 40000);
    drive(&fx);
    ck_assert(!a->is_done);
    room();
    reopen(_i == 1);
    expect_seen(1);
    ck_assert(!fx.report.is_corrupt);
}
END_TEST

// Loop: the last batch is vouched for by a mark, or by nothing.
START_TEST(a_start_without_room_goes_on_in_the_last_file)
{
    begin(0);
    write_one(&fx, 1, 1, 40000);
    if (_i == 1) {
        write_mark(&fx);
    }
    const uint64_t seq = wal_current_seq(fx.wal);
    no_room();
    reopen(false);
    expect_seen(1);
    assert_seen_readable(&fx);
    ck_assert_uint_eq(wal_current_seq(fx.wal), seq);
    ck_assert_uint_eq(wal_file_count(fx.wal), 1);
    write_one(&fx, 1, 2, 10000);
    struct sent *a = submit(&fx, 1, 3, 40000);
    drive(&fx);
    ck_assert(!a->is_done);
    room();
    drive(&fx);
    ck_assert(a->is_done);
    ck_assert_uint_eq(fx.closed[fx.closed_count - 1], seq);
    reopen(true);
    expect_seen(3);
    ck_assert(!fx.report.is_corrupt);
}
END_TEST

// A node whose log is open may become a member: if there were no file then, the next start would take the log for lost.
START_TEST(a_new_log_is_not_begun_without_its_first_file_so_that_none_never_means_that_it_is_lost)
{
    no_room();
    for (int i = 0; i < 3; i++) {
        fx.config.must_exist = try_open(&fx, 1) == RC_OK;
        ck_assert(!fx.report.is_corrupt);
        ck_assert(!fx.config.disk->failed);
        close_wal(&fx);
        sim_disk_kill(fx.disk);
    }
    room();
    open_wal(&fx);
    fx.config.must_exist = true;
    no_room();
    reopen(true);
    ck_assert(!fx.report.is_corrupt);
    write_one(&fx, 1, 1, 1000);
    reopen(true);
    expect_seen(1);
}
END_TEST

static void submit_some(struct rng *rng, uint64_t *index)
{
    for (uint64_t n = rng_below(rng, 4); n > 0; n--) {
        const uint32_t len = (uint32_t)rng_below(rng, rng_below(rng, 4) == 0 ? 20000 : 2000);
        (void)(rng_below(rng, 5) == 0 ? submit_large(&fx, 4, ++*index, len) : submit(&fx, 1, ++*index, len));
    }
}

// Nothing that was promised is lost over crashes that tear what was not, however often the log goes on behind it.
START_TEST(over_any_crashes_on_a_full_disk_nothing_promised_is_lost_or_taken_for_damage)
{
    struct rng rng;
    rng_seed(&rng, (uint64_t)_i + 1);
    fx.config.slice_bytes = 4096;
    fx.config.align = _i % 2 == 0 ? 8 : 4096;
    begin(0);
    uint64_t index = 0, promised = 0;
    write_one(&fx, 1, ++index, 1000);
    no_room();
    for (int life = 0; life < 30; life++) {
        submit_some(&rng, &index);
        sim_disk_crash_after(fx.disk, rng_below(&rng, 12));
        drive(&fx);
        for (uint32_t i = 0; i < fx.sent_count; i++) {
            promised += fx.sent[i]->is_done && fx.sent[i]->submission.result == RC_OK;
        }
        if (life % 10 == 9) {
            room();
        }
        close_wal(&fx);
        if (rng_below(&rng, 2) == 0) {  // Killed, as often as not between a write and its sync.
            sim_disk_crash_after(fx.disk, UINT64_MAX);
            sim_disk_kill(fx.disk);
        } else {
            sim_disk_crash(fx.disk, &rng);
        }
        open_wal(&fx);
        ck_assert(!fx.report.is_corrupt);
        ck_assert_uint_ge(fx.seen_count, promised);
        for (uint32_t i = 0; i < fx.sent_count; i++) {
            bool is_seen = !fx.sent[i]->is_done || fx.sent[i]->submission.result != RC_OK;
            for (uint32_t k = 0; k < fx.seen_count && !is_seen; k++) {
                is_seen = fx.seen[k].index == fx.sent[i]->index;
            }
            ck_assert_msg(is_seen, "record %lu is lost", (unsigned long)fx.sent[i]->index);
        }
        assert_seen_readable(&fx);
        fixture_forget_sent(&fx);
        promised = fx.seen_count;
        no_room();
    }
}
END_TEST

// The file that the log would go on in is of no use: it waits for room, and the damage is met by every start.
START_TEST(a_damaged_or_lost_log_opens_without_room_and_goes_on_when_there_is_some)
{
    begin(0);
    write_one(&fx, 1, 1, 1000);
    write_one(&fx, 1, 2, 1000);
    write_mark(&fx);
    close_wal(&fx);
    char path[64];
    path_of(1, path);
    if (_i == 0) {
        sim_disk_poke(fx.disk, path, 0, "damage", 6);
    } else {
        ck_assert_int_eq(fx.config.disk->unlink(fx.config.disk, path), RC_OK);
        fx.config.must_exist = true;
    }
    (void)fx.config.disk->sync_dir(fx.config.disk, "wal");
    no_room();
    for (int i = 0; i < 2; i++) {
        sim_disk_kill(fx.disk);
        open_wal(&fx);
        ck_assert(fx.report.is_corrupt);
        struct sent *a = submit(&fx, 1, 3, 100);
        drive(&fx);
        ck_assert(!a->is_done);
        close_wal(&fx);
        fixture_forget_sent(&fx);
    }
    sim_disk_kill(fx.disk);
    open_wal(&fx);
    struct sent *a = submit(&fx, 1, 3, 100);
    drive(&fx);
    ck_assert(!a->is_done);
    room();
    drive(&fx);
    ck_assert(a->is_done);
    reopen(true);
    ck_assert(fx.report.is_corrupt);
}
END_TEST

// Loop: its batches stand elsewhere; its size was cut; it is of the version before.
START_TEST(a_last_file_that_the_log_cannot_go_on_in_keeps_what_it_has_until_there_is_room)
{
    fx.config.align = 4096;
    begin(0);
    write_one(&fx, 1, 1, 30000);
    write_mark(&fx);
    write_one(&fx, 1, 2, 1000);
    close_wal(&fx);
    char path[64];
    path_of(1, path);
    if (_i == 0) {
        fx.config.align = 8;
    } else if (_i == 1) {
        sim_disk_cut(fx.disk, path, 60 << 10, false);
    } else {
        struct wal_header_disk h;
        struct disk_file *f;
        size_t got;
        ck_assert_int_eq(fx.config.disk->open(fx.config.disk, path, DISK_READ, &f), RC_OK);
        ck_assert_int_eq(fx.config.disk->read(f, 0, &h, sizeof(h), &got), RC_OK);
        fx.config.disk->close(f);
        h.version = WAL_VERSION_MIN;
        h.crc = wal_header_crc(&h);
        sim_disk_poke(fx.disk, path, 0, &h, sizeof(h));
    }
    no_room();
    reopen(false);
    expect_seen(2);
    assert_seen_readable(&fx);
    struct sent *a = submit(&fx, 1, 3, 100);
    drive(&fx);
    ck_assert(!a->is_done);
    reopen(true);  // Also what waited for the power to fail was vouched for.
    expect_seen(2);
    a = submit(&fx, 1, 3, 100);
    drive(&fx);
    ck_assert(!a->is_done);
    room();
    drive(&fx);
    ck_assert(a->is_done);
    reopen(true);
    expect_seen(3);
    ck_assert(!fx.report.is_corrupt);
    assert_seen_readable(&fx);
}
END_TEST

START_TEST(a_start_with_little_room_begins_a_smaller_file)
{
    begin(0);
    write_one(&fx, 1, 1, 40000);
    write_one(&fx, 1, 2, 1000);  // Nothing proves yet that it was synced: the new file begins with it.
    close_wal(&fx);
    sim_disk_set_budget(fx.disk, sim_disk_used(fx.disk) + (20 << 10));
    ck_assert_int_eq(try_open(&fx, 1), RC_OK);
    expect_seen(2);
    write_one(&fx, 1, 3, 4000);
    struct sent *a = submit(&fx, 1, 4, 40000);
    drive(&fx);
    ck_assert(!a->is_done);
    room();
    drive(&fx);
    ck_assert(a->is_done);
    reopen(false);
    expect_seen(4);
    ck_assert(!fx.report.is_corrupt);
    ck_assert_int_eq(wal_top_up(fx.wal), true);
}
END_TEST

START_TEST(a_retired_file_is_room)
{
    begin(0);
    write_one(&fx, 1, 1, 40000);
    const uint64_t first = wal_current_seq(fx.wal);
    write_one(&fx, 1, 2, 40000);
    no_room();
    struct sent *a = submit(&fx, 1, 3, 40000);
    drive(&fx);
    ck_assert(!a->is_done);
    wal_retire(fx.wal, first);
    drive(&fx);
    ck_assert(a->is_done);
    room();
    sim_disk_kill(fx.disk);
    close_wal(&fx);
    ck_assert_int_eq(try_open(&fx, first + 1), RC_OK);
    ck_assert(!fx.report.is_corrupt);
    ck_assert_uint_eq(fx.seen[fx.seen_count - 1].index, 3);
}
END_TEST

START_TEST(the_file_in_reserve_carries_the_log_on_when_the_disk_is_full)
{
    begin(1);
    write_one(&fx, 1, 1, 40000);
    const uint64_t first = wal_current_seq(fx.wal);
    no_room();
    write_one(&fx, 1, 2, 40000);
    ck_assert(wal_is_short(fx.wal));
    ck_assert(!wal_top_up(fx.wal));
    write_one(&fx, 1, 3, 20000);  // Room for what settles: the rest of that file.
    struct sent *a = submit(&fx, 1, 4, 40000);
    drive(&fx);
    ck_assert(!a->is_done);
    wal_retire(fx.wal, first);
    ck_assert(!wal_is_short(fx.wal));
    drive(&fx);
    ck_assert(a->is_done);
    ck_assert(wal_is_short(fx.wal));
    room();
    ck_assert(wal_top_up(fx.wal));
}
END_TEST

START_TEST(a_batch_that_has_waited_begins_a_small_file_where_a_whole_one_has_no_room)
{
    begin(0);
    write_one(&fx, 1, 1, 60000);
    sim_disk_set_budget(fx.disk, sim_disk_used(fx.disk) + (40 << 10));
    struct sent *a = submit(&fx, 1, 2, 5000);
    drive(&fx);
    ck_assert(!a->is_done);
    ck_assert(fx.wal->batch.is_composed);
    ck_assert_int_eq(wal_write_small(fx.wal), RC_OK);
    wal_complete(fx.wal, RC_OK);
    ck_assert(a->is_done);
    struct sent *b = submit(&fx, 1, 3, 40000);  // Not in that file any more, and there is no room for another one.
    drive(&fx);
    ck_assert(!b->is_done);
    ck_assert_int_eq(wal_write_small(fx.wal), RC_NO_SPACE);
    room();
    drive(&fx);
    ck_assert(b->is_done);
    reopen(true);
    expect_seen(3);
}
END_TEST

// What others keep in reserve: each time it is asked the next of these.
static uint64_t gives[3];
static uint32_t gives_count, gives_at;
static uint64_t asked_for;

static bool give(void *ctx, uint64_t bytes)
{
    (void)ctx;
    asked_for = bytes;
    if (gives_at == gives_count) {
        return false;
    }
    sim_disk_set_budget(fx.disk, sim_disk_used(fx.disk) + gives[gives_at++]);
    return true;
}

START_TEST(a_large_record_that_has_waited_gets_the_room_that_others_keep_in_reserve)
{
    fx.config.slice_bytes = 4096;
    fx.config.more_room = give;
    gives[0] = 100 << 10;
    gives_count = 1;
    gives_at = 0;
    begin(0);
    write_one(&fx, 1, 1, 60000);
    no_room();
    struct sent *a = submit_large(&fx, 4, 2, 20000);
    drive(&fx);
    ck_assert(fx.wal->batch.is_composed);
    ck_assert_ptr_nonnull(fx.wal->region.of);
    ck_assert_int_eq(wal_write_small(fx.wal), RC_OK);
    ck_assert_uint_eq(asked_for, 64 << 10);  // A whole file: there is its place.
    wal_complete(fx.wal, RC_OK);
    drive(&fx);
    ck_assert(a->is_done);
    reopen(true);
    expect_seen(2);
}
END_TEST

// A crash while a reserve is made leaves a file of that name with less in it, or nothing.
START_TEST(what_waits_for_a_file_asks_for_more_room_until_there_is_enough_or_none)
{
    fx.config.more_room = give;
    gives[0] = 0;
    gives[1] = 56 << 10;
    gives_count = 0;
    begin(0);
    write_one(&fx, 1, 1, 40000);
    no_room();
    gives_count = 1;
    gives_at = 0;
    reopen(false);
    ck_assert_uint_eq(gives_at, 0);  // It has a file: what others keep is for what comes then.
    struct sent *a = submit(&fx, 1, 2, 40000);
    drive(&fx);
    ck_assert_int_eq(wal_write_small(fx.wal), RC_NO_SPACE);
    ck_assert_uint_eq(gives_at, 1);
    ck_assert(!fx.config.disk->failed);
    gives_count = 2;
    gives_at = 0;
    ck_assert_int_eq(wal_write_small(fx.wal), RC_OK);
    wal_complete(fx.wal, RC_OK);
    ck_assert(a->is_done);
    room();
    reopen(true);
    expect_seen(2);
}
END_TEST

START_TEST(a_start_that_has_no_file_to_go_on_in_asks_for_more_room)
{
    fx.config.more_room = give;
    gives[0] = 56 << 10;
    gives_count = 0;
    begin(0);
    write_one(&fx, 1, 1, 40000);
    no_room();
    gives_count = 1;
    gives_at = 0;
    fx.config.align = 4096;
    reopen(false);
    expect_seen(1);
    ck_assert_uint_eq(gives_at, 1);
    write_one(&fx, 1, 2, 1000);
    room();
    reopen(true);
    expect_seen(2);
}
END_TEST

START_TEST(a_reserve_is_kept_over_a_restart_and_used_by_it)
{
    begin(1);
    write_one(&fx, 1, 1, 40000);
    no_room();
    reopen(false);  // Needs a new file.
    expect_seen(1);
    write_one(&fx, 1, 2, 10000);
}
END_TEST

START_TEST(trimming_gives_away_what_is_beyond_the_reserve)
{
    begin(1);
    for (uint64_t i = 1; i <= 4; i++) {
        write_one(&fx, 1, i, 40000);
    }
    for (uint64_t seq = wal_current_seq(fx.wal) - 3; seq < wal_current_seq(fx.wal); seq++) {
        wal_retire(fx.wal, seq);
    }
    const uint64_t used = sim_disk_used(fx.disk);
    wal_trim(fx.wal);
    ck_assert_int_eq(fx.config.disk->sync_dir(fx.config.disk, "wal"), RC_OK);
    ck_assert_uint_le(sim_disk_used(fx.disk), used - 2 * (64 << 10));
    ck_assert(!wal_is_short(fx.wal));
}
END_TEST

// Files of the pool, of the reserve and of the log have numbers of their own, whatever comes in whatever order.
START_TEST(numbers_of_free_files_never_meet)
{
    struct rng rng;
    rng_seed(&rng, (uint64_t)_i + 1);
    begin(1);
    uint64_t oldest = 1, index = 0, retired_to = 0;
    for (int step = 0; step < 400; step++) {
        switch (rng_below(&rng, 7)) {
        case 0:
            no_room();
            break;
        case 1:
            room();
            break;
        case 2:
            (void)wal_top_up(fx.wal);
            break;
        case 3:
            wal_trim(fx.wal);
            break;
        case 4:
            if (oldest < wal_current_seq(fx.wal) && fx.wal->file) {
                retired_to = index;
                wal_retire(fx.wal, oldest++);
            }
            break;
        case 5:
            submit(&fx, 1, ++index, rng_below(&rng, 8) == 0 ? 100000 : 30000);
            drive(&fx);
            break;
        case 6:
            drive(&fx);
            break;
        }
        for (uint32_t i = 0; i < fx.wal->pool_count; i++) {
            for (uint32_t k = 0; k < i; k++) {
                ck_assert_uint_ne(fx.wal->pool[i], fx.wal->pool[k]);
            }
            char path[WAL_PATH_MAX];
            wal_free_path(fx.wal, fx.wal->pool[i], path);
            ck_assert(sim_disk_exists(fx.disk, path));
        }
        ck_assert(!fx.config.disk->failed);
    }
    room();
    drive(&fx);
    for (uint32_t i = 0; i < fx.sent_count; i++) {
        ck_assert(fx.sent[i]->is_done);
        ck_assert_int_eq(fx.sent[i]->submission.result, RC_OK);
    }
    sim_disk_kill(fx.disk);
    close_wal(&fx);
    ck_assert_int_eq(try_open(&fx, oldest), RC_OK);
    ck_assert(!fx.report.is_corrupt);
    ck_assert_uint_ge(retired_to + fx.seen_count, index > retired_to ? index - retired_to : 0);
    if (index > 0 && fx.seen_count > 0) {
        ck_assert_uint_eq(fx.seen[fx.seen_count - 1].index, index);
    }
}
END_TEST

static enum rc full_sync(struct disk_file *f)
{
    (void)f;
    return RC_NO_SPACE;
}

// What a sync loses for want of room may be of batches long acknowledged, in a file that is in use; a new
// file is nobody's yet.
START_TEST(a_sync_without_room_is_a_failure_in_a_file_in_use_and_none_in_a_new_one)
{
    begin(0);
    enum rc (*sync)(struct disk_file *f) = fx.config.disk->sync;
    write_one(&fx, 1, 1, 40000);
    fx.config.disk->sync = full_sync;
    struct sent *a = submit(&fx, 1, 2, 40000);
    drive(&fx);
    ck_assert(!a->is_done);
    fx.config.disk->sync = sync;
    drive(&fx);
    ck_assert_int_eq(a->submission.result, RC_OK);
    fx.config.disk->sync = full_sync;
    struct sent *b = submit(&fx, 1, 3, 100);
    drive(&fx);
    ck_assert_int_eq(b->submission.result, RC_IO);
    ck_assert(fx.config.disk->failed);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("wal_room");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, without_room_for_a_new_file_all_waits_and_goes_on_when_there_is_room);
    tcase_add_test(t, a_try_in_vain_takes_no_room_from_others);
    tcase_add_loop_test(t, what_waits_for_room_when_the_node_ends_was_not_promised_and_what_was_is_there, 0, 2);
    tcase_add_loop_test(t, a_start_without_room_goes_on_in_the_last_file, 0, 2);
    tcase_add_loop_test(t, over_any_crashes_on_a_full_disk_nothing_promised_is_lost_or_taken_for_damage, 0, 200);
    tcase_add_test(t, a_new_log_is_not_begun_without_its_first_file_so_that_none_never_means_that_it_is_lost);
    tcase_add_loop_test(t, a_damaged_or_lost_log_opens_without_room_and_goes_on_when_there_is_some, 0, 2);
    tcase_add_loop_test(t, a_last_file_that_the_log_cannot_go_on_in_keeps_what_it_has_until_there_is_room, 0, 3);
    tcase_add_test(t, a_start_with_little_room_begins_a_smaller_file);
    tcase_add_test(t, a_retired_file_is_room);
    tcase_add_test(t, the_file_in_reserve_carries_the_log_on_when_the_disk_is_full);
    tcase_add_test(t, a_batch_that_has_waited_begins_a_small_file_where_a_whole_one_has_no_room);
    tcase_add_test(t, a_large_record_that_has_waited_gets_the_room_that_others_keep_in_reserve);
    tcase_add_test(t, what_waits_for_a_file_asks_for_more_room_until_there_is_enough_or_none);
    tcase_add_test(t, a_start_that_has_no_file_to_go_on_in_asks_for_more_room);
    tcase_add_test(t, a_reserve_is_kept_over_a_restart_and_used_by_it);
    tcase_add_test(t, trimming_gives_away_what_is_beyond_the_reserve);
    tcase_add_loop_test(t, numbers_of_free_files_never_meet, 0, 10);
    tcase_add_test(t, a_sync_without_room_is_a_failure_in_a_file_in_use_and_none_in_a_new_one);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
