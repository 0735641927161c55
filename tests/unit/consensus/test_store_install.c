// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus consensus/raft consensus/solo consensus/store consensus/wal gen tests/sim
// Snapshots on their way from one store to another: what arrives, what it replaces, crashes in between.
#include "tests/unit/consensus/store_retire_fixture.h"

// Sends group 1's snapshot from fx to `to`, whose log of it is then checked.
static enum rc transfer(struct fixture *to, size_t bytes_max)
{
    struct glog_snapshot_info info;
    ck_assert_int_eq(glog_snapshot_info(log_of(&fx, 1), &info), RC_OK);
    uint64_t position = 0;
    for (bool is_last = false; !is_last && !is_dead(to);) {
        bool is_done = false;
        struct glog_snapshot_read r = {.index = info.index,
                                       .position = position,
                                       .bytes_max = bytes_max,
                                       .done = on_snapshot_read,
                                       .owner = &is_done};
        glog_snapshot_read_start(log_of(&fx, 1), &r);
        while (!is_done && step_job(&fx, 0)) {
        }
        ck_assert(is_done);
        ck_assert_int_eq(r.rc, RC_OK);
        ck_assert_uint_gt(r.bytes.len, 0);
        is_last = r.is_last;
        position = r.position;
        is_done = false;
        struct glog_snapshot_write w = {.info = info,
                                        .bytes = r.bytes,
                                        .is_last = r.is_last,
                                        .done = on_snapshot_write,
                                        .owner = &is_done};
        glog_snapshot_write_start(log_of(to, 1), &w);
        while (!is_done && step_job(to, 0)) {
        }
        ck_assert(is_done);
        if (w.rc != RC_OK) {
            return w.rc;
        }
    }
    return RC_OK;
}

// The receiver's model after an install: what the sender knows.
static void model_install(struct fixture *to, uint64_t group)
{
    struct model *m = &to->models[group];
    const struct model *from = &fx.models[group];
    uint64_t index = from->published;
    memcpy(m->entries, from->entries, sizeof(m->entries));
    memcpy(m->dead, from->dead, sizeof(m->dead));
    m->last = m->committed = m->published = index;
    const struct model_snapshot *s = snapshot_at(from, index);
    struct model_snapshot *copy = &m->snapshots[m->snapshots_count++];
    *copy = (struct model_snapshot){.index = index, .term = s->term};
    buf_span_bytes(&copy->live, buf_span(&s->live));
    // What was done to the log before no longer shows, but the promises do.
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->ops_count; i++) {
        if (m->ops[i].kind == OP_HARD_STATE) {
            m->ops[kept++] = m->ops[i];
        }
    }
    m->ops_count = kept;
    op_add(to, group, OP_INSTALL, index)->submission = 0;
}

// ---- tests --------------------------------------------------------------------------------------

START_TEST(a_snapshot_is_kept_while_it_is_being_sent)
{
    append_many(&fx, 1, 1, 500, 20);
    settle_messages(&fx, 1, 1, 18);
    request_snapshot(1, 20);
    bool is_done = false;
    struct glog_snapshot_read r = {
        .index = 20, .bytes_max = 100, .done = on_snapshot_read, .owner = &is_done};
    glog_snapshot_read_start(log_of(&fx, 1), &r);
    while (!is_done && step_job(&fx, 0)) {
    }
    buf_deinit(&r.bytes);
    append_many(&fx, 1, 1, 500, 20);
    fx.models[1].committed = 40;
    settle_messages(&fx, 1, 1, 40);
    roll_file(&fx);
    ck_assert_uint_eq(fx.models[1].published, 20);
    check_group(&fx, 1);
    for (int i = 0; i < 10; i++) {  // A receiver that went away does not hold it for ever.
        append(&fx, 1, 1, 500);
        fx.models[1].committed = fx.models[1].last;
        settle_messages(&fx, 1, 1, fx.models[1].last);
        roll_file(&fx);
    }
    ck_assert_uint_gt(fx.models[1].published, 40);
}
END_TEST

