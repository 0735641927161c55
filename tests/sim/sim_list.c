// SPDX-License-Identifier: Apache-2.0
// The built-in application of the simulator: a state machine that keeps a running hash of its history and a list of
// entries it still needs, and clients that propose, read barriers and read such entries back.
//
// The hash makes any difference in history visible at once. The list makes live entries: they lie below
// snapshots and must be found again with the same content, after any number of retirements, crashes and installs.
#include "node/base/crc32c.h"
#include "node/base/reader.h"
#include "tests/sim/sim.h"
#include <assert.h>
#include <stdlib.h>

enum { LIVE_MAX = 48, CHUNK_ENTRIES = 7 };

struct live {
    uint64_t index;
    uint64_t term;
    uint32_t crc;
};

struct state {
    uint64_t index;
    uint64_t chain;
    uint64_t count;  // Commands applied.
    uint32_t live_count;
    struct live live[LIVE_MAX];  // Ascending.
};

struct machine {
    struct sim *sim;
    struct sim_node *node;
    uint64_t group;
    struct state state;
    struct state restoring;
    bool is_restoring;  // The log is the new one already, the state still the old one.
};

struct fsm_snapshot {
    struct state state;
    uint32_t encoded;  // Live entries written.
    bool has_head;
};

struct proposal {
    uint64_t group, index, term;
    uint32_t node;
    uint64_t incarnation;
};

struct list_state {
    struct map pending;  // Proposal id -> struct proposal.
    uint64_t next_id;
    uint64_t interval, size_big_one_in;
    uint64_t final_index[SIM_GROUPS_MAX], final_term[SIM_GROUPS_MAX];
};

static struct list_state *state_of(struct sim *s)
{
    return s->app_state;
}

// ---- the state machine ------------------------------------------------------------------------------------

static void acked(struct machine *m, const struct entry *e)
{
    struct sim *s = m->sim;
    uint64_t id;
    if (e->kind != RECORD_ENTRY || e->payload.len < 8) {
        return;
    }
    memcpy(&id, e->payload.ptr, 8);
    struct proposal *p = map_get(&state_of(s)->pending, id);
    if (p && p->node == m->node->id && p->incarnation == m->node->incarnation) {
        if (p->index == e->index && p->term == e->term) {
            s->counters.acks++;
            sim_check_acked(s, e->group, e->index, e->term);
        }
        map_remove(&state_of(s)->pending, id);
        free(p);
    }
}

static uint32_t list_apply(void *ctx, const struct entry *entries, uint32_t n)
{
    struct machine *m = ctx;
    for (uint32_t i = 0; i < n; i++) {
        const struct entry *e = &entries[i];
        struct state *x = &m->state;
        if (e->index != x->index + 1 || e->group != m->group) {
            sim_violation(m->sim, "node %u group %llu: told to apply %llu behind %llu", m->node->id,
                          (unsigned long long)m->group, (unsigned long long)e->index, (unsigned long long)x->index);
            return n;
        }
        const uint32_t crc = crc32c(0, e->payload.ptr, e->payload.len);
        x->index = e->index;
        x->chain = hash_u64(x->chain ^ hash_u64(e->index) ^ e->term ^ (uint64_t)crc << 20 ^ e->kind);
        if (e->kind == RECORD_ENTRY) {
            x->count++;
            if (crc % 4 == 0) {
                if (x->live_count == LIVE_MAX) {
                    // The one to go depends on the content: holes appear anywhere.
                    const uint32_t gone = crc / 4 % LIVE_MAX;
                    memmove(&x->live[gone], &x->live[gone + 1], (LIVE_MAX - 1 - gone) * sizeof(x->live[0]));
                    x->live_count--;
                }
                x->live[x->live_count++] = (struct live){.index = e->index, .term = e->term, .crc = crc};
            }
        }
        sim_check_applied(m->node, m->group, e->index, e->term, x->chain);
        acked(m, e);
    }
    return n;
}

static void list_role(void *ctx, const struct consensus_status *status)
{
    (void)ctx;
    (void)status;
}

static struct fsm_snapshot *list_snapshot_begin(void *ctx)
{
    struct machine *m = ctx;
    struct fsm_snapshot *f = mem_zalloc(sizeof(*f));
    f->state = m->state;
    return f;
}

static bool list_snapshot_chunk(struct fsm_snapshot *f, struct buf *to)
{
    if (!f->has_head) {
        f->has_head = true;
        buf_u64(to, f->state.index);
        buf_u64(to, f->state.chain);
        buf_u64(to, f->state.count);
        buf_u32(to, f->state.live_count);
    } else {
        for (uint32_t i = 0; i < CHUNK_ENTRIES && f->encoded < f->state.live_count; i++) {
            const struct live *l = &f->state.live[f->encoded++];
            buf_u64(to, l->index);
            buf_u64(to, l->term);
            buf_u32(to, l->crc);
        }
    }
    return f->encoded < f->state.live_count;
}

