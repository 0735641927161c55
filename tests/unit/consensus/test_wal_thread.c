// SPDX-License-Identifier: Apache-2.0
// The WAL thread: real threads on a real directory.
// links: node/base proto consensus/wal
#include "consensus/wal/internal.h"
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 3, EACH = 5000 };

static char dir[64];
static struct disk *disk;
static struct wal *wal;
static struct wal_thread *thread;
static int wake_fds[WORKERS];
static _Atomic uint64_t shared_wakes;
static _Atomic uint64_t shared_closed;

static void wake(void *ctx, uint32_t worker)
{
    (void)ctx;
    uint64_t one = 1;
    atomic_fetch_add(&shared_wakes, 1);
    ssize_t n = write(wake_fds[worker], &one, sizeof(one));
    ck_assert_int_eq(n, sizeof(one));
}

static void wait_wake(uint32_t worker)
{
    uint64_t count;
    ssize_t n = read(wake_fds[worker], &count, sizeof(count));
    ck_assert_int_eq(n, sizeof(count));
}

// A closed file is retired at once: nothing here is read back from it.
static void on_file_closed(void *ctx, uint64_t seq)
{
    (void)ctx;
    atomic_fetch_add(&shared_closed, 1);
    if (thread != NULL) {
        wal_thread_retire(thread, seq);
    }
}

static uint64_t replayed;
static enum rc on_replay(void *ctx, const struct wal_recovered *r)
{
    (void)ctx;
    (void)r;
    replayed++;
    return RC_OK;
}

static void open_all(uint64_t file_bytes)
{
    struct wal_config config =
        {.disk = disk, .dir = "wal", .file_bytes = file_bytes, .align = 512, .random = 5, .reserve_files = 1};
    struct wal_report report;
    replayed = 0;
    ck_assert_int_eq(wal_open(&config, 1, on_replay, NULL, NULL, &report, &wal), RC_OK);
    ck_assert(!report.is_corrupt);
    struct wal_thread_config tc = {.workers = WORKERS, .wake = wake, .on_file_closed = on_file_closed};
    ck_assert_int_eq(wal_thread_start(&tc, wal, &thread), RC_OK);
}

static void close_all(void)
{
    wal_thread_stop(thread);
    thread = NULL;
    wal_close(wal);
}

