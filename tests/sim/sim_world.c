// SPDX-License-Identifier: Apache-2.0
// The world: events, nodes and their life, the WAL's and the cold thread's drivers, and the faults.
//
// A node's parts run as events: its worker's turn, the WAL's write and sync (which take their time), cold jobs, their
// completions. A crash drops the events of that life; its disk keeps, tears or loses what was not synced. A disk can also
// stop in the middle of a write or a cold job: the event in which that happens is the node's last.
#include "consensus/wal/internal.h"
#include "tests/sim/sim.h"
#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>

// ---- events ------------------------------------------------------------------------------------------------------------

static bool is_before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void event_push(struct sim *s, struct sim_event e)
{
    if (s->heap_len == s->heap_cap) {
        s->heap_cap = s->heap_cap ? s->heap_cap * 2 : 1024;
        s->heap = mem_realloc(s->heap, s->heap_cap * sizeof(e));
    }
    e.seq = ++s->seq;
    uint32_t pos = s->heap_len++;
    while (pos > 0 && is_before(&e, &s->heap[(pos - 1) / 2])) {
        s->heap[pos] = s->heap[(pos - 1) / 2];
        pos = (pos - 1) / 2;
    }
    s->heap[pos] = e;
}

static struct sim_event event_pop(struct sim *s)
{
    struct sim_event first = s->heap[0];
    struct sim_event last = s->heap[--s->heap_len];
    uint32_t pos = 0;
    for (;;) {
        uint32_t child = pos * 2 + 1;
        if (child >= s->heap_len) {
            break;
        }
        if (child + 1 < s->heap_len && is_before(&s->heap[child + 1], &s->heap[child])) {
            child++;
        }
        if (!is_before(&s->heap[child], &last)) {
            break;
        }
        s->heap[pos] = s->heap[child];
        pos = child;
    }
    s->heap[pos] = last;
    return first;
}

void sim_at_owned(struct sim *s, uint64_t delay, void (*fn)(struct sim *s, void *arg, uint64_t n), void *arg, uint64_t n,
                  void (*drop)(void *arg))
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
    while (!s->is_violated && s->heap_len > 0 && s->heap[0].at <= at) {
        (void)sim_step(s);
    }
    if (!s->is_violated && s->now < at) {
        s->now = at;
    }
}

// ---- the worker's turn ---------------------------------------------------------------------------------------------------

static void turn(struct sim *s, void *arg, uint64_t due)
{
    struct sim_node *n = arg;
    if (n->turn_due != due) {
        return;  // It was called earlier; that one's result stands.
    }
    n->turn_due = UINT64_MAX;
    const uint64_t before = s->app->turn ? s->app->turn(s, n) : UINT64_MAX;
    uint64_t next = host_turn(n->host);
    if (host_is_failed(n->host)) {
        sim_node_crash(n, true);
        return;
    }
    const uint64_t after = s->app->after_turn ? s->app->after_turn(s, n) : UINT64_MAX;
    next = before < next ? before : next;
    next = after < next ? after : next;
    if (next != UINT64_MAX) {
        sim_node_wake(n, next > s->now ? next - s->now : SIM_US);
    }
}

void sim_node_wake(struct sim_node *n, uint64_t delay)
{
    const uint64_t due = n->sim->now + delay;
    if (n->is_up && due < n->turn_due) {
        n->turn_due = due;
        sim_node_at(n, delay, turn, n, due, NULL);
    }
}

// ---- WAL -----------------------------------------------------------------------------------------------------------------

static void wal_pump(struct sim_node *n);

static void wal_mark(struct sim *s, void *arg, uint64_t number);

