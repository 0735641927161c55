// SPDX-License-Identifier: Apache-2.0
// What the tests of the store share: a store on a simulated disk with an executor and a WAL pump that move
// only when told, a toy state machine, and a model of what every group's log must hold. Included by one test
// file each.
#pragma once
#include "consensus/store/core.h"
#include "consensus/wal/internal.h"
#include "tests/sim/sim_disk_parts.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#pragma GCC diagnostic ignored "-Wunused-function"  // Not every test file needs all of it.

enum { GROUPS_MAX = 8, WORKERS_MAX = 3, INDEX_MAX = 4096, SNAPSHOTS_MAX = 64 };

struct model_entry {
    uint64_t term;
    uint32_t len;
    uint16_t kind;
};

// One thing done to a group's log.
struct model_op {
    enum { OP_APPEND, OP_TRUNCATE, OP_HARD_STATE, OP_INSTALL } kind;
    uint64_t index;
    struct model_entry entry;
    struct hard_state hard_state;
    uint64_t submission;  // It is durable once this one has come back.
};

struct model_snapshot {
    uint64_t index;
    uint64_t term;
    struct buf live;  // struct live_range.
};

struct model {
    struct model_op *ops;
    uint32_t ops_count, ops_cap;
    struct model_entry entries[INDEX_MAX];  // As of all ops.
    uint64_t last;
    struct hard_state hard_state;
    uint64_t committed;  // Never truncated; snapshots are taken here.
    struct model_snapshot snapshots[SNAPSHOTS_MAX];
    uint32_t snapshots_count;
    uint64_t published;    // Index of the newest that became current.
    bool dead[INDEX_MAX];  // Settled: not in the next live set.
    bool snapshots_refused;
    uint64_t state_bytes;
    uint64_t size_estimate;
    uint64_t retired_told;
};

struct toy_snapshot {
    uint64_t group, index, left, total;
    struct buf live;
};

struct fixture;
struct test_exec {
    struct exec base;
    struct list waiting;  // Not run.
    struct list ran;      // Run, not told.
};

struct fixture {
    struct sim_disk *disk;
    struct store *store;
    struct store_worker *workers[WORKERS_MAX];
    uint32_t workers_count;
    struct test_exec execs[WORKERS_MAX];
    struct store_config config;
    struct wal_report report;
    struct list done;                     // Submissions that came back from the WAL.
    struct model models[GROUPS_MAX + 1];  // By group id, from 1.
    struct glog *logs[GROUPS_MAX + 1];
    struct store_group found[GROUPS_MAX + 1];  // Of the last start; group = 0: not reported.
    struct term_run found_runs[GROUPS_MAX + 1][64];
    uint64_t closed[256];
    uint32_t closed_count, closed_told;
    uint64_t retired[256];
    uint32_t retired_count;
    uint32_t snapshots_open;
    uint64_t random;
    uint64_t now;            // For compactions.
    bool compacts;           // They run whenever everything else is at rest.
    uint32_t fan_in;         // Not 0: of the workers' compactions.
    uint64_t damaged_group;  // Last one told.
    enum rc damaged_rc;
    uint32_t damaged_count;
};

static uint8_t payload_byte(uint64_t group, uint64_t index, uint64_t term, uint64_t at)
{
    return (uint8_t)(group * 31 + index * 7 + term * 101 + at * 13 + (at >> 8) + 1);
}

// ---- the toy state machine ----------------------------------------------------------------------

static struct fixture *toy_fixture;

static bool toy_chunk(struct fsm_snapshot *handle, struct buf *to)
{
    struct toy_snapshot *t = (struct toy_snapshot *)(void *)handle;
    uint64_t n = t->left < LIMIT_SNAPSHOT_CHUNK_BYTES ? t->left : LIMIT_SNAPSHOT_CHUNK_BYTES;
    uint64_t from = t->total - t->left;
    uint8_t *p = buf_extend(to, n);
    for (uint64_t i = 0; i < n; i++) {
        p[i] = payload_byte(t->group, t->index, 77, from + i);
    }
    t->left -= n;
    return t->left > 0;
}
static void toy_live(struct fsm_snapshot *handle, struct buf *out)
{
    struct toy_snapshot *t = (struct toy_snapshot *)(void *)handle;
    buf_span_bytes(out, buf_span(&t->live));
}
static void toy_end(struct fsm_snapshot *handle)
{
    struct toy_snapshot *t = (struct toy_snapshot *)(void *)handle;
    buf_deinit(&t->live);
    free(t);
    toy_fixture->snapshots_open--;
}
static const struct fsm_ops toy_ops = {
    .version = 3, .snapshot_chunk = toy_chunk, .snapshot_live = toy_live, .snapshot_end = toy_end};

