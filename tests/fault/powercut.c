// SPDX-License-Identifier: Apache-2.0
// A power cut for a real process: an LD_PRELOAD library that remembers how to take back what was not synced.
//
// Problem: kill -9 keeps the page cache, so it never shows a missing fsync. Idea: before each write to a file under
// POWERCUT_DIR its old bytes are kept; a sync of the file forgets them. On SIGUSR2 nothing moves any more:
// each unsynced write is independently kept, dropped or torn (per 512-byte sector), unsynced creations,
// renames and removals of names (no fsync of the directory since) are kept or taken back, newest first, and
// the process ends.
//
// Invariants: one lock around every intercepted call, so that the cut falls between calls. What a sync
// covered before the cut is never touched. The choice of what is lost is random (POWERCUT_SEED, else the clock).
// Not covered: writes through memory maps (LMDB writes with pwrite here; its lock file does not matter).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { FDS = 65536, SECTOR = 512 };

struct undo {           // One write, or a change of length.
    struct undo *next;  // Older.
    off_t offset;
    size_t old_len;     // Bytes of old content kept (less than new_len at the end of the file).
    size_t new_len;
    off_t old_size;     // File's size before.
    uint8_t old[];
};
struct file {           // By inode, for as long as the process lives.
    struct file *next;
    dev_t dev;
    ino_t ino;
    char path[PATH_MAX];
    struct undo *undo;
};
struct name_change {    // Newest first.
    struct name_change *next;
    enum { CREATED, RENAMED, REMOVED } kind;
    char dir[PATH_MAX], path[PATH_MAX], from[PATH_MAX],
        saved[PATH_MAX];  // saved: hard link to what was replaced or removed.
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct file *files;
static struct file *by_fd[FDS];
static bool is_dsync[FDS];
static struct name_change *names;
static char dir_real[PATH_MAX], attic[PATH_MAX + 16];
static int pipe_fds[2];
static unsigned long links, seed;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static uint64_t draw(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static bool fd_path(int fd, char *out)
{
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    if (n <= 0) {
        return false;
    }
    out[n] = '\0';
    return true;
}

static bool is_ours(const char *path)
{
    size_t n = strlen(dir_real);
    return n > 0 && strncmp(path, dir_real, n) == 0 && path[n] == '/' && strncmp(path, attic, strlen(attic)) != 0;
}

static void absolute(int at, const char *path, char *out)
{
    char base[PATH_MAX] = "";
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
        return;
    }
    if (at == AT_FDCWD) {
        if (!getcwd(base, sizeof(base))) {
            base[0] = '\0';
        }
    } else if (!fd_path(at, base)) {
        base[0] = '\0';
    }
    snprintf(out, PATH_MAX, "%.2000s/%.2000s", base, path);
}

static void parent(const char *path, char *out)
{
    snprintf(out, PATH_MAX, "%s", path);
    char *slash = strrchr(out, '/');
    if (slash) {
        *slash = '\0';
    }
}

static struct file *file_of(int fd)
{
    return fd >= 0 && fd < FDS ? by_fd[fd] : NULL;
}

static void track(int fd, const char *path, int flags)
{
    struct stat s;
    if (fd < 0 || fd >= FDS) {
        return;
    }
    by_fd[fd] = NULL;
    is_dsync[fd] = (flags & O_DSYNC) != 0;
    if (!is_ours(path) || fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
        return;
    }
    struct file *f = files;
    while (f && (f->ino != s.st_ino || f->dev != s.st_dev)) {
        f = f->next;
    }
    if (!f) {
        f = calloc(1, sizeof(*f));
        f->dev = s.st_dev;
        f->ino = s.st_ino;
        f->next = files;
        files = f;
    }
    snprintf(f->path, sizeof(f->path), "%s", path);
    by_fd[fd] = f;
}

static void remember(int fd, off_t offset, size_t len)
{
    struct file *f = file_of(fd);
    struct stat s;
    if (!f || is_dsync[fd] || fstat(fd, &s) != 0) {
        return;
    }
    struct undo *u = malloc(sizeof(*u) + len);
    u->offset = offset;
    u->new_len = len;
    u->old_size = s.st_size;
    // The descriptor may be write-only.
    int r = REAL(open)(f->path, O_RDONLY | O_CLOEXEC);
    ssize_t got = r >= 0 ? pread(r, u->old, len, offset) : 0;
    u->old_len = got > 0 ? (size_t)got : 0;
    if (r >= 0) {
        REAL(close)(r);
    }
    u->next = f->undo;
    f->undo = u;
}

static void forget(struct file *f)
{
    while (f && f->undo) {
        struct undo *u = f->undo;
        f->undo = u->next;
        free(u);
    }
}

static void forget_names(const char *dir)
{
    for (struct name_change **at = &names; *at;) {
        struct name_change *c = *at;
        if (strcmp(c->dir, dir) == 0) {
            *at = c->next;
            if (c->saved[0]) {
                REAL(unlink)(c->saved);
            }
            free(c);
        } else {
            at = &c->next;
        }
    }
}

static struct name_change *note_name(int kind, const char *path)
{
    struct name_change *c = calloc(1, sizeof(*c));
    c->kind = kind;
    snprintf(c->path, sizeof(c->path), "%s", path);
    parent(path, c->dir);
    c->next = names;
    names = c;
    return c;
}

static void save_link(struct name_change *c, const char *path)
{
    snprintf(c->saved, sizeof(c->saved), "%.4000s/%lu", attic, ++links);
    if (link(path, c->saved) != 0) {
        c->saved[0] = '\0';
    }
}

// ---- the cut -----------------------------------------------------------------------------------------------------

// Puts back old bytes of one write: all of them, or of some sectors.
static void take_back(int fd, const struct undo *u, bool is_torn)
{
    for (size_t at = 0; at < u->new_len;) {
        size_t sector_end = ((size_t)(u->offset + (off_t)at) / SECTOR + 1) * SECTOR - (size_t)u->offset;
        size_t end = sector_end < u->new_len ? sector_end : u->new_len;
        if (!is_torn || draw() % 2) {
            static const uint8_t zeros[SECTOR];
            size_t kept = at < u->old_len ? (end < u->old_len ? end : u->old_len) - at : 0;
            if (kept > 0 && pwrite(fd, u->old + at, kept, u->offset + (off_t)at) < 0) {
                _exit(99);
            }
            if (end - at > kept && pwrite(fd, zeros, end - at - kept, u->offset + (off_t)(at + kept)) < 0) {
                _exit(99);
            }
        }
        at = end;
    }
}

static void cut_file(struct file *f)
{
    if (!f->undo) {
        return;
    }
    int fd = REAL(open)(f->path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    struct stat s;
    if (fstat(fd, &s) != 0 || s.st_ino != f->ino || s.st_dev != f->dev) {
        REAL(close)(fd);  // Another file under the name of one that was removed.
        return;
    }
    off_t size = -1;
    bool keeps_size = draw() % 2;
    for (struct undo *u = f->undo; u; u = u->next) {
        unsigned fate = (unsigned)(draw() % 3);
        if (fate > 0 && u->new_len > 0) {
            take_back(fd, u, fate == 1);
        }
        size = u->old_size;
    }
    if (!keeps_size && fstat(fd, &s) == 0 && size < s.st_size) {
        if (REAL(ftruncate)(fd, size) != 0) {
            _exit(99);
        }
    }
    REAL(close)(fd);
}

static void cut_names(void)
{
    // Order is kept as a journalling file system keeps it: from some point on, newest first, everything is undone.
    unsigned count = 0;
    for (struct name_change *c = names; c; c = c->next) {
        count++;
    }
    unsigned undone = count ? (unsigned)(draw() % (count + 1)) : 0;
    for (struct name_change *c = names; c && undone > 0; c = c->next, undone--) {
        switch (c->kind) {
        case CREATED:
            REAL(unlink)(c->path);
            break;
        case RENAMED:
            REAL(rename)(c->path, c->from);
            if (c->saved[0]) {
                REAL(rename)(c->saved, c->path);
            }
            break;
        case REMOVED:
            if (c->saved[0]) {
                REAL(rename)(c->saved, c->path);
            }
            break;
        }
    }
}

static void *cutter(void *arg)
{
    char byte;
    (void)arg;
    while (read(pipe_fds[0], &byte, 1) != 1) {
    }
    pthread_mutex_lock(&lock);  // Never given back: nobody writes or syncs any more.
    for (struct file *f = files; f; f = f->next) {
        cut_file(f);
    }
    cut_names();
    _exit(137);
}

static void on_signal(int sig)
{
    (void)sig;
    (void)!write(pipe_fds[1], "x", 1);
}

__attribute__((constructor)) static void start(void)
{
    const char *dir = getenv("POWERCUT_DIR"), *s = getenv("POWERCUT_SEED");
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    seed = (s ? strtoul(s, NULL, 10) : (unsigned long)t.tv_nsec ^ (unsigned long)getpid() << 20) | 1;
    if (!dir || (mkdir(dir, 0777) != 0 && errno != EEXIST) || !realpath(dir, dir_real)) {
        dir_real[0] = '\0';
        return;
    }
    snprintf(attic, sizeof(attic), "%.4000s.attic", dir_real);  // Beside it, on the same file system.
    mkdir(attic, 0777);
    pthread_t thread;
    if (pipe2(pipe_fds, O_CLOEXEC) != 0 || pthread_create(&thread, NULL, cutter, NULL) != 0) {
        abort();
    }
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR2, &a, NULL);
}

// ---- what is intercepted -----------------------------------------------------------------------------------------

static int opened(int at, const char *path, int flags, mode_t mode)
{
    char full[PATH_MAX];
    absolute(at, path, full);
    bool ours = is_ours(full);
    pthread_mutex_lock(&lock);
    struct stat s;
    bool was_there = ours && stat(full, &s) == 0;
    if (was_there && (flags & O_TRUNC) && s.st_size > 0) {
        int fd = REAL(openat)(AT_FDCWD, full, O_WRONLY | O_CLOEXEC);
        if (fd >= 0) {
            track(fd, full, 0);
            remember(fd, 0, (size_t)s.st_size);
            by_fd[fd] = NULL;
            REAL(close)(fd);
        }
    }
    int fd = REAL(openat)(at, path, flags, mode);
    int e = errno;
    if (fd >= 0 && ours) {
        track(fd, full, flags);
        if (!was_there && (flags & O_CREAT)) {
            note_name(CREATED, full);
        }
    } else if (fd >= 0 && fd < FDS) {
        by_fd[fd] = NULL;
    }
    pthread_mutex_unlock(&lock);
    errno = e;
    return fd;
}

#define MODE_OF(flags, last)                                                                                           \
    mode_t mode = 0;                                                                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                               \
        va_list args;                                                                                                  \
        va_start(args, last);                                                                                          \
        mode = va_arg(args, mode_t);                                                                                   \
        va_end(args);                                                                                                  \
    }