static void wal_written(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    struct wal *w = store_wal(n->store);
    (void)number;
    const enum rc rc = wal_write(w);
    if (sim_disk_is_dead(n->disk)) {
        return;  // The power went; the step ends the node.
    }
    if (rc != RC_OK) {
        sim_log(s, "node %u: write-ahead log failed", n->id);
        sim_node_crash(n, true);  // P6: the process ends.
        return;
    }
    n->is_wal_busy = false;
    wal_complete(w, rc);
    wal_pump(n);
    if (!n->is_wal_busy) {
        sim_node_at(n, 10 * SIM_MS, wal_mark, n, 0, NULL);
    }
}

static void wal_pump(struct sim_node *n)
{
    struct sim *s = n->sim;
    if (!n->is_wal_busy && wal_compose(store_wal(n->store))) {
        n->is_wal_busy = true;
        uint64_t delay = sim_range(s, s->faults.disk_delay_min, s->faults.disk_delay_spread);
        if (!s->is_calm && sim_chance(s, s->faults.disk_slow_one_in)) {
            delay += sim_range(s, 0, 300 * SIM_MS);
        }
        sim_node_at(n, delay, wal_written, n, 0, NULL);
    }
}

static void wal_mark(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    struct wal *w = store_wal(n->store);
    if (!n->is_wal_busy && wal_compose_mark(w)) {
        n->is_wal_busy = true;
        wal_written(s, arg, number);
    }
}

static void wal_submit_hook(void *ctx, struct wal_submission *w)
{
    struct sim_node *n = ctx;
    sim_check_submitted(n, w);
    wal_submit(store_wal(n->store), w);
    wal_pump(n);
}

static void wal_results(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    struct list *l;
    (void)s;
    (void)number;
    while ((l = list_pop(&n->wal_done)) != NULL) {
        host_wal_done(n->host, list_entry(l, struct wal_submission, link));
    }
    sim_node_wake(n, 0);
}

static void on_wal_done(void *ctx, struct wal_submission *w)
{
    struct sim_node *n = ctx;
    if (!n->is_up) {
        return;  // The end of a crashed life.
    }
    if (w->result == RC_OK) {
        sim_check_durable(n, w);
    }
    if (list_is_empty(&n->wal_done)) {
        sim_node_at(n, sim_range(n->sim, SIM_US, 20 * SIM_US), wal_results, n, 0, NULL);
    }
    list_add_tail(&n->wal_done, &w->link);
}

static void file_closed(struct sim *s, void *arg, uint64_t seq)
{
    struct sim_node *n = arg;
    (void)s;
    host_wal_file_closed(n->host, seq);
    sim_node_wake(n, 0);
}

static void on_wal_file_closed(void *ctx, uint64_t seq)
{
    struct sim_node *n = ctx;
    sim_node_at(n, sim_range(n->sim, SIM_US, 20 * SIM_US), file_closed, n, seq, NULL);
}

static void retire(struct sim *s, void *arg, uint64_t seq)
{
    struct sim_node *n = arg;
    (void)s;
    wal_retire(store_wal(n->store), seq);
}

static void wal_retired_hook(void *ctx, uint64_t seq)
{
    struct sim_node *n = ctx;
    sim_node_at(n, sim_range(n->sim, SIM_US, SIM_MS), retire, n, seq, NULL);
}

// ---- cold jobs -------------------------------------------------------------------------------------------------------------

static void cold_next(struct sim_node *n);

static void cold_done(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    struct job *job = (struct job *)(uintptr_t)number;
    (void)s;
    n->cold.is_busy = false;
    cold_next(n);
    job->done(job);
    sim_node_wake(n, 0);
}

static void cold_run(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    struct job *job = (struct job *)(uintptr_t)number;
    job->run(job);
    if (!sim_disk_is_dead(n->disk)) {
        sim_node_at(n, sim_range(s, SIM_US, 20 * SIM_US), cold_done, n, number, NULL);
    }
}

static void cold_next(struct sim_node *n)
{
    struct sim *s = n->sim;
    struct list *l = n->cold.is_busy ? NULL : list_pop(&n->cold.jobs);
    if (l) {
        n->cold.is_busy = true;
        sim_node_at(n, sim_range(s, s->faults.cold_delay_min, s->faults.cold_delay_spread), cold_run, n,
                    (uint64_t)(uintptr_t)list_entry(l, struct job, link), NULL);
    }
}

