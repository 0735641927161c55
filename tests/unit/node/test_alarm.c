// SPDX-License-Identifier: Apache-2.0
// Limits in RabbitMQ's notation, what counts as the machine's memory, free room on a disk, and the alarms of
// several nodes.
// links: node/alarm node/base
#include "node/alarm/alarms.h"
#include "node/alarm/measure.h"
#include "node/base/log.h"
#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

// ---- fixture -----------------------------------------------------------------------------------------------------

static struct alarms alarms;
static char logged[8192];

static void note_line(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    strncat(logged, line, sizeof(logged) - strlen(logged) - 2);
    strcat(logged, "\n");
}

static void begin(void)
{
    logged[0] = '\0';
    log_set_sink(note_line, NULL);
    alarms_init(&alarms, "a@h");
}

static void end(void)
{
    alarms_deinit(&alarms);
    log_set_sink(NULL, NULL);
}

static void write_file(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *p = full + 1; *p; p++) {
        if (*p == '/') {
            *p = '\0';
            mkdir(full, 0700);
            *p = '/';
        }
    }
    FILE *f = fopen(full, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

// What the file system is made to say, instead of the real one.
static struct statvfs told;
static bool is_told;
static int interruptions;  // So many calls are interrupted first.

int statvfs(const char *path, struct statvfs *out)
{
    if (interruptions > 0) {
        interruptions--;
        errno = EINTR;
        return -1;
    }
    if (is_told) {
        *out = told;
        return 0;
    }
    int (*real)(const char *, struct statvfs *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "statvfs");
    return real(path, out);
}

static void expect_size(const char *text, uint64_t bytes)
{
    uint64_t n = 0;
    ck_assert_msg(size_parse(text, &n), "%s", text);
    ck_assert_msg(n == bytes, "%s is %llu", text, (unsigned long long)n);
}

// ---- limits ------------------------------------------------------------------------------------------------------

START_TEST(sizes_have_rabbitmqs_units)
{
    expect_size("0", 0);
    expect_size("50000000", 50000000);
    expect_size("5k", 5120);
    expect_size("5K", 5120);
    expect_size("5kB", 5000);
    expect_size("5KiB", 5120);
    expect_size("5kiB", 5120);
    expect_size("2M", 2ull << 20);
    expect_size("2MiB", 2ull << 20);
    expect_size("2MB", 2000000);
    expect_size("2G", 2ull << 30);
    expect_size("2GiB", 2ull << 30);
    expect_size("2GB", 2000000000);
    expect_size("1TB", 1000000000000);
    expect_size("18446744073709551615", UINT64_MAX);
}
END_TEST

START_TEST(what_is_no_size_is_refused)
{
    static const char *const bad[] = {"",
                                      "abc",
                                      "12XB",
                                      "1.5GB",
                                      "-5",
                                      "5 MB",
                                      "5MBx",
                                      "kB",
                                      "5ki",
                                      "18446744073709551616",
                                      "18446744073709551615kB"};
    uint64_t n;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_msg(!size_parse(bad[i], &n), "%s", bad[i]);
    }
    double share;
    ck_assert(share_parse("0.4", &share) && share > 0.39 && share < 0.41);
    ck_assert(share_parse("1", &share) && share == 1.0);
    ck_assert(!share_parse("abc", &share) && !share_parse("0.4x", &share) && !share_parse("", &share) &&
              !share_parse("inf", &share));
}
END_TEST

START_TEST(a_share_is_of_the_memory_in_all)
{
    struct alarm_limits l;
    alarm_limits_default(&l);
    ck_assert_uint_eq(alarm_limit_bytes(&l.disk_free, 1000), 50000000);
    ck_assert_uint_eq(alarm_limit_bytes(&l.memory, 1000000), 600000);
}
END_TEST

// RabbitMQ: 2 * (free - limit) / 250 MB/s, between 100 ms and 10 s.
START_TEST(the_disk_is_looked_at_the_sooner_the_nearer_its_limit)
{
    ck_assert_uint_eq(alarm_disk_interval_ms(50000000, 50000000), 100);
    ck_assert_uint_eq(alarm_disk_interval_ms(175000000, 50000000), 1000);
    ck_assert_uint_eq(alarm_disk_interval_ms(1300000000, 50000000), 10000);
    ck_assert_uint_eq(alarm_disk_interval_ms(UINT64_MAX, 50000000), 10000);
    ck_assert_uint_le(alarm_disk_interval_ms(0, 50000000), 10000);  // AL-01: the end of an alarm is seen within 10 s.
}
END_TEST

