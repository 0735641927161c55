// SPDX-License-Identifier: Apache-2.0
// Which alarms there are in the cluster, as this node sees it: its own and those of the nodes it is linked
// with. An alarm on any node blocks publishers on all of them (operator-plane §5.9).
//
// Owner thread: worker 0. Pure but for the log.
#pragma once
#include "node/alarm/limits.h"
#include "node/base/map.h"

enum { ALARM_NODE_NAME_MAX = 256 };

struct alarms {
    const char *node_name;  // Borrowed.
    uint32_t own;           // ALARM_ bits.
    struct map others;      // node id -> struct alarmed_node, only nodes with an alarm.
    uint32_t all;           // Of both.
};

void alarms_init(struct alarms *a, const char *node_name);  // Without alarms. `node_name` outlives it.
void alarms_deinit(struct alarms *a);
// Each returns whether `all` has changed. What comes and goes is logged.
bool alarms_set_own(struct alarms *a, uint32_t bits);
bool alarms_set_node(struct alarms *a, uint32_t node_id, const char *name, uint32_t bits);  // 0 bits: none, or gone.
// Bits of another node; 0: none.
uint32_t alarms_of_node(const struct alarms *a, uint32_t node_id);
// Forgets the nodes that are not among these. Returns whether `all` has changed.
bool alarms_retain(struct alarms *a, const uint32_t *node_ids, uint32_t count);
// Our own first; a node with both alarms is told twice.
typedef void alarm_fn(void *ctx, const char *node, bool is_local, uint32_t bit);
void alarms_each(const struct alarms *a, alarm_fn *each, void *ctx);
const char *alarm_name(uint32_t bit);  // "memory", "disk"
