// SPDX-License-Identifier: Apache-2.0
// Confirms. The ring holds every publish from `head` to `next`; a word counts the queues still open, plus two
// flags. Flushing walks from head over what is settled (one ack with multiple for each run between nacks),
// then tells those settled out of order one by one and flags them, so that head passes over them later. A
// multiple ack may cover numbers told before: clients have forgotten those already.
//
// A publish whose queue has no majority may stay open for hours, and the ring would hold all that came after it. So a
// full ring in which little is open is emptied into `late`; while something is there no ack can be a multiple one.
#include "node/amqp09/confirms.h"
#include "node/base/mem.h"
#include "proto/amqp09/method.h"
#include <stdlib.h>

enum { REJECTED = 1 << 30, TOLD = 1 << 29, OPEN_MASK = TOLD - 1 };
enum { PUT_ASIDE_CAP = 1024, PUT_ASIDE_SHARE = 8 };  // From so large a ring on, if at most this share of it is open.

void confirms_init(struct confirms *c)
{
    *c = (struct confirms){.next = 1, .head = 1};
    map_init_u64(&c->late);
}

void confirms_deinit(struct confirms *c)
{
    free(c->ring);
    free(c->done);
    map_deinit(&c->late);
    confirms_init(c);
}

static uint32_t *slot(struct confirms *c, uint64_t number)
{
    assert(number >= c->head && number < c->next);
    return &c->ring[number & (c->cap - 1)];
}

static void ring_grow(struct confirms *c)
{
    uint32_t cap = c->cap == 0 ? 64 : c->cap * 2;
    uint32_t *ring = mem_alloc(cap * sizeof(*ring));
    for (uint64_t n = c->head; n < c->next; n++) {
        ring[n & (cap - 1)] = c->ring[n & (c->cap - 1)];
    }
    free(c->ring);
    c->ring = ring;
    c->cap = cap;
}

static uint32_t late_word(const struct confirms *c, uint64_t number)
{
    const uintptr_t kept = (uintptr_t)map_get(&c->late, number);
    assert(kept != 0);
    return (uint32_t)(kept >> 1);
}

static void late_put(struct confirms *c, uint64_t number, uint32_t word)
{
    map_put(&c->late, number, (void *)((uintptr_t)word << 1 | 1));
}

// False: too much of the ring is open.
static bool put_aside(struct confirms *c)
{
    if (c->cap < PUT_ASIDE_CAP || c->open - map_count(&c->late) > c->cap / PUT_ASIDE_SHARE) {
        return false;
    }
    for (; c->head < c->next; c->head++) {
        if (!(*slot(c, c->head) & TOLD)) {
            late_put(c, c->head, *slot(c, c->head));
        }
    }
    return true;
}

static void done_add(struct confirms *c, uint64_t number)
{
    if (c->done_count == c->done_cap) {
        c->done_cap = c->done_cap == 0 ? 64 : c->done_cap * 2;
        c->done = mem_realloc(c->done, c->done_cap * sizeof(*c->done));
    }
    c->done[c->done_count++] = number;
}

uint64_t confirms_add(struct confirms *c, uint32_t queues)
{
    assert(queues <= OPEN_MASK);
    if (c->next - c->head == c->cap && !put_aside(c)) {
        ring_grow(c);
    }
    uint64_t number = c->next++;
    c->open++;
    *slot(c, number) = queues;
    if (queues == 0) {
        done_add(c, number);
    }
    return number;
}

void confirms_settle(struct confirms *c, uint64_t number, bool is_rejected)
{
    const bool is_late = number < c->head;
    const uint32_t before = is_late ? late_word(c, number) : *slot(c, number);
    assert((before & OPEN_MASK) > 0);
    const uint32_t word = (before - 1) | (is_rejected ? (uint32_t)REJECTED : 0);
    if (is_late) {
        late_put(c, number, word);
    } else {
        *slot(c, number) = word;
    }
    if ((word & OPEN_MASK) == 0) {
        done_add(c, number);
    }
}

static void ack(struct buf *out, uint16_t channel, uint64_t number, bool is_multiple)
{
    amqp_send_basic_ack(out, channel,
                        &(struct amqp_basic_ack){.delivery_tag = number, .multiple = is_multiple});
}

// `requeue` says nothing to a publisher; RabbitMQ sets it.
static void nack(struct buf *out, uint16_t channel, uint64_t number, bool is_multiple)
{
    amqp_send_basic_nack(
        out, channel,
        &(struct amqp_basic_nack){.delivery_tag = number, .multiple = is_multiple, .requeue = true});
}

static void tell_one(struct confirms *c, struct buf *out, uint16_t channel, uint64_t number, uint32_t word)
{
    if (word & REJECTED) {
        nack(out, channel, number, false);
    } else {
        ack(out, channel, number, false);
    }
    c->open--;
}

static void flush_late(struct confirms *c, struct buf *out, uint16_t channel)
{
    for (uint32_t i = 0; i < c->done_count && map_count(&c->late) > 0; i++) {
        if (c->done[i] < c->head) {
            tell_one(c, out, channel, c->done[i], late_word(c, c->done[i]));
            (void)map_remove(&c->late, c->done[i]);  // Its value is the word.
        }
    }
}

// What is settled from head on, in runs.
static void flush_runs(struct confirms *c, struct buf *out, uint16_t channel)
{
    uint64_t run_last = 0;
    uint32_t run = 0;
    while (c->head < c->next && (*slot(c, c->head) & OPEN_MASK) == 0) {
        uint32_t word = *slot(c, c->head);
        c->open -= (word & TOLD) == 0;
        if ((word & (TOLD | REJECTED)) == 0) {
            run_last = c->head;
            run++;
        } else if ((word & TOLD) == 0) {
            if (run > 0) {
                ack(out, channel, run_last, run > 1);
                run = 0;
            }
            nack(out, channel, c->head, true);  // Everything before is settled and told.
        }
        c->head++;
    }
    if (run > 0) {
        ack(out, channel, run_last, run > 1);
    }
}

void confirms_flush(struct confirms *c, struct buf *out, uint16_t channel)
{
    flush_late(c, out, channel);
    if (map_count(&c->late) == 0) {
        flush_runs(c, out, channel);
    }
    for (uint32_t i = 0; i < c->done_count; i++) {
        if (c->done[i] >= c->head) {
            uint32_t *word = slot(c, c->done[i]);
            tell_one(c, out, channel, c->done[i], *word);
            *word |= TOLD;
        }
    }
    while (c->head < c->next && (*slot(c, c->head) & TOLD)) {
        c->head++;
    }
    c->done_count = 0;
}
