package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// inOrder groups the rows of the same workload and link, in the order of the ways, and adds their
// certainty.
func inOrder(rows []Row) []Row {
	type cell struct{ workload, link string }
	var cells []cell
	for _, row := range rows {
		if c := (cell{row.Workload, row.Link}); !slices.Contains(cells, c) {
			cells = append(cells, c)
		}
	}
	titles := StudyTitles() // the rows of several runs may be in any order
	slices.SortStableFunc(cells,
		func(x, y cell) int { return slices.Index(titles, x.workload) - slices.Index(titles, y.workload) })
	place := func(r Row) int {
		return slices.Index(cells, cell{r.Workload, r.Link})*len(StudyWays()) +
			slices.Index(StudyWays(), r.Way)
	}
	slices.SortStableFunc(rows, func(x, y Row) int { return place(x) - place(y) })
	for i, row := range rows {
		if len(row.Samples) > 0 {
			low, high, certainty := interval(row.Samples)
			rows[i].Interval, rows[i].Certainty = &[2]float64{low, high}, certainty
		}
	}
	return rows
}

// writeStudies prints a table for each workload and link.
func (r Result) writeStudies(w io.Writer) {
	fmt.Fprintln(w, "median (interval that has it with 95 % certainty, or all that was seen in fewer than "+
		"6 runs);")
	fmt.Fprintln(w, `"limit" is what the bytes that were sent need at the link's bandwidth`)
	ways := slices.Clone(StudyWays())
	for _, row := range r.Rows {
		if strings.HasPrefix(row.Way, wayStudy) && !slices.Contains(ways, row.Way) {
			ways = slices.Insert(ways, 0, row.Way)
		}
	}
	r.writeWays(w, wayTable{
		columns: []column{
			{"downtime", metricDowntime}, {"limit", metricDowntimeLimit}, {"handoff", metricHandoff},
			{"total", metricTotal},
			{"limit", metricTotalLimit}, {"sent", metricSent}, {"before the request", metricStageBytes},
			{"client waited", metricGap},
			{"picture stood still", metricStill},
		},
		ways: ways,
		remark: func(workload, link, way string, cells []string) string {
			if row := find(r.Rows, workload, link, way, metricDowntime); row != nil && row.Interval != nil &&
				len(row.Samples) > 1 {
				cells[0] += fmt.Sprintf(" (%s .. %s)", seconds(row.Interval[0]), seconds(row.Interval[1]))
			}
			return ""
		},
	})
}
