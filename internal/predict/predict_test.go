package predict

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/migration"
)

// programs are the programs of the grid, with so many pages each.
func programs(pages float64) map[string]program {
	n := int(pages)
	return map[string]program{
		"idle":      groups{},
		"trickle":   groups{{n, 50 / pages}},
		"hot tenth": groups{{n / 10, 20}, {n - n/10, 0.001}},
		"uniform":   groups{{n, 0.2}},
		"all":       groups{{n, 5}},
		"cycle":     cycle{pages / 6, pages / 12},
		"two":       groups{{n / 50, 10}, {n / 5, 0.1}, {n / 2, 0.005}},
		"bursts":    bursts{groups{{n / 20, 3}}},
	}
}

// TestAgainstSimulation compares predictions with a simulation of pages, over a grid of programs, links,
// sizes, contents and modes. An error of less than 30 ms does not count, as nobody notices it.
func TestAgainstSimulation(t *testing.T) {
	var downtime, total []float64
	covered, all := 0, 0
	seed := uint64(0)
	for _, pages := range []float64{2000, 16000} {
		for name, p := range programs(pages) {
			for _, link := range [][2]float64{{5e6, 0.05}, {20e6, 0.1}, {100e6, 0.02}, {1e9, 0.0004},
				{10e9, 0.0001}} {
				for _, ratio := range []float64{1, 0.4} {
					for _, watched := range []float64{1, 10} {
						seed++
						s := simulated(p, pages, link[0], link[1], ratio, watched, seed)
						for _, mode := range []migration.Mode{migration.Cold, migration.PreCopy,
							migration.Hybrid, migration.PostCopy} {
							s.stats = nil
							predicted := Of(s.in, mode)
							d, all4 := s.run(mode)
							e1, e2 := off(predicted.Downtime.Expected, d), off(predicted.Total.Expected, all4)
							if e1 > 1 || e2 > 1 {
								t.Logf("%s, %.0f pages, %.0f Mbit/s, ratio %.1f, watched %.0f s, %s: "+
									"downtime %.3f, was %.3f; total %.2f, was %.2f",
									name, pages, link[0]/1e6, ratio, watched, mode,
									predicted.Downtime.Expected, d, predicted.Total.Expected, all4)
							}
							downtime, total = append(downtime, e1), append(total, e2)
							if all++; d >= predicted.Downtime.Low && d <= predicted.Downtime.High {
								covered++
							}
						}
					}
				}
			}
		}
	}
	for what, errors := range map[string][]float64{"downtime": downtime, "total time": total} {
		slices.Sort(errors)
		median, p90 := errors[len(errors)/2], errors[len(errors)*9/10]
		t.Logf("%s: %d runs, off by %.1f %% in the median, by %.1f %% in nine of ten", what, len(errors),
			median*100, p90*100)
		if median > 0.2 || p90 > 0.5 {
			t.Errorf("%s: off by %.0f %% in the median, by %.0f %% in nine of ten; want at most 20 and 50",
				what, median*100, p90*100)
		}
	}
	if share := float64(covered) / float64(all); share < 0.9 {
		t.Errorf("%.0f %% of the downtimes are in their interval, want 90", share*100)
	}
}

// off returns the error of a prediction, as a share of the measured value.
func off(predicted, measured float64) float64 {
	difference := math.Abs(predicted - measured)
	if difference <= 0.03 {
		return 0
	}
	return difference / measured
}

func TestCurve(t *testing.T) {
	c := Curve{{0.1, 1000}, {1, 10000}, {10, 40000}}
	for _, one := range []struct{ seconds, want float64 }{
		{0, 0}, {0.01, 100}, {0.1, 1000}, {0.5, 5000}, {1, 10000}, {10, 40000},
	} {
		if got := c.Within(one.seconds, 1e9); math.Abs(got-one.want) > 1e-6*one.want {
			t.Errorf("within %g s: %g, want %g", one.seconds, got, one.want)
		}
	}
	before := 0.0
	for seconds := 0.001; seconds < 1e4; seconds *= 1.1 {
		now := c.Within(seconds, 70000)
		if now < before || now > 70000 {
			t.Fatalf("within %g s: %g after %g", seconds, now, before)
		}
		before = now
	}
	for _, odd := range []Curve{nil, {{0, 5}}, {{1, math.NaN()}}, {{1, 0}, {10, 0}},
		{{math.NaN(), 1}, {-1, 3}}} {
		if got := odd.Within(5, 100); got != 0 {
			t.Errorf("%v: %g, want none", odd, got)
		}
	}
}

