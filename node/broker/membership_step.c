// SPDX-License-Identifier: Apache-2.0
// The next step for one queue's members: record and configuration are compared and brought one step nearer to
// each other, then to what a request or the target size asks for. Which half-way states there are, and what
// follows: README.md.
#include "node/broker/membership.h"
#include "node/base/log.h"
#include "proto/broker.pb-c.h"

// ---- looking -----------------------------------------------------------------------------------------------------

static bool is_up(struct broker *b, uint32_t node_id)
{
    return broker_node_by_id(b, node_id) && host_node_is_alive(b->config.host, node_id);
}

// The node was forgotten, or lost its disk and has another id now. Ids are never given again and a node is
// known before it is made a member, so a node that this projection does not know (any more) has gone for good.
bool node_is_gone(struct broker *b, uint32_t node_id)
{
    return !broker_node_by_id(b, node_id);
}

int queue_place_of_node(const struct queue *q, uint32_t node_id)
{
    for (uint32_t i = 0; i < q->pub.target->members_count; i++) {
        if (q->pub.target->members[i].node_id == node_id) {
            return (int)i;
        }
    }
    return -1;
}

bool queue_member_is_joining(const struct queue *q, uint32_t i)
{
    return q->pub.joining >> i & 1;
}

bool queue_member_is_filling(const struct queue *q, uint32_t i)
{
    return q->pub.filling >> i & 1;
}

bool queue_member_wants_vote(const struct queue *q, uint32_t i)
{
    return !(q->pub.non_voters >> i & 1);
}

bool queue_member_is_lost(const struct queue *q, uint32_t i)
{
    return q->pub.lost >> i & 1;
}

static bool is_lost_replica(const struct queue *q, uint64_t replica_id)
{
    for (uint32_t i = 0; i < q->pub.target->members_count; i++) {
        if (q->pub.target->members[i].replica_id == replica_id) {
            return queue_member_is_lost(q, i);
        }
    }
    return false;
}

// A place of the record that nobody fills: its node is gone and the configuration has let go of its replica.
static bool is_vacant(struct broker *b, const struct queue *q, const struct config *config, uint32_t i)
{
    const struct member *m = &q->pub.target->members[i];
    return node_is_gone(b, m->node_id) && !config_find(config, m->replica_id);
}

// Without it, do the others that are up still make decisions?
static bool can_remove(struct broker *b, const struct queue *q, const struct config *config, uint64_t replica_id)
{
    uint32_t voters = 0, up = 0;
    for (uint32_t i = 0; i < config->count; i++) {
        const struct member *m = &config->members[i];
        if (m->is_voter && m->replica_id != replica_id) {
            voters++;
            up += is_up(b, m->node_id) && !is_lost_replica(q, m->replica_id);
        }
    }
    return voters > 0 && up >= voters / 2 + 1;
}

// A node that may get a new replica: the one that took the place of `instead_of` (0: nobody), if there is
// one, and no other; else the one with the fewest. 0: none now.
static uint32_t candidate(struct broker *b, const struct queue *q, uint32_t instead_of)
{
    const struct broker_node *heir = instead_of ? broker_node_successor(b, instead_of) : NULL;
    uint32_t best = 0, best_count = UINT32_MAX, pos = 0;
    for (struct node *n; (n = map_next(&b->nodes, &pos, NULL, NULL));) {
        const uint32_t id = n->pub.node_id, count = node_replica_count(b, id);
        if ((heir && heir->node_id != id) || queue_place_of_node(q, id) >= 0 || !is_up(b, id) ||
            (!heir && n->pub.is_draining)) {
            continue;
        }
        if (count < best_count) {
            best = id;
            best_count = count;
        }
    }
    return best;
}

// ---- writing the record ------------------------------------------------------------------------------------------

// The record's members, to be changed and written.
struct draft {
    uint32_t count;
    Warren__QueueMember members[LIMIT_VOTERS];
    bool is_announcing;  // One of them gets its id from the store.
};

