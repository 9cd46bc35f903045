package journey

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/migration"
)

// Name is the name of the benchmark.
const Name = "journey"

// The ways of the suite journey: how much of the user's path is known.
const (
	wayNothing  = "godwit, nothing staged"
	wayPath     = "godwit, path known"
	wayNearest1 = "godwit, nearest 1"
	wayNearest2 = "godwit, nearest 2"
)

// Ways lists the ways of the suite journey.
func Ways() []string { return []string{wayNothing, wayPath, wayNearest1, wayNearest2} }

// Metrics of the suite journey. Those of moves are medians of a journey; bytes are totals.
const (
	metricWorst  = "worst_handoff_seconds"
	metricStaged = "staged_bytes"         // ahead of moves
	metricVain   = "staged_in_vain_bytes" // of these, to nodes to which the user did not go
	metricMoved  = "moved_bytes"          // by the migrations
	metricAll    = "all_bytes"            // both
)

// journeyNodes stand in a row, along which the user moves: the round trip is proportional to the distance.
var journeyNodes = [...]string{"a", "b", "c", "d"}

// journey is a user who moves along all nodes and stays at each for a while, with a container that follows.
type journey struct {
	moves.Workload
	link  string // between neighbours
	stay  time.Duration
	ways  []string
	runs  int
	quick int
}

func journeys() []journey {
	return []journey{
		{moves.OfPages("64MiB, 1 MB/s to 4 MB", pages.Config{Size: 64 * results.Mebi, Rate: 1e6, Hot: 4e6}),
			"100mbit/10ms",
			20 * time.Second, Ways(), 3, 1},
		{moves.OfPages("32MiB, 0.2 MB/s to 2 MB", pages.Config{Size: 32 * results.Mebi, Rate: 2e5, Hot: 2e6}),
			"20mbit/20ms", 40 * time.Second, Ways(), 1, 0},
	}
}

// Names lists the workloads of the suite journey.
func Names() []string {
	return testbed.NamesOf(journeys(), func(j journey) string { return j.Name })
}

// Run measures the benefit of knowing a user's path, or of staging on all neighbours.
func Run(ctx context.Context, config testbed.Config) (results.Result, error) {
	selected, err := testbed.SelectTurns(config, journeys(), Ways(), func(j *journey) testbed.Turns {
		return testbed.Turns{Title: j.Name, Ways: &j.ways, Runs: &j.runs, Quick: j.quick}
	})
	if err != nil {
		return results.Result{}, err
	}
	config.Nodes = len(journeyNodes)
	measure := func(ctx context.Context, s *testbed.Suite) error {
		for _, j := range selected {
			if err := measureJourney(ctx, s, j); err != nil {
				return fmt.Errorf("%s: %w", j.Name, err)
			}
		}
		return nil
	}
	return testbed.RunInTurns(ctx, config, Name, measure, judgeJourney)
}

func measureJourney(ctx context.Context, s *testbed.Suite, j journey) error {
	archive, err := moves.BuildImage(ctx, s, j.Workload)
	if err != nil {
		return err
	}
	if err := layOut(s, j.link); err != nil {
		return err
	}
	for _, node := range journeyNodes {
		if _, err := s.Bed.Exec(ctx, node, testbed.Program, "image", "load", archive); err != nil {
			return err
		}
		// measurements of other links are useless
		if _, err := s.Bed.Exec(ctx, node, testbed.Program, "nodes", "--measure"); err != nil {
			return err
		}
	}
	return s.TakeTurns(ctx, testbed.Turns{Title: j.Name, Ways: &j.ways, Runs: &j.runs}, j.link,
		func(way string) ([]results.Measurement, error) {
			return travel(ctx, s, j, way)
		})
}

// layOut gives each pair of nodes a link whose latency fits their distance.
func layOut(s *testbed.Suite, name string) error {
	shape, err := testbed.ParseLink(name)
	if err != nil {
		return err
	}
	for i, a := range journeyNodes {
		for k, b := range journeyNodes[i+1:] {
			link := lab.Link{BandwidthBitsPerSecond: shape.BandwidthBitsPerSecond,
				RTT: time.Duration(k+1) * shape.RTT}
			if err := s.Bed.Lab.SetLink(a, b, link); err != nil {
				return err
			}
		}
	}
	return nil
}

// traveller is one journey.
type traveller struct {
	*moves.Godwit
	way     string
	stay    time.Duration
	staged  map[string]float64 // bytes, by the node of the copy, since the user was there
	vain    float64            // to nodes whose copy has gone
	used    float64
	reports []migration.Report
}

// travel makes one journey. It verifies all of the memory in the end.
func travel(ctx context.Context, s *testbed.Suite, j journey, way string) (measured []results.Measurement,
	err error) {
	g := moves.NewGodwit(s.Bed, migration.PreCopy, j.Workload, "")
	t := &traveller{Godwit: g, way: way, stay: j.stay, staged: map[string]float64{}}
	if err := g.Run(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.RemoveContainer(context.WithoutCancel(ctx))) }()
	container, err := g.Inspect(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.Bed.AwaitMemory(ctx, g.At, container.PID, j.Memory.Size); err != nil {
		return nil, err
	}
	began := time.Now()
	if flags := t.flags(); len(flags) > 0 {
		if _, err := s.Bed.Exec(ctx, g.At,
			append([]string{testbed.Program, "stage", g.Container()}, flags...)...); err != nil {
			return nil, err
		}
	}
	for i, node := range journeyNodes[1:] {
		if err := t.sojourn(ctx, began.Add(time.Duration(i+1)*j.stay)); err != nil {
			return nil, err
		}
		if err := t.moveTo(ctx, node); err != nil {
			return nil, err
		}
	}
	if err := t.count(ctx); err != nil {
		return nil, err
	}
	return t.measured(), nil
}

