package switchover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// Name is the name of the benchmark.
const Name = "switchover"

// Run measures how long a container stands still when it is moved, by Godwit and in other ways. When
// it returns, it has cleaned up the machine. If some ways failed, the result has the other measurements,
// and the error lists the failures.
func Run(ctx context.Context, config testbed.Config) (result results.Result, err error) {
	s, chosen, err := newSuite(config)
	if err != nil {
		return results.Result{}, err
	}
	result = results.Result{Suite: Name, Started: s.Began.UTC(), Rows: []results.Row{},
		Asked: []results.Asked{}}
	if result.Host, err = s.Prepare(); err != nil {
		return result, err
	}
	unmake, err := moves.PodmanMountPoint()
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, unmake()) }()
	err = s.InLab(ctx, func(ctx context.Context) error { return measure(ctx, s, chosen) })
	for _, one := range s.Series {
		result.Rows = append(result.Rows, one.Rows()...)
	}
	result.Asked = judge(result.Rows)
	return result, err
}

func newSuite(config testbed.Config) (*testbed.Suite, []scenario, error) {
	if err := testbed.NeedRoot(); err != nil {
		return nil, nil, err
	}
	if config.Runs < 0 {
		return nil, nil, fmt.Errorf("%d runs: must not be negative", config.Runs)
	}
	chosen, err := selected(config)
	if err != nil {
		return nil, nil, err
	}
	return &testbed.Suite{Config: config, Began: time.Now()}, chosen, nil
}

func measure(ctx context.Context, s *testbed.Suite, chosen []scenario) (err error) {
	var daemons testbed.RsyncDaemons
	defer func() { err = errors.Join(err, daemons.Stop()) }()
	if err := daemons.Start(ctx, s.Bed); err != nil {
		return err
	}
	for _, one := range chosen {
		if err := measureScenario(ctx, s, one); err != nil {
			return fmt.Errorf("workload %s: %w", one.Name, err)
		}
	}
	return nil
}

// contender is a way in a scenario: it drops out once it has failed.
type contender struct {
	moves.Way
	out error
}

func measureScenario(ctx context.Context, s *testbed.Suite, sc scenario) (err error) {
	archive, err := moves.BuildImage(ctx, s, sc.Workload)
	if err != nil {
		return err
	}
	if err := s.SetLink(testbed.LinkFast); err != nil {
		return err
	}
	s.Say("%s: the containers are made", sc.Name)
	contenders, err := enter(ctx, s, sc, archive)
	defer func() {
		for _, c := range contenders {
			if stopErr := c.Stop(context.WithoutCancel(ctx)); stopErr != nil && c.out == nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", c.Name(), stopErr))
			}
		}
	}()
	if err != nil {
		return err
	}
	for i, link := range sc.links {
		if err := s.SetLink(link); err != nil {
			return err
		}
		if i == 0 {
			err = warm(ctx, s, sc, link, contenders)
		}
		if err == nil {
			err = measureLink(ctx, s, sc, link, contenders)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// enter starts the ways of a scenario. Godwit's start first, because the others' containers are made after
// its own; their turn is last.
func enter(ctx context.Context, s *testbed.Suite, sc scenario, archive string) ([]*contender, error) {
	var own, peers []*contender
	var model engine.Container
	for _, mode := range []migration.Mode{migration.Cold, migration.PreCopy} {
		g := moves.NewGodwit(s.Bed, mode, sc.Workload, archive)
		isFirst := len(own) == 0
		if !slices.Contains(sc.ways, g.Name()) && !(isFirst && mode == migration.PreCopy) {
			continue
		}
		own = append(own, &contender{Way: g})
		if err := g.Start(ctx); err != nil {
			return own, fmt.Errorf("%s: %w", g.Name(), err)
		}
		if !isFirst {
			continue
		}
		var err error
		if model, err = g.Inspect(ctx); err != nil {
			return own, err
		}
	}
	for _, peer := range []moves.Way{
		moves.NewFloor(s.Bed, sc.Workload, model), moves.NewRsync(s.Bed, sc.Workload, model),
		moves.NewPodman(s.Bed, sc.Workload, archive),
	} {
		if !slices.Contains(sc.ways, peer.Name()) {
			continue
		}
		c := &contender{Way: peer}
		peers = append(peers, c)
		if err := peer.Start(ctx); err != nil {
			if ctx.Err() != nil {
				return append(peers, own...), ctx.Err()
			}
			drop(s, c, fmt.Errorf("%s, %s: %w", sc.Name, peer.Name(), err))
		}
	}
	return append(peers, own...), nil
}

// drop removes a way for the rest of a scenario.
func drop(s *testbed.Suite, c *contender, why error) {
	c.out = why
	s.Failed = append(s.Failed, why)
	s.Say("%v", why)
}

// warm moves all containers and discards the measurements.
func warm(ctx context.Context, s *testbed.Suite, sc scenario, link string, contenders []*contender) error {
	for run := range sc.warm {
		s.Say("%s: warming up, %d of %d", sc.Name, run+1, sc.warm)
		if err := round(ctx, s, contenders, newSeries(sc, link, contenders)); err != nil {
			return err
		}
	}
	return nil
}

func newSeries(sc scenario, link string, contenders []*contender) []*results.Series {
	all := make([]*results.Series, len(contenders))
	for i, c := range contenders {
		all[i] = &results.Series{Workload: sc.Name, Link: link, Way: c.Name()}
	}
	return all
}

// measureLink measures all ways over one link, in turn.
func measureLink(ctx context.Context, s *testbed.Suite, sc scenario, link string,
	contenders []*contender) error {
	all := newSeries(sc, link, contenders)
	s.Series = append(s.Series, all...)
	for run := range sc.runs {
		s.Say("%s, %s: run %d of %d", sc.Name, link, run+1, sc.runs)
		if err := round(ctx, s, contenders, all); err != nil {
			return err
		}
	}
	return nil
}

// round moves the container of every way once.
func round(ctx context.Context, s *testbed.Suite, contenders []*contender, all []*results.Series) error {
	for i, c := range contenders {
		one := all[i]
		if c.out != nil {
			one.Note = c.out.Error()
			continue
		}
		measured, err := c.Move(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			drop(s, c, fmt.Errorf("%s, %s, %s: %w", one.Workload, one.Link, one.Way, err))
			one.Note = c.out.Error()
			continue
		}
		one.Add(measured)
	}
	return nil
}
