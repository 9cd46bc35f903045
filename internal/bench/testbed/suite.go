package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/workload/pages"
)

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

	Users bool // there is a third node, which runs the users' machines
	Nodes int  // of the lab, without that one; 0: two
}

// Suite is one run of the benchmark.
type Suite struct {
	Config      Config
	Bed         *Bed
	Began       time.Time
	Series      []*results.Series
	MemoryImage string         // archive of the image with this program, if it was made
	undo        []func() error // at the end
	Failed      []error        // earlier measurements are reported all the same
}

// InLab makes the lab, measures, and takes it down, whatever happens.
func (s *Suite) InLab(ctx context.Context, measure func(context.Context) error) (err error) {
	if err := s.up(ctx); err != nil {
		return err
	}
	defer func() {
		for _, undo := range s.undo {
			err = errors.Join(err, undo())
		}
		err = errors.Join(err, s.Bed.Lab.Down())
	}()
	err = measure(ctx)
	return errors.Join(err, errors.Join(s.Failed...))
}

// NeedRoot returns an error unless this process is root's.
func NeedRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("a benchmark must run as root: it makes namespaces, mounts and routes")
	}
	return nil
}

// Prepare finds the programs, before it makes anything.
func (s *Suite) Prepare() (results.Host, error) {
	tool, err := criu.Find()
	if err != nil {
		return results.Host{}, err
	}
	runc, err := findRunc()
	if err != nil {
		return results.Host{}, err
	}
	s.Bed = &Bed{CRIU: tool, Runc: runc}
	return ThisHost(tool)
}

func (s *Suite) up(ctx context.Context) error {
	if err := lab.Down(s.Config.Lab); err != nil && !errors.Is(err, lab.ErrNoLab) {
		return fmt.Errorf("what an earlier benchmark left: %w", err)
	}
	link, err := ParseLink(LinkFast)
	if err != nil {
		return err
	}
	count := max(s.Config.Nodes, len(Nodes))
	if s.Config.Users {
		count++
	}
	up, err := lab.Up(ctx, lab.Config{
		Name: s.Config.Lab, Nodes: count, Link: link, Program: s.Config.Program, Helper: s.Config.Helper,
	})
	if err != nil {
		return err
	}
	s.Bed.Lab = up
	s.Say("%d nodes are up", count)
	return nil
}

// Say reports progress.
func (s *Suite) Say(format string, args ...any) {
	if s.Config.Progress != nil {
		s.Config.Progress(fmt.Sprintf("%7.1f s  %s", time.Since(s.Began).Seconds(),
			fmt.Sprintf(format, args...)))
	}
}
