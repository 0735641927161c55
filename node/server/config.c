// SPDX-License-Identifier: Apache-2.0
// rabbitmq.conf: lines of `key = value`, `#` comments, values optionally in single quotes. One table says what each key
// does; a second lists RabbitMQ's prefixes that are accepted and do nothing here.
#include "node/server/config.h"
#include "node/base/limits.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

enum { LINE_MAX_LEN = 8192, CLUSTER_PORT = 25672, AMQP_PORT = 5672 };

static void set_text(char **to, const char *value)
{
    free(*to);
    *to = mem_strndup(value, strlen(value));
}

// "5672", "127.0.0.1:5672", "[::1]:5672" -> "host:port".
static bool parse_listener(const char *value, char **out)
{
    const char *colon = strrchr(value, ':');
    const char *port = colon ? colon + 1 : value;
    uint64_t n;
    if (!size_parse(port, &n) || n == 0 || n > 65535) {
        return false;
    }
    char text[512];
    if (colon) {
        snprintf(text, sizeof(text), "%s", value);
    } else {
        snprintf(text, sizeof(text), "0.0.0.0:%s", value);
    }
    set_text(out, text);
    return true;
}

static struct config_peer *peer_at(struct node_config *c, const char *name)
{
    for (uint32_t i = 0; i < c->peers_count; i++) {
        if (strcmp(c->peers[i].name, name) == 0) {
            return &c->peers[i];
        }
    }
    if (c->peers_count == CONFIG_PEERS_MAX) {
        return NULL;
    }
    struct config_peer *p = &c->peers[c->peers_count++];
    p->name = mem_strndup(name, strlen(name));
    return p;
}

typedef bool key_fn(struct node_config *c, const char *rest, const char *value);

static bool key_listener(struct node_config *c, const char *rest, const char *value)
{
    (void)rest;
    return c->amqp_count < CONFIG_LISTENERS_MAX && parse_listener(value, &c->amqp[c->amqp_count]) &&
           ++c->amqp_count > 0;
}
static bool key_peer(struct node_config *c, const char *rest, const char *value)
{
    (void)rest;
    return strchr(value, '@') != NULL && peer_at(c, value) != NULL;
}
static bool key_peer_address(struct node_config *c, const char *rest, const char *value)
{
    struct config_peer *p = strchr(rest, '@') ? peer_at(c, rest) : NULL;
    return p && parse_listener(value, &p->address);
}
static bool key_queue_type(struct node_config *c, const char *rest, const char *value)
{
    (void)rest;
    if (strcmp(value, "quorum") != 0 && strcmp(value, "classic") != 0 && strcmp(value, "stream") != 0) {
        return false;
    }
    set_text(&c->default_queue_type, value);
    return true;
}
static bool parse_bool(const char *value, bool *out)
{
    *out = strcmp(value, "true") == 0;
    return *out || strcmp(value, "false") == 0;
}
static bool key_reconcile(struct node_config *c, const char *rest, const char *value)
{
    (void)rest;
    return parse_bool(value, &c->is_reconciling);
}
// Members on nodes that are gone are always removed.
static bool key_auto_remove(struct node_config *c, const char *rest, const char *value)
{
    (void)c;
    (void)rest;
    bool ignored;
    return parse_bool(value, &ignored);
}
static bool key_locator(struct node_config *c, const char *rest, const char *value)
{
    (void)rest;
    static const char *const balanced[] = {"balanced", "random", "least-leaders", "min-masters"};
    c->is_leader_balanced = false;
    for (int i = 0; i < 4; i++) {
        c->is_leader_balanced = c->is_leader_balanced || strcmp(value, balanced[i]) == 0;
    }
    return c->is_leader_balanced || strcmp(value, "client-local") == 0;
}
static bool key_log_level(struct node_config *c, const char *rest, const char *value)
{
    (void)rest;
    static const char *const names[] = {"debug", "info", "notice", "warning", "error", "critical"};
    for (int i = 0; i < 6; i++) {
        if (strcmp(value, names[i]) == 0) {
            c->log_level = i;
            return true;
        }
    }
    return strcmp(value, "none") == 0 && (c->log_level = LOG_CRITICAL, true);
}
static bool key_loopback(struct node_config *c, const char *rest, const char *value)
{
    (void)rest;
    c->is_guest_remote = strcmp(value, "none") == 0 || strstr(value, "guest") == NULL;
    return true;
}
static bool key_cluster_port(struct node_config *c, const char *rest, const char *value)
{
    (void)rest;
    return parse_listener(value, &c->cluster_address);
}
static bool key_secret_file(struct node_config *c, const char *rest, const char *value)
{
    (void)rest;
    FILE *f = fopen(value, "r");
    char line[1024];
    bool ok = f && fgets(line, sizeof(line), f);
    if (f) {
        fclose(f);
    }
    if (ok) {
        line[strcspn(line, "\r\n")] = '\0';
        set_text(&c->cluster_secret, line);
    }
    return ok && c->cluster_secret[0] != '\0';
}

