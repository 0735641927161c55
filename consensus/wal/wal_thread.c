// SPDX-License-Identifier: Apache-2.0
// The driver of the WAL: one thread that may block (wal.h; decision 5).
//
// Problem: workers never block, syncs do. Idea: each worker has a ring towards this thread and one back. The
// thread takes everything the rings hold, makes a batch of it, writes and syncs it, hands the completions
// back and wakes each worker concerned once. What arrives meanwhile is the next batch, which may wait a little for more
// (pace.h).
//
// Sleeping: the thread raises `shared_is_asleep`, looks at the rings once more and waits on an eventfd. A
// submitter writes to the eventfd only if it lowers that flag, so a busy thread costs its submitters no
// system call. Both sides exchange the flag: whoever comes second sees what the other wrote before, so either
// the thread finds the ring filled or the submitter finds the thread asleep.
//
// A full ring never blocks and never loses anything: the submitter keeps a list of its own and goes on with it at its
// next call (completions are due to it, so it is called again); this thread keeps a list per worker that the worker
// asks for when its ring is empty.
//
// A full disk ends nothing: the batch that wants a new file waits for room, and all others behind it. Before
// that there is a file in reserve; when it cannot be made up any more the workers learn of it
// (shared_is_short), so that publishers stop.
//
// A failed disk ends the process here (P6): nothing that was not acknowledged may be taken for done, and no vote given.
#include "consensus/wal/internal.h"
#include "consensus/wal/pace.h"
#include "node/base/log.h"
#include "node/base/ring.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
    RING_SLOTS = 1024,   // Submissions of one worker on their way; one is made per loop turn.
    SLOW_DISK_NS_PER_BYTE = 20,  // 50 MB/s.
    SMALL_AFTER = 10,     // Tries until a smaller file will do: until then retirement may have made room for a whole one.
    ROOM_RETRY_MS = 100,  // A batch without room for its file is tried again so often, and when a file is retired.
    MARK_AFTER_MS = 10,  // Quiet time after which the last batch gets a mark (README.md).
    FILL_EVERY_MS = 8,    // Between two slices of zeros (wal_fill): 32 MB/s, which a slow disk can bear.
    FILL_BATCH_MAX = 32 << 10,  // Beside longer batches a sync is paid for by many, and the disk has enough to do;
    FILL_SYNC_MAX_NS = 1000000,  // so it has where a sync takes longer.
};

struct retirement {
    struct retirement *next;
    uint64_t seq;
};

struct wal_worker {
    // Worker's side.
    struct ring in;             // Worker -> WAL thread.
    struct ring out;            // WAL thread -> worker.
    _Alignas(64) struct list in_waiting;  // Worker's thread: submissions that found `in` full, in order.
    _Alignas(64) struct list out_waiting; // WAL thread: completions that found `out` full, in order.
    bool must_wake;                       // WAL thread: has completions since the last wake.
    _Atomic bool shared_has_waiting;      // out_waiting is not empty; written by the WAL thread.
};

struct wal_thread {
    struct wal_thread_config config;
    struct wal *wal;
    pthread_t thread;
    int wake_fd;
    struct wal_worker *workers;
    uint32_t tries;     // In vain, of the composed batch,
    uint64_t retry_ns;  // which is written again then; 0: at once.
    struct wal_pace pace;
    bool wants_fill;    // A new file may have places that were never written.
    uint64_t fill_ns;   // When the last slice was written.
    _Alignas(64) _Atomic bool shared_is_asleep;  // See above.
    _Atomic bool shared_must_stop;               // Release by wal_thread_stop.
    _Atomic(struct retirement *) shared_retired; // Stack; pushed by anyone, taken whole by the WAL thread.
    _Atomic uint64_t shared_batch_start_ns;      // 0: no batch is being written. Relaxed: a gauge.
    _Atomic uint32_t shared_file_count;          // Relaxed: a gauge.
    _Atomic bool shared_is_short;                // Relaxed: workers are woken when it changes.
    _Atomic bool shared_is_stuck;                // The same: the composed batch waits for room.
    _Atomic bool shared_wants_room;              // wal_thread_make_room was called (release, acquire).
};

// ---- any thread ------------------------------------------------------------------------------------------------

