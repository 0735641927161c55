// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus/peer
// One net for several workers (consensus/peer/net_share.h): a real net that writes down what it is given, and mailboxes
// that the test empties worker by worker, so that every interleaving of turns can be played.
#include "consensus/peer/net_share.h"
#include "node/base/limits.h"
#include "node/base/mem.h"
#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

// ---- fixture -----------------------------------------------------------------------------------------------------

enum { WORKERS = 3, PEER = 7, MAIL_MAX = 64, TEXT = 4096 };

struct mail {
    void (*fn)(void *arg);
    void *arg;
};

struct fixture;

struct hearer {
    struct fixture *f;
    char text[TEXT];
};

struct fixture {
    struct net real;
    bool is_connected;
    size_t queued;
    uint32_t level;        // Of the peer.
    struct buf written;    // What left by the real net after a flush.
    struct buf unflushed;
    struct net_share *share;
    struct mail mail[WORKERS][MAIL_MAX];
    uint32_t mail_count[WORKERS];
    struct hearer hearers[WORKERS];
    struct net_upcalls upcalls[WORKERS];
};

static struct fixture *fixture_of(struct net *n)
{
    return container_of(n, struct fixture, real);
}

static enum rc real_encoded(struct net *n, uint32_t node, enum net_lane lane, struct span frames)
{
    struct fixture *f = fixture_of(n);
    ck_assert_uint_eq(node, PEER);
    ck_assert_int_eq(lane, LANE_LOG);
    if (!f->is_connected) {
        return RC_NOT_CONNECTED;
    }
    buf_span_bytes(&f->unflushed, frames);
    return RC_OK;
}

static void real_flush(struct net *n)
{
    struct fixture *f = fixture_of(n);
    buf_span_bytes(&f->written, buf_span(&f->unflushed));
    f->unflushed.len = 0;
}

static size_t real_queued(struct net *n, uint32_t node, enum net_lane lane)
{
    (void)node;
    return lane == LANE_LOG ? fixture_of(n)->queued : 0;
}

static bool real_is_connected(struct net *n, uint32_t node, enum net_lane lane)
{
    (void)node;
    return lane == LANE_LOG && fixture_of(n)->is_connected;
}

static uint32_t real_level(struct net *n, uint32_t node)
{
    return node == PEER ? fixture_of(n)->level : 0;
}

static void post(void *ctx, uint32_t worker, void (*fn)(void *arg), void *arg)
{
    struct fixture *f = ctx;
    ck_assert_uint_lt(f->mail_count[worker], MAIL_MAX);
    f->mail[worker][f->mail_count[worker]++] = (struct mail){fn, arg};
}

__attribute__((format(printf, 2, 3))) static void say(void *ctx, const char *format, ...)
{
    struct hearer *h = ctx;
    const size_t at = strlen(h->text);
    va_list args;
    va_start(args, format);
    vsnprintf(h->text + at, TEXT - at, format, args);
    va_end(args);
}

static void on_frame(void *ctx, uint32_t node, enum net_lane lane, const struct frame *f)
{
    say(ctx, "frame %u/%d %u:%.*s:%.*s; ", node, (int)lane, f->type, (int)f->envelope.len,
        (const char *)f->envelope.ptr, (int)f->raw.len, (const char *)f->raw.ptr);
}

static void on_reset(void *ctx, uint32_t node, enum net_lane lane)
{
    say(ctx, "reset %u/%d; ", node, (int)lane);
}

static void on_writable(void *ctx, uint32_t node, enum net_lane lane)
{
    say(ctx, "writable %u/%d; ", node, (int)lane);
}

static void on_node_state(void *ctx, uint32_t node, enum node_verdict verdict, uint64_t incarnation)
{
    say(ctx, "node %u %d %llu; ", node, (int)verdict, (unsigned long long)incarnation);
}

