// SPDX-License-Identifier: Apache-2.0
// Intrusive doubly linked list. The list head is a `struct list` that points at itself when empty.
// Owner thread: that of the struct that holds the head. No allocation.
#pragma once
#include "node/base/mem.h"
#include <stdbool.h>

struct list {
    struct list *next;  // Never NULL once initialised.
    struct list *prev;
};

static inline void list_init(struct list *l)
{
    l->next = l->prev = l;
}
static inline bool list_is_empty(const struct list *l)
{
    return l->next == l;
}
static inline void list_add_tail(struct list *head, struct list *item)
{
    item->prev = head->prev;
    item->next = head;
    head->prev->next = item;
    head->prev = item;
}
static inline void list_add_head(struct list *head, struct list *item)
{
    list_add_tail(head->next, item);
}
// Leaves `item` initialised (empty), so that removing twice is harmless.
static inline void list_remove(struct list *item)
{
    item->prev->next = item->next;
    item->next->prev = item->prev;
    list_init(item);
}
// Removes and returns the first item, or NULL.
static inline struct list *list_pop(struct list *head)
{
    if (list_is_empty(head)) {
        return NULL;
    }
    struct list *item = head->next;
    list_remove(item);
    return item;
}
// Moves all of `from` behind `to`; `from` is empty afterwards.
static inline void list_splice(struct list *to, struct list *from)
{
    if (list_is_empty(from)) {
        return;
    }
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    list_init(from);
}

#define list_entry(item, type, member) container_of(item, type, member)
// Safe against removal of the current item.
#define list_each(item, head)                                                                      \
    for (struct list *item = (head)->next, *list_next_##item = item->next; item != (head);         \
         item = list_next_##item, list_next_##item = item->next)
