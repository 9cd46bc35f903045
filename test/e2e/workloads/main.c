// Workloads for the tests of what survives a migration.
//
//	state NAME [ARGUMENT...]  sets up the state, prints "ready", and answers commands on the unix socket /run/state
//	state ask COMMAND...      sends a command to it and prints the answer: "ok", or a line "bad: what" for each fault
//	state manifest PATH...    lists everything about the files below some paths
//	state unconfine PID       lets a process call what its seccomp filter forbids, until standard input ends
//	state hold PATH           connects to a unix socket and keeps the connection until standard input ends
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct state *const states[] = {
	&tree, &threads, &registers, &signals, &timers, &sleepers, &moving_clock, &pipes, &unix_sockets, &events, &locks,
	&locks_waiting, &open_files, &deleted_files, &memory, &ipc, &limits, &security, &confined, &terminal, &numbers, &tcp,
	&udp, &local_tcp, &oddity, &files,
};

enum { answer_size = 1 << 16 };
static char answer[answer_size];
static size_t answered;

static void add(const char *prefix, const char *format, va_list arguments)
{
	if (answered + 1024 > answer_size)
		return;
	int kept = errno;
	answered += (size_t)snprintf(answer + answered, 64, "%s", prefix);
	errno = kept;
	int n = vsnprintf(answer + answered, 900, format, arguments);
	answered += (size_t)(n < 900 ? n : 899);
	answer[answered++] = '\n';
	answer[answered] = 0;
}

void bad(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	add("bad: ", format, arguments);
	va_end(arguments);
}

void say(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	add("", format, arguments);
	va_end(arguments);
}

void die(const char *what)
{
	dprintf(1, "bad: set up: %s: %s\n", what, strerror(errno));
	_exit(1);
}

struct helper helper_prepare(void)
{
	struct helper h = { .pid = 0 };
	must(pipe(h.request));
	must(pipe(h.answer));
	return h;
}

void helper_serve(struct helper *h, void (*check)(void))
{
	char byte;
	close(h->request[1]);
	for (;;) {
		ssize_t n = read(h->request[0], &byte, 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n != 1)
			_exit(0);
		answered = 0;
		answer[0] = 0;
		check();
		uint32_t size = (uint32_t)answered;
		if (write(h->answer[1], &size, sizeof size) != sizeof size ||
		    write(h->answer[1], answer, size) != (ssize_t)size)
			_exit(1);
	}
}

static bool read_all(int fd, void *to, size_t size)
{
	for (size_t had = 0; had < size;) {
		ssize_t n = read(fd, (char *)to + had, size - had);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		had += (size_t)n;
	}
	return true;
}

void helper_ask(struct helper *h)
{
	uint32_t size = 0;
	char text[4096] = "";
	if (write(h->request[1], "?", 1) != 1 || !read_all(h->answer[0], &size, sizeof size) || size >= sizeof text ||
	    !read_all(h->answer[0], text, size)) {
		bad("helper process %d does not answer", h->pid);
		return;
	}
	if (size > 0)
		say("%.*s", (int)size - 1, text);
}

struct helper helper_start(void (*set_up)(void), void (*check)(void))
{
	struct helper h = helper_prepare();
	h.pid = must(fork());
	if (h.pid != 0) {
		// The child says that it is set up by answering once.
		helper_ask(&h);
		return h;
	}
	if (set_up != NULL)
		set_up();
	helper_serve(&h, check);
}

uint8_t pattern(uint64_t seed, uint64_t at)
{
	uint64_t x = (at / 8 + 1) * 0x9e3779b97f4a7c15u + seed * 0xbf58476d1ce4e5b9u;
	x ^= x >> 31;
	x *= 0x94d049bb133111ebu;
	x ^= x >> 29;
	return (uint8_t)(x >> (at % 8 * 8));
}

void fill(void *to, size_t size, uint64_t seed, uint64_t at)
{
	for (size_t i = 0; i < size; i++)
		((uint8_t *)to)[i] = pattern(seed, at + i);
}

bool filled(const void *from, size_t size, uint64_t seed, uint64_t at)
{
	for (size_t i = 0; i < size; i++)
		if (((const uint8_t *)from)[i] != pattern(seed, at + i))
			return false;
	return true;
}

