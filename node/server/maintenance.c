// SPDX-License-Identifier: Apache-2.0
// Maintenance mode (rabbitmq-upgrade drain, revive; operator-plane §5.6): a node that serves no clients and
// leads nothing, and still holds its replicas, votes and acknowledges.
//
// Drain: the others are told by a record (they give this node no leads), listening sockets close, leads are
// handed over, clients get 320. Leads that come back, because nobody else could take them, are handed over
// again every second. Each step has an end (law 4): what could not be done is said in the answer, and the
// mode stays on. Revive opens the listeners and takes the record away. A restart ends the mode, as with RabbitMQ.
//
// The record follows what this node wants: whenever the two differ it is written again, so a majority that
// was missing at the time does no lasting harm.
//
// Not as RabbitMQ: followers go on running. A queue whose other members are gone is better led from here than
// by nobody.
#include "node/base/log.h"
#include "node/server/node.h"
#include <stdio.h>

enum { RECORD_AGAIN_MS = 1000 };

bool maintenance_is_on(void *ctx)
{
    return ((struct node *)ctx)->maintenance.is_on;
}

static void end(struct node *n)
{
    struct maintenance *m = &n->maintenance;
    if (!m->done || m->working > 0 || m->is_recording) {
        return;
    }
    void (*done)(void *arg, enum rc rc, const char *text) = m->done;
    m->done = NULL;
    char text[200] = "";
    const struct broker_node *own = broker_node_find(n->workers[0].broker, span_str(n->config.node_name));
    if (m->left > 0) {
        snprintf(text, sizeof(text),
                 "%u groups could not be handed over in time and are still led by this node", m->left);
    } else if (!own || own->is_draining != m->is_on) {
        snprintf(text, sizeof(text), "the other nodes have not been told yet: there is no majority of them");
    }
    log_notice("maintenance mode is %s%s%s", m->is_on ? "on" : "off", text[0] ? "; " : "", text);
    done(m->arg, RC_OK, text[0] ? text : NULL);
}

static void on_recorded(void *ctx, const struct broker_result *r)
{
    struct node *n = ctx;
    n->maintenance.is_recording = false;
    n->maintenance.record_at_ns = clock_mono_ns(env_system_clock()) + RECORD_AGAIN_MS * 1000000ull;
    if (r->rc != RC_OK) {
        log_warning("%s", r->text);
    }
    end(n);
}

static void record(struct node *n)
{
    n->maintenance.is_recording = true;
    broker_node_maintenance(n->workers[0].broker, span_str(n->config.node_name), n->maintenance.is_on, on_recorded, n);
}

static void begin_on_worker(void *arg)
{
    drain_begin(arg, true);
}

static void end_on_worker(void *arg)
{
    drain_end(arg);
}

void maintenance_set(void *ctx, bool is_on, void (*done)(void *arg, enum rc rc, const char *text), void *arg)
{
    struct node *n = ctx;
    struct maintenance *m = &n->maintenance;
    if (m->done) {
        done(arg, RC_BUSY, "maintenance mode is being changed already");
        return;
    }
    m->done = done;
    m->arg = arg;
    m->left = 0;
    if (is_on != m->is_on) {
        m->is_on = is_on;
        m->working = n->workers_count;
        log_notice("maintenance mode: %s",
                   is_on ? "closing listeners, handing over what this node leads" : "taking clients again");
        for (uint32_t i = 0; i < n->workers_count; i++) {
            node_post(n, i, is_on ? begin_on_worker : end_on_worker, &n->workers[i]);
        }
    }
    if (!m->is_recording) {
        record(n);
    }
}

void maintenance_worker_done(struct node *n, uint32_t left)
{
    struct maintenance *m = &n->maintenance;
    if (m->working > 0) {
        m->working--;
        m->left += left;
        end(n);
    }
}

uint64_t maintenance_turn(struct node *n, uint64_t now)
{
    struct maintenance *m = &n->maintenance;
    struct broker *b = n->workers[0].broker;
    const struct broker_node *own =
        b && broker_is_loaded(b) ? broker_node_find(b, span_str(n->config.node_name)) : NULL;
    if (!own || own->is_draining == m->is_on || m->is_recording || n->waiting[0] != '\0') {
        return UINT64_MAX;
    }
    if (now < m->record_at_ns) {
        return m->record_at_ns;
    }
    record(n);
    return UINT64_MAX;
}
