// SPDX-License-Identifier: Apache-2.0
// Connection core: input to frames, frames to channels, output, errors, heartbeats, closing.
//
// Input is parsed where it lies (the worker's shared read buffer); only a frame that is cut off is copied
// into `rest` and completed there. Contents that span reads are copied by their channels when the parsing of
// a piece of input ends (connection.held). While there is a reason to pause, nothing is parsed and the socket
// is not read: what came already lies in `rest`, at most one read and one frame.
//
// After an error the input is still framed, so that close-ok is recognised, but nothing else is looked at;
// after a framing error nothing is looked at any more. In both cases the socket goes after a bounded time
// (data-plane §1.5).
//
// Nothing here destroys the connection or calls it back: io.close asks the driver to.
#include "node/amqp09/reply.h"
#include "node/amqp09/service.h"
#include "node/base/log.h"
#include "proto/amqp09/table.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    INITIAL_FRAME_MAX = 8192,     // Until tune-ok (data-plane §1.3).
    CLOSE_TIMEOUT_S = 30,         // Longest wait for close-ok.
    FRAME_ERROR_DELAY_MS = 3000,  // From a framing error to the end.
    FRAME_FUDGE_BYTES = 8,        // RabbitMQ lets a payload be as large as frame_max (data-plane §1.4).
};

// ---- life ---------------------------------------------------------------------------------------

struct connection *connection_create(struct amqp09 *s, const struct connection_io *io,
                                     const struct connection_peer *peer)
{
    struct connection *c = mem_zalloc(sizeof(*c));
    c->service = s;
    c->io = *io;
    c->peer = *peer;
    c->id = ++s->ids;
    c->state = CONNECTION_HEADER;
    c->need = AMQP_HEADER_BYTES;
    c->payload_max = INITIAL_FRAME_MAX;
    c->frame_max = INITIAL_FRAME_MAX;
    c->is_reading = true;
    c->state_deadline = amqp09_later(s, s->config.handshake_timeout_ms);
    c->beat_send_at = c->beat_check_at = UINT64_MAX;
    c->connected_at_ms = clock_wall_ms(s->config.clock);
    snprintf(c->name, sizeof(c->name), "%s:%u -> %s:%u", c->peer.peer_host, c->peer.peer_port, c->peer.host,
             c->peer.port);
    list_init(&c->resume_link);
    list_init(&c->partial_link);
    list_init(&c->held);
    list_init(&c->channel_list);
    map_init_u64(&c->channels);
    list_add_tail(&s->connections, &c->link);
    s->connections_count++;
    return c;
}

static void channels_end(struct connection *c)
{
    list_each(item, &c->channel_list)
    {
        channel_release(list_entry(item, struct channel, link));
    }
    assert(map_count(&c->channels) == 0);
    assert(list_is_empty(&c->held));
}

void connection_destroy(struct connection *c)
{
    assert(!c->is_parsing);
    channels_end(c);
    if (c->partial_bytes > 0) {
        amqp09_partial_changed(c->service, c, -(int64_t)c->partial_bytes);
    }
    list_remove(&c->link);
    list_remove(&c->resume_link);
    list_remove(&c->partial_link);
    c->service->connections_count--;
    map_deinit(&c->channels);
    buf_deinit(&c->rest);
    connection_output_drop(c);
    buf_deinit(&c->client_properties);
    free(c->marks);
    free((void *)c->vhost_name.ptr);
    free(c);
}

static void close_socket(struct connection *c, bool is_abrupt)
{
    if (c->state == CONNECTION_CLOSED) {
        return;
    }
    c->state = CONNECTION_CLOSED;
    c->state_deadline = c->beat_send_at = c->beat_check_at = UINT64_MAX;
    channels_end(c);
    c->io.close(c->io.ctx, is_abrupt);
}

const char *connection_state_name(const struct connection *c)
{
    static const char *const names[] = {
        [CONNECTION_HEADER] = "starting", [CONNECTION_STARTING] = "starting",
        [CONNECTION_TUNING] = "tuning",   [CONNECTION_OPENING] = "opening",
        [CONNECTION_RUNNING] = "running", [CONNECTION_CLOSING] = "closing",
        [CONNECTION_SILENT] = "closing",  [CONNECTION_CLOSED] = "closed",
    };
    if (c->state == CONNECTION_RUNNING) {
        return c->pauses & PAUSE_BLOCKED ? "blocked" : c->pauses || c->throttles ? "flow" : "running";
    }
    return names[c->state];
}

bool connection_is_open(const struct connection *c)
{
    return c->state == CONNECTION_RUNNING;
}