static struct config toy_config(uint64_t group)
{
    struct config c = {.index = 1, .count = 2};
    c.members[0] = (struct member){.replica_id = group * 10 + 1, .node_id = 1, .is_voter = true};
    c.members[1] = (struct member){.replica_id = group * 10 + 2, .node_id = 2, .is_voter = false};
    return c;
}

static bool on_snapshot_begin(void *ctx, uint64_t group, struct store_snapshot_source *out)
{
    struct fixture *f = ctx;
    struct model *m = &f->models[group];
    if (m->snapshots_refused || m->committed == 0 ||
        (m->snapshots_count > 0 && m->snapshots[m->snapshots_count - 1].index == m->committed)) {
        return false;
    }
    ck_assert_uint_lt(m->snapshots_count, SNAPSHOTS_MAX);
    struct model_snapshot *s = &m->snapshots[m->snapshots_count++];
    *s = (struct model_snapshot){.index = m->committed, .term = m->entries[m->committed].term};
    struct live_range r = {0, 0};
    for (uint64_t i = 1; i <= m->committed; i++) {
        if (m->dead[i] || m->entries[i].kind != RECORD_ENTRY) {
            m->dead[i] = true;
            continue;
        }
        if (r.first != 0 && r.last + 1 == i) {
            r.last = i;
            continue;
        }
        if (r.first != 0) {
            buf_bytes(&s->live, &r, sizeof(r));
        }
        r = (struct live_range){i, i};
    }
    if (r.first != 0) {
        buf_bytes(&s->live, &r, sizeof(r));
    }
    struct toy_snapshot *t = mem_zalloc(sizeof(*t));
    *t = (struct toy_snapshot){
        .group = group, .index = m->committed, .left = m->state_bytes, .total = m->state_bytes};
    buf_span_bytes(&t->live, buf_span(&s->live));
    f->snapshots_open++;
    *out = (struct store_snapshot_source){.ops = &toy_ops,
                                          .handle = (struct fsm_snapshot *)(void *)t,
                                          .index = m->committed,
                                          .term = s->term,
                                          .config = toy_config(group),
                                          .size_estimate = m->size_estimate};
    return true;
}

static void on_snapshot_taken(void *ctx, uint64_t group, uint64_t index, uint64_t term)
{
    struct fixture *f = ctx;
    ck_assert_uint_gt(index, f->models[group].published);
    ck_assert_uint_eq(term, f->models[group].entries[index].term);
    f->models[group].published = index;
}

static void on_wal_retired(void *ctx, uint64_t seq)
{
    struct fixture *f = ctx;
    f->retired[f->retired_count++ % 256] = seq;
    wal_retire(store_wal(f->store), seq);
}

static void on_damaged(void *ctx, uint64_t group, enum rc rc)
{
    struct fixture *f = ctx;
    f->damaged_group = group;
    f->damaged_rc = rc;
    f->damaged_count++;
}