// disk_free_limit.*, vm_memory_high_watermark.*, as RabbitMQ's schema has them: where both are given, in
// whatever order, the absolute one counts.
static bool limit_set(struct alarm_limit *l, bool *has_absolute, const char *rest, const char *value, double share_max)
{
    if (strcmp(rest, "absolute") == 0) {
        *has_absolute = true;
        l->is_relative = false;
        return size_parse(value, &l->bytes);
    }
    l->is_relative = !*has_absolute;
    return strcmp(rest, "relative") == 0 && share_parse(value, &l->share) && l->share >= 0 && l->share <= share_max;
}
static bool key_disk_free(struct node_config *c, const char *rest, const char *value)
{
    return limit_set(&c->alarm_limits.disk_free, &c->has_absolute_disk, rest, value, 1e6);
}
static bool key_memory(struct node_config *c, const char *rest, const char *value)
{
    return limit_set(&c->alarm_limits.memory, &c->has_absolute_memory, rest, value, 1);
}

enum key_kind { KEY_TEXT, KEY_U32, KEY_U64, KEY_CALL };
struct key {
    const char *name;  // A trailing '*' matches any rest.
    enum key_kind kind;
    size_t offset;
    key_fn *call;
    uint64_t min, max;
};
#define FIELD(f) offsetof(struct node_config, f)
static const struct key keys[] = {
    {"listeners.tcp.*", KEY_CALL, 0, key_listener, 0, 0},
    {"cluster_formation.classic_config.nodes.*", KEY_CALL, 0, key_peer, 0, 0},
    {"warren.peer_address.*", KEY_CALL, 0, key_peer_address, 0, 0},
    {"warren.cluster.listener", KEY_CALL, 0, key_cluster_port, 0, 0},
    {"distribution.listener.port_range.min", KEY_CALL, 0, key_cluster_port, 0, 0},
    {"warren.cluster.advertised_address", KEY_TEXT, FIELD(advertised_address), NULL, 0, 0},
    {"warren.cluster_secret", KEY_TEXT, FIELD(cluster_secret), NULL, 0, 0},
    {"warren.cluster_secret_file", KEY_CALL, 0, key_secret_file, 0, 0},
    {"nodename", KEY_TEXT, FIELD(node_name), NULL, 0, 0},
    {"warren.data_dir", KEY_TEXT, FIELD(data_dir), NULL, 0, 0},
    {"warren.control_socket", KEY_TEXT, FIELD(control_socket), NULL, 0, 0},
    {"cluster_name", KEY_TEXT, FIELD(cluster_name), NULL, 0, 0},
    {"default_user", KEY_TEXT, FIELD(default_user), NULL, 0, 0},
    {"default_pass", KEY_TEXT, FIELD(default_pass), NULL, 0, 0},
    {"default_vhost", KEY_TEXT, FIELD(default_vhost), NULL, 0, 0},
    {"default_queue_type", KEY_CALL, 0, key_queue_type, 0, 0},
    {"disk_free_limit.*", KEY_CALL, 0, key_disk_free, 0, 0},
    {"vm_memory_high_watermark.*", KEY_CALL, 0, key_memory, 0, 0},
    {"total_memory_available_override_value", KEY_U64, FIELD(total_memory), NULL, 1, UINT64_MAX},
    {"loopback_users", KEY_CALL, 0, key_loopback, 0, 0},
    {"loopback_users.guest", KEY_CALL, 0, key_loopback, 0, 0},
    {"heartbeat", KEY_U32, FIELD(heartbeat_s), NULL, 0, 65535},
    {"channel_max", KEY_U32, FIELD(channel_max), NULL, 1, 65535},
    {"frame_max", KEY_U32, FIELD(frame_max), NULL, 0, 1u << 30},
    {"handshake_timeout", KEY_U32, FIELD(handshake_timeout_ms), NULL, 100, 3600000},
    {"max_message_size", KEY_U64, FIELD(max_message_size), NULL, 1, LIMIT_MESSAGE_BYTES_MAX},
    {"quorum_queue.initial_cluster_size", KEY_U32, FIELD(quorum_initial_size), NULL, 1, LIMIT_VOTERS},
    {"quorum_queue.continuous_membership_reconciliation.enabled", KEY_CALL, 0, key_reconcile, 0, 0},
    {"quorum_queue.continuous_membership_reconciliation.auto_remove", KEY_CALL, 0, key_auto_remove, 0, 0},
    {"quorum_queue.continuous_membership_reconciliation.target_group_size", KEY_U32, FIELD(reconcile_target),
     NULL, 1, LIMIT_VOTERS},
    {"quorum_queue.continuous_membership_reconciliation.interval", KEY_U32, FIELD(reconcile_interval_ms),
     NULL, 100, 2147483647},
    {"quorum_queue.continuous_membership_reconciliation.trigger_interval", KEY_U32,
     FIELD(reconcile_trigger_ms), NULL, 0, 2147483647},
    {"queue_leader_locator", KEY_CALL, 0, key_locator, 0, 0},
    {"consumer_disconnected_timeout", KEY_U32, FIELD(consumer_disconnected_timeout_ms), NULL, 0, 86400000},
    {"log.console.level", KEY_CALL, 0, key_log_level, 0, 0},
    {"log.file.level", KEY_CALL, 0, key_log_level, 0, 0},
    {"log.default.level", KEY_CALL, 0, key_log_level, 0, 0},
    {"warren.memtable_bytes", KEY_U64, FIELD(memtable_bytes), NULL, 4 << 20, 1ull << 36},
    {"warren.wal_file_bytes", KEY_U64, FIELD(wal_file_bytes), NULL, 1 << 20, 1ull << 31},
    {"warren.wal_align", KEY_U32, FIELD(wal_align), NULL, 8, 4096},
    {"warren.workers", KEY_U32, FIELD(workers), NULL, 0, 16},
};

