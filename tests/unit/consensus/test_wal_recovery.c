// SPDX-License-Identifier: Apache-2.0
// Reading the log back: torn tails, damage, recycled files, crashes in the middle of everything.
// links: node/base proto consensus/wal tests/sim
#include "tests/unit/consensus/wal_fixture.h"

enum { SEEDS = 300 };  // Of the crash matrix.

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

// Records 1..n, each a batch of its own, groups 1..3 by turns.
static void write_many(uint64_t n, uint32_t payload_len)
{
    for (uint64_t i = 1; i <= n; i++) {
        write_one(&fx, 1 + i % 3, i, payload_len + (uint32_t)(i % 5));
    }
}

// Opens a copy of fx's disk, after `change`, in a fixture of its own.
static void copy_open(struct fixture *copy, const char *path, uint64_t cut, bool is_zero_filled)
{
    fixture_init(copy, fx.config.file_bytes, fx.config.align);
    sim_disk_destroy(copy->disk);
    copy->disk = sim_disk_clone(fx.disk);
    if (path != NULL) {
        sim_disk_cut(copy->disk, path, cut, is_zero_filled);
    }
}

START_TEST(an_empty_directory_is_an_empty_log)
{
    ck_assert_uint_eq(fx.seen_count, 0);
    ck_assert(!fx.report.is_corrupt);
    ck_assert_uint_eq(fx.report.batches, 0);
    ck_assert_uint_eq(wal_file_count(fx.wal), 1);
}
END_TEST

START_TEST(everything_written_is_replayed_in_order_over_files)
{
    write_many(60, 700);
    ck_assert_uint_gt(wal_file_count(fx.wal), 3);
    close_wal(&fx);
    open_wal(&fx);
    assert_seen(&fx, 1, 60);
    assert_seen_readable(&fx);
    ck_assert(!fx.report.is_corrupt);
    ck_assert_uint_eq(fx.report.records, 60);
    ck_assert_uint_eq(fx.report.dropped_tail_bytes, 0);
}
END_TEST

START_TEST(files_below_the_first_are_not_replayed)
{
    write_many(60, 700);
    uint64_t from = 3;
    uint64_t index = 0;
    for (uint32_t i = 0; i < fx.sent_count && index == 0; i++) {
        index = fx.sent[i]->range.file_seq >= from ? fx.sent[i]->index : 0;
    }
    close_wal(&fx);
    ck_assert_int_eq(try_open(&fx, from), RC_OK);
    assert_seen(&fx, index, 60);
    char path[64];
    path_of(2, path);
    ck_assert(!sim_disk_exists(fx.disk, path));
}
END_TEST

// Nobody ever learns of a file without records, so nobody would retire it, and those behind it would wait for it.
START_TEST(files_with_nothing_but_marks_do_not_hold_up_the_others)
{
    write_one(&fx, 1, 1, 30000);  // Does not fit: the file that opening made keeps only its mark.
    write_one(&fx, 1, 2, 30000);
    ck_assert_uint_eq(wal_file_count(fx.wal), 3);
    close_wal(&fx);
    open_wal(&fx);
    assert_seen(&fx, 1, 2);
    char path[64];
    path_of(1, path);
    ck_assert(sim_disk_exists(fx.disk, path));  // A log that does not begin where it should is damaged.
    wal_retire(fx.wal, fx.seen[0].file_seq);
    ck_assert(!sim_disk_exists(fx.disk, path));
    path_of(fx.seen[0].file_seq, path);
    ck_assert(!sim_disk_exists(fx.disk, path));
}
END_TEST

START_TEST(the_log_can_be_opened_again_and_again_without_growing)
{
    write_many(5, 100);
    for (int round = 0; round < 200; round++) {
        sim_disk_kill(fx.disk);
        close_wal(&fx);
        open_wal(&fx);
        assert_seen(&fx, 1, 5 + (uint64_t)round / 50);
        assert_seen_readable(&fx);
        ck_assert_uint_eq(wal_file_count(fx.wal), 1);
        if (round % 50 == 49) {
            write_one(&fx, 1, 6 + (uint64_t)round / 50, 10);
        }
    }
    ck_assert_uint_le(fx.disk->count, 4 + WAL_POOL_MAX);
}
END_TEST