START_TEST(a_snapshot_with_its_live_entries_reaches_another_node)
{
    append_many(&fx, 1, 1, 300, 40);
    settle_messages(&fx, 1, 3, 9);
    settle_messages(&fx, 1, 30, 39);
    fx.models[1].state_bytes = (3 << 19) + 5;
    request_snapshot(1, 40);
    roll_file(&fx);
    fixture_reach = _i * 4096;
    for (size_t bytes_max = 1; bytes_max < 1 << 22; bytes_max *= 50) {
        struct fixture *to = mem_zalloc(sizeof(*to));
        fixture_init(to, 1, 256 << 10, FILE_BYTES);
        ck_assert_int_eq(transfer(to, bytes_max), RC_OK);
        model_install(to, 1);
        check_group(to, 1);
        check_state(to, 1, 40, (3 << 19) + 5);
        append(to, 1, 5, 10);
        settle(to);
        check_group(to, 1);
        crash_and_check(to, NULL);
        check_state(to, 1, 40, (3 << 19) + 5);
        ck_assert_int_eq(transfer(to, bytes_max), RC_STALE);  // Told, so that the sender stops.
        fixture_deinit(to);
        free(to);
        toy_fixture = &fx;
    }
}
END_TEST

START_TEST(an_installed_snapshot_replaces_a_conflicting_log)
{
    append_many(&fx, 1, 3, 300, 40);
    settle_messages(&fx, 1, 5, 30);
    request_snapshot(1, 40);
    fixture_reach = _i * 4096;
    for (int is_retired = 0; is_retired < 2; is_retired++) {
        for (uint32_t n = 10; n <= 60; n += 50) {
            struct fixture *to = mem_zalloc(sizeof(*to));
            fixture_init(to, 1, 256 << 10, FILE_BYTES);
            append_many(to, 1, 2, 77, n);  // Same indexes, another term and other bodies.
            write_hard_state(to, 1, 3, 0);
            if (is_retired) {
                to->models[1].snapshots_refused = true;
                roll_file(to);
            }
            ck_assert_int_eq(transfer(to, 1000), RC_OK);
            model_install(to, 1);
            check_group(to, 1);
            append_many(to, 1, 4, 10, 3);
            check_group(to, 1);
            crash_and_check(to, NULL);
            roll_file(to);
            roll_file(to);
            check_group(to, 1);
            crash_and_check(to, NULL);
            fixture_deinit(to);
            free(to);
            toy_fixture = &fx;
        }
    }
}
END_TEST

START_TEST(a_crash_right_after_an_install_shows_old_or_new_and_nothing_between)
{
    append_many(&fx, 1, 3, 300, 40);
    settle_messages(&fx, 1, 5, 30);
    request_snapshot(1, 40);
    struct fixture *to = mem_zalloc(sizeof(*to));
    fixture_init(to, 1, 256 << 10, FILE_BYTES);
    append_many(to, 1, 2, 77, 60);
    ck_assert_int_eq(transfer(to, 1000), RC_OK);
    // Sealed and published, but the mark in the WAL is not written: the snapshot counts, the conflicting tail
    // does not.
    fixture_close(to);
    sim_disk_kill(to->disk);
    fixture_open(to);
    ck_assert_uint_eq(to->found[1].snapshot_index, 40);
    ck_assert_uint_eq(to->found[1].last, 40);
    ck_assert(!to->found[1].is_amnesiac);
    model_install(to, 1);
    check_group(to, 1);
    fixture_deinit(to);
    free(to);
    toy_fixture = &fx;
}
END_TEST

