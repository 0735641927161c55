// SPDX-License-Identifier: Apache-2.0
// Sockets for connections: uv_poll to learn of readiness, one shared buffer to read into, one write per
// connection and turn.
//
// A connection's wishes (flush, stop reading, close) only put its client on the flush list;
// amqp09_listener_flush acts on them once the turn's work is done. A socket that is not to be read is not
// polled, so a client that is held back costs nothing, and the kernel's window holds it back in turn.
//
// Closing: what is left is written, then the sending side is shut and input is thrown away until the peer has
// closed too or two seconds have passed. Closing with unread input would make the kernel reset the
// connection, and the peer could lose our last frames.
#include "node/amqp09/listener.h"
#include "node/amqp09/connection.h"
#include "node/amqp09/service.h"
#include "node/base/limits.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/base/transport.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    BACKLOG = 1024,
    ACCEPTS_PER_EVENT = 64,  // Then others get their turn.
    LINGER_MS = 2000,        // For the peer to close after us.
    OUTPUT_PARTS = 64,       // Of one write; more than one only with large bodies,
    OUTPUT_WRITE_BYTES = 1 << 20,  // of which so much is copied into the socket in one turn.
    ACCEPT_RETRY_MS = 100,   // After running out of descriptors.
};

struct amqp09_listener {
    struct amqp09 *service;
    uv_loop_t *loop;
    uv_poll_t poll;
    int fd;
    uint16_t port;
    bool is_closing;
    uint64_t accept_again_at;  // Monotonic ns; 0: accepting.
    struct list clients;       // client.link
    struct list to_flush;      // client.flush_link
    uint32_t handles;          // uv handles not yet closed, the clients' included.
    uint8_t *input;            // LIMIT_CONNECTION_READ_BYTES, shared by all clients.
};

enum client_phase {
    CLIENT_OPEN,
    CLIENT_ENDING,     // The connection asked to close; output is still to be written.
    CLIENT_LINGERING,  // Our side is shut; waiting for the peer's.
    CLIENT_GONE,       // Handles are closing.
};

struct client {
    struct list link, flush_link;
    struct amqp09_listener *listener;
    struct connection *connection;  // NULL from LINGERING on.
    struct transport transport;
    uv_poll_t poll;
    uv_timer_t timer;
    enum client_phase phase;
    bool wants_input;      // As the connection last said.
    bool has_output_left;  // The socket did not take everything.
    bool is_abrupt;
    int polled;         // Events polled for now.
    uint64_t armed_at;  // Deadline the timer is set for; UINT64_MAX: none.
    uint8_t handles;    // Of this client not yet closed.
};

static uint64_t now_of(const struct amqp09_listener *l)
{
    return amqp09_now(l->service);
}

// ---- end of things ------------------------------------------------------------------------------

static void listener_free(struct amqp09_listener *l)
{
    if (l->is_closing && l->handles == 0) {
        assert(list_is_empty(&l->clients));
        free(l->input);
        free(l);
    }
}

static void on_client_handle_closed(uv_handle_t *handle)
{
    struct client *k = handle->data;
    struct amqp09_listener *l = k->listener;
    l->handles--;
    if (--k->handles == 0) {
        list_remove(&k->link);
        free(k);
    }
    listener_free(l);
}

static void client_end(struct client *k)
{
    if (k->phase == CLIENT_GONE) {
        return;
    }
    k->phase = CLIENT_GONE;
    list_remove(&k->flush_link);
    if (k->connection) {
        connection_destroy(k->connection);
        k->connection = NULL;
    }
    // Drops the number from its set once more: first, for another thread may have it as soon as it is closed.
    uv_close((uv_handle_t *)&k->poll, on_client_handle_closed);
    transport_close(&k->transport);
    uv_close((uv_handle_t *)&k->timer, on_client_handle_closed);
    // Still in `clients` until its handles are closed, but nothing looks at it any more.
}

static void flush_later(struct client *k)
{
    if (k->phase != CLIENT_GONE && list_is_empty(&k->flush_link)) {
        list_add_tail(&k->listener->to_flush, &k->flush_link);
    }
}

