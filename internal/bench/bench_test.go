package bench

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/migration"
)

func TestSummarise(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    summary
	}{
		{[]float64{3}, summary{3, 3, 3}},
		{[]float64{4, 1}, summary{2.5, 1, 4}},
		{[]float64{9, 1, 5}, summary{5, 1, 9}},
		{[]float64{7, 1, 3, 100}, summary{5, 1, 100}},
	} {
		samples := append([]float64{}, c.samples...)
		if got := summarise(samples); got != c.want {
			t.Errorf("summarise(%v) = %v, want %v", c.samples, got, c.want)
		}
		if !reflect.DeepEqual(samples, c.samples) {
			t.Errorf("summarise changed the order of the samples: %v, want %v", samples, c.samples)
		}
	}
}

func TestSeriesFillsWhatARunDoesNotHave(t *testing.T) {
	s := &series{workload: "tiny", link: "slow", way: "walk"}
	s.add([]measurement{{"a", 1}, {"b", 2}})
	s.add([]measurement{{"a", 3}, {"c", 4}})
	want := map[string][]float64{"a": {1, 3}, "b": {2, 0}, "c": {0, 4}}
	rows := s.rows()
	if len(rows) != len(want) {
		t.Fatalf("%d rows, want %d: %v", len(rows), len(want), rows)
	}
	for i, metric := range []string{"a", "b", "c"} {
		if rows[i].Metric != metric || !reflect.DeepEqual(rows[i].Samples, want[metric]) {
			t.Errorf("row %d is %s %v, want %s %v", i, rows[i].Metric, rows[i].Samples, metric, want[metric])
		}
	}
}

