// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus consensus/raft consensus/solo consensus/store consensus/wal gen tests/sim
// Retirement of WAL files, snapshots, checkpoints, recovery from all of them; crashes at every operation.
#include "tests/unit/consensus/store_retire_fixture.h"

START_TEST(a_full_file_is_retired_and_what_is_live_is_read_from_the_segment)
{
    append_many(&fx, 1, 1, 500, 20);
    append_many(&fx, 2, 1, 100, 20);
    fx.models[1].snapshots_refused = fx.models[2].snapshots_refused = true;
    roll_file(&fx);
    ck_assert_uint_eq(fx.retired[0], 1);
    struct glog *g = log_of(&fx, 1);
    ck_assert_uint_eq(g->runs_count, 1);
    ck_assert_uint_eq(g->window_count, 0);
    ck_assert_ptr_null(g->window);  // Nothing in memory once retired.
    check_all(&fx);
    crash_and_check(&fx, NULL);
    roll_file(&fx);
    check_all(&fx);
    crash_and_check(&fx, NULL);
}
END_TEST

START_TEST(large_records_are_retired_in_pieces_and_read_back_whole)
{
    // Around the size from which on they are copied in pieces, and around whole pieces.
    const uint32_t sizes[] = {4 << 20, 5 << 20, 6 << 20};
    for (size_t i = 0; i < 3; i++) {
        for (int delta = -9; delta <= 9; delta += 3) {
            append(&fx, 1, 1, sizes[i] - RECORD_HEADER_BYTES + (uint32_t)delta);
            append(&fx, 2, 1, 100);
        }
    }
    fx.models[1].snapshots_refused = fx.models[2].snapshots_refused = true;
    roll_file(&fx);
    struct glog *g = log_of(&fx, 1);
    for (int i = 0; i < 64 && g->window_count > 0; i++) {  // Their file has room for more than small files have.
        append(&fx, 3, 1, 900 << 10);
        settle(&fx);
    }
    roll_file(&fx);
    ck_assert_uint_eq(g->window_count, 0);  // All of them are in segments.
    ck_assert_uint_le(g->worker->cold.buf_cap, COLD_AHEAD_MAX);
    check_all(&fx);
    crash_and_check(&fx, NULL);
}
END_TEST

START_TEST(a_file_of_more_groups_than_one_harvest_takes_is_retired_in_parts)
{
    fixture_deinit(&fx);
    fixture_harvest_groups = 3;
    setup();
    for (uint64_t g = 1; g < GROUPS_MAX; g++) {
        append(&fx, g, 1, 100);
        fx.models[g].snapshots_refused = true;
    }
    settle(&fx);
    glog_snapshot_request(log_of(&fx, 1));  // One that is refused holds up nothing.
    roll_file(&fx);
    ck_assert_uint_eq(fx.retired_count, 1);
    ck_assert_uint_ge(files_in("seg", "seg-"), 3);
    for (uint64_t g = 1; g < GROUPS_MAX; g++) {
        ck_assert_uint_eq(log_of(&fx, g)->runs_count, 1);
    }
    check_all(&fx);
    crash_and_check(&fx, NULL);
    fixture_harvest_groups = 0;
}
END_TEST

START_TEST(a_snapshot_leaves_exactly_the_live_entries)
{
    append_many(&fx, 1, 1, 300, 60);
    fx.models[1].committed = 50;
    settle_messages(&fx, 1, 1, 10);
    settle_messages(&fx, 1, 12, 12);
    settle_messages(&fx, 1, 20, 48);
    roll_file(&fx);
    ck_assert_uint_eq(fx.models[1].published, 50);
    ck_assert_uint_eq(glog_first(log_of(&fx, 1)), 51);
    check_group(&fx, 1);
    check_state(&fx, 1, 50, 100);
    crash_and_check(&fx, NULL);
    ck_assert_uint_eq(fx.found[1].first, 51);
    ck_assert_uint_eq(fx.found[1].snapshot_config.members[1].replica_id, 12);
    ck_assert_uint_eq(fx.found[1].config.count, 2);
    check_state(&fx, 1, 50, 100);
}
END_TEST

