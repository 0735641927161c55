// SPDX-License-Identifier: Apache-2.0
// The simulated net: lanes between nodes, partitions, and the failure detector's verdicts.
//
// A lane from A to B keeps its order; lanes overtake each other. A frame may break its lane: it and what is
// behind it is lost, and A gets `reset` when the lane is up again. A cut direction swallows frames (the
// sender's kernel would hold them) and breaks the lanes; at the end of the cut they are reset. What a process
// had sent before it died may still arrive.
//
// Verdicts (decision 7): A takes B for alive while frames pass both ways (a beat's echo); dead soon after B's process
// ended if its host still answers, or when B is back under a higher incarnation; else suspect after a second
// of silence.
#include "node/base/crc32c.h"
#include "tests/sim/sim.h"
#include <assert.h>
#include <stdlib.h>

enum { FRAME_HEAD_RESERVE = 64 };

struct sim_lane {
    uint64_t epoch;      // Raised when it breaks or is made anew: older frames are lost.
    bool is_connected;
    bool is_broken;      // Swallows frames until the reset.
    bool wants_writable;
    uint64_t queued;
    uint64_t last_at;    // Arrival of the latest frame: order.
};

struct sim_link {        // From one node to another.
    struct sim_lane lanes[LANE_COUNT];
    bool is_cut;
    // What the sender's detector thinks of the receiver.
    enum node_verdict verdict;
    bool is_known;
    uint64_t incarnation_seen;
    uint64_t generation;  // Of the pending change of mind.
    bool is_refused;
};

struct sim_links {
    struct sim_link link[SIM_NODES_MAX + 1][SIM_NODES_MAX + 1];
};

struct sim_packet {
    uint32_t from, to;
    enum net_lane lane;
    uint64_t epoch;
    uint64_t from_incarnation, to_incarnation;
    struct buf bytes;
};

static struct sim_link *link_of(struct sim *s, uint32_t from, uint32_t to)
{
    assert(from >= 1 && from <= s->nodes_count && to >= 1 && to <= s->nodes_count && from != to);
    return &s->links->link[from][to];
}

static struct sim_node *node_of(struct sim *s, uint32_t id)
{
    return &s->nodes[id - 1];
}

// ---- sending ----------------------------------------------------------------------------------------------

static void lane_reset_event(struct sim *s, void *arg, uint64_t n)
{
    struct sim_node *node = arg;
    const uint32_t to = (uint32_t)(n >> 8);
    const enum net_lane lane = (enum net_lane)(n & 0xff);
    struct sim_link *l = link_of(s, node->id, to);
    if (l->verdict != NODE_ALIVE || !l->is_known || !l->lanes[lane].is_broken || l->is_cut) {
        return;  // The link as a whole comes up later.
    }
    l->lanes[lane].is_broken = false;
    l->lanes[lane].is_connected = true;
    l->lanes[lane].epoch++;
    l->lanes[lane].queued = 0;
    const struct net_upcalls *up = host_net_upcalls(node->host);
    up->reset(up->ctx, to, lane);
    sim_node_wake(node, 0);
}

static void lane_break(struct sim_node *from, uint32_t to, enum net_lane lane)
{
    struct sim *s = from->sim;
    struct sim_lane *x = &link_of(s, from->id, to)->lanes[lane];
    x->is_broken = true;
    x->is_connected = false;
    x->epoch++;
    x->queued = 0;
    sim_node_at(from, sim_range(s, SIM_MS, 100 * SIM_MS), lane_reset_event, from, (uint64_t)to << 8 | lane, NULL);
}

static void packet_free(void *arg)
{
    struct sim_packet *p = arg;
    buf_deinit(&p->bytes);
    free(p);
}

