// SPDX-License-Identifier: Apache-2.0
// Snapshots on their way: sending the current one to a member that is behind, receiving.
//
// A transfer goes piece by piece over the bulk lane. The sender reads a piece on the cold thread, sends it in
// frames, and reads the next when the receiver has written this one. Every answer names the position the
// receiver wants next, so both ends find each other again after a lost frame, a reset link or a restart of
// either: the sender repeats a piece without answer, or goes where the receiver is.
//
// Receiving: pieces are written to a segment under construction. From the moment the last one is handed to
// the store until the engine knows of the new state the group is INSTALLING: nothing else reaches it (no
// appends, no votes, no timers, no proposals; engine-notes §1.8). Then the state machine is restored
// (LOADING: nothing is applied meanwhile).
//
// While a snapshot is being sent or received no local one is begun, so the one on its way stays current; nor for as
// long again as it took, so that the member that got it finds the log behind it and need not be sent the next
// one. That holds up the leader's log, so it ends at the latest when the log has grown by hold_bytes: a member
// slower than that is sent a newer snapshot, and costs a leader no more disk however long it takes.
// Every transfer ends: done, refused, link dead, or HOST_TRANSFER_NS without progress (law 4).
#include "consensus/host/host_core.h"
#include <assert.h>
#include <stdlib.h>

struct snap_send {
    struct list link;     // host.snap_sends.
    struct group *group;  // Holds a reference.
    uint32_t node;
    uint64_t replica;
    struct glog_snapshot_info info;
    struct glog_snapshot_read read;
    bool is_reading;
    bool is_over;         // Freed when the read is back.
    bool has_piece;
    struct buf piece;
    uint64_t position, next;  // Of the piece.
    bool is_last;
    uint64_t offset;      // Bytes of the piece handed to the net.
    bool is_sent;
    uint64_t repeat_due;  // The piece is sent again then.
    uint64_t progress;    // Time of the last step forward.
    uint64_t began;
    uint64_t hold_bytes;  // No snapshot is taken meanwhile, until the log has grown by this.
    uint64_t held_until;  // Not 0: all has arrived, the member catches up with the log (is_over).
};

struct snap_receive {
    struct list link;     // host.snap_receives.
    struct group *group;  // Holds a reference.
    uint32_t node;
    uint64_t from, term;
    struct glog_snapshot_info info;
    uint64_t expected;    // Position wanted next.
    struct buf piece;
    uint64_t total, next;
    bool is_last;
    bool is_writing;
    bool is_over;         // Freed when the write is back.
    struct glog_snapshot_write write;
    uint64_t progress;
};

bool host_snapshot_is_sending(const struct group *g, uint64_t replica)
{
    list_each(l, &g->host->snap_sends) {
        const struct snap_send *s = list_entry(l, struct snap_send, link);
        if (s->group == g && !s->is_over && s->replica == replica) {
            return true;
        }
    }
    return false;
}

bool host_snapshot_is_held(const struct group *g)
{
    const uint64_t grown = glog_bytes_since_snapshot(g->log);
    list_each(l, &g->host->snap_sends) {
        const struct snap_send *s = list_entry(l, struct snap_send, link);
        if (s->group == g && (!s->is_over || s->held_until != 0) && grown < s->hold_bytes) {
            return true;
        }
    }
    return false;
}

// ---- sending ----------------------------------------------------------------------------------------------

static void send_free(struct snap_send *s)
{
    struct host *h = s->group->host;
    if (s->piece.ptr) {
        host_free_later(h, s->piece.ptr);
    }
    buf_deinit(&s->read.bytes);
    list_remove(&s->link);
    h->snap_sends_count -= s->held_until == 0;
    group_unref(s->group);
    free(s);
}

// The member has it, and the log behind it stays for as long as the transfer took.
static void send_follow(struct snap_send *s)
{
    struct host *h = s->group->host;
    assert(s->is_over && !s->is_reading);
    if (s->piece.ptr) {
        host_free_later(h, s->piece.ptr);
        buf_init(&s->piece);
    }
    s->has_piece = false;
    s->held_until = 2 * host_now(h) - s->began;
    h->snap_sends_count--;
}

