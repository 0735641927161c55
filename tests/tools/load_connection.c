// SPDX-License-Identifier: Apache-2.0
// A client connection of warren-load: handshake (blocking), then non-blocking input and output through two
// buffers.
#include "tests/tools/load.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void connection_fail(struct connection *c, const char *format, ...)
{
    if (c->is_failed || c->is_closed) {
        c->is_failed = true;
        return;
    }
    c->is_failed = true;
    if (c->totals->failed++ == 0) {
        va_list args;
        va_start(args, format);
        vsnprintf(c->totals->error, sizeof(c->totals->error), format, args);
        va_end(args);
    }
}

static void on_frame(struct connection *c, const struct amqp_frame *f)
{
    if (f->type == AMQP_FRAME_HEARTBEAT) {
        return;
    }
    if (f->type != AMQP_FRAME_METHOD) {
        consumer_on_frame(c, f);
        return;
    }
    struct amqp_method m;
    if (amqp_method_read(f->payload, &m) != RC_OK) {
        connection_fail(c, "a method that does not decode");
        return;
    }
    switch (m.id) {
    case AMQP_CONNECTION_CLOSE_OK_ID:
        c->is_closed = true;
        break;
    case AMQP_CONNECTION_CLOSE_ID:
        connection_fail(c, "connection closed: %u %.*s", m.connection_close.reply_code,
                        (int)m.connection_close.reply_text.len,
                        (const char *)m.connection_close.reply_text.ptr);
        break;
    case AMQP_CHANNEL_CLOSE_ID:
        connection_fail(c, "channel closed: %u %.*s", m.channel_close.reply_code,
                        (int)m.channel_close.reply_text.len, (const char *)m.channel_close.reply_text.ptr);
        break;
    case AMQP_BASIC_CANCEL_ID:
        connection_fail(c, "consumer cancelled");
        break;
    case AMQP_BASIC_DELIVER_ID:
        c->tag = m.basic_deliver.delivery_tag;
        c->is_redelivered = m.basic_deliver.redelivered;
        break;
    default:
        (c->options->declare > 0 ? declarer_on_method : producer_on_method)(c, &m);
        break;
    }
}

// Handles every whole frame of the input.
static void parse(struct connection *c)
{
    while (!c->is_failed) {
        struct amqp_frame f;
        struct amqp_frame_fault fault;
        size_t used;
        const enum rc rc = amqp_frame_read(span_of(c->in.ptr + c->in_at, c->in.len - c->in_at), FRAME_MAX, &f,
                                           &used, &fault);
        if (rc == RC_MORE) {
            break;
        }
        if (rc != RC_OK) {
            connection_fail(c, "a frame that does not decode");
            return;
        }
        c->in_at += used;
        on_frame(c, &f);
    }
    buf_consume(&c->in, c->in_at);
    c->in_at = 0;
}

void connection_read(struct connection *c)
{
    buf_reserve(&c->in, READ_BYTES);
    const ssize_t n = read(c->fd, c->in.ptr + c->in.len, c->in.cap - c->in.len);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        connection_fail(c, "port %d: %s", c->port, n == 0 ? "end of stream" : strerror(errno));
        return;
    }
    c->in.len += (size_t)n;
    parse(c);
}

void connection_write(struct connection *c)
{
    while (c->out_at < c->out.len) {
        const ssize_t n = send(c->fd, c->out.ptr + c->out_at, c->out.len - c->out_at, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno != EAGAIN && errno != EINTR) {
                connection_fail(c, "port %d: %s", c->port, strerror(errno));
            }
            return;
        }
        c->out_at += (size_t)n;
    }
    c->out.len = 0;
    c->out_at = 0;
}

