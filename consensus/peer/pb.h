// SPDX-License-Identifier: Apache-2.0
// Small help for coding plain structs to and from protobuf messages; for the .c files of this folder. Pure.
#pragma once
#include "node/base/buf.h"
#include <protobuf-c/protobuf-c.h>

// Copies into char[max + 1]. False if it does not fit.
static inline bool pb_text(char *to, size_t max, const char *from)
{
    size_t n = strlen(from);
    if (n > max) {
        return false;
    }
    memcpy(to, from, n + 1);
    return true;
}

// Copies exactly `n` bytes. False if there are more or fewer.
static inline bool pb_bytes(void *to, size_t n, ProtobufCBinaryData from)
{
    if (from.len != n) {
        return false;
    }
    memcpy(to, from.data, n);
    return true;
}

static inline ProtobufCBinaryData pb_borrow(const void *ptr, size_t n)
{
    return (ProtobufCBinaryData){.data = (uint8_t *)ptr, .len = n};
}

static inline void pb_pack(struct buf *to, const ProtobufCMessage *m)
{
    size_t n = protobuf_c_message_get_packed_size(m);
    size_t packed = protobuf_c_message_pack(m, buf_extend(to, n));
    assert(packed == n);
}
