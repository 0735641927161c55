// SPDX-License-Identifier: Apache-2.0
// The metadata group's state machine (meta_fsm.h): jobs out, jobs back.
//
// Durability. The raft log is the truth; the store is a materialised copy at some applied index. It replays
// what it misses: entries at or below its own applied index are skipped. A write transaction stays open over
// many jobs (decision 12). Snapshots. The host may take one when everything it handed over is applied, and
// cuts the log there. So the frozen state must be at that index or a later one (a later one is fine: replay
// skips), and synced (decision 12). The first ask answers "not now" and sets wants_freeze; from then on every
// job ends with commit, sync and a fresh reader, so at any later ask the frozen state is exactly that of the
// newest job done, however long it takes and however busy the group is. Restore. The stream is checked on
// worker 0 as it comes (sums, count, digest), and stored on the meta thread into a new generation that takes
// the old one's place only when it is whole. A snapshot that says nothing new (the usual one at start-up) is
// checked and dropped. The store failing ends the process (P6); its contents found damaged while running too:
// the next start rebuilds it.
#include "metastore/meta_fsm.h"
#include "node/base/limits.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include <stdlib.h>

enum {
    META_COMMIT_BYTES = 4 << 20,  // Decision 12.
    META_RESTORE_TXN_BYTES = 16 << 20,
};

struct fsm_snapshot {
    struct meta_fsm *f;
    struct generation *generation;
    struct kv_txn *txn;
    struct kv_copy copy;
    struct tree_snapshot_check check;  // Nothing damaged becomes a snapshot, for which the log would be cut.
};

static void must(enum rc rc, const char *what)
{
    if (rc != RC_OK) {
        log_critical("metadata store: %s: %s; the process ends", what, rc_text(rc));
        abort();
    }
}

void feed_drop(struct feed *f)
{
    if (atomic_fetch_sub_explicit(&f->shared_refs, 1, memory_order_acq_rel) == 1) {
        buf_deinit(&f->changes);
        free(f);
    }
}

// ---- the meta thread --------------------------------------------------------------------------------------

static struct feed *feed_create(void)
{
    struct feed *f = mem_zalloc(sizeof(*f));
    atomic_init(&f->shared_refs, 1);
    return f;
}

static struct generation *generation_create(struct kv *kv)
{
    struct generation *g = mem_zalloc(sizeof(*g));
    g->kv = kv;
    return g;
}

static struct kv *store_create(struct meta_fsm *f)
{
    if (!f->config.dir) {
        return kv_mem_create();
    }
    struct kv *kv = NULL;
    enum rc rc = RC_NO_SPACE;
    for (bool is_first = true; rc == RC_NO_SPACE; is_first = false) {
        rc = kv_lmdb_create(f->config.dir, f->config.map_bytes, &kv);
        if (rc == RC_NO_SPACE && !kv_lmdb_pause(is_first)) {
            return kv_mem_create();  // The process ends: what goes into it the next one hears again.
        }
    }
    must(rc, "new generation");
    return kv;
}

static void publish(struct kv *kv)
{
    enum rc rc = RC_NO_SPACE;
    for (bool is_first = true; rc == RC_NO_SPACE; is_first = false) {
        rc = kv_publish(kv);
        if (rc == RC_NO_SPACE && !kv_lmdb_pause(is_first)) {
            return;  // The process ends; the next one finds what was published before.
        }
    }
    must(rc, "publish");
}

static void feed_ends(struct feed *f, const struct tree_meta *m)
{
    f->index = m->applied_index;
    f->numbers = m->next_number;
}

static void run_apply(struct meta_job *j)
{
    struct meta_fsm *f = j->f;
    j->feed = feed_create();
    struct reader r = reader_of(buf_span(&j->entries));
    while (reader_left(&r) > 0) {
        const uint64_t index = reader_u64(&r);
        const uint64_t term = reader_u64(&r);
        const uint16_t kind = reader_u16(&r);
        const struct span payload = reader_str32(&r);
        assert(!r.is_bad);
        struct tree_result result;
        tree_apply(&f->tree, index, term, kind, payload, &j->feed->changes, &result);
        must(f->tree.rc, "apply");
        if (result.is_command && result.ref.node == f->config.node_id &&
            result.ref.session == f->config.session) {
            buf_bytes(&j->results, &result, sizeof(result));
        }
        j->has_events |= result.has_events;
    }
    feed_ends(j->feed, &f->tree.meta);
}

