package agent

import (
	"context"
	"net"
	"testing"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/stream"
)

// testSession makes a data session with nobody at the other end who does anything.
func testSession(t *testing.T) *stream.Session {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { theirs.Close() })
	answered := make(chan error, 1)
	go func() {
		_, _, err := stream.Answer(t.Context(), theirs, func(stream.Hello) error { return nil },
			stream.Options{})
		answered <- err
	}()
	session, err := stream.Open(t.Context(), ours, stream.Hello{}, stream.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// TestPushConnectionsBelongTogether: a connection that the source has given up may come after the
// first of its next try. It must not go with that, and the tries after it must not go on so.
func TestPushConnectionsBelongTogether(t *testing.T) {
	var d pushTarget
	join := func(purpose, pair string) (*pushPair, context.Context) {
		return d.join(t.Context(), stream.Hello{Purpose: purpose, Pair: pair}, testSession(t))
	}
	join(purposeUrgent, "first")
	if d.connected() {
		t.Fatal("one connection is taken for two")
	}
	second, _ := join(purposeUrgent, "second")
	if _, complete := join(purposePush, "first"); complete != nil {
		t.Error("connections of two tries were put together")
	}
	<-second.ended
	if _, complete := join(purposePush, "second"); complete != nil {
		t.Error("a connection was put together with one that has ended")
	}
	join(purposeUrgent, "third")
	third, complete := join(purposePush, "third")
	if complete == nil || !d.connected() {
		t.Fatal("the next try does not succeed")
	}
	third.end(errNotHere)
	if d.connected() || complete.Err() == nil {
		t.Error("what has ended is taken for connected")
	}
	// The source's order does not matter.
	join(purposePush, "fourth")
	if _, complete := join(purposeUrgent, "fourth"); complete == nil {
		t.Error("two connections in the other order are not put together")
	}
	d.close()
}

// past makes the target's side of a migration that has ended.
func past(t *testing.T, a *Agent, number int, result migration.Result) *target {
	t.Helper()
	move, err := a.moves.find(ended(t, a, number, func(r *migration.Record) {
		r.Spec.Mode, r.Result = migration.PostCopy, result
		if result == migration.Moved {
			r.Decision = migration.Ran
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	return move.work().(*target)
}

// TestNobodyToAskIsNotComplete: the source gives up its copy when it hears that all is here, so
// that nobody takes pages must not be taken for that as long as some are missing.
func TestNobodyToAskIsNotComplete(t *testing.T) {
	for _, c := range []struct {
		fill memory.FillReport
		ok   bool
	}{
		{memory.FillReport{State: memory.Filling, RemoteLeft: 1}, false},
		{memory.FillReport{State: memory.Filling}, true},
		{memory.FillReport{State: memory.Filled}, true},
		{memory.FillReport{State: memory.FillEnded, RemoteLeft: 1}, true},
		{memory.FillReport{State: memory.FillLost, RemoteLeft: 1}, true}, // the source is told so
	} {
		d := &pusher{fill: c.fill}
		if err := d.incomplete(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.fill, err)
		}
	}
}

// TestMissingPagesOfAnEndedMigration: the source's operator may have given away pages that the
// container here still waits for.
func TestMissingPagesOfAnEndedMigration(t *testing.T) {
	a := newTestAgent(t)
	if !past(t, a, 1, migration.Moved).mayMiss() {
		t.Error("nothing can be done for it")
	}
	if past(t, a, 2, migration.RolledBack).mayMiss() {
		t.Error("it can miss something that never came")
	}
}
