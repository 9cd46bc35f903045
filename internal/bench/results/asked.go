package results

import (
	"math"
	"strings"
)

// Requirements of several benchmarks.
const (
	GapSlack = 0.020 // seconds, of the client's gap beyond the downtime and a round trip
)

// Medians looks up the median of a metric; NaN if it was not measured.
type Medians []Row

// Of returns the median of a metric; NaN if it was not measured.
func (m Medians) Of(workload, link, way, metric string) float64 {
	if row := Find(m, workload, link, way, metric); row != nil {
		return *row.Median
	}
	return math.NaN()
}

// Downtime returns the median of a way's downtime.
func (m Medians) Downtime(workload, link, way string) float64 {
	return m.Of(workload, link, way, Downtime)
}

// AtMost judges seconds.
func AtMost(what string, value, limit float64) Asked {
	return Asked{What: what, Unit: "seconds", Limit: limit, Value: value, Met: value <= limit}
}

// metricUnits are the suffixes of the names of metrics. Of two that match, the longer one comes first.
var metricUnits = [...]string{"bytes_per_second", "writes_per_second", "seconds", "bytes", "ratio"}

// Unit returns the unit of a metric.
func Unit(metric string) string {
	for _, u := range metricUnits {
		if strings.HasSuffix(metric, "_"+u) {
			return u
		}
	}
	return ""
}
