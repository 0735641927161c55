// SPDX-License-Identifier: Apache-2.0
// Topic exchanges: a trie over the words of binding keys (data-plane §2.1).
//
// Keys are split at '.'; an empty key has zero words; '*' matches one word, '#' any number. Matching walks the trie
// with the words left. A binding may be reached on several ways ('#'), so the caller must take repeats; the number of
// ways is bounded because at most two '#' are accepted in a binding key.
#include "node/broker/internal.h"
#include "node/base/mem.h"
#include <stdlib.h>

struct topic_node {
    struct map words;  // word -> struct topic_node, '*' and '#' among them
    struct binding_set ends;
};

struct topic_node *topic_create(void)
{
    struct topic_node *t = mem_zalloc(sizeof(*t));
    map_init_bytes(&t->words);
    return t;
}

void topic_destroy(struct topic_node *t)
{
    if (!t) {
        return;
    }
    uint32_t pos = 0;
    for (struct topic_node *c; (c = map_next(&t->words, &pos, NULL, NULL));) {
        topic_destroy(c);
    }
    map_deinit(&t->words);
    free(t->ends.items);
    free(t);
}

// Cuts the next word off `*rest`. False when there is none left. An empty key has none.
static bool next_word(struct span *rest, bool *is_done, struct span *word)
{
    if (*is_done) {
        return false;
    }
    const uint8_t *dot = rest->len ? memchr(rest->ptr, '.', rest->len) : NULL;
    if (dot) {
        word->ptr = rest->ptr;
        word->len = (size_t)(dot - rest->ptr);
        rest->len -= word->len + 1;
        rest->ptr = dot + 1;
    } else {
        *word = *rest;
        *is_done = true;
    }
    return true;
}

static bool starts_done(struct span key)
{
    return key.len == 0;
}

void topic_add(struct topic_node *t, struct binding *b)
{
    struct span rest = b->key, word;
    bool is_done = starts_done(rest);
    while (next_word(&rest, &is_done, &word)) {
        struct topic_node *next = map_get_bytes(&t->words, word);
        if (!next) {
            next = topic_create();
            map_put_bytes(&t->words, word, next);
        }
        t = next;
    }
    binding_set_add(&t->ends, b);
}

// True if the node is empty afterwards.
static bool remove_from(struct topic_node *t, struct span rest, bool is_done, struct binding *b)
{
    struct span word;
    if (!next_word(&rest, &is_done, &word)) {
        binding_set_remove(&t->ends, b);
    } else {
        struct topic_node *next = map_get_bytes(&t->words, word);
        if (next && remove_from(next, rest, is_done, b)) {
            map_remove_bytes(&t->words, word);
            topic_destroy(next);
        }
    }
    return t->ends.count == 0 && map_count(&t->words) == 0;
}

void topic_remove(struct topic_node *t, struct binding *b)
{
    remove_from(t, b->key, starts_done(b->key), b);
}

struct match {
    void (*each)(void *ctx, struct binding *b);
    void *ctx;
};

static void match_from(const struct topic_node *t, struct span rest, bool is_done, const struct match *m)
{
    struct topic_node *hash = map_get_bytes(&t->words, span_str("#"));
    if (hash) {
        // '#' takes none, one, ... all of the words left.
        struct span left = rest, word;
        bool left_done = is_done;
        do {
            match_from(hash, left, left_done, m);
        } while (next_word(&left, &left_done, &word));
    }
    struct span word;
    if (!next_word(&rest, &is_done, &word)) {
        for (uint32_t i = 0; i < t->ends.count; i++) {
            m->each(m->ctx, t->ends.items[i]);
        }
        return;
    }
    struct topic_node *same = map_get_bytes(&t->words, word);
    // A routing key's own "#" or "*" is a word like any other, but never a wildcard's node twice.
    bool is_wild = word.len == 1 && (word.ptr[0] == '#' || word.ptr[0] == '*');
    if (same && !is_wild) {
        match_from(same, rest, is_done, m);
    }
    struct topic_node *star = map_get_bytes(&t->words, span_str("*"));
    if (star) {
        match_from(star, rest, is_done, m);
    }
}

void topic_match(struct topic_node *t, struct span key, void (*each)(void *ctx, struct binding *b), void *ctx)
{
    struct match m = {each, ctx};
    match_from(t, key, starts_done(key), &m);
}
