// SPDX-License-Identifier: Apache-2.0
// Start-up, first half: what the newest checkpoint, the tables of the sealed segments and the WAL say of each
// group.
//
// Records of the WAL are taken in the order in which they were written and override what came before;
// segments are only listed here, for which of their runs count is known when the WAL has been read
// (recover_assemble.c).
#include "consensus/store/recover.h"
#include "node/base/reader.h"
#include <inttypes.h>
#include <stdio.h>

// ---- findings -----------------------------------------------------------------------------------

static struct finding *finding_of(struct recovery *r, uint64_t group)
{
    struct finding *f = map_get(&r->groups, group);
    if (f == NULL) {
        f = mem_zalloc(sizeof(*f));
        f->log = glog_create(store_worker_of(r->store, group), group);
        f->log->segment_floor = 0;
        buf_init(&f->line_config);
        map_put(&r->groups, group, f);
    }
    return f;
}

void finding_cut(struct finding *f, uint64_t from)
{
    struct glog *g = f->log;
    glog_cut(g, from);
    while (f->terms_count > 0 && f->terms[f->terms_count - 1].first >= from) {
        f->terms_count--;
    }
    while (f->configs_count > 0 && f->configs[f->configs_count - 1].index >= from) {
        f->configs_count--;
    }
    if (f->dense_last >= from) {
        f->dense_last = from - 1;
    }
}

// Numbers of segments must stay above every floor ever given out, also when the segments themselves are gone.
static void raise_floor(struct recovery *r, struct glog *g, uint64_t floor)
{
    g->segment_floor = floor;
    if (atomic_load(&r->store->shared_next_segment) < floor) {
        atomic_store(&r->store->shared_next_segment, floor);
    }
}

static void on_line(void *ctx, const struct checkpoint_line *l)
{
    struct finding *f = finding_of(ctx, l->group);
    f->exists = true;
    f->is_amnesiac = l->is_amnesiac;
    f->log->hard_state = l->hard_state;
    f->log->replica_id = l->replica_id;
    raise_floor(ctx, f->log, l->segment_floor);
    f->line_snapshot = l->snapshot_index;
    f->dense_last = l->dense_last;
    f->has_live = l->has_live;
    f->line_config_index = l->config.index;
    if (l->config.count > 0) {
        config_encode(&l->config, &f->line_config);
    }
}

// ---- the directory ------------------------------------------------------------------------------

static bool parse_name(const char *name, const char *prefix, uint64_t *seq, bool *is_temporary)
{
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0) {
        return false;
    }
    const char *digits = name + n;
    uint64_t v = 0;
    for (int i = 0; i < 16; i++) {
        char c = digits[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) {
            return false;
        }
        v = v << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *seq = v;
    *is_temporary = strcmp(digits + 16, ".tmp") == 0;
    return *is_temporary || digits[16] == '\0';
}

static void on_name(void *ctx, const char *name)
{
    struct recovery *r = ctx;
    uint64_t seq = 0;
    bool is_temporary = false;
    bool is_segment = parse_name(name, "seg-", &seq, &is_temporary);
    if (!is_segment && !parse_name(name, "groups-", &seq, &is_temporary)) {
        return;  // Not ours (CR-11).
    }
    if (is_temporary) {
        buf_printf(&r->junk, "seg/%s", name);
        buf_u8(&r->junk, 0);
    } else if (is_segment) {
        buf_u64(&r->seqs, seq);
    } else {
        buf_u64(&r->checkpoints, seq);
    }
}

static void remove_junk(struct recovery *r)
{
    struct disk *d = r->store->config.disk;
    for (size_t at = 0; at < r->junk.len;) {
        const char *path = (const char *)r->junk.ptr + at;
        if (d->unlink(d, path) != RC_OK) {
            log_warning("store: cannot remove %s", path);
        }
        at += strlen(path) + 1;
    }
}

enum rc recover_names(struct recovery *r)
{
    struct disk *d = r->store->config.disk;
    TRY(d->make_dir(d, "seg"));
    TRY(d->list(d, "seg", on_name, r));
    remove_junk(r);
    return RC_OK;
}

int recover_compare_u64(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, 8);
    memcpy(&y, b, 8);
    return (x > y) - (x < y);
}

uint64_t recover_u64_at(const struct buf *b, size_t i)
{
    uint64_t v;
    memcpy(&v, b->ptr + i * 8, 8);
    return v;
}