static void arrive(struct sim *s, void *arg, uint64_t n)
{
    struct sim_packet *p = arg;
    struct sim_link *l = link_of(s, p->from, p->to);
    struct sim_lane *x = &l->lanes[p->lane];
    struct sim_node *to = node_of(s, p->to);
    struct sim_node *from = node_of(s, p->from);
    (void)n;
    if (to->is_paused && to->is_up) {
        sim_at_owned(s, to->paused_until - s->now + 1, arrive, p, 0, packet_free);
        return;
    }
    if (x->epoch == p->epoch) {
        x->queued -= p->bytes.len < x->queued ? p->bytes.len : x->queued;
        if (x->wants_writable && x->queued < LIMIT_LANE_OUTPUT_BYTES / 2 && from->is_up) {
            x->wants_writable = false;
            const struct net_upcalls *up = host_net_upcalls(from->host);
            up->writable(up->ctx, p->to, p->lane);
            sim_node_wake(from, 0);
        }
    }
    // Who is told that a process is gone has read, or lost, all it had sent.
    const struct sim_link *back = link_of(s, p->to, p->from);
    const bool is_ghost =
        back->is_known && (p->from_incarnation < back->incarnation_seen ||
                           (p->from_incarnation == back->incarnation_seen && back->verdict == NODE_DEAD));
    if (x->epoch == p->epoch && !l->is_cut && to->is_up && to->incarnation == p->to_incarnation && !is_ghost) {
        struct frame f;
        size_t size;
        const enum rc rc = frame_decode(buf_span(&p->bytes), &f, &size);
        assert(rc == RC_OK && size == p->bytes.len);
        sim_trace(s, p->from << 16 | p->to << 8 | (uint32_t)p->lane, f.type);
        s->counters.frames++;
        const struct net_upcalls *up = host_net_upcalls(to->host);
        up->frame(up->ctx, p->from, p->lane, &f);
        sim_node_wake(to, sim_range(s, 0, 30 * SIM_US));
        sim_check_node(to);
    }
    packet_free(p);
}

static enum rc net_send(struct net *base, uint32_t node, enum net_lane lane, enum frame_type type, struct span envelope,
                        const struct iovec *raw, int raw_count, bool raw_crc)
{
    struct sim_node *from = container_of(base, struct sim_net, base)->node;
    struct sim *s = from->sim;
    if (node < 1 || node > s->nodes_count || node == from->id) {
        return RC_NOT_CONNECTED;
    }
    struct sim_link *l = link_of(s, from->id, node);
    struct sim_lane *x = &l->lanes[lane];
    if (!x->is_connected) {
        return RC_NOT_CONNECTED;
    }
    if (x->queued > LIMIT_LANE_OUTPUT_BYTES) {
        x->wants_writable = true;
        return RC_FULL;
    }
    struct sim_packet *p = mem_zalloc(sizeof(*p));
    buf_init(&p->bytes);
    size_t raw_len = raw_crc ? 4 : 0;
    for (int i = 0; i < raw_count; i++) {
        raw_len += raw[i].iov_len;
    }
    buf_reserve(&p->bytes, FRAME_HEAD_RESERVE + envelope.len + raw_len);
    frame_encode_head(&p->bytes, type, raw_crc ? FRAME_RAW_CRC : 0, envelope, raw_len);
    const size_t at = p->bytes.len;
    for (int i = 0; i < raw_count; i++) {
        buf_bytes(&p->bytes, raw[i].iov_base, raw[i].iov_len);
    }
    if (raw_crc) {
        buf_u32(&p->bytes, crc32c(0, p->bytes.ptr + at, p->bytes.len - at));
    }
    p->from = from->id;
    p->to = node;
    p->lane = lane;
    p->epoch = x->epoch;
    p->from_incarnation = from->incarnation;
    p->to_incarnation = l->incarnation_seen;
    if (l->is_cut || x->is_broken) {
        packet_free(p);  // Held by the kernel until the link breaks; also after the cut, behind what was lost in it.
        x->queued += raw_len;
        return RC_OK;
    }
    if (!s->is_calm && sim_chance(s, s->faults.lane_reset_one_in)) {
        packet_free(p);
        lane_break(from, node, lane);
        return RC_OK;
    }
    uint64_t delay = sim_range(s, s->faults.net_delay_min, s->faults.net_delay_spread) + p->bytes.len;  // 1 GB/s.
    if (!s->is_calm && sim_chance(s, s->faults.net_slow_one_in)) {
        delay *= 100;
    }
    uint64_t when = s->now + delay;
    if (when <= x->last_at) {
        when = x->last_at + 1;
    }
    x->last_at = when;
    x->queued += p->bytes.len;
    sim_at_owned(s, when - s->now, arrive, p, 0, packet_free);
    return RC_OK;
}