struct broker_vhost *connection_vhost(struct connection *c)
{
    uint64_t version = broker_version(c->service->config.broker);
    if (c->vhost_version != version || !c->vhost) {
        c->vhost = broker_vhost_find(c->service->config.broker, c->vhost_name);
        c->vhost_version = version;
    }
    return c->vhost;
}

struct channel *connection_channel(struct connection *c, uint16_t number)
{
    if (!c->channel_last || c->channel_last->number != number) {
        c->channel_last = map_get(&c->channels, number);
    }
    return c->channel_last;
}

void connection_forget_channel(struct connection *c, struct channel *ch)
{
    if (c->channel_last == ch) {
        c->channel_last = NULL;
    }
    (void)map_remove(&c->channels, ch->number);  // The value is `ch`.
    list_remove(&ch->link);
}

// ---- errors and closing -------------------------------------------------------------------------

static void send_close(struct connection *c, uint16_t code, uint32_t method, const char *text)
{
    char reply[512];
    snprintf(reply, sizeof(reply), "%s - %s", reply_name(code), text);
    size_t len = strnlen(reply, 255);
    amqp_send_connection_close(connection_out(c), 0,
                               &(struct amqp_connection_close){.reply_code = code,
                                                               .reply_text = span_of(reply, len),
                                                               .class_id = (uint16_t)(method >> 16),
                                                               .method_id = (uint16_t)method});
    connection_out_done(c);
}

void connection_fail(struct connection *c, uint16_t code, uint32_t method, const char *format, ...)
{
    if (c->state == CONNECTION_CLOSING || c->state == CONNECTION_SILENT || c->state == CONNECTION_CLOSED) {
        return;
    }
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    log_warning("connection %s: closing: %u %s: %s", c->name, code, reply_name(code), text);
    if (c->state == CONNECTION_HEADER || c->state == CONNECTION_STARTING) {
        handshake_drop(c);
        return;
    }
    channels_end(c);
    send_close(c, code, method, text);
    c->state = CONNECTION_CLOSING;
    uint32_t wait_s =
        c->heartbeat_s > 0 && c->heartbeat_s < CLOSE_TIMEOUT_S ? c->heartbeat_s : CLOSE_TIMEOUT_S;
    c->state_deadline = amqp09_later(c->service, wait_s * 1000u);
    connection_reading_changed(c);
}

// Octets as RabbitMQ prints them: <<"text">> or <<1,2,3>>.
static void print_octets(struct buf *to, struct span octets)
{
    bool is_text = octets.len > 0;
    for (size_t i = 0; i < octets.len; i++) {
        is_text = is_text && octets.ptr[i] >= ' ' && octets.ptr[i] <= '~';
    }
    buf_printf(to, is_text ? "<<\"" : "<<");
    for (size_t i = 0; i < octets.len; i++) {
        uint8_t c = octets.ptr[i];
        if (is_text) {
            buf_printf(to, c == '"' || c == '\\' ? "\\%c" : "%c", c);
        } else {
            buf_printf(to, i > 0 ? ",%u" : "%u", c);
        }
    }
    buf_printf(to, is_text ? "\">>" : ">>");
}

enum { OCTETS_SHOWN = 16, REPLY_TEXT_BYTES = 255 };

// A frame of the wrong kind: its type and how it starts, then `why`.
static void fail_odd_frame(struct connection *c, uint16_t code, uint8_t type, struct span payload,
                           const char *why)
{
    bool is_long = payload.len > OCTETS_SHOWN;
    struct buf octets;
    buf_init(&octets);
    print_octets(&octets, is_long ? span_of(payload.ptr, OCTETS_SHOWN) : payload);
    connection_fail(c, code, 0, "type %u, %s octets = %.*s%s", type, is_long ? "first 16" : "all",
                    (int)octets.len, (const char *)octets.ptr, why);
    buf_deinit(&octets);
}

// The input cannot be framed any more.
static void fail_frame(struct connection *c, enum rc rc, const struct amqp_frame_fault *fault)
{
    if (rc == RC_TOO_LARGE) {
        uint32_t max =
            c->payload_max > FRAME_FUDGE_BYTES ? c->payload_max - FRAME_FUDGE_BYTES : c->payload_max;
        connection_fail(c, REPLY_FRAME_ERROR, 0, "type %u, all octets = <<>>: {frame_too_large,%u,%u}",
                        fault->type, fault->size, max);
    } else {
        char why[48];
        snprintf(why, sizeof(why), ": {invalid_frame_end_marker,%u}", fault->end);
        fail_odd_frame(c, REPLY_FRAME_ERROR, fault->type, fault->payload, why);
    }
    if (c->state == CONNECTION_CLOSING) {
        c->state = CONNECTION_SILENT;
        c->state_deadline = amqp09_later(c->service, FRAME_ERROR_DELAY_MS);
    }
}

