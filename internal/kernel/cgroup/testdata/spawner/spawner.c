// Threads that start programs all the time by posix_spawn, which is vfork(2) and execve.
//
//   spawner THREADS        prints a line for each 100 programs of the first thread
//   spawner stuck          has a child that never comes to execve
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *self;

static void *spawn(void *argument)
{
	char *arguments[] = { self, "end", NULL }, *environment[] = { NULL };
	for (long i = 1;; i++) {
		pid_t child;
		int status;
		if (posix_spawn(&child, self, NULL, NULL, arguments, environment) || waitpid(child, &status, 0) != child || status)
			exit(1);
		if (argument && i % 100 == 0) {
			printf("spawned %ld\n", i);
			fflush(stdout);
		}
	}
	return NULL;
}

int main(int count, char **arguments)
{
	self = arguments[0];
	if (count != 2)
		return 2;
	if (!strcmp(arguments[1], "end"))
		return 0;
	while (getchar() != EOF) // then it is where it is to be
		;
	if (!strcmp(arguments[1], "stuck")) {
		if (vfork() == 0) {
			pause();
			_exit(0);
		}
		return 1;
	}
	pthread_t thread;
	for (int i = 1; i < atoi(arguments[1]); i++)
		if (pthread_create(&thread, NULL, spawn, NULL))
			return 1;
	spawn(self);
}
