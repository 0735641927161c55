// SPDX-License-Identifier: Apache-2.0
// Content headers (data-plane §1.7) and the frames that carry content.
//
// "Raw properties" are the header payload behind class, weight and body size: two bytes of flags and the
// properties present, in order. That is what queues store and what is sent to consumers again, byte for byte
// unless a header has to be added.
//
// Thread: any. No allocation except into the caller's struct buf.
#pragma once
#include "node/base/buf.h"
#include "node/base/reader.h"

enum {
    PROPERTY_CONTENT_TYPE = 0x8000,
    PROPERTY_CONTENT_ENCODING = 0x4000,
    PROPERTY_HEADERS = 0x2000,
    PROPERTY_DELIVERY_MODE = 0x1000,
    PROPERTY_PRIORITY = 0x0800,
    PROPERTY_CORRELATION_ID = 0x0400,
    PROPERTY_REPLY_TO = 0x0200,
    PROPERTY_EXPIRATION = 0x0100,
    PROPERTY_MESSAGE_ID = 0x0080,
    PROPERTY_TIMESTAMP = 0x0040,
    PROPERTY_TYPE = 0x0020,
    PROPERTY_USER_ID = 0x0010,
    PROPERTY_APP_ID = 0x0008,
    PROPERTY_CLUSTER_ID = 0x0004,
    PROPERTY_UNUSED = 0x0003,  // Ignored on reading; never written.

    CONTENT_CLASS_BASIC = 60,
    CONTENT_HEADER_FIXED_BYTES = 12,  // class, weight, body size
};

struct content_header {
    uint16_t class_id;
    uint16_t weight;  // Must be 0; judged by the caller.
    uint64_t body_size;
    struct span properties;  // Raw; borrowed from the frame.
};
// Splits a header frame's payload. RC_MALFORMED if it is too short. Properties are not looked at.
MUST_USE enum rc content_header_read(struct span payload, struct content_header *out);

struct content_properties {
    uint16_t flags;  // Which of the following are present.
    struct span content_type, content_encoding;
    struct span headers;  // Field table, content without its length.
    uint8_t delivery_mode, priority;
    struct span correlation_id, reply_to, expiration, message_id;
    uint64_t timestamp;
    struct span type, user_id, app_id, cluster_id;
};
// Reads raw properties. RC_MALFORMED: truncated, trailing bytes, or a header table that does not decode.
MUST_USE enum rc content_properties_read(struct span raw, struct content_properties *out);
// The same for bytes that were checked before (by the call above, on publishing): the table is not walked
// again.
MUST_USE enum rc content_properties_read_checked(struct span raw, struct content_properties *out);
// Appends raw properties.
void content_properties_put(struct buf *b, const struct content_properties *p);

// Single properties of checked raw bytes, without reading the others; false if absent.
bool content_find_headers(struct span raw, struct span *headers);
bool content_find_delivery_mode(struct span raw, uint8_t *mode);
bool content_find_priority(struct span raw, uint8_t *priority);
bool content_find_reply_to(struct span raw, struct span *reply_to);
bool content_find_expiration(struct span raw, struct span *expiration);
bool content_find_user_id(struct span raw, struct span *user_id);

// Appends raw properties with `headers` in place of the header table; an empty one removes the property.
void content_put_with_headers(struct buf *b, struct span raw, struct span headers);

// True if the table's keys ascend strictly and no letter is an alias: writing it sorted would not change it. The table
// must have been checked.
bool content_headers_are_sorted(struct span headers);

// Appends the header frame alone.
void content_header_put(struct buf *b, uint16_t channel, struct span properties, uint64_t body_len);
// Most bytes of a body in one frame.
static inline size_t content_body_max(uint32_t frame_max)
{
    return frame_max == 0 ? UINT32_MAX : frame_max - 8;
}

// Bytes content_frames_put will append.
size_t content_frames_size(size_t properties_len, size_t body_len, uint32_t frame_max);
// Appends the header frame and as many body frames as frame_max (0: no limit) asks for. The header must fit:
// content_header_fits.
void content_frames_put(struct buf *b, uint16_t channel, uint32_t frame_max, struct span properties,
                        struct span body);
static inline bool content_header_fits(size_t properties_len, uint32_t frame_max)
{
    return frame_max == 0 || properties_len + CONTENT_HEADER_FIXED_BYTES + 8 <= frame_max;
}
