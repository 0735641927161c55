// SPDX-License-Identifier: Apache-2.0
// The tree's commands: applying entries (tree.h says what a command means).
//
// One entry: skip it if it is known (replay); move the clock; drop expired dedup rows; if the command's
// reference is known answer what was answered first; else run the operations one after another, each seeing
// the effects of those before it. The first one whose condition fails takes the whole command back: rows by
// the undo log, counters by the saved meta. The result, good or bad, is remembered under the reference.
// Invariants: no input makes apply fail (an entry that does not decode is answered RC_MALFORMED and changes
// nothing, on every replica alike); nothing here depends on time, memory addresses or the order of hash
// tables.
#include "consensus/consensus.h"
#include "metastore/tree_internal.h"
#include "node/base/mem.h"
#include "proto/record.h"
#include <stdlib.h>

enum { DEDUP_EXPIRE_AT_ONCE = 32 };  // Rows dropped per command: more than one command adds.

enum rc tree_open(struct tree *t, struct kv *kv)
{
    *t = (struct tree){.kv = kv};
    struct kv_txn *txn;
    TRY(kv_begin(kv, false, &txn));
    struct span value;
    enum rc rc = kv_get(txn, KV_META, meta_row_key(), &value);
    if (rc == RC_NOT_FOUND) {
        t->meta = (struct tree_meta){.next_id = 1, .next_event = 1, .next_number = META_NUMBER_FIRST};
        rc = RC_OK;
    } else if (rc == RC_OK) {
        struct span body;
        rc = row_check(KV_META, meta_row_key(), value, &body);
        if (rc == RC_OK) {
            rc = meta_row_decode(body, &t->meta);
        }
    }
    kv_abort(txn);
    TRY(rc);
    triggers_load(t);
    // The load began a write transaction, which is tied to this thread: end it.
    if (t->txn) {
        kv_abort(t->txn);
        t->txn = NULL;
    }
    return t->rc;
}

void tree_close(struct tree *t)
{
    if (t->txn) {
        kv_abort(t->txn);
    }
    triggers_free(t);
    buf_deinit(&t->undo);
    buf_deinit(&t->undo_at);
    buf_deinit(&t->raw);
    buf_deinit(&t->body);
    buf_deinit(&t->payload);
    *t = (struct tree){0};
}

uint64_t tree_digest(const struct tree *t)
{
    struct buf b;
    buf_init(&b);
    meta_row_encode(&t->meta, &b);
    const uint64_t digest = row_hash(KV_META, meta_row_key(), buf_span(&b));
    buf_deinit(&b);
    return digest;
}

bool tree_get(struct tree *t, const struct meta_path *p, struct tree_node_info *out)
{
    struct node_place at;
    node_find(t, p, &at);
    if (at.found < p->depth) {
        return false;
    }
    *out = (struct tree_node_info){
        .id = at.row.id,
        .version = at.row.version,
        .child_version = at.row.child_version,
        .child_count = at.row.child_count,
        .has_payload = at.row.flags & NODE_HAS_PAYLOAD,
        .payload = at.row.payload,
    };
    return true;
}

void tree_change(struct tree *t, const struct meta_change *c, bool is_update)
{
    struct meta_change change = *c;
    change.index = t->meta.applied_index;
    change_encode(t->changes, &change);
    triggers_fire(t, &change,
                  change.is_deleted ? META_EVENT_DELETED
                  : is_update       ? META_EVENT_UPDATED
                                    : META_EVENT_CREATED);
}

// ---- operations -------------------------------------------------------------------------------------------

static enum rc check(const struct node_place *at, const struct meta_path *p, enum meta_if condition,
                     uint64_t version)
{
    const bool is_node = at->found == p->depth;
    const bool is_present = is_node && (at->row.flags & NODE_HAS_PAYLOAD);
    switch (condition) {
    case META_IF_ANY:
        return RC_OK;
    case META_IF_ABSENT:
        return is_present ? RC_EXISTS : RC_OK;
    case META_IF_PRESENT:
        return is_present ? RC_OK : RC_NOT_FOUND;
    case META_IF_VERSION:
        return !is_present ? RC_NOT_FOUND : at->row.version == version ? RC_OK : RC_CONFLICT;
    case META_IF_NO_CHILDREN:
        return is_node && at->row.child_count > 0 ? RC_CONFLICT : RC_OK;
    }
    return RC_INVALID;
}

// Copies a put's payload and writes the numbers it asked for into it.
static void take_payload(struct tree *t, const struct command_op *op)
{
    t->payload.len = 0;
    buf_span_bytes(&t->payload, op->payload);
    struct reader r = reader_of(op->modifiers);
    struct command_modifier m;
    while (command_next_modifier(&r, &m) == RC_OK) {
        if (m.kind == COMMAND_IDS) {
            assert((size_t)m.offset + 8 <= t->payload.len);  // Checked by command_next.
            memcpy(t->payload.ptr + m.offset, &t->meta.next_number, 8);
            t->meta.next_number += m.count;
        }
    }
}