static void cold_submit(struct exec *e, struct job *j)
{
    struct sim_exec *x = container_of(e, struct sim_exec, base);
    list_add_tail(&x->jobs, &j->link);
    cold_next(x->node);
}

// ---- a node's life ---------------------------------------------------------------------------------------------------------

struct found {
    struct sim_node *node;
    struct store_group groups[SIM_GROUPS_MAX];
    bool has[SIM_GROUPS_MAX];
};

static void on_found(void *ctx, const struct store_group *g)
{
    struct found *f = ctx;
    const uint32_t slot = sim_group_slot(f->node->sim, g->group);
    if (slot == UINT32_MAX) {
        return;
    }
    f->has[slot] = true;
    f->groups[slot] = *g;
    struct term_run *runs = mem_alloc((g->runs_count + 1) * sizeof(*runs));
    for (uint32_t i = 0; i < g->runs_count; i++) {
        runs[i] = g->runs[i];
    }
    f->groups[slot].runs = runs;
    sim_check_recovered(f->node, g);
}

static uint32_t worker_of(void *ctx, uint64_t group)
{
    (void)ctx;
    (void)group;
    return 0;
}

static uint64_t mono_ns(void *ctx)
{
    return ((struct sim *)ctx)->now;
}

static int64_t wall_ms(void *ctx)
{
    return (int64_t)(((struct sim *)ctx)->now / SIM_MS) + 1800000000000;
}

static bool node_open(struct sim_node *n, struct found *found)
{
    struct sim *s = n->sim;
    const struct store_config config = {
        .disk = sim_disk_base(n->disk),
        .workers = 1,
        .worker_of = worker_of,
        .memtable_bytes = s->memtable_bytes,
        .wal_file_bytes = s->wal_file_bytes,
        .wal_align = 8,
        .random = rng_next(&n->rng),
        .on_wal_file_closed = on_wal_file_closed,
        .on_wal_done = on_wal_done,
        .wal_ctx = n,
    };
    struct wal_report report = {0};
    enum rc rc = store_open(&config, on_found, found, &report, &n->store);
    for (int i = 0; i < 3 && rc != RC_OK && (sim_disk_is_dead(n->disk) || config.disk->failed); i++) {
        // A fault armed earlier struck in the middle of the recovery.
        s->counters.crashes++;
        sim_disk_crash(n->disk, &s->rng);
        rc = store_open(&config, on_found, found, &report, &n->store);
    }
    if (rc != RC_OK) {
        sim_violation(s, "node %u: the store does not open: %s", n->id, rc_text(rc));
        return false;
    }
    if (report.is_corrupt) {
        sim_violation(s, "node %u: recovery takes unsynced data for damage", n->id);
    }
    for (uint32_t i = 0; i < s->groups_count; i++) {
        const struct sim_shadow *x = &n->shadows[i];
        if (!found->has[i] && (x->last > 0 || x->hard.term > 0) && !s->is_violated) {
            sim_violation(s, "node %u group %llu: not found, %llu entries were durable", n->id,
                          (unsigned long long)s->groups[i].id, (unsigned long long)x->last);
        }
    }
    return true;
}

static void node_add_group(struct sim_node *n, uint32_t slot, const struct store_group *recovered)
{
    struct sim *s = n->sim;
    struct sim_group *g = &s->groups[slot];
    if (s->app->group_add && s->app->group_add(n, slot, recovered)) {
        return;
    }
    n->machines[slot] = s->app->machine_create(s, n, g->id);
    const struct group_spec spec = {
        .group = g->id,
        .engine = g->initial.count > 1 ? "raft" : "solo",
        .replica_id = n->replicas[slot],
        .initial = g->initial,
        .recovered = recovered,
        .fsm = s->app->fsm,
        .fsm_ctx = n->machines[slot],
        .campaign_at_once = recovered == NULL && g->initial.members[0].node_id == n->id && n->incarnation == 1,
    };
    const enum rc rc = host_group_add(n->host, &spec, &n->groups[slot]);
    if (rc != RC_OK) {
        sim_violation(s, "node %u group %llu: not added: %s", n->id, (unsigned long long)g->id, rc_text(rc));
    }
}