// The transfer is over; the engine goes on from there (or hears of it a little later, if it failed).
static void send_end(struct snap_send *s, bool is_ok)
{
    struct group *g = s->group;
    assert(!s->is_over);
    s->is_over = true;
    if (!group_is_gone(g)) {
        if (is_ok) {
            struct consensus_out out;
            consensus_out_reset(&out);
            g->ops->snapshot_ended(g->replica, s->replica, true, s->info.index, host_now(g->host), &out);
            group_execute(g, &out, span_of(NULL, 0), 0);
            group_ready(g, GROUP_SEND);
        } else {
            host_retry_add(g, s->node, s->replica, true);
        }
    }
    if (is_ok && !s->is_reading && !group_is_gone(g)) {
        send_follow(s);
        return;
    }
    if (!group_is_gone(g)) {
        host_snapshot_consider(g);  // None is begun while one is sent.
    }
    if (!s->is_reading) {
        send_free(s);
    }
}

// Hands frames of the current piece to the net, as many as it takes.
static void send_frames(struct snap_send *s)
{
    struct host *h = s->group->host;
    struct net *net = h->config.net;
    while (s->has_piece && !s->is_sent) {
        struct consensus_status st;
        s->group->ops->status(s->group->replica, &st);
        const uint64_t left = s->piece.len - s->offset;
        const size_t len = left < LIMIT_FRAME_BYTES ? (size_t)left : LIMIT_FRAME_BYTES;
        struct buf config;
        buf_init(&config);
        config_encode(&s->info.config, &config);
        Cluster__SnapshotPiece w = CLUSTER__SNAPSHOT_PIECE__INIT;
        w.group = s->group->id;
        w.from = s->group->replica_id;
        w.to = s->replica;
        w.term = st.term;
        w.index = s->info.index;
        w.index_term = s->info.term;
        w.config_index = s->info.config.index;
        w.config = (ProtobufCBinaryData){.data = config.ptr, .len = config.len};
        w.position = s->position;
        w.next = s->next;
        w.offset = s->offset;
        w.total = s->piece.len;
        w.is_last = s->is_last;
        struct buf *b = &h->scratch;
        b->len = 0;
        const size_t size = cluster__snapshot_piece__get_packed_size(&w);
        cluster__snapshot_piece__pack(&w, buf_extend(b, size));
        buf_deinit(&config);
        const struct iovec raw = {.iov_base = s->piece.ptr + s->offset, .iov_len = len};
        const enum rc rc =
            net->send(net, s->node, LANE_BULK, FRAME_SNAPSHOT, buf_span(b), &raw, len > 0 ? 1 : 0, true);
        if (rc != RC_OK) {
            return;  // Full: again next turn. Not connected: the reset starts the piece anew.
        }
        s->offset += len;
        s->is_sent = s->offset == s->piece.len;
    }
}

static void send_read_done(struct glog_snapshot_read *r)
{
    struct snap_send *s = container_of(r, struct snap_send, read);
    struct group *g = s->group;
    s->is_reading = false;
    if (s->is_over) {
        send_free(s);
        return;
    }
    if (r->rc != RC_OK) {
        send_end(s, false);  // Superseded: the next attempt sends the newer one.
        return;
    }
    s->piece = r->bytes;
    buf_init(&r->bytes);
    s->next = r->position;
    s->is_last = r->is_last;
    s->offset = 0;
    s->is_sent = false;
    s->has_piece = true;
    s->repeat_due = host_now(g->host) + HOST_PIECE_NS;
    send_frames(s);
}

static void send_read(struct snap_send *s, uint64_t position)
{
    assert(!s->is_reading);
    if (s->piece.ptr) {
        host_free_later(s->group->host, s->piece.ptr);
        buf_init(&s->piece);
    }
    s->has_piece = false;
    s->position = position;
    s->read = (struct glog_snapshot_read){.index = s->info.index,
                                          .position = position,
                                          .bytes_max = HOST_SNAPSHOT_PIECE,
                                          .done = send_read_done,
                                          .owner = s};
    buf_init(&s->read.bytes);
    s->is_reading = true;
    glog_snapshot_read_start(s->group->log, &s->read);
}

// Another replica has come in the place of one that was being sent to: nobody waits for that transfer any more.
static void send_supersede(struct group *g, uint32_t node, uint64_t replica)
{
    list_each(l, &g->host->snap_sends) {
        struct snap_send *s = list_entry(l, struct snap_send, link);
        if (s->group == g && s->node == node && s->replica != replica && !s->is_over) {
            s->is_over = true;
            if (!s->is_reading) {
                send_free(s);
            }
        }
    }
}

