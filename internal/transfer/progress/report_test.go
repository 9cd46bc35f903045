package progress

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

func sourceTracker() *Tracker {
	return NewTracker(migration.Spec{ID: "m", Mode: migration.PreCopy, Side: migration.Source})
}

func (t *Tracker) told(ended bool) migration.Report {
	return t.Report(migration.Record{Spec: t.Spec}, ended)
}

// TestFinalBytesAreShared: the pages of the freeze leave when its rounds have ended, so what they took on the
// wire is divided among these by their frames, and is not counted as sent before the freeze.
func TestFinalBytesAreShared(t *testing.T) {
	tracker := sourceTracker()
	tracker.Round(memory.RoundStats{Number: 1, Pages: 10, SentBytes: 1000}, pipeline.Stats{}, 0)
	tracker.Precopied(1000)
	tracker.Round(memory.RoundStats{Number: 2, Pages: 3, SentBytes: 300, Final: true}, pipeline.Stats{}, 0)
	tracker.Round(memory.RoundStats{Number: 3, Pages: 1, SentBytes: 100, Final: true}, pipeline.Stats{}, 0)
	tracker.Counted(Carried{Pages: 1200, Known: 5, State: 70, Files: 9, Layers: 4, Metadata: 2, StateRaw: 80})
	report := tracker.told(false)
	for at, want := range []int64{1000, 150, 50} {
		if got := report.Rounds[at].SentBytes; got != want {
			t.Errorf("round %d sent %d bytes, want %d", at, got, want)
		}
	}
	bytes := report.Bytes
	if bytes.MemoryPrecopy != 1005 || bytes.MemoryFinal != 270 || bytes.FilesFinal != 9 ||
		bytes.MemoryRaw != 80+14*int64(memory.PageSize()) {
		t.Errorf("bytes are %+v", bytes)
	}
}

// TestRoundThatOnlyLooked is none for the report.
func TestRoundThatOnlyLooked(t *testing.T) {
	tracker := sourceTracker()
	tracker.Round(memory.RoundStats{Final: true}, pipeline.Stats{}, 0)
	if tracker.Rounds() != 0 {
		t.Error("a round that found nothing in the freeze is told")
	}
	for range 2 * maxRoundsKept {
		tracker.Round(memory.RoundStats{Pages: 1}, pipeline.Stats{}, 0)
	}
	if n := tracker.Rounds(); n != maxRoundsKept {
		t.Errorf("%d rounds are told, want %d", n, maxRoundsKept)
	}
}

// TestThrottleSteps: a step lasts until the next one, or until the container may use all again.
func TestThrottleSteps(t *testing.T) {
	tracker, at := sourceTracker(), time.Unix(100, 0)
	tracker.Throttled(2, at)
	tracker.Throttled(1, at.Add(3*time.Second))
	tracker.Throttled(0, at.Add(4*time.Second))
	tracker.Throttled(0, at.Add(9*time.Second)) // it is not throttled
	steps := tracker.told(false).Throttles
	if len(steps) != 2 || steps[0].Seconds != 3 || steps[1].Seconds != 1 || steps[1].CPUs != 1 {
		t.Errorf("steps are %+v", steps)
	}
}

// TestDecisions are told once each, in their order, and not more than fit a report.
func TestDecisions(t *testing.T) {
	tracker := sourceTracker()
	tracker.Chose(predict.Choice{Why: []string{"a"}, Unmet: []string{"b"}}, time.Second)
	tracker.MemoryGrows(growthWorthTelling - 1)
	tracker.Decided("auto: a")
	for i := range 2 * maxDecisions {
		tracker.Decided(strings.Repeat("x", i))
	}
	report := tracker.told(false)
	told := report.Decisions
	if len(told) != maxDecisions || told[0] != "auto: a" || told[1] != "auto: cannot be met: b" ||
		told[3] != "" || report.Requested != migration.Auto {
		t.Errorf("%d decisions, the first are %q", len(told), told[:4])
	}
}

// TestPushIsAsked: while remote pages follow, the report and the progress are those of the push now; when the
// migration has ended they no longer change.
func TestPushIsAsked(t *testing.T) {
	tracker, left := sourceTracker(), int64(7)
	tracker.Pushes(func() *migration.Push { return &migration.Push{LeftPages: left} },
		func() PushBytes { return PushBytes{Urgent: 1, Push: 2, Raw: 3} })
	record := migration.Record{Spec: tracker.Spec, State: migration.Running}
	if p := tracker.Progress(record, time.Now()); p.Push.LeftPages != 7 ||
		p.Phase != string(migration.StepPush) {
		t.Errorf("progress is %+v", p)
	}
	left = 0
	kept := tracker.Finish(record, migration.Finish{Result: migration.Moved}, []string{"a volume"})
	left = 5
	for _, report := range []migration.Report{kept, tracker.told(true), tracker.told(false)} {
		if report.Push.LeftPages != 0 || report.Bytes.MemoryFaulted != 1 || report.Bytes.MemoryPushed != 2 {
			t.Errorf("the report tells %+v, %+v", report.Push, report.Bytes)
		}
	}
	if len(kept.Notes) != 1 || kept.Result != migration.Moved {
		t.Errorf("the report is %+v", kept)
	}
}

// TestKeptReport: an agent that was started again tells what the earlier one has kept, and an unreadable file
// is as good as none.
func TestKeptReport(t *testing.T) {
	dir, tracker := t.TempDir(), sourceTracker()
	tracker.Load(dir)
	for _, content := range []string{"{", `{"migration":"m","total_seconds":3}`} {
		if err := os.WriteFile(filepath.Join(dir, "report.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		tracker.Load(dir)
	}
	record := migration.Record{Spec: tracker.Spec}
	if report := tracker.Finish(record, migration.Finish{}, nil); report.TotalSeconds != 3 {
		t.Errorf("the report is %+v", report)
	}
}

// TestTargetPrefersTheSourcesReport, and a report that is too long is none.
func TestTargetPrefersTheSourcesReport(t *testing.T) {
	spec := migration.Spec{ID: "m", Mode: migration.PreCopy, Side: migration.Target}
	tracker := NewTracker(spec)
	long, err := json.Marshal(migration.Report{Migration: "m", Mode: spec.Mode,
		Notes: []string{strings.Repeat("x", maxReport)}})
	if err != nil {
		t.Fatal(err)
	}
	tracker.HeardReport(long)
	tracker.HeardReport(nil)
	record := migration.Record{Spec: spec}
	if report := tracker.Report(record, true); len(report.Notes) > 0 {
		t.Errorf("there is a report: %+v", report)
	}
	heard, err := json.Marshal(migration.Report{Migration: "m", Mode: spec.Mode, TotalSeconds: 9})
	if err != nil {
		t.Fatal(err)
	}
	tracker.HeardReport(heard)
	report := tracker.Finish(record, migration.Finish{Result: migration.Moved}, nil)
	if report.TotalSeconds != 9 || report.Result != migration.Moved {
		t.Errorf("the report is %+v", report)
	}
}
