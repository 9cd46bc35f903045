package page

import (
	"bytes"
	_ "embed" // the page's parts
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/bench"
)

//go:embed chart.umd.min.js
var library string

//go:embed page.js
var script string

//go:embed page.html
var layout string

// section is one workload over one link.
type section struct {
	Title  string        `json:"title"`
	Ways   []string      `json:"ways"`
	Freeze []stack       `json:"freeze"` // parts of the downtime, in seconds
	Total  []stack       `json:"total"`  // parts of the whole time, in seconds
	Bytes  []stack       `json:"bytes"`  // what was sent when, in bytes
	Traces []bench.Trace `json:"traces"` // of the first run of each way
	Lines  [][]string    `json:"-"`
	Notes  []string      `json:"-"`
}

// stack is one part of the bars of all ways.
type stack struct {
	Label string    `json:"label"`
	Data  []float64 `json:"data"`
}

// document is what the layout shows.
type document struct {
	Result   bench.Result
	Sections []section
	Columns  []string
	Library  template.JS
	Script   template.JS
}

// WriteFile writes the page, whole or not at all.
func WriteFile(result bench.Result, path string) error {
	content, err := render(result)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path+".new", content, 0o644)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("page of the benchmark: %w", err)
	}
	return nil
}

func render(result bench.Result) ([]byte, error) {
	parsed, err := template.New("page").Parse(layout)
	if err != nil {
		return nil, err
	}
	columns := make([]string, len(shown()))
	for i, c := range shown() {
		columns[i] = c.title
	}
	var out bytes.Buffer
	err = parsed.Execute(&out, document{
		Result: result, Sections: sections(result), Columns: columns,
		Library: template.JS(library), Script: template.JS(script), //nolint:gosec // they are files of this package
	})
	return out.Bytes(), err
}

// sections has one for each workload and link, in the order of the rows.
func sections(result bench.Result) []section {
	var all []section
	for i, row := range result.Rows {
		if i > 0 && row.Workload == result.Rows[i-1].Workload && row.Link == result.Rows[i-1].Link {
			continue
		}
		all = append(all, newSection(result, row.Workload, row.Link))
	}
	return all
}

func newSection(result bench.Result, workload, link string) section {
	s := section{Title: workload + ", " + link}
	t := table{}
	for _, row := range result.Rows {
		if row.Workload != workload || row.Link != link {
			continue
		}
		if !slices.Contains(s.Ways, row.Way) {
			s.Ways = append(s.Ways, row.Way)
		}
		if row.Median == nil {
			s.Notes = append(s.Notes, row.Way+": "+row.Note)
			continue
		}
		t[cell{row.Way, row.Metric}] = row
	}
	// A way that could not be measured has no bars.
	s.Ways = slices.DeleteFunc(s.Ways, func(way string) bool { return t.value(way, "downtime_seconds") == 0 })
	s.Freeze, s.Total, s.Bytes = t.freeze(s.Ways), t.total(s.Ways), t.sent(s.Ways)
	for _, trace := range result.Traces {
		if trace.Workload == workload && trace.Link == link && trace.Run == 1 {
			s.Traces = append(s.Traces, trace)
		}
	}
	for _, way := range s.Ways {
		line := []string{way}
		for _, c := range shown()[1:] {
			line = append(line, t.text(way, c.metric))
		}
		s.Lines = append(s.Lines, line)
	}
	return s
}

type cell struct{ way, metric string }

// table has the rows of a section.
type table map[cell]bench.Row

func (t table) value(way, metric string) float64 {
	if row, ok := t[cell{way, metric}]; ok {
		return *row.Median
	}
	return 0
}

// stacked makes a part of the bars.
func (t table) stacked(ways []string, label string, of func(way string) float64) stack {
	s := stack{Label: label}
	for _, way := range ways {
		s.Data = append(s.Data, max(0, of(way)))
	}
	return s
}

