// SPDX-License-Identifier: Apache-2.0
// links: metastore node/base
// One conformance suite for both back ends of the kv seam, and LMDB's generations.
#include "meta_fixture.h"
#include "node/base/env.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

static char *dir;
static struct kv *kv;

static void open_back(int back)
{
    dir = temp_dir();
    kv = back_create(back, dir);
}

static void close_back(void)
{
    kv_close(kv);
    temp_remove(dir);
}

static struct kv_txn *begin(bool is_write)
{
    struct kv_txn *t;
    ck_assert_int_eq(kv_begin(kv, is_write, &t), RC_OK);
    return t;
}

static void put(struct kv_txn *t, const char *key, const char *value)
{
    ck_assert_int_eq(kv_put(t, KV_NODE, span_str(key), span_str(value)), RC_OK);
}

static const char *get(struct kv_txn *t, const char *key)
{
    static char text[256];
    struct span v;
    const enum rc rc = kv_get(t, KV_NODE, span_str(key), &v);
    if (rc == RC_NOT_FOUND) {
        return NULL;
    }
    ck_assert_int_eq(rc, RC_OK);
    snprintf(text, sizeof(text), "%.*s", (int)v.len, (const char *)v.ptr);
    return text;
}

START_TEST(what_was_put_is_got_and_put_again_replaces)
{
    open_back(_i);
    struct kv_txn *t = begin(true);
    put(t, "k", "one");
    ck_assert_str_eq(get(t, "k"), "one");
    put(t, "k", "another, longer");
    ck_assert_str_eq(get(t, "k"), "another, longer");
    ck_assert_ptr_null(get(t, "j"));
    put(t, "e", "");
    ck_assert_str_eq(get(t, "e"), "");
    ck_assert_int_eq(kv_commit(t), RC_OK);
    t = begin(false);
    ck_assert_str_eq(get(t, "k"), "another, longer");
    kv_abort(t);
    close_back();
}
END_TEST

START_TEST(tables_do_not_share_keys)
{
    open_back(_i);
    struct kv_txn *t = begin(true);
    for (int i = 0; i < KV_TABLES; i++) {
        const char value = (char)('a' + i);
        ck_assert_int_eq(kv_put(t, (enum kv_table)i, span_str("k"), span_of(&value, 1)), RC_OK);
    }
    for (int i = 0; i < KV_TABLES; i++) {
        struct span v;
        ck_assert_int_eq(kv_get(t, (enum kv_table)i, span_str("k"), &v), RC_OK);
        ck_assert_uint_eq(v.ptr[0], (uint8_t)('a' + i));
    }
    kv_abort(t);
    close_back();
}
END_TEST

START_TEST(removing_what_is_not_there_is_told)
{
    open_back(_i);
    struct kv_txn *t = begin(true);
    ck_assert_int_eq(kv_remove(t, KV_NODE, span_str("k")), RC_NOT_FOUND);
    put(t, "k", "v");
    ck_assert_int_eq(kv_remove(t, KV_NODE, span_str("k")), RC_OK);
    ck_assert_ptr_null(get(t, "k"));
    ck_assert_int_eq(kv_remove(t, KV_NODE, span_str("k")), RC_NOT_FOUND);
    kv_abort(t);
    close_back();
}
END_TEST

START_TEST(an_aborted_transaction_leaves_nothing)
{
    open_back(_i);
    struct kv_txn *t = begin(true);
    put(t, "stays", "1");
    put(t, "goes", "1");
    ck_assert_int_eq(kv_commit(t), RC_OK);
    t = begin(true);
    put(t, "stays", "2");
    put(t, "new", "2");
    ck_assert_int_eq(kv_remove(t, KV_NODE, span_str("goes")), RC_OK);
    kv_abort(t);
    t = begin(false);
    ck_assert_str_eq(get(t, "stays"), "1");
    ck_assert_str_eq(get(t, "goes"), "1");
    ck_assert_ptr_null(get(t, "new"));
    kv_abort(t);
    close_back();
}
END_TEST

