// What a process may do and use: capabilities, users, seccomp, resource limits, cgroup limits, and where it works.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- cgroup limits: the container has --memory 64m --pids 40 ----

static struct helper hog;

static void check_hog(void)
{
}

static void set_up_limits(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	hog = helper_start(NULL, check_hog);
}

static void check_limits(void)
{
	// Memory: who takes more than there is is killed.
	pid_t greedy = fork();
	if (greedy == 0) {
		write_file("/proc/self/oom_score_adj", "1000");
		size_t size = 200 << 20;
		uint8_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (size_t i = 0; p != MAP_FAILED && i < size; i += 4096)
			((volatile uint8_t *)p)[i] = 1;
		_exit(0);
	}
	await_child(greedy, SIGKILL);
	helper_ask(&hog);
	// Processes: no more than the limit.
	pid_t children[100];
	int count = 0;
	while (count < 100 && (children[count] = fork()) > 0)
		count++;
	if (count < 100 && children[count] == 0)
		for (;;)
			pause();
	want_equal(errno, EAGAIN);
	want(count > 20 && count < 40);
	for (int i = 0; i < count; i++)
		kill(children[i], SIGKILL);
	for (int i = 0; i < count; i++)
		await_child(children[i], SIGKILL);
}

const struct state limits = { "limits", set_up_limits, check_limits, NULL };

// ---- security: a process and children with identities of their own ----

static struct helper keeper, user, mixed, placed, rooted;
static char environment_before[4096];

static struct __user_cap_data_struct caps[2];

static void get_caps(struct __user_cap_data_struct *to)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	must(syscall(SYS_capget, &header, to));
}

static void set_caps(const struct __user_cap_data_struct *from)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	must(syscall(SYS_capset, &header, from));
}

// keeper has fewer capabilities in each set, an ambient one, secure bits, and no_new_privs.
enum { dropped = CAP_AUDIT_WRITE };

static void set_up_keeper(void)
{
	must(prctl(PR_CAPBSET_DROP, dropped));
	must(prctl(PR_SET_SECUREBITS, 1 << 0 | 1 << 1 | 1 << 2)); // noroot, locked, no_setuid_fixup
	get_caps(caps);
	caps[0].permitted &= ~(1u << dropped);
	caps[0].effective = 1u << CAP_CHOWN | 1u << CAP_NET_BIND_SERVICE | 1u << CAP_DAC_OVERRIDE;
	caps[0].inheritable = 1u << CAP_NET_BIND_SERVICE;
	set_caps(caps);
	must(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_BIND_SERVICE, 0, 0));
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	must(prctl(PR_SET_DUMPABLE, 0));
	get_caps(caps);
}

static void check_keeper(void)
{
	struct __user_cap_data_struct now[2];
	get_caps(now);
	want(memcmp(now, caps, sizeof now) == 0);
	want_equal(prctl(PR_CAPBSET_READ, dropped), 0);
	want_equal(prctl(PR_CAPBSET_READ, CAP_CHOWN), 1);
	want_equal(prctl(PR_GET_SECUREBITS), 7);
	want_equal(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_NET_BIND_SERVICE, 0, 0), 1);
	want_equal(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_CHOWN, 0, 0), 0);
	want_equal(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
	want_equal(prctl(PR_GET_DUMPABLE), 0);
	want_equal(kill(1, 0), 0); // the same user
	errno = 0;
	want_equal(mknod("/tmp/not-allowed", S_IFCHR | 0600, 0), -1); // CAP_MKNOD is not effective
	want_equal(errno, EPERM);
}

static void set_up_user(void)
{
	must(setgroups(3, (gid_t[]){ 50, 60, 70 }));
	must(setresgid(1002, 1003, 1004));
	must(setresuid(1001, 1005, 1006));
}

static void check_user(void)
{
	uid_t u[3];
	gid_t g[3], groups[8];
	want_equal(getresuid(&u[0], &u[1], &u[2]), 0);
	want_equal(getresgid(&g[0], &g[1], &g[2]), 0);
	want(u[0] == 1001 && u[1] == 1005 && u[2] == 1006);
	want(g[0] == 1002 && g[1] == 1003 && g[2] == 1004);
	want_equal(setfsuid(1005), 1005);
	want_equal(setfsgid(1003), 1003);
	want_equal(getgroups(8, groups), 3);
	want(groups[0] == 50 && groups[1] == 60 && groups[2] == 70);
	get_caps(caps);
	want_equal(caps[0].effective | caps[0].permitted, 0);
	errno = 0;
	want_equal(open("/tmp/secret", O_RDONLY), -1);
	want_equal(errno, EACCES);
}

