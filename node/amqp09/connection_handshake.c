// SPDX-License-Identifier: Apache-2.0
// From the protocol header to open-ok (data-plane §1.1-§1.3).
//
// start -> start-ok (who are you) -> tune -> tune-ok (how large) -> open (which vhost) -> open-ok. Before
// tune, errors are not told: the socket is dropped after three seconds, so that guessing passwords is slow.
// The exception is a wrong password from a client that asked to be told. After tune every error is a
// connection.close.
#include "node/amqp09/reply.h"
#include "node/amqp09/service.h"
#include "node/base/log.h"
#include "proto/amqp09/table.h"
#include <stdio.h>
#include <stdlib.h>

enum {
    SILENT_CLOSE_DELAY_MS = 3000,
    FRAME_MAX_LEAST = 8192,
};

// ---- start --------------------------------------------------------------------------------------

static void put_server_properties(const struct connection *c, struct buf *b)
{
    const struct amqp09_config *config = &c->service->config;
    size_t capabilities = table_begin_table(b, "capabilities");
    table_put_bool(b, "publisher_confirms", true);
    table_put_bool(b, "exchange_exchange_bindings", true);
    table_put_bool(b, "basic.nack", true);
    table_put_bool(b, "consumer_cancel_notify", true);
    table_put_bool(b, "connection.blocked", true);
    table_put_bool(b, "consumer_priorities", true);
    table_put_bool(b, "authentication_failure_close", true);
    table_put_bool(b, "per_consumer_qos", true);
    table_end(b, capabilities);
    table_put_text(b, "cluster_name", config->cluster_name);
    table_put_text(b, "copyright", "Copyright (c) the Warren authors");
    table_put_text(b, "information", "Warren, licensed under the Apache License 2.0");
    table_put_text(b, "platform", "C17");
    table_put_text(b, "product", "RabbitMQ");  // Clients switch features on by this name.
    table_put_text(b, "version", config->version);
}

void handshake_begin(struct connection *c)
{
    struct buf properties;
    buf_init(&properties);
    put_server_properties(c, &properties);
    const char *mechanisms =
        c->service->config.anonymous_user ? "AMQPLAIN ANONYMOUS PLAIN" : "AMQPLAIN PLAIN";
    amqp_send_connection_start(connection_out(c), 0,
                               &(struct amqp_connection_start){.version_major = 0,
                                                               .version_minor = 9,
                                                               .server_properties = buf_span(&properties),
                                                               .mechanisms = span_str(mechanisms),
                                                               .locales = span_str("en_US")});
    connection_out_done(c);
    buf_deinit(&properties);
    c->state = CONNECTION_STARTING;
}

void handshake_drop(struct connection *c)
{
    c->state = CONNECTION_SILENT;
    c->state_deadline = amqp09_later(c->service, SILENT_CLOSE_DELAY_MS);
}

// ---- start-ok -----------------------------------------------------------------------------------

static void keep_client_properties(struct connection *c, struct span properties)
{
    buf_span_bytes(&c->client_properties, properties);
    struct span kept = buf_span(&c->client_properties);
    struct table_value capabilities;
    if (table_find(kept, "capabilities", &capabilities) && capabilities.type == TABLE_TABLE) {
        struct span t = capabilities.bytes;
        (void)table_find_bool(t, "authentication_failure_close", &c->has_close_on_login_failure);
        (void)table_find_bool(t, "consumer_cancel_notify", &c->has_cancel_notify);
        (void)table_find_bool(t, "connection.blocked", &c->has_blocked);
    }
    struct span name;
    if (table_find_string(kept, "connection_name", &name)) {
        c->client_name = name;
    }
}

struct login {
    struct span user, password;
};

