// SPDX-License-Identifier: Apache-2.0
// kv on LMDB, and its generations on disk.
//
// Layout below the metastore's directory: `gen-N/` is an LMDB environment (data.mdb, lock.mdb), `CURRENT` is
// the text "N\n" and names the published one. A snapshot install fills a new generation and publishes it by
// replacing CURRENT (write aside, sync, rename, sync the directory); a crash before that leaves the old one
// in force (P11). MDB_NOMETASYNC: a commit syncs the data pages but not the page that names them, so a crash
// may fall back by a transaction or so, never into a mix; mdb_env_sync makes the last commit durable.
// MDB_NOTLS: readers move between threads (begun on the meta thread, walked on the cold one). Never
// MDB_NOSYNC (decision 12). A commit that meets a full disk loses its transaction, whose commands were
// answered already (the Raft log has them): so its blocks are allocated before it is begun, and without room it waits.
// LMDB has no checksums: rows carry their own (tree_rows.c), and kv_lmdb_guard
// turns what a damaged file does to the library (faults, failed checks) into RC_CORRUPT while the start-up
// check reads everything once. This is a driver: it is the one file of metastore/ that calls the file system.
#include "metastore/kv.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <lmdb.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct kv_lmdb {
    struct kv kv;
    MDB_env *env;
    MDB_dbi dbi[KV_TABLES];
    char *dir;  // Owned; the metastore's directory.
    uint64_t generation;
    bool is_incomplete;  // A commit was dropped, for nobody waited: what this says must not be found again.
    uint64_t allocated;  // Bytes of data.mdb that have blocks; UINT64_MAX: the file system does not do that.
};

struct lmdb_txn {
    struct kv_txn txn;
    MDB_txn *mdb;
    MDB_cursor *cursor[KV_TABLES];  // Opened on first use.
    uint64_t put_bytes;             // Keys and values, so far.
    uint64_t changes;               // Rows put and removed, so far.
    uint64_t leaves, branches;      // Pages of the tables when it began; a write transaction's.
};

static const char *const table_names[KV_TABLES] = {
    [KV_META] = "meta",   [KV_NODE] = "node", [KV_BY_ID] = "by_id", [KV_KW] = "kw",
    [KV_KWREV] = "kwrev", [KV_TRIG] = "trig", [KV_DEDUP] = "dedup",
};

static enum rc rc_of(int e)
{
    switch (e) {
    case MDB_SUCCESS:
        return RC_OK;
    case MDB_NOTFOUND:
        return RC_NOT_FOUND;
    case MDB_MAP_FULL:
    case ENOSPC:
    case EDQUOT:
        return RC_NO_SPACE;
    case MDB_PANIC:
    case MDB_TXN_FULL:
    case MDB_READERS_FULL:
        log_error("metadata store: lmdb: %s", mdb_strerror(e));
        return RC_IO;
    default:
        log_error("metadata store: lmdb: %s", mdb_strerror(e));
        // LMDB's own codes say that what it found makes no sense, and so do EINVAL and EFBIG (a map larger
        // than any file).
        return e < 0 || e == EINVAL || e == EFBIG ? RC_CORRUPT : RC_IO;
    }
}

static MDB_val val_of(struct span s)
{
    return (MDB_val){.mv_size = s.len, .mv_data = (void *)s.ptr};
}

static struct span span_of_val(MDB_val v)
{
    return span_of(v.mv_data, v.mv_size);
}

// ---- transactions -----------------------------------------------------------------------------------------

static enum rc lmdb_begin(struct kv *kv, bool is_write, struct kv_txn **out)
{
    struct kv_lmdb *k = container_of(kv, struct kv_lmdb, kv);
    struct lmdb_txn *t = mem_zalloc(sizeof(*t));
    t->txn = (struct kv_txn){.kv = kv, .is_write = is_write};
    const enum rc rc = rc_of(mdb_txn_begin(k->env, NULL, is_write ? 0 : MDB_RDONLY, &t->mdb));
    if (rc != RC_OK) {
        free(t);
        return rc;
    }
    for (int i = 0; is_write && i < KV_TABLES; i++) {
        MDB_stat s;
        if (mdb_stat(t->mdb, k->dbi[i], &s) == MDB_SUCCESS) {
            t->leaves += s.ms_leaf_pages + s.ms_overflow_pages;
            t->branches += s.ms_branch_pages;
        }
    }
    *out = &t->txn;
    return RC_OK;
}

