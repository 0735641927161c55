// SPDX-License-Identifier: Apache-2.0
// A node's life: opening what is on disk, starting the threads, and ending them in the order in which nothing is lost.
#include "node/server/node.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint32_t worker_of(void *ctx, uint64_t group)
{
    return node_worker_of(ctx, group);
}

static void on_recovered(void *ctx, const struct store_group *g)
{
    struct node *n = ctx;
    struct recovered *r = mem_zalloc(sizeof(*r));
    r->group = *g;
    r->group.is_amnesiac = g->is_amnesiac || n->is_store_suspect;
    r->group.is_hiding = g->is_hiding || n->is_store_suspect;
    if (g->runs_count > 0) {
        r->runs = mem_alloc(g->runs_count * sizeof(*r->runs));
        memcpy(r->runs, g->runs, g->runs_count * sizeof(*r->runs));
    }
    r->group.runs = r->runs;
    map_put(&n->recovered, g->group, r);
}

static const char *why_not(enum rc rc)
{
    return rc == RC_UNSUPPORTED ? "it was written by a later version of this program" : rc_text(rc);
}

static enum rc open_store(struct node *n, struct buf *error)
{
    uint64_t seed;
    env_system_random(&seed, sizeof(seed));
    struct store_config c = {
        .disk = n->disk,
        .workers = n->workers_count,
        .worker_of = worker_of,
        .worker_of_ctx = n,
        .memtable_bytes = n->config.memtable_bytes,
        .wal_file_bytes = n->config.wal_file_bytes,
        .wal_align = n->config.wal_align,
        .wal_reserve_files = 1,
        // What one file's retirement may write, and the file that the log may have to begin meanwhile: the file goes
        // once what is known of it is in the log.
        .reserve_bytes = 2 * n->config.wal_file_bytes + n->config.wal_file_bytes / 8,
        .last_bytes = n->config.wal_file_bytes / 8,
        .random = seed,
        .must_exist = !identity_is_blank(&n->identity),
    };
    memcpy(c.cluster_id, n->identity.cluster_id, sizeof(c.cluster_id));
    struct wal_report report;
    enum rc rc = store_open(&c, on_recovered, n, &report, &n->store);
    if (rc != RC_OK) {
        buf_printf(error, "cannot open the log store in %s: %s", n->config.data_dir, why_not(rc));
        return rc;
    }
    n->is_log_suspect = n->is_store_suspect || report.is_corrupt;
    n->is_memory_lost = n->is_store_suspect || (report.is_corrupt && !report.corrupt_groups_known);
    log_notice("recovered %u groups, %llu records, %llu MB of log; %llu bytes of an unsynced tail dropped%s",
               map_count(&n->recovered), (unsigned long long)report.records,
               (unsigned long long)(report.bytes >> 20), (unsigned long long)report.dropped_tail_bytes,
               report.is_corrupt ? "; THE LOG IS DAMAGED: the replicas touched neither vote nor acknowledge"
                                 : "");
    return RC_OK;
}

static void wake_worker(void *ctx, uint32_t worker)
{
    struct node *n = ctx;
    worker_wake(n->workers[worker].worker);
}

struct file_closed {
    struct node_worker *worker;
    uint64_t seq;
};

static void tell_file_closed(void *arg)
{
    struct file_closed *f = arg;
    if (f->worker->host) {
        host_wal_file_closed(f->worker->host, f->seq);
    }
    free(f);
}

static void on_file_closed(void *ctx, uint64_t seq)
{
    struct node *n = ctx;
    for (uint32_t i = 0; i < n->workers_count; i++) {
        struct file_closed *f = mem_alloc(sizeof(*f));
        *f = (struct file_closed){&n->workers[i], seq};
        worker_post(n->workers[i].worker, tell_file_closed, f);
    }
}

static void give_back(void *ctx, uint32_t submitter, struct job *job)
{
    struct node *n = ctx;
    worker_give_back(n->workers[submitter].worker, job);
}

static struct amqp09 *amqp_of(void *ctx, uint32_t worker)
{
    return ((struct node *)ctx)->workers[worker].amqp;
}

static struct queue_service *queues_of(void *ctx, uint32_t worker)
{
    return ((struct node *)ctx)->workers[worker].queues;
}

static struct host *host_of(void *ctx, uint32_t worker)
{
    return ((struct node *)ctx)->workers[worker].host;
}

static struct broker *broker_of(void *ctx, uint32_t worker)
{
    return ((struct node *)ctx)->workers[worker].broker;
}

static void request_stop(void *ctx)
{
    ((struct node *)ctx)->stop_requested();
}

void node_fail(struct node *n)
{
    atomic_store_explicit(&n->shared_has_failed, true, memory_order_release);
    n->stop_requested();
}