// CR-02. Without a mark nothing vouches for the last records, so that every cut is a torn tail... of which each
// but the last record was vouched for by the next; what vouches is cut off with it.
START_TEST(a_cut_at_every_offset_of_the_last_three_records_leaves_the_complete_ones)
{
    enum { N = 40 };
    write_many(N, 60);
    char path[64];
    path_of(wal_current_seq(fx.wal), path);
    const struct sent *third_last = fx.sent[N - 3];
    const struct sent *last = fx.sent[N - 1];
    ck_assert_uint_eq(third_last->range.file_seq, last->range.file_seq);
    uint64_t from = third_last->range.file_offset - WAL_BATCH_HEADER_BYTES;
    uint64_t to = last->range.file_offset + last->range.len;
    for (uint64_t cut = from; cut <= to; cut++) {
        for (int is_zero_filled = 0; is_zero_filled <= 1; is_zero_filled++) {
            uint64_t complete = 0;
            for (uint32_t i = 0; i < N; i++) {
                const struct sent *s = fx.sent[i];
                // Zeros behind the cut are as good as the padding they replace.
                uint64_t need = is_zero_filled ? RECORD_HEADER_BYTES + s->payload_len : s->range.len;
                complete += s->range.file_seq != last->range.file_seq || s->range.file_offset + need <= cut;
            }
            struct fixture copy;
            copy_open(&copy, path, cut, is_zero_filled);
            open_wal(&copy);
            assert_seen(&copy, 1, complete);
            assert_seen_readable(&copy);
            ck_assert(!copy.report.is_corrupt);
            // And the log goes on from there.
            write_one(&copy, 1, complete + 1, 30);
            close_wal(&copy);
            open_wal(&copy);
            assert_seen(&copy, 1, complete + 1);
            fixture_deinit(&copy);
        }
    }
}
END_TEST

static bool is_reported(const struct fixture *f, uint64_t group)
{
    for (uint32_t i = 0; i < f->corrupt_count; i++) {
        if (f->corrupt[i] == group) {
            return true;
        }
    }
    return false;
}

// What must hold of any recovery of records 1..n of which 1..proven are vouched for. Payloads were compared in replay.
static void assert_honest(const struct fixture *f, uint64_t n, uint64_t proven)
{
    uint64_t expected = 1;
    for (uint32_t i = 0; i < f->seen_count; i++) {
        const struct seen *s = &f->seen[i];
        ck_assert_uint_eq(s->group, 1 + s->index % 3);
        while (expected < s->index) {  // Skipped: only with its group named.
            ck_assert(f->report.is_corrupt && f->report.corrupt_groups_known);
            ck_assert(is_reported(f, 1 + expected % 3));
            expected++;
        }
        ck_assert_uint_eq(s->index, expected);
        expected++;
    }
    ck_assert_uint_le(expected - 1, n);
    if (!f->report.is_corrupt) {
        ck_assert_uint_ge(expected - 1, proven);
    } else if (f->report.corrupt_groups_known) {
        ck_assert_uint_gt(f->corrupt_count, 0);
        for (; expected <= proven; expected++) {
            ck_assert(is_reported(f, 1 + expected % 3));
        }
    }
}

// Every bit of the header and of all batches. Returns how often damage was reported.
static uint64_t flip_all(uint64_t n, uint64_t proven, uint64_t end)
{
    uint64_t corrupt = 0;
    char path[64];
    path_of(1, path);
    for (uint64_t at = 0; at < end; at++) {
        if (at == sizeof(struct wal_header_disk)) {
            at = WAL_HEADER_BYTES;  // Nothing is there.
        }
        for (unsigned bit = 0; bit < 8; bit++) {
            struct fixture copy;
            copy_open(&copy, NULL, 0, false);
            sim_disk_flip_bit(copy.disk, path, at, bit);
            enum rc rc = try_open(&copy, 1);
            ck_assert_int_eq(rc, RC_OK);
            assert_honest(&copy, n, proven);
            if (copy.report.is_corrupt) {
                corrupt++;
            } else if (copy.seen_count < n) {
                ck_assert_uint_eq(proven, n - 1);  // Only the batch nobody vouches for may go silently.
                ck_assert_uint_eq(copy.seen_count, n - 1);
            }
            // The second start after it comes to no better view.
            bool was_corrupt = copy.report.is_corrupt;
            uint32_t seen = copy.seen_count;
            close_wal(&copy);
            open_wal(&copy);
            ck_assert_int_eq(copy.report.is_corrupt, was_corrupt);
            ck_assert_uint_eq(copy.seen_count, seen);
            fixture_deinit(&copy);
        }
    }
    return corrupt;
}

