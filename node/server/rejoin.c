// SPDX-License-Identifier: Apache-2.0
// join_cluster and forget_cluster_node (operator-plane §4.5). Worker 0, but for the part at start-up.
//
// A node that is alone in its own cluster gives that up for another one: it makes sure that the other is
// there, leaves a note in its data directory and starts itself again. What the process that then starts finds
// in the note:
//
//   wipe NAME ADDRESS   erase logs, segments, metadata and identity, then turn the note into "join". Repeated after a
//                       crash in the middle: the note goes last.
//   join NAME ADDRESS   a blank node that joins NAME's cluster and no other, however long that takes; it never founds.
//                       Beside the identity of a member: it has joined; the note is removed.
//
// A node in company is never wiped like this: its cluster would be left with a member that lost its memory
// (law 2). How one that has lost its memory is: lost.c.
//
// Forgetting deletes the node's record; the metadata group follows (member.c), and so do the leaders of the
// queues with a member there (node/broker/README.md): they take it out, and give its place to another node if
// there is one. That needs a majority of the other members, which is why a queue that would be left without
// one is a reason to refuse.
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/server/node.h"
#include "node/server/note.h"
#include <stdio.h>
#include <stdlib.h>

enum {
    PROBE_MS = 10000,        // The other node must greet within this.
    JOIN_MS = 60000,         // An asker is answered at the latest.
    FORGET_MS = 10000,
    SOON_MS = 5000,          // Replicas that are being filled may vote by then.
    CHECK_AGAIN_MS = 50,
};
#define NS_PER_MS 1000000ull

static uint64_t now_ns(void)
{
    return clock_mono_ns(env_system_clock());
}

// ---- at start-up -------------------------------------------------------------------------------------------------

static void take_target(struct node *n, const struct note *t)
{
    snprintf(n->joined_to, sizeof(n->joined_to), "%s", t->name);
    snprintf(n->joined_address, sizeof(n->joined_address), "%s", t->address);
}

enum rc rejoin_prepare(struct node *n)
{
    struct note t;
    enum rc rc = note_read(n->disk, &t);
    n->joined_to[0] = '\0';
    if (rc == RC_NO_FILE || (rc == RC_OK && t.kind == NOTE_LOST)) {
        return RC_OK;  // lost.c looks at that one.
    }
    TRY(rc);
    take_target(n, &t);
    if (t.kind == NOTE_WIPE) {
        log_notice("giving up the data of this node to join the cluster of %s", n->joined_to);
        TRY(note_wipe(n->disk));
        if (t.has_store_id) {
            TRY(identity_make(n->disk, n->config.node_name, t.store_id, t.incarnation));
        }
        t.kind = NOTE_JOIN;
        TRY(note_write(n->disk, &t));
    }
    n->is_rejoining = true;
    n->is_healing = t.has_store_id;
    return RC_OK;
}

enum rc rejoin_check(struct node *n)
{
    if (!n->is_rejoining || identity_is_blank(&n->identity)) {
        return RC_OK;
    }
    n->is_rejoining = n->is_healing = false;  // It had joined when the process ended.
    n->joined_to[0] = '\0';
    return note_remove(n->disk);
}

void rejoin_joined(struct node *n)
{
    n->joined_to[0] = '\0';
    if (n->is_rejoining) {
        n->is_rejoining = n->is_healing = false;
        if (note_remove(n->disk) != RC_OK) {
            log_warning("the file " NOTE_FILE " could not be removed; that is done at the next start");
        }
    }
}

// ---- joining -----------------------------------------------------------------------------------------------------

static enum rc write_note(struct node *n, enum note_kind kind)
{
    struct note t = {.kind = kind};
    snprintf(t.name, sizeof(t.name), "%s", n->joined_to);
    snprintf(t.address, sizeof(t.address), "%s", n->joined_address);
    return note_write(n->disk, &t);
}

void member_join_end(struct node *n, enum rc rc, const char *text)
{
    if (n->join_done) {
        void (*done)(void *arg, enum rc rc, const char *text) = n->join_done;
        n->join_done = NULL;
        done(n->join_arg, rc, text);
    }
}

static void count_node(void *ctx, const struct broker_node *b)
{
    (void)b;
    ++*(uint32_t *)ctx;
}

static uint32_t nodes_count(struct node *n)
{
    uint32_t nodes = 0;
    broker_node_each(n->workers[0].broker, count_node, &nodes);
    return nodes;
}