START_TEST(a_queue_that_keeps_up_leaves_almost_nothing)
{
    for (int i = 0; i < 8; i++) {
        roll_file(&fx);
    }
    ck_assert_uint_le(wal_file_count(store_wal(fx.store)), 2);
    ck_assert_uint_le(files_in("seg", "seg-"), 2);
    ck_assert_uint_eq(files_in("seg", "groups-"), 1);
    ck_assert_uint_le(log_of(&fx, GROUPS_MAX)->window_count, 8);
    crash_and_check(&fx, NULL);
}
END_TEST

START_TEST(two_snapshots_in_a_row_leave_the_second)
{
    append_many(&fx, 1, 1, 100, 30);
    settle_messages(&fx, 1, 1, 9);
    request_snapshot(1, 10);
    check_group(&fx, 1);
    settle_messages(&fx, 1, 15, 20);
    request_snapshot(1, 20);
    check_group(&fx, 1);
    check_state(&fx, 1, 20, 100);
    settle(&fx);
    ck_assert_uint_eq(files_in("seg", "seg-"), 1);
    crash_and_check(&fx, NULL);
    check_state(&fx, 1, 20, 100);
    roll_file(&fx);
    check_group(&fx, 1);
}
END_TEST

START_TEST(requests_of_one_turn_share_one_file)
{
    append_many(&fx, 1, 1, 100, 5);
    append_many(&fx, 2, 1, 100, 5);
    fx.models[1].committed = 5;
    fx.models[2].committed = 4;
    glog_snapshot_request(log_of(&fx, 1));
    glog_snapshot_request(log_of(&fx, 2));
    settle(&fx);
    ck_assert_uint_eq(fx.models[1].published, 5);
    ck_assert_uint_eq(fx.models[2].published, 4);
    ck_assert_uint_eq(files_in("seg", "seg-"), 1);
}
END_TEST

START_TEST(index_and_live_set_change_as_one_value)
{
    append_many(&fx, 1, 1, 100, 30);
    settle_messages(&fx, 1, 1, 4);
    request_snapshot(1, 10);
    settle_messages(&fx, 1, 5, 15);
    fx.models[1].committed = 20;
    glog_snapshot_request(log_of(&fx, 1));
    flush(&fx);
    // While it is written, sealed and not yet told, the old index goes with the old live set.
    do {
        ck_assert_uint_eq(glog_first(log_of(&fx, 1)), 11);
        ck_assert(has_entry(&fx, 1, 5, &fx.models[1].entries[5]));
        ck_assert(is_absent(&fx, 1, 4));
    } while (fx.models[1].published == 10 && step_job(&fx, 0) && fx.models[1].published == 10);
    ck_assert_uint_eq(glog_first(log_of(&fx, 1)), 21);
    check_group(&fx, 1);
}
END_TEST

START_TEST(a_large_state_and_a_large_live_set_go_through_many_chunks)
{
    fx.models[1].state_bytes = (5 << 19) + 123;  // 2.5 MiB: three chunks.
    append_many(&fx, 1, 1, 10, 40);
    for (uint64_t i = 1; i <= 40; i += 2) {
        settle_messages(&fx, 1, i, i);
    }
    request_snapshot(1, 40);
    check_state(&fx, 1, 40, (5 << 19) + 123);
    ck_assert_uint_eq(log_of(&fx, 1)->snapshot->chunks, 4);
    crash_and_check(&fx, NULL);
    check_state(&fx, 1, 40, (5 << 19) + 123);
}
END_TEST

START_TEST(a_vote_outlives_the_file_it_was_written_in)
{
    write_hard_state(&fx, 1, 7, 11);
    append(&fx, 2, 1, 10);
    settle(&fx);
    roll_file(&fx);
    roll_file(&fx);
    ck_assert_uint_ge(fx.retired_count, 2);
    crash_and_check(&fx, NULL);
    ck_assert_uint_eq(fx.found[1].hard_state.term, 7);
    ck_assert_uint_eq(fx.found[1].hard_state.vote, 11);
    write_hard_state(&fx, 1, 8, 0);  // A new term clears the vote.
    settle(&fx);
    crash_and_check(&fx, NULL);
    ck_assert_uint_eq(fx.found[1].hard_state.vote, 0);
}
END_TEST

