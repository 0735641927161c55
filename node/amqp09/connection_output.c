// SPDX-License-Identifier: Apache-2.0
// A connection's output and its pauses: what goes out, what the socket took, and when input has to stop.
//
// Output waits in one buffer, except for large bodies, which are shared with whoever else has them in memory
// (base/block.h): `pieces` says where in the buffer they belong. Above LIMIT_CONNECTION_OUTPUT_BYTES
// deliveries of all its channels are paused and nothing more is read, until half of it has been taken: a
// client that does not read holds up only itself. Marks remember which consumer's bytes end where, so that
// queues learn what the socket took (decision 9).
//
// There may be several reasons not to read at once; the driver is told only of the change from none to some
// and back.
#include "node/amqp09/service.h"
#include <stdlib.h>

enum {
    OUTPUT_KEEP_BYTES = 1 << 20,  // While busy; an idle connection gives it back at its next heartbeat.
    OUTPUT_COMPACT_BYTES = 256 << 10,
};

// ---- output -------------------------------------------------------------------------------------

static struct output_piece *piece(const struct connection *c, uint32_t n)
{
    return &c->pieces[(c->pieces_head + n) & (c->pieces_cap - 1)];
}

int connection_output_parts(const struct connection *c, struct iovec *parts, int max)
{
    int count = 0;
    size_t pos = c->out_pos;
    for (uint32_t n = 0; count < max; n++) {
        const bool is_last = n == c->pieces_count;
        const size_t end = is_last ? c->out.len : (size_t)(piece(c, n)->at - c->out_gone);
        if (end > pos) {
            parts[count++] = (struct iovec){.iov_base = c->out.ptr + pos, .iov_len = end - pos};
            pos = end;
        }
        if (is_last) {
            break;
        }
        if (count < max) {
            const struct span s = piece(c, n)->bytes;
            parts[count++] = (struct iovec){.iov_base = (void *)s.ptr, .iov_len = s.len};
        }
    }
    return count;
}

struct span connection_output(const struct connection *c)
{
    struct iovec first;
    return connection_output_parts(c, &first, 1) == 1 ? span_of(first.iov_base, first.iov_len) : span_of(NULL, 0);
}

size_t connection_output_waiting(const struct connection *c)
{
    return c->out.len - c->out_pos + c->pieces_bytes;
}

static void piece_add(struct connection *c, struct block *block, struct span bytes)
{
    if (c->pieces_count == c->pieces_cap) {
        uint32_t cap = c->pieces_cap == 0 ? 16 : c->pieces_cap * 2;
        struct output_piece *pieces = mem_alloc(cap * sizeof(*pieces));
        for (uint32_t i = 0; i < c->pieces_count; i++) {
            pieces[i] = *piece(c, i);
        }
        free(c->pieces);
        c->pieces = pieces;
        c->pieces_cap = cap;
        c->pieces_head = 0;
    }
    *piece(c, c->pieces_count++) =
        (struct output_piece){.at = c->out_gone + c->out.len, .block = block_hold(block), .bytes = bytes};
    c->pieces_bytes += bytes.len;
}

static void piece_drop(struct connection *c)
{
    block_release(piece(c, 0)->block);
    c->pieces_head = (c->pieces_head + 1) & (c->pieces_cap - 1);
    c->pieces_count--;
}

void connection_content(struct connection *c, uint16_t channel, struct span properties, struct span body)
{
    struct block *b = block_of(body);
    if (b == NULL) {
        content_frames_put(&c->out, channel, c->frame_max, properties, body);
        return;
    }
    assert(content_header_fits(properties.len, c->frame_max));
    content_header_put(&c->out, channel, properties, body.len);
    struct reader r = reader_of(body);
    const size_t body_max = content_body_max(c->frame_max);
    while (reader_left(&r) > 0) {
        const size_t n = reader_left(&r) < body_max ? reader_left(&r) : body_max;
        buf_u8(&c->out, AMQP_FRAME_BODY);
        buf_u16be(&c->out, channel);
        buf_u32be(&c->out, (uint32_t)n);
        piece_add(c, b, reader_span(&r, n));
        buf_u8(&c->out, AMQP_FRAME_END);
    }
}

