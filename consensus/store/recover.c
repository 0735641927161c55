// SPDX-License-Identifier: Apache-2.0
// Start-up: opens the store. Reads what is on disk (recover_read.c), puts the groups together
// (recover_assemble.c) and removes what nobody refers to any more, unless something is damaged: then it is
// evidence.
#include "consensus/store/recover.h"
#include "node/base/limits.h"
#include <stdio.h>

// ---- cleaning up
// ------------------------------------------------------------------------------------------------

// Removes what nobody refers to: superseded segments, older checkpoints. Not after damage: evidence.
static void clean_up(struct recovery *r)
{
    struct disk *d = r->store->config.disk;
    char path[SEGMENT_PATH_MAX], name[SEGMENT_PATH_MAX - 8];
    for (size_t i = 0; i < r->segments.len / sizeof(struct segment *); i++) {
        struct segment *s;
        memcpy(&s, r->segments.ptr + i * sizeof(s), sizeof(s));
        if (atomic_fetch_sub(&s->shared_refs, 1) > 1) {
            continue;
        }
        segment_path(s->seq, true, path);
        if (!r->is_corrupt && !s->is_evidence && d->unlink(d, path) != RC_OK) {
            log_warning("store: cannot remove %s", path);
        }
        list_remove(&s->all);
        r->store->segments_count--;
        free(s);
    }
    for (size_t i = 0; i + 1 < r->checkpoints.len / 8 && !r->is_corrupt; i++) {
        checkpoint_name(recover_u64_at(&r->checkpoints, i), name, sizeof(name));
        snprintf(path, sizeof(path), "seg/%s", name);
        if (d->unlink(d, path) != RC_OK) {
            log_warning("store: cannot remove %s", path);
        }
    }
}

// ---- opening ------------------------------------------------------------------------------------

static struct store *store_create(const struct store_config *config)
{
    struct store *s = mem_zalloc(sizeof(*s));
    s->config = *config;
    s->workers = mem_zalloc(config->workers * sizeof(*s->workers));
    s->shared_next_segment = 1;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_mutex_init(&s->reserve_mutex, NULL);
    list_init(&s->rounds);
    list_init(&s->segments);
    for (uint32_t i = 0; i < config->workers; i++) {
        struct store_worker *w = &s->workers[i];
        w->store = s;
        w->index = i;
        arena_init(&w->arena, config->memtable_bytes / config->workers, config->wal_file_bytes);
        w->large_bytes = config->wal_slice_bytes != 0 ? config->wal_slice_bytes : LIMIT_WAL_SLICE_BYTES;
        list_init(&w->out[LANE_ORDINARY]);
        list_init(&w->out[LANE_LARGE]);
        map_init_keyed(&w->groups);
        map_init_u64(&w->snapshot_wanted);
        map_init_u64(&w->receives);
        list_init(&w->active);
        list_init(&w->submissions);
        list_init(&w->free_submissions);
        list_init(&w->plans);
        list_init(&w->closed);
        list_init(&w->leaving);
        list_init(&w->doomed);
        cold_init(&w->cold, config->disk);
        compaction_init(w);
    }
    return s;
}

static enum rc open_wal(struct recovery *r, struct wal_report *report_out)
{
    struct store *s = r->store;
    const struct store_config *c = &s->config;
    struct wal_config wc = {
        .disk = c->disk,
        .dir = "wal",
        .file_bytes = c->wal_file_bytes,
        .align = c->wal_align,
        .reserve_files = c->wal_reserve_files,
        .slice_bytes = c->wal_slice_bytes,
        .random = c->random,
        .must_exist = c->must_exist,
        .on_file_closed = c->on_wal_file_closed,
        .on_done = c->on_wal_done,
        .ctx = c->wal_ctx,
        .more_room = reserve_for_wal,
        .more_room_ctx = s,
    };
    memcpy(wc.cluster_id, c->cluster_id, sizeof(wc.cluster_id));
    TRY(wal_open(&wc, r->has_checkpoint ? r->checkpoint_seq + 1 : 1, recover_record, r, recover_corrupt_group,
                 report_out, &s->wal));
    recover_replay_end(r);
    if (report_out->is_corrupt && !report_out->corrupt_groups_known) {
        r->is_corrupt = true;
    }
    if (r->is_corrupt) {
        report_out->is_corrupt = true;
        report_out->corrupt_groups_known = false;
    }
    // They are retired by and by, as further files are closed.
    size_t n = r->files.len / 8;
    if (n > 0) {
        qsort(r->files.ptr, n, 8, recover_compare_u64);
    }
    s->recovered_files = mem_alloc((n + 1) * sizeof(uint64_t));
    s->recovered_count = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        s->recovered_files[i] = recover_u64_at(&r->files, i);
    }
    s->retired_through = s->checkpoint_seq = r->checkpoint_seq;
    return RC_OK;
}

static void recovery_deinit(struct recovery *r)
{
    uint32_t pos = 0;
    struct finding *f;
    while ((f = map_next(&r->groups, &pos, NULL, NULL)) != NULL) {
        buf_deinit(&f->line_config);
        free(f->terms);
        free(f->configs);
        free(f);
    }
    map_deinit(&r->groups);
    buf_deinit(&r->runs);
    buf_deinit(&r->segments);
    buf_deinit(&r->seqs);
    buf_deinit(&r->checkpoints);
    buf_deinit(&r->junk);
    buf_deinit(&r->files);
    free(r->chunks);
    free(r->has_chunk);
}

static enum rc recover(struct recovery *r, store_group_fn *each, void *each_ctx,
                       struct wal_report *report_out)
{
    TRY(recover_names(r));
    reserve_find(r->store);
    TRY(recover_checkpoint(r));
    TRY(recover_segments(r));
    // The checkpoint's name is durable before the files it covers go; and what was removed is room now, not later.
    TRY(r->store->config.disk->sync_dir(r->store->config.disk, "seg"));
    TRY(open_wal(r, report_out));
    recover_assemble(r, each, each_ctx);
    if (r->is_later) {
        return RC_UNSUPPORTED;  // Everything stays as it is for the version that wrote it.
    }
    clean_up(r);
    return RC_OK;
}

enum rc store_open(const struct store_config *config, store_group_fn *each, void *each_ctx,
                   struct wal_report *report_out, struct store **out)
{
    assert(config->workers > 0);
    struct store *s = store_create(config);
    struct recovery r = {.store = s};
    map_init_u64(&r.groups);
    buf_init(&r.runs);
    buf_init(&r.segments);
    buf_init(&r.seqs);
    buf_init(&r.checkpoints);
    buf_init(&r.junk);
    buf_init(&r.files);
    r.chunks = mem_zalloc(config->workers * sizeof(*r.chunks));
    r.has_chunk = mem_zalloc(config->workers * sizeof(*r.has_chunk));
    *report_out = (struct wal_report){0};
    enum rc rc = recover(&r, each, each_ctx, report_out);
    if (rc != RC_OK) {
        store_close(s);
        s = NULL;
        for (size_t i = 0; i < r.segments.len / sizeof(struct segment *); i++) {
            struct segment *segment;
            memcpy(&segment, r.segments.ptr + i * sizeof(segment), sizeof(segment));
            free(segment);  // All users are gone, the count of the recovery is the last one.
        }
    }
    recovery_deinit(&r);
    if (rc == RC_OK) {
        reserve_start(s);
    }
    *out = s;
    return rc;
}
