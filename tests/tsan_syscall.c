// SPDX-License-Identifier: Apache-2.0
// What the thread sanitizer does not see of libuv, shown to it. Linked into builds with SAN=thread only.
//
// libuv closes descriptors by syscall(SYS_close), which is not intercepted, and we open files by openat(), which is not
// either. So a number that libuv has given up and a file of ours has taken looks like one descriptor that two threads use
// without an order between them. Of the two, the close is enough: with it, the sanitizer forgets what it knew of the
// number. libuv is a shared library and finds this `syscall` first.
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef long syscall_fn(long number, ...);

long syscall(long number, ...)
{
    long a[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++) {
        a[i] = va_arg(args, long);  // As the C library's: all that can be there.
    }
    va_end(args);
    if (number == SYS_close) {
        return close((int)a[0]);
    }
    syscall_fn *next = (syscall_fn *)dlsym(RTLD_NEXT, "syscall");
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
