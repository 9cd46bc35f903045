// A program whose memory changes all the time and that knows what it must hold.
//
//   workload KIND MEBIBYTES THREADS
//
// It prints "ready", then does what KIND says until it is killed. For each line on standard input it prints
// "bad N done M": how many pages were not as it had left them, and how much it has done.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <sched.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#endif
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <errno.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };
static uint64_t *memory;
static uint32_t *version;
static size_t pages;
static int threads;
static volatile uint64_t *shared; // bad, done: of all processes
static char *self;

static void bad(void) { __atomic_add_fetch(&shared[0], 1, __ATOMIC_RELAXED); }
static void done(void) { __atomic_add_fetch(&shared[1], 1, __ATOMIC_RELAXED); }

static uint64_t chance(uint64_t *s) {
  *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
  return *s;
}

static void fill(uint64_t *page, uint64_t number, uint32_t version) {
  page[0] = (uint64_t)version << 32 | (uint32_t)number;
  for (int i = 1; i < WORDS; i++) page[i] = page[0] * 0x9E3779B97F4A7C15ull + i;
}

static int holds(uint64_t *page, uint64_t number, uint32_t version) {
  if (page[0] != ((uint64_t)version << 32 | (uint32_t)number)) return 0;
  for (int i = 1; i < WORDS; i++)
    if (page[i] != page[0] * 0x9E3779B97F4A7C15ull + i) return 0;
  return 1;
}

static void nap(long microseconds) {
  struct timespec t = {0, microseconds * 1000};
  nanosleep(&t, 0);
}

// write: pages at random, each thread in its own part
static void *writer(void *number) {
  size_t t = (size_t)number, low = pages * t / threads, n = pages * (t + 1) / threads - low;
  uint64_t s = 88172645463325252ull + t * 7919 + getpid();
  for (uint64_t k = 0;; k++) {
    size_t i = low + chance(&s) % n;
    if (!holds(memory + i * WORDS, i, version[i])) bad();
    fill(memory + i * WORDS, i, ++version[i]);
    done();
    if (k % 16 == 0) nap(200);
  }
}