static void node_groups(struct sim_node *n, struct found *found)
{
    struct sim *s = n->sim;
    for (uint32_t i = 0; i < s->groups_count; i++) {
        if (n->replicas[i] != 0) {
            node_add_group(n, i, found->has[i] ? &found->groups[i] : NULL);
        }
    }
}

static void show_file(void *ctx, const char *name)
{
    struct sim_node *n = ctx;
    sim_log(n->sim, "node %u:   %s", n->id, name);
}

static void show_files(struct sim_node *n)
{
    static const char *const dirs[] = {"wal", "seg", "."};
    struct disk *d = sim_disk_base(n->disk);
    for (size_t i = 0; n->sim->is_verbose && i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        if (d->list(d, dirs[i], show_file, n) != RC_OK) {
            sim_log(n->sim, "node %u: no directory %s", n->id, dirs[i]);
        }
    }
}

void sim_node_start(struct sim_node *n)
{
    struct sim *s = n->sim;
    assert(!n->is_up);
    n->incarnation++;
    n->turn_due = UINT64_MAX;
    n->is_wal_busy = n->cold.is_busy = n->is_paused = false;
    list_init(&n->wal_done);
    list_init(&n->cold.jobs);
    memset(n->commit_seen, 0, sizeof(n->commit_seen));
    memset(n->term_seen, 0, sizeof(n->term_seen));
    memset(n->is_leader_seen, 0, sizeof(n->is_leader_seen));
    memset(n->groups, 0, sizeof(n->groups));
    memset(n->machines, 0, sizeof(n->machines));
    struct found *found = mem_zalloc(sizeof(*found));
    found->node = n;
    sim_log(s, "node %u: starts (incarnation %llu)", n->id, (unsigned long long)n->incarnation);
    show_files(n);
    if (node_open(n, found)) {
        sim_net_bind(n);
        n->cold.node = n;
        n->cold.base.submit = cold_submit;
        const struct host_config config = {
            .node_id = n->id,
            .clock = &s->clock,
            .rng_seed = rng_next(&n->rng),
            .store = n->store,
            .net = &n->net.base,
            .cold = &n->cold.base,
            .wal_submit = wal_submit_hook,
            .wal_submit_ctx = n,
            .wal_retired = wal_retired_hook,
            .ctx = n,
        };
        n->host = host_create(&config);
        n->is_up = true;
        if (s->app->node_init) {
            s->app->node_init(s, n);
        }
        node_groups(n, found);
        if (s->app->node_up) {
            s->app->node_up(s, n);
        }
        sim_net_node_up(n);
        sim_node_wake(n, 0);
        sim_check_node(n);
    }
    for (uint32_t i = 0; i < s->groups_count; i++) {
        free((void *)found->groups[i].runs);
    }
    free(found);
}

static void node_free(struct sim_node *n)
{
    struct sim *s = n->sim;
    n->is_up = false;
    if (s->app->node_down) {
        s->app->node_down(s, n);
    }
    if (n->is_wal_busy) {
        wal_complete(store_wal(n->store), RC_IO);  // The core wants its batch back; nobody hears the result.
    }
    host_destroy(n->host);
    store_close(n->store);  // Gives back snapshots that were being written: their machines are still there.
    if (s->app->node_gone) {
        s->app->node_gone(s, n);
    }
    for (uint32_t i = 0; i < s->groups_count; i++) {
        if (n->machines[i]) {
            s->app->machine_destroy(n->machines[i]);
            n->machines[i] = NULL;
        }
        n->groups[i] = NULL;
    }
}

