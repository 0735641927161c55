// SPDX-License-Identifier: Apache-2.0
// The net (peer_net.h): table of peers, timer, sending, public calls. peer.c has what is known of each peer, link.c the
// connections, dial.c and listen.c how they come about.
//
// One timer serves all deadlines; net_run does everything that is due (dials, beats, verdicts, timeouts) and sets it
// again. Anything that must not happen inside net.send and net.flush (upcalls, dials) waits for net_run, which net_wake
// brings about in the loop's next turn.
//
// A net belongs to one loop, worker 0's, and so do all calls; net_share.c lets other workers send.
#include "consensus/peer/peer_internal.h"
#include "node/base/limits.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct peer_net *net_of(struct net *n)
{
    return container_of(n, struct peer_net, net);
}

uint64_t net_now(const struct peer_net *n)
{
    return clock_mono_ns(n->clock);
}

void net_changed(struct peer_net *n)
{
    n->is_changed = true;
    net_wake(n);
}

// ---- sending -----------------------------------------------------------------------------------------------------

static struct lane *lane_open(struct peer_net *n, uint32_t node, enum net_lane lane)
{
    struct peer *p = map_get(&n->by_id, node);
    if (!p) {
        return NULL;
    }
    struct lane *l = &p->lanes[lane];
    return l->out && l->out->state == LINK_OPEN ? l : NULL;
}

static enum rc lane_send(struct lane *l, enum frame_type type, struct span envelope, const struct iovec *raw,
                         int raw_count, bool raw_crc)
{
    size_t size = FRAME_HEADER_BYTES + envelope.len + (raw_crc ? 4 : 0);
    for (int i = 0; i < raw_count; i++) {
        size += raw[i].iov_len;
    }
    if (output_bytes(&l->output) + size > LIMIT_LANE_OUTPUT_BYTES) {
        l->wants_room = true;
        return RC_FULL;
    }
    output_frame(&l->output, type, envelope, raw, raw_count, raw_crc);
    if (list_is_empty(&l->dirty)) {
        list_add_tail(&l->peer->net->dirty, &l->dirty);
    }
    return RC_OK;
}

static enum rc net_send(struct net *net, uint32_t node, enum net_lane lane, enum frame_type type, struct span envelope,
                        const struct iovec *raw, int raw_count, bool raw_crc)
{
    struct lane *l = lane_open(net_of(net), node, lane);
    return l ? lane_send(l, type, envelope, raw, raw_count, raw_crc) : RC_NOT_CONNECTED;
}

static enum rc net_send_encoded(struct net *net, uint32_t node, enum net_lane lane, struct span frames)
{
    struct lane *l = lane_open(net_of(net), node, lane);
    if (!l) {
        return RC_NOT_CONNECTED;
    }
    output_encoded(&l->output, frames);
    if (list_is_empty(&l->dirty)) {
        list_add_tail(&l->peer->net->dirty, &l->dirty);
    }
    return RC_OK;
}

static bool lane_has_room(const struct lane *l)
{
    return output_bytes(&l->output) <= LIMIT_LANE_OUTPUT_BYTES / 2;
}

void lane_flush(struct lane *l)
{
    struct link *k = l->out;
    assert(k != NULL);
    assert(k->state == LINK_OPEN);
    list_remove(&l->dirty);
    uint64_t before = l->output.taken;
    enum rc rc = output_flush(&l->output, &k->transport);
    l->peer->net->metrics.bytes_out += l->output.taken - before;
    if (rc == RC_NOT_CONNECTED) {
        link_lost(k);
        return;
    }
    link_poll(k);
    if (l->wants_room && lane_has_room(l)) {
        net_wake(l->peer->net);
    }
}

static void net_flush(struct net *net)
{
    struct peer_net *n = net_of(net);
    while (!list_is_empty(&n->dirty)) {
        lane_flush(list_entry(n->dirty.next, struct lane, dirty));
    }
}

static size_t net_queued(struct net *net, uint32_t node, enum net_lane lane)
{
    struct lane *l = lane_open(net_of(net), node, lane);
    return l ? output_bytes(&l->output) : 0;
}

static bool net_is_connected(struct net *net, uint32_t node, enum net_lane lane)
{
    return lane_open(net_of(net), node, lane) != NULL;
}

