// SPDX-License-Identifier: Apache-2.0
// A client's connection: opens without blocking, speaks AMQP 0-9-1 up to the open channel, hears heartbeats,
// and comes back after whatever ends it. Every end is one line of the log with its reason; which reasons are
// allowed is for the reader of the log to say.
#include "tests/ledger/ledger.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static const uint64_t MS = 1000000;
enum {
    CONNECT_MS = 2000,    // A host that does not answer.
    HANDSHAKE_MS = 8000,  // A broker that accepts and says nothing.
    HEARTBEAT_S = 4,      // Negotiated; nothing heard for twice as long ends the connection.
    RETRY_MS = 100,
};

static void state_set(struct client *c, enum state state)
{
    c->state = state;
    c->since_ns = now_ns();
}

// The connection is no more; what was on its way is lost.
static void reset(struct client *c, bool is_reset)
{
    if (c->fd >= 0) {
        if (is_reset) {
            setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
        }
        close(c->fd);
    }
    c->fd = -1;
    c->in.len = c->out.len = c->in_at = c->out_at = 0;
    c->content = 0;
    c->unacked_count = 0;
    c->asked_count = 0;
    c->is_blocked = false;
    state_set(c, c->is_wanted ? STATE_WAITING : STATE_OFF);
}

void client_fail(struct client *c, const char *format, ...)
{
    char why[300];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    for (char *p = why; *p != '\0'; p++) {
        *p = *p == '"' || *p == '\\' || (unsigned char)*p < ' ' ? '\'' : *p;
    }
    if (c->state != STATE_CLOSING) {
        say("down", "\"client\":\"%s\",\"why\":\"%s\"", c->name, why);
    }
    reset(c, false);
}

void client_drop(struct client *c, bool is_reset)
{
    reset(c, is_reset);
}

void client_close(struct client *c)
{
    if (c->state != STATE_READY) {
        reset(c, false);
        return;
    }
    amqp_send_connection_close(
        &c->out, 0, &(struct amqp_connection_close){.reply_code = 200, .reply_text = span_str("done")});
    state_set(c, STATE_CLOSING);
}

static void open_socket(struct client *c)
{
    const struct node_plan *node = &ledger.nodes[c->node];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)node->port)};
    inet_pton(AF_INET, node->host, &to.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert(c->fd >= 0);
    const int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    state_set(c, STATE_CONNECTING);
    if (connect(c->fd, (const struct sockaddr *)&to, sizeof(to)) != 0 && errno != EINPROGRESS) {
        client_fail(c, "connect: %s", strerror(errno));
    }
}

void client_connected(struct client *c)
{
    int error = 0;
    socklen_t len = sizeof(error);
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error != 0) {
        client_fail(c, "connect: %s", strerror(error));
        return;
    }
    buf_bytes(&c->out, amqp_header_091, sizeof(amqp_header_091));
    c->heard_ns = c->said_ns = now_ns();
    state_set(c, STATE_STARTING);
}

void client_step(struct client *c, uint64_t now)
{
    const uint64_t in_state = now - c->since_ns;
    switch (c->state) {
    case STATE_OFF:
        if (c->is_wanted) {
            state_set(c, STATE_WAITING);
        }
        break;
    case STATE_WAITING:
        if (!c->is_wanted) {
            state_set(c, STATE_OFF);
        } else if (in_state > RETRY_MS * MS) {
            open_socket(c);
        }
        break;
    case STATE_CONNECTING:
        if (in_state > CONNECT_MS * MS) {
            client_fail(c, "connect: no answer");
        }
        break;
    case STATE_READY:
        if (now - c->heard_ns > 2 * HEARTBEAT_S * 1000 * MS) {
            client_fail(c, "silence for two heartbeats");
            break;
        }
        if (now - c->said_ns > HEARTBEAT_S * 1000 / 2 * MS && c->out.len == c->out_at) {
            amqp_frame_heartbeat(&c->out);
        }
        role_step(c, now);
        break;
    case STATE_CLOSING:
        if (in_state > CONNECT_MS * MS) {
            reset(c, false);
        }
        break;
    default:
        if (in_state > HANDSHAKE_MS * MS) {
            client_fail(c, "no handshake within %d ms, state %d", HANDSHAKE_MS, c->state);
        }
        break;
    }
}