void sim_node_crash(struct sim_node *n, bool is_power)
{
    struct sim *s = n->sim;
    assert(n->is_up);
    sim_log(s, "node %u: %s", n->id, is_power ? "power fails" : "is killed");
    s->counters.crashes++;
    sim_check_crashed(n);
    if (n->is_wal_busy && !sim_disk_is_dead(n->disk) && !sim_disk_base(n->disk)->failed && sim_chance(s, 2)) {
        // In the middle of a write: some of it has reached the disk, none of it is synced.
        sim_disk_crash_after(n->disk, 1);
        const enum rc rc = wal_write(store_wal(n->store));
        assert(rc != RC_OK || sim_disk_is_dead(n->disk));  // Whatever it says, nobody hears it.
    }
    if (is_power || sim_disk_is_dead(n->disk)) {
        const uint64_t before = sim_disk_counters(n->disk)->torn_writes;
        sim_disk_crash(n->disk, &s->rng);
        s->counters.torn_writes += sim_disk_counters(n->disk)->torn_writes - before;
    } else {
        sim_disk_kill(n->disk);
    }
    node_free(n);
    sim_net_node_down(n, sim_chance(s, 2));
}

// ---- faults ------------------------------------------------------------------------------------------------------------------

static void restart(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    (void)s;
    (void)number;
    if (!n->is_up) {
        sim_node_start(n);
    }
}

static struct sim_node *any_node(struct sim *s)
{
    return &s->nodes[rng_below(&s->rng, s->nodes_count)];
}

static void crash_one(struct sim *s, struct sim_node *n)
{
    if (!n->is_up) {
        return;
    }
    const uint64_t how = rng_below(&s->rng, 4);
    if (how == 0) {
        sim_disk_crash_after(n->disk, rng_below(&s->rng, 30));  // In the middle of one of its next steps.
    } else if (how == 1 && sim_chance(s, s->faults.sync_fail_one_in)) {
        sim_disk_fail_sync_after(n->disk, rng_below(&s->rng, 3));
    } else {
        sim_node_crash(n, how == 2);
    }
}

static void restart_soon(struct sim *s, struct sim_node *n)
{
    sim_at(s, sim_range(s, 5 * SIM_MS, sim_chance(s, 3) ? 3 * SIM_S : 300 * SIM_MS), restart, n, 0);
}

static void fault_crash(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    if (s->is_calm) {
        return;
    }
    if (sim_chance(s, s->faults.crash_all_one_in)) {
        for (uint32_t i = 0; i < s->nodes_count; i++) {
            if (s->nodes[i].is_up) {
                sim_node_crash(&s->nodes[i], true);
            }
            restart_soon(s, &s->nodes[i]);
        }
    } else {
        struct sim_node *n = any_node(s);
        crash_one(s, n);
        restart_soon(s, n);
    }
    // Nodes whose armed fault has struck meanwhile come back too.
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        if (!s->nodes[i].is_up) {
            restart_soon(s, &s->nodes[i]);
        }
    }
    sim_at(s, sim_range(s, 1, 2 * s->faults.crash_every), fault_crash, NULL, 0);
}

static void partition_end(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    sim_net_heal(s);
}

static void fault_partition(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    if (s->is_calm) {
        return;
    }
    s->counters.partitions++;
    const uint64_t how = rng_below(&s->rng, 4);
    const uint32_t one = (uint32_t)rng_below(&s->rng, s->nodes_count) + 1;
    const uint32_t side = (uint32_t)rng_below(&s->rng, 1u << s->nodes_count);
    for (uint32_t a = 1; a <= s->nodes_count; a++) {
        for (uint32_t b = 1; b <= s->nodes_count; b++) {
            if (a == b) {
                continue;
            }
            const bool is_cut = how == 0   ? a == one || b == one                    // Isolated.
                                : how == 1 ? a == one                                // Hears, is not heard.
                                : how == 2 ? ((side >> (a - 1)) & 1) != ((side >> (b - 1)) & 1)  // Two halves.
                                           : sim_chance(s, 4);                       // Any directions.
            if (is_cut) {
                sim_net_cut(s, a, b, true);
            }
        }
    }
    sim_at(s, sim_range(s, 10 * SIM_MS, sim_chance(s, 2) ? 3 * SIM_S : 300 * SIM_MS), partition_end, NULL, 0);
    sim_at(s, sim_range(s, 1, 2 * s->faults.partition_every), fault_partition, NULL, 0);
}

