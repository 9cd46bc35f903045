package studies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/services"
	"github.com/godwit/godwit/internal/bench/testbed"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/migration"
)

// Name is the name of the benchmark.
const Name = "studies"

// suite is one run of the suite studies, which can go on with an earlier one.
type suite struct {
	*testbed.Suite
	traces []results.Trace
	host   results.Host
	kept   time.Time // when the result was last saved
}

// Run repeats the experiments of the studies with which Godwit is compared: their workloads, over their
// links, in Godwit's ways and in theirs. When it returns, it has cleaned up the machine. If some ways
// failed, the result has the other measurements; the error lists Godwit's failures.
func Run(ctx context.Context, config testbed.Config) (results.Result, error) {
	chosen, err := selectedTrials(config)
	if err != nil {
		return results.Result{}, err
	}
	return studies(ctx, config, chosen)
}

// studies measures the selected trials.
func studies(ctx context.Context, config testbed.Config, chosen []trial) (results.Result, error) {
	if err := testbed.NeedRoot(); err != nil {
		return results.Result{}, err
	}
	config.Users = true
	s := &suite{Suite: &testbed.Suite{Config: config, Began: time.Now()}}
	var err error
	if s.host, err = s.Prepare(); err != nil {
		return results.Result{}, err
	}
	if err := s.goOn(); err != nil {
		return results.Result{}, err
	}
	s.kept = time.Now()
	err = s.InLab(ctx, func(ctx context.Context) error { return s.tryAll(ctx, chosen) })
	return s.resultOfStudies(), err
}

// tryAll measures the selected trials.
func (s *suite) tryAll(ctx context.Context, chosen []trial) (err error) {
	var daemons testbed.RsyncDaemons
	defer func() { err = errors.Join(err, daemons.Stop()) }()
	unmake, err := moves.PodmanMountPoint()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unmake()) }()
	forbid, err := moves.AllowPipes()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, forbid()) }()
	if err := daemons.Start(ctx, s.Bed); err != nil {
		return err
	}
	for _, t := range chosen {
		if err := s.try(ctx, t); err != nil {
			return fmt.Errorf("%s: %w", t.title(), err)
		}
	}
	return nil
}

// try measures one workload over all of its links: first in the ways of others, then in Godwit's.
func (s *suite) try(ctx context.Context, t trial) error {
	ways := s.lacking(t, t.links, t.ways)
	if len(ways) == 0 {
		return nil
	}
	s.Say("%s: the image is made", t.title())
	archive, err := labimage.Build(ctx, t.app.Image, s.Config.ImageCache)
	if err != nil {
		return err
	}
	own := slices.DeleteFunc(slices.Clone(ways), func(way string) bool { return !testbed.IsGodwit(way) })
	theirs := slices.DeleteFunc(slices.Clone(ways), testbed.IsGodwit)
	if len(theirs) > 0 {
		if err := s.tryPeers(ctx, t, archive, theirs); err != nil {
			return err
		}
	}
	if len(own) == 0 {
		return nil
	}
	if t.absent {
		return s.tryAbsent(ctx, t, archive, own)
	}
	return s.tryGodwit(ctx, t, archive, own)
}

// tryGodwit moves one container with its client back and forth, in all of Godwit's ways in turn.
func (s *suite) tryGodwit(ctx context.Context, t trial, archive string, ways []string) (err error) {
	g := services.NewContainer(s.Bed, t.app, archive)
	defer func() { err = errors.Join(err, g.Stop(context.WithoutCancel(ctx))) }()
	if err := s.SetLink(testbed.LinkFaster); err != nil {
		return err
	}
	s.Say("%s: the container is made", t.title())
	if err := g.Start(ctx, testbed.Nodes[:]...); err != nil {
		return err
	}
	for _, link := range t.links {
		lacking := s.lacking(t, []string{link}, ways)
		if len(lacking) == 0 {
			continue
		}
		if err := s.tryOver(ctx, t, g, link, lacking); err != nil {
			return err
		}
	}
	s.Say("%s: what it has is looked at", t.title())
	return g.Check(ctx)
}

// tryOver measures all ways over one link.
func (s *suite) tryOver(ctx context.Context, t trial, g *services.Container, link string,
	ways []string) error {
	all := s.newTrialSeries(t, link, ways)
	if err := s.ChangeLink(ctx, link); err != nil {
		return err
	}
	for run := range t.runs {
		for i, way := range ways {
			if all[i].Note != "" || all[i].Runs > run {
				continue
			}
			s.Say("%s, %s, %s: run %d of %d", t.title(), link, way, run+1, t.runs)
			measured, points, err := moveBy(ctx, g, way)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				s.GiveUp(all[i], err)
				if g.Lost(ctx) {
					return err
				}
				continue
			}
			if err := s.measured(all[i], withLimits(measured, s.Bed.Bandwidth, testbed.RTTOf(link)),
				points); err != nil {
				return err
			}
		}
	}
	return nil
}

