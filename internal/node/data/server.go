// Package data serves the data connections that other nodes make to this one. The greeting of a connection
// names its purpose, and the server hands the connection to the Purpose of that name. The server limits the
// connections of one peer, and of all peers.
package data

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/stream"
)

// What one node may use of another. Peers have certificates, but one that has gone wrong must not
// take its neighbours with it.
const (
	maxDataConns   = 512 // data connections of all peers
	maxConnsOfPeer = 128 // data connections of one peer
)

// Serve serves a data connection until its end.
type Serve func(ctx context.Context, session *stream.Session) error

// Purpose answers for the data connections of one purpose: it refuses one, or says how it is served.
type Purpose interface {
	// Accept may change the options of the connection.
	Accept(hello stream.Hello, from string, options *stream.Options) (Serve, error)
}

// AcceptFunc is a Purpose that is a function.
type AcceptFunc func(hello stream.Hello, from string, options *stream.Options) (Serve, error)

// Accept implements Purpose.
func (f AcceptFunc) Accept(hello stream.Hello, from string, options *stream.Options) (Serve, error) {
	return f(hello, from, options)
}

// Server hands data connections to those for whom they are.
type Server struct {
	purposes map[string]Purpose
	options  stream.Options
	log      *slog.Logger
}

// NewServer answers for these purposes.
func NewServer(purposes map[string]Purpose, options stream.Options, log *slog.Logger) *Server {
	return &Server{purposes: purposes, options: options, log: log}
}

// Listener accepts data connections. See wire.Listener.
type Listener interface {
	AcceptData(ctx context.Context) (*wire.Conn, error)
}

// Run serves all connections until ctx ends.
func (s *Server) Run(ctx context.Context, listener Listener) {
	room := newConnRoom(maxDataConns, maxConnsOfPeer)
	for {
		conn, err := listener.AcceptData(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.log.Error("data connections", "error", err)
			}
			return
		}
		if !room.enter(conn.Peer().Name) {
			s.log.Warn("data connection refused: there are too many", "from", conn.Peer().Name)
			conn.Close()
			continue
		}
		go guard.Logged(s.log, func() {
			defer room.leave(conn.Peer().Name)
			if err := guard.Do(func() error { return s.Serve(ctx, conn) }); err != nil {
				s.log.Info("data connection ended", "from", conn.Peer().Name, "error", err)
				guard.LogPanic(s.log, err)
			}
		})()
	}
}

// Serve serves one connection until its end.
func (s *Server) Serve(ctx context.Context, conn *wire.Conn) error {
	defer conn.Close()
	var serve Serve
	check := func(hello stream.Hello) (options stream.Options, err error) {
		options = s.options
		purpose, known := s.purposes[hello.Purpose]
		if !known {
			return options, fmt.Errorf("unknown purpose of a data connection: %.40q", hello.Purpose)
		}
		serve, err = purpose.Accept(hello, conn.Peer().Name, &options)
		return options, err
	}
	session, _, err := stream.AnswerWith(ctx, conn, check)
	if err != nil {
		return err
	}
	defer session.Close()
	return serve(ctx, session)
}
