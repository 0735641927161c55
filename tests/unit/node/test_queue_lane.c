// SPDX-License-Identifier: Apache-2.0
// links: node/base node/queue proto gen
// Lanes between two nodes: what is large goes in parts and holds nobody up (queue_lane.h; law 4).
#include "node/queue/queue_parts.h"
#include "wire.h"

enum { GROUP = 77, LARGE = 16 << 20, AHEAD = 512 << 10, FRAME_PARTS_MAX = 128 << 10 };

static const struct queue_session_id bulky = {.incarnation = 7, .counter = 1, .node = 1};
static const struct queue_session_id brisk = {.incarnation = 7, .counter = 2, .node = 1};

// ---- two nodes and a wire each way ---------------------------------------------------------------------------------

struct side {
    struct net net;
    struct queue_lanes lanes;
    struct list wire;     // Frames to the other side, oldest first.
    bool is_cut, is_full;
    uint32_t renewed;     // Times it heard of a new connection.
    uint32_t other_level; // Of the other side's program.
    struct list items;    // Bodies received, as struct wire_frame.
};

static struct side sides[2];

static enum rc wire_send(struct net *n, uint32_t node, enum net_lane lane, enum frame_type type, struct span envelope,
                         const struct iovec *raw, int raw_count, bool raw_crc)
{
    (void)node;
    ck_assert_int_eq(lane, LANE_SESSION);
    ck_assert(raw_crc);
    struct side *s = container_of(n, struct side, net);
    if (s->is_cut) {
        return RC_NOT_CONNECTED;
    }
    if (s->is_full) {
        return RC_FULL;
    }
    wire_put(&s->wire, type, envelope, raw, raw_count);
    return RC_OK;
}

static uint32_t wire_level(struct net *n, uint32_t node)
{
    (void)node;
    return container_of(n, struct side, net)->other_level;
}

static void receive(struct queue_service *q, struct span items)
{
    struct side *s = (struct side *)q;
    struct reader r = reader_of(items);
    struct queue_item item;
    while (queue_item_next(&r, &item) == RC_OK) {
        struct wire_frame *got = mem_zalloc(sizeof(*got));
        buf_span_bytes(&got->bytes, item.body);
        list_add_tail(&s->items, &got->link);
    }
}

static void renewed(struct queue_service *q, uint32_t node)
{
    struct side *s = (struct side *)q;
    ck_assert_uint_eq(node, s == &sides[0] ? 2 : 1);
    s->renewed++;
}

static void setup(void)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct side *s = &sides[i];
        *s = (struct side){.net = {.send = wire_send, .level = wire_level}, .other_level = NET_LEVEL_OWN};
        s->lanes.net = &s->net;
        s->lanes.node = i + 1;
        s->lanes.receive = receive;
        s->lanes.renewed = renewed;
        queue_lanes_init(&s->lanes);
        list_init(&s->wire);
        list_init(&s->items);
    }
}

static void teardown(void)
{
    for (uint32_t i = 0; i < 2; i++) {
        queue_lanes_deinit(&sides[i].lanes);
        wire_clear(&sides[i].wire);
        wire_clear(&sides[i].items);
    }
    (void)block_sweep(SIZE_MAX);
}

// What one side has sent arrives at the other. Returns the bytes of the frames.
static size_t arrive(uint32_t from)
{
    struct side *s = &sides[from], *to = &sides[1 - from];
    size_t bytes = 0;
    while (!list_is_empty(&s->wire)) {
        struct wire_frame *f = wire_first(&s->wire);
        struct frame frame;
        size_t size;
        ck_assert_int_eq(frame_decode(buf_span(&f->bytes), &frame, &size), RC_OK);
        bytes += f->bytes.len;
        queue_lanes_frame(&to->lanes, (struct queue_service *)to, from + 1, &frame);
        wire_frame_drop(f);
    }
    return bytes;
}

static void turn(uint32_t side)
{
    queue_lanes_recycle(&sides[side].lanes);
    queue_lanes_flush(&sides[side].lanes);
}

static size_t wire_bytes(uint32_t side)
{
    size_t bytes = 0;
    list_each (l, &sides[side].wire) {
        bytes += list_entry(l, struct wire_frame, link)->bytes.len;
    }
    return bytes;
}

