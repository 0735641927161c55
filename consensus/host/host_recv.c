// SPDX-License-Identifier: Apache-2.0
// Receiving: frames are decoded into an arena, checked, and turned into steps of engines.
//
// An append is checked whole before its engine hears of it: its records must be there, intact, of this group, with the
// indexes and terms the header promises. Then what the engine accepted is laid down. A frame that does not decode, or
// whose records do not fit its headers, is dropped and counted: the sender's engine finds out by the missing answer.
//
// A message for another replica than ours, or for a group we do not have, changes nothing (P19): the sender
// is told, and the owner of this host may look the group up.
#include "consensus/host/host_core.h"
#include "node/base/crc32c.h"
#include <assert.h>
#include <stdlib.h>

static void unknown(struct host *h, uint32_t node, uint64_t group, uint64_t replica)
{
    host_frame_unknown(h, node, group, replica);
    if (h->config.unknown_group) {
        h->config.unknown_group(h->config.ctx, group, node);
    }
}

// The replica a message is for, or NULL after having dealt with it.
static struct group *addressee(struct host *h, uint32_t node, uint64_t group, uint64_t replica, bool tell)
{
    struct group *g = map_get(&h->map, group);
    if (g == NULL || g->replica_id != replica) {
        if (tell) {
            unknown(h, node, group, replica);
        }
        return NULL;
    }
    // While a snapshot replaces the log nothing else may touch it; messages may get lost.
    return group_is_gone(g) || (g->flags & GROUP_INSTALLING) ? NULL : g;
}

static bool is_foreign(struct host *h, uint64_t group, uint32_t *worker)
{
    if (h->config.worker_of == NULL) {
        return false;
    }
    *worker = h->config.worker_of(h->config.ctx, group);
    return *worker != h->config.worker;
}

static void pass_on(struct host *h, uint32_t worker, uint32_t node, enum net_lane lane, uint16_t type,
                    const ProtobufCMessage *item, struct span raw)
{
    if (h->config.pass_on == NULL) {
        return;
    }
    struct buf b;
    buf_init(&b);
    host_pack_item(&b, item);
    h->config.pass_on(h->config.ctx, worker, node, lane, type, buf_span(&b), raw);
    buf_deinit(&b);
}

static void step(struct host *h, struct group *g, uint32_t node, const struct consensus_msg *m, struct span records)
{
    struct consensus_out out;
    consensus_out_reset(&out);
    h->current_node = node;
    h->current_from = m->from;
    g->ops->step(g->replica, m, host_now(h), &out);
    group_execute(g, &out, records, m->index + 1);
    h->current_node = 0;
    h->current_from = 0;
}

// ---- appends -------------------------------------------------------------------------------------------------------

static enum rc message_of(const Cluster__AppendHeader *a, struct consensus_msg *m)
{
    if (a->n_runs > CONSENSUS_TERM_RUNS * 2 || a->n_runs % 2 != 0 || (a->count > 0) != (a->n_runs > 0)) {
        return RC_MALFORMED;
    }
    if (a->prev_index > UINT64_MAX - a->count - 1) {
        return RC_MALFORMED;
    }
    *m = (struct consensus_msg){
        .type = MSG_APPEND,
        .group = a->group,
        .from = a->from,
        .to = a->to,
        .term = a->term,
        .index = a->prev_index,
        .index_term = a->prev_term,
        .commit = a->commit,
        .read_round = a->read_round,
        .count = a->count,
        .runs_count = (uint8_t)(a->n_runs / 2),
    };
    for (uint8_t i = 0; i < m->runs_count; i++) {
        m->runs[i] = (struct term_run){.first = a->runs[i * 2], .term = a->runs[i * 2 + 1]};
        const uint64_t at_least = i == 0 ? m->index + 1 : m->runs[i - 1].first + 1;
        if ((i == 0 && m->runs[i].first != at_least) || m->runs[i].first < at_least || m->runs[i].term > m->term ||
            m->runs[i].term < (i == 0 ? m->index_term : m->runs[i - 1].term) || m->runs[i].term == 0) {
            return RC_MALFORMED;
        }
    }
    if (m->runs_count > 0 && m->runs[m->runs_count - 1].first > m->index + m->count) {
        return RC_MALFORMED;
    }
    return RC_OK;
}

