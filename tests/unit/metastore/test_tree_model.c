// SPDX-License-Identifier: Apache-2.0
// links: metastore node/base proto consensus consensus/raft consensus/solo gen
// The tree against a simple model under random commands, on both back ends at once: same answers, same nodes,
// same digests; then as replicas: restored from a snapshot, reopened at an older commit and replayed,
// damaged.
#include "meta_fixture.h"
#include "node/base/env.h"
#include <fcntl.h>

// ---- the model
// ----------------------------------------------------------------------------------------------------- Paths
// of up to four of the names a..d are the nodes of a complete tree in heap order: root 0, children 4i + 1 ..
// 4i + 4.

enum { NAMES = 4, DEPTH = 4, NODES = 1 + 4 + 16 + 64 + 256, WATCHES = 8 };

struct model_node {
    bool exists, has_payload, is_auto;
    uint64_t version, child_version;
    uint32_t payload;
    uint32_t watched[WATCHES];
    bool on_children[WATCHES];
    uint32_t watches;
};

struct model {
    struct model_node node[NODES];
};

static uint32_t parent_of(uint32_t i)
{
    return (i - 1) / NAMES;
}

static uint32_t children_of(const struct model *m, uint32_t i, const bool *without)
{
    uint32_t n = 0;
    for (uint32_t c = i * NAMES + 1; c <= i * NAMES + NAMES && c < NODES; c++) {
        n += m->node[c].exists && !(without && without[c]);
    }
    return n;
}

static bool must_go(const struct model *m, uint32_t i, const bool *gone)
{
    const struct model_node *n = &m->node[i];
    if (i != 0 && parent_of(i) != 0 && gone[parent_of(i)]) {
        return true;
    }
    if (n->is_auto && children_of(m, i, gone) == 0) {
        return true;
    }
    for (uint32_t w = 0; w < n->watches; w++) {
        const uint32_t t = n->watched[w];
        if (gone[t] || (n->on_children[w] && children_of(m, t, NULL) > 0 && children_of(m, t, gone) == 0)) {
            return true;
        }
    }
    return false;
}

// Deletes to the fixed point, the slow way.
static void model_delete(struct model *m, uint32_t start)
{
    bool gone[NODES] = {false};
    gone[start] = true;
    for (bool is_more = true; is_more;) {
        is_more = false;
        for (uint32_t i = 1; i < NODES; i++) {
            if (m->node[i].exists && !gone[i] && must_go(m, i, gone)) {
                gone[i] = is_more = true;
            }
        }
    }
    for (uint32_t i = 1; i < NODES; i++) {
        if (gone[i]) {
            m->node[parent_of(i)].child_version++;
        }
    }
    for (uint32_t i = 1; i < NODES; i++) {
        if (gone[i]) {
            m->node[i] = (struct model_node){0};
        }
    }
}

static enum rc model_check(const struct model *m, uint32_t i, enum meta_if condition, uint64_t version)
{
    const struct model_node *n = &m->node[i];
    const bool is_present = n->exists && n->has_payload;
    switch (condition) {
    case META_IF_ANY:
        return RC_OK;
    case META_IF_ABSENT:
        return is_present ? RC_EXISTS : RC_OK;
    case META_IF_PRESENT:
        return is_present ? RC_OK : RC_NOT_FOUND;
    case META_IF_VERSION:
        return !is_present ? RC_NOT_FOUND : n->version == version ? RC_OK : RC_CONFLICT;
    case META_IF_NO_CHILDREN:
        return n->exists && children_of(m, i, NULL) > 0 ? RC_CONFLICT : RC_OK;
    }
    return RC_BUG;
}

static void model_create(struct model *m, uint32_t i, bool is_auto)
{
    if (i == 0 || m->node[i].exists) {
        return;
    }
    model_create(m, parent_of(i), true);
    m->node[i].exists = true;
    m->node[i].is_auto = is_auto;
    m->node[parent_of(i)].child_version++;
}