static void pause_end(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    if (n->is_paused && n->incarnation == number) {
        n->is_paused = false;
        sim_net_node_down(n, false);  // Reviews the links.
    }
    (void)s;
}

static void fault_pause(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    if (s->is_calm) {
        return;
    }
    struct sim_node *n = any_node(s);
    if (n->is_up && !n->is_paused) {
        n->is_paused = true;
        n->paused_until = s->now + sim_range(s, 10 * SIM_MS, sim_chance(s, 2) ? 3 * SIM_S : 200 * SIM_MS);
        sim_log(s, "node %u: paused", n->id);
        sim_net_node_down(n, false);
        sim_at(s, n->paused_until - s->now, pause_end, n, n->incarnation);
    }
    sim_at(s, sim_range(s, 1, 2 * s->faults.pause_every), fault_pause, NULL, 0);
}

static struct group *a_leader(struct sim *s, uint32_t slot, struct sim_node **on)
{
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        struct sim_node *n = &s->nodes[i];
        if (n->is_up && !n->is_paused && n->groups[slot]) {
            struct consensus_status st;
            group_status(n->groups[slot], &st);
            if (st.role == ROLE_LEADER) {
                *on = n;
                return n->groups[slot];
            }
        }
    }
    return NULL;
}

static void fault_transfer(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    if (s->is_calm) {
        return;
    }
    struct sim_node *n = NULL;
    struct group *g = a_leader(s, (uint32_t)rng_below(&s->rng, s->groups_count), &n);
    if (g) {
        const uint32_t to = (uint32_t)rng_below(&s->rng, s->nodes_count) + 1;
        if (to != n->id) {
            const enum rc rc = group_transfer(g, to);
            sim_log(s, "node %u: group %llu to node %u: %s", n->id, (unsigned long long)group_id(g), to, rc_text(rc));
            sim_node_wake(n, 0);
            sim_check_node(n);
        }
    }
    sim_at(s, sim_range(s, 1, 2 * s->faults.transfer_every), fault_transfer, NULL, 0);
}

// One step of moving a group to other nodes: a learner joins, is promoted, and somebody leaves. One that has left is not told:
// its replica stays and must do no harm (P19).
static struct member_change draw_change(struct sim *s, uint32_t slot, const struct config *c, uint32_t leader_node)
{
    struct member_change change = {0};
    for (uint32_t i = 0; i < c->count; i++) {
        if (!c->members[i].is_voter) {
            change = (struct member_change){.kind = MEMBER_PROMOTE, .member = c->members[i]};
            return change;
        }
    }
    const struct member *m = &c->members[rng_below(&s->rng, c->count)];
    if (config_voters(c) > s->groups[slot].initial.count && m->node_id != leader_node) {
        change = (struct member_change){.kind = MEMBER_REMOVE, .member = *m};
        return change;
    }
    struct sim_node *n = any_node(s);
    if (n->is_up && n->replicas[slot] == 0) {
        n->replicas[slot] = s->groups[slot].next_replica++;
        node_add_group(n, slot, NULL);
        sim_node_wake(n, 0);
        change.kind = MEMBER_ADD_LEARNER;
        change.member = (struct member){.replica_id = n->replicas[slot], .node_id = n->id};
    }
    return change;
}