// The start that finds the mark missing lays it down again: else the next one finds the other history still behind the
// snapshot, and takes what was written and acknowledged since for a part of it.
START_TEST(what_was_written_behind_a_snapshot_whose_mark_was_lost_is_found_by_the_next_start_too)
{
    append_many(&fx, 1, 3, 300, 40);
    settle_messages(&fx, 1, 5, 30);
    request_snapshot(1, 40);
    struct fixture *to = mem_zalloc(sizeof(*to));
    fixture_init(to, 1, 256 << 10, FILE_BYTES);
    static const uint32_t lengths[] = {60, 41, 40, 39};  // Of the other history, in the WAL or in a segment already.
    append_many(to, 1, 2, 77, lengths[_i / 2]);
    if (_i % 2 == 1) {
        to->models[1].snapshots_refused = true;
        roll_file(to);
    }
    ck_assert_int_eq(transfer(to, 1000), RC_OK);
    fixture_close(to);
    sim_disk_kill(to->disk);
    fixture_open(to);
    ck_assert_uint_eq(to->found[1].last, 40);
    model_install(to, 1);
    append_many(to, 1, 4, 10, 13);
    settle(to);
    check_group(to, 1);
    crash_and_check(to, NULL);
    ck_assert_uint_eq(to->found[1].last, 53);
    fixture_deinit(to);
    free(to);
    toy_fixture = &fx;
}
END_TEST

START_TEST(a_crash_at_any_disk_operation_of_an_install_shows_old_or_new)
{
    append_many(&fx, 1, 3, 300, 40);
    settle_messages(&fx, 1, 5, 30);
    request_snapshot(1, 40);
    const int story = _i % 4;  // A shorter or longer log of another history, in the WAL or in a segment already.
    fixture_reach = _i / 4 * 4096;
    uint64_t news = 0, olds = 0;
    struct rng rng;
    rng_seed(&rng, 5);
    bool was_cut = true;
    for (uint64_t at = 1; was_cut; at++) {
        struct fixture *to = mem_zalloc(sizeof(*to));
        fixture_init(to, 1, 256 << 10, FILE_BYTES);
        append_many(to, 1, 2, 77, story % 2 ? 20 : 60);
        to->models[1].snapshots_refused = true;
        if (story >= 2) {
            roll_file(to);
        }
        sim_disk_crash_after(to->disk, at);
        (void)transfer(to, 1000);
        if (!is_dead(to)) {
            settle(to);
        }
        was_cut = is_dead(to);
        uint64_t completed[WORKERS_MAX] = {to->workers[0]->completed};
        bool is_new = log_of(to, 1)->snapshot != NULL;
        fixture_close(to);
        sim_disk_crash(to->disk, &rng);
        fixture_open(to);
        ck_assert(!to->found[1].is_amnesiac);
        ck_assert(!is_new || to->found[1].snapshot_index == 40);  // Published was durable.
        if (to->found[1].snapshot_index == 40) {
            model_install(to, 1);
            news++;
        } else {
            olds++;
        }
        check_recovered(to, completed);
        append(to, 1, 4, 5);
        roll_file(to);
        check_group(to, 1);
        crash_and_check(to, &rng);
        fixture_deinit(to);
        free(to);
        toy_fixture = &fx;
    }
    ck_assert_uint_gt(olds, 2);
    ck_assert_uint_gt(news, 2);
}
END_TEST

// On a full disk the WAL may stand still for long.
START_TEST(a_received_snapshot_that_was_merged_before_its_mark_was_durable_lets_no_other_history_go_on_behind_it)
{
    append_many(&fx, 1, 3, 300, 40);
    settle_messages(&fx, 1, 5, 30);
    request_snapshot(1, 40);
    struct fixture *to = mem_zalloc(sizeof(*to));
    fixture_init(to, 1, 256 << 10, FILE_BYTES);
    append_many(to, 1, 2, 77, 60);
    to->models[1].snapshots_refused = true;
    roll_file(to);
    to->workers[0]->compacting.fan_in = 1;
    uint64_t completed[WORKERS_MAX] = {to->workers[0]->completed};
    ck_assert_int_eq(transfer(to, 1000), RC_OK);
    while (log_of(to, 1)->snapshot->segment->kind != SEGMENT_COMPACTED) {
        ck_assert(compact_step(to));
        while (step_job(to, 0)) {
        }
    }
    struct rng rng;
    rng_seed(&rng, 5);
    fixture_close(to);
    sim_disk_crash(to->disk, &rng);
    fixture_open(to);
    ck_assert_uint_eq(to->found[1].snapshot_index, 40);
    model_install(to, 1);
    check_recovered(to, completed);
    append(to, 1, 4, 5);
    roll_file(to);
    check_group(to, 1);
    fixture_deinit(to);
    free(to);
    toy_fixture = &fx;
}
END_TEST

