// SPDX-License-Identifier: Apache-2.0
// Allocation that ends the process when memory runs out (mem.h).
#include "node/base/mem.h"
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *check(void *p, size_t bytes)
{
    if (!p && bytes > 0) {
        fprintf(stderr, "warren: out of memory (%zu bytes)\n", bytes);
        abort();
    }
    return p;
}

void *mem_alloc(size_t bytes)
{
    return check(malloc(bytes ? bytes : 1), bytes);
}

void *mem_zalloc(size_t bytes)
{
    return check(calloc(1, bytes ? bytes : 1), bytes);
}

void *mem_alloc_aligned(size_t bytes, size_t alignment)
{
    void *p = NULL;
    return check(posix_memalign(&p, alignment, bytes) == 0 ? p : NULL, bytes);
}

void *mem_realloc(void *ptr, size_t bytes)
{
    return check(realloc(ptr, bytes ? bytes : 1), bytes);
}

char *mem_strndup(const void *text, size_t n)
{
    char *copy = mem_alloc(n + 1);
    if (n > 0) {
        memcpy(copy, text, n);
    }
    copy[n] = '\0';
    return copy;
}

static void first_trim(void)
{
    (void)malloc_trim(0);
}

// The first call sets up the C library's allocator if another one is in front of it (a sanitizer's, one that was preloaded),
// and does so without a lock.
void mem_trim(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, first_trim);
    (void)malloc_trim(0);
}
