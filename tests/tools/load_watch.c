// SPDX-License-Identifier: Apache-2.0
// What warren-load did when: lines of JSON on standard output while it runs. Times ("at", "begun") are of
// CLOCK_MONOTONIC, in seconds, so that whoever reads them can compare them with what else went on.
#include "tests/tools/load.h"
#include <stdio.h>
#include <stdlib.h>

static const uint64_t SECOND_NS = 1000000000;
// A queue may wait while every other one has so many messages: that is a turn, not a stall.
static const uint64_t TURN_MESSAGES = 1000;

static struct {
    const struct options *options;
    const struct totals *totals;
    uint64_t second_begun, last_delivery;
    uint64_t published, confirmed, consumed;  // At the beginning of this second.
    uint64_t consumed_last;                   // When looked at last.
    struct {
        uint64_t at, consumed;  // When its last delivery came, and how many of all had come.
    } *queues;
} watch;

void watch_start(const struct options *o, const struct totals *t, uint64_t now)
{
    watch.options = o;
    watch.totals = t;
    watch.second_begun = watch.last_delivery = now;
    watch.published = t->published;
    watch.confirmed = t->confirmed;
    watch.consumed = watch.consumed_last = t->consumed;
    free(watch.queues);
    watch.queues = calloc((size_t)o->queues, sizeof(*watch.queues));
    assert(watch.queues != NULL);
    for (int i = 0; i < o->queues; i++) {
        watch.queues[i].at = now;
        watch.queues[i].consumed = t->consumed;
    }
}

void watch_delivery(uint64_t queue, uint64_t now)
{
    const uint64_t waited = now - watch.queues[queue].at;
    const uint64_t others = watch.totals->consumed - watch.queues[queue].consumed;
    if (watch.options->is_every_second && waited > SECOND_NS &&
        others > TURN_MESSAGES * (uint64_t)watch.options->queues) {
        printf("{\"event\":\"wait\",\"queue\":%llu,\"begun\":%.3f,\"seconds\":%.3f,\"others\":%llu}\n",
               (unsigned long long)queue, (double)watch.queues[queue].at / 1e9, (double)waited / 1e9,
               (unsigned long long)others);
    }
    watch.queues[queue].at = now;
    watch.queues[queue].consumed = watch.totals->consumed;
}

uint64_t watch_last_delivery(void)
{
    return watch.last_delivery;
}

static void second_end(uint64_t now)
{
    const struct totals *t = watch.totals;
    printf("{\"event\":\"second\",\"at\":%.3f,\"seconds\":%.3f,\"published\":%llu,\"confirmed\":%llu,\"consumed\":%llu}\n",
           (double)watch.second_begun / 1e9, (double)(now - watch.second_begun) / 1e9,
           (unsigned long long)(t->published - watch.published),
           (unsigned long long)(t->confirmed - watch.confirmed),
           (unsigned long long)(t->consumed - watch.consumed));
    fflush(stdout);
    watch.second_begun = now;
    watch.published = t->published;
    watch.confirmed = t->confirmed;
    watch.consumed = t->consumed;
}

void watch_step(uint64_t now)
{
    if (watch.totals->consumed != watch.consumed_last) {
        if (watch.options->is_every_second && now - watch.last_delivery > SECOND_NS) {
            printf("{\"event\":\"pause\",\"begun\":%.3f,\"seconds\":%.3f}\n", (double)watch.last_delivery / 1e9,
                   (double)(now - watch.last_delivery) / 1e9);
        }
        watch.consumed_last = watch.totals->consumed;
        watch.last_delivery = now;
    }
    if (watch.options->is_every_second && now - watch.second_begun >= SECOND_NS) {
        second_end(now);
    }
}
