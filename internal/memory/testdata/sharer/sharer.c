/*
 * Processes that share memory in several ways, check it for ever, and tell each other by it that they live. It writes a line
 * for each round, and one that begins with BAD for what is wrong.
 *
 * sharer MEBIBYTES CHILDREN PAUSE_MICROSECONDS [plain|fork|heap]
 *
 * plain: no memory is sealed, which CRIU cannot restore by itself; fork: children come and go that write to it; heap: there are
 * 16 MiB of private memory, too, that all processes share copy-on-write.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif

#define PAGE 4096
#define WORDS 8
#define MAX 16
#define BAD(...) (printf("BAD " __VA_ARGS__), putchar('\n'), fflush(stdout))

struct page { /* what is between the versions is right if they are the same */
	volatile uint64_t before, words[WORDS], after;
};

struct header {
	volatile uint64_t beat[MAX];
};

static int me, count;
static long pause_us;

static uint64_t word(uint64_t id, uint64_t page, uint64_t version, int i)
{
	uint64_t x = (id << 56 ^ page << 24 ^ version ^ (uint64_t)i << 50) * 0x9E3779B97F4A7C15ull;
	return x ^ x >> 29;
}

static struct page *at(char *base, uint64_t page) { return (struct page *)(base + page * PAGE); }

static void put(char *base, uint64_t id, uint64_t page)
{
	struct page *p = at(base, page);
	uint64_t version = p->before + 1;

	p->before = version;
	__sync_synchronize();
	for (int i = 0; i < WORDS; i++)
		p->words[i] = word(id, page, version, i);
	__sync_synchronize();
	p->after = version;
}

static void look(char *base, uint64_t id, uint64_t page)
{
	struct page *p = at(base, page);
	uint64_t before = p->before, words[WORDS], after;

	__sync_synchronize();
	after = p->after;
	__sync_synchronize();
	for (int i = 0; i < WORDS; i++)
		words[i] = p->words[i];
	__sync_synchronize();
	if (before != after || p->before != before || before == 0)
		return; /* it is being written, or never was */
	for (int i = 0; i < WORDS; i++)
		if (words[i] != word(id, page, before, i)) {
			BAD("process %d: memory %lu page %lu version %lu", me, id, page, before);
			return;
		}
}

static void *map(size_t size, int prot, int flags, int fd, off_t offset)
{
	void *p = mmap(NULL, size, prot, flags, fd, offset);

	if (p == MAP_FAILED) {
		BAD("mmap: %s", strerror(errno));
		exit(3);
	}
	return p;
}

/* one memory that was mapped from a place in it on */
struct memory {
	uint64_t id;
	char *base;
	uint64_t first, pages;
};

static struct memory all[MAX];
static int memories;

static void add(uint64_t id, void *base, uint64_t first, uint64_t pages)
{
	all[memories++] = (struct memory){ id, (char *)base - first * PAGE, first, pages };
}

static void work(struct header *head, long rounds)
{
	for (long n = 0; n < rounds; n++) {
		struct memory *m = &all[random() % memories];
		uint64_t page = m->first + random() % m->pages;

		look(m->base, m->id, page);
		if (page % count == (uint64_t)me && page % 16 != 5)
			put(m->base, m->id, page);
		head->beat[me]++;
		if (n % 64 == 63 && pause_us)
			usleep(pause_us);
	}
}

/* what must not change besides the content */
struct kept {
	int fd, flags, seals;
	off_t position, size;
	mode_t mode;
	uid_t owner;
	char name[128];
};

static struct kept kept[8];
static int files;

static void note(int fd, struct kept *k)
{
	struct stat s;
	char path[64];
	ssize_t n;

	memset(k, 0, sizeof(*k));
	fstat(fd, &s);
	k->fd = fd;
	k->flags = fcntl(fd, F_GETFL);
	k->seals = fcntl(fd, F_GET_SEALS);
	k->position = lseek(fd, 0, SEEK_CUR);
	k->size = s.st_size;
	k->mode = s.st_mode;
	k->owner = s.st_uid;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, k->name, sizeof(k->name) - 1);
	if (n < 0)
		BAD("readlink: %s", strerror(errno));
}

static int file(const char *name, unsigned flags, off_t size)
{
	int fd = memfd_create(name, flags);

	if (fd < 0 || ftruncate(fd, size)) {
		BAD("memfd: %s", strerror(errno));
		exit(3);
	}
	return fd;
}

