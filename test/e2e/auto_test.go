package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

// auto moves the container as a user does who names no mode, and returns the whole report.
func (c *container) auto(flags ...string) migration.Report {
	c.t.Helper()
	from := c.node
	var r migration.Report
	text := must(c.t, from, append([]string{"migrate", c.name, c.other(), "--json", "--wait"}, flags...)...)
	if err := json.Unmarshal([]byte(text), &r); err != nil || r.Result != migration.Moved || r.Requested != migration.Auto {
		c.t.Fatalf("%v: %s", err, text)
	}
	if !slices.ContainsFunc(r.Decisions, func(d string) bool { return strings.HasPrefix(d, "auto: mode "+string(r.Mode)) }) {
		c.t.Errorf("nobody says why mode %s was chosen: %q", r.Mode, r.Decisions)
	}
	if slices.ContainsFunc(r.Phases, func(p migration.Phase) bool { return p.Name == string(migration.StepStop) && p.Downtime }) {
		c.t.Errorf("it was restarted: %+v", r.Phases)
	}
	c.node = c.other()
	c.gone(from)
	return r
}

// TestAuto moves containers without naming a mode.
func TestAuto(t *testing.T) {
	t.Parallel()
	c := writer(t)
	c.auto()
	if r := c.auto("--no-post-copy", "--downtime-target", "1ms"); r.Drain != nil && r.Drain.LatePages > 0 {
		t.Errorf("its state was on two nodes, which was forbidden: mode %s, %+v", r.Mode, r.Drain)
	}
	c.auto("--deadline", "1ms") // that cannot be: it is as fast as it can be, and is told
	c.auto("--max-bytes", "200m", "--bandwidth-limit", "500mbit")
	c.right()
}

// TestAutoRefuses tells what cannot be, before anything moves.
func TestAutoRefuses(t *testing.T) {
	t.Parallel()
	c := writer(t)
	for _, one := range []struct{ words, flags string }{
		{"may be sent", "--max-bytes 1m"},
		{"on two nodes", "--no-post-copy --on-no-convergence hybrid"},
		{"--deadline", "--mode cold --deadline 3s"},
		{"--max-bytes", "--mode pre-copy --max-bytes 3m"},
		{"--no-post-copy", "--mode hybrid --no-post-copy"},
		{"negative", "--deadline -3s"},
	} {
		out, err := godwit(t.Context(), c.node, append([]string{"migrate", c.name, c.other()}, strings.Fields(one.flags)...)...)
		if err != nil || out.code == 0 || !strings.Contains(out.stderr, one.words) {
			t.Errorf("%s: %v, exit code %d: %s%s", one.flags, err, out.code, out.stdout, out.stderr)
		}
	}
	c.right()
}

// TestMeasure watches a container that writes, predicts its migration, and moves it while it is still being watched.
func TestMeasure(t *testing.T) {
	t.Parallel()
	c := writer(t)
	var all []predict.Measured
	text := must(t, c.node, "top", c.name, "--json", "--window", "1s")
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	m := all[0]
	if m.PrivateBytes < writerBytes || m.Processes == 0 || m.Threads == 0 || m.SampledPages == 0 || m.Ratio < 0.5 || m.State != "" {
		t.Errorf("measured: %+v", m)
	}
	// It writes to 2 MiB, a mebibyte a second.
	if len(m.Curve) < 2 || m.Curve[0].Bytes > m.Curve[1].Bytes || m.Curve[1].Bytes == 0 || m.Curve[1].Bytes > writerBytes/2 {
		t.Errorf("what it writes: %+v", m.Curve)
	}
	var plan predict.Plan
	text = must(t, c.node, "plan", c.name, c.other(), "--json")
	if err := json.Unmarshal([]byte(text), &plan); err != nil || !plan.Possible || len(plan.Predictions) != len(predict.Modes()) {
		t.Fatalf("%v: %s", err, text)
	}
	for _, p := range plan.Predictions {
		if d := p.Downtime; !p.Possible || !(d.Low > 0 && d.Low <= d.Expected && d.Expected <= d.High) || p.Total.Expected < p.Handoff.Expected || p.Risk == "" {
			t.Errorf("mode %s: %+v", p.Mode, p)
		}
	}
	if plan.Choice.Mode == "" || plan.Link.BandwidthBitsPerSecond == 0 {
		t.Errorf("chosen %+v over %+v", plan.Choice, plan.Link)
	}
	c.migrateBy(preCopy)
	c.right()
}
