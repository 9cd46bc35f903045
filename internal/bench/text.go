package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteText writes a result for people: a table for each workload and link, and what is asked.
func (r Result) WriteText(w io.Writer) {
	fmt.Fprintf(w, "%s: %d cores, %s, Linux %s, CRIU %s\n", r.Suite, r.Host.Cores, r.Host.Architecture, r.Host.Kernel, r.Host.CRIU)
	for i, row := range r.Rows {
		if i == 0 || row.Workload != r.Rows[i-1].Workload || row.Link != r.Rows[i-1].Link {
			fmt.Fprintln(w)
			r.writeTable(w, row.Workload, row.Link)
		}
	}
	if len(r.Asked) > 0 {
		fmt.Fprintln(w)
		r.writeAsked(w)
	}
}

// writeTable shows one workload over one link: a line for each way, with the parts of the downtime, then the rest of
// what is known of Godwit's.
func (r Result) writeTable(w io.Writer, workload, link string) {
	fmt.Fprintf(w, "%s, %s\n", workload, link)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  way\tdowntime\tlow .. high\tof which\tsent")
	for _, row := range r.Rows {
		if row.Workload != workload || row.Link != link || row.Metric != metricDowntime {
			continue
		}
		if row.Median == nil {
			fmt.Fprintf(table, "  %s\t-\t\t%s\t\n", row.Way, firstLine(row.Note))
			continue
		}
		fmt.Fprintf(table, "  %s\t%s\t%s .. %s\t%s\t%s\n", row.Way, seconds(*row.Median), seconds(*row.Low), seconds(*row.High),
			r.parts(row), r.sent(row))
	}
	_ = table.Flush() // as with Fprintf: nobody to tell
	r.writeRest(w, workload, link)
}

// parts are the pieces of a way's downtime.
func (r Result) parts(of Row) string {
	var parts []string
	for _, row := range r.Rows {
		if row.Workload != of.Workload || row.Link != of.Link || row.Way != of.Way || row.Median == nil {
			continue
		}
		name, isPhase := strings.CutPrefix(row.Metric, "phase_")
		switch row.Metric {
		case metricCheckpoint, metricCopy, metricRestore:
		default:
			if !isPhase {
				continue
			}
		}
		name = strings.ReplaceAll(strings.TrimSuffix(name, "_seconds"), "_", "-")
		parts = append(parts, name+" "+seconds(*row.Median))
	}
	return strings.Join(parts, ", ")
}

func (r Result) sent(of Row) string {
	row := find(r.Rows, of.Workload, of.Link, of.Way, metricSent)
	if row == nil {
		return ""
	}
	text := size(*row.Median)
	if raw := find(r.Rows, of.Workload, of.Link, of.Way, metricUncompressed); raw != nil {
		text += fmt.Sprintf(" (%s before compression)", size(*raw.Median))
	}
	return text
}

func (r Result) writeRest(w io.Writer, workload, link string) {
	var parts []string
	for _, m := range []struct{ metric, what string }{
		{metricGap, "longest gap of the client"}, {metricBeyond, "beyond the downtime"}, {metricHandoff, "handoff"}, {metricTotal, "total"},
	} {
		if row := find(r.Rows, workload, link, wayGodwit, m.metric); row != nil {
			parts = append(parts, fmt.Sprintf("%s %s (%s .. %s)", m.what, seconds(*row.Median), seconds(*row.Low), seconds(*row.High)))
		}
	}
	if len(parts) > 0 {
		fmt.Fprintf(w, "  %s: %s\n", wayGodwit, strings.Join(parts, ", "))
	}
}

func (r Result) writeAsked(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "asked\tlimit\tmeasured\t")
	for _, a := range r.Asked {
		verdict := fmt.Sprintf("met, %s to spare", seconds(a.Limit-a.Value))
		if !a.Met {
			verdict = fmt.Sprintf("NOT met: %s too much (%.0f%%)", seconds(a.Value-a.Limit), (a.Value/a.Limit-1)*100)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", a.What, seconds(a.Limit), seconds(a.Value), verdict)
	}
	_ = table.Flush() // as above
}

// Missed tells how many of the things that are asked are not met.
func (r Result) Missed() int {
	missed := 0
	for _, a := range r.Asked {
		if !a.Met {
			missed++
		}
	}
	return missed
}

func seconds(s float64) string {
	if s < 1 {
		return fmt.Sprintf("%.1f ms", s*1e3)
	}
	return fmt.Sprintf("%.2f s", s)
}

func size(bytes float64) string {
	const kibi, mebi = 1 << 10, 1 << 20
	if bytes < mebi {
		return fmt.Sprintf("%.1f KiB", bytes/kibi)
	}
	return fmt.Sprintf("%.1f MiB", bytes/mebi)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	const most = 160
	return line[:min(len(line), most)]
}
