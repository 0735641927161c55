// SPDX-License-Identifier: Apache-2.0
// Large submissions: written in slices beside small ones, whole or absent after any crash.
// links: node/base proto consensus/wal tests/sim
#include "tests/unit/consensus/wal_fixture.h"

enum { SEEDS = 200, SLICE = 1024, GROUPS = 5, FIRST_LARGE = 4 };

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, 64 << 10, 8);
    fx.config.slice_bytes = SLICE;
    open_wal(&fx);
}
static void teardown(void)
{
    fixture_deinit(&fx);
}

static void one_batch(void)
{
    ck_assert(wal_compose(fx.wal));
    ck_assert_int_eq(drive_once(&fx), RC_OK);
}

static bool was_seen(const struct fixture *f, uint64_t group, uint64_t index)
{
    for (uint32_t i = 0; i < f->seen_count; i++) {
        if (f->seen[i].group == group && f->seen[i].index == index) {
            return true;
        }
    }
    return false;
}

// Where the first slice of the large record begins and the last one ends.
static void reopen_copy(struct fixture *copy, const char *flip, uint64_t at, int bit)
{
    fixture_init(copy, fx.config.file_bytes, fx.config.align);
    sim_disk_destroy(copy->disk);
    copy->disk = sim_disk_clone(fx.disk);
    if (flip != NULL) {
        sim_disk_flip_bit(copy->disk, flip, at, (unsigned)bit);
    }
    open_wal(copy);
}

START_TEST(small_records_pass_a_large_one_under_way)
{
    struct sent *large = submit_large(&fx, 4, 1, 10 * SLICE);
    uint32_t batches = 0;
    for (; !large->is_done; batches++) {
        struct sent *small = submit(&fx, 1, batches + 1, 100);
        one_batch();
        ck_assert(small->is_done);
        ck_assert_uint_lt(batches, 20);
    }
    ck_assert_uint_ge(batches, 10);
    ck_assert_int_eq(large->submission.result, RC_OK);
    assert_record_at(&fx, large->range.file_seq, large->range.file_offset, 4, 1, 10 * SLICE);
}
END_TEST

START_TEST(a_large_record_alone_is_written_without_waiting_for_small_ones)
{
    struct sent *large = submit_large(&fx, 4, 1, 3 * SLICE);
    drive(&fx);
    ck_assert(large->is_done);
    close_wal(&fx);
    open_wal(&fx);
    ck_assert_uint_eq(fx.seen_count, 1);
    ck_assert(was_seen(&fx, 4, 1));
    assert_seen_readable(&fx);
}
END_TEST

START_TEST(a_large_one_never_completes_before_what_was_submitted_ahead_of_it)
{
    for (uint64_t i = 1; i <= 8; i++) {
        submit(&fx, 1, i, 900);
    }
    struct sent *large = submit_large(&fx, 4, 9, 10);
    for (uint64_t i = 10; i <= 12; i++) {
        submit(&fx, 1, i, 900);
    }
    drive(&fx);
    ck_assert(large->is_done);
    for (uint32_t i = 0; i < fx.done_count; i++) {
        ck_assert(fx.done_order[i] != 9 || i >= 8);
    }
}
END_TEST

START_TEST(a_region_is_opened_only_once_what_was_submitted_ahead_of_it_is_durable)
{
    for (uint64_t i = 1; i <= 12; i++) {
        submit(&fx, 1, i, 900);  // More than the batches between the slices would take.
    }
    struct sent *large = submit_large(&fx, 4, 13, 2 * SLICE);
    drive(&fx);
    ck_assert(large->is_done);
    ck_assert_uint_eq(fx.done_count, 13);
    ck_assert_uint_eq(fx.done_order[12], 13);
}
END_TEST

static struct sent *submit_empty_named(uint64_t group, uint64_t index)
{
    struct sent *s = sent_add(&fx, index);
    s->is_empty = true;
    s->group = group;
    s->submission.group = group;
    wal_submit(fx.wal, &s->submission);
    return s;
}

