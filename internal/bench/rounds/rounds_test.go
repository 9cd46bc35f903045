package rounds

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/bench/benchtest"
	"github.com/godwit/godwit/internal/bench/results"
)

// TestExperiments: every experiment works with little memory; a test cannot judge the values.
func TestExperiments(t *testing.T) {
	suite := suite{config: Config{Program: benchtest.Build(t).Helper, Quick: true,
		Progress: func(line string) { t.Log(line) }}, began: time.Now()}
	small := experiments()
	for i := range small {
		small[i].memory.Size, small[i].quick = 32<<20, 1
	}
	result, err := suite.all(t.Context(), small)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	for _, e := range small {
		rows := slices.DeleteFunc(slices.Clone(result.Rows),
			func(r results.Row) bool { return r.Workload != e.name })
		if len(rows) == 1 && rows[0].Note != "" && e.name == "pre-dump" {
			continue // the kernel lacks a required feature
		}
		if len(rows) == 0 || slices.ContainsFunc(rows,
			func(r results.Row) bool { return len(r.Samples) != 1 || results.Unit(r.Metric) == "" }) {
			t.Errorf("%s: rows %+v, want one sample of each metric, whose unit is known", e.name, rows)
		}
		asked += len(e.asked)
	}
	if len(result.Asked) != asked {
		t.Errorf("%d things are judged, want %d: %+v", len(result.Asked), asked, result.Asked)
	}
}

func TestInterruptedRounds(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if _, err := Run(ctx, Config{Program: benchtest.Build(t).Helper, Quick: true}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("interrupted rounds end with %v, want %v", err, context.Canceled)
	}
}

func TestDemands(t *testing.T) {
	rows := []results.Row{benchtest.MeasuredRow("x", "", "w", "a_seconds", 2),
		benchtest.MeasuredRow("x", "", "w", "b_bytes_per_second", 3e9)}
	e := experiment{name: "x", way: "w", asked: []demand{
		{what: "quick", metric: "a_seconds", most: 1},
		{what: "much", metric: "b_bytes_per_second", least: 1e9}, {what: "else", metric: "c_ratio"},
	}}
	want := []results.Asked{
		{What: "quick", Unit: "seconds", Limit: 1, Value: 2},
		{What: "much", Unit: "bytes_per_second", Least: true, Limit: 1e9, Value: 3e9, Met: true},
	}
	got := e.judge(rows)
	if !slices.Equal(got, want) {
		t.Errorf("judged %+v, want %+v", got, want)
	}
	var text strings.Builder
	result := results.Result{Suite: Name, Rows: rows, Asked: got}
	result.WriteText(&text, func() { result.WriteMetrics(&text) })
	for _, want := range []string{"3.00 GB/s", "met, 2.00 GB/s to spare", "NOT met: 1.00 s too much (100%)"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text has no %q:\n%s", want, text.String())
		}
	}
}

func TestBadExperiment(t *testing.T) {
	if _, err := Run(t.Context(), Config{Experiments: []string{"doom"}}); err == nil {
		t.Error("an unknown experiment is accepted")
	}
}
