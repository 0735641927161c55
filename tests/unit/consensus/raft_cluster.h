// SPDX-License-Identifier: Apache-2.0
// A cluster of replicas of one group in memory, for the tests of the engines: a disk per node that completes when
// told to, packets that arrive when told to, and an omniscient checker of the protocol's promises.
//
// It does for each replica what the host does, in the same order: hard state, truncation, entries and gated messages
// go through one queue to the disk; messages without a gate leave at once; entries are applied once committed
// and durable.
#pragma once
#include "consensus/raft/raft.h"
#include "node/base/mem.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

enum { CL_NODES = 8, CL_TERMS = 1 << 16 };
enum cl_kind { CL_ENTRY, CL_NOOP, CL_CONFIG };

struct cl_ent {
    uint64_t term, value;
    uint32_t config;  // Number of a configuration in the cluster's list; 0 none.
    uint8_t kind;
};
struct cl_log {  // Entries 1..last; what a snapshot covers is kept for the checker only.
    struct cl_ent *at;
    uint64_t last, cap;
};
struct cl_packet {
    struct consensus_msg m;
    bool is_snapshot;  // m.index, m.index_term; ents = everything up to it.
    struct config config;
    struct cl_ent *ents;
    uint64_t ents_count;
    uint64_t due;
    uint32_t from_node, to_node;
    uint64_t number;
};
enum cl_wal_kind { WAL_HARD, WAL_TRUNCATE, WAL_ENTRY, WAL_PACKET, WAL_SNAPSHOT };
struct cl_wal {
    enum cl_wal_kind kind;
    struct hard_state hard;
    uint64_t index, epoch;
    struct cl_ent ent;
    struct cl_packet *packet;
};
struct cl_node {
    struct replica *r;  // NULL: crashed.
    uint64_t replica_id;
    bool is_member;     // Has ever been set up.
    bool is_amnesiac;
    bool is_sync;       // The disk completes at once.
    struct cl_log mem, disk;
    struct hard_state disk_hard;
    struct hard_state hard;  // As decided, on disk or not.
    uint64_t snapshot, snapshot_term;
    struct config snapshot_config;
    struct cl_wal *wal;
    uint32_t wal_count, wal_cap;
    uint64_t applied, commit_seen;
    uint64_t reads_done;   // Barriers answered,
    uint64_t reads_failed;
    uint64_t read_index;   // the last at this index.
    enum rc last_rc;
};
struct cluster {
    const struct consensus_ops *ops;
    uint32_t count;
    struct cl_node nodes[CL_NODES + 1];
    uint64_t now;
    uint64_t seed;
    struct cl_packet **packets;
    uint32_t packets_count, packets_cap;
    uint64_t packets_number;
    uint64_t value;
    struct config configs[4096];
    uint32_t configs_count;
    struct cl_log committed;  // What any replica has ever taken for committed.
    uint64_t *term_leader;    // By term.
    struct config initial;
    void (*on_packet)(struct cluster *c, struct cl_packet *p);  // May set due, or drop by due = UINT64_MAX.
    bool is_sync;             // Default for new nodes.
    uint64_t elections, truncations, snapshots;
    struct { uint64_t id, floor; } reads[256];  // Outstanding barriers by id % 256: what must be seen at least.
};

// Check's own assertions write a mark to the runner each time they hold, far too often for loops like these.
#define CL_REQUIRE(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            /* The seed repeats it: RAFT_SEED=n. */                                                \
            ck_abort_msg("seed %llu: not so: %s", (unsigned long long)c->seed, #condition);        \
        }                                                                                          \
    } while (0)

static inline void cl_log_set(struct cl_log *l, uint64_t index, struct cl_ent e)
{
    if (index >= l->cap) {
        l->cap = index * 2 + 64;
        l->at = mem_realloc(l->at, l->cap * sizeof(*l->at));
    }
    l->at[index] = e;
}

// ---- the checker -------------------------------------------------------------------------------------------------

static inline void cl_status(struct cluster *c, uint32_t i, struct consensus_status *st)
{
    c->ops->status(c->nodes[i].r, st);
}

static inline void cl_fail(struct cluster *c, const char *what, uint64_t a, uint64_t b)
{
    ck_abort_msg("seed %llu: %s (%llu, %llu)", (unsigned long long)c->seed, what, (unsigned long long)a,
                 (unsigned long long)b);
}

