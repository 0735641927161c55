// SPDX-License-Identifier: Apache-2.0
// A start on a disk that has no room, or loses it at any write of the start: it comes up with what it has, goes on as
// far as the files it has carry it, and by itself when there is room. Nothing is lost.
// links: node/base proto consensus consensus/raft consensus/solo consensus/store consensus/wal gen tests/sim
#include "tests/unit/consensus/store_fixture.h"

enum { FILE_BYTES = 64 << 10 };

static struct fixture fx;

// ---- a disk without room ------------------------------------------------------------------------------------------

// How hostile: what is removed is room again; somebody else takes it at once; nor is there room for a name.
enum hostility { FREED_IS_OURS, FREED_IS_GONE, NOT_EVEN_NAMES, HOSTILITIES };

static struct {
    struct disk real;
    bool is_full;
    enum hostility hostility;
    uint32_t writes_left;
    uint64_t budget;
} full;

// Counts a call that may take room. False: there is none for it.
static bool may_take(void)
{
    if (!full.is_full) {
        return true;
    }
    if (full.writes_left > 0) {
        full.writes_left--;
        sim_disk_set_budget(fx.disk, UINT64_MAX);
        return true;
    }
    const uint64_t used = sim_disk_used(fx.disk);
    full.budget = full.hostility == FREED_IS_OURS && full.budget != UINT64_MAX ? full.budget : used;
    sim_disk_set_budget(fx.disk, full.budget);
    return false;
}

static enum rc full_allocate(struct disk_file *f, uint64_t bytes)
{
    (void)may_take();
    return full.real.allocate(f, bytes);
}

static enum rc full_writev(struct disk_file *f, const struct iovec *iov, int count, uint64_t offset)
{
    (void)may_take();
    return full.real.writev(f, iov, count, offset);
}

static enum rc full_open(struct disk *d, const char *path, int flags, struct disk_file **out)
{
    if ((flags & DISK_CREATE) && !sim_disk_exists(fx.disk, path) && !may_take() && full.hostility == NOT_EVEN_NAMES) {
        return RC_NO_SPACE;
    }
    return full.real.open(d, path, flags, out);
}

static enum rc full_rename(struct disk *d, const char *from, const char *to)
{
    if (!sim_disk_exists(fx.disk, to) && !may_take() && full.hostility == NOT_EVEN_NAMES) {
        return RC_NO_SPACE;
    }
    return full.real.rename(d, from, to);
}

static void become_full(uint32_t writes, enum hostility hostility)
{
    full.is_full = true;
    full.hostility = hostility;
    full.writes_left = writes;
    full.budget = UINT64_MAX;
}

static void room(void)
{
    full.is_full = false;
    sim_disk_set_budget(fx.disk, UINT64_MAX);
}

// ---- what a crash leaves ------------------------------------------------------------------------------------------

static bool refuses_retirement;

static enum rc no_retirement(struct disk *d, const char *from, const char *to)
{
    return refuses_retirement && strncmp(from, "wal/wal-", 8) == 0 ? RC_IO : full_rename(d, from, to);
}

static enum rc no_removal(struct disk *d, const char *path)
{
    return refuses_retirement && strncmp(path, "wal/wal-", 8) == 0 ? RC_IO : full.real.unlink(d, path);
}

static void setup(void)
{
    fixture_init(&fx, 1, 8 << 20, FILE_BYTES);
    fixture_close(&fx);
    struct disk *d = sim_disk_base(fx.disk);
    full.real = *d;
    full.is_full = false;
    d->allocate = full_allocate;
    d->writev = full_writev;
    d->open = full_open;
    d->rename = no_retirement;
    d->unlink = no_removal;
    refuses_retirement = false;
    fx.config.wal_reserve_files = 1;
    fx.config.reserve_bytes = FILE_BYTES * 17 / 8;
    fx.config.last_bytes = FILE_BYTES / 8;
    fixture_open(&fx);
    ck_assert(wal_top_up(store_wal(fx.store)));
    fx.models[1].snapshots_refused = true;  // Everything stays live.
}

static void append_one(uint32_t len)
{
    append(&fx, 1, 1, len);
    settle(&fx);
    ck_assert(!is_dead(&fx));
}

static uint64_t left_in_file(void)
{
    const struct wal *w = store_wal(fx.store);
    return w->limit - w->offset;
}

// The log's file in use: hardly begun; so that its tail is worth no copy; without room for another batch.
enum fill { FILL_LITTLE, FILL_HALF, FILL_BRIM, FILLS };

static void fill_to(enum fill fill)
{
    const uint64_t left = fill == FILL_LITTLE ? FILE_BYTES * 31 / 32 : fill == FILL_HALF ? FILE_BYTES / 2 : 120;
    const uint64_t seq = wal_current_seq(store_wal(fx.store));
    while (left_in_file() > left + 3000) {
        append_one(2000);
    }
    while (left_in_file() > left) {
        append_one(left_in_file() > left + 200 ? 100 : 8);
    }
    ck_assert_uint_eq(wal_current_seq(store_wal(fx.store)), seq);
}

static void remove_file(const char *path)
{
    if (sim_disk_exists(fx.disk, path)) {
        ck_assert_int_eq(full.real.unlink(sim_disk_base(fx.disk), path), RC_OK);
    }
}

static void remove_pool(void)
{
    struct wal *w = store_wal(fx.store);
    while (w->pool_count > 0) {
        char path[WAL_PATH_MAX];
        wal_free_path(w, w->pool[--w->pool_count], path);
        remove_file(path);
    }
}

