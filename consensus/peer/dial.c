// SPDX-License-Identifier: Apache-2.0
// Addresses and dialling (peer_internal.h).
//
// A peer's name is looked up by libuv's pool, never on the loop; the answer is kept, so that the redial that decides
// between dead and suspect (decision 7) needs no lookup. It is asked for again after a round over all addresses failed.
// One round tries each address once, beginning with the one that worked last; the peer counts as refusing only if that
// one, or all of them, refused.
#include "consensus/peer/peer_internal.h"
#include "node/base/mem.h"
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct resolve {
    uv_getaddrinfo_t request;
    struct peer_net *net;
    struct peer *peer;  // NULL: the peer was removed or got another address meanwhile.
    uint16_t port;
};

bool address_split(const char *address, char *host, size_t host_max, uint16_t *port_out)
{
    const char *colon = strrchr(address, ':');
    if (!colon || colon[1] < '0' || colon[1] > '9') {
        return false;
    }
    char *end = NULL;
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (*end != 0 || port > UINT16_MAX) {
        return false;
    }
    size_t len = (size_t)(colon - address);
    if (len >= 2 && address[0] == '[' && address[len - 1] == ']') {
        address++;
        len -= 2;
    }
    if (len >= host_max) {
        return false;
    }
    memcpy(host, address, len);
    host[len] = 0;
    *port_out = (uint16_t)port;
    return true;
}

bool address_is_good(const char *address)
{
    char host[PEER_ADDRESS_MAX + 1];
    uint16_t port = 0;
    return strlen(address) <= PEER_ADDRESS_MAX && address_split(address, host, sizeof(host), &port) && host[0] && port;
}

static void round_begin(struct peer *p)
{
    p->addr_tried = 0;
    p->is_round_refused = true;
}

static void addrs_take(struct peer *p, const struct addrinfo *list, uint16_t port)
{
    p->addrs_len = 0;
    p->addr_next = 0;
    for (const struct addrinfo *a = list; a && p->addrs_len < PEER_ADDRS_MAX; a = a->ai_next) {
        struct sockaddr_in6 *to = &p->addrs[p->addrs_len];
        if (a->ai_family == AF_INET) {
            memcpy(to, a->ai_addr, sizeof(struct sockaddr_in));
            ((struct sockaddr_in *)to)->sin_port = htons(port);
        } else if (a->ai_family == AF_INET6) {
            memcpy(to, a->ai_addr, sizeof(struct sockaddr_in6));
            to->sin6_port = htons(port);
        } else {
            continue;
        }
        p->addrs_len++;
    }
    round_begin(p);
}

static void on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *list)
{
    struct resolve *r = container_of(request, struct resolve, request);
    struct peer_net *n = r->net;
    struct peer *p = r->peer;
    if (p) {
        assert(p->resolving == r);
        p->resolving = NULL;
        if (status == 0) {
            addrs_take(p, list, r->port);
        }
        for (int i = 0; i < LANE_COUNT; i++) {
            struct lane *l = &p->lanes[i];
            if (p->addrs_len > 0) {
                l->retry_at = 0;
            } else if (!l->out) {
                lane_retry(l);
            }
        }
    }
    uv_freeaddrinfo(list);
    free(r);
    if (!n->is_closing) {
        net_wake(n);
    }
    net_handle_closed(n);
}

static void resolve_start(struct peer *p)
{
    char host[PEER_ADDRESS_MAX + 1];
    uint16_t port = 0;
    bool is_good = address_split(p->address, host, sizeof(host), &port);
    assert(is_good);  // Checked when the address was set.
    struct addrinfo a = {.ai_family = AF_INET};
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (uv_ip4_addr(host, port, &v4) == 0) {
        a.ai_addr = (struct sockaddr *)&v4;
        addrs_take(p, &a, port);
        return;
    }
    if (uv_ip6_addr(host, port, &v6) == 0) {
        a.ai_family = AF_INET6;
        a.ai_addr = (struct sockaddr *)&v6;
        addrs_take(p, &a, port);
        return;
    }
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct resolve *r = mem_zalloc(sizeof(*r));
    r->net = p->net;
    r->peer = p;
    r->port = port;
    if (uv_getaddrinfo(p->net->loop, &r->request, on_resolved, host, NULL, &hints) != 0) {
        free(r);
        return;
    }
    p->net->handles++;
    p->resolving = r;
}

