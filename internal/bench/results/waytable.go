package results

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Column is a column of a table with a line for each way. It is an alias for the same reason as measurement.
type Column = struct{ Title, Metric string }

// WayTable describes how a suite prints its measurements: in a table for each workload and link.
type WayTable struct {
	Columns []Column
	Ways    []string // in the order of the lines
	Size    string   // the metric of the workload's size, for the title
	// Remark may change a line's cells, and returns an additional note.
	Remark func(workload, link, way string, cells []string) string
}

// WriteWays prints a table for each workload and link.
func (r Result) WriteWays(w io.Writer, t WayTable) {
	for i, row := range r.Rows {
		if i > 0 && row.Workload == r.Rows[i-1].Workload && row.Link == r.Rows[i-1].Link {
			continue
		}
		fmt.Fprintf(w, "\n%s, %s%s\n", row.Workload, row.Link, r.sizeOf(row, t.Size))
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprint(table, "  way")
		for _, c := range t.Columns {
			fmt.Fprint(table, "\t"+c.Title)
		}
		fmt.Fprintln(table)
		var notes []string
		for _, way := range t.Ways {
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
func (r Result) wayLine(t WayTable, workload, link, way string) (line, note string) {
	cells := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		cells[i] = "-"
		if row := Find(r.Rows, workload, link, way, c.Metric); row != nil {
			cells[i] = Amount(*row.Median, Unit(c.Metric))
		}
	}
	if t.Remark != nil {
		note = t.Remark(workload, link, way, cells)
	}
	for _, row := range r.Rows {
		if row.Workload == workload && row.Link == link && row.Way == way {
			if row.Note != "" {
				note = fmt.Sprintf("%s: %s", way, FirstLine(row.Note))
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
			return fmt.Sprintf(" (%s)", Size(*row.Median))
		}
	}
	return ""
}
