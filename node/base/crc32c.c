// SPDX-License-Identifier: Apache-2.0
// CRC32C. The hardware instruction has a latency of three cycles and a throughput of one, so ranges are summed as three
// interleaved streams ("lanes") and joined by multiplying with x^(8n) mod P (tables made at first use): long
// lanes for long ranges, short ones so that a message of a kilobyte gains too. What is left takes the plain
// loop. Processors without SSE4.2 take a table-driven one (slicing by 8).
//
// Sums are polynomials over GF(2), the highest bit the coefficient of x^0. What stands before `n` bytes
// counts in the sum of the whole multiplied by x^(8n): that is how sums of neighbours are joined without their bytes.
#include "node/base/crc32c.h"
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define POLY 0x82f63b78u
enum { LANE_LONG = 1024, LANE_SHORT = 128 };  // Bytes per interleaved stream.

static uint32_t table[8][256];
static uint32_t shift_long[4][256], shift_short[4][256];  // Advance a CRC over a lane of zero bytes.
static uint32_t power[64 + 3];  // x^(2^k) mod P.
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
    static const uint8_t zeros[LANE_LONG];
    for (uint32_t byte = 0; byte < 4; byte++) {
        for (uint32_t i = 0; i < 256; i++) {
            shift_long[byte][i] = soft(i << (8 * byte), zeros, LANE_LONG);
            shift_short[byte][i] = soft(i << (8 * byte), zeros, LANE_SHORT);
        }
    }
    power[0] = 1u << 30;
    for (size_t k = 1; k < sizeof(power) / sizeof(power[0]); k++) {
        power[k] = multiply(power[k - 1], power[k - 1]);
    }
#if defined(__x86_64__)
    has_hardware = __builtin_cpu_supports("sse4.2");
#endif
}

#if defined(__x86_64__)
static uint32_t advance(uint32_t shift[4][256], uint32_t crc)
{
    return shift[0][crc & 255] ^ shift[1][(crc >> 8) & 255] ^ shift[2][(crc >> 16) & 255] ^ shift[3][crc >> 24];
}

// Sums three lanes at `p` and, if `to` is not NULL, copies them there.
__attribute__((target("sse4.2"), always_inline)) static inline uint32_t
three_lanes(uint32_t crc, uint8_t *to, const uint8_t *p, size_t lane, uint32_t shift[4][256])
{
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < lane; i += 8) {
        uint64_t x, y, z;
        memcpy(&x, p + i, 8);
        memcpy(&y, p + lane + i, 8);
        memcpy(&z, p + 2 * lane + i, 8);
        a = __builtin_ia32_crc32di(a, x);
        b = __builtin_ia32_crc32di(b, y);
        c = __builtin_ia32_crc32di(c, z);
        if (to) {
            memcpy(to + i, &x, 8);
            memcpy(to + lane + i, &y, 8);
            memcpy(to + 2 * lane + i, &z, 8);
        }
    }
    a = advance(shift, (uint32_t)a) ^ b;
    return advance(shift, (uint32_t)a) ^ (uint32_t)c;
}

// Sums `n` bytes at `p` and, if `to` is not NULL, copies them there.
__attribute__((target("sse4.2"), always_inline)) static inline uint32_t hard(uint32_t crc, uint8_t *to,
                                                                             const uint8_t *p, size_t n)
{
    for (; n >= 3 * LANE_LONG; n -= 3 * LANE_LONG, p += 3 * LANE_LONG, to = to ? to + 3 * LANE_LONG : NULL) {
        crc = three_lanes(crc, to, p, LANE_LONG, shift_long);
    }
    for (; n >= 3 * LANE_SHORT; n -= 3 * LANE_SHORT, p += 3 * LANE_SHORT, to = to ? to + 3 * LANE_SHORT : NULL) {
        crc = three_lanes(crc, to, p, LANE_SHORT, shift_short);
    }
    uint64_t a = crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t x;
        memcpy(&x, p, 8);
        a = __builtin_ia32_crc32di(a, x);
        if (to) {
            memcpy(to, &x, 8);
            to += 8;
        }
    }
    uint32_t tail = (uint32_t)a;
    for (; n > 0; n--, p++) {
        tail = __builtin_ia32_crc32qi(tail, *p);
        if (to) {
            *to++ = *p;
        }
    }
    return tail;
}

__attribute__((target("sse4.2"))) static uint32_t hard_sum(uint32_t crc, const uint8_t *p, size_t n)
{
    return hard(crc, NULL, p, n);
}

__attribute__((target("sse4.2"))) static uint32_t hard_copy(uint32_t crc, uint8_t *to, const uint8_t *p, size_t n)
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
