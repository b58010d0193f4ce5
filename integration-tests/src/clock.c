// Moves the wall clock of the program that it is loaded into (LD_PRELOAD) by as many nanoseconds
// as the file named by CLOCK_SHIFT holds, a signed 64-bit number that may change at any time.
// Monotonic clocks stay as they are: a step of the wall clock does not move them either.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t none = 0, *shift = &none;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void load(void) {
	real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
	const char *path = getenv("CLOCK_SHIFT");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0)
		return;
	void *map = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (map != MAP_FAILED)
		shift = map;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
	// Other constructors may ask for the time before ours has run.
	if (!real_clock_gettime)
		real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
	int failed = real_clock_gettime(clock, at);
	if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
		int64_t time = at->tv_sec * INT64_C(1000000000) + at->tv_nsec + *shift;
		at->tv_sec = time / 1000000000;
		at->tv_nsec = time % 1000000000;
	}
	return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
	(void)zone;
	struct timespec time;
	int failed = clock_gettime(CLOCK_REALTIME, &time);
	at->tv_sec = time.tv_sec;
	at->tv_usec = time.tv_nsec / 1000;
	return failed;
}

time_t time(time_t *at) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (at)
		*at = now.tv_sec;
	return now.tv_sec;
}