static void split_target(struct node *n, const char *target, char *name, char *address)
{
    const char *equals = strchr(target, '=');
    snprintf(name, PEER_NAME_MAX + 1, "%.*s", (int)(equals ? equals - target : (long)strlen(target)), target);
    const char *host = strchr(name, '@');
    snprintf(address, PEER_ADDRESS_MAX + 1, "%.255s%s",
             equals ? equals + 1
             : host ? host + 1
                    : name,
             equals ? "" : ":25672");
    for (uint32_t i = 0; i < n->config.peers_count && !equals; i++) {
        if (strcmp(n->config.peers[i].name, name) == 0) {
            snprintf(address, PEER_ADDRESS_MAX + 1, "%s", n->config.peers[i].address);
        }
    }
}

// A member that is alone: does the other node answer?
static void probe(struct node *n)
{
    n->is_probing = true;
    n->join_deadline_ns = now_ns() + PROBE_MS * NS_PER_MS;
}

// A note holds it as a word of a line.
static bool is_word(const char *s)
{
    for (const char *c = s; *c != '\0'; c++) {
        if ((unsigned char)*c <= ' ' || *c == 0x7f) {
            return false;
        }
    }
    return s[0] != '\0';
}

static enum rc is_joinable(struct node *n, const char *name, const char *address, char *text, size_t size)
{
    if (!is_word(address)) {
        snprintf(text, size, "'%s' is not an address", address);
        return RC_INVALID;
    }
    if (!is_word(name)) {
        snprintf(text, size, "'%s' is not a node name", name);
        return RC_INVALID;
    }
    if (!n->config.cluster_secret) {
        snprintf(text, size, "this node has no cluster secret: set warren.cluster_secret or warren.cluster_secret_file to the same value on every node");
        return RC_DENIED;
    }
    if (strcmp(name, n->config.node_name) == 0) {
        snprintf(text, size, "cannot cluster node with itself: %s", name);
        return RC_INVALID;
    }
    if (n->join_done) {
        snprintf(text, size, "the node is joining already");
        return RC_BUSY;
    }
    if (n->membership != MEMBERSHIP_MEMBER && n->membership != MEMBERSHIP_OPENING) {
        return RC_OK;
    }
    struct broker *b = n->workers[0].broker;
    if (n->membership == MEMBERSHIP_OPENING || !broker_is_loaded(b) || n->waiting[0] != '\0') {
        snprintf(text, size, "this node is not up yet: %s", n->waiting);
        return RC_BUSY;
    }
    if (broker_node_find(b, span_str(name))) {
        snprintf(text, size, "The node is already a member of this cluster");
        return RC_EXISTS;
    }
    if (n->admitting > 0) {
        snprintf(text, size, "another node is being let in");
        return RC_BUSY;
    }
    const uint32_t nodes = nodes_count(n);
    if (nodes > 1) {
        snprintf(text, size,
                 "this node is a member of a cluster of %u nodes. To move it, stop it, run `warrenctl "
                 "forget_cluster_node %s` on another member, delete its data directory, start it and join again",
                 nodes, n->config.node_name);
        return RC_CONFLICT;
    }
    return RC_OK;
}

void member_join(void *ctx, const char *target, void (*done)(void *arg, enum rc rc, const char *text), void *arg)
{
    struct node *n = ctx;
    char name[PEER_NAME_MAX + 1], address[PEER_ADDRESS_MAX + 1], text[PEER_TEXT_MAX + 100] = "";
    split_target(n, target, name, address);
    enum rc rc = is_joinable(n, name, address, text, sizeof(text));
    if (rc != RC_OK) {
        done(arg, rc == RC_EXISTS ? RC_OK : rc, text);
        return;
    }
    // A blank node on its way to that cluster: whoever asks waits for the outcome.
    bool is_on_the_way = n->membership != MEMBERSHIP_MEMBER && strcmp(n->joined_to, name) == 0;
    if (is_on_the_way || n->membership == MEMBERSHIP_MEMBER) {
        // Dialled afresh: what it refused before may be cured, and what it said before does not prove that it is there.
        peer_net_remove(n->peers, name);
    }
    if (peer_net_add(n->peers, name, address, 0, NULL) != RC_OK) {
        done(arg, RC_NOT_CONNECTED, "the address of that node is not usable");
        return;
    }
    n->join_done = done;
    n->join_arg = arg;
    if (n->membership == MEMBERSHIP_MEMBER) {
        snprintf(n->joined_to, sizeof(n->joined_to), "%s", name);
        snprintf(n->joined_address, sizeof(n->joined_address), "%s", address);
        probe(n);
        return;
    }
    n->join_deadline_ns = now_ns() + JOIN_MS * NS_PER_MS;
    if (!is_on_the_way) {
        snprintf(n->joined_to, sizeof(n->joined_to), "%s", name);
        snprintf(n->joined_address, sizeof(n->joined_address), "%s", address);
        n->membership = MEMBERSHIP_NONE;
        if (n->is_rejoining && write_note(n, NOTE_JOIN) != RC_OK) {
            log_warning("the file " NOTE_FILE
                        " could not be written: after a restart this node goes on to join its former target");
        }
    }
}

