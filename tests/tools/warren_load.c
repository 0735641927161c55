// SPDX-License-Identifier: Apache-2.0
// warren-load: load for tests of size, memory and time. Producers with a window of confirms and consumers
// that acknowledge, on connections of their own, to one queue; clients that stop reading; prints one line of
// JSON at the end.
//
// It checks as it goes: every confirmed message must come, none twice without the redelivered flag, in the
// order of its producer, with the body that was sent. Latencies of deliveries are from the moment the message
// was built, so that time spent in the client's own output counts; at a full window they say how long the
// queues are and not how fast the broker is.
#include "tests/tools/load.h"
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static const uint64_t CLOSE_NS = 2000000000;
static volatile sig_atomic_t is_stopped;

static void on_signal(int number)
{
    (void)number;
    is_stopped = 1;
}

static const char usage_text[] =
    "usage: warren-load [options]\n"
    "  --publish-port P[,P...]  --consume-port P[,P...]   5672; connections take them in turn\n"
    "  --queue NAME             load (declared durable)   --no-declare\n"
    "  --queues N               1; more: NAME-0, NAME-1, ..., which each producer's messages take in turn\n"
    "  --producers N            1      --consumers N      1\n"
    "  --size BYTES             1000   --window N         1000 open confirms per producer; 0: no confirms\n"
    "  --rate N                 messages per second and producer; 0: as fast as the window allows\n"
    "  --count N                messages per producer; 0: for --seconds S (10)\n"
    "  --drain S                wait this long for confirms and deliveries that are missing (5)\n"
    "  --prefetch N             1000   --ack-every N      1\n"
    "  --hold N                 the first N deliveries of each consumer are never acknowledged\n"
    "  --deaf-producers         producers never read their sockets and know no window\n"
    "  --deaf-consumers-after N consumers read no more after N deliveries\n"
    "  --declare N              the producers declare N queues NAME-0, NAME-1, ... in place of publishing, each with\n"
    "                           --window of them open; --passive: looks at them\n"
    "  --backlog                publishes --count, prints {\"event\":\"filled\"}, and consumes once a line came on standard\n"
    "                           input; --drain S: ends after so long without a delivery\n"
    "  --every-second           prints what was done in each second, each pause of more than a second between deliveries, and\n"
    "                           each queue that waited so long while the others had more than 1000 a queue\n";

static int ports_read(const char *text, int *ports)
{
    int count = 0;
    for (const char *p = text; count < 16; p++) {
        ports[count++] = (int)strtol(p, (char **)&p, 10);
        if (*p != ',') {
            break;
        }
    }
    return count;
}

enum {
    OPT_PUBLISH_PORT = 256,
    OPT_CONSUME_PORT,
    OPT_QUEUE,
    OPT_NO_DECLARE,
    OPT_PRODUCERS,
    OPT_CONSUMERS,
    OPT_SIZE,
    OPT_WINDOW,
    OPT_RATE,
    OPT_COUNT,
    OPT_SECONDS,
    OPT_DRAIN,
    OPT_PREFETCH,
    OPT_ACK_EVERY,
    OPT_HOLD,
    OPT_DEAF_PRODUCERS,
    OPT_DEAF_CONSUMERS,
    OPT_DECLARE,
    OPT_PASSIVE,
    OPT_QUEUES,
    OPT_BACKLOG,
    OPT_EVERY_SECOND
};

