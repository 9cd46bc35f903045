package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

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

// find returns the row of a metric; nil if it was not measured.
func find(rows []Row, workload, link, way, metric string) *Row {
	i := slices.IndexFunc(rows, func(r Row) bool {
		return r.Workload == workload && r.Link == link && r.Way == way && r.Metric == metric &&
			r.Median != nil
	})
	if i < 0 {
		return nil
	}
	return &rows[i]
}

// measurement is one metric of one run. It is an alias, so that a list of measurements needs no names of
// fields in any package.
type measurement = struct {
	metric string
	value  float64
}

// series holds the measurements of one way to move one workload over one link.
type series struct {
	workload, link, way string
	runs                int
	metrics             []string // in the order of their first appearance
	samples             map[string][]float64
	note                string // why it ended early
}

// add adds the measurements of one run. A metric that a run does not have, such as a phase that was too
// short, counts as zero.
func (s *series) add(measured []measurement) {
	if s.samples == nil {
		s.samples = map[string][]float64{}
	}
	for _, m := range measured {
		if _, known := s.samples[m.metric]; !known {
			s.metrics = append(s.metrics, m.metric)
			s.samples[m.metric] = make([]float64, s.runs)
		}
		s.samples[m.metric] = append(s.samples[m.metric], m.value)
	}
	s.runs++
	for metric, samples := range s.samples {
		if len(samples) < s.runs {
			s.samples[metric] = append(samples, 0)
		}
	}
}

func (s *series) rows() []Row {
	rows := []Row{}
	for _, metric := range s.metrics {
		samples := s.samples[metric]
		sum := summarise(samples)
		rows = append(rows, Row{
			Workload: s.workload, Link: s.link, Way: s.way, Metric: metric, Note: s.note,
			Samples: samples, Median: &sum.median, Low: &sum.low, High: &sum.high,
		})
	}
	if len(rows) == 0 && s.note != "" {
		rows = append(rows, Row{
			Workload: s.workload, Link: s.link, Way: s.way, Metric: metricDowntime, Note: s.note,
			Samples: []float64{},
		})
	}
	return rows
}
