// SPDX-License-Identifier: Apache-2.0
// links: metastore consensus consensus/raft consensus/solo proto node/base gen
// Any bytes as metadata commands: what validates must decode and walk to its end.
#include "metastore/command.h"
#include "tests/fuzz/fuzz_main.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct command command;
    if (command_validate(span_of(data, size)) == RC_OK) {
        enum rc rc = command_decode_request(span_of(data, size), &command);
        assert(rc == RC_OK);
    }
    if (command_decode(span_of(data, size), &command) != RC_OK) {
        // Malformed is an answer too.
    }
    struct reader r = reader_of(span_of(data, size));
    struct meta_path path;
    if (path_decode(&r, &path) == RC_OK) {
        assert(path.depth <= META_PATH_DEPTH);
    }
    return 0;
}

#ifndef FUZZ_ENGINE
static void fuzz_valid(struct buf *to, struct rng *rng)
{
    struct meta_command c;
    meta_command_init(&c);
    struct meta_path p = {.depth = 3, .names = {span_str("vhosts"), span_str("/"), span_str("queues")}};
    meta_put(&c, &p, span_str("payload"), rng_below(rng, 2) ? META_IF_ABSENT : META_IF_ANY, 0);
    meta_keep_while(&c, &p, rng_below(rng, 2));
    meta_delete(&c, &p, META_IF_VERSION, rng_next(rng));
    buf_span_bytes(to, buf_span(&c.bytes));
    meta_command_deinit(&c);
}
#endif