// Makes the missing parents and the node itself. Returns its id.
static uint64_t create(struct tree *t, const struct meta_path *p, const struct node_place *at)
{
    uint64_t parent = at->deepest;
    node_children_changed(t, parent, 1, 1);
    for (uint32_t i = at->found; i < p->depth; i++) {
        const bool is_last = i + 1 == p->depth;
        struct node_row n = {.id = t->meta.next_id++};
        if (is_last) {
            n.version = 1;
            n.flags = NODE_HAS_PAYLOAD;
        } else {
            n.flags = NODE_IS_AUTO;
            n.child_count = 1;
            n.child_version = 1;
        }
        node_put(t, parent, p->names[i], &n, is_last ? buf_span(&t->payload) : (struct span){0});
        const struct tree_key by_id = key_id(n.id);
        t->body.len = 0;
        buf_u64(&t->body, parent);
        buf_span_bytes(&t->body, p->names[i]);
        row_put(t, KV_BY_ID, key_span(&by_id), buf_span(&t->body));
        t->meta.nodes++;
        parent = n.id;
    }
    return parent;
}

static enum rc keep_while(struct tree *t, uint64_t id, struct span modifiers)
{
    struct reader r = reader_of(modifiers);
    struct command_modifier m;
    bool is_first = true;
    while (command_next_modifier(&r, &m) == RC_OK) {
        if (m.kind != COMMAND_KEEP) {
            continue;
        }
        if (is_first) {
            watch_clear(t, id);
            is_first = false;
        }
        struct node_place at;
        node_find(t, &m.path, &at);
        if (at.found < m.path.depth) {
            return RC_NOT_FOUND;
        }
        if (m.is_on_children && at.row.child_count == 0 && at.row.id != id) {
            return RC_CONFLICT;
        }
        watch_add(t, id, at.row.id, m.is_on_children ? WATCH_CHILDREN : WATCH_EXISTS);
    }
    return RC_OK;
}

static enum rc put(struct tree *t, const struct command_op *op)
{
    struct node_place at;
    node_find(t, &op->path, &at);
    TRY(check(&at, &op->path, op->condition, op->version));
    take_payload(t, op);
    const bool is_node = at.found == op->path.depth;
    const bool is_update = is_node && (at.row.flags & NODE_HAS_PAYLOAD);
    uint64_t id = at.row.id;
    uint64_t version = 1;
    if (is_node) {
        struct node_row n = at.row;
        version = ++n.version;
        n.flags = NODE_HAS_PAYLOAD;  // No longer only a parent.
        node_put(t, at.parent, op->path.names[op->path.depth - 1], &n, buf_span(&t->payload));
    } else {
        id = create(t, &op->path, &at);
    }
    TRY(keep_while(t, id, op->modifiers));
    tree_change(t,
                &(struct meta_change){
                    .path = &op->path,
                    .is_created = !is_update,
                    .payload = buf_span(&t->payload),
                    .version = version,
                },
                is_update);
    return RC_OK;
}

static enum rc run_op(struct tree *t, const struct command_op *op, struct tree_result *out)
{
    struct node_place at;
    switch (op->kind) {
    case COMMAND_PUT:
        return put(t, op);
    case COMMAND_DELETE:
        node_find(t, &op->path, &at);
        TRY(check(&at, &op->path, op->condition, op->version));
        if (at.found == op->path.depth) {
            out->removed += tree_cascade(t, at.row.id);
        }
        return RC_OK;
    case COMMAND_REQUIRE:
        node_find(t, &op->path, &at);
        return check(&at, &op->path, op->condition, op->version);
    case COMMAND_SET_TRIGGER: {
        uint8_t key[5] = {'d'};
        const uint32_t id = __builtin_bswap32(op->trigger_id);
        memcpy(key + 1, &id, 4);
        const struct span k = span_of(key, sizeof(key));
        if (op->events == 0) {
            if (row_has(t, KV_TRIG, k)) {
                row_remove(t, KV_TRIG, k);
            }
        } else {
            t->body.len = 0;
            buf_u8(&t->body, op->events);
            path_encode(&t->body, &op->path);
            row_put(t, KV_TRIG, k, buf_span(&t->body));
        }
        t->triggers_changed = true;
        return RC_OK;
    }
    case COMMAND_ACK_EVENT: {
        uint8_t key[9] = {'p'};
        key_u64(key + 1, op->event_seq);
        if (row_has(t, KV_TRIG, span_of(key, sizeof(key)))) {
            row_remove(t, KV_TRIG, span_of(key, sizeof(key)));
        }
        return RC_OK;
    }
    case COMMAND_KEEP:
    case COMMAND_IDS:
        break;
    }
    return RC_MALFORMED;
}