static struct queue_lane *lane(void)
{
    return queue_lane_to(&sides[0].lanes, 2, 0);
}

static void add_small(struct queue_session_id session, const char *text)
{
    size_t at = queue_lane_begin(lane(), QUEUE_ITEM_COMMANDS, GROUP, session, 1);
    buf_span_bytes(&lane()->out, span_str(text));
    queue_lane_end(lane(), at);
}

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 31 >> 5);
}

static void add_large(struct queue_session_id session)
{
    struct block *b = block_create(LARGE);
    for (size_t i = 0; i < LARGE; i++) {
        b->ptr[i] = byte_at(i);
    }
    size_t at = queue_lane_begin(lane(), QUEUE_ITEM_COMMANDS, GROUP, session, 1);
    queue_lane_end_shared(lane(), at, b, span_of(b->ptr, LARGE));
    block_release(b);
}

static bool takes(size_t bytes, struct queue_session_id session)
{
    return queue_lane_takes(lane(), bytes, QUEUE_ITEM_COMMANDS, GROUP, session);
}

// The oldest item that arrived at the second side.
static struct wire_frame *first_item(void)
{
    ck_assert(!list_is_empty(&sides[1].items));
    return wire_first(&sides[1].items);
}

static void check_small(const char *text)
{
    struct wire_frame *got = first_item();
    ck_assert_uint_eq(got->bytes.len, strlen(text));
    ck_assert_mem_eq(got->bytes.ptr, text, got->bytes.len);
    wire_frame_drop(got);
}

static void check_large(void)
{
    struct wire_frame *got = first_item();
    ck_assert_uint_eq(got->bytes.len, LARGE);
    size_t wrong = 0;
    for (size_t i = 0; i < LARGE; i++) {
        wrong += got->bytes.ptr[i] != byte_at(i);
    }
    ck_assert_uint_eq(wrong, 0);
    wire_frame_drop(got);
}

// Both sides take turns until nothing moves any more. Returns the most that was ahead.
static size_t settle(void)
{
    size_t most = 0;
    int rounds = 0;
    for (size_t moved = 1; moved > 0;) {
        ck_assert_int_lt(rounds++, 1000);
        turn(0);
        size_t ahead = wire_bytes(0);
        most = ahead > most ? ahead : most;
        moved = arrive(0);
        turn(1);
        moved += arrive(1);
    }
    return most;
}

// ---- tests ---------------------------------------------------------------------------------------------------------

START_TEST(a_large_item_of_one_session_holds_up_what_is_small_of_no_other)
{
    add_large(bulky);
    ck_assert(takes(1000, brisk));
    ck_assert(!takes(1000, bulky));  // Goes behind its own large one, in order.
    ck_assert(!takes(LARGE, brisk));
    add_small(brisk, "small");
    turn(0);
    // It is in front of all but what may be ahead.
    ck_assert_uint_lt(wire_bytes(0), AHEAD + FRAME_PARTS_MAX + 4096);
    arrive(0);
    check_small("small");
    ck_assert(takes(1000, brisk));
    settle();
    check_large();
    ck_assert(takes(LARGE, brisk));
    ck_assert(takes(1000, bulky));
}
END_TEST

START_TEST(what_a_session_says_behind_its_large_item_arrives_behind_it)
{
    add_large(bulky);
    add_small(bulky, "behind");
    add_small(brisk, "other");
    settle();
    check_small("other");
    check_large();
    check_small("behind");
    ck_assert(list_is_empty(&sides[1].items));
}
END_TEST

START_TEST(parts_go_ahead_of_what_was_taken_by_half_a_megabyte_at_most)
{
    add_large(bulky);
    turn(0);
    size_t ahead = wire_bytes(0);
    ck_assert_uint_ge(ahead, AHEAD);
    ck_assert_uint_lt(ahead, AHEAD + FRAME_PARTS_MAX + 4096);
    for (int i = 0; i < 5; i++) {
        turn(0);
    }
    ck_assert_uint_eq(wire_bytes(0), ahead);
    ck_assert_uint_lt(settle(), AHEAD + FRAME_PARTS_MAX + 4096);
    check_large();
}
END_TEST

