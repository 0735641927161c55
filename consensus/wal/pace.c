// SPDX-License-Identifier: Apache-2.0
// The pace of the WAL thread; pace.h says what it is for.
#include "consensus/wal/pace.h"

enum {
    SHARE = 4,         // Of the time from batch to batch one part is the sync.
    CROWDED_X16 = 40,  // Two and a half records a batch.
    SAMPLES = 8,
};

void wal_pace_submitted(struct wal_pace *p, uint64_t bytes)
{
    p->bytes += bytes;
}

uint64_t wal_pace_wait(const struct wal_pace *p, uint64_t now_ns)
{
    if (p->bytes == 0 || p->crowd_x16 < CROWDED_X16 || p->bytes >= PACE_BYTES) {
        return 0;
    }
    const uint64_t gap = p->sync_ns * SHARE < PACE_MOST_NS ? p->sync_ns * SHARE : PACE_MOST_NS;
    return now_ns < p->begun_ns + gap ? p->begun_ns + gap - now_ns : 0;
}

void wal_pace_written(struct wal_pace *p, uint64_t begun_ns, uint64_t ended_ns, uint32_t records)
{
    if (p->bytes > 0) {  // Else a mark, or a slice of something large.
        const uint64_t took = ended_ns - begun_ns;
        p->sync_ns = p->sync_ns == 0 ? took : p->sync_ns - p->sync_ns / SAMPLES + took / SAMPLES;
        const uint32_t crowd = records < 256 ? records * 16 : 4096;
        p->crowd_x16 = p->crowd_x16 == 0 ? crowd : (p->crowd_x16 * (SAMPLES - 1) + crowd) / SAMPLES;
    }
    p->begun_ns = begun_ns;
    p->bytes = 0;
}
