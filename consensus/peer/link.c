// SPDX-License-Identifier: Apache-2.0
// One connection between nodes (peer_internal.h): reading, greeting, ending.
//
// Bytes are read into one buffer per link and frames are parsed where they lie; only the cut-off frame at the end is
// moved to the front. The buffer grows with the load and shrinks when the link is quiet. Before the proof a link may
// hold PEER_GREETING_MAX bytes, afterwards one frame of FRAME_TOTAL_MAX. Whatever does not decode ends the link.
#include "consensus/peer/peer_internal.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static void on_poll(uv_poll_t *handle, int status, int events);

struct link *link_create(struct peer_net *n, int fd, bool is_dialled)
{
    struct link *l = mem_zalloc(sizeof(*l));
    list_init(&l->item);
    l->net = n;
    l->is_dialled = is_dialled;
    l->state = is_dialled ? LINK_CONNECTING : LINK_GREETING;
    transport_init_plain(&l->transport, fd);
    return l;
}

void link_begin(struct link *l, int events)
{
    int rc = uv_poll_init(l->net->loop, &l->poll, l->transport.fd);
    assert(rc == 0);
    l->net->handles++;
    l->poll_events = events;
    rc = uv_poll_start(&l->poll, events, on_poll);
    assert(rc == 0);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct link *l = container_of((uv_poll_t *)handle, struct link, poll);
    struct peer_net *n = l->net;
    free(l->in);
    free(l);
    net_handle_closed(n);
}

static void greeting_free(struct link *l)
{
    if (l->greeting) {
        handshake_deinit(l->greeting);
        free(l->greeting);
        l->greeting = NULL;
    }
}

static void list_leave(struct link *l)
{
    if (!l->is_dialled && !list_is_empty(&l->item)) {
        l->net->greetings_len--;
    }
    list_remove(&l->item);
}

void link_close(struct link *l)
{
    assert(l->state != LINK_CLOSED);
    list_leave(l);
    if (l->peer) {
        struct lane *lane = &l->peer->lanes[l->lane];
        if (lane->out == l) {
            lane->out = NULL;
            output_clear(&lane->output);
            list_remove(&lane->dirty);
            lane->wants_room = false;
        }
        if (lane->in == l) {
            lane->in = NULL;
        }
    }
    l->net->metrics.links_open -= l->state == LINK_OPEN;
    l->state = LINK_CLOSED;
    l->peer = NULL;
    greeting_free(l);
    // libuv drops the fd from its set in uv_close; the memory stays until it says so, as frames may lie in it.
    uv_close((uv_handle_t *)&l->poll, on_handle_closed);
    transport_close(&l->transport);
}

void link_lost(struct link *l)
{
    struct peer *p = l->peer;
    bool was_open = l->state == LINK_OPEN;
    bool is_dialled = l->is_dialled;
    enum net_lane lane_id = l->lane;
    link_close(l);
    if (!p || p->is_removed) {
        return;
    }
    struct lane *lane = &p->lanes[lane_id];
    uint64_t now = net_now(p->net);
    if (was_open && lane_id == LANE_CONTROL) {
        struct liveness_out out;
        liveness_closed(&p->liveness, now, is_dialled, &out);
        assert(out.changes_len == 0);  // So that this may be called from within a flush.
    }
    if (is_dialled) {
        if (was_open) {
            lane->backoff_ns = 0;
            lane->retry_at = now;
        } else {
            lane_retry(lane);
        }
    }
    net_wake(p->net);
}

// Watches for what the link waits for.
void link_poll(struct link *l)
{
    int events = l->state == LINK_CONNECTING ? UV_WRITABLE : UV_READABLE;
    if (l->state == LINK_OPEN && l->is_dialled && output_bytes(&l->peer->lanes[l->lane].output) > 0) {
        events |= UV_WRITABLE;
    }
    if (events != l->poll_events) {
        l->poll_events = events;
        int rc = uv_poll_start(&l->poll, events, on_poll);
        assert(rc == 0);
    }
}

// ---- greeting ----------------------------------------------------------------------------------------------------

// A fresh socket takes a few hundred bytes at once; if not, the connection is no good.
static bool greeting_write(struct link *l, const struct buf *b)
{
    if (b->len == 0) {
        return true;
    }
    struct iovec iov = {.iov_base = b->ptr, .iov_len = b->len};
    size_t taken = 0;
    return transport_writev(&l->transport, &iov, 1, &taken) == RC_OK && taken == b->len;
}

static struct handshake *greeting_new(struct link *l, struct peer_hello *own)
{
    *own = l->net->self;
    own->lane = (uint32_t)l->lane;
    l->net->random(own->nonce, PEER_NONCE_BYTES);
    l->greeting = mem_zalloc(sizeof(*l->greeting));
    return l->greeting;
}

