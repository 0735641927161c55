// SPDX-License-Identifier: Apache-2.0
// Confirms. The ring holds every publish from `head` to `next`; a word counts the queues still open, plus two
// flags. Flushing walks from head over what is settled (one ack with multiple for each run between nacks),
// then tells those settled out of order one by one and flags them, so that head passes over them later. A
// multiple ack may cover numbers told before: clients have forgotten those already.
#include "node/amqp09/confirms.h"
#include "node/base/mem.h"
#include "proto/amqp09/method.h"
#include <stdlib.h>

enum { REJECTED = 1 << 30, TOLD = 1 << 29, OPEN_MASK = TOLD - 1 };

void confirms_init(struct confirms *c)
{
    *c = (struct confirms){.next = 1, .head = 1};
}

void confirms_deinit(struct confirms *c)
{
    free(c->ring);
    free(c->done);
    *c = (struct confirms){.next = 1, .head = 1};
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
    if (c->next - c->head == c->cap) {
        ring_grow(c);
    }
    uint64_t number = c->next++;
    *slot(c, number) = queues;
    if (queues == 0) {
        done_add(c, number);
    }
    return number;
}

void confirms_settle(struct confirms *c, uint64_t number, bool is_rejected)
{
    uint32_t *word = slot(c, number);
    assert((*word & OPEN_MASK) > 0);
    *word = (*word - 1) | (is_rejected ? (uint32_t)REJECTED : 0);
    if ((*word & OPEN_MASK) == 0) {
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

void confirms_flush(struct confirms *c, struct buf *out, uint16_t channel)
{
    uint64_t run_last = 0;
    uint32_t run = 0;
    while (c->head < c->next && (*slot(c, c->head) & OPEN_MASK) == 0) {
        uint32_t word = *slot(c, c->head);
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
    for (uint32_t i = 0; i < c->done_count; i++) {
        if (c->done[i] < c->head) {
            continue;
        }
        uint32_t *word = slot(c, c->done[i]);
        if (*word & REJECTED) {
            nack(out, channel, c->done[i], false);
        } else {
            ack(out, channel, c->done[i], false);
        }
        *word |= TOLD;
    }
    c->done_count = 0;
}