// RabbitMQ's keys (by prefix) that change nothing here, today.
static const char *const ignored[] = {
    "listeners.ssl",
    "ssl_options",
    "num_acceptors",
    "tcp_listen_options",
    "vm_memory_high_watermark_paging_ratio",
    "cluster_partition_handling",
    "cluster_keepalive_interval",
    "cluster_formation",
    "raft.",
    "quorum_queue.",
    "stream.",
    "management.",
    "prometheus.",
    "mqtt.",
    "stomp.",
    "web_mqtt.",
    "web_stomp.",
    "log.",
    "auth_backends",
    "auth_mechanisms",
    "auth_",
    "default_permissions",
    "default_user_tags",
    "password_hashing_module",
    "load_definitions",
    "definitions.",
    "queue_master_locator",
    "consumer_timeout",
    "collect_statistics",
    "statistics_interval",
    "mirroring",
    "metadata_store",
    "deprecated_features",
    "feature_flags",
    "proxy_protocol",
    "reverse_dns_lookups",
    "background_gc",
    "vhost_max",
    "channel_max_per_node",
    "connection_max",
    "max_connections",
    "session_max_per_connection",
    "link_max_per_session",
    "distribution.",
    "net_ticktime",
    "hipe_compile",
    "message_interceptors",
    "message_store",
    "classic_queue",
    "delegate_count",
    "ssl_cert_login",
    "product.",
    "motd_file",
    "sysmon_handler",
    "runtime_",
    "default_users",
    "anonymous_login",
    "cluster_tags",
    "node_tags",
    "trace_",
    "tracing",
    "credit_",
    "lazy_queue",
    "queue_index",
    "msg_store",
    "credential_validator",
    "initial_frame_max",
    "default_consumer_prefetch",
    "consumer_max_per_channel",
    "cluster_queue_limit",
    "vm_memory_calculation_strategy",
    "memory_monitor_interval",
};

static bool apply_key(const struct key *k, struct node_config *c, const char *rest, const char *value)
{
    void *field = (char *)c + k->offset;
    uint64_t n;
    switch (k->kind) {
    case KEY_TEXT:
        set_text(field, value);
        return value[0] != '\0';
    case KEY_U32:
        if (!size_parse(value, &n) || n < k->min || n > k->max) {
            return false;
        }
        *(uint32_t *)field = (uint32_t)n;
        return true;
    case KEY_U64:
        if (!size_parse(value, &n) || n < k->min || n > k->max) {
            return false;
        }
        *(uint64_t *)field = n;
        return true;
    case KEY_CALL:
        return k->call(c, rest, value);
    }
    return false;
}