START_TEST(what_names_one_group_completes_in_order_and_other_groups_pass_it)
{
    submit_large(&fx, 4, 1, 5 * SLICE);
    submit_empty_named(4, 2);
    submit_large(&fx, 4, 3, 20);
    struct sent *other = submit_large(&fx, 5, 1, 30);
    submit_large(&fx, 5, 2, 4 * SLICE);
    struct sent *empty = submit_empty_named(6, 1);
    struct sent *ordinary = submit(&fx, 1, 1, 20);
    one_batch();
    ck_assert(other->is_done && ordinary->is_done && empty->is_done);
    ck_assert_uint_eq(fx.done_count, 3);
    drive(&fx);
    ck_assert_uint_eq(fx.done_count, 7);
    ck_assert_uint_eq(fx.done_order[3], 1);
    ck_assert_uint_eq(fx.done_order[4], 2);
    ck_assert(fx.done_order[5] == 3 || fx.done_order[6] == 3);
}
END_TEST

START_TEST(a_group_that_had_a_large_record_once_is_as_fast_as_the_others)
{
    submit_large(&fx, 4, 1, 20 * SLICE);
    struct sent *last = submit_large(&fx, 5, 1, 2 * SLICE);
    while (!last->is_done) {  // Both in turn.
        one_batch();
    }
    submit_large(&fx, 4, 2, 40 * SLICE);
    one_batch();
    for (uint64_t i = 2; i < 20; i++) {
        last = submit_large(&fx, 5, i, 100);  // Still under its name, because the one before is under way.
        submit_large(&fx, 5, i + 100, 100);
        one_batch();
        ck_assert(last->is_done);
    }
}
END_TEST

START_TEST(ordinary_ones_that_fill_every_batch_do_not_keep_the_named_out)
{
    struct sent *named = NULL;
    submit_large(&fx, 5, 1, 60 * SLICE);
    uint64_t batches = 0;
    for (uint64_t i = 1; i <= 20; i++) {
        for (int k = 0; k < 4; k++) {
            submit(&fx, 1, 4 * i + (uint64_t)k, 900);
        }
        if (i == 3) {
            named = submit_large(&fx, 4, 1, 200);
        }
        one_batch();
        batches += named != NULL && !named->is_done;
    }
    ck_assert(named->is_done);
    ck_assert_uint_lt(batches, 16);
}
END_TEST

START_TEST(an_empty_large_one_waits_for_the_ordinary_ones_ahead_of_it)
{
    submit(&fx, 1, 1, 100);
    struct sent *s = submit_empty_named(4, 2);
    ck_assert(wal_compose(fx.wal));
    ck_assert(!s->is_done);
    (void)drive_once(&fx);
    drive(&fx);
    ck_assert(s->is_done);
}
END_TEST

START_TEST(a_record_larger_than_a_file_gets_a_file_that_holds_it_and_small_ones)
{
    struct sent *large = submit_large(&fx, 4, 1, 200 << 10);
    struct sent *small = submit(&fx, 1, 1, 100);
    one_batch();
    ck_assert(small->is_done);
    ck_assert(!large->is_done);
    drive(&fx);
    ck_assert(large->is_done);
    ck_assert_uint_eq(large->range.file_seq, small->range.file_seq);
    close_wal(&fx);
    open_wal(&fx);
    ck_assert(was_seen(&fx, 4, 1) && was_seen(&fx, 1, 1));
    assert_seen_readable(&fx);
}
END_TEST

START_TEST(a_file_is_not_left_while_a_region_in_it_is_open)
{
    struct sent *large = submit_large(&fx, 4, 1, 40 << 10);
    one_batch();
    uint64_t seq = fx.wal->seq;
    ck_assert_uint_eq(large->range.file_seq, seq);
    struct sent *small = NULL;
    for (uint64_t i = 1; !large->is_done; i++) {
        small = submit(&fx, 1, i, 4000);  // Fills what is left of the file before the region is done.
        one_batch();
        ck_assert_uint_eq(fx.wal->seq, seq);
        ck_assert_uint_lt(i, 40);
    }
    drive(&fx);
    ck_assert_uint_ge(small->range.file_seq, seq);
    close_wal(&fx);
    open_wal(&fx);
    ck_assert(was_seen(&fx, 4, 1));
    ck_assert(was_seen(&fx, 1, small->index));
    assert_seen_readable(&fx);
}
END_TEST

START_TEST(a_region_without_its_record_never_was)
{
    submit_large(&fx, 4, 1, 6 * SLICE);
    for (uint64_t i = 1; i <= 3; i++) {
        submit(&fx, 1, i, 50);
        one_batch();
    }
    close_wal(&fx);
    sim_disk_kill(fx.disk);
    open_wal(&fx);
    ck_assert(!fx.report.is_corrupt);
    ck_assert(!was_seen(&fx, 4, 1));
    ck_assert_uint_eq(fx.seen_count, 3);
}
END_TEST

