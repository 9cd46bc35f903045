package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

// auto moves the container like a user who names no mode, and returns the whole report.
func (c *container) auto(flags ...string) migration.Report {
	c.t.Helper()
	from := c.node
	var r migration.Report
	text := must(c.t, from, append([]string{"migrate", c.name, c.other(), "--json", "--wait"}, flags...)...)
	if err := json.Unmarshal([]byte(text), &r); err != nil || r.Result != migration.Moved ||
		r.Requested != migration.Auto {
		c.t.Fatalf("%v: %s", err, text)
	}
	if !slices.ContainsFunc(r.Decisions,
		func(d string) bool { return strings.HasPrefix(d, "auto: mode "+string(r.Mode)) }) {
		c.t.Errorf("nobody says why mode %s was chosen: %q", r.Mode, r.Decisions)
	}
	if slices.ContainsFunc(r.Phases,
		func(p migration.Phase) bool { return p.Name == string(migration.StepStop) && p.Downtime }) {
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
	if r := c.auto("--no-post-copy", "--downtime-target", "1ms"); r.Push != nil && r.Push.RemotePages > 0 {
		t.Errorf("its state was on two nodes, which was forbidden: mode %s, %+v", r.Mode, r.Push)
	}
	c.auto("--deadline", "1ms") // impossible: it is as fast as possible, and the report says so
	c.auto("--max-bytes", "200m", "--bandwidth-limit", "500mbit")
	c.right()
}

// TestAutoRefuses: impossible requests are refused before anything moves.
func TestAutoRefuses(t *testing.T) {
	t.Parallel()
	c := writer(t)
	for _, one := range []struct{ words, flags string }{
		{"may be sent", "--max-bytes 1m"},
		{"exclude each other", "--no-post-copy --on-no-convergence hybrid"},
		{"--deadline", "--mode cold --deadline 3s"},
		{"--max-bytes", "--mode pre-copy --max-bytes 3m"},
		{"--no-post-copy", "--mode hybrid --no-post-copy"},
		{"negative", "--deadline -3s"},
	} {
		out, err := godwit(t.Context(), c.node,
			append([]string{"migrate", c.name, c.other()}, strings.Fields(one.flags)...)...)
		if err != nil || out.code == 0 || !strings.Contains(out.stderr, one.words) {
			t.Errorf("%s: %v, exit code %d: %s%s", one.flags, err, out.code, out.stdout, out.stderr)
		}
	}
	c.right()
}

// TestMeasure watches a container that writes, predicts its migration, and moves it while it is still being
// watched.
func TestMeasure(t *testing.T) {
	t.Parallel()
	c := writer(t)
	var all []predict.Measured
	table := must(t, c.node, "top", c.name) // ends, because the output is no terminal
	if strings.Count(table, "CONTAINER") != 1 {
		t.Errorf("top: %q", table)
	}
	text := must(t, c.node, "top", c.name, "--json", "--window", "1s")
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	m := all[0]
	if m.PrivateBytes < writerBytes || m.Processes == 0 || m.Threads == 0 || m.SampledPages == 0 ||
		m.Ratio < 0.5 || m.State != "" {
		t.Errorf("measured: %+v", m)
	}
	// It writes to 2 MiB, a mebibyte per second.
	if len(m.Curve) < 2 || m.Curve[0].Bytes > m.Curve[1].Bytes || m.Curve[1].Bytes == 0 ||
		m.Curve[1].Bytes > writerBytes/2 {
		t.Errorf("what it writes: %+v", m.Curve)
	}
	var plan predict.Plan
	text = must(t, c.node, "plan", c.name, c.other(), "--json")
	if err := json.Unmarshal([]byte(text), &plan); err != nil || !plan.Possible ||
		len(plan.Predictions) != len(predict.Modes()) {
		t.Fatalf("%v: %s", err, text)
	}
	for _, p := range plan.Predictions {
		if d := p.Downtime; !p.Possible || !(d.Low > 0 && d.Low <= d.Expected && d.Expected <= d.High) ||
			p.Total.Expected < p.Handoff.Expected || p.Risk == "" {
			t.Errorf("mode %s: %+v", p.Mode, p)
		}
	}
	if plan.Choice.Mode == "" || plan.Link.BandwidthBitsPerSecond == 0 {
		t.Errorf("chosen %+v over %+v", plan.Choice, plan.Link)
	}
	c.migrateBy(preCopy)
	c.right()
}

// TestAutoBoundsSplit plans over a link on which post-copy takes half a minute: mode auto needs both nodes
// for that long only if its user allows it, and a mode that is named with a bound is refused.
func TestAutoBoundsSplit(t *testing.T) {
	t.Parallel()
	c := writer(t)
	planned := func(flags ...string) (plan predict.Plan) {
		t.Helper()
		link := []string{"--bandwidth-limit", "1mbit", "--json"}
		text := must(t, c.node, append(append([]string{"plan", c.name, c.other()}, link...), flags...)...)
		if err := json.Unmarshal([]byte(text), &plan); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return plan
	}
	splits := func(m migration.Mode) bool { return m == migration.PostCopy || m == migration.Hybrid }
	byDefault := planned()
	if splits(byDefault.Choice.Mode) {
		t.Errorf("mode auto takes %s by default: %q", byDefault.Choice.Mode, byDefault.Choice.Why)
	}
	for _, p := range byDefault.Predictions {
		if p.Mode == migration.PostCopy &&
			(p.Possible || !strings.Contains(p.Why, "--max-split") || p.Split.Expected < 10) {
			t.Errorf("post-copy: possible %v, %q, both nodes needed for %+v", p.Possible, p.Why, p.Split)
		}
	}
	longer := planned("--max-split", "1h")
	if !slices.ContainsFunc(longer.Predictions,
		func(p predict.Prediction) bool { return p.Mode == migration.PostCopy && p.Possible }) {
		t.Errorf("post-copy is not possible when both nodes may be needed for an hour: %+v",
			longer.Predictions)
	}
	text := must(t, c.node, "migrate", c.name, c.other(), "--dry-run", "--bandwidth-limit", "1mbit")
	if !strings.Contains(text, "not post-copy") || !strings.Contains(text, "both nodes") &&
		!strings.Contains(text, "two nodes") {
		t.Errorf("the dry run does not say why post-copy is not chosen: %s", text)
	}
	for _, dryRun := range []string{"--dry-run", "--wait"} {
		out, err := godwit(t.Context(), c.node, "migrate", c.name, c.other(), "--mode", "post-copy",
			"--max-split", "2s", "--bandwidth-limit", "1mbit", dryRun)
		if said := out.stdout + out.stderr; err != nil || out.code != 1 ||
			!strings.Contains(said, "longer than 2s") {
			t.Errorf("%s: %v, exit code %d: %s", dryRun, err, out.code, said)
		}
	}
	c.right()
}
