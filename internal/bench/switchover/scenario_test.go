package switchover

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/bench/benchtest"
	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/workload/pages"
)

func exampleRows() []results.Row {
	return []results.Row{
		benchtest.MeasuredRow(moves.WorkloadTiny, testbed.LinkFast, moves.WayFloor, results.Downtime, 0.100),
		benchtest.MeasuredRow(moves.WorkloadTiny, testbed.LinkFast, moves.WayCold, results.Downtime, 0.130),
		benchtest.MeasuredRow(moves.WorkloadTiny, testbed.LinkDistant, moves.WayFloor, results.Downtime,
			0.100),
		benchtest.MeasuredRow(moves.WorkloadTiny, testbed.LinkDistant, moves.WayCold, results.Downtime,
			0.260),
		benchtest.MeasuredRow(moves.WorkloadRedis, testbed.LinkFast, moves.WayCold, results.Downtime, 0.700),
		benchtest.MeasuredRow(moves.WorkloadRedis, testbed.LinkFast, moves.WayCold, results.Gap, 0.710),
		benchtest.MeasuredRow(moves.WorkloadRedis, testbed.LinkFast, moves.WayCold, results.Beyond, 0.010),
		benchtest.MeasuredRow(moves.WorkloadRedis, testbed.LinkFast, moves.WayCold, results.Sent, 50e6),
	}
}

func TestJudge(t *testing.T) {
	want := []struct {
		limit, value float64
		met          bool
	}{
		{0.120, 0.130, false},          // 1.2 x floor
		{0.150, 0.130, true},           // 150 ms
		{0.120 + 0.150, 0.260, true},   // 1.2 x floor + 1.5 RTT
		{0.0204, 0.010, true},          // the client's gap beyond the downtime
		{1.15*0.4 + 0.130, 0.7, false}, // 50 MB at 1 Gbit/s
	}
	asked := judge(exampleRows())
	if len(asked) != len(want) {
		t.Fatalf("%d things are asked, want %d: %v", len(asked), len(want), asked)
	}
	for i, w := range want {
		a := asked[i]
		if math.Abs(a.Limit-w.limit) > 1e-9 || a.Value != w.value || a.Met != w.met {
			t.Errorf("%s: limit %v, value %v, met %t; want %v, %v, %t", a.What, a.Limit, a.Value, a.Met,
				w.limit, w.value, w.met)
		}
	}
}

func TestWhatIsNotMeasuredIsNotJudged(t *testing.T) {
	if asked := judge(nil); len(asked) != 0 {
		t.Errorf("%v is judged although nothing was measured", asked)
	}
}

