// SPDX-License-Identifier: Apache-2.0
// Plain TCP behind the transport table (transport.h): thin covers over recv, sendmsg and sendfile that turn errno
// into result codes. Interrupted calls are repeated; a peer that went away never raises SIGPIPE.
#include "node/base/transport.h"
#include <assert.h>
#include <errno.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

static enum rc failed(struct transport *t, uint8_t want)
{
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
        t->want = want;
        return RC_PENDING;
    }
    t->sys_error = errno;
    return RC_NOT_CONNECTED;
}

static enum rc plain_read(struct transport *t, void *to, size_t len, size_t *got)
{
    assert(len > 0);
    ssize_t n;
    do {
        n = recv(t->fd, to, len, 0);
    } while (n < 0 && errno == EINTR);
    *got = n > 0 ? (size_t)n : 0;
    if (n > 0) {
        return RC_OK;
    }
    if (n == 0) {
        t->sys_error = 0;
        return RC_NOT_CONNECTED;
    }
    return failed(t, TRANSPORT_WANT_READ);
}

static enum rc plain_writev(struct transport *t, const struct iovec *iov, int count, size_t *taken)
{
    assert(count > 0);
    assert(count <= TRANSPORT_IOV_MAX);
    struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)count};
    ssize_t n;
    do {
        n = sendmsg(t->fd, &m, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    *taken = n > 0 ? (size_t)n : 0;
    return n >= 0 ? RC_OK : failed(t, TRANSPORT_WANT_WRITE);
}

static enum rc plain_sendfile(struct transport *t, int file_fd, uint64_t offset, size_t len, size_t *taken)
{
    off_t at = (off_t)offset;
    ssize_t n;
    do {
        n = sendfile(t->fd, file_fd, &at, len);
    } while (n < 0 && errno == EINTR);
    *taken = n > 0 ? (size_t)n : 0;
    return n >= 0 ? RC_OK : failed(t, TRANSPORT_WANT_WRITE);
}

static bool plain_has_buffered(const struct transport *t)
{
    (void)t;
    return false;
}

static void plain_close(struct transport *t)
{
    close(t->fd);
    t->fd = -1;
}

void transport_init_plain(struct transport *t, int fd)
{
    static const struct transport_ops ops = {
        .name = "tcp",
        .read = plain_read,
        .writev = plain_writev,
        .sendfile = plain_sendfile,
        .has_buffered = plain_has_buffered,
        .close = plain_close,
    };
    assert(fd >= 0);
    *t = (struct transport){.ops = &ops, .fd = fd};
}
