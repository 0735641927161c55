// SPDX-License-Identifier: Apache-2.0
// The published snapshot as a value, and the header of its chunk stream.
//
// Header, version 1: u8 version, u32 fsm version, u32 chunks (header chunks included), u64 state bytes, u64
// config index, str16 config, u32 number of live ranges, then for each a varint gap (to the end of the one
// before) and a varint length - 1. It travels in RECORD_SNAPSHOT chunks flagged RECORD_FLAG_HEADER, in front
// of the state's.
#include "consensus/store/core.h"
#include "node/base/slab.h"
#include "node/base/reader.h"

enum { HEADER_VERSION = 1 };

// ---- numbers of variable length -----------------------------------------------------------------

enum { VARINT_BYTES_MAX = 10 };

static void put_varint(struct buf *to, uint64_t v)
{
    for (; v >= 0x80; v >>= 7) {
        buf_u8(to, (uint8_t)(v | 0x80));
    }
    buf_u8(to, (uint8_t)v);
}

static uint64_t read_varint(struct reader *r)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t b = reader_u8(r);
        v |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) {
            return v;
        }
    }
    r->is_bad = true;
    return 0;
}

// ---- the configuration in a snapshot ------------------------------------------------------------

// In memory only, one for every idle queue: u8 members, varint index, then for each member varint node * 2 + voter and
// varint replica - the one before. Replica ids of a queue follow each other, so three members are 8 to 12 bytes,
// where config_encode takes 41. No order is asked for: a difference below zero wraps round, and is long.

static_assert(1 + VARINT_BYTES_MAX + LIMIT_MEMBERS * (5 + VARINT_BYTES_MAX) <= UINT8_MAX,
              "a packed configuration has a length of one byte in a snapshot");

static void config_pack(const struct config *c, struct buf *to)
{
    assert(c->count <= LIMIT_MEMBERS);
    buf_u8(to, (uint8_t)c->count);
    put_varint(to, c->index);
    uint64_t before = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct member *m = &c->members[i];
        put_varint(to, (uint64_t)m->node_id << 1 | m->is_voter);
        put_varint(to, m->replica_id - before);
        before = m->replica_id;
    }
}

static void config_unpack(struct span bytes, struct config *out)
{
    struct reader r = reader_of(bytes);
    out->count = reader_u8(&r);
    out->index = read_varint(&r);
    assert(out->count <= LIMIT_MEMBERS);
    uint64_t before = 0;
    for (uint32_t i = 0; i < out->count; i++) {
        const uint64_t node = read_varint(&r);
        before += read_varint(&r);
        out->members[i] = (struct member){
            .replica_id = before, .node_id = (uint32_t)(node >> 1), .is_voter = (node & 1) != 0};
    }
    const enum rc rc = reader_end(&r);
    assert(rc == RC_OK);
}

// ---- the value ----------------------------------------------------------------------------------

static size_t snapshot_size(uint32_t live_count, size_t config_len)
{
    return sizeof(struct snapshot) + live_count * sizeof(struct live_range) + 1 + config_len;
}

static struct span config_bytes(const struct snapshot *s)
{
    const uint8_t *tail = (const uint8_t *)&s->live[s->live_count];
    return span_of(tail + 1, tail[0]);
}

struct snapshot *snapshot_create(uint64_t index, uint64_t term, const struct config *config, struct span live)
{
    assert(index > 0);
    assert(live.len % sizeof(struct live_range) == 0);
    struct buf packed;
    buf_init(&packed);
    config_pack(config, &packed);
    assert(packed.len <= UINT8_MAX);
    struct snapshot *s = slab_zalloc(snapshot_size((uint32_t)(live.len / sizeof(struct live_range)), packed.len));
    s->index = index;
    s->term = term;
    s->live_count = (uint32_t)(live.len / sizeof(struct live_range));
    if (live.len > 0) {
        memcpy(s->live, live.ptr, live.len);
    }
    uint64_t before = 0;
    for (uint32_t i = 0; i < s->live_count; i++) {
        assert(s->live[i].first > before);
        assert(s->live[i].last >= s->live[i].first);
        assert(s->live[i].last <= index);
        before = s->live[i].last;
    }
    uint8_t *tail = (uint8_t *)&s->live[s->live_count];
    tail[0] = (uint8_t)packed.len;
    memcpy(tail + 1, packed.ptr, packed.len);
    buf_deinit(&packed);
    return s;
}

void snapshot_free(struct snapshot *s)
{
    slab_free(s, snapshot_size(s->live_count, config_bytes(s).len));
}

