// SPDX-License-Identifier: Apache-2.0
// Sending entries: the host pulls. A group on the ready list is asked, peer by peer, what it may send next (next_send);
// the entries' bytes go out straight from the arena as ranges behind the frame's envelope (host_frame.c). Entries that
// left memory are read back for the peer at its own pace (one read per group and peer at a time, and a window's worth
// for all groups of a peer), so a slow follower holds no memory. One too large for a frame: host_fragment.c; groups
// that find no room: host_blocked.c.
#include "consensus/host/host_core.h"
#include <assert.h>

enum {
    SEND_STEPS_MAX = 1024,  // Frames' worth of one group to one peer in one go.
};

// Position of a replica in the configuration, or UINT32_MAX.
uint32_t host_position_of(const struct config *c, uint64_t replica)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->members[i].replica_id == replica) {
            return i;
        }
    }
    return UINT32_MAX;
}

// ---- entries -------------------------------------------------------------------------------------------------------

// Sends entries from m->index + 1 on out of memory. True if something was sent.
static bool send_entries(struct group *g, struct peer *p, uint32_t i, struct consensus_send *s)
{
    struct host *h = g->host;
    struct consensus_msg *m = &s->msg;
    if (LIMIT_FRAME_BYTES - p->raw_bytes < 4096 || HOST_FRAME_IOV - p->iov_count < 8) {
        host_frame_append_flush(h, p);
    }
    for (int attempt = 0; attempt < 2; attempt++) {
        int ranges = 0;
        m->count = 0;
        m->runs_count = 0;
        const enum rc rc = glog_ranges(g->log, m->index + 1, s->last, LIMIT_FRAME_BYTES - p->raw_bytes,
                                       p->iov + p->iov_count, HOST_FRAME_IOV - p->iov_count, &ranges,
                                       &m->count, m->runs, CONSENSUS_TERM_RUNS, &m->runs_count);
        const struct blocked *waits = rc == RC_COLD ? host_blocked_find(g, p) : NULL;
        if (waits != NULL && waits->large == m->index + 1) {
            return false;  // It is not its turn yet.
        }
        if (rc == RC_COLD && p->feeds >= HOST_FEEDS_MAX) {
            host_block(g, p, m->index + 1, p->large_group == g->id);  // More could not be sent in one window anyway.
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
            host_frame_append_flush(h, p);  // A record that does not fit into the rest of the frame.
            continue;
        }
        if (bytes > LIMIT_FRAME_BYTES) {
            assert(m->count == 1);
            if (host_is_others_turn(h, g, p)) {
                host_block(g, p, m->index + 1, true);
                return false;
            }
            const struct iovec *first = &p->iov[p->iov_count];
            struct block *b = block_of(span_of(first->iov_base, first->iov_len));
            host_fragment_start(g, p, m, bytes, b != NULL && ranges == 1 ? block_hold(b) : NULL, first->iov_base);
            host_fragment_run(h, p);
            return false;
        }
        p->iov_count += ranges;
        host_frame_append(h, p, m, bytes);
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
        if (!host_frame_room(h, p)) {
            host_block(g, p, s.msg.index + 1, p->large_group == g->id);
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
            host_frame_append(h, p, &s.msg, 0);
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
            host_fragment_end(p);
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
    const uint32_t i = host_position_of(st.config, replica);
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
        if (host_is_others_turn(h, g, p)) {
            host_block(g, p, s.msg.index + 1, true);
            return;
        }
        struct block *b = block_adopt(&r->bytes);
        host_fragment_start(g, p, &s.msg, bytes, b, b->ptr);  // Its pieces wait for room.
        return;
    }
    if (p->large_group == g->id) {
        p->large_group = 0;  // It was a small one.
    }
    if (!host_frame_room(h, p)) {
        return;
    }
    if (p->raw_bytes + bytes > LIMIT_FRAME_BYTES || p->iov_count == HOST_FRAME_IOV) {
        host_frame_append_flush(h, p);
    }
    p->iov[p->iov_count++] = (struct iovec){.iov_base = r->bytes.ptr, .iov_len = bytes};
    host_free_later(h, r->bytes.ptr);
    buf_init(&r->bytes);
    g->ops->sent(g->replica, i, s.msg.index + s.msg.count, host_now(h));
    host_frame_append(h, p, &s.msg, bytes);
    group_timer_update(g);
}

// ---- loss ----------------------------------------------------------------------------------------------------------

// It may stay away for days: nothing is held in memory for it. The engine sends anew when it is back.
void host_send_down(struct group *g, struct peer *p)
{
    if (p->fragment.group == g) {
        host_fragment_end(p);
    }
}

void host_send_group_gone(struct group *g)
{
    struct host *h = g->host;
    while (g->work && g->work->blocked) {
        host_unblock(g->work->blocked);
    }
    list_each(i, &h->peers) {
        struct peer *p = list_entry(i, struct peer, link);
        if (p->fragment.group == g) {
            host_fragment_end(p);
        }
    }
}
