package migration

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// someEvents has one event of each kind, for both sides.
func someEvents() []Event {
	events := []Event{
		Start{}, FinalMarker{}, Ready{}, Asked{}, Asked{Abort: true}, PeerLost{}, PeerBack{}, Cancel{},
		Timeout{},
		Tick{},
		Arrived{Outcome: Ran}, Arrived{Outcome: NeverRan}, Arrived{},
		Resolve{RunsAt: Source}, Resolve{RunsAt: Target}, Resolve{},
		StepDone{Step: StepCheck}, StepFailed{Step: StepCheck},
	}
	for _, s := range Steps(Cold) {
		events = append(events, StepDone{Step: s.Name}, StepFailed{Step: s.Name}, StepDone{Step: s.Undo},
			StepFailed{Step: s.Undo})
	}
	for _, k := range []MessageKind{
		KindReserve, KindAbort, KindConfirm, KindOverruled, KindReserved, KindPrepared, KindRunning,
		KindNeverRan,
		KindPending, "", "nonsense",
	} {
		events = append(events, Received{Message{Kind: k}})
	}
	return events
}

// FuzzResume: a machine reads nothing but a journal. Whatever the journal holds, and whatever happens then,
// nothing panics, and an accepted record can be written and read again.
func FuzzResume(f *testing.F) {
	for _, side := range []Side{Source, Target} {
		m := mustNew(side, Cold)
		for _, event := range someEvents() {
			if _, err := m.Step(event); err == nil {
				data, err := json.Marshal(m.Record())
				if err != nil {
					f.Fatal(err)
				}
				f.Add(data, []byte{1, 2, 3, 9, 20, 40, 55})
			}
		}
	}
	events := someEvents()
	f.Fuzz(func(t *testing.T, data, script []byte) {
		var rec Record
		if json.Unmarshal(data, &rec) != nil {
			return
		}
		m, _, err := Resume(rec)
		if err != nil {
			return
		}
		for _, b := range script {
			actions, err := m.Step(events[int(b)%len(events)])
			if err != nil && !errors.Is(err, ErrUnexpected) && !errors.Is(err, ErrTooLate) &&
				!errors.Is(err, ErrNotInDoubt) {
				t.Fatalf("error without a kind: %v", err)
			}
			for _, action := range actions {
				if j, ok := action.(Journal); ok {
					checkRoundTrip(t, j.Record)
				}
			}
		}
	})
}

func checkRoundTrip(t *testing.T, rec Record) {
	t.Helper()
	data, err := json.Marshal(rec)
	if err != nil {
		return // Times that JSON cannot write.
	}
	var again Record
	if err := json.Unmarshal(data, &again); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	if _, _, err := Resume(again); err != nil {
		t.Fatalf("a journal that was written is not accepted: %v\n%s", err, data)
	}
}

