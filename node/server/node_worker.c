// SPDX-License-Identifier: Apache-2.0
// One worker's parts and its turn (node/README.md).
//
// Order in a turn: input that waited -> completions of the WAL -> sessions -> groups -> sessions again (what
// was applied makes replies and deliveries) -> confirms -> sockets. Nothing waits for the next turn that this
// one made ready.
#include "node/base/log.h"
#include "node/server/node.h"
#include <stdlib.h>

uint32_t node_worker_of(void *ctx, uint64_t group)
{
    struct node *n = ctx;
    // 64 fixed shards; the metadata group lives on worker 0.
    uint32_t shard = group == META_GROUP_ID ? 0 : (uint32_t)(hash_u64(group) % 64);
    return shard % n->workers_count;
}

void node_post(void *ctx, uint32_t worker, void (*fn)(void *arg), void *arg)
{
    struct node *n = ctx;
    worker_post(n->workers[worker].worker, fn, arg);
}

const struct store_group *node_recovered(void *ctx, uint64_t group)
{
    struct node *n = ctx;
    struct recovered *r = map_get(&n->recovered, group);
    return r ? &r->group : NULL;
}

// What a replica that a queue's record names has here. In a store that is damaged as a whole, nothing may
// mean that all is lost: what was recorded before the projection was proven fresh may have promised something
// (law 2). Queues that are made later begin like everywhere.
static const struct store_group *node_memory(void *ctx, uint64_t group, uint64_t replica_id)
{
    struct node *n = ctx;
    struct node_worker *w = &n->workers[node_worker_of(n, group)];
    struct recovered *found = map_get(&n->recovered, group);
    if (found) {
        // Given once: a replica that comes here again after its group was deleted begins like everywhere. Who is
        // named by a record that is behind does not get it (RC_STALE of host_group_add).
        const bool is_first = !found->is_taken;
        found->is_taken |= found->group.replica_id <= replica_id;
        return is_first ? &found->group : NULL;
    }
    if (!n->is_memory_lost || atomic_load_explicit(&w->shared_is_fenced, memory_order_relaxed)) {
        return NULL;
    }
    log_warning("group %llu: nothing is left of this node's replica in a damaged store: it neither votes nor "
                "acknowledges",
                (unsigned long long)group);
    w->lost = (struct store_group){.group = group, .is_amnesiac = true};
    return &w->lost;
}

static struct queue_service *peer_service(void *ctx, uint32_t worker)
{
    struct node *n = ctx;
    return atomic_load_explicit(&n->workers[worker].shared_queues, memory_order_acquire);
}

static uint32_t host_worker_of(void *ctx, uint64_t group)
{
    return node_worker_of(((struct node_worker *)ctx)->node, group);
}

static void pass_on(void *ctx, uint32_t worker, uint32_t from, enum net_lane lane, uint16_t type,
                    struct span envelope, struct span raw)
{
    net_share_pass_on(((struct node_worker *)ctx)->node->share, worker, from, lane, type, envelope, raw);
}

static void submit_to_wal(void *ctx, struct wal_submission *s)
{
    struct node_worker *w = ctx;
    wal_thread_submit(w->node->wal, w->number, s);
}

// Every worker has moved what counts in the file; the last one's host says so.
static void retire_wal_file(void *ctx, uint64_t file_seq)
{
    struct node_worker *w = ctx;
    wal_thread_retire(w->node->wal, file_seq);
}

static bool is_current(void *ctx)
{
    struct node_worker *w = ctx;
    return metastore_is_current(w->node->metastore, w->number);
}

static void on_led(void *ctx, void *owner)
{
    struct node_worker *w = ctx;
    if (w->broker) {
        broker_queue_led(w->broker, owner);
    }
}

static void on_lost(void *ctx, void *owner)
{
    struct node_worker *w = ctx;
    if (w->broker) {
        broker_queue_lost(w->broker, owner);
        worker_wake(w->worker);
    }
}