START_TEST(every_flipped_bit_is_a_cut_tail_or_reported_never_garbage)
{
    enum { N = 8 };
    write_many(N, 24);
    uint64_t end = fx.wal->offset;
    uint64_t first = fx.sent[0]->range.file_offset - WAL_BATCH_HEADER_BYTES;
    uint64_t last = fx.sent[N - 1]->range.file_offset - WAL_BATCH_HEADER_BYTES;
    uint64_t padding = 0;
    for (int i = 0; i < N - 1; i++) {
        padding += fx.sent[i]->range.len - RECORD_HEADER_BYTES - fx.sent[i]->payload_len;
    }
    uint64_t corrupt = flip_all(N, N - 1, end);
    // Header, the batch that wal_open wrote, and every batch but the last are vouched for.
    uint64_t bytes = sizeof(struct wal_header_disk) + (first - WAL_HEADER_BYTES) + (last - first) - padding;
    ck_assert_uint_eq(corrupt, bytes * 8);
}
END_TEST

START_TEST(with_a_mark_behind_it_the_last_batch_is_vouched_for_too)
{
    enum { N = 3 };
    write_many(N, 24);
    uint64_t end = fx.wal->offset;
    uint64_t padding = 0;
    for (int i = 0; i < N; i++) {
        padding += fx.sent[i]->range.len - RECORD_HEADER_BYTES - fx.sent[i]->payload_len;
    }
    write_mark(&fx);
    uint64_t corrupt = flip_all(N, N, end);
    uint64_t bytes = sizeof(struct wal_header_disk) + (end - WAL_HEADER_BYTES) - padding;
    ck_assert_uint_eq(corrupt, bytes * 8);
}
END_TEST

START_TEST(a_damaged_body_names_its_group_and_spares_the_others)
{
    write_many(9, 50);
    const struct sent *bad = fx.sent[4];
    char path[64];
    path_of(1, path);
    close_wal(&fx);
    sim_disk_flip_bit(fx.disk, path, bad->range.file_offset + RECORD_HEADER_BYTES + 7, 3);
    open_wal(&fx);
    ck_assert(fx.report.is_corrupt);
    ck_assert(fx.report.corrupt_groups_known);
    ck_assert_uint_eq(fx.corrupt_count, 1);
    ck_assert_uint_eq(fx.corrupt[0], bad->group);
    ck_assert_uint_eq(fx.seen_count, 8);
}
END_TEST

START_TEST(a_damaged_batch_header_leaves_no_group_above_suspicion)
{
    write_many(9, 50);
    char path[64];
    path_of(1, path);
    close_wal(&fx);
    sim_disk_flip_bit(fx.disk, path, fx.sent[4]->range.file_offset - 20, 0);
    open_wal(&fx);
    ck_assert(fx.report.is_corrupt);
    ck_assert(!fx.report.corrupt_groups_known);
    assert_seen(&fx, 1, 4);
}
END_TEST

START_TEST(a_later_file_proves_that_the_end_of_an_earlier_one_was_synced)
{
    write_many(30, 700);
    ck_assert_uint_gt(wal_file_count(fx.wal), 1);
    const struct sent *last = NULL;
    for (uint32_t i = 0; i < fx.sent_count; i++) {
        last = fx.sent[i]->range.file_seq == 1 ? fx.sent[i] : last;
    }
    char path[64];
    path_of(1, path);
    close_wal(&fx);
    sim_disk_cut(fx.disk, path, last->range.file_offset + 2, true);  // Not even its sum is left.
    open_wal(&fx);
    ck_assert(fx.report.is_corrupt);
    ck_assert(!fx.report.corrupt_groups_known);
    assert_seen(&fx, 1, last->index - 1);
}
END_TEST