static inline uint32_t cl_node_of(const struct cluster *c, uint64_t replica_id)
{
    for (uint32_t i = 1; i <= c->count; i++) {
        if (c->nodes[i].is_member && c->nodes[i].replica_id == replica_id) {
            return i;
        }
    }
    return 0;
}

// What a leader calls committed is on the disks of a majority of its configuration.
static inline void cl_check_majority(struct cluster *c, uint32_t i, uint64_t index, const struct config *config)
{
    uint32_t have = 0;
    for (uint32_t k = 0; k < config->count; k++) {
        uint32_t n = cl_node_of(c, config->members[k].replica_id);
        if (config->members[k].is_voter && n != 0 && c->nodes[n].disk.last >= index &&
            c->nodes[n].disk.at[index].term == c->nodes[i].mem.at[index].term) {
            have++;
        }
    }
    if (have <= config_voters(config) / 2) {
        cl_fail(c, "committed without a majority of disks", index, have);
    }
}

static inline void cl_check_node(struct cluster *c, uint32_t i)
{
    struct cl_node *n = &c->nodes[i];
    if (n->r == NULL) {
        return;
    }
    c->ops->check(n->r);
    struct consensus_status st;
    cl_status(c, i, &st);
    if (st.last != n->mem.last) {
        cl_fail(c, "engine and log disagree about the last index", st.last, n->mem.last);
    }
    if (st.commit < n->commit_seen) {
        cl_fail(c, "commit fell", st.commit, n->commit_seen);
    }
    for (uint64_t at = n->commit_seen + 1; at <= st.commit; at++) {
        if (at <= c->committed.last) {
            if (c->committed.at[at].term != n->mem.at[at].term || c->committed.at[at].value != n->mem.at[at].value) {
                cl_fail(c, "two replicas committed different entries", at, i);
            }
        } else {
            CL_REQUIRE((at) == (c->committed.last + 1));
            if (st.role == ROLE_LEADER && at == st.commit && c->ops->traits.commit_is_synced) {
                cl_check_majority(c, i, at, st.config);
            }
            cl_log_set(&c->committed, at, n->mem.at[at]);
            c->committed.last = at;
        }
    }
    n->commit_seen = st.commit;
    if (st.role == ROLE_LEADER) {
        CL_REQUIRE((st.term) < (CL_TERMS));
        if (c->term_leader[st.term] == 0) {
            c->term_leader[st.term] = n->replica_id;
            c->elections++;
            for (uint64_t at = 1; at <= c->committed.last; at++) {
                if (at > n->mem.last || n->mem.at[at].term != c->committed.at[at].term) {
                    cl_fail(c, "a leader lacks a committed entry", at, st.term);
                }
            }
        } else if (c->term_leader[st.term] != n->replica_id) {
            cl_fail(c, "two leaders in one term", st.term, n->replica_id);
        }
        if (n->is_amnesiac) {
            cl_fail(c, "an amnesiac replica leads", st.term, i);
        }
    }
}

// Log matching: where two logs have the same term at an index, everything before is equal too.
static inline void cl_check_matching(struct cluster *c)
{
    for (uint32_t a = 1; a <= c->count; a++) {
        for (uint32_t b = a + 1; b <= c->count; b++) {
            const struct cl_log *x = &c->nodes[a].mem;
            const struct cl_log *y = &c->nodes[b].mem;
            uint64_t at = x->last < y->last ? x->last : y->last;
            while (at > 0 && x->at[at].term != y->at[at].term) {
                at--;
            }
            for (; at > 0; at--) {
                if (x->at[at].term != y->at[at].term || x->at[at].value != y->at[at].value) {
                    cl_fail(c, "logs with a common entry differ before it", at, a * 10 + b);
                }
            }
        }
    }
}

// ---- packets -----------------------------------------------------------------------------------------------------

static inline void cl_packet_free(struct cl_packet *p)
{
    free(p->ents);
    free(p);
}

