// SPDX-License-Identifier: Apache-2.0
// How a node comes to belong to a cluster, and how the metadata group follows the nodes (decision 6). Worker 0.
//
// A blank node looks at its list through formation_decide whenever a peer's state changes: it founds, asks a
// member to be let in, or waits and says for whom. A member answers such requests by making a node record;
// whoever leads the metadata group takes every recorded node in as a learner and promotes it when it has
// caught up, one change at a time.
#include "node/base/crc32c.h"
#include "node/base/log.h"
#include "node/server/node.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define META_MEMBERS_FILE "metadata-members"
enum {
    META_MEMBERS_MAX = 4096,
    JOIN_RETRY_MS = 100,
    OPEN_RETRY_MS = 500,      // Of the metadata store, on a full disk.
    JOIN_LOST_MS = 500,       // Of a node with data: answering costs a look at all queues.
    JOIN_REFUSED_MS = 2000,  // After a refusal that only an operator can cure.
    STALL_MS = 1000,          // Age of the oldest unsynced write from which the own disk counts as stalled.
    STALL_HEALTHY_MS = 500,   // A peer with less has a good disk (decision 7).
    STALL_HEARD_MS = 1000,    // What it said must be this young.
    STALL_AGAIN_MS = 30000,
    RECONCILE_MS = 20,
    RECONCILE_IDLE_MS = 1000,
};

void node_wait_for(struct node *n, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(n->waiting, sizeof(n->waiting), format, args);
    va_end(args);
    if (strcmp(n->waiting, n->waiting_logged) != 0 && n->waiting[0] != '\0') {
        log_notice("%s", n->waiting);
    }
    snprintf(n->waiting_logged, sizeof(n->waiting_logged), "%s", n->waiting);
}

static uint64_t now_ns(void)
{
    return clock_mono_ns(env_system_clock());
}

static void list_names(struct node *n, const char **names)
{
    for (uint32_t i = 0; i < n->config.peers_count; i++) {
        names[i] = n->config.peers[i].name;
    }
}

static void fill_hello(struct node *n, struct peer_hello *h)
{
    const char *names[CONFIG_PEERS_MAX];
    list_names(n, names);
    *h = (struct peer_hello){
        .protocol_min = PEER_PROTOCOL_MIN,
        .protocol_max = PEER_PROTOCOL_MAX,
        .node_id = n->identity.node_id,
        .incarnation = n->identity.incarnation,
        .list_hash = n->is_lost ? 0 : formation_list_hash(names, n->config.peers_count),
        .feature_level = NET_LEVEL_OWN,
        .is_blank = identity_is_blank(&n->identity),
        .fsms_len = 2,
        .fsms = {{"queue", 1}, {"metadata", 1}},
    };
    memcpy(h->cluster_id, n->identity.cluster_id, sizeof(h->cluster_id));
    memcpy(h->store_id, n->identity.store_id, sizeof(h->store_id));
    snprintf(h->name, sizeof(h->name), "%s", n->config.node_name);
    snprintf(h->address, sizeof(h->address), "%s", n->config.advertised_address);
}

// ---- becoming a member -------------------------------------------------------------------------------------------

static void fail_start(struct node *n, const char *what, enum rc rc)
{
    log_critical("%s: %s", what, rc_text(rc));
    node_fail(n);
}

// The members that the metadata group is started with are on disk before the identity says that we belong to
// it: a crash in between leaves a blank node, one behind it a member that can still start. File "metadata-members".
static enum rc meta_config_save(struct node *n)
{
    struct buf b = {0};
    config_encode(&n->meta_config, &b);
    buf_u32(&b, crc32c(0, b.ptr, b.len));
    enum rc rc = disk_replace(n->disk, ".", META_MEMBERS_FILE, buf_span(&b));
    buf_deinit(&b);
    return rc;
}

