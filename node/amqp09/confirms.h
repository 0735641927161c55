// SPDX-License-Identifier: Apache-2.0
// Publisher confirms of one channel (data-plane §1.11): which publishes have which outcome, and the fewest
// frames that tell it.
//
// A publish routed to several queues is confirmed when all have it, and nacked once if any refused it.
// Outcomes are gathered over a loop turn and told at its end: everything up to the lowest open publish with
// multiple acks, the rest one by one.
//
// Owner thread: the channel's. Memory: one 32-bit word per publish since the oldest open one, grown by doubling; but few
// that stay open for long, while many others come and go, are put aside, so that it follows the number of open ones.
#pragma once
#include "node/base/buf.h"
#include "node/base/map.h"

struct confirms {
    bool is_on;
    uint64_t next;   // Number of the next publish; the first is 1.
    uint64_t head;   // Lowest number in the ring whose outcome has not been told.
    uint64_t open;   // Numbers whose outcome has not been told.
    struct map late; // Those of them below head: their words, shifted by one, with a bit that says that they are there.
    uint32_t *ring;  // By number: open queues and flags.
    uint32_t cap;    // Power of two or 0.
    uint64_t *done;  // Numbers that got their outcome since the last flush.
    uint32_t done_count, done_cap;
};

void confirms_init(struct confirms *c);
void confirms_deinit(struct confirms *c);
// Takes a publish going to `queues` queues (0: its outcome is there at once) and returns its number.
uint64_t confirms_add(struct confirms *c, uint32_t queues);
// One queue's outcome for `number`.
void confirms_settle(struct confirms *c, uint64_t number, bool is_rejected);
// Appends basic.ack and basic.nack frames for everything that got its outcome.
void confirms_flush(struct confirms *c, struct buf *out, uint16_t channel);
static inline bool confirms_has_news(const struct confirms *c)
{
    return c->done_count > 0;
}
static inline uint64_t confirms_open(const struct confirms *c)
{
    return c->open;
}
