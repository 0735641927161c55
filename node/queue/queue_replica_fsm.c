// SPDX-License-Identifier: Apache-2.0
// The queue's state machine under the host: fsm_ops (consensus.h), adding and removing replicas, listings.
//
// A new machine starts with settings that are the same everywhere and always; the real ones come by a CONFIGURE command
// that every new leader proposes if its record is newer (decision 2), so replicas made at different times agree.
//
// A queue that nobody has used yet and whose arguments say nothing has a plain state: nothing but a stamp and
// the version of its settings. Such a machine is not kept: it is made when a command comes, and given back
// when it is plain again.
#include "node/base/log.h"
#include "node/base/slab.h"
#include "node/queue/queue_parts.h"
#include <stdlib.h>

#define FIRST_SETTINGS {.max_length = -1, .max_length_bytes = -1, .delivery_limit = 20}
static const struct queue_settings first_settings = FIRST_SETTINGS;

static const struct queue_fsm plain_state = {.settings = FIRST_SETTINGS};

const struct queue_fsm *queue_replica_state(const struct queue_replica *r)
{
    return r->fsm ? r->fsm : &plain_state;
}

int64_t queue_replica_state_stamp(const struct queue_replica *r)
{
    return r->fsm ? r->fsm->stamp_ms : r->plain_stamp_ms;
}

static uint64_t state_version(const struct queue_replica *r)
{
    return r->fsm ? r->fsm->settings.metadata_version : r->plain_version;
}

struct queue_fsm *queue_replica_machine(struct queue_replica *r)
{
    if (!r->fsm) {
        r->fsm = mem_alloc(sizeof(*r->fsm));
        queue_fsm_init(r->fsm, &first_settings);
        r->fsm->settings.metadata_version = r->plain_version;
        r->fsm->stamp_ms = r->plain_stamp_ms;
    }
    return r->fsm;
}

static bool is_plain(const struct queue_fsm *f)
{
    const struct queue_settings *s = &f->settings, *first = &first_settings;
    if (s->metadata_version > UINT32_MAX) {
        return false;  // The replica keeps it as 32 bits.
    }
    return !f->busy && f->nodes_count == 0 && f->ready_count == 0 && f->unacked_count == 0 && !f->big &&
           !f->is_rejecting && !f->has_more && s->max_length == first->max_length &&
           s->max_length_bytes == first->max_length_bytes && s->delivery_limit == first->delivery_limit &&
           !s->is_reject_publish && !s->is_single_active;
}

// After a change: keeps a plain machine as what is particular about it.
static void settle(struct queue_replica *r)
{
    if (!r->fsm || r->is_restoring || !is_plain(r->fsm)) {
        return;
    }
    r->plain_stamp_ms = r->fsm->stamp_ms;
    r->plain_version = (uint32_t)r->fsm->settings.metadata_version;
    queue_fsm_deinit(r->fsm);
    free(r->fsm);
    r->fsm = NULL;
}

static void drop_wanted(struct queue_replica *r)
{
    free(r->wanted);
    r->wanted = NULL;
}

// After anything that may have changed the state's settings.
static void check_wanted(struct queue_replica *r)
{
    if (r->wanted && r->wanted->metadata_version <= state_version(r)) {
        drop_wanted(r);
    }
}

static void want(struct queue_replica *r, const struct queue_settings *settings)
{
    const uint64_t version = settings->metadata_version + 1;  // 0 is what no record has.
    if (version <= (r->wanted ? r->wanted->metadata_version : state_version(r))) {
        return;
    }
    if (!r->wanted) {
        r->wanted = mem_alloc(sizeof(*r->wanted));
    }
    *r->wanted = *settings;
    r->wanted->metadata_version = version;
}

static uint32_t apply(void *ctx, const struct entry *entries, uint32_t n)
{
    struct queue_replica *r = ctx;
    struct queue_effects *fx = &r->service->effects;
    for (uint32_t i = 0; i < n; i++) {
        const struct entry *e = &entries[i];
        r->applied = e->index;
        if (e->kind == RECORD_ENTRY) {
            struct queue_fsm *f = queue_replica_machine(r);
            uint32_t ignored = f->ignored;
            queue_effects_reset(fx);
            queue_fsm_apply(f, e->index, e->payload, r->leading ? fx : NULL);
            r->service->metrics.commands_ignored += f->ignored - ignored;
            check_wanted(r);
            if (r->leading) {
                queue_replica_effects(r, fx);
            }
        }
        // The first entry of its own term: everything committed before is in the state now.
        if (r->is_leader && !r->leading && r->handle && e->term == r->term) {
            queue_replica_lead_start(r);
        }
    }
    settle(r);
    if (r->leading) {
        queue_replica_mark(r);  // Answers and deliveries leave together in the turn that follows.
    }
    return n;
}