// For a member whose log names no members yet. If there is no log at all, it crashed before the first record
// was durable: it has promised nothing, and starts as it would have then. Not so if the log is damaged:
// nobody knows what it had promised (law 2).
static enum rc meta_config_load(struct node *n)
{
    if (n->is_log_suspect && !node_recovered(n, META_GROUP_ID)) {
        return RC_CORRUPT;
    }
    uint8_t *bytes = NULL;
    size_t len = 0;
    enum rc rc = disk_read_all(n->disk, META_MEMBERS_FILE, META_MEMBERS_MAX, &bytes, &len);
    uint32_t sum = 0;
    if (rc == RC_OK && len > sizeof(sum)) {
        memcpy(&sum, bytes + len - sizeof(sum), sizeof(sum));
        len -= sizeof(sum);
        rc = crc32c(0, bytes, len) == sum ? config_decode(span_of(bytes, len), &n->meta_config) : RC_CORRUPT;
    }
    free(bytes);
    return rc == RC_OK && n->meta_config.count == 0 ? RC_CORRUPT : rc;
}

static void start_metadata(struct node *n)
{
    struct node_worker *w = &n->workers[0];
    const struct store_group *recovered = node_recovered(n, META_GROUP_ID);
    const bool is_known = recovered && (recovered->config.count > 0 || recovered->snapshot_config.count > 0);
    if (n->meta_config.count == 0 && !is_known && meta_config_load(n) != RC_OK) {
        log_critical(
            "the log of the metadata group is lost on this node, and with it what the node had promised. On "
            "another member: `warrenctl "
            "forget_cluster_node %s`; then delete %s and start the node: it joins anew and is filled again",
            n->config.node_name, n->config.data_dir);
        node_fail(n);
        return;
    }
    enum rc rc = metastore_start(n->metastore, w->host, n->identity.replica_id, &n->meta_config, recovered,
                                 n->is_founder);
    if (rc != RC_OK) {
        fail_start(n, "cannot start the metadata group", rc);
        return;
    }
    ctl_attach(n->ctl, w->host, w->broker, w->queues, n->metastore, n->identity.node_id);
}

// A worker has made its parts; after the last one the metadata may tell them what exists.
static void worker_is_attached(void *arg)
{
    struct node *n = arg;
    if (++n->attached == n->workers_count) {
        start_metadata(n);
    }
}

static void attach_worker(void *arg)
{
    struct node_worker *w = arg;
    node_worker_attach(w);
    node_post(w->node, 0, worker_is_attached, w->node);
}

static void open_metadata(struct node *n)
{
    enum rc rc = node_open_metastore(n);
    if (rc == RC_NO_SPACE) {
        n->membership = MEMBERSHIP_OPENING;
        n->open_at_ns = now_ns() + OPEN_RETRY_MS * 1000000ull;
        node_wait_for(n, "waiting for room on the disk, for the metadata store");
        return;
    }
    if (rc != RC_OK) {
        fail_start(n, "cannot open the metadata store", rc);
        return;
    }
    n->membership = MEMBERSHIP_MEMBER;
    node_wait_for(n, "waiting for a majority of the cluster's nodes to prove that the metadata here is up to date");
    // Asked before the net may bring anything for them: mailboxes keep the order.
    for (uint32_t i = 1; i < n->workers_count; i++) {
        node_post(n, i, attach_worker, &n->workers[i]);
    }
    node_worker_attach(&n->workers[0]);
    peer_net_set_upcalls(n->peers, net_share_upcalls(n->share));
    worker_is_attached(n);
}

static void become_member(struct node *n)
{
    struct peer_hello h;
    fill_hello(n, &h);
    peer_net_set_self(n->peers, &h);
    open_metadata(n);
}

// Of a node that founds or joins. True: it does so again when there is room.
static bool is_for_want_of_room(struct node *n, enum rc rc)
{
    if (rc == RC_NO_SPACE) {
        node_wait_for(n, "waiting for room on the disk, to become a member of the cluster");
    }
    return rc == RC_NO_SPACE;
}

