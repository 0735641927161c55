// SPDX-License-Identifier: Apache-2.0
// Deliveries of one channel that the client has not settled, by delivery tag (data-plane §1.13).
//
// A ring of entries with ascending tags. Tags given to no-ack deliveries are not in it, and settled entries
// are marked and dropped when they reach the front or the ring is full, so memory follows the number of open
// deliveries (at most double) whatever the order of acks. Finding a tag is one look when tags are dense, else
// a binary search.
//
// Owner thread: the channel's.
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct channel_queue;

struct unacked_entry {
    uint64_t tag;
    uint64_t number;              // Delivery number in (queue, consumer).
    struct channel_queue *queue;  // NULL: settled.
    uint32_t consumer;            // 0: basic.get
};

struct unacked {
    struct unacked_entry *ring;
    uint32_t cap;         // Power of two or 0.
    uint64_t head, tail;  // Positions, tail - head <= cap.
    uint32_t count;       // Open entries.
    uint64_t next_tag;    // Tag of the next delivery; the first is 1.
};

void unacked_init(struct unacked *u);
void unacked_deinit(struct unacked *u);
// A delivery that needs no ack: only its tag.
static inline uint64_t unacked_skip(struct unacked *u)
{
    return u->next_tag++;
}
// Returns the tag.
uint64_t unacked_add(struct unacked *u, struct channel_queue *queue, uint32_t consumer, uint64_t number);
// Takes out the entry with that tag; false if it is not open.
bool unacked_take(struct unacked *u, uint64_t tag, struct unacked_entry *out);
bool unacked_has(const struct unacked *u, uint64_t tag);
// Takes out the lowest open entry if its tag is <= `tag`; false if there is none.
bool unacked_take_first(struct unacked *u, uint64_t tag, struct unacked_entry *out);
// Puts entries back that were taken out (a transaction rolled back); sorted by tag.
void unacked_put_back(struct unacked *u, const struct unacked_entry *entries, uint32_t count);
// Open entries in order: start with pos = 0; NULL at the end.
const struct unacked_entry *unacked_next(const struct unacked *u, uint64_t *pos);
