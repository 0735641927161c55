// SPDX-License-Identifier: Apache-2.0
// A broker that leads one queue's group in a world that the test sets (broker_world.h): nodes and records are told to
// it, requests are made, time passes, and its members are compared.
#pragma once
#include "node/broker/membership.h"
#include "tests/unit/node/broker_world.h"

// ---- fixture -----------------------------------------------------------------------------------------------------

enum { A = 1, B = 2, C = 3, D = 4, E = 5, GROUP = 100 };  // Nodes; replicas of the founding members are GROUP + 1, 2, 3.

static struct broker *b;
static const struct meta_subscriber *sub;
static struct broker_config settings;
static uint64_t index_now, version;
static enum rc answered;
static uint32_t answers;

static void tell(struct meta_path p, struct span payload, bool is_deleted, uint64_t record_version)
{
    struct meta_change c = {.index = ++index_now,
                            .path = &p,
                            .is_deleted = is_deleted,
                            .payload = payload,
                            .version = record_version};
    sub->change(sub->ctx, &c);
}

static const char *const names[] = {"", "a@x", "b@x", "c@x", "d@x", "e@x"};

static void tell_node(uint32_t name, uint32_t node_id, uint32_t former)
{
    Warren__NodeRecord r = WARREN__NODE_RECORD__INIT;
    r.address = "127.0.0.1:25672";
    r.node_id = node_id;
    r.replica_id = node_id + 1000;
    r.former_ids = &former;
    r.n_former_ids = former != 0;
    struct buf payload = {0};
    buf_u64(&payload, 0);
    warren__node_record__pack(&r, buf_extend(&payload, warren__node_record__get_packed_size(&r)));
    tell(path_node(span_str(names[name])), buf_span(&payload), false, 1);
    buf_deinit(&payload);
}

static void tell_queue(uint32_t founders)
{
    uint32_t nodes[] = {A, B, C, D, E};
    Warren__QueueRecord r = WARREN__QUEUE_RECORD__INIT;
    r.type = "quorum";
    r.durable = true;
    r.member_nodes = nodes;
    r.n_member_nodes = founders;
    struct buf payload = {0};
    buf_u64(&payload, GROUP);
    warren__queue_record__pack(&r, buf_extend(&payload, warren__queue_record__get_packed_size(&r)));
    tell(path_queue(span_str("/"), span_str("q")), buf_span(&payload), false, version);
    buf_deinit(&payload);
    world.config = (struct config){.index = 10, .count = founders};
    for (uint32_t i = 0; i < founders; i++) {
        world.config.members[i] = (struct member){.replica_id = GROUP + 1 + i, .node_id = nodes[i], .is_voter = true};
    }
}

static const struct broker_queue *queue(void)
{
    return broker_queue_find(broker_vhost_find(b, span_str("/")), span_str("q"));
}

static void setup(void)
{
    world = (struct world){.now_ns = 1000000000,
                           .has_group = true,
                           .is_leader = true,
                           .is_level = true,
                           .term = 5,
                           .next_id = 5000};
    index_now = 0;
    version = 1;
    answers = 0;
    settings = (struct broker_config){.node_id = A,
                                      .worker_of = world_worker_of,
                                      .post = world_post,
                                      .host = (struct host *)(void *)&world,
                                      .default_queue_type = "quorum",
                                      .reconcile_trigger_ms = 1000,
                                      .reconcile_interval_ms = 60000};
    b = broker_create(&settings);
    sub = broker_subscriber(b);
    for (uint32_t i = A; i <= C; i++) {
        tell_node(i, i, 0);
    }
    tell(path_vhost(span_str("/")), span_str(""), false, 1);
}

static void begin(uint32_t founders)
{
    tell_queue(founders);
    sub->loaded(sub->ctx, index_now);
}

static void teardown(void)
{
    broker_destroy(b);
    buf_deinit(&world.payload);
}

// ---- time passes ---------------------------------------------------------------------------------------------------

// The store answers: the write under way took effect if nothing else was written since it began.
static void store_answers(void)
{
    if (!world.has_write) {
        return;
    }
    world.has_write = false;
    world.writes++;
    struct meta_result r = {.rc = world.is_store_lost                ? RC_NO_QUORUM
                                  : world.payload_version == version ? RC_OK
                                                                     : RC_CONFLICT};
    if (r.rc == RC_OK) {
        if (world.ids_offset) {
            memcpy(world.payload.ptr + world.ids_offset, &world.next_id, 8);
            world.next_id++;
        }
        version++;
        tell(path_queue(span_str("/"), span_str("q")), buf_span(&world.payload), false, version);
    }
    world.write_done(world.write_ctx, &r);
}

static void proof_comes(void)
{
    group_read_fn *done = world.proof_done;
    if (done) {
        world.proof_done = NULL;
        done(world.proof_ctx, world.proof_rc);
    }
}

static void turn(uint64_t ms)
{
    world.now_ns += ms * 1000000;
    broker_turn(b);
    for (uint32_t i = 0; i < world.posts_count; i++) {
        world.posts[i].fn(world.posts[i].arg);
    }
    world.posts_count = 0;
}

static void pass(uint64_t ms)
{
    for (uint64_t t = 0; t < ms; t += 5) {
        turn(5);
        store_answers();
        proof_comes();
    }
}

static void on_done(void *ctx, const struct broker_result *r)
{
    (void)ctx;
    answers++;
    answered = r->rc;
}

static void ask_for(bool is_removal, uint32_t node, enum broker_member_how how)
{
    struct broker_member_change c = {.group = GROUP, .is_removal = is_removal, .node_id = node, .how = how};
    broker_member_change(b, &c, 9000, on_done, NULL);
}

static void assert_members(uint32_t count, const uint32_t *nodes)
{
    const struct broker_queue *q = queue();
    ck_assert_uint_eq(q->target->members_count, count);
    ck_assert_uint_eq(q->joining, 0);
    ck_assert_uint_eq(world.config.count, count);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_eq(q->target->members[i].node_id, nodes[i]);
        ck_assert_ptr_nonnull(config_find(&world.config, q->target->members[i].replica_id));
    }
}
#define MEMBERS(...) assert_members(sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})
