// SPDX-License-Identifier: Apache-2.0
// links: consensus/peer consensus consensus/raft consensus/solo proto node/base gen
// Any bytes as frames between nodes, and their envelopes as greetings, beats and joins.
#include "consensus/consensus.h"
#include "consensus/peer/hello.h"
#include "consensus/peer/join.h"
#include "proto/frame.h"
#include "proto/record.h"
#include "tests/fuzz/fuzz_main.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span bytes = span_of(data, size);
    struct frame f;
    size_t used;
    if (frame_decode(bytes, &f, &used) == RC_OK) {
        assert(used <= size && f.envelope.len + f.raw.len + FRAME_HEADER_BYTES <= used);
    }
    struct record_disk r;
    uint64_t record_bytes;
    if (record_check(bytes, &r, &record_bytes) == RC_OK) {
        assert(record_bytes <= size);
    }
    struct config c;
    if (config_decode(bytes, &c) == RC_OK) {
        assert(c.count >= 1 && c.count <= LIMIT_MEMBERS);
    }
    struct peer_hello hello;
    struct peer_proof proof;
    struct peer_beat beat;
    struct join_request request;
    struct join_reply reply;
    for (int is_challenge = 0; is_challenge < 2; is_challenge++) {
        if (peer_hello_decode(bytes, is_challenge, &hello) == RC_OK) {
            assert(strlen(hello.name) <= PEER_NAME_MAX && hello.lane < LANE_COUNT);
        }
    }
    if (peer_proof_decode(bytes, &proof) == RC_OK) {
        assert(proof.refusal < REFUSED_COUNT);
    }
    if (peer_beat_decode(bytes, &beat) != RC_OK || join_request_decode(bytes, &request) != RC_OK) {
        // Malformed is an answer too.
    }
    if (join_reply_decode(bytes, &reply) == RC_OK) {
        join_reply_deinit(&reply);
    }
    return 0;
}

#ifndef FUZZ_ENGINE
static void fuzz_valid(struct buf *to, struct rng *rng)
{
    struct peer_hello h = {.protocol_min = 1,
                           .protocol_max = 1,
                           .incarnation = 3,
                           .lane = 1,
                           .name = "n1@localhost",
                           .address = "127.0.0.1:1"};
    struct peer_beat b = {.incarnation = 1, .number = rng_next(rng), .echo = 2};
    switch (rng_below(rng, 4)) {
    case 0:
        peer_hello_encode(to, &h, rng_below(rng, 2));
        break;
    case 1:
        peer_beat_encode(to, &b);
        break;
    case 2:
        frame_encode_head(to, FRAME_BEAT, 0, span_str("envelope"), 4);
        buf_u32(to, 7);
        break;
    default: {
        struct config c = {.count = 2, .members = {{1, 1, true}, {2, 2, false}}};
        config_encode(&c, to);
    }
    }
}
#endif
