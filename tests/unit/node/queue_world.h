// SPDX-License-Identifier: Apache-2.0
// A cluster without consensus, clock or sockets, for queue sessions: one group whose log is an array, a leader named by
// the test, and wires on which every frame can be lost (with a reset), doubled or reordered.
//
// It defines the functions of host.h that node/queue calls, so tests link node/queue without consensus. Nodes 1..3 are
// members, node 4 only has clients. Everything is driven by world_round and is the same for the same seed.
#pragma once
#include "node/queue/queue_parts.h"
#include "proto/record.h"
#include "wire.h"

enum { NODES = 4, MEMBERS = 3, GROUP = 77 };
enum fault {
    FAULT_NONE,
    FAULT_LOSE,
    FAULT_DOUBLE,
    FAULT_SWAP,
    FAULT_LEADER_KEEPS,
    FAULT_LEADER_LOSES,
    FAULT_STALE_LEADER,
    FAULT_LANE_FULL,
    FAULT_GROUP_FULL,
    FAULTS
};

struct world;
struct group {
    struct world *w;
    struct host *host;
    const struct fsm_ops *fsm;
    void *fsm_ctx;
    bool exists, is_leader;
    uint64_t term;         // Known.
    uint32_t leader_node;  // Known.
    uint64_t applied;
};
struct host {
    struct world *w;
    uint32_t node;
    struct net net;
    struct list watchers;
    host_frame_fn *frame;
    void *frame_ctx;
    struct queue_service *q;
    struct group group;
};
struct world_entry {
    uint64_t index, term;
    uint16_t kind;
    struct span payload;  // Owned,
    struct block *block;  // or it lies in this.
};
struct world_read {
    struct glog_read *read;
    struct group *g;
};
struct world {
    uint64_t now;
    struct rng rng;
    struct host hosts[NODES + 1];
    struct world_entry *log;  // log[i] has index i + 1.
    uint64_t last, cap, commit;
    uint32_t in_place, summed;  // Large entries made where their bytes lay, and those whose sum was known.
    uint32_t leader;
    uint64_t term, noop;
    struct list wires[NODES + 1][NODES + 1];
    uint32_t frame_rounds[NODES + 1][NODES + 1];  // A slow wire: one frame in so many rounds. 0: four in each.
    bool is_down[NODES + 1];
    bool is_unproven;          // Read barriers fail: a majority is slow to answer, or the leader to apply.
    bool is_mute[NODES + 1];   // Does not say which parts it took (FRAME_SESSION_TAKEN).
    struct world_read reads[64];
    uint32_t reads_count, reads_most;  // At once.
    uint64_t read_indexes;             // By all.
    uint32_t slow_percent;     // Rounds in which nothing is committed.
    uint64_t unreadable;       // Index of an entry that no replica can read any more.
    uint32_t cold_percent;     // Share of group_entry calls answered RC_COLD.
    uint32_t full_rounds, lane_full_rounds;
    // Faults.
    uint64_t events, fault_at;
    enum fault fault;
    uint32_t wild_percent;     // Random faults on every event.
    struct list *recorded;     // Copies of all that arrives from node 4, if set.
};
static struct world *the_world;

// ---- host.h --------------------------------------------------------------------------------------------------------

