package studies

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/bench/results"
)

// keepEvery is how often intermediate results are saved: on slow links the whole suite takes days.
const keepEvery = 20 * time.Second

// readResult reads a file of WriteFile. A missing file is an empty result.
func readResult(path string) (results.Result, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return results.Result{}, nil
	}
	if err != nil {
		return results.Result{}, fmt.Errorf("result of an earlier benchmark: %w", err)
	}
	var r results.Result
	if err := json.Unmarshal(data, &r); err != nil {
		return results.Result{}, fmt.Errorf("result of an earlier benchmark: %s: %w", path, err)
	}
	return r, nil
}

// goOn loads earlier measurements, if the configuration says so.
func (s *suite) goOn() error {
	if !s.Config.Resume {
		return nil
	}
	if s.Config.File == "" {
		return errors.New("to go on with what was measured before, its file must be named")
	}
	earlier, err := readResult(s.Config.File)
	if err != nil || len(earlier.Rows) == 0 {
		return err
	}
	return s.goOnWith(earlier)
}

// goOnWith adds earlier measurements. Failed ways are tried again.
func (s *suite) goOnWith(earlier results.Result) error {
	was, now := earlier.Host, s.host
	was.Load, now.Load = 0, 0
	if earlier.Suite != Name || was != now {
		return fmt.Errorf("what was measured before is of the benchmark %s on %+v, and this is %s on %+v: "+
			"begin anew, in another file",
			earlier.Suite, was, Name, now)
	}
	s.Began, s.traces = earlier.Started, earlier.Traces
	for _, row := range earlier.Rows {
		if len(row.Samples) == 0 { // published, or failed
			continue
		}
		one := s.known(row.Workload, row.Link, row.Way)
		if one == nil {
			one = &results.Series{Workload: row.Workload, Link: row.Link, Way: row.Way,
				Runs:    len(row.Samples),
				Samples: map[string][]float64{}}
			s.Series = append(s.Series, one)
		}
		if len(row.Samples) != one.Runs || one.Samples[row.Metric] != nil {
			return fmt.Errorf("what was measured before is damaged: %s, %s, %s: %s", row.Workload, row.Link,
				row.Way, row.Metric)
		}
		one.Metrics = append(one.Metrics, row.Metric)
		one.Samples[row.Metric] = row.Samples
	}
	return nil
}

// known returns the measurements of a way; nil: none.
func (s *suite) known(workload, link, way string) *results.Series {
	i := slices.IndexFunc(s.Series, func(one *results.Series) bool {
		return one.Workload == workload &&
			one.Link == link && one.Way == way
	})
	if i < 0 {
		return nil
	}
	return s.Series[i]
}

// lacks reports whether a way needs more runs, over any of these links.
func (s *suite) lacks(t trial, links []string, way string) bool {
	return slices.ContainsFunc(links, func(link string) bool {
		one := s.known(t.title(), link, way)
		return one == nil || one.Runs < t.runs
	})
}

// lacking returns the ways that need more runs.
func (s *suite) lacking(t trial, links []string, ways []string) []string {
	return slices.DeleteFunc(slices.Clone(ways), func(way string) bool { return !s.lacks(t, links, way) })
}

// measured adds the measurements of one run, and a client's answers, and saves the result if that was not
// done for a while.
func (s *suite) measured(one *results.Series, measured []results.Measurement, points [][2]float64) error {
	one.Add(measured)
	if len(points) > 0 {
		s.traces = append(s.traces,
			results.Trace{Workload: one.Workload, Link: one.Link, Way: one.Way, Run: one.Runs,
				Points: points})
	}
	if s.Config.File == "" || time.Since(s.kept) < keepEvery {
		return nil
	}
	s.kept = time.Now()
	return s.resultOfStudies().WriteFile(s.Config.File)
}

// resultOfStudies returns the result so far.
func (s *suite) resultOfStudies() results.Result {
	result := results.Result{Suite: Name, Host: s.host, Started: s.Began.UTC(), Rows: []results.Row{},
		Traces: s.traces}
	for _, one := range s.Series {
		result.Rows = append(result.Rows, one.Rows()...)
	}
	result.Rows = withPublished(inOrder(result.Rows))
	result.Asked = judgeStudies(result.Rows)
	return result
}
