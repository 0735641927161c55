// SPDX-License-Identifier: Apache-2.0
// links: node/amqp09 proto/amqp09 node/base
// Connection life (data-plane §1.1-§1.5, §1.14): handshake rules, error classes, heartbeats, closing. Every
// test runs with its input whole and byte by byte.
#include "tests/unit/node/amqp09_client.h"
#include "tests/unit/node/amqp09_stub.h"
#include "tests/unit/suite.h"
#include <check.h>

static struct test_client client;
static struct test_client *const t = &client;

static void setup(void)
{
    stub_init();
}

static void begin(int chop)
{
    struct amqp09_config config = client_config();
    t->chop = (size_t)chop;
    client_start(t, &config, true);
}

static void end(void)
{
    client_stop(t);
    stub_deinit();
}

static void pass(uint64_t ms)
{
    stub.now_ns += ms * 1000000;
    if (stub.now_ns >= connection_deadline(t->connection)) {
        connection_tick(t->connection);
    }
}

// ---- protocol header ----------------------------------------------------------------------------

START_TEST(a_wrong_header_is_answered_and_the_socket_closed)
{
    static const struct {
        const char *bytes;
        const uint8_t *answer;
    } rows[] = {
        {"AMQP\x01\x01\x08\x00", amqp_header_sasl}, {"AMQP\x02\x01\0\0", amqp_header_sasl},
        {"AMQP\0\0\x09\x02", amqp_header_091},      {"GET / HT", amqp_header_sasl},
        {"AMQP\x03\x01\0\0", amqp_header_sasl},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        begin(_i);
        client_bytes(t, rows[i].bytes, 8);
        struct span out = connection_output(t->connection);
        ck_assert_uint_eq(out.len, 8);
        ck_assert_mem_eq(out.ptr, rows[i].answer, 8);
        ck_assert(t->is_closed);
        client_stop(t);
    }
    stub_deinit();
}
END_TEST

START_TEST(start_names_product_version_and_capabilities)
{
    begin(_i);
    client_bytes(t, "AMQP\x01\x01\x00\x09", 8);  // 0-9 is taken as 0-9-1.
    struct amqp_method m = EXPECT(t, 0, CONNECTION_START);
    ck_assert_uint_eq(m.connection_start.version_major, 0);
    ck_assert_uint_eq(m.connection_start.version_minor, 9);
    EXPECT_TEXT(m.connection_start.mechanisms, "AMQPLAIN ANONYMOUS PLAIN");
    EXPECT_TEXT(m.connection_start.locales, "en_US");
    struct span s;
    struct table_value v;
    ck_assert(table_find_string(m.connection_start.server_properties, "product", &s) &&
              span_is(s, "RabbitMQ"));
    ck_assert(table_find_string(m.connection_start.server_properties, "version", &s) && span_is(s, "4.3.6"));
    ck_assert(table_find(m.connection_start.server_properties, "capabilities", &v));
    static const char *const names[] = {"publisher_confirms",
                                        "exchange_exchange_bindings",
                                        "basic.nack",
                                        "consumer_cancel_notify",
                                        "connection.blocked",
                                        "consumer_priorities",
                                        "authentication_failure_close",
                                        "per_consumer_qos"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        bool is_set = false;
        ck_assert_msg(table_find_bool(v.bytes, names[i], &is_set) && is_set, "%s", names[i]);
    }
    end();
}
END_TEST

// ---- login --------------------------------------------------------------------------------------

static void start_ok(const char *mechanism, struct span response, bool wants_close)
{
    struct buf properties = {0};
    if (wants_close) {
        size_t at = table_begin_table(&properties, "capabilities");
        table_put_bool(&properties, "authentication_failure_close", true);
        table_end(&properties, at);
    }
    client_bytes(t, amqp_header_091, 8);
    EXPECT(t, 0, CONNECTION_START);
    SEND(t, 0, connection_start_ok, .client_properties = buf_span(&properties),
         .mechanism = span_str(mechanism), .response = response, .locale = span_str("en_US"));
    buf_deinit(&properties);
}

// Nothing is said; after three seconds the socket goes.
static void expect_silence_then_drop(void)
{
    expect_nothing(t);
    pass(2999);
    ck_assert(!t->is_closed);
    pass(1);
    ck_assert(t->is_closed);
    expect_nothing(t);
}

