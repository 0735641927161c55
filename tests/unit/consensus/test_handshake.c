// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus/peer gen
// Handshake (decision 17), hello, proof, beat and join coding.
#include "consensus/peer/handshake.h"
#include "consensus/peer/join.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

// ---- fixture -----------------------------------------------------------------------------------------------------

static struct peer_hello hello_a, hello_b;
static struct handshake a, b;  // Dialler, acceptor.
static struct buf wire;        // Last thing said.

static struct peer_hello make_hello(const char *name, uint8_t tag)
{
    struct peer_hello h = {
        .protocol_min = 1,
        .protocol_max = 1,
        .cluster_id = {7},
        .store_id = {tag},
        .node_id = tag,
        .incarnation = 10u + tag,
        .list_hash = 99,
        .feature_level = 3,
        .fsms_len = 2,
        .fsms = {{.name = "quorum_queue", .version = 4}, {.name = "metastore", .version = 2}},
        .nonce = {tag, 1, 2, 3},
    };
    snprintf(h.name, sizeof(h.name), "%s", name);
    snprintf(h.address, sizeof(h.address), "host%u:25672", tag);
    return h;
}

static void setup(void)
{
    buf_init(&wire);
    hello_a = make_hello("a@h", 1);
    hello_b = make_hello("b@h", 2);
}

static void teardown(void)
{
    buf_deinit(&wire);
}

// Begins; `wire` holds the HELLO.
static void begin(const char *secret_a, const char *secret_b)
{
    hello_a.lane = LANE_LOG;
    handshake_dial(&a, span_str(secret_a), &hello_a, "b@h", &wire);
    handshake_listen(&b, span_str(secret_b), &hello_b);
}

static void end(void)
{
    handshake_deinit(&a);
    handshake_deinit(&b);
}

// Gives what is on the wire to `h`; its answer replaces it.
static enum rc hear(struct handshake *h)
{
    struct frame f;
    size_t size;
    ck_assert_int_eq(frame_decode(buf_span(&wire), &f, &size), RC_OK);
    ck_assert_uint_eq(size, wire.len);
    ck_assert_uint_le(wire.len, PEER_GREETING_MAX);
    struct buf answer;
    buf_init(&answer);
    enum rc rc = handshake_step(h, &f, &answer);
    buf_deinit(&wire);
    wire = answer;
    return rc;
}

static void go_to_judge(void)
{
    ck_assert_int_eq(hear(&b), RC_PENDING);
    ck_assert_int_eq(hear(&a), RC_PENDING);
    ck_assert_int_eq(hear(&b), RC_OK);
    ck_assert_int_eq(b.state, HANDSHAKE_JUDGE);
}

static bool contains(const struct buf *where, const char *what)
{
    return where->len > 0 && memmem(where->ptr, where->len, what, strlen(what)) != NULL;
}

// ---- tests: good -------------------------------------------------------------------------------------------------

START_TEST(two_that_share_the_secret_believe_each_others_hello)
{
    begin("s3cret", "s3cret");
    go_to_judge();
    handshake_accept(&b, &wire);
    ck_assert_int_eq(hear(&a), RC_OK);
    ck_assert_int_eq(a.state, HANDSHAKE_DONE);
    ck_assert_int_eq(b.state, HANDSHAKE_DONE);
    ck_assert_str_eq(a.peer.name, "b@h");
    ck_assert_str_eq(b.peer.name, "a@h");
    ck_assert_uint_eq(b.peer.lane, LANE_LOG);
    ck_assert_uint_eq(b.peer.incarnation, 11);
    ck_assert_uint_eq(b.peer.fsms_len, 2);
    ck_assert_str_eq(b.peer.fsms[1].name, "metastore");
    ck_assert_uint_eq(a.protocol, 1);
    end();
}
END_TEST

START_TEST(the_secret_is_never_sent)
{
    begin("s3cret", "s3cret");
    ck_assert(!contains(&wire, "s3cret"));
    for (int i = 0; i < 3; i++) {
        ck_assert_int_ne(hear(i % 2 ? &a : &b), RC_MALFORMED);
        ck_assert(!contains(&wire, "s3cret"));
    }
    handshake_accept(&b, &wire);
    ck_assert(!contains(&wire, "s3cret"));
    end();
}
END_TEST

