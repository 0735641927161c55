// SPDX-License-Identifier: Apache-2.0
// One AMQP 0-9-1 connection without its socket: bytes in, bytes out, deadlines (data-plane §1.1-§1.5).
//
// The driver (listener.c, or a test) reads bytes and hands them to connection_input, writes what
// connection_output shows, calls connection_tick when connection_deadline has come, and destroys the
// connection when the socket is gone. Calls back into the driver (struct connection_io) only set flags there;
// none of them may call into the connection.
//
// Thread: the worker's. Ownership: the driver's, from connection_create to connection_destroy.
#pragma once
#include "node/amqp09/amqp09.h"
#include "node/base/block.h"
#include "node/base/list.h"
#include "node/base/map.h"
#include "node/base/rc.h"
#include "node/broker/broker.h"
#include "proto/amqp09/frame.h"
#include "proto/amqp09/method.h"
#include <sys/uio.h>

struct channel;

struct connection_io {
    void (*want_flush)(void *ctx);               // There is output since the last connection_output_taken.
    void (*set_reading)(void *ctx, bool is_on);  // Stop reading the socket / go on.
    // No more will come: write what is left (unless is_abrupt), close the socket, destroy the connection.
    void (*close)(void *ctx, bool is_abrupt);
    void *ctx;
};

struct connection_peer {
    char host[64], peer_host[64];  // Numeric addresses.
    uint16_t port, peer_port;
    bool is_loopback;  // The peer's address.
};

enum connection_state {
    CONNECTION_HEADER,    // Nothing or part of the protocol header has come.
    CONNECTION_STARTING,  // start sent
    CONNECTION_TUNING,    // tune sent
    CONNECTION_OPENING,   // tune-ok seen
    CONNECTION_RUNNING,   // open-ok sent
    CONNECTION_CLOSING,   // We sent close and wait for close-ok.
    CONNECTION_SILENT,    // To be dropped without a word at `state_deadline`.
    CONNECTION_CLOSED,    // io.close was called.
};

// Why the socket is not read: bits of connection.pauses.
enum {
    PAUSE_OUTPUT = 1,   // The client does not read what we write.
    PAUSE_BLOCKED = 2,  // A resource alarm (connection.blocked).
    PAUSE_PARTIAL = 4,  // Too many half-arrived bodies on this worker.
};

// Deliveries in the output, in order, so that queues learn what the socket took. Neighbours of one consumer
// are joined.
struct taken_mark {
    uint64_t channel_serial;
    uint64_t end;    // send_oct once the last byte is taken.
    uint64_t bytes;  // Body bytes of the messages.
    uint32_t consumer;
    uint16_t channel;
};

// A part of a large body, to be sent before the byte of `out` with number `at` (counted from the beginning).
struct output_piece {
    uint64_t at;
    struct block *block;  // Held.
    struct span bytes;    // What is left of it.
};

struct connection {
    struct list link;          // amqp09.connections
    struct list resume_link;   // amqp09.resumed: unpaused, with input left in `rest`.
    struct list partial_link;  // amqp09.partials: holds half-arrived bodies.
    struct amqp09 *service;
    struct connection_io io;
    struct connection_peer peer;
    uint64_t id;  // Unique in the worker.
    enum connection_state state;

    // Input
    struct buf rest;       // Bytes received and not yet parsed: part of a frame, or everything while paused.
    size_t need;           // Bytes in all that the frame at the start of the unparsed input needs.
    uint32_t payload_max;  // Largest frame payload accepted now.
    uint32_t pauses;       // PAUSE_ bits.
    uint32_t throttles;    // Channels' reasons to pause: full sessions, too many waiting frames.
    bool is_reading;       // As last told to the driver.
    bool has_backlog;      // `rest` was left in a pause: nothing more is read before it was parsed.
    bool is_parsing;       // connection_input is on the stack.
    struct list held;      // channel.held_link: contents that point into the input being parsed.
    uint64_t partial_bytes;  // Bytes of half-arrived bodies.

    // Output
    struct buf out;
    size_t out_pos;     // Taken by the socket of `out`.
    uint64_t out_gone;  // Bytes that were in `out` before those that are there now.
    // Bodies that are shared instead of copied into `out`: a ring, in the order in which they go out.
    struct output_piece *pieces;
    uint32_t pieces_head, pieces_count, pieces_cap;
    size_t pieces_bytes;  // Not yet taken by the socket.
    bool is_flush_wanted;
    bool is_out_full;          // Deliveries are paused.
    struct taken_mark *marks;  // Ring.
    uint32_t marks_head, marks_count, marks_cap;