static void *map(void *at, size_t n) {
  void *p = mmap(at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  if (p == MAP_FAILED) perror("mmap"), exit(1);
  return p;
}

// churn: mappings come, move, shrink, lose pages and protection, and go
static void *churner(void *number) {
  uint64_t s = 1181783497276652981ull + (uint64_t)number + getpid();
  enum { MAX = 64 };
  for (;;) {
    size_t n = 2 + chance(&s) % MAX;
    uint32_t v = chance(&s);
    uint64_t *p = map(0, n * PAGE);
    for (size_t i = 0; i < n; i++) fill(p + i * WORDS, i, v);
    nap(100);
    switch (chance(&s) % 6) {
    case 0: { // moved
      char *q = mmap(0, (n + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      p = mremap(p, n * PAGE, n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q + PAGE);
      if (p == MAP_FAILED) perror("mremap"), exit(1);
      munmap(q, PAGE), munmap(q + (n + 1) * PAGE, PAGE);
      break;
    }
    case 1: // grown
      p = mremap(p, n * PAGE, 2 * n * PAGE, MREMAP_MAYMOVE);
      if (p == MAP_FAILED) perror("mremap"), exit(1);
      for (size_t i = n; i < 2 * n; i++) fill(p + i * WORDS, i, v);
      n *= 2;
      break;
    case 2: // emptied and written again
      madvise(p, n / 2 * PAGE, MADV_DONTNEED);
      for (size_t i = 0; i < n / 2; i++)
        if (p[i * WORDS]) bad();
      for (size_t i = 0; i < n / 2; i++) fill(p + i * WORDS, i, v);
      break;
    case 3: // not readable for a while
      mprotect(p, n * PAGE, PROT_NONE);
      nap(300);
      mprotect(p, n * PAGE, PROT_READ | PROT_WRITE);
      break;
    case 4: // replaced in the middle
      map(p + WORDS, PAGE);
      fill(p + WORDS, 1, v);
      break;
    case 5: // split in two by protection
      mprotect(p, PAGE, PROT_READ);
      break;
    }
    nap(200);
    for (size_t i = 0; i < n; i++)
      if (!holds(p + i * WORDS, i, v)) bad();
    munmap(p, n * PAGE);
    done();
  }
}

// fork: children write to what they share with their parent, and their parent goes on
static void *forker(void *number) {
  uint64_t s = 2862933555777941757ull + (uint64_t)number + getpid();
  for (;;) {
    size_t from = chance(&s) % pages, n = 64;
    pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (size_t k = 0; k < n; k++) {
        size_t i = (from + k) % pages;
        fill(memory + i * WORDS, i, 0xffff0000u + k);
        nap(500);
      }
      for (size_t k = 0; k < n; k++)
        if (!holds(memory + (from + k) % pages * WORDS, (from + k) % pages, 0xffff0000u + k)) bad();
      _exit(0);
    }
    for (int k = 0; k < 16; k++) {
      size_t i = chance(&s) % pages;
      if (!holds(memory + i * WORDS, i, version[i])) bad();
      fill(memory + i * WORDS, i, ++version[i]);
      nap(1000);
    }
    int status = 0;
    if (chance(&s) % 2) waitpid(child, &status, 0);
    while (waitpid(-1, &status, WNOHANG) > 0);
    done();
  }
}

// spawn: children that begin with the parent's memory (vfork) and call execve
static void *spawner(void *number) {
  extern char **environ;
  for (;;) {
    pid_t child;
    char *arguments[] = {self, "brief", "1", "1", 0};
    if (posix_spawn(&child, self, 0, 0, arguments, environ)) bad();
    int status;
    if (waitpid(child, &status, 0) != child || status) bad(), fprintf(stderr, "workload: status %x of a child\n", status);
    size_t i = child % pages;
    if (!holds(memory + i * WORDS, i, version[i])) bad();
    fill(memory + i * WORDS, i, ++version[i]);
    done();
  }
}

// parent: a thread that waits where nobody can stop it, while its child has its memory (vfork)
static void *parent(void *number) {
  for (;;) {
    pid_t child = vfork();
    if (child == 0) {
      struct timespec t = {1, 500000000};
      syscall(SYS_nanosleep, &t, 0);
      _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) bad();
    done();
  }
}

// grow: a stack that gets deep and a heap that grows and shrinks
static int deep(int n) {
  volatile char room[3000];
  memset((char *)room, n, sizeof room);
  if (n && deep(n - 1) != n - 1) bad();
  for (size_t i = 0; i < sizeof room; i += 97)
    if (room[i] != (char)n) bad();
  return n;
}
static void *grower(void *number) {
  uint64_t s = 3935559000370003845ull + (uint64_t)number;
  for (;;) {
    deep(chance(&s) % 200);
    char *top = sbrk(PAGE * 8);
    memset(top, 1, PAGE * 8);
    nap(300);
    if (chance(&s) % 4 == 0) sbrk(-PAGE * 16);
    done();
  }
}

// wait: system calls that wait, in all the ways in which the kernel restarts one that was interrupted
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
static void *waiter(void *number) {
  int pair[2], e = epoll_create1(0);
  if (pipe(pair)) exit(1);
  struct epoll_event event = {.events = EPOLLIN}, got;
  epoll_ctl(e, EPOLL_CTL_ADD, pair[0], &event);
  for (unsigned k = (size_t)number;; k++) {
    double start = now(), want = 0.02;
    struct timespec t = {0, 20000000};
    int futex = 0;
    switch (k % 4) {
    case 0: if (nanosleep(&t, 0)) bad(); break;
    case 1: { // is not restarted by the kernel after a freeze (signal(7)), and every program knows
      int got_events = epoll_wait(e, &got, 1, 20);
      if (got_events && errno != EINTR) bad();
      if (got_events) continue;
      break;
    }
    case 2: if (syscall(SYS_futex, &futex, 0, 0, &t, 0, 0) != -1 || errno != ETIMEDOUT) bad(); break;
    case 3: if (poll(0, 0, 20)) bad(); break;
    }
    if (now() - start < want - 0.001) bad();
    done();
  }
}
// block: a read that is never answered
static void *blocker(void *number) {
  int pair[2];
  char c;
  if (pipe(pair)) exit(1);
  done();
  if (read(pair[0], &c, 1) != 1 || 1) bad();
  return 0;
}
// direct: a device writes into memory
static void *director(void *number) {
  enum { BLOCK = 64 * PAGE, BLOCKS = 16 };
  char name[4096];
  snprintf(name, sizeof name, "%s.direct%zu", self, (size_t)number);
  int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
  if (fd < 0) perror(name), exit(1);
  unlink(name);
  uint64_t *p = map(0, BLOCK), s = 7046029254386353087ull + (uint64_t)number;
  for (int b = 0; b < BLOCKS; b++) {
    for (int i = 0; i < BLOCK / PAGE; i++) fill(p + i * WORDS, i, b);
    if (pwrite(fd, p, BLOCK, (off_t)b * BLOCK) != BLOCK) perror("pwrite"), exit(1);
  }
  for (;;) {
    int b = chance(&s) % BLOCKS;
    if (pread(fd, p, BLOCK, (off_t)b * BLOCK) != BLOCK) perror("pread"), exit(1);
    for (int i = 0; i < BLOCK / PAGE; i++)
      if (!holds(p + i * WORDS, i, b)) bad();
    done();
  }
}
// aio: the same, while the program goes on
static void *submitter(void *number) {
  enum { BLOCK = 16 * PAGE, BLOCKS = 16, MANY = 8 };
  char name[4096];
  snprintf(name, sizeof name, "%s.aio%zu", self, (size_t)number);
  int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
  if (fd < 0) perror(name), exit(1);
  unlink(name);
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, MANY, &context)) perror("io_setup"), exit(1);
  uint64_t *p = map(0, MANY * BLOCK), s = 1181783497276652981ull + (uint64_t)number;
  for (int b = 0; b < BLOCKS; b++) {
    for (int i = 0; i < BLOCK / PAGE; i++) fill(p + i * WORDS, i, b);
    if (pwrite(fd, p, BLOCK, (off_t)b * BLOCK) != BLOCK) perror("pwrite"), exit(1);
  }
  struct iocb requests[MANY];
  int blocks[MANY], busy[MANY] = {0};
  for (;;) {
    for (int k = 0; k < MANY; k++) {
      if (busy[k]) continue;
      uint64_t *to = p + k * (BLOCK / 8);
      blocks[k] = chance(&s) % BLOCKS, busy[k] = 1;
      memset(to, 0, BLOCK);
      struct iocb *one = &requests[k];
      *one = (struct iocb){.aio_data = k, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = fd, .aio_buf = (uint64_t)to,
                           .aio_nbytes = BLOCK, .aio_offset = (int64_t)blocks[k] * BLOCK};
      if (syscall(SYS_io_submit, context, 1, &one) != 1) perror("io_submit"), exit(1);
    }
    struct io_event events[MANY];
    long n = syscall(SYS_io_getevents, context, 1, MANY, events, 0);
    if (n < 0 && errno != EINTR) perror("io_getevents"), exit(1);
    for (long e = 0; e < n; e++) {
      int k = events[e].data;
      if (events[e].res != BLOCK) bad();
      for (int i = 0; i < BLOCK / PAGE; i++)
        if (!holds(p + k * (BLOCK / 8) + i * WORDS, i, blocks[k])) bad();
      busy[k] = 0, done();
    }
  }
}
// slow: a device that takes its time, behind the name of the fourth argument
static char *device, *wanted;
static void *slow(void *number) {
  enum { N = 16 };
  uint64_t *p = map(0, N * PAGE);
  for (int i = 0; i < N; i++) fill(p + i * WORDS, i, 1);
  int fd = open(device, O_RDONLY | (strstr(wanted, "cached") ? 0 : O_DIRECT));
  if (fd < 0) perror(device), exit(1);
  if (pread(fd, p, N * PAGE, 0) != N * PAGE) perror("pread"), exit(1);
  done();
  for (;;) nap(1000);
}
// exec: children that become another program again and again, with the same descriptors
static void *execer(void *number) {
  for (;;) {
    pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      execl(self, self, "again", "1", "5", (char *)0);
      _exit(1);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) bad(), fprintf(stderr, "workload: status %x of a child\n", status);
    done();
  }
}
static int again(int left) {
  size_t n = 64;
  uint64_t *p = map(0, n * PAGE);
  for (size_t i = 0; i < n; i++) fill(p + i * WORDS, i, left);
  nap(20000);
  for (size_t i = 0; i < n; i++)
    if (!holds(p + i * WORDS, i, left)) return 1;
  char number[16];
  snprintf(number, sizeof number, "%d", left - 1);
  return left ? execl(self, self, "again", "1", number, (char *)0) : 0;
}
// guard: pages that nobody may touch inside of memory that is used, and memory that the kernel may take away
static void *guarder(void *number) {
  uint64_t s = 1442695040888963407ull + (uint64_t)number;
  enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103, DROPPABLE = 8 };
  char *dropped = mmap(0, 8 * PAGE, PROT_READ | PROT_WRITE, DROPPABLE | MAP_ANONYMOUS, -1, 0);
  for (;;) {
    size_t n = 8 + chance(&s) % 8;
    uint64_t *p = map(0, n * PAGE);
    for (size_t i = 0; i < n; i++) fill(p + i * WORDS, i, n);
    madvise(p + 3 * WORDS, PAGE, GUARD_INSTALL);
    if (dropped != MAP_FAILED) memset(dropped, n, 8 * PAGE);
    nap(2000);
    for (size_t i = 0; i < n; i++)
      if (i != 3 && !holds(p + i * WORDS, i, n)) bad();
    munmap(p, n * PAGE);
    done();
  }
}
// alarm: signals all the time, with handlers on the stack of the thread and on one of their own
static volatile uint64_t rung;
static void ring(int signal) { rung++; }
static void alarms(void) {
  struct sigaction action = {.sa_handler = ring, .sa_flags = SA_RESTART};
  sigaction(SIGALRM, &action, 0);
  stack_t own = {.ss_sp = malloc(65536), .ss_size = 65536};
  sigaltstack(&own, 0);
  action.sa_flags |= SA_ONSTACK;
  sigaction(SIGPROF, &action, 0);
  struct itimerval often = {{0, 300}, {0, 300}};
  setitimer(ITIMER_REAL, &often, 0), setitimer(ITIMER_PROF, &often, 0);
}
// spin: floating point and integer registers must stay
static void *spinner(void *number) {
  double x = 1 + (size_t)number;
  uint64_t a = 1, b = 1;
  for (;;) {
    double y = x;
    for (int i = 0; i < 1000; i++) y = y * 1.0000001 + 1e-9, a = a * 6364136223846793005ull + 1442695040888963407ull;
    for (int i = 0; i < 1000; i++) b = b * 6364136223846793005ull + 1442695040888963407ull;
    double z = x;
    for (int i = 0; i < 1000; i++) z = z * 1.0000001 + 1e-9;
    if (a != b || y != z) bad();
    x = x > 1e6 ? 1 : y;
    done();
  }
}