func TestResumeRefuses(t *testing.T) {
	good := mustNew(Source, Cold).Record()
	for name, test := range map[string]struct {
		change func(*Record)
		want   string
	}{
		"version":      {func(r *Record) { r.Version, r.ReadableFrom = 2, 2 }, "from format 2 on"},
		"old version":  {func(r *Record) { r.Version, r.ReadableFrom = 2, 0 }, "from format 2 on"},
		"no version":   {func(r *Record) { r.Version = 0 }, "format 0"},
		"side":         {func(r *Record) { r.Spec.Side = "middle" }, `side "middle"`},
		"mode":         {func(r *Record) { r.Spec.Mode = Auto }, "mode auto is for a request"},
		"id":           {func(r *Record) { r.Spec.ID = "../../etc" }, "migration id"},
		"state":        {func(r *Record) { r.State = Running }, `state "running"`},
		"unknown step": {func(r *Record) { r.Begun = []StepName{"fly"} }, `step "fly"`},
		"order":        {func(r *Record) { r.Begun = []StepName{StepHold, StepExamine} }, `step "examine"`},
		"doubled":      {func(r *Record) { r.Begun = []StepName{StepHold, StepHold} }, `step "hold"`},
	} {
		t.Run(name, func(t *testing.T) {
			rec := good.clone()
			test.change(&rec)
			if _, _, err := Resume(rec); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// TestResumeNewer: after a rollback, a machine carries on from a journal of the next release if the journal
// allows it.
func TestResumeNewer(t *testing.T) {
	rec := mustNew(Source, Cold).Record()
	rec.Version, rec.ReadableFrom = recordVersion+1, recordVersion
	m, _, err := Resume(rec)
	if err != nil {
		t.Fatal(err)
	}
	if again := m.Record(); again.Version != recordVersion || again.ReadableFrom != readableFrom {
		t.Errorf("written again as format %d, readable from %d", again.Version, again.ReadableFrom)
	}
}

// TestRecordsAreCopies: a record that the agent holds must not change when the machine goes on.
func TestRecordsAreCopies(t *testing.T) {
	m := mustNew(Source, Cold)
	actions, err := m.Step(Start{})
	if err != nil {
		t.Fatal(err)
	}
	journal, ok := actions[0].(Journal)
	if !ok {
		t.Fatalf("first action is %T", actions[0])
	}
	before := journal.Record.clone()
	for _, event := range []Event{
		StepDone{Step: StepExamine}, Received{Message{Kind: KindReserved}}, Cancel{},
		StepFailed{Step: StepStage},
	} {
		if _, err := m.Step(event); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(before, journal.Record) {
		t.Errorf("the record changed: %+v, was %+v", journal.Record, before)
	}
}

// TestMessagesAreBounded: the peer's texts end up in journals and reports, so they are bounded.
func TestMessagesAreBounded(t *testing.T) {
	m := mustNew(Source, Cold)
	huge := strings.Repeat("\xff", 1<<20)
	problems := make([]Problem, 5000)
	for i := range problems {
		problems[i] = Problem{What: huge, Why: huge, Remedy: huge}
	}
	for _, event := range []Event{
		Start{}, StepDone{Step: StepExamine},
		Received{Message{Kind: KindNeverRan, Error: huge, Problems: problems, Spans: make([]Span, 100000)}},
	} {
		if _, err := m.Step(event); err != nil {
			t.Fatal(err)
		}
	}
	rec := m.Record()
	if rec.State != Done || len(rec.Error) > 2*maxText || len(rec.Problems) > maxProblems ||
		len(rec.PeerSpans) > maxSpans {
		t.Errorf("%s, %d bytes of error, %d problems, %d spans", rec.State, len(rec.Error), len(rec.Problems),
			len(rec.PeerSpans))
	}
}

// TestBanned: a migration that is unknown to the target is refused for ever.
func TestBanned(t *testing.T) {
	rec, err := Banned("0123456789abcdef", "a", "b", start)
	if err != nil {
		t.Fatal(err)
	}
	m, actions, err := Resume(rec)
	if err != nil || len(actions) != 1 {
		t.Fatalf("%v, %v", actions, err)
	}
	for _, event := range []Event{
		Received{Message{Kind: KindReserve}}, Asked{}, Asked{Abort: true},
		Received{Message{Kind: KindConfirm}},
	} {
		actions, err := m.Step(event)
		if err != nil || len(actions) != 1 || !strings.Contains(showAction(actions[0]), "never-ran") {
			t.Errorf("%T: %v, %v", event, actions, err)
		}
	}
	if _, err := Banned("x", "a", "b", start); err == nil {
		t.Error("a wrong id was accepted")
	}
}

// TestRestoreIsSplit: the report shows which part of the restore the record and the resume took.
func TestRestoreIsSplit(t *testing.T) {
	m := mustNew(Target, Cold)
	for _, event := range []Event{
		Received{Message{Kind: KindReserve}}, StepDone{Step: StepReserve},
		StepDone{Step: StepArrive}, StepDone{Step: StepReceive}, Ready{At: ms(15)},
		StepDone{Step: StepRestore, Began: ms(0), Ended: ms(20)},
	} {
		if _, err := m.Step(event); err != nil {
			t.Fatal(err)
		}
	}
	rec := m.Record()
	if want := []Span{span("restore", 0, 15), span("resume", 15, 20)}; !reflect.DeepEqual(rec.Spans, want) {
		t.Errorf("spans %v, want %v", rec.Spans, want)
	}
	if !rec.Resumed.Equal(ms(20)) {
		t.Errorf("resumed %v", rec.Resumed)
	}
}
