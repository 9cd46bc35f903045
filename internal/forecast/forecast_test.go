package forecast

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/identity"
)

var (
	web = engine.Definition{ID: strings.Repeat("ab", 32), Name: "web"}
	b   = identity.Node{Name: "b"}
)

// fakeNode is node a with a container.
type fakeNode struct {
	engine.Engine

	gone      error         // of the container
	held      predict.Curve // what is known of its writes
	writes    predict.Curve // what watching it finds
	memory    int64
	fresh     bool
	bandwidth float64 // to b, as it is known
	real      float64 // as it is measured
	broken    error   // the link
	age       time.Duration
	trees     []files.Tree
	noTrees   error
	problems  []engine.Problem // for mode restart
	ports     []engine.Port
	watched   []time.Duration
	measured  int   // links
	brief     int64 // memory of the last brief measurement
	past      func(in *predict.Input)
}

func newFakeNode() *fakeNode {
	return &fakeNode{memory: 64 << 20, bandwidth: 1e9, real: 1e9, past: func(*predict.Input) {}}
}

func (n *fakeNode) forecaster() *Forecaster {
	return New(Config{
		Node: "a", Engines: n, Samples: n, Links: links{n}, Past: past{n},
		Speed: func() predict.Machine {
			return predict.Machine{Cores: 2, PageBytesPerSecond: 1e9, CompressBytesPerSec: 1e9}
		},
		Trees:   func(context.Context, engine.Definition) ([]files.Tree, error) { return n.trees, n.noTrees },
		CopyAge: func(string, string) time.Duration { return n.age },
	})
}

func (n *fakeNode) Inspect(context.Context, string) (engine.Container, error) {
	return engine.Container{Definition: web}, n.gone
}

func (n *fakeNode) EngineFor(engine.Definition) engine.Engine { return n }

func (n *fakeNode) Ports(context.Context, string) ([]engine.Port, error) { return n.ports, nil }

func (n *fakeNode) ExamineAnew(context.Context, string) ([]engine.Problem, error) {
	return n.problems, nil
}

func (n *fakeNode) seen() predict.Measured {
	return predict.Measured{CompressBytesPerSecond: 5e8, Container: predict.Container{
		PrivateBytes: n.memory, Curve: n.held, Ratio: 0.5, Processes: 1}}
}

func (n *fakeNode) Known(string, time.Duration, time.Duration) (predict.Measured, bool) {
	return n.seen(), n.fresh
}

func (n *fakeNode) Last(string) (predict.Measured, bool) { return n.seen(), true }

func (n *fakeNode) Look(context.Context, engine.Definition) (predict.Measured, error) {
	return n.seen(), nil
}

func (n *fakeNode) Measure(_ context.Context, _ engine.Definition,
	window, _ time.Duration) predict.Measured {
	n.watched = append(n.watched, window)
	seen := n.seen()
	seen.Curve = n.writes
	return seen
}

// links are those of a fakeNode.
type links struct{ *fakeNode }

func (l links) WayTo(string) predict.Link {
	return predict.Link{RTTSeconds: 0.001, BandwidthBitsPerSecond: l.bandwidth}
}

func (l links) Measure(context.Context, identity.Node) error {
	l.measured++
	l.bandwidth = l.real
	return l.broken
}

func (l links) MeasureBriefly(ctx context.Context, node identity.Node, memory int64) error {
	l.brief = memory
	return l.Measure(ctx, node)
}

// past are the migrations of a fakeNode.
type past struct{ *fakeNode }

func (p past) Of(_, _ string, in *predict.Input) { p.fakeNode.past(in) }

// TestChooseMeasuresWhatMatters: a choice that is the same whatever a link carries and a container writes
// does not wait for that.
func TestChooseMeasuresWhatMatters(t *testing.T) {
	n := newFakeNode()
	n.memory, n.bandwidth = 16<<10, 0 // cold, over any link
	auto, err := n.forecaster().Choose(t.Context(), web, b, predict.Demands{NoPostCopy: true,
		Refused: map[migration.Mode]string{migration.PreCopy: "no"}})
	if err != nil || auto.Choice.Mode != migration.Cold || n.measured > 0 || len(n.watched) > 0 {
		t.Fatalf("%+v, %v; link measured %d times, watched %v", auto, err, n.measured, n.watched)
	}
	n = newFakeNode()
	n.memory, n.bandwidth, n.real = 1<<30, 0, 1e8 // pre-copy, or cold if it writes all the time
	n.writes = predict.Curve{{Seconds: 0.1, Bytes: 1}, {Seconds: 1, Bytes: 1}}
	auto, err = n.forecaster().Choose(t.Context(), web, b, predict.Demands{})
	if err != nil || n.measured != 1 || n.brief != n.memory || len(n.watched) == 0 {
		t.Fatalf("%v; link measured %d times for %d bytes, watched %v", err, n.measured, n.brief, n.watched)
	}
	if auto.Forecast.Prediction.Mode != auto.Choice.Mode || auto.Both.BitsPerSecond != n.real ||
		auto.Both.Whole <= 0 || auto.Forecast.Input.Source.CompressBytesPerSec != 5e8 {
		t.Errorf("%+v", auto)
	}
}

