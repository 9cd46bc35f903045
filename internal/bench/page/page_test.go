package page

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/bench/results"
)

func row(way, metric string, value float64) results.Row {
	return results.Row{
		Workload: "study a: <b>", Link: "5mbit/50ms", Way: way, Metric: metric,
		Samples: []float64{value, value}, Median: &value,
		Interval: &[2]float64{value / 2, value * 2},
	}
}

func result() results.Result {
	reach := 0.16
	return results.Result{
		Rows: []results.Row{
			row("runc and rsync", "downtime_seconds", 2), row("runc and rsync", "copy_seconds", 1.5),
			row("runc and rsync", "sent_bytes", 3e6),
			row("godwit hybrid", "downtime_seconds", 0.2), row("godwit hybrid", "phase_dump_seconds", 0.05),
			row("godwit hybrid", "total_seconds", 3),
			{Workload: "study a: <b>", Link: "5mbit/50ms", Way: "criu pre-dump", Metric: "downtime_seconds",
				Note: "no </script> soft-dirty"},
		},
		Traces: []results.Trace{{Workload: "study a: <b>", Link: "5mbit/50ms", Way: "godwit hybrid", Run: 1,
			Points: [][2]float64{{0, 0.01}, {1, 0.2}}}},
		Asked: []results.Asked{{What: "downtime", Unit: "seconds", Limit: 0.5, Value: 0.2, Met: true,
			Reach: &reach}},
	}
}

func TestPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.html")
	if err := WriteFile(result(), path); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for _, want := range []string{"study a: &lt;b&gt;, 5mbit/50ms", "200 ms<br><small>100 ms to 400 ms",
		"1.25 x", "no &lt;/script&gt; soft-dirty", "Chart.js v4"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, unwanted := range []string{"src=", "http://", "@import", "<b>", "sourceMappingURL"} {
		if strings.Contains(strings.ReplaceAll(text, library, ""), unwanted) {
			t.Errorf("the page has %q: it must need nothing else", unwanted)
		}
	}
	_, data, _ := strings.Cut(text, `id="data">`)
	data, _, _ = strings.Cut(data, "</script>")
	var charts []section
	if err := json.Unmarshal([]byte(data), &charts); err != nil || len(charts) != 1 {
		t.Fatalf("data of the charts: %v: %.200s", err, data)
	}
	if c := charts[0]; len(c.Ways) != 2 || len(c.Traces) != 1 || len(c.Traces[0].Points) != 2 {
		t.Errorf("charts: %+v", c)
	}
}

// TestStacks: the stacked parts add up to the whole.
func TestStacks(t *testing.T) {
	s := newSection(result(), "study a: <b>", "5mbit/50ms")
	for i, want := range []float64{2, 0.2} {
		sum := 0.0
		for _, part := range s.Freeze {
			sum += part.Data[i]
		}
		if sum < want-1e-9 || sum > want+1e-9 {
			t.Errorf("%s: the parts of the downtime are %v s, want %v", s.Ways[i], sum, want)
		}
	}
}