int open(const char *path, int flags, ...)
{
    MODE_OF(flags, flags)
    return opened(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...)
{
    MODE_OF(flags, flags)
    return opened(AT_FDCWD, path, flags, mode);
}
int openat(int at, const char *path, int flags, ...)
{
    MODE_OF(flags, flags)
    return opened(at, path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...)
{
    MODE_OF(flags, flags)
    return opened(at, path, flags, mode);
}
int close(int fd)
{
    if (fd >= 0 && fd < FDS && by_fd[fd]) {
        pthread_mutex_lock(&lock);
        by_fd[fd] = NULL;
        pthread_mutex_unlock(&lock);
    }
    return REAL(close)(fd);
}

// A write happens under the lock if it is to a file of ours.
#define WRITES(fd, offset, len, call)                                                                                  \
    if (!file_of(fd)) {                                                                                                \
        return call;                                                                                                   \
    }                                                                                                                  \
    pthread_mutex_lock(&lock);                                                                                         \
    remember(fd, offset, len);                                                                                         \
    ssize_t result = call;                                                                                             \
    int e = errno;                                                                                                     \
    pthread_mutex_unlock(&lock);                                                                                       \
    errno = e;                                                                                                         \
    return result

static size_t iov_len(const struct iovec *iov, int count)
{
    size_t n = 0;
    for (int i = 0; i < count; i++) {
        n += iov[i].iov_len;
    }
    return n;
}

ssize_t write(int fd, const void *p, size_t n)
{
    static __typeof__(&write) real;
    if (!real) {
        real = REAL(write);
    }
    WRITES(fd, lseek(fd, 0, SEEK_CUR), n, real(fd, p, n));
}
ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    static __typeof__(&pwrite) real;
    if (!real) {
        real = REAL(pwrite);
    }
    WRITES(fd, at, n, real(fd, p, n, at));
}
ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
    return pwrite(fd, p, n, at);
}
ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t at)
{
    WRITES(fd, at, iov_len(iov, count), REAL(pwritev)(fd, iov, count, at));
}
ssize_t pwritev64(int fd, const struct iovec *iov, int count, off64_t at)
{
    return pwritev(fd, iov, count, at);
}
int ftruncate(int fd, off_t len)
{
    struct stat s;
    off_t old = file_of(fd) && fstat(fd, &s) == 0 ? s.st_size : 0;
    WRITES(fd, len < old ? len : old, len < old ? (size_t)(old - len) : 0, REAL(ftruncate)(fd, len));
}
int ftruncate64(int fd, off64_t len)
{
    return ftruncate(fd, len);
}
int fallocate(int fd, int mode, off_t at, off_t len)
{
    WRITES(fd, at, 0, REAL(fallocate)(fd, mode, at, len));
}
int fallocate64(int fd, int mode, off64_t at, off64_t len)
{
    return fallocate(fd, mode, at, len);
}

