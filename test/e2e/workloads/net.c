// TCP and UDP: with peers outside of the container, and within it.
#define _GNU_SOURCE
#include "state.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { port = 7000, patience_ms = 20000 };

// Bytes to the container have this seed, bytes from it the other.
enum { inward = 1, outward = 2 };

static struct connection {
	char name[32];
	int fd;
	uint64_t sent, received;
} connections[32];
static size_t connection_count;
static int listener;

static struct sockaddr_in address_of(const char *host, int number)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)number) };
	inet_pton(AF_INET, host, &a.sin_addr);
	return a;
}

static int listen_at(const char *host, int number)
{
	struct sockaddr_in a = address_of(host, number);
	int fd = must(socket(AF_INET, SOCK_STREAM, 0));
	must(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)));
	must(bind(fd, (struct sockaddr *)&a, sizeof a));
	must(listen(fd, 50));
	return fd;
}

static struct connection *find(const char *name)
{
	for (size_t i = 0; i < connection_count; i++)
		if (strcmp(connections[i].name, name) == 0)
			return &connections[i];
	return NULL;
}

static const struct {
	int level, option, value;
} options[] = {
	{ IPPROTO_TCP, TCP_NODELAY, 1 },      { SOL_SOCKET, SO_KEEPALIVE, 1 },	{ IPPROTO_TCP, TCP_KEEPIDLE, 77 },
	{ IPPROTO_TCP, TCP_KEEPINTVL, 13 },   { IPPROTO_TCP, TCP_KEEPCNT, 5 },	{ SOL_SOCKET, SO_REUSEADDR, 1 },
	{ SOL_SOCKET, SO_PRIORITY, 3 },
};

static void keep(const char *name, int fd)
{
	struct connection *c = &connections[connection_count++];
	*c = (struct connection){ .fd = fd };
	snprintf(c->name, sizeof c->name, "%s", name);
	for (size_t i = 0; i < sizeof options / sizeof *options; i++)
		must(setsockopt(fd, options[i].level, options[i].option, &options[i].value, sizeof(int)));
}

static bool wait_for(int fd, short what)
{
	struct pollfd p = { .fd = fd, .events = what };
	int n;
	while ((n = poll(&p, 1, patience_ms)) < 0 && errno == EINTR)
		;
	return n == 1;
}

// accept_named takes connections until one has said this name, as its first line.
static void accept_named(const char *name)
{
	while (find(name) == NULL && connection_count < 32) {
		if (!wait_for(listener, POLLIN)) {
			bad("no connection %s comes in", name);
			return;
		}
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		char got[32] = "";
		for (size_t i = 0; i < sizeof got - 1 && recv(fd, got + i, 1, 0) == 1; i++)
			if (got[i] == '\n') {
				got[i] = 0;
				break;
			}
		keep(got, fd);
	}
}

