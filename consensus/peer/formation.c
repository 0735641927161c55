// SPDX-License-Identifier: Apache-2.0
// Formation (formation.h).
//
// Problem: blank nodes start in any order and may find the others blank, members, or away; never may two clusters come
// out of one list, also when some of the disks were wiped.
// Idea: all blank nodes with the same list agree on one name that may found, the first; and it does so only
// while it sees every listed node blank with that list. A listed node that is a member (or away, so that it
// may be one) forbids it.
// So a second founding from one list needs that no member of it is left anywhere.
//
// Order of the checks: member; nothing listed but ourselves; somebody is a member; somebody is missing; somebody has
// another list; first by name.
#include "consensus/peer/formation.h"
#include "node/base/map.h"
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

uint64_t formation_list_hash(const char *const *names, uint32_t count)
{
    assert(count <= FORMATION_PEERS_MAX);
    if (count == 0) {
        return 0;
    }
    const char *sorted[FORMATION_PEERS_MAX];
    memcpy(sorted, names, count * sizeof(sorted[0]));
    qsort(sorted, count, sizeof(sorted[0]), compare_names);
    uint64_t hash = 1;
    for (uint32_t i = 0; i < count; i++) {
        if (i == 0 || strcmp(sorted[i - 1], sorted[i]) != 0) {
            hash = hash_u64(hash ^ hash_bytes(span_str(sorted[i])));
        }
    }
    return hash ? hash : 1;
}

static void say(struct formation_decision *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct formation_decision *out, const char *format, ...)
{
    size_t used = strlen(out->reason);
    va_list args;
    va_start(args, format);
    vsnprintf(out->reason + used, sizeof(out->reason) - used, format, args);
    va_end(args);
}

static bool is_other(const struct formation_self *self, const struct formation_peer *p)
{
    return strcmp(self->name, p->name) != 0;
}

// Somebody on the list is a member: join, whatever the rest says. True if that decided it.
static bool decide_join(const struct formation_self *self, const struct formation_peer *peers, uint32_t peers_len,
                        struct formation_decision *out)
{
    const struct formation_peer *member = NULL;  // Any member, to compare cluster ids with.
    const struct formation_peer *via = NULL;     // First by name of those that can be asked now.
    const struct formation_peer *refuser = NULL;
    for (uint32_t i = 0; i < peers_len; i++) {
        const struct formation_peer *p = &peers[i];
        if (!is_other(self, p) || !p->is_known || p->is_blank) {
            continue;
        }
        if (member && memcmp(member->cluster_id, p->cluster_id, CLUSTER_ID_BYTES) != 0) {
            out->via = NULL;
            say(out, "%s and %s are members of different clusters", member->name, p->name);
            return true;
        }
        member = p;
        if (p->refusal) {
            refuser = p;
        } else if (p->is_reachable && (!via || strcmp(p->name, via->name) < 0)) {
            via = p;
        }
    }
    if (!member) {
        return false;
    }
    if (via) {
        out->state = FORMATION_JOIN;
        out->via = via->name;
    } else if (refuser) {
        say(out, "%s is a member of a cluster and refuses this node: %s", refuser->name, refuser->refusal);
    } else {
        say(out, "%s is a member of a cluster to be joined, and cannot be reached now", member->name);
    }
    return true;
}

void formation_decide(const struct formation_self *self, const struct formation_peer *peers, uint32_t peers_len,
                      struct formation_decision *out)
{
    assert(peers_len <= FORMATION_PEERS_MAX);
    *out = (struct formation_decision){.state = FORMATION_WAIT};
    if (!self->is_blank) {
        out->state = FORMATION_MEMBER;
        return;
    }
    if (decide_join(self, peers, peers_len, out)) {
        return;
    }
    const char *first = NULL;
    bool is_self_listed = peers_len == 0;
    uint32_t missing = 0;
    for (uint32_t i = 0; i < peers_len; i++) {
        const struct formation_peer *p = &peers[i];
        first = !first || strcmp(p->name, first) < 0 ? p->name : first;
        if (!is_other(self, p)) {
            is_self_listed = true;
        } else if (!p->is_reachable || !p->is_known || p->refusal) {
            say(out, missing++ ? ", %s" : "waiting for %s", p->name);
            if (p->refusal) {
                say(out, " (%s)", p->refusal);
            }
        }
    }
    if (missing) {
        return;
    }
    if (!is_self_listed) {
        say(out, "this node, %s, is not on its own list of cluster nodes", self->name);
        return;
    }
    for (uint32_t i = 0; i < peers_len; i++) {
        const struct formation_peer *p = &peers[i];
        if (is_other(self, p) && p->list_hash != self->list_hash) {
            say(out, p->list_hash == 0 ? "%s has no list of cluster nodes, or is a member that waits to be replaced"
                                       : "%s has another list of cluster nodes than this node", p->name);
            return;
        }
    }
    if (!first || strcmp(first, self->name) == 0) {
        out->state = FORMATION_FOUND;
        return;
    }
    say(out, "waiting for %s, the first by name, to found the cluster", first);
}

// A lost member's place is given away only by the leader of the metadata group, and only while a majority of
// that group's voters are here without the lost one: what a majority had promised is then known to those that are left.
enum admission formation_admit(const struct admission_view *v, char reason[FORMATION_REASON_BYTES])
{
    reason[0] = '\0';
    if (!v->is_known || v->is_same_store) {
        return v->is_known ? ADMISSION_KNOWN : ADMISSION_NEW;
    }
    if (!v->is_leading) {
        const bool can_ask = v->leader && v->leader[0] != '\0';
        if (can_ask) {
            snprintf(reason, FORMATION_REASON_BYTES,
                     "the name belongs to a member with another disk; %s decides", v->leader);
        } else {
            snprintf(reason, FORMATION_REASON_BYTES,
                     "the name belongs to a member with another disk. It is replaced once the metadata group "
                     "has a leader, for which it needs a majority of the members that have theirs%s%s",
                     v->missing[0] ? "; missing: " : "", v->missing);
        }
        return can_ask ? ADMISSION_ASK : ADMISSION_WAIT;
    }
    if (v->is_former_alive) {
        snprintf(reason, FORMATION_REASON_BYTES, "a member of this name is alive");
        return ADMISSION_WAIT;
    }
    if (v->voters_up * 2 <= v->voters) {
        snprintf(reason, FORMATION_REASON_BYTES,
                 "the member of this name has lost its disk; it is replaced when a majority of the others is "
                 "there: %s missing",
                 v->missing[0] ? v->missing : "nobody is");
        return ADMISSION_WAIT;
    }
    if (v->is_changing) {
        snprintf(reason, FORMATION_REASON_BYTES, "its new identity is being committed");
        return ADMISSION_WAIT;
    }
    return ADMISSION_REPLACE;
}
