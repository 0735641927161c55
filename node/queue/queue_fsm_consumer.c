// SPDX-License-Identifier: Apache-2.0
// Consumers of the queue's state machine: who gets the next message, what each holds.
//
// A consumer that may get a message stands in the waiting list of its priority class; the next message goes
// to the first of the highest class that has one, which then goes to the end. What it holds is an array
// ascending by delivery number; settling makes a hole, and the array is closed up once holes outnumber the
// living, so that one message that is never settled pins nothing.
//
// Order matters and is state: classes, waiting lists and the lists of attachment are all in the snapshot.
#include "node/queue/queue_fsm_parts.h"
#include <stdlib.h>

static bool has_room(const struct queue_fsm_consumer *c)
{
    return c->prefetch > 0 ? c->held < c->prefetch : c->credit > 0;
}

void queue_consumer_refresh(struct queue_fsm *f, struct queue_fsm_consumer *c)
{
    bool may = c->id != 0 && !c->is_cancelled && has_room(c);
    if (f->settings.is_single_active) {
        may = may && c == f->busy->active && !f->busy->is_quiescing;
    }
    if (may && list_is_empty(&c->waiting)) {
        list_add_tail(&c->class_->waiting, &c->waiting);
    } else if (!may) {
        list_remove(&c->waiting);
    }
}

static struct queue_class *class_of(struct queue_busy *b, int32_t priority)
{
    struct list *before = &b->classes;  // The new one goes in front of this.
    list_each (l, &b->classes) {
        struct queue_class *k = list_entry(l, struct queue_class, link);
        if (k->priority == priority) {
            return k;
        }
        if (k->priority < priority) {
            before = l;
            break;
        }
    }
    struct queue_class *k = mem_zalloc(sizeof(*k));
    k->priority = priority;
    list_init(&k->waiting);
    list_add_tail(before, &k->link);
    return k;
}

static void class_leave(struct queue_fsm_consumer *c)
{
    list_remove(&c->waiting);
    if (--c->class_->members == 0) {
        list_remove(&c->class_->link);
        free(c->class_);
    }
    c->class_ = NULL;
}

static void class_join(struct queue_busy *b, struct queue_fsm_consumer *c, int32_t priority)
{
    c->priority = priority;
    c->class_ = class_of(b, priority);
    c->class_->members++;
}

struct queue_fsm_consumer *queue_consumer_add(struct queue_fsm *f, struct queue_fsm_session *s, uint32_t id,
                                              int32_t priority, struct span tag)
{
    assert(tag.len <= UINT8_MAX);
    struct queue_fsm_consumer *c = mem_zalloc(sizeof(*c) + tag.len);
    c->session = s;
    c->id = id;
    c->next_number = 1;
    c->tag_len = (uint8_t)tag.len;
    if (tag.len > 0) {
        memcpy(c->tag, tag.ptr, tag.len);
    }
    list_init(&c->waiting);
    list_add_tail(&s->consumers, &c->in_session);
    list_add_tail(&f->busy->consumers, &c->in_queue);
    f->busy->consumers_count++;
    class_join(f->busy, c, priority);
    return c;
}

static void consumer_free(struct queue_fsm *f, struct queue_fsm_consumer *c, struct queue_effects *fx)
{
    assert(c->held == 0);
    struct queue_effect *e = queue_effect_push(fx, QUEUE_EFFECT_GONE);
    if (e) {
        e->user = c->user;
        e->consumer = c;
    }
    if (c->session->recent == c) {
        c->session->recent = NULL;
    }
    class_leave(c);
    list_remove(&c->in_session);
    list_remove(&c->in_queue);
    f->busy->consumers_count--;
    free(c->unsettled);
    free(c);
}

// The highest priority, of equals the one attached first.
void queue_consumer_choose_active(struct queue_fsm *f)
{
    struct queue_fsm_consumer *best = NULL;
    list_each (l, &f->busy->consumers) {
        struct queue_fsm_consumer *c = list_entry(l, struct queue_fsm_consumer, in_queue);
        if (c->id != 0 && !c->is_cancelled && (!best || c->priority > best->priority)) {
            best = c;
        }
    }
    struct queue_fsm_consumer *old = f->busy->active;
    f->busy->active = best;
    f->busy->is_quiescing = false;
    if (old && old != best) {
        queue_consumer_refresh(f, old);
    }
    if (best) {
        queue_consumer_refresh(f, best);
    }
}

