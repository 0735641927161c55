// SPDX-License-Identifier: Apache-2.0
// The faults of a seed: which there are, and what they do.
#include "tests/sim/sim.h"
#include <assert.h>
#include <stdlib.h>

// ---- faults -----------------------------------------------------------------------------------------------

static void restart(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    (void)s;
    (void)number;
    if (!n->is_up && !n->is_gone) {
        sim_node_start(n);
    }
}

struct sim_node *sim_any_node(struct sim *s)
{
    for (;;) {
        struct sim_node *n = &s->nodes[rng_below(&s->rng, s->nodes_count)];
        if (!n->is_gone) {
            return n;
        }
    }
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

void sim_restart_soon(struct sim_node *n)
{
    struct sim *s = n->sim;
    if (s->may_restart) {
        sim_at(s, sim_range(s, 5 * SIM_MS, sim_chance(s, 3) ? 3 * SIM_S : 300 * SIM_MS), restart, n, 0);
    }
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
        }
    } else {
        crash_one(s, sim_any_node(s));
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
    struct sim_node *n = sim_any_node(s);
    if (n->is_up && !n->is_paused) {
        n->is_paused = true;
        n->paused_until = s->now + sim_range(s, 10 * SIM_MS, sim_chance(s, 2) ? 3 * SIM_S : 200 * SIM_MS);
        sim_log(s, "node %u: paused", n->id);
        sim_net_node_down(n, false);
        sim_at(s, n->paused_until - s->now, pause_end, n, n->incarnation);
    }
    sim_at(s, sim_range(s, 1, 2 * s->faults.pause_every), fault_pause, NULL, 0);
}

struct group *sim_leader(struct sim *s, uint32_t slot, struct sim_node **on)
{
    struct group *found = NULL;
    uint64_t term = 0;
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        struct sim_node *n = &s->nodes[i];
        if (n->is_up && !n->is_paused && n->groups[slot]) {
            struct consensus_status st;
            group_status(n->groups[slot], &st);
            if (st.role == ROLE_LEADER && st.term > term) {
                *on = n;
                term = st.term;
                found = n->groups[slot];
            }
        }
    }
    return found;
}