// ---- channel 0 ----------------------------------------------------------------------------------

static void update_secret(struct connection *c)
{
    struct broker *b = c->service->config.broker;
    struct broker_vhost *v = connection_vhost(c);
    if (!v || !broker_user_exists(b, c->user_name) || !broker_may_enter(b, c->user_name, v)) {
        connection_fail(c, REPLY_NOT_ALLOWED, AMQP_CONNECTION_UPDATE_SECRET_ID,
                        "New secret was refused by one of the backends");
        return;
    }
    amqp_send_connection_update_secret_ok(connection_out(c), 0, &(struct amqp_connection_update_secret_ok){});
    connection_out_done(c);
}

static void closed_by_client(struct connection *c)
{
    channels_end(c);
    amqp_send_connection_close_ok(connection_out(c), 0, &(struct amqp_connection_close_ok){});
    connection_out_done(c);
    close_socket(c, false);
}

static void method_on_zero(struct connection *c, const struct amqp_method *m)
{
    if (m->id == AMQP_CONNECTION_CLOSE_ID && c->state >= CONNECTION_TUNING) {
        closed_by_client(c);
        return;
    }
    switch (c->state) {
    case CONNECTION_STARTING:
    case CONNECTION_TUNING:
    case CONNECTION_OPENING:
        handshake_method(c, m);
        break;
    case CONNECTION_RUNNING:
        if (m->id == AMQP_CONNECTION_UPDATE_SECRET_ID) {
            update_secret(c);
        } else {
            connection_fail(c, REPLY_CHANNEL_ERROR, m->id, "unexpected method in connection state running");
        }
        break;
    case CONNECTION_CLOSING:
        if (m->id == AMQP_CONNECTION_CLOSE_OK_ID) {
            close_socket(c, false);
        }
        break;
    default:
        break;
    }
}

// Reads a method for whoever; false: the connection has failed (or did not care).
bool connection_read_method(struct connection *c, struct span payload, struct amqp_method *m)
{
    enum rc rc = amqp_method_read(payload, m);
    if (rc == RC_OK) {
        return true;
    }
    if (c->state == CONNECTION_CLOSING) {
        return false;
    }
    if (rc == RC_NOT_FOUND) {
        connection_fail(c, REPLY_COMMAND_INVALID, 0, "unknown method %u.%u", m->id >> 16, m->id & 0xFFFF);
    } else if (rc == RC_INVALID) {
        connection_fail(c, REPLY_FRAME_ERROR, 0, "Malformed UTF-8 in shortstr");
    } else {
        enum { IDS_BYTES = 4 };
        struct reader r = reader_of(payload);
        (void)reader_span(&r, payload.len < IDS_BYTES ? payload.len : IDS_BYTES);
        size_t len = reader_left(&r);
        struct buf octets;
        buf_init(&octets);
        print_octets(&octets, reader_span(&r, len < REPLY_TEXT_BYTES ? len : REPLY_TEXT_BYTES));
        connection_fail(c, REPLY_FRAME_ERROR, m->id, "cannot decode %.*s", (int)octets.len,
                        (const char *)octets.ptr);
        buf_deinit(&octets);
    }
    return false;
}

// ---- frames -------------------------------------------------------------------------------------

static void frame_on_zero(struct connection *c, const struct amqp_frame *f)
{
    struct amqp_method m;
    switch (f->type) {
    case AMQP_FRAME_METHOD:
        if (connection_read_method(c, f->payload, &m)) {
            method_on_zero(c, &m);
        }
        break;
    case AMQP_FRAME_HEARTBEAT:
        if (f->payload.len > 0) {
            fail_odd_frame(c, REPLY_FRAME_ERROR, f->type, f->payload, ": unknown_frame");
        }
        break;
    default:
        fail_odd_frame(c, REPLY_UNEXPECTED_FRAME, f->type, f->payload, "");
        break;
    }
}

