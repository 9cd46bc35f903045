// Trees of processes, threads, and the registers of a running thread.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- tree ----
//
//	root ─┬─ leader (session of its own, subreaper) ─┬─ grouped (group of its own)
//	      │                                          ├─ companion (in that group)
//	      │                                          └─ zombie
//	      ├─ background (group of its own in the first session, named, nice)
//	      ├─ stopped
//	      ├─ zombies: ended with 7; killed by SIGTERM
//	      └─ daemon (its parent and its session's leader are gone)

enum { leader_role, grouped_role, companion_role, background_role, daemon_role, roles };

struct identity {
	pid_t pid, parent, group, session;
};

static struct {
	struct identity is[roles];
	pid_t zombie_of_leader;
	volatile pid_t grandchild, adopted;
} *family;

static struct helper members[roles];
static struct identity own;
static pid_t stopped, ended, killed;
static int role_here;

static struct identity identify(void)
{
	return (struct identity){ getpid(), getppid(), getpgrp(), getsid(0) };
}

static void compare_identity(struct identity expected)
{
	struct identity now = identify();
	want_equal(now.pid, expected.pid);
	want_equal(now.parent, expected.parent);
	want_equal(now.group, expected.group);
	want_equal(now.session, expected.session);
}

static void wait_zombie(pid_t pid, int code, int status)
{
	siginfo_t info = { .si_pid = 0 };
	want_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	want_equal(info.si_pid, pid);
	want_equal(info.si_code, code);
	want_equal(info.si_status, status);
}

static bool grandchild_ended(void)
{
	return family->adopted != 0;
}

static void check_subreaper(void)
{
	family->adopted = 0;
	pid_t child = fork();
	if (child == 0) {
		pid_t parent = getpid();
		if (fork() == 0) {
			while (getppid() == parent)
				pause_briefly();
			family->grandchild = getpid();
			family->adopted = getppid();
			_exit(3);
		}
		_exit(0);
	}
	await_child(child, 0);
	want(within(grandchild_ended));
	want_equal(family->adopted, getpid());
	await_child(family->grandchild, 3 << 8);
}

static void check_member(void)
{
	compare_identity(family->is[role_here]);
	char name[17] = "";
	if (role_here == background_role) {
		prctl(PR_GET_NAME, name);
		want(strcmp(name, "background!") == 0);
		want_equal(getpriority(PRIO_PROCESS, 0), 7);
	}
	if (role_here == leader_role) {
		wait_zombie(family->zombie_of_leader, CLD_EXITED, 9);
		check_subreaper();
	}
}

static void become(int role)
{
	role_here = role;
	family->is[role] = identify();
	helper_serve(&members[role], check_member);
}

static void be_leader(void)
{
	must(setsid());
	must(prctl(PR_SET_CHILD_SUBREAPER, 1));
	pid_t zombie = must(fork());
	if (zombie == 0)
		_exit(9);
	family->zombie_of_leader = zombie;
	pid_t grouped = must(fork());
	if (grouped == 0) {
		must(setpgid(0, 0));
		become(grouped_role);
	}
	setpgid(grouped, grouped);
	if (must(fork()) == 0) {
		must(setpgid(0, grouped));
		become(companion_role);
	}
	become(leader_role);
}

static void be_background(void)
{
	must(setpgid(0, 0));
	must(prctl(PR_SET_NAME, "background!"));
	must(setpriority(PRIO_PROCESS, 0, 7));
	become(background_role);
}

static void be_daemon(void)
{
	must(setsid());
	pid_t leader = getpid();
	if (must(fork()) == 0) {
		while (getppid() == leader)
			pause_briefly();
		become(daemon_role);
	}
	_exit(0);
}

static void set_up_tree(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	family = shared(sizeof *family);
	for (int i = 0; i < roles; i++)
		members[i] = helper_prepare();
	own = identify();
	if (must(fork()) == 0)
		be_leader();
	if (must(fork()) == 0)
		be_background();
	pid_t first = must(fork());
	if (first == 0)
		be_daemon();
	must(waitpid(first, NULL, 0));
	if ((stopped = must(fork())) == 0) {
		raise(SIGSTOP);
		_exit(5);
	}
	must(waitpid(stopped, NULL, WUNTRACED));
	if ((ended = must(fork())) == 0)
		_exit(7);
	if ((killed = must(fork())) == 0) {
		signal(SIGTERM, SIG_DFL);
		for (;;)
			pause();
	}
	must(kill(killed, SIGTERM));
	for (int i = 0; i < roles; i++)
		helper_ask(&members[i]);
}

