// SPDX-License-Identifier: Apache-2.0
// What a broker stands on, stood in for: one group whose configuration and commit index the test sets, a
// metadata store that takes one write at a time when it is told to, nodes that are up or not, a clock that is
// moved by hand.
#pragma once
#include "node/broker/internal.h"
#include "proto/broker.pb-c.h"
#include <check.h>
#include <stdlib.h>

enum { WORLD_NODES = 8, WORLD_POSTS = 64 };

static struct world {
    uint64_t now_ns;
    bool is_down[4096];  // By node id.
    // The group of the queue under test.
    bool has_group, is_leader, is_level, is_slow;  // Level: learners may be promoted. Slow: nothing commits.
    struct config config;
    uint32_t regressed_at, behind_at;  // Of the leader's peers, by position.
    bool is_amnesiac;       // The replica here.
    uint64_t term;
    uint32_t transfers, transferred_to, changes;
    // Replicas on this node.
    uint32_t started, deleted, left;
    uint64_t started_id;
    enum rc add_rc;  // What starting one is answered.
    struct queue_target started_from;
    // The store.
    bool is_store_lost;
    struct buf payload;
    uint64_t payload_version, ids_offset, next_id;
    bool has_write;
    meta_done_fn *write_done;
    void *write_ctx;
    uint32_t writes;
    // A proof that was asked for.
    group_read_fn *proof_done;
    void *proof_ctx;
    enum rc proof_rc;
    uint32_t proofs;
    void *owner;
    struct {
        void (*fn)(void *arg);
        void *arg;
    } posts[WORLD_POSTS];
    uint32_t posts_count;
} world;

enum rc queue_replica_add(struct queue_service *q, const struct queue_replica_spec *spec)
{
    (void)q;
    world.started++;
    world.started_id = spec->replica_id;
    world.started_from = spec->target;
    world.owner = spec->owner;
    return world.add_rc;
}
void queue_replica_remove(struct queue_service *q, uint64_t group, bool is_deleted)
{
    (void)q;
    (void)group;
    world.deleted += is_deleted;
}
void queue_replica_leave(struct queue_service *q, uint64_t group)
{
    (void)q;
    (void)group;
    world.left++;
}
void queue_members_changed(struct queue_service *q, const struct queue_target *t)
{
    (void)q;
    (void)t;
}
struct group *queue_replica_group(struct queue_service *q, uint64_t group)
{
    (void)q;
    (void)group;
    return world.has_group ? (struct group *)(void *)&world : NULL;
}
void *queue_replica_owner(struct queue_service *q, uint64_t group)
{
    (void)q;
    (void)group;
    return world.has_group ? world.owner : NULL;
}
bool queue_replica_leads(struct queue_service *q, uint64_t group)
{
    (void)q;
    (void)group;
    return world.has_group && world.is_leader;
}
uint32_t queue_leading_count(const struct queue_service *q)
{
    (void)q;
    return world.has_group && world.is_leader;
}
uint32_t queue_leading_each(struct queue_service *q, uint32_t max, void (*each)(void *ctx, void *owner), void *ctx)
{
    (void)max;
    if (queue_leading_count(q)) {
        each(ctx, world.owner);
    }
    return queue_leading_count(q);
}

uint64_t host_now(const struct host *h)
{
    (void)h;
    return world.now_ns;
}
bool host_node_is_alive(const struct host *h, uint32_t node_id)
{
    (void)h;
    return !world.is_down[node_id];
}
void host_watch(struct host *h, struct host_watcher *w)
{
    (void)h;
    list_init(&w->link);
}
void group_status(const struct group *g, struct consensus_status *out)
{
    (void)g;
    *out = (struct consensus_status){.role = ROLE_LEADER,
                                     .term = world.term,
                                     .is_ready = true,
                                     .is_amnesiac = world.is_amnesiac,
                                     .regressed = world.regressed_at != 0,
                                     .regressed_at = world.regressed_at,
                                     .level_at = ~world.behind_at,
                                     .commit = world.is_slow ? world.config.index - 1 : world.config.index,
                                     .config = &world.config};
}
const struct member *config_find(const struct config *c, uint64_t replica_id)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->members[i].replica_id == replica_id) {
            return &c->members[i];
        }
    }
    return NULL;
}
uint32_t config_voters(const struct config *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        n += c->members[i].is_voter;
    }
    return n;
}
enum rc group_change_members(struct group *g, const struct member_change *m)
{
    (void)g;
    struct config *c = &world.config;
    if (m->kind == MEMBER_PROMOTE && !world.is_level) {
        return RC_BUSY;
    }
    uint32_t at = 0;
    while (at < c->count && c->members[at].replica_id != m->member.replica_id) {
        at++;
    }
    ck_assert_int_eq(m->kind == MEMBER_ADD_LEARNER, at == c->count);
    c->index += 10;
    world.changes++;
    if (m->kind == MEMBER_ADD_LEARNER) {
        c->members[c->count++] = (struct member){.replica_id = m->member.replica_id, .node_id = m->member.node_id};
    } else if (m->kind == MEMBER_PROMOTE) {
        c->members[at].is_voter = true;
    } else {
        c->count--;
        memmove(&c->members[at], &c->members[at + 1], (c->count - at) * sizeof(c->members[0]));
    }
    return RC_OK;
}
enum rc group_transfer(struct group *g, uint32_t node_id)
{
    (void)g;
    world.transferred_to = node_id;
    world.transfers++;
    return RC_OK;
}
void group_read_barrier(struct group *g, uint64_t timeout_ns, group_read_fn *done, void *ctx)
{
    (void)g;
    (void)timeout_ns;
    ck_assert_ptr_null(world.proof_done);
    world.proof_done = done;
    world.proof_ctx = ctx;
    world.proofs++;
}
void meta_command_init(struct meta_command *c)
{
    *c = (struct meta_command){0};
}
void meta_command_deinit(struct meta_command *c)
{
    (void)c;
}
void meta_put(struct meta_command *c, const struct meta_path *p, struct span payload, enum meta_if condition,
              uint64_t version)
{
    (void)c;
    (void)p;
    ck_assert_int_eq(condition, META_IF_VERSION);
    buf_deinit(&world.payload);
    world.payload = (struct buf){0};
    buf_span_bytes(&world.payload, payload);
    world.payload_version = version;
    world.ids_offset = 0;
}
void meta_allocate_ids(struct meta_command *c, uint32_t payload_offset, uint32_t count)
{
    (void)c;
    ck_assert_uint_eq(count, 1);
    world.ids_offset = payload_offset;
}
void metastore_submit(struct metastore *m, uint32_t worker, struct meta_command *c, uint32_t timeout_ms,
                      meta_done_fn *done, void *ctx)
{
    (void)m;
    (void)worker;
    (void)c;
    (void)timeout_ms;
    ck_assert(!world.has_write);
    world.has_write = true;
    world.write_done = done;
    world.write_ctx = ctx;
}

static uint32_t world_worker_of(void *ctx, uint64_t group)
{
    (void)ctx;
    (void)group;
    return 0;
}
static void world_post(void *ctx, uint32_t worker, void (*fn)(void *arg), void *arg)
{
    (void)ctx;
    (void)worker;
    ck_assert_uint_lt(world.posts_count, WORLD_POSTS);
    world.posts[world.posts_count].fn = fn;
    world.posts[world.posts_count++].arg = arg;
}