START_TEST(the_log_is_cut_only_when_the_snapshot_is_durable)
{
    append_many(&fx, 1, 1, 300, 20);
    settle_messages(&fx, 1, 1, 20);
    fx.models[1].committed = 20;
    const uint64_t next = atomic_load(&fx.store->shared_next_segment);
    char path[SEGMENT_PATH_MAX];
    segment_path(next, true, path);
    glog_snapshot_request(log_of(&fx, 1));
    flush(&fx);
    bool was_sealed = false;
    do {
        was_sealed = sim_disk_exists(fx.disk, path);
        ck_assert_uint_eq(glog_first(log_of(&fx, 1)), 1);  // All of it is there,
        ck_assert(has_entry(&fx, 1, 1, &fx.models[1].entries[1]));
        ck_assert(step_job(&fx, 0));
    } while (glog_snapshot_is_coming(log_of(&fx, 1)));
    ck_assert(was_sealed);  // until after the segment was synced under its name,
    ck_assert_uint_eq(glog_first(log_of(&fx, 1)), 21);
    struct rng rng;
    rng_seed(&rng, 3);
    crash_and_check(&fx, &rng);  // and then a power cut takes nothing back.
    ck_assert_uint_eq(fx.found[1].snapshot_index, 20);
}
END_TEST

START_TEST(nothing_of_the_memtable_is_left_after_an_install)
{
    append_many(&fx, 1, 3, 300, 40);
    settle_messages(&fx, 1, 5, 30);
    request_snapshot(1, 40);
    struct fixture *to = mem_zalloc(sizeof(*to));
    fixture_init(to, 1, 256 << 10, FILE_BYTES);
    append_many(to, 1, 2, 77, 60);  // All in memory, beyond the snapshot too; another history.
    struct entry e;
    ck_assert_int_eq(glog_get(log_of(to, 1), 50, &e), RC_OK);
    const uint32_t epoch = log_of(to, 1)->epoch;
    ck_assert_int_eq(transfer(to, 1000), RC_OK);
    struct glog *g = log_of(to, 1);
    ck_assert_uint_eq(g->window_count, 0);
    ck_assert_uint_ne(g->epoch, epoch);  // What was planned before is looked at again.
    ck_assert_uint_eq(glog_last(g), 40);
    for (uint64_t i = 1; i <= 61; i++) {
        const enum rc rc = glog_get(g, i, &e);
        ck_assert_int_eq(rc, i < 5 || (i > 30 && i <= 40) ? RC_COLD : RC_NOT_FOUND);
    }
    model_install(to, 1);
    append_many(to, 1, 4, 10, 1);
    ck_assert_int_eq(glog_get(g, 41, &e), RC_OK);
    ck_assert_uint_eq(e.term, 4);
    check_group(to, 1);
    fixture_deinit(to);
    free(to);
    toy_fixture = &fx;
}
END_TEST

START_TEST(a_place_that_no_piece_begins_at_is_refused_and_is_no_damage)
{
    append_many(&fx, 1, 1, 300, 10);
    request_snapshot(1, 10);
    uint64_t end = 0;
    for (int i = 0; i < 3; i++) {
        bool is_done = false;
        struct glog_snapshot_read r = {.index = 10,
                                       .position = i == 0 ? 0 : i == 1 ? end - 8 : end + 64,
                                       .bytes_max = 1 << 20,
                                       .done = on_snapshot_read,
                                       .owner = &is_done};
        do {
            is_done = false;
            glog_snapshot_read_start(log_of(&fx, 1), &r);
            while (!is_done && step_job(&fx, 0)) {
            }
            ck_assert(is_done);
            ck_assert_int_eq(r.rc, i == 0 ? RC_OK : RC_INVALID);
            end = i == 0 ? r.position : end;
            buf_deinit(&r.bytes);
        } while (i == 0 && !r.is_last);
        ck_assert(!r.is_last || i == 0);
        ck_assert(!log_of(&fx, 1)->is_amnesiac);
    }
    check_group(&fx, 1);
}
END_TEST