void host_on_frames(struct host *h, uint16_t first, uint16_t last, host_frame_fn *fn, void *ctx)
{
    h->frame = fn;
    h->frame_ctx = ctx;
}
void host_watch(struct host *h, struct host_watcher *watcher)
{
    list_add_tail(&h->watchers, &watcher->link);
}
bool host_node_is_alive(const struct host *h, uint32_t node)
{
    return !h->w->is_down[node];
}
uint64_t host_now(const struct host *h)
{
    return h->w->now;
}
int64_t host_wall_ms(const struct host *h)
{
    return (int64_t)(h->w->now / 1000000);
}
enum rc host_group_add(struct host *h, const struct group_spec *spec, struct group **out)
{
    h->group = (struct group){.w = h->w, .host = h, .fsm = spec->fsm, .fsm_ctx = spec->fsm_ctx, .exists = true};
    *out = &h->group;
    return RC_OK;
}
void host_group_remove(struct group *g, bool is_deleted)
{
    g->exists = false;
}
void group_status(const struct group *g, struct consensus_status *out)
{
    *out = (struct consensus_status){
        .role = g->is_leader ? ROLE_LEADER : ROLE_FOLLOWER,
        .term = g->term,
        .leader_node = g->leader_node,
        .commit = g->w->commit,
        .applied = g->applied,
        .is_ready = g->is_leader && g->term == g->w->term && g->applied >= g->w->noop,
    };
}
void group_wake(struct group *g)
{
}
// Proven at once where the node leads and has applied everything; a deposed leader cannot.
void group_read_barrier(struct group *g, uint64_t timeout_ns, group_read_fn *done, void *ctx)
{
    const bool is_proven = g->w->leader == g->host->node && g->is_leader && g->term == g->w->term &&
                           g->applied >= g->w->commit && !g->w->is_unproven;
    done(ctx, is_proven ? RC_OK : RC_NOT_LEADER);
}
bool group_is_full(const struct group *g)
{
    return g->w->full_rounds > 0;
}
static void world_entry_drop(struct world_entry *e)
{
    if (e->block) {
        block_release(e->block);
    } else {
        free((void *)e->payload.ptr);
    }
}
// As the log does with a large last part that has room around it: every second one, the others are copied. A
// record's head is written too.
static struct block *world_in_place(struct world *w, const struct glog_part *parts, uint32_t count,
                                    struct span *payload)
{
    const struct span last = count > 0 ? span_of(parts[count - 1].ptr, parts[count - 1].len) : span_of(NULL, 0);
    const size_t front = count > 1 ? parts[0].len : 0;
    if (w->last % 2 == 0 || !block_has_room(last, RECORD_HEADER_BYTES + front, RECORD_ALIGN - 1)) {
        return NULL;
    }
    uint32_t sum;
    if (block_sum(last, &sum)) {
        ck_assert_uint_eq(sum, crc32c(0, last.ptr, last.len));
        w->summed++;
    }
    struct block *b = block_of(last);
    uint8_t *at = b->ptr + (last.ptr - b->ptr) - front;
    memset(at - RECORD_HEADER_BYTES, 0xdd, RECORD_HEADER_BYTES);
    memmove(at, parts[0].ptr, front);
    memset(at + front + last.len, 0xdd, RECORD_ALIGN - 1);
    const size_t from = (size_t)(last.ptr - b->ptr);
    block_set_sum(b, from, from + last.len, crc32c(0, last.ptr, last.len));
    b->is_disposable = b->has_room = false;
    *payload = span_of(at, front + last.len);
    w->in_place++;
    return block_hold(b);
}
static void world_append(struct world *w, uint16_t kind, const struct glog_part *parts, uint32_t count)
{
    struct buf b = {0};
    struct span payload = {0};
    struct block *block = world_in_place(w, parts, count, &payload);
    for (uint32_t i = 0; i < count && !block; i++) {
        struct span part = span_of(parts[i].ptr, parts[i].len);
        buf_span_bytes(&b, part);
        if (block_is_disposable(part)) {  // As the log does with a large one.
            block_of(part)->is_discarded = true;
            memset((uint8_t *)part.ptr, 0xdd, part.len);
        }
    }
    if (!block) {
        payload = buf_span(&b);
        block = b.len >= BLOCK_BYTES_MIN ? block_adopt(&b) : NULL;
    }
    if (w->last == w->cap) {
        w->cap = w->cap ? w->cap * 2 : 256;
        w->log = mem_realloc(w->log, w->cap * sizeof(*w->log));
    }
    w->log[w->last] = (struct world_entry){.index = w->last + 1,
                                           .term = w->term,
                                           .kind = kind,
                                           .payload = payload,
                                           .block = block};
    w->last++;
}
enum rc group_propose(struct group *g, const struct glog_part *parts, uint32_t count, bool is_reserved,
                      uint64_t *index, uint64_t *term)
{
    struct world *w = g->w;
    if (!g->is_leader) {
        return RC_NOT_LEADER;
    }
    if (w->full_rounds > 0 && !is_reserved) {
        return RC_FULL;
    }
    if (g->term != w->term) {
        *index = w->last + 1000;  // A leader of the past: this never commits.
        *term = g->term;
        return RC_OK;
    }
    world_append(w, RECORD_ENTRY, parts, count);
    *index = w->last;
    *term = w->term;
    return RC_OK;
}
enum rc group_entry(struct group *g, uint64_t index, struct entry *out)
{
    struct world *w = g->w;
    ck_assert(index <= g->applied || (g->is_leader && index == w->last));
    if (index <= g->applied && w->cold_percent > 0 && rng_below(&w->rng, 100) < w->cold_percent) {
        return RC_COLD;
    }
    if (index == w->unreadable) {
        return RC_NOT_FOUND;
    }
    *out = (struct entry){.group = GROUP,
                          .index = index,
                          .term = w->log[index - 1].term,
                          .kind = RECORD_ENTRY,
                          .payload = w->log[index - 1].payload};
    return RC_OK;
}
void group_entry_read(struct group *g, struct glog_read *r)
{
    ck_assert_uint_lt(g->w->reads_count, 64);
    for (uint32_t i = 1; i < r->indexes_count; i++) {
        ck_assert_uint_gt(r->indexes[i], r->indexes[i - 1]);
    }
    g->w->reads[g->w->reads_count++] = (struct world_read){.read = r, .g = g};
    g->w->read_indexes += r->indexes_count;
    g->w->reads_most = g->w->reads_count > g->w->reads_most ? g->w->reads_count : g->w->reads_most;
}

