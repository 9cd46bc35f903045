package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// column is a column of a table with a line for each way. It is an alias for the same reason as measurement.
type column = struct{ title, metric string }

// wayTable describes how a suite prints its measurements: in a table for each workload and link.
type wayTable struct {
	columns []column
	ways    []string // in the order of the lines
	size    string   // the metric of the workload's size, for the title
	// remark may change a line's cells, and returns an additional note.
	remark func(workload, link, way string, cells []string) string
}

func (r Result) writeWays(w io.Writer, t wayTable) {
	for i, row := range r.Rows {
		if i > 0 && row.Workload == r.Rows[i-1].Workload && row.Link == r.Rows[i-1].Link {
			continue
		}
		fmt.Fprintf(w, "\n%s, %s%s\n", row.Workload, row.Link, r.sizeOf(row, t.size))
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprint(table, "  way")
		for _, c := range t.columns {
			fmt.Fprint(table, "\t"+c.title)
		}
		fmt.Fprintln(table)
		var notes []string
		for _, way := range t.ways {
			if line, note := r.wayLine(t, row.Workload, row.Link, way); line != "" {
				fmt.Fprintln(table, line)
				notes = append(notes, note)
			}
		}
		_ = table.Flush() // as with Fprintf, nobody reads this error
		for _, note := range notes {
			if note != "" {
				fmt.Fprintln(w, "  "+note)
			}
		}
	}
}

// wayLine returns a line of the table, and its note.
func (r Result) wayLine(t wayTable, workload, link, way string) (line, note string) {
	cells := make([]string, len(t.columns))
	for i, c := range t.columns {
		cells[i] = "-"
		if row := find(r.Rows, workload, link, way, c.metric); row != nil {
			cells[i] = amount(*row.Median, unit(c.metric))
		}
	}
	if t.remark != nil {
		note = t.remark(workload, link, way, cells)
	}
	for _, row := range r.Rows {
		if row.Workload == workload && row.Link == link && row.Way == way {
			if row.Note != "" {
				note = fmt.Sprintf("%s: %s", way, firstLine(row.Note))
			}
			line = "  " + way + "\t" + strings.Join(cells, "\t")
		}
	}
	return line, note
}

// sizeOf returns the size of a row's workload, if it was measured.
func (r Result) sizeOf(of Row, metric string) string {
	for _, row := range r.Rows {
		if row.Workload == of.Workload && row.Link == of.Link && row.Metric == metric && row.Median != nil {
			return fmt.Sprintf(" (%s)", size(*row.Median))
		}
	}
	return ""
}
