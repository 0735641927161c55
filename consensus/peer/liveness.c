// SPDX-License-Identifier: Apache-2.0
// Failure detector of one peer (liveness.h).
//
// Problem: groups shall campaign within milliseconds of a process that is gone, not before it of one that is slow, and
// must not take a node for alive that hears nothing of us.
// Idea: a process that is gone has its connections closed by its kernel and its port refuses: that is *dead*,
// known in a round trip. A close alone may be a lost link: *suspect* if it is not back in 150 ms. Silence:
// *suspect* after 1,000 ms.
// Silence has two halves, no beats from it and no beats of ours echoed by it; a cut of one direction is the second.
//
// Verdict table (rows: now, columns: input; - is no change)
//             whole beat   close+refused   150 ms after close   silent 1 s   higher incarnation
//   suspect   alive        dead            -                    -            dead (of the old one)
//   alive     -            dead            suspect              suspect      dead (of the old one)
//   dead      alive        -               -                    -            -
// A whole beat: both control lanes are greeted and it echoes a beat of ours sent since the last of them was lost.
//
// Invariants: alive implies incarnation > 0; echo <= beat_sent; echo_floor <= beat_sent.
#include "consensus/peer/liveness.h"

static void verdict_set(struct liveness *l, enum node_verdict v, struct liveness_out *out)
{
    if (l->verdict == v) {
        return;
    }
    assert(l->incarnation > 0);
    assert(out->changes_len < 2);
    l->verdict = v;
    out->changes[out->changes_len].verdict = v;
    out->changes[out->changes_len].incarnation = l->incarnation;
    out->changes_len++;
}

static uint64_t silent_at(const struct liveness *l)
{
    return (l->heard_at < l->echo_at ? l->heard_at : l->echo_at) + LIVENESS_SILENT_NS;
}

void liveness_init(struct liveness *l)
{
    *l = (struct liveness){.verdict = NODE_SUSPECT};
}

// What was echoed before proves nothing about the lane that comes next.
static void links_forget(struct liveness *l)
{
    l->echo_floor = l->beat_sent;
}

enum rc liveness_hello(struct liveness *l, uint64_t now, uint64_t incarnation, const uint8_t *store_id,
                       struct liveness_out *out)
{
    assert(incarnation > 0);
    *out = (struct liveness_out){.changes_len = 0};
    bool is_same_store = memcmp(l->store_id, store_id, STORE_ID_BYTES) == 0;
    if (l->incarnation > 0) {
        if (is_same_store && incarnation == l->incarnation) {
            return RC_OK;
        }
        if (is_same_store && incarnation < l->incarnation) {
            return RC_STALE;
        }
        if (l->is_in_open && now - l->heard_at < LIVENESS_SILENT_NS) {
            return RC_BUSY;
        }
        verdict_set(l, NODE_DEAD, out);
    }
    l->incarnation = incarnation;
    memcpy(l->store_id, store_id, STORE_ID_BYTES);
    l->is_in_open = l->is_out_open = l->is_closed = false;
    l->beat_heard = 0;
    l->echo = 0;
    links_forget(l);
    return RC_OK;
}

void liveness_opened(struct liveness *l, uint64_t now, bool is_out, struct liveness_out *out)
{
    assert(l->incarnation > 0);
    *out = (struct liveness_out){.changes_len = 0};
    if (is_out) {
        l->is_out_open = true;
        out->is_beat_due = true;
    } else {
        l->is_in_open = true;
        l->heard_at = now;  // Its proof is as good as a beat, but says nothing of what it hears.
    }
}

void liveness_closed(struct liveness *l, uint64_t now, bool is_out, struct liveness_out *out)
{
    *out = (struct liveness_out){.changes_len = 0};
    bool *open = is_out ? &l->is_out_open : &l->is_in_open;
    if (!*open) {
        return;
    }
    *open = false;
    links_forget(l);
    // The second lane of a dying process closes moments after the first. Redials count from the last of them.
    l->is_closed = true;
    l->closed_at = now;
}

void liveness_refused(struct liveness *l, uint64_t now, uint64_t begun_at, struct liveness_out *out)
{
    *out = (struct liveness_out){.changes_len = 0};
    assert(begun_at <= now);
    // The close of the second lane may be noticed after the redial of the first has begun.
    uint64_t apart = begun_at > l->closed_at ? begun_at - l->closed_at : l->closed_at - begun_at;
    if (!l->is_closed || l->is_out_open || apart > LIVENESS_REFUSED_NS) {
        return;
    }
    verdict_set(l, NODE_DEAD, out);
}

void liveness_beat(struct liveness *l, uint64_t now, uint64_t incarnation, uint64_t number, uint64_t echo,
                   struct liveness_out *out)
{
    *out = (struct liveness_out){.changes_len = 0};
    if (incarnation != l->incarnation || !l->is_in_open || number <= l->beat_heard) {
        return;
    }
    l->beat_heard = number;
    l->heard_at = now;
    if (echo > l->echo && echo <= l->beat_sent) {
        l->echo = echo;
        if (echo > l->echo_floor) {
            l->echo_at = now;
        }
    }
    out->is_beat_due = l->verdict != NODE_ALIVE || l->is_closed;
    if (l->is_out_open && l->echo > l->echo_floor && now < silent_at(l)) {
        l->is_closed = false;
        verdict_set(l, NODE_ALIVE, out);
    }
}

uint64_t liveness_next_beat(struct liveness *l)
{
    return ++l->beat_sent;
}

void liveness_tick(struct liveness *l, uint64_t now, struct liveness_out *out)
{
    *out = (struct liveness_out){.changes_len = 0};
    if (now >= liveness_deadline(l)) {
        verdict_set(l, NODE_SUSPECT, out);
    }
}

uint64_t liveness_deadline(const struct liveness *l)
{
    if (l->verdict != NODE_ALIVE) {
        return UINT64_MAX;
    }
    uint64_t silent = silent_at(l);
    uint64_t reset = l->is_closed ? l->closed_at + LIVENESS_RESET_NS : UINT64_MAX;
    return silent < reset ? silent : reset;
}
