// SPDX-License-Identifier: Apache-2.0
// Random histories of groups and workers against the model, in any interleaving, with crashes and kills.
// links: node/base proto consensus consensus/raft consensus/solo consensus/store consensus/wal gen tests/sim
#include "tests/unit/consensus/store_fixture.h"

enum { SEEDS = 150, STEPS = 600, CRASHES = 4 };

static struct fixture fx;
static struct rng rng;

static bool one_in(uint64_t n)
{
    return rng_below(&rng, n) == 0;
}

// Up to here everything of the group is durable: what a state machine may have applied.
static uint64_t durable_last(const struct model *m, uint64_t completed)
{
    uint64_t last = 0, low = UINT64_MAX;
    for (uint32_t i = 0; i < m->ops_count; i++) {
        const struct model_op *op = &m->ops[i];
        if (op->kind == OP_APPEND && op->submission <= completed) {
            last = op->index;
        } else if (op->kind == OP_TRUNCATE) {
            last = last < op->index ? last : op->index - 1;
            low = op->submission > completed && op->index - 1 < low ? op->index - 1 : low;
        } else if (op->kind == OP_APPEND && op->index - 1 < low) {
            low = op->index - 1;
        }
    }
    return last < low ? last : low;
}

static uint32_t random_len(void)
{
    switch (rng_below(&rng, 12)) {
    case 0:
        return (uint32_t)rng_below(&rng, 20000);
    case 1:
    case 2:
        return (uint32_t)rng_below(&rng, 3000);
    default:
        return (uint32_t)rng_below(&rng, 200);
    }
}

static void step_group(uint64_t group)
{
    struct model *m = &fx.models[group];
    uint64_t term = m->hard_state.term;
    switch (rng_below(&rng, 10)) {
    case 0:
        write_hard_state(&fx, group, term + 1, rng_below(&rng, 3));
        break;
    case 1:
        if (m->last > m->committed) {
            write_hard_state(&fx, group, term + 1,
                             0);  // Only a new leader truncates: index and term name an entry.
            truncate_from(&fx, group, m->committed + 1 + rng_below(&rng, m->last - m->committed));
        }
        break;
    case 2: {
        uint64_t durable = durable_last(m, worker_of(&fx, group)->completed);
        if (durable > m->committed) {
            m->committed += rng_below(&rng, durable - m->committed + 1);
        }
        break;
    }
    case 3:
        for (uint64_t i = rng_below(&rng, 20); i > 0 && m->committed > 0; i--) {
            m->dead[1 + rng_below(&rng, m->committed)] = true;
        }
        break;
    case 4:
        settle_messages(&fx, group, 1, m->committed * rng_below(&rng, 5) / 4);
        break;
    default:
        for (uint64_t i = rng_below(&rng, 6) + 1; i > 0 && m->last < INDEX_MAX - 2; i--) {
            append(&fx, group, term, random_len());
        }
    }
    m->snapshots_refused = m->snapshots_count == SNAPSHOTS_MAX;
    if (one_in(40) && m->committed > 0) {
        glog_snapshot_request(log_of(&fx, group));
    }
}

static void step_world(void)
{
    uint32_t worker = (uint32_t)rng_below(&rng, fx.workers_count);
    switch (rng_below(&rng, 9)) {
    case 8:
        fx.now += rng_below(&rng, 1500) * 1000000;
        (void)store_worker_tidy(fx.workers[worker], fx.now);
        break;
    case 0:
        tell_done(&fx);
        break;
    case 1:
        tell_closed(&fx);
        break;
    case 2:
    case 3:
        (void)pump_wal(&fx);
        break;
    case 4:
    case 5:
        (void)step_job(&fx, worker);
        break;
    default:
        store_worker_flush(fx.workers[worker], NULL, NULL);
    }
}