START_TEST(a_file_missing_from_the_middle_is_damage)
{
    write_many(60, 700);
    uint64_t last_of_two = 0;
    for (uint32_t i = 0; i < fx.sent_count; i++) {
        last_of_two = fx.sent[i]->range.file_seq == 2 ? fx.sent[i]->index : last_of_two;
    }
    char path[64];
    path_of(3, path);
    close_wal(&fx);
    struct disk *d = sim_disk_base(fx.disk);
    ck_assert_int_eq(d->unlink(d, path), RC_OK);
    open_wal(&fx);
    ck_assert(fx.report.is_corrupt);
    ck_assert(!fx.report.corrupt_groups_known);
    assert_seen(&fx, 1, last_of_two);
}
END_TEST

static void remove_file(uint64_t seq)
{
    char path[64];
    path_of(seq, path);
    struct disk *d = sim_disk_base(fx.disk);
    ck_assert_int_eq(d->unlink(d, path), RC_OK);
}

// What no checkpoint covers must be there: votes and entries of its groups were promised.
START_TEST(the_oldest_file_missing_is_damage_at_every_start)
{
    write_many(60, 700);
    close_wal(&fx);
    remove_file(1);
    for (int start = 0; start < 3; start++) {
        open_wal(&fx);
        ck_assert(fx.report.is_corrupt);
        ck_assert(!fx.report.corrupt_groups_known);
        close_wal(&fx);
    }
    // Once a checkpoint covers what is missing nobody misses it.
    ck_assert_int_eq(try_open(&fx, 2), RC_OK);
    ck_assert(!fx.report.is_corrupt);
}
END_TEST

START_TEST(a_directory_without_a_file_is_a_lost_log_where_there_was_one_and_stays_that)
{
    write_many(5, 100);
    close_wal(&fx);
    remove_file(1);
    fx.config.must_exist = true;
    for (int start = 0; start < 3; start++) {
        open_wal(&fx);
        ck_assert(fx.report.is_corrupt);
        ck_assert(!fx.report.corrupt_groups_known);
        ck_assert_uint_eq(fx.seen_count, 0);
        write_one(&fx, 1, 100, 10);
        close_wal(&fx);
    }
}
END_TEST

START_TEST(without_the_file_behind_the_checkpoint_the_log_is_lost)
{
    write_many(60, 700);
    uint64_t last = wal_current_seq(fx.wal);
    close_wal(&fx);
    for (int start = 0; start < 2; start++) {
        ck_assert_int_eq(try_open(&fx, last + 1), RC_OK);
        ck_assert(fx.report.is_corrupt);
        ck_assert(!fx.report.corrupt_groups_known);
        close_wal(&fx);
    }
}
END_TEST

START_TEST(a_lost_file_header_is_damage)
{
    write_many(60, 700);
    char path[64];
    path_of(2, path);
    close_wal(&fx);
    sim_disk_flip_bit(fx.disk, path, 8, 0);
    open_wal(&fx);
    ck_assert(fx.report.is_corrupt);
    ck_assert(!fx.report.corrupt_groups_known);
    assert_honest(&fx, 60, 0);
    ck_assert_uint_gt(fx.seen_count, 0);
}
END_TEST

static uint64_t forged_salt = 77;
static bool forge_batches_synced;  // Each batch says that the one before it was synced.

