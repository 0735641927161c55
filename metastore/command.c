// SPDX-License-Identifier: Apache-2.0
// Metadata commands: building, decoding, validating (command.h has the format).
//
// The builders never fail: what does not fit marks the command invalid, and the submission answers so. The
// decoders take bytes from other nodes; they accept exactly what the builders can make.
#include "metastore/command.h"

enum { COMMAND_IDS_MAX = 1 << 20 };  // Numbers one put may take: far above what a queue needs.

void meta_command_init(struct meta_command *c)
{
    *c = (struct meta_command){0};
}

void meta_command_deinit(struct meta_command *c)
{
    buf_deinit(&c->bytes);
    *c = (struct meta_command){0};
}

void path_encode(struct buf *to, const struct meta_path *p)
{
    assert(p->depth <= META_PATH_DEPTH);
    buf_u8(to, (uint8_t)p->depth);
    for (uint32_t i = 0; i < p->depth; i++) {
        buf_str8(to, p->names[i]);
    }
}

enum rc path_decode(struct reader *r, struct meta_path *out)
{
    out->depth = reader_u8(r);
    if (out->depth > META_PATH_DEPTH) {
        out->depth = 0;
        return RC_INVALID;
    }
    for (uint32_t i = 0; i < out->depth; i++) {
        out->names[i] = reader_str8(r);
    }
    return r->is_bad ? RC_MALFORMED : RC_OK;
}

// ---- building ---------------------------------------------------------------------------------------------

static bool path_fits(struct meta_command *c, const struct meta_path *p)
{
    bool fits = p->depth >= 1 && p->depth <= META_PATH_DEPTH;
    for (uint32_t i = 0; fits && i < p->depth; i++) {
        fits = p->names[i].len <= META_NAME_MAX;
    }
    c->is_invalid |= !fits;
    return fits;
}

static void conditional(struct meta_command *c, enum command_kind kind, enum meta_if condition,
                        uint64_t version, const struct meta_path *p)
{
    buf_u8(&c->bytes, (uint8_t)kind);
    buf_u8(&c->bytes, (uint8_t)condition);
    buf_u64(&c->bytes, version);
    path_encode(&c->bytes, p);
    c->ops_count++;
}

void meta_put(struct meta_command *c, const struct meta_path *p, struct span payload, enum meta_if condition,
              uint64_t version)
{
    if (!path_fits(c, p)) {
        return;
    }
    if (payload.len > META_PAYLOAD_MAX) {
        c->is_invalid = true;
        return;
    }
    conditional(c, COMMAND_PUT, condition, version, p);
    buf_str32(&c->bytes, payload);
}

void meta_keep_while(struct meta_command *c, const struct meta_path *watched, bool on_children)
{
    if (path_fits(c, watched)) {
        buf_u8(&c->bytes, COMMAND_KEEP);
        buf_u8(&c->bytes, on_children);
        path_encode(&c->bytes, watched);
    }
}

void meta_allocate_ids(struct meta_command *c, uint32_t payload_offset, uint32_t count)
{
    buf_u8(&c->bytes, COMMAND_IDS);
    buf_u32(&c->bytes, payload_offset);
    buf_u32(&c->bytes, count);
}

void meta_delete(struct meta_command *c, const struct meta_path *p, enum meta_if condition, uint64_t version)
{
    if (path_fits(c, p)) {
        conditional(c, COMMAND_DELETE, condition, version, p);
    }
}

void meta_require(struct meta_command *c, const struct meta_path *p, enum meta_if condition, uint64_t version)
{
    if (path_fits(c, p)) {
        conditional(c, COMMAND_REQUIRE, condition, version, p);
    }
}

void meta_set_trigger(struct meta_command *c, uint32_t trigger_id, const struct meta_path *prefix,
                      uint8_t events)
{
    if (path_fits(c, prefix)) {
        buf_u8(&c->bytes, COMMAND_SET_TRIGGER);
        buf_u32(&c->bytes, trigger_id);
        buf_u8(&c->bytes, events);
        path_encode(&c->bytes, prefix);
        c->ops_count++;
    }
}

void meta_ack_event(struct meta_command *c, uint64_t event_seq)
{
    buf_u8(&c->bytes, COMMAND_ACK_EVENT);
    buf_u64(&c->bytes, event_seq);
    c->ops_count++;
}

void command_encode_request(struct buf *to, const struct command_ref *ref, const struct meta_command *c)
{
    buf_u32(to, ref->node);
    buf_u64(to, ref->session);
    buf_u64(to, ref->counter);
    buf_u32(to, c->ops_count);
    buf_span_bytes(to, buf_span(&c->bytes));
}

void command_encode_head(uint8_t to[COMMAND_HEAD_BYTES], uint64_t stamp_ms)
{
    to[0] = COMMAND_VERSION;
    memcpy(to + 1, &stamp_ms, sizeof(stamp_ms));
}

// ---- decoding ---------------------------------------------------------------------------------------------

