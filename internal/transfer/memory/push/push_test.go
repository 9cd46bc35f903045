package push

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
)

// TestPush: a page for which a process waits comes at once, all others when the container runs, and both ends
// know that nothing is missing.
func TestPush(t *testing.T) {
	e := newEnds(t)
	if e.sender.Report() != nil || e.sender.Made() || e.sender.Serving() {
		t.Error("something is told of what is not there")
	}
	e.sender.Stays(testPages)
	if err := e.sender.Make(t.Context(), e.stay()); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	attached := e.connect(t, never, never, over)
	e.sender.Serve(t.Context())
	e.arrived.faults <- memory.RemoteFault{Task: 1, Address: 1 << 20}
	for ctx := soon(t); e.arrived.count() == 0; runtime.Gosched() {
		select {
		case err := <-attached:
			t.Fatalf("the push ends: %v; %v", err, e.sender.Wait(ctx))
		case <-ctx.Done():
			t.Fatal("the page does not come")
		default:
		}
	}
	if n := e.arrived.count(); n != 1 {
		t.Errorf("%d pages have come before the container runs", n)
	}
	e.sender.Begin()
	e.sender.Begin()
	if err := errors.Join(e.sender.Wait(soon(t)), <-attached, <-attached, e.sender.Incomplete(),
		e.sender.Killed()); err != nil {
		t.Fatal(err)
	}
	report := e.sender.Report()
	if e.arrived.count() != testPages || report.RemotePages != testPages || report.UrgentPages == 0 ||
		report.LeftPages != 0 || report.Connections != 1 || e.arrived.closed != 1 {
		t.Errorf("%d pages are here, the report is %+v", e.arrived.count(), report)
	}
	bytes := e.sender.Bytes()
	if bytes.Urgent == 0 || bytes.Push == 0 || bytes.Raw == 0 {
		t.Errorf("%+v were carried", bytes)
	}
	if told := e.receiver.Report(); told == nil || told.RemotePages != testPages || told.Spill != "" {
		t.Errorf("the target tells %+v", told)
	}
	if err := errors.Join(e.sender.Close(), e.sender.Close()); err != nil || e.sender.Serving() {
		t.Error(err)
	}
}

// TestPushBreaks after some bytes of either connection, and goes on over two new ones: no page is lost, and
// none comes twice.
func TestPushBreaks(t *testing.T) {
	for at := 0; at < 6000; at += 1 + at/2 {
		for _, urgent := range []bool{true, false} {
			e := newEnds(t)
			if err := e.sender.Make(t.Context(), e.stay()); err != nil {
				t.Fatal(err)
			}
			e.sender.Begin()
			left := map[bool]int{urgent: at, !urgent: never}
			attached := e.connect(t, left[true], left[false], underWay())
			e.arrived.faults <- memory.RemoteFault{Task: 1, Address: 1 << 20}
			e.sender.Serve(t.Context())
			err := e.sender.Wait(soon(t))
			<-attached
			<-attached
			if err == nil && e.arrived.count() != testPages {
				t.Fatalf("after %d bytes: the source believes that all has come, and %d pages have", at,
					e.arrived.count())
			}
			if err != nil {
				attached := e.connect(t, never, never, underWay())
				e.sender.Serve(t.Context())
				if err := errors.Join(e.sender.Wait(soon(t)), <-attached, <-attached); err != nil {
					t.Fatalf("after %d bytes: %v", at, err)
				}
			}
			if n := e.arrived.count(); n != testPages {
				t.Errorf("after %d bytes: %d pages are here", at, n)
			}
		}
	}
}

// underWay is a migration that does not end.
func underWay() <-chan struct{} { return make(chan struct{}) }