static struct fixture *start(void)
{
    struct fixture *f = mem_zalloc(sizeof(*f));
    f->real = (struct net){
        .flush = real_flush, .queued = real_queued, .is_connected = real_is_connected, .send_encoded = real_encoded,
        .level = real_level};
    struct net_share_config c = {.net = &f->real, .workers = WORKERS, .post = post, .post_ctx = f};
    f->share = net_share_create(&c);
    for (uint32_t i = 0; i < WORKERS; i++) {
        f->hearers[i].f = f;
        f->upcalls[i] = (struct net_upcalls){.frame = on_frame,
                                             .reset = on_reset,
                                             .writable = on_writable,
                                             .node_state = on_node_state,
                                             .ctx = &f->hearers[i]};
        net_share_listen(f->share, i, &f->upcalls[i]);
    }
    return f;
}

// The mailbox of a worker is emptied, as at the start of its turn.
static void drain(struct fixture *f, uint32_t worker)
{
    for (uint32_t i = 0; i < f->mail_count[worker]; i++) {
        f->mail[worker][i].fn(f->mail[worker][i].arg);
    }
    f->mail_count[worker] = 0;
}

static void turn_0(struct fixture *f)
{
    drain(f, 0);
    net_share_begin(f->share);
    net_share_flush(f->share);
}

static void stop(struct fixture *f)
{
    for (uint32_t i = 1; i < WORKERS; i++) {
        drain(f, i);
    }
    turn_0(f);
    for (uint32_t i = 1; i < WORKERS; i++) {
        drain(f, i);
    }
    net_share_destroy(f->share);
    buf_deinit(&f->written);
    buf_deinit(&f->unflushed);
    free(f);
}

static void connect_peer(struct fixture *f)
{
    const struct net_upcalls *u = net_share_upcalls(f->share);
    f->is_connected = true;
    u->reset(u->ctx, PEER, LANE_LOG);
    turn_0(f);
    for (uint32_t i = 1; i < WORKERS; i++) {
        drain(f, i);
    }
}

static enum rc send_text(struct fixture *f, uint32_t worker, const char *envelope, const char *raw, bool has_sum)
{
    struct net *n = net_share_net(f->share, worker);
    struct iovec iov = {.iov_base = (void *)raw, .iov_len = strlen(raw)};
    return n->send(n, PEER, LANE_LOG, FRAME_APPEND, span_str(envelope), &iov, 1, has_sum);
}

static void flush(struct fixture *f, uint32_t worker)
{
    struct net *n = net_share_net(f->share, worker);
    n->flush(n);
}

// Takes the first frame off what was written and checks it.
static void written_is(struct fixture *f, uint32_t worker, const char *envelope, const char *raw)
{
    struct frame frame;
    size_t size;
    ck_assert_int_eq(frame_decode(buf_span(&f->written), &frame, &size), RC_OK);
    ck_assert_uint_eq(frame.type, FRAME_APPEND);
    ck_assert_uint_eq(frame.worker, worker);
    ck_assert(span_equal(frame.envelope, span_str(envelope)));
    ck_assert(span_equal(frame.raw, span_str(raw)));
    buf_consume(&f->written, size);
}

// ---- tests -------------------------------------------------------------------------------------------------------

START_TEST(frames_of_all_workers_leave_by_the_real_net_with_their_number)
{
    struct fixture *f = start();
    connect_peer(f);
    ck_assert_int_eq(send_text(f, 2, "a", "first", false), RC_OK);
    ck_assert_int_eq(send_text(f, 2, "b", "second", true), RC_OK);
    ck_assert_int_eq(send_text(f, 1, "c", "third", false), RC_OK);
    turn_0(f);
    ck_assert_uint_eq(f->written.len, 0);  // Nothing was flushed yet.
    flush(f, 2);
    flush(f, 1);
    turn_0(f);
    written_is(f, 2, "a", "first");
    written_is(f, 2, "b", "second");
    written_is(f, 1, "c", "third");
    ck_assert_uint_eq(f->written.len, 0);
    stop(f);
}
END_TEST

