// SPDX-License-Identifier: Apache-2.0
// Deliveries: from the state's unsettled lists to sessions, near and far, warm and cold.
//
// Each attached consumer has a cursor: the number of the last delivery sent. The pump sends what is unsettled above it,
// as long as the window (bytes sent and not taken) and the lane allow; the same loop serves new deliveries, repeats after
// an attach and those that waited. Bodies come from the log: in memory, or read ahead in one go on the cold thread, at
// most QUEUE_COLD_BYTES per consumer and less the more consumers have some; deliveries of a consumer never overtake one
// another.
#include "node/base/log.h"
#include "node/queue/queue_parts.h"
#include "proto/record.h"
#include <stdlib.h>

enum { COLD_RETRY_NS = 1000000000, DELIVER_ITEM_BYTES = 128 << 10 };

struct queue_cold {
    struct glog_read read;
    struct queue_server_consumer *owner;  // NULL: nobody waits any more.
    uint64_t indexes[QUEUE_COLD_INDEXES];
    struct block *block;                  // Holds the bytes if they are a large record.
    struct span bytes;                    // What was read.
    size_t at;                            // Next record in it.
    bool is_done;
};

void queue_deliver_mark(struct queue_server_consumer *c)
{
    if (list_is_empty(&c->dirty)) {
        list_add_tail(&c->server->replica->leading->serving->dirty_consumers, &c->dirty);
    }
}

static void cold_free(struct queue_cold *cold)
{
    buf_deinit(&cold->read.bytes);
    block_release(cold->block);
    free(cold);
}

void queue_deliver_forget(struct queue_server_consumer *c)
{
    if (!c->cold) {
        return;
    }
    c->server->replica->service->cold_count--;
    if (c->cold->is_done) {
        cold_free(c->cold);
    } else {
        c->cold->owner = NULL;
    }
    c->cold = NULL;
}

static void cold_done(struct glog_read *read)
{
    struct queue_cold *cold = read->owner;
    struct queue_server_consumer *c = cold->owner;
    cold->is_done = true;
    if (!c) {
        cold_free(cold);
        return;
    }
    cold->bytes = buf_span(&read->bytes);
    if (cold->bytes.len >= BLOCK_BYTES_MIN) {
        cold->block = block_adopt(&read->bytes);
    }
    struct queue_replica *r = c->server->replica;
    if (read->rc != RC_OK && read->rc != RC_NOT_FOUND) {
        log_error("queue group %llu: reading messages for a consumer failed: %s", (unsigned long long)r->group, rc_text(read->rc));
        c->retry_at = queue_service_now(r->service) + COLD_RETRY_NS;
        queue_deliver_forget(c);
    }
    queue_deliver_mark(c);
    queue_replica_mark(r);
}

// How much one more may read ahead: a thousand queues that are drained at once would else hold a quarter of a GiB.
static uint64_t cold_share(const struct queue_service *q)
{
    const uint64_t share = QUEUE_COLD_ALL_BYTES / ((uint64_t)q->cold_count + 1);
    return share > QUEUE_COLD_BYTES ? QUEUE_COLD_BYTES : share < QUEUE_COLD_BYTES_MIN ? QUEUE_COLD_BYTES_MIN : share;
}

// Reads `first` and what follows it for this consumer while indexes ascend.
static void cold_start(struct queue_server_consumer *c, const struct queue_unsettled *first)
{
    struct queue_replica *r = c->server->replica;
    const uint64_t share = cold_share(r->service);
    struct queue_cold *cold = mem_zalloc(sizeof(*cold));
    uint32_t n = 0;
    uint64_t bytes = 0;
    for (const struct queue_unsettled *u = first; u && n < QUEUE_COLD_INDEXES; u = queue_fsm_next(c->fsm, u->number)) {
        uint64_t index = queue_ref_index(u->ref);
        if (n > 0 && (index <= cold->indexes[n - 1] || bytes >= share)) {
            break;
        }
        cold->indexes[n++] = index;
        bytes += queue_fsm_size(r->fsm, u->ref);
    }
    cold->owner = c;
    c->cold = cold;
    r->service->metrics.cold_reads++;
    r->service->cold_count++;
    cold->read = (struct glog_read){
        .group = r->group, .indexes = cold->indexes, .indexes_count = n, .bytes_max = 2 * share, .done = cold_done, .owner = cold};
    group_entry_read(r->handle, &cold->read);
}

// The payload of `index` out of what was read ahead. RC_MORE: it is not there, RC_PENDING: not read yet.
static enum rc cold_get(struct queue_server_consumer *c, uint64_t index, struct span *payload)
{
    struct queue_cold *cold = c->cold;
    if (!cold->is_done) {
        return RC_PENDING;
    }
    while (cold->at < cold->bytes.len) {
        struct record_disk head;
        uint64_t size;
        struct span left = span_of(cold->bytes.ptr + cold->at, cold->bytes.len - cold->at);
        if (record_peek(left, &head, &size) != RC_OK) {
            break;
        }
        cold->at += size;
        if (head.index == index) {
            *payload = span_of(left.ptr + RECORD_HEADER_BYTES, head.len);
            return RC_OK;
        }
        // Settled since it was asked for.
    }
    return RC_MORE;
}