// Writes a file as a writer with several batches in the air could leave it: `first` .. `first + n - 1`, one record of
// group 1 + index % 3 each with index = batch, all claiming the same synced-through.
static void forge_file(uint64_t seq, uint64_t prev_seq, uint64_t first, uint32_t n, uint64_t synced_through)
{
    struct disk *d = sim_disk_base(fx.disk);
    char path[64];
    path_of(seq, path);
    struct disk_file *file;
    ck_assert_int_eq(d->open(d, path, DISK_READ | DISK_WRITE | DISK_CREATE, &file), RC_OK);
    ck_assert_int_eq(d->allocate(file, 16 << 10), RC_OK);
    struct wal_header_disk h = {.magic = WAL_FILE_MAGIC,
                                .version = WAL_VERSION,
                                .align = 8,
                                .seq = seq,
                                .salt = forged_salt,
                                .file_bytes = 16 << 10,
                                .prev_seq = prev_seq,
                                .prev_last = first - 1,
                                .first_batch = first,
                                .synced_through = synced_through};
    h.crc = wal_header_crc(&h);
    struct iovec iov = {.iov_base = &h, .iov_len = sizeof(h)};
    ck_assert_int_eq(d->writev(file, &iov, 1, 0), RC_OK);
    uint64_t offset = WAL_HEADER_BYTES;
    for (uint64_t b = first; b < first + n; b++) {
        uint8_t bytes[WAL_BATCH_HEADER_BYTES + 80];
        record_make(bytes + WAL_BATCH_HEADER_BYTES, 1 + b % 3, b, 40);
        struct wal_batch_disk head = {.magic = WAL_BATCH_MAGIC, .total_len = sizeof(bytes), .count = 1, .batch = b,
                                      .synced_through = forge_batches_synced ? b - 1 : synced_through};
        uint32_t count = 0;
        uint32_t crc = wal_batch_crc_begin(h.salt, &head);
        crc = wal_batch_crc_records(crc, bytes + WAL_BATCH_HEADER_BYTES, 80, &count);
        head.crc = wal_batch_crc_end(crc, count);
        memcpy(bytes, &head, sizeof(head));
        iov = (struct iovec){.iov_base = bytes, .iov_len = sizeof(bytes)};
        ck_assert_int_eq(d->writev(file, &iov, 1, offset), RC_OK);
        offset += sizeof(bytes);
    }
    ck_assert_int_eq(d->sync(file), RC_OK);
    d->close(file);
}

static void forge_start(void)
{
    close_wal(&fx);
    sim_disk_destroy(fx.disk);
    fx.disk = sim_disk_create();
    struct disk *d = sim_disk_base(fx.disk);
    ck_assert_int_eq(d->make_dir(d, "wal"), RC_OK);
}

enum { FORGED_BYTES = WAL_BATCH_HEADER_BYTES + 80 };

START_TEST(a_tail_torn_in_several_files_is_cut_at_its_first_bad_batch)
{
    forge_start();
    forge_file(1, 0, 1, 5, 0);
    forge_file(2, 1, 6, 5, 2);   // Nobody ever said more than: 2 is synced.
    forge_file(3, 2, 11, 5, 2);
    char path[64];
    path_of(1, path);
    sim_disk_flip_bit(fx.disk, path, WAL_HEADER_BYTES + 3 * FORGED_BYTES + 5, 1);  // Batch 4.
    open_wal(&fx);
    ck_assert(!fx.report.is_corrupt);
    assert_seen(&fx, 1, 3);  // 5..15 are intact and must not come back.
    assert_seen_readable(&fx);
    ck_assert_uint_gt(fx.report.dropped_tail_bytes, 0);
    ck_assert_uint_eq(wal_file_count(fx.wal), 1);
    close_wal(&fx);
    open_wal(&fx);
    assert_seen(&fx, 1, 3);
}
END_TEST

// Everything about the old batches fits but the salt: numbers, sums, place.
START_TEST(perfect_batches_of_an_earlier_use_of_the_file_are_not_replayed)
{
    forge_start();
    forged_salt = 5;
    forge_file(1, 0, 1, 6, 0);
    forged_salt = 6;
    forge_file(1, 0, 1, 2, 0);
    open_wal(&fx);
    assert_seen(&fx, 1, 2);
    ck_assert(!fx.report.is_corrupt);
}
END_TEST