static void on_submit(void *ctx, struct wal_submission *s)
{
    struct fixture *f = ctx;
    wal_submit(store_wal(f->store), s);
}
static void on_closed(void *ctx, uint64_t seq)
{
    struct fixture *f = ctx;
    f->closed[f->closed_count++ % 256] = seq;
}
static void on_done(void *ctx, struct wal_submission *s)
{
    struct fixture *f = ctx;
    list_add_tail(&f->done, &s->link);
}
static void on_exec(struct exec *e, struct job *j)
{
    list_add_tail(&container_of(e, struct test_exec, base)->waiting, &j->link);
}
static uint32_t on_worker_of(void *ctx, uint64_t group)
{
    return (uint32_t)(group % ((struct fixture *)ctx)->workers_count);
}
static void on_group(void *ctx, const struct store_group *g)
{
    struct fixture *f = ctx;
    ck_assert_uint_le(g->group, GROUPS_MAX);
    ck_assert_uint_eq(f->found[g->group].group, 0);
    ck_assert_uint_le(g->runs_count, 64);
    f->found[g->group] = *g;
    for (uint32_t i = 0; i < g->runs_count; i++) {
        f->found_runs[g->group][i] = g->runs[i];
    }
    f->found[g->group].runs = f->found_runs[g->group];
    f->logs[g->group] = g->log;
}

// ---- moving -------------------------------------------------------------------------------------

static bool is_dead(const struct fixture *f)
{
    return sim_disk_is_dead(f->disk) || sim_disk_base(f->disk)->failed;
}

static uint64_t fixture_reach;  // Of stores opened from now on.
static uint32_t fixture_harvest_groups;
static uint64_t fixture_removal_piece;

static void fixture_open(struct fixture *f)
{
    f->config = (struct store_config){
        .disk = sim_disk_base(f->disk),
        .workers = f->workers_count,
        .worker_of = on_worker_of,
        .worker_of_ctx = f,
        .memtable_bytes = f->config.memtable_bytes,
        .wal_file_bytes = f->config.wal_file_bytes,
        .wal_align = f->config.wal_align,
        .wal_slice_bytes = f->config.wal_slice_bytes,
        .wal_reserve_files = f->config.wal_reserve_files,
        .reserve_bytes = f->config.reserve_bytes,
        .segment_reach = fixture_reach,
        .last_bytes = f->config.last_bytes,
        .harvest_groups = fixture_harvest_groups,
        .removal_piece = fixture_removal_piece,
        .random = ++f->random,
        .on_wal_file_closed = on_closed,
        .on_wal_done = on_done,
        .wal_ctx = f,
    };
    memset(f->found, 0, sizeof(f->found));
    memset(f->logs, 0, sizeof(f->logs));
    f->closed_count = f->closed_told = 0;
    enum rc rc = store_open(&f->config, on_group, f, &f->report, &f->store);
    ck_assert_msg(rc == RC_OK || is_dead(f), "store_open: %s", rc_text(rc));
    if (rc != RC_OK) {
        f->store = NULL;
        return;
    }
    struct store_hooks hooks = {.submit = on_submit,
                                .snapshot_begin = on_snapshot_begin,
                                .snapshot_taken = on_snapshot_taken,
                                .wal_retired = on_wal_retired,
                                .damaged = on_damaged,
                                .ctx = f};
    for (uint32_t i = 0; i < f->workers_count; i++) {
        f->execs[i].base.submit = on_exec;
        list_init(&f->execs[i].waiting);
        list_init(&f->execs[i].ran);
        f->workers[i] = store_worker_bind(f->store, i, &f->execs[i].base, &hooks);
        if (f->fan_in != 0) {
            f->workers[i]->compacting.fan_in = f->fan_in;
        }
    }
}

static void on_log(void *ctx, enum log_level level, const char *line)
{
    // Damage and dead disks are what the tests are about: set STORE_TEST_LOG to read of them.
    if (getenv("STORE_TEST_LOG") != NULL) {
        fprintf(stderr, "%s\n", line);
    }
}

static void fixture_init(struct fixture *f, uint32_t workers, uint64_t memtable_bytes,
                         uint64_t wal_file_bytes)
{
    memset(f, 0, sizeof(*f));
    toy_fixture = f;
    log_set_sink(on_log, NULL);
    f->disk = sim_disk_create();
    f->workers_count = workers;
    f->config.memtable_bytes = memtable_bytes;
    f->config.wal_file_bytes = wal_file_bytes;
    f->config.wal_align = 8;
    list_init(&f->done);
    for (int i = 0; i <= GROUPS_MAX; i++) {
        f->models[i].state_bytes = 100;
    }
    fixture_open(f);
}

