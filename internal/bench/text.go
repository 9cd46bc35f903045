package bench

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
)

// writeText prints a result for people: its rows, as its suite prints them, and the requirements.
func (r Result) writeText(w io.Writer, rows func()) {
	fmt.Fprintf(w, "%s: %d cores, %s, Linux %s, CRIU %s, load average %.1f at the beginning\n", r.Suite,
		r.Host.Cores, r.Host.Architecture, r.Host.Kernel, r.Host.CRIU, r.Host.Load)
	rows()
	if len(r.Asked) > 0 {
		fmt.Fprintln(w)
		r.writeAsked(w)
	}
}

// writeMetrics prints a line for each metric.
func (r Result) writeMetrics(w io.Writer) {
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var notes []string
	fmt.Fprintln(table, "what\tby\tmetric\tmedian\tlow .. high\tsamples")
	for i, row := range r.Rows {
		what, way := row.Workload, row.Way
		if i > 0 && r.Rows[i-1].Workload == what && r.Rows[i-1].Way == way {
			what, way = "", ""
		}
		if row.Median == nil {
			fmt.Fprintf(table, "%s\t%s\t-\t-\t\t\n", what, way)
			notes = append(notes, fmt.Sprintf("%s, %s: %s", row.Workload, row.Way, firstLine(row.Note)))
			continue
		}
		name := strings.ReplaceAll(strings.TrimSuffix(row.Metric, "_"+unit(row.Metric)), "_", " ")
		show := func(v float64) string { return amount(v, unit(row.Metric)) }
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s .. %s\t%d\n", what, way, name, show(*row.Median),
			show(*row.Low), show(*row.High), len(row.Samples))
	}
	_ = table.Flush() // as with Fprintf, nobody reads this error
	for _, note := range notes {
		fmt.Fprintln(w, note)
	}
}

// writeMoves prints a table for each workload and link.
func (r Result) writeMoves(w io.Writer) {
	for i, row := range r.Rows {
		if i == 0 || row.Workload != r.Rows[i-1].Workload || row.Link != r.Rows[i-1].Link {
			fmt.Fprintln(w)
			r.writeTable(w, row.Workload, row.Link)
		}
	}
}

// writeTable prints one workload over one link: a line for each way, with the parts of the downtime, then
// the other measurements of Godwit.
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
		fmt.Fprintf(table, "  %s\t%s\t%s .. %s\t%s\t%s\n", row.Way, seconds(*row.Median), seconds(*row.Low),
			seconds(*row.High), r.parts(row), r.sent(row))
	}
	_ = table.Flush() // as with Fprintf, nobody reads this error
	r.writeRest(w, workload, link)
}

// parts returns the parts of a way's downtime.
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
	for _, way := range []string{wayCold, wayPreCopy} {
		var parts []string
		for _, m := range []struct{ metric, what string }{
			{metricRounds, "rounds"}, {metricFrozen, "memory sent in the freeze"},
			{metricGap, "longest gap of the client"},
			{metricBeyond, "beyond the downtime"}, {metricHandoff, "handoff"}, {metricTotal, "total"},
			{metricMemory, "memory"}, {metricGrowth, "of it at the target"},
		} {
			if row := find(r.Rows, workload, link, way, m.metric); row != nil {
				show := func(v float64) string { return amount(v, unit(m.metric)) }
				parts = append(parts, fmt.Sprintf("%s %s (%s .. %s)", m.what, show(*row.Median),
					show(*row.Low), show(*row.High)))
			}
		}
		if len(parts) > 0 {
			fmt.Fprintf(w, "  %s: %s\n", way, strings.Join(parts, ", "))
		}
	}
}

func (r Result) writeAsked(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "asked\tlimit\tmeasured\t")
	for _, a := range r.Asked {
		what := a.What
		if a.Way != "" {
			what += " (" + a.Way + ")"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", what, amount(a.Limit, a.Unit), amount(a.Value, a.Unit),
			a.verdict())
	}
	_ = table.Flush() // as above
}

// Missed returns the number of requirements that are not met.
func (r Result) Missed() int {
	missed := 0
	for _, a := range r.Asked {
		if !a.Met {
			missed++
		}
	}
	return missed
}

// verdict says how well a requirement is met.
func (a Asked) verdict() string {
	spare := a.Limit - a.Value
	short := "too much"
	if a.Least {
		spare, short = -spare, "too little"
	}
	if a.Met {
		return fmt.Sprintf("met, %s to spare", amount(spare, a.Unit))
	}
	text := fmt.Sprintf("NOT met: %s %s", amount(-spare, a.Unit), short)
	if a.Limit > 0 {
		text += fmt.Sprintf(" (%.0f%%)", -spare/a.Limit*100)
	}
	return text + a.Near()
}

// Near compares a time with the minimum that the link allows.
func (a Asked) Near() string {
	if a.Reach == nil || *a.Reach <= 0 {
		return ""
	}
	return fmt.Sprintf("; what was sent needs %s on this link, it took %.2f x that", amount(*a.Reach, a.Unit),
		a.Value / *a.Reach)
}

// amount formats a number with its unit.
func amount(value float64, unit string) string {
	switch unit {
	case "seconds":
		return seconds(value)
	case "bytes":
		return size(value)
	case "bytes_per_second":
		if value < 1e9 {
			return fmt.Sprintf("%.1f MB/s", value/1e6)
		}
		return fmt.Sprintf("%.2f GB/s", value/1e9)
	case "writes_per_second":
		return fmt.Sprintf("%.1f M/s", value/1e6)
	case "ratio":
		return fmt.Sprintf("%.1f %%", value*100)
	}
	return strconv.FormatFloat(math.Round(value*10)/10, 'f', -1, 64)
}

func seconds(s float64) string {
	switch {
	case s == 0:
		return "0"
	case s < 0.0009995: // longer times are rounded to a millisecond
		return fmt.Sprintf("%.3g us", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.1f ms", s*1e3)
	}
	return fmt.Sprintf("%.2f s", s)
}

func size(bytes float64) string {
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
