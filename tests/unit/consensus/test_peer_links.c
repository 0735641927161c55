// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus/peer gen
// Links between nodes over real loopback sockets: up and down, frames, who is let in, blank nodes.
#include "tests/unit/consensus/peer_fixture.h"

// ---- tests: up and down ------------------------------------------------------------------------------------------

START_TEST(two_nodes_greet_on_all_lanes_and_call_each_other_alive)
{
    pair_start();
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        ck_assert_uint_eq(nodes[0].resets[2][lane], 1);
    }
    ck_assert_uint_eq(nodes[0].incarnation[2], 1);
    ck_assert_uint_eq(nodes[0].levels[2], 71);  // What its program can do is known when the lanes are.
    ck_assert_uint_eq(nodes[1].levels[1], 70);
    ck_assert_uint_eq(metrics_of(0).links_open, 2 * LANE_COUNT);
}
END_TEST

static bool is_0_heard_and_hears(void)
{
    return is_pair_up(1, 0) && nodes[0].beats_seen >= 3;
}

START_TEST(upcalls_that_are_set_late_are_told_of_the_nodes_and_lanes_that_are_there)
{
    node_start(0);
    node_start(1);
    peer_net_set_upcalls(nodes[0].net, NULL);  // A member that waits for room before it has anybody to tell.
    introduce_all(2);
    ck_assert(run_until(is_0_heard_and_hears, 3000));
    peer_net_set_upcalls(nodes[0].net, &nodes[0].upcalls);
    ck_assert(run_until(is_01_up, 3000));
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        ck_assert_uint_eq(nodes[0].resets[2][lane], 1);
    }
    ck_assert_uint_eq(nodes[0].incarnation[2], 1);
}
END_TEST

START_TEST(three_nodes_make_a_full_mesh_and_beat)
{
    for (int i = 0; i < NODES; i++) {
        node_start(i);
    }
    introduce_all(NODES);
    ck_assert(run_until(is_mesh_up, 3000));
    run_until(never, 550);
    ck_assert_uint_ge(nodes[0].beats_seen, 2 * 4);  // Two peers, one beat each 100 ms, with slack for a slow machine.
    ck_assert_uint_le(nodes[0].beats_seen, 2 * 14);
}
END_TEST

START_TEST(a_node_that_closes_and_refuses_is_dead_within_50_ms)
{
    pair_start();
    uint64_t from = clock_mono_ns(env_system_clock());
    node_kill(1);
    ck_assert(run_until(is_1_dead, 1000));
    ck_assert_uint_lt((clock_mono_ns(env_system_clock()) - from) / 1000000, 50);
    struct net *net = peer_net_net(nodes[0].net);
    ck_assert(!net->is_connected(net, 2, LANE_LOG));
    ck_assert_int_eq(send_raw(0, 1, LANE_LOG, 0, 10, false), RC_NOT_CONNECTED);
}
END_TEST

START_TEST(a_restarted_node_is_alive_again_under_its_new_incarnation_and_lanes_are_reset)
{
    pair_start();
    node_stop(1);
    ck_assert(run_until(is_1_dead, 1000));
    node_start_with(1, "secret", 2, false);
    introduce(1, 0);
    ck_assert(run_until(is_01_up, 3000));
    ck_assert_uint_eq(nodes[0].incarnation[2], 2);
    ck_assert_uint_eq(nodes[0].deaths[2], 1);
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        ck_assert_uint_eq(nodes[0].resets[2][lane], 2);
    }
}
END_TEST

// Node 1 in a process of its own, with a loop of its own.
static void run_child(int port_to)
{
    uv_loop_init(&loop);  // The parent's loop is left alone: it would share its epoll set.
    nodes[1].port = 0;
    node_start(1);
    introduce(1, 0);
    ssize_t n = write(port_to, &nodes[1].port, sizeof(nodes[1].port));
    if (n == sizeof(nodes[1].port)) {
        uv_run(&loop, UV_RUN_DEFAULT);
    }
    _exit(1);
}