static MDB_dbi dbi_of(const struct lmdb_txn *t, enum kv_table table)
{
    return container_of(t->txn.kv, struct kv_lmdb, kv)->dbi[table];
}

static enum rc lmdb_get(struct kv_txn *txn, enum kv_table table, struct span key, struct span *value)
{
    struct lmdb_txn *t = container_of(txn, struct lmdb_txn, txn);
    MDB_val k = val_of(key);
    MDB_val v;
    TRY(rc_of(mdb_get(t->mdb, dbi_of(t, table), &k, &v)));
    *value = span_of_val(v);
    return RC_OK;
}

static enum rc lmdb_put(struct kv_txn *txn, enum kv_table table, struct span key, struct span value)
{
    struct lmdb_txn *t = container_of(txn, struct lmdb_txn, txn);
    assert(txn->is_write);
    assert(key.len > 0 && key.len <= KV_KEY_MAX);
    MDB_val k = val_of(key);
    MDB_val v = val_of(value);
    t->put_bytes += key.len + value.len;
    t->changes++;
    return rc_of(mdb_put(t->mdb, dbi_of(t, table), &k, &v, 0));
}

static enum rc lmdb_remove(struct kv_txn *txn, enum kv_table table, struct span key)
{
    struct lmdb_txn *t = container_of(txn, struct lmdb_txn, txn);
    assert(txn->is_write);
    MDB_val k = val_of(key);
    t->changes++;
    return rc_of(mdb_del(t->mdb, dbi_of(t, table), &k, NULL));
}

static enum rc lmdb_next(struct kv_txn *txn, enum kv_table table, struct span from, bool is_after,
                         struct span *key, struct span *value)
{
    struct lmdb_txn *t = container_of(txn, struct lmdb_txn, txn);
    MDB_cursor **cursor = &t->cursor[table];
    if (!*cursor) {
        TRY(rc_of(mdb_cursor_open(t->mdb, dbi_of(t, table), cursor)));
    }
    MDB_val k = val_of(from);
    MDB_val v;
    // LMDB refuses to seek to an empty key.
    int e = mdb_cursor_get(*cursor, &k, &v, from.len == 0 ? MDB_FIRST : MDB_SET_RANGE);
    if (e == MDB_SUCCESS && is_after && from.len > 0 && k.mv_size == from.len &&
        memcmp(k.mv_data, from.ptr, from.len) == 0) {
        e = mdb_cursor_get(*cursor, &k, &v, MDB_NEXT);
    }
    TRY(rc_of(e));
    *key = span_of_val(k);
    *value = span_of_val(v);
    return RC_OK;
}

static void close_cursors(struct lmdb_txn *t)
{
    for (int i = 0; i < KV_TABLES; i++) {
        if (t->cursor[i]) {
            mdb_cursor_close(t->cursor[i]);
        }
    }
}

// ---- room -------------------------------------------------------------------------------------------------

enum {
    // A commit is begun only with so much allocated behind the last page in use: a bit, thrice what was put, for pages
    // are split, and a copy of each page that a change may have touched (room_needed). What a commit frees is used by
    // the one after the next, or, while somebody reads, by none.
    COMMIT_BYTES = 1 << 20,
    COMMIT_FACTOR = 3,
    DEPTH = 4,  // Of branches above a leaf.
    LOCK_BYTES = 64 << 10,  // More than LMDB's table of readers.
    ROOM_RETRY_NS = 100000000,
};

static _Atomic bool shared_is_short;    // Of the process: its stores share a disk. Relaxed: a gauge.
static _Atomic bool shared_is_hurried;  // No waiting any more (release, acquire).

