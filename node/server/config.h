// SPDX-License-Identifier: Apache-2.0
// Configuration: rabbitmq.conf syntax and key names (operator-plane §7), Warren's own keys under `warren.`.
//
// An unknown key is an error that names file and line; a RabbitMQ key that has no meaning here is accepted with a
// warning. Read once at start-up.
#pragma once
#include "node/alarm/limits.h"
#include "node/base/buf.h"
#include "node/base/rc.h"

enum { CONFIG_LISTENERS_MAX = 8, CONFIG_PEERS_MAX = 64 };

struct config_peer {
    char *name;     // NAME@HOST
    char *address;  // host:port of its cluster listener
};

struct node_config {
    char *node_name;   // --node, RABBITMQ_NODENAME, nodename; default warren@HOSTNAME
    char *data_dir;    // --data-dir, warren.data_dir; default /var/lib/warren/NODE
    char *amqp[CONFIG_LISTENERS_MAX];  // listeners.tcp.*: "host:port"
    uint32_t amqp_count;
    char *cluster_address;    // Where we listen for other nodes: "host:port".
    char *advertised_address;  // What others dial, if not the above (warren.cluster.advertised_address).
    struct config_peer peers[CONFIG_PEERS_MAX];  // cluster_formation.classic_config.nodes.*, ourselves
                                                 // included if listed
    uint32_t peers_count;
    char *cluster_secret;     // warren.cluster_secret, WARREN_CLUSTER_SECRET, RABBITMQ_ERLANG_COOKIE, secret file
    char *cluster_name;
    char *control_socket;     // warren.control_socket; default DATA_DIR/control.sock
    char *default_user, *default_pass, *default_vhost, *default_queue_type;
    bool is_guest_remote;     // loopback_users = none, or a list without guest
    uint32_t heartbeat_s, channel_max, frame_max, handshake_timeout_ms;
    uint64_t max_message_size;
    uint32_t quorum_initial_size;
    bool is_leader_balanced;  // queue_leader_locator
    bool is_reconciling;      // quorum_queue.continuous_membership_reconciliation.enabled, and its other keys:
    uint32_t reconcile_target, reconcile_interval_ms, reconcile_trigger_ms;
    uint32_t consumer_disconnected_timeout_ms;
    uint64_t memtable_bytes, wal_file_bytes;
    uint32_t wal_align;
    uint32_t workers;         // 0: cores - 1, at least 1
    struct alarm_limits alarm_limits;  // disk_free_limit.*, vm_memory_high_watermark.*
    bool has_absolute_disk, has_absolute_memory;
    uint64_t total_memory;    // total_memory_available_override_value; 0: as measured
    int log_level;            // enum log_level
};

// Fills defaults, then the file (NULL: none), then the environment, then what the caller overrides. On an error `error`
// says file, line and what to do. Warnings are appended to `warnings`, a line each.
MUST_USE enum rc node_config_load(struct node_config *c, const char *file, struct buf *warnings, struct buf *error);
void node_config_deinit(struct node_config *c);
// Parses one "key = value" line's content; exposed for tests.
MUST_USE enum rc node_config_set(struct node_config *c, const char *key, const char *value,
                                 struct buf *warnings, struct buf *error);
// Derives what depends on several settings (own address from the peer list, socket path). Call last.
MUST_USE enum rc node_config_finish(struct node_config *c, struct buf *error);