START_TEST(plain_amqplain_and_anonymous_log_in)
{
    struct buf amqplain = {0};
    table_put_text(&amqplain, "LOGIN", "u");
    table_put_text(&amqplain, "PASSWORD", "secret");
    const struct {
        const char *mechanism;
        struct span response;
    } rows[] = {{"PLAIN", span_of("\0u\0secret", 9)},
                {"AMQPLAIN", buf_span(&amqplain)},
                {"ANONYMOUS", span_str("whatever")}};
    for (size_t i = 0; i < 3; i++) {
        begin(_i);
        start_ok(rows[i].mechanism, rows[i].response, false);
        struct amqp_method m = EXPECT(t, 0, CONNECTION_TUNE);
        ck_assert_uint_eq(m.connection_tune.channel_max, 2047);
        ck_assert_uint_eq(m.connection_tune.frame_max, 131072);
        ck_assert_uint_eq(m.connection_tune.heartbeat, 60);
        client_stop(t);
    }
    buf_deinit(&amqplain);
    stub_deinit();
}
END_TEST

START_TEST(a_wrong_password_is_told_only_to_clients_that_ask)
{
    begin(_i);
    start_ok("PLAIN", span_of("\0u\0wrong", 8), true);
    expect_connection_close(t, 403,
                            "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For "
                            "details see the broker logfile.");
    client_stop(t);
    begin(_i);
    start_ok("PLAIN", span_of("\0u\0wrong", 8), false);
    expect_silence_then_drop();
    end();
}
END_TEST

START_TEST(other_errors_before_tune_are_silent)
{
    static const struct {
        const char *mechanism, *response;
        size_t len;
    } rows[] = {
        {"EXTERNAL", "", 0},           {"PLAIN", "u\0secret", 8}, {"PLAIN", "\0u", 2},
        {"PLAIN", "\0u\0a\0b", 6},     {"PLAIN", "", 0},          {"AMQPLAIN", "\5LOGIN", 6},
        {"AMQPLAIN", "\5LOGINb\1", 8},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        begin(_i);
        start_ok(rows[i].mechanism, span_of(rows[i].response, rows[i].len), true);
        expect_silence_then_drop();
        client_stop(t);
    }
    stub_deinit();
}
END_TEST

START_TEST(guest_comes_from_loopback_only)
{
    struct amqp09_config config = client_config();
    t->chop = (size_t)_i;
    client_start(t, &config, false);
    start_ok("PLAIN", span_of("\0guest\0secret", 13), false);
    expect_silence_then_drop();
    client_stop(t);
    client_start(t, &config, false);
    start_ok("PLAIN", span_of("\0other\0secret", 13), false);
    EXPECT(t, 0, CONNECTION_TUNE);
    client_stop(t);
    config.is_guest_remote = true;
    client_start(t, &config, false);
    start_ok("PLAIN", span_of("\0guest\0secret", 13), false);
    EXPECT(t, 0, CONNECTION_TUNE);
    end();
}
END_TEST

START_TEST(start_ok_above_8192_bytes_is_refused_from_its_head)
{
    begin(_i);
    client_bytes(t, amqp_header_091, 8);
    EXPECT(t, 0, CONNECTION_START);
    static const uint8_t head[] = {1, 0, 0, 0, 0x10, 0, 0};
    client_bytes(t, head, sizeof(head));
    uint8_t more[4096] = {0};
    client_bytes(t, more, sizeof(more));
    ck_assert_uint_eq(t->connection->rest.len, 0);  // Nothing of it is kept.
    expect_silence_then_drop();
    end();
}
END_TEST

START_TEST(a_handshake_has_ten_seconds)
{
    begin(_i);
    client_bytes(t, amqp_header_091, 8);
    pass(9999);
    ck_assert(!t->is_closed);
    pass(1);
    ck_assert(t->is_closed);
    end();
}
END_TEST

// ---- tune and open ------------------------------------------------------------------------------

