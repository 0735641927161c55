// SPDX-License-Identifier: Apache-2.0
// links: node/base proto consensus consensus/raft consensus/solo consensus/store consensus/wal gen
// A large backlog over few and many queues: filled, retired to segments, then drained from disk by one reader
// a queue, all of them in turn (engine-notes §8.2). Prints the rate of every second and the slowest one. Not
// part of make test.
//
//     bench_store DIRECTORY [gigabytes, default 1] [queues, default 1] [bytes of a message, default 1000]
//
// One thread does everything, so the figures are a lower bound. As root the page cache is dropped before the drain. The
// directory is made, filled and left behind.
#include "consensus/store/store.h"
#include "node/base/log.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { READ_ENTRIES = 256, READ_BYTES = 512 << 10, TURN_ENTRIES = 64, DEAD_BYTES = 2 << 20, DEAD_MIN_BYTES = 64 << 10 };

struct queue {
    struct glog *log;
    uint64_t head, end, last, applied;  // Ready: head..end; behind it what settles them.
    struct glog_read read;
    uint64_t indexes[READ_ENTRIES];
    bool is_reading;
};

struct frozen {
    struct live_range live;
    uint64_t left;
};

static struct store *store;
static struct store_worker *worker;
static struct list jobs, done;
static uint64_t closed[1024];
static uint32_t closed_count, closed_told;
static struct queue *queues;
static uint32_t queues_count;
static uint32_t message_bytes = 1000;
static uint64_t entries_read, bytes_read;

static uint64_t now(void)
{
    return clock_mono_ns(env_system_clock());
}

static void must(enum rc rc, const char *what)
{
    if (rc != RC_OK) {
        fprintf(stderr, "%s: %s\n", what, rc_text(rc));
        exit(1);
    }
}

// ---- the queues' states: references of 8 bytes ------------------------------------------------------

static bool chunk(struct fsm_snapshot *s, struct buf *to)
{
    struct frozen *f = (struct frozen *)(void *)s;
    const uint64_t n = f->left < LIMIT_SNAPSHOT_CHUNK_BYTES ? f->left : LIMIT_SNAPSHOT_CHUNK_BYTES;
    memset(buf_extend(to, n), 1, n);
    f->left -= n;
    return f->left > 0;
}

static void live(struct fsm_snapshot *s, struct buf *out)
{
    const struct frozen *f = (struct frozen *)(void *)s;
    if (f->live.first <= f->live.last) {
        buf_bytes(out, &f->live, sizeof(f->live));
    }
}

static void end(struct fsm_snapshot *s)
{
    free(s);
}

static const struct fsm_ops ops = {.version = 1, .snapshot_chunk = chunk, .snapshot_live = live, .snapshot_end = end};

static bool on_snapshot_begin(void *ctx, uint64_t group, struct store_snapshot_source *out)
{
    (void)ctx;
    struct queue *q = &queues[group - 1];
    struct glog_snapshot_info info;
    if (q->applied == 0 || (glog_snapshot_info(q->log, &info) == RC_OK && info.index >= q->applied)) {
        return false;
    }
    struct frozen *f = mem_zalloc(sizeof(*f));
    f->live = (struct live_range){.first = q->head, .last = q->end < q->applied ? q->end : q->applied};
    f->left = 100 + (q->end + 1 - q->head) * 8;
    *out = (struct store_snapshot_source){.ops = &ops,
                                          .handle = (struct fsm_snapshot *)(void *)f,
                                          .index = q->applied,
                                          .term = 1,
                                          .size_estimate = f->left};
    out->config = (struct config){.count = 1};
    out->config.members[0] = (struct member){.replica_id = 1, .node_id = 1, .is_voter = true};
    return true;
}

// As the host does (host_snapshot.c).
static void consider(struct queue *q)
{
    uint64_t entries = 0, stored = glog_bytes_in_segments(q->log, &entries), ready = q->end + 1 - q->head;
    const uint64_t dead = entries > ready ? stored / entries * (entries - ready) : 0;
    uint64_t bound = (32 << 20) / (store_worker_groups_in_segments(worker) + 1);
    bound = bound < DEAD_MIN_BYTES ? DEAD_MIN_BYTES : bound > DEAD_BYTES ? DEAD_BYTES : bound;
    if (dead >= bound && dead >= stored / 4 && dead >= ready * 8 && !glog_snapshot_is_coming(q->log)) {
        glog_snapshot_request(q->log);
    }
}

