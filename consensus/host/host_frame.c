// SPDX-License-Identifier: Apache-2.0
// Frames: what the groups have for one peer within a turn is gathered into few.
//
// Every append frame says how many bytes were sent to that node in all; the receiver echoes the number once what came
// with it is durable there. Between sent and echoed lie at most LIMIT_PEER_IN_FLIGHT_BYTES.
//
// Acknowledgements of one group to one replica within a turn are joined into the newest.
#include "consensus/host/host_core.h"
#include <assert.h>

enum {
    ACKS_PER_FRAME = 4096,
    VOTES_FRAME_BYTES = 128 << 10,
};

// ---- packing -------------------------------------------------------------------------------------------------------

static void put_varint(struct buf *to, uint64_t v)
{
    while (v >= 0x80) {
        buf_u8(to, (uint8_t)(v | 0x80));
        v >>= 7;
    }
    buf_u8(to, (uint8_t)v);
}

void host_pack_item(struct buf *to, const ProtobufCMessage *m)
{
    const size_t size = protobuf_c_message_get_packed_size(m);
    buf_u8(to, 1 << 3 | 2);  // Field 1, length-delimited.
    put_varint(to, size);
    const size_t written = protobuf_c_message_pack(m, buf_extend(to, size));
    assert(written == size);
}

// Field 2, a number: `sent` and `received` of the batches.
static void pack_total(struct buf *to, uint64_t v)
{
    buf_u8(to, 2 << 3 | 0);
    put_varint(to, v);
}

// Fills a header from a message; `runs` is storage that must outlive it.
Cluster__AppendHeader host_frame_header(const struct consensus_msg *m, uint64_t *runs, uint64_t bytes)
{
    Cluster__AppendHeader a = CLUSTER__APPEND_HEADER__INIT;
    a.group = m->group;
    a.from = m->from;
    a.to = m->to;
    a.term = m->term;
    a.prev_index = m->index;
    a.prev_term = m->index_term;
    a.commit = m->commit;
    a.read_round = m->read_round;
    a.count = m->count;
    for (uint8_t i = 0; i < m->runs_count; i++) {
        runs[i * 2] = m->runs[i].first;
        runs[i * 2 + 1] = m->runs[i].term;
    }
    a.runs = runs;
    a.n_runs = m->count > 0 ? m->runs_count * 2u : 0;
    a.bytes = bytes;
    return a;
}

// ---- frames --------------------------------------------------------------------------------------------------------

bool host_frame_room(struct host *h, struct peer *p)
{
    struct net *net = h->config.net;
    return p->sent - p->echoed < LIMIT_PEER_IN_FLIGHT_BYTES &&
           net->queued(net, p->node, LANE_LOG) + p->raw_bytes + p->append.len < LIMIT_LANE_OUTPUT_BYTES / 2;
}

void host_frame_append_flush(struct host *h, struct peer *p)
{
    if (p->append.len == 0) {
        return;
    }
    pack_total(&p->append, p->sent);
    struct net *net = h->config.net;
    const enum rc rc =
        net->send(net, p->node, LANE_LOG, FRAME_APPEND, buf_span(&p->append), p->iov, p->iov_count, false);
    p->append.len = 0;
    p->iov_count = 0;
    p->raw_bytes = 0;
    h->metrics.appends_sent++;
    if (rc != RC_OK) {
        host_frame_lost(h, p);
    }
}

// One batch: the acknowledgements there are, and the receipt of one worker of the peer.
static enum rc acks_send(struct host *h, struct peer *p, uint32_t worker)
{
    struct buf *b = &h->scratch;
    b->len = 0;
    for (uint32_t i = 0; i < p->acks_count; i++) {
        const struct ack *a = &p->acks[i];
        Cluster__Ack w = CLUSTER__ACK__INIT;
        w.group = a->group;
        w.from = a->from;
        w.to = a->to;
        w.term = a->term;
        w.index = a->index;
        w.index_term = a->index_term;
        w.acked = a->acked;
        w.hint_index = a->hint_index;
        w.hint_term = a->hint_term;
        w.read_round = a->read_round;
        w.commit = a->commit;
        w.is_rejected = a->is_rejected;
        host_pack_item(b, &w.base);
    }
    pack_total(b, p->inflow[worker].receipt);
    buf_u8(b, 3 << 3 | 0);  // Field 3: whose.
    put_varint(b, worker);
    struct net *net = h->config.net;
    const enum rc rc = net->send(net, p->node, LANE_LOG, FRAME_ACK, buf_span(b), NULL, 0, false);
    if (rc != RC_FULL) {  // Else kept; goes with the next turn.
        p->acks_count = 0;
        p->inflow[worker].owes_receipt = false;
    }
    return rc;
}

static void acks_flush(struct host *h, struct peer *p)
{
    for (uint32_t k = 0; k < p->inflow_count; k++) {
        if (p->inflow[k].owes_receipt && acks_send(h, p, k) == RC_FULL) {
            return;
        }
    }
    if (p->acks_count > 0) {
        (void)acks_send(h, p, 0);  // Full: kept. Else lost like by a link.
    }
}

static void votes_flush(struct host *h, struct peer *p)
{
    if (p->votes.len == 0) {
        return;
    }
    struct net *net = h->config.net;
    // Lost votes are asked for again by the candidates' timers.
    (void)net->send(net, p->node, LANE_CONTROL, FRAME_VOTES, buf_span(&p->votes), NULL, 0, false);
    p->votes.len = 0;
}

