package results

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestSeriesFillsWhatARunDoesNotHave(t *testing.T) {
	s := &Series{Workload: "tiny", Link: "slow", Way: "walk"}
	s.Add([]Measurement{{"a", 1}, {"b", 2}})
	s.Add([]Measurement{{"a", 3}, {"c", 4}})
	want := map[string][]float64{"a": {1, 3}, "b": {2, 0}, "c": {0, 4}}
	rows := s.Rows()
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
	s := &Series{Workload: "tiny", Link: "slow", Way: "walk", Note: "no shoes"}
	document, err := json.Marshal(s.Rows())
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"workload":"tiny","link":"slow","way":"walk","metric":"downtime_seconds","samples":[],` +
		`"median":null,"low":null,"high":null,"note":"no shoes"}]`
	if string(document) != want {
		t.Errorf("rows are\n%s, want\n%s", document, want)
	}
}