// ---- measuring ---------------------------------------------------------------------------------------------------

START_TEST(the_least_limit_along_the_path_of_control_groups_counts)
{
    char root[] = "/tmp/warren-test-alarm-XXXXXX", source[256] = "";
    ck_assert_ptr_nonnull(mkdtemp(root));
    ck_assert_uint_eq(measure_group_limit(root, "0::/\n", source, sizeof(source)), UINT64_MAX);
    write_file(root, "/a/memory.max", "1073741824\n");
    write_file(root, "/a/b/memory.max", "max\n");
    ck_assert_uint_eq(measure_group_limit(root, "0::/a/b\n", source, sizeof(source)), 1ull << 30);
    ck_assert_ptr_nonnull(strstr(source, "/a/memory.max"));
    write_file(root, "/memory.max", "536870912\n");  // Of a container, which sees its own group as the root.
    ck_assert_uint_eq(measure_group_limit(root, "0::/a/b\n", source, sizeof(source)), 512ull << 20);
    ck_assert_uint_eq(measure_group_limit(root, "0::/\n", source, sizeof(source)), 512ull << 20);
    write_file(root, "/memory/docker/x/memory.limit_in_bytes", "268435456\n");
    ck_assert_uint_eq(
        measure_group_limit(root, "12:cpu:/docker/x\n4:memory:/docker/x\n", source, sizeof(source)),
        256ull << 20);
    ck_assert_uint_eq(measure_group_limit(root, "12:cpu:/docker/x\n", source, sizeof(source)), UINT64_MAX);
    char command[300];
    snprintf(command, sizeof(command), "rm -rf %s", root);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

START_TEST(memory_in_all_and_in_use_are_plausible)
{
    struct measured_total t;
    measure_memory_total(123456789, &t);
    ck_assert_uint_eq(t.bytes, 123456789);
    measure_memory_total(0, &t);
    ck_assert_uint_gt(t.bytes, 16ull << 20);
    ck_assert_uint_lt(t.bytes, 1ull << 50);
    const uint64_t before = measure_memory_used();
    uint8_t *p = malloc(64 << 20);
    memset(p, 1, 64 << 20);
    ck_assert_uint_ge(measure_memory_used(), before + (60 << 20));
    ck_assert_uint_eq(p[12345], 1);
    free(p);
}
END_TEST

// AL-10: blocks and fragments differ on network file systems; a quota or what is kept for root makes the available less
// than the free.
START_TEST(free_room_is_counted_in_fragments_and_only_what_is_available)
{
    told = (struct statvfs){.f_bsize = 1 << 20, .f_frsize = 512, .f_blocks = 10000, .f_bfree = 3000, .f_bavail = 2000};
    is_told = true;
    interruptions = 2;
    uint64_t bytes = 0;
    ck_assert_int_eq(measure_disk_free("/any", &bytes), RC_OK);
    ck_assert_uint_eq(bytes, 2000 * 512);
    told.f_bavail = (fsblkcnt_t)1 << 40;  // More than fits into 32 bits of anything.
    ck_assert_int_eq(measure_disk_free("/any", &bytes), RC_OK);
    ck_assert_uint_eq(bytes, (uint64_t)512 << 40);
    told.f_bavail = 0;
    ck_assert_int_eq(measure_disk_free("/any", &bytes), RC_OK);
    ck_assert_uint_eq(bytes, 0);
    is_told = false;
}
END_TEST

// AL-10: also under a name with a space and an umlaut; what `df` calls available.
START_TEST(free_room_is_what_the_user_may_still_write)
{
    char dir[] = "/tmp/warren t\xc3\xbcst-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(dir));
    uint64_t bytes = 0;
    ck_assert_int_eq(measure_disk_free(dir, &bytes), RC_OK);
    char command[200], line[64] = "";
    snprintf(command, sizeof(command), "df --block-size=1 --output=avail '%s' | tail -1", dir);
    FILE *f = popen(command, "r");
    ck_assert_ptr_nonnull(fgets(line, sizeof(line), f));
    pclose(f);
    const uint64_t df = strtoull(line, NULL, 10);
    ck_assert_msg(bytes > df - (256 << 20) && bytes < df + (256 << 20), "%llu, df says %s",
                  (unsigned long long)bytes, line);
    rmdir(dir);
    ck_assert_int_eq(measure_disk_free("/no/such/place", &bytes), RC_SYSTEM);
}
END_TEST

// ---- alarms ------------------------------------------------------------------------------------------------------

static void count(void *ctx, const char *node, bool is_local, uint32_t bit)
{
    char line[64];
    snprintf(line, sizeof(line), "%s%s:%s ", node, is_local ? "!" : "", alarm_name(bit));
    strcat(ctx, line);
}

START_TEST(an_alarm_of_any_node_is_everybodys_until_the_last_one_is_gone)
{
    begin();
    ck_assert(alarms_set_own(&alarms, ALARM_MEMORY));
    ck_assert(!alarms_set_own(&alarms, ALARM_MEMORY));
    ck_assert(!alarms_set_node(&alarms, 2, "b@h", ALARM_MEMORY));  // Nothing new for clients.
    ck_assert(alarms_set_node(&alarms, 2, "b@h", ALARM_MEMORY | ALARM_DISK));
    ck_assert_uint_eq(alarms.all, ALARM_MEMORY | ALARM_DISK);
    ck_assert_uint_eq(alarms_of_node(&alarms, 2), ALARM_MEMORY | ALARM_DISK);
    char text[256] = "";
    alarms_each(&alarms, count, text);
    ck_assert_str_eq(text, "a@h!:memory b@h:memory b@h:disk ");
    ck_assert(!alarms_set_own(&alarms, 0));
    ck_assert_uint_eq(alarms.all, ALARM_MEMORY | ALARM_DISK);
    ck_assert(alarms_set_node(&alarms, 2, "b@h", ALARM_DISK));
    ck_assert(alarms_set_node(&alarms, 2, "b@h", 0));
    ck_assert_uint_eq(alarms.all, 0);
    end();
}
END_TEST

START_TEST(a_node_that_is_gone_takes_its_alarms_with_it)
{
    begin();
    ck_assert(alarms_set_node(&alarms, 2, "b@h", ALARM_DISK));
    ck_assert(!alarms_set_node(&alarms, 3, "c@h", ALARM_DISK));
    const uint32_t known[] = {7, 3};
    ck_assert(!alarms_retain(&alarms, known, 2));
    ck_assert_uint_eq(alarms_of_node(&alarms, 2), 0);
    ck_assert(alarms_retain(&alarms, known, 1));
    ck_assert_uint_eq(alarms.all, 0);
    end();
}
END_TEST

START_TEST(coming_and_going_is_logged_in_rabbitmqs_words)
{
    begin();
    alarms_set_node(&alarms, 2, "b@h", ALARM_DISK);
    ck_assert_ptr_nonnull(strstr(logged, "disk resource limit alarm set on node b@h."));
    ck_assert_ptr_nonnull(strstr(logged, "*** Publishers will be blocked until this alarm clears ***"));
    alarms_set_own(&alarms, ALARM_DISK);
    alarms_set_node(&alarms, 2, "b@h", 0);
    ck_assert_ptr_nonnull(strstr(logged, "disk resource limit alarm cleared on node b@h"));
    ck_assert_ptr_null(strstr(logged, "across the cluster"));
    alarms_set_own(&alarms, 0);
    ck_assert_ptr_nonnull(strstr(logged, "disk resource limit alarm cleared across the cluster"));
    end();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("alarm");
    TCase *t = tcase_create("all");
    tcase_add_test(t, sizes_have_rabbitmqs_units);
    tcase_add_test(t, what_is_no_size_is_refused);
    tcase_add_test(t, a_share_is_of_the_memory_in_all);
    tcase_add_test(t, the_disk_is_looked_at_the_sooner_the_nearer_its_limit);
    tcase_add_test(t, the_least_limit_along_the_path_of_control_groups_counts);
    tcase_add_test(t, memory_in_all_and_in_use_are_plausible);
    tcase_add_test(t, free_room_is_counted_in_fragments_and_only_what_is_available);
    tcase_add_test(t, free_room_is_what_the_user_may_still_write);
    tcase_add_test(t, an_alarm_of_any_node_is_everybodys_until_the_last_one_is_gone);
    tcase_add_test(t, a_node_that_is_gone_takes_its_alarms_with_it);
    tcase_add_test(t, coming_and_going_is_logged_in_rabbitmqs_words);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
