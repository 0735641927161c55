// SPDX-License-Identifier: Apache-2.0
// Merging segments, and damage that a read finds.
// links: node/base proto consensus consensus/raft consensus/solo consensus/store consensus/wal gen tests/sim
#include "tests/unit/consensus/store_fixture.h"

enum { FILE_BYTES = 64 << 10 };

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, 1, 256 << 10, FILE_BYTES);
}
static void teardown(void)
{
    fixture_deinit(&fx);
}

static bool exists(const struct fixture *f, uint64_t seq)
{
    char path[SEGMENT_PATH_MAX];
    segment_path(seq, true, path);
    return sim_disk_exists(f->disk, path);
}

static uint32_t segments(const struct fixture *f)
{
    uint32_t n = 0;
    for (uint64_t i = 1; i < 400; i++) {
        n += exists(f, i);
    }
    return n;
}

static uint64_t run_segment(struct fixture *f, uint64_t group, uint32_t at)
{
    ck_assert_uint_lt(at, log_of(f, group)->runs_count);
    return log_of(f, group)->runs[at].segment->seq;
}

// Group 1 has 40 entries in a segment, of which by the current snapshot `live` are needed; group 2 ten, all of them.
static uint64_t half_dead_segment(struct fixture *f, uint64_t live)
{
    f->models[1].snapshots_refused = f->models[2].snapshots_refused = true;
    append_many(f, 1, 1, 300, 40);
    append_many(f, 2, 1, 100, 10);
    roll_file(f);
    f->models[1].snapshots_refused = false;
    settle_messages(f, 1, live + 1, 40);
    f->models[1].committed = 40;
    glog_snapshot_request(log_of(f, 1));
    settle(f);
    ck_assert_uint_eq(f->models[1].published, 40);
    return run_segment(f, 2, 0);
}

// Lets compactions come to where the new segment is written and not published.
static void compact_until_sealed(struct fixture *f)
{
    const uint64_t next = atomic_load(&f->store->shared_next_segment);
    while (!exists(f, next)) {
        flush(f);
        while (pump_wal(f)) {
        }
        tell_done(f);
        (void)compact_step(f);
        while (!exists(f, next) && step_job(f, 0)) {
        }
    }
}

static void start_again(struct fixture *f)
{
    fixture_close(f);
    sim_disk_kill(f->disk);
    fixture_open(f);
}

// ---- what is left ---------------------------------------------------------------------------------

START_TEST(what_is_left_of_a_half_dead_segment_moves_and_the_file_goes)
{
    const uint64_t before = half_dead_segment(&fx, 3);
    ck_assert(exists(&fx, before));
    compact(&fx);
    ck_assert(!exists(&fx, before));
    ck_assert_uint_ne(run_segment(&fx, 1, 0), before);
    ck_assert_uint_eq(run_segment(&fx, 1, 0), run_segment(&fx, 2, 0));
    ck_assert_uint_eq(fx.workers[0]->compacting.finished, 1);
    // 3 x 344 bytes, 10 x 144, runs with their arrays, header, trailer, the filler's snapshot: nothing of the 37 dead.
    ck_assert_uint_lt(fx.workers[0]->compacting.copied_bytes, 4096 + 3 * 344 + 10 * 144 + 800);
    check_all(&fx);
    crash_and_check(&fx, NULL);
    roll_file(&fx);
    check_all(&fx);
    crash_and_check(&fx, NULL);
}
END_TEST

START_TEST(a_segment_that_still_dies_is_left_alone_for_a_second)
{
    (void)half_dead_segment(&fx, 3);
    const uint64_t due = store_worker_tidy(fx.workers[0], fx.now);
    ck_assert_uint_gt(due, fx.now);
    ck_assert_uint_le(due, fx.now + 1000000000);  // It asks to be called again.
    ck_assert_ptr_null(fx.workers[0]->compacting.job);
    fx.now += 900000000;
    settle_messages(&fx, 1, 2, 3);
    append(&fx, 1, 1, 10);
    fx.models[1].committed = 41;
    glog_snapshot_request(log_of(&fx, 1));
    settle(&fx);
    fx.now += 100000000;
    (void)store_worker_tidy(fx.workers[0], fx.now);
    ck_assert_ptr_null(fx.workers[0]->compacting.job);  // It has changed.
    fx.now += 1000000000;
    (void)store_worker_tidy(fx.workers[0], fx.now);
    ck_assert_ptr_nonnull(fx.workers[0]->compacting.job);
    compact(&fx);
    check_all(&fx);
}
END_TEST

