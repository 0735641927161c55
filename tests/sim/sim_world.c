// SPDX-License-Identifier: Apache-2.0
// The world: events, and a run from the drawing of its groups to the last check.
#include "tests/sim/sim.h"
#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>

enum { LOAD_EVENTS_MAX = 90000, SEQ_BITS = 24 };
// Bounds of the liveness phase.
#define LED_MAX (10 * SIM_S)
#define REST_MAX (60 * SIM_S)

// ---- events -----------------------------------------------------------------------------------------------

// The heap holds keys, four children each; the events themselves stay where they are.
static uint32_t event_slot(struct sim *s)
{
    if (s->free_count == 0) {
        const uint32_t before = s->heap_cap;
        s->heap_cap = before ? before * 2 : 1024;
        s->heap = mem_realloc(s->heap, s->heap_cap * sizeof(*s->heap));
        s->events = mem_realloc(s->events, s->heap_cap * sizeof(*s->events));
        s->free_slots = mem_realloc(s->free_slots, s->heap_cap * sizeof(*s->free_slots));
        for (uint32_t i = s->heap_cap; i > before; i--) {
            s->free_slots[s->free_count++] = i - 1;
        }
    }
    return s->free_slots[--s->free_count];
}

static void event_push(struct sim *s, struct sim_event e)
{
    e.seq = ++s->seq;
    const uint32_t slot = event_slot(s);
    assert(e.at >> (64 - SEQ_BITS) == 0 && e.seq >> SEQ_BITS == 0);
    const struct sim_key key = {.order = e.at << SEQ_BITS | e.seq, .slot = slot};
    s->events[slot] = e;
    uint32_t pos = s->heap_len++;
    while (pos > 0 && key.order < s->heap[(pos - 1) / 4].order) {
        s->heap[pos] = s->heap[(pos - 1) / 4];
        pos = (pos - 1) / 4;
    }
    s->heap[pos] = key;
}

static struct sim_event event_pop(struct sim *s)
{
    const struct sim_key first = s->heap[0];
    const struct sim_key last = s->heap[--s->heap_len];
    uint32_t pos = 0;
    for (;;) {
        const uint32_t child = pos * 4 + 1;
        uint32_t least = child;
        if (child >= s->heap_len) {
            break;
        }
        for (uint32_t i = child + 1; i < child + 4 && i < s->heap_len; i++) {
            least = s->heap[i].order < s->heap[least].order ? i : least;
        }
        if (s->heap[least].order > last.order) {
            break;
        }
        s->heap[pos] = s->heap[least];
        pos = least;
    }
    s->heap[pos] = last;
    s->free_slots[s->free_count++] = first.slot;
    return s->events[first.slot];
}

void sim_at_owned(struct sim *s, uint64_t delay, void (*fn)(struct sim *s, void *arg, uint64_t n), void *arg,
                  uint64_t n, void (*drop)(void *arg))
{
    event_push(s, (struct sim_event){.at = s->now + delay, .fn = fn, .arg = arg, .n = n, .drop = drop});
}

void sim_at(struct sim *s, uint64_t delay, void (*fn)(struct sim *s, void *arg, uint64_t n), void *arg, uint64_t n)
{
    sim_at_owned(s, delay, fn, arg, n, NULL);
}

void sim_node_at(struct sim_node *n, uint64_t delay, void (*fn)(struct sim *s, void *arg, uint64_t n), void *arg,
                 uint64_t number, void (*drop)(void *arg))
{
    event_push(n->sim, (struct sim_event){.at = n->sim->now + delay,
                                          .fn = fn,
                                          .arg = arg,
                                          .n = number,
                                          .node = n->id,
                                          .incarnation = n->incarnation,
                                          .drop = drop});
}

uint64_t sim_chance(struct sim *s, uint64_t one_in)
{
    return one_in > 0 && rng_below(&s->rng, one_in) == 0;
}

uint64_t sim_range(struct sim *s, uint64_t min, uint64_t spread)
{
    return min + (spread > 0 ? rng_below(&s->rng, spread) : 0);
}

