// SPDX-License-Identifier: Apache-2.0
// Applying: committed entries that are durable here go to the state machine, in order, each once.
//
// Entries in memory are passed in batches straight from the arena. If the next one is not in memory the group is
// catching up: a cold read brings the next stretch, is applied when it comes, and so on. `handed` is what the
// machine was given; a machine on another thread applies later and says so (group_applied), and is never more than
// HOST_APPLY_AHEAD entries behind.
//
// The configuration at the applied index is needed for snapshots. It is the engine's, unless a later one was
// appended and is not applied yet: only then a copy of the older one is kept.
#include "consensus/host/host_core.h"
#include <assert.h>
#include <stdlib.h>

// ---- configuration at the applied index ----------------------------------------------------------------------------

static struct config *applied_make(struct group *g)
{
    struct group_work *w = group_work(g);
    if (w->config_applied == NULL) {
        w->config_applied = mem_alloc(sizeof(struct config));
    }
    return w->config_applied;
}

void host_config_forget(struct group *g)
{
    if (g->work) {
        free(g->work->config_applied);
        g->work->config_applied = NULL;
    }
}

void group_config_before(struct group *g)
{
    struct consensus_status st;
    g->ops->status(g->replica, &st);
    if (st.config->index <= g->handed) {
        // The engine's is the applied one now, and will not be in a moment.
        config_copy(applied_make(g), st.config);
    }
    assert(g->work && g->work->config_applied != NULL);
}

const struct config *group_config_applied(struct group *g, struct consensus_status *st)
{
    g->ops->status(g->replica, st);
    if (st->config->index <= g->handed) {
        host_config_forget(g);
        return st->config;
    }
    assert(g->work && g->work->config_applied != NULL);
    return g->work->config_applied;
}

static void config_applied_now(struct group *g, const struct entry *e)
{
    struct consensus_status st;
    g->ops->status(g->replica, &st);
    if (st.config->index == e->index) {
        host_config_forget(g);
    } else if (st.config->index > e->index) {
        struct config c;
        const enum rc rc = config_decode(e->payload, &c);
        assert(rc == RC_OK);  // Decoded when it was appended.
        c.index = e->index;
        *applied_make(g) = c;
    }
}

// ---- giving entries to the machine ---------------------------------------------------------------------------------

// The machine has applied up to `index`.
void host_apply_done(struct group *g, uint64_t index)
{
    struct consensus_out out;
    consensus_out_reset(&out);
    g->ops->applied(g->replica, index, host_now(g->host), &out);
    group_execute(g, &out, span_of(NULL, 0), 0);
    host_read_applied(g, index);
}

static void give(struct group *g, const struct entry *entries, uint32_t n)
{
    assert(n > 0 && entries[0].index == g->handed + 1);
    for (uint32_t i = 0; i < n; i++) {
        if (entries[i].kind == RECORD_CONFIG) {
            config_applied_now(g, &entries[i]);
        }
        struct group_work *w = g->work;
        if (w && entries[i].index >= w->proposed_first) {
            const uint64_t size = record_size((uint32_t)entries[i].payload.len);
            w->uncommitted -= size < w->uncommitted ? size : w->uncommitted;
        }
    }
    const uint64_t before = g->handed;
    g->handed += n;
    g->host->metrics.applied += n;
    const uint32_t applied = g->fsm->apply(g->fsm_ctx, entries, n);
    assert(applied <= n);
    if (applied > 0 && !group_is_gone(g)) {
        host_apply_done(g, before + applied);
    }
}

void host_apply_group(struct group *g)
{
    struct host *h = g->host;
    struct entry batch[HOST_APPLY_BATCH];
    uint32_t given = 0;
    while (!(g->flags & (GROUP_ASLEEP | GROUP_LOADING | GROUP_INSTALLING | GROUP_COLD | GROUP_REMOVED | GROUP_FAILED |
                         GROUP_LOST))) {
        struct consensus_status st;
        g->ops->status(g->replica, &st);
        const uint64_t to = st.commit < st.durable ? st.commit : st.durable;
        if (g->handed >= to || g->handed - st.applied >= HOST_APPLY_AHEAD) {
            break;
        }
        if (given >= HOST_APPLY_TURN) {
            group_ready(g, GROUP_APPLY);
            break;
        }
        uint32_t n = 0;
        enum rc rc = RC_OK;
        while (n < HOST_APPLY_BATCH && g->handed + n < to) {
            rc = glog_get(g->log, g->handed + n + 1, &batch[n]);
            if (rc != RC_OK) {
                break;
            }
            n++;
        }
        if (n > 0) {
            give(g, batch, n);
            given += n;
        } else if (rc == RC_COLD) {
            host_cold_start(g, h->config.node_id, 0, g->handed + 1, to, HOST_COLD_BYTES);
        } else {
            group_fail(g, rc, "a committed entry is missing");
        }
    }
    if (given > 0 && !group_is_gone(g)) {
        host_snapshot_consider(g);
    }
}