static void role(void *ctx, const struct consensus_status *status)
{
    struct queue_replica *r = ctx;
    queue_replica_role(r, status);
    if (status->is_amnesiac && r->service->config.lost) {
        r->service->config.lost(r->service->config.led_ctx, r->owner);
    }
}

static struct fsm_snapshot *snapshot_begin(void *ctx)
{
    struct queue_replica *r = ctx;
    struct queue_snapshot *s = queue_fsm_freeze(queue_replica_machine(r));
    settle(r);
    return (struct fsm_snapshot *)(void *)s;
}

static bool snapshot_chunk(struct fsm_snapshot *s, struct buf *to)
{
    return queue_snapshot_chunk((struct queue_snapshot *)(void *)s, to);
}

static void snapshot_live(struct fsm_snapshot *s, struct buf *out)
{
    queue_snapshot_live((struct queue_snapshot *)(void *)s, out);
}

static void snapshot_end(struct fsm_snapshot *s)
{
    queue_snapshot_free((struct queue_snapshot *)(void *)s);
}

static void restore_begin(void *ctx)
{
    struct queue_replica *r = ctx;
    queue_replica_lead_stop(r, 0, false);
    struct queue_restore *restore = map_get(&r->service->restores, r->group);
    if (!restore) {
        restore = mem_zalloc(sizeof(*restore));
        map_put(&r->service->restores, r->group, restore);
        r->is_restoring = true;
    } else {
        buf_deinit(&restore->rest);  // A load that was given up.
    }
    queue_replica_machine(r)->settings = first_settings;
    queue_restore_begin(restore, r->fsm);
}

static enum rc restore_chunk(void *ctx, struct span chunk)
{
    struct queue_replica *r = ctx;
    return queue_restore_chunk(map_get(&r->service->restores, r->group), chunk);
}

static enum rc restore_end(void *ctx, uint64_t index)
{
    struct queue_replica *r = ctx;
    struct queue_restore *restore = map_remove(&r->service->restores, r->group);
    enum rc rc = queue_restore_end(restore);
    free(restore);
    r->is_restoring = false;
    r->applied = index;
    check_wanted(r);
    settle(r);
    return rc;
}

static uint64_t size_estimate(void *ctx)
{
    struct queue_replica *r = ctx;
    return queue_fsm_size_estimate(queue_replica_state(r));
}

static uint64_t live_count(void *ctx)
{
    struct queue_replica *r = ctx;
    const struct queue_fsm *f = queue_replica_state(r);
    return f->ready_count + f->unacked_count;
}

const struct fsm_ops *queue_replica_fsm_ops(void)
{
    static const struct fsm_ops ops = {
        .version = QUEUE_FSM_VERSION,
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
        .live_count = live_count,
    };
    return &ops;
}

// ---- adding and removing -------------------------------------------------------------------------------------------

static void replica_free(struct queue_replica *r)
{
    map_remove(&r->service->replicas, r->group);
    if (r->is_restoring) {
        struct queue_restore *restore = map_remove(&r->service->restores, r->group);
        buf_deinit(&restore->rest);
        free(restore);
    }
    if (r->fsm) {
        queue_fsm_deinit(r->fsm);
        free(r->fsm);
    }
    drop_wanted(r);
    r->service->metrics.replicas--;
    slab_free(r, sizeof(*r));
}

enum rc queue_replica_add(struct queue_service *q, const struct queue_replica_spec *spec)
{
    if (map_get(&q->replicas, spec->target.group)) {
        return RC_EXISTS;
    }
    struct queue_replica *r = slab_zalloc(sizeof(*r));
    r->service = q;
    r->owner = spec->owner;
    r->group = spec->target.group;
    want(r, &spec->settings);
    map_put(&q->replicas, r->group, r);
    q->metrics.replicas++;
    struct group_spec group = {
        .group = r->group,
        .engine = "raft",
        .replica_id = spec->replica_id,
        .recovered = spec->recovered,
        .fsm = queue_replica_fsm_ops(),
        .fsm_ctx = r,
        .campaign_at_once = spec->campaign_at_once,
        .may_sleep = true,
    };
    group.initial.count = spec->target.members_count;
    memcpy(group.initial.members, spec->target.members, spec->target.members_count * sizeof(spec->target.members[0]));
    struct group *handle;
    enum rc rc = host_group_add(q->config.host, &group, &handle);
    if (rc != RC_OK) {
        replica_free(r);
        return rc;
    }
    r->handle = handle;
    struct consensus_status status;
    group_status(handle, &status);
    queue_replica_role(r, &status);  // What was said before we had the handle.
    return RC_OK;
}

void queue_replica_settings(struct queue_service *q, uint64_t group, const struct queue_settings *settings)
{
    struct queue_replica *r = map_get(&q->replicas, group);
    if (r) {
        want(r, settings);
        if (r->leading && r->wanted) {
            queue_replica_mark(r);
        }
    }
}

