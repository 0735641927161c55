// SPDX-License-Identifier: Apache-2.0
// Hello, proof and beat to and from protobuf (hello.h). Rare messages (a handshake each, ten beats a second):
// protobuf-c's own allocation is good enough. The decoders copy into structs of fixed size and so bound every
// string at once.
#include "consensus/peer/hello.h"
#include "consensus/peer/pb.h"
#include "proto/cluster_peer.pb-c.h"

typedef Warren__Peer__Hello hello_pb;

// Names and addresses reach logs before their sender has proven anything.
static bool is_printable(const char *s)
{
    for (; *s; s++) {
        if ((unsigned char)*s <= ' ' || *s == 0x7f) {
            return false;
        }
    }
    return true;
}

void peer_hello_encode(struct buf *to, const struct peer_hello *h, bool is_challenge)
{
    assert(h->name[0] != 0);
    assert(h->fsms_len <= PEER_FSMS_MAX);
    Warren__Peer__FsmVersion fsms[PEER_FSMS_MAX];
    Warren__Peer__FsmVersion *fsm_ptrs[PEER_FSMS_MAX];
    for (uint32_t i = 0; i < h->fsms_len; i++) {
        warren__peer__fsm_version__init(&fsms[i]);
        fsms[i].name = (char *)h->fsms[i].name;
        fsms[i].version = h->fsms[i].version;
        fsm_ptrs[i] = &fsms[i];
    }
    hello_pb m;
    warren__peer__hello__init(&m);
    m.magic = PEER_MAGIC;
    m.protocol_min = h->protocol_min;
    m.protocol_max = h->protocol_max;
    m.cluster_id = pb_borrow(h->cluster_id, CLUSTER_ID_BYTES);
    m.node_name = (char *)h->name;
    m.node_id = h->node_id;
    m.store_id = pb_borrow(h->store_id, STORE_ID_BYTES);
    m.incarnation = h->incarnation;
    m.lane = h->lane;
    m.is_blank = h->is_blank;
    m.list_hash = h->list_hash;
    m.feature_level = h->feature_level;
    m.n_fsm_versions = h->fsms_len;
    m.fsm_versions = fsm_ptrs;
    m.address = (char *)h->address;
    m.nonce = pb_borrow(h->nonce, PEER_NONCE_BYTES);
    if (is_challenge) {
        Warren__Peer__Challenge c;
        warren__peer__challenge__init(&c);
        c.hello = &m;
        pb_pack(to, &c.base);
    } else {
        pb_pack(to, &m.base);
    }
}

static bool hello_take(const hello_pb *m, struct peer_hello *out)
{
    *out = (struct peer_hello){
        .protocol_min = m->protocol_min,
        .protocol_max = m->protocol_max,
        .node_id = m->node_id,
        .incarnation = m->incarnation,
        .lane = m->lane,
        .is_blank = m->is_blank,
        .list_hash = m->list_hash,
        .feature_level = m->feature_level,
    };
    if (m->magic != PEER_MAGIC || m->node_name[0] == 0 || m->incarnation == 0 || m->lane >= LANE_COUNT ||
        m->protocol_min > m->protocol_max || m->is_blank != (m->node_id == 0)) {
        return false;
    }
    if (m->n_fsm_versions > PEER_FSMS_MAX) {
        return false;
    }
    for (size_t i = 0; i < m->n_fsm_versions; i++) {
        out->fsms[i].version = m->fsm_versions[i]->version;
        if (!pb_text(out->fsms[i].name, PEER_FSM_NAME_MAX, m->fsm_versions[i]->name)) {
            return false;
        }
    }
    out->fsms_len = (uint32_t)m->n_fsm_versions;
    return is_printable(m->node_name) && is_printable(m->address) &&
           pb_text(out->name, PEER_NAME_MAX, m->node_name) &&
           pb_text(out->address, PEER_ADDRESS_MAX, m->address) &&
           pb_bytes(out->cluster_id, CLUSTER_ID_BYTES, m->cluster_id) &&
           pb_bytes(out->store_id, STORE_ID_BYTES, m->store_id) &&
           pb_bytes(out->nonce, PEER_NONCE_BYTES, m->nonce);
}

enum rc peer_hello_decode(struct span envelope, bool is_challenge, struct peer_hello *out)
{
    bool is_good = false;
    if (is_challenge) {
        Warren__Peer__Challenge *c = warren__peer__challenge__unpack(NULL, envelope.len, envelope.ptr);
        if (c) {
            is_good = c->hello && hello_take(c->hello, out);
            warren__peer__challenge__free_unpacked(c, NULL);
        }
    } else {
        hello_pb *m = warren__peer__hello__unpack(NULL, envelope.len, envelope.ptr);
        if (m) {
            is_good = hello_take(m, out);
            warren__peer__hello__free_unpacked(m, NULL);
        }
    }
    return is_good ? RC_OK : RC_MALFORMED;
}

void peer_proof_encode(struct buf *to, const struct peer_proof *p)
{
    Warren__Peer__Proof m;
    warren__peer__proof__init(&m);
    if (p->has_mac) {
        m.mac = pb_borrow(p->mac, PEER_MAC_BYTES);
    }
    m.refusal = (Warren__Peer__Refusal)p->refusal;
    m.text = (char *)p->text;
    pb_pack(to, &m.base);
}

enum rc peer_proof_decode(struct span envelope, struct peer_proof *out)
{
    *out = (struct peer_proof){.has_mac = false};
    Warren__Peer__Proof *m = warren__peer__proof__unpack(NULL, envelope.len, envelope.ptr);
    if (!m) {
        return RC_MALFORMED;
    }
    // A reason from a later version is a refusal all the same.
    out->refusal = (uint32_t)m->refusal < REFUSED_COUNT ? (enum peer_refusal)m->refusal : REFUSED_DENIED;
    out->has_mac = m->mac.len > 0;
    bool is_good = (!out->has_mac || pb_bytes(out->mac, PEER_MAC_BYTES, m->mac)) &&
                   pb_text(out->text, PEER_TEXT_MAX, m->text);
    warren__peer__proof__free_unpacked(m, NULL);
    // The text goes to a log: nothing in it may end a line or steer a terminal.
    for (char *c = out->text; *c; c++) {
        *c = (unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c;
    }
    return is_good ? RC_OK : RC_MALFORMED;
}

void peer_beat_encode(struct buf *to, const struct peer_beat *b)
{
    Warren__Peer__Beat m;
    warren__peer__beat__init(&m);
    m.incarnation = b->incarnation;
    m.number = b->number;
    m.echo = b->echo;
    m.worker_progress = b->worker_progress;
    m.wal_age_ms = b->wal_age_ms;
    m.meta_commit = b->meta_commit;
    m.alarms = (uint32_t)b->alarms;
    pb_pack(to, &m.base);
}

enum rc peer_beat_decode(struct span envelope, struct peer_beat *out)
{
    Warren__Peer__Beat *m = warren__peer__beat__unpack(NULL, envelope.len, envelope.ptr);
    if (!m) {
        return RC_MALFORMED;
    }
    *out = (struct peer_beat){
        .incarnation = m->incarnation,
        .number = m->number,
        .echo = m->echo,
        .worker_progress = m->worker_progress,
        .wal_age_ms = m->wal_age_ms,
        .meta_commit = m->meta_commit,
        .alarms = m->alarms,
    };
    warren__peer__beat__free_unpacked(m, NULL);
    return RC_OK;
}
