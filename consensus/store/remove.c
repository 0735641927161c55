// SPDX-License-Identifier: Apache-2.0
// Segments that nobody refers to any more leave the disk.
//
// Problem: to give up a file of 64 MiB holds a disk that discards for 40 ms and more; every sync of the log beside it
// waits, and a backlog that is drained at full speed gives up several such files a second. Idea: an executor of its own;
// a large file is cut shorter piece by piece, and while the log is written to, a rest follows each piece that is many
// times as long as the piece took. Once nothing has been written to the log for as long as a piece takes, the next goes at
// once. What waits is bounded: above BACKLOG_BYTES, or when the disk is short of room, the rests are short, and above twice
// as much there are none.
//
// A file that is cut must not look like a damaged segment to the next start: it gets its temporary name back first, and
// that is made durable. What is left of it then goes at the start, like any temporary file.
#include "consensus/store/core.h"
#include "node/base/log.h"
#include <stdlib.h>

enum {
    PIECE_BYTES = 4 << 20,
    REST = 16,  // Times the duration of a piece.
};
#define BACKLOG_BYTES (1ull << 30)

struct removal {
    struct plan plan;
    struct job job;
    struct store_worker *worker;
    struct list segments;    // The executor's while it runs.
    struct list gone;        // The same, removed; freed by the worker.
    struct disk_file *file;  // Of the first one, once it is being cut.
    uint64_t left;           // Of its bytes.
    uint64_t bytes;          // Of all that are left.
    bool is_begun;           // All have their temporary names.
    bool is_resting;
};

static uint64_t piece_of(const struct store_worker *w)
{
    const uint64_t piece = w->store->config.removal_piece;
    return piece != 0 ? piece : PIECE_BYTES;
}

static void list_free(struct list *segments)
{
    struct list *l;
    while ((l = list_pop(segments)) != NULL) {
        free(list_entry(l, struct segment, link));
    }
}

static void removal_free(struct store_worker *w, struct plan *p)
{
    struct removal *r = container_of(p, struct removal, plan);
    if (r->file != NULL) {
        w->store->config.disk->close(r->file);
    }
    list_free(&r->segments);
    list_free(&r->gone);
    if (w->removing.job == r) {
        w->removing.job = NULL;
    }
    free(r);
}

// A file that stays is found without users at the next start and goes then.
static void removed(struct removal *r, struct segment *s, bool is_cut)
{
    struct disk *d = r->worker->store->config.disk;
    char path[SEGMENT_PATH_MAX];
    segment_path(s->seq, !is_cut, path);
    if (s->bytes > 0 && d->unlink(d, path) != RC_OK) {  // 0: nothing was written.
        log_warning("store: cannot remove %s", path);
    }
    r->bytes -= s->bytes;
    list_remove(&s->link);
    list_add_tail(&r->gone, &s->link);
}

// Small files go; large ones get their temporary names.
static void begin(struct removal *r)
{
    struct disk *d = r->worker->store->config.disk;
    bool is_any = false;
    list_each(l, &r->segments)
    {
        struct segment *s = list_entry(l, struct segment, link);
        char from[SEGMENT_PATH_MAX];
        char to[SEGMENT_PATH_MAX];
        segment_path(s->seq, true, from);
        segment_path(s->seq, false, to);
        if (s->bytes <= piece_of(r->worker) || d->rename(d, from, to) != RC_OK) {
            removed(r, s, false);
        } else {
            is_any = true;
        }
    }
    if (is_any && d->sync_dir(d, "seg") != RC_OK) {
        list_each(l, &r->segments)
        {
            removed(r, list_entry(l, struct segment, link), true);
        }
    }
    r->is_begun = true;
}

static void cut(struct removal *r)
{
    struct disk *d = r->worker->store->config.disk;
    struct segment *s = list_entry(r->segments.next, struct segment, link);
    const uint64_t piece = piece_of(r->worker);
    enum rc rc = RC_OK;
    if (r->file == NULL) {
        char path[SEGMENT_PATH_MAX];
        segment_path(s->seq, false, path);
        rc = d->open(d, path, DISK_READ | DISK_WRITE, &r->file);
        r->left = s->bytes;
    }
    r->left = r->left > piece ? r->left - piece : 0;
    if (rc == RC_OK && r->left > 0) {
        rc = d->truncate(r->file, r->left);
    }
    if (rc == RC_OK && r->left > 0) {
        return;
    }
    if (r->file != NULL) {
        d->close(r->file);
        r->file = NULL;
    }
    removed(r, s, true);
}

static void run(struct job *job)
{
    struct removal *r = container_of(job, struct removal, job);
    if (!r->is_begun) {
        begin(r);
    } else {
        cut(r);
    }
}

static void done(struct job *job)
{
    struct removal *r = container_of(job, struct removal, job);
    struct store_worker *w = r->worker;
    list_free(&r->gone);
    if (list_is_empty(&r->segments)) {
        plan_end(w, &r->plan);
        removal_pump(w);
        return;
    }
    r->is_resting = true;
    w->removing.rest_until = 0;  // removal_turn knows the time.
}

void removal_pump(struct store_worker *w)
{
    struct removing *k = &w->removing;
    if (k->job != NULL || list_is_empty(&w->doomed)) {
        return;
    }
    // What made them useless must be durable first.
    const bool all_durable = w->completed == w->submitted && !arena_has_pending(&w->arena);
    struct removal *r = NULL;
    list_each(l, &w->doomed)
    {
        struct segment *s = list_entry(l, struct segment, link);
        if (!all_durable && s->doomed_after > w->completed) {
            break;
        }
        if (r == NULL) {
            r = mem_zalloc(sizeof(*r));
            r->worker = w;
            r->job = (struct job){.run = run, .done = done};
            list_init(&r->segments);
            list_init(&r->gone);
        }
        list_remove(&s->link);
        list_add_tail(&r->segments, &s->link);
        r->bytes += s->bytes;
    }
    if (r != NULL) {
        k->job = r;
        k->piece_at = 0;
        plan_begin(w, &r->plan, removal_free);
        exec_submit(w->hooks.removal, &r->job);
    }
}

static uint64_t backlog(const struct store_worker *w, const struct removal *r)
{
    uint64_t bytes = r->bytes;
    list_each(l, &w->doomed)
    {
        bytes += list_entry(l, struct segment, link)->bytes;
    }
    return bytes;
}

uint64_t removal_turn(struct store_worker *w, uint64_t now_ns)
{
    struct removing *k = &w->removing;
    struct removal *r = k->job;
    if (r == NULL || !r->is_resting || w->has_failed) {
        return UINT64_MAX;
    }
    if (k->rest_until == 0) {
        const uint64_t took = k->piece_at != 0 ? now_ns - k->piece_at : 0;
        const uint64_t behind = backlog(w, r) / BACKLOG_BYTES;
        const bool is_pressing = behind > 0 || store_is_short(w->store);
        k->idle_until = now_ns + (behind > 1 ? 0 : took);
        k->rest_until = now_ns + (behind > 1 ? 0 : is_pressing ? took : took * REST);
        k->submitted = w->submitted;
    }
    if (now_ns < k->idle_until) {
        return k->idle_until;
    }
    if (now_ns < k->rest_until && w->submitted != k->submitted) {
        return k->rest_until;
    }
    r->is_resting = false;
    k->piece_at = now_ns;
    exec_submit(w->hooks.removal, &r->job);
    return UINT64_MAX;
}
