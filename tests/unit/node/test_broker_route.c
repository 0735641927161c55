// SPDX-License-Identifier: Apache-2.0
// Routing over the projection (data-plane §1.10, §2), fed by changes as the metadata store tells them.
// links: node/broker proto/amqp09 gen node/base
#include "tests/unit/node/broker_world.h"
#include <stdio.h>

// ---- fixture -----------------------------------------------------------------------------------------------------

static struct broker *b;
static const struct meta_subscriber *sub;
static uint64_t index_now, group_now;

static void tell(struct meta_path p, struct span payload, bool is_deleted)
{
    struct meta_change c = {.index = ++index_now,
                            .path = &p,
                            .is_deleted = is_deleted,
                            .payload = payload,
                            .version = 1};
    sub->change(sub->ctx, &c);
}

static void setup(void)
{
    struct broker_config c = {.node_id = 1,
                              .worker_of = world_worker_of,
                              .post = world_post,
                              .default_queue_type = "quorum"};
    world = (struct world){0};
    group_now = 100;
    b = broker_create(&c);
    sub = broker_subscriber(b);
    tell(path_vhost(span_str("/")), span_str(""), false);
    sub->loaded(sub->ctx, index_now);
}

static void teardown(void)
{
    broker_destroy(b);
}

static struct broker_vhost *vhost(void)
{
    return broker_vhost_find(b, span_str("/"));
}

static void exchange(const char *name, const char *type, const char *alternate)
{
    struct buf args = {0}, payload = {0};
    if (alternate) {
        table_put_text(&args, "alternate-exchange", alternate);
    }
    Warren__ExchangeRecord r = WARREN__EXCHANGE_RECORD__INIT;
    r.type = (char *)(uintptr_t)type;
    r.arguments.data = args.ptr;
    r.arguments.len = args.len;
    warren__exchange_record__pack(&r, buf_extend(&payload, warren__exchange_record__get_packed_size(&r)));
    tell(path_exchange(span_str("/"), span_str(name)), buf_span(&payload), false);
    buf_deinit(&args);
    buf_deinit(&payload);
}

static void queue_of_type(const char *name, const char *type)
{
    uint32_t nodes[] = {1, 2, 3};
    Warren__QueueRecord r = WARREN__QUEUE_RECORD__INIT;
    r.type = (char *)(uintptr_t)type;
    r.durable = true;
    r.member_nodes = nodes;
    r.n_member_nodes = 3;
    struct buf payload = {0};
    buf_u64(&payload, group_now += 10);
    warren__queue_record__pack(&r, buf_extend(&payload, warren__queue_record__get_packed_size(&r)));
    tell(path_queue(span_str("/"), span_str(name)), buf_span(&payload), false);
    buf_deinit(&payload);
}

static void queue(const char *name)
{
    queue_of_type(name, "quorum");
}

static void bind_args(const char *source, const char *kind, const char *destination, const char *key,
                      struct span args, bool is_deleted)
{
    char leaf[LEAF_BYTES + 1];
    binding_leaf(span_str(key), args, leaf);
    Warren__BindingRecord r = WARREN__BINDING_RECORD__INIT;
    r.key.data = (uint8_t *)(uintptr_t)key;
    r.key.len = strlen(key);
    r.arguments.data = (uint8_t *)(uintptr_t)args.ptr;
    r.arguments.len = args.len;
    struct buf payload = {0};
    warren__binding_record__pack(&r, buf_extend(&payload, warren__binding_record__get_packed_size(&r)));
    tell(path_binding(span_str("/"), span_str(source), strcmp(kind, "queue") == 0, span_str(destination),
                      span_str(leaf)),
         buf_span(&payload), is_deleted);
    buf_deinit(&payload);
}

static void bind_key(const char *source, const char *destination, const char *key)
{
    bind_args(source, "queue", destination, key, span_str(""), false);
}

// Names of the queues reached, sorted, separated by spaces.
static const char *routed(const char *source, const char *key, struct span headers)
{
    static char text[1000];
    const struct broker_exchange *x = broker_exchange_find(vhost(), span_str(source));
    ck_assert_ptr_nonnull(x);
    struct span keys[] = {span_str(key)};
    struct broker_route out;
    broker_route(b, vhost(), x, keys, 1, headers, &out);
    text[0] = '\0';
    for (char c = 'a'; c <= 'z'; c++) {
        for (uint32_t i = 0; i < out.count; i++) {
            if (out.queues[i]->name.ptr[0] == c) {
                snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%c", text[0] ? " " : "", c);
            }
        }
    }
    return text;
}
#define ROUTED(source, key) routed(source, key, span_str(""))

// ---- tests -------------------------------------------------------------------------------------------------------

