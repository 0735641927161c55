// SPDX-License-Identifier: Apache-2.0
// When the WAL thread begins its next batch.
//
// Problem: a sync takes a third of a millisecond however little it holds, and costs the machine (the processor and the
// disk's own queue) the same. Under a steady load of small messages each batch takes the few records that came during
// the last one, and all the time the disk allows goes into syncs. Idea: where several records share a batch anyway,
// whoever waits is one of many, and a batch may begin a little later and take more of them. A client that waits for
// every confirm makes batches of one record or two (its publish, its consumer's acknowledgement): nothing is won by
// waiting there, and none waits.
//
// The wait is relative to the disk: a batch begins no earlier than four times the usual sync after the last one began,
// so the disk is busy a quarter of the time; at most PACE_MOST_NS. A slow disk is thereby never kept waiting, a fast one
// hardly. What fills a batch well does not wait either.
//
// No thread, no clock: the WAL thread tells it times (monotonic, nanoseconds). All calls from the WAL thread.
#pragma once
#include <stdint.h>

enum {
    PACE_MOST_NS = 900000,
    PACE_BYTES = 64 << 10,  // So much that waits is a good batch.
};

struct wal_pace {
    uint64_t begun_ns;   // Of the last batch.
    uint64_t sync_ns;    // How long one takes, averaged over the last eight or so.
    uint32_t crowd_x16;  // Records in a batch, the same.
    uint64_t bytes;      // Submitted since the last batch began.
};

// `bytes` were submitted; 0: nothing that must be written.
void wal_pace_submitted(struct wal_pace *p, uint64_t bytes);
// For how long the next batch is to wait, in ns; 0: not at all.
uint64_t wal_pace_wait(const struct wal_pace *p, uint64_t now_ns);
// A batch of so many records, with all that waited, was written and synced between these times.
void wal_pace_written(struct wal_pace *p, uint64_t begun_ns, uint64_t ended_ns, uint32_t records);
