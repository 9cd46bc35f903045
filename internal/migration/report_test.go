package migration

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ms(n float64) time.Time { return start.Add(time.Duration(n * float64(time.Millisecond))) }

func span(phase string, from, to float64) Span {
	return Span{Phase: phase, Start: ms(from), End: ms(to)}
}

// ahead is how far the target's clock is before the source's in these tests.
const ahead = 90 * time.Second

func onTarget(spans ...Span) []Span {
	for i := range spans {
		spans[i].Start, spans[i].End = spans[i].Start.Add(ahead), spans[i].End.Add(ahead)
	}
	return spans
}

func movedRecord() Record {
	spec := testSpec(Source, Cold)
	spec.Started = start
	return Record{
		Version: recordVersion, Spec: spec, State: Done, Result: Moved, Decision: Ran,
		Resumed: ms(190).Add(ahead),
		Spans: []Span{
			span("examine", 0.1, 5), span("stage", 20, 50), span("prepare", 80, 100),
			span("hold", 100.2, 102),
			span("freeze", 102.1, 110), span("dump", 110.1, 150), span("transfer", 150.1, 165),
			span("forward", 201, 203), span("destroy", 203, 220), span("cleanup", 220, 230),
		},
		PeerSpans: onTarget(span("reserve", 8, 17), span("arrive", 60, 78), span("receive", 78.5, 170),
			span("restore", 170.1, 185), span("resume", 185, 190)),
	}
}

func TestReportPhases(t *testing.T) {
	report := NewReport(movedRecord(), Facts{Frozen: ms(108), Ahead: ahead, AheadMay: time.Millisecond},
		ms(230.9))
	var got strings.Builder
	for _, p := range report.Phases {
		fmt.Fprintf(&got, "%s %s %.1f %.1f %t\n", p.Name, p.Node, 1000*p.StartSeconds, 1000*p.Seconds,
			p.Downtime)
	}
	const want = `wait a 0.0 0.1 false
examine a 0.1 4.9 false
wait a 5.0 3.0 false
reserve b 8.0 9.0 false
wait a 17.0 3.0 false
stage a 20.0 30.0 false
wait a 50.0 10.0 false
arrive b 60.0 18.0 false
wait a 78.0 2.0 false
prepare a 80.0 20.2 false
hold a 100.2 1.9 false
stop a 102.1 5.9 false
freeze a 108.0 2.1 true
dump a 110.1 40.0 true
transfer a 150.1 14.9 true
receive b 165.0 5.1 true
restore b 170.1 14.9 true
resume b 185.0 5.0 true
wait a 190.0 11.0 false
forward a 201.0 2.0 false
destroy a 203.0 17.0 false
cleanup a 220.0 10.9 false
`
	if got.String() != want {
		t.Errorf("phases:\n%s\nwant:\n%s", got.String(), want)
	}
	checkSums(t, report)
	for what, pair := range map[string][2]float64{
		"downtime": {report.DowntimeSeconds, 0.082}, "handoff": {report.HandoffSeconds, 0.190},
		"total": {report.TotalSeconds, 0.2309}, "error": {report.DowntimeErrorSeconds, 0.001},
	} {
		if math.Abs(pair[0]-pair[1]) > 1e-9 {
			t.Errorf("%s is %g, want %g", what, pair[0], pair[1])
		}
	}
}

// checkSums checks that phases neither overlap nor leave gaps, and checks their sums.
func checkSums(t *testing.T, r Report) {
	t.Helper()
	var total, down, at float64
	for i, p := range r.Phases {
		if p.Seconds < 0 || math.Abs(p.StartSeconds-at) > 1e-6 {
			t.Errorf("phase %d %s begins at %g and lasts %g, after %g", i, p.Name, p.StartSeconds, p.Seconds,
				at)
		}
		at = p.StartSeconds + p.Seconds
		total += p.Seconds
		if p.Downtime {
			down += p.Seconds
		}
	}
	if math.Abs(total-r.TotalSeconds) > 1e-6 {
		t.Errorf("phases add up to %g, total is %g", total, r.TotalSeconds)
	}
	if math.Abs(down-r.DowntimeSeconds) > 1e-6 {
		t.Errorf("phases of the downtime add up to %g, downtime is %g", down, r.DowntimeSeconds)
	}
}

// TestReportAddsUpAlways: the phases add up, whatever the clocks say.
func TestReportAddsUpAlways(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	names := []string{"hold", "freeze", "dump", "transfer", "receive", "restore", "forward"}
	some := func() []Span {
		var spans []Span
		for range random.IntN(12) {
			from := random.Float64()*400 - 100
			spans = append(spans, span(names[random.IntN(len(names))], from, from+random.Float64()*200-20))
		}
		return spans
	}
	for range 2000 {
		rec := movedRecord()
		rec.Spans, rec.PeerSpans = some(), some()
		rec.Resumed = ms(random.Float64()*500 - 100)
		facts := Facts{Ahead: time.Duration(random.IntN(200)-100) * time.Millisecond}
		if random.IntN(3) > 0 {
			facts.Frozen = ms(random.Float64()*500 - 100)
		}
		checkSums(t, NewReport(rec, facts, ms(random.Float64()*400-20)))
		if t.Failed() {
			t.Fatalf("spans %v\npeer %v\nfacts %+v", rec.Spans, rec.PeerSpans, facts)
		}
	}
}

func TestReportOfOthers(t *testing.T) {
	rolledBack := movedRecord()
	rolledBack.Result, rolledBack.Error, rolledBack.Resumed = RolledBack, "dump failed: no space left",
		time.Time{}
	doubt := rolledBack
	doubt.State = InDoubt
	target := movedRecord()
	target.Spec.Side = Target
	target.Spans, target.PeerSpans = target.PeerSpans, nil
	for name, test := range map[string]struct {
		rec    Record
		result Result
	}{"rolled back": {rolledBack, RolledBack}, "in doubt": {doubt, ResultDoubt}, "target": {target, Moved}} {
		t.Run(name, func(t *testing.T) {
			report := NewReport(test.rec, Facts{}, ms(300))
			checkSums(t, report)
			if report.Result != test.result || report.DowntimeSeconds != 0 {
				t.Errorf("result %s, downtime %g", report.Result, report.DowntimeSeconds)
			}
			if (report.Error == nil) != (test.rec.Error == "") {
				t.Errorf("error %v", report.Error)
			}
		})
	}
}

func TestReportJSON(t *testing.T) {
	data, err := json.Marshal(NewReport(movedRecord(), Facts{}, ms(231)))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"migration", "container", "source", "target", "mode", "result", "error", "started", "handoff_seconds",
		"total_seconds",
		"downtime_seconds", "downtime_error_seconds", "phases", "rounds", "bytes", "link", "held",
		"dirtying_rate_bytes_per_second",
	} {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
	if got["error"] != nil || got["started"] != "2026-03-01T12:00:00Z" {
		t.Errorf("error %v, started %v", got["error"], got["started"])
	}
	if rounds, ok := got["rounds"].([]any); !ok || len(rounds) != 0 {
		t.Errorf("rounds %v, want an empty list", got["rounds"])
	}
}
