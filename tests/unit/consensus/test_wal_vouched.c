// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus/wal tests/sim
// What vouches for the last batches of the log: damage in one that was durable is never taken for a torn tail.
#include "tests/unit/consensus/wal_fixture.h"
#include "tests/unit/suite.h"

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, 16 << 10, 8);
    open_wal(&fx);
}
static void teardown(void)
{
    fixture_deinit(&fx);
}

static void flip(const char *path, const struct sent *s)
{
    sim_disk_flip_bit(fx.disk, path, s->range.file_offset + RECORD_HEADER_BYTES + 7, 3);
}

// The file has its name since its first batch is durable (files.c), so this needs no later batch that says so.
START_TEST(the_name_of_a_file_vouches_for_its_first_batch)
{
    uint64_t i = 0;
    do {
        i++;
        write_one(&fx, 1 + i % 3, i, 700);
    } while (fx.sent[fx.sent_count - 1]->range.file_seq == fx.sent[0]->range.file_seq);
    const struct sent *bad = fx.sent[fx.sent_count - 1];
    char path[64];
    path_of(bad->range.file_seq, path);
    close_wal(&fx);
    flip(path, bad);
    open_wal(&fx);
    ck_assert(fx.report.is_corrupt);
}
END_TEST

START_TEST(a_batch_vouches_for_the_one_before_it_although_its_own_records_are_torn)
{
    for (uint64_t i = 1; i <= 6; i++) {
        write_one(&fx, i, i, 60);
    }
    char path[64];
    path_of(fx.sent[0]->range.file_seq, path);
    const struct sent five = *fx.sent[4], six = *fx.sent[5];
    close_wal(&fx);
    flip(path, &five);
    flip(path, &six);
    open_wal(&fx);
    ck_assert(fx.report.is_corrupt);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("wal");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, the_name_of_a_file_vouches_for_its_first_batch);
    tcase_add_test(t, a_batch_vouches_for_the_one_before_it_although_its_own_records_are_torn);
    return suite_run("wal, what vouches for a batch", t);
}
