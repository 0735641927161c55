// SPDX-License-Identifier: Apache-2.0
// What the session files (client, link, replica, deliver, service) share among themselves. Not for others.
//
// Thread: all of it belongs to the service's worker.
#pragma once
#include "node/queue/queue_fsm.h"
#include "node/queue/queue_lane.h"
#include "node/queue/queue_pending.h"

enum {
    QUEUE_CHECK_NS = 50000000,             // How often waiting sessions look at their clocks.
    QUEUE_ATTACH_TIMEOUT_NS = 200000000,   // No answer to an attach: try elsewhere.
    QUEUE_RETRY_MIN_NS = 2000000,          // Between tries to find a leader; doubles,
    QUEUE_RETRY_MAX_NS = 100000000,        // up to this.
    QUEUE_POLL_NS = 1000000,               // Something full is looked at again.
    QUEUE_HELD_BYTES = 8 << 20,            // Publishes of other nodes a group holds while it is full.
    QUEUE_COLD_BYTES = 256 << 10,          // One cold read-ahead of a consumer,
    QUEUE_COLD_BYTES_MIN = 16 << 10,       // which shrinks to this, so that
    QUEUE_COLD_ALL_BYTES = 8 << 20,        // those of all consumers of a worker are about this.
    QUEUE_COLD_INDEXES = 256,
    QUEUE_TAKEN_STEP_BYTES = LIMIT_REMOTE_CONSUMER_WINDOW / 4,  // The leader is told of taken bytes in such steps.
    QUEUE_CREDIT_STEP = LIMIT_PREFETCH_UNLIMITED / 4,           // Messages per credit command.
    QUEUE_SETTLE_RANGES = 4096,            // In one command.
    QUEUE_DELETED_GROUPS = 4096,           // Deleted groups remembered, to answer sessions that come late.
};
#define QUEUE_ANSWER_TIMEOUT_NS 2000000000ull  // Commands unanswered: attach again, but for a leader on this worker.
// A live node takes no part of what is large: its lane begins anew. What its connection holds in front of the parts, our
// output and two sockets' buffers, is less than 20 MiB: a line of 6 Mbit/s gets there in time, and one that takes nothing
// at all is closed by the net long before.
#define QUEUE_TAKEN_TIMEOUT_NS 30000000000ull
#define QUEUE_TAKEN_DOUBLINGS 4  // 8 minutes.

struct queue_server;

// ---- client side -------------------------------------------------------------------------------------------------

enum queue_session_state { SESSION_SEEKING, SESSION_ATTACHING, SESSION_ATTACHED, SESSION_ENDED };

// Finds the leader of one group for the sessions and questions of this worker.
struct queue_link {
    struct queue_service *service;
    uint64_t group;
    struct queue_target target;
    struct list sessions;       // All of them.
    uint32_t users;             // Sessions and questions.
    uint32_t leader_node;       // Believed; 0 unknown.
    uint32_t next_member;       // Round robin when nothing is known.
    uint64_t retry_at;          // While in service->seeking.
    uint64_t retry_ns;
    struct list seeking;
};

// Where to talk to: a leader on this worker, or a lane.
struct queue_place {
    struct queue_replica *local;
    struct queue_lane *lane;
    uint32_t node;
};

struct queue_client_consumer {
    uint32_t id;
    bool is_no_ack;
    bool has_credit;       // Prefetch 0: topped up by credit commands.
    bool is_ready;         // consume_done was called.
    bool is_cancelling;
    bool wants_resume;     // A gap was seen; to be reported in the next turn.
    uint64_t resumed_at;   // When a gap was last reported; 0: nothing is missing.
    uint64_t last;         // Delivery number.
    uint64_t taken;        // Bytes since attach or resume,
    uint64_t told;         // and what of it the leader was told.
    uint64_t waiting;      // Bytes delivered and not taken.
    uint64_t carry;        // Bytes taken that do not make up the front message yet.
    uint32_t uncredited;   // Messages taken since the last credit command.
    uint32_t *sizes;       // Ring: bytes of the messages that make up `waiting`.
    uint32_t sizes_head, sizes_count, sizes_cap;
};

struct queue_query {
    struct list link;
    uint8_t kind;          // QUEUE_COMMAND_GET or PURGE.
    bool is_no_ack;
    bool is_answered;      // number and ready are known.
    uint64_t token;
    uint64_t after;        // Publishes up to this seq must be applied first.
    uint64_t seq;          // 0: not handed in yet.
    uint64_t number, ready;
};

