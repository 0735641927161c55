// SPDX-License-Identifier: Apache-2.0
// links: metastore node/base proto consensus consensus/raft consensus/solo gen
// The state machine with real threads: worker 0 is the test, the meta thread runs jobs, a cold thread walks
// snapshots while entries go on being applied. Meant for the thread sanitizer; the end states are compared,
// too.
#include "meta_fixture.h"
#include "metastore/meta_fsm.h"
#include <pthread.h>

// ---- two threads ------------------------------------------------------------------------------------------

struct queue {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct list jobs;
};

struct thread {
    struct exec exec;
    struct queue in;
    struct queue *back;
    bool is_stopping;
    pthread_t id;
};

static void queue_init(struct queue *q)
{
    pthread_mutex_init(&q->mutex, NULL);
    pthread_cond_init(&q->changed, NULL);
    list_init(&q->jobs);
}

static void queue_push(struct queue *q, struct job *j)
{
    pthread_mutex_lock(&q->mutex);
    list_add_tail(&q->jobs, &j->link);
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->mutex);
}

// Waits for one; NULL if `stop` is set and there is none.
static struct job *queue_pop(struct queue *q, const bool *stop)
{
    pthread_mutex_lock(&q->mutex);
    while (list_is_empty(&q->jobs) && !(stop && *stop)) {
        pthread_cond_wait(&q->changed, &q->mutex);
    }
    struct list *l = list_pop(&q->jobs);
    pthread_mutex_unlock(&q->mutex);
    return l ? list_entry(l, struct job, link) : NULL;
}

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    struct job *j;
    while ((j = queue_pop(&t->in, &t->is_stopping)) != NULL) {
        j->run(j);
        queue_push(t->back, j);
    }
    return NULL;
}

static void thread_submit(struct exec *exec, struct job *job)
{
    queue_push(&container_of(exec, struct thread, exec)->in, job);
}

static void thread_start(struct thread *t, struct queue *back)
{
    *t = (struct thread){.exec = {.submit = thread_submit}, .back = back};
    queue_init(&t->in);
    ck_assert_int_eq(pthread_create(&t->id, NULL, thread_main, t), 0);
}

static void thread_stop(struct thread *t)
{
    pthread_mutex_lock(&t->in.mutex);
    t->is_stopping = true;
    pthread_cond_signal(&t->in.changed);
    pthread_mutex_unlock(&t->in.mutex);
    pthread_join(t->id, NULL);
}

// ---- the test ---------------------------------------------------------------------------------------------

static struct queue back;
static uint64_t applied;
static uint64_t told;

static void on_job(void *ctx, struct meta_job *j)
{
    (void)ctx;
    if (j->kind == META_JOB_APPLY) {
        applied = j->last;
    }
    if (j->feed) {
        told = j->feed->index;
    }
}

static void on_role(void *ctx, const struct consensus_status *st)
{
    (void)ctx, (void)st;
}

struct walk {
    struct job job;
    struct fsm_snapshot *snapshot;
    struct buf chunks;  // Of u32 length and bytes.
    uint64_t index;     // The host's applied index when it was begun.
    bool is_done;
};

static void walk_run(struct job *job)
{
    struct walk *w = container_of(job, struct walk, job);
    for (bool is_more = true; is_more;) {
        struct buf chunk = {0};
        is_more = meta_fsm_ops.snapshot_chunk(w->snapshot, &chunk);
        buf_str32(&w->chunks, buf_span(&chunk));
        buf_deinit(&chunk);
    }
}

static void walk_done(struct job *job)
{
    struct walk *w = container_of(job, struct walk, job);
    meta_fsm_ops.snapshot_end(w->snapshot);
    w->is_done = true;
}

static void drain(struct meta_fsm *f, uint32_t in_flight_max)
{
    while (f->in_flight > in_flight_max) {
        struct job *j = queue_pop(&back, NULL);
        j->done(j);
    }
}

START_TEST(snapshots_are_walked_while_entries_are_applied)
{
    enum { ENTRIES = 4000 };
    char *dir = temp_dir();
    queue_init(&back);
    applied = told = 0;
    struct thread meta;
    struct thread cold;
    struct meta_fsm f;
    const struct meta_fsm_config config = {
        .dir = _i == BACK_LMDB ? dir : NULL,
        .map_bytes = 1ull << 30,
        .exec = &meta.exec,
        .node_id = 1,
        .done = on_job,
        .role = on_role,
    };
    bool is_damaged;
    bool is_new;
    ck_assert_int_eq(meta_fsm_open(&f, &config, &is_damaged, &is_new), RC_OK);
    thread_start(&meta, &back);
    thread_start(&cold, &back);
    struct walk w = {.is_done = true};
    struct walk last = {0};
    uint32_t snapshots = 0;
    struct buf payload = {0};
    for (uint64_t i = 1; i <= ENTRIES; i++) {
        char path[32];
        snprintf(path, sizeof(path), "d%u/q%u", (unsigned)(i % 50), (unsigned)(i % 700));
        struct meta_command c;
        meta_command_init(&c);
        const struct meta_path p = path_text(path);
        if (i % 3 == 0) {
            meta_delete(&c, &p, META_IF_ANY, 0);
        } else {
            meta_put(&c, &p, span_str("payload"), META_IF_ANY, 0);
        }
        entry_of(&payload, &c, (struct command_ref){1, 0, i}, i * 50);
        const struct entry e = {.index = i, .term = 1, .kind = RECORD_ENTRY, .payload = buf_span(&payload)};
        const uint32_t n = meta_fsm_ops.apply(&f, &e, 1);
        ck_assert_uint_eq(n, 0);
        drain(&f, 20);
        if (w.is_done && i % 10 == 0) {
            struct fsm_snapshot *s = meta_fsm_ops.snapshot_begin(&f);
            if (s) {
                buf_deinit(&last.chunks);
                last = w;
                w = (struct walk){
                    .job = {.run = walk_run, .done = walk_done}, .snapshot = s, .index = applied};
                snapshots++;
                exec_submit(&cold.exec, &w.job);
            }
        }
    }
    drain(&f, 0);
    while (!w.is_done) {
        struct job *j = queue_pop(&back, NULL);
        j->done(j);
    }
    meta_fsm_submit(&f, META_JOB_COMMIT);  // The transaction ends on the thread that began it.
    drain(&f, 0);
    ck_assert_uint_eq(applied, ENTRIES);
    ck_assert_uint_eq(told, ENTRIES);
    ck_assert_uint_gt(snapshots, 5);
    thread_stop(&meta);
    thread_stop(&cold);
    // The last snapshot is whole and not older than what the host would have cut at.
    struct tree_snapshot_check check;
    tree_snapshot_check_init(&check);
    struct reader r = reader_of(buf_span(&w.chunks));
    while (reader_left(&r) > 0) {
        ck_assert_int_eq(tree_snapshot_check_chunk(&check, reader_str32(&r)), RC_OK);
    }
    ck_assert_int_eq(tree_snapshot_check_end(&check), RC_OK);
    ck_assert_uint_ge(check.meta.applied_index, w.index);
    tree_snapshot_check_deinit(&check);
    ck_assert_int_eq(tree_check(&f.tree), RC_OK);
    meta_fsm_close(&f);
    buf_deinit(&w.chunks);
    buf_deinit(&last.chunks);
    buf_deinit(&payload);
    temp_remove(dir);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("meta_threads");
    TCase *t = tcase_create("threads");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, snapshots_are_walked_while_entries_are_applied, 0, BACKS);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