static void tell_all(struct meta_job *j, bool is_reset)
{
    struct meta_fsm *f = j->f;
    j->feed = feed_create();
    j->feed->is_load = true;
    j->feed->is_reset = is_reset;
    tree_walk(&f->tree, &j->feed->changes);
    must(f->tree.rc, "walk");
    feed_ends(j->feed, &f->tree.meta);
}

// The incoming store takes the place of the current one.
static void take_over(struct meta_job *j, struct generation *incoming)
{
    struct meta_fsm *f = j->f;
    tree_close(&f->tree);
    must(tree_open(&f->tree, incoming->kv), "open of a new generation");
    if (f->is_published) {
        publish(incoming->kv);
    }
    j->generation = f->generation;
    f->generation = incoming;
    if (j->wants_load) {
        tell_all(j, true);
    }
}

static enum rc restore_row(void *ctx, enum kv_table table, struct span key, struct span value)
{
    struct meta_fsm *f = ctx;
    f->incoming_bytes += key.len + value.len;
    return kv_put(f->incoming_txn, table, key, value);
}

static void drop_incoming(struct meta_fsm *f)
{
    if (!f->incoming) {
        return;
    }
    if (f->incoming_txn) {
        kv_abort(f->incoming_txn);
        f->incoming_txn = NULL;
    }
    kv_copy_reader_deinit(&f->incoming_reader);
    kv_close(f->incoming->kv);
    free(f->incoming);
    f->incoming = NULL;
}

static void run_restore(struct meta_job *j)
{
    struct meta_fsm *f = j->f;
    if (j->is_first) {
        drop_incoming(f);
        f->incoming = generation_create(store_create(f));
        kv_copy_reader_init(&f->incoming_reader, restore_row, f);
    }
    assert(f->incoming);
    if (!f->incoming_txn) {
        must(kv_begin(f->incoming->kv, true, &f->incoming_txn), "restore");
        f->incoming_bytes = 0;
    }
    must(kv_copy_reader_chunk(&f->incoming_reader, buf_span(&j->entries)),
         "restore");  // Worker 0 has checked the chunk.
    if (f->incoming_bytes >= META_RESTORE_TXN_BYTES) {
        must(kv_commit(f->incoming_txn), "restore");
        f->incoming_txn = NULL;
    }
}

static void run_restore_end(struct meta_job *j)
{
    struct meta_fsm *f = j->f;
    if (j->is_aborted) {
        drop_incoming(f);
        return;
    }
    assert(f->incoming && f->incoming_reader.is_done);
    if (f->incoming_txn) {
        must(kv_commit(f->incoming_txn), "restore");
        f->incoming_txn = NULL;
    }
    kv_copy_reader_deinit(&f->incoming_reader);
    struct generation *incoming = f->incoming;
    f->incoming = NULL;
    take_over(j, incoming);
}

static void freeze(struct meta_job *j)
{
    struct meta_fsm *f = j->f;
    must(tree_commit(&f->tree), "commit");
    must(kv_sync(f->generation->kv), "sync");
    struct fsm_snapshot *s = mem_zalloc(sizeof(*s));
    s->f = f;
    s->generation = f->generation;
    must(kv_begin(f->generation->kv, false, &s->txn), "begin read");
    kv_copy_init(&s->copy, s->txn);
    tree_snapshot_check_init(&s->check);
    j->frozen = s;
}

static uint64_t measure(struct meta_fsm *f)
{
    if (f->tree.txn) {
        return kv_size(f->tree.txn);
    }
    struct kv_txn *txn;
    must(kv_begin(f->generation->kv, false, &txn), "begin read");
    const uint64_t bytes = kv_size(txn);
    kv_abort(txn);
    return bytes;
}

