// SPDX-License-Identifier: Apache-2.0
// The store on a full disk: the reserve lets retirement go on, and what could not be written is written when
// there is room.
// links: node/base proto consensus consensus/raft consensus/solo consensus/store consensus/wal gen tests/sim
#include "tests/unit/consensus/store_fixture.h"

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, 1, 8 << 20, 256 << 10);
    fixture_close(&fx);
    fx.config.wal_reserve_files = 1;
    fx.config.reserve_bytes = (256 << 10) * 9 / 8;
    fixture_open(&fx);
    ck_assert(wal_top_up(store_wal(fx.store)));
    ck_assert(!store_is_short(fx.store));
    fx.models[1].snapshots_refused = true;  // Everything stays live.
}
static void teardown(void)
{
    fixture_deinit(&fx);
}

static void no_room(uint64_t but)
{
    (void)fx.config.disk->sync_dir(fx.config.disk, ".");
    (void)fx.config.disk->sync_dir(fx.config.disk, "seg");
    (void)fx.config.disk->sync_dir(fx.config.disk, "wal");
    sim_disk_set_budget(fx.disk, sim_disk_used(fx.disk) + but);
}
static void room(void)
{
    sim_disk_set_budget(fx.disk, UINT64_MAX);
}

static void fill_file(void)
{
    const uint64_t seq = wal_current_seq(store_wal(fx.store));
    while (wal_current_seq(store_wal(fx.store)) == seq) {
        append(&fx, 1, 1, 5000);
        settle(&fx);
        ck_assert(!is_dead(&fx));
    }
}

START_TEST(a_full_disk_is_emptied_by_means_of_the_reserve)
{
    no_room(0);
    fill_file();  // By the log's reserve; to copy the file before it needs the store's.
    settle(&fx);
    ck_assert(store_is_short(fx.store));
    ck_assert_uint_eq(wal_file_count(store_wal(fx.store)), 1);  // Only the one in use.
    check_group(&fx, 1);
    crash_and_check(&fx, NULL);
}
END_TEST

static bool log_goes_on(void)
{
    flush(&fx);
    bool moved = pump_wal(&fx) || !list_is_empty(&fx.done) || fx.closed_told < fx.closed_count;
    tell_done(&fx);
    tell_closed(&fx);
    return moved;
}

// Of a node: what retirement writes, and the file that the log begins meanwhile.
START_TEST(the_reserve_is_enough_for_retirement_while_the_log_waits_for_its_next_file)
{
    fixture_close(&fx);
    fx.config.reserve_bytes = (256 << 10) * 17 / 8;
    fixture_open(&fx);
    ck_assert(wal_top_up(store_wal(fx.store)));
    no_room(0);
    for (int i = 0; i < 140; i++) {  // 2.7 files.
        append(&fx, 1, 1, 5000);
        while (log_goes_on()) {
        }
    }
    ck_assert_uint_gt(wal_pending_bytes(store_wal(fx.store)), 0);
    while (step_job(&fx, 0) || log_goes_on()) {
        (void)log_goes_on();
    }
    ck_assert(!is_dead(&fx));
    ck_assert_uint_eq(wal_pending_bytes(store_wal(fx.store)), 0);
    ck_assert_uint_eq(wal_file_count(store_wal(fx.store)), 2);  // The first was retired, and is the third.
    check_group(&fx, 1);
    room();
    crash_and_check(&fx, NULL);
}
END_TEST

START_TEST(the_reserve_is_made_up_when_there_is_room)
{
    no_room(0);
    fill_file();
    settle(&fx);
    store_worker_room(fx.workers[0]);
    settle(&fx);
    ck_assert(store_is_short(fx.store));  // A segment stands where it was.
    room();
    store_worker_room(fx.workers[0]);
    settle(&fx);
    ck_assert(!store_is_short(fx.store));
    ck_assert(sim_disk_exists(fx.disk, "wal/reserve"));
}
END_TEST