static int allocate_file(int fd, uint64_t bytes)
{
    return fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0 ? 0 : errno;
}
static int (*allocate)(int fd, uint64_t bytes) = allocate_file;

void kv_lmdb_set_allocate(int (*fn)(int fd, uint64_t bytes))
{
    allocate = fn ? fn : allocate_file;
}

bool kv_lmdb_is_short(void)
{
    return atomic_load_explicit(&shared_is_short, memory_order_relaxed);
}

void kv_lmdb_stop_waiting(void)
{
    atomic_store_explicit(&shared_is_hurried, true, memory_order_release);
}

// Whether `need` bytes are allocated behind the last page in use as of the last commit.
static bool has_room(struct kv_lmdb *k, uint64_t need)
{
    MDB_envinfo info;
    MDB_stat s;
    mdb_filehandle_t fd;
    if (k->allocated == UINT64_MAX || mdb_env_info(k->env, &info) != 0 || mdb_env_stat(k->env, &s) != 0 ||
        mdb_env_get_fd(k->env, &fd) != 0) {
        return true;
    }
    const uint64_t end = (info.me_last_pgno + 1) * s.ms_psize + need;
    if (k->allocated >= end) {
        return true;
    }
    const int e = allocate(fd, end + COMMIT_BYTES);
    const bool is_full = e == ENOSPC || e == EDQUOT;
    if (e == 0) {
        k->allocated = end + COMMIT_BYTES;
    } else if (!is_full) {
        k->allocated = UINT64_MAX;  // As it was before: a full disk ends the process.
    }
    atomic_store_explicit(&shared_is_short, is_full, memory_order_relaxed);
    return !is_full;
}

bool kv_lmdb_pause(bool is_first)
{
    const struct timespec pause = {.tv_nsec = ROOM_RETRY_NS};
    atomic_store_explicit(&shared_is_short, true, memory_order_relaxed);
    if (is_first) {
        log_error("metadata store: the disk is full: changes wait until there is room");
    }
    if (atomic_load_explicit(&shared_is_hurried, memory_order_acquire)) {
        return false;
    }
    nanosleep(&pause, NULL);
    return true;
}

// False: there is none, and nobody waits any more.
static bool room_wait(struct kv_lmdb *k, uint64_t need)
{
    for (bool is_first = true; !has_room(k, need); is_first = false) {
        if (!kv_lmdb_pause(is_first)) {
            return false;
        }
    }
    return true;
}