struct queue_session {
    struct queue_service *service;
    struct queue_link *link;
    struct list in_link;
    struct list dirty;            // In service->dirty_sessions.
    struct queue_session_id id;
    struct queue_callbacks cb;
    void *ctx;
    enum queue_session_state state;
    bool is_closing;              // Mute: no call backs.
    bool is_end_sent;             // END is among the pending commands.
    bool was_open;
    bool was_full;                // queue_session_is_full said true.
    bool is_paused;
    bool is_pause_dirty;          // is_paused was not sent.
    bool needs_query;             // Applied but the answer is missing: attach again.
    uint32_t attach;
    struct queue_place place;     // While not SEEKING.
    struct queue_server *server;  // At a leader on this worker, while attached there.
    uint64_t asked_at;            // When the attach was sent, the last answer came, or sending began.
    struct queue_pending pending[QUEUE_STREAMS];
    uint64_t sent[QUEUE_STREAMS];     // Last seq sent in this attach.
    uint64_t applied[QUEUE_STREAMS];
    struct map consumers;         // id -> struct queue_client_consumer.
    struct queue_client_consumer *recent;
    struct queue_settle_wire *settles;
    uint32_t settles_count, settles_cap;
    struct list queries;          // First may be handed in.
};

// queue_service_info.c
void queue_question_item(struct queue_service *q, const struct queue_item *item);
void queue_questions_turn(struct queue_service *q, uint64_t now);
uint64_t queue_questions_next(const struct queue_service *q);  // When the next one wants a turn.
void queue_questions_abort(struct queue_service *q);

struct queue_question {  // queue_info_get.
    struct list link;
    struct queue_link *target;
    uint64_t token;
    uint64_t deadline;
    uint64_t ask_at;
    uint32_t asked_node;
    queue_info_fn *done;
    void *ctx;
};

// Messages from the leader's side; `attach` guards all but ended. Any may call back.
// `ahead`: so many publishes behind seq[QUEUE_STREAM_PUBLISH] the leader has.
void queue_client_attached(struct queue_session *s, uint32_t attach, const uint64_t seq[QUEUE_STREAMS], uint32_t ahead,
                           const struct queue_seq_range *rejected, uint32_t rejected_count);
void queue_client_not_leader(struct queue_session *s, uint32_t attach, uint32_t from_node, uint32_t hint);
void queue_client_refused(struct queue_session *s, uint32_t attach);
void queue_client_ended(struct queue_session *s, bool is_deleted);
void queue_client_applied(struct queue_session *s, uint32_t attach, const uint64_t seq[QUEUE_STREAMS],
                          const struct queue_seq_range *rejected, uint32_t rejected_count);
void queue_client_query(struct queue_session *s, uint32_t attach, const struct queue_query_wire *w);
void queue_client_deliver(struct queue_session *s, uint32_t attach, uint32_t consumer, uint64_t before, const struct queue_message *m);
void queue_client_expect(struct queue_session *s, uint32_t attach, uint32_t stream, uint64_t seq);
void queue_client_item(struct queue_service *q, const struct queue_item *item);

void queue_session_mark(struct queue_session *s);      // Wants a turn.
void queue_session_turn(struct queue_session *s);      // Hands in what waits; may free a closed one.
void queue_session_check(struct queue_session *s, uint64_t now);  // Time-outs.
void queue_session_seek(struct queue_session *s);      // Detach; look for the leader.
void queue_session_attach(struct queue_session *s, const struct queue_place *place);
bool queue_session_waits(const struct queue_session *s);  // For an answer: its clock runs.
void queue_session_destroy(struct queue_session *s);   // At once, silently.

struct queue_link *queue_link_get(struct queue_service *q, const struct queue_target *t);  // One more user.
void queue_link_put(struct queue_link *l);
void queue_link_seek(struct queue_link *l, uint64_t at);
bool queue_link_turn(struct queue_link *l, uint64_t now);  // True: found, or nobody asks; leaves the seeking list.
bool queue_link_place(struct queue_link *l, struct queue_place *out);
void queue_link_failed(struct queue_link *l, uint32_t node, uint32_t hint);
void queue_link_leader(struct queue_service *q, uint64_t group, uint32_t leader_node);  // The local replica knows.
void queue_link_node_lost(struct queue_service *q, uint32_t node, bool is_down);
void queue_link_deleted(struct queue_service *q, uint64_t group);

// ---- leader's side -----------------------------------------------------------------------------------------------