START_TEST(a_net_is_connected_only_after_its_worker_heard_of_the_reset)
{
    struct fixture *f = start();
    struct net *n = net_share_net(f->share, 1);
    const struct net_upcalls *u = net_share_upcalls(f->share);
    f->is_connected = true;
    u->reset(u->ctx, PEER, LANE_LOG);
    turn_0(f);
    ck_assert(!n->is_connected(n, PEER, LANE_LOG));
    ck_assert_int_eq(send_text(f, 1, "a", "", false), RC_NOT_CONNECTED);
    drain(f, 1);
    ck_assert(n->is_connected(n, PEER, LANE_LOG));
    ck_assert(!n->is_connected(n, PEER, LANE_SESSION));
    ck_assert_str_eq(f->hearers[1].text, "reset 7/1; ");
    ck_assert_str_eq(f->hearers[0].text, "reset 7/1; ");
    f->is_connected = false;
    turn_0(f);
    ck_assert(!n->is_connected(n, PEER, LANE_LOG));
    stop(f);
}
END_TEST

START_TEST(the_level_of_a_node_is_known_to_a_worker_that_heard_of_its_reset)
{
    struct fixture *f = start();
    struct net *n = net_share_net(f->share, 1);
    ck_assert_uint_eq(n->level(n, PEER), 0);
    f->level = NET_LEVEL_FIRST;
    connect_peer(f);
    ck_assert_uint_eq(n->level(n, PEER), NET_LEVEL_FIRST);
    f->level = 77;  // It was restarted with a later program.
    connect_peer(f);
    ck_assert_uint_eq(n->level(n, PEER), 77);
    ck_assert_uint_eq(n->level(n, PEER + 1), 0);
    stop(f);
}
END_TEST

START_TEST(what_was_said_before_a_reset_never_appears_behind_it)
{
    struct fixture *f = start();
    connect_peer(f);
    const struct net_upcalls *u = net_share_upcalls(f->share);
    ck_assert_int_eq(send_text(f, 1, "posted", "", false), RC_OK);
    flush(f, 1);
    ck_assert_int_eq(send_text(f, 2, "not flushed", "", false), RC_OK);
    u->reset(u->ctx, PEER, LANE_LOG);  // The connection is a new one; the parcel is still in the mailbox.
    turn_0(f);
    drain(f, 2);  // Hears of the reset with a frame in its hands.
    flush(f, 2);
    ck_assert_int_eq(send_text(f, 2, "new", "", false), RC_OK);
    flush(f, 2);
    turn_0(f);
    written_is(f, 2, "new", "");
    ck_assert_uint_eq(f->written.len, 0);
    stop(f);
}
END_TEST

START_TEST(a_full_lane_says_so_and_later_that_there_is_room)
{
    struct fixture *f = start();
    connect_peer(f);
    f->queued = LIMIT_LANE_OUTPUT_BYTES - 100;
    turn_0(f);
    struct net *n = net_share_net(f->share, 1);
    ck_assert_uint_eq(n->queued(n, PEER, LANE_LOG), LIMIT_LANE_OUTPUT_BYTES - 100);
    ck_assert_int_eq(send_text(f, 1, "12345678901234567890123456789012345678901234567890", "", false), RC_OK);
    ck_assert_int_eq(send_text(f, 1, "12345678901234567890123456789012345678901234567890", "", false), RC_FULL);
    flush(f, 1);
    // Bytes on their way count for the other workers too.
    ck_assert_int_eq(send_text(f, 2, "12345678901234567890123456789012345678901234567890", "", false), RC_FULL);
    f->queued = LIMIT_LANE_OUTPUT_BYTES / 2 + 1;
    turn_0(f);
    drain(f, 1);
    ck_assert_str_eq(f->hearers[1].text, "reset 7/1; ");  // Not enough room yet.
    f->queued = LIMIT_LANE_OUTPUT_BYTES / 2;
    turn_0(f);
    drain(f, 1);
    drain(f, 2);
    ck_assert_str_eq(f->hearers[1].text, "reset 7/1; writable 7/1; ");
    ck_assert_str_eq(f->hearers[2].text, "reset 7/1; writable 7/1; ");
    ck_assert_int_eq(send_text(f, 1, "x", "", false), RC_OK);
    f->queued = 0;
    turn_0(f);
    drain(f, 1);
    ck_assert_str_eq(f->hearers[1].text, "reset 7/1; writable 7/1; ");  // Told once.
    stop(f);
}
END_TEST

