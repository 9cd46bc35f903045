// Timers of all kinds, system calls that sleep, and clocks.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ---- timers ----

enum { far = 5000 }; // seconds

static volatile sig_atomic_t alarms, thread_ticks, ticks_before;
static timer_t ticking, distant, of_thread, of_boot, idle;
static int descriptor_ticking, descriptor_distant, descriptor_absolute, descriptor_expired, descriptor_idle;
static volatile pid_t ticked_thread;
static pid_t target_thread;
static pthread_t thread;

static void on_alarm(int number)
{
	(void)number;
	alarms++;
}

static void on_thread_tick(int number)
{
	(void)number;
	thread_ticks++;
	ticked_thread = (pid_t)syscall(SYS_gettid);
}

static void *sit(void *argument)
{
	(void)argument;
	target_thread = (pid_t)syscall(SYS_gettid);
	for (;;)
		pause();
	return NULL;
}

static timer_t make_timer(int clock, int notify, int number, int value)
{
	timer_t timer;
	struct sigevent event = { .sigev_notify = notify, .sigev_signo = number, .sigev_value.sival_int = value };
	if (notify == SIGEV_THREAD_ID)
		event._sigev_un._tid = target_thread;
	must(timer_create(clock, &event, &timer));
	return timer;
}

static void start_timer(timer_t timer, double first, long interval_ms)
{
	struct itimerspec value = {
		.it_value = { (time_t)first, (long)((first - (double)(time_t)first) * 1e9) },
		.it_interval = { interval_ms / 1000, interval_ms % 1000 * 1000000 },
	};
	must(timer_settime(timer, 0, &value, NULL));
}

static int make_descriptor(int clock, int flags, double first, long interval_ms)
{
	int fd = must(timerfd_create(clock, TFD_CLOEXEC | TFD_NONBLOCK));
	struct itimerspec value = {
		.it_value = { (time_t)first, (long)((first - (double)(time_t)first) * 1e9) },
		.it_interval = { interval_ms / 1000, interval_ms % 1000 * 1000000 },
	};
	if (first != 0)
		must(timerfd_settime(fd, flags, &value, NULL));
	return fd;
}

static bool descriptor_ticked(void)
{
	return poll(&(struct pollfd){ .fd = descriptor_ticking, .events = POLLIN }, 1, 0) == 1;
}

static bool expired(void)
{
	return poll(&(struct pollfd){ .fd = descriptor_expired, .events = POLLIN }, 1, 0) == 1;
}

static bool have_target(void)
{
	return target_thread != 0;
}

static void set_up_timers(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	sigset_t blocked;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGRTMIN + 1);
	must(sigprocmask(SIG_BLOCK, &blocked, NULL));
	must(-pthread_create(&thread, NULL, sit, NULL));
	if (!within(have_target))
		die("thread");
	signal(SIGRTMIN + 2, on_thread_tick);
	signal(SIGALRM, on_alarm);
	ticking = make_timer(CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGRTMIN + 1, 31337);
	timer_t hole = make_timer(CLOCK_MONOTONIC, SIGEV_NONE, 0, 0);
	distant = make_timer(CLOCK_REALTIME, SIGEV_NONE, 0, 0);
	of_thread = make_timer(CLOCK_MONOTONIC, SIGEV_THREAD_ID, SIGRTMIN + 2, 0);
	of_boot = make_timer(CLOCK_BOOTTIME, SIGEV_NONE, 0, 0);
	idle = make_timer(CLOCK_MONOTONIC, SIGEV_NONE, 0, 0);
	must(timer_delete(hole)); // the numbers have a gap
	start_timer(ticking, 0.02, 20);
	start_timer(distant, far, 0);
	start_timer(of_thread, 0.02, 20);
	start_timer(of_boot, far, 7000);
	must(setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 20000 }, { 0, 20000 } }, NULL));
	must(setitimer(ITIMER_VIRTUAL, &(struct itimerval){ { 77, 0 }, { far, 0 } }, NULL));
	must(setitimer(ITIMER_PROF, &(struct itimerval){ { 78, 0 }, { far, 0 } }, NULL));
	descriptor_ticking = make_descriptor(CLOCK_MONOTONIC, 0, 0.02, 20);
	descriptor_distant = make_descriptor(CLOCK_BOOTTIME, 0, far, 9000);
	descriptor_absolute = make_descriptor(CLOCK_REALTIME, TFD_TIMER_ABSTIME, seconds(CLOCK_REALTIME) + far, 0);
	descriptor_expired = make_descriptor(CLOCK_MONOTONIC, 0, 0.001, 0);
	descriptor_idle = make_descriptor(CLOCK_MONOTONIC, 0, 0, 0);
	if (!within(expired))
		die("timerfd");
}