START_TEST(the_highest_common_version_is_taken)
{
    hello_a.protocol_max = 5;
    hello_b.protocol_max = 3;
    begin("s", "s");
    go_to_judge();
    handshake_accept(&b, &wire);
    ck_assert_int_eq(hear(&a), RC_OK);
    ck_assert_uint_eq(a.protocol, 3);
    ck_assert_uint_eq(b.protocol, 3);
    end();
}
END_TEST

START_TEST(a_blank_node_and_a_member_may_talk)
{
    memset(hello_a.cluster_id, 0, CLUSTER_ID_BYTES);
    hello_a.is_blank = true;
    hello_a.node_id = 0;
    begin("s", "s");
    go_to_judge();
    handshake_accept(&b, &wire);
    ck_assert_int_eq(hear(&a), RC_OK);
    end();
}
END_TEST

// ---- tests: refusals ---------------------------------------------------------------------------------------------

START_TEST(another_secret_is_refused_and_told)
{
    begin("s", "S");
    ck_assert_int_eq(hear(&b), RC_PENDING);
    ck_assert_int_eq(hear(&a), RC_PENDING);
    ck_assert_int_eq(hear(&b), RC_PEER_SECRET);
    ck_assert_int_eq(b.state, HANDSHAKE_FAILED);
    ck_assert(!b.is_peer_proven);
    ck_assert_int_eq(hear(&a), RC_PEER_SECRET);
    ck_assert(a.is_refused_by_peer);
    ck_assert(!a.is_peer_proven);
    ck_assert_int_eq(a.refusal, REFUSED_SECRET);
    end();
}
END_TEST

START_TEST(an_acceptor_without_the_secret_is_not_believed)
{
    begin("s", "S");
    ck_assert_int_eq(hear(&b), RC_PENDING);
    ck_assert_int_eq(hear(&a), RC_PENDING);
    wire.len = 0;
    b.state = HANDSHAKE_JUDGE;  // A cheat: takes any proof for good.
    handshake_accept(&b, &wire);
    ck_assert_int_eq(hear(&a), RC_PEER_SECRET);
    ck_assert(!a.is_refused_by_peer);
    end();
}
END_TEST

START_TEST(a_diallers_proof_sent_back_is_no_acceptors_proof)
{
    begin("s", "s");
    ck_assert_int_eq(hear(&b), RC_PENDING);
    ck_assert_int_eq(hear(&a), RC_PENDING);
    ck_assert_int_eq(hear(&a), RC_PEER_SECRET);  // `wire` is its own proof.
    end();
}
END_TEST

START_TEST(a_proof_from_another_connection_does_not_count)
{
    begin("s", "s");
    ck_assert_int_eq(hear(&b), RC_PENDING);
    ck_assert_int_eq(hear(&a), RC_PENDING);
    struct buf old = wire;  // A good proof, overheard.
    buf_init(&wire);
    end();
    hello_b.nonce[5] ^= 1;  // Every connection has a fresh nonce.
    begin("s", "s");
    ck_assert_int_eq(hear(&b), RC_PENDING);
    buf_deinit(&wire);
    wire = old;
    ck_assert_int_eq(hear(&b), RC_PEER_SECRET);
    end();
}
END_TEST

// Each field of a hello changed on the way: the proof does not hold.
START_TEST(a_hello_changed_on_the_way_breaks_the_proof)
{
    begin("s", "s");
    size_t len = wire.len;
    end();
    uint32_t refused = 0;
    for (size_t at = FRAME_HEADER_BYTES; at < len; at++) {
        wire.len = 0;
        begin("s", "s");
        struct frame f;
        size_t size;
        ck_assert_int_eq(frame_decode(buf_span(&wire), &f, &size), RC_OK);
        uint8_t changed[PEER_GREETING_MAX];
        memcpy(changed, f.envelope.ptr, f.envelope.len);
        changed[at - FRAME_HEADER_BYTES] ^= 1;
        struct buf other;
        buf_init(&other);
        frame_encode_head(&other, FRAME_HELLO, 0, span_of(changed, f.envelope.len), 0);
        buf_deinit(&wire);
        wire = other;
        enum rc rc = hear(&b);
        if (rc == RC_PENDING) {
            ck_assert_int_eq(hear(&a), RC_PENDING);
            rc = hear(&b);
            ck_assert_int_eq(rc, RC_PEER_SECRET);
            refused++;
        } else {
            ck_assert_int_eq(rc, RC_MALFORMED);
        }
        end();
    }
    ck_assert_uint_gt(refused, 50);
}
END_TEST