// mixed has a thread with another filesystem user, by the system call itself, as file servers do.
static volatile int thread_user = -1, thread_asked, thread_ready;

static void *other_user(void *argument)
{
	(void)argument;
	syscall(SYS_setfsuid, 4321);
	thread_ready = 1;
	for (;;) {
		while (!thread_asked)
			pause_briefly();
		thread_user = (int)syscall(SYS_setfsuid, -1);
		thread_asked = 0;
	}
	return NULL;
}

static bool thread_answered(void)
{
	return !thread_asked;
}

static bool thread_is_ready(void)
{
	return thread_ready;
}

static void set_up_mixed(void)
{
	pthread_t thread;
	must(-pthread_create(&thread, NULL, other_user, NULL));
	if (!within(thread_is_ready))
		die("thread");
}

static void check_mixed(void)
{
	thread_asked = 1;
	want(within(thread_answered));
	want_equal(thread_user, 4321);
	want_equal(setfsuid((uid_t)-1), 0);
}

static const struct {
	int resource;
	struct rlimit value;
} resources[] = {
	{ RLIMIT_NOFILE, { 333, 444 } },	   { RLIMIT_FSIZE, { 1 << 30, 1L << 40 } }, { RLIMIT_STACK, { 1 << 20, 8 << 20 } },
	{ RLIMIT_CORE, { 0, RLIM_INFINITY } }, { RLIMIT_NICE, { 0, 0 } },		   { RLIMIT_AS, { 1L << 40, 1L << 41 } },
	{ RLIMIT_CPU, { 100000, 200000 } },	   { RLIMIT_SIGPENDING, { 17, 18 } },	   { RLIMIT_MEMLOCK, { 4096, 65536 } },
};

static void set_up_placed(void)
{
	for (size_t i = 0; i < sizeof resources / sizeof *resources; i++) {
		struct rlimit now, value = resources[i].value;
		must(getrlimit((__rlimit_resource_t)resources[i].resource, &now));
		value.rlim_max = value.rlim_max < now.rlim_max ? value.rlim_max : now.rlim_max;
		must(setrlimit((__rlimit_resource_t)resources[i].resource, &value));
	}
	umask(0135);
	must(mkdir("/tmp/work", 0777));
	must(chdir("/tmp/work"));
	must(prctl(PR_SET_PDEATHSIG, SIGUSR1));
	must(prctl(PR_SET_KEEPCAPS, 1));
	must(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	write_file("/proc/self/oom_score_adj", "321");
}

static void check_placed(void)
{
	for (size_t i = 0; i < sizeof resources / sizeof *resources; i++) {
		struct rlimit now;
		want_equal(getrlimit((__rlimit_resource_t)resources[i].resource, &now), 0);
		if (now.rlim_cur != resources[i].value.rlim_cur || now.rlim_max > resources[i].value.rlim_max)
			bad("resource limit %d is %ld, %ld", resources[i].resource, (long)now.rlim_cur, (long)now.rlim_max);
	}
	mode_t mask = umask(0);
	umask(mask);
	want_equal(mask, 0135);
	char path[64] = "";
	want(getcwd(path, sizeof path) != NULL);
	want(strcmp(path, "/tmp/work") == 0);
	int signal_of_death = 0;
	want_equal(prctl(PR_GET_PDEATHSIG, &signal_of_death), 0);
	want_equal(signal_of_death, SIGUSR1);
	want_equal(prctl(PR_GET_KEEPCAPS), 1);
	want_equal(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), 1);
	want_equal(atoi(read_file("/proc/self/oom_score_adj")), 321);
}

static void set_up_rooted(void)
{
	must(mkdir("/tmp/root", 0755));
	must(mkdir("/tmp/root/inside", 0755));
	must(chroot("/tmp/root"));
	must(chdir("/inside"));
}

static void check_rooted(void)
{
	char path[64] = "";
	want(getcwd(path, sizeof path) != NULL);
	want(strcmp(path, "/inside") == 0);
	want(access("/etc", F_OK) != 0);
	want(access("/inside", F_OK) == 0);
}

// With the argument "users" it has processes of other users.
static void set_up_security(int argc, char **argv)
{
	(void)argv;
	extern char **environ;
	for (char **e = environ; *e != NULL; e++)
		if (strlen(environment_before) + strlen(*e) + 2 < sizeof environment_before)
			strcat(strcat(environment_before, *e), "\n");
	write_file("/tmp/secret", "x");
	must(chmod("/tmp/secret", 0600));
	get_caps(caps);
	keeper = helper_start(set_up_keeper, check_keeper);
	if (argc > 0)
		user = helper_start(set_up_user, check_user);
	mixed = helper_start(set_up_mixed, check_mixed);
	placed = helper_start(set_up_placed, check_placed);
	rooted = helper_start(set_up_rooted, check_rooted);
}

