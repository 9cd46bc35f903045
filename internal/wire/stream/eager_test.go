package stream

import (
	"errors"
	"io"
	"testing"
	"time"
)

// TestEager sends before the peer has answered, and is answered.
func TestEager(t *testing.T) {
	a, b := pipe(t)
	mine, err := Open(testContext(t), a, Hello{Migration: "m", Purpose: "test"}, Options{Eager: true})
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	if err := sendAll(mine, []section{{"k", "n", content(1, 100_000)}}); err != nil {
		t.Fatal(err)
	}
	warmed := make(chan error, 1)
	go func() {
		_, err := mine.Warm(testContext(t), Budget{Duration: 50 * time.Millisecond})
		warmed <- err
	}()
	theirs, hello, err := Answer(testContext(t), b, func(Hello) error { return nil }, Options{})
	if err != nil || hello.Migration != "m" {
		t.Fatalf("%v, %+v", err, hello)
	}
	defer theirs.Close()
	got, err := theirs.Next()
	if err != nil || got.Kind != "k" {
		t.Fatalf("%v, %+v", err, got)
	}
	if n, err := io.Copy(io.Discard, got); err != nil || n != 100_000 {
		t.Errorf("%d bytes: %v", n, err)
	}
	if err := <-warmed; err != nil {
		t.Error(err)
	}
}

// TestEagerIsRefused checks that users of a refused session learn why, although the peer has not read their
// data.
func TestEagerIsRefused(t *testing.T) {
	a, b := pipe(t)
	s, err := Open(testContext(t), a, Hello{Migration: "m", Purpose: "test"}, Options{Eager: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := sendAll(s, []section{{"k", "n", content(1, 50_000)}}); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("no such migration")
	if _, _, err := Answer(testContext(t), b, func(Hello) error { return refused },
		Options{}); !errors.Is(err, refused) {
		t.Errorf("the peer: %v", err)
	}
	var peer *PeerError
	if _, err := s.Next(); !errors.As(err, &peer) || peer.Reason != refused.Error() {
		t.Errorf("Next: %v", err)
	}
	if _, err := s.Warm(testContext(t), Budget{}); !errors.As(err, &peer) {
		t.Errorf("Warm: %v", err)
	}
	if err := s.Flush(); !errors.As(err, &peer) {
		t.Errorf("Flush: %v", err)
	}
}
