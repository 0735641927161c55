// SPDX-License-Identifier: Apache-2.0
// A wall clock that jumps: an LD_PRELOAD library that adds an offset to what a process reads of the time of
// day (CL-23).
//
// The offset, in milliseconds, stands in the first 8 bytes of the file CLOCKJUMP_FILE, which is mapped: a
// test writes it while the process runs. The monotonic clock is left alone, as the kernel leaves it when
// somebody sets the date.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *offset_ms;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CLOCKJUMP_FILE");
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd >= 0 ? mmap(NULL, sizeof(*offset_ms), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (at == MAP_FAILED || !real_clock_gettime) {
        abort();
    }
    offset_ms = at;
    close(fd);
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    const int rc = real_clock_gettime(id, t);
    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = t->tv_nsec + *offset_ms % 1000 * 1000000;
        t->tv_sec += *offset_ms / 1000 + (ns < 0 ? -1 : ns / 1000000000);
        t->tv_nsec = (ns + 1000000000) % 1000000000;
    }
    return rc;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    (void)zone;
    struct timespec t;
    const int rc = clock_gettime(CLOCK_REALTIME, &t);
    tv->tv_sec = t.tv_sec;
    tv->tv_usec = t.tv_nsec / 1000;
    return rc;
}

time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) {
        *out = t.tv_sec;
    }
    return t.tv_sec;
}
