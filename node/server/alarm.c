// SPDX-License-Identifier: Apache-2.0
// Alarms of the node: what the monitor and the log see here, and what other nodes' beats say, told to every worker's
// connections (node/alarm/README.md). Worker 0.
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/server/node.h"
#include <stdlib.h>

enum {
    GONE_MS = 5000,        // Silent for so long a node's alarms count no more.
    ROOM_RETRY_MS = 1000,  // While the disk is short of room, what waits for it is tried again.
};

static_assert((int)ALARM_MEMORY == (int)AMQP09_ALARM_MEMORY, "one set of bits");
static_assert((int)ALARM_DISK == (int)AMQP09_ALARM_DISK, "one set of bits");

static void tell_worker(void *arg)
{
    struct node_worker *w = arg;
    if (w->amqp) {
        amqp09_set_alarms(w->amqp, atomic_load_explicit(&w->node->shared_alarms, memory_order_relaxed));
    }
}

static void tell_workers(struct node *n)
{
    atomic_store_explicit(&n->shared_alarms, n->alarms.all, memory_order_relaxed);
    for (uint32_t i = 0; i < n->workers_count; i++) {
        node_post(n, i, tell_worker, &n->workers[i]);
    }
}

static void update_own(struct node *n)
{
    const uint32_t bits = n->monitor_bits | (n->is_short ? (uint32_t)ALARM_DISK : 0);
    if (alarms_set_own(&n->alarms, bits)) {
        tell_workers(n);
    }
}

static void on_monitor(void *ctx, uint32_t bits)
{
    struct node *n = ctx;
    n->monitor_bits = bits;
    update_own(n);
}

void alarm_create(struct node *n)
{
    struct measured_total total;
    measure_memory_total(n->config.total_memory, &total);
    struct monitor_config c = {.path = n->config.data_dir,
                               .limits = n->config.alarm_limits,
                               .memory_total = total.bytes,
                               .post = node_post,
                               .changed = on_monitor,
                               .ctx = n};
    alarms_init(&n->alarms, n->config.node_name);
    n->monitor = monitor_create(&c);
    const struct monitor_view *v = monitor_view(n->monitor);
    log_notice("memory high watermark %llu MiB of %llu MiB (%s), free disk limit %llu MB",
               (unsigned long long)(v->memory_limit >> 20), (unsigned long long)(total.bytes >> 20),
               total.source, (unsigned long long)(v->disk_limit / 1000000u));
}

void alarm_attach(struct node_worker *w)
{
    tell_worker(w);
}

void alarm_beat(void *ctx, uint32_t node_id, const struct peer_beat *b)
{
    struct node *n = ctx;
    if (b->alarms != alarms_of_node(&n->alarms, node_id)) {
        n->alarms_at_ns = 0;
    }
    if (n->metastore) {
        metastore_commit_heard(n->metastore, b->meta_commit);
    }
}

struct sync {
    struct node *node;
    uint64_t now, next;
    bool has_changed;
    uint32_t ids[PEER_NET_PEERS_MAX], count;
};

static void look_at_peer(void *ctx, const struct peer_info *p)
{
    struct sync *s = ctx;
    if (p->node_id == 0 || s->count == PEER_NET_PEERS_MAX) {
        return;
    }
    s->ids[s->count++] = p->node_id;
    uint32_t bits = (uint32_t)p->beat.alarms & (ALARM_MEMORY | ALARM_DISK);
    const uint64_t gone_at = p->heard_ns + GONE_MS * 1000000ull;
    if (p->verdict == NODE_DEAD || (p->verdict == NODE_SUSPECT && s->now >= gone_at)) {
        bits = 0;
    } else if (p->verdict == NODE_SUSPECT && bits != 0 && gone_at < s->next) {
        s->next = gone_at;
    }
    s->has_changed = alarms_set_node(&s->node->alarms, p->node_id, p->name, bits) || s->has_changed;
}

static void look_for_room(void *arg)
{
    struct node_worker *w = arg;
    if (w->host) {
        host_room(w->host);
    }
}

static uint64_t room_turn(struct node *n, uint64_t now)
{
    if (disk_has_failed(n->disk)) {
        // Another thread met it: the log's notices and ends the process, also while nothing is written.
        wal_thread_make_room(n->wal);
    }
    const bool is_short = wal_thread_is_short(n->wal) || store_is_short(n->store) || metastore_is_short();
    if (is_short != n->is_short) {
        n->is_short = is_short;
        n->room_at_ns = now + ROOM_RETRY_MS * 1000000ull;
        update_own(n);
    }
    if (!is_short) {
        return UINT64_MAX;
    }
    if (now >= n->room_at_ns) {
        n->room_at_ns = now + ROOM_RETRY_MS * 1000000ull;
        wal_thread_make_room(n->wal);
        for (uint32_t i = 0; i < n->workers_count; i++) {
            node_post(n, i, look_for_room, &n->workers[i]);
        }
    }
    return n->room_at_ns;
}

// A node that is gone blocks nobody; one whose link is only being made again does.
static uint64_t others_turn(struct node *n, uint64_t now)
{
    if (now < n->alarms_at_ns) {
        return n->alarms_at_ns;
    }
    struct sync s = {.node = n, .now = now, .next = UINT64_MAX};
    if (n->peers) {
        peer_net_each(n->peers, look_at_peer, &s);
    }
    s.has_changed = alarms_retain(&n->alarms, s.ids, s.count) || s.has_changed;
    if (s.has_changed) {
        tell_workers(n);
    }
    n->alarms_at_ns = s.next;
    return s.next;
}

uint64_t alarm_turn(struct node *n, uint64_t now)
{
    const uint64_t room = room_turn(n, now), others = others_turn(n, now);
    return room < others ? room : others;
}
