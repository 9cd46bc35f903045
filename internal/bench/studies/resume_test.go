package studies

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/services"
	"github.com/godwit/godwit/internal/bench/testbed"
)

// TestResume: measurements in pieces, in any order and with an interruption, give one result, and nothing
// is measured twice.
func TestResume(t *testing.T) {
	file := filepath.Join(t.TempDir(), "studies.json")
	box, film := trial{study: "a", app: services.Busybox(), runs: 2},
		trial{study: "c", app: services.Video(), runs: 2}
	measure := func(of trial, ways ...string) *suite {
		s := &suite{Suite: &testbed.Suite{Config: testbed.Config{File: file, Resume: true},
			Began: time.Now()},
			host: results.Host{Cores: 2, Kernel: "6", Load: float64(of.runs)}}
		if err := s.goOn(); err != nil {
			t.Fatal(err)
		}
		for _, one := range s.newTrialSeries(of, testbed.LinkFast,
			s.lacking(of, []string{testbed.LinkFast}, ways)) {
			s.kept = time.Time{} // it is long ago
			points := [][2]float64{{float64(one.Runs), 1}}
			if err := s.measured(one, []results.Measurement{{results.Downtime, float64(one.Runs + 1)},
				{results.Total, 5}}, points); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	measure(film, moves.WayCold)
	measure(box, moves.WayRsync, moves.WayCold)
	s := measure(box, moves.WayRsync, moves.WayCold)
	s.GiveUp(s.newTrialSeries(film, testbed.LinkFast, []string{moves.WayLazy})[0], os.ErrInvalid)
	if err := s.resultOfStudies().WriteFile(file); err != nil {
		t.Fatal(err)
	}

	s = measure(box, moves.WayRsync, moves.WayCold)
	if s.lacks(box, []string{testbed.LinkFast}, moves.WayCold) ||
		!s.lacks(film, []string{testbed.LinkFast}, moves.WayCold) ||
		!s.lacks(film, []string{testbed.LinkFast}, moves.WayLazy) ||
		!s.lacks(box, []string{testbed.LinkFast, testbed.LinkMiddle}, moves.WayCold) {
		t.Errorf("what was measured, and what has failed, is not told apart: %+v", s.Series)
	}
	result := s.resultOfStudies()
	row := results.Find(result.Rows, box.title(), testbed.LinkFast, moves.WayRsync, results.Downtime)
	if row == nil || !slices.Equal(row.Samples, []float64{1, 2}) || *row.Median != 1.5 {
		t.Errorf("the samples of two pieces: %+v", row)
	}
	if first := result.Rows[0]; first.Workload != box.title() {
		t.Errorf("the first row is of %s", first.Workload)
	}
	if len(result.Traces) != 5 || result.Traces[4].Run != 2 {
		t.Errorf("traces: %+v", result.Traces)
	}

	s.host.Kernel = "7"
	if err := s.goOn(); err == nil {
		t.Error("it was measured on another machine")
	}
	s.Config.File = ""
	if err := s.goOn(); err == nil {
		t.Error("no file was named")
	}
	if err := os.WriteFile(file, []byte(`{"rows": 3}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Config.File = file
	if err := s.goOn(); err == nil {
		t.Error("the file is no result")
	}
}