START_TEST(every_flipped_bit_of_a_region_is_a_cut_tail_or_its_groups_damage)
{
    write_one(&fx, 1, 1, 50);
    struct sent *large = submit_large(&fx, 4, 1, 2 * SLICE);
    drive(&fx);
    submit(&fx, 2, 1, 30);
    char path[64];
    path_of(large->range.file_seq, path);
    for (int proven = 0; proven < 2; proven++) {
        for (uint64_t at = 0; at < record_size(2 * SLICE); at += at < 64 ? 1 : 97) {
            struct fixture copy;
            reopen_copy(&copy, path, large->range.file_offset + at, (int)(at % 8));
            ck_assert(was_seen(&copy, 1, 1));
            ck_assert(!was_seen(&copy, 4, 1));
            if (proven) {
                ck_assert(copy.report.is_corrupt && copy.report.corrupt_groups_known);
                ck_assert_uint_eq(copy.corrupt_count, 1);
                ck_assert_uint_eq(copy.corrupt[0], 4);
                ck_assert(was_seen(&copy, 2, 1));
            } else {
                ck_assert(!copy.report.is_corrupt);
            }
            fixture_deinit(&copy);
        }
        drive(&fx);
        if (!proven) {
            write_mark(&fx);
        }
    }
}
END_TEST

START_TEST(a_damaged_record_of_a_region_leaves_nobody_above_suspicion)
{
    struct sent *large = submit_large(&fx, 4, 1, 2 * SLICE);
    uint64_t at = 0;
    while (!large->is_done) {
        ck_assert(wal_compose(fx.wal));
        at = fx.wal->batch.offset + WAL_BATCH_HEADER_BYTES + offsetof(struct record_disk, index);
        (void)drive_once(&fx);
    }
    write_one(&fx, 1, 1, 50);
    char path[64];
    path_of(large->range.file_seq, path);
    struct fixture copy;
    reopen_copy(&copy, path, at, 3);
    ck_assert(copy.report.is_corrupt && !copy.report.corrupt_groups_known);
    fixture_deinit(&copy);
}
END_TEST

START_TEST(a_kept_tail_with_a_region_is_copied_whole)
{
    struct sent *large = submit_large(&fx, 4, 1, 2 * SLICE);
    submit(&fx, 1, 1, 50);
    drive(&fx);
    ck_assert(large->is_done);
    sim_disk_kill(fx.disk);  // No mark: nothing vouches for the last batch.
    close_wal(&fx);
    open_wal(&fx);
    ck_assert_uint_eq(fx.seen_count, 2);
    assert_seen_readable(&fx);
    close_wal(&fx);
    struct rng rng;
    rng_seed(&rng, 5);
    sim_disk_crash(fx.disk, &rng);
    open_wal(&fx);
    ck_assert_uint_eq(fx.seen_count, 2);
    assert_seen_readable(&fx);
}
END_TEST

// ---- crashes ---------------------------------------------------------------------------------------------------

struct matrix {
    struct rng rng;
    uint64_t next[GROUPS + 1];   // Index each group sends next.
    uint64_t acked[GROUPS + 1];
};

static void matrix_run(struct matrix *m)
{
    while (!sim_disk_is_dead(fx.disk)) {
        for (uint64_t n = rng_below(&m->rng, 6); n > 0; n--) {
            uint64_t group = 1 + rng_below(&m->rng, GROUPS);
            uint32_t len = (uint32_t)rng_below(&m->rng, 1500);
            if (group >= FIRST_LARGE) {
                len = rng_below(&m->rng, 3) == 0 ? 100 : len * (uint32_t)(1 + rng_below(&m->rng, 12));
            }
            submit_as(&fx, group, m->next[group]++, len, group >= FIRST_LARGE);
        }
        for (uint64_t n = rng_below(&m->rng, 5); n > 0 && wal_compose(fx.wal); n--) {
            (void)drive_once(&fx);
        }
        if (fx.config.disk->failed) {
            break;
        }
    }
    if (!fx.config.disk->failed && wal_compose(fx.wal)) {
        (void)drive_once(&fx);  // On a dead disk: fails.
    }
    for (uint32_t i = 0; i < fx.sent_count; i++) {
        const struct sent *s = fx.sent[i];
        if (s->is_done && s->submission.result == RC_OK && s->index > m->acked[s->group]) {
            m->acked[s->group] = s->index;
        }
    }
}