START_TEST(a_process_killed_under_load_is_dead_within_50_ms)
{
    node_start(0);
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        run_child(ends[1]);
    }
    ck_assert_int_eq(read(ends[0], &nodes[1].port, sizeof(nodes[1].port)), sizeof(nodes[1].port));
    snprintf(nodes[1].self.name, sizeof(nodes[1].self.name), "n2@localhost");
    introduce(0, 1);
    ck_assert(run_until(is_0_up, 3000));
    struct net *net = peer_net_net(nodes[0].net);
    for (uint64_t i = 0; i < 200; i++) {
        (void)!send_raw(0, 1, LANE_LOG, i, 100000, false);  // Full lanes are part of it.
        net->flush(net);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);  // The kernel has closed its files.
    uint64_t from = clock_mono_ns(env_system_clock());
    ck_assert(run_until(is_1_dead, 1000));
    ck_assert_uint_lt((clock_mono_ns(env_system_clock()) - from) / 1000000, 50);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

START_TEST(the_only_peer_is_dialled_until_it_is_back_however_long_it_refused)
{
    pair_start();
    node_stop(1);
    ck_assert(run_until(is_1_dead, 1000));
    run_until(never, 1200);
    node_start_with(1, "secret", 2, false);  // It knows of nobody: it does not dial.
    ck_assert(run_until(is_01_up, 3000));
}
END_TEST

static bool has_0_dialled_often(void)
{
    return metrics_of(0).dials >= 3;
}

START_TEST(a_dial_that_nobody_answers_ends_after_its_time_and_is_made_again)
{
    // A listener whose backlog is full: the kernel drops what else comes.
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&at, len), 0);
    ck_assert_int_eq(listen(listener, 0), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    int full[4];
    for (int i = 0; i < 4; i++) {
        full[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        ck_assert(connect(full[i], (struct sockaddr *)&at, len) == 0 || errno == EINPROGRESS);
    }
    node_start(0);
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(at.sin_port));
    ck_assert_int_eq(peer_net_add(nodes[0].net, "silent@localhost", address, 0, NULL), RC_OK);
    ck_assert(run_until(has_0_dialled_often, 5000));
    for (int i = 0; i < 4; i++) {
        close(full[i]);
    }
    close(listener);
}
END_TEST

START_TEST(a_removed_peer_is_disconnected_and_forgotten)
{
    pair_start();
    peer_net_remove(nodes[1].net, nodes[0].self.name);
    peer_net_remove(nodes[0].net, nodes[1].self.name);
    run_until(never, 50);
    struct net *net = peer_net_net(nodes[0].net);
    ck_assert(!net->is_connected(net, 2, LANE_CONTROL));
    ck_assert_int_eq(send_raw(0, 1, LANE_CONTROL, 0, 1, false), RC_NOT_CONNECTED);
}
END_TEST

START_TEST(a_name_is_looked_up_without_blocking)
{
    node_start(0);
    node_start(1);
    char address[64];
    snprintf(address, sizeof(address), "localhost:%u", nodes[1].port);
    ck_assert_int_eq(peer_net_add(nodes[0].net, nodes[1].self.name, address, 0, NULL), RC_OK);
    introduce(1, 0);
    ck_assert(run_until(is_01_up, 5000));
}
END_TEST

START_TEST(addresses_that_are_none_are_refused)
{
    node_start(0);
    static const char *const bad[] = {"", "host", "host:", ":1", "host:0", "host:65536", "host:1x", "host:-1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_msg(peer_net_add(nodes[0].net, "x@y", bad[i], 0, NULL) == RC_INVALID, "%s", bad[i]);
    }
    ck_assert_int_eq(peer_net_add(nodes[0].net, nodes[0].self.name, "127.0.0.1:1", 0, NULL), RC_INVALID);
}
END_TEST

// ---- tests: frames -----------------------------------------------------------------------------------------------

