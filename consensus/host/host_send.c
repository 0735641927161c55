// SPDX-License-Identifier: Apache-2.0
// Sending: what the groups have for one peer is gathered into few frames.
//
// Appends: the host pulls. A group on the ready list is asked, peer by peer, what it may send next (next_send); the
// entries' bytes go out straight from the arena as ranges behind the frame's envelope. Entries that left memory are
// read back for the peer at its own pace (one read per group and peer at a time, and a window's worth for all groups of
// a peer), so a slow follower holds no memory.
// An entry too large for a frame goes in fragments, one entry at a time per peer, each fragment only while little is
// unacknowledged, so that other groups' frames pass in between.
//
// The window: every append frame says how many bytes were sent to that node in all; the receiver echoes the number once
// what came with it is durable there. Between sent and echoed lie at most LIMIT_PEER_IN_FLIGHT_BYTES. Groups that find
// no room are remembered at the peer and asked again when there is some.
//
// Acknowledgements of one group to one replica within a turn are joined into the newest.
#include "consensus/host/host_core.h"
#include <assert.h>
#include <stdlib.h>

enum {
    APPEND_COST = 64,        // What an append without entries counts for in the window.
    SEND_STEPS_MAX = 1024,   // Frames' worth of one group to one peer in one go.
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
static Cluster__AppendHeader append_header(const struct consensus_msg *m, uint64_t *runs, uint64_t bytes)
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

bool host_send_room(struct host *h, struct peer *p)
{
    struct net *net = h->config.net;
    return p->sent - p->echoed < LIMIT_PEER_IN_FLIGHT_BYTES &&
           net->queued(net, p->node, LANE_LOG) + p->raw_bytes + p->append.len < LIMIT_LANE_OUTPUT_BYTES / 2;
}

// The frame could not be handed over: as if the link had lost it.
static void frame_lost(struct host *h, struct peer *p)
{
    host_send_lost(h, p);
    host_liveness_reset(h, p);
}

static void append_flush(struct host *h, struct peer *p)
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
        frame_lost(h, p);
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

void host_send_flush(struct host *h, struct peer *p)
{
    append_flush(h, p);
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
static void add_append(struct host *h, struct peer *p, const struct consensus_msg *m, uint64_t bytes)
{
    uint64_t runs[CONSENSUS_TERM_RUNS * 2];
    const Cluster__AppendHeader a = append_header(m, runs, bytes);
    host_pack_item(&p->append, &a.base);
    p->sent += bytes + APPEND_COST;
    p->raw_bytes += bytes;
    h->metrics.entries_sent += m->count;
    if (p->append.len >= HOST_FRAME_ENVELOPE || p->raw_bytes >= LIMIT_FRAME_BYTES || p->iov_count == HOST_FRAME_IOV) {
        append_flush(h, p);
    }
}

void host_send_message(struct host *h, struct group *g, uint32_t node, const struct consensus_msg *m)
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
        add_append(h, p, &empty, 0);
        break;
    }
    default:
        add_vote(h, p, m);
    }
}

void host_send_unknown(struct host *h, uint32_t node, uint64_t group, uint64_t replica)
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

// ---- blocked groups ------------------------------------------------------------------------------------------------

static struct blocked *blocked_find(const struct group *g, const struct peer *p)
{
    struct blocked *b = g->work ? g->work->blocked : NULL;
    while (b && b->peer != p) {
        b = b->next;
    }
    return b;
}

// `index` is what it has to send next. is_large: it waits for its turn to send in pieces. Else for room.
static void block(struct group *g, struct peer *p, uint64_t index, bool is_large)
{
    struct group_work *w = group_work(g);
    struct blocked *b = blocked_find(g, p);
    if (b == NULL) {
        b = mem_zalloc(sizeof(*b));
        b->group = g;
        b->peer = p;
        b->next = w->blocked;
        w->blocked = b;
        list_add_tail(&p->blocked, &b->link);
    }
    const uint64_t large = is_large || b->large == index ? index : 0;
    p->large_count += (uint32_t)(large != 0) - (uint32_t)(b->large != 0);
    b->large = large;
}

static void unblock(struct blocked *b)
{
    struct blocked **at = &b->group->work->blocked;
    while (*at != b) {
        at = &(*at)->next;
    }
    *at = b->next;
    b->peer->large_count -= b->large != 0;
    list_remove(&b->link);
    free(b);
}