START_TEST(an_answer_that_is_lost_with_its_connection_is_given_again)
{
    add_large(bulky);
    turn(0);
    arrive(0);
    turn(1);
    wire_clear(&sides[1].wire);
    turn(0);
    ck_assert_uint_eq(wire_bytes(0), 0);
    queue_lanes_reset(&sides[1].lanes, 1);
    settle();
    check_large();
}
END_TEST

START_TEST(an_answer_without_a_connection_is_kept_until_there_is_one)
{
    add_large(bulky);
    sides[1].is_cut = true;
    turn(0);
    arrive(0);
    turn(1);
    sides[1].is_cut = false;
    queue_lanes_reset(&sides[1].lanes, 1);
    settle();
    check_large();
}
END_TEST

START_TEST(an_answer_for_an_earlier_connection_says_nothing_of_the_new_one)
{
    add_large(bulky);
    turn(0);
    arrive(0);
    turn(1);  // Its answer is on the way when the first connection ends.
    wire_clear(&sides[0].wire);
    queue_lanes_reset(&sides[0].lanes, 2);
    add_large(bulky);
    turn(0);
    size_t ahead = wire_bytes(0);
    arrive(1);
    turn(0);
    ck_assert_uint_eq(wire_bytes(0), ahead);
    settle();
    check_large();
    ck_assert(list_is_empty(&sides[1].items));
}
END_TEST

// A node of an older program: it would be waited for until the connection ends.
START_TEST(parts_for_a_node_that_gives_no_answers_do_not_wait_for_them)
{
    sides[0].other_level = NET_LEVEL_SESSION_TAKEN - 1;
    add_large(bulky);
    turn(0);
    ck_assert_uint_ge(wire_bytes(0), LARGE);
    ck_assert_uint_eq(queue_lanes_stuck(&sides[0].lanes, 1), 0);
    ck_assert_uint_eq(queue_lanes_stuck(&sides[0].lanes, 1 + QUEUE_TAKEN_TIMEOUT_NS), 0);
    arrive(0);
    check_large();
}
END_TEST

START_TEST(a_node_that_takes_no_part_for_half_a_minute_is_named_and_one_that_takes_some_is_not)
{
    enum { START = 1000 };
    struct queue_lanes *l = &sides[0].lanes;
    ck_assert_uint_eq(queue_lanes_stuck(l, START), 0);
    add_large(bulky);
    turn(0);
    ck_assert_uint_eq(queue_lanes_stuck(l, START), 0);
    ck_assert_uint_eq(queue_lanes_stuck(l, START + QUEUE_TAKEN_TIMEOUT_NS - 1), 0);
    arrive(0);
    turn(1);
    arrive(1);  // It did take some.
    turn(0);
    ck_assert_uint_eq(queue_lanes_stuck(l, START + QUEUE_TAKEN_TIMEOUT_NS), 0);
    ck_assert_uint_eq(queue_lanes_stuck(l, START + 2 * QUEUE_TAKEN_TIMEOUT_NS - 1), 0);
    ck_assert_uint_eq(queue_lanes_stuck(l, START + 2 * QUEUE_TAKEN_TIMEOUT_NS), 2);
    queue_lanes_reset(l, 2);
    ck_assert_uint_eq(queue_lanes_stuck(l, START + 2 * QUEUE_TAKEN_TIMEOUT_NS), 0);
    add_large(brisk);
    settle();
    check_large();
    ck_assert(list_is_empty(&sides[1].items));
}
END_TEST

// A line on which parts take 45 s, for so much small traffic is in front of them: what is sent anew each 30 s never arrives whole.
START_TEST(over_a_line_too_slow_for_its_time_a_lane_begins_anew_less_often_each_time_until_something_is_taken)
{
    struct queue_lanes *l = &sides[0].lanes;
    uint64_t now = 1000, wait = QUEUE_TAKEN_TIMEOUT_NS;
    for (int i = 0; i < 7; i++) {
        add_large(bulky);
        turn(0);
        wire_clear(&sides[0].wire);
        ck_assert_uint_eq(queue_lanes_stuck(l, now), 0);
        ck_assert_uint_eq(queue_lanes_stuck(l, now + wait - 1), 0);
        now += wait;
        ck_assert_uint_eq(queue_lanes_stuck(l, now), 2);
        queue_lanes_reset(l, 2);
        wait *= i < QUEUE_TAKEN_DOUBLINGS ? 2 : 1;
    }
    ck_assert_uint_eq(wait, QUEUE_TAKEN_TIMEOUT_NS << QUEUE_TAKEN_DOUBLINGS);
    add_large(bulky);
    turn(0);
    arrive(0);
    turn(1);
    arrive(1);  // It took some: the next wait is a first one.
    turn(0);
    ck_assert_uint_eq(queue_lanes_stuck(l, now), 0);
    ck_assert_uint_eq(queue_lanes_stuck(l, now + QUEUE_TAKEN_TIMEOUT_NS), 2);
}
END_TEST