static void make_amqp(struct node_worker *w)
{
    struct node *n = w->node;
    uint64_t seed;
    env_system_random(&seed, sizeof(seed));
    struct amqp09_config c = {
        .broker = w->broker,
        .queues = w->queues,
        .clock = env_system_clock(),
        .rng_seed = seed,
        .node_name = n->config.node_name,
        .cluster_name = n->config.cluster_name,
        .version = "4.3.6",
        .max_message_size = n->config.max_message_size,
        .channel_max = (uint16_t)n->config.channel_max,
        .frame_max = n->config.frame_max,
        .heartbeat_s = (uint16_t)n->config.heartbeat_s,
        .handshake_timeout_ms = n->config.handshake_timeout_ms,
        .is_guest_remote = n->config.is_guest_remote,
        .anonymous_user = n->config.default_user,
        .anonymous_pass = n->config.default_pass,
        .is_current = is_current,
        .ctx = w,
    };
    w->amqp = amqp09_create(&c);
    alarm_attach(w);
}

void node_worker_attach(struct node_worker *w)
{
    struct node *n = w->node;
    uint64_t seed;
    env_system_random(&seed, sizeof(seed));
    struct host_config h = {
        .node_id = n->identity.node_id,
        .worker = w->number,
        .clock = env_system_clock(),
        .rng_seed = seed,
        .store = n->store,
        .net = net_share_net(n->share, w->number),
        .worker_of = host_worker_of,
        .pass_on = pass_on,
        .cold = executor_port(n->cold, w->number),
        .removal = executor_port(n->removal, w->number),
        .wal_submit = submit_to_wal,
        .wal_submit_ctx = w,
        .wal_retired = retire_wal_file,
        .ctx = w,
    };
    w->host = host_create(&h);
    struct queue_service_config q = {
        .host = w->host,
        .net = host_net(w->host),
        .node_id = n->identity.node_id,
        .incarnation = n->identity.incarnation,
        .worker = w->number,
        .workers = n->workers_count,
        .worker_of = node_worker_of,
        .post = node_post,
        .post_ctx = n,
        .peer = peer_service,
        .consumer_disconnected_timeout_ms = n->config.consumer_disconnected_timeout_ms,
        .led = on_led,
        .lost = on_lost,
        .led_ctx = w,
    };
    w->queues = queue_service_create(&q);
    atomic_store_explicit(&w->shared_queues, w->queues, memory_order_release);
    struct broker_config b = {
        .worker = w->number,
        .node_id = n->identity.node_id,
        .node_name = n->config.node_name,
        .metastore = n->metastore,
        .queues = w->queues,
        .host = w->host,
        .default_queue_type = n->config.default_queue_type,
        .quorum_initial_size = n->config.quorum_initial_size,
        .is_leader_balanced = n->config.is_leader_balanced,
        .is_reconciling = n->config.is_reconciling,
        .reconcile_target = n->config.reconcile_target,
        .reconcile_interval_ms = n->config.reconcile_interval_ms,
        .reconcile_trigger_ms = n->config.reconcile_trigger_ms,
        .worker_of = node_worker_of,
        .post = node_post,
        .recovered = node_memory,
        .node_changed = member_node_changed,
        .ctx = n,
    };
    w->broker = broker_create(&b);
    metastore_subscribe(n->metastore, w->number, broker_subscriber(w->broker));
    make_amqp(w);
    net_share_listen(n->share, w->number, host_net_upcalls(w->host));
}

// ---- opening -----------------------------------------------------------------------------------------------------

// Groups found on disk that no queue record names were deleted while this node was away: known from the store as a
// majority proved it, never from absence alone (law 3). A record that this program cannot read (a later
// version's, say) may name any of them: then all stay. Their ids are never given again.
static void drop_deleted_groups(struct node_worker *w)
{
    struct node *n = w->node;
    uint32_t pos = 0;
    uint64_t id;
    const bool is_kept = broker_has_unread(w->broker);
    for (struct recovered *r; (r = map_next(&n->recovered, &pos, &id, NULL));) {
        if (id == META_GROUP_ID || node_worker_of(n, id) != w->number || r->is_taken) {
            continue;  // A group that took it owns the log, and may have been deleted with it since this node started.
        }
        if (is_kept) {
            log_warning("group %llu belongs to no queue that this node knows; its data stays, for not every "
                        "record could be read",
                        (unsigned long long)id);
        } else {
            log_notice("group %llu was deleted, or left this node, while it was away: its data goes",
                       (unsigned long long)id);
            glog_delete(r->group.log);
            r->is_taken = true;  // The queue may get a replica here again.
        }
    }
}

