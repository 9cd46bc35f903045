package files

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/bench/benchtest"
	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload/tree"
	"github.com/godwit/godwit/internal/migration"
)

// smallCopyings exercise the same code as the others, with few files.
func smallCopyings() []copying {
	return []copying{
		{
			name: "files", link: testbed.LinkFast,
			tree:  tree.Config{Files: 300, Size: 5 * results.Kibi, Rate: 50},
			there: true, next: 3, flip: true,
			ways: []string{wayRsyncTwice, wayRsyncSSH, wayVolume, moves.WayCold, moves.WayPreCopy}, runs: 1,
		},
		{
			name: "image", link: testbed.LinkFast, tree: tree.Config{Files: 1, Size: 1},
			image: []int64{3 * results.Mebi},
			runs:  1,
			ways:  []string{wayRsyncTwice, waySave, moves.WayCold},
		},
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	config := benchtest.Config(t, benchtest.Build(t))
	result, err := measureFiles(t.Context(), config, smallCopyings())
	if err != nil {
		t.Fatal(err)
	}
	peers := []string{metricFirst, metricFirstSent, metricAgain, metricAgainSent, results.Total, metricTree}
	own := []string{results.Downtime, results.Total, results.Link, metricSourceMemory, metricTargetMemory}
	image := []string{results.Total, results.Link}
	for _, c := range []struct {
		workload, way string
		metrics       []string
	}{
		{"files", wayRsyncTwice, peers}, {"files", wayRsyncSSH, peers}, {"files", wayVolume, peers},
		{"files", moves.WayCold, own},
		{"files", moves.WayPreCopy, own}, {"image", wayRsyncTwice, image}, {"image", waySave, image},
		{"image", moves.WayCold, slices.Concat(own, []string{results.Layers})},
	} {
		for _, metric := range c.metrics {
			if row := results.Find(result.Rows, c.workload, testbed.LinkFast, c.way, metric); row == nil ||
				len(row.Samples) != 1 || *row.Median <= 0 {
				t.Errorf("%s, %s: %s is %+v, want one sample", c.workload, c.way, metric, row)
			}
		}
	}
	for _, row := range result.Rows {
		if row.Note != "" {
			t.Errorf("%s, %s: %s", row.Workload, row.Way, row.Note)
		}
	}
	if found := benchtest.Left(t, config); len(found) > 0 {
		t.Errorf("left on the machine: %q", found)
	}
}

// TestCopyings: the descriptions of the workloads are right.
func TestCopyings(t *testing.T) {
	for _, c := range copyings() {
		if _, err := testbed.ParseLink(c.link); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, way := range c.ways {
			s := testbed.Suite{}
			if made := newCopier(&s, way, c, ""); !slices.Contains(Ways(), way) || made == nil {
				t.Errorf("%s: no such way: %q", c.name, way)
			}
		}
		if quick := c.sized(true); c.part > 0 && math.Abs(quick.size()*float64(c.part)/c.size()-1) > 0.01 {
			t.Errorf("%s: a quick run has %v of %v bytes", c.name, quick.size(), c.size())
		}
		if c.runs == 0 {
			t.Errorf("%s: no runs", c.name)
		}
	}
}

// exampleCopying is a result that just meets all requirements, with a factor on the measurements.
func exampleCopying(factor float64) []results.Row {
	return []results.Row{
		benchtest.MeasuredRow(workloadLarge, testbed.LinkFast, moves.WayPreCopy, metricFirst, 1.1*factor),
		benchtest.MeasuredRow(workloadLarge, testbed.LinkFast, moves.WayPreCopy, metricTree, 125e6),
		benchtest.MeasuredRow(workloadMany, testbed.LinkFast, wayRsyncTwice, metricFirst, 3),
		benchtest.MeasuredRow(workloadMany, testbed.LinkFast, moves.WayPreCopy, metricFirst, factor),
		benchtest.MeasuredRow(workloadMany, linkFar, wayRsyncSSH, metricFirst, 10),
		benchtest.MeasuredRow(workloadMany, linkFar, moves.WayPreCopy, metricFirst, factor),
		benchtest.MeasuredRow(workloadOneFile, testbed.LinkFast, moves.WayPreCopy, results.Downtime, 0.05),
		benchtest.MeasuredRow(workloadMany, testbed.LinkFast, moves.WayPreCopy, results.Downtime,
			0.05+0.1*factor),
		benchtest.MeasuredRow(workloadByte, testbed.LinkFast, moves.WayPreCopy, results.Downtime,
			0.05+0.1*factor),
		benchtest.MeasuredRow(workloadByte, testbed.LinkFast, moves.WayPreCopy, metricAgainSent,
			results.Mebi*factor),
		benchtest.MeasuredRow(workloadThere, linkStudyA, moves.WayCold, results.Total, factor),
		benchtest.MeasuredRow(workloadThere, linkStudyA, moves.WayCold, results.Layers,
			math.Max(0, factor-1)),
		benchtest.MeasuredRow(workloadNotThere, testbed.LinkFast, moves.WayCold, results.Total, 1.3*factor),
		benchtest.MeasuredRow(workloadNotThere, testbed.LinkFast, moves.WayCold, results.Layers, 125e6),
		benchtest.MeasuredRow(workloadStore, testbed.LinkStudyD, moves.WayPreCopy, results.Downtime, factor),
		benchtest.MeasuredRow(workloadStore, testbed.LinkStudyD, moves.WayRestart, results.Downtime,
			3*factor),
		benchtest.MeasuredRow(workloadStore, testbed.LinkStudyD, moves.WayRestart, metricTargetMemory,
			64*results.Mebi*factor),
		benchtest.MeasuredRow(workloadStore, testbed.LinkStudyD, moves.WayRestart, metricSourceMemory,
			results.Mebi),
	}
}

func TestJudgeCopying(t *testing.T) {
	for factor, want := range map[float64]bool{0.999: true, 1.01: false} {
		asked := judgeCopying(exampleCopying(factor))
		if len(asked) != 12 {
			t.Errorf("%d things are judged, want 12: %+v", len(asked), asked)
		}
		for _, a := range asked {
			if a.Met != want || a.Limit > 0 && math.Abs(a.Value/a.Limit-1) > 0.02 {
				t.Errorf("with a factor of %v: %+v, want that it is met: %t", factor, a, want)
			}
		}
	}
}

func TestFilesText(t *testing.T) {
	rows := exampleCopying(1)
	rows = append(rows,
		(&results.Series{Workload: "late", Link: testbed.LinkFast, Way: wayVolume,
			Note: "it has gone\nfar away"}).Rows()...)
	var text strings.Builder
	result := results.Result{Suite: Name, Rows: rows, Asked: judgeCopying(rows)}
	result.WriteText(&text, func() { WriteRows(result, &text) })
	for _, want := range []string{"1GiB in 10 files, 1gbit/0.4ms (119.2 MiB)", "podman volume: it has gone\n",
		"1.10 s", "64.0 MiB", "met, "} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text has no %q:\n%s", want, text.String())
		}
	}
}

func TestFromFiles(t *testing.T) {
	all := []migration.FileRound{
		{SentBytes: 100, Seconds: 4, ChangedEntries: 9}, {SentBytes: 20, Seconds: 2},
		{SentBytes: 3, Seconds: 0.5, Final: true, ChangedEntries: 4},
		{Seconds: 0.25, Final: true, ChangedEntries: 1},
	}
	for _, c := range []struct {
		rounds []migration.FileRound
		want   []results.Measurement
	}{
		{all, []results.Measurement{
			{metricAgain, 0.75}, {metricAgainSent, 23}, {metricChanged, 5}, {metricFileRounds, 2},
			{metricFirst, 4}, {metricFirstSent, 100},
		}},
		{all[2:], []results.Measurement{{metricAgain, 0.75}, {metricAgainSent, 3}, {metricChanged, 5},
			{metricFileRounds, 0}}},
	} {
		if got := fromFiles(migration.Report{FileRounds: c.rounds}); !slices.Equal(got, c.want) {
			t.Errorf("of %d rounds: %+v, want %+v", len(c.rounds), got, c.want)
		}
	}
}