static void list_snapshot_live(struct fsm_snapshot *f, struct buf *out)
{
    for (uint32_t i = 0; i < f->state.live_count; i++) {
        struct live_range r = {.first = f->state.live[i].index, .last = f->state.live[i].index};
        while (i + 1 < f->state.live_count && f->state.live[i + 1].index == r.last + 1) {
            r.last++;
            i++;
        }
        buf_bytes(out, &r, sizeof(r));
    }
}

static void list_snapshot_end(struct fsm_snapshot *f)
{
    free(f);
}

static void list_restore_begin(void *ctx)
{
    struct machine *m = ctx;
    m->restoring = (struct state){0};
    m->is_restoring = true;
}

static enum rc list_restore_chunk(void *ctx, struct span chunk)
{
    struct machine *m = ctx;
    struct reader r = reader_of(chunk);
    struct state *x = &m->restoring;
    if (x->index == 0) {
        x->index = reader_u64(&r);
        x->chain = reader_u64(&r);
        x->count = reader_u64(&r);
        (void)reader_u32(&r);
    } else {
        while (reader_left(&r) > 0 && x->live_count < LIVE_MAX) {
            struct live *l = &x->live[x->live_count++];
            l->index = reader_u64(&r);
            l->term = reader_u64(&r);
            l->crc = reader_u32(&r);
        }
    }
    return reader_end(&r);
}

static enum rc list_restore_end(void *ctx, uint64_t index)
{
    struct machine *m = ctx;
    struct sim_group *g = sim_group_of(m->sim, m->group);
    if (m->restoring.index != index) {
        sim_violation(m->sim, "node %u group %llu: snapshot of %llu holds the state of %llu", m->node->id,
                      (unsigned long long)m->group, (unsigned long long)index, (unsigned long long)m->restoring.index);
        return RC_CORRUPT;
    }
    m->state = m->restoring;
    m->is_restoring = false;
    uint64_t term;
    assert(index <= g->committed);
    memcpy(&term, g->terms.ptr + (index - 1) * 8, 8);
    sim_check_applied(m->node, m->group, index, term, m->state.chain);
    return RC_OK;
}

static uint64_t list_size_estimate(void *ctx)
{
    const struct machine *m = ctx;
    return 64 + m->state.live_count * 20;
}

static uint64_t list_live_count(void *ctx)
{
    const struct machine *m = ctx;
    return m->state.live_count;
}

const struct fsm_ops sim_list_fsm = {
    .version = 1,
    .apply = list_apply,
    .role = list_role,
    .snapshot_begin = list_snapshot_begin,
    .snapshot_chunk = list_snapshot_chunk,
    .snapshot_live = list_snapshot_live,
    .snapshot_end = list_snapshot_end,
    .restore_begin = list_restore_begin,
    .restore_chunk = list_restore_chunk,
    .restore_end = list_restore_end,
    .size_estimate = list_size_estimate,
    .live_count = list_live_count,
};

static void *machine_create(struct sim *s, struct sim_node *n, uint64_t group)
{
    struct machine *m = mem_zalloc(sizeof(*m));
    m->sim = s;
    m->node = n;
    m->group = group;
    return m;
}

// ---- clients ----------------------------------------------------------------------------------------------

// Any group of this application. There may be none.
static uint32_t a_slot(struct sim *s)
{
    const uint32_t start = (uint32_t)rng_below(&s->rng, s->groups_count);
    for (uint32_t i = 0; i < s->groups_count; i++) {
        const uint32_t slot = (start + i) % s->groups_count;
        if (s->groups[slot].kind == SIM_LIST) {
            return slot;
        }
    }
    return UINT32_MAX;
}

// Some node that believes to lead: it may be wrong, that is the point.
static struct group *find_leader(struct sim *s, uint32_t slot, struct sim_node **on)
{
    const uint32_t start = (uint32_t)rng_below(&s->rng, s->nodes_count);
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        struct sim_node *n = &s->nodes[(start + i) % s->nodes_count];
        struct consensus_status st;
        if (n->is_up && !n->is_paused && n->groups[slot]) {
            group_status(n->groups[slot], &st);
            if (st.role == ROLE_LEADER) {
                *on = n;
                return n->groups[slot];
            }
        }
    }
    return NULL;
}

