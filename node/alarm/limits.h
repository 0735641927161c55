// SPDX-License-Identifier: Apache-2.0
// The limits that raise alarms, as RabbitMQ writes them (operator-plane §5.9): an absolute size, or a share
// of the memory this node may use. Pure.
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { ALARM_MEMORY = 1, ALARM_DISK = 2 };  // Bits.

#define ALARM_DISK_FREE_DEFAULT 50000000ull  // RabbitMQ's.
#define ALARM_MEMORY_SHARE_DEFAULT 0.6

struct alarm_limit {
    bool is_relative;
    double share;    // Of the memory in all, if relative.
    uint64_t bytes;  // Else.
};
struct alarm_limits {
    struct alarm_limit disk_free;  // Less is an alarm.
    struct alarm_limit memory;     // More is an alarm.
};
// RabbitMQ's defaults.
void alarm_limits_default(struct alarm_limits *l);
// The limit in bytes, where the memory in all is `memory_total`.
uint64_t alarm_limit_bytes(const struct alarm_limit *l, uint64_t memory_total);

// "50MB", "2GiB", "4096": a count of bytes, or with RabbitMQ's units. k M G T P (with or without iB) are
// binary, kB MB GB TB PB decimal.
// False: it is none of these, or too large; *out is left alone.
bool size_parse(const char *text, uint64_t *out);
// A number such as "0.4" or "1"; nothing behind it.
bool share_parse(const char *text, double *out);

// What raises the disk alarm and when to look again, in ms: the nearer the limit, the sooner, so that writing
// at 250 MB/s would not get past it unseen (as RabbitMQ); while the alarm is on often enough to end it soon.
uint32_t alarm_disk_interval_ms(uint64_t free_bytes, uint64_t limit_bytes);