// ---- deduplication ----------------------------------------------------------------------------------------
// KV_DEDUP: 'r' + reference -> {u64 expiry, u32 rc, u32 failed op, u64 index};
// 'e' + expiry + reference -> nothing.

enum { REF_BYTES = 20 };

static void ref_key(uint8_t to[REF_BYTES], const struct command_ref *ref)
{
    const uint32_t node = __builtin_bswap32(ref->node);
    memcpy(to, &node, 4);
    key_u64(to + 4, ref->session);
    key_u64(to + 12, ref->counter);
}

static void dedup_expire(struct tree *t)
{
    for (int i = 0; i < DEDUP_EXPIRE_AT_ONCE; i++) {
        const uint8_t from = 'e';
        struct span key;
        struct span body;
        if (!row_next(t, KV_DEDUP, span_of(&from, 1), false, &key, &body) || key.ptr[0] != 'e') {
            return;
        }
        assert(key.len == 9 + REF_BYTES);
        if (key_read_u64(key.ptr + 1) > t->meta.clock_ms) {
            return;
        }
        uint8_t by_expiry[9 + REF_BYTES];
        uint8_t by_ref[1 + REF_BYTES] = {'r'};
        memcpy(by_expiry, key.ptr, sizeof(by_expiry));
        memcpy(by_ref + 1, by_expiry + 9, REF_BYTES);
        row_remove(t, KV_DEDUP, span_of(by_expiry, sizeof(by_expiry)));
        row_remove(t, KV_DEDUP, span_of(by_ref, sizeof(by_ref)));
    }
}

static bool dedup_find(struct tree *t, struct tree_result *out)
{
    uint8_t key[1 + REF_BYTES] = {'r'};
    ref_key(key + 1, &out->ref);
    struct span body;
    if (!row_get(t, KV_DEDUP, span_of(key, sizeof(key)), &body)) {
        return false;
    }
    struct reader r = reader_of(body);
    (void)reader_u64(&r);
    const uint32_t rc = reader_u32(&r);
    out->failed_op = reader_u32(&r);
    out->index = reader_u64(&r);
    assert(!r.is_bad && rc < RC_COUNT);
    out->rc = (enum rc)rc;
    out->is_repeat = true;
    return true;
}

static void dedup_remember(struct tree *t, const struct tree_result *result)
{
    const uint64_t expiry = t->meta.clock_ms + TREE_DEDUP_MS;
    uint8_t by_ref[1 + REF_BYTES] = {'r'};
    ref_key(by_ref + 1, &result->ref);
    uint8_t by_expiry[9 + REF_BYTES] = {'e'};
    key_u64(by_expiry + 1, expiry);
    memcpy(by_expiry + 9, by_ref + 1, REF_BYTES);
    t->body.len = 0;
    buf_u64(&t->body, expiry);
    buf_u32(&t->body, result->rc);
    buf_u32(&t->body, result->failed_op);
    buf_u64(&t->body, result->index);
    row_put(t, KV_DEDUP, span_of(by_ref, sizeof(by_ref)), buf_span(&t->body));
    row_put(t, KV_DEDUP, span_of(by_expiry, sizeof(by_expiry)), (struct span){0});
}

// ---- applying ---------------------------------------------------------------------------------------------

static enum rc run_ops(struct tree *t, const struct command *c, struct tree_result *out)
{
    struct reader ops = reader_of(c->ops);
    for (uint32_t i = 0;; i++) {
        struct command_op op;
        enum rc rc = command_next(&ops, &op);
        if (rc == RC_MORE) {
            return i == c->ops_count ? RC_OK : RC_MALFORMED;
        }
        if (rc == RC_OK) {
            rc = run_op(t, &op, out);
        }
        if (rc != RC_OK || t->rc != RC_OK) {
            out->failed_op = i;
            return rc;
        }
    }
}

static void run_command(struct tree *t, struct span payload, struct buf *changes, struct tree_result *out)
{
    struct command c;
    out->is_command = true;
    out->rc = command_decode(payload, &c);
    if (out->rc != RC_OK) {
        return;
    }
    out->ref = c.ref;
    if (c.stamp_ms > t->meta.clock_ms) {
        t->meta.clock_ms = c.stamp_ms;
    }
    dedup_expire(t);
    if (c.ref.node != 0 && dedup_find(t, out)) {
        return;
    }
    // Saved without the configuration's bytes, which commands do not touch.
    const uint64_t next_id = t->meta.next_id;
    const uint64_t next_event = t->meta.next_event;
    const uint64_t next_number = t->meta.next_number;
    const uint64_t nodes = t->meta.nodes;
    const uint64_t rows = t->meta.rows;
    const uint64_t digest = t->meta.digest;
    const size_t changes_len = changes->len;
    t->changes = changes;
    t->triggers_changed = false;
    rows_log_start(t);
    out->rc = run_ops(t, &c, out);
    out->has_events = t->meta.next_event != next_event;
    if (out->rc != RC_OK) {
        rows_undo(t);
        t->meta.next_id = next_id;
        t->meta.next_event = next_event;
        t->meta.next_number = next_number;
        t->meta.nodes = nodes;
        t->meta.rows = rows;
        t->meta.digest = digest;
        changes->len = changes_len;
        out->removed = 0;
        out->has_events = false;
    } else if (t->triggers_changed) {
        triggers_load(t);
    }
    t->is_logging = false;
    t->changes = NULL;
    if (c.ref.node != 0) {
        dedup_remember(t, out);
    }
}