enum rc recover_checkpoint(struct recovery *r)
{
    size_t n = r->checkpoints.len / 8;
    if (n == 0) {
        return RC_OK;
    }
    if (n > 0) {
        qsort(r->checkpoints.ptr, n, 8, recover_compare_u64);
    }
    r->has_checkpoint = true;
    r->checkpoint_seq = recover_u64_at(&r->checkpoints, n - 1);
    enum rc rc = checkpoint_read(r->store->config.disk, r->checkpoint_seq, on_line, r);
    if (rc == RC_CORRUPT || rc == RC_NO_FILE) {
        // Older ones cannot replace it: the WAL files behind them are gone.
        log_error("store: checkpoint %" PRIu64 " is damaged: every group on this node has lost its memory",
                  r->checkpoint_seq);
        r->is_corrupt = true;
        rc = RC_OK;
    }
    return rc;
}

enum rc recover_segments(struct recovery *r)
{
    struct disk *d = r->store->config.disk;
    size_t n = r->seqs.len / 8;
    if (n > 0) {
        qsort(r->seqs.ptr, n, 8, recover_compare_u64);
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t seq = recover_u64_at(&r->seqs, i);
        struct segment *s = NULL;
        struct run_disk *runs = NULL;
        uint32_t count = 0;
        if (atomic_load(&r->store->shared_next_segment) <= seq) {
            atomic_store(&r->store->shared_next_segment, seq + 1);
        }
        enum rc rc = segment_load(d, seq, &s, &runs, &count);
        if (rc == RC_CORRUPT) {
            // Who needs it will miss it (and is amnesiac then); it is left for whoever looks into the matter.
            log_error("store: segment %" PRIu64 " is damaged", seq);
            continue;
        }
        TRY(rc);
        segment_list(r->store, s, count > 0 ? store_worker_of(r->store, runs[0].group)->index : 0);
        segment_hold(s);  // Until all groups have been put together (clean_up).
        buf_bytes(&r->segments, &s, sizeof(s));
        for (uint32_t k = 0; k < count; k++) {
            struct found_run f = {.disk = runs[k], .segment = s};
            buf_bytes(&r->runs, &f, sizeof(f));
        }
        free(runs);
    }
    return RC_OK;
}

// ---- WAL replay ---------------------------------------------------------------------------------

static uint64_t replay_ref(struct recovery *r, struct store_worker *w, uint64_t file_seq,
                           uint64_t file_offset)
{
    if (file_seq != r->file_seq) {
        for (uint32_t i = 0; i < r->store->config.workers; i++) {
            if (r->has_chunk[i]) {
                arena_file_filled(&r->store->workers[i].arena, r->chunks[i]);
                r->has_chunk[i] = false;
            }
        }
        r->file_seq = file_seq;
        if (file_seq != 0) {
            buf_u64(&r->files, file_seq);
        }
    }
    if (w == NULL) {
        return REF_NONE;
    }
    if (!r->has_chunk[w->index]) {
        r->has_chunk[w->index] = true;
        r->chunks[w->index] = arena_add_file(&w->arena, file_seq);
    }
    assert(file_offset < UINT32_MAX);
    return ref_of(r->chunks[w->index], (uint32_t)file_offset);
}

static enum rc replay_config(struct finding *f, uint64_t index, struct span payload)
{
    f->configs = mem_realloc(f->configs, (f->configs_count + 1) * sizeof(*f->configs));
    struct config_at *c = &f->configs[f->configs_count];
    c->index = index;
    enum rc rc = config_decode(payload, &c->config);
    if (rc == RC_OK) {
        c->config.index = index;
        f->configs_count++;
    } else if (rc != RC_UNSUPPORTED) {
        f->is_amnesiac = true;
        rc = RC_OK;
    }
    return rc;
}