static void check_environment(void)
{
	const char *now = read_file("/proc/self/environ");
	// It has zeros between the variables: compare piece by piece.
	for (char *line = strtok(strdup(environment_before), "\n"); line != NULL; line = strtok(NULL, "\n"), now += strlen(now) + 1)
		if (strcmp(now, line) != 0)
			bad("environment: %s, not %s", now, line);
	const char *added = getenv("ADDED");
	want(added != NULL && strcmp(added, "by the test") == 0);
}

static void check_security(void)
{
	check_environment();
	struct __user_cap_data_struct now[2];
	get_caps(now);
	want(memcmp(now, caps, sizeof now) == 0);
	struct helper *all[] = { &keeper, &user, &mixed, &placed, &rooted };
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i]->pid != 0)
			helper_ask(all[i]);
	// What the default profile and the missing capabilities forbid.
	errno = 0;
	want_equal(mount("none", "/tmp", "tmpfs", 0, NULL), -1);
	want_equal(errno, EPERM);
	want_equal(unshare(CLONE_NEWUSER), -1);
	want_equal(errno, EPERM);
	want_equal(syscall(SYS_keyctl, 0, 0, 0, 0, 0), -1);
	want_equal(errno, EPERM);
	want_equal(open("/proc/kcore", O_RDONLY) < 0 || read_file("/proc/kcore")[0] == 0, 1);
	want_equal(open("/proc/sys/kernel/hostname", O_WRONLY), -1);
	want_equal(prctl(PR_GET_SECCOMP), SECCOMP_MODE_FILTER);
	want_equal(mknod("/tmp/disk", S_IFBLK | 0600, makedev(254, 0)), 0);
	errno = 0;
	want_equal(open("/tmp/disk", O_RDONLY), -1);
	want_equal(errno, EPERM);
	want_equal(unlink("/tmp/disk"), 0);
	int null = open("/dev/null", O_WRONLY);
	want(null >= 0);
	close(null);
}

const struct state security = { "security", set_up_security, check_security, NULL };

// ---- confined: seccomp filters of the program's own ----

static struct helper filtered, doubly;

static void install(int number, uint32_t action, unsigned int flags)
{
	struct sock_filter program[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof program / sizeof *program, program };
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter));
}

static void set_up_filtered(void)
{
	install(SYS_getpgid, SECCOMP_RET_ERRNO | 99, 0);
	install(SYS_sethostname, SECCOMP_RET_KILL_PROCESS, 0);
}

static void check_filtered(void)
{
	errno = 0;
	want_equal(syscall(SYS_getpgid, 0), -1);
	want_equal(errno, 99);
	pid_t victim = fork();
	if (victim == 0) {
		syscall(SYS_sethostname, "x", 1);
		_exit(0);
	}
	int status = 0;
	want_equal(waitpid(victim, &status, 0), victim);
	want_equal(WTERMSIG(status), SIGSYS);
}

static volatile int trapped;
static volatile int other_thread_result = -2, other_thread_asked;

static void on_trap(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	trapped = info->si_syscall;
}

static void *unfiltered(void *argument)
{
	(void)argument;
	for (;;) {
		while (!other_thread_asked)
			pause_briefly();
		other_thread_result = (int)syscall(SYS_getpgid, 0) >= 0 ? 1 : -errno;
		other_thread_asked = 0;
	}
	return NULL;
}

static bool other_thread_answered(void)
{
	return !other_thread_asked;
}

// doubly has a filter in one thread and not in the other.
static void set_up_doubly(void)
{
	pthread_t thread;
	must(-pthread_create(&thread, NULL, unfiltered, NULL));
	struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
	must(sigaction(SIGSYS, &action, NULL));
	install(SYS_getpgid, SECCOMP_RET_TRAP, 0);
}

static void check_doubly(void)
{
	trapped = 0;
	syscall(SYS_getpgid, 0);
	want_equal(trapped, SYS_getpgid);
	other_thread_asked = 1;
	want(within(other_thread_answered));
	want_equal(other_thread_result, 1);
}

static void set_up_confined(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	filtered = helper_start(set_up_filtered, check_filtered);
	doubly = helper_start(set_up_doubly, check_doubly);
}

static void check_confined(void)
{
	helper_ask(&filtered);
	helper_ask(&doubly);
	want(syscall(SYS_getpgid, 0) >= 0);
}

const struct state confined = { "confined", set_up_confined, check_confined, NULL };