START_TEST(a_damaged_piece_is_refused_and_leaves_the_log_as_it_was)
{
    append_many(&fx, 1, 1, 300, 10);
    request_snapshot(1, 10);
    struct fixture *to = mem_zalloc(sizeof(*to));
    fixture_init(to, 1, 256 << 10, FILE_BYTES);
    append_many(to, 1, 1, 50, 3);
    struct glog_snapshot_info info;
    ck_assert_int_eq(glog_snapshot_info(log_of(&fx, 1), &info), RC_OK);
    for (int i = 0; i < 3; i++) {
        bool is_done = false;
        struct glog_snapshot_write w = {
            .info = info, .is_last = i != 2, .done = on_snapshot_write, .owner = &is_done};
        buf_init(&w.bytes);
        if (i == 0) {
            buf_bytes(&w.bytes, "garbage", 7);
        } else if (i == 1) {  // Entries, but no state.
            record_put(&w.bytes, 1, 4, 1, RECORD_ENTRY, 0, 0, span_str("x"));
        } else {
            record_put(&w.bytes, 2, 4, 1, RECORD_ENTRY, 0, 0, span_str("x"));  // Another group's.
        }
        glog_snapshot_write_start(log_of(to, 1), &w);
        while (step_job(to, 0)) {
        }
        ck_assert(is_done);
        ck_assert_int_eq(w.rc, RC_MALFORMED);
        check_group(to, 1);
    }
    settle(to);
    ck_assert(!sim_disk_exists(to->disk, "seg/seg-0000000000000001.tmp"));
    crash_and_check(to, NULL);
    fixture_deinit(to);
    free(to);
    toy_fixture = &fx;
}
END_TEST

// The mark in the log says that there was a snapshot, whether the checkpoint knew of one or not.
START_TEST(an_installed_snapshot_that_is_lost_with_its_segment_makes_the_group_amnesiac)
{
    append_many(&fx, 1, 3, 300, 40);
    settle_messages(&fx, 1, 5, 30);
    request_snapshot(1, 40);
    struct fixture *to = mem_zalloc(sizeof(*to));
    fixture_init(to, 1, 256 << 10, FILE_BYTES);
    to->models[1].snapshots_refused = true;
    if (_i > 0) {
        append_many(to, 1, 2, 77, 10);  // The checkpoint knows of a log.
        roll_file(to);
    }
    write_hard_state(to, 1, 3, 0);
    ck_assert_int_eq(transfer(to, 1000), RC_OK);
    settle(to);  // With its mark: what it acknowledges from now on is on disk.
    char path[SEGMENT_PATH_MAX];
    segment_path(log_of(to, 1)->snapshot->segment->seq, true, path);
    fixture_close(to);
    struct disk *d = sim_disk_base(to->disk);
    ck_assert_int_eq(d->unlink(d, path), RC_OK);
    fixture_open(to);
    ck_assert_uint_eq(to->found[1].group, 1);
    ck_assert(to->found[1].is_amnesiac);
    fixture_deinit(to);
    free(to);
    toy_fixture = &fx;
}
END_TEST

static struct {
    struct disk real;
    char path[SEGMENT_PATH_MAX];
    struct disk_file *file;
} unreadable;

static enum rc unreadable_open(struct disk *d, const char *path, int flags, struct disk_file **out)
{
    const enum rc rc = unreadable.real.open(d, path, flags, out);
    if (rc == RC_OK && strcmp(path, unreadable.path) == 0) {
        unreadable.file = *out;
    }
    return rc;
}

static enum rc unreadable_read(struct disk_file *f, uint64_t offset, void *to, size_t len, size_t *got)
{
    return f == unreadable.file ? RC_IO : unreadable.real.read(f, offset, to, len, got);
}

static void unreadable_close(struct disk_file *f)
{
    unreadable.file = f == unreadable.file ? NULL : unreadable.file;
    unreadable.real.close(f);
}

