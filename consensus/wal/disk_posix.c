// SPDX-License-Identifier: Apache-2.0
// The real disk (disk.h): a directory on a POSIX file system, every path relative to it.
//
// A write that fails, or a sync that fails, is never tried again: the kernel reports a write-back error once and then
// calls the pages clean although their content is gone (engine-notes §1.9). `failed` is set and everything that would
// change the disk is refused from then on. No space is not a failure: nothing was promised, and there may be
// room again.
//
// A process whose clients have taken all descriptors must still find its own data: a file that cannot be opened is taken
// for lost (law 2), and a segment that cannot be made ends the process. So a few descriptors are kept aside; one is given
// away for each file that finds none, and a file that is closed takes its place, at once, so that nobody else gets it.
//
// Threads: any that may block; a file belongs to one thread at a time. `failed` is read and written atomically.
#include "consensus/wal/disk.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

// More than threads open at a time: each has one file, or two, and a connection may be quicker where one was given away.
enum { SPARES = 32 };
enum { HINT_BYTES = 128 << 10 };  // Of what will be read, at a time.

struct disk_posix {
    struct disk base;
    int root_fd;
    int lock_fd;  // Holds the lock on LOCK as long as it is open.
    pthread_mutex_t mutex;
    int spares[SPARES];  // Under mutex: duplicates of root_fd.
    int spares_count;    // The same.
};

struct disk_file {
    struct disk_posix *disk;
    int fd;
    bool needs_fsync;  // Not preallocated by the file system: sizes change, fdatasync may not be trusted with them.
};

static struct disk_posix *posix(struct disk *d)
{
    return container_of(d, struct disk_posix, base);
}

static bool is_failed(const struct disk_posix *d)
{
    return __atomic_load_n(&d->base.failed, __ATOMIC_ACQUIRE);
}

static enum rc fail(struct disk_posix *d, const char *what)
{
    int error = errno;
    if (error == ENOSPC || error == EDQUOT) {
        log_error("disk: %s: %s", what, strerror(error));
        return RC_NO_SPACE;
    }
    __atomic_store_n(&d->base.failed, true, __ATOMIC_RELEASE);
    log_critical("disk: %s failed: %s; nothing more is written", what, strerror(error));
    return RC_IO;
}

// For calls that promise nothing about data.
static enum rc refuse(const char *what, const char *path)
{
    if (errno == ENOENT) {
        return RC_NO_FILE;
    }
    int error = errno;
    log_error("disk: %s %s: %s", what, path, strerror(error));
    return error == ENOSPC || error == EDQUOT ? RC_NO_SPACE : RC_IO;
}

// As openat below the root, with a descriptor from those kept aside if there is no other.
static int fd_open(struct disk_posix *d, const char *path, int flags)
{
    int fd = openat(d->root_fd, path, flags | O_CLOEXEC, 0640);
    if (fd >= 0 || (errno != EMFILE && errno != ENFILE)) {
        return fd;
    }
    pthread_mutex_lock(&d->mutex);
    while (fd < 0 && (errno == EMFILE || errno == ENFILE) && d->spares_count > 0) {
        close(d->spares[--d->spares_count]);
        fd = openat(d->root_fd, path, flags | O_CLOEXEC, 0640);
    }
    pthread_mutex_unlock(&d->mutex);
    return fd;
}

static void fd_close(struct disk_posix *d, int fd)
{
    pthread_mutex_lock(&d->mutex);
    const bool is_kept = d->spares_count < SPARES && dup3(d->root_fd, fd, O_CLOEXEC) == fd;
    if (is_kept) {
        d->spares[d->spares_count++] = fd;
    }
    pthread_mutex_unlock(&d->mutex);
    if (!is_kept) {
        close(fd);
    }
}

static void spares_take(struct disk_posix *d)
{
    for (int fd; d->spares_count < SPARES && (fd = fcntl(d->root_fd, F_DUPFD_CLOEXEC, 0)) >= 0;) {
        d->spares[d->spares_count++] = fd;
    }
}

static enum rc posix_open(struct disk *d, const char *path, int flags, struct disk_file **out)
{
    if ((flags & DISK_WRITE) && is_failed(posix(d))) {
        return RC_IO;
    }
    int mode = flags & DISK_WRITE ? O_RDWR : O_RDONLY;
    mode |= flags & DISK_CREATE ? O_CREAT : 0;
    // O_NONBLOCK: opening somebody's FIFO must not wait for its other end.
    int fd = fd_open(posix(d), path, mode | O_NONBLOCK);
    if (fd < 0) {
        return refuse("open", path);
    }
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        fd_close(posix(d), fd);
        return RC_IO;
    }
    struct disk_file *f = mem_zalloc(sizeof(*f));
    f->disk = posix(d);
    f->fd = fd;
    *out = f;
    return RC_OK;
}

