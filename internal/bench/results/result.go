package results

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Host is the machine on which a suite ran.
type Host struct {
	Cores        int    `json:"cores"`
	Architecture string `json:"architecture"`
	Kernel       string `json:"kernel"`
	CRIU         string `json:"criu"`
	// Load is the average number of runnable processes in the minute before: measurements on a busy machine
	// are slower.
	Load float64 `json:"load_average"`
}

// Result is the result of a suite.
type Result struct {
	Suite   string    `json:"suite"`
	Host    Host      `json:"host"`
	Started time.Time `json:"started"`
	Rows    []Row     `json:"rows"`
	Asked   []Asked   `json:"asked"`
	// Traces are the answers that clients saw, of the suite studies.
	Traces []Trace `json:"traces,omitempty"`
}

// Row is one metric of one way to move one workload over one link. The metric's name ends in its unit. A
// way that could not be measured has one row without samples, with a note that says why.
type Row struct {
	Workload string    `json:"workload"`
	Link     string    `json:"link"`
	Way      string    `json:"way"`
	Metric   string    `json:"metric"`
	Samples  []float64 `json:"samples"`
	Median   *float64  `json:"median"`
	Low      *float64  `json:"low"`
	High     *float64  `json:"high"`
	Note     string    `json:"note,omitempty"`
	// Interval contains the median with at least 95 % certainty, or is the whole range if there are too few
	// samples for that (suite studies).
	Interval *[2]float64 `json:"interval,omitempty"`
	// Certainty is that of the interval.
	Certainty float64 `json:"certainty,omitempty"`
}

// Asked is one requirement of Godwit.
type Asked struct {
	What  string  `json:"what"`
	Way   string  `json:"way,omitempty"` // way that was measured, if there are several
	Unit  string  `json:"unit"`
	Least bool    `json:"least"` // the value must be at least the limit, not at most
	Limit float64 `json:"limit"`
	Value float64 `json:"value"`
	Met   bool    `json:"met"`
	// Reach is the minimum that the link allows: the time for the bytes that were sent.
	Reach *float64 `json:"reach,omitempty"`
}

// WriteFile writes the result as JSON, completely or not at all.
func (r Result) WriteFile(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("result of the benchmark: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("result of the benchmark: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".new-*")
	if err != nil {
		return fmt.Errorf("result of the benchmark: %w", err)
	}
	defer os.Remove(file.Name()) // it no longer exists if all went well
	_, err = file.Write(append(data, '\n'))
	if err == nil {
		err = file.Chmod(0o644)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("result of the benchmark: %w", err)
	}
	return nil
}

// Find returns the row of a metric; nil if it was not measured.
func Find(rows []Row, workload, link, way, metric string) *Row {
	i := slices.IndexFunc(rows, func(r Row) bool {
		return r.Workload == workload && r.Link == link && r.Way == way && r.Metric == metric &&
			r.Median != nil
	})
	if i < 0 {
		return nil
	}
	return &rows[i]
}

// Trace is the answers that a client saw around one move.
type Trace struct {
	Workload string `json:"workload"`
	Link     string `json:"link"`
	Way      string `json:"way"`
	Run      int    `json:"run"`
	// Points are when an answer came, in seconds since the request for the move, and how long it had taken.
	Points [][2]float64 `json:"points"`
}
