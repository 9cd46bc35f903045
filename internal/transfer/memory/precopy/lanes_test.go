package precopy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/wire/stream"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

// lanesOf are lanes that are dialled to a receiver, which takes what comes over them until the test ends.
func lanesOf(t *testing.T, main *stream.Session, e *ends, attached chan error) Lanes {
	t.Helper()
	return Lanes{
		Main: main, Target: "b", Note: func(what string) { t.Log(what) }, Log: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (*stream.Session, error) {
			near, far := net.Pipe()
			source, target, err := sessions(t, near, far)
			if err == nil {
				go func() { attached <- e.receiver.Attach(ctx, target, nil) }()
			}
			return source, err
		},
	}
}

// TestMoreLanes: pages come over all connections, and each of them tells how it ended.
func TestMoreLanes(t *testing.T) {
	e, attached := newEnds(t), make(chan error, 1)
	source, target := streamtest.Pair(t)
	done := make(chan error, 1)
	go func() { done <- e.receive(soon(t), target, Incoming{}) }()
	go e.hear(source)
	out := stream.NewSections(source, nil)
	if err := errors.Join(e.sender.Begin(out),
		e.sender.openLane(soon(t), lanesOf(t, source, e, attached))); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		run := memory.Run{Task: testTask, Address: testStart + uint64(i*10*memory.PageSize()), Pages: 10}
		if err := e.sender.Put(run, content(10, byte(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(e.sender.AwaitPlaced(soon(t), nil),
		e.sendMap(soon(t), out, nil, mapOf(testTask, testStart, 500)), <-done); err != nil {
		t.Fatal(err)
	}
	carried := source.Counters().Plus(e.sender.more[0].Counters())
	if carried.Sent[KindPages].WireBytes < 500*uint64(memory.PageSize()) {
		t.Error("what both connections have carried is not what was sent")
	}
	e.sender.Close(errors.New("the migration has ended"))
	<-attached // it has noticed
}

// TestLaneBreaks: the loss of one connection ends the way of all pages, at both ends.
func TestLaneBreaks(t *testing.T) {
	e, attached := newEnds(t), make(chan error, 1)
	source, target := streamtest.Pair(t)
	go func() { _ = e.receive(soon(t), target, Incoming{}) }()
	if err := errors.Join(e.sender.Begin(stream.NewSections(source, nil)),
		e.sender.openLane(soon(t), lanesOf(t, source, e, attached))); err != nil {
		t.Fatal(err)
	}
	_ = e.sender.more[0].Close()
	select {
	case <-e.sender.Done():
	case <-soon(t).Done():
		t.Fatal("nobody notices")
	}
	if err := e.sender.Err(); !strings.Contains(err.Error(), "one of the data connections to b") {
		t.Errorf("%v", err)
	}
	<-attached
}

// TestLaneCannotBeOpened: the pages go on over those that there are.
func TestLaneCannotBeOpened(t *testing.T) {
	e := newEnds(t)
	source, _ := streamtest.Pair(t)
	refused := errors.New("refused")
	lanes := lanesOf(t, source, e, nil)
	lanes.Dial = func(context.Context) (*stream.Session, error) { return nil, refused }
	if err := e.sender.openLane(soon(t), lanes); !errors.Is(err, refused) || e.sender.Err() != nil {
		t.Errorf("%v, %v", err, e.sender.Err())
	}
	e.sender.Widen(soon(t), lanes) // of a pipe nothing is known: it ends at once
}

// TestAttach refuses what is not pages, and too many connections, and waits for the key only as long as
// needed.
func TestAttach(t *testing.T) {
	e := newEnds(t)
	over := make(chan struct{})
	close(over)
	if err := e.receiver.Attach(soon(t), nil, over); err != nil {
		t.Errorf("the migration has ended: %v", err)
	}
	if err := e.receiver.Key(bytes.NewReader(make([]byte, 16)), Incoming{}); err != nil {
		t.Fatal(err)
	}
	near, far := streamtest.Pair(t)
	attached := make(chan error, 1)
	go func() { attached <- e.receiver.Attach(soon(t), far, nil) }()
	out := stream.NewSections(near, nil)
	if err := errors.Join(out.Whole(KindMap, "", nil), out.Flush()); err != nil {
		t.Fatal(err)
	}
	if err := <-attached; err == nil || !strings.Contains(err.Error(), "over a connection for pages") {
		t.Errorf("%v", err)
	}
	if err := e.receiver.received().Complete(); err == nil {
		t.Error("the other connections go on as if nothing were wrong")
	}
	many := NewReceiver()
	for range pipeline.MaxLanes - 1 {
		if err := many.Attach(soon(t), nil, over); err != nil {
			t.Fatal(err)
		}
	}
	if err := many.Attach(soon(t), nil, over); err == nil ||
		!strings.Contains(err.Error(), "more connections") {
		t.Errorf("connections without an end: %v", err)
	}
}