void link_greet_as_dialler(struct link *l)
{
    struct peer_hello own;
    struct handshake *h = greeting_new(l, &own);
    struct buf to;
    buf_init(&to);
    handshake_dial(h, buf_span(&l->net->secret), &own, l->peer->name, &to);
    l->state = LINK_GREETING;
    l->deadline = net_now(l->net) + LINK_GREETING_NS;
    bool is_written = greeting_write(l, &to);
    buf_deinit(&to);
    if (!is_written) {
        link_lost(l);
        return;
    }
    link_poll(l);
}

static void greet_as_acceptor(struct link *l)
{
    struct peer_hello own;
    struct handshake *h = greeting_new(l, &own);
    handshake_listen(h, buf_span(&l->net->secret), &own);
}

// The acceptor's word on a dialler that knows the secret. Sets l->peer if it is good.
static void judge(struct link *l, struct buf *to)
{
    struct handshake *h = l->greeting;
    struct peer_net *n = l->net;
    char text[PEER_TEXT_MAX + 1] = "";
    enum peer_refusal why = REFUSED_NONE;
    struct peer *p = peer_find(n, h->peer.name);
    if (n->hooks.admit) {
        why = n->hooks.admit(n->hooks.ctx, &h->peer, text);
    }
    if (why == REFUSED_NONE && !p) {
        p = peer_obtain(n, h->peer.name, h->peer.address);
        why = p ? REFUSED_NONE : REFUSED_FULL;
        snprintf(text, sizeof(text), "no room for another node, or its address (%s) is not host:port",
                 h->peer.address);
    }
    if (why == REFUSED_NONE) {
        why = peer_greet(p, &h->peer, text);
    }
    if (why != REFUSED_NONE) {
        handshake_refuse(h, why, text, to);
        return;
    }
    // peer_greet told the host of a changed incarnation; the host may have removed the peer or closed us.
    if (l->state == LINK_CLOSED || p->is_removed) {
        return;
    }
    l->peer = p;
    l->lane = (enum net_lane)h->peer.lane;
    handshake_accept(h, to);
}

static void opened(struct link *l)
{
    struct peer_net *n = l->net;
    struct peer *p = l->peer;
    struct lane *lane = &p->lanes[l->lane];
    list_leave(l);
    l->incarnation = l->greeting->peer.incarnation;
    greeting_free(l);
    l->state = LINK_OPEN;
    n->metrics.links_open++;
    uint64_t now = net_now(n);
    struct liveness_out out = {.changes_len = 0};
    if (l->is_dialled) {
        assert(lane->out == l);
        if (p->refusal != REFUSED_NONE) {
            p->refusal = REFUSED_NONE;
            net_changed(n);
        }
        lane->backoff_ns = 0;
        lane->progress_at = now;
        p->addr_tried = 0;
        p->is_round_refused = true;
    } else {
        if (lane->in) {
            link_lost(lane->in);  // What it still held is older than what comes now, and the sender knows it lost.
        }
        lane->in = l;
    }
    for (int i = 0; i < LANE_COUNT && l->lane == LANE_CONTROL; i++) {
        // It is there: whatever of ours waits to be dialled again need not wait.
        struct lane *other = &p->lanes[i];
        if (!other->out && (l->is_dialled || i == LANE_CONTROL) && !p->resolving) {
            other->backoff_ns = 0;
            other->retry_at = now;
        }
    }
    if (l->lane == LANE_CONTROL) {
        liveness_opened(&p->liveness, now, l->is_dialled, &out);
    }
    link_poll(l);
    if (l->is_dialled && p->node_id && !p->is_id_new && n->upcalls) {
        n->upcalls->reset(n->upcalls->ctx, p->node_id, l->lane);
    }
    if (out.is_beat_due && !p->is_removed) {
        peer_beat_send(p);
    }
    net_wake(n);
}

// The greeting failed: says so where it matters, and ends the link.
static void greeting_failed(struct link *l, enum rc rc)
{
    struct peer_net *n = l->net;
    struct handshake *h = l->greeting;
    uint64_t now = net_now(n);
    if (rc == RC_MALFORMED) {
        n->metrics.malformed++;
        if (now >= n->malformed_logged_at) {
            n->malformed_logged_at = now + NET_LOG_NS;
            log_warning("cluster port: a connection sent something else than a handshake; closed");
        }
        link_lost(l);
        return;
    }
    n->metrics.refused++;
    struct peer *p = l->is_dialled ? l->peer : peer_find(n, h->peer.name);
    bool is_patient = h->refusal != REFUSED_IN_USE;  // Others will not change their mind within milliseconds.
    if (p && (l->is_dialled || h->is_peer_proven)) {
        peer_refused(p, h->refusal, h->text, h->is_refused_by_peer);
    } else if (now >= n->stranger_logged_at) {
        n->stranger_logged_at = now + NET_LOG_NS;
        log_warning("refused a connection that says it is node %s: %s", h->peer.name, h->text);
    }
    if (p && h->is_refused_by_peer && h->is_peer_proven) {
        // It knows the secret: what it says of itself is true even if it refuses us.
        struct peer_hello hello = h->peer;
        peer_hello_store(p, &hello);
    }
    if (l->state == LINK_CLOSED) {
        return;
    }
    if (l->is_dialled && is_patient) {
        l->peer->lanes[l->lane].backoff_ns = DIAL_BACKOFF_MAX_NS / 2;
    }
    link_lost(l);
}

