package stream

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// pipe returns both ends of a TCP connection over loopback.
func pipe(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	a, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// pair returns two sessions that talk to each other.
func pair(t testing.TB, o Options) (*Session, *Session) {
	t.Helper()
	a, b := pipe(t)
	return pairOver(t, a, b, o)
}

func pairOver(t testing.TB, a, b net.Conn, o Options) (*Session, *Session) {
	t.Helper()
	type answered struct {
		session *Session
		err     error
	}
	answer := make(chan answered, 1)
	go func() {
		session, _, err := Answer(testContext(t), b, func(Hello) error { return nil }, o)
		answer <- answered{session, err}
	}()
	opened, err := Open(testContext(t), a, Hello{Migration: "m", Purpose: "test"}, o)
	if err != nil {
		t.Fatal(err)
	}
	got := <-answer
	if got.err != nil {
		t.Fatal(got.err)
	}
	t.Cleanup(func() { opened.Close(); got.session.Close() })
	return opened, got.session
}

// raw returns a session whose peer is the returned connection, after the preambles.
func raw(t testing.TB, o Options) (*Session, net.Conn) {
	t.Helper()
	a, b := pipe(t)
	go func() {
		var hello Hello
		if receivePreamble(b, &hello) == nil {
			_ = sendPreamble(b, answer{})
		}
	}()
	session, err := Open(testContext(t), a, Hello{}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session, b
}

func recordsFrame(payload []byte) []byte {
	frame := make([]byte, headerBytes)
	header{kind: frameRecords, wire: len(payload), raw: len(payload)}.put(frame)
	return append(frame, payload...)
}

// content makes bytes that compress by about half, always the same for a seed.
func content(seed uint64, size int) []byte {
	random := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, size)
	for i := 0; i < size; i += 64 {
		for j := i; j < min(i+32, size); j++ {
			b[j] = byte(random.Uint32())
		}
	}
	return b
}

type section struct {
	kind, name string
	data       []byte
}

func sendAll(s *Session, sections []section) error {
	for _, section := range sections {
		if err := s.Begin(section.kind, section.name); err != nil {
			return err
		}
		for rest := section.data; len(rest) > 0; {
			n := min(len(rest), 100_000)
			if _, err := s.Write(rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		if err := s.End(); err != nil {
			return err
		}
	}
	return s.Finish()
}

func receiveAll(s *Session) ([]section, error) {
	var out []section
	for {
		next, err := s.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		data, err := io.ReadAll(next)
		if err != nil {
			return out, fmt.Errorf("read: %w", err)
		}
		out = append(out, section{next.Kind, next.Name, data})
	}
}
