// SPDX-License-Identifier: Apache-2.0
// Reply codes (data-plane §1.5): their names, and whether they end the connection or only the channel.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define REPLY_LIST(X)                                                                                        \
    X(SUCCESS, 200, false)                                                                                   \
    X(CONTENT_TOO_LARGE, 311, false)                                                                         \
    X(NO_ROUTE, 312, false)                                                                                  \
    X(NO_CONSUMERS, 313, false)                                                                              \
    X(CONNECTION_FORCED, 320, true)                                                                          \
    X(INVALID_PATH, 402, true)                                                                               \
    X(ACCESS_REFUSED, 403, false)                                                                            \
    X(NOT_FOUND, 404, false)                                                                                 \
    X(RESOURCE_LOCKED, 405, false)                                                                           \
    X(PRECONDITION_FAILED, 406, false)                                                                       \
    X(FRAME_ERROR, 501, true)                                                                                \
    X(SYNTAX_ERROR, 502, true)                                                                               \
    X(COMMAND_INVALID, 503, true)                                                                            \
    X(CHANNEL_ERROR, 504, true)                                                                              \
    X(UNEXPECTED_FRAME, 505, true)                                                                           \
    X(RESOURCE_ERROR, 506, true)                                                                             \
    X(NOT_ALLOWED, 530, true)                                                                                \
    X(NOT_IMPLEMENTED, 540, true)                                                                            \
    X(INTERNAL_ERROR, 541, true)

enum reply_code {
#define REPLY_ENUM(name, code, is_hard) REPLY_##name = code,
    REPLY_LIST(REPLY_ENUM)
#undef REPLY_ENUM
};

static inline const char *reply_name(uint16_t code)
{
    switch (code) {
#define REPLY_NAME(name, value, is_hard)                                                                     \
    case value:                                                                                              \
        return #name;
        REPLY_LIST(REPLY_NAME)
#undef REPLY_NAME
    default:
        return "INTERNAL_ERROR";
    }
}

// True: the connection ends. Unknown codes count as hard.
static inline bool reply_is_hard(uint16_t code)
{
    switch (code) {
#define REPLY_HARD(name, value, is_hard)                                                                     \
    case value:                                                                                              \
        return is_hard;
        REPLY_LIST(REPLY_HARD)
#undef REPLY_HARD
    default:
        return true;
    }
}