static void wake(struct wal_thread *t)
{
    if (atomic_exchange_explicit(&t->shared_is_asleep, false, memory_order_acq_rel)) {
        uint64_t one = 1;
        ssize_t n = write(t->wake_fd, &one, sizeof(one));
        assert(n == sizeof(one));  // The counter cannot overflow: one write per sleep.
    }
}

static void push_waiting(struct wal_worker *k)
{
    while (!list_is_empty(&k->in_waiting)) {
        struct list *item = k->in_waiting.next;
        struct wal_submission *s = list_entry(item, struct wal_submission, link);
        // Unlinked first: behind the push the submission belongs to the other side.
        list_remove(item);
        if (!ring_push(&k->in, s)) {
            list_add_head(&k->in_waiting, item);
            return;
        }
    }
}

void wal_thread_submit(struct wal_thread *t, uint32_t worker, struct wal_submission *s)
{
    assert(worker < t->config.workers);
    struct wal_worker *k = &t->workers[worker];
    s->worker = (uint16_t)worker;
    list_add_tail(&k->in_waiting, &s->link);
    push_waiting(k);
    wake(t);
}

struct wal_submission *wal_thread_poll(struct wal_thread *t, uint32_t worker)
{
    assert(worker < t->config.workers);
    struct wal_worker *k = &t->workers[worker];
    struct wal_submission *s = ring_pop(&k->out);
    if (s == NULL) {
        bool has_more = !list_is_empty(&k->in_waiting);
        push_waiting(k);
        has_more = has_more || atomic_load_explicit(&k->shared_has_waiting, memory_order_acquire);
        if (has_more) {
            wake(t);
        }
    }
    return s;
}

void wal_thread_retire(struct wal_thread *t, uint64_t seq)
{
    struct retirement *r = mem_alloc(sizeof(*r));
    r->seq = seq;
    r->next = atomic_load_explicit(&t->shared_retired, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&t->shared_retired, &r->next, r, memory_order_release,
                                                  memory_order_relaxed)) {
    }
    wake(t);
}

uint64_t wal_thread_age_ns(struct wal_thread *t)
{
    uint64_t start = atomic_load_explicit(&t->shared_batch_start_ns, memory_order_relaxed);
    uint64_t now = clock_mono_ns(env_system_clock());
    return start == 0 || now < start ? 0 : now - start;
}

bool wal_thread_is_short(struct wal_thread *t)
{
    return atomic_load_explicit(&t->shared_is_short, memory_order_relaxed) || wal_thread_is_stuck(t);
}

bool wal_thread_is_stuck(struct wal_thread *t)
{
    return atomic_load_explicit(&t->shared_is_stuck, memory_order_relaxed);
}

void wal_thread_make_room(struct wal_thread *t)
{
    atomic_store_explicit(&t->shared_wants_room, true, memory_order_release);
    wake(t);
}

uint32_t wal_thread_file_count(struct wal_thread *t)
{
    return atomic_load_explicit(&t->shared_file_count, memory_order_relaxed);
}

// ---- WAL thread ------------------------------------------------------------------------------------------------

static void on_done(void *ctx, struct wal_submission *s)
{
    struct wal_thread *t = ctx;
    struct wal_worker *k = &t->workers[s->worker];
    if (s->result != RC_OK) {
        return;  // The process is about to end.
    }
    k->must_wake = true;
    if (!list_is_empty(&k->out_waiting) || !ring_push(&k->out, s)) {
        list_add_tail(&k->out_waiting, &s->link);
        atomic_store_explicit(&k->shared_has_waiting, true, memory_order_release);
    }
}

static void on_file_closed(void *ctx, uint64_t file_seq)
{
    struct wal_thread *t = ctx;
    if (t->config.on_file_closed != NULL) {
        t->config.on_file_closed(t->config.wake_ctx, file_seq);
    }
}

// Sets one of the two flags and tells the workers if it was otherwise.
static void tell(struct wal_thread *t, _Atomic bool *flag, bool is_on, const char *what)
{
    if (atomic_exchange_explicit(flag, is_on, memory_order_relaxed) == is_on) {
        return;
    }
    log_warning("wal: %s%s", is_on ? "the disk has no room for " : "there is room again for ", what);
    for (uint32_t i = 0; i < t->config.workers; i++) {
        t->config.wake(t->config.wake_ctx, i);
    }
}