static enum rc replay_entry(struct finding *f, const struct wal_recovered *e, uint64_t ref)
{
    struct glog *g = f->log;
    uint64_t index = e->record.index, end = g->window_first + g->window_count;
    finding_cut(f, index);  // What was there is overridden, truncate record or not.
    if (g->window_count > 0 && index > end) {
        glog_cut(
            g, 1);  // Does not join: only a snapshot between makes this right, which is looked at in the end.
    }
    if (g->window_count == 0) {
        g->window_first = index;
        f->terms_count = f->configs_count = 0;
    }
    glog_window_push(g, ref);
    g->last = index;
    f->window_bytes += record_size(e->record.len);
    if (f->terms_count == 0 || f->terms[f->terms_count - 1].term != e->record.term) {
        if (f->terms_count == f->terms_cap) {
            f->terms_cap = f->terms_cap == 0 ? 2 : f->terms_cap * 2;
            f->terms = mem_realloc(f->terms, f->terms_cap * sizeof(*f->terms));
        }
        f->terms[f->terms_count++] = (struct term_run){.first = index, .term = e->record.term};
    }
    return e->record.kind == RECORD_CONFIG ? replay_config(f, index, e->payload) : RC_OK;
}

// A tombstone stands between two replicas of a group here, and ids rise: without it, where the later one began is
// damaged. Who is found to write here after damage shows that no later one did before.
static void replay_replica(struct finding *f, uint64_t replica)
{
    struct glog *g = f->log;
    f->is_amnesiac |= g->replica_id != 0 && replica > g->replica_id;
    f->is_hiding = false;
    g->replica_id = replica;
}

// Highest term wins; within it a vote beats no vote; two votes in one term cannot be (engine-notes §7.7).
static void replay_hard_state(struct recovery *rec, struct finding *f, const struct wal_recovered *e)
{
    struct hard_state *hs = &f->log->hard_state;
    f->is_amnesiac |= (e->record.flags & RECORD_FLAG_LOST) != 0;
    struct reader r = reader_of(e->payload);
    uint64_t vote = reader_u64(&r);
    uint64_t replica = reader_left(&r) > 0 ? reader_u64(&r) : 0;
    if (reader_end(&r) != RC_OK) {
        f->is_amnesiac = true;
        return;
    }
    if (replica != 0) {
        replay_replica(f, replica);
    }
    if (e->record.index > f->log->segment_floor) {
        raise_floor(rec, f->log, e->record.index);  // The tombstone before it may have gone with its file.
    }
    if (e->record.term > hs->term) {
        *hs = (struct hard_state){.term = e->record.term, .vote = vote};
    } else if (e->record.term == hs->term && vote != 0) {
        if (hs->vote != 0 && hs->vote != vote) {
            log_error("store: group %" PRIu64 " voted twice in term %" PRIu64, f->log->group, hs->term);
            f->is_amnesiac = true;
        }
        hs->vote = vote;
    }
}

static void replay_reset(struct finding *f)
{
    finding_cut(f, 1);
    f->log->last = 0;
    f->window_bytes = 0;
}

enum rc recover_record(void *ctx, const struct wal_recovered *e)
{
    struct recovery *r = ctx;
    if (e->record.kind == RECORD_MARK || e->record.group == 0) {
        (void)replay_ref(r, NULL, e->file_seq, 0);
        return RC_OK;
    }
    struct finding *f = finding_of(r, e->record.group);
    uint64_t ref = replay_ref(r, f->log->worker, e->file_seq, e->file_offset);
    f->exists = e->record.kind != RECORD_TOMBSTONE;
    switch (e->record.kind) {
    case RECORD_ENTRY:
    case RECORD_CONFIG:
    case RECORD_NOOP:
        return replay_entry(f, e, ref);
    case RECORD_HARD_STATE:
        replay_hard_state(r, f, e);
        break;
    case RECORD_TRUNCATE:
        if (e->record.flags & RECORD_FLAG_INSTALLED) {
            replay_reset(f);
            f->installed = e->record.index - 1;
        } else {
            finding_cut(f, e->record.index);
        }
        break;
    case RECORD_TOMBSTONE:
        replay_reset(f);
        f->log->hard_state = (struct hard_state){0};
        f->log->replica_id = 0;
        raise_floor(r, f->log, e->record.index);
        f->line_snapshot = f->installed = 0;
        f->is_amnesiac = f->is_hiding = false;
        break;
    default:
        log_warning("store: record of unknown kind %u in WAL file %" PRIu64, e->record.kind, e->file_seq);
        break;
    }
    return RC_OK;
}

void recover_corrupt_group(void *ctx, uint64_t group)
{
    struct finding *f = finding_of(ctx, group);
    f->is_amnesiac = f->is_hiding = true;
}

void recover_replay_end(struct recovery *r)
{
    (void)replay_ref(r, NULL, 0, 0);
}
