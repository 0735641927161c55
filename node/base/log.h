// SPDX-License-Identifier: Apache-2.0
// The node's log: one line per event to stderr or a file. Any thread; a line is written with one write(2).
// Not for the message path: every call formats. In the simulator the sink is replaced.
#pragma once
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_NOTICE, LOG_WARNING, LOG_ERROR, LOG_CRITICAL };

void log_set_level(enum log_level level);  // At start-up or from the admin thread; default LOG_INFO.
void log_set_node(const char *name);       // Shown in each line; copied. At start-up.
typedef void log_sink_fn(void *ctx, enum log_level level, const char *line);
void log_set_sink(log_sink_fn *sink, void *ctx);  // NULL restores stderr. At start-up.

void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
extern enum log_level log_level_now;

#define log_debug(...) (log_level_now <= LOG_DEBUG ? log_write(LOG_DEBUG, __VA_ARGS__) : (void)0)
#define log_info(...) (log_level_now <= LOG_INFO ? log_write(LOG_INFO, __VA_ARGS__) : (void)0)
#define log_notice(...) (log_level_now <= LOG_NOTICE ? log_write(LOG_NOTICE, __VA_ARGS__) : (void)0)
#define log_warning(...) (log_level_now <= LOG_WARNING ? log_write(LOG_WARNING, __VA_ARGS__) : (void)0)
#define log_error(...) (log_level_now <= LOG_ERROR ? log_write(LOG_ERROR, __VA_ARGS__) : (void)0)
#define log_critical(...) log_write(LOG_CRITICAL, __VA_ARGS__)