START_TEST(a_reader_sees_the_commit_before_its_begin_for_as_long_as_it_lives)
{
    open_back(_i);
    struct kv_txn *w = begin(true);
    put(w, "k", "1");
    ck_assert_int_eq(kv_commit(w), RC_OK);
    w = begin(true);
    put(w, "k", "2");
    struct kv_txn *r = begin(false);
    ck_assert_str_eq(get(r, "k"), "1");
    ck_assert_int_eq(kv_commit(w), RC_OK);
    for (int i = 0; i < 500; i++) {
        char key[16];
        snprintf(key, sizeof(key), "x%d", i);
        w = begin(true);
        put(w, key, "filler");
        ck_assert_int_eq(kv_remove(w, KV_NODE, span_str(key)), RC_OK);
        put(w, "k", key);
        ck_assert_int_eq(kv_commit(w), RC_OK);
    }
    ck_assert_str_eq(get(r, "k"), "1");
    kv_abort(r);
    r = begin(false);
    ck_assert_str_eq(get(r, "k"), "x499");
    kv_abort(r);
    close_back();
}
END_TEST

START_TEST(next_walks_in_byte_order_with_and_without_the_start)
{
    open_back(_i);
    struct kv_txn *t = begin(true);
    put(t, "b", "");
    put(t, "a", "");
    put(t, "ab", "");
    put(t, "\xff", "");
    struct span k;
    struct span v;
    static const char *const order[] = {"a", "ab", "b", "\xff"};
    struct span from = span_of("", 0);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(kv_next(t, KV_NODE, from, i > 0, &k, &v), RC_OK);
        ck_assert(span_equal(k, span_str(order[i])));
        from = span_str(order[i]);
    }
    ck_assert_int_eq(kv_next(t, KV_NODE, from, true, &k, &v), RC_NOT_FOUND);
    ck_assert_int_eq(kv_next(t, KV_NODE, span_str("ab"), false, &k, &v), RC_OK);
    ck_assert(span_equal(k, span_str("ab")));
    ck_assert_int_eq(kv_next(t, KV_NODE, span_str("aa"), true, &k, &v), RC_OK);
    ck_assert(span_equal(k, span_str("ab")));
    ck_assert_int_eq(kv_next(t, KV_KW, span_of("", 0), false, &k, &v), RC_NOT_FOUND);
    kv_abort(t);
    close_back();
}
END_TEST

START_TEST(keys_and_values_at_the_limits_pass)
{
    open_back(_i);
    struct kv_txn *t = begin(true);
    uint8_t key[KV_KEY_MAX];
    memset(key, 7, sizeof(key));
    uint8_t *value = mem_alloc(2 << 20);
    memset(value, 9, 2 << 20);
    ck_assert_int_eq(kv_put(t, KV_NODE, span_of(key, sizeof(key)), span_of(value, 2 << 20)), RC_OK);
    ck_assert_int_eq(kv_commit(t), RC_OK);
    t = begin(false);
    struct span v;
    ck_assert_int_eq(kv_get(t, KV_NODE, span_of(key, sizeof(key)), &v), RC_OK);
    ck_assert(span_equal(v, span_of(value, 2 << 20)));
    kv_abort(t);
    free(value);
    close_back();
}
END_TEST

