// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus/peer consensus/wal tests/sim
// The identity file of a data directory (decision 6, law 2), on the real disk; on a full one, on the simulated.
#include "consensus/peer/identity.h"
#include "node/base/env.h"
#include "node/base/log.h"
#include "tests/sim/sim_disk.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- fixture -----------------------------------------------------------------------------------------------------

static char root[64];
static struct disk *disk;

static void quiet(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

static void setup(void)
{
    log_set_sink(quiet, NULL);
    snprintf(root, sizeof(root), "/tmp/test_identity.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    ck_assert_int_eq(disk_posix_open(root, &disk), RC_OK);
}

static void teardown(void)
{
    disk_posix_close(disk);
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    ck_assert_int_eq(system(command), 0);
}

static struct identity open_ok(void)
{
    struct identity id;
    ck_assert_int_eq(identity_open(disk, "n1@h", env_system_random, &id), RC_OK);
    return id;
}

static FILE *file_open(const char *name, const char *mode)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    FILE *f = fopen(path, mode);
    ck_assert_ptr_nonnull(f);
    return f;
}

// ---- tests -------------------------------------------------------------------------------------------------------

START_TEST(an_empty_directory_gets_a_store_id_and_incarnation_1)
{
    static const uint8_t zeros[STORE_ID_BYTES];
    struct identity id = open_ok();
    ck_assert(identity_is_blank(&id));
    ck_assert_mem_ne(id.store_id, zeros, STORE_ID_BYTES);
    ck_assert_uint_eq(id.incarnation, 1);
    ck_assert_str_eq(id.name, "n1@h");
}
END_TEST

START_TEST(every_start_raises_the_incarnation_and_keeps_the_rest)
{
    static const uint8_t cluster[CLUSTER_ID_BYTES] = {4, 5, 6};
    struct identity first = open_ok();
    ck_assert_int_eq(identity_set_member(disk, &first, cluster, 3, 17), RC_OK);
    for (uint64_t i = 2; i < 6; i++) {
        struct identity id = open_ok();
        ck_assert_uint_eq(id.incarnation, i);
        ck_assert_mem_eq(id.store_id, first.store_id, STORE_ID_BYTES);
        ck_assert_mem_eq(id.cluster_id, cluster, CLUSTER_ID_BYTES);
        ck_assert_uint_eq(id.node_id, 3);
        ck_assert_uint_eq(id.replica_id, 17);
        ck_assert(!identity_is_blank(&id));
    }
}
END_TEST

START_TEST(two_directories_get_different_store_ids)
{
    struct identity a = open_ok();
    teardown();
    setup();
    struct identity b = open_ok();
    ck_assert_mem_ne(a.store_id, b.store_id, STORE_ID_BYTES);
}
END_TEST

START_TEST(a_directory_of_another_node_is_refused)
{
    struct identity id = open_ok();
    ck_assert_int_eq(identity_open(disk, "n2@h", env_system_random, &id), RC_CONFLICT);
    id = open_ok();
    ck_assert_uint_eq(id.incarnation, 2);  // The refused start changed nothing.
}
END_TEST

START_TEST(any_flipped_bit_and_any_cut_of_the_file_is_damage_and_not_blankness)
{
    struct identity id = open_ok();
    uint8_t bytes[4096];
    FILE *f = file_open("identity", "r");
    size_t len = fread(bytes, 1, sizeof(bytes), f);
    fclose(f);
    ck_assert_uint_gt(len, 60);
    for (size_t i = 0; i < len; i++) {
        bytes[i] ^= 0x10;
        f = file_open("identity", "w");
        ck_assert_uint_eq(fwrite(bytes, 1, len, f), len);
        fclose(f);
        ck_assert_int_eq(identity_open(disk, "n1@h", env_system_random, &id), RC_CORRUPT);
        bytes[i] ^= 0x10;
        f = file_open("identity", "w");
        ck_assert_uint_eq(fwrite(bytes, 1, i, f), i);
        fclose(f);
        ck_assert_int_eq(identity_open(disk, "n1@h", env_system_random, &id), RC_CORRUPT);
    }
}
END_TEST

START_TEST(a_directory_with_logs_but_no_identity_is_damage_and_not_blank)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/wal", root);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    struct identity id = open_ok();  // An empty folder is no log.
    snprintf(path, sizeof(path), "%s/identity", root);
    ck_assert_int_eq(unlink(path), 0);
    fclose(file_open("wal/00000001.wal", "w"));
    ck_assert_int_eq(identity_open(disk, "n1@h", env_system_random, &id), RC_CORRUPT);
}
END_TEST