static inline void cl_packet_add(struct cluster *c, struct cl_packet *p)
{
    p->due = c->now;
    p->number = ++c->packets_number;
    p->to_node = cl_node_of(c, p->m.to);
    // P3: what is said of a term or a vote is on the speaker's disk.
    const struct hard_state *said = &c->nodes[p->from_node].disk_hard;
    CL_REQUIRE(p->m.term - (p->m.type == MSG_PREVOTE) <= said->term);
    CL_REQUIRE(p->m.type != MSG_VOTE || p->m.term < said->term || said->vote == p->m.from);
    CL_REQUIRE(p->m.type != MSG_VOTE_REPLY || p->m.is_rejected || p->m.term < said->term || said->vote == p->m.to);
    if (p->to_node == 0) {
        cl_packet_free(p);
        return;
    }
    if (c->on_packet != NULL) {
        c->on_packet(c, p);
    }
    if (p->due == UINT64_MAX) {
        cl_packet_free(p);
        return;
    }
    if (c->packets_count == c->packets_cap) {
        c->packets_cap = c->packets_cap * 2 + 16;
        c->packets = mem_realloc(c->packets, c->packets_cap * sizeof(*c->packets));
    }
    c->packets[c->packets_count++] = p;
}

static inline struct cl_packet *cl_packet_take(struct cluster *c, uint32_t k)
{
    struct cl_packet *p = c->packets[k];
    memmove(&c->packets[k], &c->packets[k + 1], (c->packets_count - k - 1) * sizeof(*c->packets));
    c->packets_count--;
    return p;
}

static inline struct cl_packet *cl_packet_new(uint32_t from_node, const struct consensus_msg *m)
{
    struct cl_packet *p = mem_zalloc(sizeof(*p));
    p->m = *m;
    p->from_node = from_node;
    return p;
}

static inline struct cl_packet *cl_packet_dup(const struct cl_packet *p)
{
    struct cl_packet *d = mem_alloc(sizeof(*d));
    *d = *p;
    d->ents = NULL;
    if (p->ents_count > 0) {
        d->ents = mem_alloc(p->ents_count * sizeof(*p->ents));
        memcpy(d->ents, p->ents, p->ents_count * sizeof(*p->ents));
    }
    return d;
}

// ---- what the host does ------------------------------------------------------------------------------------------

static inline void cl_out(struct cluster *c, uint32_t i, const struct consensus_out *out, const struct cl_packet *in);

static inline void cl_wal_push(struct cl_node *n, struct cl_wal w)
{
    if (n->wal_count == n->wal_cap) {
        n->wal_cap = n->wal_cap * 2 + 16;
        n->wal = mem_realloc(n->wal, n->wal_cap * sizeof(*n->wal));
    }
    n->wal[n->wal_count++] = w;
}

static inline void cl_append(struct cluster *c, uint32_t i, uint64_t index, struct cl_ent e)
{
    struct cl_node *n = &c->nodes[i];
    CL_REQUIRE((index) == (n->mem.last + 1));
    struct consensus_status st;
    cl_status(c, i, &st);
    cl_log_set(&n->mem, index, e);
    n->mem.last = index;
    cl_wal_push(n, (struct cl_wal){.kind = WAL_ENTRY, .index = index, .epoch = st.log_epoch, .ent = e});
}

// What the leader wants to send: taken together now, on its way when it was sent. At most `entries_max` entries.
static inline struct cl_packet *cl_packet_begin(struct cluster *c, uint32_t i, const struct consensus_send *s, uint32_t entries_max)
{
    struct cl_node *n = &c->nodes[i];
    struct cl_packet *p = cl_packet_new(i, &s->msg);
    if (s->kind == SEND_SNAPSHOT) {
        p->is_snapshot = true;
        p->m.index = n->snapshot;
        p->m.index_term = n->snapshot_term;
        config_copy(&p->config, &n->snapshot_config);
        p->ents_count = n->snapshot + 1;
        p->ents = mem_alloc(p->ents_count * sizeof(*p->ents));
        memcpy(p->ents, n->mem.at, p->ents_count * sizeof(*p->ents));
        c->snapshots++;
        return p;
    }
    for (uint64_t last = s->msg.index; last < s->last && p->m.count < entries_max; last++) {
        uint64_t term = c->ops->term_at(n->r, last + 1);
        if (p->m.runs_count == 0 || p->m.runs[p->m.runs_count - 1].term != term) {
            if (p->m.runs_count == CONSENSUS_TERM_RUNS) {
                break;
            }
            p->m.runs[p->m.runs_count++] = (struct term_run){.first = last + 1, .term = term};
        }
        p->m.count++;
    }
    p->ents_count = p->m.count;
    if (p->m.count > 0) {
        p->ents = mem_alloc(p->ents_count * sizeof(*p->ents));
        memcpy(p->ents, &n->mem.at[s->msg.index + 1], p->ents_count * sizeof(*p->ents));
    }
    return p;
}