static void greet(struct link *l, const struct frame *f)
{
    struct handshake *h = l->greeting;
    struct buf to;
    buf_init(&to);
    enum rc rc = handshake_step(h, f, &to);
    if (rc == RC_OK && h->state == HANDSHAKE_JUDGE) {
        judge(l, &to);
        if (l->state == LINK_CLOSED) {
            buf_deinit(&to);
            return;
        }
        rc = h->state == HANDSHAKE_DONE ? RC_OK : RC_DENIED;
    } else if (rc == RC_OK) {
        char text[PEER_TEXT_MAX + 1] = "";
        enum peer_refusal why = peer_greet(l->peer, &h->peer, text);
        if (l->state == LINK_CLOSED) {
            buf_deinit(&to);
            return;
        }
        if (why != REFUSED_NONE) {
            h->refusal = why;
            memcpy(h->text, text, sizeof(h->text));
            rc = RC_DENIED;
        }
    }
    bool is_written = greeting_write(l, &to);
    buf_deinit(&to);
    if (rc != RC_OK && rc != RC_PENDING) {
        greeting_failed(l, rc);
    } else if (!is_written) {
        link_lost(l);
    } else if (rc == RC_OK) {
        opened(l);
    }
}

// ---- reading -----------------------------------------------------------------------------------------------------

static void on_beat(struct link *l, const struct frame *f)
{
    struct peer *p = l->peer;
    struct peer_net *n = l->net;
    struct peer_beat b;
    if (l->lane != LANE_CONTROL || peer_beat_decode(f->envelope, &b) != RC_OK) {
        n->metrics.malformed++;
        link_lost(l);
        return;
    }
    p->beat = b;
    struct liveness_out out;
    liveness_beat(&p->liveness, net_now(n), b.incarnation, b.number, b.echo, &out);
    if (out.is_beat_due) {
        peer_beat_send(p);
    }
    peer_verdicts(p, &out);
    if (!p->is_removed && p->node_id && n->hooks.beat_seen) {
        n->hooks.beat_seen(n->hooks.ctx, p->node_id, &b);
    }
}

// The peer became a member, or speaks newer versions.
static void on_update(struct link *l, const struct frame *f)
{
    struct peer *p = l->peer;
    struct peer_hello h;
    char text[PEER_TEXT_MAX + 1];
    if (peer_hello_decode(f->envelope, false, &h) != RC_OK || strcmp(h.name, p->name) != 0 ||
        h.incarnation != l->incarnation || memcmp(h.store_id, p->hello.store_id, STORE_ID_BYTES) != 0) {
        l->net->metrics.malformed++;
        link_lost(l);
        return;
    }
    if (hello_judge(&l->net->self, &h, text) != REFUSED_NONE) {
        peer_hello_store(p, &h);
        if (l->state == LINK_OPEN) {
            link_lost(l);  // The next greeting says why.
        }
        return;
    }
    peer_hello_store(p, &h);
    peer_learn(p);
}

static void link_frame(struct link *l, const struct frame *f)
{
    struct peer_net *n = l->net;
    struct peer *p = l->peer;
    n->metrics.frames_in++;
    switch (f->type) {
    case FRAME_BEAT:
        on_beat(l, f);
        return;
    case FRAME_HELLO:
        on_update(l, f);
        return;
    case FRAME_JOIN:
    case FRAME_JOIN_REPLY:
        if (n->hooks.join_frame) {
            n->hooks.join_frame(n->hooks.ctx, p->name, f);
        }
        return;
    default:
        break;
    }
    // Without an id it is no member yet and has nothing to say to groups.
    if (p->node_id && n->upcalls) {
        n->upcalls->frame(n->upcalls->ctx, p->node_id, l->lane, f);
    }
}

static void in_resize(struct link *l, size_t cap)
{
    if (l->in_pos > 0) {
        memmove(l->in, l->in + l->in_pos, l->in_len - l->in_pos);
        l->in_len -= l->in_pos;
        l->in_pos = 0;
    }
    assert(l->in_len <= cap);
    if (cap != l->in_cap) {
        l->in = mem_realloc(l->in, cap);
        l->in_cap = cap;
    }
}

