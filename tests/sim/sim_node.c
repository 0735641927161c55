// SPDX-License-Identifier: Apache-2.0
// Nodes and their life, the WAL's and the cold thread's drivers.
//
// A node's parts run as events: its worker's turn, the WAL's write and sync (which take their time), cold jobs, their
// completions. A crash drops the events of that life; its disk keeps, tears or loses what was not synced. A
// disk can also stop in the middle of a write or a cold job: the event in which that happens is the node's last.
#include "consensus/wal/internal.h"
#include "tests/sim/sim.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define CALM_SPREAD (1 * SIM_MS)

// ---- the worker's turn ------------------------------------------------------------------------------------

// A node ends when its disk fails, not when that is full.
static void check_failed(struct sim_node *n)
{
    if (!sim_disk_is_faulty(n->disk)) {
        sim_violation(n->sim, "node %u: ends itself, its disk has not failed%s", n->id,
                      n->is_full ? " (it is full)" : "");
    }
}

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
        check_failed(n);
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

// ---- WAL --------------------------------------------------------------------------------------------------

static void wal_pump(struct sim_node *n);

static void wal_mark(struct sim *s, void *arg, uint64_t number);

static void wal_written(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    struct wal *w = store_wal(n->store);
    (void)number;
    const uint64_t offset = w->batch.is_roll ? 0 : w->batch.offset;
    const enum rc rc = n->wal_tries < 10 ? wal_write(w) : wal_write_small(w);  // As wal_thread.c.
    n->wal_tries = rc == RC_NO_SPACE ? n->wal_tries + 1 : 0;
    if (sim_disk_is_dead(n->disk)) {
        return;  // The power went; the step ends the node.
    }
    if (rc == RC_NO_SPACE) {
        host_room(n->host);
        sim_node_at(n, 100 * SIM_MS, wal_written, n, 0, NULL);  // Nothing was promised; the same batch again.
        return;
    }
    if (rc != RC_OK) {
        sim_log(s, "node %u: write-ahead log failed", n->id);
        check_failed(n);
        sim_node_crash(n, true);  // P6: the process ends.
        return;
    }
    n->is_wal_busy = false;
    wal_complete(w, rc);
    n->vouched_seq = wal_current_seq(w);
    n->vouched_offset = offset;
    (void)wal_top_up(w);  // Without room the next file has to do without a reserve.
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
        // Small slices stand for those of a MiB: at 8 KiB each a slow disk would need minutes for what large messages left.
        const bool is_quick = s->is_calm && s->wal_slice_bytes > 0 && s->faults.disk_delay_spread > CALM_SPREAD;
        uint64_t delay = sim_range(s, s->faults.disk_delay_min, is_quick ? CALM_SPREAD : s->faults.disk_delay_spread);
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
    n->sim->counters.wal_files++;
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

// ---- cold jobs --------------------------------------------------------------------------------------------

static void exec_next(struct sim_exec *x);

static void job_done(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    struct job *job = (struct job *)(uintptr_t)number;
    struct sim_exec *x = job->submitter;
    (void)s;
    x->is_busy = false;
    exec_next(x);
    job->done(job);
    sim_node_wake(n, 0);
}

static void job_run(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    struct job *job = (struct job *)(uintptr_t)number;
    job->run(job);
    if (!sim_disk_is_dead(n->disk)) {
        sim_node_at(n, sim_range(s, SIM_US, 20 * SIM_US), job_done, n, number, NULL);
    }
}

static void exec_next(struct sim_exec *x)
{
    struct sim *s = x->node->sim;
    struct list *l = x->is_busy ? NULL : list_pop(&x->jobs);
    if (l) {
        x->is_busy = true;
        sim_node_at(x->node, sim_range(s, s->faults.cold_delay_min, s->faults.cold_delay_spread), job_run, x->node,
                    (uint64_t)(uintptr_t)list_entry(l, struct job, link), NULL);
    }
}

static void on_submit(struct exec *e, struct job *j)
{
    struct sim_exec *x = container_of(e, struct sim_exec, base);
    j->submitter = x;
    list_add_tail(&x->jobs, &j->link);
    exec_next(x);
}

static void exec_start(struct sim_exec *x, struct sim_node *n)
{
    *x = (struct sim_exec){.base.submit = on_submit, .node = n};
    list_init(&x->jobs);
}

// ---- a node's life ----------------------------------------------------------------------------------------

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
        .wal_reserve_files = 1,
        .reserve_bytes = 2 * s->wal_file_bytes + s->wal_file_bytes / 8,
        .last_bytes = 32 << 10,
        .wal_slice_bytes = s->wal_slice_bytes,
        .segment_reach = s->segment_reach,
        .harvest_groups = s->harvest_groups,
        .removal_piece = s->removal_piece,
        .random = rng_next(&n->rng),
        .on_wal_file_closed = on_wal_file_closed,
        .on_wal_done = on_wal_done,
        .wal_ctx = n,
    };
    struct wal_report report = {0};
    if (n->is_full && sim_disk_room(n->disk) < 2 * s->wal_file_bytes) {
        store_make_room(sim_disk_base(n->disk));  // As node/server/node.c.
    }
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
    if (report.is_corrupt && !n->is_flipped) {
        sim_violation(s, "node %u: recovery takes unsynced data for damage", n->id);
    }
    if (report.is_corrupt && !report.corrupt_groups_known) {
        sim_wipe_soon(n);
    }
    for (uint32_t i = 0; i < s->groups_count; i++) {
        struct sim_shadow *x = &n->shadows[i];
        if (found->has[i] || n->replicas[i] == 0 || x->replica != n->replicas[i]) {
            continue;
        }
        sim_check_not_found(n, i, report.is_corrupt && !report.corrupt_groups_known);
        if (x->is_lost) {
            // As the broker does where a store is damaged as a whole: nothing is left, so everything may be.
            found->has[i] = true;
            found->groups[i] = (struct store_group){.group = s->groups[i].id, .is_amnesiac = true};
        }
    }
    return true;
}