static void open_channel(struct connection *c, const struct amqp_frame *f)
{
    struct amqp_method m;
    if (f->type != AMQP_FRAME_METHOD) {
        connection_fail(c, REPLY_UNEXPECTED_FRAME, 0, "expected method frame, got non method frame instead");
        return;
    }
    if (!connection_read_method(c, f->payload, &m)) {
        return;
    }
    if (m.id == AMQP_CHANNEL_CLOSE_OK_ID) {
        return;  // Of a channel that both sides closed at once.
    }
    if (m.id != AMQP_CHANNEL_OPEN_ID) {
        connection_fail(c, REPLY_CHANNEL_ERROR, m.id, "expected 'channel.open'");
        return;
    }
    if (c->channel_max > 0 && map_count(&c->channels) >= c->channel_max) {
        connection_fail(c, REPLY_NOT_ALLOWED, 0,
                        "number of channels opened (%u) has reached the negotiated channel_max (%u)",
                        map_count(&c->channels), c->channel_max);
        return;
    }
    struct channel *ch = channel_create(c, f->channel);
    amqp_send_channel_open_ok(channel_out(ch), ch->number, &(struct amqp_channel_open_ok){});
    channel_out_done(ch);
}

static void frame(struct connection *c, const struct amqp_frame *f)
{
    if (c->state == CONNECTION_CLOSING) {
        if (f->channel == 0 && f->type == AMQP_FRAME_METHOD) {
            frame_on_zero(c, f);
        }
        return;
    }
    if (f->type != AMQP_FRAME_METHOD && f->type != AMQP_FRAME_HEADER && f->type != AMQP_FRAME_BODY &&
        f->type != AMQP_FRAME_HEARTBEAT) {
        fail_odd_frame(c, REPLY_FRAME_ERROR, f->type, f->payload, ": unknown_frame");
        return;
    }
    if (f->channel == 0) {
        frame_on_zero(c, f);
        return;
    }
    if (f->type == AMQP_FRAME_HEARTBEAT) {
        fail_odd_frame(c, REPLY_UNEXPECTED_FRAME, f->type, f->payload, "");
        return;
    }
    if (c->state != CONNECTION_RUNNING) {
        fail_odd_frame(c, REPLY_UNEXPECTED_FRAME, f->type, f->payload, "");
        return;
    }
    struct channel *ch = connection_channel(c, f->channel);
    if (ch) {
        channel_frame(ch, f->type, f->payload);
    } else {
        open_channel(c, f);
    }
}

static void protocol_header(struct connection *c, const uint8_t *header)
{
    switch (amqp_protocol_of(header)) {
    case AMQP_PROTOCOL_0_9_1:
        handshake_begin(c);
        return;
    case AMQP_PROTOCOL_ANSWER_091:
        buf_bytes(connection_out(c), amqp_header_091, AMQP_HEADER_BYTES);
        break;
    case AMQP_PROTOCOL_1_0_SASL:  // AMQP 1.0 is not served; the answer names what RabbitMQ's would.
    case AMQP_PROTOCOL_ANSWER_SASL:
        buf_bytes(connection_out(c), amqp_header_sasl, AMQP_HEADER_BYTES);
        break;
    }
    connection_out_done(c);
    log_info("connection %s: not AMQP 0-9-1, closed", c->name);
    close_socket(c, false);
}

// ---- input --------------------------------------------------------------------------------------

// Parses whole frames from `in`; returns the bytes used. What is left is less than a frame (c->need says how
// much is wanted), or waits because the connection paused.
static size_t parse(struct connection *c, struct span in)
{
    size_t used_all = 0;
    while (c->state != CONNECTION_SILENT && c->state != CONNECTION_CLOSED && !connection_is_paused(c)) {
        struct span left = span_of(in.ptr + used_all, in.len - used_all);
        size_t used = 0;
        if (c->state == CONNECTION_HEADER) {
            if (left.len < AMQP_HEADER_BYTES) {
                c->need = AMQP_HEADER_BYTES;
                break;
            }
            used_all += AMQP_HEADER_BYTES;
            protocol_header(c, left.ptr);
            continue;
        }
        struct amqp_frame f;
        struct amqp_frame_fault fault;
        enum rc rc = amqp_frame_read(left, c->payload_max, &f, &used, &fault);
        if (rc == RC_MORE) {
            c->need = used;
            break;
        }
        if (rc != RC_OK) {
            fail_frame(c, rc, &fault);
            break;
        }
        used_all += used;
        frame(c, &f);
    }
    if (connection_is_paused(c)) {
        c->need = AMQP_FRAME_HEAD_BYTES;  // Not known: nothing was looked at.
    }
    // The bytes may move or go: whoever points into them copies now.
    list_each(item, &c->held)
    {
        channel_hold(list_entry(item, struct channel, held_link));
    }
    if (c->state == CONNECTION_SILENT || c->state == CONNECTION_CLOSED) {
        return in.len;
    }
    return used_all;
}