static void check_some(void)
{
    uint64_t group = 1 + rng_below(&rng, GROUPS_MAX);
    if (fx.logs[group] == NULL) {
        return;
    }
    struct model *m = &fx.models[group];
    struct glog *g = fx.logs[group];
    uint64_t snapshot = glog_first(g) - 1;
    ck_assert_uint_eq(glog_last(g), m->last);
    ck_assert_uint_eq(snapshot, m->published);
    for (int k = 0; k < 5 && m->last > 0; k++) {
        uint64_t i = 1 + rng_below(&rng, m->last);
        struct entry e;
        enum rc rc = glog_get(g, i, &e);
        bool must = i > snapshot || model_is_live(snapshot_at(m, snapshot), i);
        if (must ? rc == RC_NOT_FOUND : rc != RC_NOT_FOUND && rc != RC_COLD) {
            ck_abort_msg("group %lu entry %lu: %s", (unsigned long)group, (unsigned long)i, rc_text(rc));
        }
        if (rc == RC_OK) {
            ck_assert(e.term == m->entries[i].term && payload_is(group, i, &m->entries[i], e.payload));
        }
    }
}

static void run_seed(uint64_t seed)
{
    rng_seed(&rng, seed);
    fixture_harvest_groups = (uint32_t)(seed % 3);
    fixture_removal_piece = seed % 2 == 0 ? 0 : 4000;
    fixture_reach = seed % 2 == 0 ? 0 : 4096u << (seed / 2 % 4);
    fixture_init(&fx, 1 + (uint32_t)rng_below(&rng, WORKERS_MAX), (64 + rng_below(&rng, 512)) << 10,
                 (32 + rng_below(&rng, 64)) << 10);
    fx.config.wal_slice_bytes = one_in(3) ? 0 : 256u << rng_below(&rng, 6);
    for (uint64_t g = 1; g <= GROUPS_MAX; g++) {
        fx.models[g].state_bytes = rng_below(&rng, 3000);
        fx.models[g].size_estimate = rng_below(&rng, 3) * 2000;
    }
    uint64_t crashes = rng_below(&rng, CRASHES + 1);
    fx.fan_in = 2 + (uint32_t)rng_below(&rng, 3);
    for (uint32_t i = 0; i < fx.workers_count; i++) {
        fx.workers[i]->compacting.fan_in = fx.fan_in;
    }
    for (uint64_t c = 0; c <= crashes; c++) {
        if (one_in(2)) {
            sim_disk_crash_after(fx.disk, rng_below(&rng, 400));
        }
        for (uint64_t i = rng_below(&rng, STEPS); i > 0 && !is_dead(&fx); i--) {
            if (one_in(3)) {
                step_group(1 + rng_below(&rng, GROUPS_MAX));
            } else {
                step_world();
            }
            if (!is_dead(&fx)) {
                check_some();
            }
        }
        if (one_in(2) && !is_dead(&fx)) {
            fx.compacts = one_in(2);
            settle(&fx);
            fx.compacts = false;
            if (!is_dead(&fx)) {
                check_all(&fx);
            }
        }
        crash_and_check(&fx, one_in(3) ? NULL : &rng);
    }
    settle(&fx);
    check_all(&fx);
    compact(&fx);
    if (!is_dead(&fx)) {
        check_all(&fx);
    }
    fixture_deinit(&fx);
}

START_TEST(any_history_with_crashes_is_what_the_model_says)
{
    uint64_t seed = (uint64_t)_i + 1;
    const char *one = getenv("SEED");
    if (one != NULL && strtoull(one, NULL, 10) != seed) {
        return;
    }
    run_seed(seed);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("store, random histories");
    TCase *t = tcase_create("store");
    tcase_set_timeout(t, 120);
    const char *seeds = getenv("SEEDS");  // More than usual.
    tcase_add_loop_test(t, any_history_with_crashes_is_what_the_model_says, 0,
                        seeds == NULL ? SEEDS : atoi(seeds));
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
