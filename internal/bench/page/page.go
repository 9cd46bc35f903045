package page

import (
	"bytes"
	"cmp"
	_ "embed" // the page's parts
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/bench/results"
)

//go:embed chart.umd.min.js
var library string

//go:embed page.js
var script string

//go:embed page.html
var layout string

// section is one workload over one link.
type section struct {
	Title  string `json:"title"`
	Name   string `json:"-"` // of its place in the page
	of     of
	Ways   []string        `json:"ways"`
	Freeze []stack         `json:"freeze"` // parts of the downtime, in seconds
	Total  []stack         `json:"total"`  // parts of the whole time, in seconds
	Bytes  []stack         `json:"bytes"`  // sent bytes, by phase
	Traces []results.Trace `json:"traces"` // of the first run of each way
	Lines  []line          `json:"-"`
	Notes  []string        `json:"-"`
}

// of identifies a section's workload and link.
type of struct{ workload, link string }

// line is a line of a table. Its kind is a class of the style sheet.
type line struct {
	Kind  string
	Cells []text
}

// text is the text of a metric.
type text struct{ Median, Interval string }

func newLine(way string) line {
	switch {
	case strings.HasPrefix(way, "godwit"):
		return line{"own", []text{{Median: way}}}
	case strings.HasPrefix(way, "published"):
		return line{"study", []text{{Median: way}}}
	}
	return line{"", []text{{Median: way}}}
}

// stack is one part of the bars of all ways.
type stack struct {
	Label string    `json:"label"`
	Data  []float64 `json:"data"`
}

// document is the input of the layout.
type document struct {
	Result   results.Result
	Overview overview
	Sections []section
	Columns  []string
	Library  template.JS
	Script   template.JS
}

// WriteFile writes the page, completely or not at all.
func WriteFile(result results.Result, path string) error {
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

func render(result results.Result) ([]byte, error) {
	parsed, err := template.New("page").Funcs(template.FuncMap{"amount": amount, "near": near}).Parse(layout)
	if err != nil {
		return nil, err
	}
	columns := make([]string, len(shown()))
	for i, c := range shown() {
		columns[i] = c.title
	}
	var out bytes.Buffer
	err = parsed.Execute(&out, document{
		Result: result, Overview: newOverview(result), Sections: sections(result), Columns: columns,
		Library: template.JS(library), //nolint:gosec // it is a file of this package
		Script:  template.JS(script),  //nolint:gosec // likewise
	})
	return out.Bytes(), err
}

// sections returns one section for each workload and link, in the order of the rows.
func sections(result results.Result) []section {
	var all []section
	for i, row := range result.Rows {
		if i > 0 && row.Workload == result.Rows[i-1].Workload && row.Link == result.Rows[i-1].Link {
			continue
		}
		s := newSection(result, row.Workload, row.Link)
		s.Name = fmt.Sprintf("section-%d", len(all))
		all = append(all, s)
	}
	return all
}

func newSection(result results.Result, workload, link string) section {
	s := section{Title: workload + ", " + link, of: of{workload, link}}
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
		line := newLine(way)
		for _, c := range shown()[1:] {
			line.Cells = append(line.Cells, t.text(way, c.metric))
		}
		s.Lines = append(s.Lines, line)
	}
	return s
}

type cell struct{ way, metric string }

// table has the rows of a section.
type table map[cell]results.Row

func (t table) value(way, metric string) float64 {
	if row, ok := t[cell{way, metric}]; ok {
		return *row.Median
	}
	return 0
}

// stacked returns a part of the bars.
func (t table) stacked(ways []string, label string, of func(way string) float64) stack {
	s := stack{Label: label}
	for _, way := range ways {
		s.Data = append(s.Data, max(0, of(way)))
	}
	return s
}