static const char *waiting_for(void *ctx)
{
    return ((struct node *)ctx)->waiting;
}

static void add_listener(json_t *all, const char *address, const char *protocol, const char *purpose)
{
    const char *colon = strrchr(address, ':');
    json_array_append_new(all,
                          json_pack("{s:s, s:s%, s:i, s:s}", "protocol", protocol, "interface", address,
                                    (size_t)(colon - address), "port", atoi(colon + 1), "purpose", purpose));
}

static json_t *listeners_json(void *ctx)
{
    struct node *n = ctx;
    json_t *all = json_array();
    add_listener(all, n->config.cluster_address, "clustering", "inter-node and CLI tool communication");
    for (uint32_t i = 0; i < n->config.amqp_count; i++) {
        add_listener(all, n->config.amqp[i], "amqp", "AMQP 0-9-1");
    }
    return all;
}

// ---- worker threads ----------------------------------------------------------------------------------------------

static void on_worker_started(void *ctx)
{
    struct node_worker *w = ctx;
    if (w->number == 0) {
        member_peers_start(w->node);
    }
}

static void on_worker_stopping(void *ctx)
{
    struct node_worker *w = ctx;
    node_worker_close(w);
    if (w->number == 0 && w->node->peers) {
        peer_net_close(w->node->peers, NULL, NULL);
        w->node->peers = NULL;
    }
}

static enum rc create_workers(struct node *n)
{
    for (uint32_t i = 0; i < n->workers_count; i++) {
        struct node_worker *w = &n->workers[i];
        w->node = n;
        w->number = i;
        char name[24];
        snprintf(name, sizeof(name), "worker-%u", i);
        struct worker_config c = {.number = i,
                                  .name = mem_strndup(name, strlen(name)),
                                  .turn = node_worker_turn,
                                  .started = on_worker_started,
                                  .stopping = on_worker_stopping,
                                  .ctx = w};
        TRY(worker_create(&c, &w->worker));
    }
    return RC_OK;
}

static enum rc start_threads(struct node *n)
{
    struct wal_thread_config wal = {.workers = n->workers_count,
                                    .wake = wake_worker,
                                    .wake_ctx = n,
                                    .on_file_closed = on_file_closed};
    TRY(wal_thread_start(&wal, store_wal(n->store), &n->wal));
    struct executor_config cold = {.name = "cold", .submitters = n->workers_count, .give_back = give_back, .ctx = n};
    TRY(executor_start(&cold, &n->cold));
    struct executor_config removal = {.name = "removal", .submitters = n->workers_count, .give_back = give_back, .ctx = n};
    TRY(executor_start(&removal, &n->removal));
    struct executor_config meta = {.name = "meta", .submitters = n->workers_count, .give_back = give_back, .ctx = n};
    return executor_start(&meta, &n->meta);
}

enum rc node_open_metastore(struct node *n)
{
    char dir[4096];
    snprintf(dir, sizeof(dir), "%s/meta", n->config.data_dir);
    struct metastore_config c = {
        .dir = dir,
        .map_bytes = 16ull << 30,
        .node_id = n->identity.node_id,
        .workers = n->workers_count,
        .meta = executor_port(n->meta, 0),
        .post = node_post,
        .post_ctx = n,
        .clock = env_system_clock(),
    };
    return metastore_open(&c, &n->metastore);
}

// A write or sync of this directory failed in an earlier process (P6): what was acknowledged may be missing,
// although it can be read. So nothing here is vouched for (engine-notes §1.9).
static void look_for_mark(struct node *n)
{
    struct disk_file *f;
    if (n->disk->open(n->disk, "store.failed", DISK_READ, &f) != RC_OK) {
        return;
    }
    n->disk->close(f);
    n->is_store_suspect = true;
    log_critical("the disk failed under this node (%s/store.failed says when and how): check it", n->config.data_dir);
}

// ---- opening what is there ------------------------------------------------------------------------------------------

static enum rc open_disk(struct node *n, struct buf *error)
{
    enum rc rc = disk_posix_open(n->config.data_dir, &n->disk);
    if (rc != RC_OK) {
        buf_printf(error,
                   rc == RC_BUSY ? "the data directory %s is in use by another process"
                                 : "cannot use the data directory %s: %s",
                   n->config.data_dir, rc_text(rc));
    }
    return rc;
}

static enum rc prepare(struct node *n, struct buf *error)
{
    enum rc rc = rejoin_prepare(n);
    if (rc != RC_OK) {
        buf_printf(error, "the data in %s cannot be given up to join another cluster: %s", n->config.data_dir,
                   rc_text(rc));
    }
    return rc;
}

