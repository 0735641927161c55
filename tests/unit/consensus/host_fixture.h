// SPDX-License-Identifier: Apache-2.0
// What the tests of the host share: three hosts in one process, in the simulator's world without its faults; the
// invariants of sim_check.c hold after every event here too. Included by one test file each.
#pragma once
#include "consensus/store/core.h"
#include "tests/sim/sim.h"
#include <check.h>
#include <stdlib.h>

#pragma GCC diagnostic ignored "-Wunused-function"  // Not every test file needs all of it.

// ---- fixture ----------------------------------------------------------------------------------------------

static struct sim *s;

// A machine that only counts; its history is compared by the world.
struct counter {
    struct sim_node *node;
    uint64_t group, index, chain, entries, bytes;
    uint64_t applies;  // Calls.
    uint64_t drained;  // Index of the last entry of one byte: with it those before are not needed any more (live_fsm).
    bool leads;        // As it was told last.
};
struct fsm_snapshot {
    struct counter state;
};

static uint32_t counter_apply(void *ctx, const struct entry *entries, uint32_t n)
{
    struct counter *c = ctx;
    c->applies++;
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_uint_eq(entries[i].index, c->index + 1);
        c->index = entries[i].index;
        c->drained = entries[i].kind == RECORD_ENTRY && entries[i].payload.len == 1 ? c->index : c->drained;
        c->entries += entries[i].kind == RECORD_ENTRY;
        c->bytes += entries[i].kind == RECORD_ENTRY ? entries[i].payload.len : 0;
        c->chain = hash_u64(c->chain ^ hash_bytes(entries[i].payload) ^ entries[i].term);
        sim_check_applied(c->node, c->group, c->index, entries[i].term, c->chain);
    }
    return n;
}
static void counter_role(void *ctx, const struct consensus_status *status)
{
    struct counter *c = ctx;
    if (c) {
        c->leads = status->role == ROLE_LEADER;
    }
}
static struct fsm_snapshot *counter_snapshot_begin(void *ctx)
{
    struct fsm_snapshot *f = malloc(sizeof(*f));
    f->state = *(struct counter *)ctx;
    return f;
}
static bool counter_snapshot_chunk(struct fsm_snapshot *f, struct buf *to)
{
    buf_bytes(to, &f->state, sizeof(f->state));
    return false;
}
static void counter_snapshot_live(struct fsm_snapshot *f, struct buf *out)
{
}
static void counter_snapshot_end(struct fsm_snapshot *f)
{
    free(f);
}
static uint32_t restore_refused_by;  // A node whose machines cannot take their snapshot.
static void counter_restore_begin(void *ctx)
{
}
static enum rc counter_restore_chunk(void *ctx, struct span chunk)
{
    struct counter *c = ctx;
    struct sim_node *node = c->node;
    const bool leads = c->leads;
    if (restore_refused_by == node->id) {
        return RC_MALFORMED;
    }
    ck_assert_uint_eq(chunk.len, sizeof(*c));
    memcpy(c, chunk.ptr, sizeof(*c));
    c->node = node;
    c->leads = leads;
    return RC_OK;
}
static enum rc counter_restore_end(void *ctx, uint64_t index)
{
    ck_assert_uint_eq(((struct counter *)ctx)->index, index);
    return RC_OK;
}
static uint64_t counter_size(void *ctx)
{
    return sizeof(struct counter);
}
static const struct fsm_ops counter_fsm = {
    .version = 1,
    .apply = counter_apply,
    .role = counter_role,
    .snapshot_begin = counter_snapshot_begin,
    .snapshot_chunk = counter_snapshot_chunk,
    .snapshot_live = counter_snapshot_live,
    .snapshot_end = counter_snapshot_end,
    .restore_begin = counter_restore_begin,
    .restore_chunk = counter_restore_chunk,
    .restore_end = counter_restore_end,
    .size_estimate = counter_size,
};
static void *counter_create(struct sim *world, struct sim_node *n, uint64_t group)
{
    struct counter *c = calloc(1, sizeof(*c));
    c->node = n;
    c->group = group;
    return c;
}
static const struct sim_app counter_app = {
    .name = "counter", .machine_create = counter_create, .machine_destroy = free, .fsm = &counter_fsm};

