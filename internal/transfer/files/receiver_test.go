package files

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/wire/stream"
)

// TestHostileSource: what a source sends that makes no sense ends the connection, and the source hears why.
func TestHostileSource(t *testing.T) {
	section := func(kind string, content []byte) func(data *stream.Session) error {
		return func(data *stream.Session) error {
			err := data.Begin(kind, "")
			if err == nil {
				_, err = data.Write(content)
			}
			return errors.Join(err, data.End(), data.Push())
		}
	}
	for want, send := range map[string]func(data *stream.Session) error{
		`a section "nonsense" comes over`: section("nonsense", nil),
		"key of the files":                section(kindResume, []byte("short")),
		"":                                section(KindRound, []byte("no round")),
	} {
		m := newMove(t)
		data, err := m.OpenMore(t.Context(), Purpose, 1)
		check(t, err)
		_ = send(data) // the target may have ended it before all was sent
		if _, err := data.Next(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the source hears %v; want %q", err, want)
		}
		if err := <-m.attached; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
		if _, err := m.receiver.Halt(errInterrupted); err != nil {
			t.Error(err)
		}
		check(t, m.receiver.Undo())
		m.wantsNothing()
	}
}

// TestResumeTooLate: a source asks first what is here.
func TestResumeTooLate(t *testing.T) {
	m := newMove(t)
	check(t, m.round())
	m.keptHere = true
	if err := m.sender.resume(); err == nil {
		t.Error("the target tells what it has after a round")
	}
	if err := <-m.attached; err == nil || !strings.Contains(err.Error(), "after some files had arrived") {
		t.Error(err)
	}
}

// TestOneConnection: a second one is refused, and one after the end.
func TestOneConnection(t *testing.T) {
	m := newMove(t)
	check(t, m.sender.Open(t.Context()))
	check(t, m.sender.Round(t.Context())) // it is attached
	_, err := m.OpenMore(t.Context(), Purpose, 1)
	check(t, err)
	if err := <-m.attached; err == nil || !strings.Contains(err.Error(), "a second connection") {
		t.Error(err)
	}
	m = newMove(t)
	if usable, err := m.receiver.Halt(errInterrupted); !usable || err != nil {
		t.Errorf("before anything has come: usable: %t, %v", usable, err)
	}
	_, err = m.OpenMore(t.Context(), Purpose, 1)
	check(t, err)
	if err := <-m.attached; err == nil || !strings.Contains(err.Error(), "one after its end") {
		t.Error(err)
	}
	check(t, m.receiver.Undo())
}

// TestNoArrival: a connection that comes before its arrival is ready waits, until nobody wants it any more.
func TestNoArrival(t *testing.T) {
	m := newMove(t)
	m.ready = make(chan struct{})
	data, err := m.OpenMore(t.Context(), Purpose, 1)
	check(t, err)
	heard := make(chan error, 1)
	go func() {
		_, err := data.Next()
		heard <- err
	}()
	<-m.asked // the connection is taken
	_, err = m.receiver.Halt(errInterrupted)
	check(t, err)
	check(t, <-m.attached)
	if err := <-heard; !strings.Contains(err.Error(), errInterrupted.Error()) {
		t.Errorf("the source hears %v", err)
	}
}

// TestOrder: nothing comes after the last round, and the end not before.
func TestOrder(t *testing.T) {
	m := newMove(t)
	if err := m.receiver.Finish(); err == nil {
		t.Error("all files are in place before any has come")
	}
	check(t, m.round())
	check(t, m.freeze())
	if err := m.receiver.Take(t.Context(), strings.NewReader("")); err == nil ||
		!strings.Contains(err.Error(), "after the last round") {
		t.Error(err)
	}
	if err := m.receiver.Between(func() error { return errTest }); !errors.Is(err, errTest) {
		t.Error(err)
	}
}

// TestUndoWaitsForNoSource: a source that stops in the middle of a round keeps nothing at the target.
func TestUndoWaitsForNoSource(t *testing.T) {
	m := newMove(t)
	in, out := io.Pipe()
	defer out.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	if !m.receiver.begin(cancel) {
		t.Fatal("the connection for files is not taken")
	}
	context.AfterFunc(ctx, func() { _ = in.Close() }) // as the end of the connection does
	go func() {
		defer close(m.receiver.ended)
		if m.receiver.Take(ctx, in) == nil {
			t.Error("half a round is a round")
		}
	}()
	if _, err := out.Write([]byte{0}); err != nil { // the round is being read
		t.Fatal(err)
	}
	undone := make(chan error, 1)
	go func() {
		_, err := m.receiver.Halt(errInterrupted)
		undone <- errors.Join(err, m.receiver.Undo())
	}()
	select {
	case err := <-undone:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for the rest of the round")
	}
}