// A sorted array as the model: keys 0..199, value = counter, absent 0.
START_TEST(random_changes_agree_with_a_plain_array)
{
    open_back(_i);
    enum { KEYS = 200 };
    uint32_t model[KEYS] = {0};
    uint32_t saved[KEYS] = {0};
    struct rng rng;
    rng_seed(&rng, 42);
    struct kv_txn *t = begin(true);
    for (uint32_t step = 1; step < 20000; step++) {
        uint8_t key[2];
        const uint32_t k = (uint32_t)rng_below(&rng, KEYS);
        key[0] = (uint8_t)(k / 16);
        key[1] = (uint8_t)(k % 16);
        switch (rng_below(&rng, 50)) {
        case 0:
            ck_assert_int_eq(kv_commit(t), RC_OK);
            memcpy(saved, model, sizeof(saved));
            t = begin(true);
            break;
        case 1:
            kv_abort(t);
            memcpy(model, saved, sizeof(saved));
            t = begin(true);
            break;
        case 2: {
            // The whole table.
            uint8_t from[2];
            size_t from_len = 0;
            for (uint32_t i = 0; i < KEYS; i++) {
                if (model[i] == 0) {
                    continue;
                }
                struct span kk;
                struct span v;
                ck_assert_int_eq(kv_next(t, KV_DEDUP, span_of(from, from_len), from_len > 0, &kk, &v), RC_OK);
                ck_assert_uint_eq(kk.ptr[0] * 16u + kk.ptr[1], i);
                ck_assert_uint_eq(v.len, 4);
                ck_assert_mem_eq(v.ptr, &model[i], 4);
                memcpy(from, kk.ptr, 2);
                from_len = 2;
            }
            struct span kk;
            struct span v;
            ck_assert_int_eq(kv_next(t, KV_DEDUP, span_of(from, from_len), from_len > 0, &kk, &v),
                             RC_NOT_FOUND);
            break;
        }
        default:
            if (rng_below(&rng, 3) == 0) {
                ck_assert_int_eq(kv_remove(t, KV_DEDUP, span_of(key, 2)), model[k] ? RC_OK : RC_NOT_FOUND);
                model[k] = 0;
            } else {
                ck_assert_int_eq(kv_put(t, KV_DEDUP, span_of(key, 2), span_of(&step, 4)), RC_OK);
                model[k] = step;
            }
        }
    }
    kv_abort(t);
    close_back();
}
END_TEST

static enum rc copy_row(void *ctx, enum kv_table table, struct span key, struct span value)
{
    return kv_put(ctx, table, key, value);
}

START_TEST(a_copy_cut_into_small_chunks_is_the_same_store)
{
    open_back(_i);
    struct kv_txn *t = begin(true);
    for (int i = 0; i < 100; i++) {
        char key[16];
        char value[200];
        snprintf(key, sizeof(key), "%d", i);
        memset(value, 'a' + i % 26, sizeof(value));
        ck_assert_int_eq(
            kv_put(t, (enum kv_table)(i % KV_TABLES), span_str(key), span_of(value, (size_t)i * 2)), RC_OK);
    }
    ck_assert_int_eq(kv_commit(t), RC_OK);
    t = begin(false);
    struct kv *other = kv_mem_create();
    struct kv_txn *to;
    ck_assert_int_eq(kv_begin(other, true, &to), RC_OK);
    struct kv_copy copy;
    kv_copy_init(&copy, t);
    struct kv_copy_reader reader;
    kv_copy_reader_init(&reader, copy_row, to);
    struct buf chunk = {0};
    bool is_last = false;
    while (!is_last) {
        ck_assert(!reader.is_done);
        chunk.len = 0;
        ck_assert_int_eq(kv_copy_chunk(&copy, 64, &chunk, &is_last), RC_OK);
        ck_assert_uint_le(chunk.len, 64);
        ck_assert_int_eq(kv_copy_reader_chunk(&reader, buf_span(&chunk)), RC_OK);
    }
    ck_assert(reader.is_done);
    ck_assert_uint_eq(reader.rows, 100);
    for (int i = 0; i < 100; i++) {
        char key[16];
        struct span v;
        snprintf(key, sizeof(key), "%d", i);
        ck_assert_int_eq(kv_get(to, (enum kv_table)(i % KV_TABLES), span_str(key), &v), RC_OK);
        ck_assert_uint_eq(v.len, (size_t)i * 2);
    }
    kv_copy_deinit(&copy);
    kv_copy_reader_deinit(&reader);
    buf_deinit(&chunk);
    kv_abort(to);
    kv_close(other);
    kv_abort(t);
    close_back();
}
END_TEST