static void send_stream(uint64_t count, bool raw_crc)
{
    struct rng sender;
    rng_seed(&sender, 7);
    nodes[1].expect = sender;
    nodes[1].is_expecting = true;
    struct net *net = peer_net_net(nodes[0].net);
    for (uint64_t i = 0; i < count;) {
        size_t size = next_size(&sender, i);
        while (send_raw(0, 1, LANE_LOG, i, size, raw_crc) != RC_OK) {
            net->flush(net);
            uv_run(&loop, UV_RUN_ONCE);
        }
        i++;
        if (i % 37 == 0) {
            net->flush(net);
            uv_run(&loop, UV_RUN_NOWAIT);
        }
    }
    net->flush(net);
    goal = count;
    ck_assert(run_until(is_goal_reached, 20000));
    ck_assert_uint_eq(nodes[1].bad_frames, 0);
    ck_assert_uint_eq(nodes[1].frames, count);
    ck_assert_uint_eq(nodes[0].resets[2][LANE_LOG], 1);
}

START_TEST(frames_of_all_sizes_arrive_whole_and_in_order)
{
    pair_start();
    send_stream(20000, true);
}
END_TEST

START_TEST(many_borrowed_ranges_in_one_turn_are_written)
{
    pair_start();
    struct net *net = peer_net_net(nodes[0].net);
    for (uint64_t i = 0; i < 5000; i++) {  // More than a writev takes vectors.
        ck_assert_int_eq(send_raw(0, 1, LANE_SESSION, i, 300, i % 2), RC_OK);
    }
    net->flush(net);
    goal = 5000;
    ck_assert(run_until(is_goal_reached, 5000));
    ck_assert_uint_eq(nodes[1].bytes, 5000 * 300);
}
END_TEST

START_TEST(borrowed_bytes_may_change_after_the_flush)
{
    pair_start();
    struct net *net = peer_net_net(nodes[0].net);
    uint8_t *mine = mem_alloc(1 << 20);
    nodes[1].is_expecting = false;
    uint64_t sent = 0;
    struct iovec raw = {.iov_base = mine, .iov_len = 1 << 20};
    for (;; sent++) {  // Until the socket takes no more: the rest must be our copy.
        memset(mine, (int)sent, 1 << 20);
        if (net->send(net, 2, LANE_LOG, FRAME_APPEND, span_of(&sent, 8), &raw, 1, true) != RC_OK) {
            break;
        }
        net->flush(net);
    }
    ck_assert_uint_gt(net->queued(net, 2, LANE_LOG), 0);
    free(mine);
    goal = sent;
    ck_assert(run_until(is_goal_reached, 10000));  // The sums prove the bytes: a wrong one closes the link.
    ck_assert_uint_eq(metrics_of(1).malformed, 0);
}
END_TEST

static bool is_writable_again(void)
{
    return nodes[0].writables > 0;
}

START_TEST(a_full_lane_refuses_and_says_when_there_is_room)
{
    pair_start();
    struct net *net = peer_net_net(nodes[0].net);
    enum rc rc = RC_OK;
    uint64_t sent = 0;
    while (rc == RC_OK) {
        rc = send_raw(0, 1, LANE_BULK, sent, 1 << 20, false);
        sent += rc == RC_OK;
        ck_assert_uint_le(net->queued(net, 2, LANE_BULK), LIMIT_LANE_OUTPUT_BYTES);
        ck_assert_uint_lt(sent, 1000);
    }
    ck_assert_int_eq(rc, RC_FULL);
    net->flush(net);
    ck_assert_uint_eq(nodes[0].writables, 0);  // Never from within a call.
    ck_assert(run_until(is_writable_again, 5000));
    ck_assert_int_eq(send_raw(0, 1, LANE_BULK, 0, 1 << 20, false), RC_OK);
    net->flush(net);
    goal = sent + 1;
    ck_assert(run_until(is_goal_reached, 10000));
}
END_TEST

static bool are_buffers_small(void)
{
    return metrics_of(1).buffer_bytes <= 2 * LANE_COUNT * (16 << 10);
}

