// SPDX-License-Identifier: Apache-2.0
// What the two halves of the lanes share: queue_lane.c (out) and queue_lane_in.c (in). Only for these two; queue_lane.h is the
// contract.
#pragma once
#include "node/queue/queue_lane.h"
#include "proto/cluster_queue.pb-c.h"

// One frame to `node`, outside of any lane's order; fills e->version. The net borrows `raw` until the end of the turn. RC_FULL:
// not sent, later; else there is no connection.
MUST_USE enum rc queue_lane_send(struct queue_lanes *l, uint32_t node, enum frame_type type, Cluster__SessionFrame *e,
                                 struct span raw);

void queue_lanes_in_init(struct queue_lanes *l);
void queue_lanes_in_deinit(struct queue_lanes *l);
// The connection to `node` is a new one: what was said to it about parts is said again.
void queue_lanes_in_reset(struct queue_lanes *l, uint32_t node);
// Tells the senders of parts how far we are, if owes_answer.
void queue_lanes_answer(struct queue_lanes *l);
