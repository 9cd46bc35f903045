// The first process of a container that runs one program of zdtm.
//
//   init start DIRECTORY PROGRAM ARGUMENT...   runs a program, which leaves the test behind as a daemon when it is
//                                              ready, says how that ended, and collects orphans from then on
//   init finish PIDFILE OUTFILE                tells the test to check itself, waits for its end, and prints what it says
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(int fd, int status)
{
	if (status == 0)
		dprintf(fd, "started\n");
	else
		dprintf(fd, "not started: status %#x\n", status);
	if (fd > 2)
		close(fd);
}

static int start(char **argv)
{
	if (chdir(argv[0]) != 0)
		return 1;
	umask(0);
	pid_t program = fork();
	if (program == 0) {
		execv(argv[1], argv + 1);
		_exit(127);
	}
	for (;;) {
		int status;
		pid_t ended = wait(&status);
		if (ended == program) {
			say(1, status);
			say(open("/zdtm/status", O_WRONLY | O_CREAT | O_EXCL, 0644), status); // where standard output is /dev/null
		}
		else if (ended < 0 && errno == ECHILD)
			pause(); // the test ended, and its parent is not this process
	}
}

static void copy(const char *path)
{
	char data[4096];
	FILE *file = fopen(path, "r");
	for (size_t n; file != NULL && (n = fread(data, 1, sizeof data, file)) > 0;)
		fwrite(data, 1, n, stdout);
}

// The outcome has its name when the test has ended; before that it is OUTFILE.inprogress.
static int finish(const char *pidfile, const char *outfile)
{
	enum { patience = 600 }; // tenths of a second
	char progress[4096], number[32] = "";
	snprintf(progress, sizeof progress, "%s.inprogress", outfile);
	FILE *file = fopen(pidfile, "r");
	if (file == NULL || fgets(number, sizeof number, file) == NULL)
		printf("%s is gone: it has ended before it was told to\n", pidfile);
	pid_t pid = atoi(number);
	if (pid <= 1 || kill(pid, SIGTERM) != 0)
		pid = getpid(); // the test has ended
	for (int i = 0; pid != getpid() && i < patience && access(outfile, F_OK) != 0 && kill(pid, 0) == 0; i++)
		usleep(100000);
	copy(access(outfile, F_OK) == 0 ? outfile : progress);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 3 && strcmp(argv[1], "start") == 0)
		return start(argv + 2);
	if (argc == 4 && strcmp(argv[1], "finish") == 0)
		return finish(argv[2], argv[3]);
	return 2;
}
