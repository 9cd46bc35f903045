package results

// Measurement is one metric of one run. It is an alias, so that a list of measurements needs no names of
// fields in any package.
type Measurement = struct {
	Metric string
	Value  float64
}

// Series holds the measurements of one way to move one workload over one link.
type Series struct {
	Workload, Link, Way string
	Runs                int
	Metrics             []string // in the order of their first appearance
	Samples             map[string][]float64
	Note                string // why it ended early
}

// Add adds the measurements of one run. A metric that a run does not have, such as a phase that was too
// short, counts as zero.
func (s *Series) Add(measured []Measurement) {
	if s.Samples == nil {
		s.Samples = map[string][]float64{}
	}
	for _, m := range measured {
		if _, known := s.Samples[m.Metric]; !known {
			s.Metrics = append(s.Metrics, m.Metric)
			s.Samples[m.Metric] = make([]float64, s.Runs)
		}
		s.Samples[m.Metric] = append(s.Samples[m.Metric], m.Value)
	}
	s.Runs++
	for metric, samples := range s.Samples {
		if len(samples) < s.Runs {
			s.Samples[metric] = append(samples, 0)
		}
	}
}

// Rows returns a row for each metric; if there is none, a row that says why.
func (s *Series) Rows() []Row {
	rows := []Row{}
	for _, metric := range s.Metrics {
		samples := s.Samples[metric]
		sum := Summarise(samples)
		rows = append(rows, Row{
			Workload: s.Workload, Link: s.Link, Way: s.Way, Metric: metric, Note: s.Note,
			Samples: samples, Median: &sum.Median, Low: &sum.low, High: &sum.High,
		})
	}
	if len(rows) == 0 && s.Note != "" {
		rows = append(rows, Row{
			Workload: s.Workload, Link: s.Link, Way: s.Way, Metric: Downtime, Note: s.Note,
			Samples: []float64{},
		})
	}
	return rows
}
