// Unix sockets: streams, datagrams and packets, named and not, with data, connections and descriptors under way.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { chunk = 3000 };

static int identified[2]; // each message comes with who sent it
static int stream[2], datagram[2], packet[2], half[2];
static int listener, client, abstract_listener, mailbox, sender, lost_name;
static int carrier[2], carried_pipe[2], carried_file, carrier_of_socket[2];

static struct sockaddr_un at(const char *path, socklen_t *size)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	memcpy(address.sun_path, path, strlen(path + 1) + 1);
	*size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path + 1) + 1 + (path[0] != 0));
	return address;
}

static int make(int type, const char *bound, const char *connected)
{
	int fd = must(socket(AF_UNIX, type, 0));
	socklen_t size;
	struct sockaddr_un address;
	if (bound != NULL) {
		address = at(bound, &size);
		must(bind(fd, (struct sockaddr *)&address, size));
	}
	if (connected != NULL) {
		address = at(connected, &size);
		must(connect(fd, (struct sockaddr *)&address, size));
	}
	return fd;
}

static void put(int fd, size_t size, uint64_t seed)
{
	uint8_t data[chunk];
	fill(data, size, seed, 0);
	if (send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)size)
		bad("send %zu bytes: %m", size);
}

// take wants one message (or, of a stream, so many bytes) with the pattern.
static void take(const char *what, int fd, size_t size, uint64_t seed)
{
	uint8_t data[2 * chunk];
	ssize_t n = recv(fd, data, size, MSG_DONTWAIT | MSG_TRUNC);
	if (n != (ssize_t)size || !filled(data, size, seed, 0))
		bad("%s: %zd bytes, or wrong ones, not %zu (%m)", what, n, size);
}

static void send_descriptor(int over, int fd, const char *text)
{
	char control[CMSG_SPACE(sizeof fd)] = "";
	struct iovec part = { (void *)(uintptr_t)text, strlen(text) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (sendmsg(over, &message, MSG_NOSIGNAL) < 0)
		bad("send a descriptor: %m");
}

static int receive_descriptor(int over, const char *text)
{
	char control[CMSG_SPACE(sizeof(int))] = "", got[64] = "";
	struct iovec part = { got, strlen(text) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	ssize_t n = recvmsg(over, &message, MSG_DONTWAIT);
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);
	if (n < 0 || strcmp(got, text) != 0 || c == NULL || c->cmsg_type != SCM_RIGHTS) {
		bad("descriptor in flight with %s: %zd bytes %s (%m)", text, n, got);
		return -1;
	}
	int fd;
	memcpy(&fd, CMSG_DATA(c), sizeof fd);
	return fd;
}

static void launch(void)
{
	put(stream[0], chunk, 10);
	put(stream[1], 100, 11);
	for (int i = 1; i <= 5; i++) {
		put(datagram[0], (size_t)i * 100, 20 + (uint64_t)i);
		put(packet[1], (size_t)i * 200, 30 + (uint64_t)i);
	}
	put(sender, 500, 40);
	put(sender, 600, 41);
	send_descriptor(carrier[0], carried_pipe[0], "pipe");
	send_descriptor(carrier[0], carried_file, "file");
	send_descriptor(carrier[0], carrier_of_socket[0], "socket");
}

static void set_up(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, stream));
	must(socketpair(AF_UNIX, SOCK_DGRAM, 0, datagram));
	must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, packet));
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, half));
	must(shutdown(half[0], SHUT_WR));
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, carrier));
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, carrier_of_socket));
	listener = make(SOCK_STREAM, "/tmp/listener", NULL);
	must(listen(listener, 5));
	client = make(SOCK_STREAM, NULL, "/tmp/listener"); // waits to be accepted
	abstract_listener = make(SOCK_STREAM, "\0abstract", NULL);
	must(listen(abstract_listener, 5));
	mailbox = make(SOCK_DGRAM, "/tmp/mailbox", NULL);
	sender = make(SOCK_DGRAM, "/tmp/sender", "/tmp/mailbox");
	lost_name = make(SOCK_DGRAM, "/tmp/lost-name", NULL);
	must(unlink("/tmp/lost-name"));
	must(socketpair(AF_UNIX, SOCK_DGRAM, 0, identified));
	must(setsockopt(identified[0], SOL_SOCKET, SO_PASSCRED, &(int){ 1 }, sizeof(int)));
	must(setsockopt(stream[0], SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 3, 500000 }, sizeof(struct timeval)));
	must(setsockopt(stream[0], SOL_SOCKET, SO_SNDBUF, &(int){ 50000 }, sizeof(int)));
	must(pipe(carried_pipe));
	carried_file = must(open("/tmp/carried", O_RDWR | O_CREAT, 0600));
	must(ftruncate(carried_file, 1234));
	must(lseek(carried_file, 321, SEEK_SET));
	launch();
	// What is in flight has no other descriptor.
	must(close(carried_pipe[0]));
	must(close(carried_file));
	must(close(carrier_of_socket[0]));
}