START_TEST(a_segment_that_cannot_be_read_at_the_start_costs_its_group_its_memory_and_not_the_node)
{
    append_many(&fx, 1, 1, 300, 10);
    request_snapshot(1, 10);
    roll_file(&fx);  // The log alone does not tell it any more.
    append_many(&fx, 2, 1, 50, 3);
    settle(&fx);
    segment_path(log_of(&fx, 1)->snapshot->segment->seq, true, unreadable.path);
    fixture_close(&fx);
    struct disk *d = sim_disk_base(fx.disk);
    unreadable.real = *d;
    d->open = unreadable_open;
    d->read = unreadable_read;
    d->close = unreadable_close;
    fixture_open(&fx);
    ck_assert_ptr_nonnull(fx.store);
    ck_assert(fx.found[1].is_amnesiac);
    ck_assert_uint_eq(fx.found[2].last, 3);
    ck_assert(!fx.found[2].is_amnesiac);
}
END_TEST

// The group itself goes on; only the transfer is broken off, when its last piece is sealed and not told of.
START_TEST(a_transfer_that_is_broken_off_when_it_is_sealed_leaves_no_file)
{
    append_many(&fx, 1, 1, 300, 10);
    request_snapshot(1, 10);
    struct fixture *to = mem_zalloc(sizeof(*to));
    fixture_init(to, 1, 256 << 10, FILE_BYTES);
    append_many(to, 1, 1, 50, 3);
    struct glog_snapshot_info info;
    ck_assert_int_eq(glog_snapshot_info(log_of(&fx, 1), &info), RC_OK);
    bool is_done = false;
    struct glog_snapshot_read r = {.index = info.index, .bytes_max = 1 << 20, .done = on_snapshot_read, .owner = &is_done};
    buf_init(&r.bytes);
    struct buf all;
    buf_init(&all);
    for (bool is_last = false; !is_last;) {
        is_done = false;
        glog_snapshot_read_start(log_of(&fx, 1), &r);
        while (!is_done && step_job(&fx, 0)) {
        }
        ck_assert_int_eq(r.rc, RC_OK);
        buf_span_bytes(&all, buf_span(&r.bytes));
        buf_deinit(&r.bytes);
        is_last = r.is_last;
    }
    is_done = false;
    struct glog_snapshot_write w = {
        .info = info, .bytes = all, .is_last = true, .done = on_snapshot_write, .owner = &is_done};
    glog_snapshot_write_start(log_of(to, 1), &w);
    glog_snapshot_write_abort(log_of(to, 1));
    // Both jobs run before the worker hears of either.
    struct list *item;
    while ((item = list_pop(&to->execs[0].waiting)) != NULL) {
        struct job *j = list_entry(item, struct job, link);
        j->run(j);
        list_add_tail(&to->execs[0].ran, item);
    }
    char path[SEGMENT_PATH_MAX];
    segment_path(1, true, path);
    ck_assert(sim_disk_exists(to->disk, path));
    settle(to);
    ck_assert(is_done);
    ck_assert_int_eq(w.rc, RC_BUSY);
    ck_assert(!sim_disk_exists(to->disk, path));
    check_group(to, 1);
    fixture_deinit(to);
    free(to);
    toy_fixture = &fx;
}
END_TEST

START_TEST(what_a_group_is_receiving_ends_with_it_and_the_next_of_its_id_receives_anew)
{
    append_many(&fx, 1, 1, 300, 10);
    request_snapshot(1, 10);
    struct fixture *to = mem_zalloc(sizeof(*to));
    fixture_init(to, 1, 256 << 10, FILE_BYTES);
    struct glog_snapshot_info info;
    ck_assert_int_eq(glog_snapshot_info(log_of(&fx, 1), &info), RC_OK);
    // A piece that is good by itself is on its way to the disk when the group is deleted and made again.
    bool is_done = false;
    struct glog_snapshot_write w = {.info = info, .done = on_snapshot_write, .owner = &is_done};
    buf_init(&w.bytes);
    record_put(&w.bytes, 1, 10, info.term, RECORD_SNAPSHOT, RECORD_FLAG_HEADER, 0, span_str("half a header"));
    glog_snapshot_write_start(log_of(to, 1), &w);
    ck_assert_uint_eq(map_count(&to->workers[0]->receives), 1);
    glog_delete(log_of(to, 1));
    to->logs[1] = NULL;
    ck_assert_uint_eq(map_count(&to->workers[0]->receives), 0);
    ck_assert_uint_eq(glog_first(log_of(to, 1)), 1);
    while (step_job(to, 0)) {
    }
    ck_assert(is_done);
    ck_assert_int_eq(w.rc, RC_BUSY);
    ck_assert_int_eq(transfer(to, 1 << 20), RC_OK);
    ck_assert_uint_eq(map_count(&to->workers[0]->receives), 0);
    model_install(to, 1);
    check_group(to, 1);
    settle(to);
    fixture_deinit(to);
    free(to);
    toy_fixture = &fx;
}
END_TEST

