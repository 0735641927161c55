// SPDX-License-Identifier: Apache-2.0
// Handshake (handshake.h). Anything out of order, of a wrong type or undecodable fails it for good; the caller closes.
#include "consensus/peer/handshake.h"
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>

static void frame_put(struct buf *to, enum frame_type type, struct span envelope)
{
    frame_encode_head(to, type, 0, envelope, 0);
}

static void handshake_init(struct handshake *h, struct span secret, const struct peer_hello *own,
                           enum handshake_state state)
{
    assert(secret.len > 0);
    *h = (struct handshake){.state = state, .secret = secret, .own = *own};
    buf_init(&h->transcript);
}

void handshake_deinit(struct handshake *h)
{
    buf_deinit(&h->transcript);
}

static enum rc fail(struct handshake *h, enum rc rc)
{
    h->state = HANDSHAKE_FAILED;
    return rc;
}

// Refuses on our own account.
static enum rc refuse(struct handshake *h, enum peer_refusal why, const char *text)
{
    h->refusal = why;
    snprintf(h->text, sizeof(h->text), "%s", text);
    switch (why) {
    case REFUSED_SECRET:
        return fail(h, RC_PEER_SECRET);
    case REFUSED_VERSION:
        return fail(h, RC_PEER_VERSION);
    case REFUSED_IDENTITY:
    case REFUSED_CLUSTER:
    case REFUSED_NAME:
    case REFUSED_SELF:
        return fail(h, RC_PEER_IDENTITY);
    default:
        return fail(h, RC_DENIED);
    }
}

static void mac_compute(const struct handshake *h, const char *role, uint8_t *out)
{
    struct buf b;
    buf_init(&b);
    buf_str16(&b, span_str(role));
    buf_span_bytes(&b, buf_span(&h->transcript));
    unsigned int len = 0;
    const uint8_t *mac = HMAC(EVP_sha256(), h->secret.ptr, (int)h->secret.len, b.ptr, b.len, out, &len);
    assert(mac != NULL);
    assert(len == PEER_MAC_BYTES);
    buf_deinit(&b);
}

static bool mac_is_right(const struct handshake *h, const char *role, const struct peer_proof *p)
{
    uint8_t mac[PEER_MAC_BYTES];
    mac_compute(h, role, mac);
    return p->has_mac && CRYPTO_memcmp(mac, p->mac, PEER_MAC_BYTES) == 0;
}

static void proof_put(const struct handshake *h, const char *role, enum peer_refusal why, const char *text,
                      struct buf *to)
{
    struct peer_proof p = {.has_mac = why != REFUSED_SECRET, .refusal = why};
    if (p.has_mac) {
        mac_compute(h, role, p.mac);
    }
    snprintf(p.text, sizeof(p.text), "%s", text);
    struct buf envelope;
    buf_init(&envelope);
    peer_proof_encode(&envelope, &p);
    frame_put(to, FRAME_PROOF, buf_span(&envelope));
    buf_deinit(&envelope);
}

enum peer_refusal hello_judge(const struct peer_hello *own, const struct peer_hello *peer, char *text_out)
{
    static const uint8_t blank[CLUSTER_ID_BYTES];
    text_out[0] = 0;
    if (strcmp(own->name, peer->name) == 0) {
        snprintf(text_out, PEER_TEXT_MAX + 1, "both ends of the connection are node %s", own->name);
        return REFUSED_SELF;
    }
    if (peer->protocol_min > own->protocol_max || own->protocol_min > peer->protocol_max) {
        snprintf(text_out, PEER_TEXT_MAX + 1, "%s speaks versions %u to %u of the protocol between nodes, %s %u to %u",
                 peer->name, peer->protocol_min, peer->protocol_max, own->name, own->protocol_min, own->protocol_max);
        return REFUSED_VERSION;
    }
    if (memcmp(own->cluster_id, blank, CLUSTER_ID_BYTES) != 0 &&
        memcmp(peer->cluster_id, blank, CLUSTER_ID_BYTES) != 0 &&
        memcmp(own->cluster_id, peer->cluster_id, CLUSTER_ID_BYTES) != 0) {
        snprintf(text_out, PEER_TEXT_MAX + 1, "%s and %s are members of different clusters", own->name, peer->name);
        return REFUSED_CLUSTER;
    }
    return REFUSED_NONE;
}

static void protocol_agree(struct handshake *h)
{
    h->protocol = h->own.protocol_max < h->peer.protocol_max ? h->own.protocol_max : h->peer.protocol_max;
    assert(h->protocol >= h->own.protocol_min);
}

void handshake_dial(struct handshake *h, struct span secret, const struct peer_hello *own, const char *expected,
                    struct buf *to)
{
    handshake_init(h, secret, own, HANDSHAKE_DIALLED);
    snprintf(h->expected, sizeof(h->expected), "%s", expected);
    struct buf envelope;
    buf_init(&envelope);
    peer_hello_encode(&envelope, own, false);
    buf_str32(&h->transcript, buf_span(&envelope));
    frame_put(to, FRAME_HELLO, buf_span(&envelope));
    buf_deinit(&envelope);
}