static bool alarmed(void)
{
	return alarms > ticks_before + 2;
}

static bool thread_ticked(void)
{
	return thread_ticks > ticks_before + 2;
}

// want_remaining: what is left of a timer that was set to `far` never grows, and time does not jump.
static void want_remaining(const char *what, struct timespec value, struct timespec interval, long interval_seconds)
{
	if (value.tv_sec > far || value.tv_sec < far - 1000)
		bad("%s: %ld s are left of %d", what, (long)value.tv_sec, far);
	if (interval.tv_sec != interval_seconds || interval.tv_nsec != 0)
		bad("%s: its interval is %ld s", what, (long)interval.tv_sec);
}

static void check_posix_timers(void)
{
	sigset_t set;
	siginfo_t info;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 1);
	for (int i = 0; i < 3; i++) {
		int got;
		while ((got = sigtimedwait(&set, &info, &(struct timespec){ 20, 0 })) < 0 && errno == EINTR)
			; // another timer's signal
		want_equal(got, SIGRTMIN + 1);
		want_equal(info.si_code, SI_TIMER);
		want_equal(info.si_value.sival_int, 31337);
	}
	struct itimerspec left;
	want_equal(timer_gettime(ticking, &left), 0);
	want_equal(left.it_interval.tv_nsec, 20000000);
	want_equal(timer_gettime(distant, &left), 0);
	want_remaining("POSIX timer of the real clock", left.it_value, left.it_interval, 0);
	want_equal(timer_gettime(of_boot, &left), 0);
	want_remaining("POSIX timer of the boot clock", left.it_value, left.it_interval, 7);
	want_equal(timer_gettime(idle, &left), 0);
	want_equal(left.it_value.tv_sec + left.it_value.tv_nsec, 0);
	ticks_before = thread_ticks;
	want(within(thread_ticked));
	want_equal(ticked_thread, target_thread);
}

static void check_interval_timers(void)
{
	struct itimerval left;
	ticks_before = alarms;
	want(within(alarmed));
	want_equal(getitimer(ITIMER_REAL, &left), 0);
	want_equal(left.it_interval.tv_usec, 20000);
	want_equal(getitimer(ITIMER_VIRTUAL, &left), 0);
	want(left.it_value.tv_sec > far - 100 && left.it_value.tv_sec <= far); // it counts the time that is computed
	want_equal(left.it_interval.tv_sec, 77);
	want_equal(getitimer(ITIMER_PROF, &left), 0);
	want(left.it_value.tv_sec > far - 100 && left.it_value.tv_sec <= far);
	want_equal(left.it_interval.tv_sec, 78);
}

static void check_descriptors(void)
{
	uint64_t count = 0;
	struct itimerspec left;
	for (int i = 0; i < 3; i++) {
		want(within(descriptor_ticked));
		want_equal(read(descriptor_ticking, &count, sizeof count), sizeof count);
		want(count > 0);
	}
	want_equal(timerfd_gettime(descriptor_ticking, &left), 0);
	want_equal(left.it_interval.tv_nsec, 20000000);
	want_equal(timerfd_gettime(descriptor_distant, &left), 0);
	want_remaining("timerfd of the boot clock", left.it_value, left.it_interval, 9);
	want_equal(timerfd_gettime(descriptor_absolute, &left), 0);
	want_remaining("absolute timerfd", left.it_value, left.it_interval, 0);
	want_equal(read(descriptor_expired, &count, sizeof count), sizeof count);
	want_equal(count, 1);
	must(timerfd_settime(descriptor_expired, 0, &(struct itimerspec){ .it_value = { 0, 1000000 } }, NULL));
	want(within(expired));
	errno = 0;
	want_equal(read(descriptor_idle, &count, sizeof count), -1);
	want_equal(errno, EAGAIN);
}

static void check_timers(void)
{
	check_posix_timers();
	check_interval_timers();
	check_descriptors();
}

const struct state timers = { "timers", set_up_timers, check_timers, NULL };

// ---- sleepers ----
//
// Each is a process in a system call with a time limit. The limit must be kept whole: none may return early, in the
// clock that it sees, but for what the manual allows (EINTR, on which a program goes on with what is left).

enum { limit = 4 };

static struct sleep_result {
	double began, ended;
	int value, error, interrupted;
} *results;

static int dry[2]; // a pipe that never has data
static sem_t *semaphore;