static void found(struct node *n)
{
    uint8_t cluster_id[CLUSTER_ID_BYTES];
    env_system_random(cluster_id, sizeof(cluster_id));
    n->meta_config = (struct config){.count = 1, .members = {{.replica_id = 1, .node_id = 1, .is_voter = true}}};
    enum rc rc = meta_config_save(n);
    if (rc == RC_OK) {
        rc = identity_set_member(n->disk, &n->identity, cluster_id, 1, 1);
    }
    if (is_for_want_of_room(n, rc)) {
        return;
    }
    if (rc != RC_OK) {
        fail_start(n, "cannot write the identity file", rc);
        return;
    }
    log_notice("founding a new cluster '%s'", n->config.cluster_name);
    n->is_founder = true;
    become_member(n);
}

// ---- joining -----------------------------------------------------------------------------------------------------

void member_ask(struct node *n, const char *via)
{
    if (n->membership == MEMBERSHIP_JOINING && now_ns() < n->join_at_ns) {
        return;
    }
    if (n->membership == MEMBERSHIP_NONE) {  // Later on the last answer says more.
        node_wait_for(n, "asking %s to let this node into its cluster", via);
    }
    n->membership = MEMBERSHIP_JOINING;
    n->join_at_ns = now_ns() + (n->is_lost ? JOIN_LOST_MS : JOIN_RETRY_MS) * 1000000ull;
    struct join_request r = {.token = ++n->join_token, .has_data = n->is_lost};
    memcpy(r.store_id, n->identity.store_id, sizeof(r.store_id));
    snprintf(r.name, sizeof(r.name), "%s", n->config.node_name);
    snprintf(r.address, sizeof(r.address), "%s", n->config.advertised_address);
    snprintf(n->via, sizeof(n->via), "%s", via);
    struct buf envelope = {0};
    join_request_encode(&envelope, &r);
    if (peer_net_send_named(n->peers, n->via, FRAME_JOIN, buf_span(&envelope)) != RC_OK) {
        if (n->is_rejoining && n->ask[0] == '\0') {
            node_wait_for(n, "waiting for %s at %s, to join its cluster", n->via, n->joined_address);
        }
        n->ask[0] = '\0';  // Next time whoever can be reached.
    }
    buf_deinit(&envelope);
}

static void joined(struct node *n, const struct join_reply *r)
{
    n->meta_config = (struct config){0};
    for (uint32_t i = 0; i < r->members_len && i < LIMIT_MEMBERS; i++) {
        n->meta_config.members[n->meta_config.count++] =
            (struct member){.replica_id = r->members[i].replica_id,
                            .node_id = r->members[i].node_id,
                            .is_voter = r->members[i].is_voter};
    }
    enum rc rc = meta_config_save(n);
    if (rc == RC_OK) {
        rc = identity_set_member(n->disk, &n->identity, r->cluster_id, r->node_id, r->replica_id);
    }
    if (is_for_want_of_room(n, rc)) {
        return;
    }
    if (rc != RC_OK) {
        fail_start(n, "cannot write the identity file", rc);
        return;
    }
    for (uint32_t i = 0; i < r->nodes_len; i++) {
        if (strcmp(r->nodes[i].name, n->config.node_name) != 0 &&
            peer_net_add(n->peers, r->nodes[i].name, r->nodes[i].address, r->nodes[i].node_id,
                         r->nodes[i].store_id) != RC_OK) {
            log_warning("cannot add node %s at %s", r->nodes[i].name, r->nodes[i].address);
        }
    }
    log_notice("joined the cluster through %s as node %u", n->via, n->identity.node_id);
    rejoin_joined(n);
    become_member(n);
}

// The member asked is not the one to decide: another is, which may have to be dialled first.
static void ask_there(struct node *n, const struct join_reply *r)
{
    if (strcmp(n->ask, r->ask) != 0) {
        snprintf(n->ask, sizeof(n->ask), "%s", r->ask);
        if (n->ask[0] != '\0' && peer_net_add(n->peers, r->ask, r->ask_address, 0, NULL) != RC_OK) {
            n->ask[0] = '\0';
        }
    }
}

