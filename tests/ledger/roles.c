// SPDX-License-Identifier: Apache-2.0
// What the clients do: publish with confirms at a rate, consume with acknowledgements in several manners, and
// probe.
//
// A probe asks whether a cluster is usable: on each node a fresh connection publishes to every queue, waits
// for the confirm and then gets a message from it. It is over when every node has done so with every queue.
#include "tests/ledger/ledger.h"
#include <stdio.h>

static const double NS = 1e9;
enum { WINDOW = 500, MULTIPLE = 50, REQUEUE_OF = 400 };

static void put_message(struct client *c, uint32_t stream, int queue, uint64_t size)
{
    const char *exchange = queue == TO_ALL_QUEUES ? "amq.fanout" : "",
               *key = queue == TO_ALL_QUEUES ? "" : ledger.queues[queue].name;
    amqp_send_basic_publish(&c->out, 1,
                            &(struct amqp_basic_publish){.exchange = span_str(exchange),
                                                         .routing_key = span_str(key),
                                                         .mandatory = true});
    const size_t at = amqp_frame_begin(&c->out, AMQP_FRAME_HEADER, 1);
    buf_u16be(&c->out, CONTENT_CLASS_BASIC);
    buf_u16be(&c->out, 0);
    buf_u64be(&c->out, size);
    content_properties_put(&c->out,
                           &(struct content_properties){.flags = PROPERTY_DELIVERY_MODE, .delivery_mode = 2});
    amqp_frame_end(&c->out, at);
    body_put(&c->out, stream, size);
}

void role_begin(struct client *c)
{
    c->filled_ns = now_ns();
    if (c->role == ROLE_CONSUMER) {
        const struct queue_plan *q = &ledger.queues[c->queue];
        amqp_send_basic_qos(&c->out, 1, &(struct amqp_basic_qos){.prefetch_count = (uint16_t)q->prefetch});
        amqp_send_basic_consume(&c->out, 1,
                                &(struct amqp_basic_consume){.queue = span_str(q->name),
                                                             .nowait = true,
                                                             .consumer_tag = span_str("c")});
        return;
    }
    amqp_send_confirm_select(&c->out, 1, &(struct amqp_confirm_select){.nowait = true});
    if (c->role == ROLE_PUBLISHER) {
        c->stream = stream_open(c->queue);
        c->tokens = 0;
        c->marked = 0;
        return;
    }
    c->tags_count = 0;
    for (int q = 0; q < ledger.queues_count; q++) {
        c->queue_streams[q] = stream_open(q);
        if (c->probes[q].stage != STAGE_DONE) {
            c->probes[q].stage = STAGE_NONE;
        }
    }
}

// ---- publisher
// -----------------------------------------------------------------------------------------------

static void publisher_step(struct client *c, uint64_t now)
{
    static const struct queue_plan to_all = {.rate = 5, .size = 1000};
    const struct queue_plan *q = c->queue == TO_ALL_QUEUES ? &to_all : &ledger.queues[c->queue];
    struct stream *s = ledger.streams[c->stream];
    const double most = 1 + q->rate / 5;  // What was not sent for a while is not made good.
    c->tokens += (double)(now - c->filled_ns) / NS * q->rate;
    c->tokens = c->tokens > most ? most : c->tokens;
    c->filled_ns = now;
    while (!is_stopping && c->tokens >= 1 && s->next - s->first_open < WINDOW &&
           c->out.len - c->out_at < OUTPUT_BYTES) {
        const uint64_t r = draw(1000);
        uint64_t size = HEAD_BYTES + q->size * r * r / 1000000;
        if (draw(1000) < q->large_of_1000) {
            size = 300000 + draw(400000);
        }
        put_message(c, c->stream, c->queue, size);
        c->tokens--;
    }
}

// ---- consumer
// ------------------------------------------------------------------------------------------------

static void settle(struct client *c, uint64_t tag, bool is_multiple)
{
    if (!is_multiple && draw(REQUEUE_OF) == 0 && !is_stopping) {
        amqp_send_basic_nack(&c->out, 1, &(struct amqp_basic_nack){.delivery_tag = tag, .requeue = true});
    } else {
        amqp_send_basic_ack(&c->out, 1,
                            &(struct amqp_basic_ack){.delivery_tag = tag, .multiple = is_multiple});
    }
}

static void settle_all(struct client *c)
{
    // Not tag 0, and not the newest tag: those are also of what is still on its way here, or whose body is.
    uint64_t last = 0;
    for (int i = 0; i < c->unacked_count; i++) {
        last = c->unacked[i] > last ? c->unacked[i] : last;
    }
    if (last > 0) {
        settle(c, last, true);
        c->unacked_count = 0;
    }
}