static void setup(void)
{
    snprintf(dir, sizeof(dir), "/tmp/warren-test-wal-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(disk_posix_open(dir, &disk), RC_OK);
    for (int i = 0; i < WORKERS; i++) {
        wake_fds[i] = eventfd(0, 0);
    }
}
static void teardown(void)
{
    disk_posix_close(disk);
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
    for (int i = 0; i < WORKERS; i++) {
        close(wake_fds[i]);
    }
}

struct worker {
    pthread_t thread;
    uint32_t id;
    bool is_in_order;
    struct wal_submission submissions[EACH];
    struct wal_range ranges[EACH];
    uint8_t bytes[48];
};

static void worker_prepare(struct worker *w)
{
    struct record_disk r = {.len = 8, .group = 1 + w->id, .index = 1, .term = 1, .kind = RECORD_ENTRY};
    memset(w->bytes, 0, sizeof(w->bytes));
    memcpy(w->bytes, &r, sizeof(r));
    r.crc = crc32c(0, w->bytes + 4, RECORD_HEADER_BYTES + 4);
    memcpy(w->bytes, &r.crc, 4);
    for (int i = 0; i < EACH; i++) {
        bool is_empty = i % 10 == 9;
        w->ranges[i] = (struct wal_range){.ptr = w->bytes, .len = 48};
        w->submissions[i] = (struct wal_submission){.ranges = &w->ranges[i],
                                                    .ranges_count = is_empty ? 0 : 1,
                                                    .bytes = is_empty ? 0 : 48,
                                                    .result = RC_BUG};
    }
}

static void *worker_run(void *arg)
{
    struct worker *w = arg;
    int done = 0;
    for (int i = 0; i < EACH; i++) {
        wal_thread_submit(thread, w->id, &w->submissions[i]);
    }
    while (done < EACH) {
        struct wal_submission *s = wal_thread_poll(thread, w->id);
        if (s == NULL) {
            wait_wake(w->id);
            continue;
        }
        w->is_in_order = w->is_in_order && s == &w->submissions[done] && s->result == RC_OK;
        done++;
    }
    return NULL;
}

// 5,000 submissions at once overflow a ring of 1,024 in both directions.
START_TEST(every_submission_of_every_worker_comes_back_in_order)
{
    open_all(64 << 10);
    struct worker *workers = mem_zalloc(WORKERS * sizeof(*workers));
    for (uint32_t i = 0; i < WORKERS; i++) {
        workers[i].id = i;
        workers[i].is_in_order = true;
        worker_prepare(&workers[i]);
        ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
        ck_assert(workers[i].is_in_order);
    }
    ck_assert_uint_eq(wal_thread_age_ns(thread), 0);
    ck_assert_uint_ge(wal_thread_file_count(thread), 1);
    ck_assert_uint_gt(atomic_load(&shared_closed), 0);
    ck_assert_uint_lt(atomic_load(&shared_wakes), WORKERS * EACH / 2);  // Batched.
    close_all();
    free(workers);
}
END_TEST

START_TEST(stopping_completes_what_was_submitted)
{
    open_all(1 << 20);
    struct worker *w = mem_zalloc(sizeof(*w));
    worker_prepare(w);
    for (int i = 0; i < EACH; i++) {
        wal_thread_submit(thread, 0, &w->submissions[i]);
    }
    close_all();
    for (int i = 0; i < EACH; i++) {
        ck_assert_int_eq(w->submissions[i].result, RC_OK);
    }
    open_all(1 << 20);
    ck_assert_uint_eq(replayed, EACH / 10 * 9);
    close_all();
    free(w);
}
END_TEST

// The mark comes by itself: wait for the batch number that only a mark can have taken.
START_TEST(a_quiet_log_vouches_for_its_last_batch)
{
    open_all(1 << 20);
    struct worker *w = mem_zalloc(sizeof(*w));
    worker_prepare(w);
    wal_thread_submit(thread, 1, &w->submissions[0]);
    wait_wake(1);
    ck_assert_ptr_eq(wal_thread_poll(thread, 1), &w->submissions[0]);
    close_all();  // Stopping writes the mark at the latest.
    // Damage the record: with the mark behind it that is not a torn tail.
    struct disk_file *f;
    char path[64];
    wal_file_path("wal", w->ranges[0].file_seq, path, sizeof(path));
    ck_assert_int_eq(disk->open(disk, path, DISK_WRITE | DISK_READ, &f), RC_OK);
    struct iovec iov = {.iov_base = (void *)"x", .iov_len = 1};
    ck_assert_int_eq(disk->writev(f, &iov, 1, w->ranges[0].file_offset + 41), RC_OK);
    disk->close(f);
    struct wal_config config = {.disk = disk, .dir = "wal", .file_bytes = 1 << 20, .align = 512, .random = 6};
    struct wal_report report;
    ck_assert_int_eq(wal_open(&config, 1, on_replay, NULL, NULL, &report, &wal), RC_OK);
    ck_assert(report.is_corrupt);
    ck_assert(report.corrupt_groups_known);
    wal_close(wal);
    free(w);
}
END_TEST

static enum rc broken_sync(struct disk_file *f)
{
    (void)f;
    return RC_IO;
}

START_TEST(a_failed_sync_ends_the_process_and_leaves_a_mark)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        open_all(1 << 20);
        disk->sync = broken_sync;
        static struct worker w;
        worker_prepare(&w);
        wal_thread_submit(thread, 0, &w.submissions[0]);
        for (;;) {
            pause();
        }
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(WTERMSIG(status), SIGABRT);
    struct disk_file *f = NULL;
    ck_assert_int_eq(disk->open(disk, "store.failed", DISK_READ, &f), RC_OK);
    disk->close(f);
}
END_TEST

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// All of the log's files are written to their end: none has a hole left.
static bool are_filled(off_t file_bytes)
{
    static const char *const names[] = {"wal-0000000000000001", "free-0000000000000000"};
    bool is_filled = true;
    for (int i = 0; i < 2; i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/wal/%s", dir, names[i]);
        const int fd = open(path, O_RDONLY);
        ck_assert_int_ge(fd, 0);
        is_filled = lseek(fd, 0, SEEK_HOLE) == file_bytes && is_filled;
        close(fd);
    }
    return is_filled;
}