// newTrialSeries also includes earlier measurements of some ways.
func (s *suite) newTrialSeries(t trial, link string, ways []string) []*results.Series {
	all := make([]*results.Series, len(ways))
	for i, way := range ways {
		if all[i] = s.known(t.title(), link, way); all[i] == nil {
			all[i] = &results.Series{Workload: t.title(), Link: link, Way: way}
			s.Series = append(s.Series, all[i])
		}
	}
	return all
}

// tryAbsent moves containers to a node that has no part of their image. Each run has a container of its
// own.
func (s *suite) tryAbsent(ctx context.Context, t trial, archive string, ways []string) error {
	for _, link := range t.links {
		t.links = []string{link}
		lacking := s.lacking(t, t.links, ways)
		all := s.newTrialSeries(t, link, lacking)
		for run := range t.runs {
			for i, way := range lacking {
				if all[i].Note != "" || all[i].Runs > run {
					continue
				}
				s.Say("%s, %s, %s: run %d of %d", t.title(), link, way, run+1, t.runs)
				measured, points, err := s.tryAbsentOnce(ctx, t, archive, link, way)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if err != nil {
					s.GiveUp(all[i], err)
					continue
				}
				if err := s.measured(all[i], withLimits(measured, s.Bed.Bandwidth, testbed.RTTOf(link)),
					points); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (s *suite) tryAbsentOnce(
	ctx context.Context, t trial, archive, link, way string,
) (measured []results.Measurement, points [][2]float64, err error) {
	g := services.NewContainer(s.Bed, t.app, archive)
	defer func() {
		err = errors.Join(err, g.Stop(context.WithoutCancel(ctx)))
		for _, node := range testbed.Nodes {
			err = errors.Join(err, forgetNamed(context.WithoutCancel(ctx), s.Bed, node, t.app.Image))
		}
	}()
	if err := s.SetLink(testbed.LinkFaster); err != nil {
		return nil, nil, err
	}
	for _, node := range testbed.Nodes { // leftovers of an earlier workload with the same image
		if err := forgetNamed(ctx, s.Bed, node, t.app.Image); err != nil {
			return nil, nil, err
		}
	}
	if err := g.Start(ctx, testbed.Nodes[0]); err != nil {
		return nil, nil, err
	}
	if err := s.ChangeLink(ctx, link); err != nil {
		return nil, nil, err
	}
	if measured, points, err = moveBy(ctx, g, way); err != nil {
		return nil, nil, err
	}
	return measured, points, g.Check(ctx)
}

// withLimits adds a lower bound of the time for as many bytes: bytes over bandwidth.
func withLimits(measured []results.Measurement, bandwidth, rtt float64) []results.Measurement {
	for metric, limit := range map[string]string{results.FreezeBytes: metricDowntimeLimit,
		results.Sent: metricTotalLimit} {
		for _, m := range measured {
			if m.Metric == metric {
				measured = append(measured, results.Measurement{limit, m.Value/bandwidth + rtt/2})
			}
		}
	}
	return measured
}

// wayParts returns the mode of one of Godwit's ways, and whether the container is staged before.
func wayParts(way string) (mode migration.Mode, staged bool) {
	name, staged := strings.CutPrefix(strings.TrimPrefix(way, "godwit "), "staged ")
	return migration.Mode(name), staged
}

// selectedTrials returns the trials that a configuration selects.
func selectedTrials(c testbed.Config) ([]trial, error) {
	all := trials()
	for _, study := range c.Studies {
		if !slices.Contains([]string{"a", "b", "c", "d"}, study) {
			return nil, fmt.Errorf("no such study: %q; there are a, b, c and d", study)
		}
	}
	all = slices.DeleteFunc(all, func(t trial) bool {
		return len(c.Studies) > 0 &&
			!slices.Contains(c.Studies, t.study)
	})
	for i := range all {
		t := &all[i]
		switch {
		case len(c.Links) > 0:
			for _, link := range c.Links {
				if _, err := testbed.ParseLink(link); err != nil {
					return nil, err
				}
			}
			t.links = c.Links
		case c.Quick:
			t.links = t.links[:1]
		}
		if c.Quick && len(c.Ways) == 0 {
			t.ways = t.few
		}
	}
	return testbed.SelectTurns(c, all, Ways(), (*trial).turns)
}
