package bench

import (
	"math"
	"slices"
)

// summary is what is told of a list of samples.
type summary struct{ median, low, high float64 }

// summarise wants at least one sample. Of an even number of samples the median is the mean of the
// two in the middle.
func summarise(samples []float64) summary {
	sorted := slices.Sorted(slices.Values(samples))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return summary{median: median, low: sorted[0], high: sorted[len(sorted)-1]}
}

// certain is how certain an interval is to have the median in it.
const certain = 0.95

// interval is the narrowest pair of samples, as far from the lowest as from the highest, that
// encloses the median of what is measured with that certainty, whatever its distribution; all
// samples if there are too few. As many of n samples are below the median as heads come in n throws
// of a coin.
func interval(samples []float64) (low, high, certainty float64) {
	sorted := slices.Sorted(slices.Values(samples))
	n := len(sorted)
	left := 0
	outside := math.Pow(0.5, float64(n)) // the chance that at most `left` are below it
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
