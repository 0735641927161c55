// SPDX-License-Identifier: Apache-2.0
// One thread, one inbox, an eventfd to sleep on. A job carries its submitter's number through `job->submitter`.
#include "node/server/executor.h"
#include "node/base/mem.h"
#include "node/server/inbox.h"
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct port {
    struct exec exec;  // First: the seam.
    struct executor *executor;
    uint32_t submitter;
};

struct executor {
    struct executor_config config;
    struct inbox inbox;
    int wake_fd;
    _Atomic bool shared_stop;  // Set once, release; seen after a wake-up, acquire.
    pthread_t thread;
    struct port *ports;
};

static void wake(struct executor *e)
{
    uint64_t one = 1;
    while (write(e->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

static void submit(struct exec *exec, struct job *job)
{
    struct port *p = container_of(exec, struct port, exec);
    job->submitter = p;
    if (inbox_push(&p->executor->inbox, job)) {
        wake(p->executor);
    }
}

static void run_all(struct executor *e)
{
    for (struct job *j = inbox_take(&e->inbox); j;) {
        struct job *next = inbox_next(j);
        struct port *p = j->submitter;
        j->run(j);
        e->config.give_back(e->config.ctx, p->submitter, j);
        j = next;
    }
}

static void *thread_main(void *arg)
{
    struct executor *e = arg;
    pthread_setname_np(pthread_self(), e->config.name);
    for (;;) {
        uint64_t count;
        if (read(e->wake_fd, &count, sizeof(count)) < 0 && errno != EINTR) {
            abort();
        }
        bool stop = atomic_load_explicit(&e->shared_stop, memory_order_acquire);
        run_all(e);
        if (stop) {
            return NULL;
        }
    }
}

enum rc executor_start(const struct executor_config *config, struct executor **out)
{
    struct executor *e = mem_zalloc(sizeof(*e));
    e->config = *config;
    inbox_init(&e->inbox);
    e->wake_fd = eventfd(0, EFD_CLOEXEC);
    e->ports = mem_zalloc(config->submitters * sizeof(*e->ports));
    for (uint32_t i = 0; i < config->submitters; i++) {
        e->ports[i] = (struct port){.exec = {.submit = submit}, .executor = e, .submitter = i};
    }
    if (e->wake_fd < 0 || pthread_create(&e->thread, NULL, thread_main, e) != 0) {
        free(e->ports);
        free(e);
        return RC_SYSTEM;
    }
    *out = e;
    return RC_OK;
}

void executor_stop(struct executor *e)
{
    atomic_store_explicit(&e->shared_stop, true, memory_order_release);
    wake(e);
    pthread_join(e->thread, NULL);
    close(e->wake_fd);
    free(e->ports);
    free(e);
}

struct exec *executor_port(struct executor *e, uint32_t submitter)
{
    assert(submitter < e->config.submitters);
    return &e->ports[submitter].exec;
}