START_TEST(a_truncation_outlives_the_file_it_was_written_in)
{
    fx.models[1].snapshots_refused = true;
    append_many(&fx, 1, 1, 100, 30);
    roll_file(&fx);  // 1..30 are in a segment now.
    truncate_from(&fx, 1, 21);
    append_many(&fx, 1, 2, 100, 3);
    truncate_from(&fx, 1, 22);
    settle(&fx);
    check_group(&fx, 1);
    crash_and_check(&fx, NULL);
    roll_file(&fx);
    roll_file(&fx);
    check_group(&fx, 1);
    crash_and_check(&fx, NULL);
    ck_assert_uint_eq(fx.models[1].last, 21);
    append_many(&fx, 1, 3, 100, 12);
    roll_file(&fx);
    crash_and_check(&fx, NULL);
}
END_TEST

START_TEST(a_truncation_while_a_segment_is_written_wins)
{
    fx.models[1].snapshots_refused = true;
    append_many(&fx, 1, 1, 100, 30);
    fx.models[GROUPS_MAX].committed = 0;
    while (fx.closed_count == 0) {
        append(&fx, GROUPS_MAX, 1, 4000);
        flush(&fx);
        (void)pump_wal(&fx);
        tell_done(&fx);
    }
    tell_closed(&fx);
    flush(&fx);
    run_until_sealed(1);
    truncate_from(&fx, 1, 11);
    append(&fx, 1, 2, 77);
    settle(&fx);
    check_group(&fx, 1);
    crash_and_check(&fx, NULL);
    ck_assert_uint_eq(fx.models[1].last, 11);
}
END_TEST

START_TEST(a_segment_stays_until_the_truncation_that_emptied_it_is_durable)
{
    fx.models[1].snapshots_refused = true;
    append_many(&fx, 1, 1, 100, 30);
    roll_file(&fx);
    append(&fx, GROUPS_MAX, 1, 10);
    settle(&fx);
    request_snapshot(GROUPS_MAX,
                     fx.models[GROUPS_MAX].last);  // Nothing but group 1 is in the first segment now.
    truncate_from(&fx, 1, 1);
    for (int i = 0; i < 3; i++) {
        flush(&fx);
        while (step_job(&fx, 0)) {
        }
    }
    crash_and_check(&fx, NULL);  // The truncate record was not written.
    ck_assert_uint_eq(fx.models[1].last, 30);
    truncate_from(&fx, 1, 1);
    settle(&fx);
    ck_assert(!sim_disk_exists(fx.disk, "seg/seg-0000000000000001"));
    crash_and_check(&fx, NULL);
    ck_assert_uint_eq(fx.models[1].last, 0);
}
END_TEST

START_TEST(a_configuration_in_a_retired_file_is_recovered)
{
    fx.models[1].snapshots_refused = true;
    append_many(&fx, 1, 1, 100, 3);
    struct config c = toy_config(9);
    struct buf b;
    buf_init(&b);
    config_encode(&c, &b);
    struct glog_part part = {b.ptr, b.len};
    ck_assert_int_eq(glog_append(log_of(&fx, 1), 4, 1, RECORD_CONFIG, 0, &part, 1, false), RC_OK);
    buf_deinit(&b);
    struct glog_part more = {"x", 1};
    ck_assert_int_eq(glog_append(log_of(&fx, 1), 5, 1, RECORD_ENTRY, 0, &more, 1, false), RC_OK);
    settle(&fx);
    roll_file(&fx);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    fixture_open(&fx);
    ck_assert_uint_eq(fx.found[1].config.index, 4);
    ck_assert_uint_eq(fx.found[1].config.members[0].replica_id, 91);
    ck_assert_uint_eq(fx.found[1].last, 5);
    ck_assert(!fx.found[1].is_amnesiac);
}
END_TEST

START_TEST(a_deleted_group_stays_deleted_and_its_segments_go)
{
    fx.models[1].snapshots_refused = true;
    append_many(&fx, 1, 1, 1000, 30);
    roll_file(&fx);
    uint32_t before = files_in("seg", "seg-");
    glog_delete(log_of(&fx, 1));
    fx.logs[1] = NULL;
    settle(&fx);
    roll_file(&fx);
    ck_assert_uint_le(files_in("seg", "seg-"), before);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    fixture_open(&fx);
    ck_assert_uint_eq(fx.found[1].group, 0);
    // The same group under a new replica id, later: nothing of the old life shows.
    fx.models[1].last = 0;
    fx.models[1].ops_count = 0;
    append_many(&fx, 1, 9, 10, 2);
    roll_file(&fx);
    crash_and_check(&fx, NULL);
    ck_assert_uint_eq(fx.found[1].last, 2);
}
END_TEST

