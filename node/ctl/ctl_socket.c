// SPDX-License-Identifier: Apache-2.0
// The command socket on the admin thread: accepts, reads one line of JSON a request, hands it to worker 0 and writes
// the answer back. A request is at most 1 MiB; a connection may send several, one after another. The thread blocks in
// its own loop only.
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/ctl/internal.h"
#include "node/server/inbox.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REQUEST_MAX_BYTES = 1 << 20 };

struct ctl_socket {
    struct ctl *ctl;
    uv_loop_t loop;
    uv_pipe_t listener;
    uv_async_t async;
    struct inbox inbox;  // Answers from worker 0.
    _Atomic bool shared_stop;
    pthread_t thread;
};

// A client. Freed when its handle is closed and no request is under way.
struct client {
    struct ctl_socket *socket;
    uv_pipe_t pipe;
    struct buf in;
    bool is_closed, is_busy;
};

// One request on its way to worker 0 and back.
struct exchange_job {
    struct job job;
    struct client *client;
    json_t *request, *answer;
};

static void client_free(struct client *c)
{
    if (c->is_closed && !c->is_busy) {
        buf_deinit(&c->in);
        free(c);
    }
}

static void on_client_closed(uv_handle_t *h)
{
    struct client *c = h->data;
    c->is_closed = true;
    client_free(c);
}

static void client_close(struct client *c)
{
    if (!uv_is_closing((uv_handle_t *)&c->pipe)) {
        uv_close((uv_handle_t *)&c->pipe, on_client_closed);
    }
}

// ---- answers, admin thread -----------------------------------------------------------------------------------------

struct reply {
    uv_write_t write;
    char *text;
};

static void on_written(uv_write_t *w, int status)
{
    struct reply *r = (struct reply *)w;
    (void)status;
    free(r->text);
    free(r);
}

static void client_next(struct client *c);

static void answered(struct job *j)
{
    struct exchange_job *e = container_of(j, struct exchange_job, job);
    struct client *c = e->client;
    c->is_busy = false;
    char *line = json_dumps(e->answer, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(e->answer);
    free(e);
    if (c->is_closed || uv_is_closing((uv_handle_t *)&c->pipe)) {
        free(line);
        client_free(c);
        return;
    }
    struct reply *r = mem_zalloc(sizeof(*r));
    size_t n = strlen(line);
    r->text = mem_alloc(n + 1);
    memcpy(r->text, line, n);
    r->text[n] = '\n';
    free(line);
    uv_buf_t b = uv_buf_init(r->text, (unsigned)(n + 1));
    if (uv_write(&r->write, (uv_stream_t *)&c->pipe, &b, 1, on_written) != 0) {
        free(r->text);
        free(r);
        client_close(c);
        return;
    }
    client_next(c);
}

static void on_async(uv_async_t *a)
{
    struct ctl_socket *s = a->data;
    for (struct job *j = inbox_take(&s->inbox); j;) {
        struct job *next = inbox_next(j);
        j->done(j);
        j = next;
    }
    if (atomic_load_explicit(&s->shared_stop, memory_order_acquire)) {
        uv_stop(&s->loop);
    }
}

// ---- worker 0 ------------------------------------------------------------------------------------------------------

static void on_answer(void *ctx, json_t *answer)
{
    struct exchange_job *e = ctx;
    struct ctl_socket *s = e->client->socket;
    json_decref(e->request);
    e->answer = answer;
    e->job.done = answered;
    inbox_push(&s->inbox, &e->job);
    uv_async_send(&s->async);
}

static void run_on_worker(void *arg)
{
    struct exchange_job *e = arg;
    ctl_run(e->client->socket->ctl, e->request, on_answer, e);
}

// ---- requests, admin thread ----------------------------------------------------------------------------------------

static void client_next(struct client *c)
{
    uint8_t *end = c->in.len ? memchr(c->in.ptr, '\n', c->in.len) : NULL;
    if (c->is_busy || !end) {
        if (!c->is_busy && c->in.len > REQUEST_MAX_BYTES) {
            client_close(c);
        }
        return;
    }
    size_t n = (size_t)(end - c->in.ptr);
    json_t *request = json_loadb((const char *)c->in.ptr, n, 0, NULL);
    buf_consume(&c->in, n + 1);
    if (!json_is_object(request)) {
        json_decref(request);
        client_close(c);
        return;
    }
    struct exchange_job *e = mem_zalloc(sizeof(*e));
    *e = (struct exchange_job){.client = c, .request = request};
    c->is_busy = true;
    const struct ctl_config *config = &c->socket->ctl->config;
    config->post(config->ctx, 0, run_on_worker, e);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *b)
{
    struct client *c = h->data;
    buf_reserve(&c->in, suggested);
    *b = uv_buf_init((char *)c->in.ptr + c->in.len, (unsigned)(c->in.cap - c->in.len));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b)
{
    struct client *c = stream->data;
    (void)b;
    if (n < 0) {
        client_close(c);
        return;
    }
    c->in.len += (size_t)n;
    client_next(c);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct ctl_socket *s = listener->data;
    if (status != 0) {
        return;
    }
    struct client *c = mem_zalloc(sizeof(*c));
    c->socket = s;
    uv_pipe_init(&s->loop, &c->pipe, 0);
    c->pipe.data = c;
    if (uv_accept(listener, (uv_stream_t *)&c->pipe) != 0 ||
        uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read) != 0) {
        client_close(c);
    }
}

static void *thread_main(void *arg)
{
    struct ctl_socket *s = arg;
    pthread_setname_np(pthread_self(), "admin");
    s->ctl->config.admin_started(s->ctl->config.ctx, &s->loop);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    return NULL;
}

enum rc ctl_socket_start(struct ctl *c)
{
    struct ctl_socket *s = mem_zalloc(sizeof(*s));
    s->ctl = c;
    c->socket = s;
    inbox_init(&s->inbox);
    uv_loop_init(&s->loop);
    uv_async_init(&s->loop, &s->async, on_async);
    s->async.data = s;
    uv_pipe_init(&s->loop, &s->listener, 0);
    s->listener.data = s;
    unlink(c->config.socket_path);  // A left-over: the data directory's lock proves that nobody else serves it.
    mode_t old = umask(0077);
    int rc = uv_pipe_bind(&s->listener, c->config.socket_path);
    umask(old);
    if (rc != 0 || uv_listen((uv_stream_t *)&s->listener, 16, on_connection) != 0) {
        log_error("cannot listen on the command socket %s: %s", c->config.socket_path,
                  rc ? uv_strerror(rc) : "listen failed");
        return RC_SYSTEM;
    }
    return pthread_create(&s->thread, NULL, thread_main, s) == 0 ? RC_OK : RC_SYSTEM;
}

void ctl_socket_stop(struct ctl *c)
{
    struct ctl_socket *s = c->socket;
    atomic_store_explicit(&s->shared_stop, true, memory_order_release);
    uv_async_send(&s->async);
    pthread_join(s->thread, NULL);
    unlink(c->config.socket_path);
    // The process ends: handles still open end with it.
}