bool host_snapshot_send(struct group *g, uint32_t node, uint64_t replica)
{
    struct host *h = g->host;
    struct net *net = h->config.net;
    struct glog_snapshot_info info;
    send_supersede(g, node, replica);
    if (h->snap_sends_count >= HOST_SNAPSHOT_SENDS || !net->is_connected(net, node, LANE_BULK) ||
        glog_snapshot_info(g->log, &info) != RC_OK) {
        host_retry_add(g, node, replica, true);
        return false;
    }
    struct consensus_status st;
    g->ops->status(g->replica, &st);
    for (uint32_t i = 0; i < st.config->count; i++) {
        if (st.config->members[i].replica_id == replica) {
            g->ops->sent(g->replica, i, info.index, host_now(h));
        }
    }
    struct snap_send *s = mem_zalloc(sizeof(*s));
    s->group = g;
    s->node = node;
    s->replica = replica;
    s->info = info;
    s->began = s->progress = host_now(h);
    uint64_t entries;
    s->hold_bytes = HOST_HOLD_BYTES + 2 * glog_bytes_in_segments(g->log, &entries);
    buf_init(&s->piece);
    group_ref(g);
    list_add_tail(&h->snap_sends, &s->link);
    h->snap_sends_count++;
    log_info("group %llu: sending snapshot %llu to node %u", (unsigned long long)g->id, (unsigned long long)info.index,
             node);
    send_read(s, 0);
    return true;
}

void host_snapshot_on_ack(struct host *h, uint32_t node, const struct frame *f)
{
    Cluster__SnapshotAck *a = cluster__snapshot_ack__unpack(&h->arena.allocator, f->envelope.len, f->envelope.ptr);
    if (a == NULL) {
        h->metrics.malformed++;
        return;
    }
    if (h->config.worker_of && h->config.worker_of(h->config.ctx, a->group) != h->config.worker) {
        if (h->config.pass_on) {
            h->config.pass_on(h->config.ctx, h->config.worker_of(h->config.ctx, a->group), node, LANE_BULK, f->type,
                              f->envelope, f->raw);
        }
        return;
    }
    list_each(l, &h->snap_sends) {
        struct snap_send *s = list_entry(l, struct snap_send, link);
        if (s->group->id != a->group || s->node != node || s->replica != a->from || s->group->replica_id != a->to ||
            s->info.index != a->index || s->is_over) {
            continue;
        }
        if (a->is_done || a->is_failed) {
            struct group *g = s->group;
            group_ref(g);
            send_end(s, a->is_done != 0);
            if (!a->is_done && !group_is_gone(g)) {
                host_snapshot_too_large(g);
            }
            group_unref(g);
            return;
        }
        if (s->is_reading || !s->has_piece) {
            return;
        }
        if (a->position == s->position) {
            s->offset = 0;  // It wants this piece again.
            s->is_sent = false;
            s->repeat_due = host_now(h) + HOST_PIECE_NS;
            send_frames(s);
        } else {
            s->progress = host_now(h);
            send_read(s, a->position);
        }
        return;
    }
}

// ---- receiving --------------------------------------------------------------------------------------------

static void answer(struct host *h, uint32_t node, const struct snap_receive *r, bool is_done, bool is_failed)
{
    Cluster__SnapshotAck a = CLUSTER__SNAPSHOT_ACK__INIT;
    a.group = r->group->id;
    a.from = r->group->replica_id;
    a.to = r->from;
    a.index = r->info.index;
    a.position = r->expected;
    a.is_done = is_done;
    a.is_failed = is_failed;
    struct buf *b = &h->scratch;
    b->len = 0;
    const size_t size = cluster__snapshot_ack__get_packed_size(&a);
    cluster__snapshot_ack__pack(&a, buf_extend(b, size));
    struct net *net = h->config.net;
    // If it is lost the sender repeats its piece and gets another one.
    (void)net->send(net, node, LANE_BULK, FRAME_SNAPSHOT_ACK, buf_span(b), NULL, 0, false);
}

static void receive_free(struct snap_receive *r)
{
    r->group->flags &= (uint16_t) ~(GROUP_RECEIVING | GROUP_INSTALLING);
    host_wake(r->group, false);  // It was not taken: whoever is sent one has work to do all the same.
    buf_deinit(&r->piece);
    buf_deinit(&r->write.bytes);
    list_remove(&r->link);
    group_unref(r->group);
    free(r);
}

