// SPDX-License-Identifier: Apache-2.0
// The in-memory side of the store: appending, turns, windows, eviction, cold reads, truncation.
// links: node/base proto consensus consensus/raft consensus/solo consensus/store consensus/wal gen tests/sim
#include "tests/unit/consensus/store_fixture.h"

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, 1, 1 << 20, 1 << 20);
}
static void teardown(void)
{
    fixture_deinit(&fx);
}

// ---- tests --------------------------------------------------------------------------------------

START_TEST(what_was_appended_is_read_back)
{
    for (uint32_t len = 0; len < 40; len++) {
        append(&fx, 1 + len % 3, 4, len);
    }
    check_all(&fx);
    struct entry e;
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_OK);
    ck_assert_uint_eq(e.aux, 5);
    ck_assert_uint_eq(e.group, 1);
    settle(&fx);
    check_all(&fx);
}
END_TEST

START_TEST(a_turn_of_many_groups_is_one_range)
{
    for (int i = 0; i < 30; i++) {
        append(&fx, 1 + i % 5, 1, 100);
    }
    write_hard_state(&fx, 2, 3, 7);
    uint64_t before = store_worker_submission(fx.workers[0]);
    flush(&fx);
    ck_assert_uint_eq(store_worker_submission(fx.workers[0]), before + 1);
    struct wal_submission *s = list_entry(store_wal(fx.store)->waiting.next, struct wal_submission, link);
    ck_assert_uint_eq(s->ranges_count, 1);
    ck_assert_uint_eq(s->bytes, 30 * record_size(100) + record_size(16));
    flush(&fx);  // Nothing laid down: no submission.
    ck_assert_uint_eq(store_worker_submission(fx.workers[0]), before + 1);
}
END_TEST

START_TEST(notes_ride_with_the_submission_and_come_back_in_order)
{
    struct list notes, one, two, out;
    list_init(&notes);
    list_add_tail(&notes, &one);
    list_add_tail(&notes, &two);
    append(&fx, 1, 1, 10);
    store_worker_flush(fx.workers[0], &notes, NULL);
    ck_assert(list_is_empty(&notes));
    ck_assert(pump_wal(&fx));
    struct wal_submission *s = list_entry(list_pop(&fx.done), struct wal_submission, link);
    list_init(&out);
    ck_assert_int_eq(store_worker_wal_done(fx.workers[0], s, &out), RC_OK);
    ck_assert_ptr_eq(list_pop(&out), &one);
    ck_assert_ptr_eq(list_pop(&out), &two);
    // Notes without records make a submission too: it completes in order.
    list_add_tail(&notes, &one);
    store_worker_flush(fx.workers[0], &notes, NULL);
    (void)pump_wal(&fx);
    ck_assert(!list_is_empty(&fx.done));
    s = list_entry(list_pop(&fx.done), struct wal_submission, link);
    ck_assert_int_eq(store_worker_wal_done(fx.workers[0], s, &out), RC_OK);
    ck_assert_ptr_eq(list_pop(&out), &one);
}
END_TEST

START_TEST(a_received_record_is_taken_as_it_is_and_a_damaged_one_is_not)
{
    struct buf b;
    buf_init(&b);
    record_put(&b, 1, 1, 9, RECORD_ENTRY, 0, 5, span_str("hello"));
    ck_assert_int_eq(glog_append_record(log_of(&fx, 1), buf_span(&b)), RC_OK);
    b.len = 0;
    record_put(&b, 1, 2, 9, RECORD_ENTRY, 0, 5, span_str("world"));
    for (size_t i = 0; i < RECORD_HEADER_BYTES + 5; i++) {
        if (i >= 16 && i < 24) {
            continue;  // The index is the caller's to check.
        }
        b.ptr[i] ^= 1;
        ck_assert_int_eq(glog_append_record(log_of(&fx, 1), buf_span(&b)), RC_CORRUPT);
        ck_assert_uint_eq(glog_last(log_of(&fx, 1)), 1);
        b.ptr[i] ^= 1;
    }
    ck_assert_int_eq(glog_append_record(log_of(&fx, 1), buf_span(&b)), RC_OK);
    struct entry e;
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 2, &e), RC_OK);
    ck_assert(span_equal(e.payload, span_str("world")));
    buf_deinit(&b);
    settle(&fx);
}
END_TEST