static void fixture_close(struct fixture *f)
{
    if (f->store != NULL) {
        store_wal(f->store)->batch.is_composed = false;  // It may end with a batch in the air.
        store_close(f->store);
        f->store = NULL;
    }
    list_init(&f->done);
}

static void fixture_deinit(struct fixture *f)
{
    fixture_close(f);
    ck_assert_uint_eq(f->snapshots_open, 0);
    for (int i = 0; i <= GROUPS_MAX; i++) {
        free(f->models[i].ops);
        for (uint32_t k = 0; k < f->models[i].snapshots_count; k++) {
            buf_deinit(&f->models[i].snapshots[k].live);
        }
    }
    sim_disk_destroy(f->disk);
}

static struct store_worker *worker_of(struct fixture *f, uint64_t group)
{
    return f->workers[group % f->workers_count];
}

static struct glog *log_of(struct fixture *f, uint64_t group)
{
    if (f->logs[group] == NULL) {
        f->logs[group] = store_glog_create(worker_of(f, group), group);
    }
    return f->logs[group];
}

static void flush(struct fixture *f)
{
    for (uint32_t i = 0; i < f->workers_count; i++) {
        store_worker_flush(f->workers[i], NULL, NULL);
    }
}

// One batch through the WAL. False: nothing to do.
static bool pump_wal(struct fixture *f)
{
    struct wal *w = store_wal(f->store);
    if (!w->batch.is_composed && !wal_compose(w)) {
        return false;
    }
    const enum rc rc = wal_write(w);
    if (rc == RC_NO_SPACE) {
        return false;  // It waits for room.
    }
    wal_complete(w, rc);
    (void)wal_top_up(w);
    return true;
}

static void tell_done(struct fixture *f)
{
    struct list *item;
    while ((item = list_pop(&f->done)) != NULL) {
        struct wal_submission *s = list_entry(item, struct wal_submission, link);
        struct list notes;
        list_init(&notes);
        (void)store_worker_wal_done(s->owner, s, &notes);
    }
}

static void tell_closed(struct fixture *f)
{
    for (; f->closed_told < f->closed_count; f->closed_told++) {
        for (uint32_t i = 0; i < f->workers_count; i++) {
            store_worker_file_closed(f->workers[i], f->closed[f->closed_told % 256]);
        }
    }
}

// One job of worker `i`: its run, or the news of it. False: nothing to do.
static bool step_job(struct fixture *f, uint32_t i)
{
    struct list *item = list_pop(&f->execs[i].ran);
    if (item != NULL) {
        struct job *j = list_entry(item, struct job, link);
        j->done(j);
        return true;
    }
    item = list_pop(&f->execs[i].waiting);
    if (item != NULL) {
        struct job *j = list_entry(item, struct job, link);
        j->run(j);
        list_add_tail(&f->execs[i].ran, item);
        return true;
    }
    return false;
}

// Lets time pass for the compactions. False: none wants to go on.
static bool compact_step(struct fixture *f)
{
    bool moved = false;
    for (uint32_t i = 0; i < f->workers_count; i++) {
        uint64_t due = store_worker_tidy(f->workers[i], f->now);
        if (due != UINT64_MAX) {
            f->now = due > f->now ? due : f->now + 1;
            moved = true;
        }
        moved |= !list_is_empty(&f->execs[i].waiting);
    }
    return moved;
}

// Everything that can move moves, until nothing does or the disk is dead.
static void settle(struct fixture *f)
{
    for (bool moved = true; moved && !is_dead(f);) {
        moved = false;
        flush(f);
        while (!is_dead(f) && pump_wal(f)) {
            moved = true;
        }
        if (is_dead(f)) {
            return;
        }
        moved |= !list_is_empty(&f->done) || f->closed_told < f->closed_count;
        tell_done(f);
        tell_closed(f);
        for (uint32_t i = 0; i < f->workers_count; i++) {
            while (!is_dead(f) && step_job(f, i)) {
                moved = true;
            }
        }
        if (!moved && !is_dead(f) && f->compacts) {
            moved = compact_step(f);
        }
    }
}

// Compactions, until there is nothing worth it.
static void compact(struct fixture *f)
{
    f->compacts = true;
    settle(f);
    f->compacts = false;
}