static void consumer_on_delivery(struct client *c)
{
    const struct queue_plan *q = &ledger.queues[c->queue];
    ledger_delivered(c->queue, c->consumer, c->is_redelivered, buf_span(&c->body));
    assert(c->unacked_count < UNACKED_MAX);
    c->unacked[c->unacked_count++] = c->tag;
    if (is_stopping) {
        settle_all(c);
    } else if (q->hold > 0) {
        // Out of order, and some of them late: what stays behind is scattered over the log.
        while (c->unacked_count > q->hold) {
            const int at = (int)draw((uint64_t)c->unacked_count);
            settle(c, c->unacked[at], false);
            c->unacked[at] = c->unacked[--c->unacked_count];
        }
    } else if (c->consumer % 2 == 0) {
        settle(c, c->tag, false);
        c->unacked_count = 0;
    } else if (c->unacked_count >= MULTIPLE || c->unacked_count >= q->prefetch) {
        settle_all(c);
    }
}

// ---- prober
// --------------------------------------------------------------------------------------------------

static unsigned probe_id;
static uint64_t probe_begun_ns;
static bool is_probing;

bool probe_is_on(void)
{
    return is_probing;
}

void probe_begin(unsigned id)
{
    probe_id = id;
    probe_begun_ns = now_ns();
    is_probing = true;
    for (int i = 0; i < clients_count; i++) {
        struct client *c = &clients[i];
        if (c->role == ROLE_PROBER) {
            memset(c->probes, 0, sizeof(c->probes));
            client_drop(c, false);
            c->is_wanted = true;
        } else if (c->role == ROLE_PUBLISHER && c->state == STATE_READY) {
            c->marked = ledger.streams[c->stream]->next;
        }
    }
}

static double probe_s(void)
{
    return (double)(now_ns() - probe_begun_ns) / NS;
}

static void prober_step(struct client *c)
{
    for (int q = 0; q < ledger.queues_count; q++) {
        struct probe *p = &c->probes[q];
        if (p->stage == STAGE_NONE && c->tags_count < sizeof(c->tags_queue) / sizeof(c->tags_queue[0])) {
            p->number = ledger.streams[c->queue_streams[q]]->next;
            put_message(c, c->queue_streams[q], q, 200);
            c->tags_queue[c->tags_count++] = (uint64_t)q;
            p->stage = STAGE_PUBLISHED;
        } else if (p->stage == STAGE_CONFIRMED) {
            amqp_send_basic_get(&c->out, 1,
                                &(struct amqp_basic_get){.queue = span_str(ledger.queues[q].name)});
            c->asked[c->asked_count++] = q;
            p->stage = STAGE_ASKED;
        }
    }
}

static void prober_on_confirm(struct client *c, uint64_t tag, bool is_multiple, bool is_ack)
{
    for (uint64_t t = is_multiple ? 1 : tag; t <= tag && t <= c->tags_count && t > 0; t++) {
        const uint64_t q = c->tags_queue[t - 1];
        struct probe *p = &c->probes[q];
        if (p->stage == STAGE_PUBLISHED) {
            ledger_confirmed(c->queue_streams[q], p->number + 1, false, is_ack);
            p->stage = is_ack ? STAGE_CONFIRMED : STAGE_NONE;
            p->confirm_s = probe_s();
        }
    }
}

// A get was answered: returns whose it was.
static int prober_on_answer(struct client *c)
{
    if (c->asked_count == 0) {
        client_fail(c, "an answer that nothing asked for");
        return -1;
    }
    const int q = c->asked[0];
    memmove(c->asked, c->asked + 1, sizeof(c->asked[0]) * (size_t)--c->asked_count);
    c->probes[q].stage = STAGE_DONE;
    c->probes[q].get_s = probe_s();
    return q;
}

static void missing_put(struct buf *b)
{
    static const char *const stages[] = {"not published", "no confirm", "confirmed", "no answer to get",
                                         "done"};
    for (int i = 0; i < clients_count; i++) {
        const struct client *c = &clients[i];
        for (int q = 0; c->role == ROLE_PROBER && q < ledger.queues_count; q++) {
            if (c->probes[q].stage != STAGE_DONE) {
                buf_printf(b, "%s\"%s %s: %s%s\"", b->len > 0 ? "," : "", ledger.nodes[c->node].name,
                           ledger.queues[q].name, stages[c->probes[q].stage],
                           c->state == STATE_READY ? "" : ", not connected");
            }
        }
    }
    for (int i = 0; i < clients_count; i++) {
        const struct client *c = &clients[i];
        const bool is_away = c->role == ROLE_CONSUMER && ledger.queues[c->queue].is_paused;
        if (c->role != ROLE_PROBER && c->is_wanted && !is_away && c->progress_ns < probe_begun_ns) {
            buf_printf(b, "%s\"%s: no progress%s\"", b->len > 0 ? "," : "", c->name,
                       c->state == STATE_READY ? "" : ", not connected");
        }
    }
    buf_u8(b, 0);
}

