// SPDX-License-Identifier: Apache-2.0
// links: node/base node/queue proto gen
// Log payloads of the queue: round trips, and every prefix and bit flip of each kind (decision 2).
#include "queue_kit.h"
#include "node/queue/queue_wire.h"
#include "proto/record.h"

// ---- helpers -------------------------------------------------------------------------------------------------------

static const struct queue_session_id id = {.incarnation = 7, .counter = 9, .node = 3};

// One valid command of each kind.
static void sample(struct buf *b, enum queue_command_kind kind)
{
    struct queue_consume consume = {.consumer = 4, .prefetch = 10, .priority = -2, .tag = span_str("ctag")};
    struct queue_settings settings = {.max_length = 5,
                                      .max_length_bytes = -1,
                                      .delivery_limit = 20,
                                      .metadata_version = 3,
                                      .is_single_active = true};
    struct queue_settle_wire ranges[2] = {{.first = 1, .last = 5, .consumer = 4, .how = QUEUE_ACK},
                                          {.first = 9, .last = 9, .consumer = 4, .how = QUEUE_RETURN}};
    struct span keys[3] = {span_str("first"), span_str("cc"), span_str("hidden")};
    bool bcc[3] = {false, false, true};
    struct queue_publish p = {.exchange = span_str("ex"),
                              .routing_keys = keys,
                              .bcc = bcc,
                              .routing_keys_count = 3,
                              .header = span_str("HDR"),
                              .body = span_str("body"),
                              .body_more = span_str(" goes on"),
                              .expiry_ms = 1000,
                              .priority = 200,
                              .has_priority = true,
                              .is_persistent = true};
    b->len = 0;
    if (kind == QUEUE_COMMAND_ENQUEUE) {
        size_t size = queue_enqueue_size(&p);
        queue_enqueue_write(buf_extend(b, size), size, id, 12, 11, &p);
        return;
    }
    queue_command_head(b, kind, kind == QUEUE_COMMAND_GET ? QUEUE_FLAG_NO_ACK : 0, id, 12, 11);
    switch (kind) {
    case QUEUE_COMMAND_CHECKOUT:
        queue_command_checkout(b, &consume);
        break;
    case QUEUE_COMMAND_CREDIT:
        buf_u32(b, 4);
        buf_u32(b, 500);
        break;
    case QUEUE_COMMAND_SETTLE:
        buf_u32(b, 2);
        buf_bytes(b, ranges, sizeof(ranges));
        break;
    case QUEUE_COMMAND_CANCEL:
        buf_u32(b, 4);
        break;
    case QUEUE_COMMAND_CONFIGURE:
        queue_command_configure(b, &settings);
        break;
    case QUEUE_COMMAND_NODE_DOWN:
        buf_u32(b, 2);
        buf_u64(b, 88);
        break;
    default:
        break;
    }
}

START_TEST(an_enqueue_written_in_front_of_its_body_is_the_one_that_is_copied)
{
    struct span keys[2] = {span_str("first"), span_str("cc")};
    struct queue_publish p = {.exchange = span_str("ex"),
                              .routing_keys = keys,
                              .routing_keys_count = 2,
                              .header = span_str("HDR"),
                              .expiry_ms = -1};
    const size_t len = (1 << 20) + 3;
    uint8_t *body = mem_alloc(len);
    memset(body, 'b', len);
    p.body = span_of(body, len);
    const size_t size = queue_enqueue_size(&p), front = size - len;
    ck_assert_uint_le(front + RECORD_HEADER_BYTES, queue_publish_room(2, 5, 3 + 2));  // Keys are properties too.
    uint8_t *copied = mem_alloc(size), *made = mem_alloc(size);
    queue_enqueue_write(copied, size, id, 12, 11, &p);
    memset(made, 0xee, size);
    memcpy(made + front, body, len);
    p.body = span_of(made + front, len);
    p.is_body_disposable = true;
    queue_enqueue_write(made, size, id, 12, 11, &p);
    ck_assert_int_eq(memcmp(made, copied, size), 0);
    free(body);
    free(copied);
    free(made);
}
END_TEST