// NUL user NUL password, nothing else.
static bool read_plain(struct span response, struct login *out)
{
    struct reader r = reader_of(response);
    if (reader_u8(&r) != 0 || r.is_bad) {
        return false;
    }
    struct span rest = reader_span(&r, reader_left(&r));
    const uint8_t *nul = rest.len > 0 ? memchr(rest.ptr, 0, rest.len) : NULL;
    if (!nul) {
        return false;
    }
    size_t user_len = (size_t)(nul - rest.ptr);
    out->user = span_of(rest.ptr, user_len);
    out->password = span_of(nul + 1, rest.len - user_len - 1);
    return out->password.len == 0 || !memchr(out->password.ptr, 0, out->password.len);
}

// A table's content: LOGIN and PASSWORD.
static bool read_amqplain(struct span response, struct login *out)
{
    struct table_value password;
    if (table_check(response) != RC_OK || !table_find_string(response, "LOGIN", &out->user) ||
        !table_find(response, "PASSWORD", &password) ||
        (password.type != TABLE_STRING && password.type != TABLE_BINARY)) {
        return false;
    }
    out->password = password.bytes;
    return true;
}

static void refuse_login(struct connection *c, struct span user)
{
    log_warning("connection %s: login of user '%.*s' refused using mechanism %s", c->name, (int)user.len,
                (const char *)user.ptr, c->mechanism);
    if (c->has_close_on_login_failure) {
        c->state = CONNECTION_TUNING;  // Past the states in which errors are not told.
        connection_fail(
            c, REPLY_ACCESS_REFUSED, 0,
            "Login was refused using authentication mechanism %s. For details see the broker logfile.",
            c->mechanism);
    } else {
        handshake_drop(c);
    }
}

static void send_tune(struct connection *c)
{
    const struct amqp09_config *config = &c->service->config;
    amqp_send_connection_tune(connection_out(c), 0,
                              &(struct amqp_connection_tune){.channel_max = config->channel_max,
                                                             .frame_max = config->frame_max,
                                                             .heartbeat = config->heartbeat_s});
    connection_out_done(c);
    c->state = CONNECTION_TUNING;
}

static void start_ok(struct connection *c, const struct amqp_connection_start_ok *m)
{
    const struct amqp09_config *config = &c->service->config;
    keep_client_properties(c, m->client_properties);
    snprintf(c->mechanism, sizeof(c->mechanism), "%.*s", (int)m->mechanism.len,
             (const char *)m->mechanism.ptr);
    struct login login;
    bool is_read;
    if (span_equal(m->mechanism, span_str("PLAIN"))) {
        is_read = read_plain(m->response, &login);
    } else if (span_equal(m->mechanism, span_str("AMQPLAIN"))) {
        is_read = read_amqplain(m->response, &login);
    } else if (span_equal(m->mechanism, span_str("ANONYMOUS")) && config->anonymous_user) {
        login = (struct login){.user = span_str(config->anonymous_user),
                               .password = span_str(config->anonymous_pass)};
        is_read = true;
    } else {
        connection_fail(c, REPLY_COMMAND_INVALID, AMQP_CONNECTION_START_OK_ID,
                        "unknown authentication mechanism '%s'", c->mechanism);
        return;
    }
    if (!is_read) {
        connection_fail(c, REPLY_SYNTAX_ERROR, AMQP_CONNECTION_START_OK_ID,
                        "malformed response of mechanism %s", c->mechanism);
        return;
    }
    bool is_guest_far =
        span_equal(login.user, span_str("guest")) && !c->peer.is_loopback && !config->is_guest_remote;
    if (is_guest_far || !broker_authenticate(config->broker, login.user, login.password, &c->user)) {
        refuse_login(c, login.user);
        return;
    }
    c->user_name = span_str(c->user.name);
    send_tune(c);
}

// ---- tune-ok ------------------------------------------------------------------------------------

// Zero means no limit. False: the connection has failed.
static bool check_limit(struct connection *c, const char *name, uint32_t asked, uint32_t allowed)
{
    if (allowed == 0 || (asked != 0 && asked <= allowed)) {
        return true;
    }
    connection_fail(c, REPLY_NOT_ALLOWED, AMQP_CONNECTION_TUNE_ID,
                    "negotiated %s = %u%s is higher than the maximum allowed value (%u)", name, asked,
                    asked == 0 ? " (no limit)" : "", allowed);
    return false;
}