START_TEST(old_batches_behind_a_torn_one_prove_nothing)
{
    forge_start();
    forged_salt = 5;
    forge_batches_synced = true;
    forge_file(1, 0, 1, 6, 0);
    forge_batches_synced = false;
    forged_salt = 6;
    forge_file(1, 0, 1, 3, 0);
    char path[64];
    path_of(1, path);
    sim_disk_flip_bit(fx.disk, path, WAL_HEADER_BYTES + 2 * FORGED_BYTES + 5, 1);  // Batch 3.
    open_wal(&fx);
    assert_seen(&fx, 1, 2);
    ck_assert(!fx.report.is_corrupt);
}
END_TEST

START_TEST(synced_through_of_any_later_batch_makes_it_damage)
{
    forge_start();
    forge_file(1, 0, 1, 5, 0);
    forge_file(2, 1, 6, 5, 4);
    char path[64];
    path_of(1, path);
    sim_disk_flip_bit(fx.disk, path, WAL_HEADER_BYTES + 3 * FORGED_BYTES + 5, 1);  // Batch 4.
    open_wal(&fx);
    ck_assert(fx.report.is_corrupt);
    ck_assert(!fx.report.corrupt_groups_known);
    assert_seen(&fx, 1, 3);
}
END_TEST

START_TEST(intact_batches_behind_a_bad_unsynced_one_are_dropped_and_stay_dropped)
{
    forge_start();
    forge_file(1, 0, 1, 6, 0);
    char path[64];
    path_of(1, path);
    sim_disk_flip_bit(fx.disk, path, WAL_HEADER_BYTES + 3 * FORGED_BYTES + 5, 1);
    open_wal(&fx);
    assert_seen(&fx, 1, 3);
    for (uint64_t i = 4; i <= 6; i++) {
        write_one(&fx, 1 + i % 3, i, 99);  // Other entries at the same indexes.
    }
    close_wal(&fx);
    open_wal(&fx);
    assert_seen(&fx, 1, 6);
    ck_assert_uint_eq(fx.seen[3].payload_len, 99);
    ck_assert_uint_eq(fx.seen[5].payload_len, 99);
}
END_TEST

START_TEST(a_kept_tail_that_only_the_page_cache_had_is_durable_once_reported)
{
    struct rng rng;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        fixture_deinit(&fx);
        fixture_init(&fx, 16 << 10, 8);
        open_wal(&fx);
        rng_seed(&rng, seed);
        write_many(3, 50);
        // Batch 4 is written, the sync never comes back: the process dies, the machine does not.
        submit(&fx, 2, 4, 50);
        sim_disk_fail_sync_after(fx.disk, 0);
        drive(&fx);
        close_wal(&fx);
        sim_disk_kill(fx.disk);
        open_wal(&fx);
        assert_seen(&fx, 1, 4);
        // Now the power fails as well.
        close_wal(&fx);
        sim_disk_crash(fx.disk, &rng);
        open_wal(&fx);
        assert_seen(&fx, 1, 4);
        ck_assert(!fx.report.is_corrupt);
    }
}
END_TEST

START_TEST(foreign_files_are_ignored_and_left_alone)
{
    static const char *const names[] = {"wal/.DS_Store", "wal/.nfs000", "wal/00000.segment.bak",
                                        "wal/wal-0000000000000001.bak", "wal/wal-1", "wal/wal-000000000000000G",
                                        "wal/wal-00000000000000010", "wal/free-"};
    write_many(5, 50);
    struct disk *d = sim_disk_base(fx.disk);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct disk_file *file;
        ck_assert_int_eq(d->open(d, names[i], DISK_WRITE | DISK_CREATE, &file), RC_OK);
        d->close(file);
    }
    close_wal(&fx);
    open_wal(&fx);
    assert_seen(&fx, 1, 5);
    ck_assert(!fx.report.is_corrupt);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        ck_assert(sim_disk_exists(fx.disk, names[i]));
    }
}
END_TEST

START_TEST(another_clusters_log_is_refused)
{
    close_wal(&fx);
    memset(fx.config.cluster_id, 1, 16);
    open_wal(&fx);  // Unknown so far: fine, and the new file says it.
    close_wal(&fx);
    memset(fx.config.cluster_id, 0, 16);
    open_wal(&fx);
    close_wal(&fx);
    memset(fx.config.cluster_id, 1, 16);
    open_wal(&fx);
    close_wal(&fx);
    memset(fx.config.cluster_id, 2, 16);
    ck_assert_int_eq(try_open(&fx, 1), RC_CONFLICT);
}
END_TEST