void tree_apply(struct tree *t, uint64_t index, uint64_t term, uint16_t kind, struct span payload,
                struct buf *changes, struct tree_result *out)
{
    *out = (struct tree_result){.index = index};
    if (index <= t->meta.applied_index || t->rc != RC_OK) {
        return;
    }
    assert(term >= t->meta.applied_term);
    tree_begin(t);
    t->meta.applied_index = index;
    t->meta.applied_term = term;
    if (kind == RECORD_ENTRY) {
        run_command(t, payload, changes, out);
    } else if (kind == RECORD_CONFIG && payload.len <= TREE_CONFIG_MAX) {
        t->meta.config_index = index;
        t->meta.config_len = (uint32_t)payload.len;
        if (payload.len > 0) {
            memcpy(t->meta.config, payload.ptr, payload.len);
        }
    }
}

// ---- triggers ---------------------------------------------------------------------------------------------
// KV_TRIG: 'd' + trigger id -> {u8 events, path};
// 'p' + sequence -> {u32 trigger, u8 event, path, u32 length, payload}.

void triggers_free(struct tree *t)
{
    for (uint32_t i = 0; i < t->triggers_count; i++) {
        buf_deinit(&t->triggers[i].path);
    }
    free(t->triggers);
    t->triggers = NULL;
    t->triggers_count = 0;
}

void triggers_load(struct tree *t)
{
    triggers_free(t);
    uint8_t from[5] = {'d'};
    size_t from_len = 1;
    bool is_after = false;
    struct span key;
    struct span body;
    while (row_next(t, KV_TRIG, span_of(from, from_len), is_after, &key, &body) && key.ptr[0] == 'd') {
        assert(key.len == sizeof(from));
        memcpy(from, key.ptr, sizeof(from));
        from_len = sizeof(from);
        is_after = true;
        t->triggers = mem_realloc(t->triggers, (t->triggers_count + 1) * sizeof(*t->triggers));
        struct tree_trigger *trigger = &t->triggers[t->triggers_count++];
        uint32_t id;
        memcpy(&id, key.ptr + 1, 4);
        *trigger = (struct tree_trigger){.id = __builtin_bswap32(id), .events = body.ptr[0]};
        buf_bytes(&trigger->path, body.ptr + 1, body.len - 1);
    }
}

static bool path_is_below(const struct meta_path *p, const struct meta_path *prefix)
{
    bool is_below = p->depth >= prefix->depth;
    for (uint32_t i = 0; is_below && i < prefix->depth; i++) {
        is_below = span_equal(p->names[i], prefix->names[i]);
    }
    return is_below;
}

void triggers_fire(struct tree *t, const struct meta_change *c, enum meta_event event)
{
    for (uint32_t i = 0; i < t->triggers_count; i++) {
        const struct tree_trigger *trigger = &t->triggers[i];
        struct reader r = reader_of(buf_span(&trigger->path));
        struct meta_path prefix;
        const enum rc rc = path_decode(&r, &prefix);
        assert(rc == RC_OK);
        if (!(trigger->events & event) || !path_is_below(c->path, &prefix)) {
            continue;
        }
        uint8_t key[9] = {'p'};
        key_u64(key + 1, t->meta.next_event++);
        t->body.len = 0;
        buf_u32(&t->body, trigger->id);
        buf_u8(&t->body, event);
        path_encode(&t->body, c->path);
        buf_str32(&t->body, c->payload);
        row_put(t, KV_TRIG, span_of(key, sizeof(key)), buf_span(&t->body));
    }
}

void tree_events(struct tree *t, uint64_t after, struct buf *to)
{
    uint8_t from[9] = {'p'};
    key_u64(from + 1, after);
    struct span key;
    struct span body;
    while (row_next(t, KV_TRIG, span_of(from, sizeof(from)), true, &key, &body) && key.ptr[0] == 'p') {
        assert(key.len == sizeof(from));
        memcpy(from, key.ptr, sizeof(from));
        buf_u64(to, key_read_u64(key.ptr + 1));
        buf_span_bytes(to, body);
    }
}