struct op {
    uint32_t node;
    bool is_delete;
    enum meta_if condition;
    uint64_t version;
    uint32_t payload;
    uint32_t keeps;
    uint32_t watched[2];
    bool on_children[2];
};

static enum rc model_op(struct model *m, const struct op *op)
{
    TRY(model_check(m, op->node, op->condition, op->version));
    struct model_node *n = &m->node[op->node];
    if (op->is_delete) {
        if (n->exists) {
            model_delete(m, op->node);
        }
        return RC_OK;
    }
    model_create(m, op->node, false);
    n->is_auto = false;
    n->has_payload = true;
    n->version++;
    n->payload = op->payload;
    if (op->keeps > 0) {
        n->watches = 0;
    }
    for (uint32_t k = 0; k < op->keeps; k++) {
        const uint32_t t = op->watched[k];
        if (!m->node[t].exists) {
            return RC_NOT_FOUND;
        }
        if (op->on_children[k] && t != op->node && children_of(m, t, NULL) == 0) {
            return RC_CONFLICT;
        }
        n->watched[n->watches] = t;
        n->on_children[n->watches++] = op->on_children[k];
    }
    return RC_OK;
}

// ---- both -------------------------------------------------------------------------------------------------

static struct meta_path path_of(uint32_t i)
{
    uint32_t chain[DEPTH];
    uint32_t depth = 0;
    for (; i != 0; i = parent_of(i)) {
        chain[depth++] = (i - 1) % NAMES;
    }
    static const char *const letters = "abcd";
    struct meta_path p = {.depth = depth};
    for (uint32_t d = 0; d < depth; d++) {
        p.names[d] = span_of(letters + chain[depth - 1 - d], 1);
    }
    return p;
}

static uint32_t random_node(struct rng *rng)
{
    const uint64_t depth = rng_below(rng, DEPTH) + 1;
    uint32_t i = 0;
    for (uint64_t d = 0; d < depth; d++) {
        i = i * NAMES + 1 + (uint32_t)rng_below(rng, NAMES);
    }
    return i;
}

static struct op random_op(struct rng *rng, const struct model *m)
{
    struct op op = {.node = random_node(rng), .payload = (uint32_t)rng_next(rng)};
    op.is_delete = rng_below(rng, 4) == 0;
    static const enum meta_if conditions[] = {META_IF_ANY,        META_IF_ANY,     META_IF_ANY,
                                              META_IF_ABSENT,     META_IF_PRESENT, META_IF_VERSION,
                                              META_IF_NO_CHILDREN};
    op.condition = conditions[rng_below(rng, 7)];
    op.version = m->node[op.node].version + (rng_below(rng, 5) == 0);
    if (!op.is_delete && rng_below(rng, 2) == 0) {
        op.keeps = 1 + (uint32_t)rng_below(rng, 2);
        for (uint32_t k = 0; k < op.keeps; k++) {
            op.watched[k] = rng_below(rng, 10) == 0 ? op.node : random_node(rng);
            op.on_children[k] = rng_below(rng, 2) == 0;
            if (op.watched[k] == op.node) {
                op.on_children[k] = true;
            }
        }
    }
    return op;
}

static void encode_op(struct meta_command *c, const struct op *op)
{
    const struct meta_path p = path_of(op->node);
    if (op->is_delete) {
        meta_delete(c, &p, op->condition, op->version);
        return;
    }
    meta_put(c, &p, span_of(&op->payload, 4), op->condition, op->version);
    for (uint32_t k = 0; k < op->keeps; k++) {
        const struct meta_path w = path_of(op->watched[k]);
        meta_keep_while(c, &w, op->on_children[k]);
    }
}

