// SPDX-License-Identifier: Apache-2.0
// links: node/amqp09 proto/amqp09 node/base
// The two books of a channel: confirms (confirms.h) and unsettled deliveries (unacked.h), against simple
// models.
#include "node/amqp09/confirms.h"
#include "node/amqp09/unacked.h"
#include "node/base/env.h"
#include "proto/amqp09/frame.h"
#include "proto/amqp09/method.h"
#include "tests/unit/suite.h"
#include <check.h>
#include <stdlib.h>

// ---- confirms -----------------------------------------------------------------------------------

// What a client makes of the frames: the state of each number.
enum { OPEN, ACKED, NACKED };

static void read_frames(struct buf *out, uint8_t *states, uint64_t count)
{
    struct span rest = buf_span(out);
    while (rest.len > 0) {
        struct amqp_frame f;
        struct amqp_frame_fault fault;
        struct amqp_method m;
        size_t used;
        ck_assert_int_eq(amqp_frame_read(rest, UINT32_MAX, &f, &used, &fault), RC_OK);
        ck_assert_int_eq(amqp_method_read(f.payload, &m), RC_OK);
        bool is_nack = m.id == AMQP_BASIC_NACK_ID;
        uint64_t tag = is_nack ? m.basic_nack.delivery_tag : m.basic_ack.delivery_tag;
        bool is_multiple = is_nack ? m.basic_nack.multiple : m.basic_ack.multiple;
        ck_assert_uint_ge(tag, 1);
        ck_assert_uint_le(tag, count);
        ck_assert_int_eq(states[tag], OPEN);
        for (uint64_t n = is_multiple ? 1 : tag; n <= tag; n++) {
            states[n] = states[n] == OPEN ? (is_nack ? NACKED : ACKED) : states[n];
        }
        rest = span_of(rest.ptr + used, rest.len - used);
    }
    out->len = 0;
}

START_TEST(random_outcomes_are_told_truly_and_once)
{
    enum { COUNT = 200 };
    static uint8_t told[COUNT + 1], truth[COUNT + 1];
    static uint32_t open[COUNT + 1];
    memset(told, 0, sizeof(told));
    memset(truth, 0, sizeof(truth));
    struct rng rng;
    rng_seed(&rng, (uint64_t)_i + 1);
    struct confirms c;
    struct buf out;
    confirms_init(&c);
    buf_init(&out);
    uint64_t sent = 0;
    for (int step = 0; step < 4000; step++) {
        uint64_t what = rng_below(&rng, 10);
        if (what < 2 && sent < COUNT) {
            uint32_t queues = (uint32_t)rng_below(&rng, 4);
            sent++;
            ck_assert_uint_eq(confirms_add(&c, queues), sent);
            open[sent] = queues;
            truth[sent] = queues == 0 ? ACKED : OPEN;
        } else if (what < 9 && sent > 0) {
            uint64_t n = 1 + rng_below(&rng, sent);
            if (open[n] > 0) {
                bool is_rejected = rng_below(&rng, 10) == 0;
                confirms_settle(&c, n, is_rejected);
                truth[n] = is_rejected || truth[n] == NACKED ? NACKED : OPEN;
                if (--open[n] == 0 && truth[n] == OPEN) {
                    truth[n] = ACKED;
                }
            }
        } else {
            confirms_flush(&c, &out, 1);
            read_frames(&out, told, sent);
            for (uint64_t n = 1; n <= sent; n++) {
                ck_assert_int_eq(told[n], open[n] > 0 ? OPEN : truth[n]);
            }
        }
    }
    confirms_deinit(&c);
    buf_deinit(&out);
}
END_TEST

