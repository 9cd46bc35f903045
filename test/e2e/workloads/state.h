// What the workloads share. See main.c for how they are run and asked.
#ifndef STATE_H
#define STATE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// A state sets something up once, and checks it as often as it is asked to: before and after each move.
struct state {
	const char *name;
	void (*setup)(int argc, char **argv);
	void (*check)(void);
	// Other commands; may be NULL. It answers with say().
	void (*command)(const char *word, const char *argument);
};

extern const struct state tree, threads, registers, signals, timers, sleepers, moving_clock, pipes, unix_sockets, events,
	locks, locks_waiting, open_files, deleted_files, memory, ipc, limits, security, confined, terminal, numbers, tcp, udp,
	local_tcp, oddity, files;

// bad records that something is not as it should be.
void bad(const char *format, ...) __attribute__((format(printf, 1, 2)));
// say adds a line to the answer to a command.
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
// die ends the workload because something could not be set up.
void die(const char *what) __attribute__((noreturn));

// want records a fault, with the condition, unless it holds.
#define want(condition)                                                                             \
	do {                                                                                        \
		if (!(condition))                                                                   \
			bad("%s:%d: %s (errno %d: %m)", __FILE__, __LINE__, #condition, errno);     \
	} while (0)

// want_equal records a fault with both values unless they are equal.
#define want_equal(got, expected)                                                                           \
	do {                                                                                                \
		long long got_ = (long long)(got), expected_ = (long long)(expected);                       \
		if (got_ != expected_)                                                                      \
			bad("%s:%d: %s is %lld, not %lld", __FILE__, __LINE__, #got, got_, expected_);      \
	} while (0)

// must ends the workload unless the call succeeds, and gives its result.
#define must(call)                                      \
	({                                              \
		__auto_type result_ = (call);           \
		if ((long)result_ == -1)                \
			die(#call);                     \
		result_;                                \
	})

// A helper is another process that checks its part when it is asked. Prepare it before any fork; serve it in the
// process; ask it from the first one.
struct helper {
	int request[2], answer[2];
	pid_t pid;
};
struct helper helper_prepare(void);
void helper_serve(struct helper *h, void (*check)(void)) __attribute__((noreturn));
void helper_ask(struct helper *h);
// helper_start forks a child that calls set_up, if it is not NULL, and then serves.
struct helper helper_start(void (*set_up)(void), void (*check)(void));

// pattern is a sequence of bytes that does not repeat for long; every place in it is a number of its own.
uint8_t pattern(uint64_t seed, uint64_t at);
void fill(void *to, size_t size, uint64_t seed, uint64_t at);
// filled tells whether memory has the pattern.
bool filled(const void *from, size_t size, uint64_t seed, uint64_t at);

// shared is memory that children have in common with this process.
void *shared(size_t size);
// seconds on a clock.
double seconds(int clock);
// within waits, for a while that is long for any machine, until a condition holds.
bool within(bool (*condition)(void));
void pause_briefly(void);
// write_file writes a small file; read_file reads one into a buffer of its own and ends it with a zero.
void write_file(const char *path, const char *content);
const char *read_file(const char *path);
void await_child(pid_t pid, int status);

int manifest(int argc, char **argv);
int connect_and_wait(int argc, char **argv);
int unconfine(int argc, char **argv);

#endif
