// A program that does to its memory what it is told, line by line on standard input, and answers each with "ok" or with
// why the kernel refused. Addresses and lengths are pages of one range of addresses.
//
//   map AT N        new memory (nothing where something is); share AT N the same, for children too
//   write AT N X    X into each page; read AT N reads them
//   unmap AT N      move AT N TO (mremap)      grow AT N (to twice as much, anywhere in the range)
//   drop AT N       free AT N (MADV_DONTNEED, MADV_FREE)
//   hide AT N       show AT N (mprotect)       freeze AT N (read only)
//   huge AT N       lock AT N  unlock AT N
//   fork            a child that writes to the pages that exist, now and then, until its parent ends
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 4096 };
static char *const base = (char *)0x600000000000;
static sigjmp_buf back;

static void fault(int signal) { siglongjmp(back, signal); }

static int touch(char *at, size_t n, const uint64_t *value) {
  volatile uint64_t sum = 0;
  if (sigsetjmp(back, 1)) return errno = EFAULT, -1;
  for (char *p = at; p < at + n; p += PAGE) {
    if (value) *(volatile uint64_t *)(p + *value % 500 * 8) = *value;
    else sum += *(volatile uint64_t *)p;
  }
  return 0;
}

static void *map(char *at, size_t n, int flags) {
  return mmap(at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

static int child(void) {
  if (fork()) return 0;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (uint64_t n = 1;; n++) {
    touch(base + n * 37 % 64 * PAGE, PAGE, &n);
    usleep(300);
  }
}

static int obey(const char *what, char *at, size_t n, uint64_t x) {
  if (at + n > base + (size_t)PAGES * PAGE) return errno = ERANGE, -1;
  char *to = base + x % PAGES * PAGE;
  if (!strcmp(what, "map")) return map(at, n, MAP_FIXED_NOREPLACE) == at ? 0 : -1;
  if (!strcmp(what, "share"))
    return mmap(at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at ? 0 : -1;
  if (!strcmp(what, "write")) return touch(at, n, &x);
  if (!strcmp(what, "read")) return touch(at, n, 0);
  if (!strcmp(what, "unmap")) return munmap(at, n);
  if (!strcmp(what, "move")) return mremap(at, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED ? -1 : 0;
  if (!strcmp(what, "grow")) return mremap(at, n, 2 * n, 0) == MAP_FAILED ? -1 : 0;
  if (!strcmp(what, "drop")) return madvise(at, n, MADV_DONTNEED);
  if (!strcmp(what, "free")) return madvise(at, n, MADV_FREE);
  if (!strcmp(what, "hide")) return mprotect(at, n, PROT_NONE);
  if (!strcmp(what, "freeze")) return mprotect(at, n, PROT_READ);
  if (!strcmp(what, "show")) return mprotect(at, n, PROT_READ | PROT_WRITE);
  if (!strcmp(what, "huge")) return madvise(at, n, MADV_HUGEPAGE);
  if (!strcmp(what, "lock")) return mlock(at, n);
  if (!strcmp(what, "unlock")) return munlock(at, n);
  if (!strcmp(what, "fork")) return child();
  return errno = ENOSYS, -1;
}

int main(void) {
  struct sigaction action = {.sa_handler = fault};
  sigaction(SIGSEGV, &action, 0), sigaction(SIGBUS, &action, 0), signal(SIGCHLD, SIG_IGN);
  printf("ready\n"), fflush(stdout);
  char line[128], what[16];
  while (fgets(line, sizeof line, stdin)) {
    unsigned long at = 0, n = 1, x = 0;
    if (sscanf(line, "%15s %lu %lu %lu", what, &at, &n, &x) < 1) return 2;
    if (obey(what, base + at % PAGES * PAGE, n * PAGE, x)) printf("%s\n", strerror(errno));
    else printf("ok\n");
    fflush(stdout);
  }
}
