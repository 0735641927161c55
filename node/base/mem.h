// SPDX-License-Identifier: Apache-2.0
// Allocation that cannot fail: the process ends with a message instead. Sizes are bounded before they get here.
#pragma once
#include <stddef.h>

void *mem_alloc(size_t bytes);                  // Uninitialised. Free with free().
void *mem_zalloc(size_t bytes);                 // Zeroed.
void *mem_alloc_aligned(size_t bytes, size_t alignment);  // Uninitialised; `alignment` is a power of two.
void *mem_realloc(void *ptr, size_t bytes);     // Takes `ptr`.
char *mem_strndup(const void *text, size_t n);  // NUL-terminated copy.
// Gives the system every whole page that is free, also between blocks in use: for when there was much to do and is no more.
// Takes milliseconds per 100 MB; any thread.
void mem_trim(void);

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
