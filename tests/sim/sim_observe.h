// SPDX-License-Identifier: Apache-2.0
// State machines of real parts (queues, metadata) under observation: what they apply goes past the observer first.
//
// Such parts add their groups themselves (host_group_add). The simulator is linked with --wrap=host_group_add, so that
// between sim_observe_begin and _end the machine's fsm_ops are replaced by ones that tell the observer and pass on.
#pragma once
#include "tests/sim/sim.h"

struct sim_observer {
    struct list link;
    struct sim_node *node;
    uint64_t group;
    const struct fsm_ops *real;
    void *ctx;
    struct fsm_ops ops;
    uint64_t index, chain;
    bool is_restoring;
    // One number for the machine's state, and the index it is the state of; equal on all replicas. 0: not now.
    uint64_t (*digest)(const struct sim_observer *o, uint64_t *index);
    // An entry is committed: seen for the first time anywhere, before any machine has applied it.
    void (*committed)(struct sim *s, uint32_t slot, const struct entry *e);
};

// The next host_group_add is observed. `observers` is the node's list of them.
void sim_observe_begin(struct sim_node *n, struct list *observers,
                       uint64_t (*digest)(const struct sim_observer *, uint64_t *),
                       void (*committed)(struct sim *, uint32_t, const struct entry *));
void sim_observe_end(void);
void sim_observe_free(struct list *observers);  // After the host has gone.
void sim_observe_digest(struct sim_observer *o);  // Compares now.
void sim_observe_forget(struct list *observers, uint64_t group);  // Its replica has left the node.
struct sim_observer *sim_observe_find(struct list *observers, uint64_t group);
void sim_observe_deinit(struct sim *s);
