package switchover

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
)

// WriteRows prints a table for each workload and link.
func WriteRows(r results.Result, w io.Writer) {
	for i, row := range r.Rows {
		if i == 0 || row.Workload != r.Rows[i-1].Workload || row.Link != r.Rows[i-1].Link {
			fmt.Fprintln(w)
			writeTable(r, w, row.Workload, row.Link)
		}
	}
}

// writeTable prints one workload over one link: a line for each way, with the parts of the downtime, then
// the other measurements of Godwit.
func writeTable(r results.Result, w io.Writer, workload, link string) {
	fmt.Fprintf(w, "%s, %s\n", workload, link)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  way\tdowntime\tlow .. high\tof which\tsent")
	for _, row := range r.Rows {
		if row.Workload != workload || row.Link != link || row.Metric != results.Downtime {
			continue
		}
		if row.Median == nil {
			fmt.Fprintf(table, "  %s\t-\t\t%s\t\n", row.Way, results.FirstLine(row.Note))
			continue
		}
		fmt.Fprintf(table, "  %s\t%s\t%s .. %s\t%s\t%s\n", row.Way, results.Seconds(*row.Median),
			results.Seconds(*row.Low),
			results.Seconds(*row.High), parts(r, row), sent(r, row))
	}
	_ = table.Flush() // as with Fprintf, nobody reads this error
	writeRest(r, w, workload, link)
}

// parts returns the parts of a way's downtime.
func parts(r results.Result, of results.Row) string {
	var parts []string
	for _, row := range r.Rows {
		if row.Workload != of.Workload || row.Link != of.Link || row.Way != of.Way || row.Median == nil {
			continue
		}
		name, isPhase := strings.CutPrefix(row.Metric, "phase_")
		switch row.Metric {
		case results.Checkpoint, results.Copy, results.Restore:
		default:
			if !isPhase {
				continue
			}
		}
		name = strings.ReplaceAll(strings.TrimSuffix(name, "_seconds"), "_", "-")
		parts = append(parts, name+" "+results.Seconds(*row.Median))
	}
	return strings.Join(parts, ", ")
}

func sent(r results.Result, of results.Row) string {
	row := results.Find(r.Rows, of.Workload, of.Link, of.Way, results.Sent)
	if row == nil {
		return ""
	}
	text := results.Size(*row.Median)
	if raw := results.Find(r.Rows, of.Workload, of.Link, of.Way, results.Uncompressed); raw != nil {
		text += fmt.Sprintf(" (%s before compression)", results.Size(*raw.Median))
	}
	return text
}

func writeRest(r results.Result, w io.Writer, workload, link string) {
	for _, way := range []string{moves.WayCold, moves.WayPreCopy} {
		var parts []string
		for _, m := range []struct{ metric, what string }{
			{results.Rounds, "rounds"}, {results.Frozen, "memory sent in the freeze"},
			{results.Gap, "longest gap of the client"},
			{results.Beyond, "beyond the downtime"}, {results.Handoff, "handoff"}, {results.Total, "total"},
			{results.Memory, "memory"}, {results.Growth, "of it at the target"},
		} {
			if row := results.Find(r.Rows, workload, link, way, m.metric); row != nil {
				show := func(v float64) string { return results.Amount(v, results.Unit(m.metric)) }
				parts = append(parts, fmt.Sprintf("%s %s (%s .. %s)", m.what, show(*row.Median),
					show(*row.Low), show(*row.High)))
			}
		}
		if len(parts) > 0 {
			fmt.Fprintf(w, "  %s: %s\n", way, strings.Join(parts, ", "))
		}
	}
}
