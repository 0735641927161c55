// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus consensus/raft consensus/solo consensus/store consensus/wal gen tests/sim
// What a later version has written is not damage (CL-32): the store does not open, and all stays for the version that
// knows it. Replicas whose memory were taken for lost would be made anew, on every node that goes back.
#include "tests/unit/consensus/store_retire_fixture.h"
#include "tests/unit/suite.h"

static enum rc open_again(void)
{
    fixture_close(&fx);
    sim_disk_kill(fx.disk);
    memset(fx.found, 0, sizeof(fx.found));
    memset(fx.logs, 0, sizeof(fx.logs));
    struct store *s = NULL;
    enum rc rc = store_open(&fx.config, on_group, &fx, &fx.report, &s);
    if (rc == RC_OK) {
        store_close(s);
    }
    fx.store = NULL;
    return rc;
}

static void append_config_of(uint8_t version)
{
    struct config c = {.count = 1, .members = {{.replica_id = 71, .node_id = 1, .is_voter = true}}};
    struct buf b;
    buf_init(&b);
    config_encode(&c, &b);
    b.ptr[0] = version;
    struct glog_part part = {b.ptr, (uint32_t)b.len};
    struct model *m = &fx.models[1];
    ck_assert_int_eq(glog_append(log_of(&fx, 1), ++m->last, 1, RECORD_CONFIG, 0, &part, 1, false), RC_OK);
    buf_deinit(&b);
    settle(&fx);
}

// Loop: in the log; in a segment.
START_TEST(a_configuration_that_a_later_version_has_written_is_no_damage)
{
    fx.models[1].snapshots_refused = true;
    append_many(&fx, 1, 1, 100, 3);
    append_config_of(1);
    ck_assert_int_eq(open_again(), RC_OK);
    fixture_open(&fx);
    append_config_of(2);
    if (_i == 1) {
        roll_file(&fx);
        ck_assert_uint_gt(fx.retired_count, 0);
    }
    const uint32_t segments = files_in("seg", "seg-");
    const uint32_t logs = files_in("wal", "wal-");
    ck_assert_uint_eq(segments, _i == 1);
    for (int start = 0; start < 2; start++) {
        ck_assert_int_eq(open_again(), RC_UNSUPPORTED);
        ck_assert_uint_eq(files_in("seg", "seg-"), segments);
        ck_assert_uint_ge(files_in("wal", "wal-"), logs);
    }
}
END_TEST

// Exchanges the version of the first snapshot's header in a segment.
static void set_header_version(const char *path, uint8_t from, uint8_t to)
{
    struct disk *d = sim_disk_base(fx.disk);
    uint8_t *bytes = NULL;
    size_t len = 0;
    ck_assert_int_eq(disk_read_all(d, path, 1 << 20, &bytes, &len), RC_OK);
    for (size_t at = SEGMENT_HEADER_BYTES;;) {
        struct record_disk r;
        uint64_t size = 0;
        ck_assert_int_eq(record_check(span_of(bytes + at, len - at), &r, &size), RC_OK);
        if (r.kind == RECORD_SNAPSHOT) {
            uint8_t *record = bytes + at;
            ck_assert_uint_eq(record[RECORD_HEADER_BYTES], from);
            record[RECORD_HEADER_BYTES] = to;
            const uint32_t crc = crc32c(0, record + 4, RECORD_HEADER_BYTES - 4 + r.len);
            memcpy(record, &crc, 4);
            sim_disk_poke(fx.disk, path, at, record, size);
            free(bytes);
            return;
        }
        at += size;
    }
}

START_TEST(a_snapshot_that_a_later_version_has_written_is_no_damage)
{
    append_many(&fx, 1, 1, 100, 30);
    settle_messages(&fx, 1, 1, 9);
    request_snapshot(1, 20);
    const char *path = "seg/seg-0000000000000001";
    ck_assert(sim_disk_exists(fx.disk, path));
    ck_assert_int_eq(open_again(), RC_OK);
    set_header_version(path, 1, 2);
    for (int start = 0; start < 2; start++) {
        ck_assert_int_eq(open_again(), RC_UNSUPPORTED);
        ck_assert(sim_disk_exists(fx.disk, path));
    }
    set_header_version(path, 2, 1);  // Back to the version that knows it.
    fixture_open(&fx);
    ck_assert(!fx.found[1].is_amnesiac);
    ck_assert_uint_eq(fx.found[1].snapshot_index, 20);
    check_group(&fx, 1);
    check_state(&fx, 1, 20, 100);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("later");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, a_configuration_that_a_later_version_has_written_is_no_damage, 0, 2);
    tcase_add_test(t, a_snapshot_that_a_later_version_has_written_is_no_damage);
    return suite_run("store_later", t);
}
