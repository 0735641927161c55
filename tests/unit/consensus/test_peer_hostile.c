// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus/peer gen
// Links between nodes against strangers, peers that know the secret and misbehave, and ones that die or stand still.
#include "tests/unit/consensus/peer_fixture.h"

// ---- tests: hostile bytes ----------------------------------------------------------------------------------------

static int connect_to(uint16_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

static size_t resident_pages(void)
{
    size_t total = 0;
    size_t resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert_int_eq(fscanf(f, "%zu %zu", &total, &resident), 2);
    fclose(f);
    return resident;
}

// Plain noise, a good header with noise behind it, a frame that claims to be huge, a cut-off hello.
static size_t make_noise(uint8_t *to, size_t max, uint64_t kind)
{
    size_t n = 1 + rng_below(&rng, max);
    for (size_t i = 0; i < n; i++) {
        to[i] = (uint8_t)rng_next(&rng);
    }
    struct frame_header_wire h = {.total_len = (uint32_t)n, .type = FRAME_HELLO};
    struct buf b;
    buf_init(&b);
    switch (kind % 4) {
    case 1:
        frame_encode_head(&b, FRAME_HELLO, 0, span_of(to, n < 2000 ? n : 2000), 0);
        break;
    case 2:
        h.total_len = (uint32_t)rng_next(&rng);
        h.envelope_len = (uint32_t)rng_below(&rng, 1 << 20);
        buf_bytes(&b, &h, sizeof(h));
        break;
    case 3: {
        struct buf e;
        buf_init(&e);
        peer_hello_encode(&e, &nodes[1].self, false);
        frame_encode_head(&b, FRAME_HELLO, 0, buf_span(&e), 0);
        b.len = rng_below(&rng, b.len);
        buf_deinit(&e);
        break;
    }
    default:
        break;
    }
    if (b.len > 0) {
        n = b.len < max ? b.len : max;
        memcpy(to, b.ptr, n);
    }
    buf_deinit(&b);
    return n;
}

START_TEST(ten_thousand_connections_with_random_bytes_do_no_harm)
{
    pair_start();
    size_t before = resident_pages();
    int open_fds[64];
    for (int i = 0; i < 64; i++) {
        open_fds[i] = -1;
    }
    uint8_t noise[8192];
    for (uint64_t i = 0; i < 10000; i++) {
        int *slot = &open_fds[i % 64];
        if (*slot >= 0) {
            close(*slot);
        }
        *slot = connect_to(nodes[0].port);
        size_t n = make_noise(noise, sizeof(noise), i);
        ssize_t sent = send(*slot, noise, n, MSG_NOSIGNAL);
        ck_assert(sent > 0 || errno == EPIPE || errno == ECONNRESET);
        if (i % 16 == 0) {
            uv_run(&loop, UV_RUN_NOWAIT);
            struct peer_net_metrics m = metrics_of(0);
            ck_assert_uint_le(m.links_greeting, 256);
            ck_assert_uint_le(m.buffer_bytes, 2 << 20);
        }
    }
    for (int i = 0; i < 64; i++) {
        close(open_fds[i]);
    }
    run_until(never, 300);
    ck_assert_uint_gt(metrics_of(0).malformed, 2000);
    ck_assert_uint_eq(metrics_of(0).links_greeting, 0);
    ck_assert(is_01_up());
    ck_assert_uint_eq(nodes[0].deaths[2], 0);
    ck_assert_uint_eq(nodes[0].resets[2][LANE_CONTROL], 1);
#if !defined(__SANITIZE_ADDRESS__)
    ck_assert_uint_lt(resident_pages(), before + 2048);  // 8 MiB.
#else
    (void)before;
#endif
}
END_TEST

// A peer made by hand: knows the secret, then does what it likes. Dials node 0 as n2.
static int fake_dial(enum net_lane lane)
{
    struct peer_hello h = nodes[0].self;
    snprintf(h.name, sizeof(h.name), "n2@localhost");
    h.node_id = 2;
    h.store_id[0] = 2;
    h.lane = lane;
    snprintf(h.address, sizeof(h.address), "127.0.0.1:9");
    int fd = connect_to(nodes[0].port);
    ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    struct handshake hs;
    struct buf to;
    struct buf in;
    buf_init(&to);
    buf_init(&in);
    handshake_dial(&hs, span_str("secret"), &h, "n1@localhost", &to);
    for (int i = 0; hs.state != HANDSHAKE_DONE; i++) {
        ck_assert_int_lt(i, 100000);
        if (to.len > 0) {
            ck_assert_int_eq(send(fd, to.ptr, to.len, MSG_NOSIGNAL), (ssize_t)to.len);
            to.len = 0;
        }
        uv_run(&loop, UV_RUN_NOWAIT);
        ssize_t n = recv(fd, buf_extend(&in, 4096), 4096, 0);
        in.len -= 4096 - (n > 0 ? (size_t)n : 0);
        struct frame f;
        size_t size;
        if (frame_decode(buf_span(&in), &f, &size) == RC_OK) {
            enum rc rc = handshake_step(&hs, &f, &to);
            ck_assert(rc == RC_OK || rc == RC_PENDING);
            buf_consume(&in, size);
        }
    }
    handshake_deinit(&hs);
    buf_deinit(&to);
    buf_deinit(&in);
    return fd;
}

static uint64_t malformed_goal;
static bool is_malformed_counted(void)
{
    return metrics_of(0).malformed >= malformed_goal;
}

START_TEST(garbage_from_a_proven_peer_closes_that_link_and_no_other)
{
    node_start(0);
    nodes[1].self = nodes[0].self;  // For make_noise.
    int control = fake_dial(LANE_CONTROL);
    for (uint64_t i = 0; i < 400; i++) {
        int fd = fake_dial(LANE_LOG);
        uint8_t noise[8192];
        size_t n = make_noise(noise, sizeof(noise), i);
        if (i % 5 == 0) {
            struct frame_header_wire h = {.total_len = FRAME_TOTAL_MAX + 1, .type = FRAME_APPEND};
            memcpy(noise, &h, sizeof(h));
            n = sizeof(h);
        } else if (n < FRAME_HEADER_BYTES) {
            n = FRAME_HEADER_BYTES;
        }
        memset(noise + 12, 0xa5, 4);  // Whatever it is, its sum is wrong.
        ck_assert_int_eq(send(fd, noise, n, MSG_NOSIGNAL), (ssize_t)n);
        malformed_goal = metrics_of(0).malformed + 1;
        struct frame_header_wire sent;
        memcpy(&sent, noise, sizeof(sent));
        if (sent.total_len <= FRAME_TOTAL_MAX && sent.total_len > n) {
            // It waits for the rest, as it must; give it that.
            uv_run(&loop, UV_RUN_NOWAIT);
            ck_assert_uint_le(metrics_of(0).buffer_bytes, FRAME_TOTAL_MAX + (64 << 10));
        } else {
            ck_assert(run_until(is_malformed_counted, 2000));
        }
        close(fd);
    }
    ck_assert_uint_gt(metrics_of(0).malformed, 300);
    ck_assert_uint_eq(metrics_of(0).links_open - (metrics_of(0).links_open > 1), 1);  // Control, and the last at most.
    ck_assert_uint_eq(nodes[0].frames, 0);
    close(control);
}
END_TEST

// n2 as an acceptor by hand that greets and then never reads again.
struct fake_acceptor {
    int listener;
    int fds[LANE_COUNT];
    struct handshake hs[LANE_COUNT];
    uint32_t len;
    uint32_t log_lanes;  // How often lane LOG was greeted.
};
static struct fake_acceptor fake;

static void fake_pump(void)
{
    int fd = accept4(fake.listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd >= 0 && fake.len < LANE_COUNT) {
        struct peer_hello h = nodes[0].self;
        snprintf(h.name, sizeof(h.name), "n2@localhost");
        h.node_id = 2;
        h.store_id[0] = 2;
        fake.fds[fake.len] = fd;
        handshake_listen(&fake.hs[fake.len++], span_str("secret"), &h);
    } else if (fd >= 0) {
        fake.log_lanes++;  // Dialled again.
        close(fd);
    }
    for (uint32_t i = 0; i < fake.len; i++) {
        uint8_t bytes[4096];
        struct handshake *hs = &fake.hs[i];
        ssize_t n = hs->state == HANDSHAKE_DONE ? -1 : recv(fake.fds[i], bytes, sizeof(bytes), 0);
        struct frame f;
        size_t size;
        if (n <= 0 || frame_decode(span_of(bytes, (size_t)n), &f, &size) != RC_OK) {
            continue;
        }
        struct buf to;
        buf_init(&to);
        if (handshake_step(hs, &f, &to) == RC_OK) {
            handshake_accept(hs, &to);
        }
        ck_assert_int_eq(send(fake.fds[i], to.ptr, to.len, MSG_NOSIGNAL), (ssize_t)to.len);
        buf_deinit(&to);
    }
}

static void on_beat_timer(uv_timer_t *t)
{
    (void)t;
}

static bool are_fake_lanes_up(void)
{
    fake_pump();
    struct net *net = peer_net_net(nodes[0].net);
    return net->is_connected(net, 2, LANE_BULK) && net->is_connected(net, 2, LANE_LOG);
}
static bool is_reopened(void)
{
    fake_pump();
    return metrics_of(0).stalls > 0 && fake.log_lanes > 0;
}

static uv_timer_t pump_timer;

// Node 0 and the fake, greeted on all lanes.
static void fake_start(void)
{
    node_start(0);
    memset(&fake, 0, sizeof(fake));
    fake.listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    ck_assert_int_eq(bind(fake.listener, (struct sockaddr *)&a, sizeof(a)), 0);
    ck_assert_int_eq(listen(fake.listener, 16), 0);
    ck_assert_int_eq(getsockname(fake.listener, (struct sockaddr *)&a, &len), 0);
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(a.sin_port));
    ck_assert_int_eq(peer_net_add(nodes[0].net, "n2@localhost", address, 2, NULL), RC_OK);
    // Keeps the loop turning while the fake is pumped by the conditions.
    uv_timer_init(&loop, &pump_timer);
    uv_timer_start(&pump_timer, on_beat_timer, 1, 1);
    ck_assert(run_until(are_fake_lanes_up, 3000));
}