static void draft_init(struct draft *d, const struct queue *q)
{
    *d = (struct draft){.count = q->pub.target->members_count};
    for (uint32_t i = 0; i < d->count; i++) {
        const struct member *m = &q->pub.target->members[i];
        warren__queue_member__init(&d->members[i]);
        d->members[i].replica_id = m->replica_id;
        d->members[i].node_id = m->node_id;
        d->members[i].is_joining = queue_member_is_joining(q, i);
        d->members[i].is_filling = queue_member_is_filling(q, i);
        d->members[i].is_non_voter = !queue_member_wants_vote(q, i);
        d->members[i].is_lost = queue_member_is_lost(q, i);
        d->members[i].is_vacant = q->pub.vacant >> i & 1;
    }
}

static void draft_drop(struct draft *d, uint32_t at)
{
    d->count--;
    memmove(&d->members[at], &d->members[at + 1], (d->count - at) * sizeof(d->members[0]));
}

// A new member at `at`, which may be the place of one that is gone.
static void draft_announce(struct draft *d, uint32_t at, uint32_t node_id, bool is_non_voter)
{
    assert(at < LIMIT_VOTERS && at <= d->count);
    d->count += at == d->count;
    warren__queue_member__init(&d->members[at]);
    d->members[at].node_id = node_id;
    d->members[at].is_joining = true;
    d->members[at].is_filling = !is_non_voter;
    d->members[at].is_non_voter = is_non_voter;
    d->is_announcing = true;
}

static void on_written(void *ctx, const struct meta_result *r)
{
    struct change *c = ctx;
    if (!change_come_back(c) || r->rc == RC_OK || r->rc == RC_CONFLICT) {
        return;  // Another's write: looked at afresh.
    }
    change_answer(c, r->rc == RC_NOT_FOUND ? RC_NOT_FOUND : RC_NO_QUORUM,
                  "the metadata store has no majority of its nodes; nothing was changed as far as this node "
                  "knows: start the missing nodes and try again");
    change_move(c, PLACE_LATER, LATER_MS);
}

static void record_command(const struct queue *q, struct draft *d, struct meta_command *m)
{
    Warren__QueueMember *members[LIMIT_VOTERS];
    for (uint32_t i = 0; i < d->count; i++) {
        members[i] = &d->members[i];
    }
    struct queue_target founding;
    queue_founding(q, &founding);
    uint32_t founders[LIMIT_VOTERS];
    for (uint32_t i = 0; i < founding.members_count; i++) {
        founders[i] = founding.members[i].node_id;
    }
    Warren__QueueRecord r = WARREN__QUEUE_RECORD__INIT;
    r.type = (char *)(uintptr_t)queue_type_name(q->pub.type);
    r.durable = q->pub.is_durable;
    r.arguments.data = (uint8_t *)(uintptr_t)q->pub.arguments.ptr;
    r.arguments.len = q->pub.arguments.len;
    r.n_member_nodes = founding.members_count;
    r.member_nodes = founders;
    r.n_members = d->count;
    r.members = members;
    r.announced_id = d->is_announcing ? UINT64_MAX : 0;  // Not 0, so that it has its place; the store writes
                                                         // the id there.
    struct buf payload = {0};
    buf_u64(&payload, q->pub.target->group);
    warren__queue_record__pack(&r, buf_extend(&payload, warren__queue_record__get_packed_size(&r)));
    struct meta_path path = path_queue(span_str(q->vhost->name), q->pub.name);
    meta_command_init(m);
    meta_put(m, &path, buf_span(&payload), META_IF_VERSION, q->version);
    if (d->is_announcing) {
        meta_allocate_ids(m, (uint32_t)payload.len - 8, 1);
    }
    buf_deinit(&payload);
}

void queue_lost_command(const struct queue *q, uint32_t at, struct meta_command *m)
{
    struct draft d;
    draft_init(&d, q);
    assert(at < d.count);
    d.members[at].is_lost = true;
    record_command(q, &d, m);
}

static enum step write_record(struct change *c, struct draft *d)
{
    struct broker *b = c->broker;
    struct meta_command m;
    record_command(c->queue, d, &m);
    change_move(c, PLACE_ASKING, 0);
    metastore_submit(b->config.metastore, b->config.worker, &m, STORE_MS, on_written, c);
    meta_command_deinit(&m);
    return STEP_ASKED;
}