static void net_flush(struct net *n)
{
    (void)n;
}

static size_t net_queued(struct net *n, uint32_t node, enum net_lane lane)
{
    struct sim_node *from = container_of(n, struct sim_net, base)->node;
    return node >= 1 && node <= from->sim->nodes_count && node != from->id
               ? (size_t)link_of(from->sim, from->id, node)->lanes[lane].queued
               : 0;
}

static bool net_is_connected(struct net *n, uint32_t node, enum net_lane lane)
{
    struct sim_node *from = container_of(n, struct sim_net, base)->node;
    return node >= 1 && node <= from->sim->nodes_count && node != from->id &&
           link_of(from->sim, from->id, node)->lanes[lane].is_connected;
}

// ---- verdicts ---------------------------------------------------------------------------------------------

static bool hears(struct sim *s, uint32_t a, uint32_t b)
{
    return node_of(s, b)->is_up && !node_of(s, b)->is_paused && !link_of(s, a, b)->is_cut && !link_of(s, b, a)->is_cut;
}

static void tell(struct sim_node *n, uint32_t about, enum node_verdict verdict)
{
    struct sim *s = n->sim;
    struct sim_link *l = link_of(s, n->id, about);
    l->verdict = verdict;
    l->is_known = true;
    sim_log(s, "node %u: node %u is %s (%llu)", n->id, about,
            verdict == NODE_ALIVE ? "alive" : verdict == NODE_DEAD ? "dead" : "suspect",
            (unsigned long long)l->incarnation_seen);
    const struct net_upcalls *up = host_net_upcalls(n->host);
    up->node_state(up->ctx, about, verdict, l->incarnation_seen);
    sim_node_wake(n, 0);
}

static void verdict_up(struct sim *s, void *arg, uint64_t generation)
{
    struct sim_link *l = arg;
    const ptrdiff_t at = l - &s->links->link[0][0];
    const uint32_t a = (uint32_t)(at / (SIM_NODES_MAX + 1)), b = (uint32_t)(at % (SIM_NODES_MAX + 1));
    struct sim_node *n = node_of(s, a);
    if (l->generation != generation || !n->is_up || n->is_paused || !hears(s, a, b)) {
        return;
    }
    const uint64_t incarnation = node_of(s, b)->incarnation;
    const bool is_new = l->incarnation_seen != 0 && incarnation > l->incarnation_seen;
    l->incarnation_seen = incarnation;
    if (is_new && l->verdict != NODE_DEAD) {
        tell(n, b, NODE_DEAD);
    }
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        struct sim_lane *x = &l->lanes[lane];
        x->is_connected = true;
        x->is_broken = false;
        x->epoch++;
        x->queued = 0;
    }
    tell(n, b, NODE_ALIVE);
    const struct net_upcalls *up = host_net_upcalls(n->host);
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        up->reset(up->ctx, b, (enum net_lane)lane);
    }
    sim_check_node(n);
}

static void verdict_down(struct sim *s, void *arg, uint64_t generation)
{
    struct sim_link *l = arg;
    const ptrdiff_t at = l - &s->links->link[0][0];
    const uint32_t a = (uint32_t)(at / (SIM_NODES_MAX + 1)), b = (uint32_t)(at % (SIM_NODES_MAX + 1));
    struct sim_node *n = node_of(s, a);
    if (l->generation != generation || !n->is_up || n->is_paused) {
        return;
    }
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        l->lanes[lane].is_connected = false;
        l->lanes[lane].epoch++;
    }
    tell(n, b, l->is_refused ? NODE_DEAD : NODE_SUSPECT);
    sim_check_node(n);
}