START_TEST(ranges_are_contiguous_records_with_their_terms)
{
    append(&fx, 1, 1, 100);
    append(&fx, 1, 1, 100);
    append(&fx, 2, 1, 100);
    append(&fx, 1, 2, 100);
    struct iovec iov[4];
    struct term_run runs[4];
    int iovs = 0;
    uint32_t entries = 0;
    uint8_t runs_count = 0;
    struct glog *g = log_of(&fx, 1);
    ck_assert_int_eq(glog_ranges(g, 1, 99, 1 << 20, iov, 4, &iovs, &entries, runs, 4, &runs_count), RC_OK);
    ck_assert_uint_eq(entries, 3);
    ck_assert_int_eq(iovs, 2);
    ck_assert_uint_eq(iov[0].iov_len, 2 * record_size(100));
    ck_assert_uint_eq(runs_count, 2);
    ck_assert(runs[0].first == 1 && runs[0].term == 1 && runs[1].first == 3 && runs[1].term == 2);
    struct record_disk r;
    uint64_t size;
    ck_assert_int_eq(record_check(span_of(iov[1].iov_base, iov[1].iov_len), &r, &size), RC_OK);
    ck_assert_uint_eq(r.index, 3);
    // Limits: bytes (but at least one), ranges, terms.
    ck_assert_int_eq(glog_ranges(g, 1, 3, 1, iov, 4, &iovs, &entries, runs, 4, &runs_count), RC_OK);
    ck_assert_uint_eq(entries, 1);
    ck_assert_int_eq(
        glog_ranges(g, 1, 3, 2 * record_size(100), iov, 4, &iovs, &entries, runs, 4, &runs_count), RC_OK);
    ck_assert_uint_eq(entries, 2);
    ck_assert_int_eq(glog_ranges(g, 1, 3, 1 << 20, iov, 1, &iovs, &entries, runs, 4, &runs_count), RC_OK);
    ck_assert_uint_eq(entries, 2);
    ck_assert_int_eq(glog_ranges(g, 1, 3, 1 << 20, iov, 4, &iovs, &entries, runs, 1, &runs_count), RC_OK);
    ck_assert_uint_eq(entries, 2);
    ck_assert_int_eq(glog_ranges(g, 4, 9, 1 << 20, iov, 4, &iovs, &entries, runs, 4, &runs_count),
                     RC_NOT_FOUND);
}
END_TEST

START_TEST(over_budget_only_what_is_durable_leaves_memory_and_is_read_back_from_the_wal)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 1, 256 << 10, 64 << 20);
    for (int i = 0; i < 200; i++) {
        append(&fx, 1 + i % 2, 1, 2000);
    }
    flush(&fx);
    ck_assert(store_worker_is_over_budget(fx.workers[0]));  // Nothing durable: nothing can go.
    struct glog_part part = {"x", 1};
    ck_assert_int_eq(glog_append(log_of(&fx, 1), 101, 1, RECORD_ENTRY, 0, &part, 1, false), RC_FULL);
    struct entry e;
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_OK);
    settle(&fx);
    flush(&fx);
    ck_assert(!store_worker_is_over_budget(fx.workers[0]));
    ck_assert_uint_le(store_worker_memory(fx.workers[0]), (256 << 10) + (ARENA_POOL + 1) * (16 << 10));
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_COLD);
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 100, &e), RC_OK);
    check_all(&fx);
}
END_TEST

START_TEST(an_evicted_record_stays_readable_until_the_end_of_the_turn)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 1, 64 << 10, 64 << 20);
    append_many(&fx, 1, 1, 4000, 10);
    struct entry e;
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_OK);
    append_many(&fx, 1, 1, 4000, 7);
    while (glog_get(log_of(&fx, 1), 1, &e) == RC_OK) {
        append(&fx, 1, 1, 4000);
        const uint8_t *p = e.payload.ptr;
        flush(&fx);  // May evict; the span of this turn is still good (a sanitizer build would tell).
        ck_assert_uint_eq(p[0], payload_byte(1, 1, 1, 0));
        (void)pump_wal(&fx);
        tell_done(&fx);
    }
    check_all(&fx);
}
END_TEST