static void on_join_reply(struct node *n, const struct frame *f)
{
    struct join_reply r;
    if (join_reply_decode(f->envelope, &r) != RC_OK) {
        return;
    }
    if (n->membership == MEMBERSHIP_JOINING && r.token == n->join_token) {
        if (r.result == JOIN_OK && n->is_lost) {
            lost_granted(n, &r);
        } else if (r.result == JOIN_OK) {
            joined(n, &r);
        } else {
            node_wait_for(n, "%s did not let this node in: %s", n->via, r.text);
            ask_there(n, &r);
            if (r.result != JOIN_RETRY) {
                n->join_at_ns = now_ns() + JOIN_REFUSED_MS * 1000000ull;
                if (!n->is_rejoining) {
                    n->joined_to[0] = '\0';
                }
                member_join_end(n, RC_DENIED, r.text);
            }
        }
    }
    join_reply_deinit(&r);
}

static void on_join_frame(void *ctx, const char *name, const struct frame *f)
{
    struct node *n = ctx;
    (void)name;
    if (f->type == FRAME_JOIN) {
        admission_asked(n, f);
    } else {
        on_join_reply(n, f);
    }
}

// The name's record with ids above ours: they were given to a node with another disk. Records come in the
// order in which they were committed, so ours may pass by on the way; ids only rise.
static void look_at_own_record(struct node *n, uint32_t node_id, bool is_known)
{
    if (is_known && node_id > n->identity.node_id) {
        log_critical("the cluster knows %s by another disk than %s: that one was started under this name and "
                     "took this node's place. Delete the data directory "
                     "and start the node: it joins anew and is filled from the others",
                     n->config.node_name, n->config.data_dir);
        node_fail(n);
    }
}

void member_node_changed(void *ctx, struct span name, uint32_t node_id, struct span store_id,
                         struct span address, bool is_known)
{
    struct node *n = ctx;
    char node[PEER_NAME_MAX + 1], where[PEER_ADDRESS_MAX + 1];
    snprintf(node, sizeof(node), "%.*s", (int)name.len, (const char *)name.ptr);
    snprintf(where, sizeof(where), "%.*s", (int)address.len, (const char *)address.ptr);
    if (strcmp(node, n->config.node_name) == 0) {
        look_at_own_record(n, node_id, is_known);
        return;
    }
    if (!is_known) {
        peer_net_remove(n->peers, node);
    } else if (peer_net_add(n->peers, node, where, node_id,
                            store_id.len == STORE_ID_BYTES ? store_id.ptr : NULL) != RC_OK) {
        log_error("cannot reach node %s: its address '%s' is not usable", node, where);
    }
    n->reconcile_at_ns = 0;
}

// ---- the metadata group follows the nodes ------------------------------------------------------------------------

struct reconcile {
    struct node *node;
    struct group *group;
    const struct config *config;
    bool is_changing;  // A change is under way: no other.
    bool is_waiting;   // Something is left to do that could not be done now.
};

static void change(struct reconcile *r, enum member_change_kind kind, struct member m, const char *doing,
                   const char *name, size_t name_len)
{
    const struct member_change c = {.kind = kind, .member = m};
    r->is_waiting = true;
    r->is_changing = group_change_members(r->group, &c) == RC_OK;
    if (r->is_changing) {
        log_notice("metadata group: %s %.*s", doing, (int)name_len, name);
    }
}

// A node that cannot be promoted yet stands in nobody's way.
static void add_or_promote(void *ctx, const struct broker_node *b)
{
    struct reconcile *r = ctx;
    if (r->is_changing) {
        return;
    }
    const struct member *known = config_find(r->config, b->replica_id);
    const struct member m = {.replica_id = b->replica_id, .node_id = b->node_id};
    if (!known) {
        change(r, MEMBER_ADD_LEARNER, m, "adding node", (const char *)b->name.ptr, b->name.len);
    } else if (!known->is_voter && config_voters(r->config) < LIMIT_VOTERS) {
        change(r, MEMBER_PROMOTE, m, "promoting node", (const char *)b->name.ptr, b->name.len);
    }
}