// rseq: threads on one processor that count together, without atomic instructions, in restartable sequences (rseq(2))
#if defined(__x86_64__) && defined(RSEQ_SIG)
static volatile long counted;
static long commits;
static int count(struct rseq *area) {
  __asm__ goto(
      ".pushsection __rseq_cs, \"aw\"\n\t.balign 32\n3:\t.long 0, 0\n\t.quad 1f, 2f - 1f, 4f\n\t.popsection\n\t"
      "leaq 3b(%%rip), %%rax\n\tmovq %%rax, 8(%0)\n"
      "1:\tmovq (%1), %%rcx\n\tmovl $2000, %%edx\n"
      "5:\tdecl %%edx\n\tjnz 5b\n\tincq %%rcx\n\tmovq %%rcx, (%1)\n2:\n\t"
      ".pushsection __rseq_failure, \"ax\"\n\t.byte 0x0f, 0xb9, 0x3d\n\t.long 0x53053053\n4:\tjmp %l[abort]\n\t.popsection"
      : : "r"(area), "r"(&counted) : "rax", "rcx", "rdx", "memory", "cc" : abort);
  return 1;
abort:
  return 0;
}
static void *sequencer(void *number) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  if (sched_setaffinity(0, sizeof one, &one)) perror("sched_setaffinity"), exit(1);
  struct rseq *area = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
  for (int k = 1;; k++) {
    if (count(area)) __atomic_add_fetch(&commits, 1, __ATOMIC_RELAXED);
    if (k % 64) continue;
    // what was counted is at least what was committed before, and at most that and one for each thread
    long before = __atomic_load_n(&commits, __ATOMIC_RELAXED), c = counted, after = __atomic_load_n(&commits, __ATOMIC_RELAXED);
    if (c < before - 8 || c > after + 8) bad();
    done();
  }
}
#else
static void *sequencer(void *number) { return spinner(number); }
#endif

