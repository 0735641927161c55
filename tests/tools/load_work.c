// SPDX-License-Identifier: Apache-2.0
// What warren-load's producers and consumers do. A body begins with the time of publishing, the producer's
// and the message's number; the rest is a stretch of a fixed pattern that begins at a place given by the
// number, so that a consumer can tell damaged bodies frame by frame without keeping them.
#include "tests/tools/load.h"
#include <endian.h>
#include <stdlib.h>

static uint8_t pattern[PATTERN_BYTES * 2 + FRAME_MAX];

static void pattern_make(void)
{
    uint32_t x = 2463534242;
    for (size_t i = 0; i < PATTERN_BYTES && pattern[0] == 0; i++) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        pattern[i] = (uint8_t)(x | 1);
    }
    for (size_t i = PATTERN_BYTES; i < sizeof(pattern); i++) {
        pattern[i] = pattern[i - PATTERN_BYTES];
    }
}
// What stands at `at` of message `number`, for FRAME_MAX bytes.
static const uint8_t *pattern_at(uint64_t number, uint64_t at)
{
    return pattern + (number * 31 + at) % PATTERN_BYTES;
}

void histogram_add(struct histogram *h, uint64_t ns)
{
    const uint64_t us = ns / 1000;
    uint64_t at = us;
    if (us >= 64) {
        const uint64_t power = 63 - (uint64_t)__builtin_clzll(us);
        at = (power - 5) * 64 + ((us >> (power - 6)) & 63);
    }
    h->count[at < HISTOGRAM_BUCKETS ? at : HISTOGRAM_BUCKETS - 1]++;
    h->total++;
    h->max_us = us > h->max_us ? us : h->max_us;
}

double histogram_quantile_ms(const struct histogram *h, double q)
{
    uint64_t below = 0;
    for (uint64_t i = 0; i < HISTOGRAM_BUCKETS && h->total > 0; i++) {
        below += h->count[i];
        if ((double)below >= q * (double)h->total) {
            const uint64_t power = i / 64 + 5;
            const uint64_t us = i < 64 ? i : ((uint64_t)1 << power) + ((i & 63) << (power - 6));
            return (double)us / 1000.0;
        }
    }
    return 0;
}

// ---- producer ---------------------------------------------------------------------------------------------------

void producer_start(struct connection *c)
{
    pattern_make();
    const uint64_t window = c->options->window;
    c->is_producer = true;
    c->is_deaf = c->options->is_deaf_producer;
    // A deaf producer has no window: what bounds it is the broker that reads no more.
    c->sent_cap = window == 0 || c->is_deaf ? 1 : window;
    c->sent_at = calloc(c->sent_cap, sizeof(uint64_t));
    c->highest_seen = calloc((size_t)c->options->queues, sizeof(uint64_t));
    assert(c->sent_at != NULL && c->highest_seen != NULL);
    if (window > 0) {
        amqp_send_confirm_select(&c->out, 1, &(struct amqp_confirm_select){.nowait = true});
    }
}

static void put_message(struct connection *c, uint64_t now)
{
    const struct options *o = c->options;
    const char *queue = o->names[c->next % (uint64_t)o->queues];
    amqp_send_basic_publish(&c->out, 1, &(struct amqp_basic_publish){.routing_key = span_str(queue)});
    size_t at = amqp_frame_begin(&c->out, AMQP_FRAME_HEADER, 1);
    buf_u16be(&c->out, CONTENT_CLASS_BASIC);
    buf_u16be(&c->out, 0);
    buf_u64be(&c->out, o->size);
    content_properties_put(&c->out,
                           &(struct content_properties){.flags = PROPERTY_DELIVERY_MODE, .delivery_mode = 2});
    amqp_frame_end(&c->out, at);
    for (uint64_t done = 0; done < o->size;) {
        uint64_t n = o->size - done < FRAME_MAX - AMQP_FRAME_EMPTY_BYTES ? o->size - done
                                                                         : FRAME_MAX - AMQP_FRAME_EMPTY_BYTES;
        const uint64_t next = done + n;
        at = amqp_frame_begin(&c->out, AMQP_FRAME_BODY, 1);
        if (done == 0) {
            buf_u64be(&c->out, now);
            buf_u64be(&c->out, c->id);
            buf_u64be(&c->out, c->next);
            done = BODY_HEAD_BYTES;
            n -= BODY_HEAD_BYTES;
        }
        buf_bytes(&c->out, pattern_at(c->next, done), n);
        amqp_frame_end(&c->out, at);
        done = next;
    }
}

void producer_publish(struct connection *c, uint64_t begun_ns, uint64_t now)
{
    const struct options *o = c->options;
    uint64_t end = o->count > 0 ? o->count : UINT64_MAX;
    if (o->rate > 0) {
        const uint64_t due = (uint64_t)((double)(now - begun_ns) * o->rate / 1e9) + 1;
        end = due < end ? due : end;
    }
    if (o->window > 0 && !c->is_deaf && c->first_open + o->window < end) {
        end = c->first_open + o->window;
    }
    while (c->next < end && c->out.len - c->out_at < OUTPUT_BYTES) {
        put_message(c, now);
        c->sent_at[c->next % c->sent_cap] = now;
        c->next++;
        c->totals->published++;
    }
}