enum rc node_config_set(struct node_config *c, const char *key, const char *value, struct buf *warnings,
                        struct buf *error)
{
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const struct key *k = &keys[i];
        size_t n = strlen(k->name);
        bool is_prefix = k->name[n - 1] == '*';
        bool fits = is_prefix ? strncmp(key, k->name, n - 1) == 0 && key[n - 1] != '\0' : strcmp(key, k->name) == 0;
        if (fits) {
            if (apply_key(k, c, is_prefix ? key + n - 1 : "", value)) {
                return RC_OK;
            }
            buf_printf(error, "the value '%s' of '%s' is not valid", value, key);
            if (k->kind == KEY_U32 || k->kind == KEY_U64) {
                buf_printf(error, " (a number from %llu to %llu)", (unsigned long long)k->min,
                           (unsigned long long)k->max);
            }
            return RC_INVALID;
        }
    }
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++) {
        if (strncmp(key, ignored[i], strlen(ignored[i])) == 0) {
            buf_printf(warnings, "'%s' has no effect in Warren\n", key);
            return RC_OK;
        }
    }
    buf_printf(error, "unknown key '%s'", key);
    return RC_INVALID;
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s)) {
        s++;
    }
    size_t n = strlen(s);
    while (n > 0 && isspace((unsigned char)s[n - 1])) {
        s[--n] = '\0';
    }
    return s;
}

static void unquote(char **value)
{
    size_t n = strlen(*value);
    if (n >= 2 && (*value)[0] == '\'' && (*value)[n - 1] == '\'') {
        (*value)[n - 1] = '\0';
        (*value)++;
    }
}

static enum rc read_file(struct node_config *c, const char *file, struct buf *warnings, struct buf *error)
{
    FILE *f = fopen(file, "r");
    if (!f) {
        buf_printf(error, "cannot open the configuration file %s: %s", file, strerror(errno));
        return RC_NO_FILE;
    }
    char line[LINE_MAX_LEN];
    enum rc rc = RC_OK;
    for (int number = 1; rc == RC_OK && fgets(line, sizeof(line), f); number++) {
        char *text = trim(line);
        if (*text == '\0' || *text == '#') {
            continue;
        }
        char *equals = strchr(text, '=');
        struct buf why = {0};
        if (!equals) {
            buf_printf(&why, "expected 'key = value'");
            rc = RC_INVALID;
        } else {
            *equals = '\0';
            char *value = trim(equals + 1);
            char *comment = strstr(value, " #");
            if (comment) {
                *comment = '\0';
                value = trim(value);
            }
            unquote(&value);
            rc = node_config_set(c, trim(text), value, warnings, &why);
        }
        if (rc != RC_OK) {
            buf_printf(error, "%s, line %d: %.*s", file, number, (int)why.len, (const char *)why.ptr);
        }
        buf_deinit(&why);
    }
    fclose(f);
    return rc;
}

static void set_defaults(struct node_config *c)
{
    char host[256] = "localhost", name[300];
    gethostname(host, sizeof(host) - 1);
    host[strcspn(host, ".")] = '\0';
    snprintf(name, sizeof(name), "warren@%s", host);
    *c = (struct node_config){
        .heartbeat_s = 60,
        .channel_max = 2047,
        .frame_max = 131072,
        .handshake_timeout_ms = 10000,
        .max_message_size = LIMIT_MESSAGE_BYTES_DEFAULT,
        .quorum_initial_size = 3,
        .reconcile_interval_ms = 3600000,
        .reconcile_trigger_ms = 10000,
        .consumer_disconnected_timeout_ms = 60000,
        .memtable_bytes = LIMIT_MEMTABLE_BYTES,
        .wal_file_bytes = LIMIT_WAL_FILE_BYTES,
        .wal_align = 4096,
        .log_level = LOG_INFO,
    };
    alarm_limits_default(&c->alarm_limits);
    set_text(&c->node_name, name);
    set_text(&c->default_user, "guest");
    set_text(&c->default_pass, "guest");
    set_text(&c->default_vhost, "/");
    set_text(&c->default_queue_type, "classic");
}