static void setup(void)
{
    s = calloc(1, sizeof(*s));
    sim_init(s, 4711, &counter_app);
    // No chance but small delays: three nodes, three groups led by turns.
    for (uint32_t i = 3; i < s->nodes_count; i++) {
        sim_disk_destroy(s->nodes[i].disk);
    }
    s->nodes_count = 3;
    for (uint32_t i = 0; i < s->groups_count; i++) {
        map_deinit(&s->groups[i].leaders);
    }
    memset(s->groups, 0, sizeof(s->groups));
    s->groups_count = 3;
    for (uint32_t i = 0; i < 3; i++) {
        s->groups[i].id = 100 + i;
        map_init_u64(&s->groups[i].leaders);
        s->groups[i].initial.count = 3;
        for (uint32_t k = 0; k < 3; k++) {
            s->groups[i].initial.members[k] =
                (struct member){.replica_id = i * 10 + k + 1, .node_id = (i + k) % 3 + 1, .is_voter = true};
        }
    }
    s->faults = (struct sim_faults){
        .net_delay_min = 50 * SIM_US, .disk_delay_min = SIM_MS, .cold_delay_min = 100 * SIM_US};
    s->wal_file_bytes = 1 << 20;
    s->wal_slice_bytes = 0;
    s->memtable_bytes = 4 << 20;
}
static void teardown(void)
{
    ck_assert_msg(!s->is_violated, "%s", s->violation);
    sim_deinit(s);
    free(s);
}

// ---- helpers ----------------------------------------------------------------------------------------------

static void run_ms(uint64_t ms)
{
    sim_run_until(s, s->now + ms * SIM_MS);
    ck_assert_msg(!s->is_violated, "%s", s->violation);
}
static struct consensus_status status(uint32_t node, uint32_t slot)
{
    struct consensus_status st;
    group_status(s->nodes[node - 1].groups[slot], &st);
    return st;
}
static uint32_t leader(uint32_t slot)
{
    for (uint32_t i = 1; i <= 3; i++) {
        if (s->nodes[i - 1].is_up && status(i, slot).role == ROLE_LEADER) {
            return i;
        }
    }
    return 0;
}
// All nodes up, group i led by node i + 1.
static void start(void)
{
    sim_start(s);
    for (int tries = 0; tries < 100; tries++) {
        bool is_done = true;
        run_ms(500);
        for (uint32_t slot = 0; slot < s->groups_count; slot++) {
            const uint32_t wanted = s->groups[slot].initial.members[0].node_id;
            const uint32_t is = leader(slot);
            if (is != 0 && is != wanted) {
                // Refused while an earlier one is under way.
                if (group_transfer(s->nodes[is - 1].groups[slot], wanted) == RC_OK) {
                    sim_node_wake(&s->nodes[is - 1], 0);
                }
            }
            is_done = is_done && is == wanted && status(wanted, slot).is_ready;
        }
        if (is_done) {
            return;
        }
    }
    ck_abort_msg("the groups did not get the leaders wanted");
}
static enum rc propose(uint32_t node, uint32_t slot, size_t bytes)
{
    uint8_t *payload = calloc(1, bytes + 1);
    for (size_t i = 0; i < bytes; i += 997) {
        payload[i] = (uint8_t)(i / 997);
    }
    const struct glog_part part = {payload, bytes};
    uint64_t index, term;
    const enum rc rc = group_propose(s->nodes[node - 1].groups[slot], &part, 1, false, &index, &term);
    free(payload);
    sim_node_wake(&s->nodes[node - 1], 0);
    return rc;
}
static struct counter *machine(uint32_t node, uint32_t slot)
{
    return s->nodes[node - 1].machines[slot];
}
static void crash(uint32_t node)
{
    sim_node_crash(&s->nodes[node - 1], true);
}
static void restart(uint32_t node)
{
    sim_node_start(&s->nodes[node - 1]);
}
static struct host_metrics metrics(uint32_t node)
{
    struct host_metrics m;
    host_metrics(s->nodes[node - 1].host, &m);
    return m;
}