// May the next one read what it sends in pieces? One at a time: what is read while another is being sent would be dropped, and
// read again, and so on.
static bool is_large_turn(struct host *h, const struct peer *p)
{
    if (p->fragment.group != NULL) {
        return false;
    }
    const struct group *g = p->large_group != 0 ? map_get(&h->map, p->large_group) : NULL;
    if (g == NULL || group_is_gone(g)) {
        return true;
    }
    const bool is_reading = g->work != NULL && (g->work->feeding & 1ull << p->slot);
    return !is_reading && !(g->flags & GROUP_SEND);
}

static bool is_others_turn(struct host *h, const struct group *g, const struct peer *p)
{
    return p->fragment.group != NULL || (p->large_group != g->id && !is_large_turn(h, p));
}

bool host_send_large_due(struct host *h, struct peer *p)
{
    return p->large_count > 0 && is_large_turn(h, p) && p->feeds < HOST_FEEDS_MAX && host_send_room(h, p);
}

void host_send_unblock(struct host *h, struct peer *p)
{
    // Bounded: whoever finds no room again is put back behind the end of this walk.
    struct list now;
    list_init(&now);
    list_splice(&now, &p->blocked);
    bool is_turn = host_send_large_due(h, p);
    while (!list_is_empty(&now)) {
        struct blocked *b = list_entry(now.next, struct blocked, link);
        struct group *g = b->group;
        if (b->large != 0 && !is_turn) {
            list_remove(&b->link);
            list_add_tail(&p->blocked, &b->link);
            continue;
        }
        if (b->large != 0) {
            is_turn = false;
            p->large_group = g->id;
        }
        unblock(b);
        group_ready(g, GROUP_SEND);
    }
}

// ---- entries -------------------------------------------------------------------------------------------------------

static void fragment_end(struct peer *p)
{
    struct fragment_send *f = &p->fragment;
    struct group *g = f->group;
    f->group = NULL;
    p->large_group = 0;  // The turn is over.
    host_release_later(g->host, f->block);  // The net reads it until it was flushed.
    f->block = NULL;
    p->is_woken = true;
    group_unref(g);
}

// The record is kept until it was sent, whatever the log does with its memory: a peer that stands still is
// given up after two seconds, and two peers must not read the same large record from disk. Takes `block`.
static void fragment_start(struct group *g, struct peer *p, const struct consensus_msg *m, uint64_t total,
                           struct block *block, const uint8_t *ptr)
{
    struct fragment_send *f = &p->fragment;
    assert(f->group == NULL);
    assert(m->count == 1);
    f->group = g;
    f->msg = *m;
    f->offset = 0;
    f->total = total;
    f->count = 0;
    f->is_reading = false;
    f->block = block;
    f->ptr = ptr;
    group_ref(g);
}

// Position of a replica in the configuration, or UINT32_MAX.
static uint32_t position_of(const struct config *c, uint64_t replica)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->members[i].replica_id == replica) {
            return i;
        }
    }
    return UINT32_MAX;
}

// Sends entries from m->index + 1 on out of memory. True if something was sent.
static bool send_entries(struct group *g, struct peer *p, uint32_t i, struct consensus_send *s)
{
    struct host *h = g->host;
    struct consensus_msg *m = &s->msg;
    if (LIMIT_FRAME_BYTES - p->raw_bytes < 4096 || HOST_FRAME_IOV - p->iov_count < 8) {
        append_flush(h, p);
    }
    for (int attempt = 0; attempt < 2; attempt++) {
        int ranges = 0;
        m->count = 0;
        m->runs_count = 0;
        const enum rc rc = glog_ranges(g->log, m->index + 1, s->last, LIMIT_FRAME_BYTES - p->raw_bytes,
                                       p->iov + p->iov_count, HOST_FRAME_IOV - p->iov_count, &ranges,
                                       &m->count, m->runs, CONSENSUS_TERM_RUNS, &m->runs_count);
        const struct blocked *waits = rc == RC_COLD ? blocked_find(g, p) : NULL;
        if (waits != NULL && waits->large == m->index + 1) {
            return false;  // It is not its turn yet.
        }
        if (rc == RC_COLD && p->feeds >= HOST_FEEDS_MAX) {
            block(g, p, m->index + 1, p->large_group == g->id);  // More could not be sent in one window anyway.
            return false;
        }
        if (rc == RC_COLD) {
            host_cold_start(g, p->node, m->to, m->index + 1, s->last, LIMIT_FRAME_BYTES);
            return false;
        }
        if (rc != RC_OK || m->count == 0) {
            return false;  // Compacted under our hands: the engine will ask for a snapshot next time.
        }
        size_t bytes = 0;
        for (int k = 0; k < ranges; k++) {
            bytes += p->iov[p->iov_count + k].iov_len;
        }
        if (p->raw_bytes > 0 && p->raw_bytes + bytes > LIMIT_FRAME_BYTES) {
            append_flush(h, p);  // A record that does not fit into the rest of the frame.
            continue;
        }
        if (bytes > LIMIT_FRAME_BYTES) {
            assert(m->count == 1);
            if (is_others_turn(h, g, p)) {
                block(g, p, m->index + 1, true);
                return false;
            }
            const struct iovec *first = &p->iov[p->iov_count];
            struct block *b = block_of(span_of(first->iov_base, first->iov_len));
            fragment_start(g, p, m, bytes, b != NULL && ranges == 1 ? block_hold(b) : NULL, first->iov_base);
            host_send_fragments(h, p);
            return false;
        }
        p->iov_count += ranges;
        add_append(h, p, m, bytes);
        g->ops->sent(g->replica, i, m->index + m->count, host_now(h));
        return true;
    }
    return false;
}