// A session that waits for an answer behind a large delivery would else give up, attach anew and get it all once more.
START_TEST(a_large_delivery_that_still_comes_is_known_to_move_and_one_that_stands_still_is_not)
{
    struct queue_lane *l = lane();
    struct block *b = block_create(LARGE);
    memset(b->ptr, 1, LARGE);
    size_t at = queue_lane_begin(l, QUEUE_ITEM_DELIVER, GROUP, bulky, 1);
    queue_lane_end_shared(l, at, b, span_of(b->ptr, LARGE));
    block_release(b);
    struct queue_lanes *to = &sides[1].lanes;
    ck_assert(!queue_lanes_receives(to, GROUP, bulky));
    turn(0);
    arrive(0);
    ck_assert(!queue_lanes_receives(to, GROUP, brisk));
    ck_assert(!queue_lanes_receives(to, GROUP + 1, bulky));
    ck_assert(queue_lanes_receives(to, GROUP, bulky));
    ck_assert(!queue_lanes_receives(to, GROUP, bulky));
    turn(1);
    arrive(1);
    turn(0);
    arrive(0);
    ck_assert(queue_lanes_receives(to, GROUP, bulky));
    settle();
    ck_assert(!queue_lanes_receives(to, GROUP, bulky));
}
END_TEST

START_TEST(a_new_connection_says_so_once_also_when_it_is_full_at_first_or_breaks_at_once)
{
    queue_lanes_reset(&sides[0].lanes, 2);
    sides[0].is_cut = true;
    turn(0);
    sides[0].is_cut = false;
    turn(0);
    (void)arrive(0);
    ck_assert_uint_eq(sides[1].renewed, 0);  // Without a connection; the next one says it.
    queue_lanes_reset(&sides[0].lanes, 2);
    sides[0].is_full = true;
    turn(0);
    ck_assert(queue_lanes_have_work(&sides[0].lanes));
    sides[0].is_full = false;
    for (int i = 0; i < 3; i++) {
        turn(0);
        (void)arrive(0);
        ck_assert_uint_eq(sides[1].renewed, 1);
    }
    sides[0].other_level = NET_LEVEL_SESSION_NEW - 1;
    queue_lanes_reset(&sides[0].lanes, 2);
    turn(0);
    (void)arrive(0);
    ck_assert_uint_eq(sides[1].renewed, 1);
    ck_assert(!queue_lanes_have_work(&sides[0].lanes));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("queue_lane");
    TCase *t = tcase_create("queue_lane");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_new_connection_says_so_once_also_when_it_is_full_at_first_or_breaks_at_once);
    tcase_add_test(t, a_large_item_of_one_session_holds_up_what_is_small_of_no_other);
    tcase_add_test(t, what_a_session_says_behind_its_large_item_arrives_behind_it);
    tcase_add_test(t, parts_go_ahead_of_what_was_taken_by_half_a_megabyte_at_most);
    tcase_add_test(t, an_answer_that_is_lost_with_its_connection_is_given_again);
    tcase_add_test(t, an_answer_without_a_connection_is_kept_until_there_is_one);
    tcase_add_test(t, an_answer_for_an_earlier_connection_says_nothing_of_the_new_one);
    tcase_add_test(t, parts_for_a_node_that_gives_no_answers_do_not_wait_for_them);
    tcase_add_test(t, a_node_that_takes_no_part_for_half_a_minute_is_named_and_one_that_takes_some_is_not);
    tcase_add_test(t, over_a_line_too_slow_for_its_time_a_lane_begins_anew_less_often_each_time_until_something_is_taken);
    tcase_add_test(t, a_large_delivery_that_still_comes_is_known_to_move_and_one_that_stands_still_is_not);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
