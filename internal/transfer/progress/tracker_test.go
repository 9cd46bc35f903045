package progress

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// TestHeardReport: a target takes its source's report only if it is of this migration.
func TestHeardReport(t *testing.T) {
	spec := migration.Spec{ID: "m", Mode: migration.PreCopy, Side: migration.Target}
	for _, one := range []struct {
		report migration.Report
		taken  bool
	}{
		{migration.Report{Migration: "m", Mode: migration.PreCopy}, true},
		{migration.Report{Migration: "other", Mode: migration.PreCopy}, false},
		{migration.Report{Migration: "m", Mode: migration.Cold}, false},
		{migration.Report{Migration: "m", Mode: "unheard-of"}, false},
	} {
		document, err := json.Marshal(one.report)
		if err != nil {
			t.Fatal(err)
		}
		tracker := NewTracker(spec)
		if tracker.HeardReport(document); (tracker.report != nil) != one.taken {
			t.Errorf("%s: taken: %t", document, !one.taken)
		}
	}
}

// TestWaiting: what is tried again is told, and for how long, until it has worked or something else is done.
func TestWaiting(t *testing.T) {
	tracker := NewTracker(migration.Spec{})
	waits := func(state migration.State, want string) {
		t.Helper()
		p := tracker.Progress(migration.Record{State: state}, time.Now().Add(time.Minute))
		if p.Waiting != want || (p.WaitingSeconds > 59) != (want != "") {
			t.Errorf("%s: %q for %v s, want %q", state, p.Waiting, p.WaitingSeconds, want)
		}
	}
	tracker.Begin(migration.StepDump)
	tracker.Failed(migration.StepDump, "no room")
	waits(migration.Forward, "")
	tracker.Begin(migration.UndoFreeze)
	waits(migration.Undoing, "")
	tracker.Failed(migration.UndoFreeze, "no engine")
	tracker.Failed(migration.StepDump, "late")
	waits(migration.Undoing, "no engine")
	tracker.Begin(migration.UndoFreeze)
	waits(migration.Undoing, "no engine")
	tracker.Failed(migration.UndoFreeze, "still no engine")
	waits(migration.Undoing, "still no engine")
	waits(migration.InDoubt, "")
	tracker.Begin(migration.UndoRounds)
	waits(migration.Undoing, "")
	tracker.Begin(migration.StepPush)
	tracker.Failed(migration.StepPush, "no link")
	waits(migration.Committed, "")
	tracker.Begin(migration.StepDestroy)
	tracker.Failed(migration.StepDestroy, "no engine")
	waits(migration.Committed, "no engine")
}

// TestWaitingIsAskedAtAnyTime: whoever asks what is tried again does so while steps begin and fail. The race
// detector sees whether the answer is of one moment.
func TestWaitingIsAskedAtAnyTime(t *testing.T) {
	tracker := NewTracker(migration.Spec{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			tracker.Begin(migration.UndoFreeze)
			tracker.Failed(migration.UndoFreeze, "no engine")
			tracker.Begin(migration.UndoRounds)
		}
	}()
	for range 100 {
		if what, _ := tracker.Waiting(migration.Undoing, time.Now()); what != "" && what != "no engine" {
			t.Errorf("it waits for %q", what)
		}
	}
	<-done
}

// FuzzHeardReport: a report of another node is kept only by the target of its migration, and can be
// shown and kept then.
func FuzzHeardReport(f *testing.F) {
	const id = "0000000000000001"
	f.Add([]byte(`{"migration":"` + id + `","mode":"cold","phases":[{"name":"freeze","seconds":1e300}]}`))
	f.Add([]byte(`{"migration":"` + id + `","mode":"cold","bytes":{"memory":-1}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, document []byte) {
		one := NewTracker(migration.Spec{ID: id, Side: migration.Target, Mode: migration.Cold})
		one.HeardReport(document)
		if one.report == nil {
			return
		}
		if one.report.Migration != id {
			t.Errorf("the report of %q is kept", one.report.Migration)
		}
		if _, err := json.Marshal(one.Finish(migration.Record{Spec: one.Spec},
			migration.Finish{Result: migration.Moved}, nil)); err != nil {
			t.Errorf("it cannot be kept: %v", err)
		}
	})
}
