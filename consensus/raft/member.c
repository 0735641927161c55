// SPDX-License-Identifier: Apache-2.0
// Membership: one change at a time, in force as soon as its entry is in the log (P9), on every replica alike.
//
// A leader starts a change only when its term's no-op is applied (P10) and the change before is committed; so at most
// one change is uncommitted in any log, and one older configuration is enough to roll back to when it is truncated.
// New members come as learners and are promoted when they are nearly level, or keep pace. A configuration is stored only as long as
// its members.
#include "consensus/raft/state.h"
#include "node/base/mem.h"
#include "node/base/slab.h"
#include <stdlib.h>

struct config *raft_config_dup(const struct config *c)
{
    struct config *copy = mem_alloc(raft_config_size(c->count));
    config_copy(copy, c);
    return copy;
}

void raft_config_free(struct replica *r, struct config *c)
{
    if (c != (void *)r->first_config) {
        free(c);
    }
}

// Carries what is known of nodes and votes over to the positions of the new configuration.
static void remap_masks(struct replica *r, const struct config *to)
{
    uint16_t dead = 0;
    uint16_t granted = 0;
    for (uint32_t i = 0; i < to->count; i++) {
        for (uint32_t j = 0; j < r->config->count; j++) {
            const struct member *was = &r->config->members[j];
            if (was->node_id == to->members[i].node_id) {
                dead |= (uint16_t)((r->dead_mask >> j & 1) << i);
            }
            if (was->replica_id == to->members[i].replica_id) {
                granted |= (uint16_t)((r->granted_mask >> j & 1) << i);
            }
        }
    }
    r->dead_mask = dead;
    r->granted_mask = granted;
}

void raft_config_set(struct replica *r, const struct config *c)
{
    assert(c->count >= 1);
    assert(c->count <= LIMIT_MEMBERS);
    assert(config_voters(c) >= 1);
    remap_masks(r, c);
    raft_config_free(r, r->config_before);
    r->config_before = r->config;
    r->config = raft_config_dup(c);
    raft_config_settle(r);
}

void raft_config_roll_back(struct replica *r)
{
    assert(r->config->index > r->commit);
    assert(r->config_before != NULL);
    remap_masks(r, r->config_before);
    raft_config_free(r, r->config);
    r->config = r->config_before;
    r->config_before = NULL;
}

void raft_config_settle(struct replica *r)
{
    if (r->config_before != NULL && r->config->index <= r->commit) {
        raft_config_free(r, r->config_before);
        r->config_before = NULL;
    }
}

// A voter far behind would only slow commits down. Under load the end of the log runs ahead of every disk by more than
// RAFT_PROMOTE_LAG, the voters' too: then a learner is level that reaches within RAFT_ROUND_NS where the end was.
static bool is_level(struct replica *r, int at, uint64_t now_ns)
{
    struct peer *p = raft_peer(r, (uint32_t)at);
    if (p->state != PEER_REPLICATE || p->is_regressed) {
        return false;
    }
    const bool is_round = p->round.index != 0 && p->match >= p->round.index;
    if (p->match + RAFT_PROMOTE_LAG >= r->last || (is_round && now_ns - p->round.at <= RAFT_ROUND_NS)) {
        return true;
    }
    if (is_round || p->round.index == 0) {
        p->round = (struct mark){.index = r->last, .at = now_ns};
    }
    return false;
}

static enum rc apply_change(struct replica *r, const struct member_change *c, uint64_t now_ns, struct config *to)
{
    int at = raft_member_at(r, c->member.replica_id);
    switch (c->kind) {
    case MEMBER_ADD_LEARNER:
        if (c->member.replica_id == 0) {
            return RC_INVALID;
        }
        if (at >= 0 || config_find_node(to, c->member.node_id) != NULL) {
            return RC_EXISTS;
        }
        if (to->count == LIMIT_MEMBERS) {
            return RC_TOO_LARGE;
        }
        to->members[to->count] = c->member;
        to->members[to->count++].is_voter = false;
        return RC_OK;
    case MEMBER_PROMOTE: {
        if (at < 0) {
            return RC_NOT_FOUND;
        }
        if (to->members[at].is_voter || to->members[at].replica_id == r->id || config_voters(to) == LIMIT_VOTERS) {
            return RC_INVALID;
        }
        if (!is_level(r, at, now_ns)) {
            return RC_BUSY;
        }
        to->members[at].is_voter = true;
        return RC_OK;
    }
    case MEMBER_REMOVE:
        if (at < 0) {
            return RC_NOT_FOUND;
        }
        if (to->members[at].is_voter && config_voters(to) == 1) {
            return RC_INVALID;
        }
        to->count--;
        memmove(&to->members[at], &to->members[at + 1], (to->count - (uint32_t)at) * sizeof(to->members[0]));
        return RC_OK;
    }
    return RC_INVALID;
}

// Peers keep their progress under their new position.
static struct lead *lead_remap(struct replica *r, const struct config *to)
{
    struct lead *was = r->lead;
    struct lead *lead = raft_lead_alloc(r, to);
    const uint32_t count = lead->peers_count, self = lead->self;
    memcpy(lead, was, sizeof(*lead));
    lead->peers_count = count;
    lead->self = self;
    struct peer *p = lead->peers;
    for (uint32_t i = 0; i < count; i++) {
        int at = raft_member_at(r, to->members[i].replica_id);
        if (i == self) {
            continue;
        }
        *p++ = at >= 0 ? *raft_peer(r, (uint32_t)at) : (struct peer){.next = r->last + 1, .retry_at = RAFT_NEVER};
    }
    slab_free(was, raft_lead_size(was));
    return lead;
}

enum rc raft_change_members(struct replica *r, const struct member_change *c, uint64_t now_ns,
                            struct consensus_out *out)
{
    if (r->role != ROLE_LEADER) {
        return RC_NOT_LEADER;
    }
    if (r->applied < r->lead->term_first || r->config->index > r->commit || r->lead->transfer_to != 0) {
        return RC_BUSY;
    }
    struct config to;
    config_copy(&to, r->config);
    TRY(apply_change(r, c, now_ns, &to));
    to.index = r->last + 1;
    r->lead = lead_remap(r, &to);
    raft_config_set(r, &to);
    out->has_config = true;
    config_copy(&out->config, &to);
    out->append_index = to.index;
    out->append_term = r->hard.term;
    raft_log_extend(r, 1, r->hard.term);
    raft_mark(r, now_ns);
    return RC_OK;
}