static void wait_filled(off_t file_bytes)
{
    for (int i = 0; i < 2000 && !are_filled(file_bytes); i++) {
        ck_assert_int_eq(poll(NULL, 0, 5), 0);
    }
    ck_assert(are_filled(file_bytes));
}

START_TEST(an_idle_thread_sleeps)
{
    open_all(1 << 20);
    wait_filled(1 << 20);  // That is work, and comes to an end.
    uint64_t before = cpu_ns();
    ck_assert_int_eq(poll(NULL, 0, 300), 0);  // Time is what is measured here.
    ck_assert_uint_lt(cpu_ns() - before, 5000000);
    close_all();
}
END_TEST

// ---- no room -------------------------------------------------------------------------------------------------------

static enum rc (*real_allocate)(struct disk_file *f, uint64_t bytes);
static _Atomic bool shared_is_full;
static _Atomic uint64_t shared_refused;

static enum rc full_allocate(struct disk_file *f, uint64_t bytes)
{
    uint64_t size = 0;
    ck_assert_int_eq(disk->size(f, &size), RC_OK);
    const bool is_refused = size < bytes && atomic_load(&shared_is_full);
    atomic_fetch_add(&shared_refused, is_refused);
    return is_refused ? RC_NO_SPACE : real_allocate(f, bytes);
}

static void wait_for(bool (*is)(struct wal_thread *t), bool wanted)
{
    for (int i = 0; i < 1000 && is(thread) != wanted; i++) {
        struct pollfd p = {.fd = wake_fds[0], .events = POLLIN};  // Workers are woken when it changes.
        if (poll(&p, 1, 10) == 1) {
            wait_wake(0);
        }
    }
    ck_assert(is(thread) == wanted);
}

static uint8_t large[70000];
static struct wal_range large_range;
static struct wal_submission large_submission;

static void submit_large(uint32_t len)
{
    struct record_disk r = {.len = len - RECORD_HEADER_BYTES, .group = 1, .index = 1, .term = 1, .kind = RECORD_ENTRY};
    memset(large, 0, sizeof(large));
    memcpy(large, &r, sizeof(r));
    r.crc = crc32c(0, large + 4, RECORD_HEADER_BYTES - 4 + r.len);
    memcpy(large, &r.crc, sizeof(r.crc));
    large_range = (struct wal_range){.ptr = large, .len = len};
    large_submission =
        (struct wal_submission){.ranges = &large_range, .ranges_count = 1, .bytes = len, .result = RC_BUG};
    wal_thread_submit(thread, 0, &large_submission);
}

static void wait_done(void)
{
    struct wal_submission *s;
    while ((s = wal_thread_poll(thread, 0)) == NULL) {
        wait_wake(0);
    }
    ck_assert_ptr_eq(s, &large_submission);
    ck_assert_int_eq(s->result, RC_OK);
}