static uint32_t net_level(struct net *net, uint32_t node)
{
    const struct peer *p = map_get(&net_of(net)->by_id, node);
    return p && p->is_greeted ? p->hello.feature_level : 0;
}

enum rc peer_net_send_named(struct peer_net *n, const char *name, enum frame_type type, struct span envelope)
{
    struct peer *p = peer_find(n, name);
    struct lane *l = p ? &p->lanes[LANE_CONTROL] : NULL;
    if (!l || !l->out || l->out->state != LINK_OPEN) {
        return RC_NOT_CONNECTED;
    }
    TRY(lane_send(l, type, envelope, NULL, 0, false));
    lane_flush(l);
    return RC_OK;
}

// ---- what is due -------------------------------------------------------------------------------------------------

static void due(uint64_t *next, uint64_t at)
{
    *next = at < *next ? at : *next;
}

static void run_lane(struct lane *l, uint64_t now, uint64_t *next)
{
    struct peer *p = l->peer;
    struct peer_net *n = p->net;
    struct link *control = p->lanes[LANE_CONTROL].out;
    // The control lane goes first: a node that is away costs one dial per round, not four.
    bool may_dial = l->id == LANE_CONTROL || (control && control->state == LINK_OPEN);
    if (!l->out) {
        if (may_dial && l->retry_at <= now) {
            lane_dial(l);
        }
        if (l->out) {
            due(next, l->out->deadline);  // run_deadlines was before.
        } else if (may_dial && !p->is_removed) {
            due(next, l->retry_at);
        }
        return;
    }
    if (l->out->state != LINK_OPEN) {
        return;
    }
    if (l->wants_room && lane_has_room(l)) {
        l->wants_room = false;
        if (p->node_id && n->upcalls) {
            n->upcalls->writable(n->upcalls->ctx, p->node_id, l->id);
        }
    }
    if (!l->out || l->out->state != LINK_OPEN) {
        return;
    }
    if (output_bytes(&l->output) == 0 || l->output.taken != l->progress_taken) {
        l->progress_at = now;
        l->progress_taken = l->output.taken;
    } else if (now - l->progress_at >= LINK_STALL_NS) {
        log_warning("node %s takes nothing on lane %d for 2 s; the lane is reopened", p->name, (int)l->id);
        n->metrics.stalls++;
        link_lost(l->out);
        due(next, now);
    }
}

static void run_peer(struct peer *p, uint64_t now, bool is_late, uint64_t *next)
{
    if (!is_late) {
        struct liveness_out out;
        liveness_tick(&p->liveness, now, &out);
        peer_verdicts(p, &out);
    }
    if (!p->is_removed && p->node_id == 0) {
        peer_learn(p);  // We may have become a member only now.
    }
    if (!p->is_removed && p->is_id_new) {
        peer_announce(p);
    }
    for (int i = 0; i < LANE_COUNT && !p->is_removed; i++) {
        run_lane(&p->lanes[i], now, next);
    }
    if (p->is_removed) {
        return;
    }
    struct link *control = p->lanes[LANE_CONTROL].out;
    if (control && control->state == LINK_OPEN) {
        if (p->beat_at <= now) {
            peer_beat_send(p);
            for (int i = 0; i < LANE_COUNT; i++) {
                if (p->lanes[i].in) {
                    link_shrink(p->lanes[i].in, now);
                }
            }
        }
        due(next, p->beat_at);
    }
    due(next, liveness_deadline(&p->liveness));
}

// Links that took too long to connect or to prove themselves.
static void run_deadlines(struct peer_net *n, uint64_t now, uint64_t *next)
{
    for (struct list *item = n->dialling.next; item != &n->dialling;) {
        struct link *l = list_entry(item, struct link, item);
        item = item->next;
        if (l->deadline > now) {
            due(next, l->deadline);
            continue;
        }
        if (l->state == LINK_CONNECTING) {
            lane_dial_failed(&l->peer->lanes[l->lane], false);  // Timed out is not refused: no verdict, no upcall.
        } else {
            link_lost(l);
        }
        due(next, now);
    }
    list_each(item, &n->greetings) {
        struct link *l = list_entry(item, struct link, item);
        if (l->deadline > now) {
            due(next, l->deadline);
            break;  // Oldest first.
        }
        link_lost(l);
    }
}

