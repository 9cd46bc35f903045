package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/migration"
)

const suiteSwitchover = "switchover"

// Config configures a suite.
type Config struct {
	Lab        string       // name of the lab; an existing one from a crash is taken down
	Program    string       // the godwit program; if empty, the one beside this program or in PATH
	Helper     string       // godwit-lab, which is also a workload; default: this program
	ImageCache string       // see package lab/image
	Runs       int          // runs of each way; 0: as in the scenarios
	Quick      bool         // fewer runs of fewer scenarios, over the first link of each
	Workloads  []string     // all if empty
	Links      []string     // empty: those of the scenarios
	Ways       []string     // empty: those of the scenarios
	Studies    []string     // of the suite studies: a, b, c, d; all if empty
	Memory     pages.Config // if it has a size, only this workload is moved
	Progress   func(string)
	// where to write the result, which the suite studies also saves in between; empty: nowhere
	File   string
	Resume bool // of the suite studies: do not measure again what is in File

	users bool // there is a third node, which runs the users' machines
	nodes int  // of the lab, without that one; 0: two
}

// suite is one run of the benchmark.
type suite struct {
	config      Config
	bed         *bed
	began       time.Time
	series      []*results.Series
	memoryImage string         // archive of the image with this program, if it was made
	undo        []func() error // at the end
	failed      []error        // earlier measurements are reported all the same
}

// Switchover measures how long a container stands still when it is moved, by Godwit and in other ways. When
// it returns, it has cleaned up the machine. If some ways failed, the result has the other measurements,
// and the error lists the failures.
func Switchover(ctx context.Context, config Config) (result results.Result, err error) {
	s, chosen, err := newSuite(config)
	if err != nil {
		return results.Result{}, err
	}
	result = results.Result{Suite: suiteSwitchover, Started: s.began.UTC(), Rows: []results.Row{},
		Asked: []results.Asked{}}
	if result.Host, err = s.prepare(); err != nil {
		return result, err
	}
	unmake, err := podmanMountPoint()
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, unmake()) }()
	err = s.inLab(ctx, func(ctx context.Context) error { return s.measure(ctx, chosen) })
	for _, one := range s.series {
		result.Rows = append(result.Rows, one.Rows()...)
	}
	result.Asked = judge(result.Rows)
	return result, err
}

// inLab makes the lab, measures, and takes it down, whatever happens.
func (s *suite) inLab(ctx context.Context, measure func(context.Context) error) (err error) {
	if err := s.up(ctx); err != nil {
		return err
	}
	defer func() {
		for _, undo := range s.undo {
			err = errors.Join(err, undo())
		}
		err = errors.Join(err, s.bed.lab.Down())
	}()
	err = measure(ctx)
	return errors.Join(err, errors.Join(s.failed...))
}

func needRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("a benchmark must run as root: it makes namespaces, mounts and routes")
	}
	return nil
}

func newSuite(config Config) (*suite, []scenario, error) {
	if err := needRoot(); err != nil {
		return nil, nil, err
	}
	if config.Runs < 0 {
		return nil, nil, fmt.Errorf("%d runs: must not be negative", config.Runs)
	}
	chosen, err := config.selected()
	if err != nil {
		return nil, nil, err
	}
	return &suite{config: config, began: time.Now()}, chosen, nil
}

// prepare finds the programs, before it makes anything.
func (s *suite) prepare() (results.Host, error) {
	tool, err := criu.Find()
	if err != nil {
		return results.Host{}, err
	}
	runc, err := findRunc()
	if err != nil {
		return results.Host{}, err
	}
	s.bed = &bed{criu: tool, runc: runc}
	return thisHost(tool)
}

func (s *suite) up(ctx context.Context) error {
	if err := lab.Down(s.config.Lab); err != nil && !errors.Is(err, lab.ErrNoLab) {
		return fmt.Errorf("what an earlier benchmark left: %w", err)
	}
	link, err := parseLink(linkFast)
	if err != nil {
		return err
	}
	count := max(s.config.nodes, len(nodes))
	if s.config.users {
		count++
	}
	up, err := lab.Up(ctx, lab.Config{
		Name: s.config.Lab, Nodes: count, Link: link, Program: s.config.Program, Helper: s.config.Helper,
	})
	if err != nil {
		return err
	}
	s.bed.lab = up
	s.say("%d nodes are up", count)
	return nil
}

// say reports progress.
func (s *suite) say(format string, args ...any) {
	if s.config.Progress != nil {
		s.config.Progress(fmt.Sprintf("%7.1f s  %s", time.Since(s.began).Seconds(),
			fmt.Sprintf(format, args...)))
	}
}

