// SPDX-License-Identifier: Apache-2.0
// The disk seam: the real disk on a temporary directory, and the simulated one's promises about crashes.
// links: node/base proto consensus/wal tests/sim
#include "tests/sim/sim_disk.h"
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char dir[64];
static struct disk *real;
static struct sim_disk *simulated;

static void setup(void)
{
    snprintf(dir, sizeof(dir), "/tmp/warren-test-disk-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(disk_posix_open(dir, &real), RC_OK);
    simulated = sim_disk_create();
}
static void teardown(void)
{
    disk_posix_close(real);
    sim_disk_destroy(simulated);
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

// Both disks answer the same to what both can do.
static struct disk *disk_of(int i)
{
    return i == 0 ? real : sim_disk_base(simulated);
}

static void put(struct disk *d, const char *path, const char *text)
{
    struct disk_file *f;
    ck_assert_int_eq(d->open(d, path, DISK_WRITE | DISK_CREATE, &f), RC_OK);
    struct iovec iov = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
    ck_assert_int_eq(d->writev(f, &iov, 1, 0), RC_OK);
    d->close(f);
}

static void assert_content(struct disk *d, const char *path, const char *text)
{
    uint8_t *bytes;
    size_t len;
    ck_assert_int_eq(disk_read_all(d, path, 1 << 20, &bytes, &len), RC_OK);
    ck_assert_uint_eq(len, strlen(text));
    ck_assert(memcmp(bytes, text, len) == 0);
    free(bytes);
}

static void on_name(void *ctx, const char *name)
{
    strcat(ctx, name);
    strcat(ctx, " ");
}

START_TEST(what_was_written_is_read_over_many_vectors)
{
    struct disk *d = disk_of(_i);
    enum { N = 3000 };  // More than one pwritev takes.
    static uint8_t bytes[N * 7];
    static struct iovec iov[N];
    for (int i = 0; i < N; i++) {
        memset(bytes + i * 7, i, 7);
        iov[i] = (struct iovec){.iov_base = bytes + i * 7, .iov_len = i % 9 == 0 ? 0 : 7};
    }
    struct disk_file *f;
    ck_assert_int_eq(d->open(d, "f", DISK_READ | DISK_WRITE | DISK_CREATE, &f), RC_OK);
    ck_assert_int_eq(d->writev(f, iov, N, 100), RC_OK);
    ck_assert_int_eq(d->sync(f), RC_OK);
    uint64_t size;
    ck_assert_int_eq(d->size(f, &size), RC_OK);
    ck_assert_uint_eq(size, 100 + 7 * (N - (N + 8) / 9));
    uint64_t offset = 100;
    for (int i = 0; i < N; i++) {
        if (iov[i].iov_len > 0) {
            uint8_t part[7];
            size_t got;
            bool is_same =
                d->read(f, offset, part, 7, &got) == RC_OK && got == 7 && memcmp(part, bytes + i * 7, 7) == 0;
            if (!is_same) {
                ck_abort_msg("vector %d differs", i);
            }
            offset += 7;
        }
    }
    uint8_t more[10];
    size_t got;
    ck_assert_int_eq(d->read(f, size - 3, more, 10, &got), RC_OK);
    ck_assert_uint_eq(got, 3);
    ck_assert_int_eq(d->read(f, size + 3, more, 10, &got), RC_OK);
    ck_assert_uint_eq(got, 0);
    d->close(f);
}
END_TEST

// How much of the file is in the system's cache.
static size_t cached(int fd, size_t len)
{
    uint8_t *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    const size_t pages = len / (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *in = malloc(pages);
    ck_assert_int_eq(mincore(map, len, in), 0);
    size_t n = 0;
    for (size_t i = 0; i < pages; i++) {
        n += in[i] & 1;
    }
    free(in);
    munmap(map, len);
    return n * (len / pages);
}

// The kernel takes only so much of one hint. Where the directory is in memory anyway this cannot fail.
START_TEST(all_that_is_announced_to_be_read_is_brought_in)
{
    enum { LEN = 48 << 20, FROM = 1 << 20 };
    struct disk_file *f;
    ck_assert_int_eq(real->open(real, "announced", DISK_WRITE | DISK_CREATE, &f), RC_OK);
    uint8_t *bytes = calloc(1, LEN);
    struct iovec iov = {.iov_base = bytes, .iov_len = LEN};
    ck_assert_int_eq(real->writev(f, &iov, 1, 0), RC_OK);
    ck_assert_int_eq(real->sync(f), RC_OK);
    real->close(f);
    free(bytes);
    char path[128];
    snprintf(path, sizeof(path), "%s/announced", dir);
    const int fd = open(path, O_RDONLY);
    ck_assert_int_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    ck_assert_int_eq(real->open(real, "announced", DISK_READ, &f), RC_OK);
    real->will_read(f, FROM, LEN - FROM);
    real->close(f);
    const struct timespec moment = {.tv_nsec = 5000000};
    for (int i = 0; i < 500 && cached(fd, LEN) < LEN - FROM; i++) {  // It is brought in beside us.
        nanosleep(&moment, NULL);
    }
    // But for a page here and there that memory was short for: a hint too long for the kernel leaves most of it out.
    ck_assert_uint_ge(cached(fd, LEN), (LEN - FROM) / 100 * 99);
    close(fd);
}
END_TEST

START_TEST(allocation_sets_the_size_and_reads_as_zeros)
{
    struct disk *d = disk_of(_i);
    struct disk_file *f;
    ck_assert_int_eq(d->open(d, "f", DISK_READ | DISK_WRITE | DISK_CREATE, &f), RC_OK);
    ck_assert_int_eq(d->allocate(f, 1 << 20), RC_OK);
    ck_assert_int_eq(d->allocate(f, 100), RC_OK);  // At least: never smaller.
    uint64_t size;
    ck_assert_int_eq(d->size(f, &size), RC_OK);
    ck_assert_uint_eq(size, 1 << 20);
    uint8_t byte = 1;
    size_t got;
    ck_assert_int_eq(d->read(f, (1 << 20) - 1, &byte, 1, &got), RC_OK);
    ck_assert_uint_eq(byte, 0);
    ck_assert_int_eq(d->truncate(f, 10), RC_OK);
    ck_assert_int_eq(d->size(f, &size), RC_OK);
    ck_assert_uint_eq(size, 10);
    d->close(f);
}
END_TEST

START_TEST(a_listing_is_sorted_and_has_regular_files_only)
{
    struct disk *d = disk_of(_i);
    ck_assert_int_eq(d->make_dir(d, "x"), RC_OK);
    ck_assert_int_eq(d->make_dir(d, "x"), RC_OK);
    ck_assert_int_eq(d->make_dir(d, "x/lost+found"), RC_OK);
    put(d, "x/b", "1");
    put(d, "x/a", "1");
    put(d, "x/.DS_Store", "1");
    put(d, "x/c", "1");
    ck_assert_int_eq(d->unlink(d, "x/c"), RC_OK);
    if (_i == 0) {
        char path[128];
        snprintf(path, sizeof(path), "%s/x/fifo", dir);
        ck_assert_int_eq(mkfifo(path, 0600), 0);
        snprintf(path, sizeof(path), "%s/x/link", dir);
        ck_assert_int_eq(symlink("a", path), 0);
    }
    char names[100] = "";
    ck_assert_int_eq(d->list(d, "x", on_name, names), RC_OK);
    ck_assert_str_eq(names, ".DS_Store a b ");
}
END_TEST

START_TEST(missing_files_are_told_apart_from_errors)
{
    struct disk *d = disk_of(_i);
    struct disk_file *f;
    ck_assert_int_eq(d->open(d, "none", DISK_READ, &f), RC_NO_FILE);
    ck_assert_int_eq(d->open(d, "none/none", DISK_WRITE | DISK_CREATE, &f), RC_NO_FILE);
    ck_assert_int_eq(d->unlink(d, "none"), RC_NO_FILE);
    ck_assert_int_eq(d->rename(d, "none", "other"), RC_NO_FILE);
    ck_assert(!d->failed);
}
END_TEST

START_TEST(a_small_file_is_replaced_whole)
{
    struct disk *d = disk_of(_i);
    ck_assert_int_eq(d->make_dir(d, "m"), RC_OK);
    ck_assert_int_eq(disk_replace(d, "m", "id", span_str("the first")), RC_OK);
    ck_assert_int_eq(disk_replace(d, "m", "id", span_str("2nd")), RC_OK);
    assert_content(d, "m/id", "2nd");
    ck_assert_int_eq(disk_replace(d, ".", "top", span_str("")), RC_OK);
    assert_content(d, "top", "");
    uint8_t *bytes;
    size_t len;
    ck_assert_int_eq(disk_read_all(d, "m/id", 2, &bytes, &len), RC_TOO_LARGE);
    char names[100] = "";
    ck_assert_int_eq(d->list(d, "m", on_name, names), RC_OK);
    ck_assert_str_eq(names, "id ");
}
END_TEST

START_TEST(a_second_process_is_refused_the_directory)
{
    struct disk *second = NULL;
    ck_assert_int_eq(disk_posix_open(dir, &second), RC_BUSY);
    pid_t child = fork();
    if (child == 0) {
        _exit(disk_posix_open(dir, &second) == RC_BUSY ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    disk_posix_close(real);
    ck_assert_int_eq(disk_posix_open(dir, &real), RC_OK);  // Free again.
}
END_TEST

START_TEST(the_root_is_made_with_its_parents)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/a/b/c", dir);
    struct disk *d = NULL;
    ck_assert_int_eq(disk_posix_open(path, &d), RC_OK);
    put(d, "f", "x");
    disk_posix_close(d);
    strcat(path, "/f");
    ck_assert_int_eq(access(path, R_OK), 0);
}
END_TEST

// A write beyond the limit of file sizes fails with EFBIG: an error like EIO as far as we are concerned.
START_TEST(after_a_failed_write_the_real_disk_refuses_everything)
{
    struct disk_file *f;
    ck_assert_int_eq(real->open(real, "f", DISK_READ | DISK_WRITE | DISK_CREATE, &f), RC_OK);
    put(real, "g", "kept");
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {.rlim_cur = 100000, .rlim_max = RLIM_INFINITY};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct iovec iov = {.iov_base = dir, .iov_len = 10};
    ck_assert_int_eq(real->writev(f, &iov, 1, 200000), RC_IO);
    limit.rlim_cur = RLIM_INFINITY;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert(real->failed);
    ck_assert_int_eq(real->writev(f, &iov, 1, 0), RC_IO);
    ck_assert_int_eq(real->sync(f), RC_IO);
    ck_assert_int_eq(real->allocate(f, 10), RC_IO);
    ck_assert_int_eq(real->rename(real, "g", "h"), RC_IO);
    ck_assert_int_eq(real->unlink(real, "g"), RC_IO);
    ck_assert_int_eq(real->sync_dir(real, "."), RC_IO);
    assert_content(real, "g", "kept");
    real->mark_failed(real, "because");
    assert_content(real, "store.failed", "because");
    real->close(f);
}
END_TEST

// Takes every descriptor that is left.
static int take_descriptors(int *taken, int max)
{
    int n = 0;
    for (int fd; n < max && (fd = open("/dev/null", O_RDONLY)) >= 0;) {
        taken[n++] = fd;
    }
    ck_assert_int_lt(n, max);
    ck_assert_int_eq(errno, EMFILE);
    return n;
}

// Clients can have them all, and come again as soon as one is free. What is on disk is not lost for that.
START_TEST(the_real_disk_finds_its_files_when_no_descriptor_is_left)
{
    enum { LIMIT = 256, OPEN = 8 };
    struct rlimit before, limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = (struct rlimit){.rlim_cur = LIMIT, .rlim_max = before.rlim_max};
    put(real, "g", "kept");
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    int taken[LIMIT];
    int count = take_descriptors(taken, LIMIT);
    for (int round = 0; round < 100; round++) {
        struct disk_file *files[OPEN];
        for (int i = 0; i < OPEN; i++) {
            ck_assert_int_eq(real->open(real, "g", DISK_READ, &files[i]), RC_OK);
        }
        put(real, "h", "new");
        ck_assert_int_eq(real->sync_dir(real, "."), RC_OK);
        for (int i = 0; i < OPEN; i++) {
            real->close(files[i]);
        }
        count += take_descriptors(taken + count, LIMIT - count);  // Nothing that was kept aside is to be had.
    }
    assert_content(real, "g", "kept");
    assert_content(real, "h", "new");
    while (count > 0) {
        close(taken[--count]);
    }
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
}
END_TEST

// ---- the simulated disk ----------------------------------------------------------------------------------------

static void sync_file(struct disk *d, const char *path)
{
    struct disk_file *f;
    ck_assert_int_eq(d->open(d, path, DISK_WRITE, &f), RC_OK);
    ck_assert_int_eq(d->sync(f), RC_OK);
    d->close(f);
}

START_TEST(synced_content_under_a_synced_name_survives_any_crash)
{
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct rng rng;
        rng_seed(&rng, seed);
        struct sim_disk *s = sim_disk_create();
        struct disk *d = sim_disk_base(s);
        put(d, "f", "content");
        sync_file(d, "f");
        ck_assert_int_eq(d->sync_dir(d, "."), RC_OK);
        put(d, "f", "CON");
        sim_disk_crash(s, &rng);
        uint8_t *bytes;
        size_t len;
        ck_assert_int_eq(disk_read_all(d, "f", 100, &bytes, &len), RC_OK);
        ck_assert_uint_eq(len, 7);
        ck_assert(memcmp(bytes + 3, "tent", 4) == 0);
        ck_assert(memcmp(bytes, "con", 3) == 0 || memcmp(bytes, "CON", 3) == 0);
        free(bytes);
        sim_disk_destroy(s);
    }
}
END_TEST

START_TEST(unsynced_writes_are_kept_lost_or_torn_by_sectors)
{
    bool is_kept = false, is_lost = false, is_torn = false;
    uint8_t ones[4 * 512];
    memset(ones, 1, sizeof(ones));
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct rng rng;
        rng_seed(&rng, seed);
        struct sim_disk *s = sim_disk_create();
        struct disk *d = sim_disk_base(s);
        struct disk_file *f;
        ck_assert_int_eq(d->open(d, "f", DISK_WRITE | DISK_CREATE, &f), RC_OK);
        ck_assert_int_eq(d->allocate(f, 4096), RC_OK);
        ck_assert_int_eq(d->sync(f), RC_OK);
        ck_assert_int_eq(d->sync_dir(d, "."), RC_OK);
        struct iovec iov = {.iov_base = ones, .iov_len = sizeof(ones)};
        ck_assert_int_eq(d->writev(f, &iov, 1, 1024), RC_OK);
        sim_disk_crash(s, &rng);
        size_t got;
        uint8_t bytes[4096];
        ck_assert_int_eq(d->read(f, 0, bytes, 10, &got), RC_IO);  // Handles do not outlive a crash.
        d->close(f);
        ck_assert_int_eq(d->open(d, "f", DISK_READ, &f), RC_OK);
        ck_assert_int_eq(d->read(f, 0, bytes, 4096, &got), RC_OK);
        ck_assert_uint_eq(got, 4096);
        int present = 0;
        for (int sector = 0; sector < 8; sector++) {
            int sum = 0;
            for (int i = 0; i < 512; i++) {
                sum += bytes[sector * 512 + i];
            }
            ck_assert(sum == 0 || sum == 512);
            present += sum / 512;
            ck_assert(sum == 0 || (sector >= 2 && sector < 6));
        }
        is_kept = is_kept || present == 4;
        is_lost = is_lost || present == 0;
        is_torn = is_torn || (present > 0 && present < 4);
        d->close(f);
        sim_disk_destroy(s);
    }
    ck_assert(is_kept && is_lost && is_torn);
}
END_TEST

START_TEST(unsynced_names_are_undone_from_the_last_one_backwards)
{
    bool seen[4] = {false};
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct rng rng;
        rng_seed(&rng, seed);
        struct sim_disk *s = sim_disk_create();
        struct disk *d = sim_disk_base(s);
        put(d, "old", "old");
        put(d, "gone", "gone");
        sync_file(d, "old");
        sync_file(d, "gone");
        ck_assert_int_eq(d->sync_dir(d, "."), RC_OK);
        put(d, "new", "new");
        sync_file(d, "new");
        ck_assert_int_eq(d->rename(d, "new", "old"), RC_OK);
        ck_assert_int_eq(d->unlink(d, "gone"), RC_OK);
        sim_disk_crash(s, &rng);
        char names[100] = "";
        ck_assert_int_eq(d->list(d, ".", on_name, names), RC_OK);
        // After 0, 1, 2 or all 3 changes.
        static const char *const after[] = {"gone old ", "gone new old ", "gone old ", "old "};
        static const char *const content[] = {"old", "old", "new", "new"};
        int match = -1;
        for (int i = 0; i < 4; i++) {
            uint8_t *bytes;
            size_t len;
            ck_assert_int_eq(disk_read_all(d, "old", 100, &bytes, &len), RC_OK);
            if (strcmp(names, after[i]) == 0 && memcmp(bytes, content[i], 3) == 0) {
                match = i;
            }
            free(bytes);
        }
        ck_assert_int_ge(match, 0);
        seen[match] = true;
        sim_disk_destroy(s);
    }
    ck_assert(seen[0] && seen[1] && seen[2] && seen[3]);
}
END_TEST

START_TEST(a_crash_is_the_same_for_the_same_seed)
{
    char first[2][200];
    for (int run = 0; run < 2; run++) {
        struct rng rng;
        rng_seed(&rng, 42);
        struct sim_disk *s = sim_disk_create();
        struct disk *d = sim_disk_base(s);
        for (int i = 0; i < 20; i++) {
            char name[8];
            snprintf(name, sizeof(name), "f%d", i);
            put(d, name, "x");
        }
        sim_disk_crash(s, &rng);
        first[run][0] = '\0';
        ck_assert_int_eq(d->list(d, ".", on_name, first[run]), RC_OK);
        sim_disk_destroy(s);
    }
    ck_assert_str_eq(first[0], first[1]);
}
END_TEST

START_TEST(after_the_crash_point_nothing_happens_until_the_restart)
{
    struct disk *d = sim_disk_base(simulated);
    put(d, "a", "1");
    sim_disk_crash_after(simulated, 2);
    put(d, "a", "2");
    struct disk_file *f;
    ck_assert_int_eq(d->open(d, "b", DISK_WRITE | DISK_CREATE, &f), RC_OK);
    d->close(f);
    ck_assert(!sim_disk_is_dead(simulated));
    ck_assert_int_eq(d->unlink(d, "a"), RC_IO);
    ck_assert(sim_disk_is_dead(simulated));
    ck_assert_int_eq(d->sync_dir(d, "."), RC_IO);
    sim_disk_kill(simulated);
    assert_content(d, "a", "2");
    ck_assert(!d->failed);
}
END_TEST

static off_t first_hole(const char *name)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    const int fd = open(path, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    const off_t at = lseek(fd, 0, SEEK_HOLE);
    close(fd);
    return at;
}

START_TEST(filling_leaves_no_place_unwritten_and_nothing_that_was_written_changed)
{
    enum { SIZE = 1 << 20, SLICE = 64 << 10 };
    static const uint64_t written[] = {0, 300 << 10, SIZE - 4096};
    struct disk_file *f;
    ck_assert_int_eq(real->open(real, "a", DISK_READ | DISK_WRITE | DISK_CREATE, &f), RC_OK);
    ck_assert_int_eq(real->allocate(f, SIZE), RC_OK);
    uint8_t page[4096];
    memset(page, 'x', sizeof(page));
    for (int i = 0; i < 3; i++) {
        const struct iovec iov = {.iov_base = page, .iov_len = sizeof(page)};
        ck_assert_int_eq(real->writev(f, &iov, 1, written[i]), RC_OK);
    }
    ck_assert_int_eq(real->sync(f), RC_OK);
    ck_assert_int_eq(first_hole("a"), 4096);
    uint64_t at = 0;
    uint64_t zeros = 0;
    for (int i = 0; i < 100 && at != UINT64_MAX; i++) {
        const uint64_t from = at;
        const uint64_t to = i < 2 ? 100 << 10 : UINT64_MAX;  // Not beyond what it is told at first.
        ck_assert_int_eq(real->fill(f, from, to, SLICE, &at), RC_OK);
        ck_assert(i > 1 || at == (i == 0 ? 68 << 10 : 100 << 10));
        zeros += at != UINT64_MAX;
    }
    ck_assert_uint_eq(at, UINT64_MAX);
    ck_assert_uint_eq(zeros, 2 + 4 + 12);  // To 100 KiB, 200 before the second page, 716 behind it.
    ck_assert_int_eq(first_hole("a"), SIZE);
    for (uint64_t page_at = 0; page_at < SIZE; page_at += 4096) {
        uint8_t got[4096];
        size_t n;
        const bool is_ours = page_at == written[0] || page_at == written[1] || page_at == written[2];
        memset(page, is_ours ? 'x' : 0, sizeof(page));
        ck_assert_int_eq(real->read(f, page_at, got, sizeof(got), &n), RC_OK);
        ck_assert_uint_eq(n, sizeof(got));
        ck_assert(memcmp(got, page, n) == 0);
    }
    real->close(f);
}
END_TEST

START_TEST(a_full_disk_says_so_and_recovers_when_space_is_freed)
{
    struct disk *d = sim_disk_base(simulated);
    sim_disk_set_budget(simulated, 1000);
    struct disk_file *f;
    ck_assert_int_eq(d->open(d, "a", DISK_WRITE | DISK_CREATE, &f), RC_OK);
    ck_assert_int_eq(d->allocate(f, 1001), RC_NO_SPACE);
    ck_assert_int_eq(d->allocate(f, 1000), RC_OK);
    d->close(f);
    ck_assert_int_eq(d->open(d, "b", DISK_WRITE | DISK_CREATE, &f), RC_OK);
    ck_assert_int_eq(d->allocate(f, 1), RC_NO_SPACE);
    ck_assert_int_eq(d->unlink(d, "a"), RC_OK);
    ck_assert_int_eq(d->sync_dir(d, "."), RC_OK);
    ck_assert_int_eq(d->allocate(f, 1), RC_OK);
    d->close(f);
    ck_assert(!d->failed);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("disk");
    TCase *t = tcase_create("disk");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, what_was_written_is_read_over_many_vectors, 0, 2);
    tcase_add_test(t, all_that_is_announced_to_be_read_is_brought_in);
    tcase_add_loop_test(t, allocation_sets_the_size_and_reads_as_zeros, 0, 2);
    tcase_add_loop_test(t, a_listing_is_sorted_and_has_regular_files_only, 0, 2);
    tcase_add_loop_test(t, missing_files_are_told_apart_from_errors, 0, 2);
    tcase_add_loop_test(t, a_small_file_is_replaced_whole, 0, 2);
    tcase_add_test(t, a_second_process_is_refused_the_directory);
    tcase_add_test(t, the_root_is_made_with_its_parents);
    tcase_add_test(t, after_a_failed_write_the_real_disk_refuses_everything);
    tcase_add_test(t, the_real_disk_finds_its_files_when_no_descriptor_is_left);
    tcase_add_test(t, synced_content_under_a_synced_name_survives_any_crash);
    tcase_add_test(t, unsynced_writes_are_kept_lost_or_torn_by_sectors);
    tcase_add_test(t, unsynced_names_are_undone_from_the_last_one_backwards);
    tcase_add_test(t, a_crash_is_the_same_for_the_same_seed);
    tcase_add_test(t, after_the_crash_point_nothing_happens_until_the_restart);
    tcase_add_test(t, filling_leaves_no_place_unwritten_and_nothing_that_was_written_changed);
    tcase_add_test(t, a_full_disk_says_so_and_recovers_when_space_is_freed);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