// ---- cold reads ----------------------------------------------------------------------------------------------------

struct cold_read {
    struct glog_read read;
    struct group *group;  // Holds a reference.
    uint32_t node;        // For whom: our own node is the state machine.
    uint64_t replica;
    bool is_first;        // Of the machine's, which has no snapshot: counted in host.restores.
    uint64_t indexes[HOST_COLD_ENTRIES];
};

// Applies what was read, as far as it still fits.
static void apply_read(struct group *g, struct glog_read *r)
{
    g->flags &= (uint16_t)~GROUP_COLD;
    if (g->flags & (GROUP_INSTALLING | GROUP_LOADING | GROUP_LOST)) {
        return;  // A snapshot takes the place of these entries; or this read has found damage.
    }
    if (r->indexes[0] != g->handed + 1) {
        group_ready(g, GROUP_APPLY);  // A snapshot has taken their place, and is loaded already.
        return;
    }
    if (r->read_count == 0) {
        group_fail(g, r->rc == RC_OK ? RC_NOT_FOUND : r->rc, "a committed entry cannot be read");
        return;
    }
    struct span left = buf_span(&r->bytes);
    struct entry batch[HOST_APPLY_BATCH];
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->read_count && !group_is_gone(g); i++) {
        struct record_disk d;
        uint64_t size;
        const enum rc rc = record_peek(left, &d, &size);
        assert(rc == RC_OK);
        if (d.index == g->handed + n + 1) {
            batch[n++] = (struct entry){
                .group = d.group,
                .index = d.index,
                .term = d.term,
                .kind = d.kind,
                .flags = d.flags,
                .aux = d.aux,
                .payload = span_of(left.ptr + RECORD_HEADER_BYTES, d.len),
            };
        }
        left = span_of(left.ptr + size, left.len - (size_t)size);
        if (n == HOST_APPLY_BATCH || (n > 0 && i + 1 == r->read_count)) {
            give(g, batch, n);
            n = 0;
        }
    }
    if (!group_is_gone(g)) {
        host_snapshot_consider(g);
    }
    group_ready(g, GROUP_APPLY);
}

static void cold_done(struct glog_read *r)
{
    struct cold_read *c = container_of(r, struct cold_read, read);
    struct group *g = c->group;
    struct host *h = g->host;
    if (c->node != h->config.node_id) {
        struct peer *p = host_peer(h, c->node);
        assert(g->work);  // Kept while `feeding` has a bit.
        g->work->feeding &= ~(1ull << p->slot);
        assert(p->feeds > 0);
        p->feeds--;
        p->is_woken = p->is_woken || !list_is_empty(&p->blocked);
    } else {
        h->restores -= c->is_first;
    }
    if (!group_is_gone(g) && !h->is_failed) {
        if (c->node == h->config.node_id) {
            apply_read(g, r);
        } else {
            host_send_fed(g, host_peer(h, c->node), c->replica, r);
        }
    }
    buf_deinit(&r->bytes);
    group_unref(g);
    free(c);
}

// Reads first..last (as far as the limits go) from disk, for the state machine or, if `node` is another, a follower.
void host_cold_start(struct group *g, uint32_t node, uint64_t replica, uint64_t first, uint64_t last, size_t bytes_max)
{
    assert(last >= first);
    struct cold_read *c = mem_zalloc(sizeof(*c));
    c->group = g;
    c->node = node;
    c->replica = replica;
    uint32_t n = 0;
    while (n < HOST_COLD_ENTRIES && first + n <= last) {
        c->indexes[n] = first + n;
        n++;
    }
    c->read = (struct glog_read){.group = g->id,
                                 .indexes = c->indexes,
                                 .indexes_count = n,
                                 .bytes_max = bytes_max,
                                 .done = cold_done,
                                 .owner = c};
    buf_init(&c->read.bytes);
    group_ref(g);
    if (node == g->host->config.node_id) {
        g->flags |= GROUP_COLD;
        c->is_first = first == 1;
        g->host->restores += c->is_first;
    } else {
        struct peer *p = host_peer(g->host, node);
        group_work(g)->feeding |= 1ull << p->slot;
        p->feeds++;
    }
    g->host->metrics.cold_reads++;
    glog_read_start(g->log, &c->read);
}
