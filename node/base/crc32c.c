// SPDX-License-Identifier: Apache-2.0
// CRC32C. The hardware instruction has a latency of three cycles and a throughput of one, so long ranges are
// summed as three interleaved streams and joined by multiplying with x^(8n) mod P (tables made at first use).
// Short ranges take the plain loop. Processors without SSE4.2 take a table-driven one (slicing by 8).
#include "node/base/crc32c.h"
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define POLY 0x82f63b78u
enum { LANE = 1024 };  // Bytes per interleaved stream.

static uint32_t table[8][256];
static uint32_t shift_lane[4][256];   // Advances a CRC over LANE zero bytes.
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
    static const uint8_t zeros[LANE];
    for (uint32_t byte = 0; byte < 4; byte++) {
        for (uint32_t i = 0; i < 256; i++) {
            shift_lane[byte][i] = soft(i << (8 * byte), zeros, LANE);
        }
    }
#if defined(__x86_64__)
    has_hardware = __builtin_cpu_supports("sse4.2");
#endif
}

#if defined(__x86_64__)
static uint32_t advance(uint32_t crc)
{
    return shift_lane[0][crc & 255] ^ shift_lane[1][(crc >> 8) & 255] ^ shift_lane[2][(crc >> 16) & 255] ^
           shift_lane[3][crc >> 24];
}

// Sums `n` bytes at `p` and, if `to` is not NULL, copies them there.
__attribute__((target("sse4.2"))) static uint32_t hard(uint32_t crc, uint8_t *to, const uint8_t *p, size_t n)
{
    uint64_t a = crc;
    while (n >= 3 * LANE) {
        uint64_t b = 0, c = 0;
        for (size_t i = 0; i < LANE; i += 8) {
            uint64_t x, y, z;
            memcpy(&x, p + i, 8);
            memcpy(&y, p + LANE + i, 8);
            memcpy(&z, p + 2 * LANE + i, 8);
            a = __builtin_ia32_crc32di(a, x);
            b = __builtin_ia32_crc32di(b, y);
            c = __builtin_ia32_crc32di(c, z);
            if (to) {
                memcpy(to + i, &x, 8);
                memcpy(to + LANE + i, &y, 8);
                memcpy(to + 2 * LANE + i, &z, 8);
            }
        }
        a = advance((uint32_t)a) ^ b;
        a = advance((uint32_t)a) ^ c;
        p += 3 * LANE;
        to = to ? to + 3 * LANE : NULL;
        n -= 3 * LANE;
    }
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
#endif

uint32_t crc32c(uint32_t crc, const void *ptr, size_t n)
{
    pthread_once(&once, init);
#if defined(__x86_64__)
    if (has_hardware) {
        return ~hard(~crc, NULL, ptr, n);
    }
#endif
    return ~soft(~crc, ptr, n);
}

uint32_t crc32c_copy(uint32_t crc, void *to, const void *from, size_t n)
{
    pthread_once(&once, init);
#if defined(__x86_64__)
    if (has_hardware) {
        return ~hard(~crc, to, from, n);
    }
#endif
    memcpy(to, from, n);
    return ~soft(~crc, from, n);
}
