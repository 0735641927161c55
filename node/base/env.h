// SPDX-License-Identifier: Apache-2.0
// The world, injected: clock and random numbers as passed to everything that would otherwise ask the system.
// (Disk: consensus/wal/disk.h. Network: consensus/host/net.h. Threads: rings, ring.h, driven by node/server.)
// Nothing outside env_system.c reads time or randomness from the operating system.
#pragma once
#include <stdint.h>

// xoshiro256**; deterministic for a seed. One per owner thread.
struct rng {
    uint64_t s[4];
};
void rng_seed(struct rng *r, uint64_t seed);
uint64_t rng_next(struct rng *r);
// Uniform in [0, n); n > 0.
uint64_t rng_below(struct rng *r, uint64_t n);

struct clock {
    uint64_t (*mono_ns)(void *ctx);  // Monotonic nanoseconds. Cheap; callers still cache it per loop turn.
    int64_t (*wall_ms)(void *ctx);   // Milliseconds since 1970; used only to stamp commands and for people.
    void *ctx;
};
static inline uint64_t clock_mono_ns(const struct clock *c)
{
    return c->mono_ns(c->ctx);
}
static inline int64_t clock_wall_ms(const struct clock *c)
{
    return c->wall_ms(c->ctx);
}

// The real clock, and real randomness to seed an rng or mint an id.
const struct clock *env_system_clock(void);
void env_system_random(void *to, uint64_t bytes);