// ---- proof -------------------------------------------------------------------------------------------------------

static void on_proven(void *ctx, enum rc rc)
{
    struct change *c = ctx;
    if (change_come_back(c) && rc != RC_OK) {
        c->proven_version = 0;
    }
}

// True if the configuration is known to hold all that was committed before the record's version was written.
static bool is_proven(struct change *c, const struct consensus_status *s)
{
    return c->proven_version == c->queue->version && c->proven_term == s->term;
}

static enum step prove(struct change *c, struct group *g, const struct consensus_status *s)
{
    c->proven_version = c->queue->version;
    c->proven_term = s->term;
    change_move(c, PLACE_ASKING, 0);
    group_read_barrier(g, PROOF_MS * NS_PER_MS, on_proven, c);
    return STEP_ASKED;
}

// ---- steps -------------------------------------------------------------------------------------------------------

static enum step propose(struct change *c, struct group *g, enum member_change_kind kind, const struct member *m)
{
    struct member_change change = {.kind = kind, .member = *m};
    const enum rc rc = group_change_members(g, &change);
    static const char *const words[] = {"adding", "promoting", "removing"};
    if (rc == RC_OK) {
        log_info("queue '%.*s': %s the replica on node %u", (int)c->queue->pub.name.len,
                 (const char *)c->queue->pub.name.ptr, words[kind], m->node_id);
        return STEP_SOON;
    }
    if (kind == MEMBER_PROMOTE && rc == RC_BUSY) {
        c->is_waiting = true;  // Not level yet.
        return STEP_NOTHING;
    }
    return rc == RC_BUSY ? STEP_SOON : STEP_LATER;
}

static enum step step_joining(struct change *c, struct group *g, const struct consensus_status *s, uint32_t i)
{
    struct broker *b = c->broker;
    struct queue *q = c->queue;
    const struct member *m = &q->pub.target->members[i];
    struct draft d;
    draft_init(&d, q);
    if (config_find(s->config, m->replica_id)) {
        d.members[i].is_joining = false;
        return write_record(c, &d);
    }
    // An earlier leader let its predecessor in while the record was about to let go of it: it would be in the way for ever.
    for (uint32_t k = 0; k < s->config->count; k++) {
        const struct member *former = &s->config->members[k];
        if (former->node_id == m->node_id && former->replica_id < m->replica_id && !former->is_voter) {
            return propose(c, g, MEMBER_REMOVE, former);
        }
    }
    if (is_up(b, m->node_id)) {
        return propose(c, g, MEMBER_ADD_LEARNER, m);
    }
    const bool is_over = node_is_gone(b, m->node_id) || membership_now(b) - c->seen_at >= ANNOUNCED_MS * NS_PER_MS;
    if (!is_over) {
        return STEP_SOON;
    }
    if (!is_proven(c, s)) {
        return prove(c, g, s);
    }
    draft_drop(&d, i);
    change_answer(c, RC_NOT_CONNECTED, "the node went down before it was let in");
    return write_record(c, &d);
}

// The configuration has no such member: it was removed. The record follows.
static enum step step_removed(struct change *c, struct group *g, const struct consensus_status *s, uint32_t i)
{
    struct broker *b = c->broker;
    struct queue *q = c->queue;
    const uint32_t node_id = q->pub.target->members[i].node_id;
    const bool is_gone = node_is_gone(b, node_id), is_lost = queue_member_is_lost(q, i);
    const uint32_t heir = is_gone ? candidate(b, q, node_id) : is_lost && is_up(b, node_id) ? node_id : 0;
    const bool is_vacated = heir == 0 && is_gone && !(q->pub.vacant >> i & 1) && !broker_node_successor(b, node_id);
    if ((is_gone || is_lost) && heir == 0 && !is_vacated) {
        return STEP_NOTHING;  // Its place stays, for a node that comes.
    }
    if (!is_proven(c, s)) {
        return prove(c, g, s);
    }
    struct draft d;
    draft_init(&d, q);
    if (is_vacated) {
        d.members[i].is_vacant = true;  // No voter, for who asks whether the queue lives without another member.
    } else if (heir != 0) {
        draft_announce(&d, i, heir, !queue_member_wants_vote(q, i));
    } else {
        draft_drop(&d, i);
    }
    return write_record(c, &d);
}