void sim_trace(struct sim *s, uint64_t a, uint64_t b)
{
    s->trace = hash_u64(s->trace ^ a * 0x9e3779b97f4a7c15u) + b;
}

void sim_violation(struct sim *s, const char *format, ...)
{
    if (s->is_violated) {
        return;  // The first one counts.
    }
    s->is_violated = true;
    s->counters.violations++;
    va_list args;
    va_start(args, format);
    vsnprintf(s->violation, sizeof(s->violation), format, args);
    va_end(args);
    sim_log(s, "VIOLATION: %s", s->violation);
}

bool sim_step(struct sim *s)
{
    if (s->heap_len == 0 || s->is_violated) {
        return false;
    }
    struct sim_event e = event_pop(s);
    assert(e.at >= s->now);
    s->now = e.at;
    if (e.node == 0) {
        s->counters.events++;
        sim_trace(s, s->now, 0);
        e.fn(s, e.arg, e.n);
        return true;
    }
    struct sim_node *n = &s->nodes[e.node - 1];
    if (!n->is_up || n->incarnation != e.incarnation) {
        if (e.drop) {
            e.drop(e.arg);
        }
        return true;
    }
    if (n->is_paused) {
        e.at = n->paused_until > s->now ? n->paused_until : s->now;
        event_push(s, e);
        return true;
    }
    s->counters.events++;
    sim_trace(s, s->now, e.node);
    e.fn(s, e.arg, e.n);
    if (n->is_up && n->incarnation == e.incarnation && sim_disk_is_dead(n->disk)) {
        sim_node_crash(n, true);
    }
    sim_check_node(n);
    return true;
}

void sim_run_until(struct sim *s, uint64_t at)
{
    while (!s->is_violated && s->heap_len > 0 && s->heap[0].order >> SEQ_BITS <= at) {
        (void)sim_step(s);
    }
    if (!s->is_violated && s->now < at) {
        s->now = at;
    }
}

// ---- a run ------------------------------------------------------------------------------------------------

static void draw_groups(struct sim *s)
{
    s->groups_count = (uint32_t)sim_range(s, 1, sim_chance(s, 8) ? 24 : 6);
    for (uint32_t i = 0; i < s->groups_count; i++) {
        struct sim_group *g = &s->groups[i];
        g->id = 100 + i;
        map_init_u64(&g->leaders);
        map_init_u64(&g->digests);
        const uint32_t members = s->nodes_count == 5 && sim_chance(s, 2) ? 5 : 3;
        const uint32_t first = (uint32_t)rng_below(&s->rng, s->nodes_count);
        for (uint32_t k = 0; k < members; k++) {
            g->initial.members[k] = (struct member){
                .replica_id = g->id * 1000 + k + 1, .node_id = (first + k) % s->nodes_count + 1, .is_voter = true};
        }
        g->initial.count = members;
        g->next_replica = g->id * 1000 + members + 1;
    }
}

static uint64_t mono_ns(void *ctx)
{
    return ((struct sim *)ctx)->now;
}

static int64_t wall_ms(void *ctx)
{
    return (int64_t)(((struct sim *)ctx)->now / SIM_MS) + 1800000000000;
}

static void node_init(struct sim *s, struct sim_node *n, uint32_t id)
{
    n->sim = s;
    n->id = id;
    n->disk = sim_disk_create();
    rng_seed(&n->rng, rng_next(&s->rng));
}

struct sim_node *sim_node_create(struct sim *s)
{
    assert(s->nodes_count < SIM_NODES_MAX);
    struct sim_node *n = &s->nodes[s->nodes_count++];
    node_init(s, n, s->nodes_count);
    for (uint32_t i = 0; i < s->groups_count; i++) {
        struct sim_group *g = &s->groups[i];
        n->is_fresh[i] = true;
        n->replicas[i] = g->kind == SIM_META ? g->next_replica++ : 0;
        n->shadows[i].replica = n->replicas[i];
    }
    return n;
}