// RC_OK and the entry's payload, RC_PENDING, or RC_NOT_FOUND.
static enum rc fetch(struct queue_server_consumer *c, const struct queue_unsettled *u, struct span *payload)
{
    struct queue_replica *r = c->server->replica;
    uint64_t index = queue_ref_index(u->ref);
    struct entry e;
    enum rc rc = group_entry(r->handle, index, &e);
    if (rc == RC_OK) {
        *payload = e.payload;
        return RC_OK;
    }
    if (rc != RC_COLD) {
        return RC_NOT_FOUND;
    }
    if (c->cold) {
        bool was_asked = c->cold->at == 0 && c->cold->indexes[0] == index;
        rc = cold_get(c, index, payload);
        if (rc != RC_MORE) {
            return rc;
        }
        queue_deliver_forget(c);
        if (was_asked) {
            return RC_NOT_FOUND;
        }
    }
    if (queue_service_now(r->service) < c->retry_at) {
        return RC_PENDING;
    }
    cold_start(c, u);
    return RC_PENDING;
}

// The delivery without its body.
static void encode(struct buf *to, const struct queue_server_consumer *c, const struct queue_message *m)
{
    struct queue_delivery_wire w = {
        .before = c->cursor,
        .number = m->number,
        .consumer = c->fsm->id,
        .acquired = m->acquired_count,
        .failed = m->delivery_count,
        .exchange_len = (uint16_t)m->exchange.len,
        .key_len = (uint16_t)m->routing_key.len,
        .header_len = (uint32_t)m->header.len,
        .body_len = (uint32_t)m->body.len,
    };
    buf_reserve(to, sizeof(w) + m->exchange.len + m->routing_key.len + m->header.len);
    buf_bytes(to, &w, sizeof(w));
    buf_span_bytes(to, m->exchange);
    buf_span_bytes(to, m->routing_key);
    buf_span_bytes(to, m->header);
}

struct open_item {
    size_t at;
    bool is_open;
};

static void close_item(struct queue_lane *lane, struct open_item *o)
{
    if (o->is_open) {
        queue_lane_end(lane, o->at);
        o->is_open = false;
    }
}

static void send(struct queue_server_consumer *c, const struct queue_message *m, struct open_item *o)
{
    struct queue_server *v = c->server;
    uint64_t before = c->cursor;
    if (v->local) {
        c->cursor = m->number;
        c->sent += m->body.len;
        queue_client_deliver(v->local, v->attach, c->fsm->id, before, m);
        return;
    }
    size_t size = sizeof(struct queue_delivery_wire) + m->header.len + m->body.len;
    if (o->is_open && v->lane->out.len - o->at + size > DELIVER_ITEM_BYTES) {
        close_item(v->lane, o);
    }
    if (!o->is_open) {
        o->at = queue_lane_begin(v->lane, QUEUE_ITEM_DELIVER, v->replica->group, v->id, v->attach);
        o->is_open = true;
    }
    encode(&v->lane->out, c, m);
    struct block *block = block_of(m->body);
    if (block) {
        queue_lane_end_shared(v->lane, o->at, block, m->body);
        o->is_open = false;
    } else {
        buf_span_bytes(&v->lane->out, m->body);
    }
    c->cursor = m->number;
    c->sent += m->body.len;
}

static bool may_send(const struct queue_server_consumer *c)
{
    const struct queue_server *v = c->server;
    if (v->is_paused || (c->fsm->id != 0 && c->sent - c->taken >= LIMIT_REMOTE_CONSUMER_WINDOW)) {
        return false;  // Goes on when it is taken.
    }
    return true;
}

// Has the way to the consumer's node room for `u`?
static bool lane_takes(const struct queue_server_consumer *c, const struct queue_unsettled *u)
{
    const struct queue_server *v = c->server;
    if (v->local) {
        return true;
    }
    // How large it is matters only beside large ones.
    const size_t size = v->lane->run_bytes > 0 ? queue_fsm_size(v->replica->fsm, u->ref) : 0;
    return queue_lane_takes(v->lane, size, QUEUE_ITEM_DELIVER, v->replica->group, v->id);
}

void queue_deliver_pump(struct queue_server_consumer *c)
{
    struct queue_server *v = c->server;
    struct queue_replica *r = v->replica;
    struct open_item item = {0};
    const struct queue_unsettled *u;
    while (may_send(c) && (u = queue_fsm_next(c->fsm, c->cursor)) != NULL) {
        if (!lane_takes(c, u)) {
            queue_deliver_mark(c);  // Polled, and when the lane is writable.
            break;
        }
        struct span payload;
        enum rc rc = fetch(c, u, &payload);
        if (rc == RC_PENDING) {
            if (!c->cold) {
                queue_deliver_mark(c);  // A failed read is tried again later.
            }
            break;
        }
        struct queue_message m;
        if (rc != RC_OK || queue_message_decode(payload, &m) != RC_OK) {
            log_error("queue group %llu: message %llu cannot be read and is not delivered", (unsigned long long)r->group,
                      (unsigned long long)queue_ref_index(u->ref));
            c->cursor = u->number;
            continue;
        }
        m.number = u->number;
        m.acquired_count = u->acquired;
        m.delivery_count = u->failed;
        send(c, &m, &item);
    }
    if (!v->local) {
        close_item(v->lane, &item);
    }
    if (c->cold && c->cold->is_done && c->cold->at > 0 && c->cold->at == c->cold->bytes.len) {
        queue_deliver_forget(c);  // A consumer whose queue is empty keeps nothing of it.
    }
}