START_TEST(nothing_is_copied_for_ever_and_an_idle_store_asks_for_no_timer)
{
    (void)half_dead_segment(&fx, 3);
    compact(&fx);
    const uint64_t finished = fx.workers[0]->compacting.finished;
    for (int i = 0; i < 10; i++) {
        fx.now += 5000000000;
        ck_assert_uint_eq(store_worker_tidy(fx.workers[0], fx.now), UINT64_MAX);
    }
    // Also when many tiny runs make the tables larger than the records.
    for (uint64_t g = 1; g <= 7; g++) {
        append(&fx, g, 1, 1);
        fx.models[g].snapshots_refused = true;
    }
    roll_file(&fx);
    compact(&fx);
    fx.now += 5000000000;
    ck_assert_uint_eq(store_worker_tidy(fx.workers[0], fx.now), UINT64_MAX);
    ck_assert_uint_le(fx.workers[0]->compacting.finished, finished + 1);
    check_all(&fx);
}
END_TEST

START_TEST(small_segments_become_one)
{
    fx.workers[0]->compacting.fan_in = 4;
    uint32_t before = 0;
    for (int i = 1; i <= 6; i++) {
        append_many(&fx, (uint64_t)i, 1, 50, 3);
        fx.models[i].committed = 3;
        glog_snapshot_request(log_of(&fx, (uint64_t)i));
        settle(&fx);
    }
    before = segments(&fx);
    ck_assert_uint_eq(before, 6);
    compact(&fx);
    ck_assert_uint_eq(segments(&fx), 1);
    check_all(&fx);
    crash_and_check(&fx, NULL);
    ck_assert_uint_eq(segments(&fx), 1);
    for (uint64_t g = 1; g <= 6; g++) {
        ck_assert_uint_eq(fx.found[g].snapshot_index, 3);
    }
}
END_TEST

START_TEST(files_stay_few_however_many_snapshots_are_taken)
{
    fx.workers[0]->compacting.fan_in = 4;
    uint32_t most = 0;
    for (uint64_t round = 1; round <= 40; round++) {
        for (uint64_t g = 1; g <= 7; g++) {
            append(&fx, g, 1, 200);
            fx.models[g].committed = fx.models[g].last;
            settle_messages(&fx, g, 1, round % 10 == 0 ? round : round - 1);
            glog_snapshot_request(log_of(&fx, g));
            if (g % 3 == 0) {
                settle(&fx);
            }
        }
        compact(&fx);
        most = segments(&fx) > most ? segments(&fx) : most;
    }
    ck_assert_uint_le(most, 3 * 4);
    check_all(&fx);
    crash_and_check(&fx, NULL);
}
END_TEST

START_TEST(a_segment_is_left_alone_until_a_checkpoint_covers_its_file)
{
    const uint64_t before = half_dead_segment(&fx, 3);
    fx.store->checkpoint_seq = 0;  // As if it were not written yet.
    compact(&fx);
    ck_assert(exists(&fx, before));
    ck_assert_uint_eq(fx.workers[0]->compacting.finished, 0);
    fx.store->checkpoint_seq = 1;
    compaction_due(fx.store);
    compact(&fx);
    ck_assert(!exists(&fx, before));
    check_all(&fx);
}
END_TEST

START_TEST(segments_with_groups_of_several_workers_are_merged_by_each_in_turn)
{
    // Written by one worker, found by three: their number may change from start to start.
    const uint64_t before = half_dead_segment(&fx, 3);
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    fx.workers_count = 3;
    fixture_open(&fx);
    compaction_due(fx.store);
    compact(&fx);
    ck_assert(!exists(&fx, before));
    ck_assert_uint_ne(run_segment(&fx, 1, 0), run_segment(&fx, 2, 0));
    check_all(&fx);
    start_again(&fx);
    check_all(&fx);
}
END_TEST