void sim_init(struct sim *s, uint64_t seed, const struct sim_app *app)
{
    memset(s, 0, sizeof(*s));
    s->seed = seed;
    s->app = app;
    s->now = SIM_S;
    rng_seed(&s->rng, seed);
    s->clock = (struct clock){.mono_ns = mono_ns, .wall_ms = wall_ms, .ctx = s};
    s->nodes_count = sim_chance(s, 3) ? 5 : 3;
    s->wal_file_bytes = 16384u << rng_below(&s->rng, 5);
    s->memtable_bytes = sim_chance(s, 4) ? sim_range(s, 256 << 10, 768 << 10) : sim_range(s, 2 << 20, 6 << 20);
    s->wal_slice_bytes = sim_chance(s, 3) ? 0 : 8192u << rng_below(&s->rng, 5);
    // By the seed alone: the draws of older seeds stay what they are.
    s->harvest_groups = (uint32_t)(seed % 4);
    s->removal_piece = seed % 3 == 0 ? 0 : 1000 << seed % 5;
    s->segment_reach = seed % 3 == 0 ? 0 : 4096u << (seed / 3 % 6);
    sim_faults_draw(s);
    draw_groups(s);
    if (s->app->init) {
        s->app->init(s);
    }
    sim_net_create(s);
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        node_init(s, &s->nodes[i], i + 1);
    }
}

void sim_start(struct sim *s)
{
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        for (uint32_t k = 0; k < s->groups_count; k++) {
            const struct member *m = config_find_node(&s->groups[k].initial, s->nodes[i].id);
            s->nodes[i].replicas[k] = m ? m->replica_id : 0;
            s->nodes[i].shadows[k].replica = s->nodes[i].replicas[k];
        }
        sim_node_start(&s->nodes[i]);
    }
    sim_faults_start(s);
    sim_members_start(s);
    if (s->app->start) {
        s->app->start(s);
    }
}

void sim_deinit(struct sim *s)
{
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        if (s->nodes[i].is_up) {
            sim_node_free(&s->nodes[i]);
        }
        sim_disk_destroy(s->nodes[i].disk);
    }
    while (s->heap_len > 0) {
        struct sim_event e = event_pop(s);
        if (e.drop) {
            e.drop(e.arg);
        }
    }
    if (s->app->deinit) {
        s->app->deinit(s);
    }
    sim_check_deinit(s);
    sim_net_destroy(s);
    free(s->heap);
    free(s->events);
    free(s->free_slots);
}

static void show_groups(struct sim *s)
{
    for (uint32_t i = 0; i < s->groups_count; i++) {
        for (uint32_t k = 0; k < s->nodes_count; k++) {
            if (s->nodes[k].groups[i]) {
                struct consensus_status st;
                group_status(s->nodes[k].groups[i], &st);
                sim_log(s,
                        "group %llu (committed %llu) node %u: role %d term %llu leader node %u, first %llu "
                        "last %llu durable %llu commit %llu applied %llu cold %d wal %d",
                        (unsigned long long)s->groups[i].id, (unsigned long long)s->groups[i].committed, k + 1, st.role,
                        (unsigned long long)st.term, st.leader_node, (unsigned long long)st.first,
                        (unsigned long long)st.last, (unsigned long long)st.durable, (unsigned long long)st.commit,
                        (unsigned long long)st.applied, s->nodes[k].cold.is_busy, s->nodes[k].is_wal_busy);
            }
        }
    }
}

// Does every group have a leader that has committed in its term?
static bool all_are_led(struct sim *s)
{
    for (uint32_t i = 0; i < s->groups_count; i++) {
        struct sim_node *n;
        struct group *g = sim_leader(s, i, &n);
        struct consensus_status st = {0};
        if (g) {
            group_status(g, &st);
        }
        if (!st.is_ready) {
            return false;
        }
    }
    return true;
}

// At the end no machine may be left that was not restored: all are compared. True: all are awake.
static bool all_are_awake(struct sim *s)
{
    bool is_all = true;
    for (uint32_t k = 0; k < s->nodes_count; k++) {
        struct sim_node *n = &s->nodes[k];
        for (uint32_t i = 0; n->is_up && i < s->groups_count; i++) {
            if (n->groups[i] && group_is_asleep(n->groups[i]) && !n->shadows[i].is_lost) {
                s->counters.woken_last++;
                group_wake(n->groups[i]);
                sim_node_wake(n, 0);
                is_all = false;
            }
        }
    }
    return is_all;
}