// Something changed between a and b: what will a's detector come to think?
static void review(struct sim *s, uint32_t a, uint32_t b)
{
    struct sim_link *l = link_of(s, a, b);
    struct sim_node *n = node_of(s, a);
    if (!n->is_up) {
        return;
    }
    l->generation++;
    if (hears(s, a, b)) {
        const bool is_new = l->incarnation_seen != node_of(s, b)->incarnation;
        bool is_whole = true;
        for (int lane = 0; lane < LANE_COUNT; lane++) {
            is_whole = is_whole && !l->lanes[lane].is_broken;
        }
        if (!l->is_known || l->verdict != NODE_ALIVE || is_new || !is_whole) {
            sim_at(s, sim_range(s, 2 * SIM_MS, 60 * SIM_MS), verdict_up, l, l->generation);
        }
    } else if ((l->is_known && l->verdict == NODE_ALIVE) ||
               (node_of(s, b)->is_gone && !(l->is_known && l->verdict == NODE_DEAD))) {
        // Who answers in the place of a wiped node is another one (decision 7); also to those who never met it.
        l->incarnation_seen = l->incarnation_seen ? l->incarnation_seen : node_of(s, b)->incarnation;
        l->is_refused = !node_of(s, b)->is_up && (l->is_refused || node_of(s, b)->is_gone) && !l->is_cut;
        const uint64_t delay = l->is_refused ? sim_range(s, SIM_MS, 20 * SIM_MS) : sim_range(s, SIM_S, 200 * SIM_MS);
        sim_at(s, delay, verdict_down, l, l->generation);
    }
}

void sim_net_review_all(struct sim *s, uint32_t node)
{
    for (uint32_t i = 1; i <= s->nodes_count; i++) {
        if (i != node) {
            review(s, i, node);
            review(s, node, i);
        }
    }
}

void sim_net_node_up(struct sim_node *n)
{
    struct sim *s = n->sim;
    for (uint32_t i = 1; i <= s->nodes_count; i++) {
        if (i != n->id) {
            // A process without memory of links; the others still hold theirs to its predecessor.
            struct sim_link *mine = link_of(s, n->id, i);
            for (int lane = 0; lane < LANE_COUNT; lane++) {
                mine->lanes[lane].epoch++;
                mine->lanes[lane].is_connected = mine->lanes[lane].is_broken = false;
                mine->lanes[lane].queued = 0;
            }
            mine->is_known = false;
            mine->verdict = NODE_DEAD;
            mine->incarnation_seen = 0;
        }
    }
    sim_net_review_all(s, n->id);
}

void sim_net_node_down(struct sim_node *n, bool is_refused)
{
    struct sim *s = n->sim;
    for (uint32_t i = 1; i <= s->nodes_count; i++) {
        if (i != n->id) {
            link_of(s, i, n->id)->is_refused = is_refused;
        }
    }
    sim_net_review_all(s, n->id);
}

void sim_net_cut(struct sim *s, uint32_t from, uint32_t to, bool is_cut)
{
    struct sim_link *l = link_of(s, from, to);
    if (l->is_cut == is_cut) {
        return;
    }
    sim_log(s, "net: %u -> %u %s", from, to, is_cut ? "cut" : "healed");
    l->is_cut = is_cut;
    if (is_cut) {
        for (int lane = 0; lane < LANE_COUNT; lane++) {
            l->lanes[lane].epoch++;  // What is on its way is lost.
            l->lanes[lane].is_broken = l->lanes[lane].is_broken || l->lanes[lane].is_connected;
        }
    }
    review(s, from, to);
    review(s, to, from);
}

bool sim_net_is_cut(const struct sim *s, uint32_t from, uint32_t to)
{
    return s->links->link[from][to].is_cut;
}

void sim_net_heal(struct sim *s)
{
    for (uint32_t a = 1; a <= s->nodes_count; a++) {
        for (uint32_t b = 1; b <= s->nodes_count; b++) {
            if (a != b) {
                sim_net_cut(s, a, b, false);
            }
        }
    }
}

void sim_net_bind(struct sim_node *n)
{
    n->net.node = n;
    n->net.base =
        (struct net){.send = net_send, .flush = net_flush, .queued = net_queued, .is_connected = net_is_connected};
}

void sim_net_create(struct sim *s)
{
    s->links = mem_zalloc(sizeof(*s->links));
    for (uint32_t a = 0; a <= SIM_NODES_MAX; a++) {
        for (uint32_t b = 0; b <= SIM_NODES_MAX; b++) {
            s->links->link[a][b].verdict = NODE_DEAD;
        }
    }
}

void sim_net_destroy(struct sim *s)
{
    free(s->links);
}