// state_of is the letter that the kernel gives a process.
static char state_of(pid_t pid)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	const char *after = strrchr(read_file(path), ')');
	return after != NULL ? after[2] : '?';
}

static void check_tree(void)
{
	compare_identity(own);
	for (int i = 0; i < roles; i++)
		helper_ask(&members[i]);
	wait_zombie(ended, CLD_EXITED, 7);
	wait_zombie(killed, CLD_KILLED, SIGTERM);
	want_equal(state_of(stopped), 'T');
	// New processes are numbered after the old ones, and can be waited for.
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	want(child > family->is[daemon_role].pid);
	await_child(child, 0);
}

// finish uses up what can be used up only once.
static void command_tree(const char *word, const char *argument)
{
	(void)word;
	(void)argument;
	await_child(ended, 7 << 8);
	await_child(killed, SIGTERM);
	kill(stopped, SIGCONT);
	await_child(stopped, 5 << 8);
	kill(family->is[leader_role].pid, SIGKILL);
	await_child(family->is[leader_role].pid, SIGKILL);
	errno = 0;
	want_equal(kill(-family->is[grouped_role].group, SIGKILL), 0);
	want_equal(kill(family->is[daemon_role].pid, SIGKILL), 0);
	await_child(family->is[daemon_role].pid, SIGKILL);
}

const struct state tree = { "tree", set_up_tree, check_tree, command_tree };

// ---- threads ----

enum { thread_count = 8 };

static struct one_thread {
	pthread_t thread;
	pid_t tid;
	int generation;
	stack_t stack;
} all_threads[thread_count];

static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER, told = PTHREAD_COND_INITIALIZER;
static int generation, answers, first_priority; // it may have been started with another than 0
static __thread uint64_t local_value = 42;
static pthread_mutex_t *robust;
static pid_t holder;
static pthread_t reader, last_thread;
static int reader_pipe[2];
static volatile int reader_got;

static void check_thread(int number, struct one_thread *self)
{
	char name[17] = "", expected[17];
	snprintf(expected, sizeof expected, "thread-%d", number);
	prctl(PR_GET_NAME, name);
	want(strcmp(name, expected) == 0);
	want_equal(syscall(SYS_gettid), self->tid);
	want_equal(local_value, 1000 + number);
	sigset_t mask;
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	for (int i = 0; i < thread_count; i++)
		want_equal(sigismember(&mask, SIGRTMIN + i), i == number);
	stack_t stack;
	want_equal(sigaltstack(NULL, &stack), 0);
	want(stack.ss_sp == self->stack.ss_sp && stack.ss_size == self->stack.ss_size);
	want_equal(getpriority(PRIO_PROCESS, 0), first_priority + number);
}

static void *run_thread(void *argument)
{
	struct one_thread *self = argument;
	int number = (int)(self - all_threads);
	char name[17];
	snprintf(name, sizeof name, "thread-%d", number);
	prctl(PR_SET_NAME, name);
	local_value = 1000 + (uint64_t)number;
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGRTMIN + number);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	self->stack = (stack_t){ .ss_sp = malloc(SIGSTKSZ), .ss_size = (size_t)SIGSTKSZ };
	must(sigaltstack(&self->stack, NULL));
	must(setpriority(PRIO_PROCESS, 0, first_priority + number));
	self->tid = (pid_t)syscall(SYS_gettid);
	pthread_mutex_lock(&door);
	for (;;) {
		while (self->generation == generation)
			pthread_cond_wait(&asked, &door);
		self->generation = generation;
		check_thread(number, self);
		answers++;
		pthread_cond_signal(&told);
	}
}

static void *run_reader(void *argument)
{
	char byte;
	for (;;)
		if (read(reader_pipe[0], &byte, 1) == 1)
			reader_got = byte;
		else
			return argument;
}

static void set_up_robust(void)
{
	pthread_mutexattr_t attributes;
	robust = shared(sizeof *robust);
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(robust, &attributes);
	if ((holder = must(fork())) == 0) {
		pthread_mutex_lock(robust);
		for (;;)
			pause();
	}
	for (int e; (e = pthread_mutex_trylock(robust)) != EBUSY; pause_briefly())
		if (e == 0)
			pthread_mutex_unlock(robust);
}

static void ask_threads(void)
{
	pthread_mutex_lock(&door);
	answers = 0;
	generation++;
	pthread_cond_broadcast(&asked);
	while (answers < thread_count)
		pthread_cond_wait(&told, &door);
	pthread_mutex_unlock(&door);
}

