// SPDX-License-Identifier: Apache-2.0
// Measuring memory and disk (measure.h). A driver: reads /proc, /sys and the file system.
//
// The trap in containers is /proc/meminfo, which tells of the host: a node that goes by it is shot before its alarm is
// raised. So limits of control groups count, along the whole path of groups this process is in.
#include "node/alarm/measure.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

enum { PATH_BYTES = 4096, TEXT_BYTES = 8192 };

static size_t read_text(const char *path, char *to, size_t size)
{
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(to, 1, size - 1, f) : 0;
    to[n] = '\0';
    if (f) {
        fclose(f);
    }
    return n;
}

// The number behind `key` in a text of lines "Key:  123 kB", in bytes; 0 if there is none.
static uint64_t kilobytes_of(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    return at ? strtoull(at + strlen(key), NULL, 10) * 1024 : 0;
}

static void least(const char *path, uint64_t *bytes, char *source, uint64_t source_size)
{
    char text[64];
    char *end;
    if (read_text(path, text, sizeof(text)) == 0) {
        return;
    }
    const uint64_t n = strtoull(text, &end, 10);  // "max" is no number.
    if (end != text && n > 0 && n < *bytes) {
        *bytes = n;
        snprintf(source, source_size, "%.*s", (int)source_size - 1, path);
    }
}

// A limit of any group above ours binds too.
static void least_upwards(const char *root, char *group, const char *file, uint64_t *bytes, char *source,
                          uint64_t source_size)
{
    for (;;) {
        char path[PATH_BYTES];
        if (snprintf(path, sizeof(path), "%s%s/%s", root, strcmp(group, "/") == 0 ? "" : group, file) <
            (int)sizeof(path)) {
            least(path, bytes, source, source_size);
        }
        char *slash = strrchr(group, '/');
        if (!slash || strcmp(group, "/") == 0 || group[0] == '\0') {
            return;
        }
        *slash = '\0';
    }
}

uint64_t measure_group_limit(const char *root, const char *groups_text, char *source, uint64_t source_size)
{
    uint64_t bytes = UINT64_MAX;
    char line[PATH_BYTES], v1_root[PATH_BYTES];
    snprintf(v1_root, sizeof(v1_root), "%s/memory", root);
    for (const char *p = groups_text; *p;) {
        const size_t n = strcspn(p, "\n");
        snprintf(line, sizeof(line), "%.*s", (int)(n < sizeof(line) ? n : sizeof(line) - 1), p);
        p += n + (p[n] == '\n');
        char *controllers = strchr(line, ':');  // "NUMBER:CONTROLLERS:/PATH"
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) {
            continue;
        }
        *group++ = '\0';
        if (controllers[1] == '\0') {
            least_upwards(root, group, "memory.max", &bytes, source, source_size);
        } else if (strstr(controllers, "memory")) {
            least_upwards(v1_root, group, "memory.limit_in_bytes", &bytes, source, source_size);
        }
    }
    return bytes;
}

void measure_memory_total(uint64_t override_bytes, struct measured_total *out)
{
    char text[TEXT_BYTES];
    *out = (struct measured_total){.bytes = override_bytes, .source = "total_memory_available_override_value"};
    if (override_bytes > 0) {
        return;
    }
    read_text("/proc/meminfo", text, sizeof(text));
    *out = (struct measured_total){.bytes = kilobytes_of(text, "MemTotal:"), .source = "/proc/meminfo"};
    char source[sizeof(out->source)];
    read_text("/proc/self/cgroup", text, sizeof(text));
    const uint64_t limit = measure_group_limit("/sys/fs/cgroup", text, source, sizeof(source));
    if (limit < out->bytes || out->bytes == 0) {
        out->bytes = limit;
        memcpy(out->source, source, sizeof(source));
    }
}

uint64_t measure_memory_used(void)
{
    char text[TEXT_BYTES];
    read_text("/proc/self/status", text, sizeof(text));
    return kilobytes_of(text, "RssAnon:") + kilobytes_of(text, "RssShmem:");
}

enum rc measure_disk_free(const char *path, uint64_t *out)
{
    struct statvfs s;
    int rc;
    do {
        rc = statvfs(path, &s);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0) {
        return RC_SYSTEM;
    }
    // Counted in fragments, not in blocks; what is kept for the superuser does not count (case AL-10).
    *out = (uint64_t)s.f_bavail * s.f_frsize;
    return RC_OK;
}