func TestResultFile(t *testing.T) {
	rows := exampleRows()
	result := results.Result{
		Suite: "switchover", Host: results.Host{Cores: 2, Kernel: "6.18", CRIU: "4.2.1"},
		Started: time.Unix(0, 0).UTC(),
		Rows:    rows, Asked: judge(rows),
	}
	path := filepath.Join(t.TempDir(), "made", "result.json")
	for range 2 { // the second replaces the first
		if err := result.WriteFile(path); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var read results.Result
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(read, result) {
		t.Errorf("read back:\n%+v\nwant\n%+v", read, result)
	}
	for _, key := range []string{`"suite"`, `"host"`, `"started"`, `"rows"`, `"asked"`, `"median"`, `"low"`,
		`"high"`, `"met"`} {
		if !strings.Contains(string(data), key) {
			t.Errorf("the file has no %s", key)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("beside the file there is something else: %v %v", entries, err)
	}
}

func TestText(t *testing.T) {
	rows := append(exampleRows(),
		(&results.Series{Workload: moves.WorkloadTiny, Link: testbed.LinkFast, Way: moves.WayPodman,
			Note: "it has gone\nfar away"}).Rows()...)
	var text strings.Builder
	result := results.Result{Suite: "switchover", Rows: rows, Asked: judge(rows)}
	result.WriteText(&text, func() { WriteRows(result, &text) })
	for _, want := range []string{
		"tiny, 1gbit/0.4ms", "100.0 ms", "podman", "it has gone", "met, 20.0 ms to spare",
		"NOT met: 10.0 ms too much (8%)",
		"longest gap of the client 710.0 ms", "47.7 MiB",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text has no %q:\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "far away") {
		t.Errorf("the table has a line of a message that is long:\n%s", text.String())
	}
}

func TestSelected(t *testing.T) {
	all := func(c testbed.Config) string {
		chosen, err := selected(c)
		if err != nil {
			return err.Error()
		}
		var lines []string
		for _, s := range chosen {
			lines = append(lines, fmt.Sprintf("%s over %s by %s: %d", s.Name, strings.Join(s.links, ", "),
				strings.Join(s.ways, ", "), s.runs))
		}
		return strings.Join(lines, "\n")
	}
	for _, c := range []struct {
		config testbed.Config
		want   string
	}{
		{testbed.Config{Workloads: []string{"tiny"}, Links: []string{"10mbit", "1gbit"},
			Ways: []string{"godwit"},
			Runs: 2},
			"tiny over 1gbit/0.4ms by godwit cold, godwit pre-copy: 2\ntiny over 10mbit/100ms by godwit " +
				"cold, godwit pre-copy: 2"},
		{testbed.Config{Workloads: []string{"redis"}, Ways: []string{"godwit pre", "criu"}, Quick: true},
			"redis over 1gbit/0.4ms by criu floor, godwit pre-copy: 3"},
		{testbed.Config{Workloads: []string{"tiny"}, Links: []string{"50mbit/10ms"}, Ways: []string{"godwit"},
			Runs: 2}, "tiny over 50mbit/10ms by godwit cold, godwit pre-copy: 2"},
		{testbed.Config{Workloads: []string{"recogniser"}, Links: []string{"50mbit/10ms"}},
			"recogniser over 50mbit/10ms by godwit pre-copy: 1"},
		{testbed.Config{Memory: pages.Config{Size: 1 << 20}, Ways: []string{"godwit"}},
			"memory over 1gbit/0.4ms by godwit cold, godwit pre-copy: 5"},
		{testbed.Config{Workloads: []string{"idle-4GiB"}, Ways: []string{"podman"}},
			"nothing to measure: these workloads are not moved in these ways over these links, or not in " +
				"a quick run"},
		{testbed.Config{Workloads: []string{"tiny"}, Links: []string{"moon"}},
			`no such link: "moon"; there are ` + strings.Join(Links(), ", ")},
		{testbed.Config{Workloads: []string{"tiny"}, Links: []string{"1gbit/moon"}},
			`link "1gbit/moon": give bandwidth and round trip, such as 100mbit/20ms: ` +
				`time: invalid duration "moon"`},
		{testbed.Config{Ways: []string{"on foot"}},
			`no such way: "on foot"; there are criu floor, runc and rsync, podman, godwit cold, godwit pre-copy`},
	} {
		if got := all(c.config); got != c.want {
			t.Errorf("%+v chooses\n%s, want\n%s", c.config, got, c.want)
		}
	}
}

// TestScenarios: the descriptions of the scenarios are right.
func TestScenarios(t *testing.T) {
	for _, s := range scenarios() {
		for _, link := range s.links {
			if _, err := testbed.ParseLink(link); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
		if s.warm%2 != 0 {
			t.Errorf("%s: %d warm runs do not end where they began", s.Name, s.warm)
		}
		if (s.Image == "") == (s.Memory == nil) {
			t.Errorf("%s: has an image or memory, not both", s.Name)
		}
		for _, way := range s.ways {
			if !slices.Contains(Ways(), way) {
				t.Errorf("%s: no such way: %q", s.Name, way)
			}
		}
	}
}

func TestBadConfiguration(t *testing.T) {
	for _, config := range []testbed.Config{
		{Lab: "bench-bad", Runs: -1}, {Lab: "bench-bad", Runs: 1, Links: []string{"moon"}},
		{Lab: "bench-bad", Runs: 1, Workloads: []string{"doom"}},
	} {
		if _, err := Run(t.Context(), config); err == nil {
			t.Errorf("%+v is accepted", config)
		}
	}
	if names, err := lab.List(); err != nil || strings.Contains(strings.Join(names, " "), "bench-bad") {
		t.Errorf("a lab was made: %v %v", names, err)
	}
}