// TestProcessesLost: pages that cannot be read from the processes come from the disk, if they are there; if
// not, the source knows that it cannot give them, and that a new connection would not help.
func TestProcessesLost(t *testing.T) {
	for _, spilled := range []bool{false, true} {
		e := newEnds(t)
		stay := e.stay()
		if spilled {
			stay.Spill = newTestSpill(t, filepath.Join(t.TempDir(), spillName), &keyKeeper{})
		}
		if err := e.sender.Make(t.Context(), stay); err != nil {
			t.Fatal(err)
		}
		if spilled {
			e.sender.Spill(t.Context(), remoteOf(testPages))
			<-stay.Spill.written
		}
		e.frozen.mu.Lock()
		e.frozen.lost = true
		e.frozen.mu.Unlock()
		e.sender.Begin()
		attached := e.connect(t, never, never, underWay())
		e.sender.Serve(t.Context())
		err := e.sender.Wait(soon(t))
		if spilled && (err != nil || e.arrived.count() != testPages ||
			e.sender.Report().Spill != migration.SpillServing) {
			t.Errorf("from the disk: %v, %d pages are here", err, e.arrived.count())
		}
		if !spilled && (!errors.Is(err, postcopy.ErrSource) || e.arrived.count() > 0) {
			t.Errorf("neither there nor on the disk: %v, %d pages are here", err, e.arrived.count())
		}
		<-attached
		<-attached
	}
}

// TestTargetSaysWhatStayed to an agent that was started again, which then spills that.
func TestTargetSaysWhatStayed(t *testing.T) {
	e := newEnds(t)
	stay := e.stay()
	stay.Remote, stay.Waits = nil, false
	stay.Spill = newTestSpill(t, filepath.Join(t.TempDir(), spillName), &keyKeeper{})
	if err := e.sender.Make(t.Context(), stay); err != nil || !e.sender.Made() {
		t.Fatal(err)
	}
	attached := e.connect(t, never, never, underWay())
	e.sender.Serve(t.Context())
	if err := errors.Join(e.sender.Wait(soon(t)), <-attached, <-attached); err != nil ||
		e.arrived.count() != testPages {
		t.Errorf("%v, %d pages are here", err, e.arrived.count())
	}
	<-stay.Spill.written
	if !stay.Spill.Whole() {
		t.Errorf("it is not on the disk: %s", stay.Spill.why)
	}
}

// TestGivenUp: whoever waits for the end waits no longer than wanted, and the push ends then.
func TestGivenUp(t *testing.T) {
	e := newEnds(t)
	if err := e.sender.Make(t.Context(), e.stay()); err != nil {
		t.Fatal(err)
	}
	attached := e.connect(t, never, never, underWay())
	e.sender.Serve(t.Context())
	ctx, giveUp := context.WithCancelCause(soon(t))
	why := errors.New("an operator says so")
	giveUp(why)
	if err := e.sender.Wait(ctx); !errors.Is(err, why) || e.sender.Serving() {
		t.Errorf("%v", err)
	}
	<-attached
	<-attached
	if e.receiver.Connected() {
		t.Error("the target takes the connections for good")
	}
}

// TestMigrationHasEnded: a source that asks is told that nothing is needed of it.
func TestMigrationHasEnded(t *testing.T) {
	e := newEnds(t)
	if err := e.sender.Make(t.Context(), e.stay()); err != nil {
		t.Fatal(err)
	}
	attached := e.connect(t, never, never, nil)
	e.sender.Serve(t.Context())
	err := errors.Join(e.sender.Wait(soon(t)), <-attached, <-attached)
	if err != nil || e.arrived.count() > 0 {
		t.Errorf("%v, %d pages are here", err, e.arrived.count())
	}
}

// TestTargetCannotFill: the source is not told that all is there when it is not known who fills the memory.
func TestTargetCannotFill(t *testing.T) {
	e := newEnds(t)
	e.arrived.nothing = engine.ErrNotFilling
	e.arrived.fill = &memory.FillReport{State: memory.Filling, RemoteLeft: 3}
	if err := e.sender.Make(t.Context(), e.stay()); err != nil {
		t.Fatal(err)
	}
	attached := e.connect(t, never, never, underWay())
	e.sender.Begin()
	e.sender.Serve(t.Context())
	if err := e.sender.Wait(soon(t)); err == nil {
		t.Error("the source takes the memory for complete")
	}
	if err := <-attached; err == nil || !strings.Contains(err.Error(), "3 pages are missing") {
		t.Errorf("%v", err)
	}
}