START_TEST(a_run_is_one_frame_and_nacks_split_it)
{
    struct confirms c;
    struct buf out, expected;
    confirms_init(&c);
    buf_init(&out);
    buf_init(&expected);
    for (int i = 0; i < 100; i++) {
        confirms_add(&c, 1);
    }
    for (uint64_t n = 100; n >= 1; n--) {
        confirms_settle(&c, n, n == 40);
    }
    confirms_flush(&c, &out, 1);
    amqp_send_basic_ack(&expected, 1, &(struct amqp_basic_ack){.delivery_tag = 39, .multiple = true});
    amqp_send_basic_nack(&expected, 1,
                         &(struct amqp_basic_nack){.delivery_tag = 40, .multiple = true, .requeue = true});
    amqp_send_basic_ack(&expected, 1, &(struct amqp_basic_ack){.delivery_tag = 100, .multiple = true});
    ck_assert(span_equal(buf_span(&out), buf_span(&expected)));
    ck_assert_uint_eq(confirms_open(&c), 0);
    confirms_deinit(&c);
    buf_deinit(&out);
    buf_deinit(&expected);
}
END_TEST

// Most are settled soon and in order, one in 500 by a queue that answers late or only at the end.
START_TEST(outcomes_are_told_truly_and_once_though_some_stay_open_for_long)
{
    enum { COUNT = 12000, NEVER = COUNT + 1 };
    static uint8_t told[COUNT + 1], truth[COUNT + 1];
    static uint32_t due[COUNT + 1];
    memset(told, 0, sizeof(told));
    memset(truth, 0, sizeof(truth));
    struct rng rng;
    rng_seed(&rng, (uint64_t)_i + 1);
    struct confirms c;
    struct buf out;
    confirms_init(&c);
    buf_init(&out);
    uint64_t open = 0;
    for (uint32_t now = 1; now <= NEVER; now++) {
        if (now <= COUNT) {
            ck_assert_uint_eq(confirms_add(&c, 1), now);
            const bool is_late = rng_below(&rng, 500) == 0;
            due[now] = is_late ? now + (uint32_t)rng_below(&rng, COUNT) : now + (uint32_t)rng_below(&rng, 30);
            due[now] = due[now] > COUNT ? NEVER : due[now];
            open++;
        }
        for (uint32_t n = 1; n <= COUNT && n <= now; n++) {
            if (due[n] == now) {
                const bool is_rejected = rng_below(&rng, 10) == 0;
                confirms_settle(&c, n, is_rejected);
                truth[n] = is_rejected ? NACKED : ACKED;
                open--;
            }
        }
        if (now == NEVER || rng_below(&rng, 10) == 0) {
            confirms_flush(&c, &out, 1);
            read_frames(&out, told, COUNT);
            ck_assert_mem_eq(told, truth, sizeof(told));
            ck_assert_uint_eq(confirms_open(&c), open);
        }
    }
    ck_assert_uint_eq(confirms_open(&c), 0);
    confirms_deinit(&c);
    buf_deinit(&out);
}
END_TEST

START_TEST(one_publish_that_stays_open_does_not_grow_memory_with_those_behind_it)
{
    struct confirms c;
    struct buf out;
    confirms_init(&c);
    buf_init(&out);
    const uint64_t stuck = confirms_add(&c, 2);
    confirms_settle(&c, stuck, true);
    for (int i = 0; i < 1000000; i++) {
        confirms_settle(&c, confirms_add(&c, 1), false);
        confirms_flush(&c, &out, 1);
        out.len = 0;
    }
    ck_assert_uint_le(c.cap, 4096);
    ck_assert_uint_eq(confirms_open(&c), 1);
    confirms_settle(&c, stuck, false);
    for (int i = 0; i < 3; i++) {
        confirms_settle(&c, confirms_add(&c, 1), false);
    }
    confirms_flush(&c, &out, 1);
    struct buf expected;
    buf_init(&expected);
    amqp_send_basic_nack(&expected, 1, &(struct amqp_basic_nack){.delivery_tag = stuck, .requeue = true});
    amqp_send_basic_ack(&expected, 1, &(struct amqp_basic_ack){.delivery_tag = 1000004, .multiple = true});
    ck_assert(span_equal(buf_span(&out), buf_span(&expected)));
    confirms_deinit(&c);
    buf_deinit(&out);
    buf_deinit(&expected);
}
END_TEST

// ---- unacked ------------------------------------------------------------------------------------

