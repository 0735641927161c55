// SPDX-License-Identifier: Apache-2.0
// Cold reads (glog_read). What an index means is decided on the worker when the read starts and looked at
// again when it comes back: if the log was cut meanwhile the read is planned anew, so that a truncated entry
// is never returned (P12).
//
// A file that a planned read refers to stays until the read has run: segments are held by count, WAL files
// leave only after a barrier behind them in the executor's order (leave.c).
#include "consensus/store/read.h"

static bool plan_item(struct read_plan *p, struct glog *g, uint64_t index, const struct run **last_run)
{
    struct read_item *item = &p->items[p->items_count++];
    *item = (struct read_item){.index = index, .kind = READ_NOWHERE};
    uint64_t ref = 0;
    const struct run *run = NULL;
    switch (glog_find(g, index, &ref, &run)) {
    case WHERE_NOWHERE:
        return false;
    case WHERE_RUN:
        if (run != *last_run) {
            *last_run = run;
            segment_hold(run->segment);
            buf_bytes(&p->runs, run, sizeof(*run));
        }
        item->kind = READ_RUN;
        item->at = p->runs.len / sizeof(*run) - 1;
        return true;
    case WHERE_CHUNK: {
        const struct piece *piece = arena_piece(&g->worker->arena, ref, &item->at);
        if (piece != NULL) {
            item->kind = READ_WAL;
            item->seq = piece->file_seq;
            return true;
        }
        const uint8_t *ptr = arena_ptr(&g->worker->arena, ref);
        assert(ptr != NULL);  // Not durable, so in memory.
        struct record_disk r;
        memcpy(&r, ptr, sizeof(r));
        item->kind = READ_MEMORY;
        item->at = p->memory.len;
        buf_bytes(&p->memory, ptr, record_size(r.len));
        return true;
    }
    }
    return false;
}

void read_plan_begin(struct read_plan *p, struct glog *g, const uint64_t *indexes, uint32_t count)
{
    *p = (struct read_plan){.worker = g->worker, .group = g->group, .epoch = g->epoch};
    buf_init(&p->runs);
    buf_init(&p->memory);
    p->items = mem_alloc((count > 0 ? count : 1) * sizeof(*p->items));
    const struct run *last_run = NULL;
    for (uint32_t i = 0; i < count; i++) {
        assert(i == 0 || indexes[i] > indexes[i - 1]);
        if (!plan_item(p, g, indexes[i], &last_run)) {
            break;
        }
    }
}

void read_plan_end(struct read_plan *p)
{
    const struct run *runs = (const struct run *)(const void *)p->runs.ptr;
    for (size_t i = 0; i < p->runs.len / sizeof(*runs); i++) {
        segment_release(p->worker, runs[i].segment);
    }
    buf_deinit(&p->runs);
    buf_deinit(&p->memory);
    free(p->items);
    p->items = NULL;
}

// RC_MORE: it is larger than `room`, and was not read for that.
static enum rc item_find(struct cold *cold, struct cold_file f, uint64_t position, uint64_t room)
{
    uint64_t large = 0;
    if (room == UINT64_MAX) {
        return RC_OK;
    }
    TRY(cold_large_size(cold, f, position, &large));
    return large > room ? RC_MORE : RC_OK;
}

static enum rc item_record(struct read_plan *p, const struct read_item *item, uint64_t room, struct span *record)
{
    struct cold *cold = &p->worker->cold;
    struct record_disk r;
    uint64_t position = item->at, size = 0;
    switch (item->kind) {
    case READ_NOWHERE:
        return RC_NOT_FOUND;
    case READ_MEMORY:
        *record = span_of(p->memory.ptr + item->at, p->memory.len - item->at);
        TRY(record_check(*record, &r, &size));
        record->len = size;
        return RC_OK;
    case READ_WAL:
        TRY(item_find(cold, (struct cold_file){.seq = item->seq}, position, room));
        return cold_record(cold, (struct cold_file){.seq = item->seq}, position, p->group, item->index, &r,
                           record);
    case READ_RUN: {
        const struct run *run = (const struct run *)(const void *)p->runs.ptr + item->at;
        const enum rc rc = cold_run_position(cold, run, item->index, &position);
        if (rc != RC_OK) {
            return rc == RC_NOT_FOUND ? RC_CORRUPT : rc;  // What is live in a run's span is in the run.
        }
        struct cold_file f = {.seq = run->segment->seq, .is_segment = true};
        TRY(item_find(cold, f, position, room));
        TRY(cold_record(cold, f, position, p->group, item->index, &r, record));
        return r.term == run->term ? RC_OK : RC_CORRUPT;
    }
    }
    return RC_BUG;
}

enum rc read_plan_execute(struct read_plan *p, size_t bytes_max, struct buf *to)
{
    enum rc rc = RC_OK;
    for (p->read_count = 0; p->read_count < p->items_count; p->read_count++) {
        struct span record;
        if (to->len > 0 && to->len >= bytes_max) {
            break;
        }
        // What has no room is not read for nothing if it is large (cold.h): it may be 128 MiB.
        rc = item_record(p, &p->items[p->read_count], to->len > 0 ? bytes_max - to->len : UINT64_MAX, &record);
        if (rc != RC_OK || (to->len > 0 && to->len + record.len > bytes_max)) {
            rc = rc == RC_MORE ? RC_OK : rc;
            break;
        }
        if (!cold_take(&p->worker->cold, record, to)) {
            buf_span_bytes(to, record);
        }
    }
    cold_end(&p->worker->cold);
    return rc;
}

// ---- glog_read ----------------------------------------------------------------------------------

struct glog_read_job {
    struct plan plan;
    struct read_plan read;
    struct glog_read *request;
};

static void job_free(struct store_worker *w, struct plan *p)
{
    (void)w;
    struct glog_read_job *j = container_of(p, struct glog_read_job, plan);
    read_plan_end(&j->read);
    free(j);
}

static void read_run(struct job *job)
{
    struct glog_read *r = container_of(job, struct glog_read, job);
    struct glog_read_job *j = r->plan;
    r->rc = read_plan_execute(&j->read, r->bytes_max, &r->bytes);
    r->read_count = j->read.read_count;
}

static void read_done(struct job *job)
{
    struct glog_read *r = container_of(job, struct glog_read, job);
    struct glog_read_job *j = r->plan;
    struct store_worker *w = j->read.worker;
    struct glog *g = map_get(&w->groups, r->group);
    uint32_t epoch = j->read.epoch;
    if (g != NULL && g->epoch != epoch) {
        read_plan_end(&j->read);
        read_plan_begin(&j->read, g, r->indexes, r->indexes_count);
        r->bytes.len = 0;
        exec_submit(w->exec, &r->job);
        return;
    }
    plan_end(w, &j->plan);
    r->plan = NULL;
    store_read_failed(w, r->group, r->rc, "an entry, read from disk");
    if (g == NULL) {
        r->rc = RC_NOT_FOUND;
        r->read_count = 0;
        r->bytes.len = 0;
    }
    r->done(r);
}

void glog_read_start(struct glog *g, struct glog_read *r)
{
    assert(r->indexes_count > 0);
    struct glog_read_job *j = mem_zalloc(sizeof(*j));
    j->request = r;
    read_plan_begin(&j->read, g, r->indexes, r->indexes_count);
    plan_begin(g->worker, &j->plan, job_free);
    r->plan = j;
    r->group = g->group;
    r->rc = RC_PENDING;
    r->read_count = 0;
    buf_init(&r->bytes);
    r->job.run = read_run;
    r->job.done = read_done;
    exec_submit(g->worker->exec, &r->job);
}