static enum rc open_identity(struct node *n, struct buf *error)
{
    enum rc rc = identity_open(n->disk, n->config.node_name, env_system_random, &n->identity);
    if (rc != RC_OK) {
        buf_printf(error, "the identity file in %s cannot be used: %s", n->config.data_dir,
                   rc == RC_CONFLICT ? "the directory belongs to a node of another name" : why_not(rc));
        if (rc == RC_CORRUPT) {
            buf_printf(error,
                       "; nothing here can be vouched for without it: delete the data directory %s and start "
                       "the node, which comes back as a new one",
                       n->config.data_dir);
        }
    }
    return rc;
}

static enum rc look_for_loss(struct node *n, struct buf *error)
{
    enum rc rc = lost_check(n);
    if (rc != RC_OK) {
        buf_printf(error, "the file rejoin in %s cannot be written: %s", n->config.data_dir, rc_text(rc));
    }
    return rc;
}

// A full disk ends no start. Most of it needs no room (wal/recovery_full.c, disk_replace_kept); what does has that of the
// reserves, and then waits. RC_SHUTDOWN: meanwhile the process was told to end.
static enum rc with_room(struct node *n, enum rc (*step)(struct node *n, struct buf *error), struct buf *error)
{
    bool is_told = false;
    for (;;) {
        enum rc rc = step(n, error);
        if (rc != RC_NO_SPACE) {
            return rc;
        }
        if (n->disk == NULL || !store_make_last_room(n->disk)) {
            if (!is_told) {
                log_critical("%.*s; waiting for room", (int)error->len, (const char *)error->ptr);
            }
            is_told = true;
            if (n->pause()) {
                return RC_SHUTDOWN;
            }
        }
        error->len = 0;
    }
}

enum rc node_create(struct node *n, struct buf *error)
{
    map_init_u64(&n->recovered);
    n->workers_count = n->config.workers;
    TRY(with_room(n, open_disk, error));
    uint64_t room = UINT64_MAX;
    if (measure_disk_free(n->config.data_dir, &room) == RC_OK && room < 2 * n->config.wal_file_bytes) {
        store_make_room(n->disk);  // A start writes: a new log file, the identity.
    }
    TRY(with_room(n, prepare, error));
    look_for_mark(n);
    TRY(with_room(n, open_identity, error));
    if (rejoin_check(n) != RC_OK) {
        buf_printf(error, "the file rejoin in %s cannot be removed", n->config.data_dir);
        return RC_IO;
    }
    TRY(with_room(n, open_store, error));
    return with_room(n, look_for_loss, error);
}

static void on_admin_started(void *ctx, uv_loop_t *loop)
{
    monitor_begin(((struct node *)ctx)->monitor, loop);
}

enum rc node_start(struct node *n, struct buf *error)
{
    alarm_create(n);
    enum rc rc = create_workers(n);
    if (rc == RC_OK) {
        rc = start_threads(n);
    }
    struct ctl_config c = {
        .node_name = n->config.node_name,
        .cluster_name = n->config.cluster_name,
        .data_dir = n->config.data_dir,
        .socket_path = n->config.control_socket,
        .workers = n->workers_count,
        .loop = rc == RC_OK ? worker_loop(n->workers[0].worker) : NULL,
        .post = node_post,
        .amqp = amqp_of,
        .worker_of = node_worker_of,
        .queues = queues_of,
        .host_of = host_of,
        .broker_of = broker_of,
        .stop = request_stop,
        .maintenance = maintenance_set,
        .is_draining = maintenance_is_on,
        .waiting_for = waiting_for,
        .join = member_join,
        .forget = member_forget,
        .alarms = &n->alarms,
        .monitor = n->monitor,
        .admin_started = on_admin_started,
        .listeners = listeners_json,
        .ctx = n,
    };
    node_wait_for(n, "starting");
    if (rc == RC_OK) {
        rc = ctl_start(&c, &n->ctl);
    }
    for (uint32_t i = 0; rc == RC_OK && i < n->workers_count; i++) {
        rc = worker_start(n->workers[i].worker);
    }
    if (rc != RC_OK) {
        buf_printf(error, "cannot start: %s", rc_text(rc));
    }
    return rc;
}

// Confirms that were promised are on disk already; what is under way may be lost like in a crash. So an
// orderly stop only has to end the threads: sockets first, then whoever could still write.
void node_stop(struct node *n)
{
    for (uint32_t i = 0; i < n->workers_count; i++) {
        worker_stop(n->workers[i].worker);
    }
    for (uint32_t i = 0; i < n->workers_count; i++) {
        worker_join(n->workers[i].worker);
    }
    ctl_stop(n->ctl);
    wal_thread_stop(n->wal);
    executor_stop(n->cold);
    executor_stop(n->removal);
    metastore_stop_waiting();
    executor_stop(n->meta);
    log_notice("node %s has stopped", n->config.node_name);
}
