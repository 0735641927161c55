// SPDX-License-Identifier: Apache-2.0
// Limits of memory and disk (limits.h).
#include "node/alarm/limits.h"
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    INTERVAL_MIN_MS = 100,
    INTERVAL_MAX_MS = 10000,
    INTERVAL_ALARM_MS = 1000,
    FILL_BYTES_PER_MS = 250000,
};

void alarm_limits_default(struct alarm_limits *l)
{
    *l = (struct alarm_limits){.disk_free = {.bytes = ALARM_DISK_FREE_DEFAULT},
                               .memory = {.is_relative = true, .share = ALARM_MEMORY_SHARE_DEFAULT}};
}

uint64_t alarm_limit_bytes(const struct alarm_limit *l, uint64_t memory_total)
{
    return l->is_relative ? (uint64_t)(l->share * (double)memory_total) : l->bytes;
}

static bool unit_parse(const char *unit, uint64_t *factor)
{
    static const char prefixes[] = "kMGTP";
    *factor = 1;
    if (unit[0] == '\0') {
        return true;
    }
    const char prefix = unit[0] == 'K' ? 'k' : (char)(unit[0] == 'k' ? 'k' : toupper((unsigned char)unit[0]));
    const char *at = strchr(prefixes, prefix);
    const char *rest = unit + 1;
    const bool is_binary = rest[0] == '\0' || strcmp(rest, "iB") == 0 || strcmp(rest, "ib") == 0;
    if (!at || !(is_binary || strcmp(rest, "B") == 0 || strcmp(rest, "b") == 0)) {
        return false;
    }
    for (const char *p = prefixes; p <= at; p++) {
        *factor *= is_binary ? 1024 : 1000;
    }
    return true;
}

bool size_parse(const char *text, uint64_t *out)
{
    char *end;
    uint64_t factor;
    if (!isdigit((unsigned char)text[0])) {
        return false;
    }
    errno = 0;
    const uint64_t n = strtoull(text, &end, 10);
    if (errno != 0 || !unit_parse(end, &factor) || n > UINT64_MAX / factor) {
        return false;
    }
    *out = n * factor;
    return true;
}

bool share_parse(const char *text, double *out)
{
    char *end;
    if (!isdigit((unsigned char)text[0]) && text[0] != '-' && text[0] != '.') {
        return false;
    }
    *out = strtod(text, &end);
    return *end == '\0' && end != text && isfinite(*out);
}

uint32_t alarm_disk_interval_ms(uint64_t free_bytes, uint64_t limit_bytes)
{
    if (free_bytes < limit_bytes) {
        return INTERVAL_ALARM_MS;
    }
    const uint64_t ms = 2 * ((free_bytes - limit_bytes) / FILL_BYTES_PER_MS);
    return ms < INTERVAL_MIN_MS ? INTERVAL_MIN_MS : ms > INTERVAL_MAX_MS ? INTERVAL_MAX_MS : (uint32_t)ms;
}