START_TEST(buffers_shrink_when_the_lane_is_quiet)
{
    pair_start();
    send_stream(200, false);
    ck_assert_uint_gt(metrics_of(1).buffer_bytes, 1 << 20);
    ck_assert(run_until(are_buffers_small, 4000));
}
END_TEST

// ---- tests: who is let in ----------------------------------------------------------------------------------------

START_TEST(a_wrong_secret_is_refused_and_named_on_both_sides)
{
    node_start(0);
    node_start_with(1, "Secret", 1, false);
    introduce_all(2);
    run_until(never, 400);
    ck_assert_int_eq(nodes[0].verdict[2], NODE_SUSPECT);
    ck_assert_uint_eq(metrics_of(0).links_open, 0);
    ck_assert_uint_eq(metrics_of(1).links_open, 0);
    ck_assert_ptr_nonnull(strstr(refusal_of(0), "secret"));
    ck_assert_ptr_nonnull(strstr(refusal_of(1), "secret"));
    ck_assert_uint_le(metrics_of(0).dials, 6);  // It does not hammer.
}
END_TEST

static void find_alive(void *ctx, const struct peer_info *p)
{
    *(bool *)ctx = p->verdict == NODE_ALIVE;
}

START_TEST(a_known_name_with_another_store_id_is_refused_with_the_cure)
{
    node_start(0);
    node_start(1);
    char address[64];
    uint8_t store[STORE_ID_BYTES] = {0xee};
    snprintf(address, sizeof(address), "127.0.0.1:%u", nodes[1].port);
    ck_assert_int_eq(peer_net_add(nodes[0].net, nodes[1].self.name, address, 2, store), RC_OK);
    introduce(1, 0);
    run_until(never, 300);
    ck_assert_uint_eq(nodes[0].deaths[2], 0);
    ck_assert_int_eq(nodes[0].verdict[2], NODE_SUSPECT);
    ck_assert_ptr_nonnull(strstr(refusal_of(0), "another store id"));
    ck_assert_ptr_nonnull(strstr(refusal_of(1), "Delete it and start the node"));
}
END_TEST

static bool is_1_named_alive(void)
{
    bool is_alive = false;
    peer_net_each(nodes[0].net, find_alive, &is_alive);
    return is_alive;
}
static bool is_1_back_as_3(void)
{
    struct net *net = peer_net_net(nodes[0].net);
    return nodes[0].verdict[3] == NODE_ALIVE && net->is_connected(net, 3, LANE_LOG);
}
static bool is_1_connected(void)
{
    struct net *net = peer_net_net(nodes[0].net);
    return net->is_connected(net, 2, LANE_CONTROL);
}

// Law 2. The disk of node 2 is lost; what comes back under its name has no say in anything of node 2's.
START_TEST(a_blank_node_under_a_members_name_may_greet_but_is_not_that_member)
{
    pair_start();
    uint8_t former[STORE_ID_BYTES] = {2}, store[STORE_ID_BYTES] = {0xee};
    ck_assert_int_eq(peer_net_add(nodes[0].net, nodes[1].self.name, NULL, 2, former), RC_OK);
    node_stop(1);
    ck_assert(run_until(is_1_dead, 2000));
    node_start_with(1, "secret", 1, true);
    nodes[1].self.store_id[0] = 0xee;
    struct peer_hello self = nodes[1].self;
    node_stop(1);
    char listen_at[64];
    snprintf(listen_at, sizeof(listen_at), "127.0.0.1:%u", nodes[1].port);
    struct peer_net_config c = {.loop = &loop,
                                .clock = env_system_clock(),
                                .random = env_system_random,
                                .listen = listen_at,
                                .secret = span_str("secret"),
                                .self = self,
                                .upcalls = &nodes[1].upcalls};
    ck_assert_int_eq(peer_net_create(&c, &nodes[1].net), RC_OK);
    nodes[1].is_closed = false;
    introduce(1, 0);
    const uint64_t frames = nodes[0].frames;
    ck_assert(run_until(is_1_named_alive, 3000));
    ck_assert_int_eq(nodes[0].verdict[2], NODE_DEAD);
    ck_assert(!is_1_connected());
    // Told again by the metadata store, the former id changes nothing.
    ck_assert_int_eq(peer_net_add(nodes[0].net, nodes[1].self.name, NULL, 2, former), RC_OK);
    run_until(never, 100);
    ck_assert_int_eq(nodes[0].verdict[2], NODE_DEAD);
    ck_assert(!is_1_connected());
    // The cluster gives it an id of its own.
    ck_assert_int_eq(peer_net_add(nodes[0].net, nodes[1].self.name, NULL, 3, store), RC_OK);
    ck_assert(run_until(is_1_back_as_3, 3000));
    ck_assert_int_eq(nodes[0].verdict[2], NODE_DEAD);
    ck_assert_uint_eq(nodes[0].frames, frames);
}
END_TEST