struct greeting {
    const char *name;
    bool is_other_cluster, is_blank, is_alive;
    bool is_final;  // The refusal will not go away by itself.
    char refusal[PEER_TEXT_MAX + 1];
};

static void look_at_peer(void *ctx, const struct peer_info *p)
{
    struct greeting *g = ctx;
    if (strcmp(p->name, g->name) != 0) {
        return;
    }
    g->is_other_cluster = p->refusal_kind == REFUSED_CLUSTER;
    g->is_final = p->refusal_kind == REFUSED_SECRET || p->refusal_kind == REFUSED_VERSION ||
                  p->refusal_kind == REFUSED_IDENTITY || p->refusal_kind == REFUSED_NAME ||
                  p->refusal_kind == REFUSED_DENIED;
    g->is_alive = p->verdict == NODE_ALIVE;
    g->is_blank = p->hello && p->hello->is_blank;
    snprintf(g->refusal, sizeof(g->refusal), "%s", p->refusal ? p->refusal : "");
}

bool rejoin_is_refused(struct node *n)
{
    struct greeting g = {.name = n->joined_to};
    peer_net_each(n->peers, look_at_peer, &g);
    if (!g.is_final || g.is_alive) {
        return false;
    }
    node_wait_for(n, "%s", g.refusal);
    member_join_end(n, RC_DENIED, n->waiting);
    return true;
}

static void probe_failed(struct node *n, enum rc rc, const char *text)
{
    n->is_probing = false;
    peer_net_remove(n->peers, n->joined_to);
    n->joined_to[0] = '\0';
    member_join_end(n, rc, text);
}

// The other cluster is there: this node's own life ends. The asker is told to ask the process that starts next.
static void give_up_for_it(struct node *n)
{
    if (nodes_count(n) > 1) {
        probe_failed(n, RC_CONFLICT, "another node has joined this one meanwhile");
        return;
    }
    n->is_probing = false;
    if (write_note(n, NOTE_WIPE) != RC_OK) {
        probe_failed(n, RC_IO, "the data directory cannot be written");
        return;
    }
    log_notice("leaving the cluster of this one node to join that of %s; starting again", n->joined_to);
    atomic_store_explicit(&n->shared_restart, true, memory_order_release);
    member_join_end(n, RC_PENDING, "");
    n->stop_requested();
}

uint64_t rejoin_turn(struct node *n, uint64_t now)
{
    if (!n->is_probing) {
        return UINT64_MAX;
    }
    struct greeting g = {.name = n->joined_to};
    peer_net_each(n->peers, look_at_peer, &g);
    char text[PEER_TEXT_MAX + 100];
    if (g.is_other_cluster) {
        give_up_for_it(n);
        return UINT64_MAX;
    }
    if (g.refusal[0] != '\0') {
        probe_failed(n, RC_NOT_CONNECTED, g.refusal);
        return UINT64_MAX;
    }
    if (g.is_alive && g.is_blank) {
        snprintf(text, sizeof(text), "node %s is not a member of a cluster yet", n->joined_to);
        probe_failed(n, RC_NOT_CONNECTED, text);
        return UINT64_MAX;
    }
    if (now >= n->join_deadline_ns) {
        snprintf(text, sizeof(text), "node %s cannot be reached at %s", n->joined_to, n->joined_address);
        probe_failed(n, RC_NOT_CONNECTED, text);
        return UINT64_MAX;
    }
    return now + 20 * NS_PER_MS;
}