// ---- what happens meanwhile -----------------------------------------------------------------------

START_TEST(a_newer_snapshot_while_segments_are_copied_wins)
{
    (void)half_dead_segment(&fx, 8);
    compact_until_sealed(&fx);
    settle_messages(&fx, 1, 1, 5);
    append(&fx, 1, 1, 10);
    fx.models[1].committed = 41;
    glog_snapshot_request(log_of(&fx, 1));
    settle(&fx);  // Publishes both.
    ck_assert_uint_eq(fx.models[1].published, 41);
    check_all(&fx);
    crash_and_check(&fx, NULL);
}
END_TEST

START_TEST(a_truncation_while_segments_are_copied_wins)
{
    for (int is_published = 0; is_published < 2; is_published++) {
        struct fixture *f = mem_zalloc(sizeof(*f));
        fixture_init(f, 1, 256 << 10, FILE_BYTES);
        const uint64_t before = half_dead_segment(f, 3);
        write_hard_state(f, 2, 2, 0);
        compact_until_sealed(f);
        truncate_from(f, 2, 6);
        append(f, 2, 2, 55);
        if (is_published) {
            compact(f);
            ck_assert(!exists(f, before));
            ck_assert_uint_eq(run_last(&log_of(f, 2)->runs[0]), 5);
        } else {
            flush(f);
            while (pump_wal(f)) {
            }
            tell_done(f);
        }
        if (is_published) {
            check_all(f);
        }
        crash_and_check(f, NULL);
        roll_file(f);
        compact(f);
        check_all(f);
        crash_and_check(f, NULL);
        fixture_deinit(f);
        free(f);
    }
    toy_fixture = &fx;
}
END_TEST

START_TEST(a_group_deleted_while_segments_are_copied_does_not_come_back)
{
    (void)half_dead_segment(&fx, 3);
    compact_until_sealed(&fx);
    glog_delete(log_of(&fx, 2));
    fx.logs[2] = NULL;
    free(fx.models[2].ops);
    fx.models[2] = (struct model){.state_bytes = 100};
    append_many(&fx, 2, 5, 33, 2);  // Its second life.
    compact(&fx);
    check_all(&fx);
    crash_and_check(&fx, NULL);
    roll_file(&fx);
    compact(&fx);
    crash_and_check(&fx, NULL);
    ck_assert_uint_eq(fx.found[2].last, 2);
}
END_TEST

START_TEST(a_read_under_way_holds_the_segment_it_refers_to)
{
    const uint64_t before = half_dead_segment(&fx, 3);
    const uint64_t indexes[] = {1, 2, 3};
    bool is_done = false;
    struct glog_read r = {.indexes = indexes,
                          .indexes_count = 3,
                          .bytes_max = 1 << 20,
                          .done = on_read_done,
                          .owner = &is_done};
    compact_until_sealed(&fx);
    glog_read_start(log_of(&fx, 1), &r);  // Planned before the publication, run behind it.
    ck_assert(exists(&fx, before));
    compact(&fx);
    ck_assert(is_done);
    ck_assert_int_eq(r.rc, RC_OK);
    ck_assert_uint_eq(r.read_count, 3);
    buf_deinit(&r.bytes);
    ck_assert(!exists(&fx, before));
}
END_TEST