static void posix_close(struct disk_file *f)
{
    fd_close(f->disk, f->fd);
    free(f);
}

static enum rc write_zeros(struct disk_file *f, uint64_t from, uint64_t to)
{
    enum { CHUNK = 1 << 20 };
    uint8_t *zeros = mem_zalloc(to - from < CHUNK ? to - from : CHUNK);
    enum rc rc = RC_OK;
    while (rc == RC_OK && from < to) {
        size_t n = to - from < CHUNK ? to - from : CHUNK;
        ssize_t done = pwrite(f->fd, zeros, n, (off_t)from);
        if (done > 0) {
            from += (uint64_t)done;
        } else if (done == 0 || errno != EINTR) {
            rc = fail(f->disk, "write of zeros");
        }
    }
    free(zeros);
    return rc;
}

static enum rc posix_allocate(struct disk_file *f, uint64_t bytes)
{
    struct stat st;
    if (is_failed(f->disk) || fstat(f->fd, &st) != 0) {
        return RC_IO;
    }
    if ((uint64_t)st.st_size >= bytes) {
        return RC_OK;
    }
    // Asked first, so that a try in vain does not take what is left from others for as long as it lasts.
    struct statvfs v;
    if (fstatvfs(f->fd, &v) == 0 && bytes - (uint64_t)st.st_size > (uint64_t)v.f_bavail * v.f_frsize) {
        return RC_NO_SPACE;
    }
    int rc;
    do {
        rc = fallocate(f->fd, 0, 0, (off_t)bytes);
    } while (rc != 0 && errno == EINTR);
    if (rc == 0) {
        return RC_OK;
    }
    if (errno == EOPNOTSUPP || errno == ENOSYS) {
        // The emulation in the C library writes a byte per block; whole chunks are quicker.
        f->needs_fsync = true;
        const enum rc written = write_zeros(f, (uint64_t)st.st_size, bytes);
        if (written != RC_NO_SPACE) {
            return written;
        }
        errno = ENOSPC;
    }
    const enum rc result = fail(f->disk, "allocation");
    if (result == RC_NO_SPACE && ftruncate(f->fd, st.st_size) != 0) {
        return fail(f->disk, "truncation");
    }
    return result;
}

// What is allocated but was never written counts as a hole (lseek(2)), reliably so on these; it is then written in place.
static bool writes_in_place(int fd)
{
    enum { EXT4 = 0xef53, XFS = 0x58465342 };
    struct statfs v;
    return fstatfs(fd, &v) == 0 && (v.f_type == EXT4 || v.f_type == XFS);
}

static enum rc posix_fill(struct disk_file *f, uint64_t from, uint64_t to, uint64_t bytes, uint64_t *next)
{
    struct stat st;
    *next = UINT64_MAX;
    if (is_failed(f->disk) || fstat(f->fd, &st) != 0) {
        return RC_IO;
    }
    to = (uint64_t)st.st_size < to ? (uint64_t)st.st_size : to;
    const off_t hole = f->needs_fsync || from >= to || !writes_in_place(f->fd) ? -1 : lseek(f->fd, (off_t)from, SEEK_HOLE);
    if (hole < (off_t)from || (uint64_t)hole >= to) {
        return RC_OK;
    }
    const off_t data = lseek(f->fd, hole, SEEK_DATA);
    if (data < 0 && errno != ENXIO) {
        return RC_OK;  // Where the hole ends is not known.
    }
    to = data >= 0 && (uint64_t)data < to ? (uint64_t)data : to;
    to = to - (uint64_t)hole < bytes ? to : (uint64_t)hole + bytes;
    TRY(write_zeros(f, (uint64_t)hole, to));
    // Begun at once, for the kernel would bring it all together later, and a batch would wait behind it.
    (void)sync_file_range(f->fd, hole, (off_t)(to - (uint64_t)hole), SYNC_FILE_RANGE_WRITE);
    *next = to;
    return RC_OK;
}

// Moves past `done` bytes. Works on the caller's copy of the vectors.
static void iov_advance(struct iovec **iov, int *count, size_t done)
{
    while (*count > 0 && done >= (*iov)->iov_len) {
        done -= (*iov)->iov_len;
        *iov += 1;
        *count -= 1;
    }
    if (*count > 0) {
        (*iov)->iov_base = (uint8_t *)(*iov)->iov_base + done;
        (*iov)->iov_len -= done;
    }
}