static inline void cl_packet_sent(struct cluster *c, uint32_t i, uint32_t k, struct cl_packet *p)
{
    const uint64_t last = p->is_snapshot ? 0 : p->m.index + p->m.count;
    c->ops->sent(c->nodes[i].r, k, last, c->now);
    cl_packet_add(c, p);
}

// Sends everything the leader wants to send, at most `entries_max` entries in one message.
static inline void cl_send(struct cluster *c, uint32_t i, uint32_t entries_max)
{
    struct cl_node *n = &c->nodes[i];
    if (n->r == NULL) {
        return;
    }
    struct consensus_status st;
    cl_status(c, i, &st);
    for (uint32_t k = 0; st.role == ROLE_LEADER && k < st.config->count; k++) {
        for (uint32_t guard = 0;; guard++) {
            CL_REQUIRE((guard) < (10000));
            struct consensus_send s;
            c->ops->next_send(n->r, k, &s);
            if (s.kind == SEND_NOTHING) {
                break;
            }
            cl_packet_sent(c, i, k, cl_packet_begin(c, i, &s, entries_max));
        }
    }
}

static inline void cl_apply(struct cluster *c, uint32_t i)
{
    struct cl_node *n = &c->nodes[i];
    struct consensus_status st;
    cl_status(c, i, &st);
    uint64_t to = st.commit < st.durable ? st.commit : st.durable;
    if (to > st.applied) {
        n->applied = to;
        struct consensus_out out;
        c->ops->applied(n->r, to, c->now, &out);
        cl_out(c, i, &out, NULL);
    }
}

// Completes the first `items` items in the disk's queue as one batch.
static inline void cl_disk(struct cluster *c, uint32_t i, uint32_t items)
{
    struct cl_node *n = &c->nodes[i];
    uint32_t count = items < n->wal_count ? items : n->wal_count;
    if (count == 0) {
        return;
    }
    struct cl_wal *done = mem_alloc(count * sizeof(*done));
    memcpy(done, n->wal, count * sizeof(*done));
    memmove(n->wal, n->wal + count, (n->wal_count - count) * sizeof(*n->wal));
    n->wal_count -= count;
    for (uint32_t k = 0; k < count; k++) {  // First all is on disk,
        if (done[k].kind == WAL_HARD) {
            n->disk_hard = done[k].hard;
        } else if (done[k].kind == WAL_TRUNCATE) {
            n->disk.last = done[k].index - 1;
        } else if (done[k].kind == WAL_ENTRY) {
            CL_REQUIRE((done[k].index) == (n->disk.last + 1));
            cl_log_set(&n->disk, done[k].index, done[k].ent);
            n->disk.last = done[k].index;
        }
    }
    uint64_t epoch = 0;
    uint64_t index = 0;
    for (uint32_t k = 0; k < count; k++) {  // then it is told.
        struct consensus_out out;
        if (done[k].kind == WAL_HARD) {
            c->ops->hard_state_durable(n->r, done[k].hard, c->now, &out);
            cl_out(c, i, &out, NULL);
        } else if (done[k].kind == WAL_ENTRY) {
            epoch = done[k].epoch;
            index = done[k].index;
            if (k + 1 == count || done[k + 1].kind != WAL_ENTRY || done[k + 1].epoch != epoch) {
                c->ops->durable(n->r, epoch, index, c->now, &out);
                cl_out(c, i, &out, NULL);
            }
        } else if (done[k].kind == WAL_PACKET) {
            cl_packet_add(c, done[k].packet);
        }
    }
    free(done);
    cl_apply(c, i);
    cl_check_node(c, i);
}

static inline void cl_out_reads(struct cluster *c, uint32_t i, const struct consensus_out *out)
{
    struct cl_node *n = &c->nodes[i];
    for (uint32_t k = 0; k < out->reads_count; k++) {
        n->reads_done++;
        n->read_index = out->reads[k].index;
        if (c->reads[out->reads[k].id % 256].id == out->reads[k].id &&
            out->reads[k].index < c->reads[out->reads[k].id % 256].floor) {
            cl_fail(c, "a read barrier missed a committed entry", out->reads[k].index,
                    c->reads[out->reads[k].id % 256].floor);
        }
    }
    n->reads_failed += out->reads_failed;
}