// Twice the same: the first retirement takes the reserve, the second finds none.
START_TEST(without_a_reserve_retirement_waits_and_goes_on_when_there_is_room)
{
    no_room(0);
    fill_file();
    settle(&fx);
    ck_assert_uint_eq(wal_file_count(store_wal(fx.store)), 1);
    fill_file();
    settle(&fx);
    ck_assert_uint_eq(wal_file_count(store_wal(fx.store)), 2);
    ck_assert(!is_dead(&fx));
    store_worker_room(fx.workers[0]);
    settle(&fx);
    ck_assert_uint_eq(wal_file_count(store_wal(fx.store)), 2);
    check_group(&fx, 1);
    room();
    store_worker_room(fx.workers[0]);
    settle(&fx);
    ck_assert_uint_eq(wal_file_count(store_wal(fx.store)), 1);
    check_group(&fx, 1);
    crash_and_check(&fx, NULL);
}
END_TEST

// Everything is used up, the reserve too, and one file of the log cannot be retired. Then the group's queue is drained.
static void drained_on_a_full_disk(void)
{
    fixture_close(&fx);
    fx.config.last_bytes = 32 << 10;
    fixture_open(&fx);
    ck_assert(wal_top_up(store_wal(fx.store)));
    ck_assert_int_eq(fx.config.disk->unlink(fx.config.disk, "wal/reserve"), RC_OK);
    fx.store->has_reserve = false;
    no_room(0);
    fill_file();
    settle(&fx);
    ck_assert_uint_eq(wal_file_count(store_wal(fx.store)), 2);
    ck_assert(sim_disk_exists(fx.disk, "wal/reserve-last"));
    struct model *m = &fx.models[1];
    m->snapshots_refused = false;
    m->committed = m->last;
    for (uint64_t i = 1; i <= m->last; i++) {
        m->dead[i] = true;
    }
}

START_TEST(the_last_reserve_is_for_the_snapshot_of_a_drained_queue_and_frees_everything)
{
    drained_on_a_full_disk();
    glog_snapshot_request(log_of(&fx, 1));
    store_worker_room(fx.workers[0]);
    settle(&fx);
    ck_assert_uint_eq(fx.models[1].published, fx.models[1].last);
    for (int i = 0; i < 3; i++) {  // No room comes from outside.
        (void)fx.config.disk->sync_dir(fx.config.disk, "seg");
        (void)fx.config.disk->sync_dir(fx.config.disk, "wal");
        wal_trim(store_wal(fx.store));
        store_worker_room(fx.workers[0]);
        settle(&fx);
    }
    ck_assert_uint_eq(wal_file_count(store_wal(fx.store)), 1);
    check_group(&fx, 1);
    room();
    crash_and_check(&fx, NULL);
}
END_TEST

START_TEST(the_last_reserve_is_not_for_much_and_is_back_after_it_was_in_vain)
{
    drained_on_a_full_disk();
    fx.models[1].state_bytes = 200 << 10;  // A snapshot as large as this is no way out.
    glog_snapshot_request(log_of(&fx, 1));
    store_worker_room(fx.workers[0]);
    settle(&fx);
    ck_assert_uint_eq(fx.models[1].published, 0);
    ck_assert(!is_dead(&fx));
    ck_assert(sim_disk_exists(fx.disk, "wal/reserve-last"));
    check_group(&fx, 1);
    room();
    crash_and_check(&fx, NULL);
}
END_TEST

static enum rc (*real_allocate)(struct disk_file *f, uint64_t bytes);
static enum rc (*real_unlink)(struct disk *d, const char *path);
static uint32_t looked_at;

// Is nobody holding what workers take?
static void look_at_mutex(void)
{
    looked_at++;
    ck_assert_int_eq(pthread_mutex_trylock(&fx.store->mutex), 0);
    pthread_mutex_unlock(&fx.store->mutex);
}
static enum rc looking_allocate(struct disk_file *f, uint64_t bytes)
{
    look_at_mutex();
    return real_allocate(f, bytes);
}
static enum rc looking_unlink(struct disk *d, const char *path)
{
    look_at_mutex();
    return real_unlink(d, path);
}

