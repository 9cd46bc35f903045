package predict

import "slices"

// Measurements is how many measurements of the same thing count.
const Measurements = 3

// Newest adds a measurement, and drops measurements that are too old to count.
func Newest(all []float64, one float64) []float64 {
	all = append(all, one)
	return all[max(0, len(all)-Measurements):]
}

// Median returns the middle of at least one measurement. It ignores a measurement that a busy machine has
// spoilt.
func Median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)-1)/2]
}
