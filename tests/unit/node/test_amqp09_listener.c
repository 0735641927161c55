// SPDX-License-Identifier: Apache-2.0
// links: node/amqp09 proto/amqp09 node/base
// The sockets: accepting, one write per turn, closing so that the peer sees everything, being held back.
#include "node/amqp09/listener.h"
#include "tests/unit/node/amqp09_client.h"
#include "tests/unit/node/amqp09_stub.h"
#include "tests/unit/suite.h"
#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

// ---- fixture ------------------------------------------------------------------------------------

static uv_loop_t loop;
static uv_idle_t keep_awake;  // The test polls: the loop must never wait.
static struct amqp09 *service;
static struct amqp09_listener *listener;
static int fd;  // The client's socket.
static struct buf received;

static void idle(uv_idle_t *handle)
{
    (void)handle;
}

static void setup(void)
{
    stub_init();
    stub_queue_add("q");
    struct amqp09_config config = client_config();
    service = amqp09_create(&config);
    uv_loop_init(&loop);
    uv_idle_init(&loop, &keep_awake);
    uv_idle_start(&keep_awake, idle);
    struct amqp09_listener_config c = {.service = service, .loop = &loop, .address = "127.0.0.1:0"};
    ck_assert_int_eq(amqp09_listener_open(&c, &listener), RC_OK);
    buf_init(&received);
}

static void run_turn(void)
{
    uv_run(&loop, UV_RUN_NOWAIT);
    amqp09_turn_begin(service);
    amqp09_turn_end(service);
    (void)amqp09_listener_flush(listener);  // The wish for another turn: the test takes turns anyway.
}

static void teardown(void)
{
    close(fd);
    amqp09_listener_close(listener);
    uv_close((uv_handle_t *)&keep_awake, NULL);
    while (uv_run(&loop, UV_RUN_DEFAULT) != 0) {
    }
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    amqp09_destroy(service);
    stub_deinit();
    buf_deinit(&received);
}

