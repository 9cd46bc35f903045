package predict

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/services"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

// Name is the name of the benchmark.
const Name = "predict"

// Metrics of the suite predict. Errors are shares of the measured value, and 0 if the difference is below
// unnoticed; for values within their interval, the metric is their share.
const (
	metricForetoldDowntime = "foretold_downtime_seconds"
	metricForetoldTotal    = "foretold_total_seconds"
	metricForetoldBytes    = "foretold_bytes"
	metricForetoldWaiting  = "foretold_waiting_seconds"
	metricDowntimeError    = "downtime_error_ratio"
	metricTotalError       = "total_error_ratio"
	metricDowntimeWithin   = "downtime_within_ratio"
	metricTotalWithin      = "total_within_ratio"
	metricWaitedWithin     = "waited_within_ratio"
	// metricStalled is the freeze and the time after it in which a thread waited for pages: no client waits
	// longer.
	metricStalled = "stalled_seconds"
	unnoticed     = 0.030 // seconds
)

// Requirements of predictions and choices.
const (
	medianError, usualError, mostError = 0.2, 0.3, 0.5
	autoFactor, autoSlack              = 1.2, 0.020
	autoShare                          = 0.9
	withinShare                        = 0.9 // of values in their intervals
)

// Ways lists the ways of the suite predict.
func Ways() []string { return append(foretoldModes(), moves.WayAuto, moves.WayRestart) }

// foretoldModes returns the modes among which auto chooses.
func foretoldModes() []string {
	return []string{moves.WayCold, moves.WayPreCopy, moves.WayHybrid, moves.WayPostCopy}
}

// foretold is a workload that is moved in all modes over several links, with a prediction before each move.
type foretold struct {
	moves.Workload
	app   *services.App // of a study; nil: none
	links []string
	ways  []string
	runs  int
	quick int
}

func foretolds() []foretold {
	links := []string{testbed.LinkFast, testbed.LinkMiddle, "20mbit/50ms"}
	of := func(w moves.Workload, quick int) foretold {
		return foretold{Workload: w, links: links, ways: append(foretoldModes(), moves.WayAuto), runs: 3,
			quick: quick}
	}
	coap := services.CoAP(500)
	service := of(moves.Workload{Name: coap.Name, Image: coap.Image}, 0)
	service.app, service.links = &coap, links[:2]
	shell := of(moves.Workload{Name: "shell", Image: "busybox",
		Args: []string{"sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"}}, 1)
	shell.ways = []string{moves.WayRestart}
	return []foretold{
		shell,
		of(moves.Workload{Name: moves.WorkloadTiny, Image: "busybox", Args: []string{"sleep", "1000000"}}, 1),
		of(moves.OfPages("32MiB, idle", pages.Config{Size: 32 * results.Mebi}), 0),
		of(moves.OfPages("64MiB, 2 MB/s to 8 MB",
			pages.Config{Size: 64 * results.Mebi, Rate: 2e6, Hot: 8e6, Half: true}),
			1),
		of(moves.OfPages("32MiB, 20 MB/s to 16 MB",
			pages.Config{Size: 32 * results.Mebi, Rate: 20e6, Hot: 16e6}),
			0),
		of(moves.Workload{Name: moves.WorkloadRedis, Image: "redis", Port: moves.RedisPort}, 0),
		service,
	}
}

// Names lists the workloads of the suite predict.
func Names() []string {
	return testbed.NamesOf(foretolds(), func(f foretold) string { return f.Name })
}

// Run compares predictions of migrations with their results, and mode auto's choices with the best
// mode.
func Run(ctx context.Context, config testbed.Config) (results.Result, error) {
	selected,
		err := testbed.SelectTurns(config, foretolds(), Ways(), func(f *foretold) testbed.Turns {
		return testbed.Turns{Title: f.Name, Ways: &f.ways, Runs: &f.runs, Quick: f.quick}
	})
	if err != nil {
		return results.Result{}, err
	}
	config.Users = slices.ContainsFunc(selected, func(f foretold) bool { return f.app != nil })
	measure := func(ctx context.Context, s *testbed.Suite) error {
		for _, f := range selected {
			if err := measureForetold(ctx, s, f); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
		}
		return nil
	}
	return testbed.RunInTurns(ctx, config, Name, measure, judgeForetold)
}

