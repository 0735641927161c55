// SPDX-License-Identifier: Apache-2.0
// An entry too large for a frame goes in fragments, one entry at a time per peer, each fragment only while little is
// unacknowledged, so that other groups' frames pass in between.
#include "consensus/host/host_core.h"
#include <assert.h>

// The record is kept until it was sent, whatever the log does with its memory: a peer that stands still is
// given up after two seconds, and two peers must not read the same large record from disk. Takes `block`.
void host_fragment_start(struct group *g, struct peer *p, const struct consensus_msg *m, uint64_t total,
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

void host_fragment_end(struct peer *p)
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
    host_frame_append_flush(h, p);
    if (f->group == NULL) {
        return RC_NOT_CONNECTED;  // The frame before it was lost, and it with that.
    }
    p->sent += len + HOST_APPEND_COST;
    uint64_t runs[CONSENSUS_TERM_RUNS * 2];
    Cluster__AppendHeader a = host_frame_header(&f->msg, runs, f->total);
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
    return (f->count < HOST_FRAGMENTS || p->echoed >= f->marks[f->count % HOST_FRAGMENTS]) && host_frame_room(h, p);
}

void host_fragment_run(struct host *h, struct peer *p)
{
    struct fragment_send *f = &p->fragment;
    while (f->group && !f->is_reading && fragment_room(h, p)) {
        struct group *g = f->group;
        struct consensus_status st;
        if (!group_is_gone(g)) {
            g->ops->status(g->replica, &st);
        }
        if (group_is_gone(g) || st.role != ROLE_LEADER || st.term != f->msg.term) {
            host_fragment_end(p);
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
            host_frame_lost(h, p);
            return;
        }
        f->marks[f->count++ % HOST_FRAGMENTS] = p->sent;
        f->offset += len;
        if (f->offset == f->total) {
            const uint32_t i = host_position_of(st.config, f->msg.to);
            if (i != UINT32_MAX) {
                g->ops->sent(g->replica, i, f->msg.index + 1, host_now(h));
                group_timer_update(g);
            }
            h->metrics.entries_sent++;
            if (p->large_count > 0) {
                host_block(g, p, f->msg.index + 2, true);  // What follows it on disk waits behind the others.
            }
            group_ready(g, GROUP_SEND);
            host_fragment_end(p);
        }
    }
}
