package studies

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/bench/benchtest"
	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/services"
	"github.com/godwit/godwit/internal/bench/testbed"
)

// shortTrials move the small workloads of the studies, so that each mode has its turn; if the environment
// says so, all workloads in all modes, RabbitMQ with fewer messages.
func shortTrials() []trial {
	modes := []string{moves.WayAuto, moves.WayCold, moves.WayPreCopy, moves.WayPostCopy, moves.WayHybrid}
	system := services.Blank()
	system.Image = "system"
	short := []trial{
		{study: "a", app: services.Busybox(), ways: []string{moves.WayRsync, moves.WayAuto, wayStagedHybrid}},
		{study: "c", app: system, ways: []string{moves.WayPreCopy, moves.WayPostCopy}},
	}
	if os.Getenv("GODWIT_STUDIES") == "all" {
		short[0].ways, short[1].ways = append([]string{moves.WayRsync, wayStagedHybrid}, modes...), modes
		short = append(short,
			trial{study: "a", app: services.Recogniser(), ways: append(modes, moves.WayRsync)},
			trial{study: "b", app: services.CoAP(500), ways: append(modes, moves.WayRsync, moves.WayLazy)},
			trial{study: "c", app: services.Video(), ways: modes},
			trial{study: "c", app: services.Blank(), ways: []string{moves.WayPreCopy}, absent: true},
			trial{study: "d", app: services.Broker(20e6, 20),
				ways: append(modes, moves.WayRestart, moves.WayStopped, wayRestartRsync)},
		)
	}
	for i := range short {
		short[i].links, short[i].runs = []string{testbed.LinkFast}, 1
	}
	return short
}

func TestStudies(t *testing.T) {
	t.Parallel()
	config := benchtest.Config(t, benchtest.Build(t))
	result, err := studies(t.Context(), config, shortTrials())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shortTrials() {
		for _, way := range s.ways {
			for _, metric := range []string{results.Downtime, results.Total, metricTotalLimit} {
				if row := results.Find(result.Rows, s.title(), testbed.LinkFast, way, metric); row == nil ||
					len(row.Samples) != 1 || *row.Median <= 0 {
					t.Errorf("%s, %s: %s is %+v, want one sample", s.title(), way, metric, row)
				}
			}
			if row := results.Find(result.Rows, s.title(), testbed.LinkFast, way,
				results.Gap); testbed.IsGodwit(way) &&
				(row == nil || *row.Median <= 0) {
				t.Errorf("%s, %s: the client's longest gap is %+v", s.title(), way, row)
			}
		}
	}
	for _, row := range result.Rows {
		if row.Note != "" {
			t.Errorf("%s, %s: %s", row.Workload, row.Way, row.Note)
		}
	}
	for _, trace := range result.Traces {
		if len(trace.Points) < services.Settled {
			t.Errorf("%s, %s: the client had %d answers", trace.Workload, trace.Way, len(trace.Points))
		}
	}
	if err := result.WriteFile(filepath.Join(t.TempDir(), "result.json")); err != nil {
		t.Error(err)
	}
	if found := benchtest.Left(t, config); len(found) > 0 {
		t.Errorf("left on the machine: %q", found)
	}
}

// TestTrials: the descriptions of the trials, and the studies' published figures, are right.
func TestTrials(t *testing.T) {
	known := map[string]bool{}
	for _, s := range trials() {
		for _, link := range s.links {
			known[s.title()+link] = true
			if _, err := testbed.ParseLink(link); err != nil {
				t.Errorf("%s: %v", s.title(), err)
			}
		}
		for _, way := range slices.Concat(s.ways, s.few) {
			if !slices.Contains(Ways(), way) || !slices.Contains(s.ways, way) {
				t.Errorf("%s: no such way: %q", s.title(), way)
			}
		}
	}
	for _, p := range publishedFigures() {
		of := trial{study: p.study, app: services.App{Name: p.app}}
		if !known[of.title()+p.link] {
			t.Errorf("figures are published of %s, %s, which is not measured", of.title(), p.link)
		}
	}
}

func TestSelectedTrials(t *testing.T) {
	chosen, err := selectedTrials(
		testbed.Config{Studies: []string{"a"}, Quick: true, Ways: []string{"godwit"}})
	if err != nil || len(chosen) != 2 {
		t.Fatalf("%d trials, %v", len(chosen), err)
	}
	quick, err := selectedTrials(testbed.Config{Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, study := range []string{"a", "b", "c", "d"} {
		if !slices.ContainsFunc(quick,
			func(one trial) bool { return one.study == study && slices.Contains(one.ways, moves.WayAuto) }) {
			t.Errorf("a quick run has nothing of study %s that auto does", study)
		}
	}
	for _, one := range chosen {
		if len(one.links) != 1 ||
			slices.ContainsFunc(one.ways, func(way string) bool { return !testbed.IsGodwit(way) }) {
			t.Errorf("%s: over %q by %q", one.title(), one.links, one.ways)
		}
	}
	for _, bad := range []testbed.Config{{Studies: []string{"e"}}, {Links: []string{"fast"}},
		{Ways: []string{"pigeon"}}} {
		if _, err := selectedTrials(bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func TestJudgeStudies(t *testing.T) {
	workload := (&trial{study: "a", app: services.Recogniser()}).title()
	value := func(way, metric string, v float64) results.Row {
		return results.Row{Workload: workload, Link: linkStudyA20, Way: way, Metric: metric, Median: &v}
	}
	rows := []results.Row{
		value(moves.WayCold, results.Downtime, 20), value(moves.WayHybrid, results.Downtime, 0.3),
		value(moves.WayPostCopy, results.Downtime, 0.2),
		value(wayStagedHybrid, results.Sent, 30*mega), value(moves.WayPostCopy, metricDowntimeLimit, 0.1),
	}
	asked := judgeStudies(withPublished(rows))
	if len(asked) != 2 {
		t.Fatalf("asked: %+v", asked)
	}
	if down := asked[0]; down.Value != 0.2 || !down.Met || down.Way != moves.WayPostCopy ||
		down.Reach == nil ||
		*down.Reach != 0.1 {
		t.Errorf("downtime: %+v", down)
	}
	if sent := asked[1]; sent.Limit != 21.2*mega || sent.Met {
		t.Errorf("sent: %+v", sent)
	}
	asked = judgeStudies(withPublished(append(rows, value(moves.WayAuto, results.Downtime, 0.9))))
	if down := asked[0]; down.Way != moves.WayAuto || down.Met {
		t.Errorf("with the automatic choice measured, which is what counts: %+v", down)
	}
}