static void compare(struct bench *b, const struct model *m)
{
    uint64_t count = 0;
    for (uint32_t i = 1; i < NODES; i++) {
        const struct meta_path p = path_of(i);
        const struct model_node *n = &m->node[i];
        struct tree_node_info info;
        HOT(tree_get(&b->tree, &p, &info) == n->exists);
        if (!n->exists) {
            continue;
        }
        count++;
        HOT(info.has_payload == n->has_payload);
        HOT(info.version == n->version);
        HOT(info.child_version == n->child_version);
        HOT(info.child_count == children_of(m, i, NULL));
        if (n->has_payload) {
            HOT(span_equal(info.payload, span_of(&n->payload, 4)));
        }
    }
    HOT(b->tree.meta.nodes == count);
    HOT(tree_check(&b->tree) == RC_OK);
}

// The changes told must take a copy of what was told before to what the model has now.
static void follow(struct bench *b, struct model_node *told, const struct model *m)
{
    struct reader r = reader_of(buf_span(&b->changes));
    struct meta_change c;
    struct meta_path p;
    while (change_next(&r, &c, &p) == RC_OK) {
        uint32_t i = 0;
        for (uint32_t d = 0; d < p.depth; d++) {
            i = i * NAMES + 1 + (uint32_t)(p.names[d].ptr[0] - 'a');
        }
        HOT(c.payload.len == 4);
        if (c.is_deleted) {
            HOT(told[i].exists);
            HOT(memcmp(c.payload.ptr, &told[i].payload, 4) == 0);
            told[i].exists = false;
        } else {
            HOT(c.is_created == !told[i].exists);
            told[i].exists = true;
            told[i].version = c.version;
            memcpy(&told[i].payload, c.payload.ptr, 4);
        }
    }
    for (uint32_t i = 1; i < NODES; i++) {
        const struct model_node *n = &m->node[i];
        HOT(told[i].exists == (n->exists && n->has_payload));
        if (told[i].exists) {
            HOT(told[i].version == n->version);
            HOT(told[i].payload == n->payload);
        }
    }
}

static void random_entry(struct rng *rng, struct model *m, struct buf *payload, enum rc *rc, uint64_t step)
{
    struct meta_command c;
    meta_command_init(&c);
    struct model trial = *m;
    *rc = RC_OK;
    const uint64_t ops = 1 + rng_below(rng, 3);
    for (uint64_t k = 0; k < ops; k++) {
        const struct op op = random_op(rng, &trial);
        encode_op(&c, &op);
        if (*rc == RC_OK) {
            *rc = model_op(&trial, &op);
        }
    }
    if (*rc == RC_OK) {
        *m = trial;
    }
    entry_of(payload, &c, (struct command_ref){1, 1, step}, step * 500);
}

START_TEST(random_commands_agree_with_a_simple_model_on_both_back_ends)
{
    char *dir = temp_dir();
    struct bench back[BACKS];
    for (int i = 0; i < BACKS; i++) {
        bench_open(&back[i], back_create(i, dir));
    }
    struct model m = {0};
    struct model_node told[NODES] = {0};
    struct rng rng;
    rng_seed(&rng, 1000 + (uint64_t)_i);
    struct buf payload = {0};
    uint32_t failures = 0;
    for (uint64_t step = 1; step <= 3000; step++) {
        enum rc rc;
        random_entry(&rng, &m, &payload, &rc, step);
        failures += rc != RC_OK;
        for (int i = 0; i < BACKS; i++) {
            HOT(bench_entry(&back[i], buf_span(&payload)) == rc);
        }
        HOT(tree_digest(&back[0].tree) == tree_digest(&back[1].tree));
        HOT(span_equal(buf_span(&back[0].changes), buf_span(&back[1].changes)));
        follow(&back[0], told, &m);
        if (step % 100 == 0) {
            compare(&back[0], &m);
            ck_assert_int_eq(tree_commit(&back[step / 100 % 2].tree), RC_OK);
        }
    }
    ck_assert_uint_gt(failures, 100);
    for (int i = 0; i < BACKS; i++) {
        compare(&back[i], &m);
        ck_assert_int_eq(tree_commit(&back[i].tree), RC_OK);
        ck_assert_int_eq(tree_verify(&back[i].tree), RC_OK);
        bench_close(&back[i]);
    }
    buf_deinit(&payload);
    temp_remove(dir);
}
END_TEST

