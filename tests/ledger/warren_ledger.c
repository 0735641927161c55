// SPDX-License-Identifier: Apache-2.0
// warren-ledger: clients of a cluster that keep books. On every node a publisher and (unless its prefetch is
// 0) a consumer for each queue, one publisher to all queues by amq.fanout, and a prober; they come back
// whenever their connection ends. It is led by lines on standard input and prints one line of JSON for
// everything that happens:
//
//   probe ID     fresh connections publish to and get from every queue on every node; prints a line `probe`
//   when all is done pause QUEUE / resume QUEUE   its consumers go away, come back kick N       N connections
//   of publishers and consumers end without a word status       counters stop S       no more publishing;
//   waits up to S seconds until every confirmed message was delivered, closes in good
//                order, prints `report` and ends
//
// The queues must exist, with a delivery limit that some requeueing does not reach.
#include "tests/ledger/ledger.h"
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct ledger ledger;
struct client clients[CLIENTS_MAX];
int clients_count;
bool is_stopping;
static uint64_t begun_ns, stop_ns, random_state = 88172645463325252u;
static bool is_over;

static const char usage_text[] =
    "usage: warren-ledger --node NAME=HOST:PORT... --queue NAME:RATE:SIZE:LARGE:PREFETCH:HOLD... [--seed N]\n"
    "  RATE per publisher and second, SIZE at most, LARGE of 1,000 messages have 300 to 700 kB,\n"
    "  PREFETCH 0: no consumers, HOLD: so many are acknowledged late and out of order\n";

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
double run_s(void)
{
    return (double)(now_ns() - begun_ns) / 1e9;
}
uint64_t draw(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state >> 11) % below;
}
void say(const char *event, const char *format, ...)
{
    printf("{\"event\":\"%s\",\"t\":%.3f,", event, run_s());
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("}\n");
    fflush(stdout);
}

static bool node_add(const char *text)
{
    struct node_plan *n = &ledger.nodes[ledger.nodes_count];
    return ledger.nodes_count < NODES_MAX &&
           sscanf(text, "%31[^=]=%63[^:]:%d", n->name, n->host, &n->port) == 3 && ++ledger.nodes_count > 0;
}
static bool queue_add(const char *text)
{
    struct queue_plan *q = &ledger.queues[ledger.queues_count];
    return ledger.queues_count < QUEUES_MAX &&
           sscanf(text, "%63[^:]:%lf:%lu:%u:%d:%d", q->name, &q->rate, &q->size, &q->large_of_1000,
                  &q->prefetch, &q->hold) == 6 &&
           q->prefetch < UNACKED_MAX && q->hold <= q->prefetch && ++ledger.queues_count > 0;
}

static void client_add(enum role role, int node, int queue)
{
    static const char *const roles[] = {"publisher", "consumer", "prober"};
    assert(clients_count < CLIENTS_MAX);
    struct client *c = &clients[clients_count++];
    *c = (struct client){
        .role = role, .node = node, .queue = queue, .fd = -1, .is_wanted = role != ROLE_PROBER};
    if (role != ROLE_PUBLISHER) {
        c->consumer = ledger.consumers_count++;
    }
    snprintf(c->name, sizeof(c->name), "%s %s %s", roles[role], ledger.nodes[node].name,
             queue == TO_ALL_QUEUES ? "all" : ledger.queues[queue].name);
}

static void command(const char *line)
{
    char name[64];
    unsigned number;
    double seconds;
    if (sscanf(line, "probe %u", &number) == 1) {
        probe_begin(number);
    } else if (sscanf(line, "pause %63s", name) == 1 || sscanf(line, "resume %63s", name) == 1) {
        const bool is_pause = line[0] == 'p';
        for (int i = 0; i < clients_count; i++) {
            struct client *c = &clients[i];
            if (c->role == ROLE_CONSUMER && strcmp(ledger.queues[c->queue].name, name) == 0) {
                ledger.queues[c->queue].is_paused = is_pause;
                c->is_wanted = !is_pause;
                if (is_pause) {
                    client_close(c);
                }
            }
        }
    } else if (sscanf(line, "kick %u", &number) == 1) {
        while (number-- > 0) {
            struct client *c = &clients[draw((uint64_t)clients_count)];
            if (c->role != ROLE_PROBER && c->fd >= 0) {
                client_drop(c, draw(2) == 0);
            }
        }
    } else if (strncmp(line, "status", 6) == 0) {
        ledger_report("status");
    } else if (sscanf(line, "stop %lf", &seconds) == 1) {
        for (int q = 0; q < ledger.queues_count; q++) {
            ledger.queues[q].is_paused = false;
        }
        for (int i = 0; i < clients_count; i++) {
            clients[i].is_wanted = clients[i].role == ROLE_CONSUMER;
        }
        is_stopping = true;
        stop_ns = now_ns() + (uint64_t)(seconds * 1e9);
    } else {
        say("refused", "\"line\":\"?\"");
    }
}

