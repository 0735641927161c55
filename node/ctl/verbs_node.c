// SPDX-License-Identifier: Apache-2.0
// Verbs about nodes: status, cluster_status, waiting, joining, stopping (operator-plane §1.3, §1.9).
#include "node/ctl/internal.h"
#include "node/base/mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PRODUCT_VERSION "4.3.6"
enum { POLL_MS = 50 };

void verb_ping(struct ctl_request *r)
{
    ctl_ok(r, "Ping succeeded");
}

static uint64_t resident_bytes(void)
{
    unsigned long pages = 0, total = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%lu %lu", &total, &pages) != 2) {
            pages = 0;
        }
        fclose(f);
    }
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

// Each worker adds its host's numbers, one after another.
struct status {
    struct ctl_request *request;
    json_t *object;
    struct host_metrics sum;
    uint32_t worker;
};

static void status_answer(void *arg)
{
    struct status *s = arg;
    const struct host_metrics *m = &s->sum;
    json_object_set_new(s->object, "warren",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "workers",
                                  (json_int_t)s->request->ctl->config.workers, "groups",
                                  (json_int_t)m->groups, "asleep", (json_int_t)m->asleep, "leaders", (json_int_t)m->leaders, "proposals",
                                  (json_int_t)m->proposals, "applied", (json_int_t)m->applied, "elections",
                                  (json_int_t)m->elections, "cold_reads", (json_int_t)m->cold_reads,
                                  "memtable_bytes", (json_int_t)m->memtable_bytes, "uncommitted_bytes",
                                  (json_int_t)m->uncommitted_bytes));
    ctl_object(s->request, s->object);
    free(s);
}

static void status_step(void *arg)
{
    struct status *s = arg;
    struct ctl_config *c = &s->request->ctl->config;
    struct host_metrics m;
    host_metrics(c->host_of(c->ctx, s->worker), &m);
    s->sum.groups += m.groups;
    s->sum.asleep += m.asleep;
    s->sum.leaders += m.leaders;
    s->sum.proposals += m.proposals;
    s->sum.applied += m.applied;
    s->sum.elections += m.elections;
    s->sum.cold_reads += m.cold_reads;
    s->sum.memtable_bytes += m.memtable_bytes;
    s->sum.uncommitted_bytes += m.uncommitted_bytes;
    s->worker++;
    const bool is_last = s->worker == c->workers;
    c->post(c->ctx, is_last ? 0 : s->worker, is_last ? status_answer : status_step, s);
}

void verb_status(struct ctl_request *r)
{
    struct ctl *c = r->ctl;
    const char *waiting = c->config.waiting_for(c->config.ctx);
    uint64_t uptime = (clock_mono_ns(env_system_clock()) - c->started_ns) / 1000000000u;
    json_t *o =
        json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:I, s:b, s:[], s:s}", "os", "Linux", "pid", (int)getpid(),
                  "product_name", "RabbitMQ", "product_version", PRODUCT_VERSION, "rabbitmq_version",
                  PRODUCT_VERSION, "platform", "Warren", "uptime", (json_int_t)uptime, "is_under_maintenance",
                  0, "tags", "data_directory", c->config.data_dir);
    alarms_status(c, o);
    json_object_set_new(o, "waiting_for", json_string(waiting ? waiting : ""));
    json_object_set_new(o, "listeners", c->config.listeners(c->config.ctx));
    json_object_set_new(o, "is_under_maintenance", json_boolean(c->config.is_draining(c->config.ctx)));
    json_object_set_new(o, "memory", json_pack("{s:{s:I}}", "total", "rss", (json_int_t)resident_bytes()));
    if (!c->config.host) {
        ctl_object(r, o);
        return;
    }
    struct status *s = mem_zalloc(sizeof(*s));
    *s = (struct status){.request = r, .object = o};
    status_step(s);
}

struct nodes_state {
    struct ctl *ctl;
    json_t *disk, *running;
    json_t *draining;  // Object: names of those in maintenance mode. May be NULL.
};