START_TEST(no_common_version_is_refused_with_both_ranges)
{
    hello_a.protocol_min = 2;
    hello_a.protocol_max = 4;
    begin("s", "s");
    ck_assert_int_eq(hear(&b), RC_PENDING);
    ck_assert_int_eq(hear(&a), RC_PEER_VERSION);
    ck_assert_ptr_nonnull(strstr(a.text, "1 to 1"));
    ck_assert_ptr_nonnull(strstr(a.text, "2 to 4"));
    end();
}
END_TEST

START_TEST(another_node_at_the_address_is_refused)
{
    snprintf(hello_b.name, sizeof(hello_b.name), "c@h");
    begin("s", "s");
    ck_assert_int_eq(hear(&b), RC_PENDING);
    ck_assert_int_eq(hear(&a), RC_PEER_IDENTITY);
    ck_assert_int_eq(a.refusal, REFUSED_NAME);
    end();
}
END_TEST

START_TEST(a_connection_to_oneself_is_refused)
{
    hello_b = hello_a;
    begin("s", "s");
    ck_assert_int_eq(hear(&b), RC_PENDING);
    ck_assert_int_eq(hear(&a), RC_PEER_IDENTITY);
    ck_assert_int_eq(a.refusal, REFUSED_SELF);
    end();
}
END_TEST

START_TEST(another_cluster_is_refused_with_a_proof)
{
    hello_b.cluster_id[0] = 8;
    begin("s", "s");
    ck_assert_int_eq(hear(&b), RC_PENDING);
    ck_assert_int_eq(hear(&a), RC_PENDING);
    ck_assert_int_eq(hear(&b), RC_PEER_IDENTITY);
    ck_assert_int_eq(b.refusal, REFUSED_CLUSTER);
    ck_assert_int_eq(hear(&a), RC_PEER_IDENTITY);
    ck_assert(a.is_peer_proven);  // So its hello may be believed: it is a member of something.
    end();
}
END_TEST

START_TEST(the_acceptors_own_reason_reaches_the_dialler_with_a_proof)
{
    begin("s", "s");
    go_to_judge();
    handshake_refuse(&b, REFUSED_IDENTITY, "known under\nanother store id", &wire);
    ck_assert_int_eq(hear(&a), RC_PEER_IDENTITY);
    ck_assert_str_eq(a.text, "known under?another store id");  // It goes to a log.
    ck_assert(a.is_peer_proven);
    end();
}
END_TEST

START_TEST(frames_out_of_order_fail_for_good)
{
    begin("s", "s");
    ck_assert_int_eq(hear(&b), RC_PENDING);
    struct buf challenge = wire;
    buf_init(&wire);
    buf_span_bytes(&wire, buf_span(&challenge));
    ck_assert_int_eq(hear(&b), RC_MALFORMED);  // A challenge is no proof.
    buf_deinit(&wire);
    wire = challenge;
    ck_assert_int_eq(hear(&b), RC_MALFORMED);
    end();
}
END_TEST

// ---- tests: coding -----------------------------------------------------------------------------------------------