bool producer_is_done(const struct connection *c)
{
    return c->is_failed || (c->options->count > 0 && c->next == c->options->count &&
                            (c->options->window == 0 || c->first_open == c->next) && c->out_at == c->out.len);
}

static void on_confirm(struct connection *c, uint64_t tag, bool is_multiple, bool is_ack)
{
    const uint64_t now = now_ns();
    if (tag == 0 || tag > c->next) {
        connection_fail(c, "a confirm of %llu, which was not published", (unsigned long long)tag);
        return;
    }
    for (uint64_t n = is_multiple ? c->first_open : tag - 1; n < tag; n++) {
        if (bits_set(&c->confirmed, n)) {
            continue;
        }
        histogram_add(&c->totals->confirm, now - c->sent_at[n % c->sent_cap]);
        if (is_ack) {
            c->totals->confirmed++;
        } else {
            c->totals->nacked++;
            bits_set(&c->seen, n);  // Not to be missed.
        }
    }
    while (c->first_open < c->next && bits_has(&c->confirmed, c->first_open)) {
        c->first_open++;
    }
}

void producer_on_method(struct connection *c, const struct amqp_method *m)
{
    if (m->id == AMQP_BASIC_ACK_ID) {
        on_confirm(c, m->basic_ack.delivery_tag, m->basic_ack.multiple, true);
    } else if (m->id == AMQP_BASIC_NACK_ID) {
        on_confirm(c, m->basic_nack.delivery_tag, m->basic_nack.multiple, false);
    }
}

// ---- consumer
// ------------------------------------------------------------------------------------------------------

void consumer_start(struct connection *c)
{
    pattern_make();
    if (c->options->prefetch > 0) {
        amqp_send_basic_qos(&c->out, 1,
                            &(struct amqp_basic_qos){.prefetch_count = (uint16_t)c->options->prefetch});
    }
    for (int i = 0; i < c->options->queues; i++) {
        if (options_is_share(c->options, i, connection_number(c), c->options->consumers)) {
            const char *queue = c->options->names[i];
            amqp_send_basic_consume(&c->out, 1,
                                    &(struct amqp_basic_consume){.queue = span_str(queue),
                                                                 .consumer_tag = span_str(queue),
                                                                 .nowait = true});
        }
    }
}

static uint64_t head_u64(const struct connection *c, size_t at)
{
    uint64_t v;
    memcpy(&v, c->head + at, sizeof(v));
    return be64toh(v);
}

static void on_message(struct connection *c)
{
    struct totals *t = c->totals;
    const uint64_t producer = head_u64(c, 8), number = head_u64(c, 16);
    t->consumed++;
    t->redelivered += c->is_redelivered;
    t->corrupt += c->is_body_bad;
    c->deliveries++;
    for (int i = 0; i < c->producers_count; i++) {
        struct connection *p = &c->producers[i];
        if (p->id != producer) {
            continue;
        }
        const uint64_t now = now_ns(), queue = number % (uint64_t)c->options->queues;
        histogram_add(&t->delivery, now - head_u64(c, 0));
        watch_delivery(queue, now);
        if (bits_set(&p->seen, number)) {
            t->duplicates += !c->is_redelivered;
        } else if (!c->is_redelivered) {
            uint64_t *highest = &p->highest_seen[queue];
            t->disordered += number < *highest && c->options->consumers <= c->options->queues;
            *highest = number + 1;
        }
    }
    if (c->deliveries <= c->options->hold) {
        t->held++;
    } else if (++c->unacked >= (uint64_t)c->options->ack_every) {
        // "multiple" would settle what is held, too.
        amqp_send_basic_ack(
            &c->out, 1,
            &(struct amqp_basic_ack){.delivery_tag = c->tag,
                                     .multiple = c->options->ack_every > 1 && c->options->hold == 0});
        c->unacked = 0;
    }
    c->is_deaf = c->deliveries >= c->options->deaf_consumer_after;
}

static void on_body(struct connection *c, struct span part)
{
    uint64_t skip = 0;
    if (c->is_first_body && part.len >= BODY_HEAD_BYTES) {
        memcpy(c->head, part.ptr, BODY_HEAD_BYTES);
        skip = BODY_HEAD_BYTES;
    }
    c->is_body_bad |= part.len > c->body_left || (c->is_first_body && skip == 0);
    if (!c->is_body_bad) {
        const uint64_t number = head_u64(c, 16);
        c->is_body_bad = memcmp(part.ptr + skip, pattern_at(number, c->body_at + skip), part.len - skip) != 0;
    }
    c->is_first_body = false;
    c->body_at += part.len;
    c->body_left -= part.len < c->body_left ? part.len : c->body_left;
}

void consumer_on_frame(struct connection *c, const struct amqp_frame *f)
{
    if (f->type == AMQP_FRAME_HEADER) {
        struct content_header h;
        if (content_header_read(f->payload, &h) != RC_OK) {
            connection_fail(c, "a content header that does not decode");
            return;
        }
        c->body_left = h.body_size;
        c->body_at = 0;
        c->is_first_body = true;
        c->is_body_bad = h.body_size < BODY_HEAD_BYTES;
        memset(c->head, 0xff, sizeof(c->head));
    } else {
        on_body(c, f->payload);
    }
    if (c->body_left == 0) {
        on_message(c);
    }
}