static void top_up(struct wal_thread *t)
{
    tell(t, &t->shared_is_short, !wal_top_up(t->wal), "the file that is kept in reserve");
    t->wants_fill = true;
}

// Takes what the other threads left for us. True if there was anything. When we must stop the workers have ended and
// what they could not push is ours too.
static bool take(struct wal_thread *t, bool must_stop)
{
    bool any = false;
    for (uint32_t i = 0; i < t->config.workers; i++) {
        struct wal_submission *s;
        while ((s = ring_pop(&t->workers[i].in)) != NULL) {
            wal_pace_submitted(&t->pace, s->ranges_count > 0 ? s->bytes : 0);
            wal_submit(t->wal, s);
            any = true;
        }
        while (must_stop && !list_is_empty(&t->workers[i].in_waiting)) {
            wal_submit(t->wal, list_entry(list_pop(&t->workers[i].in_waiting), struct wal_submission, link));
            any = true;
        }
    }
    struct retirement *r = atomic_exchange_explicit(&t->shared_retired, NULL, memory_order_acquire);
    const bool has_room = r != NULL;
    if (has_room) {
        t->retry_ns = 0;
    }
    while (r != NULL) {
        struct retirement *next = r->next;
        wal_retire(t->wal, r->seq);
        t->wants_fill = true;
        free(r);
        r = next;
        any = true;
    }
    if (atomic_load_explicit(&t->shared_wants_room, memory_order_relaxed) &&
        atomic_exchange_explicit(&t->shared_wants_room, false, memory_order_acquire)) {
        wal_trim(t->wal);
        top_up(t);
        t->retry_ns = 0;
    } else if (has_room && atomic_load_explicit(&t->shared_is_short, memory_order_relaxed)) {
        top_up(t);
    }
    return any;
}

// Moves kept completions into rings that have room again, and wakes the workers that got something.
static void deliver(struct wal_thread *t)
{
    for (uint32_t i = 0; i < t->config.workers; i++) {
        struct wal_worker *k = &t->workers[i];
        while (!list_is_empty(&k->out_waiting)) {
            struct list *item = k->out_waiting.next;
            list_remove(item);
            if (!ring_push(&k->out, list_entry(item, struct wal_submission, link))) {
                list_add_head(&k->out_waiting, item);
                break;
            }
            k->must_wake = true;
        }
        if (atomic_load_explicit(&k->shared_has_waiting, memory_order_relaxed) != !list_is_empty(&k->out_waiting)) {
            atomic_store_explicit(&k->shared_has_waiting, !list_is_empty(&k->out_waiting), memory_order_release);
        }
        if (k->must_wake) {
            k->must_wake = false;
            t->config.wake(t->config.wake_ctx, i);
        }
    }
}

static _Noreturn void die(struct wal_thread *t, enum rc rc)
{
    char reason[128];
    snprintf(reason, sizeof(reason), "the write-ahead log could not be written: %s\n", rc_text(rc));
    log_critical("wal: %.*s, stopping at once", (int)(strlen(reason) - 1), reason);
    struct disk *d = t->wal->config.disk;
    if (d->mark_failed != NULL) {
        d->mark_failed(d, reason);
    }
    abort();
}

// False: there is no room. The batch is to be written again later.
static bool write_batch(struct wal_thread *t)
{
    const bool is_roll = t->wal->batch.is_roll;
    const uint32_t records = t->wal->batch.head.count;
    uint64_t now = clock_mono_ns(env_system_clock());
    // One large record may rightly take seconds: its bytes are allowed the time a slow disk needs for them,
    // so that only a disk that stands still looks old.
    const uint64_t allowed = (t->wal->batch.padded_bytes + t->wal->batch.slice_bytes) * SLOW_DISK_NS_PER_BYTE;
    if (!wal_thread_is_stuck(t)) {  // Else it has been waiting for longer.
        atomic_store_explicit(&t->shared_batch_start_ns, now + allowed, memory_order_relaxed);
    }
    enum rc rc = t->tries < SMALL_AFTER ? wal_write(t->wal) : wal_write_small(t->wal);
    t->tries = rc == RC_NO_SPACE ? t->tries + 1 : 0;
    t->retry_ns = rc == RC_NO_SPACE ? clock_mono_ns(env_system_clock()) + ROOM_RETRY_MS * 1000000ull : 0;
    tell(t, &t->shared_is_stuck, rc == RC_NO_SPACE, "the log's next file");
    if (rc == RC_NO_SPACE) {
        return false;
    }
    if (rc != RC_OK) {
        die(t, rc);
    }
    wal_pace_written(&t->pace, now, clock_mono_ns(env_system_clock()), records);
    wal_complete(t->wal, rc);
    atomic_store_explicit(&t->shared_batch_start_ns, 0, memory_order_relaxed);
    if (t->wal->has_failed) {
        die(t, RC_IO);
    }
    if (is_roll) {
        top_up(t);
    }
    return true;
}