// ---- wires ---------------------------------------------------------------------------------------------------------

static enum rc wire_send(struct net *n, uint32_t node, enum net_lane lane, enum frame_type type, struct span envelope,
                         const struct iovec *raw, int raw_count, bool raw_crc)
{
    struct host *h = container_of(n, struct host, net);
    ck_assert_int_eq(lane, LANE_SESSION);
    ck_assert_uint_ne(node, h->node);
    if (h->w->is_down[node] || h->w->is_down[h->node]) {
        return RC_NOT_CONNECTED;
    }
    if (h->w->lane_full_rounds > 0) {
        return RC_FULL;
    }
    if (type == FRAME_SESSION_TAKEN && h->w->is_mute[h->node]) {
        return RC_OK;
    }
    wire_put(&h->w->wires[h->node][node], type, envelope, raw, raw_count);
    return RC_OK;
}
static size_t wire_queued(struct net *n, uint32_t node, enum net_lane lane)
{
    return 0;
}
static bool wire_is_connected(struct net *n, uint32_t node, enum net_lane lane)
{
    struct host *h = container_of(n, struct host, net);
    return !h->w->is_down[node];
}
static void frame_arrive(struct world *w, uint32_t from, uint32_t to, struct wire_frame *f)
{
    struct frame frame;
    size_t size;
    ck_assert_int_eq(frame_decode(buf_span(&f->bytes), &frame, &size), RC_OK);
    if (w->recorded && from == 4) {
        struct wire_frame *copy = mem_zalloc(sizeof(*copy));
        buf_span_bytes(&copy->bytes, buf_span(&f->bytes));
        list_add_tail(w->recorded, &copy->link);
    }
    if (w->hosts[to].frame) {
        w->hosts[to].frame(w->hosts[to].frame_ctx, from, LANE_SESSION, &frame);
    }
}
static void world_reset_wire(struct world *w, uint32_t from, uint32_t to)
{
    wire_clear(&w->wires[from][to]);
    list_each (l, &w->hosts[from].watchers) {
        struct host_watcher *watcher = list_entry(l, struct host_watcher, link);
        watcher->lane_reset(watcher->ctx, to, LANE_SESSION);
    }
}

// ---- the log -------------------------------------------------------------------------------------------------------

static void world_apply(struct world *w, uint32_t node)
{
    struct group *g = &w->hosts[node].group;
    while (g->exists && !w->is_down[node] && g->applied < w->commit) {
        struct entry e[8];
        uint32_t n = 0;
        for (; n < 8 && g->applied + n < w->commit; n++) {
            const struct world_entry *from = &w->log[g->applied + n];
            e[n] = (struct entry){.group = GROUP,
                                  .index = from->index,
                                  .term = from->term,
                                  .kind = from->kind,
                                  .payload = from->payload};
        }
        g->applied += n;
        ck_assert_uint_eq(g->fsm->apply(g->fsm_ctx, e, n), n);
    }
}
static void world_role(struct world *w, uint32_t node, bool is_leader, uint64_t term, uint32_t leader)
{
    struct group *g = &w->hosts[node].group;
    if (!g->exists) {
        return;
    }
    g->is_leader = is_leader;
    g->term = term;
    g->leader_node = leader;
    struct consensus_status status;
    group_status(g, &status);
    g->fsm->role(g->fsm_ctx, &status);
}
// Another leader: of what was proposed and not committed it has the first `keep` entries.
static void world_elect(struct world *w, uint32_t node, uint64_t keep, bool old_knows)
{
    uint32_t old = w->leader;
    while (w->last > w->commit + keep) {
        world_entry_drop(&w->log[--w->last]);
    }
    w->term++;
    w->leader = node;
    world_append(w, RECORD_NOOP, NULL, 0);
    w->noop = w->last;
    for (uint32_t n = 1; n <= MEMBERS; n++) {
        if (n != node && !w->is_down[n] && (n != old || old_knows)) {
            world_role(w, n, false, w->term, node);
        }
    }
    world_role(w, node, true, w->term, node);
}
static inline void world_old_leaders_learn(struct world *w)
{
    for (uint32_t n = 1; n <= MEMBERS; n++) {
        if (w->hosts[n].group.is_leader && n != w->leader) {
            world_role(w, n, false, w->term, w->leader);
        }
    }
}
static uint32_t world_other_leader(struct world *w)
{
    uint32_t n = w->leader;
    do {
        n = n % MEMBERS + 1;
    } while (w->is_down[n]);
    return n;
}