static enum rc ignore_row(void *ctx, enum kv_table table, struct span key, struct span value)
{
    (void)ctx, (void)table, (void)key, (void)value;
    return RC_OK;
}

START_TEST(a_stream_that_ends_early_or_skips_a_chunk_is_not_whole)
{
    open_back(BACK_MEM);
    struct kv_txn *t = begin(true);
    put(t, "k", "0123456789012345678901234567890123456789012345678901234567890123456789");
    struct kv_copy copy;
    kv_copy_init(&copy, t);
    struct buf a = {0};
    struct buf b = {0};
    bool is_last;
    ck_assert_int_eq(kv_copy_chunk(&copy, 64, &a, &is_last), RC_OK);
    ck_assert(!is_last);
    ck_assert_int_eq(kv_copy_chunk(&copy, 64, &b, &is_last), RC_OK);
    ck_assert(is_last);
    struct kv_copy_reader r;
    kv_copy_reader_init(&r, ignore_row, NULL);
    ck_assert_int_eq(kv_copy_reader_chunk(&r, buf_span(&b)), RC_MALFORMED);  // Number 1 first.
    kv_copy_reader_deinit(&r);
    kv_copy_reader_init(&r, ignore_row, NULL);
    ck_assert_int_eq(kv_copy_reader_chunk(&r, buf_span(&a)), RC_OK);
    ck_assert(!r.is_done);
    ck_assert_int_eq(kv_copy_reader_chunk(&r, span_of(b.ptr, b.len - 1)), RC_OK);
    ck_assert(!r.is_done);  // The end mark is cut.
    kv_copy_reader_deinit(&r);
    kv_copy_deinit(&copy);
    buf_deinit(&a);
    buf_deinit(&b);
    kv_abort(t);
    close_back();
}
END_TEST

// ---- generations (LMDB only) ------------------------------------------------------------------------------

static void file_write(const char *name, const char *content)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(content, f);
    fclose(f);
}

START_TEST(a_blank_directory_has_no_published_generation)
{
    dir = temp_dir();
    ck_assert_int_eq(kv_lmdb_open(dir, 1 << 26, &kv), RC_NO_FILE);
    ck_assert_int_eq(kv_lmdb_create(dir, 1 << 26, &kv), RC_OK);
    kv_close(kv);
    ck_assert_int_eq(kv_lmdb_open(dir, 1 << 26, &kv), RC_NO_FILE);  // Made, not published.
    temp_remove(dir);
}
END_TEST

START_TEST(a_new_generation_counts_from_its_publication_on)
{
    open_back(BACK_LMDB);
    struct kv_txn *t = begin(true);
    put(t, "k", "old");
    ck_assert_int_eq(kv_commit(t), RC_OK);
    struct kv_txn *reader = begin(false);
    struct kv *old = kv;
    ck_assert_int_eq(kv_lmdb_create(dir, 1 << 26, &kv), RC_OK);
    t = begin(true);
    put(t, "k", "new");
    ck_assert_int_eq(kv_commit(t), RC_OK);
    ck_assert_int_eq(kv_publish(kv), RC_OK);
    ck_assert_str_eq(get(reader, "k"), "old");  // Its files are gone, its pages are not.
    kv_abort(reader);
    kv_close(old);
    kv_close(kv);
    ck_assert_int_eq(kv_lmdb_open(dir, 1 << 26, &kv), RC_OK);
    t = begin(false);
    ck_assert_str_eq(get(t, "k"), "new");
    kv_abort(t);
    close_back();
}
END_TEST

START_TEST(an_unpublished_generation_is_forgotten_at_the_next_open)
{
    open_back(BACK_LMDB);
    struct kv_txn *t = begin(true);
    put(t, "k", "old");
    ck_assert_int_eq(kv_commit(t), RC_OK);
    kv_close(kv);
    ck_assert_int_eq(kv_lmdb_create(dir, 1 << 26, &kv), RC_OK);
    kv_close(kv);
    ck_assert_int_eq(kv_lmdb_open(dir, 1 << 26, &kv), RC_OK);
    t = begin(false);
    ck_assert_str_eq(get(t, "k"), "old");
    kv_abort(t);
    close_back();
}
END_TEST