static bool merging_story(uint64_t at, uint64_t seed, bool is_power_cut)
{
    static struct fixture f;
    fixture_init(&f, 1 + (uint32_t)(seed % 2), 256 << 10, FILE_BYTES / 2);
    f.fan_in = 2;
    for (uint32_t i = 0; i < f.workers_count; i++) {
        f.workers[i]->compacting.fan_in = 2;
    }
    for (uint64_t g = 1; g <= 4; g++) {
        f.models[g].snapshots_refused = g == 2;
        for (int i = 0; i < 12; i++) {
            append(&f, g, 1, 500);
        }
        settle(&f);
    }
    roll_file(&f);
    for (uint64_t g = 1; g <= 4; g++) {
        struct model *m = &f.models[g];
        m->committed = g == 2 ? 0 : 10;
        settle_messages(&f, g, 2, m->committed);
        glog_snapshot_request(log_of(&f, g));
        settle(&f);
    }
    sim_disk_crash_after(f.disk, at);
    compact(&f);
    if (!is_dead(&f)) {
        write_hard_state(&f, 4, 2, 0);
        truncate_from(&f, 4, 11);
        append(&f, 4, 2, 40);
        settle_messages(&f, 3, 1, 5);
        f.models[3].committed = 12;
        glog_snapshot_request(log_of(&f, 3));
        settle(&f);
    }
    if (!is_dead(&f)) {
        compact(&f);
    }
    const bool was_cut = is_dead(&f);
    struct rng rng;
    rng_seed(&rng, seed);
    crash_and_check(&f, is_power_cut ? &rng : NULL);
    roll_file(&f);
    compact(&f);
    check_all(&f);
    crash_and_check(&f, is_power_cut ? &rng : NULL);
    fixture_deinit(&f);
    return was_cut;
}

START_TEST(a_crash_at_any_disk_operation_of_a_compaction_loses_nothing)
{
    for (int is_power_cut = 0; is_power_cut < 2; is_power_cut++) {
        uint64_t at = 1;
        while (merging_story(at, at, is_power_cut)) {
            at++;
        }
        ck_assert_uint_gt(at, 10);
    }
    toy_fixture = &fx;
}
END_TEST

START_TEST(a_full_disk_puts_a_compaction_off)
{
    const uint64_t before = half_dead_segment(&fx, 3);
    sim_disk_set_budget(fx.disk, 1);
    uint64_t due = 0;
    for (int i = 0; i < 20; i++) {
        flush(&fx);
        due = store_worker_tidy(fx.workers[0], fx.now);
        fx.now += 500000000;
        while (step_job(&fx, 0)) {
        }
    }
    ck_assert_uint_ne(due, UINT64_MAX);  // It tries again by itself,
    ck_assert(!is_dead(&fx));
    ck_assert(exists(&fx, before));
    sim_disk_set_budget(fx.disk, UINT64_MAX);
    compact(&fx);
    ck_assert(!exists(&fx, before));  // and succeeds when there is room.
    check_all(&fx);
    crash_and_check(&fx, NULL);
}
END_TEST

START_TEST(a_snapshot_that_was_not_worth_it_is_not_said_to_come)
{
    fx.models[1].size_estimate = 1 << 30;
    append_many(&fx, 1, 1, 100, 10);
    fx.models[1].committed = 10;
    roll_file(&fx);
    ck_assert_uint_eq(fx.models[1].published, 0);  // Looked at, and let go.
    ck_assert(!glog_snapshot_is_coming(log_of(&fx, 1)));
    ck_assert_uint_eq(fx.models[1].snapshots_count, 1);
    buf_deinit(&fx.models[1].snapshots[0].live);
    fx.models[1].snapshots_count = 0;
    glog_snapshot_request(log_of(&fx, 1));
    ck_assert(glog_snapshot_is_coming(log_of(&fx, 1)));
    flush(&fx);
    ck_assert(glog_snapshot_is_coming(log_of(&fx, 1)));  // Being written.
    settle(&fx);
    ck_assert(!glog_snapshot_is_coming(log_of(&fx, 1)));
    ck_assert_uint_eq(fx.models[1].published, 10);
}
END_TEST

// ---- pace -----------------------------------------------------------------------------------------