static enum step step_member(struct change *c, struct group *g, const struct consensus_status *s, uint32_t i)
{
    struct broker *b = c->broker;
    const struct member *m = &c->queue->pub.target->members[i];
    if (queue_member_is_joining(c->queue, i)) {
        return step_joining(c, g, s, i);
    }
    const struct member *in = config_find(s->config, m->replica_id);
    if (!in) {
        return step_removed(c, g, s, i);
    }
    if (!queue_member_is_lost(c->queue, i) && s->regressed_at >> (in - s->config->members) & 1) {
        struct draft d;
        draft_init(&d, c->queue);
        d.members[i].is_lost = true;  // It acknowledged what it does not have.
        return write_record(c, &d);
    }
    if (node_is_gone(b, m->node_id) || queue_member_is_lost(c->queue, i)) {
        return can_remove(b, c->queue, s->config, m->replica_id) ? propose(c, g, MEMBER_REMOVE, m) : STEP_NOTHING;
    }
    if (!in->is_voter && queue_member_wants_vote(c->queue, i) && is_up(b, m->node_id)) {
        return propose(c, g, MEMBER_PROMOTE, m);
    }
    if (in->is_voter && queue_member_is_filling(c->queue, i)) {
        struct draft d;
        draft_init(&d, c->queue);
        d.members[i].is_filling = false;
        return write_record(c, &d);
    }
    return STEP_NOTHING;
}

// ---- requests ----------------------------------------------------------------------------------------------------

static enum step announce(struct change *c, const struct consensus_status *s, uint32_t node_id, bool is_non_voter)
{
    struct queue *q = c->queue;
    uint32_t at = q->pub.target->members_count;
    for (uint32_t i = 0; i < q->pub.target->members_count; i++) {
        if (is_vacant(c->broker, q, s->config, i)) {
            at = i;
        }
    }
    if (at == LIMIT_VOTERS) {
        change_answer(c, RC_TOO_LARGE, "a queue has at most %d members", LIMIT_VOTERS);
        return STEP_NOTHING;
    }
    struct draft d;
    draft_init(&d, q);
    draft_announce(&d, at, node_id, is_non_voter);
    return write_record(c, &d);
}

static enum step request_add(struct change *c, const struct consensus_status *s)
{
    struct broker *b = c->broker;
    struct request *r = &c->request;
    const int at = queue_place_of_node(c->queue, r->what.node_id);
    r->is_done_before = r->has_started ? r->is_done_before : at >= 0;
    r->has_started = true;
    if (at >= 0) {
        const struct member *in = config_find(s->config, c->queue->pub.target->members[at].replica_id);
        if (!in || queue_member_is_joining(c->queue, (uint32_t)at) ||
            (r->what.how == MEMBER_VOTER && !in->is_voter && !r->is_done_before)) {
            return STEP_SOON;
        }
        change_answer(c, r->is_done_before ? RC_EXISTS : RC_OK, "%s",
                      r->is_done_before ? "the node has a replica already" : "");
        return STEP_NOTHING;
    }
    if (node_is_gone(b, r->what.node_id)) {
        change_answer(c, RC_NOT_FOUND, "the node is not a member of the cluster");
        return STEP_NOTHING;
    }
    if (!is_up(b, r->what.node_id)) {
        change_answer(c, RC_NOT_CONNECTED, "the node is not running");
        return STEP_NOTHING;
    }
    return announce(c, s, r->what.node_id, r->what.how == MEMBER_NON_VOTER);
}