// ---- replicas ---------------------------------------------------------------------------------------------

struct log {
    struct buf entries[1200];
    uint32_t count;
};

static void log_make(struct log *log, uint32_t count, uint64_t seed)
{
    struct model m = {0};
    struct rng rng;
    rng_seed(&rng, seed);
    for (log->count = 0; log->count < count; log->count++) {
        enum rc rc;
        log->entries[log->count] = (struct buf){0};
        random_entry(&rng, &m, &log->entries[log->count], &rc, log->count + 1);
    }
}

static void log_free(struct log *log)
{
    for (uint32_t i = 0; i < log->count; i++) {
        buf_deinit(&log->entries[i]);
    }
}

// Applies first..last, as a host does after a start: also what is known already.
static void replay(struct bench *b, const struct log *log, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i <= last; i++) {
        struct tree_result result;
        b->changes.len = 0;
        tree_apply(&b->tree, i, 1, RECORD_ENTRY, buf_span(&log->entries[i - 1]), &b->changes, &result);
        HOT(b->tree.rc == RC_OK);
    }
}

static void copy_file(const char *from_dir, const char *to_dir, const char *name)
{
    char from[512];
    char to[512];
    snprintf(from, sizeof(from), "%s/%s", from_dir, name);
    snprintf(to, sizeof(to), "%s/%s", to_dir, name);
    FILE *in = fopen(from, "r");
    FILE *out = fopen(to, "w");
    ck_assert(in && out);
    char block[65536];
    for (size_t n; (n = fread(block, 1, sizeof(block), in)) > 0;) {
        ck_assert_uint_eq(fwrite(block, 1, n, out), n);
    }
    fclose(in);
    fclose(out);
}

// A crash that loses everything behind a sync: the directory as it was then, opened again.
START_TEST(a_store_that_fell_back_to_its_last_sync_catches_up_by_replay)
{
    static struct log log;
    log_make(&log, 1000, 7);
    char *dir = temp_dir();
    char *old = temp_dir();
    char path[512];
    snprintf(path, sizeof(path), "%s/gen-1", old);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    struct bench a;
    bench_open(&a, back_create(BACK_LMDB, dir));
    replay(&a, &log, 1, 400);
    ck_assert_int_eq(tree_commit(&a.tree), RC_OK);
    ck_assert_int_eq(kv_sync(a.kv), RC_OK);
    copy_file(dir, old, "CURRENT");
    copy_file(dir, old, "gen-1/data.mdb");
    replay(&a, &log, 401, 700);
    ck_assert_int_eq(tree_commit(&a.tree), RC_OK);
    replay(&a, &log, 701, 1000);

    struct kv *kv;
    ck_assert_int_eq(kv_lmdb_open(old, 1ull << 30, &kv), RC_OK);
    struct bench b;
    bench_open(&b, kv);
    ck_assert_uint_eq(b.tree.meta.applied_index, 400);
    ck_assert_int_eq(tree_verify(&b.tree), RC_OK);
    replay(&b, &log, 200, 1000);
    ck_assert_uint_eq(tree_digest(&a.tree), tree_digest(&b.tree));
    bench_close(&a);
    bench_close(&b);
    temp_remove(dir);
    temp_remove(old);
    log_free(&log);
}
END_TEST

START_TEST(closing_without_a_commit_loses_only_what_replay_brings_back)
{
    static struct log log;
    log_make(&log, 600, 8);
    char *dir = temp_dir();
    struct bench a;
    bench_open(&a, back_create(BACK_LMDB, dir));
    replay(&a, &log, 1, 300);
    ck_assert_int_eq(tree_commit(&a.tree), RC_OK);
    replay(&a, &log, 301, 600);
    const uint64_t digest = tree_digest(&a.tree);
    bench_close(&a);  // Aborts the open transaction.
    struct kv *kv;
    ck_assert_int_eq(kv_lmdb_open(dir, 1ull << 30, &kv), RC_OK);
    bench_open(&a, kv);
    ck_assert_uint_eq(a.tree.meta.applied_index, 300);
    replay(&a, &log, 1, 600);
    ck_assert_uint_eq(tree_digest(&a.tree), digest);
    bench_close(&a);
    temp_remove(dir);
    log_free(&log);
}
END_TEST

