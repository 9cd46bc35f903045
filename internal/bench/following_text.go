package bench

import (
	"fmt"
	"io"
)

// writeFollowing prints a table for each workload and link of the suite postcopy.
func (r Result) writeFollowing(w io.Writer) {
	r.writeWays(w, wayTable{
		columns: []column{
			{"freeze", metricDowntime}, {"until all is there", metricPush}, {"goodput", metricGoodput},
			{"sent", metricSent},
			{"faults per GiB", metricFaultsPer}, {"wait p50", metricWaitMedian}, {"p99", metricWaitP99},
			{"longest", metricWaitLongest},
			{"answers after", metricAnswered},
		},
		ways: FollowingWays(), size: metricProgram,
		remark: func(workload, link, way string, cells []string) string {
			return remarkCame(r, workload, link, way, cells)
		},
	})
}

// remarkCame corrects the line of a way whose transfer was given up.
func remarkCame(r Result, workload, link, way string, cells []string) string {
	came := find(r.Rows, workload, link, way, metricCame)
	if came == nil {
		return ""
	}
	cells[1] = "not in time"
	return fmt.Sprintf("%s: %s had arrived when the benchmark stopped waiting", way, size(*came.Median))
}
