// SPDX-License-Identifier: Apache-2.0
// What was published, confirmed and delivered, and what of it breaks a promise.
//
// A body begins with: magic u32, stream u32, number u64, the run's nonce u64, time of publishing u64, its
// size u64, CRC32C of everything else u32, four bytes of zero; all big-endian. The rest depends on stream and
// number. Order is checked per consumer: deliveries to two consumers overtake each other on their sockets.
#include "tests/ledger/ledger.h"
#include "node/base/crc32c.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const uint32_t MAGIC = 0x4c454447;

uint32_t stream_open(int queue)
{
    struct ledger *l = &ledger;
    if (l->streams_count == l->streams_cap) {
        l->streams_cap = l->streams_cap == 0 ? 1024 : l->streams_cap * 2;
        l->streams = realloc(l->streams, l->streams_cap * sizeof(*l->streams));
        assert(l->streams != NULL);
    }
    struct stream *s = calloc(1, sizeof(*s));
    assert(s != NULL);
    s->queue = queue;
    s->highest = calloc((size_t)(l->consumers_count * l->queues_count), sizeof(uint64_t));
    assert(s->highest != NULL);
    l->streams[l->streams_count] = s;
    return (uint32_t)l->streams_count++;
}

static uint32_t body_sum(const uint8_t *body, size_t len)
{
    static const uint8_t zero[8];
    uint32_t crc = crc32c(0, body, HEAD_BYTES - 8);
    crc = crc32c(crc, zero, 8);
    return crc32c(crc, body + HEAD_BYTES, len - HEAD_BYTES);
}

void body_put(struct buf *out, uint32_t stream, uint64_t size)
{
    struct stream *s = ledger.streams[stream];
    const uint64_t number = s->next++;
    struct buf b = {0};
    size = size < HEAD_BYTES ? HEAD_BYTES : size;
    buf_u32be(&b, MAGIC);
    buf_u32be(&b, stream);
    buf_u64be(&b, number);
    buf_u64be(&b, ledger.nonce);
    buf_u64be(&b, now_ns());
    buf_u64be(&b, size);
    buf_u64be(&b, 0);
    uint8_t *rest = buf_extend(&b, size - HEAD_BYTES);
    uint32_t x = (uint32_t)(number * 2654435761u + stream) | 1;
    for (uint64_t i = 0; i < size - HEAD_BYTES; i++) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        rest[i] = (uint8_t)x;
    }
    const uint32_t crc = __builtin_bswap32(body_sum(b.ptr, b.len));
    memcpy(b.ptr + HEAD_BYTES - 8, &crc, 4);
    for (size_t at = 0; at < b.len;) {
        const size_t max = FRAME_MAX - AMQP_FRAME_EMPTY_BYTES, n = b.len - at < max ? b.len - at : max;
        const size_t frame = amqp_frame_begin(out, AMQP_FRAME_BODY, 1);
        buf_bytes(out, b.ptr + at, n);
        amqp_frame_end(out, frame);
        at += n;
    }
    buf_deinit(&b);
    ledger.published++;
}

static void violated(uint64_t *count, const char *what, const char *format, ...)
{
    (*count)++;
    if (ledger.told++ >= VIOLATIONS_TOLD) {
        return;
    }
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    say("violation", "\"what\":\"%s\",\"text\":\"%s\"", what, text);
}

// The queues a stream's messages go to: [*from, *to).
static void targets(const struct stream *s, int *from, int *to)
{
    *from = s->queue == TO_ALL_QUEUES ? 0 : s->queue;
    *to = s->queue == TO_ALL_QUEUES ? ledger.queues_count : s->queue + 1;
}

void ledger_confirmed(uint32_t stream, uint64_t tag, bool is_multiple, bool is_ack)
{
    struct stream *s = ledger.streams[stream];
    if (tag == 0 || tag > s->next) {
        violated(&ledger.invented, "confirm", "stream %u: a confirm of %llu, which was not published", stream,
                 (unsigned long long)tag);
        return;
    }
    int from, to;
    targets(s, &from, &to);
    for (uint64_t n = is_multiple ? s->first_open : tag - 1; n < tag; n++) {
        if (bits_set(&s->closed, n)) {
            continue;
        }
        if (!is_ack) {
            ledger.nacked++;
            continue;
        }
        ledger.confirmed++;
        bits_set(&s->confirmed, n);
        for (int q = from; q < to; q++) {
            ledger.missing += !bits_has(&s->seen[q], n);
        }
    }
    while (s->first_open < s->next && bits_has(&s->closed, s->first_open)) {
        s->first_open++;
    }
}

static uint64_t u64_at(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}
static uint32_t u32_at(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}