void sim_node_add_group(struct sim_node *n, uint32_t slot, const struct store_group *recovered)
{
    struct sim *s = n->sim;
    struct sim_group *g = &s->groups[slot];
    if (n->shadows[slot].replica == 0) {
        n->shadows[slot].replica = n->replicas[slot];  // Else when the one before is deleted on disk.
    }
    if (s->app->group_add && s->app->group_add(n, slot, recovered)) {
        sim_check_added(n, slot);
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
        .may_sleep = s->may_sleep,
        .campaign_at_once =
            recovered == NULL && g->initial.members[0].replica_id == n->replicas[slot] && n->incarnation == 1,
    };
    const enum rc rc = host_group_add(n->host, &spec, &n->groups[slot]);
    if (rc != RC_OK) {
        sim_violation(s, "node %u group %llu: not added: %s", n->id, (unsigned long long)g->id, rc_text(rc));
        return;
    }
    sim_check_added(n, slot);
}

// A node that is told late who lives there names the one before: what its successor said stays.
static void add_former(struct sim_node *n, uint32_t slot, const struct store_group *recovered)
{
    struct sim *s = n->sim;
    const struct sim_group *g = &s->groups[slot];
    struct group *group = NULL;
    const struct group_spec spec = {
        .group = g->id,
        .engine = "raft",
        .replica_id = n->former[slot],
        .initial = g->initial,
        .recovered = recovered,
        .fsm = &sim_list_fsm,
    };
    const enum rc rc = host_group_add(n->host, &spec, &group);
    if (rc != RC_STALE) {
        sim_violation(s, "node %u group %llu: replica %llu gets what replica %llu has here: %s", n->id,
                      (unsigned long long)g->id, (unsigned long long)n->former[slot],
                      (unsigned long long)n->replicas[slot], rc_text(rc));
    }
}

// What the disk holds of a group that has nobody here any more is deleted, and a metadata store goes with all the disk
// holds (node/server). In any other case the replica that lives here begins with what there is, whosever it is.
static void node_groups(struct sim_node *n, struct found *found)
{
    struct sim *s = n->sim;
    for (uint32_t i = 0; i < s->groups_count && !s->is_violated; i++) {
        const bool is_own = n->shadows[i].replica == n->replicas[i];
        const struct store_group *g = found->has[i] ? &found->groups[i] : NULL;
        if (g && g->log && !is_own && (n->replicas[i] == 0 || s->groups[i].kind == SIM_META)) {
            glog_delete(g->log);
            g = NULL;
        } else if (!is_own && (!g || g->is_hiding || g->replica_id == n->replicas[i])) {
            // The last: its beginning was written, and the sync failed or never came to its end; it was there all the same.
            sim_check_begun(n, i);
            n->shadows[i].is_lost = g && g->is_hiding;  // Nobody can say any more what it wrote.
        } else if (is_own && g && g->replica_id != 0 && n->former[i] != 0 && sim_chance(s, 4)) {
            add_former(n, i, g);
        }
        if (n->replicas[i] != 0 && !s->is_violated) {
            sim_node_add_group(n, i, g);
        }
    }
}