// ---- drivers --------------------------------------------------------------------------------------------

static void on_submit(void *ctx, struct wal_submission *s)
{
    (void)ctx;
    wal_submit(store_wal(store), s);
}
static void on_closed(void *ctx, uint64_t seq)
{
    (void)ctx;
    closed[closed_count++ % 1024] = seq;
}
static void on_done(void *ctx, struct wal_submission *s)
{
    (void)ctx;
    list_add_tail(&done, &s->link);
}
static void on_retired(void *ctx, uint64_t seq)
{
    (void)ctx;
    wal_retire(store_wal(store), seq);
}
static void on_job(struct exec *e, struct job *j)
{
    (void)e;
    list_add_tail(&jobs, &j->link);
}
static void on_group(void *ctx, const struct store_group *g)
{
    (void)ctx;
    (void)g;
    fprintf(stderr, "the directory is not empty\n");
    exit(1);
}

// One turn: what was laid down goes to the log, jobs run as long as `for_ns`.
static void turn(uint64_t for_ns)
{
    store_worker_flush(worker, NULL, NULL);
    (void)store_worker_tidy(worker, now());
    while (wal_compose(store_wal(store))) {
        const enum rc rc = wal_write(store_wal(store));
        must(rc, "log");
        wal_complete(store_wal(store), rc);
    }
    struct list *item, notes;
    list_init(&notes);
    while ((item = list_pop(&done)) != NULL) {
        must(store_worker_wal_done(worker, list_entry(item, struct wal_submission, link), &notes), "log");
    }
    for (; closed_told < closed_count; closed_told++) {
        store_worker_file_closed(worker, closed[closed_told % 1024]);
    }
    const uint64_t until = now() + for_ns;
    while ((item = list_pop(&jobs)) != NULL) {
        struct job *j = list_entry(item, struct job, link);
        j->run(j);
        j->done(j);
        if (now() >= until) {
            break;
        }
    }
}

// ---- rates --------------------------------------------------------------------------------------------

struct rate {
    uint64_t begun, second, count, slowest, longest_gap, last;
};

static void rate_tick(struct rate *r, uint64_t count, bool is_last)
{
    const uint64_t t = now();
    if (count != r->count) {
        r->longest_gap = r->last != 0 && t - r->last > r->longest_gap ? t - r->last : r->longest_gap;
        r->last = t;
    }
    static uint64_t before;
    if (r->begun == 0) {
        r->begun = r->second = t;
        r->slowest = UINT64_MAX;
        before = count;
    }
    r->count = count;
    if (t - r->second >= 1000000000) {
        const uint64_t n = (count - before) * 1000000000 / (t - r->second);
        printf(" %" PRIu64, n / 1000);
        fflush(stdout);
        r->slowest = n < r->slowest ? n : r->slowest;
        r->second = t;
        before = count;
    }
    if (is_last) {
        const double s = (double)(t - r->begun) / 1e9;
        printf("  (thousands a second)\n  %.0f a second, %.0f MB/s, slowest second %" PRIu64
               ", longest pause %.0f ms\n",
               (double)count / s, (double)count * message_bytes / s / 1e6,
               r->slowest == UINT64_MAX ? 0 : r->slowest, (double)r->longest_gap / 1e6);
    }
}

static void fill(uint64_t total)
{
    uint8_t *payload = mem_zalloc(message_bytes);
    for (uint32_t i = 0; i < message_bytes; i++) {
        payload[i] = (uint8_t)(i * 7);
    }
    const struct glog_part part = {.ptr = payload, .len = message_bytes};
    struct rate r = {0};
    printf("fill:");
    for (uint64_t n = 0; n < total;) {
        for (int k = 0; k < 16; k++) {
            struct queue *q = &queues[(n / TURN_ENTRIES) % queues_count];
            for (int i = 0; i < TURN_ENTRIES; i++, n++) {
                must(glog_append(q->log, q->last + 1, 1, RECORD_ENTRY, 0, &part, 1, true), "append");
                q->end = ++q->last;
            }
        }
        turn(1000000000);
        for (uint32_t i = 0; i < queues_count; i++) {
            queues[i].applied = queues[i].last;
        }
        rate_tick(&r, n, n >= total);
    }
    free(payload);
    while (!list_is_empty(&jobs)) {
        turn(1000000000);
    }
}