// Breaks off what has come so far.
static void receive_abort(struct snap_receive *r)
{
    if (r->is_writing) {
        r->is_over = true;
        return;
    }
    struct group *g = r->group;
    group_ref(g);
    receive_free(r);
    if (!(g->flags & GROUP_REMOVED)) {
        glog_snapshot_write_abort(g->log);  // Of one that failed too: its log is still there.
    }
    if (!group_is_gone(g)) {
        struct consensus_out out;
        consensus_out_reset(&out);
        g->ops->snapshot_ended(g->replica, g->replica_id, false, 0, host_now(g->host), &out);
        group_execute(g, &out, span_of(NULL, 0), 0);
    }
    group_unref(g);
}

// The snapshot is durable and current: the engine and the state machine follow.
static void install(struct snap_receive *r)
{
    struct group *g = r->group;
    struct host *h = g->host;
    struct consensus_out out;
    consensus_out_reset(&out);
    g->flags &= (uint16_t)~GROUP_INSTALLING;
    g->ops->snapshot_installed(g->replica, r->info.index, r->info.term, &r->info.config, host_now(h), &out);
    g->handed = r->info.index;
    host_config_forget(g);
    if (g->work) {
        g->work->uncommitted = 0;
        g->work->proposed_first = UINT64_MAX;
    }
    host_snapshot_load(g);
    group_execute(g, &out, span_of(NULL, 0), 0);
    group_tell_members(g, &r->info.config);
    log_info("group %llu: snapshot %llu installed", (unsigned long long)g->id, (unsigned long long)r->info.index);
}

static void receive_write_done(struct glog_snapshot_write *w)
{
    struct snap_receive *r = container_of(w, struct snap_receive, write);
    struct group *g = r->group;
    struct host *h = g->host;
    r->is_writing = false;
    if (h->is_failed) {
        receive_free(r);
        return;
    }
    if (group_is_gone(g)) {
        receive_abort(r);
        return;
    }
    if (w->rc == RC_STALE) {
        answer(h, r->node, r, true, false);  // We have it already.
        receive_abort(r);
        return;
    }
    if (w->rc != RC_OK) {
        log_error("group %llu: snapshot cannot be written: %s", (unsigned long long)g->id, rc_text(w->rc));
        answer(h, r->node, r, false, true);
        receive_abort(r);
        return;
    }
    if (r->is_last) {
        install(r);
        answer(h, r->node, r, true, false);
        receive_free(r);
        return;
    }
    if (r->is_over) {
        receive_abort(r);
        return;
    }
    r->expected = r->next;
    answer(h, r->node, r, false, false);
}

static void receive_write(struct snap_receive *r)
{
    struct group *g = r->group;
    r->write = (struct glog_snapshot_write){.info = r->info,
                                            .position = r->expected,
                                            .bytes = r->piece,
                                            .is_last = r->is_last,
                                            .done = receive_write_done,
                                            .owner = r};
    buf_init(&r->piece);
    r->is_writing = true;
    if (r->is_last) {
        g->flags |= GROUP_INSTALLING;
    }
    glog_snapshot_write_start(g->log, &r->write);
}

static struct snap_receive *receive_find(struct host *h, const struct group *g)
{
    list_each(l, &h->snap_receives) {
        struct snap_receive *r = list_entry(l, struct snap_receive, link);
        if (r->group == g) {
            return r;
        }
    }
    return NULL;
}

static enum rc info_of(const Cluster__SnapshotPiece *w, struct glog_snapshot_info *out)
{
    out->index = w->index;
    out->term = w->index_term;
    TRY(config_decode(span_of(w->config.data, w->config.len), &out->config));
    out->config.index = w->config_index;
    return w->index > 0 && w->index_term > 0 && w->config_index <= w->index ? RC_OK : RC_MALFORMED;
}

static struct snap_receive *receive_start(struct group *g, uint32_t node, const Cluster__SnapshotPiece *w,
                                          const struct glog_snapshot_info *info)
{
    struct snap_receive *r = mem_zalloc(sizeof(*r));
    r->group = g;
    r->node = node;
    r->from = w->from;
    r->term = w->term;
    r->info = *info;
    buf_init(&r->piece);
    buf_init(&r->write.bytes);
    group_ref(g);
    g->flags |= GROUP_RECEIVING;
    list_add_tail(&g->host->snap_receives, &r->link);
    g->ops->snapshot_started(g->replica, host_now(g->host));
    group_timer_update(g);
    return r;
}

