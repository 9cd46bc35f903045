package migration

import (
	"strings"
	"testing"
	"time"
)

// TestMayDeny: when a target may say that a container never ran there.
func TestMayDeny(t *testing.T) {
	const own, other = "aa-0123", "bb-4567"
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		name     string
		evidence Evidence
		why      string // a part of it; empty: may deny
	}{
		{"as journaled", Evidence{own, own, true, Absent, since}, ""},
		{"as journaled, what came is still there", Evidence{own, own, true, Standing, since}, ""},
		{"as journaled, and the engine is away", Evidence{own, own, true, Unlooked, since}, ""},
		{"a journal that was put back", Evidence{own, own, true, RunsThere, since},
			"running since 2026-01-02T03:04:05Z"},
		{"a journal that was copied", Evidence{other, own, true, Absent, since},
			"its state is aa-0123, not bb-4567"},
		{"it never came", Evidence{own, own, false, Absent, since}, ""},
		{"the journal was lost", Evidence{own, own, false, RunsThere, time.Time{}}, "which is running;"},
		{"the journal was lost, and the container was stopped",
			Evidence{own, own, false, Standing, time.Time{}}, "which is there"},
		{"the journal was lost, and the engine is away", Evidence{own, own, false, Unlooked, since},
			"does not say"},
		{"the state was lost", Evidence{other, own, false, Absent, since}, "lost, restored or copied"},
		{"the state was lost, and the container runs", Evidence{other, own, false, RunsThere, since},
			"of that ID: running since"},
		{"an old journal at the source", Evidence{"", own, false, Absent, since}, ""},
		{"an old journal at the source, and the container runs", Evidence{"", own, false, RunsThere, since},
			"which is running"},
	} {
		why, may := MayDeny(test.evidence)
		if may != (test.why == "") || !strings.Contains(why, test.why) {
			t.Errorf("%s: may %t, why %q; want %q", test.name, may, why, test.why)
		}
	}
}

