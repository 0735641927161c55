// SPDX-License-Identifier: Apache-2.0
// Runs the simulator over many seeds on all cores, or one again.
//   sim [--seeds N] [--first S] [--jobs J] [--terse]   seeds S .. S + N - 1; terse: no events of those that fail
//   sim --seed S [--verbose]                           one seed, with the hash of its trace
// The last line of output is JSON. Exit status 1 if anything was violated.
#include "node/base/log.h"
#include "tests/sim/sim_apps.h"
#include "tests/sim/sim_story.h"
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct report {
    uint64_t seeds;
    uint64_t cost_ns;  // Of a core; of one seed.
    struct sim_counters counters;
};

static bool is_telling = true;  // The events that led to a violation.

enum {
    SEED_S_MAX = 60,     // Real seconds: a seed takes some ten milliseconds of a core, of which there may be little.
    STORIES_MAX = 2,     // Seeds whose events are told, per process: each is run again for it.
    BATCH = 32,
};

// How far the process that runs a batch has come. In memory shared with its parent, for it may end in an assertion.
struct progress {
    uint64_t done;
    uint64_t failed;  // Of the last batch: seed, 0 none.
    char violation[512];
};
static struct progress *progress;

static volatile uint64_t seed_now;

static void on_abort(int number)
{
    char text[96];
    const int n = snprintf(text, sizeof(text), "seed %llu: %s\n", (unsigned long long)seed_now,
                           number == SIGALRM ? "does not come to an end" : "assertion failed");
    const ssize_t written = write(STDOUT_FILENO, text, (size_t)n);
    _exit(written == n ? 128 + number : 1);
}