static void job_run(struct job *job)
{
    struct meta_job *j = container_of(job, struct meta_job, job);
    struct meta_fsm *f = j->f;
    switch (j->kind) {
    case META_JOB_APPLY:
        run_apply(j);
        break;
    case META_JOB_COMMIT:
        must(tree_commit(&f->tree), "commit");
        break;
    case META_JOB_LOAD:
        must(tree_commit(&f->tree), "commit");
        if (!f->is_published) {
            publish(f->generation->kv);
            f->is_published = true;
        }
        tell_all(j, false);
        break;
    case META_JOB_EVENTS:
        tree_events(&f->tree, j->after, &j->events);
        must(f->tree.rc, "events");
        break;
    case META_JOB_FRESH:
        if (f->config.dir) {
            must(kv_lmdb_forget(f->config.dir),
                 "forget");  // Not to be found again, whatever happens from here on.
        }
        f->is_published = false;
        take_over(j, generation_create(store_create(f)));
        break;
    case META_JOB_RESTORE:
        run_restore(j);
        break;
    case META_JOB_RESTORE_END:
        run_restore_end(j);
        break;
    case META_JOB_CLOSE:
        kv_close(j->generation->kv);
        break;
    }
    if (j->wants_freeze) {
        freeze(j);
    } else if (f->tree.dirty_bytes >= META_COMMIT_BYTES) {
        must(tree_commit(&f->tree), "commit");
    }
    j->index = f->tree.meta.applied_index;
    j->clock_ms = f->tree.meta.clock_ms;
    j->nodes = f->tree.meta.nodes;
    j->bytes = measure(f);
    j->has_uncommitted = f->tree.txn != NULL;
}

// ---- worker 0 ---------------------------------------------------------------------------------------------

static void job_done(struct job *job);

static struct meta_job *job_create(struct meta_fsm *f, enum meta_job_kind kind)
{
    struct meta_job *j = mem_zalloc(sizeof(*j));
    j->job.run = job_run;
    j->job.done = job_done;
    j->f = f;
    j->kind = kind;
    return j;
}

static void job_submit(struct meta_job *j)
{
    struct meta_fsm *f = j->f;
    j->wants_freeze = f->wants_freeze && (j->kind == META_JOB_APPLY || j->kind == META_JOB_COMMIT);
    f->in_flight++;
    exec_submit(f->config.exec, &j->job);
}

static void generation_release(struct meta_fsm *f, struct generation *g)
{
    if (g->is_replaced && g->readers == 0) {
        struct meta_job *j = job_create(f, META_JOB_CLOSE);
        j->generation = g;
        job_submit(j);
    }
}

static void snapshot_free(struct fsm_snapshot *s)
{
    struct meta_fsm *f = s->f;
    struct generation *g = s->generation;
    kv_copy_deinit(&s->copy);
    tree_snapshot_check_deinit(&s->check);
    kv_abort(s->txn);
    free(s);
    g->readers--;
    generation_release(f, g);
}

static void drop_frozen(struct meta_fsm *f)
{
    if (f->frozen) {
        snapshot_free(f->frozen);
        f->frozen = NULL;
    }
}

static void job_done(struct job *job)
{
    struct meta_job *j = container_of(job, struct meta_job, job);
    struct meta_fsm *f = j->f;
    f->in_flight--;
    f->bytes = j->bytes;
    if (j->kind == META_JOB_CLOSE) {
        free(j->generation);
    } else if (j->generation) {  // Replaced by the incoming one.
        drop_frozen(f);
        j->generation->is_replaced = true;
        generation_release(f, j->generation);
    }
    if (j->frozen) {
        j->frozen->generation->readers++;
        drop_frozen(f);
        f->frozen = j->frozen;
        if (!f->wants_freeze) {  // Taken meanwhile: this one is one too many.
            drop_frozen(f);
        }
    } else if (j->kind == META_JOB_APPLY) {
        drop_frozen(f);  // The state went on without a frozen copy.
    }
    f->config.done(f->config.ctx, j);
    if (j->feed) {
        feed_drop(j->feed);
    }
    buf_deinit(&j->entries);
    buf_deinit(&j->results);
    buf_deinit(&j->events);
    free(j);
}