void connection_output_drop(struct connection *c)
{
    while (c->pieces_count > 0) {
        piece_drop(c);
    }
    free(c->pieces);
    c->pieces = NULL;
    c->pieces_cap = c->pieces_head = 0;
    c->pieces_bytes = 0;
    c->out_gone += c->out.len;
    buf_deinit(&c->out);
    c->out_pos = 0;
}

static void pause_deliveries(struct connection *c, bool is_paused)
{
    c->is_out_full = is_paused;
    list_each(item, &c->channel_list)
    {
        channel_queues_pause(list_entry(item, struct channel, link), is_paused);
    }
}

void connection_out_done(struct connection *c)
{
    if (!c->is_flush_wanted && c->state != CONNECTION_CLOSED) {
        c->is_flush_wanted = true;
        c->io.want_flush(c->io.ctx);
    }
    if (!c->is_out_full && connection_output_waiting(c) > LIMIT_CONNECTION_OUTPUT_BYTES) {
        pause_deliveries(c, true);
        connection_set_pause(c, PAUSE_OUTPUT, true);
    }
}

void connection_mark_delivery(struct connection *c, const struct channel *ch, uint32_t consumer,
                              uint64_t bytes)
{
    uint64_t end = c->send_oct + connection_output_waiting(c);
    if (c->marks_count > 0) {
        struct taken_mark *last = &c->marks[(c->marks_head + c->marks_count - 1) & (c->marks_cap - 1)];
        if (last->channel_serial == ch->serial && last->consumer == consumer) {
            last->end = end;
            last->bytes += bytes;
            return;
        }
    }
    if (c->marks_count == c->marks_cap) {
        uint32_t cap = c->marks_cap == 0 ? 16 : c->marks_cap * 2;
        struct taken_mark *marks = mem_alloc(cap * sizeof(*marks));
        for (uint32_t i = 0; i < c->marks_count; i++) {
            marks[i] = c->marks[(c->marks_head + i) & (c->marks_cap - 1)];
        }
        free(c->marks);
        c->marks = marks;
        c->marks_cap = cap;
        c->marks_head = 0;
    }
    c->marks[(c->marks_head + c->marks_count++) & (c->marks_cap - 1)] =
        (struct taken_mark){.channel_serial = ch->serial,
                            .end = end,
                            .bytes = bytes,
                            .consumer = consumer,
                            .channel = ch->number};
}

// Tells the queues what the socket took.
static void report_taken(struct connection *c)
{
    while (c->marks_count > 0 && c->marks[c->marks_head].end <= c->send_oct) {
        const struct taken_mark *m = &c->marks[c->marks_head];
        struct channel *ch = map_get(&c->channels, m->channel);
        struct consumer *consumer =
            ch && ch->serial == m->channel_serial ? channel_consumer(ch, m->consumer) : NULL;
        if (consumer && consumer->queue->session) {
            queue_session_taken(consumer->queue->session, m->consumer, m->bytes);
        }
        c->marks_head = (c->marks_head + 1) & (c->marks_cap - 1);
        c->marks_count--;
    }
}

static void pass_over(struct connection *c, size_t n)
{
    while (n > 0) {
        struct output_piece *p = c->pieces_count > 0 ? piece(c, 0) : NULL;
        if (p != NULL && p->at == c->out_gone + c->out_pos) {
            const size_t k = n < p->bytes.len ? n : p->bytes.len;
            p->bytes = span_of(p->bytes.ptr + k, p->bytes.len - k);
            c->pieces_bytes -= k;
            n -= k;
            if (p->bytes.len == 0) {
                piece_drop(c);
            }
        } else {
            const size_t left = (p != NULL ? (size_t)(p->at - c->out_gone) : c->out.len) - c->out_pos;
            const size_t k = n < left ? n : left;
            c->out_pos += k;
            n -= k;
        }
    }
}

