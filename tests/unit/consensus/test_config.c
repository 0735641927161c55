// SPDX-License-Identifier: Apache-2.0
// links: consensus consensus/raft consensus/solo node/base
// The encoding of configurations (the bytes are the contract in consensus.h), hostile bytes, look-ups, the registry.
#include "consensus/consensus.h"
#include <check.h>
#include <stdlib.h>

// ---- fixture -----------------------------------------------------------------------------------------------------

static struct config three(void)
{
    return (struct config){.index = 9,
                           .count = 3,
                           .members = {{.replica_id = 0x1122334455667788, .node_id = 7, .is_voter = true},
                                       {.replica_id = 2, .node_id = 0xA1B2C3D4, .is_voter = true},
                                       {.replica_id = 3, .node_id = 9, .is_voter = false}}};
}

static const uint8_t three_bytes[] = {
    1, 3,
    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 7, 0, 0, 0, 1,
    2, 0, 0, 0, 0, 0, 0, 0, 0xD4, 0xC3, 0xB2, 0xA1, 1,
    3, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0,
};

// ---- tests -------------------------------------------------------------------------------------------------------

START_TEST(encoding_is_the_one_of_version_1)
{
    struct config c = three();
    struct buf b;
    buf_init(&b);
    config_encode(&c, &b);
    ck_assert_uint_eq(b.len, sizeof(three_bytes));
    ck_assert_mem_eq(b.ptr, three_bytes, b.len);
    buf_deinit(&b);
}
END_TEST

START_TEST(decoding_gives_the_members_and_no_index)
{
    struct config c;
    ck_assert_int_eq(config_decode(span_of(three_bytes, sizeof(three_bytes)), &c), RC_OK);
    ck_assert_uint_eq(c.index, 0);
    ck_assert_uint_eq(c.count, 3);
    ck_assert_uint_eq(c.members[0].replica_id, 0x1122334455667788);
    ck_assert_uint_eq(c.members[1].node_id, 0xA1B2C3D4);
    ck_assert(c.members[1].is_voter);
    ck_assert(!c.members[2].is_voter);
    ck_assert_uint_eq(config_voters(&c), 2);
    ck_assert_ptr_eq(config_find(&c, 3), &c.members[2]);
    ck_assert_ptr_eq(config_find_node(&c, 7), &c.members[0]);
    ck_assert_ptr_null(config_find(&c, 4));
    ck_assert_ptr_null(config_find_node(&c, 3));
}
END_TEST

START_TEST(every_prefix_and_every_longer_text_is_refused)
{
    struct config c;
    uint8_t longer[sizeof(three_bytes) + 1] = {0};
    memcpy(longer, three_bytes, sizeof(three_bytes));
    for (size_t n = 0; n < sizeof(three_bytes); n++) {
        ck_assert_int_eq(config_decode(span_of(three_bytes, n), &c), RC_MALFORMED);
    }
    ck_assert_int_eq(config_decode(span_of(longer, sizeof(longer)), &c), RC_MALFORMED);
}
END_TEST

START_TEST(bit_flips_never_give_what_engines_could_not_take)
{
    for (size_t bit = 0; bit < sizeof(three_bytes) * 8; bit++) {
        uint8_t bytes[sizeof(three_bytes)];
        memcpy(bytes, three_bytes, sizeof(bytes));
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct config c;
        if (config_decode(span_of(bytes, sizeof(bytes)), &c) != RC_OK) {
            continue;
        }
        ck_assert_uint_eq(c.count, 3);
        ck_assert_uint_ge(config_voters(&c), 1);
        for (uint32_t i = 0; i < c.count; i++) {
            ck_assert_uint_ne(c.members[i].replica_id, 0);
            ck_assert_ptr_eq(config_find(&c, c.members[i].replica_id), &c.members[i]);
        }
    }
}
END_TEST

static enum rc recode(const struct config *c)
{
    struct buf b;
    buf_init(&b);
    config_encode(c, &b);
    struct config out;
    enum rc rc = config_decode(buf_span(&b), &out);
    buf_deinit(&b);
    return rc;
}

START_TEST(limits_of_members_and_voters_hold)
{
    struct config c = {.count = LIMIT_MEMBERS};
    for (uint32_t i = 0; i < LIMIT_MEMBERS; i++) {
        c.members[i] = (struct member){.replica_id = i + 1, .node_id = i + 1, .is_voter = i < LIMIT_VOTERS};
    }
    ck_assert_int_eq(recode(&c), RC_OK);
    c.members[LIMIT_VOTERS].is_voter = true;
    ck_assert_int_eq(recode(&c), RC_MALFORMED);
    for (uint32_t i = 0; i < LIMIT_MEMBERS; i++) {
        c.members[i].is_voter = false;
    }
    ck_assert_int_eq(recode(&c), RC_MALFORMED);  // Nobody votes.
    c.members[0].is_voter = true;
    c.members[1].replica_id = 1;
    ck_assert_int_eq(recode(&c), RC_MALFORMED);  // An id twice.
    c.members[1].replica_id = 0;
    ck_assert_int_eq(recode(&c), RC_MALFORMED);
    const uint8_t too_many[] = {1, LIMIT_MEMBERS + 1};
    ck_assert_int_eq(config_decode(span_of(too_many, sizeof(too_many)), &c), RC_MALFORMED);
    const uint8_t other_version[] = {2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1};
    ck_assert_int_eq(config_decode(span_of(other_version, sizeof(other_version)), &c), RC_UNSUPPORTED);
}
END_TEST

START_TEST(a_copy_reads_no_further_than_the_members)
{
    struct config c = three();
    struct config *cut = malloc(offsetof(struct config, members) + 3 * sizeof(struct member));
    memcpy(cut, &c, offsetof(struct config, members) + 3 * sizeof(struct member));
    struct config copy;
    config_copy(&copy, cut);
    ck_assert_uint_eq(copy.index, 9);
    ck_assert_uint_eq(copy.members[2].node_id, 9);
    free(cut);
}
END_TEST

START_TEST(the_registry_knows_its_engines_by_name)
{
    ck_assert_str_eq(consensus_engine("raft")->name, "raft");
    ck_assert_str_eq(consensus_engine("solo")->name, "solo");
    ck_assert_ptr_null(consensus_engine("paxos"));
    ck_assert_ptr_null(consensus_engine(""));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config");
    TCase *tc = tcase_create("config");
    tcase_add_test(tc, encoding_is_the_one_of_version_1);
    tcase_add_test(tc, decoding_gives_the_members_and_no_index);
    tcase_add_test(tc, every_prefix_and_every_longer_text_is_refused);
    tcase_add_test(tc, bit_flips_never_give_what_engines_could_not_take);
    tcase_add_test(tc, limits_of_members_and_voters_hold);
    tcase_add_test(tc, a_copy_reads_no_further_than_the_members);
    tcase_add_test(tc, the_registry_knows_its_engines_by_name);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