// A member that was replaced behind our back: it lives, but under this id no longer.
START_TEST(a_member_whose_name_was_given_to_another_disk_is_dead)
{
    pair_start();
    uint8_t former[STORE_ID_BYTES] = {2}, store[STORE_ID_BYTES] = {0xee};
    ck_assert_int_eq(peer_net_add(nodes[0].net, nodes[1].self.name, NULL, 2, former), RC_OK);
    ck_assert_int_eq(peer_net_add(nodes[0].net, nodes[1].self.name, NULL, 3, store), RC_OK);
    ck_assert(run_until(is_1_dead, 2000));
    run_until(never, 200);
    ck_assert(!is_1_connected());
    ck_assert_int_eq(nodes[0].verdict[3], NODE_SUSPECT);
}
END_TEST

// CR-20. The copy knows the others' addresses, as its disk does.
START_TEST(a_copy_of_a_running_node_is_refused)
{
    pair_start();
    node_start(2);
    struct peer_hello copy = nodes[1].self;
    copy.incarnation++;
    node_stop(2);
    nodes[2].port = 0;
    char listen_at[64] = "127.0.0.1:0";
    struct peer_net_config c = {
        .loop = &loop,
        .clock = env_system_clock(),
        .random = env_system_random,
        .listen = listen_at,
        .secret = span_str("secret"),
        .self = copy,
    };
    ck_assert_int_eq(peer_net_create(&c, &nodes[2].net), RC_OK);
    nodes[2].is_closed = false;
    nodes[2].self = copy;
    introduce(2, 0);
    run_until(never, 400);
    ck_assert_ptr_nonnull(strstr(refusal_of(2), "another process is alive"));
    ck_assert_uint_eq(nodes[0].deaths[2], 0);
    ck_assert(is_01_up());
}
END_TEST

START_TEST(members_of_different_clusters_refuse_each_other)
{
    node_start(0);
    node_start(1);
    nodes[1].self.cluster_id[0] = 8;
    peer_net_set_self(nodes[1].net, &nodes[1].self);
    introduce_all(2);
    run_until(never, 300);
    ck_assert_uint_eq(metrics_of(0).links_open, 0);
    ck_assert_ptr_nonnull(strstr(refusal_of(0), "different clusters"));
    ck_assert_ptr_nonnull(strstr(refusal_of(1), "different clusters"));
}
END_TEST

// ---- tests: blank nodes ------------------------------------------------------------------------------------------

static const char *const names[NODES] = {"n1@localhost", "n2@localhost", "n3@localhost"};
static struct formation_decision form(int i)
{
    struct formation_decision d;
    peer_net_form(nodes[i].net, names, NODES, &d);
    return d;
}
static bool is_founding(void)
{
    return form(0).state == FORMATION_FOUND;
}
static bool is_joining(void)
{
    return form(1).state == FORMATION_JOIN && form(2).state == FORMATION_JOIN;
}
static bool has_join(void)
{
    return nodes[0].join.len > 0;
}
static bool has_reply(void)
{
    return nodes[1].join.len > 0;
}

static void become_member(int i)
{
    nodes[i].self.is_blank = false;
    nodes[i].self.cluster_id[0] = 9;
    nodes[i].self.node_id = (uint32_t)i + 1;
    peer_net_set_self(nodes[i].net, &nodes[i].self);
}

