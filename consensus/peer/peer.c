// SPDX-License-Identifier: Apache-2.0
// What a net knows of one peer (peer_net.h): its name and ids, what it says of itself, whether it is alive.
//
// A peer has a name before it has an id; ids bind once both sides are members of one cluster (peer_learn). A
// process is known by its incarnation: a hello of another one ends the links of the former, and a verdict
// "dead" ends what it had sent, before anybody hears either. A peer that is dropped leaves the tables at once
// and is freed by net_run.
#include "consensus/peer/peer_internal.h"
#include "node/base/limits.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include <stdio.h>
#include <stdlib.h>

static const char *const verdict_names[] = {"alive", "suspect", "dead"};

struct peer *peer_find(struct peer_net *n, const char *name)
{
    list_each(item, &n->peers) {
        struct peer *p = list_entry(item, struct peer, item);
        if (strcmp(p->name, name) == 0) {
            return p;
        }
    }
    return NULL;
}

struct peer *peer_obtain(struct peer_net *n, const char *name, const char *address)
{
    struct peer *p = peer_find(n, name);
    if (p) {
        return p;
    }
    if (n->peers_len == PEER_NET_PEERS_MAX || !address_is_good(address)) {
        return NULL;
    }
    p = mem_zalloc(sizeof(*p));
    p->net = n;
    snprintf(p->name, sizeof(p->name), "%s", name);
    snprintf(p->address, sizeof(p->address), "%s", address);
    liveness_init(&p->liveness);
    for (int i = 0; i < LANE_COUNT; i++) {
        p->lanes[i].peer = p;
        p->lanes[i].id = (enum net_lane)i;
        output_init(&p->lanes[i].output);
        list_init(&p->lanes[i].dirty);
    }
    list_add_tail(&n->peers, &p->item);
    n->peers_len++;
    net_wake(n);
    return p;
}

void peer_free(struct peer *p)
{
    for (int i = 0; i < LANE_COUNT; i++) {
        output_deinit(&p->lanes[i].output);
    }
    free(p);
}

void peer_drop(struct peer *p)
{
    struct peer_net *n = p->net;
    p->is_removed = true;
    dial_forget(p);
    for (int i = 0; i < LANE_COUNT; i++) {
        if (p->lanes[i].out) {
            link_close(p->lanes[i].out);
        }
        if (p->lanes[i].in) {
            link_close(p->lanes[i].in);
        }
    }
    if (p->node_id) {
        map_remove(&n->by_id, p->node_id);
    }
    list_remove(&p->item);
    list_add_tail(&n->removed, &p->item);
    n->peers_len--;
}

void peer_set_id(struct peer *p, uint32_t node_id)
{
    struct peer_net *n = p->net;
    if (node_id == 0 || node_id == p->node_id) {
        return;
    }
    if (map_get(&n->by_id, node_id)) {
        log_error("nodes %s and %s both claim node id %u", ((struct peer *)map_get(&n->by_id, node_id))->name, p->name,
                  node_id);
        return;
    }
    if (p->node_id) {
        map_remove(&n->by_id, p->node_id);
    }
    p->node_id = node_id;
    map_put(&n->by_id, node_id, p);
    p->is_id_new = true;
    net_wake(n);
}

// Who answers under this name has lost its disk and is blank: nothing of it concerns the replicas of the id.
// The store id stays binding until the cluster has given the name another one.
static void peer_clear_id(struct peer *p)
{
    if (p->node_id) {
        map_remove(&p->net->by_id, p->node_id);
        p->node_id = 0;
        p->is_id_new = false;
    }
}

void peer_announce(struct peer *p)
{
    struct peer_net *n = p->net;
    p->is_id_new = false;
    for (int i = 0; i < LANE_COUNT && n->upcalls && !p->is_removed; i++) {
        struct link *out = p->lanes[i].out;
        if (out && out->state == LINK_OPEN) {
            n->upcalls->reset(n->upcalls->ctx, p->node_id, (enum net_lane)i);
        }
    }
    if (p->liveness.verdict == NODE_ALIVE && n->upcalls && !p->is_removed) {
        n->upcalls->node_state(n->upcalls->ctx, p->node_id, NODE_ALIVE, p->liveness.incarnation);
    }
}

void peer_learn(struct peer *p)
{
    const struct peer_hello *self = &p->net->self;
    if (!p->is_greeted || p->hello.is_blank || self->is_blank ||
        memcmp(p->hello.cluster_id, self->cluster_id, CLUSTER_ID_BYTES) != 0) {
        return;
    }
    if (!p->has_store_id) {
        memcpy(p->store_id, p->hello.store_id, STORE_ID_BYTES);
        p->has_store_id = true;
    }
    if (memcmp(p->store_id, p->hello.store_id, STORE_ID_BYTES) == 0) {
        peer_set_id(p, p->hello.node_id);
    }
}

