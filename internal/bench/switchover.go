package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
)

const (
	suiteSwitchover = "switchover"
	// DefaultRuns is how often each way is measured.
	DefaultRuns = 7
	quickRuns   = 3
	warmRuns    = 2 // there and back: caches are filled on both nodes
)

// Config says what to measure.
type Config struct {
	Lab        string // name of the lab that is made; one that is left from a crash is taken down
	Program    string // the godwit program; this program if empty
	ImageCache string // see package lab/image
	Runs       int
	Quick      bool     // fewer runs, and only the fast link
	Workloads  []string // all if empty
	Links      []string // all if empty
	Progress   func(string)
}

// suite is one run of the benchmark.
type suite struct {
	config    Config
	workloads []containerWorkload
	links     []namedLink
	bed       *bed
	began     time.Time
	series    []*series
	failed    []error // what was measured before is told all the same
}

// Switchover measures how long a container stands still when it is moved, by Godwit and by other ways. When it returns
// nothing is left of it on the machine. If some ways failed the result has what was measured, and the error says which.
func Switchover(ctx context.Context, config Config) (result Result, err error) {
	s, err := newSuite(config)
	if err != nil {
		return Result{}, err
	}
	result = Result{Suite: suiteSwitchover, Started: s.began.UTC(), Rows: []Row{}, Asked: []Asked{}}
	if result.Host, err = s.prepare(); err != nil {
		return result, err
	}
	unmake, err := podmanMountPoint()
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, unmake()) }()
	if err := s.up(ctx); err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, s.bed.lab.Down()) }()
	err = errors.Join(s.measure(ctx), errors.Join(s.failed...))
	for _, one := range s.series {
		result.Rows = append(result.Rows, one.rows()...)
	}
	result.Asked = judge(result.Rows, s.links)
	return result, err
}

func newSuite(config Config) (*suite, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a benchmark must run as root: it makes namespaces, mounts and routes")
	}
	if config.Runs < 1 {
		return nil, fmt.Errorf("%d runs: must be at least 1", config.Runs)
	}
	s := &suite{config: config, began: time.Now()}
	if config.Quick {
		s.config.Runs = min(config.Runs, quickRuns)
		if len(config.Links) == 0 {
			s.config.Links = []string{linkFast}
		}
	}
	var err error
	if s.workloads, err = choose("workload", workloads(), containerWorkload.title, config.Workloads); err != nil {
		return nil, err
	}
	if s.links, err = choose("link", links(), namedLink.title, s.config.Links); err != nil {
		return nil, err
	}
	return s, nil
}

// prepare finds the programs, before anything is made.
func (s *suite) prepare() (Host, error) {
	tool, err := criu.Find()
	if err != nil {
		return Host{}, err
	}
	runc, err := findRunc()
	if err != nil {
		return Host{}, err
	}
	s.bed = &bed{criu: tool, runc: runc}
	return thisHost(tool)
}

func (s *suite) up(ctx context.Context) error {
	if err := lab.Down(s.config.Lab); err != nil && !errors.Is(err, lab.ErrNoLab) {
		return fmt.Errorf("what an earlier benchmark left: %w", err)
	}
	up, err := lab.Up(ctx, lab.Config{
		Name: s.config.Lab, Nodes: len(nodes), Link: s.links[0].shape, Program: s.config.Program,
	})
	if err != nil {
		return err
	}
	s.bed.lab = up
	s.say("two nodes are up")
	return nil
}

