package bench

import (
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/rounds"
)

// TestSuites: each benchmark in turns has workloads and ways, and prints its rows.
func TestSuites(t *testing.T) {
	for name, suite := range Suites() {
		if suite.Run == nil || len(suite.Workloads) == 0 || len(suite.Ways) == 0 {
			t.Errorf("%s: %d workloads, %d ways", name, len(suite.Workloads), len(suite.Ways))
			continue
		}
		text := textOf(name, suite.Workloads[0], suite.Ways[0], results.Downtime)
		if name != "predict" && !strings.Contains(text, suite.Workloads[0]) {
			t.Errorf("%s prints\n%s", name, text)
		}
	}
}

// TestMetricsText: a benchmark without a table of its own has a line for each metric.
func TestMetricsText(t *testing.T) {
	text := textOf(rounds.Name, "attach", "godwit", "stopped_seconds")
	if !strings.Contains(text, "attach") || !strings.Contains(text, "500.0 ms") {
		t.Errorf("it prints\n%s", text)
	}
}

func textOf(name, workload, way, metric string) string {
	one := &results.Series{Workload: workload, Link: "1gbit/0.4ms", Way: way}
	one.Add([]results.Measurement{{metric, 0.5}})
	var text strings.Builder
	WriteText(&text, results.Result{Suite: name, Rows: one.Rows()})
	return text.String()
}