void peer_verdicts(struct peer *p, const struct liveness_out *out)
{
    struct peer_net *n = p->net;
    for (int i = 0; i < out->changes_len && !p->is_removed; i++) {
        enum node_verdict v = out->changes[i].verdict;
        uint64_t incarnation = out->changes[i].incarnation;
        log_notice("node %s is %s (incarnation %llu)", p->name, verdict_names[v], (unsigned long long)incarnation);
        net_changed(n);
        // What a process that is gone had sent may still lie in our sockets. Nobody must hear it after the verdict: an
        // append of a dead leader would keep its followers from electing another.
        for (int lane = 0; v == NODE_DEAD && lane < LANE_COUNT; lane++) {
            if (p->lanes[lane].in) {
                link_lost(p->lanes[lane].in);
            }
        }
        if (p->node_id && !p->is_id_new && n->upcalls) {
            n->upcalls->node_state(n->upcalls->ctx, p->node_id, v, incarnation);
        }
    }
}

void peer_hello_store(struct peer *p, const struct peer_hello *h)
{
    // A member does not become blank again under one store id; such a hello was merely on its way for longer.
    if (p->is_greeted && h->is_blank && !p->hello.is_blank &&
        memcmp(h->store_id, p->hello.store_id, STORE_ID_BYTES) == 0) {
        return;
    }
    bool is_changed = !p->is_greeted || p->hello.is_blank != h->is_blank || p->hello.list_hash != h->list_hash ||
                      p->hello.incarnation != h->incarnation || p->hello.node_id != h->node_id ||
                      p->hello.feature_level != h->feature_level;
    p->hello = *h;
    p->is_greeted = true;
    if (is_changed) {
        net_changed(p->net);
    }
}

enum peer_refusal peer_greet(struct peer *p, const struct peer_hello *hello, char *text)
{
    struct peer_hello h = *hello;  // Upcalls may free the link it lies in.
    const bool is_stranger = p->has_store_id && memcmp(p->store_id, h.store_id, STORE_ID_BYTES) != 0;
    if (is_stranger && !h.is_blank) {
        snprintf(text, PEER_TEXT_MAX + 1,
                 "%.255s is known under another store id: its data directory was replaced or copied from elsewhere. "
                 "Delete it and start the node: it is taken in again as a new one and filled from the others",
                 h.name);
        return REFUSED_IDENTITY;
    }
    struct liveness_out out;
    switch (liveness_hello(&p->liveness, net_now(p->net), h.incarnation, h.store_id, &out)) {
    case RC_OK:
        break;
    case RC_STALE:
        snprintf(
            text, PEER_TEXT_MAX + 1,
            "%s greets with incarnation %llu, but %llu was seen before: an old copy of its data directory?",
            h.name, (unsigned long long)h.incarnation, (unsigned long long)p->liveness.incarnation);
        return REFUSED_STALE;
    default:
        snprintf(text, PEER_TEXT_MAX + 1, "another process is alive as %s with the same identity", h.name);
        return REFUSED_IN_USE;
    }
    if (out.changes_len > 0) {
        // Its former process is gone, and what is left of its links with it.
        for (int i = 0; i < LANE_COUNT; i++) {
            struct link *old[2] = {p->lanes[i].out, p->lanes[i].in};
            for (int k = 0; k < 2; k++) {
                if (old[k] && old[k]->state == LINK_OPEN && old[k]->incarnation != h.incarnation) {
                    link_lost(old[k]);
                }
            }
        }
    }
    peer_verdicts(p, &out);
    if (is_stranger && !p->is_removed) {
        peer_clear_id(p);
    }
    if (!p->is_removed) {
        peer_hello_store(p, &h);
        peer_learn(p);
    }
    return REFUSED_NONE;
}

void peer_refused(struct peer *p, enum peer_refusal why, const char *text, bool is_by_peer)
{
    if (p->refusal == why && strcmp(p->refusal_text, text) == 0) {
        return;
    }
    p->refusal = why;
    snprintf(p->refusal_text, sizeof(p->refusal_text), "%s", text);
    if (is_by_peer) {
        log_error("node %s refuses this node: %s", p->name, text);
    } else {
        log_error("refused node %s: %s", p->name, text);
    }
    net_changed(p->net);
}

void peer_beat_send(struct peer *p)
{
    struct peer_net *n = p->net;
    struct lane *l = &p->lanes[LANE_CONTROL];
    p->beat_at = net_now(n) + LIVENESS_BEAT_NS;
    if (!l->out || l->out->state != LINK_OPEN || output_bytes(&l->output) > PEER_BEAT_OUTPUT_MAX) {
        return;
    }
    struct peer_beat b = {.incarnation = n->self.incarnation, .echo = p->liveness.beat_heard};
    if (n->hooks.beat_fill) {
        n->hooks.beat_fill(n->hooks.ctx, &b);
    }
    b.number = liveness_next_beat(&p->liveness);
    struct buf envelope;
    buf_init(&envelope);
    peer_beat_encode(&envelope, &b);
    output_frame(&l->output, FRAME_BEAT, buf_span(&envelope), NULL, 0, false);
    buf_deinit(&envelope);
    lane_flush(l);
}