// freeze returns the parts of the downtime, by any way's names, in the order of time; the rest has no name.
func (t table) freeze(ways []string) []stack {
	names := inOrder()
	for c := range t {
		if name, is := strings.CutPrefix(c.metric, "phase_"); is {
			names = append(names, strings.TrimSuffix(name, "_seconds"))
		}
	}
	slices.SortFunc(names, func(x, y string) int { return cmp.Or(place(x)-place(y), strings.Compare(x, y)) })
	var all []stack
	rest := t.stacked(ways, "other", func(way string) float64 { return t.value(way, "downtime_seconds") })
	for _, name := range slices.Compact(names) {
		s := t.stacked(ways, strings.ReplaceAll(name, "_", " "), func(way string) float64 {
			return t.value(way, name+"_seconds") + t.value(way, "phase_"+name+"_seconds")
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

// inOrder lists the steps of a move. Some are commands of other ways, some phases of Godwit's, restore and
// stop both.
func inOrder() []string {
	return []string{
		"stop", "freeze", "checkpoint", "dump", "copy", "send", "transfer", "receive", "wait", "connect",
		"restore", "start", "resume",
	}
}

// place returns the position of a step; unlisted steps come last.
func place(name string) int {
	if i := slices.Index(inOrder(), name); i >= 0 {
		return i
	}
	return len(inOrder())
}

// total returns the parts of the whole time. Ways other than Godwit's have no known phases except the
// downtime and what follows.
func (t table) total(ways []string) []stack {
	whole := func(way string) float64 {
		return max(t.value(way, "total_seconds"),
			t.value(way, "handoff_seconds"))
	}
	steps := func(names ...string) func(way string) float64 {
		return func(way string) float64 {
			sum := 0.0
			for _, name := range names {
				sum += t.value(way, "step_"+name+"_seconds")
			}
			return sum
		}
	}
	after, layers, rounds, drain := steps("forward", "destroy", "cleanup", "settle"), steps("stage"),
		steps("rounds"), steps("drain")
	follows := func(way string) float64 {
		if known := drain(way); known > 0 {
			return known
		}
		return t.value(way, "drain_seconds")
	}
	down := func(way string) float64 { return t.value(way, "downtime_seconds") }
	rest := func(way string) float64 {
		return whole(way) - down(way) - follows(way) - after(way) - layers(way) - rounds(way)
	}
	byItself := func(way string) bool { return strings.HasPrefix(way, "godwit") }
	return []stack{
		t.stacked(ways, "staged before the request",
			func(way string) float64 { return t.value(way, "stage_seconds") }),
		t.stacked(ways, "it is got ready", func(way string) float64 {
			if byItself(way) {
				return rest(way)
			}
			return 0
		}),
		t.stacked(ways, "image layers are sent", layers),
		t.stacked(ways, "copied while it runs", func(way string) float64 {
			if byItself(way) {
				return rounds(way)
			}
			return rest(way)
		}),
		t.stacked(ways, "it stands still", down),
		t.stacked(ways, "its memory follows", follows),
		t.stacked(ways, "cleaned up behind it", after),
	}
}

func (t table) sent(ways []string) []stack {
	sent := func(way string) float64 { return max(t.value(way, "sent_bytes"), t.value(way, "freeze_bytes")) }
	frozen := func(way string) float64 { return t.value(way, "freeze_bytes") }
	return []stack{
		t.stacked(ways, "before the request",
			func(way string) float64 { return t.value(way, "stage_bytes") }),
		t.stacked(ways, "while it stands still", frozen),
		t.stacked(ways, "while it runs", func(way string) float64 { return sent(way) - frozen(way) }),
	}
}

type column struct{ title, metric string }

// shown returns the columns of the tables.
func shown() []column {
	return []column{
		{"", ""}, {"downtime", "downtime_seconds"}, {"limit: bytes / bandwidth", "downtime_limit_seconds"},
		{"handoff", "handoff_seconds"},
		{"total", "total_seconds"}, {"limit: bytes / bandwidth", "total_limit_seconds"},
		{"sent", "sent_bytes"},
		{"sent before", "stage_bytes"}, {"client waited at most", "client_gap_seconds"},
		{"picture stood still", "picture_still_seconds"},
	}
}

// text formats a median with its interval.
func (t table) text(way, metric string) text {
	row, ok := t[cell{way, metric}]
	if !ok {
		return text{}
	}
	unit := "seconds"
	if strings.HasSuffix(metric, "_bytes") {
		unit = "bytes"
	}
	told := text{Median: amount(*row.Median, unit)}
	if row.Interval != nil && len(row.Samples) > 1 {
		told.Interval = amount(row.Interval[0], unit) + " to " + amount(row.Interval[1], unit)
	}
	return told
}

// amount formats a number with its unit, with three digits.
func amount(value float64, unit string) string {
	switch {
	case unit == "bytes" && value < 1e6:
		return fmt.Sprintf("%.3g kB", value/1e3)
	case unit == "bytes":
		return fmt.Sprintf("%.4g MB", value/1e6)
	case value == 0:
		return "0 s"
	case value < 1:
		return fmt.Sprintf("%.3g ms", value*1e3)
	}
	return fmt.Sprintf("%.3g s", value)
}

// near formats the minimum that the link allows, and how near the result is.
func near(a results.Asked) string {
	if a.Reach == nil || *a.Reach <= 0 {
		return ""
	}
	return fmt.Sprintf("%s (%.2f x)", amount(*a.Reach, a.Unit), a.Value / *a.Reach)
}