START_TEST(a_current_file_without_sense_or_without_its_data_is_damage)
{
    dir = temp_dir();
    static const char *const bad[] = {"", "x\n", "1", "1 \n", "0\n", "7\n"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        file_write("CURRENT", bad[i]);
        ck_assert_int_eq(kv_lmdb_open(dir, 1 << 26, &kv), RC_CORRUPT);
    }
    temp_remove(dir);
}
END_TEST

START_TEST(foreign_files_are_ignored)
{
    open_back(BACK_LMDB);
    file_write("gen-x", "");
    file_write(".DS_Store", "");
    file_write("CURRENT.tmp", "9\n");
    struct kv *old = kv;
    ck_assert_int_eq(kv_lmdb_create(dir, 1 << 26, &kv), RC_OK);
    ck_assert_int_eq(kv_publish(kv), RC_OK);
    kv_close(old);
    kv_close(kv);
    ck_assert_int_eq(kv_lmdb_open(dir, 1 << 26, &kv), RC_OK);
    close_back();
}
END_TEST

// ---- LMDB on a full disk ------------------------------------------------------------------------------------

static _Atomic bool is_full;
static _Atomic uint32_t asked;

static int allocate_if_room(int fd, uint64_t bytes)
{
    atomic_fetch_add(&asked, 1);
    return atomic_load(&is_full) ? ENOSPC : fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0 ? 0 : errno;
}

static void put_many(int from, int count)
{
    static char value[1001];
    memset(value, 'v', 1000);
    struct kv_txn *t = begin(true);
    for (int i = from; i < from + count; i++) {
        char key[32];
        snprintf(key, sizeof(key), "key %08d", i);
        put(t, key, value);
    }
    ck_assert_int_eq(kv_commit(t), RC_OK);
}

static void *put_thread(void *arg)
{
    atomic_int *done = arg;
    for (int i = 0; i < 30; i++) {
        put_many(i * 1000, 1000);
        atomic_store(done, i + 1);
    }
    return NULL;
}

START_TEST(what_a_commit_writes_is_allocated_first_and_little_more)
{
    open_back(1);
    put_many(0, 1000);
    put_many(1000, 1);
    char path[4096];
    snprintf(path, sizeof(path), "%s/gen-1/data.mdb", dir);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_ge(st.st_blocks * 512, st.st_size + (1 << 20));
    ck_assert_int_le(st.st_blocks * 512, st.st_size + (6 << 20));
    close_back();
}
END_TEST

static uint64_t most_allocated;

static int allocate_and_tell(int fd, uint64_t bytes)
{
    (void)fd;
    most_allocated = bytes > most_allocated ? bytes : most_allocated;
    return 0;
}

static uint64_t file_bytes(void)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/gen-1/data.mdb", dir);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    return (uint64_t)st.st_size;
}

// Pages are copied on write, whatever little changes on them, and a reader keeps the old ones from being used again.
START_TEST(what_a_commit_writes_is_allocated_first_if_it_changes_little_everywhere)
{
    kv_lmdb_set_allocate(allocate_and_tell);
    most_allocated = 0;
    open_back(1);
    for (int i = 0; i < 60; i++) {
        put_many(i * 1000, 1000);
    }
    const uint64_t before = file_bytes();
    for (int round = 0; round < 2; round++) {
        struct kv_txn *reader = begin(false);
        struct kv_txn *t = begin(true);
        for (int i = round; i < 60000; i += 20) {
            char key[32];
            snprintf(key, sizeof(key), "key %08d", i);
            if (round == 0) {
                ck_assert_int_eq(kv_remove(t, KV_NODE, span_str(key)), RC_OK);
            } else {
                put(t, key, "x");
            }
        }
        ck_assert_int_eq(kv_commit(t), RC_OK);
        kv_abort(reader);
        ck_assert_uint_ge(most_allocated, file_bytes());
    }
    ck_assert_uint_gt(file_bytes(), before + (2 << 20));
    close_back();
    kv_lmdb_set_allocate(NULL);
}
END_TEST