static void fault_transfer(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    if (s->is_calm) {
        return;
    }
    struct sim_node *n = NULL;
    struct group *g = sim_leader(s, (uint32_t)rng_below(&s->rng, s->groups_count), &n);
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

static void fault_step_down(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    if (s->is_calm) {
        return;
    }
    struct sim_node *n = sim_any_node(s);
    if (n->is_up && !n->is_paused) {
        host_step_down_all(n->host);
        sim_node_wake(n, 0);
        sim_check_node(n);
    }
    sim_at(s, sim_range(s, 1, 2 * s->faults.step_down_every), fault_step_down, NULL, 0);
}

// ---- lost data --------------------------------------------------------------------------------------------
//
// One node of a seed loses what it had promised, and only while the other members of every group have all
// they promised: then no loss is legitimate and everything acknowledged must still be there (TigerBeetle's
// fault atlas).

static bool may_lose(struct sim *s, const struct sim_node *n)
{
    return !n->is_gone && sim_members_are_whole(s, n->id);
}

static void come_as_another(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    (void)number;
    if (!n->is_up && !n->is_gone) {
        sim_node_start(n);
    }
    (void)s;
}

// Everything on its disk is gone. The machine comes back under another node id, with nothing; who had its old
// id never does.
static void wipe(struct sim *s, struct sim_node *n)
{
    if (n->is_up) {
        sim_node_crash(n, false);
    }
    sim_log(s, "node %u: its disk is wiped", n->id);
    s->counters.wipes++;
    n->is_gone = true;
    sim_check_wiped(n);
    sim_net_node_down(n, true);
    struct sim_node *next = sim_node_create(s);
    s->faults.victim = next->id;
    sim_at(s, sim_range(s, 5 * SIM_MS, sim_chance(s, 3) ? 2 * SIM_S : 300 * SIM_MS), come_as_another, next, 0);
}

static void fault_wipe(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = &s->nodes[s->faults.victim - 1];
    (void)arg;
    (void)number;
    if (s->is_calm) {
        return;
    }
    if (may_lose(s, n) && s->nodes_count + 1 < SIM_NODES_MAX) {  // The last place is for whom its damage ends.
        wipe(s, n);
    }
    sim_at(s, sim_range(s, 1, 2 * s->faults.wipe_every), fault_wipe, NULL, 0);
}

static void wipe_damaged(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    (void)number;
    if (!n->is_gone) {
        wipe(s, n);
    }
}

// A log of which nobody can tell whom its damage concerns, nor what came behind it, makes a node useless.
void sim_wipe_soon(struct sim_node *n)
{
    if (!n->is_damaged) {
        n->is_damaged = true;
        sim_at(n->sim, sim_range(n->sim, 10 * SIM_MS, SIM_S), wipe_damaged, n, 0);
    }
}

// A bit of what was synced turns. Not in the last batch of the log, for nothing proves that it was synced
// (wal/README.md).
static void fault_flip(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    if (s->is_calm) {
        return;
    }
    struct sim_node *n = &s->nodes[s->faults.victim - 1];
    if (n->is_up && !n->is_damaged && may_lose(s, n) && sim_node_flip(n)) {
        s->counters.flips++;
    }
    sim_at(s, sim_range(s, 1, 2 * s->faults.flip_every), fault_flip, NULL, 0);
}

static void full_end(struct sim *s, void *arg, uint64_t number)
{
    struct sim_node *n = arg;
    (void)s;
    (void)number;
    n->is_full = false;
    sim_disk_set_budget(n->disk, UINT64_MAX);
    sim_log(n->sim, "node %u: room on its disk again", n->id);
    if (n->is_up) {
        host_room(n->host);
        sim_node_wake(n, 0);
    }
}

static void fault_full(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    if (s->is_calm) {
        return;
    }
    struct sim_node *n = sim_any_node(s);
    if (n->is_up && !n->is_full) {
        n->is_full = true;
        const uint64_t left = sim_chance(s, 3) ? 0 : rng_below(&s->rng, 2 * s->wal_file_bytes);
        sim_disk_set_budget(n->disk, sim_disk_used(n->disk) + left);
        s->counters.full_disks++;
        sim_log(s, "node %u: its disk is full", n->id);
        sim_at(s, sim_range(s, 10 * SIM_MS, sim_chance(s, 2) ? 2 * SIM_S : 300 * SIM_MS), full_end, n, 0);
    }
    sim_at(s, sim_range(s, 1, 2 * s->faults.full_every), fault_full, NULL, 0);
}

// As node/server/alarm.c: while the disk is short of room, what waits for it is tried again.
static void look_for_room(struct sim *s, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        struct sim_node *n = &s->nodes[i];
        if (n->is_up && !n->is_paused && (store_is_short(n->store) || wal_is_short(store_wal(n->store)))) {
            // As file systems do every few seconds: the room of removed files comes back.
            (void)sim_disk_base(n->disk)->sync_dir(sim_disk_base(n->disk), "seg");
            (void)sim_disk_base(n->disk)->sync_dir(sim_disk_base(n->disk), "wal");
            wal_trim(store_wal(n->store));
            (void)wal_top_up(store_wal(n->store));
            host_room(n->host);
            sim_node_wake(n, 0);
        }
    }
    sim_at(s, SIM_S, look_for_room, NULL, 0);
}

// ---- which of them ----------------------------------------------------------------------------------------

static uint64_t maybe(struct sim *s, uint64_t one_in, uint64_t value)
{
    return sim_chance(s, one_in) ? value : 0;
}

void sim_faults_draw(struct sim *s)
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
        .member_change_every = maybe(s, s->nodes_count == 5 ? 2 : 4, sim_range(s, 20 * SIM_MS, 300 * SIM_MS)),
        .full_every = maybe(s, 10, sim_range(s, 300 * SIM_MS, 2 * SIM_S)),
    };
    if (sim_chance(s, 4)) {
        const uint64_t what = rng_below(&s->rng, 3);
        s->faults.victim = (uint32_t)rng_below(&s->rng, s->nodes_count) + 1;
        f->wipe_every = what != 0 ? sim_range(s, 200 * SIM_MS, 3 * SIM_S) : 0;
        f->flip_every = what != 1 ? sim_range(s, 100 * SIM_MS, 2 * SIM_S) : 0;
    }
}

void sim_faults_start(struct sim *s)
{
    const struct {
        uint64_t every;
        void (*fn)(struct sim *s, void *arg, uint64_t n);
    } faults[] = {
        {s->faults.crash_every, fault_crash},         {s->faults.partition_every, fault_partition},
        {s->faults.pause_every, fault_pause},         {s->faults.transfer_every, fault_transfer},
        {s->faults.step_down_every, fault_step_down}, {s->faults.wipe_every, fault_wipe},
        {s->faults.flip_every, fault_flip},           {s->faults.full_every, fault_full},
    };
    if (s->faults.full_every > 0) {
        sim_at(s, SIM_S, look_for_room, NULL, 0);
    }
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        if (faults[i].every > 0) {
            sim_at(s, sim_range(s, faults[i].every / 2, faults[i].every), faults[i].fn, NULL, 0);
        }
    }
}