static const struct option long_options[] = {{"publish-port", 1, NULL, OPT_PUBLISH_PORT},
                                             {"consume-port", 1, NULL, OPT_CONSUME_PORT},
                                             {"queue", 1, NULL, OPT_QUEUE},
                                             {"no-declare", 0, NULL, OPT_NO_DECLARE},
                                             {"producers", 1, NULL, OPT_PRODUCERS},
                                             {"consumers", 1, NULL, OPT_CONSUMERS},
                                             {"size", 1, NULL, OPT_SIZE},
                                             {"window", 1, NULL, OPT_WINDOW},
                                             {"rate", 1, NULL, OPT_RATE},
                                             {"count", 1, NULL, OPT_COUNT},
                                             {"seconds", 1, NULL, OPT_SECONDS},
                                             {"drain", 1, NULL, OPT_DRAIN},
                                             {"prefetch", 1, NULL, OPT_PREFETCH},
                                             {"ack-every", 1, NULL, OPT_ACK_EVERY},
                                             {"hold", 1, NULL, OPT_HOLD},
                                             {"deaf-producers", 0, NULL, OPT_DEAF_PRODUCERS},
                                             {"deaf-consumers-after", 1, NULL, OPT_DEAF_CONSUMERS},
                                             {"declare", 1, NULL, OPT_DECLARE},
                                             {"passive", 0, NULL, OPT_PASSIVE},
                                             {"queues", 1, NULL, OPT_QUEUES},
                                             {"backlog", 0, NULL, OPT_BACKLOG},
                                             {"every-second", 0, NULL, OPT_EVERY_SECOND},
                                             {NULL, 0, NULL, 0}};

static bool option_set(struct options *o, int option, const char *value)
{
    switch (option) {
    case OPT_PUBLISH_PORT:
        o->publish_ports_count = ports_read(value, o->publish_ports);
        break;
    case OPT_CONSUME_PORT:
        o->consume_ports_count = ports_read(value, o->consume_ports);
        break;
    case OPT_QUEUE:
        o->queue = value;
        break;
    case OPT_NO_DECLARE:
        o->has_declare = false;
        break;
    case OPT_PRODUCERS:
        o->producers = atoi(value);
        break;
    case OPT_CONSUMERS:
        o->consumers = atoi(value);
        break;
    case OPT_SIZE:
        o->size = strtoull(value, NULL, 10);
        break;
    case OPT_WINDOW:
        o->window = strtoull(value, NULL, 10);
        break;
    case OPT_RATE:
        o->rate = atof(value);
        break;
    case OPT_COUNT:
        o->count = strtoull(value, NULL, 10);
        break;
    case OPT_SECONDS:
        o->seconds = atof(value);
        break;
    case OPT_DRAIN:
        o->drain_s = atof(value);
        break;
    case OPT_PREFETCH:
        o->prefetch = atoi(value);
        break;
    case OPT_ACK_EVERY:
        o->ack_every = atoi(value);
        break;
    case OPT_HOLD:
        o->hold = strtoull(value, NULL, 10);
        break;
    case OPT_DEAF_PRODUCERS:
        o->is_deaf_producer = true;
        break;
    case OPT_DEAF_CONSUMERS:
        o->deaf_consumer_after = strtoull(value, NULL, 10);
        break;
    case OPT_DECLARE:
        o->declare = strtoull(value, NULL, 10);
        o->has_declare = false;
        o->consumers = 0;
        break;
    case OPT_PASSIVE:
        o->is_passive = true;
        break;
    case OPT_QUEUES:
        o->queues = atoi(value);
        break;
    case OPT_BACKLOG:
        o->is_backlog = true;
        break;
    case OPT_EVERY_SECOND:
        o->is_every_second = true;
        break;
    default:
        return false;
    }
    return true;
}

static struct options options = {.queue = "load",
                                 .queues = 1,
                                 .user = "guest",
                                 .password = "guest",
                                 .publish_ports = {5672},
                                 .publish_ports_count = 1,
                                 .consume_ports = {5672},
                                 .consume_ports_count = 1,
                                 .producers = 1,
                                 .consumers = 1,
                                 .prefetch = 1000,
                                 .ack_every = 1,
                                 .size = 1000,
                                 .window = 1000,
                                 .seconds = 10,
                                 .drain_s = 5,
                                 .deaf_consumer_after = UINT64_MAX,
                                 .has_declare = true};
static struct totals totals;
static struct connection connections[CONNECTIONS_MAX];