// After attach, settle or cancel: who is the single active one?
static void single_active_review(struct queue_fsm *f, struct queue_fsm_consumer *c)
{
    struct queue_busy *b = f->busy;
    if (!f->settings.is_single_active || !b) {
        return;
    }
    if (!b->active || b->active->is_cancelled || (b->is_quiescing && b->active->held == 0)) {
        queue_consumer_choose_active(f);
    } else if (c && c->id != 0 && !c->is_cancelled && c->priority > b->active->priority) {
        // The active one finishes what it holds first (data-plane §1.12).
        b->is_quiescing = true;
        queue_consumer_refresh(f, b->active);
        if (b->active->held == 0) {
            queue_consumer_choose_active(f);
        }
    }
}

void queue_consumer_attach(struct queue_fsm *f, struct queue_fsm_session *s, const struct queue_command *c,
                           struct queue_effects *fx)
{
    (void)fx;
    struct queue_fsm_consumer *consumer = queue_fsm_consumer_find(s, c->checkout.consumer);
    if (!consumer) {
        consumer = queue_consumer_add(f, s, c->checkout.consumer, c->checkout.priority, c->checkout.tag);
    } else if (consumer->priority != c->checkout.priority) {
        class_leave(consumer);
        class_join(f->busy, consumer, c->checkout.priority);
    }
    consumer->prefetch = c->checkout.prefetch;
    consumer->credit = c->checkout.prefetch == 0 ? LIMIT_PREFETCH_UNLIMITED : 0;
    consumer->is_no_ack = (c->fixed.flags & QUEUE_FLAG_NO_ACK) != 0;
    consumer->is_exclusive = (c->fixed.flags & QUEUE_FLAG_EXCLUSIVE) != 0;
    consumer->is_cancelled = false;
    single_active_review(f, consumer);
    queue_consumer_refresh(f, consumer);
}

void queue_consumer_cancel(struct queue_fsm *f, struct queue_fsm_consumer *c, struct queue_effects *fx)
{
    if (c->id == 0) {
        return;
    }
    c->is_cancelled = true;
    queue_consumer_refresh(f, c);
    single_active_review(f, NULL);
    if (c->held == 0) {
        assert(f->busy->active != c);
        consumer_free(f, c, fx);
    }
}

// ---- what it holds -------------------------------------------------------------------------------------------------

void queue_consumer_push(struct queue_fsm_consumer *c, struct queue_unsettled u)
{
    assert(u.ref != 0);
    if (c->len == c->cap) {
        // Close up holes first; grow if that leaves less than half free.
        uint32_t to = 0;
        for (uint32_t i = c->start; i < c->len; i++) {
            if (c->unsettled[i].ref != 0) {
                c->unsettled[to++] = c->unsettled[i];
            }
        }
        c->start = 0;
        c->len = to;
        if (c->len > c->cap / 2 || c->cap == 0) {
            c->cap = c->cap ? c->cap * 2 : 4;
            c->unsettled = mem_realloc(c->unsettled, c->cap * sizeof(*c->unsettled));
        }
    }
    c->unsettled[c->len++] = u;
    c->held++;
}

