// SPDX-License-Identifier: Apache-2.0
// The failure detector of one peer (decision 7, engine-notes §7.5): hears of beats and links, says alive,
// suspect, dead.
//
// Pure: time comes in as `now` (monotonic ns), verdicts go out in `struct liveness_out`. All verdicts are hints.
// Owner thread: whoever owns the peer. No allocation.
#pragma once
#include "consensus/host/net.h"
#include <stdbool.h>
#include <stdint.h>

#define LIVENESS_BEAT_NS 100000000ull      // A beat is due this long after the last one.
#define LIVENESS_REFUSED_NS 20000000ull    // A redial begun this soon after a close and refused means dead.
#define LIVENESS_RESET_NS 150000000ull     // Closed, not refused, not back: suspect.
#define LIVENESS_SILENT_NS 1000000000ull   // No beat, or no new echo of ours: suspect.

enum { STORE_ID_BYTES = 16 };

struct liveness {
    uint64_t incarnation;              // Of the peer, from its last hello; 0 before the first.
    uint8_t store_id[STORE_ID_BYTES];  // Likewise.
    enum node_verdict verdict;         // NODE_SUSPECT until it has been alive once.
    bool is_in_open;                   // Its control lane to us is greeted.
    bool is_out_open;                  // Ours to it is greeted.
    bool is_closed;                    // A greeted control lane was lost and the peer not been heard whole since.
    uint64_t closed_at;                // When, if is_closed.
    uint64_t heard_at;                 // Last beat.
    uint64_t echo_at;                  // Last beat that proved a newer beat of ours was heard.
    uint64_t beat_heard;               // Highest beat number of this incarnation: what our beats echo.
    uint64_t beat_sent;                // Number of our last beat.
    uint64_t echo;                     // Highest of our numbers it has heard.
    uint64_t echo_floor;               // Echoes up to here are from before a link was lost and prove nothing.
};

struct liveness_out {
    struct {
        enum node_verdict verdict;
        uint64_t incarnation;  // The one the verdict is about.
    } changes[2];              // In order.
    uint8_t changes_len;
    bool is_beat_due;          // Answer with a beat at once: the peer waits for an echo.
};

void liveness_init(struct liveness *l);

// The peer greeted, in a handshake of any lane in either direction. Higher incarnation or other store id: the one known
// before is dead and both control lanes count as closed. RC_STALE: lower than one seen before (an older copy of its
// disk). RC_BUSY: the incarnation known so far is still heard, so two processes claim one identity (or the old one's
// last bytes have not been read yet; it may try again). After an error nothing has changed.
MUST_USE enum rc liveness_hello(struct liveness *l, uint64_t now, uint64_t incarnation, const uint8_t *store_id,
                                struct liveness_out *out);
// A control lane has been greeted / lost after that. `is_out`: the one we dialled.
void liveness_opened(struct liveness *l, uint64_t now, bool is_out, struct liveness_out *out);
void liveness_closed(struct liveness *l, uint64_t now, bool is_out, struct liveness_out *out);
// A redial of the control lane, begun at `begun_at`, was refused by the peer's host.
void liveness_refused(struct liveness *l, uint64_t now, uint64_t begun_at, struct liveness_out *out);
// A beat arrived. One of another incarnation than the greeted one is ignored.
void liveness_beat(struct liveness *l, uint64_t now, uint64_t incarnation, uint64_t number, uint64_t echo,
                   struct liveness_out *out);
// Number for the beat that is sent now.
uint64_t liveness_next_beat(struct liveness *l);
// Time has passed.
void liveness_tick(struct liveness *l, uint64_t now, struct liveness_out *out);
// When liveness_tick must be called at the latest; UINT64_MAX: never.
uint64_t liveness_deadline(const struct liveness *l);
