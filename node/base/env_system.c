// SPDX-License-Identifier: Apache-2.0
// The real world behind env.h: the only file that asks the system for time and randomness.
#include "node/base/env.h"
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

static uint64_t mono_ns(void *ctx)
{
    (void)ctx;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int64_t wall_ms(void *ctx)
{
    (void)ctx;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

const struct clock *env_system_clock(void)
{
    static const struct clock c = {.mono_ns = mono_ns, .wall_ms = wall_ms, .ctx = NULL};
    return &c;
}

void env_system_random(void *to, uint64_t bytes)
{
    uint8_t *p = to;
    while (bytes > 0) {
        ssize_t n = getrandom(p, bytes, 0);
        if (n <= 0) {
            abort();
        }
        p += n;
        bytes -= (uint64_t)n;
    }
}