static void malformed(struct link *l, enum rc rc)
{
    struct peer_net *n = l->net;
    if (!l->peer) {
        greeting_failed(l, RC_MALFORMED);
        return;
    }
    n->metrics.malformed++;
    uint64_t now = net_now(n);
    if (now >= n->malformed_logged_at) {
        n->malformed_logged_at = now + NET_LOG_NS;
        log_warning("bytes from node %s do not decode (%s); link closed", l->peer->name, rc_text(rc));
    }
    link_lost(l);
}

// Hands out the whole frames that are there, and makes room for the next one.
static void link_parse(struct link *l)
{
    for (;;) {
        struct frame f;
        size_t size = 0;
        enum rc rc = frame_decode(span_of(l->in + l->in_pos, l->in_len - l->in_pos), &f, &size);
        bool is_too_early = l->state == LINK_GREETING && size > PEER_GREETING_MAX;
        if (is_too_early || (rc != RC_OK && rc != RC_MORE)) {
            malformed(l, is_too_early ? RC_TOO_LARGE : rc);
            return;
        }
        if (rc == RC_MORE) {
            size_t wanted = size > FRAME_HEADER_BYTES ? size : FRAME_HEADER_BYTES;
            if (l->in_pos == l->in_len) {
                l->in_pos = l->in_len = 0;
            } else if (l->in_pos + wanted > l->in_cap) {
                in_resize(l, wanted > l->in_cap ? wanted : l->in_cap);
            }
            return;
        }
        l->in_pos += size;
        if (l->state == LINK_GREETING) {
            greet(l, &f);
        } else {
            link_frame(l, &f);
        }
        if (l->state == LINK_CLOSED) {
            return;
        }
    }
}

static void link_read(struct link *l)
{
    size_t total = 0;
    for (int round = 0; round < LINK_READS_PER_TURN && total < LINK_READ_TURN; round++) {
        if (l->in_len == l->in_cap) {
            // Empty and new, or full of a frame that link_parse has made room for otherwise.
            assert(l->in_len == 0 || l->in_pos > 0);
            in_resize(l, l->in_cap ? l->in_cap : l->state == LINK_OPEN ? LINK_READ_MIN : PEER_GREETING_MAX);
        }
        size_t space = l->in_cap - l->in_len;
        size_t got = 0;
        enum rc rc = transport_read(&l->transport, l->in + l->in_len, space, &got);
        if (rc == RC_PENDING) {
            return;
        }
        if (rc != RC_OK) {
            link_lost(l);
            return;
        }
        l->in_len += got;
        total += got;
        l->net->metrics.bytes_in += got;
        l->read_at = l->net->is_closing ? 0 : net_now(l->net);
        link_parse(l);
        if (l->state == LINK_CLOSED) {
            return;
        }
        if (got < space) {
            if (!transport_has_buffered(&l->transport)) {
                return;
            }
        } else if (l->state == LINK_OPEN && l->in_cap < LINK_READ_MAX) {
            in_resize(l, l->in_cap * 2 < LINK_READ_MIN ? LINK_READ_MIN : l->in_cap * 2);
        }
    }
}

void link_shrink(struct link *l, uint64_t now)
{
    if (l->state == LINK_OPEN && l->in_cap > LINK_READ_MIN && l->in_pos == l->in_len &&
        now - l->read_at > LIVENESS_SILENT_NS) {
        l->in_pos = l->in_len = 0;
        in_resize(l, LINK_READ_MIN);
    }
}

static void link_connected(struct link *l)
{
    struct lane *lane = &l->peer->lanes[l->lane];
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(l->transport.fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) {
        error = errno;
    }
    if (error != 0) {
        lane_dial_failed(lane, error == ECONNREFUSED);
        return;
    }
    link_greet_as_dialler(l);
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct link *l = container_of(handle, struct link, poll);
    struct peer_net *n = l->net;
    if (l->state == LINK_CONNECTING) {
        link_connected(l);
    } else {
        if (!l->greeting && !l->is_dialled && l->state == LINK_GREETING) {
            greet_as_acceptor(l);
        }
        if ((events & UV_WRITABLE) && l->state == LINK_OPEN && l->is_dialled) {
            lane_flush(&l->peer->lanes[l->lane]);
        }
        // An error is read off the socket like an end.
        if (l->state != LINK_CLOSED && (status < 0 || (events & UV_READABLE))) {
            link_read(l);
            if (status < 0 && l->state != LINK_CLOSED) {
                link_lost(l);  // libuv has stopped watching it.
            }
        }
    }
    net_run(n);
}