void dial_forget(struct peer *p)
{
    p->addrs_len = 0;
    if (p->resolving) {
        p->resolving->peer = NULL;
        (void)uv_cancel((uv_req_t *)&p->resolving->request);  // Too late is fine: the answer finds no peer.
        p->resolving = NULL;
    }
}

void lane_retry(struct lane *l)
{
    uint64_t now = net_now(l->peer->net);
    const struct liveness *live = &l->peer->liveness;
    if (l->id == LANE_CONTROL && live->is_closed && live->verdict != NODE_DEAD &&
        now - live->closed_at < LIVENESS_REFUSED_NS) {
        // A dying process may still accept for a moment before its port refuses.
        l->retry_at = now + DIAL_EAGER_NS;
        return;
    }
    uint64_t next = l->backoff_ns * 2;
    next = next < DIAL_BACKOFF_MIN_NS ? DIAL_BACKOFF_MIN_NS : next;
    l->backoff_ns = next > DIAL_BACKOFF_MAX_NS ? DIAL_BACKOFF_MAX_NS : next;
    l->retry_at = now + l->backoff_ns;
}

static void dial_failed(struct lane *l, bool is_refused, uint64_t begun_at)
{
    struct peer *p = l->peer;
    bool is_known_good = p->addr_tried == 0 && p->is_greeted;
    p->is_round_refused = p->is_round_refused && is_refused;
    p->addr_next = (p->addr_next + 1) % p->addrs_len;
    p->addr_tried++;
    bool is_round_over = p->addr_tried >= p->addrs_len;
    if (is_refused && l->id == LANE_CONTROL && (is_known_good || (is_round_over && p->is_round_refused))) {
        struct liveness_out out;
        liveness_refused(&p->liveness, net_now(p->net), begun_at, &out);
        peer_verdicts(p, &out);
        if (p->is_removed) {
            return;
        }
    }
    if (is_round_over) {
        round_begin(p);
        lane_retry(l);
        if (l->backoff_ns >= DIAL_BACKOFF_MAX_NS) {
            p->addrs_len = 0;  // It may have moved: look the name up again.
        }
    } else {
        l->retry_at = net_now(p->net);
    }
}

void lane_dial_failed(struct lane *l, bool is_refused)
{
    uint64_t begun_at = l->out->begun_at;
    link_close(l->out);
    assert(l->out == NULL);
    net_wake(l->peer->net);  // For the next one: nothing else may be due.
    if (l->peer->addrs_len == 0) {
        lane_retry(l);  // The addresses were dropped meanwhile.
        return;
    }
    dial_failed(l, is_refused, begun_at);
}

void lane_dial(struct lane *l)
{
    assert(l->out == NULL);
    struct peer *p = l->peer;
    struct peer_net *n = p->net;
    if (p->resolving) {
        l->retry_at = UINT64_MAX;  // The answer sets it.
        return;
    }
    if (p->addrs_len == 0) {
        resolve_start(p);
        if (p->resolving || p->addrs_len == 0) {
            l->retry_at = p->resolving ? UINT64_MAX : net_now(n) + DIAL_BACKOFF_MAX_NS;
            return;
        }
    }
    const struct sockaddr *to = (const struct sockaddr *)&p->addrs[p->addr_next];
    n->metrics.dials++;
    uint64_t begun_at = net_now(n);
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        lane_retry(l);  // Out of descriptors: says nothing of the peer.
        return;
    }
    int one = 1;
    unsigned int timeout_ms = LINK_STALL_NS / 1000000;
    // Both only sharpen timing; a kernel without them still works.
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
    socklen_t len = to->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (connect(fd, to, len) != 0 && errno != EINPROGRESS) {
        bool is_refused = errno == ECONNREFUSED;
        close(fd);
        dial_failed(l, is_refused, begun_at);
        return;
    }
    struct link *k = link_create(n, fd, true);
    k->peer = p;
    k->lane = l->id;
    k->begun_at = begun_at;
    k->deadline = begun_at + LINK_DIAL_NS;
    l->out = k;
    list_add_tail(&n->dialling, &k->item);
    link_begin(k, UV_WRITABLE);
}
