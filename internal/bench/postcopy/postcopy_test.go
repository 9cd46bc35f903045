package postcopy

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/bench/benchtest"
	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload/pages"
)

// smallFollowing exercises the same code as the others, with little memory.
func smallFollowing() following {
	return following{
		name: "small", memory: pages.Config{Size: 16 * results.Mebi, Hot: 2 * results.Mebi, Threads: 2},
		link:   testbed.LinkFast,
		access: pages.Jump, client: true,
		ways: []string{moves.WayLazy, moves.WayPostCopy, moves.WayHybrid}, runs: 1,
	}
}

func TestPostCopy(t *testing.T) {
	t.Parallel()
	config := benchtest.Config(t, benchtest.Build(t))
	result, err := postCopy(t.Context(), config, []following{smallFollowing()})
	if err != nil {
		t.Fatal(err)
	}
	for way, metrics := range map[string][]string{
		moves.WayLazy: {results.Downtime, results.Goodput, metricWaits, metricWaitP99, metricAnswered},
		moves.WayPostCopy: {results.Downtime, results.Goodput, metricWaits, metricWaitP99, metricAnswered,
			results.Gap,
			results.Late, results.Served},
		moves.WayHybrid: {results.Downtime, metricAnswered, results.Gap},
	} {
		for _, metric := range metrics {
			if row := results.Find(result.Rows, "small", testbed.LinkFast, way, metric); row == nil ||
				len(row.Samples) != 1 || *row.Median <= 0 {
				t.Errorf("%s: %s is %+v, want one sample", way, metric, row)
			}
		}
	}
	for _, row := range result.Rows {
		if row.Note != "" {
			t.Errorf("%s: %s", row.Way, row.Note)
		}
	}
	if found := benchtest.Left(t, config); len(found) > 0 {
		t.Errorf("left on the machine: %q", found)
	}
}

// TestFollowings: the descriptions of the workloads are right.
func TestFollowings(t *testing.T) {
	for _, f := range followings() {
		if _, err := testbed.ParseLink(f.link); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
		for _, way := range f.ways {
			if !slices.Contains(Ways(), way) {
				t.Errorf("%s: no such way: %q", f.name, way)
			}
			s := testbed.Suite{}
			if made := newFollower(&s, way, f.workload(true), "", moves.Bundle{}); made == nil ||
				made.Name() != way {
				t.Errorf("%s: the way %s is made as %v", f.name, way, made)
			}
		}
		if f.runs == 0 || f.quick == 0 && f.size > 0 {
			t.Errorf("%s: %d runs, %d quick ones of %d bytes", f.name, f.runs, f.quick, f.size)
		}
	}
}

func TestQuickWorkloadIsSmaller(t *testing.T) {
	f := following{memory: pages.Config{Size: 100 * results.Mebi, Hot: 10 * results.Mebi, Rate: 7}, size: 20 *
		results.Mebi}
	if got := *f.workload(true).Memory; got.Size != 20*results.Mebi || got.Hot != 2*results.Mebi ||
		got.Rate != 7 {
		t.Errorf("a quick run has %+v", got)
	}
	if got := *f.workload(false).Memory; got.Size != 100*results.Mebi || got.Hot != 10*results.Mebi {
		t.Errorf("a whole run has %+v", got)
	}
}

func TestSelectedFollowings(t *testing.T) {
	for _, c := range []struct {
		config testbed.Config
		want   string
	}{
		{testbed.Config{Workloads: []string{"64"}, Runs: 4}, "64MiB by criu lazy, godwit post-copy: 4"},
		{testbed.Config{Workloads: []string{"fog"}, Ways: []string{"godwit"}, Quick: true},
			"fog by godwit cold, godwit post-copy: 1"},
		{
			testbed.Config{Workloads: []string{"64", "recogniser"}, Ways: []string{"criu", "godwit cold"}},
			"64MiB by criu lazy: 5recogniser by criu lazy: 1recogniser, 64 B by criu lazy: 1",
		},
		{
			testbed.Config{Workloads: []string{"4GiB"}, Quick: true},
			"nothing to measure: these workloads are not moved in these ways, or not in a quick run",
		},
		{testbed.Config{Ways: []string{"on foot"}},
			`no such way: "on foot"; there are criu lazy, godwit cold, godwit pre-copy, godwit post-copy, godwit hybrid`},
		{testbed.Config{Workloads: []string{"doom"}}, `no such workload: "doom"; there are ` +
			strings.Join(Names(), ", ")},
	} {
		got := ""
		chosen, err := selectedFollowings(c.config)
		if err != nil {
			got = err.Error()
		}
		for _, f := range chosen {
			got += f.name + " by " + strings.Join(f.ways, ", ") + ": " + string(rune('0'+f.runs))
		}
		if got != c.want {
			t.Errorf("%+v chooses\n%s, want\n%s", c.config, got, c.want)
		}
	}
}