static void read_done(struct glog_read *read)
{
    struct queue *q = read->owner;
    must(read->rc, "read");
    q->is_reading = false;
    entries_read += read->read_count;
    bytes_read += read->bytes.len;
    q->head += read->read_count;
    buf_deinit(&read->bytes);
    const struct glog_part settle = {.ptr = &q->head, .len = sizeof(q->head)};
    must(glog_append(q->log, q->last + 1, 1, RECORD_ENTRY, 0, &settle, 1, true), "settle");
    q->applied = ++q->last;
    consider(q);
}

// False: it is empty, or all in memory.
static bool queue_read(struct queue *q)
{
    if (q->is_reading || q->head > q->end) {
        return q->is_reading;
    }
    struct entry e;
    while (q->head <= q->end && glog_get(q->log, q->head, &e) == RC_OK) {
        q->head++;
        entries_read++;
    }
    uint32_t n = 0;
    for (; n < READ_ENTRIES && q->head + n <= q->end; n++) {
        q->indexes[n] = q->head + n;
    }
    if (n == 0) {
        return false;
    }
    q->read = (struct glog_read){.indexes = q->indexes,
                                 .indexes_count = n,
                                 .bytes_max = READ_BYTES,
                                 .done = read_done,
                                 .owner = q};
    q->is_reading = true;
    glog_read_start(q->log, &q->read);
    return true;
}

static void drain(void)
{
    struct rate r = {0};
    printf("drain:");
    for (bool is_more = true; is_more;) {
        is_more = false;
        for (uint32_t i = 0; i < queues_count; i++) {
            is_more |= queue_read(&queues[i]);
        }
        turn(10000000);
        rate_tick(&r, entries_read, !is_more);
    }
}

static void drop_caches(void)
{
    sync();
    const int f = open("/proc/sys/vm/drop_caches", O_WRONLY);
    if (f < 0 || write(f, "3", 1) != 1) {
        printf("(the page cache could not be dropped)\n");
    }
    if (f >= 0) {
        close(f);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_store DIRECTORY [gigabytes] [queues] [bytes of a message]\n");
        return 2;
    }
    const double gigabytes = argc > 2 ? atof(argv[2]) : 1;
    queues_count = argc > 3 ? (uint32_t)atoi(argv[3]) : 1;
    message_bytes = argc > 4 ? (uint32_t)atoi(argv[4]) : 1000;
    list_init(&jobs);
    list_init(&done);
    struct disk *disk = NULL;
    must(disk_posix_open(argv[1], &disk), "directory");
    const struct store_config config = {.disk = disk, .workers = 1, .memtable_bytes = LIMIT_MEMTABLE_BYTES,
                                        .wal_file_bytes = LIMIT_WAL_FILE_BYTES, .wal_align = 512, .random = 1,
                                        .on_wal_file_closed = on_closed, .on_wal_done = on_done};
    struct wal_report report;
    must(store_open(&config, on_group, NULL, &report, &store), "store");
    struct exec exec = {.submit = on_job};
    const struct store_hooks hooks = {.submit = on_submit,
                                      .snapshot_begin = on_snapshot_begin,
                                      .wal_retired = on_retired};
    worker = store_worker_bind(store, 0, &exec, &hooks);
    queues = mem_zalloc(queues_count * sizeof(*queues));
    for (uint32_t i = 0; i < queues_count; i++) {
        queues[i].log = store_glog_create(worker, i + 1);
        queues[i].head = 1;
    }
    printf("%.1f GB over %u queues\n", gigabytes, queues_count);
    fill((uint64_t)(gigabytes * 1e9) / message_bytes);
    drop_caches();
    drain();
    store_close(store);
    disk_posix_close(disk);
    free(queues);
    return 0;
}