// ---- what connections ask for -------------------------------------------------------------------

static void io_want_flush(void *ctx)
{
    flush_later(ctx);
}

static void io_set_reading(void *ctx, bool is_on)
{
    struct client *k = ctx;
    k->wants_input = is_on;
    flush_later(k);
}

static void io_close(void *ctx, bool is_abrupt)
{
    struct client *k = ctx;
    k->phase = CLIENT_ENDING;
    k->is_abrupt = is_abrupt;
    flush_later(k);
}

// ---- events -------------------------------------------------------------------------------------

static void on_events(uv_poll_t *poll, int status, int events);
static void on_timer(uv_timer_t *timer);

static void poll_for(struct client *k)
{
    int events = 0;
    if (k->phase == CLIENT_LINGERING || (k->phase == CLIENT_OPEN && k->wants_input)) {
        events |= UV_READABLE;
    }
    if (k->has_output_left) {
        events |= UV_WRITABLE;
    }
    if (events == k->polled) {
        return;
    }
    k->polled = events;
    if (events == 0) {
        uv_poll_stop(&k->poll);
    } else {
        uv_poll_start(&k->poll, events, on_events);
    }
}

static void arm(struct client *k)
{
    uint64_t at = connection_deadline(k->connection);
    // A later deadline than armed for is noticed when the timer fires.
    if (at >= k->armed_at) {
        return;
    }
    k->armed_at = at;
    uint64_t now = now_of(k->listener);
    uv_update_time(k->listener->loop);
    uv_timer_start(&k->timer, on_timer, at > now ? (at - now) / 1000000 + 1 : 0, 0);
}

static void on_timer(uv_timer_t *timer)
{
    struct client *k = timer->data;
    if (k->phase == CLIENT_LINGERING || k->phase == CLIENT_ENDING) {
        client_end(k);
        return;
    }
    if (k->phase == CLIENT_OPEN) {
        k->armed_at = UINT64_MAX;
        connection_tick(k->connection);
        arm(k);
    }
}

static void read_input(struct client *k)
{
    struct amqp09_listener *l = k->listener;
    size_t got = 0;
    enum rc rc = transport_read(&k->transport, l->input, LIMIT_CONNECTION_READ_BYTES, &got);
    if (rc == RC_PENDING) {
        return;
    }
    if (rc != RC_OK) {
        client_end(k);
        return;
    }
    if (k->phase == CLIENT_OPEN) {
        connection_input(k->connection, span_of(l->input, got));
        if (k->phase == CLIENT_OPEN) {
            arm(k);
        }
    }
}

static void on_events(uv_poll_t *poll, int status, int events)
{
    struct client *k = poll->data;
    if (status < 0) {
        client_end(k);
        return;
    }
    if (events & UV_WRITABLE) {
        flush_later(k);
    }
    if (events & UV_READABLE) {
        read_input(k);
    }
}

// ---- writing ------------------------------------------------------------------------------------

// False: the peer is gone.
static bool write_output(struct client *k)
{
    k->has_output_left = false;
    struct iovec iov[OUTPUT_PARTS];
    int parts = connection_output_parts(k->connection, iov, OUTPUT_PARTS);
    if (parts == 0) {
        return true;
    }
    size_t bytes = 0;
    for (int i = 0; i < parts; i++) {
        bytes += iov[i].iov_len;
        if (i > 0 && bytes > OUTPUT_WRITE_BYTES) {
            parts = i;
        }
    }
    if (iov[0].iov_len > OUTPUT_WRITE_BYTES) {
        iov[0].iov_len = OUTPUT_WRITE_BYTES;
    }
    size_t taken = 0;
    enum rc rc = transport_writev(&k->transport, iov, parts, &taken);
    if (rc != RC_OK && rc != RC_PENDING) {
        return false;
    }
    if (taken > 0) {
        connection_output_taken(k->connection, taken);
    }
    k->has_output_left = connection_output_waiting(k->connection) > 0;
    return true;
}