void sim_node_drop_group(struct sim_node *n, uint32_t slot)
{
    struct sim *s = n->sim;
    n->replicas[slot] = 0;
    if (n->groups[slot] == NULL) {
        return;  // It could not be added.
    }
    if (s->groups[slot].kind != SIM_LIST && (!s->app->group_drop || !s->app->group_drop(n, slot))) {
        sim_node_crash(n, false);  // Its start will delete it.
        return;
    }
    if (s->groups[slot].kind == SIM_LIST) {
        host_group_remove(n->groups[slot], true);
        s->app->machine_destroy(n->machines[slot]);
        n->machines[slot] = NULL;
    }
    n->groups[slot] = NULL;
    n->commit_seen[slot] = n->term_seen[slot] = 0;
    n->is_leader_seen[slot] = false;
    n->seen[slot] = (struct sim_seen){0};
    sim_node_wake(n, 0);
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
    n->wal_tries = 0;
    n->is_wal_busy = n->is_paused = false;
    exec_start(&n->cold, n);
    exec_start(&n->removal, n);
    list_init(&n->wal_done);
    memset(n->commit_seen, 0, sizeof(n->commit_seen));
    memset(n->term_seen, 0, sizeof(n->term_seen));
    memset(n->is_leader_seen, 0, sizeof(n->is_leader_seen));
    memset(n->seen, 0, sizeof(n->seen));
    memset(n->groups, 0, sizeof(n->groups));
    memset(n->machines, 0, sizeof(n->machines));
    n->vouched_seq = n->vouched_offset = 0;
    struct found *found = mem_zalloc(sizeof(*found));
    found->node = n;
    sim_log(s, "node %u: starts (incarnation %llu)", n->id, (unsigned long long)n->incarnation);
    show_files(n);
    if (node_open(n, found)) {
        sim_net_bind(n);
        const struct host_config config = {
            .node_id = n->id,
            .clock = &s->clock,
            .rng_seed = rng_next(&n->rng),
            .store = n->store,
            .net = &n->net.base,
            .cold = &n->cold.base,
            .removal = &n->removal.base,
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
        struct host_metrics m;
        host_metrics(n->host, &m);
        s->counters.slept += m.asleep;
        if (s->app->node_up) {
            s->app->node_up(s, n);
        }
        sim_net_node_up(n);
        sim_node_wake(n, 0);
        sim_check_node(n);
    } else {
        sim_restart_soon(n);
    }
    for (uint32_t i = 0; i < s->groups_count; i++) {
        free((void *)found->groups[i].runs);
    }
    free(found);
}

void sim_node_free(struct sim_node *n)
{
    struct sim *s = n->sim;
    n->is_up = false;
    if (s->app->node_down) {
        s->app->node_down(s, n);
    }
    struct host_metrics m;
    host_metrics(n->host, &m);
    s->counters.cold_reads += m.cold_reads;
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
    sim_node_free(n);
    sim_net_node_down(n, sim_chance(s, 2));
    sim_restart_soon(n);
}

// ---- wrong bits -------------------------------------------------------------------------------------------

// Once a replica that finds damage while it runs says so and leaves the lead (store_hooks.damaged).
enum { SIM_FLIPS_SEGMENTS = 1 };

struct flip {
    struct sim_node *node;
    const char *dir;
    uint32_t seen;
    char path[64];
    uint64_t bytes;
};

static void flip_look(void *ctx, const char *name)
{
    struct flip *f = ctx;
    struct disk *d = sim_disk_base(f->node->disk);
    char path[64];
    uint64_t seq = 0, bytes = 0;
    if (strstr(name, ".tmp") || strncmp(name, "free-", 5) == 0) {
        return;
    }
    snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    struct disk_file *file;
    if (d->open(d, path, DISK_READ, &file) != RC_OK) {
        return;
    }
    const enum rc rc = d->size(file, &bytes);
    d->close(file);
    if (strncmp(name, "wal-", 4) == 0) {
        seq = strtoull(name + 4, NULL, 16);
        bytes = seq > f->node->vouched_seq ? 0 : seq < f->node->vouched_seq ? bytes : f->node->vouched_offset;
    }
    if (rc == RC_OK && bytes > 0 && sim_chance(f->node->sim, ++f->seen)) {
        memcpy(f->path, path, sizeof(path));
        f->bytes = bytes;
    }
}

bool sim_node_flip(struct sim_node *n)
{
    struct sim *s = n->sim;
    struct flip f = {.node = n, .dir = !SIM_FLIPS_SEGMENTS || sim_chance(s, 2) ? "wal" : "seg"};
    struct disk *d = sim_disk_base(n->disk);
    if (sim_disk_is_dead(n->disk) || d->list(d, f.dir, flip_look, &f) != RC_OK || f.bytes == 0) {
        return false;
    }
    const uint64_t at = rng_below(&s->rng, f.bytes);
    sim_log(s, "node %u: a bit of %s turns, at %llu", n->id, f.path, (unsigned long long)at);
    sim_disk_flip_bit(n->disk, f.path, at, (unsigned)rng_below(&s->rng, 8));
    n->is_flipped = true;
    return true;
}

