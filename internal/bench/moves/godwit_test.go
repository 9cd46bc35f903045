package moves

import (
	"reflect"
	"testing"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/migration"
)

func TestFromReportTakesThePhasesOfTheDowntime(t *testing.T) {
	measured := FromReport(migration.Report{
		DowntimeSeconds: 0.5,
		Phases: []migration.Phase{
			{Name: "examine", Seconds: 9}, {Name: "dump", Seconds: 0.25, Downtime: true},
			{Name: "arrive-last", Seconds: 0.2, Downtime: true}, {Name: "dump", Seconds: 0.5, Downtime: true},
		},
		Rounds: []migration.Round{{Pages: 1}, {Pages: 2, Final: true}},
		Bytes: migration.Bytes{MemoryPrecopy: 5, MemoryFinal: 10, FilesFinal: 20, Metadata: 30, Layers: 1000,
			MemoryRaw: 50, Uncompressed: 40},
	})
	got := map[string]float64{}
	for _, m := range measured {
		got[m.Metric] = m.Value
	}
	want := map[string]float64{
		results.Downtime: 0.5, results.Handoff: 0, results.Total: 0, results.Sent: 65, results.Frozen: 10,
		results.Uncompressed: 40, results.Raw: 50, results.Rounds: 1,
		"phase_dump_seconds": 0.75, "phase_arrive_last_seconds": 0.2,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("measured %v, want %v", got, want)
	}
}

func TestJudgeLog(t *testing.T) {
	for log, want := range map[string]bool{
		"ready\n{\"pages\":4,\"written\":0,\"checked\":4,\"bad\":0}\n": true,
		"ready\nbad: page 3\n{\"pages\":4,\"checked\":4,\"bad\":1}":    false,
		"{\"pages\":4,\"checked\":3,\"bad\":0}":                        false,
		"ready":                                                        false,
		"":                                                             false,
	} {
		if err := judgeLog(log); (err == nil) != want {
			t.Errorf("%q is judged %v", log, err)
		}
	}
}