static void connect_named(const char *arguments)
{
	char name[32], host[32];
	int number;
	if (sscanf(arguments, "%31s %31s %d", name, host, &number) != 3) {
		bad("connect: NAME HOST PORT");
		return;
	}
	struct sockaddr_in a = address_of(host, number);
	int fd = must(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
	want_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	keep(name, fd);
}

// stuff writes until no more goes.
static void stuff(struct connection *c)
{
	uint8_t data[1 << 14];
	for (;;) {
		fill(data, sizeof data, outward, c->sent);
		ssize_t n = send(c->fd, data, sizeof data, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0) {
			bad("%s: send: %m", c->name);
			return;
		}
		c->sent += (uint64_t)n;
	}
	say("%llu", (unsigned long long)c->sent);
}

static void send_some(struct connection *c, uint64_t upto)
{
	uint8_t data[1 << 14];
	while (c->sent < upto) {
		size_t size = upto - c->sent < sizeof data ? (size_t)(upto - c->sent) : sizeof data;
		fill(data, size, outward, c->sent);
		ssize_t n = send(c->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EAGAIN && wait_for(c->fd, POLLOUT))
			continue;
		if (n < 0) {
			bad("%s: send after %llu bytes: %m", c->name, (unsigned long long)c->sent);
			return;
		}
		c->sent += (uint64_t)n;
	}
}

static void drain(struct connection *c, uint64_t upto)
{
	uint8_t data[1 << 14];
	while (c->received < upto) {
		size_t size = upto - c->received < sizeof data ? (size_t)(upto - c->received) : sizeof data;
		ssize_t n = wait_for(c->fd, POLLIN) ? recv(c->fd, data, size, MSG_DONTWAIT) : -1;
		if (n < 0 && (errno == EINTR || errno == EAGAIN) && wait_for(c->fd, POLLIN))
			continue;
		if (n <= 0) {
			bad("%s: after %llu of %llu bytes: %zd (%m)", c->name, (unsigned long long)c->received,
			    (unsigned long long)upto, n);
			return;
		}
		if (!filled(data, (size_t)n, inward, c->received)) {
			bad("%s: wrong data after %llu bytes", c->name, (unsigned long long)c->received);
			return;
		}
		c->received += (uint64_t)n;
	}
}

static void want_end(struct connection *c)
{
	char byte;
	errno = 0;
	want(wait_for(c->fd, POLLIN));
	want_equal(recv(c->fd, &byte, 1, MSG_DONTWAIT), 0);
}

// echo sends back what comes, until the other side ends.
static void *echo(void *argument)
{
	struct connection c = *(struct connection *)argument;
	uint8_t data[1 << 14];
	for (ssize_t n; (n = recv(c.fd, data, sizeof data, 0)) > 0;)
		for (ssize_t sent = 0; sent < n;) {
			ssize_t m = send(c.fd, data + sent, (size_t)(n - sent), MSG_NOSIGNAL);
			if (m < 0)
				return NULL;
			sent += m;
		}
	shutdown(c.fd, SHUT_WR);
	return NULL;
}

static void set_up_tcp(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	listener = listen_at("0.0.0.0", port);
}

static void check_tcp(void)
{
	for (size_t i = 0; i < connection_count; i++) {
		int error = -1;
		socklen_t size = sizeof error;
		want_equal(getsockopt(connections[i].fd, SOL_SOCKET, SO_ERROR, &error, &size), 0);
		want_equal(error, 0);
		for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
			int value = -1;
			size = sizeof value;
			want_equal(getsockopt(connections[i].fd, options[o].level, options[o].option, &value, &size), 0);
			if (value != options[o].value)
				bad("%s: option %d.%d is %d, not %d", connections[i].name, options[o].level, options[o].option,
				    value, options[o].value);
		}
	}
	int accepting = 0;
	socklen_t size = sizeof accepting;
	want_equal(getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &accepting, &size), 0);
	want_equal(accepting, 1);
}

static void command_tcp(const char *word, const char *argument)
{
	char name[256];
	snprintf(name, sizeof name, "%s", argument);
	if (strcmp(word, "accept") == 0) {
		accept_named(name);
		return;
	}
	if (strcmp(word, "connect") == 0) {
		connect_named(argument);
		return;
	}
	char *number = strchr(name, ' ');
	uint64_t amount = 0;
	if (number != NULL) {
		*number = 0;
		amount = strtoull(number + 1, NULL, 10);
	}
	struct connection *c = find(name);
	if (c == NULL)
		bad("there is no connection %s", name);
	else if (strcmp(word, "stuff") == 0)
		stuff(c);
	else if (strcmp(word, "echo") == 0) {
		pthread_t thread;
		want_equal(pthread_create(&thread, NULL, echo, c), 0);
	} else if (strcmp(word, "send") == 0)
		send_some(c, amount);
	else if (strcmp(word, "drain") == 0)
		drain(c, amount);
	else if (strcmp(word, "shutdown") == 0)
		want_equal(shutdown(c->fd, SHUT_WR), 0);
	else if (strcmp(word, "end") == 0)
		want_end(c);
	else if (strcmp(word, "close") == 0) {
		want_equal(close(c->fd), 0);
		*c = connections[--connection_count];
	} else if (strcmp(word, "queues") == 0) {
		int in = -1, out = -1;
		ioctl(c->fd, FIONREAD, &in);
		ioctl(c->fd, TIOCOUTQ, &out);
		say("%d %d", in, out);
	} else
		bad("there is no command %s", word);
}