static enum rc restore_row(void *ctx, enum kv_table table, struct span key, struct span value)
{
    return kv_put(ctx, table, key, value);
}

static void snapshot_chunks(struct kv *kv, size_t chunk_bytes, struct buf *chunks, uint32_t *count,
                            uint32_t max)
{
    struct kv_txn *t;
    ck_assert_int_eq(kv_begin(kv, false, &t), RC_OK);
    struct kv_copy copy;
    kv_copy_init(&copy, t);
    bool is_last = false;
    for (*count = 0; !is_last; (*count)++) {
        ck_assert_uint_lt(*count, max);
        chunks[*count] = (struct buf){0};
        ck_assert_int_eq(kv_copy_chunk(&copy, chunk_bytes, &chunks[*count], &is_last), RC_OK);
    }
    kv_copy_deinit(&copy);
    kv_abort(t);
}

START_TEST(a_restored_snapshot_is_the_same_state_and_goes_on_the_same_way)
{
    static struct log log;
    log_make(&log, 1000, 9);
    struct bench a;
    bench_open(&a, kv_mem_create());
    replay(&a, &log, 1, 500);
    ck_assert_int_eq(tree_commit(&a.tree), RC_OK);
    static struct buf chunks[4096];
    uint32_t count;
    snapshot_chunks(a.kv, 256, chunks, &count, 4096);

    char *dir = temp_dir();
    struct kv *kv = back_create(BACK_LMDB, dir);
    struct kv_txn *t;
    ck_assert_int_eq(kv_begin(kv, true, &t), RC_OK);
    struct kv_copy_reader reader;
    kv_copy_reader_init(&reader, restore_row, t);
    struct tree_snapshot_check check;
    tree_snapshot_check_init(&check);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_ne(tree_snapshot_check_end(&check), RC_OK);
        ck_assert_int_eq(tree_snapshot_check_chunk(&check, buf_span(&chunks[i])), RC_OK);
        ck_assert_int_eq(kv_copy_reader_chunk(&reader, buf_span(&chunks[i])), RC_OK);
    }
    ck_assert_int_eq(tree_snapshot_check_end(&check), RC_OK);
    ck_assert_uint_eq(check.meta.applied_index, 500);
    tree_snapshot_check_deinit(&check);
    kv_copy_reader_deinit(&reader);
    ck_assert_int_eq(kv_commit(t), RC_OK);
    struct bench b;
    bench_open(&b, kv);
    ck_assert_int_eq(tree_verify(&b.tree), RC_OK);
    ck_assert_uint_eq(tree_digest(&a.tree), tree_digest(&b.tree));
    replay(&a, &log, 501, 1000);
    replay(&b, &log, 501, 1000);
    ck_assert_uint_eq(tree_digest(&a.tree), tree_digest(&b.tree));
    bench_close(&a);
    bench_close(&b);
    for (uint32_t i = 0; i < count; i++) {
        buf_deinit(&chunks[i]);
    }
    temp_remove(dir);
    log_free(&log);
}
END_TEST