static void linger(struct client *k)
{
    connection_destroy(k->connection);
    k->connection = NULL;
    k->phase = CLIENT_LINGERING;
    if (shutdown(k->transport.fd, SHUT_WR) != 0) {
        client_end(k);
        return;
    }
    k->armed_at = 0;
    uv_timer_start(&k->timer, on_timer, LINGER_MS, 0);
    poll_for(k);
}

static void client_flush(struct client *k)
{
    if (k->phase == CLIENT_LINGERING) {
        return;
    }
    if ((k->phase == CLIENT_ENDING && k->is_abrupt) || !write_output(k)) {
        client_end(k);
        return;
    }
    if (k->phase == CLIENT_ENDING && !k->has_output_left) {
        linger(k);
        return;
    }
    if (k->phase == CLIENT_ENDING && k->armed_at != 0) {
        k->armed_at = 0;  // The peer has this long to take the rest.
        uv_timer_start(&k->timer, on_timer, LINGER_MS, 0);
    }
    poll_for(k);
    if (k->phase == CLIENT_OPEN) {
        arm(k);
    }
}

static void accept_again(struct amqp09_listener *l);

uint64_t amqp09_listener_flush(struct amqp09_listener *l)
{
    struct list now;
    list_init(&now);
    list_splice(&now, &l->to_flush);
    struct list *item;
    bool has_written = false;
    while ((item = list_pop(&now))) {
        client_flush(list_entry(item, struct client, flush_link));
        has_written = true;
    }
    uint64_t next = UINT64_MAX;
    if (has_written) {
        // Queues that learnt what was taken may have something to send or to propose; paused input may go on.
        next = queue_service_next(l->service->config.queues);
        if (!list_is_empty(&l->service->resumed) || !list_is_empty(&l->service->graves) ||
            !list_is_empty(&l->to_flush)) {
            next = 0;
        }
    }
    if (l->accept_again_at != 0) {
        if (now_of(l) >= l->accept_again_at) {
            accept_again(l);
        } else if (l->accept_again_at < next) {
            next = l->accept_again_at;
        }
    }
    return next;
}

// ---- accepting ----------------------------------------------------------------------------------

static void read_address(const struct sockaddr_storage *a, char *host, size_t host_len, uint16_t *port)
{
    char service[16];
    if (getnameinfo((const struct sockaddr *)a, sizeof(*a), host, (socklen_t)host_len, service,
                    sizeof(service), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        snprintf(host, host_len, "unknown");
        *port = 0;
        return;
    }
    *port = (uint16_t)atoi(service);
    if (strncmp(host, "::ffff:", 7) == 0) {
        memmove(host, host + 7, strlen(host + 7) + 1);
    }
}

static void describe_peer(int fd, struct connection_peer *p)
{
    struct sockaddr_storage ours = {0}, theirs = {0};
    socklen_t ours_len = sizeof(ours), theirs_len = sizeof(theirs);
    if (getsockname(fd, (struct sockaddr *)&ours, &ours_len) != 0 ||
        getpeername(fd, (struct sockaddr *)&theirs, &theirs_len) != 0) {
        log_debug("a connection was gone before it was looked at");
    }
    read_address(&ours, p->host, sizeof(p->host), &p->port);
    read_address(&theirs, p->peer_host, sizeof(p->peer_host), &p->peer_port);
    p->is_loopback = strncmp(p->peer_host, "127.", 4) == 0 || strcmp(p->peer_host, "::1") == 0;
}

static void client_create(struct amqp09_listener *l, int fd)
{
    int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) != 0) {
        log_debug("socket options: %s", strerror(errno));  // Slower, not wrong.
    }
    struct client *k = mem_zalloc(sizeof(*k));
    k->listener = l;
    k->wants_input = true;
    k->armed_at = UINT64_MAX;
    list_init(&k->flush_link);
    list_add_tail(&l->clients, &k->link);
    transport_init_plain(&k->transport, fd);
    if (uv_poll_init(l->loop, &k->poll, fd) != 0) {
        list_remove(&k->link);
        transport_close(&k->transport);
        free(k);
        return;
    }
    uv_timer_init(l->loop, &k->timer);
    k->poll.data = k->timer.data = k;
    k->handles = 2;
    l->handles += 2;
    struct connection_peer peer = {0};
    describe_peer(fd, &peer);
    struct connection_io io = {
        .want_flush = io_want_flush, .set_reading = io_set_reading, .close = io_close, .ctx = k};
    k->connection = connection_create(l->service, &io, &peer);
    poll_for(k);
    arm(k);
}

