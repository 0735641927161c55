// SPDX-License-Identifier: Apache-2.0
// Verbs about alarms and the limits that raise them (operator-plane §1.3, §1.4). Worded as RabbitMQ's; a
// script that reads them finds what it looks for.
#include "node/alarm/monitor.h"
#include "node/base/mem.h"
#include "node/ctl/internal.h"
#include <stdio.h>
#include <stdlib.h>

// ---- telling -------------------------------------------------------------------------------------------------------

static json_t *alarm_line(const char *node, uint32_t bit)
{
    return json_sprintf("%s alarm on node %s", bit == ALARM_MEMORY ? "Memory" : "Free disk space", node);
}

static void add_object(void *ctx, const char *node, bool is_local, uint32_t bit)
{
    (void)is_local;
    json_array_append_new(ctx, json_pack("{s:s, s:s, s:s}", "node", node, "type", "resource_limit",
                                         "resource", alarm_name(bit)));
}

json_t *alarms_json(struct ctl *c)
{
    json_t *all = json_array();
    alarms_each(c->config.alarms, add_object, all);
    return all;
}

struct lines {
    json_t *local, *global, *rows;
};

static void add_line(void *ctx, const char *node, bool is_local, uint32_t bit)
{
    struct lines *l = ctx;
    json_array_append_new(is_local ? l->local : l->global, alarm_line(node, bit));
    json_array_append_new(l->rows, json_pack("[o]", alarm_line(node, bit)));
}

// `object` is for --formatter json, rows for people.
static void answer_alarms(struct ctl_request *r, const char *banner, bool is_check)
{
    const char *node = r->ctl->config.node_name;
    struct lines l = {json_array(), json_array(), json_array()};
    alarms_each(r->ctl->config.alarms, add_line, &l);
    const bool is_any = json_array_size(l.rows) > 0;
    json_t *object;
    if (is_any) {
        object =
            json_pack("{s:O, s:O, s:o, s:s}", "global", l.global, "local", l.local, "message",
                      json_sprintf("Node %s reported alarms", node), "result", is_check ? "error" : "ok");
    } else if (is_check) {
        object = json_pack("{s:s}", "result", "ok");
    } else {
        object = json_pack("{s:s, s:s, s:[]}", "node", node, "result", "ok", "alarms");
    }
    if (!is_any) {
        json_array_append_new(
            l.rows, json_pack("[o]", json_sprintf("Node %s reported no alarms, local or clusterwide", node)));
    }
    json_decref(l.local);
    json_decref(l.global);
    ctl_answer(r, json_pack("{s:i, s:o, s:o, s:[], s:o}", "exit",
                            is_check && is_any ? EXIT_UNAVAILABLE : EXIT_OK, "object", object, "banner",
                            json_sprintf("Asking node %s to report any %s alarms ...", node, banner),
                            "columns", "rows", l.rows));
}

void verb_alarms(struct ctl_request *r)
{
    answer_alarms(r, "known resource", false);
}

void verb_check_alarms(struct ctl_request *r)
{
    answer_alarms(r, "local resource", true);
}

// Has always passed since 4.3: alarms are the cluster's, check_alarms is the check.
void verb_check_local_alarms(struct ctl_request *r)
{
    char text[512];
    snprintf(text, sizeof(text), "Node %s reported no local alarms", r->ctl->config.node_name);
    ctl_answer(r,
               json_pack("{s:i, s:{s:s}, s:s, s:[], s:[[s]]}", "exit", EXIT_OK, "object", "result", "ok",
                         "banner",
                         "This command is DEPRECATED and is a no-op. It will be removed in a future version.",
                         "columns", "rows", text));
}

static json_t *number_or_nan(uint64_t n)
{
    return n == UINT64_MAX ? json_string("NaN") : json_integer((json_int_t)n);
}