static void dial(void)
{
    fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(amqp09_listener_port(listener)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
}

// Sends all, with turns in between; false once `turns` have passed without the socket taking anything.
static bool send_all(struct span bytes, int turns)
{
    size_t at = 0;
    for (int left = turns; at < bytes.len && left > 0; left--) {
        ssize_t n = send(fd, bytes.ptr + at, bytes.len - at, MSG_NOSIGNAL);
        if (n > 0) {
            at += (size_t)n;
            left = turns;
        }
        run_turn();
    }
    return at == bytes.len;
}

// Takes turns until `want` bytes have come or the server has closed (true then if at_end).
static bool receive(size_t want, bool *at_end)
{
    for (int i = 0; i < 2000000; i++) {
        uint8_t bytes[65536];
        ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
        if (n > 0) {
            buf_bytes(&received, bytes, (size_t)n);
        }
        *at_end = n == 0 || (n < 0 && errno != EAGAIN);
        if (received.len >= want || *at_end) {
            return received.len >= want;
        }
        run_turn();
    }
    return false;
}

static struct buf greeting(void)
{
    struct buf in = {0};
    buf_bytes(&in, amqp_header_091, AMQP_HEADER_BYTES);
    amqp_send_connection_start_ok(&in, 0,
                                  &(struct amqp_connection_start_ok){.mechanism = span_str("PLAIN"),
                                                                     .response = span_of("\0u\0secret", 9)});
    amqp_send_connection_tune_ok(&in, 0,
                                 &(struct amqp_connection_tune_ok){.channel_max = 10, .frame_max = 131072});
    amqp_send_connection_open(&in, 0, &(struct amqp_connection_open){.virtual_host = span_str("/")});
    amqp_send_channel_open(&in, 1, &(struct amqp_channel_open){});
    return in;
}

// Ids of all methods received.
static uint32_t last_method(void)
{
    struct span rest = buf_span(&received);
    uint32_t id = 0;
    while (rest.len > 0) {
        struct amqp_frame f;
        struct amqp_frame_fault fault;
        struct amqp_method m;
        size_t used;
        ck_assert_int_eq(amqp_frame_read(rest, UINT32_MAX, &f, &used, &fault), RC_OK);
        if (f.type == AMQP_FRAME_METHOD && amqp_method_read(f.payload, &m) == RC_OK) {
            id = m.id;
        }
        rest = span_of(rest.ptr + used, rest.len - used);
    }
    return id;
}

// ---- tests --------------------------------------------------------------------------------------

START_TEST(a_client_logs_in_publishes_and_closes_with_everything_answered)
{
    dial();
    struct buf in = greeting();
    amqp_send_basic_publish(&in, 1, &(struct amqp_basic_publish){.routing_key = span_str("q")});
    content_frames_put(&in, 1, 131072, span_of(stub_no_properties, 2), span_str("hello"));
    amqp_send_connection_close(&in, 0, &(struct amqp_connection_close){.reply_code = 200});
    // Bytes behind the close are still unread when we close: they must not reset the connection.
    buf_bytes(&in, "trailing", 8);
    ck_assert(send_all(buf_span(&in), 1000));
    bool at_end;
    receive(SIZE_MAX, &at_end);
    ck_assert(at_end);
    ck_assert_uint_eq(last_method(), AMQP_CONNECTION_CLOSE_OK_ID);
    ck_assert_uint_eq(stub.service.published, 1);
    close(fd);
    dial();  // Others are served afterwards.
    buf_deinit(&in);
}
END_TEST

START_TEST(a_wrong_header_gets_its_answer_and_the_end)
{
    dial();
    ck_assert(send_all(span_str("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), 1000));
    bool at_end;
    ck_assert(receive(8, &at_end));
    ck_assert_mem_eq(received.ptr, amqp_header_sasl, 8);
    receive(SIZE_MAX, &at_end);
    ck_assert(at_end);
    ck_assert_uint_eq(received.len, 8);
}
END_TEST

START_TEST(a_peer_that_goes_away_leaves_nothing_behind)
{
    dial();
    struct buf in = greeting();
    ck_assert(send_all(buf_span(&in), 1000));
    for (int i = 0; i < 1000 && service->connections_count == 0; i++) {
        run_turn();
    }
    ck_assert_uint_eq(service->connections_count, 1);
    close(fd);
    for (int i = 0; i < 100000 && service->connections_count > 0; i++) {
        run_turn();
    }
    ck_assert_uint_eq(service->connections_count, 0);
    dial();
    buf_deinit(&in);
}
END_TEST

START_TEST(a_full_queue_holds_the_client_back_and_loses_nothing)
{
    dial();
    stub.service.full_after = 10;
    struct buf in = greeting();
    ck_assert(send_all(buf_span(&in), 1000));
    in.len = 0;
    static uint8_t body[100000];
    enum { MESSAGES = 400 };
    for (int i = 0; i < MESSAGES; i++) {
        amqp_send_basic_publish(&in, 1, &(struct amqp_basic_publish){.routing_key = span_str("q")});
        content_frames_put(&in, 1, 131072, span_of(stub_no_properties, 2), span_of(body, sizeof(body)));
    }
    // 40 MB do not fit into the sockets' buffers: the client is stopped.
    size_t at = 0;
    for (int idle_turns = 0; idle_turns < 2000 && at < in.len; idle_turns++) {
        ssize_t n = send(fd, in.ptr + at, in.len - at, MSG_NOSIGNAL);
        if (n > 0) {
            at += (size_t)n;
            idle_turns = 0;
        }
        run_turn();
    }
    ck_assert_uint_lt(at, in.len);
    struct queue_session *s = stub_session("q");
    ck_assert_uint_eq(s->published, 10);
    struct connection *c = list_entry(service->connections.next, struct connection, link);
    ck_assert_uint_le(c->rest.len, LIMIT_CONNECTION_READ_BYTES + 131072 + 8);
    stub.service.full_after = 0;
    s->is_full = false;
    s->cb->writable(s->ctx, s);
    ck_assert(send_all(span_of(in.ptr + at, in.len - at), 100000));
    for (int i = 0; i < 100000 && s->published < MESSAGES; i++) {
        run_turn();
    }
    ck_assert_uint_eq(s->published, MESSAGES);
    buf_deinit(&in);
}
END_TEST

START_TEST(large_deliveries_pass_a_slow_socket_whole)
{
    dial();
    struct buf in = greeting();
    amqp_send_basic_consume(
        &in, 1,
        &(struct amqp_basic_consume){.queue = span_str("q"), .consumer_tag = span_str("ct"), .no_ack = true});
    ck_assert(send_all(buf_span(&in), 1000));
    for (int i = 0; i < 1000 && !stub_session("q"); i++) {
        run_turn();
    }
    struct queue_session *s = stub_session("q");
    s->cb->consume_done(s->ctx, s, 1, RC_OK);
    static char body[8 << 20];
    memset(body, 'x', sizeof(body) - 1);
    stub_deliver("q", 1, 1, body);
    ck_assert(s->is_paused);
    bool at_end;
    ck_assert(receive(sizeof(body), &at_end));
    for (int i = 0; i < 1000 && s->taken == 0; i++) {
        run_turn();
    }
    ck_assert_uint_eq(s->taken, sizeof(body) - 1);
    ck_assert(!s->is_paused);
    buf_deinit(&in);
}
END_TEST

START_TEST(addresses_that_are_none_are_refused)
{
    dial();
    struct amqp09_listener *none;
    static const char *const bad[] = {"", "5672", "127.0.0.1:", "no such host:1", "127.0.0.1:notaport"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct amqp09_listener_config c = {.service = service, .loop = &loop, .address = bad[i]};
        ck_assert_int_eq(amqp09_listener_open(&c, &none), RC_INVALID);
    }
}
END_TEST

static bool is_heard;

static void on_other(uv_poll_t *poll, int status, int events)
{
    (void)poll;
    is_heard = status == 0 && (events & UV_READABLE);
}

// The number of its socket belongs to whoever opens something next, on this loop or in another thread.
START_TEST(a_listener_that_has_stopped_lets_its_number_go_for_good)
{
    dial();
    const int unused = dup(fd);
    close(unused);
    amqp09_listener_stop(listener);
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    ck_assert_int_lt(pair[0], unused);  // It is the listener's.
    uv_poll_t other;
    uv_poll_init(&loop, &other, pair[0]);
    uv_poll_start(&other, UV_READABLE, on_other);
    run_turn();
    amqp09_listener_close(listener);
    struct amqp09_listener_config c = {.service = service, .loop = &loop, .address = "127.0.0.1:0"};
    ck_assert_int_eq(amqp09_listener_open(&c, &listener), RC_OK);  // For the turns and the end.
    ck_assert_int_eq(write(pair[1], "x", 1), 1);
    is_heard = false;
    for (int i = 0; i < 10 && !is_heard; i++) {
        run_turn();
    }
    ck_assert(is_heard);
    uv_close((uv_handle_t *)&other, NULL);
    run_turn();
    close(pair[0]);
    close(pair[1]);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("listener");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, a_client_logs_in_publishes_and_closes_with_everything_answered);
    tcase_add_test(c, a_wrong_header_gets_its_answer_and_the_end);
    tcase_add_test(c, a_peer_that_goes_away_leaves_nothing_behind);
    tcase_add_test(c, a_full_queue_holds_the_client_back_and_loses_nothing);
    tcase_add_test(c, large_deliveries_pass_a_slow_socket_whole);
    tcase_add_test(c, addresses_that_are_none_are_refused);
    tcase_add_test(c, a_listener_that_has_stopped_lets_its_number_go_for_good);
    return suite_run("amqp09_listener", c);
}