const struct state tcp = { "tcp", set_up_tcp, check_tcp, command_tcp };

// ---- UDP ----
//
// A thread takes numbered datagrams on an unconnected socket and answers them; another does so on a connected one.

enum { numbered = 1 << 17 };

static int open_socket, connected_socket = -1;
static uint8_t arrived[2][numbered];
static volatile uint64_t arrivals[2], strange;

static void *receive(void *argument)
{
	int which = argument != NULL, fd = which ? connected_socket : open_socket;
	for (;;) {
		uint32_t number;
		struct sockaddr_in from;
		socklen_t size = sizeof from;
		ssize_t n = recvfrom(fd, &number, sizeof number, 0, (struct sockaddr *)&from, &size);
		if (n < 0)
			continue; // ICMP errors are told here
		if (n != sizeof number || ntohl(number) >= numbered) {
			strange++;
			continue;
		}
		if (arrived[which][ntohl(number)] < 255)
			arrived[which][ntohl(number)]++;
		arrivals[which]++;
		if (which)
			send(fd, &number, sizeof number, 0);
		else
			sendto(fd, &number, sizeof number, 0, (struct sockaddr *)&from, size);
	}
	return NULL;
}

static int udp_at(int number)
{
	struct sockaddr_in a = address_of("0.0.0.0", number);
	int fd = must(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	must(bind(fd, (struct sockaddr *)&a, sizeof a));
	must(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){ 200000 }, sizeof(int)));
	return fd;
}

static void set_up_udp(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	pthread_t thread;
	open_socket = udp_at(port + 1);
	must(setsockopt(open_socket, SOL_SOCKET, SO_BROADCAST, &(int){ 1 }, sizeof(int)));
	must(-pthread_create(&thread, NULL, receive, NULL));
}

static void check_udp(void)
{
	int on = 0;
	socklen_t size = sizeof on;
	want_equal(getsockopt(open_socket, SOL_SOCKET, SO_BROADCAST, &on, &size), 0);
	want_equal(on, 1);
	want_equal(strange, 0);
	struct sockaddr_in name;
	size = sizeof name;
	want_equal(getsockname(open_socket, (struct sockaddr *)&name, &size), 0);
	want_equal(ntohs(name.sin_port), port + 1);
	if (connected_socket < 0)
		return;
	size = sizeof name;
	want_equal(getpeername(connected_socket, (struct sockaddr *)&name, &size), 0);
}

static uint64_t awaited[2];

static bool all_arrived(void)
{
	return arrivals[0] >= awaited[0] && arrivals[1] >= awaited[1];
}

static void command_udp(const char *word, const char *argument)
{
	if (strcmp(word, "connect") == 0) {
		char host[32];
		int number;
		if (sscanf(argument, "%31s %d", host, &number) != 2) {
			bad("connect: HOST PORT");
			return;
		}
		struct sockaddr_in a = address_of(host, number);
		connected_socket = udp_at(port + 2);
		want_equal(connect(connected_socket, (struct sockaddr *)&a, sizeof a), 0);
		pthread_t thread;
		want_equal(pthread_create(&thread, NULL, receive, &connected_socket), 0);
		return;
	}
	// arrived N M: so many datagrams were sent to each socket, numbered from 0.
	unsigned long sent[2] = { 0, 0 };
	sscanf(argument, "%lu %lu", &sent[0], &sent[1]);
	awaited[0] = sent[0];
	awaited[1] = sent[1];
	within(all_arrived);
	for (int which = 0; which < 2; which++) {
		unsigned long wrong = 0, first = 0, last = 0;
		for (unsigned long i = 0; i < sent[which]; i++)
			if (arrived[which][i] != 1) {
				if (wrong++ == 0)
					first = i;
				last = i;
			}
		if (wrong > 0)
			bad("of %lu datagrams to the %s socket %lu did not come once: the first is %lu (%d times), the last %lu", sent[which],
			    which ? "connected" : "open", wrong, first, arrived[which][first], last);
	}
}