// The records are exactly those that `m` announces.
static enum rc records_check(const struct consensus_msg *m, struct span records)
{
    uint8_t run = 0;
    for (uint32_t i = 0; i < m->count; i++) {
        struct record_disk d;
        uint64_t size;
        TRY(record_check(records, &d, &size));
        const uint64_t index = m->index + 1 + i;
        while (run + 1 < m->runs_count && m->runs[run + 1].first <= index) {
            run++;
        }
        if (d.group != m->group || d.index != index || d.term != m->runs[run].term || !record_has_index(d.kind)) {
            return RC_MALFORMED;
        }
        if (d.kind == RECORD_CONFIG) {
            struct config c;
            TRY(config_decode(span_of(records.ptr + RECORD_HEADER_BYTES, d.len), &c));
        }
        records = span_of(records.ptr + size, records.len - (size_t)size);
    }
    return records.len == 0 ? RC_OK : RC_MALFORMED;
}

static void on_append_item(struct host *h, uint32_t node, const Cluster__AppendHeader *a, struct span records)
{
    struct consensus_msg m;
    struct group *g = addressee(h, node, a->group, a->to, true);
    if (g == NULL) {
        return;
    }
    enum rc rc = message_of(a, &m);
    if (rc == RC_OK) {
        rc = records_check(&m, records);
    }
    if (rc != RC_OK) {
        h->metrics.malformed++;
        log_warning("group %llu: append from node %u dropped: %s", (unsigned long long)a->group, node, rc_text(rc));
        return;
    }
    step(h, g, node, &m, records);
}

// The sending worker has said in all this much; echoed when this turn's submission is durable.
static struct inflow *inflow_received(struct host *h, uint32_t node, const struct frame *f, uint64_t sent)
{
    struct peer *p = host_peer(h, node);
    const uint32_t worker = f->worker % FRAME_WORKERS_MAX;
    if (worker >= p->inflow_count) {
        p->inflow_count = worker + 1;
    }
    struct inflow *in = &p->inflow[worker];
    if (sent > in->received) {
        in->received = sent;
    }
    return in;
}

static void on_append(struct host *h, uint32_t node, const struct frame *f)
{
    Cluster__AppendBatch *b = cluster__append_batch__unpack(&h->arena.allocator, f->envelope.len, f->envelope.ptr);
    if (b == NULL) {
        h->metrics.malformed++;
        return;
    }
    size_t pos = 0;
    for (size_t i = 0; i < b->n_items; i++) {
        const Cluster__AppendHeader *a = b->items[i];
        uint32_t worker;
        if (a->bytes > f->raw.len - pos) {
            h->metrics.malformed++;
            break;
        }
        const struct span records = span_of(f->raw.ptr + pos, (size_t)a->bytes);
        pos += (size_t)a->bytes;
        if (is_foreign(h, a->group, &worker)) {
            pass_on(h, worker, node, LANE_LOG, FRAME_APPEND, &a->base, records);
        } else {
            on_append_item(h, node, a, records);
        }
    }
    inflow_received(h, node, f, b->sent);
}

static void assembly_drop(struct inflow *in)
{
    in->assembly.group = 0;
    in->assembly.bytes.len = 0;
    in->assembly.sum = 0;
    buf_shrink(&in->assembly.bytes, 0);
}

