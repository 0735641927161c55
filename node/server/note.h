// SPDX-License-Identifier: Apache-2.0
// The note in a data directory by which a node goes on with giving up its data and joining anew after a
// restart: file "rejoin".
// One line: "wipe|join NAME ADDRESS [STORE INCARNATION]" or "lost - - STORE INCARNATION"; see rejoin.c and lost.c.
//
// Start-up or worker 0; blocks for the disk.
#pragma once
#include "consensus/peer/hello.h"
#include "consensus/wal/disk.h"

#define NOTE_FILE "rejoin"

enum note_kind { NOTE_WIPE, NOTE_JOIN, NOTE_LOST };
struct note {
    enum note_kind kind;
    char name[PEER_NAME_MAX + 1];  // Whose cluster is joined.
    char address[PEER_ADDRESS_MAX + 1];
    bool has_store_id;             // The blank directory is to have this identity: the cluster knows it already.
    uint8_t store_id[STORE_ID_BYTES];
    uint64_t incarnation;          // Last one used with it.
};

MUST_USE enum rc note_read(struct disk *d, struct note *out);  // RC_NO_FILE, RC_CORRUPT.
MUST_USE enum rc note_write(struct disk *d, const struct note *t);  // Durable when it returns.
MUST_USE enum rc note_remove(struct disk *d);                       // Durable likewise. RC_NO_FILE.
// Erases logs, segments, metadata, the mark of a failed disk and, last, the identity. May be repeated after a crash.
MUST_USE enum rc note_wipe(struct disk *d);
