// The terminal of `run -t`, pseudo terminals of the program's own, and numbered lines at full speed.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static struct termios settings;
static struct winsize window = { 33, 111, 0, 0 };
static struct {
	pid_t foreground, background;
} *groups;
static char terminal_name[64];
static int master, slave;
static struct helper job;

static void set_up_job(void)
{
	must(setpgid(0, 0));
}

static void check_job(void)
{
	if (groups->foreground == 0)
		return; // not yet set up
	// CRIU gives the controlling terminal to the leader of the session only, so this process cannot ask for its group.
	want_equal(isatty(0), 1);
	want_equal(getpgrp(), groups->background);
	want_equal(getsid(0), 1);
}

static void set_up(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	signal(SIGTTOU, SIG_IGN);
	must(isatty(0) ? 0 : -1);
	snprintf(terminal_name, sizeof terminal_name, "%s", ttyname(0));
	must(tcgetattr(0, &settings));
	settings.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	settings.c_cc[VINTR] = 7;
	settings.c_cc[VMIN] = 3;
	must(tcsetattr(0, TCSANOW, &settings));
	must(tcgetattr(0, &settings));
	must(ioctl(0, TIOCSWINSZ, &window));
	groups = shared(sizeof *groups);
	job = helper_start(set_up_job, check_job);
	groups->background = job.pid;
	pid_t foreground = must(fork());
	if (foreground == 0)
		for (;;)
			pause();
	setpgid(foreground, foreground);
	must(tcsetpgrp(0, foreground));
	groups->foreground = foreground;
	must(master = posix_openpt(O_RDWR | O_NOCTTY));
	must(grantpt(master));
	must(unlockpt(master));
	must(slave = open(ptsname(master), O_RDWR | O_NOCTTY));
	struct termios raw;
	must(tcgetattr(slave, &raw));
	cfmakeraw(&raw);
	must(tcsetattr(slave, TCSANOW, &raw));
}

static void check_other(void)
{
	char text[32] = "";
	struct termios raw;
	want_equal(tcgetattr(slave, &raw), 0);
	want_equal(raw.c_lflag & (ICANON | ECHO), 0);
	want_equal(write(master, "down", 4), 4);
	want_equal(read(slave, text, sizeof text), 4);
	want(strcmp(text, "down") == 0);
	want_equal(write(slave, "up", 2), 2);
	memset(text, 0, sizeof text);
	want_equal(read(master, text, sizeof text), 2);
	want(strcmp(text, "up") == 0);
}

static void check(void)
{
	for (int fd = 0; fd <= 2; fd++)
		want_equal(isatty(fd), 1);
	want(ttyname(0) != NULL && strcmp(ttyname(0), terminal_name) == 0);
	struct termios now;
	want_equal(tcgetattr(0, &now), 0);
	want(memcmp(&now, &settings, sizeof now) == 0);
	struct winsize size;
	want_equal(ioctl(1, TIOCGWINSZ, &size), 0);
	want(memcmp(&size, &window, sizeof size) == 0);
	want_equal(tcgetpgrp(0), groups->foreground);
	want_equal(tcgetsid(0), getsid(0));
	int controlling = open("/dev/tty", O_RDWR);
	want(controlling >= 0);
	want_equal(tcgetpgrp(controlling), groups->foreground);
	close(controlling);
	helper_ask(&job);
	check_other();
	dprintf(1, "said on the terminal\n");
}

const struct state terminal = { "terminal", set_up, check, NULL };

// ---- numbers ----
//
// Lines with numbers, on both outputs, in pieces of odd sizes, from "start" to "stop".

static volatile sig_atomic_t stopping;
static pid_t speakers[2];

static void on_stop(int number)
{
	(void)number;
	stopping = 1;
}

// bursts of lines, each longer than a pipe holds if it is to be, with pauses between them
static struct {
	long lines, pause_ms;
} burst = { 10, 1 };

static void speak(int fd, const char *word)
{
	static char text[1 << 16];
	size_t had = 0;
	closefrom(3); // the connection by which the command came must end
	for (long i = 0; !stopping; i++) {
		had += (size_t)snprintf(text + had, 64, "%s %ld\n", word, i);
		// Pieces that end in the middle of a line.
		size_t piece = had > 1000 ? had - 7 : 0;
		for (size_t sent = 0; sent < piece;) {
			ssize_t n = write(fd, text + sent, piece - sent);
			if (n < 0 && errno != EINTR)
				_exit(1);
			sent += n > 0 ? (size_t)n : 0;
		}
		memmove(text, text + piece, had - piece);
		had -= piece;
		if (i % burst.lines == 0)
			nanosleep(&(struct timespec){ 0, burst.pause_ms * 1000000 }, NULL);
	}
	dprintf(fd, "%.*s%s end\n", (int)had, text, word);
	_exit(0);
}

static void set_up_numbers(int argc, char **argv)
{
	if (argc == 2) {
		burst.lines = atol(argv[0]);
		burst.pause_ms = atol(argv[1]);
	}
	signal(SIGUSR1, on_stop);
}

static void check_numbers(void)
{
	for (int i = 0; i < 2; i++)
		want_equal(kill(speakers[i], 0), 0);
}

static void command_numbers(const char *word, const char *argument)
{
	(void)argument;
	for (int i = 0; i < 2; i++) {
		if (strcmp(word, "start") == 0) {
			if ((speakers[i] = must(fork())) == 0)
				speak(i + 1, i == 0 ? "out" : "err");
			continue;
		}
		want_equal(kill(speakers[i], SIGUSR1), 0);
		await_child(speakers[i], 0);
	}
}

const struct state numbers = { "numbers", set_up_numbers, check_numbers, command_numbers };