struct record_of {
    uint64_t replica_id;
    bool is_there;
};

static void look_for_replica(void *ctx, const struct broker_node *b)
{
    struct record_of *r = ctx;
    r->is_there = r->is_there || b->replica_id == r->replica_id;
}

// Members whose record was deleted or replaced (forgotten nodes, lost disks) leave, before others come: they
// never answer. A record comes before the member and this leader has seen all that is committed, so absence
// is proof (law 3).
static void remove_retired(struct reconcile *r, uint64_t commit)
{
    struct node *n = r->node;
    if (metastore_seen(n->metastore, 0) < commit) {
        r->is_waiting = r->is_changing = true;
        return;
    }
    for (uint32_t i = 0; i < r->config->count && !r->is_changing; i++) {
        const struct member m = r->config->members[i];
        struct record_of record = {.replica_id = m.replica_id};
        broker_node_each(n->workers[0].broker, look_for_replica, &record);
        if (!record.is_there && m.replica_id != n->identity.replica_id) {
            char id[48];
            const int len = snprintf(id, sizeof(id), "%u, which was forgotten or lost its disk", m.node_id);
            change(r, MEMBER_REMOVE, m, "removing node", id, (size_t)len);
        }
    }
}

static void on_founded(void *ctx, const struct meta_result *r)
{
    struct node *n = ctx;
    n->is_founding = false;
    if (r->rc != RC_OK && r->rc != RC_EXISTS) {
        log_warning("the founding record was not written: %s; trying again", rc_text(r->rc));
    }
}

static void write_founding(struct node *n)
{
    struct broker_founding f = {
        .node_name = span_str(n->config.node_name),
        .store_id = span_of(n->identity.store_id, STORE_ID_BYTES),
        .address = span_str(n->config.advertised_address),
        .node_id = n->identity.node_id,
        .replica_id = n->identity.replica_id,
        .user = span_str(n->config.default_user),
        .password = span_str(n->config.default_pass),
    };
    n->is_founding = true;
    broker_found(n->workers[0].broker, &f, on_founded, n);
}

static void count_node(void *ctx, const struct broker_node *b)
{
    (void)b;
    ++*(uint32_t *)ctx;
}

static uint64_t reconcile(struct node *n, uint64_t now)
{
    struct group *g = metastore_group(n->metastore);
    if (now < n->reconcile_at_ns || !g) {
        return n->reconcile_at_ns;
    }
    struct consensus_status s;
    group_status(g, &s);
    struct reconcile r = {.node = n, .group = g, .config = s.config};
    if (s.role == ROLE_LEADER && s.is_ready && broker_is_loaded(n->workers[0].broker)) {
        uint32_t nodes = 0;
        broker_node_each(n->workers[0].broker, count_node, &nodes);
        if (nodes == 0 && !n->is_founding) {
            write_founding(n);
        }
        if (nodes > 0) {
            remove_retired(&r, s.commit);
        }
        broker_node_each(n->workers[0].broker, add_or_promote, &r);
    }
    bool is_incomplete = !broker_node_find(n->workers[0].broker, span_str(n->config.node_name));
    n->reconcile_at_ns = now + (r.is_waiting || is_incomplete ? RECONCILE_MS : RECONCILE_IDLE_MS) * 1000000ull;
    return n->reconcile_at_ns;
}

// ---- peers, turn -------------------------------------------------------------------------------------------------

static void on_peers_changed(void *ctx)
{
    ((struct node *)ctx)->alarms_at_ns = 0;
    worker_wake(((struct node *)ctx)->workers[0].worker);
}

