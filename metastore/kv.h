// SPDX-License-Identifier: Apache-2.0
// The kv seam: ordered tables of byte keys under transactions, one writer, any number of frozen readers.
// Back ends: kv_lmdb.c (LMDB; the only file here that touches the file system) and kv_mem.c (tests,
// simulator). Both pass the same conformance tests (tests/unit/metastore/test_kv.c).
//
// Threads: the write transaction belongs to one thread from begin to commit. A read transaction may be begun
// on any thread and then be used by one thread at a time; it sees the last commit before its begin for as
// long as it lives. Spans handed out are borrowed until the next write of the same transaction, or its end.
// Errors other than RC_NOT_FOUND come from the disk: after RC_IO or RC_NO_SPACE in a write nothing may be
// written any more (P6).
#pragma once
#include "node/base/buf.h"
#include "node/base/rc.h"

enum kv_table { KV_META, KV_NODE, KV_BY_ID, KV_KW, KV_KWREV, KV_TRIG, KV_DEDUP, KV_TABLES };
enum { KV_KEY_MAX = 500 };  // LMDB's limit is 511.

struct kv;

struct kv_txn {  // Base of the back ends' own structs.
    struct kv *kv;
    bool is_write;
};

struct kv_ops {
    enum rc (*begin)(struct kv *kv, bool is_write, struct kv_txn **out);
    enum rc (*get)(struct kv_txn *t, enum kv_table table, struct span key,
                   struct span *value);  // RC_NOT_FOUND
    enum rc (*put)(struct kv_txn *t, enum kv_table table, struct span key, struct span value);  // Replaces.
    enum rc (*remove)(struct kv_txn *t, enum kv_table table, struct span key);  // RC_NOT_FOUND
    // The first row whose key is >= from (is_after: > from). RC_NOT_FOUND behind the last one. `from` may be
    // what an earlier call handed out.
    enum rc (*next)(struct kv_txn *t, enum kv_table table, struct span from, bool is_after, struct span *key,
                    struct span *value);
    enum rc (*commit)(struct kv_txn *t);  // Ends the transaction, also on failure. Not yet durable: see sync.
    void (*abort)(struct kv_txn *t);      // Ends the transaction without effect. Also ends readers.
    enum rc (*sync)(struct kv *kv);       // Everything committed is durable afterwards. Blocks.
    uint64_t (*size)(struct kv_txn *t);   // Bytes in use by rows (whole pages for LMDB).
    enum rc (*publish)(
        struct kv *kv);  // Makes this store the one that is found at the next open. Blocks; durable.
    void (*close)(struct kv *kv);  // No transaction may be open but a write transaction, which is lost.
};
struct kv {
    const struct kv_ops *ops;
};

static inline MUST_USE enum rc kv_begin(struct kv *kv, bool is_write, struct kv_txn **out)
{
    return kv->ops->begin(kv, is_write, out);
}
static inline MUST_USE enum rc kv_get(struct kv_txn *t, enum kv_table table, struct span key,
                                      struct span *value)
{
    return t->kv->ops->get(t, table, key, value);
}
static inline MUST_USE enum rc kv_put(struct kv_txn *t, enum kv_table table, struct span key,
                                      struct span value)
{
    return t->kv->ops->put(t, table, key, value);
}
static inline MUST_USE enum rc kv_remove(struct kv_txn *t, enum kv_table table, struct span key)
{
    return t->kv->ops->remove(t, table, key);
}
static inline MUST_USE enum rc kv_next(struct kv_txn *t, enum kv_table table, struct span from, bool is_after,
                                       struct span *key, struct span *value)
{
    return t->kv->ops->next(t, table, from, is_after, key, value);
}
static inline MUST_USE enum rc kv_commit(struct kv_txn *t)
{
    return t->kv->ops->commit(t);
}
static inline void kv_abort(struct kv_txn *t)
{
    t->kv->ops->abort(t);
}
static inline MUST_USE enum rc kv_sync(struct kv *kv)
{
    return kv->ops->sync(kv);
}
static inline uint64_t kv_size(struct kv_txn *t)
{
    return t->kv->ops->size(t);
}
static inline MUST_USE enum rc kv_publish(struct kv *kv)
{
    return kv->ops->publish(kv);
}
static inline void kv_close(struct kv *kv)
{
    kv->ops->close(kv);
}

