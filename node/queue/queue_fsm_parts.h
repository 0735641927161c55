// SPDX-License-Identifier: Apache-2.0
// What the files of the state machine share among themselves. Not for others.
#pragma once
#include "node/queue/queue_fsm.h"

struct queue_effect *queue_effect_push(struct queue_effects *fx, enum queue_effect_kind kind);  // NULL if fx is.
void queue_effect_applied(struct queue_effects *fx, struct queue_fsm_session *s);

// queue_fsm.c: where messages go.
bool queue_fsm_pop_head(struct queue_fsm *f, struct queue_returned *out);  // Off the ready list, in delivery order.
void queue_fsm_drop(struct queue_fsm *f, queue_ref ref);                   // The message is gone for good.
void queue_fsm_return(struct queue_fsm *f, const struct queue_unsettled *u, bool is_acquired, bool is_failed);

// queue_fsm_consumer.c
struct queue_fsm_consumer *queue_consumer_add(struct queue_fsm *f, struct queue_fsm_session *s, uint32_t id,
                                              int32_t priority, struct span tag);
void queue_consumer_attach(struct queue_fsm *f, struct queue_fsm_session *s, const struct queue_command *c,
                           struct queue_effects *fx);
void queue_consumer_cancel(struct queue_fsm *f, struct queue_fsm_consumer *c, struct queue_effects *fx);
void queue_consumer_settle(struct queue_fsm *f, struct queue_fsm_consumer *c,
                           const struct queue_settle_wire *w, struct queue_effects *fx);
void queue_consumer_end(struct queue_fsm *f, struct queue_fsm_consumer *c, bool is_failed, struct queue_effects *fx);
// Head of ready -> c.
uint64_t queue_consumer_take(struct queue_fsm *f, struct queue_fsm_consumer *c, struct queue_effects *fx);
void queue_consumer_push(struct queue_fsm_consumer *c, struct queue_unsettled u);
void queue_consumer_refresh(struct queue_fsm *f, struct queue_fsm_consumer *c);  // In or out of the waiting list.
void queue_consumer_choose_active(struct queue_fsm *f);
void queue_fsm_checkout(struct queue_fsm *f, struct queue_effects *fx);

// queue_fsm_session.c
struct queue_fsm_session *queue_session_add(struct queue_fsm *f, struct queue_session_id id);
void queue_session_remove(struct queue_fsm *f, struct queue_fsm_session *s, bool is_failed, struct queue_effects *fx);
struct queue_fsm_node *queue_node_record(struct queue_fsm *f, uint32_t node, uint32_t worker);  // Makes it.
void queue_session_open_apply(struct queue_fsm *f, struct queue_session_id id, struct queue_effects *fx);
void queue_node_down_apply(struct queue_fsm *f, uint32_t node, uint64_t incarnation, struct queue_effects *fx);
void queue_session_reject(struct queue_fsm_session *s, uint64_t seq);
void queue_session_known(struct queue_fsm_session *s, uint64_t known);
