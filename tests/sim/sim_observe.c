// SPDX-License-Identifier: Apache-2.0
// Observed state machines (sim_observe.h).
//
// The chain is a running hash of what was applied, so that two histories differ visibly. A machine does not
// carry it in its snapshots; after a restore it is that of the history everybody agrees on, and the state
// itself is compared by its digest: after every DIGEST_EVERY-th entry, when a snapshot is begun, and when one
// was restored.
#include "node/base/crc32c.h"
#include "tests/sim/sim_observe.h"
#include <assert.h>
#include <stdlib.h>

enum { DIGEST_EVERY = 64 };

struct fsm_snapshot {
    const struct fsm_ops *real;
    struct fsm_snapshot *inner;
};

static struct {
    struct sim_node *node;
    struct list *observers;
    uint64_t (*digest)(const struct sim_observer *, uint64_t *);
    void (*committed)(struct sim *, uint32_t, const struct entry *);
} next;

void sim_observe_digest(struct sim_observer *o)
{
    struct sim *s = o->node->sim;
    struct sim_group *g = sim_group_of(s, o->group);
    uint64_t index = o->index;
    const uint64_t digest = o->is_restoring ? 0 : o->digest(o, &index) | 1;
    if (digest == 0 || index == 0) {
        return;
    }
    const void *known = map_get(&g->digests, index);
    if (!known) {
        map_put(&g->digests, index, (void *)(uintptr_t)digest);
    } else if (known != (void *)(uintptr_t)digest) {
        sim_violation(s, "node %u group %llu: its state at %llu is not that of another replica", o->node->id,
                      (unsigned long long)o->group, (unsigned long long)index);
    }
}

static void note(struct sim_observer *o, const struct entry *e)
{
    struct sim *s = o->node->sim;
    struct sim_group *g = sim_group_of(s, o->group);
    if (e->index != o->index + 1 || e->group != o->group) {
        sim_violation(s, "node %u group %llu: told to apply %llu behind %llu", o->node->id,
                      (unsigned long long)o->group, (unsigned long long)e->index,
                      (unsigned long long)o->index);
        return;
    }
    const uint32_t crc = crc32c(0, e->payload.ptr, e->payload.len);
    const uint64_t committed = g->committed;
    o->index = e->index;
    o->chain = hash_u64(o->chain ^ hash_u64(e->index) ^ e->term ^ (uint64_t)crc << 20 ^ e->kind);
    sim_check_applied(o->node, o->group, e->index, e->term, o->chain);
    if (g->committed > committed && !s->is_violated) {
        o->committed(s, sim_group_slot(s, o->group), e);
    }
}

static uint32_t apply(void *ctx, const struct entry *entries, uint32_t n)
{
    struct sim_observer *o = ctx;
    uint32_t done = 0, at = 0;
    while (at < n) {
        uint32_t count = 0;
        do {
            note(o, &entries[at + count]);
            count++;
        } while (at + count < n && entries[at + count - 1].index % DIGEST_EVERY != 0);
        if (o->node->sim->is_violated) {
            return n;
        }
        done += o->real->apply(o->ctx, entries + at, count);
        at += count;
        if (o->index % DIGEST_EVERY == 0) {
            sim_observe_digest(o);
        }
    }
    return done;
}

static void role(void *ctx, const struct consensus_status *status)
{
    const struct sim_observer *o = ctx;
    o->real->role(o->ctx, status);
}

static struct fsm_snapshot *snapshot_begin(void *ctx)
{
    struct sim_observer *o = ctx;
    struct fsm_snapshot *inner = o->real->snapshot_begin(o->ctx);
    if (!inner) {
        return NULL;
    }
    sim_observe_digest(o);
    struct fsm_snapshot *f = mem_alloc(sizeof(*f));
    *f = (struct fsm_snapshot){.real = o->real, .inner = inner};
    return f;
}

static bool snapshot_chunk(struct fsm_snapshot *f, struct buf *to)
{
    return f->real->snapshot_chunk(f->inner, to);
}

static void snapshot_live(struct fsm_snapshot *f, struct buf *out)
{
    f->real->snapshot_live(f->inner, out);
}

static void snapshot_end(struct fsm_snapshot *f)
{
    f->real->snapshot_end(f->inner);
    free(f);
}