// A node with an id of ours and no record: it was forgotten, if its id was given in what we have seen (else its
// record may only not have come here yet).
static enum peer_refusal admit(void *ctx, const struct peer_hello *h, char *text)
{
    struct node *n = ctx;
    struct broker *b = n->workers[0].broker;
    if (n->membership != MEMBERSHIP_MEMBER || !broker_is_loaded(b) || h->is_blank ||
        memcmp(h->cluster_id, n->identity.cluster_id, CLUSTER_ID_BYTES) != 0 || broker_node_by_id(b, h->node_id)) {
        return REFUSED_NONE;
    }
    if (h->node_id >= metastore_numbers(n->metastore, 0)) {
        return REFUSED_NONE;
    }
    snprintf(text, PEER_TEXT_MAX + 1,
             "node %.255s thinks it is a member of the cluster of node %.255s, but that disagrees: it was "
             "forgotten. Delete its data directory and start it again to take it in as a new node",
             h->name, n->config.node_name);
    return REFUSED_DENIED;
}

static void fill_beat(void *ctx, struct peer_beat *b)
{
    struct node *n = ctx;
    b->worker_progress = 0;
    for (uint32_t i = 0; i < n->workers_count; i++) {
        b->worker_progress += atomic_load_explicit(&n->workers[i].shared_turns, memory_order_relaxed);
    }
    b->wal_age_ms = wal_thread_age_ns(n->wal) / 1000000u;
    b->alarms = n->alarms.own;
    struct group *g = n->metastore ? metastore_group(n->metastore) : NULL;
    if (g) {
        struct consensus_status s;
        group_status(g, &s);
        b->meta_commit = s.commit;
    }
}

void member_peers_start(struct node *n)
{
    // Without a secret of its own cluster a node knows nobody, and nobody may know what would let him in.
    uint8_t nobodys[32];
    env_system_random(nobodys, sizeof(nobodys));
    struct peer_net_config c = {
        .loop = worker_loop(n->workers[0].worker),
        .clock = env_system_clock(),
        .random = env_system_random,
        .listen = n->config.cluster_address,
        .secret = n->config.cluster_secret ? span_str(n->config.cluster_secret) : span_of(nobodys, sizeof(nobodys)),
        .hooks = {.changed = on_peers_changed,
                  .join_frame = on_join_frame,
                  .admit = admit,
                  .beat_fill = fill_beat,
                  .beat_seen = alarm_beat,
                  .ctx = n},
    };
    fill_hello(n, &c.self);
    enum rc rc = peer_net_create(&c, &n->peers);
    if (rc != RC_OK) {
        log_critical("cannot listen for other nodes on %s: %s", n->config.cluster_address, rc_text(rc));
        node_fail(n);
        return;
    }
    struct net_share_config share = {.net = peer_net_net(n->peers),
                                     .workers = n->workers_count,
                                     .post = node_post,
                                     .post_ctx = n};
    n->share = net_share_create(&share);
    for (uint32_t i = 0; i < n->config.peers_count; i++) {
        const struct config_peer *p = &n->config.peers[i];
        if (strcmp(p->name, n->config.node_name) != 0 &&
            peer_net_add(n->peers, p->name, p->address, 0, NULL) != RC_OK) {
            log_error("the address '%s' of node %s is not usable", p->address, p->name);
        }
    }
    if (!identity_is_blank(&n->identity)) {
        become_member(n);
    } else if (n->is_rejoining && peer_net_add(n->peers, n->joined_to, n->joined_address, 0, NULL) != RC_OK) {
        log_error("the address '%s' of node %s is not usable", n->joined_address, n->joined_to);
    }
}

