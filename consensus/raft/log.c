// SPDX-License-Identifier: Apache-2.0
// The engine's view of its log: not entries but the terms of runs of entries, and where it starts and ends.
//
// A log changes term only at elections, so a handful of runs describe it, and none an empty one: memory is taken by
// elections and by the first entry behind a snapshot of everything, else never on the data path. Truncation and snapshot installation go through this file
// alone and reset everything derived from the log with it: durable and matched index, epoch, configuration (P12).
//
// Invariants: runs ascend in first index and in term; runs[0].first = snapshot_index + 1 unless the log is empty.
#include "consensus/raft/state.h"
#include "node/base/slab.h"
#include <stdlib.h>

static uint32_t runs_room(uint32_t count)
{
    uint32_t room = 1;
    while (room < count) {
        room *= 2;
    }
    return count == 0 ? 0 : room;
}

// Room for `count` runs instead of that for the `was` there are.
static void runs_resize(struct replica *r, uint32_t was, uint32_t count)
{
    const uint32_t from = runs_room(was), to = runs_room(count);
    if (from == to) {
        return;
    }
    struct term_run *runs = to == 0 ? NULL : slab_zalloc(to * sizeof(*runs));
    const uint32_t kept = was < count ? was : count;
    if (kept > 0) {
        memcpy(runs, r->runs, kept * sizeof(*runs));
    }
    slab_free(r->runs, from * sizeof(*runs));
    r->runs = runs;
}

void raft_log_free(struct replica *r)
{
    runs_resize(r, r->runs_count, 0);
}

static void run_push(struct replica *r, uint64_t first, uint64_t term)
{
    assert(r->runs_count == 0 || r->runs[r->runs_count - 1].first < first);
    assert(r->runs_count == 0 || r->runs[r->runs_count - 1].term < term);
    runs_resize(r, r->runs_count, r->runs_count + 1);
    r->runs[r->runs_count++] = (struct term_run){.first = first, .term = term};
}

static void runs_keep(struct replica *r, uint32_t count)
{
    assert(count <= r->runs_count);
    runs_resize(r, r->runs_count, count);
    r->runs_count = count;
}

void raft_log_init(struct replica *r, const struct replica_start *start)
{
    assert(start->last >= start->snapshot_index);
    assert(start->runs_count > 0 || start->last == start->snapshot_index);
    r->snapshot_index = start->snapshot_index;
    r->snapshot_term = start->snapshot_term;
    r->last = r->durable = start->last;
    r->log_epoch = 1;
    for (uint32_t i = 0; i < start->runs_count; i++) {
        const struct term_run *run = &start->runs[i];
        assert(run->first <= start->last);
        // A recovered log may name a run from before the snapshot, or one term in two pieces.
        uint64_t first = max_u64(run->first, start->snapshot_index + 1);
        if (i + 1 < start->runs_count && start->runs[i + 1].first <= first) {
            continue;
        }
        if (r->runs_count > 0 && r->runs[r->runs_count - 1].term == run->term) {
            continue;
        }
        run_push(r, first, run->term);
    }
    if (r->last == r->snapshot_index) {
        runs_keep(r, 0);
    }
}

uint64_t raft_term_at(const struct replica *r, uint64_t index)
{
    if (index == r->snapshot_index) {
        return r->snapshot_term;
    }
    if (index < r->snapshot_index || index > r->last) {
        return 0;
    }
    for (uint32_t i = r->runs_count; i > 0; i--) {
        if (r->runs[i - 1].first <= index) {
            return r->runs[i - 1].term;
        }
    }
    assert(!"an index of the log is in no run");
    return 0;
}

void raft_log_extend(struct replica *r, uint64_t count, uint64_t term)
{
    assert(count > 0);
    assert(term > 0);
    if (r->runs_count == 0 || r->runs[r->runs_count - 1].term != term) {
        run_push(r, r->last + 1, term);
    }
    r->last += count;
}

void raft_log_truncate(struct replica *r, uint64_t from)
{
    assert(from > r->commit);
    assert(from > r->snapshot_index);
    assert(from <= r->last);
    r->last = from - 1;
    r->durable = min_u64(r->durable, r->last);
    r->matched = min_u64(r->matched, r->last);
    r->acked = min_u64(r->acked, r->durable);
    r->log_epoch++;
    uint32_t kept = r->runs_count;
    while (kept > 0 && r->runs[kept - 1].first >= from) {
        kept--;
    }
    runs_keep(r, kept);
    if (r->config->index >= from) {
        raft_config_roll_back(r);
    }
}

void raft_log_cut(struct replica *r, uint64_t index, uint64_t term)
{
    assert(index >= r->snapshot_index);
    assert(index <= r->last);
    uint32_t dropped = 0;
    while (dropped + 1 < r->runs_count && r->runs[dropped + 1].first <= index + 1) {
        dropped++;
    }
    if (index == r->last) {
        dropped = r->runs_count;
    }
    const uint32_t kept = r->runs_count - dropped;
    if (kept > 0) {
        memmove(r->runs, r->runs + dropped, kept * sizeof(r->runs[0]));
        r->runs[0].first = index + 1;
    }
    runs_keep(r, kept);
    r->snapshot_index = index;
    r->snapshot_term = term;
}

void raft_log_reset(struct replica *r, uint64_t index, uint64_t term)
{
    runs_keep(r, 0);
    r->snapshot_index = index;
    r->snapshot_term = term;
    r->last = r->durable = index;
    r->log_epoch++;
}

uint64_t raft_log_below_term(const struct replica *r, uint64_t index, uint64_t term)
{
    index = min_u64(index, r->last);
    for (uint32_t i = r->runs_count; i > 0 && index > r->snapshot_index; i--) {
        const struct term_run *run = &r->runs[i - 1];
        if (run->first > index) {
            continue;
        }
        if (run->term <= term) {
            return index;
        }
        index = run->first - 1;
    }
    return index;
}