func TestFailedWayHasARowThatSaysWhy(t *testing.T) {
	s := &series{workload: "tiny", link: "slow", way: "walk", note: "no shoes"}
	document, err := json.Marshal(s.rows())
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"workload":"tiny","link":"slow","way":"walk","metric":"downtime_seconds","samples":[],` +
		`"median":null,"low":null,"high":null,"note":"no shoes"}]`
	if string(document) != want {
		t.Errorf("rows are\n%s, want\n%s", document, want)
	}
}

// measuredRow makes a row of one sample.
func measuredRow(workload, link, way, metric string, value float64) Row {
	s := &series{workload: workload, link: link, way: way}
	s.add([]measurement{{metric, value}})
	return s.rows()[0]
}

func exampleRows() []Row {
	return []Row{
		measuredRow(workloadTiny, linkFast, wayFloor, metricDowntime, 0.100),
		measuredRow(workloadTiny, linkFast, wayGodwit, metricDowntime, 0.130),
		measuredRow(workloadTiny, linkDistant, wayFloor, metricDowntime, 0.100),
		measuredRow(workloadTiny, linkDistant, wayGodwit, metricDowntime, 0.260),
		measuredRow(workloadRedis, linkFast, wayGodwit, metricDowntime, 0.700),
		measuredRow(workloadRedis, linkFast, wayGodwit, metricGap, 0.710),
		measuredRow(workloadRedis, linkFast, wayGodwit, metricBeyond, 0.010),
		measuredRow(workloadRedis, linkFast, wayGodwit, metricSent, 50e6),
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
	asked := judge(exampleRows(), links())
	if len(asked) != len(want) {
		t.Fatalf("%d things are asked, want %d: %v", len(asked), len(want), asked)
	}
	for i, w := range want {
		a := asked[i]
		if math.Abs(a.Limit-w.limit) > 1e-9 || a.Value != w.value || a.Met != w.met {
			t.Errorf("%s: limit %v, value %v, met %t; want %v, %v, %t", a.What, a.Limit, a.Value, a.Met, w.limit, w.value, w.met)
		}
	}
}

func TestWhatIsNotMeasuredIsNotJudged(t *testing.T) {
	if asked := judge(nil, links()); len(asked) != 0 {
		t.Errorf("%v is judged although nothing was measured", asked)
	}
}

func TestResultFile(t *testing.T) {
	rows := exampleRows()
	result := Result{
		Suite: "switchover", Host: Host{Cores: 2, Kernel: "6.18", CRIU: "4.2.1"}, Started: time.Unix(0, 0).UTC(),
		Rows: rows, Asked: judge(rows, links()),
	}
	path := filepath.Join(t.TempDir(), "made", "result.json")
	for range 2 { // it replaces an older one
		if err := result.WriteFile(path); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var read Result
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(read, result) {
		t.Errorf("read back:\n%+v\nwant\n%+v", read, result)
	}
	for _, key := range []string{`"suite"`, `"host"`, `"started"`, `"rows"`, `"asked"`, `"median"`, `"low"`, `"high"`, `"met"`} {
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
	rows := append(exampleRows(), (&series{workload: workloadTiny, link: linkFast, way: wayPodman, note: "it has gone\nfar away"}).rows()...)
	var text strings.Builder
	Result{Suite: "switchover", Rows: rows, Asked: judge(rows, links())}.WriteText(&text)
	for _, want := range []string{
		"tiny, 1gbit/0.4ms", "100.0 ms", "podman", "it has gone", "met, 20.0 ms to spare", "NOT met: 10.0 ms too much (8%)",
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

func TestFromReportTakesThePhasesOfTheDowntime(t *testing.T) {
	measured := fromReport(migration.Report{
		DowntimeSeconds: 0.5,
		Phases: []migration.Phase{
			{Name: "examine", Seconds: 9}, {Name: "dump", Seconds: 0.25, Downtime: true},
			{Name: "arrive-last", Seconds: 0.2, Downtime: true}, {Name: "dump", Seconds: 0.5, Downtime: true},
		},
		Bytes: migration.Bytes{MemoryFinal: 10, FilesFinal: 20, Metadata: 30, Layers: 1000, MemoryRaw: 40},
	})
	got := map[string]float64{}
	for _, m := range measured {
		got[m.metric] = m.value
	}
	want := map[string]float64{
		metricDowntime: 0.5, metricHandoff: 0, metricTotal: 0, metricSent: 60, metricUncompressed: 40,
		"phase_dump_seconds": 0.75, "phase_arrive_last_seconds": 0.2,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("measured %v, want %v", got, want)
	}
}

func TestChoose(t *testing.T) {
	all := func(named ...string) string {
		chosen, err := choose("link", links(), namedLink.title, named)
		if err != nil {
			return err.Error()
		}
		return strings.Join(namesOf(chosen, namedLink.title), " ")
	}
	for _, c := range []struct{ got, want string }{
		{all(), "1gbit/0.4ms 100mbit/20ms 10mbit/100ms"},
		{all("10mbit", "1gbit/0.4ms"), "1gbit/0.4ms 10mbit/100ms"},
		{all("10gbit"), `no such link: "10gbit"; there are 1gbit/0.4ms, 100mbit/20ms, 10mbit/100ms`},
		{all(""), `no such link: ""; there are 1gbit/0.4ms, 100mbit/20ms, 10mbit/100ms`},
	} {
		if c.got != c.want {
			t.Errorf("chosen %s, want %s", c.got, c.want)
		}
	}
}

func TestTimeCommand(t *testing.T) {
	var out strings.Builder
	if err := TimeCommand(t.Context(), []string{"true"}, &out); err != nil {
		t.Fatal(err)
	}
	if seconds, err := parseTimed(out.String()); err != nil || seconds <= 0 {
		t.Errorf("true took %v seconds, error %v", seconds, err)
	}
	out.Reset()
	if err := TimeCommand(t.Context(), []string{"cat", "/no/such/file"}, &out); err != nil {
		t.Fatal(err)
	}
	if _, err := parseTimed(out.String()); err == nil || !strings.Contains(err.Error(), "/no/such/file: No such file") {
		t.Errorf("the error of a command that failed is %v", err)
	}
}

func TestBadConfiguration(t *testing.T) {
	for _, config := range []Config{
		{Lab: "bench-bad", Runs: 0}, {Lab: "bench-bad", Runs: 1, Links: []string{"moon"}},
		{Lab: "bench-bad", Runs: 1, Workloads: []string{"doom"}},
	} {
		if _, err := Switchover(t.Context(), config); err == nil {
			t.Errorf("%+v is accepted", config)
		}
	}
	if names, err := lab.List(); err != nil || strings.Contains(strings.Join(names, " "), "bench-bad") {
		t.Errorf("a lab was made: %v %v", names, err)
	}
}
