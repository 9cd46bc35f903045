package engines

import (
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/bench/benchtest"
	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
)

// TestEngines moves a sleep there and back in all ways.
func TestEngines(t *testing.T) {
	t.Parallel()
	config := benchtest.Config(t, benchtest.Build(t))
	config.Workloads = []string{moves.WorkloadTiny}
	result, err := Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range Ways() {
		metrics := []string{results.Downtime, results.Total, results.Sent}
		switch way {
		case wayByDocker, wayByPodman, wayByContainerd, wayByLXC:
			metrics = append(metrics, metricCreate)
		case wayDockerOwn, wayPodmanOwn, wayContainerdOwn, wayLXCOwn:
			metrics = append(metrics, results.Checkpoint, results.Copy, results.Restore)
		}
		for _, metric := range metrics {
			if row := results.Find(result.Rows, moves.WorkloadTiny, testbed.LinkFast, way,
				metric); row == nil ||
				len(row.Samples) != 1 || *row.Median <= 0 {
				t.Errorf("%s: %s is %+v, want one sample", way, metric, row)
			}
		}
	}
	if len(result.Asked) != 8 {
		t.Errorf("%d things are judged, want 8: %+v", len(result.Asked), result.Asked)
	}
	if found := benchtest.Left(t, config); len(found) > 0 {
		t.Errorf("left on the machine: %q", found)
	}
}

// TestJudgeEngines: metrics that were not measured are not judged.
func TestJudgeEngines(t *testing.T) {
	row := func(way string, seconds float64) results.Row {
		return results.Row{Workload: moves.WorkloadTiny, Link: testbed.LinkFast, Way: way,
			Metric:  results.Downtime,
			Samples: []float64{seconds}, Median: &seconds}
	}
	asked := judgeEngines([]results.Row{row(wayEmbedded, 0.1), row(wayByDocker, 0.17), row(wayDockerOwn, 0.6),
		row(wayByPodman, 0.19)})
	met := []bool{}
	for _, a := range asked {
		met = append(met, a.Met)
	}
	if !slices.Equal(met, []bool{true, false, false}) {
		t.Errorf("judged: %+v", asked)
	}
}
