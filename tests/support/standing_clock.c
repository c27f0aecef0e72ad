/* Preloaded into a server: its wall clock stands at the microseconds since the epoch that the first 8 bytes of the file
   CLOCK_FILE hold, until somebody writes others there. Its monotonic clock runs. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t standing(void) {
    static volatile int64_t *shared;
    if (!shared) {
        int file = open(getenv("CLOCK_FILE"), O_RDONLY);
        shared = mmap(NULL, sizeof *shared, PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    return *shared;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, clock, now);
    now->tv_sec = standing() / 1000000;
    now->tv_nsec = standing() % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    now->tv_sec = standing() / 1000000;
    now->tv_usec = standing() % 1000000;
    return 0;
}

time_t time(time_t *into) {
    time_t now = standing() / 1000000;
    if (into) *into = now;
    return now;
}