static void tune_ok(struct connection *c, const struct amqp_connection_tune_ok *m)
{
    const struct amqp09_config *config = &c->service->config;
    if (m->frame_max != 0 && m->frame_max < FRAME_MAX_LEAST) {
        connection_fail(c, REPLY_NOT_ALLOWED, AMQP_CONNECTION_TUNE_ID,
                        "negotiated frame_max = %u is lower than the minimum allowed value (%u)",
                        m->frame_max, FRAME_MAX_LEAST);
        return;
    }
    if (!check_limit(c, "frame_max", m->frame_max, config->frame_max) ||
        !check_limit(c, "channel_max", m->channel_max, config->channel_max)) {
        return;
    }
    c->frame_max = m->frame_max;
    c->channel_max = m->channel_max;
    c->heartbeat_s = m->heartbeat;
    // No limit still means: not more than a message can be.
    c->payload_max = m->frame_max == 0 ? LIMIT_MESSAGE_BYTES_MAX : m->frame_max;
    if (c->heartbeat_s > 0) {
        uint64_t now = amqp09_now(c->service);
        c->beat_send_at = now + (uint64_t)c->heartbeat_s * 500000000u;
        c->beat_check_at = now + (uint64_t)c->heartbeat_s * 1000000000u;
    }
    c->state = CONNECTION_OPENING;
}

// ---- open ---------------------------------------------------------------------------------------

static void open(struct connection *c, const struct amqp_connection_open *m)
{
    struct amqp09 *s = c->service;
    const uint32_t id = AMQP_CONNECTION_OPEN_ID;
    if (s->config.connections_max > 0 && s->connections_count > s->config.connections_max) {
        connection_fail(c, REPLY_NOT_ALLOWED, id, "connection refused: node connection limit (%u) is reached",
                        s->config.connections_max);
        return;
    }
    struct broker_vhost *v = broker_vhost_find(s->config.broker, m->virtual_host);
    if (!v) {
        connection_fail(c, REPLY_NOT_ALLOWED, id, "vhost %.*s not found", (int)m->virtual_host.len,
                        (const char *)m->virtual_host.ptr);
        return;
    }
    if (!broker_may_enter(s->config.broker, c->user_name, v)) {
        connection_fail(c, REPLY_NOT_ALLOWED, id, "access to vhost '%.*s' refused for user '%s'",
                        (int)m->virtual_host.len, (const char *)m->virtual_host.ptr, c->user.name);
        return;
    }
    c->vhost_name = span_of(mem_strndup(m->virtual_host.ptr, m->virtual_host.len), m->virtual_host.len);
    c->state = CONNECTION_RUNNING;
    c->state_deadline = UINT64_MAX;
    amqp_send_connection_open_ok(connection_out(c), 0, &(struct amqp_connection_open_ok){});
    connection_out_done(c);
    log_info("connection %s: user '%s' authenticated and granted access to vhost '%.*s'", c->name,
             c->user.name, (int)c->vhost_name.len, (const char *)c->vhost_name.ptr);
}

void handshake_method(struct connection *c, const struct amqp_method *m)
{
    if (c->state == CONNECTION_STARTING && m->id == AMQP_CONNECTION_START_OK_ID) {
        start_ok(c, &m->connection_start_ok);
    } else if (c->state == CONNECTION_TUNING && m->id == AMQP_CONNECTION_TUNE_OK_ID) {
        tune_ok(c, &m->connection_tune_ok);
    } else if (c->state == CONNECTION_OPENING && m->id == AMQP_CONNECTION_OPEN_ID) {
        open(c, &m->connection_open);
    } else {
        connection_fail(c, REPLY_CHANNEL_ERROR, m->id, "unexpected method in connection state %s",
                        connection_state_name(c));
    }
}