static bool node_runs(struct ctl *c, const struct broker_node *n)
{
    return n->node_id == c->config.node_id || host_node_is_alive(c->config.host, n->node_id);
}

static void add_node(void *ctx, const struct broker_node *n)
{
    struct nodes_state *s = ctx;
    json_array_append_new(s->disk, json_span(n->name));
    if (node_runs(s->ctl, n)) {
        json_array_append_new(s->running, json_span(n->name));
    }
    char name[256];
    snprintf(name, sizeof(name), "%.*s", (int)n->name.len, (const char *)n->name.ptr);
    if (s->draining && n->is_draining) {
        json_object_set_new(s->draining, name, json_true());
    }
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// Nodes appear in the order in which they joined; people expect them by name.
static json_t *sorted(json_t *names)
{
    size_t n = json_array_size(names);
    const char **all = mem_alloc((n + 1) * sizeof(*all));
    for (size_t i = 0; i < n; i++) {
        all[i] = json_string_value(json_array_get(names, i));
    }
    qsort(all, n, sizeof(*all), compare_names);
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(out, json_string(all[i]));
    }
    free(all);
    json_decref(names);
    return out;
}

void verb_cluster_status(struct ctl_request *r)
{
    struct ctl *c = r->ctl;
    struct nodes_state s = {c, json_array(), json_array(), json_object()};
    broker_node_each(c->broker, add_node, &s);
    s.disk = sorted(s.disk);
    s.running = sorted(s.running);
    json_t *versions = json_object(), *maintenance = json_object();
    for (size_t i = 0; i < json_array_size(s.running); i++) {
        const char *name = json_string_value(json_array_get(s.running, i));
        json_object_set_new(versions, name,
                            json_pack("{s:s, s:s, s:s}", "rabbitmq_name", "RabbitMQ", "rabbitmq_version",
                                      PRODUCT_VERSION, "erlang_version", ""));
        json_object_set_new(maintenance, name,
                            json_string(json_object_get(s.draining, name) ? "marked for maintenance"
                                                                          : "not under maintenance"));
    }
    json_decref(s.draining);
    struct consensus_status meta = {0};
    const char *leader = "";
    if (metastore_group(c->metastore)) {
        group_status(metastore_group(c->metastore), &meta);
        leader = meta.leader_node ? node_name_of(c, meta.leader_node) : "";
    }
    json_t *o = json_pack("{s:s, s:o, s:o, s:o, s:o, s:{}, s:o, s:[], s:{}}", "cluster_name",
                          c->config.cluster_name, "disk_nodes", s.disk, "running_nodes", s.running, "alarms",
                          alarms_json(c), "maintenance_status", maintenance, "partitions", "versions",
                          versions, "feature_flags", "cpu_cores");
    json_object_set_new(o, "listeners", json_pack("{s:o}", c->config.node_name, c->config.listeners(c->config.ctx)));
    json_object_set_new(o, "metadata_leader", json_string(leader));
    ctl_object(r, o);
}

// ---- waiting -----------------------------------------------------------------------------------------------------

// Waits are worked off by a timer of worker 0's loop through the mailbox: each look posts the next one.
struct wait {
    struct ctl_request *request;
    bool (*is_met)(struct ctl_request *r);
    uint64_t deadline_ns;
    int exit_code;
    const char *what;
    uv_timer_t timer;
};

static void wait_freed(uv_handle_t *h)
{
    free(h->data);
}

static void wait_look(uv_timer_t *t)
{
    struct wait *w = t->data;
    struct ctl_request *r = w->request;
    if (w->is_met(r)) {
        ctl_ok(r, NULL);
    } else if (clock_mono_ns(env_system_clock()) > w->deadline_ns) {
        const char *waiting = r->ctl->config.waiting_for(r->ctl->config.ctx);
        ctl_error(r, w->exit_code, "Error: timed out waiting for %s (%s)", w->what,
                  waiting && *waiting ? waiting : "not reached");
    } else {
        return;
    }
    uv_timer_stop(t);
    uv_close((uv_handle_t *)t, wait_freed);
}