// Gives a file of a few pages its blocks before it is written. RC_NO_SPACE; file systems that do not do that pass.
static enum rc allocate_small(int fd, uint64_t bytes)
{
    const int e = allocate(fd, bytes);
    const bool is_full = e == ENOSPC || e == EDQUOT;
    atomic_store_explicit(&shared_is_short, is_full, memory_order_relaxed);
    return is_full ? RC_NO_SPACE : RC_OK;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t room_needed(struct kv_lmdb *k, const struct lmdb_txn *t)
{
    MDB_stat s;
    const uint64_t page = mdb_env_stat(k->env, &s) == 0 ? s.ms_psize : 4096;
    const uint64_t copied = least(t->changes, t->leaves) + least(t->changes * DEPTH, t->branches);
    return COMMIT_BYTES + COMMIT_FACTOR * t->put_bytes + page * copied;
}

static enum rc lmdb_commit(struct kv_txn *txn)
{
    struct lmdb_txn *t = container_of(txn, struct lmdb_txn, txn);
    assert(txn->is_write);
    close_cursors(t);
    struct kv_lmdb *k = container_of(txn->kv, struct kv_lmdb, kv);
    enum rc rc = RC_OK;
    if (room_wait(k, room_needed(k, t))) {
        rc = rc_of(mdb_txn_commit(t->mdb));
    } else {
        k->is_incomplete = true;
        mdb_txn_abort(t->mdb);
    }
    free(t);
    return rc;
}

static void lmdb_abort(struct kv_txn *txn)
{
    struct lmdb_txn *t = container_of(txn, struct lmdb_txn, txn);
    close_cursors(t);
    mdb_txn_abort(t->mdb);
    free(t);
}

static enum rc lmdb_sync(struct kv *kv)
{
    return rc_of(mdb_env_sync(container_of(kv, struct kv_lmdb, kv)->env, 1));
}

// Pages in use; free pages, which the file keeps for reuse, do not count.
static uint64_t lmdb_size(struct kv_txn *txn)
{
    struct lmdb_txn *t = container_of(txn, struct lmdb_txn, txn);
    uint64_t bytes = 0;
    for (int i = 0; i < KV_TABLES; i++) {
        MDB_stat s;
        if (mdb_stat(t->mdb, dbi_of(t, (enum kv_table)i), &s) == MDB_SUCCESS) {
            bytes += (uint64_t)s.ms_psize * (s.ms_branch_pages + s.ms_leaf_pages + s.ms_overflow_pages);
        }
    }
    return bytes;
}

static void lmdb_close(struct kv *kv)
{
    struct kv_lmdb *k = container_of(kv, struct kv_lmdb, kv);
    mdb_env_close(k->env);
    free(k->dir);
    free(k);
}

// ---- generations ------------------------------------------------------------------------------------------

static void path_of(char out[PATH_MAX], const char *dir, const char *format, uint64_t generation)
{
    char name[64];
    snprintf(name, sizeof(name), format, (unsigned long long)generation);
    const int n = snprintf(out, PATH_MAX, "%s/%s", dir, name);
    assert(n > 0 && n < PATH_MAX);
}

static enum rc rc_of_errno(const char *what)
{
    if (errno == ENOSPC || errno == EDQUOT) {
        return RC_NO_SPACE;  // Who waits for room says so, once.
    }
    log_error("metadata store: %s: %s", what, strerror(errno));
    return RC_IO;
}

static enum rc dir_sync(const char *dir)
{
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return rc_of_errno("open directory");
    }
    const int e = fsync(fd);
    const enum rc rc = e == 0 ? RC_OK : rc_of_errno("sync directory");
    close(fd);
    return rc;
}

static enum rc dir_make(const char *dir)
{
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        return rc_of_errno("make directory");
    }
    return RC_OK;
}

// RC_NO_FILE: never published. RC_CORRUPT: there is a CURRENT, but it says nothing sensible.
static enum rc current_read(const char *dir, uint64_t *generation)
{
    char path[PATH_MAX];
    path_of(path, dir, "CURRENT", 0);
    FILE *f = fopen(path, "re");
    if (!f) {
        return errno == ENOENT ? RC_NO_FILE : rc_of_errno("open CURRENT");
    }
    char text[32];
    const size_t n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    char *end;
    *generation = strtoull(text, &end, 10);
    return n >= 2 && text[0] >= '1' && text[0] <= '9' && strcmp(end, "\n") == 0 ? RC_OK : RC_CORRUPT;
}

static enum rc current_write(const char *dir, uint64_t generation)
{
    char text[32];
    const int n = snprintf(text, sizeof(text), "%llu\n", (unsigned long long)generation);
    char aside[PATH_MAX];
    char path[PATH_MAX];
    path_of(aside, dir, "CURRENT.tmp", 0);
    path_of(path, dir, "CURRENT", 0);
    const int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        return rc_of_errno("open CURRENT.tmp");
    }
    enum rc rc = allocate_small(fd, (uint64_t)n);
    if (rc == RC_OK && (write(fd, text, (size_t)n) != n || fsync(fd) != 0)) {
        rc = rc_of_errno("write CURRENT.tmp");
    }
    close(fd);
    TRY(rc);
    if (rename(aside, path) != 0) {
        return rc_of_errno("rename CURRENT.tmp");
    }
    return dir_sync(dir);
}

