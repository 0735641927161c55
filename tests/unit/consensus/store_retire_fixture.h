// SPDX-License-Identifier: Apache-2.0
// One store with small WAL files, and what tests of retirement and of snapshots under way share.
#pragma once
#include "tests/unit/consensus/store_fixture.h"

enum { FILE_BYTES = 64 << 10 };

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, 1, 256 << 10, FILE_BYTES);
}
static void teardown(void)
{
    fixture_deinit(&fx);
}

static void on_snapshot_read(struct glog_snapshot_read *r)
{
    *(bool *)r->owner = true;
}
static void on_snapshot_write(struct glog_snapshot_write *w)
{
    *(bool *)w->owner = true;
}

struct loaded {
    struct buf state;
    enum rc rc;
    bool is_done;
};
static void on_load_chunk(struct glog_snapshot_load *l, struct span chunk)
{
    buf_span_bytes(&((struct loaded *)l->owner)->state, chunk);
}
static void on_load_done(struct glog_snapshot_load *l, enum rc rc)
{
    struct loaded *d = l->owner;
    d->rc = rc;
    d->is_done = true;
}

// The state of the current snapshot is what the toy machine wrote at `index`.
static void check_state(struct fixture *f, uint64_t group, uint64_t index, uint64_t bytes)
{
    struct loaded d = {0};
    struct glog_snapshot_load l = {.each = on_load_chunk, .done = on_load_done, .owner = &d};
    glog_snapshot_load_start(log_of(f, group), &l);
    while (!d.is_done && step_job(f, (uint32_t)(group % f->workers_count))) {
    }
    ck_assert(d.is_done);
    ck_assert_int_eq(d.rc, RC_OK);
    ck_assert_uint_eq(d.state.len, bytes);
    for (uint64_t i = 0; i < bytes; i++) {
        if (d.state.ptr[i] != payload_byte(group, index, 77, i)) {
            ck_abort_msg("byte %lu of the state differs", (unsigned long)i);
        }
    }
    buf_deinit(&d.state);
}

static void request_snapshot(uint64_t group, uint64_t committed)
{
    fx.models[group].committed = committed;
    glog_snapshot_request(log_of(&fx, group));
    settle(&fx);
    ck_assert_uint_eq(fx.models[group].published, committed);
}

static uint32_t files_in(const char *dir, const char *prefix)
{
    uint32_t n = 0;
    for (uint64_t i = 0; i < 200; i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%s%016llx", dir, prefix, (unsigned long long)i);
        n += sim_disk_exists(fx.disk, path);
    }
    return n;
}

// Moves the executor until segment `seq` is written and sealed, but not told.
static void run_until_sealed(uint64_t seq)
{
    char path[SEGMENT_PATH_MAX];
    segment_path(seq, true, path);
    while (!sim_disk_exists(fx.disk, path)) {
        ck_assert(step_job(&fx, 0));
    }
}