static void check_files(void)
{
	struct kept k;

	for (int i = 0; i < files; i++) {
		note(kept[i].fd, &k);
		if (memcmp(&k, &kept[i], sizeof(k)))
			BAD("process %d: %s: flags %#o %#o seals %#x %#x position %ld %ld size %ld %ld mode %#o %#o owner %d %d now %s", me,
			    kept[i].name, kept[i].flags, k.flags, kept[i].seals, k.seals, kept[i].position, k.position,
			    kept[i].size, k.size, kept[i].mode, k.mode, kept[i].owner, k.owner, k.name);
	}
}

static char *constant; /* mapped and sealed */
static size_t constant_size;

static void check_constant(void)
{
	for (size_t i = 0; i < constant_size; i += 61)
		if (constant[i] != (char)(i * 7)) {
			BAD("process %d: sealed memory at %zu", me, i);
			return;
		}
}

static void make_constant(size_t size)
{
	int fd = file("sealed", MFD_ALLOW_SEALING, size);
	char *p = map(size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	for (size_t i = 0; i < size; i++)
		p[i] = i * 7;
	munmap(p, size);
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW))
		BAD("seal: %s", strerror(errno));
	constant = map(size, PROT_READ, MAP_SHARED, fd, 0);
	constant_size = size;
	note(fd, &kept[files++]);
}

/* visit has short lives write: a child, and a mapping of the moment */
static void visit(struct header *head, int fd)
{
	uint64_t page = all[1].first + random() % all[1].pages;
	off_t at = page * PAGE;
	pid_t child;

	page -= page % count;
	at = page * PAGE;
	if (page % 16 != 5) {
		char *p = map(PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);

		put(p - at, 2, page);
		munmap(p, PAGE);
	}
	child = fork();
	if (child == 0) {
		work(head, 5);
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
	uint64_t pages = (argc > 1 ? atol(argv[1]) : 8) * 256;
	struct header *head = map(PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char *anonymous = map(pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd, other, empty;
	uint64_t seen[MAX] = { 0 };
	int plain = argc > 4 && !strcmp(argv[4], "plain"), forks = argc > 4 && !strcmp(argv[4], "fork");

	if (argc > 4 && !strcmp(argv[4], "heap"))
		memset(map(16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 7, 16 << 20);
	count = 1 + (argc > 2 ? atoi(argv[2]) : 1);
	pause_us = argc > 3 ? atol(argv[3]) : 1000;
	fd = file("with a \xff name", MFD_ALLOW_SEALING, pages * PAGE / 2 + 123);
	if (fchown(fd, 1000, 1000) || fchmod(fd, 0640))
		BAD("chown: %s", strerror(errno));
	add(1, anonymous, 0, pages);
	add(2, map(pages * PAGE / 2, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), 0, pages / 2);
	for (int m = 0; m < memories; m++)
		for (uint64_t p = 0; p < all[m].pages; p++)
			if (p % 16 != 5) /* holes */
				put(all[m].base, all[m].id, p);
	if (!plain && !forks)
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE);
	lseek(fd, 777, SEEK_SET);
	note(fd, &kept[files++]);
	other = open("/proc/self/fd/3", O_RDONLY | O_NONBLOCK);
	if (other < 0 || fd != 3)
		BAD("open again: %d %s", fd, strerror(errno));
	lseek(other, 4097, SEEK_SET);
	note(other, &kept[files++]);
	empty = file("only open", 0, 1 << 20);
	lseek(empty, 5, SEEK_SET);
	note(empty, &kept[files++]);
	if (!plain)
		make_constant(300000);
	/* the same memory once more, from elsewhere on */
	add(1, mremap(anonymous, 0, pages * PAGE / 4, MREMAP_MAYMOVE), 0, pages / 4);
	for (me = 1; me < count; me++) {
		if (fork() == 0) {
			srandom(me);
			/* a child has half of it, from the middle on */
			munmap(anonymous, pages * PAGE / 2);
			all[0].first = pages / 2;
			all[0].pages = pages / 2;
			for (;;) {
				work(head, 2000);
				check_files();
				check_constant();
			}
		}
	}
	me = 0;
	puts("ready");
	fflush(stdout);
	for (int round = 1;; round++) {
		for (int i = 1; i < count; i++)
			seen[i] = head->beat[i];
		work(head, 1000);
		check_files();
		check_constant();
		if (forks)
			visit(head, fd);
		for (int i = 1; i < count; i++)
			for (int wait = 0; head->beat[i] == seen[i]; wait++) {
				usleep(1000);
				if (wait == 10000) {
					BAD("nothing is seen of child %d", i);
					break;
				}
			}
		printf("round %d beats %lu\n", round, head->beat[count - 1]);
		fflush(stdout);
		if (waitpid(-1, NULL, WNOHANG) > 0)
			BAD("a child has ended");
	}
}
