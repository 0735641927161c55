// SPDX-License-Identifier: Apache-2.0
// An unbounded mailbox of jobs from any thread to one: how executors and workers hand jobs to each other.
//
// Bounds are kept by the submitters (their own limits), never here: a push cannot fail and cannot block. A push is one
// compare-and-swap; the owner takes everything at once and sees each sender's jobs in order.
#pragma once
#include "node/base/exec.h"
#include <stdatomic.h>
#include <stddef.h>

struct inbox {
    // Newest first, linked through job->link.next. Push: release; take: acquire.
    _Atomic(struct job *) shared_head;
};

static inline void inbox_init(struct inbox *i)
{
    atomic_init(&i->shared_head, NULL);
}

// Any thread. True if the box was empty: the owner must be woken.
static inline bool inbox_push(struct inbox *i, struct job *j)
{
    struct job *head = atomic_load_explicit(&i->shared_head, memory_order_relaxed);
    do {
        j->link.next = head ? &head->link : NULL;
    } while (!atomic_compare_exchange_weak_explicit(&i->shared_head, &head, j, memory_order_release,
                                                    memory_order_relaxed));
    return head == NULL;
}

// Owner only. The jobs, oldest first, linked through link.next (NULL ends).
static inline struct job *inbox_take(struct inbox *i)
{
    struct job *j = atomic_exchange_explicit(&i->shared_head, NULL, memory_order_acquire);
    struct list *reversed = NULL;
    while (j) {
        struct list *next = j->link.next;
        j->link.next = reversed;
        reversed = &j->link;
        j = next ? list_entry(next, struct job, link) : NULL;
    }
    return reversed ? list_entry(reversed, struct job, link) : NULL;
}

static inline struct job *inbox_next(struct job *j)
{
    return j->link.next ? list_entry(j->link.next, struct job, link) : NULL;
}