void node_worker_listen(struct node_worker *w)
{
    struct node *n = w->node;
    for (uint32_t i = 0; i < n->config.amqp_count; i++) {
        struct amqp09_listener_config c = {.service = w->amqp,
                                           .loop = worker_loop(w->worker),
                                           .address = n->config.amqp[i],
                                           .is_shared = n->workers_count > 1};
        enum rc rc = amqp09_listener_open(&c, &w->listeners[w->listeners_count]);
        if (rc != RC_OK) {
            log_critical("cannot listen on %s: %s; is another process using the port?", n->config.amqp[i], rc_text(rc));
            node_fail(n);
            return;
        }
        w->listeners_count++;
    }
    log_notice("worker %u takes AMQP 0-9-1 connections on %s", w->number, n->config.amqp[0]);
}

static void on_fenced(void *ctx, const struct meta_result *r)
{
    struct node_worker *w = ctx;
    w->is_fencing = false;
    if (r->rc != RC_OK || w->drain.phase != DRAIN_NONE) {
        return;  // The turn tries again, unless the node is stopping.
    }
    drop_deleted_groups(w);
    node_worker_listen(w);
    atomic_store_explicit(&w->shared_is_fenced, true, memory_order_relaxed);  // Now it is up, as far as this worker goes.
}

// Listeners open once the projection is loaded and a majority has proven it fresh. A new cluster has its first user
// with the record of its first node: before that nobody could log in.
static void open_when_ready(struct node_worker *w)
{
    if (!atomic_load_explicit(&w->shared_is_fenced, memory_order_relaxed) && !w->is_fencing &&
        w->drain.phase == DRAIN_NONE && broker_is_loaded(w->broker) &&
        broker_node_find(w->broker, span_str(w->node->config.node_name))) {
        w->is_fencing = true;
        metastore_fence(w->node->metastore, w->number, 10000, on_fenced, w);
    }
}

// ---- the turn ----------------------------------------------------------------------------------------------------

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t node_worker_turn(void *ctx)
{
    struct node_worker *w = ctx;
    struct node *n = w->node;
    atomic_fetch_add_explicit(&w->shared_turns, 1, memory_order_relaxed);
    uint64_t next = UINT64_MAX;
    if (w->number == 0 && n->share) {
        net_share_begin(n->share);
    }
    if (w->host) {
        amqp09_turn_begin(w->amqp);
        for (struct wal_submission *s; (s = wal_thread_poll(n->wal, w->number)) != NULL;) {
            host_wal_done(w->host, s);
        }
        if (w->number == 0) {
            next = earlier(next, metastore_turn(n->metastore));
        }
        queue_service_turn(w->queues);
        next = earlier(next, broker_turn(w->broker));
        next = earlier(next, host_turn(w->host));
        next = earlier(next, queue_service_turn(w->queues));
        if (w->number == 0) {
            net_share_flush(n->share);
        } else {
            host_net(w->host)->flush(host_net(w->host));
        }
        next = earlier(next, amqp09_turn_end(w->amqp));
        for (uint32_t i = 0; i < w->listeners_count; i++) {
            next = earlier(next, amqp09_listener_flush(w->listeners[i]));
        }
        open_when_ready(w);
        next = earlier(next, drain_turn(w, clock_mono_ns(env_system_clock())));
        if (host_is_failed(w->host)) {
            log_critical("the disk failed: this node stops, so that nothing is acknowledged that is not durable");
            abort();
        }
    }
    if (w->number == 0) {
        next = earlier(next, member_turn(n, clock_mono_ns(env_system_clock())));
        next = earlier(next, alarm_turn(n, clock_mono_ns(env_system_clock())));
        if (n->ctl) {
            next = earlier(next, ctl_turn(n->ctl));
        }
    }
    return next;
}

void node_worker_close(struct node_worker *w)
{
    for (uint32_t i = 0; i < w->listeners_count; i++) {
        amqp09_listener_close(w->listeners[i]);
    }
    w->listeners_count = 0;
}