static void fault_members(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    if (s->is_calm) {
        return;
    }
    struct sim_node *n = NULL;
    const uint32_t slot = (uint32_t)rng_below(&s->rng, s->groups_count);
    struct group *g = s->groups[slot].kind == SIM_LIST ? a_leader(s, slot, &n) : NULL;
    if (g) {
        struct consensus_status st;
        struct config c;
        group_status(g, &st);
        config_copy(&c, st.config);
        const struct member_change change = draw_change(s, slot, &c, n->id);
        if (change.member.replica_id != 0) {
            const enum rc rc = group_change_members(g, &change);
            sim_log(s, "node %u: group %llu: change %d of replica %llu: %s", n->id, (unsigned long long)group_id(g),
                    change.kind, (unsigned long long)change.member.replica_id, rc_text(rc));
            s->counters.member_changes += rc == RC_OK;
            sim_node_wake(n, 0);
            sim_check_node(n);
        }
    }
    sim_at(s, sim_range(s, 1, 2 * s->faults.member_change_every), fault_members, NULL, 0);
}

static void fault_step_down(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    if (s->is_calm) {
        return;
    }
    struct sim_node *n = any_node(s);
    if (n->is_up && !n->is_paused) {
        host_step_down_all(n->host);
        sim_node_wake(n, 0);
        sim_check_node(n);
    }
    sim_at(s, sim_range(s, 1, 2 * s->faults.step_down_every), fault_step_down, NULL, 0);
}

// ---- a run -----------------------------------------------------------------------------------------------------------------

static uint64_t maybe(struct sim *s, uint64_t one_in, uint64_t value)
{
    return sim_chance(s, one_in) ? value : 0;
}

static void draw_faults(struct sim *s)
{
    struct sim_faults *f = &s->faults;
    *f = (struct sim_faults){
        .net_delay_min = sim_range(s, 20 * SIM_US, 200 * SIM_US),
        .net_delay_spread = sim_range(s, 10 * SIM_US, sim_chance(s, 3) ? 20 * SIM_MS : 500 * SIM_US),
        .net_slow_one_in = maybe(s, 2, sim_range(s, 50, 1000)),
        .lane_reset_one_in = maybe(s, 2, sim_range(s, 50, 2000)),
        .disk_delay_min = sim_range(s, 50 * SIM_US, SIM_MS),
        .disk_delay_spread = sim_range(s, 10 * SIM_US, sim_chance(s, 3) ? 20 * SIM_MS : 2 * SIM_MS),
        .disk_slow_one_in = maybe(s, 2, sim_range(s, 50, 1000)),
        .cold_delay_min = sim_range(s, 20 * SIM_US, 500 * SIM_US),
        .cold_delay_spread = sim_range(s, 10 * SIM_US, sim_chance(s, 3) ? 50 * SIM_MS : 2 * SIM_MS),
        .crash_every = sim_chance(s, 5) ? 0 : sim_range(s, 200 * SIM_MS, 3 * SIM_S),
        .partition_every = maybe(s, 2, sim_range(s, 300 * SIM_MS, 3 * SIM_S)),
        .crash_all_one_in = sim_range(s, 3, 10),
        .sync_fail_one_in = 2,
        .pause_every = maybe(s, 4, sim_range(s, 500 * SIM_MS, 3 * SIM_S)),
        .transfer_every = maybe(s, 3, sim_range(s, 50 * SIM_MS, SIM_S)),
        .step_down_every = maybe(s, 6, sim_range(s, 300 * SIM_MS, 2 * SIM_S)),
        .member_change_every = s->nodes_count == 5 ? maybe(s, 2, sim_range(s, 20 * SIM_MS, 300 * SIM_MS)) : 0,
    };
}

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
    s->memtable_bytes = sim_range(s, 2 << 20, 6 << 20);
    draw_faults(s);
    draw_groups(s);
    if (s->app->init) {
        s->app->init(s);
    }
    sim_net_create(s);
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        struct sim_node *n = &s->nodes[i];
        n->sim = s;
        n->id = i + 1;
        n->disk = sim_disk_create();
        rng_seed(&n->rng, rng_next(&s->rng));
    }
}