// Everything the engine has for peer number `i`, as far as there is room.
static void send_peer(struct group *g, struct peer *p, uint32_t i, bool is_news_due)
{
    struct host *h = g->host;
    struct net *net = h->config.net;
    if (p->fragment.group == g || (g->work && (g->work->feeding & 1ull << p->slot))) {
        return;
    }
    if (!net->is_connected(net, p->node, LANE_LOG)) {
        return;  // The reset that comes with the connection wakes us.
    }
    for (int n = 0; n < SEND_STEPS_MAX; n++) {
        struct consensus_send s = {0};
        g->ops->next_send(g->replica, i, &s);
        if (s.kind == SEND_NOTHING) {
            return;
        }
        if (!host_send_room(h, p)) {
            block(g, p, s.msg.index + 1, p->large_group == g->id);
            return;
        }
        if (s.kind == SEND_SNAPSHOT) {
            if (host_snapshot_is_sending(g, s.to->replica_id)) {
                // It asks anew, after a reset: still the same one.
                g->ops->sent(g->replica, i, s.msg.index, host_now(h));
            } else if (!host_snapshot_send(g, p->node, s.to->replica_id)) {
                return;
            }
            continue;  // It may be told who sends, and rounds, meanwhile.
        }
        assert(s.msg.type == MSG_APPEND && s.last >= s.msg.index);
        if (s.last > s.msg.index) {
            if (!send_entries(g, p, i, &s)) {
                return;
            }
        } else if (s.may_wait && !is_news_due && !(g->flags & GROUP_EAGER)) {
            struct group_work *w = group_work(g);
            if (list_is_empty(&w->news)) {
                w->news_due = host_now(h) + HOST_NEWS_NS;
                list_add_tail(&h->news, &w->news);
            }
            return;
        } else {
            s.msg.count = 0;
            s.msg.runs_count = 0;
            add_append(h, p, &s.msg, 0);
            g->ops->sent(g->replica, i, s.msg.index, host_now(h));
        }
    }
    group_ready(g, GROUP_SEND);
}

void host_send_group(struct group *g, bool is_news_due)
{
    struct host *h = g->host;
    struct consensus_status st;
    g->ops->status(g->replica, &st);
    if (st.role != ROLE_LEADER || (g->flags & GROUP_INSTALLING)) {
        return;
    }
    for (uint32_t i = 0; i < st.config->count; i++) {
        if (st.config->members[i].node_id != h->config.node_id) {
            send_peer(g, host_peer(h, st.config->members[i].node_id), i, is_news_due);
        }
    }
    group_timer_update(g);  // An answer is due now.
}

// ---- entries from disk ---------------------------------------------------------------------------------------------

// The first entries in `left` that fit into one frame and few term runs. Fills count and runs; returns their bytes.
static size_t measure(struct consensus_msg *m, struct span left, uint32_t count_max, uint64_t last)
{
    size_t bytes = 0;
    m->count = 0;
    m->runs_count = 0;
    while (m->count < count_max && m->index + m->count < last) {
        struct record_disk d;
        uint64_t size;
        if (record_peek(span_of(left.ptr + bytes, left.len - bytes), &d, &size) != RC_OK) {
            break;
        }
        assert(d.index == m->index + m->count + 1);
        if (m->count > 0 && bytes + size > LIMIT_FRAME_BYTES) {
            break;
        }
        if (m->runs_count == 0 || m->runs[m->runs_count - 1].term != d.term) {
            if (m->runs_count == CONSENSUS_TERM_RUNS) {
                break;
            }
            m->runs[m->runs_count++] = (struct term_run){.first = d.index, .term = d.term};
        }
        bytes += (size_t)size;
        m->count++;
    }
    return bytes;
}