void probe_step(uint64_t now)
{
    static const double LIMIT_S = 30;
    bool is_done = true;
    double confirm = 0, get = 0, clients_s = 0;
    for (int i = 0; i < clients_count; i++) {
        const struct client *c = &clients[i];
        if (c->role == ROLE_PROBER) {
            for (int q = 0; q < ledger.queues_count; q++) {
                const struct probe *p = &c->probes[q];
                is_done &= p->stage == STAGE_DONE;
                confirm = p->confirm_s > confirm ? p->confirm_s : confirm;
                get = p->get_s > get ? p->get_s : get;
            }
        } else if (c->is_wanted && !(c->role == ROLE_CONSUMER && ledger.queues[c->queue].is_paused)) {
            is_done &= c->progress_ns > probe_begun_ns;
            const double s = ((double)c->progress_ns - (double)probe_begun_ns) / NS;
            clients_s = s > clients_s ? s : clients_s;
        }
    }
    if (!is_done && (double)(now - probe_begun_ns) / NS < LIMIT_S) {
        return;
    }
    is_probing = false;
    struct buf b = {0};
    missing_put(&b);
    say("probe", "\"id\":%u,\"confirm_s\":%.3f,\"get_s\":%.3f,\"clients_s\":%.3f,\"missing\":[%s]", probe_id,
        confirm, get, clients_s, (const char *)b.ptr);
    buf_deinit(&b);
    for (int i = 0; i < clients_count; i++) {
        if (clients[i].role == ROLE_PROBER) {
            clients[i].is_wanted = false;
            client_close(&clients[i]);
        }
    }
}

// ---- all of them
// ---------------------------------------------------------------------------------------------

void role_step(struct client *c, uint64_t now)
{
    if (c->role == ROLE_PUBLISHER) {
        publisher_step(c, now);
    } else if (c->role == ROLE_PROBER) {
        prober_step(c);
    } else if (now - c->filled_ns > (uint64_t)(NS / 10)) {
        c->filled_ns = now;
        if (ledger.queues[c->queue].hold == 0 || is_stopping) {
            settle_all(c);  // A few at the end do not wait for MULTIPLE.
        }
    }
}

void role_method(struct client *c, const struct amqp_method *m)
{
    if (m->id == AMQP_BASIC_ACK_ID || m->id == AMQP_BASIC_NACK_ID) {
        const bool is_ack = m->id == AMQP_BASIC_ACK_ID;
        const uint64_t tag = is_ack ? m->basic_ack.delivery_tag : m->basic_nack.delivery_tag;
        const bool is_multiple = is_ack ? m->basic_ack.multiple : m->basic_nack.multiple;
        if (c->role == ROLE_PROBER) {
            prober_on_confirm(c, tag, is_multiple, is_ack);
        } else if (c->role == ROLE_PUBLISHER) {
            ledger_confirmed(c->stream, tag, is_multiple, is_ack);
            // After a mark only what was published behind it counts.
            c->progress_ns = tag > c->marked ? now_ns() : c->progress_ns;
        }
    } else if (m->id == AMQP_BASIC_GET_OK_ID && c->role == ROLE_PROBER) {
        c->content = m->id;
        c->tag = m->basic_get_ok.delivery_tag;
        c->is_redelivered = m->basic_get_ok.redelivered;
        c->content_queue = prober_on_answer(c);
    } else if (m->id == AMQP_BASIC_GET_EMPTY_ID && c->role == ROLE_PROBER) {
        (void)prober_on_answer(c);  // Some consumer was faster.
    }
}

void role_content(struct client *c)
{
    if (c->content == AMQP_BASIC_RETURN_ID) {
        ledger_returned(buf_span(&c->body), c->return_code);
    } else if (c->content == AMQP_BASIC_GET_OK_ID) {
        ledger_delivered(c->content_queue, c->consumer, c->is_redelivered, buf_span(&c->body));
        amqp_send_basic_ack(&c->out, 1, &(struct amqp_basic_ack){.delivery_tag = c->tag});
    } else {
        consumer_on_delivery(c);
        c->progress_ns = now_ns();
    }
}