// TestChoice describes the choice for some containers, in words.
func TestChoice(t *testing.T) {
	const pages = 16000
	all := programs(pages)
	for _, one := range []struct {
		name    string
		program program
		bits    float64
		rtt     float64
		change  func(*Input)
		want    migration.Mode
	}{
		{"idle", all["idle"], 100e6, 0.02, nil, migration.PreCopy},
		{"tiny", groups{}, 1e9, 0.0004, func(in *Input) { in.Container.PrivateBytes = 300e3 },
			migration.Cold},
		{"small", groups{}, 1e9, 0.0004, func(in *Input) { in.Container.PrivateBytes = 1e6 }, migration.Cold},
		{"small, its image is not there", groups{}, 1e9, 0.0004, func(in *Input) {
			in.Container.PrivateBytes, in.Container.MissingLayerBytes = 1e6, 590e6
		}, migration.PreCopy},
		{"writes a fifth each second, faster than the link", all["uniform"], 20e6, 0.05,
			nil, migration.PostCopy},
		{"writes all each fifth of a second: an answer needs all", all["all"], 20e6, 0.05,
			nil, migration.Cold},
		{"the same, never split", all["all"], 20e6, 0.05, func(in *Input) { in.Demands.NoPostCopy = true },
			migration.Cold},
		{"the same, a long freeze is allowed", all["all"], 20e6,
			0.05, func(in *Input) { in.Demands.Settings.DowntimeTarget = 1000e9 }, migration.Cold},
		{"few bytes", all["all"], 20e6, 0.05,
			func(in *Input) { in.Demands.MaxBytes = 67e6; in.Demands.NoPostCopy = true }, migration.Cold},
		{"soon", all["idle"], 20e6, 0.05, func(in *Input) { in.Demands.Deadline = 8e9 }, migration.PostCopy},
		{"files that come and go as fast as the link", all["trickle"], 100e6, 0.02, func(in *Input) {
			in.Container.FileTreeBytes, in.Container.FilesChangedPerSecond = 400e6, 12.8e6
		}, migration.PreCopy},
	} {
		t.Run(one.name, func(t *testing.T) {
			in := simulated(one.program, pages, one.bits, one.rtt, 1, 10, 1).in
			if one.change != nil {
				one.change(&in)
			}
			choice, err := Choose(All(in), in.Demands)
			if err != nil || choice.Mode != one.want {
				t.Errorf("chosen: %s (%v), want %s; %q", choice.Mode, err, one.want, choice.Why)
			}
			if len(choice.Why) == 0 {
				t.Error("nobody says why")
			}
		})
	}
}

func TestNothingIsPossible(t *testing.T) {
	in := simulated(groups{}, 16000, 20e6, 0.05, 1, 10, 1).in
	in.Demands.MaxBytes = 1e6
	if choice, err := Choose(All(in), in.Demands); err == nil {
		t.Errorf("%s was chosen to send 64 MB in 1", choice.Mode)
	}
	in.Demands.MaxBytes, in.Container.CheckpointImpossible = 0, "io_uring"
	if choice, err := Choose(All(in), in.Demands); err == nil {
		t.Errorf("%s was chosen for what cannot be dumped: a restart is for its user to decide", choice.Mode)
	}
}

func TestBetter(t *testing.T) {
	in := simulated(groups{}, 16000, 20e6, 0.05, 1, 10, 1).in
	in.Container.MissingLayerBytes = 50e6
	got := Better(in, Of(in, migration.PreCopy))
	if len(got) != 2 || got[0][:11] != "stage ahead" {
		t.Errorf("what would make it better: %q, want staging of all and of the layers", got)
	}
}

// FuzzPredict: whatever the measurements are, predictions are finite, not negative and in order.
func FuzzPredict(f *testing.F) {
	f.Add(int64(1<<30), 1e6, 1e8, 0.02, 0.5, 0.1)
	f.Add(int64(0), 0.0, 0.0, 0.0, 0.0, 0.0)
	f.Add(int64(-5), math.NaN(), math.Inf(1), -1.0, 7.0, -3.0)
	f.Fuzz(func(t *testing.T, bytes int64, dirtied, bits, rtt, ratio, zero float64) {
		in := Input{
			Container: Container{PrivateBytes: bytes, Curve: Curve{{0.1, dirtied}, {1, dirtied * 2}},
				Ratio: ratio, ZeroShare: zero, SampledPages: 10},
			Link: Link{BandwidthBitsPerSecond: bits, RTTSeconds: rtt},
		}
		seen := Seen{Parts{dirtied, rtt, bits, zero}, rtt, int(bytes), ratio > 0.5, zero, dirtied}
		in.Past = Past{migration.PreCopy: seen, migration.Cold: seen}
		in.Pace, in.Longer = Pace{zero, ratio}, Curve{{rtt, bits}}
		for _, p := range All(in) {
			for i, one := range []Interval{p.Downtime, p.Interruption, p.Handoff, p.Total, p.Bytes, p.Split,
				p.Waiting, p.SourceCPU} {
				if !(one.Low >= 0 && one.Low <= one.Expected && one.Expected <= one.High) ||
					math.IsInf(one.High, 0) {
					t.Errorf("%s: metric %d: %+v", p.Mode, i, one)
				}
			}
		}
		_, _ = Choose(All(in), in.Demands)
		_ = fmt.Sprint(Better(in, Of(in, migration.PreCopy)))
	})
}