void meta_fsm_submit(struct meta_fsm *f, enum meta_job_kind kind)
{
    assert(kind == META_JOB_COMMIT || kind == META_JOB_FRESH);
    if (kind == META_JOB_FRESH) {
        f->handed = 0;
    }
    job_submit(job_create(f, kind));
}

void meta_fsm_load(struct meta_fsm *f)
{
    assert(!f->is_loaded);
    f->is_loaded = true;
    job_submit(job_create(f, META_JOB_LOAD));
}

void meta_fsm_list_events(struct meta_fsm *f, uint64_t after)
{
    struct meta_job *j = job_create(f, META_JOB_EVENTS);
    j->after = after;
    job_submit(j);
}

// ---- fsm_ops ----------------------------------------------------------------------------------------------

static uint32_t apply(void *ctx, const struct entry *entries, uint32_t n)
{
    struct meta_fsm *f = ctx;
    uint32_t known = 0;
    while (known < n && entries[known].index <= f->handed) {
        known++;
    }
    if (known == n && f->in_flight == 0) {
        return n;  // Replay of what the store has.
    }
    struct meta_job *j = job_create(f, META_JOB_APPLY);
    for (uint32_t i = known; i < n; i++) {
        const struct entry *e = &entries[i];
        buf_u64(&j->entries, e->index);
        buf_u64(&j->entries, e->term);
        buf_u16(&j->entries, e->kind);
        buf_str32(&j->entries, e->payload);
    }
    j->last = entries[n - 1].index;
    f->handed = j->last > f->handed ? j->last : f->handed;
    job_submit(j);
    return 0;
}

static void role(void *ctx, const struct consensus_status *status)
{
    struct meta_fsm *f = ctx;
    f->config.role(f->config.ctx, status);
}

static struct fsm_snapshot *snapshot_begin(void *ctx)
{
    struct meta_fsm *f = ctx;
    struct fsm_snapshot *s = f->frozen;
    if (s) {
        f->frozen = NULL;
        f->wants_freeze = false;
        return s;
    }
    if (!f->wants_freeze || f->in_flight == 0) {
        f->wants_freeze = true;
        job_submit(job_create(f, META_JOB_COMMIT));
    }
    return NULL;
}

static bool snapshot_chunk(struct fsm_snapshot *s, struct buf *to)
{
    bool is_last;
    const size_t start = to->len;
    must(kv_copy_chunk(&s->copy, LIMIT_SNAPSHOT_CHUNK_BYTES, to, &is_last), "snapshot");
    must(tree_snapshot_check_chunk(&s->check, span_of(to->ptr + start, to->len - start)), "snapshot");
    if (is_last) {
        must(tree_snapshot_check_end(&s->check), "snapshot");
    }
    return !is_last;
}

static void snapshot_live(struct fsm_snapshot *s, struct buf *out)
{
    (void)s;
    (void)out;  // The tree refers to no entry of the log.
}

static void restore_begin(void *ctx)
{
    struct meta_fsm *f = ctx;
    if (f->check) {  // One that was broken off.
        tree_snapshot_check_deinit(f->check);
        free(f->check);
    }
    f->check = mem_zalloc(sizeof(*f->check));
    tree_snapshot_check_init(f->check);
    f->restore_is_known = false;
    f->restore_is_needed = false;
}

static enum rc restore_chunk(void *ctx, struct span chunk)
{
    struct meta_fsm *f = ctx;
    assert(f->check);
    TRY(tree_snapshot_check_chunk(f->check, chunk));
    const bool is_first = !f->restore_is_known;
    if (is_first) {
        // The meta row is the first one and shorter than any chunk.
        if (!f->check->has_meta) {
            return RC_MALFORMED;
        }
        f->restore_is_known = true;
        f->restore_is_needed = f->check->meta.applied_index > f->handed;
    }
    if (f->restore_is_needed) {
        struct meta_job *j = job_create(f, META_JOB_RESTORE);
        j->is_first = is_first;
        buf_span_bytes(&j->entries, chunk);
        job_submit(j);
    }
    return RC_OK;
}

