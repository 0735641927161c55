// SPDX-License-Identifier: Apache-2.0
// Encoding of changes (change.h).
#include "metastore/change.h"

enum { CHANGE_DELETED = 1, CHANGE_CREATED = 2 };

void change_encode(struct buf *to, const struct meta_change *c)
{
    assert(!(c->is_deleted && c->is_created));
    buf_u8(to, (uint8_t)((c->is_deleted ? CHANGE_DELETED : 0) | (c->is_created ? CHANGE_CREATED : 0)));
    buf_u64(to, c->index);
    buf_u64(to, c->version);
    path_encode(to, c->path);
    buf_str32(to, c->payload);
}

enum rc change_next(struct reader *r, struct meta_change *out, struct meta_path *path)
{
    if (r->pos == r->len) {
        return RC_MORE;
    }
    const uint8_t flags = reader_u8(r);
    out->is_deleted = flags & CHANGE_DELETED;
    out->is_created = flags & CHANGE_CREATED;
    out->index = reader_u64(r);
    out->version = reader_u64(r);
    const enum rc rc = path_decode(r, path);
    assert(rc == RC_OK);
    out->path = path;
    out->payload = reader_str32(r);
    assert(!r->is_bad);
    return RC_OK;
}
