package results

import (
	"math"
	"slices"
)

// Summary has the median and the range of a list of samples.
type Summary struct{ Median, low, High float64 }

// Summarise needs at least one sample. Of an even number of samples the median is the mean of the two in
// the middle.
func Summarise(samples []float64) Summary {
	sorted := slices.Sorted(slices.Values(samples))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return Summary{Median: median, low: sorted[0], High: sorted[len(sorted)-1]}
}

// certain is the required certainty that an interval contains the median.
const certain = 0.95

// Interval returns the narrowest pair of samples, equally far from the lowest and the highest, that
// encloses the median of the measured quantity with that certainty, whatever its distribution; the whole
// range if there are too few samples. The number of n samples below the median has the distribution of
// heads in n throws of a coin.
func Interval(samples []float64) (low, high, certainty float64) {
	sorted := slices.Sorted(slices.Values(samples))
	n := len(sorted)
	left := 0
	outside := math.Pow(0.5, float64(n)) // the chance that at most `left` samples are below it
	certainty = 1 - 2*outside
	chance := outside
	for next := 1; 2*next < n; next++ {
		chance *= float64(n-next+1) / float64(next)
		if 1-2*(outside+chance) < certain {
			break
		}
		outside += chance
		left, certainty = next, 1-2*outside
	}
	return sorted[left], sorted[n-1-left], max(0, certainty)
}
