// SPDX-License-Identifier: Apache-2.0
// The handshake of one lane (decision 17): both sides prove that they know the cluster secret, without sending it, and
// bind the proof to who they say they are.
//
//   dialler                              acceptor
//   HELLO{hello, nonce}            ->
//                                  <-    CHALLENGE{hello, nonce}
//   PROOF{mac "dial"}              ->                             checks the mac, then asks its own node: may it?
//                                  <-    PROOF{mac "accept"}      or PROOF{refusal, text, mac unless the secret is wrong}
//
// mac = HMAC-SHA256(secret, role, hello envelope, challenge envelope), each with its length, so it covers both nonces,
// names, ids, versions, and the lane. The dialler proves first: who merely connects gets nothing to guess at.
// Pure: bytes in, bytes out, randomness by the caller. Thread: the link's owner.
#pragma once
#include "consensus/peer/hello.h"

enum handshake_state {
    HANDSHAKE_DIALLED,     // Dialler: waits for the challenge.
    HANDSHAKE_PROVEN,      // Dialler: waits for the acceptor's proof.
    HANDSHAKE_LISTENING,   // Acceptor: waits for the hello.
    HANDSHAKE_CHALLENGED,  // Acceptor: waits for the dialler's proof.
    HANDSHAKE_JUDGE,       // Acceptor: the dialler knows the secret; handshake_accept or handshake_refuse is due.
    HANDSHAKE_DONE,
    HANDSHAKE_FAILED,
};

struct handshake {
    enum handshake_state state;
    struct span secret;         // Borrowed for the struct's life; not empty.
    struct peer_hello own;      // With our nonce and the lane.
    struct peer_hello peer;     // Valid from CHALLENGED / PROVEN on; to be believed from JUDGE / DONE on, or if
    bool is_peer_proven;        // this is set (a refusal by an acceptor that knows the secret).
    uint32_t protocol;          // Version agreed on.
    struct buf transcript;      // Hello and challenge envelopes with their lengths.
    enum peer_refusal refusal;  // Why it failed, by either side; REFUSED_NONE if by malformed bytes.
    bool is_refused_by_peer;
    char expected[PEER_NAME_MAX + 1];  // Dialler: the name that must answer.
    char text[PEER_TEXT_MAX + 1];      // The refusal in words.
};

// Begins as dialler: appends the HELLO frame to `to`. `own` carries the lane and a fresh nonce.
void handshake_dial(struct handshake *h, struct span secret, const struct peer_hello *own, const char *expected,
                    struct buf *to);
// Begins as acceptor; the lane is taken from the dialler's hello.
void handshake_listen(struct handshake *h, struct span secret, const struct peer_hello *own);
void handshake_deinit(struct handshake *h);

// Takes a frame of the other side and appends what is to be answered to `to` (also with an error: a refusal to be sent
// before closing). RC_OK: state is JUDGE (acceptor) or DONE (dialler). RC_PENDING: another frame is due.
// RC_MALFORMED; RC_PEER_SECRET, RC_PEER_VERSION, RC_PEER_IDENTITY, RC_DENIED (refusal, text): the link is to be closed.
MUST_USE enum rc handshake_step(struct handshake *h, const struct frame *f, struct buf *to);
// Acceptor in JUDGE: ends it well, or refuses with a reason and words. Appends the frame.
void handshake_accept(struct handshake *h, struct buf *to);
void handshake_refuse(struct handshake *h, enum peer_refusal why, const char *text, struct buf *to);

// What a node has against `peer`, without knowing more than both hellos: its own name, another cluster, no version in
// common. REFUSED_NONE if nothing; else *text_out (PEER_TEXT_MAX + 1 bytes) says it.
enum peer_refusal hello_judge(const struct peer_hello *own, const struct peer_hello *peer, char *text_out);