void host_frame_flush(struct host *h, struct peer *p)
{
    host_frame_append_flush(h, p);
    acks_flush(h, p);
    votes_flush(h, p);
}

// ---- single messages -----------------------------------------------------------------------------------------------

static void add_ack(struct host *h, struct group *g, struct peer *p, const struct consensus_msg *m)
{
    const struct ack a = {
        .group = m->group,
        .from = m->from,
        .to = m->to,
        .term = m->term,
        .index = m->index,
        .index_term = m->index_term,
        .acked = m->acked,
        .hint_index = m->hint_index,
        .hint_term = m->hint_term,
        .read_round = m->read_round,
        .commit = m->commit,
        .is_rejected = m->is_rejected,
    };
    if (g->work && g->work->ack_slot < p->acks_count) {
        struct ack *old = &p->acks[g->work->ack_slot];
        if (old->group == a.group && old->to == a.to && old->term == a.term && !old->is_rejected && !a.is_rejected) {
            const uint64_t acked = old->acked > a.acked ? old->acked : a.acked;
            const uint64_t round = old->read_round > a.read_round ? old->read_round : a.read_round;
            *old = a;
            old->acked = acked;
            old->read_round = round;
            return;
        }
    }
    if (p->acks_count == ACKS_PER_FRAME) {
        acks_flush(h, p);
        if (p->acks_count > 0) {
            return;  // The lane takes nothing: drop it, as a link may.
        }
    }
    if (p->acks_count == p->acks_cap) {
        p->acks_cap = p->acks_cap ? p->acks_cap * 2 : 64;
        p->acks = mem_realloc(p->acks, p->acks_cap * sizeof(struct ack));
    }
    if (g->work) {
        g->work->ack_slot = p->acks_count;
    }
    p->acks[p->acks_count++] = a;
}

static void add_vote(struct host *h, struct peer *p, const struct consensus_msg *m)
{
    Cluster__Vote v = CLUSTER__VOTE__INIT;
    v.type = m->type;
    v.group = m->group;
    v.from = m->from;
    v.to = m->to;
    v.term = m->term;
    v.index = m->index;
    v.index_term = m->index_term;
    v.commit = m->commit;
    v.acked = m->acked;
    v.fsm_version = m->fsm_version;
    v.is_rejected = m->is_rejected;
    v.is_transfer = m->is_transfer;
    host_pack_item(&p->votes, &v.base);
    if (p->votes.len >= VOTES_FRAME_BYTES) {
        votes_flush(h, p);
    }
}

// An append without entries, or one whose entries are the ranges already in p->iov.
void host_frame_append(struct host *h, struct peer *p, const struct consensus_msg *m, uint64_t bytes)
{
    uint64_t runs[CONSENSUS_TERM_RUNS * 2];
    const Cluster__AppendHeader a = host_frame_header(m, runs, bytes);
    host_pack_item(&p->append, &a.base);
    p->sent += bytes + HOST_APPEND_COST;
    p->raw_bytes += bytes;
    h->metrics.entries_sent += m->count;
    if (p->append.len >= HOST_FRAME_ENVELOPE || p->raw_bytes >= LIMIT_FRAME_BYTES || p->iov_count == HOST_FRAME_IOV) {
        host_frame_append_flush(h, p);
    }
}

void host_frame_message(struct host *h, struct group *g, uint32_t node, const struct consensus_msg *m)
{
    struct peer *p = host_peer(h, node);
    switch (m->type) {
    case MSG_APPEND_REPLY:
        add_ack(h, g, p, m);
        break;
    case MSG_APPEND: {
        struct consensus_msg empty = *m;
        empty.count = 0;
        empty.runs_count = 0;
        host_frame_append(h, p, &empty, 0);
        break;
    }
    default:
        add_vote(h, p, m);
    }
}

void host_frame_unknown(struct host *h, uint32_t node, uint64_t group, uint64_t replica)
{
    Cluster__UnknownGroup u = CLUSTER__UNKNOWN_GROUP__INIT;
    u.group = group;
    u.replica = replica;
    struct buf *b = &h->scratch;
    b->len = 0;
    const size_t size = cluster__unknown_group__get_packed_size(&u);
    cluster__unknown_group__pack(&u, buf_extend(b, size));
    struct net *net = h->config.net;
    // If it gets lost the group is asked for again by the next message.
    (void)net->send(net, node, LANE_LOG, FRAME_UNKNOWN_GROUP, buf_span(b), NULL, 0, false);
}

// ---- loss ---------------------------------------------------------------------------------------------------------

// What was on its way to `p` is lost or will not be sent: the engines are told by the walk that follows.
void host_frame_forget(struct peer *p)
{
    p->append.len = 0;
    p->iov_count = 0;
    p->raw_bytes = 0;
    p->echoed = p->sent;
    p->acks_count = 0;
    for (uint32_t k = 0; k < p->inflow_count; k++) {
        p->inflow[k].owes_receipt = true;  // The last receipt may have been lost.
    }
    if (p->fragment.group) {
        host_fragment_end(p);
    }
    p->is_woken = true;
}

// The frame could not be handed over: as if the link had lost it.
void host_frame_lost(struct host *h, struct peer *p)
{
    host_frame_forget(p);
    host_liveness_reset(h, p);
}
