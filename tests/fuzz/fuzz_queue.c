// SPDX-License-Identifier: Apache-2.0
// links: node/queue consensus consensus/raft consensus/solo proto node/base gen
// Any bytes as queue commands in a log, as session items and deliveries between nodes.
#include "node/queue/queue_command.h"
#include "node/queue/queue_wire.h"
#include "tests/fuzz/fuzz_main.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct queue_command command;
    struct queue_message message;
    // Malformed is an answer; what decodes borrows from the input and is checked by the sanitizers when touched.
    if (queue_command_decode(span_of(data, size), &command) == RC_OK) {
        assert(size > 0);
    }
    if (queue_message_decode(span_of(data, size), &message) == RC_OK) {
        assert(message.body.len <= size && message.header.len <= size);
    }
    struct reader r = reader_of(span_of(data, size));
    struct queue_item item;
    while (reader_left(&r) > 0 && queue_item_next(&r, &item) == RC_OK) {
    }
    r = reader_of(span_of(data, size));
    struct queue_delivery_wire delivery;
    while (reader_left(&r) > 0 && queue_delivery_next(&r, &delivery, &message) == RC_OK) {
    }
    return 0;
}

#ifndef FUZZ_ENGINE
static void fuzz_valid(struct buf *to, struct rng *rng)
{
    // The version and a kind, then noise: deeper than noise alone gets.
    buf_u8(to, 1);
    buf_u8(to, (uint8_t)rng_below(rng, 16));
    for (uint64_t k = rng_below(rng, 300); k > 0; k--) {
        buf_u8(to, rng_below(rng, 3) ? 0 : (uint8_t)rng_next(rng));
    }
}
#endif
