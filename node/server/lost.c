// SPDX-License-Identifier: Apache-2.0
// A member whose disk is there but vouches for nothing: it failed under an earlier process (store.failed), or
// the log of the metadata group is damaged or gone. What such a node had promised nobody knows, so it must
// not take part under its identity (law 2); it heals by coming back as a new one.
//
// The process mints a store id, notes it ("lost - - STORE"), and greets with it as a blank node that asks to
// be let in, while all its data stays where it is. Only when the cluster has replaced it (admission.c: the
// metadata leader with a majority, and no queue whose other members are short of one, because this disk may
// hold what they lack) it notes "wipe", starts itself again, wipes, and joins under the new store id like any
// wiped node. A majority of such nodes waits for an operator, with all data in place. Its list hash is none,
// so no blank node founds a cluster beside it (formation.h).
//
// A disk that fails again soon after that is not healed a second time: it would only fill and fail for ever.
#include "node/base/log.h"
#include "node/server/node.h"
#include "node/server/note.h"
#include <stdio.h>
#include <stdlib.h>

#define HEALED_FILE "healed"
enum { HEALED_BYTES_MAX = 64, HEAL_AGAIN_S = 600 };

static int64_t now_s(void)
{
    return clock_wall_ms(env_system_clock()) / 1000;
}

// When this directory was healed last; 0: never.
static int64_t healed_at(struct disk *d)
{
    uint8_t *bytes = NULL;
    size_t len = 0;
    if (disk_read_all(d, HEALED_FILE, HEALED_BYTES_MAX, &bytes, &len) != RC_OK) {
        return 0;
    }
    char text[HEALED_BYTES_MAX + 1];
    memcpy(text, bytes, len);
    text[len] = '\0';
    free(bytes);
    return strtoll(text, NULL, 10);
}

static enum rc set_healed(struct disk *d)
{
    struct buf b = {0};
    buf_printf(&b, "%lld\n", (long long)now_s());
    enum rc rc = disk_replace(d, ".", HEALED_FILE, buf_span(&b));
    buf_deinit(&b);
    return rc;
}

// NULL: the directory is as good as it was.
static const char *what_is_lost(struct node *n)
{
    if (n->is_store_suspect) {
        return "the disk failed under an earlier process";
    }
    const struct store_group *meta = node_recovered(n, META_GROUP_ID);
    if (meta ? meta->is_amnesiac : n->is_log_suspect) {
        return "the log of the metadata group is damaged";
    }
    if (meta && meta->replica_id != 0 && meta->replica_id != n->identity.replica_id) {
        return "the log of the metadata group is another member's";
    }
    return NULL;
}

static void forget_note(struct node *n, bool is_there)
{
    if (is_there && note_remove(n->disk) != RC_OK) {
        log_warning("the file " NOTE_FILE " could not be removed");
    }
}

enum rc lost_check(struct node *n)
{
    struct note t;
    const bool is_noted = note_read(n->disk, &t) == RC_OK && t.kind == NOTE_LOST && t.has_store_id;
    const char *what = identity_is_blank(&n->identity) ? NULL : what_is_lost(n);
    if (!what) {
        forget_note(n, is_noted);
        return RC_OK;
    }
    const int64_t since = now_s() - healed_at(n->disk);
    // With the note it is the same failure, whose healing was cut off.
    if (n->is_store_suspect && !is_noted && since >= 0 && since < HEAL_AGAIN_S) {
        log_critical("this disk was given up for a failure %lld s ago and has failed again: no more of that "
                     "by itself. Check it; then delete the file %s/" HEALED_FILE
                     " and start the node, or run `warrenctl forget_cluster_node %s` on another member",
                     (long long)since, n->config.data_dir, n->config.node_name);
        return RC_OK;
    }
    if (!is_noted) {
        t = (struct note){.kind = NOTE_LOST, .has_store_id = true};
        env_system_random(t.store_id, sizeof(t.store_id));
        TRY(note_write(n->disk, &t));
    }
    log_critical("%s: what this node had promised is not known, so it takes part in nothing. It asks its "
                 "cluster to be replaced; its data stays until that is "
                 "done. If it is the only copy that is left: see the README of node/server",
                 what);
    n->is_lost = true;
    memcpy(n->lost_cluster_id, n->identity.cluster_id, sizeof(n->lost_cluster_id));
    memcpy(n->identity.store_id, t.store_id, sizeof(n->identity.store_id));
    memset(n->identity.cluster_id, 0, sizeof(n->identity.cluster_id));
    n->identity.node_id = 0;
    n->identity.replica_id = 0;
    return RC_OK;
}

struct choice {
    const struct node *node;
    char name[PEER_NAME_MAX + 1];
};

static void consider(void *ctx, const struct peer_info *p)
{
    struct choice *c = ctx;
    const bool is_member = p->verdict == NODE_ALIVE && p->hello && !p->hello->is_blank;
    const bool is_ours =
        is_member &&
        (!c->node->is_lost || memcmp(p->hello->cluster_id, c->node->lost_cluster_id, CLUSTER_ID_BYTES) == 0);
    if (is_ours && (c->name[0] == '\0' || strcmp(p->name, c->name) < 0)) {
        snprintf(c->name, sizeof(c->name), "%s", p->name);
    }
}

void lost_ask(struct node *n)
{
    struct choice c = {.node = n};
    peer_net_each(n->peers, consider, &c);
    if (n->ask[0] != '\0' || c.name[0] != '\0') {
        member_ask(n, n->ask[0] != '\0' ? n->ask : c.name);
    } else {
        node_wait_for(n, n->is_lost ? "waiting for members of the cluster to replace this node, which lost "
                                      "its memory; its data is kept"
                                    : "waiting for a member of the cluster, to join it anew");
    }
}

void lost_granted(struct node *n, const struct join_reply *r)
{
    struct note t = {.kind = NOTE_WIPE, .has_store_id = true, .incarnation = n->identity.incarnation};
    memcpy(t.store_id, n->identity.store_id, sizeof(t.store_id));
    snprintf(t.name, sizeof(t.name), "%s", n->via);
    for (uint32_t i = 0; i < r->nodes_len; i++) {
        if (strcmp(r->nodes[i].name, n->via) == 0) {
            snprintf(t.address, sizeof(t.address), "%s", r->nodes[i].address);
        }
    }
    if (t.address[0] == '\0' || set_healed(n->disk) != RC_OK || note_write(n->disk, &t) != RC_OK) {
        node_wait_for(n, "the cluster has replaced this node, but its data directory cannot be written: %s",
                      n->config.data_dir);
        return;
    }
    log_notice("the cluster has replaced this node: giving up its data, joining as node %u", r->node_id);
    atomic_store_explicit(&n->shared_restart, true, memory_order_release);
    n->stop_requested();
}