// One round of the loop: publishes what is due, waits for sockets, reads and writes.
static void step(int count, uint64_t begun_ns, bool is_publishing)
{
    struct pollfd fds[CONNECTIONS_MAX];
    const uint64_t now = now_ns();
    watch_step(now);
    bool has_rate = false;
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        if (c->is_producer && is_publishing && !c->is_failed && options.declare > 0) {
            declarer_send(c, now);
        } else if (c->is_producer && is_publishing && !c->is_failed) {
            producer_publish(c, begun_ns, now);
            has_rate |= options.rate > 0;
        }
        if (!c->is_failed) {
            connection_write(c);
        }
        fds[i] = (struct pollfd){
            .fd = c->is_failed ? -1 : c->fd,
            .events = (short)((c->is_deaf ? 0 : POLLIN) | (c->out_at < c->out.len ? POLLOUT : 0))};
    }
    const struct timespec wait = {.tv_nsec = has_rate ? 200000 : 5000000};
    if (ppoll(fds, (nfds_t)count, &wait, NULL) <= 0) {
        return;
    }
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        if ((fds[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !c->is_failed && !c->is_deaf) {
            connection_read(c);
        } else if ((fds[i].revents & (POLLHUP | POLLERR)) != 0) {
            connection_fail(c, "port %d: reset", c->port);
        }
    }
}

// Confirmed messages that no consumer saw.
static uint64_t lost_count(void)
{
    uint64_t lost = 0;
    for (int i = 0; i < options.producers; i++) {
        for (uint64_t n = 0; n < connections[i].next; n++) {
            lost += bits_has(&connections[i].confirmed, n) && !bits_has(&connections[i].seen, n);
        }
    }
    return lost;
}

static bool is_drained(void)
{
    if (options.window > 0 && !options.is_deaf_producer &&
        totals.confirmed + totals.nacked < totals.published) {
        return false;
    }
    if (options.consumers == 0 || options.deaf_consumer_after != UINT64_MAX) {
        return true;
    }
    return totals.consumed >= totals.published - totals.nacked &&
           (options.is_deaf_producer || lost_count() == 0);
}

static void print_latency(const char *name, const struct histogram *h, const char *end)
{
    printf("\"%s\":{\"p50\":%.3f,\"p99\":%.3f,\"p999\":%.3f,\"max\":%.3f}%s", name,
           histogram_quantile_ms(h, 0.5), histogram_quantile_ms(h, 0.99), histogram_quantile_ms(h, 0.999),
           (double)h->max_us / 1000.0, end);
}

static void print_result(double seconds, uint64_t confirmed, uint64_t consumed)
{
    printf("{\"seconds\":%.2f,\"published\":%llu,\"confirmed\":%llu,\"nacked\":%llu,\"consumed\":%llu,"
           "\"redelivered\":%llu,\"held\":%llu,"
           "\"lost\":%llu,\"duplicates\":%llu,\"disordered\":%llu,\"corrupt\":%llu,\"failed\":%llu,\"error\":"
           "\"%s\",\"confirm_per_s\":%.0f,\"consume_per_s\":%.0f,",
           seconds, (unsigned long long)totals.published, (unsigned long long)totals.confirmed,
           (unsigned long long)totals.nacked, (unsigned long long)totals.consumed,
           (unsigned long long)totals.redelivered, (unsigned long long)totals.held,
           (unsigned long long)(options.consumers > 0 ? lost_count() : 0),
           (unsigned long long)totals.duplicates, (unsigned long long)totals.disordered,
           (unsigned long long)totals.corrupt, (unsigned long long)totals.failed, totals.error,
           (double)confirmed / seconds, (double)consumed / seconds);
    print_latency("confirm_ms", &totals.confirm, ",");
    print_latency("delivery_ms", &totals.delivery, "}\n");
}

// Closes in good order whoever still reads, so that the last acknowledgements count.
static void close_all(int count, uint64_t begun_ns)
{
    int open = 0;
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        if (!c->is_failed && !c->is_deaf) {
            connection_close(c);
            open++;
        }
    }
    const uint64_t end = now_ns() + CLOSE_NS;
    while (open > 0 && now_ns() < end) {
        step(count, begun_ns, false);
        open = 0;
        for (int i = 0; i < count; i++) {
            open += !connections[i].is_closed && !connections[i].is_failed && !connections[i].is_deaf;
        }
    }
}