START_TEST(no_worker_waits_while_a_reserve_is_given_up_or_made)
{
    struct disk *d = fx.config.disk;
    real_allocate = d->allocate;
    real_unlink = d->unlink;
    d->allocate = looking_allocate;
    d->unlink = looking_unlink;
    looked_at = 0;
    ck_assert(reserve_release(fx.store));
    ck_assert_uint_eq(looked_at, 1);
    reserve_restore(fx.store);
    ck_assert_uint_eq(looked_at, 2);
    ck_assert(!store_is_short(fx.store));
    d->allocate = real_allocate;
    d->unlink = real_unlink;
}
END_TEST

static enum rc (*real_rename)(struct disk *d, const char *from, const char *to);
static bool refuses_checkpoints;

static enum rc no_checkpoint(struct disk *d, const char *from, const char *to)
{
    return refuses_checkpoints && strncmp(to, "seg/groups-", 11) == 0 ? RC_NO_SPACE : real_rename(d, from, to);
}

// Loop: until the next file is closed, whose checkpoint says all that the first would have; or tried again before.
START_TEST(a_checkpoint_without_room_is_written_later_and_files_stay_until_then)
{
    real_rename = fx.config.disk->rename;
    sim_disk_base(fx.disk)->rename = no_checkpoint;
    refuses_checkpoints = true;
    const uint32_t before = fx.retired_count;
    for (int i = 0; i <= _i; i++) {
        fill_file();
        settle(&fx);
        ck_assert_uint_eq(fx.retired_count, before);
    }
    ck_assert(!is_dead(&fx));
    refuses_checkpoints = false;
    store_worker_room(fx.workers[0]);
    settle(&fx);
    ck_assert_uint_gt(fx.retired_count, before);
    ck_assert_uint_eq(wal_file_count(store_wal(fx.store)), 1);
    check_group(&fx, 1);
    crash_and_check(&fx, NULL);
    sim_disk_base(fx.disk)->rename = real_rename;
}
END_TEST

START_TEST(a_start_on_a_full_disk_uses_the_reserve)
{
    append_many(&fx, 1, 1, 100, 3);
    no_room(0);
    while (store_wal(fx.store)->pool_count > 0) {  // Not even a free file of the log.
        char path[WAL_PATH_MAX];
        wal_free_path(store_wal(fx.store), store_wal(fx.store)->pool[--store_wal(fx.store)->pool_count], path);
        ck_assert_int_eq(fx.config.disk->unlink(fx.config.disk, path), RC_OK);
    }
    no_room(0);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    store_make_room(sim_disk_base(fx.disk));
    (void)sim_disk_base(fx.disk)->sync_dir(sim_disk_base(fx.disk), "wal");
    fixture_open(&fx);
    ck_assert_ptr_nonnull(fx.store);
    ck_assert(store_is_short(fx.store));
    check_group(&fx, 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("store_room");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_full_disk_is_emptied_by_means_of_the_reserve);
    tcase_add_test(t, the_reserve_is_enough_for_retirement_while_the_log_waits_for_its_next_file);
    tcase_add_test(t, the_reserve_is_made_up_when_there_is_room);
    tcase_add_test(t, without_a_reserve_retirement_waits_and_goes_on_when_there_is_room);
    tcase_add_test(t, the_last_reserve_is_for_the_snapshot_of_a_drained_queue_and_frees_everything);
    tcase_add_test(t, the_last_reserve_is_not_for_much_and_is_back_after_it_was_in_vain);
    tcase_add_test(t, no_worker_waits_while_a_reserve_is_given_up_or_made);
    tcase_add_loop_test(t, a_checkpoint_without_room_is_written_later_and_files_stay_until_then, 0, 2);
    tcase_add_test(t, a_start_on_a_full_disk_uses_the_reserve);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