// TestSaneCurve: only possible points of another node's curve count.
func TestSaneCurve(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	in := Input{Longer: Curve{{-1, 1}, {nan, 1}, {inf, 1}, {1e308, 1}, {1, nan}, {2, inf}, {3, -1},
		{4, 1e308}, {5, 6}}}.sane()
	if want := (Curve{{5, 6}}); !slices.Equal(in.Longer, want) {
		t.Errorf("%v are left, want %v", in.Longer, want)
	}
}

// TestFilesUsedAgain: a container must not be held for as long as all its files take just because they may
// be written faster than the link carries. Files are reused, or deleted, and then their rounds end; a copy
// that begins with a stopped container is no better.
func TestFilesUsedAgain(t *testing.T) {
	in := Input{
		Container: Container{
			PrivateBytes: 64 << 20, FileTreeBytes: 390 << 20, FileTreeEntries: 80,
			FilesChangedPerSecond: 20e6, CPUs: 0.5,
			Curve: Curve{{0.1, 4 << 20}, {1, 20 << 20}},
		},
		Link:    Link{BandwidthBitsPerSecond: 20e6, RTTSeconds: 0.02},
		Demands: Demands{Settings: migration.Settings{DowntimeTarget: 100e6}},
	}
	choice, err := Choose(All(in), in.Demands)
	if err != nil || choice.Mode == migration.Cold {
		t.Errorf("chosen: %s, %v: %v", choice.Mode, err, choice.Why)
	}
	written := Of(in, migration.PreCopy).Downtime
	in.Container.FilesChangedPerSecond = 0
	if kept := Of(in, migration.PreCopy).Downtime; kept.Expected >= written.Expected ||
		kept.Low > written.Low {
		t.Errorf("downtime %+v with files that change, %+v with others", written, kept)
	}
}

// TestSplitForShort: of two modes that take equally long, the one that has the state on two nodes for less
// time is chosen, if their durations are known.
func TestSplitForShort(t *testing.T) {
	for _, c := range []struct{ hybrid, watched float64 }{{87, 10}, {140, 10}, {87, 1}} {
		takes := func(mode migration.Mode, total, split float64) Prediction {
			at := func(seconds float64) Interval { return Interval{seconds, seconds, seconds} }
			return Prediction{Mode: mode, Possible: true, Downtime: at(0.3), Interruption: at(0.3),
				Total: at(total), Split: at(split), watched: c.watched}
		}
		want := migration.PostCopy
		if c.hybrid < 90 && c.watched >= 10 {
			want = migration.Hybrid
		}
		if got := best([]Prediction{takes(migration.PostCopy, 84, 82), takes(migration.Hybrid, c.hybrid, 2)},
			0.1).Mode; got != want {
			t.Errorf("hybrid takes %.0f s as it was watched for %.0f s: best is %s, not %s", c.hybrid,
				c.watched, got, want)
		}
	}
}

// TestNothingToKeepOut: a tiny container is not copied ahead because of learnt step times: that cannot
// shorten its freeze.
func TestNothingToKeepOut(t *testing.T) {
	one := func(mode migration.Mode, downtime, total, frozen float64) Prediction {
		exactly := func(v float64) Interval { return Interval{Expected: v, Low: v, High: v} }
		return Prediction{Mode: mode, Possible: true, Downtime: exactly(downtime),
			Interruption: exactly(downtime), Total: exactly(total), FrozenBytes: exactly(frozen),
			Bytes: exactly(41e3)}
	}
	demands := Demands{Settings: migration.Settings{DowntimeTarget: 100e6}}
	for name, c := range map[string]struct {
		all  []Prediction
		want migration.Mode
	}{
		"a window at most": {[]Prediction{one(migration.Cold, 0.120, 0.461, 41e3),
			one(migration.PreCopy, 0.079, 0.868, 30e3), one(migration.Hybrid, 0.079, 0.868, 30e3)},
			migration.Cold},
		"more than that": {[]Prediction{one(migration.Cold, 0.120, 0.461, 410e3),
			one(migration.PreCopy, 0.079, 0.868, 30e3)}, migration.PreCopy},
		"over as soon": {[]Prediction{one(migration.Cold, 0.120, 0.861, 41e3),
			one(migration.PreCopy, 0.079, 0.868, 30e3)}, migration.PreCopy},
		"cold is not among them": {[]Prediction{one(migration.PreCopy, 0.079, 0.868, 30e3)},
			migration.PreCopy},
	} {
		if choice, err := Choose(c.all, demands); err != nil || choice.Mode != c.want {
			t.Errorf("%s: %s, %v", name, choice.Mode, err)
		}
	}
	unsure := one(migration.PreCopy, 0.079, 0.868, 60e6)
	unsure.FrozenBytes.Low = 1e6
	if choice, err := Choose([]Prediction{one(migration.Cold, 0.120, 0.461, 60e6), unsure},
		demands); err != nil || choice.Mode != migration.PreCopy {
		t.Errorf("what is copied ahead may not be written again: %s, %v", choice.Mode, err)
	}
}