static bool propose(struct sim *s, uint32_t slot, uint32_t size, struct proposal *out)
{
    struct list_state *x = state_of(s);
    struct sim_node *n = NULL;
    struct group *g = find_leader(s, slot, &n);
    if (g == NULL) {
        return false;
    }
    static uint8_t filler[1 << 20];
    const uint64_t id = ++x->next_id;
    const struct glog_part parts[2] = {{&id, sizeof(id)}, {filler, size}};
    memset(filler, (int)(id & 0xff), size < 64 ? size : 64);
    struct proposal p = {.group = s->groups[slot].id, .node = n->id, .incarnation = n->incarnation};
    const enum rc rc = group_propose(g, parts, 2, false, &p.index, &p.term);
    sim_node_wake(n, sim_range(s, 0, 50 * SIM_US));
    if (rc != RC_OK) {
        return false;
    }
    s->counters.proposals++;
    struct proposal *kept = mem_alloc(sizeof(*kept));
    *kept = p;
    map_put(&x->pending, id, kept);
    *out = p;
    sim_check_node(n);
    return true;
}

static void client(struct sim *s, void *arg, uint64_t number)
{
    struct list_state *x = state_of(s);
    (void)arg;
    (void)number;
    const uint32_t slot = a_slot(s);
    if (s->is_calm || slot == UINT32_MAX) {
        return;
    }
    const uint32_t burst = sim_chance(s, 10) ? (uint32_t)sim_range(s, 1, 40) : 1;
    struct proposal p;
    for (uint32_t i = 0; i < burst; i++) {
        uint32_t size = (uint32_t)sim_range(s, 0, sim_chance(s, 20) ? 8000 : 200);
        if (sim_chance(s, x->size_big_one_in)) {
            size = (uint32_t)sim_range(s, 100 << 10, 700 << 10);
        }
        if (!propose(s, slot, size, &p)) {
            break;
        }
    }
    sim_at(s, sim_range(s, 1, 2 * x->interval), client, NULL, 0);
}

// ---- read barriers ----------------------------------------------------------------------------------------

struct barrier {
    struct sim_node *node;
    uint64_t incarnation;
    uint32_t slot;
    uint64_t committed;  // When it was asked.
};

static void barrier_done(void *ctx, enum rc rc)
{
    struct barrier *b = ctx;
    const struct machine *m = b->node->machines[b->slot];
    if (rc == RC_OK && b->node->is_up && b->node->incarnation == b->incarnation && m) {
        struct sim *s = b->node->sim;
        s->counters.reads++;
        if (m->state.index < b->committed) {
            sim_violation(s, "node %u group %llu: a read barrier passes at %llu, %llu was committed when it was asked",
                          b->node->id, (unsigned long long)m->group, (unsigned long long)m->state.index,
                          (unsigned long long)b->committed);
        }
    }
    free(b);
}

static void reader_tick(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    struct sim_node *n = NULL;
    const uint32_t slot = a_slot(s);
    if (s->is_calm || slot == UINT32_MAX) {
        return;
    }
    struct group *g = find_leader(s, slot, &n);
    if (g) {
        struct barrier *b = mem_alloc(sizeof(*b));
        *b = (struct barrier){
            .node = n, .incarnation = n->incarnation, .slot = slot, .committed = s->groups[slot].committed};
        group_read_barrier(g, sim_range(s, 50 * SIM_MS, 2 * SIM_S), barrier_done, b);
        sim_node_wake(n, 0);
        sim_check_node(n);
    }
    sim_at(s, sim_range(s, 1, 100 * SIM_MS), reader_tick, NULL, 0);
}

// ---- live entries -----------------------------------------------------------------------------------------

struct look {
    struct glog_read read;
    struct sim_node *node;
    uint64_t replica;
    uint64_t group;
    struct live live;
    uint64_t index;
};

static void look_check(struct sim_node *n, uint64_t group, const struct live *l, uint64_t term, struct span payload)
{
    if (term != l->term || crc32c(0, payload.ptr, payload.len) != l->crc) {
        sim_violation(n->sim, "node %u group %llu: live entry %llu has other content", n->id, (unsigned long long)group,
                      (unsigned long long)l->index);
    }
}

static void look_done(struct glog_read *r)
{
    struct look *k = r->owner;
    struct sim *s = k->node->sim;
    const struct machine *m = k->node->machines[sim_group_slot(s, k->group)];
    bool is_live = false;
    if (m == NULL || k->node->replicas[sim_group_slot(s, k->group)] != k->replica || m->is_restoring) {
        buf_deinit(&r->bytes);
        free(k);
        return;
    }
    for (uint32_t i = 0; i < m->state.live_count; i++) {
        is_live = is_live || m->state.live[i].index == k->index;
    }
    if (r->rc == RC_OK) {
        struct record_disk d;
        uint64_t size;
        if (record_check(buf_span(&r->bytes), &d, &size) == RC_OK) {
            look_check(k->node, k->group, &k->live, d.term, span_of(r->bytes.ptr + RECORD_HEADER_BYTES, d.len));
        }
    } else if (is_live && !k->node->is_flipped) {
        sim_violation(s, "node %u group %llu: live entry %llu cannot be read: %s", k->node->id,
                      (unsigned long long)k->group, (unsigned long long)k->index, rc_text(r->rc));
    }
    buf_deinit(&r->bytes);
    free(k);
}