// TestNothingFillsYetIsNotComplete: an engine that starts a container late may do so when the
// source's connections are there. The source gives its copy up when it hears that nothing is
// missing, so nobody may say so before the container has run.
func TestNothingFillsYetIsNotComplete(t *testing.T) {
	none, broken := memory.FillReport{State: memory.FillNone}, errors.New("the report cannot be read")
	for _, c := range []struct {
		ran  bool
		fill memory.FillReport
		err  error
		ok   bool
	}{
		{false, none, nil, false},
		{true, none, nil, true}, // it has ended, and its report is gone
		{false, memory.FillReport{State: memory.Filled}, nil, true},
		{true, memory.FillReport{State: memory.Filling, RemoteLeft: 1}, nil, false},
		{true, memory.FillReport{}, engine.ErrNotFound, true},
		{true, memory.FillReport{}, broken, false},
	} {
		e := newEnds(t)
		e.arrived.hasRun, e.arrived.fill, e.arrived.broken = c.ran, &c.fill, c.err
		if err := e.receiver.nothingMissing(t.Context()); (err == nil) != c.ok {
			t.Errorf("%t, %+v, %v: %v", c.ran, c.fill, c.err, err)
		}
	}
}

// TestPushWaitsForWhatFills: pages are brought to nobody before there is somebody who takes them.
func TestPushWaitsForWhatFills(t *testing.T) {
	e := newEnds(t)
	e.arrived.awaits, e.arrived.nothing = errNotHere, os.ErrInvalid
	if err := e.receiver.bring(t.Context(), nil); !errors.Is(err, errNotHere) {
		t.Errorf("it does not wait: %v", err)
	}
	e.arrived.awaits = nil
	if err := e.receiver.bring(t.Context(), nil); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("it does not ask: %v", err)
	}
}

// TestHealthy: the source notices a target that says nothing any more, or that its container was killed.
func TestHealthy(t *testing.T) {
	d := NewSender()
	d.heard(memory.FillReport{State: memory.Filling, RemoteLeft: 1})
	if d.Healthy(time.Hour) || d.Killed() != nil {
		t.Error("it is healthy without a connection, or killed")
	}
	d.stop = func() {}
	if !d.Healthy(time.Hour) || d.Healthy(0) {
		t.Error("it does not matter when the target was heard")
	}
	d.heard(memory.FillReport{State: memory.FillLost})
	if d.Killed() == nil {
		t.Error("it was not killed")
	}
	d.stop = nil
}

// TestWatch tells of a restore that waits for pages, once there was no connection for too long.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, told := time.Now(), 0
		silent := func(patience time.Duration) {
			told++
			if past := time.Since(began); past < patience || past > 2*patience {
				t.Errorf("after %s", past)
			}
		}
		r := NewReceiver(ReceiverConfig{Received: before{true}, Silence: time.Minute})
		if r.Watch(nil, silent); told != 1 {
			t.Error("nobody is told")
		}
		over := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(over) })
		r.Watch(over, silent)
		none := NewReceiver(ReceiverConfig{Received: before{false}, Silence: time.Minute})
		if none.Watch(nil, silent); told != 1 {
			t.Error("a restore that is over, or needs no page, is told of")
		}
	})
}

// TestLostPages are told although the container is gone, which had the report.
func TestLostPages(t *testing.T) {
	e := newEnds(t)
	e.arrived.fill, e.arrived.broken = &memory.FillReport{}, engine.ErrNotFound
	if e.receiver.Report() != nil {
		t.Error("something is told of nothing")
	}
	e.receiver.Lost(memory.FillReport{State: memory.Filling, RemotePages: 9, RemoteLeft: 4})
	if told := e.receiver.Report(); told.LostPages != 4 || told.LeftPages != 0 {
		t.Errorf("%+v", told)
	}
	if p := e.figures.Progress(migration.Record{}, time.Now()); p.Push == nil {
		t.Error("the report does not tell")
	}
}

// TestKeyIsKept until the migration is over, and an empty one changes nothing.
func TestKeyIsKept(t *testing.T) {
	e := newEnds(t)
	key := []byte("key")
	is, isNot := func() bool { return true }, func() bool { return false }
	if kept := e.receiver.KeepSpillKey(nil, isNot); kept != nil || e.receiver.spilled() != "" {
		t.Errorf("%q is kept", kept)
	}
	for _, sent := range [][]byte{key, nil} {
		if kept := e.receiver.KeepSpillKey(sent, isNot); string(kept) != "key" {
			t.Errorf("%q is kept", kept)
		}
	}
	if kept := e.receiver.KeepSpillKey([]byte("other"), is); string(kept) != "key" ||
		e.receiver.spilled() != migration.SpillComplete {
		t.Errorf("after the end %q is kept", kept)
	}
}