// Until the batch that found no room is to be written again; whoever submits meanwhile makes no further try.
static int retry_wait_ms(const struct wal_thread *t)
{
    const uint64_t now = clock_mono_ns(env_system_clock());
    return t->retry_ns > now ? (int)((t->retry_ns - now + 999999) / 1000000) : 0;
}

static bool has_input(struct wal_thread *t)
{
    bool has = atomic_load_explicit(&t->shared_must_stop, memory_order_acquire) ||
               atomic_load_explicit(&t->shared_wants_room, memory_order_relaxed) ||
               atomic_load_explicit(&t->shared_retired, memory_order_relaxed) != NULL;
    for (uint32_t i = 0; i < t->config.workers && !has; i++) {
        has = ring_count(&t->workers[i].in) > 0 ||
              (!list_is_empty(&t->workers[i].out_waiting) && ring_count(&t->workers[i].out) < RING_SLOTS);
    }
    return has;
}

static void fill(struct wal_thread *t, bool is_idle)
{
    // A disk that stands still under it is to look old (decision 7).
    const uint64_t allowed = (uint64_t)WAL_FILL_BYTES * SLOW_DISK_NS_PER_BYTE;
    atomic_store_explicit(&t->shared_batch_start_ns, clock_mono_ns(env_system_clock()) + allowed, memory_order_relaxed);
    const enum rc rc = wal_fill(t->wal, is_idle, &t->wants_fill);
    if (rc != RC_OK) {
        die(t, rc);
    }
    atomic_store_explicit(&t->shared_batch_start_ns, 0, memory_order_relaxed);
    t->fill_ns = clock_mono_ns(env_system_clock());
}

// After a batch of so many bytes, while more of them come.
static void fill_beside(struct wal_thread *t, uint64_t batch_bytes)
{
    if (t->wants_fill && batch_bytes <= FILL_BATCH_MAX && t->pace.sync_ns <= FILL_SYNC_MAX_NS &&
        clock_mono_ns(env_system_clock()) - t->fill_ns >= FILL_EVERY_MS * 1000000ull) {
        fill(t, false);
    }
}

static int wait_ms(const struct wal_thread *t)
{
    if (atomic_load_explicit(&t->shared_is_stuck, memory_order_relaxed)) {
        return retry_wait_ms(t);
    }
    return t->wal->needs_mark ? MARK_AFTER_MS : t->wants_fill ? FILL_EVERY_MS : -1;
}

// Waits until somebody wakes us. False if nobody did until there is something else to do (wait_ms): the batch that waits
// for room, a mark, zeros ahead of the log.
static bool sleep_until_woken(struct wal_thread *t)
{
    (void)atomic_exchange_explicit(&t->shared_is_asleep, true, memory_order_acq_rel);
    bool is_woken = true;
    if (!has_input(t)) {
        struct pollfd p = {.fd = t->wake_fd, .events = POLLIN};
        is_woken = poll(&p, 1, wait_ms(t)) != 0;
    }
    if (!atomic_exchange_explicit(&t->shared_is_asleep, false, memory_order_acq_rel)) {
        uint64_t count;  // Somebody lowered the flag: his write is there or about to be; it must not wake us twice.
        struct pollfd p = {.fd = t->wake_fd, .events = POLLIN};
        while (poll(&p, 1, -1) < 0 && errno == EINTR) {
        }
        ssize_t n = read(t->wake_fd, &count, sizeof(count));
        assert(n == sizeof(count));
        is_woken = true;
    }
    return is_woken;
}

