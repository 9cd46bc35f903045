// Things that cannot be moved, or are said not to be: one kind at a time.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <net/ethernet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { number = 77 }; // the descriptor that is to be named

static void place(int fd)
{
	must(dup2(fd, number));
	must(close(fd));
}

static void traced_child(void)
{
	pid_t child = must(fork());
	if (child == 0)
		for (;;)
			pause();
	must(ptrace(PTRACE_SEIZE, child, NULL, NULL));
}

static struct sockaddr_un name(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
	return a;
}

// closed_waiting is a connection that is closed before it is accepted.
static void closed_waiting(void)
{
	struct sockaddr_un a = name("/tmp/closed");
	int listener = must(socket(AF_UNIX, SOCK_STREAM, 0));
	must(bind(listener, (struct sockaddr *)&a, sizeof a));
	must(listen(listener, 1));
	int fd = must(socket(AF_UNIX, SOCK_STREAM, 0));
	must(connect(fd, (struct sockaddr *)&a, sizeof a));
	must(close(fd));
	place(listener);
}

// in_flight is a socket in a message that is not received; nothing is connected to it.
static void in_flight(void)
{
	int two[2], sent = must(socket(AF_UNIX, SOCK_DGRAM, 0));
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, two));
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof sent)];
	} rights = { .header = { .cmsg_len = CMSG_LEN(sizeof sent), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
	memcpy(CMSG_DATA(&rights.header), &sent, sizeof sent);
	struct iovec byte = { "x", 1 };
	struct msghdr message = { .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &rights, .msg_controllen = sizeof rights.space };
	must(sendmsg(two[1], &message, 0));
	must(close(sent));
	place(two[0]);
}

static void watch_removed(void)
{
	int fd = must(open("/tmp/removed", O_RDWR | O_CREAT, 0600)), watch = must(inotify_init1(IN_NONBLOCK));
	must(inotify_add_watch(watch, "/tmp/removed", IN_MODIFY));
	must(unlink("/tmp/removed"));
	place(watch);
	must(dup(fd));
}

static void pending_trap(void)
{
	sigset_t trap;
	must(sigemptyset(&trap));
	must(sigaddset(&trap, SIGTRAP));
	must(sigprocmask(SIG_BLOCK, &trap, NULL));
	must(raise(SIGTRAP));
	place(must(open("/dev/null", O_RDWR)));
}

// corked is a UDP socket that has collected half of a datagram.
static void corked(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	place(must(socket(AF_INET, SOCK_DGRAM, 0)));
	must(setsockopt(number, IPPROTO_UDP, UDP_CORK, &(int){ 1 }, sizeof(int)));
	must(sendto(number, "half", 4, 0, (struct sockaddr *)&to, sizeof to));
}

// between_two_steps sets up what a program leaves behind between two steps. It gives false for another kind.
static bool between_two_steps(const char *kind)
{
	if (strcmp(kind, "closed") == 0)
		closed_waiting();
	else if (strcmp(kind, "in-flight") == 0)
		in_flight();
	else if (strcmp(kind, "watch-removed") == 0)
		watch_removed();
	else if (strcmp(kind, "trap") == 0)
		pending_trap();
	else if (strcmp(kind, "cork") == 0)
		corked();
	else
		return false;
	return true;
}

static int outside; // listens in a volume, for somebody outside of the container

static void listen_outside(const char *path)
{
	struct sockaddr_un a = name(path);
	outside = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
	must(bind(outside, (struct sockaddr *)&a, sizeof a));
	must(listen(outside, 1));
}

static void set_up(int argc, char **argv)
{
	const char *kind = argc > 0 ? argv[0] : "";
	if (between_two_steps(kind))
		return;
	if (strcmp(kind, "packet") == 0)
		place(must(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL))));
	else if (strcmp(kind, "packet-pipe") == 0) {
		int two[2];
		must(pipe2(two, O_DIRECT));
		place(two[1]);
	} else if (strcmp(kind, "message-queue") == 0)
		place(must(mq_open("/queue", O_RDWR | O_CREAT, 0600, NULL)));
	else if (strcmp(kind, "kept-queue") == 0)
		must(mq_close(must(mq_open("/queue", O_RDWR | O_CREAT, 0600, NULL))));
	else if (strcmp(kind, "traced") == 0)
		traced_child();
	else if (strcmp(kind, "netlink") == 0) {
		int fd = must(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));
		must(setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &(int){ 33 }, sizeof(int)));
		place(fd);
	} else if (strcmp(kind, "semaphore") == 0)
		place(must(eventfd(3, EFD_SEMAPHORE)));
	else if (strcmp(kind, "large-counter") == 0) {
		place(must(eventfd(0, 0)));
		must(eventfd_write(number, 1L << 32));
	} else if (strcmp(kind, "lease") == 0) {
		place(must(open("/tmp/leased", O_RDWR | O_CREAT, 0600)));
		must(fcntl(number, F_SETLEASE, F_WRLCK));
	} else if (strcmp(kind, "waiting") == 0) {
		listen_outside("/tmp/socket");
		struct sockaddr_un a = name("/tmp/socket");
		int fd = must(socket(AF_UNIX, SOCK_STREAM, 0));
		must(connect(fd, (struct sockaddr *)&a, sizeof a));
		must(send(fd, "early", 5, 0));
		place(fd);
	} else if (strcmp(kind, "credentials") == 0) {
		int two[2];
		must(socketpair(AF_UNIX, SOCK_DGRAM, 0, two));
		must(setsockopt(two[0], SOL_SOCKET, SO_PASSCRED, &(int){ 1 }, sizeof(int)));
		must(send(two[1], "early", 5, 0));
		place(two[0]);
	} else if (strcmp(kind, "nothing") == 0)
		return;
	else if (strcmp(kind, "outside") == 0)
		listen_outside(argv[1]);
	else
		die(kind);
}

static void check(void)
{
	want(fcntl(number, F_GETFD) >= 0);
}

static void command(const char *word, const char *argument)
{
	(void)argument;
	if (strcmp(word, "accept") == 0) {
		int fd = accept(outside, NULL, NULL);
		want(fd >= 0);
		place(fd);
		return;
	}
	if (strcmp(word, "close") == 0) {
		must(close(number));
		return;
	}
	// ring: the default seccomp profile forbids it, so somebody outside has to help (unconfine).
	uint32_t parameters[30] = { 0 }; // struct io_uring_params
	int fd = (int)syscall(SYS_io_uring_setup, 4, parameters);
	want(fd >= 0);
	place(fd);
}

const struct state oddity = { "odd", set_up, check, command };

int unconfine(int argc, char **argv)
{
	pid_t pid = argc > 0 ? atoi(argv[0]) : 0;
	must(ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_SUSPEND_SECCOMP));
	dprintf(1, "unconfined\n");
	char byte;
	while (read(0, &byte, 1) > 0)
		;
	must(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL));
	must(waitpid(pid, NULL, __WALL));
	must(ptrace(PTRACE_DETACH, pid, NULL, NULL));
	return 0;
}
