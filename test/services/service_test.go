package services

import (
	"context"
	"net"
	"os/exec"
	"time"
)

// service is something that people run in a container, and how they use it.
type service struct {
	name string

	// The image: packages of Debian, programs by their paths, and a script that sets all up.
	packages []string
	lab      string // instead of all this: an image of the lab
	programs map[string]program
	setup    string

	command []string
	user    string   // of whom its first process is; empty: root
	flags   []string // of `godwit run`, and of `docker run`
	port    int
	udp     bool

	// connect opens a connection of a client, with a number of its own.
	connect func(ctx context.Context, to address, number int) (session, error)
	// lost counts what was acknowledged to a client's session, the first so many times that it asked, and is
	// not there. nil: there is nothing that lasts.
	lost func(ctx context.Context, to address, number int, asked int64) (int64, error)
	// beside is a program of the image that uses the service, too, from the clients' machine. It may not end.
	beside func(host string) []string
	// every is how often a session asks. 0: every 20 ms.
	every time.Duration
	// single says that there is one session, which is opened once: a client of a kind that keeps its
	// connection.
	single bool

	// migrate are flags of `godwit migrate`.
	migrate []string
	// refused are words of the refusal of a service that must not move.
	refused string
}

// session is one connection of a client to a service.
type session interface {
	// Ask asks for the nth time, counted from 1, and wants the right answer.
	Ask(ctx context.Context, nth int64) error
	Close() error
}

// address is where a service is, from where its clients come, and what else they can do there.
type address struct {
	network, hostPort string

	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// exec runs a program in the service's container.
	exec func(ctx context.Context, command ...string) (string, error)
	// program makes a command of the image's programs, beside the clients.
	program func(ctx context.Context, command ...string) (*exec.Cmd, error)
}

// Dial connects to the service.
func (a address) Dial(ctx context.Context) (net.Conn, error) {
	return a.dial(ctx, a.network, a.hostPort)
}

// services are all that there are.
func services() []service {
	return []service{
		postgreSQL(), mariaDB(), openLDAP(), etcd(), memcached(), rabbitMQ(), mosquitto(), natsServer(),
		nginx(), apache(), phpFPM(), haproxy(), traefik(), node(), jvm("jvm-g1", "-XX:+UseG1GC"),
		jvm("jvm-zgc", "-XX:+UseZGC"), multiprocessing(), puma(), goTLS(), rustTokio(), sshd(), postfix(),
		samba(),
		gitea(), prometheus(), refusedSQLite("sqlite-rollback", "DELETE"), refusedSQLite("sqlite-wal", "WAL"),
		sharedSQLite(), openCV(), californium(),
	}
}
