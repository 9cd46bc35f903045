// Threads that do nothing but read a clock, and count the readings that went back. Signals interrupt them.
//
//   clocks THREADS COUNTS      COUNTS is a file with two numbers for each thread: how often it has read, how often it went back
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static void on_alarm(int number)
{
	(void)number;
}

static void *read_clock(void *argument)
{
	volatile uint64_t *counts = argument;
	struct timespec last = { 0, 0 }, now;
	for (;;) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec < last.tv_sec || (now.tv_sec == last.tv_sec && now.tv_nsec < last.tv_nsec))
			counts[1]++;
		last = now;
		counts[0]++;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = argc == 3 ? atoi(argv[1]) : 0, fd = argc == 3 ? open(argv[2], O_RDWR) : -1;
	if (threads <= 0 || fd < 0)
		return 2;
	uint64_t *counts = mmap(NULL, (size_t)threads * 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (counts == MAP_FAILED)
		return 1;
	signal(SIGALRM, on_alarm);
	setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 1000 }, { 0, 1000 } }, NULL);
	for (int i = 1; i < threads; i++) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, read_clock, counts + 2 * i) != 0)
			return 1;
	}
	read_clock(counts);
}
