// SPDX-License-Identifier: Apache-2.0
// The cluster port (peer_internal.h): opening it and taking connections off it, a bounded number unproven at a time.
// Out of descriptors the port is left alone until the next beat: the loop must not spin on it.
#include "consensus/peer/peer_internal.h"
#include "node/base/log.h"
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <unistd.h>

static void accept_one(struct peer_net *n, int fd)
{
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));  // Only sharpens timing.
    if (n->greetings_len >= LINK_GREETINGS_MAX) {
        link_lost(list_entry(n->greetings.next, struct link, item));
    }
    struct link *l = link_create(n, fd, false);
    l->begun_at = net_now(n);
    l->deadline = l->begun_at + LINK_GREETING_NS;
    list_add_tail(&n->greetings, &l->item);
    n->greetings_len++;
    link_begin(l, UV_READABLE);
    if (n->next_at > l->deadline) {
        net_wake(n);
    }
}

static void on_listener(uv_poll_t *handle, int status, int events)
{
    struct peer_net *n = container_of(handle, struct peer_net, listener);
    (void)status;
    (void)events;
    for (int i = 0; i < LINK_ACCEPTS_PER_TURN; i++) {
        int fd = accept4(n->listener_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            accept_one(n, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            // Polling would spin: the connection stays in the backlog. Try again with the next beat.
            log_error("cluster port: cannot accept a connection: %s", strerror(errno));
            uv_poll_stop(&n->listener);
            n->is_listener_paused = true;
            net_wake(n);
        }
        break;
    }
    net_run(n);
}

void listener_watch(struct peer_net *n)
{
    n->is_listener_paused = false;
    int rc = uv_poll_start(&n->listener, UV_READABLE, on_listener);
    assert(rc == 0);
}

// At start-up, so a lookup may block.
enum rc listener_open(struct peer_net *n, const char *address)
{
    char host[PEER_ADDRESS_MAX + 1];
    uint16_t port = 0;
    if (!address_split(address, host, sizeof(host), &port)) {
        return RC_INVALID;
    }
    char service[8];
    snprintf(service, sizeof(service), "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    uv_getaddrinfo_t request;
    if (uv_getaddrinfo(n->loop, &request, NULL, host[0] ? host : NULL, service, &hints) != 0) {
        return RC_INVALID;
    }
    enum rc rc = RC_SYSTEM;
    for (struct addrinfo *a = request.addrinfo; a && n->listener_fd < 0; a = a->ai_next) {
        int one = 1;
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            continue;
        }
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));  // A restart need not wait.
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 511) == 0) {
            n->listener_fd = fd;
        } else {
            rc = errno == EADDRINUSE ? RC_BUSY : RC_SYSTEM;
            close(fd);
        }
    }
    uv_freeaddrinfo(request.addrinfo);
    if (n->listener_fd < 0) {
        return rc;
    }
    struct sockaddr_in6 at;
    socklen_t len = sizeof(at);
    if (getsockname(n->listener_fd, (struct sockaddr *)&at, &len) != 0) {
        return RC_SYSTEM;
    }
    n->port = ntohs(at.sin6_port);  // The port lies at the same place for both families.
    return RC_OK;
}
