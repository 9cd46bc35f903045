// Memory: private, shared, of files, of memfds, protected, locked, executable; and what processes share by it.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { big = 24 << 20, small = 1 << 16, page = 4096 };

static uint8_t *anonymous, *with_child, *private_file, *shared_file, *sealed, *descending, *guarded, *deleted, *holed, *heap;
static uint8_t *locked, *shm, *copied, *zero;
static int memfd, sealed_fd, copied_memfd;
static int (*code)(int);
static struct helper child;
static struct {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	int turns;
} *common;

static uint8_t *map(size_t size, int protection, int flags, int fd)
{
	void *p = mmap(NULL, size, protection, flags, fd, 0);
	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

enum { rw = PROT_READ | PROT_WRITE };

// The child sees the same shared memory, and its own copy of the private memory.
static void set_up_child(void)
{
	copied[0] = 200;
}

static void check_child(void)
{
	want_equal(with_child[1], 55);
	with_child[2] = (uint8_t)(with_child[1] + 1);
	want_equal(copied[0], 200);
	want(filled(copied + 1, small - 1, 9, 1));
	want(filled(anonymous, big / 16, 1, 0));
	want_equal(shared_file[1], 66);
	shared_file[2] = (uint8_t)(shared_file[1] + 1);
	zero[2] = (uint8_t)(zero[1] + 1);
	want(filled(zero + 3, small - 3, 16, 3));
	pthread_mutex_lock(&common->mutex);
	common->turns++;
	pthread_cond_signal(&common->changed);
	pthread_mutex_unlock(&common->mutex);
}

// Another process writes pages of a private mapping of a file all the time, gives some back to the file, and forks. It knows what each
// of them must hold.
enum { pages = small / page, file_seed = 15, first_seed = 100, seeds = 50 };

static struct { int turns, faults; } *rewriting;
static uint8_t *rewritten;
static int written[pages]; // the seed of each page; 0: as in the file

static bool as_written(void)
{
	for (int i = 0; i < pages; i++) {
		uint64_t seed = written[i] != 0 ? (uint64_t)written[i] : file_seed;
		if (!filled(rewritten + i * page, page, seed, (uint64_t)(i * page)))
			return false;
	}
	return true;
}

// check_copy has a child look at the pages that it shares, while they are written anew.
static pid_t check_copy(void)
{
	pid_t pid = fork();
	if (pid == 0)
		_exit(as_written() ? 0 : 1);
	return pid;
}

static void rewrite(void)
{
	for (int turn = 0;; turn++) {
		pid_t copy = turn % 8 == 0 ? check_copy() : 0;
		for (int i = turn % 3; i < pages / 2; i += 3) { // the others stay as they are
			uint8_t *at = rewritten + i * page;
			written[i] = (turn + i) % 5 == 0 ? 0 : first_seed + (turn + i) % seeds;
			if (written[i] == 0)
				madvise(at, page, MADV_DONTNEED);
			else
				fill(at, page, (uint64_t)written[i], (uint64_t)(i * page));
		}
		int status = 0;
		if (copy != 0)
			waitpid(copy, &status, 0);
		if (copy < 0 || status != 0 || !as_written())
			__atomic_add_fetch(&rewriting->faults, 1, __ATOMIC_SEQ_CST);
		__atomic_add_fetch(&rewriting->turns, 1, __ATOMIC_SEQ_CST);
		pause_briefly();
	}
}

static void set_up_rewriting(int fd)
{
	rewriting = shared(sizeof *rewriting);
	rewritten = map(small, rw, MAP_PRIVATE, fd);
	for (int i = pages / 4; i < pages; i++) {
		written[i] = first_seed + i;
		fill(rewritten + i * page, page, (uint64_t)written[i], (uint64_t)(i * page));
	}
	if (must(fork()) == 0)
		rewrite();
}

static int turns_wanted;

static bool has_turned(void) { return __atomic_load_n(&rewriting->turns, __ATOMIC_SEQ_CST) >= turns_wanted; }

static void check_rewriting(void)
{
	turns_wanted = __atomic_load_n(&rewriting->turns, __ATOMIC_SEQ_CST) + 10;
	want(within(has_turned));
	want_equal(__atomic_load_n(&rewriting->faults, __ATOMIC_SEQ_CST), 0);
	want(as_written()); // what this process has of it
}

static int data_file(const char *path, uint64_t seed)
{
	static uint8_t data[small];
	int fd = must(open(path, O_RDWR | O_CREAT, 0600));
	fill(data, small, seed, 0);
	must(write(fd, data, small));
	return fd;
}

static void set_up_code(void)
{
#if defined(__x86_64__)
	static const uint8_t twice[] = { 0x8d, 0x04, 0x3f, 0xc3 }; // lea eax, [rdi+rdi]; ret
#elif defined(__aarch64__)
	static const uint8_t twice[] = { 0x00, 0x00, 0x00, 0x0b, 0xc0, 0x03, 0x5f, 0xd6 }; // add w0, w0, w0; ret
#endif
	uint8_t *p = map(page, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	memcpy(p, twice, sizeof twice);
	must(mprotect(p, page, PROT_READ | PROT_EXEC));
	__builtin___clear_cache((char *)p, (char *)p + sizeof twice);
	memcpy(&code, &p, sizeof code);
}

static void set_up_files(void)
{
	int fd = data_file("/tmp/private-mapped", 2);
	private_file = map(small, rw, MAP_PRIVATE, fd);
	private_file[page] ^= 0xff;
	must(close(fd));
	fd = data_file("/tmp/shared-mapped", 3);
	shared_file = map(small, rw, MAP_SHARED, fd);
	must(close(fd));
	fd = data_file("/tmp/deleted-mapped", 4);
	deleted = map(small, rw, MAP_SHARED, fd);
	must(close(fd));
	must(unlink("/tmp/deleted-mapped"));
	fd = must(shm_open("/posix", O_RDWR | O_CREAT, 0600));
	must(ftruncate(fd, small));
	shm = map(small, rw, MAP_SHARED, fd);
	fill(shm, small, 5, 0);
	must(close(fd));
	memfd = must(memfd_create("named", MFD_CLOEXEC));
	must(ftruncate(memfd, small));
	must(lseek(memfd, 4321, SEEK_SET));
	uint8_t *p = map(small, rw, MAP_SHARED, memfd);
	fill(p, small, 6, 0);
	must(munmap(p, small));
	sealed_fd = must(memfd_create("sealed", MFD_ALLOW_SEALING));
	must(ftruncate(sealed_fd, small));
	must(fcntl(sealed_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	sealed = map(small, rw, MAP_SHARED, sealed_fd);
	fill(sealed, small, 7, 0);
	copied_memfd = must(dup(memfd));
}

// Memory of /dev/zero that is mapped shared is shared memory without a name.
static void set_up_zero(void)
{
	int fd = must(open("/dev/zero", O_RDWR));
	zero = map(small, rw, MAP_SHARED, fd);
	fill(zero, small, 16, 0);
	zero[1] = 76;
	must(close(fd));
}

static void set_up_common(void)
{
	common = shared(sizeof *common);
	pthread_mutexattr_t mutex;
	pthread_condattr_t condition;
	pthread_mutexattr_init(&mutex);
	pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&common->mutex, &mutex);
	pthread_condattr_init(&condition);
	pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
	pthread_cond_init(&common->changed, &condition);
}

static void set_up(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	int fd = data_file("/tmp/rewritten", file_seed);
	set_up_rewriting(fd);
	must(close(fd));
	anonymous = map(big, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	fill(anonymous, big, 1, 0);
	with_child = map(small, rw, MAP_SHARED | MAP_ANONYMOUS, -1);
	with_child[1] = 55;
	copied = map(small, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	fill(copied, small, 9, 0);
	heap = malloc(3 << 20);
	fill(heap, 3 << 20, 10, 0);
	set_up_files();
	set_up_code();
	set_up_common();
	set_up_zero();
	shared_file[1] = 66;
	guarded = map(3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	must(mprotect(guarded + page, page, rw));
	fill(guarded + page, page, 11, 0);
	must(mprotect(guarded + page, page, PROT_READ));
	descending = map(4 * page, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_STACK, -1);
	fill(descending, page, 12, 0);
	holed = map(small, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	fill(holed, small, 13, 0);
	must(madvise(holed + page, page, MADV_DONTNEED));
	must(madvise(holed, small, MADV_DONTDUMP));
	locked = map(2 * page, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	fill(locked, 2 * page, 14, 0);
	must(mlock(locked, 2 * page));
	child = helper_start(set_up_child, check_child);
}

static const uint8_t *faulted_at;

static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	if (info->si_addr == faulted_at)
		_exit(66);
	_exit(67);
}

// want_fault: a write there must be refused with a signal at that address.
static void want_fault(uint8_t *at, const char *what)
{
	pid_t victim = fork();
	if (victim == 0) {
		faulted_at = at;
		struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
		sigaction(SIGSEGV, &action, NULL);
		*(volatile uint8_t *)at = 1;
		_exit(0);
	}
	int status = 0;
	waitpid(victim, &status, 0);
	if (status != 66 << 8)
		bad("writing to %s ended with %x", what, status);
}

// mapping_has looks for a flag of the mapping at an address (/proc/PID/smaps).
static bool mapping_has(const void *at, const char *flag)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	char line[512];
	bool here = false, found = false;
	while (f != NULL && fgets(line, sizeof line, f) != NULL) {
		unsigned long from, to;
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = from <= (unsigned long)at && (unsigned long)at < to;
		else if (here && strncmp(line, "VmFlags:", 8) == 0)
			found = strstr(line, flag) != NULL;
	}
	if (f != NULL)
		fclose(f);
	return found;
}

static void check_files(void)
{
	static uint8_t data[small];
	want(filled(private_file, page, 2, 0));
	want_equal(private_file[page], (uint8_t)~pattern(2, page));
	want(filled(private_file + page + 1, small - page - 1, 2, page + 1));
	int fd = open("/tmp/private-mapped", O_RDONLY);
	want_equal(read(fd, data, small), small);
	want(filled(data, small, 2, 0));
	close(fd);
	fd = open("/tmp/shared-mapped", O_RDWR);
	shared_file[10] = 99;
	want_equal(pread(fd, data, small, 0), small);
	want_equal(data[10], 99);
	want_equal(pwrite(fd, "\x58", 1, 11), 1);
	want_equal(shared_file[11], 0x58);
	want(filled(shared_file + 12, small - 12, 3, 12));
	close(fd);
	want(filled(deleted, small, 4, 0));
	want(filled(shm, small, 5, 0));
	fd = shm_open("/posix", O_RDWR, 0);
	want_equal(pread(fd, data, small, 0), small);
	want(filled(data, small, 5, 0));
	shm[0]++;
	want_equal(pread(fd, data, 1, 0), 1);
	want_equal(data[0], shm[0]);
	shm[0]--;
	close(fd);
	want_equal(lseek(memfd, 0, SEEK_CUR), 4321);
	want_equal(lseek(copied_memfd, 0, SEEK_CUR), 4321);
	want_equal(pread(memfd, data, small, 0), small);
	want(filled(data, small, 6, 0));
	want_equal(fcntl(sealed_fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW);
	want(filled(sealed, small, 7, 0));
	char name[64] = "";
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", memfd);
	want(readlink(path, name, sizeof name - 1) > 0);
	want(strcmp(name, "/memfd:named (deleted)") == 0);
	want_equal(fcntl(memfd, F_GETFD), FD_CLOEXEC);
	errno = 0;
	want_equal(ftruncate(sealed_fd, 1), -1);
	want_equal(errno, EPERM);
}

static void check(void)
{
	want(filled(anonymous, big, 1, 0));
	want(filled(heap, 3 << 20, 10, 0));
	check_files();
	check_rewriting();
	want_equal(code(21), 42);
	want(filled(guarded + page, page, 11, 0));
	want_fault(guarded, "a guard page");
	want_fault(guarded + page, "a read-only page");
	want_fault(guarded + 2 * page, "the other guard page");
	uint8_t *instructions;
	memcpy(&instructions, &code, sizeof instructions);
	want_fault(instructions, "code");
	want(filled(descending, page, 12, 0));
	want(mapping_has(descending, " gd"));
	want(filled(holed, page, 13, 0));
	want_equal(holed[page] | holed[2 * page - 1], 0);
	want(filled(holed + 2 * page, small - 2 * page, 13, 2 * page));
	want(mapping_has(holed, " dd"));
	want(filled(locked, 2 * page, 14, 0));
	want(mapping_has(locked, " lo"));
	want(filled(copied, small, 9, 0));
	with_child[2] = shared_file[2] = zero[2] = 0;
	int turns = common->turns;
	helper_ask(&child);
	want_equal(with_child[2], 56);
	want_equal(shared_file[2], 67);
	want_equal(zero[2], 77);
	want_equal(common->turns, turns + 1);
	void *more = malloc(1 << 20);
	want(more != NULL);
	free(more);
}

const struct state memory = { "memory", set_up, check, NULL };