func (s *suite) measure(ctx context.Context, chosen []scenario) (err error) {
	var daemons rsyncDaemons
	defer func() { err = errors.Join(err, daemons.stop()) }()
	if err := daemons.start(ctx, s.bed); err != nil {
		return err
	}
	for _, one := range chosen {
		if err := s.measureScenario(ctx, one); err != nil {
			return fmt.Errorf("workload %s: %w", one.name, err)
		}
	}
	return nil
}

// contender is a way in a scenario: it drops out once it has failed.
type contender struct {
	way
	out error
}

func (s *suite) measureScenario(ctx context.Context, sc scenario) (err error) {
	archive, err := s.buildImage(ctx, sc.containerWorkload)
	if err != nil {
		return err
	}
	if err := s.setLink(linkFast); err != nil {
		return err
	}
	s.say("%s: the containers are made", sc.name)
	contenders, err := s.enter(ctx, sc, archive)
	defer func() {
		for _, c := range contenders {
			if stopErr := c.stop(context.WithoutCancel(ctx)); stopErr != nil && c.out == nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", c.name(), stopErr))
			}
		}
	}()
	if err != nil {
		return err
	}
	for i, link := range sc.links {
		if err := s.setLink(link); err != nil {
			return err
		}
		if i == 0 {
			err = s.warm(ctx, sc, link, contenders)
		}
		if err == nil {
			err = s.measureLink(ctx, sc, link, contenders)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *suite) setLink(name string) error {
	shape, err := parseLink(name)
	if err != nil {
		return err
	}
	s.bed.bandwidth = float64(shape.BandwidthBitsPerSecond) / 8
	return s.bed.lab.SetLink(nodes[0], nodes[1], shape)
}

// enter starts the ways of a scenario. Godwit's start first, because the others' containers are made after
// its own; their turn is last.
func (s *suite) enter(ctx context.Context, sc scenario, archive string) ([]*contender, error) {
	var own, peers []*contender
	var model engine.Container
	for _, mode := range []migration.Mode{migration.Cold, migration.PreCopy} {
		g := newGodwitWay(s.bed, mode, sc.containerWorkload, archive)
		isFirst := len(own) == 0
		if !slices.Contains(sc.ways, g.name()) && !(isFirst && mode == migration.PreCopy) {
			continue
		}
		own = append(own, &contender{way: g})
		if err := g.start(ctx); err != nil {
			return own, fmt.Errorf("%s: %w", g.name(), err)
		}
		if !isFirst {
			continue
		}
		var err error
		if model, err = g.inspect(ctx); err != nil {
			return own, err
		}
	}
	for _, peer := range []way{
		newFloorWay(s.bed, sc.containerWorkload, model), newRsyncWay(s.bed, sc.containerWorkload, model),
		newPodmanWay(s.bed, sc.containerWorkload, archive),
	} {
		if !slices.Contains(sc.ways, peer.name()) {
			continue
		}
		c := &contender{way: peer}
		peers = append(peers, c)
		if err := peer.start(ctx); err != nil {
			if ctx.Err() != nil {
				return append(peers, own...), ctx.Err()
			}
			s.drop(c, fmt.Errorf("%s, %s: %w", sc.name, peer.name(), err))
		}
	}
	return append(peers, own...), nil
}

// drop removes a way for the rest of a scenario.
func (s *suite) drop(c *contender, why error) {
	c.out = why
	s.failed = append(s.failed, why)
	s.say("%v", why)
}

// warm moves all containers and discards the measurements.
func (s *suite) warm(ctx context.Context, sc scenario, link string, contenders []*contender) error {
	for run := range sc.warm {
		s.say("%s: warming up, %d of %d", sc.name, run+1, sc.warm)
		if err := s.round(ctx, contenders, newSeries(sc, link, contenders)); err != nil {
			return err
		}
	}
	return nil
}

func newSeries(sc scenario, link string, contenders []*contender) []*results.Series {
	all := make([]*results.Series, len(contenders))
	for i, c := range contenders {
		all[i] = &results.Series{Workload: sc.name, Link: link, Way: c.name()}
	}
	return all
}

// measureLink measures all ways over one link, in turn.
func (s *suite) measureLink(ctx context.Context, sc scenario, link string, contenders []*contender) error {
	all := newSeries(sc, link, contenders)
	s.series = append(s.series, all...)
	for run := range sc.runs {
		s.say("%s, %s: run %d of %d", sc.name, link, run+1, sc.runs)
		if err := s.round(ctx, contenders, all); err != nil {
			return err
		}
	}
	return nil
}

// round moves the container of every way once.
func (s *suite) round(ctx context.Context, contenders []*contender, all []*results.Series) error {
	for i, c := range contenders {
		one := all[i]
		if c.out != nil {
			one.Note = c.out.Error()
			continue
		}
		measured, err := c.move(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.drop(c, fmt.Errorf("%s, %s, %s: %w", one.Workload, one.Link, one.Way, err))
			one.Note = c.out.Error()
			continue
		}
		one.Add(measured)
	}
	return nil
}