const struct state udp = { "udp", set_up_udp, check_udp, command_udp };

// ---- connections within the container ----

static int pair[2], pair6[2], backlog_listener, backlog_client, from_udp, to_udp, twins[2], listener6, closing[2];
static uint64_t stuffed, stuffed6, drained, drained6;

static void connect_pair(int family, int ends[2])
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} a = { .any.sa_family = (sa_family_t)family };
	if (family == AF_INET)
		a.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		a.v6.sin6_addr = in6addr_loopback;
	socklen_t size = sizeof a;
	int fd = must(socket(family, SOCK_STREAM, 0));
	must(bind(fd, &a.any, family == AF_INET ? sizeof a.v4 : sizeof a.v6));
	must(listen(fd, 1));
	must(getsockname(fd, &a.any, &size));
	ends[0] = must(socket(family, SOCK_STREAM, 0));
	must(connect(ends[0], &a.any, size));
	ends[1] = must(accept(fd, NULL, NULL));
	must(close(fd));
}

static uint64_t stuff_pair(int fd, uint64_t seed)
{
	uint8_t data[1 << 14];
	for (uint64_t sent = 0;;) {
		fill(data, sizeof data, seed, sent);
		ssize_t n = send(fd, data, sizeof data, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n <= 0)
			return sent;
		sent += (uint64_t)n;
	}
}

static uint64_t drain_pair(int fd, uint64_t seed, uint64_t at, uint64_t upto)
{
	uint8_t data[1 << 14];
	while (at < upto) {
		size_t size = upto - at < sizeof data ? (size_t)(upto - at) : sizeof data;
		ssize_t n = wait_for(fd, POLLIN) ? recv(fd, data, size, MSG_DONTWAIT) : -1;
		if (n <= 0 || !filled(data, (size_t)n, seed, at)) {
			bad("connection within the container: after %llu bytes: %zd (%m)", (unsigned long long)at, n);
			return upto;
		}
		at += (uint64_t)n;
	}
	return at;
}

static int reuse_port_listener(void)
{
	struct sockaddr_in a = address_of("0.0.0.0", port + 5);
	int fd = must(socket(AF_INET, SOCK_STREAM, 0));
	must(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &(int){ 1 }, sizeof(int)));
	must(bind(fd, (struct sockaddr *)&a, sizeof a));
	must(listen(fd, 3));
	return fd;
}

// legacies are connections whose one end closes with much still to be sent: it is the kernel's then, and no process has it.
static volatile uint64_t legacies;
static char legacy_lost[100];

static void *leave_legacies(void *argument)
{
	uint8_t data[1 << 14];
	for (;;) {
		int ends[2];
		connect_pair(AF_INET, ends);
		uint64_t left = stuff_pair(ends[0], 3), got = 0;
		must(close(ends[0]));
		ssize_t n;
		while ((n = recv(ends[1], data, sizeof data, 0)) > 0 && filled(data, (size_t)n, 3, got)) {
			got += (uint64_t)n;
			usleep(300);
		}
		if (n != 0 || got != left) {
			snprintf(legacy_lost, sizeof legacy_lost, "after %llu of %llu bytes: %zd (%m)", (unsigned long long)got,
				 (unsigned long long)left, n);
			return argument;
		}
		must(close(ends[1]));
		legacies++;
		usleep(20000);
	}
}

static uint64_t legacies_seen;

static bool another_legacy(void)
{
	return legacies > legacies_seen + 1 || legacy_lost[0] != 0;
}

static int segment_at_start;

// segment is how large the segments of a connection within the container are.
static int segment(void)
{
	int bytes = 0;
	must(getsockopt(pair[0], IPPROTO_TCP, TCP_MAXSEG, &bytes, &(socklen_t){ sizeof bytes }));
	return bytes;
}

static bool segment_as_before(void)
{
	return segment() == segment_at_start;
}