static inline void cl_out(struct cluster *c, uint32_t i, const struct consensus_out *out, const struct cl_packet *in)
{
    struct cl_node *n = &c->nodes[i];
    if (out->has_hard_state) {
        n->hard = out->hard_state;
        cl_wal_push(n, (struct cl_wal){.kind = WAL_HARD, .hard = out->hard_state});
    }
    if (out->truncate_from != 0) {
        n->mem.last = out->truncate_from - 1;
        cl_wal_push(n, (struct cl_wal){.kind = WAL_TRUNCATE, .index = out->truncate_from});
        c->truncations++;
    }
    if (out->accept_from != 0) {
        for (uint64_t at = out->accept_from; at <= out->accept_to; at++) {
            struct cl_ent e = in->ents[at - in->m.index - 1];
            cl_append(c, i, at, e);
            if (e.kind == CL_CONFIG) {
                c->ops->config_appended(n->r, &c->configs[e.config]);
            }
        }
    }
    if (out->has_noop) {
        cl_append(c, i, out->append_index, (struct cl_ent){.term = out->append_term, .kind = CL_NOOP});
    }
    if (out->has_config) {
        CL_REQUIRE((c->configs_count + 1) < (4096));
        config_copy(&c->configs[++c->configs_count], &out->config);
        cl_append(c, i, out->append_index,
                  (struct cl_ent){.term = out->append_term,
                                  .kind = CL_CONFIG,
                                  .config = c->configs_count,
                                  .value = ++c->value});
    }
    for (uint32_t k = 0; k < out->msgs_count; k++) {
        struct cl_packet *p = cl_packet_new(i, &out->msgs[k].msg);
        if (out->msgs[k].gate == GATE_AFTER_WAL) {
            cl_wal_push(n, (struct cl_wal){.kind = WAL_PACKET, .packet = p});
        } else {
            cl_packet_add(c, p);
        }
    }
    cl_out_reads(c, i, out);
    cl_check_node(c, i);
    if (n->is_sync) {
        cl_disk(c, i, UINT32_MAX);
    }
}

static inline void cl_install(struct cluster *c, uint32_t i, const struct cl_packet *p)
{
    struct cl_node *n = &c->nodes[i];
    struct consensus_status st;
    cl_status(c, i, &st);
    if (st.role == ROLE_LEADER || st.term != p->m.term || st.leader != p->m.from || p->m.index <= st.commit ||
        n->is_amnesiac) {
        return;
    }
    if (c->ops->term_at(n->r, p->m.index) == p->m.index_term) {
        // The log holds that entry, so it holds all the snapshot stands for and perhaps more: never replaced.
        if (st.durable >= p->m.index && n->disk_hard.term == st.term) {
            struct consensus_msg done = {.type = MSG_SNAPSHOT_DONE, .group = 1, .from = n->replica_id, .to = p->m.from,
                                         .term = st.term, .index = p->m.index, .index_term = p->m.index_term};
            cl_packet_add(c, cl_packet_new(i, &done));
        }
        return;
    }
    c->ops->snapshot_started(n->r, c->now);
    cl_disk(c, i, UINT32_MAX);  // The installation is behind all earlier writes, and synced itself.
    cl_status(c, i, &st);
    struct consensus_out out;
    if (p->m.index <= st.commit) {
        c->ops->snapshot_ended(n->r, n->replica_id, false, p->m.index, c->now, &out);
        cl_out(c, i, &out, NULL);
        return;
    }
    for (uint64_t at = 1; at <= p->m.index; at++) {
        cl_log_set(&n->mem, at, p->ents[at]);
        cl_log_set(&n->disk, at, p->ents[at]);
    }
    n->mem.last = n->disk.last = n->snapshot = n->applied = p->m.index;
    n->snapshot_term = p->m.index_term;
    config_copy(&n->snapshot_config, &p->config);
    c->ops->snapshot_installed(n->r, p->m.index, p->m.index_term, &p->config, c->now, &out);
    cl_out(c, i, &out, NULL);
}

