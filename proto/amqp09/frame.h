// SPDX-License-Identifier: Apache-2.0
// AMQP 0-9-1 frames: type, channel, size, payload, end octet (data-plane §1.4). Payloads are read in place.
//
// Thread: any. No allocation except into the caller's struct buf.
#pragma once
#include "node/base/buf.h"
#include "node/base/reader.h"

enum {
    AMQP_FRAME_METHOD = 1,
    AMQP_FRAME_HEADER = 2,
    AMQP_FRAME_BODY = 3,
    AMQP_FRAME_HEARTBEAT = 8,
    AMQP_FRAME_END = 0xCE,
    AMQP_FRAME_HEAD_BYTES = 7,   // type, channel, size
    AMQP_FRAME_EMPTY_BYTES = 8,  // ... and the end octet: what frame_max counts besides the payload.
    AMQP_HEADER_BYTES = 8,       // The protocol header "AMQP" x x x x.
};

struct amqp_frame {
    uint8_t type;  // As on the wire, also when unknown.
    uint16_t channel;
    struct span payload;  // Borrowed from the input.
};

// What was wrong, for the error text.
struct amqp_frame_fault {
    uint8_t type;
    uint32_t size;        // Announced payload size.
    uint8_t end;          // Octet found in place of AMQP_FRAME_END.
    struct span payload;  // As far as it is known.
};

// Reads the first frame of `in`. RC_OK: *used bytes belong to it. RC_MORE: *used is how many bytes are needed
// in all as far as is known now. RC_TOO_LARGE: payload above payload_max (told from the head alone).
// RC_MALFORMED: no end octet.
MUST_USE enum rc amqp_frame_read(struct span in, uint32_t payload_max, struct amqp_frame *out, size_t *used,
                                 struct amqp_frame_fault *fault);

// Appends a frame around what is written between the two calls.
size_t amqp_frame_begin(struct buf *b, uint8_t type, uint16_t channel);
void amqp_frame_end(struct buf *b, size_t at);
void amqp_frame_heartbeat(struct buf *b);

// Protocol headers (data-plane §1.1).
enum amqp_protocol {
    AMQP_PROTOCOL_0_9_1,        // Also for the 0-9 header.
    AMQP_PROTOCOL_1_0_SASL,     // "AMQP" 3 1 0 0
    AMQP_PROTOCOL_ANSWER_091,   // Refused: answer with our 0-9-1 header and close.
    AMQP_PROTOCOL_ANSWER_SASL,  // Refused: answer with the 1.0 SASL header and close.
};
enum amqp_protocol amqp_protocol_of(const uint8_t header[AMQP_HEADER_BYTES]);
extern const uint8_t amqp_header_091[AMQP_HEADER_BYTES];
extern const uint8_t amqp_header_sasl[AMQP_HEADER_BYTES];
