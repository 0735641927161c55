// SPDX-License-Identifier: Apache-2.0
// The network seam of a worker: frames to and from other nodes. The real one is consensus/peer; the simulator's is
// tests/sim/sim_net.c.
//
// Each node pair has lanes, each a TCP connection of its own per direction: control (beats, votes, joins: never behind
// data), log (appends, acks), session (queue sessions), bulk (snapshots). Frames of one lane arrive in the order sent,
// or the lane is reset and the upcall `reset` says so. Delivery is not guaranteed across a reset.
// Thread: the worker that owns the net.
#pragma once
#include "node/base/rc.h"
#include "proto/frame.h"
#include <sys/uio.h>

enum net_lane { LANE_CONTROL, LANE_LOG, LANE_SESSION, LANE_BULK, LANE_COUNT };

// What a node's program can do, announced in its hello (feature_level); each level includes those below it. A node that
// is to be asked for something newer than the first level is looked up here first.
enum net_level {
    NET_LEVEL_FIRST = 1,
    NET_LEVEL_SESSION_TAKEN = 2,  // It answers parts of session frames with FRAME_SESSION_TAKEN.
    NET_LEVEL_SESSION_NEW = 3,    // It knows FRAME_SESSION_NEW.
    NET_LEVEL_OWN = NET_LEVEL_SESSION_NEW,
};

struct net {
    // Sends one frame. The envelope is copied; the raw ranges are borrowed until net_flush returns, then copied if they
    // could not be written. If `raw_crc` the sum is computed and appended (session frames).
    // RC_NOT_CONNECTED, RC_FULL (LIMIT_LANE_OUTPUT_BYTES; `writable` is called when there is room again).
    enum rc (*send)(struct net *n, uint32_t node, enum net_lane lane, enum frame_type type, struct span envelope,
                    const struct iovec *raw, int raw_count, bool raw_crc);
    // Writes what was sent in this turn. Call once at the end of a loop turn.
    void (*flush)(struct net *n);
    // Bytes sent but not yet taken by the socket.
    size_t (*queued)(struct net *n, uint32_t node, enum net_lane lane);
    bool (*is_connected)(struct net *n, uint32_t node, enum net_lane lane);
    // Sends whole encoded frames, borrowed until flush returns, beyond the bound too (whoever gathered them kept it).
    // May be NULL: with one worker nobody asks for it. RC_NOT_CONNECTED.
    enum rc (*send_encoded)(struct net *n, uint32_t node, enum net_lane lane, struct span frames);
    // The level of the node that greeted last under that id (enum net_level, or a later one); 0: none has. It is known
    // before the reset of a lane is called. May be NULL: every node is of our own level.
    uint32_t (*level)(struct net *n, uint32_t node);
};

enum node_verdict {
    NODE_ALIVE,    // Beats arrive and it hears ours.
    NODE_SUSPECT,  // Reset or silent for too long.
    NODE_DEAD,     // Known to be gone: refused, or back under a higher incarnation (then ALIVE follows).
};

// Upcalls of a net; each worker registers one struct.
struct net_upcalls {
    // A whole, verified frame. `f` is borrowed for the call.
    void (*frame)(void *ctx, uint32_t node, enum net_lane lane, const struct frame *f);
    // The lane to `node` was (re)connected: what was in flight before is lost.
    void (*reset)(void *ctx, uint32_t node, enum net_lane lane);
    void (*writable)(void *ctx, uint32_t node, enum net_lane lane);
    // The failure detector's verdict changed (decision 7). A node is alive only after a handshake.
    void (*node_state)(void *ctx, uint32_t node, enum node_verdict verdict, uint64_t incarnation);
    void *ctx;
};