START_TEST(batch_numbers_never_repeat_over_restarts)
{
    uint64_t highest = 0;
    for (int round = 0; round < 10; round++) {
        ck_assert_uint_gt(fx.wal->batch_synced, highest);  // The number that opening used up.
        submit(&fx, 1, (uint64_t)round + 1, 50);
        ck_assert(wal_compose(fx.wal));
        highest = fx.wal->batch.head.batch;
        ck_assert_int_eq(wal_write(fx.wal), RC_OK);
        char path[64];
        path_of(fx.wal->seq, path);
        sim_disk_flip_bit(fx.disk, path, fx.wal->batch.offset + 16, 0);  // Its number cannot even be read.
        close_wal(&fx);
        open_wal(&fx);
    }
}
END_TEST

// ---- crashes ---------------------------------------------------------------------------------------------------

struct matrix {
    struct rng rng;
    uint64_t next_index;
    uint64_t base;        // Everything up to here was in files retired since.
    uint64_t first_seq;   // As a checkpoint would say it.
    uint64_t acked_last;  // Highest index acknowledged or reported by a recovery.
};

static void matrix_run(struct matrix *m)
{
    while (!sim_disk_is_dead(fx.disk)) {
        uint64_t n = rng_below(&m->rng, 6);
        for (uint64_t i = 0; i < n; i++) {
            uint32_t len = rng_below(&m->rng, 40) == 0 ? 20000 : (uint32_t)rng_below(&m->rng, 1500);
            submit(&fx, 1 + m->next_index % 3, m->next_index, len);
            m->next_index++;
        }
        if (rng_below(&m->rng, 4) == 0 && wal_compose_mark(fx.wal)) {
            (void)drive_once(&fx);
        }
        drive(&fx);
        if (fx.config.disk->failed) {
            break;
        }
        if (fx.closed_count > 2) {
            // Everything of the oldest file lives elsewhere now.
            uint64_t seq = list_entry(fx.wal->files.next, struct wal_file, link)->seq;
            for (uint32_t i = 0; i < fx.sent_count; i++) {
                if (fx.sent[i]->range.file_seq == seq && fx.sent[i]->index > m->base) {
                    m->base = fx.sent[i]->index;
                }
            }
            for (uint32_t i = 0; i < fx.seen_count; i++) {
                if (fx.seen[i].file_seq == seq && fx.seen[i].index > m->base) {
                    m->base = fx.seen[i].index;
                }
            }
            // The checkpoint comes first; the file may leave much later, or in the start after this.
            m->first_seq = seq + 1;
            if (rng_below(&m->rng, 2) == 0) {
                fx.closed_count--;
                continue;
            }
            wal_retire(fx.wal, seq);
            fx.closed_count--;
        }
    }
    for (uint32_t i = 0; i < fx.sent_count; i++) {
        const struct sent *s = fx.sent[i];
        if (s->is_done && s->submission.result == RC_OK && s->index > m->acked_last) {
            m->acked_last = s->index;
        }
    }
}

static void matrix_recover(struct matrix *m)
{
    enum rc rc = RC_IO;
    do {
        close_wal(&fx);
        bool is_kill = rng_below(&m->rng, 3) == 0;
        if (is_kill) {
            sim_disk_kill(fx.disk);
        } else {
            sim_disk_crash(fx.disk, &m->rng);
        }
        if (rng_below(&m->rng, 3) == 0) {  // Dies again while it recovers.
            sim_disk_crash_after(fx.disk, rng_below(&m->rng, 12));
        }
        rc = try_open(&fx, m->first_seq);
    } while (rc != RC_OK || sim_disk_is_dead(fx.disk));
    ck_assert(!fx.report.is_corrupt);
    // No hole, nothing twice, nothing acknowledged lost, nothing that was never sent.
    uint64_t expected = fx.seen_count > 0 ? fx.seen[0].index : m->base + 1;
    ck_assert_uint_le(expected, m->base + 1);
    for (uint32_t i = 0; i < fx.seen_count; i++) {
        if (fx.seen[i].index != expected || fx.seen[i].group != 1 + expected % 3) {
            ck_abort_msg("index %lu where %lu should be", (unsigned long)fx.seen[i].index, (unsigned long)expected);
        }
        expected++;
    }
    uint64_t last = expected - 1;
    ck_assert_uint_ge(last, m->acked_last);
    ck_assert_uint_lt(last, m->next_index);
    sim_disk_crash_after(fx.disk, UINT64_MAX);
    assert_seen_readable(&fx);
    m->acked_last = last;
    m->next_index = last + 1;
    fixture_forget_sent(&fx);
    fx.closed_count = 0;
}