START_TEST(upcalls_reach_every_worker_in_their_order_and_frames_the_senders_twin)
{
    struct fixture *f = start();
    const struct net_upcalls *u = net_share_upcalls(f->share);
    u->node_state(u->ctx, PEER, NODE_ALIVE, 5);
    u->reset(u->ctx, PEER, LANE_LOG);
    struct frame frame = {.type = FRAME_ACK, .worker = 1, .envelope = span_str("one"), .raw = span_str("raw")};
    u->frame(u->ctx, PEER, LANE_LOG, &frame);
    frame = (struct frame){.type = FRAME_ACK, .worker = 5, .envelope = span_str("five"), .raw = span_str("")};
    u->frame(u->ctx, PEER, LANE_LOG, &frame);  // Of a node with more workers: 5 modulo 3.
    frame = (struct frame){.type = FRAME_ACK, .worker = 3, .envelope = span_str("three"), .raw = span_str("")};
    u->frame(u->ctx, PEER, LANE_LOG, &frame);
    u->node_state(u->ctx, PEER, NODE_DEAD, 5);
    net_share_begin(f->share);
    drain(f, 1);
    drain(f, 2);
    ck_assert_str_eq(f->hearers[0].text, "node 7 0 5; reset 7/1; frame 7/1 33:three:; node 7 2 5; ");
    ck_assert_str_eq(f->hearers[1].text, "node 7 0 5; reset 7/1; frame 7/1 33:one:raw; node 7 2 5; ");
    ck_assert_str_eq(f->hearers[2].text, "node 7 0 5; reset 7/1; frame 7/1 33:five:; node 7 2 5; ");
    stop(f);
}
END_TEST

START_TEST(a_frame_is_passed_on_to_any_worker_and_to_none_that_is_not_there)
{
    struct fixture *f = start();
    net_share_pass_on(f->share, 2, PEER, LANE_BULK, FRAME_SNAPSHOT, span_str("e"), span_str("r"));
    net_share_pass_on(f->share, 0, PEER, LANE_CONTROL, FRAME_VOTES, span_str("v"), span_str(""));
    net_share_pass_on(f->share, WORKERS, PEER, LANE_CONTROL, FRAME_VOTES, span_str("v"), span_str(""));
    for (uint32_t i = 0; i < WORKERS; i++) {
        drain(f, i);
    }
    ck_assert_str_eq(f->hearers[0].text, "frame 7/0 5:v:; ");
    ck_assert_str_eq(f->hearers[1].text, "");
    ck_assert_str_eq(f->hearers[2].text, "frame 7/3 48:e:r; ");
    stop(f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("net_share");
    TCase *c = tcase_create("all");
    tcase_add_test(c, frames_of_all_workers_leave_by_the_real_net_with_their_number);
    tcase_add_test(c, a_net_is_connected_only_after_its_worker_heard_of_the_reset);
    tcase_add_test(c, the_level_of_a_node_is_known_to_a_worker_that_heard_of_its_reset);
    tcase_add_test(c, what_was_said_before_a_reset_never_appears_behind_it);
    tcase_add_test(c, a_full_lane_says_so_and_later_that_there_is_room);
    tcase_add_test(c, upcalls_reach_every_worker_in_their_order_and_frames_the_senders_twin);
    tcase_add_test(c, a_frame_is_passed_on_to_any_worker_and_to_none_that_is_not_there);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
