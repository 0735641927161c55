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
// Threads: the cold one, and the start. The mutex only joins several cold threads.
#include "consensus/store/core.h"

#define RESERVE_PATH "wal/reserve"

void store_make_room(struct disk *d)
{
    if (d->unlink(d, RESERVE_PATH) == RC_OK) {
        log_notice("store: starting with the room that was kept in reserve");
    }
}

// The log's spare file comes after ours: it would take the room that was just given to retirement.
static void set_short(struct store *s, bool is_short)
{
    atomic_store_explicit(&s->shared_is_short, is_short, memory_order_relaxed);
    wal_set_frugal(s->wal, is_short);
}

bool reserve_release(struct store *s)
{
    struct disk *d = s->config.disk;
    if (s->config.reserve_bytes == 0) {
        return false;
    }
    pthread_mutex_lock(&s->mutex);
    const bool was_there = !atomic_load_explicit(&s->shared_is_short, memory_order_relaxed) &&
                           d->unlink(d, RESERVE_PATH) == RC_OK;
    set_short(s, true);
    pthread_mutex_unlock(&s->mutex);
    if (was_there) {
        // Some file systems give the room back only then. A failure shows in what comes next.
        (void)d->sync_dir(d, "wal");
        log_warning("store: the disk is full: going on with the room that was kept in reserve");
    }
    return was_there;
}

static bool restore(struct store *s)
{
    struct disk *d = s->config.disk;
    struct disk_file *f;
    if (d->open(d, RESERVE_PATH, DISK_READ | DISK_WRITE | DISK_CREATE, &f) != RC_OK) {
        return false;
    }
    const enum rc rc = d->allocate(f, s->config.reserve_bytes);
    d->close(f);
    if (rc != RC_OK && d->unlink(d, RESERVE_PATH) != RC_OK) {
        log_warning("store: cannot remove the file " RESERVE_PATH);
    }
    return rc == RC_OK;
}

void reserve_restore(struct store *s)
{
    if (s->config.reserve_bytes == 0) {
        return;
    }
    pthread_mutex_lock(&s->mutex);
    const bool was_short = atomic_load_explicit(&s->shared_is_short, memory_order_relaxed);
    const bool is_short = !restore(s);
    set_short(s, is_short);
    pthread_mutex_unlock(&s->mutex);
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