static void on_fragment(struct host *h, uint32_t node, const struct frame *f)
{
    Cluster__Fragment *w = cluster__fragment__unpack(&h->arena.allocator, f->envelope.len, f->envelope.ptr);
    if (w == NULL || w->item == NULL) {
        h->metrics.malformed++;
        return;
    }
    struct inflow *in = inflow_received(h, node, f, w->sent);
    const Cluster__AppendHeader *a = w->item;
    struct fragment_receive *r = &in->assembly;
    if (w->offset == 0) {
        assembly_drop(in);
        if (a->bytes < RECORD_HEADER_BYTES ||
            a->bytes > RECORD_PAYLOAD_MAX + RECORD_HEADER_BYTES + RECORD_ALIGN || a->count != 1 ||
            a->group == 0) {
            h->metrics.malformed++;
            return;
        }
        r->group = a->group;
        r->from = a->from;
        r->term = a->term;
        r->index = a->prev_index;
    }
    if (r->group != a->group || r->from != a->from || r->term != a->term || r->index != a->prev_index ||
        r->bytes.len != w->offset || w->offset > a->bytes || f->raw.len > a->bytes - w->offset) {
        assembly_drop(in);  // Pieces of something that was broken off.
        return;
    }
    // Memory grows with what arrived, never with what was announced. Summed while it is at hand: the whole is
    // not read again.
    r->sum = crc32c_copy(r->sum, buf_extend(&r->bytes, f->raw.len), f->raw.ptr, f->raw.len);
    if (r->bytes.len == a->bytes) {
        uint32_t worker;
        if (is_foreign(h, a->group, &worker)) {
            pass_on(h, worker, node, LANE_LOG, FRAME_APPEND, &a->base, buf_span(&r->bytes));
        } else {
            // The log may go on with this memory.
            struct span record = buf_span(&r->bytes);
            struct block *b = block_adopt(&r->bytes);
            block_set_sum(b, 0, record.len, r->sum);
            on_append_item(h, node, a, record);
            block_release(b);
        }
        assembly_drop(in);
    }
}

// ---- answers and votes ---------------------------------------------------------------------------------------------

// What the peer echoes of our bytes, or of another worker's here.
static void on_receipt(struct host *h, uint32_t node, uint32_t worker, uint64_t received)
{
    struct peer *p = host_peer(h, node);
    if (h->config.worker_of != NULL && worker != h->config.worker) {
        Cluster__AckBatch b = CLUSTER__ACK_BATCH__INIT;
        uint8_t bytes[32];
        b.received = received;
        b.worker = worker;
        const size_t size = cluster__ack_batch__get_packed_size(&b);
        assert(size <= sizeof(bytes));
        cluster__ack_batch__pack(&b, bytes);
        if (h->config.pass_on != NULL && received > 0) {
            h->config.pass_on(h->config.ctx, worker, node, LANE_LOG, FRAME_ACK, span_of(bytes, size), span_of(NULL, 0));
        }
    } else if (received > p->echoed && received <= p->sent) {
        p->echoed = received;
        p->is_woken = p->is_woken || !list_is_empty(&p->blocked);
    }
}

static void on_acks(struct host *h, uint32_t node, const struct frame *f)
{
    Cluster__AckBatch *b = cluster__ack_batch__unpack(&h->arena.allocator, f->envelope.len, f->envelope.ptr);
    if (b == NULL) {
        h->metrics.malformed++;
        return;
    }
    on_receipt(h, node, b->worker, b->received);
    for (size_t i = 0; i < b->n_items; i++) {
        const Cluster__Ack *a = b->items[i];
        uint32_t worker;
        if (is_foreign(h, a->group, &worker)) {
            pass_on(h, worker, node, LANE_LOG, FRAME_ACK, &a->base, span_of(NULL, 0));
            continue;
        }
        struct group *g = addressee(h, node, a->group, a->to, false);
        if (g == NULL) {
            continue;
        }
        const struct consensus_msg m = {
            .type = MSG_APPEND_REPLY,
            .group = a->group,
            .from = a->from,
            .to = a->to,
            .term = a->term,
            .index = a->index,
            .index_term = a->index_term,
            .acked = a->acked,
            .hint_index = a->hint_index,
            .hint_term = a->hint_term,
            .read_round = a->read_round,
            .commit = a->commit,
            .is_rejected = a->is_rejected != 0,
        };
        step(h, g, node, &m, span_of(NULL, 0));
    }
}