START_TEST(damage_in_a_segment_makes_amnesiac_those_who_need_it_and_no_one_else)
{
    fx.models[1].snapshots_refused = true;
    append_many(&fx, 1, 1, 100, 30);
    append_many(&fx, 2, 1, 100, 1);
    fx.models[2].committed = 1;
    roll_file(&fx);
    append(&fx, 2, 1, 10);
    settle(&fx);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    ck_assert(sim_disk_exists(fx.disk, "seg/seg-0000000000000001"));
    sim_disk_cut(fx.disk, "seg/seg-0000000000000001", 5000, false);
    fixture_open(&fx);
    ck_assert(fx.found[1].is_amnesiac);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    fixture_open(&fx);
    ck_assert(fx.found[1].is_amnesiac);  // It does not heal by starting again.
}
END_TEST

START_TEST(a_start_that_finds_damage_keeps_what_else_there_is_of_the_group)
{
    fx.models[1].snapshots_refused = true;
    append_many(&fx, 1, 1, 100, 30);
    roll_file(&fx);
    append_many(&fx, 1, 1, 100, 30);
    for (int i = 0; i < 3; i++) {
        roll_file(&fx);
    }
    const struct glog *g = log_of(&fx, 1);
    char damaged[SEGMENT_PATH_MAX], healthy[SEGMENT_PATH_MAX];
    segment_path(g->runs[0].segment->seq, true, damaged);
    segment_path(g->runs[g->runs_count - 1].segment->seq, true, healthy);
    ck_assert_str_ne(damaged, healthy);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    sim_disk_cut(fx.disk, damaged, 5000, false);
    fixture_open(&fx);
    ck_assert(fx.found[1].is_amnesiac);
    ck_assert(sim_disk_exists(fx.disk, healthy));
    ck_assert(sim_disk_exists(fx.disk, damaged));
}
END_TEST

START_TEST(a_damaged_checkpoint_makes_every_group_amnesiac)
{
    write_hard_state(&fx, 1, 7, 11);
    append_many(&fx, 1, 1, 100, 3);
    roll_file(&fx);
    append(&fx, 1, 1, 10);
    settle(&fx);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    char path[64];
    snprintf(path, sizeof(path), "seg/groups-%016llx", (unsigned long long)fx.retired[fx.retired_count - 1]);
    ck_assert(sim_disk_exists(fx.disk, path));
    sim_disk_flip_bit(fx.disk, path, 100, 3);
    fixture_open(&fx);
    ck_assert(fx.report.is_corrupt);
    ck_assert(!fx.report.corrupt_groups_known);
    ck_assert(fx.found[1].group == 0 || fx.found[1].is_amnesiac);
}
END_TEST

static void remove_wal_file(void *ctx, const char *name)
{
    struct disk *d = ctx;
    char path[64];
    snprintf(path, sizeof(path), "wal/%s", name);
    ck_assert_int_eq(d->unlink(d, path), RC_OK);
}

START_TEST(an_emptied_log_directory_makes_every_group_amnesiac_at_every_start)
{
    write_hard_state(&fx, 1, 7, 11);
    append_many(&fx, 1, 1, 100, 3);
    roll_file(&fx);
    write_hard_state(&fx, 1, 8, 12);  // The vote that would be forgotten.
    settle(&fx);
    fixture_close(&fx);
    struct disk *d = sim_disk_base(fx.disk);
    ck_assert_int_eq(d->list(d, "wal", remove_wal_file, d), RC_OK);
    for (int start = 0; start < 3; start++) {
        fixture_open(&fx);
        ck_assert(fx.report.is_corrupt);
        ck_assert_uint_eq(fx.found[1].group, 1);
        ck_assert(fx.found[1].is_amnesiac);
        fixture_close(&fx);
    }
    fixture_open(&fx);
}
END_TEST

START_TEST(a_lost_checkpoint_is_noticed_by_the_logs_first_file)
{
    append_many(&fx, 1, 1, 100, 3);
    roll_file(&fx);
    append(&fx, 1, 1, 10);
    settle(&fx);
    fixture_close(&fx);
    char path[64];
    snprintf(path, sizeof(path), "seg/groups-%016llx", (unsigned long long)fx.retired[fx.retired_count - 1]);
    struct disk *d = sim_disk_base(fx.disk);
    ck_assert_int_eq(d->unlink(d, path), RC_OK);
    fixture_open(&fx);
    ck_assert(fx.report.is_corrupt);
    ck_assert(!fx.report.corrupt_groups_known);
    ck_assert(fx.found[1].group == 0 || fx.found[1].is_amnesiac);
}
END_TEST