// ---- doing --------------------------------------------------------------------------------------

static struct model_op *op_add(struct fixture *f, uint64_t group, int kind, uint64_t index)
{
    struct model *m = &f->models[group];
    if (m->ops_count == m->ops_cap) {
        m->ops_cap = m->ops_cap == 0 ? 64 : m->ops_cap * 2;
        m->ops = mem_realloc(m->ops, m->ops_cap * sizeof(*m->ops));
    }
    struct model_op *op = &m->ops[m->ops_count++];
    *op = (struct model_op){
        .kind = kind, .index = index, .submission = store_worker_submission(worker_of(f, group))};
    return op;
}

static void append_kind(struct fixture *f, uint64_t group, uint64_t term, uint32_t len, enum record_kind kind)
{
    struct model *m = &f->models[group];
    struct glog *g = log_of(f, group);
    uint64_t index = m->last + 1;
    ck_assert_uint_lt(index, INDEX_MAX);
    ck_assert_uint_eq(glog_last(g) + 1, index);
    uint8_t *payload = mem_alloc(len + 1);
    for (uint32_t i = 0; i < len; i++) {
        payload[i] = payload_byte(group, index, term, i);
    }
    struct glog_part parts[2] = {{payload, len / 3}, {payload + len / 3, len - len / 3}};
    ck_assert_int_eq(glog_append(g, index, term, kind, 5, parts, 2, true), RC_OK);
    free(payload);
    m->last = index;
    m->entries[index] = (struct model_entry){.term = term, .len = len, .kind = (uint16_t)kind};
    m->dead[index] = false;
    op_add(f, group, OP_APPEND, index)->entry = m->entries[index];
}
static void append(struct fixture *f, uint64_t group, uint64_t term, uint32_t len)
{
    append_kind(f, group, term, len, RECORD_ENTRY);
}
static void append_many(struct fixture *f, uint64_t group, uint64_t term, uint32_t len, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        append(f, group, term, len);
        settle(f);
    }
}

static void truncate_from(struct fixture *f, uint64_t group, uint64_t from)
{
    struct model *m = &f->models[group];
    ck_assert_uint_gt(from, m->committed);
    glog_truncate(log_of(f, group), from);
    m->last = from - 1;
    op_add(f, group, OP_TRUNCATE, from);
}

static void write_hard_state(struct fixture *f, uint64_t group, uint64_t term, uint64_t vote)
{
    struct hard_state hs = {.term = term, .vote = vote};
    glog_write_hard_state(log_of(f, group), hs);
    f->models[group].hard_state = hs;
    op_add(f, group, OP_HARD_STATE, 0)->hard_state = hs;
}

static void settle_messages(struct fixture *f, uint64_t group, uint64_t first, uint64_t last)
{
    for (uint64_t i = first; i <= last; i++) {
        f->models[group].dead[i] = true;
    }
}

// Fills the current WAL file so that it is closed and retired. Group 8 is the filler: everything of it is
// dead at once.
static void roll_file(struct fixture *f)
{
    uint32_t before = f->retired_count;
    struct model *m = &f->models[GROUPS_MAX];
    for (int i = 0; i < 64 && f->retired_count == before && !is_dead(f); i++) {
        append(f, GROUPS_MAX, 1, (uint32_t)(f->config.wal_file_bytes / 8));
        settle(f);
        m->committed = m->last;
        settle_messages(f, GROUPS_MAX, 1, m->last);
    }
    ck_assert(f->retired_count > before || is_dead(f));
}

// ---- checking -----------------------------------------------------------------------------------

static bool payload_is(uint64_t group, uint64_t index, const struct model_entry *e, struct span payload)
{
    bool is_right = payload.len == e->len;
    for (uint32_t i = 0; is_right && i < e->len; i++) {
        is_right = payload.ptr[i] == payload_byte(group, index, e->term, i);
    }
    return is_right;
}

static void on_read_done(struct glog_read *r)
{
    *(bool *)r->owner = true;
}

