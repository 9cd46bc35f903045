package data

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/godwit/godwit/internal/cluster/clustertest"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/stream"
)

var errFailed = errors.New("failed")

// TestServe hands a connection to whom its purpose names, and refuses others.
func TestServe(t *testing.T) {
	all := clustertest.New(t, "a", "b")
	listener, err := wire.Listen(t.Context(), "127.0.0.1:0", wire.ListenOptions{Identity: all[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	served := make(chan string, 8)
	server := NewServer(map[string]Purpose{
		"one": AcceptFunc(func(hello stream.Hello, from string, options *stream.Options) (Serve, error) {
			options.Workers = 1
			return func(context.Context, *stream.Session) error {
				served <- hello.Migration + " from " + from
				return errFailed // which is logged
			}, nil
		}),
		"refused": AcceptFunc(func(stream.Hello, string, *stream.Options) (Serve, error) {
			return nil, errFailed
		}),
	}, stream.Options{Workers: 1}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Run(ctx, listener)
	}()
	for purpose, accepted := range map[string]bool{"one": true, "refused": false, "none": false} {
		conn, err := wire.Dial(t.Context(), all[1].ID, listener.Addr().String(), "a")
		if err != nil {
			t.Fatal(err)
		}
		session, err := stream.Open(t.Context(), conn, stream.Hello{Purpose: purpose, Migration: "x"},
			stream.Options{Workers: 1})
		if (err == nil) != accepted {
			t.Errorf("%s: %v", purpose, err)
		}
		if err == nil {
			if got := <-served; got != "x from b" {
				t.Errorf("served %q", got)
			}
			session.Close()
		}
		conn.Close()
	}
	cancel()
	listener.Close()
	<-ended
}