enum rc node_config_load(struct node_config *c, const char *file, struct buf *warnings, struct buf *error)
{
    set_defaults(c);
    if (file) {
        TRY(read_file(c, file, warnings, error));
    }
    static const struct {
        const char *variable;
        size_t offset;
    } from_env[] = {
        {"RABBITMQ_NODENAME", FIELD(node_name)},           {"WARREN_NODENAME", FIELD(node_name)},
        {"RABBITMQ_DEFAULT_USER", FIELD(default_user)},    {"RABBITMQ_DEFAULT_PASS", FIELD(default_pass)},
        {"RABBITMQ_DEFAULT_VHOST", FIELD(default_vhost)},  {"WARREN_DATA_DIR", FIELD(data_dir)},
        {"RABBITMQ_ERLANG_COOKIE", FIELD(cluster_secret)}, {"WARREN_CLUSTER_SECRET", FIELD(cluster_secret)}};
    for (size_t i = 0; i < sizeof(from_env) / sizeof(from_env[0]); i++) {
        const char *value = getenv(from_env[i].variable);
        if (value && value[0] != '\0') {
            set_text((char **)((char *)c + from_env[i].offset), value);
        }
    }
    return RC_OK;
}

static void default_address(char **to, const char *node_name)
{
    char text[512];
    const char *at = strchr(node_name, '@');
    snprintf(text, sizeof(text), "%s:%d", at ? at + 1 : "localhost", CLUSTER_PORT);
    set_text(to, text);
}

enum rc node_config_finish(struct node_config *c, struct buf *error)
{
    if (!strchr(c->node_name, '@')) {
        char host[256] = "localhost", name[600];
        gethostname(host, sizeof(host) - 1);
        snprintf(name, sizeof(name), "%s@%s", c->node_name, host);
        set_text(&c->node_name, name);
    }
    if (strlen(c->node_name) > 255) {
        buf_printf(error, "the node name '%s' is longer than 255 bytes", c->node_name);
        return RC_INVALID;
    }
    if (!c->data_dir) {
        char path[600];
        snprintf(path, sizeof(path), "/var/lib/warren/%s", c->node_name);
        set_text(&c->data_dir, path);
    }
    if (!c->control_socket) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/control.sock", c->data_dir);
        set_text(&c->control_socket, path);
    }
    if (c->amqp_count == 0) {
        char text[32];
        snprintf(text, sizeof(text), "0.0.0.0:%d", AMQP_PORT);
        set_text(&c->amqp[c->amqp_count++], text);
    }
    for (uint32_t i = 0; i < c->peers_count; i++) {
        if (!c->peers[i].address) {
            default_address(&c->peers[i].address, c->peers[i].name);
        }
        if (strcmp(c->peers[i].name, c->node_name) == 0 && !c->advertised_address) {
            set_text(&c->advertised_address, c->peers[i].address);
        }
    }
    if (!c->advertised_address) {
        if (c->cluster_address && strncmp(c->cluster_address, "0.0.0.0:", 8) != 0) {
            set_text(&c->advertised_address, c->cluster_address);
        } else {
            default_address(&c->advertised_address, c->node_name);
        }
    }
    if (!c->cluster_address) {
        char text[32];
        const char *port = strrchr(c->advertised_address, ':');
        snprintf(text, sizeof(text), "0.0.0.0:%s", port ? port + 1 : "25672");
        set_text(&c->cluster_address, text);
    }
    if (!c->cluster_secret && c->peers_count > 1) {
        buf_printf(error, "a cluster needs a secret: set warren.cluster_secret or warren.cluster_secret_file "
                          "to the same value "
                          "on every node");
        return RC_INVALID;
    }
    if (!c->cluster_name) {
        set_text(&c->cluster_name, c->node_name);
    }
    return RC_OK;
}

void node_config_deinit(struct node_config *c)
{
    char *texts[] = {c->node_name,      c->data_dir,      c->cluster_address,   c->advertised_address,
                     c->cluster_secret, c->cluster_name,  c->control_socket,    c->default_user,
                     c->default_pass,   c->default_vhost, c->default_queue_type};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        free(texts[i]);
    }
    for (uint32_t i = 0; i < c->amqp_count; i++) {
        free(c->amqp[i]);
    }
    for (uint32_t i = 0; i < c->peers_count; i++) {
        free(c->peers[i].name);
        free(c->peers[i].address);
    }
    *c = (struct node_config){0};
}