enum rc kv_lmdb_forget(const char *dir)
{
    char path[PATH_MAX];
    path_of(path, dir, "CURRENT", 0);
    if (unlink(path) != 0 && errno != ENOENT) {
        return rc_of_errno("remove CURRENT");
    }
    return dir_sync(dir);
}

// Calls each generation's number; returns the highest. Foreign entries are none of our business.
static uint64_t generations_each(const char *dir,
                                 void (*each)(const char *dir, uint64_t generation, uint64_t keep),
                                 uint64_t keep)
{
    uint64_t highest = 0;
    DIR *d = opendir(dir);
    if (!d) {
        return 0;
    }
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        char *end;
        if (strncmp(e->d_name, "gen-", 4) != 0 || e->d_name[4] < '1' || e->d_name[4] > '9') {
            continue;
        }
        const uint64_t generation = strtoull(e->d_name + 4, &end, 10);
        if (*end != '\0') {
            continue;
        }
        highest = generation > highest ? generation : highest;
        if (each) {
            each(dir, generation, keep);
        }
    }
    closedir(d);
    return highest;
}

static void generation_remove(const char *dir, uint64_t generation, uint64_t keep)
{
    if (generation == keep) {
        return;
    }
    char path[PATH_MAX];
    path_of(path, dir, "gen-%llu/data.mdb", generation);
    unlink(path);
    path_of(path, dir, "gen-%llu/lock.mdb", generation);
    unlink(path);
    path_of(path, dir, "gen-%llu", generation);
    rmdir(path);  // Fails if somebody put something in: it stays.
}

static enum rc env_open(struct kv_lmdb *k, uint64_t map_bytes)
{
    char path[PATH_MAX];
    path_of(path, k->dir, "gen-%llu", k->generation);
    TRY(rc_of(mdb_env_create(&k->env)));
    TRY(rc_of(mdb_env_set_mapsize(k->env, map_bytes)));
    TRY(rc_of(mdb_env_set_maxdbs(k->env, KV_TABLES)));
    TRY(rc_of(mdb_env_open(k->env, path, MDB_NOMETASYNC | MDB_NOTLS, 0600)));
    MDB_txn *txn;
    TRY(rc_of(mdb_txn_begin(k->env, NULL, 0, &txn)));
    for (int i = 0; i < KV_TABLES; i++) {
        const enum rc rc = rc_of(mdb_dbi_open(txn, table_names[i], MDB_CREATE, &k->dbi[i]));
        if (rc != RC_OK) {
            mdb_txn_abort(txn);
            return rc;
        }
    }
    return rc_of(mdb_txn_commit(txn));
}

static enum rc lmdb_publish(struct kv *kv)
{
    struct kv_lmdb *k = container_of(kv, struct kv_lmdb, kv);
    if (k->is_incomplete) {
        return RC_NO_SPACE;
    }
    const enum rc rc = lmdb_sync(kv);
    if (rc != RC_OK) {
        return RC_IO;  // Never to be tried again, whatever it was: pages may be lost.
    }
    char path[PATH_MAX];
    path_of(path, k->dir, "gen-%llu", k->generation);
    TRY(dir_sync(path));
    TRY(dir_sync(k->dir));
    TRY(current_write(k->dir, k->generation));
    generations_each(k->dir, generation_remove, k->generation);
    return RC_OK;
}

struct open_args {
    struct kv_lmdb *k;
    uint64_t map_bytes;
};

static enum rc open_guarded(void *ctx)
{
    struct open_args *a = ctx;
    return env_open(a->k, a->map_bytes);
}

static enum rc generation_open(const char *dir, uint64_t generation, uint64_t map_bytes, struct kv **out)
{
    static const struct kv_ops ops = {
        .begin = lmdb_begin,
        .get = lmdb_get,
        .put = lmdb_put,
        .remove = lmdb_remove,
        .next = lmdb_next,
        .commit = lmdb_commit,
        .abort = lmdb_abort,
        .sync = lmdb_sync,
        .size = lmdb_size,
        .publish = lmdb_publish,
        .close = lmdb_close,
    };
    struct kv_lmdb *k = mem_zalloc(sizeof(*k));
    k->kv.ops = &ops;
    k->dir = mem_strndup(dir, strlen(dir));
    k->generation = generation;
    bool is_lost;
    const enum rc rc = kv_lmdb_guard(open_guarded, &(struct open_args){k, map_bytes}, &is_lost);
    if (rc != RC_OK) {
        if (k->env && !is_lost) {
            mdb_env_close(k->env);
        }
        free(k->dir);
        free(k);
        return rc;
    }
    *out = &k->kv;
    return RC_OK;
}

