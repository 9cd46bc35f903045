package switchover

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/bench/benchtest"
	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
)

func TestSwitchover(t *testing.T) {
	program := benchtest.Build(t)
	t.Run("whole", func(t *testing.T) { wholeRun(t, benchtest.Config(t, program)) })
	t.Run("interrupted", func(t *testing.T) { interruptedRun(t, benchtest.Config(t, program)) })
}

// wholeRun measures everything once, over the fast link.
func wholeRun(t *testing.T, config testbed.Config) {
	podmanBefore := testbed.Exists(moves.PodmanHome)
	config.Workloads = []string{moves.WorkloadTiny, moves.WorkloadRedis, workloadIdle64}
	result, err := Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	for _, workload := range []string{moves.WorkloadTiny, moves.WorkloadRedis} {
		for _, way := range []string{moves.WayFloor, moves.WayRsync, moves.WayPodman, moves.WayCold,
			moves.WayPreCopy} {
			row := results.Find(result.Rows, workload, testbed.LinkFast, way, results.Downtime)
			if row == nil || len(row.Samples) != 1 || *row.Median <= 0 {
				t.Errorf("%s, %s: downtime %+v, want one sample", workload, way, row)
			}
		}
	}
	if row := results.Find(result.Rows, moves.WorkloadRedis, testbed.LinkFast, moves.WayCold,
		results.Sent); row == nil ||
		*row.Median < moves.RedisDataBytes/2 {
		t.Errorf("Redis moved with %+v, want most of %d bytes", row, moves.RedisDataBytes)
	}
	// It may be less: parts of its program are not used again.
	if row := results.Find(result.Rows, workloadIdle64, testbed.LinkFaster, moves.WayPreCopy,
		results.Growth); row == nil ||
		*row.Median < 0.7 || *row.Median > 1.5 {
		t.Errorf("64 MiB of memory became %+v times as much", row)
	}
	if len(result.Asked) != 7 {
		t.Errorf("%d things are judged, want 7: %+v", len(result.Asked), result.Asked)
	}
	phasesAddUp(t, result)
	if found := benchtest.Left(t, config); len(found) > 0 {
		t.Errorf("left on the machine: %q", found)
	}
	if testbed.Exists(moves.PodmanHome) != podmanBefore {
		t.Errorf("%s was there before: %t, now: %t", moves.PodmanHome, podmanBefore, !podmanBefore)
	}
}

func phasesAddUp(t *testing.T, result results.Result) {
	t.Helper()
	for _, total := range result.Rows {
		if total.Metric != results.Downtime || total.Way != moves.WayCold && total.Way != moves.WayPreCopy {
			continue
		}
		sum, downtime := 0.0, total.Samples[0]
		for _, row := range result.Rows {
			if row.Workload == total.Workload && row.Way == total.Way &&
				strings.HasPrefix(row.Metric, "phase_") {
				sum += row.Samples[0]
			}
		}
		if sum < 0.99*downtime || sum > 1.01*downtime {
			t.Errorf("%s, %s: the phases add up to %v s, the downtime is %v s", total.Workload, total.Way,
				sum, downtime)
		}
	}
}

// interruptedRun stops in the middle: nothing may be left.
func interruptedRun(t *testing.T, config testbed.Config) {
	config.Workloads = []string{moves.WorkloadTiny}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	config.Progress = func(line string) {
		t.Log(line)
		if strings.Contains(line, "warming up") {
			interrupt()
		}
	}
	if _, err := Run(ctx, config); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted benchmark ends with %v, want %v", err, context.Canceled)
	}
	if found := benchtest.Left(t, config); len(found) > 0 {
		t.Errorf("left on the machine: %q", found)
	}
}
