// SPDX-License-Identifier: Apache-2.0
// What all engines share: the encoding of a configuration, look-ups in one, and the registry.
//
// The registry is a constant table: an engine is added by one line here and one folder beside this file. Who links
// this archive links those of the engines too.
#include "consensus/consensus.h"
#include "consensus/raft/raft.h"
#include "consensus/solo/solo.h"
#include "node/base/reader.h"

enum { CONFIG_VERSION = 1 };

void config_encode(const struct config *c, struct buf *to)
{
    assert(c->count >= 1);
    assert(c->count <= LIMIT_MEMBERS);
    buf_u8(to, CONFIG_VERSION);
    buf_u8(to, (uint8_t)c->count);
    for (uint32_t i = 0; i < c->count; i++) {
        buf_u64(to, c->members[i].replica_id);
        buf_u32(to, c->members[i].node_id);
        buf_u8(to, c->members[i].is_voter);
    }
}

// A configuration nobody can act on is refused here, so that engines may rely on it: ids are set and differ, somebody
// votes, and not more than LIMIT_VOTERS do.
static bool config_is_sound(const struct config *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->members[i].replica_id == 0) {
            return false;
        }
        for (uint32_t j = 0; j < i; j++) {
            if (c->members[i].replica_id == c->members[j].replica_id) {
                return false;
            }
        }
    }
    uint32_t voters = config_voters(c);
    return voters >= 1 && voters <= LIMIT_VOTERS;
}

enum rc config_decode(struct span bytes, struct config *out)
{
    struct reader r = reader_of(bytes);
    uint8_t version = reader_u8(&r);
    uint8_t count = reader_u8(&r);
    if (version > CONFIG_VERSION) {
        return RC_UNSUPPORTED;
    }
    if (r.is_bad || version != CONFIG_VERSION || count < 1 || count > LIMIT_MEMBERS) {
        return RC_MALFORMED;
    }
    *out = (struct config){.index = 0, .count = count};
    for (uint32_t i = 0; i < count; i++) {
        out->members[i].replica_id = reader_u64(&r);
        out->members[i].node_id = reader_u32(&r);
        uint8_t is_voter = reader_u8(&r);
        if (is_voter > 1) {
            return RC_MALFORMED;
        }
        out->members[i].is_voter = is_voter == 1;
    }
    TRY(reader_end(&r));
    return config_is_sound(out) ? RC_OK : RC_MALFORMED;
}

const struct member *config_find(const struct config *c, uint64_t replica_id)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->members[i].replica_id == replica_id) {
            return &c->members[i];
        }
    }
    return NULL;
}

const struct member *config_find_node(const struct config *c, uint32_t node_id)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->members[i].node_id == node_id) {
            return &c->members[i];
        }
    }
    return NULL;
}

uint32_t config_voters(const struct config *c)
{
    uint32_t voters = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        voters += c->members[i].is_voter;
    }
    return voters;
}

const struct consensus_ops *consensus_engine(const char *name)
{
    static const struct consensus_ops *const engines[] = {&raft_ops, &solo_ops};
    for (size_t i = 0; i < sizeof(engines) / sizeof(engines[0]); i++) {
        if (strcmp(engines[i]->name, name) == 0) {
            return engines[i];
        }
    }
    return NULL;
}
