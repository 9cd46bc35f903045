// File locks of all kinds: held, and waited for.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int exclusive, shared_lock, records, description, leased;
static pid_t other;
static int volume_lock = -1, volume_records = -1;

static struct flock record(short type, off_t from, off_t size)
{
	return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = from, .l_len = size };
}

static int open_sized(const char *path)
{
	int fd = must(open(path, O_RDWR | O_CREAT, 0600));
	must(ftruncate(fd, 4096));
	return fd;
}

// map maps a file, as databases do with files that they lock.
static void map(int fd)
{
	volatile char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		die("mmap");
	at[0] = 1;
}

// hold_another is a process that has a lock of its own on the file of records, and maps it, too.
static void hold_another(int ready)
{
	int fd = must(open("/tmp/locks/records", O_RDWR));
	struct flock l = record(F_WRLCK, 300, 10);
	must(fcntl(fd, F_SETLK, &l));
	map(fd);
	must(write(ready, "", 1));
	for (;;)
		pause();
}

static void start_another(void)
{
	int ready[2];
	char byte;
	must(pipe(ready));
	if ((other = must(fork())) == 0)
		hold_another(ready[1]);
	must(read(ready[0], &byte, 1));
	close(ready[0]);
	close(ready[1]);
}

static void set_up(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	must(mkdir("/tmp/locks", 0755));
	exclusive = open_sized("/tmp/locks/exclusive");
	must(flock(exclusive, LOCK_EX));
	shared_lock = open_sized("/tmp/locks/shared");
	must(flock(shared_lock, LOCK_SH));
	records = open_sized("/tmp/locks/records");
	struct flock write_lock = record(F_WRLCK, 100, 50), read_lock = record(F_RDLCK, 1000, 0);
	must(fcntl(records, F_SETLK, &write_lock));
	must(fcntl(records, F_SETLK, &read_lock));
	description = open_sized("/tmp/locks/description");
	struct flock of_description = record(F_WRLCK, 7, 70);
	must(fcntl(description, F_OFD_SETLK, &of_description));
	must(close(open_sized("/tmp/locks/leased")));
	leased = must(open("/tmp/locks/leased", O_RDONLY));
	must(fcntl(leased, F_SETLEASE, F_RDLCK));
	if (access("/data", F_OK) == 0) {
		volume_lock = open_sized("/data/locked");
		must(flock(volume_lock, LOCK_EX));
		volume_records = open_sized("/data/records");
		must(fcntl(volume_records, F_SETLK, &write_lock));
		map(volume_records);
	}
	map(exclusive);
	map(records);
	map(description);
	start_another();
}

// try_all runs in another process: what it may not lock is locked by the first.
static int try_all(pid_t owner)
{
	int wrong = 0, fd = open("/tmp/locks/exclusive", O_RDWR);
	wrong |= flock(fd, LOCK_SH | LOCK_NB) == 0 ? 1 : 0;
	fd = open("/tmp/locks/shared", O_RDWR);
	wrong |= flock(fd, LOCK_EX | LOCK_NB) == 0 ? 2 : 0;
	wrong |= flock(fd, LOCK_SH | LOCK_NB) != 0 ? 2 : 0;
	fd = open("/tmp/locks/records", O_RDWR);
	struct flock l = record(F_RDLCK, 0, 110);
	wrong |= fcntl(fd, F_GETLK, &l) != 0 || l.l_type != F_WRLCK || l.l_start != 100 || l.l_len != 50 || l.l_pid != owner ? 4 : 0;
	l = record(F_WRLCK, 100000, 1);
	wrong |= fcntl(fd, F_GETLK, &l) != 0 || l.l_type != F_RDLCK || l.l_start != 1000 || l.l_len != 0 ? 8 : 0;
	l = record(F_WRLCK, 0, 100);
	wrong |= fcntl(fd, F_SETLK, &l) != 0 ? 16 : 0;
	l = record(F_RDLCK, 290, 30);
	wrong |= fcntl(fd, F_GETLK, &l) != 0 || l.l_type != F_WRLCK || l.l_start != 300 || l.l_len != 10 || l.l_pid != other ? 4 : 0;
	fd = open("/tmp/locks/description", O_RDWR);
	l = record(F_WRLCK, 70, 1);
	wrong |= fcntl(fd, F_OFD_GETLK, &l) != 0 || l.l_type != F_WRLCK || l.l_start != 7 || l.l_len != 70 ? 32 : 0;
	if (volume_lock >= 0) {
		fd = open("/data/locked", O_RDWR);
		wrong |= flock(fd, LOCK_SH | LOCK_NB) == 0 ? 64 : 0;
		fd = open("/data/records", O_RDWR);
		l = record(F_RDLCK, 0, 110);
		wrong |= fcntl(fd, F_GETLK, &l) != 0 || l.l_type != F_WRLCK || l.l_start != 100 || l.l_pid != owner ? 128 : 0;
	}
	return wrong;
}

static void check(void)
{
	pid_t owner = getpid(), child = fork();
	if (child == 0)
		_exit(try_all(owner));
	await_child(child, 0);
	want_equal(fcntl(leased, F_GETLEASE), F_RDLCK);
}

const struct state locks = { "locks", set_up, check, NULL };

// ---- waiting for locks ----

enum { by_flock, by_record, by_description, waiters };
static volatile int *got_it;
static pid_t waiting[waiters];
static int held[waiters];
static const char *const names[waiters] = { "/tmp/flock", "/tmp/record", "/tmp/description" };

static int lock(int how, int fd)
{
	struct flock l = record(F_WRLCK, 0, 0);
	switch (how) {
	case by_flock:
		return flock(fd, LOCK_EX);
	case by_record:
		return fcntl(fd, F_SETLKW, &l);
	default:
		return fcntl(fd, F_OFD_SETLKW, &l);
	}
}

static void set_up_waiting(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	got_it = shared(waiters * sizeof *got_it);
	for (int i = 0; i < waiters; i++) {
		held[i] = must(open(names[i], O_RDWR | O_CREAT | O_CLOEXEC, 0600));
		must(lock(i, held[i]));
		if ((waiting[i] = must(fork())) == 0) {
			int fd = must(open(names[i], O_RDWR));
			for (int j = 0; j <= i; j++)
				close(held[j]);
			got_it[i] = 2;
			int result = lock(i, fd);
			got_it[i] = result == 0 ? 1 : -errno;
			_exit(0);
		}
		while (got_it[i] != 2)
			pause_briefly();
	}
}

static void check_waiting(void)
{
	for (int i = 0; i < waiters; i++)
		want_equal(got_it[i], 2);
}

static void command_waiting(const char *word, const char *argument)
{
	(void)word;
	(void)argument;
	check_waiting();
	for (int i = 0; i < waiters; i++) {
		close(held[i]);
		await_child(waiting[i], 0);
		want_equal(got_it[i], 1);
	}
}

const struct state locks_waiting = { "locks-waiting", set_up_waiting, check_waiting, command_waiting };