// Whoever counted on a removed peer learns that it is gone.
static void free_removed(struct peer_net *n)
{
    while (!list_is_empty(&n->removed)) {
        struct peer *p = list_entry(list_pop(&n->removed), struct peer, item);
        if (p->node_id && p->liveness.incarnation && p->liveness.verdict != NODE_DEAD && n->upcalls &&
            !map_get(&n->by_id, p->node_id)) {
            n->upcalls->node_state(n->upcalls->ctx, p->node_id, NODE_DEAD, p->liveness.incarnation);
        }
        peer_free(p);
    }
}

void net_run(struct peer_net *n)
{
    if (n->is_closing || n->is_running) {
        return;
    }
    uint64_t now = net_now(n);
    if (now < n->next_at) {
        return;
    }
    // A loop that stood still has beats waiting in its sockets; it must not take its own silence for theirs.
    bool is_late = n->next_at > 0 && now - n->next_at > NET_LATE_NS;
    n->is_running = true;
    n->next_at = UINT64_MAX;
    uint64_t next = UINT64_MAX;
    run_deadlines(n, now, &next);
    // Upcalls may add and remove peers: added ones come at the end, removed ones stay readable until below.
    for (struct list *item = n->peers.next, *after; item != &n->peers; item = after) {
        struct peer *p = list_entry(item, struct peer, item);
        run_peer(p, now, is_late, &next);
        after = p->is_removed ? n->peers.next : p->item.next;
        if (n->is_closing) {
            break;
        }
    }
    if (n->is_changed && !n->is_closing) {
        n->is_changed = false;
        if (n->hooks.changed) {
            n->hooks.changed(n->hooks.ctx);
        }
    }
    free_removed(n);
    n->is_running = false;
    if (n->is_closing) {
        return;
    }
    if (n->is_listener_paused) {
        listener_watch(n);
        due(&next, now + LIVENESS_BEAT_NS);
    }
    due(&next, is_late ? now : n->next_at);  // net_wake may have been called on the way.
    n->next_at = next;
    if (next == UINT64_MAX) {
        uv_timer_stop(&n->timer);
        return;
    }
    // Never 0: libuv runs a timer that is due again at once before it looks at sockets, so that what is waited for here
    // could never arrive.
    uint64_t delay_ms = next > now ? (next - now + 999999) / 1000000 : 1;
    uv_update_time(n->loop);
    int rc = uv_timer_start(&n->timer, n->timer.timer_cb, delay_ms, 0);
    assert(rc == 0);
}

static void on_timer(uv_timer_t *timer)
{
    struct peer_net *n = container_of(timer, struct peer_net, timer);
    net_run(n);
    if (n->next_at > net_now(n) && n->next_at != UINT64_MAX && !uv_is_active((uv_handle_t *)timer) && !n->is_closing) {
        // Fired a little early by the loop's coarser clock.
        int rc = uv_timer_start(timer, on_timer, 1, 0);
        assert(rc == 0);
    }
}

void net_wake(struct peer_net *n)
{
    n->next_at = 0;
    if (!n->is_closing && !n->is_running) {
        int rc = uv_timer_start(&n->timer, on_timer, 0, 0);
        assert(rc == 0);
    }
}

// ---- life --------------------------------------------------------------------------------------------------------

enum rc peer_net_create(const struct peer_net_config *c, struct peer_net **out)
{
    assert(c->secret.len > 0);
    assert(c->self.name[0] != 0);
    assert(c->self.incarnation > 0);
    struct peer_net *n = mem_zalloc(sizeof(*n));
    n->net = (struct net){.send = net_send,
                          .flush = net_flush,
                          .queued = net_queued,
                          .is_connected = net_is_connected,
                          .level = net_level,
                          .send_encoded = net_send_encoded};
    n->loop = c->loop;
    n->clock = c->clock;
    n->random = c->random;
    n->self = c->self;
    n->upcalls = c->upcalls;
    n->hooks = c->hooks;
    n->listener_fd = -1;
    list_init(&n->peers);
    list_init(&n->removed);
    list_init(&n->greetings);
    list_init(&n->dialling);
    list_init(&n->dirty);
    map_init_u64(&n->by_id);
    buf_init(&n->secret);
    enum rc rc = listener_open(n, c->listen);
    if (rc == RC_OK && uv_poll_init(n->loop, &n->listener, n->listener_fd) != 0) {
        close(n->listener_fd);
        rc = RC_SYSTEM;
    }
    if (rc != RC_OK) {
        map_deinit(&n->by_id);
        free(n);
        return rc;
    }
    buf_span_bytes(&n->secret, c->secret);
    n->handles = 2;
    uv_timer_init(n->loop, &n->timer);
    n->timer.timer_cb = on_timer;
    listener_watch(n);
    net_wake(n);
    *out = n;
    return RC_OK;
}