static void set_up_threads(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	first_priority = getpriority(PRIO_PROCESS, 0);
	set_up_robust();
	must(pipe(reader_pipe));
	for (int i = 0; i < thread_count; i++)
		must(-pthread_create(&all_threads[i].thread, NULL, run_thread, &all_threads[i]));
	must(-pthread_create(&reader, NULL, run_reader, NULL));
	ask_threads();
}

static bool reader_has_it(void)
{
	return reader_got == 'x';
}

static void *short_thread(void *argument)
{
	return argument;
}

static void check_threads(void)
{
	ask_threads();
	reader_got = 0;
	want_equal(write(reader_pipe[1], "x", 1), 1);
	want(within(reader_has_it));
	void *result = NULL;
	want_equal(pthread_create(&last_thread, NULL, short_thread, &generation), 0);
	want_equal(pthread_join(last_thread, &result), 0);
	want(result == &generation);
	want_equal(pthread_mutex_trylock(robust), EBUSY);
}

static void command_threads(const char *word, const char *argument)
{
	(void)word;
	(void)argument;
	// The kernel tells who waits for a robust mutex that its owner has died.
	kill(holder, SIGKILL);
	await_child(holder, SIGKILL);
	want_equal(pthread_mutex_lock(robust), EOWNERDEAD);
	close(reader_pipe[1]);
	want_equal(pthread_join(reader, NULL), 0);
}

const struct state threads = { "threads", set_up_threads, check_threads, command_threads };

// ---- registers ----
//
// A thread that computes all the time has values in its registers whenever it is stopped.

static volatile uint64_t rounds;
static volatile int wrong;
static uint64_t seen_rounds;

static void *compute(void *argument)
{
	(void)argument;
	double third = 1.0 / 3, seventh = 1.0 / 7;
	for (;;) {
		double a[16];
		uint64_t b[16];
		for (int i = 0; i < 16; i++) {
			a[i] = third * i;
			b[i] = 0x0123456789abcdefu * (uint64_t)(i + 1);
		}
		for (int n = 0; n < 100000; n++)
			for (int i = 0; i < 16; i++) {
				a[i] = (a[i] + seventh) - seventh;
				b[i] = (b[i] << 13) | (b[i] >> 51);
			}
		for (int i = 0; i < 16; i++) {
			double error = a[i] - third * i;
			uint64_t x = 0x0123456789abcdefu * (uint64_t)(i + 1);
			int turn = (int)(100000L * 13 % 64);
			x = turn == 0 ? x : (x << turn) | (x >> (64 - turn));
			if (error > 1e-9 || error < -1e-9 || b[i] != x)
				wrong = 1;
		}
		rounds++;
	}
	return NULL;
}

#ifdef __x86_64__
// spin_on_registers keeps patterns in vector registers while it waits, and tells whether they are still there.
static volatile int spin_until;
static volatile uint64_t spins;

static void *spin_on_registers(void *argument)
{
	(void)argument;
	for (;;) {
		uint64_t in[8], out[8];
		fill(in, sizeof in, 77, spins);
		int before = spin_until;
		__asm__ volatile("movdqu (%0), %%xmm6\n\t"
				 "movdqu 16(%0), %%xmm7\n\t"
				 "movdqu 32(%0), %%xmm14\n\t"
				 "movdqu 48(%0), %%xmm15\n"
				 "1:\n\t"
				 "pause\n\t"
				 "cmpl %3, (%2)\n\t"
				 "je 1b\n\t"
				 "movdqu %%xmm6, (%1)\n\t"
				 "movdqu %%xmm7, 16(%1)\n\t"
				 "movdqu %%xmm14, 32(%1)\n\t"
				 "movdqu %%xmm15, 48(%1)\n\t"
				 :
				 : "r"(in), "r"(out), "r"(&spin_until), "r"(before)
				 : "xmm6", "xmm7", "xmm14", "xmm15", "memory");
		if (memcmp(in, out, sizeof in) != 0)
			wrong = 2;
		spins++;
	}
	return NULL;
}
static uint64_t seen_spins;
static bool spun(void)
{
	return spins > seen_spins;
}
#endif

static bool computed(void)
{
	return rounds > seen_rounds;
}

static void set_up_registers(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	pthread_t thread;
	must(-pthread_create(&thread, NULL, compute, NULL));
#ifdef __x86_64__
	must(-pthread_create(&thread, NULL, spin_on_registers, NULL));
#endif
}

static void check_registers(void)
{
	seen_rounds = rounds;
	want(within(computed));
#ifdef __x86_64__
	seen_spins = spins;
	spin_until++;
	want(within(spun));
#endif
	want_equal(wrong, 0);
}

const struct state registers = { "registers", set_up_registers, check_registers, NULL };