// A cold read for `replica` on `p` has come back.
void host_send_fed(struct group *g, struct peer *p, uint64_t replica, struct glog_read *r)
{
    struct host *h = g->host;
    struct fragment_send *f = &p->fragment;
    if (f->group == g && f->is_reading) {
        f->is_reading = false;
        if (r->rc != RC_OK || r->bytes.len < f->total) {
            fragment_end(p);
            host_liveness_reset(h, p);
        } else {
            assert(f->block == NULL);
            f->block = block_adopt(&r->bytes);
            f->ptr = f->block->ptr;
        }
        group_ready(g, GROUP_SEND);
        return;
    }
    group_ready(g, GROUP_SEND);
    if (r->read_count == 0) {
        return;  // Gone meanwhile, or damaged: then the store has told (group_lost).
    }
    struct consensus_status st;
    g->ops->status(g->replica, &st);
    const uint32_t i = position_of(st.config, replica);
    if (st.role != ROLE_LEADER || i == UINT32_MAX) {
        return;
    }
    struct consensus_send s = {0};
    g->ops->next_send(g->replica, i, &s);
    if (s.kind != SEND_APPEND || s.msg.index + 1 != r->indexes[0] || s.last <= s.msg.index) {
        return;  // Things have moved on.
    }
    const size_t bytes = measure(&s.msg, buf_span(&r->bytes), r->read_count, s.last);
    if (s.msg.count == 0 || s.msg.runs[0].term != g->ops->term_at(g->replica, s.msg.index + 1)) {
        return;
    }
    if (bytes > LIMIT_FRAME_BYTES) {
        if (!h->config.net->is_connected(h->config.net, p->node, LANE_LOG)) {
            return;  // What it would hold until the node is back is read again then.
        }
        if (is_others_turn(h, g, p)) {
            block(g, p, s.msg.index + 1, true);
            return;
        }
        struct block *b = block_adopt(&r->bytes);
        fragment_start(g, p, &s.msg, bytes, b, b->ptr);  // Its pieces wait for room.
        return;
    }
    if (p->large_group == g->id) {
        p->large_group = 0;  // It was a small one.
    }
    if (!host_send_room(h, p)) {
        return;
    }
    if (p->raw_bytes + bytes > LIMIT_FRAME_BYTES || p->iov_count == HOST_FRAME_IOV) {
        append_flush(h, p);
    }
    p->iov[p->iov_count++] = (struct iovec){.iov_base = r->bytes.ptr, .iov_len = bytes};
    host_free_later(h, r->bytes.ptr);
    buf_init(&r->bytes);
    g->ops->sent(g->replica, i, s.msg.index + s.msg.count, host_now(h));
    add_append(h, p, &s.msg, bytes);
    group_timer_update(g);
}

// ---- fragments -----------------------------------------------------------------------------------------------------

// Sends one fragment of `len` bytes at the current offset from up to `ranges` ranges.
static enum rc fragment_put(struct host *h, struct peer *p, const struct iovec *iov, int ranges, size_t len)
{
    struct fragment_send *f = &p->fragment;
    struct iovec part[HOST_FRAME_IOV];
    int n = 0;
    uint64_t skip = f->offset;
    size_t left = len;
    for (int k = 0; k < ranges && left > 0; k++) {
        if (skip >= iov[k].iov_len) {
            skip -= iov[k].iov_len;
            continue;
        }
        size_t take = iov[k].iov_len - (size_t)skip;
        take = take < left ? take : left;
        part[n++] = (struct iovec){.iov_base = (uint8_t *)iov[k].iov_base + skip, .iov_len = take};
        left -= take;
        skip = 0;
    }
    assert(left == 0);
    append_flush(h, p);
    if (f->group == NULL) {
        return RC_NOT_CONNECTED;  // The frame before it was lost, and it with that.
    }
    p->sent += len + APPEND_COST;
    uint64_t runs[CONSENSUS_TERM_RUNS * 2];
    Cluster__AppendHeader a = append_header(&f->msg, runs, f->total);
    Cluster__Fragment w = CLUSTER__FRAGMENT__INIT;
    w.item = &a;
    w.sent = p->sent;
    w.offset = f->offset;
    struct buf *b = &h->scratch;
    b->len = 0;
    const size_t size = cluster__fragment__get_packed_size(&w);
    cluster__fragment__pack(&w, buf_extend(b, size));
    struct net *net = h->config.net;
    return net->send(net, p->node, LANE_LOG, FRAME_FRAGMENT, buf_span(b), part, n, false);
}