// The last piece waits (and is repeated) until nothing can make a candidate or leader of us while it is installed, and
// until an earlier snapshot is loaded.
static bool may_install(const struct snap_receive *r, uint64_t term)
{
    struct consensus_status st;
    r->group->ops->status(r->group->replica, &st);
    return st.role == ROLE_FOLLOWER && st.term == term && !(r->group->flags & GROUP_LOADING);
}

// The bytes of one frame for a transfer that is under way.
static void receive_bytes(struct host *h, struct snap_receive *r, const Cluster__SnapshotPiece *w, struct span raw)
{
    if (w->position != r->expected) {
        if (w->offset == 0) {
            answer(h, r->node, r, false, false);
        }
        return;
    }
    if (w->offset == 0) {
        r->piece.len = 0;
        r->total = w->total;
        r->next = w->next;
        r->is_last = w->is_last != 0;
    }
    if (w->offset != r->piece.len || w->total != r->total || raw.len > r->total - r->piece.len) {
        return;  // A frame of an earlier attempt.
    }
    buf_span_bytes(&r->piece, raw);
    r->progress = host_now(h);
    if (r->piece.len == r->total && (!r->is_last || may_install(r, w->term))) {
        receive_write(r);
    }
}

static void receive_piece(struct host *h, struct group *g, uint32_t node, const Cluster__SnapshotPiece *w,
                          struct span raw)
{
    struct glog_snapshot_info info;
    struct consensus_status st;
    if (info_of(w, &info) != RC_OK) {
        h->metrics.malformed++;
        return;
    }
    g->ops->status(g->replica, &st);
    struct snap_receive *r = receive_find(h, g);
    if (w->term < st.term || (r && r->is_writing)) {
        return;
    }
    bool is_held = g->ops->term_at(g->replica, info.index) == info.term;
    if (is_held && st.durable < info.index) {
        return;  // In the log, on its way to the disk: nothing to replace, nothing to claim yet.
    }
    if (is_held || st.commit >= info.index) {
        // It has all that already (the answer to an earlier attempt was lost).
        struct snap_receive known = {.group = g, .from = w->from, .info = info};
        answer(h, node, &known, true, false);
        if (r) {
            receive_abort(r);
        }
        return;
    }
    if (r && (r->from != w->from || r->info.index != info.index || r->node != node)) {
        receive_abort(r);
        r = NULL;
    }
    if (r == NULL) {
        r = receive_start(g, node, w, &info);
        r->progress = host_now(h);
    }
    receive_bytes(h, r, w, raw);
}

void host_snapshot_on_piece(struct host *h, uint32_t node, const struct frame *f)
{
    Cluster__SnapshotPiece *w = cluster__snapshot_piece__unpack(&h->arena.allocator, f->envelope.len, f->envelope.ptr);
    if (w == NULL) {
        h->metrics.malformed++;
        return;
    }
    if (h->config.worker_of && h->config.worker_of(h->config.ctx, w->group) != h->config.worker) {
        if (h->config.pass_on) {
            h->config.pass_on(h->config.ctx, h->config.worker_of(h->config.ctx, w->group), node, LANE_BULK, f->type,
                              f->envelope, f->raw);
        }
        return;
    }
    struct group *g = map_get(&h->map, w->group);
    if (g == NULL || g->replica_id != w->to) {
        host_frame_unknown(h, node, w->group, w->to);
        if (h->config.unknown_group) {
            h->config.unknown_group(h->config.ctx, w->group, node);
        }
        return;
    }
    if (!group_is_gone(g) && !(g->flags & GROUP_INSTALLING)) {
        receive_piece(h, g, node, w, f->raw);
    }
}

// ---- time and links ---------------------------------------------------------------------------------------

// The receiver may not know that we lead (what told it came while it installed an earlier snapshot): an
// append before the first index says no more than that.
static void introduce(struct snap_send *s, uint64_t term)
{
    const struct consensus_msg m = {.type = MSG_APPEND,
                                    .group = s->group->id,
                                    .from = s->group->replica_id,
                                    .to = s->replica,
                                    .term = term};
    host_frame_message(s->group->host, s->group, s->node, &m);
}

