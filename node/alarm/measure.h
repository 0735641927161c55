// SPDX-License-Identifier: Apache-2.0
// What the system says of this process's memory and of the file system its data is on. Any thread that may wait for the
// kernel; never a worker.
#pragma once
#include "node/base/rc.h"
#include <stdint.h>

struct measured_total {
    uint64_t bytes;
    char source[64];  // For the log: "/proc/meminfo", a control group's file, a setting.
};
// Memory this process may use: the least of the machine's and what control groups (v2 along the own path, v1) allow; or
// `override_bytes`, if that is not 0. Asked for once, at start.
void measure_memory_total(uint64_t override_bytes, struct measured_total *out);
// Anonymous and shared resident memory: without pages of files, which the kernel takes back when it needs them.
uint64_t measure_memory_used(void);
// Bytes that this process's user may still write below `path`. RC_SYSTEM.
MUST_USE enum rc measure_disk_free(const char *path, uint64_t *out);

// For tests: the parts that read text. Control group files are looked for below `root`.
uint64_t measure_group_limit(const char *root, const char *groups_text, char *source, uint64_t source_size);