static void quiet(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

static void print_report(const struct report *r, const uint64_t *trace)
{
    const struct sim_counters *c = &r->counters;
    printf("{\"seeds\":%llu,\"events\":%llu,\"commits\":%llu,\"elections\":%llu,\"crashes\":%llu,\"torn_"
           "writes\":%llu,"
           "\"partitions\":%llu,\"violations\":%llu,\"wal_files\":%llu,\"snapshots\":%llu,\"installs\":%llu,"
           "\"cold_reads\":%llu,"
           "\"member_changes\":%llu,\"wipes\":%llu,\"flips\":%llu,\"amnesiacs\":%llu,\"full_disks\":%llu,"
           "\"slept\":%llu,\"woken_last\":%llu,"
           "\"led_ms\":%llu,\"settle_ms\":%llu",
           (unsigned long long)r->seeds, (unsigned long long)c->events, (unsigned long long)c->commits,
           (unsigned long long)c->elections, (unsigned long long)c->crashes,
           (unsigned long long)c->torn_writes, (unsigned long long)c->partitions,
           (unsigned long long)c->violations, (unsigned long long)c->wal_files,
           (unsigned long long)c->snapshots_taken, (unsigned long long)c->snapshots_installed,
           (unsigned long long)c->cold_reads, (unsigned long long)c->member_changes,
           (unsigned long long)c->wipes, (unsigned long long)c->flips, (unsigned long long)c->amnesiacs,
           (unsigned long long)c->full_disks, (unsigned long long)c->slept, (unsigned long long)c->woken_last,
           (unsigned long long)(c->led_ns / SIM_MS),
           (unsigned long long)(c->settle_ns / SIM_MS));
    if (trace) {
        printf(",\"trace\":\"%016llx\"", (unsigned long long)*trace);
    }
    printf("}\n");
}

static void add(struct report *to, const struct report *r)
{
    to->seeds += r->seeds;
    sim_counters_add(&to->counters, &r->counters);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool run_seed(uint64_t seed, bool is_verbose, uint64_t watched, struct report *r, uint64_t *trace)
{
    char violation[512];
    seed_now = seed;
    alarm(SEED_S_MAX);
    r->seeds++;
    const uint64_t start = cpu_ns();
    const bool is_ok =
        sim_run(seed, &sim_full_app, is_verbose, watched, &r->counters, trace, violation, sizeof(violation));
    r->cost_ns = cpu_ns() - start;
    if (!is_ok) {
        printf("seed %llu: %s\n", (unsigned long long)seed, violation);
        fflush(stdout);
    }
    if (!is_ok && progress && progress->failed == 0) {
        memcpy(progress->violation, violation, sizeof(violation));
        progress->failed = seed;
    }
    return is_ok;
}

static void run_telling(uint64_t seed, uint64_t watched)
{
    struct report r = {0};
    uint64_t trace;
    log_set_sink(NULL, NULL);
    (void)run_seed(seed, true, watched, &r, &trace);
}

static void send_report(int fd, const struct report *r)
{
    if (write(fd, r, sizeof(*r)) != (ssize_t)sizeof(*r)) {
        _exit(2);
    }
}

// A few seeds in a process of their own, so that an assertion costs no more than those, and no memory piles
// up. Reports go down the pipe, which all share (a report is written whole).
static void run_batch(uint64_t first, uint64_t seeds, uint64_t step, int fd)
{
    static uint32_t stories;
    *progress = (struct progress){0};
    const pid_t pid = fork();
    if (pid == 0) {
        for (uint64_t i = 0; i < seeds; i++) {
            struct report r = {0};
            uint64_t trace;
            (void)run_seed(first + i * step, false, 0, &r, &trace);
            send_report(fd, &r);
            progress->done++;
        }
        _exit(0);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        if (progress->failed == 0) {
            progress->failed = first + progress->done * step;
        }
        const struct report r = {.seeds = 1, .counters.violations = 1};
        send_report(fd, &r);
        progress->done++;
    }
    if (progress->failed != 0 && is_telling && stories++ < STORIES_MAX) {
        sim_story_print(progress->failed, progress->violation, run_telling);
    }
}

// Every `jobs`-th seed from first + job on.
static void run_share(uint64_t first, uint64_t seeds, uint64_t job, uint64_t jobs, int fd)
{
    uint64_t done = 0;
    const uint64_t mine = seeds / jobs + (job < seeds % jobs);
    progress = mmap(NULL, sizeof(*progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED) {
        _exit(2);
    }
    while (done < mine) {
        run_batch(first + job + done * jobs, mine - done < BATCH ? mine - done : BATCH, jobs, fd);
        done += progress->done;
    }
    _exit(0);
}

static int compare_costs(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void print_costs(uint64_t *costs, uint64_t count)
{
    if (count == 0) {
        return;
    }
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        sum += costs[i];
    }
    qsort(costs, count, sizeof(*costs), compare_costs);
    const double ms = 1e6;
    printf("a seed costs %.0f ms of a core at the median, %.0f on average, 90 %%: %.0f, 99 %%: %.0f, at most %.0f\n",
           (double)costs[count / 2] / ms, (double)sum / (double)count / ms, (double)costs[count * 9 / 10] / ms,
           (double)costs[count * 99 / 100] / ms, (double)costs[count - 1] / ms);
}

static int run_many(uint64_t first, uint64_t seeds, uint64_t jobs)
{
    struct report total = {0}, r;
    int fds[2];
    if (pipe(fds) != 0) {
        perror("pipe");
        return 2;
    }
    for (uint64_t j = 0; j < jobs; j++) {
        const pid_t pid = fork();
        if (pid < 0) {
            perror("fork");
            return 2;
        }
        if (pid == 0) {
            close(fds[0]);
            run_share(first, seeds, j, jobs, fds[1]);
        }
    }
    close(fds[1]);
    uint64_t *costs = mem_alloc((seeds + 1) * sizeof(*costs));
    while (read(fds[0], &r, sizeof(r)) == (ssize_t)sizeof(r)) {
        if (total.seeds < seeds) {
            costs[total.seeds] = r.cost_ns;
        }
        add(&total, &r);
    }
    while (wait(NULL) > 0) {
    }
    print_costs(costs, total.seeds < seeds ? total.seeds : seeds);
    free(costs);
    if (total.seeds < seeds) {
        printf("%llu seeds did not run\n", (unsigned long long)(seeds - total.seeds));
        total.counters.violations++;
    }
    print_report(&total, NULL);
    return total.counters.violations == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    uint64_t seeds = 100, first = 1, seed = 0, jobs = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    bool is_verbose = false, is_one = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--verbose") == 0) {
            is_verbose = true;
            continue;
        }
        if (strcmp(argv[i], "--terse") == 0) {
            is_telling = false;
            continue;
        }
        if (strcmp(argv[i], "--seeds") == 0) {
            seeds = strtoull(value, NULL, 10);
        } else if (strcmp(argv[i], "--first") == 0) {
            first = strtoull(value, NULL, 10);
        } else if (strcmp(argv[i], "--seed") == 0) {
            seed = strtoull(value, NULL, 10);
            is_one = true;
        } else if (strcmp(argv[i], "--jobs") == 0) {
            jobs = strtoull(value, NULL, 10);
        } else {
            fprintf(stderr, "usage: sim [--seeds N] [--first S] [--jobs J] [--terse] | --seed S [--verbose]\n");
            return 2;
        }
        i++;
    }
    if (!is_verbose) {
        log_set_sink(quiet, NULL);
    }
    signal(SIGABRT, on_abort);
    signal(SIGSEGV, on_abort);
    signal(SIGALRM, on_abort);
    // Keeps what it got: a seed allocates and frees some megabytes over and over.
    (void)mallopt(M_MMAP_THRESHOLD, 64 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 256 << 20);
    jobs = jobs < 1 ? 1 : jobs > 256 ? 256 : jobs;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (is_one) {
        struct report r = {0};
        uint64_t trace = 0;
        const bool is_ok = run_seed(seed, is_verbose, 0, &r, &trace);
        if (!is_ok && !is_verbose) {
            printf("  what happened: make sim SEED=%llu V=1\n", (unsigned long long)seed);
        }
        print_report(&r, &trace);
        return is_ok ? 0 : 1;
    }
    return run_many(first, seeds, jobs);
}