void sim_start(struct sim *s)
{
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        for (uint32_t k = 0; k < s->groups_count; k++) {
            const struct member *m = config_find_node(&s->groups[k].initial, s->nodes[i].id);
            s->nodes[i].replicas[k] = m ? m->replica_id : 0;
        }
        sim_node_start(&s->nodes[i]);
    }
    const struct {
        uint64_t every;
        void (*fn)(struct sim *s, void *arg, uint64_t n);
    } faults[] = {
        {s->faults.crash_every, fault_crash},         {s->faults.partition_every, fault_partition},
        {s->faults.pause_every, fault_pause},         {s->faults.transfer_every, fault_transfer},
        {s->faults.step_down_every, fault_step_down}, {s->faults.member_change_every, fault_members},
    };
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        if (faults[i].every > 0) {
            sim_at(s, sim_range(s, faults[i].every / 2, faults[i].every), faults[i].fn, NULL, 0);
        }
    }
    if (s->app->start) {
        s->app->start(s);
    }
}

void sim_deinit(struct sim *s)
{
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        if (s->nodes[i].is_up) {
            node_free(&s->nodes[i]);
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
}

static void show_groups(struct sim *s)
{
    for (uint32_t i = 0; i < s->groups_count; i++) {
        for (uint32_t k = 0; k < s->nodes_count; k++) {
            if (s->nodes[k].groups[i]) {
                struct consensus_status st;
                group_status(s->nodes[k].groups[i], &st);
                sim_log(s,
                        "group %llu (committed %llu) node %u: role %d term %llu leader node %u, first %llu last %llu durable "
                        "%llu commit %llu applied %llu cold %d wal %d",
                        (unsigned long long)s->groups[i].id, (unsigned long long)s->groups[i].committed, k + 1, st.role,
                        (unsigned long long)st.term, st.leader_node, (unsigned long long)st.first,
                        (unsigned long long)st.last, (unsigned long long)st.durable, (unsigned long long)st.commit,
                        (unsigned long long)st.applied, s->nodes[k].cold.is_busy, s->nodes[k].is_wal_busy);
            }
        }
    }
}

// All faults end; whoever is down comes back. Everything must come to rest within a minute.
static void calm_down(struct sim *s)
{
    s->is_calm = true;
    sim_log(s, "calm");
    sim_net_heal(s);
    const uint64_t end = s->now + 60 * SIM_S;
    while (!s->is_violated && s->now < end) {
        for (uint32_t i = 0; i < s->nodes_count; i++) {
            struct sim_node *n = &s->nodes[i];
            if (!n->is_up) {
                sim_node_start(n);
            }
        }
        if (!s->is_violated && s->app->is_settled(s)) {
            s->app->finish(s);
            return;
        }
        sim_run_until(s, s->now + 50 * SIM_MS);
    }
    show_groups(s);
    sim_violation(s, "a minute after the last fault not everything has come to rest");
}

bool sim_run(uint64_t seed, const struct sim_app *app, bool is_verbose, struct sim_counters *total, uint64_t *trace,
             char *violation, size_t violation_size)
{
    struct sim *s = mem_zalloc(sizeof(*s));
    sim_init(s, seed, app);
    s->is_verbose = is_verbose;
    const uint64_t end = s->now + sim_range(s, 2 * SIM_S, 6 * SIM_S);
    sim_start(s);
    sim_run_until(s, end);
    if (!s->is_violated) {
        calm_down(s);
    }
    const uint64_t *from = (const uint64_t *)&s->counters;
    uint64_t *to = (uint64_t *)total;
    for (size_t i = 0; i < sizeof(*total) / sizeof(*to); i++) {
        to[i] += from[i];
    }
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