static bool is_vote_type(uint32_t type)
{
    return type == MSG_PREVOTE || type == MSG_PREVOTE_REPLY || type == MSG_VOTE || type == MSG_VOTE_REPLY ||
           type == MSG_TIMEOUT_NOW || type == MSG_SNAPSHOT_DONE;
}

static void on_votes(struct host *h, uint32_t node, const struct frame *f)
{
    Cluster__VoteBatch *b = cluster__vote_batch__unpack(&h->arena.allocator, f->envelope.len, f->envelope.ptr);
    if (b == NULL) {
        h->metrics.malformed++;
        return;
    }
    for (size_t i = 0; i < b->n_items; i++) {
        const Cluster__Vote *v = b->items[i];
        uint32_t worker;
        if (!is_vote_type(v->type)) {
            h->metrics.malformed++;
            continue;
        }
        if (is_foreign(h, v->group, &worker)) {
            pass_on(h, worker, node, LANE_CONTROL, FRAME_VOTES, &v->base, span_of(NULL, 0));
            continue;
        }
        const bool is_reply = v->type == MSG_PREVOTE_REPLY || v->type == MSG_VOTE_REPLY;
        struct group *g = addressee(h, node, v->group, v->to, !is_reply);
        if (g == NULL) {
            continue;
        }
        const struct consensus_msg m = {
            .type = (enum consensus_msg_type)v->type,
            .group = v->group,
            .from = v->from,
            .to = v->to,
            .term = v->term,
            .index = v->index,
            .index_term = v->index_term,
            .commit = v->commit,
            .acked = v->acked,
            .fsm_version = v->fsm_version,
            .is_rejected = v->is_rejected != 0,
            .is_transfer = v->is_transfer != 0,
        };
        step(h, g, node, &m, span_of(NULL, 0));
    }
}

// A replica we sent to is not there (yet, or any more). Asked again in a while, if it is still a member.
static void on_unknown_group(struct host *h, uint32_t node, const struct frame *f)
{
    Cluster__UnknownGroup *u = cluster__unknown_group__unpack(&h->arena.allocator, f->envelope.len, f->envelope.ptr);
    uint32_t worker;
    if (u == NULL) {
        h->metrics.malformed++;
        return;
    }
    if (is_foreign(h, u->group, &worker)) {
        if (h->config.pass_on) {
            h->config.pass_on(h->config.ctx, worker, node, LANE_LOG, f->type, f->envelope, f->raw);
        }
        return;
    }
    struct group *g = map_get(&h->map, u->group);
    if (g == NULL || group_is_gone(g)) {
        return;
    }
    host_retry_add(g, node, u->replica, false);
    if (g->ops->replica_unknown != NULL) {
        struct consensus_out out;
        consensus_out_reset(&out);
        g->ops->replica_unknown(g->replica, u->replica, host_now(h), &out);
        group_execute(g, &out, span_of(NULL, 0), 0);
    }
}

void host_receive(struct host *h, uint32_t node, enum net_lane lane, const struct frame *f)
{
    if (h->is_failed || node == 0) {
        return;
    }
    pb_arena_reset(&h->arena);
    switch (f->type) {
    case FRAME_APPEND:
        on_append(h, node, f);
        return;
    case FRAME_FRAGMENT:
        on_fragment(h, node, f);
        return;
    case FRAME_ACK:
        on_acks(h, node, f);
        return;
    case FRAME_VOTES:
        on_votes(h, node, f);
        return;
    case FRAME_UNKNOWN_GROUP:
        on_unknown_group(h, node, f);
        return;
    case FRAME_SNAPSHOT:
        host_snapshot_on_piece(h, node, f);
        return;
    case FRAME_SNAPSHOT_ACK:
        host_snapshot_on_ack(h, node, f);
        return;
    default:
        break;
    }
    for (uint32_t i = 0; i < h->handlers_count; i++) {
        const struct handler *x = &h->handlers[i];
        if (f->type >= x->first && f->type <= x->last) {
            x->fn(x->ctx, node, lane, f);
            return;
        }
    }
}