void alarms_status(struct ctl *c, json_t *status)
{
    const struct monitor_view *v = monitor_view(c->config.monitor);
    const struct alarm_limit *memory = &v->limits.memory;
    json_object_set_new(status, "alarms", alarms_json(c));
    json_object_set_new(status, "vm_memory_calculation_strategy", json_string("rss"));
    json_object_set_new(status, "vm_memory_high_watermark_setting",
                        memory->is_relative ? json_pack("{s:f}", "relative", memory->share)
                                            : json_pack("{s:I}", "absolute", (json_int_t)memory->bytes));
    json_object_set_new(status, "vm_memory_high_watermark_limit", json_integer((json_int_t)v->memory_limit));
    json_object_set_new(status, "disk_free_limit", json_integer((json_int_t)v->disk_limit));
    json_object_set_new(status, "disk_free", number_or_nan(v->disk_free));
}

// ---- setting -------------------------------------------------------------------------------------------------------

struct setting {
    struct ctl_request *request;
    char message[512];
};

static void on_set(void *arg)
{
    struct setting *s = arg;
    ctl_answer(s->request, json_pack("{s:i, s:{s:s, s:s}, s:s, s:[], s:[]}", "exit", EXIT_OK, "object",
                                     "node", s->request->ctl->config.node_name, "result", "ok", "banner",
                                     s->message, "columns", "rows"));
    free(s);
}

static void set_limits(struct ctl_request *r, const struct alarm_limits *limits, struct setting *s)
{
    s->request = r;
    monitor_set_limits(r->ctl->config.monitor, limits, on_set, s);
}

static void refuse(struct ctl_request *r, int exit_code, const char *why)
{
    ctl_error(r, exit_code, "Error (argument validation): %s", why);
}

// NUMBER[UNIT] | mem_relative FRACTION
void verb_set_disk_free_limit(struct ctl_request *r)
{
    const char *node = r->ctl->config.node_name, *first = request_arg(r, 0), *second = request_arg(r, 1);
    struct alarm_limits limits = monitor_view(r->ctl->config.monitor)->limits;
    struct alarm_limit *l = &limits.disk_free;
    l->is_relative = strcmp(first, "mem_relative") == 0;
    if ((second != NULL) != l->is_relative) {
        refuse(r, EXIT_USAGE, second ? "too many arguments." : "not enough arguments.");
        return;
    }
    if (l->is_relative ? !share_parse(second, &l->share) || l->share < 0 : !size_parse(first, &l->bytes)) {
        refuse(r, EXIT_DATAERR, "Bad argument.");
        return;
    }
    struct setting *s = mem_zalloc(sizeof(*s));
    snprintf(s->message, sizeof(s->message),
             l->is_relative ? "Setting disk free limit on %s to %s times the total RAM ..."
                            : "Setting disk free limit on %s to %s bytes ...",
             node, l->is_relative ? second : first);
    set_limits(r, &limits, s);
}

// FRACTION | absolute NUMBER[UNIT]
void verb_set_vm_memory_high_watermark(struct ctl_request *r)
{
    const char *node = r->ctl->config.node_name, *first = request_arg(r, 0), *second = request_arg(r, 1);
    struct alarm_limits limits = monitor_view(r->ctl->config.monitor)->limits;
    struct alarm_limit *l = &limits.memory;
    l->is_relative = strcmp(first, "absolute") != 0;
    if ((second != NULL) == l->is_relative) {
        refuse(r, EXIT_USAGE, second ? "too many arguments." : "not enough arguments.");
        return;
    }
    if (l->is_relative ? !share_parse(first, &l->share) : !size_parse(second, &l->bytes)) {
        refuse(r, EXIT_DATAERR, "Bad argument.");
        return;
    }
    if (l->is_relative && (l->share < 0 || l->share > 1)) {
        refuse(r, EXIT_DATAERR, "Bad argument: The threshold should be a fraction between 0.0 and 1.0");
        return;
    }
    struct setting *s = mem_zalloc(sizeof(*s));
    snprintf(s->message, sizeof(s->message),
             l->is_relative ? "Setting memory threshold on %s to %s ..."
                            : "Setting memory threshold on %s to %s bytes ...",
             node, l->is_relative ? first : second);
    set_limits(r, &limits, s);
}