static uint64_t form(struct node *n, uint64_t now)
{
    const char *names[CONFIG_PEERS_MAX + 1];
    uint32_t count = n->config.peers_count;
    list_names(n, names);
    if (n->is_lost || n->is_healing) {
        lost_ask(n);
        return now + JOIN_RETRY_MS * 1000000ull;
    }
    if (n->joined_to[0] != '\0') {
        if (!rejoin_is_refused(n)) {
            member_ask(n, n->ask[0] ? n->ask : n->joined_to);
        }
        return now + JOIN_RETRY_MS * 1000000ull;
    }
    struct formation_decision d;
    peer_net_form(n->peers, names, count, &d);
    switch (d.state) {
    case FORMATION_FOUND:
        found(n);
        break;
    case FORMATION_JOIN:
        member_ask(n, n->ask[0] ? n->ask : d.via);
        break;
    case FORMATION_WAIT:
        node_wait_for(n, "%s", d.reason);
        break;
    case FORMATION_MEMBER:
        break;
    }
    return now + JOIN_RETRY_MS * 1000000ull;
}

// ---- a stalled disk -----------------------------------------------------------------------------------------------

struct disks {
    uint64_t now;
    uint32_t peers, healthy;
};

static void count_disk(void *ctx, const struct peer_info *p)
{
    struct disks *d = ctx;
    if (p->node_id == 0) {
        return;
    }
    d->peers++;
    d->healthy += p->verdict == NODE_ALIVE && d->now - p->heard_ns < STALL_HEARD_MS * 1000000ull &&
                  p->beat.wal_age_ms < STALL_HEALTHY_MS;
}

static void step_down(void *arg)
{
    struct node_worker *w = arg;
    if (w->host) {
        host_step_down_all(w->host);
    }
}

// Decision 7: a node gives up leading for its own stall only if a majority of its peers are better off, and
// rarely: if all disks stall, or this one does again and again, moving the lead about helps nobody.
static uint64_t stall_turn(struct node *n, uint64_t now)
{
    const uint64_t age = wal_thread_age_ns(n->wal);
    if (age < STALL_MS * 1000000ull ||
        (n->stepped_down_at_ns != 0 && now - n->stepped_down_at_ns < STALL_AGAIN_MS * 1000000ull)) {
        return UINT64_MAX;  // Beats arrive all the time: that is often enough to look.
    }
    struct disks d = {.now = now};
    peer_net_each(n->peers, count_disk, &d);
    if (d.healthy * 2 <= d.peers || d.peers == 0) {
        return UINT64_MAX;
    }
    n->stepped_down_at_ns = now;
    log_warning("this node's disk has not finished a write for %llu ms, %u of %u other nodes' disks do: "
                "giving up the lead of all groups",
                (unsigned long long)(age / 1000000u), d.healthy, d.peers);
    for (uint32_t i = 0; i < n->workers_count; i++) {
        node_post(n, i, step_down, &n->workers[i]);
    }
    return UINT64_MAX;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t member_turn(struct node *n, uint64_t now)
{
    if (!n->peers) {
        return UINT64_MAX;
    }
    if (n->join_done && !n->is_probing && now > n->join_deadline_ns) {
        member_join_end(n, RC_TIMEOUT, n->waiting);
    }
    if (n->membership == MEMBERSHIP_OPENING) {
        if (now >= n->open_at_ns) {
            open_metadata(n);
        }
        return n->membership == MEMBERSHIP_OPENING ? n->open_at_ns : now;
    }
    if (n->membership != MEMBERSHIP_MEMBER) {
        return form(n, now);
    }
    bool is_up = true;
    for (uint32_t i = 0; i < n->workers_count; i++) {
        is_up = is_up && atomic_load_explicit(&n->workers[i].shared_is_fenced, memory_order_relaxed);
    }
    if (is_up && n->waiting[0] != '\0') {
        n->waiting[0] = '\0';
        log_notice("node %s is up", n->config.node_name);
        member_join_end(n, RC_OK, NULL);
    }
    uint64_t next = reconcile(n, now);
    next = earlier(next, rejoin_turn(n, now));
    next = earlier(next, forget_turn(n, now));
    next = earlier(next, maintenance_turn(n, now));
    return earlier(next, stall_turn(n, now));
}