void handshake_listen(struct handshake *h, struct span secret, const struct peer_hello *own)
{
    handshake_init(h, secret, own, HANDSHAKE_LISTENING);
}

static enum rc on_hello(struct handshake *h, const struct frame *f, struct buf *to)
{
    if (f->type != FRAME_HELLO || peer_hello_decode(f->envelope, false, &h->peer) != RC_OK) {
        return fail(h, RC_MALFORMED);
    }
    h->own.lane = h->peer.lane;
    buf_str32(&h->transcript, f->envelope);
    struct buf envelope;
    buf_init(&envelope);
    peer_hello_encode(&envelope, &h->own, true);
    buf_str32(&h->transcript, buf_span(&envelope));
    frame_put(to, FRAME_CHALLENGE, buf_span(&envelope));
    buf_deinit(&envelope);
    h->state = HANDSHAKE_CHALLENGED;
    return RC_PENDING;
}

static enum rc on_challenge(struct handshake *h, const struct frame *f, struct buf *to)
{
    if (f->type != FRAME_CHALLENGE || peer_hello_decode(f->envelope, true, &h->peer) != RC_OK) {
        return fail(h, RC_MALFORMED);
    }
    buf_str32(&h->transcript, f->envelope);
    char text[PEER_TEXT_MAX + 1];
    enum peer_refusal why = hello_judge(&h->own, &h->peer, text);
    if (why == REFUSED_NONE && strcmp(h->expected, h->peer.name) != 0) {
        why = REFUSED_NAME;
        snprintf(text, sizeof(text), "%s was dialled and %s answers", h->expected, h->peer.name);
    }
    // A member of another cluster gets the proof nevertheless: only its own can tell that it is one.
    if (why != REFUSED_NONE && why != REFUSED_CLUSTER) {
        return refuse(h, why, text);
    }
    proof_put(h, "warren dial", REFUSED_NONE, "", to);
    h->state = HANDSHAKE_PROVEN;
    return RC_PENDING;
}

static enum rc on_dialler_proof(struct handshake *h, const struct frame *f, struct buf *to)
{
    struct peer_proof p;
    if (f->type != FRAME_PROOF || peer_proof_decode(f->envelope, &p) != RC_OK) {
        return fail(h, RC_MALFORMED);
    }
    if (!mac_is_right(h, "warren dial", &p)) {
        const char *text = "the cluster secrets of the two nodes differ";
        proof_put(h, "warren accept", REFUSED_SECRET, text, to);
        return refuse(h, REFUSED_SECRET, text);
    }
    h->is_peer_proven = true;
    char text[PEER_TEXT_MAX + 1];
    enum peer_refusal why = hello_judge(&h->own, &h->peer, text);
    if (why != REFUSED_NONE) {
        proof_put(h, "warren accept", why, text, to);
        return refuse(h, why, text);
    }
    protocol_agree(h);
    h->state = HANDSHAKE_JUDGE;
    return RC_OK;
}

static enum rc on_acceptor_proof(struct handshake *h, const struct frame *f)
{
    struct peer_proof p;
    if (f->type != FRAME_PROOF || peer_proof_decode(f->envelope, &p) != RC_OK) {
        return fail(h, RC_MALFORMED);
    }
    h->is_peer_proven = mac_is_right(h, "warren accept", &p);
    if (p.refusal != REFUSED_NONE) {
        h->is_refused_by_peer = true;
        return refuse(h, p.refusal, p.text);
    }
    if (!h->is_peer_proven) {
        return refuse(h, REFUSED_SECRET, "the answering node does not know the cluster secret");
    }
    char text[PEER_TEXT_MAX + 1];
    enum peer_refusal why = hello_judge(&h->own, &h->peer, text);
    if (why != REFUSED_NONE) {
        return refuse(h, why, text);
    }
    protocol_agree(h);
    h->state = HANDSHAKE_DONE;
    return RC_OK;
}

enum rc handshake_step(struct handshake *h, const struct frame *f, struct buf *to)
{
    switch (h->state) {
    case HANDSHAKE_DIALLED:
        return on_challenge(h, f, to);
    case HANDSHAKE_PROVEN:
        return on_acceptor_proof(h, f);
    case HANDSHAKE_LISTENING:
        return on_hello(h, f, to);
    case HANDSHAKE_CHALLENGED:
        return on_dialler_proof(h, f, to);
    case HANDSHAKE_JUDGE:
    case HANDSHAKE_DONE:
    case HANDSHAKE_FAILED:
        break;
    }
    return fail(h, RC_MALFORMED);
}

void handshake_accept(struct handshake *h, struct buf *to)
{
    assert(h->state == HANDSHAKE_JUDGE);
    proof_put(h, "warren accept", REFUSED_NONE, "", to);
    h->state = HANDSHAKE_DONE;
}

void handshake_refuse(struct handshake *h, enum peer_refusal why, const char *text, struct buf *to)
{
    assert(h->state == HANDSHAKE_JUDGE);
    assert(why != REFUSED_NONE);
    proof_put(h, "warren accept", why, text, to);
    (void)refuse(h, why, text);  // The caller knows that it refused.
}