// TestChooseFails: a node that cannot be reached, a container that is gone, and no mode that is allowed.
func TestChooseFails(t *testing.T) {
	refused := map[migration.Mode]string{}
	for _, mode := range []migration.Mode{migration.Cold, migration.PreCopy, migration.Hybrid,
		migration.PostCopy} {
		refused[mode] = "policy"
	}
	gone := errors.New("gone")
	for name, c := range map[string]struct {
		change  func(n *fakeNode)
		demands predict.Demands
		says    string
		is      error
	}{
		"link": {func(n *fakeNode) { n.bandwidth, n.memory, n.broken = 0, 8<<30, errors.New("no route") },
			predict.Demands{}, "node b: no route", nil},
		"container": {func(n *fakeNode) { n.gone = gone }, predict.Demands{}, "", gone},
		"files":     {func(n *fakeNode) { n.noTrees = gone }, predict.Demands{}, "", gone},
		"modes":     {func(*fakeNode) {}, predict.Demands{Refused: refused}, "", api.ErrRefused},
	} {
		n := newFakeNode()
		c.change(n)
		_, err := n.forecaster().Choose(t.Context(), web, b, c.demands)
		if err == nil || !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestInput: writes that were measured long ago do not count, and neither does what cannot be looked at.
func TestInput(t *testing.T) {
	n := newFakeNode()
	n.held = predict.Curve{{Seconds: 1, Bytes: 5}}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data"), make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	n.trees = []files.Tree{{Path: dir}, {Path: filepath.Join(dir, "none")}}
	in := func(of engine.Definition) predict.Input {
		t.Helper()
		in, err := n.forecaster().input(t.Context(), of, b, predict.Demands{MaxBytes: 7})
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	got := in(web)
	if len(got.Container.Curve) > 0 || got.Container.FileTreeBytes < 5000 || got.Container.StagedAge != 0 ||
		got.Container.StartSeconds < engine.SettledAfter.Seconds() || got.Demands.MaxBytes != 7 ||
		got.Link.BandwidthBitsPerSecond != n.bandwidth {
		t.Errorf("%+v", got)
	}
	n.fresh, n.age, n.ports = true, time.Minute, make([]engine.Port, 1)
	if got = in(web); len(got.Container.Curve) != 1 || got.Container.StagedAge != 60 ||
		got.Container.StartSeconds != 0 {
		t.Errorf("fresh, staged, with a port: %+v", got)
	}
	n.age, n.ports = time.Nanosecond, nil
	n.past = func(in *predict.Input) { in.Container.StartSeconds = 4 }
	if got = in(web); got.Container.StagedAge != shortestWatch.Seconds() || got.Container.StartSeconds != 4 {
		t.Errorf("just staged, moved before: %+v", got)
	}
	n.past = func(*predict.Input) {}
	checked := web
	checked.Health = &engine.Health{}
	if got = in(checked); got.Container.StartSeconds != 0 {
		t.Errorf("with a health check: %+v", got)
	}
}

// TestWatchTime: a container is watched for a share of the time that its memory takes.
func TestWatchTime(t *testing.T) {
	f := newFakeNode().forecaster()
	for _, c := range []struct {
		memory int64
		bits   float64
		want   time.Duration
	}{
		{1 << 10, 1e9, shortestWatch}, {1 << 40, 1e9, longestWatch}, {1 << 40, 0, longestWatch},
		{62_500_000, 1e8, 500 * time.Millisecond},
	} {
		in := predict.Input{Container: predict.Container{PrivateBytes: c.memory},
			Link: predict.Link{BandwidthBitsPerSecond: c.bits}}
		if got := f.watchTime(in); got != c.want {
			t.Errorf("%d bytes at %g bit/s: %s, want %s", c.memory, c.bits, got, c.want)
		}
	}
}

// TestWatchKeeps: what watching does not find out stays as it was, also if nothing can be watched.
func TestWatchKeeps(t *testing.T) {
	n := newFakeNode()
	in := predict.Input{Container: predict.Container{FileTreeBytes: 1, FileTreeEntries: 2, StagedAge: 3,
		StopSeconds: 4, StartSeconds: 5}}
	before := in.Container
	n.forecaster().watchFor(t.Context(), &in, web, time.Second)
	if in.Container.PrivateBytes != before.PrivateBytes || len(n.watched) != 1 {
		t.Errorf("nothing could be watched: %+v after %v", in.Container, n.watched)
	}
	n.writes = predict.Curve{{Seconds: 0.1, Bytes: 1}, {Seconds: 1, Bytes: 2}}
	n.forecaster().watchFor(t.Context(), &in, web, time.Second)
	c := in.Container
	if c.FileTreeBytes != 1 || c.FileTreeEntries != 2 || c.StagedAge != 3 || c.StopSeconds != 4 ||
		c.StartSeconds != 5 || c.PrivateBytes != n.memory || len(c.Curve) != 2 {
		t.Errorf("%+v", c)
	}
}

// TestFill: a plan has all modes, also those that are impossible, and says when none will do.
func TestFill(t *testing.T) {
	n := newFakeNode()
	n.bandwidth, n.writes = 0, predict.Curve{{Seconds: 0.1, Bytes: 1}, {Seconds: 1, Bytes: 1}}
	n.problems = []engine.Problem{{What: "device", Why: "in use"}}
	plan := predict.Plan{Plan: migration.Plan{Mode: migration.Auto,
		Problems: []migration.Problem{{What: "terminal", Why: "open"}}}}
	if err := n.forecaster().Fill(t.Context(), &plan, web, b, predict.Demands{}, 0, 9); err != nil {
		t.Fatal(err)
	}
	if n.measured != 1 || n.brief != 0 || plan.Link.BandwidthBitsPerSecond != n.real ||
		plan.Measured.ID != web.ID || plan.Measured.Node != "a" || len(plan.Predictions) == 0 {
		t.Errorf("%+v", plan)
	}
	for _, p := range plan.Predictions {
		if p.Possible || p.Why == "" {
			t.Errorf("%s is possible", p.Mode)
		}
	}
	if len(plan.Choice.Unmet) == 0 || plan.Mode != migration.Auto {
		t.Errorf("chosen: %s, %+v", plan.Mode, plan.Choice)
	}
	plan.Problems, n.held, n.fresh = nil, n.writes, true
	err := n.forecaster().Fill(t.Context(), &plan, web, b, predict.Demands{}, time.Second, 9)
	if err != nil || plan.Mode == migration.Auto || plan.Mode != plan.Choice.Mode || n.measured != 2 {
		t.Errorf("%s, %+v, %v", plan.Mode, plan.Choice, err)
	}
	n.broken = errors.New("no route")
	err = n.forecaster().Fill(t.Context(), &plan, web, b, predict.Demands{}, time.Second, 9)
	if !errors.Is(err, n.broken) {
		t.Errorf("error %v", err)
	}
}

// TestMayNeedBoth: a mode that a user names is refused if both nodes would be needed for too long, and a plan
// says the same.
func TestMayNeedBoth(t *testing.T) {
	n := newFakeNode()
	n.memory, n.bandwidth, n.real = 8<<30, 0, 1e8 // more than ten minutes
	bounded := predict.Demands{Split: migration.SplitLimit{Most: time.Second, By: "the test"}}
	f := n.forecaster()
	both, err := f.MayNeedBoth(t.Context(), migration.PreCopy, web, b, bounded)
	if both != nil || err != nil {
		t.Errorf("pre-copy: %+v, %v", both, err)
	}
	if both, err := f.MayNeedBoth(t.Context(), migration.PostCopy, web, b, predict.Demands{}); both != nil ||
		err != nil || n.measured > 0 {
		t.Errorf("without a bound: %+v, %v", both, err)
	}
	_, err = f.MayNeedBoth(t.Context(), migration.PostCopy, web, b, bounded)
	if !errors.Is(err, api.ErrRefused) || !strings.Contains(err.Error(), "allow more with --max-split") ||
		n.measured != 1 || len(n.watched) > 0 {
		t.Errorf("post-copy: %v; measured %d, watched %v", err, n.measured, n.watched)
	}
	n.writes = predict.Curve{{Seconds: 0.1, Bytes: 1e9}, {Seconds: 1, Bytes: 8e9}}
	plan := migration.Plan{Mode: migration.Hybrid}
	if err := f.PlanSplit(t.Context(), &plan, web, b, bounded); err != nil || len(plan.Problems) != 1 ||
		len(n.watched) == 0 {
		t.Errorf("hybrid: %v, %+v, watched %v", err, plan.Problems, n.watched)
	}
	bounded.Split.Most = time.Hour
	if both, err := f.MayNeedBoth(t.Context(), migration.PostCopy, web, b, bounded); err != nil ||
		both.Whole < time.Minute || both.BitsPerSecond != n.real {
		t.Errorf("allowed: %+v, %v", both, err)
	}
	n.bandwidth, n.broken = 0, errors.New("no route")
	if _, err := f.MayNeedBoth(t.Context(), migration.PostCopy, web, b, bounded); err == nil ||
		!strings.Contains(err.Error(), "node b: no route") {
		t.Errorf("error %v", err)
	}
}

// TestSplitStarts: a migration starts with what was predicted, if that was.
func TestSplitStarts(t *testing.T) {
	settings := migration.Settings{MaxSplit: time.Minute}
	if s := NewSplit(migration.PostCopyAuto, settings, nil, nil); s.Refuses() != "" {
		t.Errorf("nothing is predicted: %s", s.Refuses())
	}
	long := &Both{Whole: time.Hour, BitsPerSecond: 1e6}
	if s := NewSplit(migration.PostCopyAuto, settings, nil, long); s.Refuses() == "" {
		t.Error("an hour is allowed")
	}
	if (*Auto)(nil).FrozenBytes() != 0 {
		t.Error("frozen bytes of a mode that was not chosen")
	}
}

// TestDemands tells what is refused before anything is predicted.
func TestDemands(t *testing.T) {
	for _, one := range []struct {
		name    string
		request *api.MigrateRequest
		use     migration.PostCopyUse
		want    error
	}{
		{"post-copy on request", &api.MigrateRequest{Mode: "post-copy"}, migration.PostCopyOnRequest, nil},
		{"post-copy never", &api.MigrateRequest{Mode: "post-copy"}, migration.PostCopyNever, api.ErrRefused},
		{"hybrid never", &api.MigrateRequest{Mode: "hybrid"}, migration.PostCopyNever, api.ErrRefused},
		{"rounds that turn never", &api.MigrateRequest{Mode: "pre-copy", OnNoConvergence: "hybrid"},
			migration.PostCopyNever, api.ErrRefused},
		{"pre-copy", &api.MigrateRequest{Mode: "pre-copy"}, migration.PostCopyNever, nil},
		{"auto", &api.MigrateRequest{Mode: "auto"}, migration.PostCopyNever, nil},
		{"both", &api.MigrateRequest{Mode: "auto", NoPostCopy: true, MaxSplitSeconds: 3},
			migration.PostCopyAuto, api.ErrInvalid},
		{"spill without post-copy", &api.MigrateRequest{Mode: "auto", NoPostCopy: true, Spill: true},
			migration.PostCopyAuto, api.ErrInvalid},
		{"hybrid without post-copy", &api.MigrateRequest{Mode: "auto", NoPostCopy: true,
			OnNoConvergence: "hybrid"}, migration.PostCopyAuto, api.ErrInvalid},
		{"deadline of a named mode", &api.MigrateRequest{Mode: "cold", DeadlineSeconds: 3},
			migration.PostCopyAuto, api.ErrInvalid},
		{"deadline", &api.MigrateRequest{Mode: "auto", DeadlineSeconds: 3}, migration.PostCopyAuto, nil},
		{"deadline before", &api.MigrateRequest{Mode: "auto", DeadlineSeconds: -3}, migration.PostCopyAuto,
			api.ErrInvalid},
		{"few bytes", &api.MigrateRequest{Mode: "auto", MaxBytes: 5}, migration.PostCopyAuto, api.ErrInvalid},
	} {
		mode := migration.Mode(one.request.Mode)
		settings, err := migration.Settings{
			MaxSplit: seconds(one.request.MaxSplitSeconds), Spill: one.request.Spill,
			OnNoConvergence: migration.NoConvergence(one.request.OnNoConvergence),
		}.For(mode)
		if err != nil {
			t.Fatalf("%s: %v", one.name, err)
		}
		demands, err := DemandsOf(one.request, settings, one.use, nil)
		if !errors.Is(err, one.want) || one.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", one.name, err, one.want)
		}
		if one.name == "deadline" && demands.Deadline != 3*time.Second {
			t.Errorf("%+v", demands)
		}
	}
}