void ledger_delivered(int queue, int consumer, bool is_redelivered, struct span body)
{
    const char *name = ledger.queues[queue].name;
    ledger.consumed++;
    ledger.redelivered += is_redelivered;
    if (body.len < HEAD_BYTES || u32_at(body.ptr) != MAGIC || u64_at(body.ptr + 32) != body.len ||
        u32_at(body.ptr + HEAD_BYTES - 8) != body_sum(body.ptr, body.len)) {
        violated(&ledger.corrupt, "corrupt", "%s: a body of %zu bytes is not what was sent", name, body.len);
        return;
    }
    const uint32_t stream = u32_at(body.ptr + 4);
    const uint64_t number = u64_at(body.ptr + 8);
    struct stream *s = stream < ledger.streams_count ? ledger.streams[stream] : NULL;
    if (u64_at(body.ptr + 16) != ledger.nonce || s == NULL || number >= s->next ||
        (s->queue != TO_ALL_QUEUES && s->queue != queue)) {
        violated(&ledger.invented, "invented", "%s: stream %u number %llu was not published to it", name,
                 stream, (unsigned long long)number);
        return;
    }
    const bool was_seen = bits_set(&s->seen[queue], number);
    if (!was_seen && bits_has(&s->confirmed, number)) {
        ledger.missing--;
    }
    if (!is_redelivered) {
        // One may come without the flag; also late, when the line to its consumer was cut and others have had
        // it since.
        uint64_t *highest = &s->highest[consumer * ledger.queues_count + queue];
        if (bits_set(&s->first[queue], number)) {
            violated(&ledger.duplicates, "duplicate", "%s: stream %u number %llu came again without the flag",
                     name, stream, (unsigned long long)number);
        } else if (number < *highest) {
            violated(&ledger.disordered, "order", "%s: stream %u number %llu came after %llu, consumer %d",
                     name, stream, (unsigned long long)number, (unsigned long long)*highest - 1, consumer);
        } else {
            *highest = number + 1;
        }
    }
    const double age = (double)(now_ns() - u64_at(body.ptr + 24)) / 1e9;
    ledger.max_delivery_s = !was_seen && age > ledger.max_delivery_s ? age : ledger.max_delivery_s;
}

void ledger_returned(struct span body, unsigned code)
{
    const uint32_t stream = body.len >= HEAD_BYTES ? u32_at(body.ptr + 4) : UINT32_MAX;
    const uint64_t number = body.len >= HEAD_BYTES ? u64_at(body.ptr + 8) : 0;
    violated(&ledger.returned, "returned", "stream %u number %llu came back with %u", stream,
             (unsigned long long)number, code);
    if (stream < ledger.streams_count && number < ledger.streams[stream]->next) {
        bits_set(&ledger.streams[stream]->closed, number);  // Its confirm promises nothing.
    }
}

// Says which confirmed messages no consumer has seen, a line for each stream and queue.
static uint64_t lost_say(void)
{
    uint64_t lost = 0;
    for (uint32_t id = 0; id < ledger.streams_count; id++) {
        const struct stream *s = ledger.streams[id];
        int from, to;
        targets(s, &from, &to);
        for (int q = from; q < to; q++) {
            uint64_t count = 0, first = 0, last = 0;
            for (uint64_t n = 0; n < s->next; n++) {
                if (bits_has(&s->confirmed, n) && !bits_has(&s->seen[q], n)) {
                    first = count++ == 0 ? n : first;
                    last = n;
                }
            }
            lost += count;
            if (count > 0 && ledger.told++ < VIOLATIONS_TOLD) {
                say("violation",
                    "\"what\":\"lost\",\"text\":\"%s: stream %u: %llu confirmed of %llu to %llu were not "
                    "delivered\"",
                    ledger.queues[q].name, id, (unsigned long long)count, (unsigned long long)first,
                    (unsigned long long)last);
            }
        }
    }
    return lost;
}

void ledger_report(const char *event)
{
    uint64_t open = 0;
    for (int i = 0; i < clients_count; i++) {
        const struct client *c = &clients[i];
        if (c->role == ROLE_PUBLISHER && c->state == STATE_READY) {
            open += ledger.streams[c->stream]->next - ledger.streams[c->stream]->first_open;
        }
    }
    const uint64_t lost = strcmp(event, "report") == 0 ? lost_say() : 0;
    say(event,
        "\"published\":%llu,\"confirmed\":%llu,\"nacked\":%llu,\"consumed\":%llu,\"redelivered\":%llu,"
        "\"missing\":%llu,\"open\":%llu,"
        "\"lost\":%llu,\"invented\":%llu,\"duplicates\":%llu,\"disordered\":%llu,\"corrupt\":%llu,"
        "\"returned\":%llu,\"streams\":%zu,"
        "\"max_delivery_s\":%.2f",
        (unsigned long long)ledger.published, (unsigned long long)ledger.confirmed,
        (unsigned long long)ledger.nacked, (unsigned long long)ledger.consumed,
        (unsigned long long)ledger.redelivered, (unsigned long long)ledger.missing, (unsigned long long)open,
        (unsigned long long)lost, (unsigned long long)ledger.invented, (unsigned long long)ledger.duplicates,
        (unsigned long long)ledger.disordered, (unsigned long long)ledger.corrupt,
        (unsigned long long)ledger.returned, ledger.streams_count, ledger.max_delivery_s);
    ledger.max_delivery_s = 0;
}
