// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus consensus/raft consensus/solo consensus/store consensus/wal gen tests/sim
// Whose log it is: what the disk says of the replica that wrote it, after a crash wherever it lies (law 2).
#include "tests/unit/consensus/store_retire_fixture.h"

static void restart(void)
{
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    fixture_open(&fx);
}

START_TEST(a_log_is_found_with_the_replica_that_wrote_its_hard_state)
{
    glog_set_replica(log_of(&fx, 1), 71);
    write_hard_state(&fx, 1, 3, 9);
    append_many(&fx, 1, 3, 100, 5);
    append_many(&fx, 2, 1, 100, 5);  // Nothing says whose this is.
    settle(&fx);
    restart();
    ck_assert_uint_eq(fx.found[1].replica_id, 71);
    ck_assert_uint_eq(fx.found[1].hard_state.term, 3);
    ck_assert_uint_eq(fx.found[1].hard_state.vote, 9);
    ck_assert_uint_eq(glog_replica(log_of(&fx, 1)), 71);
    ck_assert_uint_eq(fx.found[2].replica_id, 0);
    write_hard_state(&fx, 1, 4, 0);  // Without being told again.
    settle(&fx);
    restart();
    ck_assert_uint_eq(fx.found[1].replica_id, 71);
    ck_assert(!fx.found[1].is_amnesiac);
}
END_TEST

START_TEST(the_checkpoint_keeps_whose_log_it_is_when_the_wal_file_is_gone)
{
    glog_set_replica(log_of(&fx, 1), 71);
    write_hard_state(&fx, 1, 3, 9);
    append_many(&fx, 1, 3, 100, 5);
    roll_file(&fx);
    roll_file(&fx);
    restart();
    ck_assert_uint_eq(fx.found[1].last, 5);
    ck_assert_uint_eq(fx.found[1].hard_state.term, 3);
    ck_assert_uint_eq(fx.found[1].replica_id, 71);
}
END_TEST

START_TEST(the_tombstone_ends_one_replica_and_the_next_is_found_under_its_own_id)
{
    glog_set_replica(log_of(&fx, 1), 71);
    write_hard_state(&fx, 1, 3, 9);
    append_many(&fx, 1, 3, 100, 5);
    roll_file(&fx);
    glog_delete(log_of(&fx, 1));
    fx.logs[1] = NULL;
    glog_set_replica(log_of(&fx, 1), 80);
    write_hard_state(&fx, 1, 1, 0);
    settle(&fx);
    restart();
    ck_assert_uint_eq(fx.found[1].replica_id, 80);
    ck_assert_uint_eq(fx.found[1].hard_state.term, 1);
    ck_assert_uint_eq(fx.found[1].last, 0);
    ck_assert(!fx.found[1].is_amnesiac);
    roll_file(&fx);
    restart();
    ck_assert_uint_eq(fx.found[1].replica_id, 80);
    ck_assert_uint_eq(fx.found[1].hard_state.term, 1);
}
END_TEST

// Group 2 needs the segment, so what the replica before wrote of group 1 is still there, and with the tombstone's log file
// what says that it is void is gone.
START_TEST(what_an_ended_replica_left_in_segments_is_not_the_next_ones)
{
    glog_set_replica(log_of(&fx, 1), 71);
    write_hard_state(&fx, 1, 3, 9);
    append_many(&fx, 1, 3, 1000, 5);
    append_many(&fx, 2, 3, 1000, 5);
    fx.models[1].committed = 5;
    settle_messages(&fx, 1, 1, 4);
    fx.models[2].snapshots_refused = true;
    roll_file(&fx);
    glog_delete(log_of(&fx, 1));
    fx.logs[1] = NULL;
    settle(&fx);
    roll_file(&fx);
    glog_set_replica(log_of(&fx, 1), 80);
    write_hard_state(&fx, 1, 1, 0);
    settle(&fx);
    restart();
    ck_assert_uint_eq(fx.found[1].replica_id, 80);
    ck_assert_uint_eq(fx.found[1].snapshot_index, 0);
    ck_assert_uint_eq(fx.found[1].last, 0);
    ck_assert(!fx.found[1].is_amnesiac);
    ck_assert_uint_eq(fx.found[2].last, 5);
    restart();
    ck_assert_uint_eq(fx.found[1].last, 0);
}
END_TEST

START_TEST(two_replicas_without_an_end_between_them_have_lost_their_memory)
{
    glog_set_replica(log_of(&fx, 1), 71);
    write_hard_state(&fx, 1, 3, 9);
    glog_set_replica(log_of(&fx, 1), 80);
    write_hard_state(&fx, 1, 4, 0);
    settle(&fx);
    restart();
    ck_assert_uint_eq(fx.found[1].replica_id, 80);
    ck_assert(fx.found[1].is_amnesiac);
}
END_TEST

