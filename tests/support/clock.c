/* Preloaded into a server: its wall clock is off by as many seconds as the file CLOCK_SKEW says at the moment, which may
   be fractions of them; its monotonic clock is not. Asks the kernel itself, because allocators ask for the time before anything can be looked up. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long skew(void) { /* in ns */
    const char *path = getenv("CLOCK_SKEW");
    char seconds[32] = "";
    long file = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY) : -1;
    if (file >= 0) {
        syscall(SYS_read, file, seconds, sizeof seconds - 1);
        syscall(SYS_close, file);
    }
    return strtod(seconds, NULL) * 1e9;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long long shown = now->tv_sec * 1000000000LL + now->tv_nsec + skew();
        now->tv_sec = shown / 1000000000LL;
        now->tv_nsec = shown % 1000000000LL;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