static struct timespec left_of(double began)
{
	double left = began + limit - seconds(CLOCK_MONOTONIC);
	if (left < 0)
		left = 0;
	return (struct timespec){ (time_t)left, (long)((left - (double)(time_t)left) * 1e9) };
}

static struct timespec end_of(double began)
{
	double end = began + limit;
	return (struct timespec){ (time_t)end, (long)((end - (double)(time_t)end) * 1e9) };
}

static int by_select(double began)
{
	(void)began;
	fd_set set;
	FD_ZERO(&set);
	FD_SET(dry[0], &set);
	struct timeval time = { limit, 0 };
	return select(dry[0] + 1, &set, NULL, NULL, &time);
}

static int by_pselect(double began)
{
	(void)began;
	fd_set set;
	FD_ZERO(&set);
	FD_SET(dry[0], &set);
	return pselect(dry[0] + 1, &set, NULL, NULL, &(struct timespec){ limit, 0 }, NULL);
}

static int by_poll(double began)
{
	struct timespec left = left_of(began);
	return poll(&(struct pollfd){ .fd = dry[0], .events = POLLIN }, 1, (int)(left.tv_sec * 1000 + left.tv_nsec / 1000000) + 1);
}

static int by_ppoll(double began)
{
	(void)began;
	return ppoll(&(struct pollfd){ .fd = dry[0], .events = POLLIN }, 1, &(struct timespec){ limit, 0 }, NULL);
}

static struct timespec nap;

// by_nanosleep goes on, when it is interrupted, with what the kernel says is left.
static int by_nanosleep(double began)
{
	(void)began;
	if (nap.tv_sec == 0 && nap.tv_nsec == 0)
		nap.tv_sec = limit;
	return nanosleep(&nap, &nap);
}

static int by_clock_nanosleep(double began)
{
	struct timespec end = end_of(began);
	int e = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL);
	errno = e;
	return e == 0 ? 0 : -1;
}

static int by_epoll(double began)
{
	struct timespec left = left_of(began);
	struct epoll_event event = { .events = EPOLLIN };
	int fd = must(epoll_create1(EPOLL_CLOEXEC));
	must(epoll_ctl(fd, EPOLL_CTL_ADD, dry[0], &event));
	int n = epoll_wait(fd, &event, 1, (int)(left.tv_sec * 1000 + left.tv_nsec / 1000000) + 1);
	int kept = errno;
	close(fd);
	errno = kept;
	return n;
}

static int by_futex(double began)
{
	static int word = 5;
	struct timespec left = left_of(began);
	long n = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 5, &left, NULL, 0);
	return n < 0 && errno == ETIMEDOUT ? 0 : (int)n;
}

static int by_semaphore(double began)
{
	(void)began;
	static struct timespec end;
	if (end.tv_sec == 0) {
		double at = seconds(CLOCK_MONOTONIC) + limit;
		end = (struct timespec){ (time_t)at, (long)((at - (double)(time_t)at) * 1e9) };
	}
	int n = sem_clockwait(semaphore, CLOCK_MONOTONIC, &end);
	return n < 0 && errno == ETIMEDOUT ? 0 : n;
}

static int by_sigtimedwait(double began)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	struct timespec left = left_of(began);
	int n = sigtimedwait(&set, NULL, &left);
	return n < 0 && errno == EAGAIN ? 0 : n;
}

static int by_receive(double began)
{
	static int pair[2];
	if (pair[0] == 0)
		must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	struct timespec left = left_of(began);
	must(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ left.tv_sec, left.tv_nsec / 1000 + 1 },
			sizeof(struct timeval)));
	char byte;
	ssize_t n = recv(pair[0], &byte, 1, 0);
	return n < 0 && errno == EAGAIN ? 0 : (int)n;
}

static const struct sleeper {
	const char *name;
	int (*sleep)(double began);
	bool whole; // it must not even be interrupted
} all_sleepers[] = {
	{ "select", by_select, true },
	{ "pselect", by_pselect, true },
	{ "poll", by_poll, false },
	{ "ppoll", by_ppoll, true },
	{ "nanosleep", by_nanosleep, false },
	{ "clock_nanosleep", by_clock_nanosleep, true },
	{ "epoll_wait", by_epoll, false },
	{ "futex", by_futex, false },
	{ "sem_clockwait", by_semaphore, false },
	{ "sigtimedwait", by_sigtimedwait, false },
	{ "recv with SO_RCVTIMEO", by_receive, false },
};
enum { sleeper_count = sizeof all_sleepers / sizeof *all_sleepers };