    // Negotiated
    uint16_t channel_max, heartbeat_s;
    uint32_t frame_max;
    bool has_close_on_login_failure, has_cancel_notify, has_blocked;  // Client's capabilities.
    bool is_blocked_told;
    struct buf client_properties;
    struct span client_name;  // connection_name of the client properties; points into them.
    char mechanism[16];
    struct broker_user user;
    struct span user_name;       // Points into `user`.
    struct span vhost_name;      // Owned.
    struct broker_vhost *vhost;  // Looked up at `vhost_version`; see connection_vhost.
    uint64_t vhost_version;
    char name[160];  // "peer:port -> host:port"

    // Channels
    struct map channels;           // number -> struct channel
    struct list channel_list;      // channel.link
    struct channel *channel_last;  // Cache of the last lookup; may be NULL.

    // Time, monotonic ns
    uint64_t state_deadline;                  // Handshake, close-ok or silence; UINT64_MAX: none.
    uint64_t beat_send_at, beat_check_at;     // Next checks; UINT64_MAX: no heartbeats.
    uint64_t beat_sent_seen, beat_recv_seen;  // Counters at the last check.
    uint32_t beat_missed;                     // Checks in a row without input.

    // Counted
    uint64_t recv_oct, recv_cnt, send_oct, send_cnt;
    int64_t connected_at_ms;
};

// `peer` is copied. The connection reads from the start.
struct connection *connection_create(struct amqp09 *s, const struct connection_io *io,
                                     const struct connection_peer *peer);
void connection_destroy(struct connection *c);

// Takes all of `in` (what cannot be parsed now is copied).
void connection_input(struct connection *c, struct span in);
// What is to be written next, and how much of it was. Large bodies lie outside the buffer: the output may be
// in parts, of which this is the first; connection_output_parts gives up to `max` of them and returns how many.
struct span connection_output(const struct connection *c);
int connection_output_parts(const struct connection *c, struct iovec *parts, int max);
size_t connection_output_waiting(const struct connection *c);  // Bytes of all parts.
void connection_output_taken(struct connection *c, size_t n);
// Monotonic ns of the next tick; UINT64_MAX: none.
uint64_t connection_deadline(const struct connection *c);
void connection_tick(struct connection *c);

// ---- for channels and the service ---------------------------------------------------------------

// The output to append frames to; asks for a flush. Finish with connection_out_done.
static inline struct buf *connection_out(struct connection *c)
{
    return &c->out;
}
void connection_out_done(struct connection *c);
// Appends the frames of a content; shares a large body that lies in a block.
void connection_content(struct connection *c, uint16_t channel, struct span properties, struct span body);
void connection_output_drop(struct connection *c);  // Frees all of it.
// Records that the output appended last carries `bytes` of a consumer's message.
void connection_mark_delivery(struct connection *c, const struct channel *ch, uint32_t consumer,
                              uint64_t bytes);

// Closes the connection with an error: connection.close with "NAME - text", channels are gone at once.
// `method` is the offending method's id or 0.
void connection_fail(struct connection *c, uint16_t code, uint32_t method, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
// Reads a method frame; false: the connection has failed.
MUST_USE bool connection_read_method(struct connection *c, struct span payload, struct amqp_method *m);
bool connection_is_paused(const struct connection *c);  // Nothing is parsed now.
void connection_reading_changed(struct connection *c);  // Tells the driver if that changed.
bool connection_is_open(const struct connection *c);    // Running: frames of channels are taken.
// A reason to pause came or went (channels count in `throttles`).
void connection_set_pause(struct connection *c, uint32_t bit, bool is_on);
void connection_throttle(struct connection *c, int change);
// Parses what was left while paused. Called by amqp09_turn_begin.
void connection_resume(struct connection *c);
struct channel *connection_channel(struct connection *c, uint16_t number);  // NULL if there is none.
struct broker_vhost *connection_vhost(struct connection *c);                // NULL if it has been deleted.
void connection_forget_channel(struct connection *c, struct channel *ch);
// A content header or body has come: while an alarm is on the client is told and no longer read.
void connection_note_publish(struct connection *c);
void connection_set_blocked(struct connection *c, uint32_t alarms);  // Alarms changed.
const char *connection_state_name(const struct connection *c);

// connection_handshake.c: methods on channel 0 before the connection runs.
void handshake_begin(struct connection *c);  // The header was ours: sends start.
void handshake_method(struct connection *c, const struct amqp_method *m);
// Drops the connection after the silent delay (data-plane §1.2).
void handshake_drop(struct connection *c);