// Writes one large compaction; returns the time it took. The WAL answers after `latency_ns` while a slice is written.
static uint64_t paced(uint64_t bytes_per_s, uint64_t latency_ns)
{
    static struct fixture f;
    fixture_init(&f, 1, 4 << 20, 1 << 20);
    f.store->config.compact_bytes_per_s = bytes_per_s;
    f.models[1].snapshots_refused = true;
    append_many(&f, 1, 1, 8000, 100);
    roll_file(&f);
    f.models[1].snapshots_refused = false;
    f.models[1].committed = 100;
    settle_messages(&f, 1, 1, 60);
    glog_snapshot_request(log_of(&f, 1));
    settle(&f);
    uint64_t start = 0;
    for (int i = 0; i < 10000 && f.workers[0]->compacting.finished == 0; i++) {
        append(&f, 2, 1, 10);  // There is always something on its way to the WAL.
        flush(&f);
        uint64_t due = store_worker_tidy(f.workers[0], f.now);
        const struct compaction *c = f.workers[0]->compacting.job;
        start = start == 0 && c != NULL ? f.now : start;
        const bool is_writing = !list_is_empty(&f.execs[0].waiting);
        f.now += is_writing ? latency_ns : 1000000;
        while (pump_wal(&f)) {
        }
        tell_done(&f);
        (void)store_worker_tidy(f.workers[0], f.now);
        while (step_job(&f, 0)) {
        }
        f.now = due != UINT64_MAX && due > f.now ? due : f.now;
    }
    ck_assert_uint_eq(f.workers[0]->compacting.finished, 1);
    check_group(&f, 1);
    const uint64_t took = f.now - start;
    fixture_deinit(&f);
    return took;
}

START_TEST(bytes_are_written_within_the_budget)
{
    // 40 x 8 kB are copied, in slices of 64 KiB.
    const uint64_t fast = paced(8 << 20, 1000000), slow = paced(320 << 10, 1000000);
    ck_assert_uint_ge(slow, 700000000);  // 320 kB at 320 KiB/s; the last slice is not waited for.
    ck_assert_uint_le(slow, 1500000000);
    ck_assert_uint_lt(fast, slow / 4);
    toy_fixture = &fx;
}
END_TEST

START_TEST(a_wal_that_slows_down_while_slices_are_written_slows_them_down)
{
    const uint64_t calm = paced(1 << 20, 1000000), busy = paced(1 << 20, 50000000);
    ck_assert_uint_gt(busy, 3 * calm);
    toy_fixture = &fx;
}
END_TEST

// ---- damage ---------------------------------------------------------------------------------------

// Turns a bit of the payload of an entry that lies in a segment.
static void damage_entry(struct fixture *f, uint64_t group, uint64_t index)
{
    struct glog *g = log_of(f, group);
    struct cold *cold = &g->worker->cold;
    const uint32_t at = glog_runs_find(g, index);
    ck_assert_uint_lt(at, g->runs_count);
    uint64_t position = 0;
    ck_assert_int_eq(cold_run_position(cold, &g->runs[at], index, &position), RC_OK);
    cold_end(cold);
    cold->buf_len = 0;  // It reads it from the disk next time.
    char path[SEGMENT_PATH_MAX];
    segment_path(g->runs[at].segment->seq, true, path);
    sim_disk_flip_bit(f->disk, path, position + RECORD_HEADER_BYTES + 1, 3);
}

static void check_lost(struct fixture *f, uint64_t group)
{
    ck_assert_uint_eq(f->damaged_count, 1);  // Told once,
    ck_assert_uint_eq(f->damaged_group, group);
    ck_assert_int_eq(f->damaged_rc, RC_CORRUPT);
    ck_assert(glog_is_lost(log_of(f, group)));
    settle(f);
    start_again(f);
    for (uint64_t g = 1; g <= GROUPS_MAX; g++) {
        ck_assert(f->found[g].group == 0 || f->found[g].is_amnesiac == (g == group));  // and recorded, of it alone.
    }
    start_again(f);
    ck_assert(f->found[group].is_amnesiac);
}

