// SPDX-License-Identifier: Apache-2.0
// Deliveries: from the state's unsettled lists to sessions, near and far, warm and cold.
//
// Each attached consumer has a cursor: the number of the last delivery sent. The pump sends what is unsettled above it,
// as long as the window (bytes sent and not taken) and the lane allow; the same loop serves new deliveries, repeats after
// an attach and those that waited. Bodies come from the log: in memory, or read ahead on the cold thread, in reads of at
// most QUEUE_COLD_BYTES and less the more consumers have some. While few have, a consumer has two: the second is under way
// while the first is sent, else the disk, the cold thread and this one would take turns; and one that is alone is read what
// it will get next, too: else each read would wait until what came before is settled, and a window of one message would be
// a read a message. Where many have some it is not: they would hold it as long as they work on their messages. Deliveries
// of a consumer never overtake one another.
#include "node/base/log.h"
#include "node/queue/queue_parts.h"
#include "proto/record.h"
#include <stdlib.h>

enum { COLD_RETRY_NS = 1000000000, DELIVER_ITEM_BYTES = 128 << 10 };

struct queue_cold {
    struct glog_read read;
    struct queue_server_consumer *owner;  // NULL: nobody waits any more.
    uint64_t indexes[QUEUE_COLD_INDEXES];
    uint64_t last;       // Number that the last of them has, or will have if nothing comes between.
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

// The first read is used up, or of no use: the second takes its place.
static void cold_drop(struct queue_server_consumer *c)
{
    struct queue_cold *cold = c->cold;
    c->cold = c->cold_next;
    c->cold_next = NULL;
    c->server->replica->service->cold_count--;
    if (cold->is_done) {
        cold_free(cold);
    } else {
        cold->owner = NULL;
    }
}

void queue_deliver_forget(struct queue_server_consumer *c)
{
    while (c->cold) {
        cold_drop(c);
    }
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

struct plan {
    struct queue_cold *cold;
    const struct queue_fsm *fsm;
    uint64_t share, bytes;
    bool is_ahead;  // Nobody waits for it: nothing that is larger than the share.
};

static bool plan_add(struct plan *p, queue_ref ref)
{
    struct queue_cold *cold = p->cold;
    const uint64_t index = queue_ref_index(ref);
    const uint64_t size = queue_fsm_size(p->fsm, ref);
    const uint32_t n = cold->read.indexes_count;
    if (n == QUEUE_COLD_INDEXES || (n > 0 && (index <= cold->indexes[n - 1] || p->bytes >= p->share)) ||
        (p->is_ahead && p->bytes + size > p->share)) {
        return false;
    }
    cold->indexes[n] = index;
    cold->read.indexes_count = n + 1;
    p->bytes += size;
    return true;
}

// What the consumer is sent after the delivery `after`, while indexes ascend: what it has, then (see above) what it will get.
static struct queue_cold *plan(const struct queue_server_consumer *c, uint64_t after, uint64_t share, bool is_ahead)
{
    const struct queue_fsm *f = c->server->replica->fsm;
    struct queue_cold *cold = mem_zalloc(sizeof(*cold));
    struct plan p = {.cold = cold, .fsm = f, .share = share, .is_ahead = is_ahead};
    cold->last = after;
    for (const struct queue_unsettled *u = queue_fsm_next(c->fsm, after); u; u = queue_fsm_next(c->fsm, u->number)) {
        if (!plan_add(&p, u->ref)) {
            return cold;
        }
        cold->last = u->number;
    }
    if (share < QUEUE_COLD_BYTES || c->fsm->is_cancelled || f->busy->consumers_count != 1 || f->returns.count > 0) {
        return cold;
    }
    queue_ref refs[QUEUE_COLD_INDEXES];
    const uint64_t newest = c->fsm->next_number - 1;
    const uint64_t skip = after > newest ? after - newest : 0;
    const uint32_t count = queue_ready_look(&f->ready, skip, refs, QUEUE_COLD_INDEXES);
    cold->last = newest + skip;
    p.is_ahead = true;
    for (uint32_t i = 0; i < count && plan_add(&p, refs[i]); i++) {
        cold->last++;
    }
    return cold;
}

static void cold_start(struct queue_server_consumer *c, struct queue_cold *cold, uint64_t share)
{
    struct queue_replica *r = c->server->replica;
    cold->owner = c;
    r->service->metrics.cold_reads++;
    r->service->cold_count++;
    cold->read.group = r->group;
    cold->read.indexes = cold->indexes;
    cold->read.bytes_max = 2 * share;
    cold->read.done = cold_done;
    cold->read.owner = cold;
    group_entry_read(r->handle, &cold->read);
}

// The first read, from the delivery after `after` on, which is not in memory.
static void cold_start_first(struct queue_server_consumer *c, uint64_t after)
{
    const uint64_t share = cold_share(c->server->replica->service);
    c->cold = plan(c, after, share, false);
    cold_start(c, c->cold, share);
}

// The second, of what follows the first, unless that is in memory.
static void cold_start_next(struct queue_server_consumer *c)
{
    const struct queue_replica *r = c->server->replica;
    const uint64_t share = cold_share(r->service);
    if (!c->cold || c->cold_next || share < QUEUE_COLD_BYTES) {
        return;
    }
    struct queue_cold *cold = plan(c, c->cold->last, share, true);
    struct entry e;
    if (cold->read.indexes_count > 0 && group_entry(r->handle, cold->indexes[0], &e) == RC_COLD) {
        c->cold_next = cold;
        cold_start(c, cold, share);
    } else {
        free(cold);
    }
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
    while (c->cold) {
        bool was_asked = c->cold->at == 0 && c->cold->indexes[0] == index;
        rc = cold_get(c, index, payload);
        if (rc != RC_MORE) {
            return rc;
        }
        cold_drop(c);
        if (was_asked) {
            return RC_NOT_FOUND;
        }
    }
    if (queue_service_now(r->service) < c->retry_at) {
        return RC_PENDING;
    }
    cold_start_first(c, u->number - 1);
    return RC_PENDING;
}

// The delivery without its body.
static void encode(struct buf *to, const struct queue_server_consumer *c, const struct queue_message *m)
{
    struct queue_delivery_wire w = {
        .before = c->before,
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
    uint64_t before = c->before;
    if (v->local) {
        c->cursor = c->before = m->number;
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
    c->cursor = c->before = m->number;
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
            if (c->fsm->id == 0) {
                if (!v->local) {
                    close_item(v->lane, &item);
                }
                queue_server_unreadable(v, u->number);
            }
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
        cold_drop(c);  // A consumer whose queue is empty keeps nothing of it.
    }
    cold_start_next(c);
}