// Hands a packet to its node. Frees it.
static inline void cl_deliver(struct cluster *c, struct cl_packet *p)
{
    struct cl_node *n = &c->nodes[p->to_node];
    if (n->r != NULL && n->replica_id == p->m.to) {
        struct consensus_out out;
        if (p->is_snapshot) {
            struct consensus_msg empty = p->m;  // A snapshot names its leader as a message without entries does.
            empty.index = empty.index_term = empty.count = 0;
            c->ops->step(n->r, &empty, c->now, &out);
            cl_out(c, p->to_node, &out, NULL);
            cl_install(c, p->to_node, p);
            if (c->nodes[p->from_node].r != NULL) {
                c->ops->snapshot_ended(c->nodes[p->from_node].r, p->m.to, true, p->m.index, c->now, &out);
                cl_out(c, p->from_node, &out, NULL);
            }
        } else {
            c->ops->step(n->r, &p->m, c->now, &out);
            cl_out(c, p->to_node, &out, p);
        }
        if (n->r != NULL) {
            cl_apply(c, p->to_node);
        }
    }
    cl_packet_free(p);
}

// ---- nodes -------------------------------------------------------------------------------------------------------

static inline void cl_start(struct cluster *c, uint32_t i, bool campaign_at_once)
{
    struct cl_node *n = &c->nodes[i];
    CL_REQUIRE((n->r) == NULL);
    struct replica_start s = {
        .group = 1, .replica_id = n->replica_id, .node_id = i, .hard_state = n->disk_hard,
        .snapshot_index = n->snapshot, .snapshot_term = n->snapshot_term, .last = n->disk.last,
        .is_amnesiac = n->is_amnesiac, .rng_seed = c->seed * 31 + c->now, .now_ns = c->now,
        .campaign_at_once = campaign_at_once,
    };
    struct term_run *runs = mem_alloc((n->disk.last + 1) * sizeof(*runs));
    config_copy(&s.config, n->snapshot > 0 ? &n->snapshot_config : &c->initial);
    n->mem.last = 0;
    for (uint64_t at = 1; at <= n->disk.last; at++) {
        struct cl_ent e = n->disk.at[at];
        cl_log_set(&n->mem, at, e);
        n->mem.last = at;
        if (at <= n->snapshot) {
            continue;
        }
        if (s.runs_count == 0 || runs[s.runs_count - 1].term != e.term) {
            runs[s.runs_count++] = (struct term_run){.first = at, .term = e.term};
        }
        if (e.kind == CL_CONFIG && c->configs[e.config].index > s.config.index) {
            s.config_before = s.config;
            config_copy(&s.config, &c->configs[e.config]);
        }
    }
    s.runs = runs;
    n->applied = n->commit_seen = n->snapshot;
    n->hard = n->disk_hard;
    n->r = c->ops->create(&s);
    free(runs);
    cl_check_node(c, i);
}

static inline void cl_wal_drop(struct cl_node *n)
{
    for (uint32_t k = 0; k < n->wal_count; k++) {
        if (n->wal[k].kind == WAL_PACKET) {
            cl_packet_free(n->wal[k].packet);
        }
    }
    n->wal_count = 0;
}

// Ends the process; the first `kept` unfinished writes reach the disk all the same, the others are lost.
static inline void cl_crash(struct cluster *c, uint32_t i, uint32_t kept)
{
    struct cl_node *n = &c->nodes[i];
    for (uint32_t k = 0; k < kept && k < n->wal_count; k++) {
        if (n->wal[k].kind == WAL_HARD) {
            n->disk_hard = n->wal[k].hard;
        } else if (n->wal[k].kind == WAL_TRUNCATE) {
            n->disk.last = n->wal[k].index - 1;
        } else if (n->wal[k].kind == WAL_ENTRY) {
            cl_log_set(&n->disk, n->wal[k].index, n->wal[k].ent);
            n->disk.last = n->wal[k].index;
        }
    }
    cl_wal_drop(n);
    c->ops->destroy(n->r);
    n->r = NULL;
    n->mem.last = 0;
}

static inline void cl_alive(struct cluster *c, uint32_t i, uint32_t of, bool is_alive)
{
    if (c->nodes[i].r != NULL && i != of) {
        struct consensus_out out;
        c->ops->node_alive(c->nodes[i].r, of, is_alive, c->now, &out);
        cl_out(c, i, &out, NULL);
    }
}

static inline void cl_link_reset(struct cluster *c, uint32_t i, uint32_t of)
{
    if (c->nodes[i].r != NULL && i != of) {
        struct consensus_out out;
        c->ops->link_reset(c->nodes[i].r, of, c->now, &out);
        cl_out(c, i, &out, NULL);
    }
}

