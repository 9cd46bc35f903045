package controller

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
)

// Row is one figure, and what is asked of it.
type Row struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Asked float64 `json:"asked"` // the value must be below
	Met   bool    `json:"met"`
}

// Result is what was measured.
type Result struct {
	Rows []Row `json:"rows"`
}

func (r *Result) add(what string, value float64, unit string, asked float64) {
	r.Rows = append(r.Rows, Row{what, value, unit, asked, value < asked})
}

// WriteText prints the rows as a table.
func (r Result) WriteText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "WHAT\tVALUE\tASKED\tMET")
	for _, one := range r.Rows {
		met := "yes"
		if !one.Met {
			met = "no"
		}
		fmt.Fprintf(table, "%s\t%.3g %s\tless than %g\t%s\n", one.What, one.Value, one.Unit, one.Asked, met)
	}
	return table.Flush()
}

// WriteFile writes the rows as JSON.
func (r Result) WriteFile(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("result of the benchmark: %w", err)
	}
	return nil
}