// Blocking: waits for the method `id` and copies its frame to `frame` (borrowed by *m).
static bool await_method(struct connection *c, uint32_t id, struct buf *frame, struct amqp_method *m)
{
    for (;;) {
        struct amqp_frame f;
        struct amqp_frame_fault fault;
        size_t used = 0;
        const enum rc rc = amqp_frame_read(buf_span(&c->in), FRAME_MAX, &f, &used, &fault);
        if (rc == RC_OK) {
            frame->len = 0;
            buf_span_bytes(frame, f.payload);
            const bool is_method = f.type == AMQP_FRAME_METHOD;
            buf_consume(&c->in, used);
            if (!is_method) {
                continue;
            }
            if (amqp_method_read(buf_span(frame), m) != RC_OK) {
                connection_fail(c, "a method that does not decode");
                return false;
            }
            if (m->id == id) {
                return true;
            }
            connection_fail(c, "port %d: %s in place of %s", c->port, amqp_method_name(m->id),
                            amqp_method_name(id));
            return false;
        }
        buf_reserve(&c->in, READ_BYTES);
        const ssize_t n = read(c->fd, c->in.ptr + c->in.len, c->in.cap - c->in.len);
        if (n <= 0) {
            connection_fail(c, "port %d: no %s", c->port, amqp_method_name(id));
            return false;
        }
        c->in.len += (size_t)n;
    }
}

static bool handshake(struct connection *c, struct buf *frame)
{
    const struct options *o = c->options;
    struct amqp_method m;
    buf_bytes(&c->out, amqp_header_091, sizeof(amqp_header_091));
    connection_write(c);
    if (!await_method(c, AMQP_CONNECTION_START_ID, frame, &m)) {
        return false;
    }
    char plain[256];
    const int len = snprintf(plain, sizeof(plain), "%c%s%c%s", 0, o->user, 0, o->password);
    amqp_send_connection_start_ok(&c->out, 0,
                                  &(struct amqp_connection_start_ok){.mechanism = span_str("PLAIN"),
                                                                     .response = span_of(plain, (size_t)len),
                                                                     .locale = span_str("en_US")});
    connection_write(c);
    if (!await_method(c, AMQP_CONNECTION_TUNE_ID, frame, &m)) {
        return false;
    }
    amqp_send_connection_tune_ok(
        &c->out, 0,
        &(struct amqp_connection_tune_ok){.channel_max = 16, .frame_max = FRAME_MAX, .heartbeat = 0});
    amqp_send_connection_open(&c->out, 0, &(struct amqp_connection_open){.virtual_host = span_str("/")});
    connection_write(c);
    if (!await_method(c, AMQP_CONNECTION_OPEN_OK_ID, frame, &m)) {
        return false;
    }
    amqp_send_channel_open(&c->out, 1, &(struct amqp_channel_open){0});
    connection_write(c);
    if (!await_method(c, AMQP_CHANNEL_OPEN_OK_ID, frame, &m)) {
        return false;
    }
    if (!o->has_declare) {
        return true;
    }
    const int of = (int)c->number < o->producers ? o->producers : o->consumers;
    int open = 0;
    for (int i = 0; i < o->queues; i++) {
        if (options_is_share(o, i, connection_number(c), of)) {
            amqp_send_queue_declare(
                &c->out, 1, &(struct amqp_queue_declare){.queue = span_str(o->names[i]), .durable = true});
            open++;
        }
    }
    connection_write(c);
    while (open > 0 && await_method(c, AMQP_QUEUE_DECLARE_OK_ID, frame, &m)) {
        open--;
    }
    return open == 0;
}

void connection_open(struct connection *c)
{
    buf_init(&c->in);
    buf_init(&c->out);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)c->port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)&to, sizeof(to)) != 0) {
        connection_fail(c, "port %d: %s", c->port, strerror(errno));
        return;
    }
    const int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    struct buf frame;
    buf_init(&frame);
    (void)handshake(c, &frame);  // Failing it has said why.
    buf_deinit(&frame);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
}

void connection_close(struct connection *c)
{
    amqp_send_connection_close(
        &c->out, 0, &(struct amqp_connection_close){.reply_code = 200, .reply_text = span_str("done")});
}

void connection_deinit(struct connection *c)
{
    if (c->fd >= 0) {
        close(c->fd);
    }
    buf_deinit(&c->in);
    buf_deinit(&c->out);
    free(c->sent_at);
    free(c->confirmed.words);
    free(c->seen.words);
    free(c->highest_seen);
}