// ---- faults --------------------------------------------------------------------------------------------------------

static void world_leader_fault(struct world *w, enum fault fault)
{
    uint64_t tail = w->last - w->commit;
    if (fault == FAULT_LEADER_KEEPS) {
        world_elect(w, world_other_leader(w), tail, true);
    } else if (fault == FAULT_LEADER_LOSES) {
        world_elect(w, world_other_leader(w), 0, true);
    } else if (fault == FAULT_STALE_LEADER) {
        world_elect(w, world_other_leader(w), tail / 2, false);
    }
}
static enum fault world_event(struct world *w)
{
    enum fault fault = FAULT_NONE;
    w->events++;
    if (w->events == w->fault_at) {
        fault = w->fault;
    } else if (w->wild_percent > 0 && rng_below(&w->rng, 100) < w->wild_percent) {
        fault = (enum fault)(1 + rng_below(&w->rng, FAULTS - 1));
    }
    if (fault == FAULT_LANE_FULL) {
        w->lane_full_rounds = 5;
    } else if (fault == FAULT_GROUP_FULL) {
        w->full_rounds = 10;
    }
    return fault;
}
static void world_deliver(struct world *w, uint32_t from, uint32_t to)
{
    struct list *wire = &w->wires[from][to];
    const uint32_t slow = w->frame_rounds[from][to];
    if (slow > 0 && w->now / 1000000 % slow != 0) {
        return;
    }
    for (int n = 0; n < (slow > 0 ? 1 : 4) && !list_is_empty(wire); n++) {
        struct wire_frame *f = wire_first(wire);
        enum fault fault = world_event(w);
        if (fault == FAULT_LOSE) {
            world_reset_wire(w, from, to);
            return;
        }
        if (fault == FAULT_SWAP && wire->next->next != wire) {
            list_remove(&f->link);
            struct wire_frame *second = wire_first(wire);
            frame_arrive(w, from, to, second);
            wire_frame_drop(second);
            list_add_head(wire, &f->link);
        }
        if (fault == FAULT_DOUBLE) {
            frame_arrive(w, from, to, f);
        }
        frame_arrive(w, from, to, f);
        wire_frame_drop(f);
        world_leader_fault(w, fault);
    }
}

// One turn of every node, then what the turns caused.
static void world_round(struct world *w)
{
    w->now += 1000000;
    w->full_rounds -= w->full_rounds > 0;
    w->lane_full_rounds -= w->lane_full_rounds > 0;
    for (uint32_t n = 1; n <= NODES; n++) {
        if (w->hosts[n].q && !w->is_down[n]) {
            (void)queue_service_turn(w->hosts[n].q);
        }
    }
    bool is_slow = w->slow_percent > 0 && rng_below(&w->rng, 100) < w->slow_percent;
    if (w->last > w->commit && !w->is_down[w->leader] && !is_slow) {
        enum fault fault = world_event(w);
        world_leader_fault(w, fault);
        // A majority has some of it, or not yet any.
        w->commit += rng_below(&w->rng, 3) > 0 ? w->last - w->commit : rng_below(&w->rng, w->last - w->commit + 1);
    }
    world_apply(w, w->leader);
    for (uint32_t n = 1; n <= MEMBERS; n++) {
        if (rng_below(&w->rng, 3) > 0) {
            world_apply(w, n);
        }
    }
    for (uint32_t n = 1; n <= NODES; n++) {
        if (w->hosts[n].q && !w->is_down[n] && rng_below(&w->rng, 2)) {
            (void)queue_service_turn(w->hosts[n].q);  // Some drivers run it twice.
        }
    }
    uint32_t reads = w->reads_count;
    for (uint32_t i = 0; i < reads; i++) {
        struct glog_read *r = w->reads[i].read;
        for (uint32_t k = 0; k < r->indexes_count && (k == 0 || r->bytes.len < r->bytes_max); k++) {
            const struct world_entry *e = &w->log[r->indexes[k] - 1];
            struct record_disk head = {.len = (uint32_t)e->payload.len,
                                       .group = GROUP,
                                       .index = e->index,
                                       .term = e->term,
                                       .kind = RECORD_ENTRY};
            uint64_t size = record_size(head.len);
            uint8_t *to = buf_extend(&r->bytes, size);
            memset(to, 0, size);
            memcpy(to, &head, sizeof(head));
            memcpy(to + sizeof(head), e->payload.ptr, e->payload.len);
            r->read_count++;
        }
        r->rc = RC_OK;
        r->done(r);
    }
    memmove(w->reads, w->reads + reads, (w->reads_count - reads) * sizeof(w->reads[0]));
    w->reads_count -= reads;
    for (uint32_t a = 1; a <= NODES; a++) {
        for (uint32_t b = 1; b <= NODES; b++) {
            world_deliver(w, a, b);
        }
    }
}