// A state machine deletes a group in the turn in which ranges of its log were handed to the net, which writes them behind
// the log's submission.
START_TEST(ranges_of_a_log_that_is_deleted_stay_readable_until_the_turn_is_over)
{
    enum { LEN = 20000 };  // In a chunk of its own, which nobody shares.
    append(&fx, 1, 1, LEN);
    settle(&fx);
    struct iovec iov[4];
    int count = 0;
    uint32_t entries = 0;
    struct term_run runs[4];
    uint8_t runs_count = 0;
    ck_assert_int_eq(glog_ranges(log_of(&fx, 1), 1, 1, 1 << 20, iov, 4, &count, &entries, runs, 4, &runs_count), RC_OK);
    ck_assert_int_eq(count, 1);
    uint8_t *before = mem_alloc(iov[0].iov_len);
    memcpy(before, iov[0].iov_base, iov[0].iov_len);
    glog_delete(log_of(&fx, 1));
    fx.logs[1] = NULL;
    flush(&fx);
    uint8_t *others[8];
    for (int i = 0; i < 8; i++) {
        others[i] = mem_alloc(iov[0].iov_len);  // What was freed is used anew.
        memset(others[i], 0xee, iov[0].iov_len);
    }
    ck_assert_mem_eq(before, iov[0].iov_base, iov[0].iov_len);
    for (int i = 0; i < 8; i++) {
        free(others[i]);
    }
    free(before);
    flush(&fx);
    ck_assert_uint_eq(fx.workers[0]->arena.graves_bytes, 0);
}
END_TEST

START_TEST(a_cold_read_takes_many_in_order_and_stops_at_its_bound)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 1, 64 << 10, 64 << 20);
    append_many(&fx, 1, 1, 1000, 300);
    uint64_t indexes[100];
    for (uint64_t i = 0; i < 100; i++) {
        indexes[i] = 1 + i * 2;
    }
    struct glog_read r;
    ck_assert_int_eq(read_cold(&fx, 1, indexes, 100, 1 << 20, &r), RC_OK);
    ck_assert_uint_eq(r.read_count, 100);
    ck_assert_uint_eq(r.bytes.len, 100 * record_size(1000));
    struct span at = buf_span(&r.bytes);
    for (uint32_t i = 0; i < 100; i++) {
        struct record_disk d;
        uint64_t size;
        ck_assert_int_eq(record_check(at, &d, &size), RC_OK);
        ck_assert_uint_eq(d.index, indexes[i]);
        at = span_of(at.ptr + size, at.len - size);
    }
    buf_deinit(&r.bytes);
    ck_assert_int_eq(read_cold(&fx, 1, indexes, 100, 3 * record_size(1000) + 7, &r), RC_OK);
    ck_assert_uint_eq(r.read_count, 3);
    buf_deinit(&r.bytes);
    uint64_t beyond[2] = {300, 301};
    ck_assert_int_eq(read_cold(&fx, 1, beyond, 2, 1 << 20, &r), RC_NOT_FOUND);
    ck_assert_uint_eq(r.read_count, 1);
    buf_deinit(&r.bytes);
}
END_TEST

START_TEST(truncated_entries_are_gone_from_every_structure)
{
    append_many(&fx, 1, 1, 100, 10);
    truncate_from(&fx, 1, 6);
    check_group(&fx, 1);
    append(&fx, 1, 2, 60);
    append(&fx, 1, 2, 61);
    check_group(&fx, 1);
    settle(&fx);
    check_group(&fx, 1);
    crash_and_check(&fx, NULL);
    ck_assert_uint_eq(fx.models[1].last, 7);
}
END_TEST

START_TEST(a_cold_read_under_way_never_returns_what_is_truncated_meanwhile)
{
    append_many(&fx, 1, 1, 100, 10);
    uint64_t indexes[3] = {5, 6, 7};
    bool is_done = false;
    struct glog_read r = {.indexes = indexes,
                          .indexes_count = 3,
                          .bytes_max = 1 << 20,
                          .done = on_read_done,
                          .owner = &is_done};
    glog_read_start(log_of(&fx, 1), &r);
    ck_assert(step_job(&fx, 0));  // Has run, is not told.
    truncate_from(&fx, 1, 6);
    append(&fx, 1, 2, 55);
    while (!is_done && step_job(&fx, 0)) {
    }
    ck_assert(is_done);
    ck_assert_int_eq(r.rc, RC_NOT_FOUND);  // 7 is gone, 6 is the new one.
    ck_assert_uint_eq(r.read_count, 2);
    struct record_disk d;
    uint64_t size;
    ck_assert_int_eq(record_check(buf_span(&r.bytes), &d, &size), RC_OK);
    ck_assert_int_eq(record_check(span_of(r.bytes.ptr + size, r.bytes.len - size), &d, &size), RC_OK);
    ck_assert_uint_eq(d.term, 2);
    buf_deinit(&r.bytes);
    settle(&fx);
}
END_TEST

