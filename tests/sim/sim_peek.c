// SPDX-License-Identifier: Apache-2.0
// Has a replica changed since the observer last looked at it? After every event each replica of a node is
// looked at, and most have not changed: a look at the few numbers that are checked costs a tenth of asking
// for the whole status.
#include "consensus/raft/state.h"
#include "tests/sim/sim.h"

bool sim_peek_changed(const struct replica *r, struct sim_seen *seen)
{
    if (seen->term == r->hard.term && seen->commit == r->commit && seen->last == r->last &&
        seen->durable == r->durable && seen->applied == r->applied && seen->snapshot == r->snapshot_index &&
        seen->role == r->role) {
        return false;
    }
    *seen = (struct sim_seen){.term = r->hard.term,
                              .commit = r->commit,
                              .last = r->last,
                              .durable = r->durable,
                              .applied = r->applied,
                              .snapshot = r->snapshot_index,
                              .role = r->role};
    return true;
}