START_TEST(on_a_full_disk_the_log_goes_on_in_what_is_retired_and_waits_beyond_that)
{
    real_allocate = disk->allocate;
    disk->allocate = full_allocate;
    atomic_store(&shared_is_full, false);
    open_all(64 << 10);
    wait_for(wal_thread_is_short, false);
    atomic_store(&shared_is_full, true);
    for (int i = 0; i < 10; i++) {
        submit_large(40000);  // A file each; the one before is retired.
        wait_done();
    }
    submit_large(70000);  // Wants a file of another size: there is none.
    wait_for(wal_thread_is_stuck, true);
    ck_assert(wal_thread_is_short(thread));
    ck_assert_ptr_null(wal_thread_poll(thread, 0));
    atomic_store(&shared_is_full, false);
    wait_done();
    wal_thread_make_room(thread);
    wait_for(wal_thread_is_short, false);
    close_all();
    disk->allocate = real_allocate;
    ck_assert(!disk->failed);
}
END_TEST

START_TEST(a_thread_that_waits_for_room_can_be_stopped)
{
    real_allocate = disk->allocate;
    disk->allocate = full_allocate;
    atomic_store(&shared_is_full, false);
    open_all(64 << 10);
    atomic_store(&shared_is_full, true);
    submit_large(70000);  // Wants a file of its own.
    wait_for(wal_thread_is_stuck, true);
    for (int i = 0; i < 1000 && wal_thread_age_ns(thread) == 0; i++) {
        struct pollfd p = {.fd = -1};
        ck_assert_int_eq(poll(&p, 1, 5), 0);
    }
    ck_assert_uint_gt(wal_thread_age_ns(thread), 0);  // A disk that stands still: decision 7.
    ck_assert_ptr_null(wal_thread_poll(thread, 0));
    close_all();
    disk->allocate = real_allocate;
    ck_assert_int_eq(large_submission.result, RC_BUG);  // Nobody was told anything.
}
END_TEST

START_TEST(what_is_submitted_while_the_log_waits_for_room_makes_it_try_no_more_often)
{
    real_allocate = disk->allocate;
    disk->allocate = full_allocate;
    atomic_store(&shared_is_full, false);
    open_all(64 << 10);
    struct worker *w = mem_zalloc(sizeof(*w));
    worker_prepare(w);
    atomic_store(&shared_is_full, true);
    submit_large(70000);
    wait_for(wal_thread_is_stuck, true);
    const uint64_t before = clock_mono_ns(env_system_clock());
    const uint64_t refused = atomic_load(&shared_refused);
    for (int i = 0; i < 400; i++) {
        wal_thread_submit(thread, 1, &w->submissions[i]);
        ck_assert_int_eq(poll(NULL, 0, 1), 0);  // A load's pace: each finds the thread asleep.
    }
    const uint64_t took_ms = (clock_mono_ns(env_system_clock()) - before) / 1000000;
    ck_assert_uint_le(atomic_load(&shared_refused) - refused, took_ms / 100 + 1);
    atomic_store(&shared_is_full, false);
    wait_done();
    close_all();
    disk->allocate = real_allocate;
    free(w);
}
END_TEST

START_TEST(an_idle_thread_fills_what_lies_ahead_of_the_log)
{
    open_all(2 << 20);
    ck_assert(!are_filled(2 << 20));
    wait_filled(2 << 20);
    close_all();
    open_all(2 << 20);  // The zeros are no torn tail and no damage.
    close_all();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("wal_thread");
    TCase *t = tcase_create("thread");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, every_submission_of_every_worker_comes_back_in_order);
    tcase_add_test(t, stopping_completes_what_was_submitted);
    tcase_add_test(t, a_quiet_log_vouches_for_its_last_batch);
    tcase_add_test(t, a_failed_sync_ends_the_process_and_leaves_a_mark);
    tcase_add_test(t, an_idle_thread_sleeps);
    tcase_add_test(t, an_idle_thread_fills_what_lies_ahead_of_the_log);
    tcase_add_test(t, on_a_full_disk_the_log_goes_on_in_what_is_retired_and_waits_beyond_that);
    tcase_add_test(t, a_thread_that_waits_for_room_can_be_stopped);
    tcase_add_test(t, what_is_submitted_while_the_log_waits_for_room_makes_it_try_no_more_often);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
