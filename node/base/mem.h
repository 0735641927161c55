// SPDX-License-Identifier: Apache-2.0
// Allocation that cannot fail: the process ends with a message instead. Sizes are bounded before they get here.
#pragma once
#include <stddef.h>

void *mem_alloc(size_t bytes);                  // Uninitialised. Free with free().
void *mem_zalloc(size_t bytes);                 // Zeroed.
void *mem_realloc(void *ptr, size_t bytes);     // Takes `ptr`.
char *mem_strndup(const void *text, size_t n);  // NUL-terminated copy.

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
