package rounds

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/lab/workload/pages"
)

// Name is the name of the benchmark.
const Name = "rounds"

// Config configures the suite rounds.
type Config struct {
	Program     string   // godwit-lab, which runs the workload; default: this program
	Quick       bool     // fewer samples
	Experiments []string // all if empty
	Progress    func(string)
}

// experiment is one measurement of a process of this machine. There is one row for each of its metrics.
type experiment struct {
	name    string
	way     string
	memory  pages.Config
	samples int // of a complete run, without the warm-up before them
	quick   int // of a quick run
	asked   []demand
	// why this machine cannot measure it, which is no failure; nil: it always can
	needs   func(context.Context) error
	measure func(context.Context, *subject) ([]results.Measurement, error)
}

// Names lists the experiments of Rounds.
func Names() []string { return testbed.NamesOf(experiments(), experiment.title) }

func (e experiment) title() string { return e.name }

// Run measures the costs of a pre-copy's parts, on processes of this machine outside of containers.
func Run(ctx context.Context, config Config) (results.Result, error) {
	chosen, err := testbed.Choose("experiment", experiments(), experiment.title, config.Experiments)
	if err != nil {
		return results.Result{}, err
	}
	if os.Geteuid() != 0 {
		return results.Result{},
			errors.New("a benchmark must run as root: it looks at the memory of other processes")
	}
	if config.Program == "" {
		if config.Program, err = os.Executable(); err != nil {
			return results.Result{}, fmt.Errorf("find this program: %w", err)
		}
	}
	r := suite{config: config, began: time.Now()}
	return r.all(ctx, chosen)
}

// suite is one run of the suite.
type suite struct {
	config Config
	began  time.Time
}

// all makes all experiments. If some failed, the result has the other measurements, and the error lists the
// failures.
func (r *suite) all(ctx context.Context, chosen []experiment) (results.Result, error) {
	result := results.Result{Suite: Name, Started: r.began.UTC(), Rows: []results.Row{},
		Asked: []results.Asked{}}
	tool, err := criu.Find()
	if err != nil {
		r.say("%v", err) // only one experiment needs it, and reports its absence
	}
	if result.Host, err = testbed.ThisHost(tool); err != nil {
		return result, err
	}
	var failed error
	for _, e := range chosen {
		one, failure := r.run(ctx, e)
		if ctx.Err() != nil {
			return result, ctx.Err()
		}
		result.Rows = append(result.Rows, one.Rows()...)
		result.Asked = append(result.Asked, e.judge(result.Rows)...)
		failed = errors.Join(failed, failure)
	}
	return result, failed
}

// run makes one experiment. It returns measurements made before a failure.
func (r *suite) run(ctx context.Context, e experiment) (one *results.Series, failure error) {
	one = &results.Series{Workload: e.name, Way: e.way}
	if e.needs != nil {
		if err := e.needs(ctx); err != nil {
			one.Note = fmt.Sprintf("not on this machine: %v", err)
			r.say("%s: %s", e.name, one.Note)
			return one, nil
		}
	}
	defer func() {
		if failure != nil {
			one.Note = failure.Error()
			failure = fmt.Errorf("%s: %w", e.name, failure)
			r.say("%v", failure)
		}
	}()
	r.say("%s", e.name)
	s, err := startSubject(ctx, r.config.Program, e.memory)
	if err != nil {
		return one, err
	}
	defer func() { failure = errors.Join(failure, s.stop()) }()
	samples := e.samples
	if r.config.Quick {
		samples = e.quick
	}
	if samples > 1 { // the first one pays one-time costs
		if _, err := e.measure(ctx, s); err != nil {
			return one, err
		}
	}
	for range samples {
		measured, err := e.measure(ctx, s)
		if err != nil {
			return one, err
		}
		one.Add(measured)
	}
	return one, nil
}

func (r *suite) say(format string, args ...any) {
	if r.config.Progress != nil {
		r.config.Progress(fmt.Sprintf("%7.1f s  %s", time.Since(r.began).Seconds(),
			fmt.Sprintf(format, args...)))
	}
}