START_TEST(a_replica_of_which_nothing_was_left_stays_amnesiac)
{
    ck_assert_ptr_nonnull(store_glog_create_lost(worker_of(&fx, 2), 2));
    roll_file(&fx);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    fixture_open(&fx);
    ck_assert(!fx.report.is_corrupt);
    ck_assert_uint_eq(fx.found[2].group, 2);
    ck_assert(fx.found[2].is_amnesiac);
}
END_TEST

START_TEST(a_full_disk_delays_retirement_and_loses_nothing)
{
    fx.models[1].snapshots_refused = true;
    append_many(&fx, 1, 1, 1000, 30);
    sim_disk_set_budget(fx.disk, 1);
    while (fx.closed_count == 0 && !is_dead(&fx)) {
        sim_disk_set_budget(fx.disk, UINT64_MAX);
        append(&fx, GROUPS_MAX, 1, 4000);
        flush(&fx);
        (void)pump_wal(&fx);
        tell_done(&fx);
    }
    tell_closed(&fx);
    sim_disk_set_budget(fx.disk, 1);
    flush(&fx);
    while (step_job(&fx, 0)) {
    }
    ck_assert_uint_eq(fx.retired_count, 0);
    ck_assert(!is_dead(&fx));
    sim_disk_set_budget(fx.disk, UINT64_MAX);
    roll_file(&fx);
    settle(&fx);
    check_group(&fx, 1);
    crash_and_check(&fx, NULL);
}
END_TEST

START_TEST(a_read_under_way_holds_the_wal_file_it_refers_to)
{
    fx.models[1].snapshots_refused = true;
    append_many(&fx, 1, 1, 1000, 20);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    fixture_open(&fx);  // Recovered: not in memory.
    uint64_t index = 3;
    bool is_done = false;
    struct glog_read r = {
        .indexes = &index, .indexes_count = 1, .bytes_max = 1, .done = on_read_done, .owner = &is_done};
    while (fx.closed_count == 0) {
        append(&fx, GROUPS_MAX, 1, 4000);
        flush(&fx);
        (void)pump_wal(&fx);
        tell_done(&fx);
    }
    tell_closed(&fx);
    flush(&fx);
    run_until_sealed(1);  // The read comes before it is published.
    glog_read_start(log_of(&fx, 1), &r);
    struct job *read_job = &r.job;
    ck_assert(step_job(&fx, 0));  // Published.
    ck_assert_ptr_eq(list_entry(fx.execs[0].waiting.next, struct job, link), read_job);
    for (int i = 0; i < 5; i++) {
        flush(&fx);
        (void)pump_wal(&fx);
        tell_done(&fx);
    }
    ck_assert_uint_eq(fx.retired_count, 0);  // As long as the read has not run.
    settle(&fx);
    ck_assert(is_done);
    ck_assert_int_eq(r.rc, RC_OK);
    ck_assert_uint_gt(fx.retired_count, 0);
    buf_deinit(&r.bytes);
}
END_TEST

START_TEST(every_worker_must_be_through_with_a_file_before_it_goes)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 3, 256 << 10, FILE_BYTES);
    for (uint64_t g = 1; g <= 5; g++) {
        append_many(&fx, g, 1, 300, 10);
        fx.models[g].snapshots_refused = g != 2;
        fx.models[g].committed = 8;
        write_hard_state(&fx, g, 4 + g, g);
    }
    roll_file(&fx);
    check_all(&fx);
    roll_file(&fx);
    ck_assert_uint_eq(fx.retired_count, fx.retired[fx.retired_count - 1]);  // Each once, in order.
    crash_and_check(&fx, NULL);
    // Another number of workers: segments belong to none in particular.
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    fx.workers_count = 2;
    fixture_open(&fx);
    check_recovered(&fx, (uint64_t[WORKERS_MAX]){0});
    roll_file(&fx);
    check_all(&fx);
}
END_TEST