// Place of the first entry with a number >= `number`, [start, len].
static uint32_t lower_bound(const struct queue_fsm_consumer *c, uint64_t number)
{
    uint32_t lo = c->start, hi = c->len;
    if (lo < hi && number > c->unsettled[lo].number) {
        // Without closed-up holes the place is known.
        uint64_t guess = lo + (number - c->unsettled[lo].number);
        if (guess < hi && c->unsettled[guess].number == number) {
            return (uint32_t)guess;
        }
    }
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (c->unsettled[mid].number < number) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static void give_memory_back(struct queue_fsm_consumer *c)
{
    while (c->start < c->len && c->unsettled[c->start].ref == 0) {
        c->start++;
    }
    if (c->start == c->len) {
        c->start = c->len = 0;
        if (c->cap > 64) {
            free(c->unsettled);
            c->unsettled = NULL;
            c->cap = 0;
        }
    }
}

const struct queue_unsettled *queue_fsm_next(const struct queue_fsm_consumer *c, uint64_t number)
{
    if (c->held == 0 || number == UINT64_MAX) {
        return NULL;
    }
    for (uint32_t i = lower_bound(c, number + 1); i < c->len; i++) {
        if (c->unsettled[i].ref != 0) {
            return &c->unsettled[i];
        }
    }
    return NULL;
}

static void settle_one(struct queue_fsm *f, struct queue_unsettled *u, uint32_t how)
{
    assert(f->unacked_count > 0);
    f->unacked_count--;
    f->unacked_bytes -= queue_fsm_size(f, u->ref);
    if (how == QUEUE_RELEASE || how == QUEUE_RETURN) {
        queue_fsm_return(f, u, true, how == QUEUE_RETURN);
    } else {
        queue_fsm_drop(f, u->ref);
    }
    u->ref = 0;
}

void queue_consumer_settle(struct queue_fsm *f, struct queue_fsm_consumer *c,
                           const struct queue_settle_wire *w, struct queue_effects *fx)
{
    for (uint32_t i = lower_bound(c, w->first); i < c->len && c->unsettled[i].number <= w->last; i++) {
        if (c->unsettled[i].ref != 0) {
            settle_one(f, &c->unsettled[i], w->how);
            c->held--;
        }
    }
    give_memory_back(c);
    queue_consumer_refresh(f, c);
    single_active_review(f, NULL);
    if (c->is_cancelled && c->held == 0) {
        consumer_free(f, c, fx);
    }
}

void queue_consumer_end(struct queue_fsm *f, struct queue_fsm_consumer *c, bool is_failed, struct queue_effects *fx)
{
    for (uint32_t i = c->start; i < c->len; i++) {
        if (c->unsettled[i].ref != 0) {
            settle_one(f, &c->unsettled[i], is_failed ? QUEUE_RETURN : QUEUE_RELEASE);
        }
    }
    c->held = 0;
    c->start = c->len = 0;
    c->is_cancelled = true;
    queue_consumer_refresh(f, c);
    single_active_review(f, NULL);
    if (f->busy->active == c) {
        f->busy->active = NULL;
    }
    consumer_free(f, c, fx);
}

// ---- checkout ------------------------------------------------------------------------------------------------------

uint64_t queue_consumer_take(struct queue_fsm *f, struct queue_fsm_consumer *c, struct queue_effects *fx)
{
    struct queue_returned m;
    bool has = queue_fsm_pop_head(f, &m);
    assert(has);
    uint64_t number = c->next_number++;
    queue_consumer_push(
        c,
        (struct queue_unsettled){.number = number, .ref = m.ref, .acquired = m.acquired, .failed = m.failed});
    f->unacked_count++;
    f->unacked_bytes += queue_fsm_size(f, m.ref);
    if (fx && c->mark != fx->round) {
        c->mark = fx->round;
        struct queue_effect *e = queue_effect_push(fx, QUEUE_EFFECT_DELIVER);
        e->session = c->session;
        e->consumer = c;
        e->user = c->user;
    }
    return number;
}

static struct queue_fsm_consumer *first_waiting(const struct queue_busy *b)
{
    list_each (l, &b->classes) {
        struct queue_class *k = list_entry(l, struct queue_class, link);
        if (!list_is_empty(&k->waiting)) {
            return list_entry(k->waiting.next, struct queue_fsm_consumer, waiting);
        }
    }
    return NULL;
}

void queue_fsm_checkout(struct queue_fsm *f, struct queue_effects *fx)
{
    f->has_more = false;
    if (!f->busy) {
        return;
    }
    struct queue_fsm_consumer *c;
    for (uint32_t n = 0; f->ready_count > 0 && (c = first_waiting(f->busy)) != NULL; n++) {
        if (n == LIMIT_CHECKOUT_MESSAGES) {
            f->has_more = true;
            return;
        }
        queue_consumer_take(f, c, fx);
        if (c->prefetch == 0) {
            c->credit--;
        }
        list_remove(&c->waiting);
        if (has_room(c)) {
            list_add_tail(&c->class_->waiting, &c->waiting);
        }
    }
}