void *shared(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

double seconds(int clock)
{
	struct timespec t;
	must(clock_gettime(clock, &t));
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void pause_briefly(void)
{
	struct timespec t = { 0, 2000000 };
	nanosleep(&t, NULL);
}

bool within(bool (*condition)(void))
{
	for (double end = seconds(CLOCK_MONOTONIC) + 20; !condition(); pause_briefly())
		if (seconds(CLOCK_MONOTONIC) > end)
			return false;
	return true;
}

void write_file(const char *path, const char *content)
{
	int fd = must(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644));
	must(write(fd, content, strlen(content)));
	must(close(fd));
}

const char *read_file(const char *path)
{
	static char content[1 << 16];
	int fd = open(path, O_RDONLY);
	content[0] = 0;
	if (fd < 0)
		return content;
	size_t size = 0;
	for (ssize_t n; size < sizeof content - 1 && (n = read(fd, content + size, sizeof content - 1 - size)) > 0;)
		size += (size_t)n;
	content[size] = 0;
	close(fd);
	return content;
}

void await_child(pid_t pid, int status)
{
	int got = -1;
	pid_t ended;
	while ((ended = waitpid(pid, &got, 0)) < 0 && errno == EINTR)
		;
	want_equal(ended, pid);
	want_equal(got, status);
}

static const char control_path[] = "/run/state";

static struct sockaddr_un unix_address(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	return address;
}

static int listen_for_commands(void)
{
	struct sockaddr_un address = unix_address(control_path);
	int fd = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
	unlink(control_path);
	must(bind(fd, (struct sockaddr *)&address, sizeof address));
	must(chmod(control_path, 0666));
	must(listen(fd, 8));
	return fd;
}

static void obey_one(const struct state *s, char *line)
{
	char *argument = strchr(line, ' ');
	if (argument != NULL)
		*argument++ = 0;
	if (strcmp(line, "check") == 0)
		s->check();
	else if (s->command != NULL)
		s->command(line, argument != NULL ? argument : "");
	else
		bad("there is no command %s", line);
}

// obey does one or more commands, with semicolons between them.
static void obey(const struct state *s, char *line)
{
	answered = 0;
	answer[0] = 0;
	for (char *rest = line, *one; (one = strsep(&rest, ";")) != NULL;)
		obey_one(s, one);
	if (answered == 0)
		say("ok");
}

static void serve(const struct state *s, int listener)
{
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		char line[512];
		size_t had = 0;
		while (had < sizeof line - 1) {
			ssize_t n = read(fd, line + had, sizeof line - 1 - had);
			if (n < 0 && errno == EINTR)
				continue;
			if (n <= 0)
				break;
			had += (size_t)n;
			if (line[had - 1] == '\n')
				break;
		}
		if (had > 0 && line[had - 1] == '\n') {
			line[had - 1] = 0;
			obey(s, line);
			for (size_t sent = 0; sent < answered;) {
				ssize_t n = send(fd, answer + sent, answered - sent, MSG_NOSIGNAL);
				if (n < 0 && errno == EINTR)
					continue;
				if (n <= 0)
					break;
				sent += (size_t)n;
			}
		}
		close(fd);
	}
}

static int ask(int argc, char **argv)
{
	struct sockaddr_un address = unix_address(control_path);
	int fd = must(socket(AF_UNIX, SOCK_STREAM, 0));
	must(connect(fd, (struct sockaddr *)&address, sizeof address));
	for (int i = 0; i < argc; i++)
		dprintf(fd, "%s%s", i > 0 ? " " : "", argv[i]);
	dprintf(fd, "\n");
	char text[4096];
	size_t total = 0;
	for (ssize_t n; (n = read(fd, text, sizeof text)) > 0; total += (size_t)n)
		must(write(1, text, (size_t)n));
	return total > 0 ? 0 : 1;
}

int connect_and_wait(int argc, char **argv)
{
	struct sockaddr_un address = unix_address(argc > 0 ? argv[0] : "");
	int fd = must(socket(AF_UNIX, SOCK_STREAM, 0));
	must(connect(fd, (struct sockaddr *)&address, sizeof address));
	dprintf(1, "connected\n");
	char byte;
	while (read(0, &byte, 1) > 0)
		;
	return 0;
}

static int usage(void)
{
	dprintf(2, "usage: state NAME|ask|manifest|unconfine|hold [ARGUMENT...]\n");
	return 2;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return usage();
	if (strcmp(argv[1], "ask") == 0)
		return ask(argc - 2, argv + 2);
	if (strcmp(argv[1], "manifest") == 0)
		return manifest(argc - 2, argv + 2);
	if (strcmp(argv[1], "unconfine") == 0)
		return unconfine(argc - 2, argv + 2);
	if (strcmp(argv[1], "hold") == 0)
		return connect_and_wait(argc - 2, argv + 2);
	for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
		if (strcmp(argv[1], states[i]->name) != 0)
			continue;
		signal(SIGPIPE, SIG_IGN);
		states[i]->setup(argc - 2, argv + 2);
		if (answered > 0) {
			dprintf(1, "%s", answer);
			return 1;
		}
		int listener = listen_for_commands();
		dprintf(1, "ready\n");
		serve(states[i], listener);
	}
	return usage();
}