START_TEST(records_larger_than_a_chunk_and_than_a_wal_file_go_through)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 1, 256 << 10, 64 << 10);
    append(&fx, 1, 1, 10);
    append(&fx, 1, 1, 40 << 10);
    append(&fx, 1, 1, 300 << 10);
    append(&fx, 1, 1, 10);
    check_group(&fx, 1);
    settle(&fx);
    append_many(&fx, 1, 1, 20 << 10, 20);
    check_group(&fx, 1);
    crash_and_check(&fx, NULL);
    ck_assert_uint_eq(fx.models[1].last, 24);
}
END_TEST

START_TEST(a_large_received_record_is_shared_with_the_block_it_came_in)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 1, 1 << 20, 8 << 20);
    struct buf body = {0}, b = {0};
    memset(buf_extend(&body, 3 << 20), 'x', 3 << 20);
    record_put(&b, 1, 1, 9, RECORD_ENTRY, 0, 5, buf_span(&body));
    struct span record = buf_span(&b);
    struct block *block = block_adopt(&b);
    block->ptr[1 << 20] ^= 1;
    ck_assert_int_eq(glog_append_record(log_of(&fx, 1), record), RC_CORRUPT);
    ck_assert_uint_eq(block->refs, 1);
    block->ptr[1 << 20] ^= 1;
    ck_assert_int_eq(glog_append_record(log_of(&fx, 1), record), RC_OK);
    ck_assert_uint_eq(block->refs, 2);
    struct entry e;
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_OK);
    ck_assert_ptr_eq(e.payload.ptr, record.ptr + RECORD_HEADER_BYTES);
    // Durable and over budget: it would leave memory, but giving it up gains nothing while others hold it.
    flush(&fx);
    settle(&fx);
    flush(&fx);
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_OK);
    block_release(block);
    for (int i = 0; i < 3; i++) {
        flush(&fx);
    }
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_COLD);
    ck_assert_ptr_null(block_find(record.ptr));
    uint64_t index = 1;
    struct glog_read r;
    ck_assert_int_eq(read_cold(&fx, 1, &index, 1, 1, &r), RC_OK);
    ck_assert_uint_eq(r.bytes.len, record_size(3 << 20));
    ck_assert_int_eq(memcmp(r.bytes.ptr + RECORD_HEADER_BYTES, body.ptr, body.len), 0);
    buf_deinit(&r.bytes);
    buf_deinit(&body);
}
END_TEST

static uint64_t handed;
static uint64_t handed_of(void *ctx, uint64_t group)
{
    return handed;
}
// The machine is given it in one turn, and what that makes (its delivery) is asked for in the same turn, but behind the flush.
START_TEST(a_large_record_stays_in_memory_until_its_machine_was_given_it_and_one_turn_longer)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 1, 1 << 20, 8 << 20);
    struct store_worker *w = fx.workers[0];
    w->hooks.applied = handed_of;
    handed = 0;
    append(&fx, 1, 1, 3 << 20);
    flush(&fx);
    settle(&fx);
    struct entry e;
    for (int i = 0; i < 4; i++) {
        flush(&fx);
        ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_OK);
    }
    ck_assert_uint_gt(store_worker_tidy(w, 1000), 1000);
    handed = 1;
    flush(&fx);
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_OK);
    ck_assert_uint_eq(store_worker_tidy(w, 1000), 1000);  // There is a next turn, or it would stay until something happens.
    flush(&fx);
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_COLD);
    ck_assert_uint_gt(store_worker_tidy(w, 1000), 1000);
}
END_TEST