// A machine with sessions, consumers, held and ready messages, for hostile commands to work on.
static void furnish(struct kit *k)
{
    kit_init(k, kit_settings());
    kit_open(k, id);
    kit_consume(k, id, 4, 3, 0);
    for (int i = 0; i < 8; i++) {
        kit_publish(k, id, i, "m");
    }
}

// ---- tests ---------------------------------------------------------------------------------------------------------

START_TEST(every_kind_decodes_to_what_was_written)
{
    struct buf b = {0};
    struct queue_command c;
    for (int kind = QUEUE_COMMAND_ENQUEUE; kind <= QUEUE_COMMAND_CONTINUE; kind++) {
        sample(&b, (enum queue_command_kind)kind);
        ck_assert_int_eq(queue_command_decode(buf_span(&b), &c), RC_OK);
        ck_assert_int_eq(c.fixed.kind, kind);
        ck_assert(queue_session_id_equal(c.session, id));
        ck_assert_uint_eq(c.fixed.seq, 12);
        ck_assert_uint_eq(c.fixed.known, 11);
    }
    sample(&b, QUEUE_COMMAND_CHECKOUT);
    ck_assert_int_eq(queue_command_decode(buf_span(&b), &c), RC_OK);
    ck_assert_uint_eq(c.checkout.consumer, 4);
    ck_assert_uint_eq(c.checkout.prefetch, 10);
    ck_assert_int_eq(c.checkout.priority, -2);
    ck_assert(span_equal(c.checkout.tag, span_str("ctag")));
    sample(&b, QUEUE_COMMAND_CONFIGURE);
    ck_assert_int_eq(queue_command_decode(buf_span(&b), &c), RC_OK);
    ck_assert_int_eq(c.configure.max_length, 5);
    ck_assert_int_eq(c.configure.max_length_bytes, -1);
    ck_assert(c.configure.is_single_active && !c.configure.is_reject_publish);
    sample(&b, QUEUE_COMMAND_NODE_DOWN);
    ck_assert_int_eq(queue_command_decode(buf_span(&b), &c), RC_OK);
    ck_assert_uint_eq(c.node_down.node, 2);
    ck_assert_uint_eq(c.node_down.incarnation, 88);
    buf_deinit(&b);
}
END_TEST

START_TEST(a_message_comes_out_as_it_went_in)
{
    struct buf b = {0};
    struct queue_message m;
    sample(&b, QUEUE_COMMAND_ENQUEUE);
    ck_assert_int_eq(queue_message_decode(buf_span(&b), &m), RC_OK);
    ck_assert(span_equal(m.exchange, span_str("ex")));
    ck_assert(span_equal(m.routing_key, span_str("first")));
    ck_assert(span_equal(m.header, span_str("HDR")));
    ck_assert(span_equal(m.body, span_str("body goes on")));
    buf_deinit(&b);
}
END_TEST

START_TEST(no_prefix_of_a_command_is_a_command)
{
    struct buf b = {0};
    struct queue_command c;
    for (int kind = QUEUE_COMMAND_ENQUEUE; kind <= QUEUE_COMMAND_CONTINUE; kind++) {
        sample(&b, (enum queue_command_kind)kind);
        for (size_t n = 0; n < b.len; n++) {
            uint8_t *exact = mem_alloc(n);  // So that a sanitizer sees one byte too far.
            memcpy(exact, b.ptr, n);
            ck_assert_int_eq(queue_command_decode(span_of(exact, n), &c), RC_MALFORMED);
            free(exact);
        }
        buf_u8(&b, 0);
        ck_assert_int_eq(queue_command_decode(buf_span(&b), &c), RC_MALFORMED);
    }
    buf_deinit(&b);
}
END_TEST