void net_handle_closed(struct peer_net *n)
{
    assert(n->handles > 0);
    if (--n->handles > 0 || !n->is_closing) {
        return;
    }
    while (!list_is_empty(&n->removed)) {
        peer_free(list_entry(list_pop(&n->removed), struct peer, item));
    }
    void (*closed)(void *ctx) = n->closed;
    void *ctx = n->closed_ctx;
    map_deinit(&n->by_id);
    buf_deinit(&n->secret);
    free(n);
    if (closed) {
        closed(ctx);
    }
}

static void on_listener_closed(uv_handle_t *handle)
{
    net_handle_closed(container_of((uv_poll_t *)handle, struct peer_net, listener));
}

static void on_timer_closed(uv_handle_t *handle)
{
    net_handle_closed(container_of((uv_timer_t *)handle, struct peer_net, timer));
}

void peer_net_close(struct peer_net *n, void (*done)(void *ctx), void *ctx)
{
    assert(!n->is_closing);
    n->is_closing = true;
    n->closed = done;
    n->closed_ctx = ctx;
    n->upcalls = NULL;
    n->hooks = (struct peer_net_hooks){.ctx = NULL};
    // The port first: a peer that dials at once because its link closed must be refused (then it knows: dead).
    uv_close((uv_handle_t *)&n->listener, on_listener_closed);
    close(n->listener_fd);
    while (!list_is_empty(&n->greetings)) {
        link_close(list_entry(n->greetings.next, struct link, item));
    }
    while (!list_is_empty(&n->peers)) {
        peer_drop(list_entry(n->peers.next, struct peer, item));
    }
    uv_close((uv_handle_t *)&n->timer, on_timer_closed);
}

void peer_net_set_upcalls(struct peer_net *n, const struct net_upcalls *upcalls)
{
    n->upcalls = upcalls;
    // Who was heard of before anybody could be told: net_run announces them.
    list_each(item, &n->peers) {
        struct peer *p = list_entry(item, struct peer, item);
        p->is_id_new = p->node_id != 0;
    }
    net_wake(n);
}

struct net *peer_net_net(struct peer_net *n)
{
    return &n->net;
}

uint16_t peer_net_port(const struct peer_net *n)
{
    return n->port;
}

static bool has_greeted_with(const struct peer *p, const uint8_t *store_id)
{
    return p->is_greeted && memcmp(p->hello.store_id, store_id, STORE_ID_BYTES) == 0;
}

enum rc peer_net_add(struct peer_net *n, const char *name, const char *address, uint32_t node_id,
                     const uint8_t *store_id)
{
    struct peer *p = peer_find(n, name);
    if ((!p && !address) || (address && !address_is_good(address)) || strlen(name) > PEER_NAME_MAX || !name[0] ||
        strcmp(name, n->self.name) == 0) {
        return RC_INVALID;
    }
    struct peer *other = node_id ? map_get(&n->by_id, node_id) : NULL;
    if (other && other != p) {
        return RC_CONFLICT;
    }
    if (p && store_id && p->has_store_id && memcmp(p->store_id, store_id, STORE_ID_BYTES) != 0 &&
        !has_greeted_with(p, store_id)) {
        // The name has another disk now: what is known of the former one ends with its links.
        char known[PEER_ADDRESS_MAX + 1];
        snprintf(known, sizeof(known), "%s", address ? address : p->address);
        peer_drop(p);
        return peer_net_add(n, name, known, node_id, store_id);
    }
    if (!p) {
        p = peer_obtain(n, name, address);
        if (!p) {
            return RC_FULL;
        }
    } else if (address && strcmp(address, p->address) != 0) {
        snprintf(p->address, sizeof(p->address), "%s", address);
        dial_forget(p);
        for (int i = 0; i < LANE_COUNT; i++) {
            p->lanes[i].retry_at = 0;
        }
    }
    if (store_id) {
        memcpy(p->store_id, store_id, STORE_ID_BYTES);
        p->has_store_id = true;
    }
    if (!p->is_greeted || !p->has_store_id || has_greeted_with(p, p->store_id)) {
        peer_set_id(p, node_id);
    }
    net_wake(n);
    return RC_OK;
}