static enum rc write_some(struct disk_file *f, struct iovec *iov, int count, uint64_t *offset)
{
    while (count > 0) {
        ssize_t done = pwritev(f->fd, iov, count, (off_t)*offset);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0) {
            return fail(f->disk, "write");
        }
        if (done == 0) {
            errno = EIO;
            return fail(f->disk, "write");
        }
        *offset += (uint64_t)done;
        iov_advance(&iov, &count, (size_t)done);
    }
    return RC_OK;
}

static enum rc posix_writev(struct disk_file *f, const struct iovec *iov, int count, uint64_t offset)
{
    if (is_failed(f->disk)) {
        return RC_IO;
    }
    struct iovec part[IOV_MAX];  // 16 KiB; the caller's vectors stay as they are after a short write.
    while (count > 0) {
        int n = count < IOV_MAX ? count : IOV_MAX;
        memcpy(part, iov, (size_t)n * sizeof(*iov));
        // Vectors of length zero would look like the end in iov_advance only if all were; skip them there.
        size_t bytes = 0;
        for (int i = 0; i < n; i++) {
            bytes += part[i].iov_len;
        }
        if (bytes > 0) {
            TRY(write_some(f, part, n, &offset));
        }
        iov += n;
        count -= n;
    }
    return RC_OK;
}

static enum rc posix_sync(struct disk_file *f)
{
    if (is_failed(f->disk)) {
        return RC_IO;
    }
    int rc;
    do {
        rc = f->needs_fsync ? fsync(f->fd) : fdatasync(f->fd);
    } while (rc != 0 && errno == EINTR);
    return rc == 0 ? RC_OK : fail(f->disk, "sync");
}

static enum rc posix_read(struct disk_file *f, uint64_t offset, void *to, size_t len, size_t *got)
{
    *got = 0;
    while (*got < len) {
        ssize_t n = pread(f->fd, (uint8_t *)to + *got, len - *got, (off_t)(offset + *got));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return refuse("read", "");
        }
        if (n == 0) {
            break;
        }
        *got += (size_t)n;
    }
    return RC_OK;
}

// Of one hint Linux serves the first part, as long as what the device reads ahead by itself or takes in one request, and
// drops the rest without a word (man 2 readahead; 128 KiB by default).
static void posix_will_read(struct disk_file *f, uint64_t offset, uint64_t len)
{
    for (uint64_t at = 0; at < len; at += HINT_BYTES) {
        const uint64_t n = len - at < HINT_BYTES ? len - at : HINT_BYTES;
        (void)posix_fadvise(f->fd, (off_t)(offset + at), (off_t)n, POSIX_FADV_WILLNEED);
    }
}

static enum rc posix_size(struct disk_file *f, uint64_t *out)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0) {
        return refuse("stat", "");
    }
    *out = (uint64_t)st.st_size;
    return RC_OK;
}

static enum rc posix_truncate(struct disk_file *f, uint64_t bytes)
{
    if (is_failed(f->disk)) {
        return RC_IO;
    }
    int rc;
    do {
        rc = ftruncate(f->fd, (off_t)bytes);
    } while (rc != 0 && errno == EINTR);
    f->needs_fsync = true;
    return rc == 0 ? RC_OK : fail(f->disk, "truncation");
}

static enum rc posix_rename(struct disk *d, const char *from, const char *to)
{
    if (is_failed(posix(d))) {
        return RC_IO;
    }
    int root = posix(d)->root_fd;
    return renameat(root, from, root, to) == 0 ? RC_OK : refuse("rename", from);
}

static enum rc posix_unlink(struct disk *d, const char *path)
{
    if (is_failed(posix(d))) {
        return RC_IO;
    }
    return unlinkat(posix(d)->root_fd, path, 0) == 0 ? RC_OK : refuse("unlink", path);
}

static enum rc posix_make_dir(struct disk *d, const char *path)
{
    if (is_failed(posix(d))) {
        return RC_IO;
    }
    return mkdirat(posix(d)->root_fd, path, 0750) == 0 || errno == EEXIST ? RC_OK : refuse("mkdir", path);
}