static void read_commands(void)
{
    static char text[4096];
    static size_t len;
    const ssize_t n = read(STDIN_FILENO, text + len, sizeof(text) - 1 - len);
    if (n <= 0) {
        is_over = n == 0 || (errno != EAGAIN && errno != EINTR);
        return;
    }
    len += (size_t)n;
    text[len] = '\0';
    for (char *end; (end = strchr(text, '\n')) != NULL;) {
        *end = '\0';
        command(text);
        len -= (size_t)(end + 1 - text);
        memmove(text, end + 1, len + 1);
    }
}

// After `stop`: first what is published is confirmed and delivered, with consumers connecting again if need
// be; then all close. Returns false once everything is closed.
static bool stop_step(uint64_t now)
{
    static uint64_t quiet_ns, consumed;
    static bool is_closing;
    bool is_settled = ledger.missing == 0;
    int open = 0;
    for (int i = 0; i < clients_count; i++) {
        struct client *c = &clients[i];
        open += c->fd >= 0;
        is_settled &= c->unacked_count == 0 && c->out_at == c->out.len;
        if (c->role == ROLE_PUBLISHER && c->state == STATE_READY) {
            is_settled &= ledger.streams[c->stream]->next == ledger.streams[c->stream]->first_open;
        }
    }
    if (!is_settled || ledger.consumed != consumed) {
        quiet_ns = now;
        consumed = ledger.consumed;
    }
    if (!is_closing && (now - quiet_ns > 1000000000u || now > stop_ns)) {
        is_closing = true;
        stop_ns = now + 5000000000u;
        for (int i = 0; i < clients_count; i++) {
            clients[i].is_wanted = false;
            client_close(&clients[i]);
        }
    }
    return !is_closing || (open > 0 && now < stop_ns);
}

static void loop_once(void)
{
    struct pollfd fds[CLIENTS_MAX + 1];
    const uint64_t now = now_ns();
    for (int i = 0; i < clients_count; i++) {
        struct client *c = &clients[i];
        client_step(c, now);
        if (c->state > STATE_CONNECTING) {
            client_write(c);
        }
        const bool is_writing = c->state == STATE_CONNECTING || c->out_at < c->out.len;
        fds[i] = (struct pollfd){.fd = c->fd, .events = (short)(POLLIN | (is_writing ? POLLOUT : 0))};
    }
    fds[clients_count] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(fds, (nfds_t)clients_count + 1, 2) <= 0) {
        return;
    }
    for (int i = 0; i < clients_count; i++) {
        struct client *c = &clients[i];
        if (fds[i].fd < 0 || fds[i].revents == 0 || c->fd != fds[i].fd) {
            continue;
        }
        if (c->state == STATE_CONNECTING) {
            client_connected(c);
        } else if ((fds[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
            client_read(c);
        }
    }
    if (fds[clients_count].revents != 0) {
        read_commands();
    }
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"node", 1, NULL, 'n'}, {"queue", 1, NULL, 'q'}, {"seed", 1, NULL, 's'}, {NULL, 0, NULL, 0}};
    bool is_good = true;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        is_good &= o == 'n' ? node_add(optarg) : o == 'q' ? queue_add(optarg) : o == 's';
        if (o == 's') {
            random_state ^= strtoull(optarg, NULL, 10) * 0x9e3779b97f4a7c15u;
        }
    }
    if (!is_good || optind != argc || ledger.nodes_count == 0 || ledger.queues_count == 0) {
        fputs(usage_text, stderr);
        return 64;
    }
    signal(SIGPIPE, SIG_IGN);
    fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
    begun_ns = ledger.nonce = now_ns();
    for (int n = 0; n < ledger.nodes_count; n++) {
        for (int q = 0; q < ledger.queues_count; q++) {
            client_add(ROLE_PUBLISHER, n, q);
            if (ledger.queues[q].prefetch > 0) {
                client_add(ROLE_CONSUMER, n, q);
            }
        }
        client_add(ROLE_PUBLISHER, n, TO_ALL_QUEUES);
        client_add(ROLE_PROBER, n, TO_ALL_QUEUES);
    }
    while (!is_over && (stop_ns == 0 || stop_step(now_ns()))) {
        loop_once();
        if (probe_is_on()) {
            probe_step(now_ns());
        }
    }
    ledger_report("report");
    return 0;
}