// What it was kept for came in between: the turn of grace begins anew.
START_TEST(a_large_record_that_was_held_meanwhile_stays_a_turn_longer_again)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 1, 1 << 20, 8 << 20);
    struct store_worker *w = fx.workers[0];
    w->hooks.applied = handed_of;
    handed = 1;
    append(&fx, 1, 1, 3 << 20);
    struct entry e;
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_OK);
    flush(&fx);
    settle(&fx);
    for (int i = 0; i < 2 && store_worker_tidy(w, 1000) > 1000; i++) {
        flush(&fx);
    }
    ck_assert_uint_eq(store_worker_tidy(w, 1000), 1000);  // This is the turn it is left.
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_OK);
    struct block *b = block_find(e.payload.ptr);
    ck_assert_ptr_nonnull(b);
    block_hold(b);
    flush(&fx);
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_OK);
    block_release(b);
    flush(&fx);
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_OK);
    flush(&fx);
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_COLD);
}
END_TEST

static enum rc (*disk_read)(struct disk_file *f, uint64_t offset, void *to, size_t len, size_t *got);
static uint64_t bytes_asked;
static enum rc counting_read(struct disk_file *f, uint64_t offset, void *to, size_t len, size_t *got)
{
    bytes_asked += len;
    return disk_read(f, offset, to, len, got);
}
START_TEST(a_cold_read_does_not_read_a_large_record_for_which_it_has_no_room)
{
    enum { LARGE = 6 << 20 };
    for (int is_first_small = 0; is_first_small < 2; is_first_small++) {
        fixture_deinit(&fx);
        fixture_init(&fx, 1, 1 << 20, 32 << 20);
        append(&fx, 1, 1, is_first_small ? 10 : LARGE);
        append(&fx, 1, 1, LARGE);
        for (int i = 0; i < 4; i++) {
            flush(&fx);
            settle(&fx);
        }
        struct disk *d = sim_disk_base(fx.disk);
        disk_read = d->read;
        d->read = counting_read;
        bytes_asked = 0;
        const uint64_t indexes[] = {1, 2};
        struct glog_read r;
        ck_assert_int_eq(read_cold(&fx, 1, indexes, 2, 256 << 10, &r), RC_OK);
        ck_assert_uint_eq(r.read_count, 1);
        ck_assert_uint_lt(bytes_asked, is_first_small ? 1 << 20 : LARGE + (1 << 20));
        buf_deinit(&r.bytes);
        d->read = disk_read;
    }
}
END_TEST

START_TEST(a_disposable_source_is_given_back_while_it_is_laid_down)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 1, 1 << 20, 16 << 20);
    const size_t len = 5 << 20;
    struct block *b = block_create(len);
    for (size_t i = 0; i < len; i++) {
        b->ptr[i] = (uint8_t)(i >> 12);
    }
    b->is_disposable = true;
    const struct glog_part part = {.ptr = b->ptr, .len = len};
    ck_assert_int_eq(glog_append(log_of(&fx, 1), 1, 1, RECORD_ENTRY, 0, &part, 1, true), RC_OK);
    struct entry e;
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_OK);
    ck_assert_uint_eq(e.payload.len, len);
    for (size_t i = 0; i < len; i++) {
        ck_assert_uint_eq(e.payload.ptr[i], (uint8_t)(i >> 12));
    }
    struct record_disk r;
    uint64_t size;
    ck_assert_int_eq(
        record_check(span_of(e.payload.ptr - RECORD_HEADER_BYTES, record_size((uint32_t)len)), &r, &size),
        RC_OK);
    ck_assert_uint_eq(b->ptr[len / 2 & ~(size_t)0xfff], 0);  // Gone.
    block_release(b);
    settle(&fx);
}
END_TEST

// A body whose owner gives the room around it away becomes the record where it lies.
static struct block *body_with_room(size_t front, size_t len)
{
    struct block *b = block_create(front + len + RECORD_ALIGN);
    memset(b->ptr, 0xee, b->cap);
    for (size_t i = 0; i < len; i++) {
        b->ptr[front + i] = (uint8_t)(i * 31 >> 3);
    }
    b->is_disposable = b->has_room = true;
    return b;
}

static void check_record(const uint8_t *at, uint32_t len)
{
    const size_t size = record_size(len);
    uint8_t *copy = malloc(size);  // Outside the block: all of it is read.
    memcpy(copy, at, size);
    struct record_disk r;
    uint64_t found;
    ck_assert_int_eq(record_check(span_of(copy, size), &r, &found), RC_OK);
    ck_assert_uint_eq(r.len, len);
    for (size_t i = RECORD_HEADER_BYTES + len; i < size; i++) {
        ck_assert_uint_eq(copy[i], 0);
    }
    free(copy);
}