// LMDB writes both files before anything can wait for room, and dies of a lock file, which it maps, without blocks.
static enum rc generation_allocate(const char *dir, uint64_t generation)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } files[] = {{"gen-%llu/data.mdb", COMMIT_BYTES}, {"gen-%llu/lock.mdb", LOCK_BYTES}};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char path[PATH_MAX];
        path_of(path, dir, files[i].name, generation);
        const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0) {
            return rc_of_errno("make a generation");
        }
        const enum rc rc = allocate_small(fd, files[i].bytes);
        close(fd);
        TRY(rc);
    }
    return RC_OK;
}

enum rc kv_lmdb_create(const char *dir, uint64_t map_bytes, struct kv **out)
{
    TRY(dir_make(dir));
    uint64_t current = 0;
    if (current_read(dir, &current) != RC_OK) {
        current = 0;  // Unreadable or absent: the new number only has to be new.
    }
    const uint64_t highest = generations_each(dir, NULL, 0);
    const uint64_t generation = (highest > current ? highest : current) + 1;
    char path[PATH_MAX];
    path_of(path, dir, "gen-%llu", generation);
    TRY(dir_make(path));
    enum rc rc = generation_allocate(dir, generation);
    if (rc == RC_OK) {
        rc = generation_open(dir, generation, map_bytes, out);
    }
    if (rc == RC_NO_SPACE) {
        generation_remove(dir, generation, 0);
    }
    return rc;
}

enum rc kv_lmdb_open(const char *dir, uint64_t map_bytes, struct kv **out)
{
    TRY(dir_make(dir));
    uint64_t generation;
    TRY(current_read(dir, &generation));
    char path[PATH_MAX];
    path_of(path, dir, "gen-%llu/data.mdb", generation);
    struct stat st;
    if (stat(path, &st) != 0 || st.st_size == 0) {
        return RC_CORRUPT;  // LMDB would make an empty one.
    }
    return generation_open(dir, generation, map_bytes, out);
}

// ---- damage -----------------------------------------------------------------------------------------------

static sigjmp_buf guard_jump;
static volatile sig_atomic_t guard_is_set;
static pthread_t guard_thread;

static void guard_signal(int sig)
{
    // A fault of another thread is what it always is.
    if (guard_is_set && pthread_equal(pthread_self(), guard_thread)) {
        siglongjmp(guard_jump, sig);
    }
    signal(sig, SIG_DFL);
    raise(sig);
}

enum rc kv_lmdb_guard(enum rc (*fn)(void *ctx), void *ctx, bool *is_lost)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE};
    enum { COUNT = sizeof(signals) / sizeof(signals[0]) };
    struct sigaction old[COUNT];
    struct sigaction action = {.sa_handler = guard_signal, .sa_flags = SA_NODEFER};
    sigemptyset(&action.sa_mask);
    assert(!guard_is_set);
    volatile enum rc rc = RC_CORRUPT;
    volatile int i;
    if (sigsetjmp(guard_jump, 1) == 0) {
        for (i = 0; i < COUNT; i++) {
            sigaction(signals[i], &action, &old[i]);
        }
        guard_thread = pthread_self();
        guard_is_set = 1;
        rc = fn(ctx);
        *is_lost = false;
    } else {
        rc = RC_CORRUPT;
        *is_lost = true;
    }
    guard_is_set = 0;
    for (i = 0; i < COUNT; i++) {
        sigaction(signals[i], &old[i], NULL);
    }
    return rc;
}
