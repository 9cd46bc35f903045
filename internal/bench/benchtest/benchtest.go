package benchtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/labtest"
)

// MeasuredRow returns a row of one sample.
func MeasuredRow(workload, link, way, metric string, value float64) results.Row {
	s := &results.Series{Workload: workload, Link: link, Way: way}
	s.Add([]results.Measurement{{metric, value}})
	return s.Rows()[0]
}

const imageCache = "/var/lib/godwit-lab/images"

// Programs are the program that is measured and the one that measures in the lab.
type Programs struct{ Program, Helper string }

// Build makes both programs.
func Build(t *testing.T) Programs {
	t.Helper()
	dir := t.TempDir()
	made := Programs{filepath.Join(dir, "godwit"), filepath.Join(dir, "godwit-lab")}
	err := errors.Join(labtest.GoBuild(t.Context(), made.Program, labtest.Program),
		labtest.GoBuild(t.Context(), made.Helper, labtest.Helper))
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// Config returns the configuration of a quick run.
func Config(t *testing.T, made Programs) testbed.Config {
	t.Helper()
	name, _, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "/")
	return testbed.Config{
		Lab: fmt.Sprintf("bench-%s-%d", name, os.Getpid()), Program: made.Program, Helper: made.Helper,
		ImageCache: imageCache,
		Runs:       1, Quick: true, Progress: func(line string) { t.Log(line) },
	}
}

// Left returns leftovers of a benchmark on the machine.
func Left(t *testing.T, config testbed.Config) []string {
	t.Helper()
	names, err := lab.List()
	if err != nil {
		t.Fatal(err)
	}
	found := slices.DeleteFunc(names, func(name string) bool { return name != config.Lab })
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(mounts), "\n") {
		if strings.Contains(line, testbed.BenchDir) || strings.Contains(line, config.Lab) {
			found = append(found, line)
		}
	}
	if testbed.Exists(testbed.BenchDir) {
		found = append(found, testbed.BenchDir)
	}
	return found
}