// exampleFollowing is a result that just meets all requirements, with a factor on the measurements.
func exampleFollowing(factor float64) []results.Row {
	rows := []results.Row{
		benchtest.MeasuredRow(workloadSmall, testbed.LinkFaster, moves.WayPostCopy, results.Downtime, 0.05),
		benchtest.MeasuredRow(workload4096, testbed.LinkFaster, moves.WayPostCopy, results.Downtime,
			0.23*factor),
		benchtest.MeasuredRow(workloadRewritten, testbed.LinkFast, moves.WayHybrid, results.Downtime,
			0.2*factor),
		benchtest.MeasuredRow(workloadRewritten, testbed.LinkFast, moves.WayHybrid, results.Sent, 110*factor),
		benchtest.MeasuredRow(workloadRewritten, testbed.LinkFast, moves.WayPreCopy, results.Sent, 100),
		benchtest.MeasuredRow(workloadLoaded, testbed.LinkFast, moves.WayPostCopy, results.Goodput,
			0.8*125e6/factor),
		benchtest.MeasuredRow(workloadJumps, testbed.LinkMiddle, moves.WayPostCopy, metricWaitP99,
			0.025*factor),
		benchtest.MeasuredRow(workloadScans, testbed.LinkFast, moves.WayPostCopy, metricFaultsPer,
			26214*factor),
		benchtest.MeasuredRow(workloadFollowingFog, testbed.LinkMobility, moves.WayPostCopy, results.Total,
			110*factor),
		benchtest.MeasuredRow(workloadFollowingFog, testbed.LinkMobility, moves.WayCold, results.Total, 100),
		benchtest.MeasuredRow(workloadPartly, testbed.LinkSlow, moves.WayHybrid, metricAnswered, 3*factor),
	}
	return rows
}

func TestJudgeFollowing(t *testing.T) {
	for factor, want := range map[float64]bool{0.999: true, 1.01: false} {
		asked := judgeFollowing(exampleFollowing(factor))
		if len(asked) != 8 {
			t.Errorf("%d things are judged, want 8: %+v", len(asked), asked)
		}
		for _, a := range asked {
			if a.Met != want || math.Abs(a.Value/a.Limit-1) > 0.02 {
				t.Errorf("with a factor of %v: %+v, want that it is met: %t", factor, a, want)
			}
		}
	}
}

func TestFollowingText(t *testing.T) {
	rows := exampleFollowing(1)
	rows = append(rows,
		benchtest.MeasuredRow("late", testbed.LinkFast, moves.WayLazy, metricProgram, 7*results.Mebi),
		benchtest.MeasuredRow("late",
			testbed.LinkFast, moves.WayLazy, results.Downtime, 0.5),
		benchtest.MeasuredRow("late", testbed.LinkFast, moves.WayLazy, results.Came, 5*results.Mebi))
	rows = append(rows,
		(&results.Series{Workload: "late", Link: testbed.LinkFast, Way: moves.WayHybrid,
			Note: "it has gone\nfar away"}).Rows()...)
	var text strings.Builder
	result := results.Result{Suite: Name, Rows: rows, Asked: judgeFollowing(rows)}
	result.WriteText(&text, func() { WriteRows(result, &text) })
	for _, want := range []string{
		"late, 1gbit/0.4ms (7.0 MiB)", "not in time", "criu lazy: 5.0 MiB had arrived",
		"godwit hybrid: it has gone\n", "100.0 MB/s", "26214", "met, ",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text has no %q:\n%s", want, text.String())
		}
	}
}

func TestService(t *testing.T) {
	began := time.Now()
	s := &service{}
	for _, after := range []time.Duration{0, 100, 500, 600} {
		s.answers = append(s.answers, began.Add(after*time.Millisecond))
	}
	answered, gap, has := s.seen(began.Add(450 * time.Millisecond))
	if answered != 50*time.Millisecond || gap != 400*time.Millisecond || !has {
		t.Errorf("seen: %v, %v, %t", answered, gap, has)
	}
	if _, _, has := s.seen(began.Add(time.Second)); has {
		t.Error("an answer of before counts")
	}
}

func TestTimeReady(t *testing.T) {
	for _, c := range []struct {
		script string
		times  int
		fails  bool
	}{{"printf x >&3", 2, false}, {"printf x >&3; exit 3", 2, true}, {"exit 0", 1, false}} {
		var out strings.Builder
		if err := testbed.TimeReady(t.Context(), []string{"sh", "-c", c.script}, &out); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		_, err := testbed.ParseTimed(lines[len(lines)-1])
		if len(lines) != c.times || (err != nil) != c.fails {
			t.Errorf("%q tells %q, error %v", c.script, lines, err)
		}
	}
}