static void look_tick(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    struct sim_node *n = &s->nodes[rng_below(&s->rng, s->nodes_count)];
    const uint32_t slot = a_slot(s);
    if (s->is_calm || slot == UINT32_MAX) {
        return;
    }
    struct machine *m = n->machines[slot];
    if (n->is_up && !n->is_paused && m && !m->is_restoring && m->state.live_count > 0) {
        const struct live l = m->state.live[rng_below(&s->rng, m->state.live_count)];
        struct entry e;
        const enum rc rc = group_entry(n->groups[slot], l.index, &e);
        if (rc == RC_OK) {
            look_check(n, m->group, &l, e.term, e.payload);
        } else if (rc == RC_COLD) {
            struct look *k = mem_zalloc(sizeof(*k));
            k->node = n;
            k->replica = n->replicas[slot];
            k->group = m->group;
            k->live = l;
            k->index = l.index;
            k->read = (struct glog_read){.group = m->group,
                                         .indexes = &k->index,
                                         .indexes_count = 1,
                                         .bytes_max = 1 << 20,
                                         .done = look_done,
                                         .owner = k};
            buf_init(&k->read.bytes);
            group_entry_read(n->groups[slot], &k->read);
        } else if (!n->is_flipped) {
            sim_violation(s, "node %u group %llu: live entry %llu is missing: %s", n->id, (unsigned long long)m->group,
                          (unsigned long long)l.index, rc_text(rc));
        }
    }
    sim_at(s, sim_range(s, 1, 40 * SIM_MS), look_tick, NULL, 0);
}

// ---- a run ------------------------------------------------------------------------------------------------

static void list_start(struct sim *s)
{
    struct list_state *x = mem_zalloc(sizeof(*x));
    map_init_u64(&x->pending);
    x->interval = sim_range(s, SIM_MS, 20 * SIM_MS);
    x->size_big_one_in = sim_chance(s, 6) ? sim_range(s, 30, 300) : 0;
    s->app_state = x;
    sim_at(s, 0, client, NULL, 0);
    sim_at(s, 0, reader_tick, NULL, 0);
    sim_at(s, 0, look_tick, NULL, 0);
}

// What a group lacks until it has a leader that commits, and all its members have applied everything. NULL: nothing.
static const char *lacks(struct sim *s, uint32_t slot)
{
    struct list_state *x = state_of(s);
    const struct sim_group *g = &s->groups[slot];
    struct sim_node *n;
    struct consensus_status st;
    struct group *leader = sim_leader(s, slot, &n);
    const uint64_t at = x->final_index[slot];
    if (!leader) {
        return "a leader";
    }
    group_status(leader, &st);
    const bool is_known = at > 0 && at <= g->committed;
    uint64_t term = 0;
    if (is_known) {
        memcpy(&term, g->terms.ptr + (at - 1) * 8, 8);
    }
    // None yet, or lost with its leader: another one.
    if (at == 0 || (is_known && term != x->final_term[slot]) ||
        (!is_known && (st.last < at || st.term > x->final_term[slot]))) {
        struct proposal p;
        x->final_index[slot] = 0;
        if (propose(s, slot, 32, &p)) {
            x->final_index[slot] = p.index;
            x->final_term[slot] = p.term;
        }
        return "a last entry";
    }
    if (!is_known) {
        return "the commit of its last entry";
    }
    for (uint32_t k = 0; k < st.config->count; k++) {
        const struct machine *m = s->nodes[st.config->members[k].node_id - 1].machines[slot];
        if (m == NULL || m->state.index != g->committed) {
            return "a member that has applied everything";
        }
    }
    return NULL;
}

static bool list_is_settled(struct sim *s)
{
    bool is_all = true;
    for (uint32_t i = 0; i < s->groups_count; i++) {
        const char *what = s->groups[i].kind == SIM_LIST ? lacks(s, i) : NULL;
        if (what) {
            sim_log(s, "group %llu lacks %s", (unsigned long long)s->groups[i].id, what);
            is_all = false;
        }
    }
    return is_all;
}

static void list_finish(struct sim *s)
{
    struct list_state *x = state_of(s);
    uint32_t pos = 0;
    struct proposal *p;
    while ((p = map_next(&x->pending, &pos, NULL, NULL)) != NULL) {
        free(p);
    }
    map_deinit(&x->pending);
    free(x);
    s->app_state = NULL;
}

const struct sim_app sim_list_app = {
    .name = "list",
    .machine_create = machine_create,
    .machine_destroy = free,
    .fsm = &sim_list_fsm,
    .start = list_start,
    .is_settled = list_is_settled,
    .finish = list_finish,
};
