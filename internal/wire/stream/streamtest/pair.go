// Package streamtest makes sessions for tests of what is sent over them.
package streamtest

import (
	"net"
	"testing"

	"github.com/godwit/godwit/internal/wire/stream"
)

// Pair makes the two ends of a session over a pipe. They are closed when the test ends.
func Pair(t testing.TB) (near, far *stream.Session) {
	t.Helper()
	ours, theirs := net.Pipe()
	answered := make(chan error, 1)
	go func() {
		var err error
		far, _, err = stream.Answer(t.Context(), theirs, func(stream.Hello) error { return nil },
			stream.Options{})
		answered <- err
	}()
	near, err := stream.Open(t.Context(), ours,
		stream.Hello{Migration: "0123456789abcdef", Purpose: "migration"}, stream.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}
