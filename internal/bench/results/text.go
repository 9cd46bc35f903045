package results

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteText prints a result for people: its rows, as its suite prints them, and the requirements.
func (r Result) WriteText(w io.Writer, rows func()) {
	fmt.Fprintf(w, "%s: %d cores, %s, Linux %s, CRIU %s, load average %.1f at the beginning\n", r.Suite,
		r.Host.Cores, r.Host.Architecture, r.Host.Kernel, r.Host.CRIU, r.Host.Load)
	rows()
	if len(r.Asked) > 0 {
		fmt.Fprintln(w)
		r.writeAsked(w)
	}
}

// WriteMetrics prints a line for each metric.
func (r Result) WriteMetrics(w io.Writer) {
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
			notes = append(notes, fmt.Sprintf("%s, %s: %s", row.Workload, row.Way, FirstLine(row.Note)))
			continue
		}
		name := strings.ReplaceAll(strings.TrimSuffix(row.Metric, "_"+Unit(row.Metric)), "_", " ")
		show := func(v float64) string { return Amount(v, Unit(row.Metric)) }
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s .. %s\t%d\n", what, way, name, show(*row.Median),
			show(*row.Low), show(*row.High), len(row.Samples))
	}
	_ = table.Flush() // as with Fprintf, nobody reads this error
	for _, note := range notes {
		fmt.Fprintln(w, note)
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
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", what, Amount(a.Limit, a.Unit), Amount(a.Value, a.Unit),
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
		return fmt.Sprintf("met, %s to spare", Amount(spare, a.Unit))
	}
	text := fmt.Sprintf("NOT met: %s %s", Amount(-spare, a.Unit), short)
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
	return fmt.Sprintf("; what was sent needs %s on this link, it took %.2f x that", Amount(*a.Reach, a.Unit),
		a.Value / *a.Reach)
}

// Amount formats a number with its unit.
func Amount(value float64, unit string) string {
	switch unit {
	case "seconds":
		return Seconds(value)
	case "bytes":
		return Size(value)
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

// Seconds formats a time.
func Seconds(s float64) string {
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

// Size formats a number of bytes.
func Size(bytes float64) string {
	if bytes < Mebi {
		return fmt.Sprintf("%.1f KiB", bytes/Kibi)
	}
	return fmt.Sprintf("%.1f MiB", bytes/Mebi)
}

// FirstLine returns the beginning of a text, for a table.
func FirstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	const most = 160
	return line[:min(len(line), most)]
}