START_TEST(a_large_body_with_room_around_it_becomes_the_record_in_place)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 1, 1 << 20, 16 << 20);
    const struct glog_part head = {.ptr = "fixed part of a command", .len = 23};
    const size_t front = RECORD_HEADER_BYTES + 23 + 5;
    uint64_t index = 0;
    for (size_t len = (1 << 20) + 1; len <= (1 << 20) + 8; len++) {
        for (int summed = 0; summed < 3; summed++) {
            struct block *b = body_with_room(front, len);
            if (summed > 0) {  // From the body on, or from before it.
                const size_t from = summed == 1 ? front : 3;
                block_set_sum(b, from, front + len, crc32c(0, b->ptr + from, front + len - from));
            }
            const struct glog_part parts[2] = {head, {.ptr = b->ptr + front, .len = len}};
            ck_assert_int_eq(glog_append(log_of(&fx, 1), ++index, 1, RECORD_ENTRY, 0, parts, 2, true), RC_OK);
            ck_assert_uint_eq(b->refs, 2);
            ck_assert(!b->is_discarded);
            struct entry e;
            ck_assert_int_eq(glog_get(log_of(&fx, 1), index, &e), RC_OK);
            ck_assert_ptr_eq(e.payload.ptr, b->ptr + front - 23);
            ck_assert_int_eq(memcmp(e.payload.ptr, head.ptr, head.len), 0);
            check_record(e.payload.ptr - RECORD_HEADER_BYTES, (uint32_t)(23 + len));
            // Its owner is not the only one any more: offered again it is copied.
            ck_assert_int_eq(glog_append(log_of(&fx, 1), ++index, 2, RECORD_ENTRY, 0, parts, 2, true), RC_OK);
            ck_assert_uint_eq(b->refs, 2);
            ck_assert_int_eq(glog_get(log_of(&fx, 1), index, &e), RC_OK);
            check_record(e.payload.ptr - RECORD_HEADER_BYTES, (uint32_t)(23 + len));
            block_release(b);
            settle(&fx);
        }
    }
}
END_TEST

START_TEST(a_large_body_without_room_for_the_record_is_copied)
{
    fixture_deinit(&fx);
    fixture_init(&fx, 1, 1 << 20, 16 << 20);
    const size_t len = (1 << 20) + 1;
    struct block *b = body_with_room(RECORD_HEADER_BYTES - 1, len);
    const struct glog_part part = {.ptr = b->ptr + RECORD_HEADER_BYTES - 1, .len = len};
    ck_assert_int_eq(glog_append(log_of(&fx, 1), 1, 1, RECORD_ENTRY, 0, &part, 1, true), RC_OK);
    ck_assert_uint_eq(b->refs, 1);
    ck_assert(b->is_discarded);
    struct entry e;
    ck_assert_int_eq(glog_get(log_of(&fx, 1), 1, &e), RC_OK);
    check_record(e.payload.ptr - RECORD_HEADER_BYTES, (uint32_t)len);
    block_release(b);
    settle(&fx);
}
END_TEST

START_TEST(an_empty_group_is_one_small_struct)
{
    struct glog *g = log_of(&fx, 3);
    ck_assert_uint_le(sizeof(*g), 120);
    ck_assert_ptr_null(g->window);
    ck_assert_ptr_null(g->runs);
    ck_assert_ptr_null(g->snapshot);
    append(&fx, 3, 1, 10);
    ck_assert_ptr_nonnull(g->window);
    truncate_from(&fx, 3, 1);
    ck_assert_ptr_null(g->window);
    settle(&fx);
}
END_TEST

// The configuration of a snapshot is packed; it comes back as it was.
static void check_config_kept(const struct config *c, uint32_t ranges)
{
    struct live_range live[3] = {{1, 1}, {3, 4}, {9, 9}};
    struct snapshot *s = snapshot_create(9, 2, c, span_of(live, ranges * sizeof(live[0])));
    struct config out;
    memset(&out, 0xa5, sizeof(out));
    snapshot_config(s, &out);
    ck_assert_uint_eq(out.count, c->count);
    ck_assert_uint_eq(out.index, c->index);
    for (uint32_t i = 0; i < c->count; i++) {
        ck_assert_uint_eq(out.members[i].replica_id, c->members[i].replica_id);
        ck_assert_uint_eq(out.members[i].node_id, c->members[i].node_id);
        ck_assert_int_eq(out.members[i].is_voter, c->members[i].is_voter);
    }
    ck_assert_uint_eq(s->live_count, ranges);
    ck_assert_int_eq(snapshot_is_live(s, 4), ranges > 1);
    snapshot_free(s);
}

