// SPDX-License-Identifier: Apache-2.0
// What the tests of the write-ahead log share: a simulated disk, a log on it, submissions whose payloads follow from
// (group, index), and what a recovery reported. Included by one test file each; everything is static.
#pragma once
#include "consensus/wal/internal.h"
#include "tests/sim/sim_disk_parts.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

struct sent {
    struct wal_submission submission;
    struct wal_range range;
    uint64_t group, index;
    uint32_t payload_len;
    bool is_done;
    bool is_empty;
};

struct seen {
    uint64_t group, index;
    uint32_t payload_len;
    uint64_t file_seq, file_offset;
};

struct fixture {
    struct sim_disk *disk;
    struct wal *wal;
    struct wal_config config;
    struct wal_report report;
    struct sent **sent;  // In order of submission.
    uint32_t sent_count, sent_cap;
    struct seen *seen;   // Of the last recovery, in order.
    uint32_t seen_count, seen_cap;
    uint64_t done_order[4096];  // Indexes of completed submissions.
    uint32_t done_count;
    uint64_t closed[256];
    uint32_t closed_count;
    uint64_t corrupt[64];
    uint32_t corrupt_count;
};

static uint8_t payload_byte(uint64_t group, uint64_t index, uint32_t at)
{
    uint8_t b = (uint8_t)(group * 31 + index * 7 + at * 13 + 1);
    return b == 0 ? 1 : b;  // Never zero: a cut filled with zeros must show.
}

static void on_done_test(void *ctx, struct wal_submission *s)
{
    struct fixture *f = ctx;
    struct sent *sent = s->owner;
    if (sent->is_done) {
        ck_abort_msg("completed twice");
    }
    sent->is_done = true;
    f->done_order[f->done_count++ % 4096] = sent->index;
}

static void on_closed_test(void *ctx, uint64_t seq)
{
    struct fixture *f = ctx;
    f->closed[f->closed_count++ % 256] = seq;
}

static void on_corrupt_test(void *ctx, uint64_t group)
{
    struct fixture *f = ctx;
    f->corrupt[f->corrupt_count++ % 64] = group;
}

static enum rc on_replay_test(void *ctx, const struct wal_recovered *r)
{
    struct fixture *f = ctx;
    bool is_ours = r->payload.len == r->record.len;  // One assertion a record: each costs Check a system call.
    for (uint32_t i = 0; i < r->payload.len; i++) {
        is_ours = is_ours && r->payload.ptr[i] == payload_byte(r->record.group, r->record.index, i);
    }
    if (!is_ours) {
        ck_abort_msg("garbage was replayed");
    }
    if (f->seen_count == f->seen_cap) {
        f->seen_cap = f->seen_cap == 0 ? 64 : f->seen_cap * 2;
        f->seen = mem_realloc(f->seen, f->seen_cap * sizeof(*f->seen));
    }
    f->seen[f->seen_count++] = (struct seen){.group = r->record.group,
                                             .index = r->record.index,
                                             .payload_len = r->record.len,
                                             .file_seq = r->file_seq,
                                             .file_offset = r->file_offset};
    return RC_OK;
}

static void fixture_init(struct fixture *f, uint64_t file_bytes, uint32_t align)
{
    memset(f, 0, sizeof(*f));
    f->disk = sim_disk_create();
    f->config = (struct wal_config){
        .disk = sim_disk_base(f->disk),
        .dir = "wal",
        .file_bytes = file_bytes,
        .align = align,
        .random = 1,
        .on_file_closed = on_closed_test,
        .on_done = on_done_test,
        .ctx = f,
    };
}

static void fixture_forget_sent(struct fixture *f)
{
    for (uint32_t i = 0; i < f->sent_count; i++) {
        free((void *)(uintptr_t)f->sent[i]->range.ptr);
        free(f->sent[i]);
    }
    f->sent_count = 0;
}

static void fixture_deinit(struct fixture *f)
{
    if (f->wal != NULL) {
        f->wal->batch.is_composed = false;  // A test may end with a batch in the air.
    }
    wal_close(f->wal);
    fixture_forget_sent(f);
    free(f->sent);
    free(f->seen);
    sim_disk_destroy(f->disk);
}

static enum rc try_open(struct fixture *f, uint64_t first_seq)
{
    f->seen_count = 0;
    f->corrupt_count = 0;
    f->config.disk = sim_disk_base(f->disk);
    f->wal = NULL;
    return wal_open(&f->config, first_seq, on_replay_test, f, on_corrupt_test, &f->report, &f->wal);
}

static void open_wal(struct fixture *f)
{
    ck_assert_int_eq(try_open(f, 1), RC_OK);
}

static void close_wal(struct fixture *f)
{
    if (f->wal != NULL) {
        f->wal->batch.is_composed = false;
    }
    wal_close(f->wal);
    f->wal = NULL;
}

// Lays one record down at `to` (record_size bytes).
static void record_make(uint8_t *to, uint64_t group, uint64_t index, uint32_t payload_len)
{
    struct record_disk r = {
        .len = payload_len, .group = group, .index = index, .term = 1, .kind = RECORD_ENTRY};
    memset(to, 0, record_size(payload_len));
    memcpy(to, &r, sizeof(r));
    for (uint32_t i = 0; i < payload_len; i++) {
        to[RECORD_HEADER_BYTES + i] = payload_byte(group, index, i);
    }
    r.crc = crc32c(0, to + 4, RECORD_HEADER_BYTES - 4 + payload_len);
    memcpy(to, &r.crc, 4);
}