START_TEST(a_damaged_entry_that_is_copied_costs_its_group_its_memory_and_the_others_move)
{
    const uint64_t before = half_dead_segment(&fx, 3);
    damage_entry(&fx, 1, 2);
    compact(&fx);
    ck_assert(exists(&fx, before));  // Evidence.
    ck_assert_uint_ne(run_segment(&fx, 2, 0), before);
    check_group(&fx, 2);
    const uint64_t finished = fx.workers[0]->compacting.finished;
    fx.now += 5000000000;
    ck_assert_uint_eq(store_worker_tidy(fx.workers[0], fx.now), UINT64_MAX);  // It is not tried again.
    ck_assert_uint_eq(fx.workers[0]->compacting.finished, finished);
    check_lost(&fx, 1);
}
END_TEST

START_TEST(a_damaged_snapshot_that_is_copied_costs_its_group_its_memory)
{
    fx.workers[0]->compacting.fan_in = 2;
    append_many(&fx, 1, 1, 50, 3);
    fx.models[1].committed = 3;
    glog_snapshot_request(log_of(&fx, 1));
    settle(&fx);
    append_many(&fx, 2, 1, 50, 3);
    fx.models[2].committed = 3;
    glog_snapshot_request(log_of(&fx, 2));
    settle(&fx);
    char path[SEGMENT_PATH_MAX];
    const struct snapshot *s = log_of(&fx, 1)->snapshot;
    segment_path(s->segment->seq, true, path);
    sim_disk_flip_bit(fx.disk, path, s->position + s->bytes - 9, 3);  // In the state, not in the header.
    compact(&fx);
    check_group(&fx, 2);
    check_lost(&fx, 1);
}
END_TEST

START_TEST(a_damaged_entry_that_is_read_costs_its_group_its_memory)
{
    (void)half_dead_segment(&fx, 3);
    damage_entry(&fx, 2, 5);
    uint64_t indexes[] = {3, 4, 5, 6};
    struct glog_read r;
    ck_assert_int_eq(read_cold(&fx, 2, indexes, 4, 1 << 20, &r), RC_CORRUPT);
    ck_assert_uint_eq(r.read_count, 2);  // What precedes it is given.
    buf_deinit(&r.bytes);
    check_lost(&fx, 2);
}
END_TEST

START_TEST(a_damaged_entry_of_the_log_file_that_is_read_costs_its_group_its_memory)
{
    fx.models[1].snapshots_refused = true;
    append_many(&fx, 1, 1, 3000, 15);
    struct glog *g = log_of(&fx, 1);
    uint64_t offset = 0;
    const struct piece *p = arena_piece(&g->worker->arena, glog_window_ref(g, 2), &offset);
    char path[64];
    wal_file_path("wal", p->file_seq, path, sizeof(path));
    sim_disk_flip_bit(fx.disk, path, offset + RECORD_HEADER_BYTES + 7, 1);
    const uint64_t index = 2;
    struct glog_read r;
    ck_assert_int_eq(read_cold(&fx, 1, &index, 1, 1 << 20, &r), RC_CORRUPT);
    buf_deinit(&r.bytes);
    ck_assert_uint_eq(fx.damaged_group, 1);
    ck_assert(glog_is_lost(g));
}
END_TEST

START_TEST(a_damaged_entry_of_a_file_that_is_retired_costs_its_group_its_memory_and_the_node_lives)
{
    fx.models[1].snapshots_refused = fx.models[2].snapshots_refused = true;
    append_many(&fx, 1, 1, 300, 20);
    append_many(&fx, 2, 1, 300, 20);
    struct glog *g = log_of(&fx, 1);
    uint64_t offset = 0;
    const struct piece *p = arena_piece(&g->worker->arena, glog_window_ref(g, 7), &offset);
    char path[64];
    wal_file_path("wal", p->file_seq, path, sizeof(path));
    sim_disk_flip_bit(fx.disk, path, offset + RECORD_HEADER_BYTES + 7, 1);
    roll_file(&fx);
    ck_assert(!is_dead(&fx));
    ck_assert_uint_eq(fx.retired[0], 1);
    check_group(&fx, 2);
    check_lost(&fx, 1);
    check_group(&fx, 2);
}
END_TEST

static void on_piece(struct glog_snapshot_read *r)
{
    *(bool *)r->owner = true;
}