// flags returns the flags of stage.
func (t *traveller) flags() []string {
	switch t.way {
	case wayPath:
		var stops []string
		for i, node := range journeyNodes[1:] {
			stops = append(stops, fmt.Sprintf("%s@%s", node, time.Duration(i+1)*t.stay))
		}
		return []string{"--path", strings.Join(stops, ",")}
	case wayNearest1:
		return []string{"--nearest", "1", "--budget", "1GiB"}
	case wayNearest2:
		return []string{"--nearest", "2", "--budget", "1GiB"}
	}
	return nil
}

// countEvery is the interval between counts of staged bytes.
const countEvery = time.Second

// sojourn is the user's stay. If nothing is staged, its length does not matter.
func (t *traveller) sojourn(ctx context.Context, until time.Time) error {
	for t.way != wayNothing && time.Now().Before(until) {
		if err := t.count(ctx); err != nil {
			return err
		}
		if err := testbed.Pause(ctx, min(countEvery, time.Until(until))); err != nil {
			return err
		}
	}
	return nil
}

// count reads how much was sent for copies. Bytes for a copy that no longer exists were sent in vain.
func (t *traveller) count(ctx context.Context) error {
	if t.way == wayNothing {
		return nil
	}
	var list []migration.Stage
	if err := t.Ask(ctx, &list, "stage", "ls", "--json"); err != nil {
		return err
	}
	now := map[string]float64{}
	for _, one := range list {
		if one.Container == t.Container() && one.Placement != nil {
			now[one.Target] = float64(one.SentBytes)
		}
	}
	if len(now) == 0 && len(t.staged) > 0 && t.At != journeyNodes[len(journeyNodes)-1] {
		return nil // the policy is on its way
	}
	for node, bytes := range t.staged {
		if now[node] < bytes {
			t.vain += bytes
		}
	}
	t.staged = now
	return nil
}

// moveTo moves the container after the user.
func (t *traveller) moveTo(ctx context.Context, node string) error {
	if err := t.count(ctx); err != nil {
		return err
	}
	var report migration.Report
	if err := t.Ask(ctx, &report, "migrate", t.Container(), node, "--mode", string(t.Mode), "--wait",
		"--json"); err != nil {
		return err
	}
	t.used += t.staged[node]
	delete(t.staged, node)
	t.At = report.Target
	t.reports = append(t.reports, report)
	return nil
}

func (t *traveller) measured() []results.Measurement {
	vain := t.vain
	for _, bytes := range t.staged {
		vain += bytes
	}
	var downtimes, handoffs, totals []float64
	moved := 0.0
	for _, r := range t.reports {
		downtimes, handoffs, totals = append(downtimes, r.DowntimeSeconds),
			append(handoffs, r.HandoffSeconds), append(totals, r.TotalSeconds)
		b := r.Bytes
		moved += float64(b.MemoryPrecopy + b.MemoryFinal + b.FilesPrecopy + b.FilesFinal + b.Metadata)
	}
	handoff := results.Summarise(handoffs)
	return []results.Measurement{
		{results.Downtime, results.Summarise(downtimes).Median}, {results.Handoff, handoff.Median},
		{metricWorst, handoff.High},
		{results.Total, results.Summarise(totals).Median}, {metricMoved, moved},
		{metricStaged, t.used + vain},
		{metricVain, vain},
		{metricAll, moved + t.used + vain},
	}
}

// Requirements of copies that are made ahead.
const (
	journeyHandoff = 0.25 // of the handoff with nothing staged
	journeyBytes   = 1.5  // of the bytes with nothing staged, where the path is known
)

func judgeJourney(rows []results.Row) []results.Asked {
	m := results.Medians(rows)
	var asked []results.Asked
	for _, j := range journeys() {
		nothing := m.Of(j.Name, j.link, wayNothing, results.Handoff)
		for _, way := range []string{wayPath, wayNearest2} {
			what := fmt.Sprintf("%s, %s: handoff at most %.2f x that with nothing staged", way, j.Name,
				journeyHandoff)
			asked = append(asked, results.AtMost(what, m.Of(j.Name, j.link, way, results.Handoff),
				journeyHandoff*nothing))
		}
		bytes := results.AtMost(
			fmt.Sprintf("%s, %s: sent in all at most %.1f x that with nothing staged", wayPath,
				j.Name, journeyBytes),
			m.Of(j.Name, j.link, wayPath, metricAll),
			journeyBytes*m.Of(j.Name, j.link, wayNothing, metricAll))
		bytes.Unit = "bytes"
		asked = append(asked, bytes)
	}
	return slices.DeleteFunc(asked,
		func(a results.Asked) bool { return math.IsNaN(a.Value) || math.IsNaN(a.Limit) })
}

// WriteRows prints a table for each workload.
func WriteRows(r results.Result, w io.Writer) {
	r.WriteWays(w, results.WayTable{
		Columns: []results.Column{
			{"downtime", results.Downtime}, {"handoff", results.Handoff}, {"worst", metricWorst},
			{"total", results.Total}, {"sent by moves", metricMoved},
			{"staged", metricStaged}, {"in vain", metricVain}, {"in all", metricAll},
		},
		Ways: Ways(),
	})
}
