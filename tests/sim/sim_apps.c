// SPDX-License-Identifier: Apache-2.0
// Everything in one world: which groups are lists, queues or the metadata group is drawn per seed.
#include "tests/sim/sim_apps.h"
#include "tests/sim/sim_queue.h"
#include <assert.h>
#include <stdlib.h>

static bool has_queues(const struct sim *s)
{
    return s->queue_state != NULL;
}

static bool has_meta(const struct sim *s)
{
    return s->groups[s->groups_count - 1].kind == SIM_META;
}

// A third of the seeds are about lists alone: they do more of the log's business per second.
static void init(struct sim *s)
{
    const uint64_t what = rng_below(&s->rng, 6);
    bool is_any = false;
    for (uint32_t i = 0; i < s->groups_count; i++) {
        struct sim_group *g = &s->groups[i];
        g->kind = what >= 2 && what != 5 && i < 6 && sim_chance(s, 2) ? SIM_QUEUE : SIM_LIST;
        is_any = is_any || g->kind == SIM_QUEUE;
    }
    if (what >= 4 && s->groups_count < SIM_GROUPS_MAX) {
        struct sim_group *g = &s->groups[s->groups_count++];
        *g = (struct sim_group){.id = META_GROUP_ID, .kind = SIM_META, .next_replica = 100};
        map_init_u64(&g->leaders);
        map_init_u64(&g->digests);
        g->initial.count = s->nodes_count;
        for (uint32_t k = 0; k < s->nodes_count; k++) {
            g->initial.members[k] = (struct member){.replica_id = k + 1, .node_id = k + 1, .is_voter = true};
        }
    }
    if (is_any) {
        sim_queue_start(s);
    }
    if (has_meta(s)) {
        sim_meta_start(s);
    }
}

static void node_init(struct sim *s, struct sim_node *n)
{
    struct sim_parts *p = mem_zalloc(sizeof(*p));
    n->app = p;
    list_init(&p->observers);
    if (has_meta(s)) {
        sim_meta_init_node(s, n);
    }
    if (has_queues(s)) {
        sim_queue_init_node(s, n);
    }
}

static bool group_add(struct sim_node *n, uint32_t slot, const struct store_group *recovered)
{
    const enum sim_group_kind kind = n->sim->groups[slot].kind;
    if (kind == SIM_QUEUE) {
        sim_queue_add(n, slot, recovered);
    } else if (kind == SIM_META) {
        sim_meta_add(n, slot, recovered);
    }
    return kind != SIM_LIST;
}

static bool group_drop(struct sim_node *n, uint32_t slot)
{
    if (n->sim->groups[slot].kind != SIM_QUEUE) {
        return false;
    }
    sim_queue_leave(n, slot);
    return true;
}

static void members_changed(struct sim *s, uint32_t slot)
{
    if (s->groups[slot].kind == SIM_QUEUE) {
        sim_queue_members_changed(s, slot);
    }
}

static void node_down(struct sim *s, struct sim_node *n)
{
    if (has_queues(s)) {
        sim_queue_node_down(n);
    }
}

static void node_gone(struct sim *s, struct sim_node *n)
{
    if (has_meta(s)) {
        sim_meta_node_gone(n);
    }
    sim_observe_free(&sim_parts(n)->observers);
    free(n->app);
    n->app = NULL;
}

static uint64_t turn(struct sim *s, struct sim_node *n)
{
    uint64_t next = UINT64_MAX;
    if (has_meta(s)) {
        next = metastore_turn(sim_parts(n)->meta);
    }
    if (has_queues(s)) {
        (void)queue_service_turn(sim_parts(n)->queues);
    }
    return next;
}

static uint64_t after_turn(struct sim *s, struct sim_node *n)
{
    if (!has_queues(s)) {
        return UINT64_MAX;
    }
    return queue_service_turn(sim_parts(n)->queues);
}

static void *machine_create(struct sim *s, struct sim_node *n, uint64_t group)
{
    return sim_list_app.machine_create(s, n, group);
}

static void start(struct sim *s)
{
    sim_list_app.start(s);
    if (has_queues(s)) {
        sim_channels_start(s);
    }
}

static bool is_settled(struct sim *s)
{
    const bool is_list = sim_list_app.is_settled(s);
    const bool is_queue = !has_queues(s) || sim_queue_is_settled(s);
    const bool is_meta = !has_meta(s) || sim_meta_is_settled(s);
    if (!is_list || !is_queue || !is_meta) {
        sim_log(s, "not settled:%s%s%s", is_list ? "" : " lists", is_queue ? "" : " queues",
                is_meta ? "" : " metadata");
    }
    return is_list && is_queue && is_meta;
}

static void finish(struct sim *s)
{
    sim_list_app.finish(s);
    if (has_queues(s)) {
        sim_queue_finish(s);
    }
    if (has_meta(s)) {
        sim_meta_finish(s);
    }
}

static void deinit(struct sim *s)
{
    if (s->queue_state) {
        sim_channels_free(s);
    }
    if (s->meta_state) {
        sim_meta_free(s);
    }
}

const struct sim_app sim_full_app = {
    .name = "full",
    .init = init,
    .node_init = node_init,
    .group_add = group_add,
    .group_drop = group_drop,
    .members_changed = members_changed,
    .machine_create = machine_create,
    .machine_destroy = free,
    .fsm = &sim_list_fsm,
    .node_down = node_down,
    .node_gone = node_gone,
    .start = start,
    .turn = turn,
    .after_turn = after_turn,
    .is_settled = is_settled,
    .finish = finish,
    .deinit = deinit,
};
