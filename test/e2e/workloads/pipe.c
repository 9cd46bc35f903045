// Pipes and fifos with data, and descriptors that tell of events: eventfd, epoll, inotify.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- pipes ----

enum { part = 1000, parts = 20, large = 256 * 1024 };

static int with_data[2], without_writer, without_reader, sized[2], nonblocking[2], fifo, full[2];
static uint64_t taken, taken_of_closed, taken_of_full;
static pid_t writer;

static void put(int fd, size_t size, uint64_t seed, uint64_t at)
{
	uint8_t data[part];
	for (size_t done = 0; done < size; done += part) {
		size_t n = size - done < part ? size - done : part;
		fill(data, n, seed, at + done);
		if (write(fd, data, n) != (ssize_t)n)
			die("write");
	}
}

// take wants that what can be read next is the pattern.
static void take(const char *what, int fd, size_t size, uint64_t seed, uint64_t at)
{
	uint8_t *data = malloc(size);
	size_t had = 0;
	while (had < size) {
		ssize_t n = read(fd, data + had, size - had);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			bad("%s: %zu of %zu bytes (%m)", what, had, size);
			break;
		}
		had += (size_t)n;
	}
	if (!filled(data, had, seed, at))
		bad("%s: its %zu bytes are not what was written", what, had);
	free(data);
}

static int buffered(int fd)
{
	int n = -1;
	ioctl(fd, FIONREAD, &n);
	return n;
}

static void fill_up(void)
{
	uint8_t data[part];
	uint64_t at = 0;
	close(full[0]);
	for (;;) {
		fill(data, part, 5, at);
		for (size_t done = 0; done < part;) {
			ssize_t n = write(full[1], data + done, part - done);
			if (n < 0 && errno != EINTR)
				_exit(1);
			if (n > 0)
				done += (size_t)n;
		}
		at += part;
	}
}

static void set_up_pipes(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	int two[2];
	must(pipe(with_data));
	put(with_data[1], part * parts, 1, 0);
	must(pipe(two));
	put(two[1], part * parts, 2, 0);
	must(close(two[1]));
	without_writer = two[0];
	must(pipe(two));
	must(close(two[0]));
	without_reader = two[1];
	must(pipe(sized));
	must(fcntl(sized[1], F_SETPIPE_SZ, large));
	put(sized[1], 3 * large / 4, 3, 0);
	must(pipe2(nonblocking, O_NONBLOCK));
	must(mkfifo("/tmp/fifo", 0640));
	fifo = must(open("/tmp/fifo", O_RDWR | O_NONBLOCK));
	put(fifo, part, 4, 0);
	must(pipe(full));
	if ((writer = must(fork())) == 0)
		fill_up();
	must(close(full[1]));
	// The writer has filled it when no more comes.
	for (int before = -1; before != buffered(full[0]) || before < part; pause_briefly())
		before = buffered(full[0]);
}