START_TEST(a_snapshot_with_any_flipped_bit_is_refused)
{
    static struct log log;
    log_make(&log, 40, 10);
    struct bench a;
    bench_open(&a, kv_mem_create());
    replay(&a, &log, 1, 40);
    ck_assert_int_eq(tree_commit(&a.tree), RC_OK);
    struct buf chunk;
    uint32_t count;
    snapshot_chunks(a.kv, 1 << 20, &chunk, &count, 2);
    ck_assert_uint_eq(count, 1);
    for (size_t bit = 0; bit < chunk.len * 8; bit++) {
        chunk.ptr[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        struct tree_snapshot_check check;
        tree_snapshot_check_init(&check);
        const bool is_taken = tree_snapshot_check_chunk(&check, buf_span(&chunk)) == RC_OK &&
                              tree_snapshot_check_end(&check) == RC_OK;
        ck_assert_msg(!is_taken, "bit %zu", bit);
        tree_snapshot_check_deinit(&check);
        chunk.ptr[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    buf_deinit(&chunk);
    bench_close(&a);
    log_free(&log);
}
END_TEST

// ---- damage (CR-05) ---------------------------------------------------------------------------------------

struct open_args {
    struct kv *kv;
    struct tree tree;
};

static enum rc open_and_verify(void *ctx)
{
    struct open_args *a = ctx;
    TRY(tree_open(&a->tree, a->kv));
    return tree_verify(&a->tree);
}

// Flips a byte in each place of the file in turn (coarsely): the store is the whole one, or an older whole
// one, or damaged, but never opens as something else.
START_TEST(a_flipped_byte_anywhere_in_the_file_is_noticed_or_harmless)
{
    static struct log log;
    log_make(&log, 300, 11);
    char *dir = temp_dir();
    struct bench a;
    bench_open(&a, back_create(BACK_LMDB, dir));
    uint64_t digests[301];
    for (uint32_t i = 1; i <= 300; i++) {
        replay(&a, &log, i, i);
        digests[i] = tree_digest(&a.tree);
        if (i % 50 == 0) {
            ck_assert_int_eq(tree_commit(&a.tree), RC_OK);
        }
    }
    ck_assert_int_eq(kv_sync(a.kv), RC_OK);
    bench_close(&a);
    char path[512];
    snprintf(path, sizeof(path), "%s/gen-1/data.mdb", dir);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    uint32_t damaged = 0;
    struct rng rng;
    rng_seed(&rng, (uint64_t)_i);
    for (int round = 0; round < 150; round++) {
        const off_t at = round < 64 ? round * 4 : (off_t)rng_below(&rng, (uint64_t)st.st_size);
        const int fd = open(path, O_RDWR);
        uint8_t byte;
        ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
        const uint8_t flipped = (uint8_t)(byte ^ (1u << rng_below(&rng, 8)));
        ck_assert_int_eq(pwrite(fd, &flipped, 1, at), 1);
        struct open_args args = {0};
        enum rc rc = kv_lmdb_open(dir, 1ull << 30, &args.kv);
        if (rc == RC_OK) {
            bool is_lost;
            rc = kv_lmdb_guard(open_and_verify, &args, &is_lost);
            if (rc != RC_OK && !is_lost) {
                tree_close(&args.tree);
                kv_close(args.kv);
            } else if (rc == RC_OK) {
                const uint64_t index = args.tree.meta.applied_index;
                ck_assert_uint_le(index, 300);
                ck_assert(index == 0 || index % 50 == 0);
                ck_assert(index > 0);  // Never taken for empty.
                ck_assert_uint_eq(tree_digest(&args.tree), digests[index]);
                tree_close(&args.tree);
                kv_close(args.kv);
            }
        }
        damaged += rc != RC_OK;
        ck_assert(rc == RC_OK || rc == RC_CORRUPT);
        // The library may have written (a new transaction number): put everything back.
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
        close(fd);
    }
    ck_assert_uint_ge(damaged, 3);  // Live pages are a small part of the file.
    temp_remove(dir);
    log_free(&log);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tree_model");
    TCase *t = tcase_create("model");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, random_commands_agree_with_a_simple_model_on_both_back_ends, 0, 4);
    suite_add_tcase(s, t);
    t = tcase_create("replicas");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, a_store_that_fell_back_to_its_last_sync_catches_up_by_replay);
    tcase_add_test(t, closing_without_a_commit_loses_only_what_replay_brings_back);
    tcase_add_test(t, a_restored_snapshot_is_the_same_state_and_goes_on_the_same_way);
    tcase_add_test(t, a_snapshot_with_any_flipped_bit_is_refused);
    tcase_add_loop_test(t, a_flipped_byte_anywhere_in_the_file_is_noticed_or_harmless, 0, 2);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