// What proves that the mark of the installed snapshot is missing lies in segments that the mark makes useless.
START_TEST(a_mark_that_is_laid_down_again_may_be_lost_again)
{
    append_many(&fx, 1, 3, 300, 40);
    settle_messages(&fx, 1, 5, 30);
    request_snapshot(1, 40);
    struct fixture *to = mem_zalloc(sizeof(*to));
    fixture_init(to, 1, 256 << 10, FILE_BYTES);
    append_many(to, 1, 2, 77, 60);
    to->models[1].snapshots_refused = true;
    for (int i = 0; i < 3; i++) {
        roll_file(to);
    }
    ck_assert_uint_gt(log_of(to, 1)->runs_count, 0);
    ck_assert_int_eq(transfer(to, 1000), RC_OK);
    for (int i = 0; i < 3; i++) {  // Sealed; the mark never reaches the disk.
        fixture_close(to);
        sim_disk_kill(to->disk);
        fixture_open(to);
        ck_assert_uint_eq(to->found[1].snapshot_index, 40);
        ck_assert_uint_eq(to->found[1].last, 40);
        ck_assert(!to->found[1].is_amnesiac);
    }
    fixture_deinit(to);
    free(to);
    toy_fixture = &fx;
}
END_TEST

int main(void)
{
    Suite *s = suite_create("store, installed snapshots");
    TCase *t = tcase_create("store");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, a_snapshot_is_kept_while_it_is_being_sent);
    tcase_add_loop_test(t, a_snapshot_with_its_live_entries_reaches_another_node, 0, 2);
    tcase_add_loop_test(t, an_installed_snapshot_replaces_a_conflicting_log, 0, 2);
    tcase_add_test(t, a_crash_right_after_an_install_shows_old_or_new_and_nothing_between);
    tcase_add_loop_test(t, what_was_written_behind_a_snapshot_whose_mark_was_lost_is_found_by_the_next_start_too, 0, 8);
    tcase_add_loop_test(t, a_crash_at_any_disk_operation_of_an_install_shows_old_or_new, 0, 8);
    tcase_add_test(t, a_received_snapshot_that_was_merged_before_its_mark_was_durable_lets_no_other_history_go_on_behind_it);
    tcase_add_test(t, the_log_is_cut_only_when_the_snapshot_is_durable);
    tcase_add_test(t, nothing_of_the_memtable_is_left_after_an_install);
    tcase_add_test(t, a_mark_that_is_laid_down_again_may_be_lost_again);
    tcase_add_test(t, a_segment_that_cannot_be_read_at_the_start_costs_its_group_its_memory_and_not_the_node);
    tcase_add_test(t, a_place_that_no_piece_begins_at_is_refused_and_is_no_damage);
    tcase_add_test(t, a_damaged_piece_is_refused_and_leaves_the_log_as_it_was);
    tcase_add_loop_test(t, an_installed_snapshot_that_is_lost_with_its_segment_makes_the_group_amnesiac, 0, 2);
    tcase_add_test(t, a_transfer_that_is_broken_off_when_it_is_sealed_leaves_no_file);
    tcase_add_test(t, what_a_group_is_receiving_ends_with_it_and_the_next_of_its_id_receives_anew);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