// Completes the cut-off frame in `rest` with the start of `in`; returns how much of `in` was used.
static size_t parse_rest(struct connection *c, struct span in)
{
    size_t used = 0;
    while (c->rest.len > 0 && !connection_is_paused(c)) {
        if (c->rest.len < c->need) {
            size_t n = c->need - c->rest.len < in.len - used ? c->need - c->rest.len : in.len - used;
            if (n == 0) {
                break;
            }
            buf_bytes(&c->rest, in.ptr + used, n);
            used += n;
            if (c->rest.len < c->need) {
                break;
            }
        }
        // `need` grows from the head to the whole frame: then nothing is used and the loop goes on.
        size_t n = parse(c, buf_span(&c->rest));
        buf_consume(&c->rest, n);
        if (c->state == CONNECTION_SILENT || c->state == CONNECTION_CLOSED) {
            c->rest.len = 0;
        }
    }
    return used;
}

// After parsing: what a pause left behind is parsed before anything more is read, or it would grow with every
// turn in which less is taken than a read brings.
static void backlog_changed(struct connection *c)
{
    c->has_backlog = c->rest.len > 0 && connection_is_paused(c);
    connection_reading_changed(c);
}

void connection_input(struct connection *c, struct span in)
{
    assert(!c->is_parsing);
    c->recv_oct += in.len;
    c->recv_cnt++;
    if (c->state == CONNECTION_SILENT || c->state == CONNECTION_CLOSED) {
        return;
    }
    c->is_parsing = true;
    size_t used = parse_rest(c, in);
    if (c->rest.len == 0) {
        used += parse(c, span_of(in.ptr + used, in.len - used));
    }
    if (used < in.len && c->state != CONNECTION_SILENT && c->state != CONNECTION_CLOSED) {
        buf_bytes(&c->rest, in.ptr + used, in.len - used);
    }
    c->is_parsing = false;
    backlog_changed(c);
}

void connection_resume(struct connection *c)
{
    list_remove(&c->resume_link);
    if (connection_is_paused(c) || c->rest.len == 0 || c->state == CONNECTION_SILENT ||
        c->state == CONNECTION_CLOSED) {
        return;
    }
    c->is_parsing = true;
    // Paused in the middle: `need` may be of a frame before. Whole frames are taken; a cut-off one stays.
    size_t n = parse(c, buf_span(&c->rest));
    buf_consume(&c->rest, n);
    if (c->state == CONNECTION_SILENT || c->state == CONNECTION_CLOSED) {
        c->rest.len = 0;
    }
    c->is_parsing = false;
    backlog_changed(c);
}

// ---- time ---------------------------------------------------------------------------------------

uint64_t connection_deadline(const struct connection *c)
{
    uint64_t at = c->state_deadline;
    at = c->beat_send_at < at ? c->beat_send_at : at;
    return c->beat_check_at < at ? c->beat_check_at : at;
}

static void beat_send(struct connection *c, uint64_t now)
{
    uint64_t sent = c->send_oct + connection_output_waiting(c);
    if (sent == c->beat_sent_seen && c->state == CONNECTION_RUNNING) {
        buf_shrink(&c->out, 0);
        buf_shrink(&c->rest, 0);
        amqp_frame_heartbeat(connection_out(c));
        connection_out_done(c);
    }
    c->beat_sent_seen = c->send_oct + connection_output_waiting(c);
    c->beat_send_at = now + (uint64_t)c->heartbeat_s * 500000000u;
}

// Two checks in a row without a byte: the peer is gone. Not counted while we ourselves do not read.
static void beat_check(struct connection *c, uint64_t now)
{
    c->beat_check_at = now + (uint64_t)c->heartbeat_s * 1000000000u;
    bool is_silent = c->recv_oct == c->beat_recv_seen && c->is_reading;
    c->beat_missed = is_silent ? c->beat_missed + 1 : 0;
    c->beat_recv_seen = c->recv_oct;
    if (c->beat_missed >= 2) {
        log_warning("connection %s: missed heartbeats from client, timeout: %us", c->name, c->heartbeat_s);
        close_socket(c, true);
    }
}

void connection_tick(struct connection *c)
{
    uint64_t now = amqp09_now(c->service);
    if (c->state == CONNECTION_CLOSED) {
        return;
    }
    if (now >= c->state_deadline) {
        if (c->state != CONNECTION_SILENT && c->state != CONNECTION_CLOSING) {
            log_warning("connection %s: handshake_timeout in state %s", c->name, connection_state_name(c));
        }
        close_socket(c, c->state != CONNECTION_SILENT);
        return;
    }
    if (now >= c->beat_send_at) {
        beat_send(c, now);
    }
    if (now >= c->beat_check_at) {
        beat_check(c, now);
    }
}