static int synced(int fd, bool is_full)
{
    char path[PATH_MAX];
    struct stat s;
    struct file *f = file_of(fd);
    bool is_dir = !f && fstat(fd, &s) == 0 && S_ISDIR(s.st_mode) && fd_path(fd, path);
    pthread_mutex_lock(&lock);
    // What the real disk does is not of interest: the undo list is the disk. But a real sync costs real time.
    int rc = is_full ? REAL(fsync)(fd) : REAL(fdatasync)(fd);
    int e = errno;
    if (rc == 0 && f) {
        forget(f);
    }
    if (rc == 0 && is_dir) {
        forget_names(path);
    }
    pthread_mutex_unlock(&lock);
    errno = e;
    return rc;
}
int fdatasync(int fd)
{
    return synced(fd, false);
}
int fsync(int fd)
{
    return synced(fd, true);
}

static int renamed(int at, const char *from, int to_at, const char *to)
{
    char a[PATH_MAX], b[PATH_MAX];
    absolute(at, from, a);
    absolute(to_at, to, b);
    pthread_mutex_lock(&lock);
    struct name_change *c = NULL;
    if (is_ours(b)) {
        c = note_name(RENAMED, b);
        snprintf(c->from, sizeof(c->from), "%s", a);
        save_link(c, b);
    }
    int rc = REAL(renameat)(at, from, to_at, to);
    int e = errno;
    if (rc != 0 && c) {
        names = c->next;
        free(c);
    } else if (rc == 0) {
        for (struct file *f = files; f; f = f->next) {
            if (strcmp(f->path, a) == 0) {
                snprintf(f->path, sizeof(f->path), "%s", b);
            }
        }
    }
    pthread_mutex_unlock(&lock);
    errno = e;
    return rc;
}
int rename(const char *from, const char *to)
{
    return renamed(AT_FDCWD, from, AT_FDCWD, to);
}
int renameat(int at, const char *from, int to_at, const char *to)
{
    return renamed(at, from, to_at, to);
}

static int removed(int at, const char *path, int flags)
{
    char full[PATH_MAX];
    absolute(at, path, full);
    pthread_mutex_lock(&lock);
    struct name_change *c = NULL;
    if (is_ours(full) && !(flags & AT_REMOVEDIR)) {
        c = note_name(REMOVED, full);
        save_link(c, full);
    }
    int rc = REAL(unlinkat)(at, path, flags);
    int e = errno;
    if (rc != 0 && c) {
        names = c->next;
        free(c);
    }
    pthread_mutex_unlock(&lock);
    errno = e;
    return rc;
}
int unlink(const char *path)
{
    return removed(AT_FDCWD, path, 0);
}
int unlinkat(int at, const char *path, int flags)
{
    return removed(at, path, flags);
}