// The first entry of group 1 is wrong now, and what stands behind it proves that it was synced.
static void damage_first_entry(void)
{
    append(&fx, 1, 3, 100);
    settle(&fx);
    append(&fx, 2, 1, 10);
    settle(&fx);
    append(&fx, 2, 1, 10);
    settle(&fx);
    struct glog *g = log_of(&fx, 1);
    uint64_t offset = 0;
    const struct piece *p = arena_piece(&g->worker->arena, glog_window_ref(g, 1), &offset);
    char path[64];
    wal_file_path("wal", p->file_seq, path, sizeof(path));
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    sim_disk_flip_bit(fx.disk, path, offset + RECORD_HEADER_BYTES + 7, 1);
    fixture_open(&fx);
}

START_TEST(a_damaged_record_may_hide_that_a_later_replica_wrote_here)
{
    glog_set_replica(log_of(&fx, 1), 71);
    write_hard_state(&fx, 1, 3, 9);
    damage_first_entry();
    ck_assert(fx.found[1].is_amnesiac);
    ck_assert(fx.found[1].is_hiding);
    ck_assert(!fx.found[2].is_hiding);
    // Whoever writes after that is the one who lives here.
    glog_set_replica(log_of(&fx, 1), 71);
    write_hard_state(&fx, 1, 4, 0);
    settle(&fx);
    restart();
    ck_assert_uint_eq(fx.found[1].replica_id, 71);
    ck_assert(fx.found[1].is_amnesiac);
    ck_assert(!fx.found[1].is_hiding);
    // And who begins behind its end has nothing to do with the damage.
    glog_delete(log_of(&fx, 1));
    fx.logs[1] = NULL;
    glog_set_replica(log_of(&fx, 1), 80);
    write_hard_state(&fx, 1, 1, 0);
    settle(&fx);
    restart();
    ck_assert_uint_eq(fx.found[1].replica_id, 80);
    ck_assert(!fx.found[1].is_amnesiac);
    ck_assert(!fx.found[1].is_hiding);
}
END_TEST

// As a program of version 1 wrote it: the vote alone.
START_TEST(a_hard_state_of_version_1_is_read_and_says_nothing_of_the_replica)
{
    const uint64_t vote = 9;
    glog_put_control(log_of(&fx, 1), RECORD_HARD_STATE, 0, 0, 3, span_of(&vote, sizeof(vote)));
    append_many(&fx, 1, 3, 100, 5);
    settle(&fx);
    restart();
    ck_assert_uint_eq(fx.found[1].hard_state.term, 3);
    ck_assert_uint_eq(fx.found[1].hard_state.vote, 9);
    ck_assert_uint_eq(fx.found[1].last, 5);
    ck_assert_uint_eq(fx.found[1].replica_id, 0);
    ck_assert(!fx.found[1].is_amnesiac);
}
END_TEST

static void set_version(uint32_t version)
{
    struct disk *d = sim_disk_base(fx.disk);
    struct disk_file *file;
    struct wal_header_disk h;
    size_t got;
    ck_assert_int_eq(d->open(d, "wal/wal-0000000000000001", DISK_READ | DISK_WRITE, &file), RC_OK);
    ck_assert_int_eq(d->read(file, 0, &h, sizeof(h), &got), RC_OK);
    h.version = version;
    h.crc = wal_header_crc(&h);
    struct iovec iov = {.iov_base = &h, .iov_len = sizeof(h)};
    ck_assert_int_eq(d->writev(file, &iov, 1, 0), RC_OK);
    d->close(file);
}

START_TEST(a_log_of_version_1_is_opened_and_one_of_a_later_version_refused)
{
    append_many(&fx, 1, 3, 100, 5);
    settle(&fx);
    fixture_close(&fx);
    set_version(3);
    ck_assert_int_eq(store_open(&fx.config, on_group, &fx, &fx.report, &fx.store), RC_UNSUPPORTED);
    fx.store = NULL;
    set_version(1);
    fixture_open(&fx);
    ck_assert_uint_eq(fx.found[1].last, 5);
    ck_assert(!fx.report.is_corrupt);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("store_identity");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_log_is_found_with_the_replica_that_wrote_its_hard_state);
    tcase_add_test(t, the_checkpoint_keeps_whose_log_it_is_when_the_wal_file_is_gone);
    tcase_add_test(t, the_tombstone_ends_one_replica_and_the_next_is_found_under_its_own_id);
    tcase_add_test(t, what_an_ended_replica_left_in_segments_is_not_the_next_ones);
    tcase_add_test(t, two_replicas_without_an_end_between_them_have_lost_their_memory);
    tcase_add_test(t, a_damaged_record_may_hide_that_a_later_replica_wrote_here);
    tcase_add_test(t, a_hard_state_of_version_1_is_read_and_says_nothing_of_the_replica);
    tcase_add_test(t, a_log_of_version_1_is_opened_and_one_of_a_later_version_refused);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