// Without room it stays composed, and pump_wal writes it.
static void mark(void)
{
    struct wal *w = store_wal(fx.store);
    if (!w->batch.is_composed && wal_compose_mark(w)) {
        (void)pump_wal(&fx);
    }
}

static void leave_temporary(const char *path)
{
    struct disk_file *f;
    uint8_t bytes[100] = {1};
    const struct iovec iov = {bytes, sizeof(bytes)};
    ck_assert_int_eq(sim_disk_base(fx.disk)->open(sim_disk_base(fx.disk), path, DISK_WRITE | DISK_CREATE, &f), RC_OK);
    ck_assert_int_eq(sim_disk_base(fx.disk)->writev(f, &iov, 1, 0), RC_OK);
    sim_disk_base(fx.disk)->close(f);
}

struct crash {
    bool has_reserve, has_last, has_pool;
    enum fill fill;
    bool is_marked;         // The last batch is vouched for.
    bool has_old_file;      // A checkpoint covers a file of the log that was not given back yet.
    bool has_temporaries;   // A checkpoint and a segment half written.
    bool is_power;
};

static struct crash crash_of(uint32_t i)
{
    return (struct crash){.has_reserve = i & 1,
                          .has_last = i >> 1 & 1,
                          .has_pool = i >> 2 & 1,
                          .is_marked = i >> 3 & 1,
                          .has_old_file = i >> 4 & 1,
                          .has_temporaries = i >> 5 & 1,
                          .is_power = i >> 6 & 1};
}

static void crash_left_behind(const struct crash *c)
{
    for (int i = 0; i < 2; i++) {
        refuses_retirement = c->has_old_file;
        const uint64_t seq = wal_current_seq(store_wal(fx.store));
        while (wal_current_seq(store_wal(fx.store)) == seq) {
            append_one(5000);
        }
    }
    fill_to(c->fill);
    if (c->is_marked) {
        mark();
    }
    if (!c->has_reserve) {
        remove_file("wal/reserve");
    }
    if (!c->has_last) {
        remove_file("wal/reserve-last");
    }
    if (!c->has_pool) {
        remove_pool();
    }
    if (c->has_temporaries) {
        leave_temporary("seg/groups-0000000000000007.tmp");
        leave_temporary("seg/seg-0000000000000099.tmp");
    }
    (void)sim_disk_base(fx.disk)->sync_dir(sim_disk_base(fx.disk), "wal");
    (void)sim_disk_base(fx.disk)->sync_dir(sim_disk_base(fx.disk), "seg");
    refuses_retirement = false;
}

static void crash_now(const struct crash *c, uint64_t *completed, struct rng *rng)
{
    *completed = fx.workers[0]->completed;
    fixture_close(&fx);
    if (c->is_power) {
        sim_disk_crash(fx.disk, rng);
    } else {
        sim_disk_kill(fx.disk);
    }
}

// Starts on a disk that has room for `writes` more, goes on there, is killed and starts again; then room comes.
static void start_with(const struct crash *c, uint32_t writes, enum hostility hostility)
{
    uint64_t completed[WORKERS_MAX] = {0};
    struct rng rng;
    rng_seed(&rng, writes + 7);
    setup();
    crash_left_behind(c);
    for (int i = 0; i < 3; i++) {
        crash_now(c, completed, &rng);
        become_full(writes, hostility);
        fixture_open(&fx);  // Succeeds.
        check_recovered(&fx, completed);
        ck_assert(!fx.config.disk->failed);
        fx.models[1].snapshots_refused = true;
        append_one(50);  // Goes as far as the files carry it; else it waits.
        mark();
        if (i == 1) {
            store_worker_room(fx.workers[0]);  // In vain or not: harmless.
            settle(&fx);
        }
    }
    room();
    store_worker_room(fx.workers[0]);
    settle(&fx);
    const uint64_t seq = wal_current_seq(store_wal(fx.store));
    while (wal_current_seq(store_wal(fx.store)) < seq + 2) {
        append_one(5000);
    }
    store_worker_room(fx.workers[0]);
    settle(&fx);
    ck_assert_uint_eq(fx.workers[0]->completed, fx.workers[0]->submitted);
    ck_assert(!store_is_short(fx.store));
    ck_assert_uint_le(wal_file_count(store_wal(fx.store)), 2);
    check_group(&fx, 1);
    crash_and_check(&fx, &rng);
    fixture_deinit(&fx);
}

// Loop: how the file in use is filled, and what happened before.
START_TEST(a_start_without_room_comes_up_with_what_it_has)
{
    struct crash c = crash_of((uint32_t)_i % 128);
    c.fill = (enum fill)(_i / 128);
    for (int h = 0; h < HOSTILITIES; h++) {
        start_with(&c, 0, (enum hostility)h);
    }
}
END_TEST

// Loop: the same with room for so many writes. Enough of them for all that a start writes.
START_TEST(a_start_that_loses_its_room_at_any_write_comes_up)
{
    for (uint32_t i = 0; i < 128; i += 5) {  // Odd: every bit comes with every other.
        struct crash c = crash_of(i);
        c.fill = (enum fill)(i % FILLS);
        start_with(&c, (uint32_t)_i, (enum hostility)(i / FILLS % HOSTILITIES));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("store_full_start");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, a_start_without_room_comes_up_with_what_it_has, 0, 128 * FILLS);
    tcase_add_loop_test(t, a_start_that_loses_its_room_at_any_write_comes_up, 1, 13);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
