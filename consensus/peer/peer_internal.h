// SPDX-License-Identifier: Apache-2.0
// What the files of the net share: peer_net.c (table of peers, timer, public calls), link.c (one connection), dial.c
// (addresses and dialling), listen.c (the port). Not for other folders. Thread: the loop's.
//
// A link is one TCP connection. It ends by link_lost (policy: what the peer's detector and the lane's redial
// make of it), which ends in link_close (mechanics: detaches it, frees it once libuv lets go). After any
// upcall the link or the peer may be gone: links are then CLOSED, peers `is_removed`; both stay allocated
// until the loop's next turn.
#pragma once
#include "consensus/peer/handshake.h"
#include "consensus/peer/output.h"
#include "consensus/peer/peer_net.h"
#include "node/base/list.h"
#include "node/base/map.h"
#include <netinet/in.h>

#define LINK_DIAL_NS 1000000000ull      // A connect that takes longer has failed.
#define LINK_GREETING_NS 3000000000ull  // A connection that has not proven itself by then is closed.
#define LINK_STALL_NS 2000000000ull     // Output that makes no progress this long: the lane is reopened (decision 7).
#define DIAL_BACKOFF_MIN_NS 20000000ull
#define DIAL_BACKOFF_MAX_NS 500000000ull
#define DIAL_EAGER_NS 2000000ull        // Between redials while the detector still waits for a refusal.
#define NET_LATE_NS 200000000ull       // Running this much behind time, the loop reads before it judges silence.
#define NET_LOG_NS 10000000000ull       // At most one line per kind and this time for what strangers can cause.

enum {
    LINK_READ_MIN = 16 << 10,   // Receive buffer of a quiet link.
    LINK_READ_MAX = 1 << 20,    // Grows to this under load; larger only for a larger frame.
    LINK_READS_PER_TURN = 4,    // Then other handles get their turn,
    LINK_READ_TURN = 512 << 10,  // or once this much came: large messages take longest where they are copied.
    LINK_GREETINGS_MAX = 256,   // Accepted and unproven; beyond, the oldest is closed.
    LINK_ACCEPTS_PER_TURN = 64,
    PEER_ADDRS_MAX = 8,
    PEER_BEAT_OUTPUT_MAX = 64 << 10,  // Beats are skipped while this much is unsent on the control lane.
};

enum link_state { LINK_CONNECTING, LINK_GREETING, LINK_OPEN, LINK_CLOSED };

struct link {
    struct list item;            // In net->greetings while accepted and unproven, or in net->dialling.
    struct peer_net *net;
    struct peer *peer;           // NULL while accepted and unproven, and after link_close.
    enum net_lane lane;          // Known from the start if dialled, else from the proof on.
    bool is_dialled;
    enum link_state state;
    struct transport transport;
    uv_poll_t poll;
    int poll_events;             // As asked of libuv.
    struct handshake *greeting;  // NULL once OPEN.
    uint8_t *in;                 // Receive buffer; unparsed bytes are in[in_pos..in_len).
    size_t in_cap, in_pos, in_len;
    uint64_t begun_at;           // When dialled or accepted.
    uint64_t deadline;           // For CONNECTING and GREETING.
    uint64_t read_at;            // Last bytes.
    uint64_t incarnation;        // Of the peer at the greeting.
};

struct lane {
    struct peer *peer;
    enum net_lane id;
    struct link *out;       // Ours, in any state; NULL between dials.
    struct link *in;        // The peer's, OPEN.
    struct output output;   // For `out`.
    struct list dirty;      // In net->dirty: has pieces to flush.
    bool wants_room;        // A send was refused: `writable` is due when there is room.
    uint64_t retry_at;      // Next dial if `out` is NULL.
    uint64_t backoff_ns;
    uint64_t progress_at;   // When output.taken last changed or output was empty.
    uint64_t progress_taken;
};