START_TEST(random_acks_match_a_plain_array)
{
    enum { COUNT = 1000 };
    static bool is_open[COUNT + 1];
    memset(is_open, 0, sizeof(is_open));
    struct rng rng;
    rng_seed(&rng, (uint64_t)_i + 1);
    struct unacked u;
    unacked_init(&u);
    struct channel_queue *queue = (struct channel_queue *)(void *)&u;  // Only compared with NULL.
    uint64_t tags = 0;
    uint32_t count = 0;
    for (int step = 0; step < 6000; step++) {
        uint64_t what = rng_below(&rng, 100);
        struct unacked_entry e;
        if (what < 40 && tags < COUNT) {
            tags++;
            if (what < 5) {
                ck_assert_uint_eq(unacked_skip(&u), tags);
            } else {
                ck_assert_uint_eq(unacked_add(&u, queue, 1, tags * 10), tags);
                is_open[tags] = true;
                count++;
            }
        } else if (what < 98 && tags > 0) {
            uint64_t tag = 1 + rng_below(&rng, tags + 2);
            bool was_open = tag <= tags && is_open[tag];
            ck_assert_int_eq(unacked_has(&u, tag), was_open);
            ck_assert_int_eq(unacked_take(&u, tag, &e), was_open);
            if (was_open) {
                ck_assert_uint_eq(e.number, tag * 10);
                is_open[tag] = false;
                count--;
            }
        } else if (tags > 0) {
            uint64_t upto = 1 + rng_below(&rng, tags), at = 0;
            while (unacked_take_first(&u, upto, &e)) {
                ck_assert_uint_gt(e.tag, at);
                at = e.tag;
                ck_assert(is_open[e.tag]);
                is_open[e.tag] = false;
                count--;
            }
            for (uint64_t tag = 1; tag <= upto; tag++) {
                ck_assert(!is_open[tag]);
            }
        }
        ck_assert_uint_eq(u.count, count);
    }
    unacked_deinit(&u);
}
END_TEST

START_TEST(one_stuck_delivery_does_not_grow_memory)
{
    struct unacked u;
    unacked_init(&u);
    struct channel_queue *queue = (struct channel_queue *)(void *)&u;
    struct unacked_entry e;
    unacked_add(&u, queue, 1, 1);
    for (int i = 0; i < 100000; i++) {
        uint64_t tag = unacked_add(&u, queue, 1, 2);
        ck_assert(unacked_take(&u, tag, &e));
        unacked_skip(&u);
    }
    ck_assert_uint_le(u.cap, 16);
    ck_assert(unacked_take(&u, 1, &e));
    unacked_deinit(&u);
}
END_TEST

START_TEST(entries_put_back_are_found_in_order)
{
    struct unacked u;
    unacked_init(&u);
    struct channel_queue *queue = (struct channel_queue *)(void *)&u;
    struct unacked_entry taken[10], e;
    for (int i = 0; i < 20; i++) {
        unacked_add(&u, queue, 1, 1);
    }
    for (uint32_t i = 0; i < 10; i++) {
        ck_assert(unacked_take(&u, 20 - 2 * i, &taken[i]));
    }
    unacked_put_back(&u, taken, 10);
    for (uint64_t tag = 1; tag <= 20; tag++) {
        ck_assert(unacked_take_first(&u, UINT64_MAX, &e));
        ck_assert_uint_eq(e.tag, tag);
    }
    unacked_deinit(&u);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("tables");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, random_outcomes_are_told_truly_and_once, 0, 5);
    tcase_add_test(c, a_run_is_one_frame_and_nacks_split_it);
    tcase_add_loop_test(c, outcomes_are_told_truly_and_once_though_some_stay_open_for_long, 0, 3);
    tcase_add_test(c, one_publish_that_stays_open_does_not_grow_memory_with_those_behind_it);
    tcase_add_loop_test(c, random_acks_match_a_plain_array, 0, 5);
    tcase_add_test(c, one_stuck_delivery_does_not_grow_memory);
    tcase_add_test(c, entries_put_back_are_found_in_order);
    return suite_run("amqp09_tables", c);
}
