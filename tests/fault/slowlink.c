// SPDX-License-Identifier: Apache-2.0
// slowlink IF-A IF-B DELAY_MS KBYTES_PER_S: carries Ethernet frames between two interfaces, both ways, late
// and no faster than that.
//
// Problem: a slow line between hosts, where the kernel has no netem. Idea: a host's port is taken off the
// bridge and joined to it again through this program. Frames pass as they are, with their offload header
// (PACKET_VNET_HDR), so that sums that a network card would compute stay right. What finds more than
// QUEUE_BYTES waiting is dropped, as a router does.
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { QUEUE_BYTES = 512 << 10, FRAME_BYTES = 10 + 66000 };

struct frame {
    struct frame *next;
    uint64_t due_ns;
    size_t len;
    uint8_t bytes[];
};
struct way {
    int from, to;
    struct frame *first, **last;
    size_t queued;
    uint64_t free_ns;  // When the line has taken everything so far.
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int open_interface(const char *name)
{
    const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0), one = 1, size = 4 << 20;
    const int index = (int)if_nametoindex(name);
    const struct packet_mreq all = {.mr_ifindex = index, .mr_type = PACKET_MR_PROMISC};
    const struct sockaddr_ll at = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = index};
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
    if (fd < 0 || index == 0 || setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one)) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof(all)) != 0 ||
        bind(fd, (const struct sockaddr *)&at, sizeof(at)) != 0) {
        perror(name);
        exit(1);
    }
    return fd;
}

static void take(struct way *w, uint64_t delay_ns, double bytes_per_ns)
{
    static uint8_t bytes[FRAME_BYTES];
    for (ssize_t n; (n = recv(w->from, bytes, sizeof(bytes), 0)) > 0;) {
        if (w->queued + (size_t)n > QUEUE_BYTES) {
            continue;
        }
        const uint64_t now = now_ns();
        w->free_ns = (w->free_ns > now ? w->free_ns : now) + (uint64_t)((double)n / bytes_per_ns);
        struct frame *f = malloc(sizeof(*f) + (size_t)n);
        if (f == NULL) {
            exit(1);
        }
        *f = (struct frame){.due_ns = w->free_ns + delay_ns, .len = (size_t)n};
        memcpy(f->bytes, bytes, (size_t)n);
        *w->last = f;
        w->last = &f->next;
        w->queued += (size_t)n;
    }
}

static void give(struct way *w)
{
    const uint64_t now = now_ns();
    for (struct frame *f; (f = w->first) != NULL && f->due_ns <= now;) {
        (void)!send(w->to, f->bytes, f->len, 0);  // A frame lost here is one more that the line has lost.
        w->first = f->next;
        w->last = w->first == NULL ? &w->first : w->last;
        w->queued -= f->len;
        free(f);
    }
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        return 64;
    }
    const int a = open_interface(argv[1]), b = open_interface(argv[2]);
    const uint64_t delay_ns = strtoull(argv[3], NULL, 10) * 1000000;
    const double bytes_per_ns = strtod(argv[4], NULL) * 1000 / 1e9;
    struct way ways[2] = {{.from = a, .to = b}, {.from = b, .to = a}};
    ways[0].last = &ways[0].first;
    ways[1].last = &ways[1].first;
    for (;;) {
        struct pollfd fds[2] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};
        const int wait = ways[0].first != NULL || ways[1].first != NULL ? 1 : 1000;
        (void)poll(fds, 2, wait);
        for (int i = 0; i < 2; i++) {
            take(&ways[i], delay_ns, bytes_per_ns);
            give(&ways[i]);
        }
    }
}
