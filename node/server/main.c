// SPDX-License-Identifier: Apache-2.0
// The program: command line, configuration, start, signals.
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/server/node.h"
#include <sched.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static const char usage_text[] =
    "warren [--config FILE] [--data-dir DIR] [--node NAME@HOST] [--version]\n\n"
    "A message broker. FILE is in rabbitmq.conf syntax; without one /etc/warren/warren.conf is read if it is there.\n";

static void set(char **to, const char *value)
{
    free(*to);
    *to = mem_strndup(value, strlen(value));
}

static void print_lines(enum log_level level, struct buf *text)
{
    char *at = (char *)text->ptr, *end = at + text->len;
    while (at < end) {
        char *line_end = memchr(at, '\n', (size_t)(end - at));
        size_t n = line_end ? (size_t)(line_end - at) : (size_t)(end - at);
        log_write(level, "%.*s", (int)n, at);
        at += n + 1;
    }
}

static void configure(int argc, char **argv, struct node_config *c)
{
    const char *file = access("/etc/warren/warren.conf", R_OK) == 0 ? "/etc/warren/warren.conf" : NULL;
    const char *data_dir = NULL, *name = NULL;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--version") == 0) {
            puts("warren (compatible with RabbitMQ 4.3.6)");
            exit(0);
        } else if (strcmp(argv[i], "--help") == 0) {
            fputs(usage_text, stdout);
            exit(0);
        } else if (value && strcmp(argv[i], "--config") == 0) {
            file = argv[++i];
        } else if (value && strcmp(argv[i], "--data-dir") == 0) {
            data_dir = argv[++i];
        } else if (value && strcmp(argv[i], "--node") == 0) {
            name = argv[++i];
        } else {
            fprintf(stderr, "warren: unknown or incomplete option '%s'\n\n%s", argv[i], usage_text);
            exit(64);
        }
    }
    struct buf warnings = {0}, error = {0};
    enum rc rc = node_config_load(c, file, &warnings, &error);
    if (rc == RC_OK) {
        if (data_dir) {
            set(&c->data_dir, data_dir);
        }
        if (name) {
            set(&c->node_name, name);
        }
        rc = node_config_finish(c, &error);
    }
    if (rc != RC_OK) {
        log_critical("%.*s", (int)error.len, (const char *)error.ptr);
        exit(78);
    }
    log_set_node(c->node_name);
    log_set_level((enum log_level)c->log_level);
    print_lines(LOG_WARNING, &warnings);
    buf_deinit(&warnings);
}

// Large messages get pages of their own, given back when they are gone: left to itself the allocator learns
// from the first large block freed to keep such blocks in its heap, where what lies behind them pins them (80
// MB after five of 16 MiB).
// Chunks of 1 MiB, which come and go at full rate, stay in the heap.
static void configure_memory(void)
{
    mallopt(M_MMAP_THRESHOLD, 2 << 20);
    mallopt(M_TRIM_THRESHOLD, 8 << 20);
    mallopt(M_ARENA_MAX, 2);  // Threads allocate little: not a heap for each.
}

// Idle clients cost a descriptor each: take all we may.
static void raise_descriptor_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &r) != 0) {
            log_warning("the limit of open files stays at %llu", (unsigned long long)r.rlim_cur);
        }
    }
}

static sigset_t signals;       // Those that end the process; blocked everywhere, taken by the main thread.
static bool is_told_to_end;    // Somebody else sent one: this process does not start itself again.

// What this process asks of itself has a signal of its own: of one that is pending the kernel drops a second, whoever
// sends it.
enum { OWN_REQUEST = SIGUSR1 };

// Takes a signal that somebody else sent, and those of this process that stand before it; waits no longer than `wait`.
static bool take_signal(const struct timespec *wait)
{
    for (int signal; (signal = sigtimedwait(&signals, NULL, wait)) > 0;) {
        if (signal != OWN_REQUEST) {
            is_told_to_end = true;
            return true;
        }
    }
    return false;
}

// Waits a little for another signal: whoever insists gets an end at once.
static bool is_hurried(void)
{
    const struct timespec wait = {.tv_nsec = 5000000};
    return take_signal(&wait);
}

// A moment of a start that waits for room on the disk.
static bool pause_start(void)
{
    const struct timespec wait = {.tv_sec = 1};
    return take_signal(&wait);
}

static void request_stop(void)
{
    kill(getpid(), OWN_REQUEST);
}

// A process that starts itself again keeps its id and what is pending. It may have asked itself to stop more than once: that is
// done. True: somebody else asked for it, too.
static bool was_told_to_end(void)
{
    const struct timespec none = {0};
    return take_signal(&none);
}

// Decision 5: one core is left to the log, the kernel's network and the other threads.
static uint32_t default_workers(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    const int cores =
        sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return cores <= 2 ? 1 : cores - 1 > WORKERS_MAX ? WORKERS_MAX : (uint32_t)(cores - 1);
}

int main(int argc, char **argv)
{
    pthread_setname_np(pthread_self(), "warren");  // After a start of its own it is named for the link it was started through.
    struct node *n = mem_zalloc(sizeof(*n));
    configure(argc, argv, &n->config);
    configure_memory();
    raise_descriptor_limit();
    signal(SIGPIPE, SIG_IGN);
    // Signals are taken by this thread alone; all others inherit the mask.
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, OWN_REQUEST);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (was_told_to_end()) {
        log_notice("stopping");
        return 0;
    }

    n->stop_requested = request_stop;
    n->pause = pause_start;
    if (n->config.workers == 0) {
        n->config.workers = default_workers();
    }
    log_notice("starting node %s on %s", n->config.node_name, n->config.data_dir);
    struct buf error = {0};
    enum rc rc = node_create(n, &error);
    if (rc == RC_SHUTDOWN) {
        log_notice("stopping");
        return 0;
    }
    if (rc != RC_OK || node_start(n, &error) != RC_OK) {
        log_critical("%.*s", (int)error.len, (const char *)error.ptr);
        return 69;
    }
    int taken;
    while ((taken = sigwaitinfo(&signals, NULL)) <= 0) {
    }
    is_told_to_end = taken != OWN_REQUEST;
    log_notice("stopping");
    node_drain(n, is_hurried);
    node_stop(n);
    if (atomic_load_explicit(&n->shared_restart, memory_order_acquire) && !is_told_to_end) {
        log_notice("starting again");
        execv("/proc/self/exe", argv);
        log_critical("cannot start again; start the node by hand");
        return 71;
    }
    return atomic_load_explicit(&n->shared_has_failed, memory_order_acquire) && !is_told_to_end ? 69 : 0;
}
