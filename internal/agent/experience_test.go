package agent

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/stream"
)

func TestExperience(t *testing.T) {
	var e experience
	report := migration.Report{Mode: migration.PreCopy, Link: migration.LinkSeen{RTTSeconds: 0.02}}
	e.learn("b", "web", report, predict.Parts{Begin: 0.3, Freeze: 0.05}, 1e8)
	var in predict.Input
	if e.of("b", "web", &in); in.Past[migration.PreCopy].Freeze != 0.05 || !in.Past[migration.PreCopy].Same {
		t.Errorf("of the container: %+v", in.Past)
	}
	if e.of("b", "db", &in); in.Past[migration.PreCopy].Freeze != 0 || in.Past[migration.PreCopy].Begin != 0.3 {
		t.Errorf("of another container: %+v, want all but its freeze", in.Past)
	}
	if e.of("c", "web", &in); len(in.Past) != 0 {
		t.Errorf("of a way that nothing has gone: %+v", in.Past)
	}
	for i := range 2 * mostLessons {
		e.learn("b", fmt.Sprint(i), report, predict.Parts{}, 1e8)
	}
	if len(e.all) > mostLessons {
		t.Errorf("%d are kept", len(e.all))
	}
}

// TestPaceOfOthers: a container of which only the beginning is known moves at the pace of others,
// and one of which it is known at its own.
func TestPaceOfOthers(t *testing.T) {
	var e experience
	slow := migration.Report{Mode: migration.PreCopy, Rounds: []migration.Round{{RawBytes: 100e6, SentBytes: 100e6, Seconds: 10}}}
	e.learn("b", "large", slow, predict.Parts{}, 1e9)
	e.learn("b", "tiny", migration.Report{Mode: migration.Cold}, predict.Parts{}, 1e9)
	var in predict.Input
	if e.of("b", "tiny", &in); in.Pace.Rounds != 1e-7 {
		t.Errorf("of one that was too small to tell: %+v", in.Pace)
	}
	e.learn("b", "quick", migration.Report{Mode: migration.PreCopy, Rounds: []migration.Round{{RawBytes: 100e6, SentBytes: 100e6, Seconds: 0.8}}}, predict.Parts{}, 1e9)
	if e.of("b", "quick", &in); in.Pace.Rounds != 0 {
		t.Errorf("of one that only the link held up: %+v", in.Pace)
	}
}

// TestBandwidth: what a transfer has shown counts until probes agree that the link is another one.
func TestBandwidth(t *testing.T) {
	p, now := &peer{}, time.Now()
	probe := func(bits float64, atLeast bool) {
		p.noteProbe(stream.Link{BandwidthBitsPerSecond: bits, AtLeast: atLeast}, now)
	}
	for _, step := range []struct {
		what string
		do   func()
		want float64
	}{
		{"our own limit", func() { p.noteProbe(stream.Link{BandwidthBitsPerSecond: 5e6, Limited: true}, now) }, 5e6},
		{"a probe", func() { probe(60e6, false) }, 60e6},
		{"our own limits", func() {
			for range 2 * mostBandwidths {
				p.noteProbe(stream.Link{BandwidthBitsPerSecond: p.bandwidth / 3, Limited: true}, now)
			}
		}, 60e6},
		{"a transfer", func() { p.noteTransfer(95e6, true, now) }, 95e6},
		{"short probes", func() { probe(60e6, true); probe(60e6, true) }, 95e6},
		{"probes that are wrong by less than a factor", func() { probe(60e6, false); probe(70e6, false); probe(120e6, false) }, 95e6},
		{"a transfer that something else held back", func() { p.noteTransfer(30e6, false, now) }, 95e6},
		{"one that got more through", func() { p.noteTransfer(97e6, false, now); p.noteTransfer(97e6, false, now) }, 97e6},
		{"one probe of another link", func() { probe(20e6, false) }, 97e6},
		{"two of them", func() { probe(20e6, false) }, 20e6},
		{"and back", func() { probe(95e6, false); probe(95e6, false) }, 95e6},
		{"a transfer over it", func() { p.noteTransfer(96e6, true, now) }, 96e6},
		{"one that met other traffic", func() { p.noteTransfer(60e6, true, now) }, 96e6},
		{"one over another link", func() { p.noteTransfer(20e6, true, now) }, 20e6},
		{"a probe of that", func() { probe(22e6, false) }, 20e6},
	} {
		step.do()
		if p.bandwidth != step.want {
			t.Fatalf("%s: %.0f Mbit/s, want %.0f", step.what, p.bandwidth/1e6, step.want/1e6)
		}
	}
}

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
		tracker := newTracker(spec)
		if tracker.heardReport(document); (tracker.report != nil) != one.taken {
			t.Errorf("%s: taken: %t", document, !one.taken)
		}
	}
}

// TestLimitedLinkIsNotMeasured: what a limit of ours has let through is not taken for what the link
// was measured to carry.
func TestLimitedLinkIsNotMeasured(t *testing.T) {
	known := &peer{}
	p := &peers{known: map[string]*peer{"b": known}}
	if way := p.wayTo("b"); way.Seen != 0 {
		t.Errorf("nothing is known, and that is %.0f s old", way.Seen)
	}
	known.noteProbe(stream.Link{BandwidthBitsPerSecond: 5e6, Limited: true}, time.Now())
	if way := p.wayTo("b"); way.Seen <= probeEvery.Seconds() {
		t.Errorf("a limit of ours was measured %.0f s ago", way.Seen)
	}
	known.noteProbe(stream.Link{BandwidthBitsPerSecond: 50e6}, time.Now())
	if way := p.wayTo("b"); way.Seen > 1 {
		t.Errorf("what was just measured is %.0f s old", way.Seen)
	}
}