struct queue_cold;  // A read-ahead from disk.

struct queue_server_consumer {
    struct queue_server *server;
    struct queue_fsm_consumer *fsm;
    struct list link;        // server->consumers.
    struct list dirty;       // leading->dirty_consumers.
    uint64_t cursor;         // Last number sent or skipped; UINT64_MAX: the client does not want this one.
    uint64_t before;         // Last number sent.
    uint64_t sent, taken;    // Bytes, since attach or resume.
    uint64_t retry_at;       // Cold read failed: not before.
    struct queue_cold *cold, *cold_next;  // The second only beside the first; it holds what comes after.
};

// One attached session at the leader.
struct queue_server {
    struct queue_replica *replica;
    struct queue_session_id id;
    uint32_t attach;
    struct queue_lane *lane;      // NULL: local.
    struct queue_session *local;
    struct queue_fsm_session *fsm;  // NULL while opening.
    struct list link;             // leading->servers.
    struct list opening;          // leading->opening, while fsm is NULL.
    struct list dirty;            // leading->dirty_servers.
    struct list stopped;          // leading->stopped: commands were dropped; asked for again when there is room.
    bool is_stopped[QUEUE_STREAMS];
    bool is_expecting[QUEUE_STREAMS];  // EXPECT was sent and nothing came yet.
    bool is_paused;
    bool send_applied, send_query;
    uint64_t accepted[QUEUE_STREAMS];  // Proposed, or held.
    uint64_t proposed_index;           // Of the last one accepted; 0 if it is held.
    struct list consumers;
};

struct queue_serving {  // What a leader needs for sessions.
    struct list servers;
    struct list opening;            // Those of servers whose session is not in the state yet.
    struct list dirty_servers, dirty_consumers, stopped;
    struct queue_pending held;      // Publishes that found the group full.
};

struct queue_leading {
    struct queue_serving *serving;  // From the first server on, until a turn finds it empty.
    struct list in_service;         // service->leading.
    struct list dirty;              // service->dirty_leads.
    struct queue_replica *replica;
    int64_t stamp_ms;               // Last one given out.
    uint64_t nodes_at;              // When to look at the nodes again; 0 now.
    uint64_t continue_index;        // A CONTINUE is on its way.
    uint64_t configure_index;
    uint64_t down_index;            // A NODE_DOWN is.
};

struct queue_replica {
    uint64_t group;  // First: the key in service->replicas.
    struct queue_service *service;
    void *owner;
    struct group *handle;
    struct queue_fsm *fsm;            // NULL while it is plain: queue_replica_state, queue_replica_machine.
    int64_t plain_stamp_ms;           // What a plain state still has: its stamp, and plain_version.
    struct queue_settings *wanted;    // Newer than the state's; NULL: the state has them.
    struct queue_leading *leading;    // While leader and ready.
    uint64_t term;                    // As of the last role call.
    uint64_t applied;
    uint32_t plain_version;           // settings.metadata_version of a plain state.
    bool is_leader;                   // By the last role call; maybe not ready.
    bool is_restoring;                // A snapshot is being loaded: service->restores has its struct queue_restore.
};
static_assert(sizeof(struct queue_replica) <= 88, "an idle queue costs one small struct (engine-notes 7.9)");

// The machine as it is, to be read, but for the stamp and the settings' version (below); until the next machine or settle.
const struct queue_fsm *queue_replica_state(const struct queue_replica *r);
int64_t queue_replica_state_stamp(const struct queue_replica *r);
// The machine itself, to be changed: made if there is none, given back by the next apply that leaves it plain.
struct queue_fsm *queue_replica_machine(struct queue_replica *r);

void queue_replica_item(struct queue_service *q, const struct queue_item *item);
// From a session on this worker; *server_out names the attachment for the calls below until it is detached.
void queue_replica_attach(struct queue_replica *r, struct queue_session *local, struct queue_lane *lane, struct queue_session_id id,
                          uint32_t attach, bool was_open, const struct queue_cursor_wire *cursors, uint32_t count);