START_TEST(on_a_full_disk_commits_wait_for_room)
{
    kv_lmdb_set_allocate(allocate_if_room);
    atomic_store(&is_full, false);
    open_back(1);
    put_many(0, 1);
    atomic_store(&is_full, true);
    atomic_int done = 0;
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, put_thread, &done), 0);
    struct timespec pause = {.tv_nsec = 5000000};
    for (int i = 0; i < 2000 && !kv_lmdb_is_short(); i++) {
        nanosleep(&pause, NULL);
    }
    ck_assert(kv_lmdb_is_short());
    const uint32_t before = atomic_load(&asked);
    for (int i = 0; i < 2000 && atomic_load(&asked) < before + 3; i++) {
        nanosleep(&pause, NULL);  // It asks again and again.
    }
    ck_assert_uint_ge(atomic_load(&asked), before + 3);
    ck_assert_int_lt(atomic_load(&done), 30);
    atomic_store(&is_full, false);
    pthread_join(thread, NULL);
    ck_assert_int_eq(atomic_load(&done), 30);
    ck_assert(!kv_lmdb_is_short());
    struct kv_txn *t = begin(false);
    ck_assert_ptr_nonnull(get(t, "key 00029999"));
    kv_abort(t);
    close_back();
    kv_lmdb_set_allocate(NULL);
}
END_TEST

START_TEST(who_stops_does_not_wait_for_room)
{
    kv_lmdb_set_allocate(allocate_if_room);
    atomic_store(&is_full, false);
    open_back(1);
    put_many(0, 1);
    atomic_store(&is_full, true);
    kv_lmdb_stop_waiting();
    for (int i = 0; i < 30; i++) {
        put_many(i * 1000, 1000);
    }
    close_back();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kv");
    TCase *t = tcase_create("conformance");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, what_was_put_is_got_and_put_again_replaces, 0, BACKS);
    tcase_add_loop_test(t, tables_do_not_share_keys, 0, BACKS);
    tcase_add_loop_test(t, removing_what_is_not_there_is_told, 0, BACKS);
    tcase_add_loop_test(t, an_aborted_transaction_leaves_nothing, 0, BACKS);
    tcase_add_loop_test(t, a_reader_sees_the_commit_before_its_begin_for_as_long_as_it_lives, 0, BACKS);
    tcase_add_loop_test(t, next_walks_in_byte_order_with_and_without_the_start, 0, BACKS);
    tcase_add_loop_test(t, keys_and_values_at_the_limits_pass, 0, BACKS);
    tcase_add_loop_test(t, random_changes_agree_with_a_plain_array, 0, BACKS);
    tcase_add_loop_test(t, a_copy_cut_into_small_chunks_is_the_same_store, 0, BACKS);
    tcase_add_test(t, a_stream_that_ends_early_or_skips_a_chunk_is_not_whole);
    suite_add_tcase(s, t);
    t = tcase_create("generations");
    tcase_add_test(t, a_blank_directory_has_no_published_generation);
    tcase_add_test(t, a_new_generation_counts_from_its_publication_on);
    tcase_add_test(t, an_unpublished_generation_is_forgotten_at_the_next_open);
    tcase_add_test(t, a_current_file_without_sense_or_without_its_data_is_damage);
    tcase_add_test(t, foreign_files_are_ignored);
    tcase_add_test(t, what_a_commit_writes_is_allocated_first_and_little_more);
    tcase_add_test(t, on_a_full_disk_commits_wait_for_room);
    tcase_add_test(t, what_a_commit_writes_is_allocated_first_if_it_changes_little_everywhere);
    tcase_add_test(t, who_stops_does_not_wait_for_room);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
