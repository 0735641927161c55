// SPDX-License-Identifier: Apache-2.0
// What warren-load's declarers do: `declare` queues named QUEUE-0, QUEUE-1, ... are declared (or looked at,
// by a passive declare, which the queue's leader has to answer for its counts), spread over the connections,
// each with a window of declares without an answer. Answers of a channel come in order. Counted as published
// and confirmed.
#include "tests/tools/load.h"
#include <stdio.h>
#include <stdlib.h>

// How many of the queues are this connection's.
static uint64_t share(const struct connection *c)
{
    const uint64_t all = c->options->declare, of = (uint64_t)c->options->producers;
    return all / of + (c->number < all % of);
}

void declarer_start(struct connection *c)
{
    c->is_producer = true;
    c->sent_cap = c->options->window;
    c->sent_at = calloc(c->sent_cap, sizeof(uint64_t));
    assert(c->sent_at != NULL);
}

void declarer_send(struct connection *c, uint64_t now)
{
    const struct options *o = c->options;
    uint64_t end = share(c);
    end = c->first_open + o->window < end ? c->first_open + o->window : end;
    for (; c->next < end; c->next++) {
        char name[256];
        const uint64_t number = c->next * (uint64_t)o->producers + c->number;
        const int len = snprintf(name, sizeof(name), "%s-%llu", o->queue, (unsigned long long)number);
        amqp_send_queue_declare(&c->out, 1,
                                &(struct amqp_queue_declare){.queue = span_of(name, (size_t)len),
                                                             .durable = !o->is_passive,
                                                             .passive = o->is_passive});
        c->sent_at[c->next % c->sent_cap] = now;
        c->totals->published++;
    }
}

bool declarer_is_done(const struct connection *c)
{
    return c->is_failed || c->first_open == share(c);
}

void declarer_on_method(struct connection *c, const struct amqp_method *m)
{
    if (m->id != AMQP_QUEUE_DECLARE_OK_ID || c->first_open == c->next) {
        connection_fail(c, "%s was not expected", amqp_method_name(m->id));
        return;
    }
    histogram_add(&c->totals->confirm, now_ns() - c->sent_at[c->first_open % c->sent_cap]);
    c->first_open++;
    c->totals->confirmed++;
}
