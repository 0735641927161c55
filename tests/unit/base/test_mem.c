// SPDX-License-Identifier: Apache-2.0
// Memory that is free goes back to the system.
// links: node/base
#include "node/base/mem.h"
#include "tests/unit/suite.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 8, BYTES = 64 << 20, PIECE = 8 << 10 };

static pthread_barrier_t gate;

static void *trimmer(void *arg)
{
    (void)pthread_barrier_wait(&gate);
    mem_trim();
    return arg;
}

// Seen with the address sanitizer, where the C library's own allocator is not set up before: each run is a process of its own.
START_TEST(the_first_of_all_may_be_many_at_once)
{
    pthread_t threads[THREADS];
    ck_assert_int_eq(pthread_barrier_init(&gate, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, trimmer, NULL), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
    pthread_barrier_destroy(&gate);
}
END_TEST

static size_t resident(void)
{
    size_t pages = 0, in = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert_int_eq(fscanf(f, "%zu %zu", &pages, &in), 2);
    fclose(f);
    return in * (size_t)sysconf(_SC_PAGESIZE);
}

START_TEST(pages_between_blocks_in_use_are_given_back)
{
#ifdef __SANITIZE_ADDRESS__
    return;  // Its allocator keeps what was freed.
#endif
#ifdef __SANITIZE_THREAD__
    return;
#endif
    void **pieces = mem_alloc(BYTES / PIECE * sizeof(*pieces));
    for (int i = 0; i < BYTES / PIECE; i++) {
        pieces[i] = mem_alloc(PIECE);
        memset(pieces[i], 1, PIECE);
    }
    for (int i = 0; i < BYTES / PIECE; i++) {
        if (i % 16 != 0) {
            free(pieces[i]);
        }
    }
    const size_t before = resident();
    mem_trim();
    ck_assert_uint_le(resident() + BYTES / 4 * 3, before);
    for (int i = 0; i < BYTES / PIECE; i += 16) {
        free(pieces[i]);
    }
    free(pieces);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("mem");
    tcase_add_loop_test(t, the_first_of_all_may_be_many_at_once, 0, 40);
    tcase_add_test(t, pages_between_blocks_in_use_are_given_back);
    return suite_run("mem", t);
}