// ---- forgetting --------------------------------------------------------------------------------------------------

// Who asks for the same node meanwhile waits for the same outcome: the command may be repeated at any time.
struct waiter {
    struct waiter *next;
    void (*done)(void *arg, enum rc rc, const char *text);
    void *arg;
};

struct queue_check {
    struct broker *broker;
    uint32_t leaving;
    char first[300];         // A queue that would lose its majority; that would lose it now.
    char first_soon[300];
    uint32_t count, soon;
    uint32_t self, groups;   // This node; groups here that would lose it now.
};

struct forgetting {
    struct node *node;
    char name[PEER_NAME_MAX + 1];
    uint64_t replica_id;   // In the metadata group.
    uint64_t until;        // It is deleted, and this is waited for. 0: not yet.
    uint64_t give_up_at;   // Looking again and again until then.
    uint64_t look_at;      // Next. UINT64_MAX: under way.
    struct queue_check check;
    uint32_t worker;       // Whose groups are looked at.
    struct waiter *waiters;
};

static void wait_for_it(struct forgetting *f, void (*done)(void *arg, enum rc rc, const char *text), void *arg)
{
    struct waiter *w = mem_alloc(sizeof(*w));
    *w = (struct waiter){.next = f->waiters, .done = done, .arg = arg};
    f->waiters = w;
}

static bool is_known(void *ctx, uint32_t node_id)
{
    const struct queue_check *c = ctx;
    return broker_node_by_id(c->broker, node_id) != NULL;
}

static void check_queue(void *ctx, const struct broker_queue *q)
{
    struct queue_check *c = ctx;
    const enum broker_queue_without how = broker_queue_without(q, c->leaving, is_known, c);
    if (how == QUEUE_DIES && c->count++ == 0) {
        snprintf(c->first, sizeof(c->first), "%.*s", (int)q->name.len, (const char *)q->name.ptr);
    }
    if (how == QUEUE_LIVES_SOON && c->soon++ == 0) {
        snprintf(c->first_soon, sizeof(c->first_soon), "%.*s", (int)q->name.len, (const char *)q->name.ptr);
    }
}

struct group_check {
    struct queue_check *check;
    const struct host *host;
};

static bool is_up(void *ctx, uint32_t node_id)
{
    const struct group_check *c = ctx;
    return node_id == c->check->self || host_node_is_alive(c->host, node_id);
}

// The configuration here may say more than the record, and who is up is known now: without a majority of the voters
// nobody could take the forgotten one out.
static void check_group(void *ctx, struct group *g)
{
    struct queue_check *c = ctx;
    struct group_check of = {.check = c, .host = group_host(g)};
    struct consensus_status s;
    group_status(g, &s);
    c->groups += !broker_group_lives_without(&s, c->leaving, c->self, is_up, &of);
}

static void check_vhost(void *ctx, struct broker_vhost *v, struct span name)
{
    (void)name;
    broker_queue_each(v, check_queue, ctx);
}

static void forget_end(struct node *n, enum rc rc, const char *text)
{
    struct forgetting *f = n->forgetting;
    n->forgetting = NULL;
    for (struct waiter *w; (w = f->waiters) != NULL;) {
        f->waiters = w->next;
        w->done(w->arg, rc, text);
        free(w);
    }
    free(f);
}

static void wait_until_it_is_out(struct forgetting *f)
{
    f->until = now_ns() + FORGET_MS * NS_PER_MS;
    f->node->reconcile_at_ns = 0;
}

static void on_forgotten(void *ctx, const struct broker_result *r)
{
    struct node *n = ctx;
    if (r->rc != RC_OK && r->rc != RC_NOT_FOUND) {  // Not found: another member was asked, too, and was faster.
        forget_end(n, r->rc, r->text);
        return;
    }
    wait_until_it_is_out(n->forgetting);
}

// Not now, but soon, perhaps: what was being filled may vote already, and its record has yet to say so.
static void look_again(struct forgetting *f, uint64_t now)
{
    char text[900];
    if (now < f->give_up_at) {
        f->look_at = now + CHECK_AGAIN_MS * NS_PER_MS;
        return;
    }
    if (f->check.soon > 0) {
        snprintf(text, sizeof(text),
                 "%u queues have no majority of their members without node %s as long as their new replicas are being "
                 "filled, the first is '%s': wait for that, or bring it back",
                 f->check.soon, f->name, f->check.first_soon);
    } else {
        snprintf(text, sizeof(text),
                 "%u queues have no majority of voters without node %s now: wait until their new replicas "
                 "are filled, or bring it back",
                 f->check.groups, f->name);
    }
    forget_end(f->node, RC_CONFLICT, text);
}

