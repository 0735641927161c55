// SPDX-License-Identifier: Apache-2.0
// Result codes: one list for the whole program. A function that can fail returns `enum rc` and is MUST_USE.
//
// Categories say what a caller may do: RETRY (the same call may succeed later), PEER (another node's fault),
// CLIENT (a client's fault; tell it), DISK (fatal for the store, engine-notes §1.9), BUG (a broken invariant).
#pragma once

#define MUST_USE __attribute__((warn_unused_result))

#define RC_LIST(X)                                                                                 \
    X(OK, NONE, "ok")                                                                              \
    X(PENDING, NONE, "not finished yet; the result arrives later")                                 \
    X(MORE, NONE, "more input is needed")                                                          \
    X(COLD, NONE, "the data is on disk only; read it through the cold thread")                     \
    X(FULL, RETRY, "a bounded buffer is full")                                                     \
    X(BUSY, RETRY, "the operation is already in progress")                                         \
    X(NOT_LEADER, RETRY, "this node does not lead the group")                                      \
    X(NOT_CONNECTED, RETRY, "no link to the node")                                                 \
    X(TIMEOUT, RETRY, "no answer in time")                                                         \
    X(NO_QUORUM, RETRY, "no majority of the members is reachable")                                 \
    X(SHUTDOWN, RETRY, "the node is stopping")                                                     \
    X(SESSION_ENDED, RETRY, "the session has ended")                                               \
    X(GAP, PEER, "a sequence number is missing")                                                   \
    X(STALE, PEER, "the message belongs to the past")                                              \
    X(PEER_REGRESSED, PEER, "a replica lost what it had promised")                                 \
    X(PEER_IDENTITY, PEER, "the node is known under another store id")                             \
    X(PEER_VERSION, PEER, "no protocol version in common")                                         \
    X(PEER_SECRET, PEER, "the cluster secret does not match")                                      \
    X(MALFORMED, CLIENT, "the bytes do not decode")                                                \
    X(TOO_LARGE, CLIENT, "larger than the limit")                                                  \
    X(NOT_FOUND, CLIENT, "no such object")                                                         \
    X(EXISTS, CLIENT, "the object exists already")                                                 \
    X(CONFLICT, CLIENT, "a condition does not hold")                                               \
    X(DENIED, CLIENT, "access refused")                                                            \
    X(INVALID, CLIENT, "an argument is not valid")                                                 \
    X(UNSUPPORTED, CLIENT, "not supported")                                                        \
    X(NO_MEMORY, RETRY, "out of memory")                                                           \
    X(IO, DISK, "the disk failed")                                                                 \
    X(NO_SPACE, DISK, "no space left on the disk")                                                 \
    X(CORRUPT, DISK, "data on disk is damaged")                                                    \
    X(NO_FILE, DISK, "no such file")                                                               \
    X(SYSTEM, RETRY, "the operating system refused the call")                                      \
    X(BUG, BUG, "internal error")

enum rc {
#define RC_ENUM(name, category, text) RC_##name,
    RC_LIST(RC_ENUM)
#undef RC_ENUM
        RC_COUNT
};

enum rc_category {
    RC_CATEGORY_NONE,
    RC_CATEGORY_RETRY,
    RC_CATEGORY_PEER,
    RC_CATEGORY_CLIENT,
    RC_CATEGORY_DISK,
    RC_CATEGORY_BUG
};

// Both return static text / a constant for every value, also unknown ones.
const char *rc_text(enum rc rc);
enum rc_category rc_category(enum rc rc);

// Returns early with the error of `expr`.
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        enum rc try_rc_ = (expr);                                                                  \
        if (try_rc_ != RC_OK) {                                                                    \
            return try_rc_;                                                                        \
        }                                                                                          \
    } while (0)
