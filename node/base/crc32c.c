// SPDX-License-Identifier: Apache-2.0
// CRC32C. The hardware instruction sums 8 bytes in three cycles, more at a time only on some processors; carry-less
// multiplication, which folds 16 bytes into the 16 that are so far behind them, has execution units of its own. So
// both are used side by side: of each 96 bytes 64 are folded and 2 times 16 are summed, as three streams that are
// joined in the end. What is left takes the plain loop. Processors without SSE4.2 and PCLMULQDQ take a table-driven
// one (slicing by 8).
//
// Sums are polynomials over GF(2), the highest bit the coefficient of x^0. What stands before `n` bytes
// counts in the sum of the whole multiplied by x^(8n): that is how sums of neighbours are joined without their bytes.
#include "node/base/crc32c.h"
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define POLY 0x82f63b78u
enum {
    FOLD = 64,         // Bytes of a step that are folded,
    WORDS = 2,         // and words of 8 bytes that are summed, in each of two lanes.
    STEP = FOLD + 2 * WORDS * 8,
    STEPS_MAX = 128,   // What lies between the streams stays in the first cache.
};

static uint32_t table[8][256];
static uint32_t power[64 + 3];  // x^(2^k) mod P.
// For products of what stands `n` words before, [n]: x^(64n - 33) mod P; of the two halves of 16 bytes that are `n` times
// 16 bytes before, [n]: x^(128n + 31), x^(128n - 33) mod P.
static uint32_t shift[2 * WORDS * STEPS_MAX + 1];
static uint64_t fold_by[FOLD / 16 + 1][2];
static bool has_hardware;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint32_t soft(uint32_t crc, const uint8_t *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        w ^= crc;
        crc = table[7][w & 255] ^ table[6][(w >> 8) & 255] ^ table[5][(w >> 16) & 255] ^
              table[4][(w >> 24) & 255] ^ table[3][(w >> 32) & 255] ^ table[2][(w >> 40) & 255] ^
              table[1][(w >> 48) & 255] ^ table[0][w >> 56];
    }
    for (; n > 0; n--, p++) {
        crc = (crc >> 8) ^ table[0][(crc ^ *p) & 255];
    }
    return crc;
}

// a * b mod P.
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
        if (a & bit) {
            product ^= b;
        }
        b = (b >> 1) ^ (b & 1 ? POLY : 0);
    }
    return product;
}

static void init(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) {
            c = (c >> 1) ^ (c & 1 ? POLY : 0);
        }
        table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++) {
        for (int t = 1; t < 8; t++) {
            table[t][i] = (table[t - 1][i] >> 8) ^ table[0][table[t - 1][i] & 255];
        }
    }
    power[0] = 1u << 30;
    for (size_t k = 1; k < sizeof(power) / sizeof(power[0]); k++) {
        power[k] = multiply(power[k - 1], power[k - 1]);
    }
    shift[1] = 1;  // x^31
    for (size_t n = 2; n < sizeof(shift) / sizeof(shift[0]); n++) {
        shift[n] = multiply(shift[n - 1], power[6]);
    }
    for (size_t n = 1; n < sizeof(fold_by) / sizeof(fold_by[0]); n++) {
        fold_by[n][0] = shift[2 * n + 1];
        fold_by[n][1] = shift[2 * n];
    }
#if defined(__x86_64__)
    has_hardware = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
#endif
}

#if defined(__x86_64__)
#define HARD __attribute__((target("sse4.2,pclmul")))
#define HARD_INLINE HARD __attribute__((always_inline)) static inline

// The product of two reflected polynomials of together n bits has n - 1, which multiplies it by x; and the factors in
// the tables are 32 bits at the end of 64, which multiplies them by x^32: hence the 33 they leave out.

// Summed as 8 bytes, gives `crc` with `words` words behind it (the last of which are those 8).
HARD_INLINE uint64_t advance(uint64_t crc, size_t words)
{
    const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc), _mm_cvtsi64_si128(shift[words]), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

// What counts as much as `x` does in a place that is further ahead.
HARD_INLINE __m128i fold(__m128i x, __m128i by)
{
    return _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11));
}

HARD_INLINE __m128i move16(uint8_t *to, const uint8_t *p, size_t at)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(p + at));
    if (to) {
        _mm_storeu_si128((__m128i *)(void *)(to + at), x);
    }
    return x;
}

HARD_INLINE uint64_t move8(uint8_t *to, const uint8_t *p, size_t at)
{
    uint64_t x;
    memcpy(&x, p + at, 8);
    if (to) {
        memcpy(to + at, &x, 8);
    }
    return x;
}

