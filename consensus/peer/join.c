// SPDX-License-Identifier: Apache-2.0
// Coding of the join exchange (join.h). Once in a node's life, so allocation does not matter; hostile sizes do.
#include "consensus/peer/join.h"
#include "consensus/peer/pb.h"
#include "node/base/mem.h"
#include "proto/cluster_peer.pb-c.h"
#include <stdlib.h>

void join_request_encode(struct buf *to, const struct join_request *r)
{
    Warren__Peer__Join m;
    warren__peer__join__init(&m);
    m.token = r->token;
    m.has_data = r->has_data;
    m.node_name = (char *)r->name;
    m.address = (char *)r->address;
    m.store_id = pb_borrow(r->store_id, STORE_ID_BYTES);
    pb_pack(to, &m.base);
}

enum rc join_request_decode(struct span envelope, struct join_request *out)
{
    Warren__Peer__Join *m = warren__peer__join__unpack(NULL, envelope.len, envelope.ptr);
    if (!m) {
        return RC_MALFORMED;
    }
    *out = (struct join_request){.token = m->token, .has_data = m->has_data};
    bool is_good = m->node_name[0] != 0 && pb_text(out->name, PEER_NAME_MAX, m->node_name) &&
                   pb_text(out->address, PEER_ADDRESS_MAX, m->address) &&
                   pb_bytes(out->store_id, STORE_ID_BYTES, m->store_id);
    warren__peer__join__free_unpacked(m, NULL);
    return is_good ? RC_OK : RC_MALFORMED;
}

void join_reply_encode(struct buf *to, const struct join_reply *r)
{
    assert(r->members_len <= JOIN_META_MEMBERS_MAX);
    assert(r->nodes_len <= JOIN_NODES_MAX);
    Warren__Peer__MetaMember members[JOIN_META_MEMBERS_MAX];
    Warren__Peer__MetaMember *member_ptrs[JOIN_META_MEMBERS_MAX];
    for (uint32_t i = 0; i < r->members_len; i++) {
        warren__peer__meta_member__init(&members[i]);
        members[i].replica_id = r->members[i].replica_id;
        members[i].node_id = r->members[i].node_id;
        members[i].is_voter = r->members[i].is_voter;
        member_ptrs[i] = &members[i];
    }
    Warren__Peer__NodeRecord nodes[JOIN_NODES_MAX];
    Warren__Peer__NodeRecord *node_ptrs[JOIN_NODES_MAX];
    for (uint32_t i = 0; i < r->nodes_len; i++) {
        warren__peer__node_record__init(&nodes[i]);
        nodes[i].node_id = r->nodes[i].node_id;
        nodes[i].name = (char *)r->nodes[i].name;
        nodes[i].address = (char *)r->nodes[i].address;
        nodes[i].store_id = pb_borrow(r->nodes[i].store_id, STORE_ID_BYTES);
        node_ptrs[i] = &nodes[i];
    }
    Warren__Peer__JoinReply m;
    warren__peer__join_reply__init(&m);
    m.token = r->token;
    m.result = (uint32_t)r->result;
    m.text = (char *)r->text;
    m.cluster_id = pb_borrow(r->cluster_id, CLUSTER_ID_BYTES);
    m.node_id = r->node_id;
    m.replica_id = r->replica_id;
    m.n_members = r->members_len;
    m.members = member_ptrs;
    m.n_nodes = r->nodes_len;
    m.nodes = node_ptrs;
    m.ask = (char *)r->ask;
    m.ask_address = (char *)r->ask_address;
    pb_pack(to, &m.base);
}

static bool node_take(const Warren__Peer__NodeRecord *m, struct join_node *out)
{
    *out = (struct join_node){.node_id = m->node_id};
    return m->node_id > 0 && m->name[0] != 0 && pb_text(out->name, PEER_NAME_MAX, m->name) &&
           pb_text(out->address, PEER_ADDRESS_MAX, m->address) &&
           pb_bytes(out->store_id, STORE_ID_BYTES, m->store_id);
}

static bool reply_take(const Warren__Peer__JoinReply *m, struct join_reply *out)
{
    if (m->n_members > JOIN_META_MEMBERS_MAX || m->n_nodes > JOIN_NODES_MAX) {
        return false;
    }
    *out = (struct join_reply){
        .token = m->token,
        // A result from a later version is a refusal.
        .result = m->result <= JOIN_REFUSED ? (enum join_result)m->result : JOIN_REFUSED,
        .node_id = m->node_id,
        .replica_id = m->replica_id,
        .members_len = (uint32_t)m->n_members,
        .nodes_len = (uint32_t)m->n_nodes,
    };
    for (size_t i = 0; i < m->n_members; i++) {
        out->members[i] = (struct join_meta_member){
            .replica_id = m->members[i]->replica_id,
            .node_id = m->members[i]->node_id,
            .is_voter = m->members[i]->is_voter,
        };
    }
    if (!pb_text(out->text, PEER_TEXT_MAX, m->text) || !pb_text(out->ask, PEER_NAME_MAX, m->ask) ||
        !pb_text(out->ask_address, PEER_ADDRESS_MAX, m->ask_address) ||
        !pb_bytes(out->cluster_id, CLUSTER_ID_BYTES, m->cluster_id)) {
        return false;
    }
    if (out->result == JOIN_OK && (m->node_id == 0 || m->replica_id == 0 || m->n_members == 0)) {
        return false;
    }
    out->nodes = mem_zalloc((m->n_nodes ? m->n_nodes : 1) * sizeof(out->nodes[0]));
    for (size_t i = 0; i < m->n_nodes; i++) {
        if (!node_take(m->nodes[i], &out->nodes[i])) {
            join_reply_deinit(out);
            return false;
        }
    }
    return true;
}

enum rc join_reply_decode(struct span envelope, struct join_reply *out)
{
    *out = (struct join_reply){.nodes = NULL};
    Warren__Peer__JoinReply *m = warren__peer__join_reply__unpack(NULL, envelope.len, envelope.ptr);
    if (!m) {
        return RC_MALFORMED;
    }
    bool is_good = reply_take(m, out);
    warren__peer__join_reply__free_unpacked(m, NULL);
    return is_good ? RC_OK : RC_MALFORMED;
}

void join_reply_deinit(struct join_reply *r)
{
    free(r->nodes);
    r->nodes = NULL;
    r->nodes_len = 0;
}
