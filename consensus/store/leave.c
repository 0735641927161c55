// SPDX-License-Identifier: Apache-2.0
// The last step of a retirement: a WAL file whose content is elsewhere leaves.
//
// It waits until (a) cold reads that may still look into the file have run and (b) everything laid down before the
// publication is durable; the last worker to come here writes the checkpoint, and then the file is free.
//
// (b) because plan and checkpoint go by the log in memory, which may be ahead of the disk by a truncation; a crash must
// not bring back a tail whose middle is gone.
#include "consensus/store/core.h"
#include <inttypes.h>

struct leaving {
    struct list link;
    struct plan plan;
    struct job job;
    struct store_worker *worker;
    uint64_t seq;
    uint64_t after;        // Submission that makes the published state durable.
    bool is_barrier_done;  // Cold reads from before the publication have run.
    struct buf lines;
    uint32_t lines_count;
};

struct checkpoint_job {
    struct plan plan;
    struct job job;
    struct store_worker *worker;
    struct round *round;
    enum rc rc;
};

static void leaving_free(struct store_worker *w, struct plan *p)
{
    (void)w;
    struct leaving *l = container_of(p, struct leaving, plan);
    buf_deinit(&l->lines);
    free(l);
}

static void barrier_run(struct job *job)
{
    (void)job;  // Only its place in the executor's order counts.
}

static void barrier_done(struct job *job)
{
    container_of(job, struct leaving, job)->is_barrier_done = true;
}

void leave_begin(struct store_worker *w, uint64_t seq)
{
    struct leaving *l = mem_zalloc(sizeof(*l));
    l->worker = w;
    l->seq = seq;
    l->after = w->submitted + 1;
    buf_init(&l->lines);
    uint32_t pos = 0;
    const struct glog *g;
    while ((g = map_next(&w->groups, &pos, NULL, NULL)) != NULL) {
        checkpoint_add(&l->lines, g, g->runs_count == 0 ? 0 : run_last(&g->runs[g->runs_count - 1]));
        l->lines_count++;
    }
    plan_begin(w, &l->plan, leaving_free);
    list_add_tail(&w->leaving, &l->link);
    l->job = (struct job){.run = barrier_run, .done = barrier_done};
    exec_submit(w->exec, &l->job);
}

static void checkpoint_free(struct store_worker *w, struct plan *p)
{
    (void)w;
    struct checkpoint_job *c = container_of(p, struct checkpoint_job, plan);
    buf_deinit(&c->round->lines);
    free(c->round);
    free(c);
}

static void checkpoint_run(struct job *job)
{
    struct checkpoint_job *c = container_of(job, struct checkpoint_job, job);
    struct store *s = c->worker->store;
    pthread_mutex_lock(&s->mutex);
    const bool is_late = c->round->seq <= s->checkpoint_seq;  // It had to wait for room, and a newer one was written.
    pthread_mutex_unlock(&s->mutex);
    if (is_late) {
        c->rc = RC_OK;
        return;
    }
    c->rc = checkpoint_write_full(s, c->round->seq, buf_span(&c->round->lines), c->round->lines_count);
    if (c->rc == RC_NO_SPACE) {
        return;
    }
    if (c->rc != RC_OK) {
        log_critical("store: checkpoint %" PRIu64 " failed: %s", c->round->seq, rc_text(c->rc));
        return;
    }
    pthread_mutex_lock(&s->mutex);
    uint64_t before = s->checkpoint_seq;
    s->checkpoint_seq = c->round->seq > before ? c->round->seq : before;
    pthread_mutex_unlock(&s->mutex);
    compaction_due(s);
    if (before != 0 && before < c->round->seq) {
        checkpoint_remove(s->config.disk, before);
    }
}

// Keeps the newest checkpoint for which there was no room: it says all that older ones would have said. True:
// `c` is older.
static bool is_superseded(struct store_worker *w, struct checkpoint_job *c)
{
    struct checkpoint_job *before = w->stuck_checkpoint;
    if (before != NULL && before->round->seq > c->round->seq) {
        return true;
    }
    w->stuck_checkpoint = c;
    if (before != NULL) {
        plan_end(w, &before->plan);
    }
    return false;
}

void checkpoint_again(struct store_worker *w)
{
    struct checkpoint_job *c = w->stuck_checkpoint;
    if (c != NULL) {
        w->stuck_checkpoint = NULL;
        exec_submit(w->exec, &c->job);
    }
}

static void checkpoint_done(struct job *job)
{
    struct checkpoint_job *c = container_of(job, struct checkpoint_job, job);
    struct store_worker *w = c->worker;
    struct store *s = w->store;
    uint64_t from = 1, to = 0;
    if (c->rc == RC_NO_SPACE && !is_superseded(w, c)) {
        return;
    }
    if (c->rc == RC_OK) {
        pthread_mutex_lock(&s->mutex);
        from = s->retired_through + 1;
        to = c->round->seq;
        s->retired_through = to >= from ? to : s->retired_through;
        pthread_mutex_unlock(&s->mutex);
    }
    plan_end(w, &c->plan);
    for (uint64_t seq = from; seq <= to; seq++) {
        w->hooks.wal_retired(w->hooks.ctx, seq);
    }
}

// This worker is through with a file. The last one writes the checkpoint.
static void leave_finish(struct store_worker *w, struct leaving *l)
{
    struct store *s = w->store;
    struct round *mine = NULL;
    bool is_last;
    pthread_mutex_lock(&s->mutex);
    list_each(item, &s->rounds)
    {
        struct round *r = list_entry(item, struct round, link);
        if (r->seq == l->seq) {
            mine = r;
        }
    }
    if (mine == NULL) {
        mine = mem_zalloc(sizeof(*mine));
        mine->seq = l->seq;
        buf_init(&mine->lines);
        list_add_tail(&s->rounds, &mine->link);
    }
    buf_span_bytes(&mine->lines, buf_span(&l->lines));
    mine->lines_count += l->lines_count;
    mine->workers_done++;
    is_last = mine->workers_done == s->config.workers;
    if (is_last) {
        list_remove(&mine->link);
    }
    pthread_mutex_unlock(&s->mutex);
    list_remove(&l->link);
    plan_end(w, &l->plan);
    if (is_last) {
        struct checkpoint_job *c = mem_zalloc(sizeof(*c));
        c->worker = w;
        c->round = mine;
        c->job = (struct job){.run = checkpoint_run, .done = checkpoint_done};
        plan_begin(w, &c->plan, checkpoint_free);
        exec_submit(w->exec, &c->job);
    }
}

void leave_pump(struct store_worker *w)
{
    bool all_durable = w->completed == w->submitted && !arena_has_pending(&w->arena);
    while (!list_is_empty(&w->leaving)) {
        struct leaving *l = list_entry(w->leaving.next, struct leaving, link);
        if (!l->is_barrier_done || (!all_durable && l->after > w->completed)) {
            break;
        }
        leave_finish(w, l);
    }
}