static void checked(void *arg)
{
    struct forgetting *f = arg;
    struct node *n = f->node;
    if (f->check.groups > 0) {
        look_again(f, now_ns());
        return;
    }
    broker_node_delete(n->workers[0].broker, span_str(f->name), on_forgotten, n);
}

static void check_worker(void *arg)
{
    struct forgetting *f = arg;
    struct node *n = f->node;
    host_group_each(n->workers[f->worker].host, check_group, &f->check);
    const bool is_last = ++f->worker == n->workers_count;
    node_post(n, is_last ? 0 : f->worker, is_last ? checked : check_worker, f);
}

static void look(struct forgetting *f, uint64_t now)
{
    struct node *n = f->node;
    struct broker *b = n->workers[0].broker;
    const struct broker_node *known = broker_node_find(b, span_str(f->name));
    char text[900];
    if (!known || known->replica_id != f->replica_id) {
        wait_until_it_is_out(f);  // Another member was asked, too.
        return;
    }
    if (host_node_is_alive(n->workers[0].host, known->node_id)) {
        snprintf(text, sizeof(text), "node %s is running: it must be stopped before it is removed from the cluster", f->name);
        forget_end(n, RC_CONFLICT, text);
        return;
    }
    f->check = (struct queue_check){.broker = b, .leaving = known->node_id, .self = n->identity.node_id};
    broker_vhost_each(b, check_vhost, &f->check);
    if (f->check.count > 0) {
        snprintf(text, sizeof(text),
                 "%u queues would be left without a majority of their members, the first is '%s'. Delete "
                 "them first, or bring node %s back",
                 f->check.count, f->check.first, f->name);
        forget_end(n, RC_CONFLICT, text);
        return;
    }
    if (f->check.soon > 0) {
        look_again(f, now);
        return;
    }
    f->look_at = UINT64_MAX;
    f->worker = 0;
    node_post(n, 0, check_worker, f);
}

void member_forget(void *ctx, const char *name, void (*done)(void *arg, enum rc rc, const char *text), void *arg)
{
    struct node *n = ctx;
    struct broker *b = n->workers[0].broker;
    const struct broker_node *known = b ? broker_node_find(b, span_str(name)) : NULL;
    char text[700];
    if (n->forgetting && strcmp(n->forgetting->name, name) == 0) {
        wait_for_it(n->forgetting, done, arg);
        return;
    }
    if (!known || n->forgetting) {
        snprintf(text, sizeof(text),
                 known ? "another node is being forgotten" : "'%s' is not a node of this cluster", name);
        done(arg, known ? RC_BUSY : RC_NOT_FOUND, text);
        return;
    }
    if (known->node_id == n->identity.node_id) {
        snprintf(text, sizeof(text),
                 "node %s is running: it must be stopped before it is removed from the cluster", name);
        done(arg, RC_CONFLICT, text);
        return;
    }
    struct forgetting *f = mem_zalloc(sizeof(*f));
    *f = (struct forgetting){.node = n, .replica_id = known->replica_id, .give_up_at = now_ns() + SOON_MS * NS_PER_MS};
    snprintf(f->name, sizeof(f->name), "%s", name);
    wait_for_it(f, done, arg);
    n->forgetting = f;
    look(f, now_ns());
}

uint64_t forget_turn(struct node *n, uint64_t now)
{
    struct forgetting *f = n->forgetting;
    if (f && f->until == 0 && now >= f->look_at) {
        look(f, now);
        f = n->forgetting;
    }
    if (!f || f->until == 0) {
        return f ? f->look_at : UINT64_MAX;
    }
    struct consensus_status s;
    group_status(metastore_group(n->metastore), &s);
    if (!config_find(s.config, f->replica_id)) {
        forget_end(n, RC_OK, NULL);
        return UINT64_MAX;
    }
    if (now >= f->until) {
        forget_end(n, RC_TIMEOUT, "the node was forgotten, but the metadata group has not let go of it yet");
        return UINT64_MAX;
    }
    return now + 10 * NS_PER_MS;
}
