// SPDX-License-Identifier: Apache-2.0
// links: consensus/wal proto node/base
// What a sync costs here: time and throughput of the log by batch size and alignment, first use of a file against its
// reuse, and the speed of replay (engine-notes §8.1, §8.5). Not part of make test.
//
//     bench_wal DIRECTORY [seconds per line, default 1]
//
// The directory is made, filled with up to 1 GiB and left behind.
#include "consensus/wal/internal.h"
#include "node/base/limits.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES_MAX = 1 << 20, RECORD_PAYLOAD = 1000 };

static uint32_t samples[SAMPLES_MAX];  // Nanoseconds / 16.
static uint64_t records_replayed;

static uint64_t now(void)
{
    return clock_mono_ns(env_system_clock());
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static struct wal *bench_wal;

static void on_closed(void *ctx, uint64_t seq)
{
    (void)ctx;
    wal_retire(bench_wal, seq);
}

static enum rc on_replay(void *ctx, const struct wal_recovered *r)
{
    (void)ctx;
    (void)r;
    records_replayed++;
    return RC_OK;
}

static uint8_t *records_make(uint32_t count, uint64_t *len)
{
    uint64_t size = record_size(RECORD_PAYLOAD);
    uint8_t *bytes = mem_zalloc(count * size);
    for (uint32_t i = 0; i < count; i++) {
        struct record_disk r = {.len = RECORD_PAYLOAD, .group = 1, .index = i + 1, .term = 1, .kind = RECORD_ENTRY};
        uint8_t *at = bytes + i * size;
        memcpy(at, &r, sizeof(r));
        memset(at + sizeof(r), (int)i, RECORD_PAYLOAD);
        r.crc = crc32c(0, at + 4, RECORD_HEADER_BYTES - 4 + RECORD_PAYLOAD);
        memcpy(at, &r.crc, 4);
    }
    *len = count * size;
    return bytes;
}

static void must(enum rc rc, const char *what)
{
    if (rc != RC_OK) {
        fprintf(stderr, "%s: %s\n", what, rc_text(rc));
        exit(1);
    }
}

static void measure(const char *what, uint32_t align, uint32_t batch_records, uint64_t for_ns)
{
    uint64_t len;
    uint8_t *bytes = records_make(batch_records, &len);
    bench_wal->config.align = align;
    bench_wal->offset = bench_wal->file_bytes;  // Alignment belongs to a file: go on in the next one.
    uint64_t batches = 0;
    uint64_t start = now(), end = start;
    while (end - start < for_ns && batches < SAMPLES_MAX) {
        struct wal_range range = {.ptr = bytes, .len = (uint32_t)len};
        struct wal_submission s = {.ranges = &range, .ranges_count = 1, .bytes = len};
        wal_submit(bench_wal, &s);
        if (!wal_compose(bench_wal)) {
            exit(1);
        }
        enum rc rc = wal_write(bench_wal);
        must(rc, "write");
        wal_complete(bench_wal, rc);
        uint64_t t = now();
        samples[batches++] = (uint32_t)((t - end) / 16);
        end = t;
    }
    qsort(samples, batches, sizeof(samples[0]), compare);
    double seconds = (double)(end - start) / 1e9;
    printf("%s  align %4u  batch %5u records  %8.0f batches/s  %9.0f records/s  %7.1f MB/s  sync p50 %7.1f  "
           "p99 %8.1f us\n",
           what, align, batch_records, (double)batches / seconds, (double)batches * batch_records / seconds,
           (double)batches * (double)len / seconds / 1e6, samples[batches / 2] * 16 / 1e3,
           samples[batches * 99 / 100] * 16 / 1e3);
    fflush(stdout);
    free(bytes);
}

// One pass over a file of 64 MiB with batches of 4 KiB: preallocated only, used before, filled with zeros before.
static void measure_use(struct disk *d, const char *what, bool is_zeroed, int passes)
{
    struct disk_file *f = NULL;
    must(d->open(d, "use", DISK_READ | DISK_WRITE | DISK_CREATE, &f), "open");
    must(d->allocate(f, LIMIT_WAL_FILE_BYTES), "allocate");
    uint8_t *chunk = mem_zalloc(1 << 20);
    struct iovec iov = {.iov_base = chunk, .iov_len = 1 << 20};
    for (uint64_t at = 0; is_zeroed && at < LIMIT_WAL_FILE_BYTES; at += 1 << 20) {
        must(d->writev(f, &iov, 1, at), "write");
    }
    must(d->sync(f), "sync");
    memset(chunk, 7, 4096);
    iov.iov_len = 4096;
    for (int pass = 0; pass < passes; pass++) {
        uint64_t start = now();
        uint32_t n = 0;
        for (uint64_t at = 0; n < 4000; at += 4096, n++) {
            must(d->writev(f, &iov, 1, at), "write");
            must(d->sync(f), "sync");
        }
        printf("%-32s pass %d  %7.1f us per sync of 4 KiB\n", what, pass + 1, (double)(now() - start) / 1e3 / n);
    }
    free(chunk);
    d->close(f);
    must(d->unlink(d, "use"), "unlink");
}

static void measure_replay(struct wal_config *config)
{
    config->on_file_closed = NULL;
    bench_wal->config.on_file_closed = NULL;
    measure("kept    ", 4096, 256, 1000000000);
    uint32_t files = wal_file_count(bench_wal);
    wal_close(bench_wal);
    struct wal_report report;
    uint64_t start = now();
    must(wal_open(config, 1, on_replay, NULL, NULL, &report, &bench_wal), "open");
    double seconds = (double)(now() - start) / 1e9;
    printf("replay of %u files: %" PRIu64 " records, %.0f MB in %.3f s = %.0f MB/s\n", files, report.records,
           (double)report.bytes / 1e6, seconds, (double)report.bytes / 1e6 / seconds);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_wal DIRECTORY [SECONDS]\n");
        return 2;
    }
    uint64_t for_ns = (uint64_t)((argc > 2 ? atof(argv[2]) : 1.0) * 1e9);
    struct disk *d = NULL;
    must(disk_posix_open(argv[1], &d), "disk");
    measure_use(d, "preallocated", false, 3);
    measure_use(d, "filled with zeros", true, 1);
    struct wal_config config = {.disk = d,
                                .dir = "wal",
                                .file_bytes = LIMIT_WAL_FILE_BYTES,
                                .align = 4096,
                                .random = 1,
                                .on_file_closed = on_closed};
    struct wal_report report;
    must(wal_open(&config, 1, on_replay, NULL, NULL, &report, &bench_wal), "open");
    // Use every file once, so that what follows measures recycled ones.
    measure("first   ", 4096, 3900, 1500000000);
    static const uint32_t aligns[] = {8, 512, 4096};
    static const uint32_t sizes[] = {1, 4, 16, 64, 256, 1024, 3900};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        for (size_t a = 0; a < sizeof(aligns) / sizeof(aligns[0]); a++) {
            measure("recycled", aligns[a], sizes[s], for_ns);
        }
    }
    measure_replay(&config);
    wal_close(bench_wal);
    disk_posix_close(d);
    return 0;
}