static enum rc restore_end(void *ctx, uint64_t index)
{
    struct meta_fsm *f = ctx;
    assert(f->check);
    enum rc rc = tree_snapshot_check_end(f->check);
    const uint64_t applied = f->check->meta.applied_index;
    if (rc == RC_OK && applied < index) {
        rc = RC_CORRUPT;
    }
    tree_snapshot_check_deinit(f->check);
    free(f->check);
    f->check = NULL;
    if (f->restore_is_needed) {
        struct meta_job *j = job_create(f, META_JOB_RESTORE_END);
        j->is_aborted = rc != RC_OK;
        j->wants_load = f->is_loaded;
        if (rc == RC_OK) {
            f->handed = applied;
        }
        job_submit(j);
    }
    return rc;
}

static uint64_t size_estimate(void *ctx)
{
    const struct meta_fsm *f = ctx;
    return f->bytes;
}

const struct fsm_ops meta_fsm_ops = {
    .version = 1,
    .apply = apply,
    .role = role,
    .snapshot_begin = snapshot_begin,
    .snapshot_chunk = snapshot_chunk,
    .snapshot_live = snapshot_live,
    .snapshot_end = snapshot_free,
    .restore_begin = restore_begin,
    .restore_chunk = restore_chunk,
    .restore_end = restore_end,
    .size_estimate = size_estimate,
};

// ---- opening ----------------------------------------------------------------------------------------------

static enum rc open_tree(void *ctx)
{
    struct meta_fsm *f = ctx;
    TRY(tree_open(&f->tree, f->generation->kv));
    return tree_verify(&f->tree);
}

static enum rc open_store(struct meta_fsm *f)
{
    struct kv *kv;
    TRY(kv_lmdb_open(f->config.dir, f->config.map_bytes, &kv));
    f->generation = generation_create(kv);
    bool is_lost;
    const enum rc rc = kv_lmdb_guard(open_tree, f, &is_lost);
    if (rc != RC_OK) {
        if (!is_lost) {
            tree_close(&f->tree);
            kv_close(kv);
        }
        free(f->generation);
        f->generation = NULL;
        f->tree = (struct tree){0};
    }
    return rc;
}

enum rc meta_fsm_open(struct meta_fsm *f, const struct meta_fsm_config *config, bool *is_damaged,
                      bool *is_new)
{
    *f = (struct meta_fsm){.config = *config};
    *is_damaged = false;
    enum rc rc = RC_NO_FILE;
    if (config->dir) {
        rc = open_store(f);
        *is_damaged = rc == RC_CORRUPT;
    }
    if (rc == RC_OK) {
        f->is_published = true;
    } else if (rc == RC_NO_FILE || rc == RC_CORRUPT) {
        struct kv *kv = NULL;
        if (config->dir) {
            TRY(kv_lmdb_create(config->dir, config->map_bytes, &kv));
        } else {
            kv = kv_mem_create();
        }
        f->generation = generation_create(kv);
        TRY(tree_open(&f->tree, kv));
    } else {
        return rc;
    }
    f->handed = f->tree.meta.applied_index;
    f->bytes = measure(f);
    *is_new = !f->is_published;
    return RC_OK;
}

void meta_fsm_close(struct meta_fsm *f)
{
    drop_frozen(f);
    if (f->check) {
        tree_snapshot_check_deinit(f->check);
        free(f->check);
    }
    drop_incoming(f);
    const enum rc rc = tree_commit(&f->tree);
    if (rc != RC_OK) {
        log_error("metadata store: last commit: %s; the log has it", rc_text(rc));
    }
    tree_close(&f->tree);
    kv_close(f->generation->kv);
    free(f->generation);
}
