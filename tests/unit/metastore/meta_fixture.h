// SPDX-License-Identifier: Apache-2.0
// Shared by the metastore's tests: temporary directories, paths from text, entries from commands.
#pragma once
#include "consensus/consensus.h"
#include "metastore/change.h"
#include "metastore/kv.h"
#include "metastore/tree.h"
#include "node/base/mem.h"
#include "proto/record.h"
#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// As ck_assert, for what is asked very often: Check writes a note for each of its own.
#define HOT(x)                                                                                               \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            ck_abort_msg("%s", #x);                                                                          \
        }                                                                                                    \
    } while (0)

// What a damaged LMDB file leaves behind after the library died of it stays where it is (kv_lmdb_guard).
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:mdb_\nleak:lmdb_begin\n";
}

enum { BACK_MEM, BACK_LMDB, BACKS };

static inline char *temp_dir(void)
{
    const char *base = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof(path), "%s/warren-meta-XXXXXX", base ? base : P_tmpdir);
    ck_assert_ptr_nonnull(mkdtemp(path));
    return mem_strndup(path, strlen(path));
}

static inline int temp_remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

// Takes `dir`.
static inline void temp_remove(char *dir)
{
    nftw(dir, temp_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(dir);
}

static inline struct kv *back_create(int back, const char *dir)
{
    if (back == BACK_MEM) {
        return kv_mem_create();
    }
    struct kv *kv = NULL;
    ck_assert_int_eq(kv_lmdb_create(dir, 1ull << 30, &kv), RC_OK);
    ck_assert_int_eq(kv_publish(kv), RC_OK);
    return kv;
}

// "a/b/c"; borrows the text.
static inline struct meta_path path_text(const char *text)
{
    struct meta_path p = {0};
    for (;;) {
        const char *end = strchrnul(text, '/');
        HOT(p.depth < META_PATH_DEPTH);
        p.names[p.depth++] = span_of(text, (size_t)(end - text));
        if (*end == '\0') {
            return p;
        }
        text = end + 1;
    }
}

static inline void path_to_text(const struct meta_path *p, char *to, size_t size)
{
    size_t at = 0;
    to[0] = '\0';
    for (uint32_t i = 0; i < p->depth; i++) {
        at += (size_t)snprintf(to + at, size - at, "%s%.*s", i ? "/" : "", (int)p->names[i].len,
                               (const char *)p->names[i].ptr);
    }
}

// ---- a tree and its log position --------------------------------------------------------------------------

struct bench {
    struct kv *kv;
    struct tree tree;
    struct buf changes;  // Of the latest command.
    struct tree_result result;
    uint64_t index;
    uint64_t stamp_ms;
};

static inline void bench_open(struct bench *b, struct kv *kv)
{
    *b = (struct bench){.kv = kv, .stamp_ms = 1000};
    ck_assert_int_eq(tree_open(&b->tree, kv), RC_OK);
    b->index = b->tree.meta.applied_index;
}

static inline void bench_close(struct bench *b)
{
    tree_close(&b->tree);
    kv_close(b->kv);
    buf_deinit(&b->changes);
}

static inline void entry_of(struct buf *to, struct meta_command *c, struct command_ref ref, uint64_t stamp_ms)
{
    HOT(!c->is_invalid);
    uint8_t head[COMMAND_HEAD_BYTES];
    command_encode_head(head, stamp_ms);
    to->len = 0;
    buf_bytes(to, head, sizeof(head));
    command_encode_request(to, &ref, c);
    HOT(command_validate(span_of(to->ptr + COMMAND_HEAD_BYTES, to->len - COMMAND_HEAD_BYTES)) == RC_OK);
    meta_command_deinit(c);
}

static inline enum rc bench_entry(struct bench *b, struct span payload)
{
    b->changes.len = 0;
    b->index++;
    tree_apply(&b->tree, b->index, 1, RECORD_ENTRY, payload, &b->changes, &b->result);
    HOT(b->tree.rc == RC_OK);
    HOT(b->result.is_command);
    return b->result.rc;
}

// Applies the command (takes it), without deduplication.
static inline enum rc bench_run(struct bench *b, struct meta_command *c)
{
    struct buf payload;
    buf_init(&payload);
    entry_of(&payload, c, (struct command_ref){0}, b->stamp_ms);
    const enum rc rc = bench_entry(b, buf_span(&payload));
    buf_deinit(&payload);
    return rc;
}

static inline enum rc bench_put(struct bench *b, const char *path, const char *payload,
                                enum meta_if condition)
{
    struct meta_command c;
    meta_command_init(&c);
    const struct meta_path p = path_text(path);
    meta_put(&c, &p, span_str(payload), condition, 0);
    return bench_run(b, &c);
}

static inline enum rc bench_put_kept(struct bench *b, const char *path, const char *watched, bool on_children)
{
    struct meta_command c;
    meta_command_init(&c);
    const struct meta_path p = path_text(path);
    const struct meta_path w = path_text(watched);
    meta_put(&c, &p, span_str("kept"), META_IF_ANY, 0);
    meta_keep_while(&c, &w, on_children);
    return bench_run(b, &c);
}

static inline enum rc bench_delete(struct bench *b, const char *path, enum meta_if condition)
{
    struct meta_command c;
    meta_command_init(&c);
    const struct meta_path p = path_text(path);
    meta_delete(&c, &p, condition, 0);
    return bench_run(b, &c);
}

static inline bool bench_has(struct bench *b, const char *path)
{
    struct tree_node_info info;
    const struct meta_path p = path_text(path);
    return tree_get(&b->tree, &p, &info);
}

// The latest command's changes as text: "+path", "=path" (updated), "-path", joined by spaces.
static inline const char *bench_changes(struct bench *b)
{
    static char text[4096];
    struct reader r = reader_of(buf_span(&b->changes));
    struct meta_change c;
    struct meta_path p;
    size_t at = 0;
    text[0] = '\0';
    while (change_next(&r, &c, &p) == RC_OK) {
        char path[512];
        path_to_text(&p, path, sizeof(path));
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%c%s", at ? " " : "",
                               c.is_deleted   ? '-'
                               : c.is_created ? '+'
                                              : '=',
                               path);
        ck_assert_uint_lt(at, sizeof(text));
        ck_assert_uint_eq(c.index, b->index);
    }
    return text;
}