static void check_flights(void)
{
	char byte = 0;
	carried_pipe[0] = receive_descriptor(carrier[1], "pipe");
	carried_file = receive_descriptor(carrier[1], "file");
	carrier_of_socket[0] = receive_descriptor(carrier[1], "socket");
	want_equal(write(carried_pipe[1], "p", 1), 1);
	want_equal(read(carried_pipe[0], &byte, 1), 1);
	want_equal(lseek(carried_file, 0, SEEK_CUR), 321);
	want_equal(lseek(carried_file, 0, SEEK_END), 1234);
	want_equal(lseek(carried_file, 321, SEEK_SET), 321);
	want_equal(send(carrier_of_socket[1], "s", 1, MSG_NOSIGNAL), 1);
	want_equal(recv(carrier_of_socket[0], &byte, 1, MSG_DONTWAIT), 1);
}

static void check_waiting_connection(void)
{
	int server = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	want(server >= 0);
	want_equal(send(client, "there", 5, MSG_NOSIGNAL), 5);
	char there[6] = "";
	want_equal(recv(server, there, 5, MSG_DONTWAIT), 5);
	want_equal(send(server, "back", 4, MSG_NOSIGNAL), 4);
	char back[5] = "";
	want_equal(recv(client, back, 4, MSG_DONTWAIT), 4);
	close(server);
	close(client);
	client = make(SOCK_STREAM, NULL, "/tmp/listener");
}

static void check_mailbox(void)
{
	char data[1000];
	struct sockaddr_un from = { .sun_family = 0 };
	struct iovec part = { data, sizeof data };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_name = &from, .msg_namelen = sizeof from };
	want_equal(recvmsg(mailbox, &message, MSG_DONTWAIT), 500);
	want(filled(data, 500, 40, 0));
	want(strcmp(from.sun_path, "/tmp/sender") == 0);
	take("second letter", mailbox, 600, 41);
	int other = make(SOCK_DGRAM, NULL, "/tmp/mailbox");
	put(other, 10, 60);
	take("letter from another", mailbox, 10, 60);
	close(other);
	struct sockaddr_un name = { .sun_family = 0 };
	socklen_t size = sizeof name;
	want_equal(getsockname(lost_name, (struct sockaddr *)&name, &size), 0);
	want(strcmp(name.sun_path, "/tmp/lost-name") == 0);
	want(access("/tmp/lost-name", F_OK) != 0);
}

static void check_identified(void)
{
	char byte = 0, control[CMSG_SPACE(sizeof(struct ucred))] = "";
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	want_equal(send(identified[1], "i", 1, MSG_NOSIGNAL), 1);
	want_equal(recvmsg(identified[0], &message, MSG_DONTWAIT), 1);
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);
	if (c == NULL || c->cmsg_type != SCM_CREDENTIALS) {
		bad("a message without its sender");
		return;
	}
	struct ucred who;
	memcpy(&who, CMSG_DATA(c), sizeof who);
	want_equal(who.pid, getpid());
}

static void check_options(void)
{
	struct timeval time = { 0, 0 };
	socklen_t size = sizeof time;
	want_equal(getsockopt(stream[0], SOL_SOCKET, SO_RCVTIMEO, &time, &size), 0);
	want_equal(time.tv_sec * 1000000 + time.tv_usec, 3500000);
	int buffer = 0;
	size = sizeof buffer;
	want_equal(getsockopt(stream[0], SOL_SOCKET, SO_SNDBUF, &buffer, &size), 0);
	want_equal(buffer, 100000);
	want_equal(fcntl(packet[0], F_GETFD), FD_CLOEXEC);
	struct ucred who;
	size = sizeof who;
	want_equal(getsockopt(stream[0], SOL_SOCKET, SO_PEERCRED, &who, &size), 0);
	want_equal(who.pid, getpid());
}

static void check(void)
{
	char byte;
	take("stream", stream[1], chunk, 10);
	take("stream back", stream[0], 100, 11);
	for (int i = 1; i <= 5; i++) {
		take("datagram", datagram[1], (size_t)i * 100, 20 + (uint64_t)i);
		take("packet", packet[0], (size_t)i * 200, 30 + (uint64_t)i);
	}
	want_equal(recv(half[1], &byte, 1, MSG_DONTWAIT), 0);
	want_equal(send(half[1], "h", 1, MSG_NOSIGNAL), 1);
	want_equal(recv(half[0], &byte, 1, MSG_DONTWAIT), 1);
	errno = 0;
	want_equal(send(half[0], "h", 1, MSG_NOSIGNAL), -1);
	want_equal(errno, EPIPE);
	check_flights();
	check_waiting_connection();
	int other = make(SOCK_STREAM, NULL, "\0abstract");
	int server = accept(abstract_listener, NULL, NULL);
	want(server >= 0);
	close(other);
	close(server);
	check_mailbox();
	check_identified();
	check_options();
	launch();
	close(carried_pipe[0]);
	close(carried_file);
	close(carrier_of_socket[0]);
}

const struct state unix_sockets = { "unix", set_up, check, NULL };
