package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/bench/results"
)

// turns describes how ways take turns at a workload.
type turns struct {
	title string
	ways  *[]string
	runs  *int // of each way
	quick int  // in a quick run; 0: none
}

// selectTurns selects workloads for a configuration, with its ways and numbers of runs.
func selectTurns[T any](c Config, all []T, ways []string, of func(*T) turns) ([]T, error) {
	if c.Runs < 0 {
		return nil, fmt.Errorf("%d runs: must not be negative", c.Runs)
	}
	chosen, err := choose("workload", all, func(one T) string { return of(&one).title }, c.Workloads)
	if err != nil {
		return nil, err
	}
	if _, err := choose("way", ways, itself, c.Ways); err != nil {
		return nil, err
	}
	selected := []T{}
	for _, one := range chosen {
		t := of(&one)
		// A workload may lack some of the selected ways.
		*t.ways = slices.DeleteFunc(slices.Clone(*t.ways), func(way string) bool {
			return len(c.Ways) > 0 &&
				!slices.ContainsFunc(c.Ways, func(asked string) bool { return strings.HasPrefix(way, asked) })
		})
		if c.Quick {
			*t.runs = t.quick
		}
		if c.Runs > 0 && *t.runs > 0 {
			*t.runs = c.Runs
		}
		if *t.runs > 0 && len(*t.ways) > 0 {
			selected = append(selected, one)
		}
	}
	if len(selected) == 0 {
		return nil, errors.New("nothing to measure: these workloads are not moved in these ways, or not " +
			"in a quick run")
	}
	return selected, nil
}

// takeTurns measures a workload in all ways, in turn.
func (s *suite) takeTurns(ctx context.Context, of turns, link string,
	measure func(way string) ([]results.Measurement, error)) error {
	all := make([]*results.Series, len(*of.ways))
	for i, way := range *of.ways {
		all[i] = &results.Series{Workload: of.title, Link: link, Way: way}
	}
	s.series = append(s.series, all...)
	for run := range *of.runs {
		for _, one := range all {
			if one.Note != "" {
				continue // it has dropped out
			}
			s.say("%s, %s, %s: run %d of %d", of.title, link, one.Way, run+1, *of.runs)
			measured, err := measure(one.Way)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				s.giveUp(one, err)
				continue
			}
			one.Add(measured)
		}
	}
	return nil
}

// giveUp drops a way. A failure of another way is a result like others.
func (s *suite) giveUp(one *results.Series, err error) {
	one.Note = err.Error()
	err = fmt.Errorf("%s, %s, %s: %w", one.Workload, one.Link, one.Way, err)
	s.say("%v", err)
	if isGodwit(one.Way) {
		s.failed = append(s.failed, err)
	}
}

func isGodwit(way string) bool { return strings.HasPrefix(way, "godwit") }

// runInTurns runs a suite in which ways take turns: it makes the lab, measures and judges.
func runInTurns(
	ctx context.Context, config Config, name string, measure func(context.Context, *suite) error,
	judge func([]results.Row) []results.Asked,
) (result results.Result, err error) {
	if err := needRoot(); err != nil {
		return results.Result{}, err
	}
	s := &suite{config: config, began: time.Now()}
	result = results.Result{Suite: name, Started: s.began.UTC(), Rows: []results.Row{},
		Asked: []results.Asked{}}
	if result.Host, err = s.prepare(); err != nil {
		return result, err
	}
	err = s.inLab(ctx, func(ctx context.Context) error { return measure(ctx, s) })
	for _, one := range s.series {
		result.Rows = append(result.Rows, one.Rows()...)
	}
	result.Asked = judge(result.Rows)
	return result, err
}