static void remember_deleted(struct queue_service *q, uint64_t group)
{
    if (map_count(&q->deleted) >= QUEUE_DELETED_GROUPS) {
        uint32_t pos = 0;
        uint64_t oldest;
        if (map_next(&q->deleted, &pos, &oldest, NULL)) {
            map_remove(&q->deleted, oldest);
        }
    }
    map_put(&q->deleted, group, q);
}

static void end(struct queue_replica *r, bool is_queue_deleted, bool is_data_deleted)
{
    queue_replica_lead_stop(r, 0, is_queue_deleted);
    r->is_leader = false;
    struct group *handle = r->handle;
    r->handle = NULL;
    host_group_remove(handle, is_data_deleted);
    replica_free(r);
}

void queue_replica_remove(struct queue_service *q, uint64_t group, bool is_deleted)
{
    struct queue_replica *r = map_get(&q->replicas, group);
    if (is_deleted) {
        remember_deleted(q, group);
    }
    if (r) {
        end(r, is_deleted, is_deleted);
    }
    if (is_deleted) {
        queue_link_deleted(q, group);
    }
}

void queue_replica_leave(struct queue_service *q, uint64_t group)
{
    struct queue_replica *r = map_get(&q->replicas, group);
    if (r) {
        log_info("queue group %llu left this node: its data here goes", (unsigned long long)group);
        end(r, false, true);
    }
}

struct group *queue_replica_group(struct queue_service *q, uint64_t group)
{
    struct queue_replica *r = map_get(&q->replicas, group);
    return r ? r->handle : NULL;
}

void *queue_replica_owner(struct queue_service *q, uint64_t group)
{
    struct queue_replica *r = map_get(&q->replicas, group);
    return r ? r->owner : NULL;
}

bool queue_replica_leads(struct queue_service *q, uint64_t group)
{
    struct queue_replica *r = map_get(&q->replicas, group);
    return r && (r->leading || queue_replica_poll_ready(r));
}

uint32_t queue_leading_count(const struct queue_service *q)
{
    return (uint32_t)q->metrics.leading;
}

uint32_t queue_leading_each(struct queue_service *q, uint32_t max, void (*each)(void *ctx, void *owner), void *ctx)
{
    uint32_t n = 0, count = queue_leading_count(q);
    while (n < max && n < count && !list_is_empty(&q->leading)) {
        struct queue_leading *l = list_entry(list_pop(&q->leading), struct queue_leading, in_service);
        list_add_tail(&q->leading, &l->in_service);
        each(ctx, l->replica->owner);
        n++;
    }
    return n;
}

// ---- listings ------------------------------------------------------------------------------------------------------

bool queue_replica_info(struct queue_service *q, uint64_t group, struct queue_info *info,
                        struct consensus_status *status)
{
    struct queue_replica *r = map_get(&q->replicas, group);
    if (!r) {
        return false;
    }
    const struct queue_fsm *f = queue_replica_state(r);
    uint64_t consumers = 0;
    if (f->busy) {
        list_each (l, &f->busy->consumers) {
            const struct queue_fsm_consumer *c = list_entry(l, struct queue_fsm_consumer, in_queue);
            consumers += c->id != 0 && !c->is_cancelled;
        }
    }
    *info = (struct queue_info){
        .ready = f->ready_count,
        .unacked = f->unacked_count,
        .consumers = consumers,
        .ready_bytes = f->ready_bytes,
        .unacked_bytes = f->unacked_bytes,
    };
    if (status) {
        group_status(r->handle, status);
    }
    return true;
}

void queue_replica_consumers(struct queue_service *q, uint64_t group,
                             void (*each)(void *ctx, const struct queue_consumer_info *c), void *ctx)
{
    struct queue_replica *r = map_get(&q->replicas, group);
    const struct queue_fsm *f = r ? queue_replica_state(r) : NULL;
    if (!f || !f->busy) {
        return;
    }
    list_each (l, &f->busy->consumers) {
        const struct queue_fsm_consumer *c = list_entry(l, struct queue_fsm_consumer, in_queue);
        if (c->id == 0 || c->is_cancelled) {
            continue;
        }
        struct queue_session_id id = c->session->id;
        struct buf channel = {0};
        buf_printf(&channel, "%u.%llu.%llu", id.node, (unsigned long long)id.incarnation,
                   (unsigned long long)id.counter);
        struct queue_consumer_info info = {
            .node_id = id.node,
            .tag = span_of(c->tag, c->tag_len),
            .prefetch = c->prefetch,
            .is_no_ack = c->is_no_ack,
            .is_active = !f->settings.is_single_active || f->busy->active == c,
            .priority = c->priority,
            .channel = buf_span(&channel),
        };
        each(ctx, &info);
        buf_deinit(&channel);
    }
}