START_TEST(three_blank_nodes_form_a_cluster_and_learn_each_others_ids)
{
    node_start_with(0, "secret", 1, true);
    node_start_with(1, "secret", 1, true);
    introduce(0, 1);
    introduce(1, 0);
    run_until(never, 200);
    ck_assert_int_eq(form(0).state, FORMATION_WAIT);
    ck_assert_str_eq(form(0).reason, "waiting for n3@localhost");
    node_start_with(2, "secret", 1, true);
    introduce_all(NODES);
    ck_assert(run_until(is_founding, 3000));
    ck_assert_int_eq(form(1).state, FORMATION_WAIT);
    become_member(0);
    ck_assert(run_until(is_joining, 3000));
    ck_assert_str_eq(form(2).via, "n1@localhost");

    struct join_request q = {.token = 3, .store_id = {2}};
    snprintf(q.name, sizeof(q.name), "%s", names[1]);
    struct buf b;
    buf_init(&b);
    join_request_encode(&b, &q);
    ck_assert_int_eq(peer_net_send_named(nodes[1].net, names[0], FRAME_JOIN, buf_span(&b)), RC_OK);
    ck_assert(run_until(has_join, 2000));
    ck_assert_str_eq(nodes[0].joiner, names[1]);
    ck_assert(span_equal(buf_span(&nodes[0].join), buf_span(&b)));
    ck_assert_int_eq(peer_net_send_named(nodes[0].net, names[1], FRAME_JOIN_REPLY, buf_span(&b)), RC_OK);
    ck_assert(run_until(has_reply, 2000));
    buf_deinit(&b);

    become_member(1);
    become_member(2);
    ck_assert(run_until(is_mesh_up, 3000));
    ck_assert_uint_eq(nodes[1].resets[3][LANE_LOG], 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("peer links");
    TCase *c = tcase_create("links");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, two_nodes_greet_on_all_lanes_and_call_each_other_alive);
    tcase_add_test(c, upcalls_that_are_set_late_are_told_of_the_nodes_and_lanes_that_are_there);
    tcase_add_test(c, three_nodes_make_a_full_mesh_and_beat);
    tcase_add_test(c, a_node_that_closes_and_refuses_is_dead_within_50_ms);
    tcase_add_test(c, a_restarted_node_is_alive_again_under_its_new_incarnation_and_lanes_are_reset);
    tcase_add_test(c, a_process_killed_under_load_is_dead_within_50_ms);
    tcase_add_test(c, the_only_peer_is_dialled_until_it_is_back_however_long_it_refused);
    tcase_add_test(c, a_dial_that_nobody_answers_ends_after_its_time_and_is_made_again);
    tcase_add_test(c, a_removed_peer_is_disconnected_and_forgotten);
    tcase_add_test(c, a_name_is_looked_up_without_blocking);
    tcase_add_test(c, addresses_that_are_none_are_refused);
    tcase_add_test(c, frames_of_all_sizes_arrive_whole_and_in_order);
    tcase_add_test(c, many_borrowed_ranges_in_one_turn_are_written);
    tcase_add_test(c, borrowed_bytes_may_change_after_the_flush);
    tcase_add_test(c, a_full_lane_refuses_and_says_when_there_is_room);
    tcase_add_test(c, buffers_shrink_when_the_lane_is_quiet);
    tcase_add_test(c, a_wrong_secret_is_refused_and_named_on_both_sides);
    tcase_add_test(c, a_known_name_with_another_store_id_is_refused_with_the_cure);
    tcase_add_test(c, a_blank_node_under_a_members_name_may_greet_but_is_not_that_member);
    tcase_add_test(c, a_member_whose_name_was_given_to_another_disk_is_dead);
    tcase_add_test(c, a_copy_of_a_running_node_is_refused);
    tcase_add_test(c, members_of_different_clusters_refuse_each_other);
    tcase_add_test(c, three_blank_nodes_form_a_cluster_and_learn_each_others_ids);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
