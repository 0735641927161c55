// SPDX-License-Identifier: Apache-2.0
// A wire for tests of node/queue: a list of encoded frames, oldest first. What the nets of queue_world.h and
// test_queue_lane.c send through; how and when a frame arrives is theirs.
#pragma once
#include "node/base/crc32c.h"
#include "node/base/list.h"
#include "proto/frame.h"
#include <check.h>
#include <stdlib.h>
#include <sys/uio.h>

struct wire_frame {
    struct list link;
    struct buf bytes;
};

// As the real net: with the sum behind the raw bytes.
static inline void wire_put(struct list *wire, enum frame_type type, struct span envelope, const struct iovec *raw,
                            int raw_count)
{
    struct wire_frame *f = mem_zalloc(sizeof(*f));
    size_t len = 4;
    uint32_t crc = 0;
    for (int i = 0; i < raw_count; i++) {
        len += raw[i].iov_len;
        crc = crc32c(crc, raw[i].iov_base, raw[i].iov_len);
    }
    frame_encode_head(&f->bytes, type, FRAME_RAW_CRC, envelope, len);
    for (int i = 0; i < raw_count; i++) {
        buf_bytes(&f->bytes, raw[i].iov_base, raw[i].iov_len);
    }
    buf_u32(&f->bytes, crc);
    ck_assert_uint_le(f->bytes.len, LIMIT_FRAME_BYTES);
    list_add_tail(wire, &f->link);
}

static inline struct wire_frame *wire_first(struct list *wire)
{
    return list_entry(wire->next, struct wire_frame, link);
}

static inline void wire_frame_drop(struct wire_frame *f)
{
    list_remove(&f->link);
    buf_deinit(&f->bytes);
    free(f);
}

static inline void wire_clear(struct list *wire)
{
    while (!list_is_empty(wire)) {
        wire_frame_drop(wire_first(wire));
    }
}
