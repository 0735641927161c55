// SPDX-License-Identifier: Apache-2.0
// Blocks for small structs of which there are very many and that live long: what a queue that nobody uses is made of.
//
// A block costs its size, rounded up to 8 bytes: no header, and no holes left by what was allocated beside it for a moment
// only. For structs that come and go with queues, leads and snapshots, not with messages.
//
// Thread: any; a block may be freed by another thread than the one that took it.
#pragma once
#include <stddef.h>

enum { SLAB_BYTES_MAX = 512 };  // Larger ones come from malloc.

void *slab_zalloc(size_t bytes);            // Zeroed. Never NULL (mem.h).
void slab_free(void *ptr, size_t bytes);    // `bytes` as asked for. NULL is ignored.