void connection_output_taken(struct connection *c, size_t n)
{
    assert(n <= connection_output_waiting(c));
    c->send_oct += n;
    c->send_cnt++;
    pass_over(c, n);
    if (c->out_pos == c->out.len) {
        c->out_gone += c->out_pos;
        c->out.len = c->out_pos = 0;
        buf_shrink(&c->out, OUTPUT_KEEP_BYTES);
    } else if (c->out_pos >= OUTPUT_COMPACT_BYTES && c->out_pos >= c->out.len / 2) {
        buf_consume(&c->out, c->out_pos);
        c->out_gone += c->out_pos;
        c->out_pos = 0;
    }
    if (connection_output_waiting(c) == 0) {
        c->is_flush_wanted = false;
    }
    report_taken(c);
    if (c->is_out_full && connection_output_waiting(c) <= LIMIT_CONNECTION_OUTPUT_BYTES / 2) {
        pause_deliveries(c, false);
        connection_set_pause(c, PAUSE_OUTPUT, false);
    }
}

// ---- pausing ------------------------------------------------------------------------------------

bool connection_is_paused(const struct connection *c)
{
    // Only a running connection owes anything to others; during close and handshake input is small and looked
    // at.
    return c->state == CONNECTION_RUNNING && (c->pauses != 0 || c->throttles > 0);
}

void connection_reading_changed(struct connection *c)
{
    bool is_paused = connection_is_paused(c);
    if (!is_paused && c->has_backlog && list_is_empty(&c->resume_link) && !c->is_parsing) {
        list_add_tail(&c->service->resumed, &c->resume_link);  // connection_resume comes back here.
    }
    bool is_on = !is_paused && !c->has_backlog;
    if (is_on == c->is_reading || c->state == CONNECTION_CLOSED) {
        return;
    }
    c->is_reading = is_on;
    c->io.set_reading(c->io.ctx, is_on);
    if (is_on) {
        // The monitor was paused with the socket; silence counts from now.
        c->beat_missed = 0;
        c->beat_recv_seen = c->recv_oct - 1;
    }
}

void connection_set_pause(struct connection *c, uint32_t bit, bool is_on)
{
    c->pauses = is_on ? c->pauses | bit : c->pauses & ~bit;
    connection_reading_changed(c);
}

void connection_throttle(struct connection *c, int change)
{
    assert(change > 0 || c->throttles > 0);
    c->throttles += (uint32_t)change;
    connection_reading_changed(c);
}

// ---- blocked by an alarm (data-plane §1.14) -----------------------------------------------------

void connection_note_publish(struct connection *c)
{
    uint32_t alarms = c->service->alarms;
    if (alarms == 0 || (c->pauses & PAUSE_BLOCKED)) {
        return;
    }
    if (c->has_blocked) {
        const char *reason = alarms == AMQP09_ALARM_MEMORY ? "low on memory"
                             : alarms == AMQP09_ALARM_DISK ? "low on disk"
                                                           : "low on memory & disk";
        amqp_send_connection_blocked(connection_out(c), 0,
                                     &(struct amqp_connection_blocked){.reason = span_str(reason)});
        connection_out_done(c);
        c->is_blocked_told = true;
    }
    connection_set_pause(c, PAUSE_BLOCKED, true);
}

void connection_set_blocked(struct connection *c, uint32_t alarms)
{
    if (alarms != 0 || !(c->pauses & PAUSE_BLOCKED)) {
        return;
    }
    if (c->is_blocked_told) {
        amqp_send_connection_unblocked(connection_out(c), 0, &(struct amqp_connection_unblocked){});
        connection_out_done(c);
        c->is_blocked_told = false;
    }
    connection_set_pause(c, PAUSE_BLOCKED, false);
}
