// SPDX-License-Identifier: Apache-2.0
// One table through which client connections and links between nodes read and write bytes (decision 17): plain TCP
// here, TLS behind the same four calls.
//
// The fd is non-blocking and watched by the owner (uv_poll). No call blocks. A call that cannot go on answers
// RC_PENDING and says in `want` what the fd has to become first; for plain TCP that is the obvious direction, with TLS
// a read may want to write and the other way round, so owners poll for `want`, not for what they meant to do.
// Thread: the owner's.
#pragma once
#include "node/base/rc.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum { TRANSPORT_IOV_MAX = 1024 };  // Vectors of one writev; what Linux takes at once (UIO_MAXIOV).

enum transport_want { TRANSPORT_WANT_READ = 1, TRANSPORT_WANT_WRITE = 2 };

struct transport;

struct transport_ops {
    const char *name;  // "tcp", "tls": for listings.
    // Reads up to `len` (> 0) bytes into the caller's buffer. RC_OK (*got > 0), RC_PENDING, RC_NOT_CONNECTED (the other
    // side closed or the connection failed; t->sys_error is 0 for an orderly end).
    enum rc (*read)(struct transport *t, void *to, size_t len, size_t *got);
    // Writes from the front of `count` (1..TRANSPORT_IOV_MAX) ranges. RC_OK (*taken > 0, may be less than all),
    // RC_PENDING, RC_NOT_CONNECTED. After RC_PENDING the next call must offer the same bytes again, in any cutting.
    enum rc (*writev)(struct transport *t, const struct iovec *iov, int count, size_t *taken);
    // Sends from a file without copying. RC_UNSUPPORTED if this transport cannot: the caller reads and writes instead.
    enum rc (*sendfile)(struct transport *t, int file_fd, uint64_t offset, size_t len, size_t *taken);
    // Bytes already taken off the socket that read would give without the fd becoming readable (TLS records).
    bool (*has_buffered)(const struct transport *t);
    // Closes the fd and frees what belongs to the transport. The owner has stopped watching the fd.
    void (*close)(struct transport *t);
};

struct transport {
    const struct transport_ops *ops;
    void *session;   // TLS state; NULL for plain.
    int fd;          // -1 once closed.
    int sys_error;   // errno behind the last RC_NOT_CONNECTED, 0 for an orderly end. For log lines only.
    uint8_t want;    // enum transport_want after RC_PENDING.
};

// Plain TCP (or a Unix socket) on a non-blocking `fd`. Takes the fd.
void transport_init_plain(struct transport *t, int fd);

static inline enum rc transport_read(struct transport *t, void *to, size_t len, size_t *got)
{
    return t->ops->read(t, to, len, got);
}
static inline enum rc transport_writev(struct transport *t, const struct iovec *iov, int count, size_t *taken)
{
    return t->ops->writev(t, iov, count, taken);
}
static inline enum rc transport_sendfile(struct transport *t, int file_fd, uint64_t offset, size_t len, size_t *taken)
{
    return t->ops->sendfile(t, file_fd, offset, len, taken);
}
static inline bool transport_has_buffered(const struct transport *t)
{
    return t->ops->has_buffered(t);
}
// Closing twice is harmless.
static inline void transport_close(struct transport *t)
{
    if (t->fd >= 0) {
        t->ops->close(t);
    }
}