// ---- life ----------------------------------------------------------------------------------------------------------

static uint32_t one_worker(void *ctx, uint64_t group)
{
    return 0;
}
static struct queue_target world_target(void)
{
    struct queue_target t = {.group = GROUP, .members_count = MEMBERS};
    for (uint32_t i = 0; i < MEMBERS; i++) {
        t.members[i] = (struct member){.replica_id = i + 1, .node_id = i + 1, .is_voter = true};
    }
    return t;
}
static inline void world_start_node(struct world *w, uint32_t n, uint64_t incarnation)
{
    struct host *h = &w->hosts[n];
    *h = (struct host){.w = w, .node = n};
    list_init(&h->watchers);
    h->net = (struct net){.send = wire_send, .queued = wire_queued, .is_connected = wire_is_connected};
    struct queue_service_config c = {.host = h,
                                     .net = &h->net,
                                     .node_id = n,
                                     .incarnation = incarnation,
                                     .workers = 1,
                                     .worker_of = one_worker,
                                     .consumer_disconnected_timeout_ms = 60000};
    h->q = queue_service_create(&c);
}
static struct world *world_create(uint64_t seed, struct queue_settings settings)
{
    struct world *w = mem_zalloc(sizeof(*w));
    the_world = w;
    w->now = 1000000000;
    rng_seed(&w->rng, seed);
    for (uint32_t a = 0; a <= NODES; a++) {
        for (uint32_t b = 0; b <= NODES; b++) {
            list_init(&w->wires[a][b]);
        }
    }
    for (uint32_t n = 1; n <= NODES; n++) {
        world_start_node(w, n, 1);
    }
    for (uint32_t n = 1; n <= MEMBERS; n++) {
        struct queue_replica_spec spec = {.target = world_target(), .replica_id = n, .settings = settings};
        ck_assert_int_eq(queue_replica_add(w->hosts[n].q, &spec), RC_OK);
    }
    world_elect(w, 1, 0, true);
    return w;
}
static void world_destroy(struct world *w)
{
    while (w->reads_count > 0) {
        world_round(w);
    }
    for (uint32_t n = 1; n <= NODES; n++) {
        if (w->hosts[n].q) {
            queue_service_destroy(w->hosts[n].q);
        }
    }
    for (uint32_t a = 0; a <= NODES; a++) {
        for (uint32_t b = 0; b <= NODES; b++) {
            wire_clear(&w->wires[a][b]);
        }
    }
    while (w->last > 0) {
        world_entry_drop(&w->log[--w->last]);
    }
    free(w->log);
    free(w);
}
static inline struct queue_replica *world_replica(struct world *w, uint32_t node)
{
    return map_get(&w->hosts[node].q->replicas, GROUP);
}
static inline void world_verdict(struct world *w, uint32_t about, enum node_verdict verdict, uint64_t incarnation)
{
    for (uint32_t n = 1; n <= NODES; n++) {
        if (n == about || w->is_down[n]) {
            continue;
        }
        list_each (l, &w->hosts[n].watchers) {
            struct host_watcher *watcher = list_entry(l, struct host_watcher, link);
            watcher->node_state(watcher->ctx, about, verdict, incarnation);
        }
    }
}
// The node's process is gone: nothing of it is left, nothing more arrives.
static inline void world_kill(struct world *w, uint32_t node)
{
    for (uint32_t n = 1; n <= NODES; n++) {
        wire_clear(&w->wires[node][n]);
        wire_clear(&w->wires[n][node]);
    }
    w->is_down[node] = true;
}
static inline struct queue_settings settings_plain(void)
{
    return (struct queue_settings){.max_length = -1,
                                   .max_length_bytes = -1,
                                   .delivery_limit = 20,
                                   .metadata_version = 1};
}
static inline void rounds(struct world *w, int n)
{
    while (n-- > 0) {
        world_round(w);
    }
}
