// SPDX-License-Identifier: Apache-2.0
// Who founds a cluster and who joins one (decision 6). A pure function of what a node knows of itself and of the peers
// on its list; called again whenever any of that changes.
//
// Thread: any. No allocation, no memory of its own: a decision holds only for the state it was made from, so the caller
// acts at once (writes the identity file, sends a join) or asks again.
#pragma once
#include "node/base/span.h"
#include <stdbool.h>
#include <stdint.h>

enum { CLUSTER_ID_BYTES = 16, FORMATION_PEERS_MAX = 64, FORMATION_REASON_BYTES = 512 };

enum formation_state {
    FORMATION_MEMBER,  // Has a cluster: nothing to decide.
    FORMATION_FOUND,   // Mint a cluster id, write the founding record.
    FORMATION_JOIN,    // Ask `via` to be taken in.
    FORMATION_WAIT,    // `reason` says for whom or what.
};

struct formation_self {
    const char *name;
    bool is_blank;
    uint64_t list_hash;  // Of our list: formation_list_hash.
};

// One entry of the configured list. Our own may be in it.
struct formation_peer {
    const char *name;
    bool is_reachable;  // Greeted, hears us and is heard now.
    bool is_known;      // It has greeted since we started: the rest is filled. Stays true when it goes away.
    bool is_blank;
    uint64_t list_hash;
    uint8_t cluster_id[CLUSTER_ID_BYTES];  // Zeros if blank.
    const char *refusal;                   // Why it refuses us, or NULL.
};

struct formation_decision {
    enum formation_state state;
    const char *via;                      // JOIN: name of the member to ask; borrowed from the peers.
    char reason[FORMATION_REASON_BYTES];  // WAIT: for the log; NUL-terminated.
};

// What a member makes of a node that asks to be let in.
enum admission {
    ADMISSION_KNOWN,    // Its record is there: it gets the ids in it.
    ADMISSION_NEW,      // Make a record for it.
    ADMISSION_REPLACE,  // A member that lost its disk: new ids for the name, the old ones are retired (law 2).
    ADMISSION_ASK,      // Whoever leads the metadata group knows best whether the former one lives: ask there.
    ADMISSION_WAIT,     // `reason` says for what.
};
struct admission_view {
    bool is_known, is_same_store;  // The name has a record; with the asking node's store id.
    bool is_former_alive;          // The node of that record lives, as far as this one sees.
    bool is_leading;               // This node leads the metadata group and its term's no-op is applied.
    const char *leader;            // Another one leads, or NULL.
    uint32_t voters;               // Of the metadata group, the retired or lost one still counted,
    uint32_t voters_up;            // and those of them that are here, the lost one never.
    const char *missing;           // Names of voters that are away, for `reason`; "" if none.
    bool is_changing;              // Another change for this name is under way.
};
// Decides on one that asks; pure. `reason` is a text with ADMISSION_ASK and ADMISSION_WAIT, else empty.
enum admission formation_admit(const struct admission_view *v, char reason[FORMATION_REASON_BYTES]);

// Hash of a list of names, whatever their order and repetitions. 0 for an empty list.
uint64_t formation_list_hash(const char *const *names, uint32_t count);

// `peers_len` <= FORMATION_PEERS_MAX.
void formation_decide(const struct formation_self *self, const struct formation_peer *peers, uint32_t peers_len,
                      struct formation_decision *out);
