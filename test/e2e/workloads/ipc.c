// System V shared memory, semaphores and message queues; POSIX shared memory and semaphores.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <unistd.h>

enum { size = 1 << 20, mapped_size = 2 << 20, key = 0x4711, sets = 3 };

static int segment, private_segment, doomed, set, queue, unattached;
static uint8_t *attached, *read_only, *of_private, *of_doomed, *of_first, *mapped;
static sem_t *named, *unnamed;
static pid_t waiter, reader;
static volatile int *passed;

struct letter {
	long type;
	char text[32];
};

static void post(long type, const char *text)
{
	struct letter l = { .type = type };
	strcpy(l.text, text);
	must(msgsnd(queue, &l, strlen(text) + 1, IPC_NOWAIT));
}

static void want_letter(long wanted, long type, const char *text)
{
	struct letter l = { .type = 0 };
	ssize_t n = msgrcv(queue, &l, sizeof l.text, wanted, IPC_NOWAIT);
	if (n != (ssize_t)strlen(text) + 1 || l.type != type || strcmp(l.text, text) != 0)
		bad("message of type %ld, %zd bytes, not \"%s\" (%m)", l.type, n, text);
}

static void post_all(void)
{
	post(3, "three");
	post(1, "one");
	post(3, "three again");
	post(2, "");
}

static void set_up_waiters(void)
{
	passed = shared(2 * sizeof *passed);
	if ((waiter = must(fork())) == 0) {
		struct sembuf down = { .sem_num = 2, .sem_op = -1 };
		// An interruption by a stop is allowed here (semop(2)).
		while (semop(set, &down, 1) < 0)
			if (errno != EINTR)
				_exit(1);
		passed[0] = 1;
		_exit(0);
	}
	if ((reader = must(fork())) == 0) {
		struct letter l;
		while (msgrcv(queue, &l, sizeof l.text, 99, 0) < 0)
			if (errno != EINTR)
				_exit(1);
		passed[1] = strcmp(l.text, "for the reader") == 0;
		_exit(0);
	}
	while (semctl(set, 2, GETNCNT) != 1)
		pause_briefly();
}

static void set_up(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	of_first = must(shmat(must(shmget(IPC_PRIVATE, size, 0600)), NULL, 0)); // number 0, and so its inode
	fill(of_first, size, 5, 0);
	mapped = shared(mapped_size);
	fill(mapped, mapped_size, 6, 0);
	unattached = must(shmget(IPC_PRIVATE, 5000, 0640));
	segment = must(shmget(key, size, IPC_CREAT | 0604));
	attached = must(shmat(segment, NULL, 0));
	read_only = must(shmat(segment, NULL, SHM_RDONLY));
	fill(attached, size, 1, 0);
	private_segment = must(shmget(IPC_PRIVATE, size, 0600));
	of_private = must(shmat(private_segment, NULL, 0));
	fill(of_private, size, 2, 0);
	doomed = must(shmget(IPC_PRIVATE, 8192, 0600));
	of_doomed = must(shmat(doomed, NULL, 0));
	fill(of_doomed, 8192, 3, 0);
	must(shmctl(doomed, IPC_RMID, NULL)); // it goes when nobody has it attached any more
	set = must(semget(key, sets, IPC_CREAT | 0600));
	must(semctl(set, 0, SETVAL, 5));
	must(semctl(set, 1, SETVAL, 32000));
	queue = must(msgget(key, IPC_CREAT | 0600));
	post_all();
	named = sem_open("/named", O_CREAT | O_EXCL, 0600, 4);
	if (named == SEM_FAILED)
		die("sem_open");
	unnamed = shared(sizeof *unnamed);
	must(sem_init(unnamed, 1, 6));
	set_up_waiters();
	uint8_t *other = must(shmat(unattached, NULL, 0));
	fill(other, 5000, 4, 0);
	must(shmdt(other));
}

static void check_shared_memory(void)
{
	want(filled(attached, size, 1, 0));
	attached[7]++;
	want_equal(read_only[7], attached[7]);
	attached[7]--;
	want(filled(of_first, size, 5, 0) && filled(mapped, mapped_size, 6, 0));
	want(filled(of_private, size, 2, 0));
	want(filled(of_doomed, 8192, 3, 0));
	want_equal(shmget(key, size, 0), segment);
	struct shmid_ds about;
	want_equal(shmctl(segment, IPC_STAT, &about), 0);
	want_equal(about.shm_nattch, 2 + 2 * 2); // the two waiters have it, too
	want_equal(about.shm_perm.mode & 0777, 0604);
	want_equal(about.shm_segsz, size);
	uint8_t *other = shmat(unattached, NULL, 0);
	want(other != (void *)-1 && filled(other, 5000, 4, 0));
	want_equal(shmdt(other), 0);
}

static void check(void)
{
	check_shared_memory();
	want_equal(semget(key, sets, 0), set);
	want_equal(semctl(set, 0, GETVAL), 5);
	want_equal(semctl(set, 1, GETVAL), 32000);
	want_equal(semctl(set, 2, GETVAL), 0);
	want_equal(msgget(key, 0), queue);
	struct msqid_ds about;
	want_equal(msgctl(queue, IPC_STAT, &about), 0);
	want_equal(about.msg_qnum, 4);
	want_letter(0, 3, "three");
	want_letter(2, 2, "");
	want_letter(-3, 1, "one");
	want_letter(0, 3, "three again");
	post_all();
	int value = -1;
	want_equal(sem_getvalue(named, &value), 0);
	want_equal(value, 4);
	sem_t *again = sem_open("/named", 0);
	want(again != SEM_FAILED);
	want_equal(sem_post(again), 0);
	want_equal(sem_getvalue(named, &value), 0);
	want_equal(value, 5);
	want_equal(sem_trywait(named), 0);
	want_equal(sem_close(again), 0);
	want_equal(sem_getvalue(unnamed, &value), 0);
	want_equal(value, 6);
	want_equal(passed[0] | passed[1], 0);
}

static void command(const char *word, const char *argument)
{
	(void)word;
	(void)argument;
	struct sembuf up = { .sem_num = 2, .sem_op = 1 };
	want_equal(semop(set, &up, 1), 0);
	await_child(waiter, 0);
	want_equal(passed[0], 1);
	struct letter l = { .type = 99, .text = "for the reader" };
	want_equal(msgsnd(queue, &l, sizeof l.text, 0), 0);
	await_child(reader, 0);
	want_equal(passed[1], 1);
}

const struct state ipc = { "ipc", set_up, check, command };
