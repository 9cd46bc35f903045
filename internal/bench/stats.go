package bench

import "slices"

// summary is what is told of a list of samples.
type summary struct{ median, low, high float64 }

// summarise wants at least one sample. Of an even number of samples the median is the mean of the two in the middle.
func summarise(samples []float64) summary {
	sorted := slices.Sorted(slices.Values(samples))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return summary{median: median, low: sorted[0], high: sorted[len(sorted)-1]}
}