static void setup(const char *kind) {
  // not readable, read only, and touched only by reading
  uint64_t *hidden = map(0, 16 * PAGE), *constant = map(0, 16 * PAGE), *zeros = map(0, 64 * PAGE);
  for (int i = 0; i < 16; i++) fill(hidden + i * WORDS, i, 77), fill(constant + i * WORDS, i, 78);
  mprotect(hidden, 16 * PAGE, PROT_NONE), mprotect(constant, 16 * PAGE, PROT_READ);
  volatile uint64_t sum = 0;
  for (int i = 0; i < 32; i++) sum += zeros[i * WORDS];
  memset(zeros + 48 * WORDS, 0, 8 * PAGE);
  uint64_t *locked = map(0, 4 * PAGE);
  if (strstr(kind, "locked") && mlock(locked, 4 * PAGE)) perror("mlock"), exit(1);
  if (strstr(kind, "namespace") && unshare(CLONE_NEWUSER)) perror("unshare"), exit(1);
  if (strstr(kind, "hidden")) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  if (strstr(kind, "filtered") || strstr(kind, "deadly")) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    unsigned answer = strstr(kind, "deadly") ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
    struct sock_filter f[] = {{0x20, 0, 0, 0}, {0x15, 0, 1, SYS_userfaultfd}, {6, 0, 0, answer},
                              {0x15, 0, 1, SYS_ptrace}, {6, 0, 0, SECCOMP_RET_KILL_PROCESS}, {6, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog program = {6, f};
    if (prctl(PR_SET_SECCOMP, 2, &program)) perror("seccomp"), exit(1);
  }
}

// lost: a page whose content is lost (UFFDIO_POISON), beside others
static void lose(void) {
  char *p = map(0, 4 * PAGE);
  int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
  struct uffdio_api api = {.api = UFFD_API};
  struct uffdio_register all = {.range = {(uintptr_t)p, 4 * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
  struct { struct uffdio_range range; uint64_t mode; int64_t done; } poison = {.range = {(uintptr_t)p + PAGE, PAGE}};
  if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &all) || ioctl(fd, 0xC020AA08, &poison))
    perror("lose a page"), exit(1);
  close(fd);
  p[0] = p[2 * PAGE] = 1;
}

static void *answerer(void *unused) {
  char line[64];
  while (fgets(line, sizeof line, stdin)) printf("bad %lu done %lu\n", shared[0], shared[1]), fflush(stdout);
  exit(0);
}

int main(int n, char **arguments) {
  if (n < 4) return 2;
  self = arguments[0], device = n > 4 ? arguments[4] : 0;
  char *kind = wanted = arguments[1];
  if (!strcmp(kind, "brief")) {
    char *p = map(0, 32 * PAGE);
    for (int i = 0; i < 32 * PAGE; i++) p[i] = i;
    return 0;
  }
  if (!strcmp(kind, "again")) return again(atoi(arguments[3]));
  pages = (size_t)atol(arguments[2]) * 256, threads = atoi(arguments[3]);
  if (strstr(kind, "nobody") && (setgid(65534) || setuid(65534))) perror("setuid"), exit(1);
  memory = map(0, pages * PAGE), version = map(0, pages * 4);
  shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (strstr(kind, "huge")) madvise(memory, pages * PAGE, MADV_HUGEPAGE);
  for (size_t i = 0; i < pages; i++) fill(memory + i * WORDS, i, 0);
  setup(kind);
  struct { char *name; void *(*run)(void *); } kinds[] = {{"write", writer}, {"churn", churner}, {"fork", forker},
    {"spawn", spawner}, {"grow", grower}, {"wait", waiter}, {"spin", spinner}, {"block", blocker}, {"direct", director},
    {"slow", slow}, {"aio", submitter}, {"parent", parent}, {"rseq", sequencer}, {"exec", execer}, {"guard", guarder}};
  for (int k = 0; k < sizeof kinds / sizeof *kinds; k++)
    for (size_t t = !strncmp(kind, "main-", 5); strstr(kind, kinds[k].name) && t < threads; t++) {
      pthread_t thread;
      if (t && (kinds[k].run == forker || kinds[k].run == grower)) continue;
      if (pthread_create(&thread, 0, kinds[k].run, (void *)t)) perror("thread"), exit(1);
    }
  if (strstr(kind, "alarm")) alarms();
  if (strstr(kind, "lost")) lose();
  printf("ready\n"), fflush(stdout);
  if (strncmp(kind, "main-", 5)) answerer(0);
  // the first thread does it, too
  pthread_t thread;
  if (pthread_create(&thread, 0, answerer, 0)) return 1;
  for (int k = 0; k < sizeof kinds / sizeof *kinds; k++)
    if (strstr(kind, kinds[k].name)) kinds[k].run((void *)0);
}