// Reads cold, moving only the executor. Returns the result code.
static enum rc read_cold(struct fixture *f, uint64_t group, const uint64_t *indexes, uint32_t count,
                         size_t bytes_max, struct glog_read *r)
{
    bool is_done = false;
    *r = (struct glog_read){.indexes = indexes,
                            .indexes_count = count,
                            .bytes_max = bytes_max,
                            .done = on_read_done,
                            .owner = &is_done};
    glog_read_start(log_of(f, group), r);
    while (!is_done && step_job(f, (uint32_t)(group % f->workers_count))) {
    }
    ck_assert(is_done);
    return r->rc;
}

// Is the entry there, from memory or disk, with this content?
static bool has_entry(struct fixture *f, uint64_t group, uint64_t index, const struct model_entry *want)
{
    struct entry e;
    struct glog *g = log_of(f, group);
    enum rc rc = glog_get(g, index, &e);
    if (rc == RC_OK) {
        return e.term == want->term && e.kind == want->kind && payload_is(group, index, want, e.payload);
    }
    if (rc == RC_NOT_FOUND) {
        return false;
    }
    ck_assert_int_eq(rc, RC_COLD);
    struct glog_read r;
    rc = read_cold(f, group, &index, 1, 1, &r);
    bool is_right = false;
    if (rc == RC_OK) {
        struct record_disk d;
        uint64_t size = 0;
        ck_assert_int_eq(record_check(buf_span(&r.bytes), &d, &size), RC_OK);
        is_right = size == r.bytes.len && d.group == group && d.index == index && d.term == want->term &&
                   d.kind == want->kind &&
                   payload_is(group, index, want, span_of(r.bytes.ptr + RECORD_HEADER_BYTES, d.len));
    }
    buf_deinit(&r.bytes);
    return is_right;
}

static bool is_absent(struct fixture *f, uint64_t group, uint64_t index)
{
    struct entry e;
    enum rc rc = glog_get(log_of(f, group), index, &e);
    if (rc != RC_COLD) {
        return rc == RC_NOT_FOUND;
    }
    struct glog_read r;
    rc = read_cold(f, group, &index, 1, 1, &r);
    buf_deinit(&r.bytes);
    return rc == RC_NOT_FOUND;
}

static const struct model_snapshot *snapshot_at(const struct model *m, uint64_t index)
{
    for (uint32_t i = 0; i < m->snapshots_count; i++) {
        if (m->snapshots[i].index == index) {
            return &m->snapshots[i];
        }
    }
    return NULL;
}

static bool model_is_live(const struct model_snapshot *s, uint64_t index)
{
    const struct live_range *r = (const struct live_range *)(const void *)s->live.ptr;
    for (size_t i = 0; i < s->live.len / sizeof(*r); i++) {
        if (index >= r[i].first && index <= r[i].last) {
            return true;
        }
    }
    return false;
}

// The log of `group` is exactly what the model says: dense behind the snapshot, below it the live set and
// nothing else.
static void check_group(struct fixture *f, uint64_t group)
{
    struct model *m = &f->models[group];
    struct glog *g = log_of(f, group);
    uint64_t snapshot = glog_first(g) - 1;
    const struct model_snapshot *s = snapshot_at(m, snapshot);
    ck_assert(snapshot == 0 || s != NULL);
    ck_assert_uint_eq(glog_last(g), m->last);
    for (uint64_t i = 1; i <= m->last; i++) {
        bool must = i > snapshot || model_is_live(s, i);
        if (!(must ? has_entry(f, group, i, &m->entries[i]) : is_absent(f, group, i))) {
            ck_abort_msg("group %lu entry %lu: %s (snapshot %lu, last %lu)", (unsigned long)group,
                         (unsigned long)i, must ? "is missing or wrong" : "should be gone",
                         (unsigned long)snapshot, (unsigned long)m->last);
        }
    }
    ck_assert(is_absent(f, group, m->last + 1));
}

static void check_all(struct fixture *f)
{
    for (uint64_t group = 1; group <= GROUPS_MAX; group++) {
        if (f->logs[group] != NULL) {
            check_group(f, group);
        }
    }
}

// ---- crashing -----------------------------------------------------------------------------------

