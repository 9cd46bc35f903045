package push

import (
	"context"
	"testing"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/wire/stream"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

// testSession makes a data session with nobody at the other end who does anything.
func testSession(t *testing.T) *stream.Session {
	t.Helper()
	session, _ := streamtest.Pair(t)
	return session
}

// TestPushConnectionsBelongTogether: a connection that the source has given up may come after the
// first of its next try. It must not go with that, and the tries after it must not go on so.
func TestPushConnectionsBelongTogether(t *testing.T) {
	var d pairs
	join := func(purpose, name string) (*pair, context.Context) {
		return d.join(t.Context(), stream.Hello{Purpose: purpose, Pair: name}, testSession(t))
	}
	join(PurposeUrgent, "first")
	if d.connected() {
		t.Fatal("one connection is taken for two")
	}
	second, _ := join(PurposeUrgent, "second")
	if _, complete := join(PurposePush, "first"); complete != nil {
		t.Error("connections of two tries were put together")
	}
	<-second.ended
	if _, complete := join(PurposePush, "second"); complete != nil {
		t.Error("a connection was put together with one that has ended")
	}
	join(PurposeUrgent, "third")
	third, complete := join(PurposePush, "third")
	if complete == nil || !d.connected() {
		t.Fatal("the next try does not succeed")
	}
	third.end(errNotHere)
	if d.connected() || complete.Err() == nil {
		t.Error("what has ended is taken for connected")
	}
	// The source's order does not matter.
	join(PurposePush, "fourth")
	if _, complete := join(PurposeUrgent, "fourth"); complete == nil {
		t.Error("two connections in the other order are not put together")
	}
	d.close()
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
		d := &Sender{fill: c.fill}
		if err := d.Incomplete(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.fill, err)
		}
	}
}