START_TEST(whatever_was_acknowledged_is_there_after_any_crash)
{
    static const uint32_t aligns[] = {8, 512, 4096};
    uint64_t torn = 0, lost = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        fixture_deinit(&fx);
        fixture_init(&fx, 32 << 10, aligns[seed % 3]);
        open_wal(&fx);
        struct matrix m = {.next_index = 1, .first_seq = 1};
        rng_seed(&m.rng, seed);
        for (int round = 0; round < 8; round++) {
            sim_disk_crash_after(fx.disk, rng_below(&m.rng, 60));
            matrix_run(&m);
            matrix_recover(&m);
        }
        torn += sim_disk_counters(fx.disk)->torn_writes;
        lost += sim_disk_counters(fx.disk)->lost_writes;
    }
    ck_assert_uint_gt(torn, 100);  // The test did what it says.
    ck_assert_uint_gt(lost, 100);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("wal_recovery");
    TCase *t = tcase_create("recovery");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, an_empty_directory_is_an_empty_log);
    tcase_add_test(t, everything_written_is_replayed_in_order_over_files);
    tcase_add_test(t, files_below_the_first_are_not_replayed);
    tcase_add_test(t, files_with_nothing_but_marks_do_not_hold_up_the_others);
    tcase_add_test(t, the_log_can_be_opened_again_and_again_without_growing);
    tcase_add_test(t, a_cut_at_every_offset_of_the_last_three_records_leaves_the_complete_ones);
    tcase_add_test(t, every_flipped_bit_is_a_cut_tail_or_reported_never_garbage);
    tcase_add_test(t, with_a_mark_behind_it_the_last_batch_is_vouched_for_too);
    tcase_add_test(t, a_damaged_body_names_its_group_and_spares_the_others);
    tcase_add_test(t, a_damaged_batch_header_leaves_no_group_above_suspicion);
    tcase_add_test(t, a_later_file_proves_that_the_end_of_an_earlier_one_was_synced);
    tcase_add_test(t, a_file_missing_from_the_middle_is_damage);
    tcase_add_test(t, the_oldest_file_missing_is_damage_at_every_start);
    tcase_add_test(t, a_directory_without_a_file_is_a_lost_log_where_there_was_one_and_stays_that);
    tcase_add_test(t, without_the_file_behind_the_checkpoint_the_log_is_lost);
    tcase_add_test(t, a_lost_file_header_is_damage);
    tcase_add_test(t, a_tail_torn_in_several_files_is_cut_at_its_first_bad_batch);
    tcase_add_test(t, perfect_batches_of_an_earlier_use_of_the_file_are_not_replayed);
    tcase_add_test(t, old_batches_behind_a_torn_one_prove_nothing);
    tcase_add_test(t, synced_through_of_any_later_batch_makes_it_damage);
    tcase_add_test(t, intact_batches_behind_a_bad_unsynced_one_are_dropped_and_stay_dropped);
    tcase_add_test(t, a_kept_tail_that_only_the_page_cache_had_is_durable_once_reported);
    tcase_add_test(t, foreign_files_are_ignored_and_left_alone);
    tcase_add_test(t, another_clusters_log_is_refused);
    tcase_add_test(t, batch_numbers_never_repeat_over_restarts);
    tcase_add_test(t, whatever_was_acknowledged_is_there_after_any_crash);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