static struct sent *sent_add(struct fixture *f, uint64_t index)
{
    struct sent *s = mem_zalloc(sizeof(*s));
    s->index = index;
    s->submission.owner = s;
    s->submission.ranges = &s->range;
    if (f->sent_count == f->sent_cap) {
        f->sent_cap = f->sent_cap == 0 ? 64 : f->sent_cap * 2;
        f->sent = mem_realloc(f->sent, f->sent_cap * sizeof(*f->sent));
    }
    f->sent[f->sent_count++] = s;
    return s;
}

static struct sent *submit_as(struct fixture *f, uint64_t group, uint64_t index, uint32_t payload_len, bool is_large)
{
    struct sent *s = sent_add(f, index);
    s->submission.group = is_large ? group : 0;
    s->group = group;
    s->payload_len = payload_len;
    uint64_t size = record_size(payload_len);
    uint8_t *bytes = mem_alloc(size);
    record_make(bytes, group, index, payload_len);
    s->range = (struct wal_range){.ptr = bytes, .len = (uint32_t)size};
    s->submission.ranges_count = 1;
    s->submission.bytes = size;
    wal_submit(f->wal, &s->submission);
    return s;
}

// Submits one record.
static struct sent *submit(struct fixture *f, uint64_t group, uint64_t index, uint32_t payload_len)
{
    return submit_as(f, group, index, payload_len, false);
}

__attribute__((unused)) static struct sent *submit_large(struct fixture *f, uint64_t group, uint64_t index,
                                                         uint32_t payload_len)
{
    return submit_as(f, group, index, payload_len, true);
}

__attribute__((unused)) static struct sent *submit_empty(struct fixture *f, uint64_t index)
{
    struct sent *s = sent_add(f, index);
    s->is_empty = true;
    wal_submit(f->wal, &s->submission);
    return s;
}

static enum rc drive_once(struct fixture *f)
{
    enum rc rc = wal_write(f->wal);
    if (rc != RC_NO_SPACE) {
        wal_complete(f->wal, rc);
    }
    return rc;
}

// What the driver does until nothing waits, or all waits for room.
__attribute__((unused)) static void drive(struct fixture *f)
{
    while (f->wal->batch.is_composed || wal_compose(f->wal)) {
        if (drive_once(f) == RC_NO_SPACE) {
            return;
        }
    }
}

// One record, one batch.
__attribute__((unused)) static struct sent *write_one(struct fixture *f, uint64_t group, uint64_t index,
                                                      uint32_t payload_len)
{
    struct sent *s = submit(f, group, index, payload_len);
    drive(f);
    ck_assert(s->is_done);
    ck_assert_int_eq(s->submission.result, RC_OK);
    return s;
}

__attribute__((unused)) static void write_mark(struct fixture *f)
{
    ck_assert(wal_compose_mark(f->wal));
    ck_assert_int_eq(drive_once(f), RC_OK);
}

__attribute__((unused)) static void path_of(uint64_t seq, char out[64])
{
    wal_file_path("wal", seq, out, 64);
}

// The record that lies where recovery (or the writer) said it does.
static void assert_record_at(struct fixture *f, uint64_t seq, uint64_t offset, uint64_t group, uint64_t index,
                             uint32_t payload_len)
{
    struct disk *d = sim_disk_base(f->disk);
    char path[64];
    path_of(seq, path);
    struct disk_file *file;
    ck_assert_int_eq(d->open(d, path, DISK_READ, &file), RC_OK);
    uint64_t size = record_size(payload_len);
    uint8_t *bytes = mem_alloc(size);
    size_t got;
    enum rc rc = d->read(file, offset, bytes, size, &got);
    struct record_disk r = {0};
    uint64_t found;
    if (rc != RC_OK || got != size || record_check(span_of(bytes, got), &r, &found) != RC_OK || r.group != group ||
        r.index != index || r.len != payload_len) {
        ck_abort_msg("record %lu is not at %s+%lu", (unsigned long)index, path, (unsigned long)offset);
    }
    free(bytes);
    d->close(file);
}

__attribute__((unused)) static void assert_seen_readable(struct fixture *f)
{
    for (uint32_t i = 0; i < f->seen_count; i++) {
        const struct seen *s = &f->seen[i];
        assert_record_at(f, s->file_seq, s->file_offset, s->group, s->index, s->payload_len);
    }
}

// Recovery reported exactly indexes first..last, one after the other.
__attribute__((unused)) static void assert_seen(const struct fixture *f, uint64_t first, uint64_t last)
{
    ck_assert_uint_eq(f->seen_count, last + 1 - first);
    for (uint32_t i = 0; i < f->seen_count; i++) {
        if (f->seen[i].index != first + i) {
            ck_abort_msg("index %lu where %lu should be", (unsigned long)f->seen[i].index, (unsigned long)(first + i));
        }
    }
}