// Sums so many steps at `p` and, if `to` is not NULL, copies them there.
HARD_INLINE uint64_t run_steps(uint64_t crc, uint8_t *to, const uint8_t *p, size_t steps)
{
    const __m128i by64 = _mm_loadu_si128((const __m128i *)(const void *)fold_by[4]);
    const __m128i by48 = _mm_loadu_si128((const __m128i *)(const void *)fold_by[3]);
    const __m128i by32 = _mm_loadu_si128((const __m128i *)(const void *)fold_by[2]);
    const __m128i by16 = _mm_loadu_si128((const __m128i *)(const void *)fold_by[1]);
    const size_t lane = steps * WORDS * 8;
    size_t at = 0, b_at = steps * FOLD;
    __m128i a0 = _mm_xor_si128(move16(to, p, 0), _mm_cvtsi64_si128((long long)crc));
    __m128i a1 = move16(to, p, 16), a2 = move16(to, p, 32), a3 = move16(to, p, 48);
    uint64_t b = 0, c = 0;
    for (size_t i = 1; i < steps; i++) {
        at += FOLD;
        a0 = _mm_xor_si128(fold(a0, by64), move16(to, p, at));
        a1 = _mm_xor_si128(fold(a1, by64), move16(to, p, at + 16));
        a2 = _mm_xor_si128(fold(a2, by64), move16(to, p, at + 32));
        a3 = _mm_xor_si128(fold(a3, by64), move16(to, p, at + 48));
        b = _mm_crc32_u64(b, move8(to, p, b_at));
        c = _mm_crc32_u64(c, move8(to, p, b_at + lane));
        b = _mm_crc32_u64(b, move8(to, p, b_at + 8));
        c = _mm_crc32_u64(c, move8(to, p, b_at + lane + 8));
        b_at += 16;
    }
    a3 = _mm_xor_si128(_mm_xor_si128(a3, fold(a2, by16)), _mm_xor_si128(fold(a1, by32), fold(a0, by48)));
    uint64_t a = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(a3));
    b = _mm_crc32_u64(b, move8(to, p, b_at));
    c = _mm_crc32_u64(c, move8(to, p, b_at + lane));
    a = _mm_crc32_u64(a, (uint64_t)_mm_extract_epi64(a3, 1));
    b = _mm_crc32_u64(b, move8(to, p, b_at + 8));
    const uint64_t last = move8(to, p, b_at + lane + 8);
    return _mm_crc32_u64(c, last ^ advance(a, 2 * WORDS * steps) ^ advance(b, WORDS * steps));
}

// Sums `n` bytes at `p` and, if `to` is not NULL, copies them there.
HARD_INLINE uint32_t hard(uint32_t crc, uint8_t *to, const uint8_t *p, size_t n)
{
    uint64_t a = crc;
    while (n >= STEP) {
        const size_t steps = n / STEP < STEPS_MAX ? n / STEP : STEPS_MAX;
        a = run_steps(a, to, p, steps);
        n -= steps * STEP;
        p += steps * STEP;
        to = to ? to + steps * STEP : NULL;
    }
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t x;
        memcpy(&x, p, 8);
        a = _mm_crc32_u64(a, x);
        if (to) {
            memcpy(to, &x, 8);
            to += 8;
        }
    }
    uint32_t tail = (uint32_t)a;
    for (; n > 0; n--, p++) {
        tail = _mm_crc32_u8(tail, *p);
        if (to) {
            *to++ = *p;
        }
    }
    return tail;
}

HARD static uint32_t hard_sum(uint32_t crc, const uint8_t *p, size_t n)
{
    return hard(crc, NULL, p, n);
}

HARD static uint32_t hard_copy(uint32_t crc, uint8_t *to, const uint8_t *p, size_t n)
{
    return hard(crc, to, p, n);
}
#endif

uint32_t crc32c(uint32_t crc, const void *ptr, size_t n)
{
    pthread_once(&once, init);
#if defined(__x86_64__)
    if (has_hardware) {
        return ~hard_sum(~crc, ptr, n);
    }
#endif
    return ~soft(~crc, ptr, n);
}

uint32_t crc32c_copy(uint32_t crc, void *to, const void *from, size_t n)
{
    pthread_once(&once, init);
#if defined(__x86_64__)
    if (has_hardware) {
        return ~hard_copy(~crc, to, from, n);
    }
#endif
    memcpy(to, from, n);
    return ~soft(~crc, from, n);
}

uint32_t crc32c_combine(uint32_t crc1, uint32_t crc2, uint64_t len2)
{
    pthread_once(&once, init);
    for (size_t k = 3; len2 != 0; len2 >>= 1, k++) {  // x^(8 len2)
        if (len2 & 1) {
            crc1 = multiply(power[k], crc1);
        }
    }
    return crc1 ^ crc2;
}
