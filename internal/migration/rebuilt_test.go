package migration

import (
	"slices"
	"testing"
)

// TestRebuilt rebuilds the record of a lost journal, in each mode, and continues from it with each answer
// of the target.
func TestRebuilt(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Cold, PreCopy, PostCopy, Hybrid, Restart} {
		spec := mustNew(Source, mode).Record().Spec
		rec, err := Rebuilt(spec, "it was lost")
		if err != nil {
			t.Fatal(err)
		}
		for kind, want := range map[MessageKind]State{KindNeverRan: Undoing, KindRunning: Committed,
			KindPending: InDoubt} {
			m, actions, err := Resume(rec)
			if err != nil {
				t.Fatalf("%s: %v", mode, err)
			}
			if !slices.ContainsFunc(actions, func(a Action) bool { _, asks := a.(AskOutcome); return asks }) {
				t.Errorf("%s: nobody is asked: %+v", mode, actions)
			}
			actions, err = m.Step(Received{Message{Kind: kind}})
			if err != nil || m.Record().State != want {
				t.Errorf("%s, %s: %s, %v", mode, kind, m.Record().State, err)
			}
			first := map[MessageKind]StepName{KindNeverRan: UndoFreeze, KindRunning: StepForward}[kind]
			if mode == Restart && kind == KindNeverRan {
				first = UndoStop
			}
			if got := firstOf(actions); got != first {
				t.Errorf("%s, %s: first comes %q, want %q", mode, kind, got, first)
			}
		}
	}
	if _, err := Rebuilt(Spec{}, ""); err == nil {
		t.Error("a record without a migration")
	}
}

// firstOf returns the first step or undo that actions begin.
func firstOf(actions []Action) StepName {
	for _, action := range actions {
		switch a := action.(type) {
		case Do:
			return a.Step
		case Undo:
			return a.Step
		}
	}
	return ""
}