static void on_accept(uv_poll_t *poll, int status, int events)
{
    struct amqp09_listener *l = poll->data;
    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            client_create(l, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            log_error("cannot accept connections: %s; raise the limit of open files", strerror(errno));
            uv_poll_stop(&l->poll);
            l->accept_again_at = now_of(l) + ACCEPT_RETRY_MS * 1000000ull;
            return;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        }
    }
}

static void accept_again(struct amqp09_listener *l)
{
    l->accept_again_at = 0;
    uv_poll_start(&l->poll, UV_READABLE, on_accept);
}

// ---- listening ----------------------------------------------------------------------------------

// "host:port", "[host]:port", ":port".
static enum rc resolve(const char *address, struct addrinfo **out)
{
    const char *colon = strrchr(address, ':');
    char host[256];
    if (!colon || colon[1] == 0 || (size_t)(colon - address) >= sizeof(host)) {
        return RC_INVALID;
    }
    size_t n = (size_t)(colon - address);
    bool has_brackets = n >= 2 && address[0] == '[' && address[n - 1] == ']';
    snprintf(host, sizeof(host), "%.*s", (int)(has_brackets ? n - 2 : n), address + (has_brackets ? 1 : 0));
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    return getaddrinfo(host[0] ? host : NULL, colon + 1, &hints, out) == 0 ? RC_OK : RC_INVALID;
}

static int listen_on(const struct addrinfo *a, bool is_shared)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    int on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        (is_shared && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) != 0) ||
        bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void on_listener_handle_closed(uv_handle_t *handle)
{
    struct amqp09_listener *l = handle->data;
    l->handles--;
    listener_free(l);
}

enum rc amqp09_listener_open(const struct amqp09_listener_config *config, struct amqp09_listener **out)
{
    struct addrinfo *addresses = NULL;
    TRY(resolve(config->address, &addresses));
    int fd = -1;
    for (const struct addrinfo *a = addresses; a && fd < 0; a = a->ai_next) {
        fd = listen_on(a, config->is_shared);
    }
    freeaddrinfo(addresses);
    if (fd < 0) {
        log_error("cannot listen on %s: %s", config->address, strerror(errno));
        return RC_SYSTEM;
    }
    struct amqp09_listener *l = mem_zalloc(sizeof(*l));
    l->service = config->service;
    l->loop = config->loop;
    l->fd = fd;
    l->input = mem_alloc(LIMIT_CONNECTION_READ_BYTES);
    list_init(&l->clients);
    list_init(&l->to_flush);
    struct sockaddr_storage ours = {0};
    socklen_t len = sizeof(ours);
    char host[64];
    if (getsockname(fd, (struct sockaddr *)&ours, &len) == 0) {
        read_address(&ours, host, sizeof(host), &l->port);
    }
    if (uv_poll_init(l->loop, &l->poll, fd) != 0) {
        close(fd);
        free(l->input);
        free(l);
        return RC_SYSTEM;
    }
    l->poll.data = l;
    l->handles = 1;
    uv_poll_start(&l->poll, UV_READABLE, on_accept);
    *out = l;
    return RC_OK;
}

uint16_t amqp09_listener_port(const struct amqp09_listener *l)
{
    return l->port;
}

void amqp09_listener_stop(struct amqp09_listener *l)
{
    if (l->fd < 0) {
        return;
    }
    uv_close((uv_handle_t *)&l->poll, on_listener_handle_closed);  // First, as in client_end.
    close(l->fd);
    l->fd = -1;
    l->accept_again_at = 0;
}

void amqp09_listener_close(struct amqp09_listener *l)
{
    assert(!l->is_closing);
    l->is_closing = true;
    amqp09_listener_stop(l);
    list_each(item, &l->clients)
    {
        client_end(list_entry(item, struct client, link));
    }
    listener_free(l);  // If it was stopped long ago and nobody is left.
}