// The steps up to an open channel. True if the method belonged to them.
static bool on_handshake(struct client *c, const struct amqp_method *m)
{
    if (c->state == STATE_STARTING && m->id == AMQP_CONNECTION_START_ID) {
        // capabilities: connection.blocked and consumer_cancel_notify, as all client libraries say.
        struct buf caps = {0}, table = {0};
        for (const char *const *name =
                 (const char *const[]){"connection.blocked", "consumer_cancel_notify", "basic.nack", NULL};
             *name != NULL; name++) {
            buf_u8(&caps, (uint8_t)strlen(*name));
            buf_bytes(&caps, *name, strlen(*name));
            buf_bytes(&caps, "t\1", 2);
        }
        buf_bytes(&table, "\14capabilitiesF", 14);
        buf_u32be(&table, (uint32_t)caps.len);
        buf_span_bytes(&table, buf_span(&caps));
        amqp_send_connection_start_ok(
            &c->out, 0,
            &(struct amqp_connection_start_ok){.client_properties = buf_span(&table),
                                               .mechanism = span_str("PLAIN"),
                                               .response = span_of("\0guest\0guest", 12),
                                               .locale = span_str("en_US")});
        buf_deinit(&caps);
        buf_deinit(&table);
        state_set(c, STATE_TUNING);
    } else if (c->state == STATE_TUNING && m->id == AMQP_CONNECTION_TUNE_ID) {
        amqp_send_connection_tune_ok(&c->out, 0,
                                     &(struct amqp_connection_tune_ok){.channel_max = 16,
                                                                       .frame_max = FRAME_MAX,
                                                                       .heartbeat = HEARTBEAT_S});
        amqp_send_connection_open(&c->out, 0, &(struct amqp_connection_open){.virtual_host = span_str("/")});
        state_set(c, STATE_OPENING);
    } else if (c->state == STATE_OPENING && m->id == AMQP_CONNECTION_OPEN_OK_ID) {
        amqp_send_channel_open(&c->out, 1, &(struct amqp_channel_open){0});
        state_set(c, STATE_CHANNEL);
    } else if (c->state == STATE_CHANNEL && m->id == AMQP_CHANNEL_OPEN_OK_ID) {
        state_set(c, STATE_READY);
        role_begin(c);
    } else {
        return false;
    }
    return true;
}

static void on_method(struct client *c, struct span payload)
{
    struct amqp_method m;
    if (amqp_method_read(payload, &m) != RC_OK) {
        client_fail(c, "a method that does not decode");
        return;
    }
    if (on_handshake(c, &m)) {
        return;
    }
    switch (m.id) {
    case AMQP_CONNECTION_CLOSE_OK_ID:
        reset(c, false);
        break;
    case AMQP_CONNECTION_CLOSE_ID:
        client_fail(c, "connection closed: %u %.*s", m.connection_close.reply_code,
                    (int)m.connection_close.reply_text.len, (const char *)m.connection_close.reply_text.ptr);
        break;
    case AMQP_CHANNEL_CLOSE_ID:
        client_fail(c, "channel closed: %u %.*s", m.channel_close.reply_code,
                    (int)m.channel_close.reply_text.len, (const char *)m.channel_close.reply_text.ptr);
        break;
    case AMQP_CONNECTION_BLOCKED_ID:
        c->is_blocked = true;
        say("blocked", "\"client\":\"%s\",\"why\":\"%.*s\"", c->name, (int)m.connection_blocked.reason.len,
            (const char *)m.connection_blocked.reason.ptr);
        break;
    case AMQP_CONNECTION_UNBLOCKED_ID:
        c->is_blocked = false;
        break;
    case AMQP_BASIC_CANCEL_ID:
        client_fail(c, "consumer cancelled");
        break;
    case AMQP_BASIC_DELIVER_ID:
        c->content = m.id;
        c->tag = m.basic_deliver.delivery_tag;
        c->is_redelivered = m.basic_deliver.redelivered;
        c->content_queue = c->queue;
        break;
    case AMQP_BASIC_RETURN_ID:
        c->content = m.id;
        c->return_code = m.basic_return.reply_code;
        break;
    default:
        role_method(c, &m);
        break;
    }
}

static void on_content(struct client *c, const struct amqp_frame *f)
{
    struct content_header h;
    if (f->type == AMQP_FRAME_HEADER) {
        if (c->content == 0 || content_header_read(f->payload, &h) != RC_OK || h.body_size > BODY_BYTES_MAX) {
            client_fail(c, "a content header out of place");
            return;
        }
        c->body.len = 0;
        c->body_left = h.body_size;
    } else {
        if (c->content == 0 || f->payload.len > c->body_left) {
            client_fail(c, "a body frame out of place");
            return;
        }
        buf_span_bytes(&c->body, f->payload);
        c->body_left -= f->payload.len;
    }
    if (c->body_left == 0) {
        role_content(c);
        c->content = 0;
    }
}

void client_read(struct client *c)
{
    buf_reserve(&c->in, READ_BYTES);
    const ssize_t n = read(c->fd, c->in.ptr + c->in.len, c->in.cap - c->in.len);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        client_fail(c, "%s", n == 0 ? "end of stream" : strerror(errno));
        return;
    }
    c->in.len += (size_t)n;
    c->heard_ns = now_ns();
    const int fd = c->fd;
    while (c->fd == fd) {
        struct amqp_frame f;
        struct amqp_frame_fault fault;
        size_t used;
        const enum rc rc = amqp_frame_read(span_of(c->in.ptr + c->in_at, c->in.len - c->in_at), FRAME_MAX, &f,
                                           &used, &fault);
        if (rc == RC_MORE) {
            buf_consume(&c->in, c->in_at);
            c->in_at = 0;
            return;
        }
        if (rc != RC_OK) {
            client_fail(c, "a frame that does not decode");
            return;
        }
        c->in_at += used;
        if (f.type == AMQP_FRAME_METHOD) {
            on_method(c, f.payload);
        } else if (f.type != AMQP_FRAME_HEARTBEAT) {
            on_content(c, &f);
        }
    }
}

void client_write(struct client *c)
{
    while (c->out_at < c->out.len) {
        const ssize_t n = send(c->fd, c->out.ptr + c->out_at, c->out.len - c->out_at, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno != EAGAIN && errno != EINTR) {
                client_fail(c, "%s", strerror(errno));
            }
            return;
        }
        c->out_at += (size_t)n;
        c->said_ns = now_ns();
    }
    c->out.len = c->out_at = 0;
}