static enum rc posix_sync_dir(struct disk *d, const char *path)
{
    if (is_failed(posix(d))) {
        return RC_IO;
    }
    int fd = fd_open(posix(d), path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) {
        return refuse("open directory", path);
    }
    int rc;
    do {
        rc = fsync(fd);
    } while (rc != 0 && errno == EINTR);
    enum rc result = RC_OK;
    if (rc != 0) {
        (void)fail(posix(d), "directory sync");
        disk_fail(d);
        result = RC_IO;
    }
    fd_close(posix(d), fd);
    return result;
}

static int name_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum rc posix_list(struct disk *d, const char *path, void (*each)(void *ctx, const char *name), void *ctx)
{
    int fd = fd_open(posix(d), path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) {
        return refuse("open directory", path);
    }
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        fd_close(posix(d), fd);
        return RC_IO;
    }
    char **names = NULL;
    size_t count = 0, cap = 0;
    errno = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL; errno = 0) {
        struct stat st;
        if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) {
            continue;  // Directories, FIFOs, links: not ours (CR-11).
        }
        if (count == cap) {
            cap = cap == 0 ? 64 : cap * 2;
            names = mem_realloc(names, cap * sizeof(*names));
        }
        names[count++] = mem_strndup(e->d_name, strlen(e->d_name));
    }
    enum rc rc = errno == 0 ? RC_OK : RC_IO;
    closedir(dir);
    if (count > 0) {
        qsort(names, count, sizeof(*names), name_compare);
    }
    for (size_t i = 0; i < count; i++) {
        if (rc == RC_OK) {
            each(ctx, names[i]);
        }
        free(names[i]);
    }
    free(names);
    return rc;
}

static void posix_mark_failed(struct disk *d, const char *reason)
{
    // Beside the table on purpose: `failed` refuses everything there.
    int fd = fd_open(posix(d), "store.failed", O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0) {
        return;
    }
    ssize_t n = write(fd, reason, strlen(reason));
    (void)n;  // Best effort: an empty mark says enough.
    (void)fsync(fd);
    fd_close(posix(d), fd);
}

static enum rc make_root(const char *root)
{
    char path[PATH_MAX];
    size_t len = strlen(root);
    if (len == 0 || len >= sizeof(path)) {
        return RC_INVALID;
    }
    memcpy(path, root, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0') {
            continue;
        }
        char kept = path[i];
        path[i] = '\0';
        if (mkdir(path, 0750) != 0 && errno != EEXIST) {
            return refuse("mkdir", path);
        }
        path[i] = kept;
    }
    return RC_OK;
}

// One process a data directory (CR-20). The kernel lets go of the lock when the process ends, however it ends.
static enum rc root_lock(struct disk_posix *d, const char *root)
{
    d->lock_fd = openat(d->root_fd, "LOCK", O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (d->lock_fd < 0) {
        return refuse("open", "LOCK");
    }
    if (flock(d->lock_fd, LOCK_EX | LOCK_NB) == 0) {
        return RC_OK;
    }
    if (errno != EWOULDBLOCK) {
        return refuse("lock", root);
    }
    log_error("disk: %s is in use by another process", root);
    return RC_BUSY;
}

enum rc disk_posix_open(const char *root, struct disk **out)
{
    TRY(make_root(root));
    struct disk_posix *d = mem_zalloc(sizeof(*d));
    d->base = (struct disk){
        .open = posix_open,
        .close = posix_close,
        .allocate = posix_allocate,
        .writev = posix_writev,
        .sync = posix_sync,
        .read = posix_read,
        .will_read = posix_will_read,
        .fill = posix_fill,
        .size = posix_size,
        .truncate = posix_truncate,
        .rename = posix_rename,
        .unlink = posix_unlink,
        .make_dir = posix_make_dir,
        .sync_dir = posix_sync_dir,
        .list = posix_list,
        .mark_failed = posix_mark_failed,
    };
    d->lock_fd = -1;
    pthread_mutex_init(&d->mutex, NULL);
    d->root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum rc rc = d->root_fd < 0 ? refuse("open", root) : root_lock(d, root);
    if (rc != RC_OK) {
        disk_posix_close(&d->base);
        return rc;
    }
    spares_take(d);
    *out = &d->base;
    return RC_OK;
}

void disk_posix_close(struct disk *disk)
{
    struct disk_posix *d = posix(disk);
    if (d->lock_fd >= 0) {
        close(d->lock_fd);
    }
    if (d->root_fd >= 0) {
        close(d->root_fd);
    }
    while (d->spares_count > 0) {
        close(d->spares[--d->spares_count]);
    }
    pthread_mutex_destroy(&d->mutex);
    free(d);
}