// Lets more come for the next batch. Nobody needs to wake us meanwhile: the flag of sleeping is down.
static void keep_pace(struct wal_thread *t)
{
    const uint64_t wait = t->wal->batch.is_composed || t->wal->region.of != NULL
                              ? 0
                              : wal_pace_wait(&t->pace, clock_mono_ns(env_system_clock()));
    if (wait > 0) {
        const struct timespec d = {.tv_nsec = (long)wait};
        nanosleep(&d, NULL);  // Cut short by a signal it is a shorter wait, no more.
        (void)take(t, false);
    }
}

static void *run(void *arg)
{
    struct wal_thread *t = arg;
    pthread_setname_np(pthread_self(), "wal");
    for (;;) {
        bool must_stop = atomic_load_explicit(&t->shared_must_stop, memory_order_acquire);
        bool any = take(t, must_stop);
        if (!must_stop) {
            keep_pace(t);
        }
        const bool has_batch = t->wal->batch.is_composed || wal_compose(t->wal);
        const uint64_t bytes = t->wal->batch.padded_bytes + t->wal->batch.slice_bytes;
        if (has_batch) {
            any = (must_stop || retry_wait_ms(t) == 0) && write_batch(t);
        } else if (t->wal->has_failed) {
            die(t, RC_IO);
        }
        atomic_store_explicit(&t->shared_file_count, wal_file_count(t->wal), memory_order_relaxed);
        deliver(t);
        if (any) {
            fill_beside(t, has_batch ? bytes : 0);
            continue;
        }
        if ((must_stop || !sleep_until_woken(t)) && !t->wal->batch.is_composed) {
            if (wal_compose_mark(t->wal)) {
                (void)write_batch(t);  // Without room it stays composed.
            } else if (t->wants_fill && !must_stop) {
                fill(t, true);
            }
        }
        if (must_stop) {
            if (t->wal->batch.is_composed) {
                wal_abandon(t->wal);  // Nobody was told that it is durable.
            }
            return NULL;
        }
    }
}

// ---- start and stop --------------------------------------------------------------------------------------------

// Cache lines of their own for what two threads write.
static void *alloc_aligned(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 64, bytes) != 0) {
        log_critical("out of memory");
        abort();
    }
    memset(p, 0, bytes);
    return p;
}

static void thread_free(struct wal_thread *t)
{
    for (uint32_t i = 0; i < t->config.workers; i++) {
        ring_deinit(&t->workers[i].in);
        ring_deinit(&t->workers[i].out);
    }
    struct retirement *r = atomic_load_explicit(&t->shared_retired, memory_order_acquire);
    while (r != NULL) {
        struct retirement *next = r->next;
        free(r);
        r = next;
    }
    if (t->wake_fd >= 0) {
        close(t->wake_fd);
    }
    free(t->workers);
    free(t);
}

enum rc wal_thread_start(const struct wal_thread_config *config, struct wal *w, struct wal_thread **out)
{
    assert(config->workers > 0 && config->workers <= UINT16_MAX);
    assert(config->wake != NULL);
    struct wal_thread *t = alloc_aligned(sizeof(*t));
    t->config = *config;
    t->wal = w;
    t->workers = alloc_aligned(config->workers * sizeof(*t->workers));
    for (uint32_t i = 0; i < config->workers; i++) {
        ring_init(&t->workers[i].in, RING_SLOTS);
        ring_init(&t->workers[i].out, RING_SLOTS);
        list_init(&t->workers[i].in_waiting);
        list_init(&t->workers[i].out_waiting);
    }
    atomic_store_explicit(&t->shared_file_count, wal_file_count(w), memory_order_relaxed);
    t->wake_fd = eventfd(0, EFD_CLOEXEC);
    wal_set_callbacks(w, on_file_closed, on_done, t);
    top_up(t);
    if (t->wake_fd < 0 || pthread_create(&t->thread, NULL, run, t) != 0) {
        thread_free(t);
        return RC_SYSTEM;
    }
    *out = t;
    return RC_OK;
}

void wal_thread_stop(struct wal_thread *t)
{
    atomic_store_explicit(&t->shared_must_stop, true, memory_order_release);
    wake(t);
    pthread_join(t->thread, NULL);
    thread_free(t);
}