// A fixed story with truncation, retirement, snapshots and votes, cut at disk operation `at`. Returns false
// if it ended first.
static bool story(uint64_t at, uint64_t seed, bool is_power_cut)
{
    static struct fixture f;
    fixture_init(&f, 2, 256 << 10, FILE_BYTES / 2);
    f.models[1].snapshots_refused = true;
    sim_disk_crash_after(f.disk, at);
    for (int round = 0; round < 3 && !is_dead(&f); round++) {
        for (uint64_t g = 1; g <= 4 && !is_dead(&f); g++) {
            struct model *m = &f.models[g];
            for (int i = 0; i < 6; i++) {
                append(&f, g, (uint64_t)round + 1, 700);
            }
            settle(&f);
            m->committed = m->last > 2 ? m->last - 2 : 0;
            settle_messages(&f, g, 1, m->committed / 2);
            if (g == 3 && m->last > m->committed) {
                truncate_from(&f, g, m->last);
                append(&f, g, (uint64_t)round + 2, 50);
            }
            write_hard_state(&f, g, (uint64_t)round + 2, g);
        }
        if (!is_dead(&f)) {
            glog_snapshot_request(log_of(&f, 2));
            roll_file(&f);
        }
    }
    bool was_cut = is_dead(&f);
    struct rng rng;
    rng_seed(&rng, seed);
    crash_and_check(&f, is_power_cut ? &rng : NULL);
    // And it goes on: everything can be retired again.
    roll_file(&f);
    check_all(&f);
    crash_and_check(&f, is_power_cut ? &rng : NULL);
    fixture_deinit(&f);
    return was_cut;
}

START_TEST(a_crash_at_any_disk_operation_loses_nothing)
{
    uint64_t at = 1;
    while (story(at, at, true)) {
        at++;
    }
    ck_assert_uint_gt(at, 50);  // It was a story.
}
END_TEST

START_TEST(a_killed_process_at_any_disk_operation_loses_nothing)
{
    for (uint64_t at = 1; story(at, at, false); at++) {
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("store, retirement");
    TCase *t = tcase_create("store");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, a_full_file_is_retired_and_what_is_live_is_read_from_the_segment);
    tcase_add_test(t, large_records_are_retired_in_pieces_and_read_back_whole);
    tcase_add_test(t, a_file_of_more_groups_than_one_harvest_takes_is_retired_in_parts);
    tcase_add_test(t, a_snapshot_leaves_exactly_the_live_entries);
    tcase_add_test(t, a_queue_that_keeps_up_leaves_almost_nothing);
    tcase_add_test(t, two_snapshots_in_a_row_leave_the_second);
    tcase_add_test(t, requests_of_one_turn_share_one_file);
    tcase_add_test(t, index_and_live_set_change_as_one_value);
    tcase_add_test(t, a_large_state_and_a_large_live_set_go_through_many_chunks);
    tcase_add_test(t, a_vote_outlives_the_file_it_was_written_in);
    tcase_add_test(t, a_truncation_outlives_the_file_it_was_written_in);
    tcase_add_test(t, a_truncation_while_a_segment_is_written_wins);
    tcase_add_test(t, a_segment_stays_until_the_truncation_that_emptied_it_is_durable);
    tcase_add_test(t, a_configuration_in_a_retired_file_is_recovered);
    tcase_add_test(t, a_deleted_group_stays_deleted_and_its_segments_go);
    tcase_add_test(t, damage_in_a_segment_makes_amnesiac_those_who_need_it_and_no_one_else);
    tcase_add_test(t, a_start_that_finds_damage_keeps_what_else_there_is_of_the_group);
    tcase_add_test(t, a_damaged_checkpoint_makes_every_group_amnesiac);
    tcase_add_test(t, an_emptied_log_directory_makes_every_group_amnesiac_at_every_start);
    tcase_add_test(t, a_lost_checkpoint_is_noticed_by_the_logs_first_file);
    tcase_add_test(t, a_replica_of_which_nothing_was_left_stays_amnesiac);
    tcase_add_test(t, a_full_disk_delays_retirement_and_loses_nothing);
    tcase_add_test(t, a_read_under_way_holds_the_wal_file_it_refers_to);
    tcase_add_test(t, every_worker_must_be_through_with_a_file_before_it_goes);
    tcase_add_test(t, a_crash_at_any_disk_operation_loses_nothing);
    tcase_add_test(t, a_killed_process_at_any_disk_operation_loses_nothing);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
