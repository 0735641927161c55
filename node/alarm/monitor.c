// SPDX-License-Identifier: Apache-2.0
// The monitor of memory and disk (monitor.h). A driver, on the admin thread.
//
// Problem: workers must not ask the system, and an alarm must neither come late nor be asked for all the
// time. Idea: one timer; memory is looked at every second, the disk as often as its room could vanish at the
// fastest speed expected (as RabbitMQ does). What was seen travels to worker 0 by post, so that worker 0
// reads plain values.
//
// A file system that cannot be asked keeps the alarm it had.
#include "node/alarm/monitor.h"
#include "node/alarm/measure.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/server/inbox.h"
#include <stdlib.h>

enum { MEMORY_INTERVAL_MS = 1000 };

// A change of limits on its way to the admin thread and back.
struct change {
    struct job job;
    struct monitor *monitor;
    struct alarm_limits limits;
    void (*done)(void *arg);
    void *arg;
};

// What was seen, on its way to worker 0.
struct seen {
    struct monitor *monitor;
    struct monitor_view view;
    uint32_t bits;
    struct change *change;  // To be told too, or NULL.
};

struct monitor {
    struct monitor_config config;
    uv_timer_t timer;
    uv_async_t async;
    _Atomic bool shared_has_loop;  // Posts may wake it (release, acquire).
    struct inbox inbox;            // Changes.
    // Admin thread:
    struct monitor_view now;
    uint32_t bits;
    uint64_t disk_at_ms;  // Loop time.
    bool is_disk_silent;  // Told that it cannot be asked.
    // Worker 0:
    struct monitor_view view;
    uint32_t told;
};

struct monitor *monitor_create(const struct monitor_config *config)
{
    struct monitor *m = mem_zalloc(sizeof(*m));
    m->config = *config;
    inbox_init(&m->inbox);
    m->now = (struct monitor_view){.limits = config->limits,
                                   .memory_total = config->memory_total,
                                   .disk_free = UINT64_MAX};
    m->now.memory_limit = alarm_limit_bytes(&config->limits.memory, config->memory_total);
    m->now.disk_limit = alarm_limit_bytes(&config->limits.disk_free, config->memory_total);
    m->view = m->now;
    return m;
}

void monitor_destroy(struct monitor *m)
{
    free(m);
}

const struct monitor_view *monitor_view(const struct monitor *m)
{
    return &m->view;
}

// ---- worker 0 ------------------------------------------------------------------------------------------------------

static void on_seen(void *arg)
{
    struct seen *s = arg;
    struct monitor *m = s->monitor;
    m->view = s->view;
    if (s->bits != m->told) {
        m->told = s->bits;
        m->config.changed(m->config.ctx, s->bits);
    }
    if (s->change) {
        s->change->done(s->change->arg);
        free(s->change);
    }
    free(s);
}

void monitor_set_limits(struct monitor *m, const struct alarm_limits *limits, void (*done)(void *arg), void *arg)
{
    struct change *c = mem_zalloc(sizeof(*c));
    *c = (struct change){.monitor = m, .limits = *limits, .done = done, .arg = arg};
    inbox_push(&m->inbox, &c->job);
    if (atomic_load_explicit(&m->shared_has_loop, memory_order_acquire)) {
        uv_async_send(&m->async);
    }
}

// ---- admin thread --------------------------------------------------------------------------------------------------

static void tell(struct monitor *m, struct change *change)
{
    struct seen *s = mem_zalloc(sizeof(*s));
    *s = (struct seen){.monitor = m, .view = m->now, .bits = m->bits, .change = change};
    m->config.post(m->config.ctx, 0, on_seen, s);
}

static void look_at_memory(struct monitor *m)
{
    struct monitor_view *v = &m->now;
    v->memory_used = measure_memory_used();
    const bool was = m->bits & ALARM_MEMORY, is = v->memory_used > v->memory_limit;
    m->bits = is ? m->bits | ALARM_MEMORY : m->bits & ~(uint32_t)ALARM_MEMORY;
    if (was != is) {
        log_notice("vm_memory_high_watermark %s. Memory used:%llu allowed:%llu", is ? "set" : "clear",
                   (unsigned long long)v->memory_used, (unsigned long long)v->memory_limit);
    }
}

static void look_at_disk(struct monitor *m)
{
    struct monitor_view *v = &m->now;
    uint64_t free_bytes;
    if (measure_disk_free(m->config.path, &free_bytes) != RC_OK) {
        if (!m->is_disk_silent) {
            log_error("the room left on the disk of %s cannot be asked for; the disk alarm stays as it is",
                      m->config.path);
        }
        m->is_disk_silent = true;
        v->disk_free = UINT64_MAX;
        return;
    }
    m->is_disk_silent = false;
    v->disk_free = free_bytes;
    const bool was = m->bits & ALARM_DISK, is = free_bytes < v->disk_limit;
    m->bits = is ? m->bits | ALARM_DISK : m->bits & ~(uint32_t)ALARM_DISK;
    if (was != is) {
        log_notice("Free disk space is %s. Free bytes: %llu. Limit: %llu", is ? "insufficient" : "sufficient",
                   (unsigned long long)free_bytes, (unsigned long long)v->disk_limit);
    }
}

static void on_timer(uv_timer_t *timer);

static void look(struct monitor *m, bool is_whole)
{
    const uint64_t now = uv_now(m->timer.loop);
    look_at_memory(m);
    if (is_whole || now >= m->disk_at_ms) {
        look_at_disk(m);
        m->disk_at_ms = now + alarm_disk_interval_ms(m->now.disk_free, m->now.disk_limit);
    }
    const uint64_t wait = m->disk_at_ms > now ? m->disk_at_ms - now : 0;
    uv_timer_start(&m->timer, on_timer, wait < MEMORY_INTERVAL_MS ? wait : MEMORY_INTERVAL_MS, 0);
}

static void on_timer(uv_timer_t *timer)
{
    struct monitor *m = timer->data;
    look(m, false);
    tell(m, NULL);
}

static void on_async(uv_async_t *a)
{
    struct monitor *m = a->data;
    for (struct job *j = inbox_take(&m->inbox); j;) {
        struct job *next = inbox_next(j);
        struct change *c = container_of(j, struct change, job);
        m->now.limits = c->limits;
        m->now.memory_limit = alarm_limit_bytes(&c->limits.memory, m->now.memory_total);
        m->now.disk_limit = alarm_limit_bytes(&c->limits.disk_free, m->now.memory_total);
        look(m, true);
        tell(m, c);
        j = next;
    }
}

void monitor_begin(struct monitor *m, uv_loop_t *loop)
{
    uv_timer_init(loop, &m->timer);
    uv_async_init(loop, &m->async, on_async);
    m->timer.data = m->async.data = m;
    atomic_store_explicit(&m->shared_has_loop, true, memory_order_release);
    look(m, true);
    tell(m, NULL);
    on_async(&m->async);  // What came before there was a loop to wake.
}
