// SPDX-License-Identifier: Apache-2.0
// Sessions of the queue's state machine: opening once, ending, rejected publishes, nodes that went down.
//
// Counters of a node's worker only rise, and an open is answered before the session's first command is sent; so an open
// whose counter is not above the highest seen is a repeat, and an unknown session is one that ended. One number per
// node and worker is all the memory this takes (README).
#include "node/queue/queue_fsm_parts.h"
#include <stdlib.h>

static uint64_t key_of(struct queue_session_id id)
{
    return hash_u64(hash_u64(id.counter ^ (uint64_t)id.node << 32) ^ id.incarnation);
}

struct queue_fsm_session *queue_fsm_session_find(const struct queue_fsm *f, struct queue_session_id id)
{
    struct queue_busy *b = f->busy;
    if (!b) {
        return NULL;
    }
    if (b->recent && queue_session_id_equal(b->recent->id, id)) {
        return b->recent;
    }
    for (struct queue_fsm_session *s = map_get(&b->by_key, key_of(id)); s; s = s->same_key) {
        if (queue_session_id_equal(s->id, id)) {
            b->recent = s;
            return s;
        }
    }
    return NULL;
}

struct queue_fsm_consumer *queue_fsm_consumer_find(struct queue_fsm_session *s, uint32_t consumer)
{
    if (s->recent && s->recent->id == consumer) {
        return s->recent;
    }
    list_each (l, &s->consumers) {
        struct queue_fsm_consumer *c = list_entry(l, struct queue_fsm_consumer, in_session);
        if (c->id == consumer) {
            s->recent = c;
            return c;
        }
    }
    return NULL;
}

struct queue_fsm_session *queue_session_add(struct queue_fsm *f, struct queue_session_id id)
{
    if (!f->busy) {
        f->busy = mem_zalloc(sizeof(*f->busy));
        map_init_u64(&f->busy->by_key);
        list_init(&f->busy->sessions);
        list_init(&f->busy->consumers);
        list_init(&f->busy->classes);
    }
    struct queue_fsm_session *s = mem_zalloc(sizeof(*s));
    s->id = id;
    list_init(&s->consumers);
    list_add_tail(&f->busy->sessions, &s->link);
    f->busy->sessions_count++;
    uint64_t key = key_of(id);
    s->same_key = map_get(&f->busy->by_key, key);
    map_put(&f->busy->by_key, key, s);
    return s;
}

static void unlink_key(struct queue_busy *b, struct queue_fsm_session *s)
{
    uint64_t key = key_of(s->id);
    struct queue_fsm_session *first = map_get(&b->by_key, key);
    if (first == s) {
        if (s->same_key) {
            map_put(&b->by_key, key, s->same_key);
        } else {
            map_remove(&b->by_key, key);
        }
        return;
    }
    for (struct queue_fsm_session *at = first; at; at = at->same_key) {
        if (at->same_key == s) {
            at->same_key = s->same_key;
            return;
        }
    }
    assert(false);
}

void queue_session_remove(struct queue_fsm *f, struct queue_fsm_session *s, bool is_failed, struct queue_effects *fx)
{
    struct queue_busy *b = f->busy;
    while (!list_is_empty(&s->consumers)) {
        queue_consumer_end(f, list_entry(s->consumers.next, struct queue_fsm_consumer, in_session), is_failed, fx);
    }
    struct queue_effect *e = queue_effect_push(fx, QUEUE_EFFECT_ENDED);
    if (e) {
        e->user = s->user;
        e->id = s->id;
        e->session = s;
    }
    unlink_key(b, s);
    list_remove(&s->link);
    if (b->recent == s) {
        b->recent = NULL;
    }
    free(s->rejected);
    free(s);
    if (--b->sessions_count == 0) {
        assert(b->consumers_count == 0);
        assert(list_is_empty(&b->classes));
        map_deinit(&b->by_key);
        free(b);
        f->busy = NULL;
    }
}

struct queue_fsm_node *queue_node_record(struct queue_fsm *f, uint32_t node, uint32_t worker)
{
    for (uint32_t i = 0; i < f->nodes_count; i++) {
        if (f->nodes[i].node == node && f->nodes[i].worker == worker) {
            return &f->nodes[i];
        }
    }
    f->nodes = mem_realloc(f->nodes, (f->nodes_count + 1) * sizeof(*f->nodes));
    struct queue_fsm_node *n = &f->nodes[f->nodes_count++];
    *n = (struct queue_fsm_node){.node = node, .worker = worker};
    return n;
}

void queue_session_open_apply(struct queue_fsm *f, struct queue_session_id id, struct queue_effects *fx)
{
    struct queue_fsm_session *s = queue_fsm_session_find(f, id);
    struct queue_effect *e;
    if (!s) {
        struct queue_fsm_node *n = queue_node_record(f, id.node, queue_session_id_worker(id));
        bool is_repeat =
            id.incarnation < n->incarnation || (id.incarnation == n->incarnation && id.counter <= n->highest);
        if (is_repeat) {
            e = queue_effect_push(fx, QUEUE_EFFECT_REFUSED);
            if (e) {
                e->id = id;
            }
            return;
        }
        n->incarnation = id.incarnation;
        n->highest = id.counter;
        s = queue_session_add(f, id);
    }
    e = queue_effect_push(fx, QUEUE_EFFECT_OPENED);
    if (e) {
        e->session = s;
        e->id = id;
    }
}

void queue_node_down_apply(struct queue_fsm *f, uint32_t node, uint64_t incarnation, struct queue_effects *fx)
{
    struct list *l = f->busy ? f->busy->sessions.next : NULL;
    while (f->busy && l != &f->busy->sessions) {
        struct queue_fsm_session *s = list_entry(l, struct queue_fsm_session, link);
        l = l->next;
        if (s->id.node == node && s->id.incarnation <= incarnation) {
            queue_session_remove(f, s, false, fx);  // Not the client's failure (decision 8).
        }
    }
}

void queue_session_reject(struct queue_fsm_session *s, uint64_t seq)
{
    if (s->rejected_count > 0 && s->rejected[s->rejected_count - 1].last + 1 == seq) {
        s->rejected[s->rejected_count - 1].last = seq;
        return;
    }
    if (s->rejected_count == s->rejected_cap) {
        s->rejected_cap = s->rejected_cap ? s->rejected_cap * 2 : 4;
        s->rejected = mem_realloc(s->rejected, s->rejected_cap * sizeof(*s->rejected));
    }
    s->rejected[s->rejected_count++] = (struct queue_seq_range){.first = seq, .last = seq};
}

void queue_session_known(struct queue_fsm_session *s, uint64_t known)
{
    if (known <= s->known || known > s->seq[QUEUE_STREAM_PUBLISH]) {
        return;
    }
    s->known = known;
    uint32_t gone = 0;
    while (gone < s->rejected_count && s->rejected[gone].last <= known) {
        gone++;
    }
    if (gone > 0) {
        s->rejected_count -= gone;
        memmove(s->rejected, s->rejected + gone, s->rejected_count * sizeof(*s->rejected));
    }
    if (s->rejected_count > 0 && s->rejected[0].first <= known) {
        s->rejected[0].first = known + 1;
    }
}