// freeze has the parts of the downtime, whoever names them; what has no name is the rest.
func (t table) freeze(ways []string) []stack {
	parts := []string{"stop", "checkpoint", "copy", "connect", "restore", "start"}
	for c := range t {
		if name, is := strings.CutPrefix(c.metric, "phase_"); is {
			parts = append(parts, "phase_"+strings.TrimSuffix(name, "_seconds"))
		}
	}
	slices.SortFunc(parts[6:], func(x, y string) int { return place(x) - place(y) })
	parts = slices.Compact(parts)
	var all []stack
	rest := t.stacked(ways, "other", func(way string) float64 { return t.value(way, "downtime_seconds") })
	for _, part := range parts {
		s := t.stacked(ways, strings.ReplaceAll(strings.TrimPrefix(part, "phase_"), "_", " "), func(way string) float64 {
			return t.value(way, part+"_seconds")
		})
		if slices.Max(append(s.Data, 0)) == 0 {
			continue
		}
		for i, value := range s.Data {
			rest.Data[i] = max(0, rest.Data[i]-value)
		}
		all = append(all, s)
	}
	return append(all, rest)
}

// place is that of a phase in a freeze; phases that are not listed come last.
func place(part string) int {
	order := []string{"freeze", "dump", "transfer", "receive", "wait", "restore", "resume"}
	i := slices.Index(order, strings.TrimPrefix(part, "phase_"))
	if i < 0 {
		return len(order) + int(part[len(part)-1])
	}
	return i
}

func (t table) total(ways []string) []stack {
	whole := func(way string) float64 { return max(t.value(way, "total_seconds"), t.value(way, "handoff_seconds")) }
	down := func(way string) float64 { return t.value(way, "downtime_seconds") }
	drain := func(way string) float64 { return t.value(way, "drain_seconds") }
	return []stack{
		t.stacked(ways, "staged before the request", func(way string) float64 { return t.value(way, "stage_seconds") }),
		t.stacked(ways, "it runs", func(way string) float64 { return whole(way) - down(way) - drain(way) }),
		t.stacked(ways, "it stands still", down),
		t.stacked(ways, "its memory follows", drain),
	}
}

func (t table) sent(ways []string) []stack {
	sent := func(way string) float64 { return max(t.value(way, "sent_bytes"), t.value(way, "freeze_bytes")) }
	frozen := func(way string) float64 { return t.value(way, "freeze_bytes") }
	return []stack{
		t.stacked(ways, "before the request", func(way string) float64 { return t.value(way, "stage_bytes") }),
		t.stacked(ways, "while it stands still", frozen),
		t.stacked(ways, "while it runs", func(way string) float64 { return sent(way) - frozen(way) }),
	}
}

type column struct{ title, metric string }

// shown are the columns of the tables.
func shown() []column {
	return []column{
		{"", ""}, {"downtime", "downtime_seconds"}, {"limit: bytes / bandwidth", "downtime_limit_seconds"}, {"handoff", "handoff_seconds"},
		{"total", "total_seconds"}, {"limit: bytes / bandwidth", "total_limit_seconds"}, {"sent", "sent_bytes"},
		{"sent before", "stage_bytes"}, {"client waited at most", "client_gap_seconds"}, {"picture stood still", "picture_still_seconds"},
	}
}

// text is a median with its interval.
func (t table) text(way, metric string) string {
	row, ok := t[cell{way, metric}]
	if !ok {
		return ""
	}
	show := func(value float64) string {
		if strings.HasSuffix(metric, "_bytes") {
			return fmt.Sprintf("%.2f MB", value/1e6)
		}
		return fmt.Sprintf("%.3g s", value)
	}
	text := show(*row.Median)
	if row.Interval != nil && len(row.Samples) > 1 {
		text += fmt.Sprintf(" (%s to %s)", show(row.Interval[0]), show(row.Interval[1]))
	}
	return text
}