// measureForetold moves one container again and again, and verifies its memory in the end.
func measureForetold(ctx context.Context, s *testbed.Suite, f foretold) (err error) {
	archive, err := moves.BuildImage(ctx, s, f.Workload)
	if err != nil {
		return err
	}
	if err := s.SetLink(testbed.LinkFast); err != nil {
		return err
	}
	seer, err := newSeer(ctx, s, f, archive)
	defer func() { err = errors.Join(err, seer.stop(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	for _, link := range f.links {
		if err := s.ChangeLink(ctx, link); err != nil {
			return err
		}
		of := testbed.Turns{Title: f.Name, Ways: &f.ways, Runs: &f.runs}
		if err := s.TakeTurns(ctx, of, link,
			func(way string) ([]results.Measurement, error) { return seer.foretell(ctx, way) }); err != nil {
			return err
		}
	}
	return seer.check(ctx)
}

// seer is a container whose moves are predicted.
type seer struct {
	*moves.Godwit
	stop   func(context.Context) error
	check  func(context.Context) error
	answer func(context.Context) error // waits until its client is served again
}

func newSeer(ctx context.Context, s *testbed.Suite, f foretold, archive string) (*seer, error) {
	none := func(context.Context) error { return nil }
	if f.app != nil {
		g := services.NewContainer(s.Bed, *f.app, archive)
		served := func(ctx context.Context) error { return services.AwaitAnswers(ctx, g.Client) }
		return &seer{g.Godwit, g.Stop, g.Check, served}, g.Start(ctx, testbed.Nodes[:]...)
	}
	g := moves.NewGodwit(s.Bed, migration.Auto, f.Workload, archive)
	one := &seer{g, g.Stop, none, none}
	if f.Port != 0 {
		one.answer = func(ctx context.Context) error { return g.Users.Count(ctx) }
	}
	return one, g.Start(ctx)
}

// foretell predicts a move, and makes it.
func (g *seer) foretell(ctx context.Context, way string) ([]results.Measurement, error) {
	if err := g.answer(ctx); err != nil {
		return nil, err
	}
	var plan predict.Plan
	if err := g.Ask(ctx, &plan, "plan", g.Container(), testbed.Other(g.At), "--json", "--measure",
		"1s"); err != nil {
		return nil, err
	}
	var report migration.Report
	if err := g.Ask(ctx, &report, "migrate", g.Container(), testbed.Other(g.At), "--mode",
		way[len("godwit "):],
		"--wait", "--json"); err != nil {
		return nil, err
	}
	g.At = report.Target
	if err := g.AwaitFilled(ctx); err != nil {
		return nil, err
	}
	measured := append(moves.FromReport(report), results.Measurement{metricStalled, stalled(report)})
	// Use the prediction for auto's choice.
	i := slices.IndexFunc(plan.Predictions, func(p predict.Prediction) bool { return p.Mode == report.Mode })
	if i < 0 {
		return measured, nil
	}
	return append(measured, compared(plan.Predictions[i], report)...), nil
}

// stalled returns the longest time that a client can have waited.
func stalled(report migration.Report) float64 {
	if report.Push == nil {
		return report.DowntimeSeconds
	}
	return report.DowntimeSeconds + report.Push.WaitingShare*report.Push.Seconds
}

// compared returns the comparison of a prediction with the result.
func compared(p predict.Prediction, report migration.Report) []results.Measurement {
	all := []results.Measurement{
		{metricForetoldDowntime, p.Downtime.Expected}, {metricForetoldTotal, p.Total.Expected},
		{metricForetoldBytes, p.Bytes.Expected},
		{metricDowntimeError, wrongBy(p.Downtime.Expected, report.DowntimeSeconds)},
		{metricTotalError, wrongBy(p.Total.Expected, report.TotalSeconds)},
		{metricDowntimeWithin, isWithin(p.Downtime, report.DowntimeSeconds)},
		{metricTotalWithin, isWithin(p.Total, report.TotalSeconds)},
	}
	if push := report.Push; push != nil {
		all = append(all, results.Measurement{metricForetoldWaiting, p.Waiting.Expected},
			results.Measurement{results.WaitedInAll, push.WaitedSeconds},
			results.Measurement{metricWaitedWithin, isWithin(p.Waiting, push.WaitedSeconds)})
	}
	return all
}

// isWithin returns 1 if a value is in its interval.
func isWithin(i predict.Interval, value float64) float64 {
	if value < i.Low || value > i.High {
		return 0
	}
	return 1
}

// wrongBy returns the error of a prediction as a share of the measured value; 0 if nobody notices it.
func wrongBy(expected, measured float64) float64 {
	difference := math.Abs(expected - measured)
	if difference <= unnoticed || measured <= 0 {
		return 0
	}
	return difference / measured
}

// judgeForetold compares errors, intervals and choices with the requirements.
func judgeForetold(rows []results.Row) []results.Asked {
	var asked []results.Asked
	for metric, what := range map[string]string{metricDowntimeError: "downtime",
		metricTotalError: "total time"} {
		errors := samplesOf(rows, metric)
		if len(errors) == 0 {
			continue
		}
		slices.Sort(errors)
		for share, limit := range map[float64]float64{0.5: medianError, 0.8: usualError, 0.9: mostError} {
			value := errors[min(len(errors)-1, int(share*float64(len(errors))))]
			asked = append(asked, results.Asked{
				What: fmt.Sprintf("prediction of the %s: wrong by at most %.0f %%, or %.0f ms, in %.0f %% "+
					"of %d moves", what, limit*100, unnoticed*1e3,
					share*100, len(errors)),
				Unit: "ratio", Limit: limit, Value: value, Met: value <= limit,
			})
		}
	}
	for metric, what := range map[string]string{
		metricDowntimeWithin: "downtime", metricTotalWithin: "total time",
		metricWaitedWithin: "waiting for pages that follow",
	} {
		if within := samplesOf(rows, metric); len(within) > 0 {
			share := mean(within)
			asked = append(asked, results.Asked{
				What: fmt.Sprintf("interval of the %s: share of %d moves that were within", what,
					len(within)),
				Unit: "ratio", Least: true, Limit: withinShare, Value: share, Met: share >= withinShare,
			})
		}
	}
	slices.SortFunc(asked, func(a, b results.Asked) int { return cmp.Compare(a.What, b.What) })
	return append(asked, judgeAuto(rows)...)
}

func samplesOf(rows []results.Row, metric string) (all []float64) {
	for _, row := range rows {
		if row.Metric == metric {
			all = append(all, row.Samples...)
		}
	}
	return all
}

func mean(all []float64) (sum float64) {
	for _, one := range all {
		sum += one / float64(len(all))
	}
	return sum
}

// judgeAuto compares mode auto with the best of all modes, cell by cell.
func judgeAuto(rows []results.Row) []results.Asked {
	m := results.Medians(rows)
	cells, good, worst := 0.0, 0.0, 0.0
	for _, f := range foretolds() {
		for _, link := range f.links {
			auto := m.Of(f.Name, link, moves.WayAuto, metricStalled)
			least, most := math.NaN(), math.NaN()
			for _, way := range foretoldModes() {
				if d := m.Of(f.Name, link, way, metricStalled); !math.IsNaN(d) {
					least, most = math.Min(d, orElse(least, d)), math.Max(d, orElse(most, d))
				}
			}
			if math.IsNaN(auto) || math.IsNaN(least) {
				continue
			}
			cells++
			if auto <= autoFactor*least+autoSlack {
				good++
			} else if auto >= most {
				worst++
			}
		}
	}
	if cells == 0 {
		return nil
	}
	return []results.Asked{
		{
			What: fmt.Sprintf("auto: clients wait at most %.1f x the best mode's longest wait + %.0f ms, "+
				"share of %.0f cells", autoFactor, autoSlack*1e3, cells),
			Unit: "ratio", Least: true, Limit: autoShare, Value: good / cells, Met: good/cells >= autoShare,
		},
		{What: "auto: cells in which it is as bad as the worst mode, and not as good as the best",
			Unit: "cells", Value: worst, Met: worst == 0},
	}
}

func orElse(x, other float64) float64 {
	if math.IsNaN(x) {
		return other
	}
	return x
}