struct peer {
    struct list item;       // In net->peers or net->removed.
    struct peer_net *net;
    char name[PEER_NAME_MAX + 1];
    char address[PEER_ADDRESS_MAX + 1];
    uint32_t node_id;       // 0 unknown.
    bool is_id_new;         // The host has not heard of this id: peer_announce is due.
    bool is_removed;
    bool has_store_id;      // store_id is binding.
    uint8_t store_id[STORE_ID_BYTES];
    bool is_greeted;        // `hello` is valid.
    struct peer_hello hello;
    struct peer_beat beat;
    struct liveness liveness;
    uint64_t beat_at;       // Our next beat.
    enum peer_refusal refusal;         // REFUSED_NONE once it has accepted a dial of ours.
    char refusal_text[PEER_TEXT_MAX + 1];
    struct lane lanes[LANE_COUNT];
    struct sockaddr_in6 addrs[PEER_ADDRS_MAX];  // Big enough for either family.
    uint32_t addrs_len, addr_next, addr_tried;  // Round over the addresses; addr_next is where the last success was.
    bool is_round_refused;  // Every address of this round refused so far.
    struct resolve *resolving;
};

struct peer_net {
    struct net net;
    uv_loop_t *loop;
    const struct clock *clock;
    void (*random)(void *to, uint64_t bytes);
    struct buf secret;
    struct peer_hello self;
    const struct net_upcalls *upcalls;
    struct peer_net_hooks hooks;
    struct list peers, removed;     // struct peer.item
    struct map by_id;               // node id -> struct peer
    uint32_t peers_len;
    struct list greetings;          // struct link.item: accepted, unproven; oldest first.
    struct list dialling;           // struct link.item: dialled, not open.
    uint32_t greetings_len;
    struct list dirty;              // struct lane.dirty
    uv_poll_t listener;
    int listener_fd;
    bool is_listener_paused;        // Out of descriptors: not polled until the next beat.
    uint16_t port;
    uv_timer_t timer;
    uint64_t next_at;               // What the timer is set to; 0: run at once.
    bool is_changed;                // hooks.changed is due.
    bool is_running;                // In net_run.
    bool is_closing;
    uint32_t handles;               // libuv handles and requests not yet closed.
    void (*closed)(void *ctx);
    void *closed_ctx;
    uint64_t malformed_logged_at, stranger_logged_at;
    struct peer_net_metrics metrics;
};

// peer_net.c
uint64_t net_now(const struct peer_net *n);
void net_run(struct peer_net *n);        // Does what is due and sets the timer. At the end of every libuv callback.
void net_wake(struct peer_net *n);       // net_run in the loop's next turn.
void net_handle_closed(struct peer_net *n);
void net_changed(struct peer_net *n);
void lane_flush(struct lane *l);

// peer.c
struct peer *peer_find(struct peer_net *n, const char *name);
// A stranger or known peer of that name; NULL if there are too many.
struct peer *peer_obtain(struct peer_net *n, const char *name, const char *address);
// Takes it out of the tables; freed by net_run, when nobody up the stack can hold it.
void peer_drop(struct peer *p);
void peer_free(struct peer *p);
void peer_set_id(struct peer *p, uint32_t node_id);
// Tells the host what it missed while the peer had no id.
void peer_announce(struct peer *p);
// A fellow member's node id and store id bind from now on.
void peer_learn(struct peer *p);
void peer_verdicts(struct peer *p, const struct liveness_out *out);
void peer_beat_send(struct peer *p);
// Takes a believed hello. REFUSED_NONE, or why not and *text.
enum peer_refusal peer_greet(struct peer *p, const struct peer_hello *h, char *text);
void peer_hello_store(struct peer *p, const struct peer_hello *h);
void peer_refused(struct peer *p, enum peer_refusal why, const char *text, bool is_by_peer);

// link.c
struct link *link_create(struct peer_net *n, int fd, bool is_dialled);
void link_begin(struct link *l, int events);
void link_close(struct link *l);
void link_lost(struct link *l);
void link_poll(struct link *l);
void link_greet_as_dialler(struct link *l);
void link_shrink(struct link *l, uint64_t now);

// listen.c
enum rc listener_open(struct peer_net *n, const char *address);
void listener_watch(struct peer_net *n);

// dial.c
void lane_dial(struct lane *l);
void lane_retry(struct lane *l);
// The connect of the lane's dial failed. Ends the link.
void lane_dial_failed(struct lane *l, bool is_refused);
void dial_forget(struct peer *p);  // Addresses known and lookups under way.
// "host:port", "[v6]:port". False if it is not of that shape.
bool address_split(const char *address, char *host, size_t host_max, uint16_t *port_out);
bool address_is_good(const char *address);  // It splits into a host and a port other than 0.