START_TEST(the_configuration_in_a_snapshot_comes_back_whatever_its_ids)
{
    check_config_kept(&(struct config){.count = 0, .index = 0}, 0);
    check_config_kept(&(struct config){.count = 0, .index = 7}, 3);
    check_config_kept(
        &(struct config){.count = 3, .members = {{400001, 1, true}, {400002, 2, true}, {400003, 3, true}}}, 0);
    // Learners, descending and far apart, on the borders of 7, 32 and 64 bits.
    check_config_kept(&(struct config){.index = 128,
                                       .count = 4,
                                       .members = {{UINT64_MAX, 0, false},
                                                   {1, UINT32_MAX, true},
                                                   {127, 63, false},
                                                   {128, 64, true}}},
                      2);
    struct config most = {.index = UINT64_MAX, .count = LIMIT_MEMBERS};
    for (uint32_t i = 0; i < LIMIT_MEMBERS; i++) {
        most.members[i] = (struct member){UINT64_MAX - i, UINT32_MAX - i, i % 3 == 0};
    }
    check_config_kept(&most, 1);
}
END_TEST

START_TEST(a_recovered_log_is_read_from_the_wal_and_costs_no_memory_for_bodies)
{
    append_many(&fx, 1, 3, 1000, 50);
    append_many(&fx, 2, 4, 10, 5);
    write_hard_state(&fx, 1, 9, 12);
    append_kind(&fx, 2, 5, 0, RECORD_NOOP);
    settle(&fx);
    crash_and_check(&fx, NULL);
    ck_assert_uint_eq(store_worker_memory(fx.workers[0]), 0);
    ck_assert_uint_eq(fx.found[1].hard_state.term, 9);
    ck_assert_uint_eq(fx.found[1].hard_state.vote, 12);
    ck_assert_uint_eq(fx.found[2].runs_count, 2);
    ck_assert(fx.found[2].runs[1].first == 6 && fx.found[2].runs[1].term == 5);
    append_many(&fx, 1, 9, 100, 5);
    check_all(&fx);
    crash_and_check(&fx, NULL);
}
END_TEST

START_TEST(the_newest_configuration_and_the_one_before_are_recovered)
{
    struct buf b;
    buf_init(&b);
    struct glog *g = log_of(&fx, 1);
    for (uint64_t i = 1; i <= 3; i++) {
        struct config c = toy_config(i);
        b.len = 0;
        config_encode(&c, &b);
        struct glog_part part = {b.ptr, b.len};
        ck_assert_int_eq(glog_append(g, i, 1, RECORD_CONFIG, 0, &part, 1, false), RC_OK);
    }
    settle(&fx);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    fixture_open(&fx);
    ck_assert_uint_eq(fx.found[1].config.index, 3);
    ck_assert_uint_eq(fx.found[1].config.members[0].replica_id, 31);
    ck_assert_uint_eq(fx.found[1].config_before.index, 2);
    // Rolled back: the one before is in force.
    glog_truncate(log_of(&fx, 1), 3);
    settle(&fx);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    fixture_open(&fx);
    ck_assert_uint_eq(fx.found[1].config.index, 2);
    ck_assert_uint_eq(fx.found[1].config_before.index, 1);
    buf_deinit(&b);
}
END_TEST

START_TEST(a_deleted_group_is_not_reported_and_may_come_back_empty)
{
    append_many(&fx, 1, 1, 100, 5);
    append_many(&fx, 2, 1, 100, 5);
    glog_delete(log_of(&fx, 1));
    fx.logs[1] = NULL;
    settle(&fx);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    fixture_open(&fx);
    ck_assert_uint_eq(fx.found[1].group, 0);
    ck_assert_uint_eq(fx.found[2].last, 5);
    fx.models[1].last = 0;
    append(&fx, 1, 7, 20);
    settle(&fx);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    fixture_open(&fx);
    ck_assert_uint_eq(fx.found[1].last, 1);
    ck_assert(has_entry(&fx, 1, 1, &fx.models[1].entries[1]));
}
END_TEST

