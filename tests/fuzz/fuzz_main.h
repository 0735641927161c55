// SPDX-License-Identifier: Apache-2.0
// main for fuzz drivers without libFuzzer: random bytes, and random changes to what the driver offers as valid.
//   fuzz_NAME [rounds] [seed]
#pragma once
#include "node/base/buf.h"
#include "node/base/env.h"
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifndef FUZZ_ENGINE
static void fuzz_valid(struct buf *to, struct rng *rng);  // A valid input of some kind, to be damaged.

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    struct buf b = {0};
    for (uint64_t i = 0; i < rounds; i++) {
        struct rng rng;
        rng_seed(&rng, seed + i);
        b.len = 0;
        if (i % 2) {
            fuzz_valid(&b, &rng);
            for (uint64_t k = rng_below(&rng, 4); k > 0 && b.len > 0; k--) {
                b.ptr[rng_below(&rng, b.len)] ^= (uint8_t)(1u << rng_below(&rng, 8));
            }
            b.len = rng_below(&rng, 3) ? b.len : rng_below(&rng, b.len + 1);
        } else {
            for (uint64_t k = rng_below(&rng, 2048); k > 0; k--) {
                buf_u8(&b, (uint8_t)rng_next(&rng));
            }
        }
        // A copy of its exact size, so that a read past its end is seen.
        uint8_t *copy = malloc(b.len ? b.len : 1);
        if (b.len > 0) {
            memcpy(copy, b.ptr, b.len);
        }
        LLVMFuzzerTestOneInput(copy, b.len);
        free(copy);
    }
    buf_deinit(&b);
    printf("%llu rounds\n", (unsigned long long)rounds);
    return 0;
}
#endif
