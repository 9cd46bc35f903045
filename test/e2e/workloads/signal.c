// Signals that are pending, blocked, handled, queued with values, or to be read from a descriptor.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { queued_values = 5 };

static int to_process, to_thread, to_descriptor, awaited; // realtime signals; SIGRTMIN is known only at run time
static int signal_descriptor;
static sigset_t blocked;
static stack_t alternate;
static char alternate_memory[1 << 16];
static volatile sig_atomic_t handled, on_alternate;
static struct helper child;
static pthread_t waiter;
static volatile int waiter_got;

static void handle(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	char here;
	handled = info->si_pid;
	on_alternate = &here >= alternate_memory && &here < alternate_memory + sizeof alternate_memory;
}

static void queue_to_process(int number, int value)
{
	must(sigqueue(getpid(), number, (union sigval){ .sival_int = value }));
}

static void raise_all(void)
{
	must(kill(getpid(), SIGUSR1));
	must(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR2));
	for (int i = 0; i < queued_values; i++)
		queue_to_process(to_process, 100 + i);
	must(-pthread_sigqueue(pthread_self(), to_thread, (union sigval){ .sival_ptr = &blocked }));
	queue_to_process(to_descriptor, 777);
}

static void take(int number, int code, int value)
{
	sigset_t set;
	siginfo_t info;
	memset(&info, 0, sizeof info);
	sigemptyset(&set);
	sigaddset(&set, number);
	want_equal(sigtimedwait(&set, &info, &(struct timespec){ 0, 0 }), number);
	want_equal(info.si_code, code);
	want_equal(info.si_pid, getpid());
	if (code == SI_QUEUE)
		want_equal(info.si_value.sival_int, value);
}

static void take_all(void)
{
	take(SIGUSR1, SI_USER, 0);
	take(SIGUSR2, SI_USER, 0); // SI_TKILL, as the C library tells it
	for (int i = 0; i < queued_values; i++)
		take(to_process, SI_QUEUE, 100 + i);
	take(to_thread, SI_QUEUE, (int)(intptr_t)&blocked);
	struct signalfd_siginfo info = { .ssi_signo = 0 };
	want_equal(read(signal_descriptor, &info, sizeof info), sizeof info);
	want_equal(info.ssi_signo, to_descriptor);
	want_equal(info.ssi_int, 777);
	sigset_t pending;
	sigpending(&pending);
	for (int i = 1; i < SIGRTMAX; i++)
		want_equal(sigismember(&pending, i) > 0 ? i : 0, 0);
}

static void *wait_for_signal(void *argument)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, awaited);
	for (siginfo_t info;;)
		if (sigwaitinfo(&set, &info) == awaited)
			waiter_got = info.si_value.sival_int;
	return argument;
}

static void set_up_child(void)
{
	must(kill(getpid(), SIGINT));
}

static void check_child(void)
{
	sigset_t pending;
	sigpending(&pending);
	want_equal(sigismember(&pending, SIGINT), 1);
	want_equal(sigismember(&pending, SIGUSR1), 0);
}

static void set_up_handlers(void)
{
	struct sigaction action = { .sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK };
	sigemptyset(&action.sa_mask);
	sigaddset(&action.sa_mask, SIGWINCH);
	must(sigaction(SIGHUP, &action, NULL));
	signal(SIGQUIT, SIG_IGN);
	struct sigaction quiet = { .sa_handler = SIG_DFL, .sa_flags = SA_NOCLDSTOP | SA_NOCLDWAIT };
	must(sigaction(SIGCHLD, &quiet, NULL));
	alternate = (stack_t){ .ss_sp = alternate_memory, .ss_size = sizeof alternate_memory };
	must(sigaltstack(&alternate, NULL));
}

static void set_up(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	to_process = SIGRTMIN + 1;
	to_thread = SIGRTMIN + 2;
	to_descriptor = SIGRTMIN + 3;
	awaited = SIGRTMIN + 4;
	sigemptyset(&blocked);
	int numbers[] = { SIGUSR1, SIGUSR2, SIGINT, to_process, to_thread, to_descriptor, awaited };
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		sigaddset(&blocked, numbers[i]);
	must(sigprocmask(SIG_SETMASK, &blocked, NULL));
	set_up_handlers();
	child = helper_start(set_up_child, check_child);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, to_descriptor);
	signal_descriptor = must(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
	must(-pthread_create(&waiter, NULL, wait_for_signal, NULL));
	raise_all();
}

static bool waiter_has_it(void)
{
	return waiter_got == 4242;
}

static void check_handlers(void)
{
	struct sigaction action;
	want_equal(sigaction(SIGHUP, NULL, &action), 0);
	want(action.sa_sigaction == handle);
	want_equal(action.sa_flags & (SA_SIGINFO | SA_RESTART | SA_ONSTACK), SA_SIGINFO | SA_RESTART | SA_ONSTACK);
	want_equal(sigismember(&action.sa_mask, SIGWINCH), 1);
	want_equal(sigaction(SIGQUIT, NULL, &action), 0);
	want(action.sa_handler == SIG_IGN);
	want_equal(sigaction(SIGCHLD, NULL, &action), 0);
	want_equal(action.sa_flags & (SA_NOCLDSTOP | SA_NOCLDWAIT), SA_NOCLDSTOP | SA_NOCLDWAIT);
	stack_t stack;
	want_equal(sigaltstack(NULL, &stack), 0);
	want(stack.ss_sp == alternate.ss_sp && stack.ss_size == alternate.ss_size);
	handled = on_alternate = 0;
	want_equal(raise(SIGHUP), 0);
	want_equal(handled, getpid());
	want_equal(on_alternate, 1);
}

static void check(void)
{
	sigset_t mask;
	want_equal(sigprocmask(SIG_SETMASK, NULL, &mask), 0);
	for (int i = 1; i < SIGRTMAX; i++)
		if (sigismember(&mask, i) != sigismember(&blocked, i))
			bad("signal %d is blocked: %d", i, sigismember(&mask, i));
	take_all();
	check_handlers();
	helper_ask(&child);
	waiter_got = 0;
	queue_to_process(awaited, 4242);
	want(within(waiter_has_it));
	raise_all();
}

const struct state signals = { "signals", set_up, check, NULL };