// inDoubt returns a source that is in doubt, and has noted which state took the reservation.
func inDoubt(t *testing.T, incarnation string) *Machine {
	t.Helper()
	m := mustNew(Source, Cold)
	m.rec.State, m.rec.Final, m.rec.Incarnation = InDoubt, true, incarnation
	m.rec.Begun = []StepName{StepHold, StepFreeze, StepSend}
	m, _, err := Resume(m.rec)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestDoubtedWord: a source in doubt believes only the state that took the reservation.
func TestDoubtedWord(t *testing.T) {
	for _, test := range []struct {
		name, noted string
		said        Message
		want        State
	}{
		{"never-ran", "aa", Message{Kind: KindNeverRan, Incarnation: "aa"}, Undoing},
		{"running", "aa", Message{Kind: KindRunning, Incarnation: "aa"}, Committed},
		{"unknown", "aa", Message{Kind: KindUnknown, Incarnation: "aa", Error: "no idea"}, InDoubt},
		{"never-ran by another", "aa", Message{Kind: KindNeverRan, Incarnation: "bb"}, InDoubt},
		{"never-ran by nobody", "aa", Message{Kind: KindNeverRan}, InDoubt},
		{"running by another", "aa", Message{Kind: KindRunning, Incarnation: "bb"}, InDoubt},
		{"never-ran, nothing noted", "", Message{Kind: KindNeverRan, Incarnation: "bb"}, Undoing},
		{"running, nothing noted", "", Message{Kind: KindRunning}, Committed},
		{"unknown, nothing noted", "", Message{Kind: KindUnknown, Error: strings.Repeat("x", 2*maxText)},
			InDoubt},
	} {
		m := inDoubt(t, test.noted)
		_, err := m.Step(Received{test.said})
		if err != nil || m.rec.State != test.want || (m.Alarm() != "") != (test.want == InDoubt) {
			t.Errorf("%s: %s, alarm %q, error %v; want %s", test.name, m.rec.State, m.Alarm(), err, test.want)
		}
		if err := m.rec.check(m.steps); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if test.want == InDoubt {
			if actions, _ := m.Step(Tick{}); len(actions) != 1 {
				t.Errorf("%s: it asks no more: %v", test.name, actions)
			}
			if _, err := m.Step(Received{Message{Kind: KindRunning, Incarnation: test.noted}}); err != nil ||
				m.Alarm() != "" {
				t.Errorf("%s, then known: %v, alarm %q", test.name, err, m.Alarm())
			}
		}
	}
}

// TestDoubtedAfterCommit: a decision after the commit does not use the word of a state that did not take
// the container, because that state may be on a machine without the container.
func TestDoubtedAfterCommit(t *testing.T) {
	for incarnation, want := range map[string]Word{"aa": WordElse, "bb": WordUnknown, "": WordUnknown} {
		m := inDoubt(t, "aa")
		if _, err := m.Step(Received{Message{Kind: KindRunning, Incarnation: "aa"}}); err != nil ||
			m.rec.State != Committed {
			t.Fatalf("it is %s: %v", m.rec.State, err)
		}
		if got := m.WordOf(Message{Kind: KindRunning, Incarnation: incarnation}); got != want {
			t.Errorf("running, by %q: %q, want %q", incarnation, got, want)
		}
	}
}

// TestReservedIncarnation: the incarnation is durable before the final marker leaves.
func TestReservedIncarnation(t *testing.T) {
	m := mustNew(Source, Cold)
	var durable Record
	step := func(event Event) {
		t.Helper()
		actions, err := m.Step(event)
		if err != nil {
			t.Fatal(err)
		}
		for _, action := range actions {
			if j, ok := action.(Journal); ok {
				durable = j.Record
			}
		}
	}
	step(Start{})
	for m.busy != StepSend {
		switch s := m.steps[m.at]; {
		case m.busy != "":
			step(StepDone{Step: m.busy})
		default:
			step(Received{Message{Kind: s.Answer, Incarnation: "aa"}})
		}
	}
	step(FinalMarker{})
	if !durable.Final || durable.Incarnation != "aa" {
		t.Errorf("journal: final %t, incarnation %q", durable.Final, durable.Incarnation)
	}
}

// TestDeniesRun lists the records of a target according to which its engine cannot run the container.
func TestDeniesRun(t *testing.T) {
	before, resumes := []StepName{StepReserve, StepArrive, StepReceive},
		[]StepName{StepReserve, StepArrive, StepReceive, StepRestore}
	spec := testSpec(Target, Cold)
	for name, one := range map[string]struct {
		record Record
		want   bool
	}{
		"begun":     {Record{Spec: spec, State: Forward, Begun: before}, true},
		"undoing":   {Record{Spec: spec, State: Undoing, Begun: before, Decision: NeverRan}, true},
		"restoring": {Record{Spec: spec, State: Forward, Begun: resumes}, false},
		"running":   {Record{Spec: spec, State: Running, Begun: resumes, Decision: Ran}, false},
		"being fenced": {Record{Spec: spec, State: Undoing, Begun: before, Decision: NeverRan,
			Overruled: true}, false},
		"over":               {Record{Spec: spec, State: Done, Decision: NeverRan}, false},
		"that of the source": {Record{Spec: testSpec(Source, Cold), State: Forward}, false},
	} {
		if got := one.record.DeniesRun(); got != one.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestNeverRuns lists the records of a target that has told the source, or may tell it, that the container
// does not run there.
func TestNeverRuns(t *testing.T) {
	before, resumes := []StepName{StepReserve, StepArrive, StepReceive},
		[]StepName{StepReserve, StepArrive, StepReceive, StepRestore}
	spec := testSpec(Target, Cold)
	for name, one := range map[string]struct {
		record Record
		want   bool
	}{
		"begun":            {Record{Spec: spec, State: Forward, Begun: before}, false},
		"undoing":          {Record{Spec: spec, State: Undoing, Begun: before, Decision: NeverRan}, true},
		"restored, failed": {Record{Spec: spec, State: Undoing, Begun: resumes, Decision: NeverRan}, true},
		"being fenced": {Record{Spec: spec, State: Undoing, Begun: resumes, Decision: NeverRan,
			Overruled: true}, false},
		"fenced": {Record{Spec: spec, State: Undoing, Begun: before, Decision: NeverRan,
			Overruled: true}, true},
		"running": {Record{Spec: spec, State: Running, Begun: resumes, Decision: Ran}, false},
		"that of the source": {Record{Spec: testSpec(Source, Cold), State: Undoing, Decision: NeverRan},
			false},
	} {
		if got := one.record.NeverRuns(); got != one.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