static inline bool cl_timeout(struct cluster *c, uint32_t i)
{
    struct cl_node *n = &c->nodes[i];
    if (n->r == NULL || c->ops->deadline(n->r) > c->now) {
        return false;
    }
    struct consensus_out out;
    c->ops->timeout(n->r, c->now, &out);
    cl_out(c, i, &out, NULL);
    return true;
}

static inline enum rc cl_propose(struct cluster *c, uint32_t i, uint32_t count)
{
    struct cl_node *n = &c->nodes[i];
    struct consensus_out out;
    uint64_t first = 0, term = 0;
    enum rc rc = c->ops->propose(n->r, count, &first, &term, &out);
    for (uint32_t k = 0; rc == RC_OK && k < count; k++) {
        cl_append(c, i, first + k, (struct cl_ent){.term = term, .kind = CL_ENTRY, .value = ++c->value});
    }
    cl_out(c, i, &out, NULL);
    return rc;
}

// Applied state becomes a snapshot; the engine's log is cut.
static inline void cl_snapshot(struct cluster *c, uint32_t i)
{
    struct cl_node *n = &c->nodes[i];
    struct consensus_status st;
    cl_status(c, i, &st);
    if (st.applied <= n->snapshot) {
        return;
    }
    n->snapshot_config = c->initial;
    for (uint64_t at = 1; at <= st.applied; at++) {
        if (n->mem.at[at].kind == CL_CONFIG) {
            config_copy(&n->snapshot_config, &c->configs[n->mem.at[at].config]);
        }
    }
    n->snapshot = st.applied;
    n->snapshot_term = c->ops->term_at(n->r, st.applied);
    c->ops->snapshot_taken(n->r, n->snapshot, n->snapshot_term);
    cl_check_node(c, i);
}

// Everything moves, without any time passing, until nothing does; false if that never happens.
static inline bool cl_settle(struct cluster *c)
{
    for (int guard = 0; guard < 10000; guard++) {
        for (uint32_t i = 1; i <= c->count; i++) {
            cl_send(c, i, 64);
        }
        for (uint32_t i = 1; i <= c->count; i++) {
            if (c->nodes[i].r != NULL && c->nodes[i].is_sync) {
                cl_disk(c, i, UINT32_MAX);
            }
        }
        if (c->packets_count == 0) {
            return true;
        }
        cl_deliver(c, cl_packet_take(c, 0));
    }
    return false;
}

// Lets the clock run to the next deadline of anybody; false if nobody has one.
static inline bool cl_tick(struct cluster *c)
{
    uint64_t at = UINT64_MAX;
    for (uint32_t i = 1; i <= c->count; i++) {
        if (c->nodes[i].r != NULL && c->ops->deadline(c->nodes[i].r) < at) {
            at = c->ops->deadline(c->nodes[i].r);
        }
    }
    if (at == UINT64_MAX) {
        return false;
    }
    c->now = at > c->now ? at : c->now;
    for (uint32_t i = 1; i <= c->count; i++) {
        (void)cl_timeout(c, i);
    }
    return true;
}

static inline void cl_init(struct cluster *c, uint32_t count, uint32_t voters, uint64_t seed)
{
    *c = (struct cluster){.ops = &raft_ops, .count = count, .seed = seed, .now = UINT64_C(1000000000)};
    c->term_leader = mem_zalloc(CL_TERMS * sizeof(*c->term_leader));
    c->initial.count = voters;
    for (uint32_t i = 1; i <= count; i++) {
        c->nodes[i].replica_id = i;
        c->nodes[i].is_member = i <= voters;
        if (i <= voters) {
            c->initial.members[i - 1] = (struct member){.replica_id = i, .node_id = i, .is_voter = true};
        }
    }
}

static inline void cl_deinit(struct cluster *c)
{
    for (uint32_t i = 1; i <= c->count; i++) {
        struct cl_node *n = &c->nodes[i];
        if (n->r != NULL) {
            c->ops->destroy(n->r);
        }
        cl_wal_drop(n);
        free(n->wal);
        free(n->mem.at);
        free(n->disk.at);
    }
    while (c->packets_count > 0) {
        cl_packet_free(cl_packet_take(c, 0));
    }
    free(c->packets);
    free(c->committed.at);
    free(c->term_leader);
}