void snapshot_place(struct snapshot *s, struct segment *segment, uint64_t position, uint64_t bytes, uint32_t chunks)
{
    assert(s->segment == NULL);
    segment_hold(segment);
    segment_live_add(segment, bytes);
    s->segment = segment;
    s->position = position;
    s->bytes = bytes;
    s->chunks = chunks;
}

void snapshot_config(const struct snapshot *s, struct config *out)
{
    config_unpack(config_bytes(s), out);
}

uint32_t snapshot_live_find(const struct snapshot *s, uint64_t index)
{
    uint32_t low = 0, high = s->live_count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (s->live[mid].last < index) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

bool snapshot_is_live(const struct snapshot *s, uint64_t index)
{
    uint32_t at = snapshot_live_find(s, index);
    return at < s->live_count && s->live[at].first <= index;
}

uint64_t snapshot_live_between(const struct snapshot *s, uint64_t first, uint64_t last)
{
    uint64_t n = 0;
    for (uint32_t i = snapshot_live_find(s, first); i < s->live_count && s->live[i].first <= last; i++) {
        uint64_t a = s->live[i].first > first ? s->live[i].first : first;
        uint64_t b = s->live[i].last < last ? s->live[i].last : last;
        n += b - a + 1;
    }
    return n;
}

// ---- the header ---------------------------------------------------------------------------------

void snapshot_header_encode(const struct snapshot_header *h, struct buf *to)
{
    buf_u8(to, HEADER_VERSION);
    buf_u32(to, h->fsm_version);
    buf_u32(to, h->chunks);
    buf_u64(to, h->state_bytes);
    buf_u64(to, h->config.index);
    struct buf config;
    buf_init(&config);
    if (h->config.count > 0) {
        config_encode(&h->config, &config);
    }
    buf_str16(to, buf_span(&config));
    buf_deinit(&config);
    const struct live_range *live = (const struct live_range *)(const void *)h->live.ptr;
    uint32_t count = (uint32_t)(h->live.len / sizeof(*live));
    buf_u32(to, count);
    uint64_t before = 0;
    for (uint32_t i = 0; i < count; i++) {
        assert(live[i].first > before);
        put_varint(to, live[i].first - before);
        put_varint(to, live[i].last - live[i].first);
        before = live[i].last;
    }
}

enum rc snapshot_header_decode(struct span bytes, struct snapshot_header *out)
{
    struct reader r = reader_of(bytes);
    *out = (struct snapshot_header){0};
    buf_init(&out->live);
    uint8_t version = reader_u8(&r);
    if (version != HEADER_VERSION) {
        return version == 0 ? RC_MALFORMED : RC_UNSUPPORTED;
    }
    out->fsm_version = reader_u32(&r);
    out->chunks = reader_u32(&r);
    out->state_bytes = reader_u64(&r);
    uint64_t config_index = reader_u64(&r);
    struct span config = reader_str16(&r);
    if (config.len > 0) {
        TRY(config_decode(config, &out->config));
    }
    out->config.index = config_index;
    uint32_t count = reader_u32(&r);
    uint64_t before = 0;
    for (uint32_t i = 0; i < count && !r.is_bad; i++) {
        uint64_t gap = read_varint(&r), more = read_varint(&r);
        if (gap == 0 || before + gap < before || before + gap + more < before + gap) {
            r.is_bad = true;
            break;
        }
        struct live_range range = {.first = before + gap, .last = before + gap + more};
        buf_bytes(&out->live, &range, sizeof(range));
        before = range.last;
    }
    if (reader_end(&r) != RC_OK) {
        buf_deinit(&out->live);
        return RC_MALFORMED;
    }
    return RC_OK;
}

void record_put(struct buf *to, uint64_t group, uint64_t index, uint64_t term, uint16_t kind, uint16_t flags,
                uint32_t aux, struct span payload)
{
    size_t size = record_size((uint32_t)payload.len);
    uint8_t *p = buf_extend(to, size);
    struct record_disk r = {.len = (uint32_t)payload.len,
                            .group = group,
                            .index = index,
                            .term = term,
                            .kind = kind,
                            .flags = flags,
                            .aux = aux};
    memcpy(p, &r, sizeof(r));
    uint32_t crc = crc32c(0, p + 4, RECORD_HEADER_BYTES - 4);
    r.crc = crc32c_copy(crc, p + RECORD_HEADER_BYTES, payload.ptr, payload.len);
    memcpy(p, &r.crc, 4);
    memset(p + RECORD_HEADER_BYTES + payload.len, 0, size - RECORD_HEADER_BYTES - payload.len);
}