// This node leads the queue and is to leave it: somebody else leads first, and removes it then.
static void hand_over(struct change *c, struct group *g, const struct consensus_status *s)
{
    struct broker *b = c->broker;
    for (uint32_t i = 0; i < s->config->count; i++) {
        const uint32_t at = (uint32_t)((c->queue->pub.target->group + i) % s->config->count);
        const struct member *m = &s->config->members[at];
        if (m->is_voter && m->node_id != b->config.node_id && is_up(b, m->node_id) && s->level_at >> at & 1 &&
            group_transfer(g, m->node_id) == RC_OK) {
            break;
        }
    }
    change_answer(c, RC_NOT_LEADER, "the lead is handed over first");
}

static enum step request_remove(struct change *c, struct group *g, const struct consensus_status *s)
{
    struct broker *b = c->broker;
    struct request *r = &c->request;
    const int at = queue_place_of_node(c->queue, r->what.node_id);
    if (at < 0) {
        change_answer(c, r->has_started ? RC_OK : RC_EXISTS, "%s", r->has_started ? "" : "the node has no replica");
        return STEP_NOTHING;
    }
    r->has_started = true;
    const struct member *m = &c->queue->pub.target->members[at];
    if (queue_member_is_joining(c->queue, (uint32_t)at) || !config_find(s->config, m->replica_id)) {
        return STEP_SOON;
    }
    const struct member *in = config_find(s->config, m->replica_id);
    if (s->config->count == 1 || (in->is_voter && config_voters(s->config) == 1)) {
        change_answer(c, RC_INVALID, "last_node");
        return STEP_NOTHING;
    }
    if (in->is_voter && !can_remove(b, c->queue, s->config, m->replica_id)) {
        change_answer(c, RC_NO_QUORUM, "without it the members that are up would be no majority");
        return STEP_NOTHING;
    }
    if (m->node_id == b->config.node_id) {
        hand_over(c, g, s);
        return STEP_NOTHING;
    }
    return propose(c, g, MEMBER_REMOVE, m);
}

// Members up to the target, one by one.
static enum step fill(struct change *c, const struct consensus_status *s)
{
    struct broker *b = c->broker;
    if (!c->wants_more || !b->config.is_reconciling) {
        return STEP_NOTHING;
    }
    uint32_t size = 0;
    for (uint32_t i = 0; i < c->queue->pub.target->members_count; i++) {
        size += !node_is_gone(b, c->queue->pub.target->members[i].node_id);
    }
    const uint32_t target = b->config.reconcile_target < LIMIT_VOTERS ? b->config.reconcile_target : LIMIT_VOTERS;
    const uint32_t node = size < target ? candidate(b, c->queue, 0) : 0;
    return node != 0 ? announce(c, s, node, false) : STEP_NOTHING;
}

enum step change_step(struct change *c)
{
    struct broker *b = c->broker;
    struct queue *q = c->queue;
    struct group *g = queue_replica_group(b->config.queues, q->pub.target->group);
    if (!g || !queue_replica_leads(b->config.queues, q->pub.target->group)) {
        change_answer(c, RC_NOT_LEADER, "this node does not lead the queue");
        return STEP_NOTHING;
    }
    if (c->request.done && membership_now(b) >= c->request.deadline) {
        change_answer(
            c, RC_TIMEOUT,
            "the change was not finished in time; what was begun is finished or taken back by itself");
    }
    if (c->seen_version != q->version) {
        c->seen_version = q->version;
        c->seen_at = membership_now(b);
    }
    struct consensus_status s;
    group_status(g, &s);
    if (b->is_resetting || s.config->index > s.commit) {
        return STEP_SOON;
    }
    c->is_waiting = false;
    enum step done = STEP_NOTHING;
    for (uint32_t i = 0; i < q->pub.target->members_count && done == STEP_NOTHING; i++) {
        done = step_member(c, g, &s, i);
    }
    if (done == STEP_NOTHING && c->request.done) {
        done = c->request.what.is_removal ? request_remove(c, g, &s) : request_add(c, &s);
    }
    if (done == STEP_NOTHING) {
        done = fill(c, &s);
    }
    if (done == STEP_NOTHING && c->is_waiting) {
        return membership_now(b) - c->seen_at < EAGER_MS * NS_PER_MS ? STEP_SOON : STEP_LATER;
    }
    return done;
}
