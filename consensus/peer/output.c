// SPDX-License-Identifier: Apache-2.0
// Output of one lane (output.h).
//
// Invariants: pieces_bytes = sum of pieces; copied pieces are adjacent in `heads` in the order of `pieces`,
// so that they are found again without pointers into a buffer that may move; `rest` is only ever sent from its front.
#include "consensus/peer/output.h"
#include "node/base/crc32c.h"
#include "node/base/mem.h"
#include <stdlib.h>

enum { OUTPUT_KEEP_BYTES = 256 << 10 };  // Memory kept by an empty lane.

void output_init(struct output *o)
{
    *o = (struct output){.pieces_len = 0};
    buf_init(&o->heads);
    buf_init(&o->rest);
}

void output_deinit(struct output *o)
{
    buf_deinit(&o->heads);
    buf_deinit(&o->rest);
    free(o->pieces);
    o->pieces = NULL;
}

static void piece_add(struct output *o, void *base, size_t len)
{
    if (len == 0) {
        return;
    }
    o->pieces_bytes += len;
    if (!base && o->pieces_len > 0 && !o->pieces[o->pieces_len - 1].iov_base) {
        o->pieces[o->pieces_len - 1].iov_len += len;
        return;
    }
    if (o->pieces_len == o->pieces_cap) {
        o->pieces_cap = o->pieces_cap ? o->pieces_cap * 2 : 64;
        o->pieces = mem_realloc(o->pieces, (size_t)o->pieces_cap * sizeof(o->pieces[0]));
    }
    o->pieces[o->pieces_len++] = (struct iovec){.iov_base = base, .iov_len = len};
}

void output_frame(struct output *o, enum frame_type type, struct span envelope, const struct iovec *raw, int raw_count,
                  bool raw_crc)
{
    size_t raw_len = raw_crc ? 4 : 0;
    for (int i = 0; i < raw_count; i++) {
        raw_len += raw[i].iov_len;
    }
    frame_encode_head(&o->heads, type, raw_crc ? FRAME_RAW_CRC : 0, envelope, raw_len);
    piece_add(o, NULL, FRAME_HEADER_BYTES + envelope.len);
    uint32_t sum = 0;
    for (int i = 0; i < raw_count; i++) {
        if (raw_crc) {
            sum = crc32c(sum, raw[i].iov_base, raw[i].iov_len);
        }
        piece_add(o, raw[i].iov_base, raw[i].iov_len);
    }
    if (raw_crc) {
        buf_u32(&o->heads, sum);
        piece_add(o, NULL, 4);
    }
}

void output_encoded(struct output *o, struct span frames)
{
    piece_add(o, (void *)frames.ptr, frames.len);
}

// Gives the copied pieces their addresses; `heads` does not move from here on.
static void pieces_resolve(struct output *o)
{
    uint8_t *at = o->heads.ptr;
    for (int i = 0; i < o->pieces_len; i++) {
        if (!o->pieces[i].iov_base) {
            o->pieces[i].iov_base = at;
            at += o->pieces[i].iov_len;
        }
    }
    assert(at == o->heads.ptr + o->heads.len || o->pieces_len == 0);
}

// Takes `n` bytes off the front: first of the rest, then of the pieces from *first on.
static void advance(struct output *o, int *first, size_t n)
{
    size_t from_rest = o->rest.len - o->rest_pos;
    from_rest = n < from_rest ? n : from_rest;
    o->rest_pos += from_rest;
    n -= from_rest;
    o->pieces_bytes -= n;
    while (n > 0) {
        struct iovec *p = &o->pieces[*first];
        if (n < p->iov_len) {
            p->iov_base = (uint8_t *)p->iov_base + n;
            p->iov_len -= n;
            return;
        }
        n -= p->iov_len;
        (*first)++;
    }
}

// Copies the pieces from `first` on behind the rest.
static void keep_rest(struct output *o, int first)
{
    if (o->rest_pos == o->rest.len) {
        o->rest.len = o->rest_pos = 0;
    } else if (o->rest_pos > o->rest.len / 2) {
        buf_consume(&o->rest, o->rest_pos);
        o->rest_pos = 0;
    }
    buf_reserve(&o->rest, o->pieces_bytes);
    for (int i = first; i < o->pieces_len; i++) {
        buf_bytes(&o->rest, o->pieces[i].iov_base, o->pieces[i].iov_len);
    }
    o->pieces_len = 0;
    o->pieces_bytes = 0;
    o->heads.len = 0;
    buf_shrink(&o->heads, OUTPUT_KEEP_BYTES);
    buf_shrink(&o->rest, OUTPUT_KEEP_BYTES);
}

enum rc output_flush(struct output *o, struct transport *t)
{
    pieces_resolve(o);
    int first = 0;
    enum rc rc = RC_OK;
    while (output_bytes(o) > 0 && rc == RC_OK) {
        struct iovec iov[TRANSPORT_IOV_MAX];
        int count = 0;
        size_t offered = o->rest.len - o->rest_pos;
        if (offered > 0) {
            iov[count++] = (struct iovec){.iov_base = o->rest.ptr + o->rest_pos, .iov_len = offered};
        }
        for (int i = first; i < o->pieces_len && count < TRANSPORT_IOV_MAX; i++) {
            iov[count++] = o->pieces[i];
            offered += o->pieces[i].iov_len;
        }
        size_t taken = 0;
        rc = transport_writev(t, iov, count, &taken);
        advance(o, &first, taken);
        o->taken += taken;
        if (rc == RC_OK && taken < offered) {
            rc = RC_PENDING;  // The next call would only be told that the socket is full.
            t->want = TRANSPORT_WANT_WRITE;
        }
    }
    keep_rest(o, first);
    return rc;
}

void output_clear(struct output *o)
{
    o->heads.len = 0;
    o->pieces_len = 0;
    o->pieces_bytes = 0;
    o->rest.len = o->rest_pos = 0;
    buf_shrink(&o->heads, 0);
    buf_shrink(&o->rest, 0);
}
