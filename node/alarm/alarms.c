// SPDX-License-Identifier: Apache-2.0
// Alarms by node (alarms.h). A node that is gone has no alarms: it takes no publishes either.
#include "node/alarm/alarms.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include <stdio.h>
#include <stdlib.h>

struct alarmed_node {
    uint32_t bits;
    char name[ALARM_NODE_NAME_MAX];
};

static const uint32_t kinds[] = {ALARM_MEMORY, ALARM_DISK};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

void alarms_init(struct alarms *a, const char *node_name)
{
    *a = (struct alarms){.node_name = node_name};
    map_init_u64(&a->others);
}

static struct alarmed_node *next_node(const struct alarms *a, uint32_t *pos)
{
    return map_next(&a->others, pos, NULL, NULL);
}

void alarms_deinit(struct alarms *a)
{
    uint32_t pos = 0;
    for (struct alarmed_node *n; (n = next_node(a, &pos)) != NULL;) {
        free(n);
    }
    map_deinit(&a->others);
}

const char *alarm_name(uint32_t bit)
{
    return bit == ALARM_MEMORY ? "memory" : "disk";
}

static void log_change(const char *node, uint32_t before, uint32_t now)
{
    for (int i = 0; i < KINDS; i++) {
        const uint32_t bit = kinds[i];
        if ((now & bit) && !(before & bit)) {
            log_warning("%s resource limit alarm set on node %s.", alarm_name(bit), node);
            log_warning("*** Publishers will be blocked until this alarm clears ***");
        } else if ((before & bit) && !(now & bit)) {
            log_warning("%s resource limit alarm cleared on node %s", alarm_name(bit), node);
        }
    }
}

static bool sum(struct alarms *a)
{
    const uint32_t before = a->all;
    uint32_t pos = 0;
    a->all = a->own;
    for (const struct alarmed_node *n; (n = next_node(a, &pos)) != NULL;) {
        a->all |= n->bits;
    }
    for (int i = 0; i < KINDS; i++) {
        if ((before & kinds[i]) && !(a->all & kinds[i])) {
            log_warning("%s resource limit alarm cleared across the cluster", alarm_name(kinds[i]));
        }
    }
    return a->all != before;
}

bool alarms_set_own(struct alarms *a, uint32_t bits)
{
    if (bits == a->own) {
        return false;
    }
    log_change(a->node_name, a->own, bits);
    a->own = bits;
    return sum(a);
}

bool alarms_set_node(struct alarms *a, uint32_t node_id, const char *name, uint32_t bits)
{
    struct alarmed_node *n = map_get(&a->others, node_id);
    const uint32_t before = n ? n->bits : 0;
    if (bits == before) {
        return false;
    }
    if (!n) {
        n = mem_zalloc(sizeof(*n));
        snprintf(n->name, sizeof(n->name), "%s", name);
        map_put(&a->others, node_id, n);
    }
    log_change(n->name, before, bits);
    n->bits = bits;
    if (bits == 0) {
        map_remove(&a->others, node_id);
        free(n);
    }
    return sum(a);
}

uint32_t alarms_of_node(const struct alarms *a, uint32_t node_id)
{
    const struct alarmed_node *n = map_get(&a->others, node_id);
    return n ? n->bits : 0;
}

bool alarms_retain(struct alarms *a, const uint32_t *node_ids, uint32_t count)
{
    uint32_t pos = 0;
    uint64_t id;
    bool has_changed = false;
    while (map_next(&a->others, &pos, &id, NULL) != NULL) {
        bool is_listed = false;
        for (uint32_t i = 0; i < count; i++) {
            is_listed = is_listed || node_ids[i] == id;
        }
        if (!is_listed) {
            has_changed = alarms_set_node(a, (uint32_t)id, NULL, 0) || has_changed;
            pos = 0;  // The table has moved.
        }
    }
    return has_changed;
}

static void each_kind(alarm_fn *each, void *ctx, const char *name, bool is_local, uint32_t bits)
{
    for (int i = 0; i < KINDS; i++) {
        if (bits & kinds[i]) {
            each(ctx, name, is_local, kinds[i]);
        }
    }
}

void alarms_each(const struct alarms *a, alarm_fn *each, void *ctx)
{
    each_kind(each, ctx, a->node_name, true, a->own);
    uint32_t pos = 0;
    for (const struct alarmed_node *n; (n = next_node(a, &pos)) != NULL;) {
        each_kind(each, ctx, n->name, false, n->bits);
    }
}