START_TEST(a_damaged_live_entry_that_is_sent_costs_its_group_its_memory)
{
    (void)half_dead_segment(&fx, 3);
    damage_entry(&fx, 1, 2);
    bool is_done = false;
    struct glog_snapshot_read r = {.index = 40, .bytes_max = 1 << 20, .done = on_piece, .owner = &is_done};
    glog_snapshot_read_start(log_of(&fx, 1), &r);
    while (!is_done && step_job(&fx, 0)) {
    }
    ck_assert_int_eq(r.rc, RC_CORRUPT);
    ck_assert_uint_eq(r.bytes.len, 0);  // Nothing of it is sent.
    buf_deinit(&r.bytes);
    check_lost(&fx, 1);
}
END_TEST

static void on_chunk(struct glog_snapshot_load *l, struct span chunk)
{
    (void)l;
    (void)chunk;
}
static void on_loaded(struct glog_snapshot_load *l, enum rc rc)
{
    *(enum rc *)l->owner = rc;
}

START_TEST(a_damaged_snapshot_that_is_loaded_costs_its_group_its_memory)
{
    (void)half_dead_segment(&fx, 3);
    char path[SEGMENT_PATH_MAX];
    const struct snapshot *s = log_of(&fx, 1)->snapshot;
    segment_path(s->segment->seq, true, path);
    sim_disk_flip_bit(fx.disk, path, s->position + s->bytes - 9, 3);
    enum rc rc = RC_PENDING;
    struct glog_snapshot_load l = {.each = on_chunk, .done = on_loaded, .owner = &rc};
    glog_snapshot_load_start(log_of(&fx, 1), &l);
    while (rc == RC_PENDING && step_job(&fx, 0)) {
    }
    ck_assert_int_eq(rc, RC_CORRUPT);
    check_lost(&fx, 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("store, merging of segments and damage");
    TCase *t = tcase_create("store");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, what_is_left_of_a_half_dead_segment_moves_and_the_file_goes);
    tcase_add_test(t, a_segment_that_still_dies_is_left_alone_for_a_second);
    tcase_add_test(t, nothing_is_copied_for_ever_and_an_idle_store_asks_for_no_timer);
    tcase_add_test(t, small_segments_become_one);
    tcase_add_test(t, files_stay_few_however_many_snapshots_are_taken);
    tcase_add_test(t, a_segment_is_left_alone_until_a_checkpoint_covers_its_file);
    tcase_add_test(t, segments_with_groups_of_several_workers_are_merged_by_each_in_turn);
    tcase_add_test(t, a_newer_snapshot_while_segments_are_copied_wins);
    tcase_add_test(t, a_truncation_while_segments_are_copied_wins);
    tcase_add_test(t, a_group_deleted_while_segments_are_copied_does_not_come_back);
    tcase_add_test(t, a_read_under_way_holds_the_segment_it_refers_to);
    tcase_add_test(t, a_crash_at_any_disk_operation_of_a_compaction_loses_nothing);
    tcase_add_test(t, a_full_disk_puts_a_compaction_off);
    tcase_add_test(t, a_snapshot_that_was_not_worth_it_is_not_said_to_come);
    tcase_add_test(t, bytes_are_written_within_the_budget);
    tcase_add_test(t, a_wal_that_slows_down_while_slices_are_written_slows_them_down);
    tcase_add_test(t, a_damaged_entry_that_is_copied_costs_its_group_its_memory_and_the_others_move);
    tcase_add_test(t, a_damaged_snapshot_that_is_copied_costs_its_group_its_memory);
    tcase_add_test(t, a_damaged_entry_that_is_read_costs_its_group_its_memory);
    tcase_add_test(t, a_damaged_entry_of_the_log_file_that_is_read_costs_its_group_its_memory);
    tcase_add_test(t, a_damaged_entry_of_a_file_that_is_retired_costs_its_group_its_memory_and_the_node_lives);
    tcase_add_test(t, a_damaged_live_entry_that_is_sent_costs_its_group_its_memory);
    tcase_add_test(t, a_damaged_snapshot_that_is_loaded_costs_its_group_its_memory);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