// Returns when the hold ends; UINT64_MAX: it has.
static uint64_t held_turn(struct snap_send *s)
{
    struct group *g = s->group;
    struct consensus_status st;
    if (!group_is_gone(g)) {
        g->ops->status(g->replica, &st);
        if (st.role == ROLE_LEADER && g->host->now < s->held_until) {
            return s->held_until;
        }
    }
    group_ref(g);
    send_free(s);
    if (!group_is_gone(g)) {
        host_snapshot_consider(g);
    }
    group_unref(g);
    return UINT64_MAX;
}

// Repeats what got no answer, gives up what makes no progress. Returns when it wants to be called again.
uint64_t host_snapshot_turn(struct host *h)
{
    uint64_t due = UINT64_MAX;
    list_each(l, &h->snap_sends) {
        struct snap_send *s = list_entry(l, struct snap_send, link);
        if (s->held_until != 0) {
            const uint64_t at = held_turn(s);
            due = at < due ? at : due;
            continue;
        }
        if (s->is_over) {
            continue;
        }
        struct consensus_status st;
        s->group->ops->status(s->group->replica, &st);
        if (st.role != ROLE_LEADER || group_is_gone(s->group)) {
            s->is_over = true;
            if (!s->is_reading) {
                send_free(s);
            }
            continue;
        }
        if (h->now >= s->progress + HOST_TRANSFER_NS) {
            send_end(s, false);
            continue;
        }
        if (s->has_piece && h->now >= s->repeat_due) {
            s->offset = 0;
            s->is_sent = false;
            s->repeat_due = h->now + HOST_PIECE_NS;
            introduce(s, st.term);
        }
        if (s->has_piece) {
            send_frames(s);
            due = s->repeat_due < due ? s->repeat_due : due;
        }
        due = s->progress + HOST_TRANSFER_NS < due ? s->progress + HOST_TRANSFER_NS : due;
    }
    list_each(l, &h->snap_receives) {
        struct snap_receive *r = list_entry(l, struct snap_receive, link);
        const uint64_t end = r->progress + HOST_RECEIVE_NS;
        if (!r->is_over && !r->is_writing && h->now >= end) {
            receive_abort(r);
        } else if (!r->is_over && !r->is_writing) {
            due = end < due ? end : due;
        }
    }
    return due;
}

// The bulk lane to `node` was connected again, or the node is gone.
void host_snapshot_link(struct host *h, uint32_t node, bool is_dead)
{
    list_each(l, &h->snap_sends) {
        struct snap_send *s = list_entry(l, struct snap_send, link);
        if (s->node != node || s->is_over) {
            continue;
        }
        if (is_dead) {
            send_end(s, false);
        } else if (s->has_piece) {
            s->offset = 0;
            s->is_sent = false;
            s->repeat_due = host_now(h) + HOST_PIECE_NS;
            send_frames(s);
        }
    }
    list_each(l, &h->snap_receives) {
        struct snap_receive *r = list_entry(l, struct snap_receive, link);
        // What is being made current cannot be stopped any more; everything else the next leader begins anew.
        if (is_dead && r->node == node && !(r->group->flags & GROUP_INSTALLING) && !r->is_over) {
            receive_abort(r);
        }
    }
}

void host_snapshot_group_gone(struct group *g)
{
    list_each(l, &g->host->snap_sends) {
        struct snap_send *s = list_entry(l, struct snap_send, link);
        if (s->group == g && !s->is_over) {
            s->is_over = true;
            if (!s->is_reading) {
                send_free(s);
            }
        }
    }
    struct snap_receive *r = receive_find(g->host, g);
    if (r) {
        receive_abort(r);
    }
}

// A new leader sends its own snapshot, or none: what the old one began is broken off.
void host_snapshot_role(struct group *g, uint64_t leader)
{
    struct snap_receive *r = receive_find(g->host, g);
    if (r && leader != 0 && leader != r->from && !(g->flags & GROUP_INSTALLING) && !r->is_over) {
        receive_abort(r);
    }
}

// At the host's end: transfers whose jobs will not come back any more.
void host_snapshot_destroy(struct host *h)
{
    list_each(l, &h->snap_sends) {
        send_free(list_entry(l, struct snap_send, link));
    }
    list_each(l, &h->snap_receives) {
        receive_free(list_entry(l, struct snap_receive, link));
    }
}