static void matrix_recover(struct matrix *m)
{
    enum rc rc = RC_IO;
    do {
        close_wal(&fx);
        if (rng_below(&m->rng, 3) == 0) {
            sim_disk_kill(fx.disk);
        } else {
            sim_disk_crash(fx.disk, &m->rng);
        }
        if (rng_below(&m->rng, 3) == 0) {  // Dies again while it recovers.
            sim_disk_crash_after(fx.disk, rng_below(&m->rng, 12));
        }
        rc = try_open(&fx, 1);
    } while (rc != RC_OK || sim_disk_is_dead(fx.disk));
    ck_assert(!fx.report.is_corrupt);
    uint64_t last[GROUPS + 1] = {0};
    for (uint32_t i = 0; i < fx.seen_count; i++) {
        const struct seen *s = &fx.seen[i];
        if (s->group > GROUPS || s->index != last[s->group] + 1) {
            ck_abort_msg("group %lu: index %lu behind %lu", (unsigned long)s->group, (unsigned long)s->index,
                         (unsigned long)last[s->group]);
        }
        last[s->group] = s->index;
    }
    sim_disk_crash_after(fx.disk, UINT64_MAX);
    assert_seen_readable(&fx);
    for (uint64_t g = 1; g <= GROUPS; g++) {
        ck_assert_uint_ge(last[g], m->acked[g]);
        ck_assert_uint_lt(last[g], m->next[g]);
        m->acked[g] = last[g];
        m->next[g] = last[g] + 1;
    }
    fixture_forget_sent(&fx);
    fx.closed_count = 0;
}

START_TEST(large_and_small_ones_keep_their_order_and_what_was_acknowledged_over_any_crash)
{
    static const uint32_t aligns[] = {8, 512, 4096};
    uint64_t large = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        fixture_deinit(&fx);
        fixture_init(&fx, 32 << 10, aligns[seed % 3]);
        fx.config.slice_bytes = 512u << rng_below(&(struct rng){{seed, seed, 1, 2}}, 4);
        open_wal(&fx);
        struct matrix m = {0};
        for (uint64_t g = 1; g <= GROUPS; g++) {
            m.next[g] = 1;
        }
        rng_seed(&m.rng, seed);
        for (int round = 0; round < 6; round++) {
            sim_disk_crash_after(fx.disk, rng_below(&m.rng, 60));
            matrix_run(&m);
            matrix_recover(&m);
        }
        large += m.acked[FIRST_LARGE];
    }
    ck_assert_uint_gt(large, SEEDS);  // The test did what it says.
}
END_TEST

int main(void)
{
    Suite *s = suite_create("wal_region");
    TCase *t = tcase_create("region");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, small_records_pass_a_large_one_under_way);
    tcase_add_test(t, a_large_record_alone_is_written_without_waiting_for_small_ones);
    tcase_add_test(t, a_large_one_never_completes_before_what_was_submitted_ahead_of_it);
    tcase_add_test(t, a_region_is_opened_only_once_what_was_submitted_ahead_of_it_is_durable);
    tcase_add_test(t, what_names_one_group_completes_in_order_and_other_groups_pass_it);
    tcase_add_test(t, a_group_that_had_a_large_record_once_is_as_fast_as_the_others);
    tcase_add_test(t, ordinary_ones_that_fill_every_batch_do_not_keep_the_named_out);
    tcase_add_test(t, an_empty_large_one_waits_for_the_ordinary_ones_ahead_of_it);
    tcase_add_test(t, a_record_larger_than_a_file_gets_a_file_that_holds_it_and_small_ones);
    tcase_add_test(t, a_file_is_not_left_while_a_region_in_it_is_open);
    tcase_add_test(t, a_region_without_its_record_never_was);
    tcase_add_test(t, every_flipped_bit_of_a_region_is_a_cut_tail_or_its_groups_damage);
    tcase_add_test(t, a_damaged_record_of_a_region_leaves_nobody_above_suspicion);
    tcase_add_test(t, a_kept_tail_with_a_region_is_copied_whole);
    tcase_add_test(t, large_and_small_ones_keep_their_order_and_what_was_acknowledged_over_any_crash);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
