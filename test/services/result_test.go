package services

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// result is the result of one service in one mode over one link.
type result struct {
	Name     string  `json:"name"`
	Engine   string  `json:"engine"`
	Mode     string  `json:"mode"`
	Link     string  `json:"link"`
	Moves    int     `json:"moves"`
	Refused  int     `json:"refused"` // of a service that must be refused
	Failed   int     `json:"failed"`
	Errors   int     `json:"errors"`           // seen by a client
	Lost     int64   `json:"lost"`             // of acknowledged data
	Gap      float64 `json:"gap_seconds"`      // longest time that a client waited for an answer
	Downtime float64 `json:"downtime_seconds"` // the longest
	// Notes describe failures.
	Notes []string `json:"notes,omitempty"`
}

// note records a failure, and fails the test.
func (r *result) note(t *testing.T, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	t.Errorf("%s, %s, %s: %s", r.Name, r.Mode, r.Link, text)
	r.Notes = append(r.Notes, text)
}

// results are the results of a run.
type results struct{ rows []result }

// add adds a result, and writes the results so far to the files that the environment names: a whole run
// takes an hour and more.
func (r *results) add(t *testing.T, row result) {
	t.Helper()
	r.rows = append(r.rows, row)
	content, err := json.MarshalIndent(map[string]any{"services": r.rows}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	for variable, content := range map[string][]byte{"SERVICES_JSON": append(content, '\n'),
		"SERVICES_TABLE": []byte(r.table())} {
		if path := os.Getenv(variable); path != "" {
			if err := os.WriteFile(path, content, 0o644); err != nil {
				t.Error(err)
			}
		}
	}
}

// table returns a row for each service, engine and link, with a cell for each mode.
func (r *results) table() string {
	var modes, lines []string
	cells := map[string]string{} // by line and mode
	for _, row := range r.rows {
		line := fmt.Sprintf("| %s | %s | %s |", row.Name, row.Engine, row.Link)
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
		if !slices.Contains(modes, row.Mode) {
			modes = append(modes, row.Mode)
		}
		cells[line+row.Mode] = row.cell()
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| service | engine | link | %s |\n|---|---|---|%s\n", strings.Join(modes, " | "),
		strings.Repeat("---|", len(modes)))
	for _, line := range lines {
		table.WriteString(line)
		for _, mode := range modes {
			fmt.Fprintf(&table, " %s |", cells[line+mode])
		}
		table.WriteString("\n")
	}
	return table.String()
}

// cell returns the gap and the downtime, or the failure.
func (r *result) cell() string {
	switch {
	case len(r.Notes) > 0:
		return fmt.Sprintf("failed %d of %d, errors %d, lost %d", r.Failed, r.Moves+r.Refused, r.Errors,
			r.Lost)
	case r.Refused > 0:
		return "refused by name"
	default:
		return fmt.Sprintf("%.2f s (%.2f s)", r.Gap, r.Downtime)
	}
}
