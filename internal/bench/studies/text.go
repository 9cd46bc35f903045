package studies

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/bench/results"
)

// inOrder groups the rows of the same workload and link, in the order of the ways, and adds their
// certainty.
func inOrder(rows []results.Row) []results.Row {
	type cell struct{ workload, link string }
	var cells []cell
	for _, row := range rows {
		if c := (cell{row.Workload, row.Link}); !slices.Contains(cells, c) {
			cells = append(cells, c)
		}
	}
	titles := Names() // the rows of several runs may be in any order
	slices.SortStableFunc(cells,
		func(x, y cell) int { return slices.Index(titles, x.workload) - slices.Index(titles, y.workload) })
	place := func(r results.Row) int {
		return slices.Index(cells, cell{r.Workload, r.Link})*len(Ways()) +
			slices.Index(Ways(), r.Way)
	}
	slices.SortStableFunc(rows, func(x, y results.Row) int { return place(x) - place(y) })
	for i, row := range rows {
		if len(row.Samples) > 0 {
			low, high, certainty := results.Interval(row.Samples)
			rows[i].Interval, rows[i].Certainty = &[2]float64{low, high}, certainty
		}
	}
	return rows
}

// WriteRows prints a table for each workload and link.
func WriteRows(r results.Result, w io.Writer) {
	fmt.Fprintln(w, "median (interval that has it with 95 % certainty, or all that was seen in fewer than "+
		"6 runs);")
	fmt.Fprintln(w, `"limit" is what the bytes that were sent need at the link's bandwidth`)
	ways := slices.Clone(Ways())
	for _, row := range r.Rows {
		if strings.HasPrefix(row.Way, wayStudy) && !slices.Contains(ways, row.Way) {
			ways = slices.Insert(ways, 0, row.Way)
		}
	}
	r.WriteWays(w, results.WayTable{
		Columns: []results.Column{
			{"downtime", results.Downtime}, {"limit", metricDowntimeLimit}, {"handoff", results.Handoff},
			{"total", results.Total},
			{"limit", metricTotalLimit}, {"sent", results.Sent}, {"before the request", metricStageBytes},
			{"client waited", results.Gap},
			{"picture stood still", metricStill},
		},
		Ways: ways,
		Remark: func(workload, link, way string, cells []string) string {
			if row := results.Find(r.Rows, workload, link, way, results.Downtime); row != nil &&
				row.Interval != nil &&
				len(row.Samples) > 1 {
				cells[0] += fmt.Sprintf(" (%s .. %s)", results.Seconds(row.Interval[0]),
					results.Seconds(row.Interval[1]))
			}
			return ""
		},
	})
}