static void set_up_local(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	connect_pair(AF_INET, pair);
	connect_pair(AF_INET6, pair6);
	connect_pair(AF_INET, closing);
	stuffed = stuff_pair(pair[0], 1);
	stuffed6 = stuff_pair(pair6[1], 2);
	must(send(closing[0], "last", 4, 0));
	must(close(closing[0]));
	to_udp = udp_at(port + 3);
	from_udp = must(socket(AF_INET, SOCK_DGRAM, 0));
	struct sockaddr_in a = address_of("127.0.0.1", port + 3);
	must(connect(from_udp, (struct sockaddr *)&a, sizeof a));
	twins[0] = reuse_port_listener();
	twins[1] = reuse_port_listener();
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(port + 6) };
	listener6 = must(socket(AF_INET6, SOCK_STREAM, 0));
	must(setsockopt(listener6, IPPROTO_IPV6, IPV6_V6ONLY, &(int){ 0 }, sizeof(int)));
	must(bind(listener6, (struct sockaddr *)&any, sizeof any));
	must(listen(listener6, 3));
	pthread_t thread;
	must(-pthread_create(&thread, NULL, leave_legacies, NULL));
	segment_at_start = segment();
	if (argc == 0)
		return;
	// A connection that is established and that nobody has accepted.
	backlog_listener = listen_at("127.0.0.1", port + 4);
	a = address_of("127.0.0.1", port + 4);
	backlog_client = must(socket(AF_INET, SOCK_STREAM, 0));
	must(connect(backlog_client, (struct sockaddr *)&a, sizeof a));
}

static void check_local(void)
{
	drained = drain_pair(pair[1], 1, drained, drained + 10000);
	drained6 = drain_pair(pair6[0], 2, drained6, drained6 + 10000);
	want_equal(send(pair[1], "b", 1, MSG_NOSIGNAL), 1);
	char byte = 0;
	want(wait_for(pair[0], POLLIN));
	want_equal(recv(pair[0], &byte, 1, MSG_DONTWAIT), 1);
	want_equal(byte, 'b');
	if (!within(segment_as_before))
		bad("segments of a connection within the container have %d bytes, not %d", segment(), segment_at_start);
	want_equal(send(from_udp, "u", 1, 0), 1);
	want(wait_for(to_udp, POLLIN));
	want_equal(recv(to_udp, &byte, 1, MSG_DONTWAIT), 1);
	want_equal(byte, 'u');
	struct sockaddr_in a = address_of("127.0.0.1", port + 6);
	int fd = must(socket(AF_INET, SOCK_STREAM, 0));
	want_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	close(fd);
	close(accept(listener6, NULL, NULL));
	a = address_of("127.0.0.1", port + 5);
	fd = must(socket(AF_INET, SOCK_STREAM, 0));
	want_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	close(fd);
	int one = 0;
	socklen_t size = sizeof one;
	want_equal(getsockopt(twins[0], SOL_SOCKET, SO_REUSEPORT, &one, &size), 0);
	want_equal(one, 1);
	struct pollfd p[2] = { { .fd = twins[0], .events = POLLIN }, { .fd = twins[1], .events = POLLIN } };
	want_equal(poll(p, 2, patience_ms), 1);
	close(accept(p[0].revents != 0 ? twins[0] : twins[1], NULL, NULL));
	legacies_seen = legacies;
	want(within(another_legacy));
	if (legacy_lost[0] != 0)
		bad("connection within the container that was closed: %s", legacy_lost);
}

static void command_local(const char *word, const char *argument)
{
	(void)word;
	(void)argument;
	char text[8] = "";
	drain_pair(pair[1], 1, drained, stuffed);
	drain_pair(pair6[0], 2, drained6, stuffed6);
	want_equal(recv(closing[1], text, sizeof text, MSG_DONTWAIT), 4);
	want(strcmp(text, "last") == 0);
	want_equal(recv(closing[1], text, sizeof text, MSG_DONTWAIT), 0);
}

const struct state local_tcp = { "local-tcp", set_up_local, check_local, command_local };
