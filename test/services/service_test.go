package services

import (
	"context"
	"net"
	"os/exec"
	"time"
)

// service is a program that people run in a container, with its clients.
type service struct {
	name string

	// The image: packages of Debian, programs by their paths, and a setup script.
	packages []string
	lab      string // instead of these: an image of the lab
	programs map[string]program
	setup    string

	command []string
	user    string   // user of its first process; empty: root
	flags   []string // of `godwit run`, and of `docker run`
	port    int
	udp     bool

	// connect opens a connection of a client, with a unique number.
	connect func(ctx context.Context, to address, number int) (session, error)
	// lost counts acknowledged data of a client's session, for its first asked requests, that is missing.
	// nil: there is no lasting data.
	lost func(ctx context.Context, to address, number int, asked int64) (int64, error)
	// beside is a program of the image that uses the service, too, from the clients' machine. It must not
	// end.
	beside func(host string) []string
	// every is the interval of a session's requests. 0: every 20 ms.
	every time.Duration
	// single means that there is one session, opened once: a client that keeps its connection.
	single bool

	// migrate are flags of `godwit migrate`.
	migrate []string
	// refused are words of the refusal of a service that must not move.
	refused string
}

// session is one connection of a client to a service.
type session interface {
	// Ask sends the nth request, counted from 1, and checks the answer.
	Ask(ctx context.Context, nth int64) error
	Close() error
}

// address is where a service and its clients are, and what clients can run there.
type address struct {
	network, hostPort string

	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// exec runs a program in the service's container.
	exec func(ctx context.Context, command ...string) (string, error)
	// program returns a command of the image's programs, beside the clients.
	program func(ctx context.Context, command ...string) (*exec.Cmd, error)
}

// Dial connects to the service.
func (a address) Dial(ctx context.Context) (net.Conn, error) {
	return a.dial(ctx, a.network, a.hostPort)
}

// services returns all services.
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