// RC_FULL: not taken, offer it again later. RC_GAP, RC_STALE, RC_MALFORMED, RC_NOT_LEADER.
MUST_USE enum rc queue_server_command(struct queue_server *v, struct span payload);
void queue_server_taken(struct queue_server *v, uint32_t consumer, uint64_t taken);
// The message with this number, which a get took, can never be read.
void queue_server_unreadable(struct queue_server *v, uint64_t number);
void queue_server_resume(struct queue_server *v, const struct queue_cursor_wire *w);
void queue_server_pause(struct queue_server *v, bool is_paused);
void queue_server_detach_local(struct queue_server *v);  // The session goes elsewhere or is freed.
void queue_replica_turn(struct queue_replica *r, uint64_t now);  // Proposals.
void queue_replica_mark(struct queue_replica *r);  // Wants a turn. While leading.
void queue_replica_role(struct queue_replica *r, const struct consensus_status *status);
void queue_replica_lead_stop(struct queue_replica *r, uint32_t hint, bool is_deleted);
void queue_replica_lane_reset(struct queue_replica *r, uint32_t node);  // While leading.

// queue_doubt.c: a session that was open and is not in the state. True: proven, it has ended. False: not proven (yet), it is
// to attach again.
bool queue_doubt_is_ended(struct queue_replica *r, struct queue_session_id id);
void queue_doubts_lead_stop(const struct queue_replica *r);
void queue_doubts_abandon(struct queue_service *q);  // At its end.
void queue_replica_effects(struct queue_replica *r, struct queue_effects *fx);
bool queue_replica_poll_ready(struct queue_replica *r);  // True if it leads and is ready.
bool queue_replica_serves(struct queue_replica *r);      // The same, for somebody who waits: one asleep is to wake.
void queue_replica_session_opened(struct queue_replica *r, struct queue_session_id id);  // Applied.
void queue_replica_lead_start(struct queue_replica *r);
const struct fsm_ops *queue_replica_fsm_ops(void);
void queue_replica_flush(struct queue_replica *r);  // Answers and deliveries out.
struct queue_server_consumer *queue_server_consumer_find(struct queue_server *v, uint32_t consumer);

struct queue_serving *queue_replica_serving(struct queue_replica *r);  // Made if there is none. While leading.
void queue_server_free(struct queue_server *v);
void queue_server_expect(struct queue_server *v, enum queue_stream stream);  // Tells a far session where to go on.
void queue_send_not_leader(struct queue_lane *lane, uint64_t group, struct queue_session_id id, uint32_t attach, uint32_t hint);
void queue_send_ended(struct queue_lane *lane, uint64_t group, struct queue_session_id id, uint32_t attach, bool is_deleted);
uint32_t queue_replica_leader_hint(const struct queue_replica *r);  // Node; 0 unknown.
// Stamps and proposes a whole command. As group_propose.
MUST_USE enum rc queue_replica_propose(struct queue_replica *r, struct span payload, bool is_reserved, uint64_t *index);

// queue_deliver.c
void queue_deliver_pump(struct queue_server_consumer *c);
void queue_deliver_mark(struct queue_server_consumer *c);
void queue_deliver_forget(struct queue_server_consumer *c);  // Before it is freed: a cold read under way is orphaned.

// ---- service -----------------------------------------------------------------------------------------------------

struct queue_node {
    uint32_t node;
    enum node_verdict verdict;
    bool is_known;           // A verdict was heard.
    uint64_t incarnation;    // Of the verdict.
    uint64_t since;
};

struct queue_service {
    struct queue_service_config config;
    struct queue_lanes lanes;
    struct host_watcher watcher;
    struct map sessions;     // counter -> struct queue_session.
    struct map links;        // group -> struct queue_link.
    struct map replicas;     // struct queue_replica by its group.
    struct map restores;     // group -> struct queue_restore, of those that load a snapshot.
    struct map nodes;        // node id -> struct queue_node.
    struct map deleted;      // group -> itself, oldest first.
    struct list dirty_sessions, seeking, questions;
    struct list dirty_leads, leading;
    struct list doubts;      // queue_doubt.c
    struct queue_effects effects;
    struct buf scratch;
    struct buf ranges;
    uint64_t next_counter, next_token;
    uint32_t cold_count;     // Read-aheads of consumers, under way or held (queue_deliver.c).
    uint64_t check_at;       // Waiting sessions and questions are looked at; UINT64_MAX: none wait.
    uint64_t nodes_at;       // The earliest of the leading replicas' nodes_at.
    bool wants_turn;         // Something came up since the last turn.
    bool is_held_first;      // Fairness between local sessions and held publishes of others, turn about.
    bool is_stopping;
    struct queue_metrics metrics;
};
uint64_t queue_service_now(const struct queue_service *q);
void queue_service_arm_check(struct queue_service *q);
struct queue_node *queue_service_node(struct queue_service *q, uint32_t node);
