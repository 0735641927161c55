// SPDX-License-Identifier: Apache-2.0
// Allocation that ends the process when memory runs out (mem.h).
#include "node/base/mem.h"
#include <malloc.h>
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

void mem_trim(void)
{
    malloc_trim(0);
}
