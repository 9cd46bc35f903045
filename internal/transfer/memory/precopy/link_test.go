package precopy

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/wire/stream"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

// connect begins to send over a new connection, at whose other end a target takes pages.
func (e *ends) connect(t *testing.T) {
	t.Helper()
	near, far := streamtest.Pair(t)
	ctx, target, source := soon(t), *e, *e
	go func() { _ = target.receive(ctx, far, Incoming{}) }() // the source notices
	go source.hear(near)
	if err := e.sender.Begin(stream.NewSections(near, nil)); err != nil {
		t.Fatal(err)
	}
}

// TestSenderGoesOn: a migration takes over the sender of a staged copy. The sender goes on over another
// connection with the same key, knows what the target has, and counts what it sends for the migration.
func TestSenderGoesOn(t *testing.T) {
	e := newEnds(t)
	key, size := e.sender.Key(), memory.PageSize()
	run, pages, counted := memory.Run{Task: testTask, Address: testStart, Pages: 2}, content(2, 1), int64(0)
	for round := range 2 {
		e.connect(t)
		pages[0] = byte(round)
		if err := e.sender.Put(run, pages); err != nil {
			t.Fatal(err)
		}
		if err := e.sender.AwaitPlaced(soon(t), nil); err != nil {
			t.Fatal(err)
		}
		if err := holds(e.store, run, pages); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		had := make([]byte, size)
		if !e.sender.Had(testTask, testStart, had) || !bytes.Equal(had, pages[:size]) {
			t.Errorf("round %d: the sender does not know what the target has", round)
		}
		receiver := NewReceiver() // the migration's, which takes over the pages of the staged copy
		if !receiver.TakeOver(e.store) {
			t.Fatal("the pages are not taken over")
		}
		if _, err := receiver.Open(1 << 24); err != nil {
			t.Fatal(err)
		}
		e.receiver = receiver
		e.sender = e.sender.Again(func(bytes int64) { counted += bytes })
	}
	if counted != 2*int64(size) || e.sender.Key() != key {
		t.Errorf("%d bytes were counted, and the key is the same: %v", counted, e.sender.Key() == key)
	}
}

// TestAwaitEnds: whoever waits for the target does so no longer than the sender and its caller go on.
func TestAwaitEnds(t *testing.T) {
	e := newEnds(t)
	e.connect(t)
	lost := errors.New("the link is lost")
	cancelled, cancel := context.WithCancelCause(soon(t))
	cancel(lost)
	if _, err := e.sender.AwaitClaims(cancelled); !errors.Is(err, lost) {
		t.Errorf("claims: %v", err)
	}
	e.sender.Fail(lost)
	if _, err := e.sender.AwaitClaims(soon(t)); !errors.Is(err, lost) {
		t.Errorf("claims: %v", err)
	}
	if err := e.sender.AwaitPlaced(soon(t), nil); !errors.Is(err, lost) {
		t.Errorf("a barrier: %v", err)
	}
}

// TestPagesThatStayMissing: pages are sent again once.
func TestPagesThatStayMissing(t *testing.T) {
	e := newEnds(t)
	if err := e.sender.AddLane(nowhere{}); err != nil {
		t.Fatal(err)
	}
	missing := []memory.TaskMap{{Task: 1}}
	for number := range uint64(2) {
		e.sender.placed <- placedRound{number + 1, missing}
	}
	again := 0
	err := e.sender.AwaitPlaced(soon(t), func([]memory.TaskMap) error { again++; return nil })
	if !errors.Is(err, pipeline.ErrMissing) || again != 1 {
		t.Errorf("%v, sent again %d times", err, again)
	}
}

// TestMaxClaims: a target may claim more than the container has, and something of an empty one.
func TestMaxClaims(t *testing.T) {
	if least := MaxClaims(0); least == 0 || MaxClaims(1<<30) <= 2*(1<<30)/uint64(memory.PageSize()) {
		t.Errorf("%d claims for nothing", least)
	}
}