static void wait_for(struct ctl_request *r, bool (*is_met)(struct ctl_request *r), const char *what, int exit_code)
{
    struct wait *w = mem_zalloc(sizeof(*w));
    double seconds = atof(request_option(r, "timeout", "300"));
    *w = (struct wait){.request = r, .is_met = is_met, .exit_code = exit_code, .what = what};
    w->deadline_ns = clock_mono_ns(env_system_clock()) + (uint64_t)(seconds * 1e9);
    uv_timer_init(r->ctl->config.loop, &w->timer);
    w->timer.data = w;
    uv_timer_start(&w->timer, wait_look, 0, POLL_MS);
}

// Up: a member, metadata here, and the metadata group has a leader, so that changes work.
static bool is_up(struct ctl_request *r)
{
    struct ctl *c = r->ctl;
    const char *waiting = c->config.waiting_for(c->config.ctx);
    if ((waiting && *waiting) || !c->broker || !broker_is_loaded(c->broker)) {
        return false;
    }
    struct consensus_status s = {0};
    if (metastore_group(c->metastore)) {
        group_status(metastore_group(c->metastore), &s);
    }
    return s.leader != 0;
}

void verb_await_startup(struct ctl_request *r)
{
    wait_for(r, is_up, "the node to start", EXIT_TEMPFAIL);
}

static bool are_online(struct ctl_request *r)
{
    if (!is_up(r)) {
        return false;
    }
    struct nodes_state s = {r->ctl, json_array(), json_array(), NULL};
    broker_node_each(r->ctl->broker, add_node, &s);
    bool ok = json_array_size(s.running) >= strtoul(request_arg(r, 0), NULL, 10);
    // A node counts once it votes for metadata: only then does its loss, or that of another, change nothing.
    struct consensus_status m;
    group_status(metastore_group(r->ctl->metastore), &m);
    ok = ok && config_voters(m.config) >= strtoul(request_arg(r, 0), NULL, 10);
    json_decref(s.disk);
    json_decref(s.running);
    return ok;
}

void verb_await_online_nodes(struct ctl_request *r)
{
    const char *count = request_arg(r, 0);
    if (strtoul(count, NULL, 10) == 0) {
        ctl_error(r, EXIT_USAGE, "Error (argument validation): '%s' is not a number of nodes", count);
        return;
    }
    wait_for(r, are_online, "the nodes to be online", EXIT_SOFTWARE);
}

// ---- joining, stopping ---------------------------------------------------------------------------------------------

static void changed(void *arg, enum rc rc, const char *text)
{
    struct ctl_request *r = arg;
    if (rc == RC_OK) {
        ctl_ok(r, text);
    } else if (rc == RC_PENDING) {
        ctl_answer(r, json_pack("{s:i, s:b}", "exit", EXIT_OK, "restarting", 1));
    } else {
        ctl_error(r,
                  rc == RC_INVALID                         ? EXIT_SOFTWARE
                  : rc == RC_TIMEOUT || rc == RC_NO_QUORUM ? EXIT_TEMPFAIL
                                                           : EXIT_UNAVAILABLE,
                  "Error: %s", text);
    }
}

void verb_join_cluster(struct ctl_request *r)
{
    struct ctl *c = r->ctl;
    c->config.join(c->config.ctx, request_arg(r, 0), changed, r);
}

void verb_forget_cluster_node(struct ctl_request *r)
{
    struct ctl *c = r->ctl;
    c->config.forget(c->config.ctx, request_arg(r, 0), changed, r);
}

static void maintenance_set(struct ctl_request *r, bool is_on)
{
    struct ctl *c = r->ctl;
    c->config.maintenance(c->config.ctx, is_on, changed, r);
}

void verb_drain(struct ctl_request *r)
{
    maintenance_set(r, true);
}

void verb_revive(struct ctl_request *r)
{
    maintenance_set(r, false);
}

void verb_stop(struct ctl_request *r)
{
    struct ctl *c = r->ctl;
    ctl_ok(r, NULL);
    c->config.stop(c->config.ctx);
}
