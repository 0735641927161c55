// SPDX-License-Identifier: Apache-2.0
// The application with everything in it: lists, queues with their sessions, the metadata tree (sim_apps.c).
#pragma once
#include "metastore/metastore.h"
#include "node/queue/queue.h"
#include "tests/sim/sim_observe.h"

extern const struct sim_app sim_full_app;

// What a node has beside its groups.
struct sim_parts {
    struct queue_service *queues;
    struct metastore *meta;
    struct list observers;
    void *mirror;  // Of sim_meta.c.
};
static inline struct sim_parts *sim_parts(const struct sim_node *n)
{
    return n->app;
}

// sim_meta.c
void sim_meta_init_node(struct sim *s, struct sim_node *n);
void sim_meta_add(struct sim_node *n, uint32_t slot, const struct store_group *recovered);
void sim_meta_node_gone(struct sim_node *n);
void sim_meta_start(struct sim *s);
bool sim_meta_is_settled(struct sim *s);
void sim_meta_finish(struct sim *s);
void sim_meta_free(struct sim *s);