// Sets the model back to what it was after its first `n` operations.
static void model_rewind(struct model *m, uint32_t n)
{
    m->last = 0;
    m->hard_state = (struct hard_state){0};
    for (uint32_t i = 0; i < n; i++) {
        const struct model_op *op = &m->ops[i];
        switch (op->kind) {
        case OP_APPEND:
            m->last = op->index;
            m->entries[op->index] = op->entry;
            break;
        case OP_TRUNCATE:
            m->last = op->index - 1;
            break;
        case OP_HARD_STATE:
            m->hard_state = op->hard_state;
            break;
        case OP_INSTALL:
            m->last = op->index;  // What is below is in m->entries and stays: older operations are forgotten.
            break;
        }
    }
    m->ops_count = n;
}

static uint64_t found_term(const struct store_group *g, uint64_t index)
{
    uint64_t term = 0;
    for (uint32_t i = 0; i < g->runs_count && g->runs[i].first <= index; i++) {
        term = g->runs[i].term;
    }
    return term;
}

// Does what was recovered equal the model as it is now?
static bool found_is_model(const struct fixture *f, uint64_t group)
{
    const struct model *m = &f->models[group];
    const struct store_group *g = &f->found[group];
    if (g->group == 0) {
        return m->last == 0 && m->hard_state.term == 0;
    }
    if (g->last != m->last || g->hard_state.term != m->hard_state.term ||
        g->hard_state.vote != m->hard_state.vote) {
        return false;
    }
    for (uint64_t i = g->first; i <= g->last; i++) {
        if (found_term(g, i) != m->entries[i].term) {
            return false;
        }
    }
    return true;
}

// After a start: each group is as after some number of its operations, at least all that were durable; its
// snapshot is one that was taken, at least the published one. The model is set to that.
static void check_recovered(struct fixture *f, const uint64_t *completed)
{
    ck_assert(!f->report.is_corrupt);
    for (uint64_t group = 1; group <= GROUPS_MAX; group++) {
        struct model *m = &f->models[group];
        uint32_t durable = 0;
        while (durable < m->ops_count && m->ops[durable].submission <= completed[group % f->workers_count]) {
            durable++;
        }
        bool is_found = false;
        for (uint32_t n = m->ops_count; !is_found; n--) {
            model_rewind(m, n);
            is_found = found_is_model(f, group);
            if (n == durable && !is_found) {
                ck_abort_msg("group %lu: recovered last %lu term %lu is no state since %u operations",
                             (unsigned long)group, (unsigned long)f->found[group].last,
                             (unsigned long)f->found[group].hard_state.term, durable);
            }
        }
        ck_assert(!f->found[group].is_amnesiac);
        uint64_t snapshot = f->found[group].group == 0 ? 0 : f->found[group].snapshot_index;
        ck_assert_uint_ge(snapshot, m->published);
        ck_assert(snapshot == 0 || snapshot_at(m, snapshot) != NULL);
        m->published = snapshot;
        m->committed = m->committed > m->last ? m->last : m->committed;
        // Snapshots that did not make it may be taken again at the same index, with another live set.
        while (m->snapshots_count > 0 && m->snapshots[m->snapshots_count - 1].index > snapshot) {
            buf_deinit(&m->snapshots[--m->snapshots_count].live);
        }
        for (uint32_t i = 0; i < m->ops_count; i++) {
            m->ops[i].submission = 0;
        }
        for (uint64_t i = 1; i <= snapshot; i++) {
            m->dead[i] = !model_is_live(snapshot_at(m, snapshot), i);
        }
    }
    check_all(f);
}

// Power fails now; then starts again and checks.
static void crash_and_check(struct fixture *f, struct rng *rng)
{
    uint64_t completed[WORKERS_MAX] = {0};
    for (uint32_t i = 0; i < f->workers_count; i++) {
        completed[i] = f->store == NULL ? 0 : f->workers[i]->completed;
    }
    fixture_close(f);
    if (rng != NULL) {
        sim_disk_crash(f->disk, rng);
    } else {
        sim_disk_kill(f->disk);
    }
    fixture_open(f);
    check_recovered(f, completed);
}
