// SPDX-License-Identifier: Apache-2.0
// Runs the simulator over many seeds on all cores, or one again.
//   sim [--seeds N] [--first S] [--jobs J]      seeds S .. S + N - 1
//   sim --seed S [--verbose]                    one seed, with the hash of its trace
// The last line of output is JSON. Exit status 1 if anything was violated.
#include "node/base/log.h"
#include "tests/sim/sim_apps.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

struct report {
    uint64_t seeds;
    struct sim_counters counters;
};

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
    printf("{\"seeds\":%llu,\"events\":%llu,\"commits\":%llu,\"elections\":%llu,\"crashes\":%llu,\"torn_writes\":%llu,"
           "\"partitions\":%llu,\"violations\":%llu,\"wal_files\":%llu,\"snapshots\":%llu,\"installs\":%llu,\"cold_reads\":%llu,"
           "\"member_changes\":%llu,\"wipes\":%llu,\"flips\":%llu,\"amnesiacs\":%llu,\"full_disks\":%llu,\"settle_ms\":%llu",
           (unsigned long long)r->seeds, (unsigned long long)c->events, (unsigned long long)c->commits,
           (unsigned long long)c->elections, (unsigned long long)c->crashes, (unsigned long long)c->torn_writes,
           (unsigned long long)c->partitions, (unsigned long long)c->violations, (unsigned long long)c->wal_files,
           (unsigned long long)c->snapshots_taken, (unsigned long long)c->snapshots_installed,
           (unsigned long long)c->cold_reads, (unsigned long long)c->member_changes, (unsigned long long)c->wipes,
           (unsigned long long)c->flips, (unsigned long long)c->amnesiacs, (unsigned long long)c->full_disks,
           (unsigned long long)(c->settle_ns / SIM_MS));
    if (trace) {
        printf(",\"trace\":\"%016llx\"", (unsigned long long)*trace);
    }
    printf("}\n");
}

static bool run_seed(uint64_t seed, bool is_verbose, struct report *r, uint64_t *trace)
{
    char violation[512];
    seed_now = seed;
    alarm(30);  // Real seconds: a seed takes some ten milliseconds.
    r->seeds++;
    if (sim_run(seed, &sim_full_app, is_verbose, &r->counters, trace, violation, sizeof(violation))) {
        return true;
    }
    printf("seed %llu: %s\n  run it again: make sim SEED=%llu\n", (unsigned long long)seed, violation,
           (unsigned long long)seed);
    fflush(stdout);
    return false;
}

static void add(struct report *to, const struct report *r)
{
    to->seeds += r->seeds;
    sim_counters_add(&to->counters, &r->counters);
}

// A few seeds in a process of their own, so that an assertion costs no more than those, and no memory piles up.
static void run_batch(uint64_t first, uint64_t seeds, uint64_t step, struct report *total)
{
    int fds[2];
    if (pipe(fds) != 0) {
        perror("pipe");
        _exit(2);
    }
    const pid_t pid = fork();
    if (pid == 0) {
        for (uint64_t i = 0; i < seeds; i++) {
            struct report r = {0};
            uint64_t trace;
            (void)run_seed(first + i * step, false, &r, &trace);
            if (write(fds[1], &r, sizeof(r)) != (ssize_t)sizeof(r)) {
                _exit(2);
            }
        }
        _exit(0);
    }
    close(fds[1]);
    struct report r;
    while (read(fds[0], &r, sizeof(r)) == (ssize_t)sizeof(r)) {
        add(total, &r);
    }
    close(fds[0]);
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        total->seeds++;
        total->counters.violations++;
    }
}

enum { BATCH = 8 };

// Every `jobs`-th seed from first + job on; the report goes up the pipe.
static void run_share(uint64_t first, uint64_t seeds, uint64_t job, uint64_t jobs, int fd)
{
    struct report total = {0};
    uint64_t done = 0;
    const uint64_t mine = seeds / jobs + (job < seeds % jobs);
    while (done < mine) {
        const uint64_t before = total.seeds;
        run_batch(first + job + done * jobs, mine - done < BATCH ? mine - done : BATCH, jobs, &total);
        done += total.seeds - before;
    }
    const ssize_t n = write(fd, &total, sizeof(total));
    _exit(n == (ssize_t)sizeof(total) ? 0 : 2);
}

static int run_many(uint64_t first, uint64_t seeds, uint64_t jobs)
{
    struct report total = {0};
    int fds[256][2];
    uint64_t lost = 0;
    for (uint64_t j = 0; j < jobs; j++) {
        if (pipe(fds[j]) != 0) {
            perror("pipe");
            return 2;
        }
        const pid_t pid = fork();
        if (pid < 0) {
            perror("fork");
            return 2;
        }
        if (pid == 0) {
            close(fds[j][0]);
            run_share(first, seeds, j, jobs, fds[j][1]);
        }
        close(fds[j][1]);
    }
    for (uint64_t j = 0; j < jobs; j++) {
        struct report r;
        if (read(fds[j][0], &r, sizeof(r)) == (ssize_t)sizeof(r)) {
            add(&total, &r);
        } else {
            lost++;
        }
        close(fds[j][0]);
    }
    while (wait(NULL) > 0) {
    }
    total.counters.violations += lost;
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
            fprintf(stderr, "usage: sim [--seeds N] [--first S] [--jobs J] | --seed S [--verbose]\n");
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
    jobs = jobs < 1 ? 1 : jobs > 256 ? 256 : jobs;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (is_one) {
        struct report r = {0};
        uint64_t trace = 0;
        const bool is_ok = run_seed(seed, is_verbose, &r, &trace);
        print_report(&r, &trace);
        return is_ok ? 0 : 1;
    }
    return run_many(first, seeds, jobs);
}
