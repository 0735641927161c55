// SPDX-License-Identifier: Apache-2.0
// The loop of a worker: a mailbox drained and a turn run in the prepare phase of each iteration, so that whatever the
// poll phase read is worked off and flushed before the loop waits again. One uv_async wakes it, one uv_timer holds the
// nearest deadline.
#include "node/server/worker.h"
#include "node/base/block.h"
#include "node/base/env.h"
#include "node/base/mem.h"
#include "node/server/inbox.h"
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

enum { SWEEP_BYTES = 1 << 20 };  // Of large bodies freed in a turn: a quarter of a millisecond.

struct post {
    struct job job;  // First; done runs fn.
    void (*fn)(void *arg);
    void *arg;
};

struct worker {
    struct worker_config config;
    uv_loop_t loop;
    uv_async_t async;
    uv_prepare_t prepare;
    uv_timer_t timer;
    struct inbox inbox;
    pthread_t thread;
    _Atomic bool shared_stop;  // Set by worker_stop, release.
    bool is_stopping;          // Worker's own.
};

static void drain(struct worker *w)
{
    for (struct job *j = inbox_take(&w->inbox); j;) {
        struct job *next = inbox_next(j);
        j->done(j);
        j = next;
    }
}

static void on_timer(uv_timer_t *t)
{
    (void)t;  // The turn follows in this iteration.
}

static void on_async(uv_async_t *a)
{
    (void)a;
}

static void close_all(struct worker *w)
{
    w->is_stopping = true;
    w->config.stopping(w->config.ctx);
    uv_close((uv_handle_t *)&w->async, NULL);
    uv_close((uv_handle_t *)&w->prepare, NULL);
    uv_close((uv_handle_t *)&w->timer, NULL);
}

static void on_prepare(uv_prepare_t *p)
{
    struct worker *w = p->data;
    drain(w);
    if (atomic_load_explicit(&w->shared_stop, memory_order_acquire)) {
        close_all(w);
        return;
    }
    uint64_t deadline = w->config.turn(w->config.ctx);
    // What the turn itself posted to this worker must not wait for a wake-up that has been eaten.
    if (atomic_load_explicit(&w->inbox.shared_head, memory_order_relaxed)) {
        deadline = 0;
    }
    if (block_sweep(SWEEP_BYTES)) {
        deadline = 0;
    }
    if (deadline == UINT64_MAX) {
        uv_timer_stop(&w->timer);
        return;
    }
    uint64_t now = clock_mono_ns(env_system_clock());
    uint64_t wait_ms = deadline <= now ? 0 : (deadline - now + 999999) / 1000000;
    uv_update_time(&w->loop);
    uv_timer_start(&w->timer, on_timer, wait_ms, 0);
}

enum rc worker_create(const struct worker_config *config, struct worker **out)
{
    struct worker *w = mem_zalloc(sizeof(*w));
    w->config = *config;
    inbox_init(&w->inbox);
    if (uv_loop_init(&w->loop) != 0 || uv_async_init(&w->loop, &w->async, on_async) != 0) {
        free(w);
        return RC_SYSTEM;
    }
    uv_prepare_init(&w->loop, &w->prepare);
    uv_timer_init(&w->loop, &w->timer);
    w->prepare.data = w;
    uv_prepare_start(&w->prepare, on_prepare);
    *out = w;
    return RC_OK;
}

static void *thread_main(void *arg)
{
    struct worker *w = arg;
    pthread_setname_np(pthread_self(), w->config.name);
    w->config.started(w->config.ctx);
    uv_run(&w->loop, UV_RUN_DEFAULT);
    (void)block_sweep(SIZE_MAX);  // All of it: no more is left.
    return NULL;
}

enum rc worker_start(struct worker *w)
{
    return pthread_create(&w->thread, NULL, thread_main, w) == 0 ? RC_OK : RC_SYSTEM;
}

void worker_stop(struct worker *w)
{
    atomic_store_explicit(&w->shared_stop, true, memory_order_release);
    worker_wake(w);
}

void worker_join(struct worker *w)
{
    pthread_join(w->thread, NULL);
}

void worker_destroy(struct worker *w)
{
    drain(w);
    uv_loop_close(&w->loop);
    free(w);
}

uv_loop_t *worker_loop(struct worker *w)
{
    return &w->loop;
}

void worker_wake(struct worker *w)
{
    uv_async_send(&w->async);
}

static void run_post(struct job *j)
{
    struct post *p = container_of(j, struct post, job);
    p->fn(p->arg);
    free(p);
}

void worker_give_back(struct worker *w, struct job *job)
{
    if (inbox_push(&w->inbox, job)) {
        worker_wake(w);
    }
}

void worker_post(struct worker *w, void (*fn)(void *arg), void *arg)
{
    struct post *p = mem_zalloc(sizeof(*p));
    p->job.done = run_post;
    p->fn = fn;
    p->arg = arg;
    worker_give_back(w, &p->job);
}
