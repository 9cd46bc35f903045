package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

const suitePredict = "predict"

// Metrics of the suite predict. Errors are shares of what was measured, and none where both are within unnoticed.
const (
	metricForetoldDowntime = "foretold_downtime_seconds"
	metricForetoldTotal    = "foretold_total_seconds"
	metricDowntimeError    = "downtime_error_ratio"
	metricTotalError       = "total_error_ratio"
	unnoticed              = 0.030 // seconds
)

// What is asked of predictions and choices.
const (
	medianError, mostError = 0.2, 0.5
	autoFactor, autoSlack  = 1.2, 0.020
	autoShare              = 0.9
)

// ForetoldWays lists the ways of the suite predict.
func ForetoldWays() []string { return []string{wayCold, wayPreCopy, wayHybrid, wayPostCopy, wayAuto} }

// foretold is a workload that is moved in all modes over some links, each move predicted before.
type foretold struct {
	containerWorkload
	links []string
	ways  []string
	runs  int
	quick int
}

func foretolds() []foretold {
	links := []string{linkFast, linkMiddle, "20mbit/50ms"}
	of := func(name string, config pages.Config, quick int) foretold {
		return foretold{ofPages(name, config), links, ForetoldWays(), 3, quick}
	}
	return []foretold{
		{containerWorkload{name: workloadTiny, image: "busybox", args: []string{"sleep", "1000000"}}, links, ForetoldWays(), 3, 1},
		of("32MiB, idle", pages.Config{Size: 32 * mebi}, 0),
		of("64MiB, 2 MB/s to 8 MB", pages.Config{Size: 64 * mebi, Rate: 2e6, Hot: 8e6, Half: true}, 1),
		of("32MiB, 20 MB/s to 16 MB", pages.Config{Size: 32 * mebi, Rate: 20e6, Hot: 16e6}, 0),
	}
}

// ForetoldNames lists the workloads of the suite predict.
func ForetoldNames() []string {
	return namesOf(foretolds(), func(f foretold) string { return f.name })
}

// Predict compares what was predicted of migrations with what they took, and what mode auto has chosen with the best mode.
func Predict(ctx context.Context, config Config) (Result, error) {
	selected, err := selectTurns(config, foretolds(), ForetoldWays(), func(f *foretold) turns {
		return turns{title: f.name, ways: &f.ways, runs: &f.runs, quick: f.quick}
	})
	if err != nil {
		return Result{}, err
	}
	measure := func(ctx context.Context, s *suite) error {
		for _, f := range selected {
			if err := s.measureForetold(ctx, f); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
		return nil
	}
	return runInTurns(ctx, config, suitePredict, measure, judgeForetold)
}

// measureForetold moves one container again and again. All of its memory is verified in the end.
func (s *suite) measureForetold(ctx context.Context, f foretold) (err error) {
	archive, err := s.buildImage(ctx, f.containerWorkload)
	if err != nil {
		return err
	}
	if err := s.setLink(linkFast); err != nil {
		return err
	}
	g := newGodwitWay(s.bed, migration.Auto, f.containerWorkload, archive)
	if err := g.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.stop(context.WithoutCancel(ctx))) }()
	for _, link := range f.links {
		if err := s.changeLink(ctx, link); err != nil {
			return err
		}
		of := turns{title: f.name, ways: &f.ways, runs: &f.runs}
		err := s.takeTurns(ctx, of, link, func(way string) ([]measurement, error) { return g.foretell(ctx, way) })
		if err != nil {
			return err
		}
	}
	return nil
}

// changeLink is setLink where the agents know of it: what they knew of the old link is of no use.
func (s *suite) changeLink(ctx context.Context, link string) error {
	if err := s.setLink(link); err != nil {
		return err
	}
	for _, node := range nodes {
		for range 2 {
			if _, err := s.bed.exec(ctx, node, program, "nodes"); err != nil {
				return err
			}
		}
	}
	return nil
}

// foretell has a move predicted, and makes it.
func (g *godwitWay) foretell(ctx context.Context, way string) ([]measurement, error) {
	var plan predict.Plan
	if err := g.ask(ctx, &plan, "plan", g.container(), other(g.at), "--json", "--measure", "1s"); err != nil {
		return nil, err
	}
	mode := way[len("godwit "):]
	var report migration.Report
	if err := g.ask(ctx, &report, "migrate", g.container(), other(g.at), "--mode", mode, "--wait", "--json"); err != nil {
		return nil, err
	}
	g.at = report.Target
	measured := fromReport(report)
	if err := g.awaitFilled(ctx); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(plan.Predictions, func(p predict.Prediction) bool { return string(p.Mode) == mode })
	if i < 0 {
		return measured, nil
	}
	p := plan.Predictions[i]
	return append(measured,
		measurement{metricForetoldDowntime, p.Downtime.Expected}, measurement{metricForetoldTotal, p.Total.Expected},
		measurement{metricDowntimeError, wrongBy(p.Downtime.Expected, report.DowntimeSeconds)},
		measurement{metricTotalError, wrongBy(p.Total.Expected, report.TotalSeconds)}), nil
}

// wrongBy is by which share of what was measured a prediction is wrong; none if nobody notices.
func wrongBy(expected, measured float64) float64 {
	difference := math.Abs(expected - measured)
	if difference <= unnoticed || measured <= 0 {
		return 0
	}
	return difference / measured
}

// judgeForetold compares errors and choices with what is asked.
func judgeForetold(rows []Row) []Asked {
	var asked []Asked
	for metric, what := range map[string]string{metricDowntimeError: "downtime", metricTotalError: "total time"} {
		var errors []float64
		for _, row := range rows {
			if row.Metric == metric {
				errors = append(errors, row.Samples...)
			}
		}
		if len(errors) == 0 {
			continue
		}
		slices.Sort(errors)
		for share, limit := range map[float64]float64{0.5: medianError, 0.9: mostError} {
			value := errors[min(len(errors)-1, int(share*float64(len(errors))))]
			asked = append(asked, Asked{
				What: fmt.Sprintf("prediction of the %s: wrong by at most %.0f %%, or %.0f ms, in %.0f %% of %d moves", what, limit*100, unnoticed*1e3,
					share*100, len(errors)),
				Unit: "ratio", Limit: limit, Value: value, Met: value <= limit,
			})
		}
	}
	slices.SortFunc(asked, func(a, b Asked) int { return cmp.Compare(a.What, b.What) })
	return append(asked, judgeAuto(rows)...)
}

// judgeAuto compares mode auto with the best of all modes, cell by cell.
func judgeAuto(rows []Row) []Asked {
	m := medians(rows)
	cells, good, worst := 0.0, 0.0, 0.0
	for _, f := range foretolds() {
		for _, link := range f.links {
			auto := m.downtime(f.name, link, wayAuto)
			least, most := math.NaN(), math.NaN()
			for _, way := range ForetoldWays()[:4] {
				if d := m.downtime(f.name, link, way); !math.IsNaN(d) {
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
	return []Asked{
		{
			What: fmt.Sprintf("auto: downtime at most %.1f x the best mode's + %.0f ms, share of %.0f cells", autoFactor, autoSlack*1e3, cells),
			Unit: "ratio", Least: true, Limit: autoShare, Value: good / cells, Met: good/cells >= autoShare,
		},
		{What: "auto: cells in which it is as bad as the worst mode, and not as good as the best", Unit: "cells", Value: worst, Met: worst == 0},
	}
}

func orElse(x, other float64) float64 {
	if math.IsNaN(x) {
		return other
	}
	return x
}