static void fake_drop_links(void)
{
    for (uint32_t i = 0; i < fake.len; i++) {
        handshake_deinit(&fake.hs[i]);
        close(fake.fds[i]);
    }
    fake.len = 0;
}

static void fake_stop(void)
{
    uv_close((uv_handle_t *)&pump_timer, NULL);
    uv_run(&loop, UV_RUN_NOWAIT);
}

// As a dying process may: its port still takes a connection, is gone the moment after.
static bool is_redial_dropped(void)
{
    int fd = accept4(fake.listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0) {
        return fake.log_lanes > 0;
    }
    close(fake.listener);
    close(fd);
    fake.listener = -1;
    fake.log_lanes++;
    return true;
}

START_TEST(a_port_that_takes_one_more_connection_before_it_refuses_is_dead_too)
{
    fake_start();
    fake_drop_links();
    ck_assert(run_until(is_redial_dropped, 1000));
    ck_assert(run_until(is_1_dead, 200));
    fake_stop();
}
END_TEST

START_TEST(a_lane_whose_output_stands_still_for_2_s_is_reopened)
{
    fake_start();
    uint64_t from = clock_mono_ns(env_system_clock());
    struct net *net = peer_net_net(nodes[0].net);
    while (net->queued(net, 2, LANE_LOG) < (4 << 20)) {  // More than both kernels' buffers.
        ck_assert_int_eq(send_raw(0, 1, LANE_LOG, 0, 1 << 20, false), RC_OK);
        net->flush(net);
    }
    ck_assert(run_until(is_reopened, 6000));
    uint64_t ms = (clock_mono_ns(env_system_clock()) - from) / 1000000;
    ck_assert_uint_ge(ms, 1900);
    ck_assert_uint_le(ms, 4000);
    fake_drop_links();
    close(fake.listener);
    fake_stop();
}
END_TEST

static bool are_no_greetings(void)
{
    return metrics_of(0).links_greeting == 0;
}

START_TEST(silent_connections_are_bounded_and_closed_in_time)
{
    node_start(0);
    int fds[400];
    for (int i = 0; i < 400; i++) {
        fds[i] = connect_to(nodes[0].port);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    ck_assert_uint_le(metrics_of(0).links_greeting, 256);
    ck_assert_uint_gt(metrics_of(0).links_greeting, 200);
    ck_assert(run_until(are_no_greetings, 5000));
    for (int i = 0; i < 400; i++) {
        close(fds[i]);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("peer hostile");
    TCase *c = tcase_create("links");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, ten_thousand_connections_with_random_bytes_do_no_harm);
    tcase_add_test(c, garbage_from_a_proven_peer_closes_that_link_and_no_other);
    tcase_add_test(c, a_port_that_takes_one_more_connection_before_it_refuses_is_dead_too);
    tcase_add_test(c, a_lane_whose_output_stands_still_for_2_s_is_reopened);
    tcase_add_test(c, silent_connections_are_bounded_and_closed_in_time);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
