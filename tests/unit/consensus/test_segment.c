// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus consensus/raft consensus/solo consensus/store consensus/wal gen
// Segments far larger than what 32 bits of an offset reach, on the real disk: holes stand for the entries between.
#include "consensus/store/core.h"
#include "tests/unit/suite.h"
#include <stdio.h>
#include <unistd.h>

enum { SEQ = 7, ENTRIES_MAX = 64, PAYLOAD = 100 };
#define GIB ((uint64_t)1 << 30)

static char dir[64];
static struct disk *disk;
static struct segment_writer writer;
static struct {
    uint64_t index, position;
} entries[ENTRIES_MAX];
static uint32_t entries_count;

static void setup(void)
{
    snprintf(dir, sizeof(dir), "/tmp/warren-test-segment-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(disk_posix_open(dir, &disk), RC_OK);
    ck_assert_int_eq(disk->make_dir(disk, "seg"), RC_OK);
    entries_count = 0;
    segment_writer_init(&writer, disk, SEQ, 0, SEGMENT_INSTALLED, 0);
}
static void teardown(void)
{
    segment_writer_deinit(&writer);
    disk_posix_close(disk);
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static void put_entry(uint64_t index, bool is_committed)
{
    uint8_t payload[PAYLOAD];
    memset(payload, (int)index, sizeof(payload));
    struct buf record;
    buf_init(&record);
    record_put(&record, 1, index, 3, RECORD_ENTRY, 0, 0, span_of(payload, sizeof(payload)));
    struct record_disk r;
    uint64_t size = 0;
    ck_assert_int_eq(record_check(buf_span(&record), &r, &size), RC_OK);
    ck_assert_uint_lt(entries_count, ENTRIES_MAX);
    entries[entries_count].index = index;
    entries[entries_count++].position = writer.file == NULL ? SEGMENT_HEADER_BYTES : writer.flushed + writer.out.len;
    ck_assert_int_eq(segment_write_entry(&writer, &r, buf_span(&record), is_committed), RC_OK);
    buf_deinit(&record);
}

static void put_entries(uint64_t first, uint64_t step, uint32_t n, bool is_committed)
{
    for (uint32_t i = 0; i < n; i++) {
        put_entry(first + i * step, is_committed);
    }
}

// As if everything up to `position` had been written.
static void skip_to(uint64_t position)
{
    ck_assert_int_eq(segment_sync(&writer), RC_OK);
    ck_assert_uint_lt(writer.flushed, position);
    writer.flushed = position;
}

static struct segment_header_disk header(void)
{
    char path[SEGMENT_PATH_MAX];
    segment_path(SEQ, true, path);
    struct disk_file *f = NULL;
    struct segment_header_disk h;
    size_t got = 0;
    ck_assert_int_eq(disk->open(disk, path, DISK_READ, &f), RC_OK);
    ck_assert_int_eq(disk->read(f, 0, &h, sizeof(h), &got), RC_OK);
    disk->close(f);
    return h;
}

// Every entry is found where it was written, by what a start reads of the file.
static void check_entries(void)
{
    uint64_t bytes = 0;
    ck_assert_int_eq(segment_seal(&writer, &bytes), RC_OK);
    struct segment *s = NULL;
    struct run_disk *runs = NULL;
    uint32_t count = 0, found = 0;
    ck_assert_int_eq(segment_load(disk, SEQ, &s, &runs, &count), RC_OK);
    ck_assert_uint_eq(s->bytes, bytes);
    struct cold cold;
    cold_init(&cold, disk);
    for (uint32_t i = 0; i < count; i++) {
        const struct run r = run_of(&runs[i], s, runs[i].first, runs[i].first + runs[i].span);
        for (uint32_t k = 0; k < entries_count; k++) {
            if (entries[k].index < r.first || entries[k].index > run_last(&r)) {
                continue;
            }
            uint64_t position = 0;
            struct record_disk rec;
            struct span record;
            ck_assert_int_eq(cold_run_position(&cold, &r, entries[k].index, &position), RC_OK);
            ck_assert_uint_eq(position, entries[k].position);
            ck_assert_int_eq(cold_record(&cold, (struct cold_file){.seq = SEQ, .is_segment = true}, position, 1,
                                         entries[k].index, &rec, &record),
                             RC_OK);
            found++;
        }
    }
    ck_assert_uint_eq(found, entries_count);
    cold_deinit(&cold);
    free(runs);
    free(s);
}

START_TEST(entries_are_found_on_both_sides_of_what_offsets_of_32_bits_reach)
{
    const uint64_t step = _i == 0 ? 1 : 3;  // Dense, and with the dead left out.
    const uint64_t places[] = {16 * GIB - 304, 32 * GIB - 304, 40 * GIB + 8, 100 * GIB, 2048 * GIB};
    put_entries(1, step, 5, _i == 1);
    for (uint32_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        skip_to(places[i]);
        put_entries(1 + (i + 1) * 5 * step, step, 5, _i == 1);
    }
    check_entries();
    ck_assert_uint_eq(header().version, SEGMENT_VERSION_FAR);  // Nothing older reads it wrong.
}
END_TEST

START_TEST(a_segment_of_usual_size_stays_readable_for_older_versions)
{
    put_entries(1, 1, 20, false);
    check_entries();
    ck_assert_uint_eq(header().version, SEGMENT_VERSION);
    ck_assert_uint_eq(header().base_shift, 0);
}
END_TEST

START_TEST(a_segment_larger_than_any_position_is_want_of_room)
{
    put_entries(1, 1, 1, true);
    skip_to(SEGMENT_BYTES_MAX);
    uint64_t position = 0;
    uint8_t bytes[8] = {0};
    ck_assert_int_eq(segment_write_raw(&writer, span_of(bytes, sizeof(bytes)), &position), RC_NO_SPACE);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("segment");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, entries_are_found_on_both_sides_of_what_offsets_of_32_bits_reach, 0, 2);
    tcase_add_test(t, a_segment_of_usual_size_stays_readable_for_older_versions);
    tcase_add_test(t, a_segment_larger_than_any_position_is_want_of_room);
    return suite_run("segment", t);
}