START_TEST(no_flipped_bit_breaks_the_state_and_two_machines_agree)
{
    struct buf b = {0};
    struct queue_message m;
    for (int kind = QUEUE_COMMAND_ENQUEUE; kind <= QUEUE_COMMAND_CONTINUE; kind++) {
        sample(&b, (enum queue_command_kind)kind);
        for (size_t bit = 0; bit < b.len * 8; bit++) {
            struct kit x, y;
            furnish(&x);
            furnish(&y);
            b.ptr[bit / 8] ^= (uint8_t)(1u << (bit % 8));
            x.cmd.len = y.cmd.len = 0;
            buf_span_bytes(&x.cmd, buf_span(&b));
            buf_span_bytes(&y.cmd, buf_span(&b));
            kit_apply(&x);
            kit_apply(&y);
            if (queue_message_decode(buf_span(&b), &m) == RC_OK) {
                ck_assert_uint_le(m.body.len, b.len);
            }
            ck_assert_uint_eq(queue_fsm_digest(&x.fsm), queue_fsm_digest(&y.fsm));
            b.ptr[bit / 8] ^= (uint8_t)(1u << (bit % 8));
            kit_deinit(&x);
            kit_deinit(&y);
        }
    }
    buf_deinit(&b);
}
END_TEST

START_TEST(what_does_not_decode_is_ignored_and_counted)
{
    struct kit k;
    furnish(&k);
    uint64_t before = queue_fsm_digest(&k.fsm);
    sample(&k.cmd, QUEUE_COMMAND_ENQUEUE);
    k.cmd.ptr[0] = 2;  // A version we do not know.
    kit_apply(&k);
    ck_assert_uint_eq(k.fsm.ignored, 1);
    ck_assert_uint_eq(queue_fsm_digest(&k.fsm), before);
    kit_deinit(&k);
}
END_TEST

START_TEST(items_and_deliveries_survive_every_prefix_and_flip)
{
    struct buf b = {0};
    size_t at = queue_item_begin(&b, QUEUE_ITEM_DELIVER, 5, id, 2);
    for (uint64_t n = 1; n <= 2; n++) {
        struct queue_delivery_wire w = {.before = n - 1,
                                        .number = n,
                                        .consumer = 4,
                                        .exchange_len = 2,
                                        .key_len = 1,
                                        .header_len = 3,
                                        .body_len = 4};
        buf_bytes(&b, &w, sizeof(w));
        buf_bytes(&b, "exkhdrbody", 10);
    }
    queue_item_end(&b, at);
    struct reader r = reader_of(buf_span(&b));
    struct queue_item item;
    ck_assert_int_eq(queue_item_next(&r, &item), RC_OK);
    ck_assert_int_eq(item.type, QUEUE_ITEM_DELIVER);
    ck_assert_uint_eq(item.group, 5);
    ck_assert_uint_eq(item.attach, 2);
    struct reader in = reader_of(item.body);
    struct queue_delivery_wire w;
    struct queue_message m;
    for (uint64_t n = 1; n <= 2; n++) {
        ck_assert_int_eq(queue_delivery_next(&in, &w, &m), RC_OK);
        ck_assert_uint_eq(m.number, n);
        ck_assert(span_equal(m.body, span_str("body")));
    }
    ck_assert_int_eq(queue_delivery_next(&in, &w, &m), RC_MORE);
    for (size_t n = 0; n < b.len; n++) {
        struct reader part = reader_of(span_of(b.ptr, n));
        ck_assert_int_eq(queue_item_next(&part, &item), RC_MORE);
    }
    for (size_t bit = 0; bit < b.len * 8; bit++) {
        b.ptr[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        struct reader flipped = reader_of(buf_span(&b));
        while (queue_item_next(&flipped, &item) == RC_OK) {
            struct reader body = reader_of(item.body);
            while (queue_delivery_next(&body, &w, &m) == RC_OK) {
            }
        }
        b.ptr[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    buf_deinit(&b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("queue_command");
    TCase *t = tcase_create("queue_command");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, every_kind_decodes_to_what_was_written);
    tcase_add_test(t, an_enqueue_written_in_front_of_its_body_is_the_one_that_is_copied);
    tcase_add_test(t, a_message_comes_out_as_it_went_in);
    tcase_add_test(t, no_prefix_of_a_command_is_a_command);
    tcase_add_test(t, no_flipped_bit_breaks_the_state_and_two_machines_agree);
    tcase_add_test(t, what_does_not_decode_is_ignored_and_counted);
    tcase_add_test(t, items_and_deliveries_survive_every_prefix_and_flip);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