static void sleep_in(const struct sleeper *s, struct sleep_result *result)
{
	result->began = seconds(CLOCK_MONOTONIC);
	for (;;) {
		result->value = s->sleep(result->began);
		result->error = result->value < 0 ? errno : 0;
		if (result->error != EINTR)
			break;
		result->interrupted++;
	}
	result->ended = seconds(CLOCK_MONOTONIC);
	_exit(0);
}

static void set_up_sleepers(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	results = shared(sleeper_count * sizeof *results);
	semaphore = shared(sizeof *semaphore);
	must(sem_init(semaphore, 1, 0));
	must(pipe(dry));
	for (int i = 0; i < sleeper_count; i++)
		if (must(fork()) == 0)
			sleep_in(&all_sleepers[i], &results[i]);
}

static void check_sleepers(void)
{
	for (int i = 0; i < sleeper_count; i++) {
		struct sleep_result *r = &results[i];
		if (r->ended != 0 && r->ended - r->began < limit)
			bad("%s returned %d (%s) after %.6f s, too early", all_sleepers[i].name, r->value, strerror(r->error),
			    r->ended - r->began);
		if (r->ended != 0 && (r->error != 0 || r->value != 0))
			bad("%s returned %d (%s)", all_sleepers[i].name, r->value, strerror(r->error));
		if (r->interrupted != 0 && all_sleepers[i].whole)
			bad("%s was interrupted %d times", all_sleepers[i].name, r->interrupted);
	}
}

static bool all_awake(void)
{
	for (int i = 0; i < sleeper_count; i++)
		if (results[i].ended == 0)
			return false;
	return true;
}

static void command_sleepers(const char *word, const char *argument)
{
	(void)argument;
	if (strcmp(word, "interrupted") == 0) {
		for (int i = 0; i < sleeper_count; i++)
			say("%s %d", all_sleepers[i].name, results[i].interrupted);
		return;
	}
	if (!within(all_awake))
		for (int i = 0; i < sleeper_count; i++)
			if (results[i].ended == 0)
				bad("%s does not return", all_sleepers[i].name);
	check_sleepers();
	for (int i = 0; i < sleeper_count; i++) {
		int status = -1;
		want(waitpid(-1, &status, 0) > 0);
		want_equal(status, 0);
	}
}

const struct state sleepers = { "sleepers", set_up_sleepers, check_sleepers, command_sleepers };

// ---- clock ----
//
// Threads look at the clocks without pause, and none may ever go back. Most of them are in the middle of a look when the
// container is frozen. The coarse clock is not looked at: it is behind by as much as the machine's latest tick is late,
// which differs between machines.

static const int watched[] = { CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME };
enum { watched_count = sizeof watched / sizeof *watched, watchers = 4 };

static struct watch {
	volatile uint64_t looks;
	volatile double back[watched_count], last[watched_count], forward[watched_count];
} *watches;
static uint64_t looks_before[watchers];
static double first_look[watched_count];

static void *watch_clocks(void *argument)
{
	for (struct watch *watch = argument;; watch->looks++)
		for (int i = 0; i < watched_count; i++) {
			double now = seconds(watched[i]), step = now - watch->last[i];
			if (step < watch->back[i])
				watch->back[i] = step;
			if (step > watch->forward[i])
				watch->forward[i] = step;
			watch->last[i] = now;
		}
	return NULL;
}

static void set_up_clock(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	watches = shared(watchers * sizeof *watches);
	for (int i = 0; i < watched_count; i++)
		for (int w = 0; w < watchers; w++)
			watches[w].last[i] = first_look[i] = seconds(watched[i]);
	if (must(fork()) != 0)
		return;
	for (int w = 0; w < watchers; w++)
		must(-pthread_create(&thread, NULL, watch_clocks, &watches[w]));
	sit(NULL);
}

static bool looked(void)
{
	for (int w = 0; w < watchers; w++)
		if (watches[w].looks <= looks_before[w] + 2)
			return false;
	return true;
}

static void check_clock(void)
{
	for (int w = 0; w < watchers; w++)
		looks_before[w] = watches[w].looks;
	want(within(looked));
	for (int i = 0; i < watched_count; i++) {
		for (int w = 0; w < watchers; w++) {
			if (watches[w].back[i] < 0)
				bad("clock %d went back by %.9f s", watched[i], -watches[w].back[i]);
			if (watches[w].forward[i] > 100)
				bad("clock %d jumped by %.3f s", watched[i], watches[w].forward[i]);
		}
		if (seconds(watched[i]) < first_look[i])
			bad("clock %d is before its first value", watched[i]);
	}
}

const struct state moving_clock = { "clock", set_up_clock, check_clock, NULL };