// Where the bytes of the entry are. RC_COLD: a read was started.
static enum rc fragment_ranges(struct peer *p, struct iovec *iov, int *ranges)
{
    struct fragment_send *f = &p->fragment;
    if (f->block != NULL) {
        iov[0] = (struct iovec){.iov_base = (void *)f->ptr, .iov_len = f->total};
        *ranges = 1;
        return RC_OK;
    }
    struct term_run runs[1];
    uint8_t runs_count;
    uint32_t entries;
    const uint64_t index = f->msg.index + 1;
    const enum rc rc = glog_ranges(f->group->log, index, index, LIMIT_FRAME_BYTES, iov, HOST_FRAME_IOV,
                                   ranges, &entries, runs, 1, &runs_count);
    if (rc == RC_COLD) {
        f->is_reading = true;
        host_cold_start(f->group, p->node, f->msg.to, index, index, LIMIT_FRAME_BYTES);
    }
    return rc;
}

// Few fragments at a time are without echo, so that they never fill the lane.
static bool fragment_room(struct host *h, struct peer *p)
{
    const struct fragment_send *f = &p->fragment;
    return (f->count < HOST_FRAGMENTS || p->echoed >= f->marks[f->count % HOST_FRAGMENTS]) && host_send_room(h, p);
}

// Goes on with the entry that is on its way in pieces, if any.
void host_send_fragments(struct host *h, struct peer *p)
{
    struct fragment_send *f = &p->fragment;
    while (f->group && !f->is_reading && fragment_room(h, p)) {
        struct group *g = f->group;
        struct consensus_status st;
        if (!group_is_gone(g)) {
            g->ops->status(g->replica, &st);
        }
        if (group_is_gone(g) || st.role != ROLE_LEADER || st.term != f->msg.term) {
            fragment_end(p);
            return;
        }
        struct iovec iov[HOST_FRAME_IOV];
        int ranges = 0;
        const enum rc found = fragment_ranges(p, iov, &ranges);
        if (found == RC_COLD) {
            return;
        }
        const uint64_t left = f->total - f->offset;
        const size_t len = left < LIMIT_FRAME_BYTES ? (size_t)left : LIMIT_FRAME_BYTES;
        if (found != RC_OK || fragment_put(h, p, iov, ranges, len) != RC_OK) {
            frame_lost(h, p);
            return;
        }
        f->marks[f->count++ % HOST_FRAGMENTS] = p->sent;
        f->offset += len;
        if (f->offset == f->total) {
            const uint32_t i = position_of(st.config, f->msg.to);
            if (i != UINT32_MAX) {
                g->ops->sent(g->replica, i, f->msg.index + 1, host_now(h));
                group_timer_update(g);
            }
            h->metrics.entries_sent++;
            if (p->large_count > 0) {
                block(g, p, f->msg.index + 2, true);  // What follows it on disk waits behind the others.
            }
            group_ready(g, GROUP_SEND);
            fragment_end(p);
        }
    }
}

// ---- loss ----------------------------------------------------------------------------------------------------------

// What was on its way to `p` is lost or will not be sent: the engines are told by the walk that follows.
void host_send_lost(struct host *h, struct peer *p)
{
    (void)h;
    p->append.len = 0;
    p->iov_count = 0;
    p->raw_bytes = 0;
    p->echoed = p->sent;
    p->acks_count = 0;
    for (uint32_t k = 0; k < p->inflow_count; k++) {
        p->inflow[k].owes_receipt = true;  // The last receipt may have been lost.
    }
    if (p->fragment.group) {
        fragment_end(p);
    }
    p->is_woken = true;
}

// It may stay away for days: nothing is held in memory for it. The engine sends anew when it is back.
void host_send_down(struct group *g, struct peer *p)
{
    if (p->fragment.group == g) {
        fragment_end(p);
    }
}

void host_send_group_gone(struct group *g)
{
    struct host *h = g->host;
    while (g->work && g->work->blocked) {
        unblock(g->work->blocked);
    }
    list_each(i, &h->peers) {
        struct peer *p = list_entry(i, struct peer, link);
        if (p->fragment.group == g) {
            fragment_end(p);
        }
    }
}