START_TEST(the_default_exchange_reaches_the_queue_of_that_name)
{
    queue("a");
    ck_assert_str_eq(ROUTED("", "a"), "a");
    ck_assert_str_eq(ROUTED("", "b"), "");
}
END_TEST

START_TEST(direct_compares_keys_byte_for_byte_and_reaches_a_queue_once)
{
    queue("a");
    queue("b");
    exchange("x", "direct", NULL);
    bind_key("x", "a", "k");
    bind_key("x", "b", "k");
    bind_key("x", "b", "other");
    ck_assert_str_eq(ROUTED("x", "k"), "a b");
    ck_assert_str_eq(ROUTED("x", "other"), "b");
    ck_assert_str_eq(ROUTED("x", "K"), "");
    struct span keys[] = {span_str("k"), span_str("other")};
    struct broker_route out;
    broker_route(b, vhost(), broker_exchange_find(vhost(), span_str("x")), keys, 2, span_str(""), &out);
    ck_assert_uint_eq(out.count, 2);
}
END_TEST

// data-plane §2.1, its examples and words.
START_TEST(topic_words_match_as_the_specification_says)
{
    static const struct {
        const char *pattern, *key;
        bool matches;
    } cases[] = {
        {"#", "", true},          {"#", "a", true},
        {"#", "a.b.c", true},     {"*", "", false},
        {"*", "a", true},         {"*", "a.b", false},
        {"a.#", "a", true},       {"a.#", "a.b.c", true},
        {"a.#", "ab", false},     {"#.b", "b", true},
        {"#.b", "a.b", true},     {"#.b", "a.b.c", false},
        {"*.#", "", false},       {"*.#", "a", true},
        {"", "", true},           {"", "a", false},
        {"a*", "ab", false},      {"a*", "a*", true},
        {"a..b", "a..b", true},   {"a.*.b", "a..b", true},
        {"a.*", "a.", true},      {"*.a", ".a", true},
        {"#.a.#", "x.a.y", true}, {"#.a.#", "a", true},
        {"#.a.#", "x.y", false},  {"a.*.#", "a.b", true},
        {"a.*.#", "a", false},    {"stock.*.nyse", "stock.ibm.nyse", true},
        {"a.b", "a.B", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct topic_node *t = topic_create();
        struct binding one = {.key = span_str(cases[i].pattern)};
        topic_add(t, &one);
        queue("a");
        exchange("t", "topic", NULL);
        bind_key("t", "a", cases[i].pattern);
        ck_assert_msg((strcmp(ROUTED("t", cases[i].key), "a") == 0) == cases[i].matches, "'%s' against '%s'",
                      cases[i].pattern, cases[i].key);
        bind_args("t", "queue", "a", cases[i].pattern, span_str(""), true);
        ck_assert_str_eq(ROUTED("t", cases[i].key), "");
        topic_remove(t, &one);
        topic_destroy(t);
    }
}
END_TEST

// data-plane §2.2.
START_TEST(headers_match_all_any_and_presence)
{
    struct buf args = {0}, headers = {0};
    struct table_value nothing = {.type = TABLE_VOID};
    table_put_text(&args, "x-match", "all");
    table_put_i32(&args, "n", 1);
    table_put(&args, span_str("there"), &nothing);
    table_put_text(&args, "x-ignored", "yes");
    table_put_i64(&headers, "n", 1);
    ck_assert(!headers_match(buf_span(&args), buf_span(&headers)));
    table_put_text(&headers, "there", "whatever");
    ck_assert(headers_match(buf_span(&args), buf_span(&headers)));
    args.len = 0;
    table_put_text(&args, "x-match", "any");
    ck_assert(!headers_match(buf_span(&args), buf_span(&headers)));
    table_put_text(&args, "n", "1");
    ck_assert(!headers_match(buf_span(&args), buf_span(&headers)));
    table_put_i32(&args, "there", 4);
    table_put_text(&args, "there", "whatever");
    ck_assert(headers_match(buf_span(&args), buf_span(&headers)));
    args.len = 0;
    ck_assert(headers_match(buf_span(&args), buf_span(&headers)));
    table_put_text(&args, "x-match", "all-with-x");
    table_put_text(&args, "x-seen", "1");
    ck_assert(!headers_match(buf_span(&args), buf_span(&headers)));
    table_put_text(&headers, "x-seen", "1");
    ck_assert(headers_match(buf_span(&args), buf_span(&headers)));
    char why[200];
    args.len = 0;
    table_put_text(&args, "x-match", "some");
    ck_assert_str_eq(headers_check(buf_span(&args), why, sizeof(why)),
                     "Invalid x-match field value <<\"some\">>; expected all, any, all-with-x, or any-with-x");
    buf_deinit(&args);
    buf_deinit(&headers);
}
END_TEST

START_TEST(exchange_graphs_are_cycle_safe_and_a_queue_is_reached_once)
{
    queue("a");
    exchange("x", "fanout", NULL);
    exchange("y", "fanout", NULL);
    bind_args("x", "exchange", "y", "", span_str(""), false);
    bind_args("y", "exchange", "x", "", span_str(""), false);
    bind_key("x", "a", "");
    bind_key("y", "a", "");
    ck_assert_str_eq(ROUTED("x", ""), "a");
}
END_TEST

START_TEST(the_alternate_exchange_takes_what_no_binding_matched)
{
    queue("a");
    queue("b");
    exchange("alt", "fanout", NULL);
    exchange("x", "direct", "alt");
    exchange("lost", "direct", "no-such-exchange");
    bind_key("alt", "b", "");
    bind_key("x", "a", "k");
    ck_assert_str_eq(ROUTED("x", "k"), "a");
    ck_assert_str_eq(ROUTED("x", "other"), "b");
    ck_assert_str_eq(ROUTED("lost", "k"), "");
}
END_TEST

START_TEST(a_match_on_an_exchange_that_drops_the_message_does_not_call_the_alternate)
{
    queue("b");
    exchange("alt", "fanout", NULL);
    exchange("x", "direct", "alt");
    exchange("hole", "fanout", NULL);
    bind_key("alt", "b", "");
    bind_args("x", "exchange", "hole", "k", span_str(""), false);
    ck_assert_str_eq(ROUTED("x", "k"), "");
}
END_TEST

START_TEST(bindings_and_destinations_may_come_and_go_in_either_order)
{
    exchange("x", "fanout", NULL);
    bind_key("x", "a", "");
    ck_assert_str_eq(ROUTED("x", ""), "");
    queue("a");
    ck_assert_str_eq(ROUTED("x", ""), "a");
    tell(path_queue(span_str("/"), span_str("a")), span_str(""), true);
    ck_assert_str_eq(ROUTED("x", ""), "");
    bind_args("x", "queue", "a", "", span_str(""), true);
    queue("a");
    ck_assert_str_eq(ROUTED("x", ""), "");
    ck_assert_uint_eq(world.started, 2);
    ck_assert_uint_eq(world.deleted, 1);
}
END_TEST

START_TEST(after_a_reset_what_is_not_told_again_goes_and_the_rest_stays_undisturbed)
{
    queue("a");
    uint64_t kept_group = group_now;
    queue("b");
    exchange("x", "fanout", NULL);
    bind_key("x", "a", "");
    bind_key("x", "b", "");
    sub->reset(sub->ctx);
    ck_assert_str_eq(ROUTED("x", ""), "a b");
    tell(path_vhost(span_str("/")), span_str(""), false);
    exchange("x", "fanout", NULL);
    group_now = kept_group - 10;
    queue("a");
    bind_key("x", "a", "");
    sub->loaded(sub->ctx, index_now);
    ck_assert_str_eq(ROUTED("x", ""), "a");
    ck_assert_ptr_null(broker_queue_find(vhost(), span_str("b")));
    ck_assert_uint_eq(world.started, 2);
    ck_assert_uint_eq(world.deleted, 1);
}
END_TEST

START_TEST(a_queue_made_anew_under_its_name_is_another_queue)
{
    queue("a");
    sub->reset(sub->ctx);
    tell(path_vhost(span_str("/")), span_str(""), false);
    queue("a");
    sub->loaded(sub->ctx, index_now);
    ck_assert_uint_eq(broker_queue_find(vhost(), span_str("a"))->target->group, group_now);
    ck_assert_uint_eq(world.started, 2);
    ck_assert_uint_eq(world.deleted, 1);
}
END_TEST

// Whoever finds data of a group without a queue must not take the queue for deleted then (law 3).
static void node(const char *name, uint64_t first_id, uint32_t *former, size_t former_count)
{
    Warren__NodeRecord r = WARREN__NODE_RECORD__INIT;
    r.address = "127.0.0.1:25672";
    r.former_ids = former;
    r.n_former_ids = former_count;
    struct buf payload = {0};
    buf_u64(&payload, first_id);
    warren__node_record__pack(&r, buf_extend(&payload, warren__node_record__get_packed_size(&r)));
    tell(path_node(span_str(name)), buf_span(&payload), false);
    buf_deinit(&payload);
}

START_TEST(an_exchange_made_anew_with_other_flags_has_those)
{
    exchange("x", "fanout", NULL);
    queue("a");
    bind_key("x", "a", "");
    sub->reset(sub->ctx);
    tell(path_vhost(span_str("/")), span_str(""), false);
    queue("a");
    Warren__ExchangeRecord r = WARREN__EXCHANGE_RECORD__INIT;
    r.type = "fanout";
    r.durable = _i == 0;
    r.auto_delete = _i == 1;
    r.internal = _i == 2;
    struct buf payload = {0};
    warren__exchange_record__pack(&r, buf_extend(&payload, warren__exchange_record__get_packed_size(&r)));
    tell(path_exchange(span_str("/"), span_str("x")), buf_span(&payload), false);
    buf_deinit(&payload);
    bind_key("x", "a", "");
    sub->loaded(sub->ctx, index_now);
    const struct broker_exchange *x = broker_exchange_find(vhost(), span_str("x"));
    ck_assert_ptr_nonnull(x);
    ck_assert_int_eq(x->is_durable, _i == 0);
    ck_assert_int_eq(x->is_auto_delete, _i == 1);
    ck_assert_int_eq(x->is_internal, _i == 2);
    ck_assert_str_eq(ROUTED("x", ""), "a");
}
END_TEST

START_TEST(a_retired_node_id_leads_to_the_node_that_took_its_place)
{
    node("a@x", 1030, NULL, 0);
    node("c@x", 1040, NULL, 0);
    ck_assert_ptr_null(broker_node_successor(b, 1040));  // In use.
    uint32_t former[] = {1040, 1050};
    node("c@x", 1060, former, 2);
    ck_assert_ptr_null(broker_node_by_id(b, 1040));
    ck_assert_uint_eq(broker_node_successor(b, 1040)->node_id, 1060);
    ck_assert_uint_eq(broker_node_successor(b, 1050)->node_id, 1060);
    ck_assert_ptr_null(broker_node_successor(b, 1060));
    ck_assert_ptr_null(broker_node_successor(b, 1030));
    tell(path_node(span_str("c@x")), span_str(""), true);
    ck_assert_ptr_null(broker_node_successor(b, 1040));  // Forgotten.
}
END_TEST

START_TEST(maintenance_mode_is_known_whichever_record_is_told_first)
{
    tell(path_maintenance(span_str("a@x")), span_str(""), false);
    node("a@x", 1030, NULL, 0);
    node("c@x", 1040, NULL, 0);
    tell(path_maintenance(span_str("c@x")), span_str(""), false);
    ck_assert(broker_node_by_id(b, 1030)->is_draining && broker_node_by_id(b, 1040)->is_draining);
    tell(path_maintenance(span_str("c@x")), span_str(""), true);
    ck_assert(broker_node_by_id(b, 1030)->is_draining && !broker_node_by_id(b, 1040)->is_draining);
    sub->reset(sub->ctx);
    node("a@x", 1030, NULL, 0);
    node("c@x", 1040, NULL, 0);
    sub->loaded(sub->ctx, index_now);
    ck_assert(!broker_node_by_id(b, 1030)->is_draining);  // It was revived while this node was behind.
}
END_TEST

START_TEST(a_queue_record_of_a_later_version_is_remembered_as_unread)
{
    queue("known");
    ck_assert(!broker_has_unread(b));
    queue_of_type("later", "a-type-to-come");
    ck_assert(broker_has_unread(b));
    ck_assert_uint_eq(world.started, 1);
    ck_assert_uint_eq(world.deleted, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("broker_route");
    TCase *t = tcase_create("route");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, the_default_exchange_reaches_the_queue_of_that_name);
    tcase_add_test(t, direct_compares_keys_byte_for_byte_and_reaches_a_queue_once);
    tcase_add_test(t, topic_words_match_as_the_specification_says);
    tcase_add_test(t, headers_match_all_any_and_presence);
    tcase_add_test(t, exchange_graphs_are_cycle_safe_and_a_queue_is_reached_once);
    tcase_add_test(t, the_alternate_exchange_takes_what_no_binding_matched);
    tcase_add_test(t, a_match_on_an_exchange_that_drops_the_message_does_not_call_the_alternate);
    tcase_add_test(t, bindings_and_destinations_may_come_and_go_in_either_order);
    tcase_add_test(t, after_a_reset_what_is_not_told_again_goes_and_the_rest_stays_undisturbed);
    tcase_add_loop_test(t, an_exchange_made_anew_with_other_flags_has_those, 0, 3);
    tcase_add_test(t, a_queue_made_anew_under_its_name_is_another_queue);
    tcase_add_test(t, a_retired_node_id_leads_to_the_node_that_took_its_place);
    tcase_add_test(t, maintenance_mode_is_known_whichever_record_is_told_first);
    tcase_add_test(t, a_queue_record_of_a_later_version_is_remembered_as_unread);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
