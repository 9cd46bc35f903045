package postcopy

import (
	"fmt"
	"io"

	"github.com/godwit/godwit/internal/bench/results"
)

// WriteRows prints a table for each workload and link of the suite postcopy.
func WriteRows(r results.Result, w io.Writer) {
	r.WriteWays(w, results.WayTable{
		Columns: []results.Column{
			{"freeze", results.Downtime}, {"until all is there", results.Push}, {"goodput", results.Goodput},
			{"sent", results.Sent},
			{"faults per GiB", metricFaultsPer}, {"wait p50", metricWaitMedian}, {"p99", metricWaitP99},
			{"longest", metricWaitLongest},
			{"answers after", metricAnswered},
		},
		Ways: Ways(), Size: metricProgram,
		Remark: func(workload, link, way string, cells []string) string {
			return remarkCame(r, workload, link, way, cells)
		},
	})
}

// remarkCame corrects the line of a way whose transfer was given up.
func remarkCame(r results.Result, workload, link, way string, cells []string) string {
	came := results.Find(r.Rows, workload, link, way, results.Came)
	if came == nil {
		return ""
	}
	cells[1] = "not in time"
	return fmt.Sprintf("%s: %s had arrived when the benchmark stopped waiting", way,
		results.Size(*came.Median))
}