static void names_make(void)
{
    options.names = calloc((size_t)options.queues, sizeof(*options.names));
    assert(options.names != NULL);
    for (int i = 0; i < options.queues; i++) {
        const int n = options.queues == 1 ? asprintf(&options.names[i], "%s", options.queue)
                                          : asprintf(&options.names[i], "%s-%d", options.queue, i);
        assert(n >= 0);
    }
}

static void names_free(void)
{
    for (int i = 0; i < options.queues; i++) {
        free(options.names[i]);
    }
    free(options.names);
}

// Says that everything is there, waits to be told, and lets the consumers begin. False: nobody is there to tell.
static bool backlog_begin(int count, double seconds)
{
    printf("{\"event\":\"filled\",\"seconds\":%.2f,\"confirmed\":%llu}\n", seconds,
           (unsigned long long)totals.confirmed);
    fflush(stdout);
    char line[16];
    if (fgets(line, sizeof(line), stdin) == NULL) {
        return false;
    }
    for (int i = options.producers; i < count; i++) {
        consumer_start(&connections[i]);
    }
    watch_start(&options, &totals, now_ns());
    return true;
}

int main(int argc, char **argv)
{
    for (int option; (option = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
        if (!option_set(&options, option, optarg)) {
            fputs(usage_text, stderr);
            return 64;
        }
    }
    const int count = options.producers + options.consumers;
    if (optind != argc || options.size < BODY_HEAD_BYTES || options.producers < 0 || options.consumers < 0 ||
        count > CONNECTIONS_MAX || options.ack_every < 1 || options.queues < 1 ||
        (options.is_backlog && (options.count == 0 || options.window == 0 || options.declare > 0)) ||
        (options.declare > 0 && (options.window == 0 || options.producers == 0 || options.consumers > 0))) {
        fputs(usage_text, stderr);
        return 64;
    }
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    const uint64_t id = now_ns();  // Producers of another run are strangers.
    names_make();
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        const bool is_producer = i < options.producers;
        *c = (struct connection){.options = &options,
                                 .totals = &totals,
                                 .number = (uint64_t)i,
                                 .id = id + (uint64_t)i,
                                 .producers = connections,
                                 .producers_count = options.producers};
        c->port = is_producer ? options.publish_ports[i % options.publish_ports_count]
                              : options.consume_ports[(i - options.producers) % options.consume_ports_count];
        connection_open(c);
        if (is_producer) {
            (options.declare > 0 ? declarer_start : producer_start)(c);
        } else if (!options.is_backlog) {
            consumer_start(c);
        }
    }
    uint64_t begun = now_ns();
    watch_start(&options, &totals, begun);
    const uint64_t end = begun + (uint64_t)(options.seconds * 1e9);
    bool is_done = false;
    const bool has_end = options.count > 0 || options.declare > 0;
    while (!is_stopped && !is_done && (has_end || now_ns() < end)) {
        step(count, begun, true);
        is_done = has_end || totals.failed == (uint64_t)count;
        for (int i = 0; i < options.producers && is_done; i++) {
            is_done = (options.declare > 0 ? declarer_is_done : producer_is_done)(&connections[i]);
        }
    }
    double seconds = (double)(now_ns() - begun) / 1e9;
    uint64_t confirmed = totals.confirmed, consumed = totals.consumed;
    const bool is_draining = !options.is_backlog || backlog_begin(count, seconds);
    const uint64_t filled = now_ns(), wait = (uint64_t)(options.drain_s * 1e9);
    uint64_t drained = filled + wait;
    while (is_draining && !is_stopped && now_ns() < drained && totals.failed < (uint64_t)count && !is_drained()) {
        step(count, begun, false);
        if (options.is_backlog) {
            drained = watch_last_delivery() + wait;
        }
    }
    if (options.is_backlog) {  // What is asked for is the drain.
        seconds = (double)(now_ns() - filled) / 1e9;
        consumed = totals.consumed;
    }
    print_result(seconds, confirmed, consumed);
    close_all(count, begun);
    for (int i = 0; i < count; i++) {
        connection_deinit(&connections[i]);
    }
    names_free();
    return totals.failed > 0 ? 1 : 0;
}