static void restore_begin(void *ctx)
{
    struct sim_observer *o = ctx;
    o->is_restoring = true;
    o->real->restore_begin(o->ctx);
}

static enum rc restore_chunk(void *ctx, struct span chunk)
{
    const struct sim_observer *o = ctx;
    return o->real->restore_chunk(o->ctx, chunk);
}

static enum rc restore_end(void *ctx, uint64_t index)
{
    struct sim_observer *o = ctx;
    struct sim *s = o->node->sim;
    struct sim_group *g = sim_group_of(s, o->group);
    const enum rc rc = o->real->restore_end(o->ctx, index);
    if (rc != RC_OK) {
        sim_violation(s, "node %u group %llu: a snapshot of %llu is refused: %s", o->node->id,
                      (unsigned long long)o->group, (unsigned long long)index, rc_text(rc));
    } else if (index > g->committed) {
        sim_violation(s, "node %u group %llu: a snapshot of %llu, committed is %llu", o->node->id,
                      (unsigned long long)o->group, (unsigned long long)index, (unsigned long long)g->committed);
    } else {
        o->is_restoring = false;
        o->index = index;
        memcpy(&o->chain, g->chain.ptr + (index - 1) * 8, 8);
        sim_observe_digest(o);
    }
    return rc;
}

static uint64_t size_estimate(void *ctx)
{
    const struct sim_observer *o = ctx;
    const uint64_t bytes = o->real->size_estimate(o->ctx);
    return o->node->sim->seed % 2 == 0 ? bytes : bytes / 32;  // Every other seed: snapshots more often than they pay.
}

static uint64_t live_count(void *ctx)
{
    const struct sim_observer *o = ctx;
    return o->real->live_count(o->ctx);
}

void sim_observe_begin(struct sim_node *n, struct list *observers,
                       uint64_t (*digest)(const struct sim_observer *, uint64_t *),
                       void (*committed)(struct sim *, uint32_t, const struct entry *))
{
    next.node = n;
    next.observers = observers;
    next.digest = digest;
    next.committed = committed;
}

void sim_observe_forget(struct list *observers, uint64_t group)
{
    struct sim_observer *o = sim_observe_find(observers, group);
    if (o) {
        o->group = 0;  // Its host may still hold it.
    }
}

void sim_observe_end(void)
{
    assert(!next.node);  // It was used.
}

struct sim_observer *sim_observe_find(struct list *observers, uint64_t group)
{
    list_each (l, observers) {
        struct sim_observer *o = list_entry(l, struct sim_observer, link);
        if (o->group == group) {
            return o;
        }
    }
    return NULL;
}

void sim_observe_free(struct list *observers)
{
    struct list *l;
    while ((l = list_pop(observers)) != NULL) {
        free(list_entry(l, struct sim_observer, link));
    }
}

enum rc __real_host_group_add(struct host *h, const struct group_spec *spec, struct group **out);
enum rc __wrap_host_group_add(struct host *h, const struct group_spec *spec, struct group **out);

enum rc __wrap_host_group_add(struct host *h, const struct group_spec *spec, struct group **out)
{
    if (!next.node) {
        return __real_host_group_add(h, spec, out);
    }
    struct sim_observer *o = mem_zalloc(sizeof(*o));
    *o = (struct sim_observer){.node = next.node,
                               .group = spec->group,
                               .real = spec->fsm,
                               .ctx = spec->fsm_ctx,
                               .digest = next.digest,
                               .committed = next.committed};
    o->ops = (struct fsm_ops){
        .version = spec->fsm->version,
        .apply = apply,
        .role = role,
        .snapshot_begin = snapshot_begin,
        .snapshot_chunk = snapshot_chunk,
        .snapshot_live = snapshot_live,
        .snapshot_end = snapshot_end,
        .restore_begin = restore_begin,
        .restore_chunk = restore_chunk,
        .restore_end = restore_end,
        .size_estimate = size_estimate,
        .live_count = spec->fsm->live_count ? live_count : NULL,
    };
    list_add_tail(next.observers, &o->link);
    next.node = NULL;
    struct group_spec observed = *spec;
    observed.fsm = &o->ops;
    observed.fsm_ctx = o;
    return __real_host_group_add(h, &observed, out);
}
