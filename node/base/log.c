// SPDX-License-Identifier: Apache-2.0
// Log lines (log.h): "2026-11-30 12:00:00.123456+00:00 [info] text", RabbitMQ's shape.
#include "node/base/log.h"
#include "node/base/env.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 2048 };  // Longer lines are cut.

enum log_level log_level_now = LOG_INFO;
static char node_name[256];
static log_sink_fn *sink_fn;
static void *sink_ctx;

void log_set_level(enum log_level level)
{
    log_level_now = level;
}

void log_set_node(const char *name)
{
    snprintf(node_name, sizeof(node_name), "%s", name);
}

void log_set_sink(log_sink_fn *sink, void *ctx)
{
    sink_fn = sink;
    sink_ctx = ctx;
}

static int put_prefix(char *line, enum log_level level)
{
    static const char *const names[] = {"debug", "info", "notice", "warning", "error", "critical"};
    int64_t ms = clock_wall_ms(env_system_clock());
    time_t sec = (time_t)(ms / 1000);
    struct tm tm;
    gmtime_r(&sec, &tm);
    return snprintf(line, LINE_MAX_BYTES, "%04d-%02d-%02d %02d:%02d:%02d.%03d+00:00 [%s] <%s> ", tm.tm_year + 1900,
                    tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)(ms % 1000), names[level],
                    node_name);
}

void log_write(enum log_level level, const char *format, ...)
{
    char line[LINE_MAX_BYTES];
    int n = sink_fn ? 0 : put_prefix(line, level);
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + n, sizeof(line) - (size_t)n, format, args);
    va_end(args);
    n = more < 0 ? n : n + more;
    if (n > LINE_MAX_BYTES - 2) {
        n = LINE_MAX_BYTES - 2;
    }
    if (sink_fn) {
        sink_fn(sink_ctx, level, line);
        return;
    }
    line[n] = '\n';
    // A log line that cannot be written has nobody to be reported to.
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)n + 1);
    (void)ignored;
}
