// SPDX-License-Identifier: Apache-2.0
// Where things stand in the metadata store (RabbitMQ's layout, operator-plane §4.2), and the names of types.
//
//   nodes/NODE                                   NodeRecord
//   users/USER                                   UserRecord
//   vhosts/V                                     VhostRecord
//   vhosts/V/user_permissions/USER               PermissionRecord, kept while users/USER is
//   vhosts/V/exchanges/X                         ExchangeRecord
//   vhosts/V/exchanges/X/bindings/KIND/DST/LEAF  BindingRecord, kept while the destination is; KIND = queue | exchange
//   vhosts/V/queues/Q                            8 bytes of ids, QueueRecord
#include "node/broker/internal.h"
#include <openssl/evp.h>
#include <stdio.h>

static struct meta_path path2(const char *a, struct span b)
{
    return (struct meta_path){.depth = 2, .names = {span_str(a), b}};
}

struct meta_path path_node(struct span name)
{
    return path2("nodes", name);
}

struct meta_path path_maintenance(struct span name)
{
    return path2("node_maintenance", name);
}

struct meta_path path_user(struct span name)
{
    return path2("users", name);
}

struct meta_path path_vhost(struct span vhost)
{
    return path2("vhosts", vhost);
}

static struct meta_path below_vhost(struct span vhost, const char *kind, struct span name)
{
    return (struct meta_path){.depth = 4, .names = {span_str("vhosts"), vhost, span_str(kind), name}};
}

struct meta_path path_permission(struct span vhost, struct span user)
{
    return below_vhost(vhost, "user_permissions", user);
}

struct meta_path path_exchange(struct span vhost, struct span name)
{
    return below_vhost(vhost, "exchanges", name);
}

struct meta_path path_queue(struct span vhost, struct span name)
{
    return below_vhost(vhost, "queues", name);
}

struct meta_path path_binding(struct span vhost, struct span source, bool to_queue, struct span destination,
                              struct span leaf)
{
    struct meta_path p = path_exchange(vhost, source);
    p.names[p.depth++] = span_str("bindings");
    p.names[p.depth++] = span_str(to_queue ? "queue" : "exchange");
    p.names[p.depth++] = destination;
    p.names[p.depth++] = leaf;
    return p;
}

void binding_leaf(struct span key, struct span arguments, char leaf[LEAF_BYTES + 1])
{
    struct buf b = {0};
    buf_str32(&b, key);
    table_put_sorted(&b, arguments, NULL, 0);
    uint8_t sum[EVP_MAX_MD_SIZE];
    unsigned int n = 0;
    int ok = EVP_Digest(b.ptr, b.len, sum, &n, EVP_sha256(), NULL);
    assert(ok == 1 && n * 2 == LEAF_BYTES);
    for (unsigned int i = 0; i < n; i++) {
        snprintf(leaf + 2 * i, 3, "%02x", sum[i]);
    }
    buf_deinit(&b);
}

static const char *const exchange_names[] = {"direct", "fanout", "topic", "headers"};
static const char *const queue_names[] = {"quorum", "classic", "stream"};

static bool parse_name(const char *const *names, int count, struct span name, int *out)
{
    for (int i = 0; i < count; i++) {
        if (span_equal(name, span_str(names[i]))) {
            *out = i;
            return true;
        }
    }
    return false;
}

const char *exchange_type_name(enum exchange_type t)
{
    return exchange_names[t];
}

bool exchange_type_parse(struct span name, enum exchange_type *out)
{
    int i;
    bool ok = parse_name(exchange_names, 4, name, &i);
    if (ok) {
        *out = (enum exchange_type)i;
    }
    return ok;
}

const char *queue_type_name(enum queue_type t)
{
    return queue_names[t];
}

bool queue_type_parse(struct span name, enum queue_type *out)
{
    int i;
    bool ok = parse_name(queue_names, 3, name, &i);
    if (ok) {
        *out = (enum queue_type)i;
    }
    return ok;
}
