// SPDX-License-Identifier: Apache-2.0
// The identity file of a data directory (decision 6): who this store is. "identity" in the directory's root.
//
// Read and raised at start-up, before the first packet; written again once, when the node founds or joins a cluster.
// Thread: one that may block.
#pragma once
#include "consensus/peer/formation.h"
#include "consensus/peer/liveness.h"
#include "consensus/wal/disk.h"

enum { IDENTITY_NAME_MAX = 255 };

struct identity {
    uint8_t store_id[STORE_ID_BYTES];      // Minted with the directory; never changes.
    uint8_t cluster_id[CLUSTER_ID_BYTES];  // Zeros: blank.
    uint32_t node_id;                      // 0: blank.
    uint64_t replica_id;                   // Of this node in the metadata group; 0: blank.
    uint64_t incarnation;                  // Of this start; > 0.
    char name[IDENTITY_NAME_MAX + 1];      // Node name the directory belongs to.
};

static inline bool identity_is_blank(const struct identity *id)
{
    return id->node_id == 0;
}

// Reads the file, or mints a store id if the directory is empty, and writes it back with the incarnation raised. When
// this returns RC_OK that is on disk. `random` fills bytes with randomness.
// RC_CONFLICT: the directory belongs to another node name. RC_CORRUPT: the file is damaged, or missing beside data
// (a store that lost its identity must not start as a blank one, law 2). RC_UNSUPPORTED: written by a later version.
// Disk errors as they are. RC_NO_SPACE: the file is as it was, and the same may be tried again.
MUST_USE enum rc identity_open(struct disk *disk, const char *name, void (*random)(void *to, uint64_t bytes),
                               struct identity *out);
// Writes the file of a blank directory whose store id is known to others already, with the last incarnation
// used with it. Before identity_open, which raises that. On disk when it returns RC_OK; disk errors as they are.
MUST_USE enum rc identity_make(struct disk *disk, const char *name, const uint8_t *store_id, uint64_t incarnation);
// Becomes a member: sets the fields in `id` and writes the file. Only for a blank node.
MUST_USE enum rc identity_set_member(struct disk *disk, struct identity *id, const uint8_t *cluster_id,
                                     uint32_t node_id, uint64_t replica_id);