// say tells how far it is.
func (s *suite) say(format string, args ...any) {
	if s.config.Progress != nil {
		s.config.Progress(fmt.Sprintf("%7.1f s  %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...)))
	}
}

func (s *suite) measure(ctx context.Context) (err error) {
	var daemons rsyncDaemons
	defer func() { err = errors.Join(err, daemons.stop()) }()
	if err := daemons.start(ctx, s.bed); err != nil {
		return err
	}
	for _, w := range s.workloads {
		if err := s.measureWorkload(ctx, w); err != nil {
			return fmt.Errorf("workload %s: %w", w.name, err)
		}
	}
	return nil
}

// contender is a way as it takes part: it is out once it has failed.
type contender struct {
	way
	out error
}

func (s *suite) measureWorkload(ctx context.Context, w containerWorkload) (err error) {
	s.say("%s: the image is built, or taken from the cache", w.name)
	archive, err := labimage.Build(ctx, w.image, s.config.ImageCache)
	if err != nil {
		return err
	}
	if err := s.bed.lab.SetLink(nodes[0], nodes[1], links()[0].shape); err != nil {
		return err
	}
	contenders, err := s.enter(ctx, w, archive)
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
	if err := s.warm(ctx, w, contenders); err != nil {
		return err
	}
	for _, link := range s.links {
		if err := s.measureLink(ctx, w, link, contenders); err != nil {
			return err
		}
	}
	return nil
}

// enter starts all ways. Godwit's is first, because the others' containers are made after its own; its turn is last.
func (s *suite) enter(ctx context.Context, w containerWorkload, archive string) ([]*contender, error) {
	godwit := newGodwitWay(s.bed, w, archive)
	contenders := []*contender{{way: godwit}}
	if err := godwit.start(ctx); err != nil {
		return contenders, fmt.Errorf("%s: %w", godwit.name(), err)
	}
	model, err := godwit.inspect(ctx)
	if err != nil {
		return contenders, err
	}
	for _, peer := range []way{
		newFloorWay(s.bed, w, model), newRsyncWay(s.bed, w, model), newPodmanWay(s.bed, w, archive),
	} {
		c := &contender{way: peer}
		contenders = append(contenders, c)
		if err := peer.start(ctx); err != nil {
			if ctx.Err() != nil {
				return contenders, ctx.Err()
			}
			s.drop(c, fmt.Errorf("%s, %s: %w", w.name, peer.name(), err))
		}
	}
	return append(contenders[1:], contenders[0]), nil
}

// drop takes a way out of the benchmark for the rest of a workload.
func (s *suite) drop(c *contender, why error) {
	c.out = why
	s.failed = append(s.failed, why)
	s.say("%v", why)
}

// warm moves all containers there and back over the fast link and forgets what that took.
func (s *suite) warm(ctx context.Context, w containerWorkload, contenders []*contender) error {
	link := links()[0] // it is set since before the containers were made
	for run := range warmRuns {
		s.say("%s: warming up, %d of %d", w.name, run+1, warmRuns)
		if err := s.round(ctx, contenders, newSeries(w, link, contenders)); err != nil {
			return err
		}
	}
	return nil
}

func newSeries(w containerWorkload, link namedLink, contenders []*contender) []*series {
	all := make([]*series, len(contenders))
	for i, c := range contenders {
		all[i] = &series{workload: w.name, link: link.name, way: c.name()}
	}
	return all
}

// measureLink measures all ways over one link, in turn.
func (s *suite) measureLink(ctx context.Context, w containerWorkload, link namedLink, contenders []*contender) error {
	if err := s.bed.lab.SetLink(nodes[0], nodes[1], link.shape); err != nil {
		return err
	}
	all := newSeries(w, link, contenders)
	s.series = append(s.series, all...)
	for run := range s.config.Runs {
		s.say("%s, %s: run %d of %d", w.name, link.name, run+1, s.config.Runs)
		if err := s.round(ctx, contenders, all); err != nil {
			return err
		}
	}
	return nil
}

// round moves the container of every way once.
func (s *suite) round(ctx context.Context, contenders []*contender, all []*series) error {
	for i, c := range contenders {
		one := all[i]
		if c.out != nil {
			one.note = c.out.Error()
			continue
		}
		measured, err := c.move(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.drop(c, fmt.Errorf("%s, %s, %s: %w", one.workload, one.link, one.way, err))
			one.note = c.out.Error()
			continue
		}
		one.add(measured)
	}
	return nil
}