void peer_net_remove(struct peer_net *n, const char *name)
{
    struct peer *p = peer_find(n, name);
    if (p) {
        peer_drop(p);
        net_changed(n);
    }
}

void peer_net_set_self(struct peer_net *n, const struct peer_hello *self)
{
    assert(strcmp(self->name, n->self.name) == 0);
    assert(self->incarnation == n->self.incarnation);
    n->self = *self;
    struct peer_hello h = *self;
    memset(h.nonce, 0, sizeof(h.nonce));
    list_each(item, &n->peers) {
        struct peer *p = list_entry(item, struct peer, item);
        for (int i = 0; i < LANE_COUNT; i++) {
            struct lane *l = &p->lanes[i];
            if (!l->out || l->out->state != LINK_OPEN) {
                continue;
            }
            h.lane = (uint32_t)i;
            struct buf envelope;
            buf_init(&envelope);
            peer_hello_encode(&envelope, &h, false);
            output_frame(&l->output, FRAME_HELLO, buf_span(&envelope), NULL, 0, false);
            buf_deinit(&envelope);
            lane_flush(l);
        }
    }
    net_changed(n);
}

// ---- looking -----------------------------------------------------------------------------------------------------

void peer_net_each(struct peer_net *n, void (*each)(void *ctx, const struct peer_info *p), void *ctx)
{
    list_each(item, &n->peers) {
        struct peer *p = list_entry(item, struct peer, item);
        struct peer_info info = {
            .name = p->name,
            .address = p->address,
            .node_id = p->node_id,
            .verdict = p->liveness.verdict,
            .hello = p->is_greeted ? &p->hello : NULL,
            .refusal = p->refusal != REFUSED_NONE ? p->refusal_text : NULL,
            .refusal_kind = p->refusal,
            .beat = p->beat,
            .heard_ns = p->liveness.heard_at,
        };
        each(ctx, &info);
    }
}

void peer_net_form(struct peer_net *n, const char *const *names, uint32_t names_len, struct formation_decision *out)
{
    assert(names_len <= FORMATION_PEERS_MAX);
    struct formation_peer peers[FORMATION_PEERS_MAX];
    for (uint32_t i = 0; i < names_len; i++) {
        struct peer *p = peer_find(n, names[i]);
        peers[i] = (struct formation_peer){.name = p ? p->name : names[i]};
        if (!p) {
            continue;
        }
        peers[i].is_reachable = p->liveness.verdict == NODE_ALIVE;
        peers[i].is_known = p->is_greeted;
        peers[i].is_blank = p->hello.is_blank;
        peers[i].list_hash = p->hello.list_hash;
        memcpy(peers[i].cluster_id, p->hello.cluster_id, CLUSTER_ID_BYTES);
        peers[i].refusal = p->refusal != REFUSED_NONE ? p->refusal_text : NULL;
    }
    struct formation_self self = {
        .name = n->self.name,
        .is_blank = n->self.is_blank,
        .list_hash = n->self.list_hash,
    };
    formation_decide(&self, peers, names_len, out);
}

void peer_net_metrics(const struct peer_net *n, struct peer_net_metrics *out)
{
    *out = n->metrics;
    out->links_greeting = n->greetings_len;
    list_each(item, &n->peers) {
        const struct peer *p = list_entry(item, struct peer, item);
        for (int i = 0; i < LANE_COUNT; i++) {
            const struct lane *l = &p->lanes[i];
            out->buffer_bytes += output_bytes(&l->output) + (l->in ? l->in->in_cap : 0) + (l->out ? l->out->in_cap : 0);
        }
    }
    list_each(item, &n->greetings) {
        out->buffer_bytes += list_entry(item, struct link, item)->in_cap;
    }
}