static enum rc decode_rest(struct reader *r, struct command *out)
{
    out->ref.node = reader_u32(r);
    out->ref.session = reader_u64(r);
    out->ref.counter = reader_u64(r);
    out->ops_count = reader_u32(r);
    out->ops = reader_span(r, reader_left(r));
    return reader_end(r);
}

enum rc command_decode_request(struct span request, struct command *out)
{
    struct reader r = reader_of(request);
    *out = (struct command){0};
    return decode_rest(&r, out);
}

enum rc command_decode(struct span payload, struct command *out)
{
    struct reader r = reader_of(payload);
    *out = (struct command){0};
    if (reader_u8(&r) != COMMAND_VERSION) {
        return RC_MALFORMED;
    }
    out->stamp_ms = reader_u64(&r);
    return decode_rest(&r, out);
}

enum rc command_next_modifier(struct reader *r, struct command_modifier *out)
{
    if (r->pos == r->len) {
        return RC_MORE;
    }
    *out = (struct command_modifier){.kind = (enum command_kind)reader_u8(r)};
    if (out->kind == COMMAND_KEEP) {
        const uint8_t on_children = reader_u8(r);
        TRY(path_decode(r, &out->path));
        out->is_on_children = on_children != 0;
        return on_children <= 1 && out->path.depth >= 1 ? RC_OK : RC_INVALID;
    }
    if (out->kind == COMMAND_IDS) {
        out->offset = reader_u32(r);
        out->count = reader_u32(r);
        return r->is_bad ? RC_MALFORMED : RC_OK;
    }
    return RC_MALFORMED;
}

// Takes the modifiers behind a put.
static enum rc read_modifiers(struct reader *r, struct command_op *op)
{
    const size_t start = r->pos;
    while (r->pos < r->len && (r->ptr[r->pos] == COMMAND_KEEP || r->ptr[r->pos] == COMMAND_IDS)) {
        struct command_modifier m;
        TRY(command_next_modifier(r, &m));
        if (m.kind == COMMAND_IDS &&
            (m.count < 1 || m.count > COMMAND_IDS_MAX || (uint64_t)m.offset + 8 > op->payload.len)) {
            return RC_INVALID;
        }
    }
    op->modifiers = span_of(r->ptr + start, r->pos - start);
    return RC_OK;
}

static enum rc read_conditional(struct reader *r, struct command_op *op)
{
    const uint8_t condition = reader_u8(r);
    op->version = reader_u64(r);
    TRY(path_decode(r, &op->path));
    if (condition > META_IF_NO_CHILDREN || op->path.depth < 1) {
        return RC_INVALID;
    }
    op->condition = (enum meta_if)condition;
    return RC_OK;
}

enum rc command_next(struct reader *r, struct command_op *op)
{
    if (r->pos == r->len && !r->is_bad) {
        return RC_MORE;
    }
    *op = (struct command_op){.kind = (enum command_kind)reader_u8(r)};
    switch (op->kind) {
    case COMMAND_PUT:
        TRY(read_conditional(r, op));
        op->payload = reader_str32(r);
        if (r->is_bad) {
            return RC_MALFORMED;
        }
        if (op->payload.len > META_PAYLOAD_MAX) {
            return RC_INVALID;
        }
        return read_modifiers(r, op);
    case COMMAND_DELETE:
    case COMMAND_REQUIRE:
        return read_conditional(r, op);
    case COMMAND_SET_TRIGGER:
        op->trigger_id = reader_u32(r);
        op->events = reader_u8(r);
        TRY(path_decode(r, &op->path));
        return op->events <= (META_EVENT_CREATED | META_EVENT_UPDATED | META_EVENT_DELETED) &&
                       op->path.depth >= 1
                   ? RC_OK
                   : RC_INVALID;
    case COMMAND_ACK_EVENT:
        op->event_seq = reader_u64(r);
        return r->is_bad ? RC_MALFORMED : RC_OK;
    case COMMAND_KEEP:
    case COMMAND_IDS:  // Without a put before them.
    default:
        return RC_MALFORMED;
    }
}

enum rc command_validate(struct span request)
{
    if (request.len > META_COMMAND_MAX) {
        return RC_TOO_LARGE;
    }
    struct command c;
    TRY(command_decode_request(request, &c));
    struct reader ops = reader_of(c.ops);
    uint32_t count = 0;
    for (;;) {
        struct command_op op;
        const enum rc rc = command_next(&ops, &op);
        if (rc == RC_MORE) {
            break;
        }
        TRY(rc);
        count++;
    }
    return count == c.ops_count ? RC_OK : RC_MALFORMED;
}

bool command_only_frees(struct span request)
{
    struct command c;
    if (command_decode_request(request, &c) != RC_OK) {
        return false;
    }
    struct reader ops = reader_of(c.ops);
    struct command_op op;
    while (command_next(&ops, &op) == RC_OK) {
        if (op.kind == COMMAND_PUT || op.kind == COMMAND_SET_TRIGGER) {
            return false;
        }
    }
    return true;
}