// CR-20: the lock.
START_TEST(a_second_process_on_the_directory_is_refused)
{
    struct disk *second = NULL;
    ck_assert_int_eq(disk_posix_open(root, &second), RC_BUSY);
}
END_TEST

// ---- a disk without room ------------------------------------------------------------------------------------------

static void fill(struct sim_disk *s)
{
    sim_disk_set_budget(s, sim_disk_used(s));
}

START_TEST(every_start_raises_the_incarnation_on_a_disk_that_is_full_to_the_last_byte)
{
    struct sim_disk *s = sim_disk_create();
    struct identity id = {0};
    for (uint64_t i = 1; i < 8; i++) {
        ck_assert_int_eq(identity_open(sim_disk_base(s), "n1@h", env_system_random, &id), RC_OK);
        ck_assert_uint_eq(id.incarnation, i);
        fill(s);
        sim_disk_kill(s);
    }
    sim_disk_destroy(s);
}
END_TEST

START_TEST(a_start_without_a_spare_on_a_full_disk_leaves_the_identity_as_it_was)
{
    struct sim_disk *s = sim_disk_create();
    struct disk *d = sim_disk_base(s);
    struct identity id = {0};
    ck_assert_int_eq(identity_open(d, "n1@h", env_system_random, &id), RC_OK);
    ck_assert_int_eq(d->unlink(d, "identity.spare"), RC_OK);
    ck_assert_int_eq(d->sync_dir(d, "."), RC_OK);
    fill(s);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(identity_open(d, "n1@h", env_system_random, &id), RC_NO_SPACE);
        ck_assert(!d->failed);
    }
    sim_disk_set_budget(s, UINT64_MAX);
    ck_assert_int_eq(identity_open(d, "n1@h", env_system_random, &id), RC_OK);
    ck_assert_uint_eq(id.incarnation, 2);
    ck_assert(sim_disk_exists(s, "identity.spare"));
    sim_disk_destroy(s);
}
END_TEST

// Loop: the power fails after so many operations of a start on a full disk.
START_TEST(an_incarnation_that_was_told_is_never_told_again_over_power_failures_on_a_full_disk)
{
    struct sim_disk *s = sim_disk_create();
    struct rng rng;
    rng_seed(&rng, (uint64_t)_i + 1);
    struct identity id = {0};
    uint64_t told = 0;
    ck_assert_int_eq(identity_open(sim_disk_base(s), "n1@h", env_system_random, &id), RC_OK);
    told = id.incarnation;
    fill(s);
    for (int i = 0; i < 20; i++) {
        sim_disk_crash_after(s, rng_below(&rng, 10));
        if (identity_open(sim_disk_base(s), "n1@h", env_system_random, &id) == RC_OK) {
            ck_assert_uint_gt(id.incarnation, told);
            told = id.incarnation;
        }
        sim_disk_crash(s, &rng);
    }
    sim_disk_set_budget(s, UINT64_MAX);
    ck_assert_int_eq(identity_open(sim_disk_base(s), "n1@h", env_system_random, &id), RC_OK);
    ck_assert_uint_gt(id.incarnation, told);
    sim_disk_destroy(s);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("identity");
    TCase *c = tcase_create("identity");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, an_empty_directory_gets_a_store_id_and_incarnation_1);
    tcase_add_test(c, every_start_raises_the_incarnation_and_keeps_the_rest);
    tcase_add_test(c, two_directories_get_different_store_ids);
    tcase_add_test(c, a_directory_of_another_node_is_refused);
    tcase_add_test(c, any_flipped_bit_and_any_cut_of_the_file_is_damage_and_not_blankness);
    tcase_add_test(c, a_directory_with_logs_but_no_identity_is_damage_and_not_blank);
    tcase_add_test(c, a_second_process_on_the_directory_is_refused);
    tcase_add_test(c, every_start_raises_the_incarnation_on_a_disk_that_is_full_to_the_last_byte);
    tcase_add_test(c, a_start_without_a_spare_on_a_full_disk_leaves_the_identity_as_it_was);
    tcase_add_loop_test(c, an_incarnation_that_was_told_is_never_told_again_over_power_failures_on_a_full_disk, 0, 100);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