// Every prefix and every flipped bit of `good` through `decode`: an answer, never a crash (run with the sanitizers).
static void torture(const struct buf *good, void (*decode)(struct span s))
{
    for (size_t n = 0; n <= good->len; n++) {
        uint8_t *copy = malloc(n ? n : 1);  // Its own size, so that an overrun is seen.
        memcpy(copy, good->ptr, n);
        decode(span_of(copy, n));
        free(copy);
    }
    for (size_t bit = 0; bit < good->len * 8; bit++) {
        good->ptr[bit / 8] ^= (uint8_t)(1 << bit % 8);
        decode(buf_span(good));
        good->ptr[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void decode_hello(struct span s)
{
    struct peer_hello h;
    if (peer_hello_decode(s, false, &h) == RC_OK) {
        ck_assert(h.name[0] != 0 && h.incarnation > 0 && h.lane < LANE_COUNT && h.is_blank == (h.node_id == 0));
    }
}
static void decode_challenge(struct span s)
{
    struct peer_hello h;
    enum rc rc = peer_hello_decode(s, true, &h);
    ck_assert(rc == RC_OK || rc == RC_MALFORMED);
}
static void decode_proof(struct span s)
{
    struct peer_proof p;
    enum rc rc = peer_proof_decode(s, &p);
    ck_assert(rc == RC_MALFORMED || p.refusal < REFUSED_COUNT);
}
static void decode_beat(struct span s)
{
    struct peer_beat beat;
    enum rc rc = peer_beat_decode(s, &beat);
    ck_assert(rc == RC_OK || rc == RC_MALFORMED);
}
static void decode_join(struct span s)
{
    struct join_request r;
    ck_assert(join_request_decode(s, &r) == RC_MALFORMED || r.name[0] != 0);
}
static void decode_join_reply(struct span s)
{
    struct join_reply r;
    if (join_reply_decode(s, &r) == RC_OK) {
        ck_assert(r.result != JOIN_OK || (r.node_id > 0 && r.replica_id > 0 && r.members_len > 0));
        join_reply_deinit(&r);
    }
}

START_TEST(hellos_proofs_and_beats_survive_every_prefix_and_bit_flip)
{
    peer_hello_encode(&wire, &hello_a, false);
    torture(&wire, decode_hello);
    wire.len = 0;
    peer_hello_encode(&wire, &hello_a, true);
    torture(&wire, decode_challenge);
    wire.len = 0;
    struct peer_proof p = {.has_mac = true, .refusal = REFUSED_STALE, .text = "why"};
    peer_proof_encode(&wire, &p);
    torture(&wire, decode_proof);
    wire.len = 0;
    struct peer_beat beat = {.incarnation = 1,
                             .number = 2,
                             .echo = 3,
                             .worker_progress = 4,
                             .wal_age_ms = 5,
                             .meta_commit = 1ull << 60,
                             .alarms = 3};
    peer_beat_encode(&wire, &beat);
    torture(&wire, decode_beat);
    struct peer_beat out;
    ck_assert_int_eq(peer_beat_decode(buf_span(&wire), &out), RC_OK);
    ck_assert_mem_eq(&beat, &out, sizeof(beat));
}
END_TEST

START_TEST(names_with_control_characters_or_beyond_255_bytes_are_malformed)
{
    struct peer_hello out;
    memset(hello_a.name, 'x', PEER_NAME_MAX);
    peer_hello_encode(&wire, &hello_a, false);
    ck_assert_int_eq(peer_hello_decode(buf_span(&wire), false, &out), RC_OK);
    wire.len = 0;
    hello_a.name[3] = '\n';
    peer_hello_encode(&wire, &hello_a, false);
    ck_assert_int_eq(peer_hello_decode(buf_span(&wire), false, &out), RC_MALFORMED);
    // A name of 256 bytes, by hand: field 5, length 256.
    struct buf b256;
    buf_init(&b256);
    buf_u8(&b256, 0x2a);
    buf_u8(&b256, 0x80);
    buf_u8(&b256, 0x02);
    memset(buf_extend(&b256, 256), 'x', 256);
    wire.len = 0;
    hello_a = make_hello("a@h", 1);
    peer_hello_encode(&wire, &hello_a, false);
    buf_span_bytes(&wire, buf_span(&b256));  // A repeated field: the last one counts.
    ck_assert_int_eq(peer_hello_decode(buf_span(&wire), false, &out), RC_MALFORMED);
    buf_deinit(&b256);
}
END_TEST

START_TEST(a_node_id_without_membership_or_the_reverse_is_malformed)
{
    struct peer_hello out;
    hello_a.is_blank = true;
    peer_hello_encode(&wire, &hello_a, false);
    ck_assert_int_eq(peer_hello_decode(buf_span(&wire), false, &out), RC_MALFORMED);
}
END_TEST

START_TEST(join_request_and_reply_come_back_as_sent)
{
    struct join_request q = {.token = 77, .store_id = {1, 2, 3}, .name = "n4@h", .address = "h:25672"};
    join_request_encode(&wire, &q);
    struct join_request q_out;
    ck_assert_int_eq(join_request_decode(buf_span(&wire), &q_out), RC_OK);
    ck_assert_mem_eq(&q, &q_out, sizeof(q));
    torture(&wire, decode_join);

    struct join_node nodes[2] = {
        {.node_id = 1, .store_id = {1}, .name = "n1@h", .address = "h:1"},
        {.node_id = 2, .store_id = {2}, .name = "n2@h", .address = "h:2"},
    };
    struct join_reply r = {
        .token = 77,
        .result = JOIN_OK,
        .cluster_id = {9},
        .node_id = 4,
        .replica_id = 12,
        .members_len = 2,
        .members = {{.replica_id = 10, .node_id = 1, .is_voter = true}, {.replica_id = 11, .node_id = 2}},
        .nodes_len = 2,
        .nodes = nodes,
        .ask = "a@x",
        .ask_address = "x:25672",
    };
    wire.len = 0;
    join_reply_encode(&wire, &r);
    struct join_reply out;
    ck_assert_int_eq(join_reply_decode(buf_span(&wire), &out), RC_OK);
    ck_assert_uint_eq(out.token, 77);
    ck_assert_int_eq(out.result, JOIN_OK);
    ck_assert_uint_eq(out.node_id, 4);
    ck_assert_uint_eq(out.replica_id, 12);
    ck_assert_uint_eq(out.cluster_id[0], 9);
    ck_assert_uint_eq(out.members_len, 2);
    ck_assert_uint_eq(out.members[1].replica_id, 11);
    ck_assert(out.members[0].is_voter && !out.members[1].is_voter);
    ck_assert_str_eq(out.ask, "a@x");
    ck_assert_str_eq(out.ask_address, "x:25672");
    ck_assert_uint_eq(out.nodes_len, 2);
    ck_assert_mem_eq(out.nodes, nodes, sizeof(nodes));
    join_reply_deinit(&out);
    torture(&wire, decode_join_reply);
}
END_TEST

START_TEST(a_refused_join_needs_no_ids)
{
    struct join_reply r = {.token = 1, .result = JOIN_NAME_TAKEN, .text = "taken"};
    join_reply_encode(&wire, &r);
    struct join_reply out;
    ck_assert_int_eq(join_reply_decode(buf_span(&wire), &out), RC_OK);
    ck_assert_int_eq(out.result, JOIN_NAME_TAKEN);
    ck_assert_str_eq(out.text, "taken");
    join_reply_deinit(&out);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("handshake");
    TCase *c = tcase_create("handshake");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, two_that_share_the_secret_believe_each_others_hello);
    tcase_add_test(c, the_secret_is_never_sent);
    tcase_add_test(c, the_highest_common_version_is_taken);
    tcase_add_test(c, a_blank_node_and_a_member_may_talk);
    tcase_add_test(c, another_secret_is_refused_and_told);
    tcase_add_test(c, an_acceptor_without_the_secret_is_not_believed);
    tcase_add_test(c, a_diallers_proof_sent_back_is_no_acceptors_proof);
    tcase_add_test(c, a_proof_from_another_connection_does_not_count);
    tcase_add_test(c, a_hello_changed_on_the_way_breaks_the_proof);
    tcase_add_test(c, no_common_version_is_refused_with_both_ranges);
    tcase_add_test(c, another_node_at_the_address_is_refused);
    tcase_add_test(c, a_connection_to_oneself_is_refused);
    tcase_add_test(c, another_cluster_is_refused_with_a_proof);
    tcase_add_test(c, the_acceptors_own_reason_reaches_the_dialler_with_a_proof);
    tcase_add_test(c, frames_out_of_order_fail_for_good);
    tcase_add_test(c, hellos_proofs_and_beats_survive_every_prefix_and_bit_flip);
    tcase_add_test(c, names_with_control_characters_or_beyond_255_bytes_are_malformed);
    tcase_add_test(c, a_node_id_without_membership_or_the_reverse_is_malformed);
    tcase_add_test(c, join_request_and_reply_come_back_as_sent);
    tcase_add_test(c, a_refused_join_needs_no_ids);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