// A file is read ahead beyond what has been written to it in this life; there may be anything.
START_TEST(what_was_read_ahead_of_a_recycled_file_is_not_believed_to_be_large)
{
    struct disk *d = sim_disk_base(fx.disk);
    struct cold cold;
    struct disk_file *file;
    struct buf records;
    struct record_disk r = {.len = COLD_LARGE_BYTES, .group = 7, .index = 1, .term = 1, .kind = RECORD_ENTRY};
    struct span record;
    char path[64];
    uint64_t size = 1;
    buf_init(&records);
    record_put(&records, 7, 1, 1, RECORD_ENTRY, 0, 0, span_of((const uint8_t *)"first", 5));
    const uint64_t second = records.len;
    record_put(&records, 7, 2, 1, RECORD_ENTRY, 0, 0, span_of((const uint8_t *)"second", 6));
    wal_file_path("wal", 999, path, sizeof(path));
    ck_assert_int_eq(d->open(d, path, DISK_READ | DISK_WRITE | DISK_CREATE, &file), RC_OK);
    struct iovec iov[2] = {{records.ptr, second}, {&r, sizeof(r)}};  // The header of a large record that once was here.
    ck_assert_int_eq(d->writev(file, iov, 2, 0), RC_OK);
    cold_init(&cold, d);
    ck_assert_int_eq(cold_record(&cold, (struct cold_file){.seq = 999}, 0, 7, 1, &r, &record), RC_OK);
    iov[0] = (struct iovec){records.ptr, records.len};
    ck_assert_int_eq(d->writev(file, iov, 1, 0), RC_OK);
    ck_assert_int_eq(cold_large_size(&cold, (struct cold_file){.seq = 999}, second, &size), RC_OK);
    ck_assert_uint_eq(size, 0);
    ck_assert_int_eq(cold_record(&cold, (struct cold_file){.seq = 999}, second, 7, 2, &r, &record), RC_OK);
    cold_end(&cold);
    cold_deinit(&cold);
    d->close(file);
    buf_deinit(&records);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("store, memory");
    TCase *t = tcase_create("store");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, what_was_appended_is_read_back);
    tcase_add_test(t, a_turn_of_many_groups_is_one_range);
    tcase_add_test(t, notes_ride_with_the_submission_and_come_back_in_order);
    tcase_add_test(t, a_received_record_is_taken_as_it_is_and_a_damaged_one_is_not);
    tcase_add_test(t, ranges_are_contiguous_records_with_their_terms);
    tcase_add_test(t, over_budget_only_what_is_durable_leaves_memory_and_is_read_back_from_the_wal);
    tcase_add_test(t, an_evicted_record_stays_readable_until_the_end_of_the_turn);
    tcase_add_test(t, ranges_of_a_log_that_is_deleted_stay_readable_until_the_turn_is_over);
    tcase_add_test(t, a_cold_read_takes_many_in_order_and_stops_at_its_bound);
    tcase_add_test(t, truncated_entries_are_gone_from_every_structure);
    tcase_add_test(t, a_cold_read_under_way_never_returns_what_is_truncated_meanwhile);
    tcase_add_test(t, records_larger_than_a_chunk_and_than_a_wal_file_go_through);
    tcase_add_test(t, a_large_received_record_is_shared_with_the_block_it_came_in);
    tcase_add_test(t, a_large_record_stays_in_memory_until_its_machine_was_given_it_and_one_turn_longer);
    tcase_add_test(t, a_large_record_that_was_held_meanwhile_stays_a_turn_longer_again);
    tcase_add_test(t, a_cold_read_does_not_read_a_large_record_for_which_it_has_no_room);
    tcase_add_test(t, a_disposable_source_is_given_back_while_it_is_laid_down);
    tcase_add_test(t, a_large_body_with_room_around_it_becomes_the_record_in_place);
    tcase_add_test(t, a_large_body_without_room_for_the_record_is_copied);
    tcase_add_test(t, an_empty_group_is_one_small_struct);
    tcase_add_test(t, the_configuration_in_a_snapshot_comes_back_whatever_its_ids);
    tcase_add_test(t, a_recovered_log_is_read_from_the_wal_and_costs_no_memory_for_bodies);
    tcase_add_test(t, the_newest_configuration_and_the_one_before_are_recovered);
    tcase_add_test(t, a_deleted_group_is_not_reported_and_may_come_back_empty);
    tcase_add_test(t, what_was_read_ahead_of_a_recycled_file_is_not_believed_to_be_large);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
