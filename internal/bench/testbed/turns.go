package testbed

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/bench/results"
)

// TakeTurns measures a workload in all ways, in turn.
func (s *Suite) TakeTurns(ctx context.Context, of Turns, link string,
	measure func(way string) ([]results.Measurement, error)) error {
	all := make([]*results.Series, len(*of.Ways))
	for i, way := range *of.Ways {
		all[i] = &results.Series{Workload: of.Title, Link: link, Way: way}
	}
	s.Series = append(s.Series, all...)
	for run := range *of.Runs {
		for _, one := range all {
			if one.Note != "" {
				continue // it has dropped out
			}
			s.Say("%s, %s, %s: run %d of %d", of.Title, link, one.Way, run+1, *of.Runs)
			measured, err := measure(one.Way)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				s.GiveUp(one, err)
				continue
			}
			one.Add(measured)
		}
	}
	return nil
}

// GiveUp drops a way. A failure of another way is a result like others.
func (s *Suite) GiveUp(one *results.Series, err error) {
	one.Note = err.Error()
	err = fmt.Errorf("%s, %s, %s: %w", one.Workload, one.Link, one.Way, err)
	s.Say("%v", err)
	if IsGodwit(one.Way) {
		s.Failed = append(s.Failed, err)
	}
}

// RunInTurns runs a suite in which ways take turns: it makes the lab, measures and judges.
func RunInTurns(
	ctx context.Context, config Config, name string, measure func(context.Context, *Suite) error,
	judge func([]results.Row) []results.Asked,
) (result results.Result, err error) {
	if err := NeedRoot(); err != nil {
		return results.Result{}, err
	}
	s := &Suite{Config: config, Began: time.Now()}
	result = results.Result{Suite: name, Started: s.Began.UTC(), Rows: []results.Row{},
		Asked: []results.Asked{}}
	if result.Host, err = s.Prepare(); err != nil {
		return result, err
	}
	err = s.InLab(ctx, func(ctx context.Context) error { return measure(ctx, s) })
	for _, one := range s.Series {
		result.Rows = append(result.Rows, one.Rows()...)
	}
	result.Asked = judge(result.Rows)
	return result, err
}
