// SPDX-License-Identifier: Apache-2.0
// Room on a full disk for what frees room.
//
// Problem: to retire a WAL file its live entries are copied to a segment first, so a disk that is quite full
// could never be emptied. Idea: the file `wal/reserve`, as large as two WAL files and a bit more (the log may have
// to begin its next one before a file can go: what is known of that file must be in the log). The first want
// of room at a retirement or a checkpoint removes it and tries again; the WAL file that comes free then is
// room in turn. As long as the reserve is missing the store is short of room and nothing more should be
// published (store_is_short); it is made up again when there is room (store_worker_room, now and then).
//
// That may not be the end of it: what was on its way when publishers were stopped still comes, and a node that dies
// then begins a new log file when it starts. So there is another one, `wal/reserve-last`, for what is small and lets go
// of much: a checkpoint, the snapshot of a drained queue, taken here or received, and a small file of the log for the
// settles. Half of it at most for one segment, so that the checkpoint behind it finds room too. If it was not enough it
// is put back before anybody else can use the room.
//
// Threads: the cold ones, the WAL's, and the start. They have a mutex of their own: to make a reserve may take as long as
// the disk likes, and the store's is taken by workers, who never wait for a disk.
#include "consensus/store/core.h"

#define RESERVE_PATH "wal/reserve"
#define LAST_PATH "wal/reserve-last"

void store_make_room(struct disk *d)
{
    if (d->unlink(d, RESERVE_PATH) == RC_OK) {
        log_notice("store: starting with the room that was kept in reserve");
    }
}

bool store_make_last_room(struct disk *d)
{
    if (d->unlink(d, RESERVE_PATH) != RC_OK && d->unlink(d, LAST_PATH) != RC_OK) {
        return false;
    }
    (void)d->sync_dir(d, "wal");  // Some file systems give the room back only then.
    log_notice("store: starting with the room that was kept in reserve");
    return true;
}

// The log's spare file comes after ours: it would take the room that was just given to retirement.
static void set_short(struct store *s, bool is_short)
{
    atomic_store_explicit(&s->shared_is_short, is_short, memory_order_relaxed);
    if (s->wal != NULL) {  // Else it is being opened.
        wal_set_frugal(s->wal, is_short);
    }
}

static bool release(struct store *s, bool *has, const char *path, const char *what)
{
    struct disk *d = s->config.disk;
    pthread_mutex_lock(&s->reserve_mutex);
    const bool was_there = *has && d->unlink(d, path) == RC_OK;
    *has = false;
    set_short(s, true);
    pthread_mutex_unlock(&s->reserve_mutex);
    if (was_there) {
        // Some file systems give the room back only then. A failure shows in what comes next.
        (void)d->sync_dir(d, "wal");
        log_warning("store: the disk is full: going on with the %s", what);
    }
    return was_there;
}

bool reserve_release(struct store *s)
{
    return s->config.reserve_bytes != 0 &&
           release(s, &s->has_reserve, RESERVE_PATH, "room that was kept in reserve");
}

bool reserve_release_last(struct store *s, uint64_t bytes)
{
    return bytes <= s->config.last_bytes && s->config.last_bytes != 0 &&
           release(s, &s->has_last, LAST_PATH, "last room that was kept in reserve");
}

bool reserve_for_segment(void *store, uint64_t bytes)
{
    struct store *s = store;
    return bytes <= s->config.last_bytes / 2 && reserve_release_last(s, bytes);
}

bool reserve_for_wal(void *store, uint64_t bytes)
{
    struct store *s = store;
    return reserve_release(s) || (bytes <= s->config.last_bytes / 2 && reserve_release_last(s, bytes));
}

static bool make(struct store *s, const char *path, uint64_t bytes)
{
    struct disk *d = s->config.disk;
    struct disk_file *f;
    if (d->open(d, path, DISK_READ | DISK_WRITE | DISK_CREATE, &f) != RC_OK) {
        return false;
    }
    const enum rc rc = d->allocate(f, bytes);
    d->close(f);
    if (rc != RC_OK && d->unlink(d, path) != RC_OK) {
        log_warning("store: cannot remove the file %s", path);
    }
    return rc == RC_OK;
}

static bool is_there(struct disk *d, const char *path)
{
    struct disk_file *f;
    if (d->open(d, path, DISK_READ, &f) != RC_OK) {
        return false;
    }
    d->close(f);
    return true;
}

void reserve_find(struct store *s)
{
    s->has_reserve = s->config.reserve_bytes != 0 && is_there(s->config.disk, RESERVE_PATH);
    s->has_last = s->config.last_bytes != 0 && is_there(s->config.disk, LAST_PATH);
}

void reserve_start(struct store *s)
{
    s->has_reserve = s->has_last = false;  // One that is there may not be whole.
    reserve_restore(s);
}

static void restore_last(struct store *s)
{
    s->has_last = s->has_last || (s->config.last_bytes != 0 && make(s, LAST_PATH, s->config.last_bytes));
}

void reserve_restore_last(struct store *s)
{
    struct disk *d = s->config.disk;
    (void)d->sync_dir(d, "seg");  // What was removed makes room at the latest now.
    pthread_mutex_lock(&s->reserve_mutex);
    restore_last(s);
    pthread_mutex_unlock(&s->reserve_mutex);
}

void reserve_restore(struct store *s)
{
    if (s->config.reserve_bytes == 0) {
        return;
    }
    pthread_mutex_lock(&s->reserve_mutex);
    const bool was_short = atomic_load_explicit(&s->shared_is_short, memory_order_relaxed);
    restore_last(s);
    s->has_reserve = s->has_reserve || make(s, RESERVE_PATH, s->config.reserve_bytes);
    const bool is_short = !s->has_reserve || (!s->has_last && s->config.last_bytes != 0);
    set_short(s, is_short);
    pthread_mutex_unlock(&s->reserve_mutex);
    if (was_short && !is_short) {
        log_warning("store: there is room for a reserve again");
    }
}

bool store_is_short(const struct store *s)
{
    return atomic_load_explicit(&s->shared_is_short, memory_order_relaxed);
}

// ---- trying again -------------------------------------------------------------------------------

struct restoring {
    struct plan plan;
    struct job job;
    struct store_worker *worker;
};

static void restoring_free(struct store_worker *w, struct plan *p)
{
    (void)w;
    free(container_of(p, struct restoring, plan));
}

static void restoring_run(struct job *job)
{
    reserve_restore(container_of(job, struct restoring, job)->worker->store);
}

static void restoring_done(struct job *job)
{
    struct restoring *r = container_of(job, struct restoring, job);
    plan_end(r->worker, &r->plan);
}

void store_worker_room(struct store_worker *w)
{
    if (w->has_failed || w->exec == NULL) {
        return;
    }
    // First what frees room, then the reserve.
    w->is_harvest_blocked = false;
    harvest_pump(w);
    checkpoint_again(w);
    if (w->index == 0 && store_is_short(w->store)) {
        struct restoring *r = mem_zalloc(sizeof(*r));
        r->worker = w;
        r->job = (struct job){.run = restoring_run, .done = restoring_done};
        plan_begin(w, &r->plan, restoring_free);
        exec_submit(w->exec, &r->job);
    }
}