// All faults end; whoever is down comes back. Every group must have a leader that commits within LED_MAX (after a bit that
// turned before was found, if that comes later), and everything come to rest (members replaced and level, every request
// answered, queues drained) within REST_MAX.
static void calm_down(struct sim *s)
{
    s->is_calm = true;
    sim_log(s, "calm");
    sim_net_heal(s);
    const uint64_t start = s->now, end = s->now + REST_MAX;
    bool is_led = false;
    while (!s->is_violated && s->now < end) {
        for (uint32_t i = 0; i < s->nodes_count; i++) {
            struct sim_node *n = &s->nodes[i];
            if (n->is_full) {
                n->is_full = false;
                sim_disk_set_budget(n->disk, UINT64_MAX);
            }
            if (!n->is_up && !n->is_gone) {
                sim_node_start(n);
            }
        }
        if (!s->is_violated && is_led && all_are_awake(s) && sim_members_are_settled(s) && s->app->is_settled(s)) {
            s->counters.settle_ns = s->now - start;
            s->app->finish(s);
            return;
        }
        if (!is_led && all_are_led(s)) {
            is_led = true;
            s->counters.led_ns = s->now - start;
        }
        if (!is_led && s->now >= (s->lost_at > start ? s->lost_at : start) + LED_MAX) {
            show_groups(s);
            sim_violation(s, "%llu s after the last fault a group is not led", LED_MAX / SIM_S);
            return;
        }
        sim_run_until(s, s->now + 50 * SIM_MS);
    }
    show_groups(s);
    sim_violation(s, "%llu s after the last fault not everything has come to rest", REST_MAX / SIM_S);
}

void sim_counters_add(struct sim_counters *to, const struct sim_counters *from)
{
    const uint64_t longest = to->settle_ns > from->settle_ns ? to->settle_ns : from->settle_ns;
    const uint64_t led = to->led_ns > from->led_ns ? to->led_ns : from->led_ns;
    const uint64_t *add = (const uint64_t *)from;
    uint64_t *sum = (uint64_t *)to;
    for (size_t i = 0; i < sizeof(*to) / sizeof(*sum); i++) {
        sum[i] += add[i];
    }
    to->settle_ns = longest;
    to->led_ns = led;
}

bool sim_run(uint64_t seed, const struct sim_app *app, bool is_verbose, uint64_t watched, struct sim_counters *total,
             uint64_t *trace, char *violation, size_t violation_size)
{
    struct sim *s = mem_zalloc(sizeof(*s));
    sim_init(s, seed, app);
    s->is_verbose = is_verbose;
    s->watched = watched;
    s->may_restart = true;
    s->may_sleep = seed % 4 != 0;
    const uint64_t end = s->now + sim_range(s, 2 * SIM_S, 6 * SIM_S);
    sim_start(s);
    // A seed that does much a second does so for fewer seconds.
    while (!s->is_violated && s->now < end && s->counters.events < LOAD_EVENTS_MAX) {
        const uint64_t next = s->now + 50 * SIM_MS;
        sim_run_until(s, next < end ? next : end);
    }
    if (!s->is_violated) {
        calm_down(s);
    }
    sim_counters_add(total, &s->counters);
    *trace = s->trace;
    snprintf(violation, violation_size, "%s", s->violation);
    const bool is_ok = !s->is_violated;
    sim_deinit(s);
    free(s);
    return is_ok;
}

struct sim_group *sim_group_of(struct sim *s, uint64_t id)
{
    const uint32_t slot = sim_group_slot(s, id);
    return slot == UINT32_MAX ? NULL : &s->groups[slot];
}

uint32_t sim_group_slot(const struct sim *s, uint64_t id)
{
    const uint64_t slot = id >= 100 ? id - 100 : s->groups_count - 1;  // The metadata group has its own number.
    return slot < s->groups_count && s->groups[slot].id == id ? (uint32_t)slot : UINT32_MAX;
}