static void check_pipes(void)
{
	struct pollfd p = { .fd = full[0], .events = POLLIN };
	want_equal(poll(&p, 1, 20000), 1);
	take("pipe with data", with_data[0], part, 1, taken);
	put(with_data[1], part, 1, part * parts + taken);
	taken += part;
	want_equal(buffered(with_data[0]), part * parts);
	take("pipe without a writer", without_writer, part, 2, taken_of_closed);
	taken_of_closed += part;
	want_equal(buffered(without_writer), part * parts - taken_of_closed);
	errno = 0;
	want_equal(write(without_reader, "x", 1), -1);
	want_equal(errno, EPIPE);
	want_equal(fcntl(sized[0], F_GETPIPE_SZ), large);
	take("large pipe", sized[0], 3 * large / 4, 3, 0);
	put(sized[1], 3 * large / 4, 3, 0);
	char byte;
	errno = 0;
	want_equal(read(nonblocking[0], &byte, 1), -1);
	want_equal(errno, EAGAIN);
	want_equal(fcntl(fifo, F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_RDWR | O_NONBLOCK);
	take("fifo", fifo, part, 4, 0);
	int other = open("/tmp/fifo", O_WRONLY | O_NONBLOCK);
	want(other >= 0);
	put(other, part, 4, 0);
	close(other);
	take("pipe with a waiting writer", full[0], 5 * part, 5, taken_of_full);
	taken_of_full += 5 * part;
}

static void command_pipes(const char *word, const char *argument)
{
	(void)word;
	(void)argument;
	char byte;
	take("rest of the pipe without a writer", without_writer, part * parts - taken_of_closed, 2, taken_of_closed);
	want_equal(read(without_writer, &byte, 1), 0);
	take("much of the pipe with a waiting writer", full[0], large, 5, taken_of_full);
	kill(writer, SIGKILL);
	await_child(writer, SIGKILL);
}

const struct state pipes = { "pipes", set_up_pipes, check_pipes, command_pipes };

// ---- events ----

static int counter, other, outer, inner, edge, idle_pipe[2], duplicate, notify, one_shot, empty_counter;
static int file_watch, directory_watch, lone_watch;

static void add(int epoll, int fd, uint32_t what, uint64_t data)
{
	struct epoll_event event = { .events = what, .data.u64 = data };
	must(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
}

static void set_up_epoll(void)
{
	counter = must(eventfd(0, EFD_NONBLOCK));
	must(eventfd_write(counter, 0x87654321u));
	other = must(eventfd(3, EFD_NONBLOCK));
	empty_counter = must(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	must(pipe(idle_pipe));
	outer = must(epoll_create1(EPOLL_CLOEXEC));
	inner = must(epoll_create1(0));
	edge = must(eventfd(0, EFD_NONBLOCK));
	one_shot = must(eventfd(0, EFD_NONBLOCK));
	add(outer, counter, EPOLLIN, 0x1122334455667788u);
	add(outer, inner, EPOLLIN, 2);
	add(inner, other, EPOLLIN, 3);
	add(inner, edge, EPOLLIN | EPOLLET, 4);
	add(inner, idle_pipe[0], EPOLLIN, 5);
	add(inner, one_shot, EPOLLIN | EPOLLONESHOT, 6);
	// The same file under a second descriptor, and one whose number has another file now.
	duplicate = must(dup(idle_pipe[0]));
	add(inner, duplicate, EPOLLIN | EPOLLPRI, 7);
}

static void set_up_inotify(void)
{
	must(mkdir("/tmp/watched", 0755));
	write_file("/tmp/watched/file", "one");
	write_file("/tmp/lone", "one");
	notify = must(inotify_init1(IN_NONBLOCK));
	file_watch = must(inotify_add_watch(notify, "/tmp/watched/file", IN_MODIFY | IN_ATTRIB));
	int gone = must(inotify_add_watch(notify, "/etc", IN_CREATE));
	directory_watch = must(inotify_add_watch(notify, "/tmp/watched", IN_CREATE | IN_DELETE | IN_ONLYDIR));
	must(inotify_rm_watch(notify, gone));
	lone_watch = must(inotify_add_watch(notify, "/tmp/lone", IN_MODIFY));
	char rest[1024];
	while (read(notify, rest, sizeof rest) > 0)
		;
}

static void set_up_events(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	set_up_epoll();
	set_up_inotify();
}

static void want_event(int epoll, uint64_t data, uint32_t events)
{
	struct epoll_event found[16];
	int n = epoll_wait(epoll, found, 16, 0);
	for (int i = 0; i < n; i++)
		if (found[i].data.u64 == data) {
			want_equal(found[i].events, events);
			return;
		}
	if (events != 0)
		bad("no event for %llx among %d", (unsigned long long)data, n);
}

static void check_epoll(void)
{
	eventfd_t value = 0;
	want_event(outer, 0x1122334455667788u, EPOLLIN);
	want_event(outer, 2, EPOLLIN);
	want_event(inner, 3, EPOLLIN);
	want_event(inner, 5, 0);
	want_equal(eventfd_read(counter, &value), 0);
	want_equal(value, 0x87654321u);
	want_event(outer, 0x1122334455667788u, 0);
	want_equal(eventfd_write(counter, 0x87654321u), 0);
	want_equal(eventfd_read(other, &value), 0);
	want_equal(value, 3);
	want_equal(eventfd_write(other, 3), 0);
	want_equal(eventfd_read(empty_counter, &value), -1);
	want_equal(fcntl(empty_counter, F_GETFD), FD_CLOEXEC);
	want_equal(write(idle_pipe[1], "x", 1), 1);
	want_event(inner, 5, EPOLLIN);
	want_event(inner, 7, EPOLLIN);
	char byte;
	want_equal(read(idle_pipe[0], &byte, 1), 1);
	want_equal(eventfd_write(edge, 1), 0);
	want_event(inner, 4, EPOLLIN);
	want_event(inner, 4, 0);
	want_equal(eventfd_write(one_shot, 1), 0);
	want_event(inner, 6, EPOLLIN);
	want_event(inner, 6, 0);
	// Armed again, and drained.
	want_equal(eventfd_read(one_shot, &value), 0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = 6 };
	want_equal(epoll_ctl(inner, EPOLL_CTL_MOD, one_shot, &event), 0);
	errno = 0;
	want_equal(epoll_ctl(inner, EPOLL_CTL_ADD, duplicate, &event), -1);
	want_equal(errno, EEXIST);
}

static void want_notice(int watch, uint32_t mask, const char *name)
{
	char data[4096] __attribute__((aligned(8)));
	ssize_t n = read(notify, data, sizeof(struct inotify_event) + (name[0] != 0 ? 16 : 0));
	if (n < (ssize_t)sizeof(struct inotify_event)) {
		bad("inotify: no event %x for watch %d (%m)", mask, watch);
		return;
	}
	const struct inotify_event *event = (const struct inotify_event *)data;
	if (event->wd != watch || event->mask != mask || (name[0] != 0 && strcmp(event->name, name) != 0))
		bad("inotify: event %x of watch %d for %s, not %x of %d for %s", event->mask, event->wd,
		    event->len > 0 ? event->name : "itself", mask, watch, name);
}

static void check_inotify(void)
{
	char rest[4096];
	errno = 0;
	ssize_t n = read(notify, rest, sizeof rest);
	if (n > 0)
		bad("inotify: an event %x of watch %d that nobody caused", ((struct inotify_event *)rest)->mask,
		    ((struct inotify_event *)rest)->wd);
	write_file("/tmp/watched/new", "");
	want_notice(directory_watch, IN_CREATE, "new");
	want_equal(unlink("/tmp/watched/new"), 0);
	want_notice(directory_watch, IN_DELETE, "new");
	want_equal(chmod("/tmp/watched/file", 0600), 0);
	want_notice(file_watch, IN_ATTRIB, "");
	int fd = open("/tmp/lone", O_WRONLY);
	want_equal(write(fd, "two", 3), 3);
	close(fd);
	want_notice(lone_watch, IN_MODIFY, "");
	int next = inotify_add_watch(notify, "/run", IN_CREATE);
	want(next > lone_watch);
	want_equal(inotify_rm_watch(notify, next), 0);
	want_notice(next, IN_IGNORED, "");
}

static void check_events(void)
{
	check_epoll();
	check_inotify();
}

const struct state events = { "events", set_up_events, check_events, NULL };