START_TEST(tune_ok_must_stay_within_what_was_offered)
{
    static const struct {
        uint16_t channel_max;
        uint32_t frame_max;
        const char *text;
    } rows[] = {
        {2047, 4096,
         "NOT_ALLOWED - negotiated frame_max = 4096 is lower than the minimum allowed value (8192)"},
        {2047, 0,
         "NOT_ALLOWED - negotiated frame_max = 0 (no limit) is higher than the maximum allowed value "
         "(131072)"},
        {2047, 131073,
         "NOT_ALLOWED - negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"},
        {0, 131072,
         "NOT_ALLOWED - negotiated channel_max = 0 (no limit) is higher than the maximum allowed value "
         "(2047)"},
        {2048, 131072,
         "NOT_ALLOWED - negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        begin(_i);
        client_login(t, "u", true);
        EXPECT(t, 0, CONNECTION_TUNE);
        SEND(t, 0, connection_tune_ok, .channel_max = rows[i].channel_max, .frame_max = rows[i].frame_max,
             .heartbeat = 60);
        struct amqp_method m = EXPECT(t, 0, CONNECTION_CLOSE);
        ck_assert_uint_eq(m.connection_close.reply_code, 530);
        ck_assert_uint_eq(m.connection_close.class_id, 10);
        ck_assert_uint_eq(m.connection_close.method_id, 30);
        EXPECT_TEXT(m.connection_close.reply_text, rows[i].text);
        client_stop(t);
    }
    stub_deinit();
}
END_TEST

START_TEST(open_checks_vhost_and_permission)
{
    static const struct {
        const char *user, *vhost, *text;
    } rows[] = {
        {"u", "/none", "NOT_ALLOWED - vhost /none not found"},
        {"outsider", "/", "NOT_ALLOWED - access to vhost '/' refused for user 'outsider'"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        begin(_i);
        client_login(t, rows[i].user, true);
        EXPECT(t, 0, CONNECTION_TUNE);
        SEND(t, 0, connection_tune_ok, .channel_max = 10, .frame_max = 8192, .heartbeat = 60);
        SEND(t, 0, connection_open, .virtual_host = span_str(rows[i].vhost));
        expect_connection_close(t, 530, rows[i].text);
        client_stop(t);
    }
    stub_deinit();
}
END_TEST

// ---- errors -------------------------------------------------------------------------------------

static void frame_bytes(uint8_t type, uint16_t channel, const char *payload, size_t n)
{
    size_t at = amqp_frame_begin(&t->in, type, channel);
    buf_bytes(&t->in, payload, n);
    amqp_frame_end(&t->in, at);
    client_flush(t);
}

START_TEST(errors_have_their_codes)
{
    static const struct {
        uint8_t type;
        uint16_t channel;
        const char *payload;
        size_t len;
        uint16_t code;
    } rows[] = {
        {4, 0, "", 0, 501},                                   // unknown frame type
        {8, 1, "", 0, 505},                                   // heartbeat on a channel
        {8, 0, "x", 1, 501},                                  // heartbeat with payload
        {2, 0, "", 0, 505},                                   // header on channel 0
        {1, 0, "\0\x0A\0\x0B\0\0\0\0\0\0\0\0\0\0", 14, 504},  // start-ok when running
        {1, 0, "\0\x0A\0\x28\0\0", 6, 501},                   // open cut off
        {1, 0, "\0\x63\0\x01", 4, 503},                       // no such class
        {1, 1, "\0\x3C\0\x0A\0\0\0\0\0\0\0", 11, 504},        // qos before channel.open
        {3, 1, "x", 1, 505},                                  // body before channel.open
        {1, 7, "\0\x14\0\x0A\1\xFF", 6, 501},                 // short string that is not UTF-8
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        begin(_i);
        client_open(t, "u");
        frame_bytes(rows[i].type, rows[i].channel, rows[i].payload, rows[i].len);
        struct amqp_method m = EXPECT(t, 0, CONNECTION_CLOSE);
        ck_assert_msg(m.connection_close.reply_code == rows[i].code, "row %zu: %u %.*s", i,
                      m.connection_close.reply_code, STUB_SPAN(m.connection_close.reply_text));
        client_stop(t);
    }
    stub_deinit();
}
END_TEST

START_TEST(a_frame_above_frame_max_is_501_and_the_socket_goes_after_three_seconds)
{
    begin(_i);
    client_login(t, "u", true);
    client_tune_and_open(t, 10, 8192, 0);
    static const uint8_t head[] = {3, 0, 1, 0, 0, 0x20, 1};  // 8193
    client_bytes(t, head, sizeof(head));
    struct amqp_method m = EXPECT(t, 0, CONNECTION_CLOSE);
    ck_assert_uint_eq(m.connection_close.reply_code, 501);
    EXPECT_TEXT(m.connection_close.reply_text,
                "FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,8193,8184}");
    SEND(t, 0, connection_close_ok, );
    ck_assert(!t->is_closed);
    pass(3000);
    ck_assert(t->is_closed);
    end();
}
END_TEST

START_TEST(a_wrong_end_octet_is_501)
{
    begin(_i);
    client_open(t, "u");
    static const uint8_t frame[] = {8, 0, 0, 0, 0, 0, 0, 0xCD};
    client_bytes(t, frame, sizeof(frame));
    struct amqp_method m = EXPECT(t, 0, CONNECTION_CLOSE);
    ck_assert_uint_eq(m.connection_close.reply_code, 501);
    EXPECT_TEXT(m.connection_close.reply_text,
                "FRAME_ERROR - type 8, all octets = <<>>: {invalid_frame_end_marker,205}");
    end();
}
END_TEST

START_TEST(a_channel_before_open_ok_is_505)
{
    begin(_i);
    client_login(t, "u", true);
    EXPECT(t, 0, CONNECTION_TUNE);
    SEND(t, 1, channel_open, );
    struct amqp_method m = EXPECT(t, 0, CONNECTION_CLOSE);
    ck_assert_uint_eq(m.connection_close.reply_code, 505);
    end();
}
END_TEST

START_TEST(after_our_close_everything_is_ignored_until_close_ok)
{
    begin(_i);
    client_open(t, "u");
    client_channel(t, 1);
    SEND(t, 1, channel_open, );
    struct amqp_method m = EXPECT(t, 0, CONNECTION_CLOSE);
    ck_assert_uint_eq(m.connection_close.reply_code, 504);
    EXPECT_TEXT(m.connection_close.reply_text, "CHANNEL_ERROR - second 'channel.open' seen");
    ck_assert_uint_eq(m.connection_close.class_id, 20);
    SEND(t, 1, basic_qos, .prefetch_count = 1);
    SEND(t, 2, channel_open, );
    expect_nothing(t);
    SEND(t, 0, connection_close_ok, );
    ck_assert(t->is_closed);
    end();
}
END_TEST

START_TEST(a_client_that_does_not_answer_our_close_is_dropped)
{
    static const struct {
        uint16_t heartbeat;
        uint64_t wait_ms;
    } rows[] = {{0, 30000}, {60, 30000}, {10, 10000}};
    for (size_t i = 0; i < 3; i++) {
        begin(_i);
        client_login(t, "u", true);
        client_tune_and_open(t, 10, 131072, rows[i].heartbeat);
        SEND(t, 1, basic_qos, .prefetch_count = 1);
        EXPECT(t, 0, CONNECTION_CLOSE);
        uint64_t closed_at = stub.now_ns + rows[i].wait_ms * 1000000;
        while (!t->is_closed) {
            stub.now_ns = connection_deadline(t->connection);
            connection_tick(t->connection);
        }
        ck_assert_uint_eq(stub.now_ns, closed_at);
        client_stop(t);
    }
    stub_deinit();
}
END_TEST

START_TEST(close_by_the_client_is_answered_last)
{
    begin(_i);
    client_open(t, "u");
    client_channel(t, 1);
    SEND(t, 0, connection_close, .reply_code = 200, .reply_text = span_str("bye"));
    EXPECT(t, 0, CONNECTION_CLOSE_OK);
    ck_assert(t->is_closed);
    ck_assert(!t->is_abrupt);
    expect_nothing(t);
    end();
}
END_TEST

START_TEST(channel_max_bounds_the_number_of_channels)
{
    begin(_i);
    client_login(t, "u", true);
    client_tune_and_open(t, 2, 131072, 60);
    client_channel(t, 7);
    client_channel(t, 1000);
    SEND(t, 3, channel_open, );
    expect_connection_close(
        t, 530, "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)");
    end();
}
END_TEST

START_TEST(update_secret_is_answered)
{
    begin(_i);
    client_open(t, "u");
    SEND(t, 0, connection_update_secret, .new_secret = span_str("n"), .reason = span_str("r"));
    EXPECT(t, 0, CONNECTION_UPDATE_SECRET_OK);
    stub.is_refusing = true;
    SEND(t, 0, connection_update_secret, .new_secret = span_str("n"), .reason = span_str("r"));
    expect_connection_close(t, 530, "NOT_ALLOWED - New secret was refused by one of the backends");
    end();
}
END_TEST

// ---- heartbeats ---------------------------------------------------------------------------------

START_TEST(heartbeats_go_out_every_half_interval_of_silence)
{
    begin(_i);
    client_login(t, "u", true);
    client_tune_and_open(t, 10, 131072, 10);
    pass(5000);  // What was sent during the handshake counts.
    expect_nothing(t);
    pass(5000);
    struct amqp_frame f = next_frame(t);
    ck_assert_uint_eq(f.type, AMQP_FRAME_HEARTBEAT);
    ck_assert_uint_eq(f.payload.len, 0);
    client_channel(t, 1);
    pass(5000);
    expect_nothing(t);
    end();
}
END_TEST

START_TEST(two_intervals_without_input_drop_the_connection)
{
    begin(_i);
    client_login(t, "u", true);
    client_tune_and_open(t, 10, 131072, 10);
    static const uint8_t beat[] = {8, 0, 0, 0, 0, 0, 0, 0xCE};
    for (int i = 0; i < 10; i++) {
        pass(10000);
        client_bytes(t, beat, sizeof(beat));
        ck_assert(!t->is_closed);
    }
    pass(10000);  // Saw the beat before.
    pass(10000);
    ck_assert(!t->is_closed);
    pass(10000);
    ck_assert(t->is_closed);
    ck_assert(t->is_abrupt);
    end();
}
END_TEST

START_TEST(heartbeat_zero_switches_both_off)
{
    begin(_i);
    client_login(t, "u", true);
    client_tune_and_open(t, 10, 131072, 0);
    ck_assert_uint_eq(connection_deadline(t->connection), UINT64_MAX);
    end();
}
END_TEST

// ---- blocked, forced ----------------------------------------------------------------------------

START_TEST(an_alarm_blocks_publishers_only_and_tells_them_once)
{
    stub_queue_add("q");
    begin(_i);
    client_open(t, "u");
    client_channel(t, 1);
    amqp09_set_alarms(t->service, AMQP09_ALARM_MEMORY | AMQP09_ALARM_DISK);
    expect_nothing(t);
    SEND(t, 1, basic_qos, .prefetch_count = 1);  // Consumers are not held back.
    EXPECT(t, 1, BASIC_QOS_OK);
    publish(t, 1, "", "q", "a");
    struct amqp_method m = EXPECT(t, 0, CONNECTION_BLOCKED);
    EXPECT_TEXT(m.connection_blocked.reason, "low on memory & disk");
    ck_assert(!t->is_reading);
    publish(t, 1, "", "q", "b");
    expect_nothing(t);
    amqp09_set_alarms(t->service, 0);
    EXPECT(t, 0, CONNECTION_UNBLOCKED);
    turn(t);
    ck_assert(t->is_reading);
    expect_log("publish q x= key=q body=a\npublish q x= key=q body=b\n");
    end();
}
END_TEST

START_TEST(an_operator_closes_with_320)
{
    begin(_i);
    client_open(t, "u");
    ck_assert_uint_eq(amqp09_close_user(t->service, span_str("someone"), "no"), 0);
    ck_assert_uint_eq(amqp09_close_connections(t->service, 0, "shutdown"), 1);
    expect_connection_close(t, 320, "CONNECTION_FORCED - shutdown");
    end();
}
END_TEST

static void see_connection(void *ctx, const struct amqp09_connection_info *i)
{
    (*(int *)ctx)++;
    EXPECT_TEXT(i->name, "127.0.0.1:40000 -> 127.0.0.1:5672");
    EXPECT_TEXT(i->user, "u");
    EXPECT_TEXT(i->vhost, "/");
    EXPECT_TEXT(i->auth_mechanism, "PLAIN");
    EXPECT_TEXT(i->connection_name, "mine");
    ck_assert_str_eq(i->state, "running");
    ck_assert_str_eq(i->protocol, "AMQP 0-9-1");
    ck_assert_uint_eq(i->channels, 1);
    ck_assert_uint_eq(i->frame_max, 131072);
    ck_assert_uint_eq(i->timeout, 60);
    ck_assert_uint_gt(i->recv_oct, 100);
    ck_assert_uint_gt(i->send_oct, 100);
}

START_TEST(listings_show_the_connection)
{
    begin(_i);
    client_open(t, "u");
    client_channel(t, 1);
    int seen = 0;
    amqp09_connections_each(t->service, see_connection, &seen);
    ck_assert_int_eq(seen, 1);
    end();
}
END_TEST

// ---- hostile bytes ------------------------------------------------------------------------------

START_TEST(random_bytes_after_a_handshake_never_grow_memory)
{
    struct rng rng;
    rng_seed(&rng, (uint64_t)_i + 7);
    for (int round = 0; round < 300; round++) {
        begin(0);
        client_open(t, "u");
        client_channel(t, 1);
        for (int piece = 0; piece < 20; piece++) {
            uint8_t bytes[600];
            for (size_t i = 0; i < sizeof(bytes); i++) {
                bytes[i] = (uint8_t)rng_next(&rng);
            }
            if (piece % 2 == 0) {  // A plausible head, so that some get further.
                bytes[0] = (uint8_t)(1 + rng_below(&rng, 3));
                bytes[1] = 0;
                bytes[2] = (uint8_t)rng_below(&rng, 2);
                bytes[3] = bytes[4] = 0;
            }
            client_bytes(t, bytes, rng_below(&rng, sizeof(bytes)));
            turn(t);
        }
        ck_assert_uint_le(t->connection->rest.len, 131072 + 8);
        while (stub.ops_count > 0) {
            stub_ok();
        }
        client_stop(t);
    }
    stub_deinit();
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("connection");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, a_wrong_header_is_answered_and_the_socket_closed, 0, 2);
    tcase_add_loop_test(c, start_names_product_version_and_capabilities, 0, 2);
    tcase_add_loop_test(c, plain_amqplain_and_anonymous_log_in, 0, 2);
    tcase_add_loop_test(c, a_wrong_password_is_told_only_to_clients_that_ask, 0, 2);
    tcase_add_loop_test(c, other_errors_before_tune_are_silent, 0, 2);
    tcase_add_loop_test(c, guest_comes_from_loopback_only, 0, 2);
    tcase_add_loop_test(c, start_ok_above_8192_bytes_is_refused_from_its_head, 0, 2);
    tcase_add_loop_test(c, a_handshake_has_ten_seconds, 0, 2);
    tcase_add_loop_test(c, tune_ok_must_stay_within_what_was_offered, 0, 2);
    tcase_add_loop_test(c, open_checks_vhost_and_permission, 0, 2);
    tcase_add_loop_test(c, errors_have_their_codes, 0, 2);
    tcase_add_loop_test(c, a_frame_above_frame_max_is_501_and_the_socket_goes_after_three_seconds, 0, 2);
    tcase_add_loop_test(c, a_wrong_end_octet_is_501, 0, 2);
    tcase_add_loop_test(c, a_channel_before_open_ok_is_505, 0, 2);
    tcase_add_loop_test(c, after_our_close_everything_is_ignored_until_close_ok, 0, 2);
    tcase_add_loop_test(c, a_client_that_does_not_answer_our_close_is_dropped, 0, 2);
    tcase_add_loop_test(c, close_by_the_client_is_answered_last, 0, 2);
    tcase_add_loop_test(c, channel_max_bounds_the_number_of_channels, 0, 2);
    tcase_add_loop_test(c, update_secret_is_answered, 0, 2);
    tcase_add_loop_test(c, heartbeats_go_out_every_half_interval_of_silence, 0, 2);
    tcase_add_loop_test(c, two_intervals_without_input_drop_the_connection, 0, 2);
    tcase_add_loop_test(c, heartbeat_zero_switches_both_off, 0, 2);
    tcase_add_loop_test(c, an_alarm_blocks_publishers_only_and_tells_them_once, 0, 2);
    tcase_add_loop_test(c, an_operator_closes_with_320, 0, 2);
    tcase_add_loop_test(c, listings_show_the_connection, 0, 2);
    tcase_add_loop_test(c, random_bytes_after_a_handshake_never_grow_memory, 0, 4);
    return suite_run("amqp09_connection", c);
}