// ---- back ends --------------------------------------------------------------------------------------------

struct kv *kv_mem_create(void);

// The published generation below `dir` (absolute; made if absent). RC_NO_FILE: none was ever published (or
// its name was lost). RC_CORRUPT: there was one, but it cannot be opened. RC_IO, RC_NO_SPACE.
MUST_USE enum rc kv_lmdb_open(const char *dir, uint64_t map_bytes, struct kv **out);
// A new empty generation beside the published one, not published yet. kv_publish removes the others' files
// (also while they are open: their readers go on). Of both: RC_NO_SPACE leaves all as it was, and the same may be tried
// again (kv_lmdb_pause).
MUST_USE enum rc kv_lmdb_create(const char *dir, uint64_t map_bytes, struct kv **out);
// No generation is the published one any more; durable. For a node that begins a new life.
MUST_USE enum rc kv_lmdb_forget(const char *dir);
// Room. LMDB cannot go on after a commit that met a full disk, so its blocks are allocated first; without
// room it waits, on its thread. Any thread: one does.
bool kv_lmdb_is_short(void);
// Before the meta thread is stopped: commits wait no more. One for which there is no room is dropped; the log
// has its content.
void kv_lmdb_stop_waiting(void);
// Called after RC_NO_SPACE of kv_lmdb_create and kv_publish, on the meta thread, before the next try: waits a while.
// `is_first`: says so in the log. False: nobody waits any more (kv_lmdb_stop_waiting).
bool kv_lmdb_pause(bool is_first);
// For tests: asked instead of the file system. Returns 0 or an errno; NULL: the file system again.
void kv_lmdb_set_allocate(int (*fn)(int fd, uint64_t bytes));
// Runs fn(ctx), answering RC_CORRUPT if it dies of a damaged LMDB file (bad page references fault, checks in
// the library abort). For opening a store; one call at a time in the process. *is_lost: it died, and what fn
// used of the library and the store must not be touched again, not even to close it (a few megabytes stay
// behind, once).
MUST_USE enum rc kv_lmdb_guard(enum rc (*fn)(void *ctx), void *ctx, bool *is_lost);

// ---- copy-out ---------------------------------------------------------------------------------------------

// Streams every row of a read transaction as chunks, in table and key order (kv_copy.c has the format).
struct kv_copy {
    struct kv_txn *txn;  // Borrowed.
    uint32_t seq;        // Next chunk's number.
    int table;           // Where to go on; KV_TABLES: only the end mark is left.
    bool is_started;     // A row of `table` was taken: go on behind `key`.
    struct buf key;
    struct buf pending;  // Encoded and not handed out yet.
    uint64_t rows;
    bool is_done;
};
void kv_copy_init(struct kv_copy *c, struct kv_txn *txn);
void kv_copy_deinit(struct kv_copy *c);
// Appends one chunk of at most bytes_max (>= 64). *is_last when nothing is left.
MUST_USE enum rc kv_copy_chunk(struct kv_copy *c, size_t bytes_max, struct buf *to, bool *is_last);

// The other end: takes chunks in order, tells rows. RC_MALFORMED for anything that is not such a stream.
struct kv_copy_reader {
    uint32_t seq;
    uint64_t rows;
    struct buf partial;  // Start of a row that goes on in the next chunk.
    bool is_done;        // The end mark was met.
    enum rc (*row)(void *ctx, enum kv_table table, struct span key, struct span value);
    void *ctx;
};
void kv_copy_reader_init(struct kv_copy_reader *r,
                         enum rc (*row)(void *, enum kv_table, struct span, struct span), void *ctx);
void kv_copy_reader_deinit(struct kv_copy_reader *r);
MUST_USE enum rc kv_copy_reader_chunk(struct kv_copy_reader *r, struct span chunk);
